"""Training in one process of a cluster, on its own queries.

Scoring of Arrow tables in the processes of a cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from tierank.data.columns import Columns
from tierank.data.dataset import RankingDataset
from tierank.data.tables import as_name, as_name_list, check_columns, take_columns
from tierank.data.team import cut_queries
from tierank.distributed.processes import Processes
from tierank.errors import DataError, ParameterError
from tierank.io.layout import Layout
from tierank.rankers.base import FITTED, Ranker, check_ranker

Counts = NDArray[np.int64]

# What a data set may hold for each row or query, other than ratings.
OF_ROWS = ("row_weight", "query_weight", "position", "propensity")


@dataclass(frozen=True)
class Training:
    """The arguments that the processes of one fit share."""

    ranker: Any
    size: int
    timeout: float
    checkpoint: Path | None
    progress: bool

    def fit_part(self, number: int, address: str, data: Sequence[RankingDataset], threads: int) -> Any:
        """The fitted ranker, the same in all processes; ``data`` is training data, and validation data if any.

        If ``n_jobs`` of the ranker is None, it uses the threads that the cluster gives this process.
        """
        ranker, by_parts = self.ranker, "parts" in self.ranker.capabilities()
        n_jobs = getattr(ranker, "n_jobs", threads)
        if n_jobs is None:
            ranker.n_jobs = threads
        with Processes(number, self.size, address, self.timeout, holds_parts=by_parts, is_hosted=True) as team:
            held = data if by_parts else [_everything(part, team) for part in data]
            valid = held[1] if len(held) > 1 else None
            ranker.fit(held[0], valid=valid, checkpoint=self.checkpoint, progress=self.progress, team=team)
        if n_jobs is None:
            ranker.n_jobs = None
        return ranker


def advice(checkpoint: Path | None) -> str:
    """How to continue after a failure."""
    if checkpoint is None:
        return "nothing was saved: with checkpoint= a failed run can be continued"
    return (
        f"{checkpoint} has the saved state: call fit again with this checkpoint, on any number of processes, to"
        " continue"
    )


def check_settings_of(ranker: Any) -> None:
    """Refuse anything but a ranker with valid settings, before anything is sent."""
    check_ranker("ranker", ranker)
    ranker.checked_settings()
    try:
        cloudpickle.dumps(ranker)
    except Exception as error:  # of whatever the settings hold: a lock, a file, a connection
        raise ParameterError(
            argument="ranker", expected="settings that can be sent to other processes", got=f": {error}"
        ) from None


def named_columns(query: Any, rating: Any, features: Any) -> dict[str, Any]:
    """The names of columns that the caller gave, checked before anything is read."""
    names = None if features is None else as_name_list("features", features)
    if names == []:
        raise ParameterError(argument="features", expected="at least one column to learn from", got="[]")
    return {"query": as_name("query", query), "rating": as_name("rating", rating), "features": names}


def not_numbers(where: str, column: str, got: str, fix: str = "encode it as numbers") -> DataError:
    """The error for a feature column that does not hold numbers: no process sees all of its values to encode them."""
    return DataError(
        where=where,
        argument="features",
        expected=f"numbers in column {column!r}",
        got=got,
        fix=f"{fix}, or leave it out of `features`",
    )


def check_numbers(data: RankingDataset, where: str) -> None:
    """Refuse features that are not plain numbers: each part would number the texts of its own rows."""
    for name, kind in data.kinds.items():
        raise not_numbers(where, kind.sources(name)[0], kind.NAME)


# How queries are split into parts


class Sized(Protocol):
    """Data to split: the documents of each query, and which queries count, as training learns from them."""

    lengths: Counts
    counted: NDArray[np.bool_]


def skips_unjudged(ranker: Any) -> bool:
    """Whether training leaves out queries without any rating."""
    return bool(getattr(ranker, "unjudged", "skip") == "skip")


def number_of_parts(wanted: int, sources: Sequence[Sized], processes: str) -> int:
    """The number of parts that can have a query that counts in each source; warns if there are fewer than wanted."""
    number = min(wanted, *(int(np.count_nonzero(source.counted)) for source in sources))
    if not number:
        raise DataError(
            argument="rating", expected="at least one document with a rating", got="unjudged documents only"
        )
    if number < wanted:
        logging.getLogger("tierank").warning(
            "tierank: %d of %d %s are used: there are no more queries, and each needs one", number, wanted, processes
        )
    return number


def cut_parts(source: Sized, n_parts: int) -> Counts:
    """The edges that split queries into parts, each with a query that counts: the cut of those queries alone.

    >>> from types import SimpleNamespace
    >>> source = SimpleNamespace(lengths=np.array([5, 9, 1, 1, 9]), counted=np.array([True, False, True, True, False]))
    >>> cut_parts(source, 2).tolist()
    [0, 2, 5]
    """
    counted = np.flatnonzero(source.counted)
    cuts = cut_queries(np.concatenate([[0], source.lengths[counted].cumsum()]), n_parts)
    return np.concatenate([[0], counted[cuts[1:-1]], [len(source.lengths)]])


def _everything(own: RankingDataset, team: Processes) -> RankingDataset:
    """The queries of all processes, in the order of their numbers."""
    first = sum(team.all_gather(own.n_queries)[: team.rank])
    codes = np.repeat(np.arange(first, first + own.n_queries), own.lengths)

    def gathered(values: Any) -> Any:
        return None if values is None else team.gather_rows(values[:, None])[:, 0]

    def of_rows(name: str) -> Any:
        values = getattr(own, name)
        return np.repeat(values, own.lengths) if name == "query_weight" and values is not None else values

    return RankingDataset(
        team.gather_rows(np.asarray(own.features)),
        gathered(own.ratings),
        gathered(codes),
        feature_names=own.feature_names,
        **{name: gathered(of_rows(name)) for name in OF_ROWS},
    )


class Holds(NamedTuple):
    """What a column can hold by its type: numbers, vectors or anything else; and the name of the type."""

    what: str
    type: str


def scored_columns(
    ranker: Any, names: list[str], columns: Mapping[str, Holds], query: Any, features: Any, score: Any
) -> tuple[Layout, bool]:
    """The columns that predict reads, and whether the ranker needs whole queries; the score column must be new.

    ``names`` are all columns of the data. ``columns`` says what they hold, where that is known.
    """
    check_ranker("ranker", ranker, FITTED)
    needs_list = ranker.needs_list()
    if not isinstance(score, str) or score in names:
        raise ParameterError(argument="score", expected="the name of a new column", got=repr(score))
    learned = ranker.seen_.feature_names
    wanted = None if learned is None else ranker.seen_.columns.sources(learned)
    wanted = wanted if features is None else as_name_list("features", features)
    layout = _layout(names, as_name("query", query), wanted, needs_list)
    _check_features(ranker, layout.features, columns)
    return layout, needs_list


def _check_features(ranker: Ranker, names: list[str], columns: Mapping[str, Holds]) -> None:
    """Raise ``DataError`` for columns that the ranker cannot score, before rows are read."""
    import pyarrow

    learned, held = ranker.seen_.feature_names, {name: columns[name] for name in names if name in columns}
    kinds = dict.fromkeys(names) if learned is None else ranker.seen_.columns.raw_kinds(learned)
    odd = [name for name in held if name in kinds and kinds[name] is None and held[name].what != "numbers"]
    if odd:
        raise DataError(
            where="data",
            argument="features",
            expected=f"numbers in column {odd[0]!r}, as in training",
            got=held[odd[0]].type,
            fix="encode it as in training",
        )
    try:  # one row without values
        ranker.match_features(pyarrow.table({name: pyarrow.nulls(1) for name in names}), qid=[0])
    except DataError as error:
        raise error.at("data") from None


def is_number(kind: Any) -> bool:
    """Whether a column of this Arrow type can hold numbers; one without any value can."""
    from pyarrow import types

    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null)
    return any(test(kind) for test in tests)


def _layout(names: list[str], query: str | None, features: list[str] | None, needs_list: bool) -> Layout:
    """The role of each column; the query is optional if documents are scored one by one."""
    if needs_list or query is not None or features is None:
        return Layout.of(names, "data", query=query, features=features, declared=Columns())
    check_columns(names, features, "data")
    return Layout("", None, None, {}, features)


def score_table(ranker: Ranker, table: Any, layout: Layout, needs_list: bool) -> Any:
    """The scores of the rows of a table, as an Arrow array; whole queries if the ranker needs them."""
    import pyarrow

    qid = table.column(layout.query).to_numpy() if needs_list else None
    return pyarrow.array(ranker.predict(take_columns(table, layout.features), qid=qid), pyarrow.float64())


def whole_queries(batches: Iterator[Any], query: str) -> Iterator[Any]:
    """Tables of whole queries, from batches of rows that are sorted by query."""
    import pyarrow

    held: list[Any] = []
    name: Any = None
    for batch in batches:
        if not len(batch):
            continue
        ids = batch.column(batch.schema.get_field_index(query))
        if ids.null_count:
            raise DataError(argument="query", expected="an id in every row", got="rows without one", fix="drop them")
        last = ids[-1].as_py()
        cut = ids.index(ids[-1]).as_py()  # where the last query starts; it may continue in the next batch
        if cut == 0 and held and name == last:
            held.append(batch)
            continue
        if held or cut:
            yield pyarrow.Table.from_batches([*held, batch.slice(0, cut)])
        held, name = [batch.slice(cut)], last
    if held:
        yield pyarrow.Table.from_batches(held)
