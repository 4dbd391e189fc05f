"""What training on Spark, Ray and Dask has in common.

A cluster counts the documents of each query of its data (``Source``), the caller cuts the queries into parts of about
the same size, each process of the cluster trains on its part as one of a team (``FitJob``), and the caller takes the
model of the first, if all have the same. Scoring takes Arrow tables.
"""

from __future__ import annotations

import logging
import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import cloudpickle
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from tierank.data.columns import Columns
from tierank.data.dataset import RankingDataset
from tierank.data.tables import as_name, as_name_list, check_columns, take_columns
from tierank.data.team import cut_queries
from tierank.distributed.processes import Processes
from tierank.errors import DataError, ParameterError, TeamError, TierankError, located
from tierank.files import as_path
from tierank.io import read
from tierank.io.layout import Layout
from tierank.rankers.base import FITTED, Ranker, check_ranker

Counts = NDArray[np.int64]
R = TypeVar("R", bound=Ranker)

# What a data set may hold for each row or query, other than ratings.
OF_ROWS = ("row_weight", "query_weight", "position", "propensity")


# The protocol


class Source:
    """Data on a cluster, of which the caller knows the documents of each query, in the order of the parts."""

    lengths: Counts
    # Documents of each query that have a rating.
    judged: Counts
    # The columns to read: those of validation data are those of the training data.
    columns: dict[str, Any]


class Cluster(ABC):
    """A cluster that trains."""

    # What trains, such as "worker", and how many can train at the same time.
    member: str
    size: int

    @abstractmethod
    def source(self, data: Any, argument: str, columns: dict[str, Any]) -> Any:
        """The source of the data; ``argument`` is what messages call them."""

    @abstractmethod
    def run(self, training: FitJob, sources: Sequence[Any], cuts: Sequence[Counts]) -> list[Answer]:
        """Train on the parts of the sources, all at the same time; returns the answers of all members."""


# The fitted ranker, of the first member only, and a digest of its model.
Answer = tuple[Any, str]


def fit_on(
    cluster: Cluster,
    ranker: R,
    data: Any,
    valid: Any,
    columns: dict[str, Any],
    checkpoint: str | os.PathLike[str] | None,
    progress: bool,
    timeout: float,
) -> R:
    """Train on a cluster."""
    kept = None if checkpoint is None else as_path(checkpoint, "checkpoint", "the name of a folder").absolute()
    sources = [cluster.source(data, "data", columns)]
    if valid is not None:
        sources.append(cluster.source(valid, "valid", sources[0].columns))
    # Which queries training learns from; all of the validation data count.
    skips = getattr(ranker, "unjudged", "skip") == "skip"
    counted = [(source.judged > 0) | (not skips or k > 0) for k, source in enumerate(sources)]
    lengths = [source.lengths for source in sources]
    n_parts = number_of_parts(cluster.size, lengths, counted, f"{cluster.member}s")
    training = FitJob(clone(ranker), cluster.member, n_parts, timeout, kept, progress)
    cuts = [cut_parts(*of_source, n_parts) for of_source in zip(lengths, counted, strict=True)]
    answers = cluster.run(training, sources, cuts)
    digests = [digest for _, digest in answers]
    if len(set(digests)) > 1:
        expected, got = f"the same model on all {cluster.member}s", f"different ones: {digests}"
        raise TeamError(expected=expected, got=got, fix="please report it")
    fitted: R = answers[0][0]
    return fitted.set_params(**clone(ranker).get_params(deep=False))  # the caller's own objects, not copies of them


