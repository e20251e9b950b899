"""The metrics of an update, from masked sums: the names users search for, each defined here once.

l current, o old, q sampler, f reference log-probabilities; all means run over the valid tokens of the mini-batch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lanpo_jax.objectives import pooled, surrogates
from lanpo_jax.objectives import tokens as tokens_lib


def actor(tokens: tokens_lib.Tokens, log_ratio: jax.Array, loss: surrogates.Loss) -> dict[str, pooled.Pooled]:
    """Clip fractions, mean and extreme weights, mean o - l, mean (w-1)^2."""
    mask, ratio = tokens.mask, jnp.exp(log_ratio)
    return {
        "actor/pg_clipfrac": pooled.mean(loss.high | loss.low, mask),
        "actor/pg_clipfrac_high": pooled.mean(loss.high, mask),
        "actor/pg_clipfrac_low": pooled.mean(loss.low, mask),
        "actor/pg_clipfrac_lower": pooled.mean(loss.lower, mask),
        "actor/ppo_kl": pooled.mean(-tokens.delta, mask),
        "actor/ratio": pooled.mean(ratio, mask),
        "actor/ratio_max": pooled.largest(ratio, mask),
        "actor/ratio_min": pooled.smallest(ratio, mask),
        "actor/ratio_variance": pooled.mean(jnp.square(ratio - 1), mask),
    }


def entropy(tokens: tokens_lib.Tokens) -> dict[str, pooled.Pooled]:
    """Mean entropy of the policy where the forward pass computed it."""
    if "entropy" not in tokens.aux:
        return {}
    return {"actor/entropy": pooled.mean(tokens.aux["entropy"], tokens.mask)}


def mismatch(tokens: tokens_lib.Tokens) -> dict[str, pooled.Pooled]:
    """How far the trainer's old log-probabilities are from the sampler's; {} without the sampler's.

    |o-q| mean and max; kl = mean(q-o); k3 = mean(exp(o-q) - (o-q) - 1); chi2 = mean exp(2(o-q)) - 1; ppl_ratio = mean
    over completions of exp(mean over t of q-o), the trainer's perplexity over the sampler's.
    """
    if tokens.batch.sampler_logprobs is None:
        return {}
    limit = tokens_lib.MAX_LOG_RATIO
    gap = tokens_lib.bound(tokens.batch.old_logprobs - tokens.batch.sampler_logprobs, -limit, limit)
    mask, rows = tokens.mask, jnp.any(tokens.mask > 0, axis=-1, keepdims=True).astype(tokens.mask.dtype)
    return {
        "mismatch/logp_abs_diff_mean": pooled.mean(jnp.abs(gap), mask),
        "mismatch/logp_abs_diff_max": pooled.largest(jnp.abs(gap), mask),
        "mismatch/kl": pooled.mean(-gap, mask),
        "mismatch/k3": pooled.mean(jnp.expm1(gap) - gap, mask),
        "mismatch/chi2": pooled.mean(jnp.expm1(2 * gap), mask),
        "mismatch/ppl_ratio": pooled.mean(jnp.exp(-tokens_lib.row_mean(gap, mask)), rows),
    }


def correction(weight: jax.Array, cap: float, mask: jax.Array) -> dict[str, pooled.Pooled]:
    """The truncated importance weights of the sampler's tokens: mean, maximum, effective share, share at the cap."""
    return {
        "is/mean": pooled.mean(weight, mask),
        "is/max": pooled.largest(weight, mask),
        "is/ess": pooled.effective(weight, mask),
        "is/frac_capped": pooled.mean(weight >= cap, mask),
    }
