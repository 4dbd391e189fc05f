"""The models that are served: loaded, proved by scoring, and replaced while requests are answered."""

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
from tierank.data.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.kernels import one_thread
from tierank.rankers import load
from tierank.rankers.base import Ranked, Ranker, model_files
from tierank.rankers.explain import Explanation, explain_rows
from tierank.rankers.folder import FolderState, read_settled, state_of
from tierank.serve.requests import Documents, Features

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
        seen = ranker.seen_
        features = Features(seen.n_features, seen.feature_names, seen.has_missing, seen.columns)
        version = cls(ranker, features, ranker.needs_list(), checksum)
        rows = np.linspace(0, 1, _PROOF, dtype=np.float32)[:, None].repeat(features.n_made, axis=1)
        for n in (1, _PROOF):
            scores = version.ranked(Documents(None, rows[:n]), None).score
            if scores.shape != (n,) or not np.isfinite(scores).all():
                expected = f"a finite score for each of {n} documents"
                raise DataError(expected=expected, got=f"{scores}", fix="train the model again")
        return version

    @classmethod
    def read(cls, folder: Path) -> Version:
        """The version in a model folder."""
        ranker = load(folder)
        # The description holds the checksums of all other files.
        checksum = hashlib.sha256((folder / "model.json").read_bytes()).hexdigest()
        try:
            return cls.of(ranker, checksum)
        except DataError as error:
            raise error.at(folder) from None

    def scores(self, lists: list[Documents]) -> NDArray[np.float64]:
        """A score for each document of some queries, which are not empty."""
        with one_thread():
            return self.ranker.predict(self._dataset(lists))

    def ranked(self, documents: Documents, k: int | None) -> Ranked:
        """The best documents of one query."""
        with one_thread():
            return self.ranker.rank(self._dataset([documents]), k=k)

    def explained(self, documents: Documents, above: NDArray[np.int64], below: NDArray[np.int64]) -> list[Explanation]:
        """Why some rows of one query are ranked above others."""
        with one_thread():
            return explain_rows(self.ranker, self._dataset([documents]), above, below)

    def _dataset(self, lists: list[Documents]) -> RankingDataset:
        parts = [documents.features for documents in lists]
        features = parts[0] if len(parts) == 1 else np.concatenate(parts)
        offsets, numbers = np.cumsum([0, *map(len, parts)]), np.arange(len(parts))
        names, kinds = self.features.made, self.features.plan.kinds
        return RankingDataset.from_parts(features, None, offsets, numbers, feature_names=names, kinds=kinds)

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


class ServedModel:
    """A name, and the version that serves it."""

    def __init__(
        self, name: str, version: Version, folder: Path | None = None, seen: FolderState | None = None
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            expected = "letters, digits, '.', '_' and '-'"
            raise ParameterError(where="name of a model", expected=expected, got=repr(name), fix="name it: NAME=MODEL")
        self.name, self.version, self.folder, self._seen = name, version, folder, seen

    @classmethod
    def of(cls, name: str, ranker: Ranker) -> ServedModel:
        """The model of a ranker in memory; its checksum is that of its folder, None if it cannot be saved."""
        if not isinstance(ranker, Ranker):
            raise ParameterError(
                where=f"model {name!r}", expected="a fitted ranker of tierank", got=type(ranker).__name__
            )
        try:
            checksum = hashlib.sha256(model_files(ranker)["model.json"]).hexdigest()
        except DataError:
            checksum = None
        return cls(name, Version.of(ranker, checksum))

    @classmethod
    def read(cls, name: str, folder: str | os.PathLike[str]) -> ServedModel:
        """The model of a folder."""
        path = Path(folder)
        version, seen = read_settled(path, Version.read)
        return cls(name, version, path, seen)

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
        version, self._seen = read_settled(self.folder, Version.read)
        if version.checksum == self.version.checksum:
            return False
        old, new = self.version.features, version.features
        if (old.n, old.names, old.kinds) != (new.n, new.names, new.kinds):
            expected, fix = "the features of the model that it replaces", "serve it under another name, or start again"
            raise DataError(where=self.folder, expected=expected, got=_change(old, new), fix=fix)
        self.version = version
        return True


def _change(old: Features, new: Features) -> str:
    """What differs first, in words."""
    if old.n != new.n:
        return f"{new.n} in place of {old.n}"
    if old.names is None or new.names is None:
        return "names" if old.names is None else "no names"
    for before, now in zip(old.names, new.names, strict=True):
        if before != now:
            return f"{now!r} in place of {before!r}"
    name = next(name for name in old.names if old.kinds.get(name) != new.kinds.get(name))
    return f"{new.kinds.get(name)} in place of {old.kinds.get(name)} for {name!r}"
