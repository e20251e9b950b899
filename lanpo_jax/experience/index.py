"""Which stored problems resemble a text: a TF-IDF index that grows without being refitted.

Features are hashed, so a row never changes once it is written; document frequencies are integers that adding and
removing keep exact, and they enter only when a query is asked. So the scores are those of TF-IDF fitted to what is
stored at that moment, whatever the history was. Memory: about 8 bytes for each of the 300-500 features of a problem.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse
from sklearn.feature_extraction.text import HashingVectorizer

# Cosine similarity above which two texts count as the same problem. On GSM8K and MATH a text with one word dropped
# scores .98 and .96 (medians), with one word or number replaced .96 and .92; different problems reach .91 and .95.
NEAR_DUPLICATE = 0.95
_COLUMNS = 2**18
_BLOCK = 8192  # rows scored at once: bounds the dense scores to _BLOCK x queries

# LaTeX commands, powers and indices (x^2, a_{10}), numbers (3,000 and 2.5 and 1/2 whole), words, operators.
_TOKEN = re.compile(r"\\[A-Za-z]+|[A-Za-z](?:[\^_]\{?-?\w+\}?)+|\d+(?:[.,/]\d+)*|[^\W\d_]+|[-+*/=<>%^|]")
_CHARS = 4  # length of the character n-grams


@dataclasses.dataclass(frozen=True)
class Hit:
    """A stored problem found for a query, with the cosine similarity of the two texts in [0, 1]."""

    id: str
    similarity: float


def normal(text: str) -> str:
    """The form in which equal texts are the same problem: case, spacing and prose punctuation go, numbers stay."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = re.sub(r"(?<!\d)[.,]|[.,](?!\d)|[;:!?'\"$]", " ", text)
    return " ".join(text.split())


def tokens(text: str) -> list[str]:
    r"""Words and math tokens: `\frac`, `x^2` and `3,000` are one token each; commands alone keep their case."""
    return [t if t.startswith("\\") else t.lower() for t in _TOKEN.findall(text)]


def features(text: str) -> Iterator[str]:
    """Words, pairs of words and character 4-grams, marked so that they hash apart."""
    words = tokens(text)
    yield from ("w" + word for word in words)
    yield from (f"b{a} {b}" for a, b in itertools.pairwise(words))
    chars = f" {normal(text)} "
    yield from ("c" + chars[i : i + _CHARS] for i in range(max(1, len(chars) - _CHARS + 1)))


_VECTORIZER = HashingVectorizer(
    analyzer=features, n_features=_COLUMNS, alternate_sign=False, norm=None, dtype=np.float32
)


def vectorize(texts: Sequence[str]) -> scipy.sparse.csr_matrix:
    """Term frequencies 1 + log(count), float32 [n, columns], independent of any collection."""
    if not texts:
        return scipy.sparse.csr_matrix((0, _COLUMNS), dtype=np.float32)
    rows = _VECTORIZER.transform([t.encode("utf-8", "replace").decode() for t in texts]).tocsr()
    rows.sort_indices()
    rows.data = 1 + np.log(rows.data)
    return rows


class Index:
    """Problem texts by id, with the questions that retrieval asks about them."""

    def __init__(self, near_duplicate: float = NEAR_DUPLICATE) -> None:
        self._near_duplicate = near_duplicate
        self._row: dict[str, int] = {}  # id -> row, pending rows included
        self._ids: list[str] = []  # row -> id
        self._alive: list[bool] = []
        self._same: dict[bytes, list[int]] = {}  # digest of the normal form -> rows
        self._matrix = vectorize([])
        self._pending: list[str] = []  # texts of the rows after the matrix's last one
        self._frequency = np.zeros(_COLUMNS, np.int64)  # live rows that have a feature
        self._cache: tuple[np.ndarray, np.ndarray] | None = None  # see _weights; None after any change

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, id: str) -> bool:
        return id in self._row

    def ids(self) -> list[str]:
        """Live ids, oldest first."""
        return list(self._row)

    def add(self, id: str, text: str) -> None:
        """Stores a text; an id that is known already is left as it is."""
        if id in self._row:
            return
        self._row[id] = len(self._ids)
        self._same.setdefault(_digest(text), []).append(len(self._ids))
        self._ids.append(id)
        self._alive.append(True)
        self._pending.append(text)

    def remove(self, id: str) -> None:
        """Forgets a text; does nothing if there is none."""
        row = self._row.get(id)
        if row is None:
            return
        self._flush()
        del self._row[id]
        self._alive[row] = False
        self._frequency[self._matrix[row].indices] -= 1
        self._cache = None
        if len(self._ids) > 2 * len(self._row) + 64:
            self._compact()

    def search(
        self, texts: Sequence[str], exclude: Sequence[str], count: int, threshold: float, terms: int | None
    ) -> list[list[Hit]]:
        """The `count` most similar stored problems of each text, best first, none of them the same problem.

        `exclude[i]` is the id that text i has itself. Hits lie in [threshold, near_duplicate]. With `terms`, only
        the heaviest `terms` features of a query choose the candidates, whose similarity is then computed in full:
        faster in large pools, and may miss a neighbour. Equal scores are ordered by age, then by id.
        """
        self._flush()
        if not len(self) or not texts:
            return [[] for _ in texts]
        queries = self._weighted(vectorize(texts))
        asked = queries if terms is None else _heaviest(queries, terms)
        banned = [self._banned(text, id) for text, id in zip(texts, exclude, strict=True)]
        wanted = count if terms is None else max(32, 4 * count)
        rows = self._best(asked, banned, wanted, threshold if terms is None else 0.0)
        hits = [self._hits(queries[i], found, threshold) for i, found in enumerate(rows)]
        return [found[:count] for found in hits]

    def sample(self, text: str, exclude: str, count: int, seed: int) -> list[Hit]:
        """Up to `count` stored problems drawn uniformly, none the same problem as the text; the draws are bounded."""
        self._flush()
        live = np.flatnonzero(self._alive)
        drawn = np.random.default_rng(seed).permutation(len(live))[: 16 * count]
        banned = set(self._banned(text, exclude))
        rows = np.array([r for r in live[drawn] if r not in banned], np.int64)
        if not len(rows):
            return []
        scores = self._similarity(self._weighted(vectorize([text])), rows)
        kept = [(r, s) for r, s in zip(rows, scores, strict=True) if s <= self._near_duplicate]
        return [Hit(self._ids[r], float(s)) for r, s in kept[:count]]

    def duplicates(self, texts: Sequence[str]) -> list[bool]:
        """Whether each text is the same problem as a stored one: equal normal form or similarity above the bound."""
        self._flush()
        if not len(self) or not texts:
            return [False for _ in texts]
        equal = [any(self._alive[r] for r in self._same.get(_digest(text), ())) for text in texts]
        near = [False] * len(texts)
        for _, scores in self._blocks(self._weighted(vectorize(texts))):
            near = [a or bool(b) for a, b in zip(near, (scores > self._near_duplicate).any(axis=0), strict=True)]
        return [a or b for a, b in zip(equal, near, strict=True)]

    def _flush(self) -> None:
        """Turns pending texts into rows."""
        if not self._pending:
            return
        new = vectorize(self._pending)
        self._frequency += np.bincount(new.indices, minlength=_COLUMNS)
        self._matrix = scipy.sparse.vstack([self._matrix, new], format="csr")
        self._pending, self._cache = [], None

    def _compact(self) -> None:
        """Drops dead rows; the order of the live ones, and so every answer, stays the same."""
        live = np.flatnonzero(self._alive)
        moved = {int(old): new for new, old in enumerate(live)}
        self._matrix, self._cache = self._matrix[live], None
        self._ids = [self._ids[r] for r in live]
        self._alive = [True] * len(live)
        self._row = {id: row for row, id in enumerate(self._ids)}
        same = {key: [moved[r] for r in rows if r in moved] for key, rows in self._same.items()}
        self._same = {key: rows for key, rows in same.items() if rows}

    def _weights(self) -> tuple[np.ndarray, np.ndarray]:
        """(idf [columns], norms [rows]) of what is stored now; idf = log((1 + n) / (1 + df)) + 1, float32."""
        if self._cache is None:
            idf = (np.log((1 + len(self)) / (1 + self._frequency)) + 1).astype(np.float32)
            self._cache = idf, _norms(self._matrix, idf)
        return self._cache

    def _weighted(self, queries: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
        """Queries whose plain dot product with a stored row, over that row's norm, is the TF-IDF cosine."""
        idf, _ = self._weights()
        data = queries.data * idf[queries.indices] ** 2 / np.repeat(_norms(queries, idf), np.diff(queries.indptr))
        return scipy.sparse.csr_matrix((data, queries.indices, queries.indptr), queries.shape)

    def _similarity(self, query: scipy.sparse.csr_matrix, rows: np.ndarray) -> np.ndarray:
        """Cosines of one weighted query with the given rows, float32 [len(rows)]."""
        dots = (self._matrix[rows] @ query.T).toarray()[:, 0]
        return np.minimum(dots / self._weights()[1][rows], 1.0)

    def _blocks(self, queries: scipy.sparse.csr_matrix) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, scores [rows, queries]) for one block after another; dead rows score -1."""
        columns, norms = queries.T.tocsr(), self._weights()[1]
        alive = np.asarray(self._alive)
        for start in range(0, len(self._ids), _BLOCK):
            stop = min(start + _BLOCK, len(self._ids))
            scores = (self._matrix[start:stop] @ columns).toarray() / norms[start:stop, None]
            scores[~alive[start:stop]] = -1
            yield start, scores

    def _banned(self, text: str, id: str) -> list[int]:
        """Rows that are the very problem asked about: its id, or an equal normal form."""
        own = [self._row[id]] if id in self._row else []
        return own + self._same.get(_digest(text), [])

    def _best(self, queries, banned: list[list[int]], count: int, threshold: float) -> list[np.ndarray]:
        """Rows of the `count` best scores in [threshold, near_duplicate] of each query; equal scores by age."""
        found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in banned]
        for start, scores in self._blocks(queries):
            scores[(scores > self._near_duplicate) | (scores < threshold) | (scores <= 0)] = -1
            for i, rows in enumerate(banned):
                scores[[r - start for r in rows if 0 <= r - start < len(scores)], i] = -1
                best = _top(scores[:, i], count)
                found[i].append((best + start, scores[best, i]))
        return [_merge(blocks, count) for blocks in found]

    def _hits(self, query: scipy.sparse.csr_matrix, rows: np.ndarray, threshold: float) -> list[Hit]:
        """Exact similarities of candidate rows, filtered and ordered."""
        scores = self._similarity(query, rows)
        hits = [Hit(self._ids[r], float(s)) for r, s in zip(rows, scores, strict=True)]
        kept = [h for h in hits if threshold <= h.similarity <= self._near_duplicate]
        return sorted(kept, key=lambda h: (-h.similarity, h.id))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(normal(text).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _norms(rows: scipy.sparse.csr_matrix, idf: np.ndarray) -> np.ndarray:
    """Euclidean norms of rows weighted by idf, float32 [n]; 1 where a row is empty."""
    squares = scipy.sparse.csr_matrix((rows.data**2, rows.indices, rows.indptr), rows.shape)
    norms = np.sqrt(squares @ idf**2)
    return np.where(norms > 0, norms, 1).astype(np.float32)


def _heaviest(queries: scipy.sparse.csr_matrix, terms: int) -> scipy.sparse.csr_matrix:
    """Queries reduced to their `terms` heaviest features."""
    kept = []
    for row in queries:
        best = np.sort(np.argsort(-row.data, kind="stable")[:terms])
        kept.append(scipy.sparse.csr_matrix((row.data[best], row.indices[best], [0, len(best)]), row.shape))
    return scipy.sparse.vstack(kept, format="csr")


def _top(scores: np.ndarray, count: int) -> np.ndarray:
    """Positions of the `count` largest scores above -1, best first, equal ones in order of position."""
    if len(scores) > count:
        least = np.partition(scores, -count)[-count]
        positions = np.flatnonzero((scores >= least) & (scores > -1))
    else:
        positions = np.flatnonzero(scores > -1)
    return positions[np.argsort(-scores[positions], kind="stable")][:count]


def _merge(blocks: list[tuple[np.ndarray, np.ndarray]], count: int) -> np.ndarray:
    """The best rows of all blocks, which come in order of position."""
    rows = np.concatenate([rows for rows, _ in blocks])
    scores = np.concatenate([scores for _, scores in blocks])
    return rows[_top(scores, count)]
