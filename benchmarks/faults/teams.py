"""Teams of two processes with different inputs: both end with an error, and none writes a model.

Each process is ``tierank train`` with its place in the team in the environment, as ``torchrun`` sets it.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.faults.kills import fingerprint
from benchmarks.faults.runner import Ended, Table, start, wait

SETTINGS = {"umart": {"n_trees": 5}, "urank": {"max_epochs": 2, "hidden": "[8]"}}
SAME = "the same data"
# Seconds that the processes wait for each other, and that both may take.
TIMEOUT, DEADLINE = 30, 240.0


# What the second process gets instead of the training data; or instead of the validation data


def other_ratings(data: Any) -> Any:
    return _with(data, ratings=data.ratings[::-1].copy())


def one_rating(data: Any) -> Any:
    ratings = data.ratings.copy()
    ratings[data.n_documents // 2] += 1
    return _with(data, ratings=ratings)


def one_feature(data: Any) -> Any:
    features = data.features.copy()
    features[data.n_documents // 2, 1] += 1
    return _with(data, features=features)


def query_fewer(data: Any) -> Any:
    return data.select(list(range(data.n_queries - 1)))


def column_fewer(data: Any) -> Any:
    return _with(data, features=data.features[:, :-1].copy())


def _with(data: Any, features: Any = None, ratings: Any = None) -> Any:
    from tierank import RankingDataset

    return RankingDataset.from_parts(
        data.features if features is None else features,
        data.ratings if ratings is None else ratings,
        data.offsets,
        data.query_ids,
    )


TRAIN: dict[str, Callable[[Any], Any]] = {
    "other ratings": other_ratings,
    "one other rating": one_rating,
    "one other feature": one_feature,
    "a query fewer": query_fewer,
    "a feature fewer": column_fewer,
}
VALID: dict[str, Callable[[Any], Any]] = {
    "other validation ratings": other_ratings,
    "a smaller validation set": lambda data: data.select([0, 1]),
}
# Arguments of the second process that are added or replaced.
OPTIONS: dict[str, dict[str, list[str]]] = {
    "another seed": {name: ["--set", "seed=7"] for name in SETTINGS},
    "more rounds": {"umart": ["--set", "n_trees=9"], "urank": ["--set", "max_epochs=5"]},
    "another learning rate": {name: ["--set", "learning_rate=0.03"] for name in SETTINGS},
    "no validation set": {name: [] for name in SETTINGS},
}


def write_files(folder: Path) -> None:
    """The data of both processes, and those of the second, each in its own file."""
    import tierank

    train, valid = tierank.make_ranking(60, n_features=6, mean_length=15, max_length=40, seed=5).split(0.6, 0.4)
    for name, data in (("train", train), ("valid", valid)):
        tierank.write(data, folder / f"{name}.txt")
    for changes, name, data in ((TRAIN, "train", train), (VALID, "valid", valid)):
        for case, change in changes.items():
            tierank.write(change(data), folder / f"{name}-{case.replace(' ', '-')}.txt")


def command_of(folder: Path, ranker: str, case: str, number: int) -> list[str]:
    """The command of a process: the second one gets something else."""
    other = f"-{case.replace(' ', '-')}" if number == 1 else ""
    train = folder / f"train{other if case in TRAIN else ''}.txt"
    valid = folder / f"valid{other if case in VALID else ''}.txt"
    settings = [part for name, value in SETTINGS[ranker].items() for part in ("--set", f"{name}={value}")]
    command = ["train", ranker, "--train", str(train), "--out", str(folder / "model"), "--timeout", str(TIMEOUT)]
    if not (case == "no validation set" and number == 1):
        command += ["--valid", str(valid)]
    more = OPTIONS[case][ranker] if case in OPTIONS and number == 1 else []
    return [*command, *settings, "--set", "n_jobs=1", *more]


def train_apart(folder: Path, ranker: str, case: str) -> list[Ended]:
    """How both processes end."""
    team = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    places = [team | {"RANK": str(number), "LOCAL_RANK": str(number)} for number in range(2)]
    started = [start(command_of(folder, ranker, case, number), place) for number, place in enumerate(places)]
    end = time.monotonic() + DEADLINE
    return [wait(process, max(1.0, end - time.monotonic())) for process in started]


def judged(ended: list[Ended], is_sound: bool) -> tuple[str, str]:
    """How a team ended: the worst of its processes; exit code 0 is only right for a valid team."""
    for end in ("hang", "crash", "traceback"):
        for number, one in enumerate(ended):
            if one.end == end:
                return end, f"process {number}: {one.last}"
    codes = [one.code for one in ended]
    if is_sound:
        return ("works", "") if codes == [0, 0] else ("wrong", f"exit codes {codes}: {ended[0].last}")
    return ("refused", "") if 0 not in codes else ("wrong", f"exit codes {codes}")


def attack(table: Table, folder: Path, count: int, seed: int) -> None:
    """The first ``count`` cases of each kind for trees and networks; and a valid team of each, as a control."""
    write_files(folder)
    cases = [case for kind in (TRAIN, VALID, OPTIONS) for case in list(kind)[:count]]
    for ranker in SETTINGS:
        for case in (SAME, *cases):
            end, words = judged(train_apart(folder, ranker, case), is_sound=case == SAME)
            if end == "refused" and (folder / "model").exists():
                end, words = "wrong", f"a model of {len(fingerprint(folder / 'model'))} files in spite of the error"
            kind = "the same" if case == SAME else "different"
            table.add(f"team of two, {ranker}: {kind} data", end, words, note=case)
            for left in ("model", "model.checkpoint"):
                shutil.rmtree(folder / left, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
