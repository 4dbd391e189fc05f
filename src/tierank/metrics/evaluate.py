"""``evaluate`` for one system, its result, and what it shares with other results."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.arrays import Floats
from tierank.data.checks import as_array
from tierank.data.dataset import RankingDataset
from tierank.data.relevance import warn_of_counts
from tierank.data.tables import QUERY_COLUMNS, as_column, column_names, is_table, query_ids_in, warn_of_row_order
from tierank.display import Grid, Result, ShownTable, as_pandas, format_number, rows_to_pandas
from tierank.errors import DataError
from tierank.files import for_json
from tierank.io.layout import QUERY_NAMES, RATING_NAMES
from tierank.io.scores import is_trec, join_runs, read_trec
from tierank.metrics.formulas import OF_GAINS
from tierank.metrics.judge import Judge, as_scores, check_defined, ordered_mean
from tierank.metrics.rules import WHY_LEFT_OUT, Metric, Rule, as_metric_of
from tierank.metrics.segments import HOW, Attribute, Segment, SegmentContrast, as_attributes, judge_segments


class SegmentedResult(Result):
    """A result of judging queries, which may be split into segments."""

    segments: Sequence[Segment | SegmentContrast]

    def segments_to_pandas(self) -> Any:
        """A pandas table with a row per segment and metric, and for a comparison per system."""
        return rows_to_pandas([segment.to_dict() for segment in self.segments])

    def segments_to_dict(self) -> dict[str, Any]:
        """The segments for JSON; an empty dict if there are none."""
        return {"segments": [segment.to_dict() for segment in self.segments]} if self.segments else {}

    def segment_blocks(self) -> Iterator[str | ShownTable]:
        """The segments as a table, the worst first; nothing if there are none."""
        if not self.segments:
            return
        ordered = sorted(self.segments, key=lambda one: (one.verdict != "worse", one.difference))
        systems = [[one.system] if isinstance(one, SegmentContrast) else [] for one in ordered]
        heads = ["segment", *(["system"] if systems[0] else []), "metric", "queries", "difference", "verdict"]
        rows = []
        for one, system in zip(ordered, systems, strict=True):
            numbers = [f"{one.n_queries:,}", format_number(one.difference, "+"), one.verdict]
            rows.append([f"{one.attribute}: {one.value}", *system, one.metric, *numbers])
        n_worse = sum(one.verdict == "worse" for one in ordered)
        yield ShownTable((heads, rows), f"{len(ordered)} segments, {n_worse} worse")
        yield HOW


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
    data : RankingDataset, (X, y, qid), (y, qid), (table, y), table, or qrels
        The ratings (NaN: unjudged) and queries; features do not matter here. A table has the query ids in a column
        ``qid``, ``query_id`` or ``group_id``; without ``y``, also the ratings in a column ``rating``, ``label``,
        ``relevance`` or ``grade``. Qrels are a TREC file, a table with the
        columns of ir_measures or PyTerrier, a dict by query of dicts by document, or an object of ranx.
    scores : array, or a run
        One score per row. With qrels, a run: a TREC file, table, dict or object as for qrels. Documents that it does
        not list are not found; a query that it misses has an empty list.
    metrics : str, callable, or list of them, optional
        Names such as ``"ndcg@10"`` or ``"map"``, also as other tools write them (``"nDCG@10"``, ``"AP"``, ``"P_5"``),
        or your own functions ``metric(ratings, scores)``, which get the documents of one query (the scores of those
        that a run does not list are ``-inf``) and return a number, or NaN if the query has no value. Default: NDCG at
        1, 3, 5 and 10, and ERR at 10 if the rule has it.
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
    dataset, systems = as_systems(data, {"scores": scores})
    attributes = () if by is None else as_attributes(dataset, by)
    return evaluate_by(Judge(dataset, metrics, rule, n_jobs=n_jobs), systems["scores"], attributes)


@dataclass(frozen=True)
class Listed:
    """A run: a score per row of the data, in the caller's order; NaN for documents that it does not list."""

    scores: Floats


def as_systems(data: Any, scores: Mapping[str, Any]) -> tuple[RankingDataset, Mapping[str, ArrayLike | Listed]]:
    """The data set, and the scores of systems, with runs as ``Listed``.

    >>> data, systems = as_systems({"q": {"a": 1, "b": 0}}, {"bm25": {"q": {"b": 7.0}}})
    >>> data.document_ids, systems["bm25"].scores
    (['b', 'a'], array([ 7., nan]))
    """
    if is_table(data) and all(np.ndim(one) == 1 for one in scores.values()):
        data = ratings_in(data)
    if not is_trec(data):
        dataset = as_dataset(data)
        warn_of_score_order(data, scores)
        return dataset, scores
    qrels = read_trec(data, "qrels")
    runs = {name: read_trec(run, "run") for name, run in scores.items()}
    for name, run in runs.items():
        missed, odd = len(qrels.keys() - run.keys()), len(run.keys() - qrels.keys())
        lists = f"{missed} of {len(qrels)} queries of the qrels are not in the run: their lists are empty"
        parts = [lists] if missed else []
        parts += [f"{odd} of {len(run)} queries of the run are not in the qrels: they are left out"] if odd else []
        if parts:
            warnings.warn(f"{name}: {'; '.join(parts)}", stacklevel=3)
    dataset, found = join_runs(qrels, runs)
    return dataset, {name: Listed(values) for name, values in found.items()}


