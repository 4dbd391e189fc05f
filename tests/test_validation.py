"""Scorer and folds inside scikit-learn's own tools: the numbers are those of ``evaluate`` on the same rows."""

import pickle
import warnings
from functools import partial

import joblib
import lightgbm
import numpy as np
import pandas as pd
import pytest
import sklearn
from hypothesis import given
from hypothesis import strategies as st
from running import examples
from sklearn.base import clone
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, RandomizedSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.metadata_routing import get_routing_for_object

import tierank
from tierank import TRANSFORMS, DataError, LambdaMART, ParameterError, QueryKFold, RankingDataset, UMart, URank

QUICK = {"n_trees": 8, "min_documents": 5, "n_jobs": 1}
RANKERS = {
    "umart": UMart(**QUICK),
    "lambdamart": LambdaMART(**QUICK),
    "urank": URank(max_epochs=2, hidden=(8,), n_jobs=1),
}
each_family = pytest.mark.parametrize("ranker", RANKERS.values(), ids=list(RANKERS))


@pytest.fixture(autouse=True)
def routing():
    """Query ids reach what asks for them, as in a program that calls ``sklearn.set_config``."""
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture(scope="module")
def rows():
    """Features, ratings and text ids of scattered rows."""
    data = tierank.make_ranking(40, n_features=6, mean_length=12, max_length=30, seed=4)
    order = np.random.default_rng(0).permutation(data.n_documents)
    qid = np.array([f"query {q}" for q in np.repeat(data.query_ids, data.lengths)])
    return np.array(data.features)[order], data.ratings[order], qid[order]


def judged(estimator, X, y, qid, train, test, metric="ndcg@10", rule="tierank"):
    """The metric on the test rows of an estimator that was fitted to the training rows, by hand."""
    fitted = clone(estimator).fit(X[train], y[train], qid=qid[train])
    scores = fitted.predict(X[test], qid=qid[test])
    return tierank.evaluate(RankingDataset(X[test], y[test], qid[test]), scores, metric, rule).mean(metric)


@each_family
def test_cross_validate_gives_what_evaluate_gives(ranker, rows):
    X, y, qid = rows
    folds = QueryKFold(3)
    found = cross_validate(ranker, X, y, scoring=tierank.scorer("ndcg@5", "letor"), cv=folds, params={"qid": qid})
    expected = [judged(ranker, *rows, *fold, "ndcg@5", "letor") for fold in folds.split(X, qid=qid)]
    assert found["test_score"].tolist() == expected
    assert len(set(expected)) == 3


def test_several_metrics_and_the_folds_of_others(rows):
    X, y, qid = rows
    wanted = {"first": tierank.scorer("mrr@10"), "second": tierank.scorer("err@10", "wsdm20")}
    found = cross_validate(RANKERS["umart"], X, y, scoring=wanted, cv=GroupKFold(3), params={"qid": qid, "groups": qid})
    folds = list(GroupKFold(3).split(X, y, qid))
    for name, metric, rule in (("first", "mrr@10", "tierank"), ("second", "err@10", "wsdm20")):
        assert found[f"test_{name}"].tolist() == [judged(RANKERS["umart"], *rows, *f, metric, rule) for f in folds]


def test_the_score_of_a_ranker_is_routed_as_well(rows):
    X, y, qid = rows
    by_default = cross_val_score(RANKERS["umart"], X, y, cv=QueryKFold(3), params={"qid": qid})
    named = cross_val_score(RANKERS["umart"], X, y, cv=QueryKFold(3), params={"qid": qid}, scoring=tierank.scorer())
    np.testing.assert_allclose(by_default, named, rtol=1e-15)


