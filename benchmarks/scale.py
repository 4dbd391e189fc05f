"""The cost per document, how costs grow, and the gain of several processes: the figures of docs/scale.md.

python -m benchmarks.scale growth seconds and bytes per document in each stage, for 10^5, 10^6 and 10^7 documents python
-m benchmarks.scale team rounds and epochs in one process and in two, and the traffic between them python -m
benchmarks.scale memory bytes per document in each process of teams of 1, 2 and 4 python -m benchmarks.scale beyond
training on a matrix that is larger than the memory it may take python -m benchmarks.scale growth, team and memory
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cable import Speed
from benchmarks.traffic import of_step, of_tree
from tierank.data.team import cut_queries

SIZES = (10**5, 10**6, 10**7)
# Growth is measured with few features, so that 10^7 documents fit; the cost per document with those of MSLR-WEB.
NARROW, WIDE = 20, 136
LENGTH = 120
# For uRank with many features.
PARAMETERS = 18_801
# Bytes that a process of a team holds for each query of the others during numbering: three digests, and orders.
BYTES_OF_QUERY = 152


# Time and memory


class Meter:
    """CPU seconds and anonymous memory of a stage; file pages, which the system may drop at any time, do not count."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, float]] = {}

    def measure(self, stage: str, work: Callable[[], Any], repeats: int = 1) -> Any:
        """Do the work, keep the least time and the most memory that it took, and return its result."""
        seconds, peak, result = math.inf, 0, None
        for _ in range(repeats):
            result = None
            ctypes.CDLL(None).malloc_trim(0)  # memory that earlier stages have released
            with peak_memory("RssAnon") as peaks:
                start = time.process_time()
                result = work()
                seconds = min(seconds, time.process_time() - start)
            peak = max(peak, peaks[0])
        self.rows[stage] = {"seconds": seconds, "bytes": peak}
        return result


