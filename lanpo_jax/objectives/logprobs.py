"""From hidden states to log-probabilities of tokens, without ever holding a [tokens, vocabulary] array.

The single shift of the code base is applied here: `select` gathers for every token the hidden state that predicts it;
everything after that is indexed by token.

The vocabulary is walked in pieces, forward and backward: the softmax is accumulated as pieces come (arXiv 1805.02867),
and the backward pass computes each piece's logits again. A pass reads every piece of the output matrix once, and writes
its gradient once, so that devices which share the tokens add up that gradient once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

STATISTICS = ("logprobs", "entropy", "vocab_mean")
TILE = 2**23  # logits that exist at one time on each device
NARROWEST = 1024  # columns of a piece: fewer would have matrix units wait for memory
LOWEST = -1e30  # finite, so that differences of it are numbers


def select(hidden: jax.Array, source: jax.Array) -> jax.Array:
    """The hidden states that predict the tokens: [R, L, D], indices [R, ..] into L -> [R·.., D], row by row.

    `source` is the shift: the first token of a completion is predicted by the last prompt token, each later one by its
    predecessor. Padding may hold any index; it is moved into the row, and what it yields is masked later.
    """
    rows = source.shape[0]
    index = jnp.clip(source.reshape(rows, -1, 1), 0, hidden.shape[1] - 1)
    return jnp.take_along_axis(hidden, index, axis=1, mode="promise_in_bounds").reshape(-1, hidden.shape[-1])


def token_logprobs(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    *,
    temperature: jax.Array | float = 1.0,
    entropy: bool = False,
    columns: int | None = None,
    tied: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Log-probabilities of `targets` [M] and, on request, entropies [M] (nats) of softmax(hidden·head/temperature).

    `hidden` [M, D]; `head` [D, V], or [V, D] with `tied` (an embedding table). Products run in hidden's dtype with
    float32 accumulation; temperature and softmax are float32. Exact and differentiable in hidden and head.
    """
    names = ("logprobs", "entropy") if entropy else ("logprobs",)
    found = token_statistics(hidden, head, targets, temperature=temperature, names=names, columns=columns, tied=tied)
    return found["logprobs"], found.get("entropy")


