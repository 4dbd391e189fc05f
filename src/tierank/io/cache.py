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
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Allocator, chunks, in_file
from tierank.data.checks import (
    as_ids,
    as_names,
    as_offsets,
    as_positions,
    as_propensities,
    as_weights,
    check_finite,
    check_ratings,
    check_texts,
    twice_in,
)
from tierank.data.columns import Category, kinds_from_json, kinds_to_json
from tierank.data.dataset import RankingDataset
from tierank.data.text import StringArray
from tierank.errors import DataError, located
from tierank.files import FolderKind, building, read_json
from tierank.io.layout import files_of
from tierank.io.paths import unreadable

FORMAT = 1
SUFFIX = ".tierank"
# Smaller files are read so fast that a cache would only be clutter.
_WORTH_IT = 4 << 20
_SAMPLE = 1 << 12

# Dtypes of query ids that an array file can hold; others become texts.
_ID_KINDS = "biufmMUS"
# The arrays of the parts of a data set besides query ids, with their types.
_TYPES = {"features": "<f4", "document_blob": "|u1"}
_TYPES |= dict.fromkeys(("ratings", "row_weight", "query_weight", "propensity"), "<f8")
_TYPES |= dict.fromkeys(("offsets", "source_rows", "position", "document_ends"), "<i8")


def read_array(file: Path) -> NDArray[Any]:
    """The array of a file, in memory. Nothing is unpickled."""
    with _refusing(file), file.open("rb") as opened:
        array = np.asarray(np.lib.format.read_array(opened, allow_pickle=False))
        if array.dtype.kind == "U" and array.size and array.view(f"{array.dtype.byteorder}u4").max() > sys.maxunicode:
            raise UnicodeError  # numpy crashes when it converts letters that do not exist to text
        return array


def mapped_array(file: Path) -> NDArray[Any]:
    """The array of a file, memory-mapped."""
    with _refusing(file):
        return np.asarray(np.lib.format.open_memmap(file, mode="r"))


