"""Going on from a fitted model, with new data."""

import re
from pathlib import Path

import lightgbm
import numpy as np
import pandas as pd
import pytest

import tierank
from tierank import Blend, DataError, LambdaMART, ListNet, ParameterError, TreeRanker, UBoost, UMart, URank, UrBoost
from tierank.losses import LambdaRankObjective
from tierank.rankers import tree_training as tree_training

TREES = {"n_trees": 8, "min_documents": 5, "n_jobs": 1}
NETWORK = {"max_epochs": 4, "hidden": (8,), "n_jobs": 1}


@pytest.fixture(scope="module")
def parts():
    data = tierank.make_ranking(120, n_features=6, mean_length=12, max_length=20, seed=3)
    return data.split(0.35, 0.35, 0.15, 0.15)


@pytest.mark.parametrize("kind", [UMart, LambdaMART])
def test_trees_are_added_to_those_of_the_start(kind, parts):
    old, new, valid, test = parts
    first = UMart(**TREES).fit(old)
    text = first.model_.text
    later = kind(**TREES).fit(new, valid=valid, start=first)
    assert first.model_.text == text
    assert later.n_rounds_ == 8 + later.model_.n_rounds
    np.testing.assert_array_equal(later.booster_.predict(test.features, num_iteration=8), first.predict(test))
    assert not np.array_equal(later.predict(test), first.predict(test))
    # What was judged in training is what the whole model gives.
    judged = tierank.evaluate(valid, later.predict(valid), "ndcg@10").mean("ndcg@10")
    assert later.best_["ndcg@10"] == pytest.approx(judged, abs=1e-12)


def test_the_first_new_tree_by_hand(parts):
    """A regression tree on the gradients at the scores of the start, on the new data alone."""
    old, new, _, test = parts
    first = LambdaMART(**TREES).fit(old)
    later = LambdaMART(**TREES | {"n_trees": 1}).fit(new, start=first)
    data = lightgbm.Dataset(new.features, new.ratings, group=new.lengths, init_score=first.predict(new))
    objective = LambdaRankObjective(n_jobs=1)
    settings = {
        "num_leaves": 15, "learning_rate": 0.05, "verbosity": -1, "feature_pre_filter": False, "num_threads": 1,
        "min_data_in_leaf": 5, "objective": "none",
    }  # fmt: skip
    booster = lightgbm.Booster(settings, data)
    booster.update(fobj=lambda scores, _: objective.prepare(new.ratings, new.offsets).gradients(scores))
    expected = first.predict(test) + booster.predict(test.features, raw_score=True)
    np.testing.assert_allclose(later.predict(test), expected, rtol=1e-6, atol=1e-9)


def test_one_run_in_two_parts_is_one_run(parts):
    """A stretch of 50 trees, and then more on the same data: what one run of both does."""
    old, _, _, test = parts
    settings = {"min_documents": 5, "n_jobs": 1}
    whole = UMart(n_trees=60, **settings).fit(old)
    later = UMart(n_trees=10, **settings).fit(old, start=UMart(n_trees=50, **settings).fit(old))
    assert tree_training.STRETCH == 50
    np.testing.assert_array_equal(later.predict(test), whole.predict(test))


def test_trees_with_a_start_are_models_like_all_others(parts, tmp_path):
    old, new, valid, test = parts
    first = UMart(**TREES, query_features=True).fit(old)
    later = UMart(**TREES, query_features=True).fit(new, valid=valid, start=first)
    later.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model").set_params(n_jobs=1)
    np.testing.assert_array_equal(loaded.predict(test), later.predict(test))
    assert loaded.n_rounds_ == later.n_rounds_
    plain = UMart(**TREES).fit(new, start=UMart(**TREES).fit(old))
    plain.export(tmp_path / "model.c", to="c")
    assert tierank.verify(plain, tmp_path / "model.c", "c", test).holds
    explained = tierank.explain_query(plain, test, test.query_ids[0])
    assert explained
    assert plain.importance("split").sum() > UMart(**TREES).fit(old).importance("split").sum()
    again = UMart(**TREES).fit(new, start=plain)
    assert again.n_rounds_ == plain.n_rounds_ + 8


