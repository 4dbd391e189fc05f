"""The binary form of a data set: a folder of ``.npy`` files that are mapped, not read, and a ``meta.json``.

``read`` keeps one beside each large file, so that the second reading is near-instant. It is used only while the file
has the size and time that it had, and never trusted: sizes, types and checksums are looked at each time (of the large
arrays, checksums of samples, so that opening stays a matter of milliseconds).
"""

from __future__ import annotations

import json
import logging
import os
import stat
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset, Texts
from tierank.errors import DataError
from tierank.files import replacing

FORMAT = 1
SUFFIX = ".tierank"
# Files below this size are read faster than one can notice; a cache beside them would only be in the way.
_WORTH_IT = 4 << 20
_SAMPLE = 1 << 12

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


def write_folder(data: RankingDataset, path: Path, source: dict[str, Any] | None = None) -> None:
    """Write the binary form of a data set; ``source`` says what it was made from."""
    if data.query_ids.dtype.kind not in "iuU":
        data_ids = np.array([str(i) for i in data.query_ids.tolist()])
    else:
        data_ids = data.query_ids
    arrays: dict[str, NDArray[Any] | None] = {
        "features": data.features,
        "ratings": data.ratings if data.is_rated else None,
        "offsets": data.offsets,
        "query_ids": data_ids,
        "source_rows": data._source_rows,
        "row_weight": data.row_weight,
        "query_weight": data.query_weight,
        "document_blob": None if data.document_texts is None else data.document_texts.blob,
        "document_ends": None if data.document_texts is None else data.document_texts.ends,
    }
    with replacing(path) as fresh:
        fresh.mkdir()
        files = {}
        for name, array in arrays.items():
            if array is not None:
                np.save(fresh / f"{name}.npy", array, allow_pickle=False)
                files[name] = _fingerprint(fresh / f"{name}.npy")
        meta = {"format": FORMAT, "source": source, "feature_names": data.feature_names, "files": files}
        (fresh / "meta.json").write_text(json.dumps(meta))


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


def cached(path: Path, settings: dict[str, Any]) -> RankingDataset | None:
    """What the cache beside ``path`` holds, if it was made from this very file with these settings."""
    folder = _beside(path)
    if not folder.is_dir():
        return None
    try:
        if _meta(folder)["source"] != _source(path, settings):
            return None
        return read_folder(folder)
    except DataError as error:
        logging.getLogger("tierank").warning("tierank: the cache is not used, the file is read again: %s", error)
        return None


def keep(data: RankingDataset, path: Path, settings: dict[str, Any]) -> None:
    """Write the cache beside ``path`` where it is worth it and allowed; a failure is no reason to stop."""
    if path.stat().st_size < _WORTH_IT or not _writable(path.parent):
        return
    try:
        write_folder(data, _beside(path), _source(path, settings))
    except OSError as error:
        logging.getLogger("tierank").warning("tierank: no cache was written beside %s: %s", path, error)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def _writable(folder: Path) -> bool:
    """Whether the folder may be written, also for a user to whom no permission is denied."""
    return bool(folder.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)) and os.access(folder, os.W_OK)


def _source(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What identifies the file and how it was read; files beside it (LightGBM's) count too."""
    sources = [path, *(beside for end in (".query", ".weight") if (beside := Path(f"{path}{end}")).exists())]
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
        meta = json.loads(file.read_text())
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
