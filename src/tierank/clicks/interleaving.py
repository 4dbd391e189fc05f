"""Interleaving two rankers, whose clicks show which one is better; power and sample size of online comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from tierank.data.checks import as_array, as_clicks, as_numbers
from tierank.errors import DataError, ParameterError
from tierank.settings import Number, as_number, as_whole

# Exponent of probabilistic interleaving: a document at rank r is drawn with a probability proportional to 1 / r^3.
_TAU = 3.0
_CHANCE = Number(above=0, below=1)
# The largest number of sessions; floats can represent every integer up to it.
_MOST = 1 << 53


@dataclass(frozen=True)
class Interleaved:
    """An interleaved list of two rankers.

    Parameters
    ----------
    documents : tuple
        The documents to show, from the top.
    credit : tuple of float
        The credit for a click on each document: above 0 for the first ranker, below 0 for the second.
    """

    documents: tuple[Any, ...]
    credit: tuple[float, ...]

    def outcome(self, clicked: ArrayLike) -> float:
        """The total credit of the clicks: above 0 for the first ranker, below 0 for the second.

        The mean over sessions tells which ranker is better (``preference``); it is 0 if clicks do not depend on
        documents. The signs do not tell: many little wins may be balanced by a few large losses.

        Parameters
        ----------
        clicked : array of bool
            One value per document of the list.
        """
        return float(np.dot(as_clicks(clicked, len(self.documents)), self.credit))


def interleave(
    first: Sequence[Hashable],
    second: Sequence[Hashable],
    *,
    method: str = "team-draft",
    k: int = 10,
    seed: int | np.random.Generator = 0,
) -> Interleaved:
    """Combine the lists of two rankers into one.

    =================  ================================================================================================
    ``team-draft``     the rankers pick their best remaining document in turns, in random order in each round; a click
                       counts for the ranker that picked it (Radlinski et al. 2008)
    ``probabilistic``  at each rank a ranker is drawn, and draws a remaining document with a chance proportional to
                       1 / rank^3; a click is shared by how likely each would have drawn it (Hofmann et al. 2011)
    =================  ================================================================================================

    In all of them, the mean credit at each rank is 0. So no ranker is favoured by users who click without looking at
    the documents, whatever their clicks depend on otherwise: ranks, or the clicks above. Draw each session's list anew.

    Once a ranker has no document left, the list continues with those of the other, and clicks on them count for
    neither: at random clicks, the ranker with the longer list would win.

    Parameters
    ----------
    first, second : sequences
        The documents of each ranker, best first, each once.
    method : str, default "team-draft"
        A name of ``INTERLEAVINGS``.
    k : int, default 10
        Length of the list.
    seed : int or numpy Generator, default 0
        Random seed; pass a generator, or another seed for each session.

    Returns
    -------
    Interleaved

    Examples
    --------
    >>> shown = interleave(["a", "b", "c"], ["b", "c", "d"], k=2, seed=1)
    >>> shown.documents, shown.credit
    (('a', 'b'), (1.0, -1.0))
    """
    if method not in INTERLEAVINGS:
        raise ParameterError.unknown("method", method, INTERLEAVINGS)
    as_whole("k", k)
    lists = (list(first), list(second))
    for name, documents in zip(("first", "second"), lists, strict=True):
        try:
            n_different = len(set(documents))
        except TypeError as error:
            raise DataError(argument=name, expected="hashable documents", got=f": {error}") from None
        if not documents or n_different < len(documents):
            raise DataError(argument=name, expected="at least one document, each once", got=f"{len(documents)}")
    rng = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(as_whole("seed", seed, 0))
    return INTERLEAVINGS[method](*lists, k, rng)


def _team_draft(first: list[Any], second: list[Any], k: int, rng: np.random.Generator) -> Interleaved:
    shown: dict[Any, float] = {}
    while len(shown) < k:
        left = [[d for d in ranked if d not in shown] for ranked in (first, second)]
        if not any(left):
            break
        both = bool(left[0] and left[1])
        begins = int(rng.integers(2)) if both else int(not left[0])
        # The second pick counts if there is one whoever begins; otherwise random clicks would favour a ranker.
        answers = both and (left[0][0] != left[1][0] or min(map(len, left)) > 1)
        for turn, counts in ((begins, both), (1 - begins, answers))[: k - len(shown)]:
            free = [d for d in (*left[turn], *left[1 - turn]) if d not in shown]
            if free:
                shown[free[0]] = 1.0 - 2.0 * turn if counts else 0.0
    return Interleaved(tuple(shown), tuple(shown.values()))


def _probabilistic(first: list[Any], second: list[Any], k: int, rng: np.random.Generator) -> Interleaved:
    chances = [{d: 1 / r**_TAU for r, d in enumerate(ranked, 1)} for ranked in (first, second)]
    shown: list[Any] = []
    credit: list[float] = []
    while len(shown) < k and any(chances):
        turn, counts = int(rng.integers(2)), all(chances)
        turn = turn if chances[turn] else 1 - turn
        documents, weights = list(chances[turn]), np.array(list(chances[turn].values()))
        drawn = documents[int(rng.choice(len(documents), p=weights / weights.sum()))]
        likely = [one[drawn] / sum(one.values()) if drawn in one else 0.0 for one in chances]
        credit.append((likely[0] - likely[1]) / sum(likely) if counts else 0.0)
        shown.append(drawn)
        for one in chances:
            one.pop(drawn, None)
    return Interleaved(tuple(shown), tuple(credit))


INTERLEAVINGS: dict[str, Callable[[list[Any], list[Any], int, np.random.Generator], Interleaved]] = {
    "team-draft": _team_draft,
    "probabilistic": _probabilistic,
}


@dataclass(frozen=True)
class Preference:
    """The result of ``preference``.

    ``mean`` is the mean outcome per session, with its interval ``low`` to ``high`` at the given ``level`` (NaN if there
    are only ties); above 0, users prefer the first ranker. ``p`` is the p-value for a mean of 0. ``wins``, ``losses``
    and ``ties`` count sessions with an outcome above 0, below 0, and of 0.
    """

    wins: int
    losses: int
    ties: int
    mean: float
    low: float
    high: float
    p: float
    level: float

    def __str__(self) -> str:
        if not self.wins + self.losses:
            return f"neither ranker won any of {self.ties:,} sessions, so there is no evidence of a preference"
        return (
            f"mean credit {self.mean:.4g} ({self.level:.0%} interval {self.low:.4g} to {self.high:.4g}),"
            f" p = {self.p:.4g}; first won {self.wins:,}, second won {self.losses:,}, ties {self.ties:,}"
        )


def preference(outcomes: ArrayLike, *, level: float = 0.95) -> Preference:
    """Test which ranker users prefer, by the mean outcome.

    Without a preference, the mean is 0 in all methods of ``interleave``. Wins need not be as many as losses: a few
    sessions with much credit may balance many with a little. With outcomes x,

        z = sum of x / sqrt(sum of x^2)

    is then normal, and p is its two-sided p-value, but at least 2^(1-m) with m outcomes other than 0: the chance that m
    coins fall alike, so that a few equal outcomes prove nothing. The interval contains the means that would not be
    rejected, given the mean of x^2. For outcomes of 1 and -1, these are McNemar's test and Wilson's interval.

    The test holds its level from some 50 sessions with clicks.

    Parameters
    ----------
    outcomes : array
        One number per session, from ``Interleaved.outcome``. Each session needs a list drawn for it.
    level : float, default 0.95
        Coverage of the interval.

    Returns
    -------
    Preference

    Examples
    --------
    >>> print(preference([1, 1, 1, 0, 1, 1, -1, 1, 1, 1]))
    mean credit 0.7 (95% interval 0.1165 to 0.895), p = 0.01963; first won 8, second won 1, ties 1
    """
    level = as_number("level", level, 0.01, 0.999)
    given = as_numbers(as_array(outcomes), "outcomes").astype(np.float64)
    if given.ndim != 1 or not np.isfinite(given).all():
        raise DataError(argument="outcomes", expected="one finite number per session", got=f"shape {given.shape}")
    wins, losses, n = int((given > 0).sum()), int((given < 0).sum()), len(given)
    if not wins + losses:
        return Preference(0, 0, n, 0.0, math.nan, math.nan, 1.0, level)
    largest = float(np.abs(given).max())
    x = given / largest  # squares neither overflow nor underflow
    mean, square = float(x.mean()), float((x**2).mean())
    p = max(2 * float(ndtr(-abs(mean) * math.sqrt(n / square))), 2.0 ** (1 - wins - losses))
    # The means m with (mean - m)^2 <= z^2 (square - m^2) / n.
    share = float(ndtri((1 + level) / 2)) ** 2 / n
    reach = math.sqrt(max(share * ((1 + share) * square - mean**2), 0.0))
    low, high = (largest * (mean + side * reach) / (1 + share) for side in (-1, 1))
    return Preference(wins, losses, n - wins - losses, largest * mean, low, high, p, level)


def interleaving_power(
    n_sessions: int,
    *,
    share: float | None = None,
    ties: float = 0.0,
    mean: float | None = None,
    sd: float | None = None,
    alpha: float = 0.05,
) -> float:
    """The chance that ``preference`` shows the better ranker, at the level ``alpha``.

    With m and s the mean and the standard deviation of the outcomes, z the quantile 1 - alpha / 2, and n sessions:
    Phi((|m| sqrt(n) - z sqrt(m^2 + s^2)) / s).

    Parameters
    ----------
    n_sessions : int
        Number of sessions.
    share : float, optional
        For ``team-draft`` with at most one click that counts per session: the share of the better ranker among the
        sessions that are not ties, such as 0.52. Then m = (1 - ties) (2 share - 1), and m^2 + s^2 = 1 - ties.
    ties : float, default 0.0
        The share of ties among all sessions, such as sessions without clicks.
    mean, sd : float, optional
        m and s themselves, in place of ``share``, for any method: those of the outcomes of some sessions.
    alpha : float, default 0.05
        Significance level.

    Returns
    -------
    float

    Examples
    --------
    >>> round(interleaving_power(1000, share=0.55), 3)
    0.887
    """
    n_sessions = as_whole("n_sessions", n_sessions, most=_MOST)
    z, (effect, spread) = _quantile("alpha", alpha, 2), _outcome_moments(share, ties, mean, sd)
    return float(ndtr((effect * math.sqrt(n_sessions) - z) / spread))


def interleaving_sample_size(
    *,
    share: float | None = None,
    ties: float = 0.0,
    mean: float | None = None,
    sd: float | None = None,
    power: float = 0.8,
    alpha: float = 0.05,
) -> int:
    """The number of sessions that gives an interleaving experiment this power; see ``interleaving_power``.

    n = ((z_{1-alpha/2} sqrt(m^2 + s^2) + z_power s) / m)^2.

    Parameters
    ----------
    share : float, optional
        For ``team-draft`` with at most one click that counts per session: the share of the better ranker among the
        sessions that are not ties, such as 0.52.
    ties : float, default 0.0
        The share of ties among all sessions, such as sessions without clicks.
    mean, sd : float, optional
        The mean and the standard deviation of the outcomes, in place of ``share``, for any method.
    power : float, default 0.8
        The chance to detect the preference.
    alpha : float, default 0.05
        Significance level.

    Returns
    -------
    int

    Examples
    --------
    >>> interleaving_sample_size(share=0.55)
    783
    >>> interleaving_sample_size(mean=0.02, sd=0.3)
    1772
    """
    z, (effect, spread) = _quantile("alpha", alpha, 2), _outcome_moments(share, ties, mean, sd)
    needed = z + _quantile("power", power) * spread
    if not effect:
        name, bounds, value = (
            ("share", Number(above=0.5, below=1), share) if mean is None else ("mean", Number(above=0), mean)
        )
        raise bounds.refuse(name, value)
    return _sessions(needed / effect)


def ab_power(n_sessions: int, *, base: float, lift: float, sd: float | None = None, alpha: float = 0.05) -> float:
    """The chance that an A/B test shows the lift, by the two-sided test of two means.

    With d = base * lift and n sessions in each group: Phi((|d| sqrt(n) - z s_0) / s_1), where s_0^2 = 2 m (1 - m) with
    m the mean of both rates and s_1^2 the sum of their variances; both are 2 sd^2 if ``sd`` is given.

    Parameters
    ----------
    n_sessions : int
        Number of sessions in each of the two groups.
    base : float
        What a session earns now: a rate between 0 and 1, or any mean if ``sd`` is given.
    lift : float
        The relative change: 0.02 is 2% more.
    sd : float, optional
        The standard deviation over sessions. Default: that of a rate.
    alpha : float, default 0.05
        Significance level.

    Returns
    -------
    float

    Examples
    --------
    >>> round(ab_power(10_000, base=0.3, lift=0.05), 3)
    0.633
    """
    n_sessions = as_whole("n_sessions", n_sessions, most=_MOST)
    z, (difference, null, spread) = _quantile("alpha", alpha, 2), _rate_moments(base, lift, sd)
    return float(ndtr((difference * math.sqrt(n_sessions) - z * null) / spread))


def ab_sample_size(
    *, base: float, lift: float, sd: float | None = None, power: float = 0.8, alpha: float = 0.05
) -> int:
    """The number of sessions per group that gives an A/B test this power; see ``ab_power``.

    n = ((z_{1-alpha/2} s_0 + z_power s_1) / d)^2.

    Parameters
    ----------
    base : float
        What a session earns now: a rate between 0 and 1, or any mean if ``sd`` is given.
    lift : float
        The relative change: 0.02 is 2% more.
    sd : float, optional
        The standard deviation over sessions. Default: that of a rate.
    power : float, default 0.8
        The chance to detect the lift.
    alpha : float, default 0.05
        Significance level.

    Returns
    -------
    int

    Examples
    --------
    >>> ab_sample_size(base=0.3, lift=0.05)
    14856
    """
    z, (difference, null, spread) = _quantile("alpha", alpha, 2), _rate_moments(base, lift, sd)
    root = z * null + _quantile("power", power) * spread
    if not difference:
        raise Number(above=0).refuse("lift", lift)
    return _sessions(root / difference)


def _outcome_moments(share: float | None, ties: float, mean: float | None, sd: float | None) -> tuple[float, float]:
    """The mean, without its sign, and the standard deviation of outcomes, in units of their root mean square."""
    ties = Number(0, below=1).check("ties", ties)
    if share is not None and mean is None and sd is None:
        share = _CHANCE.check("share", share)
        return abs(2 * share - 1) * math.sqrt(1 - ties), math.sqrt(ties + (1 - ties) * 4 * share * (1 - share))
    if share is not None or ties or mean is None or sd is None:
        given = {"share": share, "ties": ties or None, "mean": mean, "sd": sd}
        raise ParameterError(
            expected="`share`, with or without `ties`, or `mean` and `sd`",
            got=" and ".join(name for name, value in given.items() if value is not None) or "none of them",
        )
    effect = abs(Number().check("mean / sd", Number().check("mean", mean) / Number(above=0).check("sd", sd)))
    return effect / math.hypot(1, effect), 1 / math.hypot(1, effect)


def _rate_moments(base: float, lift: float, sd: float | None) -> tuple[float, float, float]:
    """The difference, and its standard deviations without and with the lift, for one session in each group."""
    lift = Number().check("lift", lift)
    if sd is not None:
        sd = Number(above=0).check("sd", sd)
        difference = Number().check("base * lift", Number().check("base", base) * lift)
        return abs(difference), math.sqrt(2) * sd, math.sqrt(2) * sd
    base = _CHANCE.check("base", base)
    other = _CHANCE.check("base * (1 + lift)", base * (1 + lift))
    mean = (base + other) / 2
    return abs(other - base), math.sqrt(2 * mean * (1 - mean)), math.sqrt(base * (1 - base) + other * (1 - other))


def _quantile(name: str, chance: float, tails: int = 1) -> float:
    """The quantile of the normal distribution at a chance; with two tails, its distance from 0 at half of that."""
    quantile = float(ndtri(_CHANCE.check(name, chance) / tails))
    return quantile if tails == 1 else -quantile


def _sessions(root: float) -> int:
    """The square of a root, as a number of sessions, at least 1."""
    if root > _MOST:
        expected = f"an effect that {_MOST**2:.0e} sessions can show"
        raise ParameterError(expected=expected, got="one that is too small for its spread")
    return max(1, math.ceil(max(root, 0.0) ** 2))