def ratings_in(table: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The ratings and the query ids of a table with a row per document.

    >>> from tierank.data.tables import RequestTable
    >>> ratings_in(RequestTable({"query": ["a", "a"], "price": [3.5, 4.5], "grade": [1, 0]}))
    (array([1, 0], dtype=object), array(['a', 'a'], dtype=object))
    """
    names, found = column_names(table), []
    for usual in (RATING_NAMES, dict.fromkeys((*QUERY_NAMES, *QUERY_COLUMNS))):
        name = next((name for name in usual if name in names), None)
        if name is None:
            expected, fix = f"a column {', '.join(usual)}", "give (y, qid) in place of the table"
            raise DataError(argument="data", expected=expected, got=", ".join(names), fix=fix)
        found.append(as_column(table, name))
    return found[0], found[1]


def as_dataset(data: RankingDataset | Sequence[Any]) -> RankingDataset:
    """A data set, as given or made from (X, y, qid), (y, qid) or a table with query ids and y."""
    if isinstance(data, RankingDataset):
        return data
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        expected = "a RankingDataset, (X, y, qid) or (y, qid)"
        raise DataError(argument="data", expected=expected, got=type(data).__name__)
    if len(data) == 3:
        return RankingDataset(*data)
    ids = query_ids_in(data[0])
    if ids is not None:
        data = (data[1], ids)
    elif is_table(data[0]) and len(column_names(data[0])) > 1:
        expected = "query ids in a column qid, query_id or group_id of the table in (table, y)"
        raise DataError(argument="data", expected=expected, got="none", fix="give (table, y, qid)")
    ratings = as_array(data[0])
    if data[0] is None or not ratings.ndim:
        raise DataError(argument="data", expected="the ratings first, in (y, qid)", got=type(data[0]).__name__)
    return RankingDataset(np.zeros((len(ratings), 1), np.float32), *data)


def warn_of_score_order(data: RankingDataset | Sequence[Any], scores: Mapping[str, ArrayLike]) -> None:
    """Warn where scores have the index of the ratings in another order."""
    ratings = None if isinstance(data, RankingDataset) else data[-2]
    for name, given in scores.items():
        warn_of_row_order(y=ratings, **{name if name != "y" else "scores": given})


def evaluate_by(judge: Judge, scores: ArrayLike | Listed, attributes: Sequence[Attribute] = ()) -> Evaluation:
    """The evaluation of scores in the caller's order, or of a run, by a judge."""
    data, n_left_out = judge.data, judge.n_empty if judge.rule.empty is None else 0
    if n_left_out == data.n_queries:
        expected = f"queries that rule {judge.rule.name!r} does not leave out"
        fix = "check the ratings, or use a rule that gives such queries a value, such as 'letor'"
        raise DataError(argument="data", expected=expected, got=f"{n_left_out} with {WHY_LEFT_OUT}", fix=fix)
    if any(metric.partition("@")[0] in OF_GAINS for metric in judge.metrics):
        warn_of_counts(judge.ratings, judge.rule.gain)
    if isinstance(scores, Listed):
        arranged = data.arrange(scores.scores)
        per_query = judge(np.nan_to_num(arranged), ~np.isnan(arranged))
    else:
        per_query = judge(data.arrange(as_scores(scores, data.n_documents)))
    segments = judge_segments(per_query, attributes)
    found = Evaluation(per_query, data.query_ids, judge.rule, judge.n_empty, n_left_out, segments, judge.n_unjudged)
    check_defined({metric: found.mean(metric) for metric in found.metrics})
    return found


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation(SegmentedResult):
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
        values = self.per_query[as_metric_of("evaluation", metric, self.per_query)]
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

        At most 2.5% of them are expected to be false: see ``tierank.metrics.significance.control_discoveries``.

        Parameters
        ----------
        metric : str
            A name of ``metrics``.

        Returns
        -------
        list of Segment
            Empty if no segment is shown to be worse.
        """
        metric = as_metric_of("evaluation", metric, self.per_query)
        found = [one for one in self.segments if one.metric == metric and one.verdict == "worse"]
        return sorted(found, key=lambda one: one.difference)

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON: the rule, counts, mean and standard error of each metric, and segments if there are any."""
        means = {
            metric: {"mean": self.mean(metric), "standard_error": for_json(self.standard_error(metric))}
            for metric in self.metrics
        }
        return describe_counts(self) | {"metrics": means} | self.segments_to_dict()

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
        return as_pandas({"query": self.query_ids, **self.per_query})

    def table(self) -> Grid:
        """The mean and the standard error of each metric, as texts."""
        rows = [[m, f"{self.mean(m):.4f}", format_number(self.standard_error(m))] for m in self.metrics]
        return ["metric", "mean", "standard error"], rows

    def blocks(self) -> Iterator[str | ShownTable]:
        """The counts, the table, the segments and the rule."""
        yield self.describe_queries()
        yield ShownTable(self.table())
        yield from self.segment_blocks()
        yield f"rule {self.rule.describe()}"


def describe_counts(evaluation: Evaluation) -> dict[str, Any]:
    """The rule and how many queries and documents it counts, for JSON."""
    return {
        "rule": evaluation.rule.to_dict(),
        "n_queries": evaluation.n_queries,
        "n_empty": evaluation.n_empty,
        "n_left_out": evaluation.n_left_out,
        "n_unjudged": evaluation.n_unjudged,
        "why_left_out": WHY_LEFT_OUT if evaluation.n_left_out else None,
    }
