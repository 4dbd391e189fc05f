"""The code that runs on Spark's executors: training in a barrier stage, and scoring of batches.

Spark: training in the tasks of a barrier stage, and scoring in Arrow batches.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from uuid import uuid4

import numpy as np
from sklearn.base import clone

from tierank.data.columns import Columns
from tierank.data.dataset import RankingDataset
from tierank.data.tables import take_columns
from tierank.distributed.parts import (
    Holds,
    Training,
    advice,
    check_settings_of,
    cut_parts,
    named_columns,
    not_numbers,
    number_of_parts,
    score_table,
    scored_columns,
    skips_unjudged,
    whole_queries,
)
from tierank.distributed.processes import TIMEOUT, open_meeting
from tierank.errors import DataError, ParameterError, TeamError, TierankError
from tierank.extras import needing, require
from tierank.files import as_path
from tierank.io import read
from tierank.io.layout import RATING_NAMES, Layout
from tierank.rankers.base import Ranker, fitted_copy, model_files
from tierank.rankers.folder import MODEL
from tierank.rankers.model import SavedModel, Seen
from tierank.settings import as_positive, as_whole

# The columns that fit adds: the task that a row goes to, and whether the row is of the validation data.
TASK, HELD_OUT = "tierank_task", "tierank_valid"
# The answer of each task: a report, and from the first one the files of the model.
ANSWER = "task int, name string, content binary"
REPORT = "report"
# Errors that keep their class on the way to the driver.
KINDS = {kind.__name__: kind for kind in (DataError, ParameterError, TeamError)}


@dataclass(frozen=True)
class Part:
    """What the tasks expect among their rows, for the training or the validation data."""

    names: dict[str, Any]
    weights: list[str]
    n_queries: list[int]
    n_documents: list[int]
    is_valid: bool


@dataclass(frozen=True)
class Job:
    """The arguments that the tasks of one fit share."""

    training: Training
    parts: list[Part]

    @property
    def advice(self) -> str:
        """How to continue after a failure."""
        return advice(self.training.checkpoint)


def plain_names(names: Sequence[str]) -> dict[str, str]:
    """Names for columns on their way to Python, each once: Spark cannot look up names with dots there.

    >>> plain_names(["qid", "price.net"])
    {'qid': 'column_0', 'price.net': 'column_1'}
    """
    return {name: f"column_{k}" for k, name in enumerate(dict.fromkeys(names))}


class Task:
    """The work of one task of the barrier stage. Errors are part of its answer, so that the driver can report them."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Read the rows, train with the other tasks, and answer."""
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        number = context.partitionId()
        hosts = [info.address.rpartition(":")[0] for info in context.getTaskInfos()]
        try:
            data, failure = self._own(batches, number), None
        except Exception as error:
            data, failure = [], error
        meeting = open_meeting() if number == 0 else None
        met = context.allGather(json.dumps([meeting and meeting.port, failure is None]))
        port, answers = json.loads(met[0])[0], {}
        try:
            if failure is not None:
                raise failure
            if not all(json.loads(words)[1] for words in met):
                raise TeamError.left_alone("another task has no data to train with")
            answers = self._train(data, number, f"{hosts[0]}:{port}", context.cpus())
        except Exception as error:
            answers = {REPORT: json.dumps(_described(error, hosts[number])).encode()}
        yield _batch(number, answers)

    def _own(self, batches: Iterator[Any], number: int) -> list[RankingDataset]:
        """The data sets of this task: training, and validation if there is one."""
        import pyarrow

        table = pyarrow.Table.from_batches(batches)
        return [_data_set(table, part, number) for part in self.job.parts]

    def _train(self, data: list[RankingDataset], number: int, address: str, threads: int) -> dict[str, bytes]:
        """Train; returns the files of the model (only from the first task) and a report with their digest."""
        ranker = self.job.training.fit_part(number, address, data, threads)
        report = {"digest": ranker.model_.digest(), "processes": getattr(ranker, "team_", None)}
        return (model_files(ranker) if number == 0 else {}) | {REPORT: json.dumps(report).encode()}


