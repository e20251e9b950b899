"""Attention over whole rows; that of one new token over its cache is in `cache`.

Rows carry segments: 0 padding, 1 a prompt, 2 and up the completions of that prompt; a second document in the same row
adds DOCUMENT to its numbers, a third twice that. A token sees the tokens at or before it that belong to its own segment
or to its document's prompt. So one row may hold a prompt once and several completions of it side by side, and none of
them sees another; a row with one completion is the ordinary causal case.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

PADDING, PROMPT, FIRST_COMPLETION, DOCUMENT = 0, 1, 2, 4096
QUERY_BLOCK, MAX_BLOCKS = 128, 16
MASKED = -1e30  # finite: a row that sees nothing gets uniform weights, never NaN


def visible(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Which keys each query sees: segments [B, L] of the last L of S tokens, and [B, S] of all -> bool [B, L, S]."""
    length, total = queries.shape[-1], keys.shape[-1]
    query, key = queries[:, :, None], keys[:, None, :]
    before = jnp.arange(total - length, total)[:, None] >= jnp.arange(total)[None, :]
    prompt = (key % DOCUMENT == PROMPT) & (key // DOCUMENT == query // DOCUMENT)
    return before & (key != PADDING) & (prompt | (key == query))


def full(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
    """softmax(q k / sqrt(H)) v over a row: q [B, L, N, H], k and v [B, S, K, H], segments [B, L] -> [B, L, N, H].

    Keys before the row's own (S > L) are a past that all of it sees, a prompt's beginning. Queries go in a few blocks,
    each against the keys up to its end: half of the score matrix is never computed.
    """
    length, past = q.shape[1], k.shape[1] - q.shape[1]
    keys = jnp.pad(segments, ((0, 0), (past, 0)), constant_values=PROMPT)
    block = max(QUERY_BLOCK, -(-length // MAX_BLOCKS))
    parts = []
    for start in range(0, length, block):
        end = min(start + block, length)
        mask = visible(segments[:, start:end], keys[:, : past + end])
        parts.append(_block(q[:, start:end], k[:, : past + end], v[:, : past + end], mask))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)


def _block(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention of some queries [B, L, N, H] over keys [B, S, K, H] where mask [B, L, S]."""
    batch, length, heads, size = q.shape
    kv_heads = k.shape[2]
    q = (q * size**-0.5).reshape(batch, length, kv_heads, heads // kv_heads, size)
    scores = jnp.einsum("blkgh,bskh->bkgls", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores, MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bkgls,bskh->blkgh", weights, v).reshape(batch, length, heads, size)
