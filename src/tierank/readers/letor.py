"""Reading and writing LETOR/SVMLight text, and LightGBM's text with group sizes in a second file."""

from __future__ import annotations

import gzip
import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.checks import as_weights, group_runs
from tierank.dataset import RankingDataset
from tierank.errors import DataError
from tierank.files import replacing
from tierank.kernels import in_threads, letor
from tierank.memory import Allocator, in_memory, release_pages
from tierank.readers.paths import created, unreadable
from tierank.text_blocks import Texts

# Bytes that a thread reads at a time: fits the processor's cache, and is large enough that calls cost little.
_PART = 1 << 21
# Bytes searched at a time for the end of a line.
_LOOK = 1 << 12
# The byte order mark that some editors leave.
_MARK = b"\xef\xbb\xbf"
# Lines sampled to guess the number of features. A wrong guess costs a second pass, not a wrong result.
_GUESS = 200


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
    with _opened(path) as text:
        blocks = in_threads(lambda start, end: _Block.of(text, start, end), text.cuts(), n_jobs)
        source = _Source(text, [block for block in blocks if block.n_rows])
        if not source.n_rows:
            raise DataError(f"{path}: expected at least one line '<rating> qid:<id> <index>:<value> ...', got none")
        sizes = None if source.has_query else _group_sizes(path, source)
        first_index = int(not (sizes is not None if zero_based is None else zero_based))
        query_ids, offsets, source_rows = source.grouped() if sizes is None else _grouped_by_size(sizes)
        targets = np.arange(source.n_rows)
        if source_rows is not None:
            targets = np.empty_like(source_rows)
            targets[source_rows] = np.arange(source.n_rows)
        features, ratings, documents = source.parsed(targets, first_index, allocate, n_jobs)
    if documents is not None and source_rows is not None:
        documents = documents.take(source_rows)
    return RankingDataset.from_parts(
        features,
        ratings,
        offsets,
        query_ids,
        source_rows=source_rows,
        row_weight=_weights(path, source.n_rows) if sizes is not None else None,
        document_texts=documents,
    )


