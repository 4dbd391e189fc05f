"""LETOR/SVMLight text, and LightGBM's text with group sizes beside it, both ways."""

from __future__ import annotations

import gzip
import mmap
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

from tierank.dataset import RankingDataset, Texts
from tierank.errors import DataError
from tierank.files import replacing
from tierank.inputs import Room, as_weights, forget, group_runs, in_memory
from tierank.kernels import in_threads, letor, n_threads

# Bytes that one thread reads in one go; smaller parts share the work better, larger ones cost fewer calls.
_PART = 1 << 24
# Lines that are looked at to guess how wide the matrix is. A wrong guess costs a second reading, not a wrong number.
_GUESS = 200


def read_letor(
    path: Path,
    *,
    room: Room = in_memory,
    zero_based: bool | None = None,
    n_jobs: int | None = None,
) -> RankingDataset:
    """Read ``<rating> qid:<id> <index>:<value> ... # comment`` lines.

    Where the first line has no ``qid:`` and ``<path>.query`` lies beside the file, it is LightGBM's form: group sizes
    there, row weights in ``<path>.weight`` if that exists, and indices that count from 0. ``room`` may give more
    columns than are needed: they stay 0.
    """
    with _opened(path) as (texts, name):
        blocks = [block for text in texts if (block := _Block.of(text, n_jobs)).n_rows]
        if not blocks:
            raise DataError(f"{path}: expected at least one line '<rating> qid:<id> <index>:<value> ...', got none")
        source = _Source(name, blocks)
        sizes = None if source.has_query else _group_sizes(path, source)
        first_index = int(not (sizes is not None if zero_based is None else zero_based))
        query_ids, offsets, source_rows = source.grouped() if sizes is None else _grouped_by_size(sizes)
        targets = np.arange(source.n_rows)
        if source_rows is not None:
            targets = np.empty_like(source_rows)
            targets[source_rows] = np.arange(source.n_rows)
        features, ratings, documents = source.parsed(targets, first_index, room, n_jobs)
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
    """Write LETOR text that reads back as the same numbers; ``.gz`` at the end of the name compresses it."""
    ids = _written_ids(data)
    rows_at_once = max(1, (1 << 22) // (data.n_features * letor.FIELD_BYTES))
    with replacing(path) as fresh, created(fresh, path) as file:
        for start in range(0, data.n_documents, rows_at_once):
            rows = np.arange(start, min(start + rows_at_once, data.n_documents))
            chunk = data.features[start : start + len(rows)]
            head, tail = _heads(data, ids, rows), _tails(data, rows)
            room = len(rows) * (data.n_features * letor.FIELD_BYTES + 1) + len(head.blob) + len(tail.blob)
            out = np.empty(room, np.uint8)
            used = letor.format_rows(chunk, 1, head.blob, head.ends, tail.blob, tail.ends, out, letor.POWERS)
            file.write(out[:used].data)
            forget(chunk)


class _Runs(NamedTuple):
    """Runs of neighbouring rows with the same query id."""

    starts: NDArray[np.int64]
    ids: NDArray[np.int64]
    are_plain: bool  # whether the ids, as integers, say all


@dataclass(eq=False)
class _Block:
    """A span of text that ends with a line feed, and where its documents stand in it."""

    text: NDArray[np.uint8]
    line_starts: NDArray[np.int64]
    query_starts: NDArray[np.int64]
    comments: NDArray[np.int64]
    runs: _Runs

    @classmethod
    def of(cls, text: NDArray[np.uint8], n_jobs: int | None) -> _Block:
        def index(start: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64], _Runs]:
            n_lines = letor.count_lines(text, start, end)
            line_starts, query_starts = np.empty(n_lines, np.int64), np.empty(n_lines, np.int64)
            n = letor.index_lines(text, start, end, line_starts, query_starts)
            runs = _runs(text, query_starts[:n])
            forget(text[start:end])
            return line_starts[:n], query_starts[:n], runs

        parts = in_threads(index, pairwise(_cuts(text)), n_jobs)
        starts, queries = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        runs = _joined_runs([part[2] for part in parts], [len(part[0]) for part in parts])
        return cls(text, starts, queries, np.empty_like(starts), runs)

    @property
    def n_rows(self) -> int:
        return len(self.line_starts)

    def line(self, row: int) -> bytes:
        """The text of one row, without its comment."""
        return self._until(rb"[#\n]", int(self.line_starts[row]))

    def query_text(self, row: int) -> str:
        """The query id of one row."""
        field = self._until(rb"[ \t\r\n#]", int(self.query_starts[row]))
        return field.decode(errors="backslashreplace").replace("\0", "\\x00")  # numpy's texts drop zeros at their end

    def _until(self, stop: bytes, start: int) -> bytes:
        length = 256
        while True:  # fields and lines can be long: look further in growing steps
            seen = self.text[start : start + length].tobytes()
            if found := re.search(stop, seen):
                return seen[: found.start()]
            length *= 8


