"""The WSDM 2020 paper, "Listwise Learning to Rank by Exploring Unique Ratings", in plain torch: Eq. 1 to 8, Algorithms.

This module is for reading, and for checking: the tests compare all of tierank's fast code with it. It has one function
for each formula, on one query at a time: ``ratings`` and ``scores`` are vectors with a number for each document.
Nothing is checked. The symbols are those of the paper:

    D          the documents of a query, n of them; d is one of them
    r(d), f(d) its rating and its score; F in boosting
    R          the unique ratings r_1 > r_2 > ... > r_|R|
    s_t        the documents left in step t; s_1 = D
    c_t        the documents of s_t with the highest rating, r_t: they are selected in step t
    s~_t       the others, all rated lower: s_{t+1} = s~_t. s~_r(d) are those rated lower than d
    k(s)       the sum of e^f(d) over d in s

Delta Z counts as Eq. 6 here, as in all of our documentation. The paper prints it under the number of Eq. 5, so its own
numbers of Eq. 7 and Eq. 8 are 6 and 7.

>>> import torch
>>> from tierank import paper
>>> ratings, scores = torch.tensor([1.0, 2, 2, 0]), torch.tensor([2.0, 3, 4, 5]).log()
>>> round(paper.urank_loss(ratings, scores).item(), 4)  # the example that the paper works out
3.9497

To train uRank as the paper does, give each query as a pair of features and ratings:

>>> queries = [(torch.tensor([[3.0, 1], [1, 2], [0, 1], [2, 0]]), ratings), (torch.eye(2), torch.tensor([0.0, 1]))]
>>> network = paper.scoring_function(2, 100, 50)
>>> history = paper.train(network, queries, valid=queries, max_epochs=3)  # keeps the best weights in the network
>>> [len(row) for row in history]  # NDCG@1, 3, 5 and 10 of each epoch
[4, 4, 4]

To try out another loss, change it here, or call ``train`` with your own. Changing ``tierank.losses`` does not change
what ``URank`` learns with the presets ``paper-...`` and ``authors-...``: they train with compiled code,
``kernels/mlp_training.py``, which has the network, the loss and Adam, and never calls a loss of torch.
``NetworkRanker`` with a loss of your own does call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

Query = tuple[Tensor, Tensor]  # features, a row for each document; and ratings

# The loss


def unique_ratings(ratings: Tensor) -> Tensor:
    """R: r_1 > r_2 > ... > r_|R|."""
    R: Tensor = ratings.unique().flip(0)  # type: ignore[no-untyped-call]
    return R


def steps(ratings: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """r_t, c_t and s~_t of the steps t = 1, ..., |R| - 1: the last tier has nothing below it, so it is not processed.

    fast: ``losses.Batch.tiers``, numbered once for all queries
    """
    for rating in unique_ratings(ratings)[:-1]:
        yield rating, ratings == rating, ratings < rating


def plackett_luce(chosen: Tensor, below: Tensor) -> Tensor:
    """Eq. 1, the likelihood of selecting d in c_t, as a logarithm: ln P_t(d) for each d in c_t.

        P_t(d) = e^f(d) / (e^f(d) + sum over d' in s~_t of e^f(d'))

    ``chosen`` are the scores of c_t, and ``below`` those of s~_t. P_t(d) is the logistic function of f(d) - ln k(s~_t).

    fast: ``losses.batch.select_from``
    """
    return logsigmoid(chosen - below.logsumexp(0))


def windowed_likelihood(chosen: Tensor, below: Tensor, u: int) -> Tensor:
    """Eq. 3, the likelihood with windows s~_t^b of u documents, by decreasing score: ln P_t(d) for each d in c_t.

        P_t(d) = product over b of e^f(d) / (e^f(d) + sum over d' in s~_t^b of e^f(d'))

    Differentiating takes the order of the scores as given.

    fast: ``losses.windowed_urank``
    """
    by_score = below.sort(descending=True, stable=True).values
    return torch.stack([plackett_luce(chosen, window) for window in torch.split(by_score, u)]).sum(0)


def urank_loss(ratings: Tensor, scores: Tensor, u: int | None = None) -> Tensor:
    """Eq. 2, the loss; with windows of u documents if u is given. If all ratings are the same, it is 0.

        L(f; R, D) = - 1 / (|R| - 1) * sum over t < |R| of (2^r_t - 1) * sum over d in c_t of ln P_t(d)

    In urBoost documents have another score in each step: then ``scores`` has a row for each.

    fast: ``losses.urank``, ``losses.windowed_urank``, ``losses.stepwise_urank``; ``kernels.mlp_training`` in training
    """
    R, loss = unique_ratings(ratings), scores.new_zeros(())
    for (rating, c, s), f in zip(steps(ratings), scores.expand(len(R), -1), strict=False):
        likelihood = plackett_luce(f[c], f[s]) if u is None else windowed_likelihood(f[c], f[s], u)
        loss = loss - (2**rating - 1) * likelihood.sum()
    return loss / max(len(R) - 1, 1)


def algorithm_1(Y: Tensor, F: Tensor) -> Tensor:
    """Algorithm 1: the loss without loops, line by line. e^F overflows for scores above 700 (88 in single precision).

    fast: ``losses.urank``, in O(n) and for any scores
    """
    e = torch.ones_like(F)
    G = 2**Y - 1
    P = torch.outer(Y, e) - torch.outer(e, Y)
    M = (P > 0).to(F.dtype)
    T = M @ F.exp()
    L = torch.log(1 + T / F.exp())
    L = L * G
    loss: Tensor = L.sum() / (len(unique_ratings(Y)) - 1)
    return loss


# uRank


def scoring_function(n_features: int, k_1: int, k_2: int) -> nn.Module:
    """The scoring function of uRank: f = phi(phi(phi(X W_1) W_2) W_3), with phi = ELU.

    tierank's networks add biases, and leave the score as it is, as the authors' program does.

    fast: ``networks.MLP``; ``kernels.mlp_training`` in training
    """
    layers = [nn.Linear(n_in, n_out, bias=False) for n_in, n_out in ((n_features, k_1), (k_1, k_2), (k_2, 1))]
    return nn.Sequential(*(module for layer in layers for module in (layer, nn.ELU())))


def min_max(features: Tensor) -> Tensor:
    """The features of a query, from 0 for the lowest value of each in that query to 1 for the highest.

    fast: ``transforms.QueryMinMax``
    """
    lowest, highest = features.min(0).values, features.max(0).values
    return ((features - lowest) / (highest - lowest)).nan_to_num(0)  # 0 where all values are the same


def train(
    network: nn.Module,
    queries: Sequence[Query],
    valid: Sequence[Query] = (),
    loss: Callable[[Tensor, Tensor], Tensor] = urank_loss,
    learning_rate: float = 1e-4,
    max_epochs: int = 10_000,
    patience: int = 200,
) -> list[list[float]]:
    """Train a network: one query in each step of Adam, gradients cut to norm 5, and the best weights kept.

    Returns NDCG@1, 3, 5 and 10 on the validation queries after each epoch. Without any, the last weights are kept.

    fast: ``rankers.neural.URank``, of which ``from_preset("authors-ohsumed")`` takes queries in their order, as here
    """
    optimizer, history, kept = torch.optim.Adam(network.parameters(), learning_rate), [], network.state_dict()
    for epoch in range(max_epochs):
        for features, ratings in queries:
            if len(unique_ratings(ratings)) > 1:
                optimizer.zero_grad()
                torch.autograd.backward(loss(ratings, network(min_max(features)).flatten()))
                nn.utils.clip_grad_norm_(network.parameters(), 5.0)
                optimizer.step()
        if not valid:
            continue
        with torch.no_grad():
            judged = [(ratings, network(min_max(features)).flatten()) for features, ratings in valid]
        history.append([torch.stack([ndcg(*one, k) for one in judged]).nanmean().item() for k in (1, 3, 5, 10)])
        if select(history) == epoch:
            kept = {name: weights.clone() for name, weights in network.state_dict().items()}
        elif epoch - select(history) >= patience:
            break
    network.load_state_dict(kept)
    return history


def select(history: Sequence[Sequence[float]]) -> int:
    """The selection rule: the epoch, from 0, with the best metrics, of which each epoch has a list.

    An epoch is better than the best so far if its first metric is higher; or the same up to 10^-6, and the second is
    higher; and so on.

    fast: ``rankers.selection.Selection``
    """
    best = 0
    for epoch, metrics in enumerate(history):
        differences = [new - old for new, old in zip(metrics, history[best], strict=True)]
        if next((one for one in differences if abs(one) > 1e-6), 0) > 0:
            best = epoch
    return best


def discounts(scores: Tensor) -> Tensor:
    """discount(d) = 1 / log2(1 + rank of d by decreasing score); equal scores rank in the order of the rows."""
    ranks = 1 + scores.argsort(descending=True, stable=True).argsort()
    return 1 / torch.log2(1 + ranks.to(scores.dtype))


def ndcg(ratings: Tensor, scores: Tensor, k: int) -> Tensor:
    """NDCG@k. It is NaN if all ratings are 0: such queries are left out of means.

    fast: ``metrics.Judge``
    """
    gains, places = 2**ratings - 1, 1 / torch.log2(2 + torch.arange(min(k, len(ratings)), dtype=scores.dtype))
    by_score, by_rating = (gains[one.argsort(descending=True, stable=True)[:k]] for one in (scores, ratings))
    return (by_score * places).sum() / (by_rating * places).sum()


# uBoost


def residuals(ratings: Tensor, scores: Tensor) -> Tensor:
    """Eq. 4, the residuals y~_d: minus the derivative of the loss, with the scores F_m(d) of the ensemble so far.

        y~_d = 1 / (|R| - 1) * ((2^r(d) - 1) * 1 / (1 + e^F(d) / k(s~_r(d)))
               - sum over d^ rated higher of (2^r(d^) - 1) * e^F(d) / (k(s~_r(d^)) + e^F(d^)))

    fast: ``rankers.boosted.find_residuals``
    """
    y = torch.zeros_like(scores)
    for rating, c, s in steps(ratings):
        log_k = scores[s].logsumexp(0)
        y[c] += (2**rating - 1) * torch.sigmoid(log_k - scores[c])
        y[s] -= (2**rating - 1) * (scores[s] - torch.logaddexp(log_k, scores[c])[:, None]).exp().sum(0)
    return y / max(len(unique_ratings(ratings)) - 1, 1)


def algorithm_2(Y: Tensor, F: Tensor, f: Tensor | float) -> tuple[Tensor, Tensor]:
    """Algorithm 2: the residuals Z_1, and the loss of weak learner m with the scores f, line by line.

    As in Algorithm 1, e^F overflows.

    fast: ``rankers.boosted.find_residuals``; ``kernels.mlp_training`` in training
    """
    e = torch.ones_like(F)
    G = 2**Y - 1
    P = torch.outer(Y, e) - torch.outer(e, Y)
    M = (P > 0).to(F.dtype)
    T = M @ F.exp()
    Z = 1 / (1 + F.exp() / T)
    Z = Z * G
    M_ = -(P < 0).to(F.dtype)
    T_ = T + F.exp()
    Z_ = M_ @ (G / T_)
    Z_ = Z_ * F.exp()
    Z_1 = Z + Z_
    Z_1 = Z_1 / (len(unique_ratings(Y)) - 1)
    return Z_1, ((Z_1 - f) ** 2).mean()


# uMart


def windows(ratings: Tensor, scores: Tensor, u: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows of c_t and of a window b of s~_t, for all steps and windows: by score, u documents at a time, or all."""
    order = scores.argsort(descending=True, stable=True)
    for _, c, s in steps(ratings):
        for b in torch.split(order[s[order]], u or len(ratings)):
            yield c.nonzero().flatten(), b


