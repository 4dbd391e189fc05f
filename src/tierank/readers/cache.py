"""The binary form of a data set: a folder of ``.npy`` files that are mapped, not read, and a ``meta.json``.

``read`` keeps one beside each large file, so that the second reading is near-instant. It is used only while the file
has the size and time that it had, and never trusted: sizes, types and checksums are looked at each time (of the large
arrays, checksums of samples, so that opening stays a matter of milliseconds).

It is built in place: the reader fills the map of the file that the features will stay in, so that data sets larger than
memory can be read, and need some tens of bytes of it per document.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset, Texts
from tierank.errors import DataError
from tierank.files import Mark, building
from tierank.inputs import Room, chunks, in_file
from tierank.readers.columns import files_of

FORMAT = 1
SUFFIX = ".tierank"
# Files below this size are read faster than one can notice; a cache beside them would only be in the way.
_WORTH_IT = 4 << 20
_SAMPLE = 1 << 12

# Query ids that an array file holds as they are; others become texts.
_ID_KINDS = "biufmMU"

_TYPES = {
    "features": "<f4",
    "ratings": "<f8",
    "offsets": "<i8",
    "source_rows": "<i8",
    "row_weight": "<f8",
    "query_weight": "<f8",
    "document_blob": "|u1",
    "document_ends": "<i8",
}


class _CacheMark(Mark):
    """Data sets that were made from a file, and can be made from it again; not those that somebody wrote."""

    def is_in(self, folder: Path) -> bool:
        """Whether the folder says what it was made from."""
        found = self.content(folder)
        return found is not None and found["source"] is not None


_DATA = Mark("a data set", "meta.json", ("format", "source", "feature_names", "files"))
_CACHE = _CacheMark("the cache of a file", _DATA.file, _DATA.names)


def write_folder(data: RankingDataset, path: Path) -> None:
    """Write the binary form of a data set."""
    with building(path, _DATA) as fresh:
        _write_features(data.features, fresh / "features.npy")
        _finish(data, fresh, None)


def build_folder(
    path: Path, build: Callable[[Room], RankingDataset], source: dict[str, Any] | None = None
) -> RankingDataset:
    """The data set that ``build`` gives, with features that it filled in their place in a new binary folder.

    ``source`` says what it was made from: it may take the place of such a one only.
    """
    with building(path, _DATA if source is None else _CACHE) as fresh:
        _finish(build(partial(in_file, fresh / "features.npy")), fresh, source)
    return read_folder(path)


def _write_features(features: NDArray[np.float32], file: Path) -> None:
    with file.open("wb") as opened:
        header = {"descr": _TYPES["features"], "fortran_order": False, "shape": features.shape}
        np.lib.format.write_array_header_1_0(opened, header)
        for chunk in chunks(features):
            chunk.tofile(opened)


def _finish(data: RankingDataset, folder: Path, source: dict[str, Any] | None) -> None:
    """Write all but the features, which are there, and the description of all."""
    ids = data.query_ids
    arrays: dict[str, NDArray[Any] | None] = {
        "ratings": data.ratings if data.is_rated else None,
        "offsets": data.offsets,
        "query_ids": ids if ids.dtype.kind in _ID_KINDS else np.array(data.query_texts()),
        "source_rows": data._source_rows,
        "row_weight": data.row_weight,
        "query_weight": data.query_weight,
        "document_blob": None if data.document_texts is None else data.document_texts.blob,
        "document_ends": None if data.document_texts is None else data.document_texts.ends,
    }
    files = {"features": _fingerprint(folder / "features.npy")}
    for name, array in arrays.items():
        if array is not None:
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
            files[name] = _fingerprint(folder / f"{name}.npy")
    meta = {"format": FORMAT, "source": source, "feature_names": data.feature_names, "files": files}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def read_folder(path: Path) -> RankingDataset:
    """The data set of a folder that ``write_folder`` wrote; its arrays are mapped."""
    meta = _meta(path)
    arrays = {}
    for name, fingerprint in meta["files"].items():
        file = path / f"{name}.npy"
        if name != "query_ids" and name not in _TYPES:
            raise DataError(f"{path}: expected the arrays of a data set, got {name!r}; delete the folder")
        if not file.is_file() or _fingerprint(file) != fingerprint:
            raise DataError(f"{file}: expected the file that meta.json describes, got another or none; delete {path}")
        try:
            # Small arrays are read, so that they can be checked; the matrix stays on disk.
            arrays[name] = np.asarray(np.load(file, mmap_mode="r" if name == "features" else None, allow_pickle=False))
        except (ValueError, OSError, EOFError) as error:
            raise DataError(f"{file}: expected an array, got a damaged file ({error}); delete {path}") from None
    _check(arrays, path)
    texts = Texts(arrays["document_blob"], arrays["document_ends"]) if "document_ends" in arrays else None
    return RankingDataset.from_parts(
        arrays["features"],
        arrays.get("ratings"),
        arrays["offsets"],
        arrays["query_ids"],
        source_rows=arrays.get("source_rows"),
        row_weight=arrays.get("row_weight"),
        query_weight=arrays.get("query_weight"),
        feature_names=tuple(meta["feature_names"]) if meta["feature_names"] else None,
        document_texts=texts,
    )


def held_in(
    folder: Path, path: Path, settings: dict[str, Any], build: Callable[[Room], RankingDataset]
) -> RankingDataset:
    """What ``folder`` holds, if it was made from ``path`` with these settings; or else what ``build`` fills it with."""
    found = _cached(folder, path, settings)
    if found is not None:
        return found
    return build_folder(folder, build, _source(path, settings))


def held_beside(path: Path, settings: dict[str, Any], build: Callable[[Room], RankingDataset]) -> RankingDataset | None:
    """As ``held_in``, of the cache beside ``path``; None where there is none and none is to be made, or can be."""
    folder, source = _beside(path), _source(path, settings)
    found = _cached(folder, path, settings)
    if found is not None:
        return found
    if sum(size for _, size, _ in source["files"]) < _WORTH_IT or not _writable(folder.parent):
        return None
    refusal: object = _CACHE.refusal(folder)
    try:
        if refusal is None:
            return build_folder(folder, build, source)
    except OSError as error:
        refusal = error
    logging.getLogger("tierank").warning("tierank: no cache was written beside %s: %s", path, refusal)
    return None


def _cached(folder: Path, path: Path, settings: dict[str, Any]) -> RankingDataset | None:
    """What a folder holds, if it was made from this file with these settings."""
    if not folder.is_dir():
        return None
    try:
        if not _is_of(_meta(folder), _source(path, settings)):
            return None
        return read_folder(folder)
    except DataError as error:
        logging.getLogger("tierank").warning("tierank: the cache is not used, the file is read again: %s", error)
        return None


def _is_of(meta: dict[str, Any], source: dict[str, Any]) -> bool:
    """Whether a folder was made from this; features that are named may have been chosen in another way."""
    wanted, found = source["settings"], meta["source"]
    if wanted.get("features") is None or not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
        return bool(found == source)
    alike = {name: wanted[name] for name in ("features", "ignore")}
    chosen = meta["feature_names"] == wanted["features"]
    return chosen and found | {"settings": found["settings"] | alike} == source


def _beside(path: Path) -> Path:
    """The cache of a file; of a folder, with a name that tells it from a data set that somebody wrote there."""
    whole = path.resolve() if path.is_dir() else path
    form = ".parquet" if whole.is_dir() and whole.suffix != ".parquet" else ""
    return whole.with_name(whole.name + form + SUFFIX)


def _writable(folder: Path) -> bool:
    """Whether the folder may be written, also for a user to whom no permission is denied."""
    return bool(folder.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)) and os.access(folder, os.W_OK)


def _source(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What identifies the files and how they were read; files beside them (LightGBM's) count too."""
    sources = [*files_of(path), *(beside for end in (".query", ".weight") if (beside := Path(f"{path}{end}")).exists())]
    stamps = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in sources]
    return {"files": stamps, "settings": settings}


