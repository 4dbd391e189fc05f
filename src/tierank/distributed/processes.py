"""A team of processes connected by torch.distributed: gloo between CPUs, nccl between GPUs.

Run one command in several processes of this machine, and watch them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as torch_distributed
from numpy.typing import NDArray
from torch import Tensor

from tierank.data.team import Team
from tierank.errors import LEFT_ALONE, ParameterError, TeamError
from tierank.settings import Number, as_whole

# Seconds that a process waits for the others before it gives up; the longest such time is about 30 years.
TIMEOUT, _LONGEST = 600.0, 1e9
# Larger numbers are mistakes.
_MOST_PROCESSES, _LAST_PORT = 1 << 20, 65_535
# The variable that names the network interface for gloo, and the ioctl that returns the address of an interface.
_INTERFACE, _SIOCGIFADDR = "GLOO_SOCKET_IFNAME", 0x8915
# Up to this many bytes, each process sends its array to all others at once, which takes one round trip. The ring of
# torch sends fewer bytes, but takes a round trip per process or more.
SENT_TO_ALL = 1 << 22
# An address that no machine has (RFC 5737): its route is that to other machines.
_ELSEWHERE = "192.0.2.1"


class Processes(Team):
    """A team of several processes; leaving it (``with join() as team:``) closes the connections."""

    def __init__(
        self, rank: int, size: int, address: str, timeout: float, holds_parts: bool, is_hosted: bool = False
    ) -> None:
        self.rank, self.size, self.timeout, self.holds_parts = rank, size, timeout, holds_parts
        has_cards = torch.cuda.is_available() and torch_distributed.is_nccl_available()
        if has_cards:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
        host, _, port = address.rpartition(":")
        self.host = _own_address(host)
        self.hosts = ["unknown"] * size
        limit = timedelta(seconds=timeout)
        try:
            store = torch_distributed.TCPStore(  # type: ignore[attr-defined]
                host, int(port), size, is_master=rank == 0 and not is_hosted, timeout=limit
            )
            with _bound_to(self.host):
                torch_distributed.init_process_group(
                    "cpu:gloo,cuda:nccl" if has_cards else "gloo",
                    store=store,
                    rank=rank,
                    world_size=size,
                    timeout=limit,
                )
                self.hosts = self.all_gather(self.host)  # no process starts before all have joined
        except (RuntimeError, ValueError) as error:
            raise TeamError.left_alone(
                f"process {rank} of {size}: expected all processes at {address} within {timeout:g} seconds, got:"
                f" {_first_line(error)}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        torch_distributed.destroy_process_group()

    def all_reduce(self, values: Any) -> Any:
        """The sum of an array or tensor over the processes; the argument may be overwritten."""
        if isinstance(values, Tensor):
            return self._sum(values)
        is_unsigned = values.dtype == np.uint64  # torch cannot add unsigned integers; the bits of the sums are the same
        summand = torch.from_numpy(np.ascontiguousarray(values.view(np.int64) if is_unsigned else values))
        return self._sum(summand).numpy().view(values.dtype)

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all processes in the order of their ranks: anything that JSON can hold."""
        encoded = np.frombuffer(json.dumps(value).encode(), np.uint8)
        return [json.loads(content.tobytes()) for content in self._gather(encoded)]

    def gather_rows(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows of all processes, in the order of their ranks; all matrices have the same type and width."""
        flat = self._gather(np.ascontiguousarray(rows).reshape(-1))
        return np.concatenate(flat).reshape(-1, rows.shape[1])

    def broadcast(self, content: bytes | None) -> bytes | None:
        """The value of the first process, in all processes."""
        length = torch.tensor([-1 if content is None else len(content)])
        self._together(torch_distributed.broadcast, length, 0)
        if length < 0:
            return None
        encoded = np.frombuffer(content or b"", np.uint8) if self.is_first else np.empty(int(length), np.uint8)
        sent = torch.from_numpy(encoded.copy())
        if length:
            self._together(torch_distributed.broadcast, sent, 0)
        return sent.numpy().tobytes()

    def _gather(self, own: NDArray[Any]) -> list[NDArray[Any]]:
        """Gather arrays of different lengths: first the lengths, then the arrays."""
        lengths = torch.cat(self._exchange(torch.tensor([len(own)]), [1] * self.size)).tolist()
        return [one.numpy() for one in self._exchange(torch.from_numpy(own.copy()), lengths)]

    def _sum(self, own: Tensor) -> Tensor:
        """The sum over the processes: of small tensors in the order of ranks, the same bits in each."""
        if own.is_cuda or own.nbytes * (self.size - 1) > SENT_TO_ALL:
            self._together(torch_distributed.all_reduce, own)
            return own
        total, *others = self._exchange(own.contiguous().reshape(-1), [own.numel()] * self.size)
        total = total.clone()
        for other in others:
            total += other
        return total.view_as(own)

    def _exchange(self, own: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """The vectors of all processes: each process sends its own to all others at the same time."""
        found = [own if rank == self.rank else own.new_empty(length) for rank, length in enumerate(lengths)]
        others = [rank for rank in range(self.size) if rank != self.rank]

        def send_and_receive() -> None:
            waiting = [torch_distributed.irecv(found[rank], rank) for rank in others if lengths[rank]]
            waiting += [torch_distributed.isend(own, rank) for rank in others if len(own)]
            for one in waiting:
                if one is not None:  # which torch returns outside of a group
                    one.wait()

        self._together(send_and_receive)
        return found

    def _together(self, collective: Any, *arguments: Any) -> None:
        try:
            collective(*arguments)
        except RuntimeError as error:
            raise TeamError.lost(self.rank, self.hosts, error) from None


def join(
    rank: int | None = None,
    size: int | None = None,
    address: str | None = None,
    *,
    timeout: float = TIMEOUT,
    holds_parts: bool = False,
) -> Processes:
    """Join the team: call it once in each process, and pass the team to ``fit``.

    .. code-block:: python

        with tierank.distributed.join() as team:          # torchrun --nproc-per-node 2 program.py
            ranker = tierank.URank().fit(train, valid=valid, team=team)
            if team.is_first:
                ranker.save("model")

    Parameters
    ----------
    rank : int, optional
        The rank of this process, from 0. Default of this and the next two: the environment, as set by ``torchrun`` and
        ``tierank train``.
    size : int, optional
        The number of processes.
    address : str, optional
        ``host:port`` of the first process.
    timeout : float, default 600.0
        Seconds that a process waits for the others, at any time, before it gives up.
    holds_parts : bool, default False
        Whether each process is given only its own part of the data: whole queries, none of them in two parts.

    Returns
    -------
    Processes
        The team, to be used in a ``with`` statement.
    """
    timeout = Number(above=0, most=_LONGEST).check("timeout", timeout)
    rank = _from_environment("rank", rank, "RANK", _MOST_PROCESSES - 1)
    size = _from_environment("size", size, "WORLD_SIZE", _MOST_PROCESSES)
    if not 0 <= rank < size:
        raise ParameterError(argument="rank", expected=f"0 to {size - 1} in a team of {size}", got=str(rank))
    is_hosted = False
    if address is None:
        is_hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun itself listens at this address
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        address = f"{host}:{_from_environment('port', None, 'MASTER_PORT', _LAST_PORT)}"
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdecimal() or int(port) > _LAST_PORT:
        raise ParameterError(
            argument="address", expected=f"host:port, with a port from 0 to {_LAST_PORT}", got=repr(address)
        )
    return Processes(rank, size, address, timeout, holds_parts, is_hosted)


def open_meeting() -> Any:
    """The store by which processes find each other, on a free port of this machine (``.port``); open while referenced.

    A port that is merely free could be taken by another program before the first process listens on it.
    """
    return torch_distributed.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )


def _own_address(first: str) -> str:
    """The address of this machine, as seen from the machine of the first process."""
    own_address = _address_towards(first)
    if own_address.startswith("127.") and not first.startswith("127.") and first != "localhost":
        # On the first machine, its own name often resolves to a loopback address.
        return _address_towards(_ELSEWHERE)
    return own_address


def _address_towards(host: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # nothing is sent: the system only chooses the source address
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@contextmanager
def _bound_to(address: str) -> Iterator[None]:
    """Let gloo listen where the other processes can reach this one.

    By default it listens at the address of the machine's own name, which is 127.0.1.1 on many systems: processes on
    several machines would wait for each other until the timeout.
    """
    name = None if _INTERFACE in os.environ else _interface_of(address)
    if name is None:
        yield
        return
    os.environ[_INTERFACE] = name
    try:
        yield
    finally:
        del os.environ[_INTERFACE]


def _interface_of(address: str) -> str | None:
    """The network interface with this address; None if it is unknown."""
    try:
        import fcntl
    except ImportError:  # not a Unix
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                told = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(told[20:24]) == address:
                    return name
    return None


def _from_environment(name: str, value: int | None, variable: str, most: int) -> int:
    if value is not None:
        return as_whole(name, value, 0, most)
    text = os.environ.get(variable, "")
    if not text.isdecimal():
        expected = f"a number, or {variable} in the environment as torchrun sets it"
        raise ParameterError(argument=name, expected=expected, got=repr(text or None))
    return as_whole(f"{variable} in the environment", int(text), 0, most)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


# The command of each process.
_PROGRAM = (sys.executable, "-m", "tierank")
# Seconds in which the others have to notice that one is gone, before they are killed: many, as the first may be saving
# the model, and the machine may be busy.
_GRACE = 30.0
_EVERY = 0.05


def launch(arguments: Sequence[str], size: int) -> None:
    """Run ``tierank`` with these arguments in ``size`` processes that find each other by the environment.

    The variables are those of ``torchrun``. The first process has the terminal; of the others only the output of the
    one that failed first is shown. Returns when all have succeeded; if one fails, the others are ended too.
    """
    with tempfile.TemporaryDirectory() as folder, _told_to_stop() as stop:
        meeting = open_meeting()
        started: list[_Process] = []
        try:
            for number in range(size):
                process = _Process(arguments, number, size, meeting.port, Path(folder))
                started.append(process)  # immediately, as this one has to end if the next one cannot start
            _watch(started, stop)
        finally:
            for process in started:
                process.end()
        failed = [process for process in started if process.code]
        if failed and not stop:  # after a signal, the others were ended already
            _explain(failed, size)


class _Process:
    """One of the processes."""

    def __init__(self, arguments: Sequence[str], number: int, size: int, port: int, folder: Path) -> None:
        self.number, self.words = number, folder / f"{number}.txt"
        place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
        environment = os.environ | {k: str(v) for k, v in (place | where | {"PYTHONUNBUFFERED": 1}).items()}
        with self.words.open("wb") as words:
            output = None if number == 0 else words  # the first has the terminal
            self.running = subprocess.Popen(  # noqa: S603  (our own program)
                [*_PROGRAM, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self.was_ended = False

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs; negative if a signal ended it."""
        code: int | None = self.running.poll()
        return code

    def end(self) -> None:
        """Kill it, if it still runs."""
        if self.code is None:
            self.was_ended = True
            self.running.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.running.wait(2.0)
        if self.code is None:
            self.running.kill()
            self.running.wait()


def _watch(started: list[_Process], stop: list[int]) -> None:
    """Wait until all have ended; with a time limit once one has failed or the first is done."""
    limit = None
    while any(process.code is None for process in started) and not stop:
        if limit is None and (started[0].code is not None or any(process.code for process in started)):
            limit = time.monotonic() + _GRACE
        if limit is not None and time.monotonic() > limit:
            return
        time.sleep(_EVERY)


def _explain(failed: list[_Process], size: int) -> None:
    """Raise the original error; those of processes that only lost contact are not shown."""
    guilty = [process for process in failed if process.code != LEFT_ALONE and not process.was_ended]
    killed = next((process for process in guilty if (process.code or 0) < 0), None)
    if killed is not None:
        name = signal.Signals(-(killed.code or 0)).name
        fix = "it probably ran out of memory" if name == "SIGKILL" else None
        raise TeamError(f"was ended by {name}", where=f"process {killed.number} of {size}", fix=fix)
    stuck = next((process for process in failed if process.was_ended), None)
    if not guilty and stuck is not None:
        raise TeamError("did not respond, and was killed", where=f"process {stuck.number} of {size}")
    silent = next((process for process in guilty if process.number > 0), None)
    if silent is None or any(process.number == 0 for process in guilty):
        # The first has the terminal.
        raise TeamError(f"the {size} processes have ended", fix="the line above says why")
    words = silent.words.read_text(errors="replace").strip()
    raise TeamError(words or f"ended with code {silent.code}", where=f"process {silent.number} of {size}")


@contextmanager
def _told_to_stop() -> Iterator[list[int]]:
    """A list that receives signals to end: the processes that this one started have to end with it."""
    heard: list[int] = []

    def hear(number: int, frame: Any) -> None:
        heard.append(number)

    try:
        before = signal.signal(signal.SIGTERM, hear)
    except ValueError:  # not the main thread, which alone receives signals
        yield heard
        return
    try:
        yield heard
    finally:
        signal.signal(signal.SIGTERM, before)
    if heard:
        raise KeyboardInterrupt
