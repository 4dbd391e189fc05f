"""Malformed requests to a real ``tierank serve`` on 127.0.0.1: each gets an answer, and the server keeps running.

Requests are sent as bytes. An answer is a 200 or a 4xx with JSON; for bytes that are not HTTP, a 400 or a closed
connection. After each request the server has to return the right scores.
"""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults.models import BAD_VALUES
from benchmarks.faults.runner import Table, end_group, start

# The longest seconds until an answer, and until the answer of /health, also on a busy machine.
ANSWER, HEALTH = 45.0, 5.0
N_FEATURES = 6
NAMES = [f"f{k}" for k in range(N_FEATURES)]
# Values that replace any value of a body; texts are inserted unchanged.
HOSTILE = [
    *(json.dumps(value) for value in BAD_VALUES if value != "x" * 5000), "NaN", "Infinity", "-Infinity", "1e999", "01",
    "-1e999", "1e39", "9" * 400, "-0.0", "1e-400", "[" * 50 + "]" * 50, '"\\ud800"', '"\\u0000"', '""', "0x10", "1_0",
    ".5", "+1", "true", "false", "undefined", "'x'", "[null]", '{"a": 1, "a": 2}',
]  # fmt: skip
# Whole bodies.
BODIES = [
    b"", b" ", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 100_000, b"{}",
    b"null", b"[" * 100_000 + b"]" * 100_000, b'"' + b"\\u0041" * 20_000 + b'"', b'{"documents": [], "documents": []}',
    b'{"documents": [' + b"{}," * 50_000 + b"{}]}", b'{"features": "' + b"A" * 999_999 + b'"}',
    b'{"features": [' + b"[]," * 20_000 + b"[]]}", b'{"queries": [' + b"{}," * 20_000 + b"{}]}",
]  # fmt: skip
# Those of the second row are not HTTP, or need no answer: the connection may be closed.
METHODS = (
    ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO", "A" * 300),
    ("CONNECT", "post"),
)
PATHS = (
    ("/", "//rank", "/rank/", "/RANK", "/rank?x=1", "/../etc/passwd", "/%2e%2e/x", "/%ff", "/" + "a" * 8000, "/rank#x"),
    ("/\xff", "*", "x", "/" + "a" * 70_000, "http://x/rank", "/rank\x00"),
)
LENGTHS = (
    ("0", "1"),
    ("-1", "x", "1e3", " 5 ", "0x10", "99999999999999999999", "\xb2"),
)
TYPES = (None, "text/plain", "application/json; charset=utf-16", "APPLICATION/JSON", "", "x" * 5000, "\xff")
CODINGS = ("gzip", "identity", "br, gzip", "")
NO_HTTP = [
    b"\x16\x03\x01\x02\x00", b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 1000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\nA\r\n\r\n", b"A" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n : x\r\n\r\n", b"GET / HTTP/1.1\nHost: x\n\n",
]  # fmt: skip
CHUNKS = [
    b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", b"-5\r\nhello\r\n", b"FFFFFFFFFFFFFFFF\r\nx", b"5\r\nhel", b"",
    b"1;" + b"a" * 20_000 + b"\r\nx\r\n0\r\n\r\n",
]  # fmt: skip


class Server(NamedTuple):
    """A running server, and the scores that it has to return."""

    port: int
    pid: int
    body: bytes
    scores: list[float]


class Answer(NamedTuple):
    """The code of an answer (None: closed without one) and its content."""

    code: int | None
    content: bytes


# The served models: the first one is used for scores after each request, the last one is costly to explain.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "trees": ("umart", {"n_trees": 6}),
    "network": ("urank", {"max_epochs": 1, "hidden": (8,)}),
    "blend": ("blend", {"n_configs": 3, "n_seeds": 2, "n_trees": 30, "max_epochs": 1}),
}


