"""Proof that an export scores like the ranker: on data, and on rows generated to expose differences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.data.dataset import RankingDataset, check_dataset
from tierank.errors import DataError, ParameterError, TierankError
from tierank.export.neutral import (
    NEAR_ZERO,
    Model,
    Network,
    QueryCopies,
    Scorer,
    StandardisedMean,
    Trees,
    trees_in,
    walk,
)
from tierank.export.targets import Target, as_target
from tierank.files import as_path
from tierank.transforms import Unchanged

# The largest difference that counts as none.
TOLERANCE = 1e-5
# Scores this close are a tie in single precision, in which most engines add up: eight times its rounding error.
TIE = 2.0**-20
# The most rows that are generated, the number of rows per query, and the most splits that rows are generated for.
_ROWS, _LENGTH, _SPLITS = 30_000, 50, 5_000
# Errors that say that there are other files in place of an export.
_OTHER_FILES = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# Columns, and values for them.
_Places = tuple[NDArray[np.int64], NDArray[np.float32]]


class Exportable(Protocol):
    """A fitted ranker."""

    def predict(self, X: Any) -> Floats:
        """One score per document."""

    def match_features(self, X: Any) -> RankingDataset:
        """The data with the features of the model."""

    def to_neutral(self) -> Model:
        """The model in the neutral form."""


@dataclass(frozen=True)
class Proof:
    """The result of ``verify``. It holds if no documents are swapped and no difference is above 1e-5.

    Differences are relative to the score of the document, or to the deviation of all scores if that is larger.

    Attributes
    ----------
    target : str
        The name of the target.
    n_documents, n_generated : int
        Number of documents in the data, and of generated rows.
    n_queries : int
        Number of queries, including generated lists.
    n_same : int
        Number of queries with the same order of documents.
    n_close : int
        Number of neighbours that changed places but are tied in single precision.
    n_swapped : int
        Number of other neighbours that changed places.
    largest : float
        The largest relative difference of a score.
    """

    target: str
    n_documents: int
    n_generated: int
    n_queries: int  # including generated lists
    n_same: int  # queries with the same order of documents
    n_close: int
    n_swapped: int
    largest: float

    @property
    def holds(self) -> bool:
        """Whether the export gives the same scores as the ranker."""
        return self.largest <= TOLERANCE and not self.n_swapped

    def __str__(self) -> str:
        rows = f"{self.n_documents:,} documents and {self.n_generated:,} generated rows"
        order = f"the same order in {self.n_same:,} of {self.n_queries:,} queries"
        if self.n_close:
            order += f" ({self.n_close:,} swapped neighbours differ by less than 1e-6)"
        if self.n_swapped:
            order += f" ({self.n_swapped:,} swapped neighbours differ by more)"
        word = "scores as the model does" if self.holds else "does NOT score as the model does"
        return f"{self.target}: {word}: {rows}, largest relative difference {self.largest:.1e}, {order}"


def verify(ranker: Exportable, path: str | os.PathLike[str], to: str | Target, data: RankingDataset) -> Proof:
    """Check that an export gives the same scores as the ranker, on your data and on generated edge cases.

    Generated rows reach each split of the trees, with values at its threshold and one float32 step next to it; others
    have extreme values and missing values, for networks only if the model saw any in training. Scores come from
    onnxruntime, from the compiled C source, or from the documented rules of the engine.

    Parameters
    ----------
    ranker : Ranker
        The fitted ranker.
    path : path
        The export that ``ranker.export`` wrote.
    to : str or Target
        The target it was written for.
    data : RankingDataset
        Data to score.

    Returns
    -------
    Proof
        ``holds``, the largest difference, and the number of documents that changed places.

    Raises
    ------
    DataError
        If there is no export, if it is damaged, or if its features are not those of the ranker.

    Examples
    --------
    >>> import tempfile, tierank
    >>> data = tierank.make_ranking(40, n_features=5, mean_length=20, max_length=40)
    >>> ranker = tierank.UMart(n_trees=10).fit(data)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ranker.export(f"{folder}/solr", to="solr")
    ...     proof = verify(ranker, f"{folder}/solr", "solr", data)
    >>> proof.holds, proof.n_swapped
    (True, 0)
    """
    check_dataset("data", data)
    target = as_target(to)
    if isinstance(ranker, type) or not hasattr(ranker, "to_neutral"):
        raise ParameterError(argument="ranker", expected="a fitted ranker", got=type(ranker).__name__)
    model, place = ranker.to_neutral(), as_path(path)
    if not place.exists():
        expected = f"an export for {target.name}"
        raise DataError(where=place, expected=expected, got="nothing", fix="export the model first")
    data = ranker.match_features(data)
    generated = generate_rows(model, data, bounded=target.keeps_limits)
    parts, constant = (data, generated), target.constant(model)
    theirs = [scores - constant for scores in _scores(target, place, model, parts)]
    ours = [np.asarray(ranker.predict(part), np.float64) for part in parts]
    ours[0] = data.arrange(ours[0])
    comparisons = [
        count_swaps(a, b, part.offsets, _floor(a, constant)) for a, b, part in zip(ours, theirs, parts, strict=True)
    ]
    same, close, swapped, largest = zip(*comparisons, strict=True)
    n_queries = data.n_queries + generated.n_queries
    counts = data.n_documents, generated.n_documents, n_queries, sum(same), sum(close), sum(swapped)
    return Proof(target.name, *counts, max(largest))


def _scores(target: Target, place: Path, model: Model, parts: Sequence[RankingDataset]) -> list[Floats]:
    """The scores that an export gives to each part of the data. Raises ``DataError`` if it is damaged."""
    try:
        names = model.names if target.names is None else target.names(place)
        if list(names) != list(model.names):
            first = (
                f"{there!r} in place of {own!r}" for own, there in zip(model.names, names, strict=False) if own != there
            )
            got = next(first) if len(names) == model.n_features else f"{len(names)} in place of {model.n_features}"
            raise DataError(where=place, expected="the features of the model, in their order", got=got)
        run = target.open(place)
        found = [run(part.features, part.offsets) for part in parts]
        for scores, part in zip(found, parts, strict=True):
            if scores.shape != (part.n_documents,):
                raise DataError(expected=f"{part.n_documents} scores", got=f"an array of shape {scores.shape}")
        return found
    except MemoryError:
        raise
    except Exception as error:  # any that a damaged file leads to, here or in the engine
        is_damage = isinstance(error, DataError) and error.where != str(place)
        if isinstance(error, (TierankError, OSError)) and not (is_damage or isinstance(error, _OTHER_FILES)):
            raise
        got = f"one that cannot be used: {' '.join(f'{type(error).__name__}: {error}'.split())}"
        expected = f"an export of this model for {target.name}"
        raise DataError(where=place, expected=expected, got=got, fix="export the model again") from error


def _floor(scores: Floats, constant: float) -> float:
    """The deviation of the scores, which a difference is relative to if it is larger than the score.

    If all scores are equal, there is no order that depends on the digits that the constant of an engine takes from a
    score near 0: a difference is then relative to the constant.
    """
    deviation = float(scores.std())
    return deviation if deviation > StandardisedMean.ROUNDING * constant else constant / 64


def count_swaps(ours: Floats, theirs: Floats, offsets: NDArray[np.int64], floor: float) -> tuple[int, int, int, float]:
    """The number of queries in the same order, of close and other swapped neighbours, and the largest difference."""
    query = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    scale = np.maximum(np.maximum(np.abs(ours), floor), np.finfo(np.float64).tiny)
    difference = np.abs(ours - theirs) / scale
    order = np.lexsort((-theirs, -ours, query))  # if our scores are equal, any order is right
    above, below = order[:-1], order[1:]
    changed = (query[above] == query[below]) & ~(theirs[above] >= theirs[below])
    near = (ours[above] - ours[below]) <= TIE * scale[above]
    n_same = len(offsets) - 1 - len(np.unique(query[above][changed]))
    largest = float(np.where(np.isnan(difference), np.inf, difference).max())
    return n_same, int((changed & near).sum()), int((changed & ~near).sum()), largest


def generate_rows(model: Model, data: RankingDataset, *, bounded: bool, seed: int = 0) -> RankingDataset:
    """Rows that expose differences.

    For each split of a tree, there are documents that reach it, with its threshold and the neighbours of that in
    float32, and with a missing value. Others are documents of the data with one value changed: to extremes, categories,
    and missing values. If the model has only trees, any feature may be missing.

    If trees see the range of a query, there are also lists in which a feature goes from 0 to 1 through the thresholds.
    ``bounded``: whether every transform clips huge numbers, so that they can be included.
    """
    rng, seen = np.random.default_rng(seed), model.seen_missing()

    def sampled(n: int) -> NDArray[np.float32]:
        """Some documents of the data, without missing values if the model never saw any."""
        rows = data.features[rng.integers(data.n_documents, size=n)]
        return np.where(np.isnan(rows) & ~seen, np.float32(0), rows)

    parts = list(walk(model.scorer))
    networks = [part for part in parts if isinstance(part, Network)]
    plain = [part for part in parts if isinstance(part, Trees)]
    bounded = all(bounded and not isinstance(network.transform, Unchanged) for network in networks)
    missing = seen if networks else np.ones(model.n_features, bool)
    reaching = []
    for trees in plain:
        splits = rng.permutation(np.flatnonzero(~trees.is_category))[: _SPLITS // len(plain)]
        reaching.append(_at_splits(trees, splits, missing, sampled(len(splits))))
    copies = [part for part in parts if isinstance(part, QueryCopies)]
    by_number = [(~part.trees.is_category, part.trees) for part in copies]
    thresholds = [(trees.feature[chosen], trees.threshold[chosen]) for chosen, trees in by_number]
    columns, values = _beside(*_joined([*thresholds, *map(_categories, copies)]))
    own, in_range = (columns // data.n_features == copy for copy in (0, 1))
    others: list[Scorer] = [*networks, *plain]
    places = [(columns[own], values[own]), *(_beside(*_categories(part)) for part in others)]
    gaps = np.repeat(np.flatnonzero(missing), 20)
    places += [_at_extremes(data, bounded), (gaps, np.full(len(gaps), np.nan, np.float32))]
    features, changes = _joined(places)
    chosen = rng.permutation(len(features))[: _ROWS - sum(map(len, reaching))]
    changed = sampled(len(chosen))
    changed[np.arange(len(chosen)), features[chosen]] = changes[chosen]
    rows = np.concatenate([*reaching, changed])
    blocks = [rows[first : first + _LENGTH] for first in range(0, len(rows), _LENGTH)]
    for feature, through in _through_ranges(columns[in_range] - data.n_features, values[in_range], rng):
        blocks.append(sampled(len(through)))
        blocks[-1][:, feature] = through
    offsets = np.cumsum([0, *map(len, blocks)])
    rows, queries = np.concatenate(blocks), np.arange(len(blocks))
    return RankingDataset.from_parts(rows, None, offsets, queries, feature_names=data.feature_names, kinds=data.kinds)


def _joined(places: Sequence[_Places]) -> _Places:
    """All columns and values joined; empty if there are none."""
    none = np.empty(0, np.int64), np.empty(0, np.float32)
    features, values = (np.concatenate(column) for column in zip(none, *places, strict=True))
    return features, values


def _categories(part: Scorer) -> _Places:
    """All categories of the features that are split by category or have embeddings, and some out of range."""
    found = [(one.feature, one.n_levels) for one in part.embeddings] if isinstance(part, Network) else []
    for trees in trees_in(part):
        n_members = 0 if trees.members is None else trees.members.shape[1]
        found += [(feature, n_members) for feature in np.unique(trees.feature[trees.is_category]).tolist()]
    return _joined([(np.full(n + 4, feature), np.arange(-2, n + 2, dtype=np.float32)) for feature, n in found])


def _at_splits(
    trees: Trees, splits: NDArray[np.int64], missing: NDArray[np.bool_], rows: NDArray[np.float32]
) -> NDArray[np.float32]:
    """These rows, changed to reach the splits: a document of the data rarely reaches a deep one."""
    low, high = _bounds(trees, splits, rows.shape[1])
    takes_zero = np.isin(np.arange(rows.shape[1]), trees.feature[trees.takes_zero])
    is_missing = takes_zero & (np.abs(rows) <= NEAR_ZERO)  # goes its own way
    fits = ((rows > low) & (rows <= high) & ~is_missing) | (np.isneginf(low) & np.isposinf(high))
    with np.errstate(over="ignore"):
        rows = np.where(fits, rows, np.where(np.isfinite(high), high, np.nextafter(low, np.float32(np.inf))))
    feature = trees.feature[splits]
    gaps = np.flatnonzero(missing[feature])
    none = np.full(len(gaps), np.nan, np.float32)
    places, values = _joined([_beside(np.arange(len(splits)), trees.threshold[splits]), (gaps, none)])
    changed = rows[places]
    changed[np.arange(len(places)), feature[places]] = values
    return changed[~np.isinf(changed).any(axis=1)]  # no finite number reaches the split


def _bounds(
    trees: Trees, splits: NDArray[np.int64], n_features: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The values of each feature with which a document reaches each of the splits: above the first, up to the second.

    Splits by category on the way are left out.
    """
    parent, is_left = np.full(len(trees.feature), -1), np.zeros(len(trees.feature), bool)
    for children, side in ((trees.left, True), (trees.right, False)):
        inner = np.flatnonzero(children >= 0)
        parent[children[inner]], is_left[children[inner]] = inner, side
    low = np.full((len(splits), n_features), -np.inf, np.float32)
    high = np.full((len(splits), n_features), np.inf, np.float32)
    place, rows = splits.copy(), np.arange(len(splits))
    while len(rows := rows[parent[place[rows]] >= 0]):
        child, above = place[rows], parent[place[rows]]
        place[rows] = above
        for ends, tighter, on_side in ((high, np.minimum, is_left[child]), (low, np.maximum, ~is_left[child])):
            chosen = on_side & ~trees.is_category[above]
            at = rows[chosen], trees.feature[above[chosen]]
            ends[at] = tighter(ends[at], trees.threshold[above[chosen]])
    return low, high


