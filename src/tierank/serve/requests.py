"""Reads the body of a request, or refuses it with where, expected, got and the fix.

msgspec decodes and checks a body in one step, but for the features, which are left as text. A compiled loop reads those
that are lists of plain numbers; all others are decoded some documents at a time, so that other threads get their turn.
If msgspec refuses a body, its message is translated; small bodies are then decoded again by ``json``, which says more,
and accepts the rare texts that msgspec does not (lone surrogates).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, NoReturn, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType
from numpy.typing import NDArray

from tierank.data.dataset import RankingDataset
from tierank.data.encoder import ColumnEncoder
from tierank.data.tables import RequestTable, as_features
from tierank.errors import DataError, near_name
from tierank.kernels.json import END, POWERS, read_rows
from tierank.serve import LARGE, Limits
from tierank.serve.admission import Refusal, cut, shown
from tierank.workers import check_deadline

if TYPE_CHECKING:
    from tierank.serve.served_models import Version

Matrix = NDArray[np.float32]
# Maps the index of a document to the place of its features in the request.
Place = Callable[[int], str]
# Maps the name in a request (None: none is given) to the name of a model and its current version.
Choose = Callable[[Any], "tuple[str, Version]"]

# The most rows explained in one request: an explanation takes a hundred times as long as a score.
MOST_EXPLAINED = 100
# Documents that are decoded at once, and names that a message lists.
_AT_ONCE, _LISTED = 64, 5
# The largest double, and the least double that is infinite as float32.
_MOST, _BEYOND_FLOAT32 = 1.7976931348623157e308, 3.4028235677973366e38


# The form of a request. F is ``Raw`` if features are still text, and ``Any`` if they are decoded.

F = TypeVar("F")
_Id = str | int | Annotated[float, msgspec.Meta(ge=-_MOST, le=_MOST)]


class _Document(msgspec.Struct, Generic[F], forbid_unknown_fields=True):
    features: F
    id: _Id | UnsetType = UNSET


class _Documents(msgspec.Struct, Generic[F], forbid_unknown_fields=True):
    documents: list[_Document[F]] | UnsetType = UNSET
    ids: list[_Id] | None = None
    names: list[str] | None = None
    features: F | UnsetType = UNSET


class _Rank(_Documents[F], Generic[F]):
    model: str | UnsetType = UNSET
    k: Annotated[int, msgspec.Meta(ge=1)] | None = None
    explain: bool = False


class _Query(_Documents[F], Generic[F]):
    id: _Id | UnsetType = UNSET


class _Score(msgspec.Struct, Generic[F], forbid_unknown_fields=True, kw_only=True):
    model: str | UnsetType = UNSET
    queries: list[_Query[F]]


# What is expected at the places of a request, and the fix; by the name of the last part, or [] for its elements.
_EXPECTED = {
    "body": ("an object", 'send {"documents": [...]}'),
    "queries": ("a list of objects", 'send {"queries": [{"documents": [...]}]}'),
    "queries[]": ("an object", 'send {"id": ..., "documents": [...]}'),
    "documents": ("a list of objects", 'send [{"id": ..., "features": ...}]'),
    "documents[]": ("an object with features", 'send {"id": ..., "features": ...}'),
    "id": ("a text or a number", "leave ids out to use indices from 0"),
    "ids": ("a list", "give an id for each row, or leave ids out"),
    "ids[]": ("a text or a number", "leave ids out to use indices from 0"),
    "names": ("a list of texts, each once", "give a name for each column"),
    "names[]": ("a text", "give a name for each column"),
    "k": ("an integer >= 1", "leave k out to get all documents"),
    "explain": ("true or false", "leave it out for false"),
}


@dataclass(frozen=True)
class Documents:
    """The documents of one query: their ids (None: by index) and features, one row each."""

    ids: list[Any] | None
    features: Matrix

    def id_of(self, row: int) -> Any:
        """The id of a document as received, or its index from 0."""
        return row if self.ids is None else self.ids[row]


@dataclass(frozen=True)
class Rank:
    """A list to rank: the model, the number of results (None: all), whether to explain, and the documents."""

    model: str
    version: Version
    k: int | None
    explain: bool
    documents: Documents


@dataclass(frozen=True)
class Score:
    """Queries to score: the model, their ids (None if they have none), and the documents of each."""

    model: str
    version: Version
    ids: list[Any]
    lists: list[Documents]


def read_rank(body: bytearray, choose: Choose, limits: Limits) -> Rank:
    """Read a request to ``/rank``."""
    given = _decoded(body, _RANK, _Rank[Any], choose)
    model, version = choose(given.model)
    if given.explain and (given.k is None or given.k > MOST_EXPLAINED):
        expected = f"1 to {MOST_EXPLAINED} together with explain"
        raise Refusal(422, "k", expected, shown(given.k), "ask for fewer documents")
    return Rank(model, version, given.k, given.explain, _documents_of(given, version.features, limits, ""))


def read_score(body: bytearray, choose: Choose, limits: Limits) -> Score:
    """Read a request to ``/score``."""
    given = _decoded(body, _SCORE, _Score[Any], choose)
    model, version = choose(given.model)
    _check_count("queries", len(given.queries), limits)
    ids, lists, total = [], [], 0
    for number, query in enumerate(given.queries):
        ids.append(None if query.id is UNSET else query.id)
        lists.append(_documents_of(query, version.features, limits, f"queries[{number}]."))
        total += len(lists[-1].features)
        _check_count("queries", total, limits)
    return Score(model, version, ids, lists)


_RANK, _SCORE = msgspec.json.Decoder(_Rank[Raw]), msgspec.json.Decoder(_Score[Raw])
# What a decoder raises for a text that it does not accept.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def _decoded(body: bytearray, decoder: msgspec.json.Decoder[Any], form: Any, choose: Choose) -> Any:
    """The request in a body."""
    try:
        return decoder.decode(body)
    except _UNREADABLE as error:
        if len(body) > LARGE:  # decoding it again would stop all other threads for too long
            raise _explained(error, form, choose) from None
    content = _read_json(body, "body")
    try:
        return msgspec.convert(content, form)
    except msgspec.ValidationError as error:
        raise _explained(error, form, choose, content) from None
    except UnicodeEncodeError:  # in place of something that is no text
        raise Refusal(422, "body", "text in Unicode", "a lone surrogate", "correct the text") from None


def _explained(error: Exception, form: Any, choose: Choose, content: Any = ...) -> Refusal:
    """The refusal for what msgspec does not accept; ``content`` is the decoded body, if it is small."""
    said, _, path = str(error).partition(" - at `$")
    names = re.findall(r"`([^`]*)`", said)
    if not isinstance(error, msgspec.ValidationError):
        byte = re.search(r"byte (\d+)", said)
        return Refusal(400, f"body, byte {byte[1]}" if byte else "body", "JSON", said, "correct the JSON")
    where = path.strip(".`") or "body"
    kind = re.sub(r"\[\d+\]", "[]", where.rpartition(".")[2])
    if "unknown field" in said:
        known = msgspec.structs.fields({"documents[]": _Document, "queries[]": _Query}.get(kind, form))
        return _unknown_name(names[0], [one.name for one in known], where)
    if content is ...:
        got = names[-1]
    else:
        for step in re.findall(r"\w+", where) if path else ():
            content = content[int(step)] if isinstance(content, list) else content.get(step)
        got = shown(content)
    if kind == "model":
        choose(None if content is ... else content)
    if "missing required" in said:
        where, kind, got = (where, kind, f"no {names[0]}") if path else (names[0], names[0], "null")
    return Refusal(422, where, _EXPECTED[kind][0], got, _EXPECTED[kind][1])


def _unknown_name(name: str, known: Sequence[str], where: str) -> Refusal:
    near = near_name(name, known)
    fix = f"did you mean {near!r}?" if near else f"leave it out; known are {', '.join(known)}"
    return Refusal(422, where, f"the names {', '.join(known)}", repr(cut(name)), fix)


def _read_json(text: bytes | bytearray, where: str) -> Any:
    """The value of a JSON text. Refuses invalid JSON, and says where it is invalid."""
    try:
        return json.loads(text.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        place, got = f"{where}, byte {error.start}", "other bytes"
        raise Refusal(400, place, "text in UTF-8", got, "send JSON in UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"{where}, line {error.lineno}, column {error.colno}"
        near = error.doc[error.pos : error.pos + 60]
        raise Refusal(400, place, "JSON", repr(near) if near else "its end", f"{error.msg}; correct the JSON") from None
    except Refusal:
        raise
    except (RecursionError, ValueError):  # too deeply nested, or a number with thousands of digits
        raise Refusal(400, where, "JSON", "too deep nesting or too long a number", "correct the JSON") from None


def _refuse_constant(name: str) -> NoReturn:
    raise Refusal(400, "body", "JSON, which has no such number", name, "send null for a missing value")


def _check_count(where: str, n: int, limits: Limits) -> None:
    if n > limits.max_documents:
        fix = "send fewer at once, or raise the limit max_documents of the server"
        raise Refusal(413, where, f"at most {limits.max_documents:,} documents", f"{n:,}", fix)


def _documents_of(given: _Documents[Any], features: Features, limits: Limits, where: str) -> Documents:
    """The documents of one query: a list of objects, or ids and features apart."""
    if (given.documents is UNSET) == (given.features is UNSET):
        expected = "either documents, or features (with ids) as one matrix"
        got = "neither" if given.documents is UNSET else "both"
        raise Refusal(422, f"{where}documents", expected, got, 'send {"documents": [{"id": ..., "features": {...}}]}')
    ids = given.ids
    if given.documents is UNSET:
        matrix = features.of_matrix(given.features, given.names, limits, where)
        if ids is not None and len(ids) != len(matrix):
            expected = f"{len(matrix)} ids, one per row"
            raise Refusal(422, f"{where}ids", expected, f"{len(ids)}", "give one for each row")
        return Documents(ids, matrix)
    for name in ("ids", "names"):
        if getattr(given, name) is not None:
            raise Refusal(422, f"{where}{name}", "only with a matrix of features", "it", "give each document its id")
    _check_count(f"{where}documents", len(given.documents), limits)
    texts = [document.features for document in given.documents]
    matrix = features.of_documents(texts, lambda i: f"{where}documents[{i}].features")
    return Documents([i if one.id is UNSET else one.id for i, one in enumerate(given.documents)], matrix)


# Features


class Features:
    """The values that a model expects of a document: their number, their names, and whether some may be left out.

    Values are features, or texts, dates and vectors that ``plan`` computes features from.
    """

    def __init__(
        self, n: int, names: Sequence[str] | None, has_missing: bool, plan: ColumnEncoder | None = None
    ) -> None:
        self.plan = plan or ColumnEncoder()
        self.made = None if names is None else tuple(names)
        self.n_made, self.has_missing = n, has_missing
        self.names = None if self.made is None else tuple(self.plan.sources(self.made))
        self.n = n if self.names is None else len(self.names)
        self._places = {name: place for place, name in enumerate(self.names or ())}
        self._decoder = msgspec.json.Decoder(_form_of(self.names, has_missing))

    @property
    def kinds(self) -> dict[str, str]:
        """What clients send for each column: a number, or the kind of text, date or vector."""
        raw = self.plan.raw_kinds(self.made or ())
        return {name: "number" if kind is None else kind.NAME for name, kind in raw.items()}

    @property
    def how(self) -> str:
        """How to send the features of a document, for messages."""
        if self.plan.kinds:
            return "give values by name, as in the columns of the training data; null if one is missing"
        order = "that GET /models lists, or an object by name"
        if self.names is None:
            order = "of the training data (features 1, 2, ... of a LETOR file)"
        return f"give {self.n} numbers in the order {order}; null if a value is missing"

    def of_documents(self, given: list[Any], place: Place) -> Matrix:
        """The features of documents: each a list, or an object by name, as ``Raw`` text or decoded."""
        matrix = None if self.plan.kinds else read_numbers(given, len(given), self.n)
        return self._read(given, self.n, place, takes_names=True) if matrix is None else matrix

    def of_matrix(self, given: Any, names: list[str] | None, limits: Limits, where: str) -> Matrix:
        """The features of documents as one matrix: a list of rows, or the bytes of float32 numbers in base64."""
        place = f"{where}features"
        width = self.n if names is None else len(names)
        if not width:
            raise Refusal(422, f"{where}names", _EXPECTED["names"][0], shown(names), _EXPECTED["names"][1])
        text = bytes(given) if isinstance(given, Raw) else b""
        matrix = None
        if text.startswith(b"[") and not self.plan.kinds:
            n_rows = text.count(b"[") - 1
            _check_count(place, n_rows, limits)
            matrix = read_numbers([memoryview(text)[1:-1]], n_rows, width)
            if matrix is None and len(text) > LARGE and text.count(b",") >= max(n_rows, 1) * width:
                raise Refusal(422, place, f"rows of {width} numbers", "more values", self.how)
        if matrix is None:
            values = _decode(given, place, list[Raw] if text.startswith(b"[") else Any)
            if isinstance(values, str) and not self.plan.kinds:
                matrix = _read_base64(values, width, place)
            elif isinstance(values, list):
                _check_count(place, len(values), limits)
                matrix = self._read(values, width, lambda i: f"{place}[{i}]", names)
            else:
                raise Refusal(422, place, "a list of rows, or base64", shown(values), "give a row per document")
        _check_count(place, len(matrix), limits)
        if names is None or self.plan.kinds:
            return matrix
        self._check_columns(names, f"{where}names")
        wide = np.full((len(matrix), self.n), np.nan, np.float32)
        wide[:, [self._places[name] for name in names]] = matrix
        return wide

    def _read(
        self, given: list[Any], width: int, place: Place, names: list[str] | None = None, takes_names: bool = False
    ) -> Matrix:
        """The features of documents that are not lists of plain numbers, or wrong."""
        if self.plan.kinds:
            values = [self._row(one, width, place(i), takes_names) for i, one in enumerate(given)]
            return self._encoded(values, names, place)
        parts = [np.zeros((0, width), np.float32)]
        for start in range(0, len(given), _AT_ONCE):
            check_deadline()
            some = given[start : start + _AT_ONCE]
            rows: list[Sequence[Any]] = []
            with suppress(TypeError, *_UNREADABLE):
                found = [self._decoder.decode(one) for one in some]
                if takes_names or set(map(type, found)) == {tuple}:
                    rows = [one if type(one) is tuple else msgspec.structs.astuple(one) for one in found]
            if set(map(len, rows)) != {width}:
                rows = [self._row(one, width, place(i), takes_names) for i, one in enumerate(some, start)]
                self._check_values(rows, some, place, start)
            with np.errstate(over="ignore"):
                parts.append(np.array(rows, np.float64).astype(np.float32))
            if np.isinf(parts[-1]).any():
                self._check_values(rows, some, place, start)
        return np.concatenate(parts)

    def _row(self, given: Any, width: int, where: str, takes_names: bool) -> list[Any]:
        """The values of one document in the order of the model, from an object by name or from a list."""
        expected, how = (f"{width} numbers", self.how) if takes_names else (f"a list of {width} numbers", _ROW)
        if isinstance(given, Raw) and not self.plan.kinds:
            text = bytes(given)
            if len(text) > LARGE and text.startswith(b"[") and text.count(b",") >= width:
                raise Refusal(422, where, expected, "more", how)
        given = _decode(given, where)
        if isinstance(given, dict) and takes_names:
            if self.names is None:
                raise Refusal(422, where, f"a list of {expected}", "an object", "this model has no feature names")
            self._check_names(given, where)
            return [given.get(name) for name in self.names]
        if not isinstance(given, list):
            expected = "features as an object by name or as a list" if takes_names else expected
            raise Refusal(422, where, expected, shown(given), how)
        if len(given) != width:
            raise Refusal(422, where, expected, f"{len(given)}", how)
        return given

    def _check_values(self, rows: list[Sequence[Any]], given: list[Any], place: Place, first: int) -> None:
        """Refuse the first value that is no number, or too large for float32; ``first`` is the number of the row."""
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                expected, fix = "a number, or null where it is missing", "encode texts as numbers"
                if type(value) is bool:
                    fix = "send 1 for true and 0 for false"
                elif value is None or (type(value) in (int, float) and abs(value) < _BEYOND_FLOAT32):
                    continue
                elif type(value) in (int, float):
                    expected = "a number that float32 can hold"
                    fix = "clip it, or take its logarithm, here and in training"
                is_named = isinstance(given[i], dict) or (isinstance(given[i], Raw) and bytes(given[i])[:1] == b"{")
                column = json.dumps(self.names[j]) if is_named and self.names else j
                raise Refusal(422, f"{place(first + i)}[{column}]", expected, shown(value), fix)

    def _encoded(self, rows: list[list[Any]], columns: list[str] | None, place: Place) -> Matrix:
        """The features of the model, from rows of all values, or of those of some columns, including texts."""
        made, names = self.made or (), self.names or ()
        if columns is not None:
            self._check_columns(columns, place(0).replace("features[0]", "names"))
            places = {name: j for j, name in enumerate(columns)}
            rows = [[row[places[name]] if name in places else None for name in names] for row in rows]
        if not rows:
            return np.zeros((0, self.n_made), np.float32)
        table = RequestTable({name: [row[j] for row in rows] for j, name in enumerate(names)})
        try:
            features, raw, kinds = as_features(table, kinds=self.plan.raw_kinds(made))
            data = self.plan.expand(RankingDataset(features, feature_names=raw).replace(kinds=kinds))
            order = [(data.feature_names or ()).index(name) for name in made]
            return self.plan.apply(data.with_features(data.features[:, order], made)).features
        except DataError as error:
            raise Refusal(422, place(0).partition("[")[0], "values as in training", str(error), self.how) from None

    def _check_names(self, given: Collection[str], where: str) -> None:
        """Refuse an unknown name, or a missing one that is required."""
        unknown = [name for name in given if name not in self._places]
        if unknown:
            near = near_name(unknown[0], self.names or ())
            fix = f"did you mean {near!r}?" if near else "GET /models lists the names"
            raise Refusal(422, where, "names of features of the model", _listed(unknown), fix)
        missing = [name for name in self.names or () if name not in given]
        if missing and not self.has_missing:
            expected = f"all {self.n} features, as the model saw no missing values in training"
            fix = "give each a number, or null to treat it as the model does (mostly as 0)"
            raise Refusal(422, where, expected, f"none for {_listed(missing)}", fix)

    def _check_columns(self, names: list[str], where: str) -> None:
        """Refuse anything but names of columns, each once."""
        if self.names is None:
            raise Refusal(422, where, "none", shown(names), "this model has no feature names: leave it out")
        if len(set(names)) < len(names):
            raise Refusal(422, where, _EXPECTED["names"][0], shown(names), _EXPECTED["names"][1])
        self._check_names(names, where)


_ROW = "give each document a row with a number for each feature of the model (or of names)"


def _form_of(names: Sequence[str] | None, has_missing: bool) -> Any:
    """The type of the features of a document: a list, or an object with a field for each name, in the model's order."""
    values: Any = tuple[float | None, ...]
    if names is None:
        return values
    default = (None,) if has_missing else ()
    fields = [(f"f{number}", float | None, *default) for number in range(len(names))]
    renamed = {f"f{number}": name for number, name in enumerate(names)}
    try:
        return values | msgspec.defstruct("Values", fields, rename=renamed, forbid_unknown_fields=True, gc=False)
    except ValueError:  # quotes or control characters in a name: objects are decoded without a type
        return values


