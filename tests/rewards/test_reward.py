"""Rewards by name: resolving, weighing, and rows that fail."""

import math

import numpy as np
import pytest

from lanpo_jax.rewards import reward
from lanpo_jax.types import Completion, Problem

ME = __name__
PROBLEMS = [Problem(f"p{i}", "?", str(i)) for i in range(4)]


def completion(text: str, length: int = 3) -> Completion:
    return Completion(np.zeros(length, np.int32), np.zeros(length, np.float32), text, False)


COMPLETIONS = [completion(f"The answer is {i % 3}.", 10 * i) for i in range(4)]


def count(problems, completions, tokens, *, scale: float = 1.0):
    return scale * np.asarray(tokens)


def short(problems, completions, tokens):
    return [0.0] * (len(completions) - 1)


def nan_for_two(problems, completions, tokens):
    return [math.nan if p.id == "p2" else 1.0 for p in problems]


def raises_for_two(problems, completions, tokens):
    if any(p.id == "p2" for p in problems):
        raise KeyError("two")
    return np.ones(len(problems))


def fails_on_many(problems, completions, tokens):
    if len(problems) > 1:
        raise RuntimeError("too many")
    return [1.0]


def test_a_weighted_sum_with_parts():
    grade = reward.grader({"lanpo_jax.rewards.math.verify(extract='strict')": 1.0, f"{ME}.count(scale=2)": 0.1})
    grades = grade(PROBLEMS, COMPLETIONS)
    np.testing.assert_allclose(grades.rewards, [1, 1 + 2, 1 + 4, 0 + 6])
    assert grades.rewards.dtype == np.float32 and grades.correct.tolist() == [True, True, True, False]
    assert set(grades.parts) == {"verify", "count"}
    np.testing.assert_allclose(grades.parts["count"], [0, 20, 40, 60])
    assert grades.counters["errors"] == 0 and len(grades.reasons) == 4


def test_without_a_verifier_correct_is_a_full_first_reward():
    grades = reward.grader(f"{ME}.count(scale=0.05)")(PROBLEMS, COMPLETIONS)
    assert grades.correct.tolist() == [False, False, True, True] and grades.reasons[1] == "0.5"


def test_two_rewards_of_one_name_keep_their_specs():
    specs = {f"{ME}.count(scale=1)": 1.0, f"{ME}.count(scale=2)": 1.0}
    assert set(reward.grader(specs)(PROBLEMS, COMPLETIONS).parts) == set(specs)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("short", r"short failed on row 0 \(problem 'p0'\): .*\(0,\) for 1 completions"),
        ("nan_for_two", r"nan_for_two gave nan for row 2 \(problem 'p2'\)"),
        ("raises_for_two", r"raises_for_two failed on row 2 \(problem 'p2'\): KeyError"),
        ("fails_on_many", r"fails_on_many failed on 4 rows: RuntimeError: too many"),
    ],
)
def test_errors_name_function_and_row(function, message):
    with pytest.raises(ValueError, match=message):
        reward.grader(f"{ME}.{function}")(PROBLEMS, COMPLETIONS)


@pytest.mark.parametrize("function", ["nan_for_two", "raises_for_two"])
def test_failed_rows_may_be_counted_and_skipped_or_replaced(function):
    skipped = reward.grader(f"{ME}.{function}", on_error="skip")(PROBLEMS, COMPLETIONS)
    assert np.isnan(skipped.rewards).tolist() == [False, False, True, False] and skipped.counters["errors"] == 1
    replaced = reward.grader(f"{ME}.{function}", on_error=-1.0)(PROBLEMS, COMPLETIONS)
    assert replaced.rewards.tolist() == [1, 1, -1, 1] and replaced.counters["errors"] == 1
    assert replaced.correct.tolist() == [True, True, False, True]


def test_a_skipped_part_skips_the_row():
    """Never a silent 0: a sum with an unknown part is unknown."""
    grades = reward.grader({f"{ME}.count": 1.0, f"{ME}.nan_for_two": 0.0}, on_error="skip")(PROBLEMS, COMPLETIONS)
    assert np.isnan(grades.rewards).tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("verify", "lacks its module"),
        ("lanpo_jax.rewards.maths.verify", "cannot be imported"),
        ("lanpo_jax.rewards.math.verfy", "did you mean 'verify'"),
        ("lanpo_jax.rewards.math.verify(extrct='strict')", "did you mean 'extract'"),
        ("lanpo_jax.rewards.shaping.overlong(limit=3)", "lacks buffer"),
        ({}, "No reward function"),
    ],
)
def test_specs_are_checked_at_start_up(spec, message):
    with pytest.raises(ValueError, match=message):
        reward.grader(spec)


def test_bad_arguments():
    with pytest.raises(ValueError, match="on_error"):
        reward.grader(f"{ME}.count", on_error="ignore")
    with pytest.raises(ValueError, match="4 problems for 3"):
        reward.grader(f"{ME}.count")(PROBLEMS, COMPLETIONS[:3])