def _runs(text: NDArray[np.uint8], query_starts: NDArray[np.int64]) -> _Runs:
    if (query_starts < 0).any():  # rows without an id are refused later, or are LightGBM's, which have none
        return _Runs(np.empty(0, np.int64), np.empty(0, np.int64), True)
    starts, ids = np.empty_like(query_starts), np.empty_like(query_starts)
    n, are_plain = letor.query_runs(text, query_starts, starts, ids)
    return _Runs(starts[:n].copy(), ids[:n].copy(), are_plain)


def _joined_runs(parts: list[_Runs], n_rows: list[int]) -> _Runs:
    """The runs of spans that follow each other; a run across a border counts as two, which are joined later."""
    shifts = np.cumsum([0, *n_rows[:-1]])
    starts = np.concatenate([part.starts + shift for part, shift in zip(parts, shifts, strict=True)])
    return _Runs(starts, np.concatenate([part.ids for part in parts]), all(part.are_plain for part in parts))


class _Source:
    """All blocks of one file."""

    def __init__(self, name: str, blocks: list[_Block]) -> None:
        self.name, self.blocks = name, blocks
        self.n_rows = sum(block.n_rows for block in blocks)

    @property
    def has_query(self) -> bool:
        return bool(self.blocks[0].query_starts[0] >= 0)

    def where(self, block: _Block, row: int) -> str:
        """``file:line`` of a row."""
        lines = 1
        for other in self.blocks:
            if other is block:
                break
            lines += letor.count_lines(other.text, 0, len(other.text))
        return f"{self.name}:{lines + letor.count_lines(block.text, 0, int(block.line_starts[row]))}"

    def grouped(self) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64] | None]:
        for block in self.blocks:
            missing = block.query_starts < 0
            if missing.any():
                self.refuse(block, int(missing.argmax()))
        runs = _joined_runs([block.runs for block in self.blocks], [block.n_rows for block in self.blocks])
        ids: NDArray[Any] = runs.ids
        if not runs.are_plain:
            ids = np.array([b.query_text(row) for b in self.blocks for row in b.runs.starts.tolist()])
        return group_runs(ids, runs.starts, self.n_rows)

    def refuse(self, block: _Block, row: int) -> None:
        """Raise what is wrong with a row."""
        self.read_slowly(block, row, has_query=True, first_index=0)
        raise AssertionError("a line that was refused reads well")

    def read_slowly(self, block: _Block, row: int, has_query: bool, first_index: int) -> tuple[float, dict[int, float]]:
        """The rating of one row and its values by column; an error that says where and what is wrong."""
        try:
            return _read_line(block.line(row), has_query, first_index)
        except DataError as error:
            raise DataError(f"{self.where(block, row)}: {error}") from None

    def parsed(
        self, targets: NDArray[np.int64], first_index: int, room: Room, n_jobs: int | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float64], Texts | None]:
        """The features and ratings of all rows, row i at ``targets[i]``, and what comments call them, row i at i."""
        width = max(1, self._guess_width(first_index))
        while True:
            features, ratings = self._matrix(width, room), np.empty(self.n_rows)
            needed, documents = self._parse(targets, first_index, features, ratings, n_jobs)
            if needed <= features.shape[1]:
                return features, ratings, documents
            width = needed

    def _guess_width(self, first_index: int) -> int:
        block = self.blocks[0]
        lines = [block.line(row) for row in range(min(_GUESS, block.n_rows))]
        found = [int(index) for line in lines for index in re.findall(rb"[ \t](\d{1,7}):", line)]
        return max(found, default=0) + 1 - first_index

    def _matrix(self, width: int, room: Room) -> NDArray[np.float32]:
        try:
            return room(self.n_rows, width)
        except DataError as error:
            raise DataError(f"{self.name}: {error}; is the feature index {width} a mistake?") from None

    def _parse(
        self,
        targets: NDArray[np.int64],
        first_index: int,
        features: NDArray[np.float32],
        ratings: NDArray[np.float64],
        n_jobs: int | None,
    ) -> tuple[int, Texts | None]:
        """Fill in all rows; the width that was needed, and the documents."""
        has_query = self.has_query

        def parse(block: _Block, rows_before: int, start: int, end: int) -> tuple[int, Texts | None]:
            seen = np.zeros(features.shape[1] + 1, np.int64)
            own_targets = targets[rows_before : rows_before + block.n_rows]
            row, widest = start, 0
            while True:
                row, needed = letor.parse_rows(
                    block.text, block.line_starts, has_query, first_index, own_targets, row, end,
                    features, ratings, block.comments, seen, letor.POWERS,
                )  # fmt: skip
                widest = max(widest, needed)
                if row == end:
                    break
                rating, values = self.read_slowly(block, row, has_query, first_index)
                ratings[own_targets[row]] = rating
                block.comments[row] = _comment_start(block, row)
                for column, value in values.items():
                    widest = max(widest, column + 1)
                    if column < features.shape[1]:
                        features[own_targets[row], column] = value
                row += 1
            documents = _documents(block.text, block.comments[start:end])
            filled = own_targets[start:end]
            forget(features[filled.min() : filled.max() + 1])
            forget(block.text[block.line_starts[start] : block.line_starts[end - 1]])
            return widest, documents

        parts, before = [], 0
        for block in self.blocks:
            n_parts = max(1, len(block.text) // _PART, n_threads(n_jobs) if len(block.text) > 1 << 20 else 1)
            cuts = np.linspace(0, block.n_rows, n_parts + 1).astype(int).tolist()
            parts += [(block, before, a, b) for a, b in pairwise(cuts) if a < b]
            before += block.n_rows
        widths, documents = zip(*in_threads(parse, parts, n_jobs), strict=True)
        if all(texts is None for texts in documents):
            return max(widths), None
        return max(widths), Texts.concat(
            [_unnamed(b - a) if texts is None else texts for texts, (_, _, a, b) in zip(documents, parts, strict=True)]
        )


def _documents(text: NDArray[np.uint8], comments: NDArray[np.int64]) -> Texts | None:
    """What the comments of some rows call the documents, or None where no row has a comment."""
    if (comments < 0).all():
        return None
    ends = np.empty(len(comments), np.int64)
    blob = np.empty(letor.comment_spans(text, comments, ends), np.uint8)
    letor.gather(text, comments, ends, blob)
    return Texts(blob, ends)


def _unnamed(n: int) -> Texts:
    return Texts(np.empty(0, np.uint8), np.zeros(n, np.int64))


_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|nan|null", re.IGNORECASE)


def _read_line(line: bytes, has_query: bool, first_index: int) -> tuple[float, dict[int, float]]:
    """The rating of a line and its values by column, by the plain rules of the format."""
    fields = line.replace(b"\r", b" ").replace(b"\t", b" ").split(b" ")
    fields = [field for field in fields if field]
    rating = _value(fields[0], "expected a rating as the first field")
    if not 0 <= rating < np.inf:
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
            raise DataError(f"expected feature indices from 1 on, got {_shown(field)}; or read with zero_based=True")
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
    if not _NUMBER.fullmatch(field) and field.lower().strip(b"+-") not in (b"inf", b"infinity"):
        raise DataError(f"{expected}, got {_shown(field)}")
    return np.nan if field.lower() in (b"null", b"nan") else float(field)


def _shown(field: bytes) -> str:
    text = field[:60].decode(errors="backslashreplace")
    return f"'{text}{'...' if len(field) > 60 else ''}'" if field else "nothing"


def _comment_start(block: _Block, row: int) -> int:
    start = int(block.line_starts[row])
    end = start + len(block.line(row))
    return end + 1 if block.text[end] == letor.HASH else -1


def _cuts(text: NDArray[np.uint8]) -> list[int]:
    """Places that cut the text into parts that end with a line feed."""
    cuts = [0]
    while cuts[-1] < len(text):
        place = min(cuts[-1] + _PART, len(text)) - 1
        while text[place] != letor.LINE_FEED:
            step = text[place : place + (1 << 16)]
            place += int(np.argmax(step == letor.LINE_FEED)) if (step == letor.LINE_FEED).any() else len(step)
        cuts.append(place + 1)
    return cuts


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[NDArray[np.uint8]], str]]:
    """The text of a file as blocks that end with a line feed; the file is mapped, not copied."""
    with path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            with tempfile.TemporaryFile() as plain:
                _unpack(path, plain)
                yield _blocks(plain), str(path)
        else:
            yield _blocks(file), str(path)


