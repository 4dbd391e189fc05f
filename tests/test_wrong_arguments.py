"""Values of the wrong kind: every public function refuses them with an error of tierank that names the argument."""

import dataclasses
import inspect
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import tierank
from tierank import LambdaMART, ParameterError, TierankError, UMart, cli

WRONG = [object(), 3.5, "x", [], {}, -1, True, b"\xff", ["x"], UMart]
# The functions whose arguments are tried; ``arguments`` has right ones.
NAMES = [
    *("compare", "describe", "evaluate", "explain_pair", "explain_query", "load", "make_ranking", "plot_history"),
    *("plot_importance", "plot_wins", "profile", "read", "read_scores", "scorer", "side_by_side", "tabulate"),
    *("verify", "write", "write_profile", "write_qrels", "write_report", "write_run", "write_scores"),
]


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(24, n_features=4, mean_length=6, max_length=10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("wrong")


@pytest.fixture(scope="module")
def arguments(data, folder):
    """Arguments that each function accepts."""
    train, valid = data.split(0.6, 0.4)
    ranker = LambdaMART(n_trees=3).fit(train, valid=valid)
    scores = ranker.predict(data)
    systems = {"model": scores, "first": data.features[:, 0]}
    run = tierank.cross_validate({"trees": ranker}, [data.split(0.6, 0.2, 0.2)])
    ranker.save(folder / "model")
    ranker.export(folder / "solr", to="solr")
    tierank.write_scores(scores, folder / "scores.txt")
    tierank.write(data, folder / "data.txt")
    return {
        "compare": {"data": data, "scores": systems, "baseline": "first", "metrics": "ndcg@5"},
        "describe": {"data": data, "other": data},
        "evaluate": {"data": data, "scores": scores, "metrics": "ndcg@5", "rule": "tierank"},
        "explain_pair": {"ranker": ranker, "data": data, "query": 1, "above": 1, "below": 2},
        "explain_query": {"ranker": ranker, "data": data, "query": 1, "k": 2},
        "load": {"path": folder / "model", "rankers": (), "networks": (), "transforms": ()},
        "make_ranking": {"n_queries": 3, "n_features": 3, "mean_length": 4, "max_length": 6, "seed": 0},
        "plot_history": {"ranker": ranker, "metric": "ndcg@10", "axes": None},
        "plot_importance": {"ranker": ranker, "n": 3, "axes": None},
        "plot_wins": {"comparison": tierank.compare(data, systems), "system": None, "metric": None, "axes": None},
        "profile": {"data": data, "test": data},
        "read": {
            "source": folder / "data.txt",
            "format": "letor",
            "n_features": 4,
            "zero_based": False,
            "cache": False,
        },
        "read_scores": {"path": folder / "scores.txt", "data": data},
        "scorer": {"metric": "ndcg@5", "rule": "tierank"},
        "side_by_side": {"runs": {"before": run, "after": run}},
        "tabulate": {"found": run, "differences": False, "title": None},
        "verify": {"ranker": ranker, "path": folder / "solr", "to": "solr", "data": data},
        "write": {"data": data, "path": folder / "copy.txt", "format": "letor"},
        "write_profile": {"profile": tierank.profile(data), "path": folder / "data.html", "title": "Data"},
        "write_qrels": {"data": data, "path": folder / "data.qrels"},
        "write_report": {"run": run, "path": folder / "run.html", "titles": None, "by": None},
        "write_run": {"data": data, "scores": scores, "path": folder / "model.run", "name": "model"},
        "write_scores": {"scores": scores, "path": folder / "copy.scores"},
    }


def in_memory(**settings):
    """What ``pyplot.subplots`` returns, without a window, and closed at the end."""
    from matplotlib.figure import Figure

    figure = Figure(**settings)
    return figure, figure.subplots()


@pytest.mark.parametrize("name", NAMES)
def test_wrong_values_raise_no_error_but_one_of_tierank(name, arguments, folder, monkeypatch):
    if "axes" in arguments[name]:
        pytest.importorskip("matplotlib")
        monkeypatch.setattr("matplotlib.pyplot.subplots", in_memory)
    monkeypatch.chdir(folder)
    function, right = getattr(tierank, name), arguments[name]
    function(**right)
    assert set(right) <= set(inspect.signature(function).parameters)
    for argument in right:
        for wrong in WRONG:
            with suppress(TierankError):  # some values are right: "x" is a title and a path
                function(**right | {argument: wrong})


@pytest.fixture(scope="module")
def arguments_of_clicks(data, folder):
    log, _ = tierank.clicks.simulate_clicks(data, data.features[:, 0], k=5, n_sessions=200)
    model = tierank.clicks.CLICK_MODELS["pbm"]().fit(log)
    tierank.clicks.save(model, folder / "pbm.json")
    log.write(folder / "log.csv")
    as_shown = -log.positions.astype(float)
    return {
        "choose_model": {"log": log, "models": ["pbm"], "held_out": 0.25, "seed": 0},
        "compare_models": {"log": log, "models": ["pbm"], "held_out": 0.25, "seed": 0},
        "evaluate_ranking": {"log": log, "scores": as_shown, "propensities": [1.0] * 5, "method": "ips", "k": 3},
        "judgements": {"log": log, "model": "pbm", "top": 4.0, "half": 40.0},
        "load": {"path": folder / "pbm.json"},
        "make_model": {"model": "pbm"},
        "read": {"source": folder / "log.csv", "session": "session", "columns": (), "on_error": "raise"},
        "read_propensities": {"path": folder / "pbm.json"},
        "save": {"model": model, "path": folder / "copy.json"},
        "simulate_clicks": {"data": data, "scores": data.ratings, "model": "pbm", "n_sessions": 5, "k": 3, "seed": 0},
        "training_data": {"log": log, "data": data},
    }


OF_CLICKS = [
    *("choose_model", "compare_models", "evaluate_ranking", "judgements", "load", "make_model", "read"),
    *("read_propensities", "save", "simulate_clicks", "training_data"),
]


@pytest.mark.filterwarnings("ignore:the effective sample size")
@pytest.mark.parametrize("name", OF_CLICKS)
def test_wrong_values_for_clicks_raise_no_error_but_one_of_tierank(name, arguments_of_clicks, folder, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(folder)
    function, right = getattr(tierank.clicks, name), arguments_of_clicks[name]
    function(**right)
    for argument in right:
        for wrong in WRONG:
            with suppress(TierankError):
                function(**right | {argument: wrong})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data, tmp: UMart().fit(data, team=2), r"^team: expected a Team, got int; tierank\.distributed\.join"),
        (
            lambda data, tmp: tierank.explain_query("model", data, 1),
            r"^ranker: .*, got str; tierank\.load reads",
        ),
        (lambda data, tmp: tierank.explain_query(UMart, data, 1), r"this is the class; create a ranker: UMart\(\)$"),
        (lambda data, tmp: tierank.load(tmp, rankers=UMart), r"^rankers: .* got .*UMart.*; write rankers=\[UMart\]$"),
        (lambda data, tmp: tierank.load(tmp, networks=["Wide"]), "^networks: expected a list of classes, got one with"),
        (
            lambda data, tmp: tierank.write_report("run", tmp / "r.html"),
            r"^run: expected a Run, got str; .*Run\.open",
        ),
        (
            lambda data, tmp: tierank.write_profile(data, tmp / "p.html"),
            "^profile: expected a Profile, got RankingData",
        ),
        (lambda data, tmp: tierank.verify(tmp, UMart(), "c", data), "^ranker: expected a fitted ranker, got Posix"),
        (lambda data, tmp: tierank.side_by_side([1, 2]), r"^runs: expected two runs or more, by name, got \[1, 2\]$"),
        (lambda data, tmp: tierank.cross_validate(UMart, data), r"got <class .*>; this is a class; write UMart\(\)$"),
        (
            lambda data, tmp: tierank.write_run(data, data.ratings, tmp / "a.run", name="my model"),
            "^name: expected a name without blanks, got 'my model'$",
        ),
    ],
)
def test_the_message_says_what_to_give_instead(call, message, data, tmp_path):
    with pytest.raises(ParameterError, match=message):
        call(data, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([[1.0], [2.0]], r"^scores: expected a list of numbers, one per row, got shape \(2, 1\)$"),
        ([1.0, np.nan], "^scores: expected a number for every row, got NaN in row 1$"),
        (["high", "low"], "^scores: expected numbers, got "),
    ],
)
def test_scores_that_would_not_read_back_are_not_written(scores, message, tmp_path):
    data = tierank.RankingDataset([[1.0], [2.0]], [0, 1], qid=[1, 1])
    with pytest.raises(tierank.DataError, match=message):
        tierank.write_scores(scores, tmp_path / "scores.txt")
    with pytest.raises(tierank.DataError, match=message):
        tierank.write_run(data, scores, tmp_path / "scores.run")
    assert not list(tmp_path.iterdir())


