"""Models of XGBoost and CatBoost as rankers: every document reaches the same leaf of every tree."""

import json

import numpy as np
import pytest

import tierank
from tierank import DataError, MissingExtraError, ParameterError, adopt, from_catboost, from_xgboost
from tierank.cli import main
from tierank.rankers import adoption

xgboost = pytest.importorskip("xgboost")
catboost = pytest.importorskip("catboost")

TRAIN, TEST = tierank.make_ranking(80, n_features=5, mean_length=12, max_length=20, seed=2).split(0.6, 0.4)
GRADES = TRAIN.ratings.astype(int)


def with_gaps(features):
    return np.where(np.arange(features.size).reshape(features.shape) % 7 == 0, np.nan, features).astype(np.float32)


def train_xgboost(features=TRAIN.features, **settings):
    quick = {"objective": "rank:ndcg", "n_estimators": 12, "max_depth": 4, "n_jobs": 1}
    qid = np.repeat(np.arange(TRAIN.n_queries), TRAIN.lengths)
    return xgboost.XGBRanker(**quick | settings).fit(features, GRADES, qid=qid)


def train_catboost(features=TRAIN.features, **settings):
    quick = {"loss_function": "YetiRank", "iterations": 12, "depth": 4, "thread_count": 1, "verbose": False}
    qid = np.repeat(np.arange(TRAIN.n_queries), TRAIN.lengths)
    pool = catboost.Pool(features, GRADES, group_id=qid)
    return catboost.CatBoost({**quick, "allow_writing_files": False, **settings}).fit(pool)


def at_thresholds(ranker, features):
    """Rows with values at the thresholds of the model and one step of float32 beside them."""
    trees = ranker.to_neutral().scorer
    rows = np.repeat(features[:3], len(trees.feature), axis=0)
    with np.errstate(over="ignore"):  # CatBoost splits missing values from all others by the lowest number
        steps = [np.nextafter(trees.threshold, np.float32(end)) for end in (-np.inf, np.inf)]
    rows[np.arange(len(rows)), np.tile(trees.feature, 3)] = np.concatenate([trees.threshold, *steps])
    return rows[np.isfinite(rows).all(axis=1)]


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("settings", [{}, {"base_score": 0.7}, {"num_parallel_tree": 2, "subsample": 0.7}], ids=str)
def test_each_tree_of_xgboost_sends_documents_to_the_same_leaf(settings, gaps, is_file, tmp_path):
    """One tree alone is a single sum: base_score and a leaf, rounded once."""
    model = train_xgboost(with_gaps(TRAIN.features) if gaps else TRAIN.features, **settings)
    model.save_model(tmp_path / "model.json")
    ranker = from_xgboost(tmp_path / "model.json" if is_file else model)
    rows = np.concatenate([TEST.features, with_gaps(TEST.features), at_thresholds(ranker, TEST.features)])
    booster, base = model.get_booster(), np.float64(np.float32(settings.get("base_score", 0.0)))
    per_round = settings.get("num_parallel_tree", 1)
    for tree in range(12):
        theirs = booster.inplace_predict(rows, predict_type="margin", iteration_range=(tree, tree + 1))
        ours = ranker.booster_.predict(rows, start_iteration=tree * per_round, num_iteration=per_round)
        np.testing.assert_allclose(ours + (base if tree else 0.0), theirs, atol=3e-7)
    np.testing.assert_allclose(ranker.predict(rows), model.predict(rows), atol=1e-6)


def test_the_best_round_of_xgboost_is_used():
    qid = np.repeat(np.arange(TEST.n_queries), TEST.lengths)
    model = xgboost.XGBRanker(n_estimators=60, early_stopping_rounds=2, eval_metric="ndcg@5", n_jobs=1)
    known = {"eval_set": [(TEST.features, TEST.ratings.astype(int))], "eval_qid": [qid], "verbose": False}
    model.fit(TRAIN.features, GRADES, qid=np.repeat(np.arange(TRAIN.n_queries), TRAIN.lengths), **known)
    ranker = from_xgboost(model)
    assert ranker.n_rounds_ == model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    np.testing.assert_allclose(ranker.predict(TEST.features), model.predict(TEST.features), atol=1e-6)
    assert adopt(model, TEST.features).holds


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(
    "settings", [{}, {"grow_policy": "Lossguide"}, {"nan_mode": "Max"}, {"loss_function": "RMSE"}], ids=str
)
def test_catboost_scores_are_equal_to_the_last_bits_of_double_precision(settings, gaps, is_file, tmp_path):
    model = train_catboost(with_gaps(TRAIN.features) if gaps else TRAIN.features, **settings)
    model.save_model(str(tmp_path / "model.json"), format="json")
    ranker = from_catboost(tmp_path / "model.json" if is_file else model)
    rows = np.concatenate([TEST.features, at_thresholds(ranker, TEST.features)])
    rows = np.concatenate([rows, with_gaps(rows)]) if gaps else rows
    np.testing.assert_allclose(ranker.predict(rows), model.predict(rows), rtol=0, atol=1e-14)


