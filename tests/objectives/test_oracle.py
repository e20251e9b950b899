"""Agreement with verl, TRL and OpenRLHF in value, gradient and metrics, to 1e-7 in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanpo_jax.objectives import advantages as advantages_lib
from lanpo_jax.objectives import aggregates, penalties
from lanpo_jax.objectives import groups as groups_lib
from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.objectives import tokens as tokens_lib
from lanpo_jax.objectives import values as values_lib
from lanpo_jax.objectives import weights as weights_lib

AGGREGATES = {
    "token-mean": "token_mean",
    "token-sum": "token_mean",  # its sum, without the division
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "constant(length=6)",
}
VERL = {
    "vanilla": {"surrogate": "clip(low=0.2, high=0.28, dual=3.0)"},
    "gspo": {"ratio": "sequence", "surrogate": "clip(low=0.2, high=0.28)"},
    "cispo": {"surrogate": "cispo(floor=0.8, cap=1.28)"},
    "sapo": {"surrogate": "soft"},
    "geo_mean": {"surrogate": "geometric(low=0.2, high=0.28)"},
    "gpg": {"surrogate": "likelihood"},
}
CLIP = "clip(low=0.2, high=0.28)"
TRL = {
    "grpo/token": {"surrogate": CLIP, "aggregate": "sequence_mean"},
    "grpo/sequence": {"ratio": "sequence", "surrogate": CLIP, "aggregate": "sequence_mean"},
    "bnpo/token": {"surrogate": CLIP, "aggregate": "token_mean"},
    "dapo/token": {"surrogate": CLIP, "aggregate": "token_mean"},
    "dr_grpo/token": {"surrogate": CLIP, "aggregate": "constant(length=6)"},
    "cispo/token": {"surrogate": "cispo(cap=1.28)", "aggregate": "token_mean"},
    "sapo/token": {"surrogate": "soft", "aggregate": "sequence_mean"},
    "luspo/token": {"surrogate": CLIP, "aggregate": "sequence_sum"},
    "luspo/sequence": {"ratio": "sequence", "surrogate": CLIP, "aggregate": "sequence_sum"},
}


OPENRLHF = {"True": "token_mean", "False": "sequence_mean"}

# What the file holds and this package does not offer; all else in it is compared below.
NOT_OFFERED = {
    "verl_policy_losses": ("dppo_tv/", "dro/"),
    "verl_kl": ("abs",),
    "verl_rollout_correction": ("token/0.5_2.0", "sequence/0.5_2.0"),  # a lower bound that zeroes the weight
}


def _close(found, expected, name=""):
    np.testing.assert_allclose(found, expected, atol=1e-7, err_msg=name)


VERL_CASES = [f"{loss}/{mean}" for loss in ("vanilla", "cispo", "gpg") for mean in AGGREGATES]
VERL_CASES += [f"{loss}/seq-mean-token-mean" for loss in ("gspo", "sapo", "geo_mean")]
TRL_CASES = [(case, 0.0) for case in TRL] + [(case, 0.1) for case in TRL if case.startswith(("grpo", "luspo"))]


def test_nothing_in_the_file_is_passed_over(oracle):
    def offered(section):
        return {name for name in oracle[section] if not name.startswith(NOT_OFFERED.get(section, ("-",)))}

    assert offered("verl_policy_losses") == set(VERL_CASES)
    assert offered("trl") == {f"{case}/beta={beta}" for case, beta in TRL_CASES}
    assert offered("openrlhf") == {
        f"{name}/token_level={level}/dual={dual}"
        for name in ("ppo", "gspo")
        for level in ("True", "False")
        for dual in ("None", "3.0")
    }
    assert offered("verl_kl") == {"k1", "k2", "k3", "k3+"}
    assert offered("verl_rollout_correction") == {"token/2.0", "sequence/2.0"}


@pytest.mark.parametrize("case", VERL_CASES)
def test_verl(case, oracle, batch, logprobs, build, evaluate):
    name, mean = case.split("/")
    expected = oracle["verl_policy_losses"][case]
    value, gradient, metrics = evaluate(build(**VERL[name], aggregate=AGGREGATES[mean]), logprobs, batch)
    scale = float(jnp.sum(batch.mask)) if mean == "token-sum" else 1.0
    _close(value * scale, expected["loss"])
    _close(gradient * scale, expected["grad_logp"])
    other = ("actor/pg_clipfrac", "actor/pg_clipfrac_lower") if name == "geo_mean" else ()  # see surrogates.geometric
    for metric, number in expected["metrics"].items():
        if metric not in other:
            _close(metrics[metric], number, metric)


@pytest.mark.parametrize("case, beta", TRL_CASES)
def test_trl(case, beta, oracle, batch, logprobs, build, evaluate):
    expected = oracle["trl"][f"{case}/beta={beta}"]
    value, gradient, metrics = evaluate(build(**TRL[case], kl=f"k3(beta={beta})"), logprobs, batch)
    _close(value, expected["loss"])
    _close(gradient, expected["grad_logp"])
    names = {"kl": "actor/kl_ref"}
    if case.endswith("token"):  # TRL averages a sequence's clip indicator over sequences, we over tokens
        names |= {f"clip_ratio/{ours}_mean": f"actor/pg_clipfrac_{ours}" for ours in ("low", "high")}
        names |= {"clip_ratio/region_mean": "actor/pg_clipfrac"}
    for theirs, ours in names.items():
        if theirs in expected["metrics"]:
            _close(metrics[ours], expected["metrics"][theirs], ours)


@pytest.mark.parametrize("level", ["True", "False"])
@pytest.mark.parametrize("dual", ["None", "3.0"])
@pytest.mark.parametrize("name, ratio", [("ppo", "token"), ("gspo", "sequence")])
def test_openrlhf(name, ratio, level, dual, oracle, batch, logprobs, build, evaluate):
    expected = oracle["openrlhf"][f"{name}/token_level={level}/dual={dual}"]
    # OpenRLHF's GSPO averages per sequence whatever the level asked for
    aggregate = OPENRLHF[level] if name == "ppo" else "sequence_mean"
    objective = build(ratio=ratio, surrogate=f"clip(low=0.2, high=0.28, dual={dual})", aggregate=aggregate)
    value, gradient, metrics = evaluate(objective, logprobs, batch)
    _close(value, expected["loss"])
    _close(gradient, expected["grad_logp"])
    _close(metrics["actor/pg_clipfrac"], expected["clip_ratio"])
    _close(metrics["actor/ppo_kl"], expected["ppo_kl"])


@pytest.mark.parametrize("mean", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
def test_a_fully_masked_row_changes_nothing(mean, oracle, batch, logprobs, build, evaluate):
    """As in verl; TRL divides by every row: .3152 instead of .3940 for grpo, .0411 instead of .0514 for dr_grpo."""
    batch = jax.tree.map(lambda x: jnp.concatenate([x, jnp.full_like(x[:1], jnp.nan)]), batch)
    batch = dataclasses.replace(batch, mask=jnp.nan_to_num(batch.mask, nan=0.0))
    logprobs = jnp.concatenate([logprobs, jnp.full_like(logprobs[:1], jnp.nan)])
    objective = build(surrogate="clip(low=0.2, high=0.28, dual=3.0)", aggregate=AGGREGATES[mean])
    value, gradient, metrics = evaluate(objective, logprobs, batch)
    _close(value, oracle["fully_masked_row_added"][f"verl/{mean}"])
    assert not gradient[-1].any() and np.isfinite(list(metrics.values())).all()


@pytest.mark.parametrize("theirs, ours", [("k1", "k1"), ("k2", "k2"), ("k3", "k3"), ("k3+", "k3_plus")])
def test_kl(theirs, ours, oracle, batch, logprobs):
    expected = oracle["verl_kl"][theirs]
    penalty = getattr(penalties, ours)(logprobs - batch.ref_logprobs, beta=0.5)
    mask = np.asarray(batch.mask)
    _close(penalty.kl * mask, np.array(expected["per_token"]) * mask)
    _close(penalty.cost * mask, 0.5 * np.array(expected["per_token"]) * mask)
    total, weight = aggregates.token_mean(penalty.kl, batch.mask)
    _close(total / weight, expected["masked_mean"])

    def mean(logprobs):
        return aggregates.token_mean(getattr(penalties, ours)(logprobs - batch.ref_logprobs, beta=1.0).cost, batch.mask)

    _close(jax.grad(lambda logprobs: mean(logprobs)[0] / weight)(logprobs), expected["grad_logp"])


def test_kl_gradients():
    delta = jnp.array([-0.7, 0.0, 0.4])
    wanted = {"k1": np.ones(3), "k2": delta, "k3": 1 - np.exp(-np.asarray(delta)), "k3_plus": delta}
    for name, expected in wanted.items():
        gradient = jax.grad(lambda d, name=name: getattr(penalties, name)(d, beta=1.0).cost.sum())(delta)
        np.testing.assert_allclose(gradient, expected, rtol=1e-12, err_msg=name)


def _by_group(values, ids):
    ids = np.array(ids)
    return [np.array(values)[ids == i] for i in np.unique(ids)]


@pytest.mark.parametrize("case", ["binary_2x4", "real_1x4", "all_equal_1x3"])
@pytest.mark.parametrize(
    "theirs, spec",
    [
        ("grpo", "group_norm"),
        ("rloo", "rloo"),
        ("opo", "opo"),
        ("dr_grpo(mean only)", "group_center"),
        ("reinforce_plus_plus_baseline", "batch_norm"),
    ],
)
def test_advantages(case, theirs, spec, oracle, build):
    expected = oracle["verl_advantages"][case]
    rewards = np.stack(_by_group(expected["rewards"], expected["groups"]))
    groups = groups_lib.Groups(rewards, lengths=np.full(rewards.shape, 3))
    found = objective_lib.advantages(build(advantage=spec), groups)
    _close(found, np.stack(_by_group(expected[theirs], expected["groups"])))


def test_a_group_of_one_gets_zero_where_verl_gives_one():
    groups = groups_lib.Groups(np.array([[1.0]]), lengths=np.array([[3]]))
    for function in (advantages_lib.group_norm, advantages_lib.group_center, advantages_lib.rloo, advantages_lib.opo):
        assert function(groups) == 0.0


def test_gae(oracle):
    case = oracle["verl_gae"]
    mask, rewards, values = (np.array(x) for x in (oracle["inputs"]["mask"], case["token_rewards"], case["values"]))
    advantages, returns = values_lib.estimate(rewards, values, mask, gamma=case["gamma"], lam=case["lam"])
    _close(values_lib.whiten(advantages, mask), np.array(case["advantages_whitened"]) * mask)
    _close(returns, np.array(case["returns"]) * mask)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_sampler_correction(level, oracle, batch, logprobs, build, evaluate):
    expected = oracle["verl_rollout_correction"][f"{level}/2.0"]
    tokens = tokens_lib.prepare(logprobs, batch)
    mask = np.asarray(batch.mask)
    found = getattr(weights_lib, f"{level}_is")(tokens, cap=2.0)
    _close(found * mask, np.array(expected["weights"]) * mask)
    _, _, metrics = evaluate(build(weights=f"{level}_is(cap=2.0)"), logprobs, batch)
    theirs = expected["metrics"]
    if level == "token":  # verl's sequence means are taken over uncapped weights
        _close(metrics["is/mean"], theirs["rollout_is_mean"])
        _close(metrics["is/ess"], theirs["rollout_is_eff_sample_size"])
        _close(metrics["is/frac_capped"], theirs["rollout_is_ratio_fraction_high"])
        _close(metrics["is/max"], theirs["rollout_is_max"])


def test_mismatch(oracle, batch, logprobs, build, evaluate):
    _, _, metrics = evaluate(build(), logprobs, batch)
    names = {"kl": "kl", "k3": "k3_kl", "chi2": "chi2_token", "ppl_ratio": "ppl_ratio"}
    for ours, theirs in names.items():
        _close(metrics[f"mismatch/{ours}"], oracle["verl_offpolicy_metrics"][theirs], ours)
