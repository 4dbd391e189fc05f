"""Metrics against their formulas: worked by hand, against slow twins, and by what must hold for any data."""

import doctest
import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import reference_metrics as slow
from hypothesis import assume, given
from hypothesis import strategies as st
from running import examples

import tierank
from tierank.data.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.kernels.ranking import discounted_sum, rank
from tierank.metrics import METRICS, RULES, Judge, Rule, default_metrics, parse_metric
from tierank.metrics.formulas import WITHOUT_CUTOFF

EXACT = pytest.approx
WITH_CUTOFF = [name for name in METRICS if name not in WITHOUT_CUTOFF]
ALL_AT = [f"{name}@{k}" for name in WITH_CUTOFF for k in (1, 2, 3, 10)] + list(METRICS)


def dataset(ratings, lengths=None, **more):
    lengths = [len(ratings)] if lengths is None else lengths
    return RankingDataset(np.zeros((len(ratings), 1)), ratings, np.repeat(np.arange(len(lengths)), lengths), **more)


def value(metric, ratings, scores, rule="tierank"):
    """A metric of one query."""
    (number,) = Judge(dataset(ratings), metric, rule)(scores)[metric]
    return number


GRADES, FEW = st.integers(0, 4), st.integers(0, 3)


def lists(rating=GRADES, score=FEW, longest=6):
    """Ratings and scores of one query; few different scores, so that most lists have ties."""
    pairs = st.lists(st.tuples(rating, score), min_size=1, max_size=longest)
    return pairs.map(lambda rows: tuple(zip(*rows, strict=True)))


def queries(**settings):
    return st.lists(lists(**settings), min_size=1, max_size=5)


def joined(parts):
    ratings = [r for part, _ in parts for r in part]
    scores = np.array([s for _, part in parts for s in part], dtype=float)
    return dataset(ratings, [len(part) for part, _ in parts]), scores


# Worked by hand


def test_ndcg_is_the_ratio_of_discounted_gains():
    # ranked: 0, 2, 1; the best order: 2, 1, 0
    expected = (3 / math.log2(3) + 1 / math.log2(4)) / (3 + 1 / math.log2(3))
    assert value("ndcg", [2, 0, 1], [2, 3, 1]) == EXACT(expected, abs=1e-15)
    assert value("ndcg@2", [2, 0, 1], [2, 3, 1]) == EXACT((3 / math.log2(3)) / (3 + 1 / math.log2(3)), abs=1e-15)
    assert value("ndcg@1", [2, 0, 1], [2, 3, 1]) == 0


def test_dcg_of_whole_ratings_is_exact():
    assert value("dcg@1", [3, 0], [1, 0]) == 7.0
    assert value("dcg", [3, 0, 1], [3, 2, 1]) == 7.5


def test_err_by_hand():
    # top rating 2: stops 1/4 and 3/4; ranked 1, 0, 2
    assert value("err", [2, 1, 0], [1, 3, 2]) == EXACT(1 / 4 + 1 / 3 * 3 / 4 * 3 / 4)
    assert value("err@2", [2, 1, 0], [1, 3, 2]) == EXACT(1 / 4)


def test_binary_metrics_by_hand():
    ratings, scores = [0, 1, 0, 2, 1], [5, 4, 3, 2, 1]
    assert value("precision@2", ratings, scores) == 1 / 2
    assert value("precision@10", ratings, scores) == 3 / 10
    assert value("precision", ratings, scores) == 3 / 5
    assert value("recall@4", ratings, scores) == EXACT(2 / 3)
    assert value("recall", ratings, scores) == 1
    assert value("mrr", ratings, scores) == 1 / 2
    assert value("mrr@1", ratings, scores) == 0
    assert value("map", ratings, scores) == EXACT((1 / 2 + 2 / 4 + 3 / 5) / 3)
    assert value("map@2", ratings, scores) == EXACT((1 / 2) / 2)


def test_tied_documents_count_with_their_mean_gain():
    # all orders of a relevant and an irrelevant document: NDCG 1 or 1/log2(3)
    assert value("ndcg", [1, 0], [7, 7]) == EXACT((1 + 1 / math.log2(3)) / 2)
    assert value("mrr", [1, 0], [7, 7]) == EXACT(3 / 4)
    assert value("map", [1, 0], [7, 7]) == EXACT(3 / 4)
    assert value("err", [1, 0], [7, 7]) == EXACT((1 / 2 + 1 / 4) / 2)
    assert value("precision@1", [1, 0], [7, 7]) == 1 / 2


