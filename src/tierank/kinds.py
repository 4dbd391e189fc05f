"""Kinds: what the numbers of a feature stand for if they are not plain numbers: levels, days, parts of vectors.

A data set holds one float32 number per document and feature, and a *kind* for each feature that was not simply a column
of numbers. The kind says which columns of a table the feature is computed from, and how, so that the same feature can
be computed from another table. Kinds with learned values (``Age``, ``Mean``) belong to models: ``columns`` learns them.
All kinds are plain values that JSON can hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tierank.errors import DataError, ParameterError

# Features of a date, and of two vectors.
DATE_PARTS = ("age", "month", "weekday", "hour")
MEASURES = ("cosine", "dot", "distance")
# float32 cannot represent all integers above this.
MAX_LEVELS = 1 << 24


@dataclass(frozen=True)
class Kind:
    """What a feature stands for."""

    NAME: ClassVar[str] = ""

    def sources(self, feature: str) -> tuple[str, ...]:
        """The columns of a table that the feature is computed from."""
        return (feature,)

    @property
    def raw(self) -> Kind:
        """The kind in data sets, before a model has learned from them."""
        return self

    def __str__(self) -> str:
        return self.NAME


@dataclass(frozen=True)
class Category(Kind):
    """Texts: the number k is ``levels[k]``. Levels are sorted; an empty text is missing.

    Parameters
    ----------
    levels : tuple of str
        The different texts.
    learned_as : {"auto", "levels", "mean"}, default "auto"
        Whether models learn from the levels or from the mean rating of each level; ``auto`` decides by their number.
    """

    NAME: ClassVar[str] = "category"
    FORMS: ClassVar[tuple[str, ...]] = ("auto", "levels", "mean")

    levels: tuple[str, ...] = ()
    learned_as: str = "auto"

    def __post_init__(self) -> None:
        if self.learned_as not in self.FORMS:
            raise ValueError(f"expected {', '.join(self.FORMS[:-1])} or {self.FORMS[-1]}")
        if len(self.levels) > MAX_LEVELS:
            raise DataError(f"expected at most {MAX_LEVELS:,} different texts in a column, got {len(self.levels):,}")

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
    """

    NAME: ClassVar[str] = "text"
    FORMS: ClassVar[tuple[str, ...]] = ("matches", "levels", "mean")

    learned_as: str = "matches"
    documents: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{len(self.levels):,} texts"


@dataclass(frozen=True)
class Match(Kind):
    """How well the text of a document matches the text of a query, by statistics of the training documents.

    Parameters
    ----------
    query : str
        The column with texts of queries.
    document : str
        The column with texts of documents.
    part : str
        What is compared: ``bm25``, ``words_found`` and others.
    statistics : str
        The digest of the word statistics that it is computed with.
    """

    NAME: ClassVar[str] = "match"

    query: str
    document: str
    part: str
    statistics: str

    @property
    def feature(self) -> str:
        """The name of the feature."""
        return f"{self.query}~{self.document}.{self.part}"

    def sources(self, feature: str) -> tuple[str, ...]:
        """Both columns."""
        return self.query, self.document

    def __str__(self) -> str:
        return f"{self.part} of {self.query} and {self.document}"


@dataclass(frozen=True)
class Indicator(Kind):
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

    def sources(self, feature: str) -> tuple[str, ...]:
        """The column of texts."""
        return (self.column,)

    def __str__(self) -> str:
        return f"1 where {self.column} is {self.level!r}"


@dataclass(frozen=True)
class Mean(Kind):
    """Texts with many levels, as the mean of rating minus mean rating of the query, over the documents of the level.

    Parameters
    ----------
    levels : tuple of str
        The different texts.
    means : tuple of float
        One mean per level.
    """

    NAME: ClassVar[str] = "mean"

    levels: tuple[str, ...]
    means: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.levels) != len(self.means) or not all(map(math.isfinite, self.means)):
            raise ValueError("expected a finite mean for each level")

    @property
    def raw(self) -> Kind:
        """Texts."""
        return Category()

    def __str__(self) -> str:
        return f"mean rating of each of {len(self.levels):,} texts; model.json has them"


@dataclass(frozen=True)
class Date(Kind):
    """Dates: days since 1970-01-01 00:00 UTC."""

    NAME: ClassVar[str] = "date"


@dataclass(frozen=True)
class Age(Kind):
    """Dates, as days before a date.

    Parameters
    ----------
    reference : float
        The reference date in days since 1970-01-01 00:00 UTC: the latest one in the training data.
    """

    NAME: ClassVar[str] = "age"

    reference: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.reference):
            raise ValueError("expected a finite date")

    @property
    def raw(self) -> Kind:
        """Dates."""
        return Date()

    def __str__(self) -> str:
        return f"days before day {self.reference!r}, counted from 1970-01-01 00:00 UTC"


@dataclass(frozen=True)
class Elapsed(Kind):
    """Days from one date to another date of the same row.

    Parameters
    ----------
    column : str
        The earlier date.
    now : str
        The later date.
    """

    NAME: ClassVar[str] = "elapsed"

    column: str
    now: str

    def sources(self, feature: str) -> tuple[str, ...]:
        """Both dates."""
        return self.column, self.now

    def __str__(self) -> str:
        return f"days from {self.column} to {self.now}"


@dataclass(frozen=True)
class DatePart(Kind):
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

    def sources(self, feature: str) -> tuple[str, ...]:
        """The date."""
        return (self.column,)

    def __str__(self) -> str:
        return f"{self.part} of {self.column}"


