"""Every parameter of LightGBM changes something in the rankers of trees, or is refused with what to do instead."""

import json
import math
import re

import lightgbm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples
from sklearn.base import clone

import tierank
from tierank import DataError, LambdaMART, ParameterError, RankingDataset, TreeRanker, UMart
from tierank.data.team import Team
from tierank.rankers import tree_settings
from tierank.rankers.lightgbm import Rows, bin_rows
from tierank.rankers.tree_settings import for_data, lightgbm_parameters

ALIASES = lightgbm.basic._ConfigAliases._get_all_param_aliases()
KINDS = {"UMart": UMart, "LambdaMART": LambdaMART, "TreeRanker": TreeRanker}
USED = TreeRanker.lightgbm_settings()
QUICK = {"n_trees": 6, "n_leaves": 8, "min_documents": 10, "n_jobs": 1}
N_FEATURES = 8
# The parameters of LightGBM's own lambdarank, which is not used here: each ranker has a table of what to do instead.
OF_LAMBDARANK = ("sigmoid", "lambdarank_truncation_level", "lambdarank_norm", "label_gain")

BAGGING = {"bagging_freq": 1, "bagging_fraction": 0.5}
GOSS = {"data_sample_strategy": "goss", "learning_rate": 0.5}
CATEGORIES = {"categorical_feature": [3], "min_data_per_group": 5, "cat_smooth": 1.0}
MONOTONE = {"monotone_constraints": [-1, 0, 0, 0, 0, 0, 0, 1]}
COARSE = {"use_quantized_grad": True}
ONE_EACH = [0.1] + [1.0] * (N_FEATURES - 1)

# A value that changes the trees, and what has to stand beside it.
CHANGES = {
    "max_depth": (2, {}),
    "min_sum_hessian_in_leaf": (500.0, {}),
    "max_delta_step": (0.01, {}),
    "lambda_l1": (5.0, {}),
    "lambda_l2": (50.0, {}),
    "min_gain_to_split": (30.0, {}),
    "path_smooth": (50.0, {}),
    "extra_trees": (True, {}),
    "extra_seed": (11, {"extra_trees": True}),
    "linear_tree": (True, {}),
    "linear_lambda": (50.0, {"linear_tree": True}),
    "forcedsplits_filename": ("splits.json", {}),
    "interaction_constraints": ([[0, 1], [2, 3]], {}),
    "monotone_constraints": (MONOTONE["monotone_constraints"], {}),
    "monotone_constraints_method": ("advanced", MONOTONE),
    "monotone_penalty": (2.0, {"monotone_constraints": [1, 0, 0, 0, 0, 0, 0, 1]}),
    "feature_contri": (ONE_EACH, {}),
    "cegb_tradeoff": (50.0, {"cegb_penalty_split": 0.001}),
    "cegb_penalty_split": (0.05, {}),
    "cegb_penalty_feature_lazy": ([1.0] * N_FEATURES, {}),
    "cegb_penalty_feature_coupled": ([1000.0] + [0.0] * (N_FEATURES - 1), {}),
    "bagging_fraction": (0.7, BAGGING),
    "bagging_freq": (2, BAGGING),
    "bagging_seed": (7, BAGGING),
    "bagging_by_query": (True, BAGGING),
    "data_sample_strategy": ("goss", {"learning_rate": 0.5}),
    "top_rate": (0.4, GOSS),
    "other_rate": (0.3, GOSS),
    "feature_fraction": (0.4, {}),
    "feature_fraction_bynode": (0.4, {}),
    "feature_fraction_seed": (9, {"feature_fraction": 0.4}),
    "categorical_feature": ([3], {}),
    "min_data_per_group": (60, CATEGORIES),
    "max_cat_threshold": (1, CATEGORIES),
    "cat_l2": (1000.0, CATEGORIES),
    "cat_smooth": (500.0, {"categorical_feature": [3], "min_data_per_group": 5}),
    "max_cat_to_onehot": (40, CATEGORIES),
    "max_bin": (15, {}),
    "max_bin_by_feature": ([5] * N_FEATURES, {}),
    "min_data_in_bin": (100, {}),
    "bin_construct_sample_cnt": (100, {}),
    "forcedbins_filename": ("bins.json", {}),
    "use_missing": (False, {}),
    "zero_as_missing": (True, {}),
    "use_quantized_grad": (True, {}),
    "num_grad_quant_bins": (16, COARSE),
    "quant_train_renew_leaf": (False, COARSE),
    "stochastic_rounding": (True, COARSE),
}
# Parameters that change how the work is done, and what LightGBM then says of itself.
WORK = {
    "deterministic": (False, "0"),
    "force_col_wise": (False, "0"),
    "force_row_wise": (True, "1"),
    "histogram_pool_size": (1.0, "1"),
    "is_enable_sparse": (False, "0"),
    "enable_bundle": (False, "0"),
}
# What only those can see who have a graphics card.
OF_CARDS = {
    "gpu_platform_id": 1, "gpu_device_id": 1, "gpu_use_dp": True, "num_gpu": 2, "gpu_device_id_list": "0,1",
}  # fmt: skip