@contextmanager
def _refusing(file: Path) -> Iterator[None]:
    """Turn the various errors of numpy for a damaged header or a forged shape into ``DataError``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # overflowing sizes, headers of other versions
            yield
    except Exception as error:
        what = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        got = f"a damaged file or another type ({what})"
        raise DataError(where=file, expected="an array of numbers", got=got) from None


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
        with (fresh / "features.npy").open("wb") as opened:
            header = {"descr": _TYPES["features"], "fortran_order": False, "shape": data.features.shape}
            np.lib.format.write_array_header_1_0(opened, header)
            for chunk in chunks(data.features):
                chunk.tofile(opened)
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


def _finish(data: RankingDataset, folder: Path, source: dict[str, Any] | None) -> None:
    """Write everything except the features, which are already there, and the description."""
    _check_values(data)
    texts = data.document_texts
    arrays: dict[str, NDArray[Any] | None] = {
        "ratings": data.ratings if data.is_rated else None,
        "offsets": data.offsets,
        "query_ids": _stored_ids(data),
        "source_rows": None if data.is_in_order else data.source_rows,
        **{name: getattr(data, name) for name in ("row_weight", "query_weight", "position", "propensity")},
        "document_blob": None if texts is None else texts.blob,
        "document_ends": None if texts is None else texts.ends,
    }
    files = {"features": _fingerprint(folder / "features.npy")}
    for name, array in arrays.items():
        if array is not None:
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
            files[name] = _fingerprint(folder / f"{name}.npy")
    meta = {
        "format": FORMAT,
        "source": source,
        "feature_names": data.feature_names,
        "kinds": kinds_to_json(data.kinds),
        "files": files,
        "roles": dict(data.roles),
    }
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def _stored_ids(data: RankingDataset) -> NDArray[Any]:
    """The query ids as an array file holds them. Raises ``DataError`` if two would become equal."""
    ids = data.query_ids
    if ids.dtype.kind in _ID_KINDS:
        return ids
    given = ids.tolist()
    are_bytes = all(isinstance(i, bytes) for i in given)
    stored = np.array(given if are_bytes else data.query_texts())
    twice = twice_in(stored.tolist())
    if twice is not None:  # numpy drops trailing NUL characters
        expected = "query ids that differ by more than trailing NULs"
        raise DataError(expected=expected, got=f"{twice!r} twice", fix="rename one of them")
    return stored


def read_folder(path: Path) -> RankingDataset:
    """The data set of a folder that ``write_folder`` wrote; its arrays are mapped."""
    meta = _meta(path)
    arrays: dict[str, Any] = {}
    delete = f"delete {path}"
    for name, fingerprint in meta["files"].items():
        file = path / f"{name}.npy"
        if name != "query_ids" and name not in _TYPES:
            raise DataError(where=path, expected="the arrays of a data set", got=repr(name), fix="delete the folder")
        try:
            is_same = file.is_file() and _fingerprint(file) == fingerprint
        except OSError:  # another process removed it, or the disk is damaged
            is_same = False
        if not is_same:
            expected = "the file that meta.json describes"
            raise DataError(where=file, expected=expected, got="another or none", fix=delete)
        with _fixed_by(delete):
            # Small arrays are read, so that they can be checked; the matrix stays on disk.
            arrays[name] = mapped_array(file) if name == "features" else read_array(file)
    _check_shapes(arrays, path)
    if "document_ends" in arrays:
        arrays["document_texts"] = StringArray(arrays.pop("document_blob"), arrays.pop("document_ends"))
    parts: dict[str, Any] = {"ratings": None} | arrays
    names = tuple(meta["feature_names"]) if meta["feature_names"] else None
    with _fixed_by("delete the folder"), located(path):
        kinds = kinds_from_json(meta.get("kinds", {}), names)
        data = RankingDataset.from_parts(**parts, feature_names=names, kinds=kinds, roles=meta.get("roles"))
        _check_values(data)
    return data


@contextmanager
def _fixed_by(fix: str) -> Iterator[None]:
    """Say in a ``DataError`` that the block raises what to do."""
    try:
        yield
    except DataError as error:
        error.fix = fix
        raise


def held_in(
    folder: Path, path: Path, settings: dict[str, Any], build: Callable[[Allocator], RankingDataset]
) -> RankingDataset:
    """The data set of the cache ``folder``, if made from ``path`` with these settings; otherwise ``build`` fills it."""
    return _cached(folder, path, settings) or build_folder(folder, build, _source(path, settings))


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
    file, delete = path / "meta.json", f"delete {path}"
    damaged = DataError(where=file, expected="the description of a data set", got="a damaged file", fix=delete)
    try:
        meta = read_json(file)
        version, files, names, source = meta["format"], meta["files"], meta["feature_names"], meta["source"]
    except (OSError, ValueError, KeyError, TypeError):
        raise damaged from None
    if version != FORMAT:
        fix = f"{delete}, and it is built again"
        raise DataError(where=file, expected=f"format {FORMAT}", got=repr(version), fix=fix)
    if not isinstance(files, dict) or not {"features", "offsets", "query_ids"} <= files.keys():
        expected = "features, offsets and query_ids among its files"
        raise DataError(where=file, expected=expected, got="others", fix=delete)
    roles = meta.get("roles", {})  # earlier versions wrote none
    are_typed = isinstance(names, (list, type(None))) and isinstance(roles, dict)
    are_typed = are_typed and isinstance(source, (dict, type(None)))
    if not are_typed or not all(isinstance(text, str) for text in [*(names or []), *roles.values()]):
        raise damaged
    return dict(meta)


def _check_shapes(arrays: dict[str, NDArray[Any]], path: Path) -> None:
    """Raise ``DataError`` if the shapes of the arrays are inconsistent: compiled loops trust them."""
    features, ids = arrays["features"], arrays["query_ids"]
    lengths = {"offsets": ids.size + 1, "query_ids": ids.size, "query_weight": ids.size}
    ends, rows = arrays.get("document_ends"), arrays.get("source_rows")
    if not (
        all(array.ndim == 1 + (name == "features") for name, array in arrays.items())
        and all(array.dtype.str == _TYPES[name] for name, array in arrays.items() if name != "query_ids")
        and ids.dtype.kind in _ID_KINDS
        and features.size > 0
        and features.flags.c_contiguous
        and all(
            len(array) == lengths.get(name, len(features)) for name, array in arrays.items() if name != "document_blob"
        )
        and arrays["offsets"][-1] == len(features)
        and (rows is None or np.array_equal(np.sort(rows), np.arange(len(rows))))
        and (ends is None) == ("document_blob" not in arrays)
        and (ends is None or (ends[0] >= 0 and ends[-1] == len(arrays["document_blob"]) and (np.diff(ends) >= 0).all()))
    ):
        expected, got = "consistent arrays", "contradicting ones"
        raise DataError(where=path, expected=expected, got=got, fix="delete the folder")


def _check_values(data: RankingDataset) -> None:
    """Raise ``DataError`` if a data set holds values that no data set from files or tables can hold.

    A sample of the feature rows is checked, as for the checksum; all rows if they are few.
    """
    as_offsets(data.offsets)
    as_names(data.feature_names, data.n_features)
    ids = as_ids(data.query_ids)
    check_texts(ids.tolist(), "query_ids")
    if len(np.unique(ids) if ids.dtype.kind in _ID_KINDS else set(ids.tolist())) < len(ids):
        raise DataError(argument="query_ids", expected="each query once", got="one twice")
    if data.is_rated:
        check_ratings(data.ratings, lambda row: f"ratings, row {row}")
    for name, n in (("row_weight", data.n_documents), ("query_weight", data.n_queries)):
        if getattr(data, name) is not None:
            as_weights(getattr(data, name), name, n)
    step = max(1, data.n_documents // _SAMPLE)
    for place, name in enumerate(data.feature_names or ()):
        kind = data.kinds.get(name)
        if isinstance(kind, Category):
            codes = data.features[::step, place]
            if (((codes < 0) | (codes >= len(kind.levels)) | (codes != np.rint(codes))) & ~np.isnan(codes)).any():
                expected = f"numbers of its {len(kind.levels)} levels"
                raise DataError(where=f"feature {name!r}", expected=expected, got="others")
    if data.position is not None:
        as_positions(data.position, data.n_documents)
    if data.propensity is not None:
        as_propensities(data.propensity)
    step = 1 if data.features.nbytes <= 64 * _SAMPLE else max(1, data.n_documents // 64)
    infinite = np.isinf(data.features[::step]).any(axis=1)
    if infinite.any():
        row = step * int(infinite.argmax())
        check_finite(data.features[row : row + 1], data.features[row : row + 1], row)
