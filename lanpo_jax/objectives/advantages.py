"""Advantages of completions from their rewards: host NumPy in float64, over the whole step, before any batching.

Every function takes `groups.Groups` and returns float64 [P, G] ([P, G, T] for `gae`). A completion whose reward is
unknown (`scored` false) enters no statistic and gets 0; a group whose known rewards are equal gets exactly 0, tested
by max == min, because in floating point (R - mean)/(std + eps) of equal rewards is anything but 0.
"""

from __future__ import annotations

import numpy as np

from lanpo_jax.objectives import groups as groups_lib
from lanpo_jax.objectives import tokens as tokens_lib


def none(groups: groups_lib.Groups) -> np.ndarray:
    """A = R: plain REINFORCE without a baseline."""
    return np.where(groups.known, groups.rewards, 0.0)


@tokens_lib.needs("group")
def group_norm(groups: groups_lib.Groups, *, eps: float = 1e-6, ddof: int = 1) -> np.ndarray:
    """A = (R - mean)/(std + eps) within each group (GRPO, arXiv 2402.03300).

    ddof = 1 (sample standard deviation) follows torch.std and with it verl, TRL and OpenRLHF; ddof = 0 is NumPy's.
    eps = 1e-6 is verl's; TRL adds 1e-4.
    """
    centred, known = _centred(groups)
    count = known.sum(-1, keepdims=True)
    deviation = np.sqrt((centred**2).sum(-1, keepdims=True) / np.maximum(count - ddof, 1))
    return centred / (deviation + eps)


@tokens_lib.needs("group")
def group_center(groups: groups_lib.Groups) -> np.ndarray:
    """A = R - mean of the group (Dr. GRPO, arXiv 2503.20783)."""
    return _centred(groups)[0]


@tokens_lib.needs("group")
def rloo(groups: groups_lib.Groups) -> np.ndarray:
    """A = R - mean of the *other* completions = G/(G-1)·(R - mean) (RLOO, arXiv 2402.14740)."""
    centred, known = _centred(groups)
    count = known.sum(-1, keepdims=True)
    return centred * count / np.maximum(count - 1, 1)


@tokens_lib.needs("group", "lengths")
def batch_norm(groups: groups_lib.Groups, *, eps: float = 1e-8, ddof: int = 1) -> np.ndarray:
    """A = (R - group mean)/(std of R - group mean over the step + eps) (REINFORCE++-baseline, arXiv 2501.03262).

    As in verl the deviation is taken over the step's tokens (each completion counts by its length), ddof = 1. Unlike
    verl the mean over tokens is not subtracted once more: that would push groups whose rewards are all equal.
    """
    centred, known = _centred(groups)
    weights = np.where(known, groups.lengths, 0.0)
    mean = (weights * centred).sum() / max(weights.sum(), 1.0)
    variance = (weights * (centred - mean) ** 2).sum() / max(weights.sum() - ddof, 1.0)
    return centred / (np.sqrt(variance) + eps)


@tokens_lib.needs("group", "lengths")
def opo(groups: groups_lib.Groups) -> np.ndarray:
    """A = R - sum(length·R)/sum(length): the variance-optimal baseline (OPO, arXiv 2505.23585)."""
    weights = np.asarray(groups.lengths, np.float64)
    return _centred(groups, weights)[0]


def _centred(groups: groups_lib.Groups, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """R minus the (weighted) mean of the group's known rewards, exactly 0 where unknown or all equal; and `known`."""
    known = groups.known
    weights = known.astype(np.float64) if weights is None else np.where(known, weights, 0.0)
    rewards = np.where(known, groups.rewards, 0.0).astype(np.float64)
    total = weights.sum(-1, keepdims=True)
    mean = (rewards * weights).sum(-1, keepdims=True) / np.where(total > 0, total, 1.0)
    keep = known & ~groups_lib.equal(groups)[:, None]
    return np.where(keep, rewards - mean, 0.0), known
