"""Training in one process of a cluster, on its own queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tierank.dataset import RankingDataset
from tierank.distributed.processes import Processes
from tierank.rankers import check_ranker

# The columns of a data set other than features and queries.
_COLUMNS = ("row_weight", "query_weight", "position", "propensity")


@dataclass(frozen=True)
class Training:
    """The arguments that the processes of one fit share."""

    ranker: Any
    size: int
    timeout: float
    checkpoint: Path | None
    progress: bool

    def fit_part(self, number: int, address: str, data: Sequence[RankingDataset], threads: int) -> Any:
        """The fitted ranker, the same in all processes; ``data`` is training data, and validation data if any.

        If ``n_jobs`` of the ranker is None, it uses the threads that the cluster gives this process.
        """
        ranker, by_parts = self.ranker, self.ranker.takes_parts()
        n_jobs = getattr(ranker, "n_jobs", threads)
        if n_jobs is None:
            ranker.n_jobs = threads
        with Processes(number, self.size, address, self.timeout, holds_parts=by_parts, is_hosted=True) as team:
            held = data if by_parts else [_everything(part, team) for part in data]
            valid = held[1] if len(held) > 1 else None
            ranker.fit(held[0], valid=valid, checkpoint=self.checkpoint, progress=self.progress, team=team)
        if n_jobs is None:
            ranker.n_jobs = None
        return ranker


def advice(checkpoint: Path | None) -> str:
    """How to continue after a failure."""
    if checkpoint is None:
        return "nothing was saved: with checkpoint= a failed run can be continued"
    return (
        f"{checkpoint} has the saved state: call fit again with this checkpoint, on any number of processes, to"
        " continue"
    )


def check_settings_of(ranker: Any) -> None:
    """Refuse anything but a ranker with valid settings, before anything is sent."""
    check_ranker("ranker", ranker)
    ranker.checked_settings()


def _everything(own: RankingDataset, team: Processes) -> RankingDataset:
    """The queries of all processes, in the order of their numbers."""
    first = sum(team.all_gather(own.n_queries)[: team.rank])
    codes = np.repeat(np.arange(first, first + own.n_queries), own.lengths)

    def gathered(values: Any) -> Any:
        return None if values is None else team.gather_rows(values[:, None])[:, 0]

    def of_rows(name: str) -> Any:
        values = getattr(own, name)
        return np.repeat(values, own.lengths) if name == "query_weight" and values is not None else values

    return RankingDataset(
        team.gather_rows(np.asarray(own.features)),
        gathered(own.ratings),
        gathered(codes),
        feature_names=own.feature_names,
        **{name: gathered(of_rows(name)) for name in _COLUMNS},
    )
