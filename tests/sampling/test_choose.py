"""Drawing: the two-level inverse CDF against the distribution itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from lanpo_jax.sampling import choose


@pytest.mark.parametrize("vocab", [5, 256, 700])
def test_draws_follow_the_distribution(vocab):
    draws = 40_000
    logits = np.random.default_rng(0).normal(0, 1.5, vocab).astype(np.float32)
    uniform = jax.random.uniform(jax.random.key(1), (draws,))
    tokens, logprobs = jax.jit(choose.inverse_cdf)(jnp.tile(logits, (draws, 1)), uniform)
    p = np.exp(logits.astype(np.float64))
    p /= p.sum()
    seen = np.bincount(np.asarray(tokens), minlength=vocab)
    common = p * draws >= 5  # chi-square wants expected counts of five and more; the rest is pooled
    observed = np.append(seen[common], seen[~common].sum())
    expected = np.append(p[common], p[~common].sum()) * draws
    keep = expected > 0
    assert scipy.stats.chisquare(observed[keep], expected[keep]).pvalue > 1e-3
    np.testing.assert_allclose(logprobs, np.log(p)[np.asarray(tokens)], atol=2e-5)


def test_equals_the_plain_inverse_cdf():
    """Same uniform, same token as a cumulative sum in float64, but for draws within rounding of a border."""
    logits = np.random.default_rng(2).normal(0, 3, (512, 3000)).astype(np.float32)
    uniform = np.random.default_rng(3).uniform(size=512).astype(np.float32)
    tokens, _ = choose.inverse_cdf(jnp.asarray(logits), jnp.asarray(uniform))
    p = np.exp(logits.astype(np.float64))
    levels = np.cumsum(p / p.sum(-1, keepdims=True), axis=-1)
    plain = (levels <= uniform[:, None]).sum(-1)
    border = np.abs(levels - uniform[:, None]).min(-1) < 1e-5
    assert border.mean() < 0.1
    assert (np.asarray(tokens) == plain)[~border].all()


def test_never_draws_what_has_no_mass():
    logits = np.full((3, 600), -np.inf, np.float32)
    logits[:, 300] = 0.0
    uniform = jnp.asarray([0.0, 0.5, np.nextafter(np.float32(1), np.float32(0))])
    tokens, logprobs = choose.inverse_cdf(jnp.asarray(logits), uniform)
    assert tokens.tolist() == [300] * 3
    assert logprobs.tolist() == [0.0] * 3


def test_zero_temperature_is_argmax_and_temperature_is_no_recompile():
    logits = jax.random.normal(jax.random.key(0), (4, 50))
    uniform = jnp.full(4, 0.9)
    traces = []

    @jax.jit
    def run(t):
        traces.append(1)
        return choose.choose(logits, uniform, t)

    assert run(jnp.zeros(4))[0].tolist() == jnp.argmax(logits, -1).tolist()
    tokens, logprobs = run(jnp.asarray([0.5, 0.0, 2.0, 0.5]))
    assert tokens[1] == jnp.argmax(logits[1])
    scales = jnp.asarray([0.5, 1.0, 2.0, 0.5])[:, None]
    expected = jax.nn.log_softmax(logits / scales)[jnp.arange(4), tokens]
    np.testing.assert_allclose(logprobs, expected, atol=1e-6)
    assert len(traces) == 1