@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
@each_family
def test_grid_search_in_other_processes(ranker, rows, backend):
    """Processes that begin as copies of one in which numba, torch and LightGBM have run do not hang."""
    X, y, qid = rows
    clone(ranker).set_params(n_jobs=2).fit(X, y, qid=qid)
    search = GridSearchCV(
        ranker, {"seed": [0], "learning_rate": [0.01, 0.2]}, scoring=tierank.scorer(), cv=QueryKFold(2), n_jobs=2
    )
    with joblib.parallel_config(backend=backend):
        search.fit(X, y, qid=qid)
    for place, chosen in enumerate(search.cv_results_["params"]):
        for k, fold in enumerate(QueryKFold(2).split(X, qid=qid)):
            expected = judged(clone(ranker).set_params(**chosen), *rows, *fold)
            assert search.cv_results_[f"split{k}_test_score"][place] == expected
    refitted = clone(ranker).set_params(**search.best_params_).fit(X, y, qid=qid)
    np.testing.assert_array_equal(search.best_estimator_.predict(X, qid=qid), refitted.predict(X, qid=qid))
    assert search.score(X, y, qid=qid) == tierank.scorer()(refitted, X, y, qid=qid)


@pytest.mark.parametrize("transform", [StandardScaler(), *(kind() for kind in TRANSFORMS.values())], ids=repr)
def test_pipelines(transform, rows):
    X, y, qid = rows
    pipeline = Pipeline([("scale", transform), ("rank", RANKERS["umart"])])
    folds = QueryKFold(2)
    found = cross_validate(pipeline, X, y, scoring=tierank.scorer(), cv=folds, params={"qid": qid}, error_score="raise")
    assert found["test_score"].tolist() == [judged(pipeline, *rows, *fold) for fold in folds.split(X, qid=qid)]


def test_randomized_search_over_a_pipeline_inside_a_cross_validation(rows):
    X, y, qid = rows
    pipeline = Pipeline([("scale", TRANSFORMS["query_minmax"]()), ("rank", RANKERS["umart"])])
    ranges = {"rank__n_leaves": [2, 4, 8], "rank__window": [1, 2, None]}
    search = RandomizedSearchCV(
        pipeline, ranges, n_iter=2, random_state=0, scoring=tierank.scorer(), cv=QueryKFold(2), error_score="raise"
    )
    found = cross_validate(
        search, X, y, scoring=tierank.scorer(), cv=QueryKFold(2), params={"qid": qid}, error_score="raise",
        return_estimator=True,
    )  # fmt: skip
    for inner, value, fold in zip(
        found["estimator"], found["test_score"], QueryKFold(2).split(X, qid=qid), strict=True
    ):
        assert value == judged(clone(pipeline).set_params(**inner.best_params_), *rows, *fold)


def test_permutation_importance_finds_the_feature_that_matters():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 3))
    y, qid = np.digitize(X[:, 1], [0, 1]), np.repeat(np.arange(60), 20)
    ranker = UMart(**QUICK).fit(X, y, qid=qid)
    scorer = partial(tierank.scorer("ndcg@10"), qid=qid)
    found = permutation_importance(ranker, X, y, scoring=scorer, n_repeats=2, random_state=0)
    assert found.importances_mean.argmax() == 1
    shuffled = X.copy()
    rng = np.random.RandomState(np.random.RandomState(0).randint(np.iinfo(np.int32).max + 1))
    shuffled[:, 1] = X[rng.permutation(1200), 1]
    data = RankingDataset(X, y, qid)
    means = [tierank.evaluate(data, ranker.predict(x, qid=qid), "ndcg@10").mean("ndcg@10") for x in (X, shuffled)]
    assert found.importances[1, 0] == pytest.approx(means[0] - means[1], abs=1e-12)


def test_models_that_know_no_queries_are_judged_by_them_too(rows):
    X, y, qid = rows
    data = RankingDataset(X, y, qid)
    linear = LinearRegression().fit(X, y)
    order = np.argsort(qid, kind="stable")
    theirs = lightgbm.LGBMRanker(n_estimators=5, verbose=-1, n_jobs=1)
    theirs.fit(X[order], y[order].astype(int), group=np.unique(qid, return_counts=True)[1])
    for model in (linear, theirs, make_pipeline(StandardScaler(), LinearRegression()).fit(X, y)):
        expected = tierank.evaluate(data, model.predict(X), "ndcg@10").mean("ndcg@10")
        assert tierank.scorer()(model, X, y, qid=qid) == expected
        with pytest.raises(DataError, match="qid: expected one query id per row, got none, and all rows as one query"):
            tierank.scorer()(model, X, y)


