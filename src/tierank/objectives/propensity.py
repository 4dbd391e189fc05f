"""Weights of pairs by position, learned together with the trees, for training on clicks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tierank.types import Floats


class LearnedWeights:
    """Pairwise debiasing (Hu et al. 2019): a pair counts 1 / (t+(k) t-(l)) times, with d shown at k and d' at l.

    ``above`` is 1 / t+ of each document, ``below`` 1 / t-, both from 1 / ``clip`` to ``clip``.

    t+ is proportional to the chance that a relevant document is clicked at k, t- to the chance that an unclicked one at
    l is irrelevant. With L the loss of a pair at the scores of this round, each round ends with

        t+(k) = (A(k) / A(1))^(1 / (p + 1)),  A(k) = sum over pairs with d shown at k of L / t-(l)
        t-(l) = (B(l) / B(1))^(1 / (p + 1)),  B(l) = sum over pairs with d' shown at l of L / t+(k)

    Both start at 1. If no pair has a document at position 1, the first position that has one takes its role; a position
    without pairs keeps its value, which is not used.
    """

    def __init__(
        self, position: NDArray[np.int64], scale: NDArray[np.float32] | None, norm: float, clip: float
    ) -> None:
        self.place, self.n_positions = position - 1, int(position.max())
        self.scale, self.power, self.clip = scale, 1 / (norm + 1), clip
        self.load({"clicked": [1.0] * self.n_positions, "unclicked": [1.0] * self.n_positions})

    def load(self, state: dict[str, list[float]]) -> None:
        """Continue from these propensities."""
        self.clicked, self.unclicked = (np.array(state[name], np.float64) for name in ("clicked", "unclicked"))
        self.above = (1 / self.clicked)[self.place]
        self.below = (1 / self.unclicked)[self.place]

    def state(self) -> dict[str, list[float]]:
        """The propensities of clicked and unclicked positions."""
        return {"clicked": self.clicked.tolist(), "unclicked": self.unclicked.tolist()}

    def learn(self, loss_above: Floats, loss_below: Floats) -> None:
        """Update the propensities by what the documents add to the loss."""
        clicked = self._relative(loss_above, self.clicked)
        self.load({"clicked": clicked, "unclicked": self._relative(loss_below, self.unclicked)})

    def _relative(self, loss: Floats, before: Floats) -> list[float]:
        """Sums by position, relative to the first, to the power; added in a fixed order, for any number of threads."""
        weighted = loss if self.scale is None else loss * self.scale
        sums = np.bincount(self.place, weighted, minlength=self.n_positions)
        seen = np.flatnonzero(sums > 0)
        values = before.copy()
        if len(seen):
            with np.errstate(over="ignore"):
                values[seen] = ((sums[seen] / sums[seen[0]]) ** self.power).clip(1 / self.clip, self.clip)
        return [float(value) for value in values]
