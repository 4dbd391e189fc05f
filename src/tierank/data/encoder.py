"""What a model learns from the columns of its training data, and applies to other data.

* A category becomes the number of its level among those of the training data; other levels are missing.
* A category of more than ``MANY`` levels becomes a mean: how far above the mean of their queries documents of that
  level were rated in the training data. For the training documents themselves, it is the mean over other queries.
* A date becomes an age: days before the latest date of the training data.
* The texts of a query and a document become match features, by word statistics of the training documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from tierank.data.checks import as_names
from tierank.data.columns import (
    Category,
    Columns,
    ColumnType,
    ColumnTypes,
    DatePart,
    Elapsed,
    Element,
    Encoded,
    Indicator,
    Match,
    Mean,
    Similarity,
    Text,
    TextPair,
    kinds_from_json,
    kinds_to_json,
    occurring,
    sources_of,
)
from tierank.data.dataset import RankingDataset
from tierank.data.text import BM25Statistics
from tierank.data.vectors import VECTOR_PARTS, TextEncoder, similarities
from tierank.errors import DataError
from tierank.kernels.texts import PARTS

# Categories with more levels are encoded as mean ratings. LightGBM has this many bins per feature by default.
MANY = 255
# With fewer levels than this there is never a warning.
_FEW = 20
# At least this share of the documents has a text that occurs in other queries too.
_SHARED = 0.5
# Means are shrunk towards 0, as if there were this many more documents with the mean rating of their query.
_PRIOR = 10
# Queries are cut into this many parts; means of training documents come from the other parts.
_FOLDS = 5
# The file in a model folder that has the statistics of words.
_TEXTS = "texts.safetensors"


@dataclass(frozen=True)
class ColumnEncoder:
    """How the features of a model are computed from other data.

    Parameters
    ----------
    kinds : mapping of str to ColumnType
        The types of the features that are not plain numbers, with their learned values; JSON holds them.
    statistics : mapping of str to BM25Statistics
        The word statistics of the match features, by digest; the types hold the digests, and a file the statistics.
    """

    kinds: ColumnTypes = field(default_factory=dict)
    statistics: Mapping[str, BM25Statistics] = field(default_factory=dict, compare=False)

    @classmethod
    def learn(cls, train: RankingDataset, *, by_levels: bool = True) -> tuple[ColumnEncoder, RankingDataset]:
        """The encoder of a model, and its training data with the encoded features.

        With ``by_levels`` the model learns from level numbers; without it each level becomes a 0/1 feature.
        """
        if not train.kinds:
            return cls(), train
        train, statistics = _with_matches_learned(train)
        features, kinds, names = np.array(train.features), dict(train.kinds), train.feature_names or ()
        for place, name in enumerate(names):
            if name in kinds:
                kinds[name], features[:, place] = kinds[name].learn(features[:, place])
        unshared: dict[str, str] = {}
        folds: NDArray[np.int64] | None = None
        encoded = features.copy()
        for place, name in enumerate(names):
            kind, wanted = kinds.get(name), getattr(train.kinds.get(name), "learned_as", "levels")
            if not isinstance(kind, Category) or wanted == "levels":
                continue
            if wanted == "auto" and (what := _find_unshared(features[:, place], kind, train)):
                unshared[name] = what
            elif wanted == "mean" or len(kind.levels) > MANY:
                folds = _folds_by_content(features, train) if folds is None else folds
                kinds[name], encoded[:, place] = _mean_ratings(features[:, place], kind, train, folds)
        if unshared:
            columns, those = list(unshared), "column" if len(unshared) == 1 else "columns"
            raise DataError(
                expected="texts that several queries have: ids and sentences tell nothing about other queries",
                got="; ".join(f"column {name!r}: {what}" for name, what in unshared.items()),
                fix=f"declare columns=Columns(categories={columns}) to learn from each text, or"
                f" columns=Columns(means={columns}) to learn from the mean rating of each, or"
                " columns=Columns(texts=[(query, document)]) to match the texts of two columns, or leave the"
                f" {those} out with ignore={columns}",
            )
        learned = train.with_features(encoded, train.feature_names, kinds)
        if not by_levels:
            categories = {name: kind for name, kind in kinds.items() if isinstance(kind, Category)}
            learned = _with_indicators(
                learned, {name: [Indicator(name, level) for level in kind.levels] for name, kind in categories.items()}
            )
        return cls(learned.kinds, statistics), learned

    def expand(self, data: RankingDataset) -> RankingDataset:
        """The data with the features that the model computes from texts: matches, and 0/1 features of levels."""
        names = data.feature_names or ()
        matches = [kind for name, kind in self.kinds.items() if isinstance(kind, TextPair) and name not in names]
        if names and matches:
            data = _with_matches(data, matches, self.statistics)
        wanted: dict[str, list[Indicator]] = {}
        for kind in self.kinds.values():
            if isinstance(kind, Indicator) and kind.column in (data.feature_names or ()):
                wanted.setdefault(kind.column, []).append(kind)
        return _with_indicators(data, wanted) if wanted else data

    def apply(self, data: RankingDataset) -> RankingDataset:
        """The data with the features of the model; the names and the order are already those of the model."""
        if data.kinds == self.kinds:
            return data
        names = data.feature_names or ()
        features = np.array(data.features)
        odd = []
        for place, name in enumerate(names):
            held, wanted = data.kinds.get(name), self.kinds.get(name)
            if not _is_convertible(held, wanted, features[:, place]):
                odd.append((name, wanted.held if wanted else "numbers", held.held if held else "numbers"))
            elif wanted is not None and held != wanted:
                features[:, place] = wanted.convert(features[:, place], held)
        if odd:
            first, *others = [
                DataError(where=f"column {name!r}", expected=f"{expected}, as in training", got=got)
                for name, expected, got in odd
            ]
            first.fix = "; ".join(map(str, others)) or None
            raise first
        if self.kinds and not names:
            columns = ", ".join(map(repr, list(self.kinds)[:8]))
            expected = f"a table with the columns {columns}, as in training"
            raise DataError(expected=expected, got="features without names")
        return data.with_features(features, data.feature_names, self.kinds)

    @property
    def needs_list(self) -> bool:
        """Whether a feature depends on the other documents of the query."""
        return any(isinstance(kind, Encoded) and kind.part == "list_cosine" for kind in self.kinds.values())

    def raw_kinds(self, names: tuple[str, ...]) -> Mapping[str, ColumnType | None]:
        """The types to read from a table, before ``expand`` and ``apply``."""
        kinds: dict[str, ColumnType | None] = {}
        for name in names:
            kind = self.kinds.get(name)
            if isinstance(kind, Indicator):
                kinds[kind.column] = Category()
            elif isinstance(kind, TextPair):
                for column in kind.sources(name):
                    kinds.setdefault(column, Text())
            else:
                kinds[name] = None if kind is None else kind.raw
        return kinds

    def sources(self, names: tuple[str, ...]) -> list[str]:
        """The columns of a table that the features of the model are computed from."""
        return sources_of(names, self.kinds)

    def columns(self) -> Columns:
        """The ``Columns`` to declare when a file is read for the model."""
        declared: dict[str, dict[Any, None]] = {one.name: {} for one in fields(Columns)}
        for name, kind in self.kinds.items():
            for argument, values in kind.declared(name).items():
                declared[argument] |= dict.fromkeys(values)
        now, encoder = (next(iter(declared.pop(argument)), None) for argument in ("now", "encoder"))
        paired = {column for pair in declared["similarities"] for column in pair}
        declared["vectors"] = {name: None for name in declared["vectors"] if name in paired}
        lists: dict[str, Any] = {argument: tuple(values) for argument, values in declared.items() if values}
        return Columns(**lists, now=now, encoder=encoder)

    def to_json(self) -> dict[str, Any]:
        """The encoder as plain values for JSON; ``from_json`` reads them."""
        return kinds_to_json(self.kinds)

    def files(self) -> dict[str, bytes]:
        """The files that ``save`` writes in addition to JSON, by file name."""
        arrays = {
            f"{digest}.{name}": array for digest, one in self.statistics.items() for name, array in one.arrays().items()
        }
        return {_TEXTS: safetensors.numpy.save(arrays)} if arrays else {}

    @classmethod
    def from_json(cls, given: Any, names: tuple[str, ...] | None, files: Mapping[str, bytes]) -> ColumnEncoder:
        """The encoder from the results of ``to_json`` and ``files``, for these features."""
        kinds = kinds_from_json(given, names)
        matches = {name: kind for name, kind in kinds.items() if isinstance(kind, Match)}
        statistics = _read_statistics(files[_TEXTS]) if matches and _TEXTS in files else {}
        for name, encoded in kinds.items():
            if isinstance(encoded, Encoded) and (encoded.part not in VECTOR_PARTS or encoded.feature != name):
                expected = f"a similarity of vectors for the feature {name!r}"
                raise DataError(argument="columns", expected=expected, got=f"{encoded}")
        for name, kind in matches.items():
            if kind.part not in PARTS or kind.feature != name or kind.statistics not in statistics:
                expected = f"statistics of texts for the feature {name!r}"
                raise DataError(argument="columns", expected=expected, got="none")
        return cls(kinds, statistics)


def _read_statistics(content: bytes) -> dict[str, BM25Statistics]:
    try:
        arrays = safetensors.numpy.load(content)
    except (safetensors.SafetensorError, KeyError, ValueError):
        raise DataError(expected="the statistics of texts", got="a damaged file") from None
    by_digest: dict[str, dict[str, NDArray[Any]]] = {}
    for key, array in arrays.items():
        digest, _, name = key.partition(".")
        by_digest.setdefault(digest, {})[name] = array
    statistics = {digest: BM25Statistics.from_arrays(one) for digest, one in by_digest.items()}
    if any(one.digest != digest for digest, one in statistics.items()):
        raise DataError(expected="the statistics of texts", got="a damaged file")
    return statistics


def _is_convertible(held: ColumnType | None, wanted: ColumnType | None, values: NDArray[np.float32]) -> bool:
    """Whether the values of a feature can be converted to the type of the model."""
    if held == wanted:
        return True
    if held is not None:
        raw = None if wanted is None else wanted.raw
        return held == raw or (isinstance(held, Category) and isinstance(raw, Category))
    # Numbers may have been computed elsewhere; where all are missing, they are neither texts nor numbers.
    return isinstance(wanted, (Elapsed, DatePart, Element, Similarity, TextPair)) or bool(np.isnan(values).all())


def _with_matches_learned(train: RankingDataset) -> tuple[RankingDataset, Mapping[str, BM25Statistics]]:
    """The training data with match features, and their word statistics; texts that are not features are dropped."""
    texts = {name: kind for name, kind in train.kinds.items() if isinstance(kind, Text)}
    if not texts:
        return train, {}
    pairs = [(query, document) for query, kind in texts.items() for document in kind.documents]
    of_column = {}
    for document in dict.fromkeys(document for _, document in pairs):
        codes, kind = _category(train, document)
        of_column[document] = BM25Statistics.learn(kind.levels[code] for code in occurring(codes))
    matches: list[TextPair] = [Match(*pair, part, of_column[pair[1]].digest) for pair in pairs for part in PARTS]
    for pair in pairs:
        if texts[pair[0]].encoder:
            encoder = TextEncoder.of(texts[pair[0]].encoder)
            # All rows as one list, if there are no query ids, are no list.
            parts = VECTOR_PARTS if train.n_queries > 1 else VECTOR_PARTS[:1]
            matches += [Encoded(*pair, part, encoder.name, encoder.digest) for part in parts]
    statistics = {one.digest: one for one in of_column.values()}
    train = _with_matches(train, matches, statistics)
    kinds = {
        name: Category(kind.levels, kind.learned_as) if isinstance(kind, Text) else kind
        for name, kind in train.kinds.items()
        if name not in texts or texts[name].learned_as != "matches"
    }
    names = train.feature_names or ()
    kept = [place for place, name in enumerate(names) if name not in texts or name in kinds]
    return train.with_features(train.features[:, kept], tuple(names[place] for place in kept), kinds), statistics


def _with_matches(
    data: RankingDataset, matches: Sequence[TextPair], statistics: Mapping[str, BM25Statistics]
) -> RankingDataset:
    """The data with match features appended, and the similarities of vectors."""
    columns: list[NDArray[np.float32]] = [data.features]
    by_pair: dict[tuple[str, ...], list[TextPair]] = {}
    for one in matches:
        by_pair.setdefault((one.query, one.document, one.NAME, one.digest), []).append(one)
    for (query, document, _, digest), wanted in by_pair.items():
        sides = [_present(*_category(data, column)) for column in (query, document)]
        if isinstance(wanted[0], Encoded):
            encoder = TextEncoder.of(wanted[0].encoder, digest)
            vectors = [encoder.vectors(texts)[numbers] for texts, numbers in sides]
            offsets = data.offsets if any(one.part == "list_cosine" for one in wanted) else None
            alike = similarities(vectors[0], vectors[1], offsets)
            columns.append(np.column_stack([alike[one.part] for one in wanted]).astype(np.float32))
        else:
            made = statistics[digest].match_numbered(*sides[0], *sides[1])
            columns.append(made[:, [PARTS.index(one.part) for one in wanted]])
    ordered = [one for wanted in by_pair.values() for one in wanted]
    names = [*(data.feature_names or ()), *(one.feature for one in ordered)]
    kinds = {**data.kinds, **{one.feature: one for one in ordered}}
    return data.with_features(np.concatenate(columns, axis=1), as_names(names, len(names)), kinds)


def _present(codes: NDArray[np.float32], kind: Category) -> tuple[list[str], NDArray[np.int64]]:
    """The texts that occur, and the index of each row's text among them; a missing text counts as empty."""
    different, numbers = np.unique(np.where(np.isnan(codes), -1, codes), return_inverse=True)
    texts = ["" if code < 0 else kind.levels[code] for code in different.astype(np.int64).tolist()]
    return texts, numbers.ravel().astype(np.int64)


