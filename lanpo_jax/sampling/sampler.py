"""From prompts to completions: rows that are never idle, filled from the waiting turns between chunks of steps.

Two programs do the work. `admit` computes some prompts into their slots and draws every completion's first token;
`decode` runs a chunk of steps for all rows. A program is compiled per shape; temperature, end-of-sequence ids, limits,
lengths and randomness are traced values. A row's randomness comes from the names of what it is (seed, step, prompt key,
sample number), so a completion depends neither on its neighbours nor on its row, order or refill.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from lanpo_jax import sharding
from lanpo_jax.models import cache, qwen
from lanpo_jax.sampling import choose, programs, slots
from lanpo_jax.types import Completion, Generation, Prompt


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The shapes of one call's programs: each is rounded up, so that calls share them."""

    rows: int  # R
    slots: int  # P
    places: int  # W: rows that one prompt may have at a time
    prefill: int  # F
    group: int  # G
    length: int  # S of the prompts' rests
    blocks: int  # pages of the longest row
    pages: int  # N


@dataclasses.dataclass(frozen=True)
class Sampler:
    """The host side: takes requests, keeps at most `rows` completions going, returns all in order."""

    config: qwen.ModelConfig
    tokenizer: Any
    mesh: Mesh
    rows: int  # completions decoded together
    prompt_bucket: int = 64  # prompt lengths are rounded up to multiples of it: fewer compiled programs
    chunk: int = 8  # steps between two looks at who is finished; divides cache.BLOCK
    share_from: int = 1024  # a common beginning is computed once if that saves this many tokens
    prefill_rows: int = 32  # prompts computed together where nothing is decoded
    prefill_tokens: int = 2048  # and where rows wait for them
    # Truncation makes the sampler another policy than the trainer's: log-probabilities stay those of the whole
    # distribution, and what was never drawn is never learnt about. Objectives with a truncated importance weight
    # correct rounding, not this; for evaluation it is harmless.
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()  # texts that end a completion, which keeps them
    cache_bytes: int = 0  # for prompts and completions on all devices; 0: as much as `rows` may need
    _held: dict = dataclasses.field(
        default_factory=dict, init=False, compare=False, repr=False
    )  # the last weights packed

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
        if not prompts:
            return []
        ids = [np.asarray(self.tokenizer.render(p.messages), np.int32) for p in prompts]
        turns = [_turns(i, p, ids[i], seed, step, temperature) for i, p in enumerate(prompts)]
        with jax.set_mesh(self.mesh):
            run = _Run(self, self.weights(params), ids, turns, progress)
            run.finish()
        return [
            Generation(
                ids[i],
                self.tokenizer.decode(ids[i].tolist(), skip_special=False),
                tuple(self._completion(np.asarray(t.tokens, np.int32), np.asarray(t.logprobs, np.float32)) for t in of),
            )
            for i, of in enumerate(turns)
        ]

    def weights(self, params: Any) -> Any:
        """The parameters in the sampler's layout, by one compiled call; kept for as long as the parameters live."""
        leaves = jax.tree.leaves(params)
        known, weights = self._held.get("weights", ((), None))
        # All of them: some may stay as they are while others are trained.
        if len(known) != len(leaves) or any(ref() is not leaf for ref, leaf in zip(known, leaves)):
            fuse = self.mesh.shape["tensor"] == 1
            with jax.set_mesh(self.mesh):
                weights = programs.hand_over(
                    params, config=self.config, dtype=self.config.dtype, fuse=fuse, whole=False
                )
            self._held["weights"] = tuple(map(weakref.ref, leaves)), weights
        return weights

    def next_token(self, params: Any, conversations: Sequence[Any], ids: Sequence[int]) -> np.ndarray:
        """P(next token is ids[j]) after each conversation, by one prefill each: float32 [conversations, ids].

        Conversations are chat messages. No randomness; a value depends on its own conversation alone.
        """
        asked = [np.asarray(self.tokenizer.render(messages), np.int32) for messages in conversations]
        order = sorted(range(len(asked)), key=lambda i: asked[i].tolist())
        out = np.zeros((len(asked), len(ids)), np.float32)
        put = functools.partial(sharding.to_device, self.mesh)
        for start in range(0, len(order), self.prefill_rows):
            batch = order[start : start + self.prefill_rows]
            count = _multiple(min(_power_of_two(len(batch)), self.prefill_rows), self._devices)
            common = self._common([asked[i] for i in batch])
            length = _multiple(max(len(asked[i]) for i in batch) - len(common), self.prompt_bucket)
            arrays = self._arrays([asked[i] for i in batch], common, count, length)
            with jax.set_mesh(self.mesh):
                asked_ids = put(np.asarray(ids, np.int32))
                found = programs.next_token(self.weights(params), *arrays, asked_ids, config=self.config)
            out[batch] = sharding.to_host(found)[: len(batch)]
        return out

    @property
    def _devices(self) -> int:
        return sharding.batch_devices(self.mesh)

    def _arrays(
        self, ids: Sequence[np.ndarray | None], common: np.ndarray, count: int, length: int
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The `common`, `tokens` and `lengths` of `admit` on the mesh, `count` rows; None is an empty one."""
        tokens = np.zeros((count, length), np.int32)
        lengths = np.ones(count, np.int32)
        for row, prompt in enumerate(ids):
            if prompt is not None:
                lengths[row] = len(prompt) - len(common)
                tokens[row, : lengths[row]] = prompt[len(common) :]
        put = functools.partial(sharding.to_device, self.mesh)
        common = np.tile(common, (self._devices, 1))
        return put(common, "batch", None), put(tokens, "batch", None), put(lengths, "batch")

    def _common(self, ids: Sequence[np.ndarray]) -> np.ndarray:
        """What all prompts begin with, in whole buckets, short of any prompt's end; nothing where it saves little."""
        shortest = min(map(len, ids)) - 1
        same = np.all([i[:shortest] == ids[0][:shortest] for i in ids], axis=0)
        length = (shortest if same.all() else int(np.argmin(same))) // self.prompt_bucket * self.prompt_bucket
        return ids[0][: length if length * (len(ids) - 1) >= self.share_from else 0]

    def _completion(self, tokens: np.ndarray, logprobs: np.ndarray) -> Completion:
        text = self.tokenizer.decode(tokens.tolist())
        ended = int(tokens[-1]) in self.tokenizer.eos_ids or any(stop in text for stop in self.stop)
        return Completion(tokens.copy(), logprobs.copy(), text, truncated=not ended)

    def stopped(self, tokens: Sequence[int], known: int) -> int | None:
        """How many tokens it takes to the end of the first stop text, where the first `known` hold none; else None."""

        def holds(count: int) -> bool:
            text = self.tokenizer.decode(tokens[:count])
            return any(stop in text for stop in self.stop)

        if not self.stop or not holds(len(tokens)):
            return None
        return next(n for n in range(known + 1, len(tokens) + 1) if holds(n))

    def sizes(self, turns: Sequence[Sequence[slots.Turn]], longest: int, common: int = 0) -> Sizes:
        """Shapes for prompts with these turns, whose longest rest after the common beginning has so many tokens.

        Where the worst case does not fit into `cache_bytes`, half of its pages are taken (a turn that finds none free
        is drawn again later), then fewer rows. Raises ValueError if one row is too much.
        """
        rows = min(_power_of_two(sum(map(len, turns))), self.rows)
        while True:
            full = self._sizes(turns, _multiple(longest, self.prompt_bucket), rows)
            half = dataclasses.replace(full, pages=_multiple(-(-full.pages // 2), self._devices))
            need = [self.bytes(found, common) for found in (full, half)]
            if not self.cache_bytes or need[0] <= self.cache_bytes:
                return full
            if need[1] <= self.cache_bytes and half.pages >= full.blocks * self._devices:
                return half
            if full.rows == self._devices:
                raise ValueError(
                    f"The cache of one completion takes {need[0]} bytes and rollout.cache_gib allows "
                    f"{self.cache_bytes}; raise it or lower rollout.max_new_tokens."
                )
            rows = max(1, full.rows // 2)

    def bytes(self, sizes: Sizes, common: int = 0) -> int:
        """What the caches of such a call take, in bytes: prompts in slots, completions in pages."""
        c = self.config
        token = 2 * c.layers * c.kv_heads * c.head_size * jnp.dtype(c.dtype).itemsize
        return token * (sizes.slots * (common + sizes.length) + sizes.pages * cache.BLOCK)

    def _sizes(self, turns: Sequence[Sequence[slots.Turn]], length: int, rows: int) -> Sizes:
        devices, count = self._devices, _power_of_two(len(turns))
        group = _power_of_two(max(map(len, turns)))
        rows = _multiple(rows, devices)
        # Few places for each prompt, so that rows are filled from many; all of them where there are few prompts.
        places = min(group, max(4, _power_of_two(-(-rows // count))))
        first = max(1, min(self.prefill_tokens // length, rows // group, count))
        first = _multiple(1 << (first.bit_length() - 1), devices)
        active = rows if places == 1 else max(rows // 2, -(-rows // places))
        blocks = _power_of_two(-(-max(t.limit for of in turns for t in of) // cache.BLOCK))
        return Sizes(
            rows=rows,
            slots=_multiple(min(count, active + first), devices),
            places=places,
            prefill=first,
            group=group,
            length=length,
            blocks=blocks,
            pages=rows * blocks,
        )


class _Run:
    """One call of the sampler: admits prompts, seats turns, runs chunks, until all are finished."""

    def __init__(self, sampler: Sampler, weights: Any, ids: list, turns: list, progress: Callable | None) -> None:
        self.sampler, self.weights, self.ids, self.turns, self.progress = sampler, weights, ids, turns, progress
        self.common = sampler._common(ids)
        self.sizes = s = sampler.sizes(turns, max(map(len, ids)) - len(self.common), len(self.common))
        # Those with the highest limits first, as the last ones to finish run alone; then those that begin alike.
        order = sorted(range(len(ids)), key=lambda i: (-max((t.limit for t in turns[i]), default=0), ids[i].tolist()))
        self.queue = [i for i in order if turns[i]][::-1]
        n = self.devices = sampler._devices
        self.floor = [
            slots.Device(s.rows // n, s.places, list(range(s.slots // n))[::-1], list(range(s.pages // n))[::-1])
            for _ in range(n)
        ]
        self.put = functools.partial(sharding.to_device, sampler.mesh)
        self.eos = self.put(np.asarray(sampler.tokenizer.eos_ids, np.int32))
        self.cut = self.put(choose.Cut(np.int32(sampler.top_k), np.float32(sampler.top_p), np.float32(sampler.min_p)))
        self.prompts = self._empty(s.slots, len(self.common) + s.length)
        self.pages = self._empty(s.pages, cache.BLOCK)
        self.done, self.total = 0, sum(map(len, turns))

    def _empty(self, count: int, tokens: int) -> Any:
        c = self.sampler.config
        return programs.zeros(count, tokens, config=c)

    def finish(self) -> None:
        """Runs until every turn has ended."""
        while self.queue or any(d.live or d.waiting for d in self.floor):
            while self._wants_prompts():
                self._admit()
            for device in self.floor:
                device.seat()
            if any(device.live for device in self.floor):
                self._decode()

    def _wants_prompts(self) -> bool:
        """Whether rows stand idle that a whole batch of prompts could fill; or any, where nothing is running."""
        if not self.queue:
            return False
        each = self.sizes.prefill // self.devices
        idle = any(len(d.live) + len(d.waiting) < d.rows for d in self.floor)
        room = all(len(d.free_slots) >= each for d in self.floor)
        stuck = not any(d.live or d.waiting for d in self.floor)
        return (idle and room) or stuck

    def _admit(self) -> None:
        s, sampler = self.sizes, self.sampler
        batch: list[int | None] = [None] * s.prefill
        places = np.full(s.prefill, s.slots, np.int32)
        keys = np.zeros((s.prefill, s.group, 2), np.uint32)
        temperatures = np.ones(s.prefill, np.float32)
        each = s.prefill // self.devices
        # Round the devices, so that few prompts are spread over all.
        for row in sorted(range(s.prefill), key=lambda r: r % each):
            free = self.floor[row // each].free_slots
            if self.queue and free:
                batch[row], places[row] = self.queue.pop(), free.pop()
                of = self.turns[batch[row]]
                temperatures[row] = of[0].temperature
                keys[row, : len(of)] = [turn.key for turn in of]
        rests = [None if i is None else self.ids[i] for i in batch]
        arrays = sampler._arrays(rests, self.common, s.prefill, s.length)
        more = self.put((places, keys, temperatures), "batch")
        self.prompts, *out = programs.admit(
            self.weights, self.prompts, *arrays, *more, self.cut, config=sampler.config, devices=self.devices
        )
        tokens, logprobs = sharding.to_host(tuple(out))
        for row, i in enumerate(batch):
            if i is not None:
                for turn in self.turns[i]:
                    self._add(turn, tokens[row, turn.sample : turn.sample + 1], logprobs[row, turn.sample :])
                left = [turn for turn in self.turns[i] if not turn.ended]
                self.floor[row // each].admit(int(places[row]), left)
        self._report()

    def _decode(self) -> None:
        s, n = self.sizes, self.devices
        rows, used = self._shape()
        blocks, live, parts = s.blocks, [], []
        for device in self.floor:
            turns, arrays = slots.arrange(device, rows // n, used // n, s.slots // n, blocks)
            live.append(turns)
            parts.append(arrays)
        arrays = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
        arrays = self.put(arrays, "batch")
        state = programs.Rows(*(arrays[name] for name in programs.Rows._fields))
        view = cache.View(*(arrays.get(name) for name in cache.View._fields))
        self.pages, *out = programs.decode(
            self.weights, self.prompts, self.pages, state, view, arrays["slots"], self.eos, self.cut,
            config=self.sampler.config, chunk=self.sampler.chunk, devices=n,
        )  # fmt: skip
        tokens, logprobs, count = sharding.to_host(tuple(out))
        for d, (device, turns) in enumerate(zip(self.floor, live)):
            for r, turn in enumerate(turns, d * (rows // n)):
                self._add(turn, tokens[r, : count[r]], logprobs[r])
                if turn.ended:
                    device.finish(turn)
        self._report()

    def _shape(self) -> tuple[int, int]:
        """Rows and prompts of the next chunk: all, or as few as the last turns need."""
        s, n = self.sizes, self.devices
        rows = s.rows
        if not self.queue and not any(d.waiting for d in self.floor):
            most = max(len(d.live) for d in self.floor)
            while rows % (2 * n) == 0 and rows > cache.ROWS * n and rows // n // 2 >= most:
                rows //= 2
        return rows, s.slots if rows == s.rows else min(s.slots, rows)

    def _add(self, turn: slots.Turn, tokens: np.ndarray, logprobs: np.ndarray) -> None:
        known = len(turn.tokens)
        turn.tokens += tokens.tolist()
        turn.logprobs += logprobs[: len(tokens)].tolist()
        stop = self.sampler.stopped(turn.tokens, known)
        if stop is not None:
            del turn.tokens[stop:], turn.logprobs[stop:]
        ended = turn.tokens[-1] in self.sampler.tokenizer.eos_ids or len(turn.tokens) >= turn.limit
        turn.ended = ended or stop is not None
        self.done += turn.ended

    def _report(self) -> None:
        if self.progress:
            self.progress(self.done, self.total)


def _turns(i: int, prompt: Prompt, ids: np.ndarray, seed: int, step: int, temperature: float) -> list[slots.Turn]:
    heat = temperature if prompt.temperature is None else prompt.temperature
    return [
        slots.Turn(i, g, row_key(seed, step, prompt.key, g), prompt.max_new_tokens, heat, len(ids))
        for g in range(prompt.samples)
    ]


def row_key(seed: int, step: int, key: str, sample: int) -> np.ndarray:
    """uint32 [2]: the random key of one completion, from what it is and not from where it stands in a batch."""
    name = f"{seed}/{step}/{key}/{sample}".encode()
    return np.frombuffer(hashlib.blake2b(name, digest_size=8).digest(), np.uint32)


def _multiple(n: int, of: int) -> int:
    return -(-n // of) * of


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
