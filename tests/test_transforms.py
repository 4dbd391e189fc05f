"""Transforms: by hand, against slow twins, and what all of them promise, looped over the table."""

import inspect
import math
import pickle
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import sklearn
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from running import examples
from sklearn.base import clone
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import tierank
from tierank import DataError, NotFittedError, RankingDataset
from tierank.kernels import features as scaling
from tierank.rankers.trees import UMart
from tierank.transforms import TRANSFORMS, Log1p, Quantile, QueryLog1p, QueryMinMax, QueryRank, Standard, Unchanged

NAN = math.nan
LARGEST = float(np.finfo(np.float32).max)

every_transform = pytest.mark.parametrize("name", TRANSFORMS)
per_query = pytest.mark.parametrize("name", [name for name in TRANSFORMS if TRANSFORMS[name].needs_queries])

# Any float32 and NaN, with extremes, ties and both zeros drawn often.
VALUES = st.one_of(
    st.floats(width=32, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, 2.0, NAN, LARGEST, -LARGEST, 1e-45, -1e-45, 1e30]),
)


@st.composite
def grouped(draw):
    """Features of some queries, and their offsets."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    features = draw(arrays.arrays(np.float32, (sum(lengths), draw(st.integers(1, 3))), elements=VALUES))
    return features, np.concatenate([[0], np.cumsum(lengths)])


@pytest.fixture(scope="module")
def data():
    plain = tierank.make_ranking(40, n_features=6, mean_length=20, max_length=50, seed=3)
    features = np.array(plain.features)
    features[np.random.default_rng(0).random(features.shape) < 0.05] = NAN
    return RankingDataset.from_parts(features, plain.ratings, plain.offsets, plain.query_ids)


def transform(kind, values, qid=None):
    """One column in and out."""
    return kind().fit_transform(np.array(values, dtype=float)[:, None], qid=qid)[:, 0].tolist()


# Slow twins: one column of one list at a time, in plain Python.


def known(values):
    return [float(v) for v in values if v == v]


def slow_minmax(values, seen):
    low, high = (min(known(seen)), max(known(seen))) if known(seen) else (0.0, 0.0)
    return [0.0 if v != v or low == high else min(max((v - low) / (high - low), 0.0), 1.0) for v in map(float, values)]


def slow_standard(values, seen):
    seen = known(seen)
    if not seen or min(seen) == max(seen):
        return [0.0] * len(values)
    mean = math.fsum(seen) / len(seen)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in seen) / len(seen))
    return [0.0 if v != v else (v - mean) / deviation for v in map(float, values)]


def slow_logs(values):
    return [float(np.float32(math.copysign(math.log1p(abs(v)), v))) for v in map(float, values)]


def slow_log1p(values, seen):
    return slow_standard(slow_logs(values), slow_logs(seen))


def slow_quantile(values, seen):
    """For up to 256 values: the mean position of the equal ones, linear in between."""
    seen = sorted(known(seen))
    if not seen or seen[0] == seen[-1]:
        return [0.0] * len(values)
    knots = sorted(set(seen))
    levels = [np.mean([i for i, v in enumerate(seen) if v == knot]) / (len(seen) - 1) for knot in knots]
    return [0.0 if v != v else float(np.interp(v, knots, levels)) for v in map(float, values)]


def slow_none(values, seen):
    return [0.0 if v != v else v for v in map(float, values)]


TWINS = {
    "query_minmax": slow_minmax,
    "query_log1p": slow_log1p,
    "query_rank": slow_quantile,  # of the documents that were seen, the same number
    "standard": slow_standard,
    "log1p": slow_log1p,
    "quantile": slow_quantile,
    "none": slow_none,
}


def slow(name, features, offsets, queries_known):
    by_query = TRANSFORMS[name].needs_queries and queries_known
    expected = np.empty(features.shape)
    for column in range(features.shape[1]):
        for start, end in pairwise(offsets):
            values = features[start:end, column]
            seen = values if by_query else features[:, column]
            expected[start:end, column] = TWINS[name](values, seen)
    return expected


def fitted(name, features, offsets):
    ids = np.arange(len(offsets) - 1)
    return TRANSFORMS[name]().fit(RankingDataset.from_parts(features, None, offsets, ids))


# By hand


def test_query_minmax_by_hand():
    assert transform(QueryMinMax, [1, 10, 3, 5, 20], qid=list("abaab")) == [0, 0, 0.5, 1, 1]
    assert transform(QueryMinMax, [7, 7, NAN], qid=[1, 1, 1]) == [0, 0, 0]
    assert transform(QueryMinMax, [-2, NAN, 2, NAN, 3], qid=[1, 1, 1, 2, 3]) == [0, 0, 1, 0, 0]


def test_standard_by_hand():
    # mean 4, squares of differences 4, 0, 4: deviation sqrt(8/3)
    expected = 2 / math.sqrt(8 / 3)
    assert transform(Standard, [2, 4, 6]) == pytest.approx([-expected, 0, expected], rel=1e-7)
    assert transform(Standard, [3, 3, 3]) == [0, 0, 0]


def test_log1p_by_hand():
    values = [math.e - 1, 0, 1 - math.e]  # logarithms 1, 0, -1: deviation sqrt(2/3)
    assert transform(Log1p, values) == pytest.approx([math.sqrt(1.5), 0, -math.sqrt(1.5)], rel=1e-6, abs=1e-7)
    assert transform(QueryLog1p, [*values, 5, 9], qid=[1, 1, 1, 2, 2]) == pytest.approx(
        [math.sqrt(1.5), 0, -math.sqrt(1.5), -1, 1], rel=1e-6, abs=1e-7
    )


def test_quantile_by_hand():
    assert transform(Quantile, [0, 0, 0, 8, 100]) == [0.25, 0.25, 0.25, 0.75, 1]
    assert Quantile().fit([[0], [0], [0], [8], [100]]).transform([[4], [-9], [999]])[:, 0].tolist() == [0.5, 0.25, 1]
    assert transform(Quantile, [4, 4, NAN]) == [0, 0, 0]


def test_quantiles_of_many_documents_are_shares():
    features = np.random.default_rng(1).lognormal(0, 3, (50_001, 9)).astype(np.float32)
    shares = Quantile().fit(features).transform(features)
    expected = features.argsort(axis=0).argsort(axis=0) / 50_000
    middle = (expected > 0.01) & (expected < 0.99)
    assert np.abs(shares - expected)[middle].max() < 0.001
    assert np.abs(shares - expected).max() < 1 / 255
    assert (shares.min(), shares.max()) == (0, 1)


def test_query_rank_by_hand():
    # Of 1, 3, 3, 9: none, one and a half, and all of the three others are below.
    assert transform(QueryRank, [3, 1, 9, 3], qid=[1, 1, 1, 1]) == [0.5, 0, 1, 0.5]
    assert transform(QueryRank, [5, 5, NAN, 7, -0.0, 0.0], qid=[1, 1, 1, 2, 3, 3]) == [0, 0, 0, 0, 0, 0]
    assert transform(QueryRank, [NAN, 2, 4], qid=[1, 1, 1]) == [0, 0, 1]


def test_ranks_in_long_queries_are_those_of_short_ones():
    """Long lists are sorted, short ones counted: both are the mean place of the equal values."""
    values = np.random.default_rng(0).integers(0, 99, 999).astype(np.float32)
    found = QueryRank().fit_transform(values[:, None], qid=np.zeros(999))[:, 0]
    places = {value: np.flatnonzero(np.sort(values) == value).mean() for value in np.unique(values)}
    np.testing.assert_allclose(found, [places[value] / 998 for value in values], rtol=1e-6)


def test_none_by_hand():
    assert transform(Unchanged, [1.5, NAN, -LARGEST]) == [1.5, 0, -LARGEST]


def test_ranges_that_float32_cannot_hold():
    assert transform(QueryMinMax, [-LARGEST, 0, LARGEST], qid=[1, 1, 1]) == [0, 0.5, 1]
    assert transform(QueryMinMax, [0, 1e-45], qid=[1, 1]) == [0, 1]
    assert transform(Standard, [-LARGEST, LARGEST]) == [-1, 1]
    assert transform(Quantile, [-LARGEST, 0, LARGEST]) == [0, 0.5, 1]
    assert Quantile().fit([[-LARGEST], [LARGEST]]).transform([[0.0], [LARGEST / 2]])[:, 0].tolist() == [0.5, 0.75]
    stray = Standard().fit([[0.0], [1e-45]]).transform([[LARGEST], [-LARGEST]])
    assert stray[:, 0].tolist() == [1e4, -1e4]


def test_logarithms_are_the_nearest_float32():
    values = np.concatenate([[0], np.geomspace(1e-45, LARGEST, 200_001), 1 + np.arange(-99, 99) * 1e-7])
    features = np.concatenate([values, -values]).astype(np.float32)[:, None]
    logs = np.empty_like(features)
    scaling.take_logs(features, logs)
    exact = np.copysign(np.log1p(np.abs(features.astype(np.float64))), features)
    # Half a step of float32, and a little.
    assert (np.abs(logs - exact) <= 0.5001 * np.spacing(np.abs(logs))).all()
    assert (np.diff(logs[1:200_002, 0]) >= 0).all()


# What all promise


def test_every_transform_has_a_twin():
    assert set(TWINS) == set(TRANSFORMS)


@every_transform
@pytest.mark.parametrize("queries_known", [True, False])
def test_equals_the_slow_twin(name, queries_known, data):
    few = data.select(np.arange(8))
    assert few.n_documents <= scaling.N_KNOTS
    got = fitted(name, few.features, few.offsets).apply(few.features, few.offsets if queries_known else None)
    assert got.dtype == np.float32
    expected = slow(name, few.features, few.offsets, queries_known)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


@every_transform
@examples(60)
@given(batch=grouped(), queries_known=st.booleans())
def test_finite_in_range_and_missing_is_0(name, batch, queries_known):
    features, offsets = batch
    fit = fitted(name, features, offsets)
    got = fit.apply(features, offsets if queries_known else None)
    assert got.shape == features.shape
    assert np.isfinite(got).all()
    assert (got[np.isnan(features)] == 0).all()
    if name in ("query_minmax", "query_rank", "quantile"):
        assert got.min() >= 0
        assert got.max() <= 1
    elif name != "none":
        assert np.abs(got).max() <= math.sqrt(len(features)) + 1e-3
    new = fit.apply(np.array([[LARGEST], [-LARGEST], [1e-45]], np.float32).repeat(features.shape[1], axis=1), None)
    assert np.isfinite(new).all()


@every_transform
@examples(60)
@given(batch=grouped(), queries_known=st.booleans(), seed=st.integers(0, 2**31))
def test_same_bits_for_rows_in_any_order(name, batch, queries_known, seed):
    features, offsets = batch
    rng = np.random.default_rng(seed)
    order = np.concatenate([start + rng.permutation(end - start) for start, end in pairwise(offsets)])
    straight, shuffled = fitted(name, features, offsets), fitted(name, features[order], offsets)
    state = shuffled.state()
    for key, array in straight.state().items():
        assert array.tobytes() == state[key].tobytes()
    given = offsets if queries_known else None
    assert straight.apply(features, given)[order].tobytes() == shuffled.apply(features[order], given).tobytes()


@every_transform
def test_same_bits_for_many_rows_in_any_order(name):
    features = np.random.default_rng(5).lognormal(0, 4, (40_000, 3)).astype(np.float32)
    order = np.random.default_rng(6).permutation(len(features))
    offsets = np.array([0, len(features)])
    expected = fitted(name, features, offsets).apply(features, offsets)
    got = fitted(name, features[order], offsets).apply(features[order], offsets)
    assert expected[order].tobytes() == got.tobytes()


@every_transform
def test_queries_do_not_touch_each_other(name, data):
    fit = fitted(name, data.features, data.offsets)
    whole = fit.apply(data.features, data.offsets)
    for query in (0, 7, 39):
        part = data.select([query])
        start, end = data.offsets[query : query + 2]
        assert whole[start:end].tobytes() == fit.apply(part.features, part.offsets).tobytes()


@every_transform
def test_without_queries_a_part_of_the_rows_gives_the_same(name, data):
    fit = TRANSFORMS[name]().fit(data.features)
    whole = fit.transform(data.features)
    np.testing.assert_array_equal(fit.transform(data.features[13:17]), whole[13:17])


@every_transform
def test_takes_a_mapped_read_only_matrix_and_leaves_it(name, data):
    features = np.array(data.features)
    features.flags.writeable = False
    got = fitted(name, features, data.offsets).apply(features, data.offsets)
    np.testing.assert_array_equal(got, fitted(name, data.features, data.offsets).apply(data.features, data.offsets))
    assert got.flags.c_contiguous
    assert got.flags.writeable


@every_transform
@pytest.mark.parametrize("columns", [1, 9])
def test_all_missing(name, columns):
    features = np.full((5, columns), NAN, np.float32)
    offsets = np.array([0, 2, 5])
    assert not fitted(name, features, offsets).apply(features, offsets).any()


@every_transform
def test_state_round_trip(name, data):
    fit = fitted(name, data.features, data.offsets)
    state = fit.state()
    assert all(isinstance(array, np.ndarray) for array in state.values())
    again = TRANSFORMS[name]().load_state(state, data.n_features)
    for offsets in (data.offsets, None):
        assert again.apply(data.features, offsets).tobytes() == fit.apply(data.features, offsets).tobytes()
    assert again.transform(data).tobytes() == fit.transform(data).tobytes()
    assert again.has_queries_ is True
    assert TRANSFORMS[name]().load_state(TRANSFORMS[name]().fit(data.features).state(), 6).has_queries_ is False


def test_state_that_is_damaged():
    state = Standard().fit([[1.0, 2.0], [3.0, 5.0]]).state()
    with pytest.raises(DataError, match="expected the arrays has_queries, center, scale, got has_queries, center"):
        Standard().load_state({name: state[name] for name in ("has_queries", "center")}, 2)
    with pytest.raises(DataError, match=r"center: expected float64 of shape \(3,\), got float64 of shape \(2,\)"):
        Standard().load_state(state, 3)
    with pytest.raises(DataError, match=r"scale: expected float64 .* got float32"):
        Standard().load_state(state | {"scale": state["scale"].astype(np.float32)}, 2)
    with pytest.raises(DataError, match="scale: expected finite numbers"):
        Standard().load_state(state | {"scale": np.array([1, np.inf])}, 2)
    with pytest.raises(DataError, match=r"has_queries: expected bool of shape \(\)"):
        Standard().load_state(state | {"has_queries": np.array([True])}, 2)


# A scikit-learn citizen


@every_transform
@pytest.mark.filterwarnings("ignore")
def test_passes_the_checks_of_scikit_learn(name):
    results = check_estimator(TRANSFORMS[name](), on_skip=None, on_fail=None)
    assert not [result["check_name"] for result in results if result["status"] == "failed"]
    assert sum(result["status"] == "passed" for result in results) > 30


@every_transform
def test_comes_back_in_the_order_of_the_caller(name, data):
    ids = np.array([f"q{q}" for q in np.repeat(data.query_ids, data.lengths)])
    expected = TRANSFORMS[name]().fit_transform(data)
    order = np.random.default_rng(2).permutation(data.n_documents)
    got = TRANSFORMS[name]().fit_transform(data.features[order], qid=ids[order])
    np.testing.assert_array_equal(got, expected[order])


@per_query
def test_queries_are_known_in_both_or_in_neither(name, data):
    ids = np.repeat(data.query_ids, data.lengths)
    with pytest.raises(DataError, match=r"expected one query id per row, as in fit, .*np\.zeros\(len\(X\)\)"):
        TRANSFORMS[name]().fit(data).transform(data.features)
    with pytest.raises(DataError, match=r"qid: expected none, as in fit, got query ids.* pass qid to fit too"):
        TRANSFORMS[name]().fit(data.features).transform(data.features, qid=ids)


@every_transform
def test_before_fit(name):
    unfitted = TRANSFORMS[name]()
    for error in (NotFittedError, SklearnNotFittedError):
        with pytest.raises(error, match="is not fitted; call fit first"):
            unfitted.transform([[1.0]])
    with pytest.raises(NotFittedError, match="call fit first"):
        unfitted.state()


@every_transform
def test_tables(name, data):
    table = pd.DataFrame(data.features, columns=list("abcdef"))
    fit = TRANSFORMS[name]().fit(table)
    assert fit.get_feature_names_out().tolist() == list("abcdef")
    expected = fit.transform(table)
    np.testing.assert_array_equal(fit.transform(table[list("fedcba")]), expected)
    as_table = clone(fit).set_output(transform="pandas").fit_transform(table)
    pd.testing.assert_frame_equal(as_table, pd.DataFrame(expected, columns=list("abcdef")))
    with pytest.raises(DataError, match="expected the column 'c', which fit had"):
        fit.transform(table.drop(columns="c"))
    with pytest.raises(DataError, match=r"X has 5 features, but .* is expecting 6 features"):
        fit.transform(data.features[:, :5])
    assert not hasattr(fit.fit(data.features), "feature_names_in_")


def test_sparse_and_pickle(data):
    dense = np.nan_to_num(data.features)
    fit = QueryMinMax().fit(scipy.sparse.csr_matrix(dense))
    np.testing.assert_array_equal(fit.transform(scipy.sparse.csr_matrix(dense)), fit.transform(dense))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fit)).transform(dense), fit.transform(dense))


def test_qid_beside_a_data_set(data):
    with pytest.raises(DataError, match="qid: expected None with a RankingDataset"):
        QueryMinMax().fit(data, qid=[1])


def test_bad_values_stop_at_the_door():
    with pytest.raises(DataError, match="expected values that float32 can hold"):
        Standard().fit([[np.inf]])


@every_transform
def test_in_a_pipeline_with_string_queries(name, data):
    ids = np.array([f"q{q}" for q in np.repeat(data.query_ids, data.lengths)])
    order = np.random.default_rng(4).permutation(data.n_documents)
    X, y, qid = data.features[order], data.ratings[order], ids[order]
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(TRANSFORMS[name](), UMart(n_trees=5, min_documents=5, n_jobs=1)).fit(X, y, qid=qid)
        scores = pipeline.predict(X, qid=qid)
        assert pipeline.score(X, y, qid=qid) > 0.5
    scaled = TRANSFORMS[name]().fit_transform(X, qid=qid)
    expected = UMart(n_trees=5, min_documents=5, n_jobs=1).fit(scaled, y, qid=qid).predict(scaled, qid=qid)
    np.testing.assert_array_equal(scores, expected)


def test_settings_are_none():
    for kind in TRANSFORMS.values():
        assert not kind().get_params()
        assert inspect.getdoc(kind)
