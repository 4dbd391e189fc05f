"""``tierank adopt``: models of other libraries, with the proof that they score the same."""

import json

import lightgbm
import numpy as np
import pandas as pd
import pytest

import tierank
from tierank import DataError, LambdaMART, UMart
from tierank.cli import main

QUIET = {"objective": "lambdarank", "verbosity": -1, "num_threads": 1, "min_data_in_leaf": 3}


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(40, n_features=5, mean_length=10, max_length=20, seed=3)


@pytest.fixture(scope="module")
def files(data, tmp_path_factory):
    """A model of LightGBM and data for it, as files."""
    folder = tmp_path_factory.mktemp("files")
    booster = lightgbm.train(QUIET, lightgbm.Dataset(data.features, data.ratings, group=data.lengths), 8)
    booster.save_model(folder / "model.txt")
    tierank.write(data, folder / "data.txt")
    return folder


def test_adopted_scores_are_the_bits_of_lightgbm(data, files):
    adoption = tierank.adopt(files / "model.txt", data)
    assert (adoption.is_identical, adoption.largest, adoption.n_same) == (True, 0.0, data.n_documents)
    assert adoption.cpu_share > 0
    expected = lightgbm.Booster(model_file=files / "model.txt").predict(data.features, raw_score=True)
    assert np.array_equal(data.arrange(adoption.ranker.predict(data)), expected)
    assert "all the same bits, largest difference 0" in str(adoption)


def test_the_command_writes_a_model_and_prints_the_proof(data, files, capsys):
    folder = files / "adopted"
    assert main(["adopt", str(files / "model.txt"), str(files / "data.txt"), "--out", str(folder), "--json"]) == 0
    proof = json.loads(capsys.readouterr().out)
    assert (proof["library"], proof["n_trees"], proof["n_documents"]) == ("LightGBM", 8, data.n_documents)
    assert proof["n_same"] == proof["n_documents"]
    loaded = tierank.load(folder)
    assert np.array_equal(loaded.predict(data), tierank.from_lightgbm(files / "model.txt").predict(data))
    assert main(["adopt", str(files / "model.txt"), str(files / "data.txt")]) == 0
    assert f"LightGBM: 8 trees, {data.n_features} features" in capsys.readouterr().out


def test_names_with_blanks_are_given_back(data, tmp_path, capsys):
    table = pd.DataFrame(data.features, columns=["price in EUR", "b", "c", "d", "e"])
    model = lightgbm.LGBMRanker(n_estimators=3, min_child_samples=3, verbosity=-1, n_jobs=1)
    model.fit(table, data.ratings, group=data.lengths)
    model.booster_.save_model(tmp_path / "model.txt")
    table.assign(qid=1).to_csv(tmp_path / "data.csv", index=False)
    command = ["adopt", str(tmp_path / "model.txt"), str(tmp_path / "data.csv"), "--out", str(tmp_path / "model")]
    assert main(command) == 2
    assert "'price_in_EUR': did you mean 'price in EUR'" in capsys.readouterr().err
    assert main([*command, "--features", "price in EUR,b,c,d,e"]) == 0
    assert tierank.load(tmp_path / "model").feature_names_in_.tolist() == list(table.columns)


def test_features_counted_from_0_are_not_shifted_by_one(data, files, capsys):
    """LightGBM takes the numbers of text as columns: of a file that counts from 1, its column 0 is empty."""
    shifted = np.column_stack([np.zeros(data.n_documents), data.features])
    booster = lightgbm.train(QUIET, lightgbm.Dataset(shifted, data.ratings, group=data.lengths), 8)
    booster.save_model(files / "shifted.txt")
    command = ["adopt", str(files / "shifted.txt"), str(files / "data.txt"), "--out", str(files / "shifted")]
    assert main(command) == 2
    assert "expected 6 features, as the model has, got 5" in (error := capsys.readouterr().err)
    assert error.strip().endswith("so does --zero-based")
    assert main([*command, "--zero-based"]) == 0
    scores = tierank.load(files / "shifted").predict(tierank.read(files / "data.txt", zero_based=True))
    assert np.array_equal(scores, data.restore(booster.predict(shifted)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x04\x95", "or of XGBoost or CatBoost as JSON, got another file"),
        (b"tree of life", "expected a model of LightGBM in text form, as save_model writes it, got something else"),
    ],
)
def test_other_files_are_refused(content, message, files, capsys):
    (files / "other").write_bytes(content)
    assert main(["adopt", str(files / "other"), str(files / "data.txt")]) == 2
    assert message in capsys.readouterr().err


def test_data_with_more_features_are_refused(data, files, capsys):
    tierank.write(tierank.make_ranking(3, n_features=9, mean_length=4, max_length=6), files / "wide.txt")
    assert main(["adopt", str(files / "model.txt"), str(files / "wide.txt")]) == 2
    assert "wide.txt: expected 5 features, as the model has, got 9" in capsys.readouterr().err
    with pytest.raises(DataError, match="expecting 5 features"):
        tierank.adopt(files / "model.txt", data.features[:, :3])


@pytest.mark.parametrize("ranker", [UMart, LambdaMART])
def test_converters_find_an_objective_that_they_know(ranker, data):
    ours = ranker(n_trees=3, min_documents=3, n_jobs=1).fit(data)
    text = ours.booster_.model_to_string()
    assert text.split("\nfeature_names=")[0].endswith("\nobjective=lambdarank")
    assert ours.booster_.dump_model()["objective"] == "lambdarank"
    again = lightgbm.Booster(model_str=text)
    assert np.array_equal(data.restore(again.predict(data.features)), ours.predict(data))
    custom = lightgbm.Booster(model_str=text.replace("objective=lambdarank", "objective=custom"))
    assert "\nobjective=lambdarank\n" in tierank.from_lightgbm(custom).booster_.model_to_string()


def test_treelite_takes_the_booster(data, tmp_path):
    treelite = pytest.importorskip("treelite")
    ours = UMart(n_trees=5, min_documents=3, n_jobs=1).fit(data)
    ours.booster_.save_model(tmp_path / "model.txt")
    scores = treelite.gtil.predict(treelite.frontend.load_lightgbm_model(str(tmp_path / "model.txt")), data.features)
    assert np.array_equal(scores.ravel(), data.arrange(ours.predict(data)))
