"""What the paper mentions and its authors' program does: settings, each against a slow twin or worked by hand."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import tierank
from benchmarks import similar_queries
from benchmarks.claims import Query, Shape, loop_plistmle
from tierank import LambdaMART, NetworkRanker, ParameterError, UBoost, UMart, URank, UrBoost, paper
from tierank.losses import LOSSES, Batch, LambdaRankObjective, UMartObjective, stepwise_urank, urank, windowed_urank
from tierank.networks import CELLS, MLP, TierRNN, draw_glorot
from tierank.rankers.model import Resources

QUICK = {**URank.PRESETS["plain-inputs"], "max_epochs": 3, "learning_rate": 0.01, "hidden": (8,), "n_jobs": 1}
OHSUMED = Path(__file__).parents[2] / "shared/data/OHSUMED"
cells = pytest.mark.parametrize("cell", sorted(CELLS))
RATINGS = [[0, 2, 0, 2, 1], [4, 0, 3, 1, 2, 4, 4, 0], [1, 1], [1, 0], [3]]


@pytest.fixture(scope="module")
def halves():
    return tierank.make_ranking(40, n_features=6, mean_length=12, max_length=25, seed=1).split(0.5, 0.5)


def queries(seed=0):
    """A batch of small queries, features and a network's scores for it."""
    offsets = np.concatenate([[0], np.cumsum([len(r) for r in RATINGS])])
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(int(offsets[-1]), 5, generator=generator, dtype=torch.float64)
    return Batch(offsets, np.concatenate(RATINGS), dtype=torch.float64), features


# Recurrent cells


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


def advance(network, x, h, c):
    """One step of a cell for one document, from its formulas."""
    W, U, b = (
        parameter.detach().numpy()
        for parameter in (network.from_state.weight, network.from_document.weight, network.from_document.bias)
    )
    if network.cell == "rnn":
        return np.tanh(W @ h + U @ x + b), c
    of_state, of_document = np.split(W @ h, CELLS[network.cell][0]), np.split(U @ x + b, CELLS[network.cell][0])
    if network.cell == "gru":
        z, r = (sigmoid(of_state[k] + of_document[k]) for k in (0, 1))
        n = np.tanh(of_document[2] + r * of_state[2])
        return (1 - z) * n + z * h, c
    i, f, o = (sigmoid(of_state[k] + of_document[k]) for k in (0, 1, 3))
    c = f * c + i * np.tanh(of_state[2] + of_document[2])
    return o * np.tanh(c), c


def score_of(network, h, x):
    own = network.document_weights
    value = h @ network.state_weights.detach().numpy()
    return value if own is None else value + x @ own.detach().numpy()


@cells
@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_cells_equal_a_loop_over_documents(cell, pooling):
    batch, features = queries()
    network = TierRNN(5, (6, 4), cell=cell, pooling=pooling, seed=3).double().eval()
    step_scores = network.step_scores(features, batch)
    xs = network.body(features).detach().numpy()
    for start, end in pairwise(batch.offsets.tolist()):
        ratings, h, c = batch.ratings[start:end].tolist(), np.zeros(4), np.zeros(4)
        for t, level in enumerate(sorted(set(ratings), reverse=True)[:-1]):
            step, found = batch.steps[t], []
            rows = {int(row): k for k, row in enumerate(step.rows)}
            for d, rating in enumerate(ratings):
                if rating <= level:
                    h_d, c_d = advance(network, xs[start + d], h, c)
                    assert step_scores[t][rows[start + d]].item() == pytest.approx(
                        score_of(network, h_d, xs[start + d])
                    )
                    found += [(h_d, c_d)] if rating == level else []
            pool = np.max if pooling == "max" else np.mean
            h, c = (pool([pair[k] for pair in found], axis=0) for k in (0, 1))


@cells
def test_gradient_through_all_steps_of_a_cell(cell):
    batch, features = queries(1)
    network = TierRNN(5, (4,), cell=cell, activation="tanh", score_from="state", pooling="mean", seed=1).double()
    names = [name for name, _ in network.named_parameters()]

    def loss(*parameters):
        scores = torch.func.functional_call(
            _Steps(network), dict(zip((f"network.{n}" for n in names), parameters, strict=True)), (features, batch)
        )
        return stepwise_urank(scores, batch).sum()

    assert torch.autograd.gradcheck(loss, [p.detach().requires_grad_() for p in network.parameters()])