@dataclass(frozen=True)
class FitJob:
    """The arguments that the processes of one fit share."""

    ranker: Any
    member: str
    size: int
    timeout: float
    checkpoint: Path | None
    progress: bool

    def answer(
        self, number: int, address: str, data: Sequence[RankingDataset], threads: int, place: str = ""
    ) -> Answer:
        """Train as one of the team; ``data`` is training data, and validation data if any.

        If ``n_jobs`` of the ranker is None, it uses the threads that the cluster gives this process.
        """
        ranker, by_parts = self.ranker, "parts" in self.ranker.capabilities()
        if getattr(ranker, "n_jobs", threads) is None:
            ranker.n_jobs = threads
        try:
            with Processes(number, self.size, address, self.timeout, holds_parts=by_parts, is_hosted=True) as team:
                held = data if by_parts else [_everything(part, team) for part in data]
                valid = held[1] if len(held) > 1 else None
                ranker.fit(held[0], valid=valid, checkpoint=self.checkpoint, progress=self.progress, team=team)
        except Exception as error:
            raise self.failure(f"{self.member} {number} of {self.size}{place}", error) from None
        return (ranker if number == 0 else None), ranker.model_.digest()

    def failure(self, where: str, error: Exception) -> TierankError:
        """The error of a member, which can be sent: tierank's own, or one that shows the traceback of another."""
        if isinstance(error, TierankError):
            return error
        failure = TeamError(where=f"{where} failed", expected="it to succeed", got=repr(error), fix=self.advice)
        failure.add_note("".join(traceback.format_exception(error)))
        return failure

    def loss(self, where: str, why: str | None = None) -> TeamError:
        """The error for a member that was lost."""
        expected = f"all {self.size} {self.member}s to stay until fit is done"
        return TeamError(where=f"{where} was lost", expected=expected, got=why and f": {why}", fix=self.advice)

    @property
    def advice(self) -> str:
        """How to continue after a failure."""
        if self.checkpoint is None:
            return "nothing was saved: with checkpoint= a failed run can be continued"
        return (
            f"{self.checkpoint} has the saved state: call fit again with this checkpoint, on any number of processes,"
            " to continue"
        )


def cause(errors: Sequence[TierankError]) -> TierankError | None:
    """The error of the member that failed first: those that only lost contact with it are not the cause."""
    guilty = [error for error in errors if not (isinstance(error, TeamError) and error.is_left_alone)]
    return next(iter([*guilty, *errors]), None)


# Checks before anything is sent


def check_settings_of(ranker: Any) -> None:
    """Refuse anything but a ranker with valid settings."""
    check_ranker("ranker", ranker)
    ranker.checked_settings()
    try:
        cloudpickle.dumps(ranker)
    except Exception as error:  # of whatever the settings hold: a lock, a file, a connection
        raise ParameterError(
            argument="ranker", expected="settings that can be sent to other processes", got=f": {error}"
        ) from None


def named_columns(query: Any, rating: Any, features: Any) -> dict[str, Any]:
    """The names of columns that the caller gave."""
    names = None if features is None else as_name_list("features", features)
    if names == []:
        raise ParameterError(argument="features", expected="at least one column to learn from", got="[]")
    return {"query": as_name("query", query), "rating": as_name("rating", rating), "features": names}


def not_numbers(where: str, column: str, got: str, fix: str = "encode it as numbers") -> DataError:
    """The error for a feature column that does not hold numbers: no process sees all of its values to encode them."""
    expected, fix = f"numbers in column {column!r}", f"{fix}, or leave it out of `features`"
    return DataError(where=where, argument="features", expected=expected, got=got, fix=fix)


def check_numbers(data: RankingDataset, where: str) -> None:
    """Refuse features that are not plain numbers: each part would number the texts of its own rows."""
    for name, kind in data.kinds.items():
        raise not_numbers(where, kind.sources(name)[0], kind.NAME)


# Parts


