"""What a loss is computed from: one micro-batch of B completions, made safe against whatever lies under the mask.

Arrays are [B, T] and indexed by token. Masked entries may hold junk, -inf or NaN: `prepare` replaces them before any
arithmetic, because in JAX a `where` around a loss does not stop a NaN in its gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

MAX_LOG_RATIO = 20.0  # exp(20) = 5e8: far outside any trust region, yet finite in float32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """The data of B completions; a field that the objective does not need may be None."""

    mask: jax.Array  # [B, T]: 1 on sampled tokens, the end-of-sequence token included
    advantages: jax.Array  # [B] or [B, T]
    old_logprobs: jax.Array | None = None  # [B, T] trainer's, before the first update; None: exactly on-policy
    ref_logprobs: jax.Array | None = None  # [B, T]
    pinned: jax.Array | None = None  # [B] bool: exactly on-policy whatever `old_logprobs` holds; None: none is
    sampler_logprobs: jax.Array | None = None  # [B, T]
    truncated: jax.Array | None = None  # [B] bool: reached the token limit without an end-of-sequence token
    selected: jax.Array | None = None  # [B, T] bool: tokens picked over the whole mini-batch (selections.py)
    group: jax.Array | None = None  # [B] int: completions of one prompt share a number
    level: jax.Array | None = None  # [B]: preference level of a completion (TRPA)
    old_values: jax.Array | None = None  # [B, T]: value head before the first update
    returns: jax.Array | None = None  # [B, T]: targets of the value head
    old_vocab_mean: jax.Array | None = None  # [B, T]: mean over the vocabulary of the old log-probabilities (ROVER)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A batch after `prepare`: every [B, T] array is 0 where the mask is 0, advantages are [B, T]."""

    batch: Batch
    logprobs: jax.Array  # [B, T]: the only path of the policy's gradient
    aux: Mapping[str, jax.Array]  # [B, T] each: "entropy", "values", "vocab_mean", "drift", "spread"
    state: Mapping[str, jax.Array]  # scalars of a stateful method

    @property
    def mask(self) -> jax.Array:
        return self.batch.mask

    @property
    def advantages(self) -> jax.Array:
        return self.batch.advantages

    @property
    def position(self) -> jax.Array:
        """Number of valid tokens up to and including each, [B, T]: the t of formulas that count from 1."""
        return jnp.cumsum(self.mask, axis=-1)

    @property
    def delta(self) -> jax.Array:
        """log pi - log pi_old, [B, T], clipped to ±20; exactly 0 with gradient 1 when the batch is on-policy."""
        return bound(self.logprobs - self.batch.old_logprobs, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def prepare(
    logprobs: jax.Array,
    batch: Batch,
    aux: Mapping[str, jax.Array] | None = None,
    state: Mapping[str, jax.Array] | None = None,
) -> Tokens:
    """Zeroes what is masked, spreads [B] advantages over tokens, and fills in old = stop_gradient(current)."""
    valid = batch.mask != 0

    def tidy(array: jax.Array) -> jax.Array:
        return jnp.where(valid, array, 0) if jnp.ndim(array) == 2 else array

    advantages = jnp.asarray(batch.advantages)
    advantages = advantages if advantages.ndim == 2 else jnp.broadcast_to(advantages[:, None], valid.shape)
    batch = dataclasses.replace(batch, mask=valid.astype(logprobs.dtype), advantages=advantages)
    batch = jax.tree.map(tidy, batch)
    logprobs = tidy(logprobs)
    if batch.old_logprobs is None or batch.pinned is not None:
        old = jax.lax.stop_gradient(logprobs)
        if batch.old_logprobs is not None:
            old = jnp.where(batch.pinned[:, None], old, batch.old_logprobs)
        batch = dataclasses.replace(batch, old_logprobs=old)
    return Tokens(batch, logprobs, {name: tidy(array) for name, array in (aux or {}).items()}, state or {})


def bound(x: jax.Array, low: jax.Array | float, high: jax.Array | float) -> jax.Array:
    """Clips to [low, high] with gradient 1 at the bounds themselves, as torch.clamp (jnp.clip gives 1/2 there)."""
    return jnp.where(x < low, low, jnp.where(x > high, high, x))


def row_mean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean over the valid tokens of each row, [B, T] -> [B, 1]; 0 for a row without any."""
    return jnp.sum(x * mask, axis=-1, keepdims=True) / jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
