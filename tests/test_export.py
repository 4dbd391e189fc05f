"""Exports: the same scores in the form and by the rule of another engine, or a refusal that says what to change."""

import contextlib
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import lightgbm
import numpy as np
import pytest
import reference_engines
from hypothesis import example, given
from hypothesis import strategies as st
from running import examples

import tierank
from tierank import (
    TARGETS,
    Blend,
    DataError,
    LambdaMART,
    LinearRanker,
    NotFittedError,
    ParameterError,
    RankingDataset,
    UBoost,
    UMart,
    URank,
    UrBoost,
    cli,
    verify,
)
from tierank.data.columns import Category
from tierank.export import (
    NAN,
    NONE,
    ZERO,
    Layer,
    Model,
    Network,
    QueryCopies,
    StandardisedMean,
    Sum,
    Trees,
    write_model,
)
from tierank.export import c as c_target
from tierank.export.neutral import NEAR_ZERO, floor_float32
from tierank.export.proof import count_swaps, generate_rows
from tierank.networks import MLP, TierRNN
from tierank.rankers import lightgbm as adapter
from tierank.rankers import tree_settings
from tierank.rankers.lightgbm import MAX_DEPTH
from tierank.transforms import TRANSFORMS, SideBySide, Standard, Transform, Unchanged, add_query_copies

ROOT = Path(__file__).parent.parent
ENGINES = ("elasticsearch", "opensearch", "solr", "vespa")

TREES = {"n_trees": 30, "min_documents": 5, "n_jobs": 1}
AS_IT_COMES = {"max_epochs": 4, "hidden": (12, 6), "n_jobs": 1, "learning_rate": 0.01}
NETWORK = {**URank.PRESETS["plain-inputs"], **AS_IT_COMES}
POINTWISE = NETWORK | {"feature_transform": "standard"}


@pytest.fixture(scope="module")
def plain():
    """Two features have values on both sides of 0, one of them integers."""
    data = tierank.make_ranking(60, n_features=7, mean_length=25, max_length=50, seed=4)
    features = np.array(data.features)
    features[:, :2] -= np.median(features[:, :2], axis=0)
    features[:, 1] = np.rint(3 * features[:, 1] / features[:, 1].std())
    return data.with_features(features, None)


@pytest.fixture(scope="module")
def gaps(plain):
    """The same data with a tenth of the values missing."""
    features = np.array(plain.features)
    features[np.random.default_rng(0).random(features.shape) < 0.1] = np.nan
    return RankingDataset.from_parts(features, plain.ratings, plain.offsets, plain.query_ids)


# What is fitted, whether on data with gaps, and the targets that hold it.
EVERY = tuple(TARGETS)
LISTS = ("onnx", "c")
BLEND = {"n_configs": 1, "n_seeds": 1, "n_trees": 15, "max_epochs": 2, "n_jobs": 1}
CASES = {
    "umart": (UMart(**TREES), False, EVERY),
    "lambdamart": (LambdaMART(**TREES), False, EVERY),
    "umart with gaps": (UMart(**TREES), True, ("onnx", "vespa", "c")),
    "gaps as zeros": (UMart(use_missing=False, **TREES), True, EVERY),
    "zeros as gaps": (UMart(zero_as_missing=True, **TREES), True, LISTS),
    "urank": (URank(**NETWORK), True, LISTS),
    "as it comes": (URank(**AS_IT_COMES), True, LISTS),
    "query_log1p": (URank(**NETWORK | {"feature_transform": "query_log1p"}), True, LISTS),
    "standard": (URank(**POINTWISE), False, ("onnx", "solr", "vespa", "c")),
    "standard with gaps": (URank(**POINTWISE), True, ("onnx", "vespa", "c")),
    "log1p": (URank(**NETWORK | {"feature_transform": "log1p"}), True, ("onnx", "vespa", "c")),
    "quantile": (URank(**NETWORK | {"feature_transform": "quantile"}), True, ("onnx", "vespa", "c")),
    "tanh": (URank(activation="tanh", output_activation="sigmoid", **POINTWISE), False, ("onnx", "solr", "vespa", "c")),
    "leaky": (URank(activation="leaky_relu", **POINTWISE), False, ("onnx", "solr", "vespa", "c")),
    "elu": (URank(activation="elu", output_activation="elu", **POINTWISE), False, ("onnx", "vespa", "c")),
    "gelu": (URank(activation="gelu", output_activation="silu", **POINTWISE), False, ("onnx", "vespa", "c")),
    "linear": (URank(**POINTWISE | {"hidden": ()}), False, ("onnx", "solr", "vespa", "c")),
    "three seeds": (URank(n_seeds=3, **POINTWISE), False, LISTS),
    "uboost": (UBoost(n_learners=3, coefficient=0.5, **POINTWISE), False, ("onnx", "solr", "vespa", "c")),
    "uboost on trees": (UBoost(base=UMart(**TREES), n_learners=2, **POINTWISE), False, ("onnx", "vespa", "c")),
    "umart on a network": (UMart(base=URank(**POINTWISE), **TREES), True, ("onnx", "vespa", "c")),
    "seeds on trees": (UBoost(base=UMart(**TREES), n_learners=2, n_seeds=2, **NETWORK), True, LISTS),
    "urboost": (UrBoost(n_learners=2, **POINTWISE), False, ("onnx", "vespa", "c")),
    "urrank": (UrBoost(n_learners=1, score_from="state", **POINTWISE), False, ("onnx", "solr", "vespa", "c")),
    "query_features": (UMart(query_features=True, **TREES), False, LISTS),
    "query_features with gaps": (LambdaMART(query_features=True, **TREES), True, LISTS),
    "query_features, zeros as gaps": (UMart(query_features=True, zero_as_missing=True, **TREES), True, LISTS),
    "query_features on a network": (UMart(query_features=True, base=URank(**POINTWISE), **TREES), True, LISTS),
    "trees on trees": (UMart(base=LambdaMART(**TREES), **TREES), False, ("onnx", "vespa", "c")),
    "linear ranker": (LinearRanker(n_jobs=1), True, LISTS),
    "linear ranker, standard": (
        LinearRanker(feature_transform="standard", n_jobs=1),
        False,
        ("onnx", "solr", "vespa", "c"),
    ),
    "linear ranker, none": (LinearRanker(feature_transform="none", n_jobs=1), True, ("onnx", "solr", "vespa", "c")),
    "linear ranker, two": (
        LinearRanker(feature_transform=("log1p", "quantile"), gain="exp2", n_jobs=1),
        True,
        ("onnx", "vespa", "c"),
    ),
    "blend": (Blend(**BLEND), True, LISTS),
    "blend of trees": (Blend(**BLEND | {"n_seeds": 0, "query_features": False, "rotate": False}), False, LISTS),
}


@pytest.fixture(scope="module")
def fitted(plain, gaps):
    kept = {}

    def fit(name):
        if name not in kept:
            ranker, has_gaps, _ = CASES[name]
            kept[name] = ranker.fit(gaps if has_gaps else plain)
        return kept[name], gaps if CASES[name][1] else plain

    return fit


@pytest.mark.parametrize("name", CASES)
def test_scores_alike_or_is_refused(name, fitted, tmp_path):
    ranker, data = fitted(name)
    for target in TARGETS:
        if target not in CASES[name][2]:
            with pytest.raises(ParameterError, match=rf"^{target}: .*; (train|replace) ") as refusal:
                ranker.export(tmp_path / target, to=target)
            assert refusal.value.where == target
            assert re.match("train|replace", refusal.value.fix)
            assert not (tmp_path / target).exists()
            continue
        ranker.export(tmp_path / target, to=target)
        proof = verify(ranker, tmp_path / target, target, data)
        assert proof.holds, str(proof)
        assert proof.n_same >= proof.n_queries - 2, str(proof)
        assert proof.n_documents == data.n_documents


@pytest.mark.parametrize(
    "name", ["umart", "gaps as zeros", "umart with gaps", "standard", "tanh", "uboost", "urrank", "linear ranker, none"]
)
def test_executors_follow_the_engines_rules(name, fitted, tmp_path):
    """Each executor, which works on all documents at once, and a twin that walks nested JSON give the same bits."""
    ranker, data = fitted(name)
    rows = generate_rows(ranker.to_neutral(), data, bounded=False)
    rows = rows.features[np.random.default_rng(1).permutation(rows.n_documents)[:60]]
    for target in set(ENGINES) & set(CASES[name][2]):
        ranker.export(tmp_path / target, to=target)
        found = TARGETS[target].open(tmp_path / target)(rows, np.array([0, len(rows)]))
        for row, score in zip(rows, found, strict=True):
            if target == "solr":
                assert score == pytest.approx(reference_engines.solr(tmp_path / target, row), rel=1e-6, abs=1e-7)
            elif target == "vespa":
                if (tmp_path / target / "models" / "tierank.json").exists():
                    for is_large in (True, False):
                        assert score == reference_engines.vespa(tmp_path / target, row, is_large=is_large)
            else:
                for follows in (True, False):  # old and new versions of the plugin
                    assert score == reference_engines.elasticsearch(tmp_path / target, row, follows_missing=follows)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threshold", [0.1, 0.5, 1e-9, -3e-7, 1.0000000180025095e-35, 0.0, 12345.678, -7e8])
