"""Score files of any tool: one number per line, RankLib's score file, a TREC run, a ``.npy`` array, CSV or Parquet."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.checks import as_array, as_numbers, shape_of
from tierank.dataset import RankingDataset, check_dataset
from tierank.errors import DataError, ParameterError
from tierank.files import as_path, replacing
from tierank.readers.arrays import read_array
from tierank.readers.columns import PARQUET_ENDINGS, ParquetPart, needs_arrow
from tierank.readers.letor import number_of, plain_number
from tierank.readers.paths import check_text_ending, created, ending_of, kind_of, lines_of, piped, unreadable
from tierank.tables import as_column, check_once
from tierank.text_blocks import Texts

# Lines of a file: their number, from 1, and their fields.
Rows = Iterator[tuple[int, list[str]]]

# Scores converted to Python numbers at a time.
_AT_ONCE = 1 << 16


def read_scores(path: str | os.PathLike[str], data: RankingDataset) -> NDArray[np.float64]:
    r"""Read scores for the documents of a data set from a file.

    The file has one of these forms:

    - a number per line, in the order of the rows of the data;
    - ``query index score``, as RankLib writes it: the index counts the documents of the query from 0, in file order;
    - ``query Q0 document rank score run``, a TREC run: joined by document id, every document must have one score;
    - ``.npy``: one number per row;
    - ``.csv`` with a header line, or ``.parquet``: the column ``score``, in the order of the rows of the data.

    Text and CSV may be compressed, with a name that ends in ``.gz``.

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
        raise DataError(f"{path}: expected a file of scores, got a folder; predict writes the scores of a model")
    if kind == "pipe":
        with piped(path) as file:
            return read_scores(file, data)
    ending = ending_of(path)
    if ending == ".npy":
        return _checked(as_numbers(read_array(path), str(path)).astype(np.float64), path, data)
    if ending in PARQUET_ENDINGS:
        part = ParquetPart(path)
        _check_has_score(part.names, path)
        return _checked(as_numbers(as_column(part.read(["score"]), "score"), str(path)).astype(np.float64), path, data)
    try:
        if ending == ".csv" and (header := _csv_header(path)) is not None:
            return _checked(_from_csv(path, header), path, data)
        return _checked(_from_text(path, data), path, data)
    except OSError as error:
        raise unreadable(path, error) from None
    except csv.Error as error:
        raise DataError(where=path, expected="a CSV table of scores", got=f": {error}") from None


def _csv_header(path: Path) -> list[str] | None:
    """The names in the first line of a CSV file; None if the line is a number."""
    with lines_of(path) as lines:
        first = next(csv.reader(lines), [])
    return None if not first or number_of(first[0].strip().encode()) is not None else first


def _check_has_score(names: list[str], path: Path) -> None:
    if "score" not in names:
        raise DataError(f"{path}: expected a column called score, got {', '.join(names[:12])}")
    check_once(names, ["score"], path)


def _from_csv(path: Path, header: list[str]) -> NDArray[np.float64]:
    _check_has_score(header, path)
    place = header.index("score")
    with lines_of(path) as lines:
        rows = csv.reader(lines)
        next(rows)
        cells = ((rows.line_num, row[place] if len(row) > place else "") for row in rows if row)
        return np.fromiter((_number(cell, path, line) for line, cell in cells), np.float64)


def write_columns(columns: Mapping[str, NDArray[Any] | Texts], path: Path) -> None:
    """Write columns of equal length as a Parquet or CSV table, by the ending of the path."""
    if path.suffix.lower() in PARQUET_ENDINGS:
        arrow = needs_arrow("Parquet")
        import pyarrow.parquet

        made = {name: list(v) if isinstance(v, Texts) else plain_column(v) for name, v in columns.items()}
        with replacing(path) as fresh, fresh.open("wb") as file:
            pyarrow.parquet.write_table(arrow.table(made), file)
        return
    with text_file(path) as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        rows = zip(*(v if isinstance(v, Texts) else v.tolist() for v in columns.values()), strict=True)
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


# Names under which text is not written, as it would not read back.
NOT_TEXT = (*PARQUET_ENDINGS, ".tierank")


def plain_column(values: NDArray[Any]) -> Any:
    """Values as a column of one type; texts if they have several types."""
    if values.dtype.kind != "O" or len({type(value) for value in values.tolist()}) == 1:
        return values
    return [str(value) for value in values.tolist()]


def _from_text(path: Path, data: RankingDataset) -> NDArray[np.float64]:
    with lines_of(path) as lines:
        rows = ((number, fields) for number, line in enumerate(lines, 1) if (fields := line.split()))
        first = next(rows, None)
        if first is None:
            raise DataError(f"{path}: expected one score per line, got an empty file")
        width = len(first[1])
        if width > 1 and first[1][1].startswith("qid:"):
            raise DataError(where=path, expected="a file of scores", got="LETOR text, which holds data")
        readers = {1: _plain, 3: _ranklib, 6: _trec}
        if width not in readers:
            raise DataError(f"{path}:{first[0]}: expected 1, 3 (RankLib) or 6 (TREC run) fields, got {width}")
        return readers[width](_alike(chain([first], rows), width, path), path, data)


def write_scores(scores: ArrayLike, path: str | os.PathLike[str]) -> None:
    """Write one score per line, in the order of the caller's rows.

    Parameters
    ----------
    scores : array
        One score per row.
    path : path
        The file; compressed if the name ends in ``.gz``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_scores([0.25, 0.75], f"{folder}/scores.txt")
    ...     pathlib.Path(folder, "scores.txt").read_text().split()
    ['0.25', '0.75']
    """
    numbers = _as_scores(scores)
    check_text_ending(as_path(path), "a name that ends in .txt", NOT_TEXT)
    with text_file(path) as file:
        file.writelines(score_lines(numbers))


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


