"""Metrics and folds for scikit-learn's tools: ``scorer`` evaluates lists, ``QueryKFold`` keeps them whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.metadata_routing import MetadataRequest, get_routing_for_object

from tierank.arrays import Rows
from tierank.data.dataset import RankingDataset
from tierank.data.matching import HOW_TO_ROUTE, as_dataset
from tierank.data.tables import query_ids_in
from tierank.errors import DataError
from tierank.metrics import Rule, as_rule, metric_name, parse_metric
from tierank.metrics.evaluate import evaluate
from tierank.rankers.training_data import warn_of_odd_lists
from tierank.settings import as_whole

if TYPE_CHECKING:  # scikit-learn has no types

    class BaseCrossValidator:
        """The base class by which scikit-learn recognises folds."""

else:
    from sklearn.model_selection import BaseCrossValidator


def scorer(metric: str = "ndcg@10", rule: str | Rule = "tierank") -> MetricScorer:
    """The mean of a metric as a scorer for scikit-learn's tools, which pass the query ids to it.

    It works with anything that predicts a number per row: a ranker, a pipeline, a search, a regressor.

    Parameters
    ----------
    metric : str, default "ndcg@10"
        The metric.
    rule : str or Rule, default "tierank"
        The rule of the metric.

    Returns
    -------
    MetricScorer
        A callable ``(estimator, X, y, qid) -> float``.

    Examples
    --------
    >>> import tierank
    >>> data = tierank.make_ranking(40, n_features=5, mean_length=10, max_length=20)
    >>> X, y, qid = data.features, data.ratings, np.repeat(data.query_ids, data.lengths)
    >>> ranker = tierank.UMart(n_trees=5).fit(X, y, qid=qid)
    >>> by_hand = tierank.evaluate(data, ranker.predict(X, qid=qid), "err@5").mean("err@5")
    >>> tierank.scorer("err@5")(ranker, X, y, qid=qid) == by_hand
    True
    """
    return MetricScorer(metric, rule)


class MetricScorer:
    """``(estimator, X, y, qid) -> float``: the mean of a metric over the queries, as by ``evaluate``.

    It requests ``qid`` from scikit-learn, and works with anything that predicts a number per row: rankers, a pipeline
    that ends in one, a search over them, a regressor. Tools without routing, such as ``permutation_importance``, take
    ``functools.partial(scorer("ndcg@10"), qid=qid)``.
    """

    metric: str
    rule: Rule

    def __init__(self, metric: str, rule: str | Rule) -> None:
        parse_metric(metric)
        self.metric, self.rule = metric_name(metric), as_rule(rule)
        self._qid_name: str | bool | None = True

    def __repr__(self) -> str:
        return f"scorer({self.metric!r}, rule={self.rule.name!r})"

    def __call__(self, estimator: Any, X: Any, y: ArrayLike | None = None, qid: ArrayLike | None = None) -> float:
        """The mean of the metric over the queries, by the scores that the estimator predicts."""
        estimator = getattr(estimator, "best_estimator_", estimator)  # the search itself predicts without query ids
        known = qid is not None or isinstance(X, RankingDataset)
        ranker = _last_step(estimator)
        if not known:
            qid = query_ids_in(X, getattr(getattr(ranker, "seen_", None), "query_column", None))
            known = qid is not None
        if not known and _has_queries(ranker):
            got = f"none, and all rows as one query would give another {self.metric}"
            raise DataError(argument="qid", expected="one query id per row", got=got, fix=HOW_TO_ROUTE)
        scores = estimator.predict(X) if qid is None else self._predict(estimator, X, qid)
        data = as_dataset(X if isinstance(X, RankingDataset) else np.zeros((len(scores), 1), np.float32), y, qid)
        warn_of_odd_lists(getattr(ranker, "_lists", None), data, has_queries=known)
        return evaluate(data, scores, self.metric, self.rule).mean(self.metric)

    def _predict(self, estimator: Any, X: Any, qid: ArrayLike) -> Any:
        """The predictions, with query ids if the estimator or a step of it requests them."""
        routing = get_routing_for_object(estimator)
        asked = routing.consumes("predict", {"qid", self._qid_name})
        if not asked:
            return estimator.predict(X)
        # A name chosen by the caller applies to routing; the ranker itself calls them qid.
        return estimator.predict(X, **{"qid" if isinstance(routing, MetadataRequest) else asked.pop(): qid})

    def set_score_request(self, *, qid: str | bool | None) -> MetricScorer:
        """Set the name under which query ids are passed to scikit-learn's tools; True: ``qid``."""
        self._qid_name = qid
        return self

    def get_metadata_routing(self) -> MetadataRequest:
        """The request for query ids, as scikit-learn's tools read it."""
        request = MetadataRequest(owner=self)
        request.score.add_request(param="qid", alias=self._qid_name)
        return request


