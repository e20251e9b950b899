"""The cache of a rollout and attention of one new token over it.

It has three parts. Prompts are kept once for all of their completions. Completions lie in pages of BLOCK tokens that
rows own by a table, so a short row holds few. The tokens of the present chunk of steps, which all rows add in the same
place, are apart and go to the pages at its end: a row only ever starts a chunk at a multiple of the chunk's length, so
what lies where follows from the row's own length, and with it every rounding.

Rows, prompts and pages may be split over devices; every index counts within its device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lanpo_jax.models.attention import MASKED

BLOCK = 64  # tokens in a page
ROWS = 16  # rows that go through their pages together: as many blocks as the longest of them has


class Pair(NamedTuple):
    """Keys [.., K, H, S] and values [.., K, S, H] of one layer: both products of a decode step read contiguously.

    The leading axis is prompts P, pages N (S is BLOCK) or rows R (S is the chunk's steps).
    """

    keys: jax.Array
    values: jax.Array


class View(NamedTuple):
    """Who stands where, the same for all layers. A prompt has W places for rows that complete it."""

    place: jax.Array  # int32 [R]: the row's place among the P·W
    row: jax.Array  # int32 [P·W]: the row in each place; any row for an empty one
    prompt_lengths: jax.Array  # int32 [P]
    stored: jax.Array  # int32 [R]: the row's tokens in pages
    pages: jax.Array  # int32 [R, n]: the row's pages, in order
    step: jax.Array  # []: steps done in this chunk


class Part(NamedTuple):
    """Attention over some of the keys, to be merged with that over others: float32 [.., 1], [.., 1], [.., H]."""

    top: jax.Array  # the largest score
    total: jax.Array  # sum of exp(score - top)
    out: jax.Array  # sum of exp(score - top) · value


def pair(k: jax.Array, v: jax.Array) -> Pair:
    """Keys and values [P, S, K, H] of whole rows in the cache's layout."""
    return Pair(k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3))


def empty(count: int, kv_heads: int, size: int, tokens: int, dtype: Any) -> Pair:
    """Zeros for `count` prompts, pages or rows of so many tokens."""
    return Pair(
        jnp.zeros((count, kv_heads, size, tokens), dtype),
        jnp.zeros((count, kv_heads, tokens, size), dtype),
    )


def pick(x: jax.Array, index: jax.Array, devices: int) -> jax.Array:
    """x[index] along axis 0 of both, where each device's part of the index counts within its part of x."""
    if devices == 1:
        return x.at[index].get(mode="promise_in_bounds")
    parts = x.reshape(devices, -1, *x.shape[1:])
    found = jax.vmap(lambda part, i: part.at[i].get(mode="promise_in_bounds"))(parts, index.reshape(devices, -1))
    return found.reshape(len(index), *x.shape[1:])


def put(x: jax.Array, index: jax.Array, values: jax.Array, devices: int) -> jax.Array:
    """x with values [m, ..] at `index` [m] of axis 0, within each device; indices past the end are left out."""
    if devices == 1:
        return x.at[index].set(values, mode="drop")
    split = [a.reshape(devices, -1, *a.shape[1:]) for a in (x, index, values)]
    return jax.vmap(lambda part, i, v: part.at[i].set(v, mode="drop"))(*split).reshape(x.shape)


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, prompts: Pair, pages: Pair, recent: Pair, view: View, devices: int
) -> tuple[jax.Array, Pair]:
    """q [R, N, H] of each row's new token (its k, v [R, K, H] are added first) over all it may see -> [R, N, H]."""
    rows, heads, size = q.shape
    recent = Pair(
        jax.lax.dynamic_update_slice_in_dim(recent.keys, k[..., None], view.step, axis=3),
        jax.lax.dynamic_update_slice_in_dim(recent.values, v[:, :, None], view.step, axis=2),
    )
    q = (q * size**-0.5).reshape(rows, k.shape[1], -1, size)
    part = _over_prompts(q, prompts, view, devices)
    part = _over_pages(q, pages, view, part, devices)
    part = _merge(part, _over(q, recent, jnp.arange(recent.keys.shape[-1]) <= view.step))
    return (part.out / part.total).astype(q.dtype).reshape(rows, heads, size), recent


