"""What tierank survives: damaged models, kills, full disks, two writers. ``python -m benchmarks.faults``

Damaged models are loaded, and asked for scores, in processes of their own: a crash or a traceback that is no error of
tierank is counted. Kills are of ``tierank train`` at random moments; after each the run goes on with ``--resume``, and
its model has to be the one of a run that nobody killed, byte for byte.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

RANKERS = ("umart", "lambdamart", "urank", "uboost")
QUICK = {"umart": {"n_trees": 6}, "lambdamart": {"n_trees": 6}}
_NETWORK = {"max_epochs": 2, "hidden": [8, 4]}
BAD_NUMBERS = ["", "nan", "inf", "-1", "1e999", "99999999999999999999", "x", "0x10", "1_0", "-", "2 2", "1.5"]
BAD_VALUES = [None, True, -1, 0, 2**70, 1e300, "", "x" * 5000, "../../etc/passwd", [], {}, [[]], {"a": {}}, [1e9] * 3]
# Of a list of model folders: load each and score with it; says how each ended.
WATCH = """
import json, os, sys, warnings
import numpy as np, tierank
warnings.simplefilter("ignore")
X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
for folder in sys.argv[1:]:
    print(json.dumps(["begin", folder]), flush=True)
    try:
        scores = tierank.load(folder).predict(X, qid=np.repeat([1, 2], 6))
        how = "works" if scores.shape == (12,) else "wrong shape"
    except tierank.TierankError:
        how = "refused"
    except Exception as error:
        how = f"traceback: {type(error).__name__}: {str(error)[:200]}"
    print(json.dumps([how, folder]), flush=True)
"""


def make_models(folder: Path, names: tuple[str, ...] = RANKERS) -> dict[str, Path]:
    """Small models, by the names of their rankers."""
    import tierank

    data = tierank.make_ranking(30, n_features=4, mean_length=12, max_length=20)
    for name in names:
        settings = QUICK.get(name, _NETWORK)
        tierank.RANKERS[name](n_jobs=1, **settings).fit(data).save(folder / name)
    return {name: folder / name for name in names}


# Ways to damage a model. Each changes the files of a folder; what is named "forged" corrects the checksum too.


def flip_bit(folder: Path, rng: random.Random) -> None:
    file = rng.choice(sorted(folder.iterdir()))
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def cut_off(folder: Path, rng: random.Random) -> None:
    file = rng.choice(sorted(folder.iterdir()))
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))])


def forged_bits(folder: Path, rng: random.Random) -> None:
    file = _payload(folder, rng)
    content = bytearray(file.read_bytes())
    for _ in range(rng.choice([1, 1, 3, 10])):
        content[rng.randrange(len(content))] = rng.randrange(256)
    _forge(file, bytes(content))


def forged_cut(folder: Path, rng: random.Random) -> None:
    file = _payload(folder, rng)
    content = file.read_bytes()
    a, b = sorted(rng.randrange(len(content)) for _ in range(2))
    _forge(file, rng.choice([content[:a], content[:a] + content[b:], content + content[a:b], b""]))


def forged_text(folder: Path, rng: random.Random) -> None:
    """One value of one line of the trees changed, or a line dropped or doubled; the sizes made to fit again."""
    files = sorted(folder.glob("*trees.txt"))
    if not files:
        return forged_header(folder, rng)
    file = rng.choice(files)
    lines = file.read_text().split("\n")
    places = [i for i, line in enumerate(lines) if "=" in line and i < lines.index("end of trees")]
    place = rng.choice(places)
    name, _, values = lines[place].partition("=")
    parts = values.split(" ")
    parts[rng.randrange(len(parts))] = rng.choice([*BAD_NUMBERS, "0", "1", "3", "1000", "-5"])
    changed = [f"{name}={' '.join(parts)}"]
    lines[place : place + 1] = rng.choice([changed, changed, changed, [], [lines[place]] * 2])
    return _forge(file, _with_sizes("\n".join(lines)).encode())


def forged_header(folder: Path, rng: random.Random) -> None:
    """The header of a safetensors file changed: offsets, shapes, types, lengths."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return forged_bits(folder, rng)
    file = rng.choice(files)
    content = file.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    name = rng.choice([key for key in header if key != "__metadata__"])
    header[name] |= rng.choice(
        [
            {"shape": [2**62, 4]}, {"shape": [-1]}, {"shape": []}, {"dtype": "I64"}, {"dtype": "F8"},
            {"data_offsets": [0, 2**63]}, {"data_offsets": [5, 1]}, {"data_offsets": [-4, 8]},
        ]
    )  # fmt: skip
    if rng.random() < 0.3:
        header["member0.more"] = header.pop(name)
    text = json.dumps(header).encode()
    claimed = rng.choice([len(text), len(text), len(text), 2**63, 2**40, 0])
    return _forge(file, struct.pack("<Q", claimed) + text + content[8 + length :])


