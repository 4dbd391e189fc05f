"""The folder of a run: its plan, the test data, and the results of each system, fold and seed.

    run.json                          the plan: data, folds, seeds, rule, metrics, systems and their settings, versions
    folds/fold1.tierank               ratings, query and document ids of the test data; no features
    results/<system>/fold1-seed0/     result.json, scores.npy, and the model that gave them
    parts/                            the data, where they were cut here or came from memory

All tables, plots and tests are made from these files, so that a later run can add rows to the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from tierank.dataset import RankingDataset
from tierank.errors import DataError
from tierank.experiments.folds import Folds
from tierank.experiments.plan import PLAN_FILE, DataOrigin, Design, Plan, describe_data, digest_data, make_plan
from tierank.files import FolderKind, building, make_folder, remove_folder, sweep
from tierank.rankers import Ranker, load
from tierank.readers import read, write
from tierank.types import Floats

_TO_MEND = "delete its folder, and run the same cv again"


class Cell(NamedTuple):
    """One system, one fold (from 0), one seed."""

    system: str
    fold: int
    seed: int

    def __str__(self) -> str:
        return f"{self.system}, fold {self.fold + 1}, seed {self.seed}"


class _ResultKind(FolderKind):
    """Results, including those without a description, which are computed again."""

    def is_in(self, folder: Path) -> bool:
        """Whether the folder has the description, or the scores."""
        return super().is_in(folder) or (folder / "scores.npy").is_file()


_RESULT = _ResultKind("a result of a run", "result.json")


@dataclass(frozen=True)
class Store:
    """Reads and writes the files of a run. Results are written atomically."""

    folder: Path

    def prepare(self, design: Design, folds: Folds, name: str | None = None) -> Plan:
        """The plan of a new run, or the plan of the existing run with this design added.

        An existing run is not changed if this design cannot be added to it.
        """
        is_new = not (self.folder / PLAN_FILE).exists()
        if is_new and (self.folder / "results").exists():
            raise DataError(
                f"{self.folder}: expected a new folder, or one with a {PLAN_FILE}, got results alone; choose another"
            )
        digests = []
        for fold in range(folds.n_folds):
            data = folds.read(fold)
            digests.append([digest_data(part) for part in data])
            if fold == 0:
                description = describe_data(data, folds.n_folds)
            if is_new:  # leftovers of a run that ended before it had a plan may be of other data
                self._write_test(fold, data[2])
        plan = make_plan(design, DataOrigin(name or folds.name, folds.describe(), description), digests)
        if is_new:
            return plan
        old = Plan.read(self.folder)
        return plan.added_to(old, self.folder, [system for system in old.systems if self.has_results(system)])

    def read_test(self, fold: int) -> RankingDataset:
        """The test data of a fold, without features."""
        return read(self._test_file(fold))

    def is_done(self, cell: Cell) -> bool:
        """Whether there is a result."""
        return (self.place(cell) / "result.json").is_file()

    def has_results(self, system: str) -> bool:
        """Whether a system has any result."""
        return any(self._places(system).glob("fold*/result.json"))

    def place(self, cell: Cell) -> Path:
        """The folder of a result."""
        return self._places(cell.system) / f"fold{cell.fold + 1}-seed{cell.seed}"

    def scores(self, cell: Cell, n_documents: int) -> Floats:
        """The scores of the test documents, in the order of the data set."""
        file = self.place(cell) / "scores.npy"
        try:
            scores = np.asarray(np.load(file, allow_pickle=False), np.float64)
        except (ValueError, EOFError):
            raise DataError(f"{file}: expected scores, got a damaged file; {_TO_MEND}") from None
        if scores.shape != (n_documents,):
            raise DataError(f"{file}: expected {n_documents} scores, got {scores.shape}")
        return scores

    def result(self, cell: Cell) -> dict[str, Any]:
        """The description of a result: ``history``, ``best``, ``cpu_seconds``, ``settings``."""
        file = self.place(cell) / "result.json"
        try:
            return dict(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise DataError(f"{file}: expected the description of a result, got a damaged file; {_TO_MEND}") from None

    def model(self, cell: Cell) -> Path | None:
        """The folder of the model, or None if only scores were given."""
        folder = self.place(cell) / "model"
        return folder if folder.is_dir() else None

    def ranker(self, cell: Cell) -> Ranker | None:
        """The fitted ranker, or None if only scores were given."""
        folder = self.model(cell)
        return None if folder is None else load(folder)

    def scratch(self, cell: Cell) -> tuple[Path, Path]:
        """Where an unfinished cell has its checkpoint (a folder) and its trials (a file)."""
        place = self.place(cell)
        return place.with_name(f".{place.name}.checkpoint"), place.with_name(f".{place.name}.study")

    def clear_scratch(self, cell: Cell) -> None:
        """Remove the checkpoint and the trials of a cell."""
        checkpoint, study = self.scratch(cell)
        remove_folder(checkpoint)
        study.unlink(missing_ok=True)

    def clear_up(self, cells: Iterable[Cell], systems: Iterable[str]) -> None:
        """Remove what killed runs left: partial results of these systems, and scratch files of these cells."""
        for system in systems:
            sweep(self._places(system))
        for cell in cells:
            self.clear_scratch(cell)

    def write(self, cell: Cell, scores: Floats, result: dict[str, Any], ranker: Ranker | None = None) -> None:
        """Add a result atomically."""
        place = self.place(cell)
        make_folder(place.parent)
        with building(place, _RESULT) as fresh:
            np.save(fresh / "scores.npy", scores, allow_pickle=False)
            if ranker is not None:
                ranker.save(fresh / "model")
            # Callers' own rankers may hold NumPy numbers.
            (fresh / "result.json").write_text(json.dumps(result, default=float), encoding="utf-8")

    def _write_test(self, fold: int, test: RankingDataset) -> None:
        """Store what evaluation needs of the test data, in the order of the data set."""
        kept = RankingDataset.from_parts(
            np.zeros((test.n_documents, 1), np.float32),
            test.ratings,
            test.offsets,
            test.query_ids,
            document_texts=test.document_texts,
        )
        make_folder(self.folder / "folds")
        write(kept, self._test_file(fold))

    def _test_file(self, fold: int) -> Path:
        return self.folder / "folds" / f"fold{fold + 1}.tierank"

    def _places(self, system: str) -> Path:
        return self.folder / "results" / quote(system, safe=" +,=()")