def _decode(given: Any, where: str, form: Any = Any) -> Any:
    """The value of a ``Raw`` text; other values as they are."""
    if not isinstance(given, Raw):
        return given
    try:
        return msgspec.json.decode(given, type=form)
    except _UNREADABLE:
        return _read_json(bytes(given), where)


def read_numbers(texts: list[Any], n_rows: int, width: int) -> Matrix | None:
    """The rows of lists of numbers; None if the texts are anything else or a number is doubtful."""
    try:
        text = b",".join([*texts, END])
    except TypeError:  # decoded values
        return None
    if len(text) < 2 * n_rows * width:  # too short: a claimed size alone does not allocate a matrix
        return None
    matrix = np.empty((n_rows, width), np.float32)
    return matrix if read_rows(np.frombuffer(text, np.uint8), POWERS, matrix) else None


def _read_base64(text: str, width: int, where: str) -> Matrix:
    """The rows of little-endian float32 numbers in base64; NaN where a value is missing."""
    expected = f"base64 of float32 numbers, {width} for each document"
    fix = 'in Python: base64.b64encode(X.astype("<f4").tobytes()).decode()'
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        raise Refusal(422, where, expected, repr(cut(text)), fix) from None
    if len(content) % (4 * width):
        raise Refusal(422, where, expected, f"{len(content)} bytes, which is not a multiple of {4 * width}", fix)
    matrix = np.frombuffer(content, "<f4").astype(np.float32).reshape(-1, width)
    if np.isinf(matrix).any():
        i, j = np.argwhere(np.isinf(matrix))[0].tolist()
        raise Refusal(422, f"{where}, row {i}, column {j}", "a finite number", "infinity", "clip it, or give NaN")
    return matrix


def _listed(names: Sequence[str]) -> str:
    """The first of some names."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(repr(cut(name)) for name in names[:_LISTED]) + more
