"""Spark: training in the tasks of a barrier stage, and scoring in Arrow batches."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.base import clone

from tierank.distributed.parts import Training, check_settings_of
from tierank.distributed.processes import TIMEOUT
from tierank.distributed.scored_tables import scored_columns
from tierank.distributed.spark_tasks import ANSWER, HELD_OUT, KINDS, REPORT, TASK, Job, Part, Scorer, Task, plain_names
from tierank.errors import DataError, ParameterError, TeamError, TierankError
from tierank.extras import needing, require
from tierank.files import as_path
from tierank.kinds import Columns
from tierank.models import write_folder
from tierank.rankers import Ranker, load
from tierank.readers.columns import Layout
from tierank.settings import as_positive, as_whole
from tierank.team import cut_queries

R = TypeVar("R", bound=Ranker)

# The types that query ids can have.
_IDS = ("tinyint", "smallint", "int", "bigint", "string")


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
        and its ``takes_parts`` is False; then each task gathers all data.
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
    as_positive("timeout", timeout)
    check_settings_of(ranker)
    n_slots = _slots(session)
    n_wanted = n_slots if tasks is None else as_whole("tasks", tasks)
    if n_wanted > n_slots:
        raise ParameterError(
            argument="tasks",
            expected=f"at most {n_slots}, which this cluster can run at the same time",
            got=str(n_wanted),
            fix="add executors or cores, lower spark.task.cpus, or ask for fewer tasks",
        )
    columns = {"query": query, "rating": rating, "features": None if features is None else list(features)}
    sources = [_Source(data, "data", columns)]
    if valid is not None:
        _session_of(valid, "valid")
        named = sources[0].layout
        columns = {"query": named.query, "rating": named.rating, "features": named.features}
        sources.append(_Source(valid, "valid", columns))
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
        One row per document.
    query : str, optional
        The column of query ids. Default: as in ``read``. Not needed if documents are scored one by one.
    features : list of str, optional
        The feature columns. Default: the names that the ranker was trained with, or all columns without another role.
    score : str, default "score"
        The name of the new column.

    Returns
    -------
    pyspark.sql.DataFrame
        The rows of ``data``, in any order, with their scores. As usual in Spark, it is computed lazily.

    Examples
    --------
    .. code-block:: python

        scored = tierank.distributed.predict(ranker, spark.read.parquet("candidates"), query="session")
        scored.write.parquet("scores")
    """
    session = _session_of(data, "data")
    layout, needs_list = scored_columns(ranker, data.columns, query, features, score)
    if needs_list:
        data = data.repartition(_quoted(layout.query)).sortWithinPartitions(_quoted(layout.query))
    scorer = Scorer(session.sparkContext.broadcast(ranker), layout, list(data.columns), needs_list)
    plain = data.toDF(*(f"column_{k}" for k in range(len(data.columns))))
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
    return data.sparkSession


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

    def __init__(self, data: Any, argument: str, columns: dict[str, Any]) -> None:
        from pyspark.sql import functions

        self.data, self.argument = data, argument
        self.layout = Layout.of(list(data.columns), argument, declared=Columns(), **columns)
        if self.layout.rating is None:
            raise DataError(f"{argument}: expected a column of ratings, got the columns {', '.join(data.columns)}")
        self._check_types()
        column = functions.col(_quoted(self.layout.query))
        rated = functions.count(functions.col(_quoted(self.layout.rating)))
        counted = data.groupBy(column.alias("id")).agg(functions.count("*").alias("documents"), rated.alias("rated"))
        table = counted.orderBy("id").toArrow()
        self.ids = table.column("id")
        self.lengths = table.column("documents").to_numpy().astype(np.int64)
        n_unrated = int(self.lengths.sum() - table.column("rated").to_numpy().sum())
        if not len(self.lengths):
            raise DataError(f"{argument}: expected at least one row, got none")
        if self.ids.null_count:  # nulls are sorted first
            raise DataError(
                where=argument,
                argument="query",
                expected=f"an id in every row of column {self.layout.query!r}",
                got=f"{self.lengths[0]:,} rows without one",
                fix="drop them",
            )
        if n_unrated:
            raise DataError(
                where=argument,
                argument="rating",
                expected=f"a number in every row of column {self.layout.rating!r}",
                got=f"{n_unrated:,} rows without one",
                fix="make them NaN if these documents are unjudged, or drop them",
            )

    def _check_types(self) -> None:
        kinds = {field.name: field.dataType.simpleString() for field in self.data.schema.fields}
        if kinds[self.layout.query] not in _IDS:
            raise DataError(
                where=self.argument,
                argument="query",
                expected=f"integers or strings in column {self.layout.query!r}",
                got=kinds[self.layout.query],
                fix="cast it",
            )
        for name in (*self.numbers, *self.layout.features):
            if not kinds[name].startswith((*_IDS[:-1], "float", "double", "decimal", "boolean")):
                raise DataError(
                    where=self.argument,
                    argument="features" if name in self.layout.features else None,
                    expected=f"numbers in column {name!r}",
                    got=kinds[name],
                    fix="encode it as numbers, or leave it out of `features`",
                )

    @property
    def numbers(self) -> list[str]:
        """The columns of ratings and weights."""
        return [str(self.layout.rating), *self.layout.weights]

    def edges(self, n_tasks: int) -> Any:
        """Where the sorted queries are split into one part per task."""
        return cut_queries(np.concatenate([[0], self.lengths.cumsum()]), n_tasks)

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
        task = _place(functions.col(_quoted(self.layout.query)), starts, 0)
        kinds = {field.name: field.dataType.typeName() for field in self.data.schema.fields}
        chosen = []
        names = plain_names([self.layout.query, str(self.layout.rating), *self.layout.features])
        for name, plain in (names | {weight: weight for weight in self.layout.weights}).items():
            column = functions.col(_quoted(name))
            chosen.append((column.cast("double") if kinds[name] in ("decimal", "boolean") else column).alias(plain))
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
    number = min(wanted, *(len(source.lengths) for source in sources))
    if number < wanted:
        logger.warning(
            "tierank: %d of %d tasks are used: there are no more queries, and each needs one", number, wanted
        )
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


