"""A trained model as a Hugging Face directory: weights, config, tokenizer, generation config.

    python -m lanpo_jax.export --workdir=RUN [--step=N] --out=DIR            the policy of a checkpoint
    python -m lanpo_jax.export --config=configs/X.py --model=FILE.gguf --out=DIR   a published model in another format

    --dtype=bfloat16     float32, float16 or bfloat16 (default: that of the checkpoint training began with)
    --shard_gb=5         larger models are written in several files with an index

transformers, vLLM and llama.cpp's converter read the result; so does `model.path` of this project.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from lanpo_jax import cli, console, policy, session
from lanpo_jax.models import hf_format, weights
from lanpo_jax.sampling.tokenizer import Tokenizer

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja",
)  # fmt: skip


def define() -> flags.FlagValues:
    """The flags of the command."""
    values = flags.FlagValues()
    policy.define_model(values)
    flags.DEFINE_string("out", None, "folder to write; must not exist or be empty", flag_values=values)
    flags.DEFINE_enum("dtype", None, list(hf_format.DTYPES), "of the weights", flag_values=values)
    flags.DEFINE_float("shard_gb", 5.0, "size of a file at most", lower_bound=1e-6, flag_values=values)
    return values


def main(argv: Sequence[str]) -> None:
    """Exports what the flags name; ends in one sentence where something is wrong with them."""
    f = define()
    cli.parse(f, argv, __doc__)
    cli.prepare(f.distributed)
    with cli.one_sentence():
        run(f)


def run(f: flags.FlagValues) -> None:
    """Writes the directory that the flags ask for."""
    if not f.out:
        raise ValueError("--out is missing; name the folder to write, e.g. --out=exported.")
    folder = pathlib.Path(f.out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--out={folder} exists and is not empty; name another folder.")
    tell = console.Console(quiet=not cli.first())
    c, system, params, _, name = policy.load(f, tell)
    files = write(folder, params, system, c.prompt.template, f.dtype, int(f.shard_gb * 1e9))
    tell.say(f"{name} written to {folder}: {', '.join(files)}.")


def write(
    folder: pathlib.Path,
    params: Mapping[str, Any],
    system: session.Session,
    template: str,
    dtype: str | None,
    shard_bytes: int,
) -> list[str]:
    """Writes parameters with the config and tokenizer of a session; returns the names of the files.

    A chat template of the run's own (`template`, "" for none) takes the place of the model's. The parts of sharded
    parameters are gathered tensor by tensor. A folder is complete if it holds config.json, which is written last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dtype = dtype or _stored_dtype(system)
    places = weights.export_names(params)
    shapes = {name: weights.export_shape(params, place) for name, place in places.items()}
    files = hf_format.write_tensors(
        folder, shapes, lambda name: weights.export_tensor(params, places[name]), dtype, shard_bytes
    )
    files += _write_tokenizer(folder, system, template)
    _write_json(folder / "generation_config.json", _generation_config(system))
    _write_json(folder / "config.json", _config(system, dtype))
    return [*files, "generation_config.json", "config.json"]


def _stored_dtype(system: session.Session) -> str:
    """The dtype that the starting checkpoint says it has, so that what was not trained goes back unchanged."""
    told = system.config.get("torch_dtype") or system.config.get("dtype")
    return told if told in hf_format.DTYPES else np.dtype(system.param_dtype).name


def _config(system: session.Session, dtype: str) -> dict[str, Any]:
    """The model's own config.json, with what a config made by hand or from a GGUF may leave to defaults."""
    network, tokenizer = system.network, system.tokenizer
    known = {
        "architectures": [ARCHITECTURES[system.config["model_type"]]],
        "head_dim": network.head_size,
        "num_key_value_heads": network.kv_heads,
        "rms_norm_eps": network.norm_eps,
        "rope_theta": network.rope_theta,
        "hidden_act": "silu",
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_ids[0],
    }
    own = {key: value for key, value in system.config.items() if value is not None}
    return known | own | {"tie_word_embeddings": network.tied, "torch_dtype": dtype}


def _generation_config(system: session.Session) -> dict[str, Any]:
    """The published one, or the ids that begin, end and fill."""
    if system.source is not None and system.source.generation_config:
        return dict(system.source.generation_config)
    tokenizer = system.tokenizer
    ids = {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": list(tokenizer.eos_ids),
        "pad_token_id": tokenizer.pad_id,
    }
    return {key: value for key, value in ids.items() if value is not None} | {"do_sample": True}


def _write_tokenizer(folder: pathlib.Path, system: session.Session, template: str) -> list[str]:
    """Copies the files of a directory that the model came from, or writes the tokenizer as it was built here."""
    source = system.source.path if system.source is not None and system.source.path.is_dir() else None
    found = [name for name in TOKENIZER_FILES if source is not None and (source / name).exists()]
    for name in found:
        shutil.copyfile(source / name, folder / name)
    if not found:
        name, content = system.tokenizer.vocabulary.file()
        (folder / name).write_bytes(content)
        _write_json(folder / "tokenizer_config.json", _tokenizer_config(system.tokenizer, name))
        found = [name, "tokenizer_config.json"]
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        found = list(dict.fromkeys([*found, "chat_template.jinja"]))
    return found


def _tokenizer_config(tokenizer: Tokenizer, file: str) -> dict[str, Any]:
    fast = file == "tokenizer.json"
    return {
        "tokenizer_class": "PreTrainedTokenizerFast" if fast else "LlamaTokenizer",
        "chat_template": tokenizer.template,
        "add_bos_token": tokenizer.adds_bos,
        "clean_up_tokenization_spaces": False,
        **tokenizer.special_tokens,
    }


def _write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    cli.configs_importable()
    main(sys.argv)
