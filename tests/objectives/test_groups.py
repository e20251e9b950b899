import numpy as np
import pytest

from lanpo_jax.objectives import groups as groups_lib


def test_confidence_is_of_the_least_likely_fifth_rounded_up():
    logprobs = -np.arange(1.0, 8.0)[None]  # -1 .. -7
    mask = np.array([[1, 1, 1, 1, 1, 1, 0]])  # -7 is masked; a fifth of six tokens, rounded up, is two
    np.testing.assert_allclose(groups_lib.confidence(logprobs, mask), np.exp([-5.5]))
    np.testing.assert_allclose(groups_lib.confidence(logprobs, mask, share=0.5), np.exp([-5.0]))
    np.testing.assert_allclose(groups_lib.confidence(logprobs[:, :1], mask[:, :1]), np.exp([-1.0]))
    assert groups_lib.confidence(np.full((1, 7), np.nan), np.zeros((1, 7))) == 1.0


def test_bundle_scores_fill_an_unknown_reward_with_its_groups_mean():
    rewards = np.array([[1.0, 0.0, np.nan], [0.0, 1.0, 1.0]])
    groups = groups_lib.Groups(rewards, scored=np.isfinite(rewards))
    np.testing.assert_allclose(groups_lib.bundle_scores(groups, 2), [[1.0, 1.0, 1.5]])
    with pytest.raises(ValueError, match="2 prompts do not divide into bundles of 3"):
        groups_lib.bundle_scores(groups, 3)
