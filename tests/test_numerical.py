"""From graded groups to updates: every preset trains a small network, and what each one needs really arrives."""

import dataclasses

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
    advantages = np.concatenate(result.advantages)
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
    np.testing.assert_allclose(np.stack(result.advantages)[~equal], expected[~equal], atol=1e-4)


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
    assert (np.stack(result.advantages)[:, 2] == 0).all()
    np.testing.assert_allclose(np.stack(result.advantages)[:, 0], 2 / 3)


# Families of several prompts.


def cut(groups, sizes=(1, 3), shared=True):
    """Each group as a family of groups of the given sizes, under the same prompt."""
    found, ends = [], np.cumsum(sizes)
    for n, group in enumerate(groups):
        for end, size in zip(ends, sizes):
            part = slice(end - size, end)
            made = dataclasses.replace(group.generation, completions=group.generation.completions[part])
            grades = Grades(
                group.grades.rewards[part],
                group.grades.correct[part],
                group.grades.reasons[part],
                {k: v[part] for k, v in group.grades.parts.items()},
            )
            found.append(
                dataclasses.replace(group, generation=made, grades=grades, family=f"family/{n}", shared=shared)
            )
    return found


@pytest.mark.parametrize(("name", "mini_batches"), [("grpo", 1), ("dapo", 2), ("opo", 1), ("progrpo", 1), ("ppo", 1)])
def test_a_group_cut_into_a_family_learns_the_same(name, mini_batches, mesh):
    made = learner(mesh, objectives.preset(name, TOKENS), mini_batches)
    groups = step(made, start_params(made))
    whole = improve(made, groups, mini_batches=mini_batches)
    parts = improve(made, cut(groups), mini_batches=mini_batches)
    assert [len(a) for a in parts.advantages] == [1, 3] * PROMPTS
    np.testing.assert_allclose(np.concatenate(parts.advantages), np.concatenate(whole.advantages), atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), parts.state.params, whole.state.params)
    for key in ("actor/pg_loss", "actor/grad_norm"):
        np.testing.assert_allclose(parts.numbers[key], whole.numbers[key], rtol=1e-3, atol=1e-6)


def test_families_of_any_mixture_share_one_program(mesh):
    made = learner(mesh, objectives.preset("grpo", TOKENS))
    groups = step(made, start_params(made))
    for sizes in ((4,), (1, 3), (2, 1, 1), (1, 1, 1, 1)):
        improve(made, cut(groups, sizes))
    improve(made, groups[:2] + cut(groups, (2, 2))[4:])
    assert made._update._cache_size() == 1 and made._score._cache_size() == 1


def test_advantages_per_mode_are_taken_over_each_prompt(mesh):
    made = learner(mesh, objectives.preset("dr_grpo", TOKENS))
    rewards = np.array([[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 1, 0]], np.float32)
    groups = step(made, start_params(made), rewards)
    found = improve(made, cut(groups, (1, 3), shared=False)).advantages
    assert [float(a[0]) for a in found[::2]] == [0.0] * 5  # a lone rollout has no baseline
    expected = rewards[:, 1:] - rewards[:, 1:].mean(1, keepdims=True)
    np.testing.assert_allclose(np.stack(found[1::2]), expected, atol=1e-6)
    shared = improve(made, cut(groups, (1, 3))).advantages
    np.testing.assert_allclose([a[0] for a in shared[::2]], rewards[:, 0] - rewards.mean(1), atol=1e-6)


def test_filters_keep_and_drop_families(mesh):
    objective = objective_lib.build(objectives.preset("dapo", TOKENS))
    made = learner(mesh, objectives.preset("dapo", TOKENS))
    rewards = np.array([[1, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]], np.float32)
    groups = step(made, start_params(made), rewards)
    good, bad = numerical.sift(objective, cut(groups))
    assert [f[0].family for f in good] == ["family/0", "family/2"] and [len(f) for f in good + bad] == [2] * 5
    apart = cut(groups, shared=False)  # of family 0 either part is all equal by itself
    good, bad = numerical.sift(objective, apart)
    assert [f[0].family for f in good] == ["family/2"] and len(bad) == 4
    assert numerical.kept(objective, apart).tolist() == [False] * 5 + [True] + [False] * 4


