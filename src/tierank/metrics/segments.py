"""Segments of queries: by device, country or any other attribute, each judged separately."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.data.checks import SHOWN, as_array, is_missing, shape_of, to_numbers
from tierank.data.columns import Category, Date
from tierank.data.dataset import RankingDataset
from tierank.data.tables import as_column, by_index, column_names, index_of, is_table
from tierank.errors import DataError, ParameterError
from tierank.files import for_json
from tierank.metrics.significance import (
    ROUNDING,
    Contrast,
    Paired,
    Verdict,
    control_discoveries,
    two_sample_p,
    verdict_of,
)

# Segments with fewer queries are shown, but not tested: few values may agree by chance.
FEWEST = 10
# Numeric attributes with more different values are cut into ranges, and the number of ranges.
_MOST_NUMBERS, _PARTS = 20, 5
# The segment of queries without a value, and the name of an unnamed attribute.
MISSING, _UNNAMED = "(missing)", "segment"

HOW = (
    f"adjusted p: Benjamini-Hochberg over all segments of a metric, separately for better and worse; at most 5% of the"
    f" segments called better or worse are expected to be false; segments of fewer than {FEWEST} queries are not tested"
)


@dataclass(frozen=True)
class Attribute:
    """An attribute of queries, such as their device: ``values[codes[i]]`` is the value for query i."""

    name: str
    values: tuple[str, ...]
    codes: NDArray[np.int64]


@dataclass(frozen=True)
class Segment:
    """The queries with one value of an attribute, against all other queries, in one metric.

    Attributes
    ----------
    attribute, value : str
        The attribute, and its value in these queries.
    metric : str
        The metric.
    n_queries : int
        Number of queries that were judged.
    mean, standard_error : float
        Of the metric; NaN where undefined.
    difference : float
        The mean minus that of all other queries.
    p, adjusted_p : float
        The larger p-value of Student's and Welch's t-test, raw and adjusted over all segments; NaN if there are fewer
        than 10 queries in the segment or outside it.
    """

    attribute: str
    value: str
    metric: str
    n_queries: int
    mean: float
    standard_error: float
    difference: float
    p: float
    adjusted_p: float

    @property
    def verdict(self) -> Verdict:
        """``better`` or ``worse`` than the other queries, ``no difference shown``, or ``too few queries``."""
        return "too few queries" if math.isnan(self.p) else verdict_of(self.difference, self.adjusted_p)

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON: the fields, and ``verdict``."""
        return for_json(asdict(self)) | {"verdict": self.verdict}


