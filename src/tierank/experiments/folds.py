"""Where the folds of an experiment come from: training, validation and test data, usually five times."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tierank.data.columns import Columns
from tierank.data.dataset import RankingDataset
from tierank.data.tables import is_table, load_stream
from tierank.errors import DataError, ParameterError
from tierank.files import as_path, make_folder
from tierank.io import is_folder_of_folds, read, read_fold, write
from tierank.rankers.order import share_seen

N_FOLDS = 5
Fold = tuple[RankingDataset, RankingDataset, RankingDataset]
# For each fold the names of the parts that train it, of the one that validates it, and of the one that tests it.
Layout = tuple[tuple[Sequence[str], str, str], ...]


@dataclass(frozen=True)
class FolderFolds:
    """The folds of a folder with ``Fold1`` to ``Fold5``, or with the parts ``S1`` to ``S5``. Folds count from 0."""

    name: str
    folder: str
    options: dict[str, Any] = field(default_factory=dict)
    n_folds: int = N_FOLDS

    def read(self, fold: int) -> Fold:
        """Training, validation and test data."""
        return read_fold(self.folder, fold + 1, **self.options)

    def keep(self, folder: Path) -> FolderFolds:
        """The same folds: every process reads them from their own folder."""
        return self

    def describe(self) -> dict[str, Any]:
        """Where the folder is, for JSON."""
        return {"folder": str(Path(self.folder).resolve()), "options": _for_json(self.options)}


@dataclass(frozen=True)
class PartFolds:
    """Folds made of parts by name: data in memory, or files, which every process reads for itself."""

    name: str
    parts: Mapping[str, RankingDataset | str]
    layout: Layout
    source: dict[str, Any] = field(default_factory=dict)

    @property
    def n_folds(self) -> int:
        """Number of folds."""
        return len(self.layout)

    def read(self, fold: int) -> Fold:
        """Training, validation and test data."""
        train, valid, test = self.layout[fold]
        learned = [self._part(name) for name in train]
        return RankingDataset.concat(learned) if len(learned) > 1 else learned[0], self._part(valid), self._part(test)

    def keep(self, folder: Path) -> PartFolds:
        """The same folds with all parts written to a folder."""
        make_folder(folder)
        for name in self.parts:
            write(self._part(name), folder / f"{name}.tierank")
        return replace(self, parts={name: str(folder / f"{name}.tierank") for name in self.parts})

    def describe(self) -> dict[str, Any]:
        """The file that was split, for JSON; empty if the data were in memory."""
        return self.source

    def _part(self, name: str) -> RankingDataset:
        part = self.parts[name]
        return part if isinstance(part, RankingDataset) else read(part)


Folds = FolderFolds | PartFolds


def _rotated() -> Layout:
    """Five parts in turn, as in LETOR: fold 1 trains on the parts 1 to 3, validates on part 4, and tests on part 5."""
    turns = [[f"part{(fold + k) % N_FOLDS + 1}" for k in range(N_FOLDS)] for fold in range(N_FOLDS)]
    return tuple((names[:3], names[3], names[4]) for names in turns)


def _separate(n_folds: int) -> Layout:
    """Data sets of their own for each fold."""
    names = [f"fold{number}" for number in range(1, n_folds + 1)]
    return tuple(([f"{name}-train"], f"{name}-valid", f"{name}-test") for name in names)


def folds_of(data: Any, **reading: Any) -> Folds:
    """The folds of a folder of folds, of a file, table or data set (split by query), or as given."""
    if isinstance(data, Folds):
        return data
    if isinstance(data, (str, os.PathLike)):
        path = as_path(data, "data")
        if is_folder_of_folds(path):
            return FolderFolds(path.resolve().name, str(path), reading)
        return _split(read(path, **reading), path.name, {"file": str(path.resolve()), "options": _for_json(reading)})
    data = load_stream(data)
    if is_table(data):
        return _split(read(data, **reading), "data", {})
    if reading:
        expected = "data that have yet to be read: a file or a table"
        raise ParameterError(argument=next(iter(reading)), expected=expected, got=type(data).__name__)
    if isinstance(data, RankingDataset):
        return _split(data, "data", {})
    given = data if isinstance(data, Sequence) else [data]
    for fold in given or [given]:
        if not (isinstance(fold, Sequence) and len(fold) == 3 and all(isinstance(d, RankingDataset) for d in fold)):
            expected = (
                "a folder of folds, a file, a table, a RankingDataset, or a list of (train, valid, test) data sets"
            )
            raise ParameterError(argument="data", expected=expected, got=type(fold).__name__)
    layout = _separate(len(given))
    names = [name for train, valid, test in layout for name in (*train, valid, test)]
    return PartFolds("data", dict(zip(names, (part for fold in given for part in fold), strict=True)), layout)


def test_only(name: str, data: RankingDataset) -> PartFolds:
    """One fold of test data alone, for systems that are not trained here."""
    return PartFolds(name, {"test": data}, ((["test"], "test", "test"),))


def kept_folds(source: dict[str, Any], folder: Path) -> Folds | None:
    """The folds that ``folds_of`` returned before, from their description and the parts that were kept in a folder."""
    if "folder" in source:
        options = dict(source["options"])
        columns = {"columns": Columns(**options["columns"])} if options.get("columns") else {}
        return FolderFolds(Path(source["folder"]).resolve().name, source["folder"], options | columns)
    parts = {file.stem: str(file) for file in folder.glob("*.tierank")}
    layout = _rotated() if "part1" in parts else _separate(sum(name.endswith("-train") for name in parts))
    is_whole = all({*train, valid, test} <= parts.keys() for train, valid, test in layout)
    return PartFolds("data", parts, layout, source) if layout and is_whole else None


def check_tests(number: int, fold: Fold) -> None:
    """Refuse test queries that are all trained on; warn if some are, or if validation data choose by them."""
    train, valid, test = fold
    trained, validated = (share_seen(part, test) for part in (train, valid))
    if trained == 1:
        raise DataError(
            where=f"fold {number + 1}",
            argument="data",
            expected="test queries that are not trained on",
            got="training queries only, by their documents and ratings",
            fix="give other test data; `evaluate` shows how well training data are learned",
        )
    for share, part in ((trained, "training"), (validated, "validation")):
        if share:
            warnings.warn(
                f"fold {number + 1}: {share:.0%} of the test queries are {part} queries, by their documents and"
                " ratings: the results are too good; give other test data",
                stacklevel=3,
            )


def _for_json(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``read`` as plain values."""
    return {name: one.to_json() if isinstance(one, Columns) else one for name, one in options.items()}


def _split(data: RankingDataset, name: str, source: dict[str, Any]) -> PartFolds:
    if data.n_queries < N_FOLDS:
        expected = f"at least {N_FOLDS} queries, one for each part"
        raise DataError(where=name, expected=expected, got=str(data.n_queries))
    parts = {f"part{i}": part for i, part in enumerate(data.split(*[1 / N_FOLDS] * N_FOLDS), 1)}
    return PartFolds(name, parts, _rotated(), source)
