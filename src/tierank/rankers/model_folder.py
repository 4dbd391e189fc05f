"""Models as folders: ``model.json`` and the files that it names, each with its checksum. Nothing in them is run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from tierank import __version__
from tierank.errors import DataError, ParameterError, TierankError
from tierank.estimators import Estimator
from tierank.files import Mark, building, make_folder, read_json
from tierank.inputs import as_names
from tierank.metrics import Rule
from tierank.settings import as_whole

if TYPE_CHECKING:
    from tierank.rankers.base import Ranker

T = TypeVar("T")
# What becomes of a setting that JSON has no form for: the value and its name, and what to write.
Otherwise = Callable[[Any, str], Any]

MODEL_FORMAT = 2
MODEL = Mark("the folder of a model", "model.json", ("format", "ranker", "files"))
# Settings that say how work is done, not what the model is: they may change after fit, and are not saved.
OF_WORK = ("n_jobs", "device")
# A description of a model is some kilobytes; a larger one is no description.
_LARGEST_DESCRIPTION = 64 << 20
# How often a folder is read again that its owner replaced in the middle of reading.
_READINGS = 20
# What reading something that is not what it says it is can end in.
_OF_DAMAGE = (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)


def write_model_folder(ranker: Ranker, path: str | os.PathLike[str]) -> None:
    """Write a fitted ranker; the folder of an earlier model is replaced in one step."""
    target = Path(path)
    MODEL.check(target)
    make_folder(target.parent)
    with building(target, MODEL) as fresh:
        for name, content in model_files(ranker).items():
            (fresh / name).write_bytes(content)


def model_files(ranker: Ranker) -> dict[str, bytes]:
    """The files of a saved model, ``model.json`` included: it has the checksums of the others."""
    files = ranker._files()
    description = {
        "format": MODEL_FORMAT,
        "tierank": __version__,
        "ranker": type(ranker).__name__,
        "settings": ranker._saved_settings(),
        "n_features": ranker.n_features_in_,
        "feature_names": list(ranker.feature_names_in_) if hasattr(ranker, "feature_names_in_") else None,
        "has_queries": ranker.has_queries_,
        "has_missing": ranker.has_missing_,
        "longest_query": ranker.longest_query_,
        "fitted": ranker._fitted(),
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    return files | {MODEL.file: json.dumps(_of_model(description), indent=1, allow_nan=False).encode()}


class State(NamedTuple):
    """What is known of a model folder without reading it."""

    number: int
    changed: int
    size: int


def state_of(folder: Path) -> State | None:
    """What tells the model of a folder from the one that takes its place; None where there is none."""
    try:
        found = (folder / MODEL.file).stat()
    except OSError:
        return None
    return State(found.st_ino, found.st_mtime_ns, found.st_size)


def read_settled(folder: Path, read_once: Callable[[Path], T]) -> tuple[T, State | None]:
    """What ``read_once`` makes of a model folder, and the state of it.

    It is read again if its owner replaced it meanwhile, so that files of two models were met.
    """
    for _ in range(_READINGS):
        state = state_of(folder)
        try:
            found = read_once(folder)
        except (TierankError, OSError):
            if state_of(folder) == state:
                raise
        else:
            if state_of(folder) == state:
                return found, state
    raise DataError(
        f"{folder}: the model changed {_READINGS} times while it was being loaded; load it when nobody writes there"
    )


def read_model(path: str | os.PathLike[str], rankers: Mapping[str, type[Ranker]]) -> Ranker:
    """The ranker of a model folder; every file is checked before anything looks into it."""
    return read_settled(Path(path), lambda folder: _read_once(folder, rankers))[0]


def _read_once(folder: Path, rankers: Mapping[str, type[Ranker]]) -> Ranker:
    file = folder / "model.json"
    if not file.is_file():
        raise DataError(f"{folder}: expected the folder of a saved model, with model.json in it, got none")
    if file.stat().st_size > _LARGEST_DESCRIPTION:
        raise DataError(f"{file}: expected a description of a model, got {file.stat().st_size} bytes")
    try:
        described = _of_model(read_json(file))
        version, name, files = described["format"], described["ranker"], described["files"]
        settings, fitted, n_features = described["settings"], described["fitted"], described["n_features"]
        names, has_queries, longest = described["feature_names"], described["has_queries"], described["longest_query"]
        well_typed = isinstance(files, dict) and isinstance(settings, dict) and isinstance(fitted, dict)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        well_typed, version = False, None
    if version is not None and version != MODEL_FORMAT:
        raise DataError(
            f"{file}: expected format {MODEL_FORMAT}, got {version!r}; read it with the tierank that wrote it"
        )
    if not well_typed:
        raise DataError(f"{file}: expected a description of a model, got a damaged file; save the model again")
    if not isinstance(name, str) or name not in rankers:
        raise DataError(f"{file}: {ParameterError.unknown('ranker', name, rankers)}")
    ranker = constructed(rankers[name], settings, file)
    try:
        ranker._settle(bool(has_queries), bool(described["has_missing"]), as_whole("longest_query", longest))
        ranker._set_features(_as_size(n_features, file), as_names(names, n_features))
        ranker._restore(fitted, {name: _checked(folder, name, digest) for name, digest in files.items()})
    except ParameterError as error:
        raise DataError(f"{file}: settings: {error}") from None
    except TierankError:
        raise
    except _OF_DAMAGE as error:
        raise DataError(f"{file}: expected a model that fits its description, got a damaged one: {error}") from None
    return ranker


def _of_model(described: Any) -> Any:
    """A description without the settings of work, those of rankers inside the model included."""
    if isinstance(described, list):
        return [_of_model(value) for value in described]
    if not isinstance(described, dict):
        return described
    found = {name: _of_model(value) for name, value in described.items()}
    if "ranker" in found and isinstance(found.get("settings"), dict):
        found["settings"] = without_work(found["settings"])
    return found


def without_work(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, but for those that say how work is done."""
    return {name: value for name, value in settings.items() if name not in OF_WORK}


