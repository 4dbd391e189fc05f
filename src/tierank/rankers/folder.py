"""Model folders: ``model.json`` and the files that it names, each with its checksum. Nothing in them is executed.

This module handles folders, files and the JSON form of settings; rankers define the content of descriptions.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tierank.errors import DataError, ParameterError, TierankError
from tierank.files import FolderKind, as_path, building, make_folder, read_json
from tierank.metrics import Rule, metric_name

T = TypeVar("T")
# Maps a setting that JSON cannot hold, and its name, to what is written.
Otherwise = Callable[[Any, str], Any]

MODEL_FORMAT = 3
MODEL = FolderKind("a model folder", "model.json", ("format", "ranker", "files"))
# Settings that do not affect the model, such as threads: they may change after fit, and are not saved.
WORK_SETTINGS = ("n_jobs", "device")
# A description takes some kilobytes; anything larger than this is refused.
_LARGEST_DESCRIPTION = 64 << 20
# Characters of a file name that a message shows.
_SHOWN = 100
# How often a folder is read again if it is replaced while it is read.
_READINGS = 20


@dataclass(frozen=True)
class Known:
    """The classes that a model file may name: nothing else is ever constructed from a file."""

    rankers: Mapping[str, type] = field(default_factory=dict)
    networks: Mapping[str, Any] = field(default_factory=dict)
    transforms: Mapping[str, type] = field(default_factory=dict)


class Damaged(ValueError):
    """What a file holds is not what was written; its reader says which file that is."""


class ForgottenMetric:
    """A placeholder for a caller's metric in a loaded model, which has only its name."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ForgottenMetric) and other.__name__ == self.__name__

    def __hash__(self) -> int:
        return hash(self.__name__)

    def __call__(self, *_: Any) -> float:
        """Raise an error."""
        raise ParameterError(
            f"the metric {self.__name__} is a function, which a model file does not hold",
            argument="select_by",
            fix="give it again: set_params(select_by=...)",
        )


# Folders


def write_folder(path: str | os.PathLike[str], files: Mapping[str, bytes]) -> None:
    """Write the files of a model; the folder of an earlier model is replaced in one step."""
    target = as_path(path)
    MODEL.check(target)
    make_folder(target.parent)
    with building(target, MODEL) as fresh:
        for name, content in files.items():
            (fresh / name).write_bytes(content)


