"""Factors on the policy loss of each token, [B, T], without gradient: sampler correction and token masks.

A config may join several with `+`: 'drop_truncated + token_is(cap=2.0)'. Denominators stay those of all valid tokens,
except under `drop_truncated` and `curvature`, whose completions and tokens leave the batch altogether.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lanpo_jax.objectives import marks, selections
from lanpo_jax.objectives import tokens as tokens_lib


def none(tokens: tokens_lib.Tokens) -> jax.Array:
    """Every token counts 1."""
    return jnp.ones_like(tokens.mask)


@marks.attach("excludes", True)  # objective.loss applies it to the mask itself
@marks.needs("truncated")
def drop_truncated(tokens: tokens_lib.Tokens) -> jax.Array:
    """Completions that hit the token limit leave loss *and denominator* (DAPO's overlong filtering, 2503.14476)."""
    return jnp.broadcast_to(1 - tokens.batch.truncated.astype(tokens.mask.dtype)[:, None], tokens.mask.shape)


@marks.needs("sampler", "correction")
def token_is(tokens: tokens_lib.Tokens, *, cap: float = 2.0) -> jax.Array:
    """min(exp(o - q), cap): truncated importance sampling of the sampler's tokens (o trainer's old, q sampler's).

    Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"; cap 2 as in verl, TRL.
    """
    return jnp.minimum(jnp.exp(_gap(tokens)), cap)


@marks.needs("sampler", "correction")
def sequence_is(tokens: tokens_lib.Tokens, *, cap: float = 2.0) -> jax.Array:
    """min(prod over t of exp(o - q), cap), one factor for the whole completion."""
    total = jnp.sum(_gap(tokens) * tokens.mask, axis=-1, keepdims=True)
    limit = tokens_lib.MAX_LOG_RATIO
    weight = jnp.minimum(jnp.exp(tokens_lib.bound(total, -limit, limit)), cap)
    return jnp.broadcast_to(weight, tokens.mask.shape)


@marks.attach("select", selections.top_entropy)
@marks.needs("selected", "entropy")
def top_entropy(tokens: tokens_lib.Tokens, *, share: float = 0.2) -> jax.Array:
    """1 on the `share` of the mini-batch's tokens with the highest entropy, 0 elsewhere (80/20, arXiv 2506.01939)."""
    return tokens.batch.selected.astype(tokens.mask.dtype)


@marks.attach("select", selections.covariance_band)
@marks.needs("selected")
def drop_covariance(
    tokens: tokens_lib.Tokens, *, share: float = 2e-4, low: float = 1.0, high: float = 5.0
) -> jax.Array:
    """0 on a random `share` of the tokens whose covariance lies in (low, high), 1 elsewhere (Clip-Cov, 2505.22617)."""
    return 1 - tokens.batch.selected.astype(tokens.mask.dtype)


@marks.attach("excludes", True)
@marks.needs("curvature")
def curvature(tokens: tokens_lib.Tokens, *, fisher: float = 1e-4, hessian: float = 1e-2) -> jax.Array:
    """1 where the token's own step stays where its quadratic model holds, 0 elsewhere (CAPO, 2510.00819).

    With drift = v·u and spread = u^T(diag pi - pi pi^T)u from curvature.py, u the logits' change under that step:
    m_F = drift^2/2 < fisher and |m_H| = |A·(drift + (drift^2 - spread)/2)| < hessian. As in the authors' code, masked
    tokens leave the denominators; unlike there, so does a completion that has none left.
    """
    drift, spread = tokens.aux["drift"], tokens.aux["spread"]
    change = tokens.advantages * (drift + 0.5 * (jnp.square(drift) - spread))
    keep = (0.5 * jnp.square(drift) < fisher) & (jnp.abs(change) < hessian)
    return keep.astype(tokens.mask.dtype)


def _gap(tokens: tokens_lib.Tokens) -> jax.Array:
    """o - q, clipped to ±20, without gradient."""
    gap = tokens.batch.old_logprobs - tokens.batch.sampler_logprobs
    return jax.lax.stop_gradient(tokens_lib.bound(gap, -tokens_lib.MAX_LOG_RATIO, tokens_lib.MAX_LOG_RATIO))