class _Steps(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, features, batch):
        return self.network.step_scores(features, batch)


@cells
@pytest.mark.parametrize("score_from", ["both", "state"])
def test_documents_are_chosen_one_by_one(cell, score_from):
    batch, features = queries(2)
    network = TierRNN(5, (6, 4), cell=cell, score_from=score_from, inference="documents", seed=4).double().eval()
    got = network(features, batch).tolist()
    xs = network.body(features).detach().numpy()
    for start, end in pairwise(batch.offsets.tolist()):
        left, h, c = list(range(start, end)), np.zeros(4), np.zeros(4)
        while left:
            found = {d: advance(network, xs[d], h, c) for d in left}
            best = max(left, key=lambda d: score_of(network, found[d][0], xs[d]))
            left.remove(best)
            h, c = found[best]
            assert got[best] == len(left)


def test_one_by_one_needs_to_know_the_queries():
    network = TierRNN(5, (4,), inference="documents")
    with pytest.raises(ParameterError, match="expected a batch, which says where queries begin"):
        network(torch.zeros(3, 5))


@pytest.mark.parametrize(
    "settings",
    [{"cell": "gru"}, {"cell": "lstm", "pooling": "mean"}, {"inference": "documents", "n_learners": 1}, {"window": 3}],
)
def test_variants_are_fitted_saved_and_loaded(halves, settings, tmp_path):
    train, valid = halves
    ranker = UrBoost(**{"n_learners": 2} | QUICK | settings).fit(train, valid=valid)
    scores = ranker.predict(valid)
    ranker.save(tmp_path / "model")
    np.testing.assert_array_equal(tierank.load(tmp_path / "model").predict(valid), scores)
    if settings.get("inference") == "documents":
        for start, end in pairwise(valid.offsets.tolist()):
            assert sorted(scores[start:end]) == list(range(end - start))


def test_what_cannot_be_exported_or_explained_says_so(halves, tmp_path):
    train, _ = halves
    with pytest.raises(ParameterError, match="cell: expected 'rnn', to export, got 'gru'"):
        UrBoost(cell="gru", for_target="onnx", **QUICK).fit(train)
    ranker = UrBoost(inference="documents", n_learners=1, **QUICK).fit(train)
    with pytest.raises(ParameterError, match="inference: expected 'first', to export, got 'documents'"):
        ranker.model_.to_neutral()
    with pytest.raises(ParameterError, match="inference: expected 'first', to explain scores"):
        ranker.model_.member_contributions(train, np.array([0]), np.array([1]), Resources(1))
    with pytest.raises(ParameterError, match="inference: expected 'first' with several learners"):
        UrBoost(inference="documents").checked_settings()


# Windows


@pytest.mark.parametrize("window", [1, 2, 3, 100])
def test_windows_of_steps_equal_a_loop(window):
    batch, _ = queries()
    table = torch.tensor(np.random.default_rng(3).normal(size=(5, batch.n_documents)))
    scores = [table[t][step.rows].requires_grad_() for t, step in enumerate(batch.steps)]
    values = stepwise_urank(scores, batch, window=window)
    expected = [
        paper.urank_loss(torch.tensor(ratings), table[: len(set(ratings)), start:end], window).item()
        for ratings, (start, end) in zip(RATINGS, pairwise(batch.offsets.tolist()), strict=True)
    ]
    np.testing.assert_allclose(values.detach(), expected, rtol=1e-12)
    assert torch.autograd.gradcheck(lambda *given: stepwise_urank(given, batch, window=window), scores)
    if window == 100:
        np.testing.assert_allclose(values.detach(), stepwise_urank(scores, batch).detach(), rtol=1e-12)


def test_a_window_changes_what_is_learned_and_a_wide_one_does_not(halves):
    train, valid = halves
    for kind in (URank, UBoost):
        plain, narrow, wide = (kind(window=w, **QUICK).fit(train).predict(valid) for w in (None, 2, 10**6))
        # Losses do not see a shift of all scores: the last bias follows rounding errors.
        plain, narrow, wide = (scores - scores.mean() for scores in (plain, narrow, wide))
        assert np.abs(narrow - plain).max() > 1e-4
        np.testing.assert_allclose(wide, plain, atol=1e-4)
    with pytest.raises(ParameterError, match="window: expected an integer >= 1"):
        URank(window=0).checked_settings()