def _category(data: RankingDataset, name: str) -> tuple[NDArray[np.float32], Category]:
    """The level numbers of a column, and the levels. Raises ``DataError`` if the column does not hold texts."""
    names = data.feature_names or ()
    if name not in names:
        raise DataError(
            expected=f"a column {name!r} of texts, as in training",
            got=f"the columns {', '.join(map(repr, names[:8]))}",
            fix="read the data with columns=ranker.columns_",
        )
    values, kind = data.features[:, names.index(name)], data.kinds.get(name)
    if isinstance(kind, Category):
        return values, kind
    if not np.isnan(values).all():
        got = "numbers" if kind is None else kind.held
        raise DataError(where=f"column {name!r}", expected="texts, as in training", got=got)
    return values, Category()


def _with_indicators(data: RankingDataset, wanted: Mapping[str, list[Indicator]]) -> RankingDataset:
    """The data with 0/1 features in place of categories."""
    names: list[str] = []
    kinds: dict[str, ColumnType] = {}
    columns: list[NDArray[np.float32]] = []
    for place, name in enumerate(data.feature_names or ()):
        values, kind = data.features[:, place], data.kinds.get(name)
        if name not in wanted:
            names.append(name)
            columns.append(values)
            kinds |= {} if kind is None else {name: kind}
            continue
        values, category = _category(data, name)
        codes = {level: code for code, level in enumerate(category.levels)}
        for one in wanted[name]:
            names.append(f"{name}={one.level}")
            kinds[names[-1]] = one
            columns.append((values == codes.get(one.level, -1)).astype(np.float32))
    if not columns:
        raise DataError(expected="a feature with a value", got="columns without any text")
    return data.with_features(np.column_stack(columns), as_names(names, len(names)), kinds)


