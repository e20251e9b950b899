"""The words of this code base, as values.

Letters in shape comments: P prompts, G group (completions per prompt), B = P·G, T completion tokens, L tokens of a
packed row, S keys, V vocabulary, D model width, F mlp width, N query heads, K key-value heads, H head size, R layers.

One rule holds everywhere: **an array [.., T] is indexed by token**: its entry t speaks of completion token t given
all tokens before it. The only shift in the code base is in `objectives/logprobs.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Problem:
    """A task with its gold answer. Graders see it whole; prompt builders are given `.text` alone."""

    id: str
    text: str
    answer: str
    source: str = ""
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # what a scorer of its own may need


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A request to the sampler: `samples` completions of one conversation."""

    messages: tuple[Mapping[str, str], ...]  # ({"role": "user", "content": ...}, ...)
    samples: int
    key: str  # identity for randomness, e.g. "train/gsm8k/17/plain": same key, seed and step, same completions
    max_new_tokens: int
    temperature: float | None = None  # None: that of the rollouts


@dataclasses.dataclass(frozen=True)
class Completion:
    """One sampled continuation. `tokens` includes the end-of-sequence token if one was sampled."""

    tokens: np.ndarray  # int32 [T]
    logprobs: np.ndarray  # float32 [T]: sampler's log-probabilities, untruncated and temperature-scaled
    text: str  # decoded without special tokens
    truncated: bool  # reached its token limit without an end-of-sequence token


@dataclasses.dataclass(frozen=True)
class Generation:
    """What the sampler made of one `Prompt`."""

    prompt_tokens: np.ndarray  # int32 [S]
    prompt_text: str
    completions: tuple[Completion, ...]


# generate(role, prompts): role is "policy" or "critic"; one Generation per prompt, in order.
Generate = Callable[[str, Sequence[Prompt]], list[Generation]]


@dataclasses.dataclass(frozen=True)
class Grades:
    """Rewards of n completions, with their reasons and the counters of whatever could not be decided."""

    rewards: np.ndarray  # float32 [n]: the sum that is trained on
    correct: np.ndarray  # bool [n]: the verifier's verdict, before shaping
    reasons: tuple[str, ...]  # n short texts
    parts: Mapping[str, np.ndarray]  # reward function name -> float32 [n], before weights
    counters: Mapping[str, float] = dataclasses.field(default_factory=dict)  # "errors", "timeouts", ...

    @property
    def outcome(self) -> np.ndarray:
        """The first reward function alone, float32 [n]: groups are filtered on it, so that shaping sets none apart."""
        return next(iter(self.parts.values()), self.rewards)


# grade(problems, completions): one problem per completion.
Grade = Callable[[Sequence[Problem], Sequence[Completion]], Grades]


@dataclasses.dataclass(frozen=True)
class Group:
    """One prompt with its graded completions, of any number.

    Groups of one family (the prompts of one problem) enter an update together. Advantages are taken over the family
    where it is `shared`, else over each group by itself.
    """

    problem: Problem
    mode: str  # plain | intra | inter | ...
    generation: Generation
    grades: Grades
    role: str = "policy"
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # e.g. retrieval similarity, principle shown
    family: str = ""  # "": a family of its own
    shared: bool = True
    off_policy: bool = False  # `sampler_logprobs` are of another prompt or an older policy: they are the old ones
    prompt: np.ndarray | None = None  # int32 [S]: what it is trained under; None: the sampler's prompt

    def take(self, which: Sequence[int]) -> Group:
        """The same prompt with some of its completions."""
        which = list(which)
        grades = Grades(
            self.grades.rewards[which],
            self.grades.correct[which],
            tuple(self.grades.reasons[i] for i in which),
            {name: values[which] for name, values in self.grades.parts.items()},
        )
        completions = tuple(self.generation.completions[i] for i in which)
        generation = dataclasses.replace(self.generation, completions=completions)
        return dataclasses.replace(self, generation=generation, grades=grades)

    @property
    def trained_prompt(self) -> np.ndarray:
        return self.generation.prompt_tokens if self.prompt is None else self.prompt
