"""Generated data: the promised shape, the same bits, one world for all seeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples

from tierank.data.dataset import RankingDataset
from tierank.errors import ParameterError
from tierank.io.synth import make_ranking


@pytest.fixture(scope="module")
def thousand():
    return make_ranking(1000)


def per_query(ufunc, values, data):
    return ufunc.reduceat(values, data.offsets[:-1])


def rating_shares(data, n_levels):
    return np.bincount(data.ratings.astype(int), minlength=n_levels) / data.n_documents


def mean_ndcg(data, scores, k=10):
    """NDCG@k = sum of (2^r - 1) / log2(1 + rank) over that of the best order, averaged over non-empty queries."""
    values = []
    for start, stop in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        gains = 2 ** data.ratings[start:stop] - 1
        discounts = 1 / np.log2(np.arange(len(gains)) + 2)
        discounts[k:] = 0
        if gains.any():
            found = gains[np.argsort(-scores[start:stop], kind="stable")]
            values.append(found @ discounts / (np.sort(gains)[::-1] @ discounts))
    return np.mean(values)


def least_squares_scorer(data):
    """Scores linear in the log-scaled features, fitted to the ratings by least squares."""

    def inputs(features):
        return np.column_stack([np.log1p(features), np.ones(len(features), np.float32)])

    weights = np.linalg.lstsq(inputs(data.features), data.ratings, rcond=None)[0]
    return lambda other: inputs(other.features) @ weights


def test_default_shape_is_that_of_web_search(thousand):
    assert (thousand.n_queries, thousand.n_features) == (1000, 136)
    assert thousand.lengths.mean() == pytest.approx(120, rel=0.1)
    assert thousand.features.dtype == np.float32
    assert thousand.features.flags.c_contiguous
    assert np.isfinite(thousand.features).all()
    assert thousand.query_ids.tolist() == list(range(1, 1001))


def test_lengths_have_a_long_tail():
    lengths = make_ranking(20_000, n_features=1).lengths
    assert lengths.min() == 1
    assert 800 < lengths.max() <= 900
    assert lengths.mean() == pytest.approx(120, rel=0.02)
    assert np.median(lengths) < 105


@pytest.mark.parametrize(("mean", "longest"), [(1, 900), (3.5, 5), (40, 50), (10, 900)])
def test_lengths_keep_their_mean_and_their_bounds(mean, longest):
    lengths = make_ranking(5000, n_features=1, mean_length=mean, max_length=longest).lengths
    assert lengths.min() >= 1
    assert lengths.max() <= longest
    assert lengths.mean() == pytest.approx(mean, rel=0.04)


def test_lengths_are_equal_where_the_mean_is_the_maximum():
    assert (make_ranking(20, n_features=2, mean_length=7, max_length=7).lengths == 7).all()


def test_a_query_may_be_longer_than_any_other_data_set():
    data = make_ranking(3, n_features=2, mean_length=9000, max_length=9000)
    assert data.features.shape == (27_000, 2)
    assert np.isfinite(data.features).all()
    assert np.ptp(data.features, axis=0).min() > 0


def test_ratings_have_the_asked_shares(thousand):
    assert rating_shares(thousand, 5) == pytest.approx([0.52, 0.32, 0.13, 0.02, 0.01], abs=1e-4)


@pytest.mark.parametrize("shares", [(1.0,), (0.9, 0.1), (0.25, 0.0, 0.75), (0.1,) * 10])
def test_ratings_have_any_number_of_levels(shares):
    data = make_ranking(50, n_features=3, mean_length=20, max_length=20, rating_shares=shares)
    assert rating_shares(data, len(shares)) == pytest.approx(list(shares), abs=1e-12)


def test_ratings_vary_between_queries(thousand):
    highest = per_query(np.maximum, thousand.ratings, thousand)
    lowest = per_query(np.minimum, thousand.ratings, thousand)
    assert 0.003 < (highest == 0).mean() < 0.1
    assert 0.003 < (highest == lowest).mean() < 0.1
    assert (highest == 4).mean() > 0.1


def test_features_are_of_several_kinds(thousand):
    features, logs = thousand.features, np.log1p(thousand.features)
    widest = (per_query(np.maximum, features, thousand) - per_query(np.minimum, features, thousand)).max(axis=0)
    is_whole = (features == np.floor(features)).all(axis=0)
    is_skewed = features.mean(axis=0) > 1.5 * np.median(features, axis=0)
    assert (features >= 0).all()
    assert ((features == 0).mean(axis=0) > 0.7).sum() >= 20, "mostly zero"
    assert (is_whole & (widest > 0)).sum() >= 20, "counts"
    assert (is_skewed & (features.max(axis=0) > 30 * features.mean(axis=0))).sum() >= 20, "heavy tails"
    assert (features.max(axis=0) <= 1).sum() >= 10, "in [0, 1]"
    assert 5 <= (widest == 0).sum() <= 30, "the same for all documents of a query"
    assert np.ptp(features[:, widest == 0], axis=0).min() > 0, "but not of all queries"
    assert np.corrcoef(logs[:, 0], logs[:, 1])[0, 1] > 0.25, "columns of one family"


def test_same_arguments_give_the_same_bits():
    first, second = (make_ranking(60, missing=0.1, seed=3) for _ in range(2))
    assert first.features.tobytes() == second.features.tobytes()
    assert first.ratings.tobytes() == second.ratings.tobytes()
    assert first.offsets.tolist() == second.offsets.tolist()


def test_global_random_state_plays_no_part():
    before = np.random.get_state()[1].tolist()  # noqa: NPY002 (the state that must not change)
    make_ranking(3, n_features=4)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_other_seeds_give_other_documents():
    first, second = (make_ranking(5, n_features=3, mean_length=9, max_length=9, seed=seed) for seed in (0, 1))
    assert not np.isin(first.features[:, 0][first.features[:, 0] > 0], second.features[:, 0]).any()


def test_all_seeds_share_one_world(thousand):
    train, test = thousand.select(np.arange(400)), make_ranking(300, seed=1)
    chance = mean_ndcg(test, np.random.default_rng(0).random(test.n_documents))
    assert 0.2 < chance < 0.35
    assert mean_ndcg(test, least_squares_scorer(train)(test)) > chance + 0.15


def test_noise_makes_ranking_harder():
    reached = []
    for noise in (0, 1, 5):
        train, test = (make_ranking(200, n_features=20, noise=noise, seed=seed) for seed in (0, 1))
        reached.append(mean_ndcg(test, least_squares_scorer(train)(test)))
    assert reached[0] > reached[1] + 0.05 > reached[2] + 0.1


def test_missing_values_are_holes_in_the_same_data():
    whole, holed = (make_ranking(40, n_features=30, missing=missing) for missing in (0, 0.2))
    is_missing = np.isnan(holed.features)
    assert is_missing.mean() == pytest.approx(0.2, abs=0.01)
    assert (holed.features[~is_missing] == whole.features[~is_missing]).all()
    assert (holed.ratings == whole.ratings).all()


@examples(60)
@given(
    n_queries=st.integers(1, 6),
    n_features=st.integers(1, 15),
    max_length=st.integers(1, 12),
    share_of_max=st.floats(0, 1),
    parts=st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(any),
    noise=st.floats(0, 3),
    missing=st.floats(0, 1),
    seed=st.integers(0, 2**70),
)
def test_small_arguments_give_a_valid_data_set(
    n_queries, n_features, max_length, share_of_max, parts, noise, missing, seed
):
    data = make_ranking(
        n_queries,
        n_features=n_features,
        mean_length=1 + share_of_max * (max_length - 1),
        max_length=max_length,
        rating_shares=np.array(parts) / sum(parts),
        noise=noise,
        missing=missing,
        seed=seed,
    )
    rebuilt = RankingDataset(data.features, data.ratings, qid=data.query_ids[data.query_of_row])  # checks all
    assert rebuilt.offsets.tolist() == data.offsets.tolist()
    assert data.features.shape == (data.lengths.sum(), n_features)
    assert data.n_queries == n_queries
    assert 1 <= data.lengths.min() <= data.lengths.max() <= max_length
    assert set(data.ratings) <= set(np.flatnonzero(parts))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_queries": 0}, "n_queries: expected an integer >= 1.*, got 0"),
        ({"n_queries": 2.5}, "n_queries: expected an integer >= 1.*, got 2.5"),
        ({"n_queries": True}, "n_queries: expected an integer >= 1.*, got True"),
        ({"n_features": 0}, "n_features: expected an integer >= 1.*, got 0"),
        ({"max_length": 0}, "max_length: expected an integer >= 1.*, got 0"),
        ({"seed": -1}, "seed: expected an integer >= 0.*, got -1"),
        ({"seed": None}, "seed: expected an integer >= 0.*, got None"),
        ({"mean_length": 0.5}, r"mean_length: expected a number >= 1 and <= 900, got 0.5"),
        ({"mean_length": 30, "max_length": 20}, r"expected a number >= 1 and <= 20, got 30"),
        ({"noise": -1}, "noise: expected a number >= 0 and <= 1000, got -1"),
        ({"noise": float("nan")}, "noise: expected a number >= 0 and <= 1000, got nan"),
        ({"missing": 1.5}, "missing: expected a number >= 0 and <= 1, got 1.5"),
        ({"missing": "few"}, "missing: expected a number >= 0 and <= 1, got 'few'"),
        ({"rating_shares": ()}, r"rating_shares: expected one share per rating.*sum to 1, got \(\)"),
        ({"rating_shares": (0.5, 0.4)}, r"rating_shares: .*sum to 1, got \(0.5, 0.4\)"),
        ({"rating_shares": (1.5, -0.5)}, r"rating_shares: .*0 or more.*got \(1.5, -0.5\)"),
        ({"rating_shares": "half"}, "rating_shares: .*got 'half'"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ParameterError, match=message):
        make_ranking(**arguments)
