"""From graded groups to updates: every preset trains a small network, and what each one needs really arrives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import objectives
from lanpo_jax import batching, numerical, optimizer
from lanpo_jax.learner import Learner
from lanpo_jax.models import qwen
from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.types import Completion, Generation, Grades, Group, Problem
from tests.models import tiny

PROMPTS, GROUP, TOKENS = 5, 4, 8
SHAPE = batching.Shape.packed(64, 10, TOKENS)


def learner(mesh, slots, mini_batches=1, speed=1e-2):
    sizes = tiny.SIZES | tiny.FORMS["llama"] | {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 32}
    rate = optimizer.schedule(rate=speed, warmup=0, decay="constant", updates=10, floor=0.1)
    tx = optimizer.make(rate, b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.0, clip=1.0)
    config, objective = qwen.ModelConfig.from_hf(sizes), objective_lib.build(slots)
    return Learner(config, objective, tx, mesh, SHAPE, 2, 2 * -(-PROMPTS * GROUP // mini_batches // 2), rate)


def step(made, params, rewards=None, seed=0):
    """Five groups of four completions; their sampler's log-probabilities are those of `params`."""
    rng = np.random.default_rng(seed)
    rewards = rng.integers(0, 2, (PROMPTS, GROUP)).astype(np.float32) if rewards is None else rewards
    groups = []
    for row in rewards:
        lengths = rng.integers(2, TOKENS + 1, GROUP)
        completions = tuple(
            Completion(rng.integers(0, 97, n).astype(np.int32), np.zeros(n, np.float32), "", n == TOKENS)
            for n in lengths
        )
        prompt = rng.integers(0, 97, rng.integers(4, 11)).astype(np.int32)
        grades = Grades(row, row > 0, ("",) * GROUP, {"verify": row})
        groups.append(Group(Problem("p", "t", "1"), "plain", Generation(prompt, "", completions), grades))
    tables = batching.tables(groups, TOKENS)
    whole = Learner(made.config, made.objective, made.tx, made.mesh, SHAPE, 2, 20, made.rate)
    batch = whole.batch(groups, {})
    scored = batching.collect(batch, whole.score(params, batch, 1.0)["logprobs"], PROMPTS * GROUP)
    found = []
    for i, group in enumerate(groups):
        completions = tuple(
            Completion(c.tokens, scored[i * GROUP + g, : len(c.tokens)], "", c.truncated)
            for g, c in enumerate(group.generation.completions)
        )
        made_again = Generation(group.generation.prompt_tokens, "", completions)
        found.append(Group(group.problem, "plain", made_again, group.grades))
    assert tables["mask"].sum() == sum(len(c.tokens) for g in found for c in g.generation.completions)
    return found


def improve(made, groups, state=None, mini_batches=1, memory=None, reference=None):
    params = made.random_params(0)
    state = state or made.start(jax.tree.map(lambda x: jnp.copy(x) * (8 if x.ndim > 1 else 1), params))
    reference = jax.tree.map(lambda x: x * (7 if x.ndim > 1 else 1), params) if reference is None else reference
    memory = memory or {k: float(v) for k, v in objective_lib.start_state(made.objective).items()}
    return numerical.improve(made, state, reference, memory, groups, mini_batches=mini_batches, temperature=1.0, seed=0)


def start_params(made):
    return jax.tree.map(lambda x: x * (8 if x.ndim > 1 else 1), made.random_params(0))


@pytest.mark.parametrize("name", sorted(objectives.OBJECTIVES))
def test_every_preset_trains(name, mesh):
    speed = 1e-4 if name == "capo" else 1e-2  # a step that would bend the curvature masks every token
    made = learner(mesh, objectives.preset(name, TOKENS), speed=speed)
    numerical.check(made.objective)
    before = start_params(made)
    groups = step(made, before)
    result = improve(made, groups)
    assert all(np.isfinite(v) for v in result.numbers.values())
    assert result.numbers["actor/skipped"] == 0.0
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), before, {k: result.state.params[k] for k in before})
    assert max(jax.tree.leaves(moved)) > speed / 10
    assert result.numbers["mismatch/logp_abs_diff_max"] < 1e-4
    if "actor/ratio_max" in result.numbers:  # one update: exactly on-policy
        assert result.numbers["actor/ratio_max"] == result.numbers["actor/ratio_min"] == 1.0


