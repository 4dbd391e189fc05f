"""Unjudged documents in data and files, in metrics (against ir-measures and slow twins), and in training."""

import doctest
import math
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import reference_metrics as slow
from hypothesis import given
from hypothesis import strategies as st
from running import examples

import tierank
from tierank import Judge, RankingDataset, evaluate
from tierank.cli import main
from tierank.errors import DataError, ParameterError
from tierank.losses import LOSSES
from tierank.metrics import RULES
from tierank.rankers.base import Ranker
from tierank.rankers.model import FittedModel, Resources
from tierank.rankers.network_scoring import QueryLists
from tierank.transforms import QueryMinMax, add_query_copies, make_transform

NAN = math.nan
EXACT = pytest.approx


def dataset(ratings, lengths=None, **more):
    lengths = [len(ratings)] if lengths is None else lengths
    return RankingDataset(np.zeros((len(ratings), 1)), ratings, np.repeat(np.arange(len(lengths)), lengths), **more)


def value(metric, ratings, scores, rule="tierank"):
    (number,) = Judge(dataset(ratings), metric, rule)(scores)[metric]
    return number


def same(one, other):
    np.testing.assert_array_equal(one, other)  # NaN is NaN here


# Data


@pytest.mark.parametrize(
    "ratings",
    [[1, None, 0, NAN], np.ma.masked_array([1, 5, 0, 5], [0, 1, 0, 1]), np.array([1, -np.nan, 0, np.nan])],
)
def test_a_rating_that_is_missing_is_an_unjudged_document(ratings):
    data = RankingDataset(np.eye(4), ratings, qid=["b", "a", "b", "a"])
    assert repr(data) == "RankingDataset(2 queries, 4 documents, 4 features, ratings 0 to 1, 2 unjudged)"
    assert "0 to 1, 2 unjudged" in data._repr_html_()
    assert data.is_judged.tolist() == [True, True, False, False]
    assert data.tiers.tolist() == [0, 1, -1, -1]
    assert data.n_unjudged == 2
    assert len(set(data.ratings[2:].view(np.uint64).tolist())) == 1  # one kind of NaN: bits are compared
    assert data.select([1]).n_unjudged == 2
    judged = data.drop_unjudged()
    assert judged.query_ids.tolist() == ["b"]
    assert judged.features.tolist() == np.eye(4)[[0, 2]].tolist()
    assert RankingDataset.concat([data.select([0]), data.select([1])]).n_unjudged == 2


def test_columns_of_tables_have_unjudged_documents_too():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    columns = {"query": [1, 1, 2], "rating": [2, None, 0], "price": [1.0, 2.0, 3.0]}
    for table in (
        pandas.DataFrame(columns),
        pandas.DataFrame(columns).astype({"rating": "Int64"}),
        polars.DataFrame(columns),
        polars.DataFrame(columns).to_arrow(),
    ):
        same(tierank.read(table).ratings, [2, NAN, 0])


def test_data_without_any_judged_document():
    data = RankingDataset(np.eye(2), [None, None])
    assert repr(data).endswith("ratings 2 unjudged)")
    with pytest.raises(DataError, match="expected at least one document with a rating, got unjudged documents only"):
        data.drop_unjudged()
    with pytest.raises(DataError, match="got 1 with no rating above 0"):
        evaluate(data, [1, 2])
    with pytest.raises(DataError, match=r"^y: expected at least one document with a rating, got unjudged documents"):
        tierank.LinearRanker().fit(data)
    assert evaluate(data, [1, 2], ["ndcg", "judged", "err", "bpref"], "letor:condense").mean("judged") == 0


@pytest.mark.parametrize("name", ["d.txt", "d.txt.gz", "d.csv", "d.tsv", "d.parquet", "d.tierank"])
def test_files_keep_unjudged_documents(tmp_path, name):
    ratings, qid = [1.5, None, 0, None, 3], [7, 8, 7, 8, 9]
    data = RankingDataset(np.arange(10.0).reshape(5, 2), ratings, qid)
    tierank.write(data, tmp_path / name)
    read = tierank.read(tmp_path / name)
    same(read.ratings, [1.5, 0, NAN, NAN, 3])
    same(read.features, data.features)


