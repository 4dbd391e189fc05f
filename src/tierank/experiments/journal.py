"""The file of a study. It needs Optuna, so it is imported when a study begins."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from tierank.files import writing

# How the first line of every journal begins.
_BEGINS = b'{"op_code":'


class Journal(BaseJournalBackend):
    """The file that stores the trials of a study: complete lines of JSON, written by one process.

    If the disk is full or the process is killed, Optuna's own journal leaves a partial line, which makes it unreadable,
    and a lock that the next run waits for.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        with writing(file), file.open("ab") as opened:
            content = file.read_bytes()
            if content[: len(_BEGINS)] == _BEGINS[: len(content)]:  # a process may have been killed in mid-line
                opened.truncate(content.rfind(b"\n") + 1)

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """The log entries from this number on."""
        with self.file.open("rb") as opened:
            for number, line in enumerate(opened):
                if number >= log_number_from:
                    yield json.loads(line)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines atomically."""
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with writing(self.file), self.file.open("ab", buffering=0) as opened:
            size = opened.tell()
            try:
                content = text.encode()
                while content:
                    content = content[os.write(opened.fileno(), content) :]
                os.fsync(opened.fileno())
            except OSError:
                opened.truncate(size)
                raise
