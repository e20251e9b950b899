"""Policy losses per token (to be minimised), and which tokens lost their gradient to a bound.

Every function takes prepared `tokens` and log w [B, T] from ratios.py and returns `Loss`. A stands for the advantage,
w for the importance weight. Bounds that are reached exactly keep their gradient, as in torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lanpo_jax.objectives import marks, selections
from lanpo_jax.objectives import tokens as tokens_lib


class Loss(NamedTuple):
    """A loss [B, T] and three indicators [B, T] of where it is flat, for the clip fractions."""

    loss: jax.Array
    high: jax.Array  # A > 0 and w above its bound
    low: jax.Array  # A < 0 and w below its bound
    lower: jax.Array  # A < 0 and the loss held by the dual bound


def clip(
    tokens: tokens_lib.Tokens,
    log_ratio: jax.Array,
    *,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
) -> Loss:
    """max(-wA, -clip(w, 1-low, 1+high)A), and at most -dual·A where A < 0.

    PPO (arXiv 1707.06347); high > low is DAPO's clip-higher (2503.14476); dual > 1 is dual-clip PPO (1912.09729).
    """
    return _clipped(jnp.exp(log_ratio), tokens.advantages, 1 - low, 1 + high, jnp.inf if dual is None else dual)


def cispo(tokens: tokens_lib.Tokens, log_ratio: jax.Array, *, floor: float = 0.0, cap: float = 5.0) -> Loss:
    """-sg(clip(w, floor, cap))·A·log pi: every token keeps a gradient, only its weight is bounded.

    MiniMax-M1 (arXiv 2506.13585). The bounds are absolute: 5 is the cap of ScaleRL (2510.13786) and of TRL; verl bounds
    w to [1-low, 1+high], here floor = 1-low, cap = 1+high. Bounded weights count as clipped whatever the sign of A,
    as in verl (TRL counts only A > 0).
    """
    ratio = jnp.exp(log_ratio)
    weight = jax.lax.stop_gradient(tokens_lib.bound(ratio, floor, cap))
    loss = -weight * tokens.advantages * tokens.logprobs
    return Loss(loss, ratio > cap, ratio < floor, jnp.zeros(loss.shape, bool))


def soft(tokens: tokens_lib.Tokens, log_ratio: jax.Array, *, tau_up: float = 1.0, tau_down: float = 1.05) -> Loss:
    """-(4/tau)·sigmoid(tau(w-1))·A, tau = tau_up where A > 0, else tau_down: a gate that fades instead of cutting.

    SAPO (arXiv 2511.20347); on-policy its gradient is that of wA. Nothing is ever clipped.
    """
    tau = jnp.where(tokens.advantages > 0, tau_up, tau_down)
    gate = 4.0 / tau * jax.nn.sigmoid(tau * (jnp.exp(log_ratio) - 1))
    return _free(-gate * tokens.advantages)


def geometric(tokens: tokens_lib.Tokens, log_ratio: jax.Array, *, low: float = 0.4, high: float = 0.4) -> Loss:
    """-exp(mean over t of d)·A, each d bounded on one side: at most `high` where A > 0, at least -low where A < 0.

    GMPO (arXiv 2507.20673); use with ratio `token`. Loss and gradient equal verl's geo_mean; its clip fractions
    also count tokens outside the band on the side that is *not* bounded, ours are the tokens without gradient.
    """
    up, down = tokens.advantages > 0, tokens.advantages < 0
    above, below = up & (log_ratio > high), down & (log_ratio < -low)
    bounded = jnp.where(above, high, jnp.where(below, -low, log_ratio))
    loss = -jnp.exp(tokens_lib.row_mean(bounded, tokens.mask)) * tokens.advantages
    return Loss(loss, above, below, jnp.zeros_like(up))


def log_clip(
    tokens: tokens_lib.Tokens,
    log_ratio: jax.Array,
    *,
    low: float = 0.025,
    high: float = 0.05,
    power: float = 0.5,
    dual: float = 0.05,
) -> Loss:
    """The clipped loss with bounds exp(-low·t^p) and exp(high·t^p), and for A < 0 the dual bound exp(dual·t^p).

    t counts the completion's tokens from 1: a product of t ratios wanders with t, so its bounds widen. CTPO (arXiv
    2605.07331); formula and defaults are those of its public code (`cum-token-cumprod-la`).
    """
    reach = jnp.maximum(tokens.position, 1) ** power
    bounds = jnp.exp(-low * reach), jnp.exp(high * reach), jnp.exp(dual * reach)
    return _clipped(jnp.exp(log_ratio), tokens.advantages, *bounds)


def _start_multiplier(*, start: float) -> dict[str, np.ndarray]:
    return {"multiplier": np.float32(start)}


def _ascend(
    state: Mapping[str, jax.Array], metrics: Mapping[str, jax.Array], *, rate: float, target: float
) -> dict[str, jax.Array]:
    """lam <- max(0, lam + rate·(mean (w-1)^2 - target)), from the finished metrics of an update."""
    excess = metrics["actor/ratio_variance"] - target
    return state | {"multiplier": jnp.maximum(0.0, state["multiplier"] + rate * excess)}


@marks.attach("start", _start_multiplier)
@marks.attach("after_update", _ascend)
def ratio_variance(
    tokens: tokens_lib.Tokens,
    log_ratio: jax.Array,
    *,
    start: float = 0.0,
    rate: float = 0.1,
    target: float = 0.01,
) -> Loss:
    """-(wA - lam·(w-1)^2), lam = state["multiplier"]: a soft trust region, nothing clipped (R2VPO, arXiv 2601.03320).

    lam starts at `start`; after every update, dual ascent: lam <- max(0, lam + rate·(mean (w-1)^2 - target)). Published
    are the constraint and its primal-dual form; the three defaults are ours, no published value is known to us.
    """
    ratio = jnp.exp(log_ratio)
    return _free(-ratio * tokens.advantages + tokens.state["multiplier"] * jnp.square(ratio - 1))


@marks.needs("vocab_mean")
def value_regression(tokens: tokens_lib.Tokens, log_ratio: jax.Array, *, scale: float = 1.0) -> Loss:
    """(Q_t - target_t)^2, Q_t = scale·log w_t, target_t = A + scale·(next - old next) detached (ROVER, 2509.24981).

    next is the mean over the vocabulary of log pi at the *following* token, 0 at the end of a completion; the values of
    the uniform policy need no maximum, so their mean is the state's value. As in the public code: scale 1, no clipping,
    mean over tokens; sample at temperature 0.6.
    """
    moved = (tokens.aux["vocab_mean"] - tokens.batch.old_vocab_mean) * tokens.mask
    following = jnp.pad(moved[:, 1:], ((0, 0), (0, 1)))
    target = jax.lax.stop_gradient(tokens.advantages + scale * following)
    return _free(jnp.square(scale * log_ratio - target))


@marks.attach("select", selections.covariance_top)
@marks.needs("selected")
def covariance_kl(
    tokens: tokens_lib.Tokens,
    log_ratio: jax.Array,
    *,
    share: float = 2e-4,
    coefficient: float = 1.0,
) -> Loss:
    """-wA, plus coefficient·|log pi - log pi_old| on the `share` of tokens with the highest covariance.

    KL-Cov (arXiv 2505.22617), as in its public code: share 2e-4 for 32B (2e-3 for 7B), coefficient 1, no clipping. The
    tokens are picked over the mini-batch by selections.py and come as batch.selected.
    """
    # not jnp.abs, whose derivative at 0 is 1: on-policy the penalty must have no gradient
    penalty = coefficient * tokens.delta * jnp.sign(tokens.delta) * tokens.batch.selected
    return _free(-jnp.exp(log_ratio) * tokens.advantages + penalty)


def unclipped(tokens: tokens_lib.Tokens, log_ratio: jax.Array) -> Loss:
    """-wA: the importance-weighted policy gradient; with ratio `none`, REINFORCE."""
    return _free(-jnp.exp(log_ratio) * tokens.advantages)


def likelihood(tokens: tokens_lib.Tokens, log_ratio: jax.Array) -> Loss:
    """-A·log pi: REINFORCE with the value other libraries print (GPG in verl); the ratio is not used."""
    return _free(-tokens.advantages * tokens.logprobs)


def _clipped(ratio: jax.Array, advantages: jax.Array, low, high, dual) -> Loss:
    """max(-wA, -clip(w)A), for A < 0 at most -dual·A, written by cases so that ties have one gradient."""
    up, down = advantages > 0, advantages < 0
    above, below, lower = up & (ratio > high), down & (ratio < low), down & (ratio > dual)
    bounded = jnp.where(above, high, jnp.where(below, low, jnp.where(lower, dual, ratio)))
    return Loss(-bounded * advantages, above, below, lower)


def _free(loss: jax.Array) -> Loss:
    nowhere = jnp.zeros(loss.shape, bool)
    return Loss(loss, nowhere, nowhere, nowhere)