def test_text_and_tables_say_unjudged_in_several_ways(tmp_path):
    (tmp_path / "d.txt").write_text("NaN qid:1 1:2\n2 qid:1 1:3\nNULL qid:1 1:4\nnan qid:1 1:5 # docid = x\n")
    same(tierank.read(tmp_path / "d.txt").ratings, [NAN, 2, NAN, NAN])
    (tmp_path / "d.csv").write_text("query,rating,f\n1,,2\n1,2,3\n1,NA,4\n1,nan,5\n")
    same(tierank.read(tmp_path / "d.csv").ratings, [NAN, 2, NAN, NAN])


def test_qrels_leave_unjudged_documents_out(tmp_path):
    tierank.write(dataset([1, NAN, 0], document_ids=["a", "b", "c"]), tmp_path / "d.qrels")
    assert (tmp_path / "d.qrels").read_text() == "0 0 a 1\n0 0 c 0\n"


def test_losses_and_objectives_take_no_unjudged_documents():
    from tierank.losses import Batch, UMartObjective

    with pytest.raises(DataError, match="y, row 1: expected a rating, got NaN, an unjudged document"):
        Batch([0, 2], [1, NAN])
    with pytest.raises(DataError, match="y, row 0: expected a rating, got NaN, an unjudged document"):
        UMartObjective().prepare([NAN, 1], [0, 2])


def test_a_description_counts_them():
    data = dataset([0, 2, NAN, NAN, NAN, 1], [3, 2, 1])
    found = tierank.describe(data)
    assert (found.n_documents, found.n_unjudged, found.lowest_share) == (6, 3, 1 / 3)
    assert found.documents_per_rating == {0.0: 1, 1.0: 1, 2.0: 1}
    assert (found.n_empty_queries, found.n_single_rating_queries, found.max_documents) == (1, 2, 3)
    assert found.to_dict()["n_unjudged"] == 3
    assert tierank.describe(data, data).drift is not None


# Metrics, worked by hand


def test_bpref_by_hand():
    # R = 2, N = 2; one judged document that is not relevant above the first relevant one, two above the second
    assert value("bpref", [0, 1, NAN, 0, 2], [5, 4, 3, 2, 1]) == EXACT(((1 - 1 / 2) + (1 - 2 / 2)) / 2)
    assert value("bpref", [NAN, NAN, 1, NAN], [4, 3, 2, 1]) == 1
    # R = 1, N = 3: min(above, R) / min(R, N)
    assert value("bpref", [0, 0, 0, 1], [4, 3, 2, 1]) == 0
    # a tie of a relevant and two other documents: 0, 1 or 2 above it, with R = 1
    assert value("bpref", [0, 0, 1], [1, 1, 1]) == EXACT((1 + 0 + 0) / 3)
    with pytest.raises(ParameterError, match="metric 'bpref@5': expected 'bpref', which has no cutoff"):
        value("bpref@5", [1], [1])


def test_rbp_and_its_residual_by_hand():
    ratings, scores = [1, NAN, 0, 2], [4, 3, 2, 1]
    half = replace(RULES["tierank"], name="test", persistence=0.5)
    assert value("rbp", ratings, scores, half) == EXACT(0.5 + 0.5**4)
    assert value("rbp@3", ratings, scores, half) == EXACT(0.5)
    assert value("rbp_residual", ratings, scores, half) == EXACT(0.25 + 0.5**4)
    assert value("rbp_residual@1", ratings, scores, half) == EXACT(0.5)
    assert value("rbp_residual@99", ratings, scores, half) == EXACT(0.25 + 0.5**4)
    assert value("rbp", ratings, scores, "tierank:condense") == EXACT(0.2 * (1 + 0.8**2))
    assert "RBP with persistence 0.5" in half.describe()
    with pytest.raises(ParameterError, match="persistence: expected a number > 0 and < 1, got 1"):
        replace(half, persistence=1)


def test_judged_is_the_share_of_judged_documents():
    assert value("judged@2", [1, NAN, NAN], [3, 2, 1]) == 1 / 2
    assert value("judged@9", [1, NAN, NAN], [3, 2, 1]) == EXACT(1 / 3)
    assert value("judged@1", [1, NAN], [1, 1]) == 1 / 2
    data = dataset([0, 0, NAN, 1], [3, 1])
    assert Judge(data, "judged", "letor")([1, 2, 3, 4])["judged"].tolist() == [EXACT(2 / 3), 1]
    same(Judge(data, "judged")([1, 2, 3, 4])["judged"], [NAN, 1])


