"""Gradients for boosted trees: against slow twins, finite differences, LightGBM, and properties."""

import copy
import itertools
import json
import pickle
import time
from pathlib import Path

import lightgbm
import numpy as np
import pytest
import reference_objectives as reference
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from running import examples

import tierank
from tierank import paper
from tierank.data import relevance
from tierank.errors import DataError, ParameterError
from tierank.kernels.pairs import umart_gradients
from tierank.losses import OBJECTIVES, LambdaRankObjective, UMartObjective, umart

WINDOWS = [1, 2, 3, 10, None]
HESSIANS = ["code", "exact", "paper"]
WEIGHTS = ["ndcg", "gain", "none"]


def gradients(ratings, scores, offsets=None, *, row_weight=None, query_weight=None, **chosen):
    objective = UMartObjective(**chosen)
    objective.prepare(ratings, [0, len(ratings)] if offsets is None else offsets, row_weight, query_weight)
    return tuple(values.copy() for values in objective.gradients(scores))


def assert_same(got, expected, rtol=3e-7):
    """Equal up to rounding: a hessian is a difference of float64 sums that are as large as the gradient."""
    rounding = 0.0
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(np.abs(b).max(), 1e-30) + rounding)
        rounding = 32 * np.finfo(np.float64).eps * np.abs(b).max()


def queries(seed=0):
    """Ratings and scores of queries of many shapes: distinct scores, few scores, one score."""
    rng = np.random.default_rng(seed)
    for n, n_levels in [(2, 2), (3, 3), (7, 2), (12, 5), (23, 3), (31, 31)]:
        ratings = rng.integers(0, n_levels, n).astype(float)
        ratings[:2] = 0, 1
        for scores in (rng.normal(size=n), rng.integers(0, 3, n) / 2.0, np.full(n, 0.7)):
            yield ratings, scores


@pytest.mark.parametrize("ties", ["mean", "rows"])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize("window", WINDOWS)
def test_equals_the_slow_twin(window, hessian, weights, ties):
    for truncation in (None, 1, 4):
        for ratings, scores in queries():
            chosen = {"window": window, "hessian": hessian, "weights": weights, "ties": ties}
            chosen |= {"truncation": truncation, "idcg_at": truncation}
            assert_same(gradients(ratings, scores, **chosen), reference.umart(ratings, scores, **chosen))


# Gradients of the compiled objective of the paper's authors: a few queries here, all of them where they are at hand.
GOLDEN = [
    Path(__file__).parent / "golden_umart.json",
    Path(__file__).parents[2] / "shared/data/golden/umart_authors.json",
]


@pytest.mark.parametrize("file", GOLDEN, ids=["few", "all"])
def test_equals_the_program_of_the_authors(file):
    if not file.exists():
        pytest.skip("not at hand")
    for case in json.loads(file.read_text())["cases"]:
        got = gradients(case["ratings"], case["scores"], case["offsets"], idcg_at=20, ties="rows")
        assert_same(got, (case["gradient"], case["hessian"]), rtol=2e-4)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_sigma(sigma):
    for ratings, scores in queries(1):
        assert_same(gradients(ratings, scores, sigma=sigma), reference.umart(ratings, scores, sigma=sigma))


def test_one_pair_by_hand():
    # Ranks 2 and 1, gains 3 and 0: w = 3 (1 - 1/log2(3)) / (0.01 + 0.5) / 3, p' = 1 / (1 + e^-1).
    w, p = (1 - 1 / np.log2(3)) / 0.51, 1 / (1 + np.exp(-1))
    gradient, hessian = gradients([2, 0], [0.0, 0.5])
    np.testing.assert_allclose(gradient, [-2 * w * p, 2 * w * p], rtol=1e-6)
    np.testing.assert_allclose(hessian, [8 * w * p * (1 - p)] * 2, rtol=1e-6)


