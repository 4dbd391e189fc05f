"""API keys."""

from __future__ import annotations

import codecs
import hashlib
import hmac
import logging
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from tierank.errors import ParameterError

LOG = logging.getLogger("tierank.serve")

# Characters that a header can hold unchanged.
_KEY = re.compile(r"[\x21-\x7e]+")
# The largest file of keys, in bytes.
_LARGEST = 1 << 20


class Keys:
    """The accepted keys; only their SHA-256 is kept.

    >>> keys = Keys(["first-key", "second-key"])
    >>> keys.admit("Bearer second-key"), keys.admit("bearer third-key"), keys.admit(None)
    (True, False, False)
    """

    def __init__(self, keys: Iterable[str]) -> None:
        if not isinstance(keys, Iterable):
            raise ParameterError(f"keys: expected a list of texts, got {type(keys).__name__}")
        given = [keys] if isinstance(keys, str) else list(keys)
        for number, key in enumerate(given, 1):
            if not isinstance(key, str) or not _KEY.fullmatch(key):
                raise ParameterError(
                    f"keys: expected printable ASCII without blanks, got something else as key {number}"
                )
        if not given:
            raise ParameterError("keys: expected at least one, got none; leave them out to accept all requests")
        self._digests = tuple(_digest(key.encode()) for key in given)

    @classmethod
    def read(cls, path: Path) -> Keys:
        """The keys of a file, one per line; blank lines and lines that start with ``#`` are ignored."""
        if path.is_dir():
            raise ParameterError(where=path, expected="a file of API keys", got="a folder")
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
            mode = os.fstat(file.fileno()).st_mode
        # Only the ends of lines that editors write: other control characters do not divide a key in two.
        text = content.removeprefix(codecs.BOM_UTF8).decode("latin-1")
        lines = [line.strip(" \t") for line in re.split("\r\n|\r|\n", text)]
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys or len(content) > _LARGEST:
            got = "none" if not keys else f"more than {_LARGEST} bytes"
            raise ParameterError(where=path, expected="one API key per line", got=got)
        wrong = next((n for n, line in enumerate(lines, 1) if line in keys and not _KEY.fullmatch(line)), 0)
        if wrong:
            expected = "a key of printable ASCII without blanks"
            raise ParameterError(where=f"{path}:{wrong}", expected=expected, got="something else")
        if mode & stat.S_IROTH:
            LOG.warning("%s: every user of this machine can read the API keys; run chmod 600 on the file", path)
        return cls(keys)

    @classmethod
    def read_again(cls, path: Path) -> Keys:
        """The keys of a file that was read before. A pipe is refused: a running server would wait for its writer."""
        if path.is_fifo():
            raise ParameterError(where=path, expected="a file of API keys", got="a pipe, which can be read only once")
        return cls.read(path)

    @classmethod
    def from_texts(cls, digests: Iterable[str]) -> Keys:
        """The keys from the result of ``to_texts``."""
        keys = cls.__new__(cls)
        keys._digests = tuple(bytes.fromhex(one) for one in digests)
        return keys

    def to_texts(self) -> list[str]:
        """The keys in a form that can be sent to another process."""
        return [one.hex() for one in self._digests]

    def admit(self, authorization: str | None) -> bool:
        """Whether the header has one of the keys, in constant time."""
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip().encode("utf-8", "surrogateescape"))
        same = [hmac.compare_digest(given, one) for one in self._digests]
        return scheme.lower() == "bearer" and any(same)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
