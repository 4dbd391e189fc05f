"""What can be chosen by name, with a line on each: from the tables, the signatures and their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tierank.errors import ParameterError

# A name, what it is, and for settings the value that it has where none is given.
Row = tuple[str, ...]


def list_names(what: str, ranker: str | None = None) -> list[Row]:
    """The rows of a list: ``"rankers"``, ``"metrics"`` and so on, or the ``"settings"`` of a ranker.

    >>> list_names("metrics")[0][0]
    'ndcg'
    >>> next(row for row in list_names("settings", "umart") if row[0] == "n_leaves")
    ('n_leaves', '15', 'of each tree, at most')
    """
    if what == "settings":
        return _settings(ranker)
    if ranker is not None:
        raise ParameterError(f"{ranker}: expected after settings alone, got it after {what}")
    if what not in _TABLES:
        raise ParameterError.unknown("list", what, ["settings", *_TABLES])
    module, table, line = _TABLES[what]
    return [(name, line(thing)) for name, thing in getattr(import_module(module), table).items()]


def _settings(name: str | None) -> list[Row]:
    from tierank.rankers import RANKERS, UMart, URank

    if name is None:
        raise ParameterError(f"settings: expected the ranker whose they are: one of {', '.join(RANKERS)}")
    if name not in RANKERS:
        raise ParameterError.unknown("ranker", name, RANKERS)
    ranker = RANKERS[name]
    parameters = inspect.signature(ranker).parameters
    family = UMart if "n_leaves" in parameters else URank  # where a docstring leaves out what it shares
    lines = _table(family) | _table(ranker) | {"preset": f"settings of the paper: {', '.join(ranker.PRESETS)}"}
    rest = f"of the loss {ranker.LOSS}" if isinstance(getattr(ranker, "LOSS", None), str) else ""
    rows: list[Row] = [
        (setting, _shown(parameter.default), lines.get(setting, rest))
        for setting, parameter in parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    return rows + ([("...", "", "any parameter of LightGBM, by its own name")] if "lightgbm" in parameters else [])


def _shown(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _table(kind: type) -> dict[str, str]:
    """The table of a docstring: a line for each name, its further lines joined."""
    rows: dict[str, str] = {}
    name, is_inside = "", False
    for line in (inspect.getdoc(kind) or "").splitlines():
        if line.startswith("==="):
            is_inside = not is_inside
        elif is_inside and (found := re.match(r"``(\w+)`` +(.*)", line)):
            name = found[1]
            rows[name] = found[2]
        elif is_inside:
            rows[name] += f" {line.strip()}"
    return {name: text.replace("``", "") for name, text in rows.items()}


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0].rstrip(".").replace("``", "")


def _of_target(target: Any) -> str:
    return _first_line(inspect.getmodule(target.write))


# Where the tables are, and what says a line on each of their things.
_TABLES: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "rankers": ("tierank.rankers", "RANKERS", _first_line),
    "metrics": ("tierank.metrics", "METRICS", _first_line),
    "rules": ("tierank.metrics", "RULES", lambda rule: rule.describe().partition(": ")[2]),
    "transforms": ("tierank.transforms", "TRANSFORMS", _first_line),
    "networks": ("tierank.networks", "NETWORKS", _first_line),
    "losses": ("tierank.losses", "LOSSES", _first_line),
    "targets": ("tierank.export", "TARGETS", _of_target),
}
