"""Evaluation numbers against their definitions."""

import itertools
import math

import numpy as np
import pytest

from lanpo_jax import scores


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 4), (8, 3, 2), (8, 0, 4), (8, 8, 1), (16, 5, 8), (5, 2, 3)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n, c, k):
    subsets = list(itertools.combinations([1] * c + [0] * (n - c), k))
    assert math.isclose(scores.pass_at(n, c, k), np.mean([any(s) for s in subsets]))


def test_interval_is_the_standard_error_over_problems():
    correct = np.random.default_rng(0).random((50, 8)) < np.random.default_rng(1).random((50, 1))
    low, high = scores.interval(correct)
    means = correct.mean(1)
    assert math.isclose((low + high) / 2, means.mean())
    assert math.isclose((high - low) / 2, 1.959964 * means.std(ddof=1) / math.sqrt(50))


def test_wilson():
    """Against the numbers of the usual textbook example, 8 of 10: .490 to .943."""
    low, high = scores.wilson(0.8, 10)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)
    assert scores.interval(np.zeros((20, 4), bool))[1] > 0  # no luck in 20 problems is no proof of never


def test_coverage_of_the_interval():
    """About 95% of intervals hold the truth."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        skill = rng.beta(2, 2, size=(60, 1))
        low, high = scores.interval(rng.random((60, 4)) < skill)
        hits += low <= 0.5 <= high
    assert 0.92 < hits / 400 < 0.98


def test_paired_difference_is_sharper_than_two_intervals():
    rng = np.random.default_rng(0)
    before = rng.random(100)
    after = before + 0.1 + 0.01 * rng.normal(size=100)
    centre, low, high = scores.paired(before, after)
    assert low < 0.1 < high
    assert high - low < 0.01
    assert math.isclose(centre, (after - before).mean())


def test_score_names():
    numbers = scores.Score("aime24", np.array([[1, 0, 1, 1], [0, 0, 0, 0]], bool)).numbers()
    assert numbers["val/aime24/mean@4"] == 0.375
    assert numbers["val/aime24/pass@4"] == 0.5
    assert numbers["val/aime24/n"] == 2
    assert set(numbers) == {f"val/aime24/{k}" for k in ("mean@4", "pass@2", "pass@4", "ci95_low", "ci95_high", "n")}


@pytest.mark.parametrize(
    ("ballots", "correct", "share"),
    [
        ([[0, 1, 2], [3]], [1, 1, 1, 0], 1.0),
        ([[0, 1, 2], [3]], [0, 0, 0, 1], 0.0),
        ([[0, 1], [2, 3]], [1, 1, 0, 0], 0.5),  # a tie of a right and a wrong answer
        ([[0], [1], [2]], [0, 1, 0], 1 / 3),
        ([[0, 1]], [1, 0], 1.0),  # one answer on which the verdicts differ
        ([[1]], [1, 0, 1, 1], 0.0),  # one stated answer outvotes completions that state none
        ([], [0, 0], 0.0),
    ],
)
def test_majority(ballots, correct, share):
    assert math.isclose(scores.majority(ballots, correct, len(correct)), share)


def test_one_sample_has_no_majority_and_a_wrong_ballot_is_refused():
    assert not any("maj@" in n for n in scores.Score("amc", np.ones((3, 1), bool), np.ones(3)).numbers())
    with pytest.raises(ValueError, match="none of the 2"):
        scores.majority([[0, 2]], [True, True], 2)


def test_majority_has_an_interval_over_problems():
    correct = np.random.default_rng(0).random((40, 4)) < 0.5
    votes = np.where(correct.sum(1) == 2, 0.5, correct.sum(1) > 2).astype(float)
    numbers = scores.Score("amc", correct, votes, tokens=np.full(40, 7), guided=np.repeat([1.0, 0.0], 20)).numbers()
    assert numbers["val/amc/maj@4"] == votes.mean()
    assert (numbers["val/amc/maj@4_low"], numbers["val/amc/maj@4_high"]) == scores.wilson(votes.mean(), 40)
    assert numbers["val/amc/tokens"] == 7
    assert numbers["val/amc/guided"] == 0.5
