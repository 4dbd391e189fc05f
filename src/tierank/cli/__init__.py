"""The command line: parse, call, print.

Exit 0: done. Exit 2: user error, explained in one line on standard error. Exit 3: one of several processes lost contact
with the others. Any other exit code is a bug.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from tierank import __version__
from tierank.cli import clicks, completion, data, judging, learning, machine, using
from tierank.cli.console import Pipes, line_of, say_warning
from tierank.cli.options import Parser
from tierank.errors import LEFT_ALONE, ColumnWarning, TeamError, TierankError

# In the order of the help. Commands import what they need when they run, so that help is fast.
COMMANDS = (
    learning.add_demo,
    data.add_describe,
    learning.add_train,
    learning.add_distill,
    using.add_predict,
    using.add_export,
    judging.add_evaluate,
    judging.add_compare,
    learning.add_cv,
    learning.add_tune,
    judging.add_report,
    using.add_explain,
    using.add_serve,
    clicks.add_clicks,
    data.add_convert,
    data.add_list,
    machine.add_compile,
    completion.add_completion,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # busy-waiting threads slow down shared machines
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe gets the same bytes as a file of --out, in every locale
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    pipes = Pipes()
    try:
        arguments = list(sys.argv[1:] if argv is None else argv)
        options = make_parser().parse_args(arguments)
        options.arguments, options.pipes = arguments, pipes
        with pipes, warnings.catch_warnings(), _speaking(options):
            warnings.showwarning = say_warning
            warnings.simplefilter("ignore", ColumnWarning)  # reading reports it, with the option that helps
            options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("tierank: stopped", file=sys.stderr)
        return 130
    except (TierankError, OSError) as error:
        print(f"tierank: {pipes.named(line_of(error))}", file=sys.stderr)
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


@contextmanager
def _speaking(options: argparse.Namespace) -> Iterator[None]:
    """Silence standard error if asked to; errors are printed later."""
    if not getattr(options, "silent", False):
        yield
        return
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
        yield


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


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(prog="tierank", description="Learning to rank by unique ratings.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show version numbers, and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for add in COMMANDS:
        add(commands)
    return parser