def token_statistics(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    *,
    temperature: jax.Array | float = 1.0,
    names: Sequence[str] = ("logprobs",),
    columns: int | None = None,
    devices: int = 1,
    shards: int = 1,
    tied: bool = False,
) -> dict[str, jax.Array]:
    """Any of `logprobs`, `entropy`, `vocab_mean` (mean over the vocabulary of the log-probabilities), each [M].

    Shapes and precision as in `token_logprobs`. Tokens lie on `devices` devices and the vocabulary in `shards` equal
    parts on others; `columns` of each part are taken at a time (None: as many as TILE allows). Raises ValueError for an
    unknown name.
    """
    unknown = set(names) - set(STATISTICS)
    if unknown:
        raise ValueError(f"No token statistic {sorted(unknown)}; there are: {', '.join(STATISTICS)}.")
    part = head.shape[0 if tied else 1] // shards
    columns = min(part, columns or _even(part, max(NARROWEST, TILE * devices // hidden.shape[0])))
    return _statistics(hidden, head, targets, jnp.asarray(temperature), tuple(names), columns, shards, tied)


def _even(total: int, most: int) -> int:
    """The width of equal pieces of at most about `most` that make up `total`, in multiples of 128."""
    pieces = -(-total // most)
    return -(-total // pieces // 128) * 128


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def _statistics(hidden, head, targets, temperature, names, columns, shards, tied) -> dict[str, jax.Array]:
    return _forward(hidden, head, targets, temperature, names, columns, shards, tied)[0]


def _forward(hidden, head, targets, temperature, names, columns, shards, tied):
    vocabulary = head.shape[0 if tied else 1]

    def add(i: jax.Array, sums):
        top, total, own, weighted, plain = sums
        piece, ids, fresh, _ = _piece(head, i, columns, shards, tied)
        logits = jnp.where(fresh, project(hidden, piece, tied) / temperature, LOWEST)
        highest = jnp.maximum(top, logits.max(-1))
        below, moved = logits - highest[:, None], top - highest
        mass = jnp.exp(below)
        if "entropy" in names:
            weighted = jnp.exp(moved) * (weighted + moved * total) + jnp.sum(mass * below, -1)
        if "vocab_mean" in names:
            plain += jnp.sum(jnp.where(fresh, logits, 0), -1)
        own += jnp.sum(jnp.where(fresh & (ids == targets[:, None]), logits, 0), -1)
        return highest, jnp.exp(moved) * total + mass.sum(-1), own, weighted, plain

    zeros = jnp.zeros(hidden.shape[0], jnp.promote_types(hidden.dtype, jnp.float32))
    start = (zeros + LOWEST, zeros, zeros, zeros, zeros)
    top, total, own, weighted, plain = jax.lax.fori_loop(0, _pieces(head, columns, shards, tied), add, start)
    norm = top + jnp.log(total)
    # weighted is the sum of exp(x)·x for logits x below the highest: nothing large cancels in the entropy.
    found = {
        "logprobs": own - norm,
        "entropy": jnp.log(total) - weighted / total,
        "vocab_mean": plain / vocabulary - norm,
    }
    saved = (hidden, head, targets, temperature, norm, found["entropy"])
    return {name: found[name] for name in names}, saved


def _backward(names, columns, shards, tied, saved, slopes: Mapping[str, jax.Array]):
    """d logprob/d logit = own - p; d entropy = -p (log p + entropy); d vocab_mean = 1/V - p; then the chain rule.

    Cotangents meet operands in hidden's dtype: left to JAX, a float32 one would make the whole product a float32 one.
    The head's gradient is kept in the head's own dtype, hidden's is summed in float32.
    """
    hidden, head, targets, temperature, norm, entropy = saved
    vocabulary, axis = head.shape[0 if tied else 1], 1 if tied else 2
    zero = jnp.zeros_like(norm)
    own, spread, level = (slopes.get(name, zero)[:, None] for name in STATISTICS)

    def add(i: jax.Array, sums):
        to_hidden, to_head = sums
        piece, ids, fresh, start = _piece(head, i, columns, shards, tied)
        logp = project(hidden, piece, tied) / temperature - norm[:, None]
        slope = -own - level
        if "entropy" in names:
            slope -= spread * (logp + entropy[:, None])
        slope = jnp.exp(logp) * slope + jnp.where(ids == targets[:, None], own, 0)
        if "vocab_mean" in names:
            slope += level / vocabulary
        slope = jnp.where(fresh, slope / temperature, 0).astype(hidden.dtype)
        to_hidden += _dot(slope, piece.astype(hidden.dtype), 1, 0 if tied else 1)
        new = _dot(slope, hidden, 0, 0) if tied else _dot(hidden, slope, 0, 0)
        old = jax.lax.dynamic_slice_in_dim(to_head, start, columns, axis)
        new = old + new.reshape(old.shape).astype(head.dtype)
        return to_hidden, jax.lax.dynamic_update_slice_in_dim(to_head, new, start, axis)

    start = jnp.zeros(hidden.shape, norm.dtype), jnp.zeros_like(_parts(head, shards, tied))
    to_hidden, to_head = jax.lax.fori_loop(0, _pieces(head, columns, shards, tied), add, start)
    return to_hidden.astype(hidden.dtype), to_head.reshape(head.shape), None, None


_statistics.defvjp(_forward, _backward)


def _parts(head: jax.Array, shards: int, tied: bool) -> jax.Array:
    """The head with its vocabulary in parts as devices hold it: [shards, V/shards, D], or [D, shards, V/shards]."""
    return head.reshape(shards, -1, head.shape[1]) if tied else head.reshape(head.shape[0], shards, -1)


def _pieces(head: jax.Array, columns: int, shards: int, tied: bool) -> int:
    return -(-head.shape[0 if tied else 1] // shards // columns)


def _piece(head: jax.Array, i: jax.Array, columns: int, shards: int, tied: bool):
    """Piece i of the head, its token ids, which of them are new, and its start in each part.

    The last piece reaches back where `columns` does not divide a part: what it repeats is not new.
    """
    axis = 1 if tied else 2
    parts = _parts(head, shards, tied)
    size = parts.shape[axis]
    start = jnp.minimum(i * columns, size - columns)
    piece = jax.lax.dynamic_slice_in_dim(parts, start, columns, axis)
    piece = piece.reshape(-1, head.shape[1]) if tied else piece.reshape(head.shape[0], -1)
    place = jnp.tile(start + jnp.arange(columns), shards)
    return piece, place + jnp.repeat(jnp.arange(shards) * size, columns), place >= i * columns, start


def map_tokens(function: Callable, arrays: tuple[jax.Array, ...], chunk: int):
    """Applies a function of token arrays [m, ..] to `chunk` tokens at a time.

    A chunk is a *stripe* (every n-th token), not a block: with tokens sharded over devices each chunk then has its
    share of every device's tokens, where blocks would leave all devices but one idle.
    """
    total = arrays[0].shape[0]
    count = -(-total // chunk)
    if count <= 1:
        return function(*arrays)

    def stripes(array: jax.Array) -> jax.Array:
        padded = jnp.pad(array, [(0, count * chunk - total)] + [(0, 0)] * (array.ndim - 1))
        return jnp.swapaxes(padded.reshape(chunk, count, *array.shape[1:]), 0, 1)

    results = jax.lax.map(lambda parts: function(*parts), tuple(stripes(a) for a in arrays))
    return jax.tree.map(lambda r: jnp.swapaxes(r, 0, 1).reshape(count * chunk, *r.shape[2:])[:total], results)


def project(hidden: jax.Array, head: jax.Array, tied: bool) -> jax.Array:
    """hidden·head, multiplied in hidden's dtype, accumulated and returned in float32 (or better)."""
    return _dot(hidden, head.astype(hidden.dtype), 1, 1 if tied else 0)


def _dot(a: jax.Array, b: jax.Array, axis_a: int, axis_b: int) -> jax.Array:
    """Contracts one axis of each matrix, accumulating in float32 or better."""
    dtype = jnp.promote_types(a.dtype, jnp.float32)
    return jax.lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((), ())), preferred_element_type=dtype)
