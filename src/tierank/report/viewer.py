"""The ranked lists of a run for the viewer of the report, compact enough for one file."""

from __future__ import annotations

import base64
import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.data.tables import check_columns
from tierank.display import Html
from tierank.errors import DataError
from tierank.experiments.runs import Run
from tierank.report.markup import filled

# Depths to which lists may be kept, deepest first: the first that the budget allows is used.
_DEPTHS = (1000, 300, 100, 50, 30, 20, 15, 10, 5)
_BUDGET = 2_400_000
# Steps between the lowest and the highest score of a list: finer than the display.
_LEVELS = 65_535
# Scores are shown up to here: differences of larger ones, and of infinite ones, are not numbers of the page.
_FURTHEST = 1e38

_TITLE_COLUMNS = ("query", "document", "title")


@dataclass(frozen=True)
class Titles:
    """Titles of documents, by (query, document)."""

    by_name: Mapping[tuple[str, str], str]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Titles:
        """Read a CSV file with the columns query, document and title; document is an id, or the row in the query."""
        file = Path(path)
        try:
            with file.open(newline="", encoding="utf-8-sig") as lines:
                rows = csv.DictReader(lines)
                names = list(rows.fieldnames or ())
                if not set(_TITLE_COLUMNS) <= set(names):
                    got = ", ".join(names)[:200] or "an empty file"
                    raise DataError(where=file, expected="the columns query, document and title", got=got)
                check_columns(names, _TITLE_COLUMNS, file)
                return cls({(row["query"], row["document"]): row["title"] or "" for row in rows})
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(where=file, expected="a CSV file in UTF-8", got=f": {error}") from None


