"""From logits to a token and its log-probability, in one pass over the vocabulary. Logits are [V, B], rows last."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

BLOCK = 128  # the two levels of the inverse CDF: V / BLOCK block sums, then BLOCK entries
MAX_ROUNDS = 100  # of rejection; each halves what is left, so only logits that are no numbers get so far


class Cut(NamedTuple):
    """Truncation of the distribution, traced: a token is kept if it is kept by all three. Ties are kept together."""

    top_k: jax.Array  # int32 []: the k likeliest; 0: all
    top_p: jax.Array  # float32 []: the fewest likeliest whose mass reaches p; 1: all
    min_p: jax.Array  # float32 []: those of at least min_p times the likeliest's probability; 0: all


class Mass(NamedTuple):
    """A distribution ready for inverse CDF on two levels; its exponentials are never stored."""

    logits: jax.Array  # [V / BLOCK, BLOCK, B], padded with -inf
    top: jax.Array  # [B]
    sums: jax.Array  # sums of exp(logits - top), [V / BLOCK, B]
    total: jax.Array  # [B]


def choose(logits: jax.Array, keys: jax.Array, temperature: jax.Array, cut: Cut) -> tuple[jax.Array, jax.Array]:
    """Draws from softmax(logits / temperature), cut; temperature 0 is greedy, with log-probabilities at temperature 1.

    logits float32 [V, B], keys [B], temperature [B] (traced, as is the cut: a new value is no new program) ->
    tokens int32 [B], log-probabilities float32 [B] of the *untruncated* distribution.
    """
    scaled = logits / jnp.where(temperature > 0, temperature, 1.0)
    mass = prepare(scaled)
    drawn = within(mass, draw(mass, _uniform(keys)), keys, cut)
    greedy = jnp.any(temperature <= 0)
    best = jax.lax.cond(greedy, lambda: jnp.argmax(scaled, axis=0).astype(jnp.int32), lambda: drawn)
    tokens = jnp.where(temperature > 0, drawn, best)
    return tokens, _at(scaled, tokens) - mass.top - jnp.log(mass.total)


def prepare(logits: jax.Array) -> Mass:
    """The sums over blocks of logits [V, B]."""
    top = jnp.max(logits, axis=0)
    blocks = jnp.pad(logits, ((0, -len(logits) % BLOCK), (0, 0)), constant_values=-jnp.inf)
    blocks = blocks.reshape(-1, BLOCK, len(top))
    sums = jnp.exp(blocks - top).sum(axis=1)
    return Mass(blocks, top, sums, sums.sum(axis=0))


def draw(mass: Mass, uniform: jax.Array, floor: jax.Array | None = None) -> jax.Array:
    """Exact draws by inverse CDF on two levels: first a block of the vocabulary by its mass, then an entry in it.

    Needs one random number [B] in [0, 1) a row instead of one a vocabulary entry (the Gumbel trick), and cumulative
    sums of V/128 and 128 numbers instead of V. With a `floor` [B], only logits above it count (and in `mass.sums`).
    """
    levels = jnp.cumsum(mass.sums, axis=0)
    block, rest = _first_above(levels, uniform * levels[-1])
    inside = jnp.take_along_axis(mass.logits, block[None, None], axis=0)[0]
    weights = jnp.exp(inside - mass.top)
    if floor is not None:
        weights = jnp.where(inside > floor, weights, 0.0)
    entry, _ = _first_above(jnp.cumsum(weights, axis=0), rest)
    return (block * BLOCK + entry).astype(jnp.int32)


def within(mass: Mass, tokens: jax.Array, keys: jax.Array, cut: Cut) -> jax.Array:
    """Makes exact draws from the cut distribution of draws [B] from the whole one, by rejection and without a sort.

    A token is kept if fewer than k tokens, and less than p of the mass, are above it. So a draw is judged by one pass
    over the vocabulary; if it is rejected, everything from it downwards is, and the next draw is from what is above
    it, whose block sums that pass has left behind. Whatever was rejected before, an accepted draw has the cut
    distribution. A handful of rounds, as each rejection takes away a random part of what is too much; none where
    nothing is cut.
    """
    off = (cut.top_k == 0) & (cut.top_p >= 1) & (cut.min_p <= 0)
    least = mass.top + jnp.log(jnp.maximum(cut.min_p, 0.0))
    flat = mass.logits.reshape(-1, len(mass.top))

    def go_on(state: tuple) -> jax.Array:
        round, _, done = state
        return (round < MAX_ROUNDS) & ~jnp.all(done)

    def one(state: tuple) -> tuple:
        round, tokens, done = state
        # Tied to the state: else the exponentials are computed and stored before the loop, even if it has no round.
        logits, tokens = jax.lax.optimization_barrier((mass.logits, tokens))
        here = _at(flat, tokens)
        above = logits > here
        sums = jnp.where(above, jnp.exp(logits - mass.top), 0.0).sum(axis=1)
        few = (cut.top_k == 0) | (above.sum(axis=1).sum(axis=0) < cut.top_k)
        light = (cut.top_p >= 1) | (sums.sum(axis=0) < cut.top_p * mass.total)
        done = done | (few & light & (here >= least))
        uniform = _uniform(jax.vmap(jax.random.fold_in, (0, None))(keys, round))
        return round + 1, jnp.where(done, tokens, draw(mass._replace(sums=sums), uniform, here)), done

    return jax.lax.while_loop(go_on, one, (jnp.int32(0), tokens, jnp.full(len(tokens), off)))[1]


def _uniform(keys: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.uniform)(keys)


def _first_above(levels: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first index whose cumulative level exceeds the target, and what of the target is left inside it.

    The target is kept just below the last level, so that rounding can never pick an entry of zero mass.
    """
    target = jnp.minimum(target, jnp.nextafter(levels[-1], jnp.zeros_like(target)))
    index = jnp.sum(levels <= target, axis=0)
    below = _at(levels, jnp.maximum(index - 1, 0))
    return index, target - jnp.where(index > 0, below, 0.0)


def _at(x: jax.Array, index: jax.Array) -> jax.Array:
    """x[index[b], b] for every row b."""
    return jnp.take_along_axis(x, index[None], axis=0)[0]