@pytest.mark.parametrize("weights", ["gain", "none"])
@pytest.mark.parametrize("window", WINDOWS)
def test_derivatives_of_the_windowed_loss(window, weights):
    sigma = 1.5

    def loss(ratings, scores):
        if weights == "gain":
            return paper.urank_loss(ratings, sigma * scores, window)
        pairs = [(sigma * scores[c], sigma * scores[b]) for c, b in paper.windows(ratings, scores, window)]
        return -sum(paper.plackett_luce(*pair).sum() for pair in pairs)

    for ratings, scores in queries(2):
        chosen = {"weights": weights, "hessian": "exact", "sigma": sigma, "ties": "rows"}
        leaf = torch.tensor(scores, requires_grad=True)
        (first,) = torch.autograd.grad(loss(torch.tensor(ratings), leaf), leaf, create_graph=True)
        second = [torch.autograd.grad(slope, leaf, retain_graph=True)[0][d].item() for d, slope in enumerate(first)]
        assert_same(gradients(ratings, scores, window=window, **chosen), (first.detach().numpy(), second), rtol=1e-6)


def lambdarank(ratings, sizes, scores, **chosen):
    """Gradient and hessian of LightGBM's lambdarank, from a tree with one leaf for each document.

    The tree is grown on the row numbers, and its leaves are filled again for lambdarank. The value v(l) of a leaf is
    -g / (h + l) with l the L2 penalty: h = v(1) / (v(0) - v(1)) and g = -v(0) h.
    """
    rows = np.arange(len(ratings), dtype=float)[:, None]
    parameters = {"num_leaves": len(ratings), "min_data_in_leaf": 1, "min_data_in_bin": 1, "learning_rate": 1.0}
    parameters |= {"verbose": -1, "num_threads": 1} | chosen
    tree = lightgbm.train(parameters, lightgbm.Dataset(rows, rows[:, 0], params=parameters), num_boost_round=1)
    assert sorted(tree.predict(rows, pred_leaf=True).ravel()) == sorted(range(len(ratings)))
    values = []
    for penalty in (0, 1):
        tree.params |= {"objective": "lambdarank", "lambda_l2": penalty}
        values.append(tree.refit(rows, ratings, decay_rate=0, group=sizes, init_score=scores).predict(rows))
    hessian = values[1] / (values[0] - values[1])
    return -values[0] * hessian, hessian


def lambdarank_case():
    rng = np.random.default_rng(5)
    sizes = np.array([6, 9, 4])
    ratings = np.array([0, 1, 2, 0, 3, 1, 4, 0, 0, 1, 2, 2, 0, 1, 3, 0, 1, 2, 1])
    return ratings, sizes, np.concatenate([[0], sizes.cumsum()]), rng.normal(size=len(ratings))


@pytest.mark.parametrize("truncation", [3, 30])
def test_first_round_is_that_of_lambdarank(truncation):
    ratings, sizes, offsets, _ = lambdarank_case()
    scores = np.zeros(len(ratings))
    expected = lambdarank(
        ratings, sizes, scores, sigmoid=1.5, lambdarank_norm=False, lambdarank_truncation_level=truncation
    )
    chosen = {"window": 1, "sigma": 1.5, "truncation": truncation, "idcg_at": truncation, "ties": "rows"}
    assert_same(gradients(ratings, scores, offsets, hessian="exact", **chosen), expected, rtol=2e-5)
    assert_same([gradients(ratings, scores, offsets, hessian="code", **chosen)[1] / 2], expected[1:], rtol=2e-5)


@pytest.mark.parametrize("scores", [[0.0, 0.0, 0.0, 0.0], [0.5, -1.0, 0.5, 0.5], [2.0, 2.0, -0.0, 0.0]])
def test_tied_scores_have_the_mean_of_lambdarank_over_all_orders(scores):
    ratings, scores = np.array([2, 0, 1, 0]), np.array(scores)
    total = np.zeros((2, 4))
    orders = list(itertools.permutations(range(4)))
    for order in orders:
        moved = np.array(order)
        total[:, moved] += lambdarank(ratings[moved], [4], scores[moved], lambdarank_norm=False)
    objective = LambdaRankObjective(norm=False).prepare(ratings, [0, 4])
    assert_same(objective.gradients(scores), total / len(orders), rtol=5e-5)


@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize("window", [1, None])
def test_tied_scores_have_the_expectation_over_all_orders(window, hessian):
    for ratings, scores in [
        ([2, 0, 1, 0, 1], [0.0, 0.0, 0.0, 0.0, 0.0]),
        ([3, 0, 1, 1, 0], [0.5, 0.5, -1.0, 0.5, -1.0]),
        ([0, 1, 2, 0, 2], [1e3, 1e3, 0.0, 0.0, 0.0]),
    ]:
        chosen = {"window": window, "hessian": hessian}
        assert_same(gradients(ratings, scores, **chosen), reference.umart_over_orders(ratings, scores, **chosen))


