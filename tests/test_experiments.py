"""cross_validate, tune, runs and the paper's tables."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from kills import is_killed_at
from sklearn.base import clone

import tierank
from tierank import (
    LOSSES,
    Blend,
    DataError,
    LambdaMART,
    NetworkRanker,
    ParameterError,
    RankingDataset,
    TreeRanker,
    UMart,
    URank,
)
from tierank.cli import main
from tierank.errors import ProcessError
from tierank.experiments import PAPERS, Run, cross_validate, keep_comparison, tune
from tierank.experiments.crossval import CellTask, CellTrainer
from tierank.experiments.folds import folds_of
from tierank.experiments.published import PAPER_METRICS, err_bounds, verdict_on
from tierank.experiments.store import Cell, digest_data
from tierank.experiments.tuning import Between, OneOf, space_of
from tierank.metrics.compare import compare
from tierank.metrics.evaluate import evaluate
from tierank.rankers import RANKERS
from tierank.rankers.base import Ranker
from tierank.rankers.neural import NeuralRanker
from tierank.report.figures import draw_improvement, improvement_figure
from tierank.report.page import write_report
from tierank.report.tabulate import tabulate_paper, tabulate_run


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(60, n_features=5, mean_length=10, max_length=20, seed=5)


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    place = tmp_path_factory.mktemp("folds")
    for number, part in enumerate(data.split(*[0.2] * 5), 1):
        tierank.write(part, place / f"S{number}.txt")
    return place


def rankers():
    return {"lambdamart": LambdaMART(n_trees=5), "umart": UMart(n_trees=5, bagging_fraction=0.5, bagging_freq=1)}


def relabelled(data):
    """The same documents with the ratings of others."""
    qid = np.repeat(data.query_ids, data.lengths)
    return RankingDataset(data.features, data.ratings[::-1], qid)


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return cross_validate(rankers(), folder, seeds=2, n_jobs=1, out=tmp_path_factory.mktemp("runs") / "run")


def test_results_are_what_one_gets_by_hand(run, folder):
    train, valid, test = tierank.read_fold(folder, 3)
    by_hand = UMart(n_trees=5, bagging_fraction=0.5, bagging_freq=1, seed=1, n_jobs=1).fit(train, valid=valid)
    np.testing.assert_array_equal(run.scores("umart", 2, 1), by_hand.predict(test))
    loaded = tierank.load(run.model("umart", 2, 1))
    np.testing.assert_array_equal(loaded.predict(test), by_hand.predict(test))
    assert run.store.result(Cell("umart", 2, 1))["history"] == by_hand.history_
    assert run.read_test(2).features.tobytes() == test.features.tobytes()


def test_means_are_over_all_test_queries_and_seeds(run, folder):
    # As one data set: the highest rating, which ERR divides by, is that of all folds.
    tests = RankingDataset.concat([tierank.read_fold(folder, fold)[2] for fold in range(1, 6)])
    values = {
        seed: tierank.evaluate(
            tests, np.concatenate([run.scores("umart", fold, seed) for fold in range(5)]), "err@3"
        ).per_query["err@3"]
        for seed in (0, 1)
    }
    means = [np.nanmean(values[seed]) for seed in (0, 1)]
    assert means[0] != means[1]
    assert run.comparison.mean("umart", "err@3") == pytest.approx(np.mean(means), abs=1e-12)
    assert run.spread("umart", "err@3") == pytest.approx(np.std(means, ddof=1), abs=1e-12)
    np.testing.assert_allclose(run.evaluation("umart").per_query["err@3"], (values[0] + values[1]) / 2, atol=1e-12)


def test_runs_side_by_side_are_their_systems(run, folder, tmp_path, capsys):
    both = tierank.side_by_side({"old": run, "new": run})
    first = run.systems[0]
    assert both.systems == tuple(f"{system} ({name})" for name in ("old", "new") for system in run.systems)
    assert both.baseline == f"{run.baseline} (old)"
    for metric in run.metrics:
        assert both.comparison.mean(f"{first} (new)", metric) == run.comparison.mean(first, metric)
        contrast = both.comparison.contrasts[f"{run.baseline} (new)"][metric]
        assert (contrast.difference, contrast.wins, contrast.losses) == (0, 0, 0)
    assert both.spread(f"{first} (new)", run.metrics[0]) == pytest.approx(
        run.spread(first, run.metrics[0]), nan_ok=True
    )
    assert both.ranker(f"{first} (old)", 0, run.seeds[0]) is not None
    out = tmp_path / "both.html"
    assert main(["report", f"old={run.folder}", f"new={run.folder}", "--out", str(out)]) == 0
    assert f"{first} (new)" in out.read_text()
    capsys.readouterr()
    assert main(["report", str(run.folder), str(run.folder)]) == 2
    assert f"expected each name once, got '{run.folder.name}' twice" in capsys.readouterr().err


def test_runs_that_cannot_stand_side_by_side(run, tmp_path):
    with pytest.raises(ParameterError, match="runs: expected two runs or more, by name"):
        tierank.side_by_side({"old": run})
    other = tierank.make_ranking(20, n_features=3, mean_length=6, max_length=9, seed=9)
    elsewhere = cross_validate({"linear": tierank.LinearRanker()}, other, out=tmp_path / "other", n_jobs=1)
    with pytest.raises(DataError, match=r"other: expected the test data of .*, got others; only runs with equal test"):
        tierank.side_by_side({"old": run, "new": elsewhere})


def test_tidy_has_the_mean_of_each_fold_and_seed(run, folder):
    tidy = run.tidy()
    assert len(tidy.value) == 2 * 5 * 2 * len(PAPER_METRICS)
    rows = dict(zip(zip(*tidy[:4], strict=True), tidy.value, strict=True))
    test = tierank.read_fold(folder, 4)[2]
    expected = tierank.evaluate(test, run.scores("lambdamart", 3, 0), "ndcg@5").mean("ndcg@5")
    assert rows["lambdamart", 4, 0, "ndcg@5"] == pytest.approx(expected, abs=1e-12)


def test_processes_change_nothing(run, folder, tmp_path):
    other = cross_validate(rankers(), folder, seeds=2, n_jobs=2, out=tmp_path / "run")
    for system in run.systems:
        for fold in range(5):
            assert run.scores(system, fold, 1).tobytes() == other.scores(system, fold, 1).tobytes()


def test_finished_cells_are_not_run_again_and_half_written_ones_are(folder, tmp_path, monkeypatch):
    out = tmp_path / "run"
    first = cross_validate(rankers(), folder, n_jobs=1, out=out)
    expected = first.scores("umart", 1, 0)
    (first.store.place(Cell("umart", 1, 0)) / "result.json").unlink()
    ran = []
    plain = CellTrainer.__call__
    monkeypatch.setattr(CellTrainer, "__call__", lambda self, task: ran.append(task.cell) or plain(self, task))
    again = cross_validate(rankers(), folder, n_jobs=1, out=out)
    assert ran == [("umart", 1, 0)]
    assert again.scores("umart", 1, 0).tobytes() == expected.tobytes()
    ran.clear()
    more = cross_validate({"umart": rankers()["umart"]}, folder, seeds=[0, 3], n_jobs=1, out=out)
    assert {(cell.system, cell.seed) for cell in ran} == {("umart", 3)}
    assert more.systems == ("lambdamart", "umart")
    assert more.seeds_of("lambdamart") == (0,)
    assert more.seeds_of("umart") == (0, 3)
    assert str(more).splitlines()[0].endswith("seeds 0, 3 (lambdamart: 0)")
    (more.store.place(Cell("umart", 1, 3)) / "result.json").unlink()  # as if it had been stopped
    stopped = Run.open(out)
    assert stopped.plan.seeds == [0, 3]
    assert stopped.seeds == (0,)
    assert str(stopped).splitlines()[0].endswith(", seed 0")
    assert stopped.to_dict()["seeds"] == [0]


def test_an_interrupted_run_goes_on(folder, tmp_path, monkeypatch):
    out = tmp_path / "run"
    plain, done = CellTrainer.__call__, []

    def interrupted(self, task):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(task)
        return plain(self, task)

    monkeypatch.setattr(CellTrainer, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        cross_validate(rankers(), folder, n_jobs=1, out=out)
    assert Run.open(out).systems == ()
    with pytest.raises(DataError, match="expected results of at least one system for every fold, got none yet"):
        _ = Run.open(out).comparison
    monkeypatch.setattr(CellTrainer, "__call__", plain)
    whole = cross_validate(rankers(), folder, n_jobs=1, out=out)
    fresh = cross_validate(rankers(), folder, n_jobs=1, out=tmp_path / "fresh")
    for system in whole.systems:
        for fold in range(5):
            assert whole.scores(system, fold, 0).tobytes() == fresh.scores(system, fold, 0).tobytes()


@pytest.mark.parametrize("trials", [None, 1])
def test_a_kill_at_any_step_of_a_cell_is_mended_by_the_next_run(data, tmp_path, trials):
    """To the same scores, and with nothing left of what was half done."""
    folds, n_steps = [data.split(0.6, 0.2, 0.2)], 0
    asked = {"rankers": {"umart": UMart(n_trees=1)}, "data": folds, "n_jobs": 1, "trials": trials}
    out = tmp_path / "run"
    first = cross_validate(**asked, out=out)
    expected = first.scores("umart", 0, 0).tobytes()
    task = CellTask(Cell("umart", 0, 0), UMart(n_trees=1), "standard", trials)
    while True:
        n_steps += 1
        shutil.rmtree(out / "results")
        if not is_killed_at(n_steps, lambda: CellTrainer(out, folds_of(folds))(task)):
            break
        again = cross_validate(**asked, out=out)
        assert again.scores("umart", 0, 0).tobytes() == expected
        assert [path.name for path in (out / "results" / "umart").iterdir()] == ["fold1-seed0"], n_steps
    assert n_steps > 10


def test_what_is_left_of_other_systems_goes_too(data, tmp_path):
    asked = {"data": [data.split(0.6, 0.2, 0.2)], "n_jobs": 1, "out": tmp_path / "run"}
    run = cross_validate({"a": UMart(n_trees=1)}, **asked)
    checkpoint, study = run.store.scratch(Cell("a", 0, 0))
    (checkpoint / "inner").mkdir(parents=True)
    study.write_text("half")
    (checkpoint.with_name("..fold1-seed0.checkpoint.abcdefgh.new") / "inner").mkdir(parents=True)
    cross_validate({"b": UMart(n_trees=1)}, **asked)
    assert [path.name for path in (run.folder / "results" / "a").iterdir()] == ["fold1-seed0"]


def content(folder):
    """All files of a folder, and when they were written."""
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"rankers": {"umart": UMart(n_trees=6)}},
            "expected 'umart' with the settings of its results, got others of n_trees; give the new one",
        ),
        ({"data": "fewer"}, "expected a run of the same data, got one of another; choose another folder"),
        ({"data": "relabelled"}, "expected a run of the same data, got one of another"),
        ({"data": "others to learn from"}, "expected a run of the same training data, got one of another"),
        ({"protocol": "lightgbm"}, "expected a run of the same protocol, got one of another"),
        ({"scores": {"mine": "mine{fold}.txt"}}, "mine1.txt: expected a file"),
        ({"scores": {"mine": "mine.txt"}}, r"expected {fold} in the file name of 'mine', in place of 1 to 2, got mine"),
    ],
)
def test_what_does_not_belong_to_a_run_is_refused_and_leaves_it_as_it_was(data, tmp_path, change, message):
    def folds(data, learned=slice(None)):
        train, valid, *tests = data.split(0.5, 0.1, 0.2, 0.2)
        return [(train.select(np.arange(train.n_queries)[learned]), valid, test) for test in tests]

    others = {
        "fewer": lambda: folds(data)[:1],
        "relabelled": lambda: folds(relabelled(data)),
        "others to learn from": lambda: folds(data, slice(20)),
    }
    out = tmp_path / "run"
    asked = {"rankers": {"umart": UMart(n_trees=2)}, "data": folds(data), "n_jobs": 1, "out": out}
    cross_validate(**asked)
    before = content(out)
    change = {name: others[value]() if name == "data" else value for name, value in change.items()}
    with pytest.raises((DataError, ParameterError), match=message):
        cross_validate(**asked | change)
    assert content(out) == before


def test_a_kill_before_the_first_cell_is_mended_by_the_next_run(data, tmp_path):
    out, asked = tmp_path / "run", {"rankers": {"umart": UMart(n_trees=1)}, "data": data, "n_jobs": 1}
    fresh, n_steps = cross_validate(**asked), 0

    def prepare():
        with mock.patch("tierank.experiments.crossval._run_tasks", side_effect=lambda *_: os._exit(0)):
            cross_validate(**asked, out=out)

    while True:
        n_steps += 1
        shutil.rmtree(out, ignore_errors=True)
        if not is_killed_at(n_steps, prepare):
            break
        run = cross_validate(**asked, out=out)
        assert run.comparison.mean("umart", "ndcg@10") == fresh.comparison.mean("umart", "ndcg@10"), n_steps
        assert not list(out.rglob("*.new")), n_steps
    assert n_steps > 10


def test_a_folder_with_other_files_is_refused_and_stays_as_it_was(data, tmp_path):
    """Also one whose files have the names of those of a run."""
    for number, name in enumerate(("notes.txt", "folds/fold1.tierank/meta.json", "parts/a", "results/b", "table.md")):
        out = tmp_path / str(number)
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")
        before = content(out)
        expected = rf"expected a new folder, or one with a run \(run\.json\), got one with .* {Path(name).parts[0]};"
        with pytest.raises(DataError, match=expected):
            cross_validate({"umart": UMart(n_trees=1)}, data, n_jobs=1, out=out)
        scores = {"a": np.arange(data.n_documents), "b": np.ones(data.n_documents)}
        with pytest.raises(DataError, match=expected):
            keep_comparison(out, data, scores, compare(data, scores))
        assert content(out) == before


def test_an_error_leaves_no_empty_folder(data, tmp_path):
    with pytest.raises(DataError, match=r"scores: expected .*, one per row of the data"):
        cross_validate([], data, scores={"mine": [[1.0]] * 5}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_value_of_the_data_counts(tmp_path):
    """One changed feature, or another weight, makes other data: results of both would be mixed."""
    data = tierank.make_ranking(400, n_features=2, mean_length=50, max_length=100, seed=1)
    assert data.n_documents > 3 * 4096  # more than were once compared
    train, valid, test = data.split(0.9, 0.05, 0.05)
    asked = {"rankers": {"umart": UMart(n_trees=1)}, "n_jobs": 1, "out": tmp_path / "run"}
    cross_validate(data=[(train, valid, test)], **asked)
    features = train.features.copy()
    features[train.n_documents // 2 + 1, 1] += 1
    weights = np.ones(train.n_queries)
    others = [
        train.with_features(features, None),
        train.replace(row_weight=np.ones(train.n_documents)),
        train.replace(query_weight=weights),
        train.replace(query_weight=weights * 2),
        train.replace(position=np.ones(train.n_documents, np.int64)),
    ]
    for other in others:
        with pytest.raises(DataError, match="expected a run of the same training data, got one of another"):
            cross_validate(data=[(other, valid, test)], **asked)
    assert len({digest_data(one) for one in [train, *others]}) == len(others) + 1


def test_two_processes_do_not_add_to_one_run(data, tmp_path):
    out = tmp_path / "run"
    asked = {"rankers": {"umart": UMart(n_trees=1)}, "data": data, "n_jobs": 1, "out": out}
    refusal = "expected a run that nobody is working on, got one that another process is adding to"
    plain, refused = CellTrainer.__call__, []

    def interfering(self, task):
        with pytest.raises(DataError, match=refusal):
            cross_validate(**asked | {"rankers": {"other": LambdaMART(n_trees=1)}})
        refused.append(task)
        return plain(self, task)

    with mock.patch.object(CellTrainer, "__call__", interfering):
        cross_validate(**asked)
    assert len(refused) == 5
    assert cross_validate(**asked | {"rankers": {"other": LambdaMART(n_trees=1)}}).systems == ("umart", "other")


def test_results_of_another_version_are_kept_with_a_warning(data, tmp_path):
    asked = {"data": data, "n_jobs": 1, "out": tmp_path / "run"}
    run = cross_validate({"umart": UMart(n_trees=1)}, **asked)
    replace(run.plan, versions={**run.plan.versions, "tierank": "0.0.1"}).write(run.folder)
    expected = rf"has results of other versions, which are kept: tierank 0\.0\.1, now {re.escape(tierank.__version__)}"
    with pytest.warns(UserWarning, match=expected):
        cross_validate({"other": UMart(n_trees=1)}, **asked)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cross_validate({"third": UMart(n_trees=1)}, **asked)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seeds", ["a"]),
        ("seeds", [None]),
        ("seeds", []),
        ("seeds", [True]),
        ("folds", []),
        ("folds", [1]),
        ("learned_from", [3]),
        ("metrics", [3]),
        ("metrics", []),
        ("rule", 5),
        ("systems", {"umart": 3}),
        ("baseline", 7),
        ("protocol", "x"),
        ("paper", 4),
        ("attributes", [3]),
        ("attributes", [{"name": "x", "values": ["a"], "codes": [1]}]),
        ("versions", {"tierank": 3}),
        ("data", {"name": 3, "source": {}, "description": {}}),
        ("data", {"name": "x", "source": [], "description": {}}),
        ("created", 3),
        ("kind", None),
    ],
)
def test_a_plan_with_a_wrong_value_is_damaged(run, tmp_path, field, value):
    (tmp_path / "run.json").write_text(json.dumps(run.plan.to_dict() | {field: value}))
    with pytest.raises(DataError, match=r"run\.json: expected the description of a run, got a damaged file"):
        Run.open(tmp_path)


def test_a_plan_that_names_no_data_set_of_the_paper(run, tmp_path):
    odd = Run(run.store, replace(run.plan, paper="nowhere"))
    with pytest.raises(ParameterError, match="unknown paper 'nowhere'"):
        tabulate_run(odd)


def test_missing_test_data_are_written_again(data, tmp_path):
    asked = {"rankers": {"umart": UMart(n_trees=1)}, "data": data, "n_jobs": 1, "out": tmp_path / "run"}
    expected = cross_validate(**asked).comparison.mean("umart", "ndcg@10")
    test = tmp_path / "run" / "folds" / "fold2.tierank"
    for damage in (lambda: shutil.rmtree(test), lambda: (test / "meta.json").write_text("{")):
        damage()
        with pytest.raises(DataError, match=r"fold2\.tierank"):
            _ = Run.open(tmp_path / "run").comparison
        assert cross_validate(**asked).comparison.mean("umart", "ndcg@10") == expected


def test_settings_that_never_gave_a_result_can_be_corrected(data, tmp_path):
    with pytest.raises(ParameterError, match="n_leaves"):
        cross_validate({"umart": UMart(n_trees=2, n_leaves=1)}, data, n_jobs=1, out=tmp_path / "run")
    assert cross_validate({"umart": UMart(n_trees=2)}, data, n_jobs=1, out=tmp_path / "run").systems == ("umart",)


def test_the_folder_of_no_run(run, tmp_path):
    with pytest.raises(DataError, match=r"expected the folder of a run, with run\.json in it, got none"):
        Run.open(tmp_path)
    file = tmp_path / "run.json"
    without = [
        {key: value for key, value in run.plan.to_dict().items() if key != name} for name in ("data", "rule", "kind")
    ]
    for damaged in ("{", "[]", "3", *map(json.dumps, without), json.dumps(run.plan.to_dict() | {"data": {}})):
        file.write_text(damaged)
        with pytest.raises(DataError, match=r"run\.json: expected the description of a run, got a damaged file"):
            Run.open(tmp_path)
    file.write_text(json.dumps({"format": 99}))
    with pytest.raises(DataError, match="expected format 2, got 99; use the tierank that wrote it"):
        Run.open(tmp_path)


def test_a_damaged_result_says_how_to_mend_it(data, tmp_path):
    run = cross_validate({"umart": UMart(n_trees=2)}, data, n_jobs=1, out=tmp_path / "run")
    place = run.store.place(Cell("umart", 0, 0))
    (place / "scores.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match=r"scores\.npy: expected scores, got a damaged file; delete its folder"):
        _ = Run.open(run.folder).comparison
    scores = run.tests[0].ratings
    for damaged in (scores + np.nan, scores * 1j, scores.astype(str), scores.astype(np.int64)):
        np.save(place / "scores.npy", damaged)
        with pytest.raises(DataError, match=r"scores\.npy: expected scores, got a damaged file; delete its folder"):
            _ = Run.open(run.folder).comparison
    (place / "scores.npy").unlink()
    with pytest.raises(DataError, match=r"scores\.npy: expected scores, got nothing there; delete its folder"):
        _ = Run.open(run.folder).comparison
    for damaged in ("[", "[]", "3", '{"cpu_seconds": "x"}', '{"history": 5}', '{"best": []}', "[" * 100_000):
        (place / "result.json").write_text(damaged)
        with pytest.raises(DataError, match=r"result\.json: expected the description of a result, got a damaged file"):
            run.cpu_seconds("umart")
    shutil.rmtree(place)
    again = cross_validate({"umart": UMart(n_trees=2)}, data, n_jobs=1, out=run.folder)
    assert again.comparison.mean("umart", "ndcg@10") > 0


def test_a_data_set_is_cut_into_five_parts_of_whole_queries(data):
    run = cross_validate([UMart(n_trees=2)], data, n_jobs=1)
    tested = np.concatenate([test.query_ids for test in run.tests])
    assert sorted(tested.tolist()) == sorted(data.query_ids.tolist())
    assert run.systems == ("umart",)
    assert run.comparison.contrasts == {}


def test_a_table_is_cut_too_and_its_columns_are_named(data):
    table = pd.DataFrame(data.features).rename(columns=str)
    table["session"], table["clicks"] = np.repeat(data.query_ids, data.lengths), data.ratings
    run = cross_validate(UMart(n_trees=2), table, query="session", rating="clicks", n_jobs=1)
    by_hand = cross_validate([UMart(n_trees=2)], data, n_jobs=1)
    assert run.systems == ("umart",)
    assert run.scores("umart", 1, 0).tobytes() == by_hand.scores("umart", 1, 0).tobytes()
    assert [test.n_features for test in run.tests] == [1] * 5
    assert run.read_test(0).n_features == data.n_features


def test_given_folds_are_taken_as_they_are(data):
    train, valid, test = data.split(0.6, 0.2, 0.2)
    run = cross_validate(["umart"], [(train, valid, test)], n_jobs=1)
    assert run.n_folds == 1
    by_hand = UMart(seed=0, n_jobs=1).fit(train, valid=valid)
    np.testing.assert_array_equal(run.scores("umart", 0, 0), by_hand.predict(test))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            [(1, 2, 3)],
            "expected a folder of folds, a file, a table, a RankingDataset, or a list of .* got tuple",
        ),
        (3, r"or a list of \(train, valid, test\) data sets, got int"),
        ([], r"or a list of .*, got list"),
        (RankingDataset(np.eye(3), [1, 0, 1], qid=[1, 2, 3]), "expected at least 5 queries, one for each part, got 3"),
        ("nowhere", "expected a file, got nothing there"),
    ],
)
def test_data_that_are_no_folds(given, message):
    with pytest.raises((ParameterError, DataError), match=message):
        cross_validate(["umart"], given, n_jobs=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rankers": []}, "expected at least one ranker, or scores of another tool, got none"),
        ({"rankers": ["umrat"]}, r"unknown ranker 'umrat': did you mean 'umart'\?"),
        ({"rankers": "umrat"}, r"unknown ranker 'umrat': did you mean 'umart'\?"),
        ({"rankers": ["umart", UMart()]}, "expected each name once, got 'umart' twice"),
        ({"rankers": [UMart]}, r"expected a ranker of tierank, such as UMart\(\), or the name of one, got <class"),
        ({"rankers": {"mine": 3}}, r"expected a ranker of tierank, such as UMart\(\), or the name of one, got 3"),
        ({"baseline": "lambdamrt"}, "unknown baseline 'lambdamrt'"),
        ({"seeds": 0}, "seeds: expected an integer >= 1.*, got 0"),
        ({"seeds": 1.5}, "seeds: expected an integer >= 1.*, got 1.5"),
        ({"seeds": []}, r"seeds: expected the number of seeds, or a list with each seed once, got \[\]"),
        ({"seeds": [0, 0]}, r"seeds: expected the number of seeds, or a list with each seed once, got \[0, 0\]"),
        ({"seed": 3}, r"unknown argument 'seed': did you mean 'seeds'\?"),
        ({"query": "session"}, "query: expected data that have yet to be read: a file or a table, got RankingDataset"),
        ({"metrics": ["ndgc@10"]}, r"unknown metric 'ndgc': did you mean 'ndcg'\?"),
        ({"metrics": "ndcg@10", "rule": "lightgmb"}, r"unknown rule 'lightgmb': did you mean 'lightgbm'\?"),
        ({"protocol": "lightgmb"}, r"unknown protocol 'lightgmb': did you mean 'lightgbm'\?"),
        ({"trials": 0}, "trials: expected an integer >= 1.*, got 0"),
        ({"scores": {"mine": [[1.0]]}}, "scores: expected 5 for 'mine', one per fold, got 1"),
        ({"scores": {"mine": 3}}, "scores: expected 5 for 'mine', one per fold, got int"),
        ({"scores": [[1.0]]}, "scores: expected a mapping of names to scores, one array or file per fold, got list"),
        ({"scores": {"umart": [[1.0]]}}, "scores: expected names that no ranker has, got 'umart'"),
        ({"metrics": []}, "metrics: expected at least one, such as 'ndcg@10', got none"),
        ({"metrics": 5}, "metrics: expected names such as 'ndcg@10', or functions .*, got 5"),
        ({"paper": "ohsumd"}, r"unknown paper 'ohsumd': did you mean 'ohsumed'\?"),
        ({"name": 5}, "name: expected a str, got int"),
        ({"seeds": 10**30}, "seeds: expected an integer >= 1 and <= 1000000, got 1000"),
    ],
)
def test_requests_that_cannot_be_met(data, settings, message):
    with pytest.raises(ParameterError, match=message):
        cross_validate(**({"rankers": ["umart"], "data": data, "n_jobs": 1} | settings))


def test_seeds_of_any_whole_kind(data):
    folds = [data.split(0.6, 0.2, 0.2)]
    for seeds, expected in ((np.int64(2), (0, 1)), (np.array([4]), (4,))):
        assert cross_validate("lambdamart", folds, seeds=seeds, n_jobs=1).seeds_of("lambdamart") == expected


def test_scores_of_other_tools_join_as_rows(folder, tmp_path):
    perfect = []
    for fold in range(1, 6):
        test = tierank.read_fold(folder, fold)[2]
        perfect.append(test.restore(test.ratings))
        tierank.write_scores(perfect[-1], tmp_path / f"fold{fold}.scores")
    run = cross_validate(
        {"umart": UMart(n_trees=2)},
        folder,
        seeds=2,
        n_jobs=1,
        scores={"files": str(tmp_path / "fold{fold}.scores"), "arrays": perfect},
        baseline="umart",
        out=tmp_path / "run",
    )
    assert run.systems == ("umart", "files", "arrays")
    assert run.comparison.mean("files", "ndcg@10") == run.comparison.mean("arrays", "ndcg@10") == 1.0
    assert run.comparison.contrasts["files"]["ndcg@10"].verdict == "better"
    assert np.isnan(run.cpu_seconds("files"))
    table = tabulate_run(run)
    assert tierank.tabulate(run) == table
    assert table.rows[1][-1] == "-"
    assert {(1, 1), (2, 1)} <= set(table.bold)


def test_scores_are_in_the_order_of_the_callers_rows(data, tmp_path):
    """Rows of a query need not be together; a run of ``compare`` has the values of ``compare``."""
    rows = np.random.default_rng(0).permutation(data.n_documents)
    qid = np.repeat(data.query_ids, data.lengths)
    scattered = RankingDataset(data.features[rows], data.ratings[rows], qid[rows])
    fold = (data, data, scattered)
    scores = {"perfect": data.ratings[rows], "first feature": data.features[rows, 0].astype(float)}
    run = cross_validate([], [fold], scores={name: [values] for name, values in scores.items()})
    comparison = compare(scattered, scores)
    kept = keep_comparison(tmp_path / "run", scattered, scores, comparison)
    assert run.comparison.mean("perfect", "ndcg@10") == 1.0
    for name in scores:
        expected = evaluate(data, scores[name][rows.argsort()]).mean("ndcg@10")
        for found in (run, kept, Run.open(tmp_path / "run")):
            assert found.comparison.mean(name, "ndcg@10") == pytest.approx(expected, abs=1e-12)
    assert evaluate(kept.tests[0], kept.scores("perfect", 0, 0)).mean("ndcg@10") == 1.0


def test_scores_without_a_scale_are_shown(data, tmp_path):
    """Infinite ones, and those that float32 cannot hold."""
    rng = np.random.default_rng(0)
    scores = {
        "infinite": rng.choice([-np.inf, 0.0, 1.0, np.inf], data.n_documents),
        "huge": rng.choice([-1e308, 1e308], data.n_documents),
    }
    run = keep_comparison(tmp_path / "run", data, scores, compare(data, scores))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_report(run, tmp_path / "report.html")


def test_scores_that_are_given_again_replace_the_first_ones(data, tmp_path):
    """Also where new seeds come before those of the run."""
    folds, out = [data.split(0.6, 0.2, 0.2)], tmp_path / "run"
    good = folds[0][2].ratings
    cross_validate([], folds, seeds=[5], scores={"mine": [-good]}, out=out)
    ranker = {"umart": UMart(n_trees=1)}
    run = cross_validate(ranker, folds, seeds=[1], scores={"mine": [good]}, out=out, n_jobs=1)
    assert run.comparison.mean("mine", "ndcg@10") == 1.0


@pytest.mark.parametrize(
    "name", [".", "..", "a/b", "../up", "%2E", "x=y,z", " a ", "a\0b", "a\nb", "ü" * 40, "n" * 255]
)
def test_systems_of_any_name_have_a_folder_each(data, tmp_path, name):
    folds, out = [data.split(0.6, 0.2, 0.2)], tmp_path / "run"
    scores = {name: [folds[0][2].ratings], "other": [-folds[0][2].ratings]}
    run = cross_validate([], folds, scores=scores, out=out)
    assert run.systems == (name, "other")
    assert sorted(path.name for path in out.iterdir()) == ["folds", "parts", "results", "run.json"]
    assert len(list((out / "results").iterdir())) == 2
    assert Run.open(out).comparison.mean(name, "ndcg@10") == 1.0


@pytest.mark.parametrize("name", ["", " ", 1, None, b"a", ("a",), "n" * 256, "ü" * 43, "\udc80"])
def test_names_that_no_folder_can_have(data, tmp_path, name):
    message = "expected names of systems that are texts, not empty, and short enough"
    scores = {name: data.ratings, "other": data.ratings}
    with pytest.raises(ParameterError, match=message):
        cross_validate({name: UMart(n_trees=1)}, data, out=tmp_path / "run")
    with pytest.raises(ParameterError, match=message):
        cross_validate([], data, scores={name: [[1.0]] * 5}, out=tmp_path / "run")
    with pytest.raises(ParameterError, match=message):
        keep_comparison(tmp_path / "run", data, scores, compare(data, {"a": data.ratings, "b": data.ratings}))
    assert not list(tmp_path.iterdir())


def test_protocol_lightgbm_chooses_on_the_test_data(folder):
    run = cross_validate({"umart": UMart(n_trees=30, patience=5)}, folder, protocol="lightgbm", n_jobs=1)
    train, _, test = tierank.read_fold(folder, 1)
    leaking = UMart(n_trees=30, patience=5, n_jobs=1).fit(train, valid=test)
    np.testing.assert_array_equal(run.scores("umart", 0, 0), leaking.predict(test))
    assert run.rule == tierank.RULES["lightgbm"]
    assert run.metrics == ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10")


def test_trials_choose_settings_on_the_validation_data_of_each_fold(folder):
    run = cross_validate({"umart": UMart(n_trees=3)}, folder, trials=3, n_jobs=1)
    train, valid, _ = tierank.read_fold(folder, 2)
    found = tune(UMart(n_trees=3, n_jobs=1), train, valid, trials=3)
    kept = run.store.result(Cell("umart", 1, 0))["settings"]
    assert {name: kept[name] for name in found.settings} == found.settings
    assert len({json.dumps(run.store.result(Cell("umart", fold, 0))["settings"]) for fold in range(5)}) > 1


# What callers wrote


def squares(scores, batch):
    return torch.zeros(batch.n_queries).index_add(0, batch.query, (scores - batch.gains) ** 2)


class PopularModel(tierank.FittedModel):
    def __init__(self, feature, scale):
        self.feature, self.scale = feature, scale
        self.history, self.best = [], {}

    def predict(self, data, resources):
        return data.features[:, self.feature] / np.float64(self.scale)

    def files(self):
        return {}

    def facts(self):
        return {"scale": self.scale}


class Popular(Ranker):
    """Scores documents by one feature; has neither seeds nor threads, nor a history."""

    def __init__(self, *, feature=0):
        self.feature = feature

    def fit_model(self, train, valid, context):
        return PopularModel(self.feature, float(train.features[:, self.feature].std()))

    def restore_model(self, saved):
        return PopularModel(self.feature, saved.facts["scale"])


def one_fold(data):
    return [data.split(0.6, 0.2, 0.2)]


def test_losses_and_rankers_of_ones_own(data, tmp_path):
    own = {
        "network": NetworkRanker(squares, max_epochs=2),
        "trees": TreeRanker(squares, n_trees=3),
        "popular": Popular(feature=2),
        "gains": URank(gain=lambda rating: rating**2, max_epochs=1),
    }
    run = cross_validate(own, one_fold(data), n_jobs=1, out=tmp_path / "run")
    train, valid, test = one_fold(data)[0]
    for name, ranker in own.items():
        by_hand = clone(ranker).fit(train, valid=valid)
        np.testing.assert_array_equal(run.scores(name, 0, 0), by_hand.predict(test))
    systems = Run.open(run.folder).plan.systems
    assert systems["network"]["settings"]["loss"]["object"] == "test_experiments.squares"
    assert systems["network"]["sources"]["test_experiments.squares"].startswith("def squares")
    assert set(systems["popular"]["code"]) == {"test_experiments.Popular"}
    assert "lambda rating: rating**2" in "".join(systems["gains"]["sources"].values())
    # Models are kept where they can be written, and loaded where tierank knows their class.
    assert [run.model(name, 0, 0) is not None for name in own] == [True, True, True, False]
    assert [type(run.ranker(name, 0, 0)) for name in own] == [NetworkRanker, TreeRanker, type(None), type(None)]
    write_report(run, tmp_path / "report.html")
    assert "popular" in (tmp_path / "report.html").read_text()


def steep(power, offset=0.0):
    """A loss, made anew each time."""

    def loss(scores, batch):
        values = (scores - batch.gains).abs() ** power + offset
        return torch.zeros(batch.n_queries).index_add(0, batch.query, values)

    return loss


def test_a_run_goes_on_with_the_same_functions_and_refuses_changed_ones(data, tmp_path, monkeypatch):
    def asked(loss, seeds=1, **more):
        rankers = {"own": NetworkRanker(loss, max_epochs=1, n_jobs=1)}
        return cross_validate(rankers, one_fold(data), seeds=seeds, n_jobs=1, out=tmp_path / "run", **more)

    asked(steep(2))
    before = content(tmp_path / "run")
    assert asked(steep(2), seeds=2).seeds_of("own") == (0, 1)  # the same code, another object
    before = content(tmp_path / "run")
    fix = "give the new one another name, or choose another folder"
    for changed in (steep(4), steep(2, 0.5), lambda scores, batch: steep(2)(scores, batch)):
        with pytest.raises(DataError, match=rf"'own' with the settings of its results, got others of loss.*; {fix}"):
            asked(changed)
    with pytest.raises(DataError, match=rf"got others of loss \(its code has changed\); {fix}$"):
        asked(steep(4))
    with pytest.raises(DataError, match=rf"got others of max_epochs; {fix}$"):
        cross_validate({"own": NetworkRanker(steep(2), n_jobs=1)}, one_fold(data), n_jobs=1, out=tmp_path / "run")
    assert content(tmp_path / "run") == before
    asked_class = {"data": one_fold(data), "n_jobs": 1, "out": tmp_path / "classes"}
    cross_validate({"own": Popular()}, **asked_class)
    cross_validate({"own": Popular()}, **asked_class)
    monkeypatch.setattr(PopularModel, "predict", lambda self, data, resources: np.zeros(data.n_documents))
    with pytest.raises(DataError, match=r"got others of test_experiments\.Popular \(its code has changed\)"):
        cross_validate({"own": Popular()}, **asked_class)


def test_names_that_callers_put_into_tables_count_by_their_code(data, tmp_path, monkeypatch):
    asked = {"rankers": {"own": NetworkRanker("mine", max_epochs=1)}, "data": one_fold(data), "n_jobs": 1}
    monkeypatch.setitem(LOSSES, "mine", steep(2))
    cross_validate(**asked, out=tmp_path / "run")
    cross_validate(**asked, out=tmp_path / "run")
    monkeypatch.setitem(LOSSES, "mine", steep(4))
    with pytest.raises(DataError, match=r"got others of test_experiments\.steep.*loss \(its code has changed\)"):
        cross_validate(**asked, out=tmp_path / "run")


def test_a_function_that_is_mended_before_the_first_result_starts_anew(data, tmp_path):
    """Neither the run nor the checkpoint of the first attempt is in the way."""

    def fails(scores, batch):
        raise RuntimeError("not yet")

    asked = {"data": one_fold(data), "n_jobs": 1, "out": tmp_path / "run"}
    with pytest.raises(RuntimeError, match="not yet"):
        cross_validate({"own": NetworkRanker(fails, max_epochs=1)}, **asked)
    checkpoint, _ = Run.open(tmp_path / "run").store.scratch(Cell("own", 0, 0))
    train, valid, _ = asked["data"][0]
    NetworkRanker(steep(3), max_epochs=1, n_jobs=1).fit(train, valid=valid, checkpoint=checkpoint)
    run = cross_validate({"own": NetworkRanker(squares, max_epochs=1)}, **asked)
    assert run.systems == ("own",)
    assert not checkpoint.exists()


def test_checkpoints_and_studies_of_another_function_are_refused(data, tmp_path):
    train, valid, _ = data.split(0.6, 0.2, 0.2)

    class Own(NeuralRanker):
        LOSS = staticmethod(steep(2))

    def fitted(ranker, place):
        return ranker.fit(train, checkpoint=tmp_path / place)

    settings = {"max_epochs": 1, "n_jobs": 1}
    for place, ranker, other in (
        ("network", NetworkRanker(steep(2), **settings), NetworkRanker(steep(4), **settings)),
        ("trees", TreeRanker(steep(2), n_trees=2), TreeRanker(steep(4), n_trees=2)),
        ("object", NetworkRanker(partial(steep(2)), **settings), NetworkRanker(partial(steep(4)), **settings)),
    ):
        fitted(ranker, place)
        fitted(clone(ranker), place)
        with pytest.raises(DataError, match="expected a checkpoint of this data and these settings, got one of anoth"):
            fitted(other, place)
    fitted(Own(**settings), "class")
    Own.LOSS = staticmethod(steep(4))
    with pytest.raises(DataError, match="expected a checkpoint of this data and these settings, got one of another"):
        fitted(Own(**settings), "class")
    asked = {"train": train, "valid": valid, "trials": 1, "space": {"n_leaves": Between(2, 4)}, "study": tmp_path / "s"}
    tune(TreeRanker(steep(2), n_trees=2), **asked)
    tune(TreeRanker(steep(2), n_trees=2), **asked)
    with pytest.raises(DataError, match="got those of another search, with other loss;"):
        tune(TreeRanker(steep(4), n_trees=2), **asked)


def test_a_lost_process_is_told_in_the_words_of_python(data, tmp_path):
    def deadly(scores, batch):
        os.kill(os.getpid(), signal.SIGKILL)

    rankers = {"a": NetworkRanker(deadly, max_epochs=1), "b": NetworkRanker(deadly, max_epochs=1)}
    lost = r"^the process that worked on [ab], fold 1, seed 0: was ended by SIGKILL, probably out of memory; "
    advice = r"the same call with the same folder \(out\) resumes it, and fewer processes \(n_jobs\) need"
    with pytest.raises(ProcessError, match=lost + advice):
        cross_validate(rankers, one_fold(data), n_jobs=2)


def test_settings_are_checked_before_data_are_read():
    for ranker, message in (
        (UMart(n_trees=0), "own: n_trees: expected an integer >= 1, got 0"),
        (UMart(n_leaves=1), "own: n_leaves: expected an integer >= 2.*, got 1"),
        (UMart(base=URank(max_epochs=0)), "own: max_epochs: expected an integer >= 1, got 0"),
        (UMart(select_by="ndgc@10"), "own: unknown metric 'ndgc'"),
        (NetworkRanker(), "own: loss: expected a function"),
        (Blend(n_configs=1, n_trees=0), "own: n_trees: expected an integer >= 1.*, got 0"),
    ):
        with pytest.raises(ParameterError, match=message):
            cross_validate({"own": ranker}, "nowhere", n_jobs=1)
    with pytest.raises(ParameterError, match="n_jobs: expected an integer >= 1, or -1 or None"):
        cross_validate("umart", "nowhere", n_jobs=0)


def test_every_ranker_takes_its_own_settings_at_once():
    for ranker in RANKERS.values():
        ranker().checked_settings()
        for preset in ranker.PRESETS:
            ranker.from_preset(preset).checked_settings()


# The paper


# The highest rating of its queries, and how many have it; counted in OHSUMED.
OHSUMED_TOPS = {0: 1, 1: 4, 2: 101}


def test_the_paper_marks_the_cells_that_break_a_law():
    """ERR is a sum over ranks of what is not negative: it cannot fall as k grows."""
    for paper in PAPERS.values():
        for row, cells in paper.cells().items():
            values = [cells[f"err@{k}"].value for k in (1, 3, 5, 10)]
            falls = any(later < earlier for earlier, later in pairwise(values))
            assert falls == (cells["err@10"].doubt == "ERR that falls as k grows, which ERR cannot"), row
            assert (cells["ndcg@10"].doubt is not None) == (row == "MDPRank" and paper.name == "mq2007")


@pytest.mark.parametrize(("row", "bound"), [("MDPRank", 0.364), ("LambdaLoss", 0.412), ("p-ListMLE", 0.341)])
def test_err_that_ndcg_does_not_allow_is_marked_with_its_bound(row, bound):
    """OHSUMED: ERR@1 of a query is .5 NDCG@1 if its highest rating is 1, and .75 if it is 2."""
    paper = PAPERS["ohsumed"]
    figures = paper.rows()[row]
    low = 0.75 * (figures["ndcg@1"] - 0.0005) - 0.25 * 4 / 105 - 0.0005
    assert err_bounds(figures["ndcg@1"], OHSUMED_TOPS)[0] == pytest.approx(low)
    assert low == pytest.approx(bound, abs=1e-3)
    doubt = paper.cells(tops=OHSUMED_TOPS)[row]["err@5"].doubt
    assert f"{figures['err@1']:.3f}, is outside {low:.3f} to" in doubt
    assert paper.cells()[row]["err@5"].doubt is None


def test_no_other_row_of_ohsumed_is_marked():
    marked = {row for row, cells in PAPERS["ohsumed"].cells(tops=OHSUMED_TOPS).items() if cells["err@1"].doubt}
    assert marked == {"MDPRank", "LambdaLoss", "p-ListMLE"}


def test_asterisks_are_where_the_paper_has_them():
    """It says that they are improvements over its baseline, so they stand only with figures above those."""
    counts = {}
    for name, paper in PAPERS.items():
        cells = paper.cells()
        for row in cells:
            marked = [metric for metric, cell in cells[row].items() if cell.is_marked]
            assert all(cells[row][metric].value > cells[paper.baseline][metric].value for metric in marked)
            counts |= {(name, row): len(marked)} if marked else {}
    assert counts == {
        ("ohsumed", "uRank"): 8, ("ohsumed", "uBoost"): 8, ("ohsumed", "urBoost"): 8,
        ("mq2007", "uRank"): 8, ("mq2007", "uBoost"): 8, ("mq2007", "uMart"): 7, ("mq2007", "urBoost"): 8,
        ("mslr-web10k", "uMart"): 8, ("mslr-web30k", "uMart"): 8,
    }  # fmt: skip


def test_bounds_hold_for_any_ranking():
    """Random tops of random queries: ERR@1 by the query's highest rating lies within the bounds of its NDCG@1."""
    generator = np.random.default_rng(5)
    for _ in range(50):
        ratings = generator.integers(0, 5, (12, 6)).astype(float)
        data = RankingDataset(np.zeros((72, 1)), ratings.ravel(), qid=np.repeat(np.arange(12), 6))
        found = tierank.evaluate(data, generator.random(72), ["ndcg@1", "err@1"], rule="wsdm20")
        tops = tierank.describe(data).queries_per_top_rating
        low, high = err_bounds(round(found.mean("ndcg@1"), 3), tops)
        assert low - 1e-9 <= found.mean("err@1") <= high + 1e-9


