"""Words of texts, and how well the words of a query match those of a document.

A text is a range of code points. Its *words* are hashes of 64 bits; the *grams* of a word are the hashes of all its
sequences of three characters, with a blank before and after it: as many as the word has characters.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.kernels.compiling import (
    Doubles,
    Ints,
    OutDoubles,
    OutFeatures,
    OutInts,
    Vector,
    allocating,
    compiled,
    inner,
)

# Kinds of code points, for word breaking. All others separate words.
OTHER, LETTER, DIGIT, ALONE, MID_LETTER, MID_NUMBER, MID_BOTH = range(7)

# The numbers that a pair of texts gives, in this order.
PARTS = (
    "bm25", "tfidf_cosine", "gram_cosine", "words_found", "weight_found", "document_words_found", "grams_found",
    "fuzzy_found", "pairs_found", "numbers_found", "first_word_found", "last_word_found", "first_place", "is_equal",
    "starts_with", "contains", "query_length", "document_length",
)  # fmt: skip
(
    _BM25, _TFIDF_COSINE, _GRAM_COSINE, _WORDS_FOUND, _WEIGHT_FOUND, _DOCUMENT_WORDS_FOUND, _GRAMS_FOUND,
    _FUZZY_FOUND, _PAIRS_FOUND, _NUMBERS_FOUND, _FIRST_WORD_FOUND, _LAST_WORD_FOUND, _FIRST_PLACE, _IS_EQUAL,
    _STARTS_WITH, _CONTAINS, _QUERY_LENGTH, _DOCUMENT_LENGTH,
) = range(len(PARTS))  # fmt: skip

# The most words of a document that are searched for similar words.
_LOOKED_AT = 64
# The most grams of a text that are sorted by counting.
_FEW = 256
# The usual parameters of BM25.
_K1, _B = 1.2, 0.75
_SEED, _FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_MIX, _SHIFT = np.uint64(0xFF51AFD7ED558CCD), np.uint64(33)
_BLANK = np.uint64(32)


class Words(NamedTuple):
    """The words of some texts: text i has words[starts[i]:starts[i + 1]].

    The grams of word j are grams[gram_starts[j]:gram_starts[j + 1]]; ``has_digit`` says whether it has a digit,
    ``weights`` how rare it is. ``sets`` are the distinct grams of a text, sorted, from ``set_starts`` on, with their
    weights; ``norms`` and ``set_norms`` are the lengths of the vectors of weights.
    """

    starts: OutInts
    words: NDArray[np.uint64]
    has_digit: NDArray[np.uint8]
    gram_starts: OutInts
    grams: NDArray[np.uint64]
    weights: OutDoubles
    norms: OutDoubles
    set_starts: OutInts
    sets: NDArray[np.uint64]
    set_weights: OutDoubles
    set_norms: OutDoubles


@compiled
def find_words(
    codes: Vector[np.uint32],
    kinds: Vector[np.uint8],
    ends: Ints,
    starts: OutInts,
    words: NDArray[np.uint64],
    has_digit: NDArray[np.uint8],
    gram_starts: OutInts,
    grams: NDArray[np.uint64],
) -> int:
    """Break texts into words by the default rules of Unicode (UAX 29); text i ends before ``ends[i]``.

    Consecutive letters and digits are a word. A full stop or an apostrophe joins two letters or two digits, a colon two
    letters, a comma two digits. Characters of kind ``ALONE`` are words. Returns the number of words.
    """
    n, n_grams, place = 0, 0, 0
    starts[0] = 0
    gram_starts[0] = 0
    for text in range(len(ends)):
        end = ends[text]
        while place < end:
            kind = kinds[place]
            if kind == ALONE:
                last = place + 1
            elif kind in (LETTER, DIGIT):
                last = _word_end(kinds, place, end)
            else:
                place += 1
                continue
            word, with_digit = _SEED, False
            before = _BLANK
            for j in range(place, last):
                code = np.uint64(codes[j])
                after = np.uint64(codes[j + 1]) if j + 1 < last else _BLANK
                word = (word ^ code) * _FACTOR
                grams[n_grams] = _mixed(((before * _FACTOR + code) * _FACTOR + after) * _FACTOR)
                n_grams += 1
                with_digit = with_digit or kinds[j] == DIGIT
                before = code
            words[n] = _mixed(word)
            has_digit[n] = with_digit
            n += 1
            gram_starts[n] = n_grams
            place = last
        place = end
        starts[text + 1] = n
    return n


@compiled
def different_grams(
    starts: Ints, gram_starts: Ints, grams: Vector[np.uint64], set_starts: OutInts, sets: NDArray[np.uint64]
) -> int:
    """The distinct grams of each text, sorted; returns their number in all texts."""
    n = 0
    set_starts[0] = 0
    for text in range(len(starts) - 1):
        first, last = gram_starts[starts[text]], gram_starts[starts[text + 1]]
        size = last - first
        if size <= _FEW:
            _sort_few(grams, first, last, sets, n)
        else:
            for i in range(size):
                sets[n + i] = grams[first + i]
            _sort(sets, n, n + size)
        kept = n
        for i in range(n, n + size):
            if i == n or sets[i] != sets[kept - 1]:
                sets[kept] = sets[i]
                kept += 1
        n = kept
        set_starts[text + 1] = n
    return n


@allocating
def count_words(starts: Ints, words: Vector[np.uint64], counts: OutDoubles) -> None:
    """How often each word occurs in its text."""
    longest = np.int64(0)
    for text in range(len(starts) - 1):
        longest = max(longest, starts[text + 1] - starts[text])
    ordered = np.empty(longest, np.uint64)
    for text in range(len(starts) - 1):
        first, n = starts[text], starts[text + 1] - starts[text]
        for i in range(n):
            ordered[i] = words[first + i]
        _sort(ordered, 0, n)
        for i in range(n):
            low, high = 0, n
            while low < high:  # the first occurrence of the word
                middle = (low + high) // 2
                if ordered[middle] < words[first + i]:
                    low = middle + 1
                else:
                    high = middle
            high = low
            while high < n and ordered[high] == words[first + i]:
                high += 1
            counts[first + i] = high - low


@compiled
def look_up(
    hashes: Vector[np.uint64],
    known: Vector[np.uint64],
    weights: Doubles,
    unknown: float,
    buckets: Ints,
    shift: int,
    out: OutDoubles,
) -> None:
    """The weight of each hash; ``buckets`` says where the known hashes with the same first bits are."""
    for i in range(len(hashes)):
        bucket = hashes[i] >> np.uint64(shift)
        out[i] = unknown
        for place in range(buckets[bucket], buckets[bucket + np.uint64(1)]):
            if known[place] == hashes[i]:
                out[i] = weights[place]
                break


@compiled
def find_norms(starts: Ints, weights: Doubles, counts: Doubles, norms: OutDoubles) -> None:
    """The root of the sum of count weight^2 for each text."""
    for text in range(len(starts) - 1):
        total = 0.0
        for i in range(starts[text], starts[text + 1]):
            total += counts[i] * weights[i] * weights[i]
        norms[text] = np.sqrt(total)


@inner
def _sort_few(values: NDArray[np.uint64], first: int, last: int, out: NDArray[np.uint64], at: int) -> None:
    """Sort by counting the lower values of each: no branch to mispredict, and vectorised."""
    own = values[first:last]
    for i in range(len(own)):
        value, n_before = own[i], np.int64(0)
        for other in own[:i]:
            n_before += np.int64(other <= value)
        for other in own[i + 1 :]:
            n_before += np.int64(other < value)
        out[at + n_before] = value


@inner
def _sort(values: NDArray[np.uint64], first: int, last: int) -> None:
    """Shellsort: short, and fast for the few dozen values that a text has."""
    gap = 1
    while gap < (last - first) // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(first + gap, last):
            value = values[i]
            j = i
            while j >= first + gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 3


@inner
def _word_end(kinds: NDArray[np.uint8], first: int, end: int) -> int:
    place = first + 1
    while place < end:
        kind = kinds[place]
        if kind in (LETTER, DIGIT):
            place += 1
            continue
        if place + 1 < end and kinds[place + 1] == kinds[place - 1]:
            beside = kinds[place - 1]
            joins_letters = beside == LETTER and kind in (MID_LETTER, MID_BOTH)
            if joins_letters or (beside == DIGIT and kind in (MID_NUMBER, MID_BOTH)):
                place += 2
                continue
        break
    return place


@inner
def _mixed(value: int) -> int:
    value = (value ^ (value >> _SHIFT)) * _MIX
    return value ^ (value >> _SHIFT)


@compiled
def match_texts(
    query_of: Ints,
    document_of: Ints,
    queries: Words,
    documents: Words,
    mean_length: float,
    first: int,
    last: int,
    out: OutFeatures,
) -> None:
    """The numbers of ``PARTS`` for the pairs first to last - 1."""
    for pair in range(first, last):
        query, document = query_of[pair], document_of[pair]
        q_start, q_end = queries.starts[query], queries.starts[query + 1]
        d_start, d_end = documents.starts[document], documents.starts[document + 1]
        row = out[pair]
        row[:] = 0.0
        row[_QUERY_LENGTH], row[_DOCUMENT_LENGTH] = q_end - q_start, d_end - d_start
        row[_FIRST_PLACE] = 1.0
        if q_end == q_start or d_end == d_start:
            continue
        _match_words(queries, documents, q_start, q_end, d_start, d_end, mean_length, row)
        row[_TFIDF_COSINE] /= max(queries.norms[query] * documents.norms[document], 1e-300)
        _match_places(queries, documents, q_start, q_end, d_start, d_end, row)
        _match_sets(queries, documents, query, document, row)


@inner
def _match_words(
    queries: Words,
    documents: Words,
    q_start: int,
    q_end: int,
    d_start: int,
    d_end: int,
    mean_length: float,
    row: NDArray[np.float32],
) -> None:
    """Which words of the query the document contains."""
    length = _K1 * (1.0 - _B + _B * (d_end - d_start) / max(mean_length, 1e-300))
    n_found, weight, weight_found, fuzzy, numbers, numbers_found = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    first_found = d_end
    for i in range(q_start, q_end):
        word = queries.words[i]
        count, at = 0, d_end
        for j in range(d_start, d_end):
            if documents.words[j] == word:
                count += 1
                at = min(at, j)
        rarity = queries.weights[i]
        weight += rarity
        numbers += queries.has_digit[i]
        if count > 0:
            n_found += 1.0
            weight_found += rarity
            fuzzy += rarity
            numbers_found += queries.has_digit[i]
            row[_TFIDF_COSINE] += rarity * rarity * count
            row[_BM25] += rarity * count * (_K1 + 1.0) / (count + length)
            first_found = min(first_found, at)
        else:
            fuzzy += rarity * _closest(queries, documents, i, d_start, min(d_end, d_start + _LOOKED_AT))
        if i == q_start:
            row[_FIRST_WORD_FOUND] = count > 0
        if i == q_end - 1:
            row[_LAST_WORD_FOUND] = count > 0
    n = q_end - q_start
    row[_WORDS_FOUND] = n_found / n
    row[_WEIGHT_FOUND] = weight_found / weight if weight > 0 else 0.0
    row[_FUZZY_FOUND] = fuzzy / weight if weight > 0 else 0.0
    row[_NUMBERS_FOUND] = numbers_found / numbers if numbers > 0 else 1.0
    row[_FIRST_PLACE] = (first_found - d_start) / (d_end - d_start)
    n_known = 0
    for j in range(d_start, d_end):
        for i in range(q_start, q_end):
            if queries.words[i] == documents.words[j]:
                n_known += 1
                break
    row[_DOCUMENT_WORDS_FOUND] = n_known / (d_end - d_start)


@inner
def _closest(queries: Words, documents: Words, word: int, d_start: int, d_end: int) -> float:
    """The highest similarity (Dice, of the grams) of a word and any word of the document."""
    best = 0.0
    a_start, a_end = queries.gram_starts[word], queries.gram_starts[word + 1]
    for other in range(d_start, d_end):
        b_start, b_end = documents.gram_starts[other], documents.gram_starts[other + 1]
        size = (a_end - a_start) + (b_end - b_start)
        if 2.0 * min(a_end - a_start, b_end - b_start) <= best * size:
            continue
        common = 0
        for i in range(a_start, a_end):
            for j in range(b_start, b_end):
                if queries.grams[i] == documents.grams[j]:
                    common += 1
                    break
        best = max(best, min(2.0 * common / size, 1.0))
    return best


@inner
def _match_places(
    queries: Words, documents: Words, q_start: int, q_end: int, d_start: int, d_end: int, row: NDArray[np.float32]
) -> None:
    """Neighbours in the query that are also neighbours in the document, and whether the whole query occurs in it."""
    n, found = q_end - q_start, 0.0
    for i in range(q_start, q_end - 1):
        for j in range(d_start, d_end - 1):
            if queries.words[i] == documents.words[j] and queries.words[i + 1] == documents.words[j + 1]:
                found += 1.0
                break
    row[_PAIRS_FOUND] = found / (n - 1) if n > 1 else row[_WORDS_FOUND]
    for j in range(d_start, d_end - n + 1):
        i = 0
        while i < n and queries.words[q_start + i] == documents.words[j + i]:
            i += 1
        if i == n:
            row[_CONTAINS] = 1.0
            if j == d_start:
                row[_STARTS_WITH] = 1.0
                row[_IS_EQUAL] = n == d_end - d_start
            break


@inner
def _match_sets(queries: Words, documents: Words, query: int, document: int, row: NDArray[np.float32]) -> None:
    """The grams that both texts have."""
    i, i_end = queries.set_starts[query], queries.set_starts[query + 1]
    j, j_end = documents.set_starts[document], documents.set_starts[document + 1]
    n = i_end - i
    common, product = 0.0, 0.0
    while i < i_end and j < j_end:
        one, other = queries.sets[i], documents.sets[j]
        if one == other:
            common += 1.0
            product += queries.set_weights[i] * documents.set_weights[j]
        i += one <= other
        j += other <= one
    row[_GRAMS_FOUND] = common / n if n > 0 else 0.0
    row[_GRAM_COSINE] = product / max(queries.set_norms[query] * documents.set_norms[document], 1e-300)
