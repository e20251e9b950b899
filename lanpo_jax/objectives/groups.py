"""What advantages are computed from: the rewards of one step, in groups; and which groups are worth training on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Groups:
    """The rewards of P prompts with up to G completions each, and what some methods read beside them.

    A place without a completion is one that is not scored; its other entries may hold anything.
    """

    rewards: np.ndarray  # [P, G]
    lengths: np.ndarray | None = None  # [P, G] tokens
    scored: np.ndarray | None = None  # [P, G] bool: the reward is known; None: all are
    correct: np.ndarray | None = None  # [P, G] bool: the verifier's verdict (ProGRPO)
    mask: np.ndarray | None = None  # [P, G, T]
    old_logprobs: np.ndarray | None = None  # [P, G, T]
    prompt_confidence: np.ndarray | None = None  # [P] or [P, G]: `confidence` of the prompt's own tokens (ProGRPO)
    values: np.ndarray | None = None  # [P, G, T] value head (PPO)
    token_rewards: np.ndarray | None = None  # [P, G, T]: dense part, e.g. -beta·KL; the reward joins the last token
    state: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def known(self) -> np.ndarray:
        return np.ones(self.rewards.shape, bool) if self.scored is None else np.asarray(self.scored, bool)


def equal(groups: Groups) -> np.ndarray:
    """True [P] where a group's known rewards are all the same, by max == min (also for one or none)."""
    high = np.where(groups.known, groups.rewards, -np.inf).max(-1)
    low = np.where(groups.known, groups.rewards, np.inf).min(-1)
    return high <= low


def confidence(logprobs: np.ndarray, mask: np.ndarray, *, share: float = 0.2) -> np.ndarray:
    """exp of the mean log-probability of the `share` least likely tokens (at least one), [.., T] -> [..]."""
    valid = np.asarray(mask) != 0
    ordered = np.sort(np.where(valid, logprobs, np.inf).astype(np.float64), axis=-1)
    count = np.maximum(np.ceil(share * valid.sum(-1, keepdims=True) - 1e-9), 1)
    chosen = (np.arange(valid.shape[-1]) < count) & np.isfinite(ordered)
    return np.exp(np.where(chosen, ordered, 0.0).sum(-1) / np.maximum(chosen.sum(-1), 1))


def bundle_scores(groups: Groups, bundle: int) -> np.ndarray:
    """Sums over `bundle` consecutive prompts of their j-th rewards, [P, G] -> [P/bundle, G].

    An unknown reward counts as the mean of its group. Raises ValueError where the prompts do not divide into bundles.
    """
    prompts, group = groups.rewards.shape
    if prompts % bundle:
        raise ValueError(f"{prompts} prompts do not divide into bundles of {bundle}; change rollout.prompts or bundle.")
    known = groups.known
    rewards = np.where(known, groups.rewards, 0.0).astype(np.float64)
    mean = rewards.sum(-1, keepdims=True) / np.maximum(known.sum(-1, keepdims=True), 1)
    return np.where(known, rewards, mean).reshape(-1, bundle, group).sum(1)