def test_the_paper_has_settings_for_every_ranker():
    for paper in PAPERS.values():
        assert set(paper.rows()["uRank"]) == set(PAPER_METRICS)
        for name, ranker in RANKERS.items():
            if name in ("blend", "linear"):
                with pytest.raises(ParameterError, match="the paper has no settings for it"):
                    paper.settings(name)
                continue
            for family in ("paper", "authors"):
                settings = ranker(**paper.settings(name, family)).checked_settings()
                assert (settings["select_by"][0], settings["rule"]) == ("ndcg@1", "wsdm20")
    assert PAPERS["mq2007"].settings("umart") == UMart.PRESETS["paper-mq2007"]
    with pytest.raises(ParameterError, match="unknown ranker 'nothing'"):
        PAPERS["ohsumed"].settings("nothing")
    with pytest.raises(ParameterError, match="unknown family 'author': did you mean 'authors'"):
        PAPERS["ohsumed"].settings("umart", "author")


def test_the_families_differ_where_paper_and_program_do():
    def differing(ranker, family, other="paper"):
        one, two = (PAPERS["ohsumed"].settings(ranker, family) for family in (family, other))
        return {name for name in one | two if one.get(name) != two.get(name)}

    of_networks = {"activation", "max_epochs", "initial_weights", "query_order"}
    assert differing("urank", "authors") == differing("urboost", "authors") == of_networks
    assert differing("urank", "authors-later", "authors") == {"hidden"}
    assert differing("uboost", "authors-later", "authors") == {"hidden", "residual_hidden"}
    assert differing("urboost", "authors-later", "authors") == {"hidden", "residual_hidden", "score_from"}
    assert differing("umart", "authors") == {"idcg_at", "ties"}
    assert differing("lambdamart", "authors") == {"ties"}
    assert PAPERS["ohsumed"].settings("lambdamart")["version"] == "lightgbm-2"
    assert PAPERS["ohsumed"].settings("lambdaloss")["network"] == "groupwise"
    assert PAPERS["mslr-web10k"].settings("urank", "authors-later") == PAPERS["mq2007"].settings(
        "urank", "authors-later"
    )
    with pytest.raises(ParameterError, match="umart: the paper has no settings for it as authors-later"):
        PAPERS["ohsumed"].settings("umart", "authors-later")