@pytest.mark.parametrize("name", ["trpa", "riskpo"])
def test_methods_that_need_a_matrix_refuse_mixtures(name):
    objective = objective_lib.build(objectives.preset(name, TOKENS))
    numerical.check(objective)
    with pytest.raises(ValueError, match="same number of completions from every prompt"):
        numerical.check(objective, mixed=True)


# Guidance stripped: trained under another prompt than was sampled from.

MIXED = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 1, 1, 1], [1, 0, 1, 0], [0, 0, 1, 0]], np.float32)


def stripped(groups, numbers, shift=0.4):
    """Some groups trained under another prompt; the sampler's log-probabilities are near those under it."""
    found = []
    for n, group in enumerate(groups):
        if n in numbers:
            rng = np.random.default_rng(n)
            completions = tuple(
                dataclasses.replace(c, logprobs=(c.logprobs + rng.normal(0, shift, len(c.tokens))).astype(np.float32))
                for c in group.generation.completions
            )
            made = dataclasses.replace(group.generation, completions=completions)
            bare = rng.integers(0, 97, 4).astype(np.int32)
            group = dataclasses.replace(group, mode="intra", generation=made, prompt=bare, off_policy=True)
        found.append(group)
    return found


def bare_scores(made, params, groups):
    """float64 [B, T]: log-probabilities of all completions under the prompts they are trained under."""
    batch = made.batch(groups, {})
    count = sum(len(g.generation.completions) for g in groups)
    return batching.collect(batch, made.score(params, batch, 1.0)["logprobs"], count).astype(np.float64)


def clipped_loss(groups, scores, advantages):
    """-mean over tokens of min(wA, clip(w)A), one token after another; w = pi(bare)/pi(guided), or 1 (as a number)."""
    total, tokens, ratios = 0.0, 0, []
    rows = [(g, c) for g in groups for c in g.generation.completions]
    for i, (group, completion) in enumerate(rows):
        for t in range(len(completion.tokens)):
            w = np.exp(scores[i, t] - np.float64(completion.logprobs[t])) if group.off_policy else 1.0
            total -= min(w * advantages[i], np.clip(w, 0.8, 1.2) * advantages[i])
            tokens += 1
            ratios.append(w)
    return total / tokens, ratios


