"""What advantages are computed from: the rewards of one step, in groups; and which groups are worth training on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Groups:
    """The rewards of P prompts with G completions each, and what some methods read beside them."""

    rewards: np.ndarray  # [P, G]
    lengths: np.ndarray | None = None  # [P, G] tokens
    scored: np.ndarray | None = None  # [P, G] bool: the reward is known; None: all are
    correct: np.ndarray | None = None  # [P, G] bool: the verifier's verdict (ProGRPO)
    mask: np.ndarray | None = None  # [P, G, T]
    old_logprobs: np.ndarray | None = None  # [P, G, T]
    prompt_confidence: np.ndarray | None = None  # [P]: `confidence` of the prompt's own tokens (ProGRPO)
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
