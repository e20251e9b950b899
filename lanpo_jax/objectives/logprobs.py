"""From hidden states to log-probabilities of tokens, without ever holding a [tokens, vocabulary] array.

The single shift of the code base is applied here: `select` gathers for every token the hidden state that predicts it;
everything after that is indexed by token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

# Tokens whose logits exist at one time, over all devices together: give 256 for each device that tokens are split
# over. Fewer save memory; every chunk costs one reduction of the head's gradient across those devices.
CHUNK = 256


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
    chunk: int = CHUNK,
    tied: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Log-probabilities of `targets` [M] and, on request, entropies [M] (nats) of softmax(hidden·head/temperature).

    `hidden` [M, D]; `head` [D, V], or [V, D] with `tied` (an embedding table). The product runs in hidden's dtype with
    float32 accumulation; temperature and softmax are float32. Exact and differentiable in hidden and head.
    """
    names = ("logprobs", "entropy") if entropy else ("logprobs",)
    found = token_statistics(hidden, head, targets, temperature=temperature, names=names, chunk=chunk, tied=tied)
    return found["logprobs"], found.get("entropy")


def token_statistics(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    *,
    temperature: jax.Array | float = 1.0,
    names: Sequence[str] = ("logprobs",),
    chunk: int = CHUNK,
    tied: bool = False,
) -> dict[str, jax.Array]:
    """Any of `logprobs`, `entropy`, `vocab_mean` (mean over the vocabulary of the log-probabilities), each [M].

    Shapes and precision as in `token_logprobs`. Raises ValueError for an unknown name.
    """
    unknown = set(names) - {"logprobs", "entropy", "vocab_mean"}
    if unknown:
        raise ValueError(f"No token statistic {sorted(unknown)}; there are: logprobs, entropy, vocab_mean.")

    def statistics(hidden: jax.Array, targets: jax.Array) -> dict[str, jax.Array]:
        logits = project(hidden, head, tied) / temperature
        norm = jax.nn.logsumexp(logits, axis=-1)
        results = {}
        if "logprobs" in names:
            results["logprobs"] = pick(logits, targets) - norm
        if "entropy" in names:
            results["entropy"] = norm - jnp.sum(jnp.exp(logits - norm[:, None]) * logits, axis=-1)
        if "vocab_mean" in names:
            results["vocab_mean"] = jnp.mean(logits, axis=-1) - norm
        return results

    return map_tokens(statistics, (hidden, targets), chunk)


def pick(x: jax.Array, targets: jax.Array) -> jax.Array:
    """x[m, targets[m]] of [m, V], as a masked sum: local where the vocabulary is sharded, which a gather is not."""
    return jnp.sum(jnp.where(jnp.arange(x.shape[-1]) == targets[:, None], x, 0), axis=-1)


def map_tokens(function: Callable, arrays: tuple[jax.Array, ...], chunk: int):
    """Applies a function of token arrays [m, ..] to `chunk` tokens at a time, recomputed in the backward pass.

    A chunk is a *stripe* (every n-th token), not a block: with tokens sharded over devices each chunk then has its
    share of every device's tokens, where blocks would leave all devices but one idle.
    """
    total = arrays[0].shape[0]
    count = -(-total // chunk)
    function = jax.checkpoint(function)
    if count <= 1:
        return function(*arrays)

    def stripes(array: jax.Array) -> jax.Array:
        padded = jnp.pad(array, [(0, count * chunk - total)] + [(0, 0)] * (array.ndim - 1))
        return jnp.swapaxes(padded.reshape(chunk, count, *array.shape[1:]), 0, 1)

    results = jax.lax.map(lambda parts: function(*parts), tuple(stripes(a) for a in arrays))
    return jax.tree.map(lambda r: jnp.swapaxes(r, 0, 1).reshape(count * chunk, *r.shape[2:])[:total], results)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def project(hidden: jax.Array, head: jax.Array, tied: bool) -> jax.Array:
    """hidden·head, multiplied in hidden's dtype, accumulated and returned in float32 (or better).

    The backward pass multiplies in hidden's dtype too: left to JAX, a float32 cotangent meets a bfloat16 operand and
    the product is done in float32, at several times the cost. The head's gradient is accumulated and returned in the
    head's own dtype, so that the sum over chunks loses nothing.
    """
    return _dot(hidden, head.astype(hidden.dtype), 1, 1 if tied else 0)


def _project_forward(hidden: jax.Array, head: jax.Array, tied: bool):
    return project(hidden, head, tied), (hidden, head)


def _project_backward(tied: bool, saved: tuple[jax.Array, jax.Array], cotangent: jax.Array):
    hidden, head = saved
    cotangent = cotangent.astype(hidden.dtype)
    to_hidden = _dot(cotangent, head.astype(hidden.dtype), 1, 0 if tied else 1)
    to_head = _dot(cotangent, hidden, 0, 0) if tied else _dot(hidden, cotangent, 0, 0)
    return to_hidden.astype(hidden.dtype), to_head.astype(head.dtype)


project.defvjp(_project_forward, _project_backward)


def _dot(a: jax.Array, b: jax.Array, axis_a: int, axis_b: int) -> jax.Array:
    """Contracts one axis of each matrix, accumulating in float32 or better."""
    dtype = jnp.promote_types(a.dtype, jnp.float32)
    return jax.lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((), ())), preferred_element_type=dtype)
