"""What networks see: transforms side by side, the piecewise-linear encoding, and the training that goes with them."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples
from sklearn.base import clone

import tierank
from tierank import (
    RANKERS,
    DataError,
    LinearRanker,
    NetworkRanker,
    ParameterError,
    RankingDataset,
    UBoost,
    URank,
    UrBoost,
)
from tierank.rankers.network_training import Adam, cosine_share, count_epochs
from tierank.transforms import TRANSFORMS, Log1p, Piecewise, SideBySide, Transform, make_transform

THREE = ("query_minmax", "query_log1p", "log1p")
RICH = {"feature_transform": THREE, "encoding": "piecewise", "hidden": (6,), "n_jobs": 1, "max_epochs": 2}
NEURAL = sorted(name for name, kind in RANKERS.items() if "rich-inputs" in kind.PRESETS)


@pytest.fixture(scope="module")
def parts():
    """Missing values, zeros, ties, a column of one value and one without any."""
    plain = tierank.make_ranking(40, n_features=7, mean_length=12, max_length=30, seed=7)
    features = np.array(plain.features)
    rng = np.random.default_rng(0)
    features[rng.random(features.shape) < 0.05] = np.nan
    features[rng.random(features.shape) < 0.2] = 0
    features[:, 5], features[:, 6] = 3.0, np.nan
    data = RankingDataset(features, plain.ratings, qid=np.repeat(plain.query_ids, plain.lengths))
    return data.split(0.5, 0.25, 0.25)


# Side by side


@pytest.mark.parametrize("names", [THREE, ("log1p",), ("quantile", "none", "query_rank"), tuple(TRANSFORMS)])
def test_transforms_side_by_side_are_all_columns_within_limits(parts, names):
    train, _, test = parts
    together = make_transform(names).fit(train).transform(test)
    alone = [TRANSFORMS[name]().fit(train).transform(test) for name in names]
    assert together.dtype == np.float32
    np.testing.assert_array_equal(together, np.hstack(alone).clip(-5, 5))


def test_limits_hold_for_far_values():
    side = make_transform(("standard", "none")).fit([[0.0], [1.0]])
    assert side.transform([[3e38], [-3e38], [np.nan]]).tolist() == [[5, 5], [-5, -5], [0, 0]]


def test_side_by_side_is_a_transformer(parts):
    train, _, test = parts
    side = SideBySide([Log1p(), Piecewise()]).fit(train)
    values = side.transform(test)
    again = clone(side).load_state(side.state(), 7)
    np.testing.assert_array_equal(again.transform(test), values)
    assert not hasattr(clone(side), "parts_")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(side)).transform(test), values)
    names = SideBySide([Log1p(), Piecewise()]).fit([[1.0, 2.0]]).get_feature_names_out(["a", "b"])
    assert len(names) == 18
    assert names[[0, 1, 2, 17]].tolist() == [
        "a by Log1p",
        "b by Log1p",
        "a piece 1 by Piecewise",
        "b piece 8 by Piecewise",
    ]


def test_damaged_state_is_refused(parts):
    side = make_transform(THREE).fit(parts[0])
    state = side.state()
    with pytest.raises(DataError, match="expected the arrays of 2 transforms"):
        SideBySide([Log1p(), Log1p()]).load_state(state, 7)
    with pytest.raises(DataError, match="center: expected float64 of shape"):
        make_transform(THREE).load_state(state | {"2.center": np.zeros(3)}, 7)


# The encoding


def slow_pieces(train, test):
    """The encoding in plain loops, feature by feature."""
    z = [Log1p().fit(train).transform(data).clip(-5, 5).astype(float) for data in (train, test)]
    n = train.features.shape[1]
    out = np.zeros((len(z[1]), 8 * n))
    raw = [data.restore(data.features) for data in (train, test)]
    for j in range(n):
        known = sorted(value for value, x in zip(z[0][:, j], raw[0][:, j], strict=True) if not math.isnan(x))
        edges = []
        for k in range(9):
            if known:
                edge = known[round(k / 8 * (len(known) - 1))]  # as rint: halves go to even numbers
                if not edges or edge - edges[-1] > 1e-3:
                    edges.append(edge)
        for t in range(1, len(edges)):
            for i, value in enumerate(z[1][:, j]):
                share = (value - edges[t - 1]) / (edges[t] - edges[t - 1])
                out[i, (t - 1) * n + j] = 0 if math.isnan(raw[1][i, j]) else min(1, max(0, share))
    return out


def test_pieces_beside_plain_loops(parts):
    train, _, test = parts
    fast = Piecewise().fit(train).transform(test)
    np.testing.assert_allclose(fast, slow_pieces(train, test), atol=1e-5)
    assert (fast.reshape(len(fast), 8, 7)[:, :, 5:] == 0).all()  # nothing to tell: one value, no value


@examples(60)
@given(
    st.lists(st.one_of(st.floats(width=32, allow_infinity=False), st.just(0.0), st.just(-0.0)), min_size=1, max_size=30)
)
def test_pieces_follow_the_order_of_values(values):
    """From 0 to 1, never falling, an edge after the other; the same whatever the order of the rows."""
    column = np.array(values, np.float32)[:, None]
    fitted = Piecewise().fit(column)
    encoded = fitted.transform(column)
    assert ((encoded >= 0) & (encoded <= 1)).all()
    known = ~np.isnan(column[:, 0])
    order = np.argsort(column[known, 0], kind="stable")
    assert (np.diff(encoded[known][order], axis=0) >= 0).all()
    live = fitted.slope_[0] > 0
    for row in encoded[known][:, live]:
        started = row > 0
        assert (row[:-1][started[1:]] >= 1 - 1e-5).all()  # a piece begins where the one before is full
    assert (encoded[~known] == 0).all()
    shuffled = Piecewise().fit(column[::-1].copy())
    np.testing.assert_array_equal(shuffled.low_, fitted.low_)
    np.testing.assert_array_equal(shuffled.slope_, fitted.slope_)


def test_sum_of_pieces_is_the_number_of_edges_passed():
    """At the edges themselves all that was passed is 1, and the sum counts it."""
    column = np.expm1(np.linspace(0, 4, 9, dtype=np.float32))[:, None]
    np.testing.assert_allclose(Piecewise().fit(column).transform(column).sum(axis=1), np.arange(9), atol=1e-5)


# Networks


def test_network_sees_all_columns(parts):
    """The score by hand: transforms, then layers in numpy."""
    train, valid, test = parts
    ranker = URank(**RICH).fit(train, valid=valid)
    assert [type(part).__name__ for part in ranker.transform_.parts_] == [
        "QueryMinMax",
        "QueryLog1p",
        "Log1p",
        "Piecewise",
    ]
    x = np.hstack([TRANSFORMS[name]().fit(train).transform(test) for name in THREE])
    x = np.hstack([x.clip(-5, 5), Piecewise().fit(train).transform(test)]).astype(float)
    weights = {name: tensor.double().numpy() for name, tensor in ranker.members_[0].items()}
    w1, b1, w2, b2 = (
        weights[f"{layer}.{kind}"] for layer in ("body.layers.0", "output") for kind in ("weight", "bias")
    )
    assert w1.shape == (6, 7 * 11)
    scores = np.maximum(x @ w1.T + b1, 0) @ w2.ravel() + b2.ravel()
    np.testing.assert_allclose(ranker.predict(test), scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changed", [{"feature_transform": ("log1p",)}, {"encoding": "piecewise"}, {"feature_transform": "log1p"}]
)
def test_which_lists_are_needed(parts, changed):
    ranker = URank(hidden=(3,), max_epochs=1, n_jobs=1, **changed).fit(parts[0])
    assert ranker.needs_list() == (changed == {"encoding": "piecewise"})  # beside query_minmax


@pytest.mark.parametrize("name", NEURAL)
def test_every_neural_ranker_has_the_preset(parts, name, tmp_path):
    """It fits, saves, loads and copies to the same bits, and explains by feature."""
    train, valid, test = parts
    ranker = RANKERS[name].from_preset("rich-inputs", max_epochs=1, hidden=(4,), n_jobs=1).fit(train, valid=valid)
    scores = ranker.predict(test)
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model").set_params(n_jobs=1)
    np.testing.assert_array_equal(loaded.predict(test), scores)
    assert loaded.get_params()["feature_transform"] == THREE
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ranker)).predict(test), scores)
    np.testing.assert_array_equal(clone(ranker).fit(train, valid=valid).predict(test), scores)


def test_preset_of_own_loss(parts):
    ranker = NetworkRanker.from_preset("rich-inputs", loss="softmax", hidden=(4,), max_epochs=1, n_jobs=1)
    assert ranker.fit(parts[0]).transform_.n_columns(7) == 77


def test_explanations_are_by_feature(parts):
    train, valid, test = parts
    ranker = URank(**RICH).fit(train, valid=valid)
    longest = test.query_ids[np.argmax(test.lengths)]
    for one in tierank.explain_query(ranker, test, longest):
        assert len(one.contributions) == 7
        assert one.contributions[5:].tolist() == [0, 0]
        assert one.contributions.sum() + one.rest == pytest.approx(one.difference, abs=1e-6)
        assert abs(one.rest) <= 2e-3 * abs(one.difference) + 1e-5


def test_rows_in_any_order_give_the_same_bits(parts):
    train, valid, test = parts
    rng = np.random.default_rng(1)
    rows = rng.permutation(train.n_documents)
    qid = np.repeat(train.query_ids, train.lengths)
    shuffled = RankingDataset(train.features[rows], train.ratings[rows], qid=qid[rows])
    one, other = (URank(**RICH, schedule="cosine", dropout=0.2).fit(data, valid=valid) for data in (train, shuffled))
    np.testing.assert_array_equal(one.predict(test), other.predict(test))


def test_start_needs_the_same_inputs(parts):
    train, valid, _ = parts
    ranker = URank(**RICH).fit(train, valid=valid)
    with pytest.raises(ParameterError, match=r"start: expected a model with encoding='none'"):
        URank(**RICH | {"encoding": "none"}).fit(train, valid=valid, start=ranker)
    again = URank(**RICH, schedule="cosine").fit(train, valid=valid, start=ranker)
    assert again.transform_ is ranker.transform_


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"feature_transform": ()}, r"feature_transform: expected a key of TRANSFORMS, a Transform, or a list"),
        ({"feature_transform": ("log1p", "log1p")}, r"feature_transform: expected each transform once"),
        ({"feature_transform": ("log1p", "logp")}, r"unknown feature_transform 'logp'.*log1p"),
        ({"feature_transform": (("log1p",),)}, r"unknown feature_transform"),
        ({"encoding": "linear"}, r"unknown encoding 'linear'.*none.*piecewise"),
        ({"schedule": "cosin"}, r"unknown schedule 'cosin'.*cosine"),
        ({"step_budget": 0}, r"step_budget: expected an integer >= 1, or None \(no budget\), got 0"),
    ],
)
def test_settings_that_cannot_be_used(given, message):
    with pytest.raises(ParameterError, match=message):
        URank(**given).checked_settings()


@pytest.mark.parametrize("wide", [Piecewise(), SideBySide([Log1p(), Log1p()])])
def test_linear_ranker_has_one_weight_for_a_feature(wide):
    with pytest.raises(ParameterError, match="expected transforms that return one column per feature"):
        LinearRanker(feature_transform=wide).checked_settings()


# The schedule


def rates(monkeypatch, train, **given):
    """The learning rate of every step."""
    seen = []
    step = Adam.step

    def watch(self, rate):
        seen.append(rate)
        step(self, rate)

    monkeypatch.setattr(Adam, "step", watch)
    URank(hidden=(3,), n_jobs=1, queries_per_step=4, weight_decay=0.0, **given).fit(train)
    return seen


def test_rates_of_a_cosine(parts, monkeypatch):
    """Every step of every epoch has the rate of the formula."""
    seen = rates(monkeypatch, parts[0], schedule="cosine", max_epochs=8, learning_rate=0.01)
    n = len(seen)
    assert n % 8 == 0
    warm_up = max(1, round(0.05 * n))
    for s, rate in enumerate(seen):
        share = (s + 1) / warm_up if s < warm_up else 0.5 + 0.5 * math.cos(math.pi * (s - warm_up) / (n - warm_up))
        assert rate == pytest.approx(0.01 * share)
    assert max(seen) == 0.01
    assert 0 < seen[-1] < 0.001


def test_rates_that_stay(parts, monkeypatch):
    assert set(rates(monkeypatch, parts[0], schedule="constant", max_epochs=2, learning_rate=0.01)) == {0.01}


@given(st.integers(1, 500), st.integers(0, 499))
def test_shares_of_a_cosine(n_steps, step):
    share = cosine_share(min(step, n_steps - 1), n_steps)
    assert 0 < share <= 1


@given(st.integers(1, 60), st.integers(1, 5000), st.integers(1, 5000))
def test_epochs_of_a_budget(max_epochs, budget, steps):
    found = count_epochs({"max_epochs": max_epochs, "step_budget": budget}, steps)
    assert 1 <= found <= max_epochs
    assert found == max_epochs or found * steps >= budget
    assert found <= 8 or (found - 1) * steps < budget


def test_budget_ends_training(parts):
    train = parts[0]
    ranker = URank(hidden=(3,), n_jobs=1, queries_per_step=2, step_budget=90, max_epochs=50).fit(train)
    steps = -(-sum(len(np.unique(r)) > 1 for r in np.split(train.ratings, train.offsets[1:-1])) // 2)
    assert ranker.n_epochs_ == [max(8, -(-90 // steps))]
    assert URank(hidden=(3,), n_jobs=1, step_budget=1, max_epochs=3).fit(train).n_epochs_ == [3]


class _Killed(Exception):
    """What ends a training in the middle."""


def kill_after_two(step):
    """A callback that ends training in its third epoch, before that is written down."""
    if step.number == 3:
        raise _Killed("third epoch")


@pytest.mark.parametrize("kind", [URank, UBoost, UrBoost])
def test_a_stopped_cosine_goes_on_to_the_same_bits(parts, kind, tmp_path, monkeypatch):
    monkeypatch.setattr("tierank.rankers.network_training._EVERY", -1.0)  # a checkpoint after every epoch
    train, valid, test = parts
    given = RICH | {"max_epochs": 4, "schedule": "cosine", "dropout": 0.3, "weight_decay": 0.01}
    given |= {} if kind is URank else {"n_learners": 2}
    whole = kind(**given).fit(train, valid=valid)
    with pytest.raises(_Killed, match="third epoch"):
        kind(**given).fit(train, valid=valid, checkpoint=tmp_path / "kept", callbacks=[kill_after_two])
    resumed = kind(**given).fit(train, valid=valid, checkpoint=tmp_path / "kept")
    np.testing.assert_array_equal(resumed.predict(test), whole.predict(test))
    assert resumed.history_ == whole.history_


# Export


@pytest.mark.parametrize(
    "ranker",
    [
        URank(**RICH),
        URank(**RICH | {"feature_transform": ("quantile", "none", "standard"), "encoding": "none"}),
        URank(**RICH | {"feature_transform": "log1p"}, n_seeds=2),
        UBoost(**RICH, n_learners=2),
        UrBoost(**RICH | {"feature_transform": ("query_rank", "query_minmax")}, n_learners=2),
    ],
    ids=["rich", "fixed", "seeds", "uboost", "urboost"],
)
@pytest.mark.parametrize("target", ["onnx", "c"])
def test_exports_score_as_the_model(parts, ranker, target, tmp_path):
    if target == "onnx":
        pytest.importorskip("onnxruntime")
    train, valid, test = parts
    fitted = clone(ranker).fit(train, valid=valid)
    fitted.export(tmp_path / "model", target)
    proof = tierank.verify(fitted, tmp_path / "model", target, test)
    assert proof.holds, str(proof)


@pytest.mark.parametrize("given", [{"feature_transform": ("standard", "none")}, {"encoding": "piecewise"}])
def test_solr_has_no_such_inputs(parts, given, tmp_path):
    ranker = URank(hidden=(3,), max_epochs=1, n_jobs=1, **{"feature_transform": "standard", **given}).fit(parts[0])
    with pytest.raises(ParameterError, match=r"solr: it scales a feature in one way.*encoding='none'"):
        ranker.export(tmp_path / "model", "solr")


class Halved(Transform):
    """A transform that no target knows."""

    def apply(self, features, offsets):
        """Half of each value."""
        return np.where(np.isnan(features), np.float32(0), features / 2)

    def learn(self, features):
        """Nothing."""


@pytest.mark.parametrize("target", ["onnx", "c", "vespa"])
def test_own_transforms_are_not_exported(parts, target, tmp_path):
    settings = {"hidden": (3,), "max_epochs": 1, "n_jobs": 1, "encoding": "none"}
    ranker = URank(**settings, feature_transform=[Halved(), "log1p"]).fit(parts[0])
    assert ranker.transform_.n_columns(7) == 14
    with pytest.raises(ParameterError, match=r"it supports the transforms of TRANSFORMS.*Halved"):
        ranker.export(tmp_path / "model", target)
