"""Printing of results, for people and for machines; pipes; and checks of the places to write to."""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.cli.options import PIPE, paths_of
from tierank.errors import ColumnWarning, ParameterError, TierankError, renamed

if TYPE_CHECKING:
    from tierank.report.tabulate import Table

Rename = Callable[[str], str | None]


@contextmanager
def quiet(options: argparse.Namespace) -> Iterator[None]:
    """Print warnings of the library as lines of ours, or nothing but results and errors.

    --quiet : switch, as silent, default False
        print only results and errors: no progress, no warnings
    """
    with warnings.catch_warnings(), ExitStack() as stack:
        if getattr(options, "silent", False):  # errors are printed later
            nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
            stack.enter_context(redirect_stderr(nowhere))
        warnings.showwarning = warning_printer(options.command.rename)
        warnings.filterwarnings("default", category=DeprecationWarning, module="tierank")  # of our own options
        warnings.simplefilter("ignore", ColumnWarning)  # reading reports it, with the option that helps
        yield


def show(options: argparse.Namespace, content: dict[str, Any], tables: list[Table]) -> None:
    """Print results as the caller wants them."""
    if options.json:
        print_json(content)
    for table in tables if not options.json else []:
        if getattr(options, "markdown", False):
            print(table.to_markdown())
        elif getattr(options, "latex", False):
            print(table.to_latex())
        else:  # in colours on a terminal
            print(table.to_text(terminal=sys.stdout.isatty() and "NO_COLOR" not in os.environ))


def print_json(content: dict[str, Any]) -> None:
    """Print for machines."""
    print(json.dumps(content, indent=2, allow_nan=False))


def say(line: str) -> None:
    """Print a message that is not part of the result."""
    print(line, file=sys.stderr)


def in_options(text: str, rename: Rename) -> str:
    """A text of the library on one line, with options in place of arguments."""
    argument, colon, rest = text.partition(": ")
    told = f"{rename(argument) or argument}: {rest}" if colon else text
    line = " ".join(renamed(told, rename).split())
    for phrase, ours in _PHRASES.items():
        line = line.replace(phrase, ours)
    return line


def warning_printer(rename: Rename) -> Callable[..., None]:
    """What prints warnings of the library on one line, each once, without its source location."""
    said: set[str] = set()

    def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        line = in_options(str(message), rename)
        if line not in said:
            said.add(line)
            say(f"WARNING: {line}")

    return print_warning


# What callers of Python are told in other words.
_PHRASES = {
    "give one query id per row as qid": "name the column of query ids with --query-column",
    "give the documents of one list the same query id": "name the column of query ids with --query-column",
    "read_fold reads a folder of folds": "cv and tune take, as --data, a folder of folds",
    ", or pass it as a table of pandas": "",
}
# Advice that is for Python alone: a function of tierank, or a call.
_OF_PYTHON = re.compile(r"\btierank\.\w|\w\(")
# Temporary names of files that are being written mean nothing to the caller.
_UNFINISHED = re.compile(r"\.([^/]+)\.[^./]+\.new(/.*)?$")


def line_of(error: Exception, rename: Rename = str) -> str:
    """An error on one line, with options in place of arguments; an OSError with the file name that the caller gave.

    >>> line_of(OSError(13, "Permission denied", "models/.best.4711.new"))
    'models/best: expected a path that can be read or written, got: Permission denied'
    """
    if isinstance(error, TierankError):
        if error.fix is not None:
            fix = in_options(error.fix, rename)
            error = copy.copy(error)
            error.fix = None if _OF_PYTHON.search(fix) else fix
        return " ".join(error.render(rename).split())
    assert isinstance(error, OSError)  # noqa: S101
    if isinstance(error, FileNotFoundError) and error.filename is None:
        try:
            Path.cwd()
        except FileNotFoundError:
            return "the current folder: expected one that exists, got one that was removed; change to another with cd"
    place = None if error.filename is None else _UNFINISHED.sub(r"\1", os.fsdecode(error.filename))
    wrong = TierankError(where=place, expected="a path that can be read or written", got=f": {error.strerror}")
    return str(wrong if error.strerror else error).replace("\n", "\\n")


def check_place(options: argparse.Namespace, path: Path | None, *, is_folder: bool = False) -> None:
    """Raise an error before the work if a path cannot be written, or is read. Folders above it are made on writing."""
    if path is None:
        return
    fix, above = "choose another name", next(folder for folder in path.absolute().parents if folder.exists())
    inputs = [one for path, _ in paths_of(options) for one in (path, path.partition("=")[2]) if one]
    wrong: dict[str, str] = {}
    if path.exists() and any(_is_in(path, Path(one)) for one in inputs):
        wrong = {"expected": "a file other than the one that is read", "fix": fix}
    elif str(path) == PIPE:
        wrong = {"expected": f"the name of a {'folder' if is_folder else 'file'}", "got": "standard output"}
    elif is_folder and path.is_file():
        wrong = {"expected": "the name of a folder", "got": "a file there", "fix": fix}
    elif not is_folder and path.is_dir():
        wrong = {"expected": "the name of a file", "got": "a folder there", "fix": fix}
    elif not above.is_dir():
        wrong = {"expected": "a folder above it", "got": f"the file {above}", "fix": fix}
    elif not os.access(above, os.W_OK):
        wrong = {"expected": "a path that can be written", "got": f"{above}, which is not writable"}
    if wrong:
        raise ParameterError(where=path, **wrong)


def _is_in(path: Path, source: Path) -> bool:
    """Whether a path is an input, or a file in the folder of a model, a data set or a run, which may hold a page."""
    if not source.exists() or path.samefile(source):
        return source.exists()
    is_kept = any((source / name).is_file() for name in ("model.json", "meta.json", "run.json"))
    return is_kept and path.suffix != ".html" and path.resolve().is_relative_to(source.resolve())


def made(path: Path) -> Path:
    """The path, after its parent folders were created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


class Pipes:
    """The content of pipes, in temporary files while a command runs: readers map files, and read them twice."""

    def __init__(self) -> None:
        self._files: dict[str, Path] = {}
        self._kept = ExitStack()

    def __enter__(self) -> Pipes:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    def as_file(self, source: str) -> str:
        """The path of a file with the content of a pipe; any other source unchanged."""
        path = Path(source)
        if source != PIPE and (not path.exists() or path.is_file() or path.is_dir()):
            return source
        if source in self._files:
            raise ParameterError(where=source, expected="once, as a pipe can be read only once")
        from tierank.io.paths import kind_of, pipe_content

        if source != PIPE:
            kind_of(path)  # raises for devices, which may be endless
        content = iter(lambda: sys.stdin.buffer.read(1 << 20), b"") if source == PIPE else pipe_content(path)
        folder = Path(self._kept.enter_context(tempfile.TemporaryDirectory(prefix="tierank-")))
        self._files[source] = folder / "piped"
        with self._files[source].open("wb") as file:
            file.writelines(content)
        return str(self._files[source])

    def named(self, text: str) -> str:
        """A message with the name that the caller gave in place of the temporary file."""
        for source, file in self._files.items():
            text = text.replace(str(file), "standard input" if source == PIPE else source)
        return text
