"""Sources of the folds of an experiment: training, validation and test data, five times."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.files import as_path, make_folder
from tierank.kinds import Columns
from tierank.readers import is_folder_of_folds, read, read_fold, write
from tierank.tables import is_table

N_FOLDS = 5
Fold = tuple[RankingDataset, RankingDataset, RankingDataset]
# Data in memory, or the file that holds them.
Part = RankingDataset | str


class Folds(ABC):
    """The folds, numbered from 0. Once stored they are small and picklable: each process reads its fold from files."""

    name: str
    n_folds: int = N_FOLDS

    @abstractmethod
    def read(self, fold: int) -> Fold:
        """Training, validation and test data."""

    def keep(self, scratch: Path) -> Folds:
        """The same folds, with data in memory written to ``scratch``, so that all processes map the same files."""
        return self

    def describe(self) -> dict[str, Any]:
        """Where the data came from, for JSON; empty if they were in memory."""
        return {}


@dataclass(frozen=True)
class FolderFolds(Folds):
    """A folder with ``Fold1`` to ``Fold5``, or with the parts ``S1`` to ``S5``."""

    name: str
    folder: str
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: str, options: dict[str, Any]) -> FolderFolds:
        """The folds of a folder, named after it."""
        return cls(Path(folder).resolve().name, folder, options)

    def read(self, fold: int) -> Fold:
        """Training, validation and test data."""
        return read_fold(self.folder, fold + 1, **self.options)

    def describe(self) -> dict[str, Any]:
        """Where the folder is."""
        return {"folder": str(Path(self.folder).resolve()), "options": _plain(self.options)}


@dataclass(frozen=True)
class PartFolds(Folds):
    """Five parts, each used once for validation and once for test, as in LETOR: fold 1 trains on the first three."""

    name: str
    parts: tuple[Part, ...]
    source: dict[str, Any] = field(default_factory=dict)

    def read(self, fold: int) -> Fold:
        """Training, validation and test data."""
        parts = [_loaded(self.parts[(fold + k) % N_FOLDS]) for k in range(N_FOLDS)]
        return RankingDataset.concat(parts[:3]), parts[3], parts[4]

    def keep(self, scratch: Path) -> Folds:
        """The parts as files."""
        files = [scratch / f"part{number}.tierank" for number in range(1, N_FOLDS + 1)]
        return replace(self, parts=_written(self.parts, files))

    def describe(self) -> dict[str, Any]:
        """The file that was split, if the data came from one."""
        return self.source


@dataclass(frozen=True)
class GivenFolds(Folds):
    """Folds given as data sets."""

    name: str
    folds: tuple[tuple[Part, ...], ...]
    n_folds: int

    def read(self, fold: int) -> Fold:
        """Training, validation and test data."""
        train, valid, test = map(_loaded, self.folds[fold])
        return train, valid, test

    def keep(self, scratch: Path) -> Folds:
        """The data as files."""
        return replace(self, folds=tuple(_written(fold, _names(scratch, i)) for i, fold in enumerate(self.folds)))


@dataclass(frozen=True)
class TestOnly(Folds):
    """One fold of test data only, for systems that are not trained here."""

    name: str
    data: RankingDataset
    n_folds: int = 1

    def read(self, fold: int) -> Fold:
        """The test data, three times."""
        return self.data, self.data, self.data


def folds_of(data: Any, **reading: Any) -> Folds:
    """The folds of a folder of folds, of a file, table or data set (split by query), or as given."""
    if isinstance(data, (str, os.PathLike)):
        path = as_path(data, "data")
        if is_folder_of_folds(path):
            return FolderFolds.of(str(path), reading)
        return _cut(read(path, **reading), path.name, {"file": str(path.resolve()), "options": _plain(reading)})
    if is_table(data):
        return _cut(read(data, **reading), "data", {})
    if reading:
        raise ParameterError(
            f"{next(iter(reading))}: expected where data are a file or a table, which have yet to be read, got"
            f" {type(data).__name__}"
        )
    return _cut(data, "data", {}) if isinstance(data, RankingDataset) else _as_given(data)


def found_folds(source: dict[str, Any], scratch: Path) -> Folds | None:
    """The folds that ``folds_of`` returned before, from their description and the files in ``scratch``."""
    if "folder" in source:
        options = dict(source["options"])
        columns = {"columns": Columns(**options["columns"])} if options.get("columns") else {}
        return FolderFolds.of(source["folder"], options | columns)
    parts = sorted(scratch.glob("part*.tierank"))
    if parts:
        return PartFolds("data", tuple(map(str, parts)), source)
    n_folds = len(list(scratch.glob("fold*-train.tierank")))
    return _given(scratch, n_folds) if n_folds else None


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``read``, as plain values for JSON."""
    return {name: one.to_json() if isinstance(one, Columns) else one for name, one in options.items()}


def _given(scratch: Path, n_folds: int) -> GivenFolds:
    files = (_names(scratch, fold) for fold in range(n_folds))
    return GivenFolds("data", tuple(tuple(map(str, names)) for names in files), n_folds)


def _names(scratch: Path, fold: int) -> list[Path]:
    return [scratch / f"fold{fold + 1}-{part}.tierank" for part in ("train", "valid", "test")]


def _cut(data: RankingDataset, name: str, source: dict[str, Any]) -> PartFolds:
    if data.n_queries < N_FOLDS:
        raise DataError(f"{name}: expected at least {N_FOLDS} queries, one for each part, got {data.n_queries}")
    return PartFolds(name, tuple(data.split(*[1 / N_FOLDS] * N_FOLDS)), source)


def _as_given(folds: Any) -> GivenFolds:
    expected = (
        "data: expected a folder of folds, a file, a table, a RankingDataset, or a list of (train, valid, test) data"
        " sets, got"
    )
    if not isinstance(folds, Sequence):
        raise ParameterError(f"{expected} {type(folds).__name__}")
    for number, fold in enumerate(folds, 1):
        if not (isinstance(fold, Sequence) and len(fold) == 3 and all(isinstance(d, RankingDataset) for d in fold)):
            raise ParameterError(f"{expected} {type(fold).__name__} in place of fold {number}")
    if not folds:
        raise ParameterError("data: expected at least one fold, got none")
    return GivenFolds("data", tuple(map(tuple, folds)), len(folds))


def _loaded(part: Part) -> RankingDataset:
    return part if isinstance(part, RankingDataset) else read(part)


def _written(parts: Sequence[Part], files: Sequence[Path]) -> tuple[str, ...]:
    for part, file in zip(parts, files, strict=True):
        make_folder(file.parent)
        write(_loaded(part), file)
    return tuple(map(str, files))
