"""What rankers and transforms share: they learn from data once, and later find the same features in other data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from tierank.data.dataset import RankingDataset
from tierank.data.encoder import ColumnEncoder
from tierank.data.tables import as_features, column_names, is_table, take_columns, warn_of_row_order
from tierank.errors import DataError, NotFittedError

if TYPE_CHECKING:
    # scikit-learn has no types, and a class with an unknown base has every attribute, so that a checker would not
    # report a misspelled one. Here and in other modules, such blocks declare what our classes inherit.
    class BaseEstimator:
        """Methods that all estimators share."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """The settings by name."""

        def set_params(self, **params: Any) -> Self:
            """Change settings."""

        def get_metadata_routing(self) -> Any:
            """The request for query ids, as scikit-learn's tools read it."""

        def __sklearn_tags__(self) -> Any: ...

    class SklearnNotFittedError(ValueError, AttributeError):
        """scikit-learn's own error."""

else:
    from sklearn.base import BaseEstimator as BaseEstimator
    from sklearn.exceptions import NotFittedError as SklearnNotFittedError

HOW_TO_ROUTE = (
    "in scikit-learn's tools, switch on sklearn.set_config(enable_metadata_routing=True) and pass the ids to the call:"
    " search.fit(X, y, qid=qid), cross_validate(..., params={'qid': qid})"
)
# Columns that a message names.
_LISTED = 12


class NotFitted(NotFittedError, SklearnNotFittedError):
    """``NotFittedError`` that is also scikit-learn's."""

    @classmethod
    def of(cls, estimator: object) -> NotFitted:
        """The error for an estimator that is used before ``fit``."""
        return cls(f"this {type(estimator).__name__} is not fitted", fix="call fit first")


def check_fitted(estimator: object) -> None:
    """Raise ``NotFittedError`` if ``fit`` was not called."""
    if "n_features_in_" not in vars(estimator):
        raise NotFitted.of(estimator)


def keep_features(estimator: Any, n_features: int, names: Sequence[str] | None) -> None:
    """Set scikit-learn's attributes of a fitted estimator: the features that it learned from."""
    estimator.n_features_in_ = n_features
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    else:
        vars(estimator).pop("feature_names_in_", None)


def match_features(estimator: Any, X: Any, qid: ArrayLike | None, plan: ColumnEncoder | None = None) -> RankingDataset:
    """The data with the features that a fitted estimator learned from, in that order.

    Parameters
    ----------
    estimator : Ranker or Transform
        What was fitted.
    X : RankingDataset, array, sparse matrix or table
        The documents.
    qid : array or None
        One query id per row.
    plan : ColumnEncoder, optional
        What was learned about columns that are not plain numbers.
    """
    given = vars(estimator).get("feature_names_in_")
    names, plan = None if given is None else tuple(given), plan or ColumnEncoder()
    if names is not None and is_table(X):
        warn_of_row_order(X=X, qid=qid)
        sources = plan.sources(names)
        _check_columns(sources, column_names(X))
        features, raw, kinds = as_features(take_columns(X, sources), kinds=plan.raw_kinds(names))
        data = RankingDataset(features, None, qid, feature_names=raw).replace(kinds=kinds)
    else:
        data = as_dataset(X, None, qid)
    return as_learned(estimator, data, estimator.n_features_in_, names, plan)


def as_learned(
    estimator: object, data: RankingDataset, n_features: int, names: tuple[str, ...] | None, plan: ColumnEncoder
) -> RankingDataset:
    """The data with these features, in this order, and with the columns that the plan computes."""
    if plan.kinds:
        data = plan.expand(data)
    if names is not None and data.feature_names is not None and data.feature_names != names:
        _check_columns(names, data.feature_names)
        columns = [data.feature_names.index(name) for name in names]
        data = data.with_features(data.features[:, columns], names)
    if data.n_features != n_features:
        # The word order is what scikit-learn's checks look for.
        raise DataError(
            f"X has {data.n_features} features, but {type(estimator).__name__} is expecting {n_features} features as"
            " input",
            fix="text files that leave out zeros are read with n_features",
        )
    return plan.apply(data) if plan.kinds or data.kinds else data


def _check_columns(wanted: Sequence[str], given: Sequence[str]) -> None:
    missing = [repr(name) for name in wanted if name not in given]
    if missing:
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        those = "the column" if len(missing) == 1 else "the columns"
        raise DataError(
            argument="X", expected=f"{those} {', '.join(missing[:_LISTED])}{more}, which fit had", got="none"
        )


def as_dataset(X: Any, y: ArrayLike | None, qid: ArrayLike | None, **weights: Any) -> RankingDataset:
    """A data set, as given or made from features, ratings and query ids."""
    if not isinstance(X, RankingDataset):
        return RankingDataset(X, y, qid, **weights)
    for name, value in (("y", y), ("qid", qid), *weights.items()):
        if value is not None:
            raise DataError(argument=name, expected="None with a RankingDataset, which has its own", got="some")
    return X