def test_one_high_document_does_not_silence_those_tied_beside_it():
    # The window of 2 at the edge holds e^20; of the 99 others p' is 1/3, and so is nearly the mean over the tie.
    ratings, scores = [1.0] + [0.0] * 101, [0.0, 10.0] + [0.0] * 100
    gradient, _ = gradients(ratings, scores, weights="none")
    np.testing.assert_allclose(gradient[2:], 2 * (99 / 100) / (1 + 2 * 99 / 100), rtol=2e-2)
    assert len(set(gradient[2:].tolist())) == 1


@pytest.mark.parametrize("truncation", [3, 30])
def test_later_rounds_are_those_of_lambdarank_up_to_a_factor_for_each_query(truncation):
    ratings, sizes, offsets, scores = lambdarank_case()
    expected = lambdarank(ratings, sizes, scores, sigmoid=2.0, lambdarank_truncation_level=truncation)
    chosen = {"window": 1, "hessian": "exact", "truncation": truncation, "idcg_at": truncation}
    got = gradients(ratings, scores, offsets, **chosen)
    for query in range(len(sizes)):
        rows = slice(offsets[query], offsets[query + 1])
        pairs = []
        reference.umart(ratings[rows].tolist(), scores[rows].tolist(), pairs=pairs, **chosen)
        factor = np.log2(1 + 2 * sum(pairs)) / (2 * sum(pairs))
        assert_same([values[rows] * factor for values in got], [values[rows] for values in expected], rtol=5e-5)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("truncation", [3, 30])
@pytest.mark.parametrize("label_gain", [None, [0, 1, 1, 5, 9]])
def test_lambdarank_is_that_of_lightgbm(norm, truncation, label_gain):
    ratings, sizes, offsets, scores = lambdarank_case()
    chosen = {"sigmoid": 1.5, "lambdarank_norm": norm, "lambdarank_truncation_level": truncation}
    expected = lambdarank(
        ratings, sizes, scores, **chosen, **({} if label_gain is None else {"label_gain": label_gain})
    )
    gain = "exp2" if label_gain is None else dict(enumerate(label_gain))
    objective = LambdaRankObjective(sigma=1.5, truncation=truncation, norm=norm, gain=gain)
    assert_same(objective.prepare(ratings, offsets).gradients(scores), expected, rtol=5e-5)


def test_lambdarank_of_scores_far_apart_is_levelled_too():
    ratings, _, offsets, scores = lambdarank_case()
    near, far = (LambdaRankObjective().prepare(ratings, offsets).gradients(scores * x)[0].copy() for x in (74.9, 75.1))
    assert np.ptp(scores) * 75 < 301  # on both sides of where the kernel changes its way
    assert_same([near], [far], rtol=2e-2)


@pytest.mark.parametrize(
    "offsets", [[0, -5_000_000, 10], [2, 5, 10], [0, 5, 3], [0, 2, 1, 10], [0], [[0, 10]], [0, 0, 10]]
)
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_offsets_are_checked_before_compiled_loops_see_them(name, offsets):
    with pytest.raises(DataError, match="offsets: expected 0 and then the end of each query, ascending"):
        OBJECTIVES[name](n_jobs=1).prepare(np.arange(10.0) % 3, offsets)


@pytest.mark.parametrize("name", ["lambdarank", "umart"])
def test_it_serves_the_ranker_of_lightgbm(name):
    data = tierank.make_ranking(20, n_features=4, mean_length=12, max_length=20)
    common = {"num_leaves": 7, "learning_rate": 0.1, "min_child_samples": 5, "verbosity": -1}
    ranker = lightgbm.LGBMRanker(objective=OBJECTIVES[name](), n_estimators=5, **common)
    ranker.fit(np.asarray(data.features), data.ratings, group=data.lengths)
    rows = lightgbm.Dataset(np.asarray(data.features), data.ratings, group=data.lengths)
    booster = lightgbm.train({"objective": OBJECTIVES[name](), **common, "min_data_in_leaf": 5}, rows, 5)
    np.testing.assert_array_equal(ranker.predict(data.features), booster.predict(data.features))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("spread", [149.0, 151.0, 1e4, 1e6])