# Precision


@pytest.mark.parametrize("window", [None, 2])
def test_gradients_in_single_precision_at_scores_of_1e4(window):
    generator = torch.Generator().manual_seed(0)
    ratings = torch.randint(0, 5, (300,), generator=generator).numpy()
    offsets = [0, 100, 200, 300]
    near = 1e4 + torch.randn(300, generator=generator)
    far = 1e4 * torch.randn(300, generator=generator)
    apart = torch.where(torch.rand(300, generator=generator) < 0.3, 1e4, 0.0) + torch.randn(300, generator=generator)
    for scores in (near, far, apart, -near):
        gradients = []
        for dtype in (torch.float32, torch.float64):
            given = scores.to(dtype).requires_grad_()
            values = windowed_urank(given, Batch(offsets, ratings, dtype=dtype), window=window)
            gradients.append(torch.autograd.grad(values.sum(), given)[0].double())
        scale = gradients[1].abs().max()
        assert (gradients[0] - gradients[1]).abs().max() < 1e-6 * scale
        assert gradients[0].view(3, 100).sum(1).abs().max() < 1e-5 * scale


# The authors' program


def test_glorot_bounds_and_zero_biases():
    network = MLP(30, (40, 20), seed=0)
    draw_glorot(network, 0)
    for layer in (*network.body.layers, network.output):
        bound = math.sqrt(6 / (layer.in_features + layer.out_features))
        assert 0.8 * bound < layer.weight.abs().max() <= bound
        assert not layer.bias.any()
    for cell, score_from in (("rnn", "both"), ("lstm", "state")):
        network = TierRNN(30, (40, 20), cell=cell, score_from=score_from, seed=0)
        draw_glorot(network, 1)
        assert 0.8 * math.sqrt(6 / 40) < network.from_state.weight.abs().max() <= math.sqrt(6 / 40)  # gate by gate
        bound = math.sqrt(6 / (41 if score_from == "both" else 21))
        assert 0.8 * bound < network.state_weights.abs().max() <= bound


def test_initial_weights_are_a_setting(halves):
    train, valid = halves
    scores = {w: URank(initial_weights=w, **QUICK).fit(train).predict(valid) for w in ("uniform", "glorot")}
    assert np.abs(scores["uniform"] - scores["glorot"]).max() > 1e-3
    again = UrBoost(initial_weights="glorot", n_learners=1, **QUICK)
    np.testing.assert_array_equal(again.fit(train).predict(valid), again.fit(train).predict(valid))


def test_queries_in_the_given_order(halves):
    train, _ = halves
    seen = []

    def watched(scores, batch):
        seen.append(sorted(batch.ratings.tolist()))
        return urank(scores, batch)

    def ratings_of(data):
        each = [sorted(data.ratings[start:end].tolist()) for start, end in pairwise(data.offsets.tolist())]
        return [ratings for ratings in each if len(set(ratings)) > 1]

    settings = QUICK | {"queries_per_step": 1, "max_epochs": 2}
    for data in (train, train.select(np.arange(train.n_queries)[::-1])):
        seen.clear()
        NetworkRanker(watched, query_order="given", **settings).fit(data)
        assert seen == ratings_of(data) * 2
    seen.clear()
    NetworkRanker(watched, **settings).fit(train)
    assert seen != ratings_of(train) * 2


def test_a_checkpoint_of_another_order_is_refused(halves, tmp_path):
    train, _ = halves
    ranker = URank(query_order="given", **QUICK)
    ranker.fit(train, checkpoint=tmp_path / "checkpoint", callbacks=[lambda _: True])
    turned = train.select(np.arange(train.n_queries)[::-1])
    with pytest.raises(tierank.TierankError, match="checkpoint"):
        ranker.fit(turned, checkpoint=tmp_path / "checkpoint")