def test_condensed_lists_are_lists_without_the_unjudged():
    ratings, scores = [0, NAN, 2, NAN, 1], [1, 5, 3, 2, 4]
    judged = [0, 2, 1], [1, 3, 4]
    for metric in ("ndcg@2", "err@2", "map@2", "mrr", "precision@2", "recall@2", "dcg@2", "rbp@2", "bpref"):
        assert value(metric, ratings, scores, "tierank:condense") == value(metric, *judged)
        assert value(metric, ratings, scores) == value(metric, [0, 0 if metric != "bpref" else NAN, 2, 0, 1], scores)
    for metric in ("judged@2", "rbp_residual@2"):
        assert value(metric, ratings, scores, "tierank:condense") == value(metric, ratings, scores) != 1


def test_functions_of_callers_see_what_the_rule_says():
    seen = {}

    def first(ratings, scores):
        seen[len(ratings)] = ratings.tolist()
        return float(ratings[0])

    data = dataset([NAN, 2, NAN, 1], [3, 1])
    assert Judge(data, first)([1, 2, 3, 4])["first"].tolist() == [0, 1]
    assert Judge(data, first, "tierank:condense")([1, 2, 3, 4])["first"].tolist() == [2, 1]
    assert seen == {3: [0, 2, 0], 1: [1]}


def test_a_rule_with_condensed_lists_has_a_name_and_says_so():
    assert evaluate(([1, NAN, 0], [1, 1, 1]), [3, 2, 1], "ndcg", "letor:condense").rule.name == "letor:condense"
    with pytest.raises(ParameterError, match="unknown unjudged 'drop'"):
        evaluate(([1, 0], [1, 1]), [2, 1], rule="letor:drop")
    with pytest.raises(ParameterError, match="unknown rule 'lettor:condense'"):
        evaluate(([1, 0], [1, 1]), [2, 1], rule="lettor:condense")


def test_tables_say_how_many_documents_are_unjudged():
    data = ([1, NAN, 0, NAN], [1, 1, 1, 2])
    text = str(evaluate(data, [4, 3, 2, 1], ["ndcg", "judged"]))
    assert "1 query; 1 left out: no rating above 0; 2 documents unjudged: taken as 0" in text
    condensed = evaluate(data, [4, 3, 2, 1], ["ndcg", "judged"], "tierank:condense")
    assert "2 documents unjudged: left out" in condensed._repr_html_()
    assert condensed.to_dict()["n_unjudged"] == 2
    assert "unjudged documents left out" in condensed.rule.describe()
    found = tierank.compare(data, {"a": [4, 3, 2, 1], "b": [1, 2, 3, 4]}, metrics=["bpref", "ndcg@2"])
    assert "2 documents unjudged: taken as 0" in found.describe_queries()


# Against slow twins


MAYBE = st.one_of(st.none(), st.integers(0, 3))
lists = st.lists(st.tuples(MAYBE, st.integers(0, 3)), min_size=1, max_size=6).map(lambda rows: zip(*rows, strict=True))


@examples(60)
@given(lists, st.integers(1, 7))
def test_metrics_with_ties_are_means_over_all_orders(pairs, k):
    ratings, scores = pairs
    rule = replace(RULES["tierank"], name="test", empty={}, persistence=0.6)
    names = ["bpref", f"rbp@{k}", f"rbp_residual@{k}", f"judged@{k}"]
    found = {name: values[0] for name, values in Judge(dataset(list(ratings)), names, rule)(scores).items()}
    n = len(ratings)

    def residual(order):
        unknown = sum(0.4 * 0.6**i for i, r in enumerate(order[:k]) if r is None)
        return unknown + 0.6 ** min(k, n)

    def share(order):
        return sum(r is not None for r in order[:k]) / min(k, n)

    relevant = lambda r: r is not None and r > 0  # noqa: E731
    assert found["bpref"] == EXACT(slow.expected(slow.bpref, ratings, scores, slow.above_zero), abs=1e-12)
    assert found[f"rbp@{k}"] == EXACT(slow.expected(slow.rbp, ratings, scores, k, relevant, 0.6), abs=1e-12)
    assert found[f"rbp_residual@{k}"] == EXACT(slow.expected(residual, ratings, scores), abs=1e-12)
    assert found[f"judged@{k}"] == EXACT(slow.expected(share, ratings, scores), abs=1e-12)