def test_scores_far_apart(spread, window, weights):
    rng = np.random.default_rng(7)
    ratings = rng.integers(0, 4, 14).astype(float)
    scores = rng.uniform(-spread, spread, 14)
    scores[:4] = spread, spread, -spread, spread - 0.3
    for hessian in HESSIANS:
        chosen = {"window": window, "weights": weights, "hessian": hessian, "truncation": 9}
        got = gradients(ratings, scores, **chosen)
        assert all(np.isfinite(values).all() for values in got)
        assert_same(got, reference.umart(ratings, scores, **chosen))


def test_both_paths_agree_where_they_meet():
    ratings, scores = np.arange(40) % 4.0, np.random.default_rng(8).uniform(0, 1, 40)
    scores[:2] = 0, 1
    for window in WINDOWS:
        near = gradients(ratings, scores * 149.999, window=window, weights="none")
        far = gradients(ratings, scores * 150.001, window=window, weights="none")
        assert_same(near, far, rtol=1e-3)


@pytest.mark.parametrize("window", WINDOWS)
def test_high_and_fractional_ratings(window):
    ratings = np.array([1e6, 1e6 - 1, 3.5, 0, 1e6 - 1.5, 1e6])
    scores = np.linspace(0, 1, 6)
    got = gradients(ratings, scores, window=window)
    # Gains relative to the highest: 1,000,000 against 4 is 20 against 4 up to 2^-16, and nothing overflows.
    assert_same(got, reference.umart(np.array([40, 39, 3.5, 0, 38.5, 40]), scores, window=window), rtol=1e-6)


def test_many_levels_in_one_query():
    rng = np.random.default_rng(9)
    n = 3000
    ratings, scores = rng.permutation(n) % 1000 / 7.0, rng.normal(size=n)
    gradient, hessian = gradients(ratings, scores, window=10)
    assert np.isfinite(gradient).all()
    assert np.isfinite(hessian).all()
    assert gradient[ratings == ratings.max()].sum() < 0 < gradient[ratings == 0].sum()


def test_a_query_of_60000_documents():
    rng = np.random.default_rng(10)
    n = 60_000
    ratings = (rng.random(n) < 0.002).astype(float)
    gradient, hessian = gradients(ratings, rng.normal(size=n), window=None, truncation=100)
    assert abs(gradient.sum(dtype=float)) < 1e-3 * np.abs(gradient).sum()
    assert hessian.min() >= 0


some_scores = st.floats(-1e4, 1e4, width=32) | st.integers(-3, 3).map(float)
documents = st.lists(st.tuples(st.integers(0, 4), some_scores), min_size=1, max_size=30)
chosen_settings = st.fixed_dictionaries(
    {
        "window": st.sampled_from(WINDOWS),
        "hessian": st.sampled_from(HESSIANS),
        "weights": st.sampled_from(WEIGHTS),
        "truncation": st.sampled_from([None, 1, 5]),
    }
)


@examples(200)
@given(
    st.lists(st.tuples(st.integers(0, 12) | st.just(3), some_scores), min_size=2, max_size=14),
    st.integers(1, 14),
    st.sampled_from(["mean", "rows"]),
    chosen_settings,
)
@example([(3, 0.0), (0, 100.0)], 1, "mean", {"window": 1, "hessian": "code", "weights": "ndcg"})
def test_truncation_equals_the_slow_twin(rows, truncation, ties, chosen):
    ratings, scores = np.array(rows).T
    chosen |= {"truncation": truncation, "ties": ties}
    expected = reference.umart(ratings, scores, **chosen) if len(set(ratings)) > 1 else np.zeros((2, len(rows)))
    assert_same(gradients(ratings, scores, **chosen), expected)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("window", WINDOWS)
def test_a_long_tie_at_the_truncation_equals_the_slow_twin(window, weights):
    """As after the first tree: few scores, and more documents with one of them than are compared with all."""
    rng = np.random.default_rng(20)
    ratings, scores = rng.integers(0, 4, 70).astype(float), rng.integers(0, 3, 70) / 2.0
    for truncation in (1, 30, 60):
        chosen = {"window": window, "weights": weights, "truncation": truncation}
        assert_same(gradients(ratings, scores, **chosen), reference.umart(ratings, scores, **chosen))


