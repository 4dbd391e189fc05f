"""The only module that uses LightGBM's internals: bins from our own sample, its network, its parameter names.

At import it checks that the installed LightGBM has everything that is used, and says what is missing.
"""

from __future__ import annotations

import ctypes
import hmac
import os
import re
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from tierank.arrays import chunks, release_pages, rows_in
from tierank.data.team import Team
from tierank.errors import TeamError
from tierank.extras import MissingExtraError
from tierank.kernels import n_threads

# Private names of LightGBM that are used, and what for.
_USED = {
    "basic._LIB": "to call its C library",
    "basic._safe_call": "to turn its error codes into exceptions",
    "basic._c_str": "to hand strings to its C library",
    "basic._ConfigAliases._get_all_param_aliases": "to know the names of its parameters",
    "Dataset._init_from_sample": "to find bins from a sample",
    "Dataset._push_rows": "to fill a data set without a copy of the features",
}

# Documents that LightGBM finds bins from in one process: the default of its bin_construct_sample_cnt.
_SAMPLE = 200_000
# Bytes of rows, and scattered rows, that are passed to LightGBM at a time.
_BATCH, _SCATTERED = 1 << 25, 1 << 12
# Values up to this count as 0 in LightGBM.
_ZERO = 1e-35
# Minutes in which LightGBM has to connect all processes.
_CONNECT = 2
# Bytes by which a process recognises the others, and seconds that one that connects has to send them.
_KEY, _GREETING = 16, 10.0
# Seconds between two checks of its connections.
_LOOK = 0.5
# Messages of LightGBM when another process is gone.
_LOST = re.compile(r"[Ss]ocket|Connect|network|linkers", re.IGNORECASE)
# Bytes of features that are scored at a time.
_SCORED = 1 << 27


def _missing_names() -> dict[str, str]:
    """The private names that tierank needs and the installed LightGBM does not have, with their purpose."""
    missing = {}
    for path, use in _USED.items():
        try:
            attrgetter(path)(lightgbm)
        except AttributeError:
            missing[path] = use
    return missing


if _MISSING := _missing_names():
    raise MissingExtraError(
        where=f"LightGBM {lightgbm.__version__}",
        expected=", ".join(f"{path} ({use})" for path, use in _MISSING.items()),
        fix="install a version from 4.6 on that has what tierank needs, or a newer tierank",
    )


class _Threads:
    """LightGBM's number of threads, which applies to the whole process.

    Models allocate memory for it. If it grows while a model trains, because another thread of the program loads a model
    or trains one with other settings, LightGBM writes beyond that memory. So all models that train at the same time
    have the same number, and nothing else can raise it meanwhile. It is at most OpenMP's own number: a model that is
    loaded sets LightGBM to that one, and from a lower number it would grow again.
    """

    def __init__(self) -> None:
        self._lock, self._n_inside, self._number, self._none = threading.Lock(), 0, 0, -1

    @contextmanager
    def limited(self, wanted: int) -> Iterator[int]:
        """Inside this block LightGBM has this number of threads, or that of models that already train."""
        with self._lock:
            if self._n_inside == 0:
                self._number = min(wanted, most_threads())
                self._set_most(self._number)
            self._n_inside += 1
        try:
            yield self._number
        finally:
            with self._lock:
                self._n_inside -= 1
                if self._n_inside == 0:
                    self._set_most(self._none)

    def fork(self) -> None:
        """A forked process gets one thread, as ``n_threads`` says: loading a model does not ask for a number."""
        self._lock, self._n_inside, self._none = threading.Lock(), 0, 1
        self._set_most(1)

    @staticmethod
    def _set_most(number: int) -> None:
        _call("LGBM_SetMaxThreads", number)


def most_threads() -> int:
    """The number of threads that OpenMP uses if it is not told a number: that of the cores, or ``OMP_NUM_THREADS``."""
    return int(lightgbm.basic._LIB.omp_get_max_threads())  # type: ignore[attr-defined]


_THREADS = _Threads()
if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_THREADS.fork)
training_threads = _THREADS.limited


@cache
def parameter_names() -> dict[str, str]:
    """The main name of every parameter of LightGBM, by name or alias."""
    aliases = lightgbm.basic._ConfigAliases._get_all_param_aliases()
    return {alias: name for name, others in aliases.items() for alias in (name, *others)}


