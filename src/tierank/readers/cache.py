"""The binary form of a data set: a folder of ``.npy`` files that are mapped, not read, and a ``meta.json``.

``read`` keeps one next to each large file, so that reading it again is near-instant. It is used only while the file is
the same as when the cache was written, by size, times and inode. It is never trusted: types, checksums and values are
checked each time, as for any other data (only a sample of the features, so that opening takes milliseconds).

It is built in place: the reader writes features directly to the mapped file of the cache, so that data sets larger than
memory can be read, with some tens of bytes of memory per document.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.checks import (
    as_ids,
    as_names,
    as_offsets,
    as_positions,
    as_propensities,
    as_weights,
    check_finite,
    check_ratings,
    check_texts,
)
from tierank.dataset import RankingDataset
from tierank.errors import DataError
from tierank.files import FolderKind, building, read_json
from tierank.kinds import Category, kinds_from_json, kinds_to_json
from tierank.memory import Allocator, chunks, in_file
from tierank.readers.arrays import mapped_array, read_array
from tierank.readers.columns import files_of
from tierank.readers.paths import unreadable
from tierank.text_blocks import Texts

FORMAT = 1
SUFFIX = ".tierank"
# Smaller files are read so fast that a cache would only be clutter.
_WORTH_IT = 4 << 20
_SAMPLE = 1 << 12

# Dtypes of query ids that an array file can hold; others become texts.
_ID_KINDS = "biufmMUS"

_TYPES = {
    "features": "<f4",
    "ratings": "<f8",
    "offsets": "<i8",
    "source_rows": "<i8",
    "row_weight": "<f8",
    "query_weight": "<f8",
    "position": "<i8",
    "propensity": "<f8",
    "document_blob": "|u1",
    "document_ends": "<i8",
}


class _CacheKind(FolderKind):
    """Caches, which can be rebuilt from their file; not data sets that a user wrote."""

    def is_in(self, folder: Path) -> bool:
        """Whether the folder names the file that it was made from."""
        content = self.content(folder)
        return content is not None and content["source"] is not None


_DATA = FolderKind("a data set", "meta.json", ("format", "source", "feature_names", "files"))
_CACHE = _CacheKind("the cache of a file", _DATA.file, _DATA.names)


def write_folder(data: RankingDataset, path: Path) -> None:
    """Write the binary form of a data set."""
    with building(path, _DATA) as fresh:
        _write_features(data.features, fresh / "features.npy")
        _finish(data, fresh, None)


def build_folder(
    path: Path, build: Callable[[Allocator], RankingDataset], source: dict[str, Any] | None = None
) -> RankingDataset:
    """The data set that ``build`` returns, with features that it wrote in place to a new binary folder.

    ``source`` describes the file it is made from; only a cache of a file may be replaced.
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
    """Write everything except the features, which are already there, and the description."""
    _check_values(data)
    arrays: dict[str, NDArray[Any] | None] = {
        "ratings": data.ratings if data.is_rated else None,
        "offsets": data.offsets,
        "query_ids": _stored_ids(data),
        "source_rows": None if data.is_in_order else data.source_rows,
        "row_weight": data.row_weight,
        "query_weight": data.query_weight,
        "position": data.position,
        "propensity": data.propensity,
        "document_blob": None if data.document_texts is None else data.document_texts.blob,
        "document_ends": None if data.document_texts is None else data.document_texts.ends,
    }
    files = {"features": _fingerprint(folder / "features.npy")}
    for name, array in arrays.items():
        if array is not None:
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
            files[name] = _fingerprint(folder / f"{name}.npy")
    kinds = kinds_to_json(data.kinds)
    meta = {"format": FORMAT, "source": source, "feature_names": data.feature_names, "kinds": kinds, "files": files}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def _stored_ids(data: RankingDataset) -> NDArray[Any]:
    """The query ids as an array file holds them. Raises ``DataError`` if two would become equal."""
    ids = data.query_ids
    if ids.dtype.kind in _ID_KINDS:
        return ids
    given = ids.tolist()
    are_bytes = all(isinstance(i, bytes) for i in given)
    stored = np.array(given if are_bytes else data.query_texts())
    if len(set(stored.tolist())) < len(given):  # numpy drops trailing NUL characters
        twice = next(i for i, count in Counter(stored.tolist()).items() if count > 1)
        raise DataError(
            f"expected query ids that differ by more than trailing NULs, got {twice!r} twice; rename one of them"
        )
    return stored


