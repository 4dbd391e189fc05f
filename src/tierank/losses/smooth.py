"""Losses that are NDCG with smooth ranks."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from tierank.errors import DataError
from tierank.losses.batch import Batch, blocks, check, partners, sum_by
from tierank.losses.tensors import loss, with_gradient
from tierank.settings import as_whole

# The longest query for which neuralndcg makes a matrix: 128 MB each, and some at a time.
_LONGEST_MATRIX = 4096
# How close to 1 the sums of the columns have to be.
_EVEN = 1e-6


@loss()
def approxndcg(scores: Tensor, batch: Batch, *, temperature: float = 0.1) -> Tensor:
    """ApproxNDCG (Qin et al., 2010): 1 - NDCG with smooth ranks.

    L = 1 - 1 / IDCG * sum over d of G(d) / log2(1 + rank(d))
    rank(d) = 1 + sum over d' != d of 1 / (1 + e^((f(d) - f(d')) / temperature))

    In a batch with weights, G(d) is multiplied by that of d, and IDCG is not.

    Row weights are copies: G(d) counts c(d) times, d' counts c(d') times in ranks, the copies of d take places beside
    each other, (max(c(d), 1) - 1) / 2 on average, and all of them take places in IDCG.
    """
    check(scores, batch, temperature=temperature)
    with torch.no_grad():
        relative_gains = batch.counted(batch.weighted(batch.relative_gains))
        rows = (batch.counted(batch.relative_gains) > 0).nonzero().squeeze(1)
        counts = batch.row_weight
        query = batch.query[rows]
        reached, gradient = torch.zeros(len(rows), dtype=scores.dtype, device=batch.device), torch.zeros_like(scores)
        for span in blocks(batch.lengths[query]):
            gains, upper = relative_gains[rows[span]], scores[rows[span]]
            row, other = partners(batch.offsets[query[span]], batch.lengths[query[span]])
            behind = (scores[other] - upper[row]).div_(temperature).sigmoid_()
            copies = behind if counts is None else behind * counts[other]
            after = 1.5 + sum_by(copies, row, len(upper))  # 1 + rank; a document is half behind itself
            if counts is not None:
                after += (1 - counts[rows[span]]).clamp(min=0) / 2  # less than one document takes a whole place
            reached[span] = gains / after.log2()
            slopes = gains / (after * after.log2().square() * (math.log(2) * temperature))
            pull = (
                copies * (1 - behind) * slopes[row] if counts is not None else behind.mul_(1 - behind).mul_(slopes[row])
            )
            gradient.index_add_(0, other, pull)
            gradient.index_add_(0, rows[span], -sum_by(pull, row, len(upper)))
        has_gain = torch.zeros_like(batch.is_ranked).index_fill_(0, query, 1)
        values = has_gain - sum_by(reached, query, batch.n_queries)
    return with_gradient(scores, values, gradient, batch)


@loss(without=("weights",))
def neuralndcg(scores: Tensor, batch: Batch, *, temperature: float = 1.0, max_scalings: int = 50) -> Tensor:
    """NeuralNDCG (Pobrotyn and Bialobrzeski, 2021): 1 - NDCG of documents sorted by a smooth permutation P.

        L = 1 - 1 / IDCG * sum over i of (sum over j of P_ij G(d_j)) / log2(1 + i)

    Row i of P is at first NeuralSort's softmax over j of ((n + 1 - 2 i) f_j - sum over k of |f_j - f_k|) / temperature.
    Sinkhorn scaling then normalises its columns and rows in turn, at most ``max_scalings`` times, or until the sums of
    the columns are within 1e-6 of 1.

    The only loss that needs a matrix for each query: queries are processed one by one, in double precision (exponents
    are differences of long sums), and may have up to 4,096 documents. Row weights are copies, and have to be integers:
    P has a row for each of them.
    """
    check(scores, batch, temperature=temperature)
    if batch.row_weight is not None:
        batch, rows = batch.repeated("neuralndcg")
        scores = scores.index_select(0, rows)
    max_scalings = as_whole("max_scalings", max_scalings, least=0)
    longest = int(batch.lengths.max())
    if longest > _LONGEST_MATRIX:
        raise DataError(
            where="neuralndcg",
            expected=f"queries of up to {_LONGEST_MATRIX:,} documents, whose matrices fit into memory",
            got=f"one of {longest:,}",
            fix="use approxndcg, or leave out documents that cannot come first",
        )
    gains, discounts = batch.relative_gains.double(), batch.discounts.double()
    reached = [
        _neural_ndcg(scores[start:end].double(), gains[start:end], discounts[: end - start], temperature, max_scalings)
        for start, end in pairwise(batch.offsets.tolist())
    ]
    has_gain = sum_by(gains, batch.query, batch.n_queries) > 0
    return (has_gain.double() - torch.stack(reached)).to(scores.dtype)


def _neural_ndcg(scores: Tensor, gains: Tensor, discounts: Tensor, temperature: float, max_scalings: int) -> Tensor:
    """The sum over ranks i and documents j of P_ij G_j / log2(1 + i) in one query."""
    n = len(scores)
    factors = torch.arange(n - 1, -n, -2, dtype=scores.dtype, device=scores.device)  # n + 1 - 2 i
    distances = (scores[:, None] - scores).abs().sum(1)
    centred = scores - scores.detach().mean()
    permutation = torch.softmax((torch.outer(factors, centred) - distances) / temperature, 1)
    # The scaled matrix is diag(rows) permutation diag(columns).
    rows, columns = torch.ones_like(scores), torch.ones_like(scores)
    for _ in range(max_scalings):
        sums = rows @ permutation
        if (columns * sums - 1).detach().abs().max() < _EVEN:
            break
        columns = 1 / sums
        rows = 1 / (permutation @ columns)
    return (discounts * rows) @ permutation @ (columns * gains)
