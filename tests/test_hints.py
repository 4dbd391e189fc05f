"""Arguments of other libraries: each is refused with what to give instead."""

import inspect

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import cross_val_score

import tierank
from tierank import RANKERS, LambdaMART, ParameterError, UMart, URank
from tierank.rankers.hints import HINTS


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(20, n_features=4, mean_length=8, max_length=12)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "group",
            r"^group: expected qid, one query id per row; np.repeat\(np.arange\(len\(group\)\), group\) makes it from",
        ),
        ("group_id", "^group_id: expected qid, one query id per row; rename group_id to qid"),
        ("eval_set", r"^eval_set: expected valid=\(X, y, qid\), or a RankingDataset; only one validation set is used"),
        ("eval_group", r"^eval_group: expected valid=\(X, y, qid\)"),
        ("eval_qid", r"^eval_qid: expected valid=\(X, y, qid\)"),
        ("eval_at", r"^eval_at: expected the setting select_by; such as UMart\(select_by=\['ndcg@5', 'ndcg@10'\]\)"),
        ("eval_metric", "^eval_metric: expected the setting select_by"),
        ("init_model", "^init_model: expected start, a fitted ranker; tierank.from_lightgbm makes one"),
        ("xgb_model", "^xgb_model: expected start, a fitted ranker"),
        ("init_score", "^init_score: expected the setting base, a ranker whose scores are the start"),
        ("sample_weight", r"^sample_weight: expected row_weight, one weight per row, or query_weight"),
        ("early_stopping_rounds", "^early_stopping_rounds: expected the setting patience"),
        ("verbose", "^verbose: expected progress=True for a progress bar, or callbacks"),
        ("positions", "^positions: expected position, where each document was shown; rename positions to position"),
        ("n_trees", r"^n_trees: is a setting; give it to the ranker: UMart\(n_trees=...\)"),
        ("vaild", "^unknown argument of fit 'vaild': did you mean 'valid'"),
        ("row_weights", "^unknown argument of fit 'row_weights': did you mean 'row_weight'"),
    ],
)
def test_fit_says_what_to_give_instead(name, message, data):
    with pytest.raises(ParameterError, match=message):
        UMart(n_trees=2).fit(data, **{name: [1]})


@pytest.mark.parametrize("kind", [*RANKERS.values(), tierank.NetworkRanker, tierank.TreeRanker])
def test_all_rankers_refuse_before_any_work(kind):
    with pytest.raises(ParameterError, match="group: expected qid"):
        kind().fit(None, None, group=[3, 2])


def test_group_sizes_become_query_ids():
    group = np.array([3, 1, 2])
    assert np.repeat(np.arange(len(group)), group).tolist() == [0, 0, 0, 1, 2, 2]


@pytest.mark.parametrize("method", ["predict", "rank"])
def test_scoring_says_what_to_give_instead(method, data):
    ranker = LambdaMART(n_trees=2, n_jobs=1).fit(data)
    score = getattr(ranker, method)
    for name, message in {
        "group": "group: expected qid, one query id per row",
        "raw_score": "raw_score: expected nothing: scores are raw scores",
        "num_iteration": "num_iteration: expected nothing: all trees that were kept are used; booster_",
        "qids": f"unknown argument of {method} 'qids': did you mean 'qid'",
    }.items():
        with pytest.raises(ParameterError, match=message):
            score(data, **{name: 1})


def test_no_hint_hides_an_argument():
    for method, hints in HINTS.items():
        assert not set(hints) & set(inspect.signature(getattr(tierank.Ranker, method)).parameters)


def test_the_signature_says_what_fit_takes():
    parameters = inspect.signature(UMart.fit).parameters
    assert {"X", "y", "qid", "valid", "row_weight", "query_weight", "callbacks", "start"} <= set(parameters)
    assert [name for name, one in parameters.items() if one.kind is one.VAR_KEYWORD] == ["unknown"]


def test_scikit_learn_routes_query_ids_and_nothing_else(data):
    with sklearn.config_context(enable_metadata_routing=True):
        request = UMart().get_metadata_routing().fit.requests
        assert request["qid"] is True
        assert "unknown" not in request
        arguments = np.array(data.features), data.ratings
        queries = np.repeat(data.query_ids, data.lengths)
        splits = tierank.QueryKFold(2)
        scores = cross_val_score(UMart(n_trees=2, n_jobs=1), *arguments, params={"qid": queries}, cv=splits)
    assert len(scores) == 2


def test_ranked_documents_have_their_ids(data):
    names = [f"d{row}" for row in range(data.n_documents)]
    order = np.random.default_rng(0).permutation(data.n_documents)
    queries = np.repeat(data.query_ids, data.lengths)
    named = tierank.RankingDataset(
        data.features[order], data.ratings[order], queries[order], document_ids=[names[row] for row in order]
    )
    ranker = URank(max_epochs=1, n_jobs=1).fit(data)
    ranked = ranker.rank(named, k=2)
    assert ranked._fields == ("query", "rank", "row", "document", "score")
    assert ranked.document.tolist() == [names[order[row]] for row in ranked.row]
    assert ranker.rank(data).document is None
