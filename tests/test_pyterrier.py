"""Rankers in pipelines of PyTerrier, with results in its form."""

import numpy as np
import pytest

import tierank
from tierank import DataError, MissingExtraError, ParameterError, UMart

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, which PyTerrier uses

SMALL = {"n_trees": 5, "n_leaves": 4, "min_documents": 3, "n_jobs": 1}


def frames(data):
    """Results with features, and the qrels of the documents that have a rating above 0."""
    pd = pytest.importorskip("pandas")
    qid = np.repeat(data.query_ids, data.lengths).astype(str)
    docno = np.array([f"d{number}" for number in range(data.n_documents)])
    columns = {"qid": qid, "docno": docno, "query": "words of " + qid.astype(object), "score": 0.0, "rank": 0}
    results = pd.DataFrame(columns).assign(features=list(data.features))
    judged = data.ratings > 0
    return results, pd.DataFrame({"qid": qid, "docno": docno, "label": data.ratings.astype(int)})[judged]


PARTS = tierank.make_ranking(60, n_features=4, mean_length=10, max_length=16, seed=5).split(0.5, 0.25, 0.25)


def arrays(data):
    return data.features, data.ratings, np.repeat(data.query_ids, data.lengths)


@pytest.mark.parametrize("settings", [{}, {"query_features": True}], ids=["alone", "lists"])
def test_a_pipeline_trains_and_scores_as_the_ranker_does(settings):
    pt = pytest.importorskip("pyterrier")
    from tierank.integrations.pyterrier import Reranker

    train, valid, test = PARTS
    X, y, qid = arrays(train)
    expected = UMart(**SMALL, **settings).fit(X, y, qid=qid, valid=arrays(valid))
    shuffled = frames(test)[0].sample(frac=1, random_state=0)
    pipeline = pt.Transformer.identity() >> Reranker(UMart(**SMALL, **settings))
    pipeline.fit(*frames(train), *frames(valid))
    found = pipeline.transform(shuffled)
    scores = expected.predict(np.stack(shuffled["features"]), qid=shuffled["qid"])
    assert dict(zip(found["docno"], found["score"], strict=True)) == dict(zip(shuffled["docno"], scores, strict=True))
    assert (
        found.sort_values(["qid", "rank"]).groupby("qid")["score"].apply(lambda one: one.is_monotonic_decreasing).all()
    )
    loaded = Reranker(expected).transform(shuffled)
    assert loaded["score"].tolist() == found["score"].tolist()
    assert len(Reranker(expected).transform(shuffled[:0])) == 0
    whole = pt.Transformer.from_df(shuffled) >> Reranker(expected)
    table = pt.Experiment([whole], shuffled[["qid", "query"]].drop_duplicates(), frames(test)[1], ["ndcg_cut_10"])
    assert len(table) == 1


def test_the_own_form_of_pyterrier_takes_a_ranker():
    """Unchanged code: group, eval_set and eval_group, as LightGBM has them."""
    pt = pytest.importorskip("pyterrier")
    train, valid, test = PARTS
    X, y, qid = arrays(train)
    expected = UMart(**SMALL).fit(X, y, qid=qid, valid=arrays(valid))
    step = pt.ltr.apply_learned_model(UMart(**SMALL), form="ltr")
    step.fit(*frames(train), *frames(valid))
    assert np.array_equal(step.transform(frames(test)[0]).sort_index()["score"], expected.predict(test.features))


def test_what_is_missing_is_said():
    pytest.importorskip("pyterrier")
    from tierank.integrations.pyterrier import Reranker

    with pytest.raises(DataError, match=r"expected results with a column 'features', got the columns qid, docno"):
        Reranker(UMart(**SMALL)).fit(frames(PARTS[0])[0].drop(columns="features"), frames(PARTS[0])[1])
    with pytest.raises(ParameterError, match="this is the class; create a ranker"):
        Reranker(UMart)


def test_without_pyterrier_its_package_is_named():
    try:
        import pyterrier  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match="needs PyTerrier: pip install python-terrier"):
            tierank.integrations.pyterrier