def score_lines(scores: NDArray[np.float64]) -> Iterator[str]:
    r"""One line per score, generated in chunks.

    >>> list(score_lines(np.array([0.5, -2.0])))
    ['0.5\n', '-2.0\n']
    """
    for start in range(0, len(scores), _AT_ONCE):
        yield from (f"{score!r}\n" for score in scores[start : start + _AT_ONCE].tolist())


def rank_lines(columns: Sequence[NDArray[Any]], documents: Texts | None = None) -> Iterator[str]:
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
            cells.append([" ".join(text.splitlines()).replace("\t", " ") for text in documents.take(chunk[2])])
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
        raise DataError(f"expected integer ratings for a qrels file, got {data.ratings[fraction.argmax()]:g}")
    queries, documents = _trec_names(data)
    rows = zip(data.query_of_row.tolist(), documents, data.ratings.tolist(), strict=True)
    with replacing(path) as fresh, created(fresh, as_path(path)) as file:
        file.writelines(f"{queries[q]} 0 {d} {plain_number(r)}\n".encode() for q, d, r in rows if r == r)


def _checked(scores: NDArray[np.float64], path: Path, data: RankingDataset) -> NDArray[np.float64]:
    if scores.shape != (data.n_documents,):
        raise DataError(f"{path}: expected {data.n_documents} scores, one per document, got {scores.size}")
    if np.isnan(scores).any():
        raise DataError(
            f"{path}: expected a number for every document, got none for row {int(np.isnan(scores).argmax())}"
        )
    return scores


def _number(field: str, path: Path, line: int) -> float:
    value = number_of(field.encode())
    if value is None:
        raise DataError(f"{path}:{line}: expected a score, got {field[:60]!r}")
    return value


def _alike(rows: Rows, width: int, path: Path) -> Rows:
    """The rows, if all have the same number of fields."""
    for number, fields in rows:
        if len(fields) != width:
            raise DataError(f"{path}:{number}: expected {width} fields as in the first line, got {len(fields)}")
        yield number, fields


def _plain(rows: Rows, path: Path, data: RankingDataset) -> NDArray[np.float64]:
    return np.fromiter((_number(fields[0], path, number) for number, fields in rows), np.float64)


# Indices in a list, from 0, as RankLib writes them.
_INDEX = re.compile("[0-9]{1,18}")


class _Scores:
    """The scores of all rows of a data set; each may be set only once."""

    def __init__(self, data: RankingDataset, path: Path) -> None:
        self.path = path
        self.values = np.full(data.n_documents, np.nan)
        self._is_given = np.zeros(data.n_documents, bool)

    def put(self, row: int, score: str, line: int, what: str) -> None:
        if self._is_given[row]:
            raise DataError(f"{self.path}:{line}: expected one score per document, got a second one for {what}")
        self._is_given[row] = True
        self.values[row] = _number(score, self.path, line)


def _ranklib(rows: Rows, path: Path, data: RankingDataset) -> NDArray[np.float64]:
    place = dict(zip(data.query_texts(), data.offsets[:-1].tolist(), strict=True))
    length = dict(zip(place, data.lengths.tolist(), strict=True))
    scores = _Scores(data, path)
    for number, (query, index, score) in rows:
        if query not in place:
            raise DataError(f"{path}:{number}: expected a query of the data, got {query!r}")
        if not _INDEX.fullmatch(index) or int(index) >= length[query]:
            raise DataError(
                f"{path}:{number}: expected the index of one of {length[query]} documents from 0, got {index!r}"
            )
        scores.put(place[query] + int(index), score, number, f"document {index} of query {query!r}")
    return data.restore(scores.values)


def _trec(rows: Rows, path: Path, data: RankingDataset) -> NDArray[np.float64]:
    queries, documents = _trec_names(data)
    place = {(queries[q], d): i for i, (q, d) in enumerate(zip(data.query_of_row.tolist(), documents, strict=True))}
    scores = _Scores(data, path)
    for number, (query, _, document, _, score, _) in rows:
        if (query, document) not in place:
            raise DataError(f"{path}:{number}: expected a document of the data, got {document!r} of query {query!r}")
        scores.put(place[query, document], score, number, f"document {document!r} of query {query!r}")
    return data.restore(scores.values)


def _trec_names(data: RankingDataset) -> tuple[list[str], list[str]]:
    """Query and document names with "_" for blanks; documents without an id are named by their row.

    Raises ``DataError`` if two queries, or two documents of a query, get the same name.
    """
    queries = ["_".join(q.split()) for q in data.query_texts()]
    if "" in queries:
        raise DataError("expected query ids that are not empty, as TREC files have no empty ids, got ''")
    _check_different(queries, "queries")
    ids = data.document_ids or [""] * data.n_documents
    rows = data.source_rows.tolist()
    documents = ["_".join(d.split()) or f"row{row}" for d, row in zip(ids, rows, strict=True)]
    for query, (start, end) in zip(queries, pairwise(data.offsets.tolist()), strict=True):
        _check_different(documents[start:end], f"documents in query {query}")
    return queries, documents


def _check_different(names: list[str], what: str) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise DataError(f"expected {what} that still differ with '_' for blanks, as in TREC files, got {twice!r} twice")