@pytest.fixture(scope="module")
def data():
    """Numbers, missing values, zeros, categories, and features that exclude each other."""
    rng = np.random.default_rng(0)
    n = 1200
    features = rng.normal(size=(n, N_FEATURES)).astype(np.float32)
    features[rng.random(n) < 0.3, 1] = np.nan
    features[rng.random(n) < 0.6, 2] = 0
    features[:, 3] = rng.integers(0, 12, n)
    one_hot = rng.integers(0, 6, n)
    for k in range(3):
        features[:, 4 + k] = np.where(one_hot == k, rng.integers(1, 4, n), 0)
    category = np.array([0, 2, 1, 3, 0, 2, 3, 1, 0, 3, 2, 1])[features[:, 3].astype(int)]
    worth = features[:, 0] + 0.7 * np.nan_to_num(features[:, 1]) + 0.8 * category + 0.5 * features[:, 7]
    ratings = np.digitize(worth + 0.4 * features[:, 4] + 0.5 * rng.normal(size=n), [0.5, 1.5, 2.5])
    return RankingDataset(features, ratings, qid=np.arange(n) // 20)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forced")
    (folder / "splits.json").write_text(json.dumps({"feature": 0, "threshold": 0.3}))
    (folder / "bins.json").write_text(json.dumps([{"feature": 0, "bin_upper_bound": [-0.5, 0.1, 0.7]}]))
    return folder


def make(kind, **chosen):
    return KINDS[kind](**({"loss": "softmax"} if kind == "TreeRanker" else {}), **{**QUICK, **chosen})


def trees_of(ranker):
    return ranker.model_.text.split("\nparameters:")[0]


@pytest.fixture(scope="module")
def plain(data):
    """The trees without a parameter, fitted once for each company that it is tried in."""
    kept = {}

    def trees(kind, beside):
        key = kind, json.dumps(beside, sort_keys=True)
        if key not in kept:
            kept[key] = trees_of(make(kind, **beside).fit(data))
        return kept[key]

    return trees


def each(names, *, read=True):
    """Each kind of ranker with each of these parameters that it reads, or does not."""
    pairs = [(kind, name) for kind in KINDS for name in sorted(names) if (name in USED) == read]
    return pytest.mark.parametrize(("kind", "name"), pairs)


def test_every_setting_of_lightgbm_is_tried_here():
    newer = {"gpu_device_id_list"} if tuple(map(int, lightgbm.__version__.split(".")[:2])) < (4, 7) else set()
    assert set(USED) - newer <= set(ALIASES)
    assert set(USED) == {*CHANGES, *WORK, *OF_CARDS, "boosting", "device_type"}


@each(CHANGES)
def test_a_parameter_that_is_read_changes_the_trees(kind, name, data, files, plain, tmp_path):
    value, beside = CHANGES[name]
    value = files / value if name.endswith("filename") else value
    ranker = make(kind, **{**beside, name: value}).fit(data)
    assert trees_of(ranker) != plain(kind, beside)
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(data), ranker.predict(data))
    assert loaded.get_params() == ranker.settings_ | {"n_jobs": None}
    assert trees_of(clone(loaded).set_params(n_jobs=1).fit(data)) == trees_of(ranker)
    for alias in ALIASES[name]:  # by its other names it is refused, with this one
        if alias != name:
            with pytest.raises(ParameterError, match=rf"^{alias}: expected {name}, which is the name of this setting"):
                make(kind, **{alias: value})


