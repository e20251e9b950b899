"""How per-token losses [B, T] become one number: as (sum, weight), where the weight comes from the mask alone.

The loss of a mini-batch is the sum of its micro-batches' sums over the sum of their weights: exact for any split,
which the average of micro-batch means is not. Rows without a valid token count nowhere, so padding rows are free.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lanpo_jax.objectives import tokens as tokens_lib


def token_mean(loss: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean over all valid tokens of the mini-batch (DAPO, arXiv 2503.14476)."""
    return jnp.sum(loss * mask), jnp.sum(mask)


def sequence_mean(loss: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean over each completion's tokens, then over completions with at least one token (GRPO, arXiv 2402.03300)."""
    return jnp.sum(tokens_lib.row_mean(loss, mask)), _rows(mask)


def constant(loss: jax.Array, mask: jax.Array, *, length: int) -> tuple[jax.Array, jax.Array]:
    """Sum over tokens / (completions · length), the length fixed for the run (Dr. GRPO, arXiv 2503.20783).

    Completions without a valid token are not counted, as in verl (TRL counts them): padding must not change a number.
    """
    return jnp.sum(loss * mask) / length, _rows(mask)


def sequence_sum(loss: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum over each completion's tokens, then mean over completions: long completions weigh more (LUSPO with GSPO)."""
    return jnp.sum(loss * mask), _rows(mask)


def _rows(mask: jax.Array) -> jax.Array:
    return jnp.sum(jnp.any(mask > 0, axis=-1)).astype(mask.dtype)
