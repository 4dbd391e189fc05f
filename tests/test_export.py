"""Exports: the same scores in the form and by the rule of another engine, or a refusal that says what to change."""

import importlib.util
import json
import math
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import lightgbm
import numpy as np
import pytest
import reference_engines
from hypothesis import given, settings
from hypothesis import strategies as st

import tierank
from tierank import (
    TARGETS,
    Blend,
    DataError,
    LambdaMART,
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
from tierank.export import NAN, NONE, ZERO, Layer, Model, Network, QueryCopies, Trees, write_model
from tierank.export import c as c_target
from tierank.export.portable import floor_float32
from tierank.export.proof import generate_rows
from tierank.export.solr import _Scaled
from tierank.transforms import TRANSFORMS, Unchanged, add_query_copies

ROOT = Path(__file__).parent.parent
ENGINES = ("elasticsearch", "opensearch", "solr", "vespa")

TREES = {"n_trees": 30, "min_documents": 5, "n_jobs": 1}
NETWORK = {"max_epochs": 4, "hidden": (12, 6), "n_jobs": 1, "learning_rate": 0.01}
POINTWISE = {**NETWORK, "transform": "standard"}


@pytest.fixture(scope="module")
def plain():
    return tierank.make_ranking(60, n_features=7, mean_length=25, max_length=50, seed=4)


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
    "query_log1p": (URank(**NETWORK | {"transform": "query_log1p"}), True, LISTS),
    "standard": (URank(**POINTWISE), False, ("onnx", "solr", "vespa", "c")),
    "standard with gaps": (URank(**POINTWISE), True, ("onnx", "vespa", "c")),
    "log1p": (URank(**NETWORK | {"transform": "log1p"}), True, ("onnx", "vespa", "c")),
    "quantile": (URank(**NETWORK | {"transform": "quantile"}), True, ("onnx", "vespa", "c")),
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
            with pytest.raises(ParameterError, match=rf"^{target}: .*; (train|replace) "):
                ranker.export(tmp_path / target, to=target)
            assert not (tmp_path / target).exists()
            continue
        ranker.export(tmp_path / target, to=target)
        proof = verify(ranker, tmp_path / target, target, data)
        assert proof.holds, str(proof)
        assert proof.n_same >= proof.n_queries - 2, str(proof)
        assert proof.n_documents == data.n_documents


@pytest.mark.parametrize("name", ["umart", "gaps as zeros", "umart with gaps", "standard", "tanh", "uboost", "urrank"])
def test_executors_follow_the_engines_rules(name, fitted, tmp_path):
    """Each executor, which works on all documents at once, and a twin that walks nested JSON give the same bits."""
    ranker, data = fitted(name)
    rows = generate_rows(ranker._model(), data, bounded=False)
    rows = rows.features[np.random.default_rng(1).permutation(rows.n_documents)[:60]]
    for target in set(ENGINES) & set(CASES[name][2]):
        ranker.export(tmp_path / target, to=target)
        found = TARGETS[target].open(tmp_path / target)(rows, np.array([0, len(rows)]))
        for row, score in zip(rows, found, strict=True):
            if target == "solr":
                assert score == pytest.approx(reference_engines.solr(tmp_path / target, row), rel=1e-6, abs=1e-7)
            elif target == "vespa":
                if (tmp_path / target / "models" / "tierank.json").exists():
                    assert score == reference_engines.vespa(tmp_path / target, row)
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
    trees = Trees.from_lightgbm(ranker._booster().dump_model())
    rows = np.array(gaps.features)
    rng = np.random.default_rng(2)
    rows[rng.random(rows.shape) < 0.3] = np.nan
    rows[rng.random(rows.shape) < 0.1] = 0
    np.testing.assert_array_equal(trees.predict(rows), ranker.predict(rows))


def stumps(numbers):
    """One tree for each threshold, all of one feature."""
    n, ones = np.arange(len(numbers)), np.ones(len(numbers), bool)
    thresholds = np.array(numbers, np.float64)
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
@settings(max_examples=150, deadline=None)
def test_solr_slack_is_undone(pairs):
    """What Solr compares with after adding 1e-6 is the threshold times a power of two, exactly."""
    numbers = [size * sign for size, sign in pairs]
    scaled = _Scaled(stumps(numbers))
    compared = scaled.written + np.float32(1e-6)
    assert np.isfinite(compared).all()
    np.testing.assert_array_equal(compared.astype(float), np.array(numbers) * 2.0 ** scaled.powers.get(0, 0))


def test_solr_refuses_thresholds_that_no_scale_fits():
    with pytest.raises(ParameterError, match="feature 0 has thresholds so small and so large at once"):
        _Scaled(stumps([1e-38, 3e38]))


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-3e38, max_value=3e38))
@settings(max_examples=200, deadline=None)
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
    with pytest.raises(DataError, match="expected an export for onnx, got nothing there; export the model first"):
        verify(ranker, tmp_path / "none.onnx", "onnx", data)