def _fingerprint(file: Path) -> list[int]:
    """The size of a file and a checksum of 16 samples of it (of all of it, where it is small)."""
    size = file.stat().st_size
    places = range(0, size, _SAMPLE) if size <= 64 * _SAMPLE else [k * (size - _SAMPLE) // 15 for k in range(16)]
    checksum = 0
    with file.open("rb") as opened:
        for place in places:
            opened.seek(place)
            checksum = zlib.crc32(opened.read(_SAMPLE), checksum)
    return [size, checksum]


def _meta(path: Path) -> dict[str, Any]:
    file = path / "meta.json"
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
        version, files, names = meta["format"], meta["files"], meta["feature_names"]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{file}: expected the description of a data set, got a damaged file; delete {path}") from None
    if version != FORMAT:
        raise DataError(f"{file}: expected format {FORMAT}, got {version!r}; delete {path}, it is made anew")
    if not isinstance(files, dict) or not {"features", "offsets", "query_ids"} <= files.keys():
        raise DataError(f"{file}: expected features, offsets and query_ids among its files; delete {path}")
    if not (names is None or isinstance(names, list)) or "source" not in meta:
        raise DataError(f"{file}: expected the description of a data set, got a damaged file; delete {path}")
    return dict(meta)


def _check(arrays: dict[str, NDArray[Any]], path: Path) -> None:
    """Whether the arrays fit each other: what a data set built here can rely on."""
    offsets, features = arrays["offsets"], arrays["features"]
    fits = (
        features.ndim == 2
        and features.flags.c_contiguous
        and all(array.dtype.str == _TYPES[name] for name, array in arrays.items() if name in _TYPES)
    )
    fits = fits and offsets.ndim == 1 and len(offsets) > 1 and offsets[0] == 0 and bool((np.diff(offsets) > 0).all())
    fits = fits and offsets[-1] == len(features) and len(arrays["query_ids"]) == len(offsets) - 1
    per_document = ("ratings", "row_weight", "source_rows", "document_ends")
    fits = fits and all(arrays[name].shape == (len(features),) for name in per_document if name in arrays)
    fits = fits and ("query_weight" not in arrays or arrays["query_weight"].shape == (len(offsets) - 1,))
    fits = fits and (
        "source_rows" not in arrays or bool((np.sort(arrays["source_rows"]) == np.arange(len(features))).all())
    )
    fits = fits and ("document_ends" in arrays) == ("document_blob" in arrays)
    if not fits:
        raise DataError(f"{path}: expected arrays that fit each other, got others; delete the folder, it is made anew")
