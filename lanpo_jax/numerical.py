"""The numerical loop of a step: graded groups to advantages to optimizer updates.

What an objective needs beyond rewards and sampled tokens (`Objective.needs`) is made here and nothing else: scores
under the policy before its first update, under the reference, confidences of prompts, tokens picked over a mini-batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lanpo_jax import batching, sharding
from lanpo_jax.learner import Learner, TrainState
from lanpo_jax.objectives import groups as groups_lib
from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.objectives import selections
from lanpo_jax.types import Completion, Generation, Group

# What `improve` knows to provide; an objective that needs anything else is refused at the start.
PROVIDED = frozenset(
    {"ref", "sampler", "truncated", "selected", "entropy", "curvature", "vocab_mean", "values", "lengths", "verdicts"}
    | {"prompt_confidence", "preference", "group", "correction"}
)


@dataclasses.dataclass(frozen=True)
class Improved:
    """What a step of learning gives back."""

    state: TrainState
    memory: Mapping[str, Any]  # the scalars of a stateful method
    advantages: np.ndarray  # [P, G] or [P, G, T]
    numbers: dict[str, float | None]


def check(objective: objective_lib.Objective) -> None:
    """Refuses an objective of which something would be left out silently."""
    if missing := objective.needs - PROVIDED:
        raise ValueError(f"This objective needs {', '.join(sorted(missing))}, which the loop does not provide.")


def needs_reference(objective: objective_lib.Objective) -> bool:
    return "ref" in objective.needs


def outcome(group: Group) -> np.ndarray:
    """The first reward function's values: what groups are filtered on, so that shaping makes none of them differ."""
    return next(iter(group.grades.parts.values()), group.grades.rewards)


def kept(objective: objective_lib.Objective, groups: Sequence[Group]) -> np.ndarray:
    """Which groups enter the update, bool [P]."""
    values = np.stack([outcome(g) for g in groups])
    return objective.filter(groups_lib.Groups(rewards=values, scored=np.isfinite(values)))


def improve(
    learner: Learner,
    state: TrainState,
    reference: Any,
    memory: Mapping[str, Any],
    groups: Sequence[Group],
    *,
    mini_batches: int,
    temperature: float,
    seed: int,
) -> Improved:
    """One optimizer update per mini-batch of whole groups, all from the same rollouts; metrics are their means."""
    objective = learner.objective
    chosen = np.flatnonzero(kept(objective, groups)).tolist()
    parts = batching.mini_batches(chosen, mini_batches) if chosen else [[]]  # an empty batch: same metrics, no update
    tables = batching.tables(groups, learner.shape.completion_tokens)
    names = _old_names(objective, mini_batches)
    scores = _scores(learner, state.params, reference, groups, names, parts, temperature)
    found = _groups(learner, state.params, groups, tables, scores, memory, temperature)
    advantages = objective_lib.advantages(objective, found)
    values = _values(objective, found, advantages, tables, scores, on_policy=mini_batches == 1)
    memory = objective_lib.after_rollout(objective, memory, found)

    made, padding = [], []
    for number, part in enumerate(parts):
        mine = np.isin(tables["group"], part)
        pool = selections.Pool(
            tables["mask"] * mine[:, None], values["advantages"], scores.get("logprobs"), scores.get("entropy"),
            seed=seed + number,
        )  # fmt: skip
        picked = objective_lib.select(objective, pool) if "selected" in objective.needs else None
        batch = learner.batch(groups, values | ({} if picked is None else {"selected": picked}), part)
        state, numbers = learner.update(state, batch, temperature, memory)
        memory = objective_lib.after_update(objective, memory, numbers)
        made.append(sharding.to_host(numbers))
        padding.append(batching.padding_share(batch))
    memory = {k: float(v) for k, v in memory.items()}
    return Improved(state, memory, advantages, _means(made, padding))


def _old_names(objective: objective_lib.Objective, mini_batches: int) -> tuple[str, ...]:
    """What must be known of the policy before its first update; its log-probabilities, if anything."""
    needs = objective.needs
    names = tuple(n for n in ("entropy", "vocab_mean", "values") if n in needs)
    early = {"selected", "prompt_confidence", "values", "vocab_mean"} & needs or _taxes(objective)
    return ("logprobs", *names) if early or mini_batches > 1 else ()


def _taxes(objective: objective_lib.Objective) -> bool:
    """Whether a KL term is taken from the rewards."""
    return objective.reward_kl.func.__name__ != "none"


