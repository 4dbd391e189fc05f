"""The data that callers give to ``fit``: validation data, propensities, and queries that look wrong."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.checks import as_array
from tierank.columns import Plan
from tierank.dataset import RankingDataset
from tierank.doubts import find_doubts
from tierank.encoding import as_features, check_declared
from tierank.errors import ColumnWarning, DataError, ParameterError, TierankError
from tierank.estimators import HOW_TO_ROUTE, as_dataset
from tierank.kinds import Columns
from tierank.settings import as_choice
from tierank.tables import column_names, is_table, take_columns, warn_of_row_order
from tierank.team import Team
from tierank.types import Floats

# What training can do with documents that have no rating.
UNJUDGED = ("skip", "zero")
# A list of more documents looks like a mistake: the longest list of the public collections has 1,251 (MSLR-WEB30K), and
# a search engine passes on 1,000 documents or fewer to be reranked.
_LONG_LIST = 2_000
# Without query ids, more rows than this look like several lists whose ids were forgotten.
_LIST_WITHOUT_ID = 100
# Columns that a warning describes.
_LISTED = 12


class Given(NamedTuple):
    """The data arguments of ``fit``."""

    X: Any
    y: ArrayLike | None
    qid: ArrayLike | None
    valid: RankingDataset | Sequence[Any] | None
    weights: Mapping[str, Any]
    propensity: Any
    columns: Columns | None
    ignore: Sequence[str] | None

    @property
    def has_queries(self) -> bool:
        """Whether query ids were given."""
        return isinstance(self.X, RankingDataset) or self.qid is not None

    def training_rows(self, ranker: str) -> RankingDataset:
        """The training data, with ratings."""
        if isinstance(self.X, (str, os.PathLike)):
            raise DataError(
                argument="X",
                expected="a RankingDataset, an array or a table",
                got=type(self.X).__name__,
                fix="tierank.read makes a data set from a file",
            )
        if self.y is None and not isinstance(self.X, RankingDataset):
            # The words are what scikit-learn's checks look for.
            raise DataError(
                f"{ranker} requires y to be passed, but the target y is None: give the ratings",
                fix="if X has columns of ratings and query ids, fit(tierank.read(X, query=..., rating=...)) reads them"
                if is_table(self.X)
                else None,
            )
        train = as_rows(self.X, self.y, self.qid, self.columns, self.ignore, **self.weights)
        train.check_rated()
        return train

    def validation_rows(self) -> RankingDataset | None:
        """The validation data, if any, with ratings."""
        with of_validation():
            return (
                None if self.valid is None else as_validation(self.valid, self.has_queries, self.columns, self.ignore)
            )


@contextmanager
def of_validation() -> Iterator[None]:
    """Errors inside say that they are about the validation data, whose arrays are called like those of ``fit``."""
    try:
        yield
    except TierankError as error:
        if error.argument != "valid":
            error.at("valid")
        raise


class Lesson(NamedTuple):
    """What a ranker learns from: the data before encoding, and the encoded data and plain settings."""

    raw: RankingDataset
    train: RankingDataset
    valid: RankingDataset | None
    plan: Plan
    settings: dict[str, Any]


def check_kinds(train: RankingDataset, team: Team) -> None:
    """Refuse columns that are not plain numbers if no process has all of their values."""
    if train.kinds and team.holds_parts:
        raise DataError(
            argument="X",
            expected="columns of numbers if each process has a part of the data",
            got=f"other columns: {', '.join(map(repr, list(train.kinds)[:8]))}",
            fix="encode them as numbers first, or give all data to every process",
        )


def as_rows(
    X: Any, y: Any, qid: Any, columns: Columns | None, ignore: Sequence[str] | None, **weights: Any
) -> RankingDataset:
    """The data set, or one made from features, ratings and query ids, without the ignored columns."""
    if isinstance(X, RankingDataset):
        data = as_dataset(X, y, qid, columns=columns, **weights)
        return _without_features(data, _as_names(ignore)) if ignore else data
    check_declared(X, columns)
    if not is_table(X):
        if ignore is not None:
            raise ParameterError(argument="ignore", expected="None with an array, which has no names", got="some")
        return as_dataset(X, y, qid, **weights)
    warn_of_row_order(X=X, y=y, qid=qid, **weights)
    left_out, known = _as_names(ignore), column_names(X)
    if left_out:
        X = take_columns(X, [name for name in known if name not in left_out])
    features, feature_names, kinds = as_features(X, columns, can_ignore=True)
    data = as_dataset(features, y, qid, feature_names=feature_names, **weights).replace(kinds=kinds)
    # Features that come from a column together with others, such as one element of a vector.
    made = [name for name in left_out if name not in known]
    _check_known(made, [*known, *(data.feature_names or ())])
    return _without_features(data, made) if made else data


def _without_features(data: RankingDataset, left_out: Sequence[str]) -> RankingDataset:
    names = data.feature_names or ()
    _check_known(left_out, names)
    kept = [place for place, name in enumerate(names) if name not in left_out]
    return data.with_features(data.features[:, kept], tuple(names[place] for place in kept))


def _as_names(ignore: Sequence[str] | None) -> list[str]:
    if isinstance(ignore, str):
        raise ParameterError(argument="ignore", expected="a list of columns", got=repr(ignore))
    return list(ignore or ())


def _check_known(ignored: Sequence[str], names: Sequence[str]) -> None:
    """Refuse to ignore what is not there."""
    unknown = next((name for name in ignored if name not in names), None)
    if unknown is not None:
        raise ParameterError.unknown("column of ignore", unknown, names)


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
    unjudged: str,
    *,
    is_taken: bool,
    are_clicks: bool,
    is_part: bool = False,
) -> tuple[RankingDataset, RankingDataset | None]:
    """The data with unjudged documents treated as the setting ``unjudged`` says.

    Skipped documents stay in the lists, without a rating, if the ranker supports that (``is_taken``); queries without
    any judged document are left out. Clicks, which have positions or propensities, are never unjudged. If the data are
    a part of all (``is_part``), documents that count as rated 0 may be all that it has.
    """
    for argument, data in (("y", train), ("valid", valid)):
        if data is None or not data.n_unjudged:
            continue
        if are_clicks or data.position is not None or data.propensity is not None:
            expected = "1 or 0 for every document where positions or propensities are given, as clicks are"
            raise DataError(argument=argument, expected=expected, got=f"{data.n_unjudged:,} unjudged documents")
    if valid is not None and valid.n_unjudged and not is_taken:
        valid = valid.replace(ratings=np.nan_to_num(valid.ratings))
    if not train.n_unjudged:
        return train, valid
    is_zero = as_choice("unjudged", unjudged, UNJUDGED) == "zero"
    if not train.is_judged.any() and not (is_zero and is_part):
        raise DataError(argument="y", expected="at least one document with a rating", got="unjudged documents only")
    if is_zero:
        return train.replace(ratings=np.nan_to_num(train.ratings)), valid
    if not is_taken:
        return train.drop_unjudged(), valid
    has_judged = np.logical_or.reduceat(train.is_judged, train.offsets[:-1])
    return train if has_judged.all() else train.select(has_judged), valid


def warn_of_odd_queries(train: RankingDataset, valid: RankingDataset | None, *, has_queries: bool) -> None:
    """Warn if query ids seem to be missing or taken from the wrong column, and if there is no order to learn."""
    doubts = {"": _doubt_of_queries(train, has_queries) or _doubt_of_order(train)}
    doubts["valid: "] = None if valid is None else _doubt_of_queries(valid)
    for where, doubt in doubts.items():
        if doubt is not None:
            warnings.warn(where + doubt, stacklevel=3)


def warn_of_columns(train: RankingDataset) -> None:
    """Warn of all columns that should probably not be learned from, and say how to leave them out."""
    doubts = {} if train.feature_names is None else find_doubts(train)
    if not doubts:
        return
    held = [f"column {name!r} {what}" for name, what in doubts.items()]
    more = f"; ... ({len(held)} columns in all)" if len(held) > _LISTED else ""
    those = "it" if len(held) == 1 else "them"
    warnings.warn(
        f"{'; '.join(held[:_LISTED])}{more}: leave {those} out with ignore={list(doubts)}, if that is not intended",
        ColumnWarning,
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
    if data.n_documents > 1 and not _has_order(data, data.ratings):
        return "no query has documents with different ratings, so there is no order to learn"
    counts = _counts(data)
    if counts is not None and not _has_order(data, np.where(counts, data.ratings, np.nan)):
        return "no query has documents with different ratings and weights above 0, so there is no order to learn"
    return None


def _has_order(data: RankingDataset, ratings: Floats) -> bool:
    """Whether some query has two different ratings; NaN does not count."""
    starts = data.offsets[:-1]
    return bool((np.fmin.reduceat(ratings, starts) < np.fmax.reduceat(ratings, starts)).any())


def _counts(data: RankingDataset) -> NDArray[np.bool_] | None:
    """Which documents have a weight above 0; None: no weights are given."""
    counts = None if data.row_weight is None else data.row_weight > 0
    if data.query_weight is None:
        return counts
    of_query = np.repeat(data.query_weight > 0, data.lengths)
    return of_query if counts is None else counts & of_query


def as_validation(
    valid: RankingDataset | Sequence[Any],
    has_queries: bool,
    columns: Columns | None = None,
    ignore: Sequence[str] | None = None,
) -> RankingDataset:
    """The validation data as a data set; with query ids if the training data have them."""
    if isinstance(valid, RankingDataset):
        data = valid
    elif isinstance(valid, Sequence) and len(valid) in (2, 3):
        if has_queries and (len(valid) == 2 or valid[2] is None):
            raise DataError(argument="valid", expected="(X, y, qid), as the training data have query ids", got="no qid")
        data = as_rows(valid[0], valid[1], valid[2] if len(valid) == 3 else None, columns, ignore)
    else:
        raise DataError(argument="valid", expected="a RankingDataset or (X, y, qid)", got=type(valid).__name__)
    data.check_rated()
    return data
