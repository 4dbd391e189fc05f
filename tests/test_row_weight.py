"""Row weights of networks: a row of weight 2 is the row twice, or what is defined where it is not."""

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from running import examples

import tierank
from tierank import RANKERS, MDPRank, NetworkRanker, RankingDataset, UBoost, URank, UrBoost
from tierank.cli import main
from tierank.data.relevance import ideal_dcg, ideal_dcg_of_copies
from tierank.errors import DataError, ParameterError
from tierank.losses import LOSSES, WITH_WEIGHTS, Batch, stepwise_urank
from tierank.losses.policy import policy_gradient
from tierank.networks import TierRNN
from tierank.rankers.boosted import find_residuals
from tierank.rankers.model import Resources
from tierank.rankers.network_scoring import QueryLists
from tierank.transforms import make_transform

# Losses in which copies of a row cannot be told from a row that weighs as much; the other two put them into an order.
NO_COPIES = ("listmle", "plistmle")
OF_COPIES = sorted(set(LOSSES) - set(NO_COPIES))
# One window, in which windows of copies and of rows are the same.
SETTINGS = {"windowed_urank": {"window": 10**6}}
QUICK = {**URank.PRESETS["plain-inputs"], "max_epochs": 3, "hidden": (6,), "n_jobs": 1}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def evaluate(loss, offsets, ratings, scores, **batch):
    """Values, and the gradient of each value with respect to its scores."""
    leaf = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    values = loss(leaf, Batch(offsets, ratings, dtype=torch.float64, **batch))
    values.sum().backward()
    return values.detach().numpy(), leaf.grad.numpy()


def repeat(offsets, counts, *arrays):
    """The rows as often as they count, without queries of which nothing is left, and the queries that are left."""
    query = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    lengths = np.bincount(query, counts, minlength=len(offsets) - 1).astype(int)
    kept = lengths > 0
    return np.r_[0, lengths[kept].cumsum()], kept, *(np.repeat(array, counts) for array in arrays)


@st.composite
def weighted_lists(draw):
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    n = sum(lengths)
    ratings = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    scores = draw(st.lists(st.integers(-30, 30), min_size=n, max_size=n))  # also equal ones
    counts = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    weights = draw(st.none() | st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=n, max_size=n))
    return np.r_[0, np.cumsum(lengths)], np.array(ratings, float), np.array(scores) / 10, np.array(counts), weights


@pytest.mark.parametrize("name", OF_COPIES)
@examples(40)
@given(weighted_lists())
@example((np.array([0, 3]), np.array([0.0, 1.0, 2.0]), np.zeros(3), np.array([0, 1, 2]), None))
@example((np.array([0, 2, 3]), np.array([1.0, 0.0, 1.0]), np.ones(3), np.array([0, 0, 0]), None))
def test_a_row_of_weight_2_is_the_row_twice(name, lists):
    offsets, ratings, scores, counts, weights = lists
    if LOSSES[name] not in WITH_WEIGHTS:
        weights = None
    weights = np.ones(len(ratings)) if weights is None else np.array(weights)
    given = {} if (weights == 1).all() else {"weights": weights}

    def loss(scores, batch):
        return LOSSES[name](scores, batch, **SETTINGS.get(name, {}))

    values, gradient = evaluate(loss, offsets, ratings, scores, row_weight=counts, **given)
    assert np.isfinite(values).all()
    assert (gradient[counts == 0] == 0).all()
    repeated, kept, *of_rows, copies, rows = repeat(offsets, counts, ratings, scores, weights, np.arange(len(ratings)))
    expected, slopes = np.zeros(len(values)), np.zeros(len(scores))
    if kept.any():
        given = given and {"weights": copies}
        expected[kept], slopes_of_copies = evaluate(loss, repeated, *of_rows, **given)
        np.add.at(slopes, rows, slopes_of_copies)
    np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-7, atol=1e-10)


def listmle_by_hand(ratings, scores, counts, place_weight):
    """Rows by rating, ties in the order of the rows, without those of weight 0."""
    order = sorted((d for d in range(len(ratings)) if counts[d]), key=lambda d: (-ratings[d], d))
    total = 0.0
    for i, d in enumerate(order, 1):
        left = math.exp(scores[d]) + sum(counts[e] * math.exp(scores[e]) for e in order[i:])
        total += place_weight(i, len(order)) * counts[d] * math.log(left / math.exp(scores[d]))
    return total


