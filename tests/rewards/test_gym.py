"""reasoning-gym's scorer as a reward."""

import sys
import types

import numpy as np
import pytest

from lanpo_jax import data
from lanpo_jax.rewards import gym
from lanpo_jax.types import Problem

PROBLEMS = [Problem(f"g{i}", "?", str(i), extra={"gym": "sums", "entry": {"answer": str(i)}}) for i in range(3)]
TEXTS = ["The answer is 0.", "It is 1", "The answer is 20."]


def test_the_scorer_gets_the_stated_answer_and_the_entry(monkeypatch):
    def scorer(answer, entry):
        return 1.0 if answer == entry["answer"] else 0.25

    fake = types.SimpleNamespace(get_score_answer_fn={"sums": scorer}.__getitem__)
    monkeypatch.setitem(sys.modules, "reasoning_gym", fake)
    scored = gym.score(PROBLEMS, TEXTS, np.ones(3))
    assert scored.values.tolist() == [1, 0, 0.25] and scored.correct.tolist() == [True, False, False]
    assert scored.counters == {"unparseable_pred": 1}
    with pytest.raises(ValueError, match="not from reasoning-gym"):
        gym.score([Problem("a", "?", "1")], ["1"], np.ones(1))


def test_a_missing_package_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match="pip install"):
        gym.score(PROBLEMS, TEXTS, np.ones(3))


def test_the_real_package():
    pytest.importorskip("reasoning_gym")
    problems = data.load("gym(name='basic_arithmetic', count=5)")
    scored = gym.score(problems, [f"The answer is {p.answer}." for p in problems], np.ones(5))
    assert scored.correct.all()