def predicted(
    booster: lightgbm.Booster, features: NDArray[np.float32] | Rows, n_jobs: int | None
) -> NDArray[np.float64]:
    """The score of each row, computed many rows at a time."""
    threads = n_threads(n_jobs)
    parts = features.batches() if isinstance(features, Rows) else chunks(features, rows_in(features, _SCORED))
    return np.concatenate(
        [booster.predict(rows, raw_score=True, num_threads=threads) for rows in parts], dtype=np.float64
    )


def add_trees(booster: lightgbm.Booster, rows: Rows, scores: NDArray[np.float64], n_jobs: int | None) -> None:
    """Add the trees to the scores of the rows, one by one as in training: their sum alone would round differently."""
    threads, end = n_threads(n_jobs), 0
    for batch in rows.batches():
        some, end = slice(end, end + len(batch)), end + len(batch)
        for tree in range(booster.num_trees()):
            scores[some] += booster.predict(
                batch, start_iteration=tree, num_iteration=1, raw_score=True, num_threads=threads
            )


@contextmanager
def connected(team: Team, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """LightGBM's network while the block runs; yields the parameters that make it grow trees on all documents."""
    if team.size == 1:
        yield params
        return
    with socket.socket() as listener:  # reserves a free port until all processes have one
        listener.bind(("", 0))
        port = int(listener.getsockname()[1])
        places = team.all_gather(f"{team.host}:{port}")
    before = _open_files()
    try:
        with _silence():
            _call("LGBM_NetworkInit", lightgbm.basic._c_str(",".join(places)), port, _CONNECT, team.size)
        files = _open_files() - before
        _renew_sockets(files, team)
        with _watched(files, team.timeout):
            # With several processes LightGBM estimates the documents of a leaf, and an estimate of 0 would abort.
            fewest = max(1, params["min_data_in_leaf"])
            yield params | {"num_machines": team.size, "tree_learner": "data", "min_data_in_leaf": fewest}
            team.all_gather(None)  # no process closes a connection that another one still reads
    except lightgbm.basic.LightGBMError as error:
        if not _LOST.search(str(error)):
            raise
        raise TeamError.lost(team.rank, team.hosts, error) from None
    finally:
        _call("LGBM_NetworkFree")


class Rows(lightgbm.Sequence):
    """The rows of a matrix in a given order, passed on some thousands at a time, without a copy of the matrix.

    ``column``, if given, is one more feature: a value for each row of the matrix.
    """

    def __init__(
        self, features: NDArray[np.float32], order: NDArray[np.int64], column: NDArray[np.float32] | None = None
    ) -> None:
        self.features, self.order, self.column = features, order, column
        self.width = features.shape[1] + (column is not None)
        self.batch_size = rows_in(features, _BATCH)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        chosen: NDArray[np.float32] = self.features[self.order[rows]]
        release_pages(self.features)
        return chosen if self.column is None else np.column_stack([chosen, self.column[self.order[rows]]])

    def batches(self) -> Iterator[NDArray[np.float32]]:
        """All rows, some thousands at a time."""
        return (self[start : start + self.batch_size] for start in range(0, len(self), self.batch_size))

    def sample(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Some scattered rows, in chunks: for each row of a mapped matrix the system maps much around it."""
        sampled = np.empty((len(rows), self.width), np.float32)
        for start in range(0, len(rows), _SCATTERED):
            some = slice(start, start + _SCATTERED)
            sampled[some] = self[rows[some]]
        return sampled


def bin_rows(rows: Rows, team: Team, params: dict[str, Any]) -> lightgbm.Dataset:
    """The rows as a LightGBM data set, with bins from a sample of all documents, the same in every process.

    LightGBM's own sample covers only the documents of one process, and takes several times the memory.
    """
    # Creating a data set from a sample ignores the verbosity. Comparing equal parameters sets theirs, and nothing else.
    quiet = ctypes.c_char_p(b"verbosity=-1")
    _call("LGBM_DatasetUpdateParamChecking", quiet, quiet)
    total = int(team.all_reduce(np.array([len(rows)]))[0])
    wanted = int(params.get("bin_construct_sample_cnt", _SAMPLE))
    n_own = len(rows) if total <= wanted else max(1, wanted * len(rows) // total)
    sample = team.gather_rows(rows.sample(np.arange(n_own) * len(rows) // n_own))
    dataset = lightgbm.Dataset(None, params=params)
    # LightGBM takes a sample as the values of each column that are not 0, and their rows; missing values are not 0.
    places = [np.flatnonzero(~(np.abs(column) <= _ZERO)) for column in sample.T]
    values = [column[place].astype(np.float64) for column, place in zip(sample.T, places, strict=True)]
    places = [place.astype(np.int32) for place in places]
    dataset._init_from_sample(values, places, len(sample), len(rows))
    del sample, values, places
    # Many small arrays, whose memory would not be released otherwise.
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
    for batch in rows.batches():
        dataset._push_rows(batch)
    return dataset


def _call(name: str, *arguments: Any) -> None:
    function = getattr(lightgbm.basic._LIB, name)  # type: ignore[attr-defined]
    converted = [ctypes.c_int(value) if isinstance(value, int) else value for value in arguments]
    lightgbm.basic._safe_call(function(*converted))


@contextmanager
def _silence() -> Iterator[None]:
    """Silence standard output: LightGBM announces that it listens, whatever its verbosity."""
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


def _open_files() -> set[int]:
    """The numbers of the open files and sockets of this process, if the system tells."""
    folder = Path("/proc/self/fd")
    return {int(entry.name) for entry in folder.iterdir()} if folder.is_dir() else set()


def _renew_sockets(files: set[int], team: Team) -> None:
    """Replace each of LightGBM's sockets by one of ours, between the same two processes.

    LightGBM fixes the buffers of its sockets at 100 kB before it connects them. So a process sends that much and waits
    until the other one has confirmed it: over 20 ms and 100 Mbit/s, that takes twice as long as the bytes themselves
    (``python -m benchmarks.hosts slow``). The system adapts the buffers of other sockets to the network, but only from
    the start of a connection.
    """
    own = {ends: number for number in files if (ends := _ends(number)) is not None}
    key = os.urandom(_KEY)
    with socket.create_server(("", 0), backlog=team.size) as listener:
        told = team.all_gather([listener.getsockname()[1], key.hex(), list(own)])
        # LightGBM's sockets by the rank of the process at the other end, which sees the same two ends the other way.
        numbers = {
            rank: own[there, here]
            for rank, (_, _, ends) in enumerate(told)
            for here, there in ends
            if (there, here) in own
        }
        try:
            for rank in [rank for rank in numbers if rank < team.rank]:
                port, wanted, _ = told[rank]
                link = socket.create_connection((team.hosts[rank], port), team.timeout)
                link.sendall(bytes.fromhex(wanted) + struct.pack("!i", team.rank))
                _put(link, numbers.pop(rank))
            listener.settimeout(team.timeout)
            while numbers:
                link, _ = listener.accept()
                caller = _greeting(link, key)
                if caller in numbers:
                    _put(link, numbers.pop(caller))
                else:
                    link.close()
        except OSError as error:
            raise TeamError.lost(team.rank, team.hosts, error) from None


def _greeting(link: socket.socket, key: bytes) -> int | None:
    """The rank of the process that connected; None for a stranger, who must not hold up the team by saying nothing."""
    link.settimeout(_GREETING)
    received = b""
    with suppress(OSError):
        while len(received) < _KEY + 4 and (more := link.recv(_KEY + 4 - len(received))):
            received += more
    is_known = len(received) == _KEY + 4 and hmac.compare_digest(received[:_KEY], key)
    return int(struct.unpack("!i", received[_KEY:])[0]) if is_known else None


def _ends(number: int) -> tuple[str, str] | None:
    """The addresses of both ends of a connected socket; None for any other file."""
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as found:
        here, there = found.getsockname(), found.getpeername()
        return f"{here[0]}:{here[1]}", f"{there[0]}:{there[1]}"
    return None


def _put(link: socket.socket, number: int) -> None:
    """Make a file descriptor refer to this socket."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setblocking(True)
    os.dup2(link.fileno(), number)
    link.close()


@contextmanager
def _watched(files: set[int], seconds: float) -> Iterator[None]:
    """Make LightGBM's sockets fail if, and only if, the process at the other end is gone.

    Sockets of a silent process time out after this many seconds: LightGBM's own limit is in minutes, and the same for
    connecting, which has to be short, and for waiting, which may be long. A socket that was closed cleanly is replaced:
    LightGBM reads from it in an endless loop. Whether a lost process leaves such a socket depends on what it had read
    (``deserting`` in tests/team_program.py sees to it).

    ``files`` are the sockets that LightGBM has opened. It has no call that lists them, so they are the new entries of
    /proc/self/fd. LightGBM accepts functions that send data for it (``LGBM_NetworkInitWithFunctions``), but such a
    function cannot report that a process is lost: no exception passes through its code, and it would continue with
    whatever numbers are in memory. A socket that fails does end it.

    Without /proc (macOS, Windows) nothing is watched: LightGBM's own limit applies, and a process that loops forever
    has to be ended by the program that started it.
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
    """Replace each socket whose other end was closed, on which LightGBM would loop forever."""
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
