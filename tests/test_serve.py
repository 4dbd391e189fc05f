"""Serving: answers have the bits of predict and rank, wrong requests are told what to do, models change places."""

import json
import logging
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
msgspec = pytest.importorskip("msgspec")

from msgspec import UNSET
from serve_tools import NAMES, ROW, TREES, Held, as_base64, ask, make_data, quick

import tierank
from tierank import RANKERS, DataError, ParameterError, RankingDataset
from tierank.kernels.json import END, POWERS, read_rows
from tierank.rankers.base import Ranker
from tierank.serve import Limits, app, requests
from tierank.serve.admission import Refusal
from tierank.serve.application import Service
from tierank.serve.monitoring import Counters
from tierank.serve.requests import Documents, Features, read_rank, read_score
from tierank.serve.served_models import ServedModel, Version


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
        quick("urank", feature_transform="standard"),
        quick("urank", feature_transform="standard", n_seeds=2),
        quick("urank", feature_transform="none", network="attention", network_settings={"width": 8}, hidden=(100, 50)),
        quick("uboost", feature_transform="standard", base=quick("umart", query_features=True)),
        quick("umart", base=quick("urank", feature_transform="standard")),
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


def test_a_model_that_cannot_be_explained_is_not_blamed_on_the_documents(data):
    service = app({"m": quick("umart", linear_tree=True).fit(data)})
    code, _, found = ask(service, "/rank", {"features": data.features[:3].tolist(), "k": 2, "explain": True})
    assert (code, found["error"]["where"], found["error"]["fix"]) == (422, "explain", "leave it out")
    assert "linear_tree: expected False, to explain scores" in found["error"]["got"]


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
    assert ServedModel.of("m", trees).version.checksum == ServedModel.read("m", tmp_path / "m").version.checksum


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
    assert counters.total('tierank_documents_scored_total{model="m"}') == 15


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


