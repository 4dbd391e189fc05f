"""The plan of a run: systems, metrics and data, as stored in ``run.json``."""

from __future__ import annotations

import hashlib
import json
import platform
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from tierank.files import read_json, replacing
from tierank.kinds import kinds_to_json
from tierank.memory import chunks
from tierank.metrics import Rule
from tierank.models import Known, decode, encode

RUN_FORMAT = 2
PLAN_FILE = "run.json"
# "lightgbm" is the protocol of the last table of the paper: the number of trees is chosen on the test data.
PROTOCOLS = ("standard", "lightgbm")
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
            content = read_json(file)
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
            **{name: content[name] for name in _FORMS} | {"data": origin, "rule": decode(content["rule"], Known())}
        )

    def write(self, folder: Path) -> None:
        """Write ``run.json`` atomically."""
        with replacing(folder / PLAN_FILE) as fresh:
            fresh.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON: the content of ``run.json``."""
        values = {name: getattr(self, name) for name in _FORMS}
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
        _warn_of_versions(folder, old.versions, self.versions, started)
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


def _list_of(kind: type, value: Any, least: int = 0) -> bool:
    return isinstance(value, list) and len(value) >= least and all(type(one) is kind for one in value)


def _is_attribute(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "values", "codes"}
        and isinstance(value["name"], str)
        and isinstance(value["values"], list)
        and _list_of(int, value["codes"])
        and all(-1 <= code < len(value["values"]) for code in value["codes"])
    )


# The fields of a plan, and whether a value in JSON has their form.
_FORMS: dict[str, Callable[[Any], bool]] = {
    "kind": lambda value: isinstance(value, str),
    "created": lambda value: isinstance(value, str),
    "data": lambda value: (
        isinstance(value, dict)
        and value.keys() == set(DataOrigin._fields)
        and isinstance(value["name"], str)
        and all(isinstance(value[one], dict) for one in ("source", "description"))
    ),
    "folds": lambda value: _list_of(str, value, least=1),
    "learned_from": lambda value: isinstance(value, list) and all(_list_of(str, one) for one in value),
    "protocol": lambda value: value in PROTOCOLS,
    "paper": lambda value: value is None or isinstance(value, str),
    "rule": lambda value: isinstance(value, (str, dict)),
    "metrics": lambda value: _list_of(str, value, least=1),
    "seeds": lambda value: _list_of(int, value, least=1),
    "baseline": lambda value: value is None or isinstance(value, str),
    "systems": lambda value: isinstance(value, dict) and all(isinstance(one, dict) for one in value.values()),
    "attributes": lambda value: isinstance(value, list) and all(map(_is_attribute, value)),
    "versions": lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
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


def _values(design: Design) -> dict[str, Any]:
    return {field.name: getattr(design, field.name) for field in fields(design)}


def _is_whole(found: Any) -> bool:
    """Whether a description has all that a plan needs."""
    return isinstance(found, dict) and all(name in found and fits(found[name]) for name, fits in _FORMS.items())


def _inner_differences(before: dict[str, Any], now: dict[str, Any], kind: str) -> Iterator[str]:
    for name in {**before, **now}:
        one, other = before.get(name), now.get(name)
        if one != other:
            is_code = isinstance(one, dict) and isinstance(other, dict) and one.get("object") == other.get("object")
            yield f"{name} (its code has changed)" if kind == "code" or is_code else name


def _warn_of_versions(
    folder: Path, before: Mapping[str, str], now: Mapping[str, str], started: Collection[str]
) -> None:
    """Warn if a run has results of other versions: models of the two may differ."""
    others = [f"{name} {before.get(name, '(none)')}, now {now[name]}" for name in now if before.get(name) != now[name]]
    if started and others:
        warnings.warn(
            f"{folder}: has results of other versions, which are kept: {'; '.join(others)}. A table that mixes versions"
            " may show their differences; choose another folder to start over",
            stacklevel=2,
        )


def _versions() -> dict[str, str]:
    known = {"tierank": __version__, "python": platform.python_version()}
    for name in _SHOWN_VERSIONS:
        try:
            known[name] = version(name)
        except PackageNotFoundError:  # not installed, or not installed by pip
            continue
    return known
