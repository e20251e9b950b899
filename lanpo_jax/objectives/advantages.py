"""Advantages of completions from their rewards: host NumPy in float64, over the whole step, before any batching.

Every function takes `groups.Groups` and returns float64 [P, G] ([P, G, T] for `gae`). A completion whose reward is
unknown (`scored` false) enters no statistic and gets 0; a group whose known rewards are equal gets exactly 0, tested
by max == min, because in floating point (R - mean)/(std + eps) of equal rewards is anything but 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lanpo_jax.objectives import groups as groups_lib
from lanpo_jax.objectives import marks
from lanpo_jax.objectives import values as values_lib


def none(groups: groups_lib.Groups) -> np.ndarray:
    """A = R: plain REINFORCE without a baseline."""
    return np.where(groups.known, groups.rewards, 0.0)


@marks.needs("group")
def group_norm(groups: groups_lib.Groups, *, eps: float = 1e-6, ddof: int = 1) -> np.ndarray:
    """A = (R - mean)/(std + eps) within each group (GRPO, arXiv 2402.03300).

    ddof = 1 (sample standard deviation) follows torch.std and with it verl, TRL and OpenRLHF; ddof = 0 is NumPy's.
    eps = 1e-6 is verl's; TRL adds 1e-4.
    """
    centred, known = _centred(groups)
    count = known.sum(-1, keepdims=True)
    deviation = np.sqrt((centred**2).sum(-1, keepdims=True) / np.maximum(count - ddof, 1))
    return centred / (deviation + eps)


@marks.needs("group")
def group_center(groups: groups_lib.Groups) -> np.ndarray:
    """A = R - mean of the group (Dr. GRPO, arXiv 2503.20783)."""
    return _centred(groups)[0]


@marks.needs("group")
def rloo(groups: groups_lib.Groups) -> np.ndarray:
    """A = R - mean of the *other* completions = G/(G-1)·(R - mean) (RLOO, arXiv 2402.14740)."""
    centred, known = _centred(groups)
    count = known.sum(-1, keepdims=True)
    return centred * count / np.maximum(count - 1, 1)


@marks.needs("group", "lengths")
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


@marks.needs("group", "lengths")
def opo(groups: groups_lib.Groups) -> np.ndarray:
    """A = R - sum(length·R)/sum(length): the variance-optimal baseline (OPO, arXiv 2505.23585)."""
    weights = np.asarray(groups.lengths, np.float64)
    return _centred(groups, weights)[0]


@marks.needs("group", "verdicts", "prompt_confidence")
def arm(groups: groups_lib.Groups, *, alpha: float = 0.3, share: float = 0.2, eps: float = 1e-6) -> np.ndarray:
    """A = group_norm + alpha·(c(prompt) - c(completion)) in groups with right and wrong answers (ProGRPO, 2602.05281).

    c is `groups.confidence`, exp of the mean log-probability of the `share` least likely tokens: sure answers earn
    less, unsure ones more. alpha = 0.3 is ours; the share of 20% is published. The paper also moves groups that are all
    right; here equal rewards give exactly 0, as everywhere.
    """
    advantages = group_norm(groups, eps=eps)
    known, correct = groups.known, np.asarray(groups.correct, bool)
    mixed = (correct & known).any(-1) & (~correct & known).any(-1) & ~groups_lib.equal(groups)
    prompt = groups.prompt_confidence.reshape(len(known), -1)
    gap = prompt - groups_lib.confidence(groups.old_logprobs, groups.mask, share=share)
    return advantages + np.where(mixed[:, None] & known, alpha * gap, 0.0)


def _start_quantiles() -> dict[str, np.ndarray]:
    return {"quantile_low": np.float32(0), "quantile_high": np.float32(0), "quantiles_known": np.float32(0)}


def _track_quantiles(
    state: Mapping[str, np.ndarray], groups: groups_lib.Groups, *, bundle: int, low: float, high: float, rate: float
) -> dict[str, np.ndarray]:
    """q <- q + rate·(a - mean [S < q]) from the scores of the step just used; the first step takes their quantiles."""
    scores = groups_lib.bundle_scores(groups, bundle)

    def moved(name: str, level: float) -> np.float32:
        if not state["quantiles_known"]:
            return np.float32(np.quantile(scores, level))
        return np.float32(state[name] + rate * (level - np.mean(scores < state[name])))

    return state | {
        "quantile_low": moved("quantile_low", low),
        "quantile_high": moved("quantile_high", high),
        "quantiles_known": np.float32(1),
    }


@marks.attach("start", _start_quantiles)
@marks.attach("after_rollout", _track_quantiles)
@marks.needs("group")
def mvar(
    groups: groups_lib.Groups,
    *,
    bundle: int = 5,
    low: float = 0.2,
    high: float = 0.8,
    mix: float = 1.5,
    rate: float = 0.1,
    eps: float = 1e-6,
) -> np.ndarray:
    """Mixed value-at-risk over bundles of prompts (RiskPO, arXiv 2510.00911), after its public code.

    S_j, the sum over a bundle's prompts of their j-th rewards, is scored against the tracked quantiles a, b of its
    distribution: A_S = (mix·(-(a - S)+/low) + ((S - a)+ - (S - b)+)/(high - low))/(mix + 1)/std(S in the bundle), and
    shared among the bundle's j-th completions in proportion to R - mean of their group, equally where that sums to ~0.
    A bundle whose scores are all equal and a group whose rewards are all equal get 0 (the public code divides the
    first by eps alone). Unknown rewards count as their group's mean. Defaults are those of the code's script for hard
    mathematics; in the very first step, where it takes each bundle's own quantiles, we take those of all scores.
    """
    scores = groups_lib.bundle_scores(groups, bundle)  # [P/bundle, G]
    if groups.state.get("quantiles_known", 0):
        a, b = float(groups.state["quantile_low"]), float(groups.state["quantile_high"])
    else:
        a, b = np.quantile(scores, low), np.quantile(scores, high)
    shortfall = -np.maximum(a - scores, 0) / low
    middle = (np.maximum(scores - a, 0) - np.maximum(scores - b, 0)) / (high - low)
    varied = scores.max(-1, keepdims=True) > scores.min(-1, keepdims=True)
    deviation = np.std(scores, axis=-1, ddof=1, keepdims=True)
    risk = np.where(varied, (mix * shortfall + middle) / (mix + 1) / (deviation + eps), 0.0)

    centred, known = _centred(groups)
    parts = centred.reshape(-1, bundle, scores.shape[-1])
    total = parts.sum(1, keepdims=True)
    shares = np.where(np.abs(total) > 1e-6, parts / np.where(np.abs(total) > 1e-6, total, 1.0), 1.0 / bundle)
    advantages = (risk[:, None, :] * shares).reshape(groups.rewards.shape)
    return np.where(known & ~groups_lib.equal(groups)[:, None], advantages, 0.0)


def _gae(groups: groups_lib.Groups, gamma: float, lam: float) -> tuple[np.ndarray, np.ndarray]:
    rewards = values_lib.token_rewards(none(groups), groups.mask, groups.token_rewards)
    return values_lib.estimate(rewards, groups.values, groups.mask, gamma=gamma, lam=lam)


def _gae_returns(groups: groups_lib.Groups, *, gamma: float, lam: float) -> np.ndarray:
    return _gae(groups, gamma, lam)[1]


@marks.attach("returns", _gae_returns)
@marks.needs("values")
def gae(groups: groups_lib.Groups, *, gamma: float = 1.0, lam: float = 0.95, whiten: bool = True) -> np.ndarray:
    """Advantages of tokens [P, G, T] from a value head (PPO, arXiv 1506.02438), whitened over the step as in verl."""
    advantages, _ = _gae(groups, gamma, lam)
    return values_lib.whiten(advantages, groups.mask) if whiten else advantages


def _centred(groups: groups_lib.Groups, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """R minus the (weighted) mean of the group's known rewards, exactly 0 where unknown or all equal; and `known`."""
    known = groups.known
    weights = known.astype(np.float64) if weights is None else np.where(known, weights, 0.0)
    rewards = np.where(known, groups.rewards, 0.0).astype(np.float64)
    total = weights.sum(-1, keepdims=True)
    mean = (rewards * weights).sum(-1, keepdims=True) / np.where(total > 0, total, 1.0)
    keep = known & ~groups_lib.equal(groups)[:, None]
    return np.where(keep, rewards - mean, 0.0), known