# Against peers


def draw_pools(seed):
    """Lists of which a part is judged; every query has a relevant document, and no scores are tied."""
    rng = np.random.default_rng(seed)
    pools = []
    for _ in range(25):
        n = int(rng.integers(3, 30))
        ratings = np.where(rng.random(n) < 0.5, NAN, rng.integers(0, 4, n))
        ratings[rng.integers(n)] = rng.integers(1, 4)
        pools.append((ratings, rng.permutation(n) / 3.0))
    return pools


def as_trec(pools):
    rated = {f"q{q}": {f"d{i:02}": int(r) for i, r in enumerate(rs) if r == r} for q, (rs, _) in enumerate(pools)}
    scored = {f"q{q}": {f"d{i:02}": float(s) for i, s in enumerate(ss)} for q, (_, ss) in enumerate(pools)}
    ratings, scores = (np.concatenate(part) for part in zip(*pools, strict=True))
    ids = list(chain(*([f"d{i:02}" for i in range(len(rs))] for rs, _ in pools)))
    return rated, scored, dataset(ratings, [len(rs) for rs, _ in pools], document_ids=ids), scores


def test_against_ir_measures():
    ir = pytest.importorskip("ir_measures")
    pytest.importorskip("pytrec_eval")
    rated, scored, data, scores = as_trec(draw_pools(0))
    names = {
        "trec_eval": {
            ir.nDCG @ 5: "ndcg@5",
            ir.AP: "map",
            ir.P @ 5: "precision@5",
            ir.Bpref: "bpref",
            ir.Judged @ 5: "judged@5",
            ir.Judged @ 100: "judged@100",
        },
        "trec_eval:condense": {
            ir.nDCG(judged_only=True) @ 5: "ndcg@5",
            ir.nDCG(judged_only=True): "ndcg",
            ir.AP(judged_only=True): "map",
            ir.P(judged_only=True) @ 5: "precision@5",
            ir.RR(judged_only=True): "mrr",
            ir.Judged @ 5: "judged@5",
        },
    }
    for rule, own in names.items():
        found = {(one.measure, one.query_id): one.value for one in ir.iter_calc(list(own), rated, scored)}
        ours = Judge(data, own.values(), rule)(scores)
        for theirs, metric in own.items():
            expected = [found[theirs, f"q{q}"] for q in range(data.n_queries)]
            np.testing.assert_allclose(ours[metric], expected, atol=1e-9)


def test_rbp_against_cwl_eval():
    ir = pytest.importorskip("ir_measures")
    pytest.importorskip("cwl")
    rated, scored, data, scores = as_trec(draw_pools(1))
    for p in (0.5, 0.8, 0.95):
        measure = ir.RBP(rel=1, p=p)
        found = {one.query_id: one.value for one in ir.iter_calc([measure], rated, scored)}
        ours = Judge(data, "rbp", replace(RULES["trec_eval"], name="test", persistence=p))(scores)["rbp"]
        np.testing.assert_allclose(ours, [found[f"q{q}"] for q in range(data.n_queries)], atol=1e-9)


# Training


def pooled(seed=0, n_queries=30):
    """Data with unjudged documents in most queries, and one query without any other."""
    made = tierank.make_ranking(n_queries, n_features=4, mean_length=10, max_length=20, seed=seed)
    ratings = np.where(np.random.default_rng(seed).random(made.n_documents) < 0.3, NAN, made.ratings)
    ratings[made.offsets[2] : made.offsets[3]] = NAN
    return made.replace(ratings=ratings)


SMALL = {"n_trees": 3, "max_epochs": 1, "n_learners": 2, "n_configs": 1, "n_seeds": 1, "rotate": False}


def small(name, **more):
    kind = tierank.RANKERS[name]
    return kind(**{key: one for key, one in SMALL.items() if key in kind.declared_settings()} | more)


@pytest.mark.parametrize("name", sorted(tierank.RANKERS))
def test_every_ranker_learns_beside_unjudged_documents(name):
    train, valid = pooled().split(0.7, 0.3)
    ranker = small(name).fit(train, valid=valid)
    assert np.isfinite(ranker.predict(train)).all()
    assert all(np.isfinite(value) for value in ranker.best_.values() if isinstance(value, float))