@pytest.mark.parametrize(
    ("name", "place_weight"),
    [("listmle", lambda i, n: 1.0), ("plistmle", lambda i, n: (2.0 ** (n - i) - 1) / (2.0 ** (n - 1) - 1))],
)
@pytest.mark.parametrize("counts", [[1, 2, 3, 0.5, 4], [0.25, 0, 2, 1, 0], [1, 0, 0, 3, 0]])
def test_copies_share_a_place_in_likelihoods_of_an_order(name, place_weight, counts):
    ratings, scores = [1, 3, 1, 0, 2], [0.4, -0.3, 1.2, 0.1, 0.0]
    values, gradient = evaluate(LOSSES[name], [0, 5], ratings, scores, row_weight=counts)
    assert values[0] == pytest.approx(listmle_by_hand(ratings, scores, counts, place_weight), rel=1e-12)
    assert (gradient[np.array(counts) == 0] == 0).all()
    leaf = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    batch = Batch([0, 5], ratings, row_weight=counts, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda scores: LOSSES[name](scores, batch), leaf)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_weights_of_one_change_no_bit(name):
    rng = np.random.default_rng(1)
    ratings, scores = rng.integers(0, 4, 30), rng.normal(size=30)
    plain = evaluate(LOSSES[name], [0, 12, 30], ratings, scores)
    ones = evaluate(LOSSES[name], [0, 12, 30], ratings, scores, row_weight=np.ones(30))
    for got, expected in zip(ones, plain, strict=True):
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"neuralndcg"}))
def test_fractions_of_rows(name):
    # Gradients are those of the values, values are continuous in the weights, and other queries change nothing.
    rng = np.random.default_rng(2)
    offsets = np.array([0, 5, 11])
    ratings, scores, counts = rng.integers(0, 4, 11), rng.normal(size=11), rng.choice([0, 0.3, 1.7, 2.5], 11)
    ratings[[0, 1, 5, 6]], counts[[0, 1, 5, 6]] = [0, 1, 0, 2], [0.3, 1.7, 2.5, 1.0]
    if name not in ("lambdaloss", "lambdarank", "windowed_urank"):  # ranks are taken as given
        leaf = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
        batch = Batch(offsets, ratings, row_weight=counts, dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda scores: LOSSES[name](scores, batch), leaf)
    values, gradient = evaluate(LOSSES[name], offsets, ratings, scores, row_weight=counts)
    assert (values >= 0).all()
    near, _ = evaluate(LOSSES[name], offsets, ratings, scores, row_weight=counts * (1 + 1e-9))
    np.testing.assert_allclose(near, values, rtol=1e-6)
    if name not in ("plistmle", "windowed_urank"):  # in which rows that count a little take whole places
        near, _ = evaluate(LOSSES[name], offsets, ratings, scores, row_weight=np.maximum(counts, 1e-9))
        if not np.array_equal(Batch(offsets, ratings, row_weight=counts).n_tiers, Batch(offsets, ratings).n_tiers):
            near = values
        np.testing.assert_allclose(near, values, rtol=1e-6)
    for q, (a, b) in enumerate(pairwise(offsets)):
        rows = slice(a, b)
        alone, slopes = evaluate(LOSSES[name], [0, b - a], ratings[rows], scores[rows], row_weight=counts[rows])
        np.testing.assert_allclose(alone, values[q : q + 1], rtol=1e-9)
        np.testing.assert_allclose(slopes, gradient[rows], rtol=1e-7, atol=1e-12)


def test_worked_by_hand():
    # Ratings 2, 1, 0 of weights 2, 0.5, 3 and scores ln 2, ln 3, ln 5.
    scores, counts = np.log([2, 3, 5]), [2, 0.5, 3]
    value, _ = evaluate(LOSSES["urank"], [0, 3], [2, 1, 0], scores, row_weight=counts)
    expected = (2 * 3 * math.log(1 + (0.5 * 3 + 3 * 5) / 2) + 0.5 * math.log(1 + 3 * 5 / 3)) / 2
    assert value[0] == pytest.approx(expected, rel=1e-14)
    value, _ = evaluate(LOSSES["ranknet"], [0, 3], [2, 1, 0], scores, row_weight=counts)
    pairs = {(2, 3): 2 * 0.5, (2, 5): 2 * 3, (3, 5): 0.5 * 3}
    expected = sum(n * math.log(1 + low / high) for (high, low), n in pairs.items()) / sum(pairs.values())
    assert value[0] == pytest.approx(expected, rel=1e-14)
    value, _ = evaluate(LOSSES["softmax"], [0, 3], [2, 1, 0], scores, row_weight=counts)
    total = 2 * 2 + 0.5 * 3 + 3 * 5
    expected = (2 * 3 * math.log(total / 2) + 0.5 * math.log(total / 3)) / (2 * 3 + 0.5)
    assert value[0] == pytest.approx(expected, rel=1e-14)