@each(WORK)
def test_a_parameter_of_the_work_reaches_lightgbm(kind, name, data, plain):
    value, told = WORK[name]
    ranker = make(kind, **{name: value}).fit(data)
    assert f"[{name}: {told}]\n" in ranker.model_.text
    expected = lightgbm.Booster(model_str=plain(kind, {}) + "\nparameters:\n\nend of parameters\n")
    np.testing.assert_allclose(ranker.predict(data), expected.predict(data.features), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["is_enable_sparse", "enable_bundle"])
def test_how_data_are_kept_changes_their_size(name, data, tmp_path):
    features = np.where(np.random.default_rng(0).random(data.features.shape) < 0.9, 0, data.features)
    sizes = []
    for params in ({}, {name: False}):
        kept = bin_rows(Rows(features.astype(np.float32), np.arange(len(features))), Team(), {"verbosity": -1} | params)
        file = tmp_path / f"{len(params)}.bin"
        kept.set_label(data.ratings).save_binary(file)
        sizes.append(file.stat().st_size)
    assert sizes[1] > 1.3 * sizes[0]


def test_lightgbm_finds_the_faster_way_unless_sums_are_not_exact_or_data_are_large(data, monkeypatch):
    for chosen, told in (
        ({}, ("0", "0")),
        ({"force_row_wise": True}, ("0", "1")),
        ({"force_col_wise": True}, ("1", "0")),
        ({"force_col_wise": False, **GOSS}, ("0", "0")),
        ({"force_row_wise": True, **GOSS}, ("0", "1")),
        (GOSS, ("1", "0")),
    ):
        text = make("UMart", **chosen).fit(data).model_.text
        assert (f"[force_col_wise: {told[0]}]" in text, f"[force_row_wise: {told[1]}]" in text) == (True, True)
    monkeypatch.setattr(tree_settings, "_MOST_COPIED", data.n_documents * data.n_features - 1)
    assert "[force_col_wise: 1]" in make("UMart").fit(data).model_.text


