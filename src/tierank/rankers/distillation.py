"""``distill``: one ranker, for serving, that learns from the ratings and from the scores of a blend."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from tierank.arrays import Floats
from tierank.data.dataset import RankingDataset, check_dataset
from tierank.errors import DataError, ParameterError
from tierank.rankers.base import Ranker
from tierank.rankers.blend import Blend, deal
from tierank.rankers.order import by_content
from tierank.rankers.selection import mean_of_standardised
from tierank.rankers.trees import LambdaMART
from tierank.settings import Number


def distill(
    blend: Blend,
    train: RankingDataset,
    into: Ranker | None = None,
    *,
    valid: RankingDataset | None = None,
    mix: float = 0.8,
    **fit_arguments: Any,
) -> Ranker:
    """Fit one ranker to the ratings and to the scores of a blend, to serve it in place of the blend.

    z are the scores of members that have not learned from the query (``Blend.out_of_fold``), standardised within the
    query. With r the ratings and r_q their mean in the query, the ranker learns

        t(d) = (1 - mix) r(d) + mix * e(d),   e(d) = r_q + b z(d), clipped to 0 and the highest rating of the data

    where b is the slope of the regression of r - r_q on z over all documents, or 0 if that is negative: e is the rating
    that the blend expects. So documents with the same rating are in the order that the blend gives them. Unjudged
    documents stay unjudged.

    Parameters
    ----------
    blend : Blend
        A blend that was fitted on ``train`` and ``valid`` with ``rotate=True``.
    train : RankingDataset
        The training data of the blend: ratings, not clicks with positions.
    into : Ranker, default LambdaMART()
        The ranker to fit; it is not changed. Its ``gain`` is a name or a function, as ``t`` lies between ratings.
    valid : RankingDataset, optional
        The validation data of the blend; their ratings choose the round. Without them a quarter of the training queries
        is held out for that.
    mix : float, default 0.8
        The share of the blend in what is learned: 0 for the ratings alone, 1 for the scores alone.
    **fit_arguments
        Further arguments of ``fit``: ``checkpoint``, ``progress``, ``callbacks``, ...

    Returns
    -------
    Ranker
        A fitted copy of ``into``.

    Examples
    --------
    >>> from tierank import Blend, LambdaMART, make_ranking
    >>> train, valid, test = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.6, 0.2, 0.2)
    >>> blend = Blend.from_preset("full", n_trees=5, max_epochs=2).fit(train, valid=valid)
    >>> ranker = distill(blend, train, LambdaMART(n_trees=20), valid=valid)
    >>> type(ranker).__name__, ranker.predict(test).shape == (test.n_documents,)
    ('LambdaMART', True)
    """
    if not isinstance(blend, Blend):
        raise ParameterError(argument="blend", expected="a fitted Blend", got=type(blend).__name__)
    check_dataset("train", train)
    if valid is not None:
        check_dataset("valid", valid)
    if into is not None and not isinstance(into, Ranker):
        raise ParameterError(argument="into", expected="a ranker, such as LambdaMART()", got=repr(into))
    mix = float(Number(0, 1).check("mix", mix))
    ranker = LambdaMART() if into is None else clone(into)
    ranker.checked_settings()
    _check_gains(ranker)
    train.check_rated()
    if train.position is not None or train.propensity is not None:
        raise DataError(
            argument="train",
            expected="ratings, because distilling does not correct for positions",
            got="clicks with positions or propensities",
            fix="tierank.clicks.judgements turns a log into ratings",
        )
    soft = train.replace(ratings=soft_ratings(train, train.arrange(blend.out_of_fold(train, valid)), mix))
    if valid is None:
        n_jobs = blend.resources().n_jobs
        _, parts = deal(train, None, blend.settings_["seed"], n_jobs)
        if len(parts) > 1:
            is_learned = np.ones(train.n_queries, bool)
            is_learned[parts[-1]] = False
            soft, valid = soft.select(is_learned), by_content(train.select(parts[-1]), n_jobs)
    return ranker.fit(soft, valid=valid, **fit_arguments)


def _check_gains(ranker: Ranker) -> None:
    """Refuse tables of gains: what is learned lies between the ratings that they have."""
    for name, gain in ranker.get_params().items():
        if name.split("__")[-1] == "gain" and not isinstance(gain, str) and not callable(gain):
            raise ParameterError(
                argument=f"into.{name}",
                expected="'exp2', 'linear' or a function, as what a distilled ranker learns lies between ratings",
                got=type(gain).__name__,
            )


def soft_ratings(data: RankingDataset, scores: Floats, mix: float) -> Floats:
    """The targets in place of the ratings: ratings mixed with those that the scores predict. See ``distill``."""
    ratings, judged = np.asarray(data.ratings), data.is_judged
    starts = data.offsets[:-1]
    totals = np.add.reduceat(np.where(judged, ratings, 0.0), starts)
    means = np.repeat(totals / np.maximum(np.add.reduceat(judged.astype(np.int64), starts), 1), data.lengths)
    z = mean_of_standardised([scores], data)
    # Sums of sorted numbers are the same bits for rows in any order.
    products, squares = np.sort(((ratings - means) * z)[judged]).sum(), np.sort((z * z)[judged]).sum()
    slope = max(products / squares, 0.0) if squares > 0 else 0.0
    expected = np.clip(means + slope * z, 0.0, ratings[judged].max())
    return np.asarray((1.0 - mix) * ratings + mix * expected, np.float64)  # NaN where unjudged
