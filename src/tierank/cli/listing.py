"""``list``: what can be chosen by name, with a line on each, from the tables and the declared settings."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tierank.cli.commands import Argument, command
from tierank.cli.console import say
from tierank.cli.options import JSON, RANKERS
from tierank.errors import ParameterError
from tierank.extras import needing


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0].rstrip(".").replace("``", "")


# The tables, and how to describe their entries.
_TABLES: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "rankers": ("tierank.rankers", "RANKERS", _first_line),
    "metrics": ("tierank.metrics", "METRICS", _first_line),
    "rules": ("tierank.metrics", "RULES", lambda rule: rule.describe().partition(": ")[2]),
    "transforms": ("tierank.transforms", "TRANSFORMS", _first_line),
    "networks": ("tierank.networks", "NETWORKS", _first_line),
    "losses": ("tierank.losses", "LOSSES", _first_line),
    "click-models": ("tierank.clicks", "CLICK_MODELS", _first_line),
    "targets": ("tierank.export", "TARGETS", lambda target: _first_line(inspect.getmodule(target.write))),
}
_LISTS = ("settings", *_TABLES)
# Printed to standard error, so that a pipe gets only the names.
_WHICH = """
Which one? umart: start here; trees train and score fast, and need no torch.
blend: the best we measured, for about 20 times the training time of lambdamart.
urank: a neural network; it beats trees on OHSUMED, a small data set.
lambdamart: the baseline to beat. linear: trains in milliseconds."""


@command(
    "list",
    "names that can be chosen, with a line on each",
    "list settings umart",
    Argument("what WHAT", f"{', '.join(_LISTS[1:])}, or settings of a ranker", values=lambda: _LISTS),
    Argument("ranker RANKER", "whose settings", nargs="?", values=lambda: RANKERS),
    JSON,
)
def list_(options: argparse.Namespace) -> None:
    """Print the entries of a table, or the settings of a ranker with their defaults."""
    what, ranker = options.what, options.ranker
    if what not in _LISTS:
        raise ParameterError.unknown("list", what, _LISTS)
    if what != "settings" and ranker is not None:
        raise ParameterError(where=ranker, fix=f"a ranker is only valid after settings, not after {what}")
    if what == "settings" and ranker not in RANKERS:
        if ranker is not None:
            raise ParameterError.unknown("ranker", ranker, RANKERS)
        raise ParameterError(fix=f"`list settings` needs a ranker: one of {', '.join(RANKERS)}")
    if what == "settings":
        from tierank.rankers import RANKERS as classes

        declared = classes[ranker].declared_settings()
        rows: list[tuple[str, ...]] = [
            (name, one.default if isinstance(one.default, str) else repr(one.default), one.help)
            for name, one in declared.items()
        ]
    else:
        module, table, line = _TABLES[what]
        with needing(f"list {what}"):
            rows = [(name, line(thing)) for name, thing in getattr(import_module(module), table).items()]
    if options.json:
        print(json.dumps({name: rest[0] if len(rest) == 1 else rest for name, *rest in rows}, indent=2))
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, help in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)), help]).rstrip())
    if what == "rankers":
        say(_WHICH)
