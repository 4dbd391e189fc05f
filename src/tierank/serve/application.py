"""The application: routes, answers and errors."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tierank import __version__
from tierank.deadline import Deadline, seconds_left
from tierank.errors import ParameterError, TierankError, near_name
from tierank.explain import Explanation
from tierank.kernels import most_workers, n_threads
from tierank.rankers import Ranked
from tierank.serve.counters import Counters, gauge
from tierank.serve.documents import Documents, warm_up
from tierank.serve.keys import Keys
from tierank.serve.lanes import ByteBudget, Lane, Share, stopping
from tierank.serve.limits import LARGE, Limits
from tierank.serve.log import log_replacement
from tierank.serve.models import ServedModel, Version
from tierank.serve.openapi import describe_api
from tierank.serve.refusals import Refusal, busy, shown
from tierank.serve.requests import Rank, read_rank, read_score
from tierank.settings import as_whole

LOG = logging.getLogger("tierank.serve")

# Features that an explanation names.
_NAMED = 5
# Characters of an unknown path that the log keeps.
_PATH = 200
# Threads that explain: explanations are for people to read, and scores come first.
_EXPLAINING = 1
# Routes that need no API key, for orchestrators: they reveal nothing about models or traffic.
_OPEN = ("health", "ready")


@dataclass
class Answer:
    """A response, with its facts for the log and the counters."""

    code: int
    content: bytes
    kind: str = "application/json"
    headers: dict[str, str] | None = None
    model: str | None = None
    n_queries: int = 0
    n_documents: int = 0
    sent: Callable[[], None] | None = None  # called when the client has it, or is gone


class Sending(Response):
    """A response that is sent in pieces, so that a large one only takes memory beyond its own as the client reads."""

    def __init__(self, found: Answer, headers: dict[str, str]) -> None:
        super().__init__(found.content, found.code, headers, found.kind)
        self.sent = found.sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            body = bytes(self.body)
            for start in range(0, len(body), LARGE):
                await send({"type": "http.response.body", "body": body[start : start + LARGE], "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            if self.sent is not None:
                self.sent()


# The result of work in a thread: an answer, or work for another kind of thread.
Work = Callable[[], "Answer | Work"]


class Service:
    """Answers requests for some models. Bodies are received on the event loop; all else is done in threads.

    Bodies of usual size, large bodies and explanations have separate threads and queues, so that small requests are
    answered however many of the others there are.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: Limits | None = None,
        threads: int | None = None,
        counters: Counters | None = None,
        keys: Keys | None = None,
    ) -> None:
        if not models:
            raise ParameterError("models: expected at least one, got none")
        self.models = {model.name: model for model in models}
        self.limits = limits or Limits()
        self.threads = n_threads(None) if threads is None else as_whole("threads", threads, most=most_workers())
        self.counters = counters or Counters(list(self.models))
        self.keys = keys
        self.is_stopping = False
        self._scoring_lane = Lane("requests", self.threads, self.limits.max_waiting)
        self._large_lane = Lane("large requests", self.threads, self.limits.max_waiting)
        self._explaining_lane = Lane("explanations", _EXPLAINING, self.limits.max_explaining)
        self._room = ByteBudget(self.limits.max_large_bytes)
        warm_up()

    def application(self) -> Starlette:
        """The ASGI application. It needs no lifespan events, so it can be mounted anywhere."""
        application = Starlette(
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
        application.router.redirect_slashes = False
        return application

    def replace(self, model: ServedModel) -> None:
        """Load the current content of the folder of a model; if that fails, the old model stays."""
        try:
            is_new = model.replace()
        except (TierankError, OSError) as error:
            log_replacement(self.counters, model.name, str(error))
        except Exception:
            LOG.exception("model %s", model.name)
            log_replacement(self.counters, model.name, "a bug")
        else:
            log_replacement(self.counters, model.name, None, model.version.checksum if is_new else None)

    def close(self) -> None:
        """Stop all work, once no client waits for it."""
        for lane in (self._scoring_lane, self._large_lane, self._explaining_lane):
            lane.close()

    # Around every request

    def _endpoint(
        self, route: str, answer: Callable[[Request], Awaitable[Answer]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            start = time.perf_counter()
            try:
                if route not in _OPEN:
                    self._check_key(request)
                response = await answer(request)
            except Refusal as refusal:
                response = _refused(refusal)
            except TierankError as error:
                response = _refused(Refusal(422, "body", "what the model can score", str(error), "see GET /models"))
            except ClientDisconnect:  # the client has disconnected
                response = _refused(Refusal(400, "body", "the whole body", "a part", "send the whole body"))
            except MemoryError:
                response = _refused(busy("enough memory", "too little", "send fewer documents at once, or try again"))
            except asyncio.CancelledError:
                if not self.is_stopping:
                    raise
                response = _refused(stopping())  # the time for running requests is over
            except Exception:
                response = _our_bug()
            return self._finished(request, route, response, start)

        return endpoint

    async def _no_route(self, request: Request, error: HTTPException) -> Response:
        """The answer if no route matches the path or the method."""
        start, path = time.perf_counter(), request.url.path.removeprefix(request.scope.get("root_path", ""))
        try:
            self._check_key(request)
        except Refusal as refusal:
            return self._finished(request, "other", _refused(refusal), start)
        known = ("/rank", "/score", "/health", "/ready", "/models", "/metrics", "/openapi.json")
        if error.status_code == 405:
            allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
            fix = f"use {allowed} for {path[:_PATH]}"
            response = _refused(Refusal(405, "method", allowed or "another", request.method, fix, {"Allow": allowed}))
        else:
            near = near_name(path, known)
            fix = f"did you mean {near}?" if near else "GET /openapi.json describes them"
            response = _refused(Refusal(404, "path", ", ".join(known), shown(path), fix))
        return self._finished(request, "other", response, start)

    def _finished(self, request: Request, route: str, found: Answer, start: float) -> Response:
        seconds = time.perf_counter() - start
        self.counters.count_request(route, found.code, seconds)
        if found.model is not None:
            self.counters.count_scored(found.model, found.n_queries, found.n_documents)
        if LOG.isEnabledFor(logging.INFO):
            LOG.info("request", extra={"request": _logged(request, found, seconds)})
        headers = dict(found.headers or {})
        if self.is_stopping:  # so that clients open their next connection to another server
            headers["Connection"] = "close"
        return Sending(found, headers)

    def _check_key(self, request: Request) -> None:
        header = request.headers.get("authorization")
        if self.keys is None or self.keys.admit(header):
            return
        got, error = ("none", "") if header is None else ("another one", ', error="invalid_token"')
        raise Refusal(
            401,
            "header Authorization",
            "Bearer and an API key of this server",
            got,
            "send Authorization: Bearer KEY",
            {"WWW-Authenticate": f'Bearer realm="tierank"{error}'},
        )

    def _scoring(self, work: Callable[[bytearray], Answer | Work]) -> Callable[[Request], Awaitable[Answer]]:
        """The answer of a route whose work is done in threads, from the request body to the response body."""

        async def answer(request: Request) -> Answer:
            self._check_head(request)
            share = self._room.share()
            try:
                body = await self._receive(request, share)
                deadline = Deadline(self.limits.timeout)
                lane = self._large_lane if len(body) > LARGE else self._scoring_lane
                result = await lane.run(partial(work, body), deadline)
                while not isinstance(result, Answer):
                    result = await self._explaining_lane.run(result, deadline)
            except BaseException:
                share.give_back()
                raise
            result.sent = share.give_back
            return result

        return answer

    def _check_head(self, request: Request) -> None:
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

    async def _receive(self, request: Request, share: Share) -> bytearray:
        """Receive the body within all limits. Bytes beyond 256 KB count towards the budget of large bodies."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_timeout):
                async for part in request.stream():
                    if len(body) + len(part) > self.limits.max_bytes:
                        raise self._too_large("more")
                    share.take(min(len(part), max(0, len(body) + len(part) - LARGE)))
                    body += part
            return body
        except TimeoutError:
            seconds = f"{self.limits.body_timeout:g} seconds"
            fix = "send it faster, or raise the limit body_timeout of the server"
            headers = {"Connection": "close"}
            raise Refusal(408, "body", f"the whole body within {seconds}", "a part", fix, headers) from None

    def _too_large(self, got: str) -> Refusal:
        fix = "send fewer documents at once, or raise the limit max_bytes of the server"
        return Refusal(413, "body", f"at most {self.limits.max_bytes} bytes", got, fix)

    # Routes

    def _rank(self, body: bytearray) -> Answer | Work:
        asked = read_rank(body, self._chosen, self.limits)
        if not len(asked.documents.features):
            return _ranking(asked, [])
        if not asked.explain:
            return _ranking(asked, _rows(asked.documents, asked.version.ranked(asked.documents, asked.k)))
        # One more than is shown, as the last one is explained against it.
        ranked = asked.version.ranked(asked.documents, (asked.k or 0) + 1)
        return partial(_explained, asked, ranked)

    def _score(self, body: bytearray) -> Answer:
        asked = read_score(body, self._chosen, self.limits)
        lengths = [len(documents.features) for documents in asked.lists]
        filled = [documents for documents in asked.lists if len(documents.features)]
        scores = _finite(asked.version.scores(filled) if filled else np.zeros(0)).tolist()
        ends = np.cumsum([0, *lengths]).tolist()
        queries = [
            ({} if id is None else {"id": id}) | {"scores": scores[start:end]}
            for id, start, end in zip(asked.ids, ends[:-1], ends[1:], strict=True)
        ]
        content = {"model": asked.model, "checksum": asked.version.checksum, "queries": queries}
        return Answer(200, _json(content), model=asked.model, n_queries=len(queries), n_documents=len(scores))

    def _chosen(self, name: Any) -> tuple[str, Version]:
        """The current version of the model that a request names, or of the first one."""
        if name is msgspec.UNSET:
            name = next(iter(self.models))
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
        root = request.scope.get("root_path", "")
        return Answer(200, _json(describe_api(list(self.models), self.limits, root, has_keys=self.keys is not None)))


def _ranking(asked: Rank[Version], rows: list[dict[str, Any]]) -> Answer:
    content = {"model": asked.model, "checksum": asked.version.checksum, "ranking": rows}
    return Answer(200, _json(content), model=asked.model, n_queries=1, n_documents=len(asked.documents.features))


def _rows(documents: Documents, ranked: Ranked) -> list[dict[str, Any]]:
    return [
        {"id": documents.id_of(row), "rank": rank, "score": score}
        for row, rank, score in zip(
            ranked.row.tolist(), ranked.rank.tolist(), _finite(ranked.score).tolist(), strict=True
        )
    ]


def _explained(asked: Rank[Version], ranked: Ranked) -> Answer:
    """The ranking with explanations; the last document of a list has none.

    The time of the first explanation predicts the time of all: if that is too long, the request is refused at once, and
    not only at the deadline.
    """
    above, below = ranked.row[:-1], ranked.row[1:]
    start = time.monotonic()
    try:
        whys = asked.version.explained(asked.documents, above[:1], below[:1])
    except ParameterError as error:  # a setting of the model: no request of this kind can succeed
        expected = "false, as the scores of this model cannot be explained"
        raise Refusal(422, "explain", expected, f"true ({error})", "leave it out") from None
    price = time.monotonic() - start
    if price * (len(above) - 1) > seconds_left():
        fits = 1 + int(seconds_left() / price)
        raise Refusal(
            422,
            "k",
            f"at most {fits} together with explain, for this model and list",
            f"{asked.k}, which would take {price * len(above):.0f} seconds",
            "ask for fewer documents, or raise the limit timeout of the server",
        )
    whys += asked.version.explained(asked.documents, above[1:], below[1:])
    rows = _rows(asked.documents, ranked)[: asked.k]
    for row, why in zip(rows, whys, strict=False):
        row["why"] = _why(why)
    return _ranking(asked, rows)


def _why(found: Explanation) -> dict[str, Any]:
    """Why a document is ranked above the next one: the features that add most, and the sum of all others."""
    _finite(found.contributions)
    top = found.top(_NAMED)
    named = [{"feature": found.features[j], "contribution": float(found.contributions[j])} for j in top]
    rest = found.difference - float(found.contributions[top].sum())
    return {"difference": found.difference, "contributions": named, "rest": rest}


def _finite(scores: Any) -> Any:
    """The scores. Raises ``Refusal`` if one is not finite, which JSON cannot hold."""
    if not np.isfinite(scores).all():
        raise Refusal(
            422,
            "features",
            "values such as the model was trained on",
            "values so large that a score is not finite",
            "check for a feature with other units than in training",
        )
    return scores


def _logged(request: Request, found: Answer, seconds: float) -> dict[str, Any]:
    """The log entry of a request; without its content."""
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


def _refused(refusal: Refusal) -> Answer:
    return Answer(refusal.code, _json(refusal.to_dict()), headers=refusal.headers)


def _our_bug() -> Answer:
    """The answer to a request that hit a bug: only a number to find it in the log."""
    number = secrets.token_hex(4)
    LOG.exception("bug %s", number)
    bug = Refusal(500, "server", "an answer", f"a bug, number {number}", "report it with the lines of the log")
    return _refused(bug)


def _json(content: Any) -> bytes:
    """JSON with the shortest text of each double. Scores were checked, so there is no NaN."""
    with suppress(UnicodeEncodeError, OverflowError):  # a lone surrogate or a huge number as an id
        return msgspec.json.encode(content)
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
