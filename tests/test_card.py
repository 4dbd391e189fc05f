"""The model card: README.md of a model folder."""

import numpy as np
import pytest

import tierank
from tierank import LambdaMART, LinearRanker, UMart

TRAIN, VALID = tierank.make_ranking(30, n_features=3, mean_length=8, max_length=12, seed=1).split(0.7, 0.3)
SMALL = {"n_trees": 4, "n_jobs": 1}


def card_of(ranker, folder):
    ranker.save(folder / "model")
    return (folder / "model" / "README.md").read_text()


def test_the_card_says_what_the_model_is(tmp_path):
    ranker = UMart(**SMALL, n_leaves=7, rule="letor").fit(TRAIN, valid=VALID)
    card = card_of(ranker, tmp_path)
    assert card.startswith("---\nlibrary_name: tierank\ntags: [learning-to-rank, tabular]\n---\n\n# UMart\n")
    assert f"A model of tierank {tierank.__version__}" in card
    assert "| `n_leaves` | `7` |" in card
    assert "| `n_trees` | `4` |" in card
    assert "`learning_rate`" not in card  # its default
    assert "`n_jobs`" not in card  # does not affect the model
    longest = int(max(TRAIN.lengths))
    assert f"3 features, at most {longest} documents per query, no missing values." in card
    for metric, value in ranker.best_.items():
        assert f"| {metric} | {value:.4f} |" in card
    assert "Rule `letor`" in card
    assert "3, without names." in card


def test_the_code_of_the_card_runs(tmp_path):
    card = card_of(LambdaMART(**SMALL, query_features=True).fit(TRAIN), tmp_path)
    code = card.split("```python\n")[1].split("```")[0].replace("FOLDER", str(tmp_path / "model"))
    names = {"X": VALID.features, "qid": np.repeat(VALID.query_ids, VALID.lengths)}
    exec(code, names)
    assert len(names["scores"]) == VALID.n_documents
    assert "Trained without validation data." in card


def test_the_card_of_an_imported_model_does_not_invent_its_training_data(tmp_path):
    card = card_of(tierank.from_lightgbm(LambdaMART(**SMALL).fit(TRAIN).booster_), tmp_path)
    assert "## Training data\n\nNot known: the model was imported." in card
    assert "## Validation\n\nNot known." in card


def test_names_of_columns_cannot_break_the_card(tmp_path):
    names = ["a|b", "`c`\nd", "e"]
    data = tierank.RankingDataset(
        TRAIN.features, TRAIN.ratings, np.repeat(TRAIN.query_ids, TRAIN.lengths), feature_names=names
    )
    card = card_of(LinearRanker(n_jobs=1).fit(data), tmp_path)
    assert "`a/b`, `'c' d`, `e`" in card
    assert "All have their default values." in card


def test_nothing_depends_on_the_card(tmp_path):
    ranker = UMart(**SMALL).fit(TRAIN)
    card_of(ranker, tmp_path)
    for content in ("edited by hand", None):
        if content is None:
            (tmp_path / "model" / "README.md").unlink()
        else:
            (tmp_path / "model" / "README.md").write_text(content)
        assert np.array_equal(tierank.load(tmp_path / "model").predict(VALID), ranker.predict(VALID))
    tierank.load(tmp_path / "model").save(tmp_path / "model")  # writes it again
    assert "# UMart" in (tmp_path / "model" / "README.md").read_text()


@pytest.mark.parametrize("imported", [True, False])
def test_every_ranker_has_a_card(imported, tmp_path):
    booster = LambdaMART(**SMALL).fit(TRAIN).booster_
    ranker = (
        tierank.from_lightgbm(booster)
        if imported
        else tierank.Blend(n_trees=4, max_epochs=1, n_jobs=1).fit(TRAIN, valid=VALID)
    )
    assert f"# {type(ranker).__name__}\n" in card_of(ranker, tmp_path)
