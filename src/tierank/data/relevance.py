"""The mathematics of ranking: tiers, gains, discounts and ideal DCG, for data sets, losses, objectives and metrics."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.arrays import Floats, Offsets
from tierank.errors import DataError, ParameterError
from tierank.settings import as_choice

Gain = Literal["exp2", "linear"] | Sequence[float] | Floats | Mapping[float, float] | Callable[[Floats], ArrayLike]

# Documents that are worked on at a time: some arrays of them fit into the cache of a core.
_BLOCK = 1 << 16

GAINS = {"exp2": "2^r - 1", "linear": "r"}

# Judges use scales up to 0 to 10, and fractions where several are averaged. From 31 on LightGBM has no gain either.
_HIGHEST_GRADE, _HIGHEST_MEAN = 10, 30


# Order and tiers


def best_first(values: Floats, offsets: Offsets) -> NDArray[np.uint32]:
    """The rows, query by query, by decreasing value; equal values in the order of the rows."""
    order = np.empty(len(values), np.uint32)
    for _, rows, edges in blocks_of(offsets):
        queries = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        order[rows] = np.lexsort((-values[rows], queries)) + rows.start
    return order


def find_tiers(ratings: Floats, offsets: Offsets) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The tier of each document (0 = highest rating of its query), and the number of tiers of each query.

    >>> tiers, n_tiers = find_tiers(np.array([1.0, 2.0, 2.0, 0.0, 3.0]), np.array([0, 4, 5]))
    >>> tiers.tolist(), n_tiers.tolist()
    ([1, 0, 0, 2, 0], [3, 1])
    """
    tiers, n_tiers = np.empty(len(ratings), np.uint32), np.empty(len(offsets) - 1, np.int64)
    for queries, rows, edges in blocks_of(offsets):
        own = ratings[rows]
        order = best_first(own, edges)
        is_new = np.diff(own[order], prepend=np.nan) != 0
        is_new[edges[:-1]] = False
        steps = is_new.cumsum()
        tiers[rows][order] = steps - np.repeat(steps[edges[:-1]], np.diff(edges))
        n_tiers[queries] = steps[edges[1:] - 1] - steps[edges[:-1]] + 1
    return tiers, n_tiers


def blocks_of(offsets: Offsets, n_documents: int | None = None) -> Iterator[tuple[slice, slice, Offsets]]:
    """Blocks of whole queries: the queries, their rows, and their offsets from the first of these rows.

    A block has at most ``n_documents``, or one query that is longer. By default a block stays in the cache, so that a
    document costs the same however many there are.

    >>> [(rows.start, rows.stop, edges.tolist()) for _, rows, edges in blocks_of(np.array([0, 3, 5, 9, 30]), 6)]
    [(0, 5, [0, 3, 5]), (5, 9, [0, 4]), (9, 30, [0, 21])]
    """
    first, n_queries, most = 0, len(offsets) - 1, _BLOCK if n_documents is None else n_documents
    while first < n_queries:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + most, "right")) - 1)
        yield (
            slice(first, last),
            slice(int(offsets[first]), int(offsets[last])),
            offsets[first : last + 1] - offsets[first],
        )
        first = last


# Discounts and DCG


def discounts_to(rank: int) -> Floats:
    """1 / log2(1 + rank) for the ranks 1, 2, ... up to this one.

    >>> discounts_to(3).round(4).tolist()
    [1.0, 0.6309, 0.5]
    """
    discounts: Floats = 1 / np.log2(np.arange(2.0, rank + 2))
    return discounts


def discount_sums(n_places: int) -> Floats:
    """0, and the sums of the discounts of the first 1, 2, ... places up to this many.

    >>> discount_sums(3).round(4).tolist()
    [0.0, 1.0, 1.6309, 2.1309]
    """
    return np.concatenate([[0.0], discounts_to(n_places).cumsum()])


def ideal_dcg_of_copies(gains: Floats, counts: Floats, offsets: Offsets) -> Floats:
    """The ideal DCG of each query if every document occurs ``counts`` times; copies take separate ranks.

    A fraction of a document takes that fraction of a rank, and of its discount.

    >>> ideal_dcg_of_copies(np.array([3.0, 1.0]), np.array([2.0, 0.5]), np.array([0, 2])).round(4).tolist()
    [5.1428]
    """
    order = best_first(gains, offsets)
    copies = counts[order]
    ends = np.concatenate([part.cumsum() for part in np.split(copies, offsets[1:-1])])
    sums = discount_sums(int(np.ceil(ends.max())) + 1)
    places = np.arange(len(sums))
    taken = np.interp(ends, places, sums) - np.interp(ends - copies, places, sums)
    return np.add.reduceat(gains[order] * taken, offsets[:-1])


def ideal_dcg(gains: Floats, offsets: Offsets, k: int | None = None) -> Floats:
    """The DCG@k of each query in its best order."""
    lengths = np.diff(offsets)
    discounts = discounts_to(int(lengths.max()))
    discounts[len(discounts) if k is None else k :] = 0.0
    ideal = np.empty(len(lengths))
    for queries, rows, edges in blocks_of(offsets):
        own = gains[rows]
        ranks = np.arange(len(own)) - np.repeat(edges[:-1], np.diff(edges))
        ideal[queries] = np.add.reduceat(own[best_first(own, edges)] * discounts[ranks], edges[:-1])
    return ideal


