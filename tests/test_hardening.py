"""What must not break: damaged models, kills, full disks, two writers, data at the limits, Ctrl-C."""

import json
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from running import running
from serve_tools import quick

import tierank
from benchmarks import faults, limits
from tierank import TRANSFORMS, Blend, DataError, NetworkRanker, ParameterError, RankingDataset, UMart, URank
from tierank.files import FolderKind, building, remove_folder
from tierank.rankers.lightgbm import check_trees

ROOT = Path(__file__).resolve().parents[1]
MARK = FolderKind("a folder of these tests", "mark.json")


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(40, n_features=4, mean_length=15, max_length=30)


@pytest.fixture(scope="module")
def text(data):
    return UMart(n_trees=3, n_leaves=5, n_jobs=1).fit(data).model_.text


# Damaged models


def test_no_damaged_model_crashes_the_process(tmp_path):
    for way, ends in faults.try_models(140, tmp_path, seed=3).items():
        assert set(ends) <= {"refused", "works"}, way
        assert sum(ends.values()) == 20
        assert ends["refused"] > 0


def changed(text, line, value, tree=1):
    """The text with another value in a line of a tree, and sizes that fit."""
    before, mark, after = text.partition(f"\nTree={tree}\n")
    after = re.sub(rf"^{line}=.*$", f"{line}={value}", after, count=1, flags=re.MULTILINE)
    return faults.with_sizes(before + mark + after)


@pytest.mark.parametrize(
    ("line", "value", "message"),
    [
        ("num_leaves", "4", "tree 1: expected 3 values of split_feature"),
        ("num_leaves", "-5", "tree 1: expected numbers of leaves"),
        ("num_leaves", "999999999999", r"tree 1: expected \d+ values of split_feature"),
        ("left_child", "1 2 0 -1", "tree 1: expected splits and leaves that are one tree"),  # a cycle
        ("left_child", "1 2 3 99", "tree 1: expected splits and leaves that are one tree"),
        ("right_child", "-9 -2 -3 -4", "tree 1: expected splits and leaves that are one tree"),
        ("split_feature", "0 1 2 4", "tree 1: expected splits by one of 4 features"),
        ("split_feature", "0 1 2 -1", "tree 1: expected splits by one of 4 features"),
        ("split_feature", "0 1 2.5 1", "tree 1: expected whole numbers after split_feature="),
        ("threshold", "1 2 3 x", "tree 1: expected numbers after threshold="),
        ("threshold", "1 2 3", "tree 1: expected 4 values of threshold"),
        ("leaf_value", "1 2 3 4 nan", "tree 1: expected finite numbers after leaf_value="),
        ("leaf_value", "1 2 3 4 1e999", "tree 1: expected finite numbers after leaf_value="),
        ("decision_type", "1 1 1 1", "tree 1: expected categorical splits by one of the sets"),
        ("shrinkage", "x", "tree 1: expected numbers after shrinkage="),
        ("is_linear", "1", "tree 1: expected numbers after num_features="),
        ("num_cat", "2", "tree 1: expected numbers after cat_boundaries="),
        ("leaf_weight", "", r"tree 1: expected \d+ values of leaf_weight"),
        ("internal_count", "", r"tree 1: expected \d+ values of internal_count"),
    ],
)
def test_trees_that_are_none_are_found_before_lightgbm_sees_them(text, line, value, message):
    check_trees(text, 4)
    with pytest.raises(DataError, match=rf"trees\.txt: {message}"):
        check_trees(changed(text, line, value), 4)


