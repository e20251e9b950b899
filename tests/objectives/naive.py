"""Every preset once more, from its formula, as plain loops over Python floats; nothing is imported from the package.

A loss is a function (x, live, dead): `x` holds the data, `live` the log-probabilities that carry the gradient and
`dead` the same numbers where the formula stops it. Central differences in `live` alone then give the meant gradient.
"""

import math

import numpy as np


def numbers(prompts=5, group=3, tokens=5, seed=3):
    """Ragged completions with a hole, log-probabilities far enough apart that every bound is met."""
    rng = np.random.default_rng(seed)
    rows = prompts * group
    lengths = rng.integers(1, tokens + 1, rows)
    mask = (np.arange(tokens) < lengths[:, None]).astype(float)
    mask[1] = [1, 0, 1, 1, 0]
    old = -rng.uniform(0.1, 2.5, (rows, tokens))
    old[0, 0], old[4, 0] = -4.0, -2.5
    current = np.minimum(old + rng.normal(0, 0.5, old.shape), -0.01)
    current[4, 0] = old[4, 0] + 2.0  # a ratio above CISPO's cap
    x = {
        "mask": mask,
        "logp": current,
        "old": old,
        "ref": old + rng.normal(0, 0.4, old.shape),
        "sampler": old + rng.normal(0, 0.3, old.shape),
        "entropy": rng.uniform(0, 3, old.shape),
        "vocab": -rng.uniform(3, 5, old.shape),
        "old_vocab": -rng.uniform(3, 5, old.shape),
        "drift": rng.normal(0, 0.012, old.shape),
        "spread": rng.uniform(0, 2e-3, old.shape),
        "values": rng.normal(0, 0.5, old.shape),
        "old_values": rng.normal(0, 0.5, old.shape),
        "rewards": np.array([[0.0, 1, 1], [1.25, 1, 0], [1, 1, 1], [0, 0.25, 1], [1, 0, 0]]),
        "prompt_confidence": rng.uniform(0, 1, prompts),
        "group": np.repeat(np.arange(prompts), group),
        "size": group,
        "length": 7,
        "lam": 0.7,
    }
    x["sampler"][5] = x["old"][5] - 2.0  # beyond the cap of the sampler correction
    x["correct"] = x["rewards"] >= 1
    return x


def steps(x, i):
    return [t for t in range(x["mask"].shape[1]) if x["mask"][i, t]]


def rows(x):
    return [i for i in range(x["mask"].shape[0]) if steps(x, i)]


# Advantages, one number per completion (a list of lists for ppo).


def per_group(x, function):
    found = []
    for p, rewards in enumerate(x["rewards"]):
        found += [0.0] * len(rewards) if max(rewards) == min(rewards) else function(x, p, list(rewards))
    return found


def center(x, p, rewards):
    mean = sum(rewards) / len(rewards)
    return [r - mean for r in rewards]


def norm(x, p, rewards):
    centred = center(x, p, rewards)
    deviation = math.sqrt(sum(c * c for c in centred) / (len(rewards) - 1))
    return [c / (deviation + 1e-6) for c in centred]


def leave_one_out(x, p, rewards):
    return [r - (sum(rewards) - r) / (len(rewards) - 1) for r in rewards]


def length_weighted(x, p, rewards):
    lengths = [len(steps(x, p * x["size"] + j)) for j in range(len(rewards))]
    baseline = sum(n * r for n, r in zip(lengths, rewards)) / sum(lengths)
    return [r - baseline for r in rewards]


def reweighted(x, p, rewards):
    advantages = norm(x, p, rewards)
    if len({r >= 1 for r in rewards}) == 1:
        return advantages
    for j in range(len(rewards)):
        i = p * x["size"] + j
        logps = sorted(x["old"][i, t] for t in steps(x, i))
        least = logps[: max(1, math.ceil(0.2 * len(logps)))]
        advantages[j] += 0.3 * (x["prompt_confidence"][p] - math.exp(sum(least) / len(least)))
    return advantages


def mixed_risk(x, quantiles):
    a, b = quantiles
    group, prompts = x["size"], len(x["rewards"])
    found = [0.0] * (group * prompts)
    scores = [sum(x["rewards"][p][j] for p in range(prompts)) for j in range(group)]  # one bundle of five
    deviation = float(np.std(scores, ddof=1))
    for j, score in enumerate(scores):
        cvar = -max(a - score, 0) / 0.2
        rvar = (max(score - a, 0) - max(score - b, 0)) / 0.6
        risk = (1.5 * cvar + rvar) / 2.5 / (deviation + 1e-6)
        gains = [x["rewards"][p][j] - sum(x["rewards"][p]) / group for p in range(prompts)]
        for p in range(prompts):
            equal = max(x["rewards"][p]) == min(x["rewards"][p])
            share = gains[p] / sum(gains) if abs(sum(gains)) > 1e-6 else 1 / prompts
            found[p * group + j] = 0.0 if equal else risk * share
    return found


