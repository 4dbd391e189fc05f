"""Teams of threads: what the processes of a team say to each other, without processes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tierank.data.team import Team

# Seconds after which something that has to happen is taken to have failed: as many as a busy machine may need.
LONG = 900


class Thread(Team):
    """One of a team of threads, which share what they gather."""

    def __init__(self, rank, size, meeting, holds_parts):
        self.rank, self.size, self.holds_parts = rank, size, holds_parts
        self._barrier, self._said = meeting

    def all_gather(self, value):
        self._said[self.rank] = value
        self._barrier.wait(LONG)
        found = list(self._said)
        self._barrier.wait(LONG)
        return found

    def gather_rows(self, rows):
        return np.concatenate(self.all_gather(rows))

    def all_reduce(self, values):
        return np.sum(self.all_gather(values), axis=0)


def in_threads(work, size, holds_parts=False):
    """What ``work(team)`` returned or raised in each of a team of threads."""
    meeting = threading.Barrier(size), [None] * size

    def found(number):
        try:
            return work(Thread(number, size, meeting, holds_parts))
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(found, range(size)))
