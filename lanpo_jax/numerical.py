"""The numerical loop of a step: graded groups to advantages to optimizer updates.

What an objective needs beyond rewards and sampled tokens (`Objective.needs`) is made here and nothing else: scores
under the policy before its first update, under the reference, confidences of prompts, tokens picked over a mini-batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lanpo_jax import batching, sharding
from lanpo_jax.learner import Learner, TrainState
from lanpo_jax.objectives import groups as groups_lib
from lanpo_jax.objectives import marks, selections
from lanpo_jax.objectives import objective as objective_lib
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
    advantages: list[np.ndarray]  # of each group, [n] or [n, T]
    numbers: dict[str, float | None]


def check(
    objective: objective_lib.Objective, *, mixed: bool = False, off_policy: bool = False, corrected: bool = False
) -> None:
    """Refuses an objective of which something would be left out silently.

    `mixed`: steps may hold families of several prompts, or any number of families; `off_policy`: completions whose old
    log-probabilities are not the policy's own; `corrected`: completions that the sampler correction has to weight.
    """
    if missing := objective.needs - PROVIDED:
        raise ValueError(f"This objective needs {', '.join(sorted(missing))}, which the loop does not provide.")
    advantage = objective.advantage.func.__name__
    if mixed and ("preference" in objective.needs or "bundle" in marks.options(objective.advantage)):
        name = "trpa" if "preference" in objective.needs else advantage
        raise ValueError(f"{name} needs the same number of completions from every prompt; use another rollout.episode.")
    uncorrected = objective.ratio.func.__name__ == "none" or {"preference", "vocab_mean"} & objective.needs
    if off_policy and uncorrected:
        raise ValueError(
            "This objective has no importance weight, which off-policy completions need; use objective.ratio='token' "
            "and a clipped surrogate, or an episode without strip_guidance and replay."
        )
    if corrected and "correction" not in objective.needs:
        raise ValueError("Replayed completions need objective.weights='token_is(cap=2.0)', or replay(decoupled=False).")


def needs_reference(objective: objective_lib.Objective) -> bool:
    return "ref" in objective.needs


def kept(objective: objective_lib.Objective, groups: Sequence[Group]) -> np.ndarray:
    """Which groups enter the update, bool [groups]; those that share statistics are filtered as one."""
    place = batching.Placement.of(groups)
    values = place.gather(np.concatenate([g.grades.outcome for g in groups]), np.nan)
    return objective.filter(groups_lib.Groups(rewards=values, scored=np.isfinite(values)))[place.rows]


def sift(objective: objective_lib.Objective, groups: Sequence[Group]) -> tuple[list[list[Group]], list[list[Group]]]:
    """The families of which anything enters the update, and those of which nothing does."""
    keep = kept(objective, groups)
    sorted_out: tuple[list, list] = ([], [])
    for family in batching.families(groups):
        sorted_out[0 if keep[family].any() else 1].append([groups[i] for i in family])
    return sorted_out


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
    timer: Callable[[str], contextlib.AbstractContextManager] = contextlib.nullcontext,
    off_policy: bool = False,
) -> Improved:
    """One optimizer update per mini-batch of whole families, all from the same rollouts; metrics are their means.

    `off_policy` allows groups that are so marked: the ratio of their tokens is against the sampler's log-probabilities,
    that of all others as without it. It belongs to a run, not to a step: batches carry other arrays.
    """
    objective = learner.objective
    keep = kept(objective, groups)
    chosen = [good for family in batching.families(groups) if (good := [i for i in family if keep[i]])]
    parts = batching.mini_batches(chosen, mini_batches) if chosen else [[]]  # an empty batch: same metrics, no update
    tables = batching.tables(groups, learner.shape.completion_tokens)
    names = _old_names(objective, mini_batches)
    with timer("logprob"):
        policy = learner.policy(state) if names or "prompt_confidence" in objective.needs else {}
        scores = _scores(learner, policy, reference, groups, names, parts, temperature)
    place = batching.Placement.of(groups)
    found = _groups(learner, policy, groups, place, tables, scores, memory, temperature)
    del policy  # merged adapters are as large as the network
    advantages = place.scatter(objective_lib.advantages(objective, found))
    values = _values(objective, found, advantages, place, tables, scores)
    values |= _old(tables, scores, mini_batches == 1, off_policy)
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
    cuts = np.flatnonzero(np.diff(tables["group"])) + 1
    return Improved(state, memory, np.split(advantages, cuts), _means(made, padding))


def unsound(numbers: Mapping[str, float | None]) -> bool:
    """Whether a step's loss or gradient was not finite: its update was skipped."""
    return not all(np.isfinite(numbers[name]) for name in ("actor/loss", "actor/grad_norm"))


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


