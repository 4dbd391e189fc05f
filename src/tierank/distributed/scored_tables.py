"""Scoring of Arrow tables in the processes of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierank.errors import DataError, ParameterError
from tierank.kinds import Columns
from tierank.rankers import FITTED, Ranker, check_ranker
from tierank.readers.columns import Layout
from tierank.tables import as_name, as_name_list, check_columns, take_columns


class Holds(NamedTuple):
    """What a column can hold by its type: numbers, vectors or anything else; and the name of the type."""

    what: str
    type: str


def scored_columns(
    ranker: Any, names: list[str], columns: Mapping[str, Holds], query: Any, features: Any, score: Any
) -> tuple[Layout, bool]:
    """The columns that predict reads, and whether the ranker needs whole queries; the score column must be new.

    ``names`` are all columns of the data. ``columns`` says what they hold, where that is known.
    """
    check_ranker("ranker", ranker, FITTED)
    needs_list = ranker.needs_list()
    if not isinstance(score, str) or score in names:
        raise ParameterError(argument="score", expected="the name of a new column", got=repr(score))
    learned = ranker.seen_.feature_names
    wanted = None if learned is None else ranker.seen_.columns.sources(learned)
    wanted = wanted if features is None else as_name_list("features", features)
    layout = _layout(names, as_name("query", query), wanted, needs_list)
    _check_features(ranker, layout.features, columns)
    return layout, needs_list


def _check_features(ranker: Ranker, names: list[str], columns: Mapping[str, Holds]) -> None:
    """Raise ``DataError`` for columns that the ranker cannot score, before rows are read."""
    import pyarrow

    learned, held = ranker.seen_.feature_names, {name: columns[name] for name in names if name in columns}
    kinds = dict.fromkeys(names) if learned is None else ranker.seen_.columns.raw_kinds(learned)
    odd = [name for name in held if name in kinds and kinds[name] is None and held[name].what != "numbers"]
    if odd:
        raise DataError(
            where="data",
            argument="features",
            expected=f"numbers in column {odd[0]!r}, as in training",
            got=held[odd[0]].type,
            fix="encode it as in training",
        )
    try:  # one row without values
        ranker.match_features(pyarrow.table({name: pyarrow.nulls(1) for name in names}), qid=[0])
    except DataError as error:
        raise error.at("data") from None


def is_number(kind: Any) -> bool:
    """Whether a column of this Arrow type can hold numbers; one without any value can."""
    from pyarrow import types

    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null)
    return any(test(kind) for test in tests)


def _layout(names: list[str], query: str | None, features: list[str] | None, needs_list: bool) -> Layout:
    """The role of each column; the query is optional if documents are scored one by one."""
    if needs_list or query is not None or features is None:
        return Layout.of(names, "data", query=query, features=features, declared=Columns())
    check_columns(names, features, "data")
    return Layout("", None, None, {}, features)


def score_table(ranker: Ranker, table: Any, layout: Layout, needs_list: bool) -> Any:
    """The scores of the rows of a table, as an Arrow array; whole queries if the ranker needs them."""
    import pyarrow

    qid = table.column(layout.query).to_numpy() if needs_list else None
    return pyarrow.array(ranker.predict(take_columns(table, layout.features), qid=qid), pyarrow.float64())


def whole_queries(batches: Iterator[Any], query: str) -> Iterator[Any]:
    """Tables of whole queries, from batches of rows that are sorted by query."""
    import pyarrow

    held: list[Any] = []
    name: Any = None
    for batch in batches:
        if not len(batch):
            continue
        ids = batch.column(batch.schema.get_field_index(query))
        if ids.null_count:
            raise DataError("query: expected an id in every row, got rows without one; drop them")
        last = ids[-1].as_py()
        cut = ids.index(ids[-1]).as_py()  # where the last query starts; it may continue in the next batch
        if cut == 0 and held and name == last:
            held.append(batch)
            continue
        if held or cut:
            yield pyarrow.Table.from_batches([*held, batch.slice(0, cut)])
        held, name = [batch.slice(cut)], last
    if held:
        yield pyarrow.Table.from_batches(held)