def test_a_base_stays_as_it_is(parts):
    old, new, _, test = parts
    settings = {**TREES, "base": URank(**NETWORK)}
    first = UMart(**settings).fit(old)
    later = UMart(**settings).fit(new, start=first)
    np.testing.assert_array_equal(later.base_.predict(test), first.base_.predict(test))
    own = later.booster_.predict(test.features)
    np.testing.assert_array_equal(later.predict(test), later.base_.predict(test) + own)
    np.testing.assert_allclose(
        later.booster_.predict(test.features, num_iteration=8), first.predict(test) - first.base_.predict(test)
    )
    for other in ({"base": None}, {"base": URank(**NETWORK | {"max_epochs": 5})}):
        refusal = "start: expected a model with the same base, which is not trained again"
        with pytest.raises(ParameterError, match=refusal):
            UMart(**{**TREES, **other}).fit(new, start=first)


def test_weights_are_the_start_of_a_network(parts):
    """Adam's steps are as long as its rate: a rate of next to nothing leaves the weights of the start."""
    old, new, valid, test = parts
    first = URank(**NETWORK, feature_transform="standard", n_seeds=2).fit(old)
    settings = {**NETWORK, "feature_transform": "standard", "n_seeds": 2}
    still = ListNet(**settings, learning_rate=1e-12).fit(new, start=first)
    np.testing.assert_allclose(still.predict(test), first.predict(test), atol=1e-6)
    assert still.transform_ is first.transform_
    before = [weights["output.weight"].clone() for weights in first.members_]
    later = ListNet(**settings).fit(new, valid=valid, start=first)
    assert not np.allclose(later.predict(test), first.predict(test))
    assert all((one == weights["output.weight"]).all() for one, weights in zip(before, first.members_, strict=True))


def test_networks_with_a_start_are_saved_and_exported(parts, tmp_path):
    old, new, _, test = parts
    later = URank(**NETWORK).fit(new, start=URank(**NETWORK).fit(old))
    later.save(tmp_path / "model")
    np.testing.assert_array_equal(tierank.load(tmp_path / "model").predict(test), later.predict(test))
    later.export(tmp_path / "model.c", to="c")
    assert tierank.verify(later, tmp_path / "model.c", "c", test).holds


@pytest.mark.parametrize("name", ["trees", "network"])
def test_a_run_with_a_start_is_resumed_with_the_same_start_only(name, parts, tmp_path):
    old, new, valid, test = parts
    kind, settings = (UMart, TREES | {"n_trees": 70, "patience": 99}) if name == "trees" else (URank, NETWORK)
    first, other = kind(**settings).fit(old), kind(**settings).fit(valid)
    whole = kind(**settings).fit(new, start=first)

    def interrupt(step):
        if step.number == (60 if name == "trees" else 4):
            raise KeyError("as if killed")

    with pytest.raises(KeyError, match="as if killed"):
        kind(**settings).fit(new, start=first, checkpoint=tmp_path / "kept", callbacks=[interrupt])
    if name == "network":  # its first checkpoint comes at the end, or after some seconds
        kind(**settings).fit(new, start=first, checkpoint=tmp_path / "kept")
    first.save(tmp_path / "first")
    loaded = tierank.load(tmp_path / "first").set_params(n_jobs=1)
    resumed = kind(**settings).fit(new, start=loaded, checkpoint=tmp_path / "kept")
    np.testing.assert_array_equal(resumed.predict(test), whole.predict(test))
    for start in (other, None):
        with pytest.raises(DataError, match="got one of another run"):
            kind(**settings).fit(new, start=start, checkpoint=tmp_path / "kept")


@pytest.mark.filterwarnings("ignore:no qid was given")
def test_networks_need_query_ids_in_both_or_in_neither(parts):
    old, new, _, _ = parts
    first = URank(**NETWORK).fit(np.array(old.features), old.ratings)
    with pytest.raises(ParameterError, match="start: expected query ids in both or in neither; these data have ids"):
        URank(**NETWORK).fit(new, start=first)


