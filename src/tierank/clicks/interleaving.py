"""Interleaving: the documents of two rankers in one list, whose clicks show which ranker is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tierank.checks import as_array, as_clicks, as_numbers
from tierank.errors import DataError, ParameterError
from tierank.settings import as_number, as_whole
from tierank.types import Floats

# Exponent of probabilistic interleaving: a document at rank r is drawn with a probability proportional to 1 / r^3.
_TAU = 3.0
# Optimised interleaving tries all lists, up to 2^k.
_LONGEST = 12


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
        """The total credit of the clicks: above 0 if the first ranker won, below 0 if the second did.

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
    ``optimized``      each prefix consists of prefixes of both; lists are drawn so that random clicks favour neither,
                       and with the largest spread of credit, 1 / rank of the first - 1 / rank of the second
                       (Radlinski and Craswell 2013)
    =================  ================================================================================================

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


def _optimized(first: list[Any], second: list[Any], k: int, rng: np.random.Generator) -> Interleaved:
    if k > _LONGEST:
        raise ParameterError(argument="k", expected=f"at most {_LONGEST} with optimized interleaving", got=f"{k}")
    # By index, so that lists of the same shape share one solution.
    numbers = {document: i for i, document in enumerate(dict.fromkeys([*first[:k], *second[:k]]))}
    documents = list(numbers)
    shape = tuple(numbers[d] for d in first[:k]), tuple(numbers[d] for d in second[:k])
    lists, credits, chances = optimized_lists(*shape, k)
    i = int(rng.choice(len(lists), p=chances))
    return Interleaved(tuple(documents[d] for d in lists[i]), credits[i])


@lru_cache(maxsize=1024)
def optimized_lists(
    first: tuple[int, ...], second: tuple[int, ...], k: int
) -> tuple[list[tuple[int, ...]], list[tuple[float, ...]], Floats]:
    """All lists of optimised interleaving, the credit of each rank in them, and the chance of each.

    The chances p solve the linear program: maximise sum over lists L of p_L * sum over ranks i of credit_i(L)^2 / i,
    such that sum over L of p_L credit_i(L) = 0 at each rank i. If no p satisfies that, the sums are as close to 0 as
    possible.
    """
    from scipy.optimize import linprog

    lists = sorted(set(_merges(first, second, k)))
    ranks = [{d: r for r, d in enumerate(ranked, 1)} for ranked in (first, second)]

    def worth(one: dict[int, int], document: int) -> float:
        return 1 / one[document] if document in one else 0.0

    def credit_of(shown: tuple[int, ...], place: int) -> float:
        if any(one.keys() <= set(shown[:place]) for one in ranks):  # a ranker has nothing left
            return 0.0
        return worth(ranks[0], shown[place]) - worth(ranks[1], shown[place])

    credits = [tuple(credit_of(shown, place) for place in range(len(shown))) for shown in lists]
    n, length = len(lists), len(lists[0])
    table = np.array(credits)
    spread = (table**2 / np.arange(1, length + 1)).sum(axis=1)
    # Slack variables on both sides of each sum, with a cost above any gain in spread.
    price = 1e3 * (1 + spread.max())
    slack = np.hstack([np.eye(length), -np.eye(length)])
    equal = np.vstack([np.hstack([table.T, slack]), np.hstack([np.ones(n), np.zeros(2 * length)])])
    solved = linprog(
        np.concatenate([-spread, np.full(2 * length, price)]),
        A_eq=equal,
        b_eq=np.concatenate([np.zeros(length), [1.0]]),
        method="highs",
    )
    chances = np.maximum(solved.x[:n], 0)
    return lists, credits, chances / chances.sum()


def _merges(first: tuple[int, ...], second: tuple[int, ...], k: int) -> Iterator[tuple[int, ...]]:
    """All lists whose every prefix is the union of a prefix of one ranker and a prefix of the other."""
    unfinished: list[tuple[int, ...]] = [()]
    while unfinished:
        shown = unfinished.pop()
        following = {next((d for d in ranked if d not in shown), None) for ranked in (first, second)} - {None}
        if len(shown) == k or not following:
            yield shown
            continue
        unfinished += [(*shown, document) for document in following if document is not None]


INTERLEAVINGS: dict[str, Callable[[list[Any], list[Any], int, np.random.Generator], Interleaved]] = {
    "team-draft": _team_draft,
    "probabilistic": _probabilistic,
    "optimized": _optimized,
}


@dataclass(frozen=True)
class Preference:
    """The result of ``preference``.

    ``share`` is the share of the first ranker among the sessions that one of the two won, with Wilson's interval
    ``low`` to ``high`` at the given ``level``; all are NaN if there are only ties. ``p`` is the p-value of the exact
    two-sided sign test.
    """

    wins: int
    losses: int
    ties: int
    share: float
    low: float
    high: float
    p: float
    level: float

    def __str__(self) -> str:
        if not self.wins + self.losses:
            return f"neither ranker won any of {self.ties:,} sessions, so there is no evidence of a preference"
        return (
            f"first won {self.wins:,}, second won {self.losses:,}, ties {self.ties:,}: first is preferred in"
            f" {self.share:.1%} ({self.level:.0%} interval {self.low:.1%} to {self.high:.1%}), p = {self.p:.4g}"
        )


def preference(outcomes: ArrayLike, *, level: float = 0.95) -> Preference:
    """Test which ranker the sessions prefer.

    Parameters
    ----------
    outcomes : array
        One number per session, from ``Interleaved.outcome``: above 0 if the first ranker won, below 0 if the second
        did, 0 for a tie.
    level : float, default 0.95
        Coverage of the interval.

    Returns
    -------
    Preference

    Examples
    --------
    >>> print(preference([1, 1, 1, 0, 1, 1, -1, 1, 1, 1]))
    first won 8, second won 1, ties 1: first is preferred in 88.9% (95% interval 56.5% to 98.0%), p = 0.03906
    """
    from scipy.special import bdtr, bdtrc, ndtri

    level = as_number("level", level, 0.01, 0.999)
    given = as_numbers(as_array(outcomes), "outcomes").astype(np.float64)
    if given.ndim != 1 or not np.isfinite(given).all():
        raise DataError(argument="outcomes", expected="one finite number per session", got=f"shape {given.shape}")
    wins, losses = int((given > 0).sum()), int((given < 0).sum())
    n = wins + losses
    if not n:
        return Preference(0, 0, len(given), math.nan, math.nan, math.nan, 1.0, level)
    lower, upper = float(bdtr(wins, n, 0.5)), float(bdtrc(wins - 1, n, 0.5)) if wins else 1.0
    share, z = wins / n, float(ndtri((1 + level) / 2))
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Preference(
        wins, losses, len(given) - n, share, middle - reach, middle + reach, min(1.0, 2 * min(lower, upper)), level
    )
