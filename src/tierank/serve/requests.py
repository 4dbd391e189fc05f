"""The body of a request -> features of documents, or a refusal that says where, expected, got and what to do."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tierank.errors import DataError, near_name
from tierank.serve.limits import Limits

Matrix = NDArray[np.float32]
# Says where the value of document i and feature j stands in the request.
Place = Callable[[int, int], str]

# Names that a refusal lists, and characters of what came that it shows.
_LISTED = 5
_SHOWN = 60
# Rows that can be explained in one request: an explanation takes a hundred times as long as a score.
MOST_EXPLAINED = 100
_NUMBERS = {float, int, type(None)}
_LARGEST = float(np.finfo(np.float32).max)


class Refusal(DataError):
    """A request that cannot be answered as it is: the code of HTTP, and the four parts of the message."""

    def __init__(self, code: int, where: str, expected: str, got: str, fix: str) -> None:
        super().__init__(f"{where}: expected {expected}, got {got}; {fix}")
        self.code, self.where, self.expected, self.got, self.fix = code, where, expected, got, fix

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"error": {"where": self.where, "expected": self.expected, "got": self.got, "fix": self.fix}}


class Features:
    """What a model knows of a document: how many features, their names, and whether some may be left out."""

    def __init__(self, n: int, names: Sequence[str] | None, has_missing: bool) -> None:
        self.n, self.names, self.has_missing = n, None if names is None else tuple(names), has_missing
        self._places = {name: place for place, name in enumerate(self.names or ())}
        self._pick: Callable[[Mapping[str, Any]], Sequence[Any]] | None = None
        if self.names is not None:
            one = self.names[0]
            self._pick = (lambda given: (given[one],)) if n == 1 else itemgetter(*self.names)

    def row(self, given: Any, where: str) -> Sequence[Any]:
        """The values of one document in the order of the model, from an object by name or from a list."""
        if type(given) is list:
            if len(given) != self.n:
                raise Refusal(422, where, f"{self.n} numbers", f"{len(given)}", self._how())
            return given
        if type(given) is not dict:
            raise Refusal(422, where, "features as an object by name or as a list", shown(given), self._how())
        if self._pick is None:
            raise Refusal(422, where, f"a list of {self.n} numbers", "an object", "this model has no feature names")
        if len(given) == self.n:
            try:
                return self._pick(given)
            except KeyError:
                pass  # as many names as there are features, and another one among them
        self.check_names(given, where)
        return [given.get(name) for name in self.names or ()]

    def check_names(self, given: Collection[str], where: str) -> None:
        """A refusal if one is unknown, or one is left out that may not be."""
        unknown = [name for name in given if name not in self._places]
        if unknown:
            raise Refusal(422, where, "names of features of the model", _some(unknown), _did_you_mean(unknown[0], self))
        missing = [name for name in self.names or () if name not in given]
        if missing and not self.has_missing:
            raise Refusal(
                422,
                where,
                f"all {self.n} features, for the model has met no missing values",
                f"none for {_some(missing)}",
                "give each a number, or null to have it taken as the model takes it (mostly for 0)",
            )

    def widened(self, given: Matrix, names: Any, where: str) -> Matrix:
        """Columns by these names -> the columns of the model; those without a name there are missing."""
        if self.names is None:
            raise Refusal(422, where, "none", shown(names), "this model has no feature names: leave it out")
        if type(names) is not list or not all(type(name) is str for name in names) or len(set(names)) < len(names):
            raise Refusal(422, where, "a list of texts, each once", shown(names), "give a name for each column")
        self.check_names(dict.fromkeys(names), where)
        matrix = np.full((len(given), self.n), np.nan, np.float32)
        matrix[:, [self._places[name] for name in names]] = given
        return matrix

    def _how(self) -> str:
        named = ", or an object by name" if self.names is not None else ""
        return f"give {self.n} numbers in the order that GET /models lists{named}; null where a value is missing"


@dataclass(frozen=True)
class Documents:
    """The documents of one query: their ids (None: by their place) and features, one row each."""

    ids: list[Any] | None
    features: Matrix

    def id_of(self, row: int) -> Any:
        """The id of a document as it came, or its place from 0 on."""
        return row if self.ids is None else self.ids[row]


def read_json(body: bytes) -> dict[str, Any]:
    """The body as an object of JSON."""
    try:
        found = json.loads(body.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise Refusal(400, f"body, byte {error.start}", "text in UTF-8", "other bytes", "send JSON in UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"body, line {error.lineno}, column {error.colno}"
        near = error.doc[error.pos : error.pos + _SHOWN]
        raise Refusal(400, place, "JSON", repr(near) if near else "its end", f"{error.msg}; mend the JSON") from None
    except Refusal:
        raise
    except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits
        raise Refusal(400, "body", "JSON", "too deep a nesting or too long a number", "mend the JSON") from None
    if type(found) is not dict:
        raise Refusal(422, "body", "an object", shown(found), 'send {"documents": [...]}')
    return found


def check_keys(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """A refusal if the object has a name that means nothing here."""
    if given.keys() <= set(known):
        return
    unknown = next(name for name in given if name not in known)
    near = near_name(unknown, known)
    fix = f"did you mean {near!r}?" if near else f"leave it out; known are {', '.join(known)}"
    raise Refusal(422, where, f"the names {', '.join(known)}", f"{_cut(unknown)!r}", fix)


def read_k(given: Mapping[str, Any]) -> tuple[int | None, bool]:
    """How many documents to give back (None: all), and whether to explain them."""
    k, explain = given.get("k"), given.get("explain", False)
    if k is not None and (type(k) is not int or k < 1):
        raise Refusal(422, "k", "a whole number from 1 on", shown(k), "leave k out to have all documents")
    if type(explain) is not bool:
        raise Refusal(422, "explain", "true or false", shown(explain), "leave it out for false")
    if explain and (k is None or k > MOST_EXPLAINED):
        raise Refusal(422, "k", f"1 to {MOST_EXPLAINED} together with explain", shown(k), "ask for fewer documents")
    return k, explain


def read_queries(given: Mapping[str, Any], features: Features, limits: Limits) -> tuple[list[Any], list[Documents]]:
    """The ids of the queries (None where they have none) and their documents."""
    queries = given.get("queries")
    if type(queries) is not list:
        raise Refusal(422, "queries", "a list of objects", shown(queries), 'send {"queries": [{"documents": [...]}]}')
    _check_count("queries", len(queries), limits)
    ids, found, total = [], [], 0
    for number, query in enumerate(queries):
        where = f"queries[{number}]"
        if type(query) is not dict:
            raise Refusal(422, where, "an object", shown(query), 'send {"id": ..., "documents": [...]}')
        check_keys(query, ("id", "documents", "ids", "names", "features"), where)
        if "id" in query:
            _check_id(query["id"], f"{where}.id")
        ids.append(query.get("id"))
        found.append(read_documents(query, features, limits, f"{where}."))
        total += len(found[-1].features)
        _check_count("queries", total, limits)
    return ids, found


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
        raise Refusal(422, f"{where}{extra}", "only beside a matrix of features", "it", "give each document its id")
    return _read_objects(given["documents"], features, limits, f"{where}documents")


def _read_objects(documents: Any, features: Features, limits: Limits, where: str) -> Documents:
    if type(documents) is not list:
        raise Refusal(422, where, "a list of objects", shown(documents), 'send [{"id": ..., "features": ...}]')
    _check_count(where, len(documents), limits)
    known, rows, ids = {"id", "features"}, [], []
    for number, document in enumerate(documents):
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
        return f"{where}[{i}].features[{json.dumps(features.names[j]) if by_name and features.names else j}]"

    return Documents(_checked_ids(ids, lambda i: f"{where}[{i}].id"), _as_matrix(rows, features.n, place))


def _read_matrix(given: Mapping[str, Any], features: Features, limits: Limits, where: str) -> Documents:
    """Features as one matrix: a list of rows, or the bytes of float32 numbers in base64."""
    ids, names, values = given.get("ids"), given.get("names"), given["features"]
    if ids is not None and type(ids) is not list:
        raise Refusal(422, f"{where}ids", "a list", shown(ids), "give an id for each row, or leave ids out")
    width = len(names) if type(names) is list and names else features.n
    if type(values) is str:
        matrix = _decoded(values, width, f"{where}features")
    elif type(values) is list:
        _check_count(f"{where}features", len(values), limits)
        for i, row in enumerate(values):
            if type(row) is not list or len(row) != width:
                got = f"{len(row)}" if type(row) is list else shown(row)
                fix = "give each document a row with a number for each feature of the model (or of names)"
                raise Refusal(422, f"{where}features[{i}]", f"a list of {width} numbers", got, fix)
        matrix = _as_matrix(values, width, lambda i, j: f"{where}features[{i}][{j}]")
    else:
        raise Refusal(422, f"{where}features", "a list of rows, or base64", shown(values), "give a row per document")
    _check_count(f"{where}features", len(matrix), limits)
    if ids is not None and len(ids) != len(matrix):
        raise Refusal(422, f"{where}ids", f"{len(matrix)} ids, one per row", f"{len(ids)}", "give one for each row")
    if names is not None:
        matrix = features.widened(matrix, names, f"{where}names")
    return Documents(None if ids is None else _checked_ids(ids, lambda i: f"{where}ids[{i}]"), matrix)


def _as_matrix(rows: list[Sequence[Any]], width: int, place: Place) -> Matrix:
    """Rows of numbers and nulls as float32; all are of this width."""
    if not rows:
        return np.zeros((0, width), np.float32)
    if not set(map(type, chain.from_iterable(rows))) <= _NUMBERS:
        _refuse_value(rows, place, lambda value: type(value) not in _NUMBERS, "a number, or null where it is missing")
    try:
        with np.errstate(over="ignore"):
            matrix = np.array(rows, np.float64).astype(np.float32)
        is_finite = not np.isinf(matrix).any()
    except OverflowError:  # a whole number of hundreds of digits
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
        raise Refusal(422, where, expected, f"{_cut(text)!r}", fix) from None
    if len(content) % (4 * width):
        raise Refusal(422, where, expected, f"{len(content)} bytes, no multiple of {4 * width}", fix)
    matrix = np.frombuffer(content, "<f4").astype(np.float32).reshape(-1, width)
    if np.isinf(matrix).any():
        i, j = (int(place) for place in np.argwhere(np.isinf(matrix))[0])
        raise Refusal(422, f"{where}, row {i}, column {j}", "a finite number", "infinity", "clip it, or give NaN")
    return matrix


def _refuse_value(rows: list[Sequence[Any]], place: Place, is_wrong: Callable[[Any], bool], expected: str) -> NoReturn:
    """The refusal of the first value that is wrong."""
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
        _check_id(given, place(i))
    return ids


def _check_id(given: Any, where: str) -> None:
    if type(given) not in (str, int, float) or (type(given) is float and not math.isfinite(given)):
        raise Refusal(422, where, "a text or a number", shown(given), "leave ids out to go by places, from 0 on")


def _check_count(where: str, n: int, limits: Limits) -> None:
    if n > limits.max_documents:
        raise Refusal(
            413,
            where,
            f"at most {limits.max_documents:,} documents",
            f"{n:,}",
            "send fewer at once, or start the server with a higher --max-documents",
        )


def _refuse_constant(name: str) -> NoReturn:
    raise Refusal(400, "body", "JSON, which has no such number", name, "send null where a value is missing")


def _did_you_mean(unknown: str, features: Features) -> str:
    near = near_name(unknown, features.names or ())
    return f"did you mean {near!r}?" if near else "GET /models lists the names"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(repr(_cut(name)) for name in names[:_LISTED]) + more


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def shown(value: Any) -> str:
    """What came, in few words.

    >>> shown([1, 2]), shown(None), shown("x" * 100)[:5]
    ('a list of 2', 'null', "'xxxx")
    """
    if isinstance(value, (list, dict)):
        return f"a list of {len(value)}" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        return repr(_cut(value))
    if isinstance(value, float):
        return f"{value:g}" if math.isinf(value) else repr(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST:
        return "a whole number beyond 3.4e38"
    return json.dumps(value)
