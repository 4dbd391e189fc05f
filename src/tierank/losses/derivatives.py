"""First and second derivatives of any loss, and ``check_gradient``, which compares them with differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tierank.arrays import Floats
from tierank.data.relevance import Gain
from tierank.errors import ParameterError
from tierank.losses.batch import Batch
from tierank.losses.custom import as_loss
from tierank.losses.torch_state import own_torch, seeded
from tierank.settings import as_whole

# The step of the scores for differences, and the largest accepted deviation from derivatives.
_STEP, _TOLERANCE = 1e-4, 1e-5


def call_loss(loss: Callable[..., Any], scores: Tensor, batch: Batch) -> Any:
    """What a loss returns. Says what to write around a function (scores, ratings), as other libraries have it."""
    try:
        return loss(scores, batch)
    except (TypeError, AttributeError) as error:
        if "Batch" not in str(error):
            raise
        function = getattr(loss, "func", loss)
        name = getattr(function, "__name__", type(function).__name__)
        pairs = "zip(batch.split(scores), batch.split(batch.ratings.type_as(scores)))"
        lines = f"def loss(scores, batch): return torch.stack([{name}(s, r) for s, r in {pairs}])"
        raise ParameterError(
            argument="loss",
            expected="a function (scores, batch) -> one value per query",
            got=f"{name}, which cannot take a batch: {error}",
            fix=f"if it takes the ratings of a query, write {lines}",
        ) from error


def check_values(values: Any, n_queries: int) -> None:
    """Check that a loss returned one value per query that depends on the scores."""
    if not isinstance(values, Tensor):
        got = f"{values!r}, which is not a tensor"
    elif values.shape != (n_queries,):
        got = f"shape {tuple(values.shape)}"
    elif not values.requires_grad:
        got = "values that do not depend on the scores"
    else:
        return
    raise ParameterError(argument="loss", expected=f"one value per query, {n_queries} here", got=got)


class Point:
    """A loss at some scores of a batch: its gradient, and its hessian or an estimate.

    ``loss`` may be a ``partial`` with the settings of the loss.
    """

    def __init__(self, loss: Callable[..., Tensor], scores: Tensor, batch: Batch, seed: int) -> None:
        self.loss, self.batch, self.seed, self.generator = loss, batch, seed, torch.Generator()
        self.scores = scores.detach().requires_grad_()
        try:
            self.graph = self._gradient_at(self.scores, create_graph=True)
        except ParameterError:  # a loss of ours that cannot be differentiated twice
            self.graph = self._gradient_at(self.scores)
        self.gradient = self._finite("gradient", self.graph.detach())

    def hessian(self, signs: Tensor) -> Tensor:
        """The diagonal, if the loss knows it, or else z * (H z) with these signs."""
        known = getattr(getattr(self.loss, "func", self.loss), "hessian", None)
        if known is not None:
            diagonal: Tensor = known(self.scores.detach(), self.batch, **getattr(self.loss, "keywords", {}))
            if diagonal.shape != self.scores.shape:
                expected = f"one value per document, {len(self.scores)} here"
                raise ParameterError(argument="hessian", expected=expected, got=f"shape {tuple(diagonal.shape)}")
            return self._finite("hessian", diagonal.detach())
        product = None
        if self.graph.requires_grad:
            try:
                product = torch.autograd.grad(self.graph, self.scores, signs, allow_unused=True)[0]
            except RuntimeError:  # it cannot be differentiated twice
                product = None
        if product is None or not product.any():
            ahead, behind = ((self.scores.detach() + step).requires_grad_() for step in (signs / 2, -signs / 2))
            product = self._gradient_at(ahead) - self._gradient_at(behind)
        return self._finite("hessian", signs * product)

    def _gradient_at(self, scores: Tensor, *, create_graph: bool = False) -> Tensor:
        self.batch.generator = self.generator.manual_seed(self.seed)  # the same draws at all points
        with seeded(self.seed):
            values = call_loss(self.loss, scores, self.batch)
        check_values(values, self.batch.n_queries)
        return torch.autograd.grad(values.sum(), scores, create_graph=create_graph)[0]

    def _finite(self, what: str, values: Tensor) -> Tensor:
        """The values, if all are finite. The error names the first document where one is not."""
        bad = (~torch.isfinite(values)).nonzero()
        if len(bad):
            row = int(bad[0])
            length = int(self.batch.lengths[self.batch.query[row]])
            raise ParameterError(
                argument="loss",
                expected=f"a finite {what}",
                got=f"{float(values[row])} at a document with rating {float(self.batch.ratings[row]):g} and score"
                f" {self.scores[row].item():g}, in a query of {length} documents",
                fix="check_gradient(loss) may show where it goes wrong",
            )
        return values


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
    tierank.errors.ParameterError: loss: expected ... by differences at document 0 for the derivative of query 0 ...
    """
    function, rng = as_loss(loss), np.random.default_rng(as_whole("seed", seed, 0))
    queries = []
    for k, n in enumerate([2, 1, *rng.integers(2, 13, 18).tolist()]):
        ratings = rng.integers(0, 4 if k % 5 else 2, n).astype(np.float64)
        queries.append((np.full(n, 2.0) if k % 5 == 4 else ratings, rng.normal(size=n)))
    with own_torch():
        torch.set_default_dtype(torch.float64)  # the default for tensors that the function creates
        try:
            offsets = np.cumsum([0, *(len(ratings) for ratings, _ in queries)])
            ratings, scores = (np.concatenate(one) for one in zip(*queries, strict=True))
            whole = Batch(offsets, ratings, gain=gain, dtype=torch.float64)
            together = call_loss(function, torch.tensor(scores, requires_grad=True), whole)
            check_values(together, len(queries))
            return max(_check_query(function, *query, gain, k, together[k].item()) for k, query in enumerate(queries))
        finally:
            torch.set_default_dtype(torch.float32)


