"""Shared inputs: the 4 x 6 float64 batch on which other libraries' numbers were taken, and a one-line way to a loss."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.objectives import pooled
from lanpo_jax.objectives import tokens as tokens_lib

SLOTS = {
    "filter": "keep_all",
    "advantage": "none",
    "ratio": "token",
    "surrogate": "clip",
    "weights": "none",
    "aggregate": "token_mean",
    "kl": "none",
    "reward_kl": "none",
    "value": "none",
    "whole": "none",
}


def compiled(function):
    """jit for programs that run once: half of the compilation time goes without the optimiser."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(autouse=True)
def x64():
    """Numbers are compared in float64; tests that are about float32 say so in their arrays."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def oracle():
    """Losses, gradients and metrics of verl, TRL and OpenRLHF on one batch; masked positions hold junk."""
    return json.loads((pathlib.Path(__file__).parent / "oracle_vectors.json").read_text())


@pytest.fixture
def batch(oracle):
    inputs = {name: jnp.array(value) for name, value in oracle["inputs"].items() if name != "note"}
    return tokens_lib.Batch(
        mask=inputs["mask"],
        advantages=inputs["advantages_per_sequence"],
        old_logprobs=inputs["old"],
        ref_logprobs=inputs["ref"],
        sampler_logprobs=inputs["rollout"],
    )


@pytest.fixture
def logprobs(oracle):
    return jnp.array(oracle["inputs"]["logp"])


@pytest.fixture(scope="session")
def build():
    """build(slot=spec, ...): an objective from the plainest slots and those given."""
    return lambda **slots: objective_lib.build(SLOTS | slots)


@pytest.fixture(scope="session")
def evaluate():
    """evaluate(objective, logprobs, batch): the loss, its gradient in logprobs, and finished metrics, as NumPy."""

    def run(objective, logprobs, batch, **inputs):
        def value(logprobs):
            total, weight, metrics = objective_lib.loss(objective, logprobs, batch, **inputs)
            return pooled.ratio(total, weight), pooled.finish(metrics)

        (result, metrics), gradient = compiled(jax.value_and_grad(value, has_aux=True))(logprobs)
        return float(result), np.asarray(gradient), {k: float(v) for k, v in metrics.items()}

    return run