def test_heads_and_ends_that_are_none_are_found(text):
    for damaged, message in [
        (text.replace("max_feature_idx=3", "max_feature_idx=9"), "head: expected version=v4 and max_feature_idx=3"),
        (text.replace("num_class=1", "num_class=2"), "head: expected num_class=1"),
        (
            text.replace("label_index=0", "label_index=0\nlabel_index=0"),
            "head: expected lines of name=value, each name",
        ),
        (text.replace("label_index=0", "surprise=0\nlabel_index=0"), "head: expected the names that LightGBM writes"),
        (text.replace("feature_names=Column_0", "feature_names="), "head: expected 4 feature_names"),
        (re.sub("tree_sizes=.", "tree_sizes=1", text), "tree 0: expected its text where tree_sizes says it is"),
        (text[: len(text) // 2], "expected"),
        (text.replace("end of parameters", ""), "the end: expected trees, the importances and the parameters"),
        (text.replace("[boosting: gbdt]", '[boosting: "gbdt"]'), "the end: expected trees, the importances"),
    ]:
        assert damaged != text
        with pytest.raises(DataError, match=rf"trees\.txt: {message}|trees\.txt: .*: {message}"):
            check_trees(damaged, 4)


def test_a_checkpoint_with_broken_trees_is_refused(data, tmp_path):
    folder = tmp_path / "c"
    UMart(n_trees=60, n_jobs=1).fit(data, checkpoint=folder)
    state = json.loads((folder / "state.json").read_text())
    state["texts"][0] = state["texts"][0].replace("left_child=1", "left_child=7")
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match="expected a checkpoint, got a damaged one; delete it to start over"):
        UMart(n_trees=60, n_jobs=1).fit(data, checkpoint=folder)


def test_a_description_that_asks_for_more_memory_than_the_file_has_is_refused(data, tmp_path):
    URank(max_epochs=1, hidden=(8, 4), n_jobs=1).fit(data).save(tmp_path / "m")
    described = json.loads((tmp_path / "m" / "model.json").read_text())
    described["settings"]["hidden"] = [200_000, 200_000]
    (tmp_path / "m" / "model.json").write_text(json.dumps(described))
    with pytest.raises(DataError, match=r"expected weights that fit the settings of the model, got .*size mismatch"):
        tierank.load(tmp_path / "m")


KINDS = {
    "trees": partial(UMart, n_trees=3, n_jobs=1),
    "trees on a base": partial(UMart, n_trees=3, n_jobs=1, base=URank(max_epochs=1, n_jobs=1)),
    "network": partial(URank, max_epochs=1, n_jobs=1),
    "blend": partial(Blend, n_configs=1, n_seeds=0, rotate=False, n_trees=3, n_jobs=1),
}


def rewritten(folder, **settings):
    description = json.loads((folder / "model.json").read_text())
    description["settings"] |= settings
    (folder / "model.json").write_text(json.dumps(description))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_how_work_is_done_is_no_part_of_a_model(data, tmp_path, kind):
    ranker = KINDS[kind]().fit(data)
    ranker.save(tmp_path / "m")
    text = (tmp_path / "m" / "model.json").read_text()
    assert "n_jobs" not in text
    assert '"device"' not in text
    loaded = tierank.load(rewritten(tmp_path / "m", n_jobs=300, device="cuda"))  # as an earlier tierank wrote them
    assert loaded.n_jobs is None
    assert getattr(loaded, "device", "cpu") == "cpu"
    np.testing.assert_array_equal(loaded.set_params(n_jobs=1).predict(data), ranker.predict(data))


@pytest.mark.parametrize("name", ["predict", "_fit", "n_features_in_", "fit", "PRESETS"])
@pytest.mark.parametrize("kind", ["trees", "network"])
def test_a_setting_hides_nothing_of_a_ranker(data, tmp_path, kind, name):
    KINDS[kind]().fit(data).save(tmp_path / "m")
    with pytest.raises(DataError, match=f"settings: unknown setting of U.* '{name}'"):
        tierank.load(rewritten(tmp_path / "m", **{name: 5}))


HUNGRY = """
import resource, sys, tierank
tierank.load(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    tierank.load(sys.argv[2])
except tierank.DataError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize(
    ("network", "settings"),
    [
        ({}, {"hidden": [20_000_000]}),
        ({}, {"hidden": [1] * 100_000}),
        ({"network": "attention"}, {"network_settings": {"table": [["width", 20_000]]}}),
        ({"network": "attention"}, {"network_settings": {"table": [["n_blocks", 10_000_000]]}}),
        ({"network": "groupwise"}, {"network_settings": {"table": [["group_size", 2_000_000]]}}),
    ],
)
def test_a_description_gets_no_memory_that_the_file_does_not_fill(data, tmp_path, network, settings):
    ranker = URank(**network, max_epochs=1, n_jobs=1).fit(data)
    for name in ("m", "hungry"):
        ranker.save(tmp_path / name)
    arguments = [tmp_path / "m", rewritten(tmp_path / "hungry", **settings)]
    done = subprocess.run([sys.executable, "-c", HUNGRY, *arguments], capture_output=True, text=True, check=True)
    message, megabytes = done.stdout.splitlines()
    assert "model.json: expected weights that fit the settings of the model" in message
    assert int(megabytes) < 50


def test_small_networks_of_any_kind_come_back(data, tmp_path):
    """The sizes of hidden layers are none of attention's."""
    ranker = URank(
        network="attention", network_settings={"width": 2, "n_blocks": 1, "n_heads": 1}, max_epochs=1, n_jobs=1
    ).fit(data)
    ranker.save(tmp_path / "m")
    np.testing.assert_allclose(tierank.load(tmp_path / "m").predict(data), ranker.predict(data), atol=1e-6)


@pytest.mark.parametrize("device", ["cuda:99", "meta", "abacus", None])
def test_a_device_that_is_not_there_is_said(data, device):
    with pytest.raises(
        ParameterError, match=f"device: expected one that torch has here, such as 'cpu', got {device!r}"
    ):
        URank(max_epochs=1, device=device).fit(data)
    fitted = KINDS["network"]().fit(data)
    with pytest.raises(ParameterError, match="device: expected one that torch has here"):
        fitted.set_params(device=device).predict(data)


# Kills, full disks, two writers


def test_kills_lose_nothing(tmp_path):
    faults.write_data(tmp_path)
    found = faults.kill_and_resume(2, tmp_path, "umart", seed=1, rounds=300)
    assert found["kills"] == 2
    assert (found["other bits"], found["crashes"]) == (0, 0)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path):
    faults.write_data(tmp_path)
    assert faults.full_disk(tmp_path, 5000) == "refused"


