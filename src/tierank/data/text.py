"""Arrays of texts, and match features: how well the text of a document matches the text of a query.

Matching is the same for every language: texts are normalised (Unicode NFKC, case folded) and split into words by the
default rules of Unicode (UAX 29); each ideograph or hiragana character is a word. No stemmer and no stop words are
used: rare words weigh more, and trigrams of characters (*grams*) match other forms of a word and misspellings, also in
languages that are written without blanks.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.errors import DataError
from tierank.kernels import in_threads
from tierank.kernels import texts as kernel
from tierank.kernels.texts import PARTS, Words

# Texts taken at a time, as the temporary arrays are larger than the texts.
_TAKEN = 1 << 16


class StringArray:
    """Many short texts as one block of bytes: text i is ``blob[ends[i-1]:ends[i]]`` in UTF-8."""

    blob: NDArray[np.uint8]
    ends: NDArray[np.int64]

    def __init__(self, blob: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self.blob, self.ends = blob, ends

    @classmethod
    def of(cls, texts: Iterable[str]) -> StringArray:
        """The array of these texts."""
        encoded = [text.encode() for text in texts]
        ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    @staticmethod
    def concat(parts: Sequence[StringArray]) -> StringArray:
        """The texts of several arrays, joined."""
        shifts = np.cumsum([0, *(len(part.blob) for part in parts[:-1])])
        ends = [part.ends + shift for part, shift in zip(parts, shifts, strict=True)]
        return StringArray(np.concatenate([part.blob for part in parts]), np.concatenate(ends))

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[str]:
        blob, start = self.blob.tobytes(), 0
        for end in self.ends.tolist():
            yield blob[start:end].decode(errors="replace")
            start = end

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> StringArray:
        """The texts of these rows, in this order."""
        if isinstance(rows, slice):
            rows = np.arange(len(self))[rows]
        if len(rows) > _TAKEN:
            return StringArray.concat([self[rows[k : k + _TAKEN]] for k in range(0, len(rows), _TAKEN)])
        starts = np.where(rows > 0, self.ends[rows - 1], 0)
        lengths = self.ends[rows] - starts
        ends = lengths.cumsum()
        inside = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
        return StringArray(self.blob[np.repeat(starts, lengths) + inside], ends)


# Texts split into words at a time, and pairs matched at a time.
_AT_A_TIME = 1 << 16
# Separator of texts: not part of a word, and unchanged by normalisation.
_BETWEEN = "\0"
_UNKNOWN = 255
# Ranges of characters that are words by themselves: hiragana, ideographs and their extensions.
_ALONE = ((0x3041, 0x3097), (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x32000))
_MIDDLES = {
    kernel.MID_BOTH: ".'’․﹒＇．",
    kernel.MID_LETTER: ":·‧﹕：",
    kernel.MID_NUMBER: ",;٬﹐﹔，；",
}
# The kind of each code point, determined on first use.
_KINDS = np.full(0x110000, _UNKNOWN, np.uint8)

# What is counted.
_COUNTED = ("word", "gram")

Hashes = NDArray[np.uint64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BM25Statistics:
    """Word statistics of a collection of documents: the number of documents with each word.

    Parameters
    ----------
    n_documents : int
        Number of different documents.
    mean_length : float
        The mean number of words per document.
    words : array of uint64
        Hashes of the words, ascending.
    word_counts : array of int64
        The number of documents with each word.
    grams : array of uint64
        Hashes of the grams, ascending.
    gram_counts : array of int64
        The number of documents with each gram.
    """

    n_documents: int
    mean_length: float
    words: Hashes
    word_counts: Counts
    grams: Hashes
    gram_counts: Counts

    @classmethod
    def learn(cls, documents: Iterable[str]) -> BM25Statistics:
        """The statistics of these documents; identical documents are counted once."""
        different = list(dict.fromkeys(text for text in documents if text))
        broken = _break(different)
        lengths = np.diff(broken.starts)
        texts = np.repeat(np.arange(len(different)), lengths)
        words, word_counts = _document_counts(texts, broken.words)
        grams, gram_counts = np.unique(broken.sets, return_counts=True)
        mean = float(lengths.mean()) if len(lengths) else 0.0
        return cls(len(different), mean, words, word_counts, grams, gram_counts.astype(np.int64))

    def match(self, queries: Sequence[str], documents: Sequence[str], n_jobs: int | None = None) -> NDArray[np.float32]:
        """The match features of each query and its document, in the order of ``PARTS``."""
        if len(queries) != len(documents):
            raise DataError(expected=f"{len(queries)} documents, one per query", got=str(len(documents)))
        given = [*queries], [*documents]
        numbers = [{text: number for number, text in enumerate(dict.fromkeys(texts))} for texts in given]
        places = [np.array([of[text] for text in texts], np.int64) for of, texts in zip(numbers, given, strict=True)]
        return self.match_numbered(list(numbers[0]), places[0], list(numbers[1]), places[1], n_jobs)

    def match_numbered(
        self,
        queries: Sequence[str],
        query_of: Counts,
        documents: Sequence[str],
        document_of: Counts,
        n_jobs: int | None = None,
    ) -> NDArray[np.float32]:
        """The match features of pairs that are given by indices of different texts."""
        out = np.empty((len(query_of), len(PARTS)), np.float32)
        words = [self._weighed(_break(texts)) for texts in (queries, documents)]
        spans = pairwise([*range(0, len(query_of), _AT_A_TIME), len(query_of)])
        in_threads(
            kernel.match_texts,
            [(query_of, document_of, *words, self.mean_length, first, last, out) for first, last in spans],
            n_jobs,
        )
        return out

    @cached_property
    def digest(self) -> str:
        """The digest that identifies these statistics."""
        whole = hashlib.sha256()
        for array in self.arrays().values():
            whole.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
        return whole.hexdigest()[:32]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The statistics as arrays, for a file."""
        sizes = np.array([self.n_documents, self.mean_length])
        counted = {name: getattr(self, name) for name in ("words", "word_counts", "grams", "gram_counts")}
        return {"sizes": sizes, **counted}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> BM25Statistics:
        """The statistics from the result of ``arrays``. Raises ``DataError`` if they are damaged."""
        damaged = DataError(expected="the statistics of texts", got="a damaged file")
        try:
            n_documents, mean_length = arrays["sizes"].astype(np.float64).tolist()
            words, grams = (np.ascontiguousarray(arrays[name], np.uint64) for name in ("words", "grams"))
            word_counts, gram_counts = (np.ascontiguousarray(arrays[f"{name}_counts"], np.int64) for name in _COUNTED)
        except (KeyError, ValueError):
            raise damaged from None
        are_whole = np.isfinite([n_documents, mean_length]).all() and min(n_documents, mean_length) >= 0
        for hashes, counts in ((words, word_counts), (grams, gram_counts)):
            are_whole &= hashes.ndim == 1 and hashes.shape == counts.shape and bool((hashes[1:] > hashes[:-1]).all())
            are_whole &= bool(((counts >= 1) & (counts <= n_documents)).all())
        if not are_whole:
            raise damaged
        return cls(int(n_documents), mean_length, words, word_counts, grams, gram_counts)

    def _weighed(self, broken: Words) -> Words:
        """The words with their weights, ln(1 + (N - n + 0.5) / (n + 0.5)) for a word that n of N documents have."""
        weights, set_weights = self._words.weights_of(broken.words), self._grams.weights_of(broken.sets)
        counts = np.empty(len(broken.words))
        kernel.count_words(broken.starts, broken.words, counts)
        norms, set_norms = np.empty(len(broken.starts) - 1), np.empty(len(broken.starts) - 1)
        # The sum over different words of (count weight)^2 is that over all words of count weight^2.
        kernel.find_norms(broken.starts, weights, counts, norms)
        kernel.find_norms(broken.set_starts, set_weights, np.ones(len(set_weights)), set_norms)
        return broken._replace(weights=weights, norms=norms, set_weights=set_weights, set_norms=set_norms)

    @cached_property
    def _words(self) -> _Table:
        return _Table.of(self.words, self.word_counts, self.n_documents)

    @cached_property
    def _grams(self) -> _Table:
        return _Table.of(self.grams, self.gram_counts, self.n_documents)


