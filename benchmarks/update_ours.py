"""This project's side of update.py: the learner's own batch and update, and the head alone."""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import update

from configs import common
from lanpo_jax import batching, optimizer, sharding
from lanpo_jax.learner import Learner
from lanpo_jax.models import qwen
from lanpo_jax.objectives import logprobs as logprobs_lib
from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.types import Completion, Generation, Grades, Group, Problem


def learner(work: Mapping[str, Any]) -> Learner:
    """The learner of a run with these sizes."""
    sizes = {k: work[k] for k in ("vocab", "width", "mlp", "layers", "heads", "kv_heads", "head_size")}
    network = qwen.ModelConfig(**sizes, qkv_bias=True, tied=True, rope_theta=1e6)
    rate = optimizer.schedule(rate=1e-5, warmup=0, decay="constant", updates=1, floor=1.0)
    tx = optimizer.make(rate, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0, clip=0.0)
    limits, kl = (work["prompt"], work["completion"]), f"k3(beta={work['beta']})" if work["beta"] else "none"
    groups = objective_lib.build(common.base().objective.to_dict() | {"kl": kl})
    if work["layout"] == "packed":
        whole = work["prompt"] + work["group"] * work["completion"]
        shape = batching.Shape.packed(work["row"] or whole, *limits)
        micro, rows = work["rows"], work["prompts"] * work["group"]
    else:
        shape, micro = batching.Shape.plain(*limits), work["micro"] * work["group"]
        rows = work["prompts"] * work["group"]
    rows = -(-rows // micro) * micro
    mesh = sharding.make_mesh()
    return Learner(network, groups, tx, mesh, shape, micro, rows, rate, entropy=bool(work.get("entropy")))


def rollouts(work: Mapping[str, Any]) -> list[Group]:
    """Random prompts with random completions, all of full or of geometric lengths (mean a quarter of the limit)."""
    rng, limit = np.random.default_rng(0), work["completion"]
    found = []
    for _ in range(work["prompts"]):
        lengths = [limit] * work["group"]
        if work["lengths"] == "geometric":
            lengths = np.minimum(limit, rng.geometric(4 / limit, work["group"]))
        ids = lambda n: rng.integers(3, work["vocab"], n).astype(np.int32)  # noqa: E731
        completions = tuple(Completion(ids(n), np.full(n, -8.0, np.float32), "", False) for n in lengths)
        nothing = np.zeros(work["group"], np.float32)
        grades = Grades(nothing, nothing > 0, ("",) * work["group"], {})
        found.append(Group(Problem("p", "p", "1"), "plain", Generation(ids(work["prompt"]), "", completions), grades))
    return found


def repeat(work: Mapping[str, Any]) -> None:
    """Serves updates from groups on the host to a new train state; with a reference, scored by it first."""
    made, groups = learner(work), rollouts(work)
    tables = batching.tables(groups, made.shape.completion_tokens)
    values = {k: tables[k] for k in ("sampler_logprobs", "truncated", "group")}
    values["advantages"] = np.random.default_rng(1).normal(size=len(tables["group"]))
    params = made.random_params(0)
    reference = jax.tree.map(jnp.copy, params) if work["beta"] else None
    state = [made.start(params)]

    def once() -> None:
        batch = made.batch(groups, values)
        if reference is not None:
            scores = made.score(reference, batch, 1.0)["logprobs"]
            batch = batch._replace(values=batch.values | {"ref_logprobs": scores})
        state[0], numbers = made.update(state[0], batch, 1.0)
        jax.block_until_ready((state[0], numbers))

    batch = made.batch(groups, values)
    tokens = int((batch.segments != 0).sum())
    update.serve(once, tokens=tokens, padding=batching.padding_share(batch))


def head_programs(vocabulary: int, width: int, tokens: int) -> dict[str, Any]:
    """Compiled values and gradients of a weighted sum of log-probabilities: full logits, and ours."""
    weights = np.linspace(-1, 1, tokens, dtype=np.float32)

    def full(hidden, head, targets):
        return jnp.sum(jax.nn.log_softmax(hidden @ head.T)[jnp.arange(tokens), targets] * weights)

    def pieces(hidden, head, targets):
        return jnp.sum(logprobs_lib.token_logprobs(hidden, head, targets, tied=True)[0] * weights)

    shapes = jax.eval_shape(lambda: _head_inputs(vocabulary, width, tokens))
    compiled = {f.__name__: jax.jit(jax.value_and_grad(f, (0, 1))).lower(*shapes).compile() for f in (full, pieces)}
    return compiled


def head_times(programs: Mapping[str, Any], vocabulary: int, width: int, tokens: int, rounds: int) -> dict[str, float]:
    """Median processor seconds of each program, in turn."""
    inputs = jax.jit(lambda: _head_inputs(vocabulary, width, tokens))()
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds + 1):
        for name, program in programs.items():
            start = time.process_time()
            jax.block_until_ready(program(*inputs))
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


def _head_inputs(vocabulary: int, width: int, tokens: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    hidden, head, targets = jax.random.split(jax.random.key(0), 3)
    return (
        jax.random.normal(hidden, (tokens, width)),
        0.02 * jax.random.normal(head, (vocabulary, width)),
        jax.random.randint(targets, (tokens,), 0, vocabulary),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=json.loads, required=True)
    repeat(parser.parse_args().work)