def read_folder(path: Path) -> RankingDataset:
    """The data set of a folder that ``write_folder`` wrote; its arrays are mapped."""
    meta = _meta(path)
    arrays = {}
    for name, fingerprint in meta["files"].items():
        file = path / f"{name}.npy"
        if name != "query_ids" and name not in _TYPES:
            raise DataError(f"{path}: expected the arrays of a data set, got {name!r}; delete the folder")
        try:
            is_same = file.is_file() and _fingerprint(file) == fingerprint
        except OSError:  # another process removed it, or the disk is damaged
            is_same = False
        if not is_same:
            raise DataError(f"{file}: expected the file that meta.json describes, got another or none; delete {path}")
        try:
            # Small arrays are read, so that they can be checked; the matrix stays on disk.
            arrays[name] = mapped_array(file) if name == "features" else read_array(file)
        except DataError as error:
            raise DataError(f"{error}; delete {path}") from None
    _check_shapes(arrays, path)
    texts = Texts(arrays["document_blob"], arrays["document_ends"]) if "document_ends" in arrays else None
    data = RankingDataset.from_parts(
        arrays["features"],
        arrays.get("ratings"),
        arrays["offsets"],
        arrays["query_ids"],
        source_rows=arrays.get("source_rows"),
        row_weight=arrays.get("row_weight"),
        query_weight=arrays.get("query_weight"),
        position=arrays.get("position"),
        propensity=arrays.get("propensity"),
        feature_names=tuple(meta["feature_names"]) if meta["feature_names"] else None,
        document_texts=texts,
    )
    try:
        data = data.replace(kinds=kinds_from_json(meta.get("kinds", {}), data.feature_names))
        _check_values(data)
    except DataError as error:
        raise DataError(f"{path}: {error}; delete the folder") from None
    return data


def held_in(
    folder: Path, path: Path, settings: dict[str, Any], build: Callable[[Allocator], RankingDataset]
) -> RankingDataset:
    """The data set of the cache ``folder``, if made from ``path`` with these settings; otherwise ``build`` fills it."""
    cached = _cached(folder, path, settings)
    if cached is not None:
        return cached
    return build_folder(folder, build, _source(path, settings))


def held_beside(
    path: Path, settings: dict[str, Any], build: Callable[[Allocator], RankingDataset]
) -> RankingDataset | None:
    """As ``held_in``, for the cache next to ``path``; None if there is none and none should or can be written."""
    folder, source = _beside(path), _source(path, settings)
    cached = _cached(folder, path, settings)
    if cached is not None:
        return cached
    if sum(size for _, size, *_ in source["files"]) < _WORTH_IT or not _writable(folder.parent):
        return None
    refusal: object = _CACHE.refusal(folder)
    try:
        if refusal is None:
            return build_folder(folder, build, source)
    except OSError as error:
        refusal = error
    logging.getLogger("tierank").warning("tierank: no cache was written for %s: %s", path, refusal)
    return None


def _cached(folder: Path, path: Path, settings: dict[str, Any]) -> RankingDataset | None:
    """The data set of a folder, if it was made from this file with these settings."""
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
    """Whether a folder was made from this source; a cache of named features serves any choice among them."""
    wanted, found = source["settings"], meta["source"]
    if wanted.get("features") is None or not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
        return bool(found == source)
    alike = {name: wanted[name] for name in ("features", "ignore")}
    chosen = meta["feature_names"] == wanted["features"]
    return chosen and found | {"settings": found["settings"] | alike} == source


def _beside(path: Path) -> Path:
    """The cache of a file, or of a folder; its name cannot be mistaken for a data set that a user wrote there."""
    whole = path.resolve() if path.is_dir() else path
    form = ".parquet" if whole.is_dir() and whole.suffix != ".parquet" else ""
    return whole.with_name(whole.name + form + SUFFIX)


def _writable(folder: Path) -> bool:
    """Whether the folder may be written; checks permission bits, as root is never denied."""
    return bool(folder.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)) and os.access(folder, os.W_OK)


