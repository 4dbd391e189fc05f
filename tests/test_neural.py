"""What is special about the rankers that are networks; what all rankers promise is in ``test_rankers.py``."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

import tierank
from tierank import (
    ListMLE,
    NetworkRanker,
    ParameterError,
    PListMLE,
    RankingDataset,
    RankNet,
    TreeRanker,
    URank,
    check_gradient,
)
from tierank.networks import NETWORKS
from tierank.rankers.network_model import NetworkModel
from tierank.rankers.network_training import Adam, Training
from tierank.transforms import TRANSFORMS

PLAIN = URank.PRESETS["plain-inputs"]
QUICK = {**PLAIN, "max_epochs": 4, "learning_rate": 0.01, "hidden": (8,), "n_jobs": 1}


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(40, n_features=6, mean_length=12, max_length=25)


@pytest.fixture(scope="module")
def halves():
    return tierank.make_ranking(80, n_features=6, mean_length=12, max_length=25, seed=1).split(0.5, 0.5)


def raw(data):
    """Features, ratings and query ids, as arrays."""
    return np.array(data.features), data.ratings.copy(), np.repeat(data.query_ids, data.lengths)


def squared(scores, batch):
    """The mean squared distance from scores to ratings."""
    distances = (scores - batch.ratings.float()) ** 2
    return torch.zeros(batch.n_queries).index_add(0, batch.query, distances) / batch.lengths


# A loss of one's own


def test_a_custom_loss_trains(data, tmp_path):
    ranker = NetworkRanker(squared, **{**QUICK, "max_epochs": 15}).fit(data)
    values = [row["loss"] for row in ranker.history_]
    assert values[-1] < 0.8 * values[0]
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model")
    assert type(loaded) is NetworkRanker
    np.testing.assert_array_equal(loaded.predict(data), ranker.predict(data))
    message = r"loss: expected a function \(scores, batch\) -> one value per query, or a name, got None"
    with pytest.raises(ParameterError, match=message):
        loaded.fit(data)
    loaded.set_params(loss=squared).fit(data)
    np.testing.assert_array_equal(loaded.predict(data), ranker.predict(data))


def test_a_loss_by_name_is_the_ranker_of_that_name(data):
    named = NetworkRanker("urank", **QUICK).fit(data)
    np.testing.assert_array_equal(named.predict(data), URank(**QUICK).fit(data).predict(data))


def test_settings_reach_the_loss(data):
    def sharp(scores, batch, *, sigma):
        return tierank.LOSSES["ranknet"](scores, batch, sigma=sigma)

    own = NetworkRanker(sharp, loss_settings={"sigma": 3.0}, **QUICK).fit(data).predict(data)
    np.testing.assert_array_equal(own, RankNet(sigma=3.0, **QUICK).fit(data).predict(data))
    assert not np.array_equal(own, RankNet(**QUICK).fit(data).predict(data))
    for kind, settings in ((NetworkRanker, QUICK), (tierank.TreeRanker, {"n_trees": 1})):
        with pytest.raises(ParameterError, match=r"^loss_settings: expected a value for 'sigma', which has no default"):
            kind(sharp, **settings).fit(data)


def test_a_loss_that_is_not_finite_stops_training(data):
    features, ratings, queries = raw(data)
    names = np.array([f"q{query}" for query in queries])
    ratings[np.flatnonzero(names == "q7")[0]] = 9  # how the loss knows the query
    calls = []

    def breaks(scores, batch):
        calls.append(batch.n_queries)
        is_marked = torch.zeros(batch.n_queries).index_add(0, batch.query, (batch.ratings == 9).float()) > 0
        return torch.where(is_marked & (len(calls) > 2), math.nan, squared(scores, batch))

    settings = {**QUICK, "queries_per_step": 1000}  # one step is one epoch
    ranker = NetworkRanker(breaks, **settings)
    message = (
        r"the loss of query q7 is not finite in epoch 3; the best weights so far are kept;"
        r" give a learning_rate below 0\.01, or a clip_norm"
    )
    with pytest.raises(ParameterError, match=message):
        ranker.fit(features, ratings, qid=names)
    assert [row["epoch"] for row in ranker.history_] == [1, 2]
    good = NetworkRanker(squared, **{**settings, "max_epochs": 2}).fit(features, ratings, qid=names)
    np.testing.assert_array_equal(ranker.predict(features, qid=names), good.predict(features, qid=names))


def test_a_loss_that_breaks_keeps_the_epoch_that_was_best_on_validation_data(halves):
    train, valid = halves
    calls = []

    def breaks(scores, batch):
        calls.append(0)
        return squared(scores, batch) * (math.nan if len(calls) > 6 else 1)

    settings = {**QUICK, "max_epochs": 9, "learning_rate": 0.3, "queries_per_step": 1000}
    ranker = NetworkRanker(breaks, **settings)
    with pytest.raises(ParameterError, match=r"is not finite in epoch 7; .*; give a learning_rate below 0\.3"):
        ranker.fit(train, valid=valid)
    best = max(row["epoch"] for row in ranker.history_ if row["kept"])
    short = NetworkRanker(squared, **{**settings, "max_epochs": best}).fit(train)
    np.testing.assert_array_equal(ranker.predict(valid), short.predict(valid))


# The loop


def min_max(features, offsets):
    scaled = np.zeros_like(features)
    for start, end in pairwise(offsets):
        low, high = features[start:end].min(0), features[start:end].max(0)
        np.divide(features[start:end] - low, high - low, out=scaled[start:end], where=high > low)
    return torch.tensor(scaled)


def urank_by_hand(scores, ratings):
    """Eq. 2 of the paper for one query."""
    levels = sorted(set(ratings.tolist()), reverse=True)
    total = 0.0
    for level in levels[:-1]:
        lower = scores[ratings < level].exp().sum()
        for score in scores[ratings == level]:
            total = total + (2**level - 1) * torch.log(1 + lower / score.exp())
    return total / (len(levels) - 1)


@pytest.mark.parametrize(
    ("clip_norm", "weight_decay", "weighted"), [(None, 0.0, False), (0.01, 0.0, True), (5.0, 0.1, False)]
)
def test_steps_are_those_of_torch_written_out(data, clip_norm, weight_decay, weighted):
    small = data.select(np.arange(9))
    features, ratings, queries = raw(small)
    ratings[queries == 4] = 1  # nothing to learn: not among the queries of the mean
    weights = {query: 1.0 + query % 3 if weighted else 1.0 for query in small.query_ids.tolist()}
    settings = {
        **QUICK,
        "activation": "tanh",
        "queries_per_step": 9,
        "clip_norm": clip_norm,
        "weight_decay": weight_decay,
    }
    ranker = URank(**settings, seed=3)
    ranker.fit(features, ratings, qid=queries, query_weight=weights if weighted else None)

    network = NETWORKS["mlp"](6, hidden=(8,), activation="tanh", seed=3)
    scaled = min_max(features, small.offsets)
    adam = torch.optim.AdamW if weight_decay else torch.optim.Adam
    optimizer = adam(network.parameters(), lr=0.01, weight_decay=weight_decay)
    means = []
    for _ in range(4):
        values = []
        for query in small.query_ids.tolist():
            own = torch.tensor(ratings[queries == query])
            if len(own.unique()) > 1:
                scores = network(scaled[torch.tensor(queries == query)])
                values.append(urank_by_hand(scores, own) * weights[query])
        optimizer.zero_grad()
        torch.stack(values).mean().backward()
        if clip_norm is not None:
            norm = torch.cat([p.grad.flatten() for p in network.parameters()]).norm()
            for p in network.parameters():
                p.grad *= min(1.0, clip_norm / float(norm))
        optimizer.step()
        means.append(float(torch.stack(values).detach().mean()))
    # The loss does not change when all scores do: what the last bias gets from Adam is rounding, and nothing else.
    expected, scores = network(scaled).detach().numpy(), ranker.predict(features, qid=queries)
    np.testing.assert_allclose(scores - scores.mean(), expected - expected.mean(), rtol=1e-3, atol=1e-5)
    if not weighted:
        np.testing.assert_allclose([row["loss"] for row in ranker.history_], means, rtol=1e-4)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_has_the_bits_of_torch(weight_decay):
    """Also where a parameter has no gradient in some steps, and where another one goes on from its state."""
    generator = torch.Generator().manual_seed(0)
    ours, theirs = ([torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(4))] for _ in range(2))
    kind = torch.optim.AdamW if weight_decay else torch.optim.Adam
    oracle, adam = kind(theirs, weight_decay=weight_decay, fused=True), Adam(ours, weight_decay)
    for number in range(6):
        for parameter, other in zip(ours, theirs, strict=True):
            parameter.grad = other.grad = torch.randn(parameter.shape, generator=generator)
        if number in (0, 3):
            ours[1].grad = theirs[1].grad = None
        oracle.param_groups[0]["lr"] = 0.1 / (number + 1)
        oracle.step()
        adam.step(0.1 / (number + 1))
        state, adam = adam.state, Adam(ours, weight_decay)
        adam.state = state
        for parameter, other in zip(ours, theirs, strict=True):
            assert torch.equal(parameter, other)


def test_without_validation_data_the_last_epoch_is_kept(data):
    ranker = URank(**QUICK).fit(data)
    assert ranker.n_epochs_ == [4]
    assert ranker.best_ == {}
    assert [set(row) for row in ranker.history_] == [{"member", "epoch", "loss", "kept"}] * 4
    assert all(row["kept"] for row in ranker.history_)
    shorter = URank(**{**QUICK, "max_epochs": 3}).fit(data)
    assert shorter.history_ == ranker.history_[:3]
    assert not np.array_equal(shorter.predict(data), ranker.predict(data))


@pytest.mark.parametrize("select_by", ["ndcg@10", ["ndcg@3"], ("precision@1", "err@5", "ndcg@10")])
def test_the_epoch_is_chosen_by_metrics_in_order(halves, select_by):
    train, valid = halves
    settings = {**QUICK, "max_epochs": 25, "learning_rate": 0.05, "queries_per_step": 4, "patience": 6}
    ranker = URank(**settings, select_by=select_by).fit(train, valid=valid)
    metrics = [select_by] if isinstance(select_by, str) else list(select_by)

    best, best_epoch = None, 0
    for row in ranker.history_:
        assert set(row) == {"member", "epoch", "loss", "kept", *metrics}
        values = [row[metric] for metric in metrics]
        differences = [] if best is None else [new - old for new, old in zip(values, best, strict=True)]
        first = next((difference for difference in differences if abs(difference) > 1e-6), 0.0)
        assert row["kept"] == (best is None or first > 0)
        if row["kept"]:
            best, best_epoch = values, row["epoch"]
    assert ranker.n_epochs_ == [best_epoch]
    assert len(ranker.history_) == min(25, best_epoch + 6)
    for metric, value in zip(metrics, best, strict=True):
        assert ranker.best_[metric] == pytest.approx(value, abs=1e-12)
        assert tierank.evaluate(valid, ranker.predict(valid), metric).mean(metric) == pytest.approx(value, abs=1e-9)
    short = URank(**{**settings, "max_epochs": best_epoch}).fit(train)
    np.testing.assert_array_equal(short.predict(valid), ranker.predict(valid))


def test_history_says_whose_epoch_it_is(halves):
    train, valid = halves
    ranker = ListMLE(**{**QUICK, "max_epochs": 2}, n_seeds=3).fit(train, valid=valid)
    assert [(row["member"], row["epoch"]) for row in ranker.history_] == [(m, e) for m in range(3) for e in (1, 2)]
    assert len(ranker.n_epochs_) == 3


def test_queries_of_one_rating_teach_nothing(data):
    features, ratings, queries = raw(data)
    extra = np.concatenate([queries, np.full(5, 1000)])
    padded = np.concatenate([features, features[:5]]), np.concatenate([ratings, np.full(5, 2.0)])
    expected = URank(**QUICK).fit(features, ratings, qid=queries).predict(data)
    np.testing.assert_array_equal(URank(**QUICK).fit(*padded, qid=extra).predict(data), expected)


def test_nothing_global_is_touched(data):
    state, n_threads = torch.get_rng_state(), torch.get_num_threads()
    PListMLE(**QUICK | {"dropout": 0.5}, n_seeds=2).fit(data).predict(data)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == n_threads


# Settings


def test_an_ensemble_is_the_mean_of_standardised_scores(data):
    single = [URank(**QUICK, seed=seed).fit(data).predict(data) for seed in (5, 6)]
    both = URank(**QUICK, seed=5, n_seeds=2).fit(data)
    expected = np.zeros(data.n_documents)
    for start, end in pairwise(data.offsets):
        for scores in single:
            own = scores[start:end]
            if len(own) > 1:
                expected[start:end] += (own - own.mean()) / own.std() / 2
    np.testing.assert_allclose(both.predict(data), expected, rtol=1e-9, atol=1e-9)


def test_networks_are_built_once_and_again_after_another_fit(data, monkeypatch):
    built = []
    make = NetworkModel.build
    monkeypatch.setattr(NetworkModel, "build", lambda *given: built.append(1) or make(*given))
    ranker = tierank.URank(max_epochs=1, hidden=(4,)).fit(data)
    before = vars(ranker).copy()
    scores = [ranker.predict(data) for _ in range(3)]
    assert len(built) == 1
    assert vars(ranker) == before
    np.testing.assert_array_equal(scores[0], scores[2])
    again = tierank.URank(max_epochs=2, hidden=(4,)).fit(data).predict(data)
    np.testing.assert_array_equal(ranker.set_params(max_epochs=2).fit(data).predict(data), again)


def test_an_ensemble_is_saved_whole(data, tmp_path):
    ranker = URank(**QUICK, n_seeds=3).fit(data)
    ranker.save(tmp_path / "model")
    np.testing.assert_array_equal(tierank.load(tmp_path / "model").predict(data), ranker.predict(data))


def test_a_query_of_weight_0_is_silent(data):
    features, ratings, queries = raw(data)
    query = next(q for q in data.query_ids if len(np.unique(ratings[queries == q])) > 2)
    own = queries == query
    changed = ratings.copy()
    changed[own] = ratings[own].max() - ratings[own]

    def fit(ratings, weight):
        weights = dict.fromkeys(queries, 1.0) | {query: weight}
        return URank(**QUICK).fit(features, ratings, qid=queries, query_weight=weights)

    np.testing.assert_array_equal(fit(ratings, 0.0).predict(data), fit(changed, 0.0).predict(data))
    assert not np.array_equal(fit(ratings, 1.0).predict(data), fit(changed, 1.0).predict(data))
    assert not np.array_equal(fit(ratings, 1.0).predict(data), fit(ratings, 3.0).predict(data))


@pytest.mark.parametrize(
    ("ranker", "setting", "message"),
    [
        (RankNet, {"sigmaa": 2}, r"unknown setting of RankNet 'sigmaa': did you mean 'sigma'\?"),
        (URank, {"sigma": 2}, "unknown setting of URank 'sigma'"),
        (URank, {"learning_rat": 2}, r"unknown setting of URank 'learning_rat': did you mean 'learning_rate'\?"),
        (RankNet, {"sigma": 0}, "sigma: expected a number > 0, got 0"),
        (NetworkRanker, {"loss": "urnak"}, r"loss: .*, got 'urnak'; did you mean 'urank'\?"),
        (URank, {"network": "mpl"}, r"unknown network 'mpl': did you mean 'mlp'\?"),
        (
            URank,
            {"feature_transform": "query_minmx"},
            r"unknown feature_transform 'query_minmx': did you mean 'query_minmax'\?",
        ),
        (URank, {"activation": "rellu"}, r"unknown activation 'rellu': did you mean 'relu'\?"),
        (URank, {"output_activation": "tanhh"}, r"output_activation: .*, got 'tanhh'; did you mean 'tanh'\?"),
        (URank, {"preset": "paper-mq2008"}, r"preset: is not a setting; make the ranker by URank.from_preset"),
        (URank, {"transform": "standard"}, "transform: expected feature_transform, which is the name"),
        (URank, {"width": 8}, "width: is not a setting of its own; give network_settings={'width': ...}"),
        (URank, {"sigma": 8}, "unknown setting of URank 'sigma'"),
        (NetworkRanker, {"sigma": 8}, "sigma: is not a setting of its own; give loss_settings={'sigma': ...}"),
        (URank, {"gain": "exp"}, r"unknown gain 'exp': did you mean 'exp2'\?"),
        (URank, {"queries_per_step": 0}, "queries_per_step: expected an integer >= 1.*, got 0"),
        (URank, {"max_epochs": 1.5}, r"max_epochs: expected an integer >= 1.*, got 1\.5"),
        (URank, {"patience": 0}, "patience: expected an integer >= 1.*, got 0"),
        (URank, {"n_seeds": 0}, "n_seeds: expected an integer >= 1.*, got 0"),
        (URank, {"learning_rate": 0}, "learning_rate: expected a number > 0, got 0"),
        (URank, {"weight_decay": -1}, "weight_decay: expected a number >= 0 and <= 1"),
        (URank, {"clip_norm": 0.0}, r"clip_norm: expected a number > 0, or None \(no clipping\), got 0\.0"),
        (URank, {"dropout": 1}, r"dropout: expected a number >= 0 and <= 0\.99, got 1"),
        (URank, {"hidden": (8, 0)}, "hidden: expected an integer >= 1.*, got 0"),
        (URank, {"n_jobs": 0}, "n_jobs: expected an integer >= 1"),
    ],
)
def test_settings_that_cannot_be_used(data, ranker, setting, message):
    with pytest.raises(ParameterError, match=message):
        ranker(**{**QUICK, **setting}).fit(data)


def test_dropout_is_drawn_from_the_seed(data):
    one, again, other = (URank(**QUICK | {"dropout": 0.5}, seed=seed).fit(data).predict(data) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, URank(**QUICK, seed=1).fit(data).predict(data))


@pytest.mark.parametrize("network", sorted(set(NETWORKS) - {"tier_rnn"}))
def test_every_network_trains(halves, network, tmp_path):
    train, test = halves
    ranker = URank(network=network, **{**QUICK, "max_epochs": 12, "hidden": (100, 50)}).fit(train)
    values = [row["loss"] for row in ranker.history_]
    assert values[-1] < values[0]
    chance = np.random.default_rng(0).random(test.n_documents)
    reached = [tierank.evaluate(test, s, "ndcg").mean("ndcg") for s in (ranker.predict(test), chance)]
    assert reached[0] > reached[1] + 0.05
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model").set_params(n_jobs=1)
    np.testing.assert_array_equal(loaded.predict(test), ranker.predict(test))


@pytest.mark.parametrize("transform", sorted(TRANSFORMS))
def test_every_transform_trains_and_is_saved(halves, transform, tmp_path):
    train, test = halves
    ranker = URank(**QUICK | {"feature_transform": transform}).fit(train)
    assert all(math.isfinite(row["loss"]) for row in ranker.history_)
    scores = ranker.predict(test)
    assert np.isfinite(scores).all()
    ranker.save(tmp_path / "model")
    np.testing.assert_array_equal(tierank.load(tmp_path / "model").predict(test), scores)
    # One document alone: its score is the same only where the transform does not look at the others.
    alone = ranker.predict(test.features[:1], qid=test.query_ids[:1])
    assert (abs(alone[0] - scores[0]) < 1e-5) == (not TRANSFORMS[transform].needs_queries)


@pytest.mark.parametrize(
    ("preset", "hidden", "learning_rate"),
    [("paper-ohsumed", (100, 50), 1e-4), ("paper-mq2007", (100, 100), 1e-5), ("paper-mslr-web10k", (200, 200), 1e-5)],
)
def test_presets_are_the_settings_of_the_paper(halves, preset, hidden, learning_rate):
    train, valid = halves
    written = PLAIN | {
        "hidden": hidden,
        "learning_rate": learning_rate,
        "activation": "elu",
        "queries_per_step": 1,
        "clip_norm": 5.0,
        "patience": 200,
        "select_by": ["ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10"],
        "rule": "wsdm20",
        "max_epochs": 2,
    }
    preset = URank.from_preset(preset, max_epochs=2, n_jobs=1).fit(train, valid=valid)
    explicit = URank(**written, n_jobs=1).fit(train, valid=valid)
    assert preset.history_ == explicit.history_
    np.testing.assert_array_equal(preset.predict(valid), explicit.predict(valid))


def test_a_given_setting_comes_before_the_preset(data):
    given = {"hidden": (8,), "learning_rate": 0.02, "max_epochs": 2, "n_jobs": 1}
    preset = URank.from_preset("paper-mslr-web30k", **given).fit(data)
    explicit = URank(activation="elu", queries_per_step=1, **PLAIN | given).fit(data)
    np.testing.assert_array_equal(preset.predict(data), explicit.predict(data))


def test_gains_as_table_function_or_name(data, tmp_path):
    table = {rating: 2.0**rating - 1 for rating in range(5)}
    forms = ["exp2", table, lambda ratings: np.exp2(ratings) - 1]
    named, tabled, computed = (URank(**QUICK, gain=gain).fit(data) for gain in forms)
    np.testing.assert_array_equal(tabled.predict(data), named.predict(data))
    np.testing.assert_array_equal(computed.predict(data), named.predict(data))
    assert not np.array_equal(URank(**QUICK, gain="linear").fit(data).predict(data), named.predict(data))
    tabled.save(tmp_path / "model")
    np.testing.assert_array_equal(tierank.load(tmp_path / "model").predict(data), named.predict(data))
    with pytest.raises(tierank.DataError, match="gain: expected a value that a file can hold"):
        computed.save(tmp_path / "other")


def test_weight_decay_shrinks_the_weights(data):
    small, large = (
        URank(**QUICK | {"max_epochs": 10, "weight_decay": decay}).fit(data).predict(data) for decay in (0.0, 20.0)
    )
    assert np.abs(large).max() < np.abs(small).max()


@pytest.mark.filterwarnings("ignore:no qid was given")
def test_one_query_without_ids(data):
    features, ratings, _ = raw(data)
    ranker = URank(**QUICK).fit(features, ratings)
    assert ranker.predict(RankingDataset(features)).shape == (len(ratings),)
    # Without queries a per-query transform scales by all documents of fit: parts score as the whole.
    np.testing.assert_allclose(ranker.predict(features[:7]), ranker.predict(features)[:7], atol=1e-6)


def test_a_model_of_a_preset_is_loaded(data, tmp_path):
    ranker = URank.from_preset("paper-mq2007", max_epochs=1, n_jobs=1).fit(data)
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model").set_params(n_jobs=1)
    np.testing.assert_array_equal(loaded.predict(data), ranker.predict(data))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda scores, batch: scores.sum(), r"expected one value per query, 8 here, got shape \(\)"),
        (lambda scores, batch: torch.zeros(batch.n_queries), "got values that do not depend on the scores"),
        (lambda scores, batch: 3.0, r"got 3\.0, which is not a tensor"),
    ],
)
def test_a_loss_of_another_shape_is_refused(data, loss, message):
    with pytest.raises(ParameterError, match=message):
        NetworkRanker(loss, max_epochs=1, n_jobs=1).fit(data)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 5}, "hidden: expected sizes of layers, such as"),
        ({"device": "cdua"}, "device: expected one that torch has here, such as 'cpu', got 'cdua'"),
        ({"network": "tier_rnn"}, "unknown network 'tier_rnn'"),
        ({"loss": "ranknet"}, "unknown setting of URank 'loss'"),
    ],
)
def test_more_settings_that_cannot_be_used(data, settings, message):
    with pytest.raises(ParameterError, match=message):
        URank(**settings).fit(data)


def test_settings_of_a_network_go_by_their_own_names(data):
    one, two = (
        URank(network="groupwise", network_settings={"group_size": size}, max_epochs=1, n_jobs=1)
        .fit(data)
        .predict(data)
        for size in (2, 3)
    )
    assert not np.array_equal(one, two)


def test_each_epoch_meets_the_queries_in_an_order_of_its_own(data, monkeypatch):
    met = []
    step = Training.step

    def watched(self, queries, rate):
        met.extend(queries.tolist())
        return step(self, queries, rate)

    monkeypatch.setattr(Training, "step", watched)
    URank(max_epochs=3, queries_per_step=4, n_jobs=1).fit(data)
    epochs = np.reshape(met, (3, -1))
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert (np.sort(epochs) == np.sort(epochs[0])).all()


@pytest.mark.parametrize("queries_per_step", [1, 8])
def test_what_is_kept_between_epochs_changes_no_bit(halves, queries_per_step, monkeypatch):
    """Transformed features and batches of one query are kept if they are small."""
    train, valid = halves
    ranker = PListMLE(max_epochs=3, hidden=(8,), queries_per_step=queries_per_step, n_jobs=1)  # draws at random
    kept = ranker.fit(train, valid=valid).predict(valid)
    monkeypatch.setattr("tierank.rankers.network_scoring._KEPT_BYTES", 0)
    monkeypatch.setattr("tierank.rankers.network_scoring._KEPT_DOCUMENTS", 0)
    np.testing.assert_array_equal(ranker.fit(train, valid=valid).predict(valid), kept)


def test_networks_that_cancel_leave_no_order(tmp_path):
    """One network, and the same with its output reversed: the mean of both ranks nothing, also in lists of two."""
    data = tierank.make_ranking(20, n_features=4, mean_length=3, max_length=8, seed=3)
    ranker = tierank.URank(max_epochs=2, hidden=(6,), n_seeds=2, n_jobs=1).fit(data)
    first, second = ranker.members_
    for name in first:
        second[name].copy_(-2 * first[name] if name.startswith("output.") else first[name])
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(data), np.zeros(data.n_documents))
    np.testing.assert_array_equal(loaded.rank(data, k=1).row, data.offsets[:-1])
    loaded.export(tmp_path / "model.c", to="c")
    assert tierank.verify(loaded, tmp_path / "model.c", "c", data).holds


class OfFeatures(torch.nn.Module):
    """A network as other libraries have it: it does not know which documents belong together."""

    def __init__(self, n_features):
        super().__init__()
        self.layer = torch.nn.Linear(n_features, 1)

    def forward(self, x):
        return self.layer(x).squeeze(1)


class OfFeaturesAndBatch(OfFeatures):
    def forward(self, x, batch=None):
        return super().forward(x)


def mean_square(y_pred, y_true):
    return ((y_pred - y_true) ** 2).mean()


def test_a_network_without_a_batch_is_refused_before_training_and_the_fix_works(data):
    with pytest.raises(ParameterError, match=r"got OfFeatures with forward\(self, x\)") as raised:
        NetworkRanker("urank", network=OfFeatures).checked_settings()
    assert raised.value.argument == "network"
    assert raised.value.fix == "write def forward(self, features, batch=None)"
    NetworkRanker("urank", network=OfFeaturesAndBatch, max_epochs=1, n_jobs=1).fit(data)


@pytest.mark.parametrize(
    "loss",
    [mean_square, torch.nn.functional.mse_loss, torch.nn.MSELoss(), torch.nn.BCEWithLogitsLoss()],
    ids=["mean_square", "mse_loss", "MSELoss", "BCEWithLogitsLoss"],
)
def test_a_loss_of_scores_and_ratings_is_refused_in_its_first_call_and_the_fix_works(loss, data):
    for use in (
        lambda one: NetworkRanker(one, **QUICK).fit(data),
        lambda one: TreeRanker(one, n_trees=2).fit(data),
        check_gradient,
    ):
        with pytest.raises(
            ParameterError, match=r"expected a function .* which cannot take a batch: .*Batch"
        ) as raised:
            use(loss)
        assert raised.value.argument == "loss"
    written = raised.value.fix.partition("write ")[2]
    name = getattr(loss, "__name__", type(loss).__name__)
    names = {"torch": torch, name: loss}
    exec(written, names)
    check_gradient(names["loss"])
    ranker = NetworkRanker(names["loss"], **QUICK).fit(data)
    assert np.isfinite(ranker.history_[0]["loss"])
    TreeRanker(names["loss"], n_trees=2).fit(data)


def test_a_class_is_not_a_loss():
    with pytest.raises(ParameterError, match=r"pass MSELoss\(\)") as raised:
        check_gradient(torch.nn.MSELoss)
    assert (raised.value.argument, raised.value.fix) == ("loss", "pass MSELoss()")