@pytest.mark.parametrize("settings", [{}, {"use_quantized_grad": True}, {"query_features": True}], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_trees_are_the_same_bits_for_any_threads_and_either_way_of_adding(data, settings, weighted):
    """Enough documents that LightGBM divides them: it gives each thread 512 or more."""
    rng = np.random.default_rng(0)
    features = np.tile(data.features, (6, 1)) + 0.01 * rng.normal(size=(6 * data.n_documents, N_FEATURES))
    ratings, queries = np.tile(data.ratings, 6), np.arange(6 * data.n_documents) // 30
    weight = rng.lognormal(0, 3, len(ratings)) if weighted else None
    ways = [(1, "force_col_wise"), (2, "force_col_wise"), *((n, "force_row_wise") for n in (1, 2, 3, 4))]
    found = {
        trees_of(
            make("UMart", n_trees=6, **{**settings, "n_jobs": n_jobs, way: True}).fit(
                features, ratings, qid=queries, row_weight=weight
            )
        )
        for n_jobs, way in ways
    }
    assert len(found) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_device_is_lightgbms(kind, data):
    """Without a graphics card LightGBM says so: the parameter came through."""
    try:
        ranker = make(kind, device_type="gpu").fit(data)
    except ParameterError as error:
        refusal = str(error)
    else:
        refusal = ranker.model_.text
    assert re.search(
        r"LightGBM: expected settings and data that it does not refuse, got |\[device_type: gpu\]", refusal
    )
    with pytest.raises(ParameterError, match="unknown device_type 'tpu'"):
        make(kind, device_type="tpu").fit(data)
    for name, value in OF_CARDS.items():
        with pytest.raises(ParameterError, match=f"^{name}: expected device_type to be set too, got device_type='cpu'"):
            make(kind, **{name: value}).fit(data)
        settings = make(kind, device_type="gpu", **{name: value}).checked_settings()
        params = lightgbm_parameters(settings)
        assert (params["device_type"], params[name]) == ("gpu", value)


@each(ALIASES, read=False)
def test_a_parameter_that_is_not_read_is_refused(kind, name, data):
    own = set(make(kind).get_params())
    names = [alias for alias in ALIASES[name] if alias not in own]
    for alias in names:
        with pytest.raises(ParameterError) as refused:  # noqa: PT011 (below)
            make(kind, **{alias: 1}).fit(data)
        message = str(refused.value)
        called = rf"{alias}: expected ({'|'.join(own)}), which is the name of this setting in {kind}"
        left = rf"{alias}: is not a setting of {kind}; \w.{{9,}}"
        of_fit = rf"{alias}: is an argument of fit; give it there: fit\(\.\.\., {alias}=\.\.\.\)"
        assert re.fullmatch(f"{called}|{left}|{of_fit}", message), message
    assert names or name in own


@pytest.mark.parametrize(
    ("kind", "name", "ours"),
    [
        ("UMart", "label_gain", "gain"),
        ("UMart", "lambdarank_truncation_level", "truncation"),
        ("UMart", "sigmoid", "sigma"),
        ("UMart", "lambdarank_norm", "weights"),
        ("LambdaMART", "label_gain", "gain"),
        ("LambdaMART", "lambdarank_truncation_level", "truncation"),
        ("LambdaMART", "sigmoid", "sigma"),
        ("LambdaMART", "lambdarank_norm", "norm"),
        ("TreeRanker", "label_gain", "gain"),
    ],
)
def test_what_stands_for_a_parameter_is_named_and_changes_the_trees(kind, name, ours, data, plain):
    with pytest.raises(ParameterError, match=rf"^{name}: expected {ours}, which is the name of this setting in {kind}"):
        make(kind, **{name: 1}).fit(data)
    value = {"gain": [0, 1, 1, 100], "truncation": 3, "sigma": 1.5, "weights": "none", "norm": False}[ours]
    assert trees_of(make(kind, **{ours: value}).fit(data)) != plain(kind, {})


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_without_the_one_it_needs_is_refused(kind, data, plain):
    for name, parameter in USED.items():
        if not parameter.needs or name in OF_CARDS:
            continue
        value = CHANGES[name][0]
        with pytest.raises(ParameterError, match=rf"^{name}: expected {parameter.needs[0]}\b.* to be set too, got"):
            make(kind, **{name: value}).fit(data)
        # At its default it asks for nothing.
        assert trees_of(make(kind, **{name: parameter.default}).fit(data)) == plain(kind, {})


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"lambda_l2": 1, "reg_lambda": 2}, "reg_lambda: expected lambda_l2, which is the name of this setting"),
        ({"boosting": "dart"}, "unknown boosting 'dart'"),
        ({**GOSS, **BAGGING}, "bagging_fraction: expected 1.0 with data_sample_strategy='goss'"),
        ({**GOSS, "top_rate": 0.0}, "top_rate: expected a number > 0 and <= 1, got 0"),
        ({**GOSS, "top_rate": 0.0, "other_rate": 0.0}, "top_rate: expected a number > 0 and <= 1, got 0"),
        ({**GOSS, "other_rate": 0.0}, "other_rate: expected a number > 0 and <= 1, got 0"),
        (
            {**GOSS, "top_rate": 0.8, "other_rate": 0.3},
            r"top_rate: expected top_rate \+ other_rate <= 1, got 1.1",
        ),
        ({**GOSS, "learning_rate": 0.1}, r"1 / learning_rate below 6, as goss begins .* got 10; raise .* or n_trees"),
        (
            {**GOSS, "learning_rate": 0.02, "n_trees": 500},
            "expected 1 / learning_rate below 50, .* got 50; raise learning_rate$",
        ),
        ({"force_col_wise": True, "force_row_wise": True}, "force_col_wise: expected False with force_row_wise"),
        ({"zero_as_missing": True, "use_missing": False}, "zero_as_missing: expected False with use_missing=False"),
        ({"zero_as_missing": True, "linear_tree": True}, "zero_as_missing: expected False with linear_tree"),
        ({"idcg_at": 5, "weights": "gain"}, "idcg_at: has no effect with weights='gain', .*; leave out idcg_at"),
        ({"gain": "linear", "weights": "none"}, "gain: has no effect with weights='none'"),
        ({"select_by": 5}, "select_by: expected a metric or a list of metrics, .* got 5"),
    ],
)
def test_settings_that_cannot_stand_together(chosen, message, data):
    with pytest.raises(ParameterError, match=message):
        make("UMart", **chosen).fit(data)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (
            {"interaction_constraints": [[0, 99]]},
            "interaction_constraints: expected numbers of features below 8, got 99",
        ),
        ({"interaction_constraints": [[0, -3]]}, "interaction_constraints: expected a list of features, by number"),
        ({"interaction_constraints": [0, 1]}, "interaction_constraints: expected groups of features"),
        ({"interaction_constraints": "0,1"}, "interaction_constraints: expected groups of features"),
        ({"interaction_constraints": [["z"]]}, "unknown interaction_constraints 'z'"),
        ({"interaction_constraints": "[" * 100_000}, "interaction_constraints: expected groups of features"),
        ({"categorical_feature": [99]}, "categorical_feature: expected numbers of features below 8, got 99"),
        ({"categorical_feature": [-1]}, "categorical_feature: expected a list of features, by number"),
        ({"categorical_feature": [1.5]}, "categorical_feature: expected a list of features, by number"),
        ({"categorical_feature": 1.5}, "categorical_feature: expected a list of features"),
        ({"feature_contri": [0.5]}, "feature_contri: expected 8 numbers, one for each feature, got 1"),
        ({"max_bin_by_feature": [5] * 9}, "max_bin_by_feature: expected 8 numbers, one for each feature, got 9"),
        ({"max_bin_by_feature": [1] * 8}, "max_bin_by_feature: expected an integer >= 2 and <= 2147483647, got 1"),
        ({"cegb_penalty_feature_lazy": [1.0]}, "cegb_penalty_feature_lazy: expected 8 numbers, one for each feature"),
        ({"monotone_constraints": [2] * 8}, "monotone_constraints: expected an integer >= -1 and <= 1, got 2"),
        ({"monotone_constraints": 1}, "monotone_constraints: expected a list with 1, 0 or -1 for each feature"),
        (
            {"forcedsplits_filename": "/nowhere.json"},
            "forcedsplits_filename: expected a file, got /nowhere.json: No such",
        ),
        ({"forcedbins_filename": "a b.json"}, "forcedbins_filename: expected a file name without spaces"),
        ({"forcedsplits_filename": 5}, "forcedsplits_filename: expected a file name"),
        ({"seed": 2**31}, "seed: expected an integer >= . and <= 2147483647"),
        ({"min_documents": 2**40}, "min_documents: expected an integer >= . and <= 2147483647"),
        ({"n_leaves": 131_073}, "n_leaves: expected an integer >= . and <= 131072"),
        ({"gain": 5}, "gain: expected 'exp2', 'linear', a list"),
    ],
)
def test_values_that_would_be_ignored_or_worse(chosen, message, data):
    """LightGBM goes on without some of these, counts others as other numbers, and reads beyond its memory."""
    with pytest.raises(ParameterError, match=message):
        make("UMart", **chosen).fit(data)


