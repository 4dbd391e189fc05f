"""Blend beyond the common contract, and the copies of features within queries."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.base import clone

import tierank
from tierank import (
    Blend,
    DataError,
    LambdaMART,
    LinearRanker,
    ParameterError,
    RankingDataset,
    UMart,
    URank,
    cli,
    distill,
    make_ranking,
)
from tierank.rankers.blend import CONFIGS, NETWORK, STOPPING, STRENGTH, choose_weights, take_turns
from tierank.rankers.distillation import soft_ratings
from tierank.rankers.model import Resources
from tierank.rankers.selection import mean_of_standardised, spread_of
from tierank.transforms import add_query_copies

QUICK = {"n_configs": 2, "plain_trees": False, "n_trees": 6, "max_epochs": 2, "n_jobs": 1, "rotate": True}


@pytest.fixture(scope="module")
def parts():
    return make_ranking(80, n_features=5, mean_length=10, max_length=20, seed=7).split(0.6, 0.2, 0.2)


@pytest.fixture(scope="module")
def fitted(parts):
    return Blend(**QUICK).fit(parts[0], valid=parts[1])


def predict(member, data):
    return member.model.predict(data, Resources(1))


def z(scores, data):
    """Scores less the mean and over the deviation of each query."""
    out = np.zeros(len(scores))
    for start, end in pairwise(data.offsets):
        own = scores[start:end]
        out[start:end] = (own - own.mean()) / (own.std() or 1.0)
    return out


def test_scores_are_the_formula_written_out(fitted, parts):
    test = parts[2]
    wide = add_query_copies(test)
    families = {}
    for member in fitted.members_:
        scores = predict(member, wide if member.family == "trees" else test)
        families.setdefault(member.family, []).append(z(scores, test))
    assert {name: len(scores) for name, scores in families.items()} == {"trees": 4 * 2, "networks": 4, "linear": 4}
    assert sum(fitted.weights_.values()) == pytest.approx(1, abs=1e-12)
    by_family = fitted.scores_by_family(test)
    for name, scores in families.items():
        np.testing.assert_allclose(by_family[name], z(np.mean(scores, axis=0), test), atol=1e-12)
    expected = sum(fitted.weights_[name] * z(np.mean(scores, axis=0), test) for name, scores in families.items())
    np.testing.assert_allclose(fitted.predict(test), expected, atol=1e-12)


def test_scores_by_family_are_in_the_order_of_the_rows(fitted, parts):
    test = parts[2]
    rows = np.random.default_rng(0).permutation(test.n_documents)
    qid = np.repeat(test.query_ids, test.lengths)[rows]
    found = fitted.scores_by_family(np.array(test.features)[rows], qid)
    for name, scores in fitted.scores_by_family(test).items():
        np.testing.assert_array_equal(found[name], scores[rows])


def test_each_query_validates_once_and_every_part_can_be_judged(parts):
    train, valid, _ = parts
    turns = list(take_turns(train, valid, True, 3))
    assert len(turns) == 4
    held_out = np.concatenate([part.query_ids for _, part in turns])
    assert len(held_out) == len(set(held_out)) == train.n_queries + valid.n_queries
    for learned, part in turns:
        assert not set(learned.query_ids) & set(part.query_ids)
        assert learned.n_queries + part.n_queries == len(held_out)
    usable = [int((np.maximum.reduceat(p.ratings, p.offsets[:-1]) > 0).sum()) for _, p in turns]
    assert max(usable) - min(usable) <= 1


def test_members_are_what_one_gets_by_hand(fitted, parts):
    train, valid, test = parts
    learned, part = list(take_turns(train, valid, True, 0))[1]
    trees, network, linear = fitted.members_[4], fitted.members_[6], fitted.members_[7]
    settings = STOPPING | CONFIGS[0] | {"n_trees": 6, "n_jobs": 1, "seed": 4, "lambda_l2": 1}
    by_hand = UMart.from_preset("stochastic", **settings)
    by_hand.fit(add_query_copies(learned), valid=add_query_copies(part))
    np.testing.assert_array_equal(predict(trees, add_query_copies(test)), by_hand.predict(add_query_copies(test)))
    settings = NETWORK | {"max_epochs": 2, "patience": 2, "n_jobs": 1, "seed": 6}
    by_hand = URank.from_preset("rich-inputs", **settings).fit(learned, valid=part)
    np.testing.assert_array_equal(predict(network, test), by_hand.predict(test))
    assert network.best == by_hand.best_
    by_hand = LinearRanker(n_jobs=1).fit(learned, valid=part)
    np.testing.assert_array_equal(predict(linear, test), by_hand.predict(test))


def test_validation_data_need_no_names_of_features(parts):
    train, valid, test = parts
    named = train.with_features(train.features, tuple("abcde"))
    quick = {"n_configs": 0, "n_seeds": 0}
    scores = Blend(**quick).fit(named, valid=valid).predict(test)
    np.testing.assert_array_equal(scores, Blend(**quick).fit(train, valid=valid).predict(test))


@pytest.mark.parametrize(("kind", "ranker"), [("umart", UMart), ("lambdamart", LambdaMART)])
def test_without_rotation_validation_data_are_not_learned_from(parts, kind, ranker):
    train, valid, test = parts
    by_hand = ranker(n_trees=6, n_jobs=1, seed=1, **STOPPING, **CONFIGS[1]).fit(train, valid=valid)
    ranker = Blend(**QUICK | {"rotate": False}, query_features=False, trees=kind).fit(train, valid=valid)
    assert len(ranker.members_) == 4
    np.testing.assert_array_equal(predict(ranker.members_[1], test), by_hand.predict(test))
    judged = tierank.evaluate(valid, ranker.predict(valid), "ndcg@10")
    assert ranker.best_["ndcg@10"] == pytest.approx(judged.mean("ndcg@10"), abs=1e-12)


def test_the_blend_is_judged_by_members_that_did_not_learn_from_the_part(fitted, parts):
    train, valid, _ = parts
    values = []
    out_of_fold = np.zeros(train.n_documents)
    for turn, (_, part) in enumerate(take_turns(train, valid, True, 0)):
        scores = np.zeros(part.n_documents)
        for family, weight in fitted.weights_.items():
            data = add_query_copies(part) if family == "trees" else part
            own = [member for member in fitted.members_ if (member.family, member.part) == (family, turn)]
            scores += weight * z(np.mean([z(predict(member, data), part) for member in own], axis=0), part)
        values.append(tierank.evaluate(part, scores, "ndcg@10").per_query["ndcg@10"])
        of_query = dict(zip(part.query_ids, np.split(scores, part.offsets[1:-1]), strict=True))
        for query, (start, end) in enumerate(pairwise(train.offsets)):
            out_of_fold[start:end] = of_query.get(f"train {query}", out_of_fold[start:end])
    assert fitted.best_["ndcg@10"] == pytest.approx(np.nanmean(np.concatenate(values)), abs=1e-12)
    np.testing.assert_allclose(fitted.out_of_fold(train, valid), out_of_fold, atol=1e-12)


def test_out_of_fold_scores_of_other_data_are_refused(fitted, parts):
    train, valid, test = parts
    with pytest.raises(DataError, match=r"train: expected the data that the blend was fitted on.*, got other data"):
        fitted.out_of_fold(test, valid)
    with pytest.raises(DataError, match="and valid if it was given, got other data"):
        fitted.out_of_fold(train)
    fixed = Blend(**QUICK | {"n_seeds": 0, "rotate": False}).fit(train, valid=valid)
    with pytest.raises(ParameterError, match="rotate: expected True, so that each query validates some members"):
        fixed.out_of_fold(train, valid)


@pytest.mark.parametrize(
    ("settings", "family"),
    [
        ({"n_seeds": 0, "linear": False}, "trees"),
        ({"n_configs": 0, "linear": False}, "networks"),
        ({"n_configs": 0, "n_seeds": 0}, "linear"),
    ],
)
def test_one_family_alone(parts, settings, family):
    ranker = Blend(**(QUICK | settings)).fit(parts[0])
    assert {member.family for member in ranker.members_} == {family}
    assert ranker.weights_ == {family: 1.0}
    scores = ranker.predict(parts[2])
    assert np.isfinite(scores).all()


def test_plain_trees_are_lambdamart_without_copies(parts, tmp_path):
    train, valid, test = parts
    settings = QUICK | {"n_seeds": 0, "n_configs": 1, "plain_trees": True, "weights": "equal", "rotate": False}
    ranker = Blend(**settings).fit(train, valid=valid)
    assert ranker.weights_ == pytest.approx(dict.fromkeys(("trees", "plain trees", "linear"), 1 / 3))
    by_hand = LambdaMART(n_trees=6, n_jobs=1, seed=1, **STOPPING).fit(train, valid=valid)
    np.testing.assert_allclose(ranker.scores_by_family(test)["plain trees"], z(by_hand.predict(test), test), atol=1e-12)
    ranker.save(tmp_path / "model")
    np.testing.assert_array_equal(tierank.load(tmp_path / "model").predict(test), ranker.predict(test))


# Weights of families


def quadratic(best, n_queries):
    """Metrics of queries, with the mean 1 - |w - best|^2 and the deviation 1 at any weights."""
    noise = np.tile([-1.0, 1.0], n_queries // 2)
    return lambda weights: 1 + noise - sum((weight - best[name]) ** 2 for name, weight in weights.items())


@pytest.mark.parametrize(("n_queries", "strength"), [(2, 1e9), (10, 10), (40, 20), (1000, 30), (100_000, 0)])
def test_weights_are_the_closed_form(n_queries, strength):
    best = {"a": 0.75, "b": 0.25, "c": 0.0}
    found = choose_weights(quadratic(best, n_queries), list(best), strength)
    share = 1 / (1 + strength / n_queries)  # the highest point of -|w - best|^2 - strength / n |w - 1/3|^2
    for name, weight in found.items():
        assert weight == pytest.approx(share * best[name] + (1 - share) / 3, abs=1 / 10)
    if n_queries == 2:
        assert found == pytest.approx(dict.fromkeys(best, 1 / 3))
    if n_queries == 100_000:
        assert found == pytest.approx(best, abs=1 / 24)


@pytest.mark.parametrize(
    ("select_by", "metrics"), [("ndcg@10", ["ndcg@10", "ndcg", "map"]), (["err@5", "map"], ["err@5"])]
)
def test_families_are_weighed_by_the_metrics_that_rounds_are_compared_by(parts, select_by, metrics):
    train, valid, _ = parts
    settings = QUICK | {"n_seeds": 0, "plain_trees": True, "rotate": False, "select_by": select_by}
    scores = Blend(**settings, weights="equal").fit(train, valid=valid).scores_by_family(valid)

    def values_of(weights):
        blended = sum(weights[family] * one for family, one in scores.items())
        judged = tierank.evaluate(valid, blended, metrics)
        return np.mean([judged.per_query[metric] for metric in metrics], axis=0)

    ranker = Blend(**settings).fit(train, valid=valid)
    assert ranker.weights_ == pytest.approx(choose_weights(values_of, list(scores), STRENGTH))
    assert list(ranker.best_) == ([select_by] if isinstance(select_by, str) else select_by)


def test_queries_that_cannot_be_judged_do_not_count():
    best = {"a": 1.0, "b": 0.0}
    judged = quadratic(best, 100)
    with_empty = choose_weights(lambda weights: np.r_[judged(weights), np.full(9000, np.nan)], list(best), 60.0)
    assert with_empty == choose_weights(judged, list(best), 60.0)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.floats(0, 1e3))
def test_weights_are_shares_and_do_not_depend_on_the_order_of_the_queries(seed, n_families, strength):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(20, n_families))
    order = rng.permutation(20)
    families = list("abcd"[:n_families])

    def metric(rows):
        return lambda weights: np.tanh(values[rows] @ np.array(list(weights.values())))

    found = choose_weights(metric(np.arange(20)), families, strength)
    assert sum(found.values()) == pytest.approx(1)
    assert all(weight == 0 or weight >= 1 / 6 for weight in found.values())
    assert found == choose_weights(metric(order), families, strength)


def test_a_family_of_pure_noise_is_not_kept(tmp_path, monkeypatch):
    data = make_ranking(600, n_features=4, mean_length=10, max_length=20, seed=3)
    plain = LinearRanker.fit_model

    def on_noise(ranker, train, valid, context):
        rng = np.random.default_rng(0)
        noise = [rng.normal(size=one.features.shape).astype(np.float32) for one in (train, valid)]
        return plain(ranker, train.with_features(noise[0], None), valid.with_features(noise[1], None), context)

    monkeypatch.setattr(LinearRanker, "fit_model", on_noise)
    ranker = Blend(n_trees=50, n_seeds=0, plain_trees=False, n_jobs=1).fit(data)
    assert ranker.weights_ == {"trees": 1.0, "linear": 0.0}
    assert {member.family for member in ranker.members_} == set(ranker.scores_by_family(data)) == {"trees"}
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model")
    assert loaded.weights_ == ranker.weights_
    assert len(loaded.members_) == 4
    np.testing.assert_array_equal(loaded.predict(data), ranker.predict(data))


def test_the_same_bits_for_any_number_of_threads(parts):
    train, valid, test = parts
    one, several = (Blend(**QUICK | {"n_jobs": n_jobs}).fit(train, valid=valid) for n_jobs in (1, 3))
    assert one.weights_ == several.weights_
    np.testing.assert_array_equal(one.predict(test), several.predict(test))


def test_finished_members_are_not_trained_again(parts, tmp_path, monkeypatch):
    train, valid, test = parts
    expected = Blend(**QUICK).fit(train, valid=valid).predict(test)
    done = []

    def count_fits(kind, limit):
        plain = kind.fit_model

        def counted(*arguments):
            if len(done) == limit:
                raise KeyboardInterrupt
            done.append(arguments[0])
            return plain(*arguments)

        monkeypatch.setattr(kind, "fit_model", counted)

    for kind in (UMart, URank, LinearRanker):
        count_fits(kind, 7)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        Blend(**QUICK).fit(train, valid=valid, checkpoint=tmp_path / "kept")
    monkeypatch.undo()
    for kind in (UMart, URank, LinearRanker):
        count_fits(kind, None)
    again = Blend(**QUICK).fit(train, valid=valid, checkpoint=tmp_path / "kept")
    assert len(done) == 16
    np.testing.assert_array_equal(again.predict(test), expected)
    with pytest.raises(
        DataError, match="expected a checkpoint of this data and these settings, got one of another run"
    ):
        Blend(**QUICK, seed=1).fit(train, valid=valid, checkpoint=tmp_path / "kept")


def test_queries_with_the_same_id_in_both_parts_are_two(parts):
    train, valid, test = parts
    renamed = RankingDataset(
        valid.features, valid.ratings, np.repeat(train.query_ids[: valid.n_queries], valid.lengths)
    )
    ranker = Blend(**QUICK | {"n_seeds": 0}).fit(train, valid=renamed)
    assert np.isfinite(ranker.predict(test)).all()


def test_weights_reach_the_members(parts):
    train, valid, test = parts
    features, ratings, queries = np.array(train.features), train.ratings, np.repeat(train.query_ids, train.lengths)
    settings = QUICK | {"n_seeds": 0}
    weight = np.random.default_rng(0).uniform(0.1, 5.0, train.n_queries)
    weighed = Blend(**settings).fit(features, ratings, qid=queries, query_weight=weight, valid=valid)
    assert not np.array_equal(weighed.predict(test), Blend(**settings).fit(train, valid=valid).predict(test))


def test_data_too_small_to_hold_anything_back():
    one = RankingDataset(np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 3, qid=np.zeros(30))
    ranker = Blend(**QUICK).fit(one)
    assert ranker.best_ == {}
    assert len(ranker.members_) == 4
    assert np.isfinite(ranker.predict(one)).all()


def test_contributions_sum_to_the_difference(fitted, parts):
    query = parts[2].select([2])
    scores = fitted.predict(query)
    above, below = np.array([0, 1]), np.array([3, 4])
    found = fitted.model_.contributions(query, above, below, Resources())
    assert found.shape == (2, 5)
    np.testing.assert_allclose(found.sum(axis=1), scores[above] - scores[below], rtol=0.01, atol=1e-4)


def test_contributions_without_queries_sum_to_the_difference():
    rng = np.random.default_rng(1)
    features, ratings = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
    ranker = Blend(**QUICK | {"rotate": False}).fit(features, ratings)
    data = RankingDataset(features, ratings)
    scores = ranker.predict(features)
    found = ranker.model_.contributions(data, np.array([0]), np.array([1]), Resources())
    np.testing.assert_allclose(found.sum(axis=1), scores[:1] - scores[1:2], rtol=0.01, atol=1e-6)


def test_a_damaged_blend_is_refused(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    file = tmp_path / "model" / "model.json"
    described = json.loads(file.read_text())
    for change in ({"members": 5}, {"members": [{}]}, {"best": None}, {"weights": {"trees": 1.0}}, {"members": []}):
        file.write_text(json.dumps({**described, "fitted": {**described["fitted"], **change}}))
        with pytest.raises(DataError, match="expected the members of a blend, got a damaged description"):
            tierank.load(tmp_path / "model")
    described["fitted"].pop("weights")
    file.write_text(json.dumps(described))
    with pytest.raises(DataError, match="got one of an earlier version of tierank; read it with that version"):
        tierank.load(tmp_path / "model")


def families(**settings):
    ranker = Blend(n_trees=3, max_epochs=1, n_jobs=1, weights="equal", **settings)
    return [member.family for member in ranker.fit(tierank.make_ranking(24, n_features=3)).members_]


def test_the_default_is_one_model_of_each_family():
    assert families() == ["trees", "plain trees", "networks", "linear"]
    assert families(**Blend.PRESETS["full"]) == 4 * ["trees", "plain trees", "networks", "linear"]
    assert families(**Blend.PRESETS["1x"]) == ["trees", "linear"]
    assert families(n_configs=0) == ["networks", "linear"]


def test_without_torch_trees_and_linear_rankers_take_turns(monkeypatch, tmp_path):
    monkeypatch.setattr("tierank.rankers.blend.is_installed", lambda library: False)
    with pytest.warns(UserWarning, match="Blend trains without networks, as torch is not installed"):
        assert families() == 4 * ["trees", "plain trees", "linear"]
    data = tierank.make_ranking(24, n_features=3)
    ranker = Blend(n_seeds=0, n_trees=3, n_jobs=1).fit(data)
    ranker.save(tmp_path / "model")
    monkeypatch.undo()
    loaded = tierank.load(tmp_path / "model")
    assert np.array_equal(loaded.predict(data), ranker.predict(data))
    assert loaded.get_params()["n_seeds"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trees": "umrat"}, r"unknown trees 'umrat': did you mean 'umart'\?"),
        ({"n_configs": 7}, "n_configs: expected an integer >= 0 and <= 6, got 7"),
        (
            {"n_configs": 0, "n_seeds": 0, "linear": False},
            r"expected trees, networks \(n_seeds\) or a linear ranker \(linear\), got none of them",
        ),
        ({"weights": "eqaul"}, r"unknown weights 'eqaul': did you mean 'equal'\?"),
        ({"n_seeds": -1}, "n_seeds: expected an integer >= 0, or None .*, got -1"),
    ],
)
def test_settings_that_cannot_be_used(parts, settings, message):
    with pytest.raises(ParameterError, match=message):
        Blend(**settings).fit(parts[0])


# Copies of features


def slow_copies(features, offsets):
    n, width = features.shape
    out = np.full((n, 3 * width), np.nan, np.float32)
    out[:, :width] = features
    for start, end in pairwise(offsets):
        for column in range(width):
            values = features[start:end, column].astype(float)
            known = values[~np.isnan(values)]
            for row, value in enumerate(values):
                if np.isnan(value):
                    continue
                span = known.max() - known.min()
                out[start + row, width + column] = (value - known.min()) / span if span > 0 else 0
                others = len(known) - 1
                below = (known < value).sum() + ((known == value).sum() - 1) / 2
                out[start + row, 2 * width + column] = below / others if others else 0
    return out


@given(
    arrays(
        np.float32, st.tuples(st.integers(1, 12), st.integers(1, 3)), elements=st.sampled_from([0, 1, 2.5, -3, np.nan])
    ),
    st.data(),
)
def test_copies_are_the_definition(features, draw):
    queries = draw.draw(st.lists(st.integers(0, 3), min_size=len(features), max_size=len(features)))
    data = RankingDataset(features, qid=queries)
    expected = slow_copies(data.features, data.offsets)
    np.testing.assert_allclose(add_query_copies(data, 2).features, expected, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:no qid was given")
def test_trees_with_query_features_see_the_copies(parts, tmp_path):
    train, valid, test = parts
    ranker = UMart(n_trees=8, n_jobs=1, query_features=True).fit(train, valid=valid)
    by_hand = UMart(n_trees=8, n_jobs=1).fit(add_query_copies(train), valid=add_query_copies(valid))
    np.testing.assert_array_equal(ranker.predict(test), by_hand.predict(add_query_copies(test)))
    assert len(ranker.importance()) == 5
    np.testing.assert_allclose(ranker.importance(), by_hand.importance().reshape(3, 5).sum(axis=0))
    ranker.save(tmp_path / "model")
    np.testing.assert_array_equal(tierank.load(tmp_path / "model").predict(test), ranker.predict(test))
    with pytest.raises(DataError, match="query_features: expected query ids in fit, got none"):
        UMart(query_features=True).fit(np.array(train.features), train.ratings)


def test_names_of_copies():
    data = RankingDataset([[1.0], [2.0]], feature_names=["price"])
    assert add_query_copies(data).feature_names == ("price", "price in query", "rank of price")


# One ranker in place of a blend


def test_soft_ratings_are_the_formula(parts):
    train = parts[0]
    scores = np.random.default_rng(0).normal(size=train.n_documents) + train.ratings
    own, means = z(scores, train), np.zeros(train.n_documents)
    for start, end in pairwise(train.offsets):
        means[start:end] = train.ratings[start:end].mean()
    slope = np.polynomial.polynomial.polyfit(own, train.ratings - means, [1])[1]
    expected = 0.3 * train.ratings + 0.7 * np.clip(means + slope * own, 0, train.ratings.max())
    np.testing.assert_allclose(soft_ratings(train, scores, 0.7), expected, atol=1e-12)
    np.testing.assert_array_equal(soft_ratings(train, scores, 0.0), train.ratings)
    np.testing.assert_allclose(soft_ratings(train, -scores, 1.0), means, atol=1e-12)  # it has learned the reverse
    np.testing.assert_allclose(soft_ratings(train, np.zeros(train.n_documents), 1.0), means, atol=1e-12)


def test_unjudged_documents_stay_unjudged(parts):
    train = parts[0]
    rng = np.random.default_rng(3)
    ratings = np.where(rng.random(train.n_documents) < 0.3, np.nan, train.ratings)
    data = train.replace(ratings=ratings)
    scores = rng.normal(size=train.n_documents)
    soft = soft_ratings(data, scores + train.ratings, 1.0)
    np.testing.assert_array_equal(np.isnan(soft), np.isnan(ratings))
    assert np.nanmin(soft) >= 0
    assert np.nanmax(soft) <= np.nanmax(ratings)
    blend = Blend(**QUICK | {"n_configs": 1, "n_seeds": 0}).fit(data)
    assert np.isfinite(distill(blend, data, LambdaMART(n_trees=3, n_jobs=1)).predict(parts[2])).all()


def test_a_distilled_ranker_is_fitted_to_soft_ratings(fitted, parts):
    train, valid, test = parts
    into = UMart(n_trees=5, n_jobs=1)
    ranker = distill(fitted, train, into, valid=valid, mix=0.4)
    soft = train.replace(ratings=soft_ratings(train, fitted.out_of_fold(train, valid), 0.4))
    np.testing.assert_array_equal(ranker.predict(test), clone(into).fit(soft, valid=valid).predict(test))
    assert not hasattr(into, "model_")
    plain = distill(fitted, train, into, valid=valid, mix=0)
    np.testing.assert_array_equal(plain.predict(test), clone(into).fit(train, valid=valid).predict(test))


def test_a_distilled_ranker_does_not_depend_on_the_order_of_the_rows(parts):
    train = parts[0]
    rows = np.random.default_rng(1).permutation(train.n_documents)
    ids = np.repeat(train.query_ids, train.lengths)
    shuffled = RankingDataset(np.array(train.features)[rows], train.ratings[rows], ids[rows])
    blend = Blend(**QUICK | {"n_configs": 1, "n_seeds": 0}).fit(train)
    one, other = (distill(blend, data, LambdaMART(n_trees=5, n_jobs=1)) for data in (train, shuffled))
    np.testing.assert_array_equal(one.predict(parts[2]), other.predict(parts[2]))
    assert set(one.best_) == {"ndcg@10"}  # a part of the queries validated


def test_what_cannot_be_distilled(fitted, parts):
    train, valid, _ = parts
    for arguments, message in (
        ((UMart(), train), "blend: expected a fitted Blend, got UMart"),
        ((fitted, train, "umart"), r"into: expected a ranker, such as LambdaMART\(\), got 'umart'"),
    ):
        with pytest.raises(ParameterError, match=message):
            distill(*arguments)
    with pytest.raises(DataError, match="train: expected a RankingDataset, got ndarray; RankingDataset"):
        distill(fitted, np.eye(3))
    with pytest.raises(ParameterError, match="mix: expected a number >= 0 and <= 1, got 2"):
        distill(fitted, train, valid=valid, mix=2)
    with pytest.raises(DataError, match="train: expected the data that the blend was fitted on"):
        distill(fitted, parts[2], valid=valid)
    with pytest.raises(tierank.NotFittedError, match="this Blend is not fitted; call fit first"):
        distill(Blend(), train)
    for into, name in ((UMart(gain=[0, 1, 2, 3, 4]), "gain"), (UMart(base=UMart(gain={0: 0, 1: 1})), "base__gain")):
        with pytest.raises(ParameterError, match=f"into.{name}: expected 'exp2', 'linear' or a function, .*, got "):
            distill(fitted, train, into, valid=valid)
    shown = train.replace(position=np.concatenate([np.arange(1, n + 1) for n in train.lengths]))
    for clicks in (shown, shown.with_propensity(1 / np.arange(1, 100))):
        with pytest.raises(DataError, match=r"train: expected ratings, .*, got clicks with positions or propensities"):
            distill(fitted, clicks, valid=valid)


def test_distilling_on_the_command_line(parts, tmp_path, capsys):
    files = {name: tmp_path / f"{name}.txt" for name in ("train", "valid")}
    for file, data in zip(files.values(), parts, strict=False):
        tierank.write(data, file)
    data = ["--train", str(files["train"]), "--valid", str(files["valid"])]
    settings = ["n_seeds=0", "n_trees=5", "n_jobs=1"]
    sets = [word for setting in settings for word in ("--set", setting)]
    assert cli.main(["train", "blend", *data, *sets, "--out", str(tmp_path / "blend")]) == 0
    out = ["--out", str(tmp_path / "one")]
    into = ["--into", "umart", "--set", "n_trees=4", "--set", "n_jobs=1", "--mix", "0.3"]
    assert cli.main(["distill", str(tmp_path / "blend"), *data, *into, *out]) == 0
    read = [tierank.read(file) for file in files.values()]
    by_hand = distill(tierank.load(tmp_path / "blend"), read[0], UMart(n_trees=4, n_jobs=1), valid=read[1], mix=0.3)
    np.testing.assert_array_equal(tierank.load(tmp_path / "one").predict(parts[2]), by_hand.predict(parts[2]))
    capsys.readouterr()
    for words, line in (
        ([str(tmp_path / "one"), *data], "one: expected a model of blend, got one of UMart"),
        ([str(tmp_path / "blend"), *data[:2]], "expected the data that the blend was fitted on"),
        ([str(tmp_path / "blend"), *data, "--mix", "2"], "mix: expected a number >= 0 and <= 1, got 2"),
    ):
        assert cli.main(["distill", *words, "--out", str(tmp_path / "other")]) == 2
        assert line in capsys.readouterr().err


@pytest.mark.parametrize("case", ["means", "zero", "query without a rating"])
def test_scores_out_of_fold_are_of_the_data_as_fit_had_them(case):
    """Means of texts are those of other queries, and unjudged documents are what the setting makes of them."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    table = pandas.DataFrame({"seller": rng.choice(list("abcdef"), 120), "x": rng.normal(size=120)})
    qid, y = np.repeat(np.arange(15), 8), rng.integers(0, 4, 120).astype(float)
    if case == "zero":
        y[::7] = np.nan
    elif case != "means":
        y[:8] = np.nan
    columns = tierank.Columns(**{"means" if case == "means" else "categories": ["seller"]})
    data = tierank.RankingDataset(table, y, qid, columns=columns)
    blend = tierank.Blend(
        n_configs=1, n_seeds=0, n_trees=3, n_jobs=1, unjudged="zero" if case == "zero" else "skip"
    ).fit(data)
    scores = blend.out_of_fold(data)
    assert np.isfinite(scores).all()
    order = rng.permutation(120)
    other = tierank.RankingDataset(table.iloc[order], y[order], qid[order], columns=columns)
    assert np.array_equal(blend.out_of_fold(other), scores[order])
    with pytest.raises(tierank.DataError, match="expected the data that the blend was fitted on"):
        blend.out_of_fold(data.replace(ratings=np.roll(data.ratings, 1)))


