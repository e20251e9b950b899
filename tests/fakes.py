"""A world without a model: a `generate`, a `grade` and problems for tests of the language side."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from lanpo_jax import types

NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn")
THINGS = ("apples", "stamps", "marbles", "coins", "shells", "books")
VERBS = ("buys", "finds", "is given", "wins", "picks up")


def problems(count: int, start: int = 0) -> list[types.Problem]:
    """Addition stories, all different, with gold answers."""
    found = []
    for i in range(start, start + count):
        name, thing, verb = NAMES[i % 6], THINGS[i // 6 % 6], VERBS[i % 5]
        a, b = 11 + i, 23 + 3 * i
        text = f"{name} has {a} {thing}. Then {name} {verb} {b} more {thing}. How many {thing} does {name} have now?"
        found.append(types.Problem(f"story/{i}", text, str(a + b)))
    return found


def truncate(text: str, tokens: int) -> tuple[str, bool]:
    """A token is a word."""
    words = text.split(" ")
    return (" ".join(words[:tokens]), True) if len(words) > tokens else (text, False)


def fits(messages, max_new_tokens: int) -> bool:
    return True


def completion(text: str, truncated: bool = False) -> types.Completion:
    n = len(text.split(" "))
    return types.Completion(np.arange(n, dtype=np.int32), np.full(n, -1, np.float32), text, truncated)


class Model:
    """Answers every prompt from its key; remembers what it was asked. Summaries are asked for by the key's end."""

    def __init__(self, principle: str = "Add the parts to get the whole.", replies: Sequence[str] = ()) -> None:
        self.principle = principle
        self.replies = replies or ("I add and get RIGHT", "I subtract and get WRONG")
        self.calls: list[tuple[str, list[types.Prompt]]] = []

    def __call__(self, role: str, prompts: Sequence[types.Prompt]) -> list[types.Generation]:
        self.calls.append((role, list(prompts)))
        return [self._answer(prompt, len(self.calls)) for prompt in prompts]

    def _answer(self, prompt: types.Prompt, call: int) -> types.Generation:
        mode = prompt.key.rsplit("/")[-1].split("#")[0]
        if mode == "abstract":
            texts = [self.principle] * prompt.samples
        else:
            texts = [f"{self._reply(prompt.key, i)} in call {call} {mode}" for i in range(prompt.samples)]
        return types.Generation(np.arange(3, dtype=np.int32), "", tuple(completion(t) for t in texts))

    def _reply(self, key: str, sample: int) -> str:
        digest = hashlib.blake2b(f"{key}/{sample}".encode()).digest()
        return self.replies[digest[0] % len(self.replies)]

    def rollouts(self) -> list[types.Prompt]:
        return [p for _, prompts in self.calls for p in prompts if not p.key.endswith("/abstract")]


def grade(owners, completions) -> types.Grades:
    """A completion that says RIGHT is right, worth 0.7431; any other -0.2917."""
    assert len(owners) == len(completions)
    correct = np.array(["RIGHT" in c.text for c in completions], bool)
    rewards = np.where(correct, 0.7431, -0.2917).astype(np.float32)
    return types.Grades(rewards, correct, ("said so",) * len(owners), {"fake": rewards}, {"errors": 2.0})


def lucky(problems, completions, lengths, *, share: float = 0.2) -> np.ndarray:
    """A reward for models that can do nothing yet: a fixed `share` of all texts is right."""
    draws = [hashlib.blake2b(text.encode(), digest_size=1).digest()[0] / 256 for text in completions]
    return np.array([draw < share for draw in draws], float)
