"""Ray: training in actors on a Ray Dataset, and scoring its rows."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from tierank.data.columns import Columns
from tierank.data.dataset import RankingDataset
from tierank.data.tables import check_columns
from tierank.distributed.dask import check_alike, grouped, join_pieces, sizes_of
from tierank.distributed.parts import (
    Holds,
    Training,
    advice,
    check_settings_of,
    cut_parts,
    is_number,
    named_columns,
    not_numbers,
    number_of_parts,
    score_table,
    scored_columns,
    skips_unjudged,
)
from tierank.distributed.processes import TIMEOUT, open_meeting
from tierank.errors import DataError, ParameterError, TeamError, TierankError
from tierank.extras import require
from tierank.files import as_path
from tierank.io.layout import Layout
from tierank.rankers.base import Ranker
from tierank.settings import as_positive, as_whole

R = TypeVar("R", bound=Ranker)

# The last line of a traceback, if the error is not one of Ray.
_ERROR = re.compile(r"(?!ray\.)[\w.]+: ")
# Seconds between checks of the actors, and seconds in which the actors of a failed fit have to end.
_LOOK, _GRACE = 1.0, 30.0


def is_ray(data: Any) -> bool:
    """Whether this is a Ray Dataset; ray is not imported to find out."""
    return any(c.__module__ == "ray.data.dataset" and c.__name__ == "Dataset" for c in type(data).__mro__)


def fit(
    ranker: R,
    data: Any,
    *,
    valid: Any = None,
    actors: int | None = None,
    cpus_per_actor: int = 1,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
    timeout: float = TIMEOUT,
    query: str | None = None,
    rating: str | None = None,
    features: Sequence[str] | None = None,
) -> R:
    """Train a ranker in actors of a Ray cluster.

    The blocks of the data sets stay in Ray's object store, and the caller sees query ids, counts and the fitted model.
    The queries are sorted by id and split into one part per actor, with about the same number of documents. The model
    depends on the rows and the number of actors, not on blocks, their order or the machines.

    Parameters
    ----------
    ranker : Ranker
        The ranker to train; it is not changed. Each actor holds only its part of the data, unless the ranker is your
        own and ``parts`` is not among its capabilities; then each actor gathers all data.
    data : ray.data.Dataset
        One row per document, with columns as ``read`` knows them.
    valid : ray.data.Dataset, optional
        Validation data with the same columns.
    actors : int, optional
        Number of actors that train together. Default: as many as the cluster has CPUs for. Rounding depends on it, so
        set it for reproducible models.
    cpus_per_actor : int, default 1
        CPUs that each actor reserves, and threads that it uses if the ranker's ``n_jobs`` is None.
    checkpoint : path, optional
        A folder on a disk that all machines share, where the first actor writes the state of training. A later call
        continues from it, with any number of actors.
    progress : bool, default False
        Show progress, in the log of the first actor.
    timeout : float, default 600
        Seconds that an actor waits for the others, and ``fit`` for free CPUs, before it gives up.
    query, rating : str, optional
        The columns of query ids and ratings.
    features : list of str, optional
        The feature columns, which must be numbers. Default: all columns without another role.

    Returns
    -------
    Ranker
        A fitted copy of ``ranker``.

    Raises
    ------
    DataError
        If a column is missing or cannot be used.
    ParameterError
        If the cluster does not have enough CPUs.
    TeamError
        If an actor failed or was lost.

    Examples
    --------
    .. code-block:: python

        train = ray.data.read_parquet("train")
        ranker = tierank.distributed.fit(tierank.UMart(), train, query="session", rating="grade", actors=8)
    """
    _check_data(data, "data")
    if valid is not None:
        _check_data(valid, "valid")
    check_settings_of(ranker)
    columns = named_columns(query, rating, features)
    as_positive("timeout", timeout)
    threads = as_whole("cpus_per_actor", cpus_per_actor)
    n_actors = _number_of_actors(actors, threads)
    sources = [_Source(data, "data", columns, skips_unjudged(ranker))]
    if valid is not None:
        sources.append(_Source(valid, "valid", sources[0].columns))
    n_parts = number_of_parts(n_actors, sources, "actors")
    kept = None if checkpoint is None else as_path(checkpoint, "checkpoint", "the name of a folder").absolute()
    training = Training(clone(ranker), n_parts, timeout, kept, progress)
    parts = [source.cut(n_parts) for source in sources]
    with _started(training, threads) as team:
        fitted: R = team.train([list(of_one) for of_one in zip(*parts, strict=True)])
    return fitted


def predict(
    ranker: Ranker,
    data: Any,
    *,
    query: str | None = None,
    features: Sequence[str] | None = None,
    score: str = "score",
) -> Any:
    """Score the rows of a Ray Dataset, in Arrow blocks.

    If scores depend on the other documents of the query (``query_features``, transforms per query, Blend), rows are
    first gathered by query. Otherwise rows are scored where they are.

    Parameters
    ----------
    ranker : Ranker
        A fitted ranker.
    data : ray.data.Dataset
        One row per document.
    query : str, optional
        The column of query ids. Default: as in ``read``. Not needed if documents are scored one by one.
    features : list of str, optional
        The feature columns. Default: the names that the ranker was trained with, or all columns without another role.
    score : str, default "score"
        The name of the new column.

    Returns
    -------
    ray.data.Dataset
        The rows of ``data``, in any order, with their scores. As usual in Ray, it is computed lazily.

    Examples
    --------
    .. code-block:: python

        scored = tierank.distributed.predict(ranker, ray.data.read_parquet("candidates"), query="session")
        scored.write_parquet("scores")
    """
    _check_data(data, "data")
    names, held = _described(data)
    layout, needs_list = scored_columns(ranker, names, held, query, features, score)
    scorer = _Scorer(ranker, layout, needs_list, score)
    if needs_list:
        _check_sortable(layout.query, held)
        return data.groupby(layout.query).map_groups(scorer.add_scores, batch_format="pyarrow")
    return data.map_batches(scorer.add_scores, batch_format="pyarrow", zero_copy_batch=True)


# Checks before anything runs


def _check_data(data: Any, argument: str) -> None:
    if not is_ray(data):
        raise ParameterError(
            argument=argument,
            expected="a Ray Dataset",
            got=type(data).__name__,
            fix="ray.data.from_pandas and ray.data.read_parquet make one",
        )
    require("a Ray Dataset", "ray", "pyarrow")


def _described(data: Any) -> tuple[list[str], dict[str, Holds]]:
    """The names of the columns, and what they hold. Raises ``DataError`` if there are none, as without any row."""
    import pyarrow

    schema = data.schema()
    if schema is None:
        raise DataError(argument="data", expected="at least one document", got="a data set without any")
    types = dict(zip(schema.names, schema.types, strict=True))
    return list(schema.names), {
        name: Holds(_content(kind), str(kind)) for name, kind in types.items() if isinstance(kind, pyarrow.DataType)
    }


def _check_sortable(query: str, held: dict[str, Holds]) -> None:
    """Refuse ids by which Ray cannot gather rows: lists, tensors and structs."""
    if query in held and (held[query].what == "vectors" or held[query].type.startswith(("struct", "map"))):
        raise DataError(
            where="data",
            argument="query",
            expected=f"integers or strings in column {query!r}",
            got=held[query].type,
            fix="cast it",
        )


def _content(kind: Any) -> str:
    """What a column of this Arrow type holds; Ray has extension types of its own for tensors."""
    from pyarrow import BaseExtensionType, types

    if is_number(kind):
        return "numbers"
    is_vector = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return "vectors" if is_vector or isinstance(kind, BaseExtensionType) else "others"


def _number_of_actors(wanted: int | None, threads: int) -> int:
    import ray

    n_cpus = int(ray.cluster_resources().get("CPU", 0))
    n_most = n_cpus // threads
    number = n_most if wanted is None else as_whole("actors", wanted)
    if not 0 < number <= n_most:
        raise ParameterError(
            argument="actors",
            expected=f"at most {n_most}: the cluster has {n_cpus} CPUs, and each actor needs {threads}",
            got=str(number),
            fix="add machines, or lower cpus_per_actor or actors",
        )
    return number


# The data


class _Part(NamedTuple):
    """The queries of one actor: references to their pieces, and the expected numbers of queries and documents."""

    pieces: list[Any]
    n_queries: int
    n_documents: int


class _Source:
    """A Ray Dataset as blocks in the object store, each a data set: its sorted query ids, and the documents of each."""

    def __init__(self, data: Any, argument: str, columns: dict[str, Any], skips: bool = False) -> None:
        import ray

        schema, group, size = map(ray.remote, (_schema_of, _grouped_block, sizes_of))
        tables = _tables_of(data, argument)
        self.columns = _checked_columns(_results([schema.remote(table) for table in tables]), argument, columns)
        self.blocks = [group.remote(argument, number, self.columns, table) for number, table in enumerate(tables)]
        found = _results([size.remote(block) for block in self.blocks])
        check_alike(found, f"{argument}: block")
        sizes = [one for one in found if one is not None]
        self.ids, codes = np.unique(np.concatenate([one.ids for one in sizes]), return_inverse=True)
        self.lengths, judged = (
            np.bincount(codes, np.concatenate(counts)).astype(np.int64)
            for counts in ([one.lengths for one in sizes], [one.judged for one in sizes])
        )
        self.counted = (judged > 0) | (not skips)

    def cut(self, n_parts: int) -> list[_Part]:
        """Parts of the sorted queries, with about the same number of documents."""
        import ray

        edges = cut_parts(self, n_parts)
        ends = self.ids[edges[1:-1]]
        if n_parts == 1:
            dealt = [[block] for block in self.blocks]
        else:
            deal = ray.remote(num_returns=n_parts)(_deal)
            dealt = [deal.remote(block, ends) for block in self.blocks]
        documents = np.add.reduceat(self.lengths, edges[:-1])
        counts = zip(np.diff(edges).tolist(), documents.tolist(), strict=True)
        return [_Part([pieces[k] for pieces in dealt], *count) for k, count in enumerate(counts)]


def _tables_of(data: Any, argument: str) -> list[Any]:
    """References to the blocks of a data set, as Arrow tables; they are computed now."""
    import ray

    try:
        return list(data.to_arrow_refs())
    except ray.exceptions.RayError as error:  # of a function of the caller, among others
        lines = [line for line in str(error).splitlines() if _ERROR.match(line)]
        got = lines[0] if lines else type(error).__name__
        raise DataError(where=argument, expected="rows that Ray can compute", got=f": {got}") from error


def _schema_of(table: Any) -> Any:
    """The columns of a block; None if it has no rows."""
    return table.schema if len(table) else None


def _checked_columns(schemas: list[Any], argument: str, columns: dict[str, Any]) -> dict[str, Any]:
    """The columns to read from every block, by those of the first one with rows; their types must fit."""
    held = [(number, schema) for number, schema in enumerate(schemas) if schema is not None]
    if not held:
        raise DataError(argument=argument, expected="at least one document", got="a data set without any")
    layout = Layout.of(list(held[0][1].names), argument, declared=Columns(), **columns)
    for number, schema in held:
        where = f"{argument}: block {number}"
        check_columns(schema.names, [*layout.heads, *layout.features], where)
        _check_types(schema, held[0][1], layout, where)
    return {"query": layout.query, "rating": layout.rating, "features": layout.features}


def _check_types(schema: Any, first: Any, layout: Layout, where: str) -> None:
    for name in layout.features:
        if not is_number(schema.field(name).type):
            raise not_numbers(where, name, str(schema.field(name).type))
    kind, wanted = (one.field(layout.query).type for one in (schema, first))
    if _family(kind) != _family(wanted):
        raise DataError(
            where=where,
            argument="query",
            expected=f"ids of type {wanted} in column {layout.query!r}, as in other blocks",
            got=str(kind),
            fix="cast them",
        )


def _family(kind: Any) -> str:
    """The type of ids, whatever the width of integers and the form of texts."""
    from pyarrow import types

    if types.is_integer(kind):
        return "integer"
    return "text" if types.is_string(kind) or types.is_large_string(kind) else str(kind)


def _grouped_block(argument: str, number: int, columns: dict[str, Any], block: Any) -> RankingDataset | None:
    return grouped(f"{argument}: block {number}", columns, block)


def _deal(data: RankingDataset | None, ends: NDArray[Any]) -> list[RankingDataset | None]:
    """The queries of a block for each part: those below the first end, those below the second, and so on."""
    if data is None:
        return [None] * (len(ends) + 1)
    part = np.searchsorted(ends, data.query_ids, side="right")
    by_part = [np.flatnonzero(part == k) for k in range(len(ends) + 1)]
    return [data.select(queries) if len(queries) else None for queries in by_part]


def _results(futures: list[Any]) -> list[Any]:
    """The results of remote calls. tierank's errors are raised unchanged."""
    import ray

    try:
        return list(ray.get(futures))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TierankError):
            raise error.cause from None
        raise


