"""Propensities: how likely a document is looked at in each position, relative to the first."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from tierank.arrays import Floats
from tierank.clicks.log import ClickLog, check_log, sum_by
from tierank.clicks.models import Items, Pairs, PositionBased, at_positions, load
from tierank.clicks.reading import encode, numbers_of
from tierank.data.checks import as_array, as_numbers, as_positions
from tierank.errors import DataError, ParameterError
from tierank.extras import needing
from tierank.files import as_path, for_json, read_json
from tierank.kernels import click_models as kernels
from tierank.settings import MOST_REPEATS, as_least, as_number, as_whole

# Weights of sessions -> the propensity of each position.
Estimator = Callable[[Floats], Floats]

# EM over pairs of positions, which are few.
_TOLERANCE, _MAX_ITERATIONS = 1e-8, 20_000
# Newton steps per EM iteration of the regression: each iteration starts from the last result, so a few are enough.
_STEPS = 2


@dataclass(frozen=True, eq=False)
class Propensities:
    """The chance that a document is examined in each position, relative to the first.

    Parameters
    ----------
    values : array of float64
        One for each position >= 1; the first is 1, and NaN if the log says nothing about a position.
    low, high : array of float64
        Bounds of the interval of each value; NaN without a bootstrap.
    level : float
        The coverage of the intervals.
    method : str
        How they were estimated, a name of ``PROPENSITY_METHODS``.
    """

    values: Floats
    low: Floats
    high: Floats
    level: float
    method: str

    def at(self, positions: Any) -> Floats:
        """The propensity of each position.

        Parameters
        ----------
        positions : array of int
            Positions from 1.

        Returns
        -------
        array
            One propensity for each; below the last position that is known, that of the last.
        """
        given = as_array(positions)
        known = np.flatnonzero(np.isfinite(self.values))
        filled = np.interp(np.arange(len(self.values)), known, self.values[known])
        return at_positions(filled, as_positions(given.ravel(), given.size, "positions").reshape(given.shape))

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON: ``method``, ``level``, lists of ``propensity``, ``low`` and ``high``; None if unknown."""
        numbers = {"propensity": self.values.tolist(), "low": self.low.tolist(), "high": self.high.tolist()}
        return {"method": self.method, "level": self.level, **for_json(numbers)}

    def __str__(self) -> str:
        rows = [
            f"{k:>8} {value:>11.4f} {low:>8.4f} {high:>8.4f}"
            for k, (value, low, high) in enumerate(zip(self.values, self.low, self.high, strict=True), 1)
        ]
        return "\n".join([f"{'position':>8} {'propensity':>11} {'low':>8} {'high':>8}", *rows])

    def plot(self, ax: Any = None) -> Any:
        """Draw the propensities with their intervals.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw. Default: new axes.

        Returns
        -------
        matplotlib axes
        """
        if ax is None:
            with needing("a plot of propensities"):
                from matplotlib.figure import Figure

            ax = Figure(figsize=(6, 4)).subplots()
        positions = np.arange(1, len(self.values) + 1)
        if np.isfinite(self.low).any():
            ax.fill_between(positions, self.low, self.high, alpha=0.2, linewidth=0, label=f"{self.level:.0%} interval")
        ax.plot(positions, self.values, marker="o", label=self.method)
        ax.set(xlabel="position", ylabel="propensity (position 1 = 1)", ylim=(0, None))
        ax.legend()
        return ax


def read_propensities(path: str | os.PathLike[str]) -> Propensities:
    """Propensities from a JSON file.

    Parameters
    ----------
    path : path
        A click model of the kind ``pbm`` that ``tierank.clicks.save`` or ``tierank clicks fit --out`` wrote, or what
        ``tierank clicks propensities --json`` printed.

    Returns
    -------
    Propensities
        One for each position.

    Raises
    ------
    DataError
        If the file cannot be read, or holds neither of the two.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     text = '{"propensity": [1.0, 0.5], "low": [1.0, 0.4], "high": [1.0, 0.6], "method": "swap", "level": 0.95}'
    ...     written = pathlib.Path(folder, "own.json").write_text(text)
    ...     read_propensities(f"{folder}/own.json").values
    array([1. , 0.5])
    """
    place = as_path(path)
    try:
        content = read_json(place)
        if isinstance(content, dict) and "propensity" in content:
            names = ("propensity", "low", "high")
            values, low, high = (np.array(content[name], np.float64) for name in names)  # null is NaN
            method, level = str(content["method"]), float(content["level"])
        else:
            model = load(path)
            if not isinstance(model, PositionBased):
                raise DataError(argument="model", expected="'pbm'", got=repr(model.name))
            values, method, level = model.examination_ / model.examination_[0], model.name, 0.95
            low = high = np.full(len(values), np.nan)
        known = values[np.isfinite(values)]
        if values.ndim != 1 or not low.shape == high.shape == values.shape or not len(known) or (known <= 0).any():
            raise DataError(argument="propensity", expected="numbers above 0, as many as of low and high")
    except (DataError, KeyError, TypeError, ValueError, OverflowError) as error:
        expected = "a click model of the kind pbm, or propensities as JSON"
        raise DataError(where=path, expected=expected, got=f": {error}") from None
    return Propensities(values, low, high, level, method)


