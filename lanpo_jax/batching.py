"""Graded groups to rows of a fixed shape: the network reads rows, the objective reads completions.

A row holds one or more documents; a document is a prompt, once, and some of its completions side by side (see
models/attention.py for who sees whom). With one completion a row this is the ordinary layout; with more, a prompt is
computed once for its group, and short completions do not pay for the longest one. All shapes are fixed by `Shape`, so
one compiled update serves every step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lanpo_jax.models import attention
from lanpo_jax.types import Group


class Batch(NamedTuple):
    """Rows for one optimizer step. R rows, L row tokens, M head tokens, n completions a row, T completion tokens.

    The head is read at M places of a row, in order of the completions; `place` says where completion token t's value
    is among them. What an objective reads beside the log-probabilities is in `values`, under the field names of
    objectives.tokens.Batch, valid where `mask` is 1.
    """

    tokens: np.ndarray  # int32 [R, L]
    positions: np.ndarray  # int32 [R, L]
    segments: np.ndarray  # int32 [R, L]
    source: np.ndarray  # int32 [R, M]: index in the row of the hidden state that predicts the target
    targets: np.ndarray  # int32 [R, M]
    place: np.ndarray  # int32 [R, n, T]: index in M
    mask: np.ndarray  # float32 [R, n, T]
    owner: np.ndarray  # int32 [R, n]: number of the completion in its step, -1 for none
    values: dict[str, np.ndarray]  # name -> [R, n] or [R, n, T]


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
        head_tokens = max(int(row_tokens * 0.8) // 8 * 8, row_tokens - prompt_limit, max_new_tokens)
        # Every place for a completion costs max_new_tokens entries in what the objective reads: as many as there are
        # where completions have an average length of 1/16 of the limit.
        completions = max(1, min(row_tokens // 8, 16 * row_tokens // max_new_tokens))
        return cls(row_tokens, head_tokens, completions, max_new_tokens)


@dataclasses.dataclass(frozen=True)
class Document:
    """A prompt with those of its completions that share a row."""

    prompt: np.ndarray
    completions: tuple[np.ndarray, ...]
    owners: range  # their numbers in the step

    @property
    def head_tokens(self) -> int:
        return sum(map(len, self.completions))

    @property
    def row_tokens(self) -> int:
        return len(self.prompt) + self.head_tokens

    def part(self, start: int, end: int) -> Document:
        return Document(self.prompt, self.completions[start:end], self.owners[start:end])


def documents(
    groups: Sequence[Group], shape: Shape, chosen: Sequence[int] | None = None, whole: bool = False
) -> list[Document]:
    """One document per group, for all groups or the `chosen` ones; completions are numbered over all groups.

    A group that would not fit one row is cut into several documents, each repeating the prompt; with `whole` that is
    refused (some objectives compare the completions of a group with each other).
    """
    ends = np.cumsum([len(g.generation.completions) for g in groups])
    found = []
    for i in range(len(groups)) if chosen is None else chosen:
        completions = tuple(c.tokens for c in groups[i].generation.completions)
        document = Document(groups[i].trained_prompt, completions, range(ends[i] - len(completions), ends[i]))
        parts = _cut(document, shape)
        if whole and len(parts) > 1:
            raise ValueError(
                f"A group of {len(completions)} completions and {document.row_tokens} tokens does not fit one row of "
                f"{shape.row_tokens}, and this objective needs it whole; raise learner.row_tokens."
            )
        found += parts
    return found


def _cut(document: Document, shape: Shape) -> list[Document]:
    parts, start, count = [], 0, len(document.completions)
    for end in range(1, count + 1):
        if end == count or not _fits((), document.part(start, end + 1), shape):
            parts.append(document.part(start, end))
            start = end
    return parts


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


def batch(
    rows: Sequence[Sequence[Document]], shape: Shape, count: int, tables: Mapping[str, np.ndarray] | None = None
) -> Batch:
    """Rows to arrays, filled up with empty rows to `count`; `tables` [B] or [B, T] hold values by completion number.

    Raises ValueError where there are more rows than `count`.
    """
    if len(rows) > count:
        raise ValueError(f"{len(rows)} rows are more than the {count} that this update holds.")
    out = _empty(shape, count)
    for r, row in enumerate(rows):
        at = head = slot = 0
        for d, document in enumerate(row):
            size, base = len(document.prompt), d * attention.DOCUMENT
            _write(out, r, at, document.prompt, 0, base + attention.PROMPT)
            last_prompt, at = at + size - 1, at + size
            for k, (tokens, owner) in enumerate(zip(document.completions, document.owners)):
                n = len(tokens)
                _write(out, r, at, tokens, size, base + attention.FIRST_COMPLETION + k)
                out.source[r, head : head + n] = np.arange(at - 1, at - 1 + n)
                out.source[r, head] = last_prompt
                out.targets[r, head : head + n] = tokens
                out.place[r, slot, :n] = np.arange(head, head + n)
                out.mask[r, slot, :n] = 1.0
                out.owner[r, slot] = owner
                at, head, slot = at + n, head + n, slot + 1
    out.values.update({name: _spread(table, out.owner) for name, table in (tables or {}).items()})
    return out


def tables(groups: Sequence[Group], tokens: int) -> dict[str, np.ndarray]:
    """What is known of all completions of a step: mask, sampler_logprobs [B, T], truncated, off_policy, group [B]."""
    completions = [c for g in groups for c in g.generation.completions]
    sizes = [len(g.generation.completions) for g in groups]
    found = {
        "mask": np.zeros((len(completions), tokens), np.float32),
        "sampler_logprobs": np.zeros((len(completions), tokens), np.float32),
        "truncated": np.array([c.truncated for c in completions]),
        "off_policy": np.repeat([g.off_policy for g in groups], sizes).astype(bool),
        "group": np.repeat(np.arange(len(groups)), sizes).astype(np.int32),
    }
    for i, completion in enumerate(completions):
        found["mask"][i, : len(completion.tokens)] = 1.0
        found["sampler_logprobs"][i, : len(completion.tokens)] = completion.logprobs
    return found


def _spread(table: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Values by completion number to their places in rows; 0 where no completion stands (-1 for whole numbers)."""
    table = table.astype(np.float32) if table.dtype == np.float64 else table
    nothing = np.full((1, *table.shape[1:]), -1 if table.dtype == np.int32 else 0, table.dtype)
    return np.concatenate([table, nothing])[owner]


