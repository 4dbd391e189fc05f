"""Scores of boosted trees, 512 documents at a time (QuickScorer of Lucchese et al., 2015, with bytes for everything).

Two steps for each block of documents:

1. A value becomes a *place*: the number of thresholds below it. A *column* is a feature, one way to treat missing
   values, and 255 of its thresholds at most, so that a place is a byte. A split by category has a column of its set:
   members of the set have place 0, all other values place 1.
2. In each tree the leaves are numbered so that the smaller child of every split comes first. A *test* asks whether the
   place of a document is above that of a split's threshold, and rules out the leaves that the document cannot reach if
   it goes to the second child. A *word* is eight leaves, a bit each. The first leaf that nothing rules out is the leaf
   of the document.

No step branches on a document, so the compiler does 32 documents at once. The values of the leaves are added in
the order of the trees, in double precision, as LightGBM does.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import Matrix, Vector, compiled

# The most documents in a block, and leaves in a word.
BLOCK, LEAVES = np.uint64(512), np.uint64(8)
# Thresholds of a column, and words of a tree: what a byte can number.
MAX_THRESHOLDS, MAX_WORDS = 255, 256
# Thresholds of a column, and tests of a word, come in multiples of these: a pass over the block does so many.
THRESHOLDS_AT_ONCE, TESTS_AT_ONCE = np.uint64(4), np.uint64(2)

_LEAVES_16 = np.uint16(LEAVES)
# Numbers without a sign: numba then leaves out what it does for negative indices.
_ONE, _TWO, _THREE = np.uint64(1), np.uint64(2), np.uint64(3)
_NAN = np.float32(np.nan)
_VECTOR = np.uint64(32)
_NONE, _1, _2, _4, _ALL = np.uint8(0), np.uint8(1), np.uint8(2), np.uint8(4), np.uint8(255)
# The bits of a byte whose number is odd, has a 2 in it, and has a 4 in it.
_ODD, _TWOS, _FOURS = np.uint8(0b10101010), np.uint8(0b11001100), np.uint8(0b11110000)


class Columns(NamedTuple):
    """What values are compared with.

    Parameters
    ----------
    feature : array of uint64
        The feature of each column.
    missing : array of uint8
        The place of missing values in each column.
    near_zero : array of float32
        Values this near to 0 are missing too; negative where 0 is a value like any other.
    first : array of uint64
        Where the thresholds of each column begin, and where the last ones end.
    thresholds : array of float32
        The thresholds, rising within a column; its last ones may be infinite.
    first_level : array of uint64
        Where the levels of each column begin, and where the last ones end; none of a column that is no category.
    places : array of uint8
        Of a category the place of each level: 0 where it is in the set of the splits of this column, 1 where not.
    """

    feature: Vector[np.uint64]
    missing: Vector[np.uint8]
    near_zero: Vector[np.float32]
    first: Vector[np.uint64]
    thresholds: Vector[np.float32]
    first_level: Vector[np.uint64]
    places: Vector[np.uint8]


class Forest(NamedTuple):
    """Trees as words of leaves, and the tests that rule leaves out.

    Parameters
    ----------
    first_word : array of uint64
        Where the words of each tree begin, and where the last ones end.
    values : array of float64
        The values of the leaves, eight for each word.
    first_test : array of uint64
        Where the tests of each word begin, and where the last ones end.
    column : array of uint32
        The column that each test looks at.
    place : array of uint8
        The place of its threshold there.
    if_above : array of uint8
        The leaves of the word that are ruled out if the place of a document is above that.
    if_not : array of uint8
        Those that are ruled out if it is not.
    """

    first_word: Vector[np.uint64]
    values: Vector[np.float64]
    first_test: Vector[np.uint64]
    column: Vector[np.uint32]
    place: Vector[np.uint8]
    if_above: Vector[np.uint8]
    if_not: Vector[np.uint8]


@compiled
def score_rows(
    features: Matrix[np.float32], start: int, end: int, columns: Columns, forest: Forest, out: NDArray[np.float64]
) -> None:
    """The sum of the trees for the rows ``start:end``, into the same rows of ``out``.

    One function, because a function that is called is optimised twice: alone, and where it is called.
    """
    most = np.uint64(end - start)
    most = (most + _VECTOR - _ONE) // _VECTOR * _VECTOR if most < BLOCK else BLOCK
    places = np.empty((len(columns.feature), most), np.uint8)
    values, counts, totals = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32), np.empty(BLOCK, np.float64)
    # Of a word the leaves that are gone. Of the first word in which one is left: its number in the tree, its leaves
    # that are gone, and its first leaf that is left.
    gone, words = np.empty(BLOCK, np.uint8), np.empty(BLOCK, np.uint8)
    kept, leaves = np.empty(BLOCK, np.uint8), np.empty(BLOCK, np.uint16)
    for d in range(BLOCK):
        values[d] = 0.0
    for row in range(np.uint64(start), np.uint64(end), BLOCK):
        n = np.uint64(end) - row
        n = n if n < BLOCK else BLOCK
        # Loops over bytes do whole vectors: what is behind the last document is computed, and read by nobody.
        m = (n + _VECTOR - _ONE) // _VECTOR * _VECTOR

        for column in range(np.uint64(len(columns.feature))):
            feature, missing, near_zero = columns.feature[column], columns.missing[column], columns.near_zero[column]
            level = columns.first_level[column]
            n_levels = columns.first_level[column + _ONE] - level
            if n_levels > 0:
                most_level = np.float32(n_levels)
                for d in range(n):
                    value = features[row + d, feature]
                    is_level = value > np.float32(-1) and value < most_level  # not if it is missing
                    places[column, d] = columns.places[level + np.uint64(np.int64(value))] if is_level else _1
                continue
            for d in range(n):
                value = features[row + d, feature]
                values[d] = value if abs(value) > near_zero else _NAN
            for d in range(m):
                counts[d] = 0
            for i in range(columns.first[column], columns.first[column + _ONE], THRESHOLDS_AT_ONCE):
                t_0, t_1 = columns.thresholds[i], columns.thresholds[i + _ONE]
                t_2, t_3 = columns.thresholds[i + _TWO], columns.thresholds[i + _THREE]
                for d in range(m):
                    value = values[d]
                    n_first = np.int32(value > t_0) + np.int32(value > t_1)
                    counts[d] += n_first + np.int32(value > t_2) + np.int32(value > t_3)
            for d in range(m):
                places[column, d] = counts[d] if values[d] == values[d] else missing

        for d in range(m):
            totals[d] = 0.0
        for tree in range(np.uint64(len(forest.first_word) - 1)):
            first, word = forest.first_word[tree], forest.first_word[tree + _ONE]
            while word > first:
                word -= _ONE
                for d in range(m):
                    gone[d] = _NONE
                for test in range(forest.first_test[word], forest.first_test[word + _ONE], TESTS_AT_ONCE):
                    other = test + _ONE
                    row_0, row_1 = places[np.uint64(forest.column[test])], places[np.uint64(forest.column[other])]
                    place_0, place_1 = forest.place[test], forest.place[other]
                    above_0, above_1 = forest.if_above[test], forest.if_above[other]
                    not_0, not_1 = forest.if_not[test], forest.if_not[other]
                    for d in range(m):
                        gone_0 = above_0 if row_0[d] > place_0 else not_0
                        gone_1 = above_1 if row_1[d] > place_1 else not_1
                        gone[d] |= gone_0 | gone_1
                number = np.uint8(word - first)
                for d in range(m):
                    # All are read before it is known which is kept: else documents are not done many at once.
                    here, old_word, old_kept = gone[d], words[d], kept[d]
                    words[d] = old_word if here == _ALL else number
                    kept[d] = old_kept if here == _ALL else here
            for d in range(m):
                lowest = np.uint8(~kept[d] & (kept[d] + _1))
                odd, twos, fours = lowest & _ODD, lowest & _TWOS, lowest & _FOURS
                leaf = np.uint8((_1 if odd else _NONE) + (_2 if twos else _NONE) + (_4 if fours else _NONE))
                leaves[d] = np.uint16(words[d]) * _LEAVES_16 + np.uint16(leaf)
            leaf_values = forest.values[first * LEAVES :]
            for d in range(m):
                totals[d] += leaf_values[np.uint64(leaves[d])]

        for d in range(n):
            out[row + d] = totals[d]
