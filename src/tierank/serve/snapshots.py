"""Model folders as they were at one moment, held in memory: what became of the folder since does not matter to them."""

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
        """Read a folder; again, if its owner replaced it meanwhile. Whether it is a good model shows when it loads."""
        files, state = read_settled(folder, _read)
        if state is None:
            raise DataError(where=folder, expected="a model folder, with model.json in it", got="none")
        return cls(folder, files, state)

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
    try:
        description = (folder / "model.json").read_bytes()
    except FileNotFoundError:
        return {}
    names = [name for name in _named(description) if (folder / name).is_file()]
    return {"model.json": description} | {name: (folder / name).read_bytes() for name in names}


def _named(description: bytes) -> list[str]:
    """The files that a description names; none if it is damaged, which loading reports."""
    try:
        return [name for name in json.loads(description)["files"] if name != "model.json" and Path(name).name == name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
