"""Snapshots of model folders in memory, which later changes of the folder do not affect."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tierank.models import MODEL, FolderState, read_folder, read_settled


@dataclass(frozen=True)
class Snapshot:
    """The files of a model folder, ``model.json`` and those that it names."""

    folder: Path
    files: dict[str, bytes]
    state: FolderState | None

    @classmethod
    def take(cls, folder: Path) -> Snapshot:
        """Read a folder; again, if it was replaced meanwhile. Loading checks whether it is a valid model."""
        return cls(folder, *read_settled(folder, _read))

    @property
    def checksum(self) -> str:
        """The SHA-256 of ``model.json``."""
        return hashlib.sha256(self.files[MODEL.file]).hexdigest()

    def holds_the_same_as(self, other: Snapshot) -> bool:
        """Whether both are the same model."""
        return self.files == other.files

    @contextmanager
    def written(self) -> Iterator[Path]:
        """A temporary folder with these files, while the block runs."""
        with tempfile.TemporaryDirectory(prefix=_prefix(os.getpid())) as place:
            for name, content in self.files.items():
                (Path(place) / name).write_bytes(content)
            yield Path(place)


def remove_left(process: int) -> None:
    """Remove the temporary folders of a process that was killed while it loaded a model."""
    for place in Path(tempfile.gettempdir()).glob(f"{_prefix(process)}*"):
        shutil.rmtree(place, ignore_errors=True)


def _prefix(process: int) -> str:
    return f"tierank-serve-{process}-"


def _read(folder: Path) -> dict[str, bytes]:
    _, files = read_folder(folder)
    return {**files, MODEL.file: (folder / MODEL.file).read_bytes()}
