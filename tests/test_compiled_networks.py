"""Networks scored by compiled code: against torch, against NumPy, and to the bit where nothing may matter."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples

import tierank
from tierank import Blend, LinearRanker, ParameterError, RankingDataset, UBoost, URank, UrBoost
from tierank.kernels.scoring import WIDTH, aligned, apply_layer, find_places, table
from tierank.networks import ACTIVATIONS
from tierank.rankers.model import Resources
from tierank.rankers.network_scoring import CompiledModel, Inputs
from tierank.transforms import TRANSFORMS, Log1p, Piecewise, SideBySide, Standard, Transform

STRAIGHT = ("relu", "leaky_relu")
QUICK = {"max_epochs": 1, "n_jobs": 1}
ALONE = Resources(1)


def searches(n_queries=12, n_features=5, seed=0):
    """Numbers of all sizes, some missing, and twins."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, n_queries)
    n = lengths.sum()
    features = rng.normal(size=(n, n_features)) * 10.0 ** rng.integers(-3, 4, n_features)
    features[:, 1] = rng.integers(0, 3, n)  # few values
    features[rng.random(features.shape) < 0.1] = np.nan
    features[5:9] = features[4]
    return RankingDataset(features, rng.integers(0, 4, n), np.repeat(np.arange(n_queries), lengths))


@pytest.fixture(scope="module")
def data():
    return searches()


def by_torch(model, data):
    lists = model.lists(data, ALONE)
    return [lists.torch_scores(network) for network in model.networks("cpu")]


def is_compiled(model):
    return CompiledModel.of(model.networks("cpu"), model.inputs) is not None


def assert_agrees(model, data):
    """The scores of compiled code are those of torch, but for rounding in single precision."""
    for ours, theirs in zip(model.member_scores(data, ALONE), by_torch(model, data), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * max(1e-3, np.abs(theirs).max()))


# Against torch


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("encoding", ["piecewise", "none"])
def test_every_activation_and_encoding_agrees_with_torch(data, activation, encoding):
    ranker = URank(activation=activation, encoding=encoding, **QUICK).fit(data)
    assert is_compiled(ranker.model_) == (activation in STRAIGHT)
    assert_agrees(ranker.model_, data)


@pytest.mark.parametrize("transform", [*TRANSFORMS, ("query_rank", "standard", "none")])
def test_every_transform_agrees_with_torch(data, transform):
    for encoding in ("piecewise", "none"):
        ranker = URank(feature_transform=transform, encoding=encoding, hidden=(7,), **QUICK).fit(data)
        assert is_compiled(ranker.model_)
        assert_agrees(ranker.model_, data)


@pytest.mark.parametrize("hidden", [(), (1,), (WIDTH,), (WIDTH + 1, 3), (20, 10, 5)])
@pytest.mark.parametrize("output", [None, "leaky_relu", "tanh"])
def test_layers_of_any_size_agree_with_torch(data, hidden, output):
    ranker = URank(hidden=hidden, output_activation=output, n_seeds=2, **QUICK).fit(data)
    assert is_compiled(ranker.model_) == (output in (None, *STRAIGHT))
    assert_agrees(ranker.model_, data)


def test_a_linear_network_has_no_activation_that_could_bend(data):
    ranker = URank(hidden=(), activation="tanh", **QUICK).fit(data)
    assert is_compiled(ranker.model_)
    assert_agrees(ranker.model_, data)


def test_embeddings_of_categories_agree_with_torch(data):
    rng = np.random.default_rng(1)
    numbers = data.features.astype(object)
    names = np.array(["", "red", "green", "blue"], object)[rng.integers(0, 4, data.n_documents)]
    table = {"a": numbers[:, 0].astype(float), "colour": names, "b": numbers[:, 2].astype(float)}
    table |= {"kind": names[::-1], "qid": data.query_of_row, "rating": data.ratings}
    pandas = pytest.importorskip("pandas")
    categories = tierank.Columns(categories=["colour", "kind"])
    coloured = tierank.read(pandas.DataFrame(table), columns=categories)
    ranker = URank(**QUICK).fit(coloured)
    assert is_compiled(ranker.model_)
    assert_agrees(ranker.model_, coloured)


class Doubled(SideBySide):
    """A subclass that computes something else than its parts."""

    def apply(self, features, offsets):
        return 2 * super().apply(features, offsets)


class Narrow(SideBySide):
    LIMIT = 0.5


class HalfPieces(Piecewise):
    def apply(self, features, offsets):
        return super().apply(features, offsets) / 2