def _check_query(
    loss: Callable[..., Tensor], ratings: Floats, scores: Floats, gain: Gain, number: int, among_others: float
) -> float:
    """The largest difference in one query by itself. Raises ``ParameterError`` if one is too large."""
    batch = Batch([0, len(ratings)], ratings, gain=gain, dtype=torch.float64)
    where = f"query {number} with ratings {ratings.tolist()} and scores {scores.round(4).tolist()}"

    def differentiate(at: Floats) -> tuple[float, Floats]:
        leaf = torch.tensor(at, requires_grad=True)
        values = loss(leaf, batch)
        check_values(values, 1)
        return values.item(), torch.autograd.grad(values.sum(), leaf)[0].numpy()

    value, gradient = differentiate(scores)
    steps = np.eye(len(scores)) * _STEP
    around = [(differentiate(scores + step), differentiate(scores - step)) for step in steps]
    slopes = [(ahead[0] - behind[0]) / (2 * _STEP) for ahead, behind in around]
    worst = max(
        _difference(f"the value of {where}", [value], [among_others], "among other queries"),
        _difference(f"the derivative of {where}", gradient.tolist(), slopes),
    )
    hessian = getattr(loss, "hessian", None)
    if hessian is None:
        return worst
    bends = [(ahead[1][i] - behind[1][i]) / (2 * _STEP) for i, (ahead, behind) in enumerate(around)]
    known = hessian(torch.tensor(scores, requires_grad=True), batch).tolist()
    return max(worst, _difference(f"the hessian of {where}", known, bends))


def _difference(what: str, got: list[float], expected: list[float], how: str = "by differences") -> float:
    """The largest difference, relative to the size of what is expected."""
    if len(got) != len(expected):
        raise ParameterError(argument="loss", expected=f"{len(expected)} numbers for {what}", got=str(len(got)))
    scale = max(1.0, *(abs(e) for e in expected))
    for i, (one, other) in enumerate(zip(got, expected, strict=True)):
        if not abs(one - other) <= _TOLERANCE * scale:
            wanted = f"{other:.4g} {how} at document {i} for {what}"
            raise ParameterError(argument="loss", expected=wanted, got=f"{one:.4g}")
    return max(abs(one - other) / scale for one, other in zip(got, expected, strict=True))
