"""Fitted trees: what they predict, explain, export and save; and compiled scoring.

``TreeScorer`` gives the scores of LightGBM, bit for bit, in a fraction of its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats, release_pages, rows_in
from tierank.arrays import Rows as RowNumbers
from tierank.data.columns import Category
from tierank.data.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.export import QueryCopies, Scorer, Sum
from tierank.export.neutral import NAN, NEAR_ZERO, NONE, ZERO, Trees
from tierank.kernels import in_threads, n_threads, scoring
from tierank.kernels.scoring import BLOCK, LEAVES, MAX_THRESHOLDS, MAX_WORDS, Forest, ThresholdColumns
from tierank.rankers.lightgbm import check_trees, has_linear_leaves, predicted, read_trees
from tierank.rankers.model import FittedModel, Resources, SavedModel, Seen, as_history
from tierank.transforms import add_query_copies


class TreeModel(FittedModel):
    """Fitted trees, in LightGBM's text form.

    Attributes
    ----------
    text : str
        The trees as LightGBM writes them.
    n_rounds : int
        Number of trees that were kept, of those grown in this training.
    n_before : int
        Number of trees before them: those of the model that training continued from.
    base : FittedModel or None
        The model that the trees add to.
    processes : list of dict
        The processes that took part in training.
    propensities : dict of str to list of float
        The learned propensities of positions; empty if no positions were given.
    """

    def __init__(
        self,
        text: str,
        history: list[dict[str, Any]],
        n_rounds: int,
        seen: Seen,
        query_features: bool,
        base: FittedModel | None = None,
        processes: list[dict[str, Any]] | None = None,
        n_before: int = 0,
        propensities: dict[str, list[float]] | None = None,
    ) -> None:
        self.text, self.history, self.n_rounds, self.seen = text, history, n_rounds, seen
        self.query_features, self.base, self.processes = query_features, base, processes or []
        self.n_before, self.propensities = n_before, propensities or {}
        self.best = history[n_rounds - 1] if n_rounds else {}

    @classmethod
    def restore(cls, saved: SavedModel, query_features: bool, base: FittedModel | None) -> TreeModel:
        """Restore a saved model; the text is checked before LightGBM reads it."""
        try:
            n_rounds, history = int(saved.facts["n_rounds"]), as_history(saved.facts["history"])
            text, n_before = saved.files["trees.txt"].decode(), int(saved.facts.get("n_before", 0))
            learned = saved.facts.get("propensities", {})
            propensities = {name: [float(one) for one in values] for name, values in learned.items()}
            model = cls(text, history, n_rounds, saved.seen, query_features, base, None, n_before, propensities)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError):
            raise DataError(expected="trees and their history", got="a damaged description") from None
        check_trees(model.text, saved.seen.n_features * (3 if query_features else 1))
        return model

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("booster", "scorer")}

    @cached_property
    def booster(self) -> lightgbm.Booster:
        """The trees as a LightGBM booster."""
        try:
            return lightgbm.Booster(model_str=self.text)
        except (lightgbm.basic.LightGBMError, ValueError) as error:
            raise DataError(where="trees.txt", expected="trees that LightGBM can read", got=str(error)) from None

    @cached_property
    def scorer(self) -> TreeScorer | lightgbm.Booster:
        """Compiled trees, or LightGBM's model for trees that only LightGBM can score."""
        trees = read_trees(self.text)
        return (None if trees is None else TreeScorer.of(trees)) or self.booster

    @property
    def needs_list(self) -> bool:
        """Whether trees use features relative to the query, or the base scores whole lists."""
        return self.query_features or (self.base is not None and self.base.needs_list)

    def predict(self, data: RankingDataset, resources: Resources) -> Floats:
        """The sum of the leaves, and the scores of the base."""
        features, scorer = self._features(data, resources), self.scorer
        if isinstance(scorer, TreeScorer):
            scores = scorer.predict(features, resources.n_jobs)
        else:
            scores = predicted(scorer, features, resources.n_jobs)
        return scores if self.base is None else self.base.predict(data, resources) + scores

    def contributions(self, data: RankingDataset, above: RowNumbers, below: RowNumbers, resources: Resources) -> Floats:
        """Differences of TreeSHAP values, computed for the documents of the pairs only. Linear leaves have none."""
        if has_linear_leaves(self.text):
            raise ParameterError(argument="linear_tree", expected="False, to explain scores", got="True")
        rows, places = np.unique([above, below], return_inverse=True)
        features = self._features(data, resources)[rows]
        shap = self.booster.predict(features, pred_contrib=True, num_threads=n_threads(resources.n_jobs))
        # The last column is the same constant for all documents.
        values = self._of_features(np.asarray(shap, np.float64)[:, :-1])
        first, second = places.reshape(2, -1)
        differences = np.asarray(values[first] - values[second], np.float64)
        if self.base is None:
            return differences
        return differences + self.base.contributions(data, above, below, resources)

    def used_features(self, n_features: int) -> NDArray[np.bool_]:
        """The features that some split uses."""
        used = self.importance("split") > 0
        return used if self.base is None else used | self.base.used_features(n_features)

    def importance(self, kind: str) -> Floats:
        """The total gain of the splits of each feature, or their number."""
        return self._of_features(np.asarray(self.booster.feature_importance(kind), np.float64))

    def _of_features(self, values: Floats) -> Floats:
        """Values of the columns of the trees, summed over each feature and its copies along the last axis."""
        copies = values.shape[-1] // self.seen.n_features
        return np.asarray(values.reshape(*values.shape[:-1], copies, self.seen.n_features).sum(axis=-2), np.float64)

    def to_neutral(self) -> Scorer:
        """The trees, and the base before them."""
        # Not from LightGBM's JSON, which is invalid if a name has a backslash.
        trees = read_trees(self.text)
        if trees is None and has_linear_leaves(self.text):
            raise ParameterError(
                argument="linear_tree", expected="trees with constant leaves to export", fix="train without it"
            )
        if trees is None:
            raise ParameterError(
                argument="categorical_feature", expected="lower numbers to export", fix="number categories from 0"
            )
        scorer = QueryCopies(trees) if self.query_features else trees
        return scorer if self.base is None else Sum(((1.0, self.base.to_neutral()), (1.0, scorer)))

    def files(self) -> dict[str, bytes]:
        """The text of the trees, and the files of the base."""
        of_base = {} if self.base is None else self.base.files()
        return {"trees.txt": self.text.encode()} | {f"base.{name}": content for name, content in of_base.items()}

    def facts(self) -> dict[str, Any]:
        """The history of training."""
        base = None if self.base is None else self.base.facts()
        more = {name: value for name in ("n_before", "propensities") if (value := getattr(self, name))}
        return {"n_rounds": self.n_rounds, "history": self.history, "base": base} | more

    def _features(self, data: RankingDataset, resources: Resources) -> NDArray[np.float32]:
        return (add_query_copies(data, resources.n_jobs) if self.query_features else data).features


