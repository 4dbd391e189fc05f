"""Each rule against the tool that it is named after: values measured once, and the tools themselves, run here."""

import math
from itertools import chain

import numpy as np
import pytest

from tierank.data.dataset import RankingDataset
from tierank.metrics import RULES, Judge

# Six lists on which the tools were run; their figures below have four digits.
LISTS = [
    ([3, 2, 0, 1, 0], [0.9, 0.1, 0.8, 0.7, 0.6]),
    ([0, 2, 1, 0], [0.5, 0.5, 0.5, 0.1]),  # ties
    ([1, 2, 0, 0], [0.5, 0.5, 0.5, 0.1]),  # the same documents in another order
    ([0, 0, 0], [0.3, 0.2, 0.1]),  # nothing relevant
    ([2], [0.5]),
    ([4, 1, 3, 2, 2, 1, 0, 0, 0, 0, 1, 4], [12.0, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]),
]
NAN = math.nan
NDCG_3 = {
    "tierank": [0.7985, 0.7825, 0.7825, NAN, 1, 0.6841],
    "wsdm20": [0.7985, 0.6590, 0.7967, NAN, 1, 0.6841],
    "letor": [0.7985, 0.6590, 0.7967, 0, 1, 0.6841],
    "mslr": [0.7985, 0.6590, 0.7967, 0, 0, 0.6841],
    "lightgbm": [0.7985, 0.6590, 0.7967, 1, 1, 0.6841],
    "xgboost": [0.7985, 0.6590, 0.7967, 1, 1, 0.6841],
    "catboost": [0.7985, 0.5869, 0.5869, 1, 1, 0.6841],
    "sklearn": [0.7350, 0.8100, 0.8100, 0, 1, 0.7641],
    "trec_eval": [0.7350, 0.8597, 0.6697, 0, 1, 0.7641],
    "ranklib": [0.7985, 0.6590, 0.7967, 0, 1, 0.6841],
    "yahoo": [0.7985, 0.6590, 0.7967, 0.5, 1, 0.6841],
}


def joined(lists):
    ratings = np.concatenate([r for r, _ in lists])
    scores = np.concatenate([s for _, s in lists]).astype(float)
    lengths = [len(r) for r, _ in lists]
    return RankingDataset(np.zeros((len(ratings), 1)), ratings, np.repeat(np.arange(len(lists)), lengths)), scores


def measure(metric, rule, lists):
    data, scores = joined(lists)
    return Judge(data, metric, rule)(scores)[metric]


def draw_lists(seed, *, levels=5, tied, longest=30, n=40):
    """Random lists; their scores are whole numbers, so that tools with single precision see the same ties."""
    rng = np.random.default_rng(seed)
    lists = []
    for length in rng.integers(1, longest + 1, n):
        ratings = rng.integers(0, levels, length) * (rng.random(length) < 0.5)
        scores = rng.integers(0, 6, length) if tied else rng.permutation(length)
        lists.append((ratings, scores.astype(float)))
    return [*lists, (np.zeros(4, np.int64), np.arange(4.0))]


# The table of measured values


@pytest.mark.parametrize("rule", RULES)
def test_ndcg_of_the_six_lists(rule):
    np.testing.assert_array_equal(measure("ndcg@3", rule, LISTS).round(4), NDCG_3[rule])


def test_err_of_the_six_lists_with_a_top_rating_of_4():
    by_3, by_10 = ([0.4492, 0.1107, 0.1504, 0, 0.1875, 0.9480], [0.4690, 0.1107, 0.1504, 0, 0.1875, 0.9508])
    for rule in ("ranklib", "letor", "mslr", "yahoo"):
        np.testing.assert_array_equal(measure("err@3", rule, LISTS).round(4), by_3)
        np.testing.assert_array_equal(measure("err@10", rule, LISTS).round(4), by_10)
    assert measure("err@3", "letor", LISTS).mean().round(3) == 0.308


def test_err_of_the_six_lists_as_the_authors_of_wsdm20_take_it():
    # their script averages over all six lists, with 0 for the list that the rule leaves out
    assert round(np.nansum(measure("err@3", "wsdm20", LISTS)) / 6, 3) == 0.584


def test_map_of_the_six_lists():
    assert measure("map", "mslr", LISTS)[[0, 5]].round(4).tolist() == [0.7000, 0.7267]
    assert [measure("map@3", rule, LISTS)[5] for rule in ("lightgbm", "xgboost", "catboost")] == [1, 1, 1]
    assert measure("map@3", "trec_eval", LISTS)[5] == 0.375
    assert measure("map@3", "ranklib", LISTS)[5] == measure("map", "letor", LISTS)[5]
    for rule, empty in [("lightgbm", 1), ("xgboost", 1), ("catboost", 0), ("trec_eval", 0), ("ranklib", 0)]:
        assert measure("map", rule, LISTS)[3] == empty