def _groups(
    learner: Learner, params, groups, place: batching.Placement, tables, scores, memory, temperature: float
) -> groups_lib.Groups:
    """The step as the advantage functions read it, KL taken from the rewards where configured."""
    objective = learner.objective
    rewards = np.concatenate([g.grades.rewards for g in groups]).astype(np.float64)
    dense = None
    if _taxes(objective):
        dense = -objective_lib.reward_penalty(objective, scores["logprobs"], scores["ref_logprobs"], tables["mask"])
        if "values" not in objective.needs:
            rewards, dense = rewards + dense.sum(-1), None
    confidence = None
    if "prompt_confidence" in objective.needs:
        confidence = _prompt_confidence(learner, params, groups, temperature)[tables["group"]]
    optional = {
        "old_logprobs": scores.get("logprobs"),
        "values": scores.get("values"),
        "token_rewards": dense,
        "prompt_confidence": confidence,
    }
    rewards = place.gather(rewards, np.nan)
    return groups_lib.Groups(
        rewards=rewards,
        lengths=place.gather(tables["mask"].sum(-1)),
        scored=np.isfinite(rewards),
        correct=place.gather(np.concatenate([g.grades.correct for g in groups])),
        mask=place.gather(tables["mask"]),
        state=memory,
        **{name: None if table is None else place.gather(table) for name, table in optional.items()},
    )


def _values(
    objective, found: groups_lib.Groups, advantages, place: batching.Placement, tables, scores
) -> dict[str, np.ndarray]:
    """Tables under the names of objectives.tokens.Batch."""
    values = {name: tables[name] for name in ("sampler_logprobs", "truncated", "group")}
    values["advantages"] = advantages
    values["level"] = np.nan_to_num(place.scatter(found.rewards))
    returns = objective_lib.returns(objective, found)
    optional = {
        "ref_logprobs": scores.get("ref_logprobs"),
        "old_values": scores.get("values"),
        "old_vocab_mean": scores.get("vocab_mean"),
        "returns": None if returns is None else place.scatter(returns),
    }
    return values | {name: table for name, table in optional.items() if table is not None}


def _old(tables, scores, on_policy: bool, off_policy: bool) -> dict[str, np.ndarray]:
    """What the ratio is against: the policy before the first update, or for marked completions whoever sampled them.

    Without `old_logprobs`, or where `pinned`, the ratio is exactly 1.
    """
    marked = tables["off_policy"]
    if marked.any() and not off_policy:
        raise ValueError("A group is marked off_policy in a run without such groups; call improve(off_policy=True).")
    if not off_policy:
        return {} if on_policy or "logprobs" not in scores else {"old_logprobs": scores["logprobs"]}
    own = scores.get("logprobs", np.zeros_like(tables["sampler_logprobs"]))
    old = np.where(marked[:, None], tables["sampler_logprobs"], own)
    return {"old_logprobs": old, "pinned": ~marked if on_policy else np.zeros_like(marked)}


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
    ids = group.trained_prompt
    completion = Completion(ids[1:], np.zeros(len(ids) - 1, np.float32), "", False)
    return dataclasses.replace(group, generation=Generation(ids[:1], "", (completion,)), prompt=None)


def _means(made: Sequence[Mapping[str, Any]], padding: Sequence[float]) -> dict[str, float | None]:
    """Mean over updates of every metric."""
    means = {name: float(np.mean([m[name] for m in made])) for name in made[0]}
    return means | {"perf/padding_share": float(np.mean(padding))}
