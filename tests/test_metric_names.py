"""The names that users search for: each is written, at every step, and means what it says."""

import math

import numpy as np
import pytest

from lanpo_jax import metrics
from lanpo_jax.types import Completion, Generation, Grades, Group, Problem


def group(rewards, correct=None, lengths=None, truncated=None):
    count = len(rewards)
    lengths, truncated = lengths or [3] * count, truncated or [False] * count
    completions = tuple(
        Completion(np.zeros(n, np.int32), np.zeros(n, np.float32), "", t) for n, t in zip(lengths, truncated)
    )
    values = np.asarray(rewards, np.float32)
    correct = np.asarray(values > 0 if correct is None else correct, bool)
    grades = Grades(values, correct, ("",) * count, {"verify": values})
    return Group(Problem("p", "p", "1"), "plain", Generation(np.zeros(2, np.int32), "", completions), grades)


def test_rewards_and_lengths_of_a_step():
    found = [
        group([1, 1], lengths=[2, 4], truncated=[False, True]),
        group([0, 0], lengths=[0, 1]),
        group([1, 0], lengths=[5, 6]),
    ]
    numbers = metrics.groups(found, np.array([[0, 0], [0, 0], [0.5, -0.5]]))
    expected = {
        "reward/mean": 0.5,
        "reward/std": 0.5,
        "reward/correct": 0.5,
        "reward/unknown": 0.0,
        "rewards/verify/mean": 0.5,
        "frac_reward_zero_std": 2 / 3,
        "frac_reward_zero_std/all_right": 1 / 3,
        "frac_reward_zero_std/all_wrong": 1 / 3,
        "advantages/mean": 0.0,
        "advantages/max": 0.5,
        "advantages/min": -0.5,
        "response_length/mean": 3.0,
        "response_length/max": 6.0,
        "response_length/min": 0.0,
        "response_length/terminated_mean": 14 / 5,
        "truncated_ratio": 1 / 6,
        "aborted_ratio": 1 / 6,
    }
    assert numbers == pytest.approx(expected)


def test_an_unknown_reward_is_counted_and_hides_no_other():  # nan-05 of the reported faults
    numbers = metrics.groups([group([math.nan, 1, 0, 1]), group([math.nan, 1, 1, 1])], np.zeros((2, 4)))
    assert numbers["reward/unknown"] == 0.25
    assert numbers["reward/mean"] == numbers["rewards/verify/mean"] == pytest.approx(5 / 6)
    assert numbers["frac_reward_zero_std"] == 0.5
    assert all(math.isfinite(v) for v in numbers.values())


def test_a_step_of_unknown_rewards_keeps_its_keys():
    numbers = metrics.groups([group([math.nan, math.nan])], np.zeros((1, 2)))
    assert math.isnan(numbers["reward/mean"]) and numbers["reward/unknown"] == 1.0
    assert numbers["frac_reward_zero_std"] == 1.0
    assert numbers.keys() == metrics.groups([group([0, 1])], np.zeros((1, 2))).keys()


def test_utilisation():
    found = metrics.utilisation("NVIDIA H100 80GB HBM3", 2, 1_000_000_000, 10_000, 4.0)
    assert found == pytest.approx(8e13 / (4 * 2 * 989e12))
    assert metrics.utilisation("TPU v5 lite", 1, 1, 1, 1.0) == pytest.approx(8 / 197e12)
    assert metrics.utilisation("cpu", 1, 1, 1, 1.0) is None


def test_peak_memory_is_that_of_this_process_where_devices_do_not_tell():
    before = metrics.peak_memory()
    kept = np.ones(50_000_000)  # .4 GB
    assert metrics.peak_memory() >= max(before, kept.nbytes / 1e9)
    assert metrics.peak_memory() < 100


@pytest.mark.parametrize(
    ("steps", "start", "end", "traced"),
    [(0, 0, 5, []), (1, 0, 5, [1]), (2, 3, 9, [4, 5]), (3, 0, 1, [0]), (9, 0, 3, [1, 2])],
)
def test_traced_steps(steps, start, end, traced, monkeypatch, tmp_path):
    on, seen = [False], []
    monkeypatch.setattr(metrics.jax.profiler, "start_trace", lambda folder: on.__setitem__(0, True))
    monkeypatch.setattr(metrics.jax.profiler, "stop_trace", lambda: on.__setitem__(0, False))
    trace = metrics.Trace(tmp_path, steps, start, end)
    for step in range(start, end):
        trace.before(step)
        seen += [step] * on[0]
    trace.close()
    assert seen == traced and not on[0]
