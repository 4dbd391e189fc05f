"""Compiled scoring of trees: the bits of LightGBM, for trees and values from the whole space."""

import pickle
import re
import tracemalloc
from dataclasses import replace
from typing import NamedTuple

import lightgbm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples

import tierank
from tierank import RANKERS, DataError, LambdaMART, RankingDataset, UMart
from tierank.export import NAN, NONE, ZERO, Trees
from tierank.kernels.compiling import KERNELS
from tierank.kernels.scoring import BLOCK, MAX_THRESHOLDS, score_rows
from tierank.kernels.simd import WIDTH
from tierank.rankers import lightgbm as adapter
from tierank.rankers.lightgbm import read_trees
from tierank.rankers.tree_model import MAX_LEAVES, TreeModel, TreeScorer

NEAR_ZERO = 1.0000000180025095e-35  # 1e-35 as float32, which is LightGBM's
TINY, LARGEST = np.float32(1e-45), float(np.finfo(np.float32).max)
SPECIAL = [0.0, -0.0, NEAR_ZERO, -NEAR_ZERO, 1.1e-35, -1.1e-35, 9e-36, float(TINY), -float(TINY), 1.2e-38, 1.0, -1.0]
# Thresholds are doubles: between float32 numbers, and beyond all of them.
THRESHOLDS = [
    *SPECIAL,
    np.inf,
    -np.inf,
    0.1,
    -0.1,
    1 + 1e-9,
    5e-324,
    1e-300,
    LARGEST,
    -LARGEST,
    1e39,
    -1e39,
    1e300,
    -1e300,
]
VALUES = [*SPECIAL, 0.1, -0.1, LARGEST, -LARGEST, np.inf, -np.inf, np.nan]


class Split(NamedTuple):
    """A split as LightGBM has it; children are numbers of splits, or ~leaf."""

    feature: int
    threshold: float
    missing: int
    default_left: bool
    left: int
    right: int


class Tree(NamedTuple):
    splits: list[Split]
    values: list[float]


def grow(rng, n_leaves, conditions, shape="random"):
    """A tree that splits a leaf of its own at a time, as LightGBM grows one; ``shape`` says which leaf.

    ``conditions`` gives feature, threshold, kind of missing values, and whether these go left.
    """
    splits: list[list] = []
    above: list[tuple[int, str] | None] = [None]  # the split above each leaf, and its side
    for leaf in range(1, n_leaves):
        chosen = {"random": int(rng.integers(leaf)), "left": 0, "right": leaf - 1}[shape]
        if above[chosen] is not None:
            parent, side = above[chosen]
            splits[parent][4 if side == "left" else 5] = len(splits)
        splits.append([*conditions(), ~chosen, ~leaf])
        above[chosen] = (len(splits) - 1, "left")
        above.append((len(splits) - 1, "right"))
    values = (rng.normal(size=n_leaves) * 10.0 ** rng.integers(-8, 9, n_leaves)).tolist()
    return Tree([Split(*split) for split in splits], values)


def as_text(trees, n_features):
    """The trees as LightGBM writes them, to the digit."""
    parts = []
    for number, tree in enumerate(trees):
        columns = list(zip(*tree.splits, strict=True)) or [()] * 6
        kinds = [2 * left + 4 * kind for kind, left in zip(columns[2], columns[3], strict=True)]
        fields = {
            "num_leaves": [len(tree.values)], "num_cat": [0], "split_feature": columns[0],
            "split_gain": [1] * len(tree.splits), "threshold": columns[1], "decision_type": kinds,
            "left_child": columns[4], "right_child": columns[5], "leaf_value": tree.values,
            "leaf_weight": [1] * len(tree.values), "leaf_count": [1] * len(tree.values),
            "internal_value": [0] * len(tree.splits), "internal_weight": [1] * len(tree.splits),
            "internal_count": [2] * len(tree.splits), "is_linear": [0], "shrinkage": [1],
        }  # fmt: skip
        lines = [f"{name}={' '.join(repr(value) for value in values)}" for name, values in fields.items()]
        parts.append("\n".join([f"Tree={number}", *lines]) + "\n\n\n")
    names = " ".join(f"f{feature}" for feature in range(n_features))
    ranges = " ".join(["[-1e+300:1e+300]"] * n_features)
    head = (
        f"tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\nmax_feature_idx={n_features - 1}\n"
        f"feature_names={names}\nfeature_infos={ranges}\ntree_sizes={' '.join(str(len(part)) for part in parts)}\n\n"
    )
    return head + "".join(parts) + "end of trees\n\nfeature_importances:\n\nparameters:\n\nend of parameters\n"


