"""Rewards for form and length, to be added to a verifier's with weights. Lengths are in tokens.

Filters on groups use the verifier's verdict (`Grades.correct`), not the sum with these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lanpo_jax import boxes
from lanpo_jax.rewards import extract as extraction
from lanpo_jax.types import Problem


def overlong(
    problems: Sequence[Problem], completions: Sequence[str], tokens: np.ndarray, *, limit: int, buffer: int
) -> np.ndarray:
    """Soft overlong penalty of DAPO (arXiv 2503.14476, eq. 13): min(0, max(-1, (limit - buffer - tokens) / buffer)).

    0 up to limit - buffer tokens, then linear to -1 at the limit, -1 beyond.
    """
    if not 0 < buffer <= limit:
        raise ValueError(f"overlong(limit={limit}, buffer={buffer}) needs 0 < buffer <= limit.")
    return np.clip((limit - buffer - np.asarray(tokens, np.float64)) / buffer, -1.0, 0.0)


def brevity(problems: Sequence[Problem], completions: Sequence[str], tokens: np.ndarray, *, limit: int) -> np.ndarray:
    """1 for no token, falling linearly to 0 at the limit and beyond."""
    if limit <= 0:
        raise ValueError(f"brevity(limit={limit}) needs a limit above 0.")
    return np.clip(1.0 - np.asarray(tokens, np.float64) / limit, 0.0, 1.0)


def within(
    problems: Sequence[Problem], completions: Sequence[str], tokens: np.ndarray, *, low: int, high: int
) -> np.ndarray:
    """1 for completions of low to high tokens, both included, else 0."""
    if low > high:
        raise ValueError(f"within(low={low}, high={high}) holds for no length; low must not exceed high.")
    tokens = np.asarray(tokens)
    return ((tokens >= low) & (tokens <= high)).astype(np.float64)


def answered(
    problems: Sequence[Problem], completions: Sequence[str], tokens: np.ndarray, *, extract: str = "strict"
) -> np.ndarray:
    """1 for completions that state an answer in the sense of `lanpo_jax.rewards.extract`, right or wrong, else 0."""
    return np.array([bool(extraction.extract(text, extract)) for text in completions], np.float64)


def boxed(problems: Sequence[Problem], completions: Sequence[str], tokens: np.ndarray) -> np.ndarray:
    """1 for completions with exactly one complete, non-empty box outside of their reasoning block, else 0."""
    found = [list(boxes.boxes(extraction.after_reasoning(text))) for text in completions]
    return np.array([len(b) == 1 and bool(b[0][1].strip()) for b in found], np.float64)


def tagged(
    problems: Sequence[Problem],
    completions: Sequence[str],
    tokens: np.ndarray,
    *,
    tags: Sequence[str] = ("think", "answer"),
) -> np.ndarray:
    """1 for completions that consist of <tag>...</tag> for each tag, once and in this order, else 0."""
    return np.array([_is_tagged(text, tags) for text in completions], np.float64)


def _is_tagged(text: str, tags: Sequence[str]) -> bool:
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        text = text.lstrip()
        if not text.startswith(opening) or text.count(opening) != 1 or text.count(closing) != 1:
            return False
        inside, _, text = text[len(opening) :].partition(closing)
        if not inside.strip():
            return False
    return not text.strip()
