"""PPO with a value head: generalised advantage estimation on the host, the value loss per token in the graph."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from lanpo_jax.objectives import marks, pooled
from lanpo_jax.objectives import tokens as tokens_lib


def estimate(
    rewards: np.ndarray, values: np.ndarray, mask: np.ndarray, *, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns of every token, [.., T] each, by GAE (arXiv 1506.02438).

    delta_t = r_t + gamma·V_{t+1} - V_t; A_t = delta_t + gamma·lam·A_{t+1}; return = A + V. "Next" is the next *valid*
    token: masked ones (feedback in the middle, padding) are stepped over. The episode ends after the last one.
    """
    valid = np.asarray(mask) != 0
    rewards, values = (np.where(valid, x, 0.0).astype(np.float64) for x in (rewards, values))
    advantages = np.zeros_like(values)
    next_value = next_advantage = np.zeros(values.shape[:-1])
    for t in reversed(range(values.shape[-1])):
        delta = rewards[..., t] + gamma * next_value - values[..., t]
        advantages[..., t] = delta + gamma * lam * next_advantage
        next_value = np.where(valid[..., t], values[..., t], next_value)
        next_advantage = np.where(valid[..., t], advantages[..., t], next_advantage)
    return np.where(valid, advantages, 0.0), np.where(valid, advantages + values, 0.0)


def whiten(x: np.ndarray, mask: np.ndarray, *, eps: float = 1e-8) -> np.ndarray:
    """(x - mean)/sqrt(variance + eps) over the valid tokens, variance with n - 1 as in verl; 0 where masked."""
    valid = np.asarray(mask) != 0
    if not valid.any():
        return np.zeros_like(x)
    count, mean = valid.sum(), x[valid].mean()
    variance = ((x[valid] - mean) ** 2).sum() / max(count - 1, 1)
    return np.where(valid, (x - mean) / np.sqrt(variance + eps), 0.0)


def token_rewards(rewards: np.ndarray, mask: np.ndarray, dense: np.ndarray | None = None) -> np.ndarray:
    """The completion's reward on its last valid token, plus a dense part [.., T] such as -beta·KL."""
    valid = np.asarray(mask) != 0
    last = valid & (np.cumsum(valid, axis=-1) == valid.sum(-1, keepdims=True))
    sparse = np.where(last, np.asarray(rewards, np.float64)[..., None], 0.0)
    return sparse if dense is None else sparse + np.where(valid, dense, 0.0)


def none(tokens: tokens_lib.Tokens) -> tuple[jax.Array, dict[str, pooled.Pooled]]:
    """No value head."""
    return jnp.zeros_like(tokens.mask), {}


@marks.needs("values")
def squared(
    tokens: tokens_lib.Tokens, *, coefficient: float = 0.1, clip: float = 0.2
) -> tuple[jax.Array, dict[str, pooled.Pooled]]:
    """coefficient·max((V - R)^2, (V clipped to V_old ± clip - R)^2)/2 per token, V = aux["values"] (PPO).

    Defaults are those of TRL's PPO (vf_coef .1, cliprange_value .2); verl trains a separate critic with clip .5.
    """
    value, old, target = tokens.aux["values"], tokens.batch.old_values, tokens.batch.returns
    bounded = tokens_lib.bound(value, old - clip, old + clip)
    plain, clipped = jnp.square(value - target), jnp.square(bounded - target)
    loss = 0.5 * jnp.maximum(plain, clipped)
    metrics = {
        "critic/vf_loss": pooled.mean(loss, tokens.mask),
        "critic/vf_clipfrac": pooled.mean(clipped > plain, tokens.mask),
        "critic/values": pooled.mean(value, tokens.mask),
        "critic/returns": pooled.mean(target, tokens.mask),
    }
    return coefficient * loss, metrics
