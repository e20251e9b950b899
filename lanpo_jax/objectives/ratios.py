"""Importance weights: how far the policy has moved since the rollouts, as log w [B, T] for each token.

Every function takes prepared `tokens` (d = tokens.delta = log pi - log pi_old, 0 where masked) and returns log w.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lanpo_jax.objectives import tokens as tokens_lib


def token(tokens: tokens_lib.Tokens) -> jax.Array:
    """log w_t = d_t (PPO, arXiv 1707.06347; GRPO, arXiv 2402.03300)."""
    return tokens.delta


def sequence(tokens: tokens_lib.Tokens) -> jax.Array:
    """log w_t = mean over the completion of d, with gradient through every token (GSPO, arXiv 2507.18071)."""
    return jnp.broadcast_to(tokens_lib.row_mean(tokens.delta, tokens.mask), tokens.mask.shape)


def sequence_token(tokens: tokens_lib.Tokens) -> jax.Array:
    """GSPO-token: the value of `sequence`, the gradient of token t alone: w_t = sg(s)·pi_t/sg(pi_t)."""
    delta = tokens.delta
    return jax.lax.stop_gradient(sequence(tokens) - delta) + delta


def prefix_mean(tokens: tokens_lib.Tokens) -> jax.Array:
    """log w_t = mean over k <= t of d_k, with gradient through the whole prefix (PNPO; no public source known to us).

    The `geomean` mode of CTPO's public code has this value and the gradient of token t alone.
    """
    return jnp.cumsum(tokens.delta * tokens.mask, axis=-1) / jnp.maximum(tokens.position, 1)


def cumulative(tokens: tokens_lib.Tokens, *, cap: float = 10.0) -> jax.Array:
    """log w_t = min(cap, sum over k <= t of d_k), with gradient through token t only (CTPO, arXiv 2605.07331).

    As in its public code (`cum-token-cumprod`): d clipped to ±20, log w to 10.
    """
    delta = tokens.delta
    total = jnp.cumsum(delta * tokens.mask, axis=-1)
    return tokens_lib.bound(jax.lax.stop_gradient(total - delta) + delta, -jnp.inf, cap)


def none(tokens: tokens_lib.Tokens) -> jax.Array:
    """log w_t = 0 in value, with the gradient of log pi_t: plain REINFORCE whatever the policy has become."""
    return tokens.logprobs - jax.lax.stop_gradient(tokens.logprobs)
