"""Losses: worked by hand, against slow twins, gradcheck, and what all of them promise."""

import inspect
import math
import pickle
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import reference_losses as reference
import torch

from tierank import losses, paper
from tierank.data.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.losses import LOSSES, Batch, smooth, stepwise_urank, tiers, urank, windowed_urank
from tierank.losses import batch as segments
from tierank.losses import pairwise as pairs

TWICE = ["listmle", "listnet", "neuralndcg", "plistmle", "softmax", "urank"]
LINEAR = ["listmle", "listnet", "plistmle", "softmax", "urank"]
names = pytest.mark.parametrize("name", sorted(LOSSES))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tensor(values, **kwargs):
    return torch.tensor(np.asarray(values), **({"dtype": torch.float64} | kwargs))


def draw(lengths, n_levels=4, seed=0):
    """Offsets, ratings and scores of queries of these lengths, each of two documents on with two ratings at least."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ratings = rng.integers(0, n_levels, offsets[-1]).astype(float)
    for start, n in zip(offsets, lengths, strict=False):
        ratings[start : start + min(n, 2)] = [1, 0][:n]
    return offsets, ratings, rng.normal(size=offsets[-1])


def evaluate(name, offsets, ratings, scores, dtype=torch.float64, **settings):
    """Values, and the gradient of each value with respect to its scores (queries do not share scores)."""
    leaf = tensor(scores, dtype=dtype, requires_grad=True)
    values = LOSSES[name](leaf, Batch(offsets, ratings, dtype=dtype), **settings)
    values.sum().backward()
    return values.detach().numpy(), leaf.grad.numpy()


def slices(offsets):
    return [slice(a, b) for a, b in pairwise(offsets)]


# The batch


def test_batch_of_a_data_set():
    rng = np.random.default_rng(0)
    data = RankingDataset(rng.normal(size=(50, 2)), rng.integers(0, 4, 50), qid=rng.integers(0, 7, 50))
    batch = Batch.of(data)
    assert batch.tiers.tolist() == data.tiers.tolist()
    assert batch.query.tolist() == data.query_of_row.tolist()
    assert batch.n_tiers.tolist() == [len(set(data.ratings[rows])) for rows in slices(data.offsets)]
    assert batch.gains.tolist() == (2**data.ratings - 1).tolist()
    assert (batch.n_queries, batch.n_documents, batch.is_rated) == (data.n_queries, 50, True)


@names
def test_taken_queries_are_the_same_as_a_batch_of_their_own(name):
    offsets, ratings, scores = draw([5, 1, 9, 3, 12])
    whole = Batch(offsets, ratings, dtype=torch.float64)
    for chosen in ([3, 0, 2], [4], [1, 1]):
        taken = whole.take(chosen)
        rows = np.concatenate([np.arange(offsets[q], offsets[q + 1]) for q in chosen])
        assert taken.rows.tolist() == rows.tolist()
        own = Batch(taken.offsets.numpy(), ratings[rows], dtype=torch.float64)
        expected = LOSSES[name](tensor(scores[rows]), own)
        assert LOSSES[name](tensor(scores)[taken.rows], taken).tolist() == expected.tolist()


def test_gains_can_be_given():
    assert Batch([0, 3], [0, 2, 5], gain="linear").gains.tolist() == [0, 2, 5]
    assert Batch([0, 3], [0, 2, 5], gain={0: 0, 2: 7, 5: 8}).gains.tolist() == [0, 7, 8]
    assert Batch([0, 3], [0, 2, 5], gain=np.square).gains.tolist() == [0, 4, 25]
    value = urank(tensor([0.3, 0.1]), Batch([0, 2], [2, 1], gain=np.square, dtype=torch.float64))
    assert value.item() == pytest.approx(4 * math.log(1 + math.exp(-0.2)))


@pytest.mark.parametrize("rating", [5, 63, 64, 64.5, 200, 1000, 1e9])
def test_no_rating_is_too_high(rating):
    # Above 64 the gains are in units of 2^(r - 64); between the documents of a query they keep their ratios.
    got = Batch([0, 3], [rating, rating - 1, 0], dtype=torch.float64).gains
    unit = max(rating - 64, 0)
    expected = [2.0 ** (rating - unit) - 2.0**-unit, 2.0 ** (rating - 1 - unit) - 2.0**-unit, 0]
    np.testing.assert_allclose(got, expected, rtol=1e-15)
    for name in LOSSES:
        values, gradient = evaluate(name, [0, 3], [rating, rating - 1, 0], [0.1, 0.4, 0.3], torch.float32)
        assert np.isfinite(values).all(), name
        assert np.isfinite(gradient).all(), name
        assert np.abs(gradient).max() > 0, name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 2, 2], [0, 1]), "offsets: expected 0 and then the end of each query, ascending"),
        (([1, 2], [0]), "offsets: expected 0"),
        (([0, 2], [0, 1, 2]), "y: expected 2 ratings"),
        (([0, 2], [0, -1]), "y, row 1: expected a finite rating that is not negative"),
    ],
)
def test_bad_batches(arguments, message):
    with pytest.raises(DataError, match=message):
        Batch(*arguments)


def test_bad_scores_and_settings():
    batch = Batch([0, 2], [0, 1])
    with pytest.raises(DataError, match=r"scores: expected 2 of torch.float32.* got shape \(3,\)"):
        urank(torch.zeros(3), batch)
    with pytest.raises(DataError, match=r"got shape \(2,\) of torch.float64"):
        urank(torch.zeros(2, dtype=torch.float64), batch)
    with pytest.raises(DataError, match="expected at least one query to take, got none"):
        batch.take([])
    with pytest.raises(DataError, match="ratings: expected Batch"):
        urank(torch.zeros(2), Batch([0, 2]))
    with pytest.raises(ParameterError, match="window: expected an integer >= 1"):
        windowed_urank(torch.zeros(2), batch, window=0)
    with pytest.raises(ParameterError, match="sigma: expected a number > 0, got -1"):
        losses.ranknet(torch.zeros(2), batch, sigma=-1)
    with pytest.raises(ParameterError, match="mu: expected a number >= 0 and <= 1e"):
        losses.lambdaloss(torch.zeros(2), batch, mu=math.nan)
    with pytest.raises(ParameterError, match="max_scalings: expected an integer >= 0"):
        losses.neuralndcg(torch.zeros(2), batch, max_scalings=-1)
    with pytest.raises(ParameterError, match="unknown gain 'exp': did you mean 'exp2'"):
        Batch([0, 2], [0, 1], gain="exp").gains
    with pytest.raises(ParameterError, match="expected a gain for every rating of the data, got none for 1"):
        Batch([0, 2], [0, 1], gain={0: 0}).gains
    with pytest.raises(ParameterError, match="expected finite gains that are not negative, got -1 for rating 1"):
        Batch([0, 2], [0, 1], gain=np.negative).gains


# uRank


def test_urank_where_exponentials_overflow():
    # Algorithm 1 gives infinity over infinity here. By hand: below - f is 2e4 for the highest, -1e4 for the middle.
    values, gradient = evaluate("urank", [0, 3], [2, 1, 0], [-1e4, 1e4, 0.0], torch.float32)
    assert values.tolist() == [3 * 2e4 / 2]
    # Single precision knows scores of 1e4 to 1e-3, and so their exponentials.
    np.testing.assert_allclose(gradient, [-1.5, 1.5, 0.0], rtol=1e-3)
    tiny, _ = evaluate("urank", [0, 2], [1, 0], [0.0, -50.0], torch.float32)
    assert tiny[0] == pytest.approx(math.exp(-50), rel=1e-5)  # not lost beside 1
    large, _ = evaluate("urank", [0, 2], [1, 0], [0.0, 30.0])
    assert large[0] == 30 + math.log1p(math.exp(-30))  # nor cut to a straight line too early


def test_more_tiers_than_float32_gains_hold():
    n = 3000
    values, gradient = evaluate("urank", [0, n], np.arange(n), np.zeros(n), torch.float32)
    assert np.isfinite(values).all()
    assert np.isfinite(gradient).all()


def test_one_window_is_urank_and_windows_of_one_are_pairs():
    offsets, ratings, scores = draw([30, 4, 12], 5)
    for got, expected in zip(
        evaluate("windowed_urank", offsets, ratings, scores, window=10**6),
        evaluate("urank", offsets, ratings, scores),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    value, _ = evaluate("windowed_urank", [0, 4], [1, 0, 1, 0], scores[:4], window=1)
    assert value[0] == pytest.approx(4 * reference.ranknet([1, 0, 1, 0], scores[:4]))


def test_scores_of_steps():
    rng = np.random.default_rng(3)
    ratings = [[1, 1], [2, 0, 2, 1], [0, 1, 0], [4, 3, 2, 1, 0, 3], [5]]
    offsets = np.concatenate([[0], np.cumsum([len(r) for r in ratings])])
    batch = Batch(offsets, np.concatenate(ratings), dtype=torch.float64)
    table = rng.normal(size=(5, offsets[-1]))
    step_scores = [tensor(table[t])[step.rows].requires_grad_() for t, step in enumerate(batch.steps)]
    assert [len(step.rows) for step in batch.steps] == [4 + 3 + 6, 2 + 5, 3, 2]
    values = stepwise_urank(step_scores, batch)
    expected = [
        paper.urank_loss(tensor(r), tensor(table[: len(set(r)), rows])).item()
        for r, rows in zip(ratings, slices(offsets), strict=True)
    ]
    np.testing.assert_allclose(values.detach(), expected, rtol=1e-13)
    assert torch.autograd.gradcheck(lambda *scores: stepwise_urank(scores, batch), step_scores)


def test_the_same_scores_on_all_steps_are_urank():
    offsets, ratings, scores = draw([9, 1, 20, 2], 5)
    batch = Batch(offsets, ratings, dtype=torch.float64)
    values = stepwise_urank([tensor(scores)[step.rows] for step in batch.steps], batch)
    np.testing.assert_allclose(values, urank(tensor(scores), batch), rtol=1e-14)


def test_no_steps_are_no_loss():
    values = stepwise_urank([], Batch([0, 2, 3], [1, 1, 0]))
    assert values.tolist() == [0, 0]
    values.sum().backward()  # with nothing to do


# All losses


@names
def test_equals_the_slow_twin(name):
    lengths = [2, 3, 8, 25, 5]
    offsets, ratings, scores = draw(lengths, 4, seed=1)
    for spread in (0.3, 1.0, 4.0):
        values, _ = evaluate(name, offsets, ratings, spread * scores)
        twin = getattr(reference, name)
        expected = [twin(ratings[rows], spread * scores[rows]) for rows in slices(offsets)]
        np.testing.assert_allclose(values, expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("approxndcg", {"temperature": 0.7}),
        ("lambdaloss", {"sigma": 2.0, "mu": 1.0}),
        ("lambdarank", {"sigma": 0.5}),
        ("neuralndcg", {"temperature": 3.0, "max_scalings": 0}),
        ("neuralndcg", {"temperature": 0.4, "max_scalings": 3}),
        ("ranknet", {"sigma": 3.0}),
    ],
)
def test_settings_equal_the_slow_twin(name, settings):
    offsets, ratings, scores = draw([2, 9, 17], 3, seed=2)
    values, _ = evaluate(name, offsets, ratings, scores, **settings)
    expected = [getattr(reference, name)(ratings[rows], scores[rows], **settings) for rows in slices(offsets)]
    np.testing.assert_allclose(values, expected, rtol=1e-12)


@names
def test_gradient(name):
    offsets, ratings, scores = draw([6, 1, 2, 9, 3], 4, seed=5)
    ratings[offsets[4] :] = 2  # the last query has one rating
    batch = Batch(offsets, ratings, dtype=torch.float64)
    leaf = tensor(scores, requires_grad=True)
    loss = LOSSES[name]
    if name in ("lambdaloss", "lambdarank"):
        # Ranks are taken as given: numerically, a step may not change them, and it does not here.
        assert np.abs(np.diff(np.sort(scores))).min() > 1e-3
    assert torch.autograd.gradcheck(lambda f: loss(f, batch), leaf)
    if name in TWICE:
        assert torch.autograd.gradgradcheck(lambda f: loss(f, batch), leaf)


@names
def test_differentiated_twice_or_said_to_be_not(name):
    batch = Batch([0, 4], [2, 1, 1, 0])
    for scores in ([0.1, 0.5, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0], [1e4, 1e4, -1e4, 0.0]):
        leaf = torch.tensor(scores, requires_grad=True)
        value = LOSSES[name](leaf, batch).sum()
        if name in TWICE:
            (gradient,) = torch.autograd.grad(value, leaf, create_graph=True)
            assert torch.isfinite(torch.autograd.grad(gradient.square().sum(), leaf)[0]).all()
        else:
            with pytest.raises(ParameterError, match="create_graph: expected False with a loss"):
                torch.autograd.grad(value, leaf, create_graph=True)


@names
def test_order_of_queries_and_other_queries_change_nothing(name):
    lengths = [4, 1, 19, 2, 33]
    offsets, ratings, scores = draw(lengths, 5, seed=6)
    values, gradient = evaluate(name, offsets, ratings, scores, torch.float32)
    rows_of = slices(offsets)
    order = [3, 4, 0, 2, 1]
    rows = np.concatenate([np.r_[rows_of[q]] for q in order])
    moved = np.concatenate([[0], np.cumsum([lengths[q] for q in order])])
    again, gradient_again = evaluate(name, moved, ratings[rows], scores[rows], torch.float32)
    np.testing.assert_allclose(again, values[order], rtol=2e-6)
    np.testing.assert_allclose(gradient_again, gradient[rows], rtol=1e-5, atol=1e-7)
    for q, own in enumerate(rows_of):
        alone, gradient_alone = evaluate(name, [0, lengths[q]], ratings[own], scores[own], torch.float32)
        np.testing.assert_allclose(alone, values[q : q + 1], rtol=2e-6)
        np.testing.assert_allclose(gradient_alone, gradient[own], rtol=1e-5, atol=1e-7)


@names
def test_the_same_bits_for_the_same_input(name):
    offsets, ratings, scores = draw([50, 7, 90], 5, seed=7)
    first, second = (evaluate(name, offsets, ratings, scores, torch.float32) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.tobytes() == b.tobytes()


@names
def test_order_of_documents_changes_nothing(name):
    rng = np.random.default_rng(8)
    n = 23
    # Where ties are put into an order, that is the order of the rows: no ties for those.
    ratings = rng.permutation(n) if "mle" in name else rng.integers(0, 4, n)
    scores, moved = rng.normal(size=n), rng.permutation(n)
    values, gradient = evaluate(name, [0, n], ratings, scores)
    again, gradient_again = evaluate(name, [0, n], ratings[moved], scores[moved])
    np.testing.assert_allclose(again, values, rtol=1e-10)
    np.testing.assert_allclose(gradient_again, gradient[moved], rtol=1e-8, atol=1e-9 * np.abs(gradient).max())


@names
def test_adding_a_number_to_all_scores_changes_nothing(name):
    offsets, ratings, scores = draw([6, 14], 4, seed=9)
    values, gradient = evaluate(name, offsets, ratings, scores)
    again, gradient_again = evaluate(name, offsets, ratings, scores + 7.25)
    np.testing.assert_allclose(again, values, rtol=1e-10)
    np.testing.assert_allclose(gradient_again, gradient, rtol=1e-8, atol=1e-10)
    for rows in slices(offsets):
        assert abs(gradient[rows].sum()) < 1e-10 * np.abs(gradient[rows]).sum() + 1e-14


@names
def test_finite_at_extremes(name):
    rng = np.random.default_rng(10)
    offsets, ratings, _ = draw([2, 7, 60], 5, seed=10)
    for scores in (
        rng.choice([-1e4, 1e4], offsets[-1]),
        rng.uniform(-1e4, 1e4, offsets[-1]),
        -1e4 * ratings,
        1e4 * ratings,
        np.zeros(offsets[-1]),
    ):
        values, gradient = evaluate(name, offsets, ratings, scores, torch.float32)
        assert np.isfinite(values).all()
        assert np.isfinite(gradient).all()
        assert (values >= -1e-6).all()


@names
@pytest.mark.parametrize("weighted", [False, True])
def test_single_precision_is_enough_for_scores_of_1e4(name, weighted):
    """Values and gradients are those of the same scores in double precision, to its last digits but one."""
    rng = np.random.default_rng(11)
    offsets, ratings, noise = draw([2, 7, 60, 300], 5, seed=11)
    weights = 1 + rng.random(offsets[-1]) if weighted and LOSSES[name] in losses.WITH_WEIGHTS else None
    sides = rng.choice([-1e4, 1e4], offsets[-1])
    for scores in (1e4 + noise, -1e4 + noise, sides, sides + noise, 1e4 * np.clip(noise, -1, 1)):
        found = []
        for dtype in (torch.float32, torch.float64):
            leaf = tensor(scores, dtype=torch.float32).to(dtype).requires_grad_()
            values = LOSSES[name](leaf, Batch(offsets, ratings, weights=weights, dtype=dtype))
            found.append((values.detach().double(), torch.autograd.grad(values.sum(), leaf)[0].double()))
        (values, gradient), (expected, expected_gradient) = found
        np.testing.assert_allclose(values, expected, rtol=5e-6, atol=5e-6)
        for rows in slices(offsets):
            scale = max(expected_gradient[rows].abs().max().item(), 1e-3)
            np.testing.assert_allclose(gradient[rows], expected_gradient[rows], rtol=1e-4, atol=1e-4 * scale)


@names
@pytest.mark.parametrize("ratings", [[0], [3], [0, 0, 0], [2, 2]])
def test_one_rating_has_nothing_to_learn(name, ratings):
    n = len(ratings)
    values, gradient = evaluate(name, [0, n, n + 2], [*ratings, 1, 0], [*np.arange(n), 0.1, 0.2], torch.float32)
    assert values[0] == 0
    assert (gradient[:n] == 0).all()
    assert np.abs(gradient[n:]).min() > 0


@names
def test_no_gain_has_no_loss_where_gains_count(name):
    batch = Batch([0, 3], [2, 1, 0], gain=np.zeros_like)
    value = LOSSES[name](torch.tensor([0.1, 0.2, 0.3]), batch)
    assert torch.isfinite(value).all()
    if name not in ("listmle", "listnet", "plistmle", "ranknet"):
        assert value.item() == 0


@names
def test_perfect_order_is_better_than_reversed(name):
    ratings = np.array([3, 2, 2, 1, 0, 0, 0])
    scores = np.linspace(3, -3, 7)
    assert evaluate(name, [0, 7], ratings, scores)[0] < evaluate(name, [0, 7], ratings, scores[::-1].copy())[0]


@names
def test_a_step_down_the_gradient_is_better(name):
    offsets, ratings, scores = draw([20, 11], 4, seed=11)
    values, gradient = evaluate(name, offsets, ratings, scores)
    lower, _ = evaluate(name, offsets, ratings, scores - 1e-5 * gradient)
    assert (lower < values).all()


@pytest.mark.parametrize("name", ["approxndcg", "lambdaloss", "ranknet", "windowed_urank"])
def test_blocks_of_pairs_change_nothing(name, monkeypatch):
    offsets, ratings, scores = draw([3, 40, 17, 2], 5, seed=12)
    whole = evaluate(name, offsets, ratings, scores)
    monkeypatch.setattr(segments, "_PAIRS", 7)
    for got, expected in zip(evaluate(name, offsets, ratings, scores), whole, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["listmle", "plistmle"])
def test_ties_are_shuffled_by_the_generator(name):
    offsets, ratings, scores = draw([5, 12], 2, seed=13)

    def run(seed, times=1):
        batch = Batch(offsets, ratings, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return [LOSSES[name](tensor(scores), batch).tolist() for _ in range(times)]

    state = torch.get_rng_state()
    assert run(1, 3) == run(1, 3)
    assert run(1) != run(2)
    assert len({tuple(values) for values in run(1, 5)}) == 5
    assert torch.equal(torch.get_rng_state(), state)


def test_shuffled_orders_are_equally_likely():
    # Ratings 1, 1, 0 and scores a, b, 0: two orders, of known likelihoods.
    scores = tensor([0.7, -0.4, 0.0])
    batch = Batch([0, 3], [1, 1, 0], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = [round(losses.listmle(scores, batch).item(), 9) for _ in range(400)]
    orders = [reference.listmle([2, 1, 0], scores.tolist()), reference.listmle([1, 2, 0], scores.tolist())]
    assert set(drawn) == {round(value, 9) for value in orders}
    assert 150 < drawn.count(round(orders[0], 9)) < 250


def test_long_lists_do_not_overflow_plistmle():
    offsets, ratings, scores = draw([2000], 3, seed=14)
    values, gradient = evaluate("plistmle", offsets, ratings, scores, torch.float32)
    # Places beyond the first 60 weigh less than 2^-59 together.
    order = np.argsort(-ratings, kind="stable")
    expected = -sum(2.0**-i * reference.log_softmax(scores[order[i:]].tolist())[0] for i in range(60))
    assert values[0] == pytest.approx(expected, rel=1e-5)
    assert np.isfinite(gradient).all()


def test_too_long_for_a_matrix():
    with pytest.raises(DataError, match=r"neuralndcg: expected queries of up to 4,096 documents.*got one of 5,000"):
        losses.neuralndcg(torch.zeros(5000), Batch([0, 5000], np.arange(5000) % 2))


def test_memory_of_60000_documents():
    # All linear losses, in a process of their own; ru_maxrss is in KiB on Linux.
    if sys.platform != "linux":
        pytest.skip("measures memory as Linux counts it")
    code = f"""
