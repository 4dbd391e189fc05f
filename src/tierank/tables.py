"""Tables of pandas, polars, Arrow and requests: columns by name."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.checks import SHOWN, short_repr
from tierank.errors import DataError, ParameterError


def is_table(value: Any) -> bool:
    """Whether this is a table with named columns: pandas, polars or Arrow."""
    if type(value).__name__ == "LazyFrame":
        raise DataError("expected a table, got a polars LazyFrame, which holds no rows yet; pass frame.collect()")
    return hasattr(type(value), "column_names") or (hasattr(value, "columns") and hasattr(value, "__getitem__"))


def column_names(table: Any) -> list[str]:
    """The names of the columns of a pandas, polars or Arrow table."""
    try:
        names = table.column_names if hasattr(type(table), "column_names") else table.columns
    except UnicodeDecodeError as error:
        raise DataError(f"expected names of columns in UTF-8, got {error.object!r}; rename the column") from None
    return [str(name) for name in names]


def as_name(argument: str, name: Any) -> str | None:
    """The name of a column, as ``column_names`` has it, or None. Raises ``ParameterError`` for anything else.

    >>> as_name("query", ["qid"])
    Traceback (most recent call last):
    tierank.errors.ParameterError: query: expected the name of one column, got ['qid']
    """
    if name is None or isinstance(name, str):
        return name
    if isinstance(name, int):  # columns of pandas may be numbered
        return str(name)
    raise ParameterError(argument=argument, expected="the name of one column", got=short_repr(name))


def as_name_list(argument: str, names: Any) -> list[str]:
    """Names of columns. Raises ``ParameterError`` for anything but a list of them: a text is a list of its letters.

    >>> as_name_list("ignore", "title")
    Traceback (most recent call last):
    tierank.errors.ParameterError: ignore: expected a list of names of columns, got 'title'; write ['title']
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        fix = f"write [{short_repr(names)}]" if isinstance(names, str) else None
        raise ParameterError(argument=argument, expected="a list of names of columns", got=short_repr(names), fix=fix)
    return [name for one in names if (name := as_name(argument, one)) is not None]


def check_known(known: Sequence[str], wanted: Iterable[str], where: str | os.PathLike[str] | None = None) -> None:
    """Raise ``DataError`` if a table with the columns ``known`` lacks one that is wanted.

    >>> check_known(["qid", "bm25"], ["bm52"], "shop.csv")
    Traceback (most recent call last):
    tierank.errors.DataError: shop.csv: unknown column 'bm52': did you mean 'bm25'? Known: bm25, qid
    """
    unknown = next((name for name in wanted if name not in known), None)
    if unknown is not None:
        raise DataError(str(ParameterError.unknown("column", unknown, known)), where=where)


def check_once(known: Sequence[str], wanted: Iterable[str], where: str | os.PathLike[str] | None = None) -> None:
    """Raise ``DataError`` if two columns have a name that is wanted: which of them is meant cannot be known.

    >>> check_once(["qid", "bm25", "bm25"], ["qid", "bm25"], "shop.csv")
    Traceback (most recent call last):
    tierank.errors.DataError: shop.csv: expected each column once, got 'bm25' twice; rename one of them
    """
    counts = Counter(known)
    twice = next((name for name in wanted if counts[name] > 1), None)
    if twice is not None:
        raise DataError(where=where, expected="each column once", got=f"{twice!r} twice", fix="rename one of them")


def check_columns(known: Sequence[str], wanted: Collection[str], where: str | os.PathLike[str] | None = None) -> None:
    """Raise ``DataError`` if a wanted column is not there, or there twice."""
    check_known(known, wanted, where)
    check_once(known, wanted, where)


def as_column(table: Any, name: str, names: list[str] | None = None) -> NDArray[Any]:
    """One column of a table as an array; ``names`` are those of the table, if they are known."""
    names = column_names(table) if names is None else names
    check_known(names, [name])
    is_arrow = hasattr(type(table), "column_names")
    try:
        if is_arrow:
            table.column(name).validate(full=True)  # checks above all that texts are UTF-8
            return np.asarray(decoded(table.column(name)).to_numpy())
        column = table[table.columns[names.index(name)]]
        if getattr(getattr(column, "dtype", None), "fields", None):  # polars would give a matrix of the fields
            return as_objects(column.to_list())
        return np.asarray(column.to_numpy())
    except MemoryError:
        raise
    except Exception as error:  # Arrow and polars raise their own, for types that numpy lacks
        raise DataError(f"column {name!r}: expected numbers or texts, got: {str(error)[:SHOWN]}") from None


def index_of(values: Any) -> Any:
    """The index of what pandas holds; None for anything else."""
    return values.index if type(values).__module__.partition(".")[0] == "pandas" and hasattr(values, "iloc") else None


def warn_of_row_order(**given: Any) -> None:
    """Warn where things of pandas that belong together have the same index in different orders.

    Rows are matched by their order, as everywhere in scikit-learn, so one of them was probably sorted or shuffled.
    """
    indices = {name: index for name, values in given.items() if (index := index_of(values)) is not None}
    for name, index in list(indices.items())[1:]:
        first, other = next(iter(indices.items()))
        is_moved = len(index) == len(other) and not index.equals(other)
        if is_moved and index.isin(other).all() and other.isin(index).all():
            warnings.warn(
                f"{name}: has the index of {first} in another order, and rows are matched by their order, not by their"
                f" index: give {name}.loc[{first}.index], or {name}.to_numpy() if this is intended",
                stacklevel=4,
            )


def by_index(values: Any, ids: Sequence[Hashable]) -> dict[Hashable, Any] | None:
    """The values of a pandas Series by its index, if that holds these ids and nothing else, as after a ``groupby``.

    None for anything else. An index that only numbers the rows names nothing, whatever the ids are.
    """
    index = index_of(values)
    is_counted = index is None or type(index).__name__ == "RangeIndex" or hasattr(values, "columns")
    if is_counted or len(index) != len(ids) or set(index.tolist()) != set(ids):
        return None
    return dict(zip(index.tolist(), values.tolist(), strict=True))


def take_columns(table: Any, names: Sequence[str]) -> Any:
    """The columns of a table with these names, in this order; by index, because names need not be texts."""
    known = column_names(table)
    check_once(known, names)
    places = [known.index(name) for name in names]
    if hasattr(table, "iloc"):
        return table.iloc[:, places]
    return table.select(places) if hasattr(type(table), "column_names") else table[:, places]


def decoded(column: Any) -> Any:
    """An Arrow column without dictionary encoding, for which ``to_numpy`` would replace missing values."""
    return column.cast(column.type.value_type) if hasattr(column.type, "index_type") else column


def as_objects(values: Sequence[Any]) -> NDArray[Any]:
    """The values as an array of objects, of any type."""
    objects = np.empty(len(values), object)
    objects[:] = values
    return objects


class Table:
    """Columns of values by name, as in a request: a minimal table."""

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = columns

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __getitem__(self, name: str) -> Any:
        return _Values(self._columns[name])


class _Values:
    """A column of a ``Table``."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def to_numpy(self) -> NDArray[Any]:
        return as_objects(self._values)