def walk(tree, row):
    """The leaf of one document, by the rules that ``Trees.from_lightgbm`` states."""
    node = 0 if tree.splits else ~0
    while node >= 0:
        split = tree.splits[node]
        value = float(row[split.feature])
        if abs(value) <= NEAR_ZERO or (np.isnan(value) and split.missing != NAN):
            value = 0.0
        is_missing = np.isnan(value) or (value == 0 and split.missing == ZERO)
        node = split.left if (split.default_left if is_missing else value <= split.threshold) else split.right
    return tree.values[~node]


def walked(trees, features):
    """The slow twin: document by document, tree after tree, added in double precision."""
    totals = np.zeros(len(features))
    for number, row in enumerate(features):
        for tree in trees:
            totals[number] += walk(tree, row)
    return totals


def by_lightgbm(text, features):
    booster = lightgbm.Booster(model_str=text)
    return np.asarray(booster.predict(features, raw_score=True, num_threads=1), np.float64)


def compiled(text, features, n_jobs=1):
    scorer = TreeScorer.of(read_trees(text))
    assert scorer is not None
    return scorer.predict(features, n_jobs)


def assert_same_bits(actual, expected):
    np.testing.assert_array_equal(actual.view(np.int64), expected.view(np.int64))


def neighbours(thresholds):
    """Float32 numbers at and next to the thresholds."""
    with np.errstate(over="ignore"):
        at = np.array(thresholds, np.float64).astype(np.float32)
        return np.concatenate([at, np.nextafter(at, np.float32(np.inf)), np.nextafter(at, np.float32(-np.inf))])


