"""Whose principle may help with a problem: retrievers by name, `spec.resolve('tfidf(threshold=0.3)', retrieval)`.

A retriever is `retrieve(index, queries) -> hits per query, best first`. None ever returns the problem itself or a
near-duplicate of it; `Index` sees to that. A retriever that asks a model for its judgement takes the asking
function as one more positional parameter.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

from lanpo_jax.experience import index as index_lib


@dataclasses.dataclass(frozen=True)
class Query:
    """A problem that asks for the experience of others; `key` is all that random choices depend on."""

    id: str
    text: str
    key: str


Retrieve = Callable[[index_lib.Index, Sequence[Query]], list[list[index_lib.Hit]]]


def tfidf(
    index: index_lib.Index,
    queries: Sequence[Query],
    *,
    k: int = 1,
    threshold: float = 0.2,
    terms: int | None = None,
) -> list[list[index_lib.Hit]]:
    """The k stored problems with the highest TF-IDF cosine at or above `threshold`.

    `terms` bounds the features of a query that choose candidates (64 suits pools of hundreds of thousands); the
    default compares all of them with every entry.
    """
    return index.search([q.text for q in queries], [q.id for q in queries], k, threshold, terms)


def random(index: index_lib.Index, queries: Sequence[Query], *, k: int = 1) -> list[list[index_lib.Hit]]:
    """k stored problems drawn uniformly, however unlike: the ablation that asks what relevance is worth."""
    return [index.sample(q.text, q.id, k, _seed(q.key)) for q in queries]


def _seed(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