def estimate_propensities(
    log: ClickLog, method: str = "pbm", *, n_bootstrap: int = 200, level: float = 0.95, seed: int = 0, **settings: Any
) -> Propensities:
    """Estimate how likely a document is examined in each position.

    =============  ===================================================================================================
    ``pbm``        the position-based click model; needs documents that were shown in several positions. Settings: those
                   of the model
    ``shuffled``   lists in random order: clicks per document shown at k / the same at 1
    ``swaps``      the first document and the one at k were exchanged in half of the sessions: clicks at k / clicks at 1
                   over these sessions (Joachims et al. 2017). The column ``swap`` has k, in every row
    ``harvest``    several rankers wrote the log, each session by one that was drawn: documents that two rankers put in
                   different places (Agarwal et al. 2019, all pairs). The column ``ranker`` names it
    ``regression`` the position-based model with attractiveness from features (Wang et al. 2018). Settings:
                   ``features``, ``regressor``, ``max_iterations``
    =============  ===================================================================================================

    Intervals are value ± z * standard deviation over bootstrap samples of whole sessions, not below 0.

    Parameters
    ----------
    log : ClickLog
        The sessions.
    method : str, default "pbm"
        A name of ``PROPENSITY_METHODS``.
    n_bootstrap : int, default 200
        Number of bootstrap samples; 0 for no intervals.
    level : float, default 0.95
        Coverage of the intervals.
    seed : int, default 0
        Random seed of the bootstrap.
    **settings
        Settings of the method.

    Returns
    -------
    Propensities

    Examples
    --------
    >>> log = ClickLog.of(session=[1, 1, 2, 2, 3, 3], document=[0, 1, 1, 0, 0, 1], position=[1, 2] * 3,
    ...                   clicked=[1, 0, 1, 1, 0, 0])
    >>> estimate_propensities(log, "shuffled", n_bootstrap=0).values.tolist()
    [1.0, 0.5]
    """
    check_log(log)
    if method not in PROPENSITY_METHODS:
        raise ParameterError.unknown("method", method, PROPENSITY_METHODS)
    as_whole("n_bootstrap", n_bootstrap, 0, MOST_REPEATS)
    level = as_number("level", level, 0.01, 0.999)
    if not (log.clicked & (log.positions == 1)).any():
        expected = "clicks at position 1, which all others are compared with"
        raise DataError(argument="log", expected=expected, got=f"none in {log.n_sessions:,} sessions")
    known = inspect.signature(PositionBased if method == "pbm" else PROPENSITY_METHODS[method]).parameters
    names = [name for name in known if name != "log"]
    unknown = next((name for name in settings if name not in names), None)
    if unknown is not None:
        raise ParameterError.unknown(f"setting of {method}", unknown, names)
    missing = next(
        (name for name in names if known[name].default is inspect.Parameter.empty and name not in settings), None
    )
    if missing is not None:
        raise ParameterError(argument=missing, expected=f"a value, which the method {method!r} needs", got="none")
    estimate = PROPENSITY_METHODS[method](log, **settings)
    values = estimate(np.ones(log.n_sessions))
    rng = np.random.default_rng(as_whole("seed", seed, 0))
    draws = np.full((max(1, n_bootstrap), len(values)), np.nan)
    for i in range(n_bootstrap):
        drawn = np.bincount(rng.integers(log.n_sessions, size=log.n_sessions), minlength=log.n_sessions)
        draws[i] = estimate(drawn.astype(np.float64))
    known_draws = [column[np.isfinite(column)] for column in draws.T]
    deviations = np.array([column.std(ddof=1) if len(column) > 1 else np.nan for column in known_draws])
    reach = float(ndtri((1 + level) / 2)) * deviations
    return Propensities(values, np.maximum(values - reach, 0), values + reach, level, method)