def _source(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What identifies the files and how they were read, including LightGBM's companion files."""
    sources = [*files_of(path), *(beside for end in (".query", ".weight") if (beside := Path(f"{path}{end}")).exists())]
    try:
        return {"files": [_stamp(file) for file in sources], "settings": settings}
    except OSError as error:
        raise unreadable(path, error) from None


def _stamp(file: Path) -> list[str | int]:
    """What distinguishes a file from a later one of the same name.

    ``cp -p`` and ``rsync -t`` set the modification time, but not that of the inode (ctime). The device number is left
    out: machines that share a network disk do not agree on it.
    """
    status = file.stat()
    return [file.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _fingerprint(file: Path) -> list[int]:
    """The size of a file and a checksum of 16 samples of it (of the whole file if it is small)."""
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
        meta = read_json(file)
        version, files, names, source = meta["format"], meta["files"], meta["feature_names"], meta["source"]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{file}: expected the description of a data set, got a damaged file; delete {path}") from None
    if version != FORMAT:
        raise DataError(f"{file}: expected format {FORMAT}, got {version!r}; delete {path}, and it is built again")
    if not isinstance(files, dict) or not {"features", "offsets", "query_ids"} <= files.keys():
        raise DataError(f"{file}: expected features, offsets and query_ids among its files; delete {path}")
    are_names = names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))
    if not are_names or not (source is None or isinstance(source, dict)):
        raise DataError(f"{file}: expected the description of a data set, got a damaged file; delete {path}")
    return dict(meta)


def _check_shapes(arrays: dict[str, NDArray[Any]], path: Path) -> None:
    """Raise ``DataError`` if the shapes of the arrays are inconsistent: compiled loops trust them."""
    fits = all(array.ndim == 1 + (name == "features") for name, array in arrays.items())
    fits = fits and all(array.dtype.str == _TYPES[name] for name, array in arrays.items() if name in _TYPES)
    fits = fits and arrays["query_ids"].dtype.kind in _ID_KINDS
    features, n_queries = arrays["features"], len(arrays["query_ids"]) if fits else 0
    fits = fits and features.size > 0 and features.flags.c_contiguous
    lengths = {"offsets": n_queries + 1, "query_ids": n_queries, "query_weight": n_queries}
    others = (name for name in arrays if name != "document_blob")
    fits = fits and all(len(arrays[name]) == lengths.get(name, len(features)) for name in others)
    fits = fits and arrays["offsets"][-1] == len(features)
    fits = fits and ("source_rows" not in arrays or _is_permutation(arrays["source_rows"]))
    fits = fits and ("document_ends" in arrays) == ("document_blob" in arrays)
    fits = fits and ("document_ends" not in arrays or _are_ends(arrays["document_ends"], len(arrays["document_blob"])))
    if not fits:
        raise DataError(f"{path}: expected consistent arrays, got contradicting ones; delete the folder")


def _is_permutation(rows: NDArray[np.int64]) -> bool:
    seen = np.zeros(len(rows), bool)
    if rows.min() < 0 or rows.max() >= len(rows):
        return False
    seen[rows] = True
    return bool(seen.all())


def _are_ends(ends: NDArray[np.int64], size: int) -> bool:
    return bool(ends[0] >= 0 and ends[-1] == size and (np.diff(ends) >= 0).all())


def _check_values(data: RankingDataset) -> None:
    """Raise ``DataError`` if a data set holds values that no data set from files or tables can hold.

    A sample of the feature rows is checked, as for the checksum; all rows if they are few.
    """
    as_offsets(data.offsets)
    as_names(data.feature_names, data.n_features)
    ids = as_ids(data.query_ids)
    check_texts((i for i in ids.tolist() if isinstance(i, str)), "query_ids")
    if len(np.unique(ids) if ids.dtype.kind in _ID_KINDS else set(ids.tolist())) < len(ids):
        raise DataError("query_ids: expected each query once, got one twice")
    if data.is_rated:
        check_ratings(data.ratings, lambda row: f"ratings, row {row}")
    for name, n in (("row_weight", data.n_documents), ("query_weight", data.n_queries)):
        weights = getattr(data, name)
        if weights is not None:
            as_weights(weights, name, n)
    _check_codes(data)
    if data.position is not None:
        as_positions(data.position, data.n_documents)
    if data.propensity is not None:
        as_propensities(data.propensity)
    step = 1 if data.features.nbytes <= 64 * _SAMPLE else max(1, data.n_documents // 64)
    infinite = np.isinf(data.features[::step]).any(axis=1)
    if infinite.any():
        row = step * int(infinite.argmax())
        check_finite(data.features[row : row + 1], data.features[row : row + 1], row)


def _check_codes(data: RankingDataset) -> None:
    """Raise ``DataError`` if a category has a number outside its levels; checks a sample of large data."""
    step = max(1, data.n_documents // _SAMPLE)
    for place, name in enumerate(data.feature_names or ()):
        kind = data.kinds.get(name)
        if isinstance(kind, Category):
            codes = data.features[::step, place]
            if (((codes < 0) | (codes >= len(kind.levels)) | (codes != np.rint(codes))) & ~np.isnan(codes)).any():
                raise DataError(f"feature {name!r}: expected numbers of its {len(kind.levels)} levels, got others")
