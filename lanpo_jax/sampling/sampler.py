"""From prompts to completions: one prefill per prompt, its cache shared by the group, one compiled decode loop.

A program is compiled per shape (prompts, group, prompt length, new tokens), each rounded up to a bucket; temperature,
end-of-sequence ids, per-row limits and randomness are traced values. A row's randomness comes from the names of what
it is (seed, step, prompt key, sample number), so a completion does not depend on its neighbours or the batch.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from lanpo_jax import sharding
from lanpo_jax.models import attention, qwen
from lanpo_jax.sampling import choose
from lanpo_jax.types import Completion, Generation, Prompt


class Drawn(NamedTuple):
    """The loop's state. Row b's first `count[b]` tokens are its completion; what follows them is junk."""

    steps: jax.Array  # []: tokens drawn so far for every row
    tokens: jax.Array  # int32 [B, T]
    logprobs: jax.Array  # float32 [B, T]
    count: jax.Array  # int32 [B]
    live: jax.Array  # bool [B]: still going on
    cache: Any


@functools.partial(jax.jit, static_argnames=("config", "group", "new_tokens"))
def sample(params, common, prompts, lengths, keys, limits, temperature, eos_ids, *, config, group, new_tokens):
    """Completes P prompts G times each, at most T = `new_tokens` tokens.

    common int32 [devices, C]: what all prompts begin with, the same row for each device; prompts int32 [P, S] their
    rests, padded on the right, of lengths [P]; keys uint32 [B, 2]; limits [B] per row, 0 for rows that only fill the
    batch; temperature [B]; eos_ids [E]. Returns tokens int32 [B, T], logprobs float32 [B, T], count int32 [B].
    """
    rows = prompts.shape[0] * group
    keys = jax.random.wrap_key_data(keys, impl="threefry2x32")
    logits, cache = prefill(params, common, prompts, lengths, config=config, group=group, new_tokens=new_tokens)
    lengths = lengths + common.shape[1]
    apply = functools.partial(qwen.Decoder(config).apply, {"params": params})

    def draw(state: Drawn, logits: jax.Array, cache: Any) -> Drawn:
        with jax.named_scope("choose"):
            uniform = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, state.steps)))(keys)
            token, logprob = choose.choose(logits, uniform, temperature)
        count = state.count + state.live
        ended = jnp.any(token[:, None] == eos_ids, axis=-1) | (count >= limits)
        return Drawn(
            steps=state.steps + 1,
            tokens=jax.lax.dynamic_update_slice_in_dim(state.tokens, token[:, None], state.steps, axis=1),
            logprobs=jax.lax.dynamic_update_slice_in_dim(state.logprobs, logprob[:, None], state.steps, axis=1),
            count=count,
            live=state.live & ~ended,
            cache=cache,
        )

    def step(state: Drawn) -> Drawn:
        index = state.steps - 1  # the last drawn token is the input, stored at its own place in the cache
        token = jax.lax.dynamic_slice_in_dim(state.tokens, index, 1, axis=1)[:, 0]
        positions = jnp.repeat(lengths, group) + index
        hidden, cache = apply(token, positions, cache=state.cache, prompt_lengths=lengths, index=index)
        return draw(state, qwen.logits(params, hidden), cache)

    state = Drawn(
        steps=jnp.int32(0),
        tokens=jnp.zeros((rows, new_tokens), jnp.int32),
        logprobs=jnp.zeros((rows, new_tokens), jnp.float32),
        count=jnp.zeros(rows, jnp.int32),
        live=limits > 0,
        cache=None,
    )
    state = draw(state, jnp.repeat(logits, group, axis=0), cache)
    state = jax.lax.while_loop(lambda s: (s.steps < new_tokens) & jnp.any(s.live), step, state)
    return state.tokens, state.logprobs, state.count


def prefill(params, common, prompts, lengths, *, config, group, new_tokens):
    """The prompts' caches and the logits of each one's last position -> float32 [P, V], caches.

    What all prompts begin with (few-shot examples, say) is computed once, and each prompt goes on from there.
    """
    apply = functools.partial(qwen.Decoder(config).apply, {"params": params})
    start = common.shape[1]
    past = None
    if start:
        positions = jnp.broadcast_to(jnp.arange(start), common.shape)
        _, past = apply(common, positions, jnp.full_like(common, attention.PROMPT))
        past = jax.tree.map(lambda x: jnp.repeat(x, len(prompts) // len(common), axis=-4), past)
    positions = jnp.broadcast_to(jnp.arange(prompts.shape[1]), prompts.shape)
    segments = jnp.where(positions < lengths[:, None], attention.PROMPT, attention.PADDING)
    hidden, memory = apply(prompts, start + positions, segments, past)
    store = functools.partial(attention.start_cache, group=group, new_tokens=new_tokens)
    cache = jax.vmap(store)(*memory) if config.scan_layers else tuple(store(k, v) for k, v in memory)
    last = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)[:, 0]
    return qwen.logits(params, last), cache


@dataclasses.dataclass(frozen=True)
class Sampler:
    """The host side: takes requests, fills batches of at most `rows` completions, returns them in order."""

    config: qwen.ModelConfig
    tokenizer: Any
    mesh: Mesh
    rows: int  # completions decoded together
    prompt_bucket: int = 64  # prompt lengths are rounded up to multiples of it: fewer compiled programs
    token_bucket: int = 16
    share_from: int = 1024  # a common beginning is computed once if that saves this many tokens

    def __call__(
        self,
        params: Any,
        prompts: Sequence[Prompt],
        *,
        seed: int,
        step: int,
        temperature: float,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Generation]:
        """Completes every prompt `prompt.samples` times. One Generation per prompt, in order."""
        ids = [np.asarray(self.tokenizer.render(p.messages), np.int32) for p in prompts]
        results: list[Generation | None] = [None] * len(prompts)
        total, finished = sum(p.samples for p in prompts), 0
        for batch in self._batches(prompts, ids):
            group = prompts[batch[0]].samples
            for i, completions in zip(batch, self._run(params, prompts, ids, batch, seed, step, temperature)):
                text = self.tokenizer.decode(ids[i].tolist(), skip_special=False)
                results[i] = Generation(ids[i], text, tuple(completions))
            finished += len(batch) * group
            if progress:
                progress(finished, total)
        return results

    def _batches(self, prompts: Sequence[Prompt], ids: Sequence[np.ndarray]) -> list[list[int]]:
        """Indices of prompts with one group size and similar beginnings, at most `rows` completions a batch."""
        batches = []
        for group in sorted({p.samples for p in prompts}):
            # By their tokens: prompts that begin alike come together, and those are mostly of similar length.
            members = sorted((i for i, p in enumerate(prompts) if p.samples == group), key=lambda i: ids[i].tolist())
            size = max(1, self.rows // group)
            batches += [members[i : i + size] for i in range(0, len(members), size)]
        return batches

    def _run(self, params, prompts, ids, batch, seed, step, temperature) -> list[list[Completion]]:
        """One call of the compiled program, its shapes rounded up."""
        group = prompts[batch[0]].samples
        devices = sharding.batch_devices(self.mesh)
        count = min(_power_of_two(len(batch), 1), max(1, self.rows // group))
        count = _multiple(max(count, len(batch)), devices)
        common = self._common([ids[i] for i in batch])
        rests = [ids[i][len(common) :] for i in batch]
        length = _multiple(max(map(len, rests)), self.prompt_bucket)
        new_tokens = _multiple(max(prompts[i].max_new_tokens for i in batch), self.token_bucket)

        tokens = np.zeros((count, length), np.int32)
        lengths = np.ones(count, np.int32)
        limits = np.zeros((count, group), np.int32)
        temperatures = np.ones((count, group), np.float32)
        keys = np.zeros((count, group, 2), np.uint32)
        for row, (i, rest) in enumerate(zip(batch, rests)):
            tokens[row, : len(rest)], lengths[row] = rest, len(rest)
            limits[row] = prompts[i].max_new_tokens
            temperatures[row] = temperature if prompts[i].temperature is None else prompts[i].temperature
            keys[row] = [row_key(seed, step, prompts[i].key, g) for g in range(group)]
        put = functools.partial(sharding.to_device, self.mesh)
        eos = np.asarray(self.tokenizer.eos_ids, np.int32)
        with jax.set_mesh(self.mesh):
            out = sample(
                params,
                put(np.tile(common, (devices, 1)), "batch", None),
                put(tokens, "batch", None),
                put(lengths, "batch"),
                put(keys.reshape(-1, 2), "batch", None),
                put(limits.reshape(-1), "batch"),
                put(temperatures.reshape(-1), "batch"),
                put(eos),
                config=self.config,
                group=group,
                new_tokens=new_tokens,
            )
        drawn, logprobs, counts = (x.reshape(count, group, *x.shape[1:]) for x in sharding.to_host(out))
        return [
            [self._completion(drawn[r, g, : counts[r, g]], logprobs[r, g, : counts[r, g]]) for g in range(group)]
            for r in range(len(batch))
        ]

    def _common(self, ids: Sequence[np.ndarray]) -> np.ndarray:
        """What all prompts begin with, in whole buckets, short of any prompt's end; nothing where it saves little."""
        shortest = min(map(len, ids)) - 1
        same = np.all([i[:shortest] == ids[0][:shortest] for i in ids], axis=0)
        length = (shortest if same.all() else int(np.argmin(same))) // self.prompt_bucket * self.prompt_bucket
        return ids[0][: length if length * (len(ids) - 1) >= self.share_from else 0]

    def _completion(self, tokens: np.ndarray, logprobs: np.ndarray) -> Completion:
        ended = int(tokens[-1]) in self.tokenizer.eos_ids
        return Completion(tokens.copy(), logprobs.copy(), self.tokenizer.decode(tokens.tolist()), truncated=not ended)


def row_key(seed: int, step: int, key: str, sample: int) -> np.ndarray:
    """uint32 [2]: the random key of one completion, from what it is and not from where it stands in a batch."""
    name = f"{seed}/{step}/{key}/{sample}".encode()
    return np.frombuffer(hashlib.blake2b(name, digest_size=8).digest(), np.uint32)


def _multiple(n: int, of: int) -> int:
    return -(-n // of) * of


def _power_of_two(n: int, least: int) -> int:
    return max(least, 1 << (n - 1).bit_length())
