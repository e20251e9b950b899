"""Three sources of a vocabulary behind four functions: tokenizer.json, SentencePiece, and a GGUF file's metadata."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from lanpo_jax.sampling import chat_template


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Text <-> ids. `special` are the control tokens: only a template may write them, decoding can leave them out."""

    size: int  # one more than the largest id
    special: Mapping[str, int]
    encode: Callable[[str], list[int]]  # control tokens in the text are recognised
    encode_text: Callable[[str], list[int]]  # they are spelled out like any other text
    decode: Callable[[Sequence[int], bool], str]  # (ids, skip_special)
    adds_bos: bool  # whether the source puts a beginning-of-sequence token first on its own
    file: Callable[[], tuple[str, bytes]]  # name and content of the file that holds it: tokenizer.json or .model


def from_tokenizer(tokenizer: tokenizers.Tokenizer) -> Vocabulary:
    """A vocabulary over Hugging Face's `tokenizers` library. Its truncation and padding are switched off."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    added = tokenizer.get_added_tokens_decoder()
    special = {token.content: i for i, token in added.items() if token.special}

    @functools.cache
    def spelling() -> tokenizers.Tokenizer:
        copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        copy.encode_special_tokens = True
        return copy

    def encode_text(text: str) -> list[int]:
        if not any(token in text for token in special):  # the copy takes a second to make and is seldom needed
            return encode(text)
        return spelling().encode(text, add_special_tokens=False).ids

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    bare, full = encode("a"), tokenizer.encode("a", add_special_tokens=True).ids
    return Vocabulary(
        size=max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
        special=special,
        encode=encode,
        encode_text=encode_text,
        decode=lambda ids, skip_special: tokenizer.decode(list(ids), skip_special_tokens=skip_special),
        adds_bos=len(full) > len(bare) and full[:1] != bare[:1],
        file=lambda: ("tokenizer.json", tokenizer.to_str(pretty=True).encode()),
    )


def tokenizer_file(path: Path) -> tokenizers.Tokenizer:
    """Reads a tokenizer.json. Raises ValueError if it is cut off or of an unknown kind."""
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path} is no tokenizer.json that can be read ({error}); download it again.") from error


def from_sentencepiece(model: SentencePieceProcessor) -> Vocabulary:
    """A vocabulary over a SentencePiece model, whose control pieces are matched in `encode` alone."""
    size = model.get_piece_size()
    special = {model.id_to_piece(i): i for i in range(size) if model.is_control(i)}
    pattern = chat_template.any_of(special)

    def encode(text: str) -> list[int]:
        ids, at = [], 0
        for match in pattern.finditer(text):
            ids += encode_after(model.encode, text[at : match.start()], at > 0) + [special[match[0]]]
            at = match.end()
        return ids + encode_after(model.encode, text[at:], at > 0)

    def decode(ids: Sequence[int], skip_special: bool) -> str:
        runs = itertools.groupby((i for i in map(int, ids) if 0 <= i < size), model.is_control)
        if skip_special:
            return model.decode([i for control, run in runs if not control for i in run])
        return "".join(
            "".join(map(model.id_to_piece, run)) if control else model.decode(list(run)) for control, run in runs
        )

    file = "tokenizer.model", model.serialized_model_proto()
    return Vocabulary(size, special, encode, model.encode, decode, adds_bos=model.bos_id() >= 0, file=lambda: file)


def encode_after(encode: Callable[[str], list[int]], text: str, inside: bool = True) -> list[int]:
    """Encodes a piece that stands `inside` a sequence: without the space some vocabularies put at the start of text.

    The piece is encoded behind a newline, whose ids are then taken off; if they merged with it, it is encoded alone.
    """
    if not text:
        return []
    newline = encode("\n") if inside else []
    ids = encode("\n" + text) if inside else []
    return ids[len(newline) :] if inside and ids[: len(newline)] == newline else encode(text)


def sentencepiece_file(path: Path) -> SentencePieceProcessor:
    """Reads a SentencePiece .model. Raises ValueError if it is cut off or none."""
    try:
        return SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        raise ValueError(f"{path} is no SentencePiece model that can be read ({error}).") from error


# llama.cpp's token types, which are SentencePiece's
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def from_gguf(metadata: Mapping[str, Any]) -> Vocabulary:
    """Builds the tokenizer that a GGUF file's metadata describe. Raises ValueError for unknown kinds."""
    kind = metadata.get("tokenizer.ggml.model")
    if "tokenizer.ggml.tokens" not in metadata:
        raise ValueError("The GGUF file carries no tokenizer; pass a tokenizer.json or SentencePiece model beside it.")
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"The GGUF file's tokenizer is of the kind {kind!r}; known are 'gpt2' and 'llama'.")
    for key in ("merges",) if kind == "gpt2" else ("scores", "token_type"):
        if f"tokenizer.ggml.{key}" not in metadata:
            raise ValueError(f"The GGUF file lacks the metadata tokenizer.ggml.{key}; convert the model again.")
    if kind == "gpt2":
        vocabulary, adds_bos = from_tokenizer(_byte_level(metadata)), metadata.get("tokenizer.ggml.pre") in LLAMA3
    else:
        model = SentencePieceProcessor(model_proto=_sentencepiece_proto(metadata))
        vocabulary, adds_bos = from_sentencepiece(model), True
    return dataclasses.replace(vocabulary, adds_bos=metadata.get("tokenizer.ggml.add_bos_token", adds_bos))


