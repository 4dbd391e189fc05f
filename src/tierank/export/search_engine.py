"""What search engines share: folders of JSON files, trees as nested nodes in them, and how those are added up.

An engine has its own names for the parts of a node, and its own rule of a split; the walk is the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.errors import DataError
from tierank.export.neutral import Trees, as_float32, build_trees

# The name under which engines keep the model.
NAME = "tierank"
# Up to this many trees, the rounding error of float32 sums, about 2^-24 of the sum times the square root of the number
# of trees, is far below any difference that matters.
_FEW_TREES = 500


def write_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Write texts, and anything else as JSON."""
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
        place.write_text(text, encoding="utf-8")


def read_json(file: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(file.read_text(encoding="utf-8"))


def names_once(features: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of features. Raises ``DataError`` if two are equal."""
    names = [feature["name"] for feature in features]
    if len(set(names)) < len(names):
        raise DataError(argument="features", expected="each name once")
    return names


def expect(node: Mapping[str, Any], key: str, value: Any) -> None:
    """Raise ``DataError`` if a part of a file is not what the engine needs."""
    if node[key] != value:
        raise DataError(argument=key, expected=repr(value), got=repr(node[key]))


def nested_nodes(
    trees: Trees, leaf: Callable[[np.float32], dict[str, Any]], split: Callable[[int, Any, Any], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Each tree as nested nodes: ``leaf(value)``, ``split(number, left, right)``."""
    values = trees.values.astype(np.float32)
    made: list[dict[str, Any]] = [{}] * len(trees.feature)

    def at(node: int) -> dict[str, Any]:
        return made[node] if node >= 0 else leaf(values[~node])

    for node in reversed(range(len(made))):  # children have higher numbers than their parents
        made[node] = split(node, at(int(trees.left[node])), at(int(trees.right[node])))
    return [at(root) for root in trees.roots.tolist()]


def read_nodes(
    roots: Sequence[Mapping[str, Any]],
    leaf: str,
    split: Callable[[Mapping[str, Any]], tuple[Any, float, Any, Any, bool]],
) -> Trees:
    """The trees of nested nodes; ``leaf`` is the key of a leaf's value, and ``split`` reads all other nodes.

    It returns the feature, the threshold, both children, and whether a missing value goes left.
    """

    def read(node: Mapping[str, Any]) -> Any:
        if leaf in node:
            return float(np.float32(node[leaf]))
        *parts, default_left = split(node)
        return *parts, 0, default_left

    return build_trees(roots, read, as_float32)


def added_up(
    trees: Trees, features: NDArray[np.float32], goes_left: Callable[[NDArray[np.int64], Any], Any], kind: type[Any]
) -> NDArray[Any]:
    """The sum of the leaves, one tree after the other, in this precision; ``goes_left(splits, values)``."""
    total = np.zeros(len(features), kind)
    for values in trees.leaf_values(features, goes_left):
        total += values.astype(kind)
    return total


def below_threshold(trees: Trees) -> Callable[[NDArray[np.int64], NDArray[np.float32]], NDArray[np.bool_]]:
    """The rule of a split where x < threshold goes left, and each split says where a missing value goes."""

    def goes_left(splits: NDArray[np.int64], x: NDArray[np.float32]) -> NDArray[np.bool_]:
        return np.where(np.isnan(x), trees.default_left[splits], x < trees.threshold[splits])

    return goes_left


def strict_thresholds(trees: Trees) -> list[float]:
    """Thresholds for engines that go left where x < t: the lowest float32 numbers above those of the trees.

    Above the largest number comes infinity, which JSON cannot hold; 1e39 becomes infinity as float32.
    """
    with np.errstate(over="ignore"):
        above = np.nextafter(trees.threshold, np.float32(np.inf)).astype(np.float64)
    return [float(number) for number in np.where(np.isinf(above), 1e39, above)]


def for_float32_sums(trees: Trees) -> tuple[Trees, ...]:
    """Trees for an engine that adds up leaves in float32, one after the other.

    Each addition rounds, and with many trees the errors add up. Therefore large models are written twice: first with
    small leaves, then with large leaves, whose sums are the original leaves. The large leaves are multiples of a step
    that is so wide that float32 adds any of them without rounding. The small leaves, at most half a step, come first,
    while the sum is small. Only the sum of the small leaves is then rounded, each time the total grows to another power
    of two: in total by at most 2^-23 of the largest partial sum, whatever the number of trees.

    >>> stumps = build_trees([(0, 0.5, 0.1, 0.2, 0, True)] * 1000, lambda node: node)
    >>> small, large = for_float32_sums(stumps)
    >>> (large.values[:2] * 2**15).tolist(), (small.values + large.values)[:2].tolist()
    ([3277.0, 6554.0], [0.1, 0.2])
    """
    largest = trees.largest_sum()
    if len(trees.roots) <= _FEW_TREES or not largest:
        return (trees,)
    step = 2.0 ** (np.ceil(np.log2(largest)) - 23)
    coarse = np.rint(trees.values / step) * step
    return replace(trees, values=trees.values - coarse), replace(trees, values=coarse)


def unused_name(name: str, names: tuple[str, ...]) -> str:
    """The name, with underscores appended if a feature has that name."""
    while name in names:
        name += "_"
    return name