def test_feature_names_and_parts_are_lists(data):
    with pytest.raises(tierank.DataError, match=r"^feature_names: expected a list of 1 names, got 'price'$"):
        tierank.RankingDataset([[1.0], [2.0]], [0, 1], qid=[1, 1], feature_names="price")
    with pytest.raises(tierank.DataError, match=r"^parts: expected a list of data sets, got int$"):
        tierank.RankingDataset.concat(3)
    with pytest.raises(tierank.DataError, match=r"^parts: expected a RankingDataset, got ndarray"):
        tierank.RankingDataset.concat([data.features, data.features])


def test_a_comparison_has_no_mark_for_unknown_names(data):
    comparison = tierank.compare(data, {"old": data.ratings, "new": data.features[:, 0]}, metrics="ndcg@5")
    assert comparison.mark("old", "ndcg@5") == ""  # the baseline
    with pytest.raises(ParameterError, match="unknown system 'newer': did you mean 'new'"):
        comparison.mark("newer", "ndcg@5")
    with pytest.raises(ParameterError, match="unknown metric of this comparison 'ndcg@50': did you mean 'ndcg@5'"):
        comparison.mark("new", "ndcg@50")


def test_numbers_as_texts_are_not_called_categories():
    with pytest.raises(tierank.DataError, match=r"^y: expected numbers, got '2'; .*convert them with astype\(float\)$"):
        tierank.RankingDataset([[1.0], [2.0]], ["2", "0"], qid=[1, 1])
    with pytest.raises(tierank.DataError, match=r"^y: expected numbers, got 'good'; encode texts"):
        tierank.RankingDataset([[1.0], [2.0]], ["good", "bad"], qid=[1, 1])