@dataclass(frozen=True)
class Element(Kind):
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
        if not (isinstance(self.place, int) and isinstance(self.size, int) and 0 <= self.place < self.size):
            raise ValueError("expected a place within the vector")

    def sources(self, feature: str) -> tuple[str, ...]:
        """The column of vectors."""
        return (self.column,)

    def __str__(self) -> str:
        return f"number {self.place} of {self.column}"


@dataclass(frozen=True)
class Similarity(Kind):
    """How similar the vector of a query and that of a document are.

    Parameters
    ----------
    query : str
        The column with vectors of queries.
    document : str
        The column with vectors of documents.
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

    def sources(self, feature: str) -> tuple[str, ...]:
        """Both columns."""
        return self.query, self.document

    def __str__(self) -> str:
        return f"{self.measure} of {self.query} and {self.document}"


# Kinds of the features that are not plain numbers, by feature name.
Kinds = Mapping[str, Kind]

KINDS = {
    one.NAME: one for one in (Category, Text, Match, Indicator, Mean, Date, Age, Elapsed, DatePart, Element, Similarity)
}


def sources_of(features: Sequence[str], kinds: Kinds) -> list[str]:
    """The columns of a table that some features are computed from, each once."""
    found = (kinds[name].sources(name) if name in kinds else (name,) for name in features)
    return list(dict.fromkeys(column for columns in found for column in columns))


def kinds_to_json(kinds: Kinds) -> dict[str, dict[str, Any]]:
    """Kinds as JSON holds them.

    >>> kinds_to_json({"published": Age(19723.0)})
    {'published': {'kind': 'age', 'reference': 19723.0}}
    """
    return {name: {"kind": kind.NAME, **asdict(kind)} for name, kind in kinds.items()}


def kinds_from_json(given: Any, features: Sequence[str] | None) -> dict[str, Kind]:
    """Kinds from the JSON of ``kinds_to_json``, for these features. Raises ``DataError`` if it is damaged."""
    try:
        kinds = {name: _kind(dict(described)) for name, described in dict(given).items()}
    except (KeyError, TypeError, ValueError):
        raise DataError("columns: expected kinds of features, got a damaged description") from None
    unknown = next((name for name in kinds if name not in (features or ())), None)
    if unknown is not None:
        raise DataError(f"columns: expected kinds of the features, got one of {unknown!r}")
    return kinds


def _kind(described: dict[str, Any]) -> Kind:
    made = KINDS[described.pop("kind")]
    types = {one.name: one.type for one in fields(made)}
    if types.keys() != described.keys():
        raise ValueError("fields")
    return made(**{name: _value(value, str(types[name])) for name, value in described.items()})


def _value(value: Any, kind: str) -> Any:
    if kind.startswith("tuple"):
        member = str if "str" in kind else float
        if not isinstance(value, (list, tuple)) or not all(isinstance(one, (member, int)) for one in value):
            raise ValueError("values")
        return tuple(str(one) if member is str else float(one) for one in value)
    expected: Any = {"str": str, "int": int, "float": (int, float)}[kind]
    if not isinstance(value, expected) or isinstance(value, bool):
        raise ValueError("value")
    return float(value) if kind == "float" else value


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
        Pairs of columns, the text of a query and the text of a document: features say how well the two match. The
        column of query ids may be used as the first.

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
    texts: Sequence[tuple[str, str]] = ()

    def __post_init__(self) -> None:
        for name in ("categories", "dates", "date_parts", "vectors", "measures", "means"):
            given = getattr(self, name)
            if not _is_list(given) or not all(isinstance(one, str) for one in given):
                raise ParameterError(argument=name, expected="a list of texts", got=repr(given))
            object.__setattr__(self, name, tuple(given))
        for name in ("similarities", "texts"):
            object.__setattr__(self, name, _as_pairs(name, getattr(self, name)))
        for given, known, what in (
            (self.date_parts, DATE_PARTS, "part of a date"),
            (self.measures, MEASURES, "measure of similarity"),
        ):
            unknown = next((one for one in given if one not in known), None)
            if unknown is not None:
                raise ParameterError.unknown(what, unknown, known)
        self._check_together()

    def _check_together(self) -> None:
        """Raise ``ParameterError`` for declarations that would have no effect."""
        if self.now is not None and not isinstance(self.now, str):
            raise ParameterError(argument="now", expected="the name of a column, or None", got=repr(self.now))
        if self.measures != Columns.measures and not self.similarities:
            raise ParameterError(argument="measures", expected="`similarities` to measure", got="none")
        of_column: dict[str, str] = {}
        for argument in ("categories", "means", "dates"):
            for name in getattr(self, argument):
                if of_column.setdefault(name, argument) != argument:
                    expected = f"no column of `{of_column[name]}`"
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
        columns = dict.fromkeys(column for pair in self.texts for column in pair)
        return {name: tuple(document for query, document in self.texts if query == name) for name in columns}

    def to_json(self) -> dict[str, Any]:
        """The declarations that differ from their defaults, as plain values for JSON."""
        return {
            one.name: _plain(getattr(self, one.name)) for one in fields(self) if getattr(self, one.name) != one.default
        }


def _as_pairs(name: str, given: Any) -> tuple[tuple[str, ...], ...]:
    are_pairs = _is_list(given) and all(_is_list(pair) and len(pair) == 2 for pair in given)
    if not are_pairs or not all(isinstance(one, str) for pair in given for one in pair):
        is_one_pair = _is_list(given) and len(given) == 2 and all(isinstance(one, str) for one in given)
        fix = f"write [{tuple(given)}]" if is_one_pair else None
        raise ParameterError(
            argument=name, expected="pairs of columns: of queries and of documents", got=repr(given), fix=fix
        )
    return tuple(tuple(pair) for pair in given)


def _is_list(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, (str, bytes))


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, tuple) else value
