"""The numerical half of a step: rows in, a new train state out. One compiled program for updates, one for scoring.

A batch is cut into micro-batches of `micro_rows` rows; the program loops over as many as hold anything, adds up
gradients, losses and metrics as (sum, weight) and divides once, so any cut gives the same update.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from lanpo_jax import batching, optimizer, sharding
from lanpo_jax.models import lora as lora_lib
from lanpo_jax.models import qwen
from lanpo_jax.objectives import curvature, pooled, tokens
from lanpo_jax.objectives import logprobs as logprobs_lib
from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.types import Group


class TrainState(NamedTuple):
    """Everything that an update changes, and what it reads beside."""

    params: Any  # what is trained: the network's parameters, or its adapters
    opt_state: Any
    updates: jax.Array  # int32 []: optimizer updates made
    frozen: Any = ()  # the network's parameters where adapters are trained


def read_out(params: Any, rows: batching.Batch, config: qwen.ModelConfig, adapters: Any = None) -> jax.Array:
    """The hidden states that predict the completions' tokens, [R·M, D]."""
    variables = {"params": params} if adapters is None else {"params": params, "lora": adapters}
    apply = functools.partial(qwen.Decoder(config).apply, variables)
    hidden, _ = apply(rows.tokens, rows.positions, rows.segments)
    return logprobs_lib.select(hidden, rows.source[:, None])


def by_completion(rows: batching.Batch, values: jax.Array) -> jax.Array:
    """Values [R·M] of head tokens to where the objective reads them, [B, T] with B = R·n."""
    values = values.reshape(rows.targets.shape)
    placed = jnp.take_along_axis(values, rows.place.reshape(len(values), -1), axis=1)
    return placed.reshape(-1, rows.place.shape[-1])


def _by_head(rows: batching.Batch, values: jax.Array) -> jax.Array:
    """Values [R, n] of completions to the head tokens that they consist of, [R·M]; 0 where nothing stands."""
    flat = jnp.zeros(rows.targets.shape, values.dtype)
    return flat.at[jnp.arange(len(flat))[:, None, None], rows.place].add(rows.mask * values[..., None]).reshape(-1)


def output_matrix(params: Mapping[str, Any]) -> dict[str, Any]:
    """The head as the chunked functions of objectives/ take it: its own [D, V], or the embedding [V, D]."""
    tied = "head" not in params
    return {"head": params["embed"] if tied else params["head"], "tied": tied}


