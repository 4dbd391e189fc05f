"""Gains in every form, wherever one can be given."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from running import examples
from sklearn.base import clone

import tierank
from tierank import RULES, DataError, LambdaMART, ParameterError, RankingDataset, TreeRanker, UMart, URank
from tierank.cli import main
from tierank.data.relevance import gain_levels
from tierank.losses import (
    LOSSES,
    Batch,
    LambdaRankObjective,
    LossObjective,
    UMartObjective,
    check_gradient,
)
from tierank.metrics import Judge

GAINS = [0.0, 1.0, 1.0, 4.0, 9.5]
FORMS = {
    "list": GAINS,
    "tuple": tuple(GAINS),
    "array": np.array(GAINS),
    "float32": np.array(GAINS, np.float32),
    "series": pd.Series(GAINS),
    "longer list": [*GAINS, 100.0, 1000.0],
    "mapping": dict(enumerate(GAINS)),
    "mapping of numpy's": {np.int64(k): np.float32(v) for k, v in enumerate(GAINS)},
    "function": lambda ratings: np.array(GAINS)[ratings.astype(int)],
}
every_form = pytest.mark.parametrize("form", FORMS)
TREES = {"n_trees": 5, "min_documents": 5, "n_jobs": 1}
RANKERS = {
    "umart": lambda **chosen: UMart(**TREES, **chosen),
    "lambdamart": lambda **chosen: LambdaMART(**TREES, **chosen),
    "trees": lambda **chosen: TreeRanker("softmax", **TREES, **chosen),
    "urank": lambda **chosen: URank(max_epochs=2, hidden=(8,), n_jobs=1, **chosen),
}
every_ranker = pytest.mark.parametrize("name", RANKERS)


@pytest.fixture(scope="module")
def data():
    found = tierank.make_ranking(60, n_features=5, mean_length=15, max_length=30, seed=1)
    assert set(np.unique(found.ratings)) == {0, 1, 2, 3, 4}
    return found


@pytest.fixture(scope="module")
def expected(data):
    return {name: make(gain=GAINS).fit(data).predict(data) for name, make in RANKERS.items()}


@every_form
def test_gains_are_those_of_the_list(form):
    ratings = np.array([3.0, 0.0, 4.0, 1.0, 3.0])
    np.testing.assert_array_equal(gain_levels(ratings, FORMS[form]), [4, 0, 9.5, 1, 4])


@every_form
def test_metrics(form, data):
    scores = np.random.default_rng(0).normal(size=data.n_documents)
    rule = replace(RULES["tierank"], name="own", gain=FORMS[form])
    by_hand = replace(RULES["tierank"], name="own", gain=lambda ratings: np.interp(ratings, range(5), GAINS))
    for metric, values in Judge(data, ["ndcg@5", "dcg"], rule)(scores).items():
        np.testing.assert_array_equal(values, Judge(data, metric, by_hand)(scores)[metric])


def test_a_rule_with_a_list_is_a_value():
    """It can be compared, told and written like any other."""
    rule, same = (replace(RULES["tierank"], name="own", gain=gain) for gain in ([0, 1, 3.5], np.array([0, 1, 3.5])))
    assert rule == same
    assert "gain [0, 1, 3.5];" in rule.describe()
    assert json.loads(json.dumps(rule.to_dict()))["gain"] == "[0, 1, 3.5]"


@every_form
@pytest.mark.parametrize("kind", [UMartObjective, LambdaRankObjective, LossObjective])
def test_objectives(kind, form, data):
    scores = np.random.default_rng(0).normal(size=data.n_documents)
    found = kind(gain=FORMS[form]).prepare(data.ratings, data.offsets).gradients(scores)
    wanted = kind(gain=dict(enumerate(GAINS))).prepare(data.ratings, data.offsets).gradients(scores)
    np.testing.assert_array_equal(found, wanted)
    assert "gain=" in repr(kind(gain=FORMS[form]))


@every_form
def test_losses(form):
    assert Batch([0, 3], [0, 4, 3], gain=FORMS[form]).gains.tolist() == [0, 9.5, 4]
    assert check_gradient("softmax", gain=FORMS[form]) < 1e-5


@every_form
@every_ranker
def test_rankers(name, form, data, expected):
    np.testing.assert_array_equal(RANKERS[name](gain=FORMS[form]).fit(data).predict(data), expected[name])


@pytest.mark.parametrize("form", [form for form in FORMS if form != "function"])
@every_ranker
def test_copies_and_files(name, form, data, expected, tmp_path):
    ranker = RANKERS[name](gain=FORMS[form])
    assert ranker.get_params()["gain"] is FORMS[form]
    ranker.set_params(**ranker.get_params())
    for copy in (clone(ranker), pickle.loads(pickle.dumps(ranker))):
        assert type(copy.gain) is type(FORMS[form])
    ranker.fit(data, checkpoint=tmp_path / "checkpoint")
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(data), expected[name])
    np.testing.assert_array_equal(clone(loaded).fit(data).predict(data), expected[name])
    # A checkpoint knows the gains, whatever their form.
    RANKERS[name](gain=FORMS[form]).fit(data, checkpoint=tmp_path / "checkpoint")
    with pytest.raises(DataError, match="got one of another run"):
        RANKERS[name](gain=[*GAINS[:-1], 9.500001]).fit(data, checkpoint=tmp_path / "checkpoint")


def test_an_array_that_changes_later_changes_no_model(data, expected, tmp_path):
    gains = np.array(GAINS)
    ranker = UMart(**TREES, gain=gains).fit(data)
    gains[:] = 0
    ranker.save(tmp_path / "model")
    np.testing.assert_array_equal(clone(tierank.load(tmp_path / "model")).fit(data).predict(data), expected["umart"])


def test_an_inner_ranker_with_an_array(data, tmp_path):
    ranker = UMart(**TREES, base=LambdaMART(**TREES, gain=np.array(GAINS)), window=None).fit(data)
    ranker.save(tmp_path / "model")
    np.testing.assert_array_equal(tierank.load(tmp_path / "model").predict(data), ranker.predict(data))


@pytest.mark.parametrize("text", ["[0,1,1,4,9.5]", "0,1,1,4,9.5", "{0:0,1:1,2:1,3:4,4:9.5}"])
def test_the_command_line(text, data, expected, tmp_path):
    tierank.write(data, tmp_path / "train.txt")
    arguments = ["n_trees=5", "min_documents=5", "n_jobs=1", f"gain={text}"]
    sets = [word for argument in arguments for word in ("--set", argument)]
    assert (
        main(["train", "umart", "--train", str(tmp_path / "train.txt"), "--out", str(tmp_path / "model"), *sets]) == 0
    )
    np.testing.assert_allclose(tierank.load(tmp_path / "model").predict(data), expected["umart"], rtol=1e-6)


@every_ranker
@pytest.mark.parametrize(
    ("gain", "ratings", "kind", "message"),
    [
        (
            [0, 1],
            [0, 1, 2],
            DataError,
            "gain: expected integer ratings from 0 to 1, which have a gain in the list, got 2;",
        ),
        (
            [0, 1, 2],
            [0, 0.5, 1],
            DataError,
            "gain: expected integer ratings from 0 to 2, .* got 0.5; make the list longer",
        ),
        ({0: 0, 1: 1}, [0, 1, 2], ParameterError, "gain: expected a gain for every rating of the data, got none for 2"),
        ([], [0, 1, 2], ParameterError, "gain: expected at least one gain, got none"),
        ([0, -1, 2], [0, 1, 2], ParameterError, "gain: expected finite gains that are not negative, got -1"),
        ([0, np.nan, 2], [0, 1, 2], ParameterError, "gain: expected finite gains that are not negative, got nan"),
        (["0", "1"], [0, 1, 2], ParameterError, "gain: expected finite gains that are not negative, got '0'"),
        ([True, False], [0, 1, 1], ParameterError, "gain: expected finite gains that are not negative, got True"),
        ({"0": 1}, [0, 1, 1], ParameterError, "gain: expected ratings that are numbers, got '0'"),
        ([[0, 1]], [0, 1, 1], ParameterError, r"gain: expected finite gains that are not negative, got \[0, 1\]"),
        (np.eye(2), [0, 1, 1], ParameterError, "gain: expected ('exp2', 'linear', a list|finite gains)"),
        (3, [0, 1, 1], ParameterError, "gain: expected 'exp2', 'linear', a list .* or a function, got 3"),
        (None, [0, 1, 1], ParameterError, "gain: expected 'exp2', 'linear', a list .* or a function, got None"),
        ("exp3", [0, 1, 1], ParameterError, r"unknown gain 'exp3': did you mean 'exp2'\?"),
    ],
)
def test_gains_that_cannot_be_used(name, gain, ratings, kind, message):
    ratings = np.tile(ratings, 10)
    features = np.random.default_rng(0).normal(size=(len(ratings), 2))
    with pytest.raises(kind, match=message):
        RANKERS[name](gain=gain).fit(features, ratings, qid=np.arange(len(ratings)) // 6)
    if kind is ParameterError and "every rating" not in message:
        with pytest.raises(ParameterError, match=message):
            tierank.Rule(name="own", gain=gain)


@examples(50)
@given(
    gains=st.lists(st.floats(0, 1e9), min_size=1, max_size=8),
    places=st.lists(st.integers(0, 7), min_size=1, max_size=20),
)
def test_a_list_is_the_mapping_of_its_places(gains, places):
    ratings = np.array([place % len(gains) for place in places], float)
    np.testing.assert_array_equal(gain_levels(ratings, gains), gain_levels(ratings, dict(enumerate(gains))))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_gain_that_a_loss_does_not_look_at_is_refused(loss, data):
    """Whether it looks is seen from the batch, which makes gains when they are asked for."""
    batch = Batch.of(data)
    LOSSES[loss](torch.zeros(data.n_documents, requires_grad=True), batch)
    assert (not {"gains", "_gains"} & vars(batch).keys()) == ("gain" in LOSSES[loss].without)
    if "gain" in LOSSES[loss].without:
        for make in (TreeRanker, tierank.NetworkRanker):
            with pytest.raises(ParameterError, match=f"gain: expected its default with the loss {loss}, which uses"):
                make(loss, gain=GAINS, n_jobs=1).fit(data)
        with pytest.raises(ParameterError, match="gain: expected its default with the loss listmle, which uses"):
            tierank.ListMLE(gain="linear", n_jobs=1).fit(data)


def test_gains_may_fall_as_ratings_rise(data):
    """LightGBM takes a higher rating for a higher gain."""
    found = LambdaMART(**TREES, gain=[0, 5, 1, 3, 2]).fit(data)
    assert np.isfinite(found.predict(data)).all()


def test_ratings_that_the_data_do_not_have_need_no_gain(data):
    ratings = np.where(data.ratings < 2, 1.0, 3.0)
    holes = RankingDataset.from_parts(data.features, ratings, data.offsets, data.query_ids)
    table = {1.0: 2.0, 3.0: 7.0}
    by_function = LambdaMART(**TREES, gain=lambda levels: np.array([table[level] for level in levels])).fit(holes)
    by_mapping = LambdaMART(**TREES, gain=table).fit(holes)
    by_list = LambdaMART(**TREES, gain=[0, 2, 2, 7]).fit(holes)
    assert by_function.model_.text == by_mapping.model_.text == by_list.model_.text