def test_the_default_truncation_changes_longer_lists_alone_and_little():
    rng = np.random.default_rng(21)
    ratings, scores = rng.integers(0, 3, 2200).astype(float), rng.normal(size=2200)
    for n in (1999, 2000):
        for a, b in zip(
            gradients(ratings[:n], scores[:n]), gradients(ratings[:n], scores[:n], truncation=None), strict=True
        ):
            assert np.array_equal(a, b)
    with_all = gradients(ratings, scores, truncation=None)
    assert not np.array_equal(gradients(ratings, scores)[0], with_all[0])
    for a, b in zip(gradients(ratings, scores), with_all, strict=True):
        assert np.abs(a - b).max() < 1e-3 * np.abs(b).max()


@pytest.mark.parametrize("n_scores", [15, None], ids=["one tree", "all differ"])
@pytest.mark.parametrize("objective", [UMartObjective, LambdaRankObjective])
def test_time_is_not_quadratic_in_the_length_of_a_list(objective, n_scores):
    """CPU time of 16 times as many documents: linear is 16, quadratic 256."""

    def seconds(n):
        rng = np.random.default_rng(22)
        scores = rng.normal(size=n) if n_scores is None else rng.integers(0, n_scores, n) / 10
        prepared = objective(n_jobs=1).prepare(rng.integers(0, 3, n), [0, n])
        times = []
        for _ in range(5):
            start = time.process_time()
            prepared.gradients(scores)
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(128_000) < 80 * seconds(8_000)


@pytest.mark.parametrize(("ratings", "scores"), [([1], [3.0]), ([2, 2, 2], [1.0, 2.0, 3.0]), ([0, 0], [0.0, 0.0])])
def test_one_rating_has_no_gradient(ratings, scores):
    for weights in WEIGHTS:
        gradient, hessian = gradients(ratings, scores, weights=weights)
        assert not gradient.any()
        assert not hessian.any()


def many_queries(seed=11, n_queries=300):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], rng.integers(1, 90, n_queries).cumsum()])
    return rng.integers(0, 5, offsets[-1]), offsets, rng.normal(size=offsets[-1])


