"""Scores of any tool: one number per line, RankLib's score file, a TREC run, or a ``.npy`` array."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.errors import DataError
from tierank.files import replacing
from tierank.readers.letor import plain_number


def read_scores(path: str | Path, data: RankingDataset) -> NDArray[np.float64]:
    """The scores of a file for the documents of ``data``, in the caller's order of rows.

    ==========================================  ==========================================================
    a number per line                           in the order of the rows of the data file
    ``query  index  score`` (RankLib)           index counts the documents of the query from 0, in file order
    ``query Q0 document rank score run`` (TREC)  joined by document id; every document must have one score
    ``.npy``                                    one number per row
    ==========================================  ==========================================================
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: expected a file of scores, got nothing there")
    if path.suffix == ".npy":
        return _checked(_array(path), path, data)
    lines = path.read_bytes().decode(errors="replace").splitlines()
    rows = [(number, line.split()) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise DataError(f"{path}: expected a score per line, got an empty file")
    width = len(rows[0][1])
    readers = {1: _plain, 3: _ranklib, 6: _trec}
    if width not in readers:
        raise DataError(f"{path}:{rows[0][0]}: expected 1, 3 (RankLib) or 6 (TREC run) fields, got {width}")
    for number, fields in rows:
        if len(fields) != width:
            raise DataError(f"{path}:{number}: expected {width} fields as in the first line, got {len(fields)}")
    return _checked(readers[width](rows, path, data), path, data)


def write_scores(path: str | Path, scores: NDArray[np.float64]) -> None:
    """Write a number per line, in the caller's order of rows."""
    with replacing(path) as fresh:
        fresh.write_text("".join(f"{score!r}\n" for score in np.asarray(scores, np.float64).tolist()))


def write_run(path: str | Path, data: RankingDataset, scores: NDArray[np.float64], name: str = "tierank") -> None:
    """Write a TREC run: ``query Q0 document rank score name``, best first. Scores are in the caller's order of rows."""
    queries, documents = _trec_names(data)
    own = data.arrange(np.asarray(scores, np.float64))
    lines = []
    for q, (start, end) in enumerate(zip(data.offsets[:-1].tolist(), data.offsets[1:].tolist(), strict=True)):
        order = start + np.argsort(-own[start:end], kind="stable")
        lines += [
            f"{queries[q]} Q0 {documents[i]} {k} {float(own[i])!r} {name}\n" for k, i in enumerate(order.tolist(), 1)
        ]
    with replacing(path) as fresh:
        fresh.write_text("".join(lines))


def write_qrels(data: RankingDataset, path: str | Path) -> None:
    """Write TREC qrels: ``query 0 document rating``."""
    fraction = data.ratings != np.rint(data.ratings)
    if fraction.any():
        raise DataError(f"expected whole ratings, which qrels files hold, got {data.ratings[fraction.argmax()]:g}")
    queries, documents = _trec_names(data)
    rows = zip(data.query_of_row.tolist(), documents, data.ratings.tolist(), strict=True)
    with replacing(path) as fresh:
        fresh.write_text("".join(f"{queries[q]} 0 {d} {plain_number(r)}\n" for q, d, r in rows))


def _array(path: Path) -> NDArray[np.float64]:
    try:
        return np.asarray(np.load(path, allow_pickle=False), np.float64)
    except (ValueError, OSError, EOFError, TypeError) as error:
        raise DataError(f"{path}: expected an array of numbers, got a damaged file or another type ({error})") from None


def _checked(scores: NDArray[np.float64], path: Path, data: RankingDataset) -> NDArray[np.float64]:
    if scores.shape != (data.n_documents,):
        raise DataError(f"{path}: expected {data.n_documents} scores, one per document, got {scores.size}")
    if np.isnan(scores).any():
        raise DataError(
            f"{path}: expected a number for every document, got none for row {int(np.isnan(scores).argmax())}"
        )
    return scores


def _number(field: str, place: str) -> float:
    try:
        return float(field)
    except ValueError:
        raise DataError(f"{place}: expected a score, got {field[:60]!r}") from None


def _plain(rows: list[tuple[int, list[str]]], path: Path, data: RankingDataset) -> NDArray[np.float64]:
    return np.array([_number(fields[0], f"{path}:{number}") for number, fields in rows])


def _ranklib(rows: list[tuple[int, list[str]]], path: Path, data: RankingDataset) -> NDArray[np.float64]:
    place = {str(q): start for q, start in zip(data.query_ids.tolist(), data.offsets[:-1].tolist(), strict=True)}
    length = dict(zip(place, data.lengths.tolist(), strict=True))
    scores = np.full(data.n_documents, np.nan)
    for number, (query, index, score) in rows:
        if query not in place:
            raise DataError(f"{path}:{number}: expected a query of the data, got {query!r}")
        if not index.isdigit() or int(index) >= length[query]:
            raise DataError(
                f"{path}:{number}: expected the index of one of {length[query]} documents from 0, got {index!r}"
            )
        scores[place[query] + int(index)] = _number(score, f"{path}:{number}")
    return data.restore(scores)


def _trec(rows: list[tuple[int, list[str]]], path: Path, data: RankingDataset) -> NDArray[np.float64]:
    queries, documents = _trec_names(data)
    place = {(queries[q], d): i for i, (q, d) in enumerate(zip(data.query_of_row.tolist(), documents, strict=True))}
    scores = np.full(data.n_documents, np.nan)
    for number, (query, _, document, _, score, _) in rows:
        if (query, document) not in place:
            raise DataError(f"{path}:{number}: expected a document of the data, got {document!r} of query {query!r}")
        scores[place[query, document]] = _number(score, f"{path}:{number}")
    return data.restore(scores)


def _trec_names(data: RankingDataset) -> tuple[list[str], list[str]]:
    """Query and document names without blanks; documents without an id are called by their row."""
    queries = ["_".join(str(q).split()) for q in data.query_ids.tolist()]
    ids = data.document_ids or [""] * data.n_documents
    rows = data.source_rows.tolist()
    return queries, ["_".join(d.split()) or f"row{row}" for d, row in zip(ids, rows, strict=True)]
