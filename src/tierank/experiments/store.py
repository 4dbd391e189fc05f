"""The folder of a run: its plan, the test data, and the results of each system, fold and seed.

    run.json                          the plan: data, folds, seeds, rule, metrics, systems and their settings, versions
    folds/fold1.tierank               ratings, query and document ids of the test data; no features
    results/<system>/fold1-seed0/     result.json, scores.npy, and the model that gave them
    parts/                            the data, where they were cut here or came from memory

All tables, plots and tests are made from these files, so that a later run can add rows to the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.experiments.folds import Folds
from tierank.experiments.plan import PLAN_FILE, DataOrigin, Design, Plan, describe_data, digest_data, make_plan
from tierank.files import FolderKind, building, contents, locked, make_folder, remove_folder, sweep
from tierank.rankers import Ranker, load
from tierank.readers import read, write
from tierank.types import Floats, Rows

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
# The fields of a result, which may be absent, and whether a value in JSON has their form.
_RESULT_FORMS: dict[str, Callable[[Any], bool]] = {
    "cpu_seconds": lambda value: isinstance(value, (int, float)),
    "history": lambda value: isinstance(value, list) and all(isinstance(row, dict) for row in value),
    "best": lambda value: isinstance(value, dict),
}
# The longest name of a file on common file systems, in bytes.
_LONGEST = 255


@dataclass(frozen=True)
class Store:
    """Reads and writes the files of a run. Results are written atomically."""

    folder: Path

    def check(self) -> None:
        """Raise ``DataError`` if the folder holds anything but a run."""
        if (self.folder / PLAN_FILE).exists() or not self.folder.is_dir():
            return
        other = min((path.name for path in contents(self.folder)), default=None)
        if other is not None:
            raise DataError(
                f"{self.folder}: expected a new folder, or one with a run ({PLAN_FILE}), got one with other files, such"
                f" as {other}; choose another name"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """The folder, created if necessary, and locked: two processes would overwrite each other's plan."""
        self.check()
        make_folder(self.folder)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.folder))
            except (BlockingIOError, FileNotFoundError):
                raise DataError(
                    f"{self.folder}: expected a run that nobody is working on, got one that another process is adding"
                    " to; wait until it ends, or choose another folder"
                ) from None
            try:
                yield
            finally:
                with suppress(OSError):
                    self.folder.rmdir()  # only if nothing was written

    def prepare(self, design: Design, folds: Folds, name: str | None = None) -> tuple[Plan, list[RankingDataset]]:
        """The plan of a new run, or of the existing run with this design added; and the test data, without features.

        Nothing is written, so an existing run is not changed if this design cannot be added to it. The test data know
        the caller's order of rows, which is that of given scores.
        """
        digests, tests = [], []
        for fold in range(folds.n_folds):
            data = folds.read(fold)
            digests.append([digest_data(part) for part in data])
            tests.append(_without_features(data[2], data[2].source_rows))
            if fold == 0:
                description = describe_data(data, folds.n_folds)
        plan = make_plan(design, DataOrigin(name or folds.name, folds.describe(), description), digests)
        if (self.folder / PLAN_FILE).exists():
            old = Plan.read(self.folder)
            plan = plan.added_to(old, self.folder, [system for system in old.systems if self.has_results(system)])
        return plan, tests

    def begin(self, plan: Plan, tests: Sequence[RankingDataset]) -> None:
        """Write the plan, and the test data that are missing or damaged."""
        plan.write(self.folder)
        make_folder(self.folder / "folds")
        for fold, test in enumerate(tests):
            try:
                self.read_test(fold)
            except DataError:
                remove_folder(self._test_file(fold))
                write(_without_features(test), self._test_file(fold))

    def read_test(self, fold: int) -> RankingDataset:
        """The test data of a fold, without features."""
        file = self._test_file(fold)
        if not file.is_dir():
            raise DataError(f"{file}: expected the test data of the run, got nothing there; run the same cv again")
        return read(file)

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
            scores = np.load(file, allow_pickle=False)
        except (ValueError, EOFError, OSError):
            scores = None
        if not isinstance(scores, np.ndarray) or scores.dtype != np.float64 or np.isnan(scores).any():
            got = "a damaged file" if file.exists() else "nothing there"
            raise DataError(f"{file}: expected scores, got {got}; {_TO_MEND}")
        if scores.shape != (n_documents,):
            raise DataError(f"{file}: expected {n_documents} scores, got {scores.shape}; {_TO_MEND}")
        return scores

    def result(self, cell: Cell) -> dict[str, Any]:
        """The description of a result: ``history``, ``best``, ``cpu_seconds``, ``settings``."""
        file = self.place(cell) / _RESULT.file
        try:
            result = json.loads(file.read_text(encoding="utf-8"))  # metrics may be NaN
        except (ValueError, OSError, RecursionError):
            result = None
        forms = _RESULT_FORMS.items()
        if not isinstance(result, dict) or not all(fits(result[name]) for name, fits in forms if name in result):
            raise DataError(f"{file}: expected the description of a result, got a damaged file; {_TO_MEND}")
        return result

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
        """Remove what killed runs left: unfinished files, also of these systems, and scratch files of these cells."""
        for folder in (self.folder / "folds", self.folder / "parts", *map(self._places, systems)):
            sweep(folder)
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

    def _test_file(self, fold: int) -> Path:
        return self.folder / "folds" / f"fold{fold + 1}.tierank"

    def _places(self, system: str) -> Path:
        return self.folder / "results" / _folder_name(system)


def check_system(name: Any) -> str:
    """The name of a system. Raises ``ParameterError`` if its results could not be stored under it."""
    try:
        fits = isinstance(name, str) and name.strip() != "" and len(_folder_name(name)) <= _LONGEST
    except UnicodeEncodeError:
        fits = False
    if not fits:
        expected = f"names of systems that are texts, not empty, and short enough for a file name ({_LONGEST} bytes)"
        raise ParameterError(expected=expected, got=f"{name!r:.100}")
    return str(name)


def _folder_name(system: str) -> str:
    quoted = quote(system, safe=" +,=()")
    return quoted if not quoted.startswith(".") else f"%2E{quoted[1:]}"


def _without_features(test: RankingDataset, source_rows: Rows | None = None) -> RankingDataset:
    """What evaluation needs of the test data; by default, rows are in the order of the data set, as stored scores."""
    return RankingDataset.from_parts(
        np.zeros((test.n_documents, 1), np.float32),
        test.ratings,
        test.offsets,
        test.query_ids,
        source_rows=source_rows,
        document_texts=test.document_texts,
    )