def test_ndcg_10_of_a_list_that_is_shorter_under_mslr():
    assert measure("ndcg@10", "mslr", LISTS)[0] == 0
    assert measure("ndcg@10", "letor", LISTS)[0].round(4) == 0.9220


# Rules of papers and scripts, worked by hand


def test_wsdm20_by_hand():
    lists = [([0, 1], [1, 1]), ([3, 1], [1, 2]), ([0, 0], [1, 2])]
    ndcg = [1 / math.log2(3), (1 + 7 / math.log2(3)) / (7 + 1 / math.log2(3)), NAN]
    np.testing.assert_allclose(measure("ndcg@10", "wsdm20", lists), ndcg)
    # top rating 1 in the first query and 3 in the second
    np.testing.assert_allclose(measure("err@10", "wsdm20", lists), [1 / 4, 1 / 8 + 7 / 8 * 7 / 8 / 2, NAN])


def test_letor_by_hand():
    lists = [([0, 1], [1, 1]), ([3, 1], [1, 2]), ([0, 0], [1, 2])]
    np.testing.assert_allclose(measure("err@10", "letor", lists), [1 / 16, 1 / 8 + 7 / 8 * 7 / 8 / 2, 0])
    np.testing.assert_allclose(measure("map", "letor", lists), [1 / 2, 1, 0])
    np.testing.assert_allclose(measure("precision@5", "letor", lists), [1 / 5, 2 / 5, 0])


def test_mslr_by_hand():
    lists = [([2, 1, 2], [3, 2, 1]), ([1, 1], [1, 2])]
    best = 3 + 3 / math.log2(3) + 1 / 2
    np.testing.assert_allclose(measure("ndcg@3", "mslr", lists), [(3 + 1 / math.log2(3) + 3 / 2) / best, 0])
    np.testing.assert_allclose(measure("ndcg@4", "mslr", lists), [0, 0])
    np.testing.assert_allclose(measure("map", "mslr", lists), [(1 + 2 / 3) / 2, 0])
    np.testing.assert_allclose(measure("precision@5", "mslr", lists), [2 / 5, 0])


def test_yahoo_by_hand():
    lists = [([1, 0], [1, 2]), ([0, 0], [1, 2])]
    np.testing.assert_allclose(measure("ndcg@10", "yahoo", lists), [1 / math.log2(3), 0.5])
    np.testing.assert_allclose(measure("err@10", "yahoo", lists), [1 / 4, 0])


# The tools themselves


@pytest.mark.parametrize("k", [1, 3, 10, None])
@pytest.mark.parametrize("tied", [False, True])
def test_sklearn(k, tied):
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    lists = [(r, s) for r, s in [*LISTS, *draw_lists(1, tied=tied)] if len(r) > 1]  # it refuses lists of one
    metric = "ndcg" if k is None else f"ndcg@{k}"
    linear = [sklearn_metrics.ndcg_score([r], [s], k=k) for r, s in lists]
    np.testing.assert_allclose(measure(metric, "sklearn", lists), linear, atol=1e-12)
    exp2 = [sklearn_metrics.ndcg_score([2.0 ** np.asarray(r) - 1], [s], k=k) for r, s in lists]
    np.testing.assert_allclose(np.nan_to_num(measure(metric, "tierank", lists)), exp2, atol=1e-12)
    dcg = [sklearn_metrics.dcg_score([r], [s], k=k) for r, s in lists]
    np.testing.assert_allclose(measure(metric.replace("ndcg", "dcg"), "sklearn", lists), dcg, atol=1e-12)
    if not tied:
        unbroken = [sklearn_metrics.ndcg_score([r], [s], k=k, ignore_ties=True) for r, s in lists[5:]]
        np.testing.assert_allclose(measure(metric, "sklearn", lists)[5:], unbroken, atol=1e-12)


def test_trec_eval():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    lists = [*LISTS, *draw_lists(2, tied=True)]
    names = {
        "ndcg_cut.3": "ndcg@3",
        "ndcg": "ndcg",
        "map": "map",
        "map_cut.5": "map@5",
        "P.5": "precision@5",
        "recall.5": "recall@5",
        "recip_rank": "mrr",
    }
    ids = [[f"d{i}" for i in range(len(r))] for r, _ in lists]  # "d9" comes after "d10"
    rated = {str(q): dict(zip(ids[q], map(int, r), strict=True)) for q, (r, _) in enumerate(lists)}
    scored = {str(q): dict(zip(ids[q], map(float, s), strict=True)) for q, (_, s) in enumerate(lists)}
    found = pytrec_eval.RelevanceEvaluator(rated, set(names)).evaluate(scored)
    data, scores = joined(lists)
    data = RankingDataset(data.features, data.ratings, data.query_of_row, document_ids=list(chain(*ids)))
    ours = Judge(data, names.values(), "trec_eval")(scores)
    for theirs, metric in names.items():
        expected = [found[str(q)][theirs.replace(".", "_")] for q in range(len(lists))]
        np.testing.assert_allclose(ours[metric], expected, atol=1e-9)