# Gains


def gains_of(ratings: Floats, gain: Gain, tops: float | Floats = 0.0) -> Floats:
    """The gain of each document; 2^r - 1 is in units of 2^top, so that no rating is too high for float64."""
    if isinstance(gain, str) and gain == "exp2":
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(np.exp2(ratings - tops) - np.exp2(-np.asarray(tops, np.float64)))
    return gain_levels(ratings, gain)


def warn_of_counts(ratings: Floats, gain: Gain) -> None:
    """Warn if ratings look like counts, such as clicks, whose gain 2^r - 1 only sees the highest."""
    top = float(np.nanmax(ratings, initial=0.0))
    if gain != "exp2" or top <= _HIGHEST_GRADE:
        return
    known = ratings[~np.isnan(ratings)]
    if top > _HIGHEST_MEAN or (known == np.rint(known)).all():
        warnings.warn(
            f"ratings go up to {top:g}, as counts do, and with the gain 2^r - 1 one such document counts for"
            f" 2^{top:g} of rating 1: cut counts into grades, such as np.digitize(y, [1, 3, 10]) for 0 to 3, or give"
            " another gain to rankers and rules, such as gain='linear' or gain=np.log1p",
            stacklevel=4,
        )


def as_gain(gain: Any) -> Gain:
    """A checked gain, with lists and arrays as tuples; whether it covers every rating is checked with the data.

    >>> as_gain(np.array([0, 1, 3]))
    (0.0, 1.0, 3.0)
    >>> as_gain(3)
    Traceback (most recent call last):
    tierank.errors.ParameterError: gain: expected 'exp2', 'linear', a list with the gains of the ratings 0, 1, 2, ..., a
    mapping from ratings to gains, or a function, got 3
    """
    if isinstance(gain, str):
        return cast(Gain, as_choice("gain", gain, GAINS))
    if isinstance(gain, Mapping):
        _check_gains(gain)
        return {_plain_number(rating): _plain_number(value) for rating, value in gain.items()}
    if isinstance(gain, (list, tuple)) or np.ndim(gain) == 1:
        values = np.asarray(gain).tolist() if hasattr(gain, "__array__") else list(gain)
        _check_gains(dict(enumerate(values)))
        return tuple(float(value) for value in values)
    if not callable(gain):
        expected = (
            "'exp2', 'linear', a list with the gains of the ratings 0, 1, 2, ..., a mapping from ratings to gains"
        )
        raise ParameterError(argument="gain", expected=f"{expected}, or a function", got=repr(gain))
    return cast(Gain, gain)


def _plain_number(value: Any) -> float:
    return value.item() if isinstance(value, np.generic) else value  # type: ignore[no-any-return]


def _check_gains(gains: Mapping[Any, Any]) -> None:
    if not gains:
        raise ParameterError(argument="gain", expected="at least one gain", got="none")
    for rating, gain in gains.items():
        if isinstance(rating, bool) or not isinstance(rating, Real):
            raise ParameterError(argument="gain", expected="ratings that are numbers", got=repr(rating))
        if isinstance(gain, bool) or not isinstance(gain, Real) or not 0 <= float(gain) < float("inf"):
            got = f"{gain!r} for rating {float(rating):g}"
            raise ParameterError(argument="gain", expected="finite gains that are not negative", got=got)


def gain_levels(ratings: Floats, gain: Gain) -> Floats:
    """What gains are computed from: the rating for a named gain, otherwise the gain itself."""
    gain = as_gain(gain)
    if isinstance(gain, str):
        return ratings
    unique, codes = np.unique(ratings, return_inverse=True)
    if isinstance(gain, Mapping):
        missing = [level for level in unique.tolist() if level not in gain]
        if missing:
            expected = "a gain for every rating of the data"
            raise ParameterError(argument="gain", expected=expected, got=f"none for {missing[0]:g}")
        gains = np.array([gain[level] for level in unique.tolist()], dtype=np.float64)
    elif isinstance(gain, tuple):
        outside = (unique != np.rint(unique)) | (unique >= len(gain))
        if outside.any():
            expected = f"integer ratings from 0 to {len(gain) - 1}, which have a gain in the list"
            got, fix = f"{unique[outside.argmax()]:g}", "make the list longer, or give a mapping from ratings to gains"
            raise DataError(argument="gain", expected=expected, got=got, fix=fix)
        gains = np.array(gain)[unique.astype(np.int64)]
    else:
        gains = np.asarray(gain(unique), dtype=np.float64)  # type: ignore[operator]
    if gains.shape != unique.shape:
        expected = f"{len(unique)} gains for an array of {len(unique)} ratings"
        raise ParameterError(argument="gain", expected=expected, got=f"shape {gains.shape}")
    bad = ~(np.isfinite(gains) & (gains >= 0))
    if bad.any():
        got = f"{gains[bad.argmax()]:g} for rating {unique[bad.argmax()]:g}"
        raise ParameterError(argument="gain", expected="finite gains that are not negative", got=got)
    return np.asarray(gains[codes], np.float64)