def test_reward_rises_with_updates(mesh):
    """The likelihood of what was rewarded goes up, of what was not down."""
    made = learner(mesh, objectives.preset("reinforce", TOKENS))
    params = start_params(made)
    groups = step(made, params)
    result = improve(made, groups)
    for _ in range(3):
        result = improve(made, groups, result.state)
    batch = made.batch(groups, {})
    new = batching.collect(batch, made.score(result.state.params, batch, 1.0)["logprobs"], 20).sum(-1)
    old = np.array([c.logprobs.sum() for g in groups for c in g.generation.completions])
    advantages = result.advantages.reshape(-1)
    assert ((new - old) * advantages).sum() > 0.5


def test_kl_in_the_reward_is_taken_from_it(mesh):
    made = learner(mesh, objectives.preset("rloo", TOKENS) | {"reward_kl": "k1(beta=0.5)"})
    params = start_params(made)
    groups = step(made, params)
    reference = jax.tree.map(lambda x: x * 0.5, params)
    result = improve(made, groups, reference=reference)
    batch = made.batch(groups, {})
    ref = batching.collect(batch, made.score(reference, batch, 1.0)["logprobs"], 20).sum(-1)
    old = np.array([c.logprobs.sum() for g in groups for c in g.generation.completions])
    rewards = np.stack([g.grades.rewards for g in groups]) - 0.5 * (old - ref).reshape(PROMPTS, GROUP)
    expected = GROUP / (GROUP - 1) * (rewards - rewards.mean(1, keepdims=True))
    equal = rewards.max(1) == rewards.min(1)
    np.testing.assert_allclose(result.advantages[~equal], expected[~equal], atol=1e-4)


def test_quantiles_and_multiplier_are_remembered(mesh):
    made = learner(mesh, objectives.preset("riskpo", TOKENS))
    groups = step(made, start_params(made))
    first = improve(made, groups)
    assert first.memory["quantiles_known"] == 1.0
    second = improve(made, step(made, start_params(made), seed=1), memory=first.memory)
    assert second.memory["quantile_low"] != first.memory["quantile_low"]


def test_several_updates_leave_the_old_policy(mesh):
    made = learner(mesh, objectives.preset("dr_grpo", TOKENS), mini_batches=2, speed=0.1)
    result = improve(made, step(made, start_params(made)), mini_batches=2)
    assert int(result.state.updates) == 2
    assert result.numbers["actor/ratio_max"] > 1.0


def test_value_head_learns_the_returns(mesh):
    made = learner(mesh, objectives.preset("ppo", TOKENS))
    groups = step(made, start_params(made))
    result = improve(made, groups)
    losses = [result.numbers["critic/vf_loss"]]
    for _ in range(8):
        result = improve(made, groups, result.state)
        losses.append(result.numbers["critic/vf_loss"])
    assert losses[-1] < losses[0]
    assert float(jnp.abs(result.state.params["value"]).max()) > 0


def test_all_groups_equal_is_no_update(mesh):
    made = learner(mesh, objectives.preset("dapo", TOKENS))
    before = jax.device_get(start_params(made))
    result = improve(made, step(made, start_params(made), np.ones((PROMPTS, GROUP), np.float32)))
    assert result.numbers["actor/skipped"] == 1.0
    assert int(result.state.updates) == 0
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(result.state.params))


def test_an_unknown_reward_is_left_out(mesh):
    made = learner(mesh, objectives.preset("dr_grpo", TOKENS))
    rewards = np.tile(np.array([1.0, 0.0, np.nan, 0.0], np.float32), (PROMPTS, 1))
    result = improve(made, step(made, start_params(made), rewards))
    assert (result.advantages[:, 2] == 0).all()
    np.testing.assert_allclose(result.advantages[:, 0], 2 / 3)
