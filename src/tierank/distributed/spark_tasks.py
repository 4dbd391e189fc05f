"""The code that runs on Spark's executors: training in a barrier stage, and scoring of batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tierank.dataset import RankingDataset
from tierank.distributed.parts import Training, advice
from tierank.distributed.processes import open_meeting
from tierank.distributed.scored_tables import score_table, whole_queries
from tierank.errors import DataError, ParameterError, TeamError, TierankError
from tierank.readers import read
from tierank.readers.columns import Layout
from tierank.tables import take_columns

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
        return (ranker.model_files() if number == 0 else {}) | {REPORT: json.dumps(report).encode()}


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
            f"expected {part.n_queries[number]:,} queries with {part.n_documents[number]:,} documents, got"
            f" {counts[0]:,} with {counts[1]:,}; the data changed while they were read: persist or write them first"
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
