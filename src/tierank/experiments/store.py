"""The folder of a run: its plan, the test data, and the results of each system, fold and seed.

    run.json                          the plan: data, folds, seeds, rule, metrics, systems and their settings, versions
    folds/fold1.tierank               ratings, query and document ids of the test data; no features
    results/<system>/fold1-seed0/     result.json, scores.npy, and the model that gave them
    parts/                            the data, where they were cut here or came from memory

All tables, plots and tests are made from these files, so that a later run can add rows to the table.
"""

from __future__ import annotations

import hashlib
import json
import platform
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import numpy as np

from tierank import __version__, files
from tierank.arrays import Floats, Rows, chunks
from tierank.data.columns import kinds_to_json
from tierank.data.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.experiments.folds import Folds, check_tests
from tierank.io import read, write
from tierank.metrics.description import describe
from tierank.metrics.rules import Rule
from tierank.rankers.base import Ranker
from tierank.rankers.folder import Known, decode, encode

RUN_FORMAT = 2
PLAN_FILE = "run.json"
# "lightgbm" is the protocol of the last table of the paper: the number of trees is chosen on the test data.
PROTOCOLS = ("standard", "lightgbm")
_SHOWN_VERSIONS = ("lightgbm", "numba", "numpy", "scikit-learn", "scipy", "torch")

# What must be the same in a run and in additions to it, and its name in messages.
_FIXED = {"folds": "data", "learned_from": "training data", "protocol": "protocol"}
# The longest name of a file on common file systems, in bytes.
_LONGEST = 255
_TO_MEND = "delete its folder, and run the same cv again"

# The forms of values in JSON: a type or several, a list of values of a form, or a dict with these names; "..." is any.
_ATTRIBUTE = {"name": str, "values": list, "codes": [int]}
_PLAN: dict[str, Any] = {
    "kind": str,
    "created": str,
    "data": {"name": str, "source": dict, "description": dict},
    "folds": [str],
    "learned_from": [[str]],
    "protocol": str,
    "paper": (str, type(None)),
    "rule": (str, dict),
    "metrics": [str],
    "seeds": [int],
    "baseline": (str, type(None)),
    "systems": {...: dict},
    "attributes": [_ATTRIBUTE],
    "versions": {...: str},
}
_RESULT_FIELDS: dict[str, Any] = {"cpu_seconds": (int, float), "history": [dict], "best": dict}


def _has_form(value: Any, form: Any) -> bool:
    """Whether a value from JSON has one of the forms above."""
    if isinstance(form, list):
        return isinstance(value, list) and all(_has_form(one, form[0]) for one in value)
    if not isinstance(form, dict):
        return type(value) in (form if isinstance(form, tuple) else (form,))
    if not isinstance(value, dict) or (... not in form and value.keys() != form.keys()):
        return False
    return all(_has_form(one, form.get(name, form.get(...))) for name, one in value.items())


class DataOrigin(NamedTuple):
    """The data of a run: their name, origin, and description by ``describe``."""

    name: str
    source: dict[str, Any]
    description: dict[str, Any]


