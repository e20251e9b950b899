"""How good a policy is on held-out problems, with the uncertainty of every number."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from lanpo_jax.types import Group

Z95 = 1.959964  # two-sided 95% of the normal distribution


@dataclasses.dataclass(frozen=True)
class Score:
    """Verdicts on one problem set: `correct` bool [problems, samples]."""

    name: str
    correct: np.ndarray

    @property
    def means(self) -> np.ndarray:
        """Share of right samples per problem."""
        return self.correct.mean(axis=1)

    def numbers(self) -> dict[str, float]:
        """`val/<set>/mean@k`, `pass@1, 2, 4 .. k`, the 95% interval of mean@k, and the number of problems."""
        problems, samples = self.correct.shape
        low, high = interval(self.correct)
        found = {f"val/{self.name}/mean@{samples}": float(self.means.mean())}
        for k in sorted({2**i for i in range(1, 20) if 2**i < samples} | ({samples} if samples > 1 else set())):
            found[f"val/{self.name}/pass@{k}"] = float(
                np.mean([pass_at(samples, int(c), k) for c in self.correct.sum(1)])
            )
        return found | {
            f"val/{self.name}/ci95_low": low,
            f"val/{self.name}/ci95_high": high,
            f"val/{self.name}/n": float(problems),
        }


def score(name: str, groups: Sequence[Group]) -> Score:
    """One group per problem, all of one size, to a Score."""
    return Score(name, np.stack([g.grades.correct for g in groups]).astype(bool))


def pass_at(samples: int, right: int, k: int) -> float:
    """Probability that k of the samples, drawn without replacement, hold a right one (arXiv 2107.03374).

    1 - C(n-c, k)/C(n, k), as a product that does not overflow. Raises ValueError for more than was sampled.
    """
    if k > samples:
        raise ValueError(f"pass@{k} of {samples} samples is not defined; raise eval.samples.")
    if samples - right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(samples - right + 1, samples + 1))


def interval(correct: np.ndarray) -> tuple[float, float]:
    """95% interval of the mean: standard error over problems; Wilson's for one sample each, or when none differ."""
    means = correct.mean(axis=1)
    problems = len(means)
    centre, error = float(means.mean()), float(means.std(ddof=1) / math.sqrt(problems)) if problems > 1 else 0.0
    if correct.shape[1] == 1 or error == 0.0:
        return wilson(centre, problems)
    return max(0.0, centre - Z95 * error), min(1.0, centre + Z95 * error)


def wilson(share: float, trials: int) -> tuple[float, float]:
    """Wilson's 95% interval of a proportion (JASA 1927)."""
    z2 = Z95**2 / trials
    centre = (share + z2 / 2) / (1 + z2)
    half = Z95 * math.sqrt(share * (1 - share) / trials + z2 / trials / 4) / (1 + z2)
    return max(0.0, centre - half), min(1.0, centre + half)


def paired(before: np.ndarray, after: np.ndarray) -> tuple[float, float, float]:
    """Mean difference of per-problem shares on one set, with its 95% interval; problems are the sampling units."""
    difference = after - before
    centre = float(difference.mean())
    half = Z95 * float(difference.std(ddof=1)) / math.sqrt(len(difference)) if len(difference) > 1 else math.inf
    return centre, centre - half, centre + half
