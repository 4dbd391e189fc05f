"""MDPRank: its gradient against all rankings enumerated, its draws against their probabilities, and what it learns."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch

import tierank
from tierank.errors import DataError, ParameterError
from tierank.losses import Batch
from tierank.losses.policy import draw_orders, episode_losses, policy_gradient
from tierank.rankers.neural import MDPRank

SCORES = [0.3, -0.5, 1.1]
RATINGS = [1, 2, 0]
BASELINES = ["random", "none"]
REWARDS = ["ndcg", "dcg"]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tensor(values, **kwargs):
    return torch.tensor(np.asarray(values), **({"dtype": torch.float64} | kwargs))


def batch_of(offsets, ratings, seed=0, **settings):
    generator = torch.Generator().manual_seed(seed)
    return Batch(offsets, ratings, generator=generator, **({"dtype": torch.float64} | settings))


def draw(lengths, seed=0):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return offsets, rng.integers(0, 4, offsets[-1]).astype(float), rng.normal(size=offsets[-1])


def evaluate(function, scores, *arguments, **settings):
    """Values, and their gradient with respect to the scores."""
    leaf = scores.detach().clone().requires_grad_()
    values = function(leaf, *arguments, **settings)
    values.sum().backward()
    return values.detach().numpy(), leaf.grad.numpy()


# By the formulas, one document after the other


def log_probabilities(scores, order):
    """ln pi of each choice."""
    return [scores[order[t]] - torch.logsumexp(scores[list(order[t:])], 0) for t in range(len(order))]


def rewards_of(gains, order):
    return [gains[d] / math.log2(t + 2) for t, d in enumerate(order)]


def return_from(rewards, t, gamma):
    return sum(gamma ** (k - t) * rewards[k] for k in range(t, len(rewards)))


def relative(ratings):
    gains = [2.0**r - 1 for r in ratings]
    ideal = sum(gain / math.log2(t + 2) for t, gain in enumerate(sorted(gains, reverse=True)))
    return [gain / ideal for gain in gains]


def expected_return(scores, gains, gamma):
    """Over all rankings, weighted by their probabilities."""
    total = torch.zeros((), dtype=scores.dtype)
    for order in permutations(range(len(gains))):
        probability = sum(log_probabilities(scores, order)).exp()
        total = total + probability * return_from(rewards_of(gains, order), 0, gamma)
    return total


def exact(scores, gains, gamma):
    leaf = scores.detach().clone().requires_grad_()
    value = expected_return(leaf, gains, gamma)
    value.backward()
    return value.item(), leaf.grad.numpy()


# One episode


def test_returns_by_hand():
    # Ratings 1, 2, 0 have the gains 1, 3, 0; the ranking is 0, 2, 1: rewards 1, 0, 3 / log2(4).
    batch, order = Batch([0, 3], RATINGS, dtype=torch.float64), torch.tensor([0, 2, 1])
    ideal = 3 + 1 / math.log2(3)
    for gamma, wanted in [(1.0, 1 + 3 / 2), (0.5, 1 + 0.25 * 3 / 2), (0.0, 1.0)]:
        value = episode_losses(tensor(SCORES), order, batch, gamma=gamma)
        assert value.item() == pytest.approx(-wanted / ideal)
    # The best ranking returns all there is.
    assert episode_losses(tensor(SCORES), torch.tensor([1, 0, 2]), batch).item() == pytest.approx(-1)


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("gamma", [1.0, 0.7, 0.0])
def test_the_gradient_of_an_episode_is_the_formula(gamma, baseline):
    offsets, ratings, scores = draw([4, 1, 7, 2, 5])
    batch, order = batch_of(offsets, ratings), []
    leaf, loss = tensor(scores, requires_grad=True), 0
    for start, end in pairwise(offsets.tolist()):
        gains = relative(ratings[start:end]) if len(set(ratings[start:end])) > 1 else [0.0] * (end - start)
        own = np.random.default_rng(start).permutation(end - start).tolist()
        order += [start + d for d in own]
        rewards, logs = rewards_of(gains, own), log_probabilities(leaf[start:end], own)
        for t in range(end - start):
            left = [gains[d] for d in own[t:]]
            at_random = sum(left) / len(left) * return_from([1 / math.log2(k + 2) for k in range(len(own))], t, gamma)
            advantage = return_from(rewards, t, gamma) - (at_random if baseline == "random" else 0)
            loss = loss - gamma**t * advantage * logs[t]
    loss.backward()
    _, gradient = evaluate(episode_losses, leaf, torch.tensor(order), batch, gamma=gamma, baseline=baseline)
    np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-10, atol=1e-14)


# All episodes


def enumerated(scores, ratings, gamma, baseline):
    """The probability of each ranking, and the value and the gradient of its episode."""
    batch = Batch([0, len(ratings)], ratings, dtype=torch.float64)
    orders = list(permutations(range(len(ratings))))
    probabilities = [sum(log_probabilities(tensor(scores), order)).exp().item() for order in orders]
    episodes = [
        evaluate(episode_losses, tensor(scores), torch.tensor(order), batch, gamma=gamma, baseline=baseline)
        for order in orders
    ]
    return np.array(probabilities), *(np.stack(parts) for parts in zip(*episodes, strict=True))


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("gamma", [1.0, 0.8])
def test_the_expectation_over_all_rankings_is_the_gradient_of_the_expected_return(gamma, baseline):
    for scores, ratings in [(SCORES, RATINGS), ([0.2, -1.0, 0.4, 0.9], [0, 2, 1, 2])]:
        probabilities, values, gradients = enumerated(scores, ratings, gamma, baseline)
        assert probabilities.sum() == pytest.approx(1)
        value, gradient = exact(tensor(scores), relative(ratings), gamma)
        assert (probabilities @ values).item() == pytest.approx(-value, rel=1e-12)
        np.testing.assert_allclose(probabilities @ gradients, -gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("baseline", BASELINES)
def test_drawn_gradients_come_near_the_exact_one(baseline):
    n = 200_000
    batch = batch_of([0, 3], RATINGS)
    value, gradient = evaluate(policy_gradient, tensor(SCORES), batch, gamma=0.9, n_episodes=n, baseline=baseline)
    probabilities, values, gradients = enumerated(SCORES, RATINGS, 0.9, baseline)
    wanted, wanted_gradient = exact(tensor(SCORES), relative(RATINGS), 0.9)
    # Within 3.5 standard errors of a mean of n draws, whose variance the enumeration knows.
    errors = np.sqrt(probabilities @ (gradients + wanted_gradient) ** 2 / n)
    assert (np.abs(gradient + wanted_gradient) < 3.5 * errors).all()
    assert errors.max() < 0.02 * np.abs(wanted_gradient).max()
    assert value.item() == pytest.approx(-wanted, abs=3.5 * math.sqrt(probabilities @ (values[:, 0] + wanted) ** 2 / n))


def test_the_baseline_takes_noise_away():
    offsets, ratings, scores = draw([60])
    spread = {}
    for baseline in BASELINES:
        batch = batch_of(offsets, ratings)
        drawn = [evaluate(policy_gradient, tensor(scores), batch, baseline=baseline)[1] for _ in range(100)]
        spread[baseline] = np.var(drawn, axis=0).sum()
    assert spread["random"] < spread["none"] / 5


# Draws


def test_rankings_are_drawn_by_their_probabilities():
    n = 60_000
    batch = batch_of(np.arange(0, 3 * n + 1, 3), np.tile(RATINGS, n))
    drawn = (draw_orders(tensor(SCORES).repeat(n), batch).view(n, 3) % 3).tolist()
    orders = list(permutations(range(3)))
    counts = np.array([sum(order == list(wanted) for order in drawn) for wanted in orders])
    expected = np.array([n * sum(log_probabilities(tensor(SCORES), order)).exp().item() for order in orders])
    assert counts.sum() == n
    assert ((counts - expected) ** 2 / expected).sum() < 15.1  # chi-square with 5 degrees of freedom: 1 in 100


def test_draws_are_exact_beside_large_scores():
    n = 20_000
    batch = batch_of(np.arange(0, 2 * n + 1, 2), np.tile([0, 1], n), dtype=torch.float32)
    scores = tensor([1e6, 1e6 + 1], dtype=torch.float32).repeat(n)
    first = draw_orders(scores, batch).view(n, 2)[:, 0] % 2
    assert first.double().mean().item() == pytest.approx(1 / (1 + math.exp(-1)), abs=0.01)


def test_orders_stay_within_their_queries():
    offsets, ratings, scores = draw([5, 1, 9, 3])
    order = draw_orders(tensor(scores), batch_of(offsets, ratings))
    for start, end in pairwise(offsets.tolist()):
        assert sorted(order[start:end].tolist()) == list(range(start, end))


def test_the_generator_decides():
    offsets, ratings, scores = draw([30, 20])
    torch.manual_seed(0)
    state = torch.get_rng_state()
    one, again, other = (
        evaluate(policy_gradient, tensor(scores), batch_of(offsets, ratings, seed), n_episodes=3)[1]
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
    batch = batch_of(offsets, ratings)
    first, second = (evaluate(policy_gradient, tensor(scores), batch)[1] for _ in range(2))
    assert not np.array_equal(first, second)


def test_episodes_are_averaged(monkeypatch):
    """Torch's own numbers depend on how many are drawn at once; those of numpy do not."""
    offsets, ratings, scores = draw([8, 5])
    batch = batch_of(offsets, ratings, seed=3)
    rng = np.random.default_rng(3)
    monkeypatch.setattr(
        torch.Tensor,
        "exponential_",
        lambda self, generator: self.copy_(torch.from_numpy(rng.exponential(size=self.shape))),
    )
    together = evaluate(policy_gradient, tensor(scores), batch, n_episodes=4)
    rng = np.random.default_rng(3)  # the same numbers, drawn one episode after the other
    apart = [evaluate(policy_gradient, tensor(scores), batch) for _ in range(4)]
    for k in range(2):
        np.testing.assert_allclose(together[k], np.mean([one[k] for one in apart], axis=0), rtol=1e-10, atol=1e-12)


