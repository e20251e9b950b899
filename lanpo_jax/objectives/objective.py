"""One loss made of small parts: slots named by config strings, resolved at start-up, composed here.

    objective = build({"advantage": "group_norm", "ratio": "token", "surrogate": "clip(low=0.2, high=0.28)", ...})
    total, weight, metrics = loss(objective, logprobs, batch)

The loss of a mini-batch is sum(total) / sum(weight) over its micro-batches: `pooled.ratio`. No class per method, no
branch on a method's name: a method is the dict that names its parts (configs/objectives.py).
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from lanpo_jax import spec
from lanpo_jax.objectives import advantages as advantages_lib
from lanpo_jax.objectives import aggregates, filters, marks, monitors, penalties, pooled, ratios, selections, surrogates
from lanpo_jax.objectives import groups as groups_lib
from lanpo_jax.objectives import tokens as tokens_lib
from lanpo_jax.objectives import values as values_lib
from lanpo_jax.objectives import weights as weights_lib
from lanpo_jax.objectives import whole as whole_lib

SLOTS = {
    "filter": filters,
    "advantage": advantages_lib,
    "ratio": ratios,
    "surrogate": surrogates,
    "weights": weights_lib,
    "aggregate": aggregates,
    "kl": penalties,  # added to the loss
    "reward_kl": penalties,  # taken from the reward
    "value": {"none": values_lib.none, "squared": values_lib.squared},
    "whole": whole_lib,  # other than none: replaces ratio, surrogate and aggregate
}


@dataclasses.dataclass(frozen=True)
class Objective:
    """The bound functions of every slot, and the union of what they need.

    `needs` names inputs beyond mask, advantages and log-probabilities: "ref", "sampler", "entropy", "truncated",
    "selected", "lengths", "values", "group", ...: the loop computes only what is named there.
    """

    filter: Callable
    advantage: Callable
    ratio: Callable
    surrogate: Callable
    weights: tuple[Callable, ...]
    aggregate: Callable
    kl: Callable
    reward_kl: Callable
    value: Callable
    whole: Callable
    needs: frozenset[str]

    @property
    def parts(self) -> tuple[functools.partial, ...]:
        """Every bound function, the weights one by one."""
        found = (getattr(self, slot) for slot in SLOTS if slot != "weights")
        return (*found, *self.weights)


def build(config: Mapping[str, str]) -> Objective:
    """Resolves a mapping of slot -> spec string. Raises ValueError in one sentence that lists what exists."""
    for slot in config:
        if slot not in SLOTS:
            hint = spec.nearest(slot, SLOTS)
            raise ValueError(f"{slot!r} is no slot of an objective{hint}; there are: {', '.join(SLOTS)}.")
    missing = [slot for slot in SLOTS if slot not in config]
    if missing:
        raise ValueError(f"The objective lacks {', '.join(missing)}; name a function for each of {', '.join(SLOTS)}.")
    bound = {slot: spec.resolve(config[slot], SLOTS[slot]) for slot in SLOTS if slot != "weights"}
    factors = tuple(spec.resolve(text, weights_lib) for text in _terms(config["weights"]))
    needed = (marks.read(part, "needs", frozenset()) for part in (*bound.values(), *factors))
    objective = Objective(**bound, weights=factors, needs=frozenset().union(*needed))
    selecting = [part.func.__name__ for part in objective.parts if marks.read(part, "select")]
    if len(selecting) > 1:
        raise ValueError(
            f"{' and '.join(selecting)} both pick tokens, but a batch carries one choice; keep one of them."
        )
    return objective


def loss(
    objective: Objective,
    logprobs: jax.Array,
    batch: tokens_lib.Batch,
    *,
    aux: Mapping[str, jax.Array] | None = None,
    state: Mapping[str, jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array, dict[str, pooled.Pooled]]:
    """(sum, weight, metrics) of one micro-batch of B completions; the weight depends on what is masked alone.

    `logprobs` [B, T] carries the gradient; `aux` holds what `objective.needs` asks of the forward pass, [B, T] each
    ("entropy", "values", ...); `state` the scalars of a stateful method. Masked entries of any array may hold anything.
    """
    tokens, excluded = _exclude(objective, tokens_lib.prepare(logprobs, batch, aux, state))
    monitored = monitors.mismatch(tokens) | monitors.entropy(tokens) | excluded
    if objective.whole.func is not whole_lib.none:
        total, count, metrics = objective.whole(tokens)
        return total, count, jax.lax.stop_gradient(metrics | monitored)
    log_ratio = objective.ratio(tokens)
    policy = objective.surrogate(tokens, log_ratio)
    weight, weight_metrics = _weight(objective, tokens)
    penalty, kl_metrics = _penalty(objective, tokens)
    value, value_metrics = objective.value(tokens)
    policy_sum, count = objective.aggregate(policy.loss * weight, tokens.mask)
    other_sum, _ = objective.aggregate(penalty + value, tokens.mask)
    metrics = {"actor/pg_loss": pooled.Mean(policy_sum, count)} | monitors.actor(tokens, log_ratio, policy)
    metrics |= monitored | weight_metrics | kl_metrics | value_metrics
    return policy_sum + other_sum, count, jax.lax.stop_gradient(metrics)


def advantages(objective: Objective, groups: groups_lib.Groups) -> np.ndarray:
    """Advantages of a step, float64 [P, G] (or [P, G, T]); on the host, before batching.

    Raises ValueError for a group of one under a group baseline, and for a reward that is neither finite nor marked as
    unknown.
    """
    check_sizes(objective, *groups.rewards.shape)
    bad = int(np.sum(~np.isfinite(groups.rewards) & groups.known))
    if bad:
        raise ValueError(f"{bad} of {groups.rewards.size} rewards are not finite; mark them unknown in Groups.scored.")
    return objective.advantage(groups)


def check_sizes(objective: Objective, prompts: int, group: int) -> None:
    """Raises ValueError when the advantage cannot be taken over `prompts` groups of `group` completions."""
    name = objective.advantage.func.__name__
    if group == 1 and "group" in marks.read(objective.advantage, "needs", ()):
        raise ValueError(f"Advantage {name} of a group of 1 is always 0; set rollout.group to 2 or more.")
    bundle = marks.options(objective.advantage).get("bundle", 1)
    if prompts % bundle:
        raise ValueError(f"{prompts} prompts do not divide into bundles of {bundle}; change rollout.prompts or bundle.")


def reward_penalty(
    objective: Objective, logprobs: np.ndarray, ref_logprobs: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """beta·KL of each token to be taken from the rewards, float [.., T]; sum over T for one number per completion."""
    valid = np.asarray(mask) != 0
    delta = np.where(valid, logprobs, 0) - np.where(valid, ref_logprobs, 0)
    return np.asarray(objective.reward_kl(jnp.asarray(delta)).cost) * valid


def returns(objective: Objective, groups: groups_lib.Groups) -> np.ndarray | None:
    """Targets of the value head [P, G, T], or None for a method without one."""
    found = marks.hook(objective.advantage, "returns")
    return None if found is None else found(groups)


def select(objective: Objective, pool: selections.Pool) -> np.ndarray | None:
    """`Batch.selected` of a whole mini-batch, bool [B, T], or None for a method that picks no tokens."""
    hooks = [marks.hook(part, "select") for part in objective.parts]
    found = [hook for hook in hooks if hook is not None]
    return found[0](pool) if found else None


def start_state(objective: Objective) -> dict[str, np.ndarray]:
    """The scalars that the method carries from step to step (most carry none): part of the train state."""
    hooks = (marks.hook(part, "start") for part in objective.parts)
    return {name: value for hook in hooks if hook is not None for name, value in hook().items()}


def after_rollout(
    objective: Objective, state: Mapping[str, np.ndarray], groups: groups_lib.Groups
) -> dict[str, np.ndarray]:
    """The state after a step's rewards have been used for advantages; on the host."""
    for part in objective.parts:
        hook = marks.hook(part, "after_rollout")
        state = state if hook is None else hook(state, groups)
    return dict(state)


