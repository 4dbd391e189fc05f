"""Scores of boosted trees, 512 documents at a time (QuickScorer of Lucchese et al., 2015, with bytes for everything).

Two steps for each block of documents:

1. A value becomes a *place*: the number of thresholds below it. A *column* is a feature, one way to treat missing
   values, and at most 255 of its thresholds, so that a place is a byte. A split by category has a column for its set:
   members of the set have place 0, all other values place 1.
2. In each tree the leaves are numbered so that the smaller child of every split comes first. A *test* asks whether the
   place of a document is above that of a split's threshold, and rules out the leaves that the document cannot reach if
   it goes to the second child. A *word* is eight leaves, one bit each. The first leaf that is not ruled out is the leaf
   of the document.

No step branches on a document, so the compiler processes many documents at once; the tests process 128, which stay in
registers from the first test of a tree to the last. The values of the leaves are added in the order of the trees, in
double precision, as LightGBM does.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import Matrix, Vector, allocating
from tierank.kernels.lanes import WIDTH, add_ruled_out, no_bits, repeated, store_leaves, unless_all

# The most documents in a block, and leaves in a word.
BLOCK, LEAVES = np.uint64(512), np.uint64(8)
# The most thresholds per column, and words per tree: as many as a byte can count.
MAX_THRESHOLDS, MAX_WORDS = 255, 256
# Thresholds of a column come in multiples of this: the number that one pass over the block handles.
THRESHOLDS_AT_ONCE = np.uint64(4)

# Unsigned: numba then omits the code for negative indices.
_ONE, _TWO, _THREE = np.uint64(1), np.uint64(2), np.uint64(3)
_NAN = np.float32(np.nan)
# Documents that are processed at once by loops over values, and by tests.
_VECTOR, _WIDTH = np.uint64(32), np.uint64(WIDTH)
_1 = np.uint8(1)


class Columns(NamedTuple):
    """The thresholds that values are compared with.

    Parameters
    ----------
    feature : array of uint64
        The feature of each column.
    missing : array of uint8
        The place of missing values in each column.
    near_zero : array of float32
        Values this close to 0 are missing too; negative if 0 is a value like any other.
    first : array of uint64
        Where the thresholds of each column begin, and where the last ones end.
    thresholds : array of float32
        The thresholds, increasing within a column; the last ones may be infinite.
    first_level : array of uint64
        Where the levels of each column begin, and where the last ones end; a column that is not a category has none.
    places : array of uint8
        The place of each level of a category: 0 if it is in the set of the splits of this column, otherwise 1.
    """

    feature: Vector[np.uint64]
    missing: Vector[np.uint8]
    near_zero: Vector[np.float32]
    first: Vector[np.uint64]
    thresholds: Vector[np.float32]
    first_level: Vector[np.uint64]
    places: Vector[np.uint8]


class Forest(NamedTuple):
    """Trees as words of leaves, and the tests that rule out leaves.

    Parameters
    ----------
    first_word : array of uint64
        Where the words of each tree begin, and where the last ones end.
    values : array of float64
        The values of the leaves, eight for each word.
    first_test : array of uint64
        Where the tests of each word begin, and where the last ones end.
    column : array of uint32
        The column that each test reads.
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


@allocating
def score_rows(
    features: Matrix[np.float32], start: int, end: int, columns: Columns, forest: Forest, out: NDArray[np.float64]
) -> None:
    """The sum of the trees for the rows ``start:end``, written to the same rows of ``out``.

    It creates its own arrays, because the compiler then knows that they share no memory with any others: it takes a
    sixth of the time.
    """
    most = np.uint64(end - start)
    most = (most + _WIDTH - _ONE) // _WIDTH * _WIDTH if most < BLOCK else BLOCK
    places = np.empty(np.uint64(len(columns.feature)) * most, np.uint8)
    values, counts, totals = np.empty(most, np.float32), np.empty(most, np.int32), np.empty(most, np.float64)
    leaves = np.empty(most, np.uint16)
    for d in range(most):
        values[d] = 0.0
    for row in range(np.uint64(start), np.uint64(end), BLOCK):
        n = np.uint64(end) - row
        n = n if n < BLOCK else BLOCK
        # Loops process whole vectors: values after the last document are computed, but never read.
        m = (n + _VECTOR - _ONE) // _VECTOR * _VECTOR

        for column in range(np.uint64(len(columns.feature))):
            feature, missing, near_zero = columns.feature[column], columns.missing[column], columns.near_zero[column]
            level = columns.first_level[column]
            n_levels = columns.first_level[column + _ONE] - level
            row_of_places = places[column * most : (column + _ONE) * most]
            if n_levels > 0:
                most_level = np.float32(n_levels)
                for d in range(n):
                    value = features[row + d, feature]
                    is_level = value > np.float32(-1) and value < most_level  # not if it is missing
                    row_of_places[d] = columns.places[level + np.uint64(np.int64(value))] if is_level else _1
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
                row_of_places[d] = counts[d] if values[d] == values[d] else missing

        for d in range(n):
            totals[d] = 0.0
        for tree in range(np.uint64(len(forest.first_word) - 1)):
            first, last = forest.first_word[tree], forest.first_word[tree + _ONE]
            for d in range(np.uint64(0), n, _WIDTH):
                # For the first word that has a leaf left: its number in the tree, and its leaves that are ruled out.
                words, kept = no_bits(), no_bits()
                word = last
                while word > first:
                    word -= _ONE
                    gone = no_bits()
                    for test in range(forest.first_test[word], forest.first_test[word + _ONE]):
                        at = np.uint64(forest.column[test]) * most + d
                        above, if_not = forest.if_above[test], forest.if_not[test]
                        gone = add_ruled_out(gone, places, at, forest.place[test], above, if_not)
                    words = unless_all(gone, words, repeated(np.uint8(word - first)))
                    kept = unless_all(gone, kept, gone)
                store_leaves(words, kept, leaves, d)
            leaf_values = forest.values[first * LEAVES :]
            for d in range(n):
                totals[d] += leaf_values[np.uint64(leaves[d])]

        for d in range(n):
            out[row + d] = totals[d]
