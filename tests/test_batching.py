"""Rows: nothing is lost, nothing is invented, everything fits."""

import dataclasses

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from lanpo_jax import batching
from lanpo_jax.types import Completion, Generation, Grades, Group, Problem


def group(prompt_length, lengths, seed=0):
    rng = np.random.default_rng(seed)
    completions = tuple(
        Completion(rng.integers(0, 99, n).astype(np.int32), rng.normal(size=n).astype(np.float32), "", bool(n % 2))
        for n in lengths
    )
    prompt = rng.integers(0, 99, prompt_length).astype(np.int32)
    n = len(lengths)
    grades = Grades(np.zeros(n, np.float32), np.zeros(n, bool), ("",) * n, {})
    return Group(Problem("p", "text", "1"), "plain", Generation(prompt, "", completions), grades)


def make(groups, advantages, shape, count=64):
    tables = batching.tables(groups, shape.completion_tokens) | {"advantages": np.concatenate(advantages)}
    del tables["mask"]
    return batching.batch(batching.arrange(batching.documents(groups, shape), shape), shape, count, tables)


def read_back(made):
    """(advantage, prompt tokens, completion tokens, logprobs, truncated) of every completion, out of the arrays."""
    found = []
    for r, slot in zip(*np.nonzero(made.mask.any(-1))):
        n = int(made.mask[r, slot].sum())
        place = made.place[r, slot, :n]
        source = made.source[r, place]
        tokens = made.targets[r, place]
        last_prompt = source[0]
        document = made.segments[r, last_prompt] // 4096
        prompt = made.tokens[r, made.segments[r] == document * 4096 + 1]
        # Each later token is predicted by the one before it, which stands in the row where its source says.
        assert (made.tokens[r, source[1:]] == tokens[:-1]).all()
        assert made.positions[r, source].tolist() == list(range(len(prompt) - 1, len(prompt) - 1 + n))
        found.append(
            (
                float(made.values["advantages"][r, slot]),
                prompt.tolist(),
                tokens.tolist(),
                made.values["sampler_logprobs"][r, slot, :n].tolist(),
                bool(made.values["truncated"][r, slot]),
            )
        )
    return sorted(found)


sizes = st.lists(
    st.tuples(st.integers(1, 20), st.lists(st.integers(1, 12), min_size=1, max_size=8)), min_size=1, max_size=6
)


@hypothesis.given(sizes, st.booleans())
@hypothesis.settings(max_examples=80, deadline=None)
def test_rows_hold_every_completion_once(sizes, packed):
    groups = [group(p, lengths, seed=i) for i, (p, lengths) in enumerate(sizes)]
    advantages = [100 * i + np.arange(len(lengths), dtype=float) for i, (_, lengths) in enumerate(sizes)]
    shape = batching.Shape.packed(64, 20, 12) if packed else batching.Shape.plain(20, 12)
    expected = sorted(
        (float(a), g.generation.prompt_tokens.tolist(), c.tokens.tolist(), c.logprobs.tolist(), c.truncated)
        for g, values in zip(groups, advantages)
        for a, c in zip(values, g.generation.completions)
    )
    assert read_back(make(groups, advantages, shape)) == expected


def test_packing_computes_a_prompt_once():
    groups = [group(20, [5] * 8)]
    values = [np.zeros(8)]
    plain = make(groups, values, batching.Shape.plain(20, 12), 8)
    packed = make(groups, values, batching.Shape.packed(72, 20, 12), 1)
    assert (plain.segments > 0).sum() == 8 * 25
    assert (packed.segments > 0).sum() == 20 + 8 * 5
    assert batching.padding_share(packed) < batching.padding_share(plain)


def test_what_does_not_fit_is_said():
    with pytest.raises(ValueError, match="row_tokens=30 cannot hold"):
        batching.Shape.packed(30, 20, 12)
    with pytest.raises(ValueError, match=r"21 tokens.*does not fit"):
        make([group(21, [12])], [np.zeros(1)], batching.Shape.plain(20, 12))
    with pytest.raises(ValueError, match="more than the 2"):
        make([group(20, [12] * 3)], [np.zeros(3)], batching.Shape.plain(20, 12), count=2)