def test_ir_measures():
    ir = pytest.importorskip("ir_measures")
    lists = draw_lists(3, tied=False)
    rows = [(str(q), i) for q, (ratings, _) in enumerate(lists) for i in range(len(ratings))]
    data, scores = joined(lists)
    rated = [ir.Qrel(q, f"d{i}", int(r)) for (q, i), r in zip(rows, data.ratings, strict=True)]
    scored = [ir.ScoredDoc(q, f"d{i}", float(s)) for (q, i), s in zip(rows, scores, strict=True)]
    names = {
        ir.nDCG @ 5: "ndcg@5",
        ir.AP: "map",
        ir.AP @ 5: "map@5",
        ir.P @ 5: "precision@5",
        ir.R @ 5: "recall@5",
        ir.RR: "mrr",
    }
    found = {(value.measure, value.query_id): value.value for value in ir.iter_calc(list(names), rated, scored)}
    for theirs, metric in names.items():
        expected = [found[theirs, str(q)] for q in range(len(lists))]
        np.testing.assert_allclose(measure(metric, "trec_eval", lists), expected, atol=1e-9)


@pytest.mark.filterwarnings("ignore")  # its compiled code warns about itself
def test_ranx_on_scores_without_ties():
    ranx = pytest.importorskip("ranx")
    lists = [(r, s) for r, s in draw_lists(4, tied=False) if np.any(r)]
    rated = ranx.Qrels({f"q{q:03}": {f"d{i}": int(v) for i, v in enumerate(r)} for q, (r, _) in enumerate(lists)})
    scored = ranx.Run({f"q{q:03}": {f"d{i}": float(v) for i, v in enumerate(s)} for q, (_, s) in enumerate(lists)})
    names = {
        "ndcg@5": "trec_eval",
        "ndcg_burges@5": "letor",
        "map": "trec_eval",
        "map@5": "trec_eval",
        "mrr": "letor",
        "precision@5": "letor",
    }
    found = ranx.evaluate(rated, scored, list(names), return_mean=False, threads=1)
    for theirs, rule in names.items():
        metric = theirs.replace("_burges", "")
        np.testing.assert_allclose(measure(metric, rule, lists), found[theirs], atol=1e-9)


@pytest.mark.parametrize("tied", [False, True])
def test_lightgbm(tied):
    lightgbm = pytest.importorskip("lightgbm")
    lists = [*LISTS, *draw_lists(5, tied=tied)]
    data, scores = joined(lists)
    # A model of no trees: the initial scores are all that its metrics see.
    rows = np.arange(data.n_documents, dtype=float)[:, None]
    params = {"objective": "lambdarank", "metric": ["ndcg", "map"], "eval_at": [1, 3, 10], "verbosity": -1}
    given = lightgbm.Dataset(rows, data.ratings, group=data.lengths, init_score=scores, params={"verbosity": -1})
    for _, metric, theirs, *_ in lightgbm.Booster(params, given).eval_train():
        assert measure(metric, "lightgbm", lists).mean() == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize(("metric", "levels"), [("ndcg", 5), ("ndcg@3", 5), ("map", 2), ("map@3", 2), ("pre@3", 2)])
@pytest.mark.parametrize("tied", [False, True])
def test_xgboost(metric, levels, tied):
    xgboost = pytest.importorskip("xgboost")
    lists = draw_lists(6, levels=levels, tied=tied)  # it takes two ratings only for map and precision
    data, scores = joined(lists)
    given = xgboost.DMatrix(data.features, label=data.ratings, group=data.lengths, base_margin=scores)
    booster = xgboost.Booster({"objective": "rank:ndcg", "eval_metric": metric, "nthread": 1}, [given])
    theirs = float(booster.eval(given).rpartition(":")[2])
    assert measure(metric.replace("pre", "precision"), "xgboost", lists).mean() == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize("tied", [False, True])
def test_catboost(tied):
    utils = pytest.importorskip("catboost.utils")
    lists = [*LISTS, *draw_lists(7, tied=tied)]
    data, scores = joined(lists)
    names = {
        "NDCG:type=Exp;top=3": "ndcg@3",
        "NDCG:type=Exp": "ndcg",
        "DCG:type=Exp;top=3": "dcg@3",
        "MAP:top=3": "map@3",
        "MAP": "map",
        "MRR": "mrr",
        "PrecisionAt:top=3": "precision@3",
        "RecallAt:top=3": "recall@3",
    }
    for theirs, metric in names.items():
        (expected,) = utils.eval_metric(data.ratings, scores, theirs, group_id=data.query_of_row, thread_count=1)
        assert measure(metric, "catboost", lists).mean() == pytest.approx(expected, abs=1e-12), metric
