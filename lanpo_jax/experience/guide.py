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
# Why a group that drew a mode went plain.
FALLBACKS = ("no_attempt", "small_pool", "nothing_similar", "nothing_relevant", "too_long")
LESSONS = ("principle", "raw")  # what a solved problem leaves for others: a principle, or its raw solution
LEVELS = ("group", "rollout")  # what draws a mode
SCOPES = ("shared", "per_mode")  # what an advantage is taken over: all rollouts of a problem, or those of one prompt

Fits = Callable[[prompts.Messages, int], bool]  # (messages, max_new_tokens) -> within the model's limit


@dataclasses.dataclass(frozen=True)
class Plan:
    """One group to be: its problem, its mode after any fall-back, its prompt, and what was decided on the way."""

    problem: types.Problem
    mode: str
    prompt: types.Prompt
    info: Mapping[str, Any]
    family: str = ""  # as in types.Group
    shared: bool = True


@dataclasses.dataclass(frozen=True)
class _Draw:
    """Rollouts of the n-th problem that drew the same mode."""

    n: int
    mode: str
    rollouts: int


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


def check(modes: Mapping[str, float], lesson: str, mix_level: str = "group", advantage_scope: str = "shared") -> None:
    """Refuses unknown modes and other choices, and probabilities that are none."""
    for name in modes:
        if name not in MODES:
            raise ValueError(f"Mode {name!r} is not known{spec.nearest(name, MODES)}; there are: {', '.join(MODES)}.")
    if min(modes.values(), default=0.0) < 0 or abs(sum(modes.values()) - 1) > 1e-6:
        raise ValueError(f"Mode probabilities {dict(modes)} do not sum to 1; change them.")
    choices = {
        "Lesson": (lesson, LESSONS),
        "mix_level": (mix_level, LEVELS),
        "advantage_scope": (advantage_scope, SCOPES),
    }
    for what, (name, known) in choices.items():
        if name not in known:
            raise ValueError(f"{what} {name!r} is not known; there are: {', '.join(known)}.")


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
    mix_level: str = "group",
    advantage_scope: str = "shared",
) -> list[Plan]:
    """Plans in the order of the problems; retrieval is asked once for all of them.

    One plan per problem, or with `mix_level='rollout'` one per problem and mode that any of its rollouts drew; what
    fell back joins the plain ones.
    """
    draws = [d for n, p in enumerate(problems) for d in _draws(n, p, step, seed, modes, group, mix_level)]
    owners, drawn = [problems[d.n] for d in draws], [d.mode for d in draws]
    hits = _hits(owners, drawn, step, seed, memory, retrieve, min_pool)
    budget = principle_tokens if lesson == "principle" else attempt_tokens
    offers: list[_Offer] = []
    for i, (problem, mode) in enumerate(zip(owners, drawn, strict=True)):
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
    family = f"{purpose}/" if mix_level == "rollout" else ""
    return _plans(problems, draws, offers, templates, purpose, max_new_tokens, family, advantage_scope == "shared")


def _draws(n: int, problem: types.Problem, step, seed, modes, group: int, mix_level: str) -> list[_Draw]:
    """The modes of a problem's rollouts: one for all, or each its own."""
    if mix_level == "group":
        return [_Draw(n, choose(modes, chance(seed, step, problem.id, "mode")), group)]
    drawn = collections.Counter(choose(modes, chance(seed, step, problem.id, f"mode/{i}")) for i in range(group))
    return [_Draw(n, mode, drawn[mode]) for mode in sorted(drawn)]


def _hits(problems, drawn, step, seed, memory, retrieve, min_pool) -> dict[int, list[index.Hit]]:
    """Positions of the problems that drew `inter` -> what was found; empty while the pool is small."""
    asking = [i for i, mode in enumerate(drawn) if mode == "inter"]
    if not asking or len(memory.index) < min_pool:
        return {}
    queries = [retrieval.Query(problems[i].id, problems[i].text, f"{seed}/{step}/{problems[i].id}") for i in asking]
    return dict(zip(asking, retrieve(memory.index, queries), strict=True))


def _inter(question: str, hits, memory: pool.Pool, templates, truncate, budget: int, lesson: str) -> _Offer:
    """Lessons of other problems; `hits` is None while the pool is too small to be asked."""
    judged = hits.values if isinstance(hits, retrieval.Judged) else ()
    if not hits:
        reason = "small_pool" if hits is None else "nothing_relevant" if judged else "nothing_similar"
        return None, {"fallback": reason, "judged": judged}
    entries = [memory.entry(hit.id) for hit in hits]
    shown = [prompts.shorten(e.principle.text, budget, truncate) for e in entries]
    info = {
        "sources": tuple(hit.id for hit in hits),
        "similarity": max(hit.similarity for hit in hits),
        "judged": judged,  # P(yes) of all candidates, empty where no model was asked
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
    messages, info = offer
    if messages is None or fits(messages, max_new_tokens):
        return offer
    return None, {"fallback": "too_long", "judged": info.get("judged", ())}


def _plans(
    problems, draws: Sequence[_Draw], offers: Sequence[_Offer], templates, purpose, max_new_tokens, family, shared
) -> list[Plan]:
    """One plan per problem and final mode; without a `family` prefix each is a family of its own."""
    joined: dict[tuple[int, str], list[tuple[_Draw, _Offer]]] = {}
    for draw, offer in zip(draws, offers, strict=True):
        joined.setdefault((draw.n, "plain" if offer[0] is None else draw.mode), []).append((draw, offer))
    keys = _keys([problems[n] for n, _ in joined], [mode for _, mode in joined], purpose)
    plans = []
    for ((n, mode), parts), key in zip(joined.items(), keys, strict=True):
        bare = prompts.plain(problems[n].text, templates)
        rollouts = sum(draw.rollouts for draw, _ in parts)
        prompt = types.Prompt(parts[0][1][0] or bare, rollouts, key, max_new_tokens)
        info = _joined(parts) | {"bare": bare}  # for training under the unguided prompt
        plans.append(Plan(problems[n], mode, prompt, info, family and f"{family}{n}", shared))
    return plans


def _joined(parts: Sequence[tuple[_Draw, _Offer]]) -> dict[str, Any]:
    """What was decided on the way to one prompt; where rollouts fell back to it, why and how many."""
    info = {name: value for _, (_, more) in parts for name, value in more.items()}
    info["drawn"] = tuple(draw.mode for draw, _ in parts)
    info["judged"] = tuple(value for _, (_, more) in parts for value in more.get("judged", ()))
    fallen = [(more["fallback"], draw.rollouts) for draw, (_, more) in parts if "fallback" in more]
    if fallen:
        info |= {"fallback": ", ".join(reason for reason, _ in fallen), "fell_back": sum(n for _, n in fallen)}
    return info


def _keys(problems: Sequence[types.Problem], modes: Sequence[str], purpose: str) -> list[str]:
    """Randomness keys; a problem that comes twice in one step gets different ones."""
    seen: collections.Counter[str] = collections.Counter()
    keys = []
    for problem, mode in zip(problems, modes, strict=True):
        key = f"{purpose}/{problem.id}/{mode}"
        seen[key] += 1
        keys.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return keys