class _Table(NamedTuple):
    """A table of weights by hash, indexed by the first bits of the hash."""

    hashes: Hashes
    weights: Floats
    unknown: float
    buckets: Counts
    shift: int

    @classmethod
    def of(cls, hashes: Hashes, counts: Counts, n_documents: int) -> _Table:
        n_bits = max(len(hashes), 2).bit_length()
        edges = np.arange(1 << n_bits, dtype=np.uint64) << np.uint64(64 - n_bits)
        buckets = np.append(np.searchsorted(hashes, edges), len(hashes)).astype(np.int64)
        weights = np.log1p((n_documents - np.append(counts, 0) + 0.5) / (np.append(counts, 0) + 0.5))
        return cls(hashes, weights[:-1].copy(), float(weights[-1]), buckets, 64 - n_bits)

    def weights_of(self, hashes: Hashes) -> Floats:
        weights = np.empty(len(hashes))
        kernel.look_up(hashes, self.hashes, self.weights, self.unknown, self.buckets, self.shift, weights)
        return weights


def _break(texts: Sequence[str]) -> Words:
    """The words of some texts, without weights."""
    parts = [_break_some(texts[first : first + _AT_A_TIME]) for first in range(0, len(texts), _AT_A_TIME)]
    parts = parts or [_break_some([])]
    starts, words, has_digit, gram_starts, grams = (
        _joined([part[k] for part in parts], are_starts=k in (0, 3)) for k in range(5)
    )
    sets, set_starts = np.empty(len(grams), np.uint64), np.empty(len(starts), np.int64)
    n_sets = kernel.different_grams(starts, gram_starts, grams, set_starts, sets)
    nothing = np.empty(0)
    return Words(
        starts, words, has_digit, gram_starts, grams, nothing, nothing, set_starts, sets[:n_sets].copy(), nothing,
        nothing,
    )  # fmt: skip


