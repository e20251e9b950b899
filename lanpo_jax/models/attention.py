"""Attention in two forms: over a whole row, and of one new token over its cache.

Rows carry segments: 0 padding, 1 a prompt, 2 and up the completions of that prompt; a second document in the same row
adds DOCUMENT to its numbers, a third twice that. A token sees the tokens at or before it that belong to its own segment
or to its document's prompt. So one row may hold a prompt once and several completions of it side by side, and none of
them sees another; a row with one completion is the ordinary causal case.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

PADDING, PROMPT, FIRST_COMPLETION, DOCUMENT = 0, 1, 2, 4096
QUERY_BLOCK, MAX_BLOCKS = 128, 16
MASKED = -1e30  # finite: a row that sees nothing gets uniform weights, never NaN


class LayerCache(NamedTuple):
    """Keys and values of one layer. Prompts are stored once for their G completions.

    Keys are kept [.., H, S] and values [.., S, H]: so both products of a decode step read them contiguously.
    """

    prompt_keys: jax.Array  # [P, K, H, S]
    prompt_values: jax.Array  # [P, K, S, H]
    keys: jax.Array  # [B, K, H, T]
    values: jax.Array  # [B, K, T, H]


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


def start_cache(k: jax.Array, v: jax.Array, group: int, new_tokens: int) -> LayerCache:
    """The cache after a prefill: k and v [P, S, K, H] of the prompts, room for `new_tokens` of P·G completions."""
    prompts, _, kv_heads, size = k.shape
    rows = prompts * group
    return LayerCache(
        prompt_keys=k.transpose(0, 2, 3, 1),
        prompt_values=v.transpose(0, 2, 1, 3),
        keys=jnp.zeros((rows, kv_heads, size, new_tokens), k.dtype),
        values=jnp.zeros((rows, kv_heads, new_tokens, size), v.dtype),
    )


def cached(
    q: jax.Array, k: jax.Array, v: jax.Array, cache: LayerCache, prompt_lengths: jax.Array, index: jax.Array
) -> tuple[jax.Array, LayerCache]:
    """One decode step: q [B, N, H] of completion token `index` (its k, v [B, K, H] are stored first) -> [B, N, H].

    Scores against the prompt are one product per prompt for all its completions; the softmax runs over both parts.
    """
    rows, heads, size = q.shape
    prompts, kv_heads = cache.prompt_keys.shape[:2]
    group, share = rows // prompts, heads // kv_heads
    cache = cache._replace(
        keys=jax.lax.dynamic_update_slice_in_dim(cache.keys, k[..., None], index, axis=3),
        values=jax.lax.dynamic_update_slice_in_dim(cache.values, v[:, :, None], index, axis=2),
    )
    q = (q * size**-0.5).reshape(prompts, group, kv_heads, share, size)
    by_prompt = q.transpose(0, 2, 1, 3, 4).reshape(prompts, kv_heads, group * share, size)
    far = jnp.einsum("pkqh,pkhs->pkqs", by_prompt, cache.prompt_keys, preferred_element_type=jnp.float32)
    own = q.reshape(rows, kv_heads, share, size)
    near = jnp.einsum("bkqh,bkht->bkqt", own, cache.keys, preferred_element_type=jnp.float32)

    far = jnp.where(jnp.arange(far.shape[-1]) < prompt_lengths[:, None, None, None], far, MASKED)
    near = jnp.where(jnp.arange(near.shape[-1]) <= index, near, MASKED)
    near = near.reshape(prompts, group, kv_heads, share, -1).transpose(0, 2, 1, 3, 4)
    near = near.reshape(prompts, kv_heads, group * share, -1)
    top = jnp.maximum(far.max(-1, keepdims=True), near.max(-1, keepdims=True))
    far, near = jnp.exp(far - top), jnp.exp(near - top)
    total = far.sum(-1, keepdims=True) + near.sum(-1, keepdims=True)

    far = jnp.einsum("pkqs,pksh->pkqh", (far / total).astype(v.dtype), cache.prompt_values)
    far = far.reshape(prompts, kv_heads, group, share, size).transpose(0, 2, 1, 3, 4)
    near = (near / total).astype(v.dtype).reshape(prompts, kv_heads, group, share, -1).transpose(0, 2, 1, 3, 4)
    near = jnp.einsum("bkqt,bkth->bkqh", near.reshape(rows, kv_heads, share, -1), cache.values)
    return far.reshape(rows, heads, size) + near.reshape(rows, heads, size), cache
