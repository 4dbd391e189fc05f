"""Trees that follow a loss: gradient, the estimate of the hessian, ``check_gradient`` and ``TreeRanker``."""

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

import tierank
from tierank import LOSSES, DataError, ParameterError, TreeRanker, UMart, check_gradient
from tierank.losses import Batch, LossObjective, UMartObjective, custom, derivatives

QUICK = {"n_trees": 25, "min_documents": 5, "n_jobs": 1}
# No entry of their hessian beside the diagonal is positive.
COMPETING = ["urank", "listnet", "listmle", "plistmle", "softmax"]


@pytest.fixture(scope="module")
def parts():
    return tierank.make_ranking(100, n_features=8, mean_length=20, max_length=50, seed=7).split(0.5, 0.25, 0.25)


def sums(values, batch):
    return torch.zeros(batch.n_queries).index_add(0, batch.query, values)


def squares(scores, batch):
    return sums((scores - batch.gains) ** 2, batch)


def hinge(scores, batch):
    """Documents of the highest tier above 1, all others below -1: bends nowhere but at two points."""
    return sums(torch.relu(1 - torch.where(batch.tiers == 0, scores, -scores)), batch)


def diagonal(loss, ratings, scores):
    """The diagonal of the hessian of one query, in double precision."""
    batch = Batch([0, len(ratings)], ratings, dtype=torch.float64)
    full = torch.autograd.functional.hessian(lambda f: loss(f, batch).sum(), torch.tensor(scores, dtype=torch.float64))
    return full.diagonal().numpy()


def estimates(loss, ratings, scores):
    """What every balanced choice of signs gives."""
    n = len(ratings)
    batch = Batch([0, n], ratings)
    for signs in itertools.product([-1.0, 1.0], repeat=n):
        if abs(sum(signs)) <= n % 2:
            at = derivatives.Point(loss, torch.tensor(scores, dtype=torch.float32), batch, 0)
            yield at.hessian(torch.tensor(signs)).numpy()


def test_the_gradient_of_urank_is_that_of_the_kernel(parts):
    """The loss by torch and the pairs by numba have nothing in common but the mathematics."""
    train = parts[0]
    scores = np.random.default_rng(0).normal(size=train.n_documents)
    ours = LossObjective("urank").prepare(train.ratings, train.offsets).gradients(scores)[0]
    kernel = UMartObjective(window=None, weights="gain", sigma=1.0).prepare(train.ratings, train.offsets)
    np.testing.assert_allclose(ours, kernel.gradients(scores)[0], rtol=1e-4, atol=1e-5)


