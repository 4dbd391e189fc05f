"""What must change no model: bits that mean nothing, ids of queries, factors that are powers of two, files."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from running import examples
from test_rankers import every_ranker, make, raw

import tierank
from tierank import RankingDataset
from tierank.rankers.order import canonical_rows


@pytest.fixture(scope="module")
def parts():
    """Signed features with zeros and missing values; fractions among the ratings; documents that are alike."""
    data = tierank.make_ranking(80, n_features=6, mean_length=15, max_length=40, seed=5)
    features, ratings, queries = raw(data)
    rng = np.random.default_rng(0)
    features[rng.random(features.shape) < 0.2] = 0.0
    features[:, 0] = np.round(features[:, 0] * 4) / 4
    features *= np.where(rng.random(features.shape) < 0.5, -1, 1).astype(np.float32)
    features[5::7] = features[4:-1:7][: len(features[5::7])]
    ratings = np.where(ratings == 1, 0.5, ratings)
    return RankingDataset(features, ratings, qid=queries).split(0.6, 0.2, 0.2)


def fit(name, train, valid, **settings):
    return make(name, **settings).fit(train, valid=valid)


def settings_with_draws(name):
    """Settings under which random numbers fall on documents and queries in the order of learning."""
    if hasattr(tierank.RANKERS[name], "importance"):
        return {"bagging_fraction": 0.6, "bagging_freq": 1, "feature_fraction": 0.7}
    return {} if name in ("blend", "linear") else {"dropout": 0.2}


@every_ranker
def test_signs_of_zeros_and_kinds_of_nan_change_nothing(name, parts):
    train, valid, test = parts
    expected = fit(name, train, valid).predict(test)

    def negate_zeros(data):
        features, ratings, queries = raw(data)
        zeros = features == 0
        features[zeros] = np.where(np.random.default_rng(1).random(zeros.sum()) < 0.5, -0.0, 0.0)
        return RankingDataset(features, np.where(ratings == 0, -0.0, ratings), qid=queries)

    got = fit(name, negate_zeros(train), negate_zeros(valid)).predict(negate_zeros(test))
    np.testing.assert_array_equal(got, expected)


@every_ranker
def test_powers_of_two_change_nothing(name, parts):
    train, valid, test = parts
    factors = np.array([4, 0.5, 1024, 2.0**-20, 8, 2.0**30], np.float32)
    # Networks and linear rankers see logarithms by default, for which a factor is not nothing.
    without_logs = {
        "blend": {"n_seeds": 0, "linear": False},
        "linear": {"feature_transform": ("query_minmax", "query_rank")},
    }
    if "encoding" in tierank.RANKERS[name].declared_settings():
        without_logs[name] = {"feature_transform": "query_minmax", "encoding": "none", "dropout": 0.2}
    chosen = without_logs.get(name, settings_with_draws(name))
    expected, got = (
        fit(name, *(data.with_features(data.features * by, None) for data in (train, valid)), **chosen).predict(
            test.with_features(test.features * by, None)
        )
        for by in (np.ones(6, np.float32), factors)
    )
    np.testing.assert_array_equal(got, expected)


@every_ranker
def test_names_and_order_of_queries_change_nothing(name, parts):
    train, valid, test = parts
    expected = fit(name, train, valid, **settings_with_draws(name)).predict(test)
    features, ratings, queries = raw(train)
    ids = np.unique(queries)
    names = dict(zip(ids.tolist(), np.random.default_rng(2).permutation(len(ids)).tolist(), strict=True))
    order = np.random.default_rng(3).permutation(len(ratings))
    renamed = np.array([f"query {names[q]}" for q in queries.tolist()])
    moved = RankingDataset(features[order], ratings[order], qid=renamed[order])
    np.testing.assert_array_equal(fit(name, moved, valid, **settings_with_draws(name)).predict(test), expected)


def sorted_by_rating(data, direction):
    """The same documents, each query sorted by rating: ties in input order are then perfect, or the worst possible."""
    features, ratings, queries = raw(data)
    order = np.lexsort((direction * ratings, queries))
    return RankingDataset(features[order], ratings[order], qid=queries[order])


def with_many_ties(data):
    return data.with_features(np.sign(data.features[:, :2]), None)


@pytest.mark.parametrize("rule", ["letor", "mslr", "trec_eval"])
@pytest.mark.parametrize("name", ["linear", "blend"])
def test_training_queries_that_validate_do_not_count_by_the_order_of_their_rows(name, rule, parts):
    """These rules rank documents with equal scores in the order of the rows."""
    train, _, test = (with_many_ties(data) for data in parts)
    expected, got = (
        fit(name, sorted_by_rating(train, direction), None, rule=rule, select_by="ndcg@3") for direction in (1, -1)
    )
    assert expected.history_ == got.history_
    assert expected.best_ == got.best_
    np.testing.assert_array_equal(got.predict(test), expected.predict(test))


def test_distilling_does_not_depend_on_the_order_of_rows(parts):
    train, _, test = (with_many_ties(data) for data in parts)
    scores = []
    for direction in (1, -1):
        data = sorted_by_rating(train, direction)
        into = tierank.LambdaMART(n_trees=20, min_documents=2, select_over=1, rule="letor", n_jobs=1)
        scores.append(tierank.distill(fit("blend", data, None, rotate=True), data, into).predict(test))
    np.testing.assert_array_equal(scores[0], scores[1])


@every_ranker
@pytest.mark.parametrize("ending", ["txt", "tierank"])
def test_memory_and_file_give_one_model(name, ending, parts, tmp_path):
    train, valid, test = parts
    features, ratings, queries = raw(train)
    rated = RankingDataset(np.where(features == 0, -0.0, features), np.where(ratings == 0, -0.0, ratings), qid=queries)
    tierank.write(rated, tmp_path / f"train.{ending}")
    there = tierank.read(tmp_path / f"train.{ending}", n_features=6)
    expected, got = (fit(name, data, valid).predict(test) for data in (rated, there))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", ["umart", "lambdamart"])
def test_a_feature_that_says_nothing_changes_no_tree(name, parts):
    """Ties have no order that another column could decide."""
    train, valid, test = parts
    expected = fit(name, train, valid).predict(test)
    wider = [
        data.with_features(np.column_stack([data.features, np.full(data.n_documents, 0.3, np.float32)]), None)
        for data in parts
    ]
    # Sums of gradients in another order may differ in their last digit.
    np.testing.assert_allclose(fit(name, *wider[:2]).predict(wider[2]), expected, rtol=1e-9, atol=1e-9)


few_values = st.sampled_from([0.0, -0.0, 1.0, 2.0, 4.0, 0.5, -1.0, -2.0, 3.0, np.nan, 1e-30, 1e30])
tables = arrays.arrays(np.float32, st.tuples(st.integers(1, 14), st.integers(1, 3)), elements=few_values)


def learned_rows(data, rated):
    """What rankers learn from, in the order of learning: features, ratings, and where queries end."""
    order, offsets, content = canonical_rows(data, 1, rated=rated)[:3]
    return data.features[order] + np.float32(0), data.ratings[order] + 0.0, offsets, content


@examples(200)
@given(tables, st.data(), st.booleans())
def test_order_of_learning_is_that_of_what_rows_hold(features, draw, rated):
    n, m = features.shape
    queries = np.array(draw.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    ratings = np.array(draw.draw(st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.5]), min_size=n, max_size=n)))
    order = np.array(draw.draw(st.permutations(range(n))))
    names = np.array(draw.draw(st.permutations(["e", "d", "c", "b", "a"])))
    factors = np.array(draw.draw(st.lists(st.sampled_from([1.0, 2.0, 0.125]), min_size=m, max_size=m)), np.float32)
    plain = learned_rows(RankingDataset(features, ratings, qid=queries), rated)
    moved = RankingDataset((features * factors)[order], ratings[order], qid=names[queries[order]])
    there = learned_rows(moved, rated)
    np.testing.assert_array_equal(there[0], plain[0] * factors)
    np.testing.assert_array_equal(there[1], plain[1])
    np.testing.assert_array_equal(there[2], plain[2])
    same = bool((np.nan_to_num(features * factors, nan=7.7) == np.nan_to_num(features, nan=7.7)).all())
    assert (there[3] == plain[3]) == same


def test_canonical_queries_are_those_of_the_rows(parts):
    train = parts[0]
    order, offsets, _, queries, _ = canonical_rows(train, 1)
    assert sorted(queries.tolist()) == list(range(train.n_queries))
    np.testing.assert_array_equal(np.repeat(queries, np.diff(offsets)), train.query_of_row[order])


@pytest.mark.parametrize("network", ["mlp", "groupwise", "attention"])
def test_documents_with_the_same_features_have_the_same_score(network):
    """Wherever they stand: processors round the last rows of a matrix product differently, some of them."""
    pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    lengths = np.arange(1, 40)
    queries = np.repeat(lengths, lengths)
    features = rng.normal(size=(len(lengths), 3, 5))[queries - 1, rng.integers(3, size=len(queries))]
    ranker = tierank.URank(network=network, max_epochs=1, hidden=(7,), n_jobs=1)
    if network == "attention":
        ranker.set_params(hidden=(100, 50), network_settings={"width": 8})
    ranker.fit(features, rng.integers(3, size=len(queries)), qid=queries)
    scores = ranker.predict(features, qid=queries)
    for query in lengths:
        own = queries == query
        for row in np.unique(features[own], axis=0):
            assert len(set(scores[own][(features[own] == row).all(axis=1)])) == 1
    order = rng.permutation(len(queries))
    np.testing.assert_array_equal(ranker.predict(features[order], qid=queries[order]), scores[order])


@pytest.mark.parametrize("n_queries", [1, 300])
@pytest.mark.parametrize("weighted", [False, True])
def test_documents_with_the_same_form_are_sorted_by_values_then_weight(n_queries, weighted):
    """Rows and their doubles have one form; NaN is above all values, and rows that are equal keep their order."""
    rng = np.random.default_rng(n_queries)
    qid = np.repeat(np.arange(n_queries), 40)
    features = rng.choice(np.array([-2, -1, -0.0, 0.0, 1, 2, np.nan], np.float32), (len(qid), 2))
    weights = rng.choice([1.0, 2.0], len(qid)) if weighted else np.ones(len(qid))
    data = tierank.RankingDataset(features, rng.integers(0, 2, len(qid)), qid, row_weight=weights if weighted else None)
    rows = canonical_rows(data, 1).rows

    shown = np.nan_to_num(features, nan=9.0)

    def form(row):
        return qid[row], data.ratings[row], *np.sign(shown[row]).tolist(), *np.isnan(features[row]).tolist()

    groups = [(name, list(group)) for name, group in itertools.groupby(rows.tolist(), key=form)]
    assert len(groups) == len({name for name, _ in groups})
    for _, group in groups:
        keys = [(*shown[row].tolist(), weights[row], row) for row in group]
        assert keys == sorted(keys)
    assert sorted(rows.tolist()) == list(range(len(qid)))