def test_a_data_set_says_which_parts_it_has(data):
    with pytest.raises(ParameterError, match="unknown part of a RankingDataset 'rating': did you mean 'ratings'"):
        data.replace(rating=data.ratings)


@pytest.mark.parametrize("n_features", [1, 4, 9])  # lines of as many fields as RankLib's scores and a TREC run have
def test_data_in_place_of_scores_are_recognised(n_features, tmp_path):
    data = tierank.RankingDataset(np.ones((2, n_features)), [0, 1], qid=[1, 1])
    tierank.write(data, tmp_path / "data.txt")
    with pytest.raises(tierank.DataError, match=r"data\.txt: expected a file of scores, got LETOR text, which"):
        tierank.read_scores(tmp_path / "data.txt", data)


@pytest.mark.parametrize("command", ["predict model data.txt", "clicks evaluate log.csv --score-column new"])
def test_the_number_of_ranks_is_checked_before_files_are_read(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("model", "data.txt", "log.csv"):
        Path(name).write_text("read too early")
    assert cli.main([*command.split(), "--k", "0"]) == 2
    assert capsys.readouterr().err == "tierank: --k: expected an integer >= 1, got 0\n"


ODD = [*WRONG, 0, None, 10**49, range(3), np.array(3), np.zeros((2, 2)), iter([1.0])]


@pytest.mark.parametrize("is_in_order", [True, False])
@pytest.mark.parametrize("name", ["arrange", "restore", "select", "split", "widen", "with_propensity", "with_features"])
def test_methods_of_data_sets_raise_no_error_but_one_of_tierank(name, is_in_order):
    data = tierank.RankingDataset(np.eye(3), [0, 1, 2], qid=["a", "a", "b"] if is_in_order else ["a", "b", "a"])
    for wrong in ODD:
        with suppress(TierankError):
            getattr(data, name)(*[wrong] if name != "with_features" else [wrong, None])


def test_values_of_rows_are_one_for_each_document():
    data = tierank.RankingDataset(np.eye(3), [0, 1, 2], qid=["a", "b", "a"])
    for convert in (data.arrange, data.restore):
        for wrong, got in ((0, "int"), ("abc", "str"), (iter([1, 2, 3]), "list_iterator"), ([1, 2], "2")):
            with pytest.raises(tierank.DataError, match="values: expected 3, one per document") as caught:
                convert(wrong)
            assert caught.value.got == got
    assert data.restore([1, 2, 3]).tolist() == [1, 3, 2]
    assert data.arrange([1, 2, 3]).tolist() == [1, 3, 2]
    for wrong in (10**49, range(3), 0, "3", 2.5):
        with pytest.raises(ParameterError, match="n_features: expected an integer") as caught:
            data.widen(wrong)
        assert caught.value.argument == "n_features"


@pytest.mark.parametrize("name", [one.name for one in dataclasses.fields(tierank.Rule)])
def test_settings_of_rules_raise_no_error_but_one_of_tierank(name):
    for wrong in [*ODD, np.array([1, 2]), [1], float("nan"), {"ndcg": "high"}, {"ndcg": np.zeros(2)}]:
        with suppress(TierankError):
            tierank.Rule(**{"name": "shop"} | {name: wrong}).describe()