def test_the_last_table_has_its_rows_and_its_settings():
    rows = PAPERS["mslr-web30k"].rows("lightgbm")
    assert rows["LambdaMart-L"] == {"ndcg@1": 0.518, "ndcg@3": 0.504, "ndcg@5": 0.509, "ndcg@10": 0.527}
    assert PAPERS["ohsumed"].rows("lightgbm") == {}
    settings = PAPERS["mslr-web30k"].settings("umart", protocol="lightgbm")
    assert (settings["n_trees"], settings["n_leaves"], settings["min_sum_hessian_in_leaf"]) == (500, 255, 100.0)
    assert PAPERS["mslr-web30k"].settings("urank", protocol="lightgbm")["hidden"] == (200, 200)


@pytest.fixture
def beside(folder, tmp_path):
    """A run of three rankers that passes for one on MSLR-WEB10K."""
    rankers = {"mine": UMart(n_trees=2), "old": LambdaMART(n_trees=2), "linear": "linear"}
    run = cross_validate(rankers, folder, n_jobs=1, paper="mslr-web10k", rule="wsdm20", seeds=3, out=tmp_path / "run")
    run.plan.data.description.update({"n_queries": 10_000, "n_documents": 1_200_192})
    return run


def as_dict(table):
    """The rows of a table by their first two cells; a row without a system belongs to the one above."""
    found, system = {}, ""
    for row in table.rows:
        system = row[0] or system
        found[system, row[1]] = dict(zip(table.columns[2:], row[2:], strict=True))
    return found