# Invariances


def test_queries_do_not_know_each_other():
    offsets, ratings, scores = draw([6, 1, 11, 4])
    whole = batch_of(offsets, ratings)
    order = draw_orders(tensor(scores), whole)
    values, gradient = evaluate(episode_losses, tensor(scores), order, whole)
    taken = whole.take([3, 0, 2])
    moved = taken.offsets.tolist()
    own = torch.cat([order[offsets[q] : offsets[q + 1]] - offsets[q] + moved[i] for i, q in enumerate([3, 0, 2])])
    some, some_gradient = evaluate(episode_losses, tensor(scores)[taken.rows], own, taken)
    np.testing.assert_allclose(some, values[[3, 0, 2]], rtol=1e-12)
    np.testing.assert_allclose(some_gradient, gradient[taken.rows], rtol=1e-10, atol=1e-14)


def test_a_query_of_tiny_gains_beside_one_of_huge_gains():
    ratings = [64, 3, 0, 1, 2, 0]
    for queries in ([0, 1], [1, 0]):
        taken = batch_of([0, 3, 6], ratings).take(queries)
        alone = batch_of([0, 3], ratings[3:]).take([0])
        order, start = torch.tensor([2, 0, 1]), 3 * queries.index(1)
        both = torch.cat([order, order + 3])
        scores = tensor(SCORES)
        _, gradient = evaluate(episode_losses, scores.repeat(2), both, taken)
        _, wanted = evaluate(episode_losses, scores, order, alone)
        np.testing.assert_allclose(gradient[start : start + 3], wanted, rtol=1e-12)


