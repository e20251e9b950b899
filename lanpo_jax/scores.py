"""Statistics of verdicts on held-out problems: mean@k, pass@k, maj@k, and the uncertainty of each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

Z95 = 1.959964  # two-sided 95% of the normal distribution


@dataclasses.dataclass(frozen=True)
class Score:
    """Verdicts on one problem set, answered in one way; `name` is the set's, or set/mode.

    correct bool [P, k]: of k samples on each of P problems. majority float [P]: what a vote among a problem's samples
    earns, empty where nobody voted. tokens int [P]: generated for a problem in all, empty if not counted. guided
    float [P]: share of a problem's samples that saw guidance, empty for ways of answering that know none.
    """

    name: str
    correct: np.ndarray
    majority: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    tokens: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    guided: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))

    @property
    def means(self) -> np.ndarray:
        """Share of right samples per problem."""
        return self.correct.mean(axis=1)

    @property
    def samples(self) -> int:
        return self.correct.shape[1]

    def estimates(self) -> dict[str, tuple[float, float, float]]:
        """`mean@k`, `pass@2, 4 .. k` and `maj@k`, each with its 95% interval (value, low, high)."""
        k = self.samples
        per_problem = {f"pass@{i}": self._passing(i) for i in _powers_of_two(k)}
        if len(self.majority) and k > 1:
            per_problem[f"maj@{k}"] = self.majority
        found = {f"mean@{k}": (float(self.means.mean()), *interval(self.correct))}
        return found | {n: (float(v.mean()), *interval(v[:, None])) for n, v in per_problem.items()}

    def numbers(self) -> dict[str, float]:
        """The estimates as metrics `val/<name>/...`; intervals of mean@k (`ci95_low`) and maj@k (`maj@k_low`)."""
        found: dict[str, float] = {}
        for name, (value, low, high) in self.estimates().items():
            found[name] = value
            if name.startswith("mean@"):
                found |= {"ci95_low": low, "ci95_high": high}
            if name.startswith("maj@"):
                found |= {f"{name}_low": low, f"{name}_high": high}
        found["n"] = float(len(self.correct))
        for name, values in {"tokens": self.tokens, "guided": self.guided}.items():
            if len(values):
                found[name] = float(np.mean(values))
        return {f"val/{self.name}/{name}": value for name, value in found.items()}

    def line(self) -> str:
        """One line for people: mean@k with its interval, pass@k, maj@k, how many problems."""
        k, found = self.samples, self.estimates()
        value, low, high = found[f"mean@{k}"]
        others = [f"{n} {found[n][0]:.3f}" for n in (f"pass@{k}", f"maj@{k}") if n in found]
        guided = [f"guided {np.mean(self.guided):.2f}"] if len(self.guided) else []
        return ", ".join(
            [f"mean@{k} {value:.3f} [{low:.3f}, {high:.3f}]", *others, *guided, f"{len(self.correct)} problems"]
        )

    def _passing(self, k: int) -> np.ndarray:
        return np.array([pass_at(self.samples, int(right), k) for right in self.correct.sum(1)])


def majority(ballots: Sequence[Sequence[int]], correct: Sequence[bool], counted: int) -> float:
    """What the majority's answer earns: 1, 0, or at a tie the share of the tied answers that are right.

    `ballots` groups the numbers of samples that gave the same answer; samples without an answer are in none. An
    answer is right if most samples that gave it were judged so. `counted` is the number of samples; no votes earn 0.
    """
    if any(not 0 <= i < counted for ballot in ballots for i in ballot):
        raise ValueError(f"Votes {list(ballots)} name a sample that is none of the {counted}.")
    most = max(map(len, ballots), default=0)
    tied = [ballot for ballot in ballots if len(ballot) == most]
    return float(np.mean([np.mean([correct[i] for i in ballot]) >= 0.5 for ballot in tied])) if tied else 0.0


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
    difference = np.asarray(after) - np.asarray(before)
    centre = float(difference.mean())
    half = Z95 * float(difference.std(ddof=1)) / math.sqrt(len(difference)) if len(difference) > 1 else math.inf
    return centre, centre - half, centre + half


def _powers_of_two(k: int) -> list[int]:
    """2, 4, 8 .. below k, and k itself; nothing for one sample."""
    return sorted({2**i for i in range(1, 20) if 2**i < k} | ({k} if k > 1 else set()))
