"""Episodes that help where plain rollouts teach nothing: hints on failure, rewritten problems, replayed groups.

Each starts from plain groups and returns graded groups with metrics, as in episodes.py. None uses an answer in a
prompt: hints come from the data, with every occurrence of the gold answer taken out.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence

import numpy as np

from lanpo_jax import episodes, types
from lanpo_jax.experience import distil, guide, prompts
from lanpo_jax.experience import pool as pool_lib
from lanpo_jax.experience import replay as replay_lib

REWRITES = {"simpler": prompts.simpler, "variant": prompts.variant}  # hard problems, medium ones
REASONS = ("empty", "too_long", "copied", "answer", "held_out", "unfit")  # why a rewritten problem is not used


@dataclasses.dataclass(frozen=True)
class Hint:
    """A help towards a solution; `tier` counts from 1, the most abstract."""

    tier: int
    text: str


def scaffold(
    problems: Sequence[types.Problem],
    step: int,
    generate: types.Generate,
    grade: types.Grade,
    templates: prompts.Templates,
    truncate: prompts.Truncate,
    fits: guide.Fits,
    purpose: str = "train",
    *,
    group: int = 8,
    max_new_tokens: int = 512,
    warmup: int = 50,
    tiers: int = 3,
    parts: int = 4,
    samples: int = 1,
    hint_tokens: int = 512,
) -> tuple[list[types.Group], episodes.Metrics]:
    """Hints for problems that a whole group fails (Scaf-GRPO, arXiv 2510.19807).

    From step `warmup` on, a group without a right answer is helped tier by tier, from the most abstract: each of a
    tier's `parts` growing pieces is tried `samples` times. The least hint that yields a right answer replaces one
    failed rollout, is trained under the prompt that produced it, and shares the advantage of its group. Hints are
    problem.extra["hints"], a list from abstract to concrete; without it leading parts of extra["solution"], in `tiers`
    tiers, never the whole; a problem with neither is left. At most `hint_tokens` are shown. Defaults are those of the
    authors' code, which samples all tiers at once.
    """
    plans = guide.plain(problems, templates, purpose, group=group, max_new_tokens=max_new_tokens)
    groups, counters = episodes.roll(plans, generate, grade)
    failed = [i for i, g in enumerate(groups) if not g.grades.correct.any()]
    hints = {i: hints_of(problems[i], tiers, parts) for i in failed if step >= warmup and group > 1}
    spent = {"unfit": 0, "cut": 0, "tokens_hints": 0}
    rescued: dict[int, types.Group] = {}
    for tier in sorted({hint.tier for found in hints.values() for hint in found}):
        asked = {i: found for i, found in hints.items() if i not in rescued}
        sent, unfit = _hint_plans(asked, tier, plans, templates, truncate, fits, samples, hint_tokens)
        made, checks = episodes.roll([plan for _, plan in sent], generate, grade)
        counters = _sum(counters, checks)
        spent = _sum(spent, {"unfit": unfit, "cut": sum(g.info["cut"] for g in made), "tokens_hints": _tokens(made)})
        for (i, _), attempt in zip(sent, made, strict=True):
            if i not in rescued and attempt.grades.correct.any():
                rescued[i] = attempt.take([int(np.argmax(attempt.grades.correct))])
    return _with_rescued(groups, rescued, purpose), counters | {
        "scaffold/correct_plain": _mean([c for g in groups for c in g.grades.correct]),
        "scaffold/failed": float(len(failed)),
        "scaffold/without_hint": float(sum(not found for found in hints.values())),
        "scaffold/tried": float(sum(map(bool, hints.values()))),
        "scaffold/rescued": float(len(rescued)),
        "scaffold/tier": _mean([g.info["tier"] for g in rescued.values()]),
        **{f"scaffold/{name}": float(value) for name, value in spent.items()},
    }


def _hint_plans(
    hints: Mapping[int, Sequence[Hint]], tier: int, plans, templates, truncate, fits, samples: int, hint_tokens: int
) -> tuple[list[tuple[int, guide.Plan]], int]:
    """(number of the problem, plan) for each hint of a tier, the least first; and how many did not fit."""
    sent, unfit = [], 0
    for i, found in hints.items():
        problem, plain = plans[i].problem, plans[i].prompt
        for k, hint in ((k, hint) for k, hint in enumerate(found) if hint.tier == tier):
            shown, cut = prompts.shorten(hint.text, hint_tokens, truncate)
            shown = _without_answer(shown, problem.answer)  # a cut may have made 24 of 241
            messages = prompts.hint(problem.text, shown, templates)
            if not fits(messages, plain.max_new_tokens):
                unfit += 1
                continue
            prompt = types.Prompt(messages, samples, f"{plain.key}/hint/{k}", plain.max_new_tokens)
            sent.append((i, guide.Plan(problem, "hint", prompt, {"tier": tier, "cut": int(cut)})))
    return sent, unfit


def hints_of(problem: types.Problem, tiers: int, parts: int) -> list[Hint]:
    """A problem's hints from the least to the most, the gold answer nowhere in them; equal ones once."""
    given, solution = problem.extra.get("hints"), problem.extra.get("solution")
    count = tiers * parts
    if isinstance(given, (list, tuple)) and given:
        pieces = [(t + 1, str(text), (j + 1) / parts) for t, text in enumerate(given) for j in range(parts)]
    elif isinstance(solution, str):
        pieces = [(j // parts + 1, solution, (j + 1) / (count + 1)) for j in range(count)]
    else:
        pieces = []
    found: dict[str, Hint] = {}
    for tier, text, share in pieces:
        shown = _without_answer(_leading(_without_answer(text, problem.answer), share), problem.answer)
        if shown and not distil.contains_answer(shown, problem.answer):
            found.setdefault(shown, Hint(tier, shown))
    return list(found.values())


def _leading(text: str, share: float) -> str:
    """The first `share` of a text's words, rounded down."""
    words = re.findall(r"\S+\s*", text)
    return "".join(words[: int(share * len(words) + 1e-9)]).rstrip()


def _without_answer(text: str, gold: str) -> str:
    return distil.drop_answer(distil.drop_boxes(text), gold).strip()


def _with_rescued(groups: Sequence[types.Group], rescued: Mapping[int, types.Group], purpose: str) -> list[types.Group]:
    """Each rescued group without its last rollout, followed by the one that takes its place, as a family."""
    found = []
    for i, group in enumerate(groups):
        if i in rescued:
            rest = group.take(range(len(group.generation.completions) - 1))
            pair = (rest, rescued[i])
            found += [dataclasses.replace(g, family=f"{purpose}/{i}") for g in pair]
        else:
            found.append(group)
    return found


def restructure(
    problems: Sequence[types.Problem],
    pool: pool_lib.Pool,
    generate: types.Generate,
    grade: types.Grade,
    templates: prompts.Templates,
    truncate: prompts.Truncate,
    fits: guide.Fits,
    purpose: str = "train",
    *,
    group: int = 8,
    max_new_tokens: int = 512,
    hard: float = 0.3,
    medium: float = 0.7,
    share: float = 0.5,
    rewrite_tokens: int = 512,
    rewrite_temperature: float | None = None,
    max_overlap: float = 0.8,
) -> tuple[list[types.Group], episodes.Metrics]:
    """Problems rewritten by their difficulty and trained on beside the originals (CLPO, arXiv 2509.25004).

    Of a group's share of right answers: up to `hard` the policy makes the problem simpler, up to `medium` it makes a
    variant of it, above it leaves it. At most `share` of the step's problems, the hardest first, are rewritten, in at
    most `rewrite_tokens`; the answer is kept, unchecked, as in the paper. Rewritten problems are rolled out like any
    other and are groups of their own. Not used are those that are empty, too long, mostly copied (a share of 4-grams
    above `max_overlap`), hold the gold answer where the original does not, are an evaluation problem (`pool` knows
    those) or do not fit. The thresholds are ours. The rewriting itself is not trained, as in the paper's first version.
    """
    limits = {"group": group, "max_new_tokens": max_new_tokens}
    plans = guide.plain(problems, templates, purpose, **limits)
    groups, counters = episodes.roll(plans, generate, grade)
    success = [float(g.grades.correct.mean()) for g in groups]
    order = sorted((i for i in range(len(groups)) if success[i] <= medium), key=lambda i: success[i])
    kinds = {i: "simpler" if success[i] <= hard else "variant" for i in order[: int(share * len(problems))]}
    sent = {
        i: types.Prompt(messages, 1, f"{plans[i].prompt.key}/{kind}", rewrite_tokens, rewrite_temperature)
        for i, kind in kinds.items()
        if fits(messages := REWRITES[kind](problems[i].text, templates), rewrite_tokens)
    }
    answers = [g.completions[0] for g in generate("policy", list(sent.values()))] if sent else []
    reasons, written = collections.Counter({"unfit": len(kinds) - len(sent)}), []
    for i, answer in zip(sent, answers, strict=True):
        text, reason = rewritten(answer, problems[i], truncate, max_tokens=rewrite_tokens, max_overlap=max_overlap)
        reason = reason or ("held_out" if pool.forbidden([text])[0] else "")
        reason = reason or ("" if fits(prompts.plain(text, templates), max_new_tokens) else "unfit")
        reasons[reason] += 1
        if not reason:
            problem = dataclasses.replace(problems[i], id=f"{problems[i].id}/{kinds[i]}", text=text)
            (plan,) = guide.plain([problem], templates, f"{purpose}/{i}", **limits)
            written.append(dataclasses.replace(plan, mode=kinds[i], info={"original": problems[i].id}))
    rewrites, checks = episodes.roll(written, generate, grade)
    return [*groups, *rewrites], _sum(counters, checks) | {
        "restructure/hard": float(sum(s <= hard for s in success)),
        "restructure/medium": float(sum(hard < s <= medium for s in success)),
        "restructure/correct_plain": _mean(success),
        **{f"restructure/correct_{k}": _mean([c for g in rewrites if g.mode == k for c in g.grades.correct])
           for k in REWRITES},
        "restructure/asked": float(len(sent)),
        "restructure/written": float(len(written)),
        **{f"restructure/rejected_{reason}": float(reasons[reason]) for reason in REASONS},
        "restructure/tokens_rewrites": float(sum(len(a.tokens) for a in answers)),
    }  # fmt: skip


def rewritten(
    answer: types.Completion, problem: types.Problem, truncate: prompts.Truncate, *, max_tokens: int, max_overlap: float
) -> tuple[str, str]:
    """(the new problem, "") if the policy's text can serve as one, else ("", one of REASONS)."""
    if answer.truncated or truncate(answer.text, max_tokens)[1]:
        return "", "too_long"
    text = prompts.neutral(re.sub(r"^\W*(?:new |rewritten )?problem\W*:\W*", "", answer.text, flags=re.IGNORECASE))
    if len(re.findall(r"\w+", text)) < 3:
        return "", "empty"
    if distil.overlap(text, problem.text) > max_overlap:
        return "", "copied"
    if distil.contains_answer(text, problem.answer) and not distil.contains_answer(problem.text, problem.answer):
        return "", "answer"
    return text, ""


def replay(
    problems: Sequence[types.Problem],
    step: int,
    buffer: replay_lib.Buffer,
    generate: types.Generate,
    grade: types.Grade,
    templates: prompts.Templates,
    purpose: str = "train",
    *,
    group: int = 8,
    max_new_tokens: int = 512,
    size: int = 64,
    age: int = 16,
    decoupled: bool = False,
) -> tuple[list[types.Group], episodes.Metrics]:
    """Stored groups in the place of those whose outcomes are all equal (after POPO, arXiv 2606.01281).

    The last `size` groups of mixed outcome are kept for at most `age` steps, with the log-probabilities that they were
    sampled with. Each uninformative group of this step is followed and, where the step has no room for both, replaced
    by a stored one: the least replayed first, then the newest. Their ratio is against the policy that sampled them, so
    that the surrogate's clip bounds the step; with `decoupled` against the present policy, with the sampler correction
    min(present/then, cap) of objective.weights on top, as in the paper. Size and age are ours. Changes `buffer`.
    """
    groups, counters = episodes.direct(
        problems, generate, grade, templates, purpose, group=group, max_new_tokens=max_new_tokens
    )
    informative = [_varied(g) for g in groups]
    fresh = [g for g, good in zip(groups, informative, strict=True) if good]
    flat = [g for g, good in zip(groups, informative, strict=True) if not good]
    forgotten = buffer.forget(step, age, group)
    taken = buffer.take(len(flat), step)
    buffer.add(fresh, step, size)
    again = [
        dataclasses.replace(s.group, mode="replay", off_policy=not decoupled, info={"sampled": s.step}) for s in taken
    ]
    return [*fresh, *again, *flat], counters | {
        "replay/uninformative": float(len(flat)),
        "replay/replaced": float(len(again)),
        "replay/age": _mean([step - s.step for s in taken]),
        "replay/stored": float(len(buffer)),
        "replay/forgotten": float(forgotten),
    }


def _varied(group: types.Group) -> bool:
    """Whether the known outcomes of a group differ."""
    known = group.grades.outcome[np.isfinite(group.grades.outcome)]
    return bool(known.size and known.max() > known.min())


def _tokens(groups: Sequence[types.Group]) -> int:
    return sum(len(c.tokens) for g in groups for c in g.generation.completions)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _sum(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    """Counters of two passes together."""
    return {name: a.get(name, 0.0) + b.get(name, 0.0) for name in (*a, *b)}