@pytest.mark.parametrize("baseline", BASELINES)
def test_shifted_scores_change_nothing(baseline):
    offsets, ratings, scores = draw([6, 9])
    shifted = scores + np.repeat([64.0, -512.0], [6, 9])
    results = [
        evaluate(policy_gradient, tensor(values), batch_of(offsets, ratings), baseline=baseline)
        for values in (scores, shifted)
    ]
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
    # So the gradient of a query sums to 0.
    np.testing.assert_allclose(np.add.reduceat(results[0][1], offsets[:-1]), 0, atol=1e-12)


@pytest.mark.parametrize("reward", REWARDS)
def test_queries_with_one_rating_teach_nothing(reward):
    batch = batch_of([0, 3, 4, 6, 8], [2, 2, 2, 1, 0, 0, 1, 0])
    values, gradient = evaluate(policy_gradient, torch.zeros(8, dtype=torch.float64), batch, reward=reward)
    assert values[:3].tolist() == [0, 0, 0]
    assert gradient[:6].tolist() == [0] * 6
    assert values[3] < 0


def test_dcg_is_ndcg_times_the_ideal():
    offsets, ratings, scores = draw([6, 9])
    ndcg, dcg = (
        evaluate(policy_gradient, tensor(scores), batch_of(offsets, ratings), reward=reward) for reward in REWARDS
    )
    ideals = [(2.0 ** r[0] - 1) / relative(r)[0] for r in (sorted(ratings[:6])[::-1], sorted(ratings[6:])[::-1])]
    np.testing.assert_allclose(dcg[0], ndcg[0] * ideals)
    np.testing.assert_allclose(dcg[1], ndcg[1] * np.repeat(ideals, [6, 9]), atol=1e-14)


