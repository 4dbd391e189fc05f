"""The base class of rankers and transforms: fitted state, and matching features with those of ``fit``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.columns import Plan
from tierank.dataset import RankingDataset
from tierank.encoding import as_features
from tierank.errors import DataError, NotFittedError
from tierank.tables import column_names, is_table, take_columns, warn_of_row_order

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
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError as SklearnNotFittedError

HOW_TO_ROUTE = (
    "in scikit-learn's tools, switch on sklearn.set_config(enable_metadata_routing=True) and pass the ids to the call:"
    " search.fit(X, y, qid=qid), cross_validate(..., params={'qid': qid})"
)
# Columns that a message names.
_LISTED = 12


class NotFitted(NotFittedError, SklearnNotFittedError):
    """``NotFittedError`` that is also scikit-learn's."""


class Estimator(BaseEstimator):
    """A scikit-learn estimator that takes a ``RankingDataset``, or features and one query id per row."""

    n_features_in_: int
    feature_names_in_: NDArray[Any]

    def _check_fitted(self) -> None:
        if not hasattr(self, "n_features_in_"):
            self._refuse_unfitted()

    def _refuse_unfitted(self) -> NoReturn:
        raise NotFitted(f"this {type(self).__name__} is not fitted: call fit first")

    def _set_features(self, n_features: int, names: Sequence[str] | None) -> None:
        self.n_features_in_ = n_features
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _as_own_features(self, X: Any, qid: ArrayLike | None) -> RankingDataset:
        """The data with the features that were learned from, in that order."""
        given = getattr(self, "feature_names_in_", None)
        names, plan = None if given is None else tuple(given), self._plan
        if names is not None and is_table(X):
            warn_of_row_order(X=X, qid=qid)
            sources = plan.sources(names)
            _check_columns(sources, column_names(X))
            features, raw, kinds = as_features(take_columns(X, sources), kinds=plan.raw_kinds(names))
            data = RankingDataset(features, None, qid, feature_names=raw).replace(kinds=kinds)
        else:
            data = as_dataset(X, None, qid)
        return plan.apply(self._with_features_of(plan.expand(data), self.n_features_in_, names))

    @property
    def _plan(self) -> Plan:
        """What was learned about columns that are not plain numbers."""
        return Plan()

    def _with_features_of(self, data: RankingDataset, n_features: int, names: tuple[str, ...] | None) -> RankingDataset:
        """The data with these features, in this order."""
        if names is not None and data.feature_names is not None and data.feature_names != names:
            _check_columns(names, data.feature_names)
            columns = [data.feature_names.index(name) for name in names]
            data = data.with_features(data.features[:, columns], names)
        if data.n_features != n_features:
            # The word order is what scikit-learn's checks look for.
            raise DataError(
                f"X has {data.n_features} features, but {type(self).__name__} is expecting {n_features} features as"
                " input; text files that leave out zeros are read with n_features"
            )
        return data


def _check_columns(wanted: Sequence[str], given: Sequence[str]) -> None:
    missing = [repr(name) for name in wanted if name not in given]
    if missing:
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        those = "the column" if len(missing) == 1 else "the columns"
        raise DataError(f"X: expected {those} {', '.join(missing[:_LISTED])}{more}, which fit had, got none")


def as_dataset(X: Any, y: ArrayLike | None, qid: ArrayLike | None, **weights: Any) -> RankingDataset:
    """A data set, as given or made from features, ratings and query ids."""
    if not isinstance(X, RankingDataset):
        return RankingDataset(X, y, qid, **weights)
    given = [name for name, value in (("y", y), ("qid", qid), *weights.items()) if value is not None]
    if given:
        raise DataError(f"{given[0]}: expected None with a RankingDataset, which has its own")
    return X
