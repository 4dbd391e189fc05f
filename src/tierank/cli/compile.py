"""``compile``."""

from __future__ import annotations

import argparse
from pathlib import Path

from tierank.cli.commands import Argument, command
from tierank.cli.console import check_place, say


@command(
    "compile",
    "compile everything that is otherwise compiled on first use",
    "compile --to /opt/tierank",
    Argument(
        "--to DIR",
        "store the code there, for processes with NUMBA_CACHE_DIR=DIR (default: where they look anyway)",
        Path,
    ),
)
def compile_(options: argparse.Namespace) -> None:
    """Compile the kernels."""
    from tierank.kernels.compiling import compile_all

    check_place(options, options.to, is_folder=True)
    loaded = []
    for name, one in compile_all(options.to):
        loaded.append(one)
        if one.is_compiled:
            say(f"{one.seconds:6.2f} s  {name}")
    compiled = [one.seconds for one in loaded if one.is_compiled]
    print(
        f"{len(loaded)} functions in {', '.join(sorted({str(one.folder) for one in loaded}))}: {len(compiled)} compiled"
        f" in {sum(compiled):.1f} s, {len(loaded) - len(compiled)} were there"
    )
    if options.to:
        print(f"They are used where NUMBA_CACHE_DIR={options.to.absolute()} is set")
