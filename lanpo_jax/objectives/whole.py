"""Losses that are no sum over tokens: they replace ratio, surrogate and aggregate and return (sum, weight, metrics)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lanpo_jax.objectives import marks, pooled
from lanpo_jax.objectives import tokens as tokens_lib


def none(tokens: tokens_lib.Tokens) -> None:
    """The loss is composed of the other slots."""


@marks.needs("ref", "preference")
def trpa(
    tokens: tokens_lib.Tokens, *, beta: float = 0.1, boost: float = 2.5, top: float = 1.0, kl: float = 1e-3
) -> tuple[jax.Array, jax.Array, dict[str, pooled.Pooled]]:
    """Preference pairs inside each group (TRPA, arXiv 2504.04524), averaged over the prompts of the mini-batch.

    With l_i = mean over t of log pi/pi_ref and batch.level the preference level of a completion: per prompt the mean
    over pairs (i above j) of -log sigmoid(m·beta·(l_i - l_j)), m = `boost` where i is at level `top` or above and 1
    elsewhere, plus `kl` times the mean over completions of mean_t k3(pi, pi_old). Groups (batch.group) must not be cut
    by a micro-batch: pairs across the cut would be lost.

    beta, boost and kl are those of the public code. There pairs and tokens are pooled over a micro-batch, which makes
    the loss depend on the cut, and a batch without any pair is pushed towards or away from the reference; here a prompt
    without pairs has only its k3.
    """
    batch, mask = tokens.batch, tokens.mask
    present = jnp.any(mask > 0, axis=-1)
    same = (batch.group[:, None] == batch.group[None, :]) & present[:, None] & present[None, :]
    drift = tokens_lib.row_mean(tokens.logprobs - batch.ref_logprobs, mask)[:, 0]
    level = jnp.where(present, batch.level, 0)  # a padding row may hold anything
    above = same & (level[:, None] > level[None, :])
    strength = jnp.where(level >= top, boost, 1.0)[:, None] * beta
    losses = jnp.where(above, -jax.nn.log_sigmoid(strength * (drift[:, None] - drift[None, :])), 0.0)

    size = jnp.maximum(jnp.sum(same, axis=-1), 1)  # completions of each row's group
    pairs = jnp.maximum(jnp.sum(same * jnp.sum(above, axis=-1)[None, :], axis=-1), 1)  # pairs of each row's group
    k3 = tokens_lib.row_mean(jnp.expm1(-tokens.delta) + tokens.delta, mask)[:, 0]
    preference = jnp.sum(losses / pairs[:, None])
    total = preference + kl * jnp.sum(jnp.where(present, k3 / size, 0.0))
    prompts = jnp.sum(jnp.where(present, 1.0 / size, 0.0))
    metrics = {
        "actor/pg_loss": pooled.Mean(preference, prompts),
        "actor/ppo_kl": pooled.mean(-tokens.delta, mask),
        "actor/preference_accuracy": pooled.mean(drift[:, None] > drift[None, :], above.astype(mask.dtype)),
    }
    return total, prompts, metrics