def test_everything_that_is_written_says_that_the_disk_is_full(tmp_path):
    program = ROOT / "tests" / "full_disk_program.py"
    done = subprocess.run([sys.executable, program, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    full = [one for one in found if one["how"] != "written"]
    for one in full:
        place = str(tmp_path / f"of {one['name']}" / one["name"])
        assert one["how"].startswith(f"WriteError: {place}"), one
        refusal = r": expected a path that can be written, got: .+; free some space, or write elsewhere"
        assert re.search(refusal, one["how"])
        assert "\n" not in one["how"]
        assert one["kept"], one
        assert not any(name.endswith(".new") for name in one["files"]), one
    assert {one["name"] for one in full} == {one["name"] for one in found}  # everything needs some room
    assert len({one["name"] for one in full}) > 25


def test_two_writers_leave_one_whole_model(tmp_path):
    found = faults.two_writers(tmp_path, 10)
    assert (found["crashes"], found["left behind"], found["last one is whole"]) == (0, 0, 1)
    assert found["loads"] > 0
    assert found["loads that met the moment between"] == 0


@pytest.mark.parametrize("moment", ["read_bytes", "is_file"])
def test_a_model_that_is_replaced_while_it_is_read_is_read_again(data, tmp_path, monkeypatch, moment):
    """At each moment of reading, in turn: one model or the other, whole."""
    models = [UMart(n_trees=n, n_jobs=1).fit(data) for n in (2, 3)]
    expected = [ranker.predict(data).tobytes() for ranker in models]
    plain = getattr(Path, moment)
    for step in range(1, 20):
        models[0].save(tmp_path / "m")
        calls = []

        def replaced(path, *arguments, step=step, calls=calls, **settings):
            calls.append(path)
            if len(calls) == step:
                with monkeypatch.context() as undone:
                    undone.setattr(Path, moment, plain)
                    models[1].save(tmp_path / "m")
            return plain(path, *arguments, **settings)

        monkeypatch.setattr(Path, moment, replaced)
        found = tierank.load(tmp_path / "m")
        monkeypatch.undo()
        assert found.predict(data).tobytes() == expected[len(calls) >= step]
        if len(calls) < step:
            break
    assert 2 <= step < 19


def test_a_model_that_never_stays_is_given_up(data, tmp_path, monkeypatch):
    ranker, plain = UMart(n_trees=2, n_jobs=1).fit(data), Path.read_bytes
    ranker.save(tmp_path / "m")

    def replaced(path):
        with monkeypatch.context() as undone:
            undone.setattr(Path, "read_bytes", plain)
            ranker.save(tmp_path / "m")
        return plain(path)

    monkeypatch.setattr(Path, "read_bytes", replaced)
    with pytest.raises(DataError, match="m: the model changed 20 times while loading"):
        tierank.load(tmp_path / "m")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_folder_that_cannot_be_written_to(data, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(PermissionError, match="m: expected a path that can be written, got: Permission denied"):
        UMart(n_trees=2, n_jobs=1).fit(data).save(tmp_path / "locked" / "m")


def test_a_folder_changes_places_in_one_step(tmp_path, monkeypatch):
    """With the exchange of Linux and without: what is there is the old or the new, and nothing else is left."""
    for exchange in (True, False):
        if not exchange:
            monkeypatch.setattr("tierank.files._exchange", lambda *_: False)
        for number in range(3):
            with building(tmp_path / "folder", MARK) as fresh:
                (fresh / "mark.json").write_text("{}")
                (fresh / "content").write_text(str(number))
            assert (tmp_path / "folder" / "content").read_text() == str(number)
            assert [path.name for path in tmp_path.iterdir()] == ["folder"]
        with pytest.raises(FileNotFoundError, match="nowhere"), building(tmp_path / "folder", MARK) as fresh:
            (fresh / "nowhere" / "content").write_text("x")
        assert (tmp_path / "folder" / "content").read_text() == "2"


def test_a_folder_that_is_removed_is_gone_at_once(tmp_path, monkeypatch):
    """A kill while its files go one by one leaves no part of it under its name."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "content").write_text("x")
    monkeypatch.setattr("tierank.files.shutil.rmtree", lambda *_, **__: pytest.fail("killed here"))
    with pytest.raises(pytest.fail.Exception, match="killed here"):
        remove_folder(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    monkeypatch.undo()
    remove_folder(tmp_path / "folder")  # nothing there is nothing to do


def seconds_of_work(pid):
    """The time that a process has worked: how much it waited for others does not count."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        pytest.skip("this system does not say how long a process has worked")
    return int(stat.read_text().rpartition(")")[2].split()[11]) / os.sysconf("SC_CLK_TCK")


def test_ctrl_c_leaves_at_once(tmp_path):
    faults.write_data(tmp_path)
    command = faults.train_command(tmp_path, "umart", tmp_path / "m", rounds=1_000_000)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with running(command, stderr=subprocess.PIPE, text=True) as run:
        while not (tmp_path / "m.checkpoint").exists():
            assert run.poll() is None
            time.sleep(0.05)
        worked = seconds_of_work(run.pid)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=900)
    # Seconds of work, not of the clock, which goes on while others work.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before - worked < 5
    assert run.returncode == 130
    assert said.splitlines()[-1] == "tierank: stopped"
    assert "Traceback" not in said
    assert not (tmp_path / "m").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".m")]


