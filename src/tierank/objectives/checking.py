"""check_gradient: whether the derivatives of a loss are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierank.errors import ParameterError
from tierank.objectives.loss import as_loss, check_values
from tierank.relevance import Gain
from tierank.settings import as_whole
from tierank.types import Floats

# torch is imported only if a loss is used: uMart does not need it.
if TYPE_CHECKING:
    from torch import Tensor

    from tierank.losses import Batch

# The step of the scores for differences, and the largest accepted deviation from derivatives.
_STEP, _TOLERANCE = 1e-4, 1e-5


def check_gradient(loss: str | Callable[..., Tensor], *, gain: Gain = "exp2", seed: int = 0) -> float:
    """Compare the derivatives of a loss with differences of its values.

    Twenty queries of 1 to 12 documents, some with ties and some with a single rating, get random scores in double
    precision. It checks that there is one finite value per query, the same for a query alone and among others; each
    derivative; and each value of ``loss.hessian``, if the loss has one.

    Parameters
    ----------
    loss : callable or str
        A function ``(scores, batch) -> one value per query``, or a key of ``LOSSES``.
    gain : str, list, mapping or callable, default "exp2"
        The gain of ratings, as in the rankers.
    seed : int, default 0
        Random seed of the queries.

    Returns
    -------
    float
        The largest difference, relative to the size of the values.

    Raises
    ------
    ParameterError
        If something differs by more than 1e-5; the message names the query and the document.

    Examples
    --------
    >>> import torch
    >>> def squares(scores, batch):
    ...     return torch.zeros(batch.n_queries).index_add(0, batch.query, scores**2)
    >>> check_gradient(squares) < 1e-6
    True
    >>> def hidden(scores, batch):  # detach() takes a part of it out of the derivative
    ...     return torch.zeros(batch.n_queries).index_add(0, batch.query, scores * scores.detach())
    >>> check_gradient(hidden)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tierank.errors.ParameterError: loss: derivative at document 0 of query 0 with ratings [1.0, 1.0] and scores ...
    """
    import torch

    from tierank.torch_state import own_torch

    function = as_loss(loss)
    with own_torch():
        torch.set_default_dtype(torch.float64)  # the default for tensors that the function creates
        try:
            return _check_loss(function, _probe_queries(as_whole("seed", seed, 0)), gain)
        finally:
            torch.set_default_dtype(torch.float32)


def _probe_queries(seed: int) -> list[tuple[Floats, Floats]]:
    """Ratings and scores of short queries; every fifth one has only one rating."""
    rng = np.random.default_rng(seed)
    queries = []
    for k, n in enumerate([2, 1, *rng.integers(2, 13, 18).tolist()]):
        ratings = rng.integers(0, 4 if k % 5 else 2, n).astype(np.float64)
        queries.append((np.full(n, 2.0) if k % 5 == 4 else ratings, rng.normal(size=n)))
    return queries


def _check_loss(loss: Callable[..., Tensor], queries: list[tuple[Floats, Floats]], gain: Gain) -> float:
    import torch

    from tierank.losses import Batch

    offsets = np.cumsum([0, *(len(ratings) for ratings, _ in queries)])
    batch = Batch(offsets, np.concatenate([ratings for ratings, _ in queries]), gain=gain, dtype=torch.float64)
    together = loss(torch.tensor(np.concatenate([s for _, s in queries]), requires_grad=True), batch)
    check_values(together, len(queries))
    worst = 0.0
    for k, (ratings, scores) in enumerate(queries):
        alone = _Alone(loss, ratings, scores, Batch([0, len(ratings)], ratings, gain=gain, dtype=torch.float64), k)
        worst = max(worst, alone.compare(together[k].item()))
    return worst


@dataclass
class _Alone:
    """One query by itself, whose derivatives are compared."""

    loss: Callable[..., Tensor]
    ratings: Floats
    scores: Floats
    batch: Batch
    number: int

    def compare(self, among_others: float) -> float:
        """The largest difference of all comparisons. Raises ``ParameterError`` if one is too large."""
        value, gradient = self._value_and_gradient(self.scores)
        worst = self._same("value, alone and among other queries,", None, [value], [among_others])
        steps = np.eye(len(self.scores)) * _STEP
        around = [(self._value_and_gradient(self.scores + u), self._value_and_gradient(self.scores - u)) for u in steps]
        slopes = [(ahead[0] - behind[0]) / (2 * _STEP) for ahead, behind in around]
        worst = max(worst, self._same("derivative", 0, gradient.tolist(), slopes))
        hessian = getattr(self.loss, "hessian", None)
        if hessian is not None:
            bends = [(ahead[1][i] - behind[1][i]) / (2 * _STEP) for i, (ahead, behind) in enumerate(around)]
            worst = max(worst, self._same("hessian", 0, hessian(self._tensor(self.scores), self.batch).tolist(), bends))
        return worst

    def _tensor(self, scores: Floats) -> Tensor:
        import torch

        return torch.tensor(scores, requires_grad=True)

    def _value_and_gradient(self, scores: Floats) -> tuple[float, Floats]:
        import torch

        at = self._tensor(scores)
        values = self.loss(at, self.batch)
        check_values(values, 1)
        return values.item(), torch.autograd.grad(values.sum(), at)[0].numpy()

    def _same(self, what: str, first: int | None, got: list[float], expected: list[float]) -> float:
        if len(got) != len(expected):
            raise ParameterError(f"loss: {what}: expected {len(expected)} values, one per document, got {len(got)}")
        scale = max(1.0, *(abs(e) for e in expected))
        for i, (one, other) in enumerate(zip(got, expected, strict=True)):
            if not abs(one - other) <= _TOLERANCE * scale:
                place = "" if first is None else f"at document {i} "
                raise ParameterError(
                    f"loss: {what} {place}of query {self.number} with ratings {self.ratings.tolist()} and scores"
                    f" {self.scores.round(4).tolist()}: expected {other:.4g}"
                    f"{'' if first is None else ' by differences'}, got {one:.4g}"
                )
        return max(abs(one - other) / scale for one, other in zip(got, expected, strict=True))
