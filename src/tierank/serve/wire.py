"""Typed requests for one model, so that decoding and checking are one step (msgspec).

A decoder accepts only what it is sure of, and returns None for anything else: a wrong type, an unknown name, a missing
feature. The text then goes to the slow reader of ``documents``, which gives the right message, or the right value in
the rare case that JSON allows what a typed decoder does not (a lone surrogate in an id).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

Decode = Callable[[bytes | bytearray], Any]

Id = str | int | float
Row = tuple[float | None, ...]


class _Named(msgspec.Struct):
    """A request of which only the name of the model is decoded."""

    model: str | UnsetType = UNSET


class Wire:
    """Decoders of requests, and of pieces of long lists, for a model with these features."""

    def __init__(self, names: Sequence[str] | None, has_missing: bool) -> None:
        document = _document(_features(names, has_missing))
        documents = _documents(document, list[Row] | str)
        query: Any = _struct("Query", [("id", Id | UnsetType, UNSET), *documents])
        self.rank = _decoder(_rank(documents))
        self.score = _decoder(_struct("Score", [("queries", _list(query)), _MODEL]))
        self.documents: Decode = _decoder(_list(document))
        self.rows: Decode = _decoder(list[Row])
        self.ids: Decode = _decoder(list[Id])
        self.queries: Decode = _decoder(_list(query))


class NoWire:
    """In place of ``Wire`` for a model that takes texts: everything goes to the slow reader."""

    def rank(self, text: bytes | bytearray) -> None:
        """None: everything goes to the slow reader."""

    score = documents = rows = ids = queries = rank


def _document(features: Any) -> Any:
    return _struct("Document", [("features", features), ("id", Id | UnsetType, UNSET)])


def _documents(document: Any, matrix: Any) -> list[Any]:
    """The fields with the documents of a list: objects of one type, or features as a matrix of another."""
    return [
        ("documents", _list(document) | UnsetType, UNSET),
        ("ids", list[Id] | None | UnsetType, UNSET),
        ("names", list[str] | None | UnsetType, UNSET),
        ("features", matrix | UnsetType, UNSET),
    ]


def _rank(documents: list[Any]) -> Any:
    return _struct("Rank", [_MODEL, ("k", int | None, None), ("explain", bool, False), *documents])


def _features(names: Sequence[str] | None, has_missing: bool) -> Any:
    """Features of a document: a list, or an object with a field for each name, in the order of the model."""
    if names is None:
        return Row
    default = (None,) if has_missing else ()
    fields = [(f"f{number}", float | None, *default) for number in range(len(names))]
    renamed = {f"f{number}": name for number, name in enumerate(names)}
    try:
        return Row | _struct("Features", fields, rename=renamed, gc=False)
    except ValueError:  # quotes or control characters in a name: objects go to the slow reader
        return Row


def _list(items: Any) -> Any:
    return list[items]


def _struct(name: str, fields: list[Any], **more: Any) -> Any:
    return msgspec.defstruct(name, fields, forbid_unknown_fields=True, **more)


def _decoder(shape: Any) -> Decode:
    decode = msgspec.json.Decoder(shape).decode

    def decoded(text: bytes | bytearray) -> Any:
        try:
            return decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    return decoded


_MODEL = ("model", str | UnsetType, UNSET)

# A request to ``/rank`` for any model, with features as undecoded text.
raw_rank: Decode = _decoder(_rank(_documents(_document(Raw), Raw)))

peek: Callable[[bytes | bytearray], _Named | None] = _decoder(_Named)