# Data at the limits


@pytest.mark.parametrize("case", limits.CASES)
def test_the_table_of_limits_is_true(case, caplog):
    caplog.set_level(logging.ERROR, "tierank")
    rows = (ROOT / "docs" / "limits.md").read_text().splitlines()
    assert limits.table_row(case, scale=20) in rows


def test_a_loss_that_is_no_number_is_said_at_once(data):
    with pytest.raises(ParameterError, match=r"the loss of query .* is not finite in epoch 1"):
        NetworkRanker(lambda f, b: torch.zeros(b.n_queries).index_add(0, b.query, f / 0), max_epochs=3).fit(data)
    with pytest.raises(ParameterError, match="loss: expected a finite gradient, got"):
        tierank.TreeRanker(lambda f, b: torch.zeros(b.n_queries).index_add(0, b.query, f.abs().sqrt())).fit(data)


@pytest.mark.parametrize("table", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_names_of_columns_are_kept_and_checked(table, data):
    names = ["bm25", "age", "visits", "length"]
    frame = table({name: data.features[:, k] for k, name in enumerate(names)})
    qid = [f"query {q}" for q in np.repeat(data.query_ids, data.lengths)]
    ranker = UMart(n_trees=3, n_jobs=1).fit(frame, data.ratings, qid=qid)
    assert ranker.feature_names_in_.tolist() == names
    expected = ranker.predict(frame, qid=qid)
    np.testing.assert_array_equal(ranker.predict(frame[names[::-1]], qid=qid), expected)
    with pytest.raises(DataError, match="X: expected the column 'age', which fit had, got none"):
        ranker.predict(frame[["bm25", "visits", "length"]], qid=qid)
    for transform in TRANSFORMS.values():
        fitted = transform().fit(frame, qid=qid)
        assert fitted.get_feature_names_out().tolist() == names


def test_training_warns_of_nothing(data, recwarn, capfd, caplog):
    UMart(n_trees=5, n_jobs=1).fit(data).predict(data)
    URank(max_epochs=2, n_jobs=1).fit(data).predict(data)
    odd = RankingDataset(data.features * np.float32(np.nan), data.ratings)
    UMart(n_trees=5, n_jobs=1).fit(odd).predict(odd)
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", ["umart", "urank", "linear", "blend"])
def test_records_of_training_are_numbers(tmp_path, name):
    """Notebooks and reports show them; model.json itself has no checksum."""
    train, valid = tierank.make_ranking(20, n_features=3, mean_length=8, max_length=12).split(0.7, 0.3)
    quick(name).fit(train, valid=valid).save(tmp_path / "model")
    file = tmp_path / "model" / "model.json"
    whole = json.loads(file.read_text())
    fitted = whole["fitted"]["members"][0] if name == "blend" else whole["fitted"]
    changes = [("history", [3]), ("history", [{"ndcg@10": "high"}]), ("best", {"ndcg@10": "high"})]
    changes += [("center", "nan")] if name == "blend" else []
    for part, value in changes:
        if part not in fitted:
            continue
        before, fitted[part] = fitted[part], value
        file.write_text(json.dumps(whole))
        fitted[part] = before
        with pytest.raises(DataError, match="damaged description"):
            tierank.load(tmp_path / "model")


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    """Though their checksum fits."""
    ranker = quick("urank").fit(tierank.make_ranking(20, n_features=3, mean_length=8, max_length=12))
    next(iter(ranker.model_.members[0].values()))[0] = float("nan")
    ranker.save(tmp_path / "model")
    with pytest.raises(DataError, match="with NaN or infinity"):
        tierank.load(tmp_path / "model")


def test_states_of_a_checkpoint_that_are_none(tmp_path, data):
    """A checkpoint of networks with another value in the place of a state."""
    ranker = URank(max_epochs=2, hidden=(4,), n_jobs=1).fit(data, checkpoint=tmp_path / "state")
    (file,) = (tmp_path / "state").rglob("state.json")
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {"states": dict.fromkeys(whole["states"], True)}))
    with pytest.raises(DataError, match="expected a checkpoint, got a damaged one"):
        ranker.fit(data, checkpoint=tmp_path / "state")


