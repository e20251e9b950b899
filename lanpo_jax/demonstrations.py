"""Texts to imitate before RL: a supervised warm-up uses the same learner, each demonstration with advantage 1."""

from __future__ import annotations

from collections.abc import Sequence

from lanpo_jax import families, spec
from lanpo_jax.experience import prompts
from lanpo_jax.types import Problem

LESSON = "add the ones, carry, then add the tens"  # what a model from scratch is taught to call a principle


def write(source: str, problems: Sequence[Problem], draw: int = 0) -> list[str]:
    """One text per problem by the function that a config string names; another `draw`, other slips."""
    return spec.resolve(source, {"solutions": solutions, "traces": traces})(problems, draw)


def solutions(problems: Sequence[Problem], draw: int = 0) -> list[str]:
    """The solutions that came with the problems. Raises ValueError where a problem has none."""
    for problem in problems:
        if not problem.extra.get("solution"):
            raise ValueError(f"Problem {problem.id} has no solution to imitate; set warmup.steps=0 or add solutions.")
    return [p.extra["solution"] for p in problems]


def traces(problems: Sequence[Problem], draw: int = 0, *, slips: float = 0.0, seed: int = 0) -> list[str]:
    """Worked additions with the carries spelled out, a share of them with a slip (families.trace)."""
    return [families.trace(p, slips=slips, seed=1000 * draw + seed) for p in problems]


def under_guidance(
    number: int, problem: Problem, text: str, other: str, templates: prompts.Templates
) -> tuple[prompts.Messages, str]:
    """Prompt and target of the `number`th demonstration: every second one plain, the rest each guided kind in turn.

    Teaches a model from scratch the forms of guided prompts: an earlier attempt (`other`, which may hold a slip), a
    principle, and the request to write one.
    """
    kind = number % 6
    if kind == 1:
        return prompts.reflect(problem.text, other, templates), text
    if kind == 3:
        return prompts.inform(problem.text, [LESSON], templates), text
    if kind == 5:
        return prompts.abstract(problem.text, text, templates), LESSON
    return prompts.plain(problem.text, templates), text