def test_windows_hold_rows():
    # Below the first, by score: weights 5, 0 (which takes no place), 1, 2 in windows of two rows.
    ratings, scores, counts = [1, 0, 0, 0, 0], [0.0, 4.0, 3.0, 2.0, 1.0], [3, 5, 0, 1, 2]
    loss = LOSSES["windowed_urank"]
    value, _ = evaluate(lambda *given: loss(*given, window=2), [0, 5], ratings, scores, row_weight=counts)
    windows = [5 * math.exp(4) + math.exp(2), 2 * math.exp(1)]
    assert value[0] == pytest.approx(3 * sum(math.log(1 + k) for k in windows), rel=1e-14)


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=8))
def test_ideal_dcg_of_copies(rows):
    gains, counts = np.array(list(zip(*rows, strict=True)), float)
    if not counts.any():
        return
    copies = np.repeat(gains, counts.astype(int))
    expected = ideal_dcg(copies, np.array([0, len(copies)]))
    np.testing.assert_allclose(ideal_dcg_of_copies(gains, counts, np.array([0, len(gains)])), expected, rtol=1e-12)


@examples(40)
@given(weighted_lists(), st.sampled_from(["max", "mean"]))
def test_steps_of_urboost_select_copies(lists, pooling):
    offsets, ratings, _, counts, _ = lists
    features = torch.tensor(np.random.default_rng(3).normal(size=(len(ratings), 2)), dtype=torch.float64)
    network = TierRNN(2, hidden=(3,), pooling=pooling, seed=1).double()

    def value(offsets, rows, ratings, **given):
        batch = Batch(offsets, ratings, dtype=torch.float64, **given)
        return stepwise_urank(network.step_scores(features[rows], batch), batch).detach().numpy()

    values = value(offsets, np.arange(len(ratings)), ratings, row_weight=counts)
    repeated, kept, rows = repeat(offsets, counts, np.arange(len(ratings)))
    expected = np.zeros(len(values))
    if kept.any():
        expected[kept] = value(repeated, rows, ratings[rows])
    np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-12)


def test_steps_with_windows():
    ratings, counts = [2, 1, 0, 0, 0], [2.0, 1.0, 0.0, 0.5, 3.0]
    batch = Batch([0, 5], ratings, row_weight=counts, dtype=torch.float64)
    steps = [torch.tensor([0.1, 0.7, 9.0, 0.3, 0.2]), torch.tensor([0.5, 9.0, 0.4, 0.6])]
    got = stepwise_urank([scores.double() for scores in steps], batch, window=1).item()
    below_first = math.log(1 + math.exp(0.6)) + math.log(1 + 0.5 * math.exp(0.2)) + math.log(1 + 3 * math.exp(0.1))
    below_second = math.log(1 + 0.5 * math.exp(-0.1)) + math.log(1 + 3 * math.exp(0.1))
    assert got == pytest.approx((2 * 3 * below_first + below_second) / 2, rel=1e-6)


def test_rankings_are_drawn_of_copies():
    ratings, scores, counts = [1, 0, 2], [0.3, -0.2, 0.5], [2, 0, 1]
    drawn = policy_gradient(
        torch.tensor(scores, requires_grad=True),
        Batch([0, 3], ratings, row_weight=counts, generator=torch.Generator().manual_seed(5)),
    )
    expected = policy_gradient(
        torch.tensor([0.3, 0.3, 0.5], requires_grad=True),
        Batch([0, 3], [1, 1, 2], generator=torch.Generator().manual_seed(5)),
    )
    assert drawn.item() == expected.item()


@pytest.mark.parametrize("loss", [LOSSES["neuralndcg"], policy_gradient])
def test_ranks_hold_whole_documents(loss):
    batch = Batch([0, 2], [1, 0], row_weight=[1, 0.5], generator=torch.Generator())
    with pytest.raises(ParameterError, match=r"row_weight: expected integers with \w+, which ranks whole docum.* 0\.5"):
        loss(torch.zeros(2), batch)


