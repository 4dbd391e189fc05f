"""Regression EM: the position-based model with attractiveness predicted from features (Wang et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tierank.checks import as_array, as_numbers
from tierank.clicks.log import ClickLog
from tierank.errors import DataError
from tierank.settings import as_least, as_whole
from tierank.types import Floats

# Newton steps per EM iteration: each iteration starts from the last result, so a few are enough.
_STEPS = 2


def regression(
    log: ClickLog,
    *,
    features: Any,
    regressor: Any = None,
    max_iterations: int = 100,
    tolerance: float = 1e-4,
) -> Callable[[Floats], Floats]:
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
    X = _as_matrix(log, features)
    n = log.last_position

    def estimate(weights: Floats) -> Floats:
        rows = np.repeat(weights, log.lengths)
        shown = np.bincount(log.positions - 1, rows, minlength=n)
        g = np.full(n, 0.5)
        g[0] = 1.0
        a = np.full(log.n_rows, 0.5)
        fit = Logistic(X) if regressor is None else _Other(regressor, X)
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


def _as_matrix(log: ClickLog, features: Any) -> Floats:
    if isinstance(features, Sequence) and len(features) > 0 and all(isinstance(name, str) for name in features):
        features = np.column_stack([log.column(name) for name in features])
    X = as_numbers(as_array(features), "features").astype(np.float64)
    if X.ndim != 2 or len(X) != log.n_rows or not np.isfinite(X).all():
        raise DataError(
            argument="features",
            expected=f"a matrix of {log.n_rows} rows of finite numbers, one per row of the log",
            got=f"shape {X.shape}",
        )
    return X


class Logistic:
    """Logistic regression with targets between 0 and 1, by Newton's method with a warm start.

    Maximises sum of w (t ln p + (1 - t) ln (1 - p)) - |b|^2 / 2 with p = 1 / (1 + e^-(b_0 + x b)) and features x that
    are scaled to mean 0 and standard deviation 1; b_0 is free.
    """

    def __init__(self, X: Floats) -> None:
        scale = X.std(axis=0)
        self._X = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / np.where(scale > 0, scale, 1.0)])
        self.coefficients = np.zeros(self._X.shape[1])

    def __call__(self, targets: Floats, weights: Floats) -> Floats:
        """Fit, and predict the same rows."""
        penalty = np.ones(len(self.coefficients))
        penalty[0] = 1e-9
        for _ in range(_STEPS):
            p = self._chances()
            gradient = self._X.T @ (weights * (targets - p)) - penalty * self.coefficients
            curvature = (self._X * (weights * p * (1 - p))[:, None]).T @ self._X + np.diag(penalty)
            step = np.linalg.solve(curvature, gradient)
            self.coefficients += np.clip(step, -4, 4)  # the first step may overshoot
        return self._chances()

    def _chances(self) -> Floats:
        return np.asarray(1 / (1 + np.exp(-np.clip(self._X @ self.coefficients, -30, 30))))


class _Other:
    """A classifier of the caller: each row counts twice, as 1 and as 0, weighted by the two probabilities."""

    def __init__(self, regressor: Any, X: Floats) -> None:
        self._regressor, self._X = regressor, X

    def __call__(self, targets: Floats, weights: Floats) -> Floats:
        labels = np.repeat([1, 0], len(targets))
        both = np.concatenate([weights * targets, weights * (1 - targets)])
        self._regressor.fit(np.vstack([self._X, self._X]), labels, sample_weight=both)
        return np.asarray(self._regressor.predict_proba(self._X)[:, 1], np.float64)
