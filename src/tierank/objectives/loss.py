"""Trees that follow a loss, by automatic differentiation."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.checks import as_offsets, as_propensities
from tierank.errors import ParameterError
from tierank.kernels import n_threads
from tierank.objectives.objective import Gradients, Objective, scale_of
from tierank.relevance import Gain, as_gain
from tierank.settings import as_choice, as_whole

# torch is imported only if a loss is used: uMart does not need it.
if TYPE_CHECKING:
    from torch import Tensor

    from tierank.losses import Batch

# Documents whose loss is computed at a time.
_DOCUMENTS_AT_ONCE = 1 << 15
# No document moves by more than this in one Newton step.
_LONGEST_STEP = 4.0


class LossObjective(Objective):
    """Trees that follow a loss: a name of ``LOSSES``, or any function ``(scores, batch) -> one value per query``.

    The gradient g is that of the sum over the queries, by automatic differentiation. Trees use sums of the diagonal of
    the hessian H over leaves. A function can provide its diagonal as an attribute, ``function.hessian(scores, batch)``,
    one value per document. Otherwise the diagonal is estimated by one product with H (Hutchinson's estimate), with
    signs z that are drawn for each query by the seed and the scores, half of them -1:

        h(d) = max(|z(d) (H z)(d)|, |g(d)| / 4)

    If adding a number to all scores of a query changes nothing, as in all ``LOSSES``, the mean of z (H z) over all
    signs is the diagonal times 2 m / (2 m - 1), m = ceil(n / 2) for n documents; if the documents of a query also
    compete (no entry of H off the diagonal is positive: ``urank``, ``softmax``, ``listnet``, ``listmle``,
    ``ranknet``), z (H z) is never negative and never above twice the diagonal. The second term limits documents without
    curvature to a step of 4.

    H z is computed by differentiating twice; for losses that cannot be (``lambdaloss`` and others whose weights depend
    on ranks), it is the difference of the gradients at f + z / 2 and f - z / 2. So a round costs two or three
    gradients, for lists of any length.

    Keywords other than those below are settings of the loss.

    ``gain``             as of ``UMartObjective``, for ``batch.gains``
    ``n_jobs``           threads of torch; None: one for each core
    ``seed``             random seed of the signs and of the loss

    >>> objective = LossObjective("softmax").prepare(ratings=[2, 0, 0], offsets=[0, 3])
    >>> gradient, hessian = objective.gradients([0.0, 0.0, 0.0])
    >>> [round(float(g), 3) for g in gradient]
    [-0.667, 0.333, 0.333]
    """

    def __init__(
        self,
        loss: str | Callable[..., Tensor] = "urank",
        *,
        gain: Gain = "exp2",
        n_jobs: int | None = None,
        seed: int = 0,
        **of_the_loss: Any,
    ) -> None:
        self.loss, self.gain, self.n_jobs, self.seed = loss, as_gain(gain), n_jobs, as_whole("seed", seed, 0)
        self.of_the_loss = of_the_loss
        self._function()  # raises an error if it cannot be used

    def __repr__(self) -> str:
        return f"LossObjective({self.loss!r}, gain={self.gain!r}, seed={self.seed})"

    def _function(self) -> Callable[..., Tensor]:
        return partial(as_loss(self.loss), **self.of_the_loss)

    def prepare(
        self,
        ratings: ArrayLike,
        offsets: ArrayLike,
        row_weight: ArrayLike | None = None,
        query_weight: ArrayLike | None = None,
        *,
        position: ArrayLike | None = None,
        propensity: ArrayLike | None = None,
    ) -> Self:
        """Prepare for these documents; weights and propensities as in ``Objective.prepare``. Positions are not used."""
        from tierank.losses import Batch
        from tierank.torch_state import own_torch

        edges = as_offsets(offsets)
        weights = None if propensity is None else 1 / as_propensities(propensity)
        with own_torch():
            whole = Batch(edges, ratings, gain=self.gain, weights=weights)
            parts = [(int(edges[a]), int(edges[b]), whole.take(np.arange(a, b))) for a, b in _spans_of_queries(edges)]
        self._data = (parts, edges, scale_of(edges, row_weight, query_weight))
        self._seen = None
        return self

    def gradients(self, scores: ArrayLike) -> Gradients:
        """Gradient and hessian at these scores, one number per document."""
        import torch

        from tierank.torch_state import own_torch

        parts, edges, scale = self._prepared()
        checked = self._checked_scores(scores, int(edges[-1])).astype(np.float32)
        # Random draws depend on the scores, so that a resumed run draws the same.
        seed = (zlib.crc32(checked.tobytes()) + self.seed) % (1 << 32)
        signs = torch.from_numpy(_balanced_signs(edges, seed))
        gradient, hessian = np.empty((2, len(checked)), np.float32)
        threads = torch.get_num_threads()
        torch.set_num_threads(n_threads(self.n_jobs, worth=1))  # a part is too small for more
        try:
            with own_torch():
                for first, (start, end, batch) in enumerate(parts):
                    at = _Point(self._function(), torch.from_numpy(checked[start:end]), batch, seed + first)
                    gradient[start:end] = at.gradient.numpy()
                    hessian[start:end] = at.hessian(signs[start:end]).numpy()
        finally:
            torch.set_num_threads(threads)
        np.maximum(np.abs(hessian), np.abs(gradient) / _LONGEST_STEP, out=hessian)
        if scale is not None:
            np.multiply(gradient, scale, out=gradient)
            np.multiply(hessian, scale, out=hessian)
        return gradient, hessian


class _Point:
    """A loss at some scores of a batch: its gradient, and its hessian or an estimate."""

    def __init__(self, loss: Callable[..., Tensor], scores: Tensor, batch: Batch, seed: int) -> None:
        import torch

        self.loss, self.batch, self.generator = loss, batch, torch.Generator()
        self.seed = seed
        self.scores = scores.detach().requires_grad_()
        try:
            self.graph = self._gradient_at(self.scores, create_graph=True)
        except ParameterError:  # a loss of ours that cannot be differentiated twice
            self.graph = self._gradient_at(self.scores)
        self.gradient = self._check("gradient", self.graph.detach())

    def hessian(self, signs: Tensor) -> Tensor:
        """The diagonal, if the loss knows it, or else z * (H z) with these signs."""
        hessian = getattr(getattr(self.loss, "func", self.loss), "hessian", None)
        if hessian is not None:
            diagonal = hessian(self.scores.detach(), self.batch, **getattr(self.loss, "keywords", {}))
            if diagonal.shape != self.scores.shape:
                raise ParameterError(
                    f"hessian: expected one value per document, {len(self.scores)} here,"
                    f" got shape {tuple(diagonal.shape)}"
                )
            return self._check("hessian", diagonal.detach())
        product = self._product(signs)
        if product is None:
            half = signs / 2
            ahead, behind = ((self.scores.detach() + step).requires_grad_() for step in (half, -half))
            product = self._gradient_at(ahead) - self._gradient_at(behind)
        return self._check("hessian", signs * product)

    def _product(self, signs: Tensor) -> Tensor | None:
        """H z by differentiating twice; None if the loss does not support that, or has no curvature."""
        import torch

        if not self.graph.requires_grad:
            return None
        try:
            product: Tensor | None = torch.autograd.grad(self.graph, self.scores, signs, allow_unused=True)[0]
        except RuntimeError:
            return None
        return product if product is not None and product.any() else None

    def _gradient_at(self, scores: Tensor, *, create_graph: bool = False) -> Tensor:
        import torch

        from tierank.torch_state import seeded

        self.batch.generator = self.generator.manual_seed(self.seed)  # the same draws at all points
        with seeded(self.seed):
            values = self.loss(scores, self.batch)
        check_values(values, self.batch.n_queries)
        return torch.autograd.grad(values.sum(), scores, create_graph=create_graph)[0]

    def _check(self, what: str, values: Tensor) -> Tensor:
        """The values, if all are finite. The error names the first document where one is not."""
        import torch

        bad = (~torch.isfinite(values)).nonzero()
        if len(bad):
            row = int(bad[0])
            length = int(self.batch.lengths[self.batch.query[row]])
            raise ParameterError(
                f"loss: expected a finite {what}, got {float(values[row])} at a document with rating"
                f" {float(self.batch.ratings[row]):g} and score {self.scores[row].item():g}, in a query of {length}"
                " documents; check_gradient(loss) may show where it goes wrong"
            )
        return values


def as_loss(loss: Any) -> Callable[..., Tensor]:
    """The function by its name in ``LOSSES``, or as given."""
    from tierank.losses import LOSSES

    if loss is None or (callable(loss) and not _takes_two(loss)):
        got = "None" if loss is None else f"{getattr(loss, '__name__', type(loss).__name__)}{inspect.signature(loss)}"
        raise ParameterError(
            argument="loss",
            expected="a function (scores, batch) -> one value per query, or a name",
            got=got,
            fix=None if loss is None else "its settings are keyword-only arguments, after a *",
        )
    return loss if callable(loss) else LOSSES[as_choice("loss", loss, LOSSES)]


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with two arguments and its settings, as far as Python knows."""
    try:
        inspect.signature(function).bind(None, None, **dict.fromkeys(loss_keywords(function)))
    except TypeError:
        return False
    except ValueError:  # some compiled functions have no signature
        return True
    return True


def check_reads_gain(loss: Callable[..., Tensor], gain: Gain) -> None:
    """Raise an error if a gain was chosen and the loss, one of tierank's, does not use it."""
    from tierank.losses import WITHOUT_GAINS

    if loss in WITHOUT_GAINS and as_gain(gain) != "exp2":
        name = getattr(loss, "__name__", "")
        raise ParameterError(f"gain: expected no gain with the loss {name}, which uses ratings only")


def check_reads_propensity(loss: Callable[..., Tensor]) -> None:
    """Raise an error if a loss does not support inverse propensities."""
    from tierank.losses import WITH_WEIGHTS

    function = getattr(loss, "func", loss)
    if function not in WITH_WEIGHTS:
        known = ", ".join(one.__name__ for one in WITH_WEIGHTS)
        raise ParameterError(
            argument="propensity",
            expected=f"None with the loss {getattr(function, '__name__', function)!r}, which has no weights",
            got="some",
            fix=f"these losses have: {known}; or learn from tierank.clicks.judgements",
        )


def loss_keywords(loss: Callable[..., Any]) -> set[str]:
    """The names of the settings of a loss: its keyword-only arguments."""
    return {name for name, one in inspect.signature(loss).parameters.items() if one.kind is one.KEYWORD_ONLY}


def check_loss_settings(loss: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise ``ParameterError`` if a loss does not have one of these settings."""
    known = loss_keywords(loss)
    for name in given:
        if name not in known:
            raise ParameterError.unknown(f"setting of the loss {getattr(loss, '__name__', loss)!r}", name, known)
    parameters = inspect.signature(loss).parameters
    for name in sorted(known - set(given)):
        if parameters[name].default is inspect.Parameter.empty:
            raise ParameterError(argument="loss_settings", expected=f"a value for {name!r}, which has no default")


def check_values(values: Any, n_queries: int) -> None:
    """Check that a loss returned one value per query that depends on the scores."""
    shape = tuple(getattr(values, "shape", ())) if hasattr(values, "requires_grad") else None
    if shape != (n_queries,) or not values.requires_grad:
        got = "values that do not depend on the scores" if shape == (n_queries,) else f"shape {shape}"
        got = f"{values!r}, which is not a tensor" if shape is None else got
        raise ParameterError(f"loss: expected one value per query, {n_queries} here, got {got}")


def _balanced_signs(offsets: NDArray[np.int64], seed: int) -> NDArray[np.float32]:
    """+1 and -1 in random order within each query, in equal numbers, up to one."""
    rng = np.random.default_rng(seed)
    lengths = np.diff(offsets)
    query = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((rng.random(len(query)), query))
    first = np.repeat(rng.integers(0, 2, len(lengths)), lengths)
    signs = np.empty(len(query), np.float32)
    signs[order] = 1 - 2 * ((np.arange(len(query)) - np.repeat(offsets[:-1], lengths) + first) % 2)
    return signs


def _spans_of_queries(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Spans of whole queries of about the number of documents that are computed at a time."""
    cuts = np.searchsorted(offsets, np.arange(0, offsets[-1], _DOCUMENTS_AT_ONCE))
    return pairwise(np.unique([*cuts, len(offsets) - 1]).tolist())