@pytest.mark.parametrize(("ties", "first"), [("input", 2), ("worst", 0), ("document id", 1)])
def test_a_rule_that_breaks_ties_ranks_one_document_first(ties, first):
    rule = replace(RULES["tierank"], name="test", ties=ties, gain="linear")
    assert value("dcg@1", [2, 0, 1], [5, 5, 5], rule) == first


def test_worst_ties_follow_the_gain_and_not_the_rating():
    rule = replace(RULES["catboost"], name="test", gain={0: 5, 1: 1, 2: 3})
    assert value("dcg@1", [0, 1, 2], [5, 5, 5], rule) == 1


def test_document_ids_break_ties_as_bytes_do():
    data = dataset([1, 0, 2, 3], document_ids=["d10", "d9", "D11", "é"])
    judge = Judge(data, ["dcg@1", "dcg@2", "dcg@3"], replace(RULES["trec_eval"], name="test"))
    values = judge(np.zeros(4))
    assert values["dcg@1"] == 3  # é is the bytes c3 a9, after all of ASCII
    assert values["dcg@2"] == 3 + 0  # then d9
    assert values["dcg@3"] == 3 + 1 / 2  # then d10, and D11 last: capitals come first


def test_document_ids_break_ties_that_only_single_precision_makes():
    assert value("mrr", [1, 0], [1 + 1e-9, 1], "trec_eval") == 1 / 2
    assert value("mrr", [1, 0], [1 + 1e-9, 1], "letor") == 1


def test_ties_by_document_id_move_with_the_rows():
    rng = np.random.default_rng(3)
    ratings, qid, ids = rng.integers(0, 3, 40), rng.integers(0, 4, 40), np.arange(40)
    scores = rng.integers(0, 3, 40).astype(float)
    values = []
    for order in (np.arange(40), rng.permutation(40)):
        data = RankingDataset(np.zeros((40, 1)), ratings[order], qid[order], document_ids=[f"d{i}" for i in ids[order]])
        found = Judge(data, "ndcg", "trec_eval")(data.arrange(scores[order]))["ndcg"]
        values.append(dict(zip(data.query_ids.tolist(), found.tolist(), strict=True)))
    assert values[0] == values[1]


