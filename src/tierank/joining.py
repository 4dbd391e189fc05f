"""Joining parts of data sets: rows of matrices, query ids, weights, and levels of categories."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.errors import DataError
from tierank.kinds import Category, Kind, Kinds, recode
from tierank.memory import allocate, chunks, release_pages


def common_kinds(parts: Sequence[Kinds]) -> Kinds:
    """The kinds of the features, with the levels of all parts. Raises ``DataError`` if kinds differ."""
    common: dict[str, Kind] = dict(parts[0])
    for kinds in parts[1:]:
        for name in {**common, **kinds}:
            one, other = common.get(name), kinds.get(name)
            if one == other:
                continue
            if isinstance(one, Category) and isinstance(other, Category) and replace(other, levels=one.levels) == one:
                common[name] = replace(one, levels=tuple(sorted({*one.levels, *other.levels})))
            else:
                raise DataError(f"feature {name!r}: expected the same kind of values in all parts, got two kinds")
    return common


def recoded(features: NDArray[np.float32], names: Sequence[str], before: Kinds, after: Kinds) -> NDArray[np.float32]:
    """The features with their level numbers translated to other levels."""
    if before == after:
        return features
    features = np.array(features)
    for place, name in enumerate(names):
        old, new = before.get(name), after.get(name)
        if old != new and isinstance(old, Category) and isinstance(new, Category):
            features[:, place] = recode(features[:, place], old, new)
    return features


def stacked(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The rows of all matrices; on disk if they would take more than a quarter of the memory."""
    whole = allocate(sum(len(part) for part in parts), parts[0].shape[1], beside=parts[0])
    copy_rows((chunk for part in parts for chunk in chunks(part)), whole)
    return whole


def copy_rows(pieces: Iterable[NDArray[np.float32]], into: NDArray[np.float32]) -> None:
    """Fill the first columns of a matrix with rows, piece by piece."""
    end = 0
    for piece in pieces:
        start, end = end, end + len(piece)
        into[start:end, : piece.shape[1]] = piece
        release_pages(into[start:end])


def joined_ids(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """The query ids of all parts. Raises ``DataError`` if two parts share one."""
    seen: set[Hashable] = set()
    for ids in parts:
        twice = next((i for i in ids.tolist() if i in seen), None)
        if twice is not None:
            raise DataError(f"query {twice!s} is in two of the parts: expected each query to be in one part only")
        seen.update(ids.tolist())
    are_alike = len({ids.dtype.kind for ids in parts}) == 1
    return np.concatenate([ids if are_alike else ids.astype(object) for ids in parts])  # 1 and "1" are two queries


def joined(parts: Sequence[NDArray[Any] | None], name: str) -> NDArray[Any] | None:
    """The arrays of all parts joined, or None. Raises ``DataError`` if only some parts have it."""
    given = [part for part in parts if part is not None]
    if given and len(given) < len(parts):
        raise DataError(f"{name}: expected in all of the parts or in none, got {len(given)} of {len(parts)}")
    return np.concatenate(given) if given else None