@dataclass(frozen=True)
class SegmentContrast:
    """One system against the baseline, over the queries with one value of an attribute, in one metric.

    Attributes
    ----------
    attribute, value : str
        The attribute, and its value in these queries.
    system, metric : str
        The system and the metric.
    contrast : Contrast
        The difference and its test, adjusted over all segments and systems; interval and p are NaN if the segment has
        fewer than 10 queries.
    """

    attribute: str
    value: str
    system: str
    metric: str
    contrast: Contrast

    @property
    def n_queries(self) -> int:
        """Number of queries that were judged."""
        return self.contrast.n_queries

    @property
    def difference(self) -> float:
        """The mean difference to the baseline."""
        return self.contrast.difference

    @property
    def verdict(self) -> Verdict:
        """``better`` or ``worse`` than the baseline, ``no difference shown``, or ``too few queries``."""
        return "too few queries" if math.isnan(self.contrast.p) else self.contrast.verdict

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON: the fields, those of the contrast, and ``verdict``."""
        names = {name: getattr(self, name) for name in ("attribute", "value", "system", "metric", "n_queries")}
        return names | self.contrast.to_dict() | {"verdict": self.verdict}


def as_attributes(data: RankingDataset, by: Any) -> tuple[Attribute, ...]:
    """The attributes that a caller names or gives; see ``evaluate``.

    >>> data = RankingDataset([[0.0]] * 4, qid=["a", "a", "b", "c"])
    >>> [(one.name, one.values, one.codes.tolist()) for one in as_attributes(data, {"a": "phone", "b": None, "c": 7})]
    [('segment', ('7', 'phone', '(missing)'), [1, 2, 0])]
    """
    per_query = {name: _per_query(data, name, values) for name, values in _named(data, by).items()}
    if not per_query:
        raise ParameterError(argument="by", expected="at least one attribute of queries", got="none")
    return tuple(Attribute(name, *_segments(values)) for name, values in per_query.items())


def look_up(query_ids: Sequence[Hashable], by: Mapping[str, Mapping[Hashable, Any]]) -> tuple[Attribute, ...]:
    """Attributes of queries by query id: for each name, a mapping from ids to values."""
    if not isinstance(by, Mapping) or not all(isinstance(values, Mapping) for values in by.values()):
        expected = "for each name of an attribute, a mapping from query ids to values"
        raise ParameterError(argument="by", expected=expected, got=repr(by)[:SHOWN])
    return tuple(Attribute(name, *_segments(_looked_up(query_ids, name, values))) for name, values in by.items())


def judge_segments(per_query: Mapping[str, Floats], attributes: Sequence[Attribute]) -> tuple[Segment, ...]:
    """Each segment against all other queries, in each metric."""
    segments: list[Segment] = []
    for metric, values in per_query.items() if attributes else ():
        judged = ~np.isnan(values)
        n, total = int(judged.sum()), float(values[judged].sum())
        rows = []
        for attribute, code, inside in _queries_of(attributes, judged):
            here, p, elsewhere = values[inside], math.nan, math.nan
            if len(here) >= FEWEST:
                is_other = judged.copy()
                is_other[inside] = False
                others = values[is_other]
                p = two_sample_p(here, others) if len(others) >= FEWEST else math.nan
                elsewhere = float(others.mean()) if len(others) else math.nan
            elif len(here) < n:  # there may be very many segments: each reads only its own queries
                elsewhere = (total - float(here.sum())) / (n - len(here))
            error = float(here.std(ddof=1)) / math.sqrt(len(here)) if len(here) > 1 else math.nan
            difference = float(here.mean()) - elsewhere
            if abs(difference) <= ROUNDING:
                difference = 0.0
            names = attribute.name, attribute.values[code], metric
            rows.append((*names, len(here), float(here.mean()), error, difference, p))
        adjusted = control_discoveries(np.array([row[-1] for row in rows]), np.array([row[-2] for row in rows]))
        segments += [Segment(*row, float(p)) for row, p in zip(rows, adjusted, strict=True)]
    return tuple(segments)


def compare_segments(
    differences: Mapping[str, Mapping[str, Floats]], attributes: Sequence[Attribute]
) -> tuple[SegmentContrast, ...]:
    """The differences to the baseline by segment; ``differences[system][metric]`` has one value per query."""
    metrics = list(next(iter(differences.values()), {}))
    if not metrics or not attributes:
        return ()
    rows: dict[str, list[tuple[tuple[str, str, str], Paired, tuple[int, int]]]] = {metric: [] for metric in metrics}
    every = np.array([[by_metric[metric] for metric in metrics] for by_metric in differences.values()])
    for judged, chosen in judged_alike(every):
        by_system = every[:, chosen]  # systems x metrics x queries
        for attribute, code, inside in _queries_of(attributes, judged):
            found = Paired.of(by_system[..., inside], FEWEST)
            for s, system in enumerate(differences):
                for m, k in enumerate(chosen):
                    rows[metrics[k]].append(((attribute.name, attribute.values[code], system), found, (s, m)))
    segments: list[SegmentContrast] = []
    for metric, tests in rows.items():
        p, difference = (np.array([getattr(one, name)[at] for _, one, at in tests]) for name in ("p", "difference"))
        adjusted = control_discoveries(p, difference)
        segments += [
            SegmentContrast(*names, metric, found.contrast(at, q))
            for (names, found, at), q in zip(tests, adjusted, strict=True)
        ]
    return tuple(segments)


def judged_alike(every: Floats) -> Iterator[tuple[NDArray[np.bool_], list[int]]]:
    """The queries that all systems have a value for, and the indices of the metrics in which it is these queries.

    ``every`` has a value for each system, metric and query, NaN if there is none.

    >>> [(judged.tolist(), chosen) for judged, chosen in judged_alike(np.array([[[1, 2], [3, np.nan], [4, 5]]]))]
    [([True, False], [1]), ([True, True], [0, 2])]
    """
    are_judged, pattern = np.unique(~np.isnan(every).any(axis=0), axis=0, return_inverse=True)
    for k, judged in enumerate(are_judged):
        yield judged, np.flatnonzero(pattern.reshape(-1) == k).tolist()


def cut(
    numbers: Floats | NDArray[np.int64], n_parts: int, label: Callable[[Any], str] | None = None
) -> tuple[NDArray[np.int64], list[str]]:
    """Ranges with about the same number of values, none empty, and their labels.

    >>> cut(np.array([3, 1, 9, 4, 4, 20]), 3)
    (array([0, 0, 2, 1, 1, 2]), ['1 to 3', '4', '9 to 20'])
    """
    cuts = np.unique(np.quantile(numbers, np.arange(1, n_parts) / n_parts, method="higher"))
    part = np.unique(np.searchsorted(cuts, numbers, side="right"), return_inverse=True)[1].reshape(-1)
    label = label or _label
    ends = [(label(numbers[part == i].min()), label(numbers[part == i].max())) for i in range(int(part.max()) + 1)]
    return part, [low if low == high else f"{low} to {high}" for low, high in ends]


def _named(data: RankingDataset, by: Any) -> dict[str, Any]:
    """The given values, by name of the attribute."""
    if isinstance(by, str):
        return {by: _feature(data, by)}
    if isinstance(by, Mapping):
        are_many = by and all(
            isinstance(values, Mapping) or (hasattr(values, "__len__") and not isinstance(values, (str, bytes, tuple)))
            for values in by.values()
        )
        return {str(name): values for name, values in by.items()} if are_many else {_UNNAMED: by}
    if is_table(by):
        is_indexed = index_of(by) is not None
        names = column_names(by)
        return {name: by.iloc[:, k] if is_indexed else as_column(by, name, names) for k, name in enumerate(names)}
    is_short = isinstance(by, (list, tuple)) and len(by) > 0 and len(by) not in (data.n_queries, data.n_documents)
    if is_short and all(isinstance(name, str) for name in by):
        return {name: _feature(data, name) for name in by}
    return {str(getattr(by, "name", None) or _UNNAMED): by}


def _feature(data: RankingDataset, name: str) -> Any:
    """A feature of the data, in the caller's order."""
    if data.feature_names is None:
        expected = "one value per row or per query, or a mapping from query ids"
        got = f"{name!r}, and the features of these data have no names"
        raise ParameterError(argument="by", expected=expected, got=got)
    if name not in data.feature_names:
        raise ParameterError.unknown("feature", name, data.feature_names)
    values, kind = data.features[:, data.feature_names.index(name)], data.kinds.get(name)
    is_missing = np.isnan(values)
    if isinstance(kind, Category):
        levels = np.array([*kind.levels, None], object)
        values = levels[np.where(is_missing, len(kind.levels), values).astype(np.int64)]
    elif isinstance(kind, Date):  # days since 1970, as points in time to the second
        values = np.nan_to_num(np.rint(values.astype(np.float64) * 86_400)).astype("datetime64[s]")
        values[is_missing] = np.datetime64("NaT")
    return data.restore(values)