import resource, torch
from tierank.losses import LOSSES, Batch
torch.set_num_threads(1)
n = 60_000
scores = torch.linspace(-3, 3, n).sin().requires_grad_()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for ratings in (torch.arange(n) % 5, torch.arange(n) % 30_000):
    batch = Batch([0, n], ratings.numpy(), generator=torch.Generator())
    for name in {LINEAR!r}:
        LOSSES[name](scores, batch).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300 * 1024


def test_pairs_of_a_long_query_need_little_memory(monkeypatch):
    peak = 0

    def watched(begins, counts):
        nonlocal peak
        peak = max(peak, int(counts.sum()))
        return segments.partners(begins, counts)

    for module in (pairs, smooth, tiers):
        monkeypatch.setattr(module, "partners", watched)
    offsets, ratings, scores = draw([3000], 3, seed=15)
    for name in ("approxndcg", "lambdaloss", "ranknet", "windowed_urank"):
        evaluate(name, offsets, ratings, scores, torch.float32)
    assert 0 < peak <= segments._PAIRS


# Losses of tensors


def draw_padded(seed, dtype=torch.float64):
    """Scores, ratings and a mask, with padding at random places that is not a number; row 2 is padding alone."""
    rng = np.random.default_rng(seed)
    mask = torch.from_numpy(rng.random((6, 9)) < 0.6)
    mask[2], mask[3], mask[4, 1:] = False, True, False
    scores, ratings = tensor(rng.normal(size=mask.shape), dtype=dtype), tensor(rng.integers(0, 4, mask.shape))
    ratings[~mask] = torch.from_numpy(rng.choice([-1, math.nan, math.inf, 3], int((~mask).sum())))
    return torch.where(mask, scores, math.nan).requires_grad_(), ratings, mask


