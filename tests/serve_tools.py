"""What the tests of serving share: small models, requests to the application itself, and servers of their own."""

import asyncio
import base64
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
from running import PATIENCE

import tierank
from tierank import RANKERS, RankingDataset
from tierank.rankers.base import Ranker

ROW = [0.0] * 6
NAMES = ("bm25", "visits", "price", "length", "age", "stock")
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
    if name == "linear":
        return tierank.LinearRanker(**{"n_jobs": 1} | settings)
    return RANKERS[name](**(TREES if hasattr(RANKERS[name], "importance") else NETWORK) | settings)


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


def ask(application, path, body=None, **options):
    """Code, headers and content of an answer, from the application itself."""
    return asyncio.run(asking(application, path, body, **options))


async def asking(application, path, body=None, *, method=None, headers=None, parts=None, receive=None):
    """The same, for whoever is in an event loop; ``receive`` gives the parts of the body one by one."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    sent, to_receive = [], [content] if parts is None else list(parts)
    given = {"content-type": "application/json"} | (headers or {})
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method or ("GET" if body is None and parts is None and receive is None else "POST"),
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }

    async def next_part():
        part = to_receive.pop(0) if to_receive else b""
        return {"type": "http.request", "body": part, "more_body": bool(to_receive)}

    async def send(message):
        sent.append(message)

    await application(scope, receive or next_part, send)
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    text = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], found, json.loads(text) if found["content-type"] == "application/json" else text.decode()


def as_base64(matrix) -> str:
    return base64.b64encode(np.asarray(matrix).astype("<f4").tobytes()).decode()


@contextmanager
def serving(*arguments, before=""):
    """A server of its own, its port, and the lines of its log; ``before`` is run in it first."""
    program = f"import sys\n{before}\nfrom tierank.cli import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "serve", "--port", "0", "--json", *map(str, arguments)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    lines, is_up = [], threading.Event()

    def read():
        for line in process.stderr:
            lines.append(json.loads(line) if line.startswith("{") else {"message": line})
            if lines[-1]["message"].startswith("serving"):
                is_up.set()
        is_up.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert is_up.wait(PATIENCE)
        at = next(line["message"] for line in lines if line["message"].startswith("serving"))
        yield process, int(re.search(r"http://127.0.0.1:(\d+)", at)[1]), lines
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()


def n_said(lines, text):
    """How many lines of a log say this."""
    return sum(text in line["message"] for line in list(lines))


def call(port, path, body=None, connection=None, key=None):
    """Code and content of an answer of a server."""
    one = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    one.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
    answer = one.getresponse()
    text = answer.read()
    if connection is None:
        one.close()
    return answer.status, json.loads(text) if answer.headers["content-type"] == "application/json" else text.decode()


def wait_for(condition):
    """Wait until something is so, for a generous time."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