def hostile_json(folder: Path, rng: random.Random) -> None:
    """A value anywhere in the description replaced; or a description that is none."""
    file = folder / "model.json"
    text = file.read_text()
    whole = ["[" * 100_000, '{"a":' * 100_000, "1" * 100_000, "NaN", "null", "[]", "", "\x00"]
    whole += [
        text.replace(*change, 1)
        for change in (
            ("{", '{"format": 1,'),
            ('"format": 1', '"format": 2'),
            ('"n_rounds"', '"n_rounds": 1e999, "x"'),
            ('"n_members"', '"n_members": 1e15, "x"'),
            ('"settings": {', '"settings": {"seed": NaN,'),
            ('"hidden": [', '"hidden": [40000, 40000, '),
            ('"trees.txt"', '"../umart/trees.txt"'),
        )
    ]
    if rng.random() < 0.2:
        file.write_bytes(rng.choice([*(w.encode() for w in whole), b"\xff\xfe" + text.encode()]))
        return
    described = json.loads(text)
    place, key = described, rng.choice(list(described))
    while isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.8:
        place = place[key]
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
    place[key] = rng.choice(BAD_VALUES)
    file.write_text(json.dumps(described))


DAMAGE: dict[str, Callable[[Path, random.Random], None]] = {
    "flipped bits": flip_bit,
    "cut files": cut_off,
    "bits, checksum forged": forged_bits,
    "cuts, checksum forged": forged_cut,
    "tree text, checksum forged": forged_text,
    "tensor header, checksum forged": forged_header,
    "hostile JSON": hostile_json,
}


def _payload(folder: Path, rng: random.Random) -> Path:
    return rng.choice([file for file in sorted(folder.iterdir()) if file.name != "model.json"])


def _forge(file: Path, content: bytes) -> None:
    """Replace a file of a model, and its checksum, as somebody with access to the folder can."""
    file.write_bytes(content)
    description = json.loads((file.parent / "model.json").read_text())
    description["files"][file.name] = hashlib.sha256(content).hexdigest()
    (file.parent / "model.json").write_text(json.dumps(description))


def _with_sizes(text: str) -> str:
    """The text with ``tree_sizes`` that are right for it, where it still has trees."""
    head, _, rest = text.partition("\n\n")
    body = rest.split("end of trees")[0]
    starts = [i for i in range(len(body)) if body.startswith("Tree=", i) and (i == 0 or body[i - 1] == "\n")]
    sizes = " ".join(str(b - a) for a, b in zip(starts, [*starts[1:], len(body)], strict=True))
    lines = [f"tree_sizes={sizes}" if line.startswith("tree_sizes=") else line for line in head.split("\n")]
    return "\n".join(lines) + "\n\n" + rest


def try_models(n_cases: int, folder: Path, seed: int = 0) -> dict[str, Counter[str]]:
    """Damage models in many ways, load them in other processes, and count how each way ended."""
    rng = random.Random(seed)
    models = make_models(folder / "sound")
    found: dict[str, Counter[str]] = {name: Counter() for name in DAMAGE}
    for first in range(0, n_cases, 200):
        cases: dict[str, str] = {}
        for number in range(first, min(n_cases, first + 200)):
            way = list(DAMAGE)[number % len(DAMAGE)]
            place = folder / f"case{number}"
            shutil.copytree(models[rng.choice(RANKERS)], place)
            DAMAGE[way](place, rng)
            cases[str(place)] = way
        for how, place in _watch(list(cases)):
            found[cases[place]][how] += 1
            if how.startswith(("traceback", "crash", "hang")):
                found[cases[place]][f"{how} ({place})"] += 1
            else:
                shutil.rmtree(place)
    return found


