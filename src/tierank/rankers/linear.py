"""LinearRanker: ridge regression within queries, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.errors import ParameterError
from tierank.export import Scorer
from tierank.rankers.judged import SelectingRanker
from tierank.rankers.trees import GAIN
from tierank.relevance import Gain
from tierank.settings import Between, Checked, Number, OneOf, Optional, setting
from tierank.training.model import FitContext, SavedModel, Seen
from tierank.transforms import EXPECTED, Transform, as_transforms, make_transform

if TYPE_CHECKING:
    from tierank.training.linear import LinearModel


def _with_a_weight_each(value: Any) -> tuple[Any, ...]:
    """The transforms, if each returns one column per feature."""
    transforms = as_transforms(value)
    for one in transforms:
        if make_transform(one).n_columns(1) != 1:
            expected = "transforms that return one column per feature"
            raise ParameterError(argument="feature_transform", expected=expected, got=repr(one))
    return transforms


@dataclass(kw_only=True, eq=False, repr=False)
class LinearRanker(SelectingRanker):
    """Ridge regression of the gains on features scaled within the query, in closed form.

    Columns x are all features under each transform; x and the gains y are centred within the query, and columns are
    divided by their deviation over the training documents. With row weights a (1 by default) and query weights v:

        w_q = v_q / sqrt(n_q * sum over the query of a (y - mean)^2),   n_q = sum over the query of a
        A = sum over q of w_q * sum of a x x',   b = sum over q of w_q * sum of a x y
        beta = (A + ridge * trace(A) / p * I)^-1 b

    p is the number of columns that vary within some query. Queries with a single rating have w_q = 0. Gains are divided
    by the highest gain of the training data, so that none overflows. A row with weight 2 counts as two rows; transforms
    ignore weights.

    Without validation data the ridge is chosen by cross-validation over five parts of the training queries, and is 1 if
    fewer than two queries have different ratings. There are no random numbers. ``tierank list settings linear`` lists
    the settings.

    Attributes
    ----------
    coef_ : array
        The weight of each transformed feature, transforms x features.
    ridge_ : float
        The strength of the penalty, given or chosen.
    transforms_ : tuple of Transform
        The fitted transforms.
    history_ : list of dict
        A row for each ridge that was tried, strongest first.

    Examples
    --------
    >>> from tierank import make_ranking
    >>> train, valid, test = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.6, 0.2, 0.2)
    >>> ranker = LinearRanker().fit(train, valid=valid)
    >>> ranker.coef_.shape, len(ranker.history_), ranker.predict(test).shape == (test.n_documents,)
    ((3, 8), 11, True)
    >>> LinearRanker(feature_transform="standard", ridge=0.1).fit(train).needs_list()
    False
    """

    feature_transform: str | Transform | Sequence[str | Transform] = setting(
        ("query_minmax", "query_rank", "query_log1p"),
        Checked(EXPECTED, _with_a_weight_each),
        "how features are scaled: a key of TRANSFORMS, a Transform, or several side by side; the default uses the"
        " whole list of a query, so predict needs it; standard and none score one document at a time",
    )
    ridge: float | None = setting(
        None,
        Optional(Number(0), "the best of 11 values from 10 to 1e-4"),
        "strength of the penalty, relative to the mean square of the columns; None for the best of 11 values from 10 to"
        " 1e-4 by select_by, on validation data or else by cross-validation over the training queries",
        search=Between(1e-4, 10.0, log=True),
    )
    gain: Gain = setting(
        "linear",
        GAIN,
        "gain of a rating: linear, exp2 (2^r - 1), a list for the ratings 0, 1, 2, ..., a mapping, or a function (which"
        " cannot be saved)",
        search=OneOf(("linear", "exp2")),
    )

    def takes_parts(self) -> bool:
        """Whether its transforms work within a query or can be fitted by several processes."""
        transforms = [make_transform(one) for one in self.plain_settings()["feature_transform"]]
        return all(one.takes_parts or one.needs_queries for one in transforms)

    def takes_unjudged(self) -> bool:
        """Unjudged documents have a weight of 0, after features were transformed within whole lists."""
        return True

    def fit_model(self, train: RankingDataset, valid: RankingDataset | None, context: FitContext) -> LinearModel:
        """Solve the normal equations."""
        from tierank.training.linear import train_linear

        return train_linear(self.checked_settings(), train, valid, context)

    def restore_model(self, saved: SavedModel) -> LinearModel:
        """The weights of a model folder."""
        from tierank.training.linear import LinearModel

        return LinearModel.restore(saved, self.plain_settings()["feature_transform"])

    def outline(self, train: RankingDataset, seen: Seen) -> Scorer:
        """Weights of 0 behind the transforms."""
        from tierank.training.linear import outline_linear

        return outline_linear(self.checked_settings(), train, seen).portable()

    @property
    def _linear(self) -> LinearModel:
        self._check_fitted()
        return cast("LinearModel", self.model_)

    @property
    def coef_(self) -> NDArray[np.float64]:
        """The weight of each transformed feature, transforms x features."""
        return self._linear.coef

    @property
    def ridge_(self) -> float:
        """The strength of the penalty, given or chosen."""
        return self._linear.ridge

    @property
    def transforms_(self) -> tuple[Transform, ...]:
        """The fitted transforms, in the order of the rows of ``coef_``."""
        return self._linear.transforms
