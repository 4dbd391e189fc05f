"""Serving: answers have the bits of predict and rank, wrong requests are told what to do, models change places."""

import asyncio
import base64
import http.client
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import tierank
from tierank import RANKERS, DataError, ParameterError, RankingDataset, cli
from tierank.rankers import Ranker
from tierank.serve import Limits, app
from tierank.serve.application import Service
from tierank.serve.counters import Counters
from tierank.serve.models import Model, Version
from tierank.serve.requests import Documents
from tierank.serve.server import Settings

NAMES = ("bm25", "clicks", "price", "length", "age", "stock")
TREES = {"n_trees": 6, "n_leaves": 5, "n_jobs": 1}
NETWORK = {"max_epochs": 1, "hidden": (8,), "n_jobs": 1}
BLEND = {"n_configs": 1, "n_seeds": 1, "rotate": False, "n_trees": 4, "max_epochs": 1, "n_jobs": 1}


def make_data(named: bool = False, has_missing: bool = False, seed: int = 3) -> RankingDataset:
    data = tierank.make_ranking(25, n_features=len(NAMES), mean_length=12, max_length=25, seed=seed)
    features = np.array(data.features)
    if has_missing:
        features[::7, 2] = np.nan
    return data.with_features(features, NAMES if named else None)


def quick(name: str, **settings) -> Ranker:
    if name == "blend":
        return tierank.Blend(**BLEND | settings)
    return RANKERS[name](**(TREES if hasattr(RANKERS[name], "importance") else NETWORK) | settings)


@pytest.fixture(scope="module")
def data() -> RankingDataset:
    return make_data()


@pytest.fixture(scope="module")
def trees() -> Ranker:
    return quick("umart").fit(make_data(named=True, has_missing=True))


@pytest.fixture(scope="module")
def network() -> Ranker:
    return quick("urank").fit(make_data(named=True))


@pytest.fixture(scope="module")
def service(trees, network):
    return app({"trees": trees, "network": network}, threads=2)


