"""Several runs on the same test data, combined into one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tierank.errors import DataError, ParameterError
from tierank.experiments.runs import Run
from tierank.experiments.store import Cell, Store


@dataclass(frozen=True)
class _Stores(Store):
    """The files of several runs: the results of each system stay in the folder of its run."""

    homes: Mapping[str, tuple[Store, str]]

    def place(self, cell: Cell) -> Path:
        """The folder of a result."""
        store, system = self.homes[cell.system]
        return store.place(cell._replace(system=system))


def side_by_side(runs: Mapping[str, Run]) -> Run:
    """Combine runs on the same test data into one run with the systems of all, for tables, tests and the report.

    Nothing is copied or written. The metrics, the rule and the baseline are those of the first run.

    Parameters
    ----------
    runs : dict of str to Run
        The runs by name. A system is called ``ranker (name)`` in the result.

    Returns
    -------
    Run
        The systems of all runs.

    Raises
    ------
    DataError
        If the runs were tested on different data.

    Examples
    --------
    >>> import tierank
    >>> folds = [tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20).split(0.6, 0.2, 0.2)]
    >>> before, after = (tierank.cross_validate({"umart": tierank.UMart(n_trees=n)}, folds) for n in (2, 20))
    >>> both = side_by_side({"before": before, "after": after})  # or tierank.Run.open("folder")
    >>> both.systems
    ('umart (before)', 'umart (after)')
    >>> "ndcg@10" in both.comparison.contrasts["umart (after)"]
    True
    """
    if not isinstance(runs, Mapping) or len(runs) < 2 or not all(isinstance(run, Run) for run in runs.values()):
        raise ParameterError(argument="runs", expected="two runs or more, by name", got=repr(runs))
    (first_name, first), *others = runs.items()
    for _, run in others:
        if list(run.plan.folds) != list(first.plan.folds):
            raise DataError(
                f"{run.folder}: expected the test data of {first.folder}, got others; only runs with equal test"
                " queries in the same folds can be compared"
            )
    homes = {f"{system} ({name})": (run.store, system) for name, run in runs.items() for system in run.systems}
    described = {f"{s} ({name})": run.plan.systems[s] for name, run in runs.items() for s in run.systems}
    plan = replace(
        first.plan,
        kind="cv",
        systems=described,
        seeds=sorted({seed for run in runs.values() for seed in run.seeds}),
        baseline=f"{first.baseline} ({first_name})" if first.systems else None,
        protocol="lightgbm" if any(run.plan.protocol == "lightgbm" for run in runs.values()) else first.plan.protocol,
        paper=None,
    )
    return Run(_Stores(first.folder, homes), plan)
