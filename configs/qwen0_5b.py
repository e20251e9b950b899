"""Qwen2.5-0.5B, from your own checkpoint directory, on your own problems.

python -m lanpo_jax.main --config=configs/qwen0_5b.py:model=DIR,data=train.jsonl,eval=test.jsonl --workdir=RUN
"""

from configs import common

HF = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
}


def get_config(text: str = ""):
    return common.qwen(text, HF, prompts=16, group=8, tokens=1024)
