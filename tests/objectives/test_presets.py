"""Every preset against plain double loops in float64: advantages, loss and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import objectives as presets
from lanpo_jax.objectives import groups as groups_lib
from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.objectives import pooled, selections
from lanpo_jax.objectives import tokens as tokens_lib
from tests.objectives import naive
from tests.objectives.conftest import compiled


@pytest.fixture(scope="module")
def x():
    found = naive.numbers()
    rng = np.random.default_rng(9)
    found["new_values"] = found["old_values"] + rng.normal(0, 0.3, found["mask"].shape)
    scores = found["rewards"].sum(0)
    found["quantiles"] = np.quantile(scores, 0.2), np.quantile(scores, 0.8)
    found["selected"] = np.zeros(found["mask"].shape, bool)
    return found


def _junk(x, name):
    """The array with NaN wherever the mask is 0: nothing may leak."""
    return np.where(x["mask"] > 0, x[name], np.nan)


def _groups(x):
    shape = (*x["rewards"].shape, -1)
    return groups_lib.Groups(
        x["rewards"],
        lengths=x["mask"].sum(-1).reshape(x["rewards"].shape),
        correct=x["correct"],
        mask=x["mask"].reshape(shape),
        old_logprobs=_junk(x, "old").reshape(shape),
        prompt_confidence=x["prompt_confidence"],
        values=_junk(x, "values").reshape(shape),
    )


def _batch(x, objective, advantages, selected):
    groups = _groups(x)
    returns = objective_lib.returns(objective, groups)
    return tokens_lib.Batch(
        mask=jnp.array(x["mask"]),
        advantages=jnp.array(advantages),
        old_logprobs=jnp.array(_junk(x, "old")),
        ref_logprobs=jnp.array(_junk(x, "ref")),
        sampler_logprobs=jnp.array(_junk(x, "sampler")),
        selected=None if selected is None else jnp.array(selected),
        group=jnp.array(x["group"]),
        level=jnp.array(x["rewards"].reshape(-1)),
        old_values=jnp.array(_junk(x, "old_values")),
        returns=None if returns is None else jnp.array(returns.reshape(x["mask"].shape)),
        old_vocab_mean=jnp.array(_junk(x, "old_vocab")),
    )


def _aux(x):
    names = {"entropy": "entropy", "values": "new_values", "vocab_mean": "vocab", "drift": "drift", "spread": "spread"}
    return {theirs: jnp.array(_junk(x, ours)) for theirs, ours in names.items()}


def test_every_preset_has_its_loops():
    assert set(naive.LOSSES) == set(presets.OBJECTIVES)


@pytest.mark.parametrize("name", presets.OBJECTIVES)
def test_preset(name, x):
    objective = objective_lib.build(presets.preset(name, max_new_tokens=x["length"]))
    advantages = objective_lib.advantages(objective, _groups(x))
    if name == "ppo":
        np.testing.assert_allclose(advantages.reshape(x["mask"].shape), naive.generalised(x)[0], atol=1e-12)
    elif name != "trpa":
        np.testing.assert_allclose(advantages.reshape(-1), naive.ADVANTAGES.get(name, naive.NORM)(x), atol=1e-12)

    advantages = advantages.reshape(x["mask"].shape[: advantages.ndim - 1])
    pool = selections.Pool(x["mask"], advantages, _junk(x, "old"), _junk(x, "entropy"))
    selected = objective_lib.select(objective, pool)
    assert selected is None or selected.any()
    x = x | {"selected": selected}
    batch, aux = _batch(x, objective, advantages, selected), _aux(x)
    state = {"multiplier": jnp.asarray(x["lam"])}

    def loss(logprobs):
        total, weight, _ = objective_lib.loss(objective, logprobs, batch, aux=aux, state=state)
        return pooled.ratio(total, weight)

    value, gradient = compiled(jax.value_and_grad(loss))(jnp.array(_junk(x, "logp")))
    np.testing.assert_allclose(value, naive.LOSSES[name](x, x["logp"], x["logp"]), rtol=1e-10)
    np.testing.assert_allclose(gradient, naive.gradient(naive.LOSSES[name], x), atol=2e-9)
    assert np.abs(gradient).max() > 1e-4  # the comparison is not one of zeros


def test_the_numbers_reach_every_bound(x):
    valid = x["mask"] > 0
    ratio = np.exp(x["logp"] - x["old"])[valid]
    assert ratio.max() > 5 and ratio.min() < 0.5 and ((ratio > 0.8) & (ratio < 1.2)).any()
    kept = {naive.kept_by_curvature(x, i, t) for i in naive.rows(x) for t in naive.steps(x, i)}
    assert kept == {0.0, 1.0}
    gaps = [sum(x["old"][i, t] - x["sampler"][i, t] for t in naive.steps(x, i)) for i in naive.rows(x)]
    assert max(gaps) > np.log(5) > min(gaps)


def test_top_entropy_takes_the_upper_fifth(x):
    objective = objective_lib.build(presets.preset("entropy_top_20", 8))
    pool = selections.Pool(x["mask"], np.zeros(len(x["mask"])), x["old"], _junk(x, "entropy"))
    chosen = objective_lib.select(objective, pool)
    ordered = sorted((x["entropy"][i, t] for i in naive.rows(x) for t in naive.steps(x, i)), reverse=True)
    count = chosen.sum()
    assert abs(count - 0.2 * len(ordered)) < 1
    assert set(x["entropy"][chosen]) == set(ordered[:count])


def test_covariance_selections(x):
    advantages = np.array(naive.NORM(x))
    valid = [(i, t) for i in naive.rows(x) for t in naive.steps(x, i)]
    mean_a = sum(advantages[i] for i, _ in valid) / len(valid)
    mean_l = sum(x["old"][i, t] for i, t in valid) / len(valid)
    cov = {(i, t): (advantages[i] - mean_a) * (x["old"][i, t] - mean_l) for i, t in valid}
    pool = selections.Pool(x["mask"], advantages, _junk(x, "old"), seed=1)

    top = selections.covariance_top(pool, share=0.1)
    count = int(0.1 * len(valid))
    assert {tuple(map(int, at)) for at in np.argwhere(top)} == set(sorted(cov, key=cov.get, reverse=True)[:count])

    band = {at for at, value in cov.items() if 0.1 < value < 0.6}
    picked = selections.covariance_band(pool, share=0.1, low=0.1, high=0.6)
    assert {tuple(map(int, at)) for at in np.argwhere(picked)} <= band and picked.sum() == min(count, len(band))
    other = selections.covariance_band(
        selections.Pool(x["mask"], advantages, x["old"], seed=2), share=0.1, low=0.1, high=0.6
    )
    assert (picked != other).any()  # a random choice, by seed
    assert selections.covariance_band(pool, share=0.9, low=50.0, high=60.0).sum() == 0


def test_selections_of_nothing():
    pool = selections.Pool(np.zeros((2, 3)), np.zeros(2), np.full((2, 3), np.nan), np.full((2, 3), np.nan))
    for chosen in (
        selections.top_entropy(pool, share=0.2),
        selections.covariance_top(pool, share=0.2),
        selections.covariance_band(pool, share=0.2, low=0.0, high=1.0),
    ):
        assert not chosen.any()


def test_unknown_preset_is_refused():
    with pytest.raises(ValueError, match="algo='grppo' is not known; there are: reinforce, rloo, grpo"):
        presets.preset("grppo", 8)


@pytest.mark.parametrize("name", presets.OBJECTIVES)
def test_every_slot_is_named_and_understood(name):
    assert presets.OBJECTIVES[name].keys() == presets.BASE.keys() == objective_lib.SLOTS.keys()
    objective_lib.build(presets.preset(name, 16))
