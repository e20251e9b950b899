"""From hidden states to log-probabilities of tokens, without ever holding a [tokens, vocabulary] array.

The single shift of the code base is here: `sources` says which hidden state predicts which completion token, and
`select` gathers those states; everything after that is indexed by token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

CHUNK = 256  # tokens whose logits exist at one time (across all devices)


def sources(last_prompt: jax.Array, starts: jax.Array, tokens: int) -> jax.Array:
    """Index in the packed row of the hidden state that predicts each completion token.

    The first token of every completion is predicted by the last prompt token, each later one by its predecessor:
    `last_prompt` [R], `starts` [R, n] (where completion k begins in the row) -> int [R, n, T] with T = `tokens`.
    """
    offsets = starts[..., None] + jnp.arange(tokens) - 1
    return offsets.at[..., 0].set(jnp.broadcast_to(last_prompt[:, None], starts.shape))


def select(hidden: jax.Array, source: jax.Array) -> jax.Array:
    """The hidden states that predict the completion tokens: [R, L, D], indices [R, n, T] -> [R·n·T, D].

    Indices outside the row (padding may hold anything) are moved to its nearest end; their results are masked later.
    """
    rows, count, tokens = source.shape
    index = jnp.clip(source.reshape(rows, count * tokens, 1), 0, hidden.shape[1] - 1)
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
        logits = _project(hidden, head, tied) / temperature
        norm = jax.nn.logsumexp(logits, axis=-1)
        results = {}
        if "logprobs" in names:
            results["logprobs"] = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0] - norm
        if "entropy" in names:
            results["entropy"] = norm - jnp.sum(jnp.exp(logits - norm[:, None]) * logits, axis=-1)
        if "vocab_mean" in names:
            results["vocab_mean"] = jnp.mean(logits, axis=-1) - norm
        return results

    return map_tokens(statistics, (hidden, targets), chunk)


def curvature(
    hidden: jax.Array,
    head: jax.Array,
    step: jax.Array,
    targets: jax.Array,
    *,
    temperature: jax.Array | float = 1.0,
    chunk: int = CHUNK,
    tied: bool = False,
) -> dict[str, jax.Array]:
    """How a planned step of the head would move each token's distribution: `drift` and `spread`, each [M].

    With u = hidden·step/temperature the change of the logits, pi the softmax and v = onehot(target) - pi:
    drift = v·u (first-order change of the log-probability), spread = u^T(diag pi - pi pi^T)u (its curvature).
    `step` has the shape of `head`. The sums run over the whole vocabulary: CAPO's top-k is an approximation of them.
    """

    def terms(hidden: jax.Array, targets: jax.Array) -> dict[str, jax.Array]:
        probs = jax.nn.softmax(_project(hidden, head, tied) / temperature, axis=-1)
        change = _project(hidden, step, tied) / temperature
        average = jnp.sum(probs * change, axis=-1)
        chosen = jnp.take_along_axis(change, targets[:, None], axis=-1)[:, 0]
        # centred before squaring: E[u^2] - E[u]^2 would cancel catastrophically for a common offset
        spread = jnp.sum(probs * jnp.square(change - average[:, None]), axis=-1)
        return {"drift": chosen - average, "spread": spread}

    return jax.lax.stop_gradient(map_tokens(terms, (hidden, targets), chunk))


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


def _project(hidden: jax.Array, head: jax.Array, tied: bool) -> jax.Array:
    """hidden·head in hidden's dtype, accumulated and returned in float32 (or better).

    The cast of the head sits inside the chunk, so that its gradient is summed over chunks in the parameter's dtype.
    """
    axes = (((1,), (1 if tied else 0,)), ((), ()))
    dtype = jnp.promote_types(hidden.dtype, jnp.float32)
    return jax.lax.dot_general(hidden, head.astype(hidden.dtype), axes, preferred_element_type=dtype)
