"""The last informative groups, kept to stand in for uninformative ones: bounded, saved with the checkpoint."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lanpo_jax import types

VERSION = 1


@dataclasses.dataclass
class Stored:
    """A group as it was sampled and graded at `step`, and when it was last replayed."""

    group: types.Group
    step: int
    uses: int = 0
    used: int = -1  # the step of its last replay


class Buffer:
    """Groups, oldest first. Same calls in the same order, same buffer: no clock and no randomness."""

    def __init__(self) -> None:
        self._stored: list[Stored] = []

    def __len__(self) -> int:
        return len(self._stored)

    def add(self, groups: Sequence[types.Group], step: int, size: int) -> None:
        """Stores groups of this step; the newest `size` of all stay."""
        self._stored += [Stored(group, step) for group in groups]
        self._stored = self._stored[max(0, len(self._stored) - size) :]

    def forget(self, step: int, age: int, group: int) -> int:
        """Drops what is older than `age` steps or has not `group` completions; returns how many groups that were."""
        before = len(self._stored)
        fresh = [s for s in self._stored if step - s.step <= age]
        self._stored = [s for s in fresh if len(s.group.generation.completions) == group]
        return before - len(self._stored)

    def take(self, count: int, step: int) -> list[Stored]:
        """At most `count` groups of earlier steps, none twice a step: the least replayed first, of those the newest."""
        free = [s for s in reversed(self._stored) if s.step < step and s.used < step]
        taken = sorted(free, key=lambda s: s.uses)[:count]
        for stored in taken:
            stored.uses, stored.used = stored.uses + 1, step
        return taken

    def state(self) -> dict[str, Any]:
        """Everything, as values that JSON holds exactly."""
        return {"version": VERSION, "stored": [_write(s) for s in self._stored]}


def from_state(state: Mapping[str, Any]) -> Buffer:
    """The buffer that `state()` described."""
    if state.get("version") != VERSION:
        raise ValueError(f"Replay state has version {state.get('version')!r}, this code reads {VERSION}; start anew.")
    buffer = Buffer()
    buffer._stored = [_read(value) for value in state["stored"]]
    return buffer


def _write(stored: Stored) -> dict[str, Any]:
    """A stored group without what only graders need (`Problem.extra`): it is graded."""
    group, grades = stored.group, stored.group.grades
    problem = {name: getattr(group.problem, name) for name in ("id", "text", "answer", "source")}
    return {
        "step": stored.step,
        "uses": stored.uses,
        "used": stored.used,
        "problem": problem,
        "mode": group.mode,
        "prompt": {"tokens": _pack(group.generation.prompt_tokens), "text": group.generation.prompt_text},
        "completions": [
            {"tokens": _pack(c.tokens), "logprobs": _pack(c.logprobs), "text": c.text, "truncated": bool(c.truncated)}
            for c in group.generation.completions
        ],
        "rewards": _pack(grades.rewards),
        "correct": [bool(c) for c in grades.correct],
        "reasons": list(grades.reasons),
        "parts": [[name, _pack(values)] for name, values in grades.parts.items()],  # in order: the first is the outcome
    }


def _read(value: Mapping[str, Any]) -> Stored:
    completions = tuple(
        types.Completion(_unpack(c["tokens"]), _unpack(c["logprobs"]), c["text"], c["truncated"])
        for c in value["completions"]
    )
    grades = types.Grades(
        _unpack(value["rewards"]),
        np.array(value["correct"], bool),
        tuple(value["reasons"]),
        {name: _unpack(packed) for name, packed in value["parts"]},
    )
    generation = types.Generation(_unpack(value["prompt"]["tokens"]), value["prompt"]["text"], completions)
    group = types.Group(types.Problem(**value["problem"]), value["mode"], generation, grades)
    return Stored(group, value["step"], value["uses"], value["used"])


def _pack(array: np.ndarray) -> list[str]:
    """[dtype, base64 of the bytes]: exact, and half as long as digits."""
    array = np.asarray(array)
    little = array.astype(array.dtype.newbyteorder("<"))
    return [array.dtype.name, base64.b64encode(little.tobytes()).decode()]


def _unpack(packed: Sequence[str]) -> np.ndarray:
    name, text = packed
    return np.frombuffer(base64.b64decode(text), np.dtype(name).newbyteorder("<")).astype(name)