def _watch(folders: list[str]) -> Iterator[tuple[str, str]]:
    """How loading each folder ends; where it takes the process with it, the rest go to a new one."""
    while folders:
        done = subprocess.run(
            [sys.executable, "-c", WATCH, *folders], capture_output=True, text=True, preexec_fn=_limit_memory
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
        ended = [(how, folder) for how, folder in lines if how != "begin"]
        yield from ended
        folders = folders[len(ended) :]
        if folders and len(lines) > 2 * len(ended):
            yield f"crash: exit {done.returncode}", folders.pop(0)
        elif folders and not lines:
            raise RuntimeError(done.stderr)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))


# Kills, full disks, two writers


def train_command(folder: Path, ranker: str, out: Path, *more: str, rounds: int | None = None) -> list[str]:
    """``tierank train`` with random numbers in use, and nothing that stops it early."""
    if ranker == "umart":
        settings = [f"n_trees={rounds or 2000}", "patience=1000000", "bagging_fraction=0.7", "bagging_freq=1"]
    else:
        settings = [f"max_epochs={rounds or 150}", "patience=1000000", "dropout=0.2", "hidden=[16,8]"]
    flags = [part for setting in [*settings, "n_jobs=1"] for part in ("--set", setting)]
    files = ["--train", str(folder / "train.txt"), "--valid", str(folder / "valid.txt"), "--out", str(out)]
    return [sys.executable, "-m", "tierank.cli", "train", ranker, *files, *flags, *more]


def write_data(folder: Path) -> None:
    import tierank

    train, valid = tierank.make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.7, 0.3)
    tierank.write(train, folder / "train.txt")
    tierank.write(valid, folder / "valid.txt")


def fingerprint(model: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(model.iterdir())}


def kill_and_resume(n_kills: int, folder: Path, ranker: str, seed: int = 0, rounds: int | None = None) -> Counter[str]:
    """Kill runs at random moments, resume them, and compare with a run that was left alone."""
    rng = random.Random(seed)
    start = time.monotonic()
    subprocess.run(train_command(folder, ranker, folder / "whole", rounds=rounds), check=True, capture_output=True)
    lasts, expected = time.monotonic() - start, fingerprint(folder / "whole")
    found: Counter[str] = Counter()
    out, in_a_row = folder / "killed", 0
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
                    checkpoint = out.with_name("killed.checkpoint")
                    print(said, [file.name for file in checkpoint.glob("*")])
                    shutil.rmtree(checkpoint, ignore_errors=True)
        if out.exists():  # reported as saved, or killed just after: it has to be whole
            found["finished runs"] += 1
            found["other bits"] += fingerprint(out) != expected
            shutil.rmtree(out)
            in_a_row = 0
    return found


def full_disk(folder: Path, limit: int) -> str:
    """Train with room for so many bytes in a file: the run ends with one line, and leaves no model behind."""
    out = folder / f"full{limit}"

    def leave_no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(train_command(folder, "umart", out), capture_output=True, text=True, preexec_fn=leave_no_room)
    leftovers = [file.name for file in folder.iterdir() if file.name.startswith((".full", out.name + ".new"))]
    if done.returncode == 2 and not out.exists() and not leftovers and "Traceback" not in done.stderr:
        return "refused"
    return "works" if done.returncode == 0 else f"crash: {done.returncode} {leftovers} {done.stderr[-300:]}"


def two_writers(folder: Path, n_rounds: int) -> Counter[str]:
    """Two processes save to one name while a third loads it: what is there is always whole."""
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


def print_models(found: dict[str, Counter[str]]) -> None:
    columns = ("refused", "works", "crash", "traceback")
    print(f"{'damaged models':32} {'tried':>8}" + "".join(f"{column:>12}" for column in columns))
    for way, counts in found.items():
        ends = [sum(n for how, n in counts.items() if how.startswith(c) and "(" not in how) for c in columns]
        print(f"{way:32} {sum(ends):8}" + "".join(f"{n:12}" for n in ends))
        for how in counts:
            if "(" in how:
                print("   ", how)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=4000, help="damaged models to try (default: 4000)")
    parser.add_argument("--kills", type=int, default=50, help="kills of tierank train (default: 50)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["OMP_WAIT_POLICY"] = "passive"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        print_models(try_models(options.models, folder, options.seed))
        write_data(folder)
        for ranker in ("umart", "urank"):
            counts = kill_and_resume(options.kills // 2, folder, ranker, options.seed)
            print(f"kills of train {ranker}: {dict(counts)}", flush=True)
        print("full disk:", dict(Counter(full_disk(folder, limit) for limit in (1, 1000, 20_000, 200_000, 1 << 30))))
        print("two writers:", dict(two_writers(folder, 150)))


if __name__ == "__main__":
    main()
