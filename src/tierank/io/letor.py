"""LETOR/SVMLight text, and LightGBM's text with group sizes in a second file: reading and writing."""

from __future__ import annotations

import gzip
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Allocator, in_memory, release_pages
from tierank.data.checks import as_weights, group_runs
from tierank.data.dataset import RankingDataset
from tierank.data.text import StringArray
from tierank.errors import DataError, located
from tierank.files import replacing
from tierank.io.paths import DAMAGED_GZIP, created, damaged_gzip, naming_content, unreadable
from tierank.kernels import in_threads
from tierank.kernels import letor_text as letor

# Bytes that a thread reads at a time: fits the processor's cache, and is large enough that calls cost little.
_PART = 1 << 21
# Bytes searched at a time for the end of a line.
_LOOK = 1 << 12
# The byte order mark that some editors leave.
_MARK = b"\xef\xbb\xbf"
# Lines sampled to guess the number of features. A wrong guess costs a second pass, not a wrong result.
_GUESS = 200
# The numbers of all text formats, case-insensitive; "nan" and "null" mean a missing value. ``float`` accepts more:
# 1_000, and the digits of all scripts.
NUMBER = r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|infinity)"
_NUMBER = re.compile(f"{NUMBER}|nan|null".encode(), re.IGNORECASE)
# Characters that end the id in "#docid = <id>", or would be taken for a part of the "=".
_ENDS_DOCUMENT = re.compile("^=|[\0- #]")


def read_letor(
    path: Path,
    *,
    allocate: Allocator = in_memory,
    zero_based: bool | None = None,
    n_jobs: int | None = None,
) -> RankingDataset:
    """Read ``<rating> qid:<id> <index>:<value> ... # comment`` lines; a rating of ``nan`` is an unjudged document.

    If the first line has no ``qid:`` and ``<path>.query`` exists, the format is LightGBM's: group sizes in that file,
    row weights in ``<path>.weight`` if that exists, and indices that count from 0. ``allocate`` may return more columns
    than needed: they stay 0.
    """
    row_weight = source_rows = None
    with naming_content(path, is_csv=False), _opened(path) as text:
        blocks = [
            one for one in in_threads(lambda start, end: _index(text, start, end), text.cuts(), n_jobs) if one.n_rows
        ]
        n_rows = sum(block.n_rows for block in blocks)
        if not n_rows:
            expected = "at least one line '<rating> qid:<id> <index>:<value> ...'"
            raise DataError(where=path, expected=expected, got="none")
        reader = _Reader(text, blocks, n_rows, has_query=blocks[0].row_without_query != 0)
        if reader.has_query:
            query_ids, offsets, source_rows = reader.group()
        else:
            sizes = _group_sizes(path, reader)
            query_ids, offsets = np.arange(1, len(sizes) + 1), np.concatenate([[0], sizes.cumsum()])
            beside = Path(f"{path}.weight")
            row_weight = as_weights(_read_numbers(beside), str(beside), n_rows) if beside.exists() else None
        reader.first_index = int(reader.has_query if zero_based is None else not zero_based)
        places = np.arange(n_rows)
        if source_rows is not None:
            places = np.empty_like(source_rows)
            places[source_rows] = np.arange(n_rows)
        features, ratings, documents = reader.parse(places, allocate, n_jobs)
    return RankingDataset.from_parts(
        features,
        ratings,
        offsets,
        query_ids,
        source_rows=source_rows,
        row_weight=row_weight,
        document_texts=documents if documents is None or source_rows is None else documents[source_rows],
    )


