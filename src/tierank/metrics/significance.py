"""Significance: paired tests, adjustment for multiple tests, and the number of queries needed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.errors import ParameterError
from tierank.files import for_json
from tierank.settings import Number

# An adjusted p below this is called significant.
SIGNIFICANT = 0.05
# The coverage of intervals, which exclude 0 exactly if the p before adjustment is below 1 - LEVEL.
LEVEL = 0.95
# The smallest difference that most people act on, and the usual power to detect it.
SMALL, POWER = 0.005, 0.8
# Smaller differences of values count as rounding.
ROUNDING = 1e-12

Verdict = Literal["better", "worse", "no difference shown", "too few queries"]


@dataclass(frozen=True)
class Contrast:
    """One system compared with the baseline in one metric. Numbers that are undefined for a single query are NaN.

    Attributes
    ----------
    difference : float
        The mean difference over queries.
    low, high : float
        The 95% interval of the difference, that of the t-test: it excludes 0 exactly if ``p`` is below 0.05. It is not
        adjusted for other tests. NaN if all queries have the same difference, whose spread is then unknown.
    p, adjusted_p : float
        The p-value of the paired t-test, raw and adjusted for the other tests of the same call: by Holm's method over
        systems, by Benjamini and Hochberg's over segments. That of the sign test if all queries have the same
        difference.
    wins, ties, losses : int
        Number of queries in which the system is better than the baseline, equal, or worse.
    spread : float
        The standard deviation of the differences over queries.
    """

    difference: float
    low: float
    high: float
    p: float
    adjusted_p: float
    wins: int
    ties: int
    losses: int
    spread: float

    @property
    def n_queries(self) -> int:
        """Number of queries that were judged."""
        return self.wins + self.ties + self.losses

    @property
    def verdict(self) -> Verdict:
        """``better`` or ``worse`` if the adjusted p is below 0.05, else ``no difference shown``."""
        return verdict_of(self.difference, self.adjusted_p)

    @property
    def mark(self) -> str:
        """The verdict as ``*+``, ``*-`` or nothing."""
        return {"better": "*+", "worse": "*-"}.get(self.verdict, "")

    def queries_needed(self, difference: float = SMALL, *, power: float = POWER) -> int | None:
        """The number of queries like these needed to detect a mean difference by a two-sided paired t-test at 5%.

        Parameters
        ----------
        difference : float, default 0.005
            The difference to detect.
        power : float, default 0.8
            The power: the chance to detect it.

        Returns
        -------
        int or None
            None if there is only one query, whose spread is unknown.
        """
        return None if math.isnan(self.spread) else paired_sample_size(self.spread, difference, power=power)

    def detectable(self, *, power: float = POWER) -> float:
        """The mean difference that these queries can detect with this power.

        Parameters
        ----------
        power : float, default 0.8
            The power: the chance to detect it.

        Returns
        -------
        float
            NaN if there is only one query, whose spread is unknown.
        """
        return detectable_difference(self.spread, self.n_queries, power=power)

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON: the fields, ``verdict``, and ``queries_needed`` to see a difference of 0.005, if known."""
        try:
            needed = self.queries_needed()
        except ParameterError:  # values so large that no number of queries would do
            needed = None
        return for_json(asdict(self)) | {"verdict": self.verdict, "queries_needed": needed}


def verdict_of(difference: float, adjusted_p: float) -> Verdict:
    """The verdict on a difference, by its adjusted p-value."""
    if not adjusted_p < SIGNIFICANT:
        return "no difference shown"
    return "better" if difference > 0 else "worse"


