"""Reads the documents of a request: features in the order of the model, or a refusal that says where.

There are two readers for each form. The fast one takes typed values from ``wire``, which are already checked, except
counts; its functions return None if they are not sure. The slow one takes values of any type from plain JSON, and
checks every one of them.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np
from msgspec import UNSET, Raw
from msgspec.structs import astuple
from numpy.typing import NDArray

from tierank.columns import Plan
from tierank.dataset import RankingDataset
from tierank.encoding import as_features
from tierank.errors import DataError, near_name
from tierank.kernels.json_rows import END, POWERS, read_rows
from tierank.serve.limits import Limits
from tierank.serve.outline import Piece, Span, read_json
from tierank.serve.refusals import Refusal, check_keys, cut, shown, some
from tierank.serve.wire import NoWire, Wire
from tierank.tables import Table

Matrix = NDArray[np.float32]
# Names the place of the value of document i and feature j in the request.
Place = Callable[[int, int], str]

_NUMBERS = {float, int, type(None)}


class Features:
    """The values that a model expects of a document: their number, their names, and whether some may be left out.

    Values are features, or texts, dates and vectors that ``plan`` computes features from.
    """

    def __init__(self, n: int, names: Sequence[str] | None, has_missing: bool, plan: Plan | None = None) -> None:
        self.plan = plan or Plan()
        self.made = None if names is None else tuple(names)
        self.n_made, self.has_missing = n, has_missing
        self.names = None if self.made is None else tuple(self.plan.sources(self.made))
        self.n = n = self.n_made if self.names is None else len(self.names)
        self.wire: Wire | NoWire = NoWire() if self.plan.kinds else Wire(self.names, has_missing)
        self._places = {name: place for place, name in enumerate(self.names or ())}
        self._pick: Callable[[Mapping[str, Any]], Sequence[Any]] | None = None
        if self.names is not None:
            one = self.names[0]
            self._pick = (lambda given: (given[one],)) if n == 1 else itemgetter(*self.names)

    @property
    def kinds(self) -> dict[str, str]:
        """What clients send for each column: a number, or the kind of text, date or vector."""
        raw = self.plan.raw_kinds(self.made or ())
        return {name: "number" if kind is None else kind.NAME for name, kind in raw.items()}

    def row(self, given: Any, where: str) -> Sequence[Any]:
        """The values of one document in the order of the model, from an object by name or from a list."""
        if type(given) is list:
            if len(given) != self.n:
                raise Refusal(422, where, f"{self.n} numbers", f"{len(given)}", self.how)
            return given
        if type(given) is not dict:
            raise Refusal(422, where, "features as an object by name or as a list", shown(given), self.how)
        if self._pick is None:
            raise Refusal(422, where, f"a list of {self.n} numbers", "an object", "this model has no feature names")
        if len(given) == self.n:
            try:
                return self._pick(given)
            except KeyError:
                pass  # the right number of names, but an unknown one among them
        self.check_names(given, where)
        return [given.get(name) for name in self.names or ()]

    def check_names(self, given: Collection[str], where: str) -> None:
        """Refuse an unknown name, or a missing one that is required."""
        unknown = [name for name in given if name not in self._places]
        if unknown:
            raise Refusal(422, where, "names of features of the model", some(unknown), self._did_you_mean(unknown[0]))
        missing = [name for name in self.names or () if name not in given]
        if missing and not self.has_missing:
            raise Refusal(
                422,
                where,
                f"all {self.n} features, as the model saw no missing values in training",
                f"none for {some(missing)}",
                "give each a number, or null to treat it as the model does (mostly as 0)",
            )

    def matrix(self, rows: list[Sequence[Any]], width: int, place: Place) -> Matrix:
        """Rows of values, each of this width, as float32."""
        return _as_matrix(rows, width, place) if not self.plan.kinds else self._encoded(rows, place)

    def _encoded(self, rows: list[Sequence[Any]], place: Place) -> Matrix:
        """The features of the model, from rows of all values, including texts."""
        made, names = self.made or (), self.names or ()
        if not rows:
            return np.zeros((0, self.n_made), np.float32)
        table = Table({name: [row[j] for row in rows] for j, name in enumerate(names)})
        try:
            features, raw, kinds = as_features(table, kinds=self.plan.raw_kinds(made))
            data = RankingDataset(features, feature_names=raw).replace(kinds=kinds)
            data = self.plan.expand(data)
            places = [(data.feature_names or ()).index(name) for name in made]
            return self.plan.apply(data.with_features(data.features[:, places], made)).features
        except DataError as error:
            raise Refusal(422, place(0, 0).partition("[")[0], "values as in training", str(error), self.how) from None

    def filled(self, rows: list[Any], names: Any, where: str) -> list[Sequence[Any]]:
        """Rows of all values, from rows of the named values; the others are missing."""
        self.check_columns(names, where)
        places = {name: place for place, name in enumerate(names)}
        return [[row[places[name]] if name in places else None for name in self.names or ()] for row in rows]

    def widened(self, given: Matrix, names: Any, where: str) -> Matrix:
        """The columns of the model, from the named columns; the others are missing."""
        self.check_columns(names, where)
        matrix = np.full((len(given), self.n), np.nan, np.float32)
        matrix[:, [self._places[name] for name in names]] = given
        return matrix

    def check_columns(self, names: Any, where: str) -> None:
        """Refuse anything but names of columns."""
        if self.names is None:
            raise Refusal(422, where, "none", shown(names), "this model has no feature names: leave it out")
        if type(names) is not list or not all(type(name) is str for name in names) or len(set(names)) < len(names):
            raise Refusal(422, where, "a list of texts, each once", shown(names), "give a name for each column")
        self.check_names(dict.fromkeys(names), where)

    @property
    def how(self) -> str:
        """How to send the features of a document, for messages."""
        if self.plan.kinds:
            return "give values by name, as in the columns of the training data; null if one is missing"
        named = ", or an object by name" if self.names is not None else ""
        return f"give {self.n} numbers in the order that GET /models lists{named}; null if a value is missing"

    def _did_you_mean(self, unknown: str) -> str:
        near = near_name(unknown, self.names or ())
        return f"did you mean {near!r}?" if near else "GET /models lists the names"


@dataclass(frozen=True)
class Documents:
    """The documents of one query: their ids (None: by index) and features, one row each."""

    ids: list[Any] | None
    features: Matrix

    def id_of(self, row: int) -> Any:
        """The id of a document as received, or its index from 0."""
        return row if self.ids is None else self.ids[row]


def warm_up() -> None:
    """Compile the functions that read bodies, so that no request has to wait for that."""
    Span(bytearray(b"[]"), 0, 2).elements(1)
    _numbers(b"[0]," + END, 1, 1)


# Typed values


def typed_documents(given: Any, features: Features, limits: Limits) -> Documents | None:
    """The documents of a typed request or query; None if the slow reader has to read them."""
    if (given.documents is UNSET) == (given.features is UNSET):
        return None
    if given.features is UNSET:
        is_wrong = given.ids is not UNSET or given.names is not UNSET or len(given.documents) > limits.max_documents
        return None if is_wrong else _typed_objects(given.documents, features, 0)
    ids, names = (None if value is UNSET else value for value in (given.ids, given.names))
    width = features.n if names is None else len(names)
    if not width or (type(given.features) is list and len(given.features) > limits.max_documents):
        return None
    try:
        if type(given.features) is str:
            matrix: Matrix | None = _decoded(given.features, width, "features")
        elif type(given.features) is Raw:
            matrix = None if features.plan.kinds else _raw_matrix(given.features, width, limits)
        else:
            matrix = _typed_matrix(given.features, width)
        if matrix is None or len(matrix) > limits.max_documents or (ids is not None and len(ids) != len(matrix)):
            return None
        return Documents(ids, matrix if names is None else features.widened(matrix, names, "names"))
    except Refusal:  # the slow reader may find another error first, and reports errors in a fixed order
        return None


def _typed_objects(documents: list[Any], features: Features, first: int) -> Documents | None:
    if documents and type(documents[0].features) is Raw:
        texts = [one.features for one in documents]
        matrix = None if features.plan.kinds else _numbers(b",".join([*texts, END]), len(texts), features.n)
    else:
        rows = [one.features if type(one.features) is tuple else astuple(one.features) for one in documents]
        matrix = _typed_matrix(rows, features.n)
    if matrix is None:
        return None
    return Documents([place if one.id is UNSET else one.id for place, one in enumerate(documents, first)], matrix)


def _typed_matrix(rows: list[tuple[float | None, ...]], width: int) -> Matrix | None:
    if not rows:
        return np.zeros((0, width), np.float32)
    if set(map(len, rows)) != {width}:
        return None
    with np.errstate(over="ignore"):
        matrix = np.array(rows, np.float64).astype(np.float32)
    return None if np.isinf(matrix).any() else matrix


def _raw_matrix(given: Raw, width: int, limits: Limits) -> Matrix | None:
    """The rows of a list of lists of numbers, or of base64, from its text."""
    text = bytes(given)
    if text.startswith(b'"'):
        return _decoded(text[1:-1].decode("latin-1"), width, "features")  # ``Raw`` may hold bytes that are not UTF-8
    n_rows = text.count(b"[") - 1
    if not 0 < n_rows <= limits.max_documents:
        return None
    return _numbers(text[1:-1] + b"," + END, n_rows, width)


def _numbers(text: bytes, n_rows: int, width: int) -> Matrix | None:
    """Rows of numbers, each followed by a comma; None if the text is anything else or a number is doubtful."""
    # A shorter text cannot hold that many numbers: a claimed size alone does not allocate a matrix.
    if len(text) < 2 * n_rows * width:
        return None
    matrix = np.empty((n_rows, width), np.float32)
    return matrix if read_rows(np.frombuffer(text, np.uint8), POWERS, matrix) else None


# Values of any type


def read_documents(given: Mapping[str, Any], features: Features, limits: Limits, where: str = "") -> Documents:
    """The documents of one query: a list of objects, or ids and features apart."""
    if ("documents" in given) == ("features" in given):
        raise Refusal(
            422,
            f"{where}documents",
            "either documents, or features (with ids) as one matrix",
            "both" if "documents" in given else "neither",
            'send {"documents": [{"id": ..., "features": {...}}]}',
        )
    if "documents" not in given:
        return _read_matrix(given, features, limits, where)
    extra = next((name for name in ("ids", "names") if name in given), None)
    if extra is not None:
        raise Refusal(422, f"{where}{extra}", "only with a matrix of features", "it", "give each document its id")
    return _read_objects(given["documents"], features, limits, f"{where}documents")


def _read_objects(documents: Any, features: Features, limits: Limits, where: str) -> Documents:
    if is_long_list(documents):
        return _read_long_objects(documents, features, limits, where)
    if type(documents) is not list:
        raise Refusal(422, where, "a list of objects", shown(documents), 'send [{"id": ..., "features": ...}]')
    check_count(where, len(documents), limits)
    return _objects(documents, features, where, 0)


def _objects(documents: list[Any], features: Features, where: str, first: int) -> Documents:
    """The documents of a list; ``first`` is the index of its first element."""
    known, rows, ids = {"id", "features"}, [], []
    for number, document in enumerate(documents, first):
        if type(document) is not dict or "features" not in document:
            got = "no features" if type(document) is dict else shown(document)
            raise Refusal(
                422, f"{where}[{number}]", "an object with features", got, 'send {"id": ..., "features": ...}'
            )
        if not document.keys() <= known:
            check_keys(document, ("id", "features"), f"{where}[{number}]")
        rows.append(features.row(document["features"], f"{where}[{number}].features"))
        ids.append(document.get("id", number))

    def place(i: int, j: int) -> str:
        by_name = features.names is not None and type(documents[i]["features"]) is dict
        column = json.dumps(features.names[j]) if by_name and features.names else j
        return f"{where}[{first + i}].features[{column}]"

    return Documents(_checked_ids(ids, lambda i: f"{where}[{first + i}].id"), features.matrix(rows, features.n, place))


def _read_matrix(given: Mapping[str, Any], features: Features, limits: Limits, where: str) -> Documents:
    """Features as one matrix: a list of rows, or the bytes of float32 numbers in base64."""
    ids, names, values = given.get("ids"), _all_names(given.get("names"), features, where), given["features"]
    if ids is not None and type(ids) is not list and not is_long_list(ids):
        raise Refusal(422, f"{where}ids", "a list", shown(ids), "give an id for each row, or leave ids out")
    width = len(names) if type(names) is list else features.n
    if features.plan.kinds:
        matrix = _read_values(values, names, features, limits, where)
        names = None
    elif type(values) is str:
        matrix = _decoded(values, width, f"{where}features")
    elif is_long_list(values):
        matrix = _read_long_rows(values, width, features, limits, f"{where}features")
    elif type(values) is list:
        check_count(f"{where}features", len(values), limits)
        matrix = _rows(values, width, f"{where}features", 0)
    else:
        raise Refusal(422, f"{where}features", "a list of rows, or base64", shown(values), "give a row per document")
    check_count(f"{where}features", len(matrix), limits)
    if isinstance(ids, Span):
        ids = _read_long_ids(ids, features, limits, f"{where}ids")
    elif ids is not None:
        ids = _checked_ids(ids, lambda i: f"{where}ids[{i}]") if len(ids) == len(matrix) else ids
    if ids is not None and len(ids) != len(matrix):
        raise Refusal(422, f"{where}ids", f"{len(matrix)} ids, one per row", f"{len(ids)}", "give one for each row")
    if names is not None:
        matrix = features.widened(matrix, names, f"{where}names")
    return Documents(ids, matrix)


def _read_values(values: Any, names: Any, features: Features, limits: Limits, where: str) -> Matrix:
    """Rows of values, including texts, for a model that computes features from them."""
    if is_long_list(values):
        pieces = pieces_of(values, limits, f"{where}features")
        values = list(chain.from_iterable(read_piece(piece, f"{where}features") for piece in pieces))
    if type(values) is not list:
        raise Refusal(422, f"{where}features", "a list of rows", shown(values), features.how)
    check_count(f"{where}features", len(values), limits)
    width = features.n if type(names) is not list else len(names)
    _check_rows(values, width, f"{where}features", 0)
    rows = values if names is None else features.filled(values, names, f"{where}names")
    return features.matrix(rows, features.n, lambda i, j: f"{where}features[{i}][{j}]")


def _check_rows(values: list[Any], width: int, where: str, first: int) -> None:
    for i, row in enumerate(values, first):
        if type(row) is not list or len(row) != width:
            raise _wrong_row(f"{where}[{i}]", width, f"{len(row)}" if type(row) is list else shown(row))


def _rows(values: list[Any], width: int, where: str, first: int) -> Matrix:
    """The rows of a list; ``first`` is the index of its first element."""
    _check_rows(values, width, where, first)
    return _as_matrix(values, width, lambda i, j: f"{where}[{first + i}][{j}]")


def _wrong_row(where: str, width: int, got: str) -> Refusal:
    fix = "give each document a row with a number for each feature of the model (or of names)"
    return Refusal(422, where, f"a list of {width} numbers", got, fix)


# Long lists, some elements at a time


def is_long_list(value: Any) -> bool:
    """Whether it is a list of a large body that is not decoded yet."""
    return isinstance(value, Span) and value.is_list


def pieces_of(span: Span, limits: Limits, where: str) -> Iterator[Piece]:
    """The elements of a long list, some at a time. Refuses more than a request may have."""
    elements = span.elements(limits.max_documents)
    if elements is None:
        raise _too_many(where, "more", limits)
    return span.pieces(elements)


def _read_long_objects(span: Span, features: Features, limits: Limits, where: str) -> Documents:
    ids: list[Any] = []
    parts = [np.zeros((0, features.n_made), np.float32)]
    for piece in pieces_of(span, limits, where):
        if piece.n_commas > max(features.n, features.n_made):
            raise Refusal(
                422, f"{where}[{piece.first}]", f"an id and {features.n} features", "more values", features.how
            )
        typed = features.wire.documents(piece.text)
        documents = None if typed is None else _typed_objects(typed, features, piece.first)
        if documents is None:
            documents = _objects(read_piece(piece, where), features, where, piece.first)
        ids += documents.ids or ()
        parts.append(documents.features)
    return Documents(ids, np.concatenate(parts))


def _read_long_rows(span: Span, width: int, features: Features, limits: Limits, where: str) -> Matrix:
    parts = [np.zeros((0, width), np.float32)]
    for piece in pieces_of(span, limits, where):
        if piece.n_commas >= width:
            raise _wrong_row(f"{where}[{piece.first}]", width, "more")
        typed = features.wire.rows(piece.text)
        matrix = None if typed is None else _typed_matrix(typed, width)
        parts.append(_rows(read_piece(piece, where), width, where, piece.first) if matrix is None else matrix)
    return np.concatenate(parts)


def _read_long_ids(span: Span, features: Features, limits: Limits, where: str) -> list[Any]:
    ids: list[Any] = []
    for piece in pieces_of(span, limits, where):
        if piece.n_commas:
            raise _wrong_id(f"{where}[{piece.first}]", "a long list or object")
        typed = features.wire.ids(piece.text)
        ids += _checked_ids(read_piece(piece, where), _numbered(where, piece.first)) if typed is None else typed
    return ids


def _numbered(where: str, first: int) -> Callable[[int], str]:
    return lambda i: f"{where}[{first + i}]"


def _all_names(names: Any, features: Features, where: str) -> Any:
    """The names of columns, decoded from a long list unless there are too many."""
    if is_long_list(names):
        elements = names.elements(features.n)
        if elements is None:
            raise Refusal(422, f"{where}names", f"at most {features.n} names", "more", "GET /models lists the names")
        names = list(chain.from_iterable(read_piece(piece, f"{where}names") for piece in names.pieces(elements)))
    if names == []:
        raise Refusal(422, f"{where}names", "a list of texts, each once", shown(names), "give a name for each column")
    return names


def read_piece(piece: Piece, where: str) -> list[Any]:
    """The elements of a piece, decoded."""
    elements: list[Any] = read_json(piece.text, f"body, {where} from [{piece.first}] on")
    return elements


# Values


def _as_matrix(rows: list[Sequence[Any]], width: int, place: Place) -> Matrix:
    """Rows of numbers and nulls as float32, all of this width."""
    if not rows:
        return np.zeros((0, width), np.float32)
    if not set(map(type, chain.from_iterable(rows))) <= _NUMBERS:
        _refuse_value(rows, place, lambda value: type(value) not in _NUMBERS, "a number, or null where it is missing")
    try:
        with np.errstate(over="ignore"):
            matrix = np.array(rows, np.float64).astype(np.float32)
        is_finite = not np.isinf(matrix).any()
    except OverflowError:  # an integer with hundreds of digits
        is_finite = False
    if not is_finite:
        _refuse_value(rows, place, _is_beyond, "a number that float32 can hold")
    return matrix


def _decoded(text: str, width: int, where: str) -> Matrix:
    """The rows of little-endian float32 numbers in base64; NaN where a value is missing."""
    expected = f"base64 of float32 numbers, {width} for each document"
    fix = 'in Python: base64.b64encode(X.astype("<f4").tobytes()).decode()'
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        raise Refusal(422, where, expected, f"{cut(text)!r}", fix) from None
    if len(content) % (4 * width):
        raise Refusal(422, where, expected, f"{len(content)} bytes, which is not a multiple of {4 * width}", fix)
    matrix = np.frombuffer(content, "<f4").astype(np.float32).reshape(-1, width)
    if np.isinf(matrix).any():
        i, j = (int(place) for place in np.argwhere(np.isinf(matrix))[0])
        raise Refusal(422, f"{where}, row {i}, column {j}", "a finite number", "infinity", "clip it, or give NaN")
    return matrix


def _refuse_value(rows: list[Sequence[Any]], place: Place, is_wrong: Callable[[Any], bool], expected: str) -> NoReturn:
    """The refusal for the first invalid value."""
    i, j, value = next((i, j, value) for i, row in enumerate(rows) for j, value in enumerate(row) if is_wrong(value))
    fix = "send 1 for true and 0 for false" if type(value) is bool else "encode texts as numbers"
    if type(value) in _NUMBERS:
        fix = "clip it, or take its logarithm, here and in training"
    raise Refusal(422, place(i, j), expected, shown(value), fix)


def _is_beyond(value: Any) -> bool:
    """Whether a number becomes infinite as float32."""
    try:
        with np.errstate(over="ignore"):
            return value is not None and math.isinf(np.float32(value))
    except OverflowError:
        return True


def _checked_ids(ids: list[Any], place: Callable[[int], str]) -> list[Any]:
    """The ids, if all are texts or numbers."""
    if set(map(type, ids)) <= {str, int}:
        return ids
    for i, given in enumerate(ids):
        check_id(given, place(i))
    return ids


def check_id(given: Any, where: str) -> None:
    """Refuse an id that is neither a text nor a number."""
    if type(given) not in (str, int, float) or (type(given) is float and not math.isfinite(given)):
        raise _wrong_id(where, shown(given))


def _wrong_id(where: str, got: str) -> Refusal:
    return Refusal(422, where, "a text or a number", got, "leave ids out to use indices from 0")


def check_count(where: str, n: int, limits: Limits) -> None:
    """Refuse more documents or queries than a request may have."""
    if n > limits.max_documents:
        raise _too_many(where, f"{n:,}", limits)


def _too_many(where: str, got: str, limits: Limits) -> Refusal:
    return Refusal(
        413,
        where,
        f"at most {limits.max_documents:,} documents",
        got,
        "send fewer at once, or raise the limit max_documents of the server",
    )