def test_figures_of_the_paper_stand_beside_ours(beside):
    ndcg, err = tabulate_paper(beside)
    rows = as_dict(ndcg)
    assert list(rows) == [
        ("mine", "ours"), ("uMart", "paper"), ("uMart", "difference"),
        ("old", "ours"), ("LambdaMart-L", "paper"), ("LambdaMart-L", "difference"),
        ("linear", "ours"),
    ]  # fmt: skip
    assert rows["uMart", "paper"] == {
        "ndcg@1": "0.481*", "ndcg@3": "0.468*", "ndcg@5": "0.474*", "ndcg@10": "0.495*",
    }  # fmt: skip
    assert {beside.spread("old", metric) for metric in PAPER_METRICS} == {0.0}  # not 1e-17, which would be a verdict
    difference = beside.comparison.mean("old", "ndcg@5") - 0.457
    assert rows["LambdaMart-L", "difference"]["ndcg@5"] == f"{difference:+.3f}"  # nothing is random: no verdict
    assert list(err.columns[2:]) == [metric for metric in PAPER_METRICS if metric.startswith("err")]
    assert "the paper has 6 rows for rankers that are not in this run" in err.notes
    assert err.notes[-1] == "LambdaMart-R is RankLib's, and can be added to a run as scores of this name"


