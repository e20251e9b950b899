"""Qwen2.5-7B, from your own checkpoint directory, on your own problems.

python -m lanpo_jax.main --config=configs/qwen7b.py:model=DIR,data=train.jsonl,eval=test.jsonl --workdir=RUN
"""

from configs import common

HF = {
    "model_type": "qwen2",
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
}


def get_config(text: str = ""):
    return common.qwen(text, HF)
