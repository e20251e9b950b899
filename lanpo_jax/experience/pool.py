"""What the policy has lived through: attempts and principles per problem, bounded, saved with the checkpoint.

`Entry` is text that may be shown. `Outcome` is what the verifier said; it sits in a store of its own, for statistics,
and nothing that builds a prompt is given it.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lanpo_jax.experience import index as index_lib

VERSION = 1


@dataclasses.dataclass(frozen=True)
class Attempt:
    """An unguided response to a problem, as the policy wrote it at `step`."""

    text: str
    tokens: int
    step: int


@dataclasses.dataclass(frozen=True)
class Principle:
    """A short lesson that the policy drew from a solution of a problem, for use with other problems."""

    text: str
    tokens: int
    step: int


@dataclasses.dataclass(frozen=True)
class Entry:
    """What may be shown of a problem. Holds no reward, no verdict and no gold answer."""

    id: str
    text: str
    attempts: tuple[Attempt, ...] = ()  # oldest first
    principle: Principle | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the verifier said of a problem's attempts and of the rollouts that were shown its principle."""

    rewards: tuple[float, ...] = ()  # of the stored attempts, in their order
    correct: tuple[bool, ...] = ()
    tried: int = 0  # unguided rollouts over the entry's life
    solved: int = 0
    shown: int = 0  # rollouts that saw the present principle
    succeeded: int = 0


