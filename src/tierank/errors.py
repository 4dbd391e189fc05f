"""The errors of tierank, drawn as a tree.

    TierankError
    ├── DataError        the data cannot be used as they are     (also a ValueError)
    │   ├── DataTypeError    nor could anything make numbers of it   (also a TypeError)
    │   └── WriteError       a place that cannot be written          (also an OSError)
    │       └── WriteDenied      because it is not permitted             (also a PermissionError)
    ├── NotFittedError   a ranker was asked before it was fitted
    ├── ParameterError   a name or a setting cannot be used      (also a ValueError)
    ├── ProcessError     a process that worked for this one has ended
    └── TeamError        a process of several that train together was lost, or has other data or settings

Every message says where, what was expected, what came, and what to do. The command line prints the
message alone and exits with 2.
"""

import difflib
import errno
import os
from collections.abc import Iterable, Sequence

# How many names a message lists.
_LISTED = 20
# Characters of a name that are compared to known ones.
_COMPARED = 200
# What the system says where there is no room.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# What a process returns to the system if the others of its team have left it alone.
LEFT_ALONE = 3


def near_name(name: object, known: Iterable[str]) -> str | None:
    """The known name that was most likely meant, or None.

    >>> near_name("bm52", ["bm25", "pagerank"])
    'bm25'
    """
    near = difflib.get_close_matches(str(name)[:_COMPARED], list(known), n=1)
    return near[0] if near else None


class TierankError(Exception):
    """What every error of tierank can be caught as."""


class DataError(TierankError, ValueError):
    """Data that cannot be used: a file, a table or an array."""


class DataTypeError(DataError, TypeError):
    """Data of a type that is no number and no text."""


class WriteError(DataError, OSError):
    """A file or folder that cannot be written: no room, no permission, a disk that fails."""

    @classmethod
    def of(cls, place: str | os.PathLike[str], error: OSError) -> "WriteError":
        """The error of a place, for what the system or a library said of it.

        >>> print(WriteError.of("model", OSError(28, "No space left on device")))
        model: expected a place that can be written, got: No space left on device; make room, or choose another place
        """
        kind = WriteDenied if isinstance(error, PermissionError) else cls
        said = error.strerror or f"{error} (no room left on the disk?)"  # libraries that write by themselves say little
        advice = "; make room, or choose another place" if error.errno in (None, *_NO_ROOM) else ""
        found = kind(f"{os.fsdecode(place)}: expected a place that can be written, got: {said}{advice}")
        found.errno = error.errno
        return found


class WriteDenied(WriteError, PermissionError):
    """A file or folder that this user may not write."""


class NotFittedError(TierankError):
    """A ranker that was asked for scores before it learned anything."""


class ParameterError(TierankError, ValueError):
    """A name or a setting that cannot be used.

    Where a name is in no table, ``name`` is that name, and ``known`` are those that are.
    """

    name: object = None
    known: Sequence[str] = ()

    @classmethod
    def unknown(cls, kind: str, name: object, known: Iterable[str]) -> "ParameterError":
        """The error for a name that no table holds, with the nearest names that one does.

        >>> print(ParameterError.unknown("rule", "lightgmb", ["lightgbm", "letor"]))
        unknown rule 'lightgmb': did you mean 'lightgbm'? Known: letor, lightgbm
        """
        known = sorted(set(known))
        near = near_name(name, known)
        hint = f"did you mean {near!r}? " if near is not None else ""
        some = f"{', '.join(known[:_LISTED])}{', ...' if len(known) > _LISTED else ''}"
        error = cls(f"unknown {kind} {name!r}: {hint}Known: {some}")
        error.name, error.known = name, known
        return error


class ProcessError(TierankError):
    """A process that worked for this one, and ended before it had an answer."""


class TeamError(TierankError):
    """A process, of several that train one model together, that ended, does not answer, or was given something else."""

    # Whether this process knows nothing but that another one is missing: that one, if any, can say why.
    is_left_alone: bool = False

    @classmethod
    def left_alone(cls, message: str) -> "TeamError":
        """The error of a process that misses another one."""
        error = cls(message)
        error.is_left_alone = True
        return error

    @classmethod
    def lost(cls, number: int, size: int, error: Exception) -> "TeamError":
        """The error of a process that another one left alone in the midst of it.

        >>> print(TeamError.lost(0, 2, OSError("Connection closed by peer")))
        process 0 of 2: expected an answer of the others, got: Connection closed by peer; one of them has ended, or its
        machine is gone: train again with the same checkpoint to go on
        """
        what = (str(error) or type(error).__name__).splitlines()[0]
        return cls.left_alone(
            f"process {number} of {size}: expected an answer of the others, got: {what}; one of them has ended, or its"
            " machine is gone: train again with the same checkpoint to go on"
        )
