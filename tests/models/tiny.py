"""Small random networks of each published form, for tests."""

import jax

from lanpo_jax.models import qwen

FORMS = {
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": False},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 24},
    "llama": {"model_type": "llama", "tie_word_embeddings": True},
}
SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_theta": 10_000.0,
}


def config(form: str, scan_layers: bool = False, remat: str = "none") -> qwen.ModelConfig:
    return qwen.ModelConfig.from_hf(SIZES | FORMS[form], scan_layers=scan_layers, remat=remat)


def params(config: qwen.ModelConfig, mesh, scale: float = 6.0):
    """Random parameters, matrices scaled up so that the distributions are far from uniform."""
    with jax.set_mesh(mesh):
        tree = qwen.init(config, jax.random.key(0))
    return jax.tree.map(lambda x: x * scale if x.ndim > 1 else x, tree)