def _find_unshared(codes: NDArray[np.float32], kind: Category, train: RankingDataset) -> str:
    """Why the texts of a column should not be learned from; empty if they occur in several queries."""
    is_known = ~np.isnan(codes)
    if len(kind.levels) <= _FEW or train.n_queries < 2:
        return ""
    known = codes[is_known].astype(np.int64)
    pairs = np.unique(np.stack([known, train.query_of_row[is_known]]), axis=1)
    n_queries = np.bincount(pairs[0], minlength=len(kind.levels))
    shared = float((n_queries[known] > 1).mean())
    if shared >= _SHARED:
        return ""
    alone = f"{1 - shared:.0%} of the rows have a text that no other query has"
    return f"{len(kind.levels):,} different texts such as {kind.levels[0][:60]!r}, {alone}"


def _mean_ratings(
    codes: NDArray[np.float32], kind: Category, train: RankingDataset, folds: NDArray[np.int64]
) -> tuple[Mean, NDArray[np.float32]]:
    """The mean of each level, and the feature of the training documents: the mean of the level in other parts.

    Ratings are taken relative to the mean of their query, and the mean of n of them is sum / (n + 10). The ratings of a
    query never enter the features of its own documents. Unjudged documents do not count.
    """
    if train.n_queries < _FOLDS:
        raise DataError(
            expected=f"at least {_FOLDS} queries to learn the means of texts from",
            got=str(train.n_queries),
            fix="give one query id per row, or leave out the columns of texts",
        )
    # The order of summation does not depend on the order of the rows.
    ratings = np.where(train.is_judged, train.ratings, 0.0)
    n_judged = np.add.reduceat(train.is_judged.astype(np.int64), train.offsets[:-1])
    rising = ratings[np.lexsort((ratings, train.query_of_row))]
    middles = np.add.reduceat(rising, train.offsets[:-1]) / np.maximum(n_judged, 1)
    above = ratings - np.repeat(middles, train.lengths)
    is_known, n = ~np.isnan(codes), len(kind.levels)
    places = np.where(is_known, codes, 0).astype(np.int64)
    sums, counts = np.zeros((_FOLDS, n)), np.zeros((_FOLDS, n))
    rows = np.flatnonzero(is_known & train.is_judged)
    rows = rows[np.lexsort((above[rows], places[rows], folds[rows]))]
    np.add.at(sums, (folds[rows], places[rows]), above[rows])
    np.add.at(counts, (folds[rows], places[rows]), 1)
    means = tuple((sums.sum(axis=0) / (counts.sum(axis=0) + _PRIOR)).tolist())
    other_sums, other_counts = sums.sum(axis=0) - sums, counts.sum(axis=0) - counts
    elsewhere = np.where(other_counts > 0, other_sums / (other_counts + _PRIOR), np.nan)
    encoded = np.where(is_known, elsewhere[folds, places], np.nan)
    return Mean(kind.levels, means), encoded.astype(np.float32)


def _folds_by_content(features: NDArray[np.float32], train: RankingDataset) -> NDArray[np.int64]:
    """The part of each document's query, by the content of the query: neither row order nor ids matter.

    Nor do factors that are powers of two, as in the order of learning: exponents are left out.
    """
    values = np.where(np.isnan(features), np.float32(np.nan), features) + np.float32(0)
    are_numbers = [not isinstance(train.kinds.get(name), Category) for name in train.feature_names or ()]
    values[:, are_numbers] = np.frexp(values[:, are_numbers])[0]
    bits = values.view(np.uint32)
    rng = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        factors = rng.integers(1, 1 << 62, features.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        hashes = (_mixed(bits.astype(np.uint64)) * factors).sum(axis=1, dtype=np.uint64)
        hashes = _mixed(hashes + _mixed((train.ratings + 0.0).view(np.uint64)))
        queries = np.add.reduceat(hashes, train.offsets[:-1])
    unique, place = np.unique(queries, return_inverse=True)
    order = np.random.default_rng(0).permutation(len(unique))
    return np.repeat(order[place.ravel()] % _FOLDS, train.lengths)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mixed bits, each of which depends on all input bits (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
