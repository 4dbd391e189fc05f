"""Snapshots of model folders in memory, which later changes of the folder do not affect."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tierank.errors import DataError
from tierank.models import FolderState, read_settled


@dataclass(frozen=True)
class Snapshot:
    """The files of a model folder, ``model.json`` and those that it names."""

    folder: Path
    files: dict[str, bytes]
    state: FolderState

    @classmethod
    def take(cls, folder: Path) -> Snapshot:
        """Read a folder; again, if it was replaced meanwhile. Loading checks whether it is a valid model."""
        files, state = read_settled(folder, _read)
        if state is None:
            raise DataError(where=folder, expected="a model folder, with model.json in it", got="none")
        return cls(folder, files, state)

    @property
    def checksum(self) -> str:
        """The SHA-256 of ``model.json``."""
        return hashlib.sha256(self.files["model.json"]).hexdigest()

    def holds_the_same_as(self, other: Snapshot) -> bool:
        """Whether both are the same model."""
        return self.files == other.files

    @contextmanager
    def written(self) -> Iterator[Path]:
        """A temporary folder with these files, while the block runs."""
        with tempfile.TemporaryDirectory(prefix="tierank-serve-") as place:
            for name, content in self.files.items():
                (Path(place) / name).write_bytes(content)
            yield Path(place)


def _read(folder: Path) -> dict[str, bytes]:
    try:
        description = (folder / "model.json").read_bytes()
    except FileNotFoundError:
        return {}
    names = [name for name in _named(description) if (folder / name).is_file()]
    return {"model.json": description} | {name: (folder / name).read_bytes() for name in names}


def _named(description: bytes) -> list[str]:
    """The files that a description names; empty if it is damaged, which loading reports."""
    try:
        return [name for name in json.loads(description)["files"] if name != "model.json" and Path(name).name == name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
