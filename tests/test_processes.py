"""Work in other processes: from scripts, notebooks and prompts, with what callers wrote there, and to the end."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from running import PATIENCE, running

from tierank.errors import DataError, ParameterError, ProcessError
from tierank.workers import WorkerPool

ROOT = Path(__file__).resolve().parents[1]


def answers(job, tasks, n_processes=2):
    with WorkerPool(n_processes, lambda: job) as processes:
        return list(processes.answers(tasks))


def is_gone(pid):
    """Whether a process has ended; one that nobody has waited for yet is a zombie."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for(condition):
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


# What they do


def test_functions_of_any_kind_are_called_elsewhere():
    above = 10

    def plus(task):
        return task + above, os.getpid()

    found = answers(plus, range(5))
    assert sorted(value for value, _ in found) == [10, 11, 12, 13, 14]
    assert os.getpid() not in {pid for _, pid in found}
    assert len({pid for _, pid in found}) <= 2
    assert answers(lambda text: text.upper(), ["a"]) == ["A"]


def test_each_process_starts_once():
    def start():
        calls = []
        return lambda task: (calls.append(task), len(calls))[1]

    with WorkerPool(1, start) as processes:
        assert list(processes.answers(["a", "b"])) == [1, 2]
        assert list(processes.answers(["c"])) == [3]


def test_modules_come_from_where_the_caller_has_them(tmp_path, monkeypatch):
    (tmp_path / "lab.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "pickle.py").write_text("raise ImportError('somebody has a file of this name')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    import lab

    assert answers(lab.double, [21]) == [42]


def test_what_is_printed_there_is_no_answer_and_no_output(capfd):
    def say(task):
        print("printed")
        os.write(1, b"written\n")
        return task

    assert answers(say, ["answer"]) == ["answer"]
    out, err = capfd.readouterr()
    assert out == ""
    assert sorted(err.split()) == ["printed", "written"]


# How they end


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL, probably out of memory$"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "was ended by SIGSEGV$"),
        (lambda: os.abort(), "was ended by SIGABRT$"),
        (lambda: os._exit(7), "ended with exit code 7$"),
        (lambda: sys.exit(3), "ended with exit code 3$"),
        (lambda: sys.exit("no"), "ended with exit code 1$"),
    ],
)
def test_the_end_of_a_process_is_told_as_it_was(end, message):
    with pytest.raises(ProcessError, match=f"^the process that worked on the task: {message}"):
        answers(lambda _: end(), ["the task"])


def test_a_process_that_cannot_start_says_so(monkeypatch):
    monkeypatch.setattr(sys, "path", [])  # where there is no tierank, nor anything else
    with pytest.raises(ProcessError, match="the process that worked on x: ended with exit code 1"):
        answers(str, ["x"])


class Particular(Exception):
    """An error that cannot be made from its text alone."""

    def __init__(self, number, reason):
        super().__init__(f"{number}: {reason}")


def raised(kind, *words):
    def job(_):
        raise kind(*words)

    return job


def test_errors_come_back():
    with pytest.raises(DataError, match=r"^a line of ours$") as found:
        answers(raised(DataError, "a line of ours"), [1])
    assert not hasattr(found.value, "__notes__")
    with pytest.raises(KeyError, match="missing") as found:
        answers(raised(KeyError, "missing"), [1])
    assert "in job" in found.value.__notes__[0]  # where it was there
    with pytest.raises(RuntimeError, match=r"Particular: 3: reason") as found:
        answers(raised(Particular, 3, "reason"), [1])
    assert "in job" in found.value.__notes__[0]


def test_errors_that_hold_what_cannot_travel_come_back_as_text():
    def job(_):
        error = ValueError("with a lock")
        error.lock = threading.Lock()
        raise error

    with pytest.raises(RuntimeError, match=r"ValueError: with a lock"):
        answers(job, [1])


def test_what_cannot_be_sent_is_refused_at_once():
    lock = threading.Lock()
    refusal = r"expected objects that can be sent .*'_thread.lock'.* n_jobs=1 works in this process"
    with pytest.raises(ParameterError, match=refusal):
        answers(lambda _: lock.locked(), [1])