def settings_of(name, seed, shape):
    """Further arguments: weights where the loss has them, row weights that all can take, a generator."""
    rng = np.random.default_rng(seed)
    settings = {"row_weight": rng.integers(0, 3, shape), "generator": torch.Generator().manual_seed(seed)}
    if "weights" not in LOSSES[name].without:
        settings["weights"] = rng.uniform(0.5, 2, shape)
    if "gain" not in LOSSES[name].without:
        settings["gain"] = "linear"
    return settings


def ragged(name, scores, ratings, mask, **settings):
    """The values of the rows that have documents, and the gradient of their sum, from a ragged batch."""
    rows = [row for row in range(len(scores)) if mask[row].any()]
    offsets = [0, *np.cumsum([int(mask[row].sum()) for row in rows])]
    of_rows = {one: value[mask.numpy()] for one, value in settings.items() if one in ("weights", "row_weight")}
    leaf = scores.detach()[mask].requires_grad_()
    values = LOSSES[name](leaf, Batch(offsets, ratings[mask], dtype=leaf.dtype, **settings | of_rows))
    values.sum().backward()
    gradient = torch.zeros(mask.shape, dtype=leaf.dtype)
    gradient[mask] = leaf.grad
    return rows, values.detach(), gradient


@names
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("more", [False, True])
def test_padded_and_flat_tensors_equal_the_ragged_batch(name, seed, more):
    scores, ratings, mask = draw_padded(seed)

    def settings():
        return settings_of(name, seed, mask.shape) if more else {}

    rows, values, gradient = ragged(name, scores, ratings, mask, **settings())
    loss = LOSSES[name]
    got = loss(scores, ratings, mask=mask, reduction="none", **settings())
    assert got.shape == (6,)
    assert torch.equal(got[rows], values)
    assert got[2] == 0
    for reduction, divisor in (("sum", 1), ("mean", len(rows))):
        (slope,) = torch.autograd.grad(loss(scores, ratings, mask=mask, reduction=reduction, **settings()), scores)
        torch.testing.assert_close(slope, gradient / divisor, rtol=1e-12, atol=1e-15)

    # Flat, in any order; ties keep the order of the rows, so documents of a query do not pass each other.
    rng = np.random.default_rng(seed)
    query = np.repeat(np.arange(6), 9)[mask.flatten().numpy()]
    order = np.empty(len(query), int)
    order[rng.permutation(query).argsort(kind="stable")] = np.arange(len(query))
    places = mask.flatten().nonzero().squeeze(1)[order]
    flat = scores.detach().flatten()[places].requires_grad_()
    of_rows = {
        one: value.reshape(-1)[places] if isinstance(value, np.ndarray) else value for one, value in settings().items()
    }
    ids = query[order]
    seen = list(dict.fromkeys(ids.tolist()))
    if "generator" not in of_rows:  # whose draws depend on the order of the queries
        got = loss(flat, ratings.flatten()[places], qid=torch.from_numpy(ids), reduction="none", **of_rows)
        torch.testing.assert_close(got.detach(), values[[rows.index(q) for q in seen]], rtol=1e-12, atol=1e-15)
        (slope,) = torch.autograd.grad(got.sum(), flat)
        torch.testing.assert_close(slope, gradient.flatten()[places], rtol=1e-9, atol=1e-12)
        named = loss(flat, ratings.flatten()[places], qid=[f"query {q}" for q in ids], reduction="none")
        assert torch.equal(named, got)