def write_letor(data: RankingDataset, path: Path) -> None:
    """Write LETOR text that reads back to the same numbers; a name that ends in ``.gz`` compresses it."""
    ids = _written_ids(data)
    rows_at_once = max(1, (1 << 22) // (data.n_features * letor.FIELD_BYTES))
    with replacing(path) as fresh, created(fresh, path) as file:
        for start in range(0, data.n_documents, rows_at_once):
            rows = np.arange(start, min(start + rows_at_once, data.n_documents))
            chunk = data.features[start : start + len(rows)]
            head, tail = _heads(data, ids, rows), _tails(data, rows)
            n_bytes = len(rows) * (data.n_features * letor.FIELD_BYTES + 1) + len(head.blob) + len(tail.blob)
            out = np.empty(n_bytes, np.uint8)
            used = letor.format_rows(chunk, 1, head.blob, head.ends, tail.blob, tail.ends, out, letor.POWERS)
            file.write(out[:used].data)
            release_pages(chunk)


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
            raise DataError(
                f"{self.name}: expected a file that does not change while it is read, got one that changed; read it"
                " again when nothing writes to it"
            )

    def read(self, start: int, end: int) -> bytes:
        """Some of the bytes."""
        pieces, place = [], start
        while place < end:
            try:
                pieces.append(os.pread(self._descriptor, end - place, place))
            except OSError as error:
                raise unreadable(self.name, error) from None
            if not pieces[-1]:
                raise DataError(
                    f"{self.name}: expected {self.size} bytes, as when it was opened, got {place}: the file became"
                    " shorter while it was read; read it again when nothing writes to it"
                )
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
            places.append(self._after_line(min(places[-1] + _PART, self.size) - 1))
        return list(pairwise(places))

    def _after_line(self, place: int) -> int:
        """The place after the next line feed."""
        while place < self.size:
            seen = self.read(place, min(place + _LOOK, self.size))
            if (found := seen.find(b"\n")) >= 0:
                return place + found + 1
            place += len(seen)
        return self.size

    def line_number(self, end: int) -> int:
        """The number, from 1, of the line that a place is in."""
        spans = ((start, min(start + _PART, end)) for start in range(0, end, _PART))
        return 1 + sum(self.read(*span).count(b"\n") for span in spans)


class _Runs(NamedTuple):
    """Runs of neighbouring rows with the same query id."""

    starts: NDArray[np.int64]
    ids: NDArray[np.int64]
    texts: list[bytes] | None  # if some ids are not plain integers


@dataclass(eq=False)
class _Block:
    """A span of whole lines, and where its documents are."""

    start: int
    end: int
    line_starts: NDArray[np.int64]
    runs: _Runs
    row_without_query: int | None

    @classmethod
    def of(cls, text: _Text, start: int, end: int) -> _Block:
        content = text.lines(start, end)
        # A document takes at least two bytes; allocating untouched memory is cheaper than counting lines.
        most = len(content) // 2 if len(content) < 2 * _PART else letor.count_lines(content, 0, len(content))
        line_starts, query_starts = np.empty(most, np.int64), np.empty(most, np.int64)
        n = letor.index_lines(content, 0, len(content), line_starts, query_starts)
        missing = query_starts[:n] < 0
        if missing.any():  # rows without an id are refused later, unless the file is LightGBM's
            runs = _Runs(np.empty(0, np.int64), np.empty(0, np.int64), None)
            return cls(start, end, line_starts[:n].copy(), runs, int(missing.argmax()))
        return cls(start, end, line_starts[:n].copy(), _runs(content, query_starts[:n]), None)

    @property
    def n_rows(self) -> int:
        return len(self.line_starts)


def _runs(content: NDArray[np.uint8], query_starts: NDArray[np.int64]) -> _Runs:
    starts, ids = np.empty_like(query_starts), np.empty_like(query_starts)
    n, are_plain = letor.query_runs(content, query_starts, starts, ids)
    places = query_starts[starts[:n]].tolist()
    texts = None if are_plain else [_until(content, rb"[ \t\r\n#]", place) for place in places]
    return _Runs(starts[:n].copy(), ids[:n].copy(), texts)


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


class _Source:
    """All blocks of one file that hold documents."""

    def __init__(self, text: _Text, blocks: list[_Block]) -> None:
        self.text, self.blocks = text, blocks
        self.n_rows = sum(block.n_rows for block in blocks)

    @property
    def has_query(self) -> bool:
        return self.blocks[0].row_without_query != 0

    def grouped(self) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64] | None]:
        for block in self.blocks:
            if block.row_without_query is not None:
                self.refuse(block, block.row_without_query)
        shifts = np.cumsum([0, *(block.n_rows for block in self.blocks[:-1])])
        runs = [block.runs for block in self.blocks]
        # A run that spans two blocks counts as two runs, which are joined when rows are grouped.
        starts = np.concatenate([own.starts + shift for own, shift in zip(runs, shifts, strict=True)])
        return group_runs(self._query_ids(runs), starts, self.n_rows)

    def _query_ids(self, runs: list[_Runs]) -> NDArray[Any]:
        """The query ids: integers if all are plain integers, otherwise texts."""
        if all(own.texts is None for own in runs):
            return np.concatenate([own.ids for own in runs])
        fields = [
            field
            for own in runs
            for field in (own.texts if own.texts is not None else [b"%d" % i for i in own.ids.tolist()])
        ]
        field_of: dict[str, bytes] = {}
        texts = []
        for field in fields:
            text = _id_text(field)
            if field_of.setdefault(text, field) != field:
                raise DataError(
                    f"{self.text.name}: expected query ids that differ as texts, got {field!r} and {field_of[text]!r},"
                    f" which both read {text!r}; save the file as UTF-8, or rename one of them"
                )
            texts.append(text)
        return np.array(texts)

    def refuse(self, block: _Block, row: int) -> None:
        """Raise ``DataError`` for what is wrong with a row."""
        self.read_slowly(block, self.text.lines(block.start, block.end), row, has_query=True, first_index=0)
        raise AssertionError("a line that was refused reads well")

    def read_slowly(
        self, block: _Block, content: NDArray[np.uint8], row: int, has_query: bool, first_index: int
    ) -> tuple[float, dict[int, float]]:
        """The rating of one row and its values by column. Raises ``DataError``, which says where and what is wrong."""
        start = int(block.line_starts[row])
        try:
            return _read_line(_line(content, start), has_query, first_index)
        except DataError as error:
            line = self.text.line_number(block.start + start)
            raise DataError(f"{self.text.name}:{line}: {error}") from None

    def parsed(
        self, targets: NDArray[np.int64], first_index: int, allocate: Allocator, n_jobs: int | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float64], Texts | None]:
        """The features and ratings of all rows, row i at ``targets[i]``, and the document ids of comments."""
        width = max(1, self._guess_width(first_index))
        while True:
            features, ratings = self._matrix(width, allocate), np.empty(self.n_rows)
            needed, documents = self._parse(targets, first_index, features, ratings, n_jobs)
            if needed <= features.shape[1]:
                return features, ratings, documents
            width = needed

    def _guess_width(self, first_index: int) -> int:
        block = self.blocks[0]
        content = self.text.lines(block.start, block.end)
        lines = [_line(content, start) for start in block.line_starts[:_GUESS].tolist()]
        indices = [int(index) for line in lines for index in re.findall(rb"[ \t](\d{1,7}):", line)]
        return max(indices, default=0) + 1 - first_index

    def _matrix(self, width: int, allocate: Allocator) -> NDArray[np.float32]:
        try:
            return allocate(self.n_rows, width)
        except DataError as error:
            raise DataError(f"{self.text.name}: {error}; is the feature index {width} a mistake?") from None

    def _parse(
        self,
        targets: NDArray[np.int64],
        first_index: int,
        features: NDArray[np.float32],
        ratings: NDArray[np.float64],
        n_jobs: int | None,
    ) -> tuple[int, Texts | None]:
        """Parse all rows; returns the width that was needed, and the documents."""
        has_query = self.has_query

        def parse(block: _Block, own_targets: NDArray[np.int64]) -> tuple[int, Texts | None]:
            content = self.text.lines(block.start, block.end)
            comments = np.empty(block.n_rows, np.int64)
            seen = np.zeros(features.shape[1] + 1, np.int64)
            parsed = letor.Parsed(features, ratings, comments, seen)
            row, widest = 0, 0
            while True:
                row, needed = letor.parse_rows(
                    content, block.line_starts, own_targets, has_query, first_index, row, block.n_rows, letor.POWERS,
                    parsed,
                )  # fmt: skip
                widest = max(widest, needed)
                if row == block.n_rows:
                    break
                rating, values = self.read_slowly(block, content, row, has_query, first_index)
                ratings[own_targets[row]] = rating
                comments[row] = _comment_start(content, int(block.line_starts[row]))
                for column, value in values.items():
                    widest = max(widest, column + 1)
                    if column < features.shape[1]:
                        features[own_targets[row], column] = value
                row += 1
            release_pages(features[own_targets.min() : own_targets.max() + 1])
            return widest, _documents(content, comments)

        edges = np.cumsum([block.n_rows for block in self.blocks])[:-1]
        parts = zip(self.blocks, np.split(targets, edges), strict=True)
        widths, documents = zip(*in_threads(parse, parts, n_jobs), strict=True)
        if all(texts is None for texts in documents):
            return max(widths), None
        return max(widths), Texts.concat(
            [
                _unnamed(block.n_rows) if texts is None else texts
                for texts, block in zip(documents, self.blocks, strict=True)
            ]
        )


