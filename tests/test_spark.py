"""Spark: the same bits as processes elsewhere, scores of whole queries, and errors instead of waiting."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tierank
from tierank import DataError, ParameterError, RankingDataset, TeamError, TreeRanker, UMart, URank
from tierank.distributed import fit, predict, spark
from tierank.distributed import parts as scored_tables
from tierank.distributed import spark as spark_tasks

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
    pytest.skip("Spark needs Java", allow_module_level=True)

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

# PySpark 4 says so of pandas 3, which is not used here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def session():
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": 50,  # queries go on in the next batch
        "spark.sql.shuffle.partitions": 2,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def parts():
    data = tierank.make_ranking(40, n_features=4, mean_length=10, max_length=20, missing=0.02, seed=1)
    return data.split(0.6, 0.4)


@pytest.fixture(scope="module")
def tables(session, parts):
    return [as_table(session, data) for data in parts]


def as_frame(data):
    columns = {f"feature_{k + 1}": data.features[:, k] for k in range(data.n_features)}
    ids = np.repeat(data.query_ids, data.lengths)
    return pd.DataFrame({"qid": ids, "document": [f"d{i}" for i in range(len(ids))], "rating": data.ratings, **columns})


def as_table(session, data, n_partitions=3):
    """The rows of a data set in random order, cut anywhere."""
    shuffled = pyarrow.Table.from_pandas(as_frame(data).sample(frac=1, random_state=0), preserve_index=False)
    return session.createDataFrame(shuffled).repartition(n_partitions)


def squares(failing=lambda: None):
    """A loss of the caller, which first does what it is told."""

    def loss(scores, batch):
        import torch

        failing()
        return torch.zeros(batch.n_queries).index_add(0, batch.query, (scores - batch.gains) ** 2)

    return loss


# Whole queries


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.lists(st.integers(0, 5), max_size=12))
def test_batches_become_whole_queries(lengths, cuts):
    ids = np.repeat([f"q{i}" for i in range(len(lengths))], lengths)
    whole = pyarrow.table({"x": np.arange(len(ids)), "id": ids})
    batches, start = [], 0
    for step in [*cuts, len(ids)]:
        batches += whole.slice(start, step).to_batches() or [pyarrow.RecordBatch.from_pylist([], whole.schema)]
        start += step
    found = list(scored_tables.whole_queries(iter(batches), "id"))
    assert pyarrow.concat_tables(found).to_pydict() == whole.to_pydict()
    of_tables = [set(table["id"].to_pylist()) for table in found]
    assert sum(len(names) for names in of_tables) == len(lengths)


def test_no_rows_are_no_queries():
    assert list(scored_tables.whole_queries(iter([]), "id")) == []
    batch = pyarrow.RecordBatch.from_pydict({"id": ["a", None]})
    with pytest.raises(DataError, match="query: expected an id in every row, got rows without one"):
        list(scored_tables.whole_queries(iter([batch]), "id"))


# Training

TWO_PROCESSES = """
import sys, tierank
train, valid = tierank.read(sys.argv[1]), tierank.read(sys.argv[2])
with tierank.distributed.join() as team:
    for ranker in (tierank.UMart(n_trees=12, patience=4, n_jobs=1), tierank.URank(max_epochs=2, n_jobs=1)):
        ranker.fit(train, valid=valid, team=team)
        if team.is_first:
            ranker.save(type(ranker).__name__)