def _data_set(table: Any, part: Part, number: int) -> RankingDataset:
    """The rows of one of the two data sets, grouped by query, with queries ordered by id."""
    import pyarrow.compute

    rows = table.filter(pyarrow.compute.equal(table.column(HELD_OUT), part.is_valid))
    names = plain_names([part.names["query"], part.names["rating"], *part.names["features"]])
    names |= {weight: weight for weight in part.weights if weight not in names}  # one may be a feature, too
    rows = take_columns(rows, list(names.values())).rename_columns(list(names))
    data = read(rows, **part.names) if len(rows) else None
    counts = (0, 0) if data is None else (data.n_queries, data.n_documents)
    if data is None or counts != (part.n_queries[number], part.n_documents[number]):
        raise DataError(
            expected=f"{part.n_queries[number]:,} queries with {part.n_documents[number]:,} documents",
            got=f"{counts[0]:,} with {counts[1]:,}",
            fix="the data changed while they were read: persist or write them first",
        )
    return data.select(np.argsort(data.query_ids, kind="stable"))


def _described(error: Exception, host: str) -> dict[str, Any]:
    """An error as a report for the driver."""
    kind = next((name for name, kind in KINDS.items() if isinstance(error, kind)), "")
    message = str(error) if isinstance(error, TierankError) else repr(error)
    return {"kind": kind, "message": message, "host": host, "is_left_alone": getattr(error, "is_left_alone", False)}


def _batch(number: int, answers: dict[str, bytes]) -> Any:
    import pyarrow

    tasks = pyarrow.array([number] * len(answers), pyarrow.int32())
    contents = pyarrow.array(list(answers.values()), pyarrow.binary())
    return pyarrow.RecordBatch.from_arrays([tasks, pyarrow.array(list(answers)), contents], ["task", "name", "content"])


