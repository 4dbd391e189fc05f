"""Judgements from clicks: a rating for each query and document, and how sure it is."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.clicks.base import AttractionModel, ClickModel
from tierank.clicks.choice import choose_model
from tierank.clicks.log import ClickLog, Ints, check_log, flat_ids, sum_by, write_columns
from tierank.clicks.models import make_model
from tierank.clicks.position_models import PositionBased
from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.files import as_path
from tierank.settings import Number, as_least
from tierank.types import Floats

# Models in which every position is examined now and then, so that clicks can be corrected for positions.
_CORRECTING = ("pbm", "ubm")
# Users who stop when they are satisfied. Documents below good ones are then never examined: among the known
# documents relevant ones are always the last, and a ranker would learn that order.
_STOPPING = "dbn"
# With fewer documents there is no warning: that is an example, and nobody learns a ranker from it.
_MANY = 100
# With fewer examinations a rating by a document's own clicks is mostly noise.
_FEW = 10
# The highest rating that can be asked for: gains of 2^rating - 1 are numbers up to there.
_HIGHEST = 1000


@dataclass(frozen=True, eq=False, repr=False)
class Judgements:
    """Ratings from clicks, one row for each query and document.

    Parameters
    ----------
    query, document : arrays
        The ids.
    rating : array of float64
        log2(1 + (2^top - 1) relevance) with the relevance by the click model, from 0 to ``top``.
    weight : array of float64
        How much the clicks say about the document, from 0 to 1: n / (n + half) if it was examined n times.
    n_examined : array of float64
        How often the document was examined, as far as the click model can tell.
    n_clicks : array of float64
        How often it was clicked.
    mean_position : array of float64
        Where it was shown, in the mean.
    model : ClickModel
        The click model, fitted.
    top : float, default 4.0
        The highest rating that a document can have.
    half : float, default 40.0
        The number of examinations at which the weight is 0.5.
    """

    query: NDArray[Any]
    document: NDArray[Any]
    rating: Floats
    weight: Floats
    n_examined: Floats
    n_clicks: Floats
    mean_position: Floats
    model: ClickModel
    top: float = 4.0
    half: float = 40.0

    def __len__(self) -> int:
        return len(self.rating)

    def __repr__(self) -> str:
        n_sure = int((self.weight > 0.5).sum())
        return f"Judgements({len(self):,} documents by {self.model.name}, {n_sure:,} with a weight above 0.5)"

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """The judgements as a table: one array per column. ``row_weight`` is the name that ``tierank.read`` knows."""
        return {
            "query": self.query,
            "document": flat_ids(self.document),
            "rating": self.rating,
            "row_weight": self.weight,
            "n_examined": self.n_examined,
            "n_clicks": self.n_clicks,
            "mean_position": self.mean_position,
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the judgements as CSV or Parquet; warn if most are noise.

        Parameters
        ----------
        path : path
            The file; its ending, ``.csv`` or ``.parquet``, names the format.
        """
        if len(self) >= _MANY and np.median(self.n_examined) < _FEW:
            warnings.warn(
                f"most documents were examined fewer than {_FEW} times, so their ratings are mostly noise: use `rate`,"
                " which also uses documents with similar features, or more sessions per query",
                stacklevel=2,
            )
        write_columns(self.to_columns(), as_path(path))

    def rate(self, data: RankingDataset, *, n_jobs: int | None = None) -> RankingDataset:
        """The documents of a data set, rated by their clicks and by those of documents with similar features.

        A document that was examined n times, with c clicks, has the relevance

            R = w c s / n + (1 - w) E,   w = n / (n + half),

        where s is its probability of satisfaction, in models that have one, and E the relevance predicted from its
        features and the mean position at which it was shown. E is a regression of c s / n by trees, with the weights w,
        fitted to other queries. It never rises with the position: the rankers that wrote the log were at least as good
        as chance. The rating is log2(1 + (2^top - 1) R).

        DCG is linear in gains, so a ranker needs the mean relevance of a document, however uncertain it is: there are
        no row weights. Leaving out rarely examined documents, or giving them less weight, would do harm, because users
        do not examine documents at random: they stop below good ones.

        NDCG divides by the DCG of the best order, so queries whose documents are all equally relevant would amplify
        noise. The weight of a query is the share of the variance of relevance within it that is known,

            V / (V + mean of R (1 - R) / (n + half + 1)),

        with V the variance of R. The other term is the variance of a beta distribution of the relevance with the mean R
        and n + half observations. With many sessions all weights approach 1.

        Parameters
        ----------
        data : RankingDataset
            Documents with features and document ids. Their ratings are ignored, their weights are kept.
        n_jobs : int, optional
            Number of threads. Default: all.

        Returns
        -------
        RankingDataset
            The documents with ratings; those that the log does not show are unjudged (NaN).
        """
        from tierank.training.expectation import expect_ratings  # LightGBM takes a while to load

        rows = self._rows_of(data)
        places = np.flatnonzero(rows >= 0)
        known = rows[places]
        satisfaction = np.broadcast_to(getattr(self.model, "satisfaction_", 1.0), len(self))[known]
        weight, n_examined = self.weight[known], np.maximum(self.n_examined[known], 1e-300)
        own = np.minimum(self.n_clicks[known] * satisfaction / n_examined, 1.0)
        targets, weights = np.full(data.n_documents, np.nan), np.zeros(data.n_documents)
        positions = np.zeros(data.n_documents)
        targets[places], weights[places], positions[places] = own, weight, self.mean_position[known]
        similar = data.replace(ratings=targets, row_weight=weights, query_weight=None, position=None, propensity=None)
        expected = expect_ratings(similar, positions, n_jobs)[places]
        relevance, n_seen = np.full(data.n_documents, np.nan), np.full(data.n_documents, float(self.half))
        n_seen[places] += self.n_examined[known]
        relevance[places] = weight * own + (1 - weight) * np.clip(expected, 0.0, 1.0)
        return data.replace(
            ratings=_rating(relevance, self.top),
            query_weight=_known_shares(relevance, n_seen, data),
            position=None,
            propensity=None,
        )

    def _rows_of(self, data: RankingDataset) -> Ints:
        """The judgement of each document; -1: none."""
        if data.document_ids is None:
            raise DataError(argument="data", expected="documents with ids", got="none", fix="pass `document_ids`")
        places = {
            (query, str(document)): i
            for i, (query, document) in enumerate(
                zip(self.query.tolist(), flat_ids(self.document).tolist(), strict=True)
            )
        }
        queries = data.query_ids[data.query_of_row].tolist()
        rows = np.array([places.get(key, -1) for key in zip(queries, data.document_ids, strict=True)], np.int64)
        if (rows < 0).all():
            raise DataError(
                argument="data",
                expected="documents that were shown in the log",
                got="none of them",
                fix="query ids and document ids have to be those of the log",
            )
        return rows


