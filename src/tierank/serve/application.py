"""The application: routes, answers and errors."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tierank import __version__
from tierank.errors import ParameterError, TierankError, near_name
from tierank.kernels import most_workers, n_threads
from tierank.rankers.base import Ranked
from tierank.serve import LARGE, Limits
from tierank.serve.admission import Keys, Pool, Refusal, busy, shown, stopping
from tierank.serve.monitoring import Counters, labelled
from tierank.serve.requests import Documents, Rank, read_numbers, read_rank, read_score
from tierank.serve.served_models import ServedModel, Version
from tierank.settings import as_whole
from tierank.workers import Deadline, seconds_left

LOG = logging.getLogger("tierank.serve")

PATHS = ("/rank", "/score", "/health", "/ready", "/models", "/metrics", "/openapi.json")
# Routes that need no API key, for orchestrators: they reveal nothing about models or traffic.
_OPEN = ("health", "ready")
# Features that an explanation names.
_NAMED = 5
# Characters of an unknown path that the log keeps.
_SHOWN_PATH = 200


@dataclass
class Answer:
    """A response, with its facts for the log and the counters."""

    content: bytes
    code: int = 200
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    n_queries: int = 0
    n_documents: int = 0


# The answer, from the body of a request, or the explanation that gives it, which has a thread of its own.
Work = Callable[[bytearray], "Answer | Callable[[], Answer]"]


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
            raise ParameterError(argument="models", expected="at least one", got="none")
        self.models = {model.name: model for model in models}
        self.limits = limits or Limits()
        self.threads = n_threads(None) if threads is None else as_whole("threads", threads, most=most_workers())
        self.counters = counters or Counters(list(self.models))
        self.keys = keys
        self.is_stopping = False
        # Bytes beyond 256 KB of all bodies that are being received or processed.
        self.large_bytes = 0
        self.scoring = Pool("requests", self.threads, self.limits.max_waiting)
        self.scoring_large = Pool("large requests", self.threads, self.limits.max_waiting)
        self.explaining = Pool("explanations", 1, self.limits.max_explaining)
        read_numbers([b"[0]"], 1, 1)  # compiled now, so that no request has to wait for that

    def application(self) -> Starlette:
        """The ASGI application. It needs no lifespan events, so it can be mounted anywhere."""

        def route(path: str, name: str, answer: Callable[[Request], Awaitable[Answer]], method: str = "GET") -> Route:
            return Route(path, partial(self._respond, name, answer), methods=[method])

        async def no_route(request: Request, error: HTTPException) -> Response:
            return await self._respond("other", partial(self._no_route, error), request)

        application = Starlette(
            routes=[
                route("/rank", "rank", partial(self._answer_scores, self._rank), "POST"),
                route("/score", "score", partial(self._answer_scores, self._score), "POST"),
                route("/health", "health", self._health),
                route("/ready", "ready", self._ready),
                route("/models", "models", self._models),
                route("/metrics", "metrics", self._metrics),
                route("/openapi.json", "openapi", self._openapi),
            ],
            exception_handlers={HTTPException: no_route},  # type: ignore[dict-item]
        )
        application.router.redirect_slashes = False
        return application

    def replace(self, model: ServedModel) -> None:
        """Load the current content of the folder of a model; if that fails, the old model stays."""
        try:
            is_new = model.replace()
        except Exception as error:
            is_bug = not isinstance(error, (TierankError, OSError))
            why = "a bug" if is_bug else " ".join(str(error).split())
            self.counters.count_reload(model.name, "refused")
            LOG.error("model %s: kept the old one: %s", model.name, why, exc_info=is_bug)
            return
        if is_new:
            self.counters.count_reload(model.name, "replaced")
            LOG.info("model %s: replaced, checksum %s", model.name, model.version.checksum)
        else:
            LOG.info("model %s: unchanged", model.name)

    def close(self) -> None:
        """Stop all work, once no client waits for it."""
        for pool in (self.scoring, self.scoring_large, self.explaining):
            pool.close()

    # Around every request

    async def _respond(self, route: str, answer: Callable[[Request], Awaitable[Answer]], request: Request) -> Response:
        """Answer a request, whatever happens; count and log it."""
        start = time.perf_counter()
        try:
            if {"transfer-encoding", "content-length"} <= set(request.headers):  # a proxy could take the other one
                fix = "leave out Content-Length"
                raise Refusal(400, "request", "one length of the body", "two", fix, {"Connection": "close"})
            if route not in _OPEN:
                self._check_key(request)
            found = await answer(request)
        except Refusal as refusal:
            found = _refused(refusal)
        except TierankError as error:
            found = _refused(Refusal(422, "body", "what the model can score", str(error), "see GET /models"))
        except ClientDisconnect:
            found = _refused(Refusal(400, "body", "the whole body", "a part", "send the whole body"))
        except MemoryError:
            found = _refused(busy("enough memory", "too little", "send fewer documents at once, or retry later"))
        except asyncio.CancelledError:
            if not self.is_stopping:
                raise
            found = _refused(stopping())  # the time for running requests is over
        except Exception:
            number = secrets.token_hex(4)
            LOG.exception("bug %s", number)
            fix = "report it with the lines of the log"
            found = _refused(Refusal(500, "server", "an answer", f"a bug, number {number}", fix))
        seconds = time.perf_counter() - start
        self.counters.count_request(route, found.code, seconds)
        if found.model is not None:
            self.counters.count_scored(found.model, found.n_queries, found.n_documents)
        if LOG.isEnabledFor(logging.INFO):
            path = request.scope.get("raw_path") or request.url.path.encode()
            facts = {
                "method": request.method[:_SHOWN_PATH],
                "path": path.decode("latin-1")[:_SHOWN_PATH],
                "code": found.code,
                "model": found.model,
                "queries": found.n_queries,
                "documents": found.n_documents,
                "milliseconds": round(seconds * 1e3, 3),
            }
            LOG.info("request", extra={"request": facts})
        if self.is_stopping:  # so that clients open their next connection to another server
            found.headers["Connection"] = "close"
        return Response(found.content, found.code, found.headers, found.kind)

    def _check_key(self, request: Request) -> None:
        header = request.headers.get("authorization")
        if self.keys is None or self.keys.admit(header):
            return
        got, error = ("none", "") if header is None else ("another one", ', error="invalid_token"')
        expected, fix = "Bearer and an API key of this server", "send Authorization: Bearer KEY"
        headers = {"WWW-Authenticate": f'Bearer realm="tierank"{error}'}
        raise Refusal(401, "header Authorization", expected, got, fix, headers)

    async def _no_route(self, error: HTTPException, request: Request) -> Answer:
        """The refusal if no route matches the path or the method."""
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        if error.status_code == 405:
            allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
            fix = f"use {allowed} for {path[:_SHOWN_PATH]}"
            raise Refusal(405, "method", allowed or "another", request.method, fix, {"Allow": allowed})
        near = near_name(path, PATHS)
        fix = f"did you mean {near}?" if near else "GET /openapi.json describes them"
        raise Refusal(404, "path", ", ".join(PATHS), shown(path), fix)

    # Scores

    async def _answer_scores(self, work: Work, request: Request) -> Answer:
        """The answer of a route whose work is done in threads, from the body of the request on."""
        self._check_head(request)
        body = bytearray()
        try:
            await self._receive(request, body)
            deadline = Deadline(self.limits.timeout)
            pool = self.scoring_large if len(body) > LARGE else self.scoring
            found = await pool.run(partial(work, body), deadline)
            return found if isinstance(found, Answer) else await self.explaining.run(found, deadline)
        finally:
            self.large_bytes -= max(0, len(body) - LARGE)

    def _check_head(self, request: Request) -> None:
        headers = request.headers
        kind = headers.get("content-type", "none")
        if kind.partition(";")[0].strip().lower() != "application/json":
            fix = "send the header Content-Type: application/json"
            raise Refusal(415, "header Content-Type", "application/json", shown(kind), fix)
        coding = headers.get("content-encoding", "identity")
        if coding.lower() != "identity":
            raise Refusal(415, "header Content-Encoding", "none", shown(coding), "send the body as it is")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self.limits.max_bytes:
            raise self._too_large(f"{length[:20]} bytes")

    async def _receive(self, request: Request, body: bytearray) -> None:
        """Receive the body within all limits."""
        limits = self.limits
        try:
            async with asyncio.timeout(limits.body_timeout):
                async for part in request.stream():
                    size = len(body) + len(part)
                    if size > limits.max_bytes:
                        raise self._too_large("more")
                    n_large = max(0, size - max(len(body), LARGE))
                    if self.large_bytes + n_large > limits.max_large_bytes:
                        expected = f"at most {limits.max_large_bytes} bytes of large requests at a time"
                        fix = "retry later, or raise the limit max_large_bytes of the server"
                        raise busy(expected, "more", fix)
                    body += part
                    self.large_bytes += n_large
        except TimeoutError:
            expected = f"the whole body within {limits.body_timeout:g} seconds"
            fix = "send it faster, or raise the limit body_timeout of the server"
            raise Refusal(408, "body", expected, "a part", fix, {"Connection": "close"}) from None

    def _too_large(self, got: str) -> Refusal:
        fix = "send fewer documents at once, or raise the limit max_bytes of the server"
        return Refusal(413, "body", f"at most {self.limits.max_bytes} bytes", got, fix)

    def _rank(self, body: bytearray) -> Answer | Callable[[], Answer]:
        asked = read_rank(body, self._chosen, self.limits)
        if not len(asked.documents.features):
            return _ranking(asked, [])
        if not asked.explain:
            return _ranking(asked, _rows(asked.documents, asked.version.ranked(asked.documents, asked.k)))
        # One more than is shown, as the last one is explained against it.
        return partial(_explained, asked, asked.version.ranked(asked.documents, (asked.k or 0) + 1))

    def _score(self, body: bytearray) -> Answer:
        asked = read_score(body, self._chosen, self.limits)
        filled = [documents for documents in asked.lists if len(documents.features)]
        scores = _finite(asked.version.scores(filled) if filled else np.zeros(0)).tolist()
        ends = np.cumsum([len(documents.features) for documents in asked.lists]).tolist()
        queries = [
            ({} if id is None else {"id": id}) | {"scores": scores[end - len(documents.features) : end]}
            for id, documents, end in zip(asked.ids, asked.lists, ends, strict=True)
        ]
        content = {"model": asked.model, "checksum": asked.version.checksum, "queries": queries}
        return Answer(_json(content), model=asked.model, n_queries=len(queries), n_documents=len(scores))

    def _chosen(self, name: Any) -> tuple[str, Version]:
        """The current version of the model that a request names, or of the first one."""
        if name is msgspec.UNSET:
            name = next(iter(self.models))
        if not isinstance(name, str) or name not in self.models:
            near = near_name(name, self.models) if isinstance(name, str) else None
            fix = f"did you mean {near!r}?" if near else "GET /models lists them; leave it out for the first"
            raise Refusal(404, "model", ", ".join(self.models), shown(name), fix)
        return name, self.models[name].version

    # Other routes

    async def _health(self, request: Request) -> Answer:
        return Answer(_json({"status": "alive"}))

    async def _ready(self, request: Request) -> Answer:
        if self.is_stopping:
            raise stopping()
        return Answer(_json({"status": "ready"}))

    async def _models(self, request: Request) -> Answer:
        rows = [{"name": name, **model.version.describe()} for name, model in self.models.items()]
        return Answer(_json({"models": rows}))

    async def _metrics(self, request: Request) -> Answer:
        info, loaded = "tierank_model_info", "tierank_model_loaded_timestamp_seconds"
        infos, times = [], []
        for name, model in self.models.items():
            version = model.version
            ranker, checksum = type(version.ranker).__name__, version.checksum or ""
            infos.append(f"{labelled(info, model=name, ranker=ranker, checksum=checksum, tierank=__version__)} 1")
            times.append(f"{labelled(loaded, model=name)} {version.loaded:.15g}")
        lines = [
            *self.counters.lines(),
            *(f"# HELP {info} The models that answer.", f"# TYPE {info} gauge", *infos),
            *(f"# HELP {loaded} When the model was loaded.", f"# TYPE {loaded} gauge", *times),
        ]
        return Answer(("\n".join(lines) + "\n").encode(), kind="text/plain; version=0.0.4; charset=utf-8")

    async def _openapi(self, request: Request) -> Answer:
        """The description of all routes; a test compares real answers with it."""
        template = Template(Path(__file__).with_name("openapi.json").read_text(encoding="utf-8"))
        text = template.safe_substitute(
            models=json.dumps(list(self.models)),
            first=next(iter(self.models)),
            version=json.dumps(__version__),
            root=json.dumps(request.scope.get("root_path", "") or "/"),
            max_documents=self.limits.max_documents,
        )
        description = json.loads(text)
        if self.keys is None:
            del description["components"]["securitySchemes"]
            for methods in description["paths"].values():
                for about in methods.values():
                    about.pop("security", None)
                    about["responses"].pop("401", None)
        return Answer(_json(description))


def _ranking(asked: Rank, rows: list[dict[str, Any]]) -> Answer:
    content = {"model": asked.model, "checksum": asked.version.checksum, "ranking": rows}
    return Answer(_json(content), model=asked.model, n_queries=1, n_documents=len(asked.documents.features))


def _rows(documents: Documents, ranked: Ranked) -> list[dict[str, Any]]:
    columns = ranked.row.tolist(), ranked.rank.tolist(), _finite(ranked.score).tolist()
    return [
        {"id": documents.id_of(row), "rank": rank, "score": score} for row, rank, score in zip(*columns, strict=True)
    ]


def _explained(asked: Rank, ranked: Ranked) -> Answer:
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
        expected = f"at most {1 + int(seconds_left() / price)} together with explain, for this model and list"
        got = f"{asked.k}, which would take {price * len(above):.0f} seconds"
        fix = "ask for fewer documents, or raise the limit timeout of the server"
        raise Refusal(422, "k", expected, got, fix)
    whys += asked.version.explained(asked.documents, above[1:], below[1:])
    rows = _rows(asked.documents, ranked)[: asked.k]
    for row, why in zip(rows, whys, strict=False):
        contributions = _finite(why.contributions)
        top = why.top(_NAMED)
        row["why"] = {
            "difference": why.difference,
            "contributions": [{"feature": why.features[j], "contribution": float(contributions[j])} for j in top],
            "rest": why.difference - float(contributions[top].sum()),
        }
    return _ranking(asked, rows)


def _finite(scores: Any) -> Any:
    """The scores. Raises ``Refusal`` if one is not finite, which JSON cannot hold."""
    if not np.isfinite(scores).all():
        expected, got = "values such as the model was trained on", "values so large that a score is not finite"
        raise Refusal(422, "features", expected, got, "check for a feature with other units than in training")
    return scores


def _refused(refusal: Refusal) -> Answer:
    return Answer(_json({"error": refusal.fields()}), refusal.code, headers=refusal.headers)


def _json(content: Any) -> bytes:
    """JSON with the shortest text of each double. Scores were checked, so there is no NaN."""
    with suppress(UnicodeEncodeError, OverflowError):  # a lone surrogate or a huge number as an id
        return msgspec.json.encode(content)
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
