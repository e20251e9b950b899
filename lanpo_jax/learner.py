"""The numerical half of a step: rows in, a new train state out. One compiled program for updates, one for scoring.

A batch is cut into micro-batches of `micro_rows` rows; the program loops over as many as hold anything, adds up
gradients, losses and metrics as (sum, weight) and divides once, so any cut gives the same update.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from lanpo_jax import batching, optimizer, sharding
from lanpo_jax.models import qwen
from lanpo_jax.objectives import logprobs as logprobs_lib
from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.objectives import pooled, tokens

AUXILIARY = ("entropy", "vocab_mean")  # what a forward pass can hand to an objective beside the log-probabilities


class TrainState(NamedTuple):
    """Everything that an update changes."""

    params: Any
    opt_state: Any
    updates: jax.Array  # int32 []: optimizer updates made


def forward(params: Any, rows: batching.Batch, temperature: jax.Array, config: qwen.ModelConfig, names) -> dict:
    """Token statistics of every completion in some rows: {"logprobs": [B, T], ..} with B = R·n."""
    hidden, _ = qwen.Decoder(config).apply({"params": params}, rows.tokens, rows.positions, rows.segments)
    picked = logprobs_lib.select(hidden, rows.source[:, None])
    tied = "head" not in params
    matrix = params["embed"] if tied else params["head"]
    with jax.named_scope("head"):
        found = logprobs_lib.token_statistics(
            picked, matrix, rows.targets.reshape(-1), temperature=temperature, names=names, tied=tied
        )

    def by_completion(values: jax.Array) -> jax.Array:
        values = values.reshape(rows.targets.shape)
        placed = jnp.take_along_axis(values, rows.place.reshape(len(values), -1), axis=1)
        return placed.reshape(-1, rows.place.shape[-1])

    return {name: by_completion(values) for name, values in found.items()}


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
    on_policy: bool  # old log-probabilities are this very forward pass: the ratio is exactly 1
    param_dtype: str = "float32"

    def __post_init__(self):
        devices = sharding.batch_devices(self.mesh)
        if self.micro_rows % devices:
            raise ValueError(
                f"learner.micro_rows={self.micro_rows} is not divisible by the {devices} devices that rows are split "
                "over; change it, or mesh.data and mesh.fsdp."
            )

    @functools.cached_property
    def abstract(self) -> TrainState:
        """Shapes and shardings of the whole train state; nothing is allocated."""
        shapes, axes = qwen.abstract(self.config, self.param_dtype)
        params = sharding.shard_abstract(self.mesh, shapes, axes)
        replicated = sharding.named(self.mesh, ())
        opt_state = optimizer.abstract_state(self.tx, params, replicated)
        return TrainState(params, opt_state, jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated))

    def start(self, params: Any) -> TrainState:
        """A fresh train state around parameters that lie where `abstract` says."""
        where = jax.tree.map(lambda s: s.sharding, self.abstract.opt_state)
        opt_state = jax.jit(self.tx.init, out_shardings=where)(params)
        return TrainState(params, opt_state, sharding.to_device(self.mesh, np.int32(0)))

    def random_params(self, seed: int) -> Any:
        """Random parameters, each made where it will live."""
        where = jax.tree.map(lambda s: s.sharding, self.abstract.params)
        make = jax.jit(functools.partial(qwen.init, self.config), out_shardings=where)
        with jax.set_mesh(self.mesh):
            return make(jax.random.key(seed))

    def place(self, batch: batching.Batch) -> tuple[batching.Batch, jax.Array]:
        """A host batch on the mesh, cut into micro-batches [micro, rows, ..], and how many of them hold anything."""
        used = int(np.any(batch.mask, axis=(1, 2)).sum())
        count = -(-used // self.micro_rows)
        cut = jax.tree.map(lambda x: x.reshape(-1, self.micro_rows, *x.shape[1:]), batch)
        return sharding.to_device(self.mesh, cut, None, "batch"), sharding.to_device(self.mesh, np.int32(count))

    def update(self, state: TrainState, batch: batching.Batch, temperature: float) -> tuple[TrainState, dict]:
        """One optimizer step on a host batch. The old state's buffers are given away. Metrics stay on the device."""
        placed, count = self.place(batch)
        with jax.set_mesh(self.mesh):
            return self._update(state, placed, count, jnp.float32(temperature))

    def score(self, params: Any, batch: batching.Batch, temperature: float) -> np.ndarray:
        """Log-probabilities under some parameters, float32 [R, n, T]; 0 where nothing stands."""
        placed, count = self.place(batch)
        with jax.set_mesh(self.mesh):
            values = sharding.to_host(self._score(params, placed, count, jnp.float32(temperature)))
        return values.reshape(batch.mask.shape) * batch.mask

    @functools.cached_property
    def _update(self):
        where = jax.tree.map(lambda s: s.sharding, self.abstract)
        return jax.jit(self._step, donate_argnums=0, out_shardings=(where, None))

    @functools.cached_property
    def _score(self):
        return jax.jit(self._evaluate)

    def _loss(self, params: Any, rows: batching.Batch, temperature: jax.Array):
        needs = self.objective.needs
        names = ("logprobs", *(n for n in AUXILIARY if n in needs))
        found = forward(params, rows, temperature, self.config, names)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
        batch = tokens.Batch(
            mask=flat.mask,
            advantages=flat.advantages,
            old_logprobs=None if self.on_policy else flat.old_logprobs,
            ref_logprobs=flat.ref_logprobs if "ref" in needs else None,
            sampler_logprobs=flat.sampler_logprobs,
            truncated=flat.truncated,
        )
        values = found.pop("logprobs")
        total, weight, metrics = objective_lib.loss(self.objective, values, batch, aux=found)
        return total, (weight, metrics)

    def _step(self, state: TrainState, batch: batching.Batch, count: jax.Array, temperature: jax.Array):
        gradient = jax.value_and_grad(self._loss, has_aux=True)
        rows = jax.tree.map(lambda x: x[0], batch)
        (_, (_, metrics)), _ = jax.eval_shape(gradient, state.params, rows, temperature)
        start = (jax.tree.map(jnp.zeros_like, state.params), jnp.zeros(()), jnp.zeros(()), pooled.nothing(metrics))

        def add(i: jax.Array, sums):
            grads, total, weight, metrics = sums
            rows = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), batch)
            (t, (w, m)), g = gradient(state.params, rows, temperature)
            return jax.tree.map(jnp.add, grads, g), total + t, weight + w, pooled.merge(metrics, m)

        grads, total, weight, metrics = jax.lax.fori_loop(0, count, add, start)
        grads = jax.tree.map(lambda g: pooled.ratio(g, weight), grads)
        norm = optimizer.global_norm(grads)
        with jax.named_scope("optimizer"):
            changes, opt_state = self.tx.update(grads, state.opt_state, state.params)
            new = TrainState(optimizer.apply_updates(state.params, changes), opt_state, state.updates + 1)
        # A poisoned update is not taken at all: parameters, moments and counter stay as they were.
        sound = jnp.isfinite(total) & jnp.isfinite(norm)
        state = jax.tree.map(lambda a, b: jnp.where(sound, a, b), new, state)
        numbers = {"actor/loss": pooled.ratio(total, weight), "actor/grad_norm": norm, "actor/skipped": 1.0 - sound}
        return state, pooled.finish(metrics) | numbers

    def _evaluate(self, params: Any, batch: batching.Batch, count: jax.Array, temperature: jax.Array) -> jax.Array:
        def one(i: jax.Array, values: jax.Array) -> jax.Array:
            rows = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), batch)
            found = forward(params, rows, temperature, self.config, ("logprobs",))["logprobs"]
            return jax.lax.dynamic_update_index_in_dim(values, found, i, axis=0)

        size = batch.mask.shape[1] * batch.mask.shape[2]
        return jax.lax.fori_loop(0, count, one, jnp.zeros((batch.mask.shape[0], size, batch.mask.shape[3])))
