import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lanpo_jax.objectives import curvature
from lanpo_jax.objectives import logprobs as logprobs_lib


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(0)
    return {
        "hidden": rng.normal(size=(6, 5)),
        "head": rng.normal(size=(5, 17)),
        "step": rng.normal(size=(5, 17)),
        "targets": rng.integers(0, 17, 6),
        "weights": rng.normal(size=6),
    }


@pytest.fixture
def inputs(numbers):
    return {name: jnp.array(value) for name, value in numbers.items()}


def _softmax(inputs, t, temperature=1.0):
    logits = np.asarray(inputs["hidden"][t] @ inputs["head"]) / temperature
    return np.exp(logits) / np.exp(logits).sum()


def test_terms_equal_their_definition(inputs):
    found = curvature.terms(*(inputs[k] for k in ("hidden", "head", "step", "targets")), temperature=0.8, chunk=4)
    for t in range(6):
        pi, u = _softmax(inputs, t, 0.8), np.asarray(inputs["hidden"][t] @ inputs["step"]) / 0.8
        v = (np.arange(17) == int(inputs["targets"][t])) - pi
        np.testing.assert_allclose(found["drift"][t], v @ u, rtol=1e-10)
        np.testing.assert_allclose(found["spread"][t], u @ (np.diag(pi) - np.outer(pi, pi)) @ u, rtol=1e-10)


def test_terms_predict_the_change_of_the_log_probability(inputs):
    hidden, head, targets = (inputs[k] for k in ("hidden", "head", "targets"))
    step = 1e-3 * inputs["step"]
    found = curvature.terms(hidden, head, step, targets)
    before, _ = logprobs_lib.token_logprobs(hidden, head, targets)
    after, _ = logprobs_lib.token_logprobs(hidden, head + step, targets)
    np.testing.assert_allclose(after - before, found["drift"] - 0.5 * found["spread"], atol=2e-8)


def test_head_gradient_is_the_sum_of_outer_products(inputs):
    found = curvature.head_gradient(*(inputs[k] for k in ("hidden", "head", "targets", "weights")), chunk=4)
    expected = np.zeros((5, 17))
    for t in range(6):
        v = (np.arange(17) == int(inputs["targets"][t])) - _softmax(inputs, t)
        expected += float(inputs["weights"][t]) * np.outer(np.asarray(inputs["hidden"][t]), v)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_planned_step_is_what_optax_takes(inputs):
    head, gradient = inputs["head"], inputs["step"]
    optimizer = optax.adam(1e-2)
    state = optimizer.init(head)
    for scale in (1.0, -0.5, 2.0):
        planned = curvature.planned_step(gradient * scale, state[0].mu, state[0].nu, state[0].count, rate=1e-2)
        update, state = optimizer.update(-gradient * scale, state)  # the gradient of a loss to be minimised
        np.testing.assert_allclose(planned, update, rtol=1e-6)


def test_tied_head_gives_the_same(inputs):
    hidden, head, step, targets = (inputs[k] for k in ("hidden", "head", "step", "targets"))
    plain = curvature.terms(hidden, head, step, targets)
    tied = curvature.terms(hidden, head.T, step.T, targets, tied=True)
    assert jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-12), plain, tied))
