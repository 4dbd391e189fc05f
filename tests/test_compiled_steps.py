"""Steps of Adam in compiled code: the same as those of torch, for the networks and losses that they know."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from running import examples

import tierank
from tierank import NetworkRanker, ParameterError, UBoost, URank, UrBoost
from tierank.kernels.mlp_training import SQUARES, TIERS, URANK
from tierank.losses import Batch, stepwise_urank, urank
from tierank.networks import MLP, TierRNN
from tierank.rankers import compiled_steps
from tierank.rankers.compiled_steps import CompiledSteps
from tierank.rankers.network_training import Adam, Training

PLAIN = {**URank.PRESETS["plain-inputs"], "dropout": 0.0, "queries_per_step": 1, "hidden": (7, 5), "n_jobs": 1}
QUICK = {**PLAIN, "max_epochs": 3, "learning_rate": 1e-4}


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(30, n_features=6, mean_length=10, max_length=20)


@pytest.fixture
def compiled(monkeypatch):
    """For each network that is trained, whether compiled code takes its steps."""
    seen = []
    make = Training._compile

    def watched(self):
        steps = make(self)
        seen.append(steps is not None)
        return steps

    monkeypatch.setattr(Training, "_compile", watched)
    return seen


def by_torch(monkeypatch):
    monkeypatch.setattr(compiled_steps, "_MOST_PRODUCTS", -1)


@pytest.mark.parametrize("activation", ["relu", "elu"])
@pytest.mark.parametrize(
    ("ranker", "more"),
    [
        (URank, {}),
        (URank, {"queries_per_step": 4, "clip_norm": None}),
        (URank, {"weight_decay": 0.1, "clip_norm": 0.01, "schedule": "cosine"}),
        (URank, {"hidden": (), "query_order": "given", "initial_weights": "glorot"}),
        (URank, {"gain": "linear", "n_seeds": 2}),
        (UBoost, {"n_learners": 2}),
        (UBoost, {"n_learners": 2, "queries_per_step": 3}),
        (UrBoost, {"n_learners": 2}),
        (UrBoost, {"n_learners": 1, "score_from": "state", "queries_per_step": 3, "weight_decay": 0.1}),
        (UrBoost, {"n_learners": 1, "hidden": ()}),
    ],
)
def test_models_are_those_of_torch(data, compiled, monkeypatch, ranker, activation, more):
    data = data.replace(query_weight=np.linspace(0, 2, data.n_queries))
    model = ranker(**{**QUICK, "activation": activation, **more})
    ours = model.fit(data)
    assert set(compiled) == {True}
    scores, losses = ours.predict(data), [row["loss"] for row in ours.history_]
    compiled.clear()
    by_torch(monkeypatch)
    theirs = model.fit(data)
    assert set(compiled) == {False}
    np.testing.assert_allclose(losses, [row["loss"] for row in theirs.history_], rtol=1e-5)
    # Some derivatives are 0, such as that of the last bias, and Adam makes steps of their rounding errors.
    expected = theirs.predict(data)
    np.testing.assert_allclose(scores - scores.mean(), expected - expected.mean(), atol=1e-3 * expected.std())


@pytest.mark.parametrize(
    ("ranker", "more"),
    [
        (URank, {"dropout": 0.1}),
        (URank, {"activation": "tanh"}),
        (URank, {"output_activation": "elu"}),
        (URank, {"window": 3}),
        (URank, {"network": "groupwise"}),
        (UrBoost, {"n_learners": 1, "cell": "gru"}),
        (UrBoost, {"n_learners": 1, "pooling": "mean"}),
        (UrBoost, {"n_learners": 1, "window": 2}),
        (tierank.ListNet, {}),
        (URank, {"hidden": (3000, 3000)}),
    ],
)
def test_torch_takes_the_other_steps(data, compiled, ranker, more):
    ranker(**{**QUICK, "max_epochs": 1, **more}).fit(data.select(np.arange(4)))
    assert set(compiled) == {False}


def test_torch_takes_the_steps_with_row_weights(data, compiled):
    data = data.replace(row_weight=np.arange(data.n_documents) % 3)
    for ranker in (URank(**QUICK), UrBoost(**QUICK, n_learners=2)):
        ranker.fit(data)
    assert set(compiled) == {False}


def test_a_network_of_the_caller_is_left_to_torch(data, compiled):
    class Own(MLP):
        def forward(self, features, batch=None):
            return 2 * super().forward(features, batch)

    NetworkRanker("urank", network=Own, **{**QUICK, "activation": "relu"}).fit(data)
    assert compiled == [False]


def test_a_loss_by_name_is_the_ranker_of_that_name(data, compiled):
    one, two = (ranker.fit(data).predict(data) for ranker in (URank(**QUICK), NetworkRanker("urank", **QUICK)))
    np.testing.assert_array_equal(one, two)
    assert compiled == [True] * 2


# The derivatives, from single and extreme scores

SCORES = st.one_of(
    st.floats(-30, 30, width=32), st.sampled_from([0.0, -0.0, 1e4, -1e4, 80.0, -80.0, 1e-30]), st.integers(-2, 2)
)
LISTS = st.lists(st.tuples(SCORES, st.sampled_from([0, 0, 1, 2, 2.5, 7])), min_size=2, max_size=12)


def derivatives(network, kind, targets, batch, features):
    """The loss of all queries, and the gradient as Adam gets it."""
    lists = SimpleNamespace(whole=batch, weights=None, query_ids=np.arange(batch.n_queries), kept_inputs=features)
    settings = {"weight_decay": 0.0, "queries_per_step": batch.n_queries, "clip_norm": None}
    steps = CompiledSteps(network, kind, targets, lists, Adam(network.parameters()), settings)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    loss, wrong = steps.epoch(torch.arange(batch.n_queries), [0.0])
    assert wrong is None
    assert all(torch.equal(*pair) for pair in zip(before, network.parameters(), strict=True))  # the rate is 0
    return loss / batch.n_queries, steps.room.gradient


def drawn(lists):
    """Queries of documents whose features depend on their score."""
    scores = torch.tensor([float(np.clip(score, -9, 9)) for documents in lists for score, _ in documents])
    batch = Batch(np.cumsum([0, *map(len, lists)]), [rating for documents in lists for _, rating in documents])
    return batch, torch.stack([scores, scores.round(), scores > 0]).T.float().contiguous()


def flat(gradients):
    # torch 2.4 makes zeros that require gradients for parameters without any.
    return np.concatenate([gradient.detach().numpy().T.ravel() for gradient in gradients])


@given(st.lists(LISTS, min_size=1, max_size=3), st.sampled_from(["relu", "elu"]), st.integers(0, 99))
@examples(100)
def test_derivatives_of_a_multilayer_perceptron(lists, activation, seed):
    batch, features = drawn(lists)
    scores = features[:, 0]
    network = MLP(3, hidden=(5, 4), activation=activation, seed=seed)
    for kind, targets in ((URANK, batch.urank_weights), (SQUARES, scores)):
        found = urank(network(features), batch)
        if kind == SQUARES:
            squares = (network(features) - scores) ** 2
            found = torch.zeros(batch.n_queries).index_add(0, batch.query, squares) / batch.lengths
        expected = torch.autograd.grad(found.mean(), list(network.parameters()))
        loss, gradient = derivatives(network, kind, targets, batch, features)
        np.testing.assert_allclose(loss, float(found.detach().mean()), rtol=1e-5, atol=1e-7)
        scale = float(batch.urank_weights.sum()) + float(scores.abs().max())
        np.testing.assert_allclose(gradient, flat(expected), rtol=1e-3, atol=1e-6 * scale)


@given(st.lists(LISTS, min_size=1, max_size=3), st.sampled_from(["both", "state"]), st.integers(0, 99))
@examples(100)
def test_derivatives_of_a_recurrent_network(lists, score_from, seed):
    """Features in common, so that documents share the maxima of a state."""
    batch, features = drawn(lists)
    network = TierRNN(3, hidden=(4,), activation="elu", score_from=score_from, seed=seed)
    if not batch.steps:
        return  # training leaves out queries of one rating
    found = stepwise_urank(network.step_scores(features, batch), batch).mean()
    expected = torch.autograd.grad(found, list(network.parameters()), allow_unused=True, materialize_grads=True)
    loss, gradient = derivatives(network, TIERS, batch.urank_weights, batch, features)
    np.testing.assert_allclose(loss, float(found.detach()), rtol=1e-5)
    # Derivatives that cancel are as large as the rounding of the weights.
    np.testing.assert_allclose(gradient, flat(expected), rtol=1e-3, atol=1e-6 * float(batch.urank_weights.sum()))


# What all training promises


@pytest.mark.parametrize("ranker", [URank(**QUICK), UrBoost(**QUICK, n_learners=2)])
def test_scattered_rows_change_no_bit(data, compiled, ranker):
    order = np.random.default_rng(0).permutation(data.n_documents)
    features, ratings, queries = data.features, data.ratings, np.repeat(data.query_ids, data.lengths)
    one = ranker.fit(features, ratings, qid=queries).predict(features, qid=queries)
    two = ranker.fit(features[order], ratings[order], qid=queries[order]).predict(features, qid=queries)
    np.testing.assert_array_equal(one, two)
    assert set(compiled) == {True}


@pytest.mark.parametrize("ranker", [URank(**{**QUICK, "schedule": "cosine"}), UrBoost(**QUICK, n_learners=2)])
def test_a_run_goes_on_to_the_same_bits(data, tmp_path, monkeypatch, ranker):
    monkeypatch.setattr("tierank.rankers.network_training._EVERY", 0.0)  # a checkpoint after each epoch
    whole = ranker.fit(data).predict(data)
    calls = []

    def interrupt(event):
        calls.append(event)
        if len(calls) == 3:
            raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        ranker.fit(data, checkpoint=tmp_path / "part", callbacks=[interrupt])
    epoch, n_steps = CompiledSteps.epoch, []
    monkeypatch.setattr(
        CompiledSteps, "epoch", lambda self, order, rates: n_steps.append(len(rates)) or epoch(self, order, rates)
    )
    again = ranker.fit(data, checkpoint=tmp_path / "part").predict(data)
    np.testing.assert_array_equal(again, whole)
    assert len(n_steps) < ranker.max_epochs * getattr(ranker, "n_learners", 1)


def test_a_loss_that_is_not_finite_names_the_query(data, monkeypatch):
    features, queries = np.array(data.features), np.repeat(data.query_ids, data.lengths)
    features[queries == data.query_ids[3]] = 3e38
    settings = {**QUICK, "feature_transform": "none", "query_order": "given"}
    messages = []
    for _ in range(2):
        with pytest.raises(ParameterError, match=r"the loss of query .* is not finite in epoch 1") as raised:
            URank(**settings).fit(features, data.ratings, qid=queries)
        messages.append(str(raised.value))
        by_torch(monkeypatch)
    assert messages[0] == messages[1]


def test_many_steps_are_taken_in_parts(data, monkeypatch):
    ranker = URank(**{**QUICK, "queries_per_step": 2})
    whole = ranker.fit(data).predict(data)
    monkeypatch.setattr(compiled_steps, "_AT_ONCE", 4)
    np.testing.assert_array_equal(ranker.fit(data).predict(data), whole)
