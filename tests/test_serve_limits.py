"""What a server is asked too much of: sizes, queues, deadlines, and who may ask at all."""

import asyncio
import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("msgspec")

from running import PATIENCE
from serve_tools import ROW, TREES, Held, as_base64, ask, asking, make_data, quick, wait_for

import tierank
from tierank import ParameterError, cli
from tierank.cli.commands import Parser
from tierank.rankers.base import Ranker
from tierank.rankers.explain import explain_query
from tierank.serve import LARGE, Connections, Limits, app, application, requests
from tierank.serve.admission import Keys
from tierank.serve.application import Service
from tierank.serve.served_models import ServedModel
from tierank.workers import Deadline, check_deadline, seconds_left


@pytest.fixture(scope="module")
def data():
    return make_data()


@pytest.fixture(scope="module")
def trees() -> Ranker:
    return quick("umart").fit(make_data(named=True, has_missing=True))


@pytest.fixture
def held(data):
    ranker = Held(**TREES).fit(data)
    ranker.may_go.set()
    yield ranker
    ranker.may_go.set()


# Sizes


def test_limits(trees):
    served = app({"m": trees}, limits=Limits(max_bytes=1000, max_documents=3), threads=1)
    assert ask(served, "/rank", {"features": [ROW] * 3})[0] == 200
    for path, body in (
        ("/rank", {"features": [ROW] * 4}),
        ("/rank", {"features": as_base64([ROW] * 4)}),
        ("/rank", {"documents": [{"features": ROW}] * 4}),
        ("/score", {"queries": [{"features": [ROW] * 2}] * 2}),
        ("/score", {"queries": [{"features": []}] * 4}),
    ):
        code, _, found = ask(served, path, body)
        assert code == 413
        assert "the limit max_documents of the server" in found["error"]["fix"]
    code, _, found = ask(served, "/rank", b" " * 2000)
    assert (code, found["error"]["expected"]) == (413, "at most 1000 bytes")
    code, _, found = ask(served, "/rank", b"", headers={"content-length": "9" * 30})
    assert code == 413
    assert ask(served, "/rank", parts=[b" " * 600] * 2)[0] == 413
    assert ask(served, "/rank", parts=[b'{"documents"', b": []}"])[0] == 200


def test_limits_are_checked_when_they_are_set():
    for name in ("max_bytes", "max_documents", "max_large_bytes"):
        with pytest.raises(ParameterError, match=f"{name}: expected an integer >= 1"):
            Limits(**{name: 0})
    for name in ("timeout", "body_timeout"):
        with pytest.raises(ParameterError, match=f"{name}: expected a number > 0"):
            Limits(**{name: 0})
    with pytest.raises(ParameterError, match="max_large_bytes: expected at least max_bytes"):
        Limits(max_bytes=1000, max_large_bytes=999)
    with pytest.raises(ParameterError, match="max_connections: expected an integer"):
        Connections(max_connections=True)
    with pytest.raises(ParameterError, match="idle_timeout: expected a number > 0"):
        Connections(idle_timeout=float("inf"))


def test_every_limit_is_an_option_and_stands_in_the_documentation():
    options = Parser(cli.TIERANK, prog="tierank").parse_args(["serve", "m"])
    page = (Path(__file__).parents[1] / "docs" / "serve.md").read_text(encoding="utf-8")
    for kind in (Limits, Connections):
        for one in fields(kind):
            assert getattr(options, one.name) == one.default
            row = re.search(rf"\| `--{one.name.replace('_', '-')}` \| ([^|]*) \|", page)
            assert row is not None, one.name
            assert float(row[1].replace(",", "")) == one.default


# Large bodies


@pytest.fixture(scope="module")
def wide():
    """A model with as many features as real ones have."""
    data = tierank.make_ranking(20, n_features=60, mean_length=10, max_length=20, seed=4)
    return quick("umart", n_trees=3).fit(data)


