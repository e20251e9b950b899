"""What of a problem's text is compared: words, math tokens, pairs of words and character 4-grams, hashed to columns.

A text's vector never depends on other texts. Counts above 255 count as 255, so that one byte holds each.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse
from sklearn.utils import murmurhash3_32

COLUMNS = 2**18
_MOST = 255
_BATCH = 4096  # texts taken apart together: bounds the memory that takes

# LaTeX commands, powers and indices (x^2, a_{10}), numbers (3,000 and 2.5 and 1/2 whole), words, operators.
_TOKEN = re.compile(r"\\[A-Za-z]+|[A-Za-z](?:[\^_]\{?-?\w+\}?)+|\d+(?:[.,/]\d+)*|[^\W\d_]+|[-+*/=<>%^|]")
_PUNCTUATION = re.compile(r"(?<!\d)[.,]|[.,](?!\d)|[;:!?'\"$]")
_CHARS = 4  # length of the character n-grams

# Term frequency of a count: 1 + log(count), 0 for none; float32 [256].
TERM_FREQUENCY = np.concatenate([[0.0], 1 + np.log(np.arange(1, _MOST + 1))]).astype(np.float32)


def normal(text: str) -> str:
    """The form in which equal texts are the same problem: case, spacing and prose punctuation go, numbers stay."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_PUNCTUATION.sub(" ", text).split())


def digest(text: str) -> bytes:
    """16 bytes that are equal where the normal forms are."""
    return hashlib.blake2b(normal(text).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def tokens(text: str) -> list[str]:
    r"""Words and math tokens: `\frac`, `x^2` and `3,000` are one token each; commands alone keep their case."""
    if text.isascii() and "\\" not in text:
        return _TOKEN.findall(text.lower())
    return [t if t.startswith("\\") else t.lower() for t in _TOKEN.findall(text)]


def features(text: str) -> Iterator[str]:
    """Words, pairs of words and character 4-grams, marked so that they hash apart."""
    yield from _words(text)
    yield from _grams(f" {normal(text)} ")


def _words(text: str) -> list[str]:
    words = tokens(text)
    return ["w" + word for word in words] + [f"b{a} {b}" for a, b in itertools.pairwise(words)]


def _grams(chars: str) -> list[str]:
    return ["c" + chars[i : i + _CHARS] for i in range(max(1, len(chars) - _CHARS + 1))]


def counts(texts: Sequence[str]) -> scipy.sparse.csr_matrix:
    """How often each text has each feature: uint8 [n, COLUMNS], sorted, independent of any collection.

    Columns are those of scikit-learn's HashingVectorizer (n_features=COLUMNS, alternate_sign=False) on `features`.
    """
    parts = [_keys(texts[i : i + _BATCH], i) for i in range(0, len(texts), _BATCH)]
    keys, counts = (np.concatenate([p[n] for p in parts] or [np.zeros(0, np.int64)]) for n in (0, 1))
    pointers = np.searchsorted(keys, np.arange(len(texts) + 1) * COLUMNS)
    data = np.minimum(counts, _MOST).astype(np.uint8)
    shape = len(texts), COLUMNS
    return scipy.sparse.csr_matrix((data, (keys % COLUMNS).astype(np.int32), pointers.astype(np.int32)), shape)


def _keys(texts: Sequence[str], first: int) -> tuple[np.ndarray, np.ndarray]:
    """(row * COLUMNS + column, count) of each feature of each text, ascending; rows are counted from `first`."""
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    rows, chars = np.arange(first, first + len(texts)), [f" {normal(text)} " for text in texts]
    plain = [c.isascii() and len(c) >= _CHARS for c in chars]
    spelled = [_words(t) + ([] if p else _grams(c)) for t, c, p in zip(texts, chars, plain, strict=True)]
    hashes = np.fromiter(map(murmurhash3_32, itertools.chain.from_iterable(spelled)), np.int32)
    keys = _column(hashes) + COLUMNS * np.repeat(rows, [len(found) for found in spelled])
    grams = _plain_grams([c for c, p in zip(chars, plain, strict=True) if p], rows[plain])
    return np.unique(np.concatenate([keys, grams]), return_counts=True)


def _plain_grams(chars: Sequence[str], rows: np.ndarray) -> np.ndarray:
    """`_grams` of ASCII texts of 4 characters or more as keys, without making strings of them."""
    if not chars:
        return np.zeros(0, np.int64)
    row = np.repeat(rows, [len(c) for c in chars])
    row, inside = row[: -_CHARS + 1], row[: -_CHARS + 1] == row[_CHARS - 1 :]
    data = np.frombuffer("".join(chars).encode(), np.uint8).astype(np.uint32)
    a, b, c, d = (data[i : len(data) - _CHARS + 1 + i] for i in range(_CHARS))
    hashes = _murmur(ord("c") | a << 8 | b << 16 | c << 24, d, 1 + _CHARS)
    return (_column(hashes.view(np.int32)) + COLUMNS * row)[inside]


def _murmur(block: np.ndarray, tail: np.ndarray, length: int) -> np.ndarray:
    """MurmurHash3 (32 bits, seed 0; Appleby) of keys of one 4-byte block and one more byte: uint32."""

    def mix(k: np.ndarray) -> np.ndarray:
        return _rotate(k * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)

    h = _rotate(mix(block), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    h = h ^ mix(tail) ^ np.uint32(length)
    h = (h ^ h >> 16) * np.uint32(0x85EBCA6B)
    h = (h ^ h >> 13) * np.uint32(0xC2B2AE35)
    return h ^ h >> 16


def _rotate(x: np.ndarray, bits: int) -> np.ndarray:
    return x << np.uint32(bits) | x >> np.uint32(32 - bits)


def _column(hashes: np.ndarray) -> np.ndarray:
    """Columns of signed hashes, as scikit-learn's FeatureHasher folds them: int64."""
    return np.abs(hashes.astype(np.int64)) % COLUMNS


def weigh(rows: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
    """Term frequencies, float32, of rows of counts."""
    return with_data(rows, TERM_FREQUENCY[rows.data])


def with_data(rows: scipy.sparse.csr_matrix, data: np.ndarray) -> scipy.sparse.csr_matrix:
    """The same features with other values."""
    return scipy.sparse.csr_matrix((data, rows.indices, rows.indptr), rows.shape)