def test_all_rows_of_the_paper(beside):
    ndcg, err = tabulate_paper(beside, all_rows=True)
    assert {name for name, whose in as_dict(ndcg) if whose == "paper"} == set(PAPERS["mslr-web10k"].rows())
    assert as_dict(err)["LambdaLoss", "paper"]["err@1"] == "0.308†"
    assert "† ERR that falls as k grows, which ERR cannot" in err.notes


def test_scores_stand_beside_the_row_of_their_name(beside, folder):
    given = [np.arange(test.n_documents) for test in beside.tests]
    more = cross_validate(
        [], folder, scores={"LambdaMart-R": given}, paper="mslr-web10k", rule="wsdm20", out=beside.folder, seeds=3
    )
    more.plan.data.description.update({"n_queries": 10_000, "n_documents": 1_200_192})
    rows = as_dict(tabulate_paper(more)[0])
    assert rows["LambdaMart-R", "paper"]["ndcg@1"] == "0.421"


@pytest.mark.parametrize(
    ("metrics", "rule", "protocol", "n_tables", "why"),
    [
        (None, "wsdm20", "standard", 2, None),
        (None, "ranklib", "standard", 0, "the paper's rule is wsdm20, not ranklib"),
        (["ndcg@1", "map@10"], "wsdm20", "standard", 1, "the paper does not print map@10"),
        (["ndcg@1"], "lightgbm", "lightgbm", 1, None),
        (["ndcg@1"], "wsdm20", "lightgbm", 0, "the paper's rule is lightgbm, not wsdm20"),
    ],
)
def test_only_what_can_be_compared_stands_beside_the_paper(beside, metrics, rule, protocol, n_tables, why):
    run = beside.judged_by(metrics, rule)
    run.plan = replace(run.plan, protocol=protocol)
    assert len(tabulate_paper(run)) == n_tables
    said = [note for note in tabulate_run(run).notes if note.startswith("not beside the paper: ")]
    assert said == ([] if why is None else [f"not beside the paper: {why}"])
    if protocol == "lightgbm" and n_tables:
        rows = as_dict(tabulate_paper(run)[0])
        assert rows["uMart", "paper"] == {"ndcg@1": "0.496"}
        assert "the rows of the paper leak too" in tabulate_paper(run)[0].notes[-1]