def _per_query(data: RankingDataset, name: str, values: Any) -> NDArray[Any]:
    """One value per query, given by query id, by query in order of appearance, or by row."""
    ids = data.query_ids.tolist()
    named = values if isinstance(values, Mapping) else by_index(values, ids)
    if named is not None:
        return _looked_up(ids, name, named)
    given = as_array(values)
    if given.shape == (data.n_queries,):
        return given
    if given.shape != (data.n_documents,):
        expected = f"{data.n_documents} values (one per row) or {data.n_queries} (one per query)"
        raise DataError(argument="by", where=name, expected=expected, got=shape_of(values, given))
    rows = data.arrange(given)
    codes = np.unique(rows.astype(str), return_inverse=True)[1].reshape(-1)
    differs = codes != np.repeat(codes[data.offsets[:-1]], data.lengths)
    if differs.any():
        query = data.query_of_row[differs.argmax()]
        one, other = rows[data.offsets[query]], rows[differs.argmax()]
        expected = f"one value for all rows of query {data.query_ids[query]!s}"
        fix = "it is an attribute of documents, not of queries"
        raise DataError(argument="by", where=name, expected=expected, got=f"{one} and {other}", fix=fix)
    return rows[data.offsets[:-1]]


def _looked_up(ids: Sequence[Hashable], name: str, values: Mapping[Hashable, Any]) -> NDArray[Any]:
    if not any(query in values for query in ids):
        got = f"one without any of the queries, such as {ids[0]!r}"
        raise DataError(argument="by", where=name, expected="a mapping from query ids to values", got=got)
    per_query = np.empty(len(ids), object)
    per_query[:] = [values.get(query) for query in ids]
    return per_query