def test_both_sides_of_a_threshold(target, threshold, tmp_path):
    """The largest float32 that is not above the threshold goes left, the next one right."""
    write_model(Model(Trees.stump(1, threshold, (-1.0, 2.0)), 2, None, False), tmp_path / "m", target)
    at = np.float32(threshold)
    if float(at) > threshold:
        at = np.nextafter(at, np.float32(-np.inf))
    column = np.array([at, np.nextafter(at, np.float32(np.inf)), -3e38, 3e38], np.float32)
    rows = np.stack([np.full(4, 99, np.float32), column], axis=1)
    found = TARGETS[target].open(tmp_path / "m")(rows, np.array([0, 4]))
    constant = {"elasticsearch": 1.125, "opensearch": 1.125}.get(target, 0.0)
    assert (found - constant).tolist() == [-1.0, 2.0, -1.0, 2.0]


@pytest.mark.parametrize(
    ("missing", "default_left"), [(NONE, True), (NAN, True), (NAN, False), (ZERO, True), (ZERO, False)]
)
@pytest.mark.parametrize("target", ["onnx", "c"])
def test_missing_values_go_where_lightgbm_sends_them(missing, default_left, target, tmp_path):
    trees = Trees.stump(0, -1.0, (10.0, 20.0), missing, default_left)  # 0 goes right by its number
    way = 10.0 if default_left else 20.0
    expected = {NONE: [20.0, 20.0], NAN: [way, 20.0], ZERO: [way, way]}[missing]  # of NaN, of 0
    rows = np.array([[np.nan], [0.0], [-2.0], [5.0]], np.float32)
    write_model(Model(trees, 1, None, True), tmp_path / "m", target)
    found = TARGETS[target].open(tmp_path / "m")(rows, np.array([0, 4]))
    assert found.tolist() == [*expected, 10.0, 20.0]
    assert trees.predict(rows).tolist() == [*expected, 10.0, 20.0]


@pytest.mark.parametrize("setting", [{}, {"zero_as_missing": True}, {"use_missing": False}])
def test_trees_are_read_as_lightgbm_reads_them(setting, gaps):
    ranker = UMart(**TREES, **setting).fit(gaps)
    trees = adapter.read_trees(ranker.booster_.model_to_string())
    rows = np.array(gaps.features)
    rng = np.random.default_rng(2)
    rows[rng.random(rows.shape) < 0.3] = np.nan
    rows[rng.random(rows.shape) < 0.1] = 0
    np.testing.assert_array_equal(trees.predict(rows), ranker.predict(rows))


def stumps(numbers):
    """One tree for each threshold, all of one feature."""
    n, ones = np.arange(len(numbers)), np.ones(len(numbers), bool)
    thresholds = np.array(numbers, np.float32)
    return Trees(n, 0 * n, thresholds, ~(2 * n), ~(2 * n + 1), np.zeros(len(n), np.uint8), ones, np.zeros(2 * len(n)))


@pytest.mark.parametrize("column", range(6))
@pytest.mark.parametrize("target", LISTS)
def test_copies_in_the_query_have_the_same_bits(target, column, tmp_path):
    """A stump at each value of a copy and one at the float32 below: the sum tells which of them a document is above."""
    rng = np.random.default_rng(3)
    values = np.array([0.0, -0.0, 1.0, 0.1, -3.5, 1e-42, 3.4e38, -3.4e38, np.nan, np.nan], np.float32)
    values = np.append(values, rng.standard_normal(20).astype(np.float32))
    lengths = [1, 1, 2, 3, 8, 60]
    data = RankingDataset(rng.choice(values, (sum(lengths), 2)), qid=np.repeat(np.arange(6), lengths))
    copies = add_query_copies(data).features
    known = np.unique(copies[~np.isnan(copies[:, column]), column])
    trees = stumps(np.concatenate([known, np.nextafter(known, np.float32(-np.inf))]))
    trees = replace(
        trees,
        feature=np.full_like(trees.feature, column),
        missing=np.full_like(trees.missing, NAN),
        values=np.tile([0.0, 1.0], len(trees.roots)),
    )
    write_model(Model(QueryCopies(trees), 2, None, True), tmp_path / "m", target)
    found = TARGETS[target].open(tmp_path / "m")(data.features, data.offsets)
    np.testing.assert_array_equal(found, trees.predict(copies))
    assert len(np.unique(found)) >= min(len(known), 5)


sizes = st.one_of(st.floats(2.0**-60, 2.0**60, width=32), st.floats(2.0**-30, 2.0**-10, width=32), st.just(0.0))


@given(st.lists(st.tuples(sizes, st.sampled_from([-1.0, 1.0])), min_size=1, max_size=6))
@examples(150)
def test_solr_slack_is_undone(tmp_path_factory, pairs):
    """What Solr compares with after adding 1e-6 is the threshold times a power of two, exactly."""
    numbers, place = [size * sign for size, sign in pairs], tmp_path_factory.mktemp("slack") / "m"
    write_model(Model(stumps(numbers), 1, None, False), place, "solr")
    body = json.loads((place / "model.json").read_text())
    deviations = {one["name"]: one["norm"]["params"]["std"] if "norm" in one else "1" for one in body["features"]}
    scale = {name: 1 / float(np.float32(text)) for name, text in deviations.items()}
    assert all(math.frexp(factor)[0] == 0.5 for factor in scale.values())
    roots = [tree["root"] for tree in body["params"]["trees"]]
    compared = [float(np.float32(root["threshold"]) + np.float32(1e-6)) for root in roots]
    assert np.isfinite(compared).all()
    assert compared == [number * scale[root["feature"]] for number, root in zip(numbers, roots, strict=True)]


def test_solr_refuses_thresholds_that_no_scale_fits(tmp_path):
    """Powers of two land on -1, which no number plus 1e-6 is, with one scale or another."""
    trees = stumps([-(2.0**-k) for k in range(150)])
    with pytest.raises(ParameterError, match="feature 0 has both such small and such large thresholds"):
        write_model(Model(trees, 1, None, False), tmp_path / "m", "solr")


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-3e38, max_value=3e38))
@examples(200)
def test_floor_to_float32(number):
    (found,) = floor_float32(np.array([number]))
    assert float(found) <= number < float(np.nextafter(found, np.float32(np.inf)))


def test_elasticsearch_scores_are_never_negative(fitted, tmp_path):
    ranker, data = fitted("umart")
    ranker.export(tmp_path / "es", to="elasticsearch")
    found = TARGETS["elasticsearch"].open(tmp_path / "es")(data.features, data.offsets)
    assert found.min() >= 0
    assert ranker.predict(data).min() < 0


def test_a_wrong_export_is_found_out(fitted, tmp_path):
    ranker, data = fitted("umart")
    ranker.export(tmp_path / "solr", to="solr")
    file = tmp_path / "solr" / "model.json"
    body = json.loads(file.read_text())
    root = body["params"]["trees"][0]["root"]
    root["threshold"] = str(np.nextafter(np.float32(root["threshold"]), np.float32(-np.inf)))
    (tmp_path / "solr" / "model.json").write_text(json.dumps(body))
    proof = verify(ranker, tmp_path / "solr", "solr", data)
    assert not proof.holds, "one threshold lower by one float32: only a row on the threshold shows it"
    assert "does NOT score as the model does" in str(proof)
    with pytest.raises(DataError, match="expected an export for onnx, got nothing; export the model first"):
        verify(ranker, tmp_path / "none.onnx", "onnx", data)


