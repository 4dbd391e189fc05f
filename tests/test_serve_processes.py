"""The command ``serve``: real servers on this machine, their processes, signals and connections."""

import hashlib
import http.client
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("msgspec")

from running import PATIENCE
from serve_tools import NAMES, ROW, call, make_data, n_said, quick, serving, wait_for

import tierank
from tierank import ParameterError, cli
from tierank.cli.commands import Parser
from tierank.kernels import most_workers
from tierank.rankers.base import Ranker
from tierank.serve import app
from tierank.serve.server import Settings, _bound


@pytest.fixture(scope="module")
def trees() -> Ranker:
    return quick("umart").fit(make_data(named=True, has_missing=True))


def checksum_of(folder) -> str:
    return hashlib.sha256((folder / "model.json").read_bytes()).hexdigest()


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
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            while not stop.is_set():
                code, found = call(port, "/rank", {"features": rows.tolist()}, connection)
                assert code == 200
                seen.append(expected.index([one["score"] for one in found["ranking"]]))
            connection.close()

        with ThreadPoolExecutor(2) as pool:
            clients = [pool.submit(load) for _ in range(2)]
            wait_for(lambda: len(seen) > 5)
            rankers[1].save(tmp_path / "m")  # --watch finds it
            wait_for(lambda: 1 in seen)
            (tmp_path / "m" / "trees.txt").write_text("tree")
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: n_said(lines, "model net: kept the old one"))
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
        assert process.wait(PATIENCE) == 0


def children_of(process) -> set[int]:
    return set(map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()))


def kill_one(process, lines) -> None:
    """End one of the workers, and wait until another one answers in its place."""
    n = n_said(lines, "is ready")
    os.kill(max(children_of(process)), signal.SIGKILL)
    wait_for(lambda: n_said(lines, "is ready") == n + 1)


def answered(port, n=24) -> set[tuple[int, str | None]]:
    """Code and checksum of some answers, each on a connection of its own, so that all workers are asked."""
    with ThreadPoolExecutor(6) as pool:
        found = pool.map(lambda _: call(port, "/rank", {"features": [ROW]}), range(n))
        return {(code, answer.get("checksum")) for code, answer in found}


def test_workers_switch_to_a_new_model_and_come_back_when_they_die(tmp_path):
    """Each of them refuses a wrong model, and a new worker serves what is in the folder."""
    folder = tmp_path / "m"
    quick("umart").fit(make_data()).save(folder)
    first = checksum_of(folder)
    with serving(folder, "--workers", "2", "--threads", "1", "--watch", "0.2") as (process, port, lines):
        wait_for(lambda: n_said(lines, "is ready") == 2)
        for _ in range(6):
            assert call(port, "/rank", {"features": [ROW]})[0] == 200
        assert 'tierank_documents_scored_total{model="m"} 6' in call(port, "/metrics")[1]
        kill_one(process, lines)
        assert n_said(lines, "was ended by SIGKILL; starting another") == 1
        assert answered(port) == {(200, first)}
        assert call(port, "/ready") == (200, {"status": "ready"})

        other = tierank.make_ranking(20, n_features=4, mean_length=9)
        quick("umart").fit(other).save(folder)
        wait_for(lambda: n_said(lines, "model m: kept the old one") == 2)
        assert answered(port) == {(200, first)}

        quick("umart", n_trees=9).fit(make_data()).save(folder)
        second = checksum_of(folder)
        wait_for(lambda: n_said(lines, f"model m: replaced, checksum {second}") == 2)
        assert answered(port) == {(200, second)}
        kill_one(process, lines)
        assert answered(port) == {(200, second)}
        metrics = call(port, "/metrics")[1]
        assert 'tierank_model_reloads_total{model="m",outcome="refused"} 2' in metrics
        assert 'tierank_model_reloads_total{model="m",outcome="replaced"} 2' in metrics
        shutil.rmtree(folder)
        os.kill(max(children_of(process)), signal.SIGKILL)
        wait_for(lambda: n_said(lines, "expected a model folder"))
        wait_for(lambda: n_said(lines, "ended with code 2; starting another in "))
        assert answered(port) == {(200, second)}  # by the other one
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_workers_follow_the_keys_of_their_parent(tmp_path):
    folder, keys = tmp_path / "m", tmp_path / "keys"
    quick("umart").fit(make_data()).save(folder)
    first = checksum_of(folder)
    keys.write_text("first-key\n")
    keys.chmod(0o600)
    options = ("--workers", "2", "--threads", "1", "--api-key-file", keys)
    with serving(folder, *options) as (process, port, lines):
        wait_for(lambda: n_said(lines, "is ready") == 2)

        def seen(key):
            found = [call(port, "/rank", {"features": [ROW]}, key=key) for _ in range(12)]
            return {(code, answer.get("checksum")) for code, answer in found}

        keys.write_text("second-key\n")
        kill_one(process, lines)
        assert seen("first-key") == {(200, first)}
        assert seen("second-key") == {(401, None)}
        quick("umart", n_trees=9).fit(make_data()).save(folder)
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: n_said(lines, f"model m: replaced, checksum {checksum_of(folder)}") == 2)
        wait_for(lambda: seen("second-key") == {(200, checksum_of(folder))})
        assert seen("first-key") == {(401, None)}
        keys.write_text("\n")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: n_said(lines, "kept the old API keys"))
        wait_for(lambda: n_said(lines, "model m: unchanged"))
        kill_one(process, lines)
        assert seen("second-key") == {(200, checksum_of(folder))}
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130


