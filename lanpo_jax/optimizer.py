"""Schedule and optax chain; the only file that imports optax."""

from __future__ import annotations

from typing import Any

import jax
import optax

Transformation = optax.GradientTransformation
SCHEDULES = ("constant", "cosine", "linear")


def schedule(*, rate: float, warmup: int, decay: str, updates: int, floor: float) -> optax.Schedule:
    """Learning rate by optimizer update: linear warm-up, then constant, or down to rate·floor at the last update."""
    if decay not in SCHEDULES:
        raise ValueError(f"optimizer.decay={decay!r} is not known; there are: {', '.join(SCHEDULES)}.")
    rest = max(1, updates - warmup)
    after = {
        "constant": optax.constant_schedule(rate),
        "cosine": optax.cosine_decay_schedule(rate, rest, floor),
        "linear": optax.linear_schedule(rate, rate * floor, rest),
    }[decay]
    # The first update is already taken at rate/warmup: a rate of exactly 0 would waste it.
    return optax.join_schedules(
        [optax.linear_schedule(rate / max(1, warmup), rate, max(1, warmup - 1)), after], [warmup]
    )


def make(
    rate: optax.Schedule, *, b1: float, b2: float, eps: float, weight_decay: float, clip: float, mu_dtype: str = ""
) -> Transformation:
    """AdamW (arXiv 1711.05101) after clipping by the global norm (0: no clipping); matrices alone decay.

    `mu_dtype` of the first moment: bfloat16 saves a sixth of an update's memory; empty: that of the parameters.
    """
    decays = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)  # noqa: E731
    adam = optax.adamw(
        rate, b1=b1, b2=b2, eps=eps, mu_dtype=mu_dtype or None, weight_decay=weight_decay,
        mask=decays if weight_decay else None,
    )  # fmt: skip
    return optax.chain(optax.clip_by_global_norm(clip), adam) if clip > 0 else adam


def abstract_state(
    tx: Transformation, params: Any, replicated: jax.sharding.Sharding, memory: str | None = None
) -> Any:
    """Shapes and shardings of the optimizer's state: its moments lie where their parameters do.

    jit(tx.init) without out_shardings would replicate them: eight times the memory on eight devices. With `memory`
    (a kind, such as 'pinned_host') the moments lie there, beside the device of their parameters.
    """
    shapes = jax.eval_shape(tx.init, params)
    place = (lambda s: s) if memory is None else (lambda s: s.with_memory_kind(memory))
    return optax.tree_map_params(
        tx,
        lambda s, p: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=place(p.sharding)),
        shapes,
        params,
        transform_non_params=lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=replicated),
    )


def moments(opt_state: Any, name: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Adam's first and second moment of one top-level parameter, and the number of updates made."""
    adam = next(s for s in jax.tree.leaves(opt_state, is_leaf=_is_adam) if _is_adam(s))
    return adam.mu[name], adam.nu[name], adam.count


def _is_adam(state: Any) -> bool:
    return isinstance(state, optax.ScaleByAdamState)


apply_updates = optax.apply_updates
global_norm = optax.global_norm