def test_a_tie_is_told_from_a_swap():
    offsets = np.array([0, 3, 5])
    ours = np.array([3.0, 2.0, 1.0, 5.0, 5.0])
    assert count_swaps(ours, ours, offsets, 1.0) == (2, 0, 0, 0.0)
    assert count_swaps(ours, ours + np.array([0, 0, 0, 0, 1e-6]), offsets, 1.0)[:3] == (2, 0, 0)  # ours are equal
    n_same, n_close, n_swapped, largest = count_swaps(ours, np.array([2.0, 3.0, 1.0, 5.0, 5.0]), offsets, 1.0)
    assert (n_same, n_close, n_swapped) == (1, 0, 1)
    assert largest == pytest.approx(1 / 2)  # of its own score
    assert count_swaps(ours, np.array([2.0, 3.0, 1.0, 5.0, 5.0]), offsets, 4.0)[3] == pytest.approx(1 / 4)
    near = np.array([1.0, 1.0 + 1e-9])
    assert count_swaps(near[::-1].copy(), near, np.array([0, 2]), 1.0)[:3] == (0, 1, 0)
    assert count_swaps(near, np.array([1.0, np.nan]), np.array([0, 2]), 1.0)[3] == math.inf


def test_generated_rows_sit_on_every_threshold(fitted, plain):
    ranker, data = fitted("umart with gaps")
    model = ranker.to_neutral()
    rows = generate_rows(model, data, bounded=True).features
    at = model.scorer.threshold
    for feature in np.unique(model.scorer.feature):
        wanted = np.unique(at[model.scorer.feature == feature])
        assert np.isin(wanted, rows[:, feature]).all()
        assert np.isin(np.nextafter(wanted, np.float32(np.inf)), rows[:, feature]).all()
    seen = model.seen_missing()
    assert seen.any()
    assert np.isnan(rows[:, seen]).any(axis=0).all()
    # In trees that saw none, a missing value is 0, in all features. Networks that saw none may do anything.
    assert np.isnan(generate_rows(fitted("umart")[0].to_neutral(), plain, bounded=True).features).any(axis=0).all()
    for name in ("standard", "uboost on trees"):
        assert not np.isnan(generate_rows(fitted(name)[0].to_neutral(), plain, bounded=True).features).any()


def paths_of(trees, root):
    """Each split of a tree with the splits above it."""
    waiting = [(int(root), ())]
    while waiting:
        node, above = waiting.pop()
        if node >= 0:
            yield node, above
            waiting += [(int(child), (*above, node)) for child in (trees.left[node], trees.right[node])]


@pytest.mark.parametrize("name", ["umart", "umart with gaps", "zeros as gaps"])
def test_generated_rows_show_every_change_of_a_split(name, fitted):
    """Each threshold one float32 higher or lower, and each missing value sent the other way: some score changes."""
    ranker, data = fitted(name)
    trees = ranker.to_neutral().scorer
    rows = generate_rows(ranker.to_neutral(), data, bounded=True).features
    for root in trees.roots[:8]:
        alone = replace(trees, roots=np.array([root]))
        expected = alone.predict(rows)

        def shows(alone=alone, expected=expected, **changed):
            return (replace(alone, **changed).predict(rows) != expected).any()

        for split, above in paths_of(trees, root):
            same = [one for one in above if trees.feature[one] == trees.feature[split]]
            missing, default_left = trees.missing.copy(), trees.default_left.copy()
            missing[split], default_left[split] = missing[split] or NAN, not trees.nan_left[split]
            # A split below another one of the same feature does not see its missing values.
            assert same or shows(missing=missing, default_left=default_left)
            at = trees.threshold[split]
            if at in trees.threshold[same] or (missing[split] == ZERO and abs(at) <= NEAR_ZERO):
                continue  # it sees only missing values
            for side in (np.inf, -np.inf):
                threshold = trees.threshold.copy()
                threshold[split] = np.nextafter(at, np.float32(side))
                assert shows(threshold=threshold)


def mutants(body, path=()):
    """Wrong versions of a JSON text, each with what was changed: every number, text, truth and key."""
    children = body.items() if isinstance(body, dict) else enumerate(body)
    for key, value in list(children):
        if isinstance(value, (dict, list)):
            for what, changed in mutants(value, (*path, key)):
                yield (
                    what,
                    {**body, key: changed} if isinstance(body, dict) else [*body[:key], changed, *body[key + 1 :]],
                )
        if isinstance(body, dict):
            yield (*path, key, "left out"), {k: v for k, v in body.items() if k != key}
            yield from (((*path, key), {**body, key: other}) for other in others(key, value))
        else:
            yield (*path, key, "twice"), [*body, value]


def others(key, value):
    """Wrong values in place of a right one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value + 1, value - 1]
    if isinstance(value, str) and re.fullmatch(r"-?[\d.e+-]+", value):
        return [str(float(value) + 1), str(float(value) - 1)]
    return [f"{value}x", ["bm25", "prior"][value == "bm25"]] if isinstance(value, str) else []


# What engines do not score by: ids of roots, and what users name and write themselves.
UNUSED = {
    "elasticsearch": r".*\b(template(_language| .*)?|params|depth)|featureset name|\d+ nodeid",
    "solr": r"(\d+ )?store|name",
    "vespa": r"name|version|num_class|feature_infos|pandas_categorical|tree_info \d+ tree_index",
}
FILES = {
    "elasticsearch": ["featureset.json", "model.json"],
    "solr": ["features.json", "model.json"],
    "vespa": ["models/tierank.json"],
}


@pytest.mark.parametrize("target", FILES)
def test_no_wrong_file_passes(target, tmp_path):
    """Whatever is changed in a file is found out, unless the engine does not score by it."""
    data = tierank.make_ranking(12, n_features=2, mean_length=12, max_length=20, seed=2)
    features = np.array(data.features) - np.median(data.features, axis=0)
    data = data.with_features(features, ["bm25", "prior"])
    # One split per tree, so that each sees missing values.
    ranker = UMart(n_trees=4, n_leaves=2, min_documents=5, n_jobs=1, learning_rate=1.0).fit(data)
    assert set(ranker.to_neutral().scorer.feature) == {0, 1}
    place = tmp_path / target
    ranker.export(place, to=target)
    for name in FILES[target]:
        text = (place / name).read_text()
        body = json.loads(text)
        wrong = mutants(body)
        if name == "model.json" and target == "elasticsearch":  # the trees are a text inside
            held = body["model"]["model"]
            trees = mutants(json.loads(held["definition"]))
            wrong = ((what, {"model": {"model": held | {"definition": json.dumps(own)}}}) for what, own in trees)
        for what, changed in wrong:
            (place / name).write_text(json.dumps(changed))
            try:
                is_found = not verify(ranker, place, target, data).holds
            except DataError as error:
                is_found = str(error).startswith(f"{place}: expected")
            what = " ".join(map(str, what)).removesuffix(" left out")
            assert is_found or re.fullmatch(UNUSED[target], what), f"{name}: {what}"
        (place / name).write_text(text)
    assert verify(ranker, place, target, data).holds


def test_a_damaged_export_is_a_users_error(plain, tmp_path):
    ranker = UMart(**TREES).fit(plain)
    for target in TARGETS:
        ranker.export(tmp_path / target, to=target)
        place = tmp_path / target
        for file in [place] if place.is_file() else [one for one in place.rglob("*") if one.suffix == ".json"]:
            if file.name in (".tierank.json", "search.json"):
                continue
            kept = file.read_bytes()
            for damaged in (b"", b"{", b"[]", b"{}", kept[: len(kept) // 2], b"\xff\xfe"):
                file.write_bytes(damaged)
                with pytest.raises((DataError, ParameterError), match=rf"{target}: expected|^c: expected"):
                    verify(ranker, place, target, plain)
            file.write_bytes(kept)
        assert verify(ranker, place, target, plain).holds


def test_generated_lists_sit_on_the_thresholds_of_copies(fitted):
    """In lists that go from 0 to 1 a value is its own place in the range of the query."""
    ranker, data = fitted("query_features")
    trees = ranker.to_neutral().scorer.trees
    copies = add_query_copies(generate_rows(ranker.to_neutral(), data, bounded=True)).features
    at = trees.threshold
    in_range = (trees.feature >= 7) & (trees.feature < 14)
    assert in_range.any()
    for column in np.unique(trees.feature[in_range]):
        wanted = np.unique(at[trees.feature == column])
        assert np.isin(wanted, copies[:, column]).all()
        assert np.isin(np.nextafter(wanted, np.float32(np.inf)), copies[:, column]).all()


@pytest.mark.parametrize("name", ["three seeds", "query_features", "blend", "linear ranker"])
def test_lists_of_any_length(name, fitted, tmp_path):
    ranker, data = fitted(name)
    for target in LISTS:
        ranker.export(tmp_path / f"m.{target}", to=target)
        run = TARGETS[target].open(tmp_path / f"m.{target}")
        for n in (1, 2, 9, 400):
            rows = data.features[:n]
            scores = ranker.predict(rows, qid=np.zeros(n))
            np.testing.assert_allclose(run(rows, np.array([0, n])), scores, atol=2e-5)


def test_onnx_states_its_interface(fitted, tmp_path):
    onnx = pytest.importorskip("onnx")
    fitted("urank")[0].export(tmp_path / "m.onnx", to="onnx")
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": 18, "ai.onnx.ml": 3}
    (features,), (scores,) = model.graph.input, model.graph.output
    dims = [[d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] for value in (features, scores)]
    assert dims == [["documents", 7], ["documents"]]
    (names,) = (p.value for p in model.metadata_props if p.key == "features")
    assert names.split("\n") == [f"feature_{k}" for k in range(1, 8)]


def test_trees_of_single_leaves(tmp_path):
    """Nothing to learn: every tree is one leaf."""
    ranker = UMart(**TREES).fit(np.ones((30, 2)), np.arange(30) % 3, qid=np.arange(30) // 10)
    rows = RankingDataset(np.array([[1.0, np.nan], [5.0, 2.0]]))
    for target in TARGETS:
        ranker.export(tmp_path / target, to=target)
        constant = TARGETS[target].constant(ranker.to_neutral())
        found = TARGETS[target].open(tmp_path / target)(rows.features, rows.offsets) - constant
        np.testing.assert_allclose(found, ranker.predict(rows), atol=1e-6)


def test_documents_that_overflow_in_c_leave_others_alone(tmp_path):
    """Layers take four inputs at a time: what stands behind the last one must not be what an earlier document left."""
    ones = [Layer(np.full(shape, 5, np.float32), np.zeros(shape[0], np.float32), "relu") for shape in ((4, 2), (4, 4))]
    last = Layer(np.ones((1, 4), np.float32), np.zeros(1, np.float32), "identity")
    rows = np.full((8, 2), 3e38, np.float32)
    rows[4:] = np.arange(8).reshape(4, 2)
    network = Network(Unchanged().fit(rows), False, (*ones, last))
    write_model(Model(network, 2, None, False), tmp_path / "m", "c")
    found = TARGETS["c"].open(tmp_path / "m")(rows, np.array([0, 8]))
    assert found.tolist() == [math.inf] * 4 + (rows[4:].sum(axis=1) * 5 * 4 * 5 * 4).tolist()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_in_c(name, gaps, tmp_path):
    """The transformed feature itself, as the score of a network that hands it through: the bits of tierank's."""
    data = gaps.with_features(np.ascontiguousarray(gaps.features[:, 2:3]), None)
    data.features[:4, 0] = [1e-40, -3e38, 3e38, -0.7]
    transform = TRANSFORMS[name]().fit(data)
    through = Layer(np.ones((1, 1), np.float32), np.zeros(1, np.float32), "identity")
    write_model(Model(Network(transform, transform.needs_queries, (through,)), 1, None, True), tmp_path / "m", "c")
    found = TARGETS["c"].open(tmp_path / "m")(data.features, data.offsets)
    expected = transform.apply(data.features, data.offsets)[:, 0]
    if name == "query_log1p":  # sums over the query in another order
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    else:
        np.testing.assert_array_equal(found, expected)


