"""Scoring of Arrow tables in the processes of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tierank.errors import DataError, ParameterError
from tierank.kinds import Columns
from tierank.rankers import FITTED, Ranker, check_ranker
from tierank.readers.columns import Layout
from tierank.tables import check_known, take_columns


def scored_columns(
    ranker: Any, columns: list[str], query: str | None, features: Sequence[str] | None, score: str
) -> tuple[Layout, bool]:
    """The columns that predict reads, and whether the ranker needs whole queries; the score column must be new."""
    check_ranker("ranker", ranker, FITTED)
    needs_list = ranker.needs_list()
    if score in columns:
        raise ParameterError(argument="score", expected="the name of a new column", got=repr(score))
    names = features if features is not None else ranker.seen_.feature_names
    return _layout(columns, query, None if names is None else list(names), needs_list), needs_list


def _layout(names: list[str], query: str | None, features: list[str] | None, needs_list: bool) -> Layout:
    """The role of each column; the query is optional if documents are scored one by one."""
    if needs_list or query is not None or features is None:
        return Layout.of(names, "data", query=query, features=features, declared=Columns())
    check_known(names, features, "data")
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
