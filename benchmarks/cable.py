"""A slow network cable in user space: packets between network namespaces are delayed, and their rate is limited.

Linux has netem for that, but many kernels are built without it. Here each host has a TUN device, and one thread of this
process carries packets from one to the other.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

DEVICE = Path("/dev/net/tun")
# Packets of a TUN device without a prefix (linux/if_tun.h).
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
# Bytes of the longest packet, and where the address of its destination is (RFC 791).
_LONGEST, _TO = 65536, slice(16, 20)
# A packet that would wait longer than this for those before it is lost, as in a switch with a full buffer.
_BUFFER_SECONDS = 1.0
# Seconds between checks whether the thread has to end.
_LOOK = 0.1


@dataclass(frozen=True)
class Speed:
    """The speed of each host's cable: seconds from host to host, and bytes per second in each direction."""

    latency: float = 0.0
    rate: float = float("inf")

    @classmethod
    def of(cls, milliseconds: float, megabits: float) -> Speed:
        """The speed from milliseconds and Mbit/s."""
        return cls(milliseconds / 1e3, megabits * 1e6 / 8)

    def __str__(self) -> str:
        rate = "no limit" if self.rate == float("inf") else f"{8e-6 * self.rate:g} Mbit/s"
        return f"{1e3 * self.latency:g} ms, {rate}"


def open_device(name: str) -> int:
    """A new TUN device: the file that its packets are read from and written to.

    The device may be moved to another namespace; it exists while the file is open.
    """
    file = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return file


class Cable:
    """Carries packets between hosts while the ``with`` block runs.

    Each host can send and receive at the same time, as over its own cable to a switch. ``sent`` counts the bytes of
    each host's packets that arrived, and ``lost`` the packets that did not because the buffer was full.
    """

    def __init__(self, addresses: Sequence[str], files: Sequence[int], speed: Speed) -> None:
        self.files, self.speed = list(files), speed
        self.sent, self.lost, self.pulled = [0] * len(files), 0, set[int]()
        self._hosts = {socket.inet_aton(address): k for k, address in enumerate(addresses)}
        self._free_to_send, self._free_to_receive = ([0.0] * len(files) for _ in range(2))
        self._waiting: list[tuple[float, int, int, int, bytes]] = []
        self._n_packets, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def __enter__(self) -> Cable:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for file in self.files:
            os.close(file)

    def _carry(self) -> None:
        with suppress(OSError):  # so that the processes of the hosts do not delay their own packets
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        while not self._ended.is_set():
            due = self._waiting[0][0] - time.monotonic() if self._waiting else _LOOK
            ready, _, _ = select.select(self.files, [], [], max(0.0, min(due, _LOOK)))
            for file in ready:
                self._read(self.files.index(file))
            self._deliver()

    def _read(self, source: int) -> None:
        """Take the packets that a host has sent."""
        with suppress(BlockingIOError):
            while True:
                packet = os.read(self.files[source], _LONGEST)
                target = self._hosts.get(packet[_TO])
                if target is not None and packet[0] >> 4 == 4:  # version 4 of the protocol, for one of the hosts
                    self._queue(source, target, packet)

    def _queue(self, source: int, target: int, packet: bytes) -> None:
        now, takes = time.monotonic(), len(packet) / self.speed.rate
        leaves = max(now, self._free_to_send[source]) + takes
        arrives = max(leaves, self._free_to_receive[target] + takes)  # it is received while it is sent
        if arrives - now > _BUFFER_SECONDS:
            self.lost += 1
            return
        self._free_to_send[source], self._free_to_receive[target] = leaves, arrives
        self._n_packets += 1
        heapq.heappush(self._waiting, (arrives + self.speed.latency, self._n_packets, source, target, packet))

    def _deliver(self) -> None:
        """Deliver the packets that are due; those of a host whose cable is pulled are lost."""
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, _, source, target, packet = heapq.heappop(self._waiting)
            if not self.pulled & {source, target}:
                with suppress(OSError):  # the host's queue is full
                    os.write(self.files[target], packet)
                    self.sent[source] += len(packet)