def test_an_error_in_starting_is_that_of_the_task():
    def start():
        raise DataError("no such folder")

    with pytest.raises(DataError, match="no such folder"), WorkerPool(2, start) as processes:
        list(processes.answers([1, 2, 3]))


def test_an_interrupt_ends_them_at_once():
    pids = []

    def job(task):
        if task != "pid":
            time.sleep(2 * PATIENCE)
        return os.getpid()

    with pytest.raises(KeyboardInterrupt, match=r"^$"), WorkerPool(2, lambda: job) as processes:  # noqa: PT012
        for pid in processes.answers(["pid", "sleep", "pid", "sleep"]):
            pids.append(pid)
            if len(pids) == 2:
                raise KeyboardInterrupt
    assert all(map(is_gone, pids))


WAITING = """
import os, sys, time
from tierank.workers import WorkerPool
def job(task):
    os.write(2, b"%d\\n" % os.getpid())  # in one step: the other process writes to the same place
    time.sleep(3600)
with WorkerPool(2, lambda: job) as processes:
    list(processes.answers([1, 2]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_its_caller(number):
    with running([sys.executable, "-c", WAITING], stderr=subprocess.PIPE, text=True) as run:
        pids = [int(run.stderr.readline()) for _ in range(2)]
        if number == signal.SIGINT:
            os.killpg(run.pid, number)  # as a terminal does it
        else:
            run.send_signal(number)
        said = run.stderr.read()
        run.wait(PATIENCE)
        wait_for(lambda: all(map(is_gone, pids)))
    assert said.count("Traceback") == (number == signal.SIGINT)  # of the caller alone
    assert run.returncode == -number


# From wherever it is called

EXPERIMENT = """
import json, sys
print("begins")
import torch
import tierank
from tierank.networks import MLP
from tierank.rankers.neural import NeuralRanker

margin = 1.0

def hinge(scores, batch):
    return torch.zeros(batch.n_queries).index_add(0, batch.query, (margin - scores * batch.gains).clamp(min=0))

class Narrow(MLP):
    def __init__(self, n_features, seed=0):
        super().__init__(n_features, hidden=(3,), seed=seed)

class Hinge(NeuralRanker):
    LOSS = staticmethod(hinge)

rankers = {
    "own loss": tierank.NetworkRanker(hinge, max_epochs=1),
    "own trees": tierank.TreeRanker(lambda f, b: hinge(f, b) + 0 * f.sum(), n_trees=2),
    "own ranker": Hinge(max_epochs=1),
    "own network": tierank.URank(network=Narrow, max_epochs=1),
}
folds = [tierank.make_ranking(20, n_features=4, mean_length=6, max_length=8).split(0.5, 0.25, 0.25)]
run = tierank.cross_validate(rankers, folds, n_jobs=N_JOBS)
print(json.dumps({system: run.scores(system, 0, 0).tolist() for system in run.systems}))
"""


@pytest.fixture(scope="module")
def expected():
    """What comes out in one process."""
    found = {}
    exec(compile(EXPERIMENT.replace("N_JOBS", "1"), "experiment.py", "exec"), found)
    run = found["run"]
    assert run.systems == ("own loss", "own trees", "own ranker", "own network")
    return {system: run.scores(system, 0, 0).tolist() for system in run.systems}


@pytest.mark.parametrize("way", ["script", "stdin"])
def test_a_plain_script_runs_once_with_all_that_it_defines(way, tmp_path, expected):
    text = EXPERIMENT.replace("N_JOBS", "2")
    (tmp_path / "script.py").write_text(text)
    place = {"script": "script.py", "stdin": "-"}[way]
    done = subprocess.run(
        [sys.executable, place], input=text, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr
    begins, scores = done.stdout.splitlines()
    assert begins == "begins"
    assert json.loads(scores) == expected


def test_a_notebook(tmp_path, expected):
    pytest.importorskip("ipykernel")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    head, _, tail = EXPERIMENT.replace("N_JOBS", "2").partition("NETWORKS[")
    cells = [nbformat.v4.new_code_cell(text) for text in (head, f"NETWORKS[{tail}")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    out = "".join(output["text"] for output in notebook.cells[1].outputs if output.get("name") == "stdout")
    assert json.loads(out) == expected