def _over(q: jax.Array, memory: Pair, mask: jax.Array) -> Part:
    """q [B, K, M, H] over keys of the same leading axes, where the mask [.., S] is true."""
    scores = jnp.einsum("bkmh,bkhs->bkms", q, memory.keys, preferred_element_type=jnp.float32)
    scores = jnp.where(mask, scores, MASKED)
    top = scores.max(-1, keepdims=True)
    weights = jnp.exp(scores - top)
    out = jnp.einsum("bkms,bksh->bkmh", weights.astype(q.dtype), memory.values, preferred_element_type=jnp.float32)
    return Part(top, weights.sum(-1, keepdims=True), out)


def _merge(a: Part, b: Part) -> Part:
    """A `b` that saw nothing (all MASKED) leaves `a` as it is, to the bit."""
    top = jnp.maximum(a.top, b.top)
    x, y = jnp.exp(a.top - top), jnp.exp(b.top - top)
    return Part(top, a.total * x + b.total * y, a.out * x + b.out * y)


def _over_prompts(q: jax.Array, prompts: Pair, view: View, devices: int) -> Part:
    """Each prompt is read once for all of its rows: their queries go to its places, and the results back."""
    count, length = len(prompts.keys), prompts.keys.shape[-1]
    _, kv_heads, share, size = q.shape
    places = len(view.row) // count
    q = pick(q, view.row, devices).reshape(count, places, kv_heads, share, size)
    q = q.transpose(0, 2, 1, 3, 4).reshape(count, kv_heads, places * share, size)
    mask = jnp.arange(length) < view.prompt_lengths[:, None, None, None]

    def to_rows(x: jax.Array) -> jax.Array:
        x = x.reshape(count, kv_heads, places, share, -1).transpose(0, 2, 1, 3, 4)
        return pick(x.reshape(count * places, kv_heads, share, -1), view.place, devices)

    return Part(*(to_rows(x) for x in _over(q, prompts, mask)))


def _over_pages(q: jax.Array, pages: Pair, view: View, part: Part, devices: int) -> Part:
    """Some rows at a time, through as many of their pages as the longest of them has: the sampler sorts them."""
    rows = len(q) // devices
    size = ROWS if rows % ROWS == 0 else rows

    def split(x: jax.Array) -> jax.Array:  # [R, ..] -> [R/size, size, ..], with `size` rows of every device together
        return jnp.moveaxis(x.reshape(devices, rows // size, size, *x.shape[1:]), 0, 1).reshape(
            rows // size, devices * size, *x.shape[1:]
        )

    def join(x: jax.Array) -> jax.Array:
        x = x.reshape(rows // size, devices, size, *x.shape[2:])
        return jnp.moveaxis(x, 0, 1).reshape(len(q), *x.shape[3:])

    def some(values: tuple) -> Part:
        q, stored, table, part = values

        def block(i: jax.Array, part: Part) -> Part:
            index = jax.lax.dynamic_index_in_dim(table, i, axis=1, keepdims=False)
            mask = i * BLOCK + jnp.arange(BLOCK) < stored[:, None, None, None]
            return _merge(part, _over(q, Pair(*(pick(x, index, devices) for x in pages)), mask))

        return jax.lax.fori_loop(0, (jnp.max(stored) + BLOCK - 1) // BLOCK, block, part)

    found = jax.lax.map(some, jax.tree.map(split, (q, view.stored, view.pages, part)))
    return Part(*map(join, found))


def store(pages: Pair, recent: Pair, view: View, live: jax.Array, devices: int) -> Pair:
    """The pages with the chunk's tokens of live rows added; each lies within one page, as BLOCK % chunk == 0."""
    chunk = recent.keys.shape[-1]
    page = jnp.take_along_axis(view.pages, (view.stored // BLOCK)[:, None], axis=1, mode="clip")[:, 0]
    page = jnp.where(live, page, len(pages.keys))
    columns = (view.stored % BLOCK)[:, None] + jnp.arange(chunk)

    def write(pages: Pair, page: jax.Array, columns: jax.Array, recent: Pair) -> Pair:
        return Pair(
            pages.keys.at[page[:, None], :, :, columns].set(recent.keys.transpose(0, 3, 1, 2), mode="drop"),
            pages.values.at[page[:, None], :, columns].set(recent.values.transpose(0, 2, 1, 3), mode="drop"),
        )

    if devices == 1:
        return write(pages, page, columns, recent)
    split = jax.tree.map(lambda x: x.reshape(devices, -1, *x.shape[1:]), (pages, page, columns, recent))
    return jax.tree.map(lambda x, like: x.reshape(like.shape), jax.vmap(write)(*split), pages)