def test_missing_query_ids_are_said(rows):
    X, y, qid = rows
    ranker = clone(RANKERS["umart"]).fit(X, y, qid=qid)
    for model in (ranker, Pipeline([("scale", StandardScaler()), ("rank", ranker)])):
        with pytest.raises(DataError, match=r"qid: expected one query id per row, got none.*enable_metadata_routing"):
            tierank.scorer()(model, X, y)
    with (
        sklearn.config_context(enable_metadata_routing=False),
        pytest.raises(DataError, match=r"qid: expected one query id per row, got none.*search.fit\(X, y, qid=qid\)"),
    ):
        GridSearchCV(ranker, {"seed": [0]}, scoring=tierank.scorer(), cv=QueryKFold(2), error_score="raise").fit(
            X, y, groups=qid, qid=qid
        )
    with pytest.warns(UserWarning, match=f"no qid was given, so all {len(X)} rows are one query"):
        alone = clone(ranker).fit(X, y)  # all rows are one query, here and there
    expected = tierank.evaluate(RankingDataset(X, y), alone.predict(X), "ndcg@10").mean("ndcg@10")
    with pytest.warns(UserWarning, match=f"score: no qid was given, so all {len(X)} rows are one query"):
        assert tierank.scorer()(alone, X, y) == expected
    assert tierank.scorer()(ranker, RankingDataset(X, y, qid)) == tierank.scorer()(ranker, X, y, qid=qid)


def test_without_routing_folds_are_made_by_groups(rows):
    X, y, qid = rows
    with sklearn.config_context(enable_metadata_routing=False):
        # The score of fits without query ids, as scikit-learn gives none to them: what must not happen is a mixed fold.
        folds = list(QueryKFold(3).split(X, y, groups=qid))
        found = cross_val_score(LinearRegression(), X, y, groups=qid, cv=QueryKFold(3), scoring="r2")
        expected = [LinearRegression().fit(X[a], y[a]).score(X[b], y[b]) for a, b in folds]
    assert found.tolist() == expected


@pytest.mark.parametrize("folds", [QueryKFold(2), GroupKFold(2)])
def test_query_ids_that_scikit_learn_does_not_pass_on_are_missed(rows, folds):
    """Without routing, ``groups`` only makes the folds: ``fit`` says how query ids get to it."""
    X, y, qid = rows
    how = r"enable_metadata_routing=True\) and .*, cross_validate\(..., params=\{'qid': qid\}\)"
    ranker = clone(RANKERS["umart"])
    with sklearn.config_context(enable_metadata_routing=False):
        with pytest.warns(UserWarning, match=rf"no qid was given, so all \d+ rows are one query: .*{how}"):
            cross_val_score(ranker, X, y, groups=qid, cv=folds)
        for method in (ranker.fit, clone(ranker).fit(X, y, qid).predict):
            with pytest.raises(ParameterError, match=rf"groups: is not an argument of \w+; give qid, .*{how}"):
                method(X, groups=qid)
        with pytest.raises(ParameterError, match=how):
            cross_val_score(ranker, X, y, params={"groups": qid}, error_score="raise")
        with pytest.raises(DataError, match=how):
            cross_val_score(ranker, X, y, groups=qid, params={"qid": qid}, cv=folds, error_score="raise")