def test_forced_splits_that_are_no_json(data, tmp_path):
    for name, content in (
        ("forcedsplits_filename", "{"),
        ("forcedsplits_filename", "[]"),
        ("forcedbins_filename", "{}"),
    ):
        (tmp_path / "forced.json").write_text(content)
        with pytest.raises(ParameterError, match=f"{name}: expected .* as JSON in .*, got something else"):
            make("UMart", **{name: tmp_path / "forced.json"}).fit(data)


@pytest.mark.parametrize("name", sorted(USED))
@examples(30)
@given(value=st.one_of(
    st.text(max_size=5), st.booleans(), st.integers(), st.floats(), st.lists(st.floats(), max_size=3),
    st.lists(st.text(max_size=3), max_size=3), st.dictionaries(st.integers(), st.integers(), max_size=2), st.binary(),
))  # fmt: skip
def test_any_value_is_taken_or_refused_in_one_line(name, value):
    """What is taken has a form that LightGBM reads: finite numbers that its own types hold."""
    try:
        taken = USED[name].kind.check(name, value)
    except ParameterError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        assert refusal.startswith((f"{name}: expected ", f"unknown {name} "))
        return
    for one in flat(taken):
        assert isinstance(one, str) or (abs(one) < 2**31 if isinstance(one, int) else math.isfinite(one))


