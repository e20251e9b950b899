"""Exported directories: every tensor byte for byte, config and tokenizer, what cannot be written in one sentence."""

import json
import pathlib
import sys
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from lanpo_jax import cli, export
from lanpo_jax.models import hf_format, weights
from lanpo_jax.sampling import tokenizer as tokenizer_lib
from tests.models.test_weights import FORMS, raw

GOLDEN = pathlib.Path(__file__).parent / "golden"


def flags(*arguments):
    values, argv = export.define(), ["export", *map(str, arguments)]
    with mock.patch.object(sys, "argv", argv):  # where config_flags looks for --config.a.b=value
        cli.parse(values, argv)
    return values


@pytest.fixture
def published(tmp_path):
    """A golden checkpoint with a tokenizer: the directory, as it would be downloaded."""

    def make(form):
        folder = tmp_path / "published"
        folder.mkdir()
        for file in (GOLDEN / "models" / form).iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
        tokenizer_lib.train_sentencepiece(
            ["1+2=3 the answer is four"] * 9, folder / "tokenizer.model", vocab, model_type="char", byte_fallback=False
        )
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
        return folder

    return make


def run(source, out, *more):
    sizes = "--config.data.prompt_limit=32", "--config.rollout.max_new_tokens=16"  # the model has 64 positions
    export.run(flags("--config=configs/qwen0_5b.py", *sizes, f"--model={source}", f"--out={out}", *more))


@pytest.mark.parametrize("form", FORMS)
def test_what_was_read_is_written_byte_for_byte(published, form, tmp_path):
    source, out = published(form), tmp_path / "out"
    run(source, out, "--shard_gb=0.00002")  # 20 kB: several files
    index = json.loads((out / hf_format.INDEX).read_text())
    written = {k: v for file in out.glob("*.safetensors") for k, v in safetensors.numpy.load_file(file).items()}
    expected = raw(form)
    assert set(written) == set(expected) == set(index["weight_map"])
    assert len(set(index["weight_map"].values())) > 1
    for name, value in expected.items():
        assert written[name].dtype == value.dtype and written[name].tobytes() == value.tobytes(), name
    assert index["metadata"]["total_size"] == sum(v.nbytes for v in expected.values())
    ours, theirs = (json.loads((f / "config.json").read_text()) for f in (out, source))
    assert {k: v for k, v in theirs.items() if v is not None and "dtype" not in k}.items() <= ours.items()
    assert ours["architectures"][0].lower().startswith(ours["model_type"])
    for name in ("tokenizer.model", "tokenizer_config.json"):
        assert (out / name).read_bytes() == (source / name).read_bytes()


def test_an_exported_model_is_a_model_to_start_from(published, tmp_path):
    source = published("qwen2")
    run(source, tmp_path / "once")
    run(tmp_path / "once", tmp_path / "twice")
    assert (tmp_path / "once" / hf_format.SINGLE).read_bytes() == (tmp_path / "twice" / hf_format.SINGLE).read_bytes()
    opened = weights.open_checkpoint(tmp_path / "twice")
    assert set(opened.shapes) == set(raw("qwen2")) and tokenizer_lib.load(opened).eos_ids == (2,)


def test_another_dtype_by_option(published, tmp_path):
    run(published("llama_tied"), tmp_path / "out", "--dtype=bfloat16")
    written = safetensors.numpy.load_file(tmp_path / "out" / hf_format.SINGLE)
    for name, value in raw("llama_tied").items():
        np.testing.assert_array_equal(written[name], value.astype(ml_dtypes.bfloat16))
    assert "lm_head.weight" not in written
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16" and config["tie_word_embeddings"] is True


def test_a_tokenizer_that_was_built_here_is_written(tmp_path):
    """Both kinds come back the same from the files written for a GGUF or a model from scratch."""
    bpe = tokenizer_lib.load(_byte_level(tmp_path))
    pieces = tokenizer_lib.load(
        tokenizer_lib.train_sentencepiece(["a b c 1+2=3"] * 9, tmp_path / "own" / "own.model", 30, "char", False)
    )
    for number, tokenizer in enumerate((bpe, pieces)):
        folder = tmp_path / f"exported{number}"
        folder.mkdir()
        name, content = tokenizer.vocabulary.file()
        (folder / name).write_bytes(content)
        export._write_json(folder / "tokenizer_config.json", export._tokenizer_config(tokenizer, name))
        export._write_json(folder / "generation_config.json", {"eos_token_id": list(tokenizer.eos_ids)})
        again = tokenizer_lib.load(folder)
        messages = [{"role": "user", "content": "a b c 1+2=3"}]
        assert again.render(messages) == tokenizer.render(messages)
        assert again.eos_ids == tokenizer.eos_ids and again.template == tokenizer.template


def _byte_level(folder):
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(special_tokens=["<|im_start|>", "<|im_end|>"], vocab_size=300)
    made.train_from_iterator(["a b c 1+2=3 a b a b"] * 9, trainer)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return folder / "tokenizer.json"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=configs/qwen0_5b.py", "--model=x"], "--out is missing"),
        (["--out=fresh"], "There is no model"),
        (["--config=configs/qwen0_5b.py", "--model=x", "--workdir=y", "--out=fresh"], "name two models"),
        (["--config=configs/tiny.py", "--out=fresh"], "random weights"),
        (["--config=configs/qwen0_5b.py", "--model=nowhere", "--out=fresh"], "no model 'nowhere'"),
        (["--workdir=nowhere", "--out=fresh"], "no checkpoint"),
        (["--workdir=x", "--out=tests"], "not empty"),
    ],
)
def test_errors(arguments, message, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        export.run(flags(*(a.replace("fresh", str(tmp_path / "fresh")) for a in arguments)))
