"""The text of LightGBM's trees, checked before LightGBM reads it: an invalid text would crash the process."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.errors import DataError, ParameterError
from tierank.export.portable import NAN, NONE, Trees, lightgbm_thresholds

_HEAD_KEYS = {
    "version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "objective", "feature_names",
    "monotone_constraints", "feature_infos", "tree_sizes",
}  # fmt: skip
# Arrays of a tree with a number for each split, and for each leaf; those called maybe may be empty in a tree without
# splits. Elsewhere an empty array would crash the process.
_OF_SPLITS = ("split_feature", "threshold", "decision_type", "left_child", "right_child")
_OF_SPLITS_MAYBE = ("split_gain", "internal_value", "internal_weight", "internal_count")
_OF_LEAVES = ("leaf_value",)
_OF_LEAVES_MAYBE = ("leaf_weight", "leaf_count")
_NUMBERS = re.compile(r"[-+0-9.einfa ]*")
# Objectives that tierank's models may have.
_OBJECTIVES = ("lambdarank", "regression", "custom")
_PARAMETER = re.compile(r"\[\w+: [^\n\x22\\]*\]")
_INFO = re.compile(r"none|\[[-+0-9.einfa]+:[-+0-9.einfa]+\]|-?\d+(?::-?\d+)*")
_TAIL = re.compile(
    r"end of trees\n\nfeature_importances:\n(?:[^\n]+=\d+\n)*"
    r"\nparameters:\n(?:\[\w+: [^\n\x22\\]*\]\n)*\nend of parameters\n(?:\npandas_categorical:(?:null|\[\])\n)?"
)
# The bits of decision_type: split by category, missing values go left, and from the third on what is missing.
_CATEGORICAL, _DEFAULT_LEFT, _MISSING_SHIFT, _MISSING_BITS = 1, 2, 2, 3
# The most splits between the root of a tree and a leaf. Engines and LightGBM traverse trees recursively: a few thousand
# splits crash the process or its JSON parser (Jackson allows 1,000 levels, and a split takes two levels for
# Elasticsearch). The memory of an explanation grows with the square. Trees that are trained here respect it, see
# ``kept_depth``.
MAX_DEPTH = 300
# The most cells in a table of sets of categories: it has a column for every number up to the highest category, so that
# ids in place of numbers from 0 would fill the memory.
MAX_MEMBERS = 1 << 26


def check_trees(text: str, n_features: int) -> None:
    """Check that this is a text of complete trees over this many features. The error names the place.

    Checked are the sizes in bytes, the number of values in every array, that all values are numbers, that features and
    children exist, and that the nodes of each tree form one tree: every split except the first has one parent, with a
    lower number, and so has every leaf. Trees deeper than ``MAX_DEPTH`` splits are refused.
    """
    head, _, rest = text.partition("\n\n")
    fields = _fields(head.removeprefix("tree\n"), "head")
    _check_head(fields, n_features)
    sizes = _whole(fields, "tree_sizes", "head")
    body = rest.encode()
    start = 0
    for number, size in enumerate(sizes.tolist()):
        part = body[start : start + size].decode(errors="replace") if size > 0 else ""
        if not part.startswith(f"Tree={number}\n") or not part.endswith("\n\n"):
            raise _damaged(f"tree {number}", "its text where tree_sizes says it is")
        _check_tree(_fields(part.strip("\n").partition("\n")[2], f"tree {number}"), number, n_features)
        start += size
    if not len(sizes) or not _TAIL.fullmatch(body[start:].decode(errors="replace")):
        raise _damaged("the end", "trees, the importances and the parameters of LightGBM")


def read_trees(text: str) -> Trees | None:
    """The trees of a text that LightGBM wrote or ``check_trees`` has checked; None if ``Trees`` cannot represent them.

    That is the case for linear leaves, for the mean of trees in place of their sum, and for categories with such high
    numbers that a table of their sets would take too much memory.
    """
    head, _, rest = text.partition("\n\n")
    lines: dict[str, list[str]] = {}
    for line in rest[: rest.index("end of trees")].split("\n"):
        name, _, values = line.partition("=")
        lines.setdefault(name, []).append(values)
    if "average_output" in head.split("\n") or "1" in lines["is_linear"]:
        return None

    def join(name: str, kind: type[np.generic]) -> NDArray[Any]:
        return np.array(" ".join(lines[name]).split(), kind)

    kinds = join("decision_type", np.int64)
    n_leaves = join("num_leaves", np.int64)
    n_splits = n_leaves - 1
    thresholds = join("threshold", np.float64)
    is_category = (kinds & _CATEGORICAL) > 0
    category, members = None, None
    if is_category.any():
        n_sets = join("num_cat", np.int64)
        first_set = np.repeat(np.cumsum(n_sets) - n_sets, n_splits)
        category = np.where(is_category, np.where(is_category, thresholds, 0).astype(np.int64) + first_set, -1)
        sets = _sets(lines["cat_boundaries"], lines["cat_threshold"])
        different = {one: place for place, one in enumerate(sorted(set(sets)))}
        members = _members(list(different))
        if members is None:
            return None
        numbers = np.array([different[one] for one in sets], np.int64)
        category = np.where(is_category, numbers[np.maximum(category, 0)], -1)
        thresholds = np.where(is_category, 0.0, thresholds)
    first_split, first_leaf = np.cumsum(n_splits) - n_splits, np.cumsum(n_leaves) - n_leaves
    shift, shift_of_leaves = np.repeat(first_split, n_splits), np.repeat(first_leaf, n_splits)

    def among_all(children: NDArray[np.int64]) -> NDArray[np.int64]:
        moved = np.where(children >= 0, children + shift, children - shift_of_leaves)  # ~leaf falls as leaf grows
        return np.asarray(moved, np.int64)

    missing = kinds >> _MISSING_SHIFT & _MISSING_BITS
    return Trees(
        np.where(n_splits > 0, first_split, ~first_leaf),
        join("split_feature", np.int64),
        lightgbm_thresholds(thresholds),
        among_all(join("left_child", np.int64)),
        among_all(join("right_child", np.int64)),
        np.where(missing <= NAN, missing, NONE).astype(np.uint8),
        (kinds & _DEFAULT_LEFT) > 0,
        join("leaf_value", np.float64),
        category,
        members,
    )


def _sets(boundaries: Sequence[str], words: Sequence[str]) -> list[bytes]:
    """The sets of categories of all trees, joined: category k is a member if bit k is set."""
    sets: list[bytes] = []
    for edges, content in zip(boundaries, words, strict=True):
        bits = np.array(content.split(), np.uint64).astype("<u4")
        sets += [bits[a:b].tobytes() for a, b in pairwise(map(int, edges.split()))]
    return sets


def _members(sets: Sequence[bytes]) -> NDArray[np.bool_] | None:
    """The sets as a table of sets x categories; None if it would be larger than ``MAX_MEMBERS``."""
    width = 8 * max(map(len, sets))
    if len(sets) * width > MAX_MEMBERS:
        return None
    members = np.zeros((len(sets), width), np.bool_)
    for row, bits in zip(members, sets, strict=True):
        row[: 8 * len(bits)] = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return members


def adopt_text(text: str) -> str:
    """The text of a model that LightGBM itself trained, in the form that our own models have, checked.

    What does not affect raw scores is left out: objectives that only change how LightGBM's predict transforms them, and
    parameters that could not be read back. A model that does not give one score per row is refused.
    """
    text = text.replace("\r\n", "\n")
    fields = head_fields(text)
    if not text.startswith("tree\n") or "end of trees" not in text or "max_feature_idx" not in fields:
        raise DataError(expected="a model of LightGBM in text form, as save_model writes it", got="something else")
    per_round = fields.get("num_tree_per_iteration", "1")
    if (fields.get("num_class", "1"), per_round) != ("1", "1"):
        raise DataError(expected="a model with one score per row", got=f"{per_round} scores, of a model of classes")
    if "average_output" in fields:
        raise DataError(expected="boosted trees", got="a random forest, whose trees are averaged")
    categories = re.search(r"^pandas_categorical:(?!null$|\[\]$)", text, re.MULTILINE)
    if categories is not None:
        raise DataError(
            expected="numeric features",
            got="columns of pandas categories",
            fix="train on their codes, and give their numbers as categorical_feature",
        )
    kept = {name: value for name, value in fields.items() if name in _HEAD_KEYS}
    if kept.get("objective") not in _OBJECTIVES:
        kept.pop("objective", None)
    trees = text.partition("\n\n")[2].partition("end of trees")[0]
    importances, _, rest = text.partition("\nfeature_importances:\n")[2].partition("\nparameters:\n")
    parameters = [line for line in rest.partition("\nend of parameters")[0].split("\n") if _PARAMETER.fullmatch(line)]
    head = "\n".join(["tree", *(f"{name}={value}" for name, value in kept.items())])
    tail = "\n".join(["", "parameters:", *parameters, "", "end of parameters", "", "pandas_categorical:null", ""])
    adopted = f"{head}\n\n{trees}end of trees\n\nfeature_importances:\n{importances}{tail}"
    n_features = fields["max_feature_idx"]
    check_trees(adopted, int(n_features) + 1 if n_features.isdecimal() else 0)
    return adopted


def has_missing(text: str) -> bool:
    """Whether some split handles missing values separately."""
    lines = re.findall(r"^decision_type=(.*)$", text, re.MULTILINE)
    return any((int(kind) >> _MISSING_SHIFT) & _MISSING_BITS for line in lines for kind in line.split())


def has_linear_leaves(text: str) -> bool:
    """Whether some tree has a linear model in each leaf."""
    return "\nis_linear=1\n" in text


def head_fields(text: str) -> dict[str, str]:
    """The fields in the head of a text, by name; lines without a value have an empty one."""
    head = text.replace("\r\n", "\n").partition("\n\n")[0]
    lines = head.removeprefix("tree\n").split("\n")
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def _damaged(place: str, expected: str) -> DataError:
    return DataError(f"trees.txt: {place}: expected {expected}, got a damaged text; save the model again")


def _fields(lines: str, place: str) -> dict[str, str]:
    """``name=value`` lines, each name once."""
    fields: dict[str, str] = {}
    for line in lines.split("\n"):
        name, equals, value = line.partition("=")
        if not equals or name in fields:
            raise _damaged(place, "lines of name=value, each name once")
        fields[name] = value
    return fields


def _check_head(fields: Mapping[str, str], n_features: int) -> None:
    if not set(fields) <= _HEAD_KEYS:
        raise _damaged("head", "the names that LightGBM writes")
    for name, value in (("num_class", "1"), ("num_tree_per_iteration", "1"), ("label_index", "0")):
        if fields.get(name) != value:
            raise _damaged("head", f"{name}={value}")
    if fields.get("version") not in ("v3", "v4") or fields.get("max_feature_idx") != str(n_features - 1):
        raise _damaged("head", f"version=v4 and max_feature_idx={n_features - 1}")
    if fields.get("objective", "lambdarank") not in _OBJECTIVES:
        raise _damaged("head", "objective=lambdarank, or none")
    for name in ("feature_names", "feature_infos", "monotone_constraints"):
        if len(fields.get(name, "" if name != "monotone_constraints" else " x" * n_features).split()) != n_features:
            raise _damaged("head", f"{n_features} {name}")
    if not all(_INFO.fullmatch(info) for info in fields["feature_infos"].split()):
        raise _damaged("head", "feature_infos with the ranges of the features")
    if "monotone_constraints" in fields and not set(fields["monotone_constraints"].split()) <= {"-1", "0", "1"}:
        raise _damaged("head", "monotone_constraints of -1, 0 and 1")


def _check_tree(fields: dict[str, str], number: int, n_features: int) -> None:
    place = f"tree {number}"
    counts = [_whole(fields, name, place) for name in ("num_leaves", "num_cat")]
    if any(len(count) != 1 for count in counts) or counts[0][0] < 1 or counts[1][0] < 0:
        raise _damaged(place, "numbers of leaves and categorical splits")
    if len(_numbers(fields, "shrinkage", place)) != 1 or fields.get("is_linear") not in ("0", "1"):
        raise _damaged(place, "a shrinkage, and is_linear of 0 or 1")
    n_leaves, n_categorical = (int(count[0]) for count in counts)
    _check_lengths(fields, _OF_SPLITS, _OF_SPLITS_MAYBE, n_leaves - 1, n_leaves - 1, place)
    _check_lengths(fields, _OF_LEAVES, _OF_LEAVES_MAYBE, n_leaves, n_leaves - 1, place)
    features, kinds = _whole(fields, "split_feature", place), _whole(fields, "decision_type", place)
    if ((features < 0) | (features >= n_features)).any() or ((kinds < 0) | (kinds > 15)).any():
        raise _damaged(place, f"splits by one of {n_features} features")
    left, right = _whole(fields, "left_child", place), _whole(fields, "right_child", place)
    _check_nodes(left, right, n_leaves, place)
    is_categorical = (kinds & _CATEGORICAL) > 0
    _check_categories(fields, _numbers(fields, "threshold", place)[is_categorical], n_categorical, place)
    _check_linear(fields, n_leaves, n_features, place)


def _check_lengths(
    fields: Mapping[str, str], wanted: tuple[str, ...], maybe: tuple[str, ...], n: int, n_splits: int, place: str
) -> None:
    for name in (*wanted, *maybe):
        values = _numbers(fields, name, place)
        if len(values) != n and not (name in maybe and not len(values) and not n_splits):
            raise _damaged(place, f"{n} values of {name}")


def _check_nodes(left: NDArray[np.int64], right: NDArray[np.int64], n_leaves: int, place: str) -> None:
    """Check that each split except the first, and each leaf, is the child of one split with a lower number."""
    children = np.concatenate([left, right])
    parents = np.tile(np.arange(len(left)), 2)
    inner = children >= 0
    below = np.sort(children[inner]).tolist() == list(range(1, n_leaves - 1))
    leaves = np.sort(~children[~inner]).tolist() == (list(range(n_leaves)) if n_leaves > 1 else [])
    if not below or not leaves or (children[inner] <= parents[inner]).any():
        raise _damaged(place, "splits and leaves that are one tree")
    depth = _depth(left.tolist(), right.tolist())
    if depth > MAX_DEPTH:
        raise DataError(
            f"trees.txt: {place}: expected at most {MAX_DEPTH} splits between the root and a leaf, got {depth:,};"
            f" train with max_depth={MAX_DEPTH}, or with fewer leaves"
        )


def _depth(left: list[int], right: list[int]) -> int:
    """The most splits from the root to a leaf; parents have lower numbers than their children."""
    if len(left) <= MAX_DEPTH:  # the most that it can be
        return len(left)
    depths = [1] * len(left)
    for node, children in enumerate(zip(left, right, strict=True)):
        for child in children:
            if child >= 0:
                depths[child] = depths[node] + 1
    return max(depths)


def kept_depth(max_depth: int, n_leaves: int) -> int:
    """LightGBM's ``max_depth`` that keeps trees of this many leaves within ``MAX_DEPTH``; 0 or less means no limit.

    >>> kept_depth(-1, 31), kept_depth(-1, 1000), kept_depth(8, 1000)
    (-1, 300, 8)
    """
    if max_depth > MAX_DEPTH:
        raise ParameterError(f"max_depth: expected {MAX_DEPTH} at most, got {max_depth}")
    return MAX_DEPTH if max_depth <= 0 and n_leaves > MAX_DEPTH + 1 else max_depth


def _check_categories(fields: Mapping[str, str], chosen: NDArray[np.float64], n: int, place: str) -> None:
    if ((chosen < 0) | (chosen >= n) | (chosen != np.rint(chosen))).any():
        raise _damaged(place, "categorical splits by one of the sets of categories")
    if n == 0:
        return
    edges, sets = _whole(fields, "cat_boundaries", place), _whole(fields, "cat_threshold", place)
    if len(edges) != n + 1 or edges[0] != 0 or (np.diff(edges) < 0).any() or edges[-1] != len(sets):
        raise _damaged(place, "sets of categories one after the other")
    if ((sets < 0) | (sets >= 1 << 32)).any():
        raise _damaged(place, "sets of categories as words of 32 bits")


def _check_linear(fields: Mapping[str, str], n_leaves: int, n_features: int, place: str) -> None:
    """Check linear leaves: as many constants, features and factors as the leaves declare."""
    if fields["is_linear"] == "0":
        return
    counts = _whole(fields, "num_features", place)
    features, factors = _whole(fields, "leaf_features", place), _numbers(fields, "leaf_coeff", place)
    sound = len(counts) == len(_numbers(fields, "leaf_const", place)) == n_leaves and (counts >= 0).all()
    if not sound or not len(features) == len(factors) == counts.sum():
        raise _damaged(place, "the lines of its leaves")
    if ((features < 0) | (features >= n_features)).any():
        raise _damaged(place, f"lines over some of {n_features} features")


def _numbers(fields: Mapping[str, str], name: str, place: str) -> NDArray[np.float64]:
    text = fields.get(name)
    try:
        if text is None or not _NUMBERS.fullmatch(text):
            raise ValueError
        values = np.array(text.split(), np.float64)
    except ValueError:
        raise _damaged(place, f"numbers after {name}=") from None
    # LightGBM splits missing values from all others by an infinite threshold.
    is_sound = ~np.isnan(values) if name == "threshold" else np.isfinite(values)
    if not is_sound.all():
        raise _damaged(place, f"finite numbers after {name}=")
    return values


def _whole(fields: Mapping[str, str], name: str, place: str) -> NDArray[np.int64]:
    values = _numbers(fields, name, place)
    if (np.abs(values) > 1 << 40).any() or (values != np.rint(values)).any() or re.search("[.ena]", fields[name]):
        raise _damaged(place, f"whole numbers after {name}=")
    return values.astype(np.int64)
