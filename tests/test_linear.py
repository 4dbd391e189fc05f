"""LinearRanker: the closed form beside explicit matrices, and what must change nothing."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples

import tierank
from tierank import DataError, LinearRanker, ParameterError, RankingDataset, Team, explain_pair, explain_query
from tierank.rankers import linear
from tierank.rankers.linear import N_FOLDS, RIDGES, USUAL_RIDGE
from tierank.transforms import TRANSFORMS

NAN = np.nan


@pytest.fixture(scope="module")
def data():
    """Missing values, zeros, ties, a query of one document and one of a single rating."""
    plain = tierank.make_ranking(40, n_features=5, mean_length=12, max_length=30, seed=7)
    features, ratings = np.array(plain.features), np.array(plain.ratings)
    rng = np.random.default_rng(0)
    features[rng.random(features.shape) < 0.05] = NAN
    features[rng.random(features.shape) < 0.1] = 0
    queries = np.repeat(np.arange(plain.n_queries), plain.lengths)
    ratings[queries == 3] = 2
    queries[0] = 999
    return RankingDataset(features, ratings, qid=queries)


def raw(data):
    return np.array(data.features), np.array(data.ratings), np.repeat(data.query_ids, data.lengths)


def slow_coef(data, transforms, ridge, gain=lambda r: r, row_weight=None, query_weight=None):
    """Least squares on explicit matrices: rows are documents, and below them one row per column for the penalty."""
    n = data.n_documents
    row_weight = np.ones(n) if row_weight is None else row_weight
    query_weight = np.ones(data.n_queries) if query_weight is None else query_weight
    x = np.hstack([TRANSFORMS[name]().fit(data).apply(data.features, data.offsets) for name in transforms]).astype(
        float
    )
    y = gain(data.ratings)
    y = y / y.max()
    w, importance = np.zeros(n), np.zeros(n)
    for q in range(data.n_queries):
        rows = slice(data.offsets[q], data.offsets[q + 1])
        a = row_weight[rows]
        x[rows] -= np.average(x[rows], axis=0, weights=a)
        y[rows] -= np.average(y[rows], weights=a)
        spread = np.sqrt(a.sum() * (a * y[rows] ** 2).sum())
        w[rows] = a * query_weight[q] / spread if spread > 1e-12 else 0
        importance[rows] = a * query_weight[q]
    deviation = np.sqrt(importance @ x**2 / importance.sum())
    live = deviation > 1e-12
    z = x[:, live] / deviation[live]
    mean_square = (w @ z**2).mean()  # the trace of A over the number of columns
    top = z * np.sqrt(w)[:, None]
    matrix = np.vstack([top, np.sqrt(ridge * mean_square) * np.eye(live.sum())])
    target = np.concatenate([y * np.sqrt(w), np.zeros(live.sum())])
    coef = np.zeros(len(deviation))
    coef[live] = np.linalg.lstsq(matrix, target, rcond=None)[0] / deviation[live]
    return coef.reshape(len(transforms), data.n_features)


# The closed form


def test_by_hand():
    """One query, one feature that is its own min-max: slope of a regression through the means, less for the penalty."""
    features, ratings = np.array([[0.0], [0.5], [1.0], [1.0]]), np.array([0, 1, 1, 2])
    # x - mean: -.625 -.125 .375 .375, y / 2 - mean: -.5 0 0 .5, so x'y = .5 and x'x = .6875
    for ridge in (0.0, 0.5, 3.0):
        ranker = LinearRanker(feature_transform="query_minmax", ridge=ridge).fit(features, ratings, qid=[1] * 4)
        assert ranker.coef_[0, 0] == pytest.approx(0.5 / 0.6875 / (1 + ridge))
        assert ranker.history_ == [{"ridge": ridge}]
        assert ranker.best_ == {}


GAINS = {
    "linear": lambda r: r,
    "exp2": lambda r: 2.0**r - 1 + 1,
    "list": lambda r: np.array([0, 1, 1, 4, 9.5])[r.astype(int)],
}


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize(
    "transforms", [("query_minmax",), ("standard",), ("none",), ("query_minmax", "query_rank", "query_log1p")]
)
def test_equals_least_squares_on_explicit_matrices(transforms, ridge, data):
    ranker = LinearRanker(feature_transform=transforms, ridge=ridge).fit(data)
    np.testing.assert_allclose(ranker.coef_, slow_coef(data, transforms, ridge), rtol=1e-6, atol=1e-9)
    assert ranker.ridge_ == ridge
    assert [type(one) for one in ranker.transforms_] == [TRANSFORMS[name] for name in transforms]


@pytest.mark.parametrize("gain", GAINS)
def test_gains(gain, data):
    given = [0, 1, 1, 4, 9.5] if gain == "list" else gain
    ranker = LinearRanker(feature_transform="query_minmax", ridge=0.1, gain=given).fit(data)
    # Of 2^r - 1 all gains of a query share the 1, and the unit is 2^R.
    np.testing.assert_allclose(ranker.coef_, slow_coef(data, ("query_minmax",), 0.1, GAINS[gain]), rtol=1e-7)


def test_weights_beside_explicit_matrices(data):
    rng = np.random.default_rng(1)
    rows, queries = rng.uniform(0.1, 3, data.n_documents), rng.uniform(0.1, 3, data.n_queries)
    weighted = RankingDataset.from_parts(
        data.features, data.ratings, data.offsets, data.query_ids, row_weight=rows, query_weight=queries
    )
    ranker = LinearRanker(feature_transform="query_minmax", ridge=0.1).fit(weighted)
    expected = slow_coef(data, ("query_minmax",), 0.1, row_weight=rows, query_weight=queries)
    np.testing.assert_allclose(ranker.coef_, expected, rtol=1e-7)


@examples(30)
@given(st.lists(st.integers(1, 3), min_size=12, max_size=12), st.sampled_from(["query_minmax", "none"]))
def test_a_row_of_weight_2_is_the_row_twice(times, transform):
    rng = np.random.default_rng(2)
    features, ratings, queries = rng.normal(size=(12, 3)), rng.integers(0, 3, 12), np.arange(12) // 4
    ranker = LinearRanker(feature_transform=transform, ridge=0.3)
    weighted = ranker.fit(features, ratings, qid=queries, row_weight=times).coef_
    again = [np.repeat(one, times, axis=0) for one in (features, ratings, queries)]
    np.testing.assert_allclose(ranker.fit(*again[:2], qid=again[2]).coef_, weighted, rtol=1e-9, atol=1e-12)


def test_a_query_of_weight_2_is_the_query_twice(data):
    features, ratings, queries = raw(data)
    ranker = LinearRanker(feature_transform="query_minmax", ridge=0.3)
    weighted = ranker.fit(
        features, ratings, qid=queries, query_weight={q: 1 + q % 2 for q in set(queries.tolist())}
    ).coef_
    odd = queries % 2 == 1
    again = np.concatenate([queries, queries[odd] + 10_000])
    twice = [np.concatenate([one, one[odd]]) for one in (features, ratings)]
    np.testing.assert_allclose(ranker.fit(*twice, qid=again).coef_, weighted, rtol=1e-9)


def test_rows_of_weight_0_teach_nothing(data):
    features, ratings, queries = raw(data)
    ranker, weight = LinearRanker(feature_transform="none", ridge=0.3), (queries % 3 > 0).astype(float)
    there = ranker.fit(features, ratings, qid=queries, row_weight=weight).coef_
    kept = weight > 0
    np.testing.assert_allclose(ranker.fit(features[kept], ratings[kept], qid=queries[kept]).coef_, there, rtol=1e-9)


# Limits


def test_the_strongest_ridge_gives_constant_scores(data):
    weak, strong = (LinearRanker(ridge=ridge).fit(data).predict(data) for ridge in (0.1, 1e12))
    assert np.ptp(strong) < 1e-9 * np.ptp(weak)
    # On the way there the weights point along b: twice the penalty, half the weights.
    far, further = (LinearRanker(ridge=ridge).fit(data).coef_ for ridge in (1e9, 2e9))
    np.testing.assert_allclose(far, 2 * further, rtol=1e-6)


def test_scores_of_the_training_data_have_a_mean_of_0(data):
    for transform in ("none", ("query_minmax", "query_log1p")):
        scores = LinearRanker(feature_transform=transform).fit(data).predict(data)
        assert abs(scores.mean()) < 1e-9 * scores.std()


def test_a_linear_rating_is_found():
    """Ratings that are a linear function of the features come back as scores, up to a constant of each query."""
    rng = np.random.default_rng(3)
    features = rng.integers(0, 9, (200, 3)).astype(float)
    ratings, queries = features @ [2, 1, 0.5], np.arange(200) // 10
    ranker = LinearRanker(feature_transform="none", ridge=0).fit(features, ratings, qid=queries)
    np.testing.assert_allclose(ranker.coef_[0] * ratings.max(), [2, 1, 0.5], rtol=1e-9)


def test_one_query_has_the_usual_ridge():
    rng = np.random.default_rng(4)
    features, ratings = rng.normal(size=(30, 4)), rng.integers(0, 3, 30)
    for qid in (np.zeros(30), None):
        ranker = LinearRanker().fit(features, ratings, qid=qid)
        assert ranker.ridge_ == USUAL_RIDGE
        assert ranker.history_ == [{"ridge": USUAL_RIDGE}]
        assert np.ptp(ranker.predict(features, qid=qid)) > 0
    assert not ranker.needs_list()  # fitted without queries: transforms have learned from all documents
    np.testing.assert_array_equal(ranker.predict(features[3:5]), ranker.predict(features)[3:5])


def test_constant_and_missing_features_weigh_0(data):
    wide = np.column_stack([data.features, np.full(data.n_documents, 0.1), np.full(data.n_documents, NAN)])
    wide = np.column_stack([wide, data.query_of_row / 7])  # constant within each query
    wider = data.with_features(wide.astype(np.float32), None)
    for transform in ("none", "query_minmax", "standard"):
        narrow, found = (LinearRanker(feature_transform=transform, ridge=0.1).fit(one) for one in (data, wider))
        assert not found.coef_[:, 5:].any()
        np.testing.assert_allclose(found.coef_[:, :5], narrow.coef_, rtol=1e-9)
        assert found.model_.used_features(8).tolist() == [True] * 5 + [False] * 3


@pytest.mark.parametrize("ridge", [0.0, 1e-4, 1.0, None])
def test_more_features_than_documents(ridge):
    rng = np.random.default_rng(5)
    features, ratings, queries = rng.normal(size=(20, 50)), rng.integers(0, 4, 20), np.arange(20) // 5
    ranker = LinearRanker(feature_transform="none", ridge=ridge).fit(features, ratings, qid=queries)
    if ridge == 0:  # every order can be met exactly, and the shortest weights do it
        scores = ranker.predict(features, qid=queries)
        for query in range(4):
            own = queries == query
            centred = ratings[own] / ratings.max() - ratings[own].mean() / ratings.max()
            np.testing.assert_allclose(scores[own] - scores[own].mean(), centred, atol=1e-9)
    elif ridge is not None:
        frame = RankingDataset(features, ratings, qid=queries)
        np.testing.assert_allclose(ranker.coef_, slow_coef(frame, ("none",), ridge), rtol=1e-6, atol=1e-9)
    assert np.isfinite(ranker.coef_).all()


def test_large_offsets_lose_no_digits():
    rng = np.random.default_rng(6)
    small = rng.integers(0, 64, (300, 2)).astype(np.float32)
    ratings, queries = rng.integers(0, 3, 300), np.arange(300) // 10
    ranker = LinearRanker(feature_transform="none", ridge=0.1)
    expected = ranker.fit(small, ratings, qid=queries).coef_
    np.testing.assert_allclose(ranker.fit(small + np.float32(2**20), ratings, qid=queries).coef_, expected, rtol=1e-12)


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e30, 3e38])
def test_any_scale_of_features(size):
    rng = np.random.default_rng(7)
    features = (rng.choice([-1, 0.5, 1], (200, 3)) * size).astype(np.float32)
    ratings, queries = rng.integers(0, 3, 200), np.arange(200) // 10
    for transform in TRANSFORMS:
        scores = (
            LinearRanker(feature_transform=transform).fit(features, ratings, qid=queries).predict(features, queries)
        )
        assert np.isfinite(scores).all()
        assert np.ptp(scores) > 0


# What must change nothing


@pytest.mark.parametrize("ridge", [None, 0.1])
def test_same_bits_for_rows_in_any_order_and_any_names(ridge, data):
    features, ratings, queries = raw(data)
    expected = LinearRanker(ridge=ridge, n_jobs=1).fit(features, ratings, qid=queries)
    order = np.random.default_rng(8).permutation(len(ratings))
    names = np.array([f"q{(q * 7919) % 1009}" for q in queries])
    negative = np.where(features == 0, np.float32(-0.0), features)
    found = LinearRanker(ridge=ridge, n_jobs=3).fit(negative[order], ratings[order], qid=names[order])
    assert found.coef_.tobytes() == expected.coef_.tobytes()
    assert found.history_ == expected.history_
    np.testing.assert_array_equal(
        found.predict(negative[order], qid=names[order]), expected.predict(features, qid=queries)[order]
    )


def test_powers_of_two_change_no_bit_of_ranges_and_ranks(data):
    factors = np.array([4, 0.5, 1024, 2.0**-20, 2.0**30], np.float32)
    scaled = data.with_features(data.features * factors, None)
    one, other = (LinearRanker(feature_transform=("query_minmax", "query_rank")).fit(x) for x in (data, scaled))
    np.testing.assert_array_equal(other.predict(scaled), one.predict(data))


def test_blocks_change_only_rounding(data, monkeypatch):
    expected = LinearRanker(ridge=0.1).fit(data)
    for block in (1, 300, 1 << 30):
        monkeypatch.setattr(linear, "_BLOCK", block)
        monkeypatch.setattr(linear, "_CHUNK", block)
        found = LinearRanker(ridge=0.1).fit(data)
        np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-8)
        found.model_.coef = expected.model_.coef  # the score of a document has the same bits in any block
        found.model_.center = expected.model_.center
        np.testing.assert_array_equal(found.predict(data), expected.predict(data))


def test_the_threads_of_the_library_change_nothing(tmp_path):
    code = (
        "import sys, numpy, tierank\n"
        "data = tierank.make_ranking(60, n_features=40, mean_length=60, max_length=90, seed=1)\n"
        "numpy.save(sys.argv[1], tierank.LinearRanker(n_jobs=int(sys.argv[2])).fit(data).coef_)\n"
        "assert 'torch' not in sys.modules and 'lightgbm' not in sys.modules\n"
    )
    found = []
    for threads in ("1", "2"):
        file = tmp_path / f"{threads}.npy"
        environment = {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "PYTHONPATH": ":".join(sys.path)}
        subprocess.run([sys.executable, "-c", code, file, threads], check=True, env=environment)
        found.append(np.load(file))
    assert found[0].tobytes() == found[1].tobytes()


def test_scores_do_not_depend_on_other_queries(data):
    ranker = LinearRanker().fit(data)
    whole = ranker.predict(data)
    for query in (0, 5, data.n_queries - 1):
        rows = slice(data.offsets[query], data.offsets[query + 1])
        np.testing.assert_array_equal(ranker.predict(data.select([query])), whole[rows])


# Choosing the ridge


def test_validation_data_choose(data):
    train, valid = data.split(0.6, 0.4)
    ranker = LinearRanker(select_by=["ndcg@5", "map"], rule="letor").fit(train, valid=valid)
    assert [row["ridge"] for row in ranker.history_] == list(RIDGES) == sorted(RIDGES, reverse=True)
    for row in ranker.history_:
        alone = LinearRanker(ridge=row["ridge"], select_by=["ndcg@5", "map"], rule="letor").fit(train, valid=valid)
        judged = tierank.evaluate(valid, alone.predict(valid), ["ndcg@5", "map"], rule="letor")
        assert row["ndcg@5"] == pytest.approx(judged.mean("ndcg@5"), abs=1e-12)
        assert alone.best_["map"] == pytest.approx(row["map"], abs=1e-12)
    best = max(row["ndcg@5"] for row in ranker.history_)
    first = next(row for row in ranker.history_ if row["ndcg@5"] >= best - 1e-6)
    assert ranker.best_["ndcg@5"] == pytest.approx(best, abs=1e-6)
    assert ranker.ridge_ >= first["ridge"] or ranker.best_["map"] >= first["map"]
    chosen = LinearRanker(ridge=ranker.ridge_).fit(train)
    np.testing.assert_allclose(chosen.coef_, ranker.coef_, rtol=1e-12)


def test_of_equal_ridges_the_strongest_is_kept():
    """One column: its order is the same under every ridge."""
    features = np.arange(40)[:, None] % 10
    data = RankingDataset(features, features[:, 0] % 4, qid=np.arange(40) // 10)
    assert LinearRanker(feature_transform="none").fit(data, valid=data).ridge_ == RIDGES[0]
    assert LinearRanker(feature_transform="none").fit(data).ridge_ == RIDGES[0]


def test_cross_validation_holds_queries_out(data):
    """The metrics of a ridge are those of five models, each on the queries that it did not learn from."""
    ranker = LinearRanker(feature_transform="query_minmax").fit(data)
    queries = tierank.rankers.order.canonical_rows(data, 1).queries
    edges = np.arange(N_FOLDS + 1) * data.n_queries // N_FOLDS
    for row in ranker.history_[::5]:
        values = []
        for fold in range(N_FOLDS):
            held_out = queries[edges[fold] : edges[fold + 1]]
            train = data.select(np.setdiff1d(queries, held_out))
            fitted = LinearRanker(feature_transform="query_minmax", ridge=row["ridge"]).fit(train)
            test = data.select(np.sort(held_out))
            values += tierank.Judge(test, "ndcg@10")(fitted.predict(test))["ndcg@10"].tolist()
        assert row["ndcg@10"] == pytest.approx(np.nanmean(values), abs=1e-9)
    assert ranker.best_ == {}


def test_fewer_queries_than_parts():
    rng = np.random.default_rng(9)
    data = RankingDataset(rng.normal(size=(20, 2)), rng.integers(0, 3, 20), qid=np.arange(20) // 10)
    assert len(LinearRanker().fit(data).history_) == len(RIDGES)


# What users see


def test_contributions_are_exact(data):
    ranker = LinearRanker().fit(data)
    query = data.select([5])
    values = [one.apply(query.features, query.offsets).astype(float) for one in ranker.transforms_]
    found = explain_pair(ranker, data, query.query_ids[0], 2, 4)
    expected = sum(coef * (one[1] - one[3]) for coef, one in zip(ranker.coef_, values, strict=True))
    np.testing.assert_allclose(found.contributions, expected, rtol=1e-12)
    for one in explain_query(ranker, data, query.query_ids[0], k=None):
        assert abs(one.rest) <= 1e-12 * np.abs(ranker.predict(query)).max()


@pytest.mark.parametrize("transform", [*TRANSFORMS, ("query_rank", "none"), TRANSFORMS["log1p"]()])
def test_save_and_load(transform, data, tmp_path):
    ranker = LinearRanker(feature_transform=transform, gain=[0, 1, 3, 7, 15]).fit(data)
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model", transforms=[TRANSFORMS["log1p"]])
    np.testing.assert_array_equal(loaded.predict(data), ranker.predict(data))
    assert (loaded.ridge_, loaded.history_) == (ranker.ridge_, ranker.history_)
    np.testing.assert_array_equal(loaded.coef_, ranker.coef_)


def test_a_damaged_model_is_refused(data, tmp_path):
    LinearRanker(ridge=1.0).fit(data).save(tmp_path / "model")
    file = tmp_path / "model" / "model.json"
    described = json.loads(file.read_text())
    for change, message in [
        ({"fitted": {}}, "got a damaged description: 'ridge'"),
        ({"n_features": 4}, "expected float64 of shape"),
        ({"settings": described["settings"] | {"feature_transform": ["none"]}}, "expected the arrays has_queries, got"),
        ({"settings": described["settings"] | {"feature_transform": ["query_minmax"]}}, "coef of shape"),
    ]:
        file.write_text(json.dumps(described | change))
        with pytest.raises(DataError, match=message):
            tierank.load(tmp_path / "model")


def test_a_checkpoint_is_taken_and_told_from_others(data, tmp_path):
    ranker = LinearRanker(ridge=1.0)
    first = ranker.fit(data, checkpoint=tmp_path / "c").coef_
    np.testing.assert_array_equal(ranker.fit(data, checkpoint=tmp_path / "c").coef_, first)
    with pytest.raises(DataError, match="expected a checkpoint of this data and these settings, got one of another"):
        LinearRanker(ridge=2.0).fit(data, checkpoint=tmp_path / "c")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"feature_transform": "query_minmx"}, r"did you mean 'query_minmax'\?"),
        (
            {"feature_transform": ()},
            r"feature_transform: expected a key of TRANSFORMS, a Transform, or a list of these",
        ),
        ({"feature_transform": ("none", "none")}, "feature_transform: expected each transform once"),
        ({"ridge": float("nan")}, "ridge: expected a number >= 0, or None .*, got nan"),
        ({"ridge": "1"}, "ridge: expected a number >= 0"),
        ({"gain": "cubic"}, "gain"),
    ],
)
def test_settings_that_cannot_be_used(given, message, data):
    with pytest.raises(ParameterError, match=message):
        LinearRanker(**given).fit(data)


def test_a_transform_that_is_not_finite_is_refused(data):
    class Broken(tierank.Transform):
        def learn(self, features):
            pass

        def apply(self, features, offsets):
            return np.full(features.shape, np.inf, np.float32)

    with pytest.raises(DataError, match="feature_transform: expected finite numbers, got NaN or infinity"):
        LinearRanker(feature_transform=Broken()).fit(data)


# Teams


class Part(Team):
    """One of two processes; the other one has the highest rating."""

    size = 2

    def __init__(self, rank, holds_parts=False):
        self.rank, self.holds_parts = rank, holds_parts

    def all_gather(self, value):
        return [value, 4.0] if isinstance(value, float) else [value]


def test_sums_of_parts_are_the_sums_of_all(data):
    """What all_reduce adds up: the sums of the parts of two processes."""
    transform = tierank.TRANSFORMS["query_minmax"]().fit(data)
    empty = linear.LinearModel(tierank.Seen(5), [transform])
    whole, *parts = (
        linear.TrainingQueries(team.part(data), empty, "linear", 1, team).sum_up()[0].total()
        for team in (Team(), Part(0), Part(1))
    )
    for name in whole._fields:
        found = getattr(parts[0], name) + getattr(parts[1], name)
        np.testing.assert_allclose(found, getattr(whole, name), rtol=1e-9, atol=1e-12)
