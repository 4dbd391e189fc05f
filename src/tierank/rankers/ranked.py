"""Ranked: the documents of queries, best first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank import notebook
from tierank.dataset import RankingDataset
from tierank.types import Floats


class Ranked(NamedTuple):
    """Ranked documents, best first within each query."""

    query: NDArray[Any]
    rank: NDArray[np.int64]
    row: NDArray[np.int64]
    document: NDArray[np.object_] | None
    score: NDArray[np.float64]

    @classmethod
    def of(cls, data: RankingDataset, scores: Floats, k: int | None) -> Ranked:
        """The documents of each query by score, at most k of them; equal scores keep the order of the rows."""
        order = np.lexsort((-scores, data.query_of_row))
        ranks = np.arange(data.n_documents) - np.repeat(data.offsets[:-1], data.lengths) + 1
        kept = slice(None) if k is None else ranks <= k
        rows = order[kept]
        queries = np.repeat(data.query_ids, data.lengths)[kept]
        texts = data.document_texts
        documents = None if texts is None else np.array(list(texts.take(rows)), dtype=object)
        return cls(queries, ranks[kept], data.source_rows[rows], documents, scores[rows])

    def to_pandas(self) -> Any:
        """A pandas table with a row per document; no column ``document`` if the data have no document ids."""
        return notebook.as_pandas(self._columns())

    def _repr_html_(self) -> str:
        return notebook.sheet("Ranked", notebook.grid(*self._table()))

    def __str__(self) -> str:
        return "\n".join(notebook.lines(*self._table()))

    def __repr__(self) -> str:
        return str(self)

    def _table(self) -> tuple[list[str], list[list[str]]]:
        shown = self._columns()
        return list(shown), [[_cell(value) for value in row] for row in zip(*shown.values(), strict=True)]

    def _columns(self) -> dict[str, NDArray[Any]]:
        return {name: values for name, values in self._asdict().items() if values is not None}


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, (float, np.floating)) else str(value)