"""


@pytest.fixture(scope="module")
def elsewhere(parts, tmp_path_factory):
    """Where two processes that torchrun might have started left their models."""
    folder = tmp_path_factory.mktemp("processes")
    for data, name in zip(parts, ("train", "valid"), strict=True):
        tierank.write(data, folder / f"{name}.tierank")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", TWO_PROCESSES, "train.tierank", "valid.tierank"]
    started = [subprocess.Popen(command, cwd=folder, env=os.environ | place | {"RANK": str(k)}) for k in range(2)]
    assert [process.wait() for process in started] == [0, 0]
    return folder


@pytest.mark.parametrize("ranker", [UMart(n_trees=12, patience=4), URank(max_epochs=2)], ids=["trees", "networks"])
def test_the_bits_are_those_of_two_processes(parts, tables, elsewhere, ranker):
    fitted = fit(ranker, tables[0], valid=tables[1])
    other = tierank.load(elsewhere / type(ranker).__name__)
    assert not hasattr(ranker, "model_")
    assert fitted.get_params() == ranker.get_params()
    assert fitted.history_ == other.history_
    assert fitted.best_ == other.best_
    assert fitted.feature_names_in_.tolist() == [f"feature_{k}" for k in range(1, 5)]
    for data in parts:
        qid = np.repeat(data.query_ids, data.lengths)
        np.testing.assert_array_equal(fitted.predict(data.features, qid=qid), other.predict(data.features, qid=qid))
    if isinstance(ranker, UMart):
        assert [process["rank"] for process in fitted.team_] == [0, 1]
        assert sum(process["documents"] for process in fitted.team_) == parts[0].n_documents
        assert len({process["pid"] for process in fitted.team_} - {os.getpid()}) == 2


def test_columns_of_all_kinds(session):
    """Ids as texts, decimals, booleans, weights, and a dot in a name; the order of rows changes nothing."""
    data = tierank.make_ranking(9, n_features=3, mean_length=8, max_length=12, seed=3)
    frame = as_frame(data)
    frame = frame.assign(session=[f"ü{i}`" for i in frame["qid"]], query_weight=1.0 + frame["qid"] % 3)
    frame["is.new"] = frame["feature_3"] > frame["feature_3"].median()
    table = session.createDataFrame(pyarrow.Table.from_pandas(frame, preserve_index=False))
    table = table.withColumn("price", sql.col("feature_2").cast("decimal(12,4)")).withColumnRenamed("rating", "grade")
    columns = {"query": "session", "rating": "grade", "features": ["feature_1", "price", "is.new"]}
    ranker = UMart(n_trees=3, min_documents=1)
    one = fit(ranker, table, **columns)
    held = fit(ranker, table.orderBy(sql.rand(5)).repartition(5), valid=table.drop("query_weight"), tasks=2, **columns)
    assert one.feature_names_in_.tolist() == columns["features"]
    assert [process["documents"] for process in one.team_] == [process["documents"] for process in held.team_]
    X = frame.assign(price=frame["feature_2"].round(4))[columns["features"]].astype(float)
    np.testing.assert_array_equal(one.predict(X), held.predict(X))
    alone = fit(ranker, table, tasks=1, **columns)
    local = RankingDataset(
        X.to_numpy(), frame["rating"], frame["session"], query_weight=frame["query_weight"].to_numpy(),
        feature_names=columns["features"],
    )  # fmt: skip
    local = UMart(n_trees=3, min_documents=1, n_jobs=1).fit(local)
    np.testing.assert_array_equal(alone.predict(X), local.predict(X))
    scored = predict(alone, table.select("document", *(f"`{name}`" for name in columns["features"])))
    assert sorted(row.score for row in scored.collect()) == sorted(alone.predict(X))


def test_names_that_spark_does_not_distinguish(session, parts):
    """Columns that differ in case only, twice the same name, and columns with two roles."""
    frame = as_frame(parts[0]).rename(columns={"feature_1": "x", "feature_2": "X"})[["qid", "rating", "x", "X"]]
    frame = frame.assign(Qid=1.0, row_weight=1.0 + frame["qid"] % 2)
    arrow = pyarrow.Table.from_pandas(frame, preserve_index=False)
    table = session.createDataFrame(arrow).select("*", sql.lit(1).alias("w"), sql.lit(2).alias("w"))
    ranker = UMart(n_trees=3, min_documents=1, n_jobs=1)
    for features in (["X", "x"], ["x", "row_weight"], ["x", "qid"]):
        fitted = fit(ranker, table, features=features, tasks=1)
        expected = ranker.fit(tierank.read(frame, features=features))
        assert fitted.feature_names_in_.tolist() == features
        assert fitted.model_.digest() == expected.model_.digest()
    whole = UMart(n_trees=2, query_features=True).fit(tierank.read(frame, features=["X"]))
    assert predict(whole, table, score="s").count() == len(frame)
    with pytest.raises(ParameterError, match="score: expected the name of a new column, got 'ROW_WEIGHT', which Spark"):
        predict(whole, table, score="ROW_WEIGHT")


@pytest.mark.parametrize("ranker", [UMart(n_trees=3), URank(max_epochs=2, n_jobs=1)], ids=["trees", "networks"])
def test_queries_without_ratings_change_nothing(session, parts, ranker):
    """The first half of the queries is unjudged: training skips them, and each task still has others."""
    frame = as_frame(parts[0]).drop(columns="document")
    is_judged = frame["qid"] > frame["qid"].median()
    judged = session.createDataFrame(pyarrow.Table.from_pandas(frame[is_judged], preserve_index=False))
    rating = sql.when(sql.col("qid") > float(frame["qid"].median()), sql.col("rating")).otherwise(float("nan"))
    whole = session.createDataFrame(pyarrow.Table.from_pandas(frame, preserve_index=False)).withColumn("rating", rating)
    assert fit(ranker, whole, tasks=2).model_.digest() == fit(ranker, judged, tasks=2).model_.digest()


def test_unjudged_documents_that_count_as_rated_0(session, parts):
    frame = as_frame(parts[0]).drop(columns="document")
    rating = sql.when(sql.col("qid") > float(frame["qid"].median()), sql.col("rating")).otherwise(float("nan"))
    whole = session.createDataFrame(pyarrow.Table.from_pandas(frame, preserve_index=False)).withColumn("rating", rating)
    fitted = fit(UMart(n_trees=2, unjudged="zero"), whole, tasks=2)
    assert sum(process["documents"] for process in fitted.team_) == len(frame)


def test_classes_of_the_caller_come_back(tables):
    class Mine(UMart):
        """Known to nobody else, and defined in a function."""

    fitted = fit(UMart(n_trees=2, base=Mine(n_trees=1)), tables[0])
    assert isinstance(fit(Mine(n_trees=2), tables[0]), Mine)
    assert isinstance(fitted.base, Mine)


def test_losses_of_the_caller_are_kept(tables):
    loss = squares()
    fitted = fit(TreeRanker(loss=loss, n_trees=2), tables[0])
    assert fitted.loss is loss
    assert len(fitted.history_) == 2


def test_fewer_queries_than_tasks(session, caplog):
    data = tierank.make_ranking(1, n_features=2, mean_length=9, max_length=9)
    fitted = fit(UMart(n_trees=1, min_documents=1), as_table(session, data))
    assert "1 of 2 tasks are used: there are no more queries" in caplog.text
    assert fitted.n_rounds_ == 1
    rows = session.range(12).selectExpr("if(id < 9, 5, id) AS qid", "id % 3 AS rating", "id AS x")
    assert spark._SparkRows(rows, "data", {}).lengths.tolist() == [9, 1, 1, 1]


@pytest.mark.parametrize("n_tasks", range(1, 9))
def test_every_query_has_its_task(session, n_tasks):
    column = sql.col("id")
    starts = list(range(10, 10 * n_tasks, 10))
    found = session.range(10 * n_tasks).select(spark._place(column, starts, 0).alias("task")).toArrow()
    assert found["task"].to_pylist() == [i // 10 for i in range(10 * n_tasks)]


# What cannot be used


def test_settings_that_cannot_be_used(session, tables):
    train = tables[0]
    with pytest.raises(
        ParameterError, match="tasks: expected at most 2, which this cluster can run at the same time, got"
    ):
        fit(UMart(), train, tasks=3)
    with pytest.raises(ParameterError, match="timeout: expected a number > 0, got 0"):
        fit(UMart(), train, timeout=0)
    with pytest.raises(ParameterError, match="unknown setting of UMart 'n_tree'"):
        fit(UMart(n_tree=5), train)
    with pytest.raises(ParameterError, match="ranker: expected a ranker, such as UMart"):
        fit("umart", train)
    with pytest.raises(ParameterError, match=r"valid: expected a Spark DataFrame, got DataFrame; ranker\.fit"):
        fit(UMart(), train, valid=pd.DataFrame({"qid": [1], "rating": [1], "x": [1]}))
    with pytest.raises(
        ParameterError, match=r"data: expected a Spark DataFrame, got list; ranker\.fit and ranker\.predict"
    ):
        predict(UMart(), [1])


def test_data_that_cannot_be_used(session, tables):
    train = tables[0]
    with pytest.raises(DataError, match="data: unknown column 'qld': did you mean 'qid'"):
        fit(UMart(), train, query="qld")
    with pytest.raises(DataError, match="valid: unknown column 'feature_4'"):
        fit(UMart(), train.drop("document"), valid=tables[1].drop("feature_4"))
    with pytest.raises(DataError, match=r"data: rating: expected a column of ratings that .* got the columns qid"):
        fit(UMart(), train.drop("rating"))
    with pytest.raises(DataError, match="data: features: expected numbers in column 'name', got string; encode it"):
        fit(UMart(), train.withColumn("name", sql.lit("a")))
    with pytest.raises(
        DataError, match="data: query: expected integers or strings in column 'qid', got double; cast it"
    ):
        fit(UMart(), train.withColumn("qid", sql.col("qid").cast("double")))
    with pytest.raises(DataError, match="data: expected at least one row, got none"):
        fit(UMart(), train.limit(0))
    some = sql.when(sql.col("feature_1") > 0, sql.col("qid"))
    with pytest.raises(
        DataError, match=r"data: query: expected an id in every row of column 'qid', got \d+ rows without"
    ):
        fit(UMart(), train.withColumn("qid", some))
    with pytest.raises(
        DataError, match=r"rating: expected a number in every row of column 'rating', got \d+ rows without"
    ):
        fit(UMart(), train.withColumn("rating", some))


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("interval 1 day", "interval day"),
        ("interval 1 month", "interval month"),
        ("array(1.0D)", "array<double>"),
        ("named_struct('a', 1)", "struct<a:int>"),
        ("map('a', 1)", "map<string,int>"),
        ("current_timestamp()", "timestamp"),
        ("null", "void"),
    ],
)
def test_types_that_are_no_numbers_are_named_before_training(tables, column, kind):
    expected = re.escape(f"in column 'odd', got {kind};")
    with pytest.raises(DataError, match=f"data: features: expected numbers {expected} .*, or leave it out of features"):
        fit(UMart(), tables[0].withColumn("odd", sql.expr(column)))
    with pytest.raises(DataError, match=f"data: rating: expected numbers {expected} cast it"):
        fit(UMart(), tables[0].withColumn("odd", sql.expr(column)), rating="odd", features=["feature_1"])


def test_frames_that_cannot_be_used(session, tables):
    train = tables[0]
    stream = session.readStream.format("rate").load().selectExpr("value AS qid", "1.0 AS rating", "value AS x")
    with pytest.raises(ParameterError, match="data: expected a DataFrame with an end, got a stream; write it to a"):
        fit(UMart(), stream)
    with pytest.raises(ParameterError, match="valid: expected a DataFrame with an end, got a stream; write it to a"):
        fit(UMart(), train, valid=stream)
    texts = tables[1].withColumn("qid", sql.format_string("q%d", "qid"))
    with pytest.raises(DataError, match="valid: query: expected ids of type bigint, as in data, got string in column"):
        fit(UMart(), train, valid=texts, features=["feature_1"])
    with pytest.raises(DataError, match=r"data: rating: expected a column of ratings that is not a feature, called"):
        fit(UMart(), train, features=["feature_1", "rating"])
    failing = train.withColumn("rating", sql.udf(lambda value: 1 / 0, "double")("rating"))
    with pytest.raises(DataError, match="data: expected rows that Spark can compute, got: ZeroDivisionError: division"):
        fit(UMart(), failing)
    with pytest.raises(DataError, match="rating: expected at least one document with a rating, got unjudged documents"):
        fit(UMart(), train.withColumn("rating", sql.lit(float("nan"))))


def test_what_a_task_refuses_has_its_name(tables):
    """One task has a rating that cannot be; the other only waits for it, and does not train."""
    train = tables[0]
    last = train.agg(sql.max("qid")).first()[0]
    rating = sql.when(sql.col("qid") == last, -1.0).otherwise(sql.col("rating"))
    with pytest.raises(DataError, match=r"^task 1 of 2 on .*expected a finite rating that is not negative, got -1"):
        fit(UMart(), train.withColumn("rating", rating))


def test_data_that_change_while_they_are_read():
    table = pyarrow.table(
        {"column_0": [1, 1], "column_1": [0.0, 1.0], "column_2": [1.0, 2.0], spark_tasks.HELD_OUT: [False] * 2}
    )
    names = {"query": "qid", "rating": "rating", "features": ["x"]}
    data = spark_tasks.data_set(table, spark_tasks._Expected(names, [], [(1, 2)], False), 0)
    assert (data.n_queries, data.n_documents) == (1, 2)
    with pytest.raises(DataError, match="expected 1 queries with 3 documents, got 1 with 2; the data changed while"):
        spark_tasks.data_set(table, spark_tasks._Expected(names, [], [(1, 3)], False), 0)
    with pytest.raises(DataError, match="expected 1 queries with 2 documents, got 0 with 0; the data changed while"):
        spark_tasks.data_set(table, spark_tasks._Expected(names, [], [(1, 2)], True), 0)


def test_dynamic_allocation_and_spark_connect_are_refused(session, tables, monkeypatch):
    class Remote:
        __module__ = "pyspark.sql.connect.dataframe"
        repartitionById = None

    Remote.__name__ = "DataFrame"
    with pytest.raises(
        ParameterError, match="data: expected a DataFrame of a session inside the driver, got one of Spark"
    ):
        fit(UMart(), Remote())
    del Remote.repartitionById
    with pytest.raises(ParameterError, match=r"data: expected Spark 4\.1 or later, got"):
        fit(UMart(), Remote())
    conf = session.sparkContext.getConf().set("spark.dynamicAllocation.enabled", "true")
    monkeypatch.setattr(type(session.sparkContext), "getConf", lambda self: conf)
    with pytest.raises(ParameterError, match="cannot run a barrier stage with dynamic allocation; set"):
        fit(UMart(), tables[0])


# Failure


def test_a_task_that_fails_ends_the_others(tables):
    def fail_in_the_second():
        from pyspark import BarrierTaskContext

        if BarrierTaskContext.get().partitionId() == 1:
            raise ZeroDivisionError("in this loss")

    message = r"^task 1 of 2 on \S+ failed: .*ZeroDivisionError\('in this loss'\); nothing was saved"
    with pytest.raises(TeamError, match=message):
        fit(TreeRanker(loss=squares(fail_in_the_second), n_trees=2), tables[0])


def test_a_task_that_is_lost_ends_the_run_and_the_next_one_goes_on(tables, tmp_path):
    kept, killed = tmp_path / "kept", tmp_path / "killed"

    def end_the_second_once():
        from pyspark import BarrierTaskContext

        is_second = BarrierTaskContext.get().partitionId() == 1
        if is_second and (kept / "state.json").exists() and not killed.exists():
            killed.write_text((kept / "state.json").read_text())
            os.kill(os.getpid(), signal.SIGKILL)

    ranker = TreeRanker(loss=squares(end_the_second_once), n_trees=60, n_leaves=2)
    with pytest.raises(TeamError, match=r"^a task was lost: .*has the saved state: call fit again"):
        fit(ranker, tables[0], valid=tables[1], checkpoint=kept)
    fitted = fit(ranker, tables[0], valid=tables[1], checkpoint=kept)
    before = json.loads(killed.read_text())["history"]
    assert 0 < len(before) < 60
    assert fitted.history_[: len(before)] == before


def test_a_task_that_is_lost_without_a_checkpoint(tables):
    def end_the_second():
        from pyspark import BarrierTaskContext

        if BarrierTaskContext.get().partitionId() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(
        TeamError, match=r"^a task was lost: expected all 2 tasks to stay .* task.* 1.*nothing was saved"
    ):
        fit(TreeRanker(loss=squares(end_the_second), n_trees=2), tables[0])


def test_an_interrupt_ends_the_stage(session, tables, tmp_path):
    """Spark's own handler cancels the jobs of that moment, and would miss one that is about to start."""
    begun = tmp_path / "begun"

    def wait_forever():
        begun.touch()
        while True:
            time.sleep(0.1)

    def interrupt():
        while not begun.exists():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    def only_raise(*_):
        raise KeyboardInterrupt("of this test")

    handler = signal.signal(signal.SIGINT, only_raise)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt, match="of this test"):
            fit(TreeRanker(loss=squares(wait_forever), n_trees=2), tables[0])
    finally:
        signal.signal(signal.SIGINT, handler)
    assert session.sparkContext.statusTracker().getActiveJobsIds() == []
    assert fit(UMart(n_trees=1), tables[0]).n_rounds_ == 1  # the tasks have left their places