def test_validation_by_judges_of_a_blend_of_clicks():
    """Members take turns in validating, so all queries have to be of one kind."""
    rng = np.random.default_rng(0)
    X, y, qid = rng.normal(size=(40, 2)), rng.integers(0, 2, 40), np.repeat(np.arange(8), 5)
    shown = {"position": np.tile(np.arange(1, 6), 8), "propensity": 1 / np.arange(1, 6)}
    with pytest.raises(
        tierank.DataError, match="valid: expected position in training and validation data or in neither"
    ):
        tierank.Blend(n_configs=1, n_seeds=0, n_trees=2, n_jobs=1).fit(X, y, qid=qid, valid=(X + 1, y, qid), **shown)


# Scores that differ by rounding alone


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30, unique=True),
    st.floats(1e-3, 1e3),
    st.floats(-1e3, 1e3),
)
def test_members_that_cancel_leave_no_order(scores, scale, shift):
    """z(a) + z(shift - scale a) = 0: only rounding remains, which is no order, and must not be enlarged."""
    data = tierank.RankingDataset(np.zeros((len(scores), 1)), np.zeros(len(scores)), qid=np.zeros(len(scores)))
    own = np.array(scores)
    assume(np.std(own) > 1e-6)
    means = mean_of_standardised([own, shift - scale * own], data)
    zeros = np.zeros(len(own))
    np.testing.assert_array_equal(means, zeros)
    np.testing.assert_array_equal(mean_of_standardised([means], data), zeros)
    assert np.isinf(spread_of(means))


