"""Blend beyond the common contract, and the copies of features within queries."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import tierank
from tierank import Blend, DataError, LambdaMART, ParameterError, RankingDataset, UMart, URank, make_ranking
from tierank.rankers.blend import CONFIGS
from tierank.training.blend import BlendModel, take_turns
from tierank.training.model import Resources
from tierank.transforms import add_query_copies

QUICK = {"n_configs": 2, "n_seeds": 1, "n_trees": 6, "max_epochs": 2, "n_jobs": 1}


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
    families = {"trees": [], "networks": []}
    for member in fitted.members_:
        families[member.family].append(z(predict(member, wide if member.family == "trees" else test), test))
    assert {name: len(scores) for name, scores in families.items()} == {"trees": 4 * 2, "networks": 4 * 2}
    expected = (z(np.mean(families["trees"], axis=0), test) + z(np.mean(families["networks"], axis=0), test)) / 2
    np.testing.assert_allclose(fitted.predict(test), expected, atol=1e-12)


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
    trees, network = fitted.members_[4], fitted.members_[6]
    by_hand = LambdaMART(n_trees=6, n_jobs=1, seed=4, **CONFIGS[0]).fit(
        add_query_copies(learned), valid=add_query_copies(part)
    )
    np.testing.assert_array_equal(predict(trees, add_query_copies(test)), by_hand.predict(add_query_copies(test)))
    by_hand = URank(max_epochs=2, n_jobs=1, seed=6).fit(learned, valid=part)
    np.testing.assert_array_equal(predict(network, test), by_hand.predict(test))
    assert network.best == by_hand.best_


def test_without_rotation_validation_data_are_not_learned_from(parts):
    train, valid, test = parts
    ranker = Blend(**QUICK, rotate=False, query_features=False, trees="umart").fit(train, valid=valid)
    assert len(ranker.members_) == 4
    by_hand = UMart(n_trees=6, n_jobs=1, seed=1, **CONFIGS[1]).fit(train, valid=valid)
    np.testing.assert_array_equal(predict(ranker.members_[1], test), by_hand.predict(test))
    judged = tierank.evaluate(valid, ranker.predict(valid), "ndcg@10")
    assert ranker.best_["ndcg@10"] == pytest.approx(judged.mean("ndcg@10"), abs=1e-12)


def test_the_blend_is_judged_by_members_that_did_not_learn_from_the_part(fitted, parts):
    train, valid, _ = parts
    values = []
    for turn, (_, part) in enumerate(take_turns(train, valid, True, 0)):
        members = [member for member in fitted.members_ if member.part == turn]
        alone = BlendModel(members, fitted.seen_, query_features=True)
        values.append(tierank.evaluate(part, alone.predict(part, Resources()), "ndcg@10").per_query["ndcg@10"])
    assert fitted.best_["ndcg@10"] == pytest.approx(np.nanmean(np.concatenate(values)), abs=1e-12)


@pytest.mark.parametrize("settings", [{"n_seeds": 0}, {"n_configs": 0}])
def test_one_family_alone(parts, settings):
    ranker = Blend(**(QUICK | settings)).fit(parts[0])
    assert {member.family for member in ranker.members_} == {"networks" if "n_configs" in settings else "trees"}
    scores = ranker.predict(parts[2])
    assert np.isfinite(scores).all()


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

    for kind in (LambdaMART, URank):
        count_fits(kind, 7)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        Blend(**QUICK).fit(train, valid=valid, checkpoint=tmp_path / "kept")
    monkeypatch.undo()
    for kind in (LambdaMART, URank):
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
    ranker = Blend(**QUICK, rotate=False).fit(features, ratings)
    data = RankingDataset(features, ratings)
    scores = ranker.predict(features)
    found = ranker.model_.contributions(data, np.array([0]), np.array([1]), Resources())
    np.testing.assert_allclose(found.sum(axis=1), scores[:1] - scores[1:2], rtol=0.01, atol=1e-6)


def test_a_damaged_blend_is_refused(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    file = tmp_path / "model" / "model.json"
    described = json.loads(file.read_text())
    for change in ({"members": 5}, {"members": [{}]}, {"best": None}):
        file.write_text(json.dumps({**described, "fitted": {**described["fitted"], **change}}))
        with pytest.raises(DataError, match="expected the members of a blend, got a damaged description"):
            tierank.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trees": "umrat"}, r"unknown trees 'umrat': did you mean 'umart'\?"),
        ({"n_configs": 7}, "n_configs: expected an integer >= 0 and <= 6, got 7"),
        ({"n_configs": 0, "n_seeds": 0}, "expected trees or networks, got 0 of both"),
        ({"n_seeds": -1}, "n_seeds: expected an integer >= 0, got -1"),
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
