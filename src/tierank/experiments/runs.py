"""The folder of an experiment: what was asked for, the test data, and a piece for each system, fold and seed.

    run.json                          data, folds, seeds, rule, metrics, systems and their settings, versions
    folds/fold1.tierank               ratings, query and document ids of the test data; no features
    pieces/<system>/fold1-seed0/      piece.json, scores.npy, and the model that gave them
    parts/                            the data, where they were cut here or came from memory

Everything that is printed, drawn or tested comes from these files, so that a later run can add rows to the table.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import numpy as np

from tierank import __version__
from tierank.dataset import RankingDataset, Texts
from tierank.description import describe
from tierank.errors import DataError, ParameterError
from tierank.evaluation import Comparison, Evaluation, compare_evaluations
from tierank.experiments.folds import Folds, found_folds
from tierank.files import Mark, building, make_folder, remove_folder, replacing, sweep
from tierank.metrics import Judge, Rule, as_rule
from tierank.models import Known, decode, encode
from tierank.rankers import Ranker, load
from tierank.readers import read, write
from tierank.types import Floats

RUN_FORMAT = 1
# The paper's layout.
PAPER_METRICS = tuple(f"{name}@{k}" for k in (1, 3, 5, 10) for name in ("ndcg", "err"))
_TO_MEND = "delete the folder it is in, and the same cv makes it again"
_SHOWN_VERSIONS = ("lightgbm", "numba", "numpy", "scikit-learn", "scipy", "torch")

# What run.json says of a system to be read by people, beside what it is.
_TOLD = ("sources",)

# What run.json must hold to be worked with; None where any form will do.
_PARTS: dict[str, type | None] = {
    "format": int,
    "kind": str,
    "data": dict,
    "folds": list,
    "protocol": str,
    "paper": None,
    "rule": None,
    "metrics": list,
    "seeds": list,
    "baseline": None,
    "systems": dict,
}


@dataclass(frozen=True)
class Plan:
    """What is asked of a run: the systems by name with their settings, and how they are judged."""

    kind: str
    systems: Mapping[str, dict[str, Any]]
    seeds: Sequence[int]
    metrics: Sequence[str]
    rule: str | Rule
    baseline: str | None
    protocol: str = "standard"
    paper: str | None = None
    name: str | None = None  # of the data; None: that of the file or folder


class _PieceMark(Mark):
    """Pieces of a run, also those that miss their description: they are made again."""

    def is_in(self, folder: Path) -> bool:
        """Whether the folder has the description, or the scores."""
        return super().is_in(folder) or (folder / "scores.npy").is_file()


_PIECE = _PieceMark("a piece of a run", "piece.json")


class Tidy(NamedTuple):
    """One number a row; ``pandas.DataFrame(tidy._asdict())`` makes a table of it."""

    system: list[str]
    fold: list[int]
    seed: list[int]
    metric: list[str]
    value: list[float]


class Run:
    """An experiment that is kept in a folder: ``cross_validate`` makes one, ``Run.open`` reads one.

    ``folder``, ``kind`` (``"cv"``, ``"compare"`` or ``"demo"``), ``systems``, ``baseline``, ``metrics``, ``rule``,
    ``seeds`` and ``n_folds`` say what it holds, ``about`` all of ``run.json``. Folds count from 0.
    """

    def __init__(self, folder: Path, about: dict[str, Any], renewed: Sequence[str] = ()) -> None:
        """``renewed`` are systems that were asked for before, with other settings, and have no piece yet."""
        self.folder, self.about, self._renewed = folder, about, renewed

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """The run of a folder."""
        path = Path(folder)
        file = path / "run.json"
        if not file.is_file():
            raise DataError(f"{path}: expected the folder of a run, with run.json in it, got none")
        try:
            about = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            about = None
        if isinstance(about, dict) and about.get("format", RUN_FORMAT) != RUN_FORMAT:
            raise DataError(
                f"{file}: expected format {RUN_FORMAT}, got {about['format']!r}; use the tierank that wrote it"
            )
        if not _is_whole(about):
            raise DataError(f"{file}: expected the description of a run, got a damaged file")
        return cls(path, about)

    @classmethod
    def prepare(cls, folder: Path, folds: Folds, plan: Plan) -> Self:
        """A new run, or the one of the folder with what is planned beside what it has; ``write`` makes it so.

        Until then nothing of a run that is there is changed: one that does not belong to this plan stays as it is.
        """
        is_new = not (folder / "run.json").exists()
        if is_new and (folder / "pieces").exists():
            raise DataError(
                f"{folder}: expected a new folder, or one with a run.json, got pieces without; choose another"
            )
        digests = []
        for fold in range(folds.n_folds):
            data = folds.read(fold)
            digests.append([_digest(part) for part in data])
            if is_new:  # what a run left that ended before it had a run.json may be of other data
                _write_test(_test_file(folder, fold), data[2])
        about = _planned(plan, folds, digests)
        if is_new:
            return cls(folder, about)
        old = cls.open(folder)
        return cls(folder, _merged(old, about), [name for name in plan.systems if _differences(old, about, name)])

    def judged_by(
        self, metrics: Sequence[str] | None = None, rule: str | Rule | None = None, baseline: str | None = None
    ) -> Run:
        """The same scores judged by other metrics, by another rule, or against another baseline; None: as they were."""
        if baseline is not None and baseline not in self.systems:
            raise ParameterError.unknown("baseline", baseline, self.systems)
        changes = {
            "metrics": None if metrics is None else list(metrics),
            "rule": None if rule is None else encode(as_rule(rule), "rule"),
            "baseline": baseline,
        }
        return Run(self.folder, self.about | {name: value for name, value in changes.items() if value is not None})

    def write(self) -> None:
        """Write ``run.json``, whole or not at all."""
        with replacing(self.folder / "run.json") as fresh:
            fresh.write_text(json.dumps(self.about, indent=1, allow_nan=False), encoding="utf-8")

    # What it holds

    @property
    def kind(self) -> str:
        """What made it."""
        return str(self.about["kind"])

    @property
    def systems(self) -> tuple[str, ...]:
        """The systems that have results for every fold, in the order in which they were asked for."""
        return tuple(system for system in self.about["systems"] if self.seeds_of(system))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(self.about["seeds"])

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is measured."""
        return tuple(self.about["metrics"])

    @cached_property
    def rule(self) -> Rule:
        """By which rule."""
        return as_rule(decode(self.about["rule"], Known()))

    @property
    def n_folds(self) -> int:
        """How many folds there are."""
        return len(self.about["folds"])

    @property
    def baseline(self) -> str:
        """What the others are compared to: what was chosen, or the first system."""
        chosen = self.about["baseline"]
        return str(chosen) if chosen in self.systems else self.systems[0]

    @cached_property
    def tests(self) -> list[RankingDataset]:
        """The test data of each fold, without features."""
        return [read(_test_file(self.folder, fold)) for fold in range(self.n_folds)]

    def read_test(self, fold: int) -> RankingDataset | None:
        """The test data of a fold with features, or None where they are no longer there."""
        found = self.read_fold(fold)
        return None if found is None else found[2]

    def read_fold(self, fold: int) -> tuple[RankingDataset, RankingDataset, RankingDataset] | None:
        """The data of a fold, or None where they are no longer there, or are no longer the same."""
        folds = found_folds(self.about["data"]["source"], self.folder / "parts")
        try:
            found = None if folds is None else folds.read(fold)
        except (DataError, ParameterError):
            return None
        return found if found is not None and _digest(found[2]) == self.about["folds"][fold] else None

    def seeds_of(self, system: str) -> tuple[int, ...]:
        """The seeds that a system has results for, in every fold."""
        return tuple(
            seed for seed in self.seeds if all(self.is_done(system, fold, seed) for fold in range(self.n_folds))
        )

    def is_done(self, system: str, fold: int, seed: int) -> bool:
        """Whether a piece is there; a piece is written whole or not at all."""
        return (self.place(system, fold, seed) / "piece.json").is_file()

    def has_pieces(self, system: str) -> bool:
        """Whether any piece of a system is there."""
        return any(self._places(system).glob("fold*/piece.json"))

    def place(self, system: str, fold: int, seed: int) -> Path:
        """The folder of a piece."""
        return self._places(system) / f"fold{fold + 1}-seed{seed}"

    def scores(self, system: str, fold: int, seed: int) -> Floats:
        """The scores of a system for the test documents of a fold."""
        file = self.place(system, fold, seed) / "scores.npy"
        try:
            scores = np.asarray(np.load(file, allow_pickle=False), np.float64)
        except (ValueError, EOFError):
            raise DataError(f"{file}: expected scores, got a damaged file; {_TO_MEND}") from None
        if scores.shape != (self.tests[fold].n_documents,):
            raise DataError(f"{file}: expected {self.tests[fold].n_documents} scores, got {scores.shape}")
        return scores

    def piece(self, system: str, fold: int, seed: int) -> dict[str, Any]:
        """What is known of a piece: ``history``, ``best``, ``cpu_seconds``, ``settings``."""
        file = self.place(system, fold, seed) / "piece.json"
        try:
            return dict(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise DataError(f"{file}: expected what is known of a piece, got a damaged file; {_TO_MEND}") from None

    def model(self, system: str, fold: int, seed: int) -> Path | None:
        """The model of a piece, or None where only scores were given."""
        folder = self.place(system, fold, seed) / "model"
        return folder if folder.is_dir() else None

    def ranker(self, system: str, fold: int, seed: int) -> Ranker | None:
        """The fitted ranker of a piece; None where there is none, or where it takes code that only its caller has."""
        folder = self.model(system, fold, seed)
        return None if folder is None or "code" in self.about["systems"][system] else load(folder)

    def scratch(self, system: str, fold: int, seed: int) -> tuple[Path, Path]:
        """Where a piece that is not done keeps its checkpoint (a folder), and its trials (a file)."""
        place = self.place(system, fold, seed)
        return place.with_name(f".{place.name}.checkpoint"), place.with_name(f".{place.name}.study")

    def clear_up(self) -> None:
        """Remove what killed runs left of pieces that will not be resumed."""
        for system in self.about["systems"]:
            sweep(self._places(system))
            for fold in range(self.n_folds):
                for seed in self.seeds:
                    if self.is_done(system, fold, seed) or system in self._renewed:
                        checkpoint, study = self.scratch(system, fold, seed)
                        remove_folder(checkpoint)
                        study.unlink(missing_ok=True)

    def write_piece(
        self, system: str, fold: int, seed: int, scores: Floats, about: dict[str, Any], ranker: Ranker | None = None
    ) -> None:
        """Add a piece, whole or not at all."""
        place = self.place(system, fold, seed)
        make_folder(place.parent)
        with building(place, _PIECE) as fresh:
            np.save(fresh / "scores.npy", scores, allow_pickle=False)
            if ranker is not None:
                ranker.save(fresh / "model")
            # Rankers of callers may keep numbers of NumPy.
            (fresh / "piece.json").write_text(json.dumps(about, default=float), encoding="utf-8")

    # What it shows

    @cached_property
    def comparison(self) -> Comparison:
        """The systems over all test queries of all folds, the seeds of a system averaged for each query."""
        if not self.systems:
            raise DataError(f"{self.folder}: expected results of at least one system for every fold, got none yet")
        return compare_evaluations({system: self.evaluation(system) for system in self.systems}, self.baseline)

    def evaluation(self, system: str) -> Evaluation:
        """One system over all test queries of all folds, its seeds averaged for each query."""
        by_seed = self.per_query(system)
        per_query = {metric: np.mean([found[metric] for found in by_seed], axis=0) for metric in self.metrics}
        n_empty = self._judge.n_empty
        left_out = n_empty if self.rule.empty is None else 0
        return Evaluation(per_query, self._pooled.query_ids, self.rule, n_empty, left_out)

    def per_query(self, system: str) -> list[dict[str, Floats]]:
        """For each seed of a system, the values of all test queries."""
        if system not in self._found:
            if system not in self.about["systems"]:
                raise ParameterError.unknown("system", system, self.about["systems"])
            self._found[system] = [
                self._judge(np.concatenate([self.scores(system, fold, seed) for fold in range(self.n_folds)]))
                for seed in self.seeds_of(system)
            ]
        return self._found[system]

    def spread(self, system: str, metric: str) -> float:
        """The standard deviation of the mean over seeds; NaN for one seed."""
        means = [float(np.nanmean(found[metric])) for found in self.per_query(system)]
        return float(np.std(means, ddof=1)) if len(means) > 1 else float("nan")

    def cpu_seconds(self, system: str) -> float:
        """The mean processor time of a piece, since its last start where it was resumed; NaN for given scores."""
        found = [
            self.piece(system, fold, seed).get("cpu_seconds", float("nan"))
            for seed in self.seeds_of(system)
            for fold in range(self.n_folds)
        ]
        return float(np.mean(found))

    def to_dict(self) -> dict[str, Any]:
        """What was asked for and what came out, for JSON."""
        spreads = {
            system: {metric: _finite(self.spread(system, metric)) for metric in self.metrics} for system in self.systems
        }
        seconds = {system: _finite(self.cpu_seconds(system)) for system in self.systems}
        return self.about | {"spread": spreads, "cpu_seconds": seconds, "comparison": self.comparison.to_dict()}

    def tidy(self) -> Tidy:
        """The mean of each metric for each system, fold and seed, one a row."""
        rows = []
        ends = np.cumsum([0, *(test.n_queries for test in self.tests)])
        for system in self.systems:
            for seed, found in zip(self.seeds_of(system), self.per_query(system), strict=True):
                for fold in range(self.n_folds):
                    for metric, values in found.items():
                        inside = values[ends[fold] : ends[fold + 1]]
                        mean = float(np.nanmean(inside)) if np.isfinite(inside).any() else float("nan")
                        rows.append((system, fold + 1, seed, metric, mean))
        return Tidy(*map(list, zip(*rows, strict=True)))

    @cached_property
    def _pooled(self) -> RankingDataset:
        """The test queries of all folds as one data set; a query that is tested twice counts twice."""
        tests = self.tests
        texts = [test.document_texts for test in tests if test.document_texts is not None]
        return RankingDataset.from_parts(
            np.concatenate([test.features for test in tests]),
            np.concatenate([test.ratings for test in tests]),
            np.concatenate([[0], np.concatenate([test.lengths for test in tests]).cumsum()]),
            np.concatenate([test.query_ids for test in tests]),
            document_texts=Texts.concat(texts) if len(texts) == len(tests) else None,
        )

    @cached_property
    def _judge(self) -> Judge:
        return Judge(self._pooled, self.metrics, self.rule)

    @cached_property
    def _found(self) -> dict[str, list[dict[str, Floats]]]:
        return {}

    def _places(self, system: str) -> Path:
        return self.folder / "pieces" / quote(system, safe=" +,=()")


def _planned(plan: Plan, folds: Folds, digests: list[list[str]]) -> dict[str, Any]:
    """The description of a run that has nothing yet."""
    first = folds.read(0)
    # With five folds the three parts of one are all of the data.
    description = describe(RankingDataset.concat(first) if folds.n_folds > 1 else first[0]).to_dict()
    return {
        "format": RUN_FORMAT,
        "kind": plan.kind,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": {"name": plan.name or folds.name, "source": folds.describe(), "description": description},
        "folds": [test for *_, test in digests],
        "learned_from": [learned for *learned, _ in digests],
        "protocol": plan.protocol,
        "paper": plan.paper,
        "rule": encode(plan.rule, "rule"),
        "metrics": list(plan.metrics),
        "seeds": list(plan.seeds),
        "baseline": plan.baseline,
        "systems": dict(plan.systems),
        "versions": _versions(),
    }


def _is_whole(about: Any) -> bool:
    """Whether a description has all that a run needs."""
    if not isinstance(about, dict) or not _PARTS.keys() <= about.keys():
        return False
    typed = all(kind is None or isinstance(about[name], kind) for name, kind in _PARTS.items())
    return typed and {"name", "source", "description"} <= about["data"].keys()


def _test_file(folder: Path, fold: int) -> Path:
    return folder / "folds" / f"fold{fold + 1}.tierank"


def _write_test(file: Path, test: RankingDataset) -> None:
    """Keep what judging needs of the test data, in the order of the data set."""
    kept = RankingDataset.from_parts(
        np.zeros((test.n_documents, 1), np.float32),
        test.ratings,
        test.offsets,
        test.query_ids,
        document_texts=test.document_texts,
    )
    make_folder(file.parent)
    write(kept, file)


def _digest(data: RankingDataset) -> str:
    found = hashlib.sha256()
    for array in (data.ratings, data.offsets, np.array([str(i) for i in data.query_ids.tolist()])):
        found.update(np.ascontiguousarray(array).tobytes())
    found.update(np.ascontiguousarray(data.features[:: max(1, data.n_documents // 4096)]).tobytes())
    return found.hexdigest()


def _merged(old: Run, new: dict[str, Any]) -> dict[str, Any]:
    """What a run holds when more is asked of it; an error where the two do not belong together."""
    belongs = {"folds": "data", "learned_from": "training data", "protocol": "protocol", "kind": "kind of run"}
    for name, what in belongs.items():
        if old.about.get(name, new[name]) != new[name]:
            raise DataError(
                f"{old.folder}: expected a run of the same {what}, got one of another; choose another folder"
            )
    for system in new["systems"]:
        others = _differences(old, new, system)
        if others and old.has_pieces(system):
            raise DataError(
                f"{old.folder}: {system!r} is there with other settings; give the new one a name of its own, or choose"
                f" another folder. Not the same: {', '.join(others)}"
            )
    seeds = sorted({*old.about["seeds"], *new["seeds"]})
    return new | {
        "created": old.about["created"],
        "seeds": seeds,
        "systems": old.about["systems"] | new["systems"],
        "baseline": new["baseline"] or old.about["baseline"],
        "paper": new["paper"] or old.about["paper"],
    }


def _differences(old: Run, new: dict[str, Any], system: str) -> list[str]:
    """In what a system differs from the one of the same name in an older run."""
    now = new["systems"].get(system, {})
    before = old.about["systems"].get(system, now)
    found = [name for name in {**before, **now} if name not in _TOLD and before.get(name) != now.get(name)]
    for name in ("settings", "code"):
        if name in found:
            place = found.index(name)
            found[place : place + 1] = _inner_differences(before.get(name, {}), now.get(name, {}), name)
    return found


def _inner_differences(before: dict[str, Any], now: dict[str, Any], kind: str) -> Iterator[str]:
    for name in {**before, **now}:
        one, other = before.get(name), now.get(name)
        if one != other:
            is_code = isinstance(one, dict) and isinstance(other, dict) and one.get("object") == other.get("object")
            yield f"{name} (its code has changed)" if kind == "code" or is_code else name


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _versions() -> dict[str, str]:
    found = {"tierank": __version__, "python": platform.python_version()}
    for name in _SHOWN_VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # imported from a place that pip does not know
            continue
    return found
