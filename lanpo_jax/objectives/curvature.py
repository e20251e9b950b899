"""What a planned optimizer step of the output head would do to each token's distribution (CAPO, arXiv 2510.00819).

The head is a model of the whole step that can be evaluated before it is taken: its gradient for one token is
A·v·h^T with v = onehot(token) - pi and h the last hidden state, and Adam's moments turn the sum of those into a step.
Everything is chunked over tokens and exact over the vocabulary; the paper's top-k is an approximation of that.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lanpo_jax.objectives import logprobs as logprobs_lib


def head_gradient(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    *,
    temperature: jax.Array | float = 1.0,
    chunk: int = logprobs_lib.CHUNK,
    tied: bool = False,
) -> jax.Array:
    """sum over tokens of weights·d log pi(target)/d head, in the shape of `head`; weights [M] = A·mask/count."""

    def objective(head: jax.Array) -> jax.Array:
        logprobs, _ = logprobs_lib.token_logprobs(
            hidden, head, targets, temperature=temperature, chunk=chunk, tied=tied
        )
        return jnp.sum(jnp.where(weights == 0, 0.0, logprobs) * weights)

    return jax.grad(objective)(head)


def planned_step(
    gradient: jax.Array,
    mu: jax.Array,
    nu: jax.Array,
    count: jax.Array | int,
    *,
    rate: jax.Array | float,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> jax.Array:
    """The change Adam would make to the head, *ascending* `gradient`: rate·m_hat/(sqrt(v_hat) + eps).

    `mu`, `nu`, `count` are Adam's state before the step, in the convention of a loss that is minimised (optax): the
    gradient of the loss is -gradient.
    """
    count = count + 1
    mu = b1 * mu - (1 - b1) * gradient
    nu = b2 * nu + (1 - b2) * jnp.square(gradient)
    return -rate * (mu / (1 - b1**count)) / (jnp.sqrt(nu / (1 - b2**count)) + eps)


def terms(
    hidden: jax.Array,
    head: jax.Array,
    step: jax.Array,
    targets: jax.Array,
    *,
    temperature: jax.Array | float = 1.0,
    chunk: int = logprobs_lib.CHUNK,
    tied: bool = False,
) -> dict[str, jax.Array]:
    """First- and second-order effect of `step` on each token, without gradient: `drift` and `spread`, each [M].

    With u = hidden·step/temperature the change of the logits and v = onehot(target) - pi: drift = v·u is the change of
    the log-probability to first order, spread = u^T(diag pi - pi pi^T)u minus twice its second-order part.
    """

    def effect(hidden: jax.Array, targets: jax.Array) -> dict[str, jax.Array]:
        probs = jax.nn.softmax(logprobs_lib.project(hidden, head, tied) / temperature, axis=-1)
        change = logprobs_lib.project(hidden, step, tied) / temperature
        average = jnp.sum(probs * change, axis=-1)
        chosen = logprobs_lib.pick(change, targets)
        # centred before squaring: E[u^2] - E[u]^2 would cancel catastrophically under a common offset
        spread = jnp.sum(probs * jnp.square(change - average[:, None]), axis=-1)
        return {"drift": chosen - average, "spread": spread}

    return jax.lax.stop_gradient(logprobs_lib.map_tokens(effect, (hidden, targets), chunk))