def test_features_are_matched_by_their_names(parts):
    old, new, _, test = parts
    names = list("abcdef")
    frame = {
        name: pd.DataFrame(data.features, columns=names)
        for name, data in {"old": old, "new": new, "test": test}.items()
    }
    first = UMart(**TREES).fit(frame["old"], old.ratings, qid=np.repeat(old.query_ids, old.lengths))
    queries = np.repeat(new.query_ids, new.lengths)
    expected = UMart(**TREES).fit(frame["new"], new.ratings, qid=queries, start=first).predict(frame["test"])
    turned = UMart(**TREES).fit(frame["new"][names[::-1]], new.ratings, qid=queries, start=first)
    np.testing.assert_array_equal(turned.predict(frame["test"]), expected)
    assert list(turned.feature_names_in_) == names
    unnamed = UMart(**TREES).fit(new, start=first)
    assert list(unnamed.feature_names_in_) == names
    assert unnamed.booster_.feature_name() == names
    with pytest.raises(DataError, match="expected the column 'c', which fit had, got none"):
        UMart(**TREES).fit(frame["new"].drop(columns="c"), new.ratings, qid=queries, start=first)
    with pytest.raises(DataError, match="X has 3 features, but UMart is expecting 6"):
        UMart(**TREES).fit(new.with_features(new.features[:, :3], None), start=first)


@pytest.mark.parametrize(
    ("ranker", "start", "message"),
    [
        (Blend(), UMart(**TREES), "start: Blend cannot continue from a model; leave it out"),
        (UBoost(), URank(**NETWORK), "start: UBoost cannot continue from a model; leave it out"),
        (UrBoost(), URank(**NETWORK), "start: UrBoost cannot continue from a model; leave it out"),
        (UMart(), URank(**NETWORK), r"start: expected a tree ranker, got URank; UMart\(base=URank\(\)\) grows trees"),
        (URank(), UMart(**TREES), "start: expected a network ranker, such as URank, got UMart"),
        (URank(), UBoost(**NETWORK), "start: expected a network ranker, such as URank, got UBoost"),
        (URank(), URank(**NETWORK), r"start: expected a model with hidden=\(100, 50\), as in this ranker, got hidden"),
        (
            URank(**NETWORK, feature_transform="standard"),
            URank(**NETWORK),
            "start: expected a model with feature_transform='standard'",
        ),
        (
            UMart(query_features=True),
            UMart(**TREES),
            "start: expected a model with the same query_features, got another one",
        ),
        (UMart(linear_tree=True), UMart(**TREES), "start: expected a model with the same linear_tree"),
        (
            UMart(monotone_constraints=[1, 0, 0, 0, 0, 0]),
            UMart(**TREES),
            "start: expected a model with the same monotone_constraints, as otherwise the sum would not be monotone",
        ),
    ],
)
def test_what_cannot_go_on_is_refused(ranker, start, message, parts):
    fitted = start.fit(parts[0])
    with pytest.raises(ParameterError, match=message):
        ranker.fit(parts[1], start=fitted)


def test_monotone_and_linear_trees_go_on(parts):
    old, new, _, _ = parts
    settings = {**TREES, "monotone_constraints": [1, 0, 0, 0, 0, 0]}
    later = UMart(**settings).fit(new, start=UMart(**settings).fit(old))
    line = np.tile(np.median(new.features, axis=0), (50, 1)).astype(np.float32)
    line[:, 0] = np.linspace(new.features[:, 0].min(), new.features[:, 0].max(), 50)
    assert (np.diff(later.predict(line)) >= 0).all()
    settings = {**TREES, "linear_tree": True}
    first = UMart(**settings).fit(old)
    later = UMart(**settings).fit(new, start=first)
    np.testing.assert_array_equal(later.booster_.predict(new.features, num_iteration=8), first.predict(new))


def test_a_start_must_be_a_fitted_ranker(parts):
    with pytest.raises(tierank.NotFittedError, match="this UMart is not fitted; call fit first"):
        UMart(**TREES).fit(parts[0], start=UMart())
    with pytest.raises(ParameterError, match=r"start: expected a fitted ranker, got str; tierank\.load reads a"):
        UMart(**TREES).fit(parts[0], start="model")


