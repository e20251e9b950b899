"""The supervised warm-up: demonstrations as completions of advantage 1, in the same rows, by the same learner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lanpo_jax import batching, data, demonstrations
from lanpo_jax.experience import prompts
from lanpo_jax.learner import Learner
from lanpo_jax.types import Completion, Generation, Grades, Group, Problem

# Imitation is REINFORCE with advantage 1 on given completions: the mean log-likelihood of their tokens.
IMITATION = {
    "filter": "keep_all",
    "advantage": "none",
    "ratio": "none",
    "surrogate": "likelihood",
    "weights": "none",
    "aggregate": "token_mean",
    "kl": "none",
    "reward_kl": "none",
    "value": "none",
    "whole": "none",
}


def imitate(
    teacher: Learner,
    params: Any,
    problems: Sequence[Problem],
    tokenizer: Any,
    templates: prompts.Templates,
    *,
    demonstrated: str,
    guided: bool,
    steps: int,
    rows: int,
    limit: int,
    seed: int,
    say: Callable[[str], None],
) -> Any:
    """Parameters after `steps` updates on `rows` demonstrations each; `demonstrated` names who writes them.

    With `guided` every other demonstration stands under a guided prompt. Raises ValueError for one over `limit` tokens.
    """
    state, write = teacher.start(params), demonstrations.writer(demonstrated)
    for step in range(steps):
        shown = data.batch(problems, step, rows, seed)
        own, others = write(shown, 2 * step), write(shown, 2 * step + 1)
        groups = []
        for number, (problem, demonstration, other) in enumerate(zip(shown, own, others)):
            messages, text = prompts.plain(problem.text, templates), demonstration.text
            if guided:
                stray = own[number - 1].lesson
                messages, text = demonstrations.under_guidance(number, problem, demonstration, other, stray, templates)
            groups.append(_demonstration(problem, messages, text, tokenizer, limit))
        tables = batching.tables(groups, teacher.shape.completion_tokens)
        values = {"advantages": np.ones(len(groups)), "sampler_logprobs": tables["sampler_logprobs"]}
        state, numbers = teacher.update(state, teacher.batch(groups, values), 1.0)
        if (step + 1) % max(1, steps // 6) == 0:
            say(f"warm-up {step + 1}/{steps}  loss {float(numbers['actor/loss']):.3f}")
    return state.params


def _demonstration(problem: Problem, messages: prompts.Messages, text: str, tokenizer, limit: int) -> Group:
    """A prompt with one given completion, as if it had been sampled."""
    ids = np.array([*tokenizer.encode(text), tokenizer.eos_ids[0]], np.int32)
    if len(ids) > limit:
        raise ValueError(
            f"The demonstration of {problem.id} has {len(ids)} tokens; raise rollout.max_new_tokens={limit}."
        )
    completion = Completion(ids, np.zeros(len(ids), np.float32), text, False)
    prompt = np.asarray(tokenizer.render(messages), np.int32)
    grades = Grades(np.ones(1, np.float32), np.ones(1, bool), ("demonstration",), {})
    return Group(problem, "demonstration", Generation(prompt, "", (completion,)), grades)