def test_requests_can_be_seen_and_changed(rows):
    X, y, qid = rows
    assert get_routing_for_object(tierank.scorer()).consumes("score", {"qid", "groups"}) == {"qid"}
    assert get_routing_for_object(QueryKFold()).consumes("split", {"qid", "groups"}) == {"qid", "groups"}
    renamed = UMart(**QUICK).set_fit_request(qid="session").set_predict_request(qid="session")
    renamed.set_score_request(qid="session")
    plain, folds = RANKERS["umart"], list(QueryKFold(2).split(X, qid=qid))
    for model, same in ((renamed, plain), tuple(make_pipeline(StandardScaler(), r) for r in (renamed, plain))):
        found = cross_val_score(
            model, X, y, cv=QueryKFold(2).set_split_request(qid="session"), params={"session": qid},
            scoring=tierank.scorer().set_score_request(qid="session"), error_score="raise",
        )  # fmt: skip
        assert found.tolist() == [judged(same, *rows, *fold) for fold in folds]
    with pytest.raises(TypeError, match=r"got unexpected argument\(s\) {'quid'}"):
        cross_val_score(UMart(**QUICK), X, y, cv=QueryKFold(2), params={"quid": qid})


def test_scorers_and_folds_travel(rows):
    X, y, qid = rows
    ranker = clone(RANKERS["umart"]).fit(X, y, qid=qid)
    own = tierank.Rule(name="own", gain={0: 0, 1: 1, 2: 3, 3: 7, 4: 15})
    scorer = pickle.loads(pickle.dumps(tierank.scorer("ndcg@3", own)))
    assert repr(scorer) == "scorer('ndcg@3', rule='own')"
    assert scorer(ranker, X, y, qid=qid) == tierank.scorer("ndcg@3")(ranker, X, y, qid=qid)
    assert repr(QueryKFold(4, seed=2)) == "QueryKFold(n_splits=4, seed=2, shuffle=True)"
    search = clone(GridSearchCV(ranker, {}, scoring=scorer, cv=QueryKFold(4)))
    assert (search.cv.n_splits, search.scoring.metric) == (4, "ndcg@3")


def test_what_cannot_be_used_is_refused(rows):
    X, _, qid = rows
    with pytest.raises(ParameterError, match=r"unknown metric 'ndgc': did you mean 'ndcg'\?"):
        tierank.scorer("ndgc@10")
    with pytest.raises(ParameterError, match=r"unknown rule 'leter': did you mean 'letor'\?"):
        tierank.scorer(rule="leter")
    with pytest.raises(ParameterError, match=r"n_splits: expected an integer >= 2.*, got 1"):
        QueryKFold(1)
    with pytest.raises(ParameterError, match=r"seed: expected an integer >= 0.*, got None"):
        QueryKFold(seed=None)
    with pytest.raises(DataError, match="as qid or as groups, got none"):
        next(QueryKFold().split(X))
    with pytest.raises(DataError, match="as qid or as groups, got both"):
        next(QueryKFold().split(X, groups=qid, qid=qid))
    with pytest.raises(DataError, match="expected at least as many queries as folds, got 40 for n_splits=41"):
        next(QueryKFold(41).split(X, qid=qid))
    with pytest.raises(DataError, match="qid: expected 3 query ids, one per row of X"):
        next(QueryKFold(2).split(X[:3], qid=[1, 2]))


# The folds by themselves

lists = st.lists(st.integers(1, 9), min_size=2, max_size=25)


def split_of(lengths, n_splits, **chosen):
    qid = np.repeat(np.arange(len(lengths)), lengths)
    return qid, [test for _, test in QueryKFold(n_splits, **chosen).split(np.zeros((len(qid), 1)), qid=qid)]


@given(lists, st.integers(2, 6), st.booleans(), st.integers(0, 3))
@examples(150)
def test_folds_are_whole_disjoint_and_even(lengths, n_splits, shuffle, seed):
    n_splits = min(n_splits, len(lengths))
    qid, tests = split_of(lengths, n_splits, shuffle=shuffle, seed=seed)
    assert sorted(np.concatenate(tests).tolist()) == list(range(len(qid)))
    queries = [set(qid[test].tolist()) for test in tests]
    assert sum(map(len, queries)) == len(lengths)  # each query in one fold
    assert max(map(len, queries)) - min(map(len, queries)) <= 1
    assert max(map(len, tests)) - min(map(len, tests)) <= max(lengths)


