"""Team: the processes that train one model together. A team of one is the usual case, and costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tierank.data.dataset import RankingDataset
from tierank.errors import DataError

T = TypeVar("T")


class Team:
    """A team of one process. ``tierank.distributed.join`` returns a team of several, with the same methods.

    Every process of a team calls ``fit`` with the same settings and the same data, or its own part of them, and ends
    with the same model. Each learns from its own queries (``part``), and the other methods exchange numbers between the
    processes; all processes have to call them in the same order.

    >>> team = Team()
    >>> team.size, team.rank, team.all_gather("here"), team.all_reduce(np.array([1.0, 2.0])).tolist()
    (1, 0, ['here'], [1.0, 2.0])
    """

    size: int = 1
    rank: int = 0
    # Whether each process was given only its own part of the data.
    holds_parts: bool = False
    # The address of this process's machine, as the others see it; and the seconds that it waits for them.
    host: str = "127.0.0.1"
    timeout: float = 0.0
    # The addresses of all processes.
    hosts: Sequence[str] = ("127.0.0.1",)

    @property
    def is_first(self) -> bool:
        """Whether this is the first process, which writes files and shows progress."""
        return self.rank == 0

    def name_of(self, rank: int) -> str:
        """The name of a process in messages: its rank, and its machine if there are several.

        Parameters
        ----------
        rank : int
            The rank of the process.

        Returns
        -------
        str
            Such as "process 1 of 4 on 10.0.0.2".
        """
        where = f" on {self.hosts[rank]}" if len(set(self.hosts)) > 1 else ""
        return f"process {rank} of {self.size}{where}"

    def all_reduce(self, values: T) -> T:
        """The sum over all processes.

        Parameters
        ----------
        values : array or Tensor
            The values of this process, of the same shape in all; they may be overwritten.

        Returns
        -------
        array or Tensor
            The sum, the same in all processes.
        """
        return values

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all processes.

        Parameters
        ----------
        value : object
            The value of this process: anything that JSON can hold.

        Returns
        -------
        list
            The values in the order of the ranks.
        """
        return [value]

    def gather_rows(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows of all processes.

        Parameters
        ----------
        rows : array
            The rows of this process, of the same type and width in all.

        Returns
        -------
        array
            All rows, in the order of the ranks.
        """
        return rows

    def broadcast(self, content: bytes | None) -> bytes | None:
        """The content that the first process has.

        Parameters
        ----------
        content : bytes or None
            The content, in the first process; ignored in the others.

        Returns
        -------
        bytes or None
            The content of the first process, in all processes.
        """
        return content

    def rows(self, n: int) -> slice:
        """The rows that this process works on, of those that all processes have.

        Parameters
        ----------
        n : int
            Number of rows.

        Returns
        -------
        slice
            The rows of this process; all rows if each process has its own part of the data.
        """
        if self.holds_parts:
            return slice(0, n)
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def of_parts(self) -> Self:
        """The same team, for data that are already split.

        Returns
        -------
        Team
            A copy with ``holds_parts`` set: each process has its own part of the data.
        """
        team = copy(self)
        team.holds_parts = True
        return team

    def part(self, data: RankingDataset) -> RankingDataset:
        """The queries that this process learns from.

        Parameters
        ----------
        data : RankingDataset
            The data of all processes, or the part of this one if ``holds_parts``.

        Returns
        -------
        RankingDataset
            A contiguous range of queries with a fair share of the documents.
        """
        if self.holds_parts or self.size == 1:
            return data
        cuts = cut_queries(data.offsets, self.size)
        return data.select(np.arange(cuts[self.rank], cuts[self.rank + 1]))


def cut_queries(offsets: NDArray[np.int64], n_parts: int) -> NDArray[np.int64]:
    """The edges that cut queries into non-empty parts of about the same number of documents: one more than parts.

    >>> cut_queries(np.array([0, 5, 6, 7, 8, 10]), 2).tolist()
    [0, 1, 5]
    >>> cut_queries(np.array([0, 9, 10, 11]), 3).tolist()
    [0, 1, 2, 3]
    """
    n_queries = len(offsets) - 1
    if n_queries < n_parts:
        raise DataError(expected=f"at least one query for each of {n_parts} processes", got=f"{n_queries} queries")
    wanted = np.linspace(0, offsets[-1], n_parts + 1)[1:-1]
    after = np.searchsorted(offsets, wanted).clip(1, n_queries)
    nearer = wanted - offsets[after - 1] <= offsets[after] - wanted
    cuts = np.concatenate([[0], after - nearer, [n_queries]])
    places = np.arange(n_parts + 1)
    cuts = np.maximum.accumulate(cuts - places) + places  # each part has at least one query,
    return np.asarray(np.minimum(cuts, n_queries - n_parts + places), np.int64)  # the last ones too
