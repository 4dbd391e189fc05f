"""Generated ranking data of any size, shaped like the web-search data sets."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Allocator, Features, in_memory, release_pages
from tierank.data.dataset import RankingDataset
from tierank.errors import ParameterError
from tierank.files import as_path
from tierank.settings import as_number, as_whole

# The kinds of the families of columns, in turn, with about the shares of web-search data sets.
_KINDS = ("score", "count", "ratio", "sparse", "length", "query", "score", "sparse", "count")

# A family is one statistic over several text fields (title, body, url, ...): its columns are correlated.
_FAMILY_SIZE = 5

# Documents generated at a time: they fit the cache of one core, and memory stays small.
_BLOCK = 4096

# The hidden function: numbers of units, rules and relative columns, and columns and steepness of a unit.
_N_UNITS, _UNIT_COLUMNS, _UNIT_GAIN = 16, 8, 2
_N_RULES = 8
_N_RELATIVE = 4

# The weights of the parts. The first three together have a variance of about 1 within a query; with noise 1, a linear
# scorer, trees and a network then differ clearly, and none is near perfect.
_SMOOTH, _RULES, _RELATIVE = np.float32(0.7), np.float32(0.45), np.float32(0.25)
_SPREAD, _OFFSET = np.float32(0.4), np.float32(0.8)


def make_ranking(
    n_queries: int = 1000,
    *,
    n_features: int = 136,
    mean_length: float = 120,
    max_length: int = 900,
    rating_shares: Sequence[float] = (0.52, 0.32, 0.13, 0.02, 0.01),
    noise: float = 1.0,
    missing: float = 0.0,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
) -> RankingDataset:
    """Generate a data set; by default with the columns, list lengths and ratings of MSLR-WEB.

    Families of columns are scores, counts, lengths with heavy tails, values in [0, 1], mostly zero, or the same for all
    documents of a query. With z the log-scaled features, a document's relevance is ::

        spread(query) * (smooth(z) + rules(z) + relative(z) + noise * normal) + offset(query)

        smooth      a tanh network with products, which reads most columns: many small effects
        rules       "where z_a is high, a high z_b helps; elsewhere, a low z_c": steps and interactions
        relative    how close z is to the highest value within the query
        offset      of the query alone, so that some queries have no relevant document

    Documents are sorted by relevance over the whole sample and cut so that rating r has the share ``rating_shares[r]``,
    up to rounding. The relevance function depends on ``n_features`` only, and ``seed`` draws queries and documents: a
    model trained with one seed works for another. For test data, use another seed, or ``split`` one sample.

    Besides the float32 matrix, the peak memory is about 30 bytes per document and 20 MB (with 136 features).

    Parameters
    ----------
    n_queries : int, default 1000
        Number of queries.
    n_features : int, default 136
        Number of features.
    mean_length : float, default 120
        Mean number of documents per query. Lengths have a long tail; all are equal if it equals ``max_length``.
    max_length : int, default 900
        Maximum number of documents per query.
    rating_shares : sequence of float, default (0.52, 0.32, 0.13, 0.02, 0.01)
        Share of the documents that get the ratings 0, 1, 2, ...
    noise : float, default 1.0
        Noise of the ratings, relative to what the features explain; 0 for none.
    missing : float, default 0.0
        Share of the feature values that are missing, at random.
    seed : int, default 0
        Random seed.
    out : path, optional
        A ``.tierank`` folder to build the data set in, with memory-mapped features: it may be larger than memory.

    Returns
    -------
    RankingDataset
        The data, with query ids 1, 2, 3, ...

    Examples
    --------
    >>> data = make_ranking(100, n_features=20, mean_length=50, max_length=50)
    >>> data
    RankingDataset(100 queries, 5,000 documents, 20 features, ratings 0 to 4)
    >>> (np.bincount(data.ratings.astype(int)) / data.n_documents).tolist()
    [0.52, 0.32, 0.13, 0.02, 0.01]
    """
    as_whole("n_queries", n_queries)
    as_whole("n_features", n_features)
    as_whole("max_length", max_length)
    as_whole("seed", seed, 0)
    as_number("mean_length", mean_length, 1, max_length)
    as_number("noise", noise, 0, 1000)
    as_number("missing", missing, 0, 1)
    shares = _checked_shares(rating_shares)

    rng = np.random.default_rng(seed)
    holes = rng.spawn(1)[0]  # a separate stream: the documents do not depend on what is missing
    lengths = _draw_lengths(rng, n_queries, mean_length, max_length)
    build = partial(_build, _World(n_features), rng, holes, lengths, noise, missing, shares)
    if out is None:
        return build(in_memory)
    from tierank.io.cache import SUFFIX, build_folder  # loads all readers, which data in memory does not need

    folder = as_path(out, "out", f"the name of a folder that ends in {SUFFIX}")
    if folder.suffix != SUFFIX:
        expected = f"the name of a folder that ends in {SUFFIX}"
        raise ParameterError(argument="out", expected=expected, got=repr(str(out)))
    return build_folder(folder, build)


def _build(
    world: _World,
    rng: np.random.Generator,
    holes: np.random.Generator,
    lengths: NDArray[np.int64],
    noise: float,
    missing: float,
    shares: NDArray[np.float64],
    allocate: Allocator,
) -> RankingDataset:
    """Draw the documents block by block, and rate them."""
    offsets = np.concatenate([[0], lengths.cumsum()])
    features = allocate(int(offsets[-1]), len(world.kinds))
    relevance = np.empty(offsets[-1], np.float32)
    for first, last in _blocks(offsets):
        rows = slice(offsets[first], offsets[last])
        z = world.draw(rng, lengths[first:last])
        relevance[rows] = world.judge(rng, z, lengths[first:last], noise)
        features[rows] = world.show(z).T
        if missing:
            features[rows][holes.random(z.T.shape, np.float32) < missing] = np.nan
        release_pages(features[rows])
    return RankingDataset.from_parts(features, _rate(relevance, shares), offsets, np.arange(1, len(lengths) + 1))


class _World:
    """The distribution of documents and the relevance function: the same for every sample with this many features.

    Inside, the documents are a matrix z (features x documents): each row has mean 0 and variance 1 over all queries,
    before values below its ``floor`` (the text field does not match) are raised to it.
    """

    def __init__(self, n_features: int) -> None:
        rng = np.random.default_rng([2020, n_features])  # not the caller's seed: the world is fixed
        size = min(_FAMILY_SIZE, max(1, n_features // 6))  # with few columns, each is a separate family
        self.family = np.arange(n_features) // size
        self.kinds = np.array([_KINDS[family % len(_KINDS)] for family in self.family])
        self._draw_shapes(rng, n_features)
        self._draw_effects(rng, n_features)

    def _draw_shapes(self, rng: np.random.Generator, n: int) -> None:
        """The spread of each column: over queries, over the family, and in the shown values."""
        dense = np.flatnonzero((self.kinds != "query") & (self.kinds != "sparse"))
        self.relative = np.resize(rng.permutation(dense), _N_RELATIVE)
        of_query = np.where(self.kinds == "query", 1, rng.uniform(0.05, 0.35, n))
        of_query[self.relative] = 0.6  # their absolute values say little
        of_family = (1 - of_query) * rng.uniform(0.4, 0.9, n)
        self.query_part, self.family_part = _column(np.sqrt(of_query)), _column(np.sqrt(of_family))
        self.own_part = _column(np.sqrt(np.maximum(0, 1 - of_query - of_family)))
        lowest = np.where(self.kinds == "score", rng.uniform(-1, 0, n), -9)
        self.floor = _column(np.where(self.kinds == "sparse", rng.uniform(0.7, 1.6, n), lowest))
        self.steepness, self.size = _column(rng.uniform(0.8, 1.6, n)), _column(np.exp(rng.uniform(0, 4, n)))

    def _draw_effects(self, rng: np.random.Generator, n: int) -> None:
        """The columns that affect relevance, and how."""
        self.unit_weight = np.zeros((_N_UNITS, n), np.float32)
        for weight in self.unit_weight:
            columns = rng.permutation(n)[:_UNIT_COLUMNS]
            effect = rng.standard_normal(len(columns))
            weight[columns] = _UNIT_GAIN * effect / np.linalg.norm(effect)
        self.rules = np.resize(rng.permutation(np.flatnonzero(self.kinds != "query")), (_N_RULES, 3))
        self.threshold = np.maximum(rng.normal(0.3, 0.5, n), self.floor[:, 0]).astype(np.float32)

    def draw(self, rng: np.random.Generator, lengths: NDArray[np.int64]) -> Features:
        """The documents of queries with these lengths, as z."""
        n_features, n = len(self.family), int(lengths.sum())
        query = np.repeat(np.arange(len(lengths)), lengths)
        families = rng.standard_normal((self.family[-1] + 1, n), np.float32)
        families *= math.sqrt(0.8)
        families += math.sqrt(0.2) * rng.standard_normal(n, np.float32)  # how well the whole document matches
        z = rng.standard_normal((n_features, n), np.float32)
        z *= self.own_part
        z += self.family_part * families[self.family]
        z += (self.query_part * rng.standard_normal((n_features, len(lengths)), np.float32))[:, query]
        return np.maximum(z, self.floor, out=z)

    def judge(self, rng: np.random.Generator, z: Features, lengths: NDArray[np.int64], noise: float) -> Features:
        """The relevance of each document: see ``make_ranking``."""
        explained = _SMOOTH * self._smooth(z) + _RULES * self._rules(z) + _RELATIVE * self._relative(z, lengths)
        noisy = explained + np.float32(noise) * rng.standard_normal(z.shape[1], np.float32)
        spread = np.exp(_SPREAD * rng.standard_normal(len(lengths), np.float32))
        offset = _OFFSET * rng.standard_normal(len(lengths), np.float32)
        return cast(Features, np.repeat(spread, lengths) * noisy + np.repeat(offset, lengths))

    def _smooth(self, z: Features) -> Features:
        """Sum over u of h_u + 2 * sum over pairs of h_u h_u', where h_u = tanh(sum over f of w_uf z_f)."""
        # einsum, not @: a product by BLAS may differ in the last bit with the number of threads
        units = np.tanh(np.einsum("uf,fn->un", self.unit_weight, z))
        pairs = units[::2] * units[1::2]
        return cast(Features, (units.sum(axis=0) + 2 * pairs.sum(axis=0)) / np.float32(_N_UNITS**0.5))

    def _rules(self, z: Features) -> Features:
        """Sum over rules (a, b, c) of: where z_a is high, whether z_b is high; elsewhere, whether z_c is low."""
        total = np.zeros(z.shape[1], np.float32)
        for a, b, c in self.rules:
            total += np.where(self._high(z, a), self._high(z, b), ~self._high(z, c))
        return (total - _N_RULES / 2) / np.float32(0.5 * _N_RULES**0.5)

    def _high(self, z: Features, column: int) -> NDArray[np.bool_]:
        return cast(NDArray[np.bool_], z[column] > self.threshold[column])

    def _relative(self, z: Features, lengths: NDArray[np.int64]) -> Features:
        """Sum over some f of s_f^4, s_f being z_f scaled to [0, 1] within the query."""
        starts = lengths.cumsum() - lengths
        lowest, highest = (ufunc.reduceat(z[self.relative], starts, axis=1) for ufunc in (np.minimum, np.maximum))
        width = np.maximum(highest - lowest, np.float32(1e-6))
        scaled = (z[self.relative] - np.repeat(lowest, lengths, axis=1)) / np.repeat(width, lengths, axis=1)
        return cast(Features, (scaled**4).sum(axis=0) / np.float32(0.2 * _N_RELATIVE**0.5))

    def show(self, z: Features) -> Features:
        """The features that the caller sees, computed in place of z."""
        for column, kind in enumerate(self.kinds):
            z[column] = _SHOWN[kind](z[column], self.floor[column], self.steepness[column], self.size[column])
        return z


