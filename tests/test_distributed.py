"""Teams: several processes give what one gives. The processes run tests/team_program.py."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tierank
from tests import team_program
from tierank.cli import main
from tierank.distributed import launch as launching
from tierank.distributed.processes import free_port, join
from tierank.errors import DataError, ParameterError, TeamError
from tierank.team import Team, cut_queries, deal_queries

PROGRAM = Path(team_program.__file__)
lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def environment(number, size, port):
    place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    return os.environ | {k: str(v) for k, v in (place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}).items()}


def together(program, size, out):
    """What each process of a team found: arrays, and the rest."""
    port = free_port()
    command = [sys.executable, str(PROGRAM), program, str(out)]
    running = [subprocess.Popen(command, env=environment(number, size, port)) for number in range(size)]
    assert [process.wait(240) for process in running] == [0] * size
    found = []
    for number in range(size):
        with np.load(f"{out}.{number}.npz") as arrays:
            found.append((dict(arrays), json.loads(Path(f"{out}.{number}.json").read_text())))
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "0"
    team_program.everything(Team(), str(out))
    with np.load(f"{out}.npz") as arrays:
        return dict(arrays), json.loads(Path(f"{out}.json").read_text())


@pytest.fixture(scope="module", params=[3])
def team(request, tmp_path_factory):
    return together("everything", request.param, tmp_path_factory.mktemp("team") / "out")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for name, data in zip(("train", "valid"), team_program.generated(), strict=True):
        tierank.write(data, folder / f"{name}.txt")
    return folder


# Sharing


@given(lengths, st.integers(1, 6))
def test_cuts_leave_no_part_empty_and_share_documents(sizes, n_parts):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    if len(sizes) < n_parts:
        with pytest.raises(DataError, match="at least one query for each of"):
            cut_queries(offsets, n_parts)
        return
    cuts = cut_queries(offsets, n_parts)
    assert cuts[0] == 0
    assert cuts[-1] == len(sizes)
    assert (np.diff(cuts) >= 1).all()
    if len(sizes) >= n_parts * 6:  # enough queries to choose from: no part is more than a query off its share
        documents = np.diff(offsets[cuts])
        assert (abs(documents - offsets[-1] / n_parts) <= 2 * max(sizes)).all()


@given(lengths, st.integers(1, 6))
def test_dealing_differs_by_one_query_at_most(sizes, n_hands):
    hands = deal_queries(np.array(sizes), n_hands)
    loads = np.bincount(hands, weights=sizes, minlength=n_hands)
    assert loads.max() - loads.min() <= max(sizes)


def test_parts_of_a_team_are_all_queries_once():
    data = tierank.make_ranking(30, n_features=3, mean_length=9, max_length=30)
    parts = []
    for number in range(4):
        team = Team()
        team.size, team.number = 4, number
        parts.append(team.part(data))
        assert np.shares_memory(parts[-1].features, data.features)
    assert np.concatenate([part.query_ids for part in parts]).tolist() == data.query_ids.tolist()
    np.testing.assert_array_equal(np.concatenate([part.features for part in parts]), data.features)


def test_messages_reach_everybody(team):
    size = len(team)
    for number, (arrays, told) in enumerate(team):
        assert (told["number"], told["size"]) == (number, size)
        assert told["gathered"] == [{"I am": k} for k in range(size)]
        assert told["shared"] == "from the first"
        assert told["nothing"] is None
        assert arrays["sum"].tolist() == [size * (size + 1) / 2] * 3
        assert int(arrays["bits"][0]) == (size * 2**63 + sum(range(size))) % 2**64
        assert arrays["rows"].tolist() == [[k, k] for k in range(size) for _ in range(k + 1)]


# Networks


@pytest.mark.parametrize("name", [*team_program.STEADY, "weighted", "lonely"])
def test_gradients_are_those_of_one_process(name, team, alone):
    expected = alone[0][f"gradient {name}"]
    assert abs(expected[1:]).max() > 0
    for arrays, _ in team:
        found = arrays[f"gradient {name}"]
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
        assert abs(found[1:] - expected[1:]).max() <= 1e-6 * max(1.0, abs(expected[1:]).max())


@pytest.mark.parametrize("name", ["urank", "uboost", "urboost"])
def test_networks_learn_what_one_process_learns(name, team, alone):
    expected = alone[0][name]
    for arrays, _ in team:
        # Adam divides by the size of gradients: where those are nothing but rounding, so are its steps.
        assert np.corrcoef(arrays[name], expected)[0, 1] > 0.999


@pytest.mark.parametrize("name", ["urank", "listmle", "uboost", "urboost"])
def test_all_processes_end_with_the_same_network(name, team):
    for arrays, _ in team[1:]:
        np.testing.assert_array_equal(arrays[name], team[0][0][name])


def test_a_checkpoint_resumes_with_another_number_of_processes(team, tmp_path_factory):
    found = next(iter(sorted(tmp_path_factory.getbasetemp().glob("team*/checkpoint"))))
    stopped = json.loads((found / "state.json").read_text())["states"]["0"]
    assert 0 < stopped["epoch"] < 6
    resumed = team_program.resumable(found)
    whole = team_program.resumable(None)
    assert [row["epoch"] for row in resumed.history_] == [1, 2, 3, 4, 5, 6]
    assert resumed.history_[: stopped["epoch"]] == stopped["history"]
    _, valid = team_program.generated()
    assert np.corrcoef(resumed.predict(valid), whole.predict(valid))[0, 1] > 0.999


# Trees


def splits(text):
    return re.findall(r"^(?:split_feature|threshold)=.*$", text, re.MULTILINE)


def first_tree(text):
    """The splits of the first tree, each by feature and threshold."""
    features, thresholds = (line.partition("=")[2].split() for line in splits(text)[:2])
    return list(zip(features, thresholds, strict=True))


@pytest.mark.parametrize("name", ["umart", "lambdamart"])
def test_trees_are_those_of_one_process(name, team, alone):
    _, one = alone
    for _, told in team:
        assert splits(told[name]["text"])[:2] == splits(one[name]["text"])[:2]
        final = [history[-1]["ndcg@10"] for history in (told[name]["history"], one[name]["history"])]
        assert abs(final[0] - final[1]) < 0.05


@pytest.mark.parametrize("name", ["umart", "lambdamart", "loss", "err", "bagged", "copies"])
def test_all_processes_end_with_the_same_trees(name, team):
    for _, told in team[1:]:
        assert told[name]["text"] == team[0][1][name]["text"]
        assert told[name]["history"] == team[0][1][name]["history"]


def test_roots_count_all_documents(team):
    train, _ = team_program.generated()
    for _, told in team:
        roots = re.findall(r"^internal_count=(\d+)", told["umart"]["text"], re.MULTILINE)
        assert {int(root) for root in roots} == {train.n_documents}
        attended = told["umart"]["team"]
        assert [process["number"] for process in attended] == list(range(len(team)))
        assert len({process["pid"] for process in attended}) == len(team)
        assert sum(process["documents"] for process in attended) == train.n_documents
        assert sum(process["queries"] for process in attended) == train.n_queries


@pytest.mark.parametrize(("name", "metric"), [("umart", "ndcg@10"), ("err", "err@5")])
def test_metrics_are_of_all_validation_queries(name, metric, team):
    _, valid = team_program.generated()
    arrays, told = team[0]
    best = max(row[metric] for row in told[name]["history"])
    assert tierank.evaluate(valid, arrays[name], [metric]).mean(metric) == pytest.approx(best, abs=1e-12)


def test_early_stopping_stops(team):
    history = team[0][1]["err"]["history"]
    assert len(history) < 60
    values = [row["err@5"] for row in history]
    assert len(values) - 1 - int(np.argmax(values)) == 5


def test_parts_that_were_placed_give_the_same_trees(team):
    for _, told in team:
        assert splits(told["parted"]["text"])[:2] == splits(told["umart"]["text"])[:2]
        assert told["parted"]["history"][0] == pytest.approx(told["umart"]["history"][0], abs=1e-9)


def test_ratings_of_one_part_decide_for_all(team, alone):
    for _, told in team:
        assert told["fallen"] == team[0][1]["fallen"]
        # Further down LightGBM guesses in a team how many documents there are, from hessians.
        assert first_tree(told["fallen"])[:5] == first_tree(alone[1]["fallen"])[:5]


# What goes wrong


def test_refusals_say_what_to_do(team):
    for _, told in team:
        refused = told["refused"]
        assert refused["blend"].startswith("ParameterError: team: expected a ranker of trees or networks, got Blend")
        assert refused["base"].startswith("ParameterError: base: expected None in a team")
        assert re.match(r"ParameterError: the loss of query \d+ is not finite in epoch 1", refused["explodes"])
        assert refused["few"].startswith("DataError: expected at least one query for each of")
        assert refused["parts"].startswith("ParameterError: team: networks draw queries from all data")
    assert len({told["refused"]["explodes"] for _, told in team}) == 1


def test_who_is_deserted_does_not_wait_forever(team):
    answers = [told["refused"]["deserted"] for _, told in team]
    assert answers[1] == "InterruptedError: enough"
    for number in {0, 2} & set(range(len(team))):
        assert answers[number].startswith(
            f"TeamError: process {number} of {len(team)}: expected an answer of the others"
        )


def test_leaves_may_be_small(team):
    assert splits(team[0][1]["none too few"]["text"]) == splits(team[0][1]["umart"]["text"])


def test_join_needs_a_place(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ParameterError, match="number: expected a number, or RANK in the environment as torchrun sets"):
        join()
    with pytest.raises(ParameterError, match="number: expected 0 to 1 in a team of 2, got 2"):
        join(2, 2, "127.0.0.1:1")


def test_a_process_that_waits_in_vain_gives_up():
    with pytest.raises(TeamError, match=r"process 0 of 2: expected all processes at 127\.0\.0\.1:\d+ within 1 seconds"):
        join(0, 2, f"127.0.0.1:{free_port()}", timeout=1)


# The command line


def tierank_train(files, out, ranker, *more):
    data = ["--train", str(files / "train.txt"), "--valid", str(files / "valid.txt")]
    return ["train", ranker, *data, "--out", str(out), "--set", "n_jobs=1", *more]


def test_ranks_train_one_model(files, tmp_path, capfd):
    assert main(tierank_train(files, tmp_path / "m", "umart", "--ranks", "2", "--set", "n_trees=20")) == 0
    said = capfd.readouterr()
    assert said.out == ""
    assert re.search(r"wrote .*m, trained by 2 processes on validation data: ndcg@10 0\.\d+", said.err)
    assert not (tmp_path / "m.checkpoint").exists()
    train, valid = team_program.generated()
    ranker = tierank.load(tmp_path / "m")
    assert ranker.predict(valid).shape == (valid.n_documents,)
    assert int(re.search(r"internal_count=(\d+)", ranker.model_text_)[1]) == train.n_documents


def test_what_one_process_refuses_is_said_once(files, tmp_path, capfd):
    arguments = tierank_train(files, tmp_path / "m", "umart", "--ranks", "2", "--set", "base=3")
    assert main(arguments) == 2
    said = capfd.readouterr().err
    assert said.count("base: expected") == 1
    assert "the 2 processes have ended; the line above says why" in said
    assert main(tierank_train(files, tmp_path / "m", "umart", "--ranks", "0")) == 2
    assert "ranks: expected" in capfd.readouterr().err


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_ends_the_others_and_the_run_goes_on(blow, files, tmp_path, capfd):
    out = tmp_path / "m"
    settings = ("--set", "n_trees=700", "--set", "patience=1000", "--timeout", "3")
    command = [sys.executable, "-m", "tierank.cli", *tierank_train(files, out, "umart", *settings)]
    with subprocess.Popen([*command, "--ranks", "2"], stderr=subprocess.PIPE, text=True) as running:
        state = tmp_path / "m.checkpoint" / "state.json"
        limit = time.monotonic() + 60
        while not state.exists() and time.monotonic() < limit:
            time.sleep(0.01)
        os.kill(children(running.pid)[1], blow)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 2
    assert f"{state.parent} keeps what was learned: --resume goes on from it, with any --ranks" in said
    if blow == signal.SIGKILL:
        assert "process 1 of 2 was ended by SIGKILL (out of memory?)" in said
    else:
        assert "process 0 of 2: expected an answer of the others" in said
        assert "process 1 of 2 did not answer, and was ended" in said
    learned = json.loads(state.read_text())["history"]
    assert 50 <= len(learned) < 700
    assert main([*command[3:], "--resume"]) == 0
    assert tierank.load(out).history_[: len(learned)] == learned
    assert len(tierank.load(out).history_) == 700


def children(pid):
    """The processes that another one started, in the order of their numbers."""
    tasks = Path(f"/proc/{pid}/task/{pid}/children")
    if not tasks.exists():
        pytest.skip("this system does not say which processes another one started")
    return sorted(int(child) for child in tasks.read_text().split())


def test_processes_that_started_end_where_another_cannot_start(monkeypatch):
    started = []

    class Sleeper(launching._Process):
        def __init__(self, arguments, number, size, port, folder):
            if number == 2:
                raise OSError("no more processes")
            self.number, self.was_ended = number, False
            self.running = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            started.append(self)

    monkeypatch.setattr(launching, "_Process", Sleeper)
    with pytest.raises(OSError, match="no more processes"):
        launching.launch([], 3)
    assert [process.code for process in started] == [-signal.SIGTERM] * 2