def _pbm(log: ClickLog, **settings: Any) -> Estimator:
    model = PositionBased(**settings).fit(log)
    pairs, n = model.pairs(log), log.last_position
    is_shown = np.bincount(log.positions - 1, minlength=n) > 0
    if n > 1 and len(pairs.items) == len(model.items):
        warnings.warn(
            "no document was shown in two positions, so its attractiveness cannot be told from that of the position;"
            " take a log with some random swaps, or of several rankers",
            stacklevel=3,
        )
    return lambda weights: np.where(is_shown, pairs.fit(model, log, weights)[1], np.nan)


def _shuffled(log: ClickLog) -> Estimator:
    def estimate(weights: Floats) -> Floats:
        rows, n = np.repeat(weights, log.lengths), log.last_position
        shown, clicks = (sum_by(log.positions - 1, one, n) for one in (rows, rows * log.clicked))
        with np.errstate(invalid="ignore", divide="ignore"):
            rates = clicks / shown
            return np.asarray(rates / rates[0])

    return estimate


def _swaps(log: ClickLog, column: str = "swap") -> Estimator:
    n = log.last_position
    given = numbers_of(log.column(column))
    is_bad = ~((given >= 1) & (given <= n) & (given == np.rint(given)))
    if is_bad.any():
        got = f"{log.column(column)[is_bad][0]!s}"
        raise DataError(argument=column, expected=f"positions from 1 to {n}, in every row", got=got)
    other = given.astype(np.int64)
    at_other, at_first = log.clicked & (log.positions == other), log.clicked & (log.positions == 1)

    def estimate(weights: Floats) -> Floats:
        rows = np.repeat(weights, log.lengths)
        there = np.bincount(other - 1, rows * at_other, minlength=n)
        here = np.bincount(other - 1, rows * at_first, minlength=n)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = np.asarray(there / here)
        values[0] = 1.0
        return values

    return estimate


def _harvest(log: ClickLog, column: str = "ranker") -> Estimator:
    names: dict[Any, int] = {}
    rankers = encode(log.column(column), names) + 1  # 0 where no ranker is named
    n_rankers = int(rankers.max()) + 1
    if n_rankers < 3:
        raise DataError(argument=column, expected="at least two rankers", got=f"{list(names)}")
    n, items = log.last_position, Items.of(log, "pair")
    pairs = Pairs(items.find(log), (log.positions - 1) * n_rankers + rankers, len(items), n * n_rankers)
    position, ranker = pairs.cells // n_rankers + 1, pairs.cells % n_rankers

    def estimate(weights: Floats) -> Floats:
        rows = np.repeat(weights, log.lengths) * (rankers > 0)
        shown, clicks = pairs.count(rows), pairs.count(rows * log.clicked)
        pair_shown, pair_clicks = np.zeros(n * n), np.zeros(n * n)
        kernels.pair_positions(pairs.items, position, ranker, shown, clicks, n, pair_shown, pair_clicks)
        return _fit_all_pairs(pair_shown.reshape(n, n), pair_clicks.reshape(n, n))

    return estimate


def _fit_all_pairs(shown: Floats, clicks: Floats) -> Floats:
    """The propensities p that fit ``clicks[k, l]`` of ``shown[k, l]`` = p_k r_kl best, with r_kl = r_lk for any pair.

    By EM, as in the position-based model with a pair (k, l) in place of a document. NaN where no pairs lead to the
    first position.

    >>> _fit_all_pairs(np.array([[0, 8.0], [8.0, 0]]), np.array([[0, 4.0], [2.0, 0]])).round(4).tolist()
    [1.0, 0.5]
    """
    n = len(shown)
    here, there = (np.ascontiguousarray(places) for places in np.nonzero(shown > 0))
    pairs, numbers = np.unique(np.minimum(here, there) * n + np.maximum(here, there), return_inverse=True)
    values = np.full(n, 0.5)
    values[0] = 1.0
    if len(pairs):
        counts = (numbers, here, shown[here, there], clicks[here, there])
        attraction = np.full(len(pairs), 0.5)
        kernels.fit_products(*counts, 0.0, 0.5, _TOLERANCE, _MAX_ITERATIONS, attraction, values)
    reached = np.arange(n) == 0
    while not reached[there[reached[here]]].all():
        reached[there[reached[here]]] = True
    return np.where(reached, values, np.nan)