def _id_text(field: bytes) -> str:
    """A query id as a text; numpy's texts drop trailing NUL characters."""
    return field.decode(errors="backslashreplace").replace("\0", "\\x00")


def _documents(content: NDArray[np.uint8], comments: NDArray[np.int64]) -> Texts | None:
    """The document ids in the comments of some rows, or None if no row has a comment."""
    if (comments < 0).all():
        return None
    ends = np.empty(len(comments), np.int64)
    blob = np.empty(letor.comment_spans(content, comments, ends), np.uint8)
    letor.gather(content, comments, ends, blob)
    return Texts(blob, ends)


def _unnamed(n: int) -> Texts:
    return Texts(np.empty(0, np.uint8), np.zeros(n, np.int64))


# The numbers of all text formats, case-insensitive; "nan" and "null" mean a missing value. ``float`` accepts more:
# 1_000, and the digits of all scripts.
NUMBER = r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|infinity)"
_NUMBER = re.compile(f"{NUMBER}|nan|null".encode(), re.IGNORECASE)


def _read_line(line: bytes, has_query: bool, first_index: int) -> tuple[float, dict[int, float]]:
    """The rating of a line and its values by column, by the rules of the format."""
    fields = line.replace(b"\r", b" ").replace(b"\t", b" ").split(b" ")
    fields = [field for field in fields if field]
    rating = _value(fields[0], "expected a rating as the first field")
    if not (np.isnan(rating) or 0 <= rating < np.inf):
        raise DataError(f"expected a finite rating that is not negative, got {_shown(fields[0])}")
    if has_query:
        second = fields[1] if len(fields) > 1 else b""
        if not second.startswith(b"qid:") or len(second) == 4:
            raise DataError(f"expected qid:<id> as the second field, got {_shown(second)}")
    values: dict[int, float] = {}
    for field in fields[1 + has_query :]:
        index, colon, value = field.partition(b":")
        if field.startswith(b"qid:"):
            raise DataError(f"expected qid:<id> as the second field, got it after a feature: {_shown(field)}")
        if not colon or not index.isdigit():
            raise DataError(f"expected <index>:<value>, got {_shown(field)}")
        if len(index) > letor.MAX_INDEX_DIGITS:
            raise DataError(f"expected a feature index of at most 7 digits, got {_shown(field)}")
        if int(index) < first_index:
            raise DataError(f"expected feature indices >= 1, got {_shown(field)}; or read with zero_based=True")
        column = int(index) - first_index
        if column in values:
            raise DataError(f"expected each feature once, got feature {int(index)} twice")
        with np.errstate(over="ignore"):
            single = np.float32(_value(value, f"expected a number after '{int(index)}:'"))
        if np.isinf(single):
            raise DataError(f"expected a value that float32 can hold, got {_shown(field)}")
        values[column] = float(single)
    return rating, values


