"""Every fast path of the paper's formulas compared with ``tierank.paper``, and that with what can be worked by hand."""

import inspect
import math
import pkgutil
import re
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from running import examples
from test_compiled_steps import derivatives, flat

import tierank
from tierank import NetworkRanker, URank, losses, paper
from tierank.kernels.mlp_training import SQUARES, TIERS, URANK
from tierank.losses import Batch, UMartObjective
from tierank.networks import MLP, TierRNN, draw_glorot
from tierank.rankers.boosted import find_residuals
from tierank.rankers.model import Resources
from tierank.rankers.network_scoring import QueryLists
from tierank.rankers.selection import Selection
from tierank.transforms import TRANSFORMS

WINDOWS = [1, 2, 10, None]
LEVELS = {
    "one rating": [3],
    "two": [0, 1],
    "three": [0, 1, 2],
    "fractional and high": [0, 0.5, 2.5, 30],
    "all different": None,
}
SCORES = {
    "zero": lambda rng, n: np.zeros(n),
    "tied": lambda rng, n: rng.integers(-1, 2, n),
    "normal": lambda rng, n: rng.normal(size=n),
    "two sides": lambda rng, n: rng.choice([-1e4, 1e4], n),
    "near 1e4": lambda rng, n: 1e4 + rng.normal(size=n),
    "far apart": lambda rng, n: rng.uniform(-1e4, 1e4, n),
}


def vectors(ratings, scores):
    """Ratings and scores in double precision; the scores are numbers that single precision has, too."""
    return torch.tensor(np.array(ratings, float)), torch.tensor(np.array(scores, np.float32).astype(float))


def make_space():
    """Lists of all lengths, with all kinds of ratings and scores."""
    rng, lists = np.random.default_rng(0), []
    for levels, scores, n in product(LEVELS, SCORES, (1, 2, 5, 30)):
        ratings = rng.permutation(n) if LEVELS[levels] is None else rng.choice(LEVELS[levels], n)
        lists.append(vectors(ratings, SCORES[scores](rng, n)))
    return lists + [vectors(rng.integers(0, 5, 2000), SCORES[scores](rng, 2000)) for scores in ("normal", "two sides")]


SPACE = make_space()
SHORT = [(ratings, scores) for ratings, scores in SPACE if len(ratings) <= 40]
DOCUMENTS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 2, 2.5, 7, 30]),
        st.one_of(st.floats(-30, 30, width=32), st.sampled_from([0.0, -0.0, 1e4, -1e4, 80.0, -80.0, 1e-30])),
    ),
    min_size=1,
    max_size=12,
).map(lambda documents: vectors(*zip(*documents, strict=True)))


def assert_close(got, expected, tolerance, scale=0.0):
    """No difference is above this share of the largest number expected, or of the scale."""
    got, expected = np.asarray(got, float), np.asarray(expected, float)
    largest = max(np.abs(expected).max(initial=0), float(scale))
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * largest + 1e-37)


def with_gradient(loss, ratings, scores, *settings):
    """The value of a loss of the paper, and its derivative."""
    leaf = scores.clone().requires_grad_()
    value = loss(ratings, leaf, *settings)
    if not value.requires_grad:  # one rating
        return value, torch.zeros_like(scores)
    return value.detach(), torch.autograd.grad(value, leaf)[0]


def as_data(lists):
    """A data set with a query for each list, where queries begin, and all scores."""
    lengths = [len(ratings) for ratings, _ in lists]
    ratings, scores = (torch.cat(part).numpy() for part in zip(*lists, strict=True))
    features = np.random.default_rng(0).random((len(ratings), 2))
    data = tierank.RankingDataset(features, ratings, qid=np.repeat(np.arange(len(lists)), lengths))
    return data, data.offsets, scores


# The formulas themselves


def test_each_formula_can_be_found_and_names_its_fast_code():
    functions = [one for one in vars(paper).values() if inspect.isfunction(one) and one.__module__ == "tierank.paper"]
    texts = "\n".join(one.__doc__ for one in functions)
    assert set(re.findall(r"(?:Eq\.|Algorithm) \d", texts)) == {
        *(f"Eq. {k}" for k in range(1, 9)),
        "Algorithm 1",
        "Algorithm 2",
    }
    named = re.findall(r"^    fast: (.*)", texts, re.MULTILINE)
    assert len(named) == 16
    for line in named:
        names = re.findall(r"``([a-z]+\.[\w.]+)", line)
        assert names
        for name in names:
            assert pkgutil.resolve_name(f"tierank.{name}") is not None