def unwritable(value: Any, name: str) -> None:
    """What a model file says of a setting that JSON has no form for: nothing, if the model can predict without it."""
    if name == "loss":  # a function of the user's: not needed to predict
        return
    raise DataError(
        f"{name}: expected a setting that can be written to a file, got {value!r}; give functions as a table of values"
    )


def encoded(value: Any, name: str, otherwise: Otherwise = unwritable) -> Any:
    """A setting for JSON: rules, rankers and tables of values as objects that say what they are."""
    if isinstance(value, Rule):
        return {
            "rule": {
                field: encoded(getattr(value, field), f"{name}.{field}", otherwise)
                for field in value.__dataclass_fields__
            }
        }
    if isinstance(value, Estimator):
        return {"ranker": type(value).__name__, "settings": value._saved_settings(otherwise)}
    if isinstance(value, Mapping):
        return {"table": [[encoded(key, name), encoded(item, name, otherwise)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [encoded(item, name, otherwise) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and np.isfinite(value)):
        return value
    return otherwise(value, name)


def decoded(value: Any) -> Any:
    """The setting that ``encoded`` gave."""
    if isinstance(value, dict) and set(value) == {"rule"}:
        return Rule(**{field: decoded(item) for field, item in value["rule"].items()})
    if isinstance(value, dict) and set(value) == {"table"}:
        return {key: decoded(item) for key, item in value["table"]}
    if isinstance(value, dict) and set(value) == {"ranker", "settings"}:
        from tierank.rankers import known_rankers  # which imports this module

        return constructed(known_rankers()[value["ranker"]], value["settings"], Path("model.json"))
    return [decoded(item) for item in value] if isinstance(value, list) else value


def constructed(ranker: type[Ranker], settings: dict[str, Any], file: Path) -> Ranker:
    """The ranker with these saved settings, not fitted."""
    known = ranker().get_params(deep=False)
    hidden = next((name for name in settings if name not in known and _is_taken(ranker, name)), None)
    if hidden is not None:  # a ranker keeps its settings as attributes
        raise DataError(f"{file}: expected settings of {ranker.__name__}, got {hidden!r}, which is no setting")
    try:
        return ranker(**{name: decoded(value) for name, value in settings.items()})
    except (TypeError, ValueError, AttributeError, KeyError, RecursionError) as error:
        raise DataError(f"{file}: expected settings of {ranker.__name__}, got others: {error}") from None


def _is_taken(ranker: type[Ranker], name: str) -> bool:
    """Whether an attribute of this name is, or may become, something else than a setting."""
    return hasattr(ranker, name) or name.startswith("_") or name.endswith("_")


def _as_size(value: object, file: Path) -> int:
    if not isinstance(value, int) or value < 1:
        raise DataError(f"{file}: expected a number of features, got {value!r}")
    return value


def _checked(folder: Path, name: str, digest: object) -> bytes:
    if Path(name).name != name or not (folder / name).is_file():
        raise DataError(f"{folder}: expected a file {name!r} inside the folder of the model, got none")
    content = (folder / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(f"{folder / name}: expected the file that was saved, got another; its checksum differs")
    return content