# Waits until a file exists when the server loads rankers: as long as models take to load.
UNTIL_TOLD = """
import os, time

class Finder:
    def find_spec(self, name, *_):
        while name == "tierank.rankers" and not os.path.exists({file!r}):
            time.sleep(0.01)

sys.meta_path.insert(0, Finder())
"""


def is_running(number) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("is_loading", [False, True])
def test_workers_whose_parent_is_gone_end(tmp_path, trees, is_loading):
    trees.save(tmp_path / "m")
    go = tmp_path / "go"
    go.touch()
    before = UNTIL_TOLD.format(file=str(go))
    with serving(tmp_path / "m", "--workers", "2", "--threads", "1", before=before) as (process, _, lines):
        wait_for(lambda: n_said(lines, "is ready") == 2)
        if is_loading:
            go.unlink()
            os.kill(max(children_of(process)), signal.SIGKILL)
            wait_for(lambda: n_said(lines, "starting another") and len(children_of(process)) == 2)
        workers = children_of(process)
        process.kill()
        wait_for(lambda: not any(is_running(worker) for worker in workers))


def test_workers_that_do_not_stop_are_killed(tmp_path, trees):
    trees.save(tmp_path / "m")
    deaf = "import threading, tierank.serve.server as server\nserver._GRACE = server._FAREWELL = 0.2\n"
    deaf += "server.ServingProcess._end_later = lambda self: None\n"
    deaf += "work = server.Supervisor._work\n"
    deaf += "def hung(*given):\n threading.Thread(target=threading.Event().wait).start()\n work(*given)\n"
    deaf += "server.Supervisor._work = hung"
    with serving(tmp_path / "m", "--workers", "2", "--drain-timeout", "0.2", before=deaf) as (process, _, lines):
        wait_for(lambda: n_said(lines, "is ready") == 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        for number in (0, 1):
            wait_for(lambda number=number: n_said(lines, f"worker {number} did not stop within 0.8 seconds") == 1)


# Signals at the wrong time

# Sends a signal to the server itself when it imports this module.
AT_IMPORT = """
import os, signal

class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.{number})

sys.meta_path.insert(0, Finder())
"""
# From the first library that takes a while to the last step before requests are answered.
MODULES = ("numpy", "tierank.serve.server", "tierank.rankers", "uvicorn.protocols.http.h11_impl")


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 0), ("SIGINT", 130)])
def test_a_server_that_is_stopped_while_it_starts_says_so_in_one_line(tmp_path, trees, module, number, code):
    trees.save(tmp_path / "m")
    program = f"import sys\n{AT_IMPORT.format(module=module, number=number)}\n"
    program += "from tierank.cli import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "serve", str(tmp_path / "m"), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (code, "tierank: stopped while starting\n")