def _beside(columns: NDArray[np.int64], thresholds: NDArray[np.float32]) -> _Places:
    """The thresholds, and the neighbouring float32 numbers."""
    with np.errstate(over="ignore"):  # the largest number has no finite neighbour
        up, down = (np.nextafter(thresholds, np.float32(side)) for side in (np.inf, -np.inf))
    values = np.concatenate([thresholds, up, down])
    finite = np.isfinite(values)
    return np.tile(columns, 3)[finite], values[finite]


def _through_ranges(
    features: NDArray[np.int64], values: NDArray[np.float32], rng: np.random.Generator
) -> list[tuple[int, NDArray[np.float32]]]:
    """Lists in which a feature takes values from 0 to 1, which then equal their range-scaled values."""
    lists = []
    for feature in np.unique(features).tolist():
        inside = np.unique(values[(features == feature) & (values > 0) & (values < 1)])
        for first in range(0, len(inside), _LENGTH):
            ends = np.array([0.0, 1.0], np.float32)
            lists.append((feature, rng.permutation(np.concatenate([ends, inside[first : first + _LENGTH]]))))
    chosen = rng.permutation(len(lists))[: _ROWS // _LENGTH]
    return [lists[k] for k in chosen]


def _at_extremes(data: RankingDataset, bounded: bool) -> _Places:
    """The extremes of float32 and the numbers around 0; less extreme values if networks have to scale them."""
    largest, tiny = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal
    edge = np.nextafter(NEAR_ZERO, np.array([0, 1], np.float32))  # around what LightGBM treats as 0
    sizes = np.concatenate([np.array([0, tiny, NEAR_ZERO], np.float32), edge])
    columns = np.repeat(np.arange(data.n_features), 2 * len(sizes) + 2)
    if bounded:
        values = np.concatenate([sizes, -sizes, np.array([largest, -largest], np.float32)])
        return columns, np.tile(values, data.n_features)
    known = np.where(np.isnan(data.features), np.float32(0), data.features)
    low, high = known.min(axis=0).astype(np.float64), known.max(axis=0).astype(np.float64)
    outer = np.stack([low - (high - low), high + (high - low)], axis=1).clip(-largest, largest)
    small = np.tile(np.concatenate([sizes, -sizes]), (data.n_features, 1)).clip(*outer.T[:, :, None])
    return columns, np.concatenate([small, outer], axis=1).astype(np.float32).ravel()
