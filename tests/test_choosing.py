"""``tierank choose``: which ranker to use, within a time budget."""

import json

import numpy as np
import pytest

import tierank
from tierank import ParameterError
from tierank.cli import main
from tierank.experiments import choosing

SIMPLE = ("one feature", "linear", "lambdamart")


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(50, n_features=4, mean_length=10, max_length=20, seed=1)


@pytest.fixture(scope="module")
def choice(data):
    """Within a budget that nothing fits into."""
    return tierank.choose(data, minutes=1e-6, folds=2, n_jobs=1)


def test_what_does_not_fit_into_the_budget_is_said(choice):
    assert choice.comparison.systems == SIMPLE
    assert set(choice.left_out) == {"umart", "stochastic", "blend", "urank"}
    assert "blend: not tried, as it takes about" in str(choice)


def test_differences_are_to_the_best_simple_system(choice):
    found = choice.comparison
    means = {system: found.mean(system, "ndcg@10") for system in SIMPLE}
    assert found.baseline == max(means, key=means.get) == choice.best
    assert choice.advice.startswith(f"Use {choice.best}: ndcg@10 {means[choice.best]:.4f}")
    assert choice.prices["one feature"] == 0
    assert choice.prices["lambdamart"] == 1


def test_one_feature_is_found_on_the_training_queries(data, choice):
    """Fold k of five parts in turn trains on three of them; the scores of the best feature, up or down, are judged."""
    parts = data.split(*[0.2] * 5)
    values = []
    for fold in range(2):
        train, test = tierank.RankingDataset.concat([parts[(fold + k) % 5] for k in range(3)]), parts[(fold + 4) % 5]
        ways = [(column, sign) for column in range(4) for sign in (1, -1)]

        def mean(way, part=train):
            scores = part.restore(way[1] * part.features[:, way[0]])
            return tierank.evaluate(part, scores, "ndcg@10").mean("ndcg@10")

        column, sign = max(ways, key=mean)
        scores = test.restore(sign * test.features[:, column])
        values += tierank.evaluate(test, scores, "ndcg@10").per_query["ndcg@10"].tolist()
    np.testing.assert_allclose(choice.comparison.mean("one feature", "ndcg@10"), np.nanmean(values), rtol=1e-12)


def test_all_rankers_fit_into_a_large_budget(data, monkeypatch):
    quick = {"umart": ("umart", None, 1.1), "stochastic": ("umart", "stochastic", 2.5)}
    monkeypatch.setattr(choosing, "TRIED", {name: choosing.TRIED[name] for name in SIMPLE[1:]} | quick)
    choice = tierank.choose(data, minutes=1000, metric="err@5", rule="letor", folds=1, n_jobs=1)
    assert choice.comparison.systems == (*SIMPLE, *quick)
    assert (choice.metric, choice.comparison.rule.name, choice.left_out) == ("err@5", "letor", {})
    cheaper = choice.cheaper
    assert cheaper is None or choice.prices[cheaper] < choice.prices[choice.best]


def test_the_advice_names_what_is_cheaper_and_not_worse(data, choice):
    """By hand: ten times as many queries, and a system that is better than all others in each of them."""
    best = {"one feature": 0.0, "linear": 0.1, "lambdamart": 1.0, "blend": 5.0}
    scores = {name: data.restore(data.features[:, 0]) for name in SIMPLE} | {"blend": data.restore(data.ratings)}
    comparison = tierank.compare(data, scores, metrics="ndcg@10")
    clear = choosing.Recommendation(comparison, best, {}, "blend", None, "1", 1)
    mean = comparison.mean("blend", "ndcg@10")
    assert clear.advice.startswith(f"Use blend: ndcg@10 {mean:.4f}, +{mean - comparison.mean('linear', 'ndcg@10'):.4f}")
    assert clear.advice.endswith("for 5 times the CPU time of lambdamart.")
    also = choosing.Recommendation(comparison, best, {}, "blend", "lambdamart", "1", 1)
    assert also.advice.endswith("; lambdamart is not significantly worse and costs 20% of it.")


def test_few_folds_are_enough_for_many_queries():
    data = tierank.make_ranking(3000, n_features=2, mean_length=4, max_length=6, seed=1)
    assert tierank.choose(data, minutes=1e-6, n_jobs=1).n_folds == 2  # 600 test queries each


def test_the_command(data, tmp_path, capsys):
    tierank.write(data, tmp_path / "data.txt")
    command = ["choose", str(tmp_path / "data.txt"), "--minutes", "1e-6", "--folds", "1", "--jobs", "1"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["systems"]) == list(SIMPLE)
    assert found["advice"].startswith(f"Use {found['best']}")
    assert main([*command, "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "| system | ndcg@10 |" in out
    assert out.strip().split("\n")[-1] == found["advice"]


@pytest.mark.parametrize(("name", "value"), [("minutes", 0), ("folds", 6), ("metric", "ndgc"), ("rule", "leter")])
def test_wrong_arguments(data, name, value):
    with pytest.raises(ParameterError, match=r"expected|did you mean"):
        tierank.choose(data, **{name: value})