EMPTY = b"[]," * 700_000
# Bodies of some megabytes; all but the first three ask for what cannot be.
LARGE_BODIES = {
    "documents": lambda rows: {"documents": [{"id": f"d{i}", "features": row} for i, row in enumerate(rows)]},
    "matrix": lambda rows: {"ids": list(range(len(rows))), "features": rows, "k": 3},
    "base64": lambda rows: {"features": as_base64(rows)},
    "wrong at the end": lambda rows: {"features": [*rows, ["x"] * 60]},
    "lists": b'{"documents":[' + EMPTY + b"[]]}",
    "a document of lists": b'{"documents":[{"features":[' + EMPTY + b"[]]}]}",
    "numbers": b'{"features":[[' + b"0," * 900_000 + b"0]]}",
    "names": b'{"features":[],"names":[' + b'"",' * 700_000 + b'""]}',
    "an unknown name": b'{"x":[' + EMPTY + b"[]]}",
    "many names": b"{" + b'"x":[],' * 300_000 + b'"x":[]}',
    "a long name": b'{"' + b"x" * 2_000 + b'":[' + EMPTY + b"[]]}",
    "nesting": b'{"documents":' + b"[" * 2_000_000,
    "another end": b'{"documents":[' + EMPTY + b"[]}",
    "two ends": b'{"documents":[' + b'{"features":[]},' * 9_000 + b'{"features":[]}' + b" " * LARGE + b"] []}",
    "k": b'{"features":[],"k":[' + EMPTY + b"[]]}",
    "ids": b'{"features":[],"ids":[[' + EMPTY + b"[]]]}",
    "no object": b"[" + EMPTY + b"[]]",
    "blanks": b" " * 2_000_000,
}


@pytest.mark.parametrize("name", LARGE_BODIES)
def test_a_large_body_is_never_decoded_as_a_whole_and_others_have_their_turn(wide, name, monkeypatch):
    """Python's decoder would stop all other threads."""
    sizes, read_json = [0], requests._read_json
    monkeypatch.setattr(requests, "_read_json", lambda text, where: sizes.append(len(text)) or read_json(text, where))
    service = Service([ServedModel.of("m", wide)], threads=1)
    body = LARGE_BODIES[name]
    if callable(body):
        body = json.dumps(body(np.random.default_rng(1).normal(size=(4000, 60)).round(4).tolist())).encode()
    n_turns = 0

    async def run():
        nonlocal n_turns
        served = service.application()
        task = asyncio.ensure_future(asking(served, "/rank", parts=cut(body)))
        while not task.done():
            await asyncio.sleep(0)
            assert (await asking(served, "/health"))[0] == 200
            n_turns += 1
        return task.result()

    code, _, found = asyncio.run(run())
    if name in ("documents", "matrix", "base64"):
        assert code == 200, found
        assert len(found["ranking"]) == (3 if name == "matrix" else 4000)
    else:
        assert code in (400, 413, 422), found
        assert set(found["error"]) == {"where", "expected", "got", "fix"}
    assert max(sizes) <= LARGE
    if name in ("documents", "matrix", "wrong at the end"):
        assert n_turns > 1


def test_a_large_body_names_the_place_of_its_error(wide):
    """Of a number, a name and a type, though it is not decoded as a whole."""
    served = app({"m": wide}, threads=1)
    rows = [[0.5] * 60] * 4000
    for body, where in (
        ({"features": [*rows, ["x"] * 60]}, "features[4000][0]"),
        ({"documents": [*({"features": row} for row in rows), {"features": rows[0][1:]}]}, "documents[4000].features"),
        ({"documents": [*({"features": row} for row in rows), {"id": [], "features": rows[0]}]}, "documents[4000].id"),
        ({"documents": [*({"features": row} for row in rows), 7]}, "documents[4000]"),
        ({"features": rows, "kk": 1}, "body"),
    ):
        code, _, found = ask(served, "/rank", body)
        assert (code, found["error"]["where"]) == (422, where), found
    assert found["error"]["fix"] == "did you mean 'k'?"


def cut(body, size=1 << 16):
    return [body[start : start + size] for start in range(0, len(body), size)]


def test_large_and_small_bodies_get_the_same_answer(wide, monkeypatch):
    served = app({"m": wide}, threads=1)
    rows = np.random.default_rng(2).normal(size=(30, 60)).tolist()
    bodies = [
        ("/rank", {"documents": [{"id": f"d{i}", "features": row} for i, row in enumerate(rows)]}),
        ("/rank", {"features": rows, "ids": list(range(30)), "k": 4, "explain": True}),
        ("/score", {"queries": [{"id": i, "features": rows[i:]} for i in range(20)]}),
        ("/score", {"queries": [{"documents": [{"features": row} for row in rows]}] * 2}),
    ]
    small = [ask(served, path, body) for path, body in bodies]
    monkeypatch.setattr(requests, "LARGE", 100)
    monkeypatch.setattr(application, "LARGE", 100)
    assert [ask(served, path, body) for path, body in bodies] == small
    assert {code for code, _, _ in small} == {200}


