import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanpo_jax.objectives import groups as groups_lib
from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.objectives import pooled
from lanpo_jax.objectives import tokens as tokens_lib
from tests.objectives.conftest import compiled


def _rows(batch, rows):
    return jax.tree.map(lambda x: x[rows], batch)


@pytest.mark.parametrize("aggregate", ["token_mean", "sequence_mean", "sequence_sum", "constant(length=6)"])
@pytest.mark.parametrize("split", [[[0], [1], [2], [3]], [[0, 1, 2], [3]]])
def test_micro_batches_add_up_to_one_batch(aggregate, split, batch, logprobs, build):
    objective = build(surrogate="clip(low=0.2, high=0.28, dual=3.0)", aggregate=aggregate, kl="k3(beta=0.1)")

    def whole(logprobs):
        total, weight, metrics = objective_lib.loss(objective, logprobs, batch)
        return pooled.ratio(total, weight), pooled.finish(metrics)

    def pieces(logprobs):
        total, weight, joined = 0.0, 0.0, None
        for rows in split:
            t, w, metrics = objective_lib.loss(objective, logprobs[jnp.array(rows)], _rows(batch, jnp.array(rows)))
            total, weight = total + t, weight + w
            joined = metrics if joined is None else pooled.merge(joined, metrics)
        return pooled.ratio(total, weight), pooled.finish(joined)

    (a, metrics_a), gradient_a = compiled(jax.value_and_grad(whole, has_aux=True))(logprobs)
    (b, metrics_b), gradient_b = compiled(jax.value_and_grad(pieces, has_aux=True))(logprobs)
    np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_allclose(gradient_a, gradient_b, atol=1e-14)
    for name, value in metrics_a.items():
        np.testing.assert_allclose(value, metrics_b[name], rtol=1e-12, err_msg=name)


def test_sequence_token_keeps_each_token_to_itself(build, evaluate):
    """With one advantage per completion the two forms of GSPO have one gradient; with one per token they differ."""
    logprobs, old = jnp.array([[-1.0, -2.0]]), jnp.array([[-1.1, -1.8]])
    batch = tokens_lib.Batch(jnp.ones((1, 2)), jnp.array([[1.0, -3.0]]), old_logprobs=old)
    weight = np.exp((0.1 - 0.2) / 2)
    _, own, _ = evaluate(build(ratio="sequence_token", surrogate="unclipped"), logprobs, batch)
    _, shared, _ = evaluate(build(ratio="sequence", surrogate="unclipped"), logprobs, batch)
    np.testing.assert_allclose(own, [[-weight / 2, 3 * weight / 2]])
    np.testing.assert_allclose(shared, [[weight / 2, weight / 2]])


def test_everything_masked_gives_zero_loss_gradient_and_finite_metrics(batch, logprobs, build, evaluate):
    # norm-05
    empty = dataclasses.replace(batch, mask=jnp.zeros_like(batch.mask), truncated=jnp.ones(4, bool))
    for aggregate in ("token_mean", "sequence_mean", "sequence_sum", "constant(length=8)"):
        objective = build(aggregate=aggregate, kl="k3", weights="drop_truncated + token_is")
        value, gradient, metrics = evaluate(objective, logprobs, empty)
        assert value == 0 and not gradient.any() and np.isfinite(list(metrics.values())).all()


def test_on_policy_without_old_logprobs_has_ratio_one_and_the_reinforce_gradient(batch, logprobs, build, evaluate):
    batch = dataclasses.replace(batch, old_logprobs=None)
    _, expected, _ = evaluate(build(surrogate="likelihood"), logprobs, batch)
    _, gradient, metrics = evaluate(build(surrogate="clip(low=0.0, high=0.0)"), logprobs, batch)
    np.testing.assert_allclose(gradient, expected, rtol=1e-14)
    assert metrics["actor/ratio"] == 1 and metrics["actor/pg_clipfrac"] == 0 and metrics["actor/ppo_kl"] == 0


