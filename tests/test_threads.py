"""How many threads and processes are used: cores, quotas of containers, the environment, and the size of the work."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
from pathlib import Path

import lightgbm
import numpy as np
import pytest

import tierank
from tierank.kernels import n_threads, n_workers, one_thread, threads
from tierank.rankers import lightgbm as lightgbm_adapter
from tierank.rankers.lightgbm import training_threads
from tierank.rankers.tree_settings import threads_for


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "n_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


@pytest.mark.parametrize(
    ("told", "expected"),
    [("3", 3), (" 3 ", 3), ("3,2", 3), ("20", 8), ("", 8), ("0", 8), ("-1", 8), ("many", 8), ("²", 8), (None, 8)],
)
def test_the_environment_limits_threads_but_not_processes(
    monkeypatch: pytest.MonkeyPatch, told: str | None, expected: int
) -> None:
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert [n_threads(None), n_threads(-1), n_threads(5)] == [expected, expected, 5]
    assert [n_workers(None), n_workers(-1), n_workers(5)] == [8, 8, 5]


def test_processes_of_a_team_share_the_cores_whatever_torchrun_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert [n_threads(None), n_threads(-1), n_threads(4)] == [2, 2, 4]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "20")
    assert n_threads(None) == 1


def test_small_work_gets_fewer_threads_unless_a_number_is_given() -> None:
    assert [n_threads(None, worth=w) for w in (1, 3, 100)] == [1, 3, 8]
    assert [n_threads(-1, worth=1), n_threads(6, worth=1)] == [8, 6]
    with one_thread():
        assert n_threads(6, worth=3) == 1
    sizes = [(10_000, 46), (35_000, 46), (1_000_000, 136)]
    assert [threads_for(None, *size) for size in sizes] == [1, 2, 8]
    assert [threads_for(4, *size) for size in sizes] == [4, 4, 4]


def test_the_number_of_cores_is_a_number_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 1 <= threads.n_cores() <= (threads.os.cpu_count() or 1)
    for quota, expected in ((0.2, 1), (1.0, 1), (math.inf, threads.n_cores())):
        monkeypatch.setattr(threads, "_quota", lambda quota=quota: quota)
        assert threads.n_cores() == expected


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def quota_of(tmp_path: Path, own: str, files: dict[str, str]) -> float:
    write(tmp_path / "cgroup", own)
    for name, text in files.items():
        write(tmp_path / "root" / name, text)
    return threads.cpu_quota(tmp_path / "cgroup", tmp_path / "root")


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2.0),  # a container: its group is the root that it sees
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}, 1.5),  # the parent's limit
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000\n", "a/cpu.max": "150000 100000\n"}, 0.5),
        ("0::/docker/123\n", {"cpu.max": "300000 100000\n"}, 3.0),  # a path that does not exist in the container
        (
            "4:memory:/m\n1:cpu,cpuacct:/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "400000\n", "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"},
            4.0,
        ),
        ("1:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ("5:cpuset:/\n2:cpuacct:/\n", {"cpuset/cpu.cfs_quota_us": "1\n", "cpuset/cpu.cfs_period_us": "1\n"}, math.inf),
        ("0::/\n", {"cpu.max": "nonsense"}, math.inf),
        ("0::/\n", {"cpu.max": "100000 0\n"}, math.inf),
        ("0::/\n", {"cpu.max": "\u00e9"}, math.inf),
        ("nonsense\n1:cpu\n\n0::/\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/a\0b\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("", {}, math.inf),
    ],
)
def test_quotas_of_containers(tmp_path: Path, own: str, files: dict[str, str], expected: float) -> None:
    assert quota_of(tmp_path, own, files) == expected


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert threads.cpu_quota(tmp_path / "missing", tmp_path) == math.inf


def test_networks_with_small_steps_have_one_thread() -> None:
    torch = pytest.importorskip("torch")
    data = tierank.make_ranking(20, n_features=4, mean_length=8, max_length=12)
    seen = set()

    def loss(scores: object, batch: object) -> object:
        seen.add(torch.get_num_threads())
        return tierank.LOSSES["softmax"](scores, batch)

    before = torch.get_num_threads()
    tierank.NetworkRanker(loss=loss, max_epochs=1).fit(data)
    tierank.TreeRanker(loss=loss, n_trees=2).fit(data)
    assert seen == {1}
    seen.clear()
    tierank.NetworkRanker(loss=loss, max_epochs=1, n_jobs=3).fit(data)
    tierank.TreeRanker(loss=loss, n_trees=2, n_jobs=3).fit(data)
    assert seen == {3}
    assert torch.get_num_threads() == before


def test_trees_get_the_threads_that_their_data_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    from tierank.rankers import tree_training as trees

    data, seen = tierank.make_ranking(30, n_features=4, mean_length=8, max_length=12), []

    def prepare(*given: object) -> object:
        seen.append(given[3]["num_threads"])  # type: ignore[index]
        return original(*given)  # type: ignore[arg-type]

    original = trees.BinnedData
    monkeypatch.setattr(trees, "BinnedData", prepare)
    monkeypatch.setattr(lightgbm_adapter, "most_threads", lambda: 8)
    scores = [tierank.UMart(n_trees=3, n_jobs=jobs).fit(data).predict(data) for jobs in (None, 2, -1)]
    assert seen == [1, 2, 8]
    assert all(np.array_equal(one, scores[0]) for one in scores)


def most_of_lightgbm() -> int:
    number = ctypes.c_int(0)
    lightgbm.basic._LIB.LGBM_GetMaxThreads(ctypes.byref(number))  # type: ignore[attr-defined]
    return number.value


def test_models_that_train_at_the_same_time_have_the_same_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lightgbm_adapter, "most_threads", lambda: 4)
    assert most_of_lightgbm() == -1
    with training_threads(3) as first:
        with training_threads(5) as second:
            assert (first, second, most_of_lightgbm()) == (3, 3, 3)
        assert most_of_lightgbm() == 3
    assert most_of_lightgbm() == -1
    with pytest.raises(ValueError, match="in the block"), training_threads(2):
        raise ValueError("in the block")
    assert most_of_lightgbm() == -1
    with training_threads(5) as later:  # a model that is loaded meanwhile would set LightGBM to 4
        assert (later, most_of_lightgbm()) == (4, 4)


def test_trees_grow_in_several_threads_of_a_program_while_others_load_models(tmp_path: Path) -> None:
    """Without a common number of threads, LightGBM writes beyond its memory, and the process dies sooner or later."""
    program = """
import sys, threading
import lightgbm, numpy as np, tierank
data = [tierank.make_ranking(30, n_features=4, mean_length=8, max_length=20, seed=k) for k in range(3)]
def scores(k, jobs):
    return tierank.UMart(n_trees=4, n_jobs=jobs).fit(data[k], valid=data[k - 1]).predict(data[k])
expected = [scores(k, 1) for k in range(3)]
text = tierank.UMart(n_trees=3).fit(data[0]).booster_.model_to_string()
ended, wrong = threading.Event(), []
def load():
    while not ended.is_set():
        lightgbm.Booster(model_str=text)
def train(k):
    for jobs in (1, 2, 3, 1, 4, None) * 5:
        if not np.array_equal(scores(k, jobs), expected[k]):
            wrong.append((k, jobs))
loading = threading.Thread(target=load)
training = [threading.Thread(target=train, args=(k,)) for k in range(3)]
for thread in (loading, *training):
    thread.start()
for thread in training:
    thread.join()
ended.set()
loading.join()
sys.exit(str(wrong) if wrong else 0)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]