def outline_trees(settings: Mapping[str, Any], seen: Seen) -> Scorer:
    """One split, on a category or a feature with missing values where there are any, as trained trees may have them."""
    if settings["linear_tree"]:
        raise ParameterError(
            argument="for_target", expected="None with `linear_tree`, because no target has linear leaves"
        )
    if any(isinstance(kind, Category) for kind in seen.columns.kinds.values()) or settings["categorical_feature"]:
        stump = Trees.stump(0, 0.5, (0.0, 1.0))
        stump = replace(stump, category=np.zeros(1, np.int64), members=np.array([[True]]))
    else:
        missing = NONE
        if settings["use_missing"]:
            missing = ZERO if settings["zero_as_missing"] else NAN if seen.has_missing else NONE
        stump = Trees.stump(0, 0.5, (0.0, 1.0), missing, default_left=False)
    return QueryCopies(stump) if settings["query_features"] else stump


# Scoring

Integers = NDArray[np.int64]

# The most leaves of a tree that can be scored here.
MAX_LEAVES = MAX_WORDS * int(LEAVES)

# Fewer rows than this are not worth a thread; bytes of features after which the pages of a map are released.
_ROWS_OF_THREAD, _SCORED = 2 * int(BLOCK), 1 << 27


class TreeScorer:
    """Trees in the form that compiled code reads.

    Parameters
    ----------
    columns : ThresholdColumns
        The thresholds that values are compared with.
    forest : Forest
        The trees.

    Examples
    --------
    >>> scorer = TreeScorer.of(Trees.stump(feature=1, threshold=0.5, values=(-1.0, 2.0)))
    >>> scorer.predict(np.array([[9, 0.5], [9, 0.75], [9, np.nan]], np.float32)).tolist()
    [-1.0, 2.0, -1.0]
    """

    def __init__(self, columns: ThresholdColumns, forest: Forest) -> None:
        self._columns, self._forest = columns, forest
        self._n_features = int(columns.feature.max()) + 1 if len(columns.feature) else 0

    @classmethod
    def of(cls, trees: Trees) -> TreeScorer | None:
        """The trees, ready to score; None if one of them has more than ``MAX_LEAVES`` leaves."""
        nodes = _Nodes(trees)
        if nodes.n_leaves.max(initial=0) > MAX_LEAVES:
            return None
        columns, column, place = _make_columns(trees)
        return cls(columns, _make_forest(trees, nodes, column, place))

    def predict(self, features: NDArray[np.float32], n_jobs: int | None = None) -> NDArray[np.float64]:
        """Score documents.

        Parameters
        ----------
        features : array of float32
            One row per document; NaN where a value is missing.
        n_jobs : int or None, default None
            Number of threads; None for one per core. Scores are the same bits for any number.

        Returns
        -------
        array of float64
            The sum of the trees for each document.
        """
        if features.ndim != 2 or features.shape[1] < self._n_features:
            expected = f"at least {self._n_features} columns"
            raise DataError(argument="features", expected=expected, got=f"shape {features.shape}")
        features = np.ascontiguousarray(features, np.float32)
        scores = np.empty(len(features), np.float64)

        n = len(features)
        n_parts = max(-(-n // rows_in(features, _SCORED)), min(n_threads(n_jobs), n // _ROWS_OF_THREAD))
        if n_parts <= 1:
            scoring.score_rows(features, 0, n, self._columns, self._forest, scores)
            return scores

        def score(start: int, end: int) -> None:
            scoring.score_rows(features, start, end, self._columns, self._forest, scores)
            release_pages(features[start:end])

        in_threads(score, pairwise(np.linspace(0, n, n_parts + 1).astype(int).tolist()), n_jobs)
        return scores


class _Nodes:
    """The positions of nodes: the tree of each, and the leaves below it.

    The leaves of a tree are numbered so that those of the smaller child of a split come first.

    Attributes
    ----------
    n_leaves : array of int64
        Number of leaves of each tree.
    tree : array of int64
        The tree of each split.
    is_swapped : array of bool
        Whether the right child of a split is the smaller one.
    first, last : array of int64
        The leaves of the smaller child: from ``first`` to before ``last``.
    leaf_tree, leaf_number : array of int64
        The tree of each leaf, and its number in that tree.
    """

    def __init__(self, trees: Trees) -> None:
        left, right, roots = trees.left, trees.right, trees.roots
        n_splits, n_leaves = len(left), len(trees.values)
        # Each split and leaf is a root or the child of one split: compiled code does not check.
        if not np.array_equal(np.sort(np.concatenate([roots, left, right])), np.arange(-n_leaves, n_splits)):
            raise DataError(argument="trees", expected="one parent for every split and leaf")
        # All trees at once, level by level from the roots: a loop over the levels, not over the nodes.
        levels, n_seen = [roots[roots >= 0]], 0
        while len(levels[-1]):
            n_seen += len(levels[-1])
            children = np.concatenate([left[levels[-1]], right[levels[-1]]])
            levels.append(children[children >= 0])
        if n_seen != n_splits:
            raise DataError(argument="trees", expected="every split below a root", got="a cycle")
        # Splits first, and after them the leaves, as ~leaf counts from the end.
        sizes = np.ones(n_splits + n_leaves, np.int64)
        for level in reversed(levels):
            sizes[level] = sizes[_place(left[level], n_splits)] + sizes[_place(right[level], n_splits)]
        self.is_swapped = sizes[_place(right, n_splits)] < sizes[_place(left, n_splits)]
        smaller = _place(np.where(self.is_swapped, right, left), n_splits)
        larger = _place(np.where(self.is_swapped, left, right), n_splits)
        tree, first = np.zeros_like(sizes), np.zeros_like(sizes)
        tree[_place(roots, n_splits)] = np.arange(len(roots))
        for level in levels:
            tree[smaller[level]] = tree[larger[level]] = tree[level]
            first[smaller[level]] = first[level]
            first[larger[level]] = first[level] + sizes[smaller[level]]
        self.n_leaves = sizes[_place(roots, n_splits)]
        self.tree, self.first, self.last = tree[:n_splits], first[:n_splits], first[:n_splits] + sizes[smaller]
        self.leaf_tree, self.leaf_number = tree[n_splits:], first[n_splits:]


def _place(nodes: Integers, n_splits: int) -> Integers:
    """Indices of nodes in an array of all splits followed by all leaves."""
    return np.where(nodes >= 0, nodes, n_splits + ~nodes)


def _make_columns(trees: Trees) -> tuple[ThresholdColumns, Integers, Integers]:
    """The columns, and for each split its column and the index of its threshold there."""
    # Splits of a column share the feature, and the treatment of missing values.
    is_category = trees.is_category
    category = np.full(len(trees.feature), -1) if trees.category is None else trees.category
    threshold = np.where(is_category, np.float32(0), trees.threshold)
    has_default = ((trees.missing == ZERO) | (trees.missing == NAN)) & ~is_category
    kind = np.where(has_default, trees.missing, NONE)
    goes_left = has_default & trees.default_left
    keys = goes_left, kind, category, trees.feature
    order = np.lexsort((threshold, *keys))
    sorted_keys = [key[order] for key in keys]
    starts = _changes(*sorted_keys)
    number = np.cumsum(_changes(*sorted_keys, threshold[order])) - 1  # different thresholds
    rank = number - number[starts][np.cumsum(starts) - 1]
    starts |= _changes(rank // MAX_THRESHOLDS)
    column, place = np.empty_like(order), np.empty_like(order)
    column[order] = np.cumsum(starts) - 1
    place[order] = rank % MAX_THRESHOLDS
    n_thresholds = _largest(place + 1, column, int(starts.sum()))
    first = _padded_starts(n_thresholds, int(scoring.THRESHOLDS_AT_ONCE))
    thresholds = np.full(first[-1], np.inf, np.float32)  # no value is above the added ones
    thresholds[first[column] + place] = threshold
    # A missing value that goes right is above all thresholds; one that counts as 0 has the place of 0.
    goes_left, kind, category, feature = (key[starts] for key in sorted_keys)
    n_negative = _largest((place + 1) * (threshold < 0), column, len(kind))
    # Where the levels of each column begin, and the place of each: 0 for members of the set of the column.
    first_level, places = np.zeros(len(category) + 1, np.int64), np.zeros(0, np.uint8)
    if trees.members is not None:
        first_level = _padded_starts(np.where(category >= 0, trees.members.shape[1], 0), 1)
        places = (~trees.members[category[category >= 0]]).astype(np.uint8).ravel()
    missing = np.where(kind == NONE, n_negative, np.where(goes_left, 0, n_thresholds))
    near_zero = np.where(kind == ZERO, NEAR_ZERO, np.float32(-1))
    columns = ThresholdColumns(
        *_frozen(
            feature.astype(np.uint64),
            missing.astype(np.uint8),
            near_zero.astype(np.float32),
            first.astype(np.uint64),
            thresholds,
            first_level.astype(np.uint64),
            places,
        )
    )
    return columns, column, place


def _make_forest(trees: Trees, nodes: _Nodes, column: Integers, place: Integers) -> Forest:
    """The words of the trees, and a test for each split and each word that has leaves of its smaller child."""
    size = int(LEAVES)
    first_word = _padded_starts(-(-nodes.n_leaves // size), 1)
    values = np.zeros(first_word[-1] * size)
    values[first_word[nodes.leaf_tree] * size + nodes.leaf_number] = trees.values
    n_words = (nodes.last - 1) // size - nodes.first // size + 1
    split = np.repeat(np.arange(len(n_words)), n_words)
    within = np.arange(len(split)) - np.repeat(np.cumsum(n_words) - n_words, n_words)
    word = nodes.first[split] // size + within
    low = np.maximum(nodes.first[split] - word * size, 0)
    high = np.minimum(nodes.last[split] - word * size, size)
    leaves = (1 << high) - (1 << low)
    word += first_word[nodes.tree[split]]
    order = np.argsort(word, kind="stable")
    split, word, leaves = split[order], word[order], leaves[order]
    n_tests = np.bincount(word, minlength=first_word[-1])
    first_test = _padded_starts(n_tests, 1)
    # The smaller child is ruled out where the document goes to the other one: left where it is the right child.
    is_swapped = nodes.is_swapped[split]
    return Forest(
        *_frozen(
            first_word.astype(np.uint64),
            values,
            first_test.astype(np.uint64),
            column[split].astype(np.uint32),
            place[split].astype(np.uint8),
            np.where(is_swapped, 0, leaves).astype(np.uint8),
            np.where(is_swapped, leaves, 0).astype(np.uint8),
        )
    )


def _changes(*arrays: NDArray[Any]) -> NDArray[np.bool_]:
    """Where any of the arrays differs from the element before; true for the first element."""
    changes = np.ones(len(arrays[0]), bool)
    changes[1:] = False
    for array in arrays:
        changes[1:] |= array[1:] != array[:-1]
    return changes


def _largest(values: Integers, groups: Integers, n_groups: int) -> Integers:
    """The largest value of each group; 0 for an empty group.

    >>> _largest(np.array([5, 7, 3]), np.array([0, 0, 2]), 3).tolist()
    [7, 0, 3]
    """
    largest = np.zeros(n_groups, np.int64)
    np.maximum.at(largest, groups, values)
    return largest


def _padded_starts(lengths: Integers, multiple: int) -> Integers:
    """Where groups start, and the last ends, if each is padded to a multiple.

    >>> _padded_starts(np.array([3, 4, 0, 5]), 4).tolist()
    [0, 4, 8, 8, 16]
    """
    return np.concatenate([[0], np.cumsum(-(-lengths // multiple) * multiple)])


def _frozen(*arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """The arrays, read-only: compiled code takes tuples of such arrays only."""
    for array in arrays:
        array.setflags(write=False)
    return arrays
