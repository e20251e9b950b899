"""Text <-> token ids, conversations -> prompt ids, for the tokenizers that published models carry."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from lanpo_jax.models import published
from lanpo_jax.sampling import chat_template, tokenizer_sources, vocabularies


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A vocabulary with its model's conventions. Control tokens come from templates, never from user text."""

    vocabulary: vocabularies.Vocabulary
    template: str  # jinja source of the chat template
    special_tokens: Mapping[str, str]  # bos_token, eos_token, ... as templates name them
    bos_id: int | None
    eos_ids: tuple[int, ...]  # each of these ends an answer; not empty
    pad_id: int  # a safe filler: masks are made from lengths, never from ids
    adds_bos: bool  # the model expects `bos_id` before everything else
    options: Mapping[str, Any]  # the template's own switches, e.g. enable_thinking

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return self.vocabulary.size

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """Token ids of a text, nothing added. Control tokens spelled in it stay plain text unless allowed.

        Tokens that were added to a vocabulary without being marked special (Qwen's `<think>`) are ordinary words.
        """
        if allow_special or not self._control.search(text):
            return self.vocabulary.encode(text)
        ids = self.vocabulary.encode_text(text)
        if set(self.vocabulary.special.values()).isdisjoint(ids):
            return ids
        # A vocabulary may reach a control token by merging plain text; a cut after its first letter prevents that.
        encode = self.vocabulary.encode_text
        cuts = [0, *(match.start() + 1 for match in self._control.finditer(text)), len(text)]
        parts = [vocabularies.encode_after(encode, text[a:b], inside=a > 0) for a, b in itertools.pairwise(cuts)]
        return list(itertools.chain.from_iterable(parts))

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of token ids; ids beyond the vocabulary (a padded embedding has them) give nothing."""
        return self.vocabulary.decode([int(i) for i in ids if 0 <= i < self.vocab_size], skip_special)

    def render_text(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as the model's chat template writes it. Raises ValueError if the template refuses it."""
        return chat_template.render(self.template, messages, add_generation_prompt, self.special_tokens, self.options)

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> list[int]:
        """Prompt ids of a conversation, with exactly one beginning-of-sequence token if the model expects one.

        Control tokens of the template are recognised, those spelled inside a message are encoded as plain text.
        """
        text = self.render_text(chat_template.mark(messages, self._control), add_generation_prompt)
        ids: list[int] = []
        for n, (piece, marked) in enumerate(chat_template.split_marks(text, self._control)):
            encode = self.encode if marked else self.vocabulary.encode
            ids += vocabularies.encode_after(encode, piece, n > 0)
        if self.bos_id is None or not self.adds_bos:
            return ids
        written = next((n for n, i in enumerate(ids) if i != self.bos_id), len(ids))
        return [self.bos_id, *ids[written:]]

    @functools.cached_property
    def _control(self) -> re.Pattern:
        return chat_template.any_of(self.vocabulary.special)


def load(
    source: str | Path | published.Checkpoint,
    template: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Tokenizer:
    """Loads the tokenizer of a checkpoint (path or opened), a tokenizer.json or a SentencePiece model.

    `template` replaces the model's chat template; a model without one gets the plain form of `chat_template.PLAIN`.
    Raises FileNotFoundError or ValueError in one sentence.
    """
    found = tokenizer_sources.find(source)
    if not found.eos_ids:
        raise ValueError(f"{found.name} names no end-of-sequence token; set eos_token_id in a generation_config.json.")
    ids = {name: found.vocabulary.special.get(text) for name, text in found.special_tokens.items()}
    pad = ids.get("pad_token")
    return Tokenizer(
        vocabulary=found.vocabulary,
        template=template or found.template or chat_template.PLAIN,
        special_tokens=found.special_tokens,
        bos_id=ids.get("bos_token"),
        eos_ids=found.eos_ids,
        pad_id=found.eos_ids[0] if pad is None else pad,
        adds_bos=found.adds_bos,
        options=options or {},
    )


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raises ValueError unless every token id has a row of the embedding [V, D]; models may have more rows."""
    largest = max(tokenizer.vocab_size - 1, *tokenizer.eos_ids)
    if largest >= vocab_size:
        raise ValueError(
            f"The tokenizer has ids up to {largest} but the model's embedding only {vocab_size} rows; "
            "use the tokenizer that was published with the model."
        )


def train_sentencepiece(
    lines: Iterable[str], path: str | Path, vocab_size: int, model_type: str = "bpe", byte_fallback: bool = True
) -> Path:
    """Trains a SentencePiece model (`model_type` bpe or char) on texts, the same file for the same texts.

    Digits are single tokens and text comes back as it was, spaces and newlines included. Ids: pad 0, bos 1, eos 2,
    unknown 3. `byte_fallback` spends 256 ids so that no text is unknown. `vocab_size` is an upper bound.
    Raises ValueError if it is too small for the characters of the texts.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            byte_fallback=byte_fallback,
            hard_vocab_limit=False,
            character_coverage=1.0,
            split_digits=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            user_defined_symbols=["\n"],
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=3,
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(f"No {model_type} vocabulary of {vocab_size} could be trained: {reason}.") from error
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(model.getvalue())
    os.replace(temporary, path)
    return path