class _Text:
    """The bytes of an open file, read span by span into memory.

    A memory map would be as fast, but the process would crash if the file became shorter meanwhile.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._descriptor, self.name = file.fileno(), name
        self._stamp = self._stamped()
        self.size = self._stamp[0]

    def _stamped(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def check(self) -> None:
        """Raise ``DataError`` if the file has changed since it was opened."""
        if self._stamped() != self._stamp:
            expected, fix = "a file that does not change while it is read", "read it again when nothing writes to it"
            raise DataError(where=self.name, expected=expected, got="one that changed", fix=fix)

    def read(self, start: int, end: int) -> bytes:
        """Some of the bytes."""
        pieces, place = [], start
        while place < end:
            try:
                pieces.append(os.pread(self._descriptor, end - place, place))
            except OSError as error:
                raise unreadable(self.name, error) from None
            if not pieces[-1]:
                expected = f"{self.size} bytes, as when it was opened"
                got = f"{place}: the file became shorter while it was read"
                fix = "read it again when nothing writes to it"
                raise DataError(where=self.name, expected=expected, got=got, fix=fix)
            place += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def lines(self, start: int, end: int) -> NDArray[np.uint8]:
        """Whole lines, each with a line feed at its end, even if the last line of the file has none."""
        content = self.read(start, end)
        return np.frombuffer(content if content.endswith(b"\n") else content + b"\n", np.uint8)

    def cuts(self) -> list[tuple[int, int]]:
        """Spans of whole lines, of about ``_PART`` bytes each."""
        places = [len(_MARK) if self.read(0, min(self.size, len(_MARK))) == _MARK else 0]
        while places[-1] < self.size:
            place, found = min(places[-1] + _PART, self.size) - 1, -1
            while found < 0 and place < self.size:
                seen = self.read(place, min(place + _LOOK, self.size))
                found = seen.find(b"\n")
                place += len(seen) if found < 0 else found + 1
            places.append(place)
        return list(pairwise(places))

    def line_number(self, end: int) -> int:
        """The number, from 1, of the line that a place is in."""
        spans = ((start, min(start + _PART, end)) for start in range(0, end, _PART))
        return 1 + sum(self.read(*span).count(b"\n") for span in spans)


@dataclass(eq=False)
class _Block:
    """A span of whole lines: where its documents are, and its runs of neighbouring rows with the same query id."""

    start: int
    end: int
    line_starts: NDArray[np.int64]
    row_without_query: int | None
    run_starts: NDArray[np.int64]
    run_ids: NDArray[np.int64]
    run_texts: list[bytes] | None  # if some ids are not plain integers

    @property
    def n_rows(self) -> int:
        return len(self.line_starts)


def _index(text: _Text, start: int, end: int) -> _Block:
    """Find the documents in a span of whole lines."""
    content = text.lines(start, end)
    # A document takes at least two bytes; allocating untouched memory is cheaper than counting lines.
    most = len(content) // 2 if len(content) < 2 * _PART else letor.count_lines(content, 0, len(content))
    line_starts, query_starts = np.empty(most, np.int64), np.empty(most, np.int64)
    n = letor.index_lines(content, 0, len(content), line_starts, query_starts)
    line_starts, query_starts = line_starts[:n].copy(), query_starts[:n]
    run_starts, run_ids = np.empty_like(query_starts), np.empty_like(query_starts)
    if (query_starts < 0).any():  # rows without an id are refused later, unless the file is LightGBM's
        return _Block(start, end, line_starts, int((query_starts < 0).argmax()), run_starts[:0], run_ids[:0], None)
    n, are_plain = letor.query_runs(content, query_starts, run_starts, run_ids)
    places = [] if are_plain else query_starts[run_starts[:n]].tolist()
    texts = None if are_plain else [_until(content, rb"[ \t\r\n#]", place) for place in places]
    return _Block(start, end, line_starts, None, run_starts[:n].copy(), run_ids[:n].copy(), texts)


def _until(content: NDArray[np.uint8], stop: bytes, start: int) -> bytes:
    """The text before the first of some characters."""
    length = 256
    while True:  # fields and lines can be long: look further in growing steps
        seen = content[start : start + length].tobytes()
        if found := re.search(stop, seen):
            return seen[: found.start()]
        length *= 8


def _line(content: NDArray[np.uint8], start: int) -> bytes:
    """The text of the line that starts here, without its comment."""
    return _until(content, rb"[#\n]", start)


@dataclass
class _Reader:
    """All blocks of one file that hold documents."""

    text: _Text
    blocks: list[_Block]
    n_rows: int
    has_query: bool
    first_index: int = 0

    def group(self) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64] | None]:
        """Query ids, offsets and source rows; ids are integers if all are plain integers, otherwise texts."""
        for block in self.blocks:
            if block.row_without_query is not None:
                self.read_slowly(block, self.text.lines(block.start, block.end), block.row_without_query)
        shifts = np.cumsum([0, *(block.n_rows for block in self.blocks[:-1])])
        # A run that spans two blocks counts as two runs, which are joined when rows are grouped.
        starts = np.concatenate([one.run_starts + shift for one, shift in zip(self.blocks, shifts, strict=True)])
        if all(block.run_texts is None for block in self.blocks):
            return group_runs(np.concatenate([block.run_ids for block in self.blocks]), starts, self.n_rows)
        fields: dict[str, bytes] = {}
        texts = []
        for block in self.blocks:
            numbers = (b"%d" % number for number in block.run_ids.tolist())
            for field in numbers if block.run_texts is None else block.run_texts:
                # numpy's texts drop trailing NUL characters
                text = field.decode(errors="backslashreplace").replace("\0", "\\x00")
                if fields.setdefault(text, field) != field:
                    raise DataError(
                        where=self.text.name,
                        expected="query ids that differ as texts",
                        got=f"{field!r} and {fields[text]!r}, which both read {text!r}",
                        fix="save the file as UTF-8, or rename one of them",
                    )
                texts.append(text)
        return group_runs(np.array(texts), starts, self.n_rows)

    def read_slowly(self, block: _Block, content: NDArray[np.uint8], row: int) -> tuple[float, dict[int, float]]:
        """The rating of one row and its values by column. Raises ``DataError``, which says where and what is wrong."""
        start = int(block.line_starts[row])
        try:
            return _read_line(_line(content, start), self.has_query, self.first_index)
        except DataError as error:
            raise error.at(f"{self.text.name}:{self.text.line_number(block.start + start)}") from None

    def parse(
        self, places: NDArray[np.int64], allocate: Allocator, n_jobs: int | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float64], StringArray | None]:
        """The features and ratings of all rows, row i at ``places[i]``, and the document ids of comments by row."""
        first = self.blocks[0]
        content = self.text.lines(first.start, first.end)
        lines = [_line(content, start) for start in first.line_starts[:_GUESS].tolist()]
        indices = [int(index) for line in lines for index in re.findall(rb"[ \t](\d{1,7}):", line)]
        width = max(1, max(indices, default=0) + 1 - self.first_index)
        edges = np.cumsum([block.n_rows for block in self.blocks])[:-1]
        spans = list(zip(self.blocks, np.split(places, edges), strict=True))
        while True:
            try:
                features, ratings = allocate(self.n_rows, width), np.empty(self.n_rows)
            except DataError as error:
                error.fix = f"is the feature index {width} a mistake?"
                raise error.at(self.text.name) from None
            parsed = in_threads(lambda block, own: self._parse_block(block, own, features, ratings), spans, n_jobs)  # noqa: B023
            width = max(needed for needed, _, _ in parsed)
            if width <= features.shape[1]:
                has_documents = any(has_comments for _, has_comments, _ in parsed)
                texts = StringArray.concat([texts for _, _, texts in parsed]) if has_documents else None
                return features, ratings, texts

    def _parse_block(
        self,
        block: _Block,
        places: NDArray[np.int64],
        features: NDArray[np.float32],
        ratings: NDArray[np.float64],
    ) -> tuple[int, bool, StringArray]:
        """Parse the rows of a block; returns the width that was needed, and the documents of comments, if any."""
        content = self.text.lines(block.start, block.end)
        comments = np.empty(block.n_rows, np.int64)
        parsed = letor.Parsed(features, ratings, comments, np.zeros(features.shape[1] + 1, np.int64))
        row, widest = 0, 0
        while True:
            row, needed = letor.parse_rows(
                content, block.line_starts, places, self.has_query, self.first_index, row, block.n_rows, letor.POWERS,
                parsed,
            )  # fmt: skip
            widest = max(widest, needed)
            if row == block.n_rows:
                break
            ratings[places[row]], values = self.read_slowly(block, content, row)
            start = int(block.line_starts[row])
            end = start + len(_line(content, start))
            comments[row] = end + 1 if content[end] == letor.HASH else -1
            for column, value in values.items():
                widest = max(widest, column + 1)
                if column < features.shape[1]:
                    features[places[row], column] = value
            row += 1
        release_pages(features[places.min() : places.max() + 1])
        ends = np.empty(len(comments), np.int64)
        blob = np.empty(letor.comment_spans(content, comments, ends), np.uint8)
        letor.gather(content, comments, ends, blob)
        return widest, bool((comments >= 0).any()), StringArray(blob, ends)


def _read_line(line: bytes, has_query: bool, first_index: int) -> tuple[float, dict[int, float]]:
    """The rating of a line and its values by column, by the rules of the format."""
    fields = [field for field in line.replace(b"\r", b" ").replace(b"\t", b" ").split(b" ") if field]
    rating = _as_number(fields[0], "a rating as the first field")
    if not (np.isnan(rating) or 0 <= rating < np.inf):
        raise DataError(expected="a finite rating that is not negative", got=_shown(fields[0]))
    if has_query:
        second = fields[1] if len(fields) > 1 else b""
        if not second.startswith(b"qid:") or len(second) == 4:
            raise DataError(expected="qid:<id> as the second field", got=_shown(second))
    values: dict[int, float] = {}
    for field in fields[1 + has_query :]:
        index, colon, value = field.partition(b":")
        if field.startswith(b"qid:"):
            raise DataError(expected="qid:<id> as the second field", got=f"it after a feature: {_shown(field)}")
        if not colon or not index.isdigit():
            raise DataError(expected="<index>:<value>", got=_shown(field))
        if len(index) > letor.MAX_INDEX_DIGITS:
            raise DataError(expected="a feature index of at most 7 digits", got=_shown(field))
        if int(index) < first_index:
            fix = "or read with zero_based=True"
            raise DataError(expected="feature indices >= 1", got=_shown(field), fix=fix)
        column = int(index) - first_index
        if column in values:
            raise DataError(expected="each feature once", got=f"feature {int(index)} twice")
        with np.errstate(over="ignore"):
            single = np.float32(_as_number(value, f"a number after '{int(index)}:'"))
        if np.isinf(single):
            raise DataError(expected="a value that float32 can hold", got=_shown(field))
        values[column] = float(single)
    return rating, values


def _as_number(field: bytes, expected: str) -> float:
    value = number_of(field)
    if value is None:
        raise DataError(expected=expected, got=_shown(field))
    return value


def number_of(field: bytes) -> float | None:
    """The number in a field of text; NaN if it means a missing value, None if it is not a number.

    >>> number_of(b"+2.5e-1"), number_of(b"NULL"), number_of(b"-INF"), number_of(b"0x10"), number_of(b"+-1")
    (0.25, nan, -inf, None, None)
    """
    if not _NUMBER.fullmatch(field):
        return None
    return np.nan if field.lower() in (b"null", b"nan") else float(field)


def _shown(field: bytes) -> str:
    text = field[:60].decode(errors="backslashreplace")
    return f"'{text}{'...' if len(field) > 60 else ''}'" if field else "nothing"


@contextmanager
def _opened(path: Path) -> Iterator[_Text]:
    """The text of a file, decompressed if it is a gzip file. Raises ``DataError`` if it changes meanwhile."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from None
    with file:
        text = _Text(file, str(path))
        try:
            if text.read(0, min(2, text.size)) == b"\x1f\x8b":
                with tempfile.TemporaryFile() as plain:
                    _unpack(file, plain, path)
                    yield _Text(plain, str(path))
            else:
                yield text
        finally:
            text.check()  # first, as it may be the cause of other errors


