"""Metrics that stay exact under micro-batching: each value is a small named tuple that knows how to be pooled.

A loss returns {name: Mean | Max | Min | EffectiveShare}; micro-batches and hosts are joined with `merge`, and only
`finish` turns pooled sums into numbers. The tuples are pytrees, so they travel through scan and jit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Mean(NamedTuple):
    """sum / weight."""

    sum: jax.Array
    weight: jax.Array


class Max(NamedTuple):
    """The largest value seen; -inf when nothing was."""

    value: jax.Array


class Min(NamedTuple):
    """The smallest value seen; +inf when nothing was."""

    value: jax.Array


class EffectiveShare(NamedTuple):
    """Effective sample size over the number of samples, (sum w)^2 / (n sum w^2), in (0, 1]."""

    sum: jax.Array
    square: jax.Array
    weight: jax.Array


Pooled = Mean | Max | Min | EffectiveShare


def mean(x: jax.Array, mask: jax.Array) -> Mean:
    """The masked mean of an array of any shape."""
    return Mean(jnp.sum(x * mask), jnp.sum(mask))


def largest(x: jax.Array, mask: jax.Array) -> Max:
    """The masked maximum of an array of any shape."""
    return Max(jnp.max(jnp.where(mask > 0, x, -jnp.inf)))


def smallest(x: jax.Array, mask: jax.Array) -> Min:
    """The masked minimum of an array of any shape."""
    return Min(jnp.min(jnp.where(mask > 0, x, jnp.inf)))


def effective(x: jax.Array, mask: jax.Array) -> EffectiveShare:
    """The effective sample share of the masked weights `x`."""
    return EffectiveShare(jnp.sum(x * mask), jnp.sum(x * x * mask), jnp.sum(mask))


def merge(a: Mapping[str, Pooled], b: Mapping[str, Pooled]) -> dict[str, Pooled]:
    """Joins the metrics of two parts of one batch; both must have the same keys (same config, same keys)."""
    if a.keys() != b.keys():
        raise ValueError(f"Metrics of two parts differ in {sorted(a.keys() ^ b.keys())}; log the same keys everywhere.")
    return {name: _join(a[name], b[name]) for name in a}


def finish(metrics: Mapping[str, Pooled]) -> dict[str, jax.Array]:
    """Pooled metrics as numbers; a metric of nothing (all masked) is 0, never NaN or infinite."""
    return {name: _value(pooled) for name, pooled in metrics.items()}


def ratio(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """numerator / denominator, and 0 where the denominator is 0: how a loss is made from its (sum, weight)."""
    return jnp.where(denominator == 0, 0.0, numerator / jnp.where(denominator == 0, 1.0, denominator))


def _join(a: Pooled, b: Pooled) -> Pooled:
    if isinstance(a, Max):
        return Max(jnp.maximum(a.value, b.value))
    if isinstance(a, Min):
        return Min(jnp.minimum(a.value, b.value))
    return type(a)(*(x + y for x, y in zip(a, b)))


def _value(pooled: Pooled) -> jax.Array:
    if isinstance(pooled, Mean):
        return ratio(pooled.sum, pooled.weight)
    if isinstance(pooled, EffectiveShare):
        return ratio(pooled.sum * pooled.sum, pooled.weight * pooled.square)
    return jnp.where(jnp.isfinite(pooled.value), pooled.value, 0.0)


def nothing(metrics: Mapping[str, Pooled]) -> dict[str, Pooled]:
    """The metrics of no data, of the same kinds and shapes: what `merge` starts from."""
    start = {Max: -jnp.inf, Min: jnp.inf}
    return {n: type(p)(*(jnp.full(x.shape, start.get(type(p), 0.0), x.dtype) for x in p)) for n, p in metrics.items()}