# Extremes


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("baseline", BASELINES)
def test_extremes_are_finite(baseline, reward):
    offsets, _, _ = draw([1251, 2, 1, 40])
    rng = np.random.default_rng(0)
    settings = {"baseline": baseline, "reward": reward, "n_episodes": 2}
    for levels in ([0, 1, 2], [0, 64], [0, 3, 1e6]):
        ratings = rng.choice(levels, offsets[-1])
        for scores in (rng.choice([-1e4, 0, 1e4], offsets[-1]), np.zeros(offsets[-1]), rng.normal(size=offsets[-1])):
            batch = batch_of(offsets, ratings, dtype=torch.float32)
            values, gradient = evaluate(policy_gradient, tensor(scores, dtype=torch.float32), batch, **settings)
            assert np.isfinite(values).all()
            assert np.isfinite(gradient).all()


def test_a_query_of_60_000_documents():
    _, ratings, scores = draw([60_000])
    single = evaluate(
        policy_gradient, tensor(scores, dtype=torch.float32), batch_of([0, 60_000], ratings, dtype=torch.float32)
    )
    double = evaluate(policy_gradient, tensor(scores, dtype=torch.float32).double(), batch_of([0, 60_000], ratings))
    np.testing.assert_allclose(single[0], double[0], rtol=1e-5)
    np.testing.assert_allclose(single[1], double[1], rtol=0, atol=1e-4 * np.abs(double[1]).max())


def test_what_cannot_be_used_is_refused():
    batch = batch_of([0, 2], [0, 1], dtype=torch.float32)
    with pytest.raises(DataError, match=r"scores: expected 2 of torch.float32.* got shape \(3,\)"):
        policy_gradient(torch.zeros(3), batch)
    with pytest.raises(ParameterError, match=r"^generator: expected torch.Generator\(\) in the batch.*, got None"):
        policy_gradient(torch.zeros(2), Batch([0, 2], [0, 1]))
    for settings, message in [
        ({"gamma": 1.5}, "gamma: expected a number >= 0 and <= 1, got 1.5"),
        ({"gamma": math.nan}, "gamma: expected a number >= 0 and <= 1, got nan"),
        ({"n_episodes": 0}, "n_episodes: expected an integer >= 1.*, got 0"),
        ({"reward": "ndgc"}, "unknown reward 'ndgc': did you mean 'ndcg'"),
        ({"baseline": False}, "unknown baseline False: Known: none, random"),
    ]:
        with pytest.raises(ParameterError, match=message):
            policy_gradient(torch.zeros(2), batch, **settings)


# The ranker

QUICK = {**MDPRank.PRESETS["plain-inputs"], "max_epochs": 12, "learning_rate": 0.01, "hidden": (16, 8), "n_jobs": 1}


@pytest.fixture(scope="module")
def parts():
    return tierank.make_ranking(120, n_features=10, mean_length=25, max_length=60, seed=5).split(0.5, 0.25, 0.25)


@pytest.mark.parametrize("settings", [{}, {"n_episodes": 4, "gamma": 0.95}, {"reward": "dcg"}])
def test_learns(settings, parts):
    train, valid, test = parts
    ranker = MDPRank(**QUICK, **settings).fit(train, valid=valid)
    chance = tierank.evaluate(test, np.random.default_rng(0).random(test.n_documents), "ndcg@10").mean("ndcg@10")
    assert ranker.score(test) > chance + 0.15
    losses = [row["loss"] for row in ranker.history_]
    assert losses[-1] < losses[0] - 0.02  # minus the mean return


def test_settings_reach_the_policy(parts):
    train, _, test = parts
    plain = MDPRank(**QUICK).fit(train).predict(test)
    np.testing.assert_array_equal(MDPRank(**QUICK, gamma=1.0, reward="ndcg").fit(train).predict(test), plain)
    for settings in ({"gamma": 0.5}, {"n_episodes": 2}, {"reward": "dcg"}, {"baseline": "none"}):
        assert not np.array_equal(MDPRank(**QUICK, **settings).fit(train).predict(test), plain), settings
    for name, message in [("gama", "unknown setting of MDPRank 'gama': did you mean 'gamma'"), ("mu", "unknown")]:
        with pytest.raises(ParameterError, match=message):
            MDPRank(**QUICK, **{name: 1.0}).fit(train)


def test_presets_are_the_original(parts):
    train, _, test = parts
    named = MDPRank.from_preset("paper-ohsumed", max_epochs=2, n_jobs=1)
    spelled = MDPRank(**{**MDPRank.PRESETS["paper-ohsumed"], "max_epochs": 2, "n_jobs": 1})
    assert (spelled.reward, spelled.baseline) == ("dcg", "none")
    np.testing.assert_array_equal(named.fit(train).predict(test), spelled.fit(train).predict(test))