@pytest.mark.parametrize(
    ("body", "code", "where", "words"),
    [
        (b"", 400, "body, line 1, column 1", "correct the JSON"),
        (b'{"documents": [\n}', 400, "body, line 2, column 1", "Expecting value"),
        (b"\xff{}", 400, "body, byte 0", "UTF-8"),
        (b'"\\ud800"', 422, "body", "lone surrogate"),
        (b'{"k": "\\ud800"}', 422, "body", "lone surrogate"),
        (b'{"documents": [{"features": [NaN]}]}', 400, "body", "null for a missing value"),
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
        ({"features": "AAAA"}, 422, "features", "not a multiple of 24"),
        ({"features": as_base64([[np.inf] * 6])}, 422, "features, row 0, column 0", "infinity"),
        ({"features": [[1]], "names": ["bm25", "bm25"]}, 422, "features[0]", "a list of 2"),
        ({"features": [[1, 1]], "names": ["bm25", "bm25"]}, 422, "names", "each once"),
        ({"features": [[1]], "names": ["bm"]}, 422, "names", "did you mean 'bm25'?"),
        ({"features": [ROW], "names": 1}, 422, "names", "a list of texts"),
        ({"documents": [], "k": 0}, 422, "k", ">= 1"),
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
    code, _, found = ask(application, "/rank", {"documents": [{"features": [1]}]})
    assert code == 422
    assert "in the order of the training data (features 1, 2, ... of a LETOR file)" in found["error"]["fix"]


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


@pytest.fixture
def held(data):
    ranker = Held(**TREES).fit(data)
    ranker.may_go.set()
    return ranker


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
    with pytest.raises(ParameterError, match="expected at least one"):
        app({})
    with pytest.raises(ParameterError, match="expected a fitted ranker of tierank, got str"):
        app({"m": "folder"})
    with pytest.raises(ParameterError, match="letters, digits"):
        app({'a"b': trees})
    with pytest.raises(tierank.NotFittedError, match="call fit first"):
        app({"m": tierank.UMart()})
    with pytest.raises(ParameterError, match="threads: expected an integer"):
        app({"m": trees}, threads=0)
    with pytest.raises(ParameterError, match="max_bytes: expected an integer"):
        Limits(max_bytes=0)
    for models in (trees, [trees], "folder"):
        with pytest.raises(ParameterError, match=r"models: expected a dict of fitted rankers by name, got .*app\("):
            app(models)
    with pytest.raises(ParameterError, match=r"letters, digits, .*, got 1"):
        app({1: trees})
    for limits in ({"timeout": 2}, Limits):
        with pytest.raises(ParameterError, match=r"limits: expected tierank.serve.Limits, got .*Limits\(timeout=2\)"):
            app({"m": trees}, limits=limits)
    with pytest.raises(ParameterError, match="keys: expected a list of texts, got int"):
        app({"m": trees}, keys=7)


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


@examples(150)
@given(
    path=st.sampled_from(["/rank", "/score"]),
    body=st.binary(max_size=30) | JSON | st.dictionaries(KEYS, JSON) | NEARLY | NEARLY.map(lambda q: {"queries": [q]}),
)
def test_no_body_is_a_bug_of_ours(service, path, body):
    code, _, found = ask(service, path, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert code in (200, 400, 404, 413, 422), (code, found, body)
    if code != 200:
        assert set(found["error"]) == {"where", "expected", "got", "fix"}


# The reader of text and the reader of decoded values are the same


class Known:
    """What answers a request, as far as its reader needs it."""

    def __init__(self, *features):
        self.features = Features(*features)


KNOWN = {"named": Known(6, NAMES, True), "whole": Known(6, NAMES, False), "plain": Known(6, None, False)}
FEW = Limits(max_documents=4)
NUMBERS = st.floats(allow_nan=False) | st.integers() | st.none() | st.sampled_from([0.1, -0.0, 1e-45, 3.4e38, 2**70])
SIX = st.lists(NUMBERS, min_size=6, max_size=6)
IDS = st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
LISTS = st.fixed_dictionaries(
    {
        "documents": st.lists(
            st.fixed_dictionaries(
                {"features": SIX | st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, NUMBERS))},
                optional={"id": IDS},
            ),
            max_size=6,
        )
    }
) | st.fixed_dictionaries(
    {
        "features": st.lists(SIX, max_size=6)
        | st.lists(st.lists(st.floats(width=32, allow_infinity=False), min_size=6, max_size=6), max_size=6).map(
            as_base64
        )
    },
    optional={"ids": st.lists(IDS, max_size=4) | st.none(), "names": st.permutations(NAMES).map(list) | st.none()},
)
ASKED = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from([*KNOWN, "other"]),
        "k": st.integers(-1, 5) | st.none(),
        "explain": st.booleans(),
    },
)
RANKS = st.builds(lambda asked, one: asked | one, ASKED, LISTS) | NEARLY | st.dictionaries(KEYS, JSON)
SCORES = st.lists(LISTS | NEARLY, max_size=5).map(lambda lists: {"queries": lists})


def chosen(name):
    if type(name) is not str and name is not UNSET:
        raise Refusal(404, "model", "a name", "another", "")
    if name is not UNSET and name not in KNOWN:
        raise Refusal(404, "model", "a name", "another", "")
    name = next(iter(KNOWN)) if name is UNSET else name
    return name, KNOWN[name]


def outcome(read, body):
    """What a reader makes of a body, so that it can be compared to the bit."""
    try:
        found = read(bytearray(body), chosen, FEW)
    except Refusal as refusal:
        return refusal.code, refusal.where, refusal.expected, refusal.got
    lists = [found.documents] if hasattr(found, "documents") else found.lists
    asked = (found.k, found.explain) if hasattr(found, "documents") else (json.dumps(found.ids),)
    rows = [(json.dumps([one.id_of(i) for i in range(len(one.features))]), one.features.tobytes()) for one in lists]
    return found.model, *asked, rows


class Unsure:
    """A decoder that accepts nothing."""

    def decode(self, text):
        raise msgspec.DecodeError("not sure")


