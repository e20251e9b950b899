"""Faults that users of other trainers reported, as small inputs with the right answer (trainer_cases.json)."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanpo_jax.objectives import filters, penalties, pooled
from lanpo_jax.objectives import groups as groups_lib
from lanpo_jax.objectives import logprobs as logprobs_lib
from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.objectives import tokens as tokens_lib
from tests.objectives.conftest import compiled

CASES = json.loads((pathlib.Path(__file__).parent / "trainer_cases.json").read_text())
AGGREGATES = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
}


def _case(name):
    return CASES[name]["input"], CASES[name]["expect"]


def _mask(lengths, width=None):
    return jnp.array(np.arange(width or max(lengths)) < np.array(lengths)[:, None], float)


def _unit(mask, losses=1.0):
    """A batch whose on-policy loss per token is `losses`: ratio 1 and advantage -loss."""
    return tokens_lib.Batch(mask=mask, advantages=-jnp.broadcast_to(jnp.asarray(losses), mask.shape[:1]))


def test_norm_01_masked_truncated_rows_leave_the_denominator(build, evaluate):
    given, expected = _case("norm-01")
    mask = _mask(given["lengths"])
    batch = tokens_lib.Batch(mask, -jnp.ones(2), truncated=jnp.array(given["truncated"]))
    value, gradient, _ = evaluate(build(weights="drop_truncated"), -jnp.ones(mask.shape), batch)
    assert value == expected["loss"]
    assert not gradient[1].any()


def test_norm_02_an_optimizer_step_divides_by_its_own_tokens_only(build):
    given, expected = _case("norm-02")
    objective, mask = build(), jnp.ones((1, given["tokens_per_micro_batch"]))
    for _ in range(given["micro_batches_in_generation_batch"] // given["accumulate"]):
        parts = [objective_lib.loss(objective, -mask, _unit(mask)) for _ in range(given["accumulate"])]
        assert sum(p[0] for p in parts) / sum(p[1] for p in parts) == expected["loss_summed_over_each_optimizer_step"]


def test_norm_03_the_micro_batch_size_changes_nothing(build):
    given, expected = _case("norm-03")
    mask, losses = _mask(given["lengths"]), np.array(given["per_token_loss_by_row"])
    gradients = []
    for size in given["micro_batch_size"]:

        def loss(logprobs, size=size):
            total = weight = 0.0
            for start in range(0, len(losses), size):
                rows = slice(start, start + size)
                t, w, _ = objective_lib.loss(build(), logprobs[rows], _unit(mask[rows], losses[rows]))
                total, weight = total + t, weight + w
            return total / weight

        value, gradient = compiled(jax.value_and_grad(loss))(-jnp.ones(mask.shape))
        assert value == expected["loss_for_every_micro_batch_size"]
        gradients.append(gradient)
    np.testing.assert_array_equal(*gradients)


def test_norm_04_the_constant_divisor_knows_no_padding(build, evaluate):
    given, expected = _case("norm-04")
    for width in given["padded_to"]:
        mask = _mask(given["lengths"], width)
        objective = build(aggregate=f"constant(length={given['max_response_length']})")
        assert evaluate(objective, -jnp.ones(mask.shape), _unit(mask))[0] == expected["loss"]


@pytest.mark.parametrize("mean", CASES["norm-05"]["input"]["agg"])
def test_norm_05_a_fully_masked_batch_is_zero(mean, build, evaluate):
    given, expected = _case("norm-05")
    mask = jnp.array(given["mask"])
    value, gradient, metrics = evaluate(build(aggregate=AGGREGATES[mean]), -jnp.ones(mask.shape), _unit(mask))
    assert value == expected["loss"] and not gradient.any() and np.isfinite(list(metrics.values())).all()


def test_clip_01_each_side_is_counted_where_it_clips(build, evaluate):
    given, expected = _case("clip-01")
    ratio = jnp.array(given["ratio"])[:, None]
    batch = tokens_lib.Batch(jnp.ones((4, 1)), jnp.array(given["advantage"]), old_logprobs=jnp.full((4, 1), -5.0))
    objective = build(surrogate=f"clip(low={given['eps_low']}, high={given['eps_high']})")
    tokens = tokens_lib.prepare(-5.0 + jnp.log(ratio), batch)
    found = objective.surrogate(tokens, objective.ratio(tokens))
    np.testing.assert_allclose(found.loss[:, 0], expected["per_token_loss"], rtol=1e-12)
    _, _, metrics = evaluate(objective, -5.0 + jnp.log(ratio), batch)
    for ours, theirs in {"": "clip_frac", "_high": "clip_frac_high", "_low": "clip_frac_low"}.items():
        assert metrics[f"actor/pg_clipfrac{ours}"] == expected[theirs]


def test_kl_02_k3_stays_finite_in_float32():
    given, _ = _case("kl-02")
    delta = jnp.float32(given["logp"] - given["ref"])
    value, gradient = jax.value_and_grad(lambda d: penalties.k3(d, beta=1.0).cost)(delta)
    assert value.dtype == jnp.float32 and value == 10.0 and np.isfinite(gradient)


def test_kl_03_identical_policies_have_no_kl():
    given, expected = _case("kl-03")
    delta = jnp.array(given["logp"]) - jnp.array(given["ref"])
    for name, value in expected.items():
        assert (getattr(penalties, name)(delta).kl == value).all()


def _row(given, names, dtype):
    arrays = {k: jnp.array([[float(v) for v in given[k]]], dtype) for k in names}
    logp = arrays.pop("logp")
    fields = {"old": "old_logprobs", "ref": "ref_logprobs"}
    arrays = {fields[k]: v for k, v in arrays.items()}
    batch = tokens_lib.Batch(jnp.array([given["mask"]], dtype), jnp.array([given["advantage"]], dtype), **arrays)
    return logp, batch


def test_nan_01_a_masked_token_cannot_poison_the_gradient(build, evaluate):
    given, expected = _case("nan-01")
    for ratio in ("token", "sequence", "sequence_token", "prefix_mean", "cumulative"):
        value, gradient, _ = evaluate(build(ratio=ratio), *_row(given, ("logp", "old"), jnp.float32))
        assert value == expected["loss"]
        np.testing.assert_array_equal(gradient[0], expected["grad_logp"])


def test_nan_02_infinite_and_undefined_junk_under_the_mask(build, evaluate):
    given, expected = _case("nan-02")
    logp, batch = _row(given, ("logp", "old", "ref"), jnp.float32)
    for kl in ("k1", "k2", "k3", "k3_plus"):
        value, gradient, metrics = evaluate(build(kl=f"{kl}(beta={given['beta']})"), logp, batch)
        assert value == expected["loss"] and np.isfinite([*gradient[0], *metrics.values()]).all()
        if kl != "k1":  # k1 has gradient beta everywhere, by definition
            assert gradient[0, 0] == expected["grad_logp_first"]


def test_nan_05_a_reward_that_is_no_number_is_refused_or_set_aside(build):
    given, _ = _case("nan-05")
    rewards = np.array([[np.nan, *given["others"]]])
    objective = build(advantage="group_norm")
    with pytest.raises(ValueError, match="1 of 4 rewards are not finite"):
        objective_lib.advantages(objective, groups_lib.Groups(rewards))
    found = objective_lib.advantages(objective, groups_lib.Groups(rewards, scored=np.isfinite(rewards)))
    rest = objective_lib.advantages(objective, groups_lib.Groups(rewards[:, 1:]))
    np.testing.assert_allclose(found, np.concatenate([[[0.0]], rest], axis=1))


def test_adv_08_truncated_samples_stay_in_their_group(build):
    given, expected = _case("adv-08")
    found = objective_lib.advantages(build(advantage="group_center"), groups_lib.Groups(np.array(given["rewards"])))
    kept = [row[~np.array(t)] for row, t in zip(found, given["truncated"])]
    for ours, theirs in zip(kept, expected["advantage_kept"]):
        np.testing.assert_allclose(ours, theirs)


def test_adv_10_an_unscored_reward_is_neither_zero_nor_one(build):
    given, expected = _case("adv-10")
    rewards = np.array([given["rewards"]], float)  # None becomes NaN
    groups = groups_lib.Groups(rewards, scored=np.isfinite(rewards))
    found = objective_lib.advantages(build(advantage="group_center"), groups)
    np.testing.assert_allclose(found, [expected["advantage"]])


def test_adv_11_and_13_only_groups_with_differing_rewards_are_kept():
    given, expected = _case("adv-11")
    keep = filters.drop_equal(groups_lib.Groups(np.array(given["rewards"])))
    assert [2 * p + j for p in np.flatnonzero(keep) for j in range(2)] == expected["rows_trained"]
    given, expected = _case("adv-13")
    assert filters.drop_equal(groups_lib.Groups(np.array([given["rewards"]])))[0] == expected["kept"]


def test_adv_12_a_dropped_group_has_no_kl_gradient_and_no_tokens(build, evaluate):
    given, _ = _case("adv-12")
    rewards = np.array(given["rewards"])
    keep = np.repeat(filters.drop_equal(groups_lib.Groups(rewards)), 2)
    objective = build(advantage="group_center", kl=f"k3(beta={given['beta']})")
    advantages = objective_lib.advantages(objective, groups_lib.Groups(rewards)).reshape(-1)
    logprobs, ref = -jnp.ones((4, 3)), -2 * jnp.ones((4, 3))

    def run(rows, mask):
        batch = tokens_lib.Batch(mask, jnp.array(advantages[rows]), ref_logprobs=ref[: len(mask)])
        return evaluate(objective, logprobs[: len(mask)], batch)

    value, gradient, _ = run(slice(None), jnp.ones((4, 3)) * keep[:, None])
    alone, alone_gradient, _ = run(slice(2, 4), jnp.ones((2, 3)))
    assert not gradient[:2].any()
    np.testing.assert_allclose(value, alone, rtol=1e-14)
    np.testing.assert_allclose(gradient[2:], alone_gradient, rtol=1e-14)


def test_mask_08_feedback_tokens_carry_no_gradient(build, evaluate):
    _, expected = _case("mask-08")
    mask = jnp.array([expected["mask"]])
    value, gradient, _ = evaluate(build(), -jnp.ones(mask.shape), _unit(mask))
    assert value == 1.0
    np.testing.assert_allclose(gradient[0], np.array(expected["mask"]) / expected["response_tokens"])


def test_mis_01_and_02_both_sides_use_the_full_tempered_distribution(build, evaluate):
    given, expected = _case("mis-01")
    options = {"temperature": given["temperature"]}
    hidden, head = jnp.ones((1, 1)), jnp.array([given["logits"]])
    ours, _ = logprobs_lib.token_logprobs(hidden, head, jnp.array([given["token"]]), **options)
    np.testing.assert_allclose(ours, expected["logprob_both_sides"], atol=1e-10)

    given, expected = _case("mis-02")
    trainer = jnp.array([[expected["full_logp"]]])
    for sampler, ratio in ((expected["full_logp"], expected["ratio"]), (expected["sampler_logp_renormalised"], 0.9)):
        batch = tokens_lib.Batch(jnp.ones((1, 1)), jnp.ones(1), sampler_logprobs=jnp.array([[sampler]]))
        _, _, metrics = evaluate(build(weights="token_is"), trainer, batch)
        np.testing.assert_allclose(metrics["is/mean"], ratio, atol=1e-9)  # a renormalised sampler shows


def test_mis_06_log_probabilities_do_not_depend_on_the_pieces():
    given, expected = _case("mis-06")
    rng = np.random.default_rng(0)
    hidden, head = jnp.array(rng.normal(size=(8, 6)), jnp.float32), jnp.array(rng.normal(size=(6, 50)), jnp.float32)
    targets = jnp.arange(8)
    found = [logprobs_lib.token_logprobs(hidden, head, targets, columns=n)[0] for n in given["micro_batch_size"]]
    for other in found[1:]:
        assert np.abs(found[0] - other).max() < expected["max_abs_logprob_difference"]


def test_met_01_hosts_pool_sums_and_not_means():
    given, expected = _case("met-01")
    parts = [{"hits": pooled.Mean(h["hits"], h["tokens"])} for h in given["hosts"]]
    np.testing.assert_allclose(pooled.finish(pooled.merge(*parts))["hits"], expected["value"])
