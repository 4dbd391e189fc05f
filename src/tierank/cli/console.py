"""Messages with options in place of arguments, pipes, and checks of output paths."""

from __future__ import annotations

import argparse
import ast
import copy
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tierank.errors import ParameterError, TierankError

# Standard input or standard output, as a path.
PIPE = "-"

# Arguments and options, as argparse calls them, whose values are paths that are read.
_INPUTS = ("data", "valid", "against", "model", "scores", "runs", "titles", "attributes", "verify", "log")


def _joined(names: str) -> str:
    """The column names in the repr of a list, in the form that an option takes."""
    try:
        return shlex.quote(",".join(ast.literal_eval(names)))
    except (ValueError, SyntaxError, TypeError):  # names that look like a part of the message, or placeholders
        return names


# Patterns of arguments in messages of the library, and the options in their place.
_WORDS = [
    (re.compile(pattern), words)
    for pattern, words in (
        (r"(?<= with )query=(?!\S)", "--query-column"),
        (r"(?<= with )features=(?!\S)", "--features"),
        (r"(?<= with )zero_based=True(?!\S)", "--zero-based"),
        (r"(?<=expected numbers, got )(.*), or leave them out$", r"\1, or leave the column out with --ignore"),
        (
            r"(declare |)columns=Columns\((\w+)=(\[.*?\])\)",
            lambda found: f"{'give ' * bool(found[1])}--{found[2]} {_joined(found[3])}",
        ),
        (r"(?<=--texts )\[\(query, document\)\]", "QUERY:DOCUMENT"),
        (r"(?<=out with )ignore=(\[.*\]|)$", lambda found: f"--ignore {_joined(found[1])}".rstrip()),
        (r"this data set has no ratings: .*", "expected ratings, got none; name their column with --rating-column"),
        (r"(?<=got a folder; )read_fold reads(?= a folder of folds)", "cv and tune take, as --data,"),
        (r", or a space of your own$", ""),
        (r"(?<=pass )format='(\w+)'", r"--format \1"),
        (r"; tierank\.\w+ reads (data(, .*)?|a model)$", ""),
        (r", or pass it as a table of pandas$", ""),
        (r"; pass its arrays: .*", "; save it as CSV or Parquet"),
        (r"(?<=; train with )(?=\w+=)", "--set "),
        (r"give one query id per row as qid(?=,)", "name the column of query ids with --query-column"),
        (r"give the documents of one list the same query id$", "name the column of query ids with --query-column"),
        (r"(?<=give the new one another name)", ", such as new=urank,hidden=[200,100]"),
        (r"the same call with the same folder \(out\) resumes", "the same command resumes"),
        (r"fewer processes \(n_jobs\)", "fewer processes (--jobs)"),
        (r"n_jobs=1 works in this process", "--jobs 1 works in one process"),
        (r"^n_queries: ", "--queries: "),
        (r"^(.*: )?position: ", r"\1--position-column: "),
        (r"^(.*: )?(row|query)_weight: (?=expected (a table|data))", r"\1--\2-weight-column: "),
        (r"^(.*: )?(query|rating|document): (?=expected a table)", r"\1--\2-column: "),
        (r"^(.*: )?(features|ignore): (?=expected a table)", r"\1--\2: "),
        (r"^(.*: )?columns: (?=expected a table)", r"\1--categories, --dates or the like: "),
        (r"^(.*: )?zero_based: (?=expected text)", r"\1--zero-based: "),
        (r"^n_jobs: expected an integer >= 1, or -1 or None for", "--jobs: expected an integer >= 1, or -1 for"),
        (r"^propensity: ", "--propensity: "),
        (r"(?<=: expected )propensity(?= too)", "--propensity"),
        (r"the setting (?=position_tower)", "--set "),
        (r"^position_tower: expected position alone in fit", "--set position_tower: expected --position-column alone"),
        (r"^(.*: )?date_parts: ", r"\1--date-parts: "),
        (r"^(.*: )?(?=(categories|dates|means|measures|now|similarities|texts): expected)", r"\1--"),
        (r"^n_queries: ", "--queries: "),
        (r"^(?=(fold|k|ranks|seed|seeds|timeout|top|trials|valid): )", "--"),
    )
]

