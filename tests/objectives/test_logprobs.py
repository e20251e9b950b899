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


@pytest.mark.parametrize("columns", [1, 4, 9, 17, 64, None])
def test_statistics_in_pieces_equal_full_softmax(columns):
    hidden, head, targets = _inputs()
    hidden = hidden + 100 * head[:, 0]  # one logit towers over the others
    found = logprobs_lib.token_statistics(
        hidden, head, targets, temperature=0.7, names=logprobs_lib.STATISTICS, columns=columns
    )
    logp = np.asarray(jax.nn.log_softmax(hidden @ head / 0.7))
    expected = logp[np.arange(13), targets], -(np.exp(logp) * logp).sum(-1), logp.mean(-1)
    for name, wanted in zip(logprobs_lib.STATISTICS, expected):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-11, atol=1e-11)
    assert expected[1].min() < 1e-9  # so peaked that entropies as differences of large numbers would be noise


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("columns", "shards"), [(3, 1), (3, 2), (17, 2), (34, 1)])
def test_gradient_in_hidden_and_head_equals_autodiff_of_the_full_softmax(columns, shards, tied):
    hidden, head, targets = _inputs(vocabulary=34)
    head = head.T if tied else head
    weights = np.random.default_rng(1).normal(size=(3, 13))

    def pieces(hidden, head):
        found = logprobs_lib.token_statistics(
            hidden, head, targets, temperature=0.6, names=logprobs_lib.STATISTICS, columns=columns, shards=shards,
            tied=tied,
        )  # fmt: skip
        return sum(jnp.sum(w * found[name]) for w, name in zip(weights, logprobs_lib.STATISTICS))

    def full(hidden, head):
        logp = jax.nn.log_softmax(hidden @ (head.T if tied else head) / 0.6)
        found = logp[jnp.arange(13), targets], -jnp.sum(jnp.exp(logp) * logp, -1), logp.mean(-1)
        return sum(jnp.sum(w * x) for w, x in zip(weights, found))

    np.testing.assert_allclose(pieces(hidden, head), full(hidden, head), rtol=1e-12)
    for found, expected in zip(jax.grad(pieces, (0, 1))(hidden, head), jax.grad(full, (0, 1))(hidden, head)):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", logprobs_lib.STATISTICS)
def test_gradient_of_each_statistic_alone(name):
    hidden, head, targets = _inputs()
    several = lambda h: logprobs_lib.token_statistics(h, head, targets, names=logprobs_lib.STATISTICS)[name].sum()  # noqa: E731
    alone = lambda h: logprobs_lib.token_statistics(h, head, targets, names=(name,), columns=5)[name].sum()  # noqa: E731
    np.testing.assert_allclose(jax.grad(alone)(hidden), jax.grad(several)(hidden), rtol=1e-11, atol=1e-13)


def test_logits_that_are_not_finite_do_not_vanish():
    hidden, head, targets = _inputs()
    found, _ = logprobs_lib.token_logprobs(hidden.at[2].set(jnp.nan), head, targets, columns=4)
    assert np.isnan(found[2]) and np.isfinite(np.delete(np.asarray(found), 2)).all()


def test_tied_head_is_the_transposed_head():
    hidden, head, targets = _inputs()
    plain = logprobs_lib.token_logprobs(hidden, head, targets, entropy=True, columns=4)
    tied = logprobs_lib.token_logprobs(hidden, head.T, targets, entropy=True, columns=4, tied=True)
    np.testing.assert_allclose(plain, tied, rtol=1e-13)


def test_no_array_of_tokens_times_vocabulary_is_made():
    hidden, head, targets = _inputs(tokens=640, vocabulary=2000)

    def total(hidden, head):
        found = logprobs_lib.token_statistics(hidden, head, targets, names=logprobs_lib.STATISTICS, columns=16)
        return sum(jnp.sum(x) for x in found.values())

    program = jax.make_jaxpr(jax.grad(total, (0, 1)))(hidden, head)
    sizes = {v.aval.size for eqn in _equations(program.jaxpr) for v in eqn.outvars}
    assert max(sizes) == 640 * 16  # more than the head itself; the logits would be 125 times as many


def test_memory_of_the_gradient_at_a_published_vocabulary():
    """8 x 512 tokens of Qwen2.5-0.5B: temporaries of the compiled program, of which nothing is run."""
    hidden = jax.ShapeDtypeStruct((4096, 896), jnp.float32)
    head = jax.ShapeDtypeStruct((151_936, 896), jnp.float32)
    targets = jax.ShapeDtypeStruct((4096,), jnp.int32)

    def pieces(hidden, head, targets):
        return logprobs_lib.token_logprobs(hidden, head, targets, entropy=True, tied=True)[0].sum()

    def full(hidden, head, targets):
        return jax.nn.log_softmax(hidden @ head.T)[jnp.arange(4096), targets].sum()

    def temporaries(function):
        program = jax.jit(jax.value_and_grad(function, (0, 1))).lower(hidden, head, targets).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert temporaries(pieces) < 0.02 * temporaries(full)


def test_pieces_are_even_and_bounded():
    for part, most in [(151_936, 2048), (49_152, 4096), (8192, 100_000), (97, 1024), (152_064, 9504)]:
        width = logprobs_lib._even(part, most)
        pieces = -(-part // width)
        assert width % 128 == 0 and width <= most + 128
        assert pieces * width - part < 0.1 * part + 128  # what the last piece repeats


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

    def loss(hidden, head, columns):
        return logprobs_lib.token_logprobs(hidden, head, targets, columns=columns, tied=tied)[0].sum()

    to_hidden, to_head = jax.grad(loss, (0, 1))(half, single, 4)
    assert to_hidden.dtype == jnp.bfloat16 and to_head.dtype == jnp.float32
    exact = jax.grad(loss, (0, 1))(half.astype(jnp.float64), single.astype(jnp.float64), 64)
    for found, wanted in zip((to_hidden, to_head), exact):
        wanted = np.asarray(wanted)
        assert np.abs(np.asarray(found, np.float64) - wanted).max() < 0.01 * np.abs(wanted).max()
    # a float32 operand would silently turn the whole product into a float32 one
    program = jax.make_jaxpr(jax.grad(loss, (0, 1)), static_argnums=2)(half, single, 4)
    products = [eqn for eqn in _equations(program.jaxpr) if eqn.primitive.name == "dot_general"]
    assert {v.aval.dtype for eqn in products for v in eqn.invars} == {jnp.dtype(jnp.bfloat16)}


def _equations(jaxpr):
    """All equations of a program, those in loops included."""
    found = list(jaxpr.eqns)
    for eqn in jaxpr.eqns:
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            found += _equations(inner) if hasattr(inner, "eqns") else []
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
