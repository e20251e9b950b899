"""Qwen3-1.7B, from your own checkpoint directory, on your own problems.

python -m lanpo_jax.main --config=configs/qwen3_1_7b.py:model=DIR,data=train.jsonl,eval=test.jsonl --workdir=RUN
"""

from configs import common

HF = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
}


def get_config(text: str = ""):
    return common.qwen(text, HF, prompts=16, group=8, tokens=1024)
