"""Power and sample size of online comparisons."""

from __future__ import annotations

import math

from tierank.errors import ParameterError
from tierank.settings import Number, as_whole

_CHANCE = Number(above=0, below=1)
# The largest number of sessions; floats can represent every integer up to it.
_MOST = 1 << 53


def interleaving_power(n_sessions: int, *, share: float, ties: float = 0.0, alpha: float = 0.05) -> float:
    """The chance that an interleaving experiment shows the preference, by the two-sided sign test.

    Normal approximation, with m = n (1 - ties) sessions that one ranker wins and z the quantile 1 - alpha / 2:
    Phi((|share - 1/2| sqrt(m) - z / 2) / sqrt(share (1 - share))).

    Parameters
    ----------
    n_sessions : int
        Number of sessions.
    share : float
        The share of the better ranker among the sessions that are not ties, such as 0.52.
    ties : float, default 0.0
        The share of ties among all sessions, such as sessions without clicks.
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
    from scipy.special import ndtr

    n_sessions = as_whole("n_sessions", n_sessions, most=_MOST)
    share, ties, z = _checked_preference(share, ties, alpha)
    effect, spread = abs(share - 0.5), math.sqrt(share * (1 - share))
    return float(ndtr((effect * math.sqrt(n_sessions * (1 - ties)) - z / 2) / spread))


def interleaving_sample_size(*, share: float, ties: float = 0.0, power: float = 0.8, alpha: float = 0.05) -> int:
    """The number of sessions that gives an interleaving experiment this power; see ``interleaving_power``.

    n = ((z_{1-alpha/2} / 2 + z_power sqrt(share (1 - share))) / (share - 1/2))^2 / (1 - ties).

    Parameters
    ----------
    share : float
        The share of the better ranker among the sessions that are not ties, such as 0.52.
    ties : float, default 0.0
        The share of ties among all sessions, such as sessions without clicks.
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
    """
    share, ties, z = _checked_preference(share, ties, alpha)
    if share == 0.5:
        raise Number(above=0.5, below=1).refuse("share", share)
    needed = z / 2 + _quantile_of("power", power) * math.sqrt(share * (1 - share))
    return _sessions(needed / abs(share - 0.5) / math.sqrt(1 - ties))


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
    from scipy.special import ndtr

    n_sessions = as_whole("n_sessions", n_sessions, most=_MOST)
    z, (difference, null, spread) = _z_of(alpha), _checked_rates(base, lift, sd)
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
    z, (difference, null, spread) = _z_of(alpha), _checked_rates(base, lift, sd)
    root = z * null + _quantile_of("power", power) * spread
    if not difference:
        raise Number(above=0).refuse("lift", lift)
    return _sessions(root / difference)


def _checked_preference(share: float, ties: float, alpha: float) -> tuple[float, float, float]:
    """The shares, and the quantile of the test."""
    return _CHANCE.check("share", share), Number(0, below=1).check("ties", ties), _z_of(alpha)


def _checked_rates(base: float, lift: float, sd: float | None) -> tuple[float, float, float]:
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


def _quantile_of(name: str, chance: float) -> float:
    """The quantile of the normal distribution at a chance."""
    from scipy.special import ndtri

    return float(ndtri(_CHANCE.check(name, chance)))


def _z_of(alpha: float) -> float:
    """The quantile 1 - alpha / 2; accurate for levels so small that this is 1."""
    from scipy.special import ndtri

    return -float(ndtri(_CHANCE.check("alpha", alpha) / 2))


def _sessions(root: float) -> int:
    """The square of a root, as a number of sessions, at least 1."""
    if root > _MOST:
        raise ParameterError(
            expected=f"an effect that {_MOST**2:.0e} sessions can show", got="one that is too small for its spread"
        )
    return max(1, math.ceil(max(root, 0.0) ** 2))
