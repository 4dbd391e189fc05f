"""What every ranker promises, looped over the table of rankers."""

import contextlib
import copy
import inspect
import json
import pickle
import signal
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

import tierank
from tierank import RANKERS, DataError, NotFittedError, ParameterError, RankingDataset
from tierank.extras import MissingExtraError
from tierank.kernels import most_workers, n_threads
from tierank.rankers import explain
from tierank.rankers.model import Seen
from tierank.rankers.order import canonical_rows

# Settings that make each ranker quick; the contract does not depend on them.
TREES = {"n_trees": 25, "min_documents": 5, "n_jobs": 1}
NETWORK = {"max_epochs": 12, "learning_rate": 0.01, "hidden": (16, 8), "n_jobs": 1}
BLEND = {"n_configs": 1, "n_seeds": 1, "rotate": False, "n_trees": 25, "max_epochs": 4, "n_jobs": 1}
QUICK = {name: TREES if hasattr(ranker, "importance") else NETWORK for name, ranker in RANKERS.items()} | {
    "blend": BLEND,
    "linear": {"n_jobs": 1},
}
ARE_TREES = {name for name, settings in QUICK.items() if settings is TREES}

every_ranker = pytest.mark.parametrize("name", sorted(RANKERS))
# One of each family, for what costs time and is shared by the family.
each_family = pytest.mark.parametrize("name", ["lambdamart", "listmle", "umart", "urank"])


@pytest.fixture(scope="module")
def parts():
    return tierank.make_ranking(120, n_features=10, mean_length=25, max_length=60, seed=5).split(0.5, 0.25, 0.25)


def make(name, **settings):
    return RANKERS[name](**{**QUICK[name], **settings})


def raw(data):
    """Features, ratings and query ids, as arrays."""
    return np.array(data.features), data.ratings, np.repeat(data.query_ids, data.lengths)


def mean_ndcg(data, scores):
    return tierank.evaluate(data, scores, "ndcg@10").mean("ndcg@10")


@every_ranker
def test_learns(name, parts):
    train, valid, test = parts
    ranker = make(name)
    assert ranker.fit(train, valid=valid) is ranker
    chance = mean_ndcg(test, np.random.default_rng(0).random(test.n_documents))
    assert mean_ndcg(test, ranker.predict(test)) > chance + 0.1
    assert ranker.score(test) == pytest.approx(mean_ndcg(test, ranker.predict(test)))


@every_ranker
def test_same_bits_for_rows_in_any_order(name, parts):
    train, valid, test = parts
    features, ratings, queries = raw(train)
    expected = make(name).fit(train, valid=valid).predict(test)
    order = np.random.default_rng(1).permutation(len(ratings))
    named = np.array([f"q{q:05}" for q in queries])  # other ids of the same order
    fitted = make(name).fit(features[order], ratings[order], qid=named[order], valid=raw(valid))
    np.testing.assert_array_equal(fitted.predict(test), expected)
    # Scores come back in the caller's order.
    features, _, queries = raw(test)
    order = np.random.default_rng(2).permutation(len(queries))
    np.testing.assert_array_equal(fitted.predict(features[order], qid=queries[order]), expected[order])


@pytest.mark.parametrize("name", sorted({*ARE_TREES, "linear"}))
def test_same_bits_for_any_number_of_threads(name, parts):
    train, valid, test = parts
    one, two = (make(name, n_jobs=n).fit(train, valid=valid).predict(test) for n in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", sorted(set(RANKERS) - {"linear"}))  # which draws no random numbers
def test_seeds(name, parts):
    train, _, test = parts
    settings = {"bagging_fraction": 0.5, "bagging_freq": 1} if name in ARE_TREES else {"dropout": 0.3}
    settings = {} if name == "blend" else settings  # whose members have seeds of their own in any case
    one, again, other = (make(name, seed=seed, **settings).fit(train).predict(test) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


@every_ranker
def test_rank(name, parts):
    train, _, test = parts
    ranker = make(name).fit(train)
    features, _, queries = raw(test)
    order = np.random.default_rng(3).permutation(len(queries))
    scores = ranker.predict(features[order], qid=queries[order])
    ranked = ranker.rank(features[order], qid=queries[order], k=3)
    np.testing.assert_array_equal(ranked.score, scores[ranked.row])
    np.testing.assert_array_equal(ranked.query, queries[order][ranked.row])
    for query in np.unique(queries):
        own = ranked.query == query
        best = np.sort(scores[queries[order] == query])[::-1][:3]
        np.testing.assert_array_equal(ranked.score[own], best)
        np.testing.assert_array_equal(ranked.rank[own], np.arange(1, len(best) + 1))
    assert len(ranker.rank(test).row) == test.n_documents
    with pytest.raises(ParameterError, match=r"k: expected an integer >= 1, or None \(no limit\), got 0"):
        ranker.rank(test, k=0)


@every_ranker
def test_save_and_load(name, parts, tmp_path):
    train, valid, test = parts
    rule = tierank.Rule(name="own", gain={0: 0, 1: 1, 2: 3, 3: 7, 4: 15})
    ranker = make(name, rule=rule).fit(train, valid=valid)
    ranker.save(tmp_path / "deep" / "model")
    loaded = tierank.load(tmp_path / "deep" / "model")
    assert type(loaded) is type(ranker)
    np.testing.assert_array_equal(loaded.predict(test), ranker.predict(test))
    assert loaded.rule == rule
    ranker.save(tmp_path / "deep" / "model")  # again, over itself
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["model"]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ranker)).predict(test), ranker.predict(test))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("x")
    with pytest.raises(DataError, match="expected a new name or a model folder, got something else there"):
        ranker.save(tmp_path / "mine")
    clone(loaded).fit(train, valid=valid)


