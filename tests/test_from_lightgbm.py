"""Models that LightGBM trained, as rankers; and the names of features in trees of ours."""

import re
from pathlib import Path

import lightgbm
import numpy as np
import pandas as pd
import pytest

import tierank
from tests.serve_tools import ask
from tierank import DataError, LambdaMART, NotFittedError, ParameterError, UMart
from tierank.cli import main
from tierank.rankers.lightgbm import with_names

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "trees.md").read_text()
QUIET = {"verbosity": -1, "num_threads": 1, "min_data_in_leaf": 5, "deterministic": True}


@pytest.fixture(scope="module")
def parts():
    data = tierank.make_ranking(90, n_features=6, mean_length=12, max_length=20, seed=4)
    return data.split(0.5, 0.25, 0.25)


def train(data, features=None, rounds=12, categories="auto", **params):
    features = data.features if features is None else features
    found = lightgbm.Dataset(features, data.ratings, group=data.lengths, categorical_feature=categories)
    return lightgbm.train({"objective": "lambdarank", **QUIET, **params}, found, rounds)


MODELS = {
    "lambdarank": {},
    "xendcg": {"objective": "rank_xendcg"},
    "regression": {"objective": "regression"},
    "poisson": {"objective": "poisson"},
    "categories": {"categories": [0], "min_data_per_group": 1, "cat_smooth": 1},
    "linear": {"objective": "regression", "linear_tree": True},
    "zeros are missing": {"zero_as_missing": True},
    "monotone": {"monotone_constraints": [1, 0, 0, 0, 0, 0]},
    "dart": {"boosting": "dart"},
}


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_lightgbm(name, parts, tmp_path):
    data, _, test = parts
    features = np.rint(data.features * 3) if name == "categories" else np.where(data.features < -1, 0, data.features)
    booster = train(data, features, **MODELS[name])
    expected = booster.predict(test.features, raw_score=True)
    booster.save_model(tmp_path / "model.txt")
    (tmp_path / "windows.txt").write_bytes((tmp_path / "model.txt").read_bytes().replace(b"\n", b"\r\n"))
    for model in (booster, tmp_path / "model.txt", str(tmp_path / "windows.txt")):
        ranker = tierank.from_lightgbm(model).set_params(n_jobs=1)
        np.testing.assert_array_equal(ranker.predict(test), expected)
        assert ranker.n_rounds_ == 12
        np.testing.assert_array_equal(ranker.importance("split"), booster.feature_importance("split"))
    np.testing.assert_array_equal(ranker.booster_.predict(test.features, raw_score=True), expected)
    ranker.save(tmp_path / "saved")
    loaded = tierank.load(tmp_path / "saved")
    assert type(loaded) is tierank.LightGBMRanker
    np.testing.assert_array_equal(loaded.set_params(n_jobs=1).predict(test), expected)


def test_missing_values_go_the_way_they_went(parts):
    data, _, test = parts
    rng = np.random.default_rng(0)
    holes, more = (np.where(rng.random(one.features.shape) < 0.2, np.nan, one.features) for one in (data, test))
    booster = train(data, holes)
    ranker = tierank.from_lightgbm(booster)
    assert ranker.seen_.has_missing
    assert not tierank.from_lightgbm(train(data)).seen_.has_missing
    np.testing.assert_array_equal(ranker.predict(more), booster.predict(more))


@pytest.mark.filterwarnings("ignore:The argument 'eval_set' is deprecated")
def test_the_best_round_is_used_as_lightgbm_does(parts):
    data, valid, test = parts
    own = lightgbm.LGBMRanker(n_estimators=60, min_child_samples=5, verbosity=-1, n_jobs=1)
    with pytest.raises(NotFittedError, match="this LGBMRanker is not fitted; call fit first"):
        tierank.from_lightgbm(own)
    own.fit(
        data.features,
        data.ratings,
        group=data.lengths,
        eval_set=[(valid.features, valid.ratings)],
        eval_group=[valid.lengths],
        callbacks=[lightgbm.early_stopping(5, verbose=False)],
    )
    ranker = tierank.from_lightgbm(own)
    assert ranker.n_rounds_ == own.best_iteration_ < 60
    np.testing.assert_array_equal(ranker.predict(test), own.predict(test.features))


