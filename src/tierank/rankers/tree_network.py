"""LightGBM's own network between the processes of a team, and the bins that they agree on."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

from tierank.errors import TeamError
from tierank.team import Team

# What LightGBM finds bins from, as one process does: so many documents, its default of bin_construct_sample_cnt.
_SAMPLE = 200_000
# Minutes in which LightGBM has to have connected all processes.
_CONNECT = 2
# Seconds between two looks at its connections.
_LOOK = 0.5
# What LightGBM's messages say where another process is gone.
_LOST = re.compile(r"[Ss]ocket|Connect|network|linkers", re.IGNORECASE)


@contextmanager
def connected(team: Team, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """LightGBM's network, while the block lasts: gives the parameters that make it grow trees of all documents."""
    if team.size == 1:
        yield params
        return
    port, listener = _reserve()
    places = team.gather(f"{team.host}:{port}")
    listener.close()
    before = _open_files()
    try:
        with _silence():
            _call("LGBM_NetworkInit", lightgbm.basic._c_str(",".join(places)), port, _CONNECT, team.size)
        with _watched(_open_files() - before, team.timeout):
            # Between processes documents of a leaf are guessed, and a guess of none would end the process.
            fewest = max(1, params["min_data_in_leaf"])
            yield params | {"num_machines": team.size, "tree_learner": "data", "min_data_in_leaf": fewest}
            team.gather(None)  # nobody closes a connection that another one still listens to
    except lightgbm.basic.LightGBMError as error:
        if not _LOST.search(str(error)):
            raise
        raise TeamError.lost(team.number, team.size, error) from None
    finally:
        _call("LGBM_NetworkFree")


def agree_on_bins(features: Any, n_documents: int, team: Team, params: dict[str, Any]) -> lightgbm.Dataset | None:
    """A small data set with the bins of a sample of all documents, the same in every process.

    ``features`` gives a sample of rows by their numbers. Where it is all documents, bins are those that LightGBM finds
    by itself, and one process needs none of this: None. Where it is not, this takes half the memory of LightGBM's way.
    """
    total = int(team.sum(np.array([n_documents]))[0])
    wanted = int(params.get("bin_construct_sample_cnt", _SAMPLE))
    if team.size == 1 and total <= wanted:
        return None
    n_own = n_documents if total <= wanted else max(1, wanted * n_documents // total)
    rows = np.linspace(0, n_documents - 1, n_own).astype(np.int64) if n_own < n_documents else np.arange(n_documents)
    found = lightgbm.Dataset(team.gather_rows(features.sample(rows)), params=params).construct()
    if hasattr(ctypes.CDLL(None), "malloc_trim"):  # a gigabyte of samples, in small pieces that are kept otherwise
        ctypes.CDLL(None).malloc_trim(0)
    return found


def check_is_global(text: str, n_documents: int) -> None:
    """An error unless the first tree counts all documents at its root: the proof that no process grew its own."""
    found = re.search(r"^internal_count=(\d+)", text, re.MULTILINE)
    if found is not None and int(found[1]) != n_documents:
        raise TeamError(
            f"expected trees of all {n_documents} documents, got a root of {found[1]}: the processes did not train"
            " together"
        )


def _call(name: str, *arguments: Any) -> None:
    function = getattr(lightgbm.basic._LIB, name)  # type: ignore[attr-defined]
    converted = [ctypes.c_int(value) if isinstance(value, int) else value for value in arguments]
    lightgbm.basic._safe_call(function(*converted))


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing on standard output: LightGBM prints that it listens, whatever it is told."""
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush(None)
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _reserve() -> tuple[int, socket.socket]:
    """A port that is free, and the socket that keeps it so until all processes have found theirs."""
    listener = socket.socket()
    listener.bind(("", 0))
    return int(listener.getsockname()[1]), listener


def _open_files() -> set[int]:
    """The numbers of the files and sockets that this process has open, where the system says so."""
    folder = Path("/proc/self/fd")
    return {int(entry.name) for entry in folder.iterdir()} if folder.is_dir() else set()


@contextmanager
def _watched(files: set[int], seconds: float) -> Iterator[None]:
    """Let LightGBM's sockets fail where nobody is at the other end: by itself it waits forever.

    Those of a process that fell silent give up after so many seconds; those that were closed are taken away.
    """
    limit, done = struct.pack("ll", max(1, int(seconds)), 0), threading.Event()
    watched = {}
    for number in files:
        try:
            watched[number] = found = socket.socket(fileno=os.dup(number))
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        except OSError:  # no socket, or closed meanwhile
            continue
    watcher = threading.Thread(target=_take_away_closed, args=(watched, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        for found in watched.values():
            found.close()


def _take_away_closed(watched: dict[int, socket.socket], done: threading.Event) -> None:
    """Put nothing in the place of each socket whose other end was closed, on which LightGBM would spin."""
    while watched and not done.wait(_LOOK):
        for number, found in list(watched.items()):
            try:
                is_closed = found.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
            except BlockingIOError:
                continue
            except OSError:
                is_closed = True
            if is_closed:
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(nothing, number)
                os.close(nothing)
                watched.pop(number).close()
