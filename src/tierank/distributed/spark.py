"""Spark: training in the tasks of a barrier stage, and scoring in Arrow batches."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from uuid import uuid4

import numpy as np

from tierank.data.columns import Columns
from tierank.data.dataset import RankingDataset
from tierank.data.tables import take_columns
from tierank.distributed import parts
from tierank.distributed.parts import Answer, Counts, FitJob, Holds
from tierank.distributed.processes import open_meeting
from tierank.errors import DataError, ParameterError, TeamError, TierankError
from tierank.extras import needing, require
from tierank.io import read
from tierank.io.layout import RATING_NAMES, Layout
from tierank.rankers.base import Ranker
from tierank.settings import as_whole

NAME, OWN = "Spark", ("tasks",)
# The columns that fit adds: the task that a row goes to, and whether the row is of the validation data.
TASK, HELD_OUT = "tierank_task", "tierank_valid"
# The last line of a traceback: the class of the error, and what it says.
_ERROR = re.compile(r"[\w.]+: ")
# Seconds between attempts to end a stage.
_LOOK = 1.0
# What columns hold, by their types. Texts with a collation are others: Spark would take different texts for the same.
_CONTENT = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "integers"),
    **dict.fromkeys(("float", "double", "decimal", "boolean"), "numbers"),
    "string": "texts",
    "void": "nothing",
    "array": "vectors",
    "vector": "vectors",
}
# Types that Spark does not pass to Python in Arrow batches.
_NOT_PASSED = ("YearMonthIntervalType", "CalendarIntervalType")


def is_spark(data: Any) -> bool:
    """Whether this is a Spark DataFrame; pyspark is not imported to find out."""
    return any(c.__name__ == "DataFrame" and c.__module__.startswith("pyspark.sql.") for c in type(data).__mro__)


def described(data: Any) -> dict[str, Holds | None]:
    """The columns of a Spark DataFrame, and what they hold; a name that is used occurs once."""
    _context_of(data, "data")
    return _held(data)


def _held(data: Any) -> dict[str, Holds | None]:
    kinds = {field.name: field.dataType.simpleString() for field in data.schema.fields}
    return {name: Holds(_CONTENT.get(re.split("[(<]", kind)[0], "others"), kind) for name, kind in kinds.items()}


def _context_of(data: Any, argument: str) -> Any:
    """The context of the session of a supported DataFrame, in the driver's Java; ends are checked apart."""
    if not is_spark(data):
        fix = "ranker.fit and ranker.predict take data in memory"
        raise ParameterError(argument=argument, expected="a Spark DataFrame", got=type(data).__name__, fix=fix)
    with needing("a Spark DataFrame"):
        import pyspark
    require("a Spark DataFrame", "pyarrow")
    if not hasattr(data, "repartitionById"):
        raise ParameterError(argument=argument, expected="Spark 4.1 or later", got=pyspark.__version__)
    if ".connect." in type(data).__module__:
        raise ParameterError(
            argument=argument,
            expected="a DataFrame of a session inside the driver",
            got="one of Spark Connect, which does not tell how many tasks can run at the same time",
            fix="run this program by spark-submit, or in a notebook of the cluster itself",
        )
    context = data.sparkSession.sparkContext._jsc  # pyspark has no public name for what it wraps
    if context is None:
        raise ParameterError(argument=argument, expected="a DataFrame of a running session", got="one that was stopped")
    return context


def _check_bounded(data: Any, argument: str, fix: str = "write it to a table, and read that") -> None:
    if data.isStreaming:
        raise ParameterError(argument=argument, expected="a DataFrame with an end", got="a stream", fix=fix)


def _numbered(data: Any) -> Any:
    """The DataFrame with numbered columns: Spark reads a dot in a name as a field, and ignores case."""
    return data.toDF(*(f"column_{k}" for k in range(len(data.columns))))


# The data


class _Expected(NamedTuple):
    """What the tasks expect among their rows, for the training or the validation data."""

    names: dict[str, Any]
    weights: list[str]
    counts: list[tuple[int, int]]
    is_valid: bool


