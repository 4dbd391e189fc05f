"""What a click model has parameters for: pairs of a query and a document, or documents alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.clicks.log import ClickLog, Ints

BY = ("pair", "document")


@dataclass(frozen=True, eq=False)
class Items:
    """The things of a log that have an attractiveness of their own, numbered from 0.

    Parameters
    ----------
    by : {"pair", "document"}
        Whether an item is a document for a query, or a document for all queries.
    queries : array of int64, shape (n_items,)
        The query of each item, an index into ``query_ids``; 0 if items are documents.
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
        width = max(1, len(log.document_ids))
        keys = np.unique(_keys(log.query_of_row, log.documents, width, by))
        return cls(by, keys // width, keys % width, log.query_ids, log.document_ids)

    def __len__(self) -> int:
        return len(self.documents)

    def find(self, log: ClickLog) -> Ints:
        """The item of each row of a log; -1 for those that are not known."""
        width = max(1, len(self.document_ids))
        queries, documents = log.query_of_row, log.documents
        if log.query_ids is not self.query_ids:
            queries = _translation(log.query_ids, self.query_ids)[queries]
        if log.document_ids is not self.document_ids:
            documents = _translation(log.document_ids, self.document_ids)[documents]
        own = self.queries * width + self.documents
        keys = _keys(queries, documents, width, self.by)
        places = np.searchsorted(own, keys)
        is_known = (documents >= 0) & (places < len(own))
        if self.by == "pair":
            is_known &= queries >= 0
        is_known &= own[np.minimum(places, len(own) - 1)] == keys
        return np.where(is_known, places, -1)


def _keys(queries: Ints, documents: Ints, width: int, by: str) -> Ints:
    return documents if by == "document" else queries * width + documents


def _translation(ids: NDArray[Any], known: NDArray[Any]) -> Ints:
    """The number among the known ids for each id; -1 where it is not among them."""
    numbers = {one: i for i, one in enumerate(known.tolist())}
    return np.array([numbers.get(one, -1) for one in ids.tolist()], np.int64)
