"""The served models: loaded, checked by scoring, and replaced while requests are answered."""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank import __version__
from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError, TierankError
from tierank.explain import Explanation, explain_rows
from tierank.kernels import one_thread
from tierank.models import FolderState, read_settled, state_of
from tierank.rankers import Ranked, Ranker, load
from tierank.serve.documents import Documents, Features, Matrix
from tierank.serve.snapshots import Snapshot

# Names of models are used in metrics and log lines.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# Number of documents that a new model has to score before it is served.
_PROOF = 8


@dataclass(frozen=True)
class Version:
    """A loaded ranker. A request is answered by one version, even if that is replaced in the meantime."""

    ranker: Ranker
    features: Features
    needs_list: bool
    checksum: str | None
    loaded: float = field(default_factory=time.time)

    @classmethod
    def of(cls, ranker: Ranker, checksum: str | None) -> Version:
        """A version that is ready to serve: it has scored lists, so that everything is loaded and compiled."""
        ranker.check_fitted()
        seen = ranker.seen_
        features = Features(seen.n_features, seen.feature_names, seen.has_missing, seen.columns)
        version = cls(ranker, features, ranker.needs_list(), checksum)
        version._prove()
        return version

    def scores(self, lists: list[Documents]) -> NDArray[np.float64]:
        """A score for each document of some queries, which are not empty."""
        with one_thread():
            return self.ranker.predict(_as_dataset([documents.features for documents in lists], self.features))

    def ranked(self, documents: Documents, k: int | None) -> Ranked:
        """The best documents of one query."""
        with one_thread():
            return self.ranker.rank(_as_dataset([documents.features], self.features), k=k)

    def explained(self, documents: Documents, above: NDArray[np.int64], below: NDArray[np.int64]) -> list[Explanation]:
        """Why some rows of one query are ranked above others."""
        data = _as_dataset([documents.features], self.features)
        with one_thread():
            return explain_rows(self.ranker, data, above, below)

    def describe(self) -> dict[str, Any]:
        """A dict for JSON: the ranker, its features, and when and with which version it was loaded."""
        names, kinds = self.features.names, self.features.plan.kinds
        columns = {"columns": {name: kind.NAME for name, kind in kinds.items()}} if kinds else {}
        return columns | {
            "ranker": type(self.ranker).__name__,
            "n_features": self.features.n,
            "features": None if names is None else list(names),
            "may_leave_out_features": self.features.has_missing and names is not None,
            "needs_whole_list": self.needs_list,
            "checksum": self.checksum,
            "tierank": __version__,
            "loaded": datetime.fromtimestamp(self.loaded, UTC).isoformat(timespec="seconds"),
        }

    def _prove(self) -> None:
        rows = np.linspace(0, 1, _PROOF, dtype=np.float32)[:, None].repeat(self.features.n_made, axis=1)
        for n in (1, _PROOF):
            scores = self.ranked(Documents(None, rows[:n]), None).score
            if scores.shape != (n,) or not np.isfinite(scores).all():
                raise DataError(f"expected a finite score for each of {n} documents, got {scores}; train it again")


class ServedModel:
    """A name, and the version that serves it."""

    def __init__(
        self, name: str, version: Version, folder: Path | None = None, seen: FolderState | None = None
    ) -> None:
        self.name, self.version, self.folder, self._seen = name, version, folder, seen

    @classmethod
    def of(cls, name: str, ranker: Ranker) -> ServedModel:
        """The model of a ranker in memory."""
        if not isinstance(ranker, Ranker):
            raise ParameterError(f"model {name!r}: expected a fitted ranker of tierank, got {type(ranker).__name__}")
        return cls(checked_name(name), Version.of(ranker, _checksum_of(ranker)))

    @classmethod
    def read(cls, name: str, folder: str | os.PathLike[str]) -> ServedModel:
        """The model of a folder."""
        path = Path(folder)
        version, seen = read_settled(path, _read_once)
        return cls(checked_name(name), version, path, seen)

    @classmethod
    def restored(cls, name: str, snapshot: Snapshot) -> ServedModel:
        """The model of a folder as it was when the snapshot was taken."""
        with snapshot.written() as place:
            return cls(checked_name(name), _read_copy(place, snapshot.folder), snapshot.folder, snapshot.state)

    @property
    def has_changed(self) -> bool:
        """Whether the folder has changed since it was last read."""
        return self.folder is not None and state_of(self.folder) not in (None, self._seen)

    def replace(self) -> bool:
        """Replace the model by the one that is now in the folder; after an error the old one stays.

        Returns False if it is the same model as before.
        """
        if self.folder is None:
            return False
        self._seen = state_of(self.folder)  # a broken model is not tried again
        version, self._seen = read_settled(self.folder, _read_once)
        if version.checksum == self.version.checksum:
            return False
        self._check_features(version)
        self.version = version
        return True

    def proposed(self, place: Path) -> Version:
        """The new version, loaded from a copy of the folder, if it can replace the old one; the caller decides when."""
        if self.folder is None:
            raise ParameterError(f"model {self.name}: expected a model from a folder, got one in memory")
        version = _read_copy(place, self.folder)
        self._check_features(version)
        return version

    def _check_features(self, version: Version) -> None:
        old, new = self.version.features, version.features
        if (old.n, old.names, old.kinds) != (new.n, new.names, new.kinds):
            raise DataError(
                f"{self.folder}: expected the features of the model that it replaces, got {_change(old, new)};"
                " serve it under another name, or start again"
            )


def _read_copy(place: Path, folder: Path) -> Version:
    """The model in a copy of a folder; errors name the folder itself."""
    try:
        return _read_once(place)
    except TierankError as error:
        raise DataError(str(error).replace(str(place), str(folder))) from None


def _read_once(folder: Path) -> Version:
    ranker = load(folder)
    # The description holds the checksums of all other files.
    checksum = hashlib.sha256((folder / "model.json").read_bytes()).hexdigest()
    try:
        return Version.of(ranker, checksum)
    except DataError as error:
        raise DataError(f"{folder}: {error}") from None


def _checksum_of(ranker: Ranker) -> str | None:
    """The checksum that the model would have as a folder; None if it cannot be saved."""
    ranker.check_fitted()
    try:
        return hashlib.sha256(ranker.model_files()["model.json"]).hexdigest()
    except DataError:
        return None


def _change(old: Features, new: Features) -> str:
    if old.n != new.n:
        return f"{new.n} in place of {old.n}"
    if (old.names is None) != (new.names is None):
        return "names" if old.names is None else "no names"
    pairs = zip(old.names or (), new.names or (), strict=True)
    renamed = next((f"{b!r} in place of {a!r}" for a, b in pairs if a != b), None)
    return renamed or next(
        f"{new.kinds.get(name, 'nothing')} in place of {old.kinds.get(name, 'nothing')} for {name!r}"
        for name in (*old.kinds, *new.kinds)
        if old.kinds.get(name) != new.kinds.get(name)
    )


def checked_name(name: str) -> str:
    """The name of a model, checked."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ParameterError(
            f"name of a model: expected letters, digits, '.', '_' and '-', got {name!r}; name it: NAME=MODEL"
        )
    return name


def _as_dataset(lists: list[Matrix], of: Features) -> RankingDataset:
    """A data set of checked features of some queries, none of them empty."""
    offsets = np.cumsum([0, *map(len, lists)])
    features = lists[0] if len(lists) == 1 else np.concatenate(lists)
    return RankingDataset.from_parts(
        features, None, offsets, np.arange(len(lists)), feature_names=of.made, kinds=of.plan.kinds
    )