@pytest.mark.parametrize("loss", [LOSSES["lambdarank"], LOSSES["neuralndcg"], policy_gradient])
def test_too_many_copies_to_be_numbered(loss):
    for weight, got in ((1e6, r"3e\+06"), (1e15, r"3e\+15")):
        batch = Batch([0, 2], [1, 0], row_weight=[weight, 2 * weight], generator=torch.Generator())
        with pytest.raises(ParameterError, match=f"row_weight: expected a sum of up to 1,048,576 in each q.*got {got}"):
            loss(torch.zeros(2), batch)


def test_weights_of_other_losses_are_no_copies():
    with pytest.raises(DataError, match="row_weight: expected finite weights that are not negative"):
        Batch([0, 2], [1, 0], row_weight=[1, -1])
    assert LOSSES["urank"](torch.zeros(2), Batch([0, 2], [1, 0], row_weight=[1e6, 2e6])).item() > 1e6


# Rankers


def centred(scores):
    """A constant that is added to all scores drifts by rounding."""
    return scores - scores.mean()


def lists_and_copies(seed=0):
    """Data with row weights of 1 to 3, and the same with rows repeated."""
    data = tierank.make_ranking(12, n_features=4, mean_length=8, max_length=14, seed=seed)
    times = np.random.default_rng(seed).integers(1, 4, data.n_documents)
    queries = np.repeat(np.arange(data.n_queries), data.lengths)
    weighted = RankingDataset(data.features, data.ratings, qid=queries, row_weight=times)
    return weighted, RankingDataset(*(np.repeat(a, times, 0) for a in (data.features, data.ratings, queries)))


NEURAL = sorted(name for name, kind in RANKERS.items() if kind.PRESETS and "paper-ohsumed" in kind.PRESETS)
NEURAL = [name for name in NEURAL if hasattr(RANKERS[name](), "queries_per_step")]


@pytest.mark.parametrize("name", [n for n in NEURAL if n not in ("listmle", "plistmle", "mdprank")])
def test_rankers_learn_the_same_from_weights_and_copies(name):
    weighted, copies = lists_and_copies()
    # One step an epoch: the order of queries does not matter, nor that contents differ.
    ranker = RANKERS[name](**QUICK, queries_per_step=100, learning_rate=0.01)
    expected, got, plain = (
        centred(ranker.fit(data).predict(weighted)) for data in (copies, weighted, weighted.replace(row_weight=None))
    )
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert np.abs(got - plain).max() > 5e-4


@pytest.mark.parametrize("name", NEURAL)
def test_all_neural_rankers_take_row_weights(name):
    weighted, _ = lists_and_copies(1)
    ranker = RANKERS[name](**QUICK).fit(weighted)
    assert np.isfinite(ranker.predict(weighted)).all()
    order = np.random.default_rng(0).permutation(weighted.n_documents)
    queries = np.repeat(np.arange(weighted.n_queries), weighted.lengths)
    given = weighted.features[order], weighted.ratings[order]
    again = RANKERS[name](**QUICK).fit(*given, qid=queries[order], row_weight=weighted.row_weight[order])
    np.testing.assert_array_equal(again.predict(weighted), ranker.predict(weighted))


def test_a_row_of_weight_0_teaches_nothing():
    weighted, _ = lists_and_copies(2)
    weight = weighted.row_weight.copy()
    weight[3] = 0
    ratings = weighted.ratings.copy()
    silent = weighted.replace(row_weight=weight)
    ratings[3] += 1
    # Neither its rating nor, in the list that features are scaled by, its absence.
    for kind in (URank, UBoost, UrBoost):
        ranker = kind(**QUICK, queries_per_step=100)
        expected = ranker.fit(silent).predict(weighted)
        changed = RankingDataset.from_parts(
            weighted.features, ratings, weighted.offsets, weighted.query_ids, row_weight=weight
        )
        np.testing.assert_allclose(centred(ranker.fit(changed).predict(weighted)), centred(expected), atol=1e-5)


