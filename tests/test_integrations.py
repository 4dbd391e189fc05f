"""Trackers: models and runs of MLflow against a real server, and event files of TensorBoard. Skipped where missing."""

import errno
import os
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tierank
from tierank.errors import DataError, ParameterError, WriteError
from tierank.extras import MissingExtraError
from tierank.integrations import tracked_name, tracked_values

has_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
has_server = pytest.mark.skipif(
    "mlflow" not in packages_distributions().get("mlflow", ()),
    reason="all of mlflow, with its server, is not installed",
)
has_board = pytest.mark.skipif(find_spec("tensorboardX") is None, reason="tensorboardX is not installed")
quiet = pytest.mark.filterwarnings("ignore")  # what MLflow and its libraries warn of


@pytest.fixture(scope="module")
def table():
    return make_table(seed=0)


def make_table(seed):
    data = tierank.make_ranking(40, n_features=4, mean_length=8, max_length=12, seed=seed)
    frame = pd.DataFrame(data.features, columns=["price", "age", "sales", "visits"])
    return frame.assign(qid=data.query_ids[data.query_of_row], label=data.ratings)


@pytest.fixture(scope="module")
def train(table):
    return tierank.read(table)


@pytest.fixture(scope="module")
def valid():
    return tierank.read(make_table(seed=1))


def step(**changes):
    whole = {"number": 3, "n_total": 9, "metrics": {"ndcg@10": 0.5}, "loss": None, "is_best": True, "settings": {}}
    return tierank.Step(**whole | changes)


def test_names_of_metrics_are_those_that_trackers_take():
    assert tracked_name("ndcg@10") == "ndcg_at_10"
    assert tracked_name("größe/x: a-b_c.d") == "größe/x: a-b_c.d"
    assert tracked_name("a%b") == "a_b"
    assert dict(tracked_values(step())) == {"ndcg_at_10": 0.5}
    assert dict(tracked_values(step(part="networks", member=1, learner=2, loss=2, metrics={}))) == {
        "networks/member1/learner2/loss": 2.0
    }


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="mlflow is installed")
def test_what_is_missing_is_named():
    from tierank.integrations import mlflow

    with pytest.raises(MissingExtraError, match=r"mlflow needs mlflow: pip install 'tierank\[mlflow\]'"):
        mlflow.autolog()


# TensorBoard