def _last_step(estimator: Any) -> Any:
    """The ranker at the end of a pipeline, or the estimator itself."""
    return estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator


def _has_queries(estimator: Any) -> bool:
    """Whether the estimator was fitted with query ids; True if unknown."""
    seen = getattr(estimator, "seen_", None)
    return seen is None or bool(seen.has_queries)


class QueryKFold(BaseCrossValidator):
    """Folds of whole queries: the documents of a query are all in the training rows or all in the test rows.

    Folds differ by at most one query, and by at most the number of documents of the longest list: queries are sorted by
    length and dealt to the folds ``n_splits`` at a time. The folds do not depend on the order of the rows.

    Parameters
    ----------
    n_splits : int, default 5
        Number of folds, at least 2.
    shuffle : bool, default True
        Deal queries at random. Otherwise the longest query goes to the fold with the fewest documents so far.
    seed : int, default 0
        Random seed of ``shuffle``.

    Examples
    --------
    >>> for train, test in QueryKFold(n_splits=2).split(np.zeros((5, 1)), qid=["a", "b", "a", "c", "d"]):
    ...     print(train, test)
    [1 4] [0 2 3]
    [0 2 3] [1 4]
    """

    n_splits: int
    shuffle: bool
    seed: int
    __metadata_request__split: ClassVar[dict[str, bool]] = {"qid": True, "groups": True}

    def __init__(self, n_splits: int = 5, *, shuffle: bool = True, seed: int = 0) -> None:
        self.n_splits = as_whole("n_splits", n_splits, 2)
        self.shuffle, self.seed = bool(shuffle), as_whole("seed", seed, 0)

    def split(
        self, X: Any, y: ArrayLike | None = None, groups: ArrayLike | None = None, qid: ArrayLike | None = None
    ) -> Iterator[tuple[Rows, Rows]]:
        """The training and test rows of each fold.

        Parameters
        ----------
        X : RankingDataset, array or table
            The documents. Only a ``RankingDataset`` is read; of others, only the number of rows is used, and the column
            ``qid``, ``query_id`` or ``group_id`` of a table if no query ids are given.
        y : array, optional
            Ignored.
        groups, qid : array, optional
            One query id per row, given as one of the two. scikit-learn routes ``qid``.

        Yields
        ------
        train, test : array of int
            Row numbers, ascending.
        """
        fold = self._fold_of_rows(X, groups, qid)
        for k in range(self.n_splits):
            yield np.flatnonzero(fold != k), np.flatnonzero(fold == k)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None, qid: Any = None) -> int:
        """The number of folds.

        Parameters
        ----------
        X, y, groups, qid : object, optional
            Ignored.

        Returns
        -------
        int
            ``n_splits``.
        """
        return self.n_splits

    def _fold_of_rows(self, X: Any, groups: ArrayLike | None, qid: ArrayLike | None) -> Rows:
        data, given = X, qid if groups is None else groups
        if groups is None and qid is None:
            qid = given = query_ids_in(X)
        if not isinstance(X, RankingDataset) or given is not None:
            if (groups is None) == (qid is None):
                raise DataError(
                    argument="qid",
                    expected="one query id per row, as qid or as groups",
                    got="none" if qid is None else "both",
                    fix=f"{HOW_TO_ROUTE}; without routing: groups=qid",
                )
            n_rows = X.shape[0] if hasattr(X, "shape") else len(X)
            data = RankingDataset(np.zeros((n_rows, 1), np.float32), qid=given)
        return np.asarray(data.restore(np.repeat(self._fold_of_queries(data.query_ids, data.lengths), data.lengths)))

    def _fold_of_queries(self, query_ids: NDArray[Any], lengths: Rows) -> Rows:
        if len(query_ids) < self.n_splits:
            got = f"{len(query_ids)} for n_splits={self.n_splits}"
            raise DataError(argument="qid", expected="at least as many queries as folds", got=got)
        names = query_ids if query_ids.dtype.kind in "iufUSmMb" else np.array([repr(i) for i in query_ids])
        order = np.lexsort((names, -lengths))
        rng = np.random.default_rng(self.seed)
        folds, documents = np.empty(len(order), np.int64), np.zeros(self.n_splits, np.int64)
        for start in range(0, len(order), self.n_splits):
            hand = order[start : start + self.n_splits]
            chosen = rng.permutation(self.n_splits) if self.shuffle else documents.argsort(kind="stable")
            folds[hand] = chosen[: len(hand)]
            documents[folds[hand]] += lengths[hand]
        return folds