# The values of a column of z for the caller: z, floor, steepness, size -> values.
_SHOWN: dict[str, Callable[[Features, Features, Features, Features], Features]] = {
    "score": lambda z, floor, steepness, size: size * (z - floor),
    "count": lambda z, floor, steepness, size: np.floor(size * np.exp(steepness * z)),
    "ratio": lambda z, floor, steepness, size: 1 / (1 + np.exp(-2 * steepness * z)),
    "sparse": lambda z, floor, steepness, size: size * np.expm1(steepness * (z - floor)),
    "length": lambda z, floor, steepness, size: 10 * size * np.exp(steepness * z),
    "query": lambda z, floor, steepness, size: size * np.exp(z / 2),
}


def _column(values: NDArray[np.float64]) -> Features:
    return values.astype(np.float32)[:, None]


def _draw_lengths(rng: np.random.Generator, n: int, mean: float, longest: int) -> NDArray[np.int64]:
    """1 + (mean - 1) * gamma of mean 1, at most ``longest``; the nearer the mean to it, the narrower."""
    room = 1 - mean / longest
    if room <= 0:
        return np.full(n, longest, np.int64)
    shape = 1.2 / room**2
    lengths = 1 + np.rint((mean - 1) * rng.gamma(shape, 1 / shape, n)).astype(np.int64)
    return np.minimum(lengths, longest)


def _blocks(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Spans of whole queries of about _BLOCK documents each."""
    cuts = np.searchsorted(offsets, np.arange(0, offsets[-1], _BLOCK))
    return pairwise(np.unique([*cuts, len(offsets) - 1]).tolist())


def _rate(relevance: Features, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ratings 0, 1, ... that cut the documents, sorted by relevance, at these shares."""
    cuts = np.rint(shares.cumsum() * len(relevance)).astype(np.int64)
    ratings = np.empty(len(relevance))
    ratings[relevance.argsort(kind="stable")] = np.repeat(np.arange(len(shares)), np.diff(cuts, prepend=0))
    return ratings


def _checked_shares(given: Sequence[float]) -> NDArray[np.float64]:
    try:
        shares = np.array(given, np.float64)
    except (TypeError, ValueError):
        shares = np.empty(0)
    if shares.ndim != 1 or not len(shares) or not (shares >= 0).all() or abs(shares.sum() - 1) > 1e-6:
        expected = "one share per rating, 0 or more, that sum to 1"
        raise ParameterError(argument="rating_shares", expected=expected, got=repr(given))
    shares /= shares.sum()
    return shares
