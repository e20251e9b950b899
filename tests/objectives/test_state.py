"""Methods that carry something from step to step: RiskPO's quantiles, R2VPO's multiplier."""

import jax
import numpy as np
import pytest

from lanpo_jax.objectives import groups as groups_lib
from lanpo_jax.objectives import objective as objective_lib


def test_most_methods_carry_nothing(build):
    objective = build()
    assert objective_lib.start_state(objective) == {}
    assert objective_lib.after_update(objective, {}, {}) == {}


def test_multiplier_climbs_while_the_ratios_vary_too_much_and_never_falls_below_zero(build):
    objective = build(surrogate="ratio_variance(start=0.5, rate=2.0, target=0.1)")
    state = objective_lib.start_state(objective)
    step = jax.jit(lambda state, value: objective_lib.after_update(objective, state, {"actor/ratio_variance": value}))
    state = step(state, 0.3)
    np.testing.assert_allclose(state["multiplier"], 0.9, rtol=1e-6)  # .5 + 2·(.3 - .1)
    state = step(step(state, 0.0), 0.0)
    np.testing.assert_allclose(state["multiplier"], 0.5, rtol=1e-6)
    assert step(step(step(state, 0.0), 0.0), 0.0)["multiplier"] == 0


def test_quantiles_start_at_the_first_step_and_then_move_by_the_pinball_rule(build):
    objective = build(advantage="mvar(bundle=2, low=0.25, high=0.75, rate=0.1)")
    state = objective_lib.start_state(objective)
    first = groups_lib.Groups(np.array([[0.0, 1, 0, 1], [0, 1, 1, 0]]), state=state)  # scores 0 2 1 1
    state = objective_lib.after_rollout(objective, state, first)
    assert (state["quantile_low"], state["quantile_high"]) == (0.75, 1.25)
    second = groups_lib.Groups(np.array([[0.0, 0, 0, 1], [0, 0, 1, 1]]), state=state)  # scores 0 0 1 2
    advantages = objective_lib.advantages(objective, second)
    state = objective_lib.after_rollout(objective, state, second)
    np.testing.assert_allclose(state["quantile_low"], 0.75 + 0.1 * (0.25 - 0.5), rtol=1e-6)
    np.testing.assert_allclose(state["quantile_high"], 1.25 + 0.1 * (0.75 - 0.75), rtol=1e-6)
    # score 2 (last column): CVaR part 0; RVaR part ((2-.75) - (2-1.25))/.5 = 1; over 2.5 and std of 0 0 1 2
    share = 0.75 / (0.75 + 0.5)  # 1 - .25 and 1 - .5
    np.testing.assert_allclose(advantages[0, 3], 1 / 2.5 / np.std([0, 0, 1, 2], ddof=1) * share, rtol=1e-5)


def test_bundle_must_divide_the_prompts(build):
    objective = build(advantage="mvar(bundle=5)")
    with pytest.raises(ValueError, match="7 prompts do not divide into bundles of 5"):
        objective_lib.check_sizes(objective, prompts=7, group=4)


def test_equal_scores_give_zero_and_not_a_division_by_epsilon(build):
    objective = build(advantage="mvar(bundle=2)")
    groups = groups_lib.Groups(np.array([[0.0, 1], [1, 0], [1, 1], [1, 1]]))  # scores 1 1 and 2 2
    np.testing.assert_array_equal(objective_lib.advantages(objective, groups), 0)


def test_only_one_function_may_pick_tokens(build):
    with pytest.raises(ValueError, match="covariance_kl and top_entropy both pick tokens"):
        build(surrogate="covariance_kl", weights="top_entropy")
