"""Which stored problems resemble a text: a TF-IDF index that grows without being refitted.

Features are hashed, so a row never changes once it is written; document frequencies are integers that adding and
removing keep exact, and they enter only when a query is asked. So the scores are those of TF-IDF fitted to what is
stored at that moment, whatever the history was.

Small collections are compared in full. In large ones the posting lists of a query's heaviest features choose a
shortlist, and only that is compared: faster, and may miss a neighbour (benchmarks/retrieval.py measures how often).
Memory: 5 bytes for each of the 200-400 features of a problem, twice where posting lists are used.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse

from lanpo_jax.experience import features, segments

# Cosine similarity above which two texts count as the same problem. On GSM8K and MATH a text with one word dropped
# scores .98 and .96 (medians), with one word or number replaced .96 and .92; different problems reach .91 and .95.
NEAR_DUPLICATE = 0.95
EXACT = 2**15  # entries up to which every one is compared
TERMS = 192  # features of a query whose posting lists are read beyond that
POSTINGS = 2**19  # bound on their total length; the heaviest feature is always read
SHORTLIST = 256  # entries compared in full
_WIDEST = 2**13  # and at most, where near-duplicates fill the shortlist
_BLOCK = 8192  # rows scored at once: bounds the dense scores to _BLOCK x queries
_BATCH = 32  # queries whose posting lists are read together


@dataclasses.dataclass(frozen=True)
class Hit:
    """A stored problem found for a query, with the cosine similarity of the two texts in [0, 1]."""

    id: str
    similarity: float


class Index:
    """Problem texts by id, with the questions that retrieval asks about them."""

    def __init__(self, near_duplicate: float = NEAR_DUPLICATE) -> None:
        self._near_duplicate = near_duplicate
        self._serial: dict[str, int] = {}  # live id -> number of arrival, pending ones included
        self._next = 0
        self._same: dict[bytes, list[int]] = {}  # digest of the normal form -> live serials
        self._segments: list[segments.Segment] = []
        self._pending: list[tuple[str, bytes, str]] = []  # id, digest, text: not yet in a segment
        self._starts = np.zeros(1, np.int64)  # place of each segment's first row; places number all rows, by age
        self._frequency = np.zeros(features.COLUMNS, np.int64)  # live rows that have a feature
        self._squares: np.ndarray | None = None  # see _weights; None after any change, like the next two
        self._norms: list[np.ndarray] | None = None
        self._live: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._serial)

    def __contains__(self, id: str) -> bool:
        return id in self._serial

    @property
    def nbytes(self) -> int:
        """Bytes of the stored rows and posting lists."""
        return sum(s.nbytes for s in self._segments)

    def ids(self) -> list[str]:
        """Live ids, oldest first."""
        return list(self._serial)

    def add(self, id: str, text: str) -> None:
        """Stores a text; an id that is known already is left as it is."""
        if id in self._serial:
            return
        digest = features.digest(text)
        self._serial[id] = self._next
        self._same.setdefault(digest, []).append(self._next)
        self._pending.append((id, digest, text))
        self._next += 1

    def remove(self, id: str) -> None:
        """Forgets a text; does nothing if there is none."""
        if id not in self._serial:
            return
        self._flush()
        serial = self._serial.pop(id)
        number, row = self._find(serial)
        segment = self._segments[number]
        segment.alive[row] = False
        rest = [s for s in self._same.pop(segment.digests[row]) if s != serial]
        if rest:
            self._same[segment.digests[row]] = rest
        self._frequency[_columns(segment.rows, row)] -= 1
        self._changed()

    def search(
        self, texts: Sequence[str], exclude: Sequence[str], count: int, threshold: float, terms: int | None = None
    ) -> list[list[Hit]]:
        """The `count` most similar stored problems of each text, best first, none of them the same problem.

        `exclude[i]` is the id that text i has itself. Hits lie in [threshold, near_duplicate]. `terms` features of a
        query choose a shortlist that is then compared in full; 0 compares all entries; None is 0 up to EXACT entries
        and TERMS beyond. Equal scores are ordered by age, then by id.
        """
        self._flush()
        if not len(self) or not texts:
            return [[] for _ in texts]
        queries = self._weighted(features.counts(texts))
        banned = [self._banned(text, id) for text, id in zip(texts, exclude, strict=True)]
        if terms is None:
            terms = 0 if len(self) <= EXACT else TERMS
        if terms:
            return self._quick(queries, banned, count, threshold, terms)
        found = self._best(queries, banned, count, threshold)
        scores = self._similarities(queries, found)
        return [self._hits(p, s, count, threshold)[0] for p, s in zip(found, scores, strict=True)]

    def sample(self, text: str, exclude: str, count: int, seed: int) -> list[Hit]:
        """Up to `count` stored problems drawn uniformly, none the same problem as the text; the draws are bounded."""
        self._flush()
        if not len(self):
            return []
        if self._live is None:
            self._live = np.flatnonzero(np.concatenate([s.alive for s in self._segments]))
        drawn = np.random.default_rng(seed).choice(self._live, min(16 * count, len(self._live)), replace=False)
        places = drawn[~np.isin(drawn, self._banned(text, exclude))]
        (scores,) = self._similarities(self._weighted(features.counts([text])), [places])
        kept = [(p, s) for p, s in zip(places, scores, strict=True) if s <= self._near_duplicate]
        return [Hit(self._id(p), float(s)) for p, s in kept[:count]]

    def duplicates(self, texts: Sequence[str]) -> list[bool]:
        """Whether each text is the same problem as a stored one: equal normal form or similarity above the bound."""
        self._flush()
        if not len(self) or not texts:
            return [False for _ in texts]
        equal = [features.digest(text) in self._same for text in texts]
        queries = self._weighted(features.counts(texts))
        if len(self) > EXACT:
            scores = self._similarities(queries, self._candidates(queries, TERMS, SHORTLIST))
            near = [bool((s > self._near_duplicate).any()) for s in scores]
        else:
            near = [False] * len(texts)
            for _, scores in self._blocks(queries):
                near = [a or bool(b) for a, b in zip(near, (scores > self._near_duplicate).any(axis=0), strict=True)]
        return [a or b for a, b in zip(equal, near, strict=True)]

    # ---- What is stored -------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Turns pending texts into rows, and keeps the segments few and mostly alive."""
        if self._pending:
            ids, digests, texts = (list(column) for column in zip(*self._pending))
            new = features.counts(texts)
            self._frequency += np.bincount(new.indices, minlength=features.COLUMNS)
            self._segments.append(segments.make(self._next - len(ids), ids, digests, new))
            self._pending = []
            self._changed()
        if self._squares is None:
            self._segments = segments.tidy(self._segments)
            self._starts = np.cumsum([0] + [len(s) for s in self._segments])

    def _changed(self) -> None:
        self._squares = self._norms = self._live = None

    def _find(self, serial: int) -> tuple[int, int]:
        """The number of the segment that holds a row, and where in it."""
        number = bisect.bisect_right(self._segments, serial, key=lambda s: s.serials[0]) - 1
        return number, int(np.searchsorted(self._segments[number].serials, serial))

    def _id(self, place: int) -> str:
        number = int(np.searchsorted(self._starts, place, side="right")) - 1
        return self._segments[number].ids[place - self._starts[number]]

    def _banned(self, text: str, id: str) -> list[int]:
        """Places of the very problem asked about: its id, or an equal normal form."""
        serials = list(self._same.get(features.digest(text), ()))
        if id in self._serial:
            serials.append(self._serial[id])
        return [int(self._starts[number]) + row for number, row in map(self._find, serials)]

    # ---- Exact scores ---------------------------------------------------------------------------------------------

    def _weights(self) -> np.ndarray:
        """Squares of the inverse document frequencies log((1 + n) / (1 + df)) + 1 of now: float32 [columns]."""
        if self._squares is None:
            self._squares = ((np.log((1 + len(self)) / (1 + self._frequency)) + 1) ** 2).astype(np.float32)
        return self._squares

    def _weighted(self, counts: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
        """Queries whose plain dot product with a stored row, over that row's norm, is the TF-IDF cosine."""
        weights, rows = self._weights(), features.weigh(counts)
        norms = np.repeat(_norms(rows, weights), np.diff(rows.indptr))
        return features.with_data(rows, rows.data * weights[rows.indices] / norms)

    def _similarities(self, queries: scipy.sparse.csr_matrix, places: list[np.ndarray]) -> list[np.ndarray]:
        """Cosines of each weighted query with the rows at its own places, float32 [len(places[i])]."""
        sizes = [len(p) for p in places]
        owner, place = np.repeat(np.arange(len(places)), sizes), np.concatenate(places)
        number = np.searchsorted(self._starts, place, side="right") - 1
        out = np.zeros(len(place), np.float32)
        for n in np.unique(number):
            all_own = np.flatnonzero(number == n)
            for own in np.split(all_own, range(_BLOCK, len(all_own), _BLOCK)):
                rows = features.weigh(self._segments[n].rows[place[own] - self._starts[n]])
                out[own] = _dots(queries, owner[own], rows) / _norms(rows, self._weights())
        return np.split(np.minimum(out, 1.0), np.cumsum(sizes)[:-1])

    def _blocks(self, queries: scipy.sparse.csr_matrix) -> Iterator[tuple[int, np.ndarray]]:
        """(first place, scores [rows, queries]) for one block after another; dead rows score -1."""
        columns, weights, first = queries.T.tocsr(), self._weights(), 0
        if self._norms is None:
            self._norms = [np.concatenate([_norms(r, weights) for _, r in _parts(s)]) for s in self._segments]
        for segment, norms in zip(self._segments, self._norms, strict=True):
            for start, rows in _parts(segment):
                stop = start + rows.shape[0]
                scores = (rows @ columns).toarray() / norms[start:stop, None]
                scores[~segment.alive[start:stop]] = -1
                yield first + start, scores
            first += len(segment)

    def _best(self, queries, banned: list[list[int]], count: int, threshold: float) -> list[np.ndarray]:
        """Places of the `count` best scores in [threshold, near_duplicate] of each query; equal scores by age."""
        found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in banned]
        for start, scores in self._blocks(queries):
            scores[(scores > self._near_duplicate) | (scores < threshold)] = -1
            for i, places in enumerate(banned):
                scores[[p - start for p in places if 0 <= p - start < len(scores)], i] = -1
                best = segments.top(scores[:, i], count)
                found[i].append((best + start, scores[best, i]))
        return [segments.merge(blocks, count) for blocks in found]

    def _hits(self, places: np.ndarray, scores: np.ndarray, count: int, threshold: float) -> tuple[list[Hit], int]:
        """The `count` best of the candidates; and how many were near-duplicates."""
        near = scores > self._near_duplicate
        scores = np.where(near | (scores < threshold), 0, scores)
        hits = [Hit(self._id(places[i]), float(scores[i])) for i in segments.top(scores, count, places)]
        return sorted(hits, key=lambda h: (-h.similarity, h.id)), int(near.sum())

    # ---- Shortlists -----------------------------------------------------------------------------------------------

    def _quick(self, queries, banned: list[list[int]], count: int, threshold: float, terms: int) -> list[list[Hit]]:
        """The best of a shortlist, made longer where the same problem and its near-duplicates fill it."""
        found: list[list[Hit]] = [[] for _ in banned]
        todo, wanted = list(range(len(banned))), max(SHORTLIST, 4 * count)
        while todo and wanted <= max(_WIDEST, 4 * count):
            places = self._candidates(queries[todo], terms, wanted)
            full = [len(p) == wanted for p in places]
            others = [p[~np.isin(p, banned[i])] for i, p in zip(todo, places, strict=True)]
            scores, again = self._similarities(queries[todo], others), []
            for n, i in enumerate(todo):
                found[i], near = self._hits(others[n], scores[n], count, threshold)
                if len(found[i]) < count and full[n] and (near or len(others[n]) < wanted):
                    again.append(i)
            todo, wanted = again, 8 * wanted
        return found

    def _candidates(self, queries, terms: int, count: int) -> list[np.ndarray]:
        """Places of `count` likely neighbours of each query, from the posting lists of its heaviest features."""
        asked = _heaviest(queries, self._frequency, terms)
        batches = [asked[i : i + _BATCH] for i in range(0, asked.shape[0], _BATCH)]
        return list(itertools.chain.from_iterable(segments.candidates(self._segments, b, count) for b in batches))


