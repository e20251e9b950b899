"""Drawing: the two-level inverse CDF and its cuts against the distribution itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from lanpo_jax.sampling import choose


def cut(top_k=0, top_p=1.0, min_p=0.0):
    return choose.Cut(jnp.int32(top_k), jnp.float32(top_p), jnp.float32(min_p))


def keys(count, seed=1):
    return jax.random.split(jax.random.key(seed), count)


def chi_square(tokens, p):
    """p-value of tokens under probabilities p; what is expected fewer than five times is pooled."""
    seen = np.bincount(np.asarray(tokens), minlength=len(p))
    common = p * len(tokens) >= 5
    observed = np.append(seen[common], seen[~common].sum())
    expected = np.append(p[common], p[~common].sum()) * len(tokens)
    keep = expected > 0
    assert not observed[~keep].any()
    return scipy.stats.chisquare(observed[keep], expected[keep]).pvalue if keep.sum() > 1 else 1.0


def softmax(logits):
    p = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return p / p.sum()


@pytest.mark.parametrize("vocab", [5, 256, 700])
def test_draws_follow_the_distribution(vocab):
    draws = 40_000
    logits = np.random.default_rng(0).normal(0, 1.5, vocab).astype(np.float32)
    tokens, logprobs = jax.jit(choose.choose)(
        jnp.tile(logits[:, None], (1, draws)), keys(draws), jnp.ones(draws), cut()
    )
    p = softmax(logits)
    assert chi_square(tokens, p) > 1e-3
    np.testing.assert_allclose(logprobs, np.log(p)[np.asarray(tokens)], atol=2e-5)


def kept(logits, top_k=0, top_p=1.0, min_p=0.0):
    """Which tokens a cut keeps, by a sort in float64."""
    p = softmax(logits)
    order = np.argsort(-p, kind="stable")
    mass_above = np.cumsum(p[order]) - p[order]
    keep = np.zeros(len(p), bool)
    keep[order[mass_above < top_p]] = True
    if top_k:
        keep &= np.isin(np.arange(len(p)), order[:top_k])
    return keep & (p >= min_p * p.max())


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1},
        {"top_k": 7},
        {"top_p": 0.9},
        {"top_p": 0.3},
        {"min_p": 0.2},
        {"top_k": 40, "top_p": 0.6, "min_p": 0.01},
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [0.2, 2.0])
def test_cut_draws_follow_the_cut_distribution(options, spread):
    """Exactly what a sort would keep, in the right proportions; log-probabilities stay those of the whole."""
    draws, vocab = 20_000, 700
    logits = np.random.default_rng(0).normal(0, spread, vocab).astype(np.float32)
    tokens, logprobs = jax.jit(choose.choose)(
        jnp.tile(logits[:, None], (1, draws)), keys(draws), jnp.ones(draws), cut(**options)
    )
    p = softmax(logits)
    inside = np.where(kept(logits, **options), p, 0.0)
    assert chi_square(tokens, inside / inside.sum()) > 1e-3
    np.testing.assert_allclose(logprobs, np.log(p)[np.asarray(tokens)], atol=2e-5)


def test_a_cut_row_does_not_depend_on_its_neighbours():
    rng = np.random.default_rng(5)
    logits = jnp.asarray(rng.normal(0, 2, (900, 64)).astype(np.float32))
    run = jax.jit(choose.choose)
    tokens, _ = run(logits, keys(64), jnp.ones(64), cut(top_p=0.5))
    order = rng.permutation(64)
    again, _ = run(logits[:, order], keys(64)[order], jnp.ones(64), cut(top_p=0.5))
    assert tokens[order].tolist() == again.tolist()


def test_logits_that_are_no_numbers_end_the_search():
    tokens, _ = jax.jit(choose.choose)(jnp.full((300, 2), jnp.nan), keys(2), jnp.ones(2), cut(top_p=0.5))
    assert tokens.shape == (2,)


def test_equals_the_plain_inverse_cdf():
    """Same uniform, same token as a cumulative sum in float64, but for draws within rounding of a border."""
    logits = np.random.default_rng(2).normal(0, 3, (512, 3000)).astype(np.float32)
    uniform = np.random.default_rng(3).uniform(size=512).astype(np.float32)
    tokens = choose.draw(choose.prepare(jnp.asarray(logits.T)), jnp.asarray(uniform))
    p = np.exp(logits.astype(np.float64))
    levels = np.cumsum(p / p.sum(-1, keepdims=True), axis=-1)
    plain = (levels <= uniform[:, None]).sum(-1)
    border = np.abs(levels - uniform[:, None]).min(-1) < 1e-5
    assert border.mean() < 0.1
    assert (np.asarray(tokens) == plain)[~border].all()


def test_never_draws_what_has_no_mass():
    logits = np.full((600, 3), -np.inf, np.float32)
    logits[300] = 0.0
    uniform = jnp.asarray([0.0, 0.5, np.nextafter(np.float32(1), np.float32(0))])
    assert choose.draw(choose.prepare(jnp.asarray(logits)), uniform).tolist() == [300] * 3
    tokens, logprobs = choose.choose(jnp.asarray(logits), keys(3), jnp.ones(3), cut())
    assert tokens.tolist() == [300] * 3 and logprobs.tolist() == [0.0] * 3


def test_zero_temperature_is_argmax_and_no_value_is_a_recompile():
    logits = jax.random.normal(jax.random.key(0), (50, 4))
    traces = []

    @jax.jit
    def run(t, cut):
        traces.append(1)
        return choose.choose(logits, keys(4), t, cut)

    assert run(jnp.zeros(4), cut())[0].tolist() == jnp.argmax(logits, 0).tolist()
    for given in (cut(), cut(top_k=3), cut(top_p=0.7), cut(min_p=0.1)):
        tokens, logprobs = run(jnp.asarray([0.5, 0.0, 2.0, 0.5]), given)
        assert tokens[1] == jnp.argmax(logits[:, 1])
        scales = jnp.asarray([0.5, 1.0, 2.0, 0.5])
        expected = jax.nn.log_softmax(logits / scales, axis=0)[tokens, jnp.arange(4)]
        np.testing.assert_allclose(logprobs, expected, atol=1e-6)
    assert len(traces) == 1
