"""Ray: training in actors on a Ray Dataset, and scoring its rows."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.data.columns import Columns
from tierank.data.dataset import RankingDataset
from tierank.distributed import parts
from tierank.distributed.parts import Answer, Counts, FitJob, Holds
from tierank.distributed.processes import open_meeting
from tierank.errors import DataError, ParameterError, TeamError, TierankError
from tierank.extras import require
from tierank.io.layout import Layout
from tierank.rankers.base import Ranker
from tierank.settings import as_whole

NAME, OWN = "Ray", ("actors", "cpus_per_actor")
# The last line of a traceback, if the error is not one of Ray.
_ERROR = re.compile(r"(?!ray\.)[\w.]+: ")
# Seconds between checks of the actors, and seconds in which the actors of a failed fit have to end.
_LOOK, _GRACE = 1.0, 30.0


def is_ray(data: Any) -> bool:
    """Whether this is a Ray Dataset; ray is not imported to find out."""
    return any(c.__module__ == "ray.data.dataset" and c.__name__ == "Dataset" for c in type(data).__mro__)


def _check_data(data: Any, argument: str) -> None:
    if not is_ray(data):
        fix = "ray.data.from_pandas and ray.data.read_parquet make one"
        raise ParameterError(argument=argument, expected="a Ray Dataset", got=type(data).__name__, fix=fix)
    require("a Ray Dataset", "ray", "pyarrow")


# The data


class _Share(NamedTuple):
    """The queries of one actor: references to their pieces, and the expected numbers of queries and documents."""

    pieces: list[Any]
    counts: tuple[int, int]


class _RayRows(parts.Source):
    """A Ray Dataset as blocks in the object store, each a data set: its sorted query ids, and the documents of each."""

    def __init__(self, data: Any, argument: str, columns: dict[str, Any]) -> None:
        import ray

        names, group, size = map(ray.remote, (_names_of, parts.grouped, parts.sizes_of))
        tables = _tables_of(data, argument)
        known = next((some for some in _results([names.remote(table) for table in tables]) if some), None)
        if known is None:
            raise DataError(argument=argument, expected="at least one document", got="a data set without any")
        layout = Layout.of(known, argument, declared=Columns(), **columns)  # the same for all blocks
        self.columns = {"query": layout.query, "rating": layout.rating, "features": layout.features}
        self.blocks = [group.remote(f"{argument}: block {k}", self.columns, table) for k, table in enumerate(tables)]
        found = _results([size.remote(block) for block in self.blocks])
        parts.check_alike(found, f"{argument}: block")
        sizes = [one for one in found if one is not None]
        self.ids, codes = np.unique(np.concatenate([one.ids for one in sizes]), return_inverse=True)
        self.lengths, self.judged = (
            np.bincount(codes, np.concatenate(counts)).astype(np.int64)
            for counts in ([one.lengths for one in sizes], [one.judged for one in sizes])
        )

    def cut(self, edges: Counts) -> list[_Share]:
        """Parts of the sorted queries."""
        import ray

        n_parts = len(edges) - 1
        if n_parts == 1:
            dealt = [[block] for block in self.blocks]
        else:
            deal = ray.remote(num_returns=n_parts)(_deal)
            dealt = [deal.remote(block, self.ids[edges[1:-1]]) for block in self.blocks]
        counts = parts.counts_of(self.lengths, edges)
        return [_Share([pieces[k] for pieces in dealt], of_part) for k, of_part in enumerate(counts)]


def _tables_of(data: Any, argument: str) -> list[Any]:
    """References to the blocks of a data set, as Arrow tables; they are computed now."""
    import ray

    try:
        return list(data.to_arrow_refs())
    except ray.exceptions.RayError as error:  # of a function of the caller, among others
        lines = [line for line in str(error).splitlines() if _ERROR.match(line)]
        got = lines[0] if lines else type(error).__name__
        raise DataError(where=argument, expected="rows that Ray can compute", got=f": {got}") from error


def _names_of(table: Any) -> list[str]:
    """The columns of a block; none if it has no rows."""
    return list(table.column_names) if len(table) else []


def _deal(data: RankingDataset | None, ends: NDArray[Any]) -> list[RankingDataset | None]:
    """The queries of a block for each part: those below the first end, those below the second, and so on."""
    if data is None:
        return [None] * (len(ends) + 1)
    part = np.searchsorted(ends, data.query_ids, side="right")
    by_part = [np.flatnonzero(part == k) for k in range(len(ends) + 1)]
    return [data.select(queries) if len(queries) else None for queries in by_part]


def _results(futures: list[Any]) -> list[Any]:
    """The results of remote calls, one after the other: of several errors, the first block's is told.

    tierank's errors are raised unchanged.
    """
    import ray

    try:
        return [ray.get(future) for future in futures]
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TierankError):
            raise error.cause from None
        raise


# The actors


def open_cluster(data: Any, valid: Any, client: Any, actors: int | None = None, cpus_per_actor: int = 1) -> RayCluster:
    """Actors, as many as the caller wants or the cluster has CPUs for."""
    _check_data(data, "data")
    if valid is not None:
        _check_data(valid, "valid")
    import ray

    threads, n_cpus = as_whole("cpus_per_actor", cpus_per_actor), int(ray.cluster_resources().get("CPU", 0))
    n_most = n_cpus // threads
    number = n_most if actors is None else as_whole("actors", actors)
    if not 0 < number <= n_most:
        expected = f"at most {n_most}: the cluster has {n_cpus} CPUs, and each actor needs {threads}"
        fix = "add machines, or lower cpus_per_actor or actors"
        raise ParameterError(argument="actors", expected=expected, got=str(number), fix=fix)
    return RayCluster(number, threads)


class RayCluster(parts.Cluster):
    """Actors on reserved CPUs, which end with ``run`` in any case."""

    member = "actor"

    def __init__(self, size: int, threads: int) -> None:
        self.size, self.threads = size, threads

    def source(self, data: Any, argument: str, columns: dict[str, Any]) -> _RayRows:
        """The source of the data."""
        return _RayRows(data, argument, columns)

    def run(self, training: FitJob, sources: Sequence[_RayRows], cuts: Sequence[Counts]) -> list[Answer]:
        """Train in all actors at the same time."""
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        group = placement_group([{"CPU": self.threads}] * training.size, strategy="PACK")
        actors: list[Any] = []
        try:
            if not group.wait(training.timeout):
                expected = f"{training.size} times {self.threads} free CPUs within {training.timeout:g} seconds"
                fix = "the cluster is busy: try later, or with fewer actors"
                raise TeamError(expected=expected, got="fewer", fix=fix)
            process = ray.remote(_Actor).options(num_cpus=self.threads, placement_group=group, max_restarts=0)
            actors += [process.remote(training, number, self.threads) for number in range(training.size)]
            given = zip(*(source.cut(edges) for source, edges in zip(sources, cuts, strict=True)), strict=True)
            (address,) = _answers(training, [actors[0].open.remote()])
            calls = [actor.fit.remote(address, list(own)) for actor, own in zip(actors, given, strict=True)]
            return _answers(training, calls)
        finally:
            for actor in actors:
                ray.kill(actor)
            remove_placement_group(group)


class _Actor:
    """One actor: a process of the team."""

    def __init__(self, training: FitJob, number: int, threads: int) -> None:
        self.training, self.number, self.threads = training, number, threads

    def open(self) -> str:
        """The address by which the actors find each other."""
        import ray

        self.meeting = open_meeting()  # open as long as this actor exists
        return f"{ray.util.get_node_ip_address()}:{self.meeting.port}"

    def fit(self, address: str, own: list[_Share]) -> Answer:
        """Train on the own queries, in the order of their ids."""
        import ray

        data = []
        for part in own:
            joined = parts.join_pieces([piece for piece in ray.get(part.pieces) if piece is not None])
            data.append(parts.sorted_by_id(parts.complete(joined, part.counts)))
        return self.training.answer(self.number, address, data, self.threads)


def _answers(training: FitJob, futures: list[Any]) -> list[Any]:
    """The results of calls to the actors. After a failure, raises the error of the actor that failed first."""
    import ray

    end, errors, waiting = float("inf"), [], list(futures)
    while waiting and time.monotonic() < end:
        done, waiting = ray.wait(waiting, timeout=_LOOK)
        for future in done:
            name = f"actor {futures.index(future)} of {training.size}"
            try:
                ray.get(future)
            except ray.exceptions.RayTaskError as error:
                errors.append(training.failure(name, error.cause))
            except ray.exceptions.RayError as error:
                why = (str(error).strip() or type(error).__name__).splitlines()[0]
                errors.append(training.loss(name, why))
        if errors:
            end = min(end, time.monotonic() + _GRACE)
    first = parts.cause(errors)
    if first is not None:
        raise first
    return list(ray.get(futures))


# Scoring


def described(data: Any) -> dict[str, Holds | None]:
    """The columns of a Ray Dataset, and what they hold. Raises ``DataError`` if there are none, as without any row."""
    _check_data(data, "data")
    schema = data.schema()
    if schema is None:
        raise DataError(argument="data", expected="at least one document", got="a data set without any")
    return {name: _content(kind) for name, kind in zip(schema.names, schema.types, strict=True)}


def _content(kind: Any) -> Holds | None:
    """What a column of this Arrow type holds; Ray has extension types of its own for tensors."""
    from pyarrow import BaseExtensionType, DataType, types

    if not isinstance(kind, DataType):
        return None
    is_vector = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    tests = {
        "integers": types.is_integer(kind),
        "numbers": types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind),
        "texts": types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind),
        "nothing": types.is_null(kind),
        "vectors": is_vector or isinstance(kind, BaseExtensionType),
    }
    return Holds(next((what for what, holds in tests.items() if holds), "others"), str(kind))


def add_scores(ranker: Ranker, data: Any, layout: Layout, needs_list: bool, score: str) -> Any:
    """The Ray Dataset with a column of scores."""
    if getattr(ranker, "n_jobs", 0) is None:  # Ray scores in one process per CPU
        ranker = copy(ranker)
        vars(ranker)["n_jobs"] = 1

    def scored(table: Any) -> Any:
        return table.append_column(score, parts.score_table(ranker, table, layout, needs_list))

    if needs_list:
        return data.groupby(layout.query).map_groups(scored, batch_format="pyarrow")
    return data.map_batches(scored, batch_format="pyarrow", zero_copy_batch=True)