def test_a_tie_is_told_from_a_swap():
    from tierank.export.proof import _compare

    offsets = np.array([0, 3, 5])
    ours = np.array([3.0, 2.0, 1.0, 5.0, 5.0])
    assert _compare(ours, ours, offsets, 1.0) == (2, 0, 0, 0.0)
    assert _compare(ours, ours + np.array([0, 0, 0, 0, 1e-6]), offsets, 1.0)[:3] == (2, 0, 0)  # ours are equal
    n_same, n_close, n_swapped, largest = _compare(ours, np.array([2.0, 3.0, 1.0, 5.0, 5.0]), offsets, 1.0)
    assert (n_same, n_close, n_swapped) == (1, 0, 1)
    assert largest == pytest.approx(1 / 2)  # of its own score
    assert _compare(ours, np.array([2.0, 3.0, 1.0, 5.0, 5.0]), offsets, 4.0)[3] == pytest.approx(1 / 4)
    near = np.array([1.0, 1.0 + 1e-9])
    assert _compare(near[::-1].copy(), near, np.array([0, 2]), 1.0)[:3] == (0, 1, 0)
    assert _compare(near, np.array([1.0, np.nan]), np.array([0, 2]), 1.0)[3] == math.inf


def test_generated_rows_sit_on_every_threshold(fitted, plain):
    ranker, data = fitted("umart with gaps")
    model = ranker._model()
    rows = generate_rows(model, data, bounded=True).features
    at = model.scorer.floor_thresholds()
    for feature in np.unique(model.scorer.feature):
        wanted = np.unique(at[model.scorer.feature == feature])
        assert np.isin(wanted, rows[:, feature]).all()
        assert np.isin(np.nextafter(wanted, np.float32(np.inf)), rows[:, feature]).all()
    seen = model.seen_missing()
    assert seen.any()
    assert np.isnan(rows[:, seen]).any(axis=0).all()
    assert not np.isnan(generate_rows(fitted("umart")[0]._model(), plain, bounded=True).features).any()


def test_generated_lists_sit_on_the_thresholds_of_copies(fitted):
    """In lists that go from 0 to 1 a value is its own place in the range of the query."""
    ranker, data = fitted("query_features")
    trees = ranker._model().scorer.trees
    copies = add_query_copies(generate_rows(ranker._model(), data, bounded=True)).features
    at = trees.floor_thresholds()
    in_range = (trees.feature >= 7) & (trees.feature < 14)
    assert in_range.any()
    for column in np.unique(trees.feature[in_range]):
        wanted = np.unique(at[trees.feature == column])
        assert np.isin(wanted, copies[:, column]).all()
        assert np.isin(np.nextafter(wanted, np.float32(np.inf)), copies[:, column]).all()


@pytest.mark.parametrize("name", ["three seeds", "query_features", "blend"])
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
        constant = TARGETS[target].constant(ranker._model())
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


REFUSED_BEFORE = [
    (URank(**NETWORK), False, "solr", "scales by the list of the query; train with transform='standard' or 'none'"),
    (URank(n_seeds=2, **POINTWISE), False, "vespa", "train with n_seeds=1"),
    (URank(activation="elu", **POINTWISE), False, "solr", "it has no activation 'elu'"),
    (URank(preset="paper-ohsumed", n_jobs=1), False, "vespa", "scales by the list of the query"),
    (URank(**POINTWISE), True, "solr", "replace missing values by 0 before training"),
    (URank(**POINTWISE), False, "elasticsearch", "it holds trees alone"),
    (URank(network="attention", n_jobs=1), False, "onnx", "network: expected 'mlp' to export, .* got 'attention'"),
    (UBoost(output_activation="relu", **POINTWISE), False, "solr", "train with output_activation=None"),
    (UrBoost(**POINTWISE), False, "solr", "train with score_from='state'"),
    (UrBoost(score_from="state", **POINTWISE), False, "solr", "urboost with n_learners=1"),
    (UBoost(base=UMart(**TREES), **POINTWISE), False, "solr", "train without base"),
    (UMart(**TREES), True, "solr", "train with use_missing=False"),
    (UMart(zero_as_missing=True, **TREES), False, "vespa", "train with zero_as_missing=False"),
    (UMart(linear_tree=True, **TREES), False, "c", "expected linear_tree to be left out"),
    (UMart(base=URank(**POINTWISE), **TREES), False, "opensearch", "it holds trees alone"),
    (UMart(query_features=True, **TREES), False, "solr", "train with query_features=False"),
    (LambdaMART(query_features=True, **TREES), False, "elasticsearch", "train with query_features=False"),
    (UMart(base=LambdaMART(**TREES), **TREES), False, "opensearch", "it holds one sum of trees, .* train without base"),
    (Blend(**BLEND), False, "vespa", "or one ranker in place of a blend"),
    (Blend(**BLEND), False, "elasticsearch", "it holds trees alone"),
    (UMart(**TREES), False, "sorl", r"unknown target 'sorl': did you mean 'solr'\?"),
]


