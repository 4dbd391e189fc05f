"""Judgements from clicks, a rating for each query and document; and the lists of a log as data to train on."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.clicks.log import ClickLog, Ints, check_log, flat_ids, sum_by, write_columns
from tierank.clicks.models import AttractionModel, ClickModel, PositionBased, choose_model, make_model
from tierank.data.dataset import RankingDataset, check_dataset
from tierank.errors import DataError, ParameterError
from tierank.files import as_path
from tierank.settings import Number, as_least

# The ids of a query and a document.
Key = tuple[Hashable, str]

# Models in which every position is examined now and then, so that clicks can be corrected for positions.
_CORRECTING = ("pbm", "ubm")
# Users who stop when they are satisfied. Documents below good ones are then never examined: among the known
# documents relevant ones are always the last, and a ranker would learn that order.
_STOPPING = "dbn"
# If data and log share less than this, their ids are probably not the same.
_MATCHED = 0.5
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
            Documents with features, and with the ids of the log. In data without document ids, documents are called by
            their row numbers, as in the logs of ``simulate_clicks``. Ratings are ignored, weights are kept.
        n_jobs : int, optional
            Number of threads. Default: all.

        Returns
        -------
        RankingDataset
            The documents with ratings; those that the log does not show are unjudged (NaN). Warns if less than half of
            what could be in both is in both.
        """
        from tierank.rankers.tree_training import expect_ratings  # LightGBM takes a while to load

        documents = map(str, flat_ids(self.document).tolist())
        judged, wanted = list(zip(self.query.tolist(), documents, strict=True)), _keys_of(data)
        _check_overlap(set(judged), set(wanted), data)
        numbers = {key: i for i, key in enumerate(judged)}
        rows = np.array([numbers.get(key, -1) for key in wanted], np.int64)
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
    if log.n_sessions > 1 and log.clicked.all():
        warnings.warn(
            "everything in this log was clicked, so ratings say that documents were clicked, not how good they are: add"
            " the documents that were shown but not clicked, with 0",
            stacklevel=2,
        )
    names = (*_CORRECTING, _STOPPING)
    clicks = choose_model(log, names, **settings) if model == "best" else make_model(model, **settings)
    if model == "best" and clicks.name == _STOPPING:
        warnings.warn(
            f"users of this log seem to stop when they are satisfied ({_STOPPING} predicts held-out sessions better"
            f" than {' and '.join(_CORRECTING)}), so clicks are counted per time shown, without a correction for"
            " positions: the log cannot tell; `model`='ubm' corrects all the same",
            stacklevel=2,
        )
        clicks = PositionBased(**clicks.get_params()).fit_without_positions(log)
    if not clicks.is_fitted:
        clicks.fit(log)
    if not isinstance(clicks, AttractionModel) or clicks.by != "pair":
        expected = "a click model with an attractiveness for each query and document"
        got = f"{clicks.name}, by {getattr(clicks, 'by', 'position')}"
        raise ParameterError(argument="model", expected=expected, got=got, fix="take pbm or sdbn, with `by`='pair'")
    items = clicks.items
    rows = items.find(log)
    known = rows >= 0
    attraction = np.maximum(np.where(known, clicks.attraction_[rows], clicks.prior_), 1e-9)
    # Chances are examination times attractiveness; of an attractiveness of 0 nothing can be told, and 1 is assumed.
    chances = clicks.predict(log, conditional=True)
    is_examined = np.where(chances > 0, np.minimum(chances / attraction, 1.0), 1.0 * (attraction <= 1e-9))
    n_shown = np.maximum(np.bincount(rows[known], minlength=len(items)), 1)
    of_rows = (is_examined, 1.0 * log.clicked, 1.0 * log.positions)
    examined, n_clicks, positions = (sum_by(rows[known], one[known], len(items)) for one in of_rows)
    return Judgements(
        query=items.query_ids[items.queries],
        document=items.document_ids[items.documents],
        rating=_rating(clicks.relevance(), top),
        weight=examined / np.maximum(examined + half, 1e-300),
        n_examined=examined,
        n_clicks=n_clicks,
        mean_position=positions / n_shown,
        model=clicks,
        top=top,
        half=half,
    )


def _check_overlap(judged: set[Key], wanted: set[Key], data: RankingDataset) -> None:
    """Refuse data with other ids than the log; warn if few are the same."""
    queries = [{query for query, _ in keys} for keys in (judged, wanted)]
    documents = [{key for key in keys if key[0] in queries[0] & queries[1]} for keys in (judged, wanted)]
    # Row numbers are ids only in the data that a log was simulated with.
    if not judged & wanted or (data.document_ids is None and not documents[0] <= documents[1]):
        raise _not_found(data, "documents that were shown in the log", "none of them")
    for what, (ours, theirs) in (("query ids", queries), ("documents", documents)):
        least, n_both = min(len(ours), len(theirs)), len(ours & theirs)
        if n_both < _MATCHED * least:
            examples = [min(some, key=str) for some in (theirs - ours, ours - theirs)]
            warnings.warn(
                f"only {n_both:,} of {least:,} {what} ({n_both / least:.0%}) are in both the data and the log, so few"
                f" documents are rated: check that ids mean the same in both; {examples[0]!r} is only in the data,"
                f" {examples[1]!r} only in the log",
                stacklevel=3,
            )


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


