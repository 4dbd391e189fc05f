"""``compile``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tierank.cli.console import check_place, say
from tierank.cli.options import add_command


def add_compile(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands, "compile", "compile everything that is otherwise compiled on first use", "compile --to /opt/tierank"
    )
    parser.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="store the code there, for processes with NUMBA_CACHE_DIR=DIR (default: where they look anyway)",
    )
    parser.set_defaults(run=_compile)


def _compile(options: argparse.Namespace) -> None:
    from tierank.kernels.compiling import compile_all

    check_place(options.to, is_folder=True)
    n, n_compiled, seconds, folders = 0, 0, 0.0, set()
    for name, loaded in compile_all(options.to):
        n += 1
        folders.add(str(loaded.folder))
        if loaded.is_compiled:
            n_compiled += 1
            seconds += loaded.seconds
            say(f"{loaded.seconds:6.2f} s  {name}")
    print(
        f"{n} functions in {', '.join(sorted(folders))}: {n_compiled} compiled in {seconds:.1f} s,"
        f" {n - n_compiled} were there"
    )
    if options.to:
        print(f"They are used where NUMBA_CACHE_DIR={options.to.absolute()} is set")
