"""From logits to a token and its log-probability, in one pass over the vocabulary."""

from __future__ import annotations

import jax
import jax.numpy as jnp

BLOCK = 256  # the two levels of the inverse CDF: V / BLOCK block sums, then BLOCK entries


def choose(logits: jax.Array, uniform: jax.Array, temperature: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws from softmax(logits / temperature); temperature 0 is greedy, with log-probabilities at temperature 1.

    logits float32 [B, V], uniform [B] in [0, 1), temperature [B] (traced: a new value is no new program) ->
    tokens int32 [B], log-probabilities float32 [B] of the untruncated distribution.
    """
    scaled = logits / jnp.where(temperature > 0, temperature, 1.0)[:, None]
    drawn, logprobs = inverse_cdf(scaled, uniform)

    def with_greedy():
        best = jnp.argmax(scaled, axis=-1).astype(jnp.int32)
        at_best = jax.nn.log_softmax(scaled)[jnp.arange(len(best)), best]
        return jnp.where(temperature > 0, drawn, best), jnp.where(temperature > 0, logprobs, at_best)

    return jax.lax.cond(jnp.all(temperature > 0), lambda: (drawn, logprobs), with_greedy)


def inverse_cdf(logits: jax.Array, uniform: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Exact draws by inverse CDF on two levels: first a block of the vocabulary by its mass, then an entry in it.

    Needs one random number a row instead of one a vocabulary entry (the Gumbel trick), and cumulative sums of V/256
    and 256 numbers instead of V. logits [B, V], uniform [B] in [0, 1) -> tokens [B], log softmax at them [B].
    """
    rows, vocab = logits.shape
    padded = jnp.pad(logits, ((0, 0), (0, -vocab % BLOCK)), constant_values=-jnp.inf)
    top = jnp.max(logits, axis=-1, keepdims=True)
    mass = jnp.exp(padded - top).reshape(rows, -1, BLOCK)
    levels = jnp.cumsum(mass.sum(axis=-1), axis=-1)
    total = levels[:, -1]
    block, rest = _first_above(levels, uniform * total)
    inner = jnp.take_along_axis(mass, block[:, None, None], axis=1)[:, 0]
    entry, _ = _first_above(jnp.cumsum(inner, axis=-1), rest)
    tokens = (block * BLOCK + entry).astype(jnp.int32)
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return tokens, chosen - top[:, 0] - jnp.log(total)


def _first_above(levels: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first index whose cumulative level exceeds the target, and what of the target is left inside it.

    The target is kept just below the last level, so that rounding can never pick an entry of zero mass.
    """
    target = jnp.minimum(target, jnp.nextafter(levels[:, -1], jnp.zeros_like(target)))
    index = jnp.sum(levels <= target[:, None], axis=-1)
    below = jnp.take_along_axis(levels, jnp.maximum(index - 1, 0)[:, None], axis=-1)[:, 0]
    return index, target - jnp.where(index > 0, below, 0.0)
