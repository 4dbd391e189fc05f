"""Kills, full disks, two writers: the remaining files are complete, and training resumes to the same bits.

Kills come at random moments, and at every kind of change that a command makes to its files: the system call before
which the process dies is drawn from the list of those that an undisturbed run makes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.faults.models import make_models
from benchmarks.faults.runner import Child, Ended, Table, command, tierank_command

# Python's audit events for changes to files.
_CHANGES = ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")
# Files of a run that contain times.
_TIMED = {"run.json", "result.json", "table.md", "improvement.png", "improvement.svg"}
ROOM = {"umart": (1, 20_000, 200_000, 1 << 30), "urank": (1, 1000, 4000, 1 << 30)}


def write_data(folder: Path) -> None:
    import tierank

    train, valid = tierank.make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.7, 0.3)
    tierank.write(train, folder / "train.txt")
    tierank.write(valid, folder / "valid.txt")


def train_arguments(folder: Path, ranker: str, out: Path, rounds: int | None = None) -> list[str]:
    """``tierank train`` with random numbers in use, and nothing that stops it early."""
    if ranker == "umart":
        settings = [f"n_trees={rounds or 2000}", "patience=1000000", "bagging_fraction=0.7", "bagging_freq=1"]
    else:
        settings = [f"max_epochs={rounds or 150}", "patience=1000000", "dropout=0.2", "hidden=[16,8]"]
    flags = [part for setting in [*settings, "n_jobs=1"] for part in ("--set", setting)]
    files = ["--train", str(folder / "train.txt"), "--valid", str(folder / "valid.txt"), "--out", str(out)]
    return ["train", ranker, *files, *flags]


def train_command(folder: Path, ranker: str, out: Path, *more: str, rounds: int | None = None) -> list[str]:
    return [sys.executable, "-m", "tierank", *train_arguments(folder, ranker, out, rounds), *more]


def fingerprint(folder: Path) -> dict[str, str]:
    """The files of a folder with their contents; for files that contain times, only whether they exist."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() or not any(path.iterdir()))
    return {
        str(path.relative_to(folder)): "" if path.name in _TIMED or path.is_dir() else _digest(path) for path in files
    }


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# At random moments


def kill_and_resume(n_kills: int, folder: Path, ranker: str, seed: int = 0, rounds: int | None = None) -> Counter[str]:
    """Kill runs at random moments, resume them, and compare with an undisturbed run."""
    rng = random.Random(seed)
    start = time.monotonic()
    subprocess.run(train_command(folder, ranker, folder / "whole", rounds=rounds), check=True, capture_output=True)
    lasts, expected = time.monotonic() - start, fingerprint(folder / "whole")
    found: Counter[str] = Counter()
    out, in_a_row = folder / f"killed-{ranker}", 0  # each ranker has its own checkpoints
    while found["kills"] < n_kills:
        command = train_command(folder, ranker, out, "--resume", rounds=rounds)
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
            try:
                _, said = run.communicate(timeout=rng.uniform(0.2, 1.1) * lasts if in_a_row < 4 else None)
            except subprocess.TimeoutExpired:
                run.send_signal(signal.SIGKILL)
                found["kills"] += 1
                in_a_row += 1
            else:
                found["crashes"] += run.returncode != 0
                if run.returncode != 0:
                    checkpoint = out.with_name(f"{out.name}.checkpoint")
                    print(said, [file.name for file in checkpoint.glob("*")])
                    shutil.rmtree(checkpoint, ignore_errors=True)
        if out.exists():  # reported as saved, or killed just after: it has to be whole
            found["finished runs"] += 1
            found["other bits"] += fingerprint(out) != expected
            shutil.rmtree(out)
            in_a_row = 0
    return found


# At every kind of change to a file


def counted(folder: str, report: str, *arguments: str) -> None:
    """In a child: run a command, and record the changes that it makes to files of a folder."""
    changes = _heard(folder, at=None)
    tierank_command(*arguments)
    Path(report).write_text(json.dumps(changes))


def killed(folder: str, at: int, *arguments: str) -> None:
    """In a child: run a command, and die before its change number ``at``."""
    _heard(folder, at)
    tierank_command(*arguments)