# Temporary names of files that are being written mean nothing to the caller.
_UNFINISHED = re.compile(r"\.([^/]+)\.[^./]+\.new(/.*)?$")


def say(line: str) -> None:
    """Print a message that is not part of the result."""
    print(line, file=sys.stderr)


def say_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning of the library on one line, without its source location."""
    say(f"WARNING: {in_options(str(message))}")


def in_options(message: str) -> str:
    """A message of the library on one line, with options in place of the arguments of Python.

    >>> in_options("a.csv: expected a query column called qid, got the columns x, y; name yours with query=")
    'a.csv: expected a query column called qid, got the columns x, y; name yours with --query-column'
    """
    text = " ".join(message.split())
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text


def line_of(error: Exception) -> str:
    """An error on one line; an OSError with the file name that the caller gave.

    >>> line_of(OSError(13, "Permission denied", "models/.best.4711.new"))
    'models/best: expected a path that can be read or written, got: Permission denied'
    """
    if isinstance(error, FileNotFoundError) and error.filename is None and not _has_current_folder():
        return "the current folder: expected one that exists, got one that was removed; change to another with cd"
    if isinstance(error, OSError) and error.strerror:
        place = "" if error.filename is None else _UNFINISHED.sub(r"\1", os.fsdecode(error.filename)) + ": "
        place = place.replace("\n", "\\n")
        return f"{place}expected a path that can be read or written, got: {error.strerror}"
    if isinstance(error, TierankError) and error.where is not None:  # a file may be called k or seed
        rest = copy.copy(error)
        rest.where = None
        return f"{' '.join(error.where.split())}: {in_options(str(rest))}"
    return in_options(str(error))


def _has_current_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def check_place(path: Path | None, *, is_folder: bool = False, read: Iterable[str | Path] = ()) -> None:
    """Raise an error before the work if a path cannot be written. Parent folders are created on writing.

    ``read`` are the inputs, which must not be overwritten: see ``inputs_of``.
    """
    if path is None:
        return
    if path.exists() and any(_is_in(path, Path(one)) for one in read):
        raise ParameterError(where=path, expected="a file other than the one that is read", fix="choose another name")
    if str(path) == PIPE:
        raise ParameterError(f"{PIPE}: expected the name of a {'folder' if is_folder else 'file'}, got standard output")
    if is_folder and path.is_file():
        raise ParameterError(where=path, expected="the name of a folder", got="a file there", fix="choose another name")
    if not is_folder and path.is_dir():
        raise ParameterError(where=path, expected="the name of a file", got="a folder there", fix="choose another name")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ParameterError(
            where=path, expected="a folder above it", got=f"the file {above}", fix="choose another name"
        )
    if not os.access(above, os.W_OK):
        raise ParameterError(where=path, expected="a path that can be written", got=f"{above}, which is not writable")


def inputs_of(options: argparse.Namespace) -> list[str]:
    """All paths that a command may read, with and without NAME= in front of them."""
    given = [getattr(options, name, None) for name in _INPUTS]
    texts = [str(one) for some in given if some is not None for one in (some if isinstance(some, list) else [some])]
    return texts + [text.partition("=")[2] for text in texts if "=" in text]


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
        if not _is_pipe(source):
            return source
        if source in self._files:
            raise ParameterError(f"{source}: expected once, as a pipe can be read only once")
        folder = Path(self._kept.enter_context(tempfile.TemporaryDirectory(prefix="tierank-")))
        self._files[source] = folder / "piped"
        with self._files[source].open("wb") as file:
            file.writelines(_content(source))
        return str(self._files[source])

    def named(self, text: str) -> str:
        """A message with the name that the caller gave in place of the temporary file."""
        for source, file in self._files.items():
            text = text.replace(str(file), "standard input" if source == PIPE else source)
        return text


def _is_pipe(source: str) -> bool:
    path = Path(source)
    return source == PIPE or (path.exists() and not path.is_file() and not path.is_dir())


def _content(source: str) -> Iterator[bytes]:
    from tierank.readers.paths import kind_of, pipe_content

    if source == PIPE:
        return iter(lambda: sys.stdin.buffer.read(1 << 20), b"")
    kind_of(Path(source))  # raises for devices, which may be endless
    return pipe_content(Path(source))
