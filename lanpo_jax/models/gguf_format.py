"""GGUF files of the llama, qwen2 and qwen3 architectures, seen as if they were Hugging Face checkpoints.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Unpacking of quantised blocks is the `gguf`
package's; names, config keys and the row order of llama's q and k projections are undone here.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from lanpo_jax.models import published

ARCHITECTURES = ("llama", "qwen2", "qwen3")

TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FREQS = "rope_freqs.weight"


@dataclasses.dataclass(frozen=True)
class Stored:
    """Where a tensor lies in the file; `shape` in Hugging Face's axis order."""

    type: gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


def open_file(path: Path) -> published.Checkpoint:
    """Opens a GGUF file; reads its header only. Raises ValueError, in one sentence, for files that can't be used."""
    reader = _reader(path)
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    stored = {
        t.name: Stored(t.tensor_type, tuple(int(n) for n in reversed(t.shape)), int(t.data_offset), int(t.n_bytes))
        for t in reader.tensors
    }
    _check_kind(path, metadata)
    config = _config(path, metadata, stored)
    names = {_hf_name(name): name for name in stored if name != ROPE_FREQS}
    permuted = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}

    def read(name: str) -> np.ndarray:
        rows = _read(path, stored[names[name]])
        projection = re.search(r"\.([qk])_proj\.", name)
        return unpermute(rows, permuted[projection[1]]) if projection and config["model_type"] == "llama" else rows

    shapes = {name: stored[at].shape for name, at in names.items()}
    return published.Checkpoint(path, config, {}, shapes, read, metadata)


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Restores Hugging Face's order of the rows of a q or k projection, [heads * H] or [heads * H, D].

    Converters to GGUF interleave the two halves of each head (llama's RoPE turns neighbours i, i+1; Hugging Face's
    turns i, i+H/2): permute in convert_hf_to_gguf.py is reshape(heads, 2, H/2).swapaxes(1, 2).
    """
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _reader(path: Path) -> gguf.GGUFReader:
    published.refuse_pointer(path)
    try:
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(f"{path} is cut off or no GGUF file ({error}); download it again.") from error


def _check_kind(path: Path, metadata: Mapping[str, Any]) -> None:
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"{path} has the architecture {architecture!r}; known are {known}.")
    if metadata.get("split.count", 1) > 1:
        raise ValueError(f"{path} is one of {metadata['split.count']} parts; join them with llama-gguf-split --merge.")
    if metadata.get(f"{architecture}.expert_count", 0):
        raise ValueError(f"{path} is a mixture of experts; only dense models are known.")


def _hf_name(name: str) -> str:
    """Hugging Face's name of a GGUF tensor; unknown ones keep theirs, for the loader to refuse."""
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match and match[2] in BLOCK:
        return f"model.layers.{match[1]}.{BLOCK[match[2]]}.{match[3]}"
    return TOP.get(name, name)


def _read(path: Path, stored: Stored) -> np.ndarray:
    """One tensor as float32 in Hugging Face's shape; read, not mapped, so that its file pages are not kept."""
    raw = np.fromfile(path, np.uint8, count=stored.n_bytes, offset=stored.offset)
    if raw.size != stored.n_bytes:
        raise ValueError(f"{path} is cut off at byte {stored.offset + raw.size}; download it again.")
    rows = raw.reshape(*stored.shape[:-1], -1)
    try:
        return gguf.dequantize(rows, stored.type)
    except NotImplementedError as error:
        raise ValueError(
            f"{path} has tensors of type {stored.type.name}, which the gguf package can't unpack."
        ) from error


def _config(path: Path, metadata: Mapping[str, Any], stored: Mapping[str, Stored]) -> dict[str, Any]:
    """The HF-style config that the metadata and the tensors imply."""
    architecture = metadata["general.architecture"]

    def get(key: str, default: Any = None) -> Any:
        value = metadata.get(f"{architecture}.{key}", default)
        if value is None:
            raise ValueError(
                f"{path} lacks the metadata {architecture}.{key}; convert it again with a newer converter."
            )
        return value

    if "token_embd.weight" not in stored:
        raise ValueError(f"{path} has no tensor token_embd.weight; it is no complete language model.")
    heads, width = get("attention.head_count"), get("embedding_length")
    head_dim = get("attention.key_length", width // heads)
    if get("rope.dimension_count", head_dim) != head_dim:
        raise ValueError(f"{path} turns only {get('rope.dimension_count')} of {head_dim} head dimensions; not known.")
    config = {
        "model_type": architecture,
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": round_float(get("attention.layer_norm_rms_epsilon")),
        "rope_theta": round_float(get("rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "max_position_embeddings": get("context_length"),
        "vocab_size": stored["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in stored,
        "attention_bias": "blk.0.attn_q.bias" in stored,
        "mlp_bias": "blk.0.ffn_up.bias" in stored,
    }
    for name in ("bos", "eos"):
        config[f"{name}_token_id"] = metadata.get(f"tokenizer.ggml.{name}_token_id")
    config["rope_scaling"] = _rope_scaling(path, metadata, config, stored.get(ROPE_FREQS))
    return config


def round_float(value: float) -> float:
    """The shortest decimal that is this float32: 1e-06 where the file's 32 bits read 9.99999997e-07 in double."""
    return float(str(np.float32(value)))


def _rope_scaling(
    path: Path, metadata: Mapping[str, Any], config: Mapping[str, Any], freqs: Stored | None
) -> dict[str, Any] | None:
    prefix = f"{config['model_type']}.rope.scaling."
    given = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    kind = given.get("type", "none")
    if freqs is not None:
        return _llama3_scaling(path, config, _read(path, freqs))
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ValueError(f"{path} scales RoPE by {kind!r}; known are linear, yarn and llama3.")
    if "factor" not in given:
        raise ValueError(f"{path} scales RoPE by {kind} without the metadata {prefix}factor; convert it again.")
    scaling = {"rope_type": kind, "factor": round_float(given["factor"])}
    if "yarn_attn_factor" in given:  # llama.cpp multiplies YaRN's own factor by it; HF's replaces that factor
        scaling["attention_factor"] = given["yarn_attn_factor"] * (0.1 * math.log(scaling["factor"]) + 1)
    renamed = {
        "original_context_length": "original_max_position_embeddings",
        "yarn_beta_fast": "beta_fast",
        "yarn_beta_slow": "beta_slow",
    }
    return scaling | {ours: given[theirs] for theirs, ours in renamed.items() if theirs in given}


def _llama3_scaling(path: Path, config: Mapping[str, Any], freqs: np.ndarray) -> dict[str, Any]:
    """Finds the llama3 scaling whose divisors [H/2] a converter left as rope_freqs, its parameters being lost."""
    factor = round_float(freqs.max())
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    positions = np.arange(0, config["head_dim"], 2) / config["head_dim"]
    turns = 8192 / (2 * np.pi * config["rope_theta"] ** positions)  # full turns within the original context
    smooth = np.clip((turns - 1.0) / (4.0 - 1.0), 0, 1)
    if not np.allclose(freqs, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4):
        raise ValueError(f"{path} scales RoPE by a table that is not Llama 3's; use the safetensors checkpoint.")
    return scaling
