"""uBoost and urBoost: learners on residuals; what all rankers promise is in ``test_rankers.py``."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.base import clone

import tierank
from tierank import DataError, ListNet, ParameterError, RankingDataset, UMart, URank
from tierank.losses import LOSSES, Batch, stepwise_urank
from tierank.networks import NETWORKS, TierRNN
from tierank.rankers import boosted as boosted
from tierank.rankers import network_scoring, network_training, selection
from tierank.rankers.model import Resources
from tierank.rankers.neural import UBoost, UrBoost
from tierank.transforms import make_transform

PLAIN = URank.PRESETS["plain-inputs"]
QUICK = {**PLAIN, "max_epochs": 4, "learning_rate": 0.01, "hidden": (8,), "n_jobs": 1}
BOTH = pytest.mark.parametrize("kind", [UBoost, UrBoost])


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(30, n_features=6, mean_length=12, max_length=25)


@pytest.fixture(scope="module")
def halves():
    return tierank.make_ranking(80, n_features=6, mean_length=12, max_length=25, seed=1).split(0.5, 0.5)


def raw(data):
    """Features, ratings and query ids, as arrays."""
    return np.array(data.features), data.ratings.copy(), np.repeat(data.query_ids, data.lengths)


def min_max(features, offsets):
    scaled = np.zeros_like(features)
    for start, end in pairwise(offsets):
        low, high = features[start:end].min(0), features[start:end].max(0)
        np.divide(features[start:end] - low, high - low, out=scaled[start:end], where=high > low)
    return torch.tensor(scaled)


def residuals_by_hand(scores, ratings):
    """Algorithm 2 of the paper for one query, document by document."""
    powers, gains = np.exp(scores), 2.0**ratings - 1
    n_levels = len(np.unique(ratings))
    if n_levels == 1:
        return np.zeros(len(scores))
    lower = np.array([powers[ratings < rating].sum() for rating in ratings])
    residuals = np.where(lower > 0, gains / (1 + powers / np.where(lower > 0, lower, 1)), 0.0)
    for d, rating in enumerate(ratings):
        higher = ratings > rating
        residuals[d] -= (gains[higher] * powers[d] / (lower[higher] + powers[higher])).sum()
    return residuals / (n_levels - 1)


def lists_of(data):
    return network_scoring.QueryLists(data, make_transform("query_minmax").fit(data), True, "exp2", Resources(1))


# Residuals


def test_residuals_are_those_of_the_paper_and_of_autograd(data):
    features, ratings, queries = raw(data)
    ratings[queries == 3] = 2  # nothing to learn
    data = RankingDataset(features, ratings, qid=queries)
    lists, scores = lists_of(data), np.random.default_rng(0).normal(size=data.n_documents) * 2
    found = np.empty(data.n_documents)
    found[lists.order] = boosted.find_residuals(scores, lists).numpy()

    leaf = torch.tensor(scores, requires_grad=True)
    LOSSES["urank"](leaf, Batch.of(data, dtype=torch.float64)).sum().backward()
    np.testing.assert_allclose(found, -leaf.grad, rtol=1e-4, atol=1e-5)
    for start, end in pairwise(data.offsets):
        expected = residuals_by_hand(scores[start:end], ratings[start:end])
        np.testing.assert_allclose(found[start:end], expected, rtol=1e-4, atol=1e-5)
    assert not found[queries == 3].any()


def test_the_second_learner_is_the_one_built_by_hand(data):
    small = data.select(np.arange(9))
    features, ratings, queries = raw(small)
    ratings[queries == 4] = 1  # not among the queries that teach
    weights = {query: 1.0 + query % 3 for query in small.query_ids.tolist()}
    settings = {**QUICK, "activation": "tanh", "queries_per_step": 9, "seed": 3}
    ranker = UBoost(**settings, n_learners=2, coefficient=0.5)
    ranker.fit(features, ratings, qid=queries, query_weight=weights)

    first = URank(**settings).fit(features, ratings, qid=queries, query_weight=weights).predict(small)
    network = NETWORKS["mlp"](6, hidden=(8,), activation="tanh", seed=3 + 1_000_000)
    scaled = min_max(features, small.offsets)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    means = []
    for _ in range(4):
        values, plain = [], []
        for query in small.query_ids.tolist():
            own = queries == query
            if query == 4 or len(np.unique(ratings[own])) == 1:
                continue
            target = torch.tensor(residuals_by_hand(first[own], ratings[own]), dtype=torch.float32)
            plain.append(((network(scaled[torch.tensor(own)]) - target) ** 2).mean())
            values.append(plain[-1] * weights[query])
        optimizer.zero_grad()
        torch.stack(values).mean().backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        means.append(float(torch.stack(plain).detach().mean()))
    np.testing.assert_allclose([row["loss"] for row in ranker.history_[4:]], means, rtol=1e-4)
    expected = first + 0.5 * network(scaled).detach().numpy()
    np.testing.assert_allclose(ranker.predict(small), expected, rtol=1e-4, atol=1e-5)


def test_residuals_are_found_once_for_each_learner(halves, monkeypatch):
    calls, find = [], boosted.find_residuals
    monkeypatch.setattr(boosted, "find_residuals", lambda *given: calls.append(0) or find(*given))
    UBoost(**QUICK, n_learners=3).fit(halves[0])
    assert len(calls) == 2


# Learners


@BOTH
def test_without_validation_data_all_learners_are_kept(data, kind):
    ranker = kind(**QUICK, n_learners=3).fit(data)
    assert [(row["learner"], row["epoch"]) for row in ranker.history_] == [
        (m, e) for m in (1, 2, 3) for e in range(1, 5)
    ]
    assert [(row["learner"], row["epoch"], row["kept"]) for row in ranker.learners_] == [
        (m, 4, True) for m in (1, 2, 3)
    ]
    assert ranker.n_epochs_ == [4, 4, 4]
    assert ranker.best_ == {}


@BOTH
def test_learners_are_kept_while_they_make_it_better(halves, kind):
    train, valid = halves
    settings = {**QUICK, "max_epochs": 8, "patience": 3, "select_by": ("ndcg@3", "ndcg@10")}
    stopped = 0
    for seed in range(3):
        ranker = kind(**settings, n_learners=6, seed=seed).fit(train, valid=valid)
        rows = ranker.learners_
        assert [row["learner"] for row in rows] == list(range(1, len(rows) + 1))
        # All but perhaps the last are kept, each with better metrics than the one before.
        assert all(row["kept"] for row in rows[:-1])
        best = selection.Selection()
        assert [best.is_better([row["ndcg@3"], row["ndcg@10"]]) for row in rows] == [row["kept"] for row in rows]
        assert len(rows) == 6 or not rows[-1]["kept"]
        stopped += not rows[-1]["kept"]
        kept = [row for row in rows if row["kept"]]
        assert ranker.n_epochs_ == [row["epoch"] for row in kept]
        assert ranker.best_ == {metric: kept[-1][metric] for metric in ("ndcg@3", "ndcg@10")}
        for row in rows:
            own = [r for r in ranker.history_ if r["learner"] == row["learner"]]
            assert row["epoch"] == max(r["epoch"] for r in own if r["kept"])
            assert len(own) == min(8, row["epoch"] + 3)
        shorter = kind(**settings, n_learners=len(kept), seed=seed).fit(train, valid=valid)
        np.testing.assert_array_equal(shorter.predict(valid), ranker.predict(valid))
    assert stopped


def test_one_learner_is_urank(halves):
    train, valid = halves
    alone = URank(**QUICK, n_seeds=2).fit(train, valid=valid)
    ranker = UBoost(**QUICK, n_seeds=2, n_learners=1).fit(train, valid=valid)
    np.testing.assert_array_equal(ranker.predict(valid), alone.predict(valid))
    assert ranker.best_ == alone.best_


@BOTH
def test_seeds_are_boosted_one_by_one_and_averaged(data, kind, tmp_path):
    single = [kind(**QUICK, n_learners=2, seed=seed).fit(data).predict(data) for seed in (5, 6)]
    both = kind(**QUICK, n_learners=2, seed=5, n_seeds=2).fit(data)
    expected = selection.mean_of_standardised(single, data)
    np.testing.assert_allclose(both.predict(data), expected, rtol=1e-12)
    both.save(tmp_path / "model")
    np.testing.assert_array_equal(tierank.load(tmp_path / "model").predict(data), both.predict(data))


def test_the_coefficient_scales_what_is_added(data):
    first, half, whole = (
        UBoost(**QUICK, n_learners=n, coefficient=c).fit(data).predict(data) for n, c in ((1, 1.0), (2, 0.5), (2, 1.0))
    )
    np.testing.assert_allclose(whole - first, 2 * (half - first), rtol=1e-9, atol=1e-12)
    assert np.abs(half - first).max() > 1e-3


def test_nothing_is_added_where_nothing_is_left_over(data):
    same = RankingDataset(data.features, np.full(data.n_documents, 2.0), qid=raw(data)[2])
    with pytest.warns(UserWarning, match="there is no order to learn"):
        ranker = UBoost(**QUICK).fit(same)
    assert [row["learner"] for row in ranker.learners_] == [1]


@BOTH
def test_a_learner_that_breaks_leaves_those_before_it(data, kind, monkeypatch):
    good = kind(**QUICK, n_learners=2).fit(data)
    find, calls = boosted.find_residuals, []

    def breaks(*given):
        calls.append(0)
        return find(*given) * (np.nan if len(calls) > 1 else 1)

    monkeypatch.setattr(boosted, "find_residuals", breaks)
    ranker = kind(**QUICK, n_learners=3)
    with pytest.raises(ParameterError, match=r"is not finite in epoch 1; .*; give a learning_rate below"):
        ranker.fit(data)
    np.testing.assert_array_equal(ranker.predict(data), good.predict(data))


# A base ranker


def test_networks_on_the_residuals_of_trees(halves, tmp_path):
    train, valid = halves
    base = UMart(n_trees=5, n_jobs=1)
    # Residuals are of the size of gains, and so many times what a few trees add up to.
    ranker = UBoost(base=base, **{**QUICK, "max_epochs": 20}, n_learners=3, coefficient=0.1).fit(train, valid=valid)
    assert not hasattr(base, "n_features_in_")  # fitted is a copy
    trees = clone(base).fit(train, valid=valid)
    np.testing.assert_array_equal(ranker.base_.predict(valid), trees.predict(valid))
    assert ranker.learners_[0]["ndcg@10"] == pytest.approx(trees.best_["ndcg@10"], abs=1e-12)
    assert [row["learner"] for row in ranker.learners_ if row["kept"]][:2] == [1, 2]
    assert ranker.best_["ndcg@10"] > trees.best_["ndcg@10"]
    assert not np.array_equal(ranker.predict(valid), trees.predict(valid))

    ranker.save(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "README.md",
        "base.trees.txt",
        "model.json",
        "weights.safetensors",
    ]
    loaded = tierank.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(valid), ranker.predict(valid))
    assert loaded.learners_ == ranker.learners_
    assert loaded.base.n_trees == 5
    np.testing.assert_array_equal(clone(loaded).fit(train, valid=valid).predict(valid), ranker.predict(valid))


def test_a_base_alone_is_the_base(data, tmp_path):
    base = ListNet(**QUICK, n_seeds=2)
    ranker = UBoost(base=base, n_learners=1, n_jobs=1).fit(data)
    expected = clone(base).fit(data).predict(data)
    np.testing.assert_array_equal(ranker.predict(data), expected)
    ranker.save(tmp_path / "model")
    np.testing.assert_array_equal(tierank.load(tmp_path / "model").predict(data), expected)


def test_urank_as_base_is_the_default(halves, tmp_path):
    train, valid = halves
    settings = {**QUICK, "n_learners": 2, "seed": 1}
    own = UBoost(**settings).fit(train, valid=valid)
    given = UBoost(base=URank(**QUICK, seed=1), **settings).fit(train, valid=valid)
    np.testing.assert_array_equal(given.predict(valid), own.predict(valid))
    boosted_twice = UBoost(base=UBoost(**settings), **settings).fit(train)
    boosted_twice.save(tmp_path / "model")
    np.testing.assert_array_equal(tierank.load(tmp_path / "model").predict(valid), boosted_twice.predict(valid))


@pytest.mark.filterwarnings("ignore:no qid was given")
def test_a_base_learns_without_queries_where_the_whole_does(data):
    features, ratings, _ = raw(data)
    ranker = UBoost(base=URank(**QUICK), **QUICK, n_learners=2).fit(features, ratings)
    # A part of the rows scores as the whole: nothing was scaled by query.
    np.testing.assert_allclose(ranker.predict(features[:7]), ranker.predict(features)[:7], atol=1e-6)


def test_a_damaged_base_is_refused(data, tmp_path):
    UBoost(base=UMart(n_trees=2, n_jobs=1), **QUICK, n_learners=2).fit(data).save(tmp_path / "model")
    file = tmp_path / "model" / "model.json"
    described = json.loads(file.read_text())
    for change, message in (
        ({"ranker": "Nothing", "settings": {}}, "unknown ranker 'Nothing'"),
        ({"ranker": "UMart"}, "expected the description of a model, got a damaged file"),
        (5, "base: expected a ranker, such as UMart"),
    ):
        settings = {**described["settings"], "base": change}
        file.write_text(json.dumps({**described, "settings": settings}))
        with pytest.raises(DataError, match=message):
            tierank.load(tmp_path / "model")
    file.write_text(json.dumps({**described, "fitted": {**described["fitted"], "base": None}}))
    with pytest.raises(DataError, match="got a damaged description"):
        tierank.load(tmp_path / "model")


# The recurrent network


@pytest.mark.parametrize(("pooling", "score_from"), [("max", "both"), ("mean", "state")])
def test_steps_of_urboost_are_those_of_torch_written_out(data, pooling, score_from):
    small = data.select(np.arange(9))
    chosen = {"hidden": (8,), "activation": "tanh", "pooling": pooling, "score_from": score_from}
    settings = {**QUICK, **chosen, "queries_per_step": 9, "seed": 3}
    ranker = UrBoost(**settings, n_learners=1).fit(small)

    network = TierRNN(6, **chosen, seed=3)
    scaled = min_max(np.array(small.features), small.offsets)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    batch = Batch.of(small)
    teaches, means = batch.n_tiers > 1, []
    for _ in range(4):
        values = stepwise_urank(network.step_scores(scaled, batch), batch)[teaches]
        optimizer.zero_grad()
        values.mean().backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        means.append(float(values.detach().mean()))
    np.testing.assert_allclose([row["loss"] for row in ranker.history_], means, rtol=1e-4)
    # Documents are ranked by the first step, which is what calling the network gives.
    expected = network(scaled).detach().numpy()
    np.testing.assert_allclose(ranker.predict(small), expected, rtol=1e-3, atol=1e-5)


def test_urboost_ranks_by_the_first_step_of_its_network(data):
    ranker = UrBoost(**QUICK, n_learners=1).fit(data)
    network = TierRNN(6, hidden=(8,), seed=0)
    network.load_state_dict({name.removeprefix("1."): tensor for name, tensor in ranker.members_[0].items()})
    first_step = network(min_max(np.array(data.features), data.offsets)).detach().numpy()
    np.testing.assert_allclose(ranker.predict(data), first_step, rtol=1e-5, atol=1e-6)
    unrated = RankingDataset(data.features, qid=raw(data)[2])
    np.testing.assert_array_equal(ranker.predict(unrated), ranker.predict(data))


@BOTH
def test_presets_are_the_settings_of_the_paper(halves, kind):
    train, valid = halves
    preset = kind.from_preset("paper-mq2007", max_epochs=2, n_learners=2, n_jobs=1).fit(train, valid=valid)
    written = {"hidden": (100, 100), "learning_rate": 1e-5, "activation": "elu", "queries_per_step": 1, "patience": 200}
    written = PLAIN | written | {"max_epochs": 2}
    select_by = ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10")
    explicit = kind(**written, select_by=select_by, n_learners=2, n_jobs=1).fit(train, valid=valid)
    assert preset.history_ == explicit.history_
    np.testing.assert_array_equal(preset.predict(valid), explicit.predict(valid))


# Checkpoints


@pytest.mark.parametrize(
    ("kind", "own"),
    [(UBoost, {}), (UBoost, {"base": UMart(n_trees=60, n_jobs=1)}), (UrBoost, {})],
    ids=["u", "trees", "ur"],
)
def test_an_interrupted_run_goes_on_to_the_same_bits(halves, kind, own, tmp_path, monkeypatch):
    train, valid = halves
    settings = {**QUICK, **own, "dropout": 0.2, "n_learners": 3, "n_seeds": 2}
    whole = kind(**settings).fit(train)
    run, ran = network_training.Training.run, []

    def interrupted(training, label):
        if (training.place["member"], training.place["learner"]) == (1, 3):
            raise KeyboardInterrupt("stop")
        run(training, label)

    monkeypatch.setattr(network_training.Training, "run", interrupted)
    with pytest.raises(KeyboardInterrupt, match="stop"):
        kind(**settings).fit(train, checkpoint=tmp_path / "c")
    monkeypatch.setattr(network_training.Training, "run", run)
    learn = network_training.Training._learn
    monkeypatch.setattr(network_training.Training, "_learn", lambda self: ran.append(self.place) or learn(self))
    resumed = kind(**settings).fit(train, checkpoint=tmp_path / "c")
    assert ran == [{"member": 1, "learner": 3}] * 4  # what was finished is not trained again
    np.testing.assert_array_equal(resumed.predict(valid), whole.predict(valid))
    assert resumed.history_ == whole.history_
    assert resumed.learners_ == whole.learners_
    for other in ({"seed": 7}, {"coefficient": 0.5}):
        with pytest.raises(
            DataError, match="expected a checkpoint of this data and these settings, got one of another"
        ):
            kind(**{**settings, **other}).fit(train, checkpoint=tmp_path / "c")


def test_progress_says_which_learner(data, capsys):
    UBoost(**QUICK, n_learners=2).fit(data, progress=True)
    shown = capsys.readouterr().err
    assert "learner 1 of 2: 4 of 4 loss" in shown
    assert "learner 2 of 2: 4 of 4 loss" in shown
    UrBoost(**QUICK, n_learners=2, n_seeds=2).fit(data, progress=True)
    assert "network 2 of 2, learner 1 of 2: 4 of 4 loss" in capsys.readouterr().err


# Settings


@pytest.mark.parametrize(
    ("kind", "setting", "message"),
    [
        (UBoost, {"n_learners": 0}, "n_learners: expected an integer >= 1.*, got 0"),
        (UrBoost, {"n_learners": 1.5}, r"n_learners: expected an integer >= 1.*, got 1\.5"),
        (
            UBoost,
            {"residual_hidden": 8},
            r"residual_hidden: expected sizes .*, or None \(as hidden\), got 8",
        ),
        (UrBoost, {"residual_hidden": [8, 0]}, "residual_hidden: expected an integer >= 1.*, got 0"),
        (UBoost, {"coefficient": 0}, "coefficient: expected a number > 0, got 0"),
        (UBoost, {"base": 5}, r"base: expected a ranker, such as UMart\(\), or None \(no base\), got 5"),
        (UBoost, {"base": UMart}, "base: expected a ranker, such as"),
        (UBoost, {"network": "mpl"}, r"unknown network 'mpl': did you mean 'mlp'\?"),
        (UrBoost, {"pooling": "maxx"}, r"unknown pooling 'maxx': did you mean 'max'\?"),
        (UrBoost, {"score_from": "bth"}, r"unknown score_from 'bth': did you mean 'both'\?"),
        (UrBoost, {"max_epochs": 0}, "max_epochs: expected an integer >= 1.*, got 0"),
    ],
)
def test_settings_that_cannot_be_used(data, kind, setting, message):
    with pytest.raises(ParameterError, match=message):
        kind(**{**QUICK, **setting}).fit(data)


@BOTH
def test_residuals_are_those_of_the_ensemble_as_it_predicts(data, kind, monkeypatch):
    """The coefficient counts in what the third learner is fitted to, as it does in the scores of the first two."""
    frozen = []
    find = boosted.find_residuals

    def watched(scores, lists, window):
        frozen.append(scores)
        return find(scores, lists, window)

    monkeypatch.setattr(boosted, "find_residuals", watched)
    settings = QUICK | {"coefficient": 0.3}
    kind(n_learners=3, **settings).fit(data)
    for n_learners, scores in zip((1, 2), list(frozen), strict=True):
        np.testing.assert_array_equal(scores, kind(n_learners=n_learners, **settings).fit(data).predict(data))


@BOTH
def test_learners_of_residuals_may_have_other_sizes(data, kind, tmp_path):
    settings = QUICK | {"hidden": (7, 5), "n_learners": 3}
    ranker = kind(residual_hidden=[4], **settings).fit(data)
    sizes = {name: tuple(weights.shape) for name, weights in ranker.members_[0].items() if "layers" in name}
    n = data.n_features
    assert {name: size for name, size in sizes.items() if name.endswith("weight")} == {
        "1.body.layers.0.weight": (7, n),
        "1.body.layers.1.weight": (5, 7),
        "2.body.layers.0.weight": (4, n),
        "3.body.layers.0.weight": (4, n),
    }
    ranker.save(tmp_path / "model")
    np.testing.assert_array_equal(tierank.load(tmp_path / "model").predict(data), ranker.predict(data))
    linear = kind(residual_hidden=[], **settings).fit(data).members_[0]
    assert linear["2.output.weight"].shape == (1, n)
    same = kind(residual_hidden=(7, 5), **settings).fit(data)
    np.testing.assert_array_equal(same.predict(data), kind(**settings).fit(data).predict(data))
