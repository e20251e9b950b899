"""Texts to imitate before RL: a supervised warm-up uses the same learner, each demonstration with advantage 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from lanpo_jax import families, spec
from lanpo_jax.experience import prompts
from lanpo_jax.types import Problem


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """A worked solution, and the lesson that a model from scratch is taught to draw from it; "" where there is none."""

    text: str
    lesson: str = ""


Writer = Callable[[Sequence[Problem], int], list[Demonstration]]


def writer(source: str) -> Writer:
    """What a config string names: `solutions`, `traces(slips=0.45)`, `guesses`."""
    return spec.resolve(source, {"solutions": solutions, "traces": traces, "guesses": guesses})


def solutions(problems: Sequence[Problem], draw: int = 0) -> list[Demonstration]:
    """The solutions that came with the problems. Raises ValueError where a problem has none."""
    for problem in problems:
        if not problem.extra.get("solution"):
            raise ValueError(f"Problem {problem.id} has no solution to imitate; set warmup.steps=0 or add solutions.")
    return [Demonstration(p.extra["solution"]) for p in problems]


def traces(problems: Sequence[Problem], draw: int = 0, *, slips: float = 0.0, seed: int = 0) -> list[Demonstration]:
    """Worked additions with the carries spelled out, a share of them with a slip (families.trace)."""
    lesson = "add the ones, carry, then add the tens"
    return [Demonstration(families.trace(p, slips=slips, seed=1000 * draw + seed), lesson) for p in problems]


def guesses(problems: Sequence[Problem], draw: int = 0, *, seed: int = 0) -> list[Demonstration]:
    """Solutions of `rules` problems with secrets drawn anew each time: they teach the form and not the rules."""
    shifts = np.random.default_rng((seed, draw)).integers(10, size=len(problems))
    return [
        Demonstration(families.rule_trace(p, int(s)), f"the {p.text.split()[0]} adds {s}")
        for p, s in zip(problems, shifts, strict=True)
    ]


def under_guidance(
    number: int, problem: Problem, own: Demonstration, other: Demonstration, stray: str, templates: prompts.Templates
) -> tuple[prompts.Messages, str]:
    """Prompt and target of the `number`th demonstration: every second one plain, the rest each guided kind in turn.

    Teaches a model from scratch the forms of guided prompts: an earlier attempt (`other`, which may be wrong), the
    lesson of the very solution that follows, now and then the lesson of another problem (`stray`), and the request to
    write one.
    """
    kind = number % 6 if own.lesson else number % 2
    if kind == 1:
        return prompts.reflect(problem.text, other.text, templates), own.text
    if kind == 3:
        return prompts.inform(problem.text, [stray if number % 24 == 3 else own.lesson], templates), own.text
    if kind == 5:
        return prompts.abstract(problem.text, own.text, templates), own.lesson
    return prompts.plain(problem.text, templates), own.text