def generalised(x, gamma=1.0, lam=0.95):
    found, returns = np.zeros(x["mask"].shape), np.zeros(x["mask"].shape)
    for i in rows(x):
        valid = steps(x, i)
        for k, t in enumerate(valid):
            for n, s in enumerate(valid[k:]):
                last = s == valid[-1]
                reward = x["rewards"].reshape(-1)[i] if last else 0.0
                following = 0.0 if last else x["values"][i, valid[k + n + 1]]
                found[i, t] += (gamma * lam) ** n * (reward + gamma * following - x["values"][i, s])
            returns[i, t] = found[i, t] + x["values"][i, t]
    flat = [found[i, t] for i in rows(x) for t in steps(x, i)]
    return (found - np.mean(flat)) / math.sqrt(np.var(flat, ddof=1) + 1e-8) * x["mask"], returns


# Aggregates of a per-token loss f(i, t).


def token_mean(x, f):
    values = [f(i, t) for i in rows(x) for t in steps(x, i)]
    return sum(values) / len(values)


def sequence_mean(x, f):
    return sum(sum(f(i, t) for t in steps(x, i)) / len(steps(x, i)) for i in rows(x)) / len(rows(x))


def constant(x, f):
    return sum(f(i, t) for i in rows(x) for t in steps(x, i)) / x["length"] / len(rows(x))


def sequence_sum(x, f):
    return sum(f(i, t) for i in rows(x) for t in steps(x, i)) / len(rows(x))


# Surrogates.


def clip(w, a, low=0.2, high=0.2):
    return -min(w * a, min(max(w, 1 - low), 1 + high) * a)


def plain(advantage, low=0.2, high=0.2, mean=token_mean, extra=lambda x, i, t, live: 0.0, factor=lambda x, i, t: 1.0):
    def loss(x, live, dead):
        a = advantage(x)

        def term(i, t):
            surrogate = clip(math.exp(live[i, t] - x["old"][i, t]), a[i], low, high)
            return surrogate * factor(x, i, t) + extra(x, i, t, live)

        return mean(x, term)

    return loss


def score_function(advantage, mean=token_mean):
    def loss(x, live, dead):
        a = advantage(x)
        return mean(x, lambda i, t: -a[i] * math.exp(live[i, t] - dead[i, t]))

    return loss


def k3(x, i, t, live):
    d = live[i, t] - x["ref"][i, t]
    return 1e-3 * (math.exp(-d) + d - 1)


def gspo(x, live, dead):
    a = NORM(x)

    def term(i, t):
        s = math.exp(sum(live[i, k] - x["old"][i, k] for k in steps(x, i)) / len(steps(x, i)))
        return clip(s, a[i], 3e-4, 4e-4)

    return sequence_mean(x, term)


def gspo_token(x, live, dead):
    a = NORM(x)

    def term(i, t):
        s = math.exp(sum(dead[i, k] - x["old"][i, k] for k in steps(x, i)) / len(steps(x, i)))
        return clip(s * math.exp(live[i, t] - dead[i, t]), a[i], 3e-4, 4e-4)

    return sequence_mean(x, term)


def gmpo(x, live, dead):
    a = NORM(x)

    def term(i, t):
        bounded = []
        for k in steps(x, i):
            d = live[i, k] - x["old"][i, k]
            bounded.append(min(d, 0.4) if a[i] > 0 else max(d, -0.4) if a[i] < 0 else d)
        return -a[i] * math.exp(sum(bounded) / len(bounded))

    return sequence_mean(x, term)


def cispo(x, live, dead):
    a = NORM(x)
    return token_mean(x, lambda i, t: -min(math.exp(dead[i, t] - x["old"][i, t]), 5.0) * a[i] * live[i, t])


def sapo(x, live, dead):
    a = NORM(x)

    def term(i, t):
        tau = 1.0 if a[i] > 0 else 1.05
        w = math.exp(live[i, t] - x["old"][i, t])
        return -a[i] * 4 / tau / (1 + math.exp(-tau * (w - 1)))

    return sequence_mean(x, term)


def ctpo(x, live, dead):
    a = NORM(x)

    def term(i, t):
        prefix = [k for k in steps(x, i) if k <= t]
        reach = math.sqrt(len(prefix))
        log_w = min(sum(dead[i, k] - x["old"][i, k] for k in prefix) + live[i, t] - dead[i, t], 10.0)
        clipped = min(max(log_w, -0.025 * reach), 0.05 * reach)
        loss = max(-a[i] * math.exp(log_w), -a[i] * math.exp(clipped))
        if a[i] < 0:
            loss = min(loss, -a[i] * math.exp(0.05 * reach))
        return loss * min(math.exp(sum(x["old"][i, k] - x["sampler"][i, k] for k in steps(x, i))), 5.0)

    return token_mean(x, term)


def pnpo(x, live, dead):
    a = NORM(x)

    def term(i, t):
        prefix = [live[i, k] - x["old"][i, k] for k in steps(x, i) if k <= t]
        return clip(math.exp(sum(prefix) / len(prefix)), a[i])

    return sequence_mean(x, term)