def _quoted(name: str) -> str:
    """The quoted name of a column: Spark reads a dot as the field of a struct."""
    return f"`{name.replace('`', '``')}`"


# The driver: the stage and its results


def _answers(job: Job, rows: Any) -> list[Any]:
    """The answers of the tasks."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        # The last stage of a job: Spark ends the job if one of its tasks is lost, and does not start the stage again.
        answers: list[Any] = rows.mapInArrow(Task(job).run, ANSWER, barrier=True).collect()
    except (PySparkException, Py4JError) as error:
        raise TeamError(
            f"a task was lost: expected all {job.training.size} tasks to stay until fit is done, got:"
            f" {_essence(error)}; {job.advice}"
        ) from error
    return answers


def _essence(error: Exception) -> str:
    """The most informative line of Spark's message: which task was lost, and the last output of its Python process."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = next(
        (line for line in lines if "Barrier" in line or "Lost task" in line or "Could not recover" in line), None
    )
    essence = ours or (lines[0] if lines else type(error).__name__)
    return essence if len(essence) <= 400 else f"{essence[:400]}..."


def _trained(ranker: R, job: Job, answers: Sequence[Any]) -> R:
    """The fitted ranker. Raises the error of the task that failed first, if one did."""
    reports = {row.task: json.loads(bytes(row.content)) for row in answers if row.name == REPORT}
    errors = [_error(reports[task], task, job) for task in sorted(reports) if "message" in reports[task]]
    if errors:
        raise next((e for e in errors if not (isinstance(e, TeamError) and e.is_left_alone)), errors[0])
    digests = [report["digest"] for report in reports.values()]
    if len(set(digests)) > 1:
        raise TeamError(f"expected the same model in all tasks, got different ones: {digests}; please report it")
    files = {row.name: bytes(row.content) for row in answers if row.name != REPORT}
    settings = ranker.get_params(deep=False).values()
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder) / "model", files)
        loaded = load(
            Path(folder) / "model",
            rankers=[type(ranker)],
            networks=[value for value in settings if isinstance(value, type)],
            transforms=[type(value) for value in settings if hasattr(value, "transform")],
        )
    if reports[0]["processes"] is not None:  # a saved model does not name the processes that took part
        vars(loaded.model_)["processes"] = reports[0]["processes"]
    fitted: R = clone(ranker)
    fitted.hold(loaded.model_, loaded.seen_)  # with the caller's own losses and metrics, which files do not hold
    return fitted


def _error(report: dict[str, Any], task: int, job: Job) -> TierankError:
    """The error of a task, with the task's name."""
    kind = KINDS.get(report["kind"])
    where = f"task {task} of {job.training.size} on {report['host']}"
    if kind is None:
        return TeamError(f"{where} failed: expected it to succeed, got {report['message']}; {job.advice}")
    error: TierankError = kind(report["message"], where=where)
    if isinstance(error, TeamError):
        error.is_left_alone = report["is_left_alone"]
    return error