def _unpack(file: IO[bytes], plain: IO[bytes], path: Path) -> None:
    try:
        with gzip.GzipFile(fileobj=file) as packed:
            while chunk := packed.read(1 << 22):
                try:
                    plain.write(chunk)
                    plain.flush()
                except OSError as error:
                    expected = f"enough space in {tempfile.gettempdir()} to decompress it"
                    raise DataError(where=path, expected=expected, got=f": {error.strerror or error}") from None
    except DAMAGED_GZIP as error:
        raise damaged_gzip(path, error) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _group_sizes(path: Path, reader: _Reader) -> NDArray[np.int64]:
    """LightGBM's group sizes for a file without qid."""
    beside = Path(f"{path}.query")
    if not beside.exists():
        first = reader.blocks[0]
        reader.has_query = True  # the first line is refused
        reader.read_slowly(first, reader.text.lines(first.start, first.end), 0)
    sizes = _read_numbers(beside)
    if not (np.all(sizes == np.rint(sizes)) and np.all(sizes > 0)):
        raise DataError(where=beside, expected="one positive group size per line", got="others")
    if sizes.sum() != reader.n_rows:
        expected = f"sizes that sum to the {reader.n_rows} rows of {path}"
        raise DataError(where=beside, expected=expected, got=f"{sizes.sum():g}")
    return sizes.astype(np.int64)


