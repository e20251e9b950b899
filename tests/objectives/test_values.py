"""The value head: returns, whitening and the value loss."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanpo_jax.objectives import groups as groups_lib
from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.objectives import tokens as tokens_lib
from lanpo_jax.objectives import values as values_lib


def test_the_reward_lands_on_the_last_valid_token():
    mask = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    dense = np.full(mask.shape, 0.1)
    found = values_lib.token_rewards(np.array([2.0, 3.0, 4.0]), mask, dense)
    np.testing.assert_allclose(found, [[0.1, 0.1, 0, 2.1, 0], [3.1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])


def test_without_discount_and_with_lambda_one_the_return_is_the_reward():
    mask = np.array([[1, 1, 1, 0]])
    rewards = values_lib.token_rewards(np.array([1.0]), mask)
    advantages, returns = values_lib.estimate(rewards, np.array([[0.2, 0.5, -1.0, 9.0]]), mask, gamma=1.0, lam=1.0)
    np.testing.assert_allclose(returns, [[1, 1, 1, 0]])
    np.testing.assert_allclose(advantages, [[0.8, 0.5, 2.0, 0]])


def test_whitening_nothing_or_one_token_is_finite():
    assert not values_lib.whiten(np.ones((2, 2)), np.zeros((2, 2))).any()
    assert np.isfinite(values_lib.whiten(np.ones((2, 2)), np.eye(2) * [1, 0])).all()


def test_value_loss_gradient_by_finite_differences(build):
    objective = build(value="squared(coefficient=0.5, clip=0.2)")
    rng = np.random.default_rng(0)
    values, old, returns = rng.normal(size=(3, 2, 4))
    mask = np.array([[1, 1, 0, 1], [1, 0, 0, 0]])
    batch = tokens_lib.Batch(jnp.array(mask), jnp.zeros(2), old_values=jnp.array(old), returns=jnp.array(returns))

    def loss(values):
        total, weight, _ = objective_lib.loss(objective, -jnp.ones((2, 4)), batch, aux={"values": values})
        return total / weight

    gradient = jax.grad(loss)(jnp.array(values))
    for at in np.ndindex(2, 4):
        up, down = values.copy(), values.copy()
        up[at] += 1e-6
        down[at] -= 1e-6
        slope = (loss(jnp.array(up)) - loss(jnp.array(down))) / 2e-6
        np.testing.assert_allclose(gradient[at], slope, atol=1e-8)
    assert not gradient[mask == 0].any()


def test_returns_follow_the_rewards_and_the_dense_penalty(build):
    objective = build(advantage="gae(gamma=1.0, lam=1.0, whiten=False)")
    mask = np.ones((1, 2, 3))
    groups = groups_lib.Groups(
        np.array([[1.0, 0.0]]), mask=mask, values=np.zeros(mask.shape), token_rewards=np.full(mask.shape, -0.1)
    )
    expected = [[[0.7, 0.8, 0.9], [-0.3, -0.2, -0.1]]]
    np.testing.assert_allclose(objective_lib.returns(objective, groups), expected)
    np.testing.assert_allclose(objective_lib.advantages(objective, groups), expected)
    assert objective_lib.returns(build(), groups) is None
    with pytest.raises(ValueError, match="not finite"):
        objective_lib.advantages(objective, dataclasses.replace(groups, rewards=np.array([[np.inf, 0.0]])))
