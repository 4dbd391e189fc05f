"""Simulated users: clicks on lists of rated documents, from a known model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.arrays import Floats
from tierank.clicks.log import ClickLog, Ints
from tierank.clicks.models import CLICK_MODELS, ClickModel, Items, make_model
from tierank.data.checks import as_array, as_numbers
from tierank.data.dataset import RankingDataset, check_dataset
from tierank.data.relevance import gains_of
from tierank.errors import DataError, ParameterError
from tierank.kernels.ranking import rank
from tierank.settings import as_choice, as_least, as_number, as_whole


class Simulation(NamedTuple):
    """The result of ``simulate_clicks``: the log, and the true click model that its clicks were drawn from."""

    log: ClickLog
    truth: ClickModel


def simulate_clicks(
    data: RankingDataset,
    scores: ArrayLike | Mapping[str, ArrayLike],
    *,
    model: str = "pbm",
    n_sessions: int = 10_000,
    k: int = 10,
    position_bias: float = 1.0,
    noise: float = 0.1,
    continuation: float = 0.8,
    randomize: str = "none",
    seed: int = 0,
) -> Simulation:
    """Simulate clicks on lists of rated documents that are ranked by scores.

    Each session draws a query, and shows its ``k`` documents with the highest scores. With relevance
    R(d) = (2^rating - 1) / (2^highest rating - 1), a document is attractive with chance
    noise + (1 - noise) R(d), and satisfies with chance R(d) in the models that have it.

    Parameters
    ----------
    data : RankingDataset
        Rated documents.
    scores : array or mapping of str to array
        One score per row of the data, in the caller's order. With a mapping of several rankers, each session draws one;
        the column ``ranker`` of the log names it.
    model : str, default "pbm"
        How users click, a name of ``CLICK_MODELS``.
    n_sessions : int, default 10000
        Number of lists that are shown.
    k : int, default 10
        Number of documents in a list; a query with fewer shows them all.
    position_bias : float, default 1.0
        Examination is 1 / r^position_bias at position r: 0 means no bias, 1 a strong one (``pbm``, ``ctr``; in ``ubm``
        by the distance to the click above).
    noise : float, default 0.1
        The chance that a document of relevance 0 is attractive.
    continuation : float, default 0.8
        The chance to continue after a click (``dcm``), or without being satisfied (``dbn``).
    randomize : {"none", "shuffle", "swap"}, default "none"
        Show lists as ranked, in random order, or with the first document and a random other one swapped in half of the
        sessions; then the column ``swap`` has the position of the other one.
    seed : int, default 0
        Random seed.

    Returns
    -------
    Simulation
        ``log`` and ``truth``. The log has the columns ``row`` (the caller's row of the data) and ``rating``.

    Examples
    --------
    >>> import tierank
    >>> data = tierank.make_ranking(50, n_features=3, mean_length=12, max_length=20)
    >>> log, truth = simulate_clicks(data, data.restore(data.ratings), n_sessions=100, k=5)
    >>> log.n_sessions, truth.examination_.round(2).tolist()
    (100, [1.0, 0.5, 0.33, 0.25, 0.2])
    """
    check_dataset("data", data)
    as_whole("n_sessions", n_sessions)
    as_whole("k", k, most=2000)
    as_least("position_bias", position_bias)
    as_number("noise", noise, 0, 1)
    as_number("continuation", continuation, 0, 1)
    as_choice("randomize", randomize, ["none", "shuffle", "swap"])
    as_choice("click model", model, CLICK_MODELS)
    rng = np.random.default_rng(as_whole("seed", seed, 0))
    lists = _show(data, scores, n_sessions, k, randomize, rng)
    ratings = np.asarray(lists.columns["rating"])
    top = float(data.ratings.max())
    relevance = gains_of(ratings, "exp2", top) / max(float(gains_of(np.array(top), "exp2", top)), 1e-300)
    truth = _user(lists, model, relevance, position_bias, noise, continuation)
    return Simulation(truth.simulate(lists, seed=int(rng.integers(1 << 62))), truth)


def _show(
    data: RankingDataset, scores: Any, n_sessions: int, k: int, randomize: str, rng: np.random.Generator
) -> ClickLog:
    """Lists of drawn queries, without clicks."""
    ratings = data.check_rated()
    if data.n_unjudged:
        got = f"{data.n_unjudged:,} unjudged documents"
        raise DataError(argument="data", expected="a rating for every document", got=got, fix="data.drop_unjudged()")
    rankers = dict(scores) if isinstance(scores, Mapping) else {"": scores}
    if not rankers:
        raise ParameterError(argument="scores", expected="the scores of at least one ranker", got="none")
    queries = rng.integers(data.n_queries, size=n_sessions)
    chosen = rng.integers(len(rankers), size=n_sessions)
    lengths = np.minimum(data.lengths[queries], k)
    offsets = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])
    session = np.repeat(np.arange(n_sessions), lengths)
    position = np.arange(offsets[-1]) - offsets[session] + 1
    rows = np.empty(offsets[-1], np.int64)
    for i, one in enumerate(rankers.values()):
        given = as_numbers(as_array(one), "scores").astype(np.float64)
        if given.shape != (data.n_documents,) or np.isnan(given).any():
            expected = f"{data.n_documents} numbers, one per row of the data"
            got = f"shape {given.shape}" if given.shape != (data.n_documents,) else "NaN among them"
            raise DataError(argument="scores", expected=expected, got=got)
        ranking = rank(np.ascontiguousarray(data.arrange(given)), data.offsets, k, keep_ties=False)
        is_own = chosen[session] == i
        rows[is_own] = ranking.rows[ranking.starts[queries[session[is_own]]] + position[is_own] - 1]
    columns: dict[str, NDArray[Any]] = {}
    if randomize == "shuffle":
        rows = rows[np.lexsort((rng.random(len(rows)), session))]
    elif randomize == "swap":
        rows, columns["swap"] = _swapped(rows, offsets, lengths, session, rng)
    if isinstance(scores, Mapping):
        columns["ranker"] = np.array(list(rankers), object)[chosen][session]
    if data.document_ids is None:
        ids, documents = np.arange(data.n_documents), data.source_rows
    else:
        ids, documents = np.unique(np.array(data.document_ids, object), return_inverse=True)
    return ClickLog(
        offsets=offsets,
        queries=queries,
        documents=documents[rows].astype(np.int64),
        positions=position,
        clicked=np.zeros(len(rows), np.bool_),
        session_ids=np.arange(n_sessions),
        query_ids=data.query_ids,
        document_ids=ids,
        columns={"row": data.source_rows[rows], "rating": ratings[rows], **columns},
    )


def _swapped(
    rows: Ints, offsets: Ints, lengths: Ints, session: Ints, rng: np.random.Generator
) -> tuple[Ints, NDArray[Any]]:
    """Lists whose first document and a random other one are swapped in half of them; the position of the other."""
    other = np.where(lengths > 1, 1 + (rng.random(len(lengths)) * (lengths - 1)).astype(np.int64), 0)
    is_exchanged = rng.random(len(lengths)) < 0.5
    starts, others = offsets[:-1][is_exchanged], (offsets[:-1] + other)[is_exchanged]
    fresh = rows.copy()
    fresh[starts], fresh[others] = rows[others], rows[starts]
    return fresh, (other + 1)[session]


def _user(lists: ClickLog, name: str, relevance: Floats, bias: float, noise: float, continuation: float) -> ClickModel:
    """The click model with these parameters."""
    model = make_model(name)
    model.items_, model.prior_ = Items.of(lists, "pair"), noise
    per_item = np.zeros(len(model.items_))
    per_item[model.items_.find(lists)] = relevance
    ranks = np.arange(1, lists.last_position + 1)
    examination = (0.5 if name == "ctr" else 1) / ranks**bias
    if name == "ubm":
        examination = np.concatenate([1 / (r - np.arange(r)) ** bias for r in ranks])
    values = {
        "attraction_": noise + (1 - noise) * per_item,
        "examination_": examination,
        "satisfaction_": per_item,
        "continuation_": np.full(1 if name == "dbn" else len(ranks), continuation),
    }
    for parameter in model.parameters:
        setattr(model, parameter, values[parameter])
    return model