@pytest.mark.parametrize(("ranker", "has_gaps", "target", "message"), REFUSED_BEFORE)
def test_for_target_refuses_before_training(ranker, has_gaps, target, message, plain, gaps, monkeypatch):
    def train(*arguments):
        raise AssertionError("training began")

    monkeypatch.setattr(type(ranker), "_fit", train)
    ranker.set_params(for_target=target)
    try:
        with pytest.raises(ParameterError, match=message):
            ranker.fit(gaps if has_gaps else plain)
    finally:
        ranker.set_params(for_target=None)


@pytest.mark.parametrize("name", ["umart", "gaps as zeros", "standard", "uboost", "urrank"])
def test_for_target_lets_pass_what_can_be_held(name, plain, gaps, tmp_path):
    ranker, has_gaps, _ = CASES[name]
    ranker = type(ranker)(**ranker.get_params(deep=False)).set_params(for_target="solr")
    ranker.fit(gaps if has_gaps else plain).export(tmp_path / "solr", to="solr")


def test_for_target_of_a_blend(plain, tmp_path):
    ranker = Blend(for_target="onnx", **BLEND).fit(plain)
    ranker.export(tmp_path / "m", to="onnx")
    ranker.save(tmp_path / "model")
    assert verify(tierank.load(tmp_path / "model"), tmp_path / "m", "onnx", plain).holds


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
    network = ranker._model().scorer
    values = network.transform.apply(plain.features, None)
    for layer in network.layers:
        sums = values.astype(np.float64) @ layer.weights.astype(np.float64).T + layer.bias
        values = sums.astype(np.float32) if layer.activation == "identity" else np.maximum(sums, 0).astype(np.float32)
    found = TARGETS["c"].open(tmp_path / "m")(plain.features, plain.offsets)
    assert (found == values[:, 0]).mean() > 0.99  # but where a sum in another order rounds to the neighbour


def test_what_cannot_be_exported_is_refused(plain, tmp_path):
    with pytest.raises(NotFittedError, match="has learned nothing yet"):
        UMart().export(tmp_path / "m", to="onnx")
    ranker = UMart(linear_tree=True, **TREES).fit(plain)
    with pytest.raises(ParameterError, match="linear_tree: expected trees with constant leaves to export"):
        ranker.export(tmp_path / "m", to="onnx")
    codes = np.random.default_rng(0).integers(8, size=(300, 1)).astype(float)
    data = lightgbm.Dataset(codes, label=codes[:, 0] % 3 == 0, categorical_feature=[0])
    booster = lightgbm.train({"verbosity": -1, "objective": "binary", "num_threads": 1}, data, num_boost_round=1)
    with pytest.raises(ParameterError, match="categorical_feature: expected splits by threshold to export"):
        Trees.from_lightgbm(booster.dump_model())
    with pytest.raises(ParameterError, match=r"unknown target 'elastic': did you mean 'elasticsearch'\?"):
        UMart(**TREES).fit(plain).export(tmp_path / "m", to="elastic")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("x")
    with pytest.raises(DataError, match="expected a new name or a folder of an earlier export"):
        UMart(**TREES).fit(plain).export(tmp_path / "mine", to="solr")


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
        assert loaded.has_missing_ is has_missing
        assert bool(loaded._model().seen_missing().all()) is has_missing


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
    assert "train with --set transform='standard' or 'none'" in captured.err
    assert not (tmp_path / "x").exists()


def test_command_fails_where_the_proof_does(plain, tmp_path, capsys, monkeypatch):
    tierank.write(plain, tmp_path / "data.txt")
    UMart(**TREES).fit(plain).save(tmp_path / "model")
    monkeypatch.setattr(c_target, "TREES", c_target.TREES.replace("<=", "<"))
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