@contextmanager
def serving(folder: Path, names: Sequence[str] = tuple(MODELS)) -> Iterator[Server]:
    """A server with these models."""
    import tierank

    data = tierank.make_ranking(25, n_features=N_FEATURES, mean_length=12, max_length=25, seed=3)
    data = data.with_features(data.features, tuple(NAMES))
    rankers = {name: tierank.RANKERS[MODELS[name][0]](n_jobs=1, **MODELS[name][1]).fit(data) for name in names}
    for name, ranker in rankers.items():
        ranker.save(folder / name)
    features = data.features[: data.offsets[1]]
    documents = [{"id": k, "features": row} for k, row in enumerate(features.tolist())]
    body = json.dumps({"queries": [{"documents": documents}]}).encode()
    with start(["serve", *(str(folder / name) for name in names), "--port", "0", "--threads", "2"]) as process:
        try:
            lines = iter(process.stderr)
            found = next(match for line in lines if (match := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
            threading.Thread(target=lambda: list(lines), daemon=True).start()  # a full pipe would stop the server
            expected = next(iter(rankers.values())).predict(data)[: data.offsets[1]].tolist()
            yield Server(int(found[1]), process.pid, body, expected)
        finally:
            end_group(process)


# Sending


def http(path: str, body: bytes, method: str = "POST", **headers: str | None) -> bytes:
    """The bytes of a request; a header that is None is left out."""
    given: dict[str, str | None] = {"Host": "x", "Content-Type": "application/json", "Content-Length": str(len(body))}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items() if value is not None)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def send(port: int, content: bytes, deadline: float = ANSWER, *, half_close: bool = False) -> Answer:
    """Send bytes, and wait for the answer; TimeoutError if none comes and the connection stays open."""
    with socket.create_connection(("127.0.0.1", port), timeout=deadline) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # rejected before all of it was sent
            connection.sendall(content)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        return receive(connection)


def receive(connection: socket.socket) -> Answer:
    content = b""
    try:
        while chunk := connection.recv(1 << 16):
            content = (content + chunk).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
            head, found, body = content.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            if found and length and len(body) >= int(length[1]):
                break
    except ConnectionResetError:
        pass
    code = re.match(rb"HTTP/1\.\d (\d{3})", content)
    return Answer(int(code[1]) if code else None, content.partition(b"\r\n\r\n")[2])


def judged(answer: Answer, is_http: bool) -> tuple[str, str]:
    """How a request ended, in the words of the table."""
    if answer.code is None:
        return ("wrong", "closed without an answer") if is_http else ("refused", "")
    if answer.code >= 500:
        return "traceback", f"{answer.code}: {answer.content[:100]!r}"
    if answer.code not in range(200, 500):
        return "wrong", f"code {answer.code}"
    with suppress(ValueError):
        json.loads(answer.content)
        return "works" if answer.code == 200 else "refused", ""
    return ("wrong", f"{answer.code} without JSON: {answer.content[:100]!r}") if is_http else ("refused", "")


def check_alive(server: Server) -> str | None:
    """The problem of the server now; None if it reports its health in time and returns the right scores."""
    try:
        if send(server.port, http("/health", b"", "GET"), HEALTH).code != 200:
            return "no health"
        answer = send(server.port, http("/score", server.body))
        found = json.loads(answer.content)["queries"][0]["scores"]
    except OSError as error:
        return f"no answer to the next request: {type(error).__name__}"
    except (ValueError, KeyError):
        return "no scores in the next answer"
    return None if found == server.scores else "other scores in the next answer"


# Requests


class Request(NamedTuple):
    """The bytes of a request, and whether it has to be answered: if it is not HTTP, the connection may be closed."""

    what: str
    note: str
    content: bytes
    is_http: bool = True
    half_close: bool = False


def sound_bodies(n: int = 3) -> dict[str, tuple[str, Any]]:
    """A body of each form, with its path."""
    row = [0.5] * N_FEATURES
    documents = [{"id": k, "features": row} for k in range(n)]
    named = [{"id": "a", "features": dict(zip(NAMES, row, strict=True))}]
    return {
        "rank": ("/rank", {"model": "trees", "k": 2, "documents": documents}),
        "explain": ("/rank", {"model": "network", "k": 2, "explain": True, "documents": documents}),
        "names": ("/rank", {"documents": named}),
        "matrix": ("/rank", {"ids": [1, 2], "names": NAMES, "features": [row, row]}),
        "base64": ("/rank", {"features": "AAAAPw==" * N_FEATURES}),
        "score": ("/score", {"model": "trees", "queries": [{"id": "q", "documents": documents}]}),
    }


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value can be replaced: everywhere in a body, the whole of it included."""
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def with_text(value: Any, path: tuple[Any, ...], text: str) -> str:
    """The JSON of a value, with a text at a place, which need not be JSON."""
    if not path:
        return text
    mark = "\u0001here"
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = mark
    return json.dumps(copy).replace(json.dumps(mark), text)


def wrong_values(count: int, rng: random.Random) -> Iterator[Request]:
    """Hostile values at each place of each body."""
    for form, (path, body) in sound_bodies().items():
        for place in places(body):
            for text in rng.sample(HOSTILE, min(count, len(HOSTILE))):
                content = with_text(body, place, text).encode()
                yield Request("HTTP: invalid values in the JSON", f"{form} {place}: {text[:20]}", http(path, content))


def wrong_bodies(count: int, rng: random.Random) -> Iterator[Request]:
    """Bodies that are not JSON, and valid ones with changed bytes."""
    sound = _sound()
    changed = [
        b"\xef\xbb\xbf" + sound,
        sound.decode().encode("utf-16"),
        sound * 2,
        sound[:-1],
        sound.replace(b"k", b"kk"),
    ]
    for k, content in enumerate([*BODIES, *changed]):
        for path in ("/rank", "/score"):
            yield Request("HTTP: malformed bodies", f"body {k} to {path}: {content[:20]!r}", http(path, content))
    for k in range(10 * count):
        other = bytearray(sound)
        for _ in range(rng.choice([1, 3])):
            other[rng.randrange(len(other))] = rng.randrange(256)
        yield Request("HTTP: bodies with corrupted bytes", f"seeded body {k}", http("/rank", bytes(other)))


def wrong_heads(count: int, rng: random.Random) -> Iterator[Request]:
    """Methods, paths and headers; bytes that are not HTTP."""
    body, what = _sound(), "HTTP: methods, paths, headers"
    for is_http in (True, False):
        for method in METHODS[not is_http]:
            yield Request(what, f"method {method[:20]}", http("/rank", body, method), is_http)
        for path in PATHS[not is_http]:
            yield Request(what, f"path {path[:20]!r}", http(path, body), is_http)
    for kind in TYPES:
        yield Request(what, f"Content-Type {kind!r:.30}", http("/rank", body, Content_Type=kind))
    for coding in CODINGS:
        yield Request(what, f"Content-Encoding {coding}", http("/rank", body, Content_Encoding=coding))
    many = {f"X-{k}": "y" * 100 for k in range(400)}
    yield Request(what, "400 headers", http("/rank", body, **many), is_http=False)
    yield Request(what, "a header of 100 KB", http("/rank", body, X="y" * 100_000), is_http=False)
    yield Request(what, "no Host", http("/rank", body, Host=None), is_http=False)
    yield Request(what, "Expect", http("/rank", body, Expect="100-continue"))
    yield Request(what, "HTTP/1.0", http("/rank", body).replace(b"HTTP/1.1", b"HTTP/1.0"))
    for garbage in NO_HTTP:
        yield Request("HTTP: garbage instead of HTTP", f"{garbage[:20]!r}", garbage, is_http=False, half_close=True)


def wrong_lengths(count: int, rng: random.Random) -> Iterator[Request]:
    """Wrong lengths of the body, invalid chunks, and bodies that end too soon."""
    body, what = _sound(), "HTTP: wrong lengths, truncated bodies"
    for is_http in (True, False):
        for length in LENGTHS[not is_http]:
            content = http("/rank", body, Content_Length=length)
            yield Request(what, f"Content-Length {length}", content, is_http, half_close=not is_http)
    yield Request(what, "no length", http("/rank", body, Content_Length=None), is_http=False, half_close=True)
    yield Request(what, "above the limit", http("/rank", b"x", Content_Length=str(1 << 40)))
    for cut in rng.sample(range(len(body)), min(5 * count, len(body))):
        content = http("/rank", body[:cut], Content_Length=str(len(body)))
        yield Request(what, f"{cut} of {len(body)} bytes", content, is_http=False, half_close=True)
    two = b"Host: x\r\nContent-Length: 5\r\nContent-Length: 7"
    content = http("/rank", body, Content_Length=None).replace(b"Host: x", two)
    yield Request(what, "two lengths", content, is_http=False, half_close=True)
    for chunks in CHUNKS:
        content = http("/rank", chunks, Content_Length=None, Transfer_Encoding="chunked")
        yield Request(what, f"chunks {chunks[:20]!r}", content, is_http=False, half_close=True)


def _sound() -> bytes:
    return json.dumps(sound_bodies()["rank"][1]).encode()


FAMILIES: tuple[Callable[[int, random.Random], Iterator[Request]], ...] = (
    wrong_values,
    wrong_bodies,
    wrong_heads,
    wrong_lengths,
)


def try_request(table: Table, server: Server, request: Request, folder: Path) -> None:
    try:
        end, words = judged(send(server.port, request.content, half_close=request.half_close), request.is_http)
    except TimeoutError:
        end, words = "hang", f"no answer in {ANSWER:g} s"
    except ConnectionRefusedError:
        end, words = "crash", "nobody listens"
    trouble = check_alive(server)
    if trouble is not None and end in ("works", "refused"):
        end, words = ("hang" if "Timeout" in trouble else "wrong"), trouble
    kept = folder / "request"
    kept.mkdir()
    (kept / "request.bin").write_bytes(request.content)
    table.add(request.what, end, words, kept, request.note)


# Requests that take the server's time and memory


def stalling(server: Server) -> Iterator[tuple[str, str, str]]:
    """Costly requests, while others have to be answered; yields the request, how it ended, and the message."""
    row = [0.5] * N_FEATURES
    many = {"documents": [{"features": [k / 100, *row[1:]]} for k in range(100)]}
    explain = json.dumps({"model": "blend", "k": 100, "explain": True, **many}).encode()
    lists = b'{"documents": [' + b"[]," * 5_000_000 + b"[]]}"
    deep = b'{"documents": ' + b"[" * 7_000_000 + b"]" * 7_000_000 + b"}"
    numbers = b'{"features": [[' + b"1.5," * 3_800_000 + b"1]]}"
    for name, path, body, n in (
        ("5 million empty lists", "/rank", lists, 1),
        ("7 million open brackets", "/rank", deep, 1),
        ("4 million numbers", "/rank", numbers, 1),
        ("100 explanations of a blend", "/rank", explain, 4),  # the last one: it can stop all threads for minutes
    ):
        answers: list[Any] = []
        senders = [threading.Thread(target=_ask_into, args=(answers, server.port, http(path, body))) for _ in range(n)]
        for sender in senders:
            sender.start()
        slowest = _slowest_health(server, senders)
        if slowest > HEALTH:
            yield name, "hang", f"/health took {slowest:.0f} s meanwhile"
        for answer in answers:
            yield name, *(("hang", f"no answer in {ANSWER:g} s") if answer is None else _stalled(answer))
        trouble = check_alive(server)
        if trouble is not None:
            yield name, "hang", trouble


def _stalled(answer: Answer) -> tuple[str, str]:
    """As ``judged``; a costly request may also be rejected because it takes too long."""
    return ("refused", "") if answer.code in (503, 504) else judged(answer, is_http=True)


def _ask_into(answers: list[Any], port: int, content: bytes) -> None:
    try:
        answers.append(send(port, content))
    except TimeoutError:
        answers.append(None)


def _slowest_health(server: Server, senders: list[threading.Thread]) -> float:
    slowest = 0.0
    while any(sender.is_alive() for sender in senders):
        start = time.monotonic()
        with suppress(OSError):
            send(server.port, http("/health", b"", "GET"), ANSWER)
        slowest = max(slowest, time.monotonic() - start)
        time.sleep(0.05)
    return slowest


def held_memory(server: Server, n: int) -> tuple[str, str]:
    """Unfinished bodies of 15 MB: the memory that they take in the server is limited."""
    before = _resident(server.pid)
    part = http("/rank", b"", Content_Length=str(15 << 20)) + b" " * ((15 << 20) - 1)
    held = []
    try:
        for _ in range(n):
            held.append(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            with suppress(OSError):
                held[-1].sendall(part)
        time.sleep(1)
        grown = (_resident(server.pid) - before) >> 20
    finally:
        for connection in held:
            connection.close()
    allowed = 256
    return ("wrong", f"{n} bodies of 15 MB took more than {allowed} MB") if grown > allowed else ("works", "")


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def attack(table: Table, folder: Path, count: int, seed: int) -> None:
    """``count`` hostile values at each place, all other requests, and then the costly ones."""
    rng = random.Random(seed)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with serving(folder) as server:
        for family in FAMILIES:
            for request in family(count, rng):
                try_request(table, server, request, folder)
        table.add("HTTP: unfinished bodies", *held_memory(server, 30))
        for name, end, words in stalling(server):
            table.add("HTTP: costly requests", end, words, note=name)