def ask(application, path, body=None, *, method=None, headers=None, parts=None):
    """Code, headers and content of an answer, from the application itself."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    sent, to_receive = [], [content] if parts is None else list(parts)
    given = {"content-type": "application/json"} | (headers or {})
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method or ("GET" if body is None and parts is None else "POST"),
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }

    async def receive():
        part = to_receive.pop(0) if to_receive else b""
        return {"type": "http.request", "body": part, "more_body": bool(to_receive)}

    async def send(message):
        sent.append(message)

    asyncio.run(application(scope, receive, send))
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    text = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], found, json.loads(text) if found["content-type"] == "application/json" else text.decode()


def as_base64(matrix) -> str:
    return base64.b64encode(np.asarray(matrix).astype("<f4").tobytes()).decode()


# Answers


@pytest.mark.parametrize("name", RANKERS)
def test_answers_are_those_of_predict_and_rank(name, data):
    ranker = quick(name).fit(data)
    application = app({name: ranker}, threads=1)
    lists = [np.array(data.features[a:b]) for a, b in zip(data.offsets[:4], data.offsets[1:5], strict=True)]
    lists[0][1] = lists[0][4] = lists[0][2]  # ties rank in the order of the rows
    code, _, found = ask(application, "/score", {"queries": [{"features": one.tolist()} for one in lists]})
    assert code == 200
    expected = ranker.predict(np.concatenate(lists), qid=np.repeat(np.arange(4), [len(one) for one in lists]))
    assert [score for query in found["queries"] for score in query["scores"]] == expected.tolist()
    rows = [{"id": f"d{i}", "features": row} for i, row in enumerate(lists[0].tolist())]
    for k in (None, 3):
        ranked = ranker.rank(lists[0], qid=np.zeros(len(rows)), k=k)
        code, _, found = ask(application, "/rank", {"documents": rows, "k": k})
        assert code == 200
        assert [one["id"] for one in found["ranking"]] == [f"d{i}" for i in ranked.row]
        assert [one["score"] for one in found["ranking"]] == ranked.score.tolist()
        assert [one["rank"] for one in found["ranking"]] == ranked.rank.tolist()


@pytest.mark.parametrize(
    "ranker",
    [
        quick("umart"),
        quick("umart", query_features=True),
        quick("urank"),
        quick("urank", transform="standard"),
        quick("urank", transform="standard", n_seeds=2),
        quick("urank", transform="none", network="attention", width=8),
        quick("uboost", transform="standard", base=quick("umart", query_features=True)),
        quick("umart", base=quick("urank", transform="standard")),
        quick("blend"),
    ],
    ids=lambda ranker: type(ranker).__name__,
)
def test_whether_a_model_needs_the_whole_list_is_said(ranker, data):
    version = Version.of(ranker.fit(data), None)
    rows = data.features[: data.offsets[1]]
    whole = version.scores([Documents(None, rows)])
    alone = np.concatenate([version.scores([Documents(None, row[None])]) for row in rows])
    assert version.needs_list != np.allclose(whole, alone, rtol=1e-5, atol=1e-6)


def test_all_forms_of_a_request_give_the_same_bits(service, network):
    rows = make_data(seed=8).features[:9]
    expected = network.rank(rows, qid=np.zeros(9))
    turned = NAMES[::-1]
    bodies = [
        {"documents": [{"features": row} for row in rows.tolist()]},
        {"documents": [{"features": dict(zip(NAMES, row, strict=True))} for row in rows.tolist()]},
        {"documents": [{"features": dict(zip(turned, row[::-1], strict=True))} for row in rows.tolist()]},
        {"features": rows.tolist(), "ids": list(range(9))},
        {"features": rows[:, ::-1].tolist(), "names": list(turned)},
        {"features": as_base64(rows)},
        {"features": as_base64(rows[:, ::-1]), "names": list(turned), "ids": list(range(9))},
    ]
    for body in bodies:
        code, _, found = ask(service, "/rank", {"model": "network", **body})
        assert code == 200, found
        assert [one["id"] for one in found["ranking"]] == expected.row.tolist()
        assert [one["score"] for one in found["ranking"]] == expected.score.tolist()


def test_missing_values_may_be_null_nan_or_left_out_where_the_model_has_met_them(service, trees):
    row = make_data(seed=8).features[:1].copy()
    row[0, 2] = np.nan
    expected = trees.predict(row).tolist()
    named = {name: None if np.isnan(value) else float(value) for name, value in zip(NAMES, row[0], strict=True)}
    left_out = {name: value for name, value in named.items() if value is not None}
    matrix = [[value for value in named.values() if value is not None]]
    for query in (
        {"documents": [{"features": named}]},
        {"documents": [{"features": list(named.values())}]},
        {"documents": [{"features": left_out}]},
        {"features": as_base64(row)},
        {"features": matrix, "names": list(left_out)},
    ):
        assert ask(service, "/score", {"queries": [query]})[2]["queries"] == [{"scores": expected}]
    code, _, found = ask(service, "/rank", {"model": "network", "documents": [{"features": left_out}]})
    assert code == 422
    assert "'price'" in found["error"]["got"]
    assert ask(service, "/rank", {"model": "network", "documents": [{"features": named}]})[0] == 200


def test_ids_come_back_as_they_came(service):
    ids = ["a", 7, 7.5, -1, "", "\ud800", "é\n", 2**70, "7"]
    documents = [{"id": id, "features": [float(i)] * 6} for i, id in enumerate(ids)]
    _, _, found = ask(service, "/rank", {"documents": documents})
    assert {json.dumps(one["id"]) for one in found["ranking"]} == {json.dumps(id) for id in ids}
    _, _, found = ask(service, "/score", {"queries": [{"id": id, "documents": []} for id in ids] + [{"documents": []}]})
    assert found["queries"] == [{"id": id, "scores": []} for id in ids] + [{"scores": []}]


def test_no_documents_are_no_error(service):
    assert ask(service, "/rank", {"documents": []})[2]["ranking"] == []
    assert ask(service, "/rank", {"features": []})[2]["ranking"] == []
    assert ask(service, "/score", {"queries": []})[2]["queries"] == []
    one = {"features": [[0.0] * 6]}
    _, _, found = ask(service, "/score", {"queries": [{"documents": []}, one, {"features": ""}, one]})
    assert [len(query["scores"]) for query in found["queries"]] == [0, 1, 0, 1]


@pytest.mark.parametrize("model", ["trees", "network"])
def test_an_explanation_sums_to_the_difference(service, model):
    rows = make_data(seed=8).features[:9].tolist()
    _, _, found = ask(service, "/rank", {"model": model, "features": rows, "k": 3, "explain": True})
    ranking = found["ranking"]
    for above, below in pairwise(ranking):
        why = above["why"]
        assert why["difference"] == pytest.approx(above["score"] - below["score"])
        total = sum(one["contribution"] for one in why["contributions"]) + why["rest"]
        assert total == pytest.approx(why["difference"])
        assert {one["feature"] for one in why["contributions"]} <= set(NAMES)
    _, _, found = ask(service, "/rank", {"model": model, "features": rows[:2], "k": 5, "explain": True})
    assert ["why" in one for one in found["ranking"]] == [True, False]


def test_the_first_model_answers_where_none_is_named(service):
    assert ask(service, "/rank", {"documents": []})[2]["model"] == "trees"
    assert ask(service, "/rank", {"documents": [], "model": "network"})[2]["model"] == "network"


def test_many_threads_get_the_bits_of_one(data):
    rankers = [quick(name).fit(data) for name in ("umart", "urank", "blend")]
    rankers += [quick("umart", query_features=True).fit(data), quick("uboost", base=quick("umart")).fit(data)]
    lists = [Documents(None, data.features[a:b]) for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)]
    for ranker in rankers:
        version = Version.of(ranker, None)
        expected = [ranker.predict(one.features, qid=np.zeros(len(one.features))).tolist() for one in lists]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda one, version=version: version.scores([one]).tolist(), lists * 2))
        assert found == expected * 2


# What is asked besides


def test_models_are_described(service, trees):
    _, _, found = ask(service, "/models")
    first, second = found["models"]
    assert (first["name"], first["ranker"], first["features"], first["n_features"]) == ("trees", "UMart", [*NAMES], 6)
    assert (first["needs_whole_list"], second["needs_whole_list"]) == (False, True)
    assert (first["may_leave_out_features"], second["may_leave_out_features"]) == (True, False)
    assert first["tierank"] == tierank.__version__


def test_a_model_has_the_same_checksum_in_memory_and_in_its_folder(trees, tmp_path):
    trees.save(tmp_path / "m")
    assert Model.of("m", trees).version.checksum == Model.read("m", tmp_path / "m").version.checksum


def test_metrics_count_what_happened(trees):
    application = app({"trees": trees}, threads=1)
    for _ in range(3):
        ask(application, "/rank", {"features": [[0.0] * 6] * 5})
    ask(application, "/rank", b"{")
    ask(application, "/nothing")
    _, headers, text = ask(application, "/metrics")
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(re.fullmatch(r"(\S+) (\S+)", line).groups() for line in text.splitlines() if line[0] != "#")
    assert values['tierank_requests_total{route="rank",code="200"}'] == "3"
    assert values['tierank_requests_total{route="rank",code="400"}'] == "1"
    assert values['tierank_requests_total{route="other",code="404"}'] == "1"
    assert values['tierank_documents_scored_total{model="trees"}'] == "15"
    assert values['tierank_queries_scored_total{model="trees"}'] == "3"
    assert values['tierank_request_seconds_count{route="rank"}'] == "4"
    buckets = [int(v) for k, v in values.items() if k.startswith('tierank_request_seconds_bucket{route="rank"')]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 4
    assert float(values['tierank_request_seconds_sum{route="rank"}']) > 0
    assert any(k.startswith('tierank_model_info{model="trees",ranker="UMart"') for k in values)


def test_processes_share_their_counts():
    counters = Counters(["m"], n_processes=2)
    child = os.fork()
    if not child:
        counters.process = 1
        counters.count_scored("m", 1, 10)
        os._exit(0)
    os.waitpid(child, 0)
    counters.count_scored("m", 1, 5)
    assert counters.total("documents", "m") == 15


def check_schema(value, schema, root):
    """Whether a value is what a schema says: the part of JSON Schema that the description uses."""
    if "$ref" in schema:
        schema = root["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for several, wanted in (("oneOf", {1}), ("anyOf", {1, 2, 3})):
        if several in schema:
            assert sum(matches(value, one, root) for one in schema[several]) in wanted, (value, schema)
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "number": (int, float),
        "integer": int,
        "boolean": bool,
        "null": type(None),
    }
    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        assert any(isinstance(value, kinds[name]) and isinstance(value, bool) == (name == "boolean") for name in names)
    if "enum" in schema:
        assert value in schema["enum"]
    if "minimum" in schema and value is not None:
        assert value >= schema["minimum"]
    if isinstance(value, list):
        assert len(value) <= schema.get("maxItems", np.inf)
        for one in value:
            check_schema(one, schema.get("items", {}), root)
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= set(value)
        known, other = schema.get("properties", {}), schema.get("additionalProperties", {})
        assert other is not False or set(value) <= set(known), (value, schema)
        for name, one in value.items():
            check_schema(one, known.get(name, other or {}), root)


def matches(value, schema, root) -> bool:
    try:
        check_schema(value, schema, root)
    except AssertionError:
        return False
    return True


def test_the_description_is_true(service):
    root = ask(service, "/openapi.json")[2]
    assert root["openapi"] == "3.1.0"
    assert set(root["paths"]) == {"/rank", "/score", "/health", "/ready", "/models", "/metrics", "/openapi.json"}
    row, named = [0.5] * 6, dict.fromkeys(NAMES, 0.5)
    right = [
        ("/rank", {"documents": [{"id": "a", "features": row}, {"id": 2, "features": named}], "k": 1}),
        ("/rank", {"model": "network", "features": [row, [None] * 6], "ids": ["a", 2.5], "explain": True, "k": 2}),
        ("/rank", {"features": as_base64([row]), "names": list(NAMES)}),
        ("/score", {"queries": [{"id": 1, "documents": [{"features": row}]}, {"features": [row]}], "model": "trees"}),
    ]
    wrong = [
        ("/rank", b"{"),
        ("/rank", {"documents": [], "model": "x"}),
        ("/rank", {"documents": [{"features": ["a"] * 6}]}),
        ("/rank", {"documents": [], "features": []}),
        ("/rank", {"documents": [{"features": row, "text": "x"}]}),
        ("/rank", {"documents": [], "k": 0}),
        ("/score", {"queries": [{"documents": [{"id": None, "features": row}]}]}),
        ("/score", {"queries": {}}),
    ]
    asked = ("/health", "/ready", "/models", "/openapi.json")
    for path, body in [*right, *wrong, *((path, None) for path in asked)]:
        code, headers, found = ask(service, path, body)
        about = root["paths"][path]["get" if body is None else "post"]
        check_schema(found, about["responses"][str(code)]["content"][headers["content-type"]]["schema"], root)
        if isinstance(body, dict):
            schema = about["requestBody"]["content"]["application/json"]["schema"]
            assert matches(body, schema, root) == (code == 200), (code, body)
    for path, body in wrong:
        assert ask(service, path, body)[0] in (400, 404, 422)


def test_it_can_be_mounted_without_a_lifespan(trees):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    outer = Starlette(routes=[Mount("/ranking", app({"m": trees}))])
    assert ask(outer, "/ranking/rank", {"features": [[1.0] * 6]})[0] == 200
    assert ask(outer, "/ranking/openapi.json")[2]["servers"] == [{"url": "/ranking"}]
    assert ask(outer, "/ranking/rnak")[2]["error"]["fix"] == "did you mean /rank?"


# Requests that are refused


ROW = [0.0] * 6


@pytest.mark.parametrize(
    ("body", "code", "where", "words"),
    [
        (b"", 400, "body, line 1, column 1", "mend the JSON"),
        (b'{"documents": [\n}', 400, "body, line 2, column 1", "Expecting value"),
        (b"\xff{}", 400, "body, byte 0", "UTF-8"),
        (b'{"documents": [{"features": [NaN]}]}', 400, "body", "null where a value is missing"),
        (b'{"documents": [{"features": [-Infinity]}]}', 400, "body", "-Infinity"),
        (b"[" * 100_000, 400, "body", "nesting"),
        (b'{"k": ' + b"1" * 5000 + b"}", 400, "body", "number"),
        ([], 422, "body", "an object"),
        ({}, 422, "documents", "neither"),
        ({"documents": [], "features": []}, 422, "documents", "both"),
        ({"document": []}, 422, "body", "did you mean 'documents'?"),
        ({"documents": {}}, 422, "documents", "a list of objects"),
        ({"documents": [1]}, 422, "documents[0]", "an object with features"),
        ({"documents": [{"id": 1}]}, 422, "documents[0]", "no features"),
        ({"documents": [{"features": ROW, "idd": 1}]}, 422, "documents[0]", "did you mean 'id'?"),
        ({"documents": [{"features": ROW}, {"features": [1]}]}, 422, "documents[1].features", "6 numbers"),
        ({"documents": [{"features": 1}]}, 422, "documents[0].features", "by name or as a list"),
        ({"documents": [{"features": {"bm52": 1}}]}, 422, "documents[0].features", "did you mean 'bm25'?"),
        ({"documents": [{"features": {"x" * 500: 1}}]}, 422, "documents[0].features", "GET /models"),
        ({"documents": [{"features": ["1", *ROW[1:]]}]}, 422, "documents[0].features[0]", "got '1'"),
        ({"documents": [{"features": {"price": True}}]}, 422, 'documents[0].features["price"]', "1 for true"),
        ({"documents": [{"features": [[1], *ROW[1:]]}]}, 422, "documents[0].features[0]", "a list of 1"),
        (b'{"documents": [{"features": [0,0,1e999,0,0,0]}]}', 422, "documents[0].features[2]", "got inf"),
        (b'{"features": [[0,0,0,0,0,-1e39]]}', 422, "features[0][5]", "float32"),
        ({"features": [[10**400, *ROW[1:]]]}, 422, "features[0][0]", "beyond 3.4e38"),
        ({"documents": [{"features": ROW, "id": None}]}, 422, "documents[0].id", "null"),
        ({"documents": [{"features": ROW, "id": [1]}]}, 422, "documents[0].id", "a text or a number"),
        (b'{"features": [[0,0,0,0,0,0]], "ids": [1e999]}', 422, "ids[0]", "inf"),
        ({"documents": [], "ids": []}, 422, "ids", "matrix"),
        ({"features": [ROW], "ids": []}, 422, "ids", "1 ids, one per row"),
        ({"features": [ROW], "ids": "a"}, 422, "ids", "a list"),
        ({"features": {}}, 422, "features", "base64"),
        ({"features": [ROW, 1]}, 422, "features[1]", "a list of 6 numbers"),
        ({"features": "é"}, 422, "features", "base64"),
        ({"features": "AAAA"}, 422, "features", "no multiple of 24"),
        ({"features": as_base64([[np.inf] * 6])}, 422, "features, row 0, column 0", "infinity"),
        ({"features": [[1]], "names": ["bm25", "bm25"]}, 422, "features[0]", "a list of 2"),
        ({"features": [[1, 1]], "names": ["bm25", "bm25"]}, 422, "names", "each once"),
        ({"features": [[1]], "names": ["bm"]}, 422, "names", "did you mean 'bm25'?"),
        ({"features": [ROW], "names": 1}, 422, "names", "a list of texts"),
        ({"documents": [], "k": 0}, 422, "k", "from 1 on"),
        ({"documents": [], "k": True}, 422, "k", "got true"),
        ({"documents": [], "k": 1.5}, 422, "k", "1.5"),
        ({"documents": [], "explain": 1}, 422, "explain", "true or false"),
        ({"documents": [], "explain": True}, 422, "k", "1 to 100"),
        ({"documents": [], "model": "tree"}, 404, "model", "did you mean 'trees'?"),
        ({"documents": [], "model": 7}, 404, "model", "trees, network"),
    ],
)
def test_a_wrong_rank_says_where_expected_got_and_what_to_do(service, body, code, where, words):
    found_code, _, found = ask(service, "/rank", body)
    error = found["error"]
    assert (found_code, error["where"]) == (code, where), error
    assert set(error) == {"where", "expected", "got", "fix"}
    assert words in "{where}: expected {expected}, got {got}; {fix}".format(**error)


@pytest.mark.parametrize(
    ("body", "where", "words"),
    [
        ({}, "queries", "null"),
        ({"queries": [1]}, "queries[0]", "an object"),
        ({"queries": [{"documents": []}, {"docs": []}]}, "queries[1]", "did you mean 'documents'?"),
        ({"queries": [{"documents": [], "id": {}}]}, "queries[0].id", "a text or a number"),
        ({"queries": [{"documents": [{"features": [1]}]}]}, "queries[0].documents[0].features", "6 numbers"),
        ({"queries": [], "k": 3}, "body", "model, queries"),
    ],
)
def test_a_wrong_score_says_where(service, body, where, words):
    code, _, found = ask(service, "/score", body)
    assert (code, found["error"]["where"]) == (422, where)
    assert words in json.dumps(found["error"])


def test_a_model_without_names_asks_for_lists(data):
    application = app({"m": quick("umart").fit(data)}, threads=1)
    for body in ({"documents": [{"features": {"a": 1}}]}, {"features": [[1]], "names": ["a"]}):
        code, _, found = ask(application, "/rank", body)
        assert code == 422
        assert "no feature names" in found["error"]["fix"]


def test_limits(trees):
    application = app({"m": trees}, limits=Limits(max_bytes=1000, max_documents=3), threads=1)
    assert ask(application, "/rank", {"features": [ROW] * 3})[0] == 200
    for path, body in (
        ("/rank", {"features": [ROW] * 4}),
        ("/rank", {"features": as_base64([ROW] * 4)}),
        ("/rank", {"documents": [{"features": ROW}] * 4}),
        ("/score", {"queries": [{"features": [ROW] * 2}] * 2}),
        ("/score", {"queries": [{"features": []}] * 4}),
    ):
        code, _, found = ask(application, path, body)
        assert code == 413
        assert "--max-documents" in found["error"]["fix"]
    code, _, found = ask(application, "/rank", b" " * 2000)
    assert (code, found["error"]["expected"]) == (413, "at most 1000 bytes")
    code, _, found = ask(application, "/rank", b"", headers={"content-length": "9" * 30})
    assert code == 413
    assert ask(application, "/rank", parts=[b" " * 600] * 2)[0] == 413
    assert ask(application, "/rank", parts=[b'{"documents"', b": []}"])[0] == 200


def test_other_types_paths_and_methods(service):
    for headers in ({"content-type": "text/plain"}, {"content-encoding": "gzip"}):
        assert ask(service, "/rank", {"documents": []}, headers=headers)[0] == 415
    as_text = {"content-type": "Application/JSON; charset=utf-8"}
    assert ask(service, "/rank", {"documents": []}, headers=as_text)[0] == 200
    code, _, found = ask(service, "/rnak", {"documents": []})
    assert (code, found["error"]["fix"]) == (404, "did you mean /rank?")
    assert ask(service, "/rank/")[0] == 404
    code, headers, found = ask(service, "/rank")
    assert (code, headers["allow"], found["error"]["got"]) == (405, "POST", "GET")
    assert ask(service, "/models", method="DELETE")[0] == 405


class Held(tierank.UMart):
    """A ranker that waits, or fails, when it is told to."""

    may_go = threading.Event()
    fails = False
    gives = None

    def rank(self, X, qid=None, k=None):
        if self.fails:
            raise RuntimeError("secret words")
        self.may_go.wait(30)
        found = super().rank(X, qid, k)
        return found if self.gives is None else found._replace(score=np.full_like(found.score, self.gives))


@pytest.fixture
def held(data):
    ranker = Held(**TREES).fit(data)
    ranker.may_go.set()
    return ranker


def test_more_requests_than_may_wait_are_told_to_come_again(held):
    application = app({"m": held}, limits=Limits(max_waiting=1), threads=1)
    held.may_go.clear()

    def post():
        code, headers, _ = ask(application, "/rank", {"features": [ROW]})
        if code == 503:
            assert headers["retry-after"] == "1"
            held.may_go.set()
        return code

    with ThreadPoolExecutor(4) as pool:
        codes = sorted(pool.map(lambda _: post(), range(4)))
    assert codes.count(200) >= 2
    assert set(codes) == {200, 503}


def test_a_bug_of_ours_is_a_number_to_the_client_and_a_traceback_in_the_log(held, caplog):
    application = app({"m": held}, threads=1)
    held.fails = True
    code, _, found = ask(application, "/rank", {"features": [ROW]})
    assert code == 500
    assert "secret" not in json.dumps(found)
    number = re.search("number ([0-9a-f]{8})", found["error"]["got"])[1]
    assert f"bug {number}" in caplog.text
    assert "secret words" in caplog.text


def test_scores_that_are_not_finite_are_refused(held):
    application = app({"m": held}, threads=1)
    held.gives = np.nan
    code, _, found = ask(application, "/rank", {"features": [ROW]})
    assert (code, found["error"]["where"]) == (422, "features")
    with pytest.raises(DataError, match="expected a finite score for each of 1 documents"):
        Version.of(held, None)


def test_what_python_callers_get_wrong(trees):
    with pytest.raises(ParameterError, match="expected one at least"):
        app({})
    with pytest.raises(ParameterError, match="expected a fitted ranker of tierank, got str"):
        app({"m": "folder"})
    with pytest.raises(ParameterError, match="letters, digits"):
        app({'a"b': trees})
    with pytest.raises(tierank.NotFittedError, match="call fit first"):
        app({"m": tierank.UMart()})
    with pytest.raises(ParameterError, match="threads: expected a whole number"):
        app({"m": trees}, threads=0)
    with pytest.raises(ParameterError, match="max_bytes: expected a whole number"):
        Limits(max_bytes=0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["id", "features", *NAMES]), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(["model", "k", "explain", "documents", "ids", "names", "features", "queries", "id", "x"])
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "documents": st.lists(
            st.fixed_dictionaries({"features": st.lists(JSON, min_size=6, max_size=6)}, optional={"id": JSON})
        ),
        "features": st.lists(st.lists(st.floats() | st.none() | st.integers(), min_size=6, max_size=6)) | st.text(),
        "k": st.integers(-1, 5),
        "explain": st.booleans(),
        "names": st.permutations(NAMES).map(list) | JSON,
        "ids": st.lists(st.text() | st.integers()),
    },
)


@settings(max_examples=150, deadline=None)
@given(
    path=st.sampled_from(["/rank", "/score"]),
    body=st.binary(max_size=30) | JSON | st.dictionaries(KEYS, JSON) | NEARLY | NEARLY.map(lambda q: {"queries": [q]}),
)
def test_no_body_is_a_bug_of_ours(service, path, body):
    code, _, found = ask(service, path, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert code in (200, 400, 404, 413, 422), (code, found, body)
    if code != 200:
        assert set(found["error"]) == {"where", "expected", "got", "fix"}


# Models that are replaced


def test_a_new_model_takes_over_and_a_broken_one_does_not(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    folder = tmp_path / "m"
    quick("umart").fit(make_data(named=True)).save(folder)
    model = Model.read("m", folder)
    service = Service([model], threads=1)
    first = model.version
    assert not model.has_changed
    quick("umart", n_trees=9).fit(make_data(named=True)).save(folder)
    assert model.has_changed
    service.replace(model)
    assert not model.has_changed
    second = model.version
    assert second.checksum != first.checksum
    text = (folder / "trees.txt").read_text()
    broken = [
        lambda: (folder / "trees.txt").write_text(text[: len(text) // 2]),
        lambda: (folder / "model.json").write_text("{"),
        lambda: shutil.rmtree(folder),
        lambda: quick("umart").fit(make_data()).save(folder),
        lambda: quick("umart").fit(tierank.make_ranking(20, n_features=4, mean_length=9)).save(folder),
        lambda: shutil.rmtree(folder),
    ]
    for number, breaks in enumerate(broken, 1):
        breaks()
        service.replace(model)
        assert model.version is second
        assert not model.has_changed  # it is not tried again and again
        assert service.counters.total("reloads", "m", "refused") == number
    assert service.counters.total("reloads", "m", "replaced") == 1
    assert "its checksum differs" in caplog.text
    assert "no names; serve it under a name of its own" in caplog.text
    assert "4 in place of 6" in caplog.text
    quick("umart").fit(make_data(named=True)).save(folder)
    service.replace(model)
    assert model.version.checksum == first.checksum


def test_a_model_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    rankers = [quick("umart", n_trees=n).fit(make_data()) for n in (3, 4)]
    rankers[0].save(tmp_path / "m")
    pending = rankers[1:]

    def load_and_replace(folder):
        found = tierank.load(folder)
        for ranker in pending[:1]:
            ranker.save(folder)
        del pending[:1]
        return found

    monkeypatch.setattr("tierank.serve.models.load", load_and_replace)
    version = Model.read("m", tmp_path / "m").version
    assert version.ranker.n_rounds_ == 4
    assert version.checksum == Model.of("m", rankers[1]).version.checksum
    pending += rankers * 10  # as often as it is read
    with pytest.raises(DataError, match="expected a model that stays for a moment"):
        Model.read("m", tmp_path / "m")


def test_trees_with_categories_are_served(data):
    features = np.array(data.features)
    features[:, 0] = np.arange(len(features)) % 4
    codes = data.with_features(features, None)
    ranker = quick("umart", categorical_feature=[0], min_data_per_group=5).fit(codes)
    application = app({"m": ranker}, threads=1)
    assert not ask(application, "/models")[2]["models"][0]["needs_whole_list"]
    rows = features[:12]
    _, _, found = ask(application, "/score", {"queries": [{"features": rows.tolist()}]})
    assert found["queries"][0]["scores"] == ranker.predict(rows).tolist()


# The command


@contextmanager
def serving(*arguments):
    """A server of its own, its port, and the lines of its log."""
    command = [sys.executable, "-m", "tierank.cli", "serve", *map(str, arguments), "--port", "0", "--json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    lines, is_up = [], threading.Event()

    def read():
        for line in process.stderr:
            lines.append(json.loads(line))
            if lines[-1]["message"].startswith("serving"):
                is_up.set()
        is_up.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert is_up.wait(300)
        port = int(re.search(r"http://127.0.0.1:(\d+)", lines[-1]["message"])[1])
        yield process, port, lines
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()


def call(port, path, body=None, connection=None):
    one = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": "application/json"}
    one.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
    answer = one.getresponse()
    text = answer.read()
    if connection is None:
        one.close()
    return answer.status, json.loads(text) if answer.headers["content-type"] == "application/json" else text.decode()


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_model_is_replaced_under_load_and_no_request_is_lost(tmp_path):
    data = make_data()
    rankers = [quick("umart", n_trees=n).fit(data) for n in (5, 8)]
    rankers[0].save(tmp_path / "m")
    rows = data.features[:20]
    expected = [ranker.rank(rows).score.tolist() for ranker in rankers]
    seen, stop = [], threading.Event()
    with serving(tmp_path / "m", f"net={tmp_path / 'm'}", "--threads", "2", "--watch", "0.2") as (process, port, lines):
        assert call(port, "/ready") == (200, {"status": "ready"})
        assert [model["name"] for model in call(port, "/models")[1]["models"]] == ["m", "net"]

        def load():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            while not stop.is_set():
                code, found = call(port, "/rank", {"features": rows.tolist()}, connection)
                assert code == 200
                seen.append(expected.index([one["score"] for one in found["ranking"]]))
            connection.close()

        def says(text):
            return any(text in line["message"] for line in list(lines))

        with ThreadPoolExecutor(2) as pool:
            clients = [pool.submit(load) for _ in range(2)]
            wait_for(lambda: len(seen) > 5)
            rankers[1].save(tmp_path / "m")  # --watch finds it
            wait_for(lambda: 1 in seen)
            (tmp_path / "m" / "trees.txt").write_text("tree")
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: says("model net: kept the old one"))
            stop.set()
            for client in clients:
                client.result()
        assert set(seen) == {0, 1}
        assert seen[-1] == 1
        metrics = call(port, "/metrics")[1]
        assert 'tierank_model_reloads_total{model="m",outcome="refused"} 1' in metrics
        assert 'tierank_model_reloads_total{model="m",outcome="replaced"} 1' in metrics
        asked = [line for line in lines if line.get("path") == "/rank"]
        assert {line["code"] for line in asked} == {200}
        assert asked[0]["documents"] == 20
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_workers_share_a_port_and_are_started_again(tmp_path):
    quick("umart").fit(make_data()).save(tmp_path / "m")
    with serving(tmp_path / "m", "--workers", "2", "--threads", "1") as (process, port, lines):
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_for(lambda: len(listed.read_text().split()) == 2)
        for _ in range(6):
            assert call(port, "/rank", {"features": [ROW]})[0] == 200
        assert 'tierank_documents_scored_total{model="m"} 6' in call(port, "/metrics")[1]
        first = listed.read_text().split()
        os.kill(int(first[1]), signal.SIGKILL)
        wait_for(lambda: len(set(listed.read_text().split()) - set(first)) == 1)
        assert any("was ended by SIGKILL; starting another" in line["message"] for line in lines)
        assert call(port, "/rank", {"features": [ROW]})[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def test_what_all_workers_would_meet_is_said_once(tmp_path):
    command = [sys.executable, "-m", "tierank.cli", "serve", str(tmp_path), "--workers", "3", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "expected the folder of a saved model" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def log_as_it_was():
    kept = [
        (logging.getLogger(n), logging.getLogger(n).handlers, logging.getLogger(n).level)
        for n in ("tierank", "uvicorn")
    ]
    yield
    for logger, handlers, level in kept:
        logger.handlers, logger.propagate = handlers, True
        logger.setLevel(level)


@pytest.mark.usefixtures("log_as_it_was")
def test_what_the_command_refuses(tmp_path, capsys, trees):
    trees.save(tmp_path / "m")
    (tmp_path / "empty").mkdir()
    trees.save(tmp_path / "twice")
    described = json.loads((tmp_path / "twice" / "model.json").read_text())
    described["feature_names"][1] = "bm25"
    (tmp_path / "twice" / "model.json").write_text(json.dumps(described))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for arguments, words in (
            ([tmp_path / "m", "--port", port], "another process has; choose another"),
            ([tmp_path / "empty", "--port", "0"], "expected the folder of a saved model"),
            ([tmp_path / "twice", "--port", "0"], "expected each name once, got 'bm25' twice"),
            ([tmp_path / "m", f"m={tmp_path / 'm'}"], "got 'm' twice; name one"),
            ([f"a b={tmp_path / 'm'}", "--port", "0"], "letters, digits"),
            ([tmp_path / "m", "--port", "70000"], "port: expected a number from 0 to 65535"),
            ([tmp_path / "m", "--host", "no such host", "--port", "0"], "host: expected an address"),
            ([tmp_path / "m", "--workers", "0"], "workers: expected a whole number from 1 on"),
            ([tmp_path / "m", "--watch", "0"], "watch: expected a finite number above 0"),
            ([tmp_path / "m", "--max-documents", "0"], "max_documents: expected a whole number"),
            ([tmp_path / "m", "--json", "--quiet"], "not allowed with"),
        ):
            assert cli.main(["serve", *map(str, arguments)]) == 2
            said = capsys.readouterr().err
            assert words in said
            assert len(said.splitlines()) == 1


def test_without_the_extra_it_names_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tierank.serve.extra.find_spec", lambda name: None)
    assert cli.main(["serve", str(tmp_path)]) == 2
    assert "pip install 'tierank[serve]'" in capsys.readouterr().err
    with pytest.raises(ParameterError, match=r"pip install 'tierank\[serve\]'"):
        app({})


def test_settings_have_the_defaults_of_the_command():
    options = cli.make_parser().parse_args(["serve", "m"])
    known = Settings()
    for name in ("host", "port", "workers", "threads", "watch"):
        assert getattr(options, name) == getattr(known, name)
    for name in ("max_bytes", "max_documents", "max_waiting"):
        assert getattr(options, name) == getattr(known.limits, name)
