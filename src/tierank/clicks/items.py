"""Items: what a click model has parameters for, either pairs of query and document, or documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.clicks.log import ClickLog, Ints
from tierank.kernels import clicks as kernels

BY = ("pair", "document")


@dataclass(frozen=True, eq=False)
class Items:
    """The items of a log, each of which has an attractiveness, numbered from 0.

    Parameters
    ----------
    by : {"pair", "document"}
        Whether an item is a document for a query, or a document for all queries.
    queries : array of int64, shape (n_items,)
        The query of each item, an index into ``query_ids``, ascending; 0 if items are documents.
    documents : array of int64, shape (n_items,)
        The document of each item, an index into ``document_ids``.
    query_ids, document_ids : arrays
        The ids, as in the log.
    """

    by: str
    queries: Ints
    documents: Ints
    query_ids: NDArray[Any]
    document_ids: NDArray[Any]

    @classmethod
    def of(cls, log: ClickLog, by: str) -> Items:
        """The items of a log."""
        n = len(log.document_ids)
        if by == "document":
            is_shown = np.zeros(n, bool)
            is_shown[log.documents] = True
            documents = np.flatnonzero(is_shown)
            return cls(by, np.zeros(len(documents), np.int64), documents, log.query_ids, log.document_ids)
        queries, documents = np.empty(log.n_rows, np.int64), np.empty(log.n_rows, np.int64)
        order = log.queries.argsort(kind="stable")
        seen = np.full(n, -1)
        n_items = kernels.number_pairs(order, log.queries, log.offsets, log.documents, seen, queries, documents)
        return cls(by, queries[:n_items].copy(), documents[:n_items].copy(), log.query_ids, log.document_ids)

    def __len__(self) -> int:
        return len(self.documents)

    def find(self, log: ClickLog) -> Ints:
        """The item of each row of a log; -1 if it is unknown."""
        documents = log.documents
        if log.document_ids is not self.document_ids:
            documents = _translation(log.document_ids, self.document_ids)[documents]
        if self.by == "document":
            numbers = np.full(len(self.document_ids) + 1, -1)  # the last entry is for unknown documents
            numbers[self.documents] = np.arange(len(self))
            return numbers[documents]
        queries = log.queries
        if log.query_ids is not self.query_ids:
            queries = _translation(log.query_ids, self.query_ids)[queries]
        counts = np.bincount(self.queries, minlength=len(self.query_ids))
        starts = np.concatenate([np.zeros(1, np.int64), counts.cumsum()])
        seen, numbers = np.full(len(self.document_ids), -1), np.empty(len(self.document_ids), np.int64)
        items = np.empty(log.n_rows, np.int64)
        rows = (queries.argsort(kind="stable"), queries, log.offsets, documents)
        kernels.find_pairs(*rows, starts, self.documents, seen, numbers, items)
        return items


def _translation(ids: NDArray[Any], known: NDArray[Any]) -> Ints:
    """The index of each id among the known ids; -1 if it is unknown.

    Ids are read as integers if all of a file are integers, and as texts otherwise: between two such logs, 5 and "5" are
    the same id.
    """
    numbers = {one: i for i, one in enumerate(known.tolist())}
    if ids.dtype.kind != known.dtype.kind:
        numbers = {str(one): i for one, i in numbers.items()} | numbers
        return np.array([numbers.get(one, numbers.get(str(one), -1)) for one in ids.tolist()], np.int64)
    return np.array([numbers.get(one, -1) for one in ids.tolist()], np.int64)