def _value(field: bytes, expected: str) -> float:
    value = number_of(field)
    if value is None:
        raise DataError(f"{expected}, got {_shown(field)}")
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


def _comment_start(content: NDArray[np.uint8], start: int) -> int:
    end = start + len(_line(content, start))
    return end + 1 if content[end] == letor.HASH else -1


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
            while chunk := _unpacked(packed, path):
                plain.write(chunk)
        plain.flush()
    except OSError as error:
        raise DataError(
            f"{path}: expected enough space in {tempfile.gettempdir()} to decompress it, got: {error.strerror or error}"
        ) from None


def _unpacked(packed: gzip.GzipFile, path: Path) -> bytes:
    try:
        return packed.read(1 << 22)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: expected a whole gzip file, got a damaged or truncated one ({error})") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _group_sizes(path: Path, source: _Source) -> NDArray[np.int64]:
    """LightGBM's group sizes for a file without qid."""
    beside = Path(f"{path}.query")
    if not beside.exists():
        source.refuse(source.blocks[0], 0)
    sizes = _numbers(beside)
    if not (np.all(sizes == np.rint(sizes)) and np.all(sizes > 0)):
        raise DataError(f"{beside}: expected one positive group size per line")
    if sizes.sum() != source.n_rows:
        raise DataError(f"{beside}: expected sizes that sum to the {source.n_rows} rows of {path}, got {sizes.sum():g}")
    return sizes.astype(np.int64)


def _grouped_by_size(sizes: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64], None]:
    return np.arange(1, len(sizes) + 1), np.concatenate([[0], sizes.cumsum()]), None


def _weights(path: Path, n: int) -> NDArray[np.float64] | None:
    beside = Path(f"{path}.weight")
    return as_weights(_numbers(beside), str(beside), n) if beside.exists() else None


def _numbers(path: Path) -> NDArray[np.float64]:
    """One number per line."""
    if not path.is_file():  # opening a pipe would wait for a writer
        raise DataError(f"{path}: expected a file with one number per line, got something else")
    try:
        fields = path.read_bytes().split()
    except OSError as error:
        raise unreadable(path, error) from None
    return np.array([_value(field, f"{path}: expected a number") for field in fields])


def _written_ids(data: RankingDataset) -> list[str]:
    """The query ids as texts that can be read back."""
    ids = data.query_texts()
    bad = next((i for i in ids if not i or re.search(r"[\s#\0]", i)), None)
    if bad is not None:
        raise DataError(f"expected query ids without blanks and '#', which end the id in a text file, got {bad!r}")
    return ids


def _heads(data: RankingDataset, ids: list[str], rows: NDArray[np.int64]) -> Texts:
    queries = (data.offsets.searchsorted(rows, "right") - 1).tolist()
    ratings = data.ratings[rows].tolist()
    return Texts.of(f"{plain_number(r)} qid:{ids[q]}" for r, q in zip(ratings, queries, strict=True))


# Characters that end the id in "#docid = <id>", or would be taken for a part of the "=".
_ENDS_DOCUMENT = re.compile("^=|[\0- #]")


def _tails(data: RankingDataset, rows: NDArray[np.int64]) -> Texts:
    if data.document_texts is None:
        return _unnamed(len(rows))
    texts = list(data.document_texts.take(rows))
    bad = next((text for text in texts if _ENDS_DOCUMENT.search(text)), None)
    if bad is not None:
        raise DataError(
            f"expected document ids without blanks and '#', and without a leading '=', which text cannot hold, got"
            f" {bad!r}; CSV and Parquet can"
        )
    return Texts.of(f" #docid = {text}" if text else "" for text in texts)


def plain_number(value: float) -> str:
    """The shortest text of a number, without a decimal point if it is an integer.

    >>> plain_number(2.0), plain_number(0.1)
    ('2', '0.1')
    """
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