def test_softmax_by_hand():
    # p = 1/3 each, target (1, 0, 0): gradient p - t, diagonal p (1 - p) = 2/9, off the diagonal -1/9. Signs (+, +, -)
    # give z (H z) = 2/9 - 1/9 + 1/9, the same, 2/9 + 2/9; the others alike. The gradient / 4 is below all of them.
    objective = LossObjective("softmax").prepare([1, 0, 0], [0, 3])
    gradient, hessian = objective.gradients([0.0, 0.0, 0.0])
    np.testing.assert_allclose(gradient, [-2 / 3, 1 / 3, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(sorted(hessian), [2 / 9, 2 / 9, 4 / 9], rtol=1e-6)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("name", COMPETING)
def test_the_mean_over_all_signs_is_the_diagonal_times_a_factor(name, n):
    rng = np.random.default_rng(n)
    # without ties, which listmle shuffles
    ratings, scores = np.arange(float(n)), rng.normal(size=n).astype(np.float32)
    expected = diagonal(LOSSES[name], ratings, scores)
    found = np.array(list(estimates(LOSSES[name], ratings, scores)))
    half = math.ceil(n / 2)
    np.testing.assert_allclose(found.mean(axis=0), expected * 2 * half / (2 * half - 1), rtol=2e-4, atol=1e-5)
    assert (found >= -1e-5).all()
    assert (found <= 2 * expected + 1e-4).all()


def test_documents_that_do_not_meet_have_their_own_curvature():
    for found in estimates(squares, [2.0, 1.0, 0.0], [0.3, 0.1, -2.0]):
        np.testing.assert_allclose(found, [2, 2, 2])


def test_a_loss_that_cannot_be_differentiated_twice_is_compared_half_a_step_to_each_side():
    # One pair, f = 0: the derivative of d is -1 / (1 + e^x), x the distance. Signs (1, -1): x = 1 and x = -1.
    step = 1 / (1 + math.exp(-1)) - 1 / (1 + math.exp(1))
    for found in estimates(LOSSES["ranknet"], [1.0, 0.0], [0.0, 0.0]):
        np.testing.assert_allclose(found, [step, step], rtol=1e-5)
    gradient, hessian = LossObjective(hinge).prepare([1, 0], [0, 2]).gradients([0.7, 3.0])
    assert gradient.tolist() == [-1, 1]
    # The first one bends between 0.2 and 1.2, by 1; the other nowhere near: no step longer than 4.
    assert hessian.tolist() == [1, 0.25]


def test_a_function_that_knows_its_hessian_is_asked(parts):
    def known(scores, batch, *, factor=1.0):
        return factor * squares(scores, batch)

    known.hessian = lambda scores, batch, *, factor=1.0: factor * torch.full_like(scores, 7.0)
    _, hessian = LossObjective(known, factor=3.0).prepare([1, 0], [0, 2]).gradients([0.0, 0.5])
    assert hessian.tolist() == [21, 21]
    known.hessian = lambda scores, batch: torch.ones(3)
    with pytest.raises(ParameterError, match=r"hessian: expected one value per document, 2 here, got shape \(3,\)"):
        LossObjective(known).prepare([1, 0], [0, 2]).gradients([0.0, 0.5])


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_at_any_scores(name):
    rng = np.random.default_rng(1)
    ratings, offsets = rng.integers(0, 4, 30).astype(float), [0, 1, 8, 30]
    for scores in (np.zeros(30), rng.normal(size=30), rng.normal(size=30) * 1e4):
        gradient, hessian = LossObjective(name, n_jobs=1).prepare(ratings, offsets).gradients(scores)
        assert np.isfinite(gradient).all()
        assert np.isfinite(hessian).all()
        assert (hessian >= np.abs(gradient) / 4).all()
    assert gradient[0] == 0  # a document alone


def test_parts_and_weights_change_nothing_else(parts, monkeypatch):
    train = parts[0]
    scores = np.random.default_rng(2).normal(size=train.n_documents)
    whole = LossObjective("listnet").prepare(train.ratings, train.offsets).gradients(scores)
    monkeypatch.setattr(custom, "_DOCUMENTS_AT_ONCE", 64)
    cut = LossObjective("listnet").prepare(train.ratings, train.offsets)
    assert len(cut._data) > 5
    for one, other in zip(cut.gradients(scores), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    weight = np.random.default_rng(3).uniform(0, 2, train.n_queries)
    weighted = LossObjective("listnet").prepare(train.ratings, train.offsets, query_weight=weight).gradients(scores)
    for one, other in zip(weighted, whole, strict=True):
        np.testing.assert_allclose(one, other * np.repeat(weight, train.lengths), rtol=1e-4, atol=1e-6)


# The ranker


@pytest.mark.parametrize("loss", ["urank", "softmax", "lambdarank", "listmle", squares, hinge])
def test_learns(loss, parts):
    train, valid, test = parts
    ranker = TreeRanker(loss=loss, **QUICK).fit(train, valid=valid)
    chance = tierank.evaluate(test, np.random.default_rng(0).random(test.n_documents), "ndcg@10").mean("ndcg@10")
    assert ranker.score(test) > chance + 0.08


def test_following_urank_is_like_umart_with_its_exact_hessian(parts):
    """The same gradients, and a hessian that is the same on average: the models agree."""
    train, valid, test = parts
    exact = UMart(window=None, weights="gain", sigma=1.0, hessian="exact", learning_rate=0.05, **QUICK)
    ours = TreeRanker(loss="urank", **QUICK).fit(train, valid=valid).predict(test)
    assert np.corrcoef(ours, exact.fit(train, valid=valid).predict(test))[0, 1] > 0.9


@pytest.mark.parametrize("loss", ["listmle", "lambdarank", squares])
def test_same_bits_for_rows_in_any_order(loss, parts):
    train, _, test = parts
    expected = TreeRanker(loss=loss, **QUICK).fit(train).predict(test)
    order = np.random.default_rng(1).permutation(train.n_documents)
    qid = np.repeat(train.query_ids, train.lengths)
    moved = TreeRanker(loss=loss, **QUICK).fit(train.features[order], train.ratings[order], qid=qid[order])
    np.testing.assert_array_equal(moved.predict(test), expected)


def test_a_run_that_broke_off_goes_on_to_the_same_bits(parts, tmp_path):
    train, valid, test = parts
    settings = {**QUICK, "n_trees": 120, "patience": 1000}
    n_calls = 0

    def listmle(scores, batch):  # with shuffled ties: what is random has to be drawn again
        nonlocal n_calls
        n_calls += 1
        if n_calls == 70:
            raise KeyboardInterrupt("stopped")
        return LOSSES["listmle"](scores, batch)

    with pytest.raises(KeyboardInterrupt, match="stopped"):
        TreeRanker(loss=listmle, **settings).fit(train, valid=valid, checkpoint=tmp_path / "c")
    assert (tmp_path / "c").is_dir()
    resumed = TreeRanker(loss=listmle, **settings).fit(train, valid=valid, checkpoint=tmp_path / "c")
    whole = TreeRanker(loss=listmle, **settings).fit(train, valid=valid)
    np.testing.assert_array_equal(resumed.predict(test), whole.predict(test))


def test_saved_without_a_function_of_the_users(parts, tmp_path):
    train, _, test = parts
    ranker = TreeRanker(loss=squares, **QUICK).fit(train)
    ranker.save(tmp_path / "m")
    loaded = tierank.load(tmp_path / "m")
    assert type(loaded) is TreeRanker
    np.testing.assert_array_equal(loaded.predict(test), ranker.predict(test))
    with pytest.raises(ParameterError, match=r"loss: expected a function \(scores, batch\) -> one value per query"):
        loaded.fit(train)
    named = TreeRanker(loss="ranknet", loss_settings={"sigma": 2.0}, n_trees=3).fit(train)
    named.save(tmp_path / "n")
    again = clone(tierank.load(tmp_path / "n")).fit(train)
    np.testing.assert_array_equal(again.predict(test), named.predict(test))


@pytest.mark.filterwarnings("ignore")
def test_passes_the_checks_of_scikit_learn():
    results = check_estimator(TreeRanker(loss="softmax", n_trees=3, n_jobs=1), on_skip=None, on_fail=None)
    assert not [result["check_name"] for result in results if result["status"] == "failed"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"loss: expected a function \(scores, batch\) -> one value per query, or a name, got None"),
        ({"loss": "lsitnet"}, r"loss: .*, got 'lsitnet'; did you mean 'listnet'\?"),
        ({"loss": "ranknet", "loss_settings": {"sigma": -1.0}}, "sigma: expected a number > 0, got -1.0"),
        ({"loss": "urank", "loss_settings": {"sigma": 1.0}}, "unknown setting of the loss 'urank' 'sigma'"),
        ({"loss": "urank", "sigma": 1.0}, "unknown setting of TreeRanker 'sigma'"),
        ({"loss": lambda f, b, mask: f}, r"loss: expected a function .*, got <lambda>\(f, b, mask\); its settings are"),
        ({"loss": lambda f: f}, r"loss: expected a function \(scores, batch\) .*, got <lambda>\(f\); its settings are"),
        ({"loss": lambda f, b: f}, r"loss: expected one value per query, \d+ here, got shape \(\d+,\)"),
        ({"loss": lambda f, b: f.sum()}, r"loss: expected one value per query, \d+ here, got shape \(\)"),
        ({"loss": lambda f, b: 3.0}, r"loss: expected one value per query, \d+ here, got 3.0, which is not a tensor"),
        ({"loss": lambda f, b: torch.zeros(b.n_queries)}, "got values that do not depend on the scores"),
        ({"loss": lambda f, b: sums(torch.sqrt(f), b)}, "loss: expected a finite gradient, got inf at a document with"),
    ],
)
def test_losses_that_cannot_be_used(parts, settings, message):
    with pytest.raises(ParameterError, match=message):
        TreeRanker(n_trees=3, **settings).fit(parts[0])


def test_data_that_cannot_be_used():
    with pytest.raises(DataError, match=r"expected prepare.* got no documents"):
        LossObjective().gradients([0.0])
    with pytest.raises(DataError, match=r"scores: expected 2, one per document, got shape \(1,\)"):
        LossObjective().prepare([1, 0], [0, 2]).gradients([0.0])


# check_gradient


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_derivatives_of_all_losses_are_right(name):
    assert check_gradient(name) < 1e-5


def test_derivatives_that_are_wrong_are_found():
    def hidden(scores, batch):
        return squares(scores * (scores.detach() > 0.5), batch) + sums(0 * scores, batch)

    assert check_gradient(hidden) < 1e-5  # right but for 0.5 itself

    def scaled(scores, batch):
        return squares(scores, batch) * (scores.detach().abs().max() + 1)

    with pytest.raises(ParameterError, match=r"among other queries at .* value of query 0 with ratings"):
        check_gradient(scaled)

    def first_is_wrong(scores, batch):
        loose = torch.where(batch.places == 0, scores.detach(), scores)
        return squares(loose, batch)

    with pytest.raises(ParameterError, match=r"by differences at document 0 for the derivative of query 0 .*, got 0$"):
        check_gradient(first_is_wrong)

    def bent(scores, batch):
        return squares(scores, batch)

    bent.hessian = lambda scores, batch: torch.full_like(scores, 2.0)
    assert check_gradient(bent) < 1e-5
    bent.hessian = lambda scores, batch: torch.full_like(scores, 1.0)
    with pytest.raises(
        ParameterError, match=r"expected 2 by differences at document 0 for the hessian of query 0 .*, got 1"
    ):
        check_gradient(bent)
    with pytest.raises(ParameterError, match=r"loss: expected one value per query, 20 here, got shape \(\d+,\)"):
        check_gradient(lambda scores, batch: scores)
    assert torch.get_default_dtype() == torch.float32
