"""Training, scoring and storing the cells of a run, in any process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from tierank.errors import DataError
from tierank.experiments.folds import Fold, Folds
from tierank.experiments.store import Cell, Store
from tierank.experiments.tuning import tune
from tierank.metrics import as_scores
from tierank.models import encode_settings
from tierank.rankers import Ranker
from tierank.training.identity import identity_of, is_of_caller, name_of, source_of
from tierank.types import Floats

# Tables that callers may add their code to: worker processes need the same entries.
_TABLES = (
    ("tierank.metrics", "METRICS"),
    ("tierank.metrics", "RULES"),
    ("tierank.transforms", "TRANSFORMS"),
    ("tierank.losses", "LOSSES"),
    ("tierank.networks", "NETWORKS"),
    ("tierank.objectives", "OBJECTIVES"),
    ("tierank.rankers", "RANKERS"),
)

Tables = dict[tuple[str, str], dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """A cell to fill, and its ranker."""

    cell: Cell
    ranker: Ranker
    protocol: str
    trials: int | None

    def __str__(self) -> str:
        return str(self.cell)

    def make_ranker(self) -> Ranker:
        """The unfitted ranker of this cell, with its seed, and one thread unless its settings say otherwise."""
        ranker: Ranker = clone(self.ranker)
        known = ranker.get_params(deep=False)  # a caller's ranker may have no setting ``seed`` or ``n_jobs``
        wanted = {"seed": self.cell.seed} | ({"n_jobs": 1} if known.get("n_jobs") is None else {})
        return ranker.set_params(**{name: value for name, value in wanted.items() if name in known})


class CellTrainer:
    """Fills the cells of a run; caches the data of the last fold."""

    def __init__(self, folder: Path, folds: Folds) -> None:
        self.store, self.folds = Store(folder), folds
        self._fold: tuple[int, Fold] | None = None

    def __call__(self, task: Task) -> str:
        """Train, score, write; returns a progress message."""
        cell = task.cell
        train, valid, test = self._read(cell.fold)
        if task.protocol == "lightgbm":
            valid = test
        ranker = task.make_ranker()
        start = time.process_time()
        checkpoint, study = self.store.scratch(cell)
        if task.trials is None:
            ranker.fit(train, valid=valid, checkpoint=checkpoint)
        else:
            ranker = tune(ranker, train, valid, trials=task.trials, seed=cell.seed, study=study).ranker
        seconds = time.process_time() - start
        scores = _checked_scores(cell, ranker.predict(test), test.n_documents)
        best = getattr(ranker, "best_", {})
        result = {
            "settings": encode_settings(ranker.settings_, _identity),
            "history": getattr(ranker, "history_", []),
            "best": best,
            "cpu_seconds": seconds,
        }
        model = ranker if _can_be_saved(ranker) else None
        self.store.write(cell, test.arrange(scores), result, model)
        self.store.clear_scratch(cell)
        values = " ".join(f"{name} {value:.4f}" for name, value in best.items())
        return f"{cell}: {values} on validation data" if values else str(cell)

    def _read(self, fold: int) -> Fold:
        if self._fold is None or self._fold[0] != fold:
            self._fold = (fold, self.folds.read(fold))
        return self._fold[1]


def _checked_scores(cell: Cell, scores: Any, n_documents: int) -> Floats:
    """The scores of a ranker, which may be the caller's, as float64."""
    try:
        numbers = as_scores(scores, n_documents)
    except DataError as error:
        raise DataError(f"{cell}: predict: {error}") from None
    if np.isnan(numbers).any():
        raise DataError(f"{cell}: predict: expected numbers, got NaN in row {int(np.argmax(np.isnan(numbers)))}")
    return numbers


def starter(folder: Path, folds: Folds) -> Callable[[], CellTrainer]:
    """A function that starts a ``CellTrainer`` in another process, with the same tables as here."""
    # The tables of modules that are not imported here have not been changed.
    tables = {(home, name): dict(getattr(sys.modules[home], name)) for home, name in _TABLES if home in sys.modules}
    return partial(_start, tables, folder, folds)


def _start(tables: Tables, folder: Path, folds: Folds) -> CellTrainer:
    for (home, name), table in tables.items():
        getattr(import_module(home), name).update(table)
    return CellTrainer(folder, folds)


def describe_ranker(ranker: Ranker) -> dict[str, Any]:
    """The description of a ranker in a run: class, settings, and the caller's own code, by digest and as text."""
    settings = ranker.get_params(deep=False)
    described = {"ranker": type(ranker).__name__, "settings": encode_settings(settings, _identity)}
    written = {name_of(value): value for value in _written_by_caller(ranker, settings)}
    # Functions among the settings are identified by their place in them.
    others = {name: value for name, value in written.items() if not any(value is given for given in settings.values())}
    if others:
        described["code"] = {name: identity_of(value)["code"] for name, value in others.items()}
    sources = {name: text for name, value in written.items() if (text := source_of(value)) is not None}
    return described | ({"sources": sources} if sources else {})


def _written_by_caller(ranker: Ranker, settings: Mapping[str, Any]) -> Iterator[Any]:
    """The functions and classes of a ranker that are not part of tierank."""
    deep = [*settings.values(), *ranker.get_params().values()]
    kinds = [type(value) for value in (ranker, *deep) if isinstance(value, Ranker)]
    functions = [value for value in settings.values() if callable(value) and not isinstance(value, Ranker)]
    named = [value for value in deep if isinstance(value, str)]
    for home, name in _TABLES:
        table = getattr(sys.modules.get(home), name, {})
        functions += [table[value] for value in named if callable(table.get(value))]
    yield from (value for value in (*kinds, *functions) if is_of_caller(value))


def _identity(value: Any, name: str) -> Any:
    """A setting that JSON cannot hold, as a run identifies it."""
    return identity_of(value)


def _can_be_saved(ranker: Ranker) -> bool:
    try:
        ranker.model_files()
    except DataError:
        return False
    return True