def test_hit_rate_f1_r_precision_and_auc_by_hand():
    ratings, scores = [0, 1, 0, 2, 1], [5, 4, 3, 2, 1]
    assert [value(f"hit_rate@{k}", ratings, scores) for k in (1, 2, 3)] == [0, 1, 1]
    assert value("f1@2", ratings, scores) == EXACT(2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
    assert value("f1", ratings, scores) == EXACT(2 * (3 / 5) * 1 / (3 / 5 + 1))
    assert value("rprec", ratings, scores) == EXACT(1 / 3)  # ranks 1 to 3 have one of three
    assert value("auc", ratings, scores) == EXACT(1 / 6)  # of 3 x 2 pairs, 4 > 3 alone is right
    assert value("auc", [1, 0], [7, 7]) == 1 / 2
    assert value("hit_rate@1", [1, 0, 0], [7, 7, 7]) == EXACT(1 / 3)
    assert value("auc", [1, 2], [1, 2]) == 1


@given(lists(rating=GRADES, score=FEW), st.integers(1, 7))
def test_hit_rate_f1_r_precision_and_auc_are_means_over_the_orders_of_ties(rows, k):
    ratings, scores = rows
    assume(any(ratings))
    for name, at, twin in (
        ("hit_rate", f"@{k}", lambda r: slow.hit_rate(r, k, slow.above_zero)),
        ("f1", f"@{k}", lambda r: slow.f1(r, k, slow.above_zero)),
        ("rprec", "", lambda r: slow.r_precision(r, slow.above_zero)),
        ("auc", "", lambda r: slow.auc(r, slow.above_zero)),
    ):
        assert value(name + at, ratings, scores) == EXACT(slow.expected(twin, ratings, scores), abs=1e-12)


# Rules: what each setting does


def test_empty_queries_get_what_the_rule_says():
    data = dataset([0, 0, 1], [2, 1])
    for rule, ndcg, map_ in [("tierank", math.nan, math.nan), ("letor", 0, 0), ("lightgbm", 1, 1), ("yahoo", 0.5, 0)]:
        values = Judge(data, ["ndcg@3", "map"], rule)([1, 2, 3])
        np.testing.assert_array_equal(values["ndcg@3"], [ndcg, 1])
        np.testing.assert_array_equal(values["map"], [map_, 1])


def test_left_out_queries_are_left_out_of_every_metric():
    values = Judge(dataset([0, 0, 1], [2, 1]), ALL_AT)([1, 2, 3])
    assert all(np.isnan(found[0]) and found[1] >= 0 for found in values.values())


def test_empty_is_a_matter_of_ratings_and_not_of_gains():
    rule = replace(RULES["tierank"], name="test", gain={0: 0, 1: 0, 2: 5})
    judge = Judge(dataset([0, 1, 2, 0, 0], [2, 2, 1]), ["ndcg", "dcg", "map", "recall@1", "mrr", "precision@1"], rule)
    values = judge([2, 1, 2, 1, 1])
    assert judge.n_empty == 1
    expected = {
        "ndcg": [0, 1],
        "dcg": [0, 5],
        "map": [1 / 2, 1],
        "recall@1": [0, 1],
        "mrr": [1 / 2, 1],
        "precision@1": [0, 1],
    }
    for metric, found in expected.items():
        np.testing.assert_array_equal(values[metric], [*found, np.nan], err_msg=metric)


def test_relevant_from():
    rule = replace(RULES["tierank"], name="test", relevant_from=2)
    assert value("precision@2", [1, 2], [2, 1], rule) == 1 / 2
    assert value("mrr", [1, 2], [2, 1], rule) == 1 / 2
    assert value("recall@1", [1, 2], [2, 1], rule) == 0
    assert value("map", [1, 1], [2, 1], rule) == 0  # rated, but nothing relevant


def test_ap_divisor():
    ratings, scores = [1, 0, 1, 1], [4, 3, 2, 1]
    assert value("map@2", ratings, scores) == 1 / 2
    assert value("map@2", ratings, scores, "trec_eval") == EXACT(1 / 3)
    assert value("map@2", ratings, scores, "ranklib") == value("map", ratings, scores) == EXACT((1 + 2 / 3 + 3 / 4) / 3)


def test_precision_divisor():
    assert value("precision@4", [1, 0], [2, 1], "letor") == 1 / 4
    assert value("precision@4", [1, 0], [2, 1], "xgboost") == 1 / 2


def test_short_lists_have_no_ndcg_under_mslr():
    assert value("ndcg@2", [1, 0], [2, 1], "mslr") == 1
    assert value("ndcg@3", [1, 0], [2, 1], "mslr") == 0
    assert value("ndcg", [1, 0], [2, 1], "mslr") == 1


def test_err_max():
    data = dataset([1, 0, 2, 0], [2, 2])
    scores = [2, 1, 2, 1]
    for err_max, stops in [("data", (1 / 4, 3 / 4)), ("query", (1 / 2, 3 / 4)), (4, (1 / 16, 3 / 16))]:
        rule = replace(RULES["tierank"], name="test", err_max=err_max)
        np.testing.assert_allclose(Judge(data, "err@1", rule)(scores)["err@1"], stops)


def test_custom_gains():
    table = replace(RULES["tierank"], name="table", gain={0: 0, 1: 1, 2: 10})
    square = replace(RULES["tierank"], name="square", gain=np.square)
    assert value("dcg@1", [2, 1], [2, 1], table) == 10
    assert value("dcg@1", [3, 1], [2, 1], square) == 9
    assert value("ndcg@1", [3, 1], [1, 2], square) == EXACT(1 / 9)


def test_a_gain_for_rating_zero_counts():
    rule = replace(RULES["tierank"], name="test", gain={0: 1, 1: 2})
    assert value("ndcg@1", [0, 1], [2, 1], rule) == 1 / 2


# Against the slow twins: every order of tied documents, averaged


@examples(60)
@given(lists(), st.integers(1, 7))
def test_averaged_ties_are_the_mean_over_all_orders(query, k):
    ratings, scores = query
    rule = replace(RULES["tierank"], name="test", empty={}, err_max=4)
    names = [f"{name}@{k}" for name in WITH_CUTOFF]
    found = {metric: float(v[0]) for metric, v in Judge(dataset(ratings), names, rule)(scores).items()}
    expected = {
        "ndcg": slow.expected(slow.ndcg, ratings, scores, k, slow.exp2),
        "dcg": slow.expected(slow.dcg, ratings, scores, k, slow.exp2),
        "err": slow.expected(slow.err, ratings, scores, k, 4),
        "map": slow.expected(slow.average_precision, ratings, scores, k, slow.above_zero),
        "mrr": slow.expected(slow.reciprocal_rank, ratings, scores, k, slow.above_zero),
        "precision": slow.expected(slow.precision, ratings, scores, k, slow.above_zero),
        "recall": slow.expected(slow.recall, ratings, scores, k, slow.above_zero),
        "hit_rate": slow.expected(slow.hit_rate, ratings, scores, k, slow.above_zero),
        "f1": slow.expected(slow.f1, ratings, scores, k, slow.above_zero),
        "rbp": slow.expected(slow.rbp, ratings, scores, k, slow.above_zero),
        "judged": 1.0,
        "rbp_residual": 0.8 ** min(k, len(ratings)),
    }
    assert found == {f"{name}@{k}": EXACT(v, abs=1e-12) for name, v in expected.items()}


@examples(40)
@given(lists(longest=12), st.integers(1, 13), st.sampled_from(["input", "worst", "document id"]))
def test_broken_ties_are_one_order(query, k, ties):
    ratings, scores = query
    key = {"input": lambda i: i, "worst": lambda i: ratings[i], "document id": lambda i: -i}[ties]
    order = [ratings[i] for i in sorted(range(len(ratings)), key=lambda i: (-scores[i], key(i)))]
    rule = replace(RULES["tierank"], name="test", empty={}, err_max=4, ties=ties)
    found = Judge(dataset(ratings), [f"ndcg@{k}", f"err@{k}", f"map@{k}", f"mrr@{k}"], rule)(scores)
    assert found[f"ndcg@{k}"][0] == EXACT(slow.ndcg(order, k, slow.exp2), abs=1e-12)
    assert found[f"err@{k}"][0] == EXACT(slow.err(order, k, 4), abs=1e-12)
    assert found[f"map@{k}"][0] == EXACT(slow.average_precision(order, k, slow.above_zero), abs=1e-12)
    assert found[f"mrr@{k}"][0] == EXACT(slow.reciprocal_rank(order, k, slow.above_zero), abs=1e-12)


@pytest.mark.parametrize(("m", "c"), [(50, 1), (50, 20), (300, 3), (7, 7)])
def test_reciprocal_rank_of_a_long_tie(m, c):
    # the first relevant of m in random order is at rank r with chance C(m - r, c - 1) / C(m, c)
    expected = sum(Fraction(math.comb(m - r, c - 1), math.comb(m, c)) / r for r in range(1, m - c + 2))
    assert value("mrr", [1] * c + [0] * (m - c), np.zeros(m)) == EXACT(float(expected), rel=1e-12)


def test_a_tie_of_very_many_documents():
    # with half of them relevant the first is at rank r with chance 2^-r, and the sum of 2^-r / r is ln 2
    assert value("mrr", [0, 1] * 250_000, np.zeros(500_000)) == EXACT(math.log(2), rel=1e-5)
    # a relevant one stops half of the readers: the sum of (3/4)^(r-1) / 4 / r is ln 4 / 3
    assert value("err", [0, 1] * 250_000, np.zeros(500_000)) == EXACT(math.log(4) / 3, rel=1e-5)


# Ranking: what is selected is what is sorted


def assert_ranked(scores, offsets, k, *, keep_ties):
    """What ``rank`` finds is what a stable sort of each query finds."""
    ranking = rank(scores, offsets, k, keep_ties=keep_ties, n_jobs=3)
    for (start, end), (first, last) in zip(pairwise(offsets), pairwise(ranking.starts), strict=True):
        rows = sorted(range(start, end), key=lambda row: -scores[row])
        ends = [sum(scores[start:end] >= scores[row]) if keep_ties else at for at, row in enumerate(rows, start=1)]
        depth = ends[min(k, len(rows)) - 1] if rows else 0
        assert ranking.rows[first:last].tolist() == rows[:depth]
        assert ranking.scores[first:last].tobytes() == scores[rows[:depth]].tobytes()
        assert ranking.tie_ends[first:last].tolist() == ends[:depth]


@pytest.mark.parametrize("k", [1, 5, 17, 40, 199, 1000])
@pytest.mark.parametrize("levels", [3, 10_000])
def test_selecting_the_top_agrees_with_sorting_it_all(k, levels):
    rng = np.random.default_rng(k)
    scores = rng.integers(0, levels, 1500).astype(float)
    offsets = np.array([0, 1, 1, 200, 600, 1500])  # a query of one document, and one of none
    assert_ranked(scores, offsets, k, keep_ties=True)
    assert_ranked(np.sort(scores), offsets, k, keep_ties=True)
    assert_ranked(-np.sort(-scores), offsets, k, keep_ties=True)


# A few scores, so that there are ties, among them all that compare oddly.
ODD = st.sampled_from([-np.inf, -1.5, -5e-324, -0.0, 0.0, 5e-324, 1.0, 1 + 2**-52, 1e308, np.inf])


@pytest.mark.parametrize("zeros", [(-0.0, 0.0), (0.0, -0.0)])
@pytest.mark.parametrize("keep_ties", [True, False])
def test_a_tie_at_the_last_rank_keeps_the_signs_of_zeros(zeros, keep_ties):
    assert_ranked(np.array([-np.inf] * 30 + [*zeros]), np.array([0, 32]), 1, keep_ties=keep_ties)
    assert_ranked(np.array([*zeros] + [-np.inf] * 62), np.array([0, 64]), 1, keep_ties=keep_ties)


@examples(100)
@given(st.data())
def test_the_top_of_any_scores_is_that_of_a_stable_sort(data):
    score = data.draw(st.sampled_from([ODD, st.floats(allow_nan=False), st.just(-np.inf)]))
    lengths = data.draw(st.lists(st.sampled_from([0, 1, 2, 31, 32, 33, 47, 63, 64, 65, 130]), min_size=1, max_size=5))
    n = sum(lengths)
    scores = np.array(data.draw(st.lists(score, min_size=n, max_size=n)), float)
    k, keep_ties = data.draw(st.sampled_from([1, 2, 11, 12, 13, 24, 25, 64, 200])), data.draw(st.booleans())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tierank.kernels.ranking._SHARE", data.draw(st.sampled_from([20, 200_000])))  # some threads, one
        assert_ranked(scores, np.concatenate([[0], np.cumsum(lengths)]), k, keep_ties=keep_ties)


@examples(60)
@given(st.data(), st.sampled_from([name + how for name in RULES for how in ("", ":condense")]), st.integers(1, 40))
def test_a_cutoff_reads_the_same_top_as_the_whole_list(data, rule, k):
    lengths = data.draw(st.lists(st.sampled_from([1, 5, 40, 75]), min_size=1, max_size=3))
    n = sum(lengths)
    rating = st.sampled_from([0.0, 0.0, 1.0, 2.0, 4.0, np.nan])
    ratings = np.array(data.draw(st.lists(rating, min_size=n, max_size=n)))
    ratings[0] = 1.0
    scores = np.array(data.draw(st.lists(ODD, min_size=n, max_size=n)))
    queries = dataset(ratings, lengths, document_ids=[f"d{i * 7919 % n}" for i in range(n)])
    parsed = RULES[rule.partition(":")[0]]
    names = [name for name in WITH_CUTOFF if name != "err" or parsed.err_max is not None]
    top = Judge(queries, [f"{name}@{k}" for name in names], rule)(scores)
    both = Judge(queries, [*(f"{name}@{k}" for name in names), "map", "bpref", "ndcg"], rule)(scores)
    for metric, values in top.items():
        np.testing.assert_allclose(values, both[metric], rtol=0, err_msg=metric)


def test_threads_change_nothing():
    rng = np.random.default_rng(0)
    data = dataset(rng.integers(0, 5, 200_000), [100] * 2000)
    scores = rng.normal(size=200_000).round(1)
    one, four = (Judge(data, ["ndcg@5", "map", "err"], n_jobs=n_jobs)(scores) for n_jobs in (1, 4))
    for metric in one:
        np.testing.assert_array_equal(one[metric], four[metric])


def test_infinite_scores_rank_first_and_last():
    assert value("dcg@1", [1, 2, 0], [-np.inf, np.inf, 5]) == 3
    assert value("mrr", [1, 0, 0], [-np.inf, np.inf, 5]) == EXACT(1 / 3)
    assert value("mrr@1", [1, 0, 0, 0], [-np.inf] * 4) == 1 / 4


def test_arrays_of_any_layout_are_taken(tmp_path):
    np.save(tmp_path / "ratings.npy", np.array([1.0, 0.0, 2.0]))
    ratings = np.load(tmp_path / "ratings.npy", mmap_mode="r")
    data = RankingDataset.from_parts(np.zeros((3, 1), np.float32), ratings, np.array([0, 3]), np.array([1]))
    scores = np.array([[1.0, 9.0], [2.0, 9.0], [3.0, 9.0]])[:, 0]
    scores.flags.writeable = False
    n_compiled = len(discounted_sum.signatures)
    assert Judge(data, "ndcg@1")(scores)["ndcg@1"] == 1
    assert len(discounted_sum.signatures) <= max(n_compiled, 1)


def test_negative_zero_ties_with_zero():
    assert value("mrr", [1, 0], [-0.0, 0.0]) == EXACT(3 / 4)


# What must hold for any data


@examples(50)
@given(queries(), st.sampled_from(sorted(RULES)))
def test_values_lie_between_0_and_1(parts, rule):
    data, scores = joined(parts)
    metrics = [m for m in ALL_AT if not m.startswith("dcg") and (RULES[rule].err_max or not m.startswith("err"))]
    for values in Judge(data, metrics, rule)(scores).values():
        known = values[~np.isnan(values)]
        assert ((known >= 0) & (known <= 1 + 1e-12)).all()


@examples(40)
@given(lists(longest=20), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter_when_ties_are_averaged(query, random):
    ratings, scores = (np.array(part) for part in query)
    order = np.array(random.sample(range(len(ratings)), len(ratings)))
    before, after = (Judge(dataset(ratings[o]), ALL_AT)(scores[o]) for o in (np.arange(len(ratings)), order))
    for metric in ALL_AT:
        np.testing.assert_allclose(before[metric], after[metric], atol=1e-12)


@examples(30)
@given(queries(score=st.integers(-50, 50)), st.sampled_from([np.arctan, np.exp, lambda s: 3 * s - 7]))
def test_only_the_order_of_the_scores_matters(parts, transform):
    data, scores = joined(parts)
    judge = Judge(data, ALL_AT)
    before, after = judge(scores), judge(transform(scores))
    for metric in ALL_AT:
        np.testing.assert_array_equal(before[metric], after[metric])


@examples(40)
@given(lists(rating=st.floats(0, 40)), st.integers(1, 6))
def test_a_perfect_ranking_has_ndcg_1_and_none_has_more_err(query, k):
    ratings, scores = query
    rule = replace(RULES["letor"], name="test", empty={"ndcg": 1})
    judge = Judge(dataset(ratings), [f"ndcg@{k}", f"err@{k}"], rule)
    best, other = judge(ratings), judge(scores)
    assert best[f"ndcg@{k}"] == EXACT(1.0, abs=1e-12)
    assert best[f"err@{k}"] >= other[f"err@{k}"] - 1e-12


@examples(30)
@given(queries())
def test_queries_are_independent(parts):
    rule = replace(RULES["tierank"], name="test", err_max=4)
    data, scores = joined(parts)
    together = Judge(data, ALL_AT, rule)(scores)
    alone = [Judge(dataset(r), ALL_AT, rule)(np.array(s, dtype=float)) for r, s in parts]
    for metric in ALL_AT:
        np.testing.assert_allclose(together[metric], [values[metric][0] for values in alone], atol=1e-13)


@examples(30)
@given(lists(longest=20))
def test_err_mrr_and_recall_never_fall_as_k_grows(query):
    ratings, scores = query
    rule = replace(RULES["tierank"], name="test", empty={})
    for name in ("err", "mrr", "recall", "dcg"):
        metrics = [f"{name}@{k}" for k in range(1, 22)]
        values = np.array([float(v[0]) for v in Judge(dataset(ratings), metrics, rule)(scores).values()])
        assert (np.diff(values) >= -1e-12).all()


@examples(40)
@given(lists(rating=st.one_of(st.floats(0, 1e6), st.floats(0, 1e-6), st.integers(0, 10**6))))
def test_ratings_of_any_size_have_finite_values(query):
    ratings, scores = query
    rule = replace(RULES["tierank"], name="test", empty={})
    for values in Judge(dataset(ratings), ["ndcg", "ndcg@1", "err", "err@3"], rule)(scores).values():
        assert np.isfinite(values).all()
        assert values[0] <= 1


def test_tiny_ratings_keep_their_ratio():
    # 2^r - 1 is r ln 2 for small r
    assert value("ndcg@1", [1e-12, 3e-12], [2, 1]) == EXACT(1 / 3, rel=1e-9)


def test_huge_ratings_keep_their_ratio():
    assert value("ndcg@1", [5000, 5001], [2, 1]) == EXACT(1 / 2)
    assert value("err@1", [5000, 5001], [2, 1]) == EXACT(1 / 2)


# Errors say what to do


def test_dcg_beyond_float64_is_refused():
    with pytest.raises(DataError, match=r"dcg: .* got ratings up to 2000; use ndcg"):
        value("dcg", [2000, 0], [1, 2])


def test_err_above_its_top_rating_is_refused():
    with pytest.raises(DataError, match="expected ratings up to 4 for err by rule 'ranklib', got 5") as refused:
        value("err", [5, 0], [1, 2], "ranklib")
    assert "replace(rule, err_max=" in refused.value.fix


def test_a_rule_without_err_names_those_with():
    with pytest.raises(ParameterError, match=r"with ERR: letor, mslr, ranklib, tierank.*, got 'lightgbm'") as refused:
        value("err", [1, 0], [1, 2], "lightgbm")
    assert refused.value.argument == "rule"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ndgc@10", r"unknown metric 'ndgc': did you mean 'ndcg'\?"),
        ("NDCG10", r"unknown metric 'NDCG10': did you mean 'ndcg@10'\?"),
        ("ndcg@0", r"expected a cutoff of 1 or more after '@', got '0'; write 'ndcg@10', or 'ndcg' for the whole list"),
        ("ndcg@x", "got 'x'"),
        ("ndcg@", "got ''"),
        ("ndcg@-1", "got '-1'"),
        ("ndcg@1.5", "got '1.5'"),
        ("", "unknown metric ''"),
    ],
)
def test_names_of_metrics_that_do_not_parse(text, message):
    with pytest.raises(ParameterError, match=message):
        parse_metric(text)


