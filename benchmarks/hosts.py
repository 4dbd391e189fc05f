"""Training on separate hosts: network namespaces with their own addresses, joined by a slow cable.

python -m benchmarks.hosts all scenarios (Linux, as root, with iproute2 and TUN devices; about ten minutes) python -m
benchmarks.hosts pulled scenarios whose names contain a word python -m benchmarks.hosts cable only the cable: the time
of a round trip, and the rate of a plain socket python -m benchmarks.hosts slow bytes and seconds of a tree and of a
step, compared with benchmarks/traffic.py

Each scenario starts ``tierank train`` on every host, as torchrun would, and prints the messages of each. Packets take
20 ms from host to host, and each host has 100 Mbit/s in each direction; ``--latency`` and ``--rate`` change that.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import lightgbm

import tierank
from benchmarks.cable import Cable, Speed, open_device
from benchmarks.traffic import Traffic, of_step, of_tree

# Seconds that a process waits for the others in scenarios that lose a host.
PATIENCE = 20
PORT = 29400
_NUMBERS = count()
# The cable without limits, and by default.
FAST, SLOW = Speed(), Speed.of(20, 100)


def can_make_hosts() -> bool:
    """Whether this process may make network namespaces and TUN devices."""
    if not (hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("ip")):
        return False
    try:
        with Hosts(1):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Hosts:
    """Hosts with one address each, and a cable between them."""

    def __init__(self, n: int, speed: Speed = FAST) -> None:
        self.n, self.speed, self.key = n, speed, f"{os.getpid() % 46656:x}{next(_NUMBERS):x}x"
        # A private network, so that several can exist at the same time.
        self.network = f"10.{64 + os.getpid() % 64}.{os.getpid() // 64 % 256}"
        self._ending = ExitStack()

    def __enter__(self) -> Hosts:
        with self._ending:  # if something fails, everything is removed
            files = [self._make(k) for k in range(self.n)]
            self.cable = self._ending.enter_context(Cable(list(map(self.address, range(self.n))), files, self.speed))
            self._ending = self._ending.pop_all()
        return self

    def _make(self, k: int) -> int:
        """Create a host with a device, whose file its packets go through."""
        name, device = self.name(k), f"tier{self.key}{k}"
        _ip("netns", "add", name)
        self._ending.callback(subprocess.run, ["ip", "netns", "del", name], check=False, capture_output=True)
        file = open_device(device)
        _ip("link", "set", device, "netns", name)
        for words in (
            f"addr add {self.address(k)}/24 dev {device}",
            f"link set {device} up txqueuelen 10000",
            "link set lo up",
        ):
            _ip("netns", "exec", name, "ip", *words.split())
        return file

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def name(self, k: int) -> str:
        """The namespace of a host."""
        return f"tierank{self.key}-{k}"

    def address(self, k: int) -> str:
        """The address of a host."""
        return f"{self.network}.{k + 1}"

    def place(self, k: int) -> dict[str, object]:
        """The environment that torchrun would set for the process of a host."""
        rank = {"RANK": k, "LOCAL_RANK": 0, "WORLD_SIZE": self.n, "OMP_NUM_THREADS": 1}
        return rank | {"MASTER_ADDR": self.address(0), "MASTER_PORT": PORT}

    def start(self, k: int, command: Sequence[str], **environment: object) -> subprocess.Popen[str]:
        """Run a command on a host."""
        variables = os.environ | {name: str(value) for name, value in environment.items()}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name(k), *command],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def pull(self, k: int) -> None:
        """Pull the cable of a host."""
        self.cable.pulled.add(k)

    def plug(self, k: int) -> None:
        """Put the cable of a host back."""
        self.cable.pulled.remove(k)

    def sent(self, k: int) -> int:
        """Bytes that a host has sent, and that have arrived."""
        return self.cable.sent[k]


@dataclass
class Run:
    """One training on several hosts: a folder for each, as if each had its own disk."""

    hosts: Hosts
    folder: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def give(self, k: int, **datasets: tierank.RankingDataset) -> None:
        """Files on the disk of a host."""
        self.disk(k).mkdir(exist_ok=True)
        for name, data in datasets.items():
            tierank.write(data, self.disk(k) / f"{name}.txt")

    def disk(self, k: int) -> Path:
        """The disk of a host."""
        return self.folder / f"host{k}"

    def train(self, ranker: str, *more: str, program: Sequence[str] = (sys.executable, "-m", "tierank")) -> None:
        """Start ``tierank train`` on every host."""
        for k in range(self.hosts.n):
            disk = self.disk(k)
            files = ["--train", str(disk / "train.txt"), "--valid", str(disk / "valid.txt"), "--out", str(disk / "m")]
            command = [*program, "train", ranker, *files, "--set", "n_jobs=1", *more]
            self.running.append(self.hosts.start(k, command, **self.hosts.place(k)))

    def wait(self, limit: float = 900.0) -> list[int]:
        """The exit codes of the hosts; ``said`` holds their messages."""
        self.said = [process.communicate(timeout=limit)[0] for process in self.running]
        codes = [process.returncode for process in self.running]
        self.running = []
        return codes

    def until(self, file: str, since: float = 0.0, limit: float = 900.0) -> None:
        """Wait until the first host has written a file, at this time or later."""
        end, place = time.monotonic() + limit, self.disk(0) / file
        while not (place.exists() and place.stat().st_mtime >= since):
            if time.monotonic() > end or self.running[0].poll() is not None:
                raise RuntimeError(f"{file} was not written: {self.wait()} {self.said}")
            time.sleep(0.02)


@contextmanager
def training(n: int, speed: Speed = SLOW) -> Iterator[Run]:
    """Hosts with the same files."""
    train, valid = tierank.make_ranking(60, n_features=9, mean_length=20, max_length=70, seed=5).split(0.6, 0.4)
    with Hosts(n, speed) as hosts, tempfile.TemporaryDirectory() as folder:
        run = Run(hosts, Path(folder))
        for k in range(n):
            run.give(k, train=train, valid=valid)
        try:
            yield run
        finally:
            for process in run.running:
                process.kill()
                process.communicate()


# Scenarios

# Longer than a stretch of rounds, after which trees write a checkpoint, and than the seconds after which networks do.
LONG = ("--set", "n_trees=100", "--set", "n_leaves=4", "--set", "patience=1000", "--timeout", str(PATIENCE))
MANY = ("--set", "max_epochs=150", "--set", "patience=1000", "--timeout", str(PATIENCE))
KINDS = {"trees": ("umart", LONG), "network": ("urank", MANY)}


def plain(kind: str, n: int, speed: Speed) -> Iterator[str]:
    """Nothing happens."""
    with training(n, speed) as run:
        ranker, _ = KINDS[kind]
        few = ("--set", "n_trees=30") if kind == "trees" else ("--set", "max_epochs=5")
        run.train(ranker, *few)
        yield _told(run, run.wait())


def pulled(kind: str, n: int, speed: Speed, seconds: float | None) -> Iterator[str]:
    """The cable of the last host is pulled during training, for some seconds or for good; then training is resumed."""
    with training(n, speed) as run:
        ranker, more = KINDS[kind]
        run.train(ranker, *more)
        run.until("m.checkpoint/state.json")
        start = time.monotonic()
        run.hosts.pull(n - 1)
        if seconds is not None:
            time.sleep(seconds)
            run.hosts.plug(n - 1)
        codes = run.wait()
        yield f"{_told(run, codes)} (after {time.monotonic() - start:.0f} s)"
        if seconds is None:
            run.hosts.plug(n - 1)
            run.train(ranker, *more, "--resume")
            yield f"resumed: {_told(run, run.wait())}"


def killed(kind: str, n: int, speed: Speed) -> Iterator[str]:
    """The process of the last host is killed."""
    with training(n, speed) as run:
        ranker, more = KINDS[kind]
        run.train(ranker, *more)
        run.until("m.checkpoint/state.json")
        run.running[-1].kill()
        yield _told(run, run.wait())


def stale(kind: str, n: int, speed: Speed) -> Iterator[str]:
    """One host has an older file."""
    with training(n, speed) as run:
        ranker, _ = KINDS[kind]
        data = tierank.read(run.disk(n - 1) / "train.txt", cache=False)
        run.give(n - 1, train=data.select(range(data.n_queries - 1)))
        run.train(ranker)
        yield _told(run, run.wait())


def _told(run: Run, codes: list[int]) -> str:
    last = [next((w for w in reversed(words.splitlines()) if "socket.cpp" not in w), "") for words in run.said]
    return "; ".join(f"host {k} ({code}): {line}" for k, (code, line) in enumerate(zip(codes, last, strict=True)))


# The network: bytes and seconds, compared with the model

_SERVER = """
import socket, time
link, _ = socket.create_server(("", 5000)).accept()
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(20):
    link.sendall(link.recv(1))
