"""The application: routes, what they answer, and how errors leave it."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tierank import __version__
from tierank.errors import ParameterError, TierankError, near_name
from tierank.explain import Explanation
from tierank.kernels import n_threads
from tierank.serve.counters import Counters, gauge
from tierank.serve.limits import Limits
from tierank.serve.models import Model, Version
from tierank.serve.openapi import describe_api
from tierank.serve.requests import (
    Documents,
    Refusal,
    check_keys,
    read_documents,
    read_json,
    read_k,
    read_queries,
    shown,
)
from tierank.settings import as_whole

LOG = logging.getLogger("tierank.serve")

# Features that an explanation names.
_NAMED = 5
# Characters of an unknown path that the log keeps.
_PATH = 200


@dataclass
class Answer:
    """What goes back, and what the log and the counters say of it."""

    code: int
    content: bytes
    kind: str = "application/json"
    headers: dict[str, str] | None = None
    model: str | None = None
    n_queries: int = 0
    n_documents: int = 0


class Service:
    """Answers requests for some models. Bodies are read on the event loop; all else is done in threads."""

    def __init__(
        self,
        models: Sequence[Model],
        limits: Limits | None = None,
        threads: int | None = None,
        counters: Counters | None = None,
    ) -> None:
        if not models:
            raise ParameterError("models: expected one at least, got none")
        self.models = {model.name: model for model in models}
        self.limits = limits or Limits()
        self.threads = n_threads(None) if threads is None else as_whole("threads", threads)
        self.counters = counters or Counters(list(self.models))
        self.is_stopping = False
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="tierank-serve")
        self._in_work = 0

    def application(self) -> Starlette:
        """The ASGI application. It needs no lifespan, so that it can be mounted as it is."""
        found = Starlette(
            routes=[
                Route("/rank", self._endpoint("rank", self._scoring(self._rank)), methods=["POST"]),
                Route("/score", self._endpoint("score", self._scoring(self._score)), methods=["POST"]),
                Route("/health", self._endpoint("health", self._health)),
                Route("/ready", self._endpoint("ready", self._ready)),
                Route("/models", self._endpoint("models", self._models)),
                Route("/metrics", self._endpoint("metrics", self._metrics)),
                Route("/openapi.json", self._endpoint("openapi", self._openapi)),
            ],
            exception_handlers={HTTPException: self._no_route},  # type: ignore[dict-item]
        )
        found.router.redirect_slashes = False
        return found

    def replace(self, model: Model) -> None:
        """Take in what stands in the folder of a model now; what is broken leaves the old one serving."""
        try:
            model.replace()
        except (TierankError, OSError) as error:
            self.counters.count_reload(model.name, "refused")
            LOG.error("model %s: kept the old one: %s", model.name, " ".join(str(error).split()))
        except Exception:
            self.counters.count_reload(model.name, "refused")
            LOG.exception("model %s: kept the old one", model.name)
        else:
            self.counters.count_reload(model.name, "replaced")
            LOG.warning("model %s: replaced, checksum %s", model.name, model.version.checksum)

    # Around every request

    def _endpoint(
        self, route: str, answer: Callable[[Request], Awaitable[Answer]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            start = time.perf_counter()
            try:
                found = await answer(request)
            except Refusal as refusal:
                found = _refused(refusal)
            except TierankError as error:
                found = _refused(Refusal(422, "body", "what the model can score", str(error), "see GET /models"))
            except ClientDisconnect:  # nobody is there to read it
                found = _refused(Refusal(400, "body", "all of it", "a part", "send the whole body"))
            except Exception:
                found = _our_bug()
            return self._finished(request, route, found, start)

        return endpoint

    async def _no_route(self, request: Request, error: HTTPException) -> Response:
        """The answer where no route fits the path, or none fits the method."""
        start, path = time.perf_counter(), request.url.path.removeprefix(request.scope.get("root_path", ""))
        known = ("/rank", "/score", "/health", "/ready", "/models", "/metrics", "/openapi.json")
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            refusal = Refusal(405, "method", allowed or "another", request.method, f"use {allowed} for {path[:_PATH]}")
            found = _refused(refusal, {"Allow": allowed})
        else:
            near = near_name(path, known)
            fix = f"did you mean {near}?" if near else "GET /openapi.json describes them"
            found = _refused(Refusal(404, "path", ", ".join(known), shown(path), fix))
        return self._finished(request, "other", found, start)

    def _finished(self, request: Request, route: str, found: Answer, start: float) -> Response:
        seconds = time.perf_counter() - start
        self.counters.count_request(route, found.code, seconds)
        if found.model is not None:
            self.counters.count_scored(found.model, found.n_queries, found.n_documents)
        if LOG.isEnabledFor(logging.INFO):
            LOG.info("request", extra={"request": _logged(request, found, seconds)})
        return Response(found.content, found.code, found.headers, found.kind)

    def _scoring(self, work: Callable[[bytes], Answer]) -> Callable[[Request], Awaitable[Answer]]:
        """An answer that is worked out in a thread, from the body of the request to that of the answer."""

        async def answer(request: Request) -> Answer:
            body = await self._body(request)
            if self._in_work >= self.threads + self.limits.max_waiting:
                refusal = Refusal(
                    503,
                    "server",
                    f"at most {self.limits.max_waiting} requests waiting",
                    "more",
                    "try again in a second, or start more servers",
                )
                return _refused(refusal, {"Retry-After": "1"})
            self._in_work += 1
            try:
                return await asyncio.get_running_loop().run_in_executor(self._pool, work, body)
            finally:
                self._in_work -= 1

        return answer

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "none")
        if kind.partition(";")[0].strip().lower() != "application/json":
            fix = "send the header Content-Type: application/json"
            raise Refusal(415, "header Content-Type", "application/json", shown(kind), fix)
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            got = shown(request.headers["content-encoding"])
            raise Refusal(415, "header Content-Encoding", "none", got, "send the body as it is")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self.limits.max_bytes:
            raise self._too_large(f"{length[:20]} bytes")
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self.limits.max_bytes:
                raise self._too_large("more")
            parts.append(part)
        return b"".join(parts)

    def _too_large(self, got: str) -> Refusal:
        fix = "send fewer documents at once, or start the server with a higher --max-bytes"
        return Refusal(413, "body", f"at most {self.limits.max_bytes} bytes", got, fix)

    # What the routes answer

    def _rank(self, body: bytes) -> Answer:
        given = read_json(body)
        model, version = self._chosen(given)
        check_keys(given, ("model", "k", "explain", "documents", "ids", "names", "features"), "body")
        k, explain = read_k(given)
        documents = read_documents(given, version.features, self.limits)
        content = {"model": model, "checksum": version.checksum, "ranking": _ranking(version, documents, k, explain)}
        return Answer(200, _json(content), model=model, n_queries=1, n_documents=len(documents.features))

    def _score(self, body: bytes) -> Answer:
        given = read_json(body)
        model, version = self._chosen(given)
        check_keys(given, ("model", "queries"), "body")
        ids, lists = read_queries(given, version.features, self.limits)
        lengths = [len(documents.features) for documents in lists]
        filled = [documents for documents in lists if len(documents.features)]
        scores = _finite(version.scores(filled) if filled else np.zeros(0)).tolist()
        ends = np.cumsum([0, *lengths]).tolist()
        queries = [
            ({} if id is None else {"id": id}) | {"scores": scores[start:end]}
            for id, start, end in zip(ids, ends[:-1], ends[1:], strict=True)
        ]
        content = {"model": model, "checksum": version.checksum, "queries": queries}
        return Answer(200, _json(content), model=model, n_queries=len(lists), n_documents=len(scores))

    def _chosen(self, given: dict[str, Any]) -> tuple[str, Version]:
        """The model that a request names, or the first one, as it is now."""
        name = given.get("model", next(iter(self.models)))
        if type(name) is not str or name not in self.models:
            near = near_name(name, self.models) if type(name) is str else None
            fix = f"did you mean {near!r}?" if near else "GET /models lists them; leave it out for the first"
            raise Refusal(404, "model", ", ".join(self.models), shown(name), fix)
        return name, self.models[name].version

    async def _health(self, request: Request) -> Answer:
        return Answer(200, _json({"status": "alive"}))

    async def _ready(self, request: Request) -> Answer:
        if self.is_stopping:
            raise Refusal(503, "server", "to be ready", "one that is stopping", "ask another one")
        return Answer(200, _json({"status": "ready"}))

    async def _models(self, request: Request) -> Answer:
        rows = [{"name": name, **model.version.describe()} for name, model in self.models.items()]
        return Answer(200, _json({"models": rows}))

    async def _metrics(self, request: Request) -> Answer:
        now = [(model.name, model.version) for model in self.models.values()]
        about = [
            f'model="{name}",ranker="{type(version.ranker).__name__}",checksum="{version.checksum or ""}"'
            f',tierank="{__version__}"'
            for name, version in now
        ]
        lines = [
            *self.counters.lines(),
            *gauge("tierank_model_info", "The models that answer.", [(labels, 1) for labels in about]),
            *gauge(
                "tierank_model_loaded_timestamp_seconds",
                "When the model was loaded.",
                [(f'model="{name}"', version.loaded) for name, version in now],
            ),
        ]
        return Answer(200, ("\n".join(lines) + "\n").encode(), kind="text/plain; version=0.0.4; charset=utf-8")

    async def _openapi(self, request: Request) -> Answer:
        return Answer(200, _json(describe_api(list(self.models), self.limits, request.scope.get("root_path", ""))))


def _ranking(version: Version, documents: Documents, k: int | None, explain: bool) -> list[dict[str, Any]]:
    if not len(documents.features):
        return []
    ranked = version.ranked(documents, k)
    rows = [
        {"id": documents.id_of(row), "rank": rank, "score": score}
        for row, rank, score in zip(
            ranked.row.tolist(), ranked.rank.tolist(), _finite(ranked.score).tolist(), strict=True
        )
    ]
    if explain:
        for row, found in zip(rows, version.explained(documents, k), strict=False):  # the last one has none below it
            row["why"] = _why(found)
    return rows


def _why(found: Explanation) -> dict[str, Any]:
    """What puts a document above the next one: the features that add most, and all others in one number."""
    _finite(found.contributions)
    top = found.top(_NAMED)
    named = [{"feature": found.features[j], "contribution": float(found.contributions[j])} for j in top]
    rest = found.difference - float(found.contributions[top].sum())
    return {"difference": found.difference, "contributions": named, "rest": rest}


def _finite(scores: Any) -> Any:
    """The scores; a refusal if one is no number, which JSON could not hold either."""
    if not np.isfinite(scores).all():
        raise Refusal(
            422,
            "features",
            "values such as the model was trained on",
            "values so large that a score is not finite",
            "look for a feature in other units than in training",
        )
    return scores


def _logged(request: Request, found: Answer, seconds: float) -> dict[str, Any]:
    """What the log says of a request; nothing of what is in it."""
    raw = request.scope.get("raw_path") or request.url.path.encode()
    return {
        "method": request.method[:_PATH],
        "path": raw.decode("latin-1")[:_PATH],
        "code": found.code,
        "model": found.model,
        "queries": found.n_queries,
        "documents": found.n_documents,
        "milliseconds": round(seconds * 1e3, 3),
    }


def _refused(refusal: Refusal, headers: dict[str, str] | None = None) -> Answer:
    return Answer(refusal.code, _json(refusal.to_dict()), headers=headers)


def _our_bug() -> Answer:
    """The answer to a request that met a bug of ours: a number to find it in the log by, and nothing else."""
    number = secrets.token_hex(4)
    LOG.exception("bug %s", number)
    bug = Refusal(500, "server", "an answer", f"a bug, number {number}", "report it with the lines of the log")
    return _refused(bug)


def _json(content: Any) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