class Given(Transform):
    """What a function gives, in any type and layout."""

    def __init__(self, function=None):
        self.function = function

    def learn(self, features):
        pass

    def apply(self, features, offsets):
        return self.function(np.nan_to_num(features))


def as_double(features):
    return np.asfortranarray(features, np.float64) / 100


def as_view(features):
    return np.broadcast_to(features[:, :1] / 100, features.shape)


@pytest.mark.parametrize("encoding", ["piecewise", "none"])
@pytest.mark.parametrize(
    "transform",
    [
        Doubled([Standard(), Piecewise()]),
        Narrow([Log1p(), Piecewise()]),
        SideBySide([Log1p(), HalfPieces()]),
        SideBySide([Narrow([Standard()]), Piecewise()]),
        Given(as_double),
        Given(as_view),
    ],
)
def test_transforms_of_callers_agree_with_torch(data, transform, encoding):
    ranker = URank(feature_transform=transform, encoding=encoding, hidden=(7,), **QUICK).fit(data)
    assert is_compiled(ranker.model_)
    assert_agrees(ranker.model_, data)


@pytest.mark.parametrize("make", [URank, LinearRanker])
@pytest.mark.parametrize("function", [lambda x: np.hstack([x, x]), lambda x: x[:, :2], lambda x: x[:-1], np.ravel])
def test_a_transform_of_another_shape_is_refused(data, make, function):
    ranker = make(feature_transform=Given(function), n_jobs=1)
    with pytest.raises(
        ParameterError, match=r"expected an array of shape \(\d+, 5\) from Given.apply, got one of shape"
    ):
        ranker.fit(data)


@pytest.mark.filterwarnings("ignore:no qid was given")
def test_without_queries_agrees_with_torch(data):
    ranker = URank(**QUICK).fit(data.features, data.ratings)
    assert not ranker.model_.seen.has_queries
    assert_agrees(ranker.model_, RankingDataset(data.features))


def test_networks_that_look_at_lists_or_remember_stay_with_torch(data):
    for network in ("attention", "groupwise"):
        assert not is_compiled(URank(network=network, **QUICK).fit(data).model_)
    assert not is_compiled(UrBoost(n_learners=2, **QUICK).fit(data).model_)


def test_boosted_networks_are_sums_of_compiled_ones(data):
    model = UBoost(n_learners=3, coefficient=0.5, **QUICK).fit(data).model_
    assert is_compiled(model)
    assert_agrees(model, data)


# Training sees what prediction gives


@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_metrics_of_training_are_those_of_the_predictions(data, activation):
    valid = searches(seed=3)
    ranker = URank(activation=activation, max_epochs=4, n_jobs=1, select_by=["ndcg@3"]).fit(data, valid=valid)
    found = tierank.evaluate(valid, ranker.predict(valid), "ndcg@3")
    assert found.mean("ndcg@3") == ranker.best_["ndcg@3"]


# To the bit


def test_a_score_does_not_depend_on_the_other_rows(data):
    ranker = URank(feature_transform=("standard", "log1p"), **QUICK).fit(data)
    together = ranker.predict(data)
    for n in range(1, 10):
        np.testing.assert_array_equal(ranker.predict(data.features[:n], qid=np.zeros(n)), together[:n])


def test_twins_and_rows_in_any_order_have_the_same_bits(data):
    ranker = URank(**QUICK).fit(data)
    scores = ranker.predict(data.features, qid=data.query_of_row)
    first, last = 4, 8  # these have the same features
    same = data.query_of_row[first : last + 1] == data.query_of_row[first]
    assert same.sum() > 1
    assert len(set(scores[first : last + 1][same].tolist())) == 1
    order = np.random.default_rng(0).permutation(data.n_documents)
    shuffled = ranker.predict(data.features[order], qid=data.query_of_row[order])
    np.testing.assert_array_equal(shuffled, scores[order])


def test_blocks_of_queries_and_threads_change_nothing(data, monkeypatch):
    ranker = URank(n_seeds=2, **QUICK).fit(data)
    whole = ranker.predict(data)
    monkeypatch.setattr("tierank.transforms._VALUES_AT_ONCE", 1)  # a query at a time
    np.testing.assert_array_equal(ranker.predict(data), whole)
    np.testing.assert_array_equal(ranker.model_.predict(data, Resources(3)), whole)


