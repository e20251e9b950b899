"""Lessons that must matter: operators with hidden rules, and a model that was taught to read and write lessons.

    python -m lanpo_jax.main --config=configs/rules.py --workdir=runs/rules

"mab of 4 and 7?" cannot be solved without knowing what a mab adds; one solved case tells it for all others. A model of
0.1M parameters first learns to guess in the right form, to follow a lesson (more or less) and to write one; then RL
begins. `experiments/` compares what is learned with and without lessons.
"""

import json

from configs import common, tiny


def get_config(text: str = ""):
    c = tiny.get_config(text)
    args = common.parse(text, tiny.ARGUMENTS)
    c.model.hf = json.dumps(tiny.HF | {"vocab_size": 48})
    c.model.tokenizer = "train(vocab=48, kind='char', byte_fallback=False)"
    c.data.train = ("rules(operators=24, count=1280, seed=1, part='train')",)
    c.data.eval = {"rules": "rules(operators=24, count=256, seed=2, part='eval')"}
    c.data.prompt_limit = 128
    c.warmup.steps = 800
    c.warmup.demonstrations = "guesses"

    c.steps = 100
    modes = {"plain": 0.5, "intra": 0.0, "inter": 0.5}
    episode = f"lanpo(modes={modes}, min_pool=8, attempt_tokens=64, principle_tokens=32)"
    c.rollout.episode = common.episode(args["feedback"], c.steps, episode)
    c.rollout.max_new_tokens = 64
    c.optimizer.rate = 1e-4
    c.optimizer.decay = "constant"
    return c