def after_update(
    objective: Objective, state: Mapping[str, jax.Array], metrics: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """The state after an optimizer update, from its finished metrics (`pooled.finish`); may run under jit."""
    for part in objective.parts:
        hook = marks.hook(part, "after_update")
        state = state if hook is None else hook(state, metrics)
    return dict(state)


def _terms(text: str) -> list[str]:
    """'a(x=1) + b' -> ['a(x=1)', 'b']."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return [text]  # spec.resolve says what is wrong with it
    found = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        found.append(ast.unparse(node.right))
        node = node.left
    return [ast.unparse(node), *reversed(found)]


def _exclude(objective: Objective, tokens: tokens_lib.Tokens) -> tuple[tokens_lib.Tokens, dict[str, pooled.Pooled]]:
    """Takes completions or tokens out of the batch, where a weights function says so; and their share."""
    before, metrics = tokens.mask, {}
    for part in objective.weights:
        if marks.read(part, "excludes"):
            batch = dataclasses.replace(tokens.batch, mask=tokens.mask * part(tokens))
            tokens = dataclasses.replace(tokens, batch=batch)
            metrics = {"actor/excluded": pooled.mean(1 - tokens.mask, before)}
    return tokens, metrics


def _weight(objective: Objective, tokens: tokens_lib.Tokens) -> tuple[jax.Array, dict[str, pooled.Pooled]]:
    """The product of all factors, and the metrics of the sampler correction where there is one."""
    product, metrics = jnp.ones_like(tokens.mask), {}
    for part in objective.weights:
        factor = part(tokens)
        product = product * factor
        if "correction" in marks.read(part, "needs", ()):
            metrics |= monitors.correction(factor, marks.options(part)["cap"], tokens.mask)
    return product, metrics


def _penalty(objective: Objective, tokens: tokens_lib.Tokens) -> tuple[jax.Array, dict[str, pooled.Pooled]]:
    """beta·KL per token against the reference, and its metric; nothing without a reference."""
    if tokens.batch.ref_logprobs is None:
        if "ref" in marks.read(objective.kl, "needs", ()):
            raise ValueError(
                "The objective has a KL penalty but the batch has no ref_logprobs; set kl='none' or a ref."
            )
        return jnp.zeros_like(tokens.mask), {}
    penalty = objective.kl(tokens.logprobs - tokens.batch.ref_logprobs)
    return penalty.cost, {"actor/kl_ref": pooled.mean(penalty.kl, tokens.mask)}