@names
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_scores_of_less_precision_are_computed_in_single_precision(name, dtype):
    scores, ratings, mask = draw_padded(5, dtype)
    value = LOSSES[name](scores, ratings, mask=mask)
    value.backward()
    wide = scores.detach().float().requires_grad_()
    expected = LOSSES[name](wide, ratings, mask=mask)
    expected.backward()
    assert (value.dtype, scores.grad.dtype) == (torch.float32, dtype)
    assert torch.equal(value, expected)
    assert torch.equal(scores.grad, wide.grad.to(dtype))
    flat = scores.detach()[mask]
    of_batch = LOSSES[name](flat, Batch([0, len(flat)], ratings[mask]))  # a batch of single precision
    assert torch.equal(of_batch, LOSSES[name](flat.float(), Batch([0, len(flat)], ratings[mask])))


@names
def test_the_defaults_of_a_program_change_no_loss(name):
    scores, ratings, mask = draw_padded(6, torch.float32)
    expected = LOSSES[name](scores, ratings, mask=mask)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            assert torch.equal(LOSSES[name](scores, ratings, mask=mask), expected)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(LOSSES[name](scores, ratings, mask=mask), expected)


@names
def test_batches_without_documents_have_no_loss(name):
    scores = torch.randn(3, 4, requires_grad=True)
    value = LOSSES[name](scores, torch.zeros(3, 4), mask=torch.zeros(3, 4, dtype=torch.bool))
    value.backward()
    assert value == 0
    assert (scores.grad == 0).all()


