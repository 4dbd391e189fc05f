"""The exceptions of tierank.

    TierankError
    ├── DataError        data that cannot be used               (also a ValueError)
    │   ├── DataTypeError    of a type that is not supported        (also a TypeError)
    │   └── WriteError       a file or folder that cannot be written (also an OSError)
    │       └── WriteDenied      because of its permissions             (also a PermissionError)
    ├── MissingExtraError an optional library that is not installed  (also an ImportError; in tierank.extras)
    ├── NotFittedError   a ranker that was used before it was fitted
    ├── ParameterError   a name or a setting that cannot be used (also a ValueError)
    ├── ProcessError     a worker process that ended early
    └── TeamError        a process of a training team was lost, or has different data or settings

An error has fields, and ``str(error)`` composes them into one line:

    where: argument: expected ..., got ...; fix

The front ends render the same fields in their own words: the command line names options, the server names the
place in the JSON that it was sent.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

# How many names a message lists.
_LISTED = 20
# Characters of a name that are compared to known ones.
_COMPARED = 200
# Error numbers of a full disk, an exhausted quota and a file that is too large.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# The exit code of a process that only knows that another process of its team is missing.
LEFT_ALONE = 3

# Arguments that a message mentions are in backticks, or have an equals sign and perhaps a value: n_jobs=1.
_ARGUMENT = re.compile(r"`([^`]+)`|(?<![^\s(])(\w+)=(Columns\(\w+=\[.*?\]\)|\[.*?\]|'[^']*'|\w*)")
_FIELDS = ("argument", "where", "expected", "got", "fix")


def near_name(name: object, known: Iterable[str]) -> str | None:
    """The known name that was most likely meant, or None.

    >>> near_name("bm52", ["bm25", "pagerank"])
    'bm25'
    >>> near_name("PBM", ["dbn", "pbm"])
    'pbm'
    """
    asked, listed = str(name)[:_COMPARED], list(known)
    in_other_case = [one for one in listed if one.lower() == asked.lower()]
    near = in_other_case or difflib.get_close_matches(asked, listed, n=1)
    return near[0] if near else None


def renamed(text: str, rename: Callable[[str], str | None] = str) -> str:
    """A text without the backticks around arguments, and with other names for them, as in ``TierankError.render``.

    >>> renamed("leave out `n_jobs`, or pass k=1", {"n_jobs": "--jobs", "k": "-k", "k=1": "-k 1"}.get)
    'leave out --jobs, or pass -k 1'
    """

    def replace(found: re.Match[str]) -> str:
        argument = found[1] or found[0]
        is_known = found[1] or rename(found[2])
        return (rename(argument) if is_known else None) or argument

    return _ARGUMENT.sub(replace, text)


class TierankError(Exception):
    """Base class of all tierank errors.

    Parameters
    ----------
    message : str, optional
        The whole message, for errors that the fields do not fit. ``argument`` and ``where`` are put before it.
    argument : str, optional
        The argument or setting that is wrong, by its name in Python.
    where : str, optional
        The file, line, row or query where the problem is.
    expected : str, optional
        What would have been accepted. Other arguments that it mentions are in backticks, as in ``fix``: `k`, `k=1`.
    got : str, optional
        What was given instead.
    fix : str, optional
        What to do.

    Examples
    --------
    >>> error = ParameterError(argument="n_jobs", expected="an integer >= 1", got="0", fix="leave out `n_jobs`")
    >>> print(error)
    n_jobs: expected an integer >= 1, got 0; leave out n_jobs
    >>> error.render({"n_jobs": "--jobs"}.get)
    '--jobs: expected an integer >= 1, got 0; leave out --jobs'
    """

    message: str | None
    argument: str | None
    where: str | None
    expected: str | None
    got: str | None
    fix: str | None

    def __init__(
        self,
        message: str | None = None,
        *,
        argument: str | None = None,
        where: str | os.PathLike[str] | None = None,
        expected: str | None = None,
        got: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(*(() if message is None else (message,)))
        self.message, self.argument, self.expected, self.got, self.fix = message, argument, expected, got, fix
        self.where = None if where is None else os.fsdecode(where)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, dict(vars(self)))

    def __str__(self) -> str:
        return self.render()

    def render(self, rename: Callable[[str], str | None] = str) -> str:
        """The message, with other names for arguments.

        Parameters
        ----------
        rename : callable, default str
            The name to show for each argument; a name for which it returns None stays.

        Returns
        -------
        str
            One line.
        """
        head = [part for part in (self.where, self.argument and (rename(self.argument) or self.argument)) if part]
        body = [renamed(part, rename) for part in (self.message, self.expected and f"expected {self.expected}") if part]
        if self.got is not None:  # the caller's data, which do not name our arguments
            body.append(f"got{'' if self.got.startswith(':') else ' '}{self.got}")
        said = [", ".join(body)] if body else []
        said += [renamed(self.fix, rename)] if self.fix else []
        return ": ".join([*head, "; ".join(said)] if said else head)

    def at(self, where: str | os.PathLike[str]) -> Self:
        """Put a place in front of ``where``, and return the error."""
        self.where = os.fsdecode(where) if self.where is None else f"{os.fsdecode(where)}: {self.where}"
        return self

    def fields(self) -> dict[str, str]:
        """The fields that are set, by name."""
        return {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}


def _rebuilt(kind: type[TierankError], args: tuple[Any, ...], state: dict[str, Any]) -> TierankError:
    """An error that came from another process."""
    error = kind(*args)
    vars(error).update(state)
    return error


class DataError(TierankError, ValueError):
    """Data that cannot be used: a file, a table or an array."""


class DataTypeError(DataError, TypeError):
    """Data of a type that is not supported."""


@contextmanager
def located(where: str | os.PathLike[str]) -> Iterator[None]:
    """Put a place in front of the ``where`` of a ``DataError`` that the block raises."""
    try:
        yield
    except DataError as error:
        raise error.at(where) from None


class WriteError(DataError, OSError):
    """A file or folder that cannot be written: the disk is full, a permission is missing, or the disk fails."""

    @classmethod
    def of(cls, place: str | os.PathLike[str], error: OSError) -> WriteError:
        """The error for a path, from the OSError of the system or a library.

        >>> print(WriteError.of("model", OSError(28, "No space left on device")))
        model: expected a path that can be written, got: No space left on device; free some space, or write elsewhere
        """
        kind = WriteDenied if isinstance(error, PermissionError) else cls
        said = error.strerror or f"{error} (is the disk full?)"  # some libraries give no error number
        is_full = error.errno in (None, *_NO_ROOM)
        fix = "free some space, or write elsewhere" if is_full else None
        write_error = kind(where=place, expected="a path that can be written", got=f": {said}", fix=fix)
        write_error.errno = error.errno
        return write_error


class WriteDenied(WriteError, PermissionError):
    """A file or folder that the user has no permission to write."""


class NotFittedError(TierankError):
    """A ranker that was used before it was fitted."""


class ParameterError(TierankError, ValueError):
    """A name or a setting that cannot be used.

    Where a name is unknown, ``name`` is that name, ``kind`` what it should name, and ``known`` are the names that could
    have been given.
    """

    name: object = None
    kind: str = ""
    known: Sequence[str] = ()
    elsewhere: Sequence[str] = ()

    @classmethod
    def unknown(
        cls,
        kind: str,
        name: object,
        known: Iterable[str],
        listed: Iterable[str] | None = None,
        elsewhere: Sequence[str] = (),
        fix: str | None = None,
    ) -> ParameterError:
        """The error for an unknown name: suggests the nearest of ``known``, and lists ``listed``, by default ``known``.

        ``elsewhere`` lists others that do have the name; it is then not taken for a misspelling. ``fix`` replaces what
        would be suggested.

        >>> error = ParameterError.unknown("rule", "lightgmb", ["lightgbm", "letor"])
        >>> print(error)
        unknown rule 'lightgmb': did you mean 'lightgbm'? Known: letor, lightgbm
        >>> error.fields()
        {'expected': 'one of letor, lightgbm', 'got': "'lightgmb'", 'fix': "did you mean 'lightgbm'?"}
        """
        known = sorted(set(known))
        shown = known if listed is None else sorted(listed)
        some = f"{', '.join(shown[:_LISTED])}{', ...' if len(known) > len(shown[:_LISTED]) else ''}"
        if fix is None and elsewhere:
            fix = f"{', '.join(elsewhere[:3])}{' and others have' if len(elsewhere) > 3 else ' have'} it."
        elif fix is None:
            near = near_name(name, known)
            fix = None if near is None else f"did you mean {near!r}?"
        error = cls(expected=f"one of {some}", got=repr(name), fix=fix)
        error.name, error.kind, error.known, error.elsewhere = name, kind, known, elsewhere
        return error

    def render(self, rename: Callable[[str], str | None] = str) -> str:
        """The message: of an unknown name, what it should name and the known ones."""
        if not self.kind:
            return super().render(rename)
        listed = str(self.expected).removeprefix("one of ")
        words = " ".join(filter(None, (self.fix, f"Known: {listed}")))
        return ": ".join(filter(None, (self.where, self.argument, f"unknown {self.kind} {self.name!r}", words)))


class ProcessError(TierankError):
    """A worker process that ended before it returned a result."""


class ColumnWarning(UserWarning):
    """A warning about columns that should probably not be learned from: ids, constants, outcomes, leaks of the ratings.

    ``warnings.simplefilter("ignore", tierank.ColumnWarning)`` silences it.
    """


class SingleFeatureWarning(UserWarning):
    """A warning that a single feature ranks the validation data better than the ranker that was trained.

    ``warnings.simplefilter("ignore", tierank.SingleFeatureWarning)`` silences it.
    """


class TeamError(TierankError):
    """A process of a training team ended, does not answer, or was given different data or settings."""

    # Whether this process only knows that another one is missing: that one, if it still runs, can say why.
    is_left_alone: bool = False

    @classmethod
    def left_alone(cls, message: str, **fields: str) -> TeamError:
        """The error of a process that only knows that another one is missing; ``fields`` as in ``TierankError``."""
        error = cls(message, **fields)
        error.is_left_alone = True
        return error

    @classmethod
    def lost(cls, number: int, hosts: Sequence[str], error: Exception) -> TeamError:
        """The error of a process that lost contact with another one in the middle of training.

        >>> print(TeamError.lost(0, ["10.0.0.1", "10.0.0.2"], OSError("[gloo/pair.cc:78] Connection closed by peer")))
        process 0 of 2 on 10.0.0.1: lost contact with the other processes (1 on 10.0.0.2): Connection closed by peer;
        one of them has ended, or its machine is down: train again with the same checkpoint to continue
        """
        what = (str(error) or type(error).__name__).splitlines()[0].partition(". This is typically")[0]
        what = re.sub(r"^\[[^]]*:\d+\] ", "", what)  # the line of gloo's source
        others = [f"{k} on {host}" for k, host in enumerate(hosts) if k != number]
        listed = ", ".join(others[:8]) + (", ..." if len(others) > 8 else "")
        return cls.left_alone(
            f"lost contact with the other processes ({listed}): {what}",
            where=f"process {number} of {len(hosts)} on {hosts[number]}",
            fix="one of them has ended, or its machine is down: train again with the same checkpoint to continue",
        )