def _regression(
    log: ClickLog, *, features: Any, regressor: Any = None, max_iterations: int = 100, tolerance: float = 1e-4
) -> Estimator:
    """The estimator by regression EM: maps session weights to the propensity of each position.

    P(C) = a(x) * g_r. Each iteration estimates for documents without a click how likely they were attractive,
    a (1 - g) / (1 - a g), and examined, g (1 - a) / (1 - a g); fits the regression to the first, and takes means of the
    second by position. g_1 is fixed at 1.

    Parameters
    ----------
    log : ClickLog
        The sessions.
    features : array, shape (n_rows, n_features), or list of str
        The features of the document in each row of the log, in the order of the log, or columns that the log kept.
    regressor : object, optional
        A classifier with scikit-learn's ``fit(X, y, sample_weight)`` and ``predict_proba``. Default: logistic
        regression.
    max_iterations : int, default 100
        EM stops after this many iterations at the latest.
    tolerance : float, default 1e-4
        EM stops when no propensity changes by more than this.
    """
    as_whole("max_iterations", max_iterations)
    as_least("tolerance", tolerance)
    n = log.last_position
    if isinstance(features, Sequence) and len(features) > 0 and all(isinstance(name, str) for name in features):
        features = np.column_stack([log.column(name) for name in features])
    X = as_numbers(as_array(features), "features").astype(np.float64)
    if X.ndim != 2 or len(X) != log.n_rows or not np.isfinite(X).all():
        expected = f"a matrix of {log.n_rows} rows of finite numbers, one per row of the log"
        raise DataError(argument="features", expected=expected, got=f"shape {X.shape}")

    def estimate(weights: Floats) -> Floats:
        rows = np.repeat(weights, log.lengths)
        shown = np.bincount(log.positions - 1, rows, minlength=n)
        g = np.full(n, 0.5)
        g[0] = 1.0
        a = np.full(log.n_rows, 0.5)
        fit = _logistic(X) if regressor is None else _classifier(regressor, X)
        for _ in range(max_iterations):
            at = g[log.positions - 1]
            nothing = np.maximum(1 - a * at, 1e-12)
            attractive = np.where(log.clicked, 1.0, a * (1 - at) / nothing)
            examined = np.where(log.clicked, 1.0, at * (1 - a) / nothing)
            a = fit(attractive, rows)
            with np.errstate(invalid="ignore", divide="ignore"):
                fresh = np.bincount(log.positions - 1, rows * examined, minlength=n) / shown
            fresh[0] = 1.0
            change = np.nanmax(np.abs(fresh - g))
            g = fresh
            if change <= tolerance:
                break
        return g

    return estimate


def _logistic(X: Floats) -> Callable[[Floats, Floats], Floats]:
    """Logistic regression with targets between 0 and 1, by Newton's method with a warm start.

    Maximises sum of w (t ln p + (1 - t) ln (1 - p)) - |b|^2 / 2 with p = 1 / (1 + e^-(b_0 + x b)) and features x that
    are scaled to mean 0 and standard deviation 1; b_0 is free. The function fits, and predicts the same rows.
    """
    scale = X.std(axis=0)
    X = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / np.where(scale > 0, scale, 1.0)])
    coefficients, penalty = np.zeros(X.shape[1]), np.ones(X.shape[1])
    penalty[0] = 1e-9

    def chances() -> Floats:
        return np.asarray(1 / (1 + np.exp(-np.clip(X @ coefficients, -30, 30))))

    def fit(targets: Floats, weights: Floats) -> Floats:
        for _ in range(_STEPS):
            p = chances()
            gradient = X.T @ (weights * (targets - p)) - penalty * coefficients
            curvature = (X * (weights * p * (1 - p))[:, None]).T @ X + np.diag(penalty)
            coefficients[:] += np.clip(np.linalg.solve(curvature, gradient), -4, 4)  # the first step may overshoot
        return chances()

    return fit


def _classifier(regressor: Any, X: Floats) -> Callable[[Floats, Floats], Floats]:
    """A classifier of the caller: each row counts twice, as 1 and as 0, weighted by the two probabilities."""

    def fit(targets: Floats, weights: Floats) -> Floats:
        labels = np.repeat([1, 0], len(targets))
        both = np.concatenate([weights * targets, weights * (1 - targets)])
        regressor.fit(np.vstack([X, X]), labels, sample_weight=both)
        return np.asarray(regressor.predict_proba(X)[:, 1], np.float64)

    return fit


PROPENSITY_METHODS: dict[str, Callable[..., Estimator]] = {
    "pbm": _pbm,
    "shuffled": _shuffled,
    "swaps": _swaps,
    "harvest": _harvest,
    "regression": _regression,
}
