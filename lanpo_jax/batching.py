"""Graded groups to rows of a fixed shape: the network reads rows, the objective reads completions.

A row holds one or more documents; a document is a prompt, once, and some of its completions side by side (see
models/attention.py for who sees whom). With one completion a row this is the ordinary layout; with more, a prompt is
computed once for its group, and short completions do not pay for the longest one. All shapes are fixed by `Shape`, so
one compiled update serves every step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lanpo_jax.models import attention
from lanpo_jax.types import Completion, Group


class Batch(NamedTuple):
    """Rows for one optimizer step. R rows, L row tokens, M head tokens, n completions a row, T completion tokens.

    The head is read at M places of a row, in order of the completions; `place` says where completion token t's value
    is among them. Objective arrays are indexed by token and are valid where `mask` is 1.
    """

    tokens: np.ndarray  # int32 [R, L]
    positions: np.ndarray  # int32 [R, L]
    segments: np.ndarray  # int32 [R, L]
    source: np.ndarray  # int32 [R, M]: index in the row of the hidden state that predicts the target
    targets: np.ndarray  # int32 [R, M]
    place: np.ndarray  # int32 [R, n, T]: index in M
    mask: np.ndarray  # float32 [R, n, T]
    advantages: np.ndarray  # float32 [R, n]
    truncated: np.ndarray  # bool [R, n]
    sampler_logprobs: np.ndarray  # float32 [R, n, T]
    old_logprobs: np.ndarray  # float32 [R, n, T]
    ref_logprobs: np.ndarray  # float32 [R, n, T]


@dataclasses.dataclass(frozen=True)
class Shape:
    """The fixed sizes of a row."""

    row_tokens: int  # L
    head_tokens: int  # M
    completions: int  # n
    completion_tokens: int  # T

    @classmethod
    def plain(cls, prompt_limit: int, max_new_tokens: int) -> Shape:
        """One prompt and one completion a row."""
        return cls(prompt_limit + max_new_tokens, max_new_tokens, 1, max_new_tokens)

    @classmethod
    def packed(cls, row_tokens: int, prompt_limit: int, max_new_tokens: int) -> Shape:
        """As many documents as fit. Raises ValueError where one prompt with one completion would not."""
        if row_tokens < prompt_limit + max_new_tokens:
            raise ValueError(
                f"learner.row_tokens={row_tokens} cannot hold data.prompt_limit={prompt_limit} and "
                f"rollout.max_new_tokens={max_new_tokens}; raise the first or lower the others."
            )
        # The head costs as much as several layers: most rows hold a fifth or more of prompt, which never meets it.
        head_tokens = max(int(row_tokens * 0.8) // 8 * 8, max_new_tokens)
        return cls(row_tokens, head_tokens, max(1, row_tokens // 8), max_new_tokens)


@dataclasses.dataclass(frozen=True)
class Document:
    """A prompt with those of its completions that share a row."""

    prompt: np.ndarray
    completions: tuple[Completion, ...]
    advantages: np.ndarray

    @property
    def head_tokens(self) -> int:
        return sum(len(c.tokens) for c in self.completions)

    @property
    def row_tokens(self) -> int:
        return len(self.prompt) + self.head_tokens


def documents(groups: Sequence[Group], advantages: Sequence[np.ndarray], shape: Shape) -> list[Document]:
    """Cuts groups that would not fit one row into several documents; each repeats the prompt."""
    found = []
    for group, values in zip(groups, advantages):
        prompt, completions = group.generation.prompt_tokens, group.generation.completions
        start = 0
        for end in range(1, len(completions) + 1):
            more = Document(prompt, completions[start : end + 1], values[start : end + 1])
            if end == len(completions) or not _fits((), more, shape):
                found.append(Document(prompt, completions[start:end], values[start:end]))
                start = end
    return found


def arrange(found: Sequence[Document], shape: Shape) -> list[list[Document]]:
    """Documents to rows, longest first into the first row with room."""
    rows: list[list[Document]] = []
    for document in sorted(found, key=lambda d: -d.row_tokens):
        if not _fits((), document, shape):
            raise ValueError(
                f"A prompt of {len(document.prompt)} tokens with a completion of {document.head_tokens} does not fit "
                f"a row of {shape.row_tokens}; raise learner.row_tokens or lower data.prompt_limit."
            )
        for row in rows:
            if _fits(row, document, shape):
                row.append(document)
                break
        else:
            rows.append([document])
    return rows


def _fits(row: Sequence[Document], more: Document, shape: Shape) -> bool:
    """Whether a row has room. In the plain layout (one completion a row) prompts are never joined either."""
    together = [*row, more]
    return (
        sum(d.row_tokens for d in together) <= shape.row_tokens
        and sum(d.head_tokens for d in together) <= shape.head_tokens
        and sum(len(d.completions) for d in together) <= shape.completions
    )


def batch(rows: Sequence[Sequence[Document]], shape: Shape, count: int) -> Batch:
    """Rows to arrays, filled up with empty rows to `count`. Raises ValueError where there are more."""
    if len(rows) > count:
        raise ValueError(f"{len(rows)} rows are more than the {count} that this update holds.")
    out = empty(shape, count)
    for r, row in enumerate(rows):
        at = head = slot = 0
        for d, document in enumerate(row):
            size, base = len(document.prompt), d * attention.DOCUMENT
            _write(out, r, at, document.prompt, 0, base + attention.PROMPT)
            last_prompt, at = at + size - 1, at + size
            for k, (completion, advantage) in enumerate(zip(document.completions, document.advantages)):
                n = len(completion.tokens)
                _write(out, r, at, completion.tokens, size, base + attention.FIRST_COMPLETION + k)
                out.source[r, head : head + n] = np.arange(at - 1, at - 1 + n)
                out.source[r, head] = last_prompt
                out.targets[r, head : head + n] = completion.tokens
                out.place[r, slot, :n] = np.arange(head, head + n)
                out.mask[r, slot, :n] = 1.0
                out.advantages[r, slot] = advantage
                out.truncated[r, slot] = completion.truncated
                out.sampler_logprobs[r, slot, :n] = completion.logprobs
                at, head, slot = at + n, head + n, slot + 1
    return out


def _write(out: Batch, r: int, at: int, tokens: np.ndarray, position: int, segment: int) -> None:
    """Puts a run of tokens into a row."""
    n = len(tokens)
    out.tokens[r, at : at + n] = tokens
    out.positions[r, at : at + n] = np.arange(position, position + n)
    out.segments[r, at : at + n] = segment


def empty(shape: Shape, count: int) -> Batch:
    """`count` rows of nothing."""
    row = (count, shape.row_tokens)
    head = (count, shape.head_tokens)
    slots = (count, shape.completions)
    tokens = (*slots, shape.completion_tokens)
    return Batch(
        tokens=np.zeros(row, np.int32),
        positions=np.zeros(row, np.int32),
        segments=np.full(row, attention.PADDING, np.int32),
        source=np.zeros(head, np.int32),
        targets=np.zeros(head, np.int32),
        place=np.zeros(tokens, np.int32),
        mask=np.zeros(tokens, np.float32),
        advantages=np.zeros(slots, np.float32),
        truncated=np.zeros(slots, bool),
        sampler_logprobs=np.zeros(tokens, np.float32),
        old_logprobs=np.zeros(tokens, np.float32),
        ref_logprobs=np.zeros(tokens, np.float32),
    )


def mini_batches(groups: Sequence[Group], parts: int) -> list[list[int]]:
    """Indices of whole groups for each of `parts` updates, as even as can be, in order."""
    return [part.tolist() for part in np.array_split(np.arange(len(groups)), min(parts, len(groups)))]


def padding_share(made: Batch) -> float:
    """The share of row tokens that are padding, among rows that hold anything."""
    used = made.segments[np.any(made.segments != attention.PADDING, axis=1)]
    return float(np.mean(used == attention.PADDING)) if used.size else 0.0
