"""What each group is shown: draws a mode, finds its text, builds the prompt, falls back to plain where it must.

All choices are functions of (seed, step, problem id), so every host of a run makes the same ones.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lanpo_jax import spec, types
from lanpo_jax.experience import index, leak, pool, prompts, retrieval

MODES = ("plain", "intra", "inter", "leak")
FALLBACKS = ("no_attempt", "small_pool", "nothing_similar", "too_long")  # why a group that drew a mode went plain
LESSONS = ("principle", "raw")  # what a solved problem leaves for others: a principle, or its raw solution

Fits = Callable[[prompts.Messages, int], bool]  # (messages, max_new_tokens) -> within the model's limit


@dataclasses.dataclass(frozen=True)
class Plan:
    """One group to be: its problem, its mode after any fall-back, its prompt, and what was decided on the way."""

    problem: types.Problem
    mode: str
    prompt: types.Prompt
    info: Mapping[str, Any]


# What a mode offers for one problem: the prompt's messages, or None with info["fallback"] saying why.
_Offer = tuple[prompts.Messages | None, dict[str, Any]]


def chance(seed: int, step: int, id: str, purpose: str) -> float:
    """A uniform draw from [0, 1) that depends on its arguments alone."""
    digest = hashlib.blake2b(f"{seed}/{step}/{purpose}/{id}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def choose(modes: Mapping[str, float], draw: float) -> str:
    """The mode whose share of [0, 1) holds the draw; shares lie in alphabetical order of their modes."""
    total = 0.0
    for name in sorted(modes):
        total += modes[name]
        if draw < total:
            return name
    return max(sorted(modes), key=lambda name: modes[name])  # the shares sum to 1 only within rounding


def check(modes: Mapping[str, float], lesson: str) -> None:
    """Refuses unknown modes and lessons, and probabilities that are none."""
    for name in modes:
        if name not in MODES:
            raise ValueError(f"Mode {name!r} is not known{spec.nearest(name, MODES)}; there are: {', '.join(MODES)}.")
    if min(modes.values(), default=0.0) < 0 or abs(sum(modes.values()) - 1) > 1e-6:
        raise ValueError(f"Mode probabilities {dict(modes)} do not sum to 1; change them.")
    if lesson not in LESSONS:
        raise ValueError(f"Lesson {lesson!r} is not known; there are: {', '.join(LESSONS)}.")


def plain(
    problems: Sequence[types.Problem], templates: prompts.Templates, purpose: str, *, group: int, max_new_tokens: int
) -> list[Plan]:
    """Unguided groups for all problems."""
    keys = _keys(problems, ["plain"] * len(problems), purpose)
    return [
        Plan(problem, "plain", types.Prompt(prompts.plain(problem.text, templates), group, key, max_new_tokens), {})
        for problem, key in zip(problems, keys, strict=True)
    ]


def plan(
    problems: Sequence[types.Problem],
    step: int,
    seed: int,
    memory: pool.Pool,
    templates: prompts.Templates,
    truncate: prompts.Truncate,
    fits: Fits,
    retrieve: retrieval.Retrieve,
    purpose: str,
    *,
    modes: Mapping[str, float],
    group: int,
    max_new_tokens: int,
    attempt_tokens: int,
    principle_tokens: int,
    min_pool: int,
    lesson: str,
) -> list[Plan]:
    """One plan per problem, in order; retrieval is asked once for all of them."""
    drawn = [choose(modes, chance(seed, step, p.id, "mode")) for p in problems]
    hits = _hits(problems, drawn, step, seed, memory, retrieve, min_pool)
    budget = principle_tokens if lesson == "principle" else attempt_tokens
    offers: list[_Offer] = []
    for i, (problem, mode) in enumerate(zip(problems, drawn, strict=True)):
        if mode == "plain":
            offer = None, {}
        elif mode == "inter":
            offer = _inter(problem.text, hits.get(i), memory, templates, truncate, budget, lesson)
        else:
            draw = chance(seed, step, problem.id, "attempt")
            attempt, info = _attempt(memory.entry(problem.id), draw, truncate, attempt_tokens)
            offer = _about(problem, attempt, templates, mode), info
        offers.append(offer)
    offers = [_limit(offer, fits, max_new_tokens) for offer in offers]
    return _plans(problems, drawn, offers, templates, purpose, group, max_new_tokens)


def _hits(problems, drawn, step, seed, memory, retrieve, min_pool) -> dict[int, list[index.Hit]]:
    """Positions of the problems that drew `inter` -> what was found; empty while the pool is small."""
    asking = [i for i, mode in enumerate(drawn) if mode == "inter"]
    if not asking or len(memory.index) < min_pool:
        return {}
    queries = [retrieval.Query(problems[i].id, problems[i].text, f"{seed}/{step}/{problems[i].id}") for i in asking]
    return dict(zip(asking, retrieve(memory.index, queries), strict=True))


def _inter(question: str, hits, memory: pool.Pool, templates, truncate, budget: int, lesson: str) -> _Offer:
    """Lessons of other problems; `hits` is None while the pool is too small to be asked."""
    if not hits:
        return None, {"fallback": "small_pool" if hits is None else "nothing_similar"}
    entries = [memory.entry(hit.id) for hit in hits]
    shown = [prompts.shorten(e.principle.text, budget, truncate) for e in entries]
    info = {
        "sources": tuple(hit.id for hit in hits),
        "similarity": max(hit.similarity for hit in hits),
        "principle_steps": tuple(e.principle.step for e in entries),
        "cut": sum(cut for _, cut in shown),
    }
    if lesson == "raw":
        return prompts.imitate(
            question, [(e.text, s) for e, (s, _) in zip(entries, shown, strict=True)], templates
        ), info
    return prompts.inform(question, [text for text, _ in shown], templates), info


def _attempt(entry: pool.Entry | None, draw: float, truncate, tokens: int) -> tuple[str | None, dict[str, Any]]:
    """One stored attempt, drawn uniformly: what it earned is not known here."""
    if entry is None or not entry.attempts:
        return None, {"fallback": "no_attempt"}
    attempt = entry.attempts[int(draw * len(entry.attempts))]
    text, cut = prompts.shorten(attempt.text, tokens, truncate)
    return text, {"attempt_step": attempt.step, "cut": int(cut)}


def _about(problem: types.Problem, attempt: str | None, templates, mode: str) -> prompts.Messages | None:
    """The reflection prompt; `leak`, the dishonest mode, is the only one for which an answer is read."""
    if attempt is None:
        return None
    if mode == "leak":
        return leak.reflect_with_answer(problem.text, attempt, problem.answer, templates)
    return prompts.reflect(problem.text, attempt, templates)


def _limit(offer: _Offer, fits: Fits, max_new_tokens: int) -> _Offer:
    """Withdraws a guided prompt that is too long for the model."""
    messages, _ = offer
    if messages is None or fits(messages, max_new_tokens):
        return offer
    return None, {"fallback": "too_long"}


def _plans(problems, drawn, offers: Sequence[_Offer], templates, purpose, group, max_new_tokens) -> list[Plan]:
    modes = ["plain" if messages is None else mode for mode, (messages, _) in zip(drawn, offers, strict=True)]
    keys = _keys(problems, modes, purpose)
    plans = []
    for problem, wanted, mode, (messages, info), key in zip(problems, drawn, modes, offers, keys, strict=True):
        bare = prompts.plain(problem.text, templates)
        info = {**info, "drawn": wanted, "bare": bare}  # `bare`: for training under the unguided prompt
        plans.append(Plan(problem, mode, types.Prompt(messages or bare, group, key, max_new_tokens), info))
    return plans


def _keys(problems: Sequence[types.Problem], modes: Sequence[str], purpose: str) -> list[str]:
    """Randomness keys; a problem that comes twice in one step gets different ones."""
    seen: collections.Counter[str] = collections.Counter()
    keys = []
    for problem, mode in zip(problems, modes, strict=True):
        key = f"{purpose}/{problem.id}/{mode}"
        seen[key] += 1
        keys.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return keys