@given(st.floats(-1e150, 1e150), st.integers(1, 40))
def test_equal_scores_are_zero_whatever_their_mean_rounds_to(score, n):
    data = tierank.RankingDataset(np.zeros((n, 1)), np.zeros(n), qid=np.zeros(n))
    np.testing.assert_array_equal(mean_of_standardised([np.full(n, score)], data), np.zeros(n))


def test_small_differences_of_large_scores_count():
    data = tierank.RankingDataset(np.zeros((4, 1)), np.zeros(4), qid=np.zeros(4))
    scores = mean_of_standardised([1e6 + np.array([-1e-3, 1e-3, 1e-3, -1e-3])], data)
    np.testing.assert_allclose(scores, [-1, 1, 1, -1], rtol=1e-6)


# Corners


@pytest.mark.parametrize("seed", [2**31 - 1, 2**31 - 3])
def test_the_seeds_of_members_begin_again_at_0(parts, seed):
    """Seeds of members count up from that of the blend, and LightGBM has none above 2^31 - 1."""
    blend = tierank.Blend(rotate=True, n_trees=2, max_epochs=1, n_jobs=1, seed=seed).fit(parts[0])
    assert len(blend.members_) > 1
    again = tierank.Blend(rotate=True, n_trees=2, max_epochs=1, n_jobs=1, seed=seed).fit(parts[0])
    np.testing.assert_array_equal(blend.predict(parts[0]), again.predict(parts[0]))


def test_a_stopped_blend_has_no_scores_out_of_fold(parts):
    """No member has left out the queries of the parts that were to come."""
    steps = []

    def stop(step):
        steps.append(step)
        return len(steps) == 4

    blend = tierank.Blend(rotate=True, n_trees=2, max_epochs=1, n_jobs=1).fit(parts[0], callbacks=[stop])
    refusal = r"expected members of every family .*: a blend that a callback stopped has no scores out of fold"
    with pytest.raises(ParameterError, match=refusal):
        blend.out_of_fold(parts[0])
    with pytest.raises(ParameterError, match=refusal):
        tierank.distill(blend, parts[0], tierank.LambdaMART(n_trees=2))
