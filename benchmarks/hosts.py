"""Training on hosts that are really apart: network namespaces with their own addresses, joined by a bridge.

python -m benchmarks.hosts            all scenarios (Linux, as root, with iproute2; about ten minutes)
python -m benchmarks.hosts pulled     those whose names hold a word

Each scenario starts ``tierank train`` on every host, as torchrun would, and prints what each of them said.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import tierank

# Seconds that a process waits for the others in scenarios where somebody is lost.
PATIENCE = 20
PORT = 29400
_NUMBERS = count()


def can_make_hosts() -> bool:
    """Whether this process may make network namespaces."""
    if not (hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("ip")):
        return False
    name = f"tierank-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        _ip("netns", "del", name)
    return made


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Hosts:
    """Hosts with one address each, on one bridge."""

    def __init__(self, n: int) -> None:
        # Interfaces go a moment after their namespace, so names are not used again.
        self.n, self.key = n, f"{os.getpid() % 46656:x}{next(_NUMBERS):x}x"
        # A private network of its own, so that several can be there at the same time.
        self.network = f"10.{64 + os.getpid() % 64}.{os.getpid() // 64 % 256}"

    def __enter__(self) -> Hosts:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")
        for k in range(self.n):
            near, far, name = f"tn{self.key}{k}", f"tf{self.key}{k}", self.name(k)
            _ip("netns", "add", name)
            _ip("link", "add", near, "type", "veth", "peer", "name", far)
            _ip("link", "set", near, "master", self._bridge)
            _ip("link", "set", near, "up")
            _ip("link", "set", far, "netns", name)
            for words in (f"addr add {self.address(k)}/24 dev {far}", f"link set {far} up", "link set lo up"):
                _ip("netns", "exec", name, "ip", *words.split())
        return self

    def __exit__(self, *_: object) -> None:
        for k in range(self.n):
            subprocess.run(["ip", "netns", "del", self.name(k)], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self._bridge], check=False, capture_output=True)

    @property
    def _bridge(self) -> str:
        return f"tb{self.key}"

    def name(self, k: int) -> str:
        """The namespace of a host."""
        return f"tierank{self.key}-{k}"

    def address(self, k: int) -> str:
        """The address of a host."""
        return f"{self.network}.{k + 1}"

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
        _ip("link", "set", f"tn{self.key}{k}", "down")

    def plug(self, k: int) -> None:
        """Put the cable of a host back."""
        _ip("link", "set", f"tn{self.key}{k}", "up")

    def slow_down(self) -> str:
        """Let what each host sends take 20 ms and 100 Mbit/s; the rate alone where the kernel has no netem."""
        shapes = {
            "20 ms, 100 Mbit/s": "netem delay 20ms rate 100mbit limit 100000",
            "100 Mbit/s": "tbf rate 100mbit burst 128kbit latency 400ms",
        }
        for name, shape in shapes.items():
            commands = [
                ["ip", "netns", "exec", self.name(k), "tc", "qdisc", "add", "dev", f"tf{self.key}{k}", "root"]
                for k in range(self.n)
            ]
            done = [
                subprocess.run([*command, *shape.split()], check=False, capture_output=True) for command in commands
            ]
            if not any(one.returncode for one in done):
                return name
        raise RuntimeError("expected a kernel with netem or tbf")

    def sent(self, k: int) -> int:
        """Bytes that a host has sent."""
        counter = Path(f"/sys/class/net/tn{self.key}{k}/statistics/rx_bytes")
        return int(counter.read_text())


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
            place = {"RANK": k, "LOCAL_RANK": 0, "WORLD_SIZE": self.hosts.n, "MASTER_ADDR": self.hosts.address(0)}
            self.running.append(self.hosts.start(k, command, **place, MASTER_PORT=PORT, OMP_NUM_THREADS=1))

    def wait(self, limit: float = 900.0) -> list[int]:
        """The codes that the hosts ended with; ``said`` holds their words."""
        self.said = [process.communicate(timeout=limit)[0] for process in self.running]
        codes = [process.returncode for process in self.running]
        self.running = []
        return codes

    def until(self, file: str, limit: float = 900.0) -> None:
        """Until the first host has written a file."""
        end = time.monotonic() + limit
        while not (self.disk(0) / file).exists():
            if time.monotonic() > end or self.running[0].poll() is not None:
                raise RuntimeError(f"{file} was not written: {self.wait()} {self.said}")
            time.sleep(0.02)


@contextmanager
def training(n: int, data: tierank.RankingDataset | None = None) -> Iterator[Run]:
    """Hosts that have the same files."""
    train, valid = (data or tierank.make_ranking(60, n_features=9, mean_length=20, max_length=70, seed=5)).split(
        0.6, 0.4
    )
    with Hosts(n) as hosts, tempfile.TemporaryDirectory() as folder:
        run = Run(hosts, Path(folder))
        for k in range(n):
            run.give(k, train=train, valid=valid)
        try:
            yield run
        finally:
            for process in run.running:
                process.kill()
                process.wait()


# Scenarios

LONG = ("--set", "n_trees=400", "--set", "patience=1000", "--timeout", str(PATIENCE))
MANY = ("--set", "max_epochs=150", "--set", "patience=1000", "--timeout", str(PATIENCE))
KINDS = {"trees": ("umart", LONG), "network": ("urank", MANY)}


def plain(kind: str, n: int) -> Iterator[str]:
    """Nothing happens."""
    with training(n) as run:
        ranker, _ = KINDS[kind]
        few = ("--set", "n_trees=30") if kind == "trees" else ("--set", "max_epochs=5")
        run.train(ranker, *few)
        yield _told(run, run.wait())


def pulled(kind: str, n: int, seconds: float | None) -> Iterator[str]:
    """The cable of the last host is pulled while they train, for some seconds or for good."""
    with training(n) as run:
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


def killed(kind: str, n: int) -> Iterator[str]:
    """The process of the last host is killed."""
    with training(n) as run:
        ranker, more = KINDS[kind]
        run.train(ranker, *more)
        run.until("m.checkpoint/state.json")
        run.running[-1].kill()
        yield _told(run, run.wait())


def stale(kind: str, n: int) -> Iterator[str]:
    """One host has an older file."""
    with training(n) as run:
        ranker, _ = KINDS[kind]
        data = tierank.read(run.disk(n - 1) / "train.txt", cache=False)
        run.give(n - 1, train=data.select(range(data.n_queries - 1)))
        run.train(ranker)
        yield _told(run, run.wait())


def slow(kind: str, n: int) -> Iterator[str]:
    """20 ms and 100 Mbit/s between the hosts: seconds and bytes of 20 rounds or 5 epochs, fast and slow."""
    few = ("--set", "n_trees=20") if kind == "trees" else ("--set", "max_epochs=5")
    for name in ("fast", "slow"):
        data = tierank.make_ranking(400, n_features=136, mean_length=50, max_length=100, seed=5)
        with training(n, data) as run:
            if name == "slow":
                name = run.hosts.slow_down()
            start = time.monotonic()
            run.train(KINDS[kind][0], *few)
            codes = run.wait()
            sent = sum(run.hosts.sent(k) for k in range(n)) / 1e6
            yield f"{name}: codes {codes}, {time.monotonic() - start:.1f} s, {sent:.1f} MB sent"


def _told(run: Run, codes: list[int]) -> str:
    last = [next((w for w in reversed(words.splitlines()) if "socket.cpp" not in w), "") for words in run.said]
    return "; ".join(f"host {k} ({code}): {line}" for k, (code, line) in enumerate(zip(codes, last, strict=True)))


SCENARIOS: dict[str, Callable[[str, int], Iterator[Any]]] = {
    "plain": plain,
    "stale data": stale,
    "killed": killed,
    "pulled for 3 s": lambda kind, n: pulled(kind, n, 3.0),
    "pulled for good": lambda kind, n: pulled(kind, n, None),
    "slow network": slow,
}


def main() -> None:
    """Run scenarios and print what the hosts said."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--kinds", default="trees,network")
    given = parser.parse_args()
    if not can_make_hosts():
        sys.exit("expected Linux, root and iproute2 (ip netns); got a machine without one of them")
    for name, scenario in SCENARIOS.items():
        for kind in given.kinds.split(","):
            if given.word in name:
                for line in scenario(kind, given.hosts):
                    print(f"{name}, {kind}, {given.hosts} hosts: {line}", flush=True)


if __name__ == "__main__":
    main()
