"""KL penalties against the reference policy: estimates per token from d = log pi - log pi_ref, [B, T].

Each function returns `Penalty(cost, kl)`: beta times the estimate, with gradient, and the bare estimate for the log.
Only k2's gradient is in expectation that of the reverse KL when on-policy; k1 has gradient 1, which averages to
nothing as a loss (use it in the reward); k3's gradient 1 - exp(-d) is that of the forward KL (arXiv 2506.09477).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from lanpo_jax.objectives import marks
from lanpo_jax.objectives import tokens as tokens_lib

MAX_K3 = 10.0  # as in verl: one freak token must not own the loss


class Penalty(NamedTuple):
    """What is added to the loss (or taken from the reward), and the KL estimate behind it, [B, T]."""

    cost: jax.Array
    kl: jax.Array


def none(delta: jax.Array) -> Penalty:
    """No penalty and no need of a reference; where one is given, k3 is logged."""
    return Penalty(jnp.zeros_like(delta), _k3(delta))


@marks.needs("ref")
def k1(delta: jax.Array, *, beta: float = 1e-3) -> Penalty:
    """k1 = d: unbiased in value, can be negative."""
    return Penalty(beta * delta, delta)


@marks.needs("ref")
def k2(delta: jax.Array, *, beta: float = 1e-3) -> Penalty:
    """k2 = d^2 / 2: biased in value, right in gradient."""
    kl = 0.5 * jnp.square(delta)
    return Penalty(beta * kl, kl)


@marks.needs("ref")
def k3(delta: jax.Array, *, beta: float = 1e-3) -> Penalty:
    """k3 = exp(-d) + d - 1, never negative (GRPO). d is clipped to ±20 and the value to 10, as in verl."""
    kl = _k3(delta)
    return Penalty(beta * kl, kl)


@marks.needs("ref")
def k3_plus(delta: jax.Array, *, beta: float = 1e-3) -> Penalty:
    """The value of k3 with the gradient of k2 (verl's `k3+`)."""
    k2_ = 0.5 * jnp.square(delta)
    kl = jax.lax.stop_gradient(_k3(delta) - k2_) + k2_
    return Penalty(beta * kl, kl)


def _k3(delta: jax.Array) -> jax.Array:
    delta = tokens_lib.bound(delta, -tokens_lib.MAX_LOG_RATIO, tokens_lib.MAX_LOG_RATIO)
    # expm1 keeps the tiny positive value that exp(-d) + d - 1 loses to rounding near d = 0
    return tokens_lib.bound(jnp.expm1(-delta) + delta, -jnp.inf, MAX_K3)