found, start = 0, None
while more := link.recv(1 << 20):
    start, found = start or time.perf_counter(), found + len(more)
print(found * 8e-6 / (time.perf_counter() - start))
"""
_CLIENT = """
import socket, sys, time
for _ in range(100):
    try:
        link = socket.create_connection((sys.argv[1], 5000))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for _ in range(20):
    start = time.perf_counter()
    link.sendall(b"x")
    link.recv(1)
    times.append(time.perf_counter() - start)
link.sendall(bytes(60_000_000))
link.close()
print(1e3 * sorted(times)[10])
"""


def cable(kind: str, n: int, speed: Speed) -> Iterator[str]:
    """Measure the cable: one byte there and back, and 60 MB through a plain socket."""
    if kind != "trees":  # nothing is trained
        return
    with Hosts(2, speed) as hosts:
        server = hosts.start(0, [sys.executable, "-c", _SERVER])
        client = hosts.start(1, [sys.executable, "-c", _CLIENT, hosts.address(0)])
        trip, rate = (float(process.communicate(timeout=300)[0]) for process in (client, server))
        yield f"{speed}: a round trip {trip:.1f} ms, a socket {rate:.1f} Mbit/s, {hosts.sent(1) / 6e7:.3f} bytes a byte"


@dataclass(frozen=True)
class Measured:
    """A training on several hosts: seconds of the slowest, and bytes that each has sent."""

    seconds: float
    sent: list[int]


def measured(kind: str, amount: int, n: int, speed: Speed, folder: Path) -> Measured:
    """Train with this many trees or epochs, each host with one thread."""
    with Hosts(n, speed) as hosts:
        command = [sys.executable, "-m", "benchmarks.scale", "member", KINDS[kind][0], str(amount), str(folder)]
        running = [hosts.start(k, command, **hosts.place(k)) for k in range(n)]
        said = [process.communicate(timeout=900)[0] for process in running]
        if any(process.returncode for process in running):
            raise RuntimeError(f"a host failed: {said}")
        return Measured(max(float(words.splitlines()[-1]) for words in said), hosts.cable.sent)


def expected(kind: str, n: int, data: tierank.RankingDataset) -> tuple[str, Traffic]:
    """What a tree or an epoch sends according to the model."""
    if kind == "trees":
        binned = lightgbm.Dataset(data.features, params={"verbosity": -1}).construct()
        n_bins = sum(binned.feature_num_bin(feature) for feature in range(data.n_features))
        return f"a tree, {n_bins:,} bins", of_tree(n, 15, n_bins)
    network = tierank.URank.from_preset("plain-inputs", max_epochs=1, queries_per_step=64, n_jobs=1).fit(data)
    n_parameters = sum(parameter.numel() for parameter in network.model_.networks("cpu")[0].parameters())
    n_steps = math.ceil(data.n_queries / 64)
    return f"an epoch, {n_steps} steps, {n_parameters:,} parameters", of_step(n, n_parameters) * n_steps


def slow(kind: str, n: int, speed: Speed) -> Iterator[str]:
    """Bytes and seconds of a tree or an epoch, and those of the model."""
    data = tierank.make_ranking(167, n_features=136, mean_length=120, max_length=900)
    what, traffic = expected(kind, n, data)
    few, many = (2, 22) if kind == "trees" else (1, 41)
    took = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data.tierank"
        tierank.write(data, folder)
        for one in (FAST, speed):
            less, more = (measured(kind, amount, n, one, folder) for amount in (few, many))
            took[one] = (more.seconds - less.seconds) / (many - few)
    sent = (sum(more.sent) - sum(less.sent)) / (many - few)
    yield (
        f"{what}: {sent / 1e6:.3f} MB sent, expected {traffic.wire / 1e6:.3f};"
        f" {speed}: {took[speed]:.3f} s, expected {took[FAST] + traffic.seconds(speed):.3f}"
        f" ({took[FAST]:.3f} without limits, {traffic.waits} waits, {traffic.path / 1e6:.3f} MB one after the other)"
    )


SCENARIOS: dict[str, Callable[[str, int, Speed], Iterator[str]]] = {
    "plain": plain,
    "stale data": stale,
    "killed": killed,
    "pulled for 3 s": partial(pulled, seconds=3.0),
    "pulled for good": partial(pulled, seconds=None),
    "cable": cable,
    "slow network": slow,
}


def main() -> None:
    """Run scenarios and print the messages of the hosts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--kinds", default="trees,network")
    parser.add_argument("--latency", type=float, default=20, help="milliseconds from host to host")
    parser.add_argument("--rate", type=float, default=100, help="Mbit/s out of each host, and into it")
    given = parser.parse_args()
    if not can_make_hosts():
        sys.exit("expected Linux, root, iproute2 (ip netns) and /dev/net/tun; got a machine without one of them")
    speed = Speed.of(given.latency, given.rate)
    for name, scenario in SCENARIOS.items():
        for kind in given.kinds.split(","):
            if given.word in name:
                for line in scenario(kind, given.hosts, speed):
                    print(f"{name}, {kind}, {given.hosts} hosts: {line}", flush=True)


if __name__ == "__main__":
    main()
