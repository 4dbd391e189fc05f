"""Lists of what can be chosen by name, with a line on each, from the tables and the declared settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tierank.errors import ParameterError
from tierank.extras import needing

# A name, a description, and for settings the default.
Row = tuple[str, ...]


def list_names(what: str, ranker: str | None = None) -> list[Row]:
    """The rows of a list: ``"rankers"``, ``"metrics"`` and so on, or the ``"settings"`` of a ranker.

    >>> list_names("metrics")[0][0]
    'ndcg'
    >>> next(row for row in list_names("settings", "umart") if row[0] == "n_leaves")
    ('n_leaves', '15', 'maximum number of leaves per tree')
    """
    if what == "settings":
        return _settings(ranker)
    if ranker is not None:
        raise ParameterError(f"{ranker}: a ranker is only valid after `settings`, not after {what}")
    if what not in _TABLES:
        raise ParameterError.unknown("list", what, KINDS)
    module, table, line = _TABLES[what]
    with needing(f"list {what}"):
        home = import_module(module)
    return [(name, line(thing)) for name, thing in getattr(home, table).items()]


def _settings(name: str | None) -> list[Row]:
    from tierank.rankers import RANKERS

    if name is None:
        raise ParameterError(f"`list settings` needs a ranker: one of {', '.join(RANKERS)}")
    if name not in RANKERS:
        raise ParameterError.unknown("ranker", name, RANKERS)
    declared = RANKERS[name].declared_settings()
    return [(setting, _shown(one.default), one.help) for setting, one in declared.items()]


def _shown(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0].rstrip(".").replace("``", "")


def _of_target(target: Any) -> str:
    return _first_line(inspect.getmodule(target.write))


# The tables, and how to describe their entries.
_TABLES: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "rankers": ("tierank.rankers", "RANKERS", _first_line),
    "metrics": ("tierank.metrics", "METRICS", _first_line),
    "rules": ("tierank.metrics", "RULES", lambda rule: rule.describe().partition(": ")[2]),
    "transforms": ("tierank.transforms", "TRANSFORMS", _first_line),
    "networks": ("tierank.networks", "NETWORKS", _first_line),
    "losses": ("tierank.losses", "LOSSES", _first_line),
    "click-models": ("tierank.clicks", "CLICK_MODELS", _first_line),
    "targets": ("tierank.export", "TARGETS", _of_target),
}

# What can be listed.
KINDS = ("settings", *_TABLES)