def test_the_worked_example():
    """Ratings (1, 2, 2, 0) and scores ln(2, 3, 4, 5), as in the paper, and the derivative by hand."""
    ratings, scores = torch.tensor([1.0, 2, 2, 0]), torch.tensor([2.0, 3, 4, 5], dtype=torch.float64).log()
    value, gradient = with_gradient(paper.urank_loss, ratings, scores)
    assert value.item() == pytest.approx(-(3 * (math.log(3 / 10) + math.log(4 / 11)) + math.log(2 / 7)) / 2, rel=1e-15)
    slopes = [3 * 2 / 10 + 3 * 2 / 11 - 5 / 7, -3 * 7 / 10, -3 * 7 / 11, 3 * 5 / 10 + 3 * 5 / 11 + 5 / 7]
    np.testing.assert_allclose(gradient, np.array(slopes) / 2, rtol=1e-14)
    # In windows of one: 3 (ln(3/5) + ln(3/8) + ln(4/6) + ln(4/9)) for the two of rating 2, the same for the third.
    value = paper.urank_loss(ratings, scores, 1).item()
    of_pairs = 3 * math.log((3 / 5) * (3 / 8) * (4 / 6) * (4 / 9)) + math.log(2 / 7)
    assert value == pytest.approx(-of_pairs / 2, rel=1e-15)


def test_one_pair_of_umart_by_hand():
    # Ranks 2 and 1, gains 3 and 0: Delta Z = 3 (1 - 1/log2(3)) / (0.01 + 0.5) / 3, p = 1 / (1 + e^-1).
    ratings, scores = torch.tensor([2.0, 0]), torch.tensor([0.0, 0.5], dtype=torch.float64)
    w, p = (1 - 1 / np.log2(3)) / 0.51, 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(paper.umart_gradient(ratings, scores), [-2 * w * p, 2 * w * p], rtol=1e-14)
    np.testing.assert_allclose(paper.umart_hessian(ratings, scores), [8 * w * p, 8 * w * p * (1 - p)], rtol=1e-14)


