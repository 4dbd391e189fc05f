"""The data that callers give to ``fit``: validation data, propensities, and queries that look wrong."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.arrays import Floats
from tierank.data.checks import as_array, short_repr
from tierank.data.columns import Columns
from tierank.data.dataset import RankingDataset
from tierank.data.matching import HOW_TO_ROUTE, as_dataset
from tierank.data.tables import (
    QUERY_COLUMNS,
    as_column,
    as_features,
    as_name,
    check_declared,
    column_names,
    is_table,
    query_column,
    take_columns,
    warn_of_row_order,
)
from tierank.data.team import Team
from tierank.errors import DataError, ParameterError, TierankError
from tierank.rankers.order import is_ordered, share_seen

# A list of more documents looks like a mistake: the longest list of the public collections has 1,251 (MSLR-WEB30K), and
# a search engine passes on 1,000 documents or fewer to be reranked.
_LONG_LIST = 2_000
# Without query ids, more rows than this look like several lists whose ids were forgotten.
_LIST_WITHOUT_ID = 100


def translate(X: Any, qid: Any, valid: Any, others: dict[str, Any]) -> tuple[Any, Any]:
    """``qid`` and ``valid``, also if they are given as in LightGBM and XGBoost, whose arguments are taken from others.

    >>> translate([[0.1], [0.2], [0.3]], None, None, {"group": [2, 1]})[0].tolist()
    [0, 0, 1]
    """
    names = ("group", "eval_set", "eval_group", "eval_qid")
    group, sets, sizes, ids = (others.pop(name, None) for name in names)
    if group is not None:
        _check_alone("group", qid, "qid")
        qid = _as_ids("group", group, X)
    given = {name: value for name, value in (("eval_group", sizes), ("eval_qid", ids)) if value is not None}
    if sets is None:
        if given:
            raise ParameterError(argument="eval_set", expected=f"[(X, y)] with {next(iter(given))}", got="none")
        return qid, valid
    _check_alone("eval_set", valid, "valid")
    found = _only("eval_set", [sets] if isinstance(sets, tuple) and len(sets) > 1 else sets, "(X, y)")
    if len(given) > 1:
        _check_alone("eval_group", ids, "eval_qid")
    for name, values in given.items():
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise DataError(argument="eval_set", expected=f"[(X, y)] with {name}", got=f"[{type(found).__name__}]")
        own = _only(name, values, "sizes" if name == "eval_group" else "ids")
        found = (*found, own if name == "eval_qid" else _as_ids(name, own, found[0]))
    return qid, found


def _check_alone(argument: str, other: Any, name: str) -> None:
    if other is not None:
        raise ParameterError(argument=argument, expected=f"None with {name}", got="some", fix="give one of the two")


def _only(argument: str, values: Any, what: str) -> Any:
    """The only entry of a list with one for each validation set."""
    if not isinstance(values, (list, tuple)) or len(values) != 1:
        raise DataError(
            argument=argument,
            expected=f"a list with one entry, {argument}=[{what}], as one validation set chooses the round",
            got=f"{len(values)} entries" if isinstance(values, (list, tuple)) else type(values).__name__,
            fix="evaluate on other sets after fit, with tierank.evaluate" if argument == "eval_set" else None,
        )
    return values[0]


def _as_ids(argument: str, sizes: Any, X: Any) -> NDArray[np.int64]:
    """Query ids of consecutive rows from the number of rows of each query."""
    if isinstance(X, RankingDataset):
        raise DataError(argument=argument, expected="None with a RankingDataset, which has its own", got="some")
    counts = as_array(sizes)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 0).any():
        expected = "whole numbers >= 0, the number of rows of each query"
        raise DataError(argument=argument, expected=expected, got=short_repr(sizes))
    n_rows = X.shape[0] if hasattr(X, "shape") else len(X) if hasattr(X, "__len__") else None
    if n_rows is not None and counts.sum() != n_rows:
        fix = "the rows of a query have to be consecutive; qid takes one id per row, in any order"
        raise DataError(
            argument=argument, expected=f"sizes with the sum {n_rows}, the rows of X", got=f"{counts.sum()}", fix=fix
        )
    return np.repeat(np.arange(len(counts)), counts)


def training_rows(
    ranker: str,
    X: Any,
    y: ArrayLike | None,
    qid: ArrayLike | str | None,
    table: dict[str, Any],
    weights: Mapping[str, Any],
) -> RankingDataset:
    """The training data from the arguments of ``fit``, with ratings; ``table`` has those about tables."""
    if isinstance(X, (str, os.PathLike)):
        raise DataError(
            argument="X",
            expected="a RankingDataset, an array or a table",
            got=type(X).__name__,
            fix="tierank.read makes a data set from a file",
        )
    if y is None and table["target"] is None and not isinstance(X, RankingDataset):
        # The words are what scikit-learn's checks look for.
        raise DataError(
            f"{ranker} requires y to be passed, but the target y is None: give the ratings",
            fix="if X has columns of ratings and query ids, name them: fit(X, target=..., qid=...)"
            if is_table(X)
            else None,
        )
    train = as_rows(X, y, qid, **table, **weights)
    train.check_rated()
    return train


def validation_rows(valid: Any, train: RankingDataset, has_queries: bool, table: dict[str, Any]) -> RankingDataset:
    """The validation data from the argument of ``fit``, with ratings; with query ids if the training data have them."""
    with of_validation():
        if isinstance(valid, RankingDataset):
            data = valid
        elif (isinstance(valid, Sequence) and len(valid) in (2, 3)) or (
            table["target"] is not None and is_table(valid)
        ):
            X, y, qid = (*valid, None)[:3] if isinstance(valid, Sequence) else (valid, None, None)
            if qid is None and is_table(X):
                qid = query_column(X, train.roles.get("query"), _no_query_ids(table["columns"], table["ignore"]))
            if has_queries and qid is None:
                expected = "(X, y, qid), as the training data have query ids"
                how = "give them in valid, or beside `eval_set` as `eval_qid` or `eval_group`"
                raise DataError(argument="valid", expected=expected, got="no qid", fix=how)
            data = as_rows(X, y, qid, **(table if y is None else table | {"target": None}))
        else:
            fix = "give its ratings as well, or name them: fit(X, target=..., valid=...)" if is_table(valid) else None
            expected = "a RankingDataset or (X, y, qid)"
            raise DataError(argument="valid", expected=expected, got=type(valid).__name__, fix=fix)
        data.check_rated()
        return data


@contextmanager
def of_validation() -> Iterator[None]:
    """Errors inside say that they are about the validation data, whose arrays are called like those of ``fit``."""
    try:
        yield
    except TierankError as error:
        if error.argument != "valid":
            error.at("valid")
        raise


class ListTotals(NamedTuple):
    """What distinguishes the lists of some data: hashes of query ids, and the number and sum of the ratings of each."""

    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    sums: Floats

    @classmethod
    def of(cls, data: RankingDataset) -> ListTotals:
        """The lists of data with ratings; unjudged documents do not matter."""
        ids = np.fromiter(map(hash, data.query_ids.tolist()), np.int64, data.n_queries)
        counts, sums = (
            np.add.reduceat(values, data.offsets[:-1])
            for values in (data.is_judged.astype(np.int64), np.nan_to_num(data.ratings))
        )
        return cls(ids, counts, sums)

    def cuts(self, other: ListTotals) -> bool:
        """Whether another part of some list is in the other data; whole lists may be in both."""
        _, here, there = np.intersect1d(self.ids, other.ids, return_indices=True)
        is_same = (self.counts[here] == other.counts[there]) & np.isclose(self.sums[here], other.sums[there])
        return not is_same.all()


def as_rows(
    X: Any,
    y: Any,
    qid: Any,
    *,
    target: str | None = None,
    columns: Columns | None = None,
    ignore: Sequence[str] | None = None,
    **weights: Any,
) -> RankingDataset:
    """The data set, or one made from features, ratings and query ids, without the ignored columns.

    ``target`` and a text as ``qid`` name columns of a table; columns of query ids are no features.
    """
    if isinstance(X, RankingDataset):
        data = as_dataset(X, y, qid, target=target, columns=columns, **weights)
        return _without_features(data, _as_names(ignore)) if ignore else data
    check_declared(X, columns)
    if not is_table(X):
        for argument, value in (("ignore", ignore), ("target", target)):
            if value is not None:
                raise ParameterError(argument=argument, expected="None with an array, which has no names", got="some")
        return as_dataset(X, y, qid, **weights)
    warn_of_row_order(X=X, y=y, qid=qid, **weights)
    left_out, known, roles = _as_names(ignore), column_names(X), dict[str, str]()
    others = _no_query_ids(columns, ignore)
    if qid is None:
        qid = query_column(X, None, others)
    if isinstance(qid, str):
        _check_known("qid", [qid], known)
        roles["query"], qid = qid, as_column(X, qid)
    if target is not None:
        _check_alone("target", y, "y")
        roles["rating"] = as_name("target", target) or ""
        _check_known("target", [roles["rating"]], known)
        y = as_column(X, roles["rating"])
    copies = {
        name: as_column(X, name) for name in QUERY_COLUMNS if name in known and name not in (*others, *roles.values())
    }
    left_out += [name for name in (*roles.values(), *copies) if name not in others]
    if left_out:
        X = take_columns(X, [name for name in known if name not in left_out])
    features, feature_names, kinds = as_features(X, columns, can_ignore=True)
    data = as_dataset(features, y, qid, feature_names=feature_names, **weights).replace(kinds=kinds)
    data = data.replace(roles={**data.roles, **roles})
    for name, values in copies.items():  # the same lists, whatever their ids
        texts, queries = [str(value) for value in values.tolist()], data.restore(data.query_of_row).tolist()
        if not len(set(texts)) == data.n_queries == len(set(zip(queries, texts, strict=True))):
            fix = f"give one of the two; if the column is a feature, rename it, and otherwise ignore=[{name!r}]"
            raise DataError(argument="qid", expected=f"the ids in column {name!r} of X", got="others", fix=fix)
    # Features that come from a column together with others, such as one element of a vector.
    made = [name for name in left_out if name not in known]
    _check_known("ignore", made, [*known, *(data.feature_names or ())])
    return _without_features(data, made) if made else data


def _without_features(data: RankingDataset, left_out: Sequence[str]) -> RankingDataset:
    names = data.feature_names or ()
    _check_known("ignore", left_out, names)
    kept = [place for place, name in enumerate(names) if name not in left_out]
    return data.with_features(data.features[:, kept], tuple(names[place] for place in kept))


def _as_names(ignore: Sequence[str] | None) -> list[str]:
    if isinstance(ignore, str):
        raise ParameterError(argument="ignore", expected="a list of columns", got=repr(ignore))
    return list(ignore or ())


def _no_query_ids(columns: Columns | None, ignore: Sequence[str] | None) -> list[str]:
    """Columns that do not hold query ids, whatever their names: those that are declared or ignored."""
    return [*_as_names(ignore), *([] if columns is None else columns.named())]


def _check_known(argument: str, named: Sequence[str], names: Sequence[str]) -> None:
    """Refuse names of columns that are not there."""
    unknown = next((name for name in named if name not in names), None)
    if unknown is not None:
        raise ParameterError.unknown(f"column of {argument}", unknown, names)


def with_propensities(
    train: RankingDataset, valid: RankingDataset | None, propensity: Any, clip: float | None
) -> tuple[RankingDataset, RankingDataset | None]:
    """The data with propensities, clipped so that no click counts for more than ``clip``."""
    data = [train, valid]
    if propensity is not None:
        if train.propensity is not None:
            raise DataError(argument="propensity", expected="None with data that have propensities", got="some")
        data[0] = train.with_propensity(propensity)
        is_of_rows = not hasattr(propensity, "at") and len(as_array(propensity)) == train.n_documents
        if valid is not None and valid.position is not None and valid.propensity is None and not is_of_rows:
            data[1] = valid.with_propensity(propensity)
    least = 0.0 if clip is None else 1 / clip
    first, second = (
        one if one is None or one.propensity is None else one.replace(propensity=np.maximum(one.propensity, least))
        for one in data
    )
    return cast("RankingDataset", first), second


def settle_unjudged(
    train: RankingDataset,
    valid: RankingDataset | None,
    settings: Mapping[str, Any],
    can: Collection[str],
    are_clicks: bool = False,
    team: Team | None = None,
) -> tuple[RankingDataset, RankingDataset | None]:
    """The data with unjudged documents treated as the setting ``unjudged`` says.

    Skipped documents stay in the lists, without a rating, if the ranker is capable of that; queries without any judged
    document are left out. Clicks, which have positions or propensities, are never unjudged. A process of a team that
    has a part of the data may have no judged document, if documents count as rated 0.
    """
    for argument, data in (("y", train), ("valid", valid)):
        if data is None or not data.n_unjudged:
            continue
        if are_clicks or data.position is not None or data.propensity is not None:
            expected = "1 or 0 for every document where positions or propensities are given, as clicks are"
            raise DataError(argument=argument, expected=expected, got=f"{data.n_unjudged:,} unjudged documents")
    if valid is not None and valid.n_unjudged and "unjudged" not in can:
        valid = valid.replace(ratings=np.nan_to_num(valid.ratings))
    if not train.n_unjudged:
        return train, valid
    is_zero, is_part = settings.get("unjudged") == "zero", team is not None and team.size > 1 and team.holds_parts
    if not train.is_judged.any() and not (is_zero and is_part):
        raise DataError(argument="y", expected="at least one document with a rating", got="unjudged documents only")
    if is_zero:
        return train.replace(ratings=np.nan_to_num(train.ratings)), valid
    if "unjudged" not in can:
        return train.drop_unjudged(), valid
    has_judged = np.logical_or.reduceat(train.is_judged, train.offsets[:-1])
    return train if has_judged.all() else train.select(has_judged), valid


def warn_of_odd_queries(
    train: RankingDataset, valid: RankingDataset | None, *, has_queries: bool, n_jobs: int | None
) -> None:
    """Warn if query ids seem to be missing or taken from the wrong column, if there is no order to learn, and if
    training queries are validated on.
    """
    doubts = {"": _doubt_of_queries(train, has_queries) or _doubt_of_order(train)}
    doubts["valid: "] = None if valid is None else _doubt_of_queries(valid) or _doubt_of_seen(train, valid, n_jobs)
    for where, doubt in doubts.items():
        if doubt is not None:
            warnings.warn(where + doubt, stacklevel=3)


def warn_of_odd_lists(learned: ListTotals | None, data: RankingDataset, *, has_queries: bool) -> None:
    """Warn if the data to compute a score from seem to be no whole lists, as in folds of rows."""
    if not has_queries:
        doubt = _doubt_of_queries(data, has_queries)
        if doubt is not None:
            warnings.warn(f"score: {doubt}", stacklevel=3)
    elif learned is not None and learned.cuts(ListTotals.of(data)):
        warnings.warn(
            "some queries have other documents here than in the training data: if lists were cut into training and test"
            " rows, as cv=3 does, what is left of them is easier to rank, and the score is too high; keep lists whole"
            " with cv=tierank.QueryKFold(3), or ignore this if they are other lists with the same query id",
            stacklevel=3,
        )


def _doubt_of_queries(data: RankingDataset, has_queries: bool = True) -> str | None:
    """Why query ids seem to be missing or taken from the wrong column; None if they look right.

    >>> print(_doubt_of_queries(RankingDataset(np.eye(3), [0, 1, 2], qid=["a", "b", "c"])))
    each of the 3 rows is a separate query, and a list of one document has no order to learn: give the documents of
    one list the same query id
    """
    if data.n_queries == data.n_documents > 1:
        return (
            f"each of the {data.n_documents:,} rows is a separate query, and a list of one document has no order to"
            " learn: give the documents of one list the same query id"
        )
    if not has_queries and data.n_documents > _LIST_WITHOUT_ID:
        return (
            f"no qid was given, so all {data.n_documents:,} rows are one query: give one query id per row as qid, or"
            f" ignore this if they are one list; {HOW_TO_ROUTE}"
        )
    if data.n_queries == 1 and data.n_documents > _LONG_LIST:
        return (
            f"all {data.n_documents:,} rows are one query, longer than lists of candidates are: give one query id per"
            " row as qid, or ignore this if they are one list"
        )
    return None


def _doubt_of_order(data: RankingDataset) -> str | None:
    """Why there is nothing to learn, if no query has documents of different ratings that count."""
    if data.n_documents > 1 and not is_ordered(data.ratings, data.offsets).any():
        return "no query has documents with different ratings, so there is no order to learn"
    counts = _counts(data)
    if counts is not None and not is_ordered(np.where(counts, data.ratings, np.nan), data.offsets).any():
        return "no query has documents with different ratings and weights above 0, so there is no order to learn"
    return None


def _doubt_of_seen(train: RankingDataset, valid: RankingDataset, n_jobs: int | None) -> str | None:
    """Why values on the validation data say little about new queries, if training queries are among them."""
    share = share_seen(train, valid, n_jobs)
    if not share:
        return None
    return (
        f"{share:.0%} of the queries are training queries, by their documents and ratings: values on them are too good,"
        " and choose models that memorise; give other queries"
    )


def _counts(data: RankingDataset) -> NDArray[np.bool_] | None:
    """Which documents have a weight above 0; None: no weights are given."""
    counts = None if data.row_weight is None else data.row_weight > 0
    if data.query_weight is None:
        return counts
    of_query = np.repeat(data.query_weight > 0, data.lengths)
    return of_query if counts is None else counts & of_query