def _heard(folder: str, at: int | None) -> list[str]:
    """Record the changes that this process makes to files of a folder from now on; it dies before number ``at``."""
    changes: list[str] = []

    def hear(event: str, details: tuple[Any, ...]) -> None:
        if event not in _CHANGES or (event == "open" and not details[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        path = os.fsdecode(details[0]) if isinstance(details[0], (str, bytes)) else str(details[0])
        if not path.startswith(folder) and ("/" in path or path == "__pycache__"):  # rmtree gives bare names
            return
        if len(changes) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        changes.append(f"{event} {_kind_of(path)}")

    sys.addaudithook(hear)
    return changes


def _kind_of(path: str) -> str:
    """The name of a file without what differs between files of one kind."""
    return re.sub(r"\d+", "1", re.sub(r"\.\w{8}\.new", ".*.new", Path(path).name))


def moments(changes: list[str], count: int, rng: random.Random) -> list[int]:
    """``count`` places in the list: each kind of change in turn, after as many different other changes as possible."""
    order = rng.sample(range(1, len(changes)), len(changes) - 1)
    fresh = {(changes[k - 1], changes[k]): k for k in order}.values()
    by_kind: dict[str, list[int]] = {}
    for k in dict.fromkeys([*fresh, *order]):
        by_kind.setdefault(changes[k].split()[0], []).append(k)
    turns = itertools.zip_longest(*(by_kind[kind] for kind in sorted(by_kind, reverse=True)))
    return [k for turn in turns for k in turn if k is not None][:count]


def kill_at_changes(table: Table, what: str, folder: Path, arguments: list[str], count: int, seed: int) -> None:
    """Kill a command that writes to ``out``, run it again, and compare with an undisturbed run."""
    rng, out, report = random.Random(seed), folder / "out", folder / "changes.json"
    out.mkdir()
    with Child() as child:
        end, words = child.ask(counted, str(out), str(report), *arguments, deadline=600)
        if end != "works":
            raise RuntimeError(f"{arguments}: {end}: {words}")
    changes, expected = json.loads(report.read_text()), fingerprint(out)
    with Child() as killer, Child() as child:
        for moment in moments(changes, count, rng):
            shutil.rmtree(out)
            out.mkdir()
            killer.ask(killed, str(out), moment, *arguments, deadline=600)
            end, words = child.ask(tierank_command, *arguments, deadline=600)
            if end == "works" and (found := fingerprint(out)) != expected:
                names = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
                end, words = "wrong", "other files: " + ", ".join(_kind_of(name) for name in names[:5])
            elif end == "refused":
                end, words = "wrong", "not resumed"
            kept = folder / f"killed{moment}"
            shutil.copytree(out, kept)
            table.add(what, end, words, kept, f"before {changes[moment]}")
    shutil.rmtree(out)


# Full disks, two writers


def full_disk(folder: Path, limit: int, ranker: str = "umart") -> str:
    """Train with a limit on the size of files: the run ends with one line, and leaves no model behind."""
    out = folder / f"full{limit}"
    done = _with_room(train_arguments(folder, ranker, out, rounds=300 if ranker == "umart" else 3), limit)
    leftovers = [file.name for file in folder.iterdir() if file.name.startswith((".full", out.name + ".new"))]
    whole = done.end == "works" or (done.end == "refused" and not out.exists() and not leftovers)
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(out.with_name(out.name + ".checkpoint"), ignore_errors=True)
    return done.end if whole else f"{done.end}: {done.last} {leftovers}"


def _with_room(arguments: list[str], limit: int) -> Ended:
    def leave_no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return command(arguments, prepare=leave_no_room)


def two_writers(folder: Path, n_rounds: int) -> Counter[str]:
    """Two processes save to one name while a third loads it: the model is always complete."""
    code = (
        "import sys, tierank; m = tierank.load(sys.argv[1])\n"
        "for _ in range(int(sys.argv[3])):\n"
        "    try: m.save(sys.argv[2])\n"
        "    except tierank.TierankError: pass\n"
    )
    import tierank

    models = make_models(folder / "writers", ("umart", "lambdamart"))
    target = folder / "shared"
    tierank.load(models["umart"]).save(target)
    whole = {json.dumps(fingerprint(models[name]), sort_keys=True) for name in ("umart", "lambdamart")}
    found: Counter[str] = Counter()
    command = [sys.executable, "-c", code]
    writers = [
        subprocess.Popen([*command, str(models[name]), str(target), str(n_rounds)], stderr=subprocess.PIPE)
        for name in ("umart", "lambdamart")
    ]
    while any(writer.poll() is None for writer in writers):
        try:
            tierank.load(target)
            found["loads"] += 1
        except tierank.DataError:
            found["loads that met the moment between"] += 1
    for writer in writers:
        _, said = writer.communicate()
        found["crashes"] += writer.returncode != 0
        print(said.decode()[-500:], end="")
    found["last one is whole"] = json.dumps(fingerprint(target), sort_keys=True) in whole
    found["left behind"] = sum(file.name.startswith(".shared") for file in folder.iterdir())
    return found


# All cases


def attack(table: Table, folder: Path, count: int, seed: int) -> None:
    """``count`` kills of each kind of each command; full disks; two writers."""
    write_data(folder)
    for ranker, rounds in (("umart", 300), ("urank", 30)):
        found = kill_and_resume(count, folder, ranker, seed, rounds)
        for end, times in _ends(found):
            table.rows.setdefault(f"train {ranker}, killed at random moments and resumed", Counter())[end] += times
        shutil.rmtree(folder / "whole")
    for name, arguments in _commands(folder).items():
        kill_at_changes(table, f"{name}, killed before a change to a file", folder, arguments, count, seed)
    for ranker, limits in ROOM.items():
        for limit in limits:
            end, _, words = full_disk(folder, limit, ranker).partition(": ")
            table.add(f"train {ranker}, disk full", end if not words or end != "refused" else "wrong", words)
    found = two_writers(folder, 15 * count)
    what = "load while two processes save to one name"
    met = found["loads that met the moment between"]
    table.rows[what] = Counter(works=found["loads"], wrong=met, crash=found["crashes"])
    for fault, times in (("wrong result: a whole model was refused", met), ("crash of a writer", found["crashes"])):
        if times:
            table.faults[f"{what}: {fault}"] = times
    if found["left behind"] or not found["last one is whole"]:
        table.add(what, "wrong", f"not whole in the end: {dict(found)}")


def _commands(folder: Path) -> dict[str, list[str]]:
    out = folder / "out"
    trees = train_arguments(folder, "umart", out / "model", rounds=110)
    network = train_arguments(folder, "urank", out / "model", rounds=3)
    cv = ["cv", "lambdamart,n_trees=60", "--data", str(folder / "train.txt"), "--out", str(out), "--jobs", "1"]
    return {
        "train umart": [*trees, "--resume"],
        "train urank": [*network, "--resume"],
        "cv": cv,
    }


def _ends(found: Counter[str]) -> Iterator[tuple[str, int]]:
    yield "works", found["finished runs"] - found["other bits"]
    yield "wrong", found["other bits"]
    yield "traceback", found["crashes"]