class Paired(NamedTuple):
    """The fields of ``Contrast`` for several tests at once, apart from the adjusted p: an array of each."""

    difference: Floats
    low: Floats
    high: Floats
    p: Floats
    wins: NDArray[np.int64]
    ties: NDArray[np.int64]
    losses: NDArray[np.int64]
    spread: Floats

    @classmethod
    def of(cls, differences: Floats, fewest: int = 2) -> Paired:
        """The two-sided paired t-test: t = mean / (standard deviation / sqrt(n)), and the 95% interval that inverts it.

        The interval has all means that the test does not reject at 5%, so it excludes 0 exactly if p < 0.05. If all
        differences are equal, their spread is unknown: there is no interval (NaN), and p is that of the sign test,
        2^(1 - n), or 1 without any difference. With fewer values than ``fewest``, p is NaN too.

        >>> found = Paired.of(np.array([[0.0, 0.0, 0.0], [0.3, 0.1, 0.2], [0.5, 0.5, 0.5]]))
        >>> found.p.round(4).tolist()
        [1.0, 0.0742, 0.25]
        >>> found.low.round(4).tolist(), found.high.round(4).tolist()
        ([nan, -0.0484, nan], [nan, 0.4484, nan])
        """
        from scipy.special import stdtr, stdtrit  # takes long to load (0.15 s), and only comparisons need it

        n, mean = differences.shape[-1], differences.mean(axis=-1)
        wins, losses = (differences > 0).sum(axis=-1), (differences < 0).sum(axis=-1)
        low = high = p = spread = np.full(mean.shape, np.nan)
        if n > 1:
            spread = differences.std(axis=-1, ddof=1)
        if n >= fewest:
            error = np.where(np.ptp(differences, axis=-1) > ROUNDING, spread / math.sqrt(n), np.nan)
            if_equal = np.where(np.abs(mean) > ROUNDING, 0.5 ** (n - 1), 1.0)
            p = np.where(np.isnan(error), if_equal, 2 * stdtr(n - 1, -np.abs(mean) / error))
            reach = stdtrit(n - 1, 0.5 + LEVEL / 2) * error
            low, high = mean - reach, mean + reach
        return cls(mean, low, high, p, wins, n - wins - losses, losses, spread)

    def contrast(self, at: tuple[int, ...], adjusted_p: float) -> Contrast:
        """One of these tests, with its adjusted p."""
        numbers = {name: values[at].item() for name, values in self._asdict().items()}
        return Contrast(adjusted_p=float(adjusted_p), **numbers)


def paired_p(differences: Floats) -> Floats:
    """The two-sided p of a paired t-test over the last axis: see ``Paired.of``."""
    return Paired.of(differences).p


def ratio_interval(differences: Floats, base: Floats) -> tuple[float, float]:
    """The 95% interval of mean difference / mean base, by Fieller's theorem; NaN if the base may be 0.

    It has the ratios r for which the paired t-test of differences - r * base does not reject a mean of 0 at 5%, so it
    excludes 0 exactly if the test of the differences rejects.

    >>> low, high = ratio_interval(np.array([0.3, 0.1, 0.2, 0.1]), np.array([0.5, 0.4, 0.6, 0.5]))
    >>> round(low, 3), round(high, 3)
    (0.051, 0.628)
    """
    from scipy.special import stdtrit

    n = len(base)
    if n == 1 or np.ptp(differences) <= ROUNDING:
        return math.nan, math.nan
    (d, b), ((dd, db), (_, bb)) = (differences.mean(), base.mean()), np.cov(differences, base)
    reach = stdtrit(n - 1, 0.5 + LEVEL / 2) ** 2 / n
    # (d - r b)^2 <= reach * (dd - 2 r db + r^2 bb), an interval of r if the square's factor is above 0.
    square, middle, rest = b * b - reach * bb, d * b - reach * db, d * d - reach * dd
    if not square > 0:
        return math.nan, math.nan
    root = math.sqrt(max(0.0, middle * middle - square * rest))
    return float((middle - root) / square), float((middle + root) / square)


def two_sample_p(inside: Floats, outside: Floats) -> float:
    """The two-sided p-value for the means of two groups: the larger one of Student's and Welch's t-test.

    Student's assumes one spread for both groups, which is wrong if a small group has a larger one; Welch's trusts the
    spread of a small group, which may be 0 by chance.

    >>> round(two_sample_p(np.array([0.1, 0.2, 0.3]), np.array([0.5, 0.9, 0.6, 0.8])), 4)
    0.0083
    """
    from scipy.special import stdtr

    n, m = len(inside), len(outside)
    if min(n, m) < 2:
        return math.nan
    difference = float(inside.mean() - outside.mean())
    a, b = float(inside.var(ddof=1)), float(outside.var(ddof=1))
    if a == b == 0:
        return 1.0 if difference == 0 else 0.0
    pooled = ((n - 1) * a + (m - 1) * b) / (n + m - 2) * (1 / n + 1 / m)
    welch = a / n + b / m
    freedom = welch**2 / ((a / n) ** 2 / (n - 1) + (b / m) ** 2 / (m - 1))
    tests = ((n + m - 2, pooled), (freedom, welch))
    return max(float(2 * stdtr(free, -abs(difference) / math.sqrt(square))) for free, square in tests)


