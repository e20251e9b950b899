"""OBJECTIVES: every published method as a choice of parts. Plain strings; lanpo_jax/objectives/ says what they mean.

A preset names each slot of the loss. What a method wants elsewhere (group size, temperature, epochs, length penalty)
stands in its comment, because those belong to other parts of the config.
"""

BASE = {
    "filter": "keep_all",
    "advantage": "group_norm",
    "ratio": "token",
    "surrogate": "clip(low=0.2, high=0.2)",
    "weights": "none",
    "aggregate": "token_mean",
    "kl": "none",
    "reward_kl": "none",
    "value": "none",
    "whole": "none",
}

CLIP_HIGHER = "clip(low=0.2, high=0.28)"
DAPO = BASE | {"filter": "drop_equal", "surrogate": CLIP_HIGHER}

OBJECTIVES = {
    # Williams 1992; the baseline is what makes it usable: the mean of the group.
    "reinforce": BASE | {"advantage": "group_center", "ratio": "none", "surrogate": "unclipped"},
    # Ahmadian et al. 2024, arXiv 2402.14740: exactly on-policy, KL .03 in the reward.
    "rloo": BASE
    | {
        "advantage": "rloo",
        "ratio": "none",
        "surrogate": "unclipped",
        "aggregate": "sequence_sum",
        "reward_kl": "k1(beta=0.03)",
    },
    # Shao et al. 2024, arXiv 2402.03300, with the KL coefficient and group size (16) of DeepSeek-R1's followers.
    "grpo": BASE | {"aggregate": "sequence_mean", "kl": "k3(beta=1e-3)"},
    # Liu et al. 2025, arXiv 2503.20783: neither standard deviation nor length in a denominator.
    "dr_grpo": BASE | {"advantage": "group_center", "aggregate": "constant(length={max_new_tokens})"},
    # Yu et al. 2025, arXiv 2503.14476; with the soft overlong penalty (limit 20480, buffer 4096).
    "dapo": DAPO,
    # Zheng et al. 2025, arXiv 2507.18071.
    "gspo": BASE | {"ratio": "sequence", "surrogate": "clip(low=3e-4, high=4e-4)", "aggregate": "sequence_mean"},
    "gspo_token": BASE
    | {"ratio": "sequence_token", "surrogate": "clip(low=3e-4, high=4e-4)", "aggregate": "sequence_mean"},
    # Zhao et al. 2025, arXiv 2507.20673.
    "gmpo": BASE | {"surrogate": "geometric(low=0.4, high=0.4)", "aggregate": "sequence_mean"},
    # MiniMax 2025, arXiv 2506.13585, with the cap of ScaleRL (arXiv 2510.13786).
    "cispo": BASE | {"surrogate": "cispo(floor=0.0, cap=5.0)"},
    # Gao et al. 2025, arXiv 2511.20347.
    "sapo": BASE | {"surrogate": "soft(tau_up=1.0, tau_down=1.05)", "aggregate": "sequence_mean"},
    # Zhang et al. 2026, arXiv 2605.07331.
    "ctpo": BASE
    | {
        "ratio": "cumulative(cap=10.0)",
        "surrogate": "log_clip(low=0.025, high=0.05, power=0.5, dual=0.05)",
        "weights": "sequence_is(cap=5.0)",
    },
    # Prefix-normalised ratios; meant for 4 epochs over one rollout batch. The clip range is GRPO's.
    "pnpo": BASE | {"ratio": "prefix_mean", "aggregate": "sequence_mean"},
    # Luo et al. 2026, arXiv 2601.03320; the multiplier is carried in the train state.
    "r2vpo": BASE | {"surrogate": "ratio_variance(start=0.0, rate=0.1, target=0.01)"},
    # Hao et al. 2025, arXiv 2505.23585: one update per rollout batch.
    "opo": BASE | {"advantage": "opo", "ratio": "none", "surrogate": "unclipped"},
    # Ren et al. 2025, arXiv 2510.00911; prompts per step must be a multiple of the bundle.
    "riskpo": BASE | {"advantage": "mvar(bundle=5, low=0.2, high=0.8, mix=1.5, rate=0.1)"},
    # Li et al. 2026, arXiv 2602.05281.
    "progrpo": BASE | {"advantage": "arm(alpha=0.3, share=0.2)", "surrogate": CLIP_HIGHER},
    # Wang et al. 2025, arXiv 2506.01939: DAPO on forking tokens.
    "entropy_top20": DAPO | {"weights": "top_entropy(share=0.2)"},
    # Cui et al. 2025, arXiv 2505.22617.
    "clip_cov": BASE | {"weights": "drop_covariance(share=2e-4, low=1.0, high=5.0)"},
    "kl_cov": BASE | {"surrogate": "covariance_kl(share=2e-4, coefficient=1.0)"},
    # Melo et al. 2025, arXiv 2510.00819.
    "capo": BASE | {"aggregate": "sequence_mean", "weights": "curvature(fisher=1e-4, hessian=1e-2)"},
    # He et al. 2025, arXiv 2509.24981; sample at temperature .6.
    "rover": BASE | {"advantage": "group_center", "surrogate": "value_regression(scale=1.0)"},
    # Su et al. 2025, arXiv 2504.04524; groups must not be cut by a micro-batch.
    "trpa": BASE | {"advantage": "none", "whole": "trpa(beta=0.1, boost=2.5, top=1.0, kl=1e-3)"},
    # Schulman et al. 2017, arXiv 1707.06347, with a value head; KL in the reward as in InstructGPT.
    "ppo": BASE
    | {
        "advantage": "gae(gamma=1.0, lam=0.95)",
        "reward_kl": "k1(beta=0.05)",
        "value": "squared(coefficient=0.1, clip=0.2)",
    },
}


def preset(name: str, max_new_tokens: int) -> dict[str, str]:
    """The slots of a method, with the run's completion limit filled in where a constant length is meant."""
    if name not in OBJECTIVES:
        raise ValueError(f"algo={name!r} is not known; there are: {', '.join(OBJECTIVES)}.")
    return {slot: text.format(max_new_tokens=max_new_tokens) for slot, text in OBJECTIVES[name].items()}
