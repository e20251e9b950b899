"""OBJECTIVES: every published method as a choice of parts. Plain strings; lanpo_jax/objectives/ says what they mean.

Each method is a function whose docstring names the paper and says which values are published and which are ours. What
a method wants outside of the loss (group size, temperature, epochs, penalty) stands there too; `common.qwen` sets it.
"Paper" means the text at arXiv, "code" the authors' public repository.
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
SCORE_FUNCTION = {"ratio": "none", "surrogate": "unclipped"}


def reinforce() -> dict[str, str]:
    """Williams 1992, Machine Learning 8 (no arXiv number). Ours: the mean of the group as baseline, token mean."""
    return BASE | SCORE_FUNCTION | {"advantage": "group_center"}


def rloo() -> dict[str, str]:
    """Ahmadian et al. 2024, Back to Basics, arXiv 2402.14740.

    Published: leave-one-out baseline, whole completion as the action, KL .03 in the reward, exactly on-policy.
    """
    return BASE | SCORE_FUNCTION | {"advantage": "rloo", "aggregate": "sequence_sum", "reward_kl": "k1(beta=0.03)"}


def grpo() -> dict[str, str]:
    """Shao et al. 2024, DeepSeekMath, arXiv 2402.03300.

    Published: (R - mean)/std, mean over tokens, then over completions, k3 in the loss. The KL coefficient 1e-3 and the
    group of 16 are those of DeepSeek-R1 (2501.12948; DeepSeekMath has .04 and 64). Ours: PPO's clip range .2.
    """
    return BASE | {"aggregate": "sequence_mean", "kl": "k3(beta=1e-3)"}


def dr_grpo() -> dict[str, str]:
    """Liu et al. 2025, Understanding R1-Zero-Like Training, arXiv 2503.20783.

    Published: neither standard deviation nor the completion's own length in a denominator, no KL, clip range .2.
    """
    return BASE | {"advantage": "group_center", "aggregate": "constant(length={max_new_tokens})"}


def dapo() -> dict[str, str]:
    """Yu et al. 2025, DAPO, arXiv 2503.14476.

    Published: clip .2/.28, token mean, no KL, groups of equal outcome refilled, groups of 16, soft overlong penalty
    over the last 4096 of 20480 tokens (a reward function; `common.qwen` adds it over the last fifth of the limit).
    """
    return BASE | {"filter": "drop_equal", "surrogate": "clip(low=0.2, high=0.28)"}


def gspo() -> dict[str, str]:
    """Zheng et al. 2025, Group Sequence Policy Optimization, arXiv 2507.18071.

    Published: length-normalised sequence ratio, clip 3e-4/4e-4, no KL, four mini-batches per rollout.
    """
    return BASE | {"ratio": "sequence", "surrogate": "clip(low=3e-4, high=4e-4)", "aggregate": "sequence_mean"}


def gspo_token() -> dict[str, str]:
    """GSPO-token, the same paper (arXiv 2507.18071): value of GSPO's ratio, gradient of each token alone.

    Published: as GSPO. It differs from GSPO only with advantages per token.
    """
    return gspo() | {"ratio": "sequence_token"}


def gmpo() -> dict[str, str]:
    """Zhao et al. 2025, Geometric-Mean Policy Optimization, arXiv 2507.20673.

    Published: token ratios clipped one-sidedly to (e^-.4, e^.4), then their geometric mean. Ours: no KL.
    """
    return BASE | {"surrogate": "geometric(low=0.4, high=0.4)", "aggregate": "sequence_mean"}


def cispo() -> dict[str, str]:
    """MiniMax 2025, MiniMax-M1, arXiv 2506.13585.

    Published: sg(clipped ratio)·A·log pi, no lower bound, token mean, no KL. The paper tunes the upper bound and gives
    no number; 5 is that of ScaleRL (2510.13786).
    """
    return BASE | {"surrogate": "cispo(floor=0.0, cap=5.0)"}


def sapo() -> dict[str, str]:
    """Gao et al. 2025, Soft Adaptive Policy Optimization, arXiv 2511.20347.

    Published: temperatures 1.0 for A > 0 and 1.05 else, mean over tokens, then over completions.
    """
    return BASE | {"surrogate": "soft(tau_up=1.0, tau_down=1.05)", "aggregate": "sequence_mean"}


def ctpo() -> dict[str, str]:
    """Zhang et al. 2026, A Cumulative Token Perspective, arXiv 2605.07331.

    Published (code): cumulative ratio with log w at most 10, log bounds .025·t^.5 and .05·t^.5, dual bound .05·t^.5,
    token mean, no KL, sampler correction per sequence truncated at 5; 512 prompts in mini-batches of 32, groups of 8.
    """
    return BASE | {
        "ratio": "cumulative(cap=10.0)",
        "surrogate": "log_clip(low=0.025, high=0.05, power=0.5, dual=0.05)",
        "weights": "sequence_is(cap=5.0)",
    }


def pnpo() -> dict[str, str]:
    """Prefix-normalised ratios; we know no public paper or code (no arXiv number), so nothing here is published.

    Ours: the mean of d over the prefix, gradient through the whole prefix, PPO's clip range, GRPO's aggregate. Related:
    the prefix ratios of MinPRO (2601.22718) and the geometric mode of CTPO's code, whose gradient stays at the token.
    """
    return BASE | {"ratio": "prefix_mean", "aggregate": "sequence_mean"}


def r2vpo() -> dict[str, str]:
    """Luo et al. 2026, Ratio-Variance Regularized Policy Optimization, arXiv 2601.03320 (longer: 2605.26784).

    Published: no clipping; the second central moment of the ratio is constrained, its multiplier found by dual ascent.
    Ours: start, rate and target of that ascent (the published ones are unknown to us), GRPO's advantage, token mean.
    """
    return BASE | {"surrogate": "ratio_variance(start=0.0, rate=0.1, target=0.01)"}


def opo() -> dict[str, str]:
    """Hao et al. 2025, On-Policy RL with Optimal Reward Baseline, arXiv 2505.23585.

    Published: length-weighted baseline, exactly one update per rollout batch, neither KL nor entropy term.
    """
    return BASE | SCORE_FUNCTION | {"advantage": "opo"}


def riskpo() -> dict[str, str]:
    """Ren et al. 2025, RiskPO, arXiv 2510.00911; prompts per step must be a multiple of the bundle.

    Published (code, hard-mathematics script): bundles of 5, levels .2 and .8, mix 1.5, quantile rate .1, clip .2, token
    mean, no KL, groups of 10. The easy-mathematics script has upper level .9 and divides by each question's deviation.
    """
    return BASE | {"advantage": "mvar(bundle=5, low=0.2, high=0.8, mix=1.5, rate=0.1)"}


def progrpo() -> dict[str, str]:
    """Li et al. 2026, Exploration via Generative Probabilities (ProGRPO), arXiv 2602.05281.

    Published: A + alpha·(c(prompt) - c(completion)) over the ~20% least likely tokens, clip .8 to 1.28. Ours: alpha =
    .3 (the published one is unknown to us); only groups with right and wrong answers, where the paper also moves groups
    that are all right: equal rewards must give 0.
    """
    return BASE | {"advantage": "arm(alpha=0.3, share=0.2)", "surrogate": "clip(low=0.2, high=0.28)"}


def entropy_top_20() -> dict[str, str]:
    """Wang et al. 2025, Beyond the 80/20 Rule, arXiv 2506.01939.

    Published: DAPO with the gradient of the 20% of tokens with the highest entropy, over the whole batch.
    """
    return dapo() | {"weights": "top_entropy(share=0.2)"}


def clip_cov() -> dict[str, str]:
    """Cui et al. 2025, The Entropy Mechanism, arXiv 2505.22617.

    Published (code): share 2e-4 of the tokens, drawn from those with covariance in (1, 5); clip range 1/1, token mean.
    """
    return BASE | {
        "surrogate": "clip(low=1.0, high=1.0)",
        "weights": "drop_covariance(share=2e-4, low=1.0, high=5.0)",
    }


def kl_cov() -> dict[str, str]:
    """Cui et al. 2025, the same paper (arXiv 2505.22617).

    Published (code): |log-ratio| with coefficient 1 on the top share of tokens by covariance, 2e-4 for 32B and 2e-3
    for 7B; no clipping, token mean.
    """
    return BASE | {"surrogate": "covariance_kl(share=2e-4, coefficient=1.0)"}


def capo() -> dict[str, str]:
    """Melo et al. 2025, Stabilizing Policy Gradients (CAPO), arXiv 2510.00819.

    Published (code): thresholds 1e-4 and 1e-2 for GRPO (Dr. GRPO: 1e-3 and 5e-4), GRPO without KL, masked tokens leave
    the denominator; made for aggressive steps (rate 1.5e-5, groups of 8). Ours: the 50 most likely tokens of the head.
    """
    return BASE | {"aggregate": "sequence_mean", "weights": "curvature(fisher=1e-4, hessian=1e-2)"}


def rover() -> dict[str, str]:
    """He et al. 2025, Random Policy Valuation (ROVER), arXiv 2509.24981.

    Published: rho = 1, mean-centred rewards, mean square over tokens, sampling temperature .6, groups of 8. The code's
    mathematics script also divides by the deviation (advantage group_norm); its countdown script does not.
    """
    return BASE | {"advantage": "group_center", "surrogate": "value_regression(scale=1.0)"}


def trpa() -> dict[str, str]:
    """Su et al. 2025, Trust Region Preference Approximation, arXiv 2504.04524; groups must not be cut.

    Published (code): beta .1, boost 2.5 for pairs of the top level, k3 against the old policy .001, groups of 16. Ours:
    means per prompt (the code pools pairs and tokens over a micro-batch), levels are the rewards, top from 1 on.
    """
    return BASE | {"advantage": "none", "whole": "trpa(beta=0.1, boost=2.5, top=1.0, kl=1e-3)"}


def ppo() -> dict[str, str]:
    """Schulman et al. 2017, Proximal Policy Optimization, arXiv 1707.06347, with a value head and GAE (1506.02438).

    Published: clip .2, lambda .95. gamma 1, KL .05 in the reward, value coefficient .1 and value clip .2 are TRL's.
    """
    return BASE | {
        "advantage": "gae(gamma=1.0, lam=0.95)",
        "reward_kl": "k1(beta=0.05)",
        "value": "squared(coefficient=0.1, clip=0.2)",
    }


METHODS = (reinforce, rloo, grpo, dr_grpo, dapo, gspo, gspo_token, gmpo, cispo, sapo, ctpo, pnpo, r2vpo, opo, riskpo)
METHODS += (progrpo, entropy_top_20, clip_cov, kl_cov, capo, rover, trpa, ppo)
OBJECTIVES = {method.__name__: method() for method in METHODS}


def named(name: str) -> str:
    """The preset that is meant: hyphens and a percent sign are understood, 'entropy-top-20%' is entropy_top_20."""
    plain = name.replace("-", "_").rstrip("%")
    if plain not in OBJECTIVES:
        raise ValueError(f"algo={name!r} is not known; there are: {', '.join(OBJECTIVES)}.")
    return plain


def preset(name: str, max_new_tokens: int) -> dict[str, str]:
    """The slots of a method, with the run's completion limit filled in where a constant length is meant."""
    slots = OBJECTIVES[named(name)]
    return {slot: text.format(max_new_tokens=max_new_tokens) for slot, text in slots.items()}
