"""The loop with a retriever that asks the policy: principles are judged, shown and counted."""

import json

import numpy as np

from lanpo_jax import sharding, train
from lanpo_jax.rewards import reward
from tests.test_train import rows, small


def ended(problems, completions, tokens) -> reward.Scored:
    """Right is what the model ended by itself: an untrained one earns that too."""
    return reward.Scored(tokens % 2, correct=np.array([bool(text.strip()) for text in completions]))


def config(retriever: str):
    c = small()
    c.model.hf = json.dumps(json.loads(c.model.hf) | {"vocab_size": 320})
    c.model.tokenizer = "train(vocab=320, kind='char')"  # bytes for what its texts lack: y is one token
    c.reward.functions = ("tests.test_judge.ended",)
    c.rollout.episode = "lanpo(modes={'plain': 0.5, 'inter': 0.5}, min_pool=1, attempt_tokens=48, principle_tokens=40)"
    c.rollout.retriever = retriever
    c.rollout.prompts = 8
    c.warmup.steps, c.warmup.rows = 60, 32
    c.eval.modes, c.eval.every = ("zero_shot",), 0
    c.steps = 4
    return c


def test_principles_are_judged_by_the_policy_in_training(tmp_path, monkeypatch, mesh):
    monkeypatch.setattr(sharding, "make_mesh", lambda **sizes: mesh)
    train.run(config("llm(gamma=0.0)"), tmp_path)
    found = [row for row in rows(tmp_path) if "lanpo/judged" in row]
    assert sum(row["lanpo/judged"] for row in found) > 0 and any("time/judge" in row for row in found)
    assert all(0 < row["lanpo/judge_yes"] < 1 for row in found if row["lanpo/judged"])
    assert any(row["lanpo/share_inter"] > 0 for row in found)