_UNREAD = DataOrigin("data", {}, {})


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What is run, on which data: the content of ``run.json``. ``Store.prepare`` fills in all about the data."""

    kind: str  # "cv" or "compare"
    systems: Mapping[str, dict[str, Any]]  # with their settings, by name
    seeds: Sequence[int]
    metrics: Sequence[str]
    rule: str | Rule
    baseline: str | None
    protocol: str = "standard"
    paper: str | None = None
    attributes: Sequence[dict[str, Any]] = ()  # of the queries: name, values, and the code of each query
    data: DataOrigin = _UNREAD
    folds: Sequence[str] = ()  # the digest of the test data of each fold
    learned_from: Sequence[Sequence[str]] = ()  # the digests of its training and validation data
    created: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The plan of the run in a folder."""
        file = folder / PLAN_FILE
        if not file.is_file():
            raise DataError(where=folder, expected=f"the folder of a run, with {PLAN_FILE} in it", got="none")
        try:
            content = files.read_json(file)
        except ValueError:
            content = None
        content = content if isinstance(content, dict) else {}
        if content.get("format", RUN_FORMAT) != RUN_FORMAT:
            fix = "use the tierank that wrote it"
            raise DataError(where=file, expected=f"format {RUN_FORMAT}", got=f"{content['format']!r}", fix=fix)
        values: dict[str, Any] = {name: content.get(name) for name in _PLAN}
        if not (
            _has_form(values, _PLAN)
            and all(values[name] for name in ("folds", "metrics", "seeds"))
            and values["protocol"] in PROTOCOLS
            and all(-1 <= code < len(one["values"]) for one in values["attributes"] for code in one["codes"])
        ):
            raise DataError(where=file, expected="the description of a run", got="a damaged file")
        return cls(**values | {"data": DataOrigin(**values["data"]), "rule": decode(values["rule"], Known())})

    def write(self, folder: Path) -> None:
        """Write ``run.json`` atomically."""
        with files.replacing(folder / PLAN_FILE) as fresh:
            fresh.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON: the content of ``run.json``."""
        values = {name: getattr(self, name) for name in _PLAN}
        return {"format": RUN_FORMAT} | values | {"data": self.data._asdict(), "rule": encode(self.rule, "rule")}

    def added_to(self, old: RunPlan, folder: Path, started: Collection[str]) -> RunPlan:
        """The plan of an older run with this one added. Raises ``DataError`` if the two cannot be combined.

        ``started`` are the systems that already have results: their settings can no longer change.
        """
        for name, what in _FIXED.items():
            if getattr(old, name) != getattr(self, name):
                expected = f"a run of the same {what}"
                raise DataError(where=folder, expected=expected, got="one of another", fix="choose another folder")
        for system in self.systems:
            differences = self.differences(old, system)
            if differences and system in started:
                fix = "give the new one another name, or choose another folder"
                expected, got = f"{system!r} with the settings of its results", f"others of {', '.join(differences)}"
                raise DataError(where=folder, expected=expected, got=got, fix=fix)
        now, before = self.versions, old.versions
        others = [f"{n} {before.get(n, '(none)')}, now {now[n]}" for n in now if before.get(n) != now[n]]
        if started and others:
            warnings.warn(
                f"{folder}: has results of other versions, which are kept: {'; '.join(others)}. A table that mixes"
                " versions may show their differences; choose another folder to start over",
                stacklevel=2,
            )
        return replace(
            self,
            created=old.created,
            seeds=sorted({*old.seeds, *self.seeds}),
            systems={**old.systems, **self.systems},
            baseline=self.baseline or old.baseline,
            paper=self.paper or old.paper,
        )

    def differences(self, old: RunPlan, system: str) -> list[str]:
        """How a system differs from the one of the same name in an older plan: in which settings, and in which code."""
        now = self.systems.get(system, {})
        before = old.systems.get(system, now)
        found: list[str] = []
        for name in {**before, **now}:
            one, other = before.get(name), now.get(name)
            if one == other or name == "sources":  # for people to read
                continue
            if name not in ("settings", "code"):
                found.append(name)
                continue
            one, other = one or {}, other or {}
            for inner in {**one, **other}:
                a, b = one.get(inner), other.get(inner)
                is_code = isinstance(a, dict) and isinstance(b, dict) and a.get("object") == b.get("object")
                if a != b:
                    found.append(f"{inner} (its code has changed)" if name == "code" or is_code else inner)
        return found


def digest_data(data: RankingDataset) -> str:
    """A digest that identifies a data set: everything that models learn from, and the query ids."""
    digest = hashlib.sha256()
    for array in (data.ratings, data.offsets, np.array([str(i) for i in data.query_ids.tolist()])):
        digest.update(np.ascontiguousarray(array).tobytes())
    for chunk in chunks(data.features):
        digest.update(np.ascontiguousarray(chunk).tobytes())
    for name in ("row_weight", "query_weight", "position", "propensity"):
        values = getattr(data, name)
        if values is not None:
            digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
    if data.kinds:  # other texts may have the same level numbers
        digest.update(json.dumps(kinds_to_json(data.kinds), sort_keys=True).encode())
    return digest.hexdigest()


class Cell(NamedTuple):
    """One system, one fold (from 0), one seed."""

    system: str
    fold: int
    seed: int

    def __str__(self) -> str:
        return f"{self.system}, fold {self.fold + 1}, seed {self.seed}"


class _ResultKind(files.FolderKind):
    """Results, including those without a description, which are computed again."""

    def is_in(self, folder: Path) -> bool:
        """Whether the folder has the description, or the scores."""
        return super().is_in(folder) or (folder / "scores.npy").is_file()


_RESULT = _ResultKind("a result of a run", "result.json")


@contextmanager
def sole_user(path: Path, kind: str, expected: str) -> Iterator[None]:
    """Lock a ``kind``: a file or folder. Raises ``DataError`` if another process has it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(files.locked(path))
        except (BlockingIOError, FileNotFoundError):
            got, fix = "one that another process is adding to", f"wait until it ends, or choose another {kind}"
            raise DataError(where=path, expected=expected, got=got, fix=fix) from None
        yield


