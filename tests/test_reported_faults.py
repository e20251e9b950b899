"""Faults that users reported of other trainers, as small inputs with their right answers (names as in those reports).

Those that concern losses and advantages alone are in tests/objectives/trainer_cases.json.
"""

import math

import numpy as np
import pytest

from lanpo_jax import batching, data, metrics, optimizer, scores
from lanpo_jax.objectives import advantages
from lanpo_jax.objectives import groups as groups_lib
from lanpo_jax.rewards import reward, shaping
from lanpo_jax.sampling import sampler
from lanpo_jax.types import Completion, Generation, Grades, Group, Problem


def group(prompt, completions, rewards=None):
    made = tuple(Completion(np.array(c, np.int32), np.zeros(len(c), np.float32), "hello", False) for c in completions)
    rewards = np.zeros(len(made), np.float32) if rewards is None else np.asarray(rewards, np.float32)
    grades = Grades(rewards, rewards > 0, ("",) * len(made), {})
    return Group(Problem("p", "p", "1"), "plain", Generation(np.array(prompt, np.int32), "", made), grades)


def rows(groups, shape, tables=None):
    return batching.batch(batching.arrange(batching.documents(groups, shape), shape), shape, 8, tables)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([[1, 0], [0, 0]], [[0.5, -0.5], [0, 0]]),  # adv-06: by prompt, not by adjacency
        ([[1, 0], [1, 1]], [[0.5, -0.5], [0, 0]]),  # adv-07: one text twice in a step is two groups
    ],
)
def test_groups_are_what_one_prompt_request_gave(rewards, expected):
    found = advantages.group_center(groups_lib.Groups(rewards=np.array(rewards, float)))
    assert found.tolist() == expected


def test_advantages_stay_with_their_completions_through_sorting_and_cutting():  # adv-09
    groups = [group([1], [[7] * n]) for n in (2, 1, 3, 2)]
    shape = batching.Shape.plain(1, 3)
    made = rows(groups, shape, {"advantages": np.array([1.0, 2.0, 3.0, 4.0])})
    used = {int(o): float(a) for o, a in zip(made.owner[:, 0], made.values["advantages"][:, 0]) if o >= 0}
    assert used == {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}
    assert [len(d[0].completions[0]) for d in batching.arrange(batching.documents(groups, shape), shape)] != [
        2,
        1,
        3,
        2,
    ]


@pytest.mark.parametrize(
    ("tokens", "eos", "truncated"),
    [
        ([5, 7, 32007], (2, 32007), False),  # mask-02: ended by a secondary end token
        ([5, 7, 9, 2], (2,), False),  # mask-03: the end token exactly at the limit
        ([5, 7, 9, 4], (2,), True),
    ],
)
def test_ended_or_truncated(tokens, eos, truncated):
    class Ends:
        eos_ids = eos

        def decode(self, ids):
            return ""

    made = sampler.Sampler(None, Ends(), None, 1)._completion(np.array(tokens, np.int32), np.zeros(len(tokens)))
    assert made.truncated == truncated
    assert made.tokens.tolist() == tokens


def test_what_was_sampled_is_what_is_trained_on():  # mask-07: decoding and encoding again gives other ids
    made = rows([group([1, 2], [[101, 202]])], batching.Shape.plain(4, 4))
    assert made.targets[0, :2].tolist() == [101, 202]
    assert made.mask[0].sum() == 2


def test_no_gap_between_prompt_and_completion():  # pos-03
    made = rows([group([1, 2, 3], [[8, 9]]), group([1, 2, 3, 4, 5], [[8]])], batching.Shape.plain(8, 4))
    for r in range(2):
        used = int((made.segments[r] > 0).sum())
        assert made.positions[r, :used].tolist() == list(range(used))
    assert sorted(made.tokens[:2].tolist()) == [[1, 2, 3, 4, 5, 8] + [0] * 6, [1, 2, 3, 8, 9] + [0] * 7]


def test_resume_at_an_epoch_border_sees_the_whole_next_epoch():  # res-01
    problems = [Problem(str(i), str(i), "1") for i in range(4)]
    second = [p.id for step in (2, 3) for p in data.batch(problems, step, 2, seed=0)]
    assert sorted(second) == ["0", "1", "2", "3"]


def test_the_schedule_counts_optimizer_updates():  # lr-01
    rate = optimizer.schedule(rate=1.0, warmup=0, decay="linear", updates=40, floor=0.0)
    assert math.isclose(float(rate(20)), 0.5)


def test_soft_overlong_penalty():  # rew-05 and rew-06
    lengths = np.array([80, 81, 90, 100, 120])
    penalty = shaping.overlong([], [], lengths, limit=100, buffer=20)
    np.testing.assert_allclose(penalty, [0.0, -0.05, -0.5, -1.0, -1.0])
    specs = {
        "lanpo_jax.rewards.math.verify(extract='strict')": 1.0,
        "lanpo_jax.rewards.shaping.overlong(limit=100, buffer=20)": 1.0,
    }
    completion = Completion(np.zeros(90, np.int32), np.zeros(90, np.float32), "The answer is 7.", False)
    grades = reward.grader(specs)([Problem("a", "?", "7")], [completion])
    assert grades.rewards.tolist() == [0.5]
    assert grades.correct.tolist() == [True]


def test_pass_at_k():  # met-02, met-03, met-04
    assert [scores.pass_at(4, 1, k) for k in (1, 2, 4)] == [0.25, 0.5, 1.0]
    assert math.isclose(scores.pass_at(8, 2, 4), 0.7857142857, rel_tol=1e-9)
    with pytest.raises(ValueError, match="pass@5 of 3 samples"):
        scores.pass_at(3, 1, 5)


def test_standard_error_is_over_problems():  # met-05
    correct = np.array([[1, 1], [0, 0], [1, 0], [1, 0]], bool)
    low, high = scores.interval(correct)
    centre, half = 0.5, 1.959964 * 0.2041241452
    np.testing.assert_allclose([low, high], [centre - half, centre + half], rtol=1e-6)


def test_a_metric_that_only_some_parts_have():  # met-06
    assert metrics.mean([{"format_ok": 1.0}, {}]) == {"format_ok": 1.0}


def test_lengths_come_in_buckets():  # shape-01
    assert {sampler._multiple(n, 32) for n in (17, 23, 31, 40)} == {32, 64}
