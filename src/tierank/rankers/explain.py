"""Why one document is ranked above another, which features matter, and what notebooks show of a ranker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tierank import display as notebook
from tierank.arrays import Floats, Rows
from tierank.data.checks import feature_labels
from tierank.data.columns import Category, ColumnTypes, Indicator
from tierank.data.dataset import RankingDataset, check_dataset
from tierank.errors import DataError, ParameterError
from tierank.metrics import Judge
from tierank.rankers.base import FITTED, Ranker, check_ranker, check_scored_by_model
from tierank.settings import as_limit, declared

if TYPE_CHECKING:
    from tierank.rankers.base import Ranker
# Names that a message lists.
_LISTED = 8


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why document ``above`` has a higher score than ``below``; if it has a lower one, ``difference`` is negative.

    Attributes
    ----------
    query : object
        The id of the query.
    above, below : str
        The documents: their ids, or their numbers in the query from 1.
    difference : float
        The score of ``above`` minus the score of ``below``.
    contributions : array
        What each feature adds to ``difference``.
    rest : float
        ``difference`` minus the sum of the contributions: rounding for trees, less than 1% for networks that score one
        document at a time.
    features : tuple of str
        The names of the features.
    values_above, values_below : array
        The feature values of the two documents.
    kinds : mapping of str to ColumnType
        The kind of each feature that is not a plain number, by feature name.
    """

    query: Any
    above: str
    below: str
    difference: float
    contributions: Floats
    rest: float
    features: tuple[str, ...]
    values_above: NDArray[np.float32]
    values_below: NDArray[np.float32]
    kinds: ColumnTypes = field(default_factory=dict)

    def held(self, j: int) -> tuple[float | str | None, float | str | None]:
        """The values of a feature in the two documents: numbers, texts for a category, None if missing."""
        kind = self.kinds.get(self.features[j])
        numbers = _finite(self.values_above[j]), _finite(self.values_below[j])
        if not isinstance(kind, Category):
            return numbers
        above, below = (None if number is None else kind.levels[int(number)] for number in numbers)
        return above, below

    def top(self, n: int | None = None) -> NDArray[np.int64]:
        """The features with the largest contributions.

        Parameters
        ----------
        n : int, optional
            At most this many. Default: all that contribute.

        Returns
        -------
        array of int
            Indices of features, the largest absolute contribution first.
        """
        order = np.argsort(-np.abs(self.contributions), kind="stable")
        return np.asarray(order[self.contributions[order] != 0][:n], np.int64)

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON with all fields, and a dict for each feature; missing values are None."""
        rows = [
            {
                "feature": self.features[j],
                "contribution": float(self.contributions[j]),
                "above": self.held(j)[0],
                "below": self.held(j)[1],
            }
            for j in self.top()
        ]
        query = self.query.item() if isinstance(self.query, np.generic) else self.query
        return {
            "query": query if isinstance(query, (int, float, str)) else str(query),
            "above": self.above,
            "below": self.below,
            "difference": self.difference,
            "rest": self.rest,
            "contributions": rows,
        }

    def to_pandas(self) -> Any:
        """A pandas table with a row per feature that contributes, the largest contribution first."""
        top = self.top()
        return notebook.as_pandas(
            {
                "feature": [self.features[j] for j in top],
                "contribution": self.contributions[top],
                "above": self.values_above[top],
                "below": self.values_below[top],
            }
        )

    def _repr_html_(self) -> str:
        top = self.top(notebook.ROWS)
        names = [f"{self.features[j]} ({' against '.join(map(format_value, self.held(j)))})" for j in top.tolist()]
        drawn = notebook.bars(names, [float(self.contributions[j]) for j in top], "contribution")
        return notebook.sheet(self._title, drawn, notebook.note(self._sum))

    def __str__(self) -> str:
        rows = [
            [self.features[j], f"{self.contributions[j]:+.4f}", *map(format_value, self.held(j))]
            for j in self.top().tolist()
        ]
        heads = ["feature", "contribution", f"above: {self.above}", f"below: {self.below}"]
        return "\n".join([self._title, *notebook.lines(heads, rows), self._sum])

    __repr__ = __str__

    @property
    def _title(self) -> str:
        return f"Query {self.query!s}: {self.above} above {self.below}"

    @property
    def _sum(self) -> str:
        return f"the scores differ by {self.difference:+.4f}; all contributions sum to it"


class Explanations(list[Explanation]):
    """A list of explanations; shown one below the other."""

    def _repr_html_(self) -> str:
        return "".join(one._repr_html_() for one in self)

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self))


def format_value(value: float | str | None, n_digits: int = 4) -> str:
    """The value of a feature as text.

    >>> format_value(0.123456), format_value("red"), format_value(None)
    ('0.1235', 'red', 'missing')
    """
    if value is None:
        return "missing"
    return value if isinstance(value, str) else f"{value:.{n_digits}g}"


def explain_pair(
    ranker: Ranker, data: RankingDataset, query: object, above: int | str, below: int | str
) -> Explanation:
    """Explain what each feature adds to score(above) - score(below), in the list of a query.

    Trees are explained by differences of TreeSHAP values, networks by integrated gradients along the path between the
    two documents, with as many steps as accuracy needs. Contributions of copies that are scaled within the query count
    for the original feature.

    Parameters
    ----------
    ranker : Ranker
        A fitted ranker.
    data : RankingDataset
        Data with the query.
    query : object
        The id of the query, or its text.
    above, below : int or str
        The two documents: their ids, or their numbers in the query from 1, as in the file.

    Returns
    -------
    Explanation
        The contribution of each feature.

    Examples
    --------
    >>> import tierank
    >>> data = tierank.make_ranking(60, n_features=5, mean_length=20, max_length=40)
    >>> ranker = tierank.LambdaMART(n_trees=10, n_jobs=1).fit(data)
    >>> found = explain_pair(ranker, data, data.query_ids[0], 1, 2)
    >>> bool(abs(found.contributions.sum() + found.rest - found.difference) < 1e-9)
    True
    """
    chosen, own = _list_of(ranker, data, query)
    rows = [_find_document(chosen, name) for name in (above, below)]
    if rows[0] == rows[1]:
        raise ParameterError(where=f"query {query!s}", expected="two documents", got=f"{above!r} twice")
    return _explain(ranker, chosen, own, np.array(rows[:1]), np.array(rows[1:]))[0]


def explain_query(ranker: Ranker, data: RankingDataset, query: object, k: int | None = 10) -> Explanations:
    """Explain why each of the first documents of a list is ranked above the next one.

    Parameters
    ----------
    ranker : Ranker
        A fitted ranker.
    data : RankingDataset
        Data with the query.
    query : object
        The id of the query, or its text.
    k : int or None, default 10
        Number of documents to explain; None for the whole list.

    Returns
    -------
    list of Explanation
        One per document, best first. The differences of the whole list sum to the score of the first document minus
        that of the last.

    Examples
    --------
    >>> import tierank
    >>> data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
    >>> ranker = tierank.UMart(n_trees=5).fit(data)
    >>> first, second = explain_query(ranker, data, query=1, k=2)
    >>> first.difference >= 0, first.below == second.above, first.contributions.shape
    (True, True, (5,))
    """
    chosen, own = _list_of(ranker, data, query)
    order = np.argsort(-ranker.model_.predict(own, ranker.resources()), kind="stable")
    k = as_limit("k", k)
    return _explain(ranker, chosen, own, order[:-1][:k], order[1:][:k])


def explain_rows(ranker: Ranker, data: RankingDataset, above: Rows, below: Rows) -> list[Explanation]:
    """Why some rows are ranked above others: pairs of rows of one query, counted from 0."""
    chosen, own = _list_of(ranker, data, data.query_ids[0])
    return _explain(ranker, chosen, own, above, below)


def _explain(ranker: Ranker, chosen: RankingDataset, own: RankingDataset, above: Rows, below: Rows) -> Explanations:
    """Explanations of pairs of rows; ``own`` has the features that the ranker learned from."""
    if not len(above):
        return Explanations()
    resources = ranker.resources()
    scores = ranker.model_.predict(own, resources)
    contributions = ranker.model_.contributions(own, above, below, resources)
    names = feature_labels(own.feature_names or ranker.seen_.feature_names, own.n_features)
    return Explanations(
        Explanation(
            query=chosen.query_ids[0],
            above=_name(chosen, a),
            below=_name(chosen, b),
            difference=float(difference),
            contributions=shares,
            rest=float(difference - shares.sum()),
            features=names,
            values_above=own.features[a],
            values_below=own.features[b],
            kinds=own.kinds,
        )
        for a, b, difference, shares in zip(above, below, scores[above] - scores[below], contributions, strict=True)
    )


def _list_of(ranker: Ranker, data: RankingDataset, query: object) -> tuple[RankingDataset, RankingDataset]:
    """The documents of one query, and the same with the features that the ranker learned from."""
    check_ranker("ranker", ranker, FITTED)
    check_scored_by_model(ranker, "explain")
    check_dataset("data", data)
    chosen = data.select([_find_query(data, query)])
    return chosen, ranker.match_features(chosen)


def _find_query(data: RankingDataset, query: object) -> int:
    """The index of a query, by its id or the text of its id."""
    ids: list[object] = data.query_ids.tolist()
    if query in ids:
        return ids.index(query)
    texts = [str(i) for i in ids]
    if str(query) not in texts:
        raise DataError(argument="query", expected=f"an id of the data, such as {_some(texts)}", got=repr(query))
    return texts.index(str(query))


def _find_document(chosen: RankingDataset, name: int | str) -> int:
    """The row of a document of the query, by its id or its number, counted from 1."""
    n, ids = chosen.n_documents, chosen.document_ids
    if ids is not None and str(name) in ids and not isinstance(name, (int, np.integer)):
        return ids.index(str(name))
    text = str(name)
    if text.isdecimal() and 1 <= int(text) <= n:
        return int(text) - 1
    known = "" if ids is None else f", or an id such as {_some(ids)}"
    raise DataError(
        where=f"query {chosen.query_ids[0]!s}", expected=f"a document by its number, 1 to {n}{known}", got=repr(name)
    )


def _some(texts: list[str]) -> str:
    return f"{', '.join(texts[:_LISTED])}{', ...' if len(texts) > _LISTED else ''}"


def _name(chosen: RankingDataset, row: int) -> str:
    return str(row + 1) if chosen.document_ids is None else chosen.document_ids[row]


def _finite(value: np.float32) -> float | None:
    return float(value) if np.isfinite(value) else None


# Importance


# Documents that are predicted at a time: each call of predict has a fixed cost.
_TOGETHER = 50_000

Importance = TypeVar("Importance", float, Floats)


def losses_of_shuffles(
    data: RankingDataset,
    predict: Callable[[RankingDataset], Floats],
    judge: Judge,
    used: NDArray[np.bool_],
    n_repeats: int,
    seed: int,
) -> Floats:
    """How much the mean of a metric drops, for each feature and repeat; 0 for unused features.

    All features are shuffled alike, so that their order does not matter.
    """

    def mean(scores: Floats) -> float:
        (values,) = judge(scores).values()
        return float(np.nanmean(values))

    losses = np.zeros((data.n_features, n_repeats))
    base, shuffles = mean(predict(data)), list(product(np.flatnonzero(used).tolist(), range(n_repeats)))
    n_copies = max(1, min(_TOGETHER // data.n_documents, len(shuffles)))
    copies = _repeat(data, n_copies)
    blocks = copies.features.reshape(n_copies, data.n_documents, data.n_features)
    for first in range(0, len(shuffles), n_copies):
        some = shuffles[first : first + n_copies]
        for block, (column, repeat) in zip(blocks, some, strict=False):
            order = np.random.default_rng([seed, repeat]).permutation(data.n_documents)
            block[:, column] = data.features[order, column]
        scores = predict(copies).reshape(n_copies, data.n_documents)
        for block, of_block, (column, repeat) in zip(blocks, scores, some, strict=False):
            losses[column, repeat] = base - mean(of_block)
            block[:, column] = data.features[:, column]
    return losses


def most_important(found: Mapping[str, Importance], n: int) -> dict[str, Importance]:
    """The features that are most important (on average, if it was measured several times), the first one most."""
    return dict(nlargest(n, found.items(), key=lambda one: float(np.mean(one[1]))))


def by_name(losses: Floats, data: RankingDataset) -> dict[str, Floats]:
    """What ``permutation_importance`` returns, by the names of the features."""
    return dict(zip(feature_labels(data.feature_names, data.n_features), losses, strict=True))


def _repeat(data: RankingDataset, n: int) -> RankingDataset:
    """A data set that holds copies of all queries, one after the other."""
    starts = np.arange(n)[:, None] * data.n_documents + data.offsets[:-1]
    offsets = np.append(starts.ravel(), n * data.n_documents)
    return RankingDataset.from_parts(
        np.tile(data.features, (n, 1)),
        None,
        offsets,
        np.arange(n * data.n_queries),
        feature_names=data.feature_names,
        kinds=data.kinds,
    )


# Features whose importance is shown.
_IMPORTANT = 15


def gains_by_column(ranker: Ranker) -> dict[str, float]:
    """The total gain of the splits on each feature of the data; empty for rankers without trees.

    0/1 features of levels count for their column.
    """
    if not hasattr(ranker, "importance"):
        return {}
    gains, seen = ranker.importance("gain").tolist(), ranker.seen_
    found: dict[str, float] = {}
    for name, gain in zip(feature_labels(seen.feature_names, len(gains)), gains, strict=True):
        kind = seen.columns.kinds.get(name)
        column = kind.column if isinstance(kind, Indicator) else name
        found[column] = found.get(column, 0.0) + gain
    return found


def as_html(ranker: Ranker) -> str:
    """Settings and, once fitted, history and importances."""
    name, settings, known = type(ranker).__name__, ranker.get_params(deep=False), declared(ranker)
    texts = {one: repr(value) for one, value in settings.items()}
    rows = [[one, text if len(text) <= 100 else f"{text[:97]}..."] for one, text in texts.items()]
    changed = [row for row in rows if row[0] not in known or settings[row[0]] != known[row[0]].default]
    parts = [notebook.grid(["setting", "value"], changed)] if changed else []
    parts.append(notebook.folded(f"all {len(rows)} settings", notebook.grid(["setting", "value"], rows, len(rows))))
    if not hasattr(ranker, "model_"):
        return notebook.sheet(f"{name}, not fitted", *parts)
    best = ", ".join(f"{metric} {value:.4f}" for metric, value in ranker.best_.items())
    parts.insert(0, notebook.note(f"fitted on {ranker.seen_.n_features:,} features{f'; best: {best}' if best else ''}"))
    history = ranker.history_
    metric = next((one for one in (history[0] if history else {}) if one in ranker.best_), None)
    if metric is not None:
        values = [np.nan if row.get(metric) is None else float(row[metric]) for row in history]
        parts.append(notebook.curve(f"{metric} on validation data, {len(values)} rounds", values))
    top = most_important(gains_by_column(ranker), _IMPORTANT)
    if top:
        drawn = notebook.bars(list(top), list(top.values()), "gain")
        parts.append(notebook.folded(f"importances of {len(top)} features", drawn))
    return notebook.sheet(name, *parts)
