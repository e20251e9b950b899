"""Where a tokenizer and its conventions are found: checkpoint directories, single files, GGUF metadata."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from sentencepiece import SentencePieceProcessor

from lanpo_jax.models import published, weights
from lanpo_jax.sampling import vocabularies

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclasses.dataclass(frozen=True)
class Source:
    """A vocabulary and what its files say about using it."""

    name: str  # for messages
    vocabulary: vocabularies.Vocabulary
    special_tokens: Mapping[str, str]  # bos_token, eos_token, ... -> the token's text
    eos_ids: tuple[int, ...]
    adds_bos: bool
    template: str | None


def find(source: str | Path | published.Checkpoint) -> Source:
    """Reads the tokenizer of a checkpoint (path or opened), a tokenizer.json or a SentencePiece model.

    Raises FileNotFoundError or ValueError in one sentence.
    """
    if isinstance(source, published.Checkpoint):
        return _from_gguf(source) if source.metadata else _from_directory(source.path)
    path = Path(source).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"There is no tokenizer at {path}.")
    if path.suffix == ".gguf":
        return _from_gguf(weights.open_checkpoint(path))
    return _from_directory(path) if path.is_dir() else _from_file(path)


def _from_directory(folder: Path) -> Source:
    candidates = [folder / "tokenizer.json", folder / "tokenizer.model", *sorted(folder.glob("*.model"))]
    path = next((p for p in candidates if p.exists()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has neither tokenizer.json nor a SentencePiece .model; add one of them.")
    return _from_file(path)


def _from_file(path: Path) -> Source:
    """A tokenizer.json or .model with whatever configuration files lie beside it."""
    published.refuse_pointer(path)
    read = {name: _json(path.parent / f"{name}.json") for name in ("generation_config", "config", "tokenizer_config")}
    own = read["tokenizer_config"]
    named = {name: _text(own.get(name)) for name in SPECIAL_NAMES}
    if path.suffix == ".model":
        model = vocabularies.sentencepiece_file(path)
        vocabulary = vocabularies.from_sentencepiece(model)
        named = _sentencepiece_names(model) | {name: text for name, text in named.items() if text}
    else:
        tokenizer = vocabularies.tokenizer_file(path)
        _mark_special(tokenizer, [text for text in named.values() if text])
        vocabulary = vocabularies.from_tokenizer(tokenizer)
    special = {name: text for name, text in named.items() if text in vocabulary.special}
    configured = read["generation_config"].get("eos_token_id", read["config"].get("eos_token_id"))
    adds_bos = own.get("add_bos_token")
    return Source(
        name=str(path),
        vocabulary=vocabulary,
        special_tokens=special,
        eos_ids=_unique(configured, vocabulary.special.get(special.get("eos_token"))),
        adds_bos=vocabulary.adds_bos if adds_bos is None else bool(adds_bos),
        template=_template(path.parent, own),
    )


def _from_gguf(checkpoint: published.Checkpoint) -> Source:
    metadata = checkpoint.metadata
    vocabulary = vocabularies.from_gguf(metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = {
        name: metadata.get(f"tokenizer.ggml.{key}_token_id")
        for name, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items()
    }
    ends = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eot", "eom")]  # end of turn, of message
    return Source(
        name=str(checkpoint.path),
        vocabulary=vocabulary,
        special_tokens={f"{name}_token": tokens[i] for name, i in ids.items() if i is not None and i < len(tokens)},
        eos_ids=_unique(checkpoint.generation_config.get("eos_token_id"), ids["eos"], *ends),
        adds_bos=vocabulary.adds_bos,
        template=metadata.get("tokenizer.chat_template"),
    )


def _json(path: Path) -> dict[str, Any]:
    return published.read_json(path) if path.exists() else {}


def _text(token: Any) -> str | None:
    """A token of tokenizer_config.json: a string, or a dict with its text as `content`."""
    return token.get("content") if isinstance(token, dict) else token


def _mark_special(tokenizer: tokenizers.Tokenizer, texts: list[str]) -> None:
    """Makes the named tokens special where a tokenizer.json has them as ordinary entries."""
    special = {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}
    for text in texts:
        if text not in special and tokenizer.token_to_id(text) is not None:
            tokenizer.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False)])


def _sentencepiece_names(model: SentencePieceProcessor) -> dict[str, str]:
    ids = {"bos_token": model.bos_id(), "eos_token": model.eos_id(), "pad_token": model.pad_id()}
    return {name: model.id_to_piece(i) for name, i in ids.items() if i >= 0}


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, or tokenizer_config.json's entry: a text, or several of which the 'default' one is taken."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((t["template"] for t in template if t.get("name") == "default"), None)
    return template


def _unique(*ids: Any) -> tuple[int, ...]:
    """The given ids (single, lists or None) in order, each once."""
    flat = [i for entry in ids for i in (entry if isinstance(entry, list) else [entry]) if i is not None]
    return tuple(dict.fromkeys(int(i) for i in flat))