def flat(value):
    return [one for part in value for one in flat(part)] if isinstance(value, tuple) else [value]


def test_seeds_do_not_run_over(data):
    """Each stretch of rounds adds to the seeds, the highest ones too."""
    highest = make("UMart", n_trees=60, seed=2**31 - 1, extra_trees=True, extra_seed=2**31 - 1).fit(data)
    assert len(highest.history_) == 60


def test_features_and_their_copies():
    data = RankingDataset(np.zeros((2, 3)), feature_names=("a", "b", "c"))
    params = {
        "categorical_feature": ["c", 0],
        "interaction_constraints": [["a", 1], [2]],
        "monotone_constraints": [1, 0, -1],
        "max_bin_by_feature": [5, 6, 7],
    }
    assert for_data(params, data, copies=2) == {
        "categorical_feature": [2, 0],
        "interaction_constraints": [[0, 1, 3, 4], [2, 5]],
        "monotone_constraints": [1, 0, -1, 1, 0, -1],
        "max_bin_by_feature": [5, 6, 7, 5, 6, 7],
    }
    assert for_data({"lambda_l2": 1.0}, data, copies=3) == {"lambda_l2": 1.0}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("categorical_feature", ([3], (3,), np.array([3]), 3, "3", "name:d", "d", ["d"])),
        ("interaction_constraints", ([[0, 1], [2, 3]], ((0, 1), (2, 3)), "[0,1],[2,3]", [["a", "b"], ["c", "d"]])),
        (
            "monotone_constraints",
            ([1, 0, 0, 0, 0, 0, 0, -1], np.array([1, 0, 0, 0, 0, 0, 0, -1]), "1,0,0,0,0,0,0,-1"),
        ),
    ],
)
def test_forms_of_a_list(name, values, data):
    named = data.with_features(data.features, tuple("abcdefgh"))
    found = {trees_of(make("UMart", n_trees=2, **{name: value}).fit(named)) for value in values}
    assert len(found) == 1
    assert found != {trees_of(make("UMart", n_trees=2).fit(named))}


def test_copies_of_features_are_constrained_alike(data):
    """With two groups of features and their copies, no path of a tree has features of both."""
    ranker = make("UMart", query_features=True, interaction_constraints=[[0, 1, 2, 3], [4, 5, 6, 7]]).fit(data)

    def paths(node, seen=()):
        if "split_feature" not in node:
            return [seen]
        seen = (*seen, node["split_feature"] % N_FEATURES < 4)
        return paths(node["left_child"], seen) + paths(node["right_child"], seen)

    trees = ranker.booster_.dump_model()["tree_info"]
    assert all(len(set(path)) <= 1 for tree in trees for path in paths(tree["tree_structure"]))
    assert any(feature >= N_FEATURES for tree in trees for feature in features_of(tree["tree_structure"]))


def features_of(node):
    if "split_feature" not in node:
        return []
    return [node["split_feature"], *features_of(node["left_child"]), *features_of(node["right_child"])]


# Settings of a model folder


@pytest.fixture(scope="module")
def folders(data, tmp_path_factory):
    """A saved model of each kind."""
    folder = tmp_path_factory.mktemp("models")
    for kind in KINDS:
        make(kind, n_trees=2, lambda_l2=1.0).fit(data).save(folder / kind)
    return folder