class Scorer:
    """Scores the rows of one partition."""

    def __init__(self, held: Any, layout: Layout, names: list[str], needs_list: bool) -> None:
        self.held, self.layout, self.names, self.needs_list = held, layout, names, needs_list

    def score_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Each batch with a column of scores; batches are whole queries if the ranker needs them."""
        import pyarrow
        from pyspark import TaskContext

        ranker = self.held.value
        if getattr(ranker, "n_jobs", 0) is None:
            ranker.n_jobs = TaskContext.get().cpus()
        if self.needs_list:
            tables = whole_queries(batches, f"column_{self.names.index(self.layout.query)}")
        else:
            tables = (pyarrow.Table.from_batches([batch]) for batch in batches if len(batch))
        for table in tables:
            scores = score_table(ranker, table.rename_columns(self.names), self.layout, self.needs_list)
            yield from table.append_column("score", scores).to_batches()


R = TypeVar("R", bound=Ranker)

# The last line of a traceback: the class of the error, and what it says.
_ERROR = re.compile(r"[\w.]+: ")
# Seconds between attempts to end a stage.
_LOOK = 1.0

# The types that query ids can have, those of numbers, and those by which rows can be gathered for scoring. Texts with
# a collation are none of them: Spark would take different texts for the same id.
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_IDS = (*_INTEGERS, "string")
_NUMBERS = (*_INTEGERS, "float", "double", "decimal", "boolean")
_GATHERED = (*_IDS, "float", "double", "decimal", "boolean", "binary", "date", "timestamp", "timestamp_ntz")
# Types that Spark does not pass to Python in Arrow batches.
_NOT_PASSED = ("YearMonthIntervalType", "CalendarIntervalType")


def is_spark(data: Any) -> bool:
    """Whether this is a Spark DataFrame; pyspark is not imported to find out."""
    return any(c.__name__ == "DataFrame" and c.__module__.startswith("pyspark.sql.") for c in type(data).__mro__)


def fit(
    ranker: R,
    data: Any,
    *,
    valid: Any = None,
    tasks: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
    timeout: float = TIMEOUT,
    query: str | None = None,
    rating: str | None = None,
    features: Sequence[str] | None = None,
) -> R:
    """Train a ranker in the tasks of one barrier stage of Spark.

    Rows are gathered by query on the executors; the driver sees query ids, counts and the fitted model. The queries are
    sorted by id and split into one part per task, with about the same number of documents. The model depends on the
    rows and the number of tasks, not on partitions, their order or the machines.

    Parameters
    ----------
    ranker : Ranker
        The ranker to train; it is not changed. Each task holds only its part of the data, unless the ranker is your own
        and ``parts`` is not among its capabilities; then each task gathers all data.
    data : pyspark.sql.DataFrame
        One row per document, with columns as ``read`` knows them. It is read twice: to count, and to train.
    valid : pyspark.sql.DataFrame, optional
        Validation data with the same columns.
    tasks : int, optional
        Number of tasks that train together. Default: all that the cluster can run at the same time. Rounding depends on
        it, so set it for reproducible models.
    checkpoint : path, optional
        A folder on a disk that all executors share, where the first task writes the state of training. A later call
        continues from it, with any number of tasks.
    progress : bool, default False
        Show progress, in the log of the first task's executor.
    timeout : float, default 600
        Seconds that a task waits for the others before it gives up.
    query, rating : str, optional
        The columns of query ids (integers or strings) and ratings.
    features : list of str, optional
        The feature columns, which must be numbers. Default: all columns without another role.

    Returns
    -------
    Ranker
        A fitted copy of ``ranker``.

    Raises
    ------
    DataError
        If a column is missing or of a type that cannot be used, or a row has no query id or no rating.
    ParameterError
        If the cluster cannot run that many tasks at the same time.
    TeamError
        If a task failed or was lost.

    Examples
    --------
    .. code-block:: python

        train = spark.read.parquet("train")
        ranker = tierank.distributed.fit(tierank.UMart(), train, query="session", rating="grade", tasks=8)
    """
    session = _session_of(data, "data")
    for argument, frame in {"data": data, "valid": valid}.items():
        if frame is not None:
            _session_of(frame, argument)
            _check_bounded(frame, argument)
    as_positive("timeout", timeout)
    check_settings_of(ranker)
    _check_restores(ranker)
    columns = named_columns(query, rating, features)
    n_slots = _slots(session)
    n_wanted = n_slots if tasks is None else as_whole("tasks", tasks)
    if n_wanted > n_slots:
        raise ParameterError(
            argument="tasks",
            expected=f"at most {n_slots}, which this cluster can run at the same time",
            got=str(n_wanted),
            fix="add executors or cores, lower spark.task.cpus, or ask for fewer tasks",
        )
    sources = [_Source(data, "data", columns, skips_unjudged(ranker))]
    if valid is not None:
        named = sources[0].layout
        columns = {"query": named.query, "rating": named.rating, "features": named.features}
        sources.append(_Source(valid, "valid", columns))
        sources[1].check_ids_as_in(sources[0])
    n_tasks = _number_of_tasks(n_wanted, sources)
    kept = None if checkpoint is None else as_path(checkpoint, "checkpoint", "the name of a folder").absolute()
    training = Training(clone(ranker), n_tasks, timeout, kept, progress)
    job = Job(training, [source.part(n_tasks, sources[0]) for source in sources])
    return _trained(ranker, job, _answers(job, _rows(sources, n_tasks)))


def predict(
    ranker: Ranker,
    data: Any,
    *,
    query: str | None = None,
    features: Sequence[str] | None = None,
    score: str = "score",
) -> Any:
    """Score the rows of a Spark DataFrame on the executors, in Arrow batches.

    If scores depend on the other documents of the query (``query_features``, transforms per query, Blend), rows are
    first gathered by query. Otherwise rows are scored where they are.

    Parameters
    ----------
    ranker : Ranker
        A fitted ranker.
    data : pyspark.sql.DataFrame
        One row per document. It may be a stream if documents are scored one by one.
    query : str, optional
        The column of query ids. Default: as in ``read``. Not needed if documents are scored one by one.
    features : list of str, optional
        The feature columns. Default: the names that the ranker was trained with, or all columns without another role.
    score : str, default "score"
        The name of the new column.

    Returns
    -------
    pyspark.sql.DataFrame
        The rows of ``data``, in any order, with their scores. As usual in Spark, it is computed lazily. Columns and
        their types are checked at once; what single rows hold (no query id, an infinite value) when they are scored.

    Examples
    --------
    .. code-block:: python

        scored = tierank.distributed.predict(ranker, spark.read.parquet("candidates"), query="session")
        scored.write.parquet("scores")
    """
    session = _session_of(data, "data")
    types = _types(data)
    held = {name: Holds(_content(kind), kind) for name, kind in types.items()}
    layout, needs_list = scored_columns(ranker, list(data.columns), held, query, features, score)
    _check_passed(data)
    _check_new(score, data.columns, session)
    plain = _numbered(data)
    if needs_list:
        _check_bounded(data, "data", "a list may go on in the next batch: score each one with foreachBatch")
        _check_gathered(layout.query, types[layout.query])
        column = f"column_{data.columns.index(layout.query)}"
        plain = plain.repartition(column).sortWithinPartitions(column)
    scorer = Scorer(session.sparkContext.broadcast(ranker), layout, list(data.columns), needs_list)
    schema = type(plain.schema)([*plain.schema.fields]).add("score", "double")
    return plain.mapInArrow(scorer.score_batches, schema).toDF(*data.columns, score)


# The driver: checks before anything runs


def _session_of(data: Any, argument: str) -> Any:
    """The session of a supported DataFrame."""
    if not is_spark(data):
        raise ParameterError(
            argument=argument,
            expected="a Spark DataFrame",
            got=type(data).__name__,
            fix="ranker.fit and ranker.predict take data in memory",
        )
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
    if data.sparkSession.sparkContext._jsc is None:
        raise ParameterError(argument=argument, expected="a DataFrame of a running session", got="one that was stopped")
    return data.sparkSession


def _check_bounded(data: Any, argument: str, fix: str = "write it to a table, and read that") -> None:
    if data.isStreaming:
        raise ParameterError(argument=argument, expected="a DataFrame with an end", got="a stream", fix=fix)


def _check_restores(ranker: Ranker) -> None:
    """Refuse rankers whose models cannot be read from files, before they train: the driver gets the files."""
    inner = [value for value in ranker.get_params().values() if isinstance(value, Ranker)]
    for one in (ranker, *inner):
        if type(one).restore_model is Ranker.restore_model:
            raise ParameterError(
                argument="ranker",
                expected="a ranker that can be saved and loaded",
                got=f"{type(one).__name__}, which does not define restore_model()",
                fix="define it: the model comes to the driver as files",
            )


def _types(data: Any) -> dict[str, str]:
    """The types of columns by name; a name that is used occurs once."""
    return {field.name: field.dataType.simpleString() for field in data.schema.fields}


def _is_of(kind: str, types: Sequence[str]) -> bool:
    """Whether a type is one of these; a decimal has digits after its name."""
    return (kind.partition("(")[0] if kind.startswith("decimal") else kind) in types


def _content(kind: str) -> str:
    """What a column of this type holds."""
    if _is_of(kind, _NUMBERS) or kind == "void":  # void: no value at all
        return "numbers"
    return "vectors" if kind.startswith("array") else "others"


def _numbered(data: Any) -> Any:
    """The DataFrame with numbered columns: Spark reads a dot in a name as a field, and ignores case."""
    return data.toDF(*(f"column_{k}" for k in range(len(data.columns))))


def _check_passed(data: Any) -> None:
    for field in data.schema.fields:
        if type(field.dataType).__name__ in _NOT_PASSED:
            raise DataError(
                where="data",
                expected="columns that Spark can pass to Python",
                got=f"{field.dataType.simpleString()} in column {field.name!r}",
                fix="drop it, or cast it to a string",
            )


def _check_new(score: str, names: Sequence[str], session: Any) -> None:
    """Refuse a name that Spark cannot tell from that of another column."""
    if session.conf.get("spark.sql.caseSensitive") == "true":
        return
    other = next((name for name in names if name.lower() == score.lower()), None)
    if other is not None:
        raise ParameterError(
            argument="score",
            expected="the name of a new column",
            got=f"{score!r}, which Spark does not distinguish from {other!r}",
        )


def _check_gathered(name: str, kind: str) -> None:
    if not _is_of(kind, _GATHERED):
        raise DataError(
            where="data", argument="query", expected=f"integers or strings in column {name!r}", got=kind, fix="cast it"
        )


def _slots(session: Any) -> int:
    """The number of tasks that the cluster can run at the same time, as Spark itself checks before a barrier stage.

    Spark would check every 15 seconds, 40 times, before it gave up.
    """
    conf = session.sparkContext.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        raise ParameterError(
            "Spark cannot run a barrier stage with dynamic allocation",
            fix="set spark.dynamicAllocation.enabled=false and a number of executors",
        )
    # pyspark has no public call for the number of tasks that can run at the same time.
    context = session.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


class _Source:
    """A DataFrame: the role of each column, and the sorted queries with their numbers of documents."""

    def __init__(self, data: Any, argument: str, columns: dict[str, Any], skips: bool = False) -> None:
        self.data, self.argument, self.names = _numbered(data), argument, list(data.columns)
        self.layout = Layout.of(self.names, argument, declared=Columns(), **columns)
        if self.layout.rating is None:
            raise DataError(
                where=argument,
                argument="rating",
                expected=f"a column of ratings that is not a feature, called {', '.join(RATING_NAMES)}",
                got=f"the columns {', '.join(self.names)}",
                fix="name yours with rating=",
            )
        self.types = _types(data)
        self._check_types()
        table = self._counted()
        self.ids = table.column("id")
        self.lengths = table.column("documents").to_numpy().astype(np.int64)
        self.counted = (table.column("judged").to_numpy() > 0) | (not skips)
        self._check_rows(int(self.lengths.sum() - table.column("rated").to_numpy().sum()))

    def column(self, name: str) -> Any:
        """A column; decimals and booleans as numbers."""
        from pyspark.sql import functions

        column = functions.col(f"column_{self.names.index(name)}")
        return column.cast("double") if _is_of(self.types[name], ("decimal", "boolean")) else column

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
            raise DataError(
                where=self.argument, expected="rows that Spark can compute", got=f": {_essence(error)}"
            ) from error

    def _check_rows(self, n_unrated: int) -> None:
        if not len(self.lengths):
            raise DataError(where=self.argument, expected="at least one row", got="none")
        if self.ids.null_count:  # nulls are sorted first
            raise DataError(
                where=self.argument,
                argument="query",
                expected=f"an id in every row of column {self.layout.query!r}",
                got=f"{self.lengths[0]:,} rows without one",
                fix="drop them",
            )
        if n_unrated:
            raise DataError(
                where=self.argument,
                argument="rating",
                expected=f"a number in every row of column {self.layout.rating!r}",
                got=f"{n_unrated:,} rows without one",
                fix="make them NaN if these documents are unjudged, or drop them",
            )

    def _check_types(self) -> None:
        kind = self.types[self.layout.query]
        if kind not in _IDS:
            raise DataError(
                where=self.argument,
                argument="query",
                expected=f"integers or strings in column {self.layout.query!r}",
                got=kind,
                fix="cast it",
            )
        for name in self.numbers:
            if not _is_of(self.types[name], _NUMBERS):
                raise DataError(
                    where=self.argument,
                    argument="rating" if name == self.layout.rating else None,
                    expected=f"numbers in column {name!r}",
                    got=self.types[name],
                    fix="cast it",
                )
        for name in self.layout.features:
            kind = self.types[name]
            if not _is_of(kind, _NUMBERS):
                is_vector = kind.startswith("array") or kind == "vector"
                fix = "make a column of each element" if is_vector else "encode it as numbers"
                raise not_numbers(self.argument, name, kind, fix)

    def check_ids_as_in(self, first: _Source) -> None:
        """Refuse ids that are texts here and integers there: the rows of both go through one shuffle."""
        kind, wanted = self.types[self.layout.query], first.types[first.layout.query]
        if (kind == "string") != (wanted == "string"):
            raise DataError(
                where=self.argument,
                argument="query",
                expected=f"ids of type {wanted}, as in {first.argument}",
                got=f"{kind} in column {self.layout.query!r}",
                fix="cast them",
            )

    @property
    def numbers(self) -> list[str]:
        """The columns of ratings and weights."""
        return [str(self.layout.rating), *self.layout.weights]

    def edges(self, n_tasks: int) -> Any:
        """Where the sorted queries are split into one part per task."""
        return cut_parts(self, n_tasks)

    def part(self, n_tasks: int, first: _Source) -> Part:
        """How the tasks read their rows."""
        edges = self.edges(n_tasks)
        documents = np.add.reduceat(self.lengths, edges[:-1])
        names = {"query": self.layout.query, "rating": self.layout.rating, "features": self.layout.features}
        return Part(names, list(self.layout.weights), np.diff(edges).tolist(), documents.tolist(), self is not first)

    def rows(self, n_tasks: int, is_valid: bool) -> Any:
        """The rows with the task that each goes to, and only the needed columns."""
        from pyspark.sql import functions

        starts = [self.ids[int(edge)].as_py() for edge in self.edges(n_tasks)[1:-1]]
        task = _place(self.column(self.layout.query), starts, 0)
        names = plain_names([self.layout.query, str(self.layout.rating), *self.layout.features])
        chosen = [self.column(name).alias(plain) for name, plain in names.items()]
        chosen += [self.column(weight).alias(weight) for weight in self.layout.weights]
        flag = functions.lit(is_valid).alias(HELD_OUT)
        return self.data.select(*chosen, task.cast("int").alias(TASK), flag)


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


def _rows(sources: Sequence[_Source], n_tasks: int) -> Any:
    """All rows, with one partition for each task. A barrier stage reads one shuffle: validation data are among them."""
    rows = sources[0].rows(n_tasks, False)
    for source in sources[1:]:
        rows = rows.unionByName(source.rows(n_tasks, True), allowMissingColumns=True)  # one may lack weights
    return rows.repartitionById(n_tasks, TASK)


def _number_of_tasks(wanted: int, sources: Sequence[_Source]) -> int:
    """The number of tasks that can have queries; warns if there are few, or if one query is too large."""
    logger = logging.getLogger("tierank")
    number = number_of_parts(wanted, sources, "tasks")
    for source in sources:
        largest = int(source.lengths.argmax())
        n_documents, share = int(source.lengths[largest]), source.lengths.sum() / number
        if number > 1 and n_documents > share:
            logger.warning(
                "tierank: %s: query %r has %s documents, more than the share of one of %d tasks (%s): the others will"
                " wait for its task, which needs memory for it; at most %d tasks have enough to do",
                source.argument, source.ids[largest].as_py(), f"{n_documents:,}", number, f"{int(share):,}",
                max(1, int(source.lengths.sum()) // n_documents),
            )  # fmt: skip
    return number


# The driver: the stage and its results


def _answers(job: Job, rows: Any) -> list[Any]:
    """The answers of the tasks."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        # The last stage of a job: Spark ends the job if one of its tasks is lost, and does not start the stage again.
        answers = _collected(rows.mapInArrow(Task(job).run, ANSWER, barrier=True))
    except (PySparkException, Py4JError) as error:
        raise TeamError(
            where="a task was lost",
            expected=f"all {job.training.size} tasks to stay until fit is done",
            got=f": {_essence(error)}",
            fix=job.advice,
        ) from error
    return answers


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
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = next(
        (line for line in lines if "Barrier" in line or "Lost task" in line or "Could not recover" in line), None
    )
    essence = ours or (lines[0] if lines else type(error).__name__)
    if "thrown from the Python worker" in essence:  # the caller's own function: its error is the end of a traceback
        essence = next((line for line in reversed(lines) if _ERROR.match(line)), essence)
    return essence if len(essence) <= 400 else f"{essence[:400]}..."