def collect(made: Batch, values: np.ndarray, count: int) -> np.ndarray:
    """The inverse of spreading: values [R, n, T] of rows to a table [B, T] of `count` completions."""
    table = np.zeros((count, values.shape[-1]), values.dtype)
    there = made.owner >= 0
    table[made.owner[there]] = values[there]
    return table


def _write(out: Batch, r: int, at: int, tokens: np.ndarray, position: int, segment: int) -> None:
    """Puts a run of tokens into a row."""
    n = len(tokens)
    out.tokens[r, at : at + n] = tokens
    out.positions[r, at : at + n] = np.arange(position, position + n)
    out.segments[r, at : at + n] = segment


def _empty(shape: Shape, count: int) -> Batch:
    """`count` rows of nothing."""
    row, head = (count, shape.row_tokens), (count, shape.head_tokens)
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
        owner=np.full(slots, -1, np.int32),
        values={},
    )


def families(groups: Sequence[Group]) -> list[list[int]]:
    """The numbers of the groups of each family, in order of their first."""
    found: dict[str | int, list[int]] = {}
    for i, group in enumerate(groups):
        found.setdefault(group.family or i, []).append(i)
    return list(found.values())


def mini_batches(found: Sequence[Sequence[int]], parts: int) -> list[list[int]]:
    """The numbers of the groups of whole families for each of `parts` updates, as even as can be, in order."""
    cut = np.array_split(np.arange(len(found)), min(parts, len(found)))
    return [[i for number in part for i in found[number]] for part in cut]


@dataclasses.dataclass(frozen=True)
class Placement:
    """A step's completions in a matrix [P, G] whose rows share statistics: a family each, or a group not shared.

    G is the size of the largest family; where fewer stand in a row, places are missing.
    """

    index: np.ndarray  # int [P, G]: number of the completion in its step, -1 where none stands
    rows: np.ndarray  # int [groups]: row of each group

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Placement:
        ends = np.cumsum([len(g.generation.completions) for g in groups])
        members = [range(end - len(g.generation.completions), end) for g, end in zip(groups, ends, strict=True)]
        made, rows = [], np.zeros(len(groups), int)
        for family in families(groups):
            together = [i for i in family if groups[i].shared]
            for part in ([together] if together else []) + [[i] for i in family if not groups[i].shared]:
                rows[part] = len(made)
                made.append([k for i in part for k in members[i]])
        width = max((sum(len(members[i]) for i in family) for family in families(groups)), default=0)
        return cls(np.array([row + [-1] * (width - len(row)) for row in made], int).reshape(-1, width), rows)

    def gather(self, table: np.ndarray, missing: float = 0) -> np.ndarray:
        """[B, ..] by completion number -> [P, G, ..], with `missing` where none stands."""
        return np.concatenate([table, np.full((1, *table.shape[1:]), missing, table.dtype)])[self.index]

    def scatter(self, matrix: np.ndarray) -> np.ndarray:
        """The inverse of `gather`: [P, G, ..] -> [B, ..]."""
        there = self.index >= 0
        table = np.zeros((int(there.sum()), *matrix.shape[2:]), matrix.dtype)
        table[self.index[there]] = matrix[there]
        return table


def padding_share(made: Batch) -> float:
    """The share of row tokens that are padding, among rows that hold anything."""
    used = made.segments[np.any(made.segments != attention.PADDING, axis=1)]
    return float(np.mean(used == attention.PADDING)) if used.size else 0.0