@dataclass(frozen=True)
class Store:
    """Reads and writes the files of a run. Results are written atomically."""

    folder: Path

    def check(self) -> None:
        """Raise ``DataError`` if the folder holds anything but a run."""
        if (self.folder / PLAN_FILE).exists() or not self.folder.is_dir():
            return
        other = min((path.name for path in files.contents(self.folder)), default=None)
        if other is not None:
            expected = f"a new folder, or one with a run ({PLAN_FILE})"
            got = f"one with other files, such as {other}"
            raise DataError(where=self.folder, expected=expected, got=got, fix="choose another name")

    @contextmanager
    def held(self) -> Iterator[None]:
        """The folder, created if necessary, and locked: two processes would overwrite each other's plan."""
        self.check()
        files.make_folder(self.folder)
        with sole_user(self.folder, "folder", "a run that nobody is working on"):
            try:
                yield
            finally:
                with suppress(OSError):
                    self.folder.rmdir()  # only if nothing was written

    def prepare(
        self, plan: RunPlan, folds: Folds, name: str | None = None
    ) -> tuple[RunPlan, list[RankingDataset], list[str]]:
        """The plan with all about the data, added to that of an existing run; the test data, without features; and the
        systems that were planned before with other settings, and have no result yet.

        Nothing is written, so an existing run is not changed if this plan cannot be added to it. The test data know the
        caller's order of rows, which is that of given scores.
        """
        digests, tests = [], []
        for fold in range(folds.n_folds):
            data = folds.read(fold)
            if any("ranker" in system for system in plan.systems.values()):
                check_tests(fold, data)
            digests.append([digest_data(part) for part in data])
            tests.append(_without_features(data[2], data[2].source_rows))
            if fold == 0:  # with five folds, the three parts of any fold are all of the data
                whole = RankingDataset.concat(data) if folds.n_folds > 1 else data[0]
                description = describe(whole).to_dict()
        versions = {"tierank": __version__, "python": platform.python_version()}
        for library in _SHOWN_VERSIONS:
            with suppress(PackageNotFoundError):  # not installed, or not installed by pip
                versions[library] = version(library)
        plan = replace(
            plan,
            data=DataOrigin(name or folds.name, folds.describe(), description),
            folds=[test for *_, test in digests],
            learned_from=[learned for *learned, _ in digests],
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=versions,
        )
        if not (self.folder / PLAN_FILE).exists():
            return plan, tests, []
        old = RunPlan.read(self.folder)
        started = [system for system in old.systems if any(self._places(system).glob("fold*/result.json"))]
        renewed = [system for system in plan.systems if plan.differences(old, system)]
        return plan.added_to(old, self.folder, started), tests, renewed

    def begin(self, plan: RunPlan, tests: Sequence[RankingDataset], renewed: Collection[str]) -> None:
        """Write the plan, and the test data that are missing or damaged; remove what killed runs left.

        That is: unfinished files, and the checkpoints and trials that will not be continued, as their cell is done or
        their system renewed.
        """
        plan.write(self.folder)
        files.make_folder(self.folder / "folds")
        for fold, test in enumerate(tests):
            try:
                self.read_test(fold)
            except DataError:
                files.remove_folder(self._test_file(fold))
                write(_without_features(test), self._test_file(fold))
        for folder in (self.folder / "folds", self.folder / "parts", *map(self._places, plan.systems)):
            files.sweep(folder)
        for system in plan.systems:
            for cell in (Cell(system, fold, seed) for fold in range(len(tests)) for seed in plan.seeds):
                if system in renewed or self.is_done(cell):
                    self.clear_scratch(cell)

    def read_test(self, fold: int) -> RankingDataset:
        """The test data of a fold, without features."""
        file = self._test_file(fold)
        if not file.is_dir():
            expected = "the test data of the run"
            raise DataError(where=file, expected=expected, got="nothing there", fix="run the same cv again")
        return read(file)

    def is_done(self, cell: Cell) -> bool:
        """Whether there is a result."""
        return (self.place(cell) / _RESULT.file).is_file()

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
            raise DataError(where=file, expected="scores", got=got, fix=_TO_MEND)
        if scores.shape != (n_documents,):
            raise DataError(where=file, expected=f"{n_documents} scores", got=f"{scores.shape}", fix=_TO_MEND)
        return scores

    def result(self, cell: Cell) -> dict[str, Any]:
        """The description of a result: ``history``, ``best``, ``cpu_seconds``, ``settings``."""
        file = self.place(cell) / _RESULT.file
        try:
            result = json.loads(file.read_text(encoding="utf-8"))  # metrics may be NaN
        except (ValueError, OSError, RecursionError):
            result = None
        forms = _RESULT_FIELDS.items()
        if not isinstance(result, dict) or not all(_has_form(result[n], form) for n, form in forms if n in result):
            expected = "the description of a result"
            raise DataError(where=file, expected=expected, got="a damaged file", fix=_TO_MEND)
        return result

    def scratch(self, cell: Cell) -> tuple[Path, Path]:
        """Where an unfinished cell has its checkpoint (a folder) and its trials (a file)."""
        place = self.place(cell)
        return place.with_name(f".{place.name}.checkpoint"), place.with_name(f".{place.name}.study")

    def clear_scratch(self, cell: Cell) -> None:
        """Remove the checkpoint and the trials of a cell."""
        checkpoint, study = self.scratch(cell)
        files.remove_folder(checkpoint)
        study.unlink(missing_ok=True)

    def write(self, cell: Cell, scores: Floats, result: dict[str, Any], ranker: Ranker | None = None) -> None:
        """Add a result atomically."""
        place = self.place(cell)
        files.make_folder(place.parent)
        with files.building(place, _RESULT) as fresh:
            np.save(fresh / "scores.npy", scores, allow_pickle=False)
            if ranker is not None:
                ranker.save(fresh / "model")
            # Callers' own rankers may hold NumPy numbers.
            (fresh / _RESULT.file).write_text(json.dumps(result, default=float), encoding="utf-8")

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
