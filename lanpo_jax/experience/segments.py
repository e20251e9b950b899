"""Stored rows in segments: written once, merged in geometric steps, so that adding costs little in a large index.

A segment holds its rows by entry, to compare them exactly, and (made when first asked for) by feature: the posting
lists that tell who has a rare feature without looking at anyone else. Order is order of arrival everywhere.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import scipy.sparse

from lanpo_jax.experience import features

LARGEST = 2**17  # rows of a segment at most: bounds the time and memory of one merge
_DEAD = 0.25  # share of dead rows from which a segment is rewritten


@dataclasses.dataclass(frozen=True)
class Segment:
    """Rows of consecutive arrivals. Only `alive` ever changes."""

    serials: np.ndarray  # int64 [n], ascending: numbers of arrival
    ids: list[str]
    digests: list[bytes]
    rows: scipy.sparse.csr_matrix  # uint8 counts [n, columns]
    alive: np.ndarray  # bool [n]

    def __len__(self) -> int:
        return len(self.serials)

    @functools.cached_property
    def postings(self) -> scipy.sparse.csr_matrix:
        """The rows by feature: uint8 counts [columns, n]."""
        return self.rows.tocsc().T

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Euclidean norms of the term frequencies, float32 [n]: what a row's norm is like, whatever else is stored."""
        squares = features.TERM_FREQUENCY[self.rows.data] ** 2
        ones = np.ones(self.rows.shape[1], np.float32)
        return np.maximum(np.sqrt(features.with_data(self.rows, squares) @ ones), 1e-6)

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices."""
        made = [self.rows] + ([self.postings] if "postings" in self.__dict__ else [])
        return sum(m.data.nbytes + m.indices.nbytes + m.indptr.nbytes for m in made)


def make(first: int, ids: list[str], digests: list[bytes], rows: scipy.sparse.csr_matrix) -> Segment:
    """A segment of new rows, numbered from `first`."""
    return Segment(np.arange(first, first + len(ids)), ids, digests, rows, np.ones(len(ids), bool))


def tidy(segments: list[Segment]) -> list[Segment]:
    """Drops dead rows where they are many, and joins neighbours until sizes fall by half from each to the next."""
    out: list[Segment] = []
    for segment in segments:
        if np.count_nonzero(segment.alive) < (1 - _DEAD) * len(segment):
            segment = _living(segment)
        if len(segment):
            out.append(segment)
        while len(out) > 1 and len(out[-2]) <= 2 * len(out[-1]) and len(out[-2]) + len(out[-1]) <= LARGEST:
            out[-2:] = [_joined(out[-2], out[-1])]
    return out


def _living(s: Segment) -> Segment:
    kept = np.flatnonzero(s.alive)
    ids, digests = ([values[i] for i in kept] for values in (s.ids, s.digests))
    return Segment(s.serials[kept], ids, digests, s.rows[kept], s.alive[kept])


def _joined(a: Segment, b: Segment) -> Segment:
    return Segment(
        np.concatenate([a.serials, b.serials]),
        a.ids + b.ids,
        a.digests + b.digests,
        scipy.sparse.vstack([a.rows, b.rows], format="csr"),
        np.concatenate([a.alive, b.alive]),
    )


def candidates(segments: list[Segment], queries: scipy.sparse.csr_matrix, count: int) -> list[np.ndarray]:
    """Places (positions over all segments) of the `count` best rows of each query by the query's features alone.

    Scores leave out the rows' idf-weighted norms, for which their lengths stand in; equal ones go by age.
    """
    found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(queries.shape[0])]
    columns = np.unique(queries.indices)
    asked = scipy.sparse.csr_matrix(
        (queries.data, np.searchsorted(columns, queries.indices), queries.indptr), (queries.shape[0], len(columns))
    )
    start = 0
    for segment in segments:
        scores = asked @ features.weigh(segment.postings[columns])
        scores.data *= (segment.alive / segment.lengths)[scores.indices]
        for i, (a, b) in enumerate(zip(scores.indptr, scores.indptr[1:])):
            best = top(scores.data[a:b], count, scores.indices[a:b])
            found[i].append((scores.indices[a:b][best] + start, scores.data[a:b][best]))
        start += len(segment)
    return [merge(blocks, count) for blocks in found]


def top(scores: np.ndarray, count: int, places: np.ndarray | None = None) -> np.ndarray:
    """Positions of the `count` largest scores above 0, best first, equal ones in order of place."""
    positions = np.flatnonzero(scores > 0)
    if len(positions) > count:
        least = np.partition(scores, -count)[-count]
        positions = np.flatnonzero((scores >= least) & (scores > 0))
    order = positions if places is None else places[positions]
    return positions[np.lexsort((order, -scores[positions]))][:count]


def merge(blocks: list[tuple[np.ndarray, np.ndarray]], count: int) -> np.ndarray:
    """The places of the best scores of all blocks."""
    places = np.concatenate([places for places, _ in blocks])
    scores = np.concatenate([scores for _, scores in blocks])
    return places[top(scores, count, places)]