def answers(port, path) -> bool:
    """Whether a server answers at all."""
    try:
        return bool(call(port, path))
    except OSError:
        return False


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_that_loads_is_alive_and_not_ready(tmp_path, trees, workers):
    trees.save(tmp_path / "m")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rank = {"documents": [{"features": dict.fromkeys(NAMES, 0)}]}
    found = {}

    def look():
        wait_for(lambda: answers(port, "/health"))
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as one:  # the same all the time
            paths = (("/health", None), ("/ready", None), ("/rank", rank))
            found["early"] = {path: call(port, path, body, one) for path, body in paths}
            one.request("GET", "/ready")
            answer = one.getresponse()
            found["retry"] = answer.headers["Retry-After"], answer.read()
            (tmp_path / "go").touch()
            wait_for(lambda: call(port, "/ready", connection=one)[0] == 200)
            found["late"] = call(port, "/rank", rank, one)[0]

    looking = threading.Thread(target=look)
    looking.start()
    before = UNTIL_TOLD.format(file=str(tmp_path / "go"))
    try:
        with serving(tmp_path / "m", "--workers", workers, "--port", port, before=before) as (process, _, lines):
            looking.join(PATIENCE)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
    finally:
        (tmp_path / "go").touch()
        looking.join()
    assert {path: code for path, (code, _) in found["early"].items()} == {"/health": 200, "/ready": 503, "/rank": 503}
    assert found["early"]["/rank"][1]["error"]["got"] == "one that is loading them"
    assert found["retry"][0] == "1"
    assert found["late"] == 200
    assert n_said(lines, "stopping after SIGTERM") == 1


@pytest.mark.parametrize("module", MODULES)
def test_a_hangup_while_the_server_starts_is_kept(tmp_path, trees, module):
    trees.save(tmp_path / "m")
    at_import = AT_IMPORT.format(module=module, number="SIGHUP")
    with serving(tmp_path / "m", "--threads", "1", before=at_import) as (process, port, lines):
        wait_for(lambda: n_said(lines, "model m: unchanged"))
        assert call(port, "/health")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 0), ("SIGINT", 130)])
def test_signals_in_the_last_moments_do_not_change_the_exit_code(tmp_path, trees, workers, number, code):
    """The same signal again, and SIGHUP: when Python ends, before it waits for threads and after that."""
    trees.save(tmp_path / "m")
    before = f"""
import atexit, os, signal, threading

def again():
    for number in (signal.{number}, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)

atexit.register(again)
threading._register_atexit(again)
"""
    with serving(tmp_path / "m", "--threads", "1", "--workers", workers, before=before) as (process, _, lines):
        wait_for(lambda: n_said(lines, "is ready") == 2 or workers == "1")
        process.send_signal(getattr(signal, number))
        assert process.wait(PATIENCE) == code
    assert not n_said(lines, "Traceback")
    assert n_said(lines, "tierank: stopped") == (code == 130)


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 0), ("SIGINT", 130)])
def test_a_thread_that_does_not_end_is_not_waited_for(tmp_path, trees, number, code):
    trees.save(tmp_path / "m")
    hung = "import threading, tierank.serve.server as server\nserver._GRACE = 0.2\n"
    hung += "threading.Thread(target=threading.Event().wait).start()"
    with serving(tmp_path / "m", "--drain-timeout", "0.2", before=hung) as (process, _, lines):
        process.send_signal(getattr(signal, number))
        assert process.wait(PATIENCE) == code
        wait_for(lambda: n_said(lines, "still working 1.4 seconds after the stop; ending without it"))