STRICT = ("-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-O1", "-ffp-contract=off", "-DTIERANK_MAIN")
SANITISED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.parametrize("name", [*CASES, "single leaves", "quantile, linear", "constants"])
def test_c_compiles_without_warnings_and_does_nothing_undefined(name, fitted, plain, tmp_path):
    """As strict as compilers can be, over all kinds of models, with missing values and extremes."""
    if name == "single leaves":
        ranker, data = UMart(**TREES).fit(plain.with_features(np.ones_like(plain.features), None)), plain
    elif name == "quantile, linear":
        ranker, data = LinearRanker(feature_transform="quantile", n_jobs=1).fit(plain), plain
    elif name == "constants":
        ranker, data = URank(**AS_IT_COMES).fit(plain.with_features(np.ones_like(plain.features), None)), plain
    else:
        ranker, data = fitted(name)
    ranker.export(tmp_path / "model.c", to="c")
    compiler = os.environ.get("CC", "cc").split()
    rows = [*data.features[:30], *np.full((3, 7), np.nan, np.float32), np.full(7, 3.4e38), np.full(7, -1e-45)]
    lines = "\n".join(" ".join(map(str, np.float32(row).tolist())) for row in rows)
    for flags in ((), SANITISED):
        command = [*compiler, *STRICT, *flags, tmp_path / "model.c", "-o", tmp_path / "model", "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if flags and "sanitize" in done.stderr:  # not all compilers have the libraries
            break
        assert (done.returncode, done.stderr) == (0, "")
        done = subprocess.run([tmp_path / "model"], input=lines + "\n", capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.split()) == len(rows)


@pytest.mark.parametrize(
    "ranker",
    [
        URank(**AS_IT_COMES),
        URank(**NETWORK | {"feature_transform": "query_minmax"}),
        UMart(query_features=True, **TREES),
    ],
)
def test_c_takes_little_stack_however_many_features_there_are(ranker, plain, tmp_path):
    """Threads of some systems have stacks of 128 KB, and a stack that is too small ends the process."""
    rng = np.random.default_rng(0)
    ranker.fit(plain.with_features(rng.standard_normal((plain.n_documents, 1500), np.float32), None))
    ranker.export(tmp_path / "model.c", to="c")
    command = ["cc", *c_target.FLAGS, "-Wframe-larger-than=8192", "-Werror", "-c", "model.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "level", ["*\\", "*\\ int main(void) { return 7; } /\\*", "*/", "/*", "/*/", "*//", "??/", "\n", "\0"]
)
def test_no_text_of_a_model_is_read_as_c(level, tmp_path):
    """The levels of categories stand in a comment, which none of them can end."""
    levels = [level, "a", "b"]
    kind = Category(tuple(sorted(levels)))
    trees = replace(Trees.stump(0, 0.5, (0.0, 1.0)), category=np.zeros(1, np.int64), members=np.array([[True]]))
    write_model(Model(trees, 1, ("brand",), False, {"brand": kind}), tmp_path / "model.c", "c")
    done = subprocess.run(["cc", *STRICT, "-c", "model.c"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_c_program_reads_text(fitted, tmp_path):
    ranker, data = fitted("urank")
    ranker.export(tmp_path / "model.c", to="c")
    flags = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-DTIERANK_MAIN"]
    command = ["cc", *c_target.FLAGS, *flags, str(tmp_path / "model.c"), "-o", str(tmp_path / "model"), "-lm"]
    subprocess.run(command, check=True)
    first = data.select(np.arange(3))
    lists = np.split(first.features, first.offsets[1:-1])
    text = "\n\n".join("\n".join(" ".join(f"{value:.9g}" for value in row) for row in rows) for rows in lists)
    for ending in ("", "\n", "\n\n"):
        done = subprocess.run([tmp_path / "model"], input=text + ending, capture_output=True, text=True, check=True)
        np.testing.assert_allclose([float(x) for x in done.stdout.split()], ranker.predict(first), atol=1e-5)
    done = subprocess.run([tmp_path / "model"], input="1 2 3\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "expected 7 numbers in a line, got 3\n")


def test_no_compiler_is_said(fitted, tmp_path, monkeypatch):
    ranker, data = fitted("umart")
    ranker.export(tmp_path / "m.c", to="c")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(c_target.shutil, "which", lambda name: None)
    with pytest.raises(ParameterError, match=r"expected a C compiler \(cc, gcc or clang, or its name in CC\)"):
        verify(ranker, tmp_path / "m.c", "c", data)
    for compiler, reason in (("no-such-compiler -O2", "No such file"), (str(tmp_path), "Permission denied")):
        monkeypatch.setenv("CC", compiler)
        with pytest.raises(ParameterError, match=f"c: expected a C compiler in CC, got '{compiler}': {reason}"):
            verify(ranker, tmp_path / "m.c", "c", data)


REFUSED_BEFORE = [
    (
        URank(**NETWORK),
        False,
        "solr",
        "scales by the list of the query; train with feature_transform='standard' or 'none'",
    ),
    (URank(n_seeds=2, **POINTWISE), False, "vespa", "train with n_seeds=1"),
    (URank(activation="elu", **POINTWISE), False, "solr", "it has no activation 'elu'"),
    (URank.from_preset("paper-ohsumed", n_jobs=1), False, "vespa", "scales by the list of the query"),
    (URank(**POINTWISE), True, "solr", "replace missing values by 0 before training"),
    (URank(**POINTWISE), False, "elasticsearch", "it can hold only trees"),
    (URank(network="attention", n_jobs=1), False, "onnx", "network: expected 'mlp', to export, got 'attention'"),
    (UBoost(output_activation="relu", **POINTWISE), False, "solr", "train with output_activation=None"),
    (UrBoost(**POINTWISE), False, "solr", "train with score_from='state'"),
    (UrBoost(score_from="state", **POINTWISE), False, "solr", "urboost with n_learners=1"),
    (UBoost(base=UMart(**TREES), **POINTWISE), False, "solr", "train without base"),
    (UMart(**TREES), True, "solr", "train with use_missing=False"),
    (UMart(zero_as_missing=True, **TREES), False, "vespa", "train with zero_as_missing=False"),
    (UMart(linear_tree=True, **TREES), False, "c", "for_target: expected None with linear_tree"),
    (UMart(base=URank(**POINTWISE), **TREES), False, "opensearch", "it can hold only trees"),
    (UMart(query_features=True, **TREES), False, "solr", "train with query_features=False"),
    (LambdaMART(query_features=True, **TREES), False, "elasticsearch", "train with query_features=False"),
    (UMart(base=LambdaMART(**TREES), **TREES), False, "opensearch", "it holds one sum of trees, .* train without base"),
    (Blend(**BLEND), False, "vespa", "or one ranker in place of a blend"),
    (Blend(**BLEND), False, "elasticsearch", "it can hold only trees"),
    (LinearRanker(), False, "vespa", "scales by the list of the query; train with feature_transform='standard'"),
    (LinearRanker(), False, "opensearch", "it refuses scores below 0, .* train umart or lambdamart for it"),
    (LinearRanker(feature_transform=("standard", "none")), False, "solr", "this model uses several transforms"),
    (LinearRanker(feature_transform="standard"), True, "solr", "or train with feature_transform='none'"),
    (UMart(**TREES), False, "sorl", r"got 'sorl'; did you mean 'solr'\?"),
]


@pytest.mark.parametrize(("ranker", "has_gaps", "target", "message"), REFUSED_BEFORE)
def test_for_target_refuses_before_training(ranker, has_gaps, target, message, plain, gaps, monkeypatch):
    def train(*arguments):
        raise AssertionError("training began")

    monkeypatch.setattr(type(ranker), "fit_model", train)
    ranker.set_params(for_target=target)
    try:
        with pytest.raises(ParameterError, match=message):
            ranker.fit(gaps if has_gaps else plain)
    finally:
        ranker.set_params(for_target=None)


@pytest.mark.parametrize(
    "name", ["umart", "gaps as zeros", "standard", "uboost", "urrank", "linear ranker, standard", "linear ranker, none"]
)
def test_for_target_lets_pass_what_can_be_held(name, plain, gaps, tmp_path):
    ranker, has_gaps, _ = CASES[name]
    ranker = type(ranker)(**ranker.get_params(deep=False)).set_params(for_target="solr")
    ranker.fit(gaps if has_gaps else plain).export(tmp_path / "solr", to="solr")


def test_for_target_of_a_blend(plain, tmp_path):
    ranker = Blend(for_target="onnx", **BLEND).fit(plain)
    ranker.export(tmp_path / "m", to="onnx")
    ranker.save(tmp_path / "model")
    assert verify(tierank.load(tmp_path / "model"), tmp_path / "m", "onnx", plain).holds


@pytest.mark.filterwarnings("ignore:no qid was given")
@pytest.mark.parametrize("target", ["onnx", "vespa", "c"])
def test_a_blend_without_queries_is_a_sum(target, plain, tmp_path):
    """Members are standardised by constants there: one document at a time is enough, and Vespa holds it too."""
    ranker = Blend(for_target=target, **BLEND).fit(plain.features, plain.ratings)
    ranker.export(tmp_path / "m", to=target)
    proof = verify(ranker, tmp_path / "m", target, plain)
    assert proof.holds, str(proof)
    run = TARGETS[target].open(tmp_path / "m")
    apart = run(plain.features[:20], np.arange(21))
    np.testing.assert_allclose(apart, ranker.predict(plain.features[:20]), rtol=1e-5, atol=1e-6)


def test_networks_in_c_are_nearer_than_single_precision(plain, tmp_path):
    """Sums in double precision, rounded to float32 after each layer: a layer is the nearest float32 of the true one."""
    ranker = URank(**POINTWISE).fit(plain)
    ranker.export(tmp_path / "m", to="c")
    network = ranker.to_neutral().scorer
    values = network.transform.apply(plain.features, None)
    for layer in network.layers:
        sums = values.astype(np.float64) @ layer.weights.astype(np.float64).T + layer.bias
        values = sums.astype(np.float32) if layer.activation == "identity" else np.maximum(sums, 0).astype(np.float32)
    found = TARGETS["c"].open(tmp_path / "m")(plain.features, plain.offsets)
    assert (found == values[:, 0]).mean() > 0.99  # but where a sum in another order rounds to the neighbour


class Own(Transform):
    """A transform of a caller."""

    def learn(self, features):
        pass

    def apply(self, features, offsets):
        return 2 * features


class OwnStandard(Standard):
    def apply(self, features, offsets):
        return 2 * super().apply(features, offsets)


class OwnSideBySide(SideBySide):
    def apply(self, features, offsets):
        return 2 * super().apply(features, offsets)


@pytest.mark.parametrize("target", sorted({*TARGETS} - {"elasticsearch", "opensearch"}))
@pytest.mark.parametrize("transform", [Own(), OwnStandard(), OwnSideBySide([Standard()])])
@pytest.mark.parametrize("make", [URank, LinearRanker])
def test_transforms_of_callers_are_refused(make, transform, target, plain, tmp_path):
    settings = NETWORK if make is URank else {}
    ranker = make(**settings | {"feature_transform": transform}).fit(plain)
    with pytest.raises(
        ParameterError, match=rf"^{target}: it supports .*, and this model uses {type(transform).__name__}"
    ):
        ranker.export(tmp_path / "m", to=target)


class OwnMLP(MLP):
    def forward(self, features, batch=None):
        return 2 * super().forward(features, batch)


class OwnTierRNN(TierRNN):
    def forward(self, features, batch=None):
        return 2 * super().forward(features, batch)


@pytest.mark.parametrize("network", [OwnMLP, OwnTierRNN])
def test_networks_of_callers_are_refused(network, plain, tmp_path):
    ranker = URank(network=network, **NETWORK).fit(plain)
    with pytest.raises(ParameterError, match=rf"network: expected 'mlp', to export, got '{network.__name__.lower()}'"):
        ranker.export(tmp_path / "m", to="c")


def test_what_cannot_be_exported_is_refused(plain, tmp_path, monkeypatch):
    with pytest.raises(NotFittedError, match="is not fitted; call fit first"):
        UMart().export(tmp_path / "m", to="onnx")
    ranker = UMart(linear_tree=True, **TREES).fit(plain)
    with pytest.raises(ParameterError, match="linear_tree: expected trees with constant leaves to export"):
        ranker.export(tmp_path / "m", to="onnx")
    categories = np.arange(300) % 8
    ranker = UMart(categorical_feature=[0], **TREES).fit(categories[:, None], categories % 3, qid=np.arange(300) // 30)
    with monkeypatch.context() as patched:
        patched.setattr(adapter, "MAX_MEMBERS", 0)
        with pytest.raises(ParameterError, match="categorical_feature: expected lower numbers to export; number"):
            ranker.export(tmp_path / "m", to="onnx")
    with pytest.raises(ParameterError, match=r"unknown target 'elastic': did you mean 'elasticsearch'\?"):
        UMart(**TREES).fit(plain).export(tmp_path / "m", to="elastic")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("x")
    with pytest.raises(DataError, match="expected a new name or a folder of an earlier export"):
        UMart(**TREES).fit(plain).export(tmp_path / "mine", to="solr")


@pytest.mark.parametrize("target", ["c", "onnx"])
@pytest.mark.parametrize("query_features", [False, True])
def test_a_split_of_missing_values_from_all_others_beside_splits_by_category(target, query_features, plain, tmp_path):
    """LightGBM puts the threshold at infinity, which is also what missing values may be replaced by."""
    rng, ratings = np.random.default_rng(0), plain.ratings
    gaps = np.where(ratings > np.median(ratings), np.nan, plain.features[:, 3])
    other = np.where(rng.random(plain.n_documents) < (1 + ratings) / 8, np.nan, plain.features[:, 4])
    features = np.column_stack([gaps, other, rng.integers(0, 5, plain.n_documents) * (ratings % 2)])
    data = plain.with_features(features.astype(np.float32), None)
    settings = {"categorical_feature": [2], "min_data_per_group": 1, "cat_smooth": 0, "query_features": query_features}
    ranker = UMart(**TREES | settings).fit(data)
    trees = adapter.read_trees(ranker.model_.text)
    at_infinity = np.isinf(trees.threshold) & ~trees.is_category
    assert at_infinity.any()
    assert trees.is_category.any()
    ranker.export(tmp_path / "model", to=target)
    assert verify(ranker, tmp_path / "model", target, data).holds


def test_names_in_a_profile_of_vespa_are_different(plain, tmp_path):
    """Whatever the features are called: the profile has functions of its own."""
    names = ["tierank_features", "tierank_features_", "d0", "features", "scores", "tierank", "onnx"]
    ranker = URank(**POINTWISE).fit(plain.with_features(plain.features, names))
    ranker.export(tmp_path / "vespa", to="vespa")
    functions = re.findall(r"function (\w+)\(\)", (tmp_path / "vespa" / "tierank.profile").read_text())
    assert len(functions) == len(set(functions)) == len(names) + 1
    assert verify(ranker, tmp_path / "vespa", "vespa", plain.with_features(plain.features, names)).holds


def test_an_export_with_other_features_is_found_out(plain, tmp_path):
    """Positions alone do not tell: the scores would be the same."""
    names = ["a", "b", "c", "d", "e", "f", "g"]
    ranker, other = (
        UMart(**TREES).fit(plain.with_features(plain.features, own)) for own in (names, [*names[1:], names[0]])
    )
    for target in sorted({*TARGETS} - {"c"}):
        other.export(tmp_path / target, to=target)
        with pytest.raises(
            DataError, match="expected the features of the model, in their order, got 'b' in place of 'a'"
        ):
            verify(ranker, tmp_path / target, target, plain.with_features(plain.features, names))


@pytest.mark.parametrize("name", ["a\\", "a\\b", "\\u0041", '"', "*/", "new\nline", "ünï", "a b"])
def test_any_name_can_be_exported(name, plain, tmp_path):
    """LightGBM writes most names into its own formats as they are."""
    data = plain.with_features(plain.features, [name, *"bcdefg"])
    ranker = UMart(**TREES).fit(data)
    for target in TARGETS:
        ranker.export(tmp_path / target, to=target)
        assert verify(ranker, tmp_path / target, target, data).holds


def test_names_of_features(plain, tmp_path):
    named = plain.with_features(plain.features, tuple("abcdefg"))
    odd = plain.with_features(plain.features, ("a b", *"bcdefg"))
    for data, expected in ((named, list("abcdefg")), (odd, [f"feature_{k}" for k in range(1, 8)])):
        UMart(**TREES).fit(data).export(tmp_path / "solr", to="solr")
        written = json.loads((tmp_path / "solr" / "features.json").read_text())
        assert [feature["name"] for feature in written] == expected
        UMart(**TREES).fit(data).export(tmp_path / "vespa", to="vespa")
        profile = (tmp_path / "vespa" / "tierank.profile").read_text()
        assert re.findall(r"function (\w+)\(\)", profile) == expected
        assert 'lightgbm("tierank.json")' in profile


def test_what_training_saw_is_saved(plain, gaps, tmp_path):
    for data, has_missing in ((plain, False), (gaps, True)):
        URank(**POINTWISE).fit(data).save(tmp_path / "model")
        loaded = tierank.load(tmp_path / "model")
        assert loaded.seen_.has_missing is has_missing
        assert bool(loaded.to_neutral().seen_missing().all()) is has_missing


def test_command(plain, tmp_path, capsys):
    tierank.write(plain, tmp_path / "data.txt")
    UMart(**TREES).fit(plain).save(tmp_path / "model")
    for target in TARGETS:
        arguments = ["export", tmp_path / "model", "--to", target, "--out", tmp_path / target]
        code = cli.main([*map(str, arguments), "--verify", str(tmp_path / "data.txt")])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        assert captured.out.startswith(f"{target}: scores as the model does: {plain.n_documents:,} documents and ")
    URank(**NETWORK).fit(plain).save(tmp_path / "model")
    assert cli.main(["export", str(tmp_path / "model"), "--to", "solr", "--out", str(tmp_path / "x")]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "train with --set feature_transform='standard' or 'none'" in captured.err
    assert not (tmp_path / "x").exists()


def test_command_fails_where_the_proof_does(plain, tmp_path, capsys, monkeypatch):
    tierank.write(plain, tmp_path / "data.txt")
    UMart(**TREES).fit(plain).save(tmp_path / "model")
    monkeypatch.setitem(TARGETS, "c", replace(TARGETS["c"], constant=lambda model: 1.0))  # which it does not add
    arguments = [
        "export",
        tmp_path / "model",
        "--to",
        "c",
        "--out",
        tmp_path / "m.c",
        "--verify",
        tmp_path / "data.txt",
    ]
    assert cli.main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert "c: does NOT score as the model does" in captured.err
    assert captured.err.count("\n") == 2  # what was written, and what is wrong with it


def test_the_page_says_what_the_code_does():
    """The table of docs/export.md is what the benchmark prints from the refusals themselves."""
    spec = importlib.util.spec_from_file_location("scoring", ROOT / "benchmarks" / "scoring.py")
    scoring = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scoring)
    assert scoring.support_table() in (ROOT / "docs" / "export.md").read_text()


# What LightGBM does with a number, and every target after it

ZERO_EDGE = float(np.float32(1e-35))
EDGES = [
    0.0, -0.0, 5e-324, -5e-324, 1e-50, -1e-50, 1e-45, -1e-45, 1e-38, -1e-38, 1e-36, -1e-36, 1e-35, -1e-35, ZERO_EDGE,
    -ZERO_EDGE, math.nextafter(ZERO_EDGE, 1), math.nextafter(ZERO_EDGE, 0), math.nextafter(-ZERO_EDGE, -1),
    math.nextafter(-ZERO_EDGE, 0), 1.1e-35, -1.1e-35, 0.1, -0.1, 0.5, -1.0, 3.0, 1e10, -1e10, 3.4e38, -3.4e38, 1e300,
    -1e300,
]  # fmt: skip
KINDS = [(NONE, False), (NONE, True), (NAN, False), (NAN, True), (ZERO, False), (ZERO, True)]
doubles = st.one_of(
    st.sampled_from(EDGES),
    st.floats(-1.01e-35, 1.01e-35),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-1e300, 1e300),
)


def lightgbm_text(trees, n_features=1):
    """LightGBM's text of handmade trees: (features, thresholds, kinds, left, right, values), kinds as in ``KINDS``."""
    parts = []
    for number, (features, thresholds, kinds, left, right, values) in enumerate(trees):
        n = len(features)
        arrays = {
            "split_feature": features,
            "split_gain": [1] * n,
            "threshold": [repr(float(t)) for t in thresholds],
            "decision_type": [missing << 2 | default_left << 1 for missing, default_left in kinds],
            "left_child": left,
            "right_child": right,
            "leaf_value": [repr(float(value)) for value in values],
            "leaf_weight": [1] * (n + 1),
            "leaf_count": [1] * (n + 1),
            "internal_value": [0] * n,
            "internal_weight": [1] * n,
            "internal_count": [2] * n,
        }
        lines = "\n".join(f"{name}={' '.join(map(str, array))}" for name, array in arrays.items())
        parts.append(f"Tree={number}\nnum_leaves={n + 1}\nnum_cat=0\n{lines}\nis_linear=0\nshrinkage=1\n\n\n")
    head = {
        "version": "v4",
        "num_class": 1,
        "num_tree_per_iteration": 1,
        "label_index": 0,
        "max_feature_idx": n_features - 1,
        "objective": "lambdarank",
        "feature_names": " ".join(f"Column_{k}" for k in range(n_features)),
        "feature_infos": " ".join(["[-1:1]"] * n_features),
        "tree_sizes": " ".join(str(len(part)) for part in parts),
    }
    importances = "".join(f"Column_{k}=1\n" for k in range(n_features))
    return (
        "tree\n" + "".join(f"{name}={value}\n" for name, value in head.items()) + "\n" + "".join(parts)
        + f"end of trees\n\nfeature_importances:\n{importances}\nparameters:\n\nend of parameters\n"
        "\npandas_categorical:null\n"
    )  # fmt: skip


def split_text(thresholds, kinds, values):
    """A tree of one split for each threshold."""
    one = zip(thresholds, kinds, values, strict=True)
    return lightgbm_text([([0], [t], [kind], [-1], [-2], pair) for t, kind, pair in one])


def around(thresholds):
    """Float32 numbers at and beside thresholds, at and beside what is 0 to LightGBM, at the ends, and NaN."""
    with np.errstate(over="ignore"):
        near = np.array([*thresholds, *EDGES], np.float64).astype(np.float32)
        steps = [near, *(np.nextafter(near, np.float32(side)) for side in (np.inf, -np.inf))]
    known = np.unique(np.concatenate(steps))
    ends = np.finfo(np.float32).max * np.array([-1, 1], np.float32)
    return np.concatenate([known[np.isfinite(known)], ends, np.array([-0.0, np.nan], np.float32)])


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(doubles, min_size=1, max_size=8))
@example(EDGES)
@examples(30)
def test_splits_are_read_as_lightgbm_scores_them(kind, thresholds):
    """Every kind of split, at all numbers where something changes; the sum of powers of two tells the ways taken."""
    values = [(0.0, 2.0**k) for k in range(len(thresholds))]
    booster = lightgbm.Booster(model_str=split_text(thresholds, [kind] * len(thresholds), values))
    rows = around(thresholds)[:, None]
    scored = booster.predict(rows, raw_score=True, num_threads=1)
    np.testing.assert_array_equal(adapter.read_trees(booster.model_to_string()).predict(rows), scored)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_target_splits_as_lightgbm_does(target, kind, tmp_path):
    """For every number around every threshold."""
    values = np.random.default_rng(5).integers(0, 1 << 17, (len(EDGES), 2)).tolist()
    booster = lightgbm.Booster(model_str=split_text(EDGES, [kind] * len(EDGES), values))
    model = Model(adapter.read_trees(booster.model_to_string()), 1, None, True)
    rows = around(EDGES)[:, None]
    if kind[0] not in {"onnx": (NONE, NAN, ZERO), "c": (NONE, NAN, ZERO), "vespa": (NONE, NAN)}.get(target, (NONE,)):
        with pytest.raises(ParameterError, match=f"{target}: it (treats a missing value as|compares) 0.*; train with"):
            write_model(model, tmp_path / "m", target)
        return
    write_model(model, tmp_path / "m", target)
    found = TARGETS[target].open(tmp_path / "m")(rows, np.array([0, len(rows)]))
    expected = booster.predict(rows, raw_score=True, num_threads=1)
    np.testing.assert_array_equal(found - TARGETS[target].constant(model), expected)


# Sums of many trees, and of very small and large leaves


def forest(n_trees, leaves):
    """Stumps at random places with leaves of this size, one feature."""
    rng = np.random.default_rng(n_trees)
    values = leaves * rng.standard_normal((n_trees, 2))
    return replace(stumps(rng.standard_normal(n_trees)), values=values.ravel())


@pytest.mark.parametrize("size", [1.0, 1e-20, 3e20])
@pytest.mark.parametrize("target", ["elasticsearch", "solr"])
@pytest.mark.parametrize("n_trees", [1, 500, 501, 4000])
def test_sums_in_single_precision(n_trees, target, size, tmp_path):
    """Where the engine adds up in float32 the score is as near as float32 can be, whatever the number of trees."""
    trees = forest(n_trees, size)
    model = Model(trees, 1, None, False)
    rows = np.random.default_rng(1).standard_normal((300, 1)).astype(np.float32)
    alone = [replace(trees, roots=trees.roots[[k]]).predict(rows) for k in range(n_trees)]
    partial = np.abs(np.cumsum(alone, axis=0)).max(axis=0)
    write_model(model, tmp_path / "m", target)
    constant = TARGETS[target].constant(model)
    difference = np.abs(TARGETS[target].open(tmp_path / "m")(rows, np.array([0, 300])) - constant - trees.predict(rows))
    if n_trees > 500:
        assert (difference <= 2.0**-22 * partial + 2.0**-24 * (2 * constant)).all()
    assert (difference <= n_trees * 2.0**-24 * 2 * (partial + constant)).all()


@pytest.mark.parametrize("target", ["onnx", "elasticsearch", "opensearch", "solr", "vespa"])
def test_scores_that_single_precision_does_not_hold_are_refused(target, tmp_path):
    for size, wanted in ((1e-40, "higher"), (1e38, "lower")):
        with pytest.raises(
            ParameterError, match=rf"{target}: it holds scores in single precision.*a {wanted} learning"
        ):
            write_model(Model(forest(3, size), 1, None, False), tmp_path / "m", target)
    write_model(Model(forest(3, 0.0), 1, None, False), tmp_path / "m", target)  # nothing was learned


@pytest.mark.parametrize("target", ["elasticsearch", "opensearch"])
def test_more_trees_than_the_constant_leaves_digits_to(target, tmp_path):
    with pytest.raises(ParameterError, match=r"10,001 trees leave too few digits.*; train with n_trees=10000 at most"):
        write_model(Model(forest(10_001, 1.0), 1, None, False), tmp_path / "m", target)


@pytest.mark.parametrize("target", ["elasticsearch", "opensearch"])
@pytest.mark.parametrize("n_documents", [1, 12])
def test_equal_scores_near_0_prove_what_others_prove(target, n_documents, counted, tmp_path):
    """Above the constant, single precision holds a score of 1e-9 as 0: nothing that an order could depend on."""
    text = split_text([0.0, 0.0], [(0, 1)] * 2, [(0.1, -0.3), (1e-9 - 0.1, -0.3)])
    ranker = with_trees(text, counted)
    data = RankingDataset(np.full((n_documents, 1), -1, np.float32), qid=np.zeros(n_documents))
    ranker.export(tmp_path / "m", to=target)
    proof = verify(ranker, tmp_path / "m", target, data)
    assert proof.holds, str(proof)


def test_a_constant_that_takes_the_digits_of_an_order_is_found_out(counted, tmp_path):
    """A leaf of -1e9 makes the constant so large that single precision cannot tell documents apart above it."""
    text = split_text([0.0, 1.0, 2.0, 3.0], [(0, 1)] * 4, [(-1e9, 0.1), (0.1, 0.2), (0.1, 0.3), (0.1, 0.2)])
    ranker = with_trees(text, counted)
    data = RankingDataset(np.arange(0.5, 5, dtype=np.float32)[:, None], qid=np.zeros(5))
    ranker.export(tmp_path / "m", to="elasticsearch")
    assert not verify(ranker, tmp_path / "m", "elasticsearch", data).holds


@pytest.mark.parametrize("learning_rate", [1e-9, 1e-3, 10.0])
def test_any_learning_rate(learning_rate, plain, tmp_path):
    ranker = UMart(n_trees=8, n_jobs=1, learning_rate=learning_rate).fit(plain)
    for target in TARGETS:
        ranker.export(tmp_path / target, to=target)
        proof = verify(ranker, tmp_path / target, target, plain)
        assert proof.holds, str(proof)


def test_elasticsearch_reads_fields_below_0(tmp_path):
    """No query gives less than 0: a feature that is split there is the difference of two."""
    names = ("price", "price_above_0", "rest")
    trees = replace(stumps([-1.5, 2.0]), values=np.array([1.0, 2.0, 10.0, 20.0]))
    write_model(Model(trees, 3, names, False), tmp_path / "m", "elasticsearch")
    features = json.loads((tmp_path / "m" / "featureset.json").read_text())["featureset"]["features"]
    written = ["price_above_0_", "price_below_0", "price", "price_above_0", "rest"]
    assert [feature["name"] for feature in features] == written
    for value in (-2.0, -1.5, -1.0, 0.0, 2.0, 3.0, np.nan):
        row = np.array([value, 7.0, -7.0], np.float32)
        (found,) = TARGETS["elasticsearch"].open(tmp_path / "m")(row[None], np.array([0, 1]))
        assert found == trees.predict(row[None])[0]
        assert found == reference_engines.elasticsearch(tmp_path / "m", row, follows_missing=True)


# Any model on any data

scales = st.sampled_from([1e-44, 1e-38, 1e-36, 1e-35, 1e-30, 1e-6, 1.0, 1e6, 1e30, 3.4e38])
TREE_RANKERS = [name for name, kind in tierank.RANKERS.items() if hasattr(kind, "importance")]
SMALL_TREES = {"n_trees": 8, "n_leaves": 8, "min_documents": 2, "n_jobs": 1}
SMALL_NETWORK = {"max_epochs": 2, "hidden": (5,), "n_jobs": 1}
SMALL_BLEND = {"n_configs": 1, "n_seeds": 1, "n_trees": 5, "max_epochs": 1, "n_jobs": 1}


@st.composite
def any_column(draw):
    """60 values of one feature: of one sign or both, of one scale or of all, whole or not, few or many, with gaps."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    kind = draw(st.sampled_from(["normal", "whole", "few", "edges", "every scale"]))
    if kind == "edges":
        known = around([draw(scales)])
        column = rng.choice(known[~np.isnan(known)], 60)
    elif kind == "every scale":
        column = rng.choice([-1, 1], 60) * np.exp(rng.uniform(-100, 88, 60))
    else:
        column = rng.standard_normal(60) if kind == "normal" else rng.integers(-3, 4, 60)
        column = rng.choice(column, 3)[rng.integers(0, 3, 60)] if kind == "few" else column
        column = column * (1 if kind == "whole" else draw(scales))
    column = np.clip(draw(st.sampled_from([np.abs, np.negative, np.asarray]))(column), -3.4e38, 3.4e38)
    column[rng.random(60) < draw(st.sampled_from([0.0, 0.0, 0.2]))] = np.nan
    return column.astype(np.float32)


@st.composite
def any_data(draw):
    """Six queries of ten documents: three features of any kind and one that can be learned from."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    columns = [*(draw(any_column()) for _ in range(3)), rng.standard_normal(60).astype(np.float32)]
    return RankingDataset(np.stack(columns, axis=1), rng.integers(0, 4, 60), qid=np.repeat(np.arange(6), 10))


def check_exports(ranker, data, folder):
    """Each target refuses the ranker when it is exported, or the proof holds; the proofs by target."""
    proofs = {}
    for target in TARGETS:
        with contextlib.suppress(ParameterError):
            ranker.export(folder / target, to=target)
        if not (folder / target).exists():
            with pytest.raises(ParameterError, match=rf"^{target}: .*; (train|replace|take) "):
                ranker.export(folder / target, to=target)
            continue
        proofs[target] = verify(ranker, folder / target, target, data)
        assert proofs[target].holds, (str(proofs[target]), ranker)
    return proofs


@pytest.mark.parametrize("name", TREE_RANKERS)
@given(data=st.data())
@examples(10)
def test_any_trees_on_any_data(name, data, tmp_path_factory):
    special = [{}, {}, {"use_missing": False}, {"zero_as_missing": True}, {"query_features": True}]
    documents = data.draw(any_data())
    ranker = tierank.RANKERS[name](**SMALL_TREES, **data.draw(st.sampled_from(special))).fit(documents)
    proofs = check_exports(ranker, documents, tmp_path_factory.mktemp("any"))
    assert proofs["c"].largest == 0
    assert proofs["onnx"].largest <= 2.0**-24


@pytest.mark.parametrize("name", sorted(set(tierank.RANKERS) - set(TREE_RANKERS)))
@given(data=st.data())
@examples(2)
def test_any_network_on_any_data(name, data, tmp_path_factory):
    documents, transform = data.draw(any_data()), data.draw(st.sampled_from(sorted(TRANSFORMS)))
    if transform == "none":  # a network that sees numbers as they are learns from few of them
        documents = documents.with_features(np.clip(documents.features, -100, 100), None)
    network = {"n_jobs": 1} if name == "linear" else SMALL_NETWORK
    chosen = SMALL_BLEND if name == "blend" else network | {"feature_transform": transform}
    check_exports(tierank.RANKERS[name](**chosen).fit(documents), documents, tmp_path_factory.mktemp("any"))


# Deep trees


def chain_text(depth, n_trees=1):
    """A tree as deep as it has splits: x <= k + 0.5 for k = 0, 1, ..., each below the other."""
    right = [*range(1, depth), -depth - 1]
    left = [-k - 1 for k in range(depth)]
    values = [k % 7 for k in range(depth + 1)]
    tree = ([0] * depth, np.arange(depth) + 0.5, [(NONE, True)] * depth, left, right, values)
    return lightgbm_text([tree] * n_trees)


def with_trees(text, data):
    """A ranker with these trees in place of what it learned."""
    ranker = UMart(n_trees=1, n_jobs=1).fit(data)
    ranker.model_.text, ranker.model_._loaded = text, None
    return ranker


@pytest.fixture(scope="module")
def counted():
    """One feature that counts documents."""
    return RankingDataset(np.arange(400, dtype=np.float32)[:, None], np.arange(400) % 3, np.arange(400) // 20)


def test_trees_as_deep_as_allowed_do_all(counted, tmp_path):
    with_trees(chain_text(MAX_DEPTH, n_trees=2), counted).save(tmp_path / "model")
    ranker = tierank.load(tmp_path / "model")
    np.testing.assert_array_equal(
        ranker.predict(counted), 2.0 * (np.minimum(np.arange(400), MAX_DEPTH) % 7).astype(float)
    )
    tierank.explain_query(ranker, counted, 0)
    assert set(check_exports(ranker, counted, tmp_path)) == set(TARGETS)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 3_000, 30_000])
def test_deeper_trees_are_refused_on_load(depth, counted, tmp_path):
    with_trees(chain_text(depth), counted).save(tmp_path / "model")
    message = rf"trees.txt: tree 0: expected at most 300 splits between the root and a leaf, got {depth:,}; train with"
    with pytest.raises(DataError, match=message):
        tierank.load(tmp_path / "model")


def test_many_leaves_are_no_depth(counted, tmp_path):
    """A tree with more splits than may stand one below the other, half of them on either side of the first."""
    half = MAX_DEPTH - 1
    left = [1, *(-k - 1 for k in range(half)), *(-k - 2 - half for k in range(half))]
    right = [half + 1, *range(2, half + 1), -half - 1, *range(half + 2, 2 * half + 1), -2 * half - 2]
    n = len(left)
    tree = ([0] * n, np.arange(n), [(NONE, True)] * n, left, right, np.arange(n + 1))
    with_trees(lightgbm_text([tree]), counted).save(tmp_path / "model")
    tierank.load(tmp_path / "model").predict(counted)


def test_training_keeps_to_the_depth_that_can_be_loaded(monkeypatch, plain, tmp_path):
    settings = {"n_trees": 3, "n_leaves": 64, "min_documents": 1, "n_jobs": 1}
    free = UMart(**settings).fit(plain)
    for module in (adapter, tree_settings):
        monkeypatch.setattr(module, "MAX_DEPTH", 5)
    free.save(tmp_path / "model")
    with pytest.raises(DataError, match="expected at most 5 splits between the root and a leaf, got"):
        tierank.load(tmp_path / "model")
    UMart(**settings).fit(plain).save(tmp_path / "model")
    tierank.load(tmp_path / "model")
    with pytest.raises(ParameterError, match="max_depth: expected an integer >= -1 and <= 300, got 301"):
        UMart(**settings, max_depth=301).fit(plain)


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux alone")
def test_an_export_with_a_name_that_is_not_utf8_is_verified(tmp_path):
    data = tierank.make_ranking(8, n_features=3, mean_length=6)
    ranker = tierank.UMart(n_trees=3, n_jobs=1).fit(data)
    for target in ("onnx", "c"):
        place = tmp_path / os.fsdecode(b"\xff." + target.encode())
        ranker.export(place, to=target)
        assert tierank.verify(ranker, place, target, data).holds


def test_a_model_for_lightgbm_is_its_booster(tmp_path):
    data = tierank.make_ranking(20, n_features=4, mean_length=8, max_length=12)
    ranker = tierank.UMart(n_trees=3, n_jobs=1).fit(data)
    with pytest.raises(
        ParameterError, match=r"^target: expected one of onnx, .*, got 'lightgbm'; ranker.booster_.save_"
    ):
        ranker.export(tmp_path / "model.txt", to="lightgbm")
    ranker.booster_.save_model(tmp_path / "model.txt")
    scores = lightgbm.Booster(model_file=tmp_path / "model.txt").predict(data.features)
    np.testing.assert_array_equal(data.restore(scores), ranker.predict(data))


@pytest.mark.parametrize("target", ["c", "onnx"])
def test_members_that_cancel_score_nothing_in_exports_too(target, tmp_path):
    """What rounding leaves of two opposite members must not be enlarged to a deviation of 1."""
    data = tierank.make_ranking(12, n_features=4, mean_length=9, max_length=20)
    ranker = UMart(n_trees=5, min_documents=5, n_jobs=1).fit(data)
    model = ranker.to_neutral()
    own = model.scorer
    members = StandardisedMean((own, Sum(((-0.7, own),))))
    opposite = StandardisedMean((members,))
    write_model(replace(model, scorer=Sum(((1.0, opposite), (0.25, own)))), tmp_path / "m", target)
    found = TARGETS[target].open(tmp_path / "m")(data.features, data.offsets)
    np.testing.assert_allclose(found, 0.25 * data.arrange(ranker.predict(data)), rtol=1e-6, atol=1e-9)
    write_model(replace(model, scorer=members), tmp_path / "members", target)
    np.testing.assert_array_equal(TARGETS[target].open(tmp_path / "members")(data.features, data.offsets), 0.0)