def test_metrics_are_named_in_any_case(tmp_path):
    data = tierank.make_ranking(24, n_features=3, mean_length=6, max_length=9)
    scores = data.features[:, 0]
    asked = [*(f"{name.upper()}{'' if name in WITHOUT_CUTOFF else '@3'}" for name in METRICS), "nDCG@10"]
    evaluation = tierank.evaluate(data, scores, asked)
    assert list(evaluation.per_query) == [name.lower() for name in asked]
    assert evaluation.to_dict() == tierank.evaluate(data, scores, [name.lower() for name in asked]).to_dict()
    assert evaluation.mean("NDCG@10") == evaluation.mean("ndcg@10")
    assert Judge(data, ["NDCG@3", "ndcg@3"]).metrics == ("ndcg@3",)
    comparison = tierank.compare(data, {"a": scores, "b": -scores}, metrics="NDCG@3")
    assert (comparison.metrics, comparison.best("NDCG@3")) == (("ndcg@3",), comparison.best("ndcg@3"))
    assert comparison.mark("b", "nDCG@3") == comparison.mark("b", "ndcg@3")
    assert tierank.scorer("NDCG@10").metric == "ndcg@10"
    train, valid, test = data.split(0.5, 0.25, 0.25)
    ranker = tierank.UMart(n_trees=2, select_by="NDCG@5, Map").fit(train, valid=valid)
    assert list(ranker.best_) == ["ndcg@5", "map"]
    run = tierank.cross_validate({"linear": tierank.LinearRanker()}, [(train, valid, test)], metrics="NDCG@5")
    assert run.metrics == ("ndcg@5",)
    assert run.judged_by("ERR@10").metrics == ("err@10",)


