"""API keys: who may ask."""

from __future__ import annotations

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

# What fits into a header as it is.
_KEY = re.compile(r"[\x21-\x7e]+")
# A file of keys has a few lines.
_LARGEST = 1 << 20


class Keys:
    """The keys that are let in; only their SHA-256 is kept.

    >>> keys = Keys(["first-key", "second-key"])
    >>> keys.admit("Bearer second-key"), keys.admit("bearer third-key"), keys.admit(None)
    (True, False, False)
    """

    def __init__(self, keys: Iterable[str]) -> None:
        given = [keys] if isinstance(keys, str) else list(keys)
        for number, key in enumerate(given, 1):
            if not isinstance(key, str) or not _KEY.fullmatch(key):
                raise ParameterError(
                    f"keys: expected printable ASCII without blanks, got something else as key {number}"
                )
        if not given:
            raise ParameterError("keys: expected one at least, got none; leave them out to let everybody in")
        self._digests = tuple(_digest(key.encode()) for key in given)

    @classmethod
    def read(cls, path: Path) -> Keys:
        """The keys of a file, one on each line; blank lines and those that begin with ``#`` are left out."""
        if path.is_dir():
            raise ParameterError(f"{path}: expected a file of API keys, got a folder")
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
            mode = os.fstat(file.fileno()).st_mode
        lines = [line.strip() for line in content.decode("latin-1").splitlines()]
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys or len(content) > _LARGEST:
            got = "none" if not keys else f"more than {_LARGEST} bytes"
            raise ParameterError(f"{path}: expected an API key on each line, got {got}")
        wrong = next(
            (n for n, line in enumerate(lines, 1) if line[:1] not in ("", "#") and not _KEY.fullmatch(line)), 0
        )
        if wrong:
            raise ParameterError(
                f"{path}:{wrong}: expected a key of printable ASCII without blanks, got something else"
            )
        if mode & stat.S_IROTH:
            LOG.warning("%s: every user of this machine can read the API keys; chmod 600 mends it", path)
        return cls(keys)

    @classmethod
    def from_texts(cls, digests: Iterable[str]) -> Keys:
        """What ``to_texts`` gave."""
        found = cls.__new__(cls)
        found._digests = tuple(bytes.fromhex(one) for one in digests)
        return found

    def to_texts(self) -> list[str]:
        """The keys in a form to hand to another process."""
        return [one.hex() for one in self._digests]

    def admit(self, authorization: str | None) -> bool:
        """Whether the header has one of the keys. It takes as long for any wrong key, however much of it is right."""
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip().encode("utf-8", "surrogateescape"))
        same = [hmac.compare_digest(given, one) for one in self._digests]
        return scheme.lower() == "bearer" and any(same)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