class _SparkRows(parts.Source):
    """A DataFrame: the role of each column, and the sorted queries with their numbers of documents."""

    def __init__(self, data: Any, argument: str, columns: dict[str, Any]) -> None:
        self.data, self.argument, self.names = _numbered(data), argument, list(data.columns)
        self.layout = Layout.of(self.names, argument, declared=Columns(), **columns)
        self.columns = {name: getattr(self.layout, name) for name in ("query", "rating", "features")}
        self.held: dict[str, Any] = _held(data)
        self._check_types()
        table = self._counted()
        self.ids = table.column("id")
        self.lengths, self.judged, rated = (
            table.column(name).to_numpy().astype(np.int64) for name in ("documents", "judged", "rated")
        )
        if not len(self.lengths):
            raise DataError(where=argument, expected="at least one row", got="none")
        if self.ids.null_count:  # nulls are sorted first
            self._refuse_rows("query", "an id", self.lengths[0], "drop them")
        if rated.sum() < self.lengths.sum():
            fix = "make them NaN if these documents are unjudged, or drop them"
            self._refuse_rows("rating", "a number", self.lengths.sum() - rated.sum(), fix)

    def _refuse_rows(self, role: str, wanted: str, n: int, fix: str) -> None:
        expected = f"{wanted} in every row of column {self.columns[role]!r}"
        raise DataError(where=self.argument, argument=role, expected=expected, got=f"{n:,} rows without one", fix=fix)

    def _check_types(self) -> None:
        if self.layout.rating is None:
            raise DataError(
                where=self.argument,
                argument="rating",
                expected=f"a column of ratings that is not a feature, called {', '.join(RATING_NAMES)}",
                got=f"the columns {', '.join(self.names)}",
                fix="name yours with rating=",
            )
        parts.check_ids(self.held[self.layout.query], self.layout.query, self.argument)
        for name in (self.layout.rating, *self.layout.weights, *self.layout.features):
            kind = self.held[name].type
            if self.held[name].what in ("integers", "numbers"):
                continue
            if name in self.layout.features:
                is_vector = self.held[name].what == "vectors"
                fix = "make a column of each element" if is_vector else "encode it as numbers"
                raise parts.not_numbers(self.argument, name, kind, fix)
            role = "rating" if name == self.layout.rating else None
            expected = f"numbers in column {name!r}"
            raise DataError(where=self.argument, argument=role, expected=expected, got=kind, fix="cast it")

    def column(self, name: str) -> Any:
        """A column; decimals and booleans as numbers."""
        from pyspark.sql import functions

        column = functions.col(f"column_{self.names.index(name)}")
        return column.cast("double") if self.held[name].type.startswith(("decimal", "boolean")) else column

    def _counted(self) -> Any:
        """The queries sorted by id: documents, those whose rating is not null, and those whose rating is known."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import functions

        rating = self.column(str(self.layout.rating))
        known = functions.when(~functions.isnan(rating.cast("double")), rating)
        counts = {"documents": "*", "rated": rating, "judged": known}
        counted = self.data.groupBy(self.column(self.layout.query).alias("id")).agg(
            *(functions.count(values).alias(name) for name, values in counts.items())
        )
        try:
            return counted.orderBy("id").toArrow()
        except (PySparkException, Py4JError) as error:
            expected, got = "rows that Spark can compute", f": {_essence(error)}"
            raise DataError(where=self.argument, expected=expected, got=got) from error

    def part(self, edges: Counts, is_valid: bool) -> _Expected:
        """How the tasks read their rows."""
        return _Expected(self.columns, list(self.layout.weights), parts.counts_of(self.lengths, edges), is_valid)

    def rows(self, edges: Counts, is_valid: bool) -> Any:
        """The rows with the task that each goes to, and only the needed columns."""
        from pyspark.sql import functions

        starts = [self.ids[int(edge)].as_py() for edge in edges[1:-1]]
        task = _place(self.column(self.layout.query), starts, 0)
        chosen = [self.column(name).alias(plain) for name, plain in _plain_names(self.columns).items()]
        chosen += [self.column(weight).alias(weight) for weight in self.layout.weights]
        flag = functions.lit(is_valid).alias(HELD_OUT)
        return self.data.select(*chosen, task.cast("int").alias(TASK), flag)


def _plain_names(columns: dict[str, Any]) -> dict[str, str]:
    """Names for columns on their way to Python, each once: Spark cannot look up names with dots there.

    >>> _plain_names({"query": "qid", "rating": "grade", "features": ["price.net", "qid"]})
    {'qid': 'column_0', 'grade': 'column_1', 'price.net': 'column_2'}
    """
    names = dict.fromkeys([columns["query"], columns["rating"], *columns["features"]])
    return {name: f"column_{k}" for k, name in enumerate(names)}


def _place(column: Any, starts: Sequence[Any], before: int) -> Any:
    """The part of a query, as a tree of comparisons; ``starts`` are the first ids of the parts."""
    from pyspark.sql import functions

    if not starts:
        return functions.lit(before)
    middle = len(starts) // 2
    left, right = starts[:middle], starts[middle + 1 :]
    return functions.when(column < functions.lit(starts[middle]), _place(column, left, before)).otherwise(
        _place(column, right, before + middle + 1)
    )


# The driver


def open_cluster(data: Any, valid: Any, client: Any, tasks: int | None = None) -> SparkCluster:
    """The tasks of one stage, as many as the caller wants or the cluster can run at the same time.

    Spark itself would check that number every 15 seconds, 40 times, before it gave up.
    """
    java = _context_of(data, "data").sc()
    if valid is not None:
        _context_of(valid, "valid")
        _check_bounded(valid, "valid")
    _check_bounded(data, "data")
    conf = data.sparkSession.sparkContext.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        raise ParameterError(
            "Spark cannot run a barrier stage with dynamic allocation",
            fix="set spark.dynamicAllocation.enabled=false and a number of executors",
        )
    n_slots = int(java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()))
    n_tasks = n_slots if tasks is None else as_whole("tasks", tasks)
    if n_tasks > n_slots:
        expected = f"at most {n_slots}, which this cluster can run at the same time"
        fix = "add executors or cores, lower spark.task.cpus, or ask for fewer tasks"
        raise ParameterError(argument="tasks", expected=expected, got=str(n_tasks), fix=fix)
    return SparkCluster(n_tasks)


class SparkCluster(parts.Cluster):
    """The tasks of a barrier stage: Spark ends all of them if one is lost."""

    member = "task"

    def __init__(self, size: int) -> None:
        self.size = size
        self.type_of_ids = ""

    def source(self, data: Any, argument: str, columns: dict[str, Any]) -> _SparkRows:
        """The source of the data. The rows of all go through one shuffle, so their ids have to be alike."""
        source = _SparkRows(data, argument, columns)
        kind = source.held[source.layout.query].type
        if self.type_of_ids and (kind == "string") != (self.type_of_ids == "string"):
            expected, got = f"ids of type {self.type_of_ids}, as in data", f"{kind} in column {source.layout.query!r}"
            raise DataError(where=argument, argument="query", expected=expected, got=got, fix="cast them")
        self.type_of_ids = kind
        return source

    def run(self, training: FitJob, sources: Sequence[_SparkRows], cuts: Sequence[Counts]) -> list[Answer]:
        """Train in all tasks at the same time: one partition for each, as a barrier stage reads one shuffle."""
        from py4j.protocol import Py4JError
        from pyspark import cloudpickle
        from pyspark.errors import PySparkException

        given = [(source, edges, k > 0) for k, (source, edges) in enumerate(zip(sources, cuts, strict=True))]
        job = Job(training, [source.part(edges, is_valid) for source, edges, is_valid in given])
        rows, *others = (source.rows(edges, is_valid) for source, edges, is_valid in given)
        for more in others:
            rows = rows.unionByName(more, allowMissingColumns=True)  # one may lack weights
        stage = rows.repartitionById(training.size, TASK).mapInArrow(job.run, "task int, content binary", barrier=True)
        try:
            # The last stage of a Spark job: it ends if a task is lost, and is not started again.
            answers = _collected(stage)
        except (PySparkException, Py4JError) as error:
            raise training.loss("a task", _essence(error)) from error
        found = [cloudpickle.loads(bytes(row.content)) for row in sorted(answers, key=lambda row: row.task)]
        first = parts.cause([one for one in found if isinstance(one, TierankError)])
        if first is not None:
            raise first
        return found


def _collected(stage: Any) -> list[Any]:
    """The rows of a stage. If the caller is interrupted, the stage ends: it could run for hours.

    Spark's own handler of interrupts cancels the jobs that run at that moment, and misses one that is about to start.
    """
    from py4j.protocol import Py4JError
    from pyspark import InheritableThread

    context, tag, rows = stage.sparkSession.sparkContext, f"tierank-{uuid4()}", Future[list[Any]]()

    def collect() -> None:
        try:
            context.addJobTag(tag)
            rows.set_result(stage.collect())
        except BaseException as error:
            rows.set_exception(error)

    thread = InheritableThread(target=collect, daemon=True)
    thread.start()
    try:
        return rows.result()
    except KeyboardInterrupt:
        with suppress(Py4JError):  # Spark has ended
            while thread.is_alive():
                context.cancelJobsWithTag(tag)
                thread.join(_LOOK)
        raise


def _essence(error: Exception) -> str:
    """The most informative line of Spark's message: which task was lost, and the last output of its Python process."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    signs = ("Barrier", "Lost task", "Could not recover")
    essence = next((line for line in lines if any(sign in line for sign in signs)), lines[0])
    if "thrown from the Python worker" in essence:  # the caller's own function: its error is the end of a traceback
        essence = next((line for line in reversed(lines) if _ERROR.match(line)), essence)
    return essence if len(essence) <= 400 else f"{essence[:400]}..."


