"""Turn protocols: which prompts a step sends to the sampler, in which order, and what is kept of the answers.

An episode takes problems and what it needs of the world (a `generate`, a `grade`, a pool) and returns graded groups
with metrics. Its keyword-only parameters are the options of a config string: `lanpo(group=8, min_pool=64)`. An
episode of several roles adds turns by calling `roll` again and marks its groups with the role.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from lanpo_jax import types
from lanpo_jax.experience import distil, guide, prompts, retrieval
from lanpo_jax.experience import pool as pool_lib

Metrics = dict[str, float | None]  # None: no data at this step

MODES = {"plain": 0.5, "intra": 0.25, "inter": 0.25}


def direct(
    problems: Sequence[types.Problem],
    generate: types.Generate,
    grade: types.Grade,
    templates: prompts.Templates,
    purpose: str = "train",
    *,
    group: int = 8,
    max_new_tokens: int = 512,
) -> tuple[list[types.Group], Metrics]:
    """One turn without guidance: plain GRPO, and every zero-shot evaluation (with `purpose` naming the set)."""
    return roll(guide.plain(problems, templates, purpose, group=group, max_new_tokens=max_new_tokens), generate, grade)


def lanpo(
    problems: Sequence[types.Problem],
    step: int,
    seed: int,
    pool: pool_lib.Pool,
    generate: types.Generate,
    grade: types.Grade,
    templates: prompts.Templates,
    truncate: prompts.Truncate,
    fits: guide.Fits,
    retrieve: retrieval.Retrieve = retrieval.tfidf,
    purpose: str = "train",
    render: prompts.Render | None = None,
    *,
    modes: Mapping[str, float] = MODES,
    group: int = 8,
    max_new_tokens: int = 512,
    attempt_tokens: int = 1024,
    principle_tokens: int = 256,
    principle_age: int = 100,
    principle_temperature: float | None = None,
    min_pool: int = 32,
    lesson: str = "principle",
    mix_level: str = "group",
    advantage_scope: str = "shared",
    strip_guidance: bool = False,
    strip_ratio: bool = True,
) -> tuple[list[types.Group], Metrics]:
    """LANPO (arXiv 2510.16552): rollouts with and without language from the pool, then the pool learns from them.

    `modes` are probabilities per group: plain; intra, the model's own earlier attempt to review; inter, a principle of
    a similar problem; leak, intra with the gold answer shown, DISHONEST, for the cautionary experiment. A mode with
    nothing to show becomes plain. With `mix_level='rollout'` each of a problem's rollouts draws its own mode, and the
    advantage is taken over all of them (`advantage_scope='shared'`) or among those of one prompt ('per_mode': a lone
    rollout has no baseline, its advantage is 0, and it is counted in lanpo/alone). `attempt_tokens` and
    `principle_tokens` bound what is shown and the principles written, at `principle_temperature` (None: the rollouts')
    and anew after `principle_age` steps; `min_pool` is the number of principles before inter starts, and `lesson='raw'`
    keeps whole solutions instead of principles. `strip_guidance` trains guided rollouts under the bare prompt
    instead of the one that they saw: off-policy, with importance weights pi(y|bare)/pi(y|guided), or with
    `strip_ratio=False` as if the policy had written them unguided, which is biased and pulls harder (context
    distillation, arXiv 2209.15189, of the rollouts that the verifier prefers). Only unguided attempts enter the pool.
    Changes `pool`.
    """
    guide.check(modes, lesson, mix_level, advantage_scope)
    if strip_guidance and render is None:
        raise ValueError(
            "strip_guidance trains under other prompts than were sampled from; give `render` to make them."
        )
    plans = guide.plan(
        problems, step, seed, pool, templates, truncate, fits, retrieve, purpose, modes=modes, group=group,
        max_new_tokens=max_new_tokens, attempt_tokens=attempt_tokens, principle_tokens=principle_tokens,
        min_pool=min_pool, lesson=lesson, mix_level=mix_level, advantage_scope=advantage_scope,
    )  # fmt: skip
    groups, checks = roll(plans, generate, grade)
    _remember(groups, step, pool)
    solved = _teachable(groups, step, pool, principle_age)
    if lesson == "raw":
        written = _keep_raw(solved, step, pool)
    else:
        written = _write_principles(
            solved, step, pool, generate, templates, truncate, fits, purpose,
            solution_tokens=attempt_tokens, principle_tokens=principle_tokens, temperature=principle_temperature,
        )  # fmt: skip
    numbers = {**checks, **_group_metrics(groups, modes), **written, **_pool_metrics(pool)}
    return [_stripped(g, render, strip_ratio) for g in groups] if strip_guidance else groups, numbers


def roll(
    plans: Sequence[guide.Plan], generate: types.Generate, grade: types.Grade, role: str = "policy"
) -> tuple[list[types.Group], Metrics]:
    """Samples all plans in one call, grades all completions in one call; metrics are the grader's counters."""
    if not plans:
        return [], {}
    generations = generate(role, [p.prompt for p in plans])
    if len(generations) != len(plans):
        raise ValueError(f"generate returned {len(generations)} generations for {len(plans)} prompts.")
    sizes = [len(g.completions) for g in generations]
    completions = [c for g in generations for c in g.completions]
    owners = [p.problem for p, n in zip(plans, sizes, strict=True) for _ in range(n)]
    grades = grade(owners, completions)
    groups = [
        types.Group(p.problem, p.mode, g, part, role, p.info, p.family, p.shared)
        for p, g, part in zip(plans, generations, _split(grades, sizes), strict=True)
    ]
    return groups, {f"checker/{name}": float(value) for name, value in grades.counters.items()}


def _stripped(group: types.Group, render: prompts.Render, off_policy: bool) -> types.Group:
    """A guided group to be trained under the bare prompt, with ratio pi(y|bare)/pi(y|guided) if off-policy, else 1."""
    if group.mode == "plain":
        return group
    bare = np.asarray(render(group.info["bare"]), np.int32)
    return dataclasses.replace(group, prompt=bare, off_policy=off_policy)


def _split(grades: types.Grades, sizes: Sequence[int]) -> list[types.Grades]:
    """Cuts grades of a whole step into one per group; the step's counters stay with the step."""
    ends = np.cumsum(sizes)
    spans = [slice(end - n, end) for end, n in zip(ends, sizes, strict=True)]
    return [
        types.Grades(
            grades.rewards[s], grades.correct[s], tuple(grades.reasons[s]), {k: v[s] for k, v in grades.parts.items()}
        )
        for s in spans
    ]


def _remember(groups: Sequence[types.Group], step: int, pool: pool_lib.Pool) -> None:
    """Puts the unguided attempts into the pool, whatever they earned, and counts what shown lessons led to."""
    for group in groups:
        for source in group.info.get("sources", ()):
            pool.record_shown(source, len(group.grades.correct), int(np.sum(group.grades.correct)))
    unguided = [g for g in groups if g.mode == "plain"]
    admitted = pool.admit([(g.problem.id, g.problem.text) for g in unguided])
    for group in (g for g, fine in zip(unguided, admitted, strict=True) if fine):
        attempts = [pool_lib.Attempt(c.text, len(c.tokens), step) for c in group.generation.completions]
        pool.add_attempts(group.problem.id, attempts, group.grades.rewards.tolist(), group.grades.correct.tolist())


def _teachable(
    groups: Sequence[types.Group], step: int, pool: pool_lib.Pool, age: int
) -> list[tuple[types.Problem, types.Completion]]:
    """Problems solved without guidance that lack a lesson or have an old one, each with a complete correct solution."""
    found: dict[str, tuple[types.Problem, types.Completion]] = {}
    for group in groups:
        entry = pool.entry(group.problem.id)
        if group.mode != "plain" or entry is None or group.problem.id in found:
            continue
        if entry.principle is not None and step - entry.principle.step < age:
            continue
        verdicts = zip(group.generation.completions, group.grades.correct, strict=True)
        solution = next((c for c, right in verdicts if right and not c.truncated and c.text.strip()), None)
        if solution is not None:
            found[group.problem.id] = (group.problem, solution)
    return list(found.values())


def _write_principles(
    solved: Sequence[tuple[types.Problem, types.Completion]],
    step: int,
    pool: pool_lib.Pool,
    generate: types.Generate,
    templates: prompts.Templates,
    truncate: prompts.Truncate,
    fits: guide.Fits,
    purpose: str,
    *,
    solution_tokens: int,
    principle_tokens: int,
    temperature: float | None,
) -> Metrics:
    """Has the policy summarise solutions, filters what it writes and stores it."""
    asked, sent, cuts = [], [], 0
    for problem, solution in solved:
        messages, cut = distil.request(problem.text, solution.text, templates, truncate, tokens=solution_tokens)
        if fits(messages, principle_tokens):
            asked.append((problem, solution))
            key = f"{purpose}/{problem.id}/abstract"
            sent.append(types.Prompt(messages, 1, key, principle_tokens, temperature))
            cuts += cut
    answers = [g.completions[0] for g in generate("policy", sent)] if sent else []
    reasons: collections.Counter[str] = collections.Counter()
    stored = []
    for (problem, solution), answer in zip(asked, answers, strict=True):
        text, reason = distil.principle(
            answer.text, problem.answer, problem.text, solution.text, truncate, max_tokens=principle_tokens,
            examples=prompts.example_principles(templates),
        )  # fmt: skip
        reason = "too_long" if answer.truncated else reason
        reasons[reason] += 1
        if not reason:
            pool.set_principle(problem.id, pool_lib.Principle(text, len(answer.tokens), step))
            stored.append(len(answer.tokens))
    reasons["unfit"] = len(solved) - len(asked)
    return _principle_metrics(stored, reasons, cuts, sum(len(a.tokens) for a in answers))


def _keep_raw(solved: Sequence[tuple[types.Problem, types.Completion]], step: int, pool: pool_lib.Pool) -> Metrics:
    """Stores whole solutions in the place of principles: the comparison that is expected to fail."""
    for problem, solution in solved:
        pool.set_principle(problem.id, pool_lib.Principle(solution.text, len(solution.tokens), step))
    stored = [len(solution.tokens) for _, solution in solved]
    return _principle_metrics(stored, collections.Counter(), 0, 0)


def _principle_metrics(stored: Sequence[int], reasons: Mapping[str, int], cuts: int, spent: int) -> Metrics:
    """Lessons stored (their token counts) and refused, solutions cut in the requests, tokens sampled for them."""
    names = (*distil.REASONS, "unfit")
    return {
        "lanpo/principle_written": float(len(stored)),
        "lanpo/principle_tokens": _mean(stored),
        "lanpo/principle_rejected": float(sum(reasons.get(name, 0) for name in names)),
        **{f"lanpo/rejected_{name}": float(reasons.get(name, 0)) for name in names},
        "lanpo/cut_solutions": float(cuts),
        "lanpo/tokens_principles": float(spent),
    }


def _group_metrics(groups: Sequence[types.Group], modes: Mapping[str, float]) -> Metrics:
    """Shares, rewards and guidance statistics by mode; the keys depend on the configured modes alone."""
    metrics: Metrics = {}
    rollouts = [len(g.generation.completions) for g in groups]
    for mode in sorted({*MODES, *modes}):
        own = [g for g in groups if g.mode == mode]
        count = sum(n for g, n in zip(groups, rollouts, strict=True) if g.mode == mode)
        metrics[f"lanpo/share_{mode}"] = _ratio(count, sum(rollouts))
        metrics[f"lanpo/reward_{mode}"] = _mean([r for g in own for r in g.grades.rewards])
        metrics[f"lanpo/correct_{mode}"] = _mean([c for g in own for c in g.grades.correct])
    reasons = collections.Counter(name for g in groups for name in g.info.get("fallback", "").split(", "))
    metrics["lanpo/fallback"] = _ratio(sum(g.info.get("fell_back", 0) for g in groups), sum(rollouts))
    metrics |= {f"lanpo/fallback_{name}": float(reasons[name]) for name in guide.FALLBACKS}
    metrics["lanpo/retrieval_similarity"] = _mean([g.info["similarity"] for g in groups if "similarity" in g.info])
    judged = [value for g in groups for value in g.info.get("judged", ())]
    metrics |= {"lanpo/judged": float(len(judged)), "lanpo/judge_yes": _mean(judged)}
    metrics["lanpo/cut_principles"] = float(sum(g.info.get("cut", 0) for g in groups if g.mode == "inter"))
    metrics["lanpo/cut_attempts"] = float(sum(g.info.get("cut", 0) for g in groups if g.mode != "inter"))
    metrics["lanpo/alone"] = float(sum(not g.shared and n == 1 for g, n in zip(groups, rollouts, strict=True)))
    metrics["lanpo/tokens_rollouts"] = float(sum(len(c.tokens) for g in groups for c in g.generation.completions))
    return metrics


def _pool_metrics(pool: pool_lib.Pool) -> Metrics:
    return {
        "lanpo/pool_size": float(len(pool)),
        "lanpo/pool_principles": float(len(pool.index)),
        "lanpo/pool_evicted": float(pool.evicted),
        "lanpo/pool_refused": float(pool.refused),
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