class Pool:
    """A bounded store of experience. Same calls in the same order, same pool: no clock and no randomness.

    When full, the entry not used for longest goes (used: stored to, or its principle shown).
    """

    def __init__(
        self, capacity: int = 100_000, attempts: int = 2, near_duplicate: float = index_lib.NEAR_DUPLICATE
    ) -> None:
        if capacity < 1 or attempts < 1:
            raise ValueError(
                f"A pool of {capacity} entries with {attempts} attempts each holds nothing; use 1 or more."
            )
        self.capacity = capacity
        self.attempts = attempts
        self.near_duplicate = near_duplicate
        self.index = index_lib.Index(near_duplicate)  # texts of the problems that have a principle
        self.evicted = 0  # entries dropped so far
        self.refused = 0  # admissions refused so far because the problem is forbidden
        self._entries: collections.OrderedDict[str, Entry] = collections.OrderedDict()  # least recently used first
        self._outcomes: dict[str, Outcome] = {}
        self._forbidden = index_lib.Index(near_duplicate)
        self._forbidden_texts: dict[str, None] = {}  # an ordered set

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: str) -> bool:
        return id in self._entries

    def entry(self, id: str) -> Entry | None:
        """What may be shown of a problem, or None."""
        return self._entries.get(id)

    def outcome(self, id: str) -> Outcome:
        """The verifier's side of a problem, for statistics; empty if it is unknown."""
        return self._outcomes.get(id, Outcome())

    def ids(self) -> list[str]:
        """Ids of all entries, least recently used first."""
        return list(self._entries)

    def forbid(self, texts: Sequence[str]) -> int:
        """Keeps evaluation problems and their near-duplicates out for good; returns how many entries that drops."""
        for text in texts:
            if text not in self._forbidden_texts:
                self._forbidden_texts[text] = None
                self._forbidden.add(text, text)
        entries = list(self._entries.values())
        refused = self._forbidden.duplicates([e.text for e in entries])
        for entry, bad in zip(entries, refused, strict=True):
            if bad:
                self._drop(entry.id)
        return sum(refused)

    def admit(self, problems: Sequence[tuple[str, str]]) -> list[bool]:
        """Makes entries for (id, text) pairs where needed; False where the problem is forbidden.

        An id that comes with another text than before is another problem and starts anew.
        """
        known = [(e := self._entries.get(id)) is not None and e.text == text for id, text in problems]
        new = [text for (_, text), old in zip(problems, known, strict=True) if not old]
        forbidden = iter(self._forbidden.duplicates(new))
        allowed = [old or not next(forbidden) for old in known]
        for (id, text), fine in zip(problems, allowed, strict=True):
            self.refused += not fine
            if fine:
                self._touch(id, text)
        self._evict()
        return [id in self._entries for id, _ in problems]

    def forbidden(self, texts: Sequence[str]) -> list[bool]:
        """Which texts are evaluation problems or near-duplicates of one."""
        return self._forbidden.duplicates(texts)

    def add_attempts(
        self, id: str, attempts: Sequence[Attempt], rewards: Sequence[float], correct: Sequence[bool]
    ) -> None:
        """Adds unguided attempts to an admitted problem, whatever they earned, and keeps the newest with any text."""
        entry, outcome = self._entries[id], self.outcome(id)
        keep = slice(-self.attempts, None)
        tried, solved = len(attempts), sum(map(bool, correct))
        told = [i for i, a in enumerate(attempts) if a.text.strip()]
        attempts, rewards, correct = ([values[i] for i in told] for values in (attempts, rewards, correct))
        self._entries[id] = dataclasses.replace(entry, attempts=(*entry.attempts, *attempts)[keep])
        self._outcomes[id] = dataclasses.replace(
            outcome,
            rewards=(*outcome.rewards, *map(float, rewards))[keep],
            correct=(*outcome.correct, *map(bool, correct))[keep],
            tried=outcome.tried + tried,
            solved=outcome.solved + solved,
        )

    def set_principle(self, id: str, principle: Principle) -> None:
        """Writes or replaces the principle of an admitted problem; its statistics start anew."""
        entry = self._entries[id]
        self._entries[id] = dataclasses.replace(entry, principle=principle)
        self._outcomes[id] = dataclasses.replace(self.outcome(id), shown=0, succeeded=0)
        self._entries.move_to_end(id)
        self.index.add(id, entry.text)

    def record_shown(self, id: str, shown: int, succeeded: int) -> None:
        """Counts rollouts that saw a principle, and how many of them the verifier accepted."""
        if id not in self._entries:
            return
        outcome = self.outcome(id)
        self._outcomes[id] = dataclasses.replace(
            outcome, shown=outcome.shown + int(shown), succeeded=outcome.succeeded + int(succeeded)
        )
        self._entries.move_to_end(id)

    def _touch(self, id: str, text: str) -> None:
        if id in self._entries and self._entries[id].text != text:
            self._drop(id)
        self._entries.setdefault(id, Entry(id, text))
        self._entries.move_to_end(id)

    def _evict(self) -> None:
        while len(self._entries) > self.capacity:
            self._drop(next(iter(self._entries)))
            self.evicted += 1

    def _drop(self, id: str) -> None:
        del self._entries[id]
        self._outcomes.pop(id, None)
        self.index.remove(id)

    def state(self) -> dict[str, Any]:
        """Everything, as values that JSON holds exactly."""
        return {
            "version": VERSION,
            "capacity": self.capacity,
            "attempts": self.attempts,
            "near_duplicate": self.near_duplicate,
            "evicted": self.evicted,
            "refused": self.refused,
            "entries": [dataclasses.asdict(e) for e in self._entries.values()],
            "outcomes": {id: dataclasses.asdict(o) for id, o in self._outcomes.items()},
            "indexed": self.index.ids(),  # its order breaks ties in retrieval
            "forbidden": list(self._forbidden_texts),
        }


def from_state(state: Mapping[str, Any]) -> Pool:
    """The pool that `state()` described: it answers and evicts as the original would."""
    if state.get("version") != VERSION:
        raise ValueError(
            f"Pool state has version {state.get('version')!r}, this code reads {VERSION}; start a new pool."
        )
    pool = Pool(state["capacity"], state["attempts"], state["near_duplicate"])
    pool.evicted, pool.refused = state["evicted"], state["refused"]
    pool.forbid(state["forbidden"])
    for value in state["entries"]:
        pool._entries[value["id"]] = _entry(value)
    for id, value in state["outcomes"].items():
        lists = {name: tuple(value[name]) for name in ("rewards", "correct")}
        pool._outcomes[id] = Outcome(**{**value, **lists})
    for id in state["indexed"]:
        pool.index.add(id, pool._entries[id].text)
    return pool


def _entry(value: Mapping[str, Any]) -> Entry:
    principle = Principle(**value["principle"]) if value["principle"] else None
    return Entry(value["id"], value["text"], tuple(Attempt(**a) for a in value["attempts"]), principle)
