"""Model folders as they were at one moment, held in memory: what became of the folder since does not matter to them."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tierank.errors import DataError

# How often a folder is read again that its owner replaced in the middle of reading.
READINGS = 3


class State(NamedTuple):
    """What is known of a model folder without reading it."""

    number: int
    changed: int
    size: int


def state_of(folder: Path) -> State | None:
    """The state of a model folder; None where there is none."""
    try:
        found = (folder / "model.json").stat()
    except OSError:
        return None
    return State(found.st_ino, found.st_mtime_ns, found.st_size)


def unsettled(folder: Path) -> DataError:
    """The error for a folder that is replaced again and again while it is read."""
    return DataError(f"{folder}: expected a model that stays for a moment, got {READINGS} others while it was read")


@dataclass(frozen=True)
class Snapshot:
    """The files of a model folder, ``model.json`` and those that it names."""

    folder: Path
    files: dict[str, bytes]
    state: State

    @classmethod
    def take(cls, folder: Path) -> Snapshot:
        """Read a folder; again, if its owner replaced it meanwhile. Whether it is a good model shows when it loads."""
        for _ in range(READINGS):
            state = state_of(folder)
            if state is None:
                raise DataError(f"{folder}: expected the folder of a saved model, with model.json in it, got none")
            try:
                files = _read(folder)
            except FileNotFoundError:
                continue
            if state_of(folder) == state:
                return cls(folder, files, state)
        raise unsettled(folder)

    @property
    def checksum(self) -> str:
        """The SHA-256 of ``model.json``, as it is served."""
        return hashlib.sha256(self.files["model.json"]).hexdigest()

    def holds_the_same_as(self, other: Snapshot) -> bool:
        """Whether both are the same model, whenever they were taken."""
        return self.files == other.files

    @contextmanager
    def written(self) -> Iterator[Path]:
        """A folder of our own with these files, to be loaded from, for as long as the block lasts."""
        with tempfile.TemporaryDirectory(prefix="tierank-serve-") as place:
            for name, content in self.files.items():
                (Path(place) / name).write_bytes(content)
            yield Path(place)


def _read(folder: Path) -> dict[str, bytes]:
    description = (folder / "model.json").read_bytes()
    names = [name for name in _named(description) if (folder / name).is_file()]
    return {"model.json": description} | {name: (folder / name).read_bytes() for name in names}


def _named(description: bytes) -> list[str]:
    """The files that a description names; none where it is damaged, which whoever loads it says."""
    try:
        return [name for name in json.loads(description)["files"] if name != "model.json" and Path(name).name == name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