def test_other_data_are_not_compared_with_the_paper(folder, tmp_path):
    run = cross_validate({"umart": UMart(n_trees=2)}, folder, n_jobs=1, paper="ohsumed", out=tmp_path / "run")
    assert tabulate_paper(run) == []
    assert run.to_dict()["beside_paper"] == {}
    said = "not beside the paper: the paper's data have 106 queries and 16,140 documents"
    assert tabulate_run(run).notes[-1].startswith(said)


def test_the_baseline_of_the_paper_comes_before_the_first_system_and_after_the_chosen_one(beside):
    assert beside.baseline == "old"  # LambdaMart-L; the first one is uMart
    assert beside.judged_by(baseline="linear").baseline == "linear"
    assert any(note.startswith("the baseline is linear; the paper's") for note in
               tabulate_paper(beside.judged_by(baseline="linear"))[1].notes)  # fmt: skip
    assert not any(note.startswith("the baseline is") for note in tabulate_paper(beside)[1].notes)
    other = Run(beside.store, replace(beside.plan, paper="ohsumed"))  # whose baseline, LambdaLoss, was not run
    assert other.baseline == "mine"


def test_marks_are_those_of_the_test_alone_and_those_after_adjustment(data):
    fold = data.split(0.2, 0.2, 0.6)
    noise = {"old": 1.6} | {f"noise {x:.1f}": x for x in np.linspace(0.2, 1.5, 14)}
    draws = np.random.default_rng(0).normal(size=(len(noise), fold[2].n_documents))
    scores = {name: [fold[2].ratings + one * draw] for (name, one), draw in zip(noise.items(), draws, strict=True)}
    run = cross_validate([], [fold], scores=scores, paper="ohsumed", rule="wsdm20", baseline="old")
    run.plan.data.description.update({"n_queries": 106, "n_documents": 16_140})
    rows = {}
    for table in tabulate_paper(run):
        rows |= {(system, m): cell for (system, _), cells in as_dict(table).items() for m, cell in cells.items()}
        assert len(max(table.to_text().split("\n\n")[1].splitlines(), key=len)) <= 100
    unseen = {"", "+", "*+"}
    for system, of_system in run.comparison.contrasts.items():
        for metric, one in of_system.items():
            mark = "*+" if one.adjusted_p < 0.05 else "+" if one.p < 0.05 else ""
            assert one.difference > 0 or not mark
            assert rows[system, metric] == f"{run.comparison.mean(system, metric):.3f}{mark}"
            unseen.discard(mark)
    assert not unseen


