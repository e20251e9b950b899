"""What must hold for every preset and any numbers."""

import dataclasses
import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from configs import objectives as presets
from lanpo_jax.objectives import groups as groups_lib
from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.objectives import pooled
from lanpo_jax.objectives import tokens as tokens_lib
from tests.objectives.conftest import compiled

GROUPS, SIZE, TOKENS = 3, 2, 4
NAMES = sorted(presets.OBJECTIVES)
FAST = hypothesis.settings(max_examples=12, deadline=None, derandomize=True)
DATA = st.tuples(hnp.arrays(np.int8, (GROUPS * SIZE, TOKENS), elements=st.integers(0, 1)), st.integers(0, 2**16))


@functools.cache
def _compiled(name):
    objective = objective_lib.build(presets.preset(name, max_new_tokens=TOKENS))

    def parts(logprobs, batch, aux):
        state = {"multiplier": jnp.asarray(0.5, logprobs.dtype)}
        total, weight, metrics = objective_lib.loss(objective, logprobs, batch, aux=aux, state=state)
        return total, (weight, metrics)

    return compiled(jax.value_and_grad(parts, has_aux=True))


def _inputs(mask, seed):
    rng = np.random.default_rng(seed)
    rows = GROUPS * SIZE

    def near(x):
        return x + rng.normal(0, 0.3, mask.shape)

    logprobs = -rng.uniform(0.01, 3, mask.shape)
    batch = tokens_lib.Batch(
        mask=mask.astype(float),
        advantages=np.broadcast_to(rng.normal(size=(rows, 1)), mask.shape),
        old_logprobs=near(logprobs),
        ref_logprobs=near(logprobs),
        sampler_logprobs=near(logprobs),
        truncated=np.zeros(rows, bool),
        selected=rng.random(mask.shape) < 0.5,
        group=np.repeat(np.arange(GROUPS), SIZE),
        level=rng.integers(0, 2, rows).astype(float),
        old_values=near(logprobs),
        returns=near(logprobs),
        old_vocab_mean=near(logprobs),
    )
    aux = {name: near(logprobs) for name in ("entropy", "values", "vocab_mean")}
    aux |= {"drift": rng.normal(0, 0.01, mask.shape), "spread": rng.uniform(0, 1e-3, mask.shape)}
    return logprobs, batch, aux


def _take(inputs, rows):
    return jax.tree.map(lambda x: x[rows], inputs)


def _run(name, inputs):
    (total, (weight, metrics)), gradient = _compiled(name)(*inputs)
    return float(total), float(weight), np.asarray(gradient), metrics


@pytest.mark.parametrize("name", NAMES)
@FAST
@hypothesis.given(data=DATA, junk=st.sampled_from([np.nan, np.inf, -np.inf, 1e30]))
def test_junk_under_the_mask_changes_nothing(name, data, junk):
    inputs = _inputs(*data)
    mask = data[0] != 0

    def soil(x):
        return np.where(mask, x, junk) if x.ndim == 2 and x.dtype == float else x

    logprobs, batch, aux = jax.tree.map(soil, inputs)
    soiled = logprobs, dataclasses.replace(batch, mask=inputs[1].mask), aux
    clean, dirty = _run(name, inputs), _run(name, soiled)
    for a, b in zip(clean[:3], dirty[:3]):
        np.testing.assert_array_equal(a, b)
    assert all(np.isfinite(v) for v in pooled.finish(dirty[3]).values())
    assert not dirty[2][~mask].any()