def decoded_outcome(read, body):
    """The same of the reader that decodes all of a body before it checks it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "_RANK", Unsure())
        patch.setattr(requests, "_SCORE", Unsure())
        return outcome(read, body)


def spaced(body, blanks):
    """The same JSON with blanks in it, which change nothing."""
    return blanks.join([b"", json.dumps(body, separators=(" , ", ": ") if blanks else (",", ":")).encode(), b""])


@examples(200)
@given(body=RANKS, blanks=st.sampled_from([b"", b" \n"]))
def test_a_list_to_rank_is_the_same_as_text_and_decoded(body, blanks):
    text = spaced(body, blanks)
    assert outcome(read_rank, text) == decoded_outcome(read_rank, text)


@examples(100)
@given(body=SCORES, blanks=st.sampled_from([b"", b" \n"]))
def test_queries_are_the_same_as_text_and_decoded(body, blanks):
    text = spaced(body, blanks)
    assert outcome(read_score, text) == decoded_outcome(read_score, text)


@pytest.mark.parametrize(
    "body",
    [
        {"documents": [{"id": "a", "features": [0.1, -2, 3.25e-7, None, 1e5, 0]}]},
        {"features": [[0.1, -2.5, 3, 4, 5, 0.30000001192092896]], "ids": [7]},
        {"features": as_base64([[1, 2, 3, 4, 5, 6]]), "model": "plain"},
    ],
)
def test_usual_bodies_go_the_fastest_way(body, monkeypatch):
    text = json.dumps(body).encode()
    expected = decoded_outcome(read_rank, text)
    monkeypatch.setattr(Features, "_read", None)
    assert outcome(read_rank, text) == expected
    assert isinstance(expected[0], str)


# Decimals of all lengths, and those next to where a float32 begins to round to the next one.
BETWEEN = st.floats(0, 2.0**100, width=32).map(lambda x: (x + float(np.nextafter(np.float32(x), np.float32(1e38)))) / 2)
DECIMALS = (
    st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
    | st.builds(lambda x, digits: f"{x:.{digits}f}", BETWEEN, st.integers(1, 18))
    | st.builds(lambda x, digits: f"{x:.{digits}g}", BETWEEN, st.integers(1, 18))
)


def as_number(text):
    """What the kernel makes of a number; None where it is not sure."""
    matrix = np.zeros((1, 1), np.float32)
    is_sure = read_rows(np.frombuffer(b"[" + text.encode() + b"]," + END, np.uint8), POWERS, matrix)
    return matrix[0, 0] if is_sure else None


@examples(500)
@given(text=DECIMALS)
def test_numbers_are_those_of_python_to_the_bit(text):
    found = as_number(text)
    with np.errstate(over="ignore"):
        expected = np.float32(float(text))
    assert found is None or found.tobytes() == expected.tobytes()
    if re.fullmatch(r"[1-9][0-9]{0,5}(\.[0-9]{1,8})?", text):
        assert found is not None


@examples(500)
@given(text=st.text(alphabet="0123456789+-.eE nul[],", max_size=8))
def test_what_is_no_number_of_json_is_not_read_as_one(text):
    try:
        value = json.loads(f"[{text}]")
    except json.JSONDecodeError:
        value = []
    is_number = len(value) == 1 and (value[0] is None or type(value[0]) in (int, float))
    assert as_number(text) is None or is_number


@examples(200)
@given(body=RANKS | SCORES, blanks=st.sampled_from([b"", b" \n"]))
def test_a_large_body_is_read_like_a_small_one(body, blanks):
    text = spaced(body, blanks)
    for read in (read_rank, read_score):
        small = outcome(read, text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(requests, "LARGE", 0)
            large = outcome(read, text)
        if large != small:  # refused either way, if not always in the same words
            assert isinstance(small[0], int), (small, large)
            assert large[0] in (400, 404, 413, 422), (small, large)


@examples(200)
@given(text=st.binary(max_size=40) | st.text(alphabet='[]{}",:\\ 1ab', max_size=40).map(str.encode))
def test_no_damaged_text_gets_through_in_a_large_body(text):
    body = b'{"documents": [' + text + b"]}"
    small = outcome(read_rank, body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "LARGE", 0)
        large = outcome(read_rank, body)
    assert isinstance(small[0], int) == isinstance(large[0], int)


@pytest.mark.parametrize("blanks", [b"", b" " * 300_000])
def test_the_last_of_two_members_with_the_same_name_counts(blanks):
    one, two = b"[0, 0, 0, 0, 0, 0]", b"[[1, 1, 1, 1, 1, 1]]"
    text = b'{"k": 7, "features": [%b, %b], "features": %b, "k": 1%b}' % (one, one, two, blanks)
    assert outcome(read_rank, text) == outcome(read_rank, b'{"features": %b, "k": 1}' % two)


# What no decoder of typed values checks for us, in a small body and in a large one.
@pytest.mark.parametrize("body", [b'{"features": "AAA\x8dAAAA"}', b'{"features": "", "names": [%b]}'])
@pytest.mark.parametrize("blanks", [b"", b" " * 300_000])
def test_doubtful_bodies_of_base64_are_refused(body, blanks):
    text = body.replace(b"{", b"{" + blanks).replace(b"%b", blanks)
    assert outcome(read_rank, text)[0] in (400, 422)


# Models that are replaced


def n_reloads(service, outcome) -> float:
    return service.counters.total(f'tierank_model_reloads_total{{model="m",outcome="{outcome}"}}')


def test_a_new_model_takes_over_and_a_broken_one_does_not(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    folder = tmp_path / "m"
    quick("umart").fit(make_data(named=True)).save(folder)
    model = ServedModel.read("m", folder)
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
        assert n_reloads(service, "refused") == number
    assert n_reloads(service, "replaced") == 1
    assert [one.levelname for one in caplog.records if ": replaced, checksum " in one.message] == ["INFO"]
    assert "one with another checksum" in caplog.text
    assert "no names; serve it under another name" in caplog.text
    assert "4 in place of 6" in caplog.text
    quick("umart").fit(make_data(named=True)).save(folder)
    service.replace(model)
    assert model.version.checksum == first.checksum


def test_a_model_may_learn_other_levels_but_not_take_other_values(tmp_path, caplog):
    """What clients send counts, and not the features that the model computes from it."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(3)
    size, ratings, queries = rng.normal(size=60), rng.integers(0, 3, 60), np.repeat(np.arange(6), 10)

    def save(colors):
        table = pd.DataFrame({"size": size, "color": colors})
        quick("linear").fit(table, ratings, queries).save(tmp_path / "m")

    save(rng.choice(["red", "blue"], 60))
    model = ServedModel.read("m", tmp_path / "m")
    service = Service([model], threads=1)
    save(rng.choice(["red", "green", "grey"], 60))
    service.replace(model)
    assert n_reloads(service, "replaced") == 1
    save(rng.integers(0, 3, 60))
    service.replace(model)
    assert n_reloads(service, "refused") == 1
    assert "got number in place of category for 'color'" in caplog.text
    document = {"features": {"size": 0.5, "color": "grey"}}
    assert ask(service.application(), "/score", {"queries": [{"documents": [document]}]})[0] == 200