@pytest.mark.parametrize("n", [3, 5])
def test_a_figure_is_within_if_another_seed_could_give_it(n):
    """By simulation: of the means of another seed, 95% are within the range of the others."""
    rng = np.random.default_rng(n)
    draws = rng.normal(0.5, 0.05, (4000, n + 1))
    means, spreads = draws[:, :n].mean(axis=1), draws[:, :n].std(axis=1, ddof=1)
    verdicts = [verdict_on(m - x, s, n) for m, s, x in zip(means, spreads, draws[:, n], strict=True)]
    assert verdicts.count("within") / 4000 == pytest.approx(0.95, abs=0.015)
    assert verdicts.count("below") == pytest.approx(verdicts.count("above"), abs=60)


@pytest.mark.parametrize(("spread", "n"), [(0.1, 2), (0.0, 5), (float("nan"), 1)])
def test_no_verdict_without_a_spread(spread, n):
    assert verdict_on(0.5, spread, n) == ""


def test_bars_are_as_high_as_the_gains(run, tmp_path):
    axes = improvement_figure(run.comparison).axes[0]
    gains = [
        100 * run.comparison.contrasts["umart"][m].difference / run.comparison.mean("lambdamart", m)
        for m in PAPER_METRICS
    ]
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], gains)
    assert axes.get_ylabel() == "% over lambdamart, rule tierank"
    files = [tmp_path / "figure.png", tmp_path / "figure.svg"]
    draw_improvement(run.comparison, files)
    assert files[0].read_bytes()[:4] == b"\x89PNG"
    assert "</svg>" in files[1].read_text()
    with pytest.raises(ParameterError, match=r"expected a name that ends in \.png, \.svg or \.pdf"):
        draw_improvement(run.comparison, [tmp_path / "figure.gif"])


def drawn_gains(scores, metrics):
    """The bars over a baseline, which is the first, and the names in the legend."""
    data = RankingDataset(np.zeros((4, 1)), [1, 0, 0, 2], qid=[1, 1, 2, 2])
    axes = improvement_figure(tierank.compare(data, scores, metrics=metrics)).axes[0]
    return [bar.get_height() for bar in axes.patches], [text.get_text() for text in axes.get_legend().get_texts()]


def test_where_the_baseline_has_nothing_no_gain_is_drawn(tmp_path):
    scores = {"none": [0, 1, 1, 0], "all": [1, 0, 0, 1]}
    heights, _ = drawn_gains(scores, ["ndcg@1", "mrr"])
    np.testing.assert_allclose(heights, [np.nan, 100])
    assert drawn_gains(scores, ["ndcg@1"])[0] == [pytest.approx(np.nan, nan_ok=True)]
    data = RankingDataset(np.zeros((4, 1)), [1, 0, 0, 2], qid=[1, 1, 2, 2])
    draw_improvement(tierank.compare(data, scores, metrics="ndcg@1"), [tmp_path / "figure.svg"])
    assert "</svg>" in (tmp_path / "figure.svg").read_text()


def test_every_system_is_in_the_legend_by_its_own_name(tmp_path):
    scores = {"$old": [1, 0, 0, 1], "_new": [1, 0, 1, 0], "a$b$": [0, 1, 1, 0]}
    assert drawn_gains(scores, ["mrr"])[1] == ["_new", "a$b$"]


# Tuning


def test_tuning_is_never_worse_than_the_settings_it_starts_from(data, tmp_path):
    train, valid = data.split(0.6, 0.4)
    start = UMart(n_trees=10, n_jobs=1)
    found = tune(start, train, valid, trials=5, study=tmp_path / "study")
    plain = start.fit(train, valid=valid)
    assert found.trials[0] == {"ndcg@10": pytest.approx(plain.best_["ndcg@10"], abs=1e-12)}
    assert found.value == max(trial["ndcg@10"] for trial in found.trials)
    assert found.value == pytest.approx(tierank.evaluate(valid, found.ranker.predict(valid)).mean("ndcg@10"), abs=1e-12)
    more = tune(start, train, valid, trials=7, study=tmp_path / "study")
    assert more.trials[:5] == found.trials
    assert len(more.trials) == 7
    same = tune(start, train, valid, trials=7, study=tmp_path / "study")
    assert same.settings == more.settings
    np.testing.assert_array_equal(same.ranker.predict(valid), more.ranker.predict(valid))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("ranker", lambda _: UMart(n_trees=4), "other n_trees; delete it to start over, or choose another file"),
        ("ranker", lambda _: UMart(n_trees=3, base=LambdaMART(n_trees=2)), "with other base;"),
        ("train", lambda data: relabelled(data), "with other training data;"),
        ("valid", lambda data: relabelled(data), "with other validation data;"),
        ("space", lambda _: {"n_leaves": Between(2, 5)}, "with other space;"),
    ],
)
def test_the_study_of_another_search_is_refused(data, tmp_path, name, change, message):
    train, valid = data.split(0.6, 0.4)
    asked = {"ranker": UMart(n_trees=3, n_jobs=1), "train": train, "valid": valid, "space": {"n_leaves": Between(2, 4)}}
    file = tmp_path / "study"
    first = tune(**asked, trials=2, study=file)
    # Neither the order of queries nor the number of threads is another search.
    same = asked | {"ranker": UMart(n_trees=3, n_jobs=2), "train": train.select(np.arange(train.n_queries)[::-1])}
    assert tune(**same, trials=2, study=file).trials == first.trials
    with pytest.raises(DataError, match=message):
        tune(**asked | {name: change(asked[name])}, trials=2, study=file)
    assert tune(**asked, trials=2, study=file).trials == first.trials


@pytest.mark.parametrize("stopped_in", [0, 1, 3, 5])
def test_an_interrupted_study_ends_as_a_whole_one(data, tmp_path, stopped_in):
    train, valid = data.split(0.6, 0.4)
    asked = {"ranker": UMart(n_trees=2, n_jobs=1), "train": train, "valid": valid, "trials": 6, "seed": 3}
    whole, fit, fits = tune(**asked), UMart.fit, []

    def interrupted(self, *given, **named):
        fits.append(self)
        if len(fits) == stopped_in + 1:
            raise KeyboardInterrupt
        return fit(self, *given, **named)

    with mock.patch.object(UMart, "fit", interrupted), pytest.raises(KeyboardInterrupt, match=r"^$"):
        tune(**asked, study=tmp_path / "study")
    continued = tune(**asked, study=tmp_path / "study")
    assert continued.trials == whole.trials
    assert continued.ranker.predict(valid).tobytes() == whole.ranker.predict(valid).tobytes()
    assert tune(**asked | {"seed": 4}).trials != whole.trials