def test_two_fits_at_the_same_time(tables):
    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(lambda _: fit(UMart(n_trees=5), tables[0], tasks=2), range(2))
    assert one.model_.digest() == two.model_.digest()


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_an_executor_that_is_killed_ends_the_run_and_the_next_one_goes_on(tmp_path):
    """Executors of their own, as on a cluster: Spark starts another one, on which the checkpoint is resumed."""
    program = Path(__file__).with_name("lost_executor_program.py")
    done = subprocess.run([sys.executable, program, tmp_path], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lost, resumed = [line for line in done.stdout.splitlines() if line.startswith(("lost", "trees"))]
    assert "a task was lost: expected all 2 tasks to stay until fit is done" in lost
    assert "has the saved state: call fit again with this checkpoint" in lost
    assert resumed == "trees 2000"


# Scoring


@pytest.mark.parametrize("settings", [{}, {"query_features": True}], ids=["one by one", "whole queries"])
def test_scores_are_those_of_one_process(parts, tables, settings):
    ranker = UMart(n_trees=3, **settings).fit(parts[0])
    assert ranker.needs_list() == bool(settings)
    scored = predict(ranker, tables[1], features=[f"feature_{k}" for k in range(1, 5)])
    assert scored.columns == [*tables[1].columns, "score"]
    expected = dict(zip(as_frame(parts[1])["document"], ranker.predict(parts[1]), strict=True))
    found = {row.document: row.score for row in scored.collect()}
    assert found == expected
    with pytest.raises(ParameterError, match="score: expected the name of a new column, got 'score'"):
        predict(ranker, scored)
    with pytest.raises(DataError, match="data: unknown column 'feature_9'"):
        predict(ranker, tables[1], features=["feature_9"])


def test_names_of_the_model_and_of_the_scores(parts, tables):
    frame = as_frame(parts[0])
    ranker = UMart(n_trees=2).fit(frame[["feature_2", "feature_1"]], frame["rating"], qid=frame["qid"])
    scored = predict(ranker, tables[0].select("feature_1", "feature_2"), score="relevance")
    rows = scored.collect()
    X = pd.DataFrame([row.asDict() for row in rows])[["feature_2", "feature_1"]]
    np.testing.assert_array_equal([row.relevance for row in rows], ranker.predict(X))


def test_frames_that_cannot_be_scored(session, parts, tables):
    train = as_frame(parts[0]).drop(columns="document")
    one, whole = (UMart(n_trees=2, query_features=copies).fit(tierank.read(train)) for copies in (False, True))
    table = tables[1]
    with pytest.raises(DataError, match=r"data: features: expected numbers in column 'feature_1', .* got string"):
        predict(one, table.withColumn("feature_1", sql.lit("a")))
    with pytest.raises(DataError, match="data: expected columns that Spark can pass to Python, got interval month in"):
        predict(one, table.withColumn("age", sql.expr("interval 1 month")))
    for odd, kind in (("array(qid)", "array<bigint>"), ("collate(document, 'UNICODE_CI')", "string collate")):
        with pytest.raises(DataError, match=f"data: query: expected integers or strings in column 'qid', got {kind}"):
            predict(whole, table.withColumn("qid", sql.expr(odd)))
    columns = ["value AS qid", *(f"1.0D AS feature_{k}" for k in range(1, 5))]
    stream = session.readStream.format("rate").load().selectExpr(*columns)
    assert predict(one, stream).isStreaming
    with pytest.raises(ParameterError, match="data: expected a DataFrame with an end, got a stream; a list may go on"):
        predict(whole, stream)
    assert predict(whole, table.limit(0)).collect() == []


def test_texts_and_vectors_are_scored_from_their_columns(session, parts):
    frame = as_frame(parts[0])
    words, places = np.array(["red", "blue", "shoe", "hat"]), np.arange(len(frame))
    frame = frame.assign(
        words=words[frame["qid"] % 4], title=words[places % 4] + " " + words[places % 3],
        vector=[[float(k % 5), 1.0] for k in places],
    )  # fmt: skip
    data = tierank.read(frame, columns=tierank.Columns(texts=[("words", "title")]))
    ranker = UMart(n_trees=3).fit(data)
    scored = predict(ranker, session.createDataFrame(pyarrow.Table.from_pandas(frame, preserve_index=False)))
    expected = dict(zip(frame["document"], ranker.predict(frame, qid=frame["qid"]), strict=True))
    assert {row.document: row.score for row in scored.collect()} == expected