def number_of_parts(wanted: int, lengths: Sequence[Counts], counted: Sequence[NDArray[np.bool_]], members: str) -> int:
    """The number of parts that can have a query that counts in each source; warns if members have little to do."""
    number, logger = min(wanted, *(int(np.count_nonzero(one)) for one in counted)), logging.getLogger("tierank")
    if not number:
        raise DataError(
            argument="rating", expected="at least one document with a rating", got="unjudged documents only"
        )
    if number < wanted:
        logger.warning(
            "tierank: %d of %d %s are used: there are no more queries, and each needs one", number, wanted, members
        )
    largest, total = int(lengths[0].max()), int(lengths[0].sum())
    if number > 1 and largest > total / number:
        logger.warning(
            "tierank: a query has %s documents, more than the share of one of %d %s (%s): the others will wait for it,"
            " and it needs memory for them; at most %d %s have enough to do",
            *(f"{largest:,}", number, members, f"{total // number:,}", max(1, total // largest), members),
        )
    return number


def cut_parts(lengths: Counts, counted: NDArray[np.bool_], n_parts: int) -> Counts:
    """The edges that split queries into parts, each with a query that counts: the cut of those queries alone.

    >>> cut_parts(np.array([5, 9, 1, 1, 9]), np.array([True, False, True, True, False]), 2).tolist()
    [0, 2, 5]
    """
    places = np.flatnonzero(counted)
    cuts = cut_queries(np.concatenate([[0], lengths[places].cumsum()]), n_parts)
    return np.concatenate([[0], places[cuts[1:-1]], [len(lengths)]])


def counts_of(lengths: Counts, edges: Counts) -> list[tuple[int, int]]:
    """The numbers of queries and documents of each part."""
    return list(zip(np.diff(edges).tolist(), np.add.reduceat(lengths, edges[:-1]).tolist(), strict=True))


def complete(data: RankingDataset | None, counts: tuple[int, int]) -> RankingDataset:
    """The data of a part, if they have the expected numbers of queries and documents."""
    got = (0, 0) if data is None else (data.n_queries, data.n_documents)
    if data is None or got != tuple(counts):
        raise DataError(
            expected=f"{counts[0]:,} queries with {counts[1]:,} documents",
            got=f"{got[0]:,} with {got[1]:,}",
            fix="the data changed while they were read: write them first",
        )
    return data


def sorted_by_id(data: RankingDataset) -> RankingDataset:
    """The same queries in the order of their ids."""
    return data.select(np.argsort(data.query_ids, kind="stable"))


# Blocks of rows that may split queries


def grouped(where: str, columns: dict[str, Any], *blocks: Any) -> RankingDataset | None:
    """The data set of a block: a table, or X, y and qid; None if it is empty."""
    if not blocks[0].shape[0]:
        return None
    with located(where):
        data = read(blocks[0], **columns) if len(blocks) == 1 else RankingDataset(*blocks)
    data.check_rated()
    check_numbers(data, where)
    return data.replace(document_texts=None)  # training does not need them


class Sizes(NamedTuple):
    """What the caller knows of a block: its queries, their documents and ratings, and what its rows hold."""

    ids: NDArray[Any]
    lengths: Counts
    judged: Counts
    held: dict[str, tuple[str, ...] | str]


def sizes_of(data: RankingDataset | None) -> Sizes | None:
    """The sizes of a block; None if it is empty."""
    if data is None:
        return None
    held = {
        "features": data.feature_names or f"{data.n_features} without names",
        "weights": tuple(name for name in OF_ROWS if getattr(data, name) is not None),
        "type of query ids": "integers" if data.query_ids.dtype.kind in "iu" else "texts or others",
    }
    return Sizes(data.query_ids, data.lengths, judged_of(data), held)


def judged_of(data: RankingDataset) -> Counts:
    """The number of documents of each query that have a rating."""
    return np.add.reduceat(data.is_judged.astype(np.int64), data.offsets[:-1])


def check_alike(sizes: Sequence[Sizes | None], what: str) -> None:
    """Refuse blocks with different columns, or in a different order: their rows could not be joined."""
    held = [(number, one.held) for number, one in enumerate(sizes) if one is not None]
    for number, one in held[1:]:
        for part, wanted in held[0][1].items():
            if wanted != one[part]:
                expected, got = (
                    names if isinstance(names, str) else ", ".join(names) or "none" for names in (wanted, one[part])
                )
                raise DataError(
                    where=f"{what} {number}",
                    expected=f"the {part} of {what} {held[0][0]}, {expected}",
                    got=got,
                    fix=f"give every {what} the same columns in the same order",
                )


def rows_of(data: RankingDataset) -> dict[str, Any]:
    """The arrays of a data set, with a value for each row; None for those that it does not have."""
    rows = {name: getattr(data, name) for name in OF_ROWS}
    if data.query_weight is not None:
        rows["query_weight"] = np.repeat(data.query_weight, data.lengths)
    return {"X": data.features, "y": data.ratings, "qid": np.repeat(data.query_ids, data.lengths)} | rows


def join_pieces(pieces: Sequence[RankingDataset]) -> RankingDataset:
    """One data set from pieces of queries; query weights are checked again, as the pieces of one have to agree."""
    if len(pieces) == 1:
        return pieces[0]
    rows = [rows_of(piece) for piece in pieces]
    joined: dict[str, Any] = {
        name: None if one is None else np.concatenate([some[name] for some in rows]) for name, one in rows[0].items()
    }
    return RankingDataset(**joined, feature_names=pieces[0].feature_names)


def _everything(own: RankingDataset, team: Processes) -> RankingDataset:
    """The queries of all processes, in the order of their numbers."""
    first = sum(team.all_gather(own.n_queries)[: team.rank])
    rows = rows_of(own) | {"qid": np.repeat(np.arange(first, first + own.n_queries), own.lengths)}
    gathered: dict[str, Any] = {
        name: None
        if values is None
        else team.gather_rows(np.asarray(values).reshape(len(values), -1)).reshape(-1, *np.shape(values)[1:])
        for name, values in rows.items()
    }
    return RankingDataset(**gathered, feature_names=own.feature_names)


# Scoring


class Holds(NamedTuple):
    """What a column holds by its type: integers, texts, numbers, nothing, vectors or others; the name of the type."""

    what: str
    type: str

    @property
    def is_number(self) -> bool:
        """Whether it can be a feature; a column without any value can."""
        return self.what in ("integers", "numbers", "nothing")

    @property
    def is_id(self) -> bool:
        """Whether rows can be gathered by it."""
        return self.what in ("integers", "texts")


def check_ids(held: Holds | None, column: str, where: str) -> None:
    """Refuse query ids by which rows cannot be gathered."""
    if held is not None and not held.is_id:
        expected = f"integers or strings in column {column!r}"
        raise DataError(where=where, argument="query", expected=expected, got=held.type, fix="cast it")


def scored_columns(
    ranker: Any, columns: dict[str, Holds | None], query: Any, features: Any, score: Any
) -> tuple[Layout, bool]:
    """The columns that predict reads, and whether the ranker needs whole queries; the score column must be new.

    ``columns`` are all columns of the data, with what they hold, where that is known.
    """
    import pyarrow

    check_ranker("ranker", ranker, FITTED)
    needs_list, names = ranker.needs_list(), list(columns)
    if not isinstance(score, str) or score in names:
        raise ParameterError(argument="score", expected="the name of a new column", got=repr(score))
    learned = ranker.seen_.feature_names
    wanted = None if learned is None else ranker.seen_.columns.sources(learned)
    wanted = wanted if features is None else as_name_list("features", features)
    query = as_name("query", query)
    if needs_list or query is not None or wanted is None:
        layout = Layout.of(names, "data", query=query, features=wanted, declared=Columns())
    else:  # the query is optional if documents are scored one by one
        check_columns(names, wanted, "data")
        layout = Layout("", None, None, {}, wanted)
    kinds = {} if learned is None else ranker.seen_.columns.raw_kinds(learned)
    for name in layout.features:
        held = columns[name]
        if held is not None and not held.is_number and (learned is None or (name in kinds and kinds[name] is None)):
            expected = f"numbers in column {name!r}, as in training"
            raise DataError(
                where="data", argument="features", expected=expected, got=held.type, fix="encode it as in training"
            )
    if needs_list:
        check_ids(columns[layout.query], layout.query, "data")
    with located("data"):  # one row without values
        ranker.match_features(pyarrow.table({name: pyarrow.nulls(1) for name in layout.features}), qid=[0])
    return layout, needs_list


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
