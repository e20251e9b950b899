"""Whose principle may help with a problem: retrievers by name, `spec.resolve('tfidf(threshold=0.3)', retrieval)`.

A retriever is `retrieve(index, queries) -> hits per query, best first`. None ever returns the problem itself or a
near-duplicate of it; `Index` sees to that. A retriever that asks a model for its judgement takes the asking
function as one more positional parameter, `judge`, which `relevance.bind` provides.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence

from lanpo_jax.experience import index as index_lib


@dataclasses.dataclass(frozen=True)
class Query:
    """A problem that asks for the experience of others; `key` is all that random choices depend on."""

    id: str
    text: str
    key: str


class Judged(list[index_lib.Hit]):
    """Hits of one query after a model's judgement; `values` are the P(yes) of all candidates it was asked about."""

    def __init__(self, hits: Iterable[index_lib.Hit], values: Sequence[float]) -> None:
        super().__init__(hits)
        self.values = tuple(values)


Retrieve = Callable[[index_lib.Index, Sequence[Query]], list[list[index_lib.Hit]]]

# (problem text, id of a stored problem) pairs -> P(its principle would help), one forward pass each.
Judge = Callable[[Sequence[tuple[str, str]]], Sequence[float]]


def tfidf(
    index: index_lib.Index,
    queries: Sequence[Query],
    *,
    k: int = 1,
    threshold: float = 0.2,
    terms: int | None = None,
) -> list[list[index_lib.Hit]]:
    """The k stored problems with the highest TF-IDF cosine at or above `threshold`.

    Compares every entry in small collections, and in large ones a shortlist that the `terms` heaviest features of a
    query choose; 0 always compares every entry. By default the collection's size decides (`index.EXACT`).
    """
    return index.search([q.text for q in queries], [q.id for q in queries], k, threshold, terms)


def llm(
    index: index_lib.Index,
    queries: Sequence[Query],
    judge: Judge,
    *,
    k: int = 1,
    threshold: float = 0.0,
    shortlist: int = 16,
    gamma: float = 0.9,
) -> list[list[index_lib.Hit]]:
    """The k principles of which the policy is surest that they help, none below P(yes) = gamma (LANPO's relevance).

    It is asked about the `shortlist` most similar problems with a TF-IDF cosine at or above `threshold`; equal
    answers are ordered by that similarity. All queries are asked in one call.
    """
    candidates = tfidf(index, queries, k=shortlist, threshold=threshold)
    answers = iter(judge([(q.text, hit.id) for q, hits in zip(queries, candidates, strict=True) for hit in hits]))
    found: list[list[index_lib.Hit]] = []
    for hits in candidates:
        values = [float(next(answers)) for _ in hits]
        kept = [i for i in range(len(hits)) if values[i] >= gamma]
        best = sorted(kept, key=lambda i: (-values[i], i))[:k]
        found.append(Judged([hits[i] for i in best], values))
    return found


def random(index: index_lib.Index, queries: Sequence[Query], *, k: int = 1) -> list[list[index_lib.Hit]]:
    """k stored problems drawn uniformly, however unlike: the ablation that asks what relevance is worth."""
    return [index.sample(q.text, q.id, k, _seed(q.key)) for q in queries]


def _seed(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