def test_it_does_all_that_fitted_rankers_do(parts, tmp_path):
    data, _, test = parts
    booster = train(data)
    ranker = tierank.from_lightgbm(booster)
    assert ranker.history_ == []
    assert ranker.best_ == {}
    ranked = ranker.rank(test, k=3)
    np.testing.assert_array_equal(ranked.score, booster.predict(test.features[ranked.row]))
    assert ranker.score(test) == pytest.approx(
        tierank.evaluate(test, booster.predict(test.features), "ndcg@10").mean("ndcg@10")
    )
    ranker.export(tmp_path / "model.c", to="c")
    assert tierank.verify(ranker, tmp_path / "model.c", "c", test).holds
    shap = booster.predict(test.features[:2], pred_contrib=True)
    contributions = ranker.model_.contributions(test, np.array([0]), np.array([1]), ranker.resources())
    np.testing.assert_allclose(contributions[0], (shap[0] - shap[1])[:-1])
    assert tierank.explain_query(ranker, test, test.query_ids[0])
    assert ranker.permutation_importance(test, n_repeats=1).shape == (6, 1)
    assert not ranker.needs_list()


def test_it_is_served_and_used_on_the_command_line(parts, tmp_path, capsys):
    data, _, test = parts
    booster = train(data)
    ranker = tierank.from_lightgbm(booster)
    rows, scores = test.features[:4], booster.predict(test.features[:4])
    documents = [{"features": row.tolist()} for row in rows]
    code, _, found = ask(tierank.serve.app({"old": ranker}), "/rank", {"documents": documents})
    assert code == 200
    assert [one["id"] for one in found["ranking"]] == np.argsort(-scores).tolist()
    assert [one["score"] for one in found["ranking"]] == sorted(scores, reverse=True)
    ranker.save(tmp_path / "model")
    tierank.write(test, tmp_path / "test.txt")
    assert (
        main(["predict", str(tmp_path / "model"), str(tmp_path / "test.txt"), "--out", str(tmp_path / "scores")]) == 0
    )
    written = tierank.read_scores(tmp_path / "scores", test)
    np.testing.assert_array_equal(written, ranker.predict(tierank.read(tmp_path / "test.txt")))
    assert main(["evaluate", str(tmp_path / "test.txt"), str(tmp_path / "model")]) == 0
    assert "ndcg@10" in capsys.readouterr().out


def test_new_trees_go_on_from_it(parts):
    data, _, test = parts
    booster = train(data)
    later = LambdaMART(n_trees=5, min_documents=5, n_jobs=1).fit(test, start=tierank.from_lightgbm(booster))
    assert later.n_rounds_ == 17
    np.testing.assert_array_equal(
        later.booster_.predict(test.features, num_iteration=12), booster.predict(test.features)
    )


def test_it_cannot_be_fitted(parts):
    ranker = tierank.from_lightgbm(train(parts[0]))
    with pytest.raises(ParameterError, match="LightGBMRanker holds a trained model and cannot be fitted; LambdaMART"):
        ranker.fit(parts[0])
    with pytest.raises(NotFittedError, match="this LightGBMRanker is not fitted; call fit first"):
        tierank.LightGBMRanker().predict(parts[2])


def test_names_are_kept(parts):
    data, _, test = parts
    names = ["bm25", "price in EUR", "clicks=a", "länge", "e", "f"]
    frame = pd.DataFrame(test.features, columns=names)
    booster = train(data, pd.DataFrame(data.features, columns=names))
    expected = booster.predict(test.features)
    written = [name.replace(" ", "_") for name in names]
    ranker = tierank.from_lightgbm(booster)
    assert list(ranker.feature_names_in_) == written
    turned = frame.set_axis(written, axis=1).iloc[:, ::-1]
    np.testing.assert_array_equal(ranker.predict(turned), expected)
    # The blanks come back if the names are given.
    named = tierank.from_lightgbm(booster, feature_names=names)
    np.testing.assert_array_equal(named.predict(frame.iloc[:, ::-1]), expected)
    assert named.booster_.feature_name() == written
    assert tierank.from_lightgbm(train(data)).seen_.feature_names is None
    with pytest.raises(DataError, match="expected 6"):
        tierank.from_lightgbm(booster, feature_names=["a"])


def classes(data):
    params = {"objective": "multiclass", "num_class": 5, **QUIET}
    return lightgbm.train(params, lightgbm.Dataset(data.features, data.ratings), 2)


def forest(data):
    return train(data, objective="regression", boosting="rf", bagging_freq=1, bagging_fraction=0.5)


def categories(data):
    frame = pd.DataFrame(data.features).assign(c=pd.Categorical(np.where(data.features[:, 0] > 0, "a", "b")))
    return train(data, frame.set_axis([f"f{column}" for column in range(7)], axis=1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (classes, "model: expected a model with one score per row, got 5 scores, of a model of classes"),
        (forest, "model: expected boosted trees, got a random forest, whose trees are averaged"),
        (categories, "model: expected numeric features, got columns of pandas categories; train on their"),
    ],
)
def test_models_that_are_refused(make, message, parts):
    with pytest.raises(DataError, match=message):
        tierank.from_lightgbm(make(parts[0]))