def changed(folder, change):
    described = json.loads((folder / "model.json").read_text())
    described["settings"] |= change
    return json.dumps(described)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_trees": -3}, "n_trees: expected an integer >= 1.*, got -3"),
        ({"n_leaves": "15"}, "n_leaves: expected an integer >= 2.*, got '15'"),
        ({"learning_rate": [0.1]}, r"learning_rate: expected a number > 0, got \(0.1,\)"),
        ({"min_documents": 1.5}, "min_documents: expected an integer >= 0.*, got 1.5"),
        ({"patience": None}, "patience: expected an integer >= 1.*, got None"),
        ({"seed": -1}, "seed: expected an integer >= 0.*, got -1"),
        ({"query_features": "no"}, "query_features: expected True or False, got 'no'"),
        ({"lambda_l2": "much"}, "lambda_l2: expected a number >= 0, got 'much'"),
        ({"max_bin": 1}, "max_bin: expected an integer >= 2.*, got 1"),
        ({"extra_trees": 1}, "extra_trees: expected True or False, got 1"),
        ({"gain": 7}, "gain: expected 'exp2', 'linear', a list"),
        ({"gain": [0, -1]}, "gain: expected finite gains that are not negative, got -1"),
        ({"select_by": ["ndgc@3"]}, r"did you mean 'ndcg'\?"),
        ({"select_by": 5}, "select_by: expected a metric or a list of metrics"),
        ({"rule": "lightgmb"}, r"did you mean 'lightgbm'\?"),
        ({"for_target": "slor"}, r"for_target: .*got 'slor'; did you mean 'solr'\?"),
        ({"nonsense": 5}, "unknown setting of .* 'nonsense'"),
        ({"base": 5}, "base: expected a ranker, such as UMart"),
    ],
)
def test_a_model_with_a_value_that_cannot_be_is_refused(kind, change, message, folders, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for file in (folders / kind).iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    (model / "model.json").write_text(changed(model, change))
    with pytest.raises(DataError, match=message) as refused:
        tierank.load(model)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("UMart", {"window": 0}, r"window: expected an integer >= 1, or None \(all of them\), got 0"),
        ("UMart", {"sigma": -1.0}, "sigma: expected a number > 0, got -1.0"),
        ("UMart", {"hessian": "exakt"}, r"did you mean 'exact'\?"),
        ("UMart", {"weights": 3}, "unknown weights 3"),
        ("LambdaMART", {"sigma": 0}, "sigma: expected a number > 0, got 0"),
        ("LambdaMART", {"norm": 3}, "norm: expected True or False, got 3"),
        ("TreeRanker", {"loss": "sofmax"}, r"did you mean 'softmax'\?"),
    ],
)
def test_settings_of_the_objective_are_looked_at_too(kind, change, message, folders, tmp_path, data):
    test_a_model_with_a_value_that_cannot_be_is_refused(kind, change, message, folders, tmp_path)


def test_a_model_of_a_loss_that_was_not_saved_keeps_its_settings(data, tmp_path):
    def squares(scores, batch, *, scale=1.0):
        return scale * (scores - batch.gains).square().new_zeros(batch.n_queries).index_add(
            0, batch.query, (scores - batch.gains) ** 2
        )

    ranker = TreeRanker(loss=squares, loss_settings={"scale": 2.0}, **QUICK).fit(data)
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(data), ranker.predict(data))
    assert loaded.get_params()["loss_settings"] == {"scale": 2.0}


def test_a_base_inside_a_model_is_looked_at_too(data, tmp_path):
    UMart(base=LambdaMART(n_trees=2, n_jobs=1), n_trees=2, n_jobs=1).fit(data).save(tmp_path / "model")
    described = json.loads((tmp_path / "model" / "model.json").read_text())
    described["settings"]["base"]["settings"]["n_leaves"] = 0
    (tmp_path / "model" / "model.json").write_text(json.dumps(described))
    with pytest.raises(DataError, match=r"n_leaves: expected an integer >= 2.*, got 0"):
        tierank.load(tmp_path / "model")
