"""CAPO's terms against plain loops, against optax's own steps and against the change they predict."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lanpo_jax.objectives import curvature
from lanpo_jax.objectives import logprobs as logprobs_lib

VOCAB, WIDTH, TOKENS = 17, 5, 6


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(0)
    targets = rng.integers(0, VOCAB, TOKENS)
    return {
        "hidden": rng.normal(size=(TOKENS, WIDTH)),
        "head": rng.normal(size=(WIDTH, VOCAB)),
        "targets": targets,
        "advantages": rng.normal(size=TOKENS),
    }


@pytest.fixture
def inputs(numbers):
    return {name: jnp.array(value) for name, value in numbers.items()}


@pytest.fixture
def state(inputs):
    """Adam after three updates."""
    rng = np.random.default_rng(1)
    optimizer = optax.adam(1e-2)
    found = optimizer.init(inputs["head"])
    for _ in range(3):
        _, found = optimizer.update(jnp.array(rng.normal(size=(WIDTH, VOCAB))), found)
    return optimizer, found


def moments(found):
    return found[0].mu, found[0].nu, found[0].count


def fresh(inputs):
    return jnp.zeros_like(inputs["head"]), jnp.zeros_like(inputs["head"]), jnp.int32(0)


def own_gradient(inputs, t, temperature=1.0):
    """d(A·log pi(target))/d head, by JAX from the definition."""

    def objective(head):
        logits = inputs["hidden"][t] @ head / temperature
        return inputs["advantages"][t] * jax.nn.log_softmax(logits)[inputs["targets"][t]]

    return jax.grad(objective)(inputs["head"])


def by_definition(inputs, t, step, temperature=1.0):
    logits = np.asarray(inputs["hidden"][t] @ inputs["head"]) / temperature
    pi = np.exp(logits) / np.exp(logits).sum()
    u = np.asarray(inputs["hidden"][t] @ step) / temperature
    v = (np.arange(VOCAB) == int(inputs["targets"][t])) - pi
    return v @ u, u @ (np.diag(pi) - np.outer(pi, pi)) @ u


def test_each_token_takes_the_step_that_optax_would_take_for_it_alone(inputs, state):
    optimizer, found = state
    terms = curvature.terms(**inputs, moments=moments(found), rate=1e-2, temperature=0.8, top=VOCAB, chunk=4)
    for t in range(TOKENS):
        step, _ = optimizer.update(-own_gradient(inputs, t, 0.8), found)  # of a loss that is minimised
        np.testing.assert_allclose(
            (terms["drift"][t], terms["spread"][t]), by_definition(inputs, t, step, 0.8), rtol=1e-6
        )


def test_before_the_first_update_the_gradient_is_the_step(inputs):
    terms = curvature.terms(**inputs, moments=fresh(inputs), rate=0.3, top=VOCAB)
    for t in range(TOKENS):
        step = 0.3 * own_gradient(inputs, t)
        np.testing.assert_allclose((terms["drift"][t], terms["spread"][t]), by_definition(inputs, t, step), rtol=1e-10)


def test_terms_predict_the_change_of_the_log_probability(inputs):
    terms = curvature.terms(**inputs, moments=fresh(inputs), rate=1e-3, top=VOCAB)
    before, _ = logprobs_lib.token_logprobs(inputs["hidden"], inputs["head"], inputs["targets"])
    for t in range(TOKENS):
        head = inputs["head"] + 1e-3 * own_gradient(inputs, t)
        after, _ = logprobs_lib.token_logprobs(inputs["hidden"], head, inputs["targets"])
        np.testing.assert_allclose(after[t] - before[t], terms["drift"][t] - 0.5 * terms["spread"][t], atol=2e-8)


def test_only_the_most_likely_tokens_and_the_sampled_one_count(inputs):
    """The published approximation: the softmax of the chosen logits alone."""
    top = 4
    terms = curvature.terms(**inputs, moments=fresh(inputs), rate=0.3, top=top)
    rare = 0
    for t in range(TOKENS):
        logits, target = np.asarray(inputs["hidden"][t] @ inputs["head"]), int(inputs["targets"][t])
        others = [i for i in np.argsort(-logits) if i != target][: top - 1]
        rare += target not in np.argsort(-logits)[:top]
        chosen = [target, *others]
        pi = np.exp(logits[chosen]) / np.exp(logits[chosen]).sum()
        v = np.array([1.0, 0, 0, 0]) - pi
        u = 0.3 * float(inputs["advantages"][t]) * v * float(inputs["hidden"][t] @ inputs["hidden"][t])
        np.testing.assert_allclose(terms["drift"][t], v @ u, rtol=1e-10)
        np.testing.assert_allclose(terms["spread"][t], pi @ u**2 - (pi @ u) ** 2, rtol=1e-9)
    assert rare  # the numbers hold a sampled token that is not among the most likely


def test_tied_head_gives_the_same(inputs, state):
    plain = curvature.terms(**inputs, moments=moments(state[1]), rate=1e-2)
    mu, nu, count = moments(state[1])
    turned = inputs | {"head": inputs["head"].T}
    tied = curvature.terms(**turned, moments=(mu.T, nu.T, count), rate=1e-2, tied=True)
    assert jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-12), plain, tied))


def test_no_gradient_flows(inputs):
    def total(hidden, head):
        found = curvature.terms(hidden, head, inputs["targets"], inputs["advantages"], fresh(inputs), rate=0.1)
        return found["drift"].sum() + found["spread"].sum()

    for gradient in jax.grad(total, argnums=(0, 1))(inputs["hidden"], inputs["head"]):
        assert not gradient.any()
