"""The compiled programs of the sampler: prompts into their slots, a chunk of steps for all rows, the hand-over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lanpo_jax import sharding
from lanpo_jax.models import attention, cache, packed, qwen
from lanpo_jax.sampling import choose

hand_over = jax.jit(packed.pack, static_argnames=("config", "dtype", "fuse", "whole"))


class Rows(NamedTuple):
    """What `decode` knows of each row, [R] each."""

    token: jax.Array  # int32: drawn last, the next input
    position: jax.Array  # int32: its place in the whole row
    drawn: jax.Array  # int32: tokens so far
    limit: jax.Array  # int32
    live: jax.Array  # bool
    keys: jax.Array  # uint32 [R, 2]
    temperature: jax.Array  # float32


class Chunk(NamedTuple):
    """The state of `decode`'s loop. Row b's first `count[b]` tokens are its own; what follows them is junk."""

    step: jax.Array  # []
    token: jax.Array  # int32 [R]
    tokens: jax.Array  # int32 [R, C]
    logprobs: jax.Array  # float32 [R, C]
    count: jax.Array  # int32 [R]
    live: jax.Array  # bool [R]
    recent: Any


@functools.partial(jax.jit, static_argnames=("config", "chunk", "devices"), donate_argnames="pages")
def decode(weights, prompts, pages, rows, view, used, eos_ids, cut, *, config, chunk, devices):
    """At most C = `chunk` tokens for each live row.

    `prompts` and `pages` are the caches of every layer, rows a `Rows`, view a `cache.View`, used [P'] the slots of the
    prompts that the view speaks of, eos_ids [E], cut a `choose.Cut`.
    Returns pages, tokens int32 [R, C], logprobs float32 [R, C], count int32 [R].
    """
    keys = jax.random.wrap_key_data(rows.keys, impl="threefry2x32")
    if len(used) < jax.tree.leaves(prompts)[0].shape[-4]:
        prompts = _every_layer(config, lambda p: jax.tree.map(lambda x: cache.pick(x, used, devices), p), prompts)
    size = len(rows.token), config.kv_heads, config.head_size, chunk, config.dtype
    recent = _every_layer(config, lambda _: cache.empty(*size), prompts)

    def step(state: Chunk) -> Chunk:
        memory = (prompts, pages, state.recent, view._replace(step=state.step))
        hidden, recent = packed.step(config, weights, state.token, rows.position + state.step, memory, devices)
        with jax.named_scope("choose"):
            drawn = rows.drawn + state.step
            now = jax.vmap(jax.random.fold_in)(keys, drawn)
            token, logprob = choose.choose(packed.logits(weights, hidden), now, rows.temperature, cut)
        ended = jnp.any(token[:, None] == eos_ids, axis=-1) | (drawn + 1 >= rows.limit)
        return Chunk(
            step=state.step + 1,
            token=token,
            tokens=jax.lax.dynamic_update_slice_in_dim(state.tokens, token[:, None], state.step, axis=1),
            logprobs=jax.lax.dynamic_update_slice_in_dim(state.logprobs, logprob[:, None], state.step, axis=1),
            count=state.count + state.live,
            live=state.live & ~ended,
            recent=recent,
        )

    zeros = jnp.zeros((len(rows.token), chunk), jnp.int32)
    state = Chunk(
        jnp.int32(0), rows.token, zeros, zeros.astype(jnp.float32), jnp.zeros_like(rows.drawn), rows.live, recent
    )
    state = jax.lax.while_loop(lambda s: (s.step < chunk) & jnp.any(s.live), step, state)
    keep = functools.partial(cache.store, view=view, live=state.live, devices=devices)
    pages = _every_layer(config, keep, pages, state.recent)
    return pages, state.tokens, state.logprobs, state.count


@functools.partial(jax.jit, static_argnames=("config", "devices"), donate_argnames="prompts")
def admit(weights, prompts, common, tokens, lengths, places, keys, temperature, cut, *, config, devices):
    """Computes F prompts into the slots `places` [F] (past the end: nowhere) and draws G first tokens for each.

    common int32 [devices, C]: what all prompts begin with, the same row for each device; tokens int32 [F, S] their
    rests, padded on the right, of lengths [F]; keys uint32 [F, G, 2]; temperature [F].
    Returns prompts, tokens int32 [F, G], logprobs float32 [F, G].
    """
    logits, memory = prefill(weights, common, tokens, lengths, config=config)
    group = keys.shape[1]
    keys = jax.random.wrap_key_data(keys.reshape(-1, 2), impl="threefry2x32")
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, 0)
    drawn, logprobs = choose.choose(jnp.repeat(logits, group, axis=1), keys, jnp.repeat(temperature, group), cut)

    def write(kept: cache.Pair, new: tuple) -> cache.Pair:
        return cache.Pair(*(cache.put(x, places, y, devices) for x, y in zip(kept, cache.pair(*new))))

    return _every_layer(config, write, prompts, memory), drawn.reshape(-1, group), logprobs.reshape(-1, group)


def prefill(weights, common, tokens, lengths, *, config):
    """The logits of each prompt's last position float32 [V, F] and every layer's (k, v) [F, C + S, K, H].

    What all prompts begin with (few-shot examples, say) is computed once, and each prompt goes on from there.
    """
    past = None
    if start := common.shape[1]:
        _, past = packed.rows(config, weights, common, 0, jnp.full_like(common, attention.PROMPT))
        past = jax.tree.map(lambda x: jnp.repeat(x, len(tokens) // len(common), axis=-4), past)
    columns = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    segments = jnp.where(columns < lengths[:, None], attention.PROMPT, attention.PADDING)
    hidden, memory = packed.rows(config, weights, tokens, start, segments, past)
    last = jnp.take_along_axis(hidden.reshape(-1, *tokens.shape), (lengths - 1)[None, :, None], axis=2)[..., 0]
    return packed.logits(weights, last), memory


@functools.partial(jax.jit, static_argnames="config")
def next_token(weights, common, tokens, lengths, ids, *, config):
    """P(next token is ids[j]) after each prompt, over the whole vocabulary at temperature 1 -> float32 [F, ids].

    Shapes as in `admit`; the caches go unused and are not computed.
    """
    logits, _ = prefill(weights, common, tokens, lengths, config=config)
    return jax.nn.softmax(logits, axis=0)[ids].T


@functools.partial(jax.jit, static_argnames=("count", "tokens", "config"))
def zeros(count: int, tokens: int, *, config: qwen.ModelConfig) -> Any:
    """The empty cache of every layer, for so many prompts or pages."""
    one = cache.empty(count, config.kv_heads, config.head_size, tokens, config.dtype)
    one = jax.tree.map(lambda x: sharding.constrain(x, "batch", "heads", None, None), one)
    if config.scan_layers:
        stack = jax.tree.map(lambda x: jnp.broadcast_to(x, (config.layers, *x.shape)), one)
        return jax.tree.map(lambda x: sharding.constrain(x, "layers", "batch", "heads", None, None), stack)
    return (one,) * config.layers


def _every_layer(config: qwen.ModelConfig, f: Callable, *memory: Any) -> Any:
    """f over the layers' parts of some caches."""
    return jax.vmap(f)(*memory) if config.scan_layers else tuple(map(f, *memory))
