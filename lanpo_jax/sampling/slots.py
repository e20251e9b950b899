"""Who sits where: turns (one completion each) on rows, their prompts in slots, their tokens in pages. Host Python.

A turn's results depend on none of this: its randomness comes from its name, and attention sees its own tokens only.
"""

from __future__ import annotations

import collections
import dataclasses

import numpy as np

from lanpo_jax.models.cache import BLOCK


@dataclasses.dataclass
class Turn:
    """One completion on its way."""

    prompt: int  # which of the call's prompts
    sample: int  # which of its completions
    key: np.ndarray  # uint32 [2]
    limit: int
    temperature: float
    prompt_length: int
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    ended: bool = False
    slot: int = -1  # of its device's prompts
    pages: list[int] = dataclasses.field(default_factory=list)

    @property
    def stored(self) -> int:
        """Its tokens in pages: all but the last one drawn, which is the next step's input."""
        return len(self.tokens) - 1


@dataclasses.dataclass
class Device:
    """What one device holds. Its rows come from `live`, in any order; `waiting` turns have their prompt in a slot."""

    rows: int
    places: int  # rows that one prompt may have at a time
    free_slots: list[int]
    free_pages: list[int]
    live: list[Turn] = dataclasses.field(default_factory=list)
    waiting: collections.deque[Turn] = dataclasses.field(default_factory=collections.deque)
    open: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # slot -> unfinished turns
    preempted: int = 0

    def admit(self, slot: int, turns: list[Turn]) -> None:
        """Takes the turns of a prompt that was computed into `slot`; frees it if nothing is left to do."""
        self.open[slot] = len(turns)
        for turn in turns:
            turn.slot = slot
            self.waiting.append(turn)
        if not turns:
            self._free(slot)

    def seat(self) -> None:
        """Fills free rows with waiting turns, as long as their prompts have places, and sees that all have pages."""
        taken = collections.Counter(turn.slot for turn in self.live)
        for turn in list(self.waiting):
            if len(self.live) == self.rows or not self.free_pages:
                break
            if taken[turn.slot] < self.places:
                taken[turn.slot] += 1
                self.waiting.remove(turn)
                self.live.append(turn)
                self._page(turn)
        for turn in sorted(self.live, key=lambda t: -len(t.tokens)):
            while turn in self.live and not self._page(turn):
                self._unseat(min(self.live, key=lambda t: len(t.tokens)))

    def _page(self, turn: Turn) -> bool:
        """Gives the turn the page for its next chunk; False if there is none."""
        if len(turn.pages) * BLOCK <= turn.stored:
            if not self.free_pages:
                return False
            turn.pages.append(self.free_pages.pop())
        return True

    def _unseat(self, turn: Turn) -> None:
        """Sends back a turn, which later draws the same tokens once more: cheaper than memory for the worst case."""
        self.live.remove(turn)
        self._release(turn)
        del turn.tokens[1:], turn.logprobs[1:]
        self.waiting.appendleft(turn)
        self.preempted += 1

    def finish(self, turn: Turn) -> None:
        """Frees what the turn held."""
        self.live.remove(turn)
        self._release(turn)
        self.open[turn.slot] -= 1
        if not self.open[turn.slot]:
            self._free(turn.slot)

    def _release(self, turn: Turn) -> None:
        self.free_pages += turn.pages
        turn.pages = []

    def _free(self, slot: int) -> None:
        del self.open[slot]
        self.free_slots.append(slot)


def arrange(device: Device, rows: int, slots: int, all_slots: int, blocks: int) -> tuple[list[Turn], dict]:
    """The arrays of one chunk on one device: its live turns on the first rows, longest first.

    `slots` of the prompts are worked on: all of them by their number, or the few that have live turns.
    Returns the turns and, by the names of `sampler.Rows` and `cache.View`, arrays over rows and places.
    """
    turns = sorted(device.live, key=lambda t: -len(t.tokens))
    used = list(range(all_slots)) if slots == all_slots else sorted({t.slot for t in turns})
    near = {slot: i for i, slot in enumerate(used)}
    out = {
        "token": np.zeros(rows, np.int32),
        "position": np.zeros(rows, np.int32),
        "drawn": np.zeros(rows, np.int32),
        "limit": np.zeros(rows, np.int32),
        "live": np.zeros(rows, bool),
        "keys": np.zeros((rows, 2), np.uint32),
        "temperature": np.ones(rows, np.float32),
        "place": np.zeros(rows, np.int32),
        "row": np.zeros(slots * device.places, np.int32),
        "prompt_lengths": np.ones(slots, np.int32),
        "slots": np.asarray(used + [0] * (slots - len(used)), np.int32),
        "stored": np.zeros(rows, np.int32),
        "pages": np.zeros((rows, blocks), np.int32),
    }
    taken: collections.Counter = collections.Counter()
    for r, turn in enumerate(turns):
        slot = near[turn.slot]
        place = slot * device.places + taken[slot]
        taken[slot] += 1
        out["token"][r], out["drawn"][r], out["limit"][r] = turn.tokens[-1], len(turn.tokens), turn.limit
        out["position"][r], out["stored"][r] = turn.prompt_length + turn.stored, turn.stored
        out["live"][r], out["keys"][r], out["temperature"][r] = True, turn.key, turn.temperature
        out["place"][r], out["row"][place], out["prompt_lengths"][slot] = place, r, turn.prompt_length
        out["pages"][r, : len(turn.pages)] = turn.pages
    return turns, out
