"""The OpenAPI description of the server. A test compares real answers with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tierank import __version__
from tierank.serve.limits import Limits
from tierank.serve.requests import MOST_EXPLAINED

Schema = dict[str, Any]

_ID: Schema = {"type": ["string", "number"], "description": "Any text or number; returned unchanged."}
_VALUE: Schema = {"type": ["number", "null"], "description": "null: missing."}
_CHECKSUM: Schema = {"type": ["string", "null"], "description": "SHA-256 of the model's model.json."}
_CODES = {
    400: "The body is not JSON.",
    404: "Unknown model.",
    408: "The body did not arrive in time.",
    413: "Too many bytes or documents at once.",
    415: "The content type is not application/json.",
    422: "The body is JSON, but not what is expected.",
    500: "A bug of tierank; its number is in the log.",
    503: "Too many requests are waiting: try again later.",
    504: "No answer in time: ask for less at once.",
}
_NO_KEY = {401: "The API key is missing or wrong."}
_KEY_NEEDED: Schema = {"security": [{"key": []}]}


def describe_api(models: Sequence[str], limits: Limits, root: str = "", *, has_keys: bool = False) -> dict[str, Any]:
    """The description of the routes; all except two may need an API key."""
    description = _described(models, limits, root)
    if has_keys:
        description["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, methods in description["paths"].items():
            for about in methods.values() if path not in ("/health", "/ready") else ():
                about |= _KEY_NEEDED
                about["responses"] |= {str(code): _response(why, "Error") for code, why in _NO_KEY.items()}
    return description


def _described(models: Sequence[str], limits: Limits, root: str) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "tierank serve", "version": __version__, "description": "Scores and ranks documents."},
        "servers": [{"url": root or "/"}],
        "paths": {
            "/rank": {"post": _scoring("rankDocuments", "The documents of one query, best first.", "Rank", "Ranking")},
            "/score": {"post": _scoring("scoreQueries", "Scores of many queries.", "Score", "Scores")},
            "/health": {"get": _asking("health", "Whether the process is alive.", "Status")},
            "/ready": {"get": _asking("ready", "Whether it accepts requests.", "Status", {503: "It is stopping."})},
            "/models": {"get": _asking("models", "The models that answer.", "Models")},
            "/metrics": {"get": _text("metrics", "Counts and latencies, in the text format of Prometheus.")},
            "/openapi.json": {"get": _asking("openapi", "This description.", None)},
        },
        "components": {"schemas": _schemas(models, limits)},
    }


def _scoring(name: str, what: str, request: str, answer: str) -> Schema:
    return {
        "operationId": name,
        "summary": what,
        "requestBody": {"required": True, "content": _content(request)},
        "responses": {"200": _response("The answer.", answer)}
        | {str(code): _response(why, "Error") for code, why in _CODES.items()},
    }


def _asking(name: str, what: str, answer: str | None, codes: dict[int, str] | None = None) -> Schema:
    errors = {str(code): _response(why, "Error") for code, why in (codes or {}).items()}
    return {"operationId": name, "summary": what, "responses": {"200": _response(what, answer)} | errors}


def _text(name: str, what: str) -> Schema:
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {"operationId": name, "summary": what, "responses": {"200": {"description": what, "content": content}}}


def _response(what: str, schema: str | None) -> Schema:
    return {"description": what, "content": _content(schema)}


def _content(schema: str | None) -> Schema:
    return {"application/json": {"schema": {"type": "object"} if schema is None else _ref(schema)}}


def _schemas(models: Sequence[str], limits: Limits) -> dict[str, Schema]:
    model: Schema = {"type": "string", "enum": list(models), "description": f"Default: {models[0]}."}
    why = _object(
        {
            "difference": {"type": "number", "description": "Its score minus that of the next document."},
            "contributions": _list(_object({"feature": {"type": "string"}, "contribution": {"type": "number"}})),
            "rest": {"type": "number", "description": "What all other features add."},
        }
    )
    ranked = _object({"id": _ID, "rank": {"type": "integer", "minimum": 1}, "score": {"type": "number"}, "why": why})
    ranked["required"].remove("why")
    scored = _object({"id": _ID, "scores": _list({"type": "number"})}, required=["scores"])
    by = {"model": {"type": "string", "enum": list(models)}, "checksum": _CHECKSUM}
    parts = {"where": "string", "expected": "string", "got": "string", "fix": "string"}
    return {
        "Rank": _either({"model": model, "k": _k(), "explain": {"type": "boolean"}}, limits),
        "Score": _object(
            {"model": model, "queries": _list(_either({"id": _ID}, limits)) | {"maxItems": limits.max_documents}},
            required=["queries"],
        ),
        "Ranking": _object(by | {"ranking": _list(ranked)}),
        "Scores": _object(by | {"queries": _list(scored)}),
        "Status": _object({"status": {"type": "string", "enum": ["alive", "ready"]}}),
        "Models": _object({"models": _list(_model(models))}),
        "Error": _object({"error": _object({name: {"type": kind} for name, kind in parts.items()})}),
    }


def _k() -> Schema:
    what = f"Number of documents to return (default: all); 1 to {MOST_EXPLAINED} together with explain."
    return {"type": ["integer", "null"], "minimum": 1, "description": what}


def _either(more: dict[str, Schema], limits: Limits) -> Schema:
    """The documents of a query, as objects or as one matrix."""
    most = {"maxItems": limits.max_documents}
    values: Schema = {
        "anyOf": [
            {"type": "object", "additionalProperties": _VALUE, "description": "By name."},
            _list(_VALUE) | {"description": "In the order of the model."},
        ]
    }
    document = _object({"id": _ID, "features": values}, required=["features"])
    matrix: Schema = {
        "anyOf": [
            _list(_list(_VALUE)) | most,
            {
                "type": "string",
                "contentEncoding": "base64",
                "description": "Rows of little-endian float32; NaN: missing.",
            },
        ]
    }
    columns = {"ids": _list(_ID) | most, "names": _list({"type": "string"}), "features": matrix}
    return {
        "oneOf": [
            _object(more | {"documents": _list(document) | most}, required=["documents"]),
            _object(more | columns, required=["features"]),
        ]
    }


def _model(models: Sequence[str]) -> Schema:
    return _object(
        {
            "name": {"type": "string", "enum": list(models)},
            "ranker": {"type": "string"},
            "n_features": {"type": "integer", "minimum": 1},
            "features": {"type": ["array", "null"], "items": {"type": "string"}},
            "may_leave_out_features": {"type": "boolean"},
            "needs_whole_list": {
                "type": "boolean",
                "description": "The score of a document depends on the others of its query: send all candidates.",
            },
            "checksum": _CHECKSUM,
            "tierank": {"type": "string"},
            "loaded": {"type": "string", "format": "date-time"},
        }
    )


def _object(properties: dict[str, Schema], required: Sequence[str] | None = None) -> Schema:
    names = list(properties) if required is None else list(required)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