@given(lists, st.integers(0, 5))
@examples(60)
def test_folds_do_not_depend_on_the_order_of_rows_or_the_type_of_ids(lengths, seed):
    qid, tests = split_of(lengths, 2)
    order = np.random.default_rng(seed).permutation(len(qid))
    names = np.array([f"q{q:03}" for q in qid])
    for ids in (names[order], names[order].tolist(), pd.Series(qid[order]), [(int(q) + 100, "x") for q in qid[order]]):
        moved = [np.sort(order[test]) for _, test in QueryKFold(2).split(pd.DataFrame({"f": order}), groups=ids)]
        for one, other in zip(moved, tests, strict=True):
            np.testing.assert_array_equal(one, other)
    data = RankingDataset(np.zeros((len(qid), 1)), qid=qid[order])
    for (_, one), other in zip(QueryKFold(2).split(data), tests, strict=True):
        np.testing.assert_array_equal(np.sort(order[one]), other)


def test_folds_by_hand():
    # Lengths 5 4 | 3 2 | 1: the longest of each hand to the fold that has the fewest documents.
    _, tests = split_of([5, 4, 3, 2, 1], 2, shuffle=False)
    assert [len(test) for test in tests] == [5 + 2 + 1, 4 + 3]


def test_seeds_deal_other_folds():
    lengths = [3] * 20
    one, again, other = (split_of(lengths, 4, seed=seed)[1] for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    fixed = [split_of(lengths, 4, shuffle=False, seed=seed)[1] for seed in (0, 1)]
    assert all(np.array_equal(a, b) for a, b in zip(*fixed, strict=True))


# Lists that were cut


def test_rows_of_one_list_on_both_sides_are_noticed(rows):
    X, y, qid = rows
    ranker = tierank.UMart(n_trees=3, n_jobs=1)
    cut = "some queries have other documents here than in the training data.*cv=tierank.QueryKFold"
    for scoring in (None, tierank.scorer()):
        with pytest.warns(UserWarning, match=cut):
            GridSearchCV(ranker, {"seed": [0]}, cv=3, scoring=scoring).fit(X, y, qid=qid)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            GridSearchCV(ranker, {"seed": [0]}, cv=QueryKFold(3), scoring=scoring, return_train_score=True).fit(
                X, y, qid=qid
            )
    pipeline = Pipeline([("scale", StandardScaler()), ("rank", ranker)])
    with pytest.warns(UserWarning, match=cut):
        cross_validate(pipeline, X, y, cv=2, params={"qid": qid}, scoring=tierank.scorer())


def test_folds_without_query_ids_are_noticed(rows):
    X, y, qid = rows
    with (
        sklearn.config_context(enable_metadata_routing=False),
        pytest.warns(UserWarning, match="^no qid was given, so all .* rows are one query"),
        pytest.warns(UserWarning, match="^score: no qid was given, so all .* rows are one query"),
    ):
        GridSearchCV(tierank.UMart(n_trees=3, n_jobs=1), {"seed": [0]}, cv=GroupKFold(3)).fit(X, y, groups=qid)


def test_only_cut_lists_are_noticed():
    """By hand: lists that are the same or new are whole, whatever their order; unjudged documents do not count."""
    X, y, qid = np.eye(8), np.array([0.0, 1, 2, 0.5, 1, 0.25, np.nan, 0]), np.repeat(["a", "b"], 4)
    ranker = tierank.UMart(n_trees=1, min_documents=1).fit(X, y, qid)
    turned = np.arange(8)[::-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for whole in (np.arange(8), turned, np.arange(4), np.delete(turned, 1)):
            ranker.score(X[whole], y[whole], qid[whole])
        ranker.score(X[1:], y[1:], qid=["c"] * 7)
    for part in (np.arange(3), np.array([0, 1, 2, 3, 4, 7])):
        with pytest.warns(UserWarning, match="some queries have other documents here"):
            ranker.score(X[part], y[part], qid[part])