# Connections, signals and keys of one server


def opened(stack, port, sent=b""):
    one = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
    one.sendall(sent)
    return one


HEAD = b"POST /rank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer first-key\r\n"


def test_connections_and_hangups_are_limited_and_keys_change(tmp_path, trees):
    trees.save(tmp_path / "m")
    keys = tmp_path / "keys"
    keys.write_text("# of the test\nfirst-key\n")
    keys.chmod(0o600)
    limits = ("--body-timeout", "0.3", "--idle-timeout", "0.3")
    with serving(tmp_path / "m", "--threads", "1", "--api-key-file", keys, *limits) as (process, port, lines):
        with ExitStack() as stack:
            slow = opened(stack, port, HEAD + b"Content-Length: 100\r\n\r\n{")
            assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")
            refused = opened(stack, port, HEAD.replace(b"first", b"other") + b"Content-Length: 1\r\n\r\n{")
            idle = opened(stack, port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            for one, code in ((refused, b"401"), (idle, b"200")):
                text = b"".join(iter(lambda one=one: one.recv(1000), b""))
                assert text.startswith(b"HTTP/1.1 " + code)

        start, n = time.monotonic(), n_said(lines, "model m: unchanged")
        for _ in range(300):
            process.send_signal(signal.SIGHUP)
            time.sleep(0.001)
        wait_for(lambda: n_said(lines, "model m: unchanged") > n)
        assert n_said(lines, "model m: unchanged") - n <= 2 + time.monotonic() - start
        assert call(port, "/models")[0] == 401
        assert call(port, "/models", key="first-key")[0] == 200
        keys.write_text("second-key\n")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: call(port, "/models", key="second-key")[0] == 200)
        assert call(port, "/models", key="first-key")[0] == 401


def test_clients_are_told_that_the_server_is_about_to_close(tmp_path, trees):
    """Under load nobody is cut off: every client has an answer that says so, on a connection that it had before."""
    trees.save(tmp_path / "m")
    patient = "import tierank.serve.server as server\nserver._FAREWELL = 60"
    with serving(tmp_path / "m", "--threads", "1", before=patient) as (process, port, _):
        n_answers = [0] * 6

        def load(client):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            body, headers = json.dumps({"features": [ROW] * 50}), {"Content-Type": "application/json"}
            for _ in range(100_000):
                connection.request("POST", "/rank", body, headers)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200
                n_answers[client] += 1
                if answer.headers.get("Connection") == "close":
                    return True
            return False

        with ThreadPoolExecutor(6) as pool:
            clients = [pool.submit(load, client) for client in range(6)]
            wait_for(lambda: min(n_answers) > 3 or any(one.done() for one in clients))
            process.send_signal(signal.SIGTERM)
            assert all(one.result() for one in clients)
        assert process.wait(PATIENCE) == 0