class RunLists:
    """All test queries of a run, fold by fold, with the ranks and scores of its systems.

    Of several seeds, the lists are those of the first one; equal scores are in the order of the rows.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.fold = np.repeat(np.arange(run.n_folds), [test.n_queries for test in run.tests])
        self.lengths = np.concatenate([test.lengths for test in run.tests])
        self.offsets = np.concatenate([[0], self.lengths.cumsum()])
        self.ratings = np.concatenate([test.ratings for test in run.tests])
        self.tiers = np.concatenate([test.tiers for test in run.tests])
        self.query_ids = [str(i) for test in run.tests for i in test.query_ids.tolist()]
        self.query = np.repeat(np.arange(len(self.lengths)), self.lengths)
        self.row = np.arange(len(self.ratings)) - np.repeat(self.offsets[:-1], self.lengths) + 1

    @cached_property
    def scores(self) -> dict[str, Floats]:
        """The scores of each system, by its first seed."""
        run = self.run
        return {
            system: np.concatenate([run.scores(system, fold, run.seeds_of(system)[0]) for fold in range(run.n_folds)])
            for system in run.systems
        }

    @cached_property
    def ranks(self) -> dict[str, NDArray[np.int64]]:
        """The rank of each document in its list, counted from 1."""
        by_system = {}
        for system, scores in self.scores.items():
            ranks = np.empty(len(scores), np.int64)
            ranks[np.lexsort((-scores, self.query))] = self.row
            by_system[system] = ranks
        return by_system

    @cached_property
    def best_ranks(self) -> NDArray[np.int64]:
        """The best rank that any system gives a document."""
        return np.asarray(np.min(list(self.ranks.values()), axis=0), np.int64)

    def values(self, system: str) -> dict[str, Floats]:
        """The metrics of each query, for the lists that are shown."""
        return self.run.per_query(system)[0]

    @property
    def has_document_ids(self) -> bool:
        """Whether documents have ids."""
        return all(test.document_texts is not None for test in self.run.tests)

    def document_names(self, rows: NDArray[np.int64]) -> list[str]:
        """The ids of some documents, or their numbers inside the query."""
        if not self.has_document_ids:
            return [str(row) for row in self.row[rows].tolist()]
        starts = np.cumsum([0, *(test.n_documents for test in self.run.tests)])
        names: list[str] = []
        for test, start, end in zip(self.run.tests, starts[:-1], starts[1:], strict=True):
            inside = rows[(rows >= start) & (rows < end)] - start
            names += [] if test.document_texts is None else list(test.document_texts[inside])
        return names

    def encode(self, metrics: Sequence[str], titles: Titles | None = None, budget: int = _BUDGET) -> dict[str, Any]:
        """The lists for the script of the page: typed arrays in base64, to the depth that the budget allows."""
        titled = {} if titles is None else titles.by_name
        depth, rows, names = self._fit(titled, budget)
        is_judged = ~np.isnan(self.ratings[rows])
        levels = np.unique(self.ratings[~np.isnan(self.ratings)])
        places = np.where(is_judged, levels.searchsorted(self.ratings[rows]), len(levels))
        small = self.lengths.max() < 1 << 16
        numbers = np.dtype("<u2" if small else "<u4")
        return {
            "systems": list(self.run.systems),
            "baseline": self.run.baseline,
            "metrics": list(metrics),
            "levels": levels.tolist(),  # one more level marks unjudged documents
            "depth": depth,
            "longest": int(self.lengths.max()),
            "wide": not small,
            "queries": self.query_ids,
            "fold": None if self.run.n_folds == 1 else _packed(self.fold, "<u1"),
            "lengths": _packed(self.lengths, "<u4"),
            "kept": _packed(np.bincount(self.query[rows], minlength=len(self.lengths)), "<u4"),
            "rows": _packed(self.row[rows], numbers),
            "ratings": _packed(places, "<u1" if len(levels) < 256 else "<u2"),
            "names": names,
            "lists": {s: self._encode_system(s, rows, metrics, numbers, depth) for s in self.run.systems},
        }

    def _fit(
        self, titled: Mapping[tuple[str, str], str], budget: int
    ) -> tuple[int, NDArray[np.int64], list[str] | None]:
        """The depth, the documents that some list has within it, and their names (None: by row)."""
        n_systems, names = len(self.run.systems), None
        for depth in _DEPTHS:
            rows = np.flatnonzero(self.best_ranks <= depth)
            if titled or self.has_document_ids:
                ids, queries = self.document_names(rows), self.query[rows].tolist()
                names = [titled.get((self.query_ids[q], i), i) for q, i in zip(queries, ids, strict=True)]
            # Everything that grows with the depth, in base64.
            n_scores = int(np.minimum(self.lengths, depth).sum())
            numbers = (3 + 2 * n_systems) * len(rows) + 2 * n_systems * n_scores
            if numbers * 4 / 3 + sum(len(name) + 3 for name in names or ()) <= budget:
                break
        return min(depth, int(self.lengths.max())), rows, names

    def _encode_system(
        self, system: str, rows: NDArray[np.int64], metrics: Sequence[str], numbers: np.dtype[Any], depth: int
    ) -> dict[str, Any]:
        """Ranks of the documents that are kept, and scores of the first ones of each list."""
        scores, values = np.clip(self.scores[system], -_FURTHEST, _FURTHEST), self.values(system)
        low, high = (f.reduceat(scores, self.offsets[:-1]) for f in (np.minimum, np.maximum))
        top = np.lexsort((self.ranks[system], self.query))[self.row <= depth]
        query = self.query[top]
        span = np.where(high > low, high - low, 1.0)[query]
        return {
            "ranks": _packed(self.ranks[system][rows], numbers),
            "scores": _packed(np.rint((scores[top] - low[query]) / span * _LEVELS), "<u2"),
            "low": _packed(low, "<f4"),
            "high": _packed(high, "<f4"),
            "values": [_packed(values[metric], "<f4") for metric in metrics],
        }


def make_viewer(run: Run, shown: dict[str, Any]) -> Html:
    """The frame of the viewer, which the script of the page fills with the result of ``RunLists.encode``."""
    depth, longest = shown["depth"], shown["longest"]
    words = "Lists are complete."
    if depth < longest:
        words = (
            f"To keep the file small it holds the first {depth} documents of each list; the longest has {longest:,}."
        )
    if len(run.seeds) > 1:
        firsts = {run.seeds_of(system)[0] for system in run.systems}
        which = f"seed {firsts.pop()}" if len(firsts) == 1 else "the first seed of each ranker"
        words += f" Lists and their metrics are those of {which}."
    return filled("viewer.html", words=words)


def _packed(values: NDArray[Any], kind: str | np.dtype[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).astype(kind).tobytes()).decode()