@pytest.mark.parametrize("name", ["model.json", "trees.txt"])
def test_loading_does_not_wait_for_the_writer_of_a_pipe(tmp_path, name):
    quick("umart").fit(make_data()).save(tmp_path / "m")
    (tmp_path / "m" / name).unlink()
    os.mkfifo(tmp_path / "m" / name)
    for read in (partial(ServedModel.read, "m"), tierank.load):
        with pytest.raises(DataError, match=f"{name}.* got (none|a folder without it)"):
            read(tmp_path / "m")


@pytest.mark.parametrize("name", ["a" * 3000, "a/b", "..", "", "a\0b", "\ud800"])
def test_names_that_no_file_can_have_are_refused(tmp_path, name):
    quick("umart").fit(make_data()).save(tmp_path / "m")
    file = tmp_path / "m" / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"files": {name: ""}}))
    for read in (partial(ServedModel.read, "m"), tierank.load):
        with pytest.raises(DataError, match=r"expected a file .* inside the model folder, got none") as raised:
            read(tmp_path / "m")
        assert len(str(raised.value)) < len(str(tmp_path)) + 250


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

    monkeypatch.setattr("tierank.serve.served_models.load", load_and_replace)
    version = ServedModel.read("m", tmp_path / "m").version
    assert version.ranker.n_rounds_ == 4
    assert version.checksum == ServedModel.of("m", rankers[1]).version.checksum
    pending += rankers * 10  # as often as it is read
    with pytest.raises(DataError, match="the model changed 20 times while loading"):
        ServedModel.read("m", tmp_path / "m")


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
