"""The plan of a run: systems, metrics and data, as stored in ``run.json``."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from tierank import __version__
from tierank.dataset import RankingDataset
from tierank.description import describe
from tierank.errors import DataError
from tierank.experiments.folds import Fold
from tierank.files import replacing
from tierank.kinds import kinds_to_json
from tierank.metrics import Rule
from tierank.models import Known, decode, encode

RUN_FORMAT = 2
PLAN_FILE = "run.json"
# The paper's layout.
PAPER_METRICS = tuple(f"{name}@{k}" for k in (1, 3, 5, 10) for name in ("ndcg", "err"))
_SHOWN_VERSIONS = ("lightgbm", "numba", "numpy", "scikit-learn", "scipy", "torch")

# Fields of a system that are for people to read; they do not distinguish systems.
_FOR_READERS = ("sources",)
# What must be the same in a run and in additions to it, and its name in messages.
_FIXED = {"folds": "data", "learned_from": "training data", "protocol": "protocol"}


@dataclass(frozen=True, kw_only=True)
class Design:
    """The design of a run: the systems by name with their settings, and how they are judged."""

    kind: str  # "cv" or "compare"
    systems: Mapping[str, dict[str, Any]]
    seeds: Sequence[int]
    metrics: Sequence[str]
    rule: str | Rule
    baseline: str | None
    protocol: str = "standard"
    paper: str | None = None
    attributes: Sequence[dict[str, Any]] = ()  # of the queries: name, values, and the code of each query


class DataOrigin(NamedTuple):
    """The data of a run: their name, origin, and description by ``describe``."""

    name: str
    source: dict[str, Any]
    description: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Plan(Design):
    """The design of a run and its data; stored in ``run.json``."""

    data: DataOrigin
    folds: Sequence[str]  # the digest of the test data of each fold
    learned_from: Sequence[Sequence[str]]  # the digests of its training and validation data
    created: str
    versions: Mapping[str, str]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The plan of the run in a folder."""
        file = folder / PLAN_FILE
        if not file.is_file():
            raise DataError(f"{folder}: expected the folder of a run, with {PLAN_FILE} in it, got none")
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            content = None
        if isinstance(content, dict) and content.get("format", RUN_FORMAT) != RUN_FORMAT:
            raise DataError(
                f"{file}: expected format {RUN_FORMAT}, got {content['format']!r}; use the tierank that wrote it"
            )
        if not _is_whole(content):
            raise DataError(f"{file}: expected the description of a run, got a damaged file")
        origin = DataOrigin(**content["data"])
        return cls(
            **{name: content[name] for name in _KINDS} | {"data": origin, "rule": decode(content["rule"], Known())}
        )

    def write(self, folder: Path) -> None:
        """Write ``run.json`` atomically."""
        with replacing(folder / PLAN_FILE) as fresh:
            fresh.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON: the content of ``run.json``."""
        values = {name: getattr(self, name) for name in _KINDS}
        written = {"data": self.data._asdict(), "rule": encode(self.rule, "rule")}
        return {"format": RUN_FORMAT} | values | written

    def added_to(self, old: Plan, folder: Path, started: Collection[str]) -> Plan:
        """The plan of an older run with this one added. Raises ``DataError`` if the two cannot be combined.

        ``started`` are the systems that already have results: their settings can no longer change.
        """
        for name, what in _FIXED.items():
            if getattr(old, name) != getattr(self, name):
                raise DataError(
                    f"{folder}: expected a run of the same {what}, got one of another; choose another folder"
                )
        for system in self.systems:
            differences = self.differences(old, system)
            if differences and system in started:
                raise DataError(
                    f"{folder}: {system!r} is there with other settings; give the new one another name, or choose"
                    f" another folder. Not the same: {', '.join(differences)}"
                )
        kept = {
            "created": old.created,
            "seeds": sorted({*old.seeds, *self.seeds}),
            "systems": {**old.systems, **self.systems},
            "baseline": self.baseline or old.baseline,
            "paper": self.paper or old.paper,
        }
        return Plan(**{**_values(self), **kept})

    def differences(self, old: Plan, system: str) -> list[str]:
        """How a system differs from the one of the same name in an older plan."""
        now = self.systems.get(system, {})
        before = old.systems.get(system, now)
        names = [name for name in {**before, **now} if name not in _FOR_READERS and before.get(name) != now.get(name)]
        for name in ("settings", "code"):
            if name in names:
                place = names.index(name)
                names[place : place + 1] = _inner_differences(before.get(name, {}), now.get(name, {}), name)
        return names


# The fields of a plan with their types in JSON; None for any type.
_KINDS: dict[str, type | None] = {
    "kind": str,
    "created": str,
    "data": dict,
    "folds": list,
    "learned_from": list,
    "protocol": str,
    "paper": None,
    "rule": None,
    "metrics": list,
    "seeds": list,
    "baseline": None,
    "systems": dict,
    "attributes": list,
    "versions": dict,
}


def describe_data(first: Fold, n_folds: int) -> dict[str, Any]:
    """The description of the data with this first fold, for JSON."""
    # With five folds, the three parts of any fold are all of the data.
    return describe(RankingDataset.concat(first) if n_folds > 1 else first[0]).to_dict()


def make_plan(design: Design, data: DataOrigin, digests: list[list[str]]) -> Plan:
    """The plan of a design, for data with these digests of the training, validation and test data of each fold."""
    lists = {each: list(getattr(design, each)) for each in ("metrics", "seeds", "attributes")}
    return Plan(
        **{**_values(design), **lists, "systems": dict(design.systems)},
        data=data,
        folds=[test for *_, test in digests],
        learned_from=[learned for *learned, _ in digests],
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=_versions(),
    )


def digest_data(data: RankingDataset) -> str:
    """A digest that identifies a data set: ratings, queries, a sample of the features, and their kinds."""
    digest = hashlib.sha256()
    for array in (data.ratings, data.offsets, np.array([str(i) for i in data.query_ids.tolist()])):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(np.ascontiguousarray(data.features[:: max(1, data.n_documents // 4096)]).tobytes())
    if data.kinds:  # other texts may have the same level numbers
        digest.update(json.dumps(kinds_to_json(data.kinds), sort_keys=True).encode())
    return digest.hexdigest()


def _values(design: Design) -> dict[str, Any]:
    return {field.name: getattr(design, field.name) for field in fields(design)}


def _is_whole(found: Any) -> bool:
    """Whether a description has all that a plan needs."""
    if not isinstance(found, dict) or not _KINDS.keys() <= found.keys():
        return False
    typed = all(kind is None or isinstance(found[name], kind) for name, kind in _KINDS.items())
    return typed and set(DataOrigin._fields) == found["data"].keys()


def _inner_differences(before: dict[str, Any], now: dict[str, Any], kind: str) -> Iterator[str]:
    for name in {**before, **now}:
        one, other = before.get(name), now.get(name)
        if one != other:
            is_code = isinstance(one, dict) and isinstance(other, dict) and one.get("object") == other.get("object")
            yield f"{name} (its code has changed)" if kind == "code" or is_code else name


def _versions() -> dict[str, str]:
    known = {"tierank": __version__, "python": platform.python_version()}
    for name in _SHOWN_VERSIONS:
        try:
            known[name] = version(name)
        except PackageNotFoundError:  # not installed, or not installed by pip
            continue
    return known