def test_callers_metrics_keep_their_case():
    def Ndcg(ratings, scores):
        return 1.0

    evaluation = tierank.evaluate(dataset([1, 0]), [1, 2], [Ndcg, "NDCG"])
    assert list(evaluation.per_query) == ["Ndcg", "ndcg"]
    assert evaluation.mean("Ndcg") == 1.0 > evaluation.mean("NDCG")


def test_metrics_are_named_once_and_at_least_one():
    assert Judge(dataset([1]), ["mrr", "map", "mrr"]).metrics == ("mrr", "map")
    assert Judge(dataset([1]), "mrr").metrics == ("mrr",)
    with pytest.raises(ParameterError, match="at least one"):
        Judge(dataset([1]), [])


def test_default_metrics_fit_the_rule():
    assert default_metrics("tierank") == ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10", "err@10")
    assert Judge(dataset([1]), rule="lightgbm").metrics == ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10")


def test_scores_that_cannot_be_used():
    data = RankingDataset(np.zeros((4, 1)), [1, 0, 1, 0], qid=["a", "b", "a", "b"])
    judge = Judge(data, "mrr")
    with pytest.raises(DataError, match=r"expected 4, one per row of the data, got shape \(3,\)"):
        judge([1, 2, 3])
    with pytest.raises(DataError, match="got NaN in row 2"):  # second in the data set, third of the caller
        judge([1, np.nan, 3, 4])
    with pytest.raises(DataError, match="scores: expected numbers, got 'a'"):
        judge(["a", "b", "c", "d"])