def scalars(folder):
    """What the event files say: (tag, step, value), by the form of a record: length, checksum, bytes, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for file in Path(folder).iterdir():
        content, place = file.read_bytes(), 0
        while place < len(content):
            (length,) = struct.unpack_from("<Q", content, place)
            event = Event.FromString(content[place + 12 : place + 12 + length])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            place += length + 16
    return found


@has_board
def test_tensorboard_has_every_round(train, valid, tmp_path):
    from tierank.integrations.tensorboard import TensorBoard

    with TensorBoard(tmp_path / "runs" / "umart") as board:
        ranker = tierank.UMart(n_trees=4).fit(train, valid=valid, callbacks=[board])
    expected = [("ndcg_at_10", i + 1, row["ndcg@10"]) for i, row in enumerate(ranker.history_)]
    found = scalars(tmp_path / "runs" / "umart")
    assert [one[:2] for one in found] == [one[:2] for one in expected]
    np.testing.assert_allclose([one[2] for one in found], [one[2] for one in expected], rtol=1e-6)


@has_board
def test_two_runs_in_one_folder_have_two_files(train, valid, tmp_path):
    from tierank.integrations.tensorboard import TensorBoard

    with TensorBoard(tmp_path) as one, TensorBoard(tmp_path) as other:
        tierank.UMart(n_trees=4).fit(train, valid=valid, callbacks=[one])
        tierank.UMart(n_trees=2).fit(train, valid=valid, callbacks=[other])
    assert len(list(tmp_path.iterdir())) == 2
    assert sorted(step for _, step, _ in scalars(tmp_path)) == [1, 1, 2, 2, 3, 4]


@has_board
@pytest.mark.parametrize("folder", [3, None, "", "a\0b"])
def test_what_is_no_folder_of_tensorboard_is_refused(folder):
    from tierank.integrations.tensorboard import TensorBoard

    with pytest.raises(ParameterError, match="folder: expected the name of a folder, got"):
        TensorBoard(folder)


@has_board
def test_a_tensorboard_that_cannot_write_says_where(train, valid, tmp_path, monkeypatch):
    from tierank.integrations.tensorboard import TensorBoard

    def no_room(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(WriteError, match=f"{place}: expected a path that can be written, got: Not a directory"):
            TensorBoard(place)
    board = TensorBoard(tmp_path / "full")
    for name in ("flush", "close"):
        monkeypatch.setattr(f"tensorboardX.SummaryWriter.{name}", no_room)
    with pytest.raises(WriteError, match="full: expected a path that can be written, got: No space left"), board:
        tierank.UMart(n_trees=2).fit(train, valid=valid, callbacks=[board])


# MLflow


@quiet
@has_mlflow
def test_a_saved_model_gives_the_same_bits_and_holds_no_pickle(table, train, tmp_path):
    from tierank.integrations import mlflow as ours

    ranker = tierank.UMart(n_trees=4).fit(train)
    ours.save_model(ranker, tmp_path / "model", metadata={"team": "search"})
    names = {path.name for path in (tmp_path / "model").rglob("*")}
    assert {"MLmodel", "model.json", "trees.txt", "requirements.txt"} <= names
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".joblib", ".skops"))]
    again = ours.load_model(str(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(train), ranker.predict(train))
    assert f"tierank=={tierank.__version__}" in (tmp_path / "model" / "requirements.txt").read_text()

    import mlflow

    scorer = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    documents = table.drop(columns="label").sample(frac=1, random_state=0)
    expected = ranker.predict(documents.drop(columns="qid"), qid=documents["qid"].to_numpy())
    np.testing.assert_array_equal(scorer.predict(documents), expected)
    with pytest.raises(DataError, match="expected a new folder, got one that is not empty"):
        ours.save_model(ranker, tmp_path / "model")


@quiet
@has_mlflow
def test_rankers_of_lists_need_the_query_column(table, train, tmp_path):
    import mlflow

    from tierank.integrations import mlflow as ours

    ranker = tierank.LinearRanker(feature_transform="query_rank").fit(train)
    assert ranker.needs_list()
    ours.save_model(ranker, tmp_path / "model", query="q")
    scorer = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    documents = table.drop(columns="label").rename(columns={"qid": "q"})
    np.testing.assert_array_equal(scorer.predict(documents), ranker.predict(train))
    with pytest.raises(DataError, match="q: expected a column with the query id of each row"):
        ours.TableScorer(ranker, "q").predict(documents.drop(columns="q"))


@quiet
@has_mlflow
@pytest.mark.parametrize("ranker", [tierank.UMart(n_trees=2), tierank.LinearRanker()])
def test_a_model_takes_the_columns_of_the_table_that_it_learned_from(ranker, table, tmp_path):
    import mlflow

    from tierank.integrations import mlflow as ours

    named = table.assign(color=np.where(table["price"] > table["price"].median(), "red", "blue"))
    ranker.fit(tierank.read(named))
    ours.save_model(ranker, tmp_path / "model")
    scorer = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    assert set(scorer.metadata.get_input_schema().input_names()) == {*named.columns} - {"label"}
    documents = named.drop(columns="label")
    np.testing.assert_array_equal(
        scorer.predict(documents), ranker.predict(documents.drop(columns="qid"), qid=documents["qid"].to_numpy())
    )


@quiet
@has_mlflow
def test_features_without_names_are_taken_by_place(train, tmp_path):
    from tierank.integrations import mlflow as ours

    plain = train.with_features(train.features, None)
    ranker = tierank.UMart(n_trees=2).fit(plain)
    scorer = ours.TableScorer(ranker, "qid")
    expected = ranker.predict(plain)
    frame = pd.DataFrame(train.features).assign(qid=train.query_ids[train.query_of_row])
    np.testing.assert_array_equal(scorer.predict(frame), expected)
    np.testing.assert_array_equal(scorer.predict(train.features), expected)


@quiet
@has_mlflow
def test_models_of_others_are_refused(tmp_path):
    from mlflow.models import Model

    from tierank.integrations import mlflow as ours

    other = Model()
    other.add_flavor("lightgbm", data="x")
    (tmp_path / "m").mkdir()
    other.save(str(tmp_path / "m" / "MLmodel"))
    with pytest.raises(DataError, match=r"that tierank\.integrations\.mlflow wrote, got one of lightgbm"):
        ours.load_model(str(tmp_path / "m"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def server(tmp_path):
    """A real tracking server with its SQLite store."""
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    stores = ["--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db", "--artifacts-destination", str(tmp_path / "a")]
    environment = os.environ | {"GIT_PYTHON_REFRESH": "quiet", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, *stores], stdout=log, stderr=log, cwd=tmp_path, env=environment, start_new_session=True
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, (tmp_path / "log").read_text()
            try:
                urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{address}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.2)
        yield address
    finally:
        os.killpg(process.pid, 15)
        process.wait(60)


@quiet
@has_server
def test_autolog_against_a_real_server(server, table, train, valid, monkeypatch):
    import mlflow

    from tierank.integrations import mlflow as ours

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    mlflow.set_tracking_uri(server)
    mlflow.set_experiment("shop")
    plain = tierank.UMart(n_trees=5).fit(train, valid=valid)
    ours.autolog()
    ours.autolog()  # again changes nothing
    try:
        ranker = tierank.UMart(n_trees=5).fit(train, valid=valid)
        with mlflow.start_run() as outer:
            tierank.LambdaMART(n_trees=2).fit(train, valid=valid)
            assert mlflow.active_run().info.run_id == outer.info.run_id
    finally:
        ours.autolog(disable=True)
    np.testing.assert_array_equal(ranker.predict(train), plain.predict(train))
    client = mlflow.tracking.MlflowClient()
    tierank.UMart(n_trees=2).fit(train)  # no longer logged
    runs = client.search_runs([client.get_experiment_by_name("shop").experiment_id], order_by=["start_time ASC"])
    assert [run.data.params["ranker"] for run in runs] == ["UMart", "LambdaMART"]
    first = runs[0]
    assert first.info.run_name == "UMart"
    assert first.data.params["n_trees"] == "5"
    assert first.data.metrics["best_ndcg_at_10"] == pytest.approx(ranker.best_["ndcg@10"])
    logged = client.get_metric_history(first.info.run_id, "ndcg_at_10")
    assert [(one.step, one.value) for one in logged] == [
        (i + 1, pytest.approx(row["ndcg@10"])) for i, row in enumerate(ranker.history_)
    ]
    uri = f"runs:/{first.info.run_id}/model"
    np.testing.assert_array_equal(ours.load_model(uri).predict(train), ranker.predict(train))
    scores = mlflow.pyfunc.load_model(uri).predict(table.drop(columns="label"))
    np.testing.assert_array_equal(scores, ranker.predict(train))

    info = ours.log_model(ranker, registered_model_name="products")
    mlflow.end_run()
    assert info.flavors["tierank"]["ranker"] == "UMart"
    np.testing.assert_array_equal(ours.load_model("models:/products/1").predict(train), ranker.predict(train))


@quiet
@has_mlflow
def test_a_run_that_has_the_parameters_of_another_fit_gets_a_child(tmp_path, train, valid, monkeypatch):
    """MLflow does not change parameters; and the metrics of two fits would be mixed."""
    import mlflow

    from tierank.integrations import mlflow as ours

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    mlflow.set_experiment("children")
    ours.autolog(log_models=False)
    try:
        with mlflow.start_run() as first:
            tierank.UMart(n_trees=2, n_jobs=1).fit(train, valid=valid)
            tierank.UMart(n_trees=3, n_jobs=1).fit(train, valid=valid)
        with mlflow.start_run() as second:
            mlflow.log_param("n_trees", "many")
            tierank.UMart(n_trees=4, n_jobs=1).fit(train, valid=valid)
    finally:
        ours.autolog(disable=True)
    runs = mlflow.MlflowClient().search_runs([first.info.experiment_id])
    found = {(run.data.params["n_trees"], run.data.tags.get("mlflow.parentRunId")) for run in runs}
    inner = first.info.run_id, second.info.run_id
    assert found == {("2", None), ("3", inner[0]), ("many", None), ("4", inner[1])}


@quiet
@has_server
def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).resolve().parents[1] / "docs" / "tracking.md").read_text()
    space = {}
    for needed, code in re.findall(r"<!-- needs: (\w+) -->\n```python\n(.*?)```", page, re.DOTALL):
        if find_spec(needed) is not None:
            exec(code, space)
    assert len(space["scores"]) == space["test"].n_documents