@pytest.mark.parametrize("name", ["umart", "urank", "linear"])
def test_zero_takes_unjudged_documents_as_rated_0(name):
    data = pooled()
    filled = data.replace(ratings=np.nan_to_num(data.ratings))
    zero, plain = small(name, unjudged="zero").fit(data), small(name).fit(filled)
    same(zero.predict(data), plain.predict(data))
    assert not np.array_equal(zero.predict(data), small(name).fit(data).predict(data))


@pytest.mark.parametrize("name", ["umart", "lambdamart"])
def test_trees_that_skip_grow_as_if_unjudged_documents_were_not_there(name):
    data = pooled()
    np.testing.assert_allclose(
        small(name).fit(data).predict(data), small(name).fit(data.drop_unjudged()).predict(data), atol=1e-9
    )


def test_copies_within_the_query_are_made_of_whole_lists():
    data = pooled()
    skipped = small("umart", query_features=True).fit(data).predict(data)
    copied = add_query_copies(data, 1)
    expected = small("umart").fit(copied.drop_unjudged()).predict(copied)
    np.testing.assert_allclose(skipped, expected, atol=1e-9)
    alone = small("umart", query_features=True).fit(data.drop_unjudged()).predict(data)
    assert not np.allclose(skipped, alone)


def test_linear_rankers_scale_by_whole_lists():
    data = pooled()
    data = data.select(np.logical_or.reduceat(data.is_judged, data.offsets[:-1]))
    scaled = data.with_features(QueryMinMax().fit_transform(data), None)
    plain = {"ridge": 0.1, "feature_transform": "none"}
    ranker = tierank.LinearRanker(**plain | {"feature_transform": "query_minmax"}).fit(data)
    expected = tierank.LinearRanker(**plain).fit(scaled.drop_unjudged())
    np.testing.assert_allclose(ranker.coef_, expected.coef_, rtol=1e-4)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_losses_of_networks_see_judged_documents_scaled_by_whole_lists(loss):
    data = pooled(n_queries=6)
    data = data.select(np.logical_or.reduceat(data.is_judged, data.offsets[:-1]))
    transform = make_transform("query_minmax").fit(data)
    lists = QueryLists(data, transform, True, "exp2", Resources(1), judged_only=True)
    every = np.arange(data.n_queries)[::-1]
    import torch

    features, batch = lists.batch(torch.from_numpy(every.copy()))
    rows = lists.order[batch.rows.numpy()]
    assert sorted(rows.tolist()) == np.flatnonzero(data.is_judged).tolist()
    same(features.numpy(), transform.apply(data.features, data.offsets)[rows])
    same(batch.ratings.numpy(), data.ratings[rows])
    batch.generator = torch.Generator().manual_seed(0)
    assert torch.isfinite(LOSSES[loss](torch.zeros(batch.n_documents), batch)).all()


def test_scores_of_networks_are_of_all_documents():
    data = pooled()
    ranker = small("urank").fit(data)
    bare = RankingDataset.from_parts(data.features, None, data.offsets, data.query_ids)
    same(ranker.predict(data), ranker.predict(bare))


@pytest.mark.parametrize("name", ["umart", "linear", "urank"])
def test_the_order_of_rows_does_not_matter(name):
    data = pooled()
    qid = np.repeat(data.query_ids, data.lengths)
    order = np.random.default_rng(3).permutation(data.n_documents)
    one = small(name).fit(data.features, data.ratings, qid)
    other = small(name).fit(data.features[order], data.ratings[order], qid[order])
    same(one.predict(data), other.predict(data))


def test_rounds_are_chosen_by_metrics_that_know_unjudged_documents():
    train, valid = pooled().split(0.7, 0.3)
    metrics = ["bpref", "ndcg@5"]
    for rule in ("tierank", "tierank:condense"):
        ranker = tierank.UMart(n_trees=6, select_by=metrics, rule=rule).fit(train, valid=valid)
        assert ranker.best_ == EXACT({m: evaluate(valid, ranker.predict(valid), m, rule).mean(m) for m in metrics})