def delta_z(ratings: Tensor, scores: Tensor) -> Tensor:
    """Eq. 6, the weight of each pair: Delta Z(d, d'), a matrix.

        Delta Z(d, d') = |2^r(d) - 2^r(d')| |discount(d) - discount(d')| / ((0.01 + |F(d) - F(d')|) * IDCG(D))

    The paper prints no absolute values above the line: without, pairs in the wrong order would be pushed further apart.
    It also prints no 0.01, which the authors' program has (and no distance at all while all scores are equal, as before
    the first tree): without, equal scores would divide by 0.
    """
    gains, discount = 2**ratings - 1, discounts(scores)
    ideal = (gains * discounts(ratings)).sum()
    distance = 0.01 + (scores[:, None] - scores).abs() if scores.min() < scores.max() else 1.0
    return (gains[:, None] - gains).abs() * (discount[:, None] - discount).abs() / (distance * ideal)


def umart_pairs(
    ratings: Tensor, scores: Tensor, u: int | None, sigma: float
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """c_t, a window b, and the fractions of Eq. 5 to 7 for d in c_t and d' in b.

        p(d, d') = e^(sigma F(d')) / (e^(sigma F(d)) + k(b))

    The paper defines k without sigma: then the p of a window would not add up to less than 1.
    """
    for c, b in windows(ratings, scores, u):
        log_k = (sigma * scores[b]).logsumexp(0)
        yield c, b, (sigma * scores[b] - torch.logaddexp(sigma * scores[c], log_k)[:, None]).exp()


def umart_gradient(ratings: Tensor, scores: Tensor, u: int | None = 2, sigma: float = 2.0) -> Tensor:
    """Eq. 5, the gradient of uMart: the derivative of the loss with respect to F(d), for each document.

        - sigma * sum over d' in s~_r(d) of Delta Z(d, d') p(d, d')
        + sigma * sum over d^ rated higher of Delta Z(d^, d) p(d^, d)

    with windows b in place of s~, as in Eq. 3. With u = 1 it is that of LambdaMART. The paper prints the signs the
    other way round: what it prints is minus the derivative that it names.

    fast: ``losses.UMartObjective``, ``kernels.pairs``
    """
    gradient, weights = torch.zeros_like(scores), delta_z(ratings, scores)
    for c, b, p in umart_pairs(ratings, scores, u, sigma):
        pull = sigma * weights[c[:, None], b] * p
        gradient[c] -= pull.sum(1)
        gradient[b] += pull.sum(0)
    return gradient


def umart_hessian(ratings: Tensor, scores: Tensor, u: int | None = 2, sigma: float = 2.0) -> Tensor:
    """Eq. 7, the hessian of uMart: the second derivative, for each document.

        2 sigma^2 * sum over d' in s~_r(d) of Delta Z(d, d') p(d, d')
        + 2 sigma^2 * sum over d^ rated higher of Delta Z(d^, d) p(d^, d) (1 - p(d^, d))

    The paper prints a minus between the sums: then it would be negative for all documents of the lowest tier. The
    authors' program also multiplies the first sum by e^(sigma F(d)) / (e^(sigma F(d)) + k(b)), as ``UMart`` does by
    default; this one is ``UMart(hessian="paper")``.

    fast: ``losses.UMartObjective(hessian="paper")``, ``kernels.pairs``
    """
    hessian, weights = torch.zeros_like(scores), delta_z(ratings, scores)
    for c, b, p in umart_pairs(ratings, scores, u, sigma):
        steep = 2 * sigma**2 * weights[c[:, None], b] * p
        hessian[c] += steep.sum(1)
        hessian[b] += (steep * (1 - p)).sum(0)
    return hessian


# urBoost


def tier_states(ratings: Tensor, embedded: Tensor, W: Tensor, U: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 8, the hidden states: h~_t(d) for each step and document, and h_t for each step, with h_0 = 0.

        h~_t(d) = rnn(x~(d), h_{t-1}, W~) = tanh(W h_{t-1} + U x~(d) + b),   h_t = max-pooling {h~_t(d) | d in c_t}

    ``embedded`` has a row x~(d), the last hidden layer, for each document. h~_t(d) is computed for all documents, and
    used for those of s_t.

    fast: ``networks.TierRNN``; ``kernels.mlp_training`` in training
    """
    hidden, states = [], [torch.zeros(len(W), dtype=W.dtype)]
    for rating in unique_ratings(ratings):
        hidden.append(torch.tanh(states[-1] @ W.T + embedded @ U.T + b))
        states.append(hidden[-1][ratings == rating].amax(0))
    return torch.stack(hidden), torch.stack(states[1:])


def conditional_scores(ratings: Tensor, embedded: Tensor, W: Tensor, U: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """Eq. 8, the conditional scores: f(d) = [h~_t(d), x~(d)] w, a row for each step, as ``urank_loss`` takes them.

    Documents are ranked by the first row, f(d) for d in s_1, which does not depend on the ratings.

    fast: ``networks.TierRNN.step_scores``; ``kernels.mlp_training`` in training
    """
    hidden, _ = tier_states(ratings, embedded, W, U, b)
    return torch.stack([torch.cat([h, embedded], 1) @ w for h in hidden])