# The actors


@contextlib.contextmanager
def _started(training: Training, threads: int) -> Iterator[_Actors]:
    """Actors on reserved CPUs; they end with this context in any case."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{"CPU": threads}] * training.size, strategy="PACK")
    try:
        if not group.wait(training.timeout):
            raise TeamError(
                expected=f"{training.size} times {threads} free CPUs within {training.timeout:g} seconds",
                got="fewer",
                fix="the cluster is busy: try later, or with fewer actors",
            )
        process = ray.remote(_Process).options(num_cpus=threads, placement_group=group, max_restarts=0)
        actors = [process.remote(training, number, threads) for number in range(training.size)]
        try:
            yield _Actors(training, actors)
        finally:
            for actor in actors:
                ray.kill(actor)
    finally:
        remove_placement_group(group)


class _Process:
    """One actor: a process of the team."""

    def __init__(self, training: Training, number: int, threads: int) -> None:
        self.training, self.number, self.threads = training, number, threads

    def open(self) -> str:
        """The address by which the actors find each other."""
        import ray

        self.meeting = open_meeting()  # open as long as this actor exists
        return f"{ray.util.get_node_ip_address()}:{self.meeting.port}"

    def fit(self, address: str, parts: list[_Part]) -> tuple[Any, str]:
        """Train; returns the fitted ranker (only from the first actor) and a digest of its model."""
        ranker = self.training.fit_part(self.number, address, [_take(part) for part in parts], self.threads)
        return (ranker if self.number == 0 else None), ranker.model_.digest()


def _take(part: _Part) -> RankingDataset:
    """The data of one actor, grouped by query, with queries ordered by id."""
    import ray

    data = join_pieces([piece for piece in ray.get(part.pieces) if piece is not None])
    if (data.n_queries, data.n_documents) != (part.n_queries, part.n_documents):
        raise DataError(
            expected=f"{part.n_queries:,} queries with {part.n_documents:,} documents",
            got=repr(data),
            fix="the data changed while they were read: materialize or write them first",
        )
    return data.select(np.argsort(data.query_ids, kind="stable"))


class _Actors:
    """The actors of one fit. Waiting for them raises soon if one of them is lost."""

    def __init__(self, training: Training, actors: list[Any]) -> None:
        self.training, self.actors = training, actors

    def train(self, parts: list[list[_Part]]) -> Any:
        """Train in all actors at the same time; returns the fitted ranker."""
        (address,) = self._wait([self.actors[0].open.remote()])
        answers = self._wait([actor.fit.remote(address, own) for actor, own in zip(self.actors, parts, strict=True)])
        digests = [digest for _, digest in answers]
        if len(set(digests)) > 1:
            got = f"different ones: {digests}"
            raise TeamError(expected="the same model in all actors", got=got, fix="please report it")
        return answers[0][0]

    def _wait(self, futures: list[Any]) -> list[Any]:
        """The results of the calls. After a failure, raises the error of the actor that failed first."""
        import ray

        end, errors, waiting = float("inf"), [], list(futures)
        while waiting and time.monotonic() < end:
            done, waiting = ray.wait(waiting, timeout=_LOOK)
            errors += [error for error in map(self._error, done, [futures] * len(done)) if error is not None]
            if errors:
                end = min(end, time.monotonic() + _GRACE)
        if errors:
            raise next((e for e in errors if not (isinstance(e, TeamError) and e.is_left_alone)), errors[0])
        return list(ray.get(futures))

    def _error(self, future: Any, futures: list[Any]) -> TierankError | None:
        """The error of a finished call, as a tierank error."""
        import ray

        where = f"actor {futures.index(future)} of {self.training.size}"
        try:
            ray.get(future)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, TierankError):
                return error.cause
            fix = advice(self.training.checkpoint)
            return TeamError(where=f"{where} failed", expected="it to succeed", got=repr(error.cause), fix=fix)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            return TeamError(
                where=f"{where} was lost",
                expected="all actors to stay until fit is done",
                got=f": {reason}",
                fix=advice(self.training.checkpoint),
            )
        return None


class _Scorer:
    """A ranker that adds scores to tables."""

    def __init__(self, ranker: Ranker, layout: Layout, needs_list: bool, score: str) -> None:
        self.ranker, self.layout, self.needs_list, self.score = ranker, layout, needs_list, score
        if getattr(ranker, "n_jobs", 0) is None:  # Ray runs one of these per CPU
            scoring: Any = copy(ranker)
            scoring.n_jobs = 1
            self.ranker = scoring

    def add_scores(self, table: Any) -> Any:
        """The table with a column of scores."""
        return table.append_column(self.score, score_table(self.ranker, table, self.layout, self.needs_list))
