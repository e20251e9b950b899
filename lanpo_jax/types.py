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


# grade(problems, completions): one problem per completion.
Grade = Callable[[Sequence[Problem], Sequence[Completion]], Grades]


@dataclasses.dataclass(frozen=True)
class Group:
    """One prompt with its graded completions: the unit over which advantages are taken."""

    problem: Problem
    mode: str  # plain | intra | inter | ...
    generation: Generation
    grades: Grades
    role: str = "policy"
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # e.g. retrieval similarity, principle shown
