"""Scores, runs and qrels of any tool.

Score files hold one number per line, RankLib's scores, a TREC run, a ``.npy`` array, CSV or Parquet; qrels and runs
without features are files of TREC, tables, dicts, and objects of ir_measures and ranx.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.arrays import Floats
from tierank.data.checks import as_array, as_numbers, shape_of, twice_in
from tierank.data.dataset import RankingDataset, check_dataset
from tierank.data.tables import as_column, check_columns, column_names, is_table
from tierank.data.text import StringArray
from tierank.errors import DataError, ParameterError
from tierank.files import as_path, replacing
from tierank.io.cache import read_array
from tierank.io.layout import PARQUET_ENDINGS, ParquetSource, needs_arrow
from tierank.io.letor import number_of, plain_number
from tierank.io.paths import check_text_ending, created, ending_of, kind_of, lines_of, piped, unreadable

# How the first line of our score files starts; digests of the ids of the rows follow.
_MARK = "# tierank, scores of rows: "

# Lines of a file: their number, from 1, and their fields.
Rows = Iterator[tuple[int, list[str]]]

# Scores converted to Python numbers at a time.
_AT_ONCE = 1 << 16
# Indices in a list, from 0, as RankLib writes them.
_INDEX = re.compile("[0-9]{1,18}")
# The columns of our tables of scores.
_OURS = (["query", "score"], ["query", "document", "score"])
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

# Names under which text is not written, as it would not read back.
NOT_TEXT = (*PARQUET_ENDINGS, ".tierank")


def read_scores(path: str | os.PathLike[str], data: RankingDataset) -> NDArray[np.float64]:
    r"""Read scores for the documents of a data set from a file.

    The file has one of these forms:

    - a number per line, in the order of the rows of the data;
    - ``query index score``, as RankLib writes it: the index counts the documents of the query from 0, in file order;
    - ``query Q0 document rank score run``, a TREC run: joined by document id, every document must have one score;
    - ``.npy``: one number per row;
    - ``.csv`` with a header line, or ``.parquet``: the column ``score``, in the order of the rows of the data.

    Text and CSV may be compressed, with a name that ends in ``.gz``. Files of tierank say which rows they belong to:
    digests of the query and document ids in a first line ``# tierank ...``, or these ids as columns. They are compared
    with those of the data.

    Parameters
    ----------
    path : path
        The file of scores.
    data : RankingDataset
        The data that were scored.

    Returns
    -------
    array
        One score per document, in the order of the caller's rows.

    Raises
    ------
    DataError
        If the file cannot be read, or does not have one score for each document.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> data = RankingDataset([[0.5], [1.5]], qid=["a", "a"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = pathlib.Path(folder, "bm25.txt").write_text("0.25\n0.75\n")
    ...     read_scores(f"{folder}/bm25.txt", data)
    array([0.25, 0.75])
    """
    check_dataset("data", data)
    path = as_path(path)
    kind = kind_of(path, "a file of scores")
    if kind == "folder":
        fix = "predict writes the scores of a model"
        raise DataError(where=path, expected="a file of scores", got="a folder", fix=fix)
    if kind == "pipe":
        with piped(path) as file:
            return read_scores(file, data)
    ending = ending_of(path)
    try:
        if ending == ".npy":
            scores = as_numbers(read_array(path), str(path)).astype(np.float64)
        elif ending in PARQUET_ENDINGS:
            scores = _from_parquet(path, data)
        elif ending == ".csv" and (header := _csv_header(path)) is not None:
            scores = _from_csv(path, header, data)
        else:
            scores = _from_text(path, data)
    except csv.Error as error:
        raise DataError(where=path, expected="a CSV table of scores", got=f": {error}") from None
    except DataError:
        raise
    except OSError as error:
        raise unreadable(path, error) from None
    if scores.shape != (data.n_documents,):
        expected = f"{data.n_documents} scores, one per document"
        raise DataError(where=path, expected=expected, got=str(scores.size))
    if np.isnan(scores).any():
        got = f"none for row {int(np.isnan(scores).argmax())}"
        raise DataError(where=path, expected="a number for every document", got=got)
    return scores


def _csv_header(path: Path) -> list[str] | None:
    """The names in the first line of a CSV file; None if the line is a number, or our mark."""
    with lines_of(path) as lines:
        first = next(csv.reader(lines), [])
    is_header = bool(first) and not first[0].startswith(_MARK) and number_of(first[0].strip().encode()) is None
    return first if is_header else None


def _check_has_score(names: list[str], path: Path) -> None:
    if "score" not in names:
        raise DataError(where=path, expected="a column called score", got=", ".join(names[:12]))
    check_columns(names, ["score"], path)
    if "rank" in names and "row" in names:
        raise DataError(
            where=path,
            expected="the scores of all documents, in the order of the rows",
            got="the best documents of each query",
            fix="write the scores without a number of documents",
        )


def _from_parquet(path: Path, data: RankingDataset) -> NDArray[np.float64]:
    part = ParquetSource(path)
    _check_has_score(part.names, path)
    if part.names in _OURS:
        _check_rows(path, data, _digests(*(part.read([name]).column(0).to_pylist() for name in part.names[:-1])))
    return as_numbers(as_column(part.read(["score"]), "score"), str(path)).astype(np.float64)


def _from_csv(path: Path, header: list[str], data: RankingDataset) -> NDArray[np.float64]:
    _check_has_score(header, path)
    place = header.index("score")
    if header in _OURS:
        with lines_of(path) as lines:
            ids = [row for row in csv.reader(lines) if len(row) == len(header)][1:]
        _check_rows(path, data, _digests(*([row[j] for row in ids] for j in range(place))))
    with lines_of(path) as lines:
        rows = csv.reader(lines)
        next(rows)
        cells = ((rows.line_num, row[place] if len(row) > place else "") for row in rows if row)
        return np.fromiter((_number(cell, path, line) for line, cell in cells), np.float64)


def write_columns(columns: Mapping[str, NDArray[Any] | StringArray], path: Path) -> None:
    """Write columns of equal length as a Parquet or CSV table, by the ending of the path."""
    if path.suffix.lower() in PARQUET_ENDINGS:
        arrow = needs_arrow("Parquet")
        import pyarrow.parquet

        made = {}
        for name, values in columns.items():
            is_mixed = not isinstance(values, StringArray) and len(set(map(type, values.tolist()))) > 1
            made[name] = list(map(str, values)) if is_mixed or isinstance(values, StringArray) else values
        with replacing(path) as fresh, fresh.open("wb") as file:
            pyarrow.parquet.write_table(arrow.table(made), file)
        return
    with text_file(path) as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        rows = zip(*(v if isinstance(v, StringArray) else v.tolist() for v in columns.values()), strict=True)
        writer.writerows([repr(v) if isinstance(v, float) else v for v in row] for row in rows)


@contextmanager
def text_file(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """A new text file that replaces the one at a path, compressed if the name ends in ``.gz``."""
    with (
        replacing(path) as fresh,
        created(fresh, as_path(path)) as file,
        TextIOWrapper(file, "utf-8", newline="") as text,
    ):
        yield text


def _digests(queries: Iterable[Any], documents: Iterable[Any] | None = None) -> dict[str, str]:
    """Digests of the ids of rows, in the caller's order."""
    number: dict[str, int] = {}
    texts = list(map(str, queries))
    numbers = {text: number.setdefault(_plain_id(text), len(number)) for text in dict.fromkeys(texts)}
    rows = np.array([numbers[text] for text in texts], np.int64)
    digested = {"queries": ["\0".join(number).encode(errors="surrogatepass"), rows.tobytes()]}
    if documents is not None:
        texts_of = documents if isinstance(documents, StringArray) else StringArray.of(map(str, documents))
        digested["documents"] = [texts_of.blob.tobytes(), texts_of.ends.tobytes()]
    return {what: hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest() for what, parts in digested.items()}


def _plain_id(text: str) -> str:
    """A query id as it is after any format: 1.0 is 1, and True is true."""
    text = text.casefold()
    number = number_of(text.encode(errors="surrogatepass"))
    return text if number is None else plain_number(number)


def _digests_of(data: RankingDataset) -> dict[str, str]:
    return _digests(data.restore(data.query_ids[data.query_of_row]).tolist(), data.caller_texts())


def _check_rows(path: Path, data: RankingDataset, written: Mapping[str, str]) -> None:
    """Raise ``DataError`` if the ids of the rows that were scored are not those of the data, where both have ids."""
    odd = next((what for what, one in _digests_of(data).items() if written.get(what, one) != one), None)
    if odd is not None:
        raise DataError(
            where=path,
            expected="scores of these data, row by row",
            got=f"scores of rows with other {odd}, or in another order",
            fix="give the data that were scored, with their rows in the same order",
        )


def _from_text(path: Path, data: RankingDataset) -> NDArray[np.float64]:
    with lines_of(path) as lines:
        head = next(lines, "")
        if head.startswith(_MARK):
            _check_rows(path, data, dict(re.findall(r"(queries|documents) ([0-9a-f]{16})", head)))
            head = ""
        rows = ((number, fields) for number, line in enumerate(chain([head], lines), 1) if (fields := line.split()))
        first = next(rows, None)
        if first is None:
            raise DataError(where=path, expected="one score per line", got="an empty file")
        width = len(first[1])
        if width > 1 and first[1][1].startswith("qid:"):
            raise DataError(where=path, expected="a file of scores", got="LETOR text, which holds data")
        if width not in (1, 3, 6):
            raise DataError(
                where=f"{path}:{first[0]}", expected="1, 3 (RankLib) or 6 (TREC run) fields", got=str(width)
            )
        alike = _alike(chain([first], rows), width, path)
        if width > 1:
            return _joined(alike, path, data, is_trec=width == 6)
        return np.fromiter((_number(fields[0], path, number) for number, fields in alike), np.float64)


def write_scores(scores: ArrayLike, path: str | os.PathLike[str], data: RankingDataset | None = None) -> None:
    """Write one score per line, in the order of the caller's rows.

    Parameters
    ----------
    scores : array
        One score per row.
    path : path
        The file; compressed if the name ends in ``.gz``.
    data : RankingDataset, optional
        The data that were scored. Digests of their ids go into a first line ``# tierank ...``, and ``read_scores``
        refuses the file for data with other rows, or with rows in another order.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_scores([0.25, 0.75], f"{folder}/scores.txt")
    ...     pathlib.Path(folder, "scores.txt").read_text().split()
    ['0.25', '0.75']
    """
    numbers = _as_scores(scores)
    if data is not None:
        check_dataset("data", data)
        data.arrange(numbers)  # as many as rows
    check_text_ending(as_path(path), "a name that ends in .txt", NOT_TEXT)
    with text_file(path) as file:
        file.writelines(score_lines(numbers, data))


def _as_scores(scores: ArrayLike) -> NDArray[np.float64]:
    """Scores that read back: one number per row, and no NaN."""
    given = as_array(scores)
    if given.ndim != 1:
        raise DataError(argument="scores", expected="a list of numbers, one per row", got=shape_of(scores, given))
    numbers = as_numbers(given, "scores").astype(np.float64)
    if np.isnan(numbers).any():
        got = f"NaN in row {int(np.isnan(numbers).argmax())}"
        raise DataError(argument="scores", expected="a number for every row", got=got)
    return numbers


def score_lines(scores: NDArray[np.float64], data: RankingDataset | None = None) -> Iterator[str]:
    r"""A line that says which rows of data these are, if they are given, and one line per score, made in chunks.

    >>> list(score_lines(np.array([0.5, -2.0])))
    ['0.5\n', '-2.0\n']
    """
    if data is not None:
        yield f"{_MARK}{', '.join(f'{what} {digest}' for what, digest in _digests_of(data).items())}\n"
    for start in range(0, len(scores), _AT_ONCE):
        yield from (f"{score!r}\n" for score in scores[start : start + _AT_ONCE].tolist())


def rank_lines(columns: Sequence[NDArray[Any]], documents: StringArray | None = None) -> Iterator[str]:
    r"""A header line and one line per ranked document: query, rank, row, score, and the document if rows have ids.

    ``documents`` has the ids of all rows, in the caller's order.

    >>> list(rank_lines([np.array(["a"]), np.array([1]), np.array([7]), np.array([0.5])]))
    ['query\trank\trow\tscore\n', 'a\t1\t7\t0.5\n']
    """
    yield "\t".join(["query", "rank", "row", "score", *([] if documents is None else ["document"])]) + "\n"
    for start in range(0, len(columns[0]), _AT_ONCE):
        chunk = [column[start : start + _AT_ONCE] for column in columns]
        cells: list[list[Any]] = [part.tolist() for part in chunk]
        if documents is not None:
            cells.append([" ".join(text.splitlines()).replace("\t", " ") for text in documents[chunk[2]]])
        yield from ("\t".join(map(str, row)) + "\n" for row in zip(*cells, strict=True))


def write_run(data: RankingDataset, scores: ArrayLike, path: str | os.PathLike[str], name: str = "tierank") -> None:
    """Write a TREC run: ``query Q0 document rank score name``, best first.

    Parameters
    ----------
    data : RankingDataset
        The data that were scored.
    scores : array
        One score per document, in the order of the caller's rows.
    path : path
        The file; compressed if the name ends in ``.gz``.
    name : str, default "tierank"
        The name of the run, the last field of each line.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> data = RankingDataset([[0.5], [1.5]], qid=["a", "a"], document_ids=["d1", "d2"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_run(data, [0.25, 0.75], f"{folder}/bm25.run", name="bm25")
    ...     pathlib.Path(folder, "bm25.run").read_text().splitlines()
    ['a Q0 d2 1 0.75 bm25', 'a Q0 d1 2 0.25 bm25']
    """
    check_dataset("data", data)
    queries, documents = _trec_names(data)
    if not isinstance(name, str) or len(name.split()) != 1 or name != name.strip():
        raise ParameterError(argument="name", expected="a name without blanks", got=repr(name))
    arranged = data.arrange(_as_scores(scores))
    check_text_ending(as_path(path), "a name that ends in .run", (*NOT_TEXT, ".csv"))
    with text_file(path) as file:
        for query, (start, end) in zip(queries, pairwise(data.offsets.tolist()), strict=True):
            order = start + np.argsort(-arranged[start:end], kind="stable")
            file.writelines(
                f"{query} Q0 {documents[i]} {k} {float(arranged[i])!r} {name}\n"
                for k, i in enumerate(order.tolist(), 1)
            )


def write_qrels(data: RankingDataset, path: str | os.PathLike[str]) -> None:
    """Write TREC qrels: ``query 0 document rating``. Unjudged documents have no line, as TREC's tools expect.

    Parameters
    ----------
    data : RankingDataset
        Data with integer ratings.
    path : path
        The file.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> data = RankingDataset([[0.5], [1.5]], [0, 2], qid=["a", "a"], document_ids=["d1", "d2"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_qrels(data, f"{folder}/shop.qrels")
    ...     pathlib.Path(folder, "shop.qrels").read_text().splitlines()
    ['a 0 d1 0', 'a 0 d2 2']
    """
    check_dataset("data", data)
    fraction = data.is_judged & (data.ratings != np.rint(data.ratings))
    if fraction.any():
        got = f"{data.ratings[fraction.argmax()]:g}"
        raise DataError(expected="integer ratings for a qrels file", got=got)
    queries, documents = _trec_names(data)
    rows = zip(data.query_of_row.tolist(), documents, data.ratings.tolist(), strict=True)
    with replacing(path) as fresh, created(fresh, as_path(path)) as file:
        file.writelines(f"{queries[q]} 0 {d} {plain_number(r)}\n".encode() for q, d, r in rows if r == r)


def _number(field: str, path: Path, line: int) -> float:
    value = number_of(field.encode())
    if value is None:
        raise DataError(where=f"{path}:{line}", expected="a score", got=repr(field[:60]))
    return value


def _alike(rows: Rows, width: int, path: Path) -> Rows:
    """The rows, if all have the same number of fields."""
    for number, fields in rows:
        if len(fields) != width:
            expected = f"{width} fields as in the first line"
            raise DataError(where=f"{path}:{number}", expected=expected, got=str(len(fields)))
        yield number, fields


def _joined(rows: Rows, path: Path, data: RankingDataset, *, is_trec: bool) -> NDArray[np.float64]:
    """The scores of a TREC run, by query and document, or those of RankLib, by query and place in its list."""
    place: dict[tuple[str, str], int] = {}
    queries, documents = _trec_names(data) if is_trec else (data.query_texts(), [])
    if is_trec:
        place = {(queries[q], d): i for i, (q, d) in enumerate(zip(data.query_of_row.tolist(), documents, strict=True))}
    lists = dict(zip(queries, zip(data.offsets.tolist(), data.lengths.tolist(), strict=False), strict=True))
    scores, is_given = np.full(data.n_documents, np.nan), np.zeros(data.n_documents, bool)
    for number, fields in rows:
        where, query, score = f"{path}:{number}", fields[0], fields[4 if is_trec else 2]
        if is_trec:
            row, document = place.get((query, fields[2])), repr(fields[2])
            if row is None:
                got = f"{document} of query {query!r}"
                raise DataError(where=where, expected="a document of the data", got=got)
        else:
            if query not in lists:
                raise DataError(where=where, expected="a query of the data", got=repr(query))
            document, (first, length) = fields[1], lists[query]
            if not _INDEX.fullmatch(document) or int(document) >= length:
                expected = f"the index of one of {length} documents from 0"
                raise DataError(where=where, expected=expected, got=repr(document))
            row = first + int(document)
        if is_given[row]:
            got = f"a second one for document {document} of query {query!r}"
            raise DataError(where=where, expected="one score per document", got=got)
        is_given[row], scores[row] = True, _number(score, path, number)
    return data.restore(scores)


def _trec_names(data: RankingDataset) -> tuple[list[str], list[str]]:
    """Query and document names with "_" for blanks; documents without an id are named by their row.

    Raises ``DataError`` if two queries, or two documents of a query, get the same name.
    """
    queries = ["_".join(q.split()) for q in data.query_texts()]
    odd = next((q for q in queries if not q or q.startswith("\ufeff")), None)
    if odd is not None:
        expected = "query ids that are not empty and have no byte order mark in front, which TREC files cannot hold"
        raise DataError(argument="data", expected=expected, got=repr(odd))
    _check_different(queries, "queries")
    ids = data.document_ids or [""] * data.n_documents
    rows = data.source_rows.tolist()
    documents = ["_".join(d.split()) or f"row{row}" for d, row in zip(ids, rows, strict=True)]
    for query, (start, end) in zip(queries, pairwise(data.offsets.tolist()), strict=True):
        _check_different(documents[start:end], f"documents in query {query}")
    return queries, documents


def _check_different(names: list[str], what: str) -> None:
    twice = twice_in(names)
    if twice is not None:
        expected = f"{what} that still differ with '_' for blanks, as in TREC files"
        raise DataError(expected=expected, got=f"{twice!r} twice")


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
    return len(fields) == 4 and ":" not in fields[1] and bool(np.isfinite(_value_of(fields[3])))


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
        number = _value_of(value)
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


def _value_of(value: object) -> float:
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
