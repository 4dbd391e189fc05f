"""Checkpoints: folders with the state of training, and a digest of its data and settings."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from tierank.errors import DataError
from tierank.estimators import Estimator
from tierank.files import FolderKind, building, contents, make_folder, remove_folder, replacing
from tierank.models import without_work
from tierank.training.identity import identity_of, is_of_caller, name_of
from tierank.training.model import FitContext

# Errors that reading a damaged file can raise.
_OF_DAMAGE = (AttributeError, EOFError, KeyError, OSError, RuntimeError, SafetensorError, TypeError, ValueError)


class _Nest(FolderKind):
    """Checkpoints, and folders of checkpoints: those of a ranker and of the ranker inside it."""

    def is_in(self, folder: Path) -> bool:
        """Whether everything in the folder belongs to checkpoints."""
        if super().is_in(folder) or folder.is_symlink() or not folder.is_dir():
            return super().is_in(folder)
        return all(self.is_in(path) for path in contents(folder))


_MARK = FolderKind("a checkpoint", "checkpoint.json", ("identity",))
_NEST = _Nest(_MARK.kind, _MARK.file, _MARK.names)


class Checkpoint:
    """A folder with the state of training. A subclass says what is written, and how it is read."""

    def __init__(self, context: FitContext, settings: Mapping[str, Any], made_of: Sequence[Any]) -> None:
        """``made_of`` identifies what else the model depends on: the content of the data, and versions."""
        self.folder, self.team = Path(context.checkpoint or ""), context.team
        identity = {
            "ranker": context.ranker,
            "settings": without_work(settings),
            "has_queries": context.seen.has_queries,
            "feature_names": context.seen.feature_names,
            "levels": context.seen.n_levels(),
            "made_of": made_of,
        }
        self.identity = json.loads(json.dumps(identity, default=described))
        self._check()

    def _check(self) -> None:
        """Raise an error, in all processes of a team, if the folder is not a checkpoint or is of another run."""
        seen = json.dumps([_MARK.refusal(self.folder), _MARK.content(self.folder)]) if self.team.is_first else ""
        refusal, found = json.loads(self.team.broadcast(seen.encode()) or b"")
        if refusal is not None:
            raise DataError(refusal)
        if found is not None and found["identity"] != self.identity:
            raise DataError(
                f"{self.folder}: expected a checkpoint of this data and these settings, got one of another run;"
                " delete it to start over"
            )

    @contextmanager
    def renewing(self) -> Iterator[Path]:
        """A new folder to fill, which atomically replaces the checkpoint."""
        make_folder(self.folder.parent)
        with building(self.folder, _MARK) as fresh:
            yield fresh
            described = {"identity": self.identity, "sha256": {path.name: _sha256(path) for path in fresh.iterdir()}}
            (fresh / _MARK.file).write_text(json.dumps(described), encoding="utf-8")

    def begin(self) -> None:
        """Create the folder; its parts are written one by one."""
        make_folder(self.folder)
        with replacing(self.folder / _MARK.file) as fresh:
            fresh.write_text(json.dumps({"identity": self.identity}), encoding="utf-8")

    def content(self, name: str) -> bytes | None:
        """A file of the folder, which the first process of a team reads for all; None if there is none."""
        content = self.team.broadcast(self._verified(name) if self.team.is_first else None)
        if content == b"":
            raise ValueError(f"a damaged {name}")
        return content

    def _verified(self, name: str) -> bytes | None:
        """The content of a file, empty if it is not what was written; None if it was not written."""
        file, expected = self.folder / name, (_MARK.content(self.folder) or {}).get("sha256")
        if expected is None:  # the parts of this checkpoint are written one by one
            return file.read_bytes() if file.exists() else None
        if name not in expected:
            return None
        return file.read_bytes() if file.is_file() and _sha256(file) == expected[name] else b""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn errors of reading a damaged checkpoint into ``DataError``."""
        try:
            yield
        except _OF_DAMAGE:
            raise DataError(
                f"{self.folder}: expected a checkpoint, got a damaged one; delete it to start over"
            ) from None


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def check_checkpoint(folder: str | os.PathLike[str]) -> None:
    """Raise ``DataError`` if a folder holds anything but checkpoints."""
    _NEST.check(Path(folder))


def remove_checkpoint(folder: str | os.PathLike[str]) -> None:
    """Remove a checkpoint, if it exists, atomically. Raises ``DataError`` if the folder holds anything else."""
    remove_folder(folder, _NEST)


def described_settings(value: Any) -> Any:
    """A setting, or several, in a form that can be compared.

    >>> described_settings((100, 50)) == described_settings([100, 50])
    True
    """
    return json.loads(json.dumps(value, default=described))


def described(value: Any) -> Any:
    """A setting that JSON cannot hold: rankers by their settings, callers' code by its digest.

    >>> described(described)
    'tierank.training.checkpoint.described'
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Estimator):
        settings = {type(value).__name__: without_work(value.get_params(deep=False))}
        return settings | ({"class": identity_of(type(value))} if is_of_caller(type(value)) else {})
    if not callable(value):
        return repr(value)
    return identity_of(value) if is_of_caller(value) else name_of(value)