def holm(p: Floats) -> Floats:
    """Adjust p-values by Holm's method: the i-th smallest of m becomes the highest so far of (m - i + 1) p, at most 1.

    The chance of any false positive stays below the level.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    order = p.argsort(kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return adjusted


def benjamini_hochberg(p: Floats) -> Floats:
    """Adjust p-values by the method of Benjamini and Hochberg: the i-th smallest of m becomes the lowest of (m / j) p_j
    over j >= i.

    Of the tests below a level, the expected share of false positives is at most that level. NaN means not tested, and
    does not count.

    >>> benjamini_hochberg(np.array([0.01, 0.04, np.nan, 0.03])).tolist()
    [0.03, 0.04, nan, 0.04]
    """
    adjusted = np.full(p.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[p[tested].argsort(kind="stable")]
    scaled = p[order] * len(order) / np.arange(1, len(order) + 1)
    adjusted[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return adjusted


def control_discoveries(p: Floats, differences: Floats) -> Floats:
    """Adjust two-sided p-values to control the false discovery rate in each direction.

    The one-sided p-values for "worse" are adjusted by the method of Benjamini and Hochberg and doubled, and so are
    those for "better"; a test gets the value for the direction of its difference. Of all tests called worse at 0.05,
    the expected share of false positives is then at most 2.5%, however many are better, and of all positives at most
    5%. (Adjusting two-sided p-values does not bound the share among those called worse.)

    >>> control_discoveries(np.array([0.01, 0.2, 0.001]), np.array([-1.0, 1.0, 1.0])).round(6).tolist()
    [0.03, 0.3, 0.003]
    """
    adjusted = np.full(p.shape, np.nan)
    for sign in (-1, 1):
        is_its = np.sign(differences) == sign
        one_sided = np.where(is_its, p / 2, 1 - p / 2)
        adjusted = np.where(is_its, np.minimum(2 * benjamini_hochberg(one_sided), 1), adjusted)
    return np.where(differences == 0, np.where(np.isnan(p), np.nan, 1.0), adjusted)


def paired_sample_size(spread: float, difference: float = SMALL, *, power: float = POWER) -> int:
    """The number of queries at which a two-sided paired t-test at 5% detects a mean difference with this power.

    n = ((z_0.975 + z_power) spread / difference)^2 + z_0.975^2 / 2; the second term accounts for the unknown spread.

    >>> paired_sample_size(0.1)
    3142
    """
    difference, spread = Number(above=0).check("difference", difference), Number(0).check("spread", spread)
    root = _reach(power) * spread / difference
    if root > _MOST_QUERIES:
        expected = f"one that {_MOST_QUERIES**2:.0e} queries with a spread of {spread:g} can show"
        raise ParameterError(argument="difference", expected=expected, got=f"{difference:g}")
    return max(2, math.ceil(root**2 + _T_MORE))


def detectable_difference(spread: float, n_queries: int, *, power: float = POWER) -> float:
    """The mean difference that a two-sided paired t-test at 5% detects with this power; see ``paired_sample_size``.

    >>> round(detectable_difference(0.1, 3142), 4)
    0.005
    """
    return _reach(power) * spread / math.sqrt(max(n_queries - _T_MORE, 1))


# z_0.975 squared and halved.
_T_MORE = 1.9207
# The square root of the largest number of queries.
_MOST_QUERIES = 1 << 53


def _reach(power: float) -> float:
    """z_0.975 + z_power: how many standard errors a mean difference has to be from 0; 0 if the level alone is more."""
    from scipy.special import ndtri

    return max(0.0, float(ndtri(0.975)) + float(ndtri(Number(above=0, below=1).check("power", power))))
