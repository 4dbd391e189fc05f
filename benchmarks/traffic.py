"""The network traffic of training: the cost model of docs/scale.md.

A collective is a chain of messages that wait for each other. ``sent`` is the number of bytes that all hosts send,
``path`` the number that the longest chain sends one after the other, and ``waits`` the number of its messages, each of
which takes the latency of the network. All hosts are assumed to do the same at the same time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.cable import Speed
from tierank.distributed.processes import SENT_TO_ALL

# A packet of 1,500 bytes has 52 bytes of headers, and every second one is answered by one of 52 bytes.
OVERHEAD = (1500 + 52 / 2) / 1448
# Bytes of a bin in a histogram (two doubles), of the best splits of two leaves, and of a parameter of a network.
_BIN, _SPLITS, _PARAMETER = 16, 600, 4
# LightGBM sums larger histograms by a ring if the number of hosts is not a power of two.
_RING = 10 * 2**20


@dataclass(frozen=True)
class Traffic:
    """The traffic of one collective, or of several in sequence."""

    sent: float
    path: float
    waits: int

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.sent + other.sent, self.path + other.path, self.waits + other.waits)

    def __mul__(self, times: int) -> Traffic:
        return Traffic(self.sent * times, self.path * times, self.waits * times)

    @property
    def wire(self) -> float:
        """Bytes that all hosts send, including headers and acknowledgements."""
        return self.sent * OVERHEAD

    def seconds(self, speed: Speed) -> float:
        """How long the network takes."""
        return self.path * OVERHEAD / speed.rate + self.waits * speed.latency


def of_tree(n_hosts: int, n_leaves: int, n_bins: int) -> Traffic:
    """A tree of LightGBM: the sums of the root; for each split, the histograms of one leaf and the best splits."""
    histograms = _reduce_scattered(n_hosts, n_bins * _BIN)
    return _gathered(n_hosts, 24) + (histograms + _gathered(n_hosts, _SPLITS)) * (n_leaves - 1)


def of_step(n_hosts: int, n_parameters: int) -> Traffic:
    """A step of a network: the sum of its gradients, and of the loss."""
    return of_sum(n_hosts, (n_parameters + 2) * _PARAMETER)


def of_sum(n_hosts: int, size: int) -> Traffic:
    """A sum of arrays by exchange, where each message waits until the other host is ready for it.

    Large arrays go around a ring, first as sums of parts and then as results, and wait for each other in the same way.
    """
    sent = (n_hosts - 1) * size
    if sent <= SENT_TO_ALL:
        return Traffic(n_hosts * sent, sent, 2)
    return Traffic(2 * sent, 2 * sent / n_hosts, 4 * (n_hosts - 1))


def _gathered(n_hosts: int, size: int) -> Traffic:
    """Small arrays of all hosts, sent to all hosts, by LightGBM: each message carries twice as many."""
    sent = (n_hosts - 1) * size
    return Traffic(n_hosts * sent, sent, math.ceil(math.log2(n_hosts)))


def _reduce_scattered(n_hosts: int, size: int) -> Traffic:
    """Sums of parts of an array, one part in each host, by LightGBM: each message carries half as much.

    If the number of hosts is not a power of two, some of them are represented by a neighbour: it first gets all their
    data, and finally sends them their part.
    """
    part, paired = size / n_hosts, n_hosts - 2 ** int(math.log2(n_hosts))
    if not paired or size < _RING:
        found = _halved([1] * (n_hosts - 2 * paired) + [2] * paired)
        if paired:
            found += Traffic(paired * (n_hosts + 1), n_hosts + 1, 2)
    else:
        found = Traffic(n_hosts * (n_hosts - 1), n_hosts - 1, n_hosts - 1)
    return Traffic(found.sent * part, found.path * part, found.waits)


def _halved(groups: list[int]) -> Traffic:
    """Groups with the same number of parts, in two halves, which exchange their parts and then continue separately."""
    if len(groups) == 1:
        return Traffic(0, 0, 0)
    first, second = groups[: len(groups) // 2], groups[len(groups) // 2 :]
    sent = len(first) * sum(second) + len(second) * sum(first)
    inner = [_halved(first), _halved(second)]
    return Traffic(
        sent + sum(one.sent for one in inner),
        max(sum(first), sum(second)) + max(one.path for one in inner),
        1 + max(one.waits for one in inner),
    )
