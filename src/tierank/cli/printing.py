"""Printing results, for people and for machines."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tierank.report import Table


def show(options: argparse.Namespace, content: dict[str, Any], tables: list[Table]) -> None:
    """Print results as the caller wants them."""
    if options.json:
        print_json(content)
    for table in tables if not options.json else []:
        if options.markdown:
            print(table.to_markdown())
        elif options.latex:
            print(table.to_latex())
        else:
            print_table(table)


def print_table(table: Table) -> None:
    """Print a table, in colours on a terminal."""
    print(table.to_text(terminal=sys.stdout.isatty() and "NO_COLOR" not in os.environ))


def print_json(content: dict[str, Any]) -> None:
    """Print for machines."""
    print(json.dumps(content, indent=2, allow_nan=False))