def test_mini_batches_are_whole_families():
    alone = [[i] for i in (0, 1, 2, 4, 5, 6, 7)]
    assert batching.mini_batches(alone, 3) == [[0, 1, 2], [4, 5], [6, 7]]
    assert batching.mini_batches([[0], [3]], 4) == [[0], [3]]
    assert batching.mini_batches([[0, 4], [1], [2, 3, 5]], 2) == [[0, 4, 1], [2, 3, 5]]


def test_tables_come_back_from_rows():
    groups = [group(9, [5, 2, 7], 1), group(4, [1, 12, 3], 2)]
    shape = batching.Shape.packed(40, 20, 12)
    table = np.random.default_rng(0).normal(size=(6, 12)) * batching.tables(groups, 12)["mask"]
    found = batching.documents(groups, shape, chosen=[1])
    made = batching.batch(batching.arrange(found, shape), shape, 8, {"x": table, "group": np.arange(6, dtype=np.int32)})
    back = batching.collect(made, made.values["x"] * made.mask, 6)
    assert not back[:3].any()
    np.testing.assert_allclose(back[3:], table[3:], rtol=1e-6)
    assert sorted(np.unique(made.values["group"])) == [-1, 3, 4, 5]


def test_a_group_that_must_stay_whole_is_not_cut():
    shape = batching.Shape.packed(40, 20, 12)
    with pytest.raises(ValueError, match=r"3 completions and 50 tokens.*row_tokens"):
        batching.documents([group(20, [10, 10, 10])], shape, whole=True)


def test_families_are_found_in_order_of_their_first_group():
    groups = [group(3, [1]) for _ in range(6)]
    named = ["", "b", "a", "b", "", "a"]
    groups = [dataclasses.replace(g, family=name) for g, name in zip(groups, named)]
    assert batching.families(groups) == [[0], [1, 3], [2, 5], [4]]


@hypothesis.given(
    st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.booleans(), st.integers(1, 4)), min_size=1, max_size=8)
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_placement_keeps_every_completion_once_and_apart_from_other_families(found):
    groups = [
        dataclasses.replace(group(3, [1] * n), family=name, shared=shared or not name) for name, shared, n in found
    ]
    place = batching.Placement.of(groups)
    count = sum(n for _, _, n in found)
    assert sorted(place.index[place.index >= 0]) == list(range(count))
    sizes = [sum(found[i][2] for i in family) for family in batching.families(groups)]
    assert place.index.shape[1] == max(sizes)
    owner = np.repeat(np.arange(len(groups)), [n for _, _, n in found])
    for row in place.index:
        members = {int(owner[k]) for k in row if k >= 0}
        assert {i for i in range(len(groups)) if place.rows[i] == place.rows[min(members)]} == members
        assert len(members) == 1 or (len({groups[i].family for i in members}) == 1 and groups[min(members)].family)
        assert len(members) == 1 or all(groups[i].shared for i in members)
    table = np.random.default_rng(0).normal(size=(count, 3))
    spread = place.gather(table, np.nan)
    assert np.isnan(spread).all(-1).sum() == place.index.size - count
    np.testing.assert_array_equal(place.scatter(spread), table)


def test_a_group_is_laid_out_under_the_prompt_that_it_is_trained_under():
    shown = group(9, [5, 2])
    stripped = dataclasses.replace(shown, prompt=np.array([7, 8], np.int32))
    (document,) = batching.documents([stripped], batching.Shape.plain(20, 12))[:1]
    assert document.prompt.tolist() == [7, 8]
    assert batching.documents([shown], batching.Shape.plain(20, 12))[0].prompt.tolist() == (
        shown.generation.prompt_tokens.tolist()
    )
