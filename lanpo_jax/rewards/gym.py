"""The reward of problems from reasoning-gym (`gym(name=...)` as a source): its own scorer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lanpo_jax.rewards import extract as extraction
from lanpo_jax.rewards.reward import Scored
from lanpo_jax.types import Problem


def score(
    problems: Sequence[Problem], completions: Sequence[str], tokens: np.ndarray, *, extract: str = "strict"
) -> Scored:
    """reasoning-gym's score, 0 to 1, of each completion's stated answer; correct is a score of 1.

    A completion without a stated answer scores 0. Raises ValueError for a problem of another source, or
    if the package is missing.
    """
    try:
        import reasoning_gym  # optional
    except ImportError as error:
        raise ValueError(
            "lanpo_jax.rewards.gym.score needs the package reasoning-gym; pip install 'lanpo-jax[gym]'."
        ) from error
    values, reasons = [], []
    for problem, text in zip(problems, completions, strict=True):
        if "gym" not in problem.extra:
            raise ValueError(f"Problem {problem.id!r} is not from reasoning-gym; its reward is another function.")
        answer = extraction.extract(text, extract)
        scorer = reasoning_gym.get_score_answer_fn(problem.extra["gym"])
        values.append(0.0 if answer is None else float(scorer(answer, problem.extra["entry"])))
        reasons.append("no answer is stated" if answer is None else f"score {values[-1]:g}")
    found = np.array(values, np.float64)
    missing = sum(reason == "no answer is stated" for reason in reasons)
    return Scored(found, found >= 1.0, reasons, {"unparseable_pred": missing})
