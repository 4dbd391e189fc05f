"""Losses as callers of torch know them: of scores and ratings, flat with query ids, or padded with a mask.

And values whose derivatives are computed with them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import partial, wraps
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tierank.data.checks import as_array, group_rows
from tierank.data.relevance import Gain
from tierank.errors import DataError, DataTypeError, ParameterError
from tierank.losses.batch import Batch
from tierank.settings import as_choice


class _KnownGradient(torch.autograd.Function):
    """Values, one per query, whose derivatives have been computed with them."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, values: Tensor, gradient: Tensor, query: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, query)
        return values

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise ParameterError(
                argument="create_graph",
                expected="False with a loss that cannot be differentiated twice",
                got="True",
                fix="urank, listnet, listmle, plistmle, softmax and neuralndcg can be",
            )
        gradient, query = ctx.saved_tensors
        return gradient * outer[0].index_select(0, query), None, None, None


def with_gradient(scores: Tensor, values: Tensor, gradient: Tensor, batch: Batch) -> Tensor:
    """The values of the queries; ``backward`` uses this gradient with respect to the scores."""
    known: Tensor = _KnownGradient.apply(scores, values, gradient, batch.query)  # type: ignore[no-untyped-call]
    return known


REDUCTIONS = ("mean", "sum", "none")


class Loss(Protocol):
    """What an entry of ``LOSSES`` can be called with; the module ``tierank.losses`` says what the arguments mean.

    With a ``Batch``, it takes its own ``settings`` alone, such as ``sigma``, and returns one value per query.
    """

    __name__: str
    without: Collection[str]

    def __call__(
        self,
        scores: Tensor,
        ratings: Tensor | Batch,
        *,
        qid: Tensor | ArrayLike | None = None,
        mask: Tensor | None = None,
        reduction: str = "mean",
        gain: Gain = "exp2",
        weights: Tensor | None = None,
        row_weight: Tensor | None = None,
        generator: torch.Generator | None = None,
        **settings: Any,
    ) -> Tensor:
        """The loss."""


_SHARED = list(inspect.signature(Loss.__call__).parameters.values())[1:-1]
_NOTE = "\n\nIt takes a ``Batch``, or ratings with ``qid`` or ``mask``: see ``help(tierank.losses)``."


def loss(without: Collection[str] = ()) -> Callable[[Callable[..., Tensor]], Loss]:
    """Let a loss of ``(scores, batch)`` take ratings too, except for the arguments that mean nothing to it."""

    def decorate(of_batch: Callable[..., Tensor]) -> Loss:
        name = of_batch.__name__
        own = list(inspect.signature(of_batch).parameters.values())[2:]
        shared = [one for one in _SHARED if one.name not in without]
        known = {one.name: one in own for one in (*shared[2:], *own)}

        @wraps(of_batch)
        def called(scores: Tensor, ratings: Any, **given: Any) -> Tensor:
            for one in given:
                if one not in known:
                    raise ParameterError.unknown(f"argument of {name}", one, known)
                if isinstance(ratings, Batch) and not known[one]:
                    raise ParameterError(argument=one, expected="None with a Batch, which has its own", got="one")
            if isinstance(ratings, Batch):
                return of_batch(_wide(scores), ratings, **given)
            settings = {one: given.pop(one) for one in list(given) if known[one]}
            return _of_tensors(partial(of_batch, **settings), _wide(scores), ratings, **given)

        called.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
        called.without = without  # type: ignore[attr-defined]
        called.__doc__ = of_batch.__doc__ and inspect.cleandoc(of_batch.__doc__) + _NOTE
        return called  # type: ignore[return-value]

    return decorate


def _of_tensors(
    of_batch: Callable[[Tensor, Batch], Tensor],
    scores: Tensor,
    ratings: Any,
    *,
    qid: Any = None,
    mask: Any = None,
    reduction: str = "mean",
    weights: Any = None,
    row_weight: Any = None,
    **settings: Any,
) -> Tensor:
    """The loss of scores and ratings: of a batch of the rows that are documents, and reduced."""
    as_choice("reduction", reduction, REDUCTIONS)
    shape = _check_shape(scores, qid, mask)
    query = None if qid is None else _as_array("qid", qid, shape)
    if len(shape) == 2:
        query = np.repeat(np.arange(len(scores)), shape[1])
    rows = np.arange(scores.numel()) if mask is None else np.flatnonzero(_as_array("mask", mask, shape))
    values, queries = scores.flatten()[:0], rows
    if len(rows):
        queries, offsets, order = group_rows(None if query is None else query[rows], len(rows))
        rows = rows if order is None else rows[order]
        given = {"ratings": ratings, "weights": weights, "row_weight": row_weight}
        chosen: dict[str, Any] = {
            name: _as_array(name, one, shape)[rows]
            for name, one in given.items()
            if one is not None or name == "ratings"
        }
        is_bad = ~((chosen["ratings"] >= 0) & (chosen["ratings"] < np.inf))
        if is_bad.any():
            expected, got = "finite numbers that are not negative", f"{chosen['ratings'][is_bad.argmax()]:g}"
            fix = "leave out padding, and documents without a rating, by `mask`"
            raise DataError(argument="ratings", expected=expected, got=got, fix=fix)
        batch = Batch(offsets, **chosen, **settings, dtype=scores.dtype, device=scores.device)
        values = of_batch(scores.flatten()[torch.from_numpy(rows).to(scores.device)], batch)
    if reduction != "none":
        return values.sum() / (max(1, len(values)) if reduction == "mean" else 1)
    if len(shape) == 1:
        return values
    return values.new_zeros(len(scores)).index_add(0, torch.from_numpy(queries).to(scores.device), values)


def _wide(scores: Any) -> Tensor:
    """The scores in single or double precision; gradients come back in the precision that they have."""
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        got = f"a tensor of {scores.dtype}" if isinstance(scores, Tensor) else type(scores).__name__
        raise DataTypeError(argument="scores", expected="a tensor of floating-point numbers", got=got)
    return scores if scores.dtype == torch.float64 else scores.float()


def _check_shape(scores: Tensor, qid: Any, mask: Any) -> tuple[int, ...]:
    """The shape of scores that can be lists of documents."""
    shape = tuple(scores.shape)
    is_column = len(shape) > 1 and shape[-1] == 1  # as the last layer of a network leaves it
    if len(shape) not in (1, 2) or (len(shape) == 2 and qid is not None) or (is_column and mask is None):
        expected = "a flat tensor with `qid`" if qid is not None else "a row for each query, or a flat tensor"
        fix = "leave out `qid`: each row is a query" if len(shape) == 2 else None
        fix = "use scores.squeeze(-1)" if is_column else fix
        raise DataError(argument="scores", expected=expected, got=f"shape {shape}", fix=fix)
    return shape


def _as_array(name: str, given: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """An argument of the shape of the scores, flat."""
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = given.double() if given.is_floating_point() else given  # numpy has no bfloat16
    array = as_array(given)
    if array.shape != shape:
        raise DataError(argument=name, expected=f"the shape {shape} of the scores", got=f"shape {array.shape}")
    if name == "mask" and array.dtype != np.bool_:
        expected = "booleans, True for documents and False for padding"
        raise DataError(argument=name, expected=expected, got=f"numbers of {array.dtype}", fix="use mask.bool()")
    return array.reshape(-1)