@st.composite
def models(draw):
    """Trees, and documents whose values are at, next to and far from their thresholds."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_features = draw(st.integers(1, 5))
    thresholds = THRESHOLDS + draw(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
    kinds = draw(st.sampled_from([[NONE], [NAN], [ZERO], [NONE, NAN, ZERO]]))

    def conditions():
        return (
            int(rng.integers(n_features)),
            float(rng.choice(thresholds)),
            int(rng.choice(kinds)),
            bool(rng.integers(2)),
        )

    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    trees = [grow(rng, n, conditions, draw(st.sampled_from(["random", "left", "right"]))) for n in sizes]
    pool = np.concatenate([np.array(VALUES, np.float32), neighbours(thresholds)])
    return trees, rng.choice(pool, (draw(st.integers(1, 150)), n_features))


@given(models())
@examples(150)
def test_any_trees_and_values_give_the_bits_of_lightgbm_and_of_the_slow_twin(model):
    trees, features = model
    text = as_text(trees, features.shape[1])
    scores = compiled(text, features)
    assert_same_bits(scores, by_lightgbm(text, features))
    assert_same_bits(scores, walked(trees, features))


def normal_conditions(rng, n_features=6):
    return lambda: (int(rng.integers(n_features)), float(rng.normal()), int(rng.integers(3)), bool(rng.integers(2)))


def normal_rows(rng, n, n_features=6):
    features = rng.normal(size=(n, n_features)).astype(np.float32)
    features[rng.random(features.shape) < 0.1] = np.nan
    features[rng.random(features.shape) < 0.1] = 0
    return features


@pytest.mark.parametrize("shape", ["random", "left", "right"])
def test_every_number_of_leaves_to_300(shape):
    rng = np.random.default_rng(1)
    features = normal_rows(rng, 40)
    trees = [grow(rng, n, normal_conditions(rng), shape) for n in range(1, 301)]
    assert_same_bits(compiled(as_text(trees, 6), features), walked(trees, features))
    for n in (1, 2, 8, 9, 64, 65, 300):  # one by one too, as the leaves of a small tree drown in the sum of all
        text = as_text(trees[n - 1 : n], 6)
        assert_same_bits(compiled(text, features), by_lightgbm(text, features))


def test_the_largest_trees_and_those_beyond():
    rng = np.random.default_rng(2)
    features = normal_rows(rng, 30)
    largest = as_text([grow(rng, MAX_LEAVES, normal_conditions(rng))], 6)
    assert_same_bits(compiled(largest, features), by_lightgbm(largest, features))
    beyond = as_text([grow(rng, MAX_LEAVES + 1, normal_conditions(rng))], 6)
    assert TreeScorer.of(read_trees(beyond)) is None
    model = TreeModel(beyond, [{}], 1, tierank.rankers.model.Seen(6), False)
    data = RankingDataset(np.nan_to_num(features))
    assert_same_bits(
        model.predict(data, tierank.rankers.model.Resources(1)), by_lightgbm(beyond, np.nan_to_num(features))
    )


@pytest.mark.parametrize("n", [MAX_THRESHOLDS - 1, MAX_THRESHOLDS, MAX_THRESHOLDS + 1, 3 * MAX_THRESHOLDS + 2])
def test_more_thresholds_of_a_feature_than_a_byte_can_number(n):
    rng = np.random.default_rng(n)
    trees = [Tree([Split(0, float(number), NONE, True, ~0, ~1)], [0.0, 1.0]) for number in range(n)]
    features = rng.uniform(-2, n + 2, (500, 1)).astype(np.float32)
    features[:4, 0] = [-np.inf, np.inf, n - 1, np.nan]
    above = np.clip(np.ceil(np.nan_to_num(features[:, 0])), 0, n) + 0.0  # so many numbers 0, 1, ... are below the value
    assert_same_bits(compiled(as_text(trees, 1), features), above.astype(np.float64))


@pytest.mark.parametrize(
    "n", [0, 1, WIDTH - 1, WIDTH, WIDTH + 1, int(BLOCK) - 1, int(BLOCK), int(BLOCK) + 1, 3 * int(BLOCK)]
)
def test_any_number_of_rows(n):
    rng = np.random.default_rng(n)
    trees = [grow(rng, 20, normal_conditions(rng)) for _ in range(5)]
    features = normal_rows(rng, n)
    scores = compiled(as_text(trees, 6), features)
    assert scores.shape == (n,)
    assert scores.dtype == np.float64
    assert_same_bits(scores, walked(trees, features))


def test_any_number_of_threads_gives_the_same_bits():
    rng = np.random.default_rng(3)
    trees = [grow(rng, 31, normal_conditions(rng)) for _ in range(20)]
    features = normal_rows(rng, 5000)
    text = as_text(trees, 6)
    expected = by_lightgbm(text, features)
    for n_jobs in (1, 2, 3, 7, None):
        assert_same_bits(compiled(text, features, n_jobs), expected)


def test_rows_give_the_same_bits_alone_and_in_any_layout():
    rng = np.random.default_rng(4)
    trees = [grow(rng, 31, normal_conditions(rng)) for _ in range(20)]
    features = normal_rows(rng, 300)
    scorer = TreeScorer.of(read_trees(as_text(trees, 6)))
    together = scorer.predict(features)
    assert_same_bits(np.concatenate([scorer.predict(row[None]) for row in features]), together)
    assert_same_bits(scorer.predict(np.asfortranarray(features)), together)
    assert_same_bits(scorer.predict(features[::-1])[::-1].copy(), together)


def test_values_are_added_in_the_order_of_the_trees():
    """1e16 + 1 is 1e16 in double precision, so 1e16 + 1 - 1e16 is 0, and 1e16 - 1e16 + 1 is 1."""
    features = np.zeros((1, 1), np.float32)
    sums = [
        compiled(as_text([Tree([], [v]) for v in values], 1), features)[0]
        for values in ((1e16, 1, -1e16), (1e16, -1e16, 1))
    ]
    assert sums == [0.0, 1.0]


def test_no_trees_score_0():
    assert TreeScorer.of(Trees.constant(0.5)).predict(np.zeros((2, 0), np.float32)).tolist() == [0.5, 0.5]
    constant = Trees.constant(0.0)
    empty = Trees(*(array[:0] for array in vars(constant).values() if array is not None))
    assert TreeScorer.of(empty).predict(np.zeros((2, 3), np.float32)).tolist() == [0.0, 0.0]


def test_trees_that_are_read_from_the_text_score_as_lightgbm_does():
    rng = np.random.default_rng(5)
    trees = [grow(rng, n, normal_conditions(rng)) for n in (1, 2, 31, 1, 70)]
    text = as_text(trees, 6)
    features = normal_rows(rng, 200)
    expected = lightgbm.Booster(model_str=text).predict(features, raw_score=True)
    assert_same_bits(read_trees(text).predict(features), expected)


def test_damaged_trees_are_refused():
    stump = Trees.stump(0, 0.5, (0.0, 1.0))
    with pytest.raises(DataError, match="expected one parent"):
        TreeScorer.of(replace(stump, left=np.array([~1])))
    with pytest.raises(DataError, match="expected one parent"):
        TreeScorer.of(replace(stump, left=np.array([7])))
    circle = Trees(
        np.array([~0]),
        *(np.repeat(getattr(stump, name), 2) for name in ("feature", "threshold")),
        np.array([1, 0]),
        np.array([~1, ~2]),
        *(np.repeat(getattr(stump, name), 2) for name in ("missing", "default_left")),
        np.zeros(3),
    )
    with pytest.raises(DataError, match="got a cycle"):
        TreeScorer.of(circle)


def test_too_few_columns_are_refused():
    with pytest.raises(DataError, match=re.escape("expected at least 3 columns, got shape (4, 2)")):
        TreeScorer.of(Trees.stump(2, 0.5, (0.0, 1.0))).predict(np.zeros((4, 2), np.float32))


# Rankers

TREES = {"n_trees": 12, "min_documents": 5, "n_jobs": 1}
SETTINGS = {
    "plain": {},
    "zeros as gaps": {"zero_as_missing": True},
    "gaps as zeros": {"use_missing": False},
    "copies": {"query_features": True},
    "lines in leaves": {"linear_tree": True},
    "many leaves": {"n_leaves": 200, "min_documents": 1},
}


@pytest.fixture(scope="module")
def gaps():
    data = tierank.make_ranking(40, n_features=7, mean_length=25, max_length=50, seed=4)
    rng, features = np.random.default_rng(0), np.array(data.features)
    features[rng.random(features.shape) < 0.1] = np.nan
    features[rng.random(features.shape) < 0.1] = 0
    return data.with_features(features, None)


def is_of_trees(kind):
    return "n_leaves" in kind.declared_settings() and kind is not tierank.Blend


@pytest.mark.parametrize("given", SETTINGS.values(), ids=list(SETTINGS))
@pytest.mark.parametrize("name", [name for name, kind in RANKERS.items() if is_of_trees(kind)])
def test_every_ranker_of_trees_predicts_what_lightgbm_does(name, given, gaps):
    ranker = RANKERS[name](**TREES | given).fit(gaps)
    model = ranker.model_
    seen = tierank.transforms.add_query_copies(gaps).features if model.query_features else gaps.features
    expected = np.asarray(model.booster.predict(seen, raw_score=True, num_threads=1))
    assert_same_bits(ranker.predict(gaps), gaps.restore(expected))
    assert isinstance(model.scorer, TreeScorer) == ("linear_tree" not in given)


def test_splits_by_category_give_the_scores_of_lightgbm(gaps):
    features = np.array(gaps.features)
    features[:, 0] = gaps.ratings * 7 % 5  # no threshold splits these as well as a set does
    data = gaps.with_features(features, None)
    ranker = LambdaMART(**TREES, categorical_feature=[0], min_data_per_group=1, cat_smooth=0).fit(data)
    model = ranker.model_
    assert isinstance(model.scorer, TreeScorer)
    assert "==" in {node["decision_type"] for node in _splits_of(model.booster.dump_model())}
    odd = [-1e30, -5, -1, -0.99, -0.0, 0.5, 1, 1.5, 2, 2.99, 4, 5, 31, 32, 33, 64, 1e6, 3e9, 1e30, np.nan]
    rows = np.repeat(features[:40], len(odd), axis=0)
    rows[:, 0] = np.tile(np.array(odd, np.float32), 40)
    for values in (features, rows):
        expected = np.asarray(model.booster.predict(values, raw_score=True, num_threads=1))
        assert_same_bits(model.scorer.predict(values), expected)
        assert_same_bits(read_trees(model.text).predict(values), expected)


def test_high_numbers_of_categories_take_neither_time_nor_memory(gaps):
    """A set of categories has a bit for every number up to the highest; a table of all sets would take gigabytes."""
    features = np.array(gaps.features)
    features[:, 0] = 3_000_000 * (gaps.ratings * 7 % 5)
    data = gaps.with_features(features, None)
    ranker = LambdaMART(**TREES | {"n_trees": 4}, categorical_feature=[0], min_data_per_group=1, cat_smooth=0).fit(data)
    model = ranker.model_
    assert "==" in {node["decision_type"] for node in _splits_of(model.booster.dump_model())}
    tracemalloc.start()
    scores = ranker.predict(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500e6
    expected = np.asarray(model.booster.predict(data.features, raw_score=True, num_threads=1))
    assert_same_bits(scores, data.restore(expected))


def test_sets_of_categories_beyond_the_limit_are_left_to_lightgbm(gaps, monkeypatch):
    features = np.array(gaps.features)
    features[:, 0] = gaps.ratings * 7 % 5
    data = gaps.with_features(features, None)
    ranker = LambdaMART(**TREES, categorical_feature=[0], min_data_per_group=1, cat_smooth=0).fit(data)
    expected = ranker.predict(data)
    monkeypatch.setattr(adapter, "MAX_MEMBERS", 31)  # a set takes 32
    assert read_trees(ranker.model_.text) is None
    assert_same_bits(pickle.loads(pickle.dumps(ranker)).predict(data), expected)


def _splits_of(dump):
    waiting = [tree["tree_structure"] for tree in dump["tree_info"]]
    while waiting:
        node = waiting.pop()
        if "split_feature" in node:
            yield node
            waiting += [node["left_child"], node["right_child"]]


def test_a_split_of_missing_values_from_all_others_can_be_saved_and_loaded(gaps, tmp_path):
    """LightGBM writes its threshold as inf."""
    ranker = UMart(**TREES).fit(gaps)
    assert re.search(r"^threshold=.*\binf\b", ranker.model_.text, re.MULTILINE)
    ranker.save(tmp_path / "model")
    assert_same_bits(tierank.load(tmp_path / "model").predict(gaps), ranker.predict(gaps))


def test_a_split_by_category_and_a_split_of_missing_values_in_one_model(gaps):
    """The number of a set is read from the thresholds of splits by category; those of other splits may be inf."""
    features = np.array(gaps.features)
    features[:, 0] = gaps.ratings * 7 % 5 * (np.arange(len(features)) % 2)
    features[:, 1] = np.where(gaps.ratings > np.median(gaps.ratings), np.nan, features[:, 1])
    data = gaps.with_features(features[:, :2], None)
    ranker = UMart(**TREES, categorical_feature=[0], min_data_per_group=1, cat_smooth=0).fit(data)
    assert re.search(r"^threshold=.*\binf\b", ranker.model_.text, re.MULTILINE)
    assert "==" in {node["decision_type"] for node in _splits_of(ranker.booster_.dump_model())}
    expected = np.asarray(ranker.booster_.predict(data.features, raw_score=True, num_threads=1))
    assert_same_bits(ranker.predict(data), data.restore(expected))


def test_the_compiled_form_is_made_once_and_not_pickled(gaps):
    model = UMart(**TREES).fit(gaps).model_
    assert model.scorer is model.scorer
    copy = pickle.loads(pickle.dumps(model))
    assert "scorer" not in vars(copy)
    resources = tierank.rankers.model.Resources(1)
    assert_same_bits(copy.predict(gaps, resources), model.predict(gaps, resources))


def test_the_kernel_is_compiled_for_one_signature():
    compiled(as_text([Tree([], [1.0])], 1), np.zeros((3, 1), np.float32))
    assert score_rows in KERNELS
    assert len(score_rows.signatures) == 1


def test_the_plain_python_of_the_kernel_gives_the_same_bits():
    """Instructions and the NumPy that stands beside them are two definitions of one thing."""
    rng = np.random.default_rng(9)
    trees = [grow(rng, n, normal_conditions(rng)) for n in (1, 7, 8, 9, 31, 70)]
    features = normal_rows(rng, WIDTH + 2)
    scorer = TreeScorer.of(read_trees(as_text(trees, 6)))
    scores = np.empty(len(features))
    score_rows.function(features, 0, len(features), scorer._columns, scorer._forest, scores)
    assert_same_bits(scores, scorer.predict(features, 1))


# What scores are computed from


def slow_copies(values):
    """Place in the range and rank of each value of one query, by the definition."""
    known = values[~np.isnan(values)].astype(np.float64)
    span = known.max() - known.min()
    in_range = (values.astype(np.float64) - known.min()) / span
    below = (known[None] < values[:, None]).sum(axis=1) + ((known[None] == values[:, None]).sum(axis=1) - 1) / 2
    return in_range, np.where(np.isnan(values), np.nan, below / (len(known) - 1))


@pytest.mark.parametrize("n", [2, 100, 255, 256, 257, 258, 700])
def test_copies_in_short_and_long_lists_are_the_definition(n):
    """Ranks are found in two ways, by the number of known values; ties and missing values are in both."""
    rng = np.random.default_rng(n)
    values = rng.integers(-20, 20, n).astype(np.float32)
    values[1:][rng.random(n - 1) < 0.01] = np.nan
    values[:2] = [-21, 21]
    copies = tierank.transforms.add_query_copies(RankingDataset(values[:, None])).features
    for column, expected in enumerate(slow_copies(values), start=1):
        np.testing.assert_allclose(copies[:, column], expected, rtol=1e-6)


def test_members_of_a_blend_share_the_order_of_the_rows_and_nothing_else(gaps):
    blend = tierank.Blend(n_configs=1, n_seeds=2, rotate=False, n_trees=5, max_epochs=1, n_jobs=1).fit(gaps)
    resources = tierank.rankers.model.Resources(1)
    networks = [member for member in blend.members_ if member.family == "networks"]
    together = blend.model_._scores(networks, gaps, resources)
    for member, scores in zip(networks, together, strict=True):
        assert_same_bits(scores, member.model.predict(gaps, resources))
    changed = gaps.with_features(np.array(gaps.features), None)
    before = blend.predict(changed)
    changed.features[:] = changed.features[::-1].copy()  # nothing is remembered from one call to the next
    assert_same_bits(blend.predict(changed), blend.predict(gaps.with_features(np.array(changed.features), None)))
    assert (blend.predict(changed) != before).any()
