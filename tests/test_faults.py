"""The benchmark of faults itself, and a small part of each of its tables."""

import math
import operator
import os
import random
import signal
import time
from collections import Counter

import pytest

import tierank
from benchmarks.faults import exports, files, invariance, kills, requests, runner, teams
from benchmarks.faults.runner import Child, Ended, Table

SOUND = {"works", "refused"}


def ends(table):
    """How all cases of a table ended; the faults are said where there are any."""
    assert not table.faults, "\n".join(table.faults)
    return sum(table.rows.values(), Counter())


# The runner


def test_a_child_says_how_a_call_ended():
    with Child() as child:
        assert child.ask(math.sqrt, 4) == ("works", "")
        assert child.ask(operator.truediv, 1, 0) == ("traceback", "ZeroDivisionError: division by zero")
        assert child.ask(tierank.read, "nowhere.txt") == ("refused", "")
        assert child.ask(os.abort) == ("crash", "SIGABRT")
        assert child.ask(time.sleep, 1000, deadline=0.5) == ("hang", "no answer in 0.5 s")
        assert child.ask(math.sqrt, 4) == ("works", "")  # by another process


@pytest.mark.parametrize(
    ("ended", "end"),
    [
        (Ended(0, ""), "works"),
        (Ended(2, "tierank: expected"), "refused"),
        (Ended(3, "tierank: process 1"), "refused"),
        (Ended(1, "Traceback (most recent call last)"), "traceback"),
        (Ended(2, "Traceback (most recent call last)"), "traceback"),
        (Ended(1, "?"), "traceback"),
        (Ended(-signal.SIGSEGV, ""), "crash"),
        (Ended(None, ""), "hang"),
    ],
)
def test_how_a_command_ended(ended, end):
    assert ended.end == end


def test_a_table_keeps_the_files_of_the_first_of_faults_that_are_alike(tmp_path, capsys):
    table = Table(tmp_path / "kept")
    for number, end in enumerate(["works", "wrong", "wrong", "refused"]):
        place = tmp_path / f"case{number}"
        place.mkdir()
        (place / "file").write_text("x")
        table.add("files", end, f"{place}: of {1000 + number} documents", place)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["000-case1"]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    table.print()
    out = capsys.readouterr().out.splitlines()
    assert out[2] == "| files | 4 | 1 | 1 | 0 | 0 | 0 | 2 |"
    assert out[4] == f"2 x files: wrong result: FOLDER: of ... documents ({tmp_path}/kept/000-case1)"


def test_kills_come_before_each_kind_of_change():
    changes = ["open a", "os.rename a", "open b", "os.rename b", "os.remove c", "open d"]
    chosen = kills.moments(changes, 3, random.Random(0))
    assert {changes[k].split()[0] for k in chosen} == {"open", "os.rename", "os.remove"}


@pytest.mark.parametrize(
    ("codes", "is_sound", "end"),
    [
        ([0, 0], True, "works"),
        ([2, 2], True, "wrong"),
        ([2, 3], False, "refused"),
        ([0, 0], False, "wrong"),
        ([0, 2], False, "wrong"),
        ([2, -6], False, "crash"),
        ([2, None], False, "hang"),
    ],
)
def test_a_team_is_as_good_as_its_worst_process(codes, is_sound, end):
    assert teams.judged([Ended(code, "") for code in codes], is_sound)[0] == end


# A small part of each table


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["LETOR text", "LETOR text, gzip", "LightGBM text and .query", "CSV"], id="text"),
        pytest.param(["Parquet", "scores, text", "scores, TREC run", "qrels", "checkpoint of trees"], id="others"),
    ],
)
def test_damaged_files_are_read_or_refused(names, tmp_path):
    table = Table(tmp_path / "kept")
    runner.run(table, files.damaged_files(7, tmp_path, 3, names))
    assert set(ends(table)) == SOUND
    assert all(counts.total() == 7 for counts in table.rows.values())


@pytest.mark.parametrize("cases", [files.odd_numbers, files.ids_that_differ, files.forged_folders])
def test_what_is_particular_to_a_form_is_read_as_it_should_be(cases, tmp_path):
    table = Table(tmp_path / "kept")
    runner.run(table, cases(tmp_path))
    assert set(ends(table)) <= SOUND


def test_a_command_that_dies_before_a_change_goes_on(tmp_path):
    kills.write_data(tmp_path)
    table, arguments = Table(tmp_path / "kept"), kills.train_arguments(tmp_path, "umart", tmp_path / "out" / "m", 60)
    kills.kill_at_changes(table, "train", tmp_path, [*arguments, "--resume"], 1, seed=0)
    assert ends(table) == {"works": 1}


def test_malformed_requests_are_answered_and_the_server_lives_on(tmp_path):
    pytest.importorskip("uvicorn")
    table, rng = Table(tmp_path / "kept"), random.Random(0)
    with requests.serving(tmp_path, ["trees", "network"]) as server:
        for family in requests.FAMILIES:
            for request in list(family(1, rng))[::6]:
                requests.try_request(table, server, request, tmp_path)
    assert set(ends(table)) == SOUND


@pytest.mark.parametrize("kind", ["integers", "missing"])
def test_an_export_scores_alike_or_is_refused(kind, tmp_path):
    ranker = "umart" if kind == "integers" else "urank, standard"
    exports.fit(str(tmp_path), ranker, kind, 0)
    found = {target: runner.outcome(exports.prove, [str(tmp_path), target, kind, 1]) for target in tierank.TARGETS}
    assert {end for end, _ in found.values()} <= SOUND, found


@pytest.mark.parametrize("form", invariance.FORMS)
@pytest.mark.parametrize("name", ["umart", "linear"])
def test_typed_columns_are_the_same_in_every_form(name, form, tmp_path):
    assert runner.outcome(invariance.compare_forms, [str(tmp_path), name, form, 0]) == ("works", "")


@pytest.mark.parametrize("change", [*invariance.CHANGES, invariance.SHUFFLED])
@pytest.mark.parametrize("name", ["umart", "urank"])
def test_what_means_nothing_changes_nothing(change, name, tmp_path):
    if name == "urank":
        pytest.importorskip("torch")
    if change == invariance.POWERS_OF_TWO and invariance.sees_scale(name):
        name = "urank, standard"
    assert runner.outcome(invariance.compare, [str(tmp_path), name, [change], 0]) == ("works", "")