def test_two_processes_do_not_add_to_one_study(data, tmp_path):
    train, valid = data.split(0.6, 0.4)
    asked = {"ranker": UMart(n_trees=1, n_jobs=1), "train": train, "valid": valid, "study": tmp_path / "study"}
    fit = UMart.fit

    def interfering(self, *given, **named):
        with pytest.raises(DataError, match="expected trials that nobody is adding to, got one that another"):
            tune(**asked)
        return fit(self, *given, **named)

    with mock.patch.object(UMart, "fit", interfering):
        first = tune(**asked, trials=2)
    assert tune(**asked, trials=3).trials[:2] == first.trials


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "seed: expected an integer >= 0"),
        ({"seed": 2**40}, "seed: expected an integer >= 0"),
        ({"seed": 1.5}, "seed: expected an integer >= 0"),
        ({"seed": None}, "seed: expected an integer >= 0"),
        ({"trials": 10**30}, "trials: expected an integer >= 1 and <= 1000000"),
        ({"space": {}}, "space: expected a dict of at least one setting"),
        ({"space": [1]}, "space: expected a dict of at least one setting"),
        ({"space": {"n_leafs": Between(2, 3)}}, r"unknown setting of UMart 'n_leafs': did you mean 'n_leaves'\?"),
        ({"space": {"n_leaves": 5}}, "space: expected a dict of .*, got 5 for n_leaves"),
        ({"space": {"n_leaves": Between(10, 5)}}, "space: expected a dict of .* for n_leaves"),
        ({"space": {"n_leaves": Between(0, 5, log=True)}}, "space: expected a dict of .* for n_leaves"),
        ({"space": {"learning_rate": Between(0.1, float("nan"))}}, "space: expected a dict of .* for learning_rate"),
        ({"space": {"n_leaves": OneOf(())}}, "space: expected a dict of .* for n_leaves"),
    ],
)
def test_searches_that_cannot_be_made(data, change, message):
    with pytest.raises(ParameterError, match=message):
        tune(**{"ranker": UMart(n_trees=1), "train": data, "valid": data} | change)


def test_a_study_whose_last_line_is_torn_goes_on(data, tmp_path):
    train, valid = data.split(0.6, 0.4)
    asked = {"ranker": UMart(n_trees=1, n_jobs=1), "train": train, "valid": valid, "space": {"n_leaves": Between(2, 4)}}
    file = tmp_path / "study"
    first = tune(**asked, trials=2, study=file)
    whole = file.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["study"]  # no locks that a kill would leave
    last = whole.rstrip().rfind(b"\n") + 1
    for cut in (len(whole) - 1, last + 1, last, 5):
        file.write_bytes(whole[:cut])
        assert tune(**asked, trials=2, study=file).trials == first.trials


@pytest.mark.parametrize("text", ["years of work", "years\nof work", "{}", '{"op_code":0}\n', "[1]\n"])
def test_a_file_that_is_no_study_is_refused_and_stays(data, tmp_path, text):
    train, valid = data.split(0.6, 0.4)
    (tmp_path / "precious").write_text(text)
    with pytest.raises(DataError, match="precious: expected a file of trials, got a damaged one"):
        tune(UMart(n_trees=1), train, valid, trials=1, study=tmp_path / "precious")
    assert (tmp_path / "precious").read_text() == text


def spaces():
    return {name: space_of(ranker()) for name, ranker in RANKERS.items() if name != "blend"}


def test_every_ranker_has_a_space_of_settings_that_it_takes():
    small = tierank.make_ranking(12, n_features=4, mean_length=8, max_length=10).split(0.5, 0.5)
    for name, space in spaces().items():
        ends = {key: values.values[-1] if isinstance(values, OneOf) else values.high for key, values in space.items()}
        quick = {"n_trees": 2} if name in ("umart", "lambdamart") else {} if name == "linear" else {"max_epochs": 1}
        RANKERS[name](**quick, n_jobs=1, **ends).fit(small[0], valid=small[1])


def test_the_spaces_of_the_documentation_are_those_of_the_code():
    page = Path(__file__).parents[1] / "docs" / "experiments.md"
    rows = {}
    for name, space in spaces().items():
        for setting, values in space.items():
            rows.setdefault((setting, str(values)), []).append(name)
    lines = ["| setting | values | rankers |", "|---|---|---|"]
    lines += [f"| `{setting}` | {values} | {', '.join(names)} |" for (setting, values), names in rows.items()]
    assert "\n".join(lines) in page.read_text(), "\n".join(lines)


def test_a_space_of_ones_own(data):
    train, valid = data.split(0.6, 0.4)
    space = {"n_leaves": Between(2, 4), "window": OneOf((1, None))}
    found = tune("umart", train, valid, trials=3, space=space)
    assert set(found.settings) == {"n_leaves", "window"}
    assert all(2 <= trial["n_leaves"] <= 4 for trial in found.trials[1:])
    assert str(Between(0.01, 1.0, log=True)) == "0.01 to 1 (log)"


@pytest.mark.parametrize("ranker", [UMart(n_trees=5, min_documents=3), tierank.LinearRanker()])
def test_tuning_judges_what_predict_returns_also_for_texts_categories_and_dates(ranker):
    """The model numbers levels by the training data; the table of the validation data numbers its own."""
    pytest.importorskip("optuna")
    rng, n = np.random.default_rng(0), 400
    brands = np.array(["acme", "globex", "initech", "umbrella"])
    table = pd.DataFrame(
        {
            "query": [f"{word} shoe" for word in rng.choice(["red", "blue", "green", "black", "white", "grey"], n)],
            "title": [f"{a} {b}" for a, b in rng.choice(["red", "blue", "green", "shoe", "hat"], (n, 2))],
            "brand": rng.choice(brands, n),
            "listed": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D"),
        }
    )
    table["rating"] = (table["brand"] == "acme") + 2 * (table["brand"] == "umbrella") + rng.integers(0, 2, n)
    is_train = np.isin(table["query"], ["red shoe", "blue shoe", "green shoe", "black shoe"])
    columns = tierank.Columns(texts=[("query", "title")])
    train = tierank.read(table[is_train], columns=columns)
    valid = tierank.read(table[~is_train & (table["brand"] != "acme")], columns=columns)  # other levels, other numbers
    tuning = tierank.tune(ranker, train, valid, trials=2)
    expected = tierank.evaluate(valid, tuning.ranker.predict(valid), "ndcg@10").mean("ndcg@10")
    assert tuning.value == pytest.approx(expected, rel=1e-12)


def test_tuning_refuses_what_it_cannot_tune(data):
    train, valid = data.split(0.6, 0.4)
    with pytest.raises(ParameterError, match=r"unknown ranker 'umrat': did you mean 'umart'\?"):
        tune("umrat", train, valid)
    with pytest.raises(ParameterError, match="Blend has no default search space: give one as space"):
        tune(tierank.Blend(), train, valid)
    with pytest.raises(ParameterError, match=r"trials: expected an integer >= 1.*, got 0"):
        tune(URank(), train, valid, trials=0)


def test_a_run_is_judged_by_functions_of_the_caller(run):
    def top_rating(ratings, scores):
        return float(ratings[np.argmax(scores)])

    judged = run.judged_by([top_rating, "ndcg@10"])
    assert judged.metrics == ("top_rating", "ndcg@10")
    by_hand = [
        ratings[np.argmax(scores)]
        for seed in run.seeds
        for fold, test in enumerate(run.tests)
        for start, end in pairwise(test.offsets)
        for ratings, scores in [(test.ratings[start:end], run.scores("lambdamart", fold, seed)[start:end])]
        if ratings.max() > 0
    ]
    assert judged.comparison.mean("lambdamart", "top_rating") == pytest.approx(np.mean(by_hand))
    assert run.judged_by(top_rating).judged_by(rule="letor").metrics == ("top_rating",)
    assert "top_rating" in str(judged)
    with pytest.raises(ParameterError, match=r"metrics: expected names .* got the function top_rating; run.judged_by"):
        cross_validate("umart", run.tests[0], metrics=["ndcg@10", top_rating])


@pytest.mark.parametrize("form", [np.float32, np.float16, np.int64, lambda scores: np.round(scores).tolist()])
def test_scores_of_ones_own_ranker_may_have_any_form(data, monkeypatch, form):
    plain = PopularModel.predict
    expected = cross_validate({"popular": Popular(feature=2)}, one_fold(data), n_jobs=1).scores("popular", 0, 0)
    monkeypatch.setattr(PopularModel, "predict", lambda *given: form(100 * plain(*given)))
    found = cross_validate({"popular": Popular(feature=2)}, one_fold(data), n_jobs=1).scores("popular", 0, 0)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, np.asarray(form(100 * expected), np.float64))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda scores: np.where(np.arange(len(scores)) == 3, np.nan, scores), "got NaN in row 3"),
        (lambda scores: scores[:-1], "one per row of the data"),
        (lambda scores: scores.astype(str), "expected numbers"),
    ],
)
def test_scores_of_ones_own_ranker_that_are_none(data, monkeypatch, broken, message):
    plain = Popular.predict
    monkeypatch.setattr(Popular, "predict", lambda *given: broken(plain(*given)), raising=False)
    with pytest.raises(DataError, match=f"popular, fold 1, seed 0: predict: .*{message}"):
        cross_validate({"popular": Popular(feature=2)}, one_fold(data), n_jobs=1)


def test_cpu_times_contain_no_imports():
    code = """
import sys, time, tierank
from tierank.experiments import cross_validate
data = tierank.make_ranking(20, n_features=2, mean_length=6, max_length=8)
assert "lightgbm" not in sys.modules
clock, loaded = time.process_time, []
time.process_time = lambda: loaded.append("lightgbm" in sys.modules) or clock()
run = cross_validate(tierank.LambdaMART(n_trees=2), data, n_jobs=1, metrics="ndcg@1")
assert loaded and all(loaded), loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