def test_a_loss_of_ones_own_goes_on(parts):
    old, new, _, test = parts
    first = TreeRanker("ranknet", **TREES).fit(old)
    later = TreeRanker("ranknet", **TREES).fit(new, start=first)
    np.testing.assert_array_equal(later.booster_.predict(test.features, num_iteration=8), first.predict(test))


def test_a_ranker_of_ones_own_can_go_on(parts):
    """The contract: it is capable of it, ``check_inputs`` accepts, and ``fit_model`` finds the model."""

    class Sum(tierank.FittedModel):
        def __init__(self, weights):
            self.weights, self.history, self.best = weights, [], {}

        def predict(self, data, resources):
            return data.features @ self.weights

    class Means(tierank.Ranker):
        def capabilities(self):
            return frozenset({"start"})

        def check_inputs(self, settings, train=None, start=None):
            super().check_inputs(settings, train, start)
            if start is not None and not isinstance(start.model_, Sum):
                raise ParameterError(argument="start", expected="Means", got=type(start).__name__)

        def fit_model(self, train, valid, context):
            weights = train.features.mean(axis=0)
            return Sum(weights if context.start is None else weights + context.start.weights)

    old, new, _, test = parts
    first = Means().fit(old)
    later = Means().fit(new, start=first)
    np.testing.assert_allclose(later.predict(test), Means().fit(new).predict(test) + first.predict(test), rtol=1e-5)
    with pytest.raises(ParameterError, match="start: expected Means, got UMart"):
        Means().fit(new, start=UMart(**TREES).fit(old))


def test_the_code_of_the_page_runs(capsys):
    page = (Path(__file__).resolve().parents[1] / "docs" / "retraining.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    space = {}
    for block in blocks:
        exec(block, space)
    assert space["later"].n_rounds_ > space["old"].n_rounds_
    assert "trees, and then" in capsys.readouterr().out


def test_the_command_goes_on_from_a_model(tmp_path, monkeypatch, capsys):
    from tierank import cli

    monkeypatch.chdir(tmp_path)
    data = tierank.make_ranking(30, n_features=3, mean_length=8, max_length=12)
    tierank.write(data, "data.txt")
    few = ["--train", "data.txt", "--set", "n_trees=3"]
    assert cli.main(["train", "lambdamart", *few, "--out", "old", "--quiet"]) == 0
    assert cli.main(["train", "lambdamart", *few, "--start", "old", "--out", "new", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    again = tierank.LambdaMART(n_trees=3).fit(tierank.read("data.txt"), start=tierank.load("old"))
    assert (tierank.load("new").predict(data) == again.predict(data)).all()
    assert tierank.load("new").n_rounds_ == 6


def test_a_start_that_cannot_work_is_refused_before_data_are_read(tmp_path, monkeypatch, capsys):
    from tierank import cli

    monkeypatch.chdir(tmp_path)
    data = tierank.make_ranking(20, n_features=3, mean_length=8, max_length=12)
    tierank.LinearRanker().fit(data).save("linear")
    (tmp_path / "odd.txt").write_text("read too early")
    assert cli.main(["train", "lambdamart", "--train", "odd.txt", "--start", "linear", "--out", "new"]) == 2
    assert "start: expected" in capsys.readouterr().err
    assert cli.main(["train", "lambdamart", "--train", "odd.txt", "--start", "nothing", "--out", "new"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_a_start_has_as_many_networks_as_were_trained(parts):
    """A callback stopped the start in its first network of three: one more network can continue, three cannot."""
    old, new, _, test = parts
    stopped = URank(**NETWORK, n_seeds=3).fit(old, callbacks=[lambda step: True])
    assert len(stopped.members_) == 1
    with pytest.raises(ParameterError, match=r"start: expected a model with n_seeds=3, .* got n_seeds=1"):
        URank(**NETWORK, n_seeds=3).fit(new, start=stopped)
    later = URank(**NETWORK).fit(new, start=stopped)
    assert not np.array_equal(later.predict(test), stopped.predict(test))