def test_a_matrix_without_a_mask_has_full_rows_and_a_flat_tensor_without_ids_is_one_query():
    scores, ratings = torch.randn(3, 5), torch.tensor([[0, 1, 2, 0, 1]] * 3)
    values = urank(scores, ratings, reduction="none")
    for row in range(3):
        assert torch.equal(urank(scores[row], ratings[row]), values[row])
        assert torch.equal(urank(scores[row], Batch([0, 5], ratings[row]))[0], values[row])
    assert urank(scores, ratings) == values.mean()


MASK_THEM = "leave out padding, and documents without a rating, by `mask`"


@pytest.mark.parametrize(
    ("arguments", "settings", "argument", "fix"),
    [
        ((torch.zeros(2, 3, 1), torch.zeros(2, 3, 1)), {}, "scores", "use scores.squeeze(-1)"),
        ((torch.zeros(6, 1), torch.zeros(6, 1)), {}, "scores", "use scores.squeeze(-1)"),
        ((torch.zeros(6, 1), torch.zeros(6)), {"qid": torch.zeros(6)}, "scores", "use scores.squeeze(-1)"),
        ((torch.zeros(2, 3), torch.zeros(2, 3)), {"qid": [0, 1]}, "scores", "leave out `qid`: each row is a query"),
        ((torch.zeros(()), torch.zeros(())), {}, "scores", None),
        ((torch.zeros(2, 3).long(), torch.zeros(2, 3)), {}, "scores", None),
        (([0.0, 1.0], [0, 1]), {}, "scores", None),
        ((torch.zeros(2, 3), torch.zeros(3)), {}, "ratings", None),
        ((torch.zeros(2, 3), None), {}, "ratings", None),
        ((torch.zeros(4), torch.zeros(4)), {"qid": [1, 2]}, "qid", None),
        ((torch.zeros(2, 3), torch.zeros(2, 3)), {"weights": torch.ones(2)}, "weights", None),
        ((torch.zeros(2, 3), torch.zeros(2, 3)), {"mask": torch.ones(2, 3).int()}, "mask", "use mask.bool()"),
        ((torch.zeros(2, 3), torch.zeros(2, 3)), {"mask": torch.ones(3).bool()}, "mask", None),
        ((torch.zeros(2), torch.zeros(2) - 1), {}, "ratings", MASK_THEM),
        ((torch.zeros(2), torch.zeros(2) * math.nan), {}, "ratings", MASK_THEM),
    ],
)  # fmt: skip
def test_tensors_that_are_no_lists_are_refused(arguments, settings, argument, fix):
    with pytest.raises(DataError, match="expected") as raised:
        urank(*arguments, **settings)
    assert (raised.value.argument, raised.value.fix) == (argument, fix)