def test_all_trees_can_be_kept(halves):
    train, valid = halves
    best, kept = (UMart(n_trees=30, keep=keep, learning_rate=0.5).fit(train, valid=valid) for keep in ("best", "all"))
    assert best.n_rounds_ < kept.n_rounds_ == 30
    without = UMart(n_trees=30, learning_rate=0.5).fit(train)
    np.testing.assert_array_equal(kept.predict(valid), without.predict(valid))
    with pytest.raises(ParameterError, match="patience: has no effect with keep='all'"):
        UMart(keep="all", patience=3).checked_settings()


def test_lambdarank_of_lightgbm_2_is_umart_with_a_window_of_one():
    generator = np.random.default_rng(0)
    ratings, scores, offsets = generator.integers(0, 5, 60), generator.normal(size=60), [0, 25, 60]
    old = LambdaRankObjective(version="lightgbm-2").prepare(ratings, offsets)
    same = UMartObjective(window=1, idcg_at=20).prepare(ratings, offsets)
    for got, expected in zip(old.gradients(scores), same.gradients(scores), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert repr(LambdaRankObjective(version="lightgbm-2")) == (
        "LambdaRankObjective(sigma=1.0, gain='exp2', ties='mean', version='lightgbm-2')"
    )


def test_one_pair_of_lightgbm_2_by_hand():
    # 2 / (1 + e^(2 s)) of the difference s of scores; the hessian is that times (2 - that), twice.
    objective = LambdaRankObjective(version="lightgbm-2").prepare([1, 0], [0, 2])
    gradient, hessian = objective.gradients([0.0, 0.5])
    weight = (1 - 1 / math.log2(3)) / (0.01 + 0.5)
    pull = 2 / (1 + math.exp(2 * -0.5))
    np.testing.assert_allclose(gradient, [-weight * pull, weight * pull], rtol=1e-6)
    np.testing.assert_allclose(hessian, [2 * weight * pull * (2 - pull)] * 2, rtol=1e-6)


@pytest.mark.parametrize("settings", [{"truncation": 10}, {"norm": False}])
def test_lightgbm_2_has_neither_truncation_nor_norm(settings):
    with pytest.raises(ParameterError, match="has no effect with version='lightgbm-2', which does not read it"):
        LambdaMART(version="lightgbm-2", **settings).checked_settings()


@pytest.mark.skipif(not OHSUMED.exists(), reason="OHSUMED is not at hand")
def test_records_of_the_authors_have_our_folds():
    """Queries and documents of their records of fold 1: OHSUMED without its one query that has no relevant document."""
    for data, (n_queries, n_documents) in zip(
        tierank.read_fold(OHSUMED, 1), [(62, 9177), (21, 3538), (22, 3383)], strict=True
    ):
        usable = np.maximum.reduceat(data.ratings, data.offsets[:-1]) > 0
        assert (int(usable.sum()), int(data.lengths[usable].sum())) == (n_queries, n_documents)


def test_loops_of_the_benchmark_are_the_losses_they_stand_for():
    query = Query(Shape(12, 4, (5,), (0.5, 0.3, 0.2)))
    query.check()
    ratings = np.arange(8.0)[::-1]
    scores = torch.tensor(np.random.default_rng(0).normal(size=8))
    batch = Batch([0, 8], ratings, dtype=torch.float64, generator=torch.Generator())
    expected = LOSSES["plistmle"](scores, batch)[0]
    assert loop_plistmle(scores, torch.arange(8)).item() == pytest.approx(expected.item())


def test_the_regressions_of_similar_queries(halves):
    """Without weights they are one ridge regression; a training query is its own nearest neighbour."""
    train = similar_queries.Queries(halves[0])
    weights = similar_queries.weigh(train, train, 1, 3.0)
    np.testing.assert_array_equal(weights, 1 + 2 * np.eye(len(weights)))
    x = np.concatenate([one / np.sqrt(len(one)) for one in train.features])
    lengths = np.diff(halves[0].offsets)
    y = (2.0 ** halves[0].ratings - 1) / np.sqrt(np.repeat(lengths, lengths))
    expected = np.linalg.solve(x.T @ x + 5 * np.eye(x.shape[1]), x.T @ y)
    found = similar_queries.fit(train, similar_queries.weigh(train, train, 0, 3.0), 5.0)
    np.testing.assert_allclose(found, np.tile(expected, (len(lengths), 1)), rtol=1e-6)