def _byte_level(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Byte-level BPE, as each family's published tokenizer.json has it."""
    family = metadata.get("tokenizer.ggml.pre", "default")
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    try:
        bpe = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=family in LLAMA3)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(
            f"The GGUF file's tokenizer does not hold together ({error}); convert the model again."
        ) from error
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.pre_tokenizer = _pre_tokenizer(family)
    tokenizer.decoder = decoders.ByteLevel()
    if family in QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        chosen = [t for t, is_kind in zip(tokens, types) if is_kind == kind]
        added = [tokenizers.AddedToken(t, special=special, normalized=False) for t in chosen]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    return tokenizer


GPT2 = ("default", "gpt-2", "gpt2", "olmo", "mpt")
DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
QWEN2 = ("qwen2", "deepseek-r1-qwen")
LLAMA3 = ("llama-bpe", "llama3", "llama-v3")


def _pre_tokenizer(family: str) -> pre_tokenizers.PreTokenizer:
    """How each family cuts text before merging; the names are llama.cpp's."""
    if family in GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if family in DIGITS:
        parts = [pre_tokenizers.Digits(individual_digits=True)]
        return pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    if family in QWEN2 + LLAMA3:
        pattern = Regex(_CL100K % ("" if family in QWEN2 else "{1,3}"))
        parts = [pre_tokenizers.Split(pattern, behavior="isolated")]
        return pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    known = ", ".join(GPT2 + DIGITS + QWEN2 + LLAMA3)
    raise ValueError(f"The GGUF file's pre-tokenizer is {family!r}; known are {known}.")


def _sentencepiece_proto(metadata: Mapping[str, Any]) -> bytes:
    """The SentencePiece model that a converter took apart into tokens, scores and types."""
    proto = sentencepiece_model_pb2.ModelProto()
    proto.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.BPE
    proto.trainer_spec.byte_fallback = True
    tokens = metadata["tokenizer.ggml.tokens"]
    for name, field in {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}.items():
        if (i := metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            setattr(proto.trainer_spec, f"{field}_piece", tokens[i])
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    proto.normalizer_spec.remove_extra_whitespaces = metadata.get("tokenizer.ggml.remove_extra_whitespaces", False)
    proto.normalizer_spec.escape_whitespaces = True
    keys = ("tokens", "scores", "token_type")
    for piece, score, kind in zip(*(metadata[f"tokenizer.ggml.{key}"] for key in keys), strict=True):
        proto.pieces.add(piece=piece, score=score, type=kind)
    return proto.SerializeToString()