@contextmanager
def peak_memory(field: str) -> Iterator[list[int]]:
    """A list whose first item becomes the largest growth of this process's memory in the block."""
    before, peaks, done = memory(field), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peaks[0] = max(peaks[0], memory(field) - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        done.set()
        watcher.join()


def memory(field: str, pid: int | str = "self") -> int:
    """A line of the system's statistics on the memory of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def run(*arguments: Any, number: int = 0, size: int = 1, port: int = 0) -> subprocess.Popen[str]:
    """Start one part of the benchmark in a separate process."""
    place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    place |= {"OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-m", "benchmarks.scale", *map(str, arguments)]
    environment = os.environ | {name: str(value) for name, value in place.items()}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def found_by(process: subprocess.Popen[str]) -> Any:
    """The last line that it printed."""
    out, _ = process.communicate()
    if process.returncode:
        sys.exit(f"a process of the benchmark failed with {process.returncode}")
    return json.loads(out.splitlines()[-1])


# Growth


def stages(n_documents: int, n_features: int, folder: Path) -> dict[str, dict[str, float]]:
    """The cost of each stage for this many documents, with one thread."""
    import lightgbm  # noqa: F401  (not a cost of a stage)
    import torch  # noqa: F401

    import tierank
    from tierank.losses import UMartObjective
    from tierank.rankers.order import canonical_rows

    meter, repeats = Meter(), 3 if n_documents < 10**6 else 1
    text = folder / "data.txt"
    data = tierank.make_ranking(n_documents // LENGTH, n_features=n_features, mean_length=LENGTH, max_length=900)
    tierank.write(data, text)
    warm(tierank.make_ranking(20, n_features=n_features, mean_length=10, max_length=20))
    del data
    meter.measure("read text", lambda: tierank.read(text, cache=False, n_jobs=1), repeats)
    tierank.read(text, n_jobs=1)
    data = meter.measure("read the binary form", lambda: tierank.read(text, n_jobs=1), repeats)
    text.unlink()
    n = data.n_documents
    meter.measure("order rows", lambda: canonical_rows(data, 1), repeats)
    one, many = (tierank.UMart(n_trees=k, n_leaves=15, n_jobs=1) for k in (1, 6))
    meter.measure("bin, 1 tree", lambda: one.fit(data), repeats)
    meter.measure("bin, 6 trees", lambda: many.fit(data), repeats)
    tree = difference(meter, "bin, 6 trees", "bin, 1 tree", 5)
    meter.rows["bin"] = meter.rows["bin, 1 tree"] | {"seconds": meter.rows["bin, 1 tree"]["seconds"] - tree["seconds"]}
    meter.rows["tree"] = tree
    objective = UMartObjective(n_jobs=1)
    meter.measure("prepare gradients", lambda: objective.prepare(data.ratings, data.offsets), repeats)
    scores = np.random.default_rng(0).normal(size=n)
    meter.measure("gradients", lambda: objective.gradients(scores), 3)
    judge = tierank.Judge(data, "ndcg@10", n_jobs=1)
    meter.measure("NDCG@10", lambda: judge(scores), 3)
    meter.measure("score by 6 trees", lambda: many.predict(data), repeats)
    network = tierank.URank.from_preset("plain-inputs", max_epochs=1, queries_per_step=64, n_jobs=1)
    meter.measure("prepare and 1 epoch", lambda: network.fit(data), repeats)
    longer = tierank.URank.from_preset("plain-inputs", max_epochs=2, queries_per_step=64, n_jobs=1)
    meter.measure("prepare and 2 epochs", lambda: longer.fit(data), repeats)
    meter.rows["epoch"] = difference(meter, "prepare and 2 epochs", "prepare and 1 epoch", 1)
    meter.measure("score by a network", lambda: network.predict(data), repeats)
    for whole in ("bin, 1 tree", "bin, 6 trees", "prepare and 2 epochs"):
        del meter.rows[whole]
    return {stage: {what: amount / n for what, amount in row.items()} for stage, row in meter.rows.items()}


def difference(meter: Meter, more: str, less: str, n: int) -> dict[str, float]:
    rows = meter.rows
    return {"seconds": (rows[more]["seconds"] - rows[less]["seconds"]) / n, "bytes": rows[more]["bytes"]}


def warm(data: Any) -> None:
    """Compile, import and start everything that happens only once."""
    import tierank

    tierank.UMart(n_trees=2, n_jobs=1).fit(data, valid=data.select([0])).predict(data)
    tierank.URank.from_preset("plain-inputs", max_epochs=1, n_jobs=1).fit(data).predict(data)


def growth(sizes: list[int], repeats: int) -> dict[str, dict[str, float]]:
    """Print the cost per document in each stage, and how costs grow; returns the costs with many features.

    Sizes take turns, and the least time of each stage counts, so that other work on the machine affects all of them.
    Bytes are those of the largest data set, where constant costs (the sample for the bins) no longer matter.
    """
    found: dict[tuple[int, int], dict[str, dict[str, float]]] = {}
    sets = [*((n, NARROW) for n in sizes), (min(10**6, max(sizes)), WIDE)]
    for n_documents, n_features in sets * repeats:
        with tempfile.TemporaryDirectory() as folder:
            stages_of = found_by(run("stages", n_documents, n_features, folder))
        best = found.setdefault((n_documents, n_features), stages_of)
        for stage, row in stages_of.items():
            best[stage] = min(best[stage], row, key=lambda one: one["seconds"])
        print(f"measured {n_documents:,} documents with {n_features} features", file=sys.stderr, flush=True)
    wide = next(rows for (_, n_features), rows in found.items() if n_features == WIDE)
    narrow = [found[n, NARROW] for n in sizes]
    heads = [f"{n:,}" for n in sizes]
    print(f"\nMicroseconds of one core for a document with {NARROW} features, and the exponent of growth.")
    print(f"| stage | {' | '.join(heads)} | exponent | {WIDE} features | bytes |")
    print(f"|---|{'---|' * (len(sizes) + 3)}")
    for stage in wide:
        costs = [rows[stage]["seconds"] for rows in narrow]
        cells = [f"{1e6 * cost:.3f}" for cost in costs]
        own = wide[stage]
        own["bytes"] = narrow[-1][stage]["bytes"]
        print(
            f"| {stage} | {' | '.join(cells)} | {exponent(sizes, costs)} | {1e6 * own['seconds']:.3f} |"
            f" {own['bytes']:.0f} |",
            flush=True,
        )
    return wide


def exponent(sizes: list[int], costs: list[float]) -> str:
    """The power of the number of documents that the time grows with: the slope of a line through logarithms."""
    if min(costs) <= 0 or len(sizes) < 2:
        return "-"
    slope = np.polyfit(np.log(sizes), np.log(costs), 1)[0]
    return f"{1 + slope:.2f}"


# Several processes


def member(kind: str, amount: int, folder: Path) -> float:
    """Seconds that one process of a team takes to train, from the first round to the last."""
    import tierank
    from tierank.distributed import join

    data = tierank.read(folder)
    ranker = (
        tierank.UMart(n_trees=amount, n_leaves=15, n_jobs=1)
        if kind == "umart"
        else tierank.URank.from_preset("plain-inputs", max_epochs=amount, queries_per_step=64, n_jobs=1)
    )
    warm(data.select(np.arange(8)))
    if os.environ["WORLD_SIZE"] == "1":
        start = time.perf_counter()
        ranker.fit(data)
        return time.perf_counter() - start
    with join() as team:
        start = time.perf_counter()
        ranker.fit(data, team=team)
        return time.perf_counter() - start


def train_together(size: int, kind: str, amount: int, folder: Path) -> tuple[float, int]:
    """Seconds until the last process is done, and bytes sent over the loopback network."""
    from tierank.distributed.processes import open_meeting

    meeting, before = open_meeting(), sent_bytes()
    running = [run("member", kind, amount, folder, number=i, size=size, port=meeting.port) for i in range(size)]
    seconds = max(found_by(process) for process in running)
    return seconds, sent_bytes() - before


def sent_bytes() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()
    return sum(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))


def team(n_documents: int, repeats: int) -> None:
    """Print the time of a round of trees and an epoch of a network in one process and in two."""
    import tierank

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data.tierank"
        tierank.write(
            tierank.make_ranking(n_documents // LENGTH, n_features=WIDE, mean_length=LENGTH, max_length=900), folder
        )
        print(f"\n{n_documents:,} documents, {WIDE} features, one thread in each process; best of {repeats}.")
        print("| what | 1 process | 2 processes | speed-up | MB over the network |\n|---|---|---|---|---|")
        for kind, what, few, many in (("umart", "a tree of uMart", 2, 22), ("urank", "an epoch of uRank", 1, 3)):
            best: dict[tuple[int, int], tuple[float, int]] = {}
            for _ in range(repeats):
                for size in (1, 2):
                    for amount in (few, many):
                        took = train_together(size, kind, amount, folder)
                        best[size, amount] = min(best.get((size, amount), took), took)
            one, two = ((best[size, many][0] - best[size, few][0]) / (many - few) for size in (1, 2))
            sent = (best[2, many][1] - best[2, few][1]) / (many - few)
            print(f"| {what} | {one:.3f} s | {two:.3f} s | {one / two:.2f} | {sent / 1e6:.2f} |", flush=True)


# Memory of each process


def held(kind: str, size: int, folder: Path, by_parts: bool) -> float:
    """The most anonymous memory that one process takes to train, in bytes per document of all processes."""
    import tierank
    from tierank.data.team import Team
    from tierank.distributed import join
    from tierank.rankers import network_scoring as lists

    lists._KEPT_BYTES = 0  # inputs that are kept if they are small: up to 128 MB for any number of documents
    data = tierank.read(folder)
    n_documents = data.n_documents
    settings = {"max_epochs": 1, "queries_per_step": 64, "n_jobs": 1}
    ranker = tierank.UMart(n_trees=2, n_jobs=1) if kind == "umart" else tierank.URank.from_preset(kind, **settings)
    warm(data.select(np.arange(8)))
    ranker.fit(data.select(np.arange(8)))
    with join(holds_parts=by_parts) if size > 1 else nullcontext(Team()) as team:
        if by_parts and size > 1:
            cuts = cut_queries(data.offsets, size)
            data = data.select(np.arange(cuts[team.rank], cuts[team.rank + 1]))
        ctypes.CDLL(None).malloc_trim(0)
        with peak_memory("RssAnon") as peaks:
            ranker.fit(data, team=team)
    return peaks[0] / n_documents


def memory_of_teams(n_documents: int, sizes: tuple[int, ...] = (1, 2, 4)) -> None:
    """Print the memory of each process, for data that all of them map and for parts of it."""
    import tierank
    from tierank.distributed.processes import open_meeting

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data.tierank"
        tierank.write(
            tierank.make_ranking(n_documents // LENGTH, n_features=NARROW, mean_length=LENGTH, max_length=900), folder
        )
        print(f"\nBytes in the largest process for each of {n_documents:,} documents with {NARROW} features.")
        print(f"| what | each process has | {' | '.join(f'of {n}' for n in sizes)} |")
        print(f"|---|---|{'---|' * len(sizes)}")
        for kind, what in (("plain-inputs", "uRank, plain inputs"), ("rich-inputs", "uRank, rich inputs")):
            for by_parts in (False, True):
                cells = []
                for size in sizes:
                    meeting = open_meeting()
                    started = [
                        run("held", kind, size, folder, int(by_parts), number=i, size=size, port=meeting.port)
                        for i in range(size)
                    ]
                    cells.append(f"{max(found_by(process) for process in started):.0f}")
                print(f"| {what} | {'its part' if by_parts else 'all, mapped'} | {' | '.join(cells)} |", flush=True)


# Beyond memory


def beyond(gigabytes: float, n_features: int, folder: Path) -> None:
    """Print the cost of training on a large matrix, each in a process that is watched from outside."""
    import tierank

    folder.mkdir(parents=True, exist_ok=True)
    place = folder / "large.tierank"
    n_documents = int(gigabytes * 1e9 / (4 * n_features))
    start = time.perf_counter()
    if not place.exists():
        tierank.make_ranking(
            n_documents // LENGTH, n_features=n_features, mean_length=LENGTH, max_length=900, out=place
        )
        print(f"generated in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    data = tierank.read(place)
    size = data.features.nbytes / 1e9
    print(f"{data}: {size:.1f} GB of features")
    print("| what | seconds | MB a second | peak resident GB | of it anonymous |\n|---|---|---|---|---|")
    for what, passes in (("uRank, 1 epoch", 1), ("score by uRank", 1), ("uMart, 20 trees", 20), ("score by uMart", 1)):
        seconds, resident, anonymous = watched(run("large", what, place))
        print(
            f"| {what} | {seconds:.0f} | {passes * 1e3 * size / seconds:.0f} | {resident / 1e9:.2f} |"
            f" {anonymous / 1e9:.2f} |",
            flush=True,
        )


def watched(process: subprocess.Popen[str]) -> tuple[float, int, int]:
    """Seconds of its work, and the most resident and anonymous memory that it had."""
    resident = anonymous = 0
    while process.poll() is None:
        try:
            resident = max(resident, memory("VmHWM", process.pid))
            anonymous = max(anonymous, memory("RssAnon", process.pid))
        except OSError:
            break
        time.sleep(0.05)
    return found_by(process), resident, anonymous


def large(what: str, place: Path) -> float:
    """Train on, or score, a large data set; the models are next to it."""
    import tierank

    data = tierank.read(place)
    model = place.with_name("urank" if "uRank" in what else "umart")
    if what.startswith("score"):
        ranker = tierank.load(model)
        start = time.perf_counter()
        ranker.predict(data)
        return time.perf_counter() - start
    rankers = {
        "urank": tierank.URank.from_preset("plain-inputs", max_epochs=1, queries_per_step=64),
        # A byte for each value is 5 GB of 20, and little else may be there: LightGBM buffers 8 bytes a value of bundles
        # of sparse features, and takes 12 a value of the sample that bins are found from.
        "umart": tierank.UMart(n_trees=20, enable_bundle=False, bin_construct_sample_cnt=20_000),
    }
    start = time.perf_counter()
    ranker = rankers[model.name].fit(data)
    seconds = time.perf_counter() - start
    ranker.save(model)
    return seconds


# The model


def extrapolate(costs: dict[str, dict[str, float]], machines: int, cores: int) -> None:
    """Print the cost of 10^9 documents with many features, from the costs measured here."""
    n, features, trees, leaves, bins = 10**9, WIDE, 500, 15, 255
    share, own = n / (machines * cores), n / machines
    speed = Speed.of(milliseconds=0.1, megabits=10_000)
    talk, step = of_tree(machines, leaves, features * bins), of_step(machines, PARAMETERS)
    tree = share * costs["tree"]["seconds"]
    held_by_one = share * costs["prepare and 1 epoch"]["bytes"] + n / LENGTH * BYTES_OF_QUERY
    rows = [
        ("features on disk", f"{4 * n * features / 1e9:.0f} GB"),
        ("trees: memory of a machine", f"{own * (costs['tree']['bytes'] + WIDE - NARROW) / 1e9:.0f} GB"),
        ("trees: order and bin", f"{share * costs['bin']['seconds']:.0f} s"),
        ("a tree: work", f"{tree:.2f} s"),
        ("a tree: network", f"{talk.seconds(speed):.3f} s"),
        (f"{trees} trees", f"{trees * (tree + talk.seconds(speed)) / 60:.0f} min"),
        ("networks: memory of a process", f"{held_by_one / 1e9:.1f} GB"),
        ("networks: an epoch, work", f"{share * costs['epoch']['seconds']:.0f} s"),
        ("networks: a step, network", f"{1e3 * step.seconds(speed):.1f} ms"),
        ("text to the binary form, one machine", f"{n / cores * costs['read text']['seconds']:.0f} s"),
    ]
    print(f"\n10^9 documents, {features} features, {machines} machines of {cores} cores, {speed}, from the costs above")
    print("| what | takes |\n|---|---|")
    for what, takes in rows:
        print(f"| {what} | {takes} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", default="all")
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="documents, for growth")
    parser.add_argument("--documents", type=int, default=300_000, help="for team")
    parser.add_argument("--repeats", type=int, default=2, help="for growth and team")
    parser.add_argument("--gigabytes", type=float, default=20, help="of features, for beyond")
    parser.add_argument("--features", type=int, default=1400, help="for beyond")
    parser.add_argument("--folder", type=Path, help="keeps the large data set of beyond, and its models")
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    given = options.arguments
    if options.part == "stages":
        print(json.dumps(stages(int(given[0]), int(given[1]), Path(given[2]))))
    elif options.part == "member":
        print(json.dumps(member(given[0], int(given[1]), Path(given[2]))))
    elif options.part == "held":
        print(json.dumps(held(given[0], int(given[1]), Path(given[2]), given[3] == "1")))
    elif options.part == "large":
        print(json.dumps(large(given[0], Path(given[1]))))
    elif options.part == "beyond":
        folder = options.folder or Path(tempfile.mkdtemp())
        try:
            beyond(options.gigabytes, options.features, folder)
        finally:
            if options.folder is None:
                shutil.rmtree(folder)
    else:
        if options.part in ("all", "growth"):
            extrapolate(growth(options.sizes, options.repeats), machines=16, cores=32)
        if options.part in ("all", "team"):
            team(options.documents, options.repeats)
        if options.part in ("all", "memory"):
            memory_of_teams(7 * options.documents)


if __name__ == "__main__":
    main()
