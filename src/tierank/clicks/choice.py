"""Choosing the click model that predicts held-out sessions best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tierank.clicks.base import AttractionModel, ClickModel
from tierank.clicks.log import ClickLog, check_log
from tierank.clicks.models import CLICK_MODELS, make_model
from tierank.errors import DataError, ParameterError
from tierank.settings import Number, as_whole
from tierank.types import Floats


@dataclass(frozen=True, eq=False)
class HeldOut:
    """How well a click model predicts held-out sessions.

    Parameters
    ----------
    perplexity : array of float64
        The perplexity at each position; NaN if nothing was shown there.
    conditional_perplexity : array of float64
        The same, given the clicks further up in the list.
    log_likelihood : float
        The mean log-likelihood per session.
    """

    perplexity: Floats
    conditional_perplexity: Floats
    log_likelihood: float


def compare_models(
    log: ClickLog,
    models: Iterable[str] | Mapping[str, ClickModel] | None = None,
    *,
    held_out: float = 0.25,
    seed: int = 0,
) -> dict[str, HeldOut]:
    """Fit click models to a part of the sessions, and judge them on the others.

    Parameters
    ----------
    log : ClickLog
        The sessions.
    models : iterable of str, or mapping of str to ClickModel, optional
        Names of ``CLICK_MODELS``, or models by any name, which are fitted in place. Default: all of ``CLICK_MODELS``.
    held_out : float, default 0.25
        The share of the sessions that are held out.
    seed : int, default 0
        Random seed that chooses the held-out sessions.

    Returns
    -------
    dict of str to HeldOut
        What each model predicts of the held-out sessions, by its name.

    Examples
    --------
    >>> import tierank
    >>> data = tierank.make_ranking(50, n_features=3, mean_length=12, max_length=20)
    >>> log, _ = tierank.clicks.simulate_clicks(data, data.restore(data.ratings), model="cascade", k=5)
    >>> held_out = compare_models(log, ["pbm", "cascade"])
    >>> held_out["cascade"].log_likelihood > held_out["pbm"].log_likelihood
    True
    """
    check_log(log)
    Number(above=0, below=1).check("held_out", held_out)
    as_whole("seed", seed, 0)
    if log.n_sessions < 2:
        raise DataError(
            argument="log", expected="at least 2 sessions, some of which are held out", got=str(log.n_sessions)
        )
    candidates = models if isinstance(models, Mapping) else {name: make_model(name) for name in _as_names(models)}
    # At least one session in each part.
    n_test = min(max(1, round(held_out * log.n_sessions)), log.n_sessions - 1)
    train, test = log.split(1 - n_test / log.n_sessions, n_test / log.n_sessions, seed=seed)
    return {name: _judge(model.fit(train), test) for name, model in candidates.items()}


def choose_model(
    log: ClickLog, models: Iterable[str] | None = None, *, held_out: float = 0.25, seed: int = 0, **settings: Any
) -> ClickModel:
    """The click model that predicts held-out sessions best, fitted to all sessions.

    A click model that does not fit the users can reverse the order of documents, so check before you trust its
    relevance. The best model has the highest log-likelihood per session.

    Parameters
    ----------
    log : ClickLog
        The sessions.
    models : iterable of str, optional
        Names of ``CLICK_MODELS``. Default: all models with an attractiveness for each query and document.
    held_out : float, default 0.25
        The share of the sessions that are held out.
    seed : int, default 0
        Random seed that chooses the held-out sessions.
    **settings
        Settings of all models, such as ``smoothing``.

    Returns
    -------
    ClickModel

    Examples
    --------
    >>> import tierank
    >>> data = tierank.make_ranking(50, n_features=3, mean_length=12, max_length=20)
    >>> log, _ = tierank.clicks.simulate_clicks(data, data.restore(data.ratings), model="cascade", k=5)
    >>> choose_model(log, ["pbm", "cascade"]).name
    'cascade'
    """
    known = [name for name, kind in CLICK_MODELS.items() if issubclass(kind, AttractionModel)]
    names = known if models is None else _as_names(models)
    if not names:
        raise ParameterError(argument="models", expected="at least one name", got="none")
    candidates = {name: make_model(name, **settings) for name in names}
    if len(candidates) == 1:
        return candidates[names[0]].fit(log)
    by_model = compare_models(log, candidates, held_out=held_out, seed=seed)
    return candidates[max(by_model, key=lambda name: by_model[name].log_likelihood)].fit(log)


def _as_names(models: Any) -> list[str]:
    """The names of the models to compare; all of them by default."""
    if models is None:
        return list(CLICK_MODELS)
    if isinstance(models, (str, ClickLog)) or not isinstance(models, Iterable):
        raise ParameterError(
            argument="models",
            expected="a list of names of click models",
            got=repr(models),
            fix="sessions of the log are held out for the test" if isinstance(models, ClickLog) else None,
        )
    return list(models)


def _judge(model: ClickModel, test: ClickLog) -> HeldOut:
    return HeldOut(
        perplexity=model.perplexity(test),
        conditional_perplexity=model.perplexity(test, conditional=True),
        log_likelihood=float(np.mean(model.log_likelihood(test))),
    )