def test_data_without_ratings_cannot_be_judged():
    with pytest.raises(DataError, match="no ratings"):
        Judge(RankingDataset(np.zeros((2, 1))), "mrr")


@pytest.mark.parametrize(
    ("gain", "message"),
    [
        ({0: 0, 1: 1}, "got none for 2"),
        ({0: 0, 1: -1, 2: 1}, "finite gains that are not negative, got -1 for rating 1"),
        ({0: 0, 1: np.inf, 2: 1}, "got inf for rating 1"),
        (lambda r: 1.0, r"expected 3 gains for an array of 3 ratings, got shape \(\)"),
    ],
)
def test_gains_that_cannot_be_used(gain, message):
    with pytest.raises(ParameterError, match=message):
        value("ndcg", [0, 1, 2], [1, 2, 3], replace(RULES["tierank"], name="test", gain=gain))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ties": "avrage"}, "unknown ties 'avrage': did you mean 'average'"),
        ({"gain": "exp"}, "unknown gain 'exp'"),
        ({"err_max": "dataset"}, "unknown err_max 'dataset': did you mean 'data'"),
        ({"empty": {"ndgc": 0}}, "unknown metric 'ndgc': did you mean 'ndcg'"),
        ({"ap_divisor": "k"}, "unknown ap_divisor 'k'"),
    ],
)
def test_rules_that_cannot_be_used(settings, message):
    with pytest.raises(ParameterError, match=message):
        Rule(name="test", **settings)


def test_unknown_rules_are_refused():
    with pytest.raises(ParameterError, match=r"unknown rule 'lightgmb': did you mean 'lightgbm'\?"):
        value("ndcg", [1], [1], "lightgmb")


def test_every_rule_is_described():
    words = {name: rule.describe() for name, rule in RULES.items()}
    assert len(set(words.values())) == len(RULES)
    assert "ERR by the highest rating of the query" in words["wsdm20"]
    assert "count as ndcg 1, map 1, others 0" in words["lightgbm"]
    assert "ERR by a top rating of 4" in words["ranklib"]
    assert "NDCG@k of a list shorter than k is 0" in words["mslr"]
    assert "lower gain first" in words["catboost"]


def test_the_examples_of_the_docs():
    page = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
    assert all(f"\n| `{name}`" in page.read_text() for name in RULES)
    assert doctest.testfile(str(page), module_relative=False).failed == 0