@pytest.mark.parametrize("mini_batches", [1, 2])
def test_stripped_rollouts_have_the_ratio_of_bare_to_guided(mini_batches, mesh, monkeypatch):
    made = learner(mesh, objectives.preset("grpo", TOKENS) | {"kl": "none", "aggregate": "token_mean"}, mini_batches)
    params = start_params(made)
    groups = stripped(step(made, params, MIXED), {1, 3})
    whole = dataclasses.replace(made, rows=20)
    scores = bare_scores(whole, params, groups)
    batches, update = [], Learner.update
    monkeypatch.setattr(Learner, "update", lambda self, s, b, *rest: batches.append(b) or update(self, s, b, *rest))
    result = numerical.improve(
        made, made.start(params), {}, {}, groups, mini_batches=mini_batches, temperature=1.0, seed=0, off_policy=True
    )
    first = [g for n, g in enumerate(groups) if mini_batches == 1 or n < 3]
    count = 4 * len(first)
    expected, ratios = clipped_loss(first, scores, np.concatenate(result.advantages))
    if mini_batches == 1:
        np.testing.assert_allclose(result.numbers["actor/pg_loss"], expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(result.numbers["actor/ratio_max"], max(ratios), rtol=1e-3)
        outside = np.mean([w > 1.2 or w < 0.8 for w in ratios])
        assert 0 < result.numbers["actor/pg_clipfrac"] <= outside
    old = batching.collect(batches[0], batches[0].values["old_logprobs"] * batches[0].mask, 20)
    pinned = batches[0].values["pinned"][batches[0].owner >= 0]
    marked = np.repeat([g.off_policy for g in first], 4)
    assert sorted(pinned) == sorted(~marked if mini_batches == 1 else np.zeros(count, bool))
    sampled = batching.tables(groups, TOKENS)["sampler_logprobs"][:count]
    np.testing.assert_array_equal(old[:count][marked], sampled[marked])
    if mini_batches == 2:  # the rest against the policy before the first update
        np.testing.assert_allclose(old[:count][~marked], scores[:count][~marked], atol=1e-5)


def test_the_gradient_of_stripped_rollouts_is_that_of_the_loss(mesh, monkeypatch):
    """Finite differences of the token-by-token loss, where an unguided row's w has the value 1 and pi's slope."""
    made = learner(mesh, objectives.preset("grpo", TOKENS) | {"kl": "none", "aggregate": "token_mean"})
    params = start_params(made)
    groups = stripped(step(made, params, MIXED), {1, 3}, shift=0.1)
    start = jax.tree.map(jnp.copy, params)
    batches = []
    monkeypatch.setattr(
        Learner, "update", lambda self, state, batch, *rest: batches.append(batch) or (state, {"actor/loss": 0.0})
    )
    advantages = np.concatenate(
        numerical.improve(
            made, made.start(params), {}, {}, groups, mini_batches=1, temperature=1.0, seed=0, off_policy=True
        ).advantages
    )
    before = bare_scores(made, start, groups)
    rng = np.random.default_rng(1)
    direction = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), start)
    rows = [(g, c) for g in groups for c in g.generation.completions]

    def value(amount):
        scores = bare_scores(made, jax.tree.map(lambda p, d: p + amount * d, start, direction), groups)
        total, tokens = 0.0, 0
        for i, (group, completion) in enumerate(rows):
            for t in range(len(completion.tokens)):
                base = np.float64(completion.logprobs[t]) if group.off_policy else before[i, t]
                w = np.exp(scores[i, t] - base)
                total -= min(w * advantages[i], np.clip(w, 0.8, 1.2) * advantages[i])
                tokens += 1
        return total / tokens

    slope = (value(3e-4) - value(-3e-4)) / 6e-4
    placed, _ = made.place(batches[0])
    with jax.set_mesh(mesh):
        gradient = jax.jit(jax.value_and_grad(made._loss, has_aux=True))
        found = weight = 0.0
        for i in range(placed.mask.shape[0]):
            micro = jax.tree.map(lambda x, i=i: x[i], placed)
            (_, (w, _)), g = gradient(start, micro, jnp.float32(1.0), {}, None)
            found += sum(float(jnp.vdot(a, b)) for a, b in zip(jax.tree.leaves(g), jax.tree.leaves(direction)))
            weight += float(w)
    np.testing.assert_allclose(found / weight, slope, rtol=2e-2)


def test_without_marked_groups_an_off_policy_run_is_the_on_policy_one(mesh):
    made = learner(mesh, objectives.preset("grpo", TOKENS))
    groups = step(made, start_params(made))
    params, reference = start_params(made), made.random_params(0)
    plain = improve(made, groups, made.start(params), reference=reference)
    state = made.start(start_params(made))
    other = numerical.improve(
        made, state, reference, {}, groups, mini_batches=1, temperature=1.0, seed=0, off_policy=True
    )
    jax.tree.map(np.testing.assert_array_equal, plain.state.params, other.state.params)
    assert other.numbers["actor/ratio_max"] == other.numbers["actor/ratio_min"] == 1.0
    improve_again = {"mini_batches": 1, "temperature": 1.0, "seed": 0, "off_policy": True}
    numerical.improve(made, other.state, reference, {}, stripped(groups, {0}), **improve_again)
    assert made._update._cache_size() == 2  # one with and one without old log-probabilities


def test_off_policy_groups_are_refused_where_nothing_corrects_them(mesh):
    for name in ("reinforce", "trpa", "rover"):
        with pytest.raises(ValueError, match="no importance weight"):
            numerical.check(objective_lib.build(objectives.preset(name, TOKENS)), off_policy=True)
    numerical.check(objective_lib.build(objectives.preset("gspo", TOKENS)), off_policy=True)
    made = learner(mesh, objectives.preset("grpo", TOKENS))
    with pytest.raises(ValueError, match="off_policy=True"):
        improve(made, stripped(step(made, start_params(made)), {0}))
