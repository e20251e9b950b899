"""What the optimizer would do to a token's distribution if it followed that token alone (CAPO, arXiv 2510.00819).

The last layer is a model of the whole network that can be evaluated before a step is taken. A token's gradient in the
output head is A·v·h^T with v = onehot(token) - pi and h the last hidden state; Adam's moments of the head turn it into
a step, and that step changes the logits by u. As in the authors' code (github.com/luckeciano/stable-pg-llm) pi is that
of the `top` most likely tokens, and before the first update the gradient itself is the step.

Ours: the moments are the trainer's own, where the authors keep a second, sparse Adam for this purpose; the sampled
token always counts among the `top`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lanpo_jax.objectives import logprobs as logprobs_lib

TOP = 50  # logits that are modelled
CHUNK = 64  # tokens at a time, over all devices: each holds several arrays [TOP, D]


def terms(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    advantages: jax.Array,
    moments: tuple[jax.Array, jax.Array, jax.Array],
    *,
    rate: jax.Array | float,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    temperature: jax.Array | float = 1.0,
    top: int = TOP,
    chunk: int = CHUNK,
    tied: bool = False,
) -> dict[str, jax.Array]:
    """First- and second-order effect of each token's own step on itself, without gradient: `drift`, `spread`, [M].

    drift = v·u is the change of its log-probability to first order; spread = u^T(diag pi - pi pi^T)u is minus twice the
    second-order part. `hidden` [M, D], `head` [D, V] ([V, D] with `tied`), `targets` and `advantages` [M]; `moments`
    are Adam's mu and nu of the head and the number of updates made, for a loss that is minimised (optax).
    """
    hidden, head = jax.lax.stop_gradient((hidden, head))
    top = min(top, head.shape[0 if tied else 1])

    def effect(hidden: jax.Array, targets: jax.Array, advantages: jax.Array) -> dict[str, jax.Array]:
        logits = logprobs_lib.project(hidden, head, tied) / temperature
        own = jnp.arange(logits.shape[-1]) == targets[:, None]
        _, chosen = jax.lax.top_k(jnp.where(own, jnp.inf, logits), top)
        probs = jax.nn.softmax(jnp.take_along_axis(logits, chosen, axis=-1), axis=-1)
        v = (chosen == targets[:, None]) - probs
        h = hidden.astype(logits.dtype)[:, None, :] / temperature  # of which a logit is the product with its row
        gradient = advantages[:, None, None] * v[..., None] * h
        change = rate * jnp.sum(_adam(gradient, chosen, moments, b1, b2, eps, tied) * h, axis=-1)
        average = jnp.sum(probs * change, axis=-1)
        # centred before squaring: E[u^2] - E[u]^2 would cancel catastrophically under a common offset
        spread = jnp.sum(probs * jnp.square(change - average[:, None]), axis=-1)
        return {"drift": jnp.sum(v * change, axis=-1), "spread": spread}

    return jax.lax.stop_gradient(logprobs_lib.map_tokens(effect, (hidden, targets, advantages), chunk))


def _adam(gradient: jax.Array, chosen: jax.Array, moments, b1: float, b2: float, eps: float, tied: bool) -> jax.Array:
    """The step (at rate 1) that Adam would make if `gradient` [m, top, D], *ascending*, were all of its gradient."""
    mu, nu = (x[chosen] if tied else jnp.moveaxis(x[:, chosen], 0, -1) for x in moments[:2])
    count = moments[2] + 1
    mean = (1 - b1) * gradient - b1 * mu  # mu is of the loss, whose gradient is -gradient
    square = (1 - b2) * jnp.square(gradient) + b2 * nu
    step = mean / (1 - b1**count) / (jnp.sqrt(square / (1 - b2**count)) + eps)
    return jnp.where(count == 1, gradient, step)