@dataclasses.dataclass(frozen=True)
class Learner:
    """Binds a network, an objective and an optimizer to a mesh."""

    config: qwen.ModelConfig
    objective: objective_lib.Objective
    tx: optimizer.Transformation
    mesh: Mesh
    shape: batching.Shape
    micro_rows: int
    rows: int  # capacity of a batch, a multiple of micro_rows
    rate: Callable  # learning rate by update, as in tx: for objectives that look one step ahead
    entropy: bool = False  # measured in every update, whether or not the objective needs it
    b1: float = 0.9
    b2: float = 0.99
    param_dtype: str = "float32"
    lora: lora_lib.Lora | None = None  # None: all parameters are trained
    offload: bool = False  # the optimizer's moments stay in the host's memory between updates

    def __post_init__(self):
        if self.offload:
            sharding.check_host_memory("optimizer.offload")
        if self.lora is not None and "curvature" in self.objective.needs:
            raise ValueError(
                "This objective models the step of the output matrix, which lora.rank freezes; set it to 0."
            )
        if self.config.remat == "offload":
            sharding.check_host_memory("model.remat='offload'")
        devices = sharding.batch_devices(self.mesh)
        if self.micro_rows % devices:
            raise ValueError(
                f"learner.micro_rows={self.micro_rows} is not divisible by the {devices} devices that rows are split "
                "over; change it, or mesh.data and mesh.fsdp."
            )

    @functools.cached_property
    def weights(self) -> Any:
        """Shapes and shardings of the network's own parameters, as checkpoints have them."""
        return sharding.shard_abstract(self.mesh, *qwen.abstract(self.config, self.param_dtype))

    @functools.cached_property
    def abstract(self) -> TrainState:
        """Shapes and shardings of the whole train state; nothing is allocated."""
        params, frozen, replicated = dict(self.weights), (), sharding.named(self.mesh, ())
        if self.lora is not None:
            made = lora_lib.abstract(self.lora, self.config, self.param_dtype)
            params, frozen = sharding.shard_abstract(self.mesh, *made), self.weights
        if self._has_values:
            params["value"] = jax.ShapeDtypeStruct((self.config.width,), self.param_dtype, sharding=replicated)
        opt_state = optimizer.abstract_state(self.tx, params, replicated, sharding.HOST if self.offload else None)
        return TrainState(params, opt_state, jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated), frozen)

    @functools.cached_property
    def for_prompts(self) -> Learner:
        """The same network over rows of one prompt each, read as the completion of its first token."""
        return dataclasses.replace(
            self, shape=batching.Shape.plain(1, self.shape.row_tokens - self.shape.completion_tokens)
        )

    def start(self, params: Any, seed: int = 0) -> TrainState:
        """A fresh train state around parameters that lie where `weights` says; a value head starts at 0.

        Adapters start at random, which they are of no effect in.
        """
        frozen = ()
        if self.lora is not None:
            shapes = {k: v for k, v in self.abstract.params.items() if k != "value"}
            where = jax.tree.map(lambda s: s.sharding, shapes)
            make = jax.jit(functools.partial(lora_lib.init, shapes), out_shardings=where)
            frozen, params = params, make(jax.random.key(seed))
        if self._has_values:
            zeros = np.zeros(self.config.width, self.param_dtype)
            params = {**params, "value": sharding.to_device(self.mesh, zeros)}
        where = jax.tree.map(lambda s: s.sharding, self.abstract.opt_state)
        opt_state = jax.jit(self.tx.init, out_shardings=where)(params)
        return TrainState(params, opt_state, sharding.to_device(self.mesh, np.int32(0)), frozen)

    def policy(self, state: TrainState) -> Any:
        """The network's parameters as they are now, adapters merged into them by one program."""
        if self.lora is None:
            return state.params
        with jax.set_mesh(self.mesh):
            return self._merge(state.frozen, state.params)

    def random_params(self, seed: int) -> Any:
        """Random parameters, each made where it will live."""
        where = jax.tree.map(lambda s: s.sharding, self.weights)
        make = jax.jit(functools.partial(qwen.init, self.config), out_shardings=where)
        with jax.set_mesh(self.mesh):
            return make(jax.random.key(seed))

    def batch(
        self, groups: Sequence[Group], tables: Mapping[str, np.ndarray], chosen: Sequence[int] | None = None
    ) -> batching.Batch:
        """The rows of some groups of a step, with the values that the objective reads."""
        whole = "preference" in self.objective.needs
        found = batching.documents(groups, self.shape, chosen, whole)
        return batching.batch(batching.arrange(found, self.shape), self.shape, self.rows, tables)

    def place(self, batch: batching.Batch) -> tuple[batching.Batch, jax.Array]:
        """A host batch on the mesh, cut into micro-batches [micro, rows, ..], and how many of them hold anything."""
        used = int(np.any(batch.mask, axis=(1, 2)).sum())
        count = -(-used // self.micro_rows)
        cut = jax.tree.map(lambda x: x.reshape(-1, self.micro_rows, *x.shape[1:]), batch)
        return sharding.to_device(self.mesh, cut, None, "batch"), sharding.to_device(self.mesh, np.int32(count))

    def update(
        self, state: TrainState, batch: batching.Batch, temperature: float, memory: Mapping[str, Any] | None = None
    ) -> tuple[TrainState, dict]:
        """One optimizer step on a host batch; `memory` holds the scalars of a stateful method.

        The old state's buffers are given away (not those of frozen parameters). Metrics stay on the device.
        """
        placed, count = self.place(batch)
        memory = sharding.to_device(self.mesh, {k: np.float32(v) for k, v in (memory or {}).items()})
        with jax.set_mesh(self.mesh):
            trained = state._replace(frozen=())
            new, metrics = self._update(trained, state.frozen, placed, count, jnp.float32(temperature), memory)
        return new._replace(frozen=state.frozen), metrics

    def score(
        self, params: Any, batch: batching.Batch, temperature: float, names: Sequence[str] = ("logprobs",)
    ) -> dict[str, np.ndarray]:
        """Statistics of every token under some parameters, each float32 [R, n, T]; 0 where nothing stands.

        Names: logprobs, entropy, vocab_mean, values (of the value head).
        """
        placed, count = self.place(batch)
        with jax.set_mesh(self.mesh):
            found = sharding.to_host(self._score(params, placed, count, jnp.float32(temperature), tuple(names)))
        return {name: values.reshape(batch.mask.shape) * batch.mask for name, values in found.items()}

    @property
    def _has_values(self) -> bool:
        return "values" in self.objective.needs

    @functools.cached_property
    def _update(self):
        where = jax.tree.map(lambda s: s.sharding, self.abstract._replace(frozen=()))
        return jax.jit(self._step, donate_argnums=0, out_shardings=(where, None))

    @functools.cached_property
    def _merge(self):
        where = jax.tree.map(lambda s: s.sharding, self.weights)
        return jax.jit(self._merged, out_shardings=where)

    def _merged(self, frozen: Any, params: Any) -> Any:
        found = lora_lib.merged(frozen, params, self.lora.scale)
        return found | ({"value": params["value"]} if self._has_values else {})

    @functools.cached_property
    def _score(self):
        return jax.jit(self._evaluate, static_argnums=4)

    def _statistics(self, params: Any, rows: batching.Batch, hidden: jax.Array, temperature: jax.Array, names) -> dict:
        """Named token statistics by completion, {name: [B, T]}."""
        from_head = tuple(n for n in names if n in logprobs_lib.STATISTICS)
        with jax.named_scope("head"):
            found = logprobs_lib.token_statistics(
                hidden, targets=rows.targets.reshape(-1), temperature=temperature, names=from_head,
                devices=sharding.batch_devices(self.mesh), shards=self.mesh.shape["tensor"], **output_matrix(params),
            )  # fmt: skip
        if "values" in names:
            found["values"] = hidden.astype(jnp.float32) @ params["value"].astype(jnp.float32)
        return {name: by_completion(rows, values) for name, values in found.items()}

    def _loss(
        self, params: Any, rows: batching.Batch, temperature: jax.Array, memory: Any, moments: Any, frozen: Any = ()
    ):
        """Loss sum over some rows, (weight, metrics)."""
        needs, adapters = self.objective.needs, None
        if self.lora is not None:
            adapters = lora_lib.scaled(params, self.lora.scale)
            params = frozen | {k: v for k, v in params.items() if k == "value"}
        hidden = read_out(params, rows, self.config, adapters)
        wanted = needs | ({"entropy"} if self.entropy else set())
        names = ("logprobs", *(n for n in ("entropy", "vocab_mean", "values") if n in wanted))
        aux = self._statistics(params, rows, hidden, temperature, names)
        values = aux.pop("logprobs")
        if moments is not None:
            terms = curvature.terms(
                hidden, targets=rows.targets.reshape(-1), advantages=_by_head(rows, rows.values["advantages"]),
                moments=moments, rate=self.rate(moments[2]), b1=self.b1, b2=self.b2, temperature=temperature,
                **output_matrix(params),
            )  # fmt: skip
            aux |= {name: by_completion(rows, term) for name, term in terms.items()}
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (rows.mask, rows.values))
        batch = tokens.Batch(mask=flat[0], **flat[1])
        with jax.named_scope("objective"):
            total, weight, metrics = objective_lib.loss(self.objective, values, batch, aux=aux, state=memory)
        return total, (weight, metrics)

    def _step(self, state: TrainState, frozen: Any, batch: batching.Batch, count, temperature: jax.Array, memory: Any):
        moments = None
        if "curvature" in self.objective.needs:
            moments = optimizer.moments(state.opt_state, "embed" if output_matrix(state.params)["tied"] else "head")
        gradient = jax.value_and_grad(self._loss, has_aux=True)
        (_, (_, metrics)), _ = jax.eval_shape(
            gradient, state.params, _micro(batch, 0), temperature, memory, moments, frozen
        )
        start = (jax.tree.map(jnp.zeros_like, state.params), jnp.zeros(()), jnp.zeros(()), pooled.nothing(metrics))

        def add(i: jax.Array, sums):
            grads, total, weight, metrics = sums
            (t, (w, m)), g = gradient(state.params, _micro(batch, i), temperature, memory, moments, frozen)
            return jax.tree.map(jnp.add, grads, g), total + t, weight + w, pooled.merge(metrics, m)

        grads, total, weight, metrics = jax.lax.fori_loop(0, count, add, start)
        grads = jax.tree.map(lambda g: pooled.ratio(g, weight), grads)
        norm = optimizer.global_norm(grads)
        with jax.named_scope("optimizer"):
            if self.offload:
                here = optimizer.abstract_state(self.tx, self.abstract.params, sharding.named(self.mesh, ()))
                opt_state = jax.device_put(state.opt_state, jax.tree.map(lambda s: s.sharding, here))
                state = state._replace(opt_state=opt_state)
            changes, opt_state = self.tx.update(grads, state.opt_state, state.params)
            new = TrainState(optimizer.apply_updates(state.params, changes), opt_state, state.updates + 1)
        # An update that is poisoned or empty is not taken at all: parameters, moments and counter stay as they were.
        sound = jnp.isfinite(total) & jnp.isfinite(norm) & (weight > 0)
        state = jax.tree.map(lambda a, b: jnp.where(sound, a, b), new, state)
        numbers = {"actor/loss": pooled.ratio(total, weight), "actor/grad_norm": norm, "actor/skipped": 1.0 - sound}
        return state, pooled.finish(metrics) | numbers

    def _evaluate(self, params: Any, batch: batching.Batch, count: jax.Array, temperature: jax.Array, names) -> dict:
        def one(i: jax.Array, found: dict) -> dict:
            rows = _micro(batch, i)
            new = self._statistics(params, rows, read_out(params, rows, self.config), temperature, names)
            return {n: jax.lax.dynamic_update_index_in_dim(found[n], new[n], i, axis=0) for n in names}

        micro, rows, slots, length = batch.mask.shape
        start = {name: jnp.zeros((micro, rows * slots, length)) for name in names}
        return jax.lax.fori_loop(0, count, one, start)


def _micro(batch: batching.Batch, i: jax.Array | int) -> batching.Batch:
    """The i-th micro-batch."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), batch)
