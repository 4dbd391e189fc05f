"""Transform: what all transforms share, and what your own transform derives from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import Tags

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.estimators import Estimator, as_dataset
from tierank.kinds import Category
from tierank.team import Team

if TYPE_CHECKING:  # what transforms inherit from scikit-learn, which has no types

    class TransformerMixin:
        """Methods that all transformers share."""

        def set_output(self, *, transform: str | None = None) -> Self:
            """Choose what ``transform`` returns: "default", "pandas" or "polars"."""

    class OneToOneFeatureMixin:
        """Methods of a transformer that returns one column per feature."""

        def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
            """The names of the columns."""

else:
    from sklearn.base import OneToOneFeatureMixin, TransformerMixin


class Transform(OneToOneFeatureMixin, TransformerMixin, Estimator):
    """Base class of all transforms; subclass it to write your own. Transforms are scikit-learn transformers.

    ``fit`` takes a ``RankingDataset``, or features and one query id per row. A subclass defines ``learn``, which sets
    the arrays that it names in ``ARRAYS``, and ``apply``, the fast path for rows that are already grouped and checked.
    If it also defines ``learn_in_team``, several processes, each with a part of the documents, can fit it together.
    """

    # Whether a value depends on the other documents of its query.
    needs_queries: ClassVar[bool] = False
    # The fitted arrays by name, without the trailing underscore: dtype, and shape after the feature axis.
    ARRAYS: ClassVar[dict[str, tuple[type[np.floating[Any]], tuple[int, ...]]]] = {}
    has_queries_: bool

    # scikit-learn routes query ids to these methods without being asked.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"qid": True}
    __metadata_request__transform: ClassVar[dict[str, bool]] = {"qid": True}

    def fit(self, X: Any, y: ArrayLike | None = None, qid: ArrayLike | None = None) -> Self:
        """Learn the statistics of all documents; ``y`` is ignored. Without ``qid`` queries are unknown.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            The documents.
        y : array, optional
            Ignored.
        qid : array, optional
            One query id per row. Without it queries are unknown.

        Returns
        -------
        self
            The fitted transform.
        """
        has_queries = isinstance(X, RankingDataset) or qid is not None
        return self.fit_in_team(as_dataset(X, None, qid), Team(), has_queries=has_queries)

    def fit_in_team(self, data: RankingDataset, team: Team, *, has_queries: bool = True) -> Self:
        """Learn the statistics of the documents of all processes of a team; all get the same arrays.

        Parameters
        ----------
        data : RankingDataset
            The documents, or those of this process.
        team : Team
            The processes.
        has_queries : bool, default True
            Whether the queries of the data are known.

        Returns
        -------
        self
            The fitted transform.
        """
        category = next((name for name, kind in data.kinds.items() if isinstance(kind, Category)), None)
        if category is not None:
            raise DataError(expected="numeric features", got=f"texts in column {category!r}")
        self.has_queries_ = has_queries
        if team.size == 1 or not (team.holds_parts or self.takes_parts):
            self.learn(data.features)
        elif self.takes_parts:
            self.learn_in_team(team.part(data).features, team)
        else:
            raise ParameterError(
                argument="feature_transform",
                expected="transforms that define learn_in_team if each process has a part of the data",
                got=type(self).__name__,
            )
        self._set_features(data.n_features, data.feature_names)
        return self

    def transform(self, X: Any, qid: ArrayLike | None = None) -> NDArray[np.float32]:
        """The transformed features, in the caller's order. Per-query transforms need ``qid`` if ``fit`` had it.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            The documents.
        qid : array, optional
            One query id per row.

        Returns
        -------
        array of float32
            One row per document.
        """
        self._check_fitted()
        if self.needs_queries:
            self._check_queries(isinstance(X, RankingDataset) or qid is not None)
        data = self._as_own_features(X, qid)
        transformed: NDArray[np.float32] = data.restore(
            self.values_of(data.features, data.offsets if self.has_queries_ else None)
        )
        return transformed

    def fit_transform(self, X: Any, y: ArrayLike | None = None, qid: ArrayLike | None = None) -> NDArray[np.float32]:
        """``fit``, then ``transform`` with the same query ids.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            The documents.
        y : array, optional
            Ignored.
        qid : array, optional
            One query id per row. Without it queries are unknown.

        Returns
        -------
        array of float32
            One row per document.
        """
        return self.fit(X, y, qid).transform(X, qid)

    @abstractmethod
    def apply(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The transformed features of whole queries, grouped as in a ``RankingDataset``; None: queries are unknown.

        Parameters
        ----------
        features : array of float32
            One row per document, grouped by query.
        offsets : array of int64 or None
            Where queries begin, and where the last one ends; None if queries are unknown.

        Returns
        -------
        array of float32
            One row per document, ``n_columns(n_features)`` columns.
        """

    def values_of(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The result of ``apply`` as a contiguous array of float32; raises ``ParameterError`` if its shape is wrong.

        Parameters
        ----------
        features : array of float32
            One row per document, grouped by query.
        offsets : array of int64 or None
            Where queries begin, and where the last one ends; None if queries are unknown.

        Returns
        -------
        array of float32
            One row per document, ``n_columns(n_features)`` columns.
        """
        values = np.ascontiguousarray(self.apply(features, offsets), np.float32)
        shape = (len(features), self.n_columns(features.shape[1]))
        if values.shape != shape:
            raise ParameterError(
                argument="feature_transform",
                expected=f"an array of shape {shape} from {type(self).__name__}.apply",
                got=f"one of shape {values.shape}",
                fix="return one row per document; n_columns says how many columns it has",
            )
        return values

    @abstractmethod
    def learn(self, features: NDArray[np.float32]) -> None:
        """Set the fitted arrays.

        Parameters
        ----------
        features : array of float32
            One row per document, grouped by query.
        """

    def learn_in_team(self, features: NDArray[np.float32], team: Team) -> None:
        """Set the fitted arrays to those of the documents of all processes; ``features`` are those of this process.

        Parameters
        ----------
        features : array of float32
            The documents of this process.
        team : Team
            The processes that fit the transform together.
        """
        raise NotImplementedError

    @property
    def takes_parts(self) -> bool:
        """Whether several processes, each with a part of the documents, can fit it together.

        A class that defines only ``learn`` does not say how to combine the statistics of parts.
        """
        owners = [
            next(kind for kind in type(self).__mro__ if name in vars(kind)) for name in ("learn", "learn_in_team")
        ]
        return owners[0] is owners[1]

    def n_columns(self, n_features: int) -> int:
        """The number of columns for this many features, a multiple: column c is of feature c mod ``n_features``.

        Parameters
        ----------
        n_features : int
            Number of features.

        Returns
        -------
        int
            Number of columns.
        """
        return n_features

    def state(self) -> dict[str, NDArray[Any]]:
        """The fitted arrays by name; ``from_state`` restores the transform from them.

        Returns
        -------
        dict of str to array
            The fitted arrays.
        """
        self._check_fitted()
        return {"has_queries": np.array(self.has_queries_)} | {name: getattr(self, f"{name}_") for name in self.ARRAYS}

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray[Any]], n_features: int) -> Self:
        """The transform that ``state`` was taken from, with default settings.

        >>> from tierank.transforms import Standard
        >>> fitted = Standard().fit([[1.0], [3.0]])
        >>> Standard.from_state(fitted.state(), n_features=1).transform([[5.0]])
        array([[3.]], dtype=float32)
        """
        return cls().load_state(state, n_features)

    def load_state(self, state: Mapping[str, NDArray[Any]], n_features: int) -> Self:
        """Take over the ``state`` of a fitted transform; raises ``DataError`` if an array has the wrong shape.

        Parameters
        ----------
        state : mapping of str to array
            The result of ``state``.
        n_features : int
            Number of features.

        Returns
        -------
        self
            The fitted transform.
        """
        cls = type(self)
        if set(state) != {"has_queries", *cls.ARRAYS}:
            raise DataError(
                f"{cls.__name__}: expected the arrays {', '.join(['has_queries', *cls.ARRAYS])}, got {', '.join(state)}"
            )
        _check_array(state["has_queries"], "has_queries", np.bool_, ())
        for name, (kind, shape) in cls.ARRAYS.items():
            _check_array(state[name], name, kind, (n_features, *shape))
        self.has_queries_ = bool(state["has_queries"])
        for name in cls.ARRAYS:
            setattr(self, f"{name}_", np.ascontiguousarray(state[name]))
        self._set_features(n_features, None)
        return self

    def _check_queries(self, known: bool) -> None:
        """Raise ``DataError`` unless query ids are given if and only if ``fit`` had them."""
        name = type(self).__name__
        if self.has_queries_ and not known:
            raise DataError(
                f"qid: expected one query id per row, as in fit, got none; {name} scales each query by its own"
                " documents. For one query pass qid=np.zeros(len(X)); in scikit-learn's tools, switch on metadata"
                " routing: sklearn.set_config(enable_metadata_routing=True)"
            )
        if known and not self.has_queries_:
            raise DataError(
                f"qid: expected none, as in fit, got query ids; this {name} was fitted without queries and scales all"
                " documents alike. Pass qid to fit too"
            )

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags


def _check_array(array: NDArray[Any], name: str, kind: type[np.generic], shape: tuple[int, ...]) -> None:
    """Raise ``DataError`` unless the array is as expected: compiled loops do not check sizes."""
    if array.dtype != kind or array.shape != shape:
        raise DataError(
            f"{name}: expected {kind.__name__} of shape {shape}, got {array.dtype.name} of shape {array.shape}"
        )
    if not np.isfinite(array).all():
        raise DataError(f"{name}: expected finite numbers, got NaN or infinity")