def test_a_port_is_taken_before_anything_is_loaded():
    with _bound("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ParameterError, match="another process uses; choose another"), _bound("127.0.0.1", port):
            pass
    with _bound("127.0.0.1", port):
        pass  # free again


@pytest.mark.parametrize("workers", ["1", "3"])
def test_what_all_workers_would_meet_is_said_once(tmp_path, workers):
    command = [sys.executable, "-m", "tierank", "serve", str(tmp_path), "--workers", workers, "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert "expected a model folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def log_as_it_was():
    kept = [
        (logging.getLogger(n), logging.getLogger(n).handlers, logging.getLogger(n).level)
        for n in ("tierank", "uvicorn", "asyncio")
    ]
    yield
    for logger, handlers, level in kept:
        logger.handlers, logger.propagate = handlers, True
        logger.setLevel(level)


@pytest.mark.usefixtures("log_as_it_was")
def test_what_the_command_refuses(tmp_path, capsys, monkeypatch, trees):
    trees.save(tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "k").mkdir()
    (tmp_path / "no-keys").write_text("# none\n")
    trees.save(tmp_path / "twice")
    described = json.loads((tmp_path / "twice" / "model.json").read_text())
    described["feature_names"][1] = "bm25"
    (tmp_path / "twice" / "model.json").write_text(json.dumps(described))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for arguments, words in (
            ([tmp_path / "m", "--port", port], "another process uses; choose another"),
            ([tmp_path / "empty", "--port", port], "another process uses; choose another"),
            ([tmp_path / "m", "--port", "0", "--api-key-file", tmp_path / "none"], "No such file"),
            (
                [tmp_path / "m", "--port", "0", "--api-key-file", tmp_path / "no-keys"],
                "expected one API key per line",
            ),
            (
                [tmp_path / "m", "--workers", "2", "--port", "0", "--api-key-file", tmp_path / "no-keys"],
                "expected one API key per line",
            ),
            ([tmp_path / "m", "--timeout", "0"], ": --timeout: expected a number > 0"),
            ([tmp_path / "m", "--idle-timeout", "x"], "--idle-timeout: expected a number, got 'x'"),
            ([tmp_path / "m", "--max-connections", "0"], "--max-connections: expected an integer"),
            ([tmp_path / "empty", "--port", "0"], "expected a model folder"),
            ([tmp_path / "twice", "--port", "0"], "expected each name once, got 'bm25' twice"),
            ([tmp_path / "m", f"m={tmp_path / 'm'}"], "got 'm' twice; name one"),
            ([f"a b={tmp_path / 'm'}", "--port", "0"], "letters, digits"),
            ([tmp_path / "m", "--port", "70000"], ": --port: expected a number >= 0 and <= 65535"),
            ([tmp_path / "m", "--host", "no such host", "--port", "0"], ": --host: expected an address"),
            ([tmp_path / "m", "--workers", "0"], ": --workers: expected an integer >= 1"),
            ([tmp_path / "m", "--workers", "9" * 9], f": --workers: expected an integer >= 1 and <= {most_workers()}"),
            ([tmp_path / "m", "--threads", "9" * 9], f": --threads: expected an integer >= 1 and <= {most_workers()}"),
            ([tmp_path / "m", "--watch", "0"], ": --watch: expected a number > 0"),
            ([tmp_path / "m", "--max-documents", "0"], "--max-documents: expected an integer"),
            ([tmp_path / "m", "--max-large-bytes", "1"], "--max-large-bytes: expected at least --max-bytes, 16777216"),
            (["m="], "expected PATH or NAME=PATH, got 'm='"),
            (["k", "--port", "0"], "tierank: k: expected a model folder"),  # not the option --k
            ([tmp_path / "m", "--port", "0", "--api-key-file", "k"], "tierank: k: expected a file of API keys"),
            ([tmp_path / "m", "--json", "--quiet"], "not allowed with"),
        ):
            assert cli.main(["serve", *map(str, arguments)]) == 2
            said = capsys.readouterr().err
            assert words in said
            assert len(said.splitlines()) == 1
    assert not any(isinstance(one, threading.Timer) for one in threading.enumerate())  # which would end this process


def test_without_the_extra_it_names_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tierank.extras.find_spec", lambda name: None)
    assert cli.main(["serve", str(tmp_path)]) == 2
    assert "pip install 'tierank[serve]'" in capsys.readouterr().err
    with pytest.raises(tierank.MissingExtraError, match=r"pip install 'tierank\[serve\]'"):
        app({})


def test_settings_have_the_defaults_of_the_command():
    options = Parser(cli.TIERANK, prog="tierank").parse_args(["serve", "m"])
    known = Settings()
    for name in ("host", "port", "workers", "threads", "watch"):
        assert getattr(options, name) == getattr(known, name)
    for name in ("max_bytes", "max_documents", "max_waiting"):
        assert getattr(options, name) == getattr(known.limits, name)