def test_the_importance_of_a_split_is_how_much_it_spreads_the_mean(tmp_path):
    """Of a tree with one split, by hand: the sum over documents of (value of the leaf - mean value)^2."""
    model = train_catboost(iterations=1, depth=1)
    model.save_model(str(tmp_path / "model.json"), format="json")
    tree = json.loads((tmp_path / "model.json").read_text())["oblivious_trees"][0]
    values, weights = np.array(tree["leaf_values"]), np.array(tree["leaf_weights"])
    shares = weights / weights.sum()
    expected = 1e6 * (shares * (values - (shares * values).sum()) ** 2).sum()
    found = from_catboost(model).importance("gain")
    assert np.flatnonzero(found).tolist() == [tree["splits"][0]["float_feature_index"]]
    np.testing.assert_allclose(found.max(), expected, rtol=1e-4)


@pytest.mark.parametrize(("model", "of"), [(train_xgboost, from_xgboost), (train_catboost, from_catboost)])
def test_imported_models_are_rankers(model, of, tmp_path):
    ranker = of(model(), feature_names=["a", "b", "c", "d", "e"])
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model")
    assert np.array_equal(loaded.predict(TEST.features), ranker.predict(TEST.features))
    assert loaded.feature_names_in_.tolist() == ["a", "b", "c", "d", "e"]
    pair = tierank.explain_pair(ranker, TEST, TEST.query_ids[0], 1, 2)
    np.testing.assert_allclose(pair.contributions.sum(), pair.difference, atol=1e-9)
    more = tierank.LambdaMART(n_trees=2, n_jobs=1).fit(TRAIN, start=of(model()))
    assert more.n_rounds_ == 14


@pytest.mark.parametrize("library", ["XGBoost", "CatBoost"])
def test_the_command_proves_and_writes(library, tmp_path, capsys):
    if library == "XGBoost":
        train_xgboost().save_model(tmp_path / "model.json")
    else:
        train_catboost().save_model(str(tmp_path / "model.json"), format="json")
    tierank.write(TEST, tmp_path / "data.txt")
    command = ["adopt", str(tmp_path / "model.json"), str(tmp_path / "data.txt"), "--out", str(tmp_path / "model")]
    assert main([*command, "--json"]) == 0
    proof = json.loads(capsys.readouterr().out)
    assert (proof["library"], proof["holds"], proof["n_documents"]) == (library, True, TEST.n_documents)
    assert proof["largest"] < 1e-6
    assert tierank.load(tmp_path / "model").n_features_in_ == 5


def test_a_difference_is_an_error(tmp_path, monkeypatch, capsys):
    train_xgboost().save_model(tmp_path / "model.json")
    tierank.write(TEST, tmp_path / "data.txt")
    monkeypatch.setattr(adoption, "_xgboost", lambda model, threads: lambda features: np.zeros(len(features)))
    assert main(["adopt", str(tmp_path / "model.json"), str(tmp_path / "data.txt")]) == 2
    assert "expected the scores of XGBoost, got others" in capsys.readouterr().err


def test_without_the_library_there_is_nothing_to_compare_with(monkeypatch):
    model = train_xgboost()
    monkeypatch.setattr("tierank.extras.is_installed", lambda library: False)
    with pytest.raises(MissingExtraError, match="the comparison with XGBoost needs xgboost: pip install xgboost"):
        adopt(model, TEST.features)
    assert from_xgboost(model).n_rounds_ == 12


REFUSED = {
    "other objective": (lambda: train_xgboost_classes(), from_xgboost, "got gbtree of binary:logistic"),
    "linear": (lambda: train_xgboost(booster="gblinear"), from_xgboost, "got gblinear of rank:ndcg"),
    "dart": (lambda: train_xgboost(booster="dart"), from_xgboost, "got dart of rank:ndcg"),
    "categories": (lambda: train_catboost_categories(), from_catboost, "got categorical features"),
    "classes": (lambda: train_catboost(loss_function="MultiClass"), from_catboost, "scores"),
}


def train_xgboost_classes():
    return xgboost.XGBClassifier(n_estimators=2, n_jobs=1).fit(TRAIN.features, TRAIN.ratings > 0)


def train_catboost_categories():
    pool = catboost.Pool([[1.0, "a"], [2.0, "b"], [3.0, "a"]], [0, 1, 0], cat_features=[1])
    return catboost.CatBoost({"iterations": 2, "verbose": False, "allow_writing_files": False}).fit(pool)


@pytest.mark.parametrize(("model", "of", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_imported_is_refused(model, of, message):
    with pytest.raises(DataError, match=message):
        of(model())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected a model of XGBoost in JSON, got something else"),
        ('{"learner": {}}', "got a damaged one: KeyError 'gradient_booster'"),
        ('{"learner": 1}', "got a damaged one: TypeError"),
    ],
)
def test_damaged_files_are_refused(content, message, tmp_path):
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(DataError, match=message):
        from_xgboost(tmp_path / "model.json")
    with pytest.raises(ParameterError, match="expected a model of CatBoost, or the path of its JSON file, got int"):
        from_catboost(3)


@pytest.mark.parametrize(
    ("head", "message"),
    [(b"CBM1\0", "if its format is json"), (b"{L\0", "ends in .json"), (b"\x80\x04", "the save_model of each library")],
)
def test_binary_models_are_refused_with_what_to_do(head, message, tmp_path):
    (tmp_path / "model").write_bytes(head)
    with pytest.raises(DataError, match=message):
        adopt(tmp_path / "model", TEST)