@each_family
def test_a_damaged_model_is_refused(name, parts, tmp_path):
    ranker = make(name).fit(parts[0])
    folder = tmp_path / "model"
    with pytest.raises(DataError, match=r"expected a model folder, with model.json in it, got nothing there"):
        tierank.load(folder)
    ranker.save(folder)
    files = [path.name for path in folder.iterdir() if path.name not in ("model.json", "README.md")]
    assert files
    for file in files:
        content = (folder / file).read_bytes()
        for damaged in (content[: len(content) // 2], content[:-1] + bytes([content[-1] ^ 1]), b""):
            (folder / file).write_bytes(damaged)
            with pytest.raises(
                DataError, match=f"{file}: expected the file that was saved, got one with another checksum"
            ):
                tierank.load(folder)
        (folder / file).unlink()
        with pytest.raises(DataError, match="inside the model folder, got none"):
            tierank.load(folder)
        (folder / file).write_bytes(content)
    described = json.loads((folder / "model.json").read_text())
    for change, message in [
        ({"format": 99}, "expected format 3, got 99"),
        ({"ranker": "Umart"}, r"unknown ranker 'Umart': did you mean 'UMart'\?|unknown ranker 'Umart'"),
        ({"settings": []}, "expected the description of a model"),
        ({"settings": {"rule": {"rule": {"nonsense": 1}}}}, "expected the description of a model, got a damaged file"),
        ({"n_features": -3}, "n_features: expected an integer >= 1, got -3"),
        ({"fitted": {}}, "got a damaged description"),
        ({"files": {f"../model/{files[0]}": "0"}}, "inside the model folder, got none"),
    ]:
        (folder / "model.json").write_text(json.dumps({**described, **change}))
        with pytest.raises(DataError, match=message):
            tierank.load(folder)
    (folder / "model.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="expected the description of a model, got a damaged file"):
        tierank.load(folder)


@every_ranker
def test_what_cannot_be_used_is_refused(name, parts):
    train, valid, test = parts
    ranker = make(name)
    with pytest.raises(NotFittedError, match="is not fitted; call fit first"):
        ranker.predict(test)
    unrated = RankingDataset(train.features)
    with pytest.raises(DataError, match="this data set has no ratings"):
        ranker.fit(unrated)
    with pytest.raises(DataError, match="this data set has no ratings"):
        ranker.fit(train, valid=unrated)
    with pytest.raises(DataError, match="qid: expected None with a RankingDataset"):
        ranker.fit(train, qid=[1])
    with pytest.raises(DataError, match=r"valid: expected a RankingDataset or \(X, y, qid\)"):
        ranker.fit(train, valid=5)
    empty = RankingDataset(valid.features, np.zeros(valid.n_documents))
    with pytest.raises(DataError, match="valid: expected at least one query with a rating above 0"):
        ranker.fit(train, valid=empty)
    narrow = RankingDataset(valid.features[:, :4].copy(), valid.ratings)
    with pytest.raises(DataError, match=r"X has 4 features, but .* is expecting 10 features as input"):
        ranker.fit(train, valid=narrow)
    ranker.fit(*raw(train)[:2], qid=raw(train)[2])
    with pytest.raises(DataError, match=r"X has 4 features, but .* is expecting 10 features"):
        ranker.predict(narrow)
    with pytest.raises(DataError, match="qid: expected one query id per row, as in fit, got none"):
        ranker.score(*raw(test)[:2])
    with pytest.raises(ParameterError, match="sample_weight: expected None, as a metric weighs queries"):
        ranker.score(test, sample_weight=[1])
    for setting, message in [
        ({"select_by": ["ndgc@3"]}, r"did you mean 'ndcg'\?"),
        ({"rule": "lightgmb"}, r"did you mean 'lightgbm'\?"),
        ({"budget": "2x"}, "unknown setting of Blend 'budget'")
        if name == "blend"
        else ({"preset": "paper"}, "unknown setting of LinearRanker 'preset'")
        if name == "linear"
        else ({"preset": "paper"}, r"preset: is not a setting; make the ranker by \w+.from_preset"),
        ({"ridge": -1}, r"ridge: expected a number >= 0, or None \(.*\), got -1")
        if name == "linear"
        else ({"seed": -1}, "seed: expected an integer >= 0.*, got -1"),
    ]:
        for held_out in (valid, None):
            with pytest.raises(ParameterError, match=message):
                make(name, **setting).fit(train, valid=held_out)


@every_ranker
def test_tables_are_healed_by_their_names(name, parts):
    train, _, test = parts
    columns = [f"f{k}" for k in range(train.n_features)]
    frame = pd.DataFrame(train.features, columns=columns)
    ranker = make(name).fit(frame, raw(train)[1], qid=raw(train)[2])
    assert list(ranker.feature_names_in_) == columns
    wanted = pd.DataFrame(test.features, columns=columns)
    expected = ranker.predict(wanted, qid=raw(test)[2])
    np.testing.assert_array_equal(ranker.predict(wanted[columns[::-1]], qid=raw(test)[2]), expected)
    np.testing.assert_array_equal(ranker.predict(wanted.assign(extra="text"), qid=raw(test)[2]), expected)
    with pytest.raises(DataError, match="X: expected the column 'f3', which fit had, got none"):
        ranker.predict(wanted.drop(columns="f3"))
    turned = RankingDataset(wanted[[*columns[::-1]]].assign(extra=1.0), qid=raw(test)[2])
    np.testing.assert_array_equal(ranker.predict(turned), expected)
    with pytest.raises(DataError, match="X: expected the column 'f3', which fit had, got none"):
        ranker.predict(RankingDataset(wanted.drop(columns="f3")))


@every_ranker
def test_sparse_input_and_one_query(name, parts):
    train, _, test = parts
    features, ratings, _ = raw(train)
    ranker = make(name).fit(scipy.sparse.csr_array(features[:100]), ratings[:100])
    assert ranker.predict(test.features).shape == (test.n_documents,)


@pytest.mark.filterwarnings("ignore:ratings go up to")
@every_ranker
def test_odd_data(name):
    rng = np.random.default_rng(0)
    for label, ratings in {
        "one rating": np.full(60, 2),
        "all empty": np.zeros(60),
        "fractions": rng.random(60) * 3,
        "60 levels": np.arange(60),
        "a million": rng.choice([0, 3, 1e6], 60),
    }.items():
        data = RankingDataset(rng.normal(size=(60, 3)), ratings, qid=np.arange(60) // 12)
        has_order = np.ptp(ratings) > 0
        with contextlib.nullcontext() if has_order else pytest.warns(UserWarning, match="there is no order to learn"):
            fitted = make(name).fit(data)
        assert np.isfinite(fitted.predict(data)).all(), label
    lonely = RankingDataset(rng.normal(size=(30, 3)), rng.integers(0, 3, 30), qid=np.arange(30))
    with pytest.warns(UserWarning, match="each of the 30 rows is a separate query"):
        fitted = make(name).fit(lonely)
    assert np.isfinite(fitted.predict(lonely)).all()
    features = np.ones((40, 2))
    features[:, 1] = np.nan
    constant = RankingDataset(features, np.arange(40) % 3, qid=np.arange(40) // 10)
    assert np.ptp(make(name).fit(constant, valid=constant).predict(constant)) == 0


@every_ranker
@pytest.mark.filterwarnings("ignore")
def test_passes_the_checks_of_scikit_learn(name):
    settings = {"n_trees": 5} if name in ARE_TREES else {} if name == "linear" else {"max_epochs": 2}
    results = check_estimator(make(name, **settings), on_skip=None, on_fail=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    if missing := [error for error in failed.values() if isinstance(error, MissingExtraError)]:
        raise missing[0]
    assert not list(failed)
    assert sum(result["status"] == "passed" for result in results) >= 38


@every_ranker
def test_scikit_learn_sees_the_settings(name):
    ranker = make(name, rule="letor")
    copy = clone(ranker)
    assert copy.get_params() == ranker.get_params()
    assert copy.set_params(rule="mslr").rule == "mslr"


RESUME = """
import json, os, signal, sys, numpy as np, tierank
from tierank import RANKERS
from tierank.rankers import network_training as training
from tierank.rankers.tree_training import TreeCheckpoint
training._EVERY = 0.0
name, folder, out, settings, *killed = sys.argv[1:]
def write_and_die(self, *given):
    written[type(self)](self, *given)
    os.kill(os.getpid(), signal.SIGKILL)
if killed:
    written = {kind: kind.write for kind in (TreeCheckpoint, training.NetworkCheckpoint)}
    for kind in written:
        kind.write = write_and_die
data = tierank.make_ranking(120, n_features=10, mean_length=25, max_length=60, seed=5)
train, valid, test = data.split(0.5, 0.25, 0.25)
ranker = RANKERS[name](**json.loads(settings)).fit(train, valid=valid, checkpoint=folder)
np.save(out, ranker.predict(test))
"""


LONG = {
    True: {
        "n_jobs": 1,
        "n_trees": 230,
        "min_documents": 5,
        "bagging_fraction": 0.7,
        "bagging_freq": 1,
        "patience": 1000,
    },
    False: {"n_jobs": 1, "max_epochs": 20, "hidden": [16, 8], "dropout": 0.2, "n_seeds": 2, "patience": 1000},
}


@each_family
def test_a_killed_run_goes_on_to_the_same_bits(name, tmp_path):
    pytest.importorskip("torch")  # which the program below takes
    command, settings = [sys.executable, "-c", RESUME, name], json.dumps(LONG[name in ARE_TREES])
    subprocess.run([*command, tmp_path / "whole", tmp_path / "whole.npy", settings], check=True)
    arguments = [*command, tmp_path / "cut", tmp_path / "cut.npy", settings]
    assert subprocess.run([*arguments, "killed"]).returncode == -signal.SIGKILL
    assert (tmp_path / "cut" / "state.json").exists()
    assert not (tmp_path / "cut.npy").exists()
    subprocess.run(arguments, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "cut.npy"), np.load(tmp_path / "whole.npy"))


@each_family
def test_a_checkpoint_of_another_run_is_refused(name, parts, tmp_path):
    train, valid, _ = parts
    make(name).fit(train, checkpoint=tmp_path / "c")
    for other, data in ((make(name, seed=9), train), (make(name), valid)):
        with pytest.raises(
            DataError, match="expected a checkpoint of this data and these settings, got one of another"
        ):
            other.fit(data, checkpoint=tmp_path / "c")
    (tmp_path / "c" / "state.json").write_text("{")
    with pytest.raises(DataError, match="expected a checkpoint, got a damaged one; delete it to start over"):
        make(name).fit(train, checkpoint=tmp_path / "c")


@pytest.mark.parametrize("name", ["umart", "urank", "linear"])
def test_shuffles_that_are_predicted_together_are_those_one_by_one(name, monkeypatch):
    data = tierank.make_ranking(5, n_features=3, mean_length=6, max_length=9, seed=2)
    ranker = make(name).fit(data)
    together = ranker.permutation_importance(data, n_repeats=2, seed=3)
    monkeypatch.setattr(explain, "_TOGETHER", 1)
    np.testing.assert_array_equal(ranker.permutation_importance(data, n_repeats=2, seed=3), together)
    shuffled = np.array(data.features)
    order = np.random.default_rng([3, 0]).permutation(data.n_documents)
    shuffled[:, 1] = shuffled[order, 1]
    scores = [ranker.predict(rows, qid=np.repeat(data.query_ids, data.lengths)) for rows in (data.features, shuffled)]
    by_hand = [tierank.evaluate(data, of, "ndcg@10").mean("ndcg@10") for of in scores]
    assert together[1, 0] == pytest.approx(by_hand[0] - by_hand[1], abs=1e-12)


@each_family
def test_permutation_importance_finds_what_matters(name):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(3000, 4)).astype(np.float32)
    data = RankingDataset(features, np.digitize(features[:, 2], [0, 1, 1.5]), qid=np.arange(3000) // 30)
    before = np.array(data.features)
    losses = make(name).fit(data).permutation_importance(data, n_repeats=3)
    assert losses.shape == (4, 3)
    assert losses.mean(axis=1).argmax() == 2
    assert losses[2].min() > 0.1
    np.testing.assert_array_equal(data.features, before)


def test_canonical_order_depends_on_content_alone(parts):
    train = parts[0]
    features, ratings, queries = raw(train)
    order, offsets, content = canonical_rows(train, 1)[:3]
    shuffle = np.random.default_rng(0).permutation(len(ratings))
    moved = RankingDataset(features[shuffle], ratings[shuffle], qid=queries[shuffle])
    other, other_offsets, other_content = canonical_rows(moved, 3)[:3]
    np.testing.assert_array_equal(moved.features[other], train.features[order])
    np.testing.assert_array_equal(moved.ratings[other], train.ratings[order])
    np.testing.assert_array_equal(other_offsets, offsets)
    assert other_content == content
    changed = features.copy()
    changed[3, 3] += 1
    assert canonical_rows(RankingDataset(changed, ratings, qid=queries), 1).content != content


# Settings, before and after fit


def presets():
    return [(name, preset) for name, kind in sorted(RANKERS.items()) for preset in kind.PRESETS]


@pytest.mark.parametrize(("name", "preset"), presets())
def test_a_given_setting_comes_before_the_preset_whatever_its_value(name, preset):
    kind = RANKERS[name]
    defaults = kind().get_params(deep=False)
    for setting, of_preset in kind.PRESETS[preset].items():
        assert kind.from_preset(preset).checked_settings()[setting] == of_preset
        value = defaults[setting]  # given, though it is the default
        given = kind.from_preset(preset, **{setting: value})
        assert given.get_params() == kind.from_preset(preset).set_params(**{setting: value}).get_params()
        assert given.get_params()[setting] == value


def twins(ranker, folder):
    """The ranker again, by every way to copy one or its settings."""
    yield type(ranker)(**ranker.get_params(deep=False))
    yield ranker.set_params(**ranker.get_params())
    yield clone(ranker)
    yield copy.copy(ranker)
    yield copy.deepcopy(ranker)
    yield pickle.loads(pickle.dumps(ranker))
    if hasattr(ranker, "model_"):
        ranker.save(folder / "model")
        yield tierank.load(folder / "model").set_params(n_jobs=1)
        yield pickle.loads(pickle.dumps(clone(tierank.load(folder / "model")))).set_params(n_jobs=1)


def plain_settings(ranker):
    """All settings, those of inner rankers in place of the rankers; threads are no part of a model."""
    settings = (ranker.get_params() | ranker.checked_settings()).items()  # n_seeds of a blend depends on the machine
    return {k: v for k, v in settings if not isinstance(v, tierank.Ranker) and not k.endswith("n_jobs")}


QUICKER = {"n_trees": 3, "max_epochs": 1, "n_learners": 2, "n_jobs": 1, "n_configs": 1}


@pytest.mark.parametrize(("name", "preset"), [(name, None) for name in sorted(RANKERS)] + presets())
def test_the_settings_are_the_model(name, preset, parts, tmp_path):
    """Equal settings mean the same bits, however the ranker came by them."""
    kind, (train, _, test) = RANKERS[name], parts
    quick = {setting: value for setting, value in QUICKER.items() if setting in kind.declared_settings()}
    if name in ("umart", "uboost"):
        quick["base"] = tierank.LambdaMART(n_trees=2, n_jobs=1, n_leaves=3)
    ranker = kind(**quick) if preset is None else kind.from_preset(preset, **quick)
    expected = plain_settings(ranker)
    scores = clone(ranker).fit(train).predict(test)
    for twin in (*twins(ranker, tmp_path), *twins(ranker.fit(train), tmp_path)):
        assert plain_settings(twin) == expected
    for twin in twins(ranker, tmp_path):
        np.testing.assert_array_equal(clone(twin).fit(train).predict(test), scores)


@pytest.mark.parametrize("kind", [*RANKERS.values(), tierank.NetworkRanker, tierank.TreeRanker])
def test_a_constructor_is_what_its_source_says(kind):
    parameters = inspect.signature(kind).parameters
    declared = kind.declared_settings()
    assert set(parameters) == set(declared)
    for name, one in declared.items():
        assert parameters[name].default == one.default
        assert getattr(kind(), name) == one.default
        assert one.help
        assert not one.help.endswith(".")
    given = kind(n_jobs=3)
    assert {name for name in vars(given) if not name.startswith("_")} == set(declared)


def test_trees_have_the_leaves_that_were_given_beside_a_preset(parts):
    settings = {"n_trees": 1, "min_documents": 1, "min_sum_hessian_in_leaf": 0, "n_jobs": 1}
    for given, leaves in (({}, 31), ({"n_leaves": 15}, 15), ({"n_leaves": 16}, 16)):
        assert (
            f"num_leaves={leaves}\n"
            in tierank.UMart.from_preset("paper-ohsumed", **settings, **given).fit(parts[0]).model_.text
        )


@every_ranker
def test_a_setting_that_changes_after_fit_changes_no_score(name, parts, tmp_path):
    train, _, test = parts
    ranker = make(name).fit(train)
    expected = ranker.predict(test)
    other = {
        "n_trees": 3, "n_leaves": 3, "query_features": name != "blend", "activation": "tanh", "hidden": (7,),
        "feature_transform": "standard", "coefficient": 0.5, "seed": 9, "n_seeds": 3, "network": "attention",
        "n_learners": 1, "pooling": "mean", "score_from": "state", "gain": "linear", "base": tierank.UMart(),
        "rotate": True, "ridge": 3.0, "select_by": "ndcg@1",
    }  # fmt: skip
    changed = {setting: value for setting, value in other.items() if setting in ranker.get_params(deep=False)}
    assert len(changed) > 3
    ranker.set_params(**changed)
    np.testing.assert_array_equal(ranker.predict(test), expected)
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(test), expected)
    assert loaded.settings_.keys() == ranker.settings_.keys()
    # Fitted again, it has the new settings.
    if "activation" in changed:
        back = {"network": "mlp", "n_seeds": 1, "gain": "exp2"} | ({"base": None} if "base" in changed else {})
        assert ranker.set_params(**back).fit(train).settings_["activation"] == "tanh"


@every_ranker
def test_a_fit_that_is_refused_leaves_the_model_as_it_was(name, parts):
    train, _, test = parts
    features, ratings, queries = raw(train)
    ranker = make(name).fit(features, ratings, qid=queries)
    expected, before = ranker.predict(test), ranker.settings_
    ranker.set_params(n_jobs=1, rule="lightgmb")
    with pytest.raises(ParameterError, match=r"did you mean 'lightgbm'\?"):
        ranker.fit(features, ratings)
    assert ranker.seen_.has_queries
    assert ranker.settings_ is before
    np.testing.assert_array_equal(ranker.predict(test), expected)


@every_ranker
def test_names_that_are_no_settings(name):
    for wrong in ("predict", "history_", "_given", "fit"):
        with pytest.raises(ParameterError, match=f"unknown setting of {RANKERS[name].__name__} '{wrong}'"):
            RANKERS[name]().set_params(**{wrong: 3})


@every_ranker
def test_the_signature_lists_all_settings(name):
    kind = RANKERS[name]
    parameters = inspect.signature(kind).parameters
    listed = {key: p.default for key, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    assert listed == kind().get_params(deep=False)
    assert repr(kind()) == f"{kind.__name__}()"


# Data that come in other ways than in fit


@pytest.mark.parametrize("columns", [list(range(10)), pd.MultiIndex.from_product([["a", "b"], range(5)])])
@each_family
def test_columns_whose_names_are_no_texts(name, columns, parts):
    features, ratings, queries = raw(parts[0])
    table = pd.DataFrame(features, columns=columns)
    ranker = make(name).fit(table, ratings, qid=queries)
    expected = ranker.predict(table, qid=queries)
    np.testing.assert_array_equal(ranker.predict(features, qid=queries), expected)
    np.testing.assert_array_equal(ranker.predict(table.iloc[:, ::-1], qid=queries), expected)


def test_a_column_twice_is_named(parts):
    features, ratings, queries = raw(parts[0])
    table = pd.DataFrame(features, columns=[*"abcdefghi", "a"])
    with pytest.raises(DataError, match="expected each name once, got 'a' twice"):
        make("umart").fit(table, ratings, qid=queries)


def test_importances_go_by_names(parts):
    train = parts[0]
    names = tuple("abcdefghij")
    ranker = make("umart").fit(train.with_features(train.features, names))
    expected = ranker.permutation_importance(train.with_features(train.features, names), n_repeats=2)
    turned = train.with_features(np.ascontiguousarray(train.features[:, ::-1]), names[::-1])
    np.testing.assert_array_equal(ranker.permutation_importance(turned, n_repeats=2), expected[::-1])
    assert expected.max() > 0.01
    with pytest.raises(DataError, match="X has 3 features, but UMart is expecting 10"):
        ranker.permutation_importance(train.with_features(train.features[:, :3], None))
    with pytest.raises(DataError, match="data: expected a RankingDataset, got tuple"):
        ranker.permutation_importance(raw(train))


def test_validation_data_with_the_same_features_in_another_order(parts):
    train, valid, test = parts
    names = tuple("abcdefghij")
    turned = valid.with_features(np.ascontiguousarray(valid.features[:, ::-1]), names[::-1])
    named = train.with_features(train.features, names)
    expected = make("umart").fit(train, valid=valid).predict(test)
    np.testing.assert_array_equal(make("umart").fit(named, valid=turned).predict(test), expected)


def test_validation_data_without_query_ids(parts):
    train, valid, _ = parts
    with pytest.raises(DataError, match=r"valid: expected \(X, y, qid\), as the training data have query ids"):
        make("umart").fit(train, valid=raw(valid)[:2])


@pytest.mark.parametrize(
    ("name", "settings", "needs_lists"),
    [
        ("umart", {}, False),
        ("umart", {"query_features": True}, True),
        ("urank", {}, True),
        ("urank", {"feature_transform": "standard"}, False),
        ("urank", {"feature_transform": "standard", "n_seeds": 2}, True),
        ("urank", {"feature_transform": "standard", "network": "attention", "hidden": (100, 50)}, True),
        ("uboost", {"base": tierank.UMart(query_features=True, n_trees=2), "feature_transform": "standard"}, True),
        ("blend", {}, True),
        ("linear", {}, True),
        ("linear", {"feature_transform": ("standard", "query_rank")}, True),
        ("linear", {"feature_transform": "none"}, False),
    ],
)
def test_many_queries_that_come_as_one_are_noticed(name, settings, needs_lists, parts):
    train, _, test = parts
    ranker = make(name, **settings).fit(train)
    assert ranker.needs_list() == needs_lists
    features, _, queries = raw(test)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranker.predict(features, qid=queries)
        ranker.predict(features[: train.lengths.max()])  # may well be one query
        if not needs_lists:
            ranker.predict(features)
    longer = "as one query, longer than the longest training query"
    with pytest.warns(UserWarning, match=f"no qid was given: these .* rows are ranked {longer}"):
        ranker.rank(features)
    if needs_lists:
        with pytest.warns(UserWarning, match=f"these .* rows are scored {longer}"):
            ranker.predict(features)


# Data without an order to learn


def test_data_without_an_order_are_noticed():
    rng = np.random.default_rng(0)
    features, qid = rng.normal(size=(12, 2)), np.repeat([1, 2, 3], 4)
    by_query = np.repeat([0.0, 1.0, 2.0], 4)  # different, but not within a query
    ranker = tierank.UMart(n_trees=2)
    tied = "^no query has documents with different ratings, so there is no order to learn"
    unweighted = "^no query has documents with different ratings and weights above 0, so there is no order to learn"
    for ratings in (np.zeros(12), by_query, np.where(np.arange(12) % 4 == 0, 1, np.nan)):
        with pytest.warns(UserWarning, match=tied):
            ranker.fit(features, ratings, qid)
    ratings = by_query.copy()
    ratings[0] = 4
    for weights in ({"query_weight": [0, 1, 1]}, {"row_weight": (np.arange(12) > 0).astype(float)}):
        with pytest.warns(UserWarning, match=unweighted):
            ranker.fit(features, ratings, qid, **weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranker.fit(features, ratings, qid, valid=(features, by_query, qid))
        ranker.fit(features, ratings, qid, query_weight=[1, 0, 0])


# Query ids that were forgotten, or taken from another column

NO_QUERIES = {
    "no ids": (lambda n: None, "(no qid was given, so )?all 2,001 rows are one query[,:] .*give one query id per row"),
    "one id": (lambda n: ["q"] * n, "all 2,001 rows are one query"),
    "an id in each row": (np.arange, "each of the 2,001 rows is a separate query, .* the same query id"),
}


@pytest.mark.parametrize("ids", NO_QUERIES)
@each_family
def test_ids_that_are_most_likely_wrong_are_noticed(name, ids, parts):
    train, _, _ = parts
    rng = np.random.default_rng(0)
    features, ratings = rng.normal(size=(2001, 10)), rng.integers(0, 3, 2001)
    qid, message = NO_QUERIES[ids][0](2001), NO_QUERIES[ids][1]
    quick = {"n_trees": 2} if name in ARE_TREES else {"max_epochs": 1}
    with pytest.warns(UserWarning, match=f"^{message}") as caught:
        make(name, **quick).fit(features, ratings, qid=qid)
    assert [found.filename for found in caught] == [__file__]  # the line of the caller
    odd = RankingDataset(features, ratings, qid=qid)
    with pytest.warns(UserWarning, match=f"^{message}"):
        make(name, **quick).fit(odd)
    with pytest.warns(UserWarning, match=f"^valid: {message}"):
        make(name, **quick).fit(train, valid=odd)


@pytest.mark.parametrize("qid", [np.zeros(2000), np.arange(2000) // 2, [*range(1999), 1998], np.arange(2000) // 1000])
def test_queries_that_may_well_be_right(qid):
    rng = np.random.default_rng(0)
    features, ratings = rng.normal(size=(2000, 3)), rng.integers(0, 3, 2000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make("umart", n_trees=2).fit(features, ratings, qid=qid)
        make("umart", n_trees=2).fit(features[:1], ratings[:1], qid=qid[:1])


@pytest.mark.parametrize("n", [1, 100, 101])
def test_rows_without_query_ids(n):
    """A hundred may be one list. Of more the ids were forgotten, or scikit-learn did not pass them on."""
    rng = np.random.default_rng(0)
    features, ratings = rng.normal(size=(n, 3)), rng.integers(0, 3, n)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make("umart", n_trees=2).fit(features, ratings)
    assert len(caught) == (n > 100)
    for one in caught:
        assert str(one.message).startswith("no qid was given, so all 101 rows are one query: give one query id per row")


def test_one_query_of_a_team_is_noticed_once():
    rng = np.random.default_rng(0)
    ranker, data = make("umart", n_trees=2), RankingDataset(rng.normal(size=(2001, 3)), rng.integers(0, 3, 2001))

    class Second(tierank.data.team.Team):
        is_first = False

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranker.fit(data, team=Second())


def test_networks_do_not_depend_on_the_default_type_of_torch(parts):
    code = (
        "import torch, tierank; torch.set_default_dtype(torch.float64)\n"
        "data = tierank.make_ranking(20, n_features=4, mean_length=10, max_length=20)\n"
        "for kind in (tierank.URank, tierank.UrBoost, tierank.MDPRank):\n"
        "    kind(max_epochs=2, n_jobs=1).fit(data).predict(data)\n"
        "print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


def test_more_threads_than_could_help_are_not_started():
    assert n_threads(most_workers()) == n_threads(most_workers() + 1) == n_threads(10**20) == most_workers()
    assert n_threads(3) == 3


@each_family
@pytest.mark.parametrize("n_jobs", [0, -2, 1.5, "2"])
def test_numbers_of_threads_that_cannot_be(name, n_jobs, parts):
    with pytest.raises(ParameterError, match="n_jobs: expected a"):
        make(name, n_jobs=n_jobs).fit(parts[0])


# Counts as ratings


@pytest.mark.parametrize(
    ("ratings", "gain", "is_count"),
    [
        ([0, 1, 50, 900], "exp2", True),
        ([0, 3, 11, 1], "exp2", True),
        ([0, 0.5, 31, 1], "exp2", True),
        ([0, 5, 10, 1], "exp2", False),
        ([0, 12.5, 30, 1], "exp2", False),
        ([0, np.nan, 4, 1], "exp2", False),
        (np.log2(1 + np.arange(4) * 7.3), "exp2", False),
        ([0, 1, 50, 900], "linear", False),
        ([0, 1, 50, 900], {0: 0, 1: 1, 50: 2, 900: 3}, False),
        ([0, 1, 50, 900], np.log1p, False),
    ],
)
def test_counts_as_ratings_are_noticed_in_fit_and_evaluate(ratings, gain, is_count):
    rng = np.random.default_rng(0)
    data = RankingDataset(rng.normal(size=(200, 2)), np.tile(ratings, 50), qid=np.arange(200) // 20)
    rule = replace(tierank.RULES["tierank"], name="own", gain=gain)
    calls = [
        lambda: tierank.UMart(n_trees=2, gain=gain).fit(data),
        lambda: tierank.LambdaMART(n_trees=2, gain=gain).fit(data),
        lambda: tierank.evaluate(data, rng.random(200), "ndcg@10", rule),
        lambda: tierank.compare(data, {"a": rng.random(200), "b": rng.random(200)}, metrics="err@5", rule=rule),
    ]
    for call in calls:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            call()
        told = [str(one.message) for one in said if "as counts do" in str(one.message)]
        assert bool(told) == is_count
        assert all("np.digitize(y, [1, 3, 10])" in one and "gain='linear'" in one for one in told)


def test_counts_do_not_matter_to_metrics_without_gains():
    ratings, scores = np.tile([0, 1, 50, 900], 5), np.arange(20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tierank.evaluate((ratings, np.arange(20) // 4), scores, ["mrr", "map", "precision@2"])


def test_the_advice_on_counts_works():
    counts = np.tile([0, 1, 50, 900, 4], 40)
    data = RankingDataset(np.random.default_rng(0).normal(size=(200, 2)), counts, qid=np.arange(200) // 20)
    graded = data.replace(ratings=np.digitize(counts, [1, 3, 10]).astype(np.float64))
    assert graded.ratings.max() == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tierank.UMart(n_trees=2).fit(graded)
        tierank.UMart(n_trees=2, gain=np.log1p).fit(data)


# The column of query ids


@pytest.fixture(scope="module")
def searches():
    """A shuffled table with a column of query ids, which no model learns from."""
    data = tierank.make_ranking(40, n_features=3, mean_length=12, max_length=30, seed=4)
    table = pd.DataFrame(data.features, columns=["a", "b", "c"])
    table["term"] = [f"term {k}" for k in np.repeat(data.query_ids, data.lengths)]
    return table.assign(rating=data.ratings).sample(frac=1, random_state=0)


@pytest.mark.parametrize("settings", [{}, {"query_features": True}])
@pytest.mark.parametrize("convert", [lambda table: table, pl.from_pandas], ids=["pandas", "polars"])
def test_the_column_of_query_ids_is_remembered(searches, settings, convert, tmp_path):
    table = convert(searches)
    fitted = tierank.UMart(n_trees=3, **settings).fit(tierank.read(table, query="term"))
    assert fitted.feature_names_in_.tolist() == ["a", "b", "c"]
    fitted.save(tmp_path / "model")
    term = searches["term"].to_numpy()
    for ranker in (fitted, tierank.load(tmp_path / "model")):
        assert ranker.seen_.query_column == "term"
        found, expected = ranker.rank(table, k=2), ranker.rank(table, qid=term, k=2)
        assert found.row.tolist() == expected.row.tolist()
        assert len(found.row) == 80
        assert np.array_equal(ranker.predict(table), ranker.predict(table, qid=term))
        assert ranker.match_features(table).n_queries == 40
        assert ranker.score(table, searches["rating"]) == ranker.score(table, searches["rating"], qid=term)
        alone = convert(searches.drop(columns="term"))
        with pytest.warns(UserWarning, match="ranked as one query.*as qid or in a column 'term'"):
            assert len(ranker.rank(alone, k=2).row) == 2
        with pytest.raises(DataError, match="qid: expected one query id per row, as in fit, got none"):
            ranker.score(alone, searches["rating"])
        other = ranker.rank(table, qid=np.arange(len(searches)) // 50, k=1)  # what is given goes before the column
        assert len(other.row) == -(-len(searches) // 50)


def test_the_name_of_a_column_that_is_given_as_qid_is_remembered(searches):
    ranker = tierank.UMart(n_trees=3).fit(searches[["a", "b"]], searches["rating"], searches["term"])
    assert ranker.seen_.query_column == "term"
    assert len(ranker.rank(searches, k=1).row) == 40
    unnamed = tierank.UMart(n_trees=3).fit(searches[["a", "b"]], searches["rating"], searches["term"].to_numpy())
    assert unnamed.seen_.query_column is None


def test_pointwise_scores_need_no_query_ids(searches):
    ranker = tierank.UMart(n_trees=3).fit(tierank.read(searches, query="term"))
    holes = searches.assign(term=None)
    assert np.array_equal(ranker.predict(holes), ranker.predict(searches))
    with pytest.raises(DataError, match="expected a query id in every row"):
        ranker.rank(holes)


def test_models_of_earlier_versions_have_no_query_column(searches, tmp_path):
    ranker = tierank.UMart(n_trees=3).fit(tierank.read(searches, query="term"))
    described = ranker.seen_.to_json()
    assert Seen.from_json(described, {}).query_column == "term"
    del described["query_column"]
    assert Seen.from_json(described, {}).query_column is None
    with pytest.raises(ValueError, match="query_column"):
        Seen.from_json(described | {"query_column": 7}, {})
