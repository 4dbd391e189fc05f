"""Where the folds of an experiment come from: training, validation and test data, five times."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.readers import is_folder_of_folds, read, read_fold, write

N_FOLDS = 5
Fold = tuple[RankingDataset, RankingDataset, RankingDataset]


class Folds(ABC):
    """The folds, by number from 0 on. Small and picklable: each process reads the data for itself."""

    name: str
    n_folds: int = N_FOLDS

    @abstractmethod
    def read(self, fold: int) -> Fold:
        """Training, validation and test data."""

    def describe(self) -> dict[str, Any]:
        """Where the data came from, for JSON; nothing where they were in memory."""
        return {}


@dataclass(frozen=True)
class FolderFolds(Folds):
    """A folder with ``Fold1`` to ``Fold5``, or with the parts ``S1`` to ``S5``."""

    name: str
    folder: str
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: str, options: dict[str, Any]) -> FolderFolds:
        """The folds of a folder, which gives them its name."""
        return cls(Path(folder).resolve().name, folder, options)

    def read(self, fold: int) -> Fold:
        """Training, validation and test data."""
        return read_fold(self.folder, fold + 1, **self.options)

    def describe(self) -> dict[str, Any]:
        """Where the folder is."""
        return {"folder": str(Path(self.folder).resolve()), "options": self.options}


@dataclass(frozen=True)
class PartFolds(Folds):
    """Five parts, each once for validation and once for test, as LETOR does it: fold 1 trains on the first three."""

    name: str
    parts: tuple[str, ...]
    source: dict[str, Any] = field(default_factory=dict)

    def read(self, fold: int) -> Fold:
        """Training, validation and test data."""
        parts = [read(self.parts[(fold + k) % N_FOLDS]) for k in range(N_FOLDS)]
        return RankingDataset.concat(parts[:3]), parts[3], parts[4]

    def describe(self) -> dict[str, Any]:
        """The file that was cut, if it was one."""
        return self.source


@dataclass(frozen=True)
class GivenFolds(Folds):
    """Training, validation and test data that were given, kept as files."""

    name: str
    files: tuple[tuple[str, str, str], ...]
    n_folds: int

    def read(self, fold: int) -> Fold:
        """Training, validation and test data."""
        train, valid, test = (read(file) for file in self.files[fold])
        return train, valid, test


@dataclass(frozen=True)
class TestOnly(Folds):
    """One fold of test data alone, for systems that are not trained here."""

    name: str
    data: RankingDataset
    n_folds: int = 1

    def read(self, fold: int) -> Fold:
        """The test data, three times."""
        return self.data, self.data, self.data


def folds_of(data: Any, scratch: Path, *, seed: int = 0, **options: Any) -> Folds:
    """The folds of a folder of folds, of a file or data set (cut into five parts of whole queries), or as given.

    What is in memory, or must be cut, is written to ``scratch`` once: every process then maps the same files.
    """
    if isinstance(data, Folds):
        return data
    if isinstance(data, RankingDataset):
        return _cut(data, "data", scratch, seed, {})
    if isinstance(data, (str, os.PathLike)):
        path = Path(data)
        if is_folder_of_folds(path):
            return FolderFolds.of(str(path), options)
        source = {"file": str(path.resolve()), "options": options}
        return _cut(read(path, **options), path.name, scratch, seed, source)
    return _keep(data, scratch)


def found_folds(source: dict[str, Any], scratch: Path) -> Folds | None:
    """The folds that ``folds_of`` gave before, by what they said of themselves and what is in ``scratch``."""
    if "folder" in source:
        return FolderFolds.of(source["folder"], source["options"])
    parts = sorted(scratch.glob("part*.tierank"))
    if parts:
        return PartFolds("data", tuple(map(str, parts)), source)
    n_folds = len(list(scratch.glob("fold*-train.tierank")))
    return _given(scratch, n_folds) if n_folds else None


def _given(scratch: Path, n_folds: int) -> GivenFolds:
    return GivenFolds("data", tuple(_names(scratch, fold) for fold in range(n_folds)), n_folds)


def _names(scratch: Path, fold: int) -> tuple[str, str, str]:
    train, valid, test = (str(scratch / f"fold{fold + 1}-{part}.tierank") for part in ("train", "valid", "test"))
    return train, valid, test


def _cut(data: RankingDataset, name: str, scratch: Path, seed: int, source: dict[str, Any]) -> PartFolds:
    if data.n_queries < N_FOLDS:
        raise DataError(f"{name}: expected at least {N_FOLDS} queries, one for each part, got {data.n_queries}")
    files = []
    for number, part in enumerate(data.split(*[1 / N_FOLDS] * N_FOLDS, seed=seed), 1):
        files.append(scratch / f"part{number}.tierank")
        _write(part, files[-1])
    return PartFolds(name, tuple(map(str, files)), source)


def _keep(folds: Sequence[Any], scratch: Path) -> GivenFolds:
    for number, fold in enumerate(folds):
        if not (isinstance(fold, Sequence) and len(fold) == 3 and all(isinstance(d, RankingDataset) for d in fold)):
            raise ParameterError(
                "data: expected a folder of folds, a file, a RankingDataset, or a list of (train, valid, test)"
                f" data sets, got {type(fold).__name__} in place of fold {number + 1}"
            )
        for part, file in zip(fold, _names(scratch, number), strict=True):
            _write(part, Path(file))
    if not folds:
        raise ParameterError("data: expected at least one fold, got none")
    return _given(scratch, len(folds))


def _write(data: RankingDataset, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write(data, file)