def test_dropping_truncated_completions_takes_them_out_of_the_denominator(build, evaluate):
    # norm-01: per-token loss 1 on lengths 3 and 5, the first truncated: 1.0, not 0.375 or 0.625
    mask = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    batch = tokens_lib.Batch(mask, -jnp.ones(2), truncated=jnp.array([True, False]))
    value, gradient, _ = evaluate(build(weights="drop_truncated"), -jnp.ones((2, 5)), batch)
    assert value == 1.0 and not gradient[0].any() and gradient[1].all()


def test_sampler_correction_scales_the_policy_loss_only(batch, logprobs, build, evaluate):
    plain, _, _ = evaluate(build(kl="k1(beta=0.5)"), logprobs, batch)
    one = dataclasses.replace(batch, sampler_logprobs=batch.old_logprobs - jnp.log(1.5))
    scaled, _, metrics = evaluate(build(kl="k1(beta=0.5)", weights="token_is(cap=2.0)"), logprobs, one)
    policy, _, _ = evaluate(build(), logprobs, batch)
    np.testing.assert_allclose(scaled - plain, 0.5 * policy, rtol=1e-12)
    np.testing.assert_allclose([metrics["is/mean"], metrics["is/ess"], metrics["is/frac_capped"]], [1.5, 1, 0])


@pytest.mark.parametrize(
    "slots, words",
    [
        ({"surrogate": "clipp(low=0.1)"}, ["clipp", "did you mean 'clip'", "cispo"]),
        ({"surrogate": "clip(lo=0.1)"}, ["clip has no option 'lo'", "low, high, dual"]),
        ({"aggregate": "constant"}, ["lacks length"]),
        ({"weights": "token_is + top_entrop"}, ["top_entrop", "top_entropy"]),
        ({"surogate": "clip"}, ["'surogate' is no slot", "surrogate"]),
    ],
)
def test_a_wrong_word_is_refused_in_one_sentence(slots, words, build):
    with pytest.raises(ValueError) as error:
        build(**slots)
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


def test_a_missing_slot_is_refused():
    with pytest.raises(ValueError, match="lacks filter, ratio"):
        objective_lib.build(
            dict.fromkeys(("advantage", "surrogate", "weights", "aggregate", "kl", "reward_kl"), "none")
        )


def test_weights_may_be_joined(build):
    objective = build(weights="drop_truncated + token_is(cap=3.0) + none")
    assert [part.func.__name__ for part in objective.weights] == ["drop_truncated", "token_is", "none"]
    assert objective.needs == {"truncated", "sampler", "correction"}


def test_group_of_one_and_bad_rewards_are_refused(build):
    objective = build(advantage="group_norm")
    with pytest.raises(ValueError, match="group of 1"):
        objective_lib.advantages(objective, groups_lib.Groups(np.array([[1.0], [0.0]])))
    with pytest.raises(ValueError, match="1 of 4 rewards are not finite"):
        objective_lib.advantages(objective, groups_lib.Groups(np.array([[1.0, np.nan, 0.0, 1.0]])))


def test_reward_penalty_is_per_token_and_masked(build):
    objective = build(reward_kl="k1(beta=0.03)")
    found = objective_lib.reward_penalty(
        objective, np.array([[-1.0, np.nan]]), np.array([[-2.0, 0.0]]), np.array([[1, 0]])
    )
    np.testing.assert_allclose(found, [[0.03, 0.0]], rtol=1e-6)


def test_kl_without_reference_is_refused(batch, logprobs, build):
    with pytest.raises(ValueError, match="ref_logprobs"):
        objective_lib.loss(build(kl="k3"), logprobs, dataclasses.replace(batch, ref_logprobs=None))


def test_merge_refuses_metrics_of_different_keys():
    with pytest.raises(ValueError, match="differ in"):
        pooled.merge({"a": pooled.Max(1.0)}, {"b": pooled.Max(1.0)})
