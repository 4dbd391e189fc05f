"""Callbacks: functions that are called after each round or epoch of training, and may stop it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tierank.errors import ParameterError, TeamError
from tierank.team import Team

# Packages whose callbacks are refused, with a hint.
_OTHERS = ("lightgbm", "xgboost", "catboost")


@dataclass(frozen=True)
class Step:
    """A finished round of boosting or epoch of a network: the argument of callbacks.

    Parameters
    ----------
    number : int
        The round or epoch, from 1.
    n_total : int
        The most rounds or epochs: ``n_trees``, or the epochs that ``max_epochs`` and ``step_budget`` allow.
    metrics : mapping of str to float
        The metrics of ``select_by`` on the validation data; empty without validation data.
    loss : float or None
        The mean training loss of the epoch; None for trees.
    is_best : bool
        Whether this is the best round so far; always true without validation data.
    settings : mapping of str to object
        The settings of the ranker that trains; those of the base or the member, if ``part`` names one.
    part : str, default ""
        The part of the ranker that trains: "base", then "trees" or "learners", for a ranker with a base; the family,
        such as "trees", for the members of a blend; "" for a ranker with only one part.
    member : int, default 0
        The network, of ``n_seeds``, or the member of a blend, from 0.
    learner : int, default 1
        The learner of UBoost or UrBoost, from 1; 1 for other rankers.

    Examples
    --------
    >>> from tierank import UMart, make_ranking
    >>> train, valid = make_ranking(30, n_features=5, mean_length=10, max_length=20).split(0.7, 0.3)
    >>> steps = []
    >>> ranker = UMart(n_trees=5).fit(train, valid=valid, callbacks=[steps.append])
    >>> [step.number for step in steps], steps[-1].metrics == ranker.history_[-1]
    ([1, 2, 3, 4, 5], True)
    """

    number: int
    n_total: int
    metrics: Mapping[str, float]
    loss: float | None
    is_best: bool
    settings: Mapping[str, Any]
    part: str = ""
    member: int = 0
    learner: int = 1


Callback = Callable[[Step], Any]


class Callbacks:
    """The callbacks of one call of ``fit``, and whether one of them has stopped it.

    Parameters
    ----------
    functions : sequence of callables, default ()
        Each is called with a ``Step``; training stops if one of them returns True.
    team : Team, optional
        The processes that train together: the callbacks of the first process decide for all.

    Attributes
    ----------
    stopped : bool
        Whether training has been stopped, in this run or in the run that it resumes.
    """

    functions: tuple[Callback, ...]
    team: Team
    stopped: bool

    def __init__(self, functions: Sequence[Callback] = (), team: Team | None = None) -> None:
        self.functions, self.team, self.stopped = tuple(functions), team or Team(), False
        # Processes without callbacks have to know whether the first process has some.
        self._is_heard = bool(self.functions)
        if self.team.size > 1:
            self._is_heard = bool(self.team.all_reduce(np.array([int(self._is_heard and self.team.is_first)]))[0])

    def call(self, step: Callable[[], Step]) -> bool:
        """Call the callbacks after a step; returns whether training has to stop."""
        if self._is_heard:
            self.stopped |= self._wants_to_stop(step())
        return self.stopped

    def _wants_to_stop(self, step: Step) -> bool:
        if self.team.size == 1:
            return self._call_all(step)
        try:
            wants = self.team.is_first and self._call_all(step)
        except BaseException as error:  # the other processes would wait for an answer
            self.team.all_reduce(np.array([0, 1]))
            self.team.broadcast((str(error) or type(error).__name__).encode())
            raise
        stopped, failed = self.team.all_reduce(np.array([int(wants), 0]))
        if failed:
            words = (self.team.broadcast(None) or b"").decode(errors="replace")
            raise TeamError(f"process 0: a callback failed: {words}")
        return bool(stopped)

    def _call_all(self, step: Step) -> bool:
        answers = [function(step) for function in self.functions]  # all of them, even if the first one stops
        return any(isinstance(answer, (bool, np.bool_)) and bool(answer) for answer in answers)


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """The callbacks as a tuple; raises ``ParameterError`` if one cannot be called, or is one of another library."""
    if callbacks is None:
        return ()
    if callable(callbacks) or isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
        raise ParameterError(
            argument="callbacks", expected="a list of functions of a tierank.Step", got=_shown(callbacks)
        )
    for callback in callbacks:
        package = str(getattr(callback, "__module__", "")).partition(".")[0]
        if package in _OTHERS:
            raise ParameterError(
                argument="callbacks",
                expected="functions of a tierank.Step",
                got=f"a callback of {package}",
                fix="the setting `patience` stops early, `progress`=True shows progress, history_ has the metrics",
            )
        if not callable(callback):
            raise ParameterError(argument="callbacks", expected="functions of a tierank.Step", got=_shown(callback))
    return tuple(callbacks)


def _shown(value: Any) -> str:
    return getattr(value, "__name__", None) or type(value).__name__