def test_files_that_are_refused(parts, tmp_path):
    text = train(parts[0]).model_to_string()
    for content, message in {
        "": "expected a model of LightGBM in text form, as save_model writes it, got something else",
        "{}": "expected a model of LightGBM in text form",
        text[: len(text) // 2]: "expected a model of LightGBM in text form",
        text.replace("left_child=1", "left_child=0", 1): r"tree \d+: expected splits and leaves that are one tree",
        text.replace("max_feature_idx=5", "max_feature_idx=x"): "head: expected",
        text.replace("split_feature=", "split_feature=9", 1): "tree 0: expected splits by one of 6 features",
    }.items():
        assert content != text
        (tmp_path / "model.txt").write_text(content)
        with pytest.raises(DataError, match=rf"model.txt: {message}"):
            tierank.from_lightgbm(tmp_path / "model.txt")
    (tmp_path / "model.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"model\.bin: expected a model of LightGBM in text form, got a binary file"):
        tierank.from_lightgbm(tmp_path / "model.bin")
    with pytest.raises(DataError, match="expected a file that can be read, got: No such file"):
        tierank.from_lightgbm(tmp_path / "nothing.txt")
    with pytest.raises(ParameterError, match=r"model: expected a lightgbm\.Booster, .* got UMart"):
        tierank.from_lightgbm(UMart())


# The page


def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "import lightgbm" in block]
    assert len(blocks) == 2
    exec(blocks[0], {})
    capsys.readouterr()
    exec(blocks[1], {})
    lines = [line.rsplit(": ", 1) for line in capsys.readouterr().out.splitlines()]
    printed = [float(value) for _, value in lines[:-1]]
    shown = [float(value) for value in re.findall(r"^\| .* \| (\d\.\d{6}) \|$", PAGE, re.MULTILINE)]
    np.testing.assert_allclose(printed, shown, rtol=0.05, atol=2e-5)
    assert printed[2] < 1e-5 < 0.1 < printed[3]


# Names in trees of ours


@pytest.mark.parametrize("settings", [{}, {"query_features": True}])
def test_the_booster_has_the_names_of_the_data(settings, parts, tmp_path):
    data, valid, test = parts
    names = ("bm25", "price in EUR", "c", "d", "e", "f")
    ranker = UMart(n_trees=60, n_jobs=1, **settings)
    scores = ranker.fit(data, valid=valid).predict(test)
    plain = ranker.booster_
    named = [one.with_features(one.features, names) for one in parts]
    ranker.fit(named[0], valid=named[1])
    written = ["bm25", "price_in_EUR", "c", "d", "e", "f"]
    assert ranker.booster_.feature_name()[:6] == written
    assert plain.feature_name()[:6] == [f"Column_{number}" for number in range(6)]
    if settings:
        assert ranker.booster_.feature_name()[6:8] == ["bm25_in_query", "price_in_EUR_in_query"]
    np.testing.assert_array_equal(ranker.predict(named[2]), scores)
    np.testing.assert_array_equal(ranker.booster_.feature_importance(), plain.feature_importance())
    assert lightgbm.Booster(model_str=ranker.model_.text).model_to_string() == ranker.model_.text
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(named[2]), scores)
    assert loaded.booster_.feature_name()[:6] == written


@pytest.mark.parametrize(
    "names", [["a", "b,c"], ['"', "b"], ["a:b", "c"], ["a b", "a_b"], ["", "b"], ["a\x07", "b"], ["[0]", "{"]]
)
def test_names_that_lightgbm_does_not_take_are_left_out(names):
    text = "tree\nfeature_names=Column_0 Column_1\n"
    assert with_names(text, names) == text


def test_names_that_look_like_parts_of_the_text(parts):
    data = parts[0]
    names = ("Tree=0", "end of trees", "is_linear=1", "parameters:x".replace(":", "="), "tree_sizes=3", "=")
    ranker = UMart(n_trees=60, n_jobs=1)
    scores = ranker.fit(data).predict(data)
    named = data.with_features(data.features, names)
    np.testing.assert_array_equal(ranker.fit(named).predict(named), scores)
    assert ranker.booster_.feature_name()[0] == "Tree=0"
    later = UMart(n_trees=2, n_jobs=1).fit(named, start=ranker)
    assert later.n_rounds_ == 62
