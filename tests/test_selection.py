"""The choice of the best round: metrics that cannot choose are refused, and errors say that they are about valid."""

import numpy as np
import pytest

import tierank
from tierank import Blend, DataError, LinearRanker, ParameterError, UMart

TREES = {"n_trees": 3, "min_documents": 2, "n_jobs": 1}


@pytest.fixture(scope="module")
def parts():
    return tierank.make_ranking(20, n_features=4, mean_length=8, max_length=12, seed=2).split(0.7, 0.3)


def undefined(ratings, scores):
    return float("nan")


def endless(ratings, scores):
    return float("inf")


def of_long_lists(ratings, scores):
    return float("nan") if len(ratings) < 8 else float(ratings[np.argmax(scores)])


def _networks():
    pytest.importorskip("torch")
    return tierank.URank(max_epochs=1, hidden=(4,), n_jobs=1)


def _blend():
    pytest.importorskip("torch")
    return Blend(n_trees=2, max_epochs=1, n_jobs=1)


RANKERS = {"trees": lambda: UMart(**TREES), "linear": LinearRanker, "networks": _networks, "blend": _blend}


@pytest.mark.parametrize("name", list(RANKERS))
@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (
            undefined,
            r"select_by: .* undefined\(ratings, scores\) to return a number for at least one query, got NaN",
        ),
        (endless, r"expected endless\(ratings, scores\) to return one number for a query, NaN if it has none, got inf"),
    ],
)
def test_a_metric_that_cannot_compare_rounds_is_refused(name, metric, message, parts):
    """The first round would be kept, and the model could not be saved."""
    train, valid = parts
    with pytest.raises(ParameterError, match=message):
        RANKERS[name]().set_params(select_by=metric).fit(train, valid=valid)


def test_a_metric_may_be_undefined_for_some_queries(parts, tmp_path):
    train, valid = parts
    ranker = UMart(**TREES, select_by=[of_long_lists, "ndcg@10"]).fit(train, valid=valid)
    scores, own = ranker.predict(valid), []
    for start, end in zip(valid.offsets[:-1], valid.offsets[1:], strict=True):
        if end - start >= 8:
            own.append(valid.ratings[start:end][np.argmax(scores[start:end])])
    assert ranker.best_["of_long_lists"] == pytest.approx(np.mean(own))
    ranker.save(tmp_path / "model")


@pytest.mark.parametrize("name", ["loss", "kept", "epoch", "ridge", "family", "part", "member", "learner"])
def test_a_metric_does_not_take_the_name_of_a_column_of_the_history(name, parts):
    def metric(ratings, scores):
        return 1.0

    metric.__name__ = name
    with pytest.raises(ParameterError, match=f"select_by: expected functions whose names .* got {name}"):
        UMart(**TREES, select_by=metric).fit(parts[0])


def test_errors_of_validation_data_say_so(parts):
    train, valid = parts
    qid, features = valid.query_ids[valid.query_of_row], np.array(valid.features, np.float64)
    features[3, 1] = np.inf
    cases = [
        ((features, valid.ratings, qid), "valid: X: expected values that float32 can hold .* got inf in row 3"),
        ((valid.features, valid.ratings - 9, qid), "valid: y, row 0: expected a finite rating"),
        ((valid.features, valid.ratings, qid[:3]), "valid: qid: expected .* query ids, one per row of X"),
        ((valid.features[:, :2], valid.ratings, qid), "valid: X has 2 features, but UMart is expecting 4 features"),
        (valid.features, "valid: expected a RankingDataset or"),
    ]
    for given, message in cases:
        with pytest.raises(DataError, match=f"^{message}"):
            UMart(**TREES).fit(train, valid=given)


def test_a_preset_has_a_name():
    with pytest.raises(ParameterError, match=r"unknown preset of UMart \['stochastic'\]"):
        UMart.from_preset(["stochastic"])