def _scores(learner: Learner, params, reference, groups, names, parts, temperature: float) -> dict[str, np.ndarray]:
    """Tables [B, T] of token statistics under the policy, and ref_logprobs under the reference."""
    wanted = [(params, names, "")] if names else []
    if needs_reference(learner.objective):
        wanted.append((reference, ("logprobs",), "ref_"))
    count, scores = sum(len(g.generation.completions) for g in groups), {}
    for part in parts:
        batch = learner.batch(groups, {}, part) if wanted else None
        for weights, asked, prefix in wanted:
            for name, values in learner.score(weights, batch, temperature, asked).items():
                table = batching.collect(batch, values, count)
                scores[prefix + name] = scores.get(prefix + name, 0.0) + table
    return scores


def _groups(learner: Learner, params, groups, tables, scores, memory, temperature: float) -> groups_lib.Groups:
    """The step as the advantage functions read it, KL taken from the rewards where configured."""
    objective, size = learner.objective, (len(groups), -1)
    rewards = np.stack([g.grades.rewards for g in groups]).astype(np.float64)
    shape = (*rewards.shape, tables["mask"].shape[-1])
    dense = None
    if _taxes(objective):
        dense = -objective_lib.reward_penalty(objective, scores["logprobs"], scores["ref_logprobs"], tables["mask"])
        if "values" not in objective.needs:
            rewards, dense = rewards + dense.sum(-1).reshape(size), None
    confident = "prompt_confidence" in objective.needs
    return groups_lib.Groups(
        rewards=rewards,
        lengths=tables["mask"].sum(-1).reshape(size),
        scored=np.isfinite(rewards),
        correct=np.stack([g.grades.correct for g in groups]),
        mask=tables["mask"].reshape(shape),
        old_logprobs=scores["logprobs"].reshape(shape) if "logprobs" in scores else None,
        prompt_confidence=_prompt_confidence(learner, params, groups, temperature) if confident else None,
        values=scores["values"].reshape(shape) if "values" in scores else None,
        token_rewards=None if dense is None else dense.reshape(shape),
        state=memory,
    )


def _values(objective, found: groups_lib.Groups, advantages, tables, scores, on_policy: bool) -> dict[str, np.ndarray]:
    """Tables under the names of objectives.tokens.Batch; without `old_logprobs` the ratio is pinned to 1."""
    count = len(tables["mask"])
    values = {name: tables[name] for name in ("sampler_logprobs", "truncated", "group")}
    values["advantages"] = advantages.reshape(count, *advantages.shape[2:])
    values["level"] = np.nan_to_num(found.rewards.reshape(count))
    returns = objective_lib.returns(objective, found)
    optional = {
        "old_logprobs": None if on_policy else scores.get("logprobs"),
        "ref_logprobs": scores.get("ref_logprobs"),
        "old_values": scores.get("values"),
        "old_vocab_mean": scores.get("vocab_mean"),
        "returns": None if returns is None else returns.reshape(count, -1),
    }
    return values | {name: table for name, table in optional.items() if table is not None}


def _prompt_confidence(learner: Learner, params, groups: Sequence[Group], temperature: float) -> np.ndarray:
    """`groups.confidence` of each prompt's own tokens, [P]: each prompt scored as a completion of its first token."""
    reader = learner.for_prompts
    found = np.zeros(len(groups))
    for start in range(0, len(groups), reader.rows):
        mine = [_as_completion(g) for g in groups[start : start + reader.rows]]
        batch = reader.batch(mine, {})
        scored = reader.score(params, batch, temperature)["logprobs"]
        table, mask = (batching.collect(batch, x, len(mine)) for x in (scored, batch.mask))
        found[start : start + len(mine)] = groups_lib.confidence(table, mask)
    return found


def _as_completion(group: Group) -> Group:
    ids = group.generation.prompt_tokens
    completion = Completion(ids[1:], np.zeros(len(ids) - 1, np.float32), "", False)
    return dataclasses.replace(group, generation=Generation(ids[:1], "", (completion,)))


def _means(made: Sequence[Mapping[str, Any]], padding: Sequence[float]) -> dict[str, float | None]:
    """Mean over updates of every metric."""
    means = {name: float(np.mean([m[name] for m in made])) for name in made[0]}
    return means | {"perf/padding_share": float(np.mean(padding))}
