"""Which groups enter the update: `Groups` -> bool [P]. The loop refills what was dropped, a bounded number of times."""

from __future__ import annotations

import numpy as np

from lanpo_jax.objectives import groups as groups_lib


def keep_all(groups: groups_lib.Groups) -> np.ndarray:
    """Every group, also one whose advantages are all 0."""
    return np.ones(groups.rewards.shape[0], bool)


def drop_equal(groups: groups_lib.Groups) -> np.ndarray:
    """Only groups whose known rewards differ (DAPO's dynamic sampling, arXiv 2503.14476).

    Give it the *outcome* rewards: a length penalty would make every group differ. A dropped group leaves the batch
    altogether (mask 0), so that it adds nothing to the KL term or to a denominator.
    """
    return ~groups_lib.equal(groups)