@pytest.mark.parametrize("name", NAMES)
@FAST
@hypothesis.given(data=DATA, order=st.permutations(range(GROUPS)))
def test_order_and_cut_of_groups_change_nothing(name, data, order):
    """Micro-batches of whole groups, in any order, add up to the mini-batch: loss, gradient and metrics.

    A micro-batch is made by masking the other groups, which is the same thing (test_objective.py really slices) and
    needs one compiled program.
    """
    inputs = _inputs(*data)
    total, weight, gradient, metrics = _run(name, inputs)
    shuffled = np.concatenate([np.arange(g * SIZE, (g + 1) * SIZE)[::-1] for g in order])
    sums, pieces, joined = np.zeros(2), np.zeros_like(gradient), None
    for start in range(0, GROUPS * SIZE, SIZE):
        logprobs, batch, aux = _take(inputs, shuffled)
        mask = np.zeros_like(batch.mask)
        mask[start : start + SIZE] = batch.mask[start : start + SIZE]
        t, w, piece, m = _run(name, (logprobs, dataclasses.replace(batch, mask=mask), aux))
        sums += t, w
        pieces[shuffled] += piece
        joined = m if joined is None else pooled.merge(joined, m)
    np.testing.assert_allclose(sums, (total, weight), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(pieces, gradient, rtol=1e-10, atol=1e-12)
    for key, value in pooled.finish(metrics).items():
        np.testing.assert_allclose(pooled.finish(joined)[key], value, rtol=1e-9, atol=1e-12, err_msg=key)


# Not here: pnpo, whose gradient runs through the whole prefix, and rover, which regresses; trpa has no advantage, and
# entropy_top_20, clip_cov and capo leave tokens out on purpose.
LIKE_REINFORCE = sorted(set(NAMES) - {"pnpo", "rover", "trpa", "entropy_top_20", "clip_cov", "capo"})


@pytest.mark.parametrize("name", LIKE_REINFORCE)
@FAST
@hypothesis.given(data=DATA)
def test_on_policy_the_gradient_is_that_of_reinforce(name, data):
    logprobs, batch, aux = _inputs(*data)
    batch = dataclasses.replace(batch, old_logprobs=logprobs, ref_logprobs=logprobs, sampler_logprobs=logprobs)
    _, weight, gradient, metrics = _run(name, (logprobs, batch, aux))
    mask = np.asarray(batch.mask)
    lengths = np.maximum(mask.sum(-1, keepdims=True), 1)
    per_token = {
        "sequence_mean": 1 / lengths,
        "constant": 1 / TOKENS,
    }.get(presets.OBJECTIVES[name]["aggregate"].split("(")[0], 1.0)
    np.testing.assert_allclose(gradient, -batch.advantages * mask * per_token, rtol=1e-9, atol=1e-12)
    numbers = pooled.finish(metrics)
    assert numbers["actor/pg_clipfrac"] == 0
    if weight:
        np.testing.assert_allclose([numbers["actor/ratio_min"], numbers["actor/ratio_max"]], 1, rtol=1e-12)


VALUES = st.floats(-1e3, 1e3, allow_nan=False)


@pytest.mark.parametrize("spec", ["group_norm", "group_center", "rloo", "batch_norm", "opo", "mvar(bundle=1)"])
@FAST
@hypothesis.example(value=0.9, size=30, other=np.arange(40.0))  # its mean over 30 is not .9 in floating point
@hypothesis.given(value=VALUES, size=st.integers(2, 40), other=hnp.arrays(np.float64, 40, elements=VALUES))
def test_equal_rewards_give_exactly_zero(spec, value, size, other, build):
    rewards = np.stack([np.full(size, value), other[:size]])
    groups = groups_lib.Groups(rewards, lengths=np.full(rewards.shape, 3))
    found = objective_lib.advantages(build(advantage=spec), groups)
    assert not found[0].any() and np.isfinite(found).all()


def test_equal_rewards_give_zero_though_verdicts_differ(build):
    """ProGRPO looks at verdicts, and shaping can make right and wrong answers worth the same."""
    shape = (1, 3, 4)
    groups = groups_lib.Groups(
        np.full(shape[:2], 0.5),
        correct=np.array([[True, False, True]]),
        mask=np.ones(shape),
        old_logprobs=-np.arange(12.0).reshape(shape),
        prompt_confidence=np.array([0.5]),
    )
    assert not objective_lib.advantages(build(advantage="arm"), groups).any()
    differing = dataclasses.replace(groups, rewards=np.array([[0.5, 0.0, 0.5]]))
    assert objective_lib.advantages(build(advantage="arm(alpha=0.3)"), differing).all()


@pytest.mark.parametrize("spec", ["group_norm", "group_center", "rloo", "batch_norm", "opo"])
@FAST
@hypothesis.given(rewards=hnp.arrays(np.float64, (4, 3), elements=VALUES), order=st.permutations(range(4)))
def test_groups_do_not_know_their_place(spec, rewards, order, build):
    lengths = np.arange(1, 13).reshape(4, 3)
    objective = build(advantage=spec)
    found = objective_lib.advantages(objective, groups_lib.Groups(rewards, lengths=lengths))
    moved = objective_lib.advantages(objective, groups_lib.Groups(rewards[list(order)], lengths=lengths[list(order)]))
    np.testing.assert_allclose(moved, found[list(order)], rtol=1e-9, atol=1e-9)


def test_padding_rows_and_tokens_change_nothing():
    mask = np.array([[1, 1, 0, 1]] * 6, np.int8)
    inputs = _inputs(mask, 0)

    def pad(x):
        fill = {"b": False, "i": 10**6}.get(x.dtype.kind, np.nan)
        return np.pad(x, [(0, 2), (0, 3)][: x.ndim], constant_values=fill)

    logprobs, batch, aux = jax.tree.map(pad, inputs)
    padded = logprobs, dataclasses.replace(batch, mask=np.nan_to_num(batch.mask)), aux
    for name in ("grpo", "ctpo", "trpa", "ppo", "rover"):
        small, large = _run(name, inputs), _run(name, padded)
        np.testing.assert_allclose(large[:2], small[:2], rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(large[2][:6, :4], small[2], atol=1e-13, err_msg=name)


@pytest.mark.parametrize(
    "spec", ["none", "group_norm", "group_center", "rloo", "batch_norm", "opo", "arm", "gae", "gae(whiten=False)"]
)
@FAST
@hypothesis.given(seed=st.integers(0, 2**16), holes=st.integers(1, 4), junk=st.sampled_from([np.nan, np.inf, 1e30]))
def test_places_without_a_completion_change_nothing(spec, seed, holes, junk, build):
    """Unequal numbers of completions: columns of anything, not scored, put between the others at random."""
    rng = np.random.default_rng(seed)
    prompts, size, wide = 4, 3, 3 + holes
    rewards = rng.integers(0, 3, (prompts, size)) / 2
    mask = (np.arange(TOKENS) < rng.integers(1, TOKENS + 1, (prompts, size, 1))).astype(float)
    full = {
        "rewards": rewards,
        "lengths": mask.sum(-1),
        "correct": rewards > 0.5,
        "mask": mask,
        "old_logprobs": -rng.uniform(0.1, 3, mask.shape),
        "prompt_confidence": np.broadcast_to(rng.uniform(0, 1, (prompts, 1)), rewards.shape),
        "values": rng.normal(size=mask.shape),
    }
    places = np.stack([np.sort(rng.permutation(wide)[:size]) for _ in range(prompts)])

    def widen(name, array):
        fill = 0 if name == "mask" else True if name == "correct" else junk
        out = np.full((prompts, wide, *array.shape[2:]), fill, array.dtype)
        out[np.arange(prompts)[:, None], places] = array
        return out

    scored = widen("mask", np.ones(rewards.shape)) > 0
    objective = build(advantage=spec, filter="drop_equal")
    ragged = groups_lib.Groups(**{n: widen(n, a) for n, a in full.items()}, scored=scored)
    expected = objective_lib.advantages(objective, groups_lib.Groups(**full))
    found = objective_lib.advantages(objective, ragged)
    np.testing.assert_allclose(found[np.arange(prompts)[:, None], places], expected, rtol=1e-12, atol=1e-12)
    assert not found[~scored].any()
    np.testing.assert_array_equal(objective.filter(ragged), objective.filter(groups_lib.Groups(**full)))


def test_pinned_rows_are_on_policy_and_the_others_against_their_old(build, evaluate):
    """Guidance stripped: w = pi/q on some rows; on the rest w is 1, whatever stands in `old_logprobs`. Plain loops."""
    rng = np.random.default_rng(5)
    mask = (np.arange(5) < np.array([5, 3, 4, 1])[:, None]).astype(float)
    logprobs = -rng.uniform(0.1, 2, mask.shape)
    guided = logprobs + rng.normal(0, 0.3, mask.shape)
    advantages, pinned = np.array([1.0, -0.5, -1.5, 0.7]), np.array([False, True, False, True])
    old = np.where(pinned[:, None], np.nan, guided)
    total, gradient = 0.0, np.zeros(mask.shape)
    for i in range(4):
        for t in range(int(mask[i].sum())):
            w = 1.0 if pinned[i] else np.exp(logprobs[i, t] - guided[i, t])
            a = advantages[i]
            total -= min(w * a, min(max(w, 0.8), 1.2) * a) / mask.sum()
            cut = (a > 0 and w > 1.2) or (a < 0 and w < 0.8)
            gradient[i, t] = 0.0 if cut else -w * a / mask.sum()
    batch = tokens_lib.Batch(mask=mask, advantages=advantages, old_logprobs=old, pinned=pinned)
    found, slopes, metrics = evaluate(build(surrogate="clip(low=0.2, high=0.2)"), logprobs, batch)
    np.testing.assert_allclose(found, total, rtol=1e-12)
    np.testing.assert_allclose(slopes, gradient, rtol=1e-12, atol=1e-15)
    assert metrics["actor/pg_clipfrac"] > 0
    own = dataclasses.replace(batch, mask=mask * pinned[:, None])
    _, alone, _ = evaluate(build(surrogate="clip(low=0.2, high=0.2)"), logprobs, own)
    _, plain, _ = evaluate(
        build(surrogate="clip(low=0.2, high=0.2)"), logprobs, dataclasses.replace(own, old_logprobs=None, pinned=None)
    )
    np.testing.assert_array_equal(alone, plain)
