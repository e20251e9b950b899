"""Tokens picked by a rank or a mean over the whole mini-batch: host NumPy, from the old policy's numbers.

They are chosen once, before the mini-batch is cut into micro-batches, and travel as `Batch.selected`, so that the cut
changes nothing. Old log-probabilities and entropies equal the current ones at the first update after a rollout.
Every function takes `Pool` and options of the slot function it serves, and returns bool [B, T].
"""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Pool:
    """The B completions of one mini-batch; masked entries may hold anything."""

    mask: np.ndarray  # [B, T]
    advantages: np.ndarray  # [B] or [B, T]
    logprobs: np.ndarray  # [B, T] old
    entropy: np.ndarray | None = None  # [B, T] old
    seed: int = 0

    @property
    def valid(self) -> np.ndarray:
        return np.asarray(self.mask) != 0


def top_entropy(pool: Pool, *, share: float) -> np.ndarray:
    """Tokens whose entropy is at least the (1 - share) quantile of the mini-batch's entropies."""
    valid = pool.valid
    if not valid.any():
        return valid
    threshold = np.quantile(np.asarray(pool.entropy, np.float64)[valid], 1 - share)
    return valid & (np.where(valid, pool.entropy, -np.inf) >= threshold)


def covariance_band(pool: Pool, *, share: float, low: float, high: float) -> np.ndarray:
    """A random max(1, share·tokens) of the tokens whose covariance lies strictly between `low` and `high`."""
    covariance = _covariance(pool)
    candidates = np.flatnonzero((covariance > low) & (covariance < high))
    count = min(_count(pool, share), candidates.size)
    chosen = np.random.default_rng(pool.seed).choice(candidates, count, replace=False)
    return _marked(chosen, covariance.shape)


def covariance_top(pool: Pool, *, share: float) -> np.ndarray:
    """The max(1, share·tokens) tokens of highest covariance."""
    covariance = _covariance(pool)
    count = min(_count(pool, share), int(pool.valid.sum()))
    order = np.argsort(-covariance, axis=None, kind="stable")
    return _marked(order[:count], covariance.shape)


def _covariance(pool: Pool) -> np.ndarray:
    """(A - mean A)(log pi - mean log pi) with means over the valid tokens; -inf where masked."""
    valid = pool.valid
    advantages = np.asarray(pool.advantages, np.float64)
    advantages = advantages if advantages.ndim == 2 else np.broadcast_to(advantages[:, None], valid.shape)
    found = np.full(valid.shape, -np.inf)
    a, l = advantages[valid], np.asarray(pool.logprobs, np.float64)[valid]
    if a.size:
        found[valid] = (a - a.mean()) * (l - l.mean())
    return found


def _count(pool: Pool, share: float) -> int:
    return max(1, int(share * pool.valid.sum()))


def _marked(indices: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    marked = np.zeros(shape, bool)
    marked.flat[indices] = True
    return marked
