"""Policy gradient: ranking as a sequence of decisions, for MDPRank."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tierank.errors import ParameterError
from tierank.losses.batch import Batch, check, select_from, sum_by
from tierank.settings import as_choice, as_number, as_whole

_REWARDS = ("ndcg", "dcg")
_BASELINES = ("random", "none")


def policy_gradient(
    scores: Tensor,
    batch: Batch,
    *,
    gamma: float = 1.0,
    n_episodes: int = 1,
    reward: str = "ndcg",
    baseline: str = "random",
) -> Tensor:
    """Minus the return of rankings that are drawn from the policy; its gradient is that of REINFORCE.

        pi(d_t | d_t, ..., d_n) = e^f(d_t) / (e^f(d_t) + ... + e^f(d_n))
        reward_t = G(d_t) / log2(1 + t) / IDCG,  G_t = sum over k >= t of gamma^(k - t) reward_k
        L = -G_1,  dL = -sum over t of gamma^(t - 1) (G_t - b_t) d ln pi(d_t | d_t, ..., d_n)

    Value and gradient are means over ``n_episodes`` rankings d_1, ..., d_n of each query, so both are unbiased
    estimates: of minus the expected return, and of its gradient. The baseline b_t is the expected return of the
    remaining documents in random order, which adds no bias and removes most of the noise:

        b_t = mean of G(d_t), ..., G(d_n) / IDCG * sum over k >= t of gamma^(k - t) / log2(1 + k)

    Wei et al. have b_t = 0 (``baseline="none"``) and no IDCG (``reward="dcg"``). Row weights are copies, and have to be
    integers: a ranking that is drawn has whole documents. Takes O(n log n) time and O(n) memory
    for queries of any length.
    """
    check(scores, batch)
    gamma, n_episodes = as_number("gamma", gamma, 0, 1), as_whole("n_episodes", n_episodes)
    as_choice("reward", reward, _REWARDS)
    as_choice("baseline", baseline, _BASELINES)
    if batch.row_weight is not None:
        batch, rows = batch.repeated("MDPRank")
        scores = scores.index_select(0, rows)
    episodes = batch.take(torch.arange(batch.n_queries, device=batch.device).repeat(n_episodes))
    repeated = scores.index_select(0, episodes.rows)
    order = draw_orders(repeated.detach(), episodes)
    values = episode_losses(repeated, order, episodes, gamma=gamma, baseline=baseline)
    means = values.view(n_episodes, batch.n_queries).mean(0)
    return means * _ideals(batch) if reward == "dcg" else means


def draw_orders(scores: Tensor, batch: Batch) -> Tensor:
    """The rows, query by query, in an order drawn from the policy.

    Sorting by scores plus independent Gumbel noise draws from exactly this distribution: document d has the highest sum
    with probability e^f(d) / sum of e^f, and so on among the rest. The noise is -ln of exponential times.
    """
    if batch.generator is None:
        raise ParameterError(
            argument="generator", expected="torch.Generator() in the batch, as rankings are drawn at random", got="None"
        )
    # In double precision: with large scores, single precision would round the noise away.
    times = torch.empty(batch.n_documents, dtype=torch.float64, device=batch.generator.device)
    noise = times.exponential_(generator=batch.generator).log_().neg_()
    return batch.order_by(scores.double() + noise.to(batch.device))


def episode_losses(
    scores: Tensor, order: Tensor, batch: Batch, *, gamma: float = 1.0, baseline: str = "random"
) -> Tensor:
    """Minus the return of one given ranking of each query, with the gradient that it contributes."""
    gains = batch.relative_gains.double().index_select(0, order)
    discounts = batch.discounts.double().index_select(0, batch.places) * gamma ** batch.places.double()
    # gamma^(t - 1) G_t is the sum of gamma^(k - 1) reward_k from k = t on.
    weights = _sums_to_the_end(gains * discounts, batch)
    returns = weights[batch.offsets[:-1]].to(scores.dtype)
    if baseline == "random":
        n_left = batch.lengths.index_select(0, batch.query) - batch.places
        weights = weights - _sums_to_the_end(gains, batch) / n_left * _sums_to_the_end(discounts, batch)
    weighted = _log_likelihood_loss(scores.index_select(0, order), weights.to(scores.dtype), batch)
    return weighted - weighted.detach() - returns


def _log_likelihood_loss(ordered: Tensor, weights: Tensor, batch: Batch) -> Tensor:
    """-sum over t of w_t ln pi(d_t | d_t, ..., d_n) for documents in the order of the rows."""
    ladder = batch.place_ladder
    own = weights.index_select(0, ladder.rows)  # the last document is chosen for certain
    # Selection sums logarithms of weights, which therefore must not be negative: what is below 0 goes apart.
    raised = select_from(ordered, own.clamp(min=0), ladder)
    if not (own < 0).any():
        return raised
    return raised - select_from(ordered, own.neg().clamp(min=0), ladder)


def _sums_to_the_end(values: Tensor, batch: Batch) -> Tensor:
    """For each row the sum of the values from it to the end of its query."""
    # One running sum over all queries is exact enough, because no value is above 1, whatever the ratings.
    sums = functional.pad(values.flip(0).cumsum(0).flip(0), (0, 1))
    return sums[:-1] - sums[batch.offsets[1:]].index_select(0, batch.query)


def _ideals(batch: Batch) -> Tensor:
    """The IDCG of each query; 0 where there is no order to learn."""
    relative = sum_by(batch.relative_gains, batch.query, batch.n_queries)
    return torch.where(relative > 0, sum_by(batch.gains, batch.query, batch.n_queries) / relative, 0.0)
