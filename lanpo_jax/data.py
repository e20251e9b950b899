"""Problems: loading by config string, a deterministic order that needs no state, and what keeps evaluation clean."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Sequence

import numpy as np

from lanpo_jax import families, sources, spec
from lanpo_jax.types import Problem

# What a config may name as a source; options are the keyword arguments of these functions.
SOURCES: dict[str, Callable[..., list[Problem]]] = {
    "file": sources.file,
    "tfds": sources.tfds,
    "gym": sources.gym,
    "stories": families.stories,
    "addition": families.addition,
    "rules": families.rules,
}


def load(*texts: str) -> list[Problem]:
    """The problems of one or more sources such as "file(path='x.jsonl')", in order, with unique ids.

    Raises ValueError for an unknown source or option, and whatever the source raises.
    """
    return unique([problem for text in texts for problem in spec.resolve(text, SOURCES)()])


def unique(problems: Sequence[Problem]) -> list[Problem]:
    """The same problems with unique ids: the second "a" becomes "a#2", the third "a#3", whatever else is there."""
    taken = {p.id for p in problems}
    seen: collections.Counter[str] = collections.Counter()
    result = []
    for problem in problems:
        seen[problem.id] += 1
        name = problem.id
        if seen[problem.id] > 1:
            while (name := f"{problem.id}#{seen[problem.id]}") in taken:
                seen[problem.id] += 1
            taken.add(name)
        result.append(problem if name == problem.id else dataclasses.replace(problem, id=name))
    return result


def order(count: int, epoch: int, seed: int) -> np.ndarray:
    """int64 [count]: the order of the rows in an epoch, from (seed, epoch) alone."""
    return np.random.default_rng((seed, epoch)).permutation(count)


def batch(problems: Sequence[Problem], step: int, size: int, seed: int) -> list[Problem]:
    """The `size` problems of step 0, 1, 2, ...: consecutive slices of reshuffled epochs.

    Every problem comes once per epoch; a batch may span a border, and may then hold a problem twice. Nothing is
    remembered between calls, so a resumed run needs the step alone.
    """
    if not problems:
        raise ValueError("There are no problems to draw a batch from; check the sources and what was excluded.")
    count = len(problems)
    permutation = functools.cache(lambda epoch: order(count, epoch, seed))
    places = range(step * size, (step + 1) * size)
    return [problems[permutation(place // count)[place % count]] for place in places]


def exclude(train: Sequence[Problem], evaluation: Sequence[Problem]) -> tuple[list[Problem], list[Problem]]:
    """Splits training problems into (kept, dropped); dropped are those whose text also stands in `evaluation`."""
    held_out = {normal(p.text) for p in evaluation}
    kept, dropped = [], []
    for problem in train:
        (dropped if normal(problem.text) in held_out else kept).append(problem)
    return kept, dropped


def within(
    problems: Sequence[Problem],
    *,
    length: Callable[[str], int],
    shorten: Callable[[str, int], str],
    limit: int,
    policy: str,
) -> tuple[list[Problem], int]:
    """The problems whose prompt is within a limit, and how many were not: these are dropped, truncated or an error.

    `length(text)` counts the tokens of a problem's prompt, `shorten(text, excess)` drops so many from its end.
    """
    if policy not in ("drop", "truncate", "error"):
        raise ValueError(f"data.overlong={policy!r} is not known; there are: drop, truncate, error.")
    kept, over = [], 0
    for problem in problems:
        excess = length(problem.text) - limit
        if excess > 0:
            over += 1
            if policy == "error":
                raise ValueError(
                    f"The prompt of problem {problem.id} has {limit + excess} tokens; raise data.prompt_limit={limit} "
                    "or set data.overlong to drop or truncate."
                )
            problem = dataclasses.replace(problem, text=shorten(problem.text, excess))
            if policy == "drop" or not problem.text or length(problem.text) > limit:
                continue
        kept.append(problem)
    return kept, over


def normal(text: str) -> str:
    """Text for comparison: case, white space and punctuation are gone; numbers and operators stay."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))|\\[,!;: ]|\\(?:left|right)(?![a-z])", "", text.casefold())
    text = re.sub(r"(?<!\d)\.|\.(?!\d)|[,;:!?'\"`´‘’“”…$~()\[\]{}]", " ", text)
    return " ".join(text.split())


def fingerprint(problems: Sequence[Problem]) -> str:
    """Hash of ids, texts and answers in their order; a resumed run refuses other problems than it was saved with."""
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(json.dumps([problem.id, problem.text, problem.answer]).encode() + b"\n")
    return digest.hexdigest()[:32]