def _blocks(file: IO[bytes]) -> list[NDArray[np.uint8]]:
    size = os.fstat(file.fileno()).st_size
    if not size:
        return []
    text = np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8)
    if text[:3].tobytes() == b"\xef\xbb\xbf":  # a byte order mark that some editors leave
        text = text[3:]
    last = len(text)
    while last and text[last - 1] != letor.LINE_FEED:
        last -= 1
    tail = np.append(text[last:], np.uint8(letor.LINE_FEED))  # a last line without line feed gets one in a copy
    return [text[:last], tail] if last else [tail]


def _unpack(path: Path, plain: IO[bytes]) -> None:
    try:
        with gzip.open(path, "rb") as packed:
            while chunk := packed.read(1 << 22):
                plain.write(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: expected a whole gzip file, got a damaged or truncated one ({error})") from None
    plain.flush()


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
    fields = path.read_bytes().split()
    return np.array([_value(field, f"{path}: expected a number") for field in fields])


def created(fresh: Path, path: Path) -> Any:
    """A new file for bytes that is to take the name ``path``: compressed where that ends in ``.gz``."""
    return gzip.open(fresh, "wb", compresslevel=6) if path.suffix == ".gz" else fresh.open("wb")


def _written_ids(data: RankingDataset) -> list[str]:
    """The query ids as text, if they can be read back."""
    ids = data.query_texts()
    bad = next((i for i in ids if not i or re.search(r"[\s#\0]", i)), None)
    if bad is not None:
        raise DataError(f"expected query ids without blanks and '#', which end the id in a text file, got {bad!r}")
    return ids


def _heads(data: RankingDataset, ids: list[str], rows: NDArray[np.int64]) -> Texts:
    queries = (data.offsets.searchsorted(rows, "right") - 1).tolist()
    ratings = data.ratings[rows].tolist()
    return Texts.of(f"{plain_number(r)} qid:{ids[q]}" for r, q in zip(ratings, queries, strict=True))


# What a reader of "#docid = <id>" takes for the end of the id, or for a part of the sign before it.
_ENDS_DOCUMENT = re.compile("^=|[\0- #]")


def _tails(data: RankingDataset, rows: NDArray[np.int64]) -> Texts:
    if data.document_texts is None:
        return _unnamed(len(rows))
    texts = list(data.document_texts.take(rows))
    bad = next((text for text in texts if _ENDS_DOCUMENT.search(text)), None)
    if bad is not None:
        raise DataError(
            f"expected document ids without blanks and '#', and without '=' in front, which text cannot hold, got"
            f" {bad!r}; CSV and Parquet can"
        )
    return Texts.of(f" #docid = {text}" if text else "" for text in texts)


def plain_number(value: float) -> str:
    """The shortest text of a number, without a point where it is whole.

    >>> plain_number(2.0), plain_number(0.1)
    ('2', '0.1')
    """
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