# Code that runs on the executors


@dataclass(frozen=True)
class Job:
    """The work of the tasks of one fit. An error is the answer of its task, so that the driver can report it."""

    training: FitJob
    parts: list[_Expected]

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Read the rows, train with the other tasks, and answer."""
        import pyarrow
        from pyspark import BarrierTaskContext, cloudpickle  # theirs knows the caller's classes, which came by it

        context = BarrierTaskContext.get()
        number, hosts = context.partitionId(), [one.address.rpartition(":")[0] for one in context.getTaskInfos()]
        place, answer = f" on {hosts[number]}", cast("Answer | TierankError | None", None)
        where = f"task {number} of {self.training.size}{place}"
        try:
            table = pyarrow.Table.from_batches(batches)
            data = [data_set(table, part, number) for part in self.parts]
        except Exception as error:
            answer = error.at(where) if isinstance(error, TierankError) else self.training.failure(where, error)
        meeting = open_meeting() if number == 0 else None
        met = [json.loads(one) for one in context.allGather(json.dumps([meeting and meeting.port, answer is None]))]
        if answer is None and not all(has_data for _, has_data in met):
            answer = TeamError.left_alone("another task has no data to train with", where=where)
        if answer is None:
            try:
                answer = self.training.answer(number, f"{hosts[0]}:{met[0][0]}", data, context.cpus(), place)
            except TierankError as error:
                answer = error
        content = pyarrow.array([cloudpickle.dumps(answer)], pyarrow.binary())
        yield pyarrow.RecordBatch.from_arrays([pyarrow.array([number], pyarrow.int32()), content], ["task", "content"])


def data_set(table: Any, part: _Expected, number: int) -> RankingDataset:
    """The rows of one of the two data sets, grouped by query, with queries ordered by id."""
    import pyarrow.compute

    rows = table.filter(pyarrow.compute.equal(table.column(HELD_OUT), part.is_valid))
    names = _plain_names(part.names)
    names |= {weight: weight for weight in part.weights if weight not in names}  # one may be a feature, too
    rows = take_columns(rows, list(names.values())).rename_columns(list(names))
    data = read(rows, **part.names) if len(rows) else None
    return parts.sorted_by_id(parts.complete(data, part.counts[number]))


# Scoring


def add_scores(ranker: Ranker, data: Any, layout: Layout, needs_list: bool, score: str) -> Any:
    """The Spark DataFrame with a column of scores."""
    session, names = data.sparkSession, list(data.columns)
    for field in data.schema.fields:
        if type(field.dataType).__name__ in _NOT_PASSED:
            got, fix = f"{field.dataType.simpleString()} in column {field.name!r}", "drop it, or cast it to a string"
            raise DataError(where="data", expected="columns that Spark can pass to Python", got=got, fix=fix)
    other = next((name for name in names if name.lower() == score.lower()), None)
    if other is not None and session.conf.get("spark.sql.caseSensitive") != "true":
        got = f"{score!r}, which Spark does not distinguish from {other!r}"
        raise ParameterError(argument="score", expected="the name of a new column", got=got)
    plain, query = _numbered(data), None
    if needs_list:
        _check_bounded(data, "data", "a list may go on in the next batch: score each one with foreachBatch")
        query = f"column_{names.index(layout.query)}"
        plain = plain.repartition(query).sortWithinPartitions(query)
    held = session.sparkContext.broadcast(ranker)

    def scored(batches: Iterator[Any]) -> Iterator[Any]:
        """Each batch with a column of scores; batches are whole queries if the ranker needs them."""
        import pyarrow
        from pyspark import TaskContext

        scoring = held.value
        if getattr(scoring, "n_jobs", 0) is None:
            scoring.n_jobs = TaskContext.get().cpus()
        each = (pyarrow.Table.from_batches([batch]) for batch in batches if len(batch))
        for table in each if query is None else parts.whole_queries(batches, query):
            scores = parts.score_table(scoring, table.rename_columns(names), layout, needs_list)
            yield from table.append_column("score", scores).to_batches()

    schema = type(plain.schema)([*plain.schema.fields]).add("score", "double")
    return plain.mapInArrow(scored, schema).toDF(*names, score)
