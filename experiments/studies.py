"""What is compared: tasks, arms (changes to a task's configuration) and studies (arms side by side). Data only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

# Two arms stand in every study, else a gain of memory is mistaken for one of training: `untrained`, the first model
# with the pool that it writes itself, and `grpo`, which trains without guidance and may use a pool at test time.
ALWAYS = ("untrained", "grpo")


@dataclasses.dataclass(frozen=True)
class Task:
    """A configuration that all arms share; runs end when `max_tokens` have been generated."""

    config: str
    episode: Mapping[str, Any]  # options of lanpo(...) that hold for every arm
    overrides: Mapping[str, Any]  # configuration key -> value
    seeds: int
    modes: tuple[str, ...]  # ways of answering at evaluations
    samples: int  # per problem, in the final evaluation


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way of training: options of its lanpo(...) episode, and changed configuration keys."""

    about: str
    episode: Mapping[str, Any]
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)


TASKS = {
    # A model of 0.1M parameters that half knows how to follow a lesson; see configs/rules.py.
    "rules": Task(
        "configs/rules.py",
        {"min_pool": 4, "attempt_tokens": 64, "principle_tokens": 32},
        {
            "data.train": ("rules(operators=8, count=512, seed=1, part='train')",),
            "data.eval.rules": "rules(operators=8, count=120, seed=2, part='eval')",
            "rollout.prompts": 16,
            "rollout.rows": 128,
            "optimizer.rate": 1e-4,
            "objective.kl": "k3(beta=0.02)",
            "eval.every": 30,
            "steps": 1000,
            "max_tokens": 750_000,
        },
        seeds=3,
        modes=("zero_shot", "pool"),
        samples=8,
    ),
    # SmolLM2-135M-Instruct on products in stories: English text; see configs/default.py.
    "stories": Task(
        "configs/default.py",
        {"min_pool": 8, "attempt_tokens": 48, "principle_tokens": 48, "principle_temperature": 0.6},
        # An evaluation takes as long as a few steps; the study's own at the end asks in all three ways.
        {"eval.every": 0, "eval.modes": ("zero_shot",), "steps": 100, "max_tokens": 12_000},
        seeds=3,
        modes=("zero_shot", "self_correct", "pool"),
        samples=4,
    ),
}

BOTH = {"plain": 0.5, "intra": 0.25, "inter": 0.25}
HALF = {"plain": 0.5, "inter": 0.5}

ARMS = {
    "untrained": Arm("learning rate 0: the pool alone changes", {"modes": BOTH}, {"optimizer.rate": 0.0}),
    "grpo": Arm("no guidance in training; its pool is used at test time only", {"modes": {"plain": 1.0}}),
    "intra": Arm("half of the groups review an earlier attempt", {"modes": {"plain": 0.5, "intra": 0.5}}),
    "inter": Arm("half of the groups see a principle", {"modes": HALF}),
    "both": Arm("a quarter each: review, principle", {"modes": BOTH}),
    "inter25": Arm("a quarter of the groups see a principle", {"modes": {"plain": 0.75, "inter": 0.25}}),
    "inter75": Arm("three quarters of the groups see a principle", {"modes": {"plain": 0.25, "inter": 0.75}}),
    "distil": Arm(
        "each rollout draws its mode; guided ones are trained under the bare problem",
        {"modes": HALF, "mix_level": "rollout", "strip_guidance": True, "strip_ratio": False},
    ),
    "leak": Arm(
        "half of the groups review an attempt with the gold answer shown", {"modes": {"plain": 0.5, "leak": 0.5}}
    ),
    "raw": Arm("whole solutions of others instead of principles", {"modes": HALF, "lesson": "raw"}),
    "random": Arm("principles of any problem, however unlike", {"modes": HALF}, {"rollout.retriever": "random"}),
    # SmolLM2 says yes to the fitting principle with a probability of about .28: the paper's .9 would show it nothing.
    "llm": Arm(
        "principles that the policy itself judges relevant", {"modes": HALF}, {"rollout.retriever": "llm(gamma=0.2)"}
    ),
}

# study -> the tasks that it is made for, each with its arms besides ALWAYS
STUDIES = {
    "modes": {"rules": ("inter", "both", "distil"), "stories": ("intra", "inter", "both", "distil")},
    "leak": {"stories": ("intra", "leak")},
    "raw": {"rules": ("inter", "raw"), "stories": ("inter", "raw")},
    "relevance": {"rules": ("inter", "random"), "stories": ("inter", "random", "llm")},
    "mixture": {"rules": ("inter25", "inter", "inter75")},
}
