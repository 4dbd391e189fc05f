"""Judgements, off-policy values, interleaving and power: worked by hand, and true on average."""

import itertools
import math
import statistics
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples
from scipy.stats import binom, binomtest, norm

import tierank
from benchmarks.calibration import interleaving
from tierank.clicks import (
    CLICK_MODELS,
    INTERLEAVINGS,
    ClickLog,
    ab_power,
    ab_sample_size,
    choose_model,
    compare_models,
    estimate_value,
    evaluate_ranking,
    interleave,
    interleaving_power,
    interleaving_sample_size,
    judgements,
    make_model,
    preference,
    simulate_clicks,
)
from tierank.clicks.offpolicy import new_ranks
from tierank.rankers.tree_training import LEARNING_RATE, N_ROUNDS, expect_ratings

WITH_DOCUMENTS = sorted(set(CLICK_MODELS) - {"ctr"})


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(40, n_features=4, mean_length=12, max_length=20, seed=1)


@pytest.fixture(scope="module")
def scores(data):
    rng = np.random.default_rng(0)
    return [w * data.restore(data.ratings) + rng.normal(size=data.n_documents) for w in (0.2, 1.0)]


# Judgements


@pytest.mark.parametrize("model", WITH_DOCUMENTS)
def test_judgements_follow_the_ratings_that_clicks_came_from(model, data, scores):
    log, truth = simulate_clicks(data, scores[0], model=model, n_sessions=20_000, noise=0.1, randomize="shuffle")
    found = judgements(log, model)
    assert len(found) == len(truth.items_)
    assert ((found.rating >= 0) & (found.rating <= 4)).all()
    assert ((found.weight >= 0) & (found.weight < 1)).all()
    sure = found.n_examined > 90
    assert sure.sum() > 50
    relevance = (2**found.rating - 1) / 15  # the gain of a rating is proportional to the relevance
    assert np.corrcoef(relevance[sure], truth.relevance()[sure])[0, 1] > 0.9
    assert np.allclose(relevance, found.model.relevance(), rtol=1e-12, atol=1e-15)


def test_a_judgement_is_as_sure_as_often_as_it_was_examined():
    sessions = 30
    log = ClickLog.of(
        session=np.repeat(np.arange(sessions), 2), query=["q"] * 60, document=["a", "b"] * 30, position=[1, 2] * 30,
        clicked=[1, 0] * 30,
    )  # fmt: skip
    found = judgements(log, "cascade", half=10)
    assert found.n_examined.tolist() == [30, 0]  # nobody looks below the first click
    assert found.weight.tolist() == [0.75, 0]
    assert found.rating[0] == pytest.approx(4.0)
    pbm = judgements(log, make_model("pbm", smoothing=0).fit(log))
    assert pbm.n_examined[0] == pytest.approx(30)


def test_judgements_are_written_and_read(tmp_path):
    log = ClickLog.of(
        session=[1, 1, 2, 2], query=["q", "q", "r", "r"], document=[1, 2, 1, 3], position=[1, 2, 1, 2],
        clicked=[0, 1, 1, 0],
    )  # fmt: skip
    found = judgements(log, "sdbn")
    found.write(tmp_path / "judgements.csv")
    read = tierank.read(tmp_path / "judgements.csv", ignore=["n_clicks"])
    assert read.restore(read.ratings).tolist() == found.rating.tolist()
    assert read.restore(read.row_weight).tolist() == found.weight.tolist()


def test_a_judgement_counts_examinations_and_clicks():
    """Position-based with known examination: 1 at the first position, a half at the second."""
    log = ClickLog.of(
        session=[1, 1, 2, 2, 3, 3], query=["q"] * 6, document=["a", "b", "a", "b", "b", "a"], position=[1, 2] * 3,
        clicked=[1, 0, 0, 1, 1, 0],
    )  # fmt: skip
    model = make_model("pbm").fit(log)
    model.attraction_, model.examination_ = np.array([0.4, 0.8]), np.array([1.0, 0.5])
    found = judgements(log, model, half=5)
    assert found.document.tolist() == ["a", "b"]
    assert found.n_examined == pytest.approx([2.5, 2.0])
    assert found.n_clicks.tolist() == [1, 2]
    assert found.mean_position == pytest.approx([4 / 3, 5 / 3])
    assert found.weight == pytest.approx([2.5 / 7.5, 2 / 7])


# Judgements and features


def rated_by_hand(found, data, expected):
    """The formula of ``rate``, document by document; ``expected`` is by row."""
    keys = {key: i for i, key in enumerate(zip(found.query.tolist(), map(str, found.document.tolist()), strict=True))}
    relevance, examined = [], {}
    for row, query in enumerate(data.query_of_row):
        i = keys.get((data.query_ids[query], data.document_ids[row]))
        if i is None:
            relevance.append(math.nan)
            continue
        satisfaction = found.model.satisfaction_[i] if hasattr(found.model, "satisfaction_") else 1.0
        n, w = found.n_examined[i], found.weight[i]
        own = min(found.n_clicks[i] * satisfaction / n, 1.0) if n > 0 else 0.0
        relevance.append(w * own + (1 - w) * min(max(expected[row], 0.0), 1.0))
        examined[row] = n
    shares = []
    for start, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        known = {row: relevance[row] for row in range(start, end) if not math.isnan(relevance[row])}
        between = statistics.pvariance(known.values()) if known else 0.0
        within = [one * (1 - one) / (examined[row] + found.half + 1) for row, one in known.items()]
        shares.append(between / (between + statistics.mean(within)) if between > 0 else 0.0)
    return [math.log2(1 + (2**found.top - 1) * one) for one in relevance], shares


def named(data, **more):
    rows = np.arange(data.n_documents)
    qid = data.query_ids[data.query_of_row]
    return tierank.RankingDataset(data.features, data.ratings, qid, document_ids=rows, **more)


def test_a_few_documents_are_rated_by_hand():
    """No tree can split four documents, so what is expected of a document is the mean of the other query."""
    log = ClickLog.of(
        session=[1, 1, 2, 2, 3, 3], query=["q", "q", "r", "r", "q", "q"], document=[1, 2, 1, 3, 1, 2],
        position=[1, 2] * 3, clicked=[0, 1, 1, 0, 0, 1],
    )  # fmt: skip
    found = judgements(log, "sdbn", half=2, smoothing=0)
    assert found.n_examined.tolist() == [2, 2, 1, 0]  # nobody looks below a click that satisfies
    assert found.n_clicks.tolist() == [0, 2, 1, 0]
    shuffled = tierank.RankingDataset(
        np.arange(6.0)[:, None], qid=["r", "q", "r", "q", "q", "s"], document_ids=[1, 2, 3, 1, 7, 1]
    )
    rated = found.rate(shuffled)
    # q: 0 of 2 and 2 of 2 clicks; r: 1 of 1, and one that was not examined. Each query expects what the other has.
    relevance = {
        ("q", "1"): 0.5 * 0 + 0.5 * 1, ("q", "2"): 0.5 * 1 + 0.5 * 1,
        ("r", "1"): 1 / 3 * 1 + 2 / 3 * 0.5, ("r", "3"): 0.5,
    }  # fmt: skip
    keys = list(zip(rated.query_ids[rated.query_of_row].tolist(), rated.document_ids, strict=True))
    for key, rating in zip(keys, rated.ratings, strict=True):
        assert (
            math.isnan(rating) if key not in relevance else rating == pytest.approx(math.log2(1 + 15 * relevance[key]))
        )
    # q has 1/2 and 1, with n + half = 4; r has 2/3 and 1/2, with 3 and 2; nothing of s was shown.
    of_q, of_r = (1 / 4 / 5 + 0) / 2, (2 / 9 / 4 + 1 / 4 / 3) / 2
    weights = {"q": (1 / 16) / (1 / 16 + of_q), "r": (1 / 144) / (1 / 144 + of_r), "s": 0.0}
    assert rated.query_weight == pytest.approx([weights[query] for query in rated.query_ids])
    assert rated.row_weight is None
    assert rated.restore(rated.features[:, 0]).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("model", ["pbm", "dbn"])