class Sender:
    """A client that sends a body part by part, when it is told to."""

    def __init__(self, served, body, *, n_parts):
        self.parts = asyncio.Queue()
        for part in cut(body, -(-len(body) // n_parts)):
            self.parts.put_nowait(part)
        self.may_send, self.has_sent = asyncio.Semaphore(0), asyncio.Semaphore(0)
        self.task = asyncio.ensure_future(asking(served, "/rank", receive=self.receive))

    async def receive(self):
        self.has_sent.release()
        await self.may_send.acquire()
        part = self.parts.get_nowait()
        return {"type": "http.request", "body": part, "more_body": not self.parts.empty()}

    async def send(self, n=1):
        for _ in range(n):
            self.may_send.release()
            for _ in range(20):
                await asyncio.sleep(0)


def test_unfinished_large_bodies_have_so_much_room_and_small_ones_do_not_need_it(wide):
    """Two senders stop in the middle; a third finds no room, a small request needs none, and all ends well."""
    body = b'{"features": []}' + b" " * (4 * LARGE)
    limits = Limits(max_bytes=5 * LARGE, max_large_bytes=7 * LARGE)
    service = Service([ServedModel.of("m", wide)], limits, threads=1)
    served = service.application()

    async def run():
        first, second, third = (Sender(served, body, n_parts=8) for _ in range(3))
        await first.send(7)
        await second.send(7)
        await third.send(7)
        code, headers, found = await third.task
        assert (code, headers["retry-after"]) == (503, "1")
        assert "the limit max_large_bytes of the server" in found["error"]["fix"]
        assert (await asking(served, "/rank", {"features": []}))[0] == 200
        await first.send()
        assert (await first.task)[0] == 200
        await second.send()
        assert (await second.task)[0] == 200
        assert service.large_bytes == 0
        last = Sender(served, body, n_parts=8)
        await last.send(8)
        return (await last.task)[0]

    assert asyncio.run(run()) == 200


def test_a_body_that_does_not_come_is_not_waited_for(wide):
    service = Service([ServedModel.of("m", wide)], Limits(body_timeout=0.05), threads=1)

    async def run():
        sender = Sender(service.application(), b" " * (3 * LARGE), n_parts=4)
        await sender.send(3)
        return await sender.task

    code, headers, found = asyncio.run(run())
    assert (code, headers["connection"], found["error"]["where"]) == (408, "close", "body")
    assert service.large_bytes == 0


# Queues


def test_more_requests_than_may_wait_are_told_to_come_again(held):
    served = app({"m": held}, limits=Limits(max_waiting=1), threads=1)
    held.may_go.clear()

    def post():
        code, headers, _ = ask(served, "/rank", {"features": [ROW]})
        if code == 503:
            assert headers["retry-after"] == "1"
            held.may_go.set()
        return code

    with ThreadPoolExecutor(4) as pool:
        codes = sorted(pool.map(lambda _: post(), range(4)))
    assert codes.count(200) >= 2
    assert set(codes) == {200, 503}


def test_an_answer_that_takes_too_long_is_given_up(held):
    """The client hears of it at once; the thread counts as busy until it is done, and what waited never begins."""
    service = Service([ServedModel.of("m", held)], Limits(timeout=0.05, max_waiting=1), threads=1)
    served = service.application()
    held.may_go.clear()
    for _ in range(2):
        code, _, found = ask(served, "/rank", {"features": [ROW]})
        assert code == 504
        assert "the limit timeout of the server" in found["error"]["fix"]
    held.may_go.set()
    wait_for(lambda: not service.scoring.at_work)
    answers = (ask(served, "/rank", {"features": [ROW]})[0] for _ in range(1000))  # a busy machine may need some
    assert 200 in answers


@pytest.fixture
def explaining(data):
    """A ranker whose explanations begin when they may, and end when their deadline has passed."""
    ranker = tierank.UMart(**TREES).fit(data)
    ranker.began, ranker.ended, ranker.may_explain = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
    explain = ranker.model_.contributions

    def contributions(*given):
        ranker.began.release()
        try:
            while not ranker.may_explain.wait(0.01):
                check_deadline()
            return explain(*given)
        finally:
            ranker.ended.release()

    ranker.model_.contributions = contributions
    yield ranker
    ranker.may_explain.set()


WHY = {"features": [ROW, [1.0] * 6, [2.0] * 6], "k": 2, "explain": True}


def test_explanations_wait_behind_explanations_alone(explaining):
    """As many of them as there are threads, and more: scores go on, and one too many is told to come again."""
    service = Service([ServedModel.of("m", explaining)], Limits(max_explaining=1, timeout=300), threads=1)
    served = service.application()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(ask, served, "/rank", WHY) for _ in range(2)]
        wait_for(lambda: len(service.explaining.at_work) == 2)
        code, headers, found = ask(served, "/rank", WHY)
        assert (code, headers["retry-after"]) == (503, "1")
        assert "explanations" in found["error"]["expected"]
        for _ in range(5):
            assert ask(served, "/rank", {"features": [ROW]})[0] == 200
        explaining.may_explain.set()
        assert [one.result()[0] for one in waiting] == [200, 200]


def test_an_explanation_that_takes_too_long_stops(explaining):
    service = Service([ServedModel.of("m", explaining)], Limits(timeout=0.2), threads=1)
    code, _, found = ask(service.application(), "/rank", WHY)
    assert code == 504
    assert "the limit timeout of the server" in found["error"]["fix"]
    if explaining.began.acquire(blocking=False):  # on a busy machine it may not even have begun
        assert explaining.ended.acquire(timeout=PATIENCE)
    wait_for(lambda: not service.explaining.at_work)


def test_a_stopped_server_stops_its_explanations(explaining):
    service = Service([ServedModel.of("m", explaining)], Limits(timeout=300), threads=1)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, service.application(), "/rank", WHY)
        assert explaining.began.acquire(timeout=PATIENCE)
        service.close()
        assert asked.result()[0] == 504
    assert ask(service.application(), "/rank", {"features": [ROW]})[0] == 503


