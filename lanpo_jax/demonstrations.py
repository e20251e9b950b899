"""Texts to imitate before RL: a supervised warm-up uses the same learner, each demonstration with advantage 1."""

from __future__ import annotations

from collections.abc import Sequence

from lanpo_jax import families, spec
from lanpo_jax.types import Problem


def write(source: str, problems: Sequence[Problem]) -> list[str]:
    """One text per problem by the function that a config string names, e.g. 'traces(slips=0.45)'."""
    return spec.resolve(source, {"solutions": solutions, "traces": traces})(problems)


def solutions(problems: Sequence[Problem]) -> list[str]:
    """The solutions that came with the problems. Raises ValueError where a problem has none."""
    for problem in problems:
        if not problem.extra.get("solution"):
            raise ValueError(f"Problem {problem.id} has no solution to imitate; set warmup.steps=0 or add solutions.")
    return [p.extra["solution"] for p in problems]


def traces(problems: Sequence[Problem], *, slips: float = 0.0, seed: int = 0) -> list[str]:
    """Worked additions with the carries spelled out, a share of them with a slip (families.trace)."""
    return [families.trace(p, slips=slips, seed=seed) for p in problems]