def _read_numbers(path: Path) -> NDArray[np.float64]:
    """One number per line."""
    if not path.is_file():  # opening a pipe would wait for a writer
        raise DataError(where=path, expected="a file with one number per line", got="something else")
    try:
        fields = path.read_bytes().split()
    except OSError as error:
        raise unreadable(path, error) from None
    with located(path):
        return np.array([_as_number(field, "a number") for field in fields])


def write_letor(data: RankingDataset, path: Path) -> None:
    """Write LETOR text that reads back to the same numbers, in the caller's order; ``.gz`` compresses it."""
    ids, in_order = data.query_texts(), data.restore(np.arange(data.n_documents))
    bad = next((i for i in ids if not i or re.search(r"[\s#\0]", i)), None)
    if bad is not None:
        expected = "query ids without blanks and '#', which end the id in a text file"
        raise DataError(expected=expected, got=repr(bad))
    rows_at_once = max(1, (1 << 22) // (data.n_features * letor.FIELD_BYTES))
    with replacing(path) as fresh, created(fresh, path) as file:
        for start in range(0, data.n_documents, rows_at_once):
            rows = in_order[start : start + rows_at_once]
            head, tail = _heads(data, ids, rows), _tails(data, rows)
            n_bytes = len(rows) * (data.n_features * letor.FIELD_BYTES + 1) + len(head.blob) + len(tail.blob)
            out = np.empty(n_bytes, np.uint8)
            ends = (head.blob, head.ends, tail.blob, tail.ends)
            used = letor.format_rows(data.features[rows], 1, *ends, out, letor.POWERS)
            file.write(out[:used].data)
            release_pages(data.features[rows.min() : rows.max() + 1])


def _heads(data: RankingDataset, ids: list[str], rows: NDArray[np.int64]) -> StringArray:
    queries = (data.offsets.searchsorted(rows, "right") - 1).tolist()
    ratings = data.ratings[rows].tolist()
    return StringArray.of(f"{plain_number(r)} qid:{ids[q]}" for r, q in zip(ratings, queries, strict=True))


def _tails(data: RankingDataset, rows: NDArray[np.int64]) -> StringArray:
    if data.document_texts is None:
        return StringArray.of([""] * len(rows))
    texts = list(data.document_texts[rows])
    bad = next((text for text in texts if _ENDS_DOCUMENT.search(text)), None)
    if bad is not None:
        expected = "document ids without blanks and '#', and without a leading '=', which text cannot hold"
        raise DataError(expected=expected, got=repr(bad), fix="CSV and Parquet can")
    return StringArray.of(f" #docid = {text}" if text else "" for text in texts)


def plain_number(value: float) -> str:
    """The shortest text of a number, without a decimal point if it is an integer.

    >>> plain_number(2.0), plain_number(0.1)
    ('2', '0.1')
    """
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
