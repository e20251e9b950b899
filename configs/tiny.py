"""A model from scratch in a few minutes: every part of the system at a size that can be watched.

    python -m lanpo_jax.main --config=configs/tiny.py --workdir=runs/tiny

Sums of two-digit numbers with the carries spelled out. A SentencePiece tokenizer is trained on them, a model of 0.1M
parameters imitates worked solutions of which half hold a slip, and RL then weeds the slips out.
"""

import json

from configs import common, objectives

ARGUMENTS = {"algo": "grpo", "feedback": "lanpo"}
HF = {
    "model_type": "qwen3",
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": True,
}


def get_config(text: str = ""):
    args = common.parse(text, ARGUMENTS)
    c = common.base()
    c.model.path = "random"
    c.model.hf = json.dumps(HF)
    c.model.tokenizer = "train(vocab=40, kind='char', byte_fallback=False)"
    c.prompt.style = "bare"
    c.prompt.answer = "number"
    c.prompt.template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %} "
    c.data.train = ("addition(digits=2, count=640, seed=1, part='train')",)
    c.data.eval.addition = "addition(digits=2, count=256, seed=2, part='eval')"
    c.data.prompt_limit = 96
    c.reward.functions = ("lanpo_jax.rewards.math.verify(extract='strict')",)

    c.warmup.steps = 600
    c.warmup.demonstrations = "traces(slips=0.45)"
    c.warmup.guided = True
    c.warmup.rows = 64
    c.warmup.rate = 3e-3

    c.steps = 80
    modes = {"plain": 0.5, "intra": 0.25, "inter": 0.25}
    episode = f"lanpo(modes={modes}, min_pool=16, attempt_tokens=48, principle_tokens=48)"
    c.rollout.episode = common.episode(args["feedback"], c.steps, episode)
    c.rollout.prompts, c.rollout.group, c.rollout.rows = 16, 8, 128
    c.rollout.max_new_tokens = 48
    c.rollout.refills = 0
    c.objective.update(objectives.preset(args["algo"], 48))
    c.optimizer.rate = 3e-4
    c.optimizer.warmup = 10
    c.optimizer.decay = "cosine"
    c.learner.row_tokens = 256
    c.learner.micro_rows = 8
    c.eval.every = 20
    c.eval.samples = 4
    c.checkpoint.every = 20
    return c
