"""From a click log and features to data that rankers train on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Sequence

import numpy as np

from tierank.clicks.log import ClickLog, Ints, check_log, flat_ids
from tierank.dataset import RankingDataset, check_dataset
from tierank.errors import DataError


def training_data(log: ClickLog, data: RankingDataset) -> RankingDataset:
    """The lists of a log with the features of their documents, for ``fit`` of rankers.

    Each list is a query of the result, its clicks are the ratings, and ``position`` says where documents were shown.
    Lists that are equal, clicks included, become one, whose ``query_weight`` is their number. Lists in which nothing or
    everything was clicked are left out: they have no order to learn.

    Parameters
    ----------
    log : ClickLog
        The sessions. Documents are found by the ids of queries and documents; in the logs of ``simulate_clicks`` by the
        column ``row``.
    data : RankingDataset
        Documents with features, and with document ids unless the log has the column ``row``.

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
    rows = _rows_of(log, data)
    n_clicked = log.per_session(log.clicked.astype(np.float64))
    useful = np.flatnonzero((n_clicked > 0) & (n_clicked < log.lengths))
    if not len(useful):
        raise DataError(
            argument="log", expected="a session in which something was clicked and something was not", got="none"
        )
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
        document_texts=None if data.document_texts is None else data.document_texts.take(rows[places]),
        kinds=data.kinds,
        position=log.positions[places],
    )


def _rows_of(log: ClickLog, data: RankingDataset) -> Ints:
    """The document of the data in each row of the log."""
    if "row" in log.columns:
        given = np.asarray(log.columns["row"])
        if given.dtype.kind in "iu" and given.min(initial=0) >= 0 and given.max(initial=0) < data.n_documents:
            return np.asarray(data.restore(np.arange(data.n_documents))[given], np.int64)
        raise DataError(argument="log", expected="rows of the data in the column row", got=f"rows up to {given.max()}")
    if data.document_ids is None:
        raise DataError(argument="data", expected="documents with ids", got="none", fix="pass `document_ids`")
    queries = data.query_ids[data.query_of_row].tolist()
    places = {key: row for row, key in enumerate(zip(queries, data.document_ids, strict=True))}
    n = len(log.document_ids)
    pairs, where = np.unique(log.queries[log.session_of_row] * n + log.documents, return_inverse=True)
    query_ids, document_ids = log.query_ids.tolist(), flat_ids(log.document_ids).tolist()
    keys = [(query_ids[pair // n], str(document_ids[pair % n])) for pair in pairs.tolist()]
    missing = next((key for key in keys if key not in places), None)
    if missing is not None:
        raise DataError(
            argument="data",
            expected="all documents that the log shows",
            got=f"no document {missing[1]!r} of query {missing[0]!r}",
            fix="query ids and document ids have to be those of the log",
        )
    if len(places) < data.n_documents:
        _check_once(queries, data.document_ids, set(keys))
    return np.array([places[key] for key in keys], np.int64)[where]


def _check_once(queries: Sequence[Hashable], documents: Iterable[str], shown: Container[tuple[Hashable, str]]) -> None:
    """Refuse data in which a document that was shown comes twice in its query: the log does not say which one."""
    counts = Counter(zip(queries, documents, strict=True))
    twice = next((key for key, n in counts.items() if n > 1 and key in shown), None)
    if twice is not None:
        raise DataError(
            argument="data",
            expected="each document once in its query",
            got=f"{twice[1]!r} of query {twice[0]!r} twice",
            fix="keep one of its rows",
        )


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
