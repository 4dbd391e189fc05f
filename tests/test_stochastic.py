"""The stochastic uMart: a slow twin, the expectation by enumeration, and what must not change it."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from running import examples

from tierank import UMart, load, make_ranking
from tierank.errors import ParameterError
from tierank.kernels.compiling import compiled
from tierank.kernels.simd import gumbel, logarithm
from tierank.losses import StochasticUMartObjective
from tierank.losses.umart import HESSIANS

MASK = (1 << 64) - 1


def mixed(value):
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def drawn_orders(scores, seed, noise, n_draws):
    """The orders that the random numbers of a query give."""
    step = 0x9E3779B97F4A7C15
    stream = mixed((seed + step) & MASK)
    for bits in np.asarray(scores, np.float64).view(np.uint64).tolist():
        stream = mixed(((stream ^ bits) + step) & MASK)
    for _ in range(n_draws):
        keys = []
        for score in scores:
            stream = (stream + step) & MASK
            keys.append(score - noise * math.log(-math.log(((mixed(stream) >> 12) + 0.5) / 2**52)))
        yield sorted(range(len(scores)), key=lambda d: -keys[d])


def slow_gradients(order, ratings, scores, *, window, sigma, decay, gain, weights, ideal, hessian="exact"):
    """One order: every document against the lower-rated ones among its neighbours, below it and above it."""
    kappa, is_steep = HESSIANS[hessian]
    n = len(ratings)
    gradient, curvature = np.zeros(n), np.zeros(n)
    for place, d in enumerate(order):
        for places in (range(place + 1, min(n, place + window + 1)), range(max(0, place - window), place)):
            lower = [at for at in places if ratings[order[at]] < ratings[d]]
            top = max([scores[d], *(scores[order[at]] for at in lower)])
            powers = {at: math.exp(sigma * (scores[order[at]] - top)) for at in lower}
            total = math.exp(sigma * (scores[d] - top)) + sum(powers.values())
            for at in lower:
                w = decay ** min(place, at) * abs(gain(ratings[d]) - gain(ratings[order[at]]))
                if weights == "ndcg":
                    w *= abs(1 / math.log2(2 + place) - 1 / math.log2(2 + at)) / ideal
                p = powers[at] / total
                gradient[order[at]] += sigma * w * p
                gradient[d] -= sigma * w * p
                own = math.exp(sigma * (scores[d] - top)) / total
                curvature[order[at]] += kappa * sigma**2 * w * p * (1 - p)
                curvature[d] += kappa * sigma**2 * w * p * (1 if is_steep else own)
    return gradient, curvature


def exp2(rating):
    return 2.0**rating - 1


def linear(rating):
    return float(rating)


def ideal_dcg(ratings, gain):
    return sum(gain(r) / math.log2(2 + i) for i, r in enumerate(sorted(ratings, reverse=True)))


queries = st.integers(2, 7).flatmap(
    lambda n: st.tuples(
        st.lists(st.sampled_from([0, 0.5, 1, 2, 3]), min_size=n, max_size=n),
        st.lists(st.floats(-3, 3) | st.sampled_from([0.0, 1.0, 500.0]), min_size=n, max_size=n) | st.just([1e17] * n),
    )
)


@examples(60)
@given(
    st.lists(queries, min_size=1, max_size=3),
    st.sampled_from([1, 2, 5]),
    st.sampled_from(["gain", "ndcg"]),
    st.sampled_from(["exp2", "linear"]),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.sampled_from(list(HESSIANS)),
)
def test_the_mean_over_draws_is_that_of_a_slow_twin(data, window, weights, gain, sigma, hessian):
    ratings, scores = (np.concatenate([query[k] for query in data]) for k in range(2))
    offsets = np.cumsum([0, *(len(query[0]) for query in data)])
    objective = StochasticUMartObjective(
        window=window, weights=weights, gain=gain, sigma=sigma, hessian=hessian, noise=0.7, n_draws=3, decay=0.9, seed=5
    )
    found = [array.copy() for array in objective.prepare(ratings, offsets).gradients(scores)]
    function = {"exp2": exp2, "linear": linear}[gain]
    for (rated, scored), start, end in zip(data, offsets[:-1], offsets[1:], strict=True):
        ideal = ideal_dcg(rated, function) or 1.0
        given = {"window": window, "sigma": sigma, "decay": 0.9, "gain": function, "weights": weights, "ideal": ideal}
        given["hessian"] = hessian
        plain = [score + 0.0 for score in scored]
        draws = [slow_gradients(order, rated, plain, **given) for order in drawn_orders(plain, 5, 0.7, 3)]
        for array, expected in zip(found, np.mean(draws, axis=0), strict=True):
            np.testing.assert_allclose(array[start:end], expected, rtol=2e-5, atol=1e-6)


def test_many_draws_give_the_expectation_over_all_orders():
    """By enumeration: the orders have the probabilities of the Plackett-Luce model of f / noise."""
    ratings, scores, noise = [2, 0, 1, 0], [0.3, 0.9, -0.4, 0.1], 0.8
    expected = np.zeros((2, 4))
    for order in itertools.permutations(range(4)):
        worth = [math.exp(scores[d] / noise) for d in order]
        probability = math.prod(worth[i] / sum(worth[i:]) for i in range(4))
        given = {"window": 2, "sigma": 1.0, "decay": 0.9, "gain": linear, "weights": "gain", "ideal": 1.0}
        expected += probability * np.array(slow_gradients(order, ratings, scores, **given))
    objective = StochasticUMartObjective(window=2, noise=noise, decay=0.9, n_draws=400_000)
    found = np.array(objective.prepare(ratings, [0, 4]).gradients(scores))
    np.testing.assert_allclose(found, expected, atol=0.01)  # the standard error of a mean is below 0.002


@pytest.mark.parametrize("n", [2, 31, 319, 320, 321, 700])
def test_lists_of_any_length_agree_with_a_slow_twin(n):
    rng = np.random.default_rng(n)
    ratings, scores = rng.integers(0, 3, n).astype(float), rng.normal(size=n)
    found = StochasticUMartObjective(n_draws=2, seed=1).prepare(ratings, [0, n]).gradients(scores)
    given = {"window": 1, "sigma": 1.0, "decay": 0.99, "gain": linear, "weights": "gain", "ideal": 1.0}
    draws = [slow_gradients(order, ratings, scores, **given) for order in drawn_orders(scores, 1, 1.0, 2)]
    np.testing.assert_allclose(found, np.mean(draws, axis=0), rtol=2e-5, atol=1e-6)


@compiled
def take_logarithms(values: NDArray[np.float64], logarithms: NDArray[np.float64]) -> None:
    for i in range(len(values)):
        logarithms[i] = logarithm(values[i])


@compiled
def take_gumbels(bits: NDArray[np.uint64], values: NDArray[np.float64]) -> None:
    for i in range(len(bits)):
        values[i] = gumbel(bits[i])


@examples(200)
@given(st.lists(st.floats(np.finfo(float).tiny, allow_infinity=False), min_size=1, max_size=20))
def test_logarithms_are_right_to_twelve_digits(values):
    values = np.array([*values, 1.0, 1 - 2.0**-53, 1 + 2.0**-52, 2.0**-53, 0.5, math.sqrt(0.5), math.sqrt(2)])
    found = np.empty(len(values))
    take_logarithms(values, found)
    np.testing.assert_allclose(found, np.log(values), rtol=1e-12, atol=0)


def test_gumbel_noise_is_finite_and_has_its_distribution():
    ends = np.array([0, 1, (1 << 12) - 1, 1 << 12, MASK - (1 << 12), MASK], np.uint64)
    found = np.empty(len(ends))
    take_gumbels(ends, found)
    assert np.isfinite(found).all()
    assert found[0] == pytest.approx(-math.log(53 * math.log(2)))
    assert found[-1] == pytest.approx(53 * math.log(2))
    drawn = np.random.default_rng(0).integers(0, MASK, 100_000, dtype=np.uint64, endpoint=True)
    values = np.empty(len(drawn))
    take_gumbels(drawn, values)
    assert scipy.stats.kstest(values, "gumbel_r").pvalue > 1e-3  # of fixed numbers, so it cannot fail by chance


def test_a_window_of_one_is_the_pairwise_form_of_yetirank():
    """Neighbours a, a + 1 with different ratings: w = decay^a |r - r'|, p = 1 / (1 + e^(f - f'))."""
    ratings, scores = [0, 2, 1, 0, 1], [0.5, 0.1, 0.9, -0.3, 0.2]
    objective = StochasticUMartObjective(n_draws=4, seed=3).prepare(ratings, [0, 5])
    gradient, hessian = objective.gradients(scores)
    expected = np.zeros((2, 5))
    for order in drawn_orders(scores, 3, 1.0, 4):
        for a, (d, e) in enumerate(itertools.pairwise(order)):
            if ratings[d] != ratings[e]:
                high, low = (d, e) if ratings[d] > ratings[e] else (e, d)
                w, p = 0.99**a * abs(ratings[d] - ratings[e]) / 4, 1 / (1 + math.exp(scores[high] - scores[low]))
                expected[:, low] += w * p, w * p * (1 - p)
                expected[:, high] += -w * p, w * p * (1 - p)
    np.testing.assert_allclose([gradient, hessian], expected, rtol=1e-5, atol=1e-7)


def test_threads_and_other_queries_change_nothing():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 200)
    offsets = np.concatenate([[0], lengths.cumsum()])
    ratings, scores = rng.integers(0, 4, offsets[-1]), rng.normal(size=offsets[-1])
    one = StochasticUMartObjective(n_jobs=1).prepare(ratings, offsets).gradients(scores)
    several = StochasticUMartObjective(n_jobs=4).prepare(ratings, offsets).gradients(scores)
    for a, b in zip(one, several, strict=True):
        assert a.tobytes() == b.tobytes()
    start, end = offsets[100], offsets[101]
    alone = StochasticUMartObjective().prepare(ratings[start:end], [0, end - start]).gradients(scores[start:end])
    assert alone[0].tobytes() == one[0][start:end].tobytes()
    other = StochasticUMartObjective(seed=1).prepare(ratings, offsets).gradients(scores)
    assert not np.array_equal(other[0], one[0])


def test_a_ranker_with_noise_is_saved_and_ignores_the_order_of_rows(tmp_path):
    data = make_ranking(40, n_features=6, mean_length=12, max_length=20)
    train, valid = data.split(0.7, 0.3)
    ranker = UMart.from_preset("stochastic", n_trees=12, seed=3).fit(train, valid=valid)
    rows = np.random.default_rng(0).permutation(train.n_documents)
    qid = np.repeat(train.query_ids, train.lengths)
    shuffled = UMart.from_preset("stochastic", n_trees=12, seed=3).fit(
        train.features[rows], train.ratings[rows], qid[rows], valid=valid
    )
    assert shuffled.predict(valid).tobytes() == ranker.predict(valid).tobytes()
    ranker.save(tmp_path / "model")
    assert load(tmp_path / "model").predict(valid).tobytes() == ranker.predict(valid).tobytes()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"n_draws": 5}, r"n_draws: has no effect with noise=0, which draws no orders; leave out n_draws"),
        ({"decay": 0.5}, r"decay: has no effect with noise=0, which draws no orders"),
        ({"noise": 1, "weights": "none"}, r"weights: expected 'gain' or 'ndcg' with noise above 0, got 'none'"),
        ({"noise": 1, "truncation": 5}, r"truncation: has no effect with noise above 0; leave out truncation"),
        ({"noise": 1, "ties": "rows"}, r"ties: has no effect with noise above 0; leave out ties"),
        ({"noise": -1}, r"noise: expected a number >= 0, got -1"),
        ({"noise": 1, "n_draws": 0}, r"n_draws: expected an integer >= 1 and <= 1000000, got 0"),
        ({"noise": 1, "n_draws": 10**12}, r"n_draws: expected .* <= 1000000, got 1000000000000"),
        ({"noise": 1, "weights": "gain", "idcg_at": 5}, r"idcg_at: has no effect with weights='gain'"),
    ],
)
def test_settings_without_effect_are_refused(chosen, message):
    data = make_ranking(10, n_features=3, mean_length=5, max_length=8)
    with pytest.raises(ParameterError, match=message):
        UMart(n_trees=1, **chosen).fit(data)


def test_no_truncation_is_no_setting_without_effect():
    """None leaves out nothing, as noise does; models that were saved before truncation had a default have it."""
    data = make_ranking(10, n_features=3, mean_length=5, max_length=8)
    plain, without = (UMart(noise=1, n_trees=2, **chosen).fit(data) for chosen in ({}, {"truncation": None}))
    assert plain.predict(data).tobytes() == without.predict(data).tobytes()


def test_no_noise_is_umart():
    data = make_ranking(20, n_features=4, mean_length=8, max_length=12)
    assert (
        UMart(n_trees=3, noise=0).fit(data).predict(data).tobytes()
        == UMart(n_trees=3).fit(data).predict(data).tobytes()
    )
