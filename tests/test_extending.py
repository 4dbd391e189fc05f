"""The page on extending: what callers write themselves works wherever tierank's own things work."""

import os
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

import tierank

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "extending.md").read_text()
QUICK = {"max_epochs": 1, "n_jobs": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with shop.py, the code of the page, and data."""
    folder = tmp_path_factory.mktemp("shop")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (folder / "shop.py").write_text("\n\n".join(blocks))
    train, valid, test = tierank.make_ranking(40, n_features=6, mean_length=8, max_length=12).split(0.6, 0.2, 0.2)
    for name, data in (("train", train), ("valid", valid), ("test", test)):
        tierank.write(data, folder / f"{name}.txt")
    tierank.write(tierank.make_ranking(30, n_features=6, mean_length=8, max_length=12), folder / "data.txt")
    return folder


@pytest.fixture(scope="module")
def shop(folder):
    sys.path.insert(0, str(folder))
    try:
        import shop

        yield shop
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("shop", None)


@pytest.fixture(scope="module")
def data(folder):
    return [tierank.read(folder / f"{name}.txt") for name in ("train", "valid", "test")]


def own_rankers(shop):
    network = {"network": shop.Wide, "network_settings": {"width": 4}, "feature_transform": shop.Scaled()}
    return {
        "ranker": shop.Popularity(prior=3.0),
        "loss": tierank.NetworkRanker(shop.hinge, loss_settings={"margin": 0.5}, **QUICK),
        "loss of trees": tierank.TreeRanker(shop.hinge, n_trees=3, n_jobs=1),
        "network and transform": tierank.URank(**network, **QUICK),
        "metric": tierank.UMart(n_trees=3, n_jobs=1, select_by=[shop.first_is_best, "ndcg@10"]),
        "target": tierank.UMart(n_trees=3, n_jobs=1, for_target=shop.TABLE),
    }


@pytest.mark.parametrize(
    "name", ["ranker", "loss", "loss of trees", "network and transform", "metric", "target"]
)  # fmt: skip
def test_own_things_are_fitted_copied_and_saved(shop, data, name, tmp_path):
    train, valid, test = data
    ranker = own_rankers(shop)[name]
    scores = clone(ranker).fit(train, valid=valid).predict(test)
    fitted = pickle.loads(pickle.dumps(ranker)).fit(train, valid=valid)
    np.testing.assert_array_equal(fitted.predict(test), scores)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(test), scores)
    assert (fitted.rank(test, k=1).rank == 1).all()
    fitted.save(tmp_path / "model")
    known = {"rankers": [shop.Popularity], "networks": [shop.Wide], "transforms": [shop.Scaled]}
    loaded = tierank.load(tmp_path / "model", **known)
    np.testing.assert_array_equal(loaded.predict(test), scores)
    loaded.save(tmp_path / "again")
    np.testing.assert_array_equal(tierank.load(tmp_path / "again", **known).predict(test), scores)


def test_a_class_that_is_not_handed_over_is_named(shop, data, tmp_path):
    rankers = own_rankers(shop)
    rankers["ranker"].fit(data[0]).save(tmp_path / "a")
    with pytest.raises(tierank.DataError, match=r"unknown ranker 'Popularity'.*load\(path, rankers=\[Popularity\]\)"):
        tierank.load(tmp_path / "a")
    rankers["network and transform"].fit(data[0]).save(tmp_path / "b")
    with pytest.raises(tierank.DataError, match=r"unknown network 'Wide'.*load\(path, networks=\[Wide\]\)"):
        tierank.load(tmp_path / "b", transforms=[shop.Scaled])
    with pytest.raises(tierank.DataError, match=r"unknown transform 'Scaled'.*load\(path, transforms=\[Scaled\]\)"):
        tierank.load(tmp_path / "b", networks=[shop.Wide])


def test_what_could_not_be_loaded_is_not_saved(shop, data, tmp_path):
    class Forgetful(shop.Popularity):
        restore_model = tierank.Ranker.restore_model

    with pytest.raises(tierank.DataError, match=r"Forgetful cannot be saved: without restore_model\(\)"):
        Forgetful().fit(data[0]).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_loaded_model_asks_for_what_its_file_does_not_hold(shop, data, tmp_path):
    train, valid, _ = data
    for name, message in (
        ("loss", "loss: expected a function"),
        (
            "metric",
            "select_by: the metric first_is_best is a function, which a model file does not hold; give it again",
        ),
    ):
        own_rankers(shop)[name].fit(train, valid=valid).save(tmp_path / name)
        with pytest.raises(tierank.ParameterError, match=message):
            tierank.load(tmp_path / name).fit(train, valid=valid)


def test_own_metrics_are_judged_by_query(shop, data):
    test = data[2]
    scores = np.random.default_rng(0).normal(size=test.n_documents)
    found = tierank.evaluate(test, scores, [shop.first_is_best, "ndcg@1"])
    assert found.metrics == ("first_is_best", "ndcg@1")
    for query, value in enumerate(found.per_query["first_is_best"]):
        span = slice(*test.offsets[query : query + 2])
        ratings = test.ratings[span]
        if ratings.max() > 0:
            assert value == (ratings[scores[span].argmax()] == ratings.max())
    compared = tierank.compare(test, {"a": scores, "b": -scores}, metrics=shop.first_is_best)
    assert compared.mean("a", "first_is_best") == pytest.approx(np.nanmean(found.per_query["first_is_best"]))
    with pytest.raises(tierank.ParameterError, match="metrics: expected names such as 'ndcg@10', or functions"):
        tierank.evaluate(test, scores, [lambda ratings, scores: 1.0])
    with pytest.raises(tierank.ParameterError, match=r"expected pair\(ratings, scores\) to return one number"):
        tierank.evaluate(test, scores, pair)


def pair(ratings, scores):
    return [1.0, 2.0]


def test_own_metrics_do_not_change_what_they_get(data):
    test = data[2]
    ratings, scores = test.ratings.copy(), np.random.default_rng(0).normal(size=test.n_documents)
    given = scores.copy()
    found = tierank.evaluate(test, scores, [sorts_in_place, "ndcg@5"])
    np.testing.assert_array_equal(test.ratings, ratings)
    np.testing.assert_array_equal(scores, given)
    assert found.mean("ndcg@5") == tierank.evaluate(test, given, "ndcg@5").mean("ndcg@5")


def sorts_in_place(ratings, scores):
    ratings.sort()
    scores[:] = 0
    return ratings[-1]


def test_queries_without_a_value_are_left_out_of_an_own_metric_alone():
    """The difference of each metric is that of its means over the queries for which both systems have a value."""
    rng = np.random.default_rng(0)
    ratings, queries = rng.integers(0, 3, 120), np.repeat(np.arange(30), 4)
    systems = {"a": rng.normal(size=120), "b": rng.normal(size=120)}
    alone = tierank.compare((ratings, queries), systems, metrics="ndcg", rule="letor")
    both = tierank.compare((ratings, queries), systems, metrics=[lowest_first, "ndcg"], rule="letor")
    assert both.contrasts["b"]["ndcg"] == alone.contrasts["b"]["ndcg"]
    values = [both.evaluations[system].per_query["lowest_first"] for system in systems]
    has_value = ~np.isnan(values[0])
    assert 0 < has_value.sum() < 30
    assert both.contrasts["b"]["lowest_first"].n_queries == has_value.sum()
    assert both.contrasts["b"]["lowest_first"].difference == pytest.approx((values[1] - values[0])[has_value].mean())


def lowest_first(ratings, scores):
    return np.nan if ratings.min() > 0 else float(ratings[scores.argmax()])


@pytest.mark.parametrize("value", [np.inf, None, 1j, 10**400])
def test_an_own_metric_returns_a_number(value):
    def odd(ratings, scores):
        return value if ratings[0] == 2 else 1.0

    with pytest.raises(tierank.ParameterError, match=r"expected odd\(ratings, scores\) to return one number for"):
        tierank.evaluate(([1, 0, 2, 1], [1, 1, 2, 2]), [1, 2, 3, 4], odd)


def test_an_own_metric_that_never_has_a_value_is_refused():
    def never(ratings, scores):
        return np.nan

    def ascending(ratings, scores):
        return 1.0 if scores[1] > scores[0] else np.nan

    data = tierank.RankingDataset([[1.0], [2.0], [4.0], [3.0]], [1, 0, 2, 1], qid=[1, 1, 2, 2])
    with pytest.raises(tierank.ParameterError, match=r"expected never\(ratings, scores\) to return a number for"):
        tierank.evaluate(data, [1, 2, 3, 4], ["ndcg", never])
    with pytest.raises(tierank.ParameterError, match=r"expected never\(ratings, scores\) to return a number for"):
        tierank.UMart(n_trees=2, select_by=never).fit(data, valid=data.select([0]))
    with pytest.raises(tierank.ParameterError, match=r"expected ascending to have a value in all systems for at least"):
        tierank.compare(data, {"a": [1, 2, 2, 1], "b": [2, 1, 1, 2]}, metrics=ascending)


def test_an_own_metric_chooses_the_round(shop, data):
    train, valid, _ = data
    settings = {"n_trees": 12, "select_by": shop.first_is_best, "select_over": 1, "n_jobs": 1}
    ranker = tierank.UMart(**settings).fit(train, valid=valid)
    values = [row["first_is_best"] for row in ranker.history_]
    assert ranker.n_rounds_ == int(np.argmax(values)) + 1
    assert ranker.best_ == {"first_is_best": max(values)}


def test_an_own_target_is_written_and_proved(shop, data, tmp_path):
    train, _, test = data
    ranker = tierank.UMart(n_trees=3, n_jobs=1).fit(train)
    ranker.export(tmp_path / "model.npz", to=shop.TABLE)
    assert tierank.verify(ranker, tmp_path / "model.npz", shop.TABLE, test).holds
    with pytest.raises(tierank.ParameterError, match="table: holds trees only"):
        tierank.UMart(n_trees=3, query_features=True, for_target=shop.TABLE).fit(train)


def test_the_former_name_of_the_neutral_form_still_works(shop, data):
    ranker = tierank.UMart(n_trees=3, n_jobs=1).fit(data[0])
    with pytest.warns(DeprecationWarning, match="portable is called to_neutral now"):
        assert type(ranker.portable()) is type(ranker.to_neutral())
    with pytest.warns(DeprecationWarning, match="Older: portable is called to_neutral now"):

        class Older(type(ranker.model_)):
            def portable(self):
                return "mine"

    assert Older.to_neutral(None) == "mine"


def run(folder, *arguments):
    command = [sys.executable, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=600)


def test_the_page_runs_as_a_program(folder):
    """Also what callers wrote in a script, in the processes of cross_validate."""
    done = run(folder, "shop.py")
    assert done.returncode == 0, done.stderr
    assert "first_is_best" in done.stdout


def test_the_commands_of_the_page(folder):
    block = re.search(r"```\n(tierank train shop.*?)```", PAGE, re.DOTALL)[1].replace("\\\n", " ")
    for command in block.strip().splitlines():
        quick = ["--set", "max_epochs=1"] if "NetworkRanker" in command else []
        done = run(folder, "-m", "tierank", *shlex.split(command)[1:], *quick)
        assert done.returncode == 0, (command, done.stderr)
    done = run(
        folder, "-m", "tierank", "predict", "own", "test.txt", "--import", "shop:Wide", "--import", "shop:Scaled"
    )
    assert done.returncode == 0, done.stderr
    refused = [
        ("predict popular test.txt", "unknown ranker 'Popularity'"),
        (
            "predict popular test.txt --import shop:Popular",
            "unknown name in shop 'Popular': did you mean 'Popularity'?",
        ),
        ("predict popular test.txt --import shp:Popularity", "shp:Popularity: expected a module that can be imported"),
        ("predict popular test.txt --import shop:hinge", "expected a class"),
        ("train shop:hinge --train train.txt --out x", "expected a class derived from tierank.Ranker, got shop:hinge"),
    ]
    commands = [command.split() for command, _ in refused]
    program = f"from tierank.cli import main\nfor command in {commands}:\n    assert main(command) == 2, command"
    done = run(folder, "-c", program)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(refused), done.stderr
    for (_, message), line in zip(refused, done.stderr.splitlines(), strict=True):
        assert message in line


class Reversed(tierank.UMart):
    """A ranker that computes its scores in ``predict``, which its model does not know."""

    def predict(self, X, qid=None):
        return -super().predict(X, qid)


def test_a_subclass_that_defines_predict_ranks_by_it_and_hands_no_other_scores_out(tmp_path):
    data = tierank.make_ranking(8, n_features=4, mean_length=6, seed=2)
    rows = np.random.default_rng(0).permutation(data.n_documents)
    X, qid = data.features[rows], np.repeat(data.query_ids, data.lengths)[rows]
    ranker = Reversed(n_trees=5, n_jobs=1).fit(data)
    ranked, scores = ranker.rank(X, qid=qid), ranker.predict(X, qid=qid)
    assert np.array_equal(ranked.score, scores[ranked.row])
    for query in np.unique(qid):
        assert np.all(np.diff(ranked.score[ranked.query == query]) <= 0)
    for name, use in {
        "export": lambda: ranker.export(tmp_path / "model", to="c"),
        "explain": lambda: tierank.explain_query(ranker, data, data.query_ids[0]),
        "permutation_importance": lambda: ranker.permutation_importance(data),
    }.items():
        with pytest.raises(
            tierank.ParameterError, match=f"Reversed defines predict, and {name} takes the scores of its model_"
        ):
            use()
    assert not (tmp_path / "model").exists()


def test_an_instance_of_a_network_is_refused_with_what_to_pass():
    network = pytest.importorskip("torch").nn.Linear(3, 1)
    message = (
        r"^network: expected a key of NETWORKS, .* got an instance of Linear; pass the class, and its arguments as"
    )
    with pytest.raises(tierank.ParameterError, match=message):
        tierank.URank(network=network).fit(np.eye(3), [0, 1, 2])