@pytest.mark.parametrize("u", WINDOWS)
def test_umart_differentiates_the_loss(u, monkeypatch):
    """With (2^r(d) - 1) / (|R| - 1) in place of Delta Z(d, d'), which is the same for all d', the loss is Eq. 2."""
    sigma = 1.5
    monkeypatch.setattr(
        paper, "delta_z", lambda r, f: ((2**r - 1) / max(len(set(r.tolist())) - 1, 1))[:, None].expand(len(r), len(r))
    )
    for ratings, scores in SHORT:
        leaf = scores.clone().requires_grad_()
        loss = paper.urank_loss(ratings, sigma * leaf, u)
        if len(set(ratings.tolist())) == 1:
            continue
        (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
        assert_close(paper.umart_gradient(ratings, scores, u, sigma), gradient.detach(), 1e-10)
        if scores.abs().max() < 100 and len(ratings) < 20:
            # In the lowest tier, Eq. 7 is twice the diagonal of the second derivative.
            lowest = (ratings == ratings.min()).nonzero().flatten()
            second = [torch.autograd.grad(gradient[d], leaf, retain_graph=True)[0][d] for d in lowest]
            hessian = paper.umart_hessian(ratings, scores, u, sigma)
            assert (hessian >= 0).all()
            assert_close(hessian[lowest], 2 * torch.stack(second), 1e-10)


def test_algorithms_equal_the_equations():
    n = 0
    for ratings, scores in SPACE:
        if scores.abs().max() > 100 or len(set(ratings.tolist())) == 1:
            continue  # the exponentials of the algorithms overflow
        value, gradient = with_gradient(paper.urank_loss, ratings, scores)
        assert_close(paper.algorithm_1(ratings, scores), value, 1e-13)
        learner = torch.sin(scores)
        found, loss = paper.algorithm_2(ratings, scores, learner)
        assert_close(found, -gradient, 1e-13)
        assert_close(loss, ((-gradient - learner) ** 2).mean(), 1e-12)
        n += 1
    assert n > 30


def test_the_network_of_the_paper():
    network, ours = paper.scoring_function(5, 4, 3), MLP(5, (4, 3), "elu", "elu")
    with torch.no_grad():
        for layer, own in zip(network[::2], (*ours.body.layers, ours.output), strict=True):
            own.weight.copy_(layer.weight)
            own.bias.zero_()
    features = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(network(features).flatten(), ours(features))


# Losses


def check_losses(ratings, scores):
    for u in WINDOWS:
        value, gradient = with_gradient(paper.urank_loss, ratings, scores, u)
        for dtype, of_value, of_gradient in ((torch.float64, 1e-12, 1e-11), (torch.float32, 3e-7, 3e-7)):
            batch, leaf = Batch([0, len(ratings)], ratings, dtype=dtype), scores.to(dtype).clone().requires_grad_()
            named = [losses.windowed_urank(leaf, batch, window=u)] + [losses.urank(leaf, batch)] * (u is None)
            for found in named:
                assert_close(found.detach()[0], value, of_value)
                assert_close(torch.autograd.grad(found.sum(), leaf)[0], gradient, of_gradient)


def test_losses():
    for ratings, scores in SPACE:
        check_losses(ratings, scores)


@given(DOCUMENTS)
@examples(100)
def test_losses_of_any_list(documents):
    check_losses(*documents)


# The compiled steps of training


def check_kernel(ratings, scores):
    """The features are the unit vectors, and so the weights are the scores, and their gradient that of the scores."""
    n = len(ratings)
    network, batch = MLP(n, hidden=()), Batch([0, n], ratings)
    with torch.no_grad():
        network.output.weight[0] = scores
        network.output.bias.zero_()
    value, gradient = with_gradient(paper.urank_loss, ratings, scores)
    loss, found = derivatives(network, URANK, batch.urank_weights, batch, torch.eye(n))
    assert_close(loss, value, 1e-6)
    assert_close(found[:-1], gradient, 1e-6)
    # The same with targets: a learner of uBoost with these scores.
    learner = scores.clamp(-30, 30)
    with torch.no_grad():
        network.output.weight[0] = learner
    targets = paper.residuals(ratings, scores).float()
    loss, found = derivatives(network, SQUARES, targets, batch, torch.eye(n))
    assert_close(loss, ((targets.double() - learner) ** 2).mean(), 1e-6)
    assert_close(found[:-1], 2 * (learner - targets.double()) / n, 1e-6)


def test_compiled_training():
    for ratings, scores in SPACE:
        check_kernel(ratings, scores)


@given(DOCUMENTS)
@examples(200)
def test_compiled_training_on_any_list(documents):
    check_kernel(*documents)


# Residuals of uBoost


def test_residuals_are_the_derivative():
    for ratings, scores in SPACE:
        assert_close(paper.residuals(ratings, scores), -with_gradient(paper.urank_loss, ratings, scores)[1], 1e-11)


@pytest.mark.parametrize("u", WINDOWS)
def test_residuals_of_uboost_learners(u):
    """For all queries at once; where scores are equal, windows depend on the order that training has given the rows."""
    chosen = [one for one in SPACE if u is None or len(set(one[1].tolist())) == len(one[1])]
    assert len(chosen) > 60
    data, offsets, all_scores = as_data(chosen)
    lists = QueryLists(data, TRANSFORMS["none"](), True, "exp2", Resources(1))
    found = np.empty(data.n_documents)
    found[lists.order] = find_residuals(all_scores, lists, u).numpy()
    for (ratings, scores), start in zip(chosen, offsets, strict=False):
        expected = paper.residuals(ratings, scores)
        if u is not None:
            expected = -with_gradient(paper.urank_loss, ratings, scores, u)[1]
        assert_close(found[start : start + len(ratings)], expected, 1e-6)


# uMart


def check_umart(ratings, scores, u):
    objective = UMartObjective(window=u, hessian="paper", ties="rows", n_jobs=1)
    gradient, hessian = objective.prepare(ratings.numpy(), [0, len(ratings)]).gradients(scores.numpy())
    assert_close(gradient, paper.umart_gradient(ratings, scores, u), 3e-7)
    assert_close(hessian, paper.umart_hessian(ratings, scores, u), 3e-7)


@pytest.mark.parametrize("u", WINDOWS)
def test_umart(u):
    for ratings, scores in SPACE:
        check_umart(ratings, scores, u)


@given(DOCUMENTS, st.sampled_from(WINDOWS))
@examples(200)
def test_umart_of_any_list(documents, u):
    check_umart(*documents, u)


# urBoost


def weights_of(network):
    """W, U, b and w of Eq. 8."""
    w = torch.cat([network.state_weights, network.document_weights])
    return network.from_state.weight, network.from_document.weight, network.from_document.bias, w


def stepwise(network, features, ratings):
    """The conditional scores of the paper, and the loss."""
    scores = paper.conditional_scores(ratings, network.body(features), *weights_of(network))
    return scores, paper.urank_loss(ratings, scores)


@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_urboost(activation):
    """Scores of each step, the loss and its derivatives; and the same of the compiled code in single precision."""
    generator, n_ranked = torch.Generator().manual_seed(0), 0
    for k, (ratings, _) in enumerate(SHORT):
        features = torch.randn(len(ratings), 3, generator=generator, dtype=torch.float64).round(decimals=1).float()
        features = features[[d // 2 for d in range(len(ratings))]]  # pairs of equal documents: equal maxima in states
        network = TierRNN(3, (5, 4), activation, seed=k)
        parameters, batch = list(network.parameters()), Batch([0, len(ratings)], ratings)
        one_float = derivatives(network, TIERS, batch.urank_weights, batch, features) if batch.steps else None
        network, features = network.double(), features.double()
        batch = Batch([0, len(ratings)], ratings, dtype=torch.float64)
        scores, value = stepwise(network, features, ratings)
        assert_close(network(features).detach(), scores[0].detach(), 1e-13)  # the scores of inference
        step_scores = network.step_scores(features, batch)
        assert len(step_scores) == len(set(ratings.tolist())) - 1
        for t, (step, found) in enumerate(zip(batch.steps, step_scores, strict=True)):
            assert_close(found.detach(), scores[t][step.rows].detach(), 1e-13)
        if one_float is None:
            assert value.item() == 0
            continue
        found = losses.stepwise_urank(step_scores, batch)
        assert_close(found.detach()[0], value.detach(), 1e-12)
        of_paper, of_torch = (
            torch.autograd.grad(one.sum(), parameters, allow_unused=True, materialize_grads=True)
            for one in (value, found)
        )
        scale = batch.urank_weights.sum()  # documents that are alike but for their ratings cancel
        assert_close(flat(of_torch), flat(of_paper), 1e-12, scale)
        assert_close(one_float[0], value.detach(), 1e-6)
        assert_close(one_float[1], flat(of_paper), 1e-6, scale)
        n_ranked += 1
    assert n_ranked > 60


@pytest.mark.parametrize("u", [1, 2, 10])
def test_windows_of_urboost(u):
    for k, (ratings, _) in enumerate(SHORT):
        batch = Batch([0, len(ratings)], ratings, dtype=torch.float64)
        features = torch.randn(len(ratings), 3, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
        network = TierRNN(3, (4,), seed=k).double()
        scores, _ = stepwise(network, features, ratings)
        found = losses.stepwise_urank(network.step_scores(features, batch), batch, window=u)
        assert_close(found.detach()[0], paper.urank_loss(ratings, scores, u).detach(), 1e-12)


# Training


NDCG = st.sampled_from([0.0, 0.5, 0.5 + 9e-7, 0.5 + 1.1e-6, 0.5 - 9e-7, 1.0])


@given(st.lists(st.tuples(NDCG, NDCG, NDCG, NDCG), min_size=1, max_size=12))
@examples(300)
def test_the_selection_rule(history):
    rule = Selection()
    kept = [epoch for epoch, metrics in enumerate(history) if rule.is_better(metrics)]
    assert paper.select(history) == kept[-1]


def test_ndcg_is_that_of_the_rule_of_the_paper():
    data, _, scores = as_data(SPACE)
    for k in (1, 3, 10):
        found = tierank.evaluate(data, scores, f"ndcg@{k}", rule="wsdm20").per_query[f"ndcg@{k}"]
        np.testing.assert_allclose(found, [paper.ndcg(*one, k) for one in SPACE], rtol=1e-12)


def as_queries(data):
    pairs = zip(data.offsets[:-1], data.offsets[1:], strict=True)
    features, ratings = torch.tensor(np.asarray(data.features)).double(), torch.tensor(data.ratings)
    return [(features[start:end], ratings[start:end]) for start, end in pairs]


def trained(queries, *settings, **more):
    """The network of ``URank`` with its initial weights, trained as in the paper, in double precision."""
    network = MLP(queries[0][0].shape[1], (100, 50), "relu", seed=0)
    draw_glorot(network, 0)
    return network.double(), paper.train(network, queries, *settings, **more)


def assert_same_scores(ranker, network, data, within):
    """Up to a constant: losses do not see one, so the last bias follows rounding errors.

    So does the bias of a unit that is on for all documents of a query: its derivative is 0, and the first steps of Adam
    are equally long for all derivatives. Where queries are short, such units are frequent; they shift most documents
    alike.
    """
    with torch.no_grad():
        expected = torch.cat([network(paper.min_max(features)) for features, _ in as_queries(data)]).numpy()
    scores = ranker.predict(data)
    assert np.ptp(expected) > 0.15
    np.testing.assert_allclose(scores - scores.mean(), expected - expected.mean(), rtol=0, atol=within)


def test_training_and_selection_are_those_of_the_ranker():
    train, valid = tierank.make_ranking(40, n_features=20, mean_length=20, max_length=40, seed=1).split(0.7, 0.3)
    ranker = URank.from_preset("authors-ohsumed", max_epochs=3, n_jobs=1).fit(train, valid=valid)
    network, history = trained(as_queries(train), as_queries(valid), max_epochs=3)
    found = [[row[f"ndcg@{k}"] for k in (1, 3, 5, 10)] for row in ranker.history_]
    np.testing.assert_allclose(found, history, rtol=1e-12)
    assert paper.select(history) == 2  # the weights of the third epoch
    assert_same_scores(ranker, network, valid, 5e-5)


@pytest.mark.parametrize("max_epochs", [1, 2, 3])
def test_training_on_ohsumed_is_that_of_the_ranker(real_data, max_epochs):
    """Without validation queries, whose equal documents differ in the last bit in double precision."""
    train = tierank.read_fold(real_data / "OHSUMED", 3)[0].select(np.arange(30))
    ranker = URank.from_preset("authors-ohsumed", max_epochs=max_epochs, n_jobs=1).fit(train)
    network, _ = trained(as_queries(train), max_epochs=max_epochs)
    assert_same_scores(ranker, network, train, 5e-6)


def test_own_losses_are_trained_too():
    """The two ways that the module names: an own loss in ``paper.train``, and in ``NetworkRanker``."""
    train, valid = tierank.make_ranking(20, n_features=5, mean_length=10, max_length=20, seed=2).split(0.5, 0.5)

    def of_paper(ratings, scores):
        return ((scores - ratings) ** 2).mean()

    def of_tierank(scores, batch):
        squares = (scores - batch.ratings.to(scores.dtype)).square()
        return torch.zeros(batch.n_queries).index_add(0, batch.query, squares) / batch.lengths

    preset = URank.PRESETS["authors-ohsumed"]
    ranker = NetworkRanker(of_tierank, **preset | {"max_epochs": 2}).fit(train)
    network, _ = trained(as_queries(train), loss=of_paper, max_epochs=2)
    assert_same_scores(ranker, network, valid, 5e-5)


def test_training_ends_without_better_weights_and_keeps_the_best():
    data = tierank.make_ranking(12, n_features=3, mean_length=8, max_length=12, seed=3)
    queries = as_queries(data)
    network = paper.scoring_function(3, 5, 4).double()
    seen = []

    def watched(ratings, scores):
        seen.append(len(ratings))
        return paper.urank_loss(ratings, scores)

    history = paper.train(network, queries, queries, watched, learning_rate=0.05, max_epochs=60, patience=4)
    assert len(history) == paper.select(history) + 1 + 4 < 60
    assert len(seen) == len(history) * sum(len(set(ratings.tolist())) > 1 for _, ratings in queries)
    with torch.no_grad():
        judged = [paper.ndcg(ratings, network(paper.min_max(x)).flatten(), 10) for x, ratings in queries]
    assert torch.stack(judged).nanmean().item() == pytest.approx(history[paper.select(history)][3], rel=1e-12)
