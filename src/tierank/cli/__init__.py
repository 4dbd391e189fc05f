"""The command line: parse, call, print.

Exit 0: done. Exit 2: user error, explained in one line on standard error. Exit 3: one of several processes lost contact
with the others. Any other exit code is a bug.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from tierank import __version__
from tierank.cli import adopt, choose, click_logs, cv, data, installation, predict, results, train
from tierank.cli.commands import Command, Parser
from tierank.cli.console import Pipes, line_of, quiet
from tierank.cli.options import Argument, check_paths
from tierank.errors import LEFT_ALONE, TeamError, TierankError


class _Version(argparse.Action):
    """Prints the versions of tierank, of Python, and of the libraries that affect models."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        versions = [f"Python {sys.version.split()[0]}"]
        for library in ("lightgbm", "numba", "numpy", "torch"):
            try:
                versions.append(f"{library} {version(library)}")
            except PackageNotFoundError:
                versions.append(f"no {library}")
        print(f"tierank {__version__} ({', '.join(versions)})")
        parser.exit()


# In the order of the help. Commands import what they need when they run, so that help is fast.
TIERANK = Command(
    "tierank",
    "learning to rank by unique ratings",
    declared=lambda: [Argument("--version", "show version numbers, and exit", action=_Version, nargs=0)],
    commands=(
        *(cv.demo, data.describe, choose.choose, train.train, train.distill, adopt.adopt),
        *(predict.predict, predict.export),
        *(results.evaluate, results.compare, cv.cv, cv.tune, results.report, predict.explain, predict.serve),
        *(click_logs.clicks, data.convert, installation.list_, installation.compile_, installation.completion),
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # busy-waiting threads slow down shared machines
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe gets the same bytes as a file of --out, in every locale
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    pipes, command = Pipes(), TIERANK
    try:
        arguments = list(sys.argv[1:] if argv is None else argv)
        options = Parser(TIERANK, prog="tierank").parse_args(arguments)
        options.arguments, options.pipes, command = arguments, pipes, options.command
        with pipes, quiet(options):
            check_paths(options)
            command.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("tierank: stopped", file=sys.stderr)
        return 130
    except (TierankError, OSError) as error:
        print(f"tierank: {pipes.named(line_of(error, command.rename))}", file=sys.stderr)
        return LEFT_ALONE if isinstance(error, TeamError) and error.is_left_alone else 2
    return 0


def _open_closed_streams() -> None:
    """Lead standard streams that were closed (``>&-``) nowhere: files would get their numbers and what goes to them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # the lowest free number
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
