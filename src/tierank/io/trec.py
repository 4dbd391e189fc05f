"""Qrels and runs without features: files of TREC, tables, dicts, and objects of ir_measures and ranx."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tierank.arrays import Floats
from tierank.data.dataset import RankingDataset
from tierank.data.tables import as_column, column_names, is_table
from tierank.errors import DataError
from tierank.files import as_path
from tierank.io.letor import number_of
from tierank.io.paths import ending_of, lines_of, unreadable

# The value of each document of each query, by their ids: a rating in qrels, a score in a run.
Values = dict[str, dict[str, float]]

# Names of columns and attributes in the tables and objects of PyTerrier, ir_measures, ranx and BEIR.
_QUERY = ("query_id", "qid", "q_id", "query-id", "query")
_DOCUMENT = ("doc_id", "docno", "docid", "corpus-id", "document_id", "document")
_VALUE = {"qrels": ("relevance", "label", "rel", "rating", "score"), "run": ("score", "sim")}
# The fields of a line, and those of query, document and value.
_FIELDS = {
    "qrels": ("query 0 document rating", (0, 2, 3)),
    "run": ("query Q0 document rank score name", (0, 2, 4)),
}


def is_trec(data: Any) -> bool:
    """Whether data are qrels: a path, a dict, a table, or an object of ir_measures or ranx."""
    return isinstance(data, (str, os.PathLike, Mapping)) or is_table(data) or hasattr(data, "to_dict")


def is_qrels(path: Path) -> bool:
    """Whether a file of data is qrels: its name ends in ``.qrels``, or its first line is one of qrels."""
    if ending_of(path) == ".qrels":
        return True
    if not path.is_file():
        return False
    with lines_of(path) as lines:
        fields = next(filter(None, map(str.split, lines)), [])
    return len(fields) == 4 and ":" not in fields[1] and bool(np.isfinite(_number(fields[3])))


def read_trec(source: Any, kind: str) -> Values:
    """The values of qrels or of a run.

    Parameters
    ----------
    source : path, mapping, table, or iterable of objects
        A file with ``query 0 document rating`` or ``query Q0 document rank score name`` in each line; a dict by query
        of dicts by document; a table with the columns of ir_measures (``query_id``, ``doc_id``, ``relevance`` or
        ``score``) or PyTerrier (``qid``, ``docno``, ``label`` or ``score``); objects with such attributes; or an
        object of ranx.
    kind : {"qrels", "run"}
        What it is.

    Returns
    -------
    dict
        ``values[query][document]``.

    Examples
    --------
    >>> read_trec({"q1": {"d1": 2, "d2": 0}}, "qrels")
    {'q1': {'d1': 2.0, 'd2': 0.0}}
    """
    if isinstance(source, (str, os.PathLike)):
        return _collect(_of_file(as_path(source), kind), os.fsdecode(source), kind)
    if is_table(source):
        return _collect(_of_table(source, kind), kind, kind)
    if isinstance(source, Mapping):
        return _collect(_of_mapping(source, kind), kind, kind)
    if hasattr(source, "to_dict"):
        return read_trec(source.to_dict(), kind)
    if isinstance(source, Iterable):
        return _collect(_of_objects(source, kind), kind, kind)
    raise DataError(argument=kind, expected=f"a {kind} file, table or dict", got=type(source).__name__)


def _collect(rows: Iterator[tuple[str, str, str, object]], where: str, kind: str) -> Values:
    """Rows of (place, query, document, value) by query and document."""
    values: Values = {}
    for place, query, document, value in rows:
        number = _number(value)
        if not np.isfinite(number):
            what = "a finite rating" if kind == "qrels" else "a finite score"
            raise DataError(where=place, expected=what, got=repr(value)[:60])
        documents = values.setdefault(query, {})
        if document in documents:
            expected = f"each document once per query in {kind}"
            raise DataError(where=place, expected=expected, got=f"document {document!r} of query {query!r} twice")
        documents[document] = max(number, 0.0) if kind == "qrels" else number
    if not values:
        raise DataError(where=where, expected=f"at least one line of {kind}", got="none")
    return values


def _number(value: object) -> float:
    if isinstance(value, str):
        number = number_of(value.encode())
        return np.nan if number is None else number
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return np.nan


def _of_file(path: Path, kind: str) -> Iterator[tuple[str, str, str, object]]:
    form, fields = _FIELDS[kind]
    try:
        with lines_of(path) as lines:
            for number, line in enumerate(lines, 1):
                cells = line.split()
                if cells and len(cells) != len(form.split()):
                    expected, got = f"a line of {'a ' * (kind == 'run')}{kind}: {form}", f"{len(cells)} fields"
                    raise DataError(where=f"{path}:{number}", expected=expected, got=got)
                if cells:
                    query, document, value = (cells[j] for j in fields)
                    yield f"{path}:{number}", query, document, value
    except OSError as error:
        raise unreadable(path, error) from None


def _of_table(table: Any, kind: str) -> Iterator[tuple[str, str, str, object]]:
    names = column_names(table)
    columns = []
    for known in (_QUERY, _DOCUMENT, _VALUE[kind]):
        name = next((one for one in known if one in names), None)
        if name is None:
            expected = f"a column called {', '.join(known[:-1])} or {known[-1]}"
            raise DataError(argument=kind, expected=expected, got=", ".join(names[:12]))
        columns.append(as_column(table, name).tolist())
    for row, (query, document, value) in enumerate(zip(*columns, strict=True)):
        yield f"{kind}, row {row}", str(query), str(document), value


def _of_mapping(queries: Mapping[Any, Any], kind: str) -> Iterator[tuple[str, str, str, object]]:
    for query, documents in queries.items():
        if not isinstance(documents, Mapping):
            expected = "a dict by query of dicts by document"
            raise DataError(argument=kind, expected=expected, got=f"{type(documents).__name__} of query {query!r}")
        for document, value in documents.items():
            yield f"{kind}, query {query!r}, document {document!r}", str(query), str(document), value


def _of_objects(objects: Iterable[Any], kind: str) -> Iterator[tuple[str, str, str, object]]:
    for row, one in enumerate(objects):
        found = [next((getattr(one, n) for n in known if hasattr(one, n)), None) for known in (_QUERY, _DOCUMENT)]
        value = next((getattr(one, name) for name in _VALUE[kind] if hasattr(one, name)), None)
        if None in found:
            expected = f"objects with query_id, doc_id and {_VALUE[kind][0]}"
            raise DataError(argument=kind, expected=expected, got=type(one).__name__)
        yield f"{kind}, row {row}", str(found[0]), str(found[1]), value


def join_runs(qrels: Values, runs: Mapping[str, Values]) -> tuple[RankingDataset, dict[str, Floats]]:
    """A data set of the documents of qrels and runs, and the scores of each run: NaN where it has no such document.

    The queries are those of the qrels, in their order; documents come in the order of the runs.

    Parameters
    ----------
    qrels : dict
        ``qrels[query][document]`` is the rating. Documents without one are unjudged.
    runs : dict
        ``runs[name][query][document]`` is the score.

    Returns
    -------
    tuple
        The data set, without features, and the scores of each run in the order of its rows.
    """
    rows = [
        (query, document)
        for query, judged in qrels.items()
        for document in dict.fromkeys([*(d for run in runs.values() for d in run.get(query, ())), *judged])
    ]
    ratings = [qrels[query].get(document, np.nan) for query, document in rows]
    nothing = np.zeros((len(rows), 1), np.float32)
    queries, documents = zip(*rows, strict=True)
    data = RankingDataset(nothing, ratings, np.array(queries, object), document_ids=list(documents))
    none: dict[str, float] = {}
    return data, {
        name: np.array([run.get(query, none).get(document, np.nan) for query, document in rows])
        for name, run in runs.items()
    }