def r2vpo(x, live, dead):
    a = NORM(x)

    def term(i, t):
        w = math.exp(live[i, t] - x["old"][i, t])
        return -(w * a[i] - x["lam"] * (w - 1) ** 2)

    return token_mean(x, term)


def kl_cov(x, live, dead):
    a = NORM(x)

    def term(i, t):
        d = live[i, t] - x["old"][i, t]
        return -math.exp(d) * a[i] + (abs(d) if x["selected"][i, t] else 0.0)

    return token_mean(x, term)


def kept_by_curvature(x, i, t):
    a, drift, spread = NORM(x)[i], x["drift"][i, t], x["spread"][i, t]
    fisher = 0.5 * drift**2
    hessian = a * drift + 0.5 * a * (drift**2 - spread)
    return float(fisher < 1e-4 and abs(hessian) < 0.01)


def capo(x, live, dead):
    mask = np.zeros_like(x["mask"])
    for i in rows(x):
        for t in steps(x, i):
            mask[i, t] = kept_by_curvature(x, i, t)
    return plain(NORM, mean=sequence_mean)(x | {"mask": mask}, live, dead)


def rover(x, live, dead):
    a = CENTER(x)

    def term(i, t):
        following = 0.0
        if t + 1 < x["mask"].shape[1] and x["mask"][i, t + 1]:
            following = x["vocab"][i, t + 1] - x["old_vocab"][i, t + 1]
        return (live[i, t] - x["old"][i, t] - a[i] - following) ** 2

    return token_mean(x, term)


def trpa(x, live, dead):
    def drift(i):
        return sum(live[i, t] - x["ref"][i, t] for t in steps(x, i)) / len(steps(x, i))

    total, prompts = 0.0, sorted(set(x["group"]))
    for prompt in prompts:
        members = [i for i in rows(x) if x["group"][i] == prompt]
        levels = {i: x["rewards"].reshape(-1)[i] for i in members}
        pairs = []
        for i in members:
            for j in members:
                if levels[i] > levels[j]:
                    m = 2.5 if levels[i] >= 1.0 else 1.0
                    pairs.append(math.log(1 + math.exp(-m * 0.1 * (drift(i) - drift(j)))))
        total += sum(pairs) / max(len(pairs), 1)
        for i in members:
            d = [live[i, t] - x["old"][i, t] for t in steps(x, i)]
            total += 1e-3 * sum(math.exp(-v) + v - 1 for v in d) / len(d) / len(members)
    return total / len(prompts)


def ppo(x, live, dead):
    a, returns = generalised(x)

    def term(i, t):
        value, old = x["new_values"][i, t], x["old_values"][i, t]
        bounded = min(max(value, old - 0.2), old + 0.2)
        loss = max((value - returns[i, t]) ** 2, (bounded - returns[i, t]) ** 2)
        return clip(math.exp(live[i, t] - x["old"][i, t]), a[i, t]) + 0.1 * 0.5 * loss

    return token_mean(x, term)


def CENTER(x):
    return per_group(x, center)


def NORM(x):
    return per_group(x, norm)


def RLOO(x):
    return per_group(x, leave_one_out)


def OPO(x):
    return per_group(x, length_weighted)


def ARM(x):
    return per_group(x, reweighted)


def RISK(x):
    return mixed_risk(x, x["quantiles"])


ADVANTAGES = {
    **dict.fromkeys(("reinforce", "dr_grpo", "rover"), CENTER),
    "rloo": RLOO,
    "opo": OPO,
    "progrpo": ARM,
    "riskpo": RISK,
}  # the others: NORM; trpa and ppo are treated apart

LOSSES = {
    "reinforce": score_function(CENTER),
    "rloo": score_function(RLOO, sequence_sum),
    "grpo": plain(NORM, mean=sequence_mean, extra=k3),
    "dr_grpo": plain(CENTER, mean=constant),
    "dapo": plain(NORM, high=0.28),
    "gspo": gspo,
    "gspo_token": gspo_token,
    "gmpo": gmpo,
    "cispo": cispo,
    "sapo": sapo,
    "ctpo": ctpo,
    "pnpo": pnpo,
    "r2vpo": r2vpo,
    "opo": score_function(OPO),
    "riskpo": plain(RISK),
    "progrpo": plain(ARM, high=0.28),
    "entropy_top_20": plain(NORM, high=0.28, factor=lambda x, i, t: float(x["selected"][i, t])),
    "clip_cov": plain(NORM, low=1.0, high=1.0, factor=lambda x, i, t: 1.0 - float(x["selected"][i, t])),
    "kl_cov": kl_cov,
    "capo": capo,
    "rover": rover,
    "trpa": trpa,
    "ppo": ppo,
}


def gradient(loss, x, step=1e-6):
    """Central differences in `live`, the frozen copy held fixed."""
    dead, found = x["logp"], np.zeros_like(x["logp"])
    for i in rows(x):
        for t in steps(x, i):
            up, down = dead.copy(), dead.copy()
            up[i, t] += step
            down[i, t] -= step
            found[i, t] = (loss(x, up, dead) - loss(x, down, dead)) / (2 * step)
    return found
