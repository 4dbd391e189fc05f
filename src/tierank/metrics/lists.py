"""Lists: ranked documents as the formulas read them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tierank.kernels.ranking import Ranking, discounted_sum, exp2_gains
from tierank.types import Floats

if TYPE_CHECKING:
    from tierank.metrics.judge import Judge


class Lists:
    """Ranked documents as metrics read them: one array for each fact, in the order of the ranks.

    Facts are looked up for the ranked documents alone: mostly a small part of all, and shared by the metrics.
    """

    def __init__(self, judge: Judge, ranking: Ranking, levels: Floats | None = None) -> None:
        self._judge = judge
        self.starts, self._rows, _, self.tie_ends = ranking
        self._levels = levels

    def sum(self, values: Floats, discounts: Floats, depth: int) -> Floats:
        """The sum of value times discount to this depth, for each query."""
        return discounted_sum(values, discounts, depth, self.starts, self.tie_ends)

    @cached_property
    def levels(self) -> Floats:
        """What the gain of each document is made of."""
        return self._of(self._judge.levels) if self._levels is None else self._levels

    @cached_property
    def ratings(self) -> Floats:
        """The rating of each document."""
        return self.levels if self._judge.levels is self._judge.ratings else self._of(self._judge.ratings)

    @cached_property
    def gains(self) -> Floats:
        """The gain of each document; infinite where float64 cannot hold it."""
        if self._judge.rule.gain == "exp2":
            return exp2_gains(self.levels, self.starts, np.zeros(len(self.starts) - 1))
        return self.levels

    @cached_property
    def relative_gains(self) -> Floats:
        """The gain of each document in units of the query's highest (exp2: of the query's highest, plus 1)."""
        tops = self._judge.tops
        if self._judge.rule.gain == "exp2":
            return exp2_gains(self.levels, self.starts, tops)
        units: Floats = np.repeat(np.where(tops > 0, tops, 1), np.diff(self.starts))
        return np.divide(self.levels, units)

    @cached_property
    def relevant(self) -> Floats:
        """1 for each relevant document, 0 for the others."""
        return self._judge.relevance(self.ratings)

    @cached_property
    def judged(self) -> Floats:
        """1 for each document with a rating, 0 for the others."""
        return self._of(self._judge.judged)

    def _of(self, values: Floats) -> Floats:
        return np.take(values, self._rows, mode="clip")  # faster than checking rows that are known to be there
