"""What each feature adds to the difference of two scores of a network: integrated gradients between two documents."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tierank.deadline import check_deadline
from tierank.losses import Batch
from tierank.types import Floats

# Initial pieces of a path, the most halvings of a piece, and the error that may remain of a difference.
_PIECES, _HALVINGS, _TOLERANCE = 8, 24, 1e-2
# Documents that go through the network at a time.
_CHUNK = 1 << 15
# Where a piece of a path is evaluated, from 0 to 1: its ends, and the nodes of Gauss's rule between them.
_NODES = np.array([0.0, 0.5 - 0.5 / 3**0.5, 0.5 + 0.5 / 3**0.5, 1.0])


def integrate_gradients(
    network: nn.Module, features: Tensor, above: NDArray[np.int64], below: NDArray[np.int64]
) -> Floats:
    """Contributions of the features to f(a) - f(b), for pairs of documents (a, b) of one list: pairs x features.

    Both documents start at their midpoint m = (x(a) + x(b)) / 2, where all features are equal, and move to their own
    features; the other documents of the list stay. With D = f(a) - f(b) and t from 0 to 1:

        phi_j = integral of (dD/dx_j(a) - dD/dx_j(b)) dt * (x_j(a) - x_j(b)) / 2

    For a network that scores one document at a time this is the plain path integral from b to a. Swapping the two only
    changes the sign of every contribution.
    """
    network, features = network.eval().double(), features.double()
    paths = (_Path(network, features, int(a), int(b)) for a, b in zip(above, below, strict=True))
    return np.array([path.integrate() for path in paths])


class _Path:
    """The path of two documents from their midpoint to their features."""

    def __init__(self, network: nn.Module, features: Tensor, a: int, b: int) -> None:
        self.network, self.features, self.a, self.b = network, features, a, b
        self.half = (features[a] - features[b]) / 2
        self.middle = features[b] + self.half
        with torch.no_grad():
            scores = network(features, _copies(1, len(features), features.device))
            alone = network(features[[a, b]], _copies(1, 2, features.device))
        self.noise = float(np.finfo(np.float32).eps * scores.std(correction=0))
        self.difference = float(scores[a] - scores[b])
        if torch.allclose(alone, scores[[a, b]], rtol=1e-9, atol=1e-12):  # this network ignores the other documents
            self.features, self.a, self.b = features[[a, b]], 0, 1

    def integrate(self) -> Floats:
        """The contributions. The sum over a piece of the path is known: pieces that miss it are halved.

        The gradient of a network with kinks (relu) jumps along the path, which no fixed number of steps handles.
        """
        total = np.zeros(len(self.half))
        limit = (_TOLERANCE * abs(self.difference) + self.noise) / 4
        starts, width = np.arange(_PIECES) / _PIECES, 1 / _PIECES
        for halving in range(_HALVINGS):
            values, gradients = self._look(starts[:, None] + width * _NODES)
            parts = gradients[:, 1:3].mean(axis=1) * width
            missed = np.abs(values[:, 3] - values[:, 0] - parts.sum(axis=1))
            # The pieces share the error limit; half of the remaining limit is kept for the next round.
            fine = (missed <= limit / 2 / max(len(starts), _PIECES)) | (halving == _HALVINGS - 1)
            total += parts[fine].sum(axis=0)
            limit -= float(missed[fine].sum())
            width /= 2
            starts = (starts[~fine, None] + [0.0, width]).ravel()
            if not len(starts):
                break
        return total

    def _look(self, places: Floats) -> tuple[Floats, Floats]:
        """D and the integrand of every phi_j at some places of the path: pieces x nodes, and x features."""
        looked = [self._look_at(part) for part in torch.split(torch.tensor(places.ravel()), self._at_a_time)]
        values, gradients = (np.concatenate(parts) for parts in zip(*looked, strict=True))
        return values.reshape(places.shape), gradients.reshape(*places.shape, -1)

    @property
    def _at_a_time(self) -> int:
        return max(1, _CHUNK // len(self.features))

    def _look_at(self, places: Tensor) -> tuple[Floats, Floats]:
        check_deadline()
        n, steps = len(places), places.to(self.half)[:, None] * self.half
        lists = self.features.repeat(n, 1, 1)  # places, documents, features
        lists[:, self.a], lists[:, self.b] = self.middle + steps, self.middle - steps
        lists.requires_grad_(True)
        scores = self.network(lists.flatten(0, 1), _copies(n, len(self.features), lists.device)).view(n, -1)
        difference = scores[:, self.a] - scores[:, self.b]
        if not difference.requires_grad:  # no learner was kept besides a base ranker
            return np.zeros(n), np.zeros((n, len(self.half)))
        (gradient,) = torch.autograd.grad(difference.sum(), lists)
        integrand = (gradient[:, self.a] - gradient[:, self.b]) * self.half
        return difference.detach().numpy(force=True), integrand.numpy(force=True)


def _copies(n: int, length: int, device: torch.device) -> Batch:
    """A batch of ``n`` copies of one list."""
    return Batch(np.arange(n + 1) * length, dtype=torch.float64, device=device)