def training_data(log: ClickLog, data: RankingDataset) -> RankingDataset:
    """The lists of a log with the features of their documents, for ``fit`` of rankers.

    Each list is a query of the result, its clicks are the ratings, and ``position`` says where documents were shown.
    Lists that are equal, clicks included, become one, whose ``query_weight`` is their number. Lists in which nothing or
    everything was clicked are left out: they have no order to learn.

    Parameters
    ----------
    log : ClickLog
        The sessions.
    data : RankingDataset
        All documents that the log shows, with features, and with the ids of the log. In data without document ids,
        documents are called by their row numbers, as in the logs of ``simulate_clicks``.

    Returns
    -------
    RankingDataset
        With ``position`` and ``query_weight``.

    Examples
    --------
    >>> data = RankingDataset(np.eye(3), qid=["q", "q", "q"], document_ids=["a", "b", "c"])
    >>> log = ClickLog.of(session=[1, 1, 2, 2, 3, 3], query=["q"] * 6, document=["a", "b", "a", "b", "c", "b"],
    ...                   position=[1, 2] * 3, clicked=[0, 1, 0, 1, 1, 0])
    >>> lists = training_data(log, data)
    >>> lists.position.tolist(), lists.ratings.tolist(), lists.query_weight.tolist()
    ([1, 2, 1, 2], [0.0, 1.0, 1.0, 0.0], [2.0, 1.0])
    """
    check_log(log)
    check_dataset("data", data)
    rows = rows_of(log, data)
    n_clicked = log.per_session(log.clicked.astype(np.float64))
    useful = np.flatnonzero((n_clicked > 0) & (n_clicked < log.lengths))
    if not len(useful):
        expected = "a session in which something was clicked and something was not"
        raise DataError(argument="log", expected=expected, got="none")
    kept, counts = _distinct(log, rows, useful)
    lengths = log.lengths[kept]
    places = np.arange(lengths.sum()) + np.repeat(log.offsets[kept] - (lengths.cumsum() - lengths), lengths)
    return RankingDataset.from_parts(
        data.features[rows[places]],
        log.clicked[places].astype(np.float64),
        np.concatenate([[0], lengths.cumsum()]),
        log.session_ids[kept],
        query_weight=counts.astype(np.float64),
        feature_names=data.feature_names,
        document_texts=None if data.document_texts is None else data.document_texts[rows[places]],
        kinds=data.kinds,
        position=log.positions[places],
    )


def rows_of(log: ClickLog, data: RankingDataset) -> Ints:
    """The document of the data in each row of the log."""
    if data.document_ids is None and "row" in log.columns:
        given = np.asarray(log.columns["row"])
        if given.dtype.kind in "iu" and given.min(initial=0) >= 0 and given.max(initial=0) < data.n_documents:
            return np.asarray(data.restore(np.arange(data.n_documents))[given], np.int64)
        raise DataError(argument="log", expected="rows of the data in the column row", got=f"rows up to {given.max()}")
    keys_of_data = _keys_of(data)
    places = {key: row for row, key in enumerate(keys_of_data)}
    n = len(log.document_ids)
    pairs, where = np.unique(log.queries[log.session_of_row] * n + log.documents, return_inverse=True)
    query_ids, document_ids = log.query_ids.tolist(), flat_ids(log.document_ids).tolist()
    keys = [(query_ids[pair // n], str(document_ids[pair % n])) for pair in pairs.tolist()]
    missing = next((key for key in keys if key not in places), None)
    if missing is not None:
        got = f"no document {missing[1]!r} of query {missing[0]!r}"
        raise _not_found(data, "all documents that the log shows", got)
    if len(places) < data.n_documents:  # the log does not say which one was shown
        counts, shown = Counter(keys_of_data), set(keys)
        twice = next((key for key, n in counts.items() if n > 1 and key in shown), None)
        if twice is not None:
            got = f"{twice[1]!r} of query {twice[0]!r} twice"
            expected = "each document once in its query"
            raise DataError(argument="data", expected=expected, got=got, fix="keep one of its rows")
    return np.array([places[key] for key in keys], np.int64)[where]


def _keys_of(data: RankingDataset) -> list[Key]:
    """The query and the document of each row; in data without document ids, documents are called by row numbers."""
    documents = data.document_ids or map(str, data.source_rows.tolist())
    return list(zip(data.query_ids[data.query_of_row].tolist(), documents, strict=True))


def _not_found(data: RankingDataset, expected: str, got: str) -> DataError:
    """The error for documents of a log that the data do not have."""
    fix = "query ids and document ids have to be those of the log"
    if data.document_ids is None:
        expected, got = "documents with ids", "none"
        fix = "read data that have a column of document ids, or pass document_ids to RankingDataset"
    return DataError(argument="data", expected=expected, got=got, fix=fix)


def _distinct(log: ClickLog, rows: Ints, sessions: Ints) -> tuple[Ints, Ints]:
    """The first of each kind of equal sessions, in their order, and how many there are of it."""
    lengths = log.lengths[sessions]
    codes = (rows * (log.last_position + 1) + log.positions) * 2 + log.clicked
    codes = np.unique(codes, return_inverse=True)[1].reshape(-1)
    # Equal lists get one number: lists of one length have the same at first, and each row tells some of them apart. The
    # memory is that of the rows, however long one of the lists is.
    kinds = lengths.copy()
    reached = np.arange(len(sessions))
    for row in range(int(lengths.max())):
        reached = reached[lengths[reached] > row]
        both = kinds[reached] * (int(codes.max()) + 1) + codes[log.offsets[sessions[reached]] + row]
        kinds[reached] = np.unique(both, return_inverse=True)[1].reshape(-1)
    # Lists of different lengths were numbered apart.
    _, firsts, counts = np.unique(kinds * (int(lengths.max()) + 1) + lengths, return_index=True, return_counts=True)
    by_place = np.argsort(firsts)
    return sessions[firsts[by_place]], counts[by_place]