def test_residuals_are_those_of_a_copy():
    weighted, copies = lists_and_copies(3)
    scores = np.random.default_rng(0).normal(size=weighted.n_documents)
    of_copies = np.repeat(scores, weighted.row_weight.astype(int))

    def residuals(data, scores):
        lists = QueryLists(data, make_transform("none"), True, "exp2", Resources(1, "cpu"))
        found = np.empty(len(scores))
        found[lists.order] = find_residuals(scores, lists).numpy()
        return found

    got = np.repeat(residuals(weighted, scores), weighted.row_weight.astype(int))
    np.testing.assert_allclose(got, residuals(copies, of_copies), rtol=1e-5, atol=1e-6)


def test_own_losses_read_row_weights_or_are_refused():
    weighted, _ = lists_and_copies(4)

    def squares(scores, batch):
        return torch.zeros(batch.n_queries).index_add(0, batch.query, (scores - batch.gains) ** 2)

    def counted(scores, batch):
        return torch.zeros(batch.n_queries).index_add(0, batch.query, batch.counted((scores - batch.gains) ** 2))

    with pytest.raises(
        ParameterError, match=r"row_weight: expected a loss that reads batch.row_weight, got one that does not"
    ):
        NetworkRanker(squares, **QUICK).fit(weighted)
    for loss in (counted, lambda scores, batch: 2 * LOSSES["urank"](scores, batch)):
        assert np.isfinite(NetworkRanker(loss, **QUICK).fit(weighted).predict(weighted)).all()


def test_mdprank_takes_integers():
    weighted, _ = lists_and_copies(5)
    with pytest.raises(ParameterError, match="row_weight: expected integers with MDPRank"):
        MDPRank(**QUICK).fit(weighted.replace(row_weight=weighted.row_weight / 2))


@pytest.mark.parametrize("column", ["row_weight", "views"])
def test_a_table_with_weights_on_the_command_line(column, tmp_path):
    weighted, _ = lists_and_copies(6)
    rows = np.c_[weighted.features, weighted.ratings, weighted.query_of_row, weighted.row_weight]
    names = f"a,b,c,d,rating,query,{column}"
    named = {} if column == "row_weight" else {"row_weight": column}
    np.savetxt(tmp_path / "train.csv", rows, delimiter=",", header=names, comments="", fmt="%.9g")
    where = ["--train", str(tmp_path / "train.csv"), "--out", str(tmp_path / "model")]
    where += [f"--row-weight-column={name}" for name in named.values()]
    assert main(["train", "urank", *where, "--set", "max_epochs=2", "--quiet"]) == 0
    loaded = tierank.load(tmp_path / "model")
    data = tierank.read(tmp_path / "train.csv", **named)
    assert data.feature_names == ("a", "b", "c", "d")
    assert data.row_weight.tolist() == weighted.row_weight.tolist()
    again = URank(**loaded.get_params()).fit(data)
    np.testing.assert_array_equal(again.predict(data), loaded.predict(data))
    plain = URank(**loaded.get_params()).fit(data.replace(row_weight=None))
    assert not np.array_equal(plain.predict(data), loaded.predict(data))


def test_columns_of_weights_have_any_name_in_every_form(tmp_path):
    table = pd.DataFrame({"qid": [1, 1, 2], "rating": [0, 1, 2], "x": [1.0, 2, 3], "n": [1, 2, 3], "m": [5, 5, 7]})
    table.to_csv(tmp_path / "x.csv", index=False)
    table.to_parquet(tmp_path / "x.parquet", index=False)
    for source in (table, tmp_path / "x.csv", tmp_path / "x.parquet"):
        data = tierank.read(source, row_weight="n", query_weight="m")
        assert data.feature_names == ("x",)
        assert data.row_weight.tolist() == [1, 2, 3]
        assert data.query_weight.tolist() == [5, 7]
    tierank.write(data, tmp_path / "x.tierank")
    assert tierank.read(tmp_path / "x.tierank", row_weight="n").row_weight.tolist() == [1, 2, 3]
    with pytest.raises(DataError, match="unknown column 'k'"):
        tierank.read(table, row_weight="k")
    tierank.write(data.replace(row_weight=None, query_weight=None), tmp_path / "plain.tierank")
    tierank.write(data.replace(row_weight=None, query_weight=None), tmp_path / "plain.txt")
    with pytest.raises(DataError, match="query_weight: expected data that hold query weights, got none"):
        tierank.read(tmp_path / "plain.tierank", query_weight="m")
    with pytest.raises(DataError, match=r"plain.txt: row_weight: expected a table with such a column, CSV or Parquet"):
        tierank.read(tmp_path / "plain.txt", row_weight="n")