def test_means_of_texts_are_those_of_judged_documents():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    table = pandas.DataFrame({"query": np.arange(200) // 5, "shop": rng.choice(["a", "b", "c"], 200)})
    table["rating"] = np.where(rng.random(200) < 0.4, np.nan, rng.integers(0, 3, 200))
    columns = tierank.Columns(means=["shop"])
    ranker = small("umart").fit(tierank.read(table, columns=columns))
    assert np.isfinite(ranker.predict(tierank.read(table, columns=columns))).all()
    kept = table.dropna()
    expected = small("umart").fit(tierank.read(kept, columns=columns))
    assert ranker.seen_.columns.kinds["shop"].means == EXACT(expected.seen_.columns.kinds["shop"].means)


@dataclass(kw_only=True, eq=False, repr=False)
class Mean(Ranker):
    """A ranker of a user, which knows nothing of unjudged documents."""

    def fit_model(self, train, valid, context):
        for data in (train, valid):
            assert np.isfinite(data.ratings).all()
        return MeanModel(float(train.ratings.mean()))


class MeanModel(FittedModel):
    def __init__(self, mean):
        self.mean, self.history, self.best = mean, [], {}

    def predict(self, data, resources):
        return np.full(data.n_documents, self.mean)


def test_rankers_of_users_are_given_judged_documents_only():
    train, valid = pooled().split(0.7, 0.3)
    ranker = Mean().fit(train, valid=valid)
    assert ranker.predict(train)[0] == EXACT(np.nanmean(train.ratings))


@pytest.mark.parametrize("shown", [{"position": [1, 2, 1, 2]}, {"propensity": [1.0, 0.5, 1.0, 0.5]}])
def test_clicks_are_1_or_0(shown):
    with pytest.raises(DataError, match=r"y: expected 1 or 0 for every document .*, got 1 unjudged documents"):
        tierank.UMart().fit(np.eye(4), [1, 0, None, 1], [1, 1, 2, 2], **shown)
    with pytest.raises(DataError, match=r"data: expected a rating for every document, .* data.drop_unjudged\(\)"):
        tierank.clicks.simulate_clicks(dataset([1, NAN]), [1, 2])


def test_the_setting_takes_two_values():
    with pytest.raises(ParameterError, match="unknown unjudged 'drop': Known: skip, zero"):
        tierank.UMart(unjudged="drop").fit(pooled())


# Experiments and the command line


def test_cross_validation_and_its_page(tmp_path):
    folder = tmp_path / "run"
    data = pooled(n_queries=40)
    tierank.write(data, tmp_path / "data.tierank")
    rankers = {"a": tierank.LinearRanker(ridge=0.1), "b": tierank.LinearRanker(ridge=1.0, unjudged="zero")}
    run = tierank.cross_validate(
        rankers, tmp_path / "data.tierank", metrics=["ndcg@5", "judged@5"], out=folder, n_jobs=1
    )
    assert f"{data.n_unjudged:,} documents unjudged" in run.comparison.describe_queries()
    condensed = run.judged_by(rule="tierank:condense").comparison
    assert condensed.mean("a", "ndcg@5") > run.comparison.mean("a", "ndcg@5")
    assert condensed.mean("a", "judged@5") == run.comparison.mean("a", "judged@5")
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").stat().st_size > 10_000


def test_the_command_line_judges_both_ways(tmp_path, capsys):
    (tmp_path / "d.txt").write_text("1 qid:1 1:1\nnan qid:1 1:3\n0 qid:1 1:2\n")
    (tmp_path / "s.txt").write_text("1\n3\n2\n")
    arguments = ["evaluate", str(tmp_path / "d.txt"), str(tmp_path / "s.txt"), "--metric", "mrr,judged@1"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "0.3333" in out
    assert "1 document unjudged: taken as 0" in out
    assert main([*arguments, "--unjudged", "condense"]) == 0
    out = capsys.readouterr().out
    assert "0.5000" in out
    assert "rule tierank:condense" in out
    assert main(["describe", str(tmp_path / "d.txt")]) == 0
    assert "unjudged documents    1" in capsys.readouterr().out
    assert main(["list", "metrics"]) == 0
    assert "rbp_residual" in capsys.readouterr().out


def test_the_examples_of_the_docs():
    page = Path(__file__).resolve().parents[1] / "docs" / "unjudged.md"
    outcome = doctest.testfile(str(page), module_relative=False)
    assert outcome.attempted > 10
    assert outcome.failed == 0