def test_same_bits_for_any_number_of_threads(monkeypatch):
    monkeypatch.setattr("tierank.losses.umart._PAIRS_PER_SPAN", 100)
    ratings, offsets, scores = many_queries()
    expected = gradients(ratings, scores, offsets, n_jobs=1)
    for n_jobs in (2, 3, 8, None):
        for a, b in zip(gradients(ratings, scores, offsets, n_jobs=n_jobs), expected, strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("size", [1, 40, 1000])
@pytest.mark.parametrize("gain", ["exp2", "linear", lambda ratings: ratings / ratings.max()])
def test_same_bits_for_any_number_of_queries_at_a_time(size, gain, monkeypatch):
    """The third gain is no function of one rating: it is asked once, for all of them."""
    data = tierank.make_ranking(30, n_features=2, mean_length=20, max_length=90, seed=2)
    scores = np.random.default_rng(0).normal(size=data.n_documents)
    expected = UMartObjective(gain=gain, n_jobs=1).prepare(data.ratings, data.offsets).gradients(scores)
    expected = [one.tobytes() for one in expected]
    asked, block = [], relevance.blocks_of
    monkeypatch.setattr(relevance, "_BLOCK", size)
    monkeypatch.setattr(umart, "blocks_of", lambda offsets: [asked.append(one) or one for one in block(offsets)])
    found = UMartObjective(gain=gain, n_jobs=1).prepare(data.ratings, data.offsets).gradients(scores)
    assert [one.tobytes() for one in found] == expected
    assert [rows.stop for _, rows, _ in asked][-1] == data.n_documents
    assert (len(asked) > 2) == (size < 1000)


def test_kept_order_changes_nothing():
    ratings, offsets, scores = many_queries()
    rng = np.random.default_rng(12)
    objective = UMartObjective(window=3).prepare(ratings, offsets)
    for change in (0.0, 0.01, 0.3, 5.0, 0.0):  # from nothing to repair to too much to repair
        scores = np.round(scores + change * rng.normal(size=len(scores)), 2)  # with ties
        for a, b in zip(objective.gradients(scores), gradients(ratings, scores, offsets, window=3), strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("ties", ["mean", "rows"])
@pytest.mark.parametrize(
    "moves",
    [
        lambda ranks: np.roll(ranks, 1),  # the last one becomes the first: further than neighbours are compared
        lambda ranks: np.roll(ranks, 100),
        lambda ranks: ranks[::-1],
        lambda ranks: ranks + np.where(ranks % 7 == 0, 21.5, 0),  # some jump, and pairs at most distances are in order
        lambda ranks: ranks // 3,  # ties that were none
    ],
)
def test_order_is_repaired_however_documents_move(moves, ties):
    """Rows that stand by score need no repair: so sorting the rows first shows what is right."""
    rng = np.random.default_rng(5)
    ratings, ranks = rng.integers(0, 4, 400), np.arange(400.0)
    rows = rng.permutation(400)  # of the documents, by rank
    objective = UMartObjective(ties=ties, window=3).prepare(ratings, [0, 400])
    scores = np.empty(400)
    for after in (ranks, moves(ranks)):
        scores[rows] = -after / 100
        got = objective.gradients(scores)
        order = np.lexsort([np.arange(400), -scores])
        expected = gradients(ratings[order], scores[order], ties=ties, window=3)
        for a, b in zip(got, expected, strict=True):
            assert np.array_equal(a[order], b)


def test_compiled_once():
    ratings, offsets, scores = many_queries(n_queries=5)
    scores.flags.writeable = False
    for chosen in ({}, {"window": None, "weights": "gain"}, {"hessian": "paper", "truncation": 3, "sigma": 1}):
        gradients(ratings, scores, offsets, **chosen)
        gradients(ratings, scores.astype(np.float32), offsets.tolist(), **chosen)
    assert len(umart_gradients.signatures) == 1


def test_weights_multiply():
    ratings, offsets, scores = many_queries(n_queries=20)
    rng = np.random.default_rng(13)
    rows, of_queries = rng.uniform(0, 3, len(ratings)), rng.uniform(0, 3, len(offsets) - 1)
    plain = gradients(ratings, scores, offsets)
    weighted = gradients(ratings, scores, offsets, row_weight=rows, query_weight=of_queries)
    scale = rows * np.repeat(of_queries, np.diff(offsets))
    assert_same(weighted, [values * scale for values in plain])


@pytest.mark.parametrize("gain", [{0: 0, 1: 1, 2: 3, 3: 7, 4: 15}, lambda ratings: 2**ratings - 1])
def test_gains_of_the_user(gain):
    ratings, offsets, scores = many_queries(n_queries=10)
    for weights in ("ndcg", "gain"):
        expected = gradients(ratings, scores, offsets, weights=weights)
        assert_same(gradients(ratings, scores, offsets, weights=weights, gain=gain), expected)


def test_linear_gain():
    linear = gradients([2, 1, 0], [0.0, 0.1, 0.2], gain="linear")
    assert_same(linear, gradients([2, 1, 0], [0.0, 0.1, 0.2], gain={0: 0, 1: 1, 2: 2}))


@examples(150)
@given(documents, chosen_settings)
def test_gradient_sums_to_zero_and_hessian_is_not_negative(rows, chosen):
    gradient, hessian = gradients([r for r, _ in rows], [s for _, s in rows], **chosen)
    assert abs(gradient.sum(dtype=float)) <= 1e-6 * np.abs(gradient).sum(dtype=float)
    assert (hessian >= 0).all()


@examples(100)
@given(documents, documents, chosen_settings)
def test_another_query_changes_nothing(rows, others, chosen):
    alone = gradients([r for r, _ in rows], [s for _, s in rows], **chosen)
    ratings, scores = zip(*others, *rows, *others, strict=True)
    offsets = np.cumsum([0, len(others), len(rows), len(others)])
    together = gradients(ratings, scores, offsets, **chosen)
    for a, b in zip(alone, together, strict=True):
        assert np.array_equal(a, b[offsets[1] : offsets[2]])


@examples(100)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-500, 500)), min_size=1, max_size=30), chosen_settings)
def test_a_shift_of_all_scores_changes_nothing(rows, chosen):
    ratings, scores = [r for r, _ in rows], np.array([s for _, s in rows]) / 64  # such sums are exact
    for a, b in zip(gradients(ratings, scores, **chosen), gradients(ratings, scores + 32, **chosen), strict=True):
        assert np.array_equal(a, b)


@examples(100)
@given(st.data(), chosen_settings)
def test_order_of_rows_changes_nothing(data, chosen):
    rows = data.draw(documents)
    order = data.draw(st.permutations(range(len(rows))))
    plain = gradients([r for r, _ in rows], [s for _, s in rows], **chosen)
    moved = gradients([rows[i][0] for i in order], [rows[i][1] for i in order], **chosen)
    for a, b in zip(plain, moved, strict=True):
        assert np.array_equal(a[order], b)