def test_what_the_first_explanation_took_says_what_all_will_take(explaining, monkeypatch):
    """By a clock of our own: an explanation takes 3 seconds, and 10 are given."""
    explaining.may_explain.set()
    service = Service([ServedModel.of("m", explaining)], threads=1)
    times = iter([0.0, 3.0, 0.0, 3.0, 0.0, 0.0])
    monkeypatch.setattr(application, "time", SimpleNamespace(monotonic=lambda: next(times), perf_counter=lambda: 0.0))
    monkeypatch.setattr(application, "seconds_left", lambda: 7.0)
    rows = np.arange(60.0).reshape(10, 6).tolist()
    code, _, found = ask(service.application(), "/rank", {"features": rows, "k": 8, "explain": True})
    assert (code, found["error"]["where"]) == (422, "k")
    assert found["error"]["expected"].startswith("at most 3 together with explain")
    assert found["error"]["got"] == "8, which would take 24 seconds"
    code, _, found = ask(service.application(), "/rank", {"features": rows, "k": 3, "explain": True})
    assert code == 200
    assert ["why" in row for row in found["ranking"]] == [True] * 3


def test_the_members_of_a_blend_look_at_the_deadline(data):
    ranker = quick("blend").fit(data)
    deadline = Deadline(300)
    with deadline.applied():
        assert 0 < seconds_left() <= 300
        expected = ranker.predict(data)
        assert np.array_equal(ranker.predict(data), expected)
        deadline.cancel()
        with pytest.raises(TimeoutError, match="before its deadline"):
            ranker.predict(data)
        with pytest.raises(TimeoutError, match="before its deadline"):
            explain_query(quick("urank").fit(data), data, data.query_ids[0], 1)
    assert seconds_left() == np.inf
    assert np.array_equal(ranker.predict(data), expected)


@pytest.mark.parametrize("query_features", [False, True])
def test_trees_explain_the_documents_of_the_pairs_alone(data, monkeypatch, query_features):
    ranker = quick("umart", query_features=query_features).fit(data)
    booster = ranker.booster_
    predict, n_rows = type(booster).predict, []

    def noted(self, features, **options):
        if options.get("pred_contrib"):
            n_rows.append(len(features))
        return predict(self, features, **options)

    whole = explain_query(ranker, data, data.query_ids[1], None)
    monkeypatch.setattr(type(booster), "predict", noted)
    some = explain_query(ranker, data, data.query_ids[1], 3)
    assert n_rows == [4]
    for one, other in zip(some, whole, strict=False):
        assert one.contributions.tolist() == other.contributions.tolist()


# Keys