def _rating(relevance: Floats, top: float) -> Floats:
    """log2(1 + (2^top - 1) relevance)."""
    return np.asarray(np.log2(1 + (2.0**top - 1) * relevance), np.float64)


def _known_shares(relevance: Floats, n_seen: Floats, data: RankingDataset) -> Floats:
    """The weight of each query: which share of the variance of its relevance is known; NaN is unknown."""
    query, starts, is_known = data.query_of_row, data.offsets[:-1], ~np.isnan(relevance)

    def mean_of(values: Floats) -> Floats:
        values = np.where(is_known, values, 0.0)
        # Sums of sorted numbers are the same bits for rows in any order.
        return np.add.reduceat(values[np.lexsort((values, query))], starts) / n_known

    n_known = np.maximum(np.add.reduceat(is_known.astype(np.float64), starts), 1.0)
    between = mean_of((relevance - mean_of(relevance)[query]) ** 2)
    within = mean_of(relevance * (1 - relevance) / (n_seen + 1))
    if not between.any():
        shares = np.ones(data.n_queries)
    else:
        shares = between / np.where(between > 0, between + within, 1.0)
    return shares if data.query_weight is None else shares * data.query_weight


def judgements(
    log: ClickLog, model: str | ClickModel = "best", *, top: float = 4.0, half: float = 40.0, **settings: Any
) -> Judgements:
    """Ratings of documents from clicks.

    The relevance of a document for a query is its attractiveness, times the chance to satisfy in the models that have
    it. The rating is log2(1 + (2^top - 1) relevance): its gain 2^rating - 1 is proportional to the relevance, as in
    ``simulate_clicks``. Its weight is n / (n + half), where n is how often the document was examined: the sum over the
    times that it was shown of the chance that it was examined, given the clicks above it.

    These ratings are by the clicks of each document alone. To train a ranker, ``rate`` a data set: it also asks what
    documents with similar features earned, so that few clicks and click models that are not quite right do less harm.

    Parameters
    ----------
    log : ClickLog
        The sessions.
    model : str or ClickModel, default "best"
        A name of ``CLICK_MODELS``, or a model; it is fitted to the log unless it is fitted already. ``"best"``: the
        one of ``pbm``, ``ubm`` and ``dbn`` that predicts held-out sessions best. If that is ``dbn``, users stop when
        they are satisfied, and what they did not examine cannot be told from positions. Then there is a warning, and
        nothing is corrected, as in naive training: a ``pbm`` in which every position is examined.
    top : float, default 4.0
        The rating of a document that everybody clicks, and that satisfies everybody.
    half : float, default 40.0
        The number of examinations at which the weight is 0.5: then ``rate`` believes the clicks of a document as much
        as those of documents with similar features.
    **settings
        Settings of the model, if it is given by name.

    Returns
    -------
    Judgements

    Examples
    --------
    >>> log = ClickLog.of(session=[1, 1, 2, 2], query=["q"] * 4, document=["a", "b", "a", "b"],
    ...                   position=[1, 2, 1, 2], clicked=[0, 1, 0, 1])
    >>> found = judgements(log, "cascade", smoothing=0)
    >>> found.document.tolist(), found.rating.tolist(), found.n_examined.tolist()
    (['a', 'b'], [0.0, 4.0], [2.0, 2.0])
    >>> found
    Judgements(2 documents by cascade, 0 with a weight above 0.5)
    """
    check_log(log)
    Number(above=0, most=_HIGHEST).check("top", top)
    as_least("half", half)
    clicks = _choose(log, **settings) if model == "best" else make_model(model, **settings)
    if not clicks.is_fitted:
        clicks.fit(log)
    if not isinstance(clicks, AttractionModel) or clicks.by != "pair":
        raise ParameterError(
            argument="model",
            expected="a click model with an attractiveness for each query and document",
            got=f"{clicks.name}, by {getattr(clicks, 'by', 'position')}",
            fix="take pbm or sdbn, with `by`='pair'",
        )
    items = clicks.items
    rows = items.find(log)
    known = rows >= 0
    examined = sum_by(rows[known], _examined(clicks, log)[known], len(items))
    n_shown = np.maximum(np.bincount(rows[known], minlength=len(items)), 1)
    return Judgements(
        query=items.query_ids[items.queries],
        document=items.document_ids[items.documents],
        rating=_rating(clicks.relevance(), top),
        weight=examined / np.maximum(examined + half, 1e-300),
        n_examined=examined,
        n_clicks=sum_by(rows[known], log.clicked[known].astype(np.float64), len(items)),
        mean_position=sum_by(rows[known], log.positions[known].astype(np.float64), len(items)) / n_shown,
        model=clicks,
        top=top,
        half=half,
    )


def _choose(log: ClickLog, **settings: Any) -> ClickModel:
    """The click model that corrects best, or one that corrects nothing where none would be right."""
    chosen = choose_model(log, (*_CORRECTING, _STOPPING), **settings)
    if chosen.name != _STOPPING:
        return chosen
    warnings.warn(
        f"users of this log seem to stop when they are satisfied ({_STOPPING} predicts held-out sessions better than"
        f" {' and '.join(_CORRECTING)}), so clicks are counted per time shown, without a correction for positions: the"
        " log cannot tell; `model`='ubm' corrects all the same",
        stacklevel=3,
    )
    model = PositionBased(**chosen.get_params())
    return model.fit_without_positions(log)


def _examined(model: AttractionModel, log: ClickLog) -> Floats:
    """The chance that the document in each row was examined, given the clicks above it."""
    rows = model.items.find(log)
    attraction = np.maximum(np.where(rows >= 0, model.attraction_[rows], model.prior_), 1e-9)
    # Chances are examination times attractiveness; of an attractiveness of 0 nothing can be told, and 1 is assumed.
    chances = model.predict(log, conditional=True)
    return np.where(chances > 0, np.minimum(chances / attraction, 1.0), 1.0 * (attraction <= 1e-9))
