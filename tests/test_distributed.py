"""Teams: several processes give what one gives. The processes run tests/team_program.py."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tierank
from tests import team_program
from tests.thread_team import LONG, in_threads
from tierank.cli import main
from tierank.data.team import Team, cut_queries
from tierank.distributed import processes as launching
from tierank.distributed.processes import TIMEOUT, join, open_meeting
from tierank.errors import DataError, ParameterError, TeamError
from tierank.kernels import most_workers
from tierank.rankers import lightgbm as lightgbm_adapter
from tierank.rankers.team_checks import agreement, check_contents, facts_of_call

PROGRAM = Path(team_program.__file__)
lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def environment(number, size, meeting):
    """What torchrun tells each process."""
    place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": meeting.port, "TORCHELASTIC_USE_AGENT_STORE": True}
    return os.environ | {name: str(value) for name, value in (place | where).items()}


def together(program, size, out):
    """What each process of a team found: arrays, and the rest."""
    meeting = open_meeting()
    command = [sys.executable, str(PROGRAM), program, str(out)]
    running = [subprocess.Popen(command, env=environment(number, size, meeting)) for number in range(size)]
    assert [process.wait(LONG) for process in running] == [0] * size
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


def test_parts_of_a_team_are_all_queries_once():
    data = tierank.make_ranking(30, n_features=3, mean_length=9, max_length=30)
    parts = []
    for number in range(4):
        team = Team()
        team.size, team.rank = 4, number
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


@pytest.mark.parametrize("name", ["urank", "uboost", "urboost", "given", "trees on a network"])
def test_networks_learn_what_one_process_learns(name, team, alone):
    expected = alone[0][name]
    for arrays, _ in team:
        # Adam divides by the size of gradients: where those are nothing but rounding, so are its steps.
        assert np.corrcoef(arrays[name], expected)[0, 1] > 0.999


@pytest.mark.parametrize("name", ["urank", "listmle", "uboost", "urboost", "given", "trees on a network"])
def test_all_processes_end_with_the_same_network(name, team):
    for arrays, _ in team[1:]:
        np.testing.assert_array_equal(arrays[name], team[0][0][name])


@pytest.mark.parametrize("name", ["urank", "listmle", "uboost", "urboost", "given"])
def test_a_process_needs_no_more_than_its_own_queries(name, team):
    """Given its part alone, or all data of which it takes its part: the same bits."""
    for arrays, _ in team:
        np.testing.assert_array_equal(arrays[f"{name}, parted"], arrays[name])


def test_blends_are_those_of_one_process(team, alone):
    for arrays, told in team:
        for name in ("blend", "blend, parted", "blend, read"):
            np.testing.assert_array_equal(arrays[name], team[0][0]["blend"])
        assert told["blend"] == team[0][1]["blend"]
        assert told["blend"][2] == alone[1]["blend"][2]
        # Networks draw dropout for themselves, and LightGBM guesses the documents of a leaf; linear rankers are exact.
        np.testing.assert_allclose(arrays["turning"], alone[0]["turning"], rtol=1e-6, atol=1e-8)
        assert told["turning"] == pytest.approx(alone[1]["turning"], abs=1e-9)


def test_each_document_is_held_by_one_process(team):
    train, _ = team_program.generated()
    held = [told["held"] for _, told in team]
    assert sum(held) == train.n_documents
    assert max(held) < 1.2 * train.n_documents / len(team)


def test_a_checkpoint_resumes_with_another_number_of_processes(team, tmp_path_factory):
    found = next(iter(sorted(tmp_path_factory.getbasetemp().glob("team*/checkpoint"))))
    stopped = json.loads((found / "state.json").read_text())["states"]["0"]
    assert 0 < stopped["epoch"] < 6
    resumed = team_program.resumable(found)
    whole = team_program.resumable(None)
    assert [row["epoch"] for row in resumed.history_] == [1, 2, 3, 4, 5, 6]
    assert resumed.history_[: stopped["epoch"]] == stopped["history"]
    losses = [[row["loss"] for row in ranker.history_] for ranker in (resumed, whole)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    _, valid = team_program.generated()
    # Losses do not see a shift of all scores: the gradient of the last bias is rounding, which Adam makes steps of.
    found, expected = (scores - scores.mean() for scores in (resumed.predict(valid), whole.predict(valid)))
    np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(expected).max())


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
        assert [process["rank"] for process in attended] == list(range(len(team)))
        assert len({process["pid"] for process in attended}) == len(team)
        assert sum(process["documents"] for process in attended) == train.n_documents
        assert sum(process["queries"] for process in attended) == train.n_queries


@pytest.mark.parametrize(("name", "metric"), [("umart", "ndcg@10"), ("err", "err@5")])
def test_metrics_are_of_all_validation_queries(name, metric, team):
    _, valid = team_program.generated()
    arrays, told = team[0]
    best = told[name]["best"]
    assert best in told[name]["history"]
    assert tierank.evaluate(valid, arrays[name], [metric]).mean(metric) == pytest.approx(best[metric], abs=1e-12)


def test_linear_rankers_are_those_of_one_process(team, alone):
    for arrays, told in team:
        for name in ("linear", "linear, fixed", "linear, standard"):
            np.testing.assert_allclose(arrays[name], alone[0][name], rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(arrays["linear, parted"], alone[0]["linear, fixed"], rtol=1e-7, atol=1e-9)
        for row, expected in zip(told["linear"], alone[1]["linear"], strict=True):
            assert row == pytest.approx(expected, abs=1e-9)
        for name in ("linear", "linear, fixed", "linear, parts in turn", "linear, standard", "linear, parted"):
            assert arrays[name].tobytes() == team[0][0][name].tobytes()
        np.testing.assert_allclose(
            arrays["linear, standard, parted"], alone[0]["linear, standard"], rtol=1e-7, atol=1e-9
        )


def test_early_stopping_stops(team):
    history = team[0][1]["err"]["history"]
    assert len(history) < 60
    values = [row["err@5"] for row in history]
    assert len(values) - 1 - int(np.argmax(values)) == 5


def test_the_callbacks_of_the_first_process_stop_all(team):
    for number, (_, told) in enumerate(team):
        assert told["stopped"]["asked"] == ([1, 2, 3, 1, 2, 3] if number == 0 else [])
        assert told["stopped"]["rounds"] == [3, 3]
        words = "InterruptedError: no more" if number == 0 else "TeamError: process 0: a callback failed: no more"
        assert told["refused"]["callback"] == words


def test_trees_of_a_start_are_kept_by_all(team):
    for _, told in team:
        assert told["stopped"]["text"] == team[0][1]["stopped"]["text"]
        assert told["stopped"]["text"].count("\nTree=") == told["stopped"]["before"] + 2
        assert (
            "process 1 of 3: the arguments of fit differ from those of process 0: other start"
            in told["refused"]["start"]
        )


def test_parts_that_were_placed_give_the_same_trees(team):
    for _, told in team:
        assert splits(told["parted"]["text"])[:2] == splits(told["umart"]["text"])[:2]
        assert told["parted"]["history"][0] == pytest.approx(told["umart"]["history"][0], abs=1e-9)


def test_ratings_of_one_part_decide_for_all(team, alone):
    for _, told in team:
        assert told["fallen"] == team[0][1]["fallen"]
        # Further down LightGBM guesses in a team how many documents there are, from hessians.
        assert first_tree(told["fallen"])[:5] == first_tree(alone[1]["fallen"])[:5]


# What a team agrees on before it trains


SMALL = team_program.weighted(tierank.make_ranking(12, n_features=9, mean_length=6, max_length=9, seed=2))


@given(
    st.sampled_from(["features", "ratings", "query_ids", "row_weight", "query_weight"]),
    st.integers(0, 10**6),
    st.floats(width=32) | st.sampled_from([0.0, math.nan, math.inf, -math.inf, 1e-45, -1e30]),
    st.integers(2, 4),
    st.data(),
)
def test_one_changed_number_is_noticed_wherever_it_is(name, place, value, size, data):
    number = data.draw(st.integers(0, size - 1))
    values = np.array(getattr(SMALL, name))
    place %= values.size
    if name == "query_ids":
        value = int(10**6 if not math.isfinite(value) else value % 10**6 + 10**6)
    assume(not np.array_equal(values.reshape(-1)[[place]], np.array([value], values.dtype), equal_nan=True))
    values.reshape(-1)[place] = value
    other = team_program.again(SMALL, **{name: values})
    as_valid = data.draw(st.booleans())

    def work(team):
        given = other if team.rank == number else SMALL
        check_contents(team, *((SMALL, given) if as_valid else (given, None)), n_jobs=1)

    odd, usual = (number, int(number == 0)) if size > 2 else (1, 0)
    area = "validation data" if as_valid else "training data"
    what = name.replace("query_ids", "query ids")
    for error in in_threads(work, size):
        assert isinstance(error, TeamError)
        assert str(error).startswith(
            f"process {odd} of {size}: the {area} differ from those of process {usual}: other {what}; start every"
        )


@given(st.integers(1, 4), st.booleans())
def test_a_team_that_agrees_goes_on(size, holds_parts):
    def work(team):
        with agreement(team) as facts:
            facts["settings"] = {"seed": 3, "gain": None, "rate": math.nan}
        own = SMALL.select([team.rank]) if holds_parts else SMALL
        check_contents(team, own, own, n_jobs=1)

    assert in_threads(work, size, holds_parts) == [None] * size


def test_the_odd_one_out_is_named_and_long_values_are_cut():
    told = [{"seed": 1}, {"seed": 1, "names": "x" * 99}, {"seed": 1}, {**{f"p{k}": k for k in range(7)}, "seed": 2}]

    def work(team):
        with agreement(team) as facts:
            facts["settings"] = told[team.rank]

    message = (
        f"process 1 of 4: the settings differ from those of process 0: names {'x' * 60}..., expected none; others"
        " differ too: process 3; start every process with the same data, settings and versions"
    )
    assert [str(error) for error in in_threads(work, 4)] == [message] * 4
    del told[1]["names"]
    assert (
        "process 3 of 4: the settings differ from those of process 0: seed 2, expected 1; p0 0, expected none"
        in str(in_threads(work, 4)[0])
    )
    assert "; and 3 more;" in str(in_threads(work, 4)[0])


def test_what_one_process_refuses_all_of_them_know():
    def work(team):
        with agreement(team):
            if team.rank == 1:
                raise ZeroDivisionError

    errors = in_threads(work, 3)
    assert [type(error) for error in errors] == [TeamError, ZeroDivisionError, TeamError]
    assert str(errors[0]) == "process 1 of 3: ZeroDivisionError"


def test_another_version_on_another_host_is_named(monkeypatch):
    monkeypatch.setattr(Team, "hosts", ["10.0.0.1", "10.0.0.2", "10.0.0.3"])

    def work(team):
        with agreement(team) as facts:
            facts |= facts_of_call("UMart", {}, {}, SMALL, None, team)
            if team.rank == 2:
                facts["versions"] |= {"lightgbm": "4.0.0"}

    for error in in_threads(work, 3):
        assert isinstance(error, TeamError)
        assert re.match(
            r"process 2 of 3 on 10\.0\.0\.3: the versions differ from those of process 0: lightgbm 4\.0\.0, expected ",
            str(error),
        )


def test_settings_that_are_objects_are_the_same_in_every_process():
    class Gain:
        def __call__(self, ratings):
            return ratings

    def work(team):
        with agreement(team) as facts:
            settings = {"gain": Gain(), "loss": partial(print, Gain()), "n_jobs": team.rank, "rate": np.float32(0.5)}
            facts |= facts_of_call("URank", settings, {"qid": True}, SMALL, None, team)

    assert in_threads(work, 2) == [None, None]


@pytest.fixture(scope="module")
def differing(tmp_path_factory):
    return [told for _, told in together("differences", 2, tmp_path_factory.mktemp("differing") / "out")]


SAID = {
    "ratings": "the training data differ from those of process 0: other ratings;",
    "first feature": "the training data differ from those of process 0: other features;",
    "last feature": "the training data differ from those of process 0: other features;",
    "order": "the training data differ from those of process 0: other query ids; other lengths of queries; other",
    "one query fewer": r"the training data differ from those of process 0: 35 queries, expected 36; \d+ documents, exp",
    "query ids": "the training data differ from those of process 0: other query ids;",
    "lengths": "the training data differ from those of process 0: other lengths of queries;",
    "row weight": "the training data differ from those of process 0: other row_weight;",
    "query weight": "the training data differ from those of process 0: other query_weight;",
    "no weights": "the training data differ from those of process 0: no row_weight, expected some; no query_weight, e",
    "names": "the training data differ from those of process 0: feature 9 x, expected i; the validation data differ",
    "no names": "the training data differ from those of process 0: no feature 1, expected a; no feature 2, expected b;",
    "one feature fewer": "the training data differ from those of process 0: 8 features, expected 9; no feature 9, exp",
    "no ratings": "this data set has no ratings",
    "smaller validation data": "the validation data differ from those of process 0: 23 queries, expected 24;",
    "feature of validation data": "the validation data differ from those of process 0: other features;",
    "no validation data": "the validation data differ from those of process 0: none, expected some;",
    "seed": "the settings differ from those of process 0: seed 5, expected 0;",
    "rule": "the settings differ from those of process 0: rule letor, expected tierank;",
    "checkpoint": "the arguments of fit differ from those of process 0: checkpoint some, expected none;",
    "version": r"the versions differ from those of process 0: torch 1\.0, expected 2",
}


@pytest.mark.parametrize("what", team_program.DIFFERENCES)
def test_a_process_with_something_else_is_named_by_all(what, differing):
    for name, (number, told) in product(team_program.TRAINED, enumerate(differing)):
        if what == "seed" and "seed" not in team_program.TRAINED[name].declared_settings():
            continue
        refused = told[f"{name}: {what}"]
        if what == "no ratings" and number == 1:
            assert refused.startswith("DataError: this data set has no ratings"), name
        else:
            assert re.match(f"TeamError: process 1 of 2: {SAID[what]}", refused), name


@pytest.mark.parametrize("what", team_program.OF_PARTS)
def test_what_parts_must_have_in_common(what, differing):
    assert re.match(f"TeamError: process 1 of 2: {SAID[what]}", differing[0][f"parts: {what}"])


def test_what_else_a_team_disagrees_on(differing):
    for told in differing:
        assert told["other ranker"].startswith("TeamError: process 1 of 2: the settings differ from those of process 0")
        assert "ranker UMart, expected URank" in told["other ranker"]
        assert told["untouched"] == []
        assert told["parts in one"].startswith(
            "TeamError: process 1 of 2: the arguments of fit differ from those of process 0: data a part, expected all;"
        )
        assert told["parts: twice"].startswith(
            "TeamError: process 1 of 2: expected a part of the training data that no other process has, got the queries"
            " and ratings of process 0;"
        )
    assert [told["refused by one"].split("'")[0] for told in differing] == [
        "TeamError: process 1 of 2: n_leaves: expected an integer >= 2 and <= 131072, got 1",
        "ParameterError: n_leaves: expected an integer >= 2 and <= 131072, got 1",
    ]
    assert [told["wrong type"] for told in differing] == [
        "TeamError: process 1 of 2: valid: expected a RankingDataset or (X, y, qid), got int",
        "DataError: valid: expected a RankingDataset or (X, y, qid), got int",
    ]


def test_a_team_that_disagreed_can_go_on(differing):
    assert differing[0]["in the end"] == differing[1]["in the end"]
    assert splits(differing[0]["in the end"])


# What goes wrong


def test_refusals_say_what_to_do(team):
    for _, told in team:
        refused = told["refused"]
        assert refused["unlisted"].startswith("DataError: qid: expected query ids in fit if several processes train")
        assert re.match(r"TrainingStopped: the loss of query \d+ is not finite in epoch 1", refused["explodes"])
        assert refused["few"].startswith("DataError: expected at least one query for each of")
        assert refused["parts"].startswith("ParameterError: team: got a part in each (holds_parts), and these settings")
    assert len({told["refused"]["explodes"] for _, told in team}) == 1


def test_who_is_deserted_does_not_wait_forever(team):
    answers = [told["refused"]["deserted"] for _, told in team]
    assert answers[1] == "InterruptedError: enough"
    for number in {0, 2} & set(range(len(team))):
        assert answers[number].startswith(
            f"TeamError: process {number} of {len(team)} on 127.0.0.1: lost contact with the other processes"
        )


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_sockets_of_lightgbm_wait_as_long_as_the_team_does(team):
    """Not as long as connecting may take, which is all that LightGBM knows."""
    for _, told in team:
        [[before, after]] = told["limits"]
        assert len(before) == len(team) - 1
        # 0 in LightGBM 4.6: some wait without an end
        assert {seconds for seconds, _ in before} <= {60 * lightgbm_adapter._CONNECT, 0}
        assert {seconds for seconds, _ in after} == {TIMEOUT}


def test_sockets_of_lightgbm_have_buffers_that_the_system_fits_to_the_network(team):
    """LightGBM fixes them, so that hosts that are far apart wait for each other most of the time."""
    for _, told in team:
        [[before, after]] = told["limits"]
        assert {fixed for _, fixed in before} == {3}
        assert [fixed for _, fixed in after] == [0] * (len(team) - 1)


def test_leaves_may_be_small(team):
    assert splits(team[0][1]["none too few"]["text"]) == splits(team[0][1]["umart"]["text"])


def test_join_needs_a_place(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ParameterError, match="rank: expected a number, or RANK in the environment as torchrun sets"):
        join()
    with pytest.raises(ParameterError, match="rank: expected 0 to 1 in a team of 2, got 2"):
        join(2, 2, "127.0.0.1:1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rank": "a"}, "rank: expected an integer >= 0"),
        ({"rank": 0.5}, "rank: expected an integer >= 0"),
        ({"size": 10**30}, "size: expected an integer >= 0 and <= 1048576"),
        ({"address": "127.0.0.1"}, "address: expected host:port, with a port from 0 to 65535, got '127.0.0.1'"),
        ({"address": "127.0.0.1:99999"}, "address: expected host:port, with a port from 0 to 65535, got"),
        ({"address": 5}, "address: expected host:port, with a port from 0 to 65535, got 5"),
        ({"timeout": 0}, "timeout: expected a number > 0"),
        ({"timeout": float("nan")}, "timeout: expected a number > 0"),
        ({"timeout": 1e300}, r"timeout: expected a number > 0 and <= 1e\+09"),
    ],
)
def test_places_that_cannot_be(given, message):
    with pytest.raises(ParameterError, match=message):
        join(**{"rank": 0, "size": 2, "address": "127.0.0.1:0"} | given)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("RANK", "", "rank: expected a number, or RANK in the environment"),
        ("RANK", "\u00b2", "rank: expected a number, or RANK in the environment"),
        ("RANK", "7", "rank: expected 0 to 1 in a team of 2, got 7"),
        ("WORLD_SIZE", "two", "size: expected a number, or WORLD_SIZE in the environment"),
        ("WORLD_SIZE", "9" * 20, "WORLD_SIZE in the environment: expected an integer >= 0 and <= 1048576, got 9999"),
        ("MASTER_PORT", "99999", "MASTER_PORT in the environment: expected an integer >= 0 and <= 65535, got 99999"),
        ("MASTER_PORT", "1.5", "port: expected a number, or MASTER_PORT in the environment"),
    ],
)
def test_environments_that_cannot_be(variable, text, message, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "0", variable: text}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ParameterError, match=message):
        join()


def test_an_empty_variable_is_none(files, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "")
    assert main(tierank_train(files, tmp_path / "m", "linear")) == 0


def test_a_process_that_waits_in_vain_gives_up():
    with pytest.raises(TeamError, match=r"process 0 of 2: expected all processes at 127\.0\.0\.1:\d+ within 1 seconds"):
        join(0, 2, "127.0.0.1:0", timeout=1)


# The command line


def tierank_train(files, out, ranker, *more):
    data = ["--train", str(files / "train.txt"), "--valid", str(files / "valid.txt")]
    return ["train", ranker, *data, "--out", str(out), "--set", "n_jobs=1", *more]


def test_ranks_train_one_model(files, tmp_path, capfd):
    assert main(tierank_train(files, tmp_path / "m", "umart", "--ranks", "2", "--set", "n_trees=20")) == 0
    said = capfd.readouterr()
    assert said.out == ""
    assert re.search(r"wrote .*m, trained by 2 processes; on validation data: ndcg@10 0\.\d+", said.err)
    assert not (tmp_path / "m.checkpoint").exists()
    train, valid = team_program.generated()
    ranker = tierank.load(tmp_path / "m")
    assert ranker.predict(valid).shape == (valid.n_documents,)
    assert int(re.search(r"internal_count=(\d+)", ranker.model_.text)[1]) == train.n_documents


def test_what_one_process_refuses_is_said_once(files, tmp_path, capfd):
    arguments = tierank_train(files, tmp_path / "m", "umart", "--ranks", "2", "--set", "categorical_feature=[99]")
    assert main(arguments) == 2
    said = capfd.readouterr().err
    assert said.count("categorical_feature: expected numbers of features below") == 1
    assert "the 2 processes have ended; the line above says why" in said


@pytest.mark.parametrize("number", [0, most_workers() + 1, 10**20])
def test_numbers_of_processes_that_no_machine_has_are_refused(files, tmp_path, capfd, monkeypatch, number):
    monkeypatch.setattr("tierank.distributed.processes.launch", None)  # starts nothing
    assert main(tierank_train(files, tmp_path / "m", "umart", "--ranks", str(number))) == 2
    assert f"ranks: expected an integer >= 1 and <= {most_workers()}, got {number}" in capfd.readouterr().err


def with_fault(name, monkeypatch, grace=2.0):
    """Let something happen to a process of those that the command line starts."""
    monkeypatch.setattr(launching, "_PROGRAM", (sys.executable, str(PROGRAM), "cli", name))
    monkeypatch.setattr(launching, "_GRACE", grace)


@pytest.mark.parametrize("blow", ["killed", "stopped"])
def test_a_lost_process_ends_the_others_and_the_run_goes_on(blow, files, tmp_path, capfd, monkeypatch):
    out = tmp_path / "m"
    assert main(tierank_train(files, out, "umart", "--set", "n_trees=2")) == 0
    arguments = tierank_train(files, out, "umart", "--set", "n_trees=120", "--set", "patience=1000")
    with_fault(blow, monkeypatch, grace=LONG if blow == "killed" else 2.0)
    assert main([*arguments, "--ranks", "2"]) == 2
    said, state = capfd.readouterr().err, tmp_path / "m.checkpoint" / "state.json"
    assert f"{state.parent} holds its state: --resume continues from it, with any --ranks" in said
    assert "process 0 of 2 on 127.0.0.1: lost contact with the other processes (1 on 127.0.0.1)" in said
    if blow == "killed":
        assert "process 1 of 2: was ended by SIGKILL; it probably ran out of memory" in said
    else:
        assert "process 1 of 2: did not respond, and was killed" in said
    assert len(tierank.load(out).history_) == 2  # the earlier model stays, and does not count as the new one
    learned = json.loads(state.read_text())["history"]
    assert 50 <= len(learned) < 120
    assert main([*arguments, "--resume"]) == 0
    assert tierank.load(out).history_[: len(learned)] == learned
    assert len(tierank.load(out).history_) == 120


@pytest.mark.parametrize(
    ("fault", "words", "is_new"),
    [
        ("first killed after saving", "process 0 of 2: was ended by SIGKILL", False),
        ("last killed after saving", "process 1 of 2: was ended by SIGKILL", True),
        ("silent after saving", "process 1 of 2: did not respond, and was killed", True),
    ],
)
def test_a_model_that_was_written_counts(fault, words, is_new, files, tmp_path, capfd, monkeypatch):
    if not is_new:
        assert main(tierank_train(files, tmp_path / "m", "umart", "--set", "n_trees=2")) == 0
    with_fault(fault, monkeypatch, grace=LONG if "killed" in fault else 2.0)
    assert main(tierank_train(files, tmp_path / "m", "umart", "--set", "n_trees=5", "--ranks", "2")) == 0
    said = capfd.readouterr().err
    assert words in said
    assert f"that was after the end of training: {tmp_path / 'm'} is complete" in said
    assert len(tierank.load(tmp_path / "m").history_) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_other_data_end_the_command_before_it_trains(files, tmp_path, capfd, monkeypatch):
    with_fault("other file", monkeypatch, grace=LONG)
    assert main(tierank_train(files, tmp_path / "m", "umart", "--ranks", "2")) == 2
    said = capfd.readouterr().err
    assert said.count("process 1 of 2: the training data differ from those of process 0: other features") == 1
    assert "the 2 processes have ended; the line above says why" in said
    assert not list(tmp_path.iterdir())


def test_each_process_that_torchrun_starts_says_what_differs(files, tmp_path):
    """As torchrun on two machines, where one has another file under the same name."""
    meeting, running = open_meeting(), []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, data in zip(("train", "valid"), team_program.generated(), strict=True):
            tierank.write(data.select(np.arange(data.n_queries - number)), folder / f"{name}.txt")
        command = [sys.executable, "-m", "tierank", *tierank_train(folder, tmp_path / "m", "urank")]
        running.append(
            subprocess.Popen(command, env=environment(number, 2, meeting), stderr=subprocess.PIPE, text=True)
        )
    for process in running:
        _, said = process.communicate(timeout=LONG)
        assert process.returncode == 2
        assert "tierank: process 1 of 2: the training data differ from those of process 0: 35 queries, expected" in said
        assert "the validation data differ from those of process 0: 23 queries, expected 24" in said
    assert not (tmp_path / "m").exists()


def test_who_is_told_to_stop_blames_no_process(monkeypatch):
    started = []

    class Sleeper(launching._Process):
        def __init__(self, arguments, number, size, port, folder):
            self.number, self.was_ended = number, False
            self.running = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"])
            started.append(self)
            if number == size - 1:
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(launching, "_Process", Sleeper)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        launching.launch([], 2)
    assert [process.code for process in started] == [-signal.SIGTERM] * 2


def test_processes_that_started_end_where_another_cannot_start(monkeypatch):
    started = []

    class Sleeper(launching._Process):
        def __init__(self, arguments, number, size, port, folder):
            if number == 2:
                raise OSError("no more processes")
            self.number, self.was_ended = number, False
            self.running = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"])
            started.append(self)

    monkeypatch.setattr(launching, "_Process", Sleeper)
    with pytest.raises(OSError, match="no more processes"):
        launching.launch([], 3)
    assert [process.code for process in started] == [-signal.SIGTERM] * 2