def _segments(values: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The labels of the segments in order, missing values last, and the segment of each query."""
    is_date = values.dtype.kind == "M"
    label: Callable[[Any], str] = _day if is_date else _label
    numbers = None if values.dtype.kind == "b" else to_numbers(values)
    if is_date:  # NaN where there is none
        numbers = (values - np.datetime64(0, "D")) / np.timedelta64(1, "D")
    if numbers is None:
        texts = [MISSING if is_missing(value) or value == "" else str(value) for value in values.tolist()]
        labels = sorted(set(texts), key=lambda text: (text == MISSING, text))
        places = {label: code for code, label in enumerate(labels)}
        return tuple(labels), np.array([places[text] for text in texts])
    numbers = numbers.astype(np.float64)
    is_known = ~np.isnan(numbers)
    different, codes = np.unique(numbers[is_known], return_inverse=True)
    labels = [label(number) for number in different]
    labels = labels if len(set(labels)) == len(labels) else [repr(number) for number in different.tolist()]
    if len(different) > _MOST_NUMBERS:
        codes, labels = cut(numbers[is_known], _PARTS, label)
    whole = np.full(len(numbers), len(labels))
    whole[is_known] = codes.reshape(-1)
    return (*labels, *([MISSING] if not is_known.all() else [])), whole


def _day(days: Any) -> str:
    """Days since 1970 as a date, with the time of day if there is one.

    >>> _day(19723.0), _day(19723.5)
    ('2024-01-01', '2024-01-01 12:00:00')
    """
    is_whole = float(days).is_integer()
    seconds = np.datetime64(round(float(days) * 86_400), "s")
    return str(seconds.astype("datetime64[D]")) if is_whole else str(seconds).replace("T", " ")


def _label(number: Any) -> str:
    """A number in its usual notation.

    >>> _label(1234.0), _label(0.25)
    ('1,234', '0.25')
    """
    is_whole = float(number).is_integer() and abs(number) < 2**53
    return f"{int(number):,}" if is_whole else f"{float(number):.4g}"


def _queries_of(
    attributes: Sequence[Attribute], judged: NDArray[np.bool_]
) -> Iterator[tuple[Attribute, int, NDArray[np.int64]]]:
    """The segments with judged queries, and their queries, in one pass over all queries."""
    queries = np.flatnonzero(judged)
    for attribute in attributes:
        codes = attribute.codes[queries]
        order = np.argsort(codes, kind="stable")
        for inside in np.split(queries[order], np.flatnonzero(np.diff(codes[order])) + 1):
            if len(inside):
                yield attribute, int(attribute.codes[inside[0]]), inside
