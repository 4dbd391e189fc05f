"""Latency of ``tierank serve``: uMart and uRank over HTTP, compared with predict in-process and a minimal endpoint.

    python -m benchmarks.serving

Lists of 100 documents with 136 features, each scored by one thread; clients keep their connections. Every system takes
its turn in every round; the round with the lowest median counts, because other work on the machine only adds time. CPU
time is that of the server alone, over all rounds: the fairest number on a shared machine. The minimal endpoint is what
one would write by hand: Starlette, the same JSON, LightGBM's ``Booster.predict``, and no checks.

Finally, the latency of ``/health`` and of a small list while one client continuously sends bodies of 15 MB, or asks for
explanations.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

# Before numpy and torch start their threads.
os.environ |= dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], "1")
os.environ["OMP_WAIT_POLICY"] = "passive"

import numpy as np

import tierank
from tierank.report.tabulate import Table

LENGTH = 100
N_LISTS = 20
TICK = os.sysconf("SC_CLK_TCK")


class System(NamedTuple):
    """A measured system: ``run(list, client)`` scores one list; ``cpu_seconds`` is the CPU time of its server."""

    name: str
    run: Callable[[int, int], object]
    cpu_seconds: Callable[[], float]
    renew: Callable[[], object] = lambda: None


class Server:
    """A server in a separate process, and a connection for each client."""

    def __init__(self, process: subprocess.Popen[str], port: int, n_clients: int) -> None:
        self.process, self.port = process, port
        self.connections = [http.client.HTTPConnection("127.0.0.1", port) for _ in range(n_clients)]

    def system(self, name: str, path: str, bodies: list[bytes]) -> System:
        """The server, called with these bodies."""

        def run(number: int, client: int) -> bytes:
            connection = self.connections[client]
            connection.request("POST", path, bodies[number], {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise RuntimeError(content)
            return content

        return System(name, run, self._cpu_seconds, self._renew)

    def _renew(self) -> None:
        """Open the connections again: the server closes idle ones."""
        for connection in self.connections:
            connection.close()
            connection.connect()

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK


@contextmanager
def started(arguments: list[str], n_clients: int) -> Iterator[Server]:
    process = subprocess.Popen([sys.executable, "-m", *arguments], stderr=subprocess.PIPE, text=True)
    try:
        lines = iter(process.stderr)
        port = next(int(found[1]) for line in lines if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
        threading.Thread(target=lambda: list(lines), daemon=True).start()  # a full pipe would stop the server
        yield Server(process, port, n_clients)
    finally:
        process.terminate()
        process.wait()


def serve_bare(folder: str) -> None:
    """The endpoint that one would write by hand."""
    import lightgbm
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    booster = lightgbm.Booster(model_file=f"{folder}/trees.txt")

    async def rank(request: Request) -> JSONResponse:
        documents = (await request.json())["documents"]
        scores = booster.predict(np.array([d["features"] for d in documents]), raw_score=True, num_threads=1)
        order = np.argsort(-scores, kind="stable")
        rows = [{"id": documents[i]["id"], "rank": k, "score": scores[i]} for k, i in enumerate(order, 1)]
        return JSONResponse({"ranking": rows})

    application = Starlette(routes=[Route("/rank", rank, methods=["POST"])])
    uvicorn.run(application, port=0, access_log=False, lifespan="off")


def make_models(folder: Path) -> dict[str, tierank.rankers.Ranker]:
    train = tierank.make_ranking(100, seed=1)
    models = {
        "umart": tierank.UMart(n_trees=500, n_jobs=1).fit(train),
        "urank": tierank.URank(max_epochs=2, n_jobs=1).fit(train),
    }
    for name, ranker in models.items():
        ranker.save(folder / name)
    return models


def make_bodies(lists: list[np.ndarray]) -> dict[str, list[dict[str, Any]]]:
    """The requests, in the two forms that differ most; numbers have six digits, which is typical."""
    rows = [[[float(f"{value:.6g}") for value in row] for row in one.tolist()] for one in lists]
    objects = [[{"id": f"d{i}", "features": row} for i, row in enumerate(one)] for one in rows]
    ids = [f"d{i}" for i in range(LENGTH)]
    packed = [base64.b64encode(np.array(one, "<f4").tobytes()).decode() for one in rows]
    return {
        "JSON": [{"documents": one} for one in objects],
        "base64": [{"ids": ids, "features": one} for one in packed],
    }


def make_systems(
    models: dict[str, tierank.rankers.Ranker], ours: Server, bare: Server, lists: list[np.ndarray]
) -> list[System]:
    bodies = make_bodies(lists)
    systems = []
    for name, ranker in models.items():
        query = np.zeros(LENGTH)
        systems.append(
            System(
                f"{name}.predict, in-process",
                lambda number, client, ranker=ranker, query=query: ranker.predict(lists[number], qid=query),
                time.process_time,
            )
        )
        for form, contents in bodies.items():
            encoded = [json.dumps({"model": name, **content}).encode() for content in contents]
            systems.append(ours.system(f"{name}, tierank serve, {form}", "/rank", encoded))
        if name == "umart":
            encoded = [json.dumps(content).encode() for content in bodies["JSON"]]
            systems.append(bare.system("umart, bare Starlette and LightGBM, JSON", "/rank", encoded))
    return systems


class Measured:
    """The best round of a system, and its CPU time over all rounds."""

    def __init__(self) -> None:
        self.p50 = self.p99 = np.inf
        self.rate = self.cpu = 0.0
        self.n = 0

    def add(self, seconds: np.ndarray, wall: float, cpu: float) -> None:
        """Add a round: seconds of each request, and of all of it."""
        p50, p99 = np.percentile(seconds, [50, 99])
        if p50 < self.p50:
            self.p50, self.p99, self.rate = p50, p99, len(seconds) / wall
        self.cpu, self.n = self.cpu + cpu, self.n + len(seconds)


def measure(systems: list[System], n_clients: int, n_requests: int, n_rounds: int) -> dict[str, Measured]:
    found = {system.name: Measured() for system in systems}
    for _ in range(n_rounds):
        for system in systems:
            system.renew()
            cpu, start = system.cpu_seconds(), time.perf_counter()
            seconds = run_clients(system, n_clients, n_requests)
            wall = time.perf_counter() - start
            found[system.name].add(seconds, wall, system.cpu_seconds() - cpu)
    return found


def run_clients(system: System, n_clients: int, n_requests: int) -> np.ndarray:
    """Seconds of each request; all clients send requests at the same time, one after the other."""
    seconds = np.zeros((n_clients, n_requests // n_clients))

    def ask(client: int) -> None:
        for k in range(seconds.shape[1]):
            start = time.perf_counter()
            system.run((client + k) % N_LISTS, client)
            seconds[client, k] = time.perf_counter() - start

    clients = [threading.Thread(target=ask, args=(client,)) for client in range(n_clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return seconds.ravel()


def tabulate(found: dict[str, Measured], n_clients: int) -> Table:
    rows = [
        [name, f"{1e3 * m.p50:.2f}", f"{1e3 * m.p99:.2f}", f"{m.rate:,.0f}", f"{1e3 * m.cpu / m.n:.2f}"]
        for name, m in found.items()
    ]
    title = f"{n_clients} client{'s' if n_clients > 1 else ''}, lists of {LENGTH} documents, 136 features"
    return Table(title, ["what", "p50 ms", "p99 ms", "lists a second", "CPU ms a list"], rows, [])


def make_burdens(lists: list[np.ndarray]) -> dict[str, bytes | None]:
    """Large requests that one client repeats while others send small ones."""
    rows = [[float(f"{value:.6g}") for value in row] for row in np.concatenate(lists * 6)[:10_000].tolist()]
    why = {"model": "urank", "k": 100, "explain": True, "features": rows[:LENGTH]}
    return {
        "nothing": None,
        "5 million empty lists": b'{"documents":[' + b"[]," * 5_000_000 + b"[]]}",
        "7 million numbers": b'{"features":[[' + b"0," * 7_000_000 + b"0]]}",
        f"{len(rows):,} documents": json.dumps({"model": "umart", "features": rows}).encode(),
        "100 explanations of a network": json.dumps(why).encode(),
    }


def measure_beside(port: int, burden: bytes | None, body: bytes, n: int) -> list[float]:
    """Median and longest milliseconds of ``/health`` and of a list while another client sends large requests."""
    is_over, headers = threading.Event(), {"Content-Type": "application/json"}

    def press() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while not is_over.is_set():
            connection.request("POST", "/rank", burden, headers)
            connection.getresponse().read()

    presser = threading.Thread(target=press)
    if burden is not None:
        presser.start()
    connection, seconds = http.client.HTTPConnection("127.0.0.1", port), np.zeros((n, 2))
    for k in range(n):
        for column, request in enumerate((("GET", "/health"), ("POST", "/rank", body, headers))):
            start = time.perf_counter()
            connection.request(*request)
            connection.getresponse().read()
            seconds[k, column] = time.perf_counter() - start
        time.sleep(0.01)
    is_over.set()
    if burden is not None:
        presser.join()
    return (1e3 * np.array([np.median(seconds, axis=0), seconds.max(axis=0)])).T.ravel().tolist()


def tabulate_beside(port: int, lists: list[np.ndarray], n: int) -> Table:
    body = json.dumps({"features": lists[0].tolist()}).encode()
    rows = [
        [name, *(f"{value:.1f}" for value in measure_beside(port, burden, body, n))]
        for name, burden in make_burdens(lists).items()
    ]
    title = "milliseconds while another client asks for"
    return Table(title, ["what", "/health p50", "/health max", "list p50", "list max"], rows, [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--requests", type=int, default=160, help="of a round (default: 160)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=int, default=60, help="requests beside each burden (default: 60)")
    parser.add_argument("--bare", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        serve_bare(options.bare)
        return
    features = tierank.make_ranking(N_LISTS * 3, seed=2).features
    lists = [np.ascontiguousarray(features[k * LENGTH : (k + 1) * LENGTH]) for k in range(N_LISTS)]
    most = max(options.clients)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = make_models(folder)
        command = ["tierank", "serve", str(folder / "umart"), str(folder / "urank"), "--port", "0"]
        by_hand = ["benchmarks.serving", "--bare", str(folder / "umart")]
        with started(command, most) as ours, started(by_hand, most) as bare:
            systems = make_systems(models, ours, bare, lists)
            measure(systems, most, most * 2, 1)
            for n_clients in options.clients:
                found = measure(systems, n_clients, options.requests, options.rounds)
                print(tabulate(found, n_clients).to_markdown())
            print(tabulate_beside(ours.port, lists, options.beside).to_markdown())


if __name__ == "__main__":
    main()