def _trained(ranker: R, job: Job, answers: Sequence[Any]) -> R:
    """The fitted ranker. Raises the error of the task that failed first, if one did."""
    reports = {row.task: json.loads(bytes(row.content)) for row in answers if row.name == REPORT}
    errors = [_error(reports[task], task, job) for task in sorted(reports) if "message" in reports[task]]
    if errors:
        raise next((e for e in errors if not (isinstance(e, TeamError) and e.is_left_alone)), errors[0])
    digests = [report["digest"] for report in reports.values()]
    if len(set(digests)) > 1:
        got = f"different ones: {digests}"
        raise TeamError(expected="the same model in all tasks", got=got, fix="please report it")
    files = {row.name: bytes(row.content) for row in answers if row.name != REPORT}
    description = json.loads(files.pop(MODEL.file))
    seen = Seen.from_json(description, files)
    model = clone(ranker).restore_model(SavedModel(seen, description["fitted"], files))
    if reports[0]["processes"] is not None:  # a saved model does not name the processes that took part
        vars(model)["processes"] = reports[0]["processes"]
    return cast("R", fitted_copy(ranker, model, seen))


def _error(report: dict[str, Any], task: int, job: Job) -> TierankError:
    """The error of a task, with the task's name."""
    kind = KINDS.get(report["kind"])
    where = f"task {task} of {job.training.size} on {report['host']}"
    if kind is None:
        return TeamError(where=f"{where} failed", expected="it to succeed", got=report["message"], fix=job.advice)
    error: TierankError = kind(report["message"], where=where)
    if isinstance(error, TeamError):
        error.is_left_alone = report["is_left_alone"]
    return error