def _columns(rows: scipy.sparse.csr_matrix, row: int) -> np.ndarray:
    return rows.indices[rows.indptr[row] : rows.indptr[row + 1]]


def _parts(segment: segments.Segment) -> Iterator[tuple[int, scipy.sparse.csr_matrix]]:
    """(first row, term frequencies) of a segment, block by block."""
    for start in range(0, len(segment), _BLOCK):
        yield start, features.weigh(segment.rows[start : start + _BLOCK])


def _norms(rows: scipy.sparse.csr_matrix, weights: np.ndarray) -> np.ndarray:
    """Euclidean norms of term frequencies weighted by idf, float32 [n]; 1 where a row is empty."""
    norms = np.sqrt(features.with_data(rows, rows.data**2) @ weights)
    return np.where(norms > 0, norms, 1).astype(np.float32)


def _dots(queries: scipy.sparse.csr_matrix, owner: np.ndarray, rows: scipy.sparse.csr_matrix) -> np.ndarray:
    """Dot product of each row, none empty, with the query that owns it; owners ascend: float32 [n]."""
    out, dense = np.zeros(len(owner), np.float32), np.zeros(features.COLUMNS, np.float32)
    firsts = np.flatnonzero(np.diff(owner, prepend=-1))
    for a, b in itertools.pairwise([*firsts, len(owner)]):
        asked = slice(*queries.indptr[owner[a] : owner[a] + 2])
        own = slice(rows.indptr[a], rows.indptr[b])
        dense[queries.indices[asked]] = queries.data[asked]
        products = rows.data[own] * dense[rows.indices[own]]
        out[a:b] = np.add.reduceat(products, rows.indptr[a:b] - rows.indptr[a])
        dense[queries.indices[asked]] = 0
    return out


def _heaviest(queries: scipy.sparse.csr_matrix, frequency: np.ndarray, terms: int) -> scipy.sparse.csr_matrix:
    """Queries reduced to their `terms` heaviest features, whose posting lists sum to little more than POSTINGS."""
    kept = []
    for start, stop in itertools.pairwise(queries.indptr):
        best = start + np.argsort(-queries.data[start:stop], kind="stable")[:terms]
        before = np.cumsum(frequency[queries.indices[best]]) - frequency[queries.indices[best]]
        kept.append(np.sort(best[before < POSTINGS]))
    chosen = np.concatenate(kept)
    pointers = np.cumsum([0] + [len(k) for k in kept])
    return scipy.sparse.csr_matrix((queries.data[chosen], queries.indices[chosen], pointers), queries.shape)
