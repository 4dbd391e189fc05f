"""Off-policy evaluation: what another ranker would have earned on a log that it did not produce."""

from __future__ import annotations

import math
import warnings
from copy import copy
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from tierank.arrays import Floats
from tierank.clicks.judgements import rows_of
from tierank.clicks.log import ClickLog, Ints, check_log
from tierank.clicks.models import ClickModel, PositionBased, make_model
from tierank.clicks.propensities import Propensities, estimate_propensities
from tierank.data.dataset import RankingDataset, check_dataset
from tierank.errors import DataError, ParameterError
from tierank.files import for_json
from tierank.settings import as_choice, as_limit, as_number, as_positive

METHODS = ("ips", "snips", "dr")
EARNINGS = ("clicks", "dcg")
# A smaller effective number of sessions gives a warning.
_FEWEST = 100


@dataclass(frozen=True)
class Value:
    """What a policy would have earned per session.

    ``low`` and ``high`` are its interval at the given ``level``; NaN for a single session. ``logged`` is what the log
    itself earned. ``effective_sample_size`` is the number of sessions under the policy itself that would be as
    informative as those of the log, by the spread of their weights: (sum of w)^2 / sum of w^2.
    """

    value: float
    low: float
    high: float
    standard_error: float
    logged: float
    effective_sample_size: float
    n_sessions: int
    method: str
    level: float

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON with all fields; unknown numbers are None."""
        return for_json(asdict(self))

    def __str__(self) -> str:
        return (
            f"{self.value:.4f} per session ({self.method}), {self.level:.0%} interval {self.low:.4f} to"
            f" {self.high:.4f}; the log itself {self.logged:.4f}; effective sample size"
            f" {self.effective_sample_size:,.0f} of {self.n_sessions:,} sessions"
        )


def estimate_value(
    reward: ArrayLike,
    weight: ArrayLike,
    *,
    method: str = "ips",
    predicted: ArrayLike | None = None,
    predicted_target: ArrayLike | None = None,
    clip: float | None = None,
    level: float = 0.95,
) -> Value:
    """Estimate what a policy would have earned, from sessions of another policy that drew its lists at random.

    With reward r, weight w = (chance of the list under the policy) / (chance under the logging policy), and predictions
    q of the reward: ::

        ips    mean of w r
        snips  sum of w r / sum of w
        dr     mean of q(policy) + w (r - q(log))

    Intervals are normal, from the standard error over sessions; that of ``snips`` by linearisation.

    Parameters
    ----------
    reward : array, shape (n_sessions,)
        What each session earned, such as its number of clicks.
    weight : array, shape (n_sessions,)
        The ratio of the chances.
    method : {"ips", "snips", "dr"}, default "ips"
        Inverse propensity scoring, self-normalised, or doubly robust.
    predicted : array, shape (n_sessions,), optional
        The predicted reward of the list that was shown; needed for ``dr``.
    predicted_target : array, shape (n_sessions,), optional
        The predicted reward of the policy in the same session; needed for ``dr``.
    clip : float, optional
        Weights above this are lowered to it: less variance, some bias. Default: no clipping.
    level : float, default 0.95
        Coverage of the interval.

    Returns
    -------
    Value

    Examples
    --------
    >>> estimate_value([1, 0, 1, 1] * 100, [2.0, 0.0, 2.0, 0.0] * 100, method="snips").value
    1.0
    """
    as_choice("method", method, METHODS)
    r, w = _as_vector("reward", reward), _as_vector("weight", weight)
    if (w < 0).any():
        raise DataError(argument="weight", expected="numbers >= 0", got=f"{w.min():g}")
    q, q_target = np.zeros_like(r), np.zeros_like(r)
    if method == "dr":
        if predicted is None or predicted_target is None:
            expected, fix = "predictions, which the method 'dr' needs", "pass `predicted` and `predicted_target`"
            raise DataError(argument="predicted", expected=expected, got="none", fix=fix)
        q, q_target = _as_vector("predicted", predicted), _as_vector("predicted_target", predicted_target)
    for name, given in (("weight", w), ("predicted", q), ("predicted_target", q_target)):
        if len(given) != len(r):
            raise DataError(argument=name, expected=f"{len(r)} numbers, one per reward", got=f"{len(given)}")
    if clip is not None:
        w = np.minimum(w, as_positive("clip", clip))
    with np.errstate(over="ignore", invalid="ignore"):  # _value refuses the results
        terms = q_target + w * (r - q)
        if method == "snips":
            if not w.any():
                raise DataError(argument="weight", expected="a weight above 0", got="none")
            share = w / w.max()  # only ratios matter; scaled so that their sums neither overflow nor underflow
            value = float((share * r).sum() / share.sum())
            terms = value + share * (r - value) / share.mean()
        logged = float(r.mean())
    return _value(terms, logged, w, len(w), method, level)


def evaluate_ranking(
    log: ClickLog,
    scores: str | ArrayLike,
    propensities: Propensities | ArrayLike | None = None,
    *,
    method: str = "ips",
    metric: str = "clicks",
    k: int | None = None,
    data: RankingDataset | None = None,
    clip: float | None = None,
    model: str | ClickModel | None = None,
    level: float = 0.95,
) -> Value:
    """Estimate what a ranker would have earned if it had ordered the lists of a log by its scores.

    Estimated is the mean over sessions of the sum over documents of l(r) a, where r is the rank of a document by the
    scores and a its attractiveness, the chance of a click once it is examined. With ``clicks``, l(r) is the examination
    g_r of that position, so that this is the number of clicks. With ``dcg``, l(r) = 1 / log2(1 + r): the DCG of the new
    order with a as gain. It is larger than the DCG of the clicks that users would make, because they do not examine
    all positions.

    Under the position-based model, with p the position of a document in the log, c its clicks, and w = l(r) / g_p: ::

        ips    mean over sessions of: sum over documents of w c
        snips  the same, times (sum of l(r)) / (sum of g_p w)
        dr     mean over sessions of: sum over documents of l(r) a + w (c - g_p a)

    The three differ if weights are clipped: ``ips`` then loses what was cut off, ``snips`` scales it back up, and
    ``dr`` fills it in from a click model. Only the documents of a list are reordered, within the positions of that
    list: in a list at positions 11 to 20, the highest score gets 11. Nothing can be said about documents that were not
    shown.

    Parameters
    ----------
    log : ClickLog
        The sessions.
    scores : str or array
        The score of each document shown: a column that the log kept, or one score per row of the log, in the caller's
        order. With ``data``: one score per row of the data. Documents with equal scores keep their order.
    propensities : Propensities or array, optional
        The examination of each position from the top. Default: those of the position-based model, fitted to the log.
    method : {"ips", "snips", "dr"}, default "ips"
        Inverse propensity scoring, self-normalised, or doubly robust.
    metric : {"clicks", "dcg"}, default "clicks"
        What is earned: clicks, or DCG with attractiveness as gain.
    k : int, optional
        Only the first ``k`` positions count. Default: all.
    data : RankingDataset, optional
        All documents that the log shows, if ``scores`` are those of ``ranker.predict(data)``. They are found as in
        ``training_data``.
    clip : float, optional
        Weights above this are lowered to it: less variance, some bias. Default: no clipping.
    model : str or ClickModel, optional
        The model of attractiveness a for ``dr``; an unfitted one is fitted to the other half of the sessions. Default:
        the position-based model.
    level : float, default 0.95
        Coverage of the interval.

    Returns
    -------
    Value
        The estimate. Warns if the effective sample size is below 100.

    Examples
    --------
    >>> import tierank
    >>> data = tierank.make_ranking(200, n_features=3, mean_length=12, max_length=20)
    >>> log, _ = tierank.clicks.simulate_clicks(data, data.features[:, 0], model="pbm", n_sessions=2000, k=5)
    >>> as_shown = evaluate_ranking(log, -log.positions.astype(float), 1 / np.arange(1, 6))
    >>> abs(as_shown.value - as_shown.logged) < 1e-9  # the order that was shown earns what the log earned
    True
    """
    check_log(log)
    as_choice("method", method, METHODS)
    as_choice("metric", metric, EARNINGS)
    as_limit("k", k)
    if model is not None and method != "dr":
        raise ParameterError(argument="model", expected=f"None with the method {method!r}", got="a click model")
    given = _as_scores(log, scores, data)
    propensities = estimate_propensities(log, n_bootstrap=0) if propensities is None else propensities
    examination = _at(propensities, log.positions)
    places = log.positions[np.repeat(log.offsets[:-1], log.lengths) + new_ranks(log, given) - 1]
    last = log.last_position if k is None else k
    # What a document is worth at its new place, and at its old one.
    worth = _at(propensities, places) if metric == "clicks" else 1 / np.log2(1 + places)
    worth = np.where(places <= last, worth, 0.0)
    logged_worth = examination if metric == "clicks" else 1 / np.log2(1 + log.positions)
    logged_worth = np.where(log.positions <= last, logged_worth / examination, 0.0)
    with np.errstate(over="ignore"):
        weights = worth / examination
    if clip is not None:
        weights = np.minimum(weights, as_positive("clip", clip))
    if not np.isfinite(weights).all():
        got = f"{examination.min():g} and {examination.max():g}"
        expected = "chances whose ratios are finite"
        raise DataError(argument="propensities", expected=expected, got=got, fix="pass `clip`")
    earned = log.per_session(weights * log.clicked)
    if method == "dr":
        attraction = _attraction(log, model)
        earned = log.per_session(worth * attraction + weights * (log.clicked - examination * attraction))
    elif method == "snips" and (kept := log.per_session(examination * weights)).any():
        # The terms of mean(earned) mean(whole) / mean(kept), by linearisation: their mean is that value.
        whole = log.per_session(worth)
        ratio, value = whole.mean() / kept.mean(), earned.mean() / kept.mean()
        earned = earned * ratio + value * (whole - whole.mean()) - value * ratio * (kept - kept.mean())
    logged = float(log.per_session(logged_worth * log.clicked).mean())
    return _value(earned, logged, weights, log.n_sessions, method, level)


def new_ranks(log: ClickLog, scores: Floats) -> Ints:
    """The rank of each row in its session, by descending score, then by position."""
    order = np.lexsort((log.positions, -scores, log.session_of_row))
    ranks = np.empty(log.n_rows, np.int64)
    ranks[order] = np.arange(log.n_rows) - np.repeat(log.offsets[:-1], log.lengths) + 1
    return ranks


def _as_scores(log: ClickLog, scores: str | ArrayLike, data: RankingDataset | None) -> Floats:
    """The scores in the order of the log."""
    if isinstance(scores, str):
        if data is not None:
            raise ParameterError(argument="data", expected="None if `scores` is a column of the log", got="a data set")
        return _as_vector("scores", log.column(scores))
    given = _as_vector("scores", scores)
    if data is not None:
        check_dataset("data", data)
    n, rows = (log.n_rows, "the log") if data is None else (data.n_documents, "the data")
    if len(given) != n:
        fix = "with one score per row of your data, pass `data` too" if data is None else None
        raise DataError(argument="scores", expected=f"{n} scores, one per row of {rows}", got=f"{len(given)}", fix=fix)
    return np.asarray(log.arrange(given) if data is None else data.arrange(given)[rows_of(log, data)])


def _at(propensities: Propensities | ArrayLike, positions: Ints) -> Floats:
    if isinstance(propensities, Propensities):
        values = propensities.at(positions)
    else:
        given = _as_vector("propensities", propensities)
        values = given[np.minimum(positions, len(given)) - 1]
    if not (values > 0).all():
        raise DataError(argument="propensities", expected="a chance above 0 at every position", got=f"{values.min():g}")
    return values


def _attraction(log: ClickLog, model: str | ClickModel | None) -> Floats:
    """The attractiveness of the document in each row, from other sessions."""
    if isinstance(model, ClickModel) and model.is_fitted:
        return _of_rows(model, log)
    half = np.arange(log.n_sessions) % 2
    attraction = np.full(log.n_rows, np.nan)
    for side in (0, 1):
        others = log.select(half != side)
        # A copy: the caller's model stays unfitted.
        fitted = copy(make_model(model or PositionBased())).fit(others if others.n_sessions else log)
        is_own = half[log.session_of_row] == side
        attraction[is_own] = _of_rows(fitted, log)[is_own]
    return attraction


def _of_rows(model: ClickModel, log: ClickLog) -> Floats:
    values, rows = model.attractiveness(), model.items.find(log)
    return np.where(rows >= 0, values[rows], model.prior_)


def _value(terms: Floats, logged: float, weights: Floats, n: int, method: str, level: float) -> Value:
    """The mean of the terms, one per session, with its interval. Warns if the weights of n sessions are too uneven."""
    level = as_number("level", level, 0.01, 0.999)
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(terms.mean())
        error = float(terms.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    if not math.isfinite(value) or math.isinf(error) or (n > 1 and math.isnan(error)):
        expected = "weights and rewards whose products have a finite spread"
        raise DataError(expected=expected, got=f"a product of {np.abs(terms).max():g}", fix="pass `clip`")
    most = float(weights.max(initial=0.0))
    shares = weights / (most or 1.0)  # scaled so that squares neither overflow nor underflow
    # (sum of w)^2 / sum of w^2 as a share of all weights, times n.
    effective = n * float(shares.sum()) ** 2 / (len(shares) * float((shares**2).sum())) if most else 0.0
    if effective < _FEWEST:
        alone = " and a single session has no interval;" if n == 1 else ""
        warnings.warn(
            f"the effective sample size is {effective:.0f} of {n:,} sessions: this log says little about that ranking;"
            f"{alone} collect more sessions, randomise some of them, or pass clip",
            stacklevel=3,
        )
    reach = float(ndtri((1 + level) / 2)) * error
    return Value(value, value - reach, value + reach, error, logged, effective, n, method, level)


def _as_vector(name: str, values: ArrayLike) -> Floats:
    try:
        vector = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise DataError(argument=name, expected="numbers", got="something else among them") from None
    if vector.ndim != 1 or not len(vector):
        raise DataError(argument=name, expected="one number per session or row", got=f"shape {vector.shape}")
    if not np.isfinite(vector).all():
        row = int((~np.isfinite(vector)).argmax())
        raise DataError(argument=name, expected="finite numbers", got=f"{vector[row]} at {row}")
    return vector