@pytest.fixture(scope="module")
def locked(trees):
    return app({"m": trees}, threads=1, keys=["first-key", "second-key"])


def test_a_key_is_needed_for_all_but_health_and_ready(locked):
    asked = ("/models", "/metrics", "/openapi.json", "/nothing", "/rank")
    for path, body in (("/rank", {"features": [ROW]}), ("/score", {"queries": []}), *((path, None) for path in asked)):
        code, headers, found = ask(locked, path, body)
        assert (code, found["error"]["where"]) == (401, "header Authorization")
        assert headers["www-authenticate"] == 'Bearer realm="tierank"'
        code, headers, found = ask(locked, path, body, headers={"authorization": "Bearer third-key"})
        assert (code, headers["www-authenticate"]) == (401, 'Bearer realm="tierank", error="invalid_token"')
        assert "third-key" not in json.dumps(found)
        for key in ("Bearer first-key", "bearer  second-key"):
            assert ask(locked, path, body, headers={"authorization": key})[0] in (200, 404, 405)
    for path in ("/health", "/ready"):
        assert ask(locked, path)[0] == 200


def test_the_body_of_a_stranger_is_not_read(locked):
    async def receive():
        raise AssertionError("nothing should be read")

    assert asyncio.run(asking(locked, "/rank", receive=receive))[0] == 401


def test_the_description_says_where_a_key_is_needed(locked, trees):
    root = ask(locked, "/openapi.json", headers={"authorization": "Bearer first-key"})[2]
    assert root["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
    for path, methods in root["paths"].items():
        for about in methods.values():
            assert ("security" in about) == ("401" in about["responses"]) == (path not in ("/health", "/ready"))
    assert "securitySchemes" not in ask(app({"m": trees}), "/openapi.json")[2]["components"]


KEY_TEXTS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)


@given(keys=st.lists(KEY_TEXTS, min_size=1, max_size=4), other=st.text())
def test_a_key_is_one_of_the_keys_and_nothing_else(keys, other):
    admitted = Keys(keys)
    assert all(admitted.admit(f"Bearer {key}") for key in keys)
    assert admitted.admit(f"Bearer {other}") == (other.strip() in keys)
    assert not any(admitted.admit(header) for header in (None, "", "Bearer", "Bearer ", *keys, f"Basic {keys[0]}"))
    assert not any(key in repr(vars(admitted)) for key in keys if len(key) > 8)


def test_keys_are_read_from_a_file(tmp_path, caplog):
    file = tmp_path / "keys"
    file.write_bytes(b"# of the shop\r\nfirst-key\n\n   second-key  \n#third-key\n")
    file.chmod(0o600)
    keys = Keys.read(file)
    assert [keys.admit(f"Bearer {key}") for key in ("first-key", "second-key", "third-key", "#third-key")] == [
        True,
        True,
        False,
        False,
    ]
    file.write_bytes(b"\xef\xbb\xbffirst-key\r\n")  # with a byte order mark, as some editors write it
    assert Keys.read(file).admit("Bearer first-key")
    assert not caplog.text
    file.chmod(0o644)
    Keys.read(file)
    assert "every user of this machine can read the API keys" in caplog.text
    assert "first-key" not in caplog.text
    for content, words in (
        (b"", "expected one API key per line, got none"),
        (b"# none\n\n", "expected one API key per line, got none"),
        (b"good\ntwo words\n", "keys:2: expected a key of printable ASCII"),
        ("schlüssel\n".encode(), "keys:1: expected a key of printable ASCII"),
        # Characters that divide lines for Python, but not for editors: the parts of a key are no keys.
        *((b"\rone%cother\n" % mark, "keys:2: expected a key of printable ASCII") for mark in b"\v\f\x1c\x1d\x1e\x85"),
        (b"x" * (2 << 20), "got more than 1048576 bytes"),
    ):
        file.write_bytes(content)
        with pytest.raises(ParameterError, match=words):
            Keys.read(file)
    with pytest.raises(ParameterError, match="got a folder"):
        Keys.read(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # a running server does not wait for its writer
    with pytest.raises(ParameterError, match="pipe: expected a file of API keys, got a pipe"):
        Keys.read(tmp_path / "pipe", again=True)
    for wrong in ([], [""], ["a b"], [7]):
        with pytest.raises(ParameterError, match="keys: expected"):
            Keys(wrong)
    assert Keys("one-key").admit("Bearer one-key")
