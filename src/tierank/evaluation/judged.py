"""``evaluate`` for one system, and its result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank import notebook
from tierank.checks import as_array
from tierank.dataset import RankingDataset
from tierank.errors import DataError
from tierank.evaluation.showing import (
    describe_counts,
    describe_segments,
    format_number,
    notes_html,
    segments_html,
    segments_text,
    segments_to_pandas,
)
from tierank.files import for_json
from tierank.metrics import WHY_LEFT_OUT, Judge, Metric, Rule, as_scores, check_defined, ordered_mean
from tierank.segments import Attribute, Segment, as_attributes, judge_segments
from tierank.settings import as_choice
from tierank.tables import warn_of_row_order
from tierank.types import Floats


def evaluate(
    data: RankingDataset | Sequence[Any],
    scores: ArrayLike,
    metrics: Metric | Iterable[Metric] | None = None,
    rule: str | Rule = "tierank",
    *,
    by: Any = None,
    n_jobs: int | None = None,
) -> Evaluation:
    """Judge the scores of one system, one per row of the data **in the caller's order**.

    Parameters
    ----------
    data : RankingDataset, (X, y, qid) or (y, qid)
        The ratings (NaN: unjudged) and queries; features do not matter here.
    scores : array
        One score per row.
    metrics : str, callable, or list of them, optional
        Names such as ``"ndcg@10"`` or ``"map"``, or your own functions ``metric(ratings, scores)``, which get the
        documents of one query and return a number, or NaN if the query has no value. Default: NDCG at 1, 3, 5 and 10,
        and ERR at 10 if the rule has it.
    rule : str or Rule, default "tierank"
        A key of ``RULES``, or a ``Rule``. With ``:condense`` after the key, unjudged documents are taken out of the
        lists; without, they count as not relevant.
    by : str, array, mapping or table, optional
        An attribute of queries to split the results by, such as their device: the name of a feature; one value per row
        (the same for all rows of a query) or per query in order of appearance; or a mapping from query ids to values,
        or a pandas Series indexed by query id.
        For several attributes: a list of features, a table with a column for each, or a mapping by name. Numbers with
        more than 20 different values are cut into five ranges.
    n_jobs : int, optional
        Number of threads; default one per core.

    Returns
    -------
    Evaluation
        The value of each metric for each query, and their means; with ``by`` also ``segments``, each tested against all
        other queries.

    Examples
    --------
    >>> print(evaluate(([0, 2, 1, 0], ["a", "a", "b", "c"]), [0.9, 0.1, 0.3, 0.2], ["ndcg@3", "mrr"]))
    2 queries; 1 left out: no rating above 0
    metric  mean    standard error
    ndcg@3  0.8155  0.1845
    mrr     0.7500  0.2500
    rule tierank: gain 2^r - 1; discount 1/log2(1 + rank); tied scores averaged over all their orders; queries with
    no rating above 0 left out; ERR by the highest rating of the data set; relevant: rating above 0; AP@k divided by
    min(k, relevant); precision@k divided by k
    """
    judged = as_judged(data)
    attributes = () if by is None else as_attributes(judged, by)
    warn_of_score_order(data, {"scores": scores})
    return evaluate_by(Judge(judged, metrics, rule, n_jobs=n_jobs), scores, attributes)


def as_judged(data: RankingDataset | Sequence[Any]) -> RankingDataset:
    """A data set, as given or made from (X, y, qid) or (y, qid)."""
    if isinstance(data, RankingDataset):
        return data
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise DataError(f"data: expected a RankingDataset, (X, y, qid) or (y, qid), got {type(data).__name__}")
    if len(data) == 3:
        return RankingDataset(*data)
    ratings = as_array(data[0])
    if data[0] is None or not ratings.ndim:
        raise DataError(argument="data", expected="the ratings first, in (y, qid)", got=type(data[0]).__name__)
    return RankingDataset(np.zeros((len(ratings), 1), np.float32), *data)


def warn_of_score_order(data: RankingDataset | Sequence[Any], scores: Mapping[str, ArrayLike]) -> None:
    """Warn where scores have the index of the ratings in another order."""
    ratings = None if isinstance(data, RankingDataset) else data[-2]
    for name, given in scores.items():
        warn_of_row_order(y=ratings, **{name: given})


def evaluate_by(judge: Judge, scores: ArrayLike, attributes: Sequence[Attribute] = ()) -> Evaluation:
    """The evaluation of scores in the caller's order by a judge."""
    data, n_left_out = judge.data, judge.n_empty if judge.rule.empty is None else 0
    if n_left_out == data.n_queries:
        raise DataError(
            f"nothing to judge: all {n_left_out} queries are left out ({WHY_LEFT_OUT});"
            f" check the ratings, or use a rule that gives such queries a value, such as 'letor'"
        )
    per_query = judge(data.arrange(as_scores(scores, data.n_documents)))
    segments = judge_segments(per_query, attributes)
    found = Evaluation(per_query, data.query_ids, judge.rule, judge.n_empty, n_left_out, segments, judge.n_unjudged)
    check_defined({metric: found.mean(metric) for metric in found.metrics})
    return found


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation:
    """The result of ``evaluate``. ``print`` shows the means, their standard errors and the rule.

    Attributes
    ----------
    per_query : dict of str to array
        One value per query for each metric, in the order of ``query_ids``; NaN if the rule leaves the query out.
    query_ids : array
        The id of each query.
    rule : Rule
        The rule of the metrics.
    n_empty : int
        Number of queries with no rating above 0.
    n_left_out : int
        Number of queries that the rule leaves out: all empty ones, or none.
    segments : tuple of Segment
        With ``by``, each segment in each metric: ``attribute``, ``value``, ``metric``, ``n_queries``, ``mean``,
        ``standard_error``, ``difference`` (to the mean of all other queries), ``p``, ``adjusted_p`` and ``verdict``.
    n_unjudged : int
        Number of documents without a rating.
    """

    per_query: dict[str, Floats]
    query_ids: NDArray[Any]
    rule: Rule
    n_empty: int
    n_left_out: int
    segments: tuple[Segment, ...] = ()
    n_unjudged: int = 0

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return tuple(self.per_query)

    @property
    def n_queries(self) -> int:
        """Number of queries that the means are taken over."""
        return len(self.query_ids) - self.n_left_out

    def values(self, metric: str) -> Floats:
        """The values of the queries that are not left out.

        Parameters
        ----------
        metric : str
            A name of ``metrics``.

        Returns
        -------
        array
            One value per query.
        """
        values = self.per_query[as_choice("metric of this evaluation", metric, self.per_query)]
        return values[~np.isnan(values)]

    def mean(self, metric: str) -> float:
        """The mean over the queries that are not left out.

        Parameters
        ----------
        metric : str
            A name of ``metrics``.

        Returns
        -------
        float
            The mean.
        """
        return ordered_mean(self.values(metric))

    def standard_error(self, metric: str) -> float:
        """The standard error of the mean.

        Parameters
        ----------
        metric : str
            A name of ``metrics``.

        Returns
        -------
        float
            The standard error; NaN if there is only one query.
        """
        values = self.values(metric)
        return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan

    def worst(self, metric: str) -> list[Segment]:
        """The segments that are worse than all other queries, the worst one first.

        At most 2.5% of them are expected to be false: see ``tierank.significance.control_discoveries``.

        Parameters
        ----------
        metric : str
            A name of ``metrics``.

        Returns
        -------
        list of Segment
            Empty if no segment is shown to be worse.
        """
        as_choice("metric of this evaluation", metric, self.per_query)
        found = [one for one in self.segments if one.metric == metric and one.verdict == "worse"]
        return sorted(found, key=lambda one: one.difference)

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON: the rule, counts, mean and standard error of each metric, and segments if there are any."""
        means = {
            metric: {"mean": self.mean(metric), "standard_error": for_json(self.standard_error(metric))}
            for metric in self.metrics
        }
        return describe_counts(self) | {"metrics": means} | describe_segments(self.segments)

    def describe_queries(self) -> str:
        """The numbers of judged queries, of queries without a rating above 0 and of unjudged documents, as text.

        Returns
        -------
        str
            One line.

        Examples
        --------
        >>> data = RankingDataset([[0.0]] * 3, [1, 0, 0], qid=[1, 1, 2])
        >>> evaluate(data, [3, 2, 1], rule="lightgbm").describe_queries()
        '2 queries, 1 with no rating above 0; none left out'
        """
        judged = f"{self.n_queries:,} {'query' if self.n_queries == 1 else 'queries'}"
        unjudged = ""
        if self.n_unjudged:
            how = "left out" if self.rule.unjudged == "condense" else "taken as 0"
            unjudged = f"; {self.n_unjudged:,} {'document' if self.n_unjudged == 1 else 'documents'} unjudged: {how}"
        if self.n_left_out:
            return f"{judged}; {self.n_left_out:,} left out: {WHY_LEFT_OUT}{unjudged}"
        empty = f", {self.n_empty:,} with {WHY_LEFT_OUT}" if self.n_empty else ""
        return f"{judged}{empty}; none left out{unjudged}"

    def to_pandas(self) -> Any:
        """A pandas table with a row per query: ``query`` and a column per metric, NaN if the query is left out."""
        return notebook.as_pandas({"query": self.query_ids, **self.per_query})

    def segments_to_pandas(self) -> Any:
        """A pandas table with a row per segment and metric."""
        return segments_to_pandas(self.segments)

    def _repr_html_(self) -> str:
        parts = [notebook.grid(*self._table()), *segments_html(self.segments)]
        return notebook.sheet("Evaluation", *parts, *notes_html(self))

    def __str__(self) -> str:
        table = notebook.lines(*self._table())
        rule = f"rule {self.rule.describe()}"
        return "\n".join([self.describe_queries(), *table, *segments_text(self.segments), rule])

    __repr__ = __str__

    def _table(self) -> tuple[list[str], list[list[str]]]:
        rows = [[m, f"{self.mean(m):.4f}", format_number(self.standard_error(m))] for m in self.metrics]
        return ["metric", "mean", "standard error"], rows
