"""Column types: what the numbers of a feature stand for if they are not plain numbers, and how they are computed.

A data set holds one float32 number per document and feature, and a *column type* (``kinds``) for each feature that was
not simply a column of numbers: levels of texts, days, parts of vectors. The type says which columns of a table the
feature is computed from, and how, so that the same feature can be computed from another table. Types with learned
values (``Age``, ``Mean``) belong to models: ``tierank.data.encoder`` learns them. All are plain values that JSON can
hold. ``Columns`` declares what the columns of a table hold where their types do not tell.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from tierank.errors import DataError, ParameterError

if TYPE_CHECKING:
    from tierank.data.tables import TableColumns

# Features of a date, and of two vectors.
DATE_PARTS = ("age", "month", "weekday", "hour")
MEASURES = ("cosine", "dot", "distance")
# float32 cannot represent all integers above this.
MAX_LEVELS = 1 << 24


@dataclass(frozen=True)
class ColumnType:
    """What a feature stands for. Fields called ``column``, ``now``, ``query`` and ``document`` name columns."""

    NAME: ClassVar[str] = ""
    HOLDS: ClassVar[str] = ""

    def sources(self, feature: str) -> tuple[str, ...]:
        """The columns of a table that the feature is computed from."""
        named = tuple(vars(self)[name] for name in ("column", "now", "query", "document") if name in vars(self))
        return named or (feature,)

    @property
    def raw(self) -> ColumnType:
        """The type in data sets, before a model has learned from them."""
        return self

    @property
    def held(self) -> str:
        """What a message calls the values."""
        return self.HOLDS or f"{self.NAME} of {', '.join(self.sources(''))}"

    def compute(self, feature: str, columns: TableColumns) -> NDArray[np.float64]:
        """The values of the feature, from the columns of a table."""
        raise NotImplementedError

    def learn(self, values: NDArray[np.float32]) -> tuple[ColumnType, NDArray[np.float32]]:
        """The type with what a model learns from these values, and the values that the model sees."""
        return self, values

    def convert(self, values: NDArray[np.float32], old: ColumnType | None) -> NDArray[np.float32]:
        """Values of this type, from those of another one with the same raw form."""
        return values

    def declared(self, feature: str) -> dict[str, Sequence[Any]]:
        """What to declare when a table is read for the feature: members of fields of ``Columns``."""
        return {}

    def __str__(self) -> str:
        return self.NAME


@dataclass(frozen=True)
class Category(ColumnType):
    """Texts: the number k is ``levels[k]``. Levels are sorted; an empty text is missing.

    Parameters
    ----------
    levels : tuple of str
        The different texts.
    learned_as : {"auto", "levels", "mean"}, default "auto"
        Whether models learn from the levels or from the mean rating of each level; ``auto`` decides by their number.
    """

    NAME: ClassVar[str] = "category"
    HOLDS: ClassVar[str] = "texts"
    FORMS: ClassVar[tuple[str, ...]] = ("auto", "levels", "mean")

    levels: tuple[str, ...] = ()
    learned_as: str = "auto"

    def __post_init__(self) -> None:
        if self.learned_as not in self.FORMS:
            raise ParameterError.unknown("way to learn from texts", self.learned_as, self.FORMS)
        if len(self.levels) > MAX_LEVELS:
            raise DataError(expected=f"at most {MAX_LEVELS:,} different texts in a column", got=f"{len(self.levels):,}")

    def compute(self, feature: str, columns: TableColumns) -> NDArray[np.float64]:
        """Level numbers."""
        return columns.codes(feature)

    def learn(self, values: NDArray[np.float32]) -> tuple[ColumnType, NDArray[np.float32]]:
        """The levels that occur."""
        present = Category(tuple(self.levels[code] for code in occurring(values)))
        return present, recode(values, self, present)

    def convert(self, values: NDArray[np.float32], old: ColumnType | None) -> NDArray[np.float32]:
        """Numbers of the levels of this type."""
        return recode(values, old, self) if isinstance(old, Category) else values

    def declared(self, feature: str) -> dict[str, Sequence[Any]]:
        """A category."""
        return {"categories": [feature]}

    def __str__(self) -> str:
        return f"category: {', '.join(f'{place} {level!r}' for place, level in enumerate(self.levels))}"


@dataclass(frozen=True)
class Text(Category):
    """Texts of queries or of documents, which are matched with each other: the number k is ``levels[k]``.

    Parameters
    ----------
    levels : tuple of str
        The different texts.
    learned_as : {"matches", "levels", "mean"}, default "matches"
        Whether the texts are a feature themselves, in addition to the match features.
    documents : tuple of str
        For texts of queries: the columns with the texts of documents that they are matched with.
    encoder : str, default ""
        The name of the text encoder whose vectors are compared; none if empty.
    """

    NAME: ClassVar[str] = "text"
    FORMS: ClassVar[tuple[str, ...]] = ("matches", "levels", "mean")

    learned_as: str = "matches"
    documents: tuple[str, ...] = ()
    encoder: str = ""

    def declared(self, feature: str) -> dict[str, Sequence[Any]]:
        """Pairs of texts, and whether the texts are a feature themselves."""
        pairs: dict[str, Sequence[Any]] = {"texts": [(feature, document) for document in self.documents]}
        pairs |= {"encoder": [self.encoder]} if self.encoder else {}
        argument = {"levels": "categories", "mean": "means"}.get(self.learned_as)
        return pairs if argument is None else {**pairs, argument: [feature]}

    def __str__(self) -> str:
        return f"{len(self.levels):,} texts"


@dataclass(frozen=True)
class TextPair(ColumnType):
    """How well the text of a document matches the text of a query, by what ``digest`` identifies."""

    query: str
    document: str
    part: str

    @property
    def feature(self) -> str:
        """The name of the feature."""
        return f"{self.query}~{self.document}.{self.part}"

    @property
    def digest(self) -> str:
        """The digest of what the texts are compared with."""
        raise NotImplementedError

    def declared(self, feature: str) -> dict[str, Sequence[Any]]:
        """A pair of texts."""
        return {"texts": [(self.query, self.document)]}

    def __str__(self) -> str:
        return f"{self.part} of {self.query} and {self.document}"


@dataclass(frozen=True)
class Match(TextPair):
    """How well the text of a document matches the text of a query, by statistics of the training documents.

    Parameters
    ----------
    query, document : str
        The columns with texts of queries and of documents.
    part : str
        What is compared: ``bm25``, ``words_found`` and others.
    statistics : str
        The digest of the word statistics that it is computed with.
    """

    NAME: ClassVar[str] = "match"

    statistics: str

    digest = property(lambda self: self.statistics)


@dataclass(frozen=True)
class Encoded(TextPair):
    """How alike the vectors of the text of a query and of a document are.

    Parameters
    ----------
    query, document : str
        The columns with texts of queries and of documents.
    part : str
        How they are compared: ``cosine`` or ``list_cosine``.
    encoder : str
        The name of the text encoder.
    weights : str
        The digest of its weights.
    """

    NAME: ClassVar[str] = "encoded"

    encoder: str
    weights: str

    digest = property(lambda self: self.weights)

    def declared(self, feature: str) -> dict[str, Sequence[Any]]:
        """A pair of texts, and the encoder."""
        return super().declared(feature) | {"encoder": [self.encoder]}


@dataclass(frozen=True)
class Indicator(ColumnType):
    """Texts, as 1 for one level and 0 for all others; 0 also where the text is missing.

    Parameters
    ----------
    column : str
        The column of texts.
    level : str
        The level that is 1.
    """

    NAME: ClassVar[str] = "indicator"

    column: str
    level: str

    def declared(self, feature: str) -> dict[str, Sequence[Any]]:
        """A category."""
        return {"categories": [self.column]}

    def __str__(self) -> str:
        return f"1 where {self.column} is {self.level!r}"


@dataclass(frozen=True)
class Mean(ColumnType):
    """Texts with many levels, as the mean of rating minus mean rating of the query, over the documents of the level.

    Parameters
    ----------
    levels : tuple of str
        The different texts.
    means : tuple of float
        One mean per level.
    """

    NAME: ClassVar[str] = "mean"
    HOLDS: ClassVar[str] = "texts"

    levels: tuple[str, ...]
    means: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.levels) != len(self.means) or not all(map(math.isfinite, self.means)):
            raise ParameterError(argument="means", expected="a finite mean for each level", got="others")

    raw = property(lambda self: Category())

    def convert(self, values: NDArray[np.float32], old: ColumnType | None) -> NDArray[np.float32]:
        """The means of levels."""
        return recode(values, old, self) if isinstance(old, Category) else values

    def declared(self, feature: str) -> dict[str, Sequence[Any]]:
        """A category."""
        return {"categories": [feature]}

    def __str__(self) -> str:
        return f"mean rating of each of {len(self.levels):,} texts; model.json has them"


@dataclass(frozen=True)
class Date(ColumnType):
    """Dates: days since 1970-01-01 00:00 UTC."""

    NAME: ClassVar[str] = "date"
    HOLDS: ClassVar[str] = "dates"

    def compute(self, feature: str, columns: TableColumns) -> NDArray[np.float64]:
        """Days."""
        return columns.days(feature)

    def learn(self, values: NDArray[np.float32]) -> tuple[ColumnType, NDArray[np.float32]]:
        """Ages before the latest date."""
        age = Age(float(np.nanmax(values)) if np.isfinite(values).any() else 0.0)
        return age, age.convert(values, self)

    def declared(self, feature: str) -> dict[str, Sequence[Any]]:
        """A date, of which the age is a feature."""
        return {"dates": [feature], "date_parts": ["age"]}


@dataclass(frozen=True)
class Age(ColumnType):
    """Dates, as days before a date.

    Parameters
    ----------
    reference : float
        The reference date in days since 1970-01-01 00:00 UTC: the latest one in the training data.
    """

    NAME: ClassVar[str] = "age"
    HOLDS: ClassVar[str] = "dates"

    reference: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.reference):
            raise ParameterError(argument="reference", expected="a finite date", got=repr(self.reference))

    raw = property(lambda self: Date())
    declared = Date.declared

    def convert(self, values: NDArray[np.float32], old: ColumnType | None) -> NDArray[np.float32]:
        """Days before the reference date."""
        return (self.reference - values.astype(np.float64)).astype(np.float32)

    def __str__(self) -> str:
        return f"days before day {self.reference!r}, counted from 1970-01-01 00:00 UTC"


@dataclass(frozen=True)
class Elapsed(ColumnType):
    """Days from one date to another date of the same row.

    Parameters
    ----------
    column, now : str
        The earlier date, and the later one.
    """

    NAME: ClassVar[str] = "elapsed"

    column: str
    now: str

    def compute(self, feature: str, columns: TableColumns) -> NDArray[np.float64]:
        """The difference in days."""
        return columns.days(self.now) - columns.days(self.column)

    def declared(self, feature: str) -> dict[str, Sequence[Any]]:
        """Two dates."""
        return {"dates": [self.column], "date_parts": ["age"], "now": [self.now]}

    def __str__(self) -> str:
        return f"days from {self.column} to {self.now}"


@dataclass(frozen=True)
class DatePart(ColumnType):
    """Month (1 to 12), weekday (0, Monday, to 6) or hour (0 to 23) of a date, in UTC.

    Parameters
    ----------
    column : str
        The date.
    part : str
        ``month``, ``weekday`` or ``hour``.
    """

    NAME: ClassVar[str] = "date_part"

    column: str
    part: str

    def __post_init__(self) -> None:
        if self.part not in DATE_PARTS[1:]:
            raise ParameterError.unknown("part of a date", self.part, DATE_PARTS)

    def compute(self, feature: str, columns: TableColumns) -> NDArray[np.float64]:
        """The part of each date."""
        days = columns.days(self.column)
        known = np.where(np.isnan(days), 0, days)
        whole = np.floor(known)
        if self.part == "month":
            parts = whole.astype(np.int64).astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12 + 1
        elif self.part == "weekday":
            parts = (whole.astype(np.int64) + 3) % 7  # 1970-01-01 was a Thursday
        else:
            parts = np.floor(np.round((known - whole) * 24, 6)).astype(np.int64) % 24
        return np.where(np.isnan(days), np.nan, parts)

    def declared(self, feature: str) -> dict[str, Sequence[Any]]:
        """A date and its part."""
        return {"dates": [self.column], "date_parts": [self.part]}

    def __str__(self) -> str:
        return f"{self.part} of {self.column}"


@dataclass(frozen=True)
class Element(ColumnType):
    """One number of a vector.

    Parameters
    ----------
    column : str
        The column of vectors.
    place : int
        The index of the number in the vector, from 0.
    size : int
        The length of the vectors.
    """

    NAME: ClassVar[str] = "element"

    column: str
    place: int
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.place < self.size:
            raise ParameterError(argument="place", expected=f"a place in {self.size} numbers", got=str(self.place))

    def compute(self, feature: str, columns: TableColumns) -> NDArray[np.float64]:
        """One column of the matrix of vectors."""
        vectors: NDArray[np.float64] = columns.vectors(self.column, self.size)[:, self.place]
        return vectors

    def declared(self, feature: str) -> dict[str, Sequence[Any]]:
        """A column of vectors."""
        return {"vectors": [self.column]}

    def __str__(self) -> str:
        return f"number {self.place} of {self.column}"


@dataclass(frozen=True)
class Similarity(ColumnType):
    """How similar the vector of a query and that of a document are.

    Parameters
    ----------
    query, document : str
        The columns with vectors of queries and of documents.
    measure : str
        ``cosine`` (missing where a vector is all 0), ``dot`` or ``distance`` (Euclidean).
    """

    NAME: ClassVar[str] = "similarity"

    query: str
    document: str
    measure: str

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise ParameterError.unknown("measure of similarity", self.measure, MEASURES)

    def compute(self, feature: str, columns: TableColumns) -> NDArray[np.float64]:
        """The measure of each pair of vectors."""
        one, other = columns.paired_vectors(self.query, self.document)
        if self.measure == "distance":
            return np.asarray(np.sqrt(((one - other) ** 2).sum(axis=1)), np.float64)
        dot = np.asarray((one * other).sum(axis=1), np.float64)
        if self.measure == "dot":
            return dot
        lengths = np.sqrt((one**2).sum(axis=1)) * np.sqrt((other**2).sum(axis=1))
        return np.asarray(np.divide(dot, lengths, out=np.full(len(dot), np.nan), where=lengths > 0), np.float64)

    def declared(self, feature: str) -> dict[str, Sequence[Any]]:
        """A pair of vectors and its measure."""
        return {"similarities": [(self.query, self.document)], "measures": [self.measure]}

    def __str__(self) -> str:
        return f"{self.measure} of {self.query} and {self.document}"


# Types of the features that are not plain numbers, by feature name.
ColumnTypes = Mapping[str, ColumnType]

COLUMN_TYPES = {
    one.NAME: one
    for one in (
        Category,
        Text,
        Match,
        Encoded,
        Indicator,
        Mean,
        Date,
        Age,
        Elapsed,
        DatePart,
        Element,
        Similarity,
    )
}


def sources_of(features: Sequence[str], kinds: ColumnTypes) -> list[str]:
    """The columns of a table that some features are computed from, each once."""
    found = (kinds[name].sources(name) if name in kinds else (name,) for name in features)
    return list(dict.fromkeys(column for columns in found for column in columns))


def kinds_to_json(kinds: ColumnTypes) -> dict[str, dict[str, Any]]:
    """Column types as JSON holds them.

    >>> kinds_to_json({"published": Age(19723.0)})
    {'published': {'kind': 'age', 'reference': 19723.0}}
    """
    return {name: {"kind": kind.NAME, **asdict(kind)} for name, kind in kinds.items()}


def kinds_from_json(given: Any, features: Sequence[str] | None) -> dict[str, ColumnType]:
    """Column types from the JSON of ``kinds_to_json``, for these features. Raises ``DataError`` if it is damaged."""
    kinds: dict[str, ColumnType] = {}
    try:
        for name, described in dict(given).items():
            made = COLUMN_TYPES[described["kind"]]
            types = {one.name: str(one.type) for one in fields(made)}
            if not described.keys() <= {"kind", *types}:
                raise KeyError
            given_fields = {field: kind for field, kind in types.items() if field in described}
            kinds[name] = made(**{field: _from_json(described[field], kind) for field, kind in given_fields.items()})
    except (KeyError, TypeError, ValueError):
        expected = "kinds of features"
        raise DataError(argument="columns", expected=expected, got="a damaged description") from None
    unknown = next((name for name in kinds if name not in (features or ())), None)
    if unknown is not None:
        raise DataError(argument="columns", expected="kinds of the features", got=f"one of {unknown!r}")
    return kinds


def _from_json(value: Any, kind: str) -> Any:
    """A value of JSON as the value of a field."""
    if kind.startswith("tuple"):
        if not isinstance(value, (list, tuple)):
            raise TypeError
        return tuple([_from_json(one, "str" if "str" in kind else "float") for one in value])
    expected: Any = {"str": str, "int": int, "float": (int, float)}[kind]
    if not isinstance(value, expected) or isinstance(value, bool):
        raise TypeError
    return float(value) if kind == "float" else value


def occurring(values: NDArray[np.float32]) -> list[int]:
    """The level numbers that occur, ascending."""
    codes: list[int] = np.unique(values[~np.isnan(values)]).astype(np.int64).tolist()
    return codes


def recode(codes: NDArray[np.float32], old: Category, new: Category | Mean) -> NDArray[np.float32]:
    """Level numbers, translated to other levels; missing where a text is not among them.

    >>> recode(np.array([1, 0, np.nan], np.float32), Category(("a", "c")), Category(("b", "c"))).tolist()
    [1.0, nan, nan]
    """
    numbers = range(len(new.levels)) if isinstance(new, Category) else new.means
    known = dict(zip(new.levels, numbers, strict=True))
    table = np.array([known.get(level, np.nan) for level in old.levels] + [np.nan], np.float32)
    is_known = (codes >= 0) & (codes < len(old.levels))  # and not missing
    return table[np.where(is_known, codes, len(old.levels)).astype(np.int64)]


@dataclass(frozen=True)
class Columns:
    """What the columns of a table hold, where their types do not tell, and which features to compute from them.

    Columns that need not be named here: texts and categories of pandas, polars and Arrow become categories, dates
    become ages, and a vector becomes one feature per element.

    Parameters
    ----------
    categories : sequence of str, default ()
        Columns of numbers that are identifiers, such as a shop number; and columns of CSV files that mix numbers and
        texts.
    dates : sequence of str, default ()
        Columns of CSV files, and text columns of tables, that hold ISO dates: 2024-01-31, 2024-01-31T12:00:00Z.
    date_parts : sequence of str, default ("age",)
        Features of each date: ``age`` (days before the latest date in the training data, or before ``now``),
        ``month``, ``weekday``, ``hour``.
    now : str, optional
        A column of dates that says when the documents were ranked: ages are counted from it, row by row. It is not a
        feature itself.
    vectors : sequence of str, default ()
        Columns of vectors that are in ``similarities`` and whose elements are features as well.
    similarities : sequence of (str, str), default ()
        Pairs of columns, each with the vector of a query and the vector of a document.
    measures : sequence of str, default ("cosine",)
        Features of each pair: ``cosine``, ``dot``, ``distance``.
    means : sequence of str, default ()
        Columns of texts that are always replaced by the mean rating of each text in other queries, even if they have
        few different texts.
    texts : sequence of (str, str), default ()
        Pairs of columns, the text of a query and the text of a document, or a mapping from the first to the second:
        features say how well the two match. The column of query ids may be used as the first.
    encoder : str, path, callable or TextEncoder, optional
        What turns these texts into vectors, which are compared too: the folder or the name of a sentence-transformers
        model on this machine, or a function from a list of texts to a vector for each.

    Examples
    --------
    >>> Columns(categories=["shop"], dates=["published"], date_parts=["age", "weekday"]).dates
    ('published',)
    """

    categories: Sequence[str] = ()
    dates: Sequence[str] = ()
    date_parts: Sequence[str] = ("age",)
    now: str | None = None
    vectors: Sequence[str] = ()
    similarities: Sequence[tuple[str, str]] = ()
    measures: Sequence[str] = ("cosine",)
    means: Sequence[str] = ()
    texts: Sequence[tuple[str, str]] | Mapping[str, str] = ()
    encoder: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.texts, Mapping):
            object.__setattr__(self, "texts", tuple(self.texts.items()))
        for name in ("categories", "dates", "date_parts", "vectors", "measures", "means"):
            given = getattr(self, name)
            if not _is_list(given) or not all(isinstance(one, str) for one in given):
                raise ParameterError(argument=name, expected="a list of texts", got=repr(given))
            object.__setattr__(self, name, tuple(given))
        for name in ("similarities", "texts"):
            given = getattr(self, name)
            if not _is_list(given) or not all(map(_is_pair, given)):
                fix = f"write [{tuple(given)}]" if _is_pair(given) else None
                expected = "pairs of columns: of queries and of documents"
                raise ParameterError(argument=name, expected=expected, got=repr(given), fix=fix)
            object.__setattr__(self, name, tuple(tuple(pair) for pair in given))
        for one in self.date_parts:
            if one not in DATE_PARTS:
                raise ParameterError.unknown("part of a date", one, DATE_PARTS)
        for one in self.measures:
            if one not in MEASURES:
                raise ParameterError.unknown("measure of similarity", one, MEASURES)
        # Declarations that would have no effect.
        if self.now is not None and not isinstance(self.now, str):
            raise ParameterError(argument="now", expected="the name of a column, or None", got=repr(self.now))
        if self.measures != Columns.measures and not self.similarities:
            raise ParameterError(argument="measures", expected="`similarities` to measure", got="none")
        if self.encoder is not None:
            if not self.texts:
                raise ParameterError(argument="encoder", expected="`texts` to encode", got="none")
            if not isinstance(self.encoder, str):
                from tierank.data.vectors import TextEncoder

                own = self.encoder if isinstance(self.encoder, TextEncoder) else TextEncoder(self.encoder)
                object.__setattr__(self, "encoder", own.name)
        declared: dict[str, str] = {}
        for argument in ("categories", "means", "dates"):
            for name in getattr(self, argument):
                if declared.setdefault(name, argument) != argument:
                    expected = f"no column of `{declared[name]}`"
                    raise ParameterError(argument=argument, expected=expected, got=repr(name))

    def named(self) -> list[str]:
        """All columns that are named."""
        return [*self.categories, *self.dates, *self.vectors, *self.means, *self.hidden()]

    def hidden(self) -> list[str]:
        """Columns that other features are computed from, whether or not they are features themselves."""
        pairs = [column for pair in (*self.similarities, *self.texts) for column in pair]
        return pairs if self.now is None else [*pairs, self.now]

    def matched(self) -> dict[str, tuple[str, ...]]:
        """The columns of ``texts``, each with the columns that it is matched with."""
        pairs = cast("Sequence[tuple[str, str]]", self.texts)
        columns = dict.fromkeys(column for pair in pairs for column in pair)
        return {name: tuple(document for query, document in pairs if query == name) for name in columns}

    def to_json(self) -> dict[str, Any]:
        """The declarations that differ from their defaults, as plain values for JSON."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        return {name: json.loads(json.dumps(value)) for name, value in given.items()}  # tuples become lists


def _is_list(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, (str, bytes))


def _is_pair(given: Any) -> bool:
    return _is_list(given) and len(given) == 2 and all(isinstance(one, str) for one in given)
