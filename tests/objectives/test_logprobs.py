import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanpo_jax.objectives import logprobs as logprobs_lib


def _inputs(tokens=13, width=5, vocabulary=17, seed=0):
    rng = np.random.default_rng(seed)
    hidden = jnp.array(rng.normal(size=(tokens, width)))
    head = jnp.array(rng.normal(size=(width, vocabulary)))
    return hidden, head, jnp.array(rng.integers(0, vocabulary, tokens))


def _naive(hidden, head, targets, temperature):
    logits = np.asarray(hidden) @ np.asarray(head) / temperature
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = logp[np.arange(len(targets)), np.asarray(targets)]
    return chosen, -(np.exp(logp) * logp).sum(-1), logp.mean(-1)


@pytest.mark.parametrize("chunk", [1, 4, 13, 64])
def test_chunked_statistics_equal_full_softmax(chunk):
    hidden, head, targets = _inputs()
    found = logprobs_lib.token_statistics(
        hidden, head, targets, temperature=0.7, names=("logprobs", "entropy", "vocab_mean"), chunk=chunk
    )
    for name, expected in zip(("logprobs", "entropy", "vocab_mean"), _naive(hidden, head, targets, 0.7)):
        np.testing.assert_allclose(found[name], expected, rtol=1e-12)


def test_gradient_in_hidden_and_head_equals_unchunked():
    hidden, head, targets = _inputs()
    weight = jnp.arange(13.0)

    def chunked(hidden, head):
        return jnp.sum(weight * logprobs_lib.token_logprobs(hidden, head, targets, temperature=0.6, chunk=4)[0])

    def full(hidden, head):
        return jnp.sum(weight * jax.nn.log_softmax(hidden @ head / 0.6)[jnp.arange(13), targets])

    for found, expected in zip(jax.grad(chunked, (0, 1))(hidden, head), jax.grad(full, (0, 1))(hidden, head)):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


def test_tied_head_is_the_transposed_head():
    hidden, head, targets = _inputs()
    plain = logprobs_lib.token_logprobs(hidden, head, targets, entropy=True, chunk=4)
    tied = logprobs_lib.token_logprobs(hidden, head.T, targets, entropy=True, chunk=4, tied=True)
    np.testing.assert_allclose(plain, tied, rtol=1e-13)


def test_no_array_of_tokens_times_vocabulary_is_made():
    hidden, head, targets = _inputs(tokens=64, vocabulary=1000)
    text = str(
        jax.make_jaxpr(jax.grad(lambda h: logprobs_lib.token_logprobs(h, head, targets, chunk=8)[0].sum()))(hidden)
    )
    assert "8,1000" in text and "64,1000" not in text and "8,8,1000" not in text


def test_half_precision_hidden_accumulates_in_float32():
    hidden, head, targets = _inputs()
    half = hidden.astype(jnp.bfloat16)
    found, _ = logprobs_lib.token_logprobs(half, head.astype(jnp.float32), targets)
    rounded = np.asarray(head.astype(jnp.bfloat16), np.float64)
    expected = _naive(np.asarray(half, np.float64), rounded, targets, 1.0)[0]
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_half_precision_gradients_sum_in_the_heads_own_dtype(tied):
    hidden, head, targets = _inputs(tokens=64)
    half, single = hidden.astype(jnp.bfloat16), (head.T if tied else head).astype(jnp.float32)

    def loss(hidden, head, chunk):
        return logprobs_lib.token_logprobs(hidden, head, targets, chunk=chunk, tied=tied)[0].sum()

    to_hidden, to_head = jax.grad(loss, (0, 1))(half, single, 4)
    assert to_hidden.dtype == jnp.bfloat16 and to_head.dtype == jnp.float32
    exact = jax.grad(loss, (0, 1))(half.astype(jnp.float64), single.astype(jnp.float64), 64)
    for found, wanted in zip((to_hidden, to_head), exact):
        wanted = np.asarray(wanted)
        assert np.abs(np.asarray(found, np.float64) - wanted).max() < 0.01 * np.abs(wanted).max()
    # a float32 operand would silently turn the whole product into a float32 one
    program = jax.make_jaxpr(jax.grad(loss, (0, 1)), static_argnums=2)(half, single, 4)
    assert {v.aval.dtype for eqn in _products(program.jaxpr) for v in eqn.invars} == {jnp.dtype(jnp.bfloat16)}


def _products(jaxpr):
    """All matrix products of a program, those in loops included."""
    found = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]
    for eqn in jaxpr.eqns:
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            found += _products(inner) if hasattr(inner, "eqns") else []
    return found


def test_temperature_scales_both_sides_alike():
    # mis-01: logits (2, 0), token 0, temperature 0.6; log-prob -0.0350524161 wherever it is computed
    found, _ = logprobs_lib.token_logprobs(jnp.ones((1, 1)), jnp.array([[2.0, 0.0]]), jnp.array([0]), temperature=0.6)
    np.testing.assert_allclose(found, -0.0350524161, atol=1e-10)


def test_unknown_statistic_is_refused():
    hidden, head, targets = _inputs()
    with pytest.raises(ValueError, match="vocab_mean"):
        logprobs_lib.token_statistics(hidden, head, targets, names=("entropies",))


def test_select_gathers_row_by_row_and_stays_inside():
    hidden = jnp.arange(16.0).reshape(2, 8, 1)
    # row 0: 3 prompt tokens, completion 0 at 3..4, completion 1 at 5..7
    source = jnp.array([[[2, 3, 4], [2, 5, 6]], [[0, 1, 2], [-5, 99, 7]]])
    found = logprobs_lib.select(hidden, source)[:, 0]
    np.testing.assert_array_equal(found, [2, 3, 4, 2, 5, 6, 8, 9, 10, 8, 15, 15])