def test_work_arrays_do_not_grow_with_lists(data, monkeypatch):
    ranker = URank(hidden=(200, 100), **QUICK).fit(data)
    features = np.tile(data.features, (3000 // data.n_documents + 1, 1))
    whole = ranker.predict(features, qid=np.zeros(len(features)))
    sizes = []
    monkeypatch.setattr("tierank.rankers.network_scoring._VALUES_AT_ONCE", 4 * WIDTH * 50)
    monkeypatch.setattr("tierank.rankers.network_scoring.aligned", lambda n: sizes.append(n) or aligned(n))
    np.testing.assert_array_equal(ranker.predict(features, qid=np.zeros(len(features))), whole)
    assert max(sizes) == 4 * WIDTH * 50
    assert len(sizes) == 3 * -(-len(features) // 50)


# What members share


def test_members_share_inputs_that_are_the_same_and_no_others(data, monkeypatch):
    blend = Blend(n_configs=1, n_seeds=3, n_trees=2, rotate=False, max_epochs=1, n_jobs=1).fit(data)
    networks = [member.model for member in blend.members_ if member.family == "networks"]
    assert len(networks) == 3
    alone = [model.predict(data, ALONE) for model in networks]
    calls = []
    split = Inputs.split
    monkeypatch.setattr(Inputs, "split", lambda self, *given: calls.append(1) or split(self, *given))
    scores = blend.model_._scores([member for member in blend.members_ if member.family == "networks"], data, ALONE)
    assert len(calls) == 1
    for ours, own in zip(scores, alone, strict=True):
        np.testing.assert_array_equal(ours, own)


def test_keys_tell_inputs_apart(data):
    other = searches(seed=5)
    kinds = product([data, other], ["standard", "query_minmax", "log1p"], ["piecewise", "none"])
    fitted = [
        URank(feature_transform=name, encoding=encoding, hidden=(2,), **QUICK).fit(seen)
        for seen, name, encoding in kinds
    ]
    keys = [ranker.model_.inputs.key for ranker in fitted]
    # Within queries nothing is learned of the data except ranges for rows without queries.
    assert len(set(keys)) == len(keys)
    again = URank(feature_transform="standard", hidden=(3,), seed=9, **QUICK).fit(data)
    assert again.model_.inputs.key == keys[0]


# The kernels


@examples(30)
@given(st.integers(1, 150), st.integers(0, 9), st.integers(0, 3), st.sampled_from([1, 2]), st.sampled_from([0.0, 0.01]))
def test_a_layer_is_a_product_and_a_mean_of_two_rows(n, n_inputs, n_features, n_lanes, slope):
    rng = np.random.default_rng(n)
    n_outputs, n_pieces = n_lanes * WIDTH, 8
    inputs, biases = rng.normal(size=(n, n_inputs)), rng.normal(size=n_outputs)
    weights, sums = rng.normal(size=(n_inputs, n_outputs)), rng.normal(size=(n_features, n_pieces + 1, n_outputs))
    places = rng.integers(0, n_pieces, (n, n_features)).astype(np.uint8)
    shares = rng.random((n, n_features)).astype(np.float32)
    outputs = np.empty(n * n_outputs, np.float32)
    flat = [table(one) for one in (inputs, weights, biases)]
    apply_layer(*flat, places.ravel(), shares.ravel(), table(sums), slope, outputs)
    expected = inputs @ weights + biases
    for f in range(n_features):
        share = shares[:, f, None]
        expected += (1 - share) * sums[f, places[:, f]] + share * sums[f, places[:, f] + 1]
    expected = np.where(expected > 0, expected, slope * expected)
    np.testing.assert_allclose(outputs.reshape(n, n_outputs), expected, rtol=1e-4, atol=1e-4)


@examples(30)
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_places_say_what_the_encoding_does(seed, n_values):
    rng = np.random.default_rng(seed)
    train = rng.integers(-n_values, n_values + 1, (50, 3)).astype(np.float32) * np.float32(1.7)
    train[:, 2] = 4.0  # of a constant there are no pieces
    encoding = Piecewise().fit(train)
    rows = np.concatenate([train, rng.normal(scale=30, size=(50, 3)).astype(np.float32)])
    rows[rng.random(rows.shape) < 0.1] = np.nan
    places, shares = np.empty(rows.shape, np.uint8), np.empty(rows.shape, np.float32)
    low, slope = (np.ascontiguousarray(one.T) for one in (encoding.low_, encoding.slope_))
    find_places(rows, encoding.rescaled(rows), low, slope, np.empty(3), places, shares)
    pieces = encoding.apply(rows, None).reshape(len(rows), 8, 3)
    number = np.arange(8)[:, None]
    decoded = np.where(number < places[:, None], 1.0, np.where(number == places[:, None], shares[:, None], 0.0))
    np.testing.assert_allclose(decoded, pieces, atol=1e-6)