def lightgbm_data(weight=None):
    ratings, offsets, _ = many_queries(n_queries=40)
    X = np.random.default_rng(14).normal(size=(len(ratings), 4)) + ratings[:, None]
    return lightgbm.Dataset(X, ratings, group=np.diff(offsets), weight=weight, params={"verbose": -1}), ratings, offsets


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_lightgbm_trains_with_it(name):
    data, ratings, offsets = lightgbm_data()
    objective = OBJECTIVES[name]()
    parameters = {"verbose": -1, "num_threads": 1, "deterministic": True}
    model = lightgbm.train(parameters | {"objective": objective}, data, num_boost_round=5)
    prepared = OBJECTIVES[name]().prepare(ratings, offsets)
    booster = lightgbm.Booster(parameters | {"objective": "none"}, data)
    for _ in range(5):
        booster.update(fobj=prepared)
    assert model.model_to_string().split("parameters:")[0] == booster.model_to_string().split("parameters:")[0]
    assert model.num_trees() == 5


def test_it_takes_the_weights_of_lightgbm_and_notices_other_data():
    weight = np.random.default_rng(15).uniform(0.5, 2, len(lightgbm_data()[1])).astype(np.float32)
    weighted, ratings, offsets = lightgbm_data(weight)
    plain = lightgbm_data()[0]
    scores = np.random.default_rng(16).normal(size=len(ratings))
    objective = UMartObjective()
    for data, row_weight in ((weighted.construct(), weight), (plain.construct(), None), (weighted, weight)):
        assert_same(objective(scores, data), gradients(ratings, scores, offsets, row_weight=row_weight))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["copy", "pickle"])
def test_copies_carry_the_settings_alone(copied):
    objective = UMartObjective(window=None, hessian="exact", truncation=3).prepare([1, 0], [0, 2])
    twin = copied(objective)
    assert repr(twin) == repr(objective)
    with pytest.raises(DataError, match=r"expected prepare.* got no documents"):
        twin.gradients([0.0, 1.0])
    assert objective.gradients([0.0, 1.0])[0].any()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"window": 0}, r"window: expected an integer >= 1, or None \(all of them\), got 0"),
        ({"window": 2.5}, r"window: expected an integer >= 1, or None \(all of them\), got 2.5"),
        ({"window": True}, "window: expected an integer"),
        ({"truncation": -1}, "truncation: expected an integer"),
        ({"idcg_at": "10"}, r"idcg_at: expected an integer >= 1, or None \(all\), got '10'"),
        ({"sigma": 0}, "sigma: expected a number > 0, got 0"),
        ({"sigma": float("nan")}, "sigma: expected a number > 0, got nan"),
        ({"hessian": "exakt"}, "unknown hessian 'exakt': did you mean 'exact'"),
        ({"weights": "dcg"}, "unknown weights 'dcg': did you mean 'ndcg'"),
        ({"gain": "exp"}, "unknown gain 'exp': did you mean 'exp2'"),
    ],
)
def test_settings_that_cannot_be_used(chosen, message):
    with pytest.raises(ParameterError, match=message):
        UMartObjective(**chosen)


def test_data_that_cannot_be_used():
    objective = UMartObjective().prepare([1, 0], [0, 2])
    with pytest.raises(DataError, match=r"scores: expected 2, one per document, got shape \(3,\)"):
        objective.gradients([0.0, 1.0, 2.0])
    with pytest.raises(DataError, match="scores: expected finite numbers, got nan"):
        objective.gradients([0.0, np.nan])
    with pytest.raises(DataError, match=r"weights: expected weights='ndcg' for ratings with gains above 1e\+30.*5000"):
        UMartObjective(weights="gain").prepare([5000, 0], [0, 2])
    with pytest.raises(ParameterError, match="expected a gain for every rating of the data, got none for 2"):
        UMartObjective(gain={0: 0, 1: 1}).prepare([2, 0], [0, 2])
    with pytest.raises(ParameterError, match="expected finite gains that are not negative, got -1 for rating 1"):
        UMartObjective(gain=lambda ratings: -ratings).prepare([2, 1], [0, 2])
    with pytest.raises(DataError, match="dataset: expected groups, got none"):
        UMartObjective()(np.zeros(2), lightgbm.Dataset(np.eye(2), [0, 1], params={"verbose": -1}).construct())