def with_description(description: Mapping[str, Any], files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a model and ``model.json``, which has the description and the checksums of the files."""
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    whole = {"format": MODEL_FORMAT, **description, "files": checksums}
    return {**files, MODEL.file: json.dumps(whole, indent=1, allow_nan=False).encode()}


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The description of a model and its files, whose checksums are verified."""
    file = folder / MODEL.file
    if not _is_file(file):
        raise _no_model(folder)
    if file.stat().st_size > _LARGEST_DESCRIPTION:
        raise DataError(where=file, expected="the description of a model", got=f"{file.stat().st_size} bytes")
    try:
        description = read_json(file)
    except (OSError, ValueError, RecursionError):
        description = None
    version = description.get("format") if isinstance(description, dict) else None
    if version is not None and version != MODEL_FORMAT:
        raise DataError(
            where=file,
            expected=f"format {MODEL_FORMAT}",
            got=repr(version),
            fix="read it with the version of tierank that wrote it, and train again with this one",
        )
    if version is None or not isinstance(description.get("files"), dict):
        raise damaged(file)
    return description, {name: _checked(folder, name, digest) for name, digest in description["files"].items()}


def _no_model(path: Path) -> DataError:
    """The error for a path that is not a model folder: what it is, and what reads that."""
    got, fix = "nothing there", None
    if _is_file(path / "meta.json"):
        got, fix = "a data set", "tierank.read reads data"
    elif os.path.isdir(path):  # noqa: PTH112  (also for names that no folder can have)
        got = "a folder without it"
    elif _is_file(path.parent / MODEL.file):
        got, fix = "a file of a model", f"give its folder, {str(path.parent)!r}"
    elif _is_file(path):
        got, fix = "a file", "tierank.read reads data, tierank.from_lightgbm a model of LightGBM"
    return DataError(where=path, expected="a model folder, with model.json in it", got=got, fix=fix)


def damaged(file: Path, what: str = "") -> DataError:
    """The error for a description that does not say what it should."""
    got = f"a damaged file{f': {what}' if what else ''}"
    return DataError(where=file, expected="the description of a model", got=got, fix="save the model again")


def _checked(folder: Path, name: str, digest: object) -> bytes:
    if Path(name).name != name or not _is_file(folder / name):
        raise DataError(where=folder, expected=f"a file {name[:_SHOWN]!r} inside the model folder", got="none")
    content = (folder / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(where=folder / name, expected="the file that was saved", got="one with another checksum")
    return content


def _is_file(path: Path) -> bool:
    with suppress(OSError):  # a name that no file can have
        return path.is_file()
    return False


class FolderState(NamedTuple):
    """What distinguishes the model in a folder from one that replaces it, without reading it."""

    inode: int
    changed: int
    size: int


def state_of(folder: Path) -> FolderState | None:
    """The state of a model folder; None if there is none."""
    try:
        status = (folder / MODEL.file).stat()
    except OSError:
        return None
    return FolderState(status.st_ino, status.st_mtime_ns, status.st_size)


def read_settled(folder: Path, read_once: Callable[[Path], T]) -> tuple[T, FolderState | None]:
    """The result of ``read_once`` for a model folder, and the state of the folder.

    It is read again if it was replaced meanwhile, as files of two models may have been mixed.
    """
    for _ in range(_READINGS):
        state = state_of(folder)
        try:
            result = read_once(folder)
        except (TierankError, OSError):
            if state_of(folder) == state:
                raise
        else:
            if state_of(folder) == state:
                return result, state
    raise DataError(f"the model changed {_READINGS} times while loading", where=folder, fix="stop writing to it first")


# Settings as JSON


def without_work(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that affect the model."""
    return {name: value for name, value in settings.items() if name not in WORK_SETTINGS}


def unwritable(value: Any, name: str) -> None:
    """The form of a setting that JSON cannot hold: None, if the model can predict without it."""
    if name in ("loss", "for_target"):  # a caller's loss or target is not needed to predict
        return
    raise DataError(
        argument=name,
        expected="a value that a file can hold",
        got=repr(value),
        fix="give functions as tables of values",
    )


def encode(value: Any, name: str, otherwise: Otherwise = unwritable) -> Any:
    """A setting for JSON: rules, rankers, transforms, classes and tables as tagged objects."""
    from tierank.data.matching import BaseEstimator  # here, as it loads scikit-learn: a server is to answer before that

    if isinstance(value, Rule):
        fields = {one: encode(getattr(value, one), f"{name}.{one}", otherwise) for one in value.__dataclass_fields__}
        return {"rule": fields}
    if isinstance(value, BaseEstimator):
        kind = "transform" if hasattr(value, "transform") else "ranker"
        return {kind: class_name(type(value)), "settings": encode_settings(value.get_params(deep=False), otherwise)}
    if name == "network" and isinstance(value, type):
        return {"network": class_name(value)}
    if name == "select_by" and callable(value):  # a caller's metric is not needed to predict
        return {"metric": metric_name(value)}
    if isinstance(value, Mapping):
        return {"table": [[encode(key, name), encode(item, name, otherwise)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [encode(item, name, otherwise) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and np.isfinite(value)):
        return value
    return otherwise(value, name)


def encode_settings(settings: Mapping[str, Any], otherwise: Otherwise = unwritable) -> dict[str, Any]:
    """All settings of a ranker or a transform that affect the model, for JSON."""
    return {name: encode(value, name, otherwise) for name, value in without_work(settings).items()}


def decode(value: Any, known: Known) -> Any:
    """The setting from the result of ``encode``; only classes of ``known`` are constructed."""
    if isinstance(value, list):
        return tuple(decode(item, known) for item in value)
    if not isinstance(value, dict):
        return value
    if set(value) == {"rule"}:
        return Rule(**{one: decode(item, known) for one, item in value["rule"].items()})
    if set(value) == {"table"}:
        return {key: decode(item, known) for key, item in value["table"]}
    if set(value) == {"metric"}:
        return ForgottenMetric(str(value["metric"]))
    if set(value) == {"network"}:
        return known_class(known.networks, "network", value["network"])
    for kind, classes in (("ranker", known.rankers), ("transform", known.transforms)):
        if set(value) == {kind, "settings"}:
            return known_class(classes, kind, value[kind])(**decode_settings(value["settings"], known))
    raise Damaged(f"an object with the names {', '.join(map(repr, value))}")


def decode_settings(settings: Any, known: Known) -> dict[str, Any]:
    """The settings from the result of ``encode_settings``."""
    if not isinstance(settings, dict):
        raise Damaged(f"settings of type {type(settings).__name__}")
    return {name: decode(value, known) for name, value in without_work(settings).items()}


def class_name(kind: type) -> str:
    """The name of a class in model files."""
    return kind.__qualname__


def known_class(known: Mapping[str, Any], kind: str, name: object) -> Any:
    """A class by its name in a model file. The error for an unknown one says how to pass it."""
    if not isinstance(name, str) or name not in known:
        shown = name if isinstance(name, str) and name.isidentifier() else "..."
        raise DataError(
            str(ParameterError.unknown(kind, name, known)),
            fix=f"if it is your own class, pass it: tierank.load(path, {kind}s=[{shown}])",
        )
    return known[name]