def test_arguments_that_mean_nothing_to_a_loss_are_refused():
    scores, ratings = torch.zeros(2, 3), torch.zeros(2, 3)
    with pytest.raises(ParameterError, match="unknown argument of urank 'masks': did you mean 'mask'") as raised:
        urank(scores, ratings, masks=None)
    assert "reduction" in raised.value.known
    with pytest.raises(ParameterError, match="unknown reduction 'avg': Known: mean, none, sum"):
        urank(scores, ratings, reduction="avg")
    with pytest.raises(ParameterError, match="unknown argument of listnet 'gain'"):
        losses.listnet(scores, ratings, gain="linear")
    with pytest.raises(ParameterError, match="None with a Batch, which has its own") as raised:
        urank(torch.zeros(2), Batch([0, 2], [0, 1]), mask=torch.ones(2).bool())
    assert raised.value.argument == "mask"


@names
def test_help_and_pickles_of_losses(name):
    parameters = inspect.signature(LOSSES[name]).parameters
    assert list(parameters)[:2] == ["scores", "ratings"]
    assert {"qid", "mask", "reduction", "row_weight"} < set(parameters)
    assert parameters["reduction"].default == "mean"
    assert pickle.loads(pickle.dumps(LOSSES[name])) is LOSSES[name]


def test_a_loss_of_ten_lines():
    """What a user writes: any function of scores and batch that returns one value per query."""

    def spread(scores, batch):
        error = (scores - batch.gains).square()
        return torch.zeros(batch.n_queries).index_add(0, batch.query, error) / batch.lengths

    assert spread(torch.zeros(3), Batch([0, 2, 3], [1, 0, 2])).tolist() == [0.5, 9.0]