def test_the_first_training_with_weights_is_silent():
    """LightGBM told of weights of queries, on standard output, until it had been told to be silent."""
    program = """if True:
        import numpy as np, tierank
        X, y, qid = np.arange(60.0).reshape(30, 2), np.arange(30) % 3, np.arange(30) // 10
        tierank.UMart(n_trees=1, min_documents=2).fit(X, y, qid=qid, row_weight=np.arange(30) + 1.0)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""


LARGEST = float(np.finfo(np.float32).max)


def largest_data(names=None):
    """Documents whose features are the largest numbers of float32, of both signs."""
    signs = np.sign(np.random.default_rng(0).normal(size=(120, 40)))
    data = RankingDataset((LARGEST * signs).astype(np.float32), np.arange(120) % 3, np.repeat(np.arange(10), 12))
    return data if names is None else data.with_features(data.features, names)


@pytest.mark.parametrize("settings", [{"activation": "relu"}, {"activation": "elu"}, {"n_seeds": 2}])
@pytest.mark.parametrize("name", ["urank", "uboost", "urboost"])
def test_scores_of_networks_are_finite_or_the_feature_is_named(name, settings):
    """By compiled code (relu) and by torch (elu). Transforms that scale features also clip them."""
    rng = np.random.default_rng(1)
    usual = RankingDataset(rng.normal(size=(120, 40)), rng.integers(0, 3, 120), np.repeat(np.arange(10), 12))
    small = {"max_epochs": 2, "hidden": (30, 10), "n_jobs": 1, "encoding": "none"}
    ranker = tierank.RANKERS[name](feature_transform="none", **small, **settings).fit(usual)
    assert np.isfinite(ranker.predict(usual)).all()
    where = r"X: expected features .* are finite, got -?3\.40282e\+38 in column \d+ in query \d"
    for use in (ranker.predict, ranker.rank, lambda data: tierank.explain_query(ranker, data, 0)):
        with pytest.raises(DataError, match=where):
            use(largest_data())
    scaled = tierank.RANKERS[name](feature_transform="standard", **small, **settings).fit(usual)
    assert np.isfinite(scaled.predict(largest_data())).all()


def test_features_that_a_network_cannot_add_up_are_named_in_training_too():
    names = [f"f{column}" for column in range(40)]
    ranker = tierank.URank(feature_transform="none", encoding="none", max_epochs=1, hidden=(30, 10), n_jobs=1)
    with pytest.raises(ParameterError, match=r"3\.40282e\+38 in f\d+ is .*: clip it, or train with feature_tr"):
        ranker.fit(largest_data(names))
    rng = np.random.default_rng(1)
    usual = RankingDataset(
        rng.normal(size=(120, 40)), rng.integers(0, 3, 120), np.repeat(np.arange(10), 12), feature_names=names
    )
    with pytest.raises(DataError, match=r"are finite, got -?3\.40282e\+38 in f\d+ in query 0; clip it"):
        ranker.fit(usual, valid=largest_data(names))