def _break_some(texts: Sequence[str]) -> tuple[NDArray[Any], ...]:
    joined = _BETWEEN.join(texts)
    if joined.count(_BETWEEN) != max(len(texts) - 1, 0):
        joined = _BETWEEN.join(text.replace(_BETWEEN, " ") for text in texts)
    plain = joined.lower() if joined.isascii() else _folded(joined)
    codes = np.frombuffer(plain.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = _kinds_of(codes)
    ends = np.append(np.flatnonzero(codes == ord(_BETWEEN)), len(codes))[: len(texts)].astype(np.int64)
    starts, gram_starts = np.zeros(len(texts) + 1, np.int64), np.zeros(len(codes) + 1, np.int64)
    words, grams = np.empty(len(codes), np.uint64), np.empty(len(codes), np.uint64)
    has_digit = np.empty(len(codes), np.uint8)
    n = kernel.find_words(codes, kinds, ends, starts, words, has_digit, gram_starts, grams)
    return starts, words[:n].copy(), has_digit[:n].copy(), gram_starts[: n + 1].copy(), grams[: gram_starts[n]].copy()


def _folded(text: str) -> str:
    """The normalised text; case folding can undo normalisation, so it is done again."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _joined(parts: list[NDArray[Any]], *, are_starts: bool) -> NDArray[Any]:
    """Arrays joined; starts continue from the end of the previous array."""
    if not are_starts:
        return np.concatenate(parts)
    shifts = np.cumsum([0, *(part[-1] for part in parts[:-1])])
    return np.concatenate([[0], *(part[1:] + shift for part, shift in zip(parts, shifts, strict=True))])


def _kinds_of(codes: NDArray[np.uint32]) -> NDArray[np.uint8]:
    kinds = _KINDS[codes]
    unknown = np.unique(codes[kinds == _UNKNOWN])
    if len(unknown):
        _KINDS[unknown] = [_kind_of(code) for code in unknown.tolist()]
        kinds = _KINDS[codes]
    return kinds


def _kind_of(code: int) -> int:
    character = chr(code)
    for kind, characters in _MIDDLES.items():
        if character in characters:
            return kind
    category = unicodedata.category(character)
    if category.startswith("N"):
        return kernel.DIGIT
    if any(first <= code < last for first, last in _ALONE):
        return kernel.ALONE
    return kernel.LETTER if category[0] in "LM" or category == "Pc" else kernel.OTHER


def _document_counts(texts: Counts, hashes: Hashes) -> tuple[Hashes, Counts]:
    """The different hashes, ascending, and the number of texts with each."""
    order = np.lexsort((texts, hashes))
    hashes, texts = hashes[order], texts[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (hashes[1:] != hashes[:-1]) | (texts[1:] != texts[:-1])
    different, counts = np.unique(hashes[is_first], return_counts=True)
    return different, counts.astype(np.int64)
