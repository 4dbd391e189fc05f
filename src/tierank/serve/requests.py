"""Reads the body of a request, or refuses it with where, expected, got and the fix.

A body of usual size is decoded in one step by the typed decoders of the model that it names. Bodies that they refuse,
and large bodies, are read step by step; only that reader has messages, so there is one place for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from msgspec import UNSET

from tierank.serve.documents import (
    Documents,
    Features,
    check_count,
    check_id,
    is_long_list,
    pieces_of,
    read_documents,
    read_piece,
    typed_documents,
)
from tierank.serve.limits import LARGE, Limits
from tierank.serve.outline import outlined, read_json
from tierank.serve.refusals import Refusal, check_keys, shown
from tierank.serve.wire import peek, raw_rank

# The most rows explained in one request: an explanation takes a hundred times as long as a score.
MOST_EXPLAINED = 100

_DOCUMENTS = ("documents", "ids", "names", "features")


class _HasFeatures(Protocol):
    """A model that answers requests."""

    @property
    def features(self) -> Features:
        """The values that it expects of a document."""


Version = TypeVar("Version", bound=_HasFeatures)
# Maps the name in a request, or UNSET, to the name of a model and its current version.
Choose = Callable[[Any], tuple[str, Version]]


@dataclass(frozen=True)
class Rank(Generic[Version]):
    """A list to rank: the model, the number of results (None: all), whether to explain, and the documents."""

    model: str
    version: Version
    k: int | None
    explain: bool
    documents: Documents


@dataclass(frozen=True)
class Score(Generic[Version]):
    """Queries to score: the model, their ids (None if they have none), and the documents of each."""

    model: str
    version: Version
    ids: list[Any]
    lists: list[Documents]


def read_rank(body: bytearray, choose: Choose[Version], limits: Limits) -> Rank[Version]:
    """Read a request to ``/rank``."""
    raw = _raw_rank(body, choose, limits)
    return raw or _typed_rank(body, choose, limits) or _read_rank(body, choose, limits)


def read_score(body: bytearray, choose: Choose[Version], limits: Limits) -> Score[Version]:
    """Read a request to ``/score``."""
    return _typed_score(body, choose, limits) or _read_score(body, choose, limits)


# Typed


def _raw_rank(body: bytearray, choose: Choose[Version], limits: Limits) -> Rank[Version] | None:
    """The request if features are lists of numbers, as in most requests, in a third of the time."""
    given = None if len(body) > LARGE else raw_rank(body)
    return None if given is None else _checked_rank(given, choose(given.model), limits)


def _typed_rank(body: bytearray, choose: Choose[Version], limits: Limits) -> Rank[Version] | None:
    chosen = _peeked(body, choose)
    given = None if chosen is None else chosen[1].features.wire.rank(body)
    if chosen is None or given is None or given.model not in (UNSET, chosen[0]):
        return None
    return _checked_rank(given, chosen, limits)


def _checked_rank(given: Any, chosen: tuple[str, Version], limits: Limits) -> Rank[Version] | None:
    if (given.k is not None and given.k < 1) or (given.explain and (given.k is None or given.k > MOST_EXPLAINED)):
        return None
    documents = typed_documents(given, chosen[1].features, limits)
    return None if documents is None else Rank(*chosen, given.k, given.explain, documents)


def _typed_score(body: bytearray, choose: Choose[Version], limits: Limits) -> Score[Version] | None:
    chosen = _peeked(body, choose)
    given = None if chosen is None else chosen[1].features.wire.score(body)
    if chosen is None or given is None or given.model not in (UNSET, chosen[0]):
        return None
    found = _typed_queries(given.queries, chosen[1].features, limits)
    if found is None or max(len(found), sum(len(documents.features) for _, documents in found)) > limits.max_documents:
        return None
    return Score(*chosen, [id for id, _ in found], [documents for _, documents in found])


def _typed_queries(queries: list[Any], features: Features, limits: Limits) -> list[tuple[Any, Documents]] | None:
    read = []
    for query in queries:
        documents = typed_documents(query, features, limits)
        if documents is None:
            return None
        read.append((None if query.id is UNSET else query.id, documents))
    return read


def _peeked(body: bytearray, choose: Choose[Version]) -> tuple[str, Version] | None:
    """The model that a body of usual size names, before it is decoded by its decoders; None if not sure."""
    if len(body) > LARGE:
        return None
    if b'"model"' not in body:
        return choose(UNSET)
    named = peek(body)
    return None if named is None else choose(named.model)


# Step by step


def _read_rank(body: bytearray, choose: Choose[Version], limits: Limits) -> Rank[Version]:
    given = _read_object(body)
    model, version = choose(given.get("model", UNSET))
    check_keys(given, ("model", "k", "explain", *_DOCUMENTS), "body")
    k, explain = _read_k(given)
    return Rank(model, version, k, explain, read_documents(given, version.features, limits))


def _read_score(body: bytearray, choose: Choose[Version], limits: Limits) -> Score[Version]:
    given = _read_object(body)
    model, version = choose(given.get("model", UNSET))
    check_keys(given, ("model", "queries"), "body")
    ids, lists, total = [], [], 0
    for id, documents in _read_queries(given.get("queries"), version.features, limits):
        ids.append(id)
        lists.append(documents)
        total += len(documents.features)
        check_count("queries", total, limits)
    return Score(model, version, ids, lists)


def _read_object(body: bytearray) -> dict[str, Any]:
    if len(body) > LARGE:
        return outlined(body)
    content = read_json(body)
    if type(content) is not dict:
        raise Refusal(422, "body", "an object", shown(content), 'send {"documents": [...]}')
    return content


def _read_k(given: Mapping[str, Any]) -> tuple[int | None, bool]:
    """The number of documents to return (None: all), and whether to explain them."""
    k, explain = given.get("k"), given.get("explain", False)
    if k is not None and (type(k) is not int or k < 1):
        raise Refusal(422, "k", "an integer >= 1", shown(k), "leave k out to get all documents")
    if type(explain) is not bool:
        raise Refusal(422, "explain", "true or false", shown(explain), "leave it out for false")
    if explain and (k is None or k > MOST_EXPLAINED):
        raise Refusal(422, "k", f"1 to {MOST_EXPLAINED} together with explain", shown(k), "ask for fewer documents")
    return k, explain


def _read_queries(queries: Any, features: Features, limits: Limits) -> Iterable[tuple[Any, Documents]]:
    if not is_long_list(queries) and type(queries) is not list:
        raise Refusal(422, "queries", "a list of objects", shown(queries), 'send {"queries": [{"documents": [...]}]}')
    if type(queries) is list:
        check_count("queries", len(queries), limits)
        for number, query in enumerate(queries):
            yield _read_query(query, features, limits, f"queries[{number}]")
        return
    for piece in pieces_of(queries, limits, "queries"):
        where = f"queries[{piece.first}]"
        if piece.span is not None and not piece.span.is_list:
            yield _read_query(piece.span.members(where), features, limits, where)
            continue
        typed = features.wire.queries(piece.text)
        found = None if typed is None else _typed_queries(typed, features, limits)
        if found is None and piece.span is not None:
            raise _no_query(where, piece.span)
        if found is None:
            plain = enumerate(read_piece(piece, "queries"), piece.first)
            yield from (_read_query(query, features, limits, f"queries[{n}]") for n, query in plain)
        else:
            yield from found


def _read_query(query: Any, features: Features, limits: Limits, where: str) -> tuple[Any, Documents]:
    if type(query) is not dict:
        raise _no_query(where, query)
    check_keys(query, ("id", *_DOCUMENTS), where)
    if "id" in query:
        check_id(query["id"], f"{where}.id")
    return query.get("id"), read_documents(query, features, limits, f"{where}.")


def _no_query(where: str, got: Any) -> Refusal:
    return Refusal(422, where, "an object", shown(got), 'send {"id": ..., "documents": [...]}')