def test_rate_agrees_with_the_slow_twin(model, data, scores):
    log, _ = simulate_clicks(data, scores[0], model=model, n_sessions=1000, k=8)
    ours, found = named(data), judgements(log, model, top=3)
    keys = dict(zip(found.document.tolist(), range(len(found)), strict=True))
    targets, weights, position = (
        np.full(len(data.ratings), np.nan),
        np.zeros(len(data.ratings)),
        np.zeros(len(data.ratings)),
    )
    for document, i in keys.items():
        satisfied = found.model.satisfaction_[i] if model == "dbn" else 1.0
        row = int(ours.restore(np.arange(ours.n_documents))[document])
        targets[row] = min(found.n_clicks[i] * satisfied / max(found.n_examined[i], 1e-300), 1.0)
        weights[row], position[row] = found.weight[i], found.mean_position[i]
    expected = expect_ratings(ours.replace(ratings=targets, row_weight=weights), position)
    ratings, stakes = rated_by_hand(found, ours, expected)
    rated = found.rate(ours)
    assert np.allclose(rated.ratings, ratings, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert rated.query_weight == pytest.approx(stakes, rel=1e-12)
    assert 0 <= rated.query_weight.min() < rated.query_weight.max() <= 1


def test_weights_of_the_data_are_kept(data, scores):
    log, _ = simulate_clicks(data, scores[0], n_sessions=1000)
    found = judgements(log, "pbm")
    rng = np.random.default_rng(1)
    row_weight, query_weight = rng.random(data.n_documents) + 0.5, rng.random(data.n_queries) + 0.5
    plain = found.rate(named(data))
    weighted = found.rate(named(data).replace(row_weight=row_weight, query_weight=query_weight))
    assert np.array_equal(weighted.ratings, plain.ratings, equal_nan=True)  # they are for the ranker
    assert weighted.row_weight.tolist() == row_weight.tolist()
    assert weighted.query_weight == pytest.approx(plain.query_weight * query_weight)


def test_rated_data_do_not_depend_on_threads_or_on_the_order_of_rows(data, scores):
    log, _ = simulate_clicks(data, scores[0], n_sessions=1000)
    found, ours = judgements(log, "pbm"), named(data)
    rated = found.rate(ours, n_jobs=1)
    assert found.rate(ours, n_jobs=3).ratings.tobytes() == rated.ratings.tobytes()
    order = np.random.default_rng(2).permutation(data.n_documents)
    qid = ours.query_ids[ours.query_of_row]
    scattered = tierank.RankingDataset(ours.features[order], None, qid[order], document_ids=order)
    again = found.rate(scattered, n_jobs=2)
    back = dict(zip(again.document_ids, again.ratings.tolist(), strict=True))
    assert np.array_equal([back[name] for name in ours.document_ids], rated.ratings, equal_nan=True)


def test_without_differences_all_queries_count_the_same():
    log = ClickLog.of(session=[1, 2], query=["q", "r"], document=["a", "a"], position=[1, 1], clicked=[0, 0])
    data = tierank.RankingDataset(np.eye(2), qid=["q", "r"], document_ids=["a", "a"])
    assert judgements(log, "pbm").rate(data).query_weight.tolist() == [1, 1]


def test_what_is_expected_is_the_mean_of_similar_documents():
    """With one feature of two values, 60 trees are 60 steps of a tenth from the mean of all to that of each value."""
    n = 40
    kind = np.tile([0.0, 0.0, 1.0, 1.0], n)
    data = tierank.RankingDataset(kind[:, None], np.where(kind, 0.8, 0.2), np.repeat(np.arange(n), 4))
    expected = expect_ratings(data, np.ones(4 * n))
    step = 0.3 * (1 - (1 - LEARNING_RATE) ** N_ROUNDS)
    assert expected == pytest.approx(np.where(kind, 0.5 + step, 0.5 - step), abs=1e-6)
    weight = np.where(kind, 1.0, 3.0)  # the mean of all moves, and is where the steps begin
    expected = expect_ratings(data.replace(row_weight=weight), np.ones(4 * n))
    rest = (1 - LEARNING_RATE) ** N_ROUNDS
    assert expected == pytest.approx(np.where(kind, 0.8, 0.2) * (1 - rest) + 0.35 * rest, abs=1e-6)


def test_what_is_expected_of_a_document_does_not_know_its_own_query(data):
    rated = data.replace(ratings=data.ratings / 4, row_weight=np.ones(data.n_documents))
    before = expect_ratings(rated, np.ones(data.n_documents))
    changed = rated.ratings.copy()
    own = data.query_of_row == 7
    changed[own] = 1 - changed[own]
    after = expect_ratings(rated.replace(ratings=changed), np.ones(data.n_documents))
    assert (after[own] == before[own]).all()
    assert (after != before).any()  # others learn from it


def test_what_is_expected_does_not_rise_with_the_position():
    """Where lower documents are the better ones, positions say nothing; where the higher ones are, they do."""
    position = np.tile(np.arange(1.0, 11), 40)
    data = tierank.RankingDataset(np.zeros((400, 1)), (position - 1) / 10, np.repeat(np.arange(40), 10))
    assert np.ptp(expect_ratings(data, position)) < 1e-9
    falling = expect_ratings(data.replace(ratings=1 - data.ratings), position)
    assert (np.diff(falling.reshape(40, 10)) <= 0).all()
    assert np.ptp(falling) > 0.8


def test_categories_are_expected_to_differ_in_any_way():
    """Categories whose ratings do not follow the order of their names, in trees that split by sets of them."""
    rng = np.random.default_rng(0)
    level = rng.integers(0, 20, 4000)
    truth = rng.permutation(20)[level] / 20
    table = pd.DataFrame({"noise": rng.random(4000), "shop": [f"shop {one}" for one in level]})
    data = tierank.RankingDataset(table, truth, np.repeat(np.arange(200), 20))
    assert expect_ratings(data, np.ones(4000)) == pytest.approx(truth, abs=0.02)


def test_bins_of_a_sample_do_not_depend_on_the_order_of_rows(data, monkeypatch):
    monkeypatch.setattr("tierank.rankers.lightgbm._SAMPLE", 50)
    rng = np.random.default_rng(3)
    position, weight = rng.integers(1, 11, data.n_documents) / 1.0, rng.random(data.n_documents)
    expected = expect_ratings(data.replace(row_weight=weight), position)
    order = rng.permutation(data.n_documents)
    qid = data.query_ids[data.query_of_row]
    scattered = tierank.RankingDataset(data.features[order], data.ratings[order], qid[order], row_weight=weight[order])
    again = scattered.restore(expect_ratings(scattered, scattered.arrange(position[order])))
    assert again.tobytes() == expected[order].tobytes()


@pytest.mark.parametrize("sample", [50, 200_000])
def test_twins_at_other_positions_have_an_order_too(sample, monkeypatch):
    """Documents with the same features and ratings, and whole queries of them, that were shown elsewhere."""
    monkeypatch.setattr("tierank.rankers.lightgbm._SAMPLE", sample)
    rng, n_queries, length = np.random.default_rng(0), 40, 8
    of_pair = rng.integers(0, 3, (n_queries // 2, 1, length // 2, 1, 3)).astype(float)
    values = np.broadcast_to(of_pair, (n_queries // 2, 2, length // 2, 2, 3)).reshape(-1, 3)
    features, ratings = values[:, :2], values[:, 2]
    qid = np.repeat(np.arange(n_queries), length)
    position = rng.permuted(np.tile(np.arange(1.0, length + 1), (n_queries, 1)), axis=1).ravel()
    expected = expect_ratings(tierank.RankingDataset(features, ratings, qid), position)
    for _ in range(3):
        order = rng.permutation(len(qid))
        scattered = tierank.RankingDataset(features[order], ratings[order], qid[order])
        again = scattered.restore(expect_ratings(scattered, scattered.arrange(position[order])))
        assert again.tobytes() == expected[order].tobytes()


def test_features_are_not_copied_for_predictions_from_similar_documents(monkeypatch):
    monkeypatch.setattr("tierank.rankers.lightgbm._SAMPLE", 200)
    monkeypatch.setattr("tierank.rankers.lightgbm._BATCH", 1 << 18)
    monkeypatch.setattr("tierank.rankers.tree_training.N_ROUNDS", 2)
    rng = np.random.default_rng(4)
    features = rng.random((8000, 300), np.float32)
    data = tierank.RankingDataset(features, features[:, 0], np.repeat(np.arange(400), 20))
    expect_ratings(data.select(range(20)), np.ones(400))  # loads compiled code
    tracemalloc.start()
    try:
        expect_ratings(data, np.ones(8000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < features.nbytes / 2


def test_nothing_is_expected_where_nothing_is_known():
    data = tierank.RankingDataset(np.zeros((4, 1)), np.ones(4), [1, 1, 2, 2], row_weight=np.zeros(4))
    assert expect_ratings(data, np.ones(4)).tolist() == [0, 0, 0, 0]


def test_features_make_up_for_few_clicks():
    """With five sessions per query, ratings with the help of features are nearer to the truth than those by clicks."""
    data = named(tierank.make_ranking(200, n_features=5, mean_length=12, max_length=20, seed=3))
    rng = np.random.default_rng(0)
    weak = {name: data.restore(data.ratings) + rng.normal(scale=3, size=data.n_documents) for name in "ab"}
    log, truth = simulate_clicks(data, weak, n_sessions=1000, k=10)
    found = judgements(log)
    rated = found.rate(data)
    real = np.full(data.n_documents, np.nan)
    real[data.restore(np.arange(data.n_documents))[found.document.astype(int)]] = truth.relevance()
    shown = rated.is_judged
    by_clicks = (((2**found.rating - 1) / 15 - truth.relevance()) ** 2).mean()
    with_features = (((2 ** rated.ratings[shown] - 1) / 15 - real[shown]) ** 2).mean()
    assert with_features < 0.9 * by_clicks


@pytest.mark.parametrize("model", ["pbm", "cascade"])
def test_the_click_model_of_the_users_is_chosen(model, data, scores):
    log, _ = simulate_clicks(data, scores[0], model=model, n_sessions=20_000, randomize="shuffle")
    assert choose_model(log).name == model
    assert choose_model(log, [model], smoothing=3.0).get_params()["smoothing"] == 3.0
    found = judgements(log)
    assert found.model.name == choose_model(log, ["pbm", "ubm", "dbn"]).name
    same = judgements(log, found.model.name)  # the chosen model is fitted to all sessions
    assert found.rating.tolist() == same.rating.tolist()


def test_clicks_of_users_who_stop_are_not_corrected(scores):
    """Documents below one that satisfies are never examined; the log cannot say what they are worth."""
    data = tierank.make_ranking(40, n_features=4, mean_length=12, max_length=20, seed=1)
    few_grades = data.replace(ratings=np.where(data.ratings >= 3, 1.0, 0.0))
    rankers = {"weak": scores[0], "strong": scores[1]}
    log, _ = simulate_clicks(few_grades, rankers, model="dbn", n_sessions=5000, k=5)
    assert choose_model(log, ["pbm", "ubm", "dbn"]).name == "dbn"
    with pytest.warns(
        UserWarning, match=r"seem to stop when .*dbn predicts .* than pbm and ubm.* `model`='ubm'"
    ) as caught:
        found = judgements(log, smoothing=2.0)
    assert [one.filename for one in caught] == [__file__]
    first_rate = log.clicked[log.positions == 1].mean()
    for i in range(0, len(found), 7):
        rows = (log.documents == found.model.items_.documents[i]) & (
            log.queries[log.session_of_row] == found.model.items_.queries[i]
        )
        shown, clicks = int(rows.sum()), int(log.clicked[rows].sum())
        assert found.n_examined[i] == pytest.approx(shown)
        assert found.n_clicks[i] == clicks
        relevance = (clicks + 2 * first_rate) / (shown + 2)
        assert found.rating[i] == pytest.approx(math.log2(1 + 15 * relevance))
    assert judgements(log, "ubm").n_examined.sum() < found.n_examined.sum()  # asked for, it corrects without a warning


def test_ratings_that_are_noise_are_written_with_a_warning(data, scores, tmp_path):
    few, _ = simulate_clicks(data, scores[0], n_sessions=5 * data.n_queries)
    with pytest.warns(UserWarning, match=r"^most .* fewer than 10 times, .* noise: use `rate`, which also") as caught:
        judgements(few).write(tmp_path / "few.csv")
    assert [one.filename for one in caught] == [__file__]
    many, _ = simulate_clicks(data, scores[0], n_sessions=500 * data.n_queries, position_bias=0.2)
    judgements(many).write(tmp_path / "many.csv")


def test_models_are_judged_on_sessions_that_they_have_not_seen(data, scores):
    log, _ = simulate_clicks(data, scores[0], n_sessions=400, k=5)
    models = {"a": make_model("pbm"), "b": make_model("ctr")}
    found = compare_models(log, models, held_out=0.3, seed=2)
    train, test = log.split(0.7, 0.3, seed=2)
    for name, kind in (("a", "pbm"), ("b", "ctr")):
        twin = make_model(kind).fit(train)
        assert found[name].log_likelihood == twin.log_likelihood(test).mean()
        assert found[name].perplexity.tolist() == twin.perplexity(test).tolist()
        assert found[name].conditional_perplexity.tolist() == twin.perplexity(test, conditional=True).tolist()
    by_name = compare_models(log, ["pbm", "ctr"], held_out=0.3, seed=2)
    every = compare_models(log, held_out=0.3, seed=2)
    assert list(every) == list(tierank.clicks.CLICK_MODELS)
    assert every["pbm"].log_likelihood == by_name["pbm"].log_likelihood
    for wrong, got in (
        ("pbm", "'pbm'"),
        (log, r"ClickLog\(.*; sessions of the log are held out for the test"),
        (3, "3"),
    ):
        for function in (compare_models, tierank.clicks.choose_model):
            with pytest.raises(
                tierank.ParameterError, match=f"^models: expected a list of names of click models, got {got}"
            ):
                function(log, wrong)
    assert [one.log_likelihood for one in by_name.values()] == [one.log_likelihood for one in found.values()]


def test_errors_of_choosing_a_model(data, scores):
    log, _ = simulate_clicks(data, scores[0], n_sessions=1, k=5)
    with pytest.raises(tierank.DataError, match=r"log: expected at least 2 sessions, some .* held out, got 1"):
        choose_model(log)
    with pytest.raises(tierank.ParameterError, match="models: expected at least one name, got none"):
        choose_model(log, [])
    with pytest.raises(tierank.ParameterError, match="unknown click model 'pmb': did you mean 'pbm'"):
        choose_model(log, ["pmb"])
    with pytest.raises(tierank.ParameterError, match="held_out: expected a number > 0 and < 1, got 1"):
        choose_model(log, held_out=1)


def test_errors_of_judgements(data):
    log = ClickLog.of(session=[1], document=["a"], position=[1], clicked=[1])
    with pytest.raises(tierank.ParameterError, match=r"expected a click model with an attractiveness .* got ctr"):
        judgements(log, "ctr")
    with pytest.raises(tierank.ParameterError, match="got pbm, by document; take pbm or sdbn"):
        judgements(log, "pbm", by="document")
    with pytest.raises(tierank.DataError, match="data: expected documents with ids, got none"):
        judgements(log, "pbm").rate(data)
    other = tierank.RankingDataset([[0.0]], qid=[1], document_ids=["z"])
    with pytest.raises(tierank.DataError, match="expected documents that were shown in the log, got none of them"):
        judgements(log, "pbm").rate(other)


def with_ids(data, ids, rows=None):
    """The same documents with ids, in the order of some rows."""
    rows = np.arange(data.n_documents) if rows is None else rows
    queries = data.restore(data.query_of_row)
    return tierank.RankingDataset(data.features[rows], qid=queries[rows], document_ids=np.asarray(ids, object)[rows])


@pytest.fixture(scope="module")
def shown(data, scores):
    """Documents with ids, and a log of five of each query."""
    documents = with_ids(data, [f"d{i}" for i in range(data.n_documents)])
    rated = documents.replace(ratings=data.ratings)
    return documents, simulate_clicks(rated, scores[1], n_sessions=2000, k=5, seed=2).log


def test_ids_that_hardly_match_warn(shown):
    documents, log = shown
    judged = judgements(log, "pbm")
    n = documents.n_documents
    assert len(judged) < n / 2  # most documents of the data were never shown, which is usual
    whole = judged.rate(documents)
    assert whole.n_unjudged == n - len(judged)
    assert judged.rate(documents.select([3, 5])).n_unjudged < n / 2  # part of the queries, as well
    few = [i for i in range(n) if f"d{i}" in set(judged.document[:10])]
    other = with_ids(documents, [f"d{i}" if i in few else f"e{i}" for i in range(n)])
    with pytest.warns(
        UserWarning,
        match=r"only \d+ of \d+ documents \(\d+%\) are in both the data and the log.*'e10'\) is only in the data",
    ):
        assert judged.rate(other).n_unjudged == n - 10
    strange = tierank.RankingDataset(
        documents.features,
        qid=[f"q{q}" if q > 3 else q for q in documents.query_of_row],
        document_ids=documents.document_ids,
    )
    with pytest.warns(UserWarning, match="only 4 of 40 query ids .10%. are in both the data and the log"):
        judged.rate(strange)


def test_documents_without_ids_are_rows(data, scores, shown):
    """A log that was simulated with data without ids says their rows, whatever the order of the rows."""
    shuffled = np.random.default_rng(3).permutation(data.n_documents)
    queries, ratings = data.restore(data.query_of_row)[shuffled], data.restore(data.ratings)[shuffled]
    rows = tierank.RankingDataset(data.features[shuffled], ratings, qid=queries)
    log = simulate_clicks(rows, scores[0][shuffled], n_sessions=2000, k=5).log
    plain = ClickLog.of(
        **{name: log.to_columns()[name] for name in ("session", "query", "document", "position", "clicked")}
    )
    judged = judgements(plain, "pbm")
    ids = tierank.RankingDataset(rows.restore(rows.features), qid=queries, document_ids=np.arange(data.n_documents))
    assert np.array_equal(judged.rate(rows).ratings, judged.rate(ids).ratings, equal_nan=True)
    lists = [tierank.clicks.training_data(one, rows) for one in (plain, log)]
    assert np.array_equal(lists[0].features, lists[1].features)
    for wrong, other in ((rows.select([1, 2]), judged), (rows, judgements(shown[1], "pbm"))):
        with pytest.raises(
            tierank.DataError, match="data: expected documents with ids, got none; read data that have a"
        ):
            other.rate(wrong)


# Off-policy values


def test_scores_of_a_data_set_are_those_of_its_rows(shown):
    documents, log = shown
    rng = np.random.default_rng(0)
    by_id = {name: rng.normal() for name in documents.document_ids}
    columns = {name: values for name, values in log.to_columns().items() if name not in ("row", "rating")}
    order = rng.permutation(log.n_rows)
    scattered = ClickLog.of(**{name: values[order] for name, values in columns.items()})
    backwards = with_ids(documents, documents.document_ids, np.arange(documents.n_documents)[::-1])
    expected = evaluate_ranking(scattered, [by_id[name] for name in columns["document"][order]], 1 / np.arange(1, 6))
    for data, one in itertools.product((documents, backwards), (log, scattered)):
        scores = data.restore(np.array([by_id[name] for name in data.document_ids]))
        found = evaluate_ranking(one, scores, 1 / np.arange(1, 6), data=data)
        assert found.value == pytest.approx(expected.value)
    with pytest.raises(tierank.DataError, match=r"scores: expected \d+ scores, one per row of the data, got 3"):
        evaluate_ranking(log, [1.0] * 3, [1.0], data=documents)
    with pytest.raises(
        tierank.DataError, match="one per row of the log, got 3; with one score per row of your data, pass"
    ):
        evaluate_ranking(log, [1.0] * 3, [1.0])
    with pytest.raises(tierank.ParameterError, match="data: expected None if scores is a column of the log"):
        evaluate_ranking(log, "rating", [1.0], data=documents)
    with pytest.raises(tierank.DataError, match="data: expected all documents that the log shows, got no document"):
        evaluate_ranking(scattered, [1.0] * 5, [1.0], data=with_ids(documents, documents.document_ids, np.arange(5)))


@pytest.mark.parametrize("method", ["ips", "snips", "dr"])
def test_what_is_earned_is_what_the_words_say(data, scores, method):
    """Clicks: how many users would make. DCG: attractiveness as gain, by the new ranks, examined or not."""
    log, truth = simulate_clicks(data, scores[0], n_sessions=20_000, k=5, noise=0.2, seed=3)
    new = scores[1][log.column("row")]
    attraction = truth.attraction_[truth.items_.find(log)]
    ranks = new_ranks(log, new)
    for metric, worth in (("clicks", truth.examination_[ranks - 1]), ("dcg", 1 / np.log2(1 + ranks))):
        found = evaluate_ranking(log, scores[1], truth.examination_, metric=metric, method=method, data=data)
        expected = log.per_session(worth * attraction).mean()
        assert abs(found.value - expected) < 4 * found.standard_error
        assert found.standard_error < expected / 20


def test_values_worked_by_hand():
    reward, weight = np.array([1.0, 0, 2, 1] * 200), np.array([2.0, 1, 0, 1] * 200)
    assert estimate_value(reward, weight).value == pytest.approx(3 / 4)
    assert estimate_value(reward, weight, method="snips").value == pytest.approx(3 / 4)
    assert estimate_value(reward, weight, method="snips", clip=1.0).value == pytest.approx(2 / 3)
    model = {"predicted": np.full(800, 0.5), "predicted_target": np.full(800, 0.7)}
    # 0.7 + mean of w (r - 0.5): (2 * 0.5 - 0.5 + 0 + 0.5) / 4.
    assert estimate_value(reward, weight, method="dr", **model).value == pytest.approx(0.95)
    found = estimate_value(reward, weight)
    assert found.effective_sample_size == pytest.approx(800 * 16 / (4 * 6))
    assert found.logged == 1
    assert found.standard_error == pytest.approx(np.std(reward * weight, ddof=1) / math.sqrt(800))
    assert found.high - found.value == pytest.approx(1.959964 * found.standard_error)


def draw_bandit(seed, n=1000):
    """Sessions of a policy that shows one of three lists; the other policy prefers the last."""
    rng = np.random.default_rng(seed)
    logged, target, rewards = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.3, 0.6]), np.array([0.2, 0.4, 0.7])
    action = rng.choice(3, size=n, p=logged)
    reward = (rng.random(n) < rewards[action]).astype(float)
    predicted = rewards + np.array([0.1, -0.1, -0.2])
    model = {"predicted": predicted[action], "predicted_target": np.full(n, float(target @ predicted))}
    return reward, (target / logged)[action], model, float(target @ rewards)


@pytest.mark.parametrize("method", ["ips", "snips", "dr"])
def test_intervals_cover_the_truth(method):
    n_covered, errors = 0, []
    for seed in range(400):
        reward, weight, model, truth = draw_bandit(seed)
        found = estimate_value(reward, weight, method=method, **(model if method == "dr" else {}))
        n_covered += found.low <= truth <= found.high
        errors.append(found.value - truth)
    assert abs(np.mean(errors)) < 4 * np.std(errors) / math.sqrt(400) + 0.01
    assert 0.91 <= n_covered / 400 <= 0.985  # 95%, give or take 3 standard errors of 400 draws


@pytest.mark.parametrize("metric", ["clicks", "dcg"])
def test_a_ranking_earns_what_the_users_would_give(metric, data, scores):
    log, truth = simulate_clicks(data, scores[0], n_sessions=40_000, k=6, noise=0.2, seed=4)
    new = scores[1][log.column("row")]
    ranks = new_ranks(log, new)
    attraction = truth.attraction_[truth.items_.find(log)]
    worth = truth.examination_[ranks - 1] if metric == "clicks" else 1 / np.log2(1 + ranks)
    expected = log.per_session(attraction * worth).mean()
    found = evaluate_ranking(log, new, truth.examination_, metric=metric)
    assert abs(found.value - expected) < 3 * found.standard_error
    same = evaluate_ranking(log, -log.positions, truth.examination_, metric=metric)
    assert same.value == pytest.approx(same.logged)
    assert evaluate_ranking(log, new, truth.examination_, method="snips").value == pytest.approx(
        evaluate_ranking(log, new, truth.examination_).value
    )


def test_doubly_robust_fills_in_what_clipping_cuts_off(data, scores):
    log, truth = simulate_clicks(data, scores[0], n_sessions=40_000, k=6, noise=0.2, seed=4)
    new = scores[1][log.column("row")]
    attraction = truth.attraction_[truth.items_.find(log)]
    expected = log.per_session(attraction * truth.examination_[new_ranks(log, new) - 1]).mean()
    values = {
        method: evaluate_ranking(log, new, truth.examination_, method=method, clip=1.0, model=model).value
        for method, model in (("ips", None), ("snips", None), ("dr", truth))
    }
    assert abs(values["dr"] - expected) < abs(values["snips"] - expected) < abs(values["ips"] - expected)
    crossed = evaluate_ranking(log, new, truth.examination_, method="dr", clip=1.0)
    assert abs(crossed.value - expected) < abs(values["ips"] - expected)


@examples(30)
@given(st.integers(0, 1000))
def test_new_ranks_are_an_order_of_each_session(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, 5)
    log = ClickLog.of(
        session=np.repeat(np.arange(5), lengths), document=np.arange(lengths.sum()),
        position=np.concatenate([np.arange(1, n + 1) for n in lengths]), clicked=np.zeros(lengths.sum()),
    )  # fmt: skip
    scores = rng.integers(0, 3, log.n_rows).astype(float)
    ranks = new_ranks(log, scores)
    for s in range(5):
        rows = slice(log.offsets[s], log.offsets[s + 1])
        by_rank = np.argsort(ranks[rows])
        assert sorted(ranks[rows]) == list(range(1, lengths[s] + 1))
        assert by_rank.tolist() == sorted(range(lengths[s]), key=lambda i, own=scores[rows]: (-own[i], i))


def test_logs_that_cannot_tell_warn():
    with pytest.warns(UserWarning, match="the effective sample size is 1 of 500 sessions"):
        estimate_value(np.ones(500), [1000.0] + [0.0] * 499)


def test_errors_of_values():
    log = ClickLog.of(session=[1, 1], document=[1, 2], position=[1, 2], clicked=[1, 0])
    with pytest.raises(tierank.ParameterError, match="unknown method 'dm'"):
        estimate_value([1.0], [1.0], method="dm")
    with pytest.raises(tierank.DataError, match=r"predicted: expected predictions, which .* got none; pass predicted"):
        estimate_value([1.0], [1.0], method="dr")
    with pytest.raises(tierank.DataError, match="weight: expected numbers >= 0, got -1"):
        estimate_value([1.0], [-1.0])
    with pytest.raises(tierank.DataError, match="weight: expected 1 numbers, one per reward, got 2"):
        estimate_value([1.0], [1.0, 2.0])
    with pytest.raises(tierank.DataError, match="weight: expected a weight above 0, got none"):
        estimate_value([1.0], [0.0], method="snips")
    with pytest.raises(tierank.DataError, match="scores: expected 2 scores, one per row of the log, got 3"):
        evaluate_ranking(log, [1, 2, 3], [1, 0.5])
    with pytest.raises(tierank.DataError, match="propensities: expected a chance above 0 at every position, got 0"):
        evaluate_ranking(log, [1, 2], [1, 0])


# Interleaving

A, B = list("abcdef"), list("bdagch")


@pytest.mark.parametrize("method", sorted(INTERLEAVINGS))
def test_interleaved_lists_have_each_document_once(method):
    for seed in range(30):
        shown = interleave(A, B, method=method, k=5, seed=seed)
        assert len(shown.documents) == len(set(shown.documents)) == len(shown.credit) == 5
        assert set(shown.documents) <= {*A, *B}
        assert all(-1 <= credit <= 1 for credit in shown.credit)
        assert shown.outcome([True] * 5) == pytest.approx(sum(shown.credit))
        assert shown.outcome([False] * 5) == 0


class Replay(np.random.Generator):
    """Draws that are given in advance, and 0 after these; ``ways`` has the chances of all values of each draw."""

    def __init__(self, given):
        super().__init__(np.random.PCG64(0))
        self.given, self.ways = list(given), []

    def choice(self, n, p):
        self.ways.append(p)
        return self.given.pop(0) if self.given else 0

    def integers(self, n):
        return self.choice(n, np.full(n, 1 / n))


def all_interleaved(first, second, method, k):
    """Every list that a method may show, and its chance."""
    begun = [()]
    while begun:
        rng = Replay(drawn := begun.pop())
        shown = interleave(first, second, method=method, k=k, seed=rng)
        draws = drawn + (0,) * (len(rng.ways) - len(drawn))
        yield shown, math.prod(p[i] for p, i in zip(rng.ways, draws, strict=True))
        for at in range(len(drawn), len(draws)):
            begun += [(*draws[:at], other) for other in range(1, len(rng.ways[at])) if rng.ways[at][other] > 0]


@pytest.mark.parametrize("method", sorted(INTERLEAVINGS))
@examples(60)
@given(
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True),
    st.integers(1, 4),
)
def test_clicks_that_ignore_documents_favour_nobody(method, first, second, k):
    """The mean credit at each rank is 0, over all lists with their chances, also for lists of different lengths."""
    shown, chances = zip(*all_interleaved(first, second, method, k), strict=True)
    assert sum(chances) == pytest.approx(1)
    assert {len(one.documents) for one in shown} == {min(k, len({*first, *second}))}
    assert np.abs(np.array(chances) @ np.array([one.credit for one in shown])).max() < 1e-8
    if first == second:
        assert method == "team-draft" or not np.any([one.credit for one in shown])


@pytest.mark.parametrize("method", sorted(INTERLEAVINGS))
def test_the_ranker_with_the_relevant_document_on_top_wins(method):
    rng = np.random.default_rng(1)
    good, poor = list("xabcde"), list("abcdex")
    outcomes = []
    for _ in range(300):
        shown = interleave(good, poor, method=method, k=4, seed=rng)
        outcomes.append(shown.outcome([document == "x" for document in shown.documents]))
    found = preference(outcomes)
    assert found.mean > 0
    assert found.p < 1e-6


def test_team_draft_teams_are_even():
    for seed in range(20):
        shown = interleave(A, B, k=4, seed=seed)
        assert sum(shown.credit) == 0
        assert abs(sum(shown.credit[:2])) == 0  # each round has one of each
        assert shown.documents[0] in "ab"


def test_probabilistic_credit_worked_by_hand():
    # No document in common: drawn from the first with some chance, from the second with 0, and so on.
    for seed in range(10):
        shown = interleave(["a", "c"], ["b", "d"], method="probabilistic", k=2, seed=seed)
        assert shown.credit == tuple({"a": 1, "c": 1, "b": -1, "d": -1}[document] for document in shown.documents)
    # Same lists: nobody earns anything.
    assert interleave(A, A, method="probabilistic", seed=3).credit == (0.0,) * 6


def test_lists_that_end_early():
    for method in INTERLEAVINGS:
        assert set(interleave(["a"], ["a", "b"], method=method, k=9).documents) == {"a", "b"}


# A document moved to the top: many sessions with a little credit for the first, few with much for the second.
def test_many_little_wins_are_no_preference():
    assert preference([0.1] * 90 + [-0.9] * 10).p == pytest.approx(1)
    assert preference([0.1] * 85 + [-0.9] * 15).mean == pytest.approx(-0.05)
    rng = np.random.default_rng(0)
    outcomes = []
    for _ in range(1000):
        shown = interleave("abcdefghij", "fabcdeghij", method="probabilistic", k=5, seed=rng)
        outcomes.append(shown.outcome(np.arange(5) == rng.integers(5)))
    found = preference(outcomes)
    assert found.wins > 1.5 * found.losses  # signs alone would prefer the first
    assert found.p > 0.05
    assert found.low < 0 < found.high


LIKED = [name for name in interleaving.PAIRS if name != "random permutations"]


@pytest.mark.parametrize("method", sorted(INTERLEAVINGS))
@pytest.mark.parametrize("pair", sorted(interleaving.PAIRS))
def test_a_preference_is_seen_where_there_is_one(method, pair):
    """p < 0.05 in 5% of experiments without a preference, whatever clicks depend on; the better list wins."""
    runs = [
        interleaving.experiment(method, interleaving.PAIRS[pair], interleaving.INDIFFERENT, 60, (i,)) for i in range(20)
    ]
    most = binom.isf(1e-6, 20, 0.07)
    for users in interleaving.INDIFFERENT:
        assert sum(run[users].p < 0.05 for run in runs) <= most
    if pair in LIKED:
        found = interleaving.experiment(method, interleaving.PAIRS[pair], {"": interleaving.choosy}, 3000, (0,))[""]
        assert found.mean > 0
        assert found.p < 0.01


@examples(100)
@given(
    st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=1, max_size=60).filter(any),
    st.sampled_from([0.8, 0.95, 0.99]),
    st.sampled_from([1.0, 0.01, -1.0, 1e200, 1e-200]),
)
def test_the_mean_has_a_test_and_an_interval_that_agree(outcomes, level, scale):
    x = np.array(outcomes)
    found = preference(x, level=level)
    assert (found.wins, found.losses, found.ties) == ((x > 0).sum(), (x < 0).sum(), (x == 0).sum())
    assert found.mean == pytest.approx(x.mean())
    p = 2 * norm.sf(abs(x.sum()) / math.sqrt((x**2).sum()))
    assert found.p == pytest.approx(max(p, 2.0 ** (1 - np.count_nonzero(x))))
    for end in (found.low, found.high):  # a mean that is just not rejected
        reach = norm.isf((1 - level) / 2) * math.sqrt(max((x**2).mean() - end**2, 0) / len(x))
        assert abs(x.mean() - end) == pytest.approx(reach, abs=1e-6)
    assert (found.low <= 0 <= found.high) == (p >= 1 - level) or p == pytest.approx(1 - level)
    scaled = preference(scale * x, level=level)
    assert scaled.p == pytest.approx(found.p)
    ends = sorted((scaled.low / scale, scaled.high / scale))
    assert ends == pytest.approx([found.low, found.high], abs=1e-9)


@pytest.mark.parametrize(("wins", "losses"), [(8, 1), (1, 0), (4, 0), (30, 50), (0, 100)])
def test_outcomes_of_1_and_minus_1_worked_by_hand(wins, losses):
    """McNemar's test, and Wilson's interval of the share of wins."""
    found = preference([1] * wins + [-1] * losses)
    n = wins + losses
    assert found.p == pytest.approx(max(2 * norm.sf(abs(wins - losses) / math.sqrt(n)), 2.0 ** (1 - n)))
    share = binomtest(wins, n).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((2 * share.low - 1, 2 * share.high - 1))


def test_few_sessions_prove_nothing():
    for n in range(1, 6):
        for credit in (1.0, 0.25, -1 / 3):
            assert preference([credit] * n + [0] * 50).p == pytest.approx(2.0 ** (1 - n))
    found = preference([0.0] * 3)
    assert (found.mean, found.p) == (0, 1)
    assert math.isnan(found.low)


def test_errors_of_interleaving():
    with pytest.raises(tierank.ParameterError, match="unknown method 'teamdraft': did you mean 'team-draft'"):
        interleave(A, B, method="teamdraft")
    with pytest.raises(tierank.DataError, match="second: expected at least one document, each once"):
        interleave(A, ["a", "a"])
    with pytest.raises(tierank.DataError, match="clicked: expected 4 values"):
        interleave(A, B, k=4).outcome([True])


# Power


@pytest.mark.parametrize("power", [0.8, 0.95])
def test_sample_sizes_have_the_power(power):
    for share, ties in ((0.55, 0.0), (0.45, 0.3), (0.6, 0.8)):
        n = interleaving_sample_size(share=share, ties=ties, power=power)
        assert interleaving_power(n, share=share, ties=ties) >= power - 1e-12
        assert interleaving_power(n - 1, share=share, ties=ties) < power
    for mean, sd in ((0.02, 0.3), (-0.5, 0.1)):
        n = interleaving_sample_size(mean=mean, sd=sd, power=power)
        assert interleaving_power(n, mean=mean, sd=sd) >= power - 1e-12
        assert interleaving_power(n - 1, mean=mean, sd=sd) < power
    for base, lift, sd in ((0.3, 0.05, None), (0.3, -0.05, None), (2.5, 0.01, 4.0)):
        n = ab_sample_size(base=base, lift=lift, sd=sd, power=power)
        assert ab_power(n, base=base, lift=lift, sd=sd) >= power - 1e-12
        assert ab_power(n - 1, base=base, lift=lift, sd=sd) < power


def test_power_is_that_of_experiments():
    rng = np.random.default_rng(0)
    n, share, ties = 1500, 0.55, 0.4
    is_seen = []
    for _ in range(600):
        m = rng.binomial(n, 1 - ties)
        wins = rng.binomial(m, share)
        is_seen.append(preference([1] * wins + [-1] * (m - wins)).p < 0.05)
    assert np.mean(is_seen) == pytest.approx(interleaving_power(n, share=share, ties=ties), abs=0.05)
    mean = (2 * share - 1) * (1 - ties)
    assert interleaving_power(n, mean=mean, sd=math.sqrt(1 - ties - mean**2)) == pytest.approx(
        interleaving_power(n, share=share, ties=ties)
    )


def test_power_is_that_of_experiments_with_skewed_credits():
    """Five sessions in six earn the first ranker 0.2, the others cost it up to 1."""
    rng = np.random.default_rng(0)
    values, chances = [0.2, -1.0], [0.9, 0.1]
    mean = float(np.dot(values, chances))
    sd = math.sqrt(np.dot(np.square(values), chances) - mean**2)
    n = interleaving_sample_size(mean=mean, sd=sd, power=0.7)
    seen = [preference(rng.choice(values, n, p=chances)).p < 0.05 for _ in range(600)]
    assert np.mean(seen) == pytest.approx(0.7, abs=0.08)


def test_sample_size_of_two_rates_worked_by_hand():
    # (1.959964 sqrt(2 * 0.3075 * 0.6925) + 0.841621 sqrt(0.21 + 0.315 * 0.685))^2 / 0.015^2
    assert ab_sample_size(base=0.3, lift=0.05) == 14_856
    # 2 sd^2 (1.959964 + 0.841621)^2 / d^2
    assert ab_sample_size(base=10, lift=0.01, sd=2) == math.ceil(2 * 4 * (1.959964 + 0.841621) ** 2 / 0.01)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_power_is_computed_in_double_precision(kind):
    """Whatever the type of the arguments; all of these are exact in each type."""
    base, lift, share, sd = 2.0**-7, 2.0**-10, 0.5 + 2.0**-11, 20.0
    assert ab_sample_size(base=kind(base), lift=kind(lift)) == ab_sample_size(base=base, lift=lift)
    assert interleaving_sample_size(share=kind(share)) == interleaving_sample_size(share=share)
    assert ab_power(10**9, base=kind(base), lift=kind(lift)) == ab_power(10**9, base=base, lift=lift)
    assert interleaving_power(10**6, share=kind(share)) == interleaving_power(10**6, share=share)
    given = {"base": kind(3), "lift": kind(lift), "sd": kind(sd), "alpha": kind(lift)}
    plain = {name: float(value) for name, value in given.items()}
    assert ab_power(np.int32(10**9), **given) == ab_power(10**9, **plain)
    assert ab_sample_size(**given, power=kind(0.5)) == ab_sample_size(**plain, power=0.5)


def test_errors_of_power():
    with pytest.raises(tierank.ParameterError, match=r"share: expected a number > 0\.5 and < 1, got 0\.5"):
        interleaving_sample_size(share=0.5)
    with pytest.raises(tierank.ParameterError, match="mean: expected a number > 0, got 0"):
        interleaving_sample_size(mean=0.0, sd=1.0)
    for wrong in ({}, {"mean": 0.1}, {"share": 0.6, "sd": 1.0}, {"mean": 0.1, "sd": 1.0, "ties": 0.5}):
        with pytest.raises(tierank.ParameterError, match="expected share, with or without ties, or mean and sd, got"):
            interleaving_power(10, **wrong)
    with pytest.raises(tierank.ParameterError, match="lift: expected a number > 0, got 0"):
        ab_sample_size(base=0.3, lift=0.0)
    with pytest.raises(tierank.ParameterError, match="base: expected a number > 0 and < 1, got 3"):
        ab_power(10, base=3, lift=0.1)


@pytest.mark.parametrize("metric", ["clicks", "dcg"])
@pytest.mark.parametrize("method", ["ips", "snips", "dr"])
@pytest.mark.parametrize("k", [None, 3])
def test_the_order_of_the_log_earns_what_the_log_did(method, metric, k):
    """Also where lists have gaps, or are the second page: documents share the positions of their list."""
    rng = np.random.default_rng(0)
    positions = np.concatenate([np.sort(rng.choice(np.arange(1, 15), 4, replace=False)) for _ in range(1000)])
    log = ClickLog.of(
        session=np.repeat(np.arange(1000), 4), document=rng.integers(0, 6, 4000), position=positions,
        clicked=rng.random(4000) < 1 / positions,
    )  # fmt: skip
    found = evaluate_ranking(log, -positions, 1 / np.arange(1, 15), method=method, metric=metric, k=k)
    assert found.value == pytest.approx(found.logged)
    page = ClickLog.of(session=[1, 1], document=["a", "b"], position=[11, 12], clicked=[0, 1])
    with pytest.warns(UserWarning, match="effective sample size"):
        found = evaluate_ranking(page, [1, 2], 1 / np.arange(1, 15), metric=metric)
    worth = 12 / 11 if metric == "clicks" else 12 / math.log2(12)
    assert found.value == pytest.approx(worth)
    assert found.logged == pytest.approx(1 if metric == "clicks" else 12 / math.log2(13))


def test_no_clicks_earn_nothing():
    log = ClickLog.of(
        session=np.repeat(np.arange(200), 2), document=[1, 2] * 200, position=[1, 2] * 200, clicked=[0] * 400
    )
    for method in ("ips", "snips"):
        found = evaluate_ranking(log, [1, 2] * 200, [1, 0.5], method=method)
        assert (found.value, found.standard_error) == (0, 0)


def test_doubly_robust_leaves_the_callers_model_alone_and_takes_its_attractiveness(data, scores):
    log, _ = simulate_clicks(data, scores[0], n_sessions=500, k=6, noise=0.2, seed=4)
    model = make_model("sdbn")
    given = {"method": "dr", "clip": 1.0}
    first = evaluate_ranking(log, -log.positions, 1 / np.arange(1, 7), model=model, **given)
    assert not model.is_fitted
    assert evaluate_ranking(log, -log.positions, 1 / np.arange(1, 7), model=model, **given) == first
    fitted = make_model("sdbn").fit(log)
    a, g = fitted.attraction_[fitted.items.find(log)], 1 / log.positions
    expected = log.per_session(g * a + log.clicked - g * a).mean()
    assert evaluate_ranking(log, -log.positions, 1 / np.arange(1, 7), model=fitted, **given).value == pytest.approx(
        expected
    )
    with pytest.raises(tierank.ParameterError, match="model: expected None with the method 'ips'"):
        evaluate_ranking(log, -log.positions, [1.0], model="sdbn")


def test_none_is_a_document_too():
    for method in INTERLEAVINGS:
        shown = interleave([None, "a"], ["a", "b"], method=method, k=4)
        assert set(shown.documents) == {None, "a", "b"}


def test_wrong_arguments_are_told():
    with pytest.raises(tierank.DataError, match="first: expected hashable documents"):
        interleave([[1]], ["a"])
    with pytest.raises(tierank.ParameterError, match="seed: expected an integer >= 0, got -1"):
        interleave(["a"], ["a"], seed=-1)
    with pytest.raises(tierank.DataError, match="outcomes: expected numbers, got 'a'"):
        preference(["a"])
    with pytest.raises(tierank.ParameterError, match="n_sessions: expected an integer >= 1 and <= "):
        interleaving_power(10**400, share=0.55)
    with pytest.raises(tierank.ParameterError, match=r"base \* lift: expected a finite number, got inf"):
        ab_sample_size(base=1e308, lift=1e308, sd=1)
    with pytest.raises(
        tierank.ParameterError, match="base: expected a finite number, got an integer too large for a float"
    ):
        ab_sample_size(base=10**400, lift=1.0, sd=1)


@pytest.mark.parametrize("exponent", [-1060, -300, 0, 300, 1000])
@pytest.mark.parametrize("method", ["ips", "snips", "dr"])
def test_weights_of_any_size(method, exponent):
    """All weights times a power of two: the effective sample size and the value of snips are the same to the bit."""
    rng = np.random.default_rng(0)
    reward, weight = rng.integers(0, 4, 300).astype(float), rng.integers(1, 1 << 12, 300).astype(float)
    predicted = {"predicted": np.zeros(300), "predicted_target": np.zeros(300)} if method == "dr" else {}
    usual = estimate_value(reward, weight, method=method, **predicted)
    scale = 2.0**exponent
    if method != "snips" and exponent == 1000:  # squares of what the sessions earn are beyond all floats
        with pytest.raises(tierank.DataError, match=r"whose products have a finite spread, got .*; pass clip"):
            estimate_value(reward, weight * scale, method=method, **predicted)
        scaled = estimate_value(reward, weight * scale, method=method, clip=1.0, **predicted)
        assert scaled.value == reward.mean()
        return
    scaled = estimate_value(reward, weight * scale, method=method, **predicted)
    assert scaled.effective_sample_size == usual.effective_sample_size
    factor = 1.0 if method == "snips" else scale
    assert scaled.value == usual.value * factor
    assert (scaled.low, scaled.high) == pytest.approx((usual.low * factor, usual.high * factor), rel=1e-6)


@pytest.mark.parametrize("method", ["ips", "snips", "dr"])
def test_what_has_no_interval_says_so(method):
    predicted = {"predicted": [0.0], "predicted_target": [0.0]} if method == "dr" else {}
    with pytest.warns(UserWarning, match="a single session has no interval"):
        found = estimate_value([2.0], [1.0], method=method, **predicted)
    assert found.value == 2.0
    assert math.isnan(found.low)
    assert found.to_dict()["low"] is None
    log = ClickLog.of(session=[1, 1, 2, 2], document=[0, 1, 1, 0], position=[1, 2] * 2, clicked=[1, 0, 0, 1])
    with pytest.raises(tierank.DataError, match=r"propensities: expected chances whose ratios are finite, .*pass clip"):
        evaluate_ranking(log, [0.0, 1.0] * 2, [1.0, 5e-324], method=method)


@pytest.mark.parametrize("name", ["predicted", "predicted_target"])
def test_predictions_are_one_per_session(name):
    predictions = {"predicted": [0.0] * 3, "predicted_target": [0.0] * 3}
    for wrong in ([0.0], [0.0] * 2, [0.0] * 4):
        with pytest.raises(tierank.DataError, match=f"{name}: expected 3 numbers, one per reward, got {len(wrong)}"):
            estimate_value([1, 0, 1], [1, 1, 1], method="dr", **{**predictions, name: wrong})


@pytest.mark.parametrize("held_out", [0.01, 0.25, 0.5, 0.99])
def test_few_sessions_are_on_both_sides(held_out):
    """A quarter of two sessions is rounded to none, and models would be compared on nothing."""
    for n in range(2, 8):
        log = ClickLog.of(
            session=np.repeat(np.arange(n), 2), document=[0, 1] * n, position=[1, 2] * n, clicked=[1, 0] * n
        )
        found = compare_models(log, ["ctr", "pbm"], held_out=held_out)
        assert all(math.isfinite(one.log_likelihood) for one in found.values())
        assert choose_model(log, ["pbm", "ubm"], held_out=held_out).items_ is not None


@given(st.floats(0.5001, 0.9999), st.floats(0, 0.999), st.floats(1e-12, 1 - 1e-9), st.floats(1e-300, 0.999))
def test_a_sample_size_is_the_smallest_that_has_the_power(share, ties, power, alpha):
    n = interleaving_sample_size(share=share, ties=ties, power=power, alpha=alpha)
    assert interleaving_power(n, share=share, ties=ties, alpha=alpha) >= power * (1 - 1e-6)
    if n > 1:
        assert interleaving_power(n - 1, share=share, ties=ties, alpha=alpha) <= power * (1 + 1e-6)
    n = ab_sample_size(base=share - 0.4, lift=0.5 - ties / 3, power=power, alpha=alpha)
    assert ab_power(n, base=share - 0.4, lift=0.5 - ties / 3, alpha=alpha) >= power * (1 - 1e-6)
    if n > 1:
        assert ab_power(n - 1, base=share - 0.4, lift=0.5 - ties / 3, alpha=alpha) <= power * (1 + 1e-6)


def test_effects_that_no_experiment_shows():
    assert ab_sample_size(base=1.0, lift=0.5, sd=1e-300) == 1
    for sd in (1e200, 1.7e308):
        with pytest.raises(tierank.ParameterError, match=r"expected an effect that 8e\+31 sessions can show"):
            ab_sample_size(base=1.0, lift=0.5, sd=sd)
    with pytest.raises(tierank.ParameterError, match=r"expected an effect that 8e\+31 sessions can show"):
        interleaving_sample_size(share=math.nextafter(0.5, 1))


def test_no_winner_is_said_in_words():
    for outcomes in ([], [0], [0.0] * 1000):
        found = str(preference(outcomes))
        assert found.startswith(f"neither ranker won any of {len(outcomes):,} sessions")
        assert "nan" not in found


@pytest.mark.parametrize("clicked", [[2, 0], [math.nan, 1], ["0", "0"], [0.5, 0.5], [-1, 1]])
def test_clicks_on_interleaved_lists_are_checked(clicked):
    shown = interleave(["a", "b"], ["b", "a"], k=2)
    assert shown.outcome([True, False]) == shown.outcome([1, 0]) == shown.credit[0]
    with pytest.raises(tierank.DataError, match=r"clicked: expected (0 or 1, or booleans|numbers), got"):
        shown.outcome(clicked)


def test_judgements_of_documents_that_several_columns_name(tmp_path):
    """The ids that judgements are written with are those that ``rate`` and ``training_data`` look for."""
    rows = {"session": [1, 1, 2, 2], "query": ["q"] * 4, "position": [1, 2] * 2, "clicked": [0, 1, 0, 1]}
    log = tierank.clicks.read({**rows, "shop": ["s", "t"] * 2, "item": [1, 1] * 2}, document=["shop", "item"])
    found = judgements(log, "pbm")
    found.write(tmp_path / "judged.csv")
    written = (tmp_path / "judged.csv").read_text()
    data = tierank.RankingDataset(np.eye(2), qid=["q", "q"], document_ids=["t|1", "s|1"])
    assert all(f'"{name}"' in written for name in data.document_ids)
    assert found.rate(data).n_unjudged == 0
    assert np.argsort(found.rate(data).ratings).tolist() == [1, 0]  # only t|1 was clicked
    assert tierank.clicks.training_data(log, data).features.tolist() == [[0, 1], [1, 0]]
    with pytest.raises(tierank.ParameterError, match="top: expected a number > 0 and <= 1000, got 2000"):
        judgements(log, "pbm", top=2000)


def ranked_by_hand(lists, examination, metric, k, clip):
    """What each session earns by inverse propensities, all its worth, what clipping keeps, and what the log earned."""

    def at(position):
        return examination[min(position, len(examination)) - 1]

    def worth(position):
        if k is not None and position > k:
            return 0.0
        return at(position) if metric == "clicks" else 1 / math.log2(1 + position)

    found = []
    for rows in lists:
        order = sorted(range(len(rows)), key=lambda i: (-rows[i][2], rows[i][0]))
        places = dict(zip(order, [position for position, _, _ in rows], strict=True))
        weights = [min(worth(places[i]) / at(row[0]), clip or math.inf) for i, row in enumerate(rows)]
        clicks = [clicked for _, clicked, _ in rows]
        found.append(
            [
                math.fsum(w * c for w, c in zip(weights, clicks, strict=True)),
                math.fsum(worth(place) for place in places.values()),
                math.fsum(w * at(row[0]) for w, row in zip(weights, rows, strict=True)),
                math.fsum(worth(row[0]) / at(row[0]) * row[1] for row in rows),
            ]
        )
    return np.array(found).T


@pytest.mark.filterwarnings("ignore:the effective sample size")
@pytest.mark.parametrize("metric", ["clicks", "dcg"])
@pytest.mark.parametrize("k", [None, 1, 3, 7])
@pytest.mark.parametrize("clip", [None, 0.7, 1.5])
def test_a_ranking_earns_what_the_slow_twin_says(metric, k, clip):
    """Lists of any length, in positions with holes, rows in any order, and scores with ties."""
    rng = np.random.default_rng(4)
    for n_known in (1, 4, 12):
        sizes = rng.integers(1, 6, 25)
        lists = [
            [(p, int(rng.random() < 0.4), float(rng.integers(3))) for p in sorted(rng.permutation(11)[:size] + 1)]
            for size in sizes
        ]
        rows = [(session, *row) for session, one in enumerate(lists) for row in one]
        order = rng.permutation(len(rows))
        session, position, clicked, score = (np.array(column)[order] for column in zip(*rows, strict=True))
        log = ClickLog.of(session=session, document=rng.integers(0, 9, len(rows)), position=position, clicked=clicked)
        examination = np.r_[1.0, rng.uniform(0.1, 1.2, n_known - 1)]
        earned, whole, kept, logged = ranked_by_hand(lists, examination, metric, k, clip)
        settings = {"metric": metric, "k": k, "clip": clip}
        found = evaluate_ranking(log, score, examination, **settings)
        assert found.value == pytest.approx(earned.mean())
        assert found.logged == pytest.approx(logged.mean())
        assert found.standard_error == pytest.approx(earned.std(ddof=1) / 5)
        scaled = earned.mean() * whole.mean() / kept.mean()
        assert evaluate_ranking(log, score, examination, method="snips", **settings).value == pytest.approx(scaled)
