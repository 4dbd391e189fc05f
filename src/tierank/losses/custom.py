"""Losses given by name or as functions of the user's: what they have to be, and trees that follow them."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats, Offsets
from tierank.data.relevance import Gain, as_gain
from tierank.errors import ParameterError
from tierank.kernels import n_threads
from tierank.losses.objective import Gradients, Objective, RatedDocuments
from tierank.settings import as_choice, as_whole

if TYPE_CHECKING:
    from torch import Tensor

    from tierank.losses.batch import Batch

# torch is imported only where a loss is used: uMart does not need it.

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
        as_loss(loss)  # raises an error if it cannot be used

    def __repr__(self) -> str:
        return f"LossObjective({self.loss!r}, gain={self.gain!r}, seed={self.seed})"

    def arrange(self, documents: RatedDocuments) -> list[tuple[slice, Batch]]:
        """Batches of whole queries, of about the number of documents that are computed at a time."""
        from tierank.losses.batch import Batch
        from tierank.losses.torch_state import own_torch

        edges = documents.offsets
        weights = None if documents.propensity is None else 1 / documents.propensity
        cuts = np.searchsorted(edges, np.arange(0, edges[-1], _DOCUMENTS_AT_ONCE))
        spans = pairwise(np.unique([*cuts, len(edges) - 1]).tolist())
        with own_torch():
            whole = Batch(edges, documents.ratings, gain=self.gain, weights=weights)
            return [(slice(edges[a], edges[b]), whole.take(np.arange(a, b))) for a, b in spans]

    def compute(self, data: list[tuple[slice, Batch]], scores: Floats) -> Gradients:
        """Gradient and hessian at these scores."""
        import torch

        from tierank.losses.derivatives import Point
        from tierank.losses.torch_state import own_torch

        values = scores.astype(np.float32)
        # Random draws depend on the scores, so that a resumed run draws the same.
        seed = (zlib.crc32(values.tobytes()) + self.seed) % (1 << 32)
        signs = torch.from_numpy(_balanced_signs(self._documents.offsets, seed))
        gradient, hessian = np.empty((2, len(values)), np.float32)
        loss = partial(as_loss(self.loss), **self.of_the_loss)
        threads = torch.get_num_threads()
        torch.set_num_threads(n_threads(self.n_jobs, worth=1))  # a part is too small for more
        try:
            with own_torch():
                for first, (rows, batch) in enumerate(data):
                    at = Point(loss, torch.from_numpy(values[rows]), batch, seed + first)
                    gradient[rows], hessian[rows] = at.gradient.numpy(), at.hessian(signs[rows]).numpy()
        finally:
            torch.set_num_threads(threads)
        np.maximum(np.abs(hessian), np.abs(gradient) / _LONGEST_STEP, out=hessian)
        return gradient, hessian


def _balanced_signs(offsets: Offsets, seed: int) -> NDArray[np.float32]:
    """+1 and -1 in random order within each query, in equal numbers, up to one."""
    rng = np.random.default_rng(seed)
    lengths = np.diff(offsets)
    query = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((rng.random(len(query)), query))
    first = np.repeat(rng.integers(0, 2, len(lengths)), lengths)
    signs = np.empty(len(query), np.float32)
    signs[order] = 1 - 2 * ((np.arange(len(query)) - np.repeat(offsets[:-1], lengths) + first) % 2)
    return signs


def as_loss(loss: Any) -> Callable[..., Tensor]:
    """The function by its name in ``LOSSES``, or as given."""
    from tierank.losses import LOSSES

    expected, got, fix = "a function (scores, batch) -> one value per query, or a name", "None", None
    if isinstance(loss, type):
        got, fix = repr(loss), f"pass {loss.__name__}()"
    elif loss is not None and not callable(loss):
        return LOSSES[as_choice("loss", loss, LOSSES)]
    elif loss is not None:
        try:
            signature = inspect.signature(loss)
            signature.bind(None, None, **dict.fromkeys(loss_keywords(loss)))
        except ValueError:  # some compiled functions have no signature
            return loss  # type: ignore[no-any-return]
        except TypeError:
            got = f"{getattr(loss, '__name__', type(loss).__name__)}{signature}"
            fix = "its settings are keyword-only arguments, after a *"
        else:
            return loss  # type: ignore[no-any-return]
    raise ParameterError(argument="loss", expected=expected, got=got, fix=fix)


def loss_keywords(loss: Callable[..., Any]) -> set[str]:
    """The names of the settings of a loss: its keyword-only arguments when it is called with a batch."""
    parameters = inspect.signature(inspect.unwrap(loss)).parameters
    return {name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}


def check_reads_gain(loss: Callable[..., Tensor], gain: Gain) -> None:
    """Raise an error if a gain was chosen and the loss, one of tierank's, does not use it."""
    if "gain" in getattr(loss, "without", ()) and as_gain(gain) != "exp2":
        name = getattr(loss, "__name__", "")
        raise ParameterError(
            argument="gain", expected=f"its default with the loss {name}, which uses ratings only", got=repr(gain)
        )


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


def check_loss_settings(loss: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise ``ParameterError`` if a loss does not have one of these settings."""
    known = loss_keywords(loss)
    for name in given:
        if name not in known:
            raise ParameterError.unknown(f"setting of the loss {getattr(loss, '__name__', loss)!r}", name, known)
    parameters = inspect.signature(inspect.unwrap(loss)).parameters
    for name in sorted(known - set(given)):
        if parameters[name].default is inspect.Parameter.empty:
            raise ParameterError(argument="loss_settings", expected=f"a value for {name!r}, which has no default")
