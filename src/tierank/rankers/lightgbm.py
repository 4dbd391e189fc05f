"""The only module that knows LightGBM's internals: bins from our own sample, its network, parameter names and text.

The text of trees is read, cut and joined, and checked first, as an invalid text would crash the process.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from tierank.arrays import chunks, release_pages, rows_in
from tierank.data.team import Team
from tierank.errors import DataError, TeamError
from tierank.export.neutral import NAN, NONE, Trees, lightgbm_thresholds
from tierank.extras import MissingExtraError
from tierank.kernels import n_threads
from tierank.rankers.tree_settings import MAX_DEPTH

try:
    # To call its C library, with its errors and strings; and to know the names of its parameters.
    from lightgbm.basic import _LIB, _c_str, _ConfigAliases, _safe_call  # type: ignore[attr-defined]
except ImportError as error:
    raise MissingExtraError(
        where=f"LightGBM {lightgbm.__version__}",
        expected=f"private names that tierank uses: {error}",
        fix="install a version from 4.6 on that has them, or a newer tierank",
    ) from None

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
    return int(_LIB.omp_get_max_threads())


_THREADS = _Threads()
if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_THREADS.fork)
training_threads = _THREADS.limited


@cache
def parameter_names() -> dict[str, str]:
    """The main name of every parameter of LightGBM, by name or alias."""
    aliases = _ConfigAliases._get_all_param_aliases()
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
            _call("LGBM_NetworkInit", _c_str(",".join(places)), port, _CONNECT, team.size)
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
    converted = [ctypes.c_int(value) if isinstance(value, int) else value for value in arguments]
    _safe_call(getattr(_LIB, name)(*converted))


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


# The text of trees

_HEAD_KEYS = {
    "version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "objective", "feature_names",
    "monotone_constraints", "feature_infos", "tree_sizes",
}  # fmt: skip
# Arrays of a tree with a number for each split, and for each leaf. An empty array would crash the process, except for
# those that may be empty in a tree without splits.
_OF_SPLITS = (
    "split_feature", "threshold", "decision_type", "left_child", "right_child",
    "split_gain", "internal_value", "internal_weight", "internal_count",
)  # fmt: skip
_OF_LEAVES = ("leaf_value", "leaf_weight", "leaf_count")
_MAY_BE_EMPTY = ("split_gain", "internal_value", "internal_weight", "internal_count", "leaf_weight", "leaf_count")
_NUMBERS = re.compile(r"[-+0-9.einfa ]*")
# Objectives that tierank's models may have.
_OBJECTIVES = ("lambdarank", "regression", "custom")
_PARAMETER = re.compile(r"\[\w+: [^\n\x22\\]*\]")
_INFO = re.compile(r"none|\[[-+0-9.einfa]+:[-+0-9.einfa]+\]|-?\d+(?::-?\d+)*")
_TAIL = re.compile(
    r"end of trees\n\nfeature_importances:\n(?:[^\n]+=\d+\n)*"
    r"\nparameters:\n(?:\[\w+: [^\n\x22\\]*\]\n)*\nend of parameters\n(?:\npandas_categorical:(?:null|\[\])\n)?"
)
# The bits of decision_type: split by category, missing values go left, and from the third on what is missing.
_CATEGORICAL, _DEFAULT_LEFT, _MISSING_SHIFT, _MISSING_BITS = 1, 2, 2, 3
# The most cells in a table of sets of categories: it has a column for every number up to the highest category, so that
# ids in place of numbers from 0 would fill the memory.
MAX_MEMBERS = 1 << 26
_TREE = re.compile(r"^Tree=\d+\n", re.MULTILINE)
_NAMES = re.compile(r"^feature_names=.*$", re.MULTILINE)
# Names of features that LightGBM accepts.
_NAME = re.compile(r"[^\s\x22,:\[\]{}]+")


# Reading


def read_trees(text: str) -> Trees | None:
    """The trees of a text that LightGBM wrote or ``check_trees`` has checked; None if ``Trees`` cannot represent them.

    That is the case for linear leaves, for the mean of trees in place of their sum, and for categories with such high
    numbers that a table of their sets would take too much memory.
    """
    head, _, rest = text.partition("\n\n")
    lines: dict[str, list[str]] = {}
    for line in rest[: rest.index("end of trees")].split("\n"):
        name, _, values = line.partition("=")
        lines.setdefault(name, []).append(values)
    if "average_output" in head.split("\n") or "1" in lines["is_linear"]:
        return None

    def join(name: str, kind: type[np.generic]) -> NDArray[Any]:
        return np.array(" ".join(lines[name]).split(), kind)

    kinds = join("decision_type", np.int64)
    n_leaves = join("num_leaves", np.int64)
    n_splits = n_leaves - 1
    thresholds = join("threshold", np.float64)
    is_category = (kinds & _CATEGORICAL) > 0
    category, members = None, None
    if is_category.any():
        n_sets = join("num_cat", np.int64)
        first_set = np.repeat(np.cumsum(n_sets) - n_sets, n_splits)
        category = np.where(is_category, np.where(is_category, thresholds, 0).astype(np.int64) + first_set, -1)
        sets = _sets(lines["cat_boundaries"], lines["cat_threshold"])
        different = {one: place for place, one in enumerate(sorted(set(sets)))}
        members = _members(list(different))
        if members is None:
            return None
        numbers = np.array([different[one] for one in sets], np.int64)
        category = np.where(is_category, numbers[np.maximum(category, 0)], -1)
        thresholds = np.where(is_category, 0.0, thresholds)
    first_split, first_leaf = np.cumsum(n_splits) - n_splits, np.cumsum(n_leaves) - n_leaves
    shift, shift_of_leaves = np.repeat(first_split, n_splits), np.repeat(first_leaf, n_splits)

    def among_all(children: NDArray[np.int64]) -> NDArray[np.int64]:
        moved = np.where(children >= 0, children + shift, children - shift_of_leaves)  # ~leaf falls as leaf grows
        return np.asarray(moved, np.int64)

    missing = kinds >> _MISSING_SHIFT & _MISSING_BITS
    return Trees(
        np.where(n_splits > 0, first_split, ~first_leaf),
        join("split_feature", np.int64),
        lightgbm_thresholds(thresholds),
        among_all(join("left_child", np.int64)),
        among_all(join("right_child", np.int64)),
        np.where(missing <= NAN, missing, NONE).astype(np.uint8),
        (kinds & _DEFAULT_LEFT) > 0,
        join("leaf_value", np.float64),
        category,
        members,
    )


def _sets(boundaries: Sequence[str], words: Sequence[str]) -> list[bytes]:
    """The sets of categories of all trees, joined: category k is a member if bit k is set."""
    sets: list[bytes] = []
    for edges, content in zip(boundaries, words, strict=True):
        bits = np.array(content.split(), np.uint64).astype("<u4")
        sets += [bits[a:b].tobytes() for a, b in pairwise(map(int, edges.split()))]
    return sets


def _members(sets: Sequence[bytes]) -> NDArray[np.bool_] | None:
    """The sets as a table of sets x categories; None if it would be larger than ``MAX_MEMBERS``."""
    width = 8 * max(map(len, sets))
    if len(sets) * width > MAX_MEMBERS:
        return None
    members = np.zeros((len(sets), width), np.bool_)
    for row, bits in zip(members, sets, strict=True):
        row[: 8 * len(bits)] = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return members


def has_missing(text: str) -> bool:
    """Whether some split handles missing values separately."""
    lines = re.findall(r"^decision_type=(.*)$", text, re.MULTILINE)
    return any((int(kind) >> _MISSING_SHIFT) & _MISSING_BITS for line in lines for kind in line.split())


def has_linear_leaves(text: str) -> bool:
    """Whether some tree has a linear model in each leaf."""
    return "\nis_linear=1\n" in text


def head_fields(text: str) -> dict[str, str]:
    """The fields in the head of a text, by name; lines without a value have an empty one."""
    head = text.replace("\r\n", "\n").partition("\n\n")[0]
    lines = head.removeprefix("tree\n").split("\n")
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


# Writing


def join_texts(texts: list[str]) -> str:
    """One model with the trees of several, in LightGBM's text form."""
    if len(texts) == 1:
        return texts[0]
    trees = [tree for text in texts for tree in _TREE.split(text[: text.index("end of trees")])[1:]]
    head = re.sub(r"^tree_sizes=.*\n", "", _TREE.split(texts[-1])[0], flags=re.MULTILINE)
    numbered = "".join(f"Tree={i}\n{tree}" for i, tree in enumerate(trees))
    return head + numbered + texts[-1][texts[-1].index("end of trees") :]


def count_trees(text: str) -> int:
    """The number of trees in a text."""
    return len(_TREE.findall(text[: text.index("end of trees")]))


def cut_text(text: str, n_rounds: int) -> str:
    """The first trees of a model, as LightGBM itself writes them."""
    return lightgbm.Booster(model_str=text).model_to_string(num_iteration=n_rounds)


def with_names(text: str, names: Sequence[str] | None) -> str:
    r"""The text with the names of features, if LightGBM accepts them; ``Column_0`` and so on otherwise.

    LightGBM replaces blanks by underscores, and accepts no name with characters that JSON uses.

    >>> with_names("feature_names=Column_0 Column_1\n", ["price in EUR", "clicks"])
    'feature_names=price_in_EUR clicks\n'
    """
    written = ["_".join(name.split()) for name in names or ()]
    is_sound = all(_NAME.fullmatch(name) and name.isprintable() for name in written)
    if not written or not is_sound or len(set(written)) < len(written):
        return text
    return _NAMES.sub(lambda _: f"feature_names={' '.join(written)}", text, count=1)


def with_objective(text: str) -> str:
    r"""The text with an objective that other tools know: they require one, and refuse those of callers.

    >>> with_objective("tree\nfeature_names=Column_0\n\n").split("\n")[1]
    'objective=lambdarank'
    """
    head, end, rest = text.partition("\n\n")
    head = head.replace("\nobjective=custom\n", "\n")
    if "\nobjective=" not in head:
        head = head.replace("\nfeature_names=", "\nobjective=lambdarank\nfeature_names=")
    return f"{head}{end}{rest}"


def adopt_text(text: str) -> str:
    """The text of a model that LightGBM itself trained, in the form that our own models have, checked.

    What does not affect raw scores is left out: objectives that only change how LightGBM's predict transforms them, and
    parameters that could not be read back. A model that does not give one score per row is refused.
    """
    text = text.replace("\r\n", "\n")
    fields = head_fields(text)
    if not text.startswith("tree\n") or "end of trees" not in text or "max_feature_idx" not in fields:
        raise DataError(expected="a model of LightGBM in text form, as save_model writes it", got="something else")
    per_round = fields.get("num_tree_per_iteration", "1")
    if (fields.get("num_class", "1"), per_round) != ("1", "1"):
        raise DataError(expected="a model with one score per row", got=f"{per_round} scores, of a model of classes")
    if "average_output" in fields:
        raise DataError(expected="boosted trees", got="a random forest, whose trees are averaged")
    categories = re.search(r"^pandas_categorical:(?!null$|\[\]$)", text, re.MULTILINE)
    if categories is not None:
        raise DataError(
            expected="numeric features",
            got="columns of pandas categories",
            fix="train on their codes, and give their numbers as categorical_feature",
        )
    kept = {name: value for name, value in fields.items() if name in _HEAD_KEYS}
    if kept.get("objective") not in _OBJECTIVES:
        kept.pop("objective", None)
    trees = text.partition("\n\n")[2].partition("end of trees")[0]
    importances, _, rest = text.partition("\nfeature_importances:\n")[2].partition("\nparameters:\n")
    parameters = [line for line in rest.partition("\nend of parameters")[0].split("\n") if _PARAMETER.fullmatch(line)]
    head = "\n".join(["tree", *(f"{name}={value}" for name, value in kept.items())])
    tail = "\n".join(["", "parameters:", *parameters, "", "end of parameters", "", "pandas_categorical:null", ""])
    adopted = f"{head}\n\n{trees}end of trees\n\nfeature_importances:\n{importances}{tail}"
    n_features = fields["max_feature_idx"]
    check_trees(adopted, int(n_features) + 1 if n_features.isdecimal() else 0)
    return adopted


# Checking


def check_is_global(text: str, n_documents: int) -> None:
    """Raise an error unless the root of the first tree counts all documents: else processes trained separately."""
    root = re.search(r"^internal_count=(\d+)", text, re.MULTILINE)
    if root is not None and int(root[1]) != n_documents:
        raise TeamError(
            expected=f"trees of all {n_documents} documents",
            got=f"a root of {root[1]}: the processes did not train together",
        )


def check_trees(text: str, n_features: int) -> None:
    """Check that this is a text of complete trees over this many features. The error names the place.

    Checked are the sizes in bytes, the number of values in every array, that all values are numbers, that features and
    children exist, and that the nodes of each tree form one tree: every split except the first has one parent, with a
    lower number, and so has every leaf. Trees deeper than ``MAX_DEPTH`` splits are refused.
    """
    head, _, rest = text.partition("\n\n")
    fields = _Fields(head.removeprefix("tree\n"), "head")
    _check_head(fields, n_features)
    sizes = fields.whole("tree_sizes")
    body, start = rest.encode(), 0
    for number, size in enumerate(sizes.tolist()):
        part = body[start : start + size].decode(errors="replace") if size > 0 else ""
        is_there = part.startswith(f"Tree={number}\n") and part.endswith("\n\n")
        _require(is_there, f"tree {number}", "its text where tree_sizes says it is")
        _check_tree(_Fields(part.strip("\n").partition("\n")[2], f"tree {number}"), n_features)
        start += size
    is_complete = len(sizes) and _TAIL.fullmatch(body[start:].decode(errors="replace"))
    _require(is_complete, "the end", "trees, the importances and the parameters of LightGBM")


def _require(is_so: Any, place: str, expected: str) -> None:
    if not is_so:
        where, fix = f"trees.txt: {place}", "save the model again"
        raise DataError(where=where, expected=expected, got="a damaged text", fix=fix)


class _Fields(dict[str, str]):
    """The ``name=value`` lines of a part of the text, each name once."""

    def __init__(self, lines: str, place: str) -> None:
        pairs = [line.partition("=") for line in lines.split("\n")]
        super().__init__((name, value) for name, _, value in pairs)
        self.place = place
        is_sound = all(equals for _, equals, _ in pairs) and len(self) == len(pairs)
        self.require(is_sound, "lines of name=value, each name once")

    def require(self, is_so: Any, expected: str) -> None:
        """Raise an error that names the place unless something is so."""
        _require(is_so, self.place, expected)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """The numbers of a field."""
        text = self.get(name, "x")
        try:
            values = np.array(text.split() if _NUMBERS.fullmatch(text) else "x", np.float64)
        except ValueError:
            values = np.array([])
            self.require(False, f"numbers after {name}=")
        # LightGBM splits missing values from all others by an infinite threshold.
        is_sound = ~np.isnan(values) if name == "threshold" else np.isfinite(values)
        self.require(is_sound.all(), f"finite numbers after {name}=")
        return values

    def whole(self, name: str) -> NDArray[np.int64]:
        """The whole numbers of a field."""
        values = self.numbers(name)
        is_whole = (np.abs(values) <= 1 << 40) & (values == np.rint(values))
        self.require(is_whole.all() and not re.search("[.ena]", self[name]), f"whole numbers after {name}=")
        return values.astype(np.int64)


def _check_head(head: _Fields, n_features: int) -> None:
    head.require(set(head) <= _HEAD_KEYS, "the names that LightGBM writes")
    for name, value in (("num_class", "1"), ("num_tree_per_iteration", "1"), ("label_index", "0")):
        head.require(head.get(name) == value, f"{name}={value}")
    is_known = head.get("version") in ("v3", "v4") and head.get("max_feature_idx") == str(n_features - 1)
    head.require(is_known, f"version=v4 and max_feature_idx={n_features - 1}")
    head.require(head.get("objective", "lambdarank") in _OBJECTIVES, "objective=lambdarank, or none")
    for name in ("feature_names", "feature_infos", "monotone_constraints"):
        is_given = name in head or name != "monotone_constraints"
        head.require(not is_given or len(head.get(name, "").split()) == n_features, f"{n_features} {name}")
    are_ranges = all(_INFO.fullmatch(info) for info in head["feature_infos"].split())
    head.require(are_ranges, "feature_infos with the ranges of the features")
    directions = set(head.get("monotone_constraints", "").split())
    head.require(directions <= {"-1", "0", "1"}, "monotone_constraints of -1, 0 and 1")


def _check_tree(tree: _Fields, n_features: int) -> None:
    counts = [tree.whole(name) for name in ("num_leaves", "num_cat")]
    are_counts = all(len(count) == 1 for count in counts) and counts[0][0] >= 1 and counts[1][0] >= 0
    tree.require(are_counts, "numbers of leaves and categorical splits")
    is_known = len(tree.numbers("shrinkage")) == 1 and tree.get("is_linear") in ("0", "1")
    tree.require(is_known, "a shrinkage, and is_linear of 0 or 1")
    n_leaves, n_categorical = (int(count[0]) for count in counts)
    for name in (*_OF_SPLITS, *_OF_LEAVES):
        n, found = n_leaves - (name in _OF_SPLITS), len(tree.numbers(name))
        is_empty = n_leaves == 1 and not found and name in _MAY_BE_EMPTY
        tree.require(found == n or is_empty, f"{n} values of {name}")
    features, kinds = tree.whole("split_feature"), tree.whole("decision_type")
    are_splits = (features >= 0) & (features < n_features) & (kinds >= 0) & (kinds <= 15)
    tree.require(are_splits.all(), f"splits by one of {n_features} features")
    _check_nodes(tree, n_leaves)
    _check_categories(tree, tree.numbers("threshold")[(kinds & _CATEGORICAL) > 0], n_categorical)
    if tree["is_linear"] == "1":
        _check_linear(tree, n_leaves, n_features)


def _check_nodes(tree: _Fields, n_leaves: int) -> None:
    """Check that each split except the first, and each leaf, is the child of one split with a lower number."""
    left, right = tree.whole("left_child"), tree.whole("right_child")
    children, parents = np.concatenate([left, right]), np.tile(np.arange(len(left)), 2)
    # Splits are numbered from 0, and leaf k is -1 - k: a tree of one leaf has neither children nor splits.
    expected = [*range(-n_leaves, 0), *range(1, n_leaves - 1)] if n_leaves > 1 else []
    inner = children >= 0
    is_tree = np.array_equal(np.sort(children), expected) and (children[inner] > parents[inner]).all()
    tree.require(is_tree, "splits and leaves that are one tree")
    depth = _depth(left.tolist(), right.tolist())
    if depth > MAX_DEPTH:
        raise DataError(
            where=f"trees.txt: {tree.place}",
            expected=f"at most {MAX_DEPTH} splits between the root and a leaf",
            got=f"{depth:,}",
            fix=f"train with max_depth={MAX_DEPTH}, or with fewer leaves",
        )


def _depth(left: list[int], right: list[int]) -> int:
    """The most splits from the root to a leaf; parents have lower numbers than their children."""
    if len(left) <= MAX_DEPTH:  # the most that it can be
        return len(left)
    depths = [1] * len(left)
    for node, children in enumerate(zip(left, right, strict=True)):
        for child in children:
            if child >= 0:
                depths[child] = depths[node] + 1
    return max(depths)


def _check_categories(tree: _Fields, chosen: NDArray[np.float64], n: int) -> None:
    """Check that categorical splits choose one of n sets, and that the sets are complete."""
    are_sets = (chosen >= 0) & (chosen < n) & (chosen == np.rint(chosen))
    tree.require(are_sets.all(), "categorical splits by one of the sets of categories")
    if n == 0:
        return
    edges, words = tree.whole("cat_boundaries"), tree.whole("cat_threshold")
    are_neighbours = len(edges) == n + 1 and edges[0] == 0 and (np.diff(edges) >= 0).all() and edges[-1] == len(words)
    tree.require(are_neighbours, "sets of categories one after the other")
    tree.require(((words >= 0) & (words < 1 << 32)).all(), "sets of categories as words of 32 bits")


def _check_linear(tree: _Fields, n_leaves: int, n_features: int) -> None:
    """Check linear leaves: as many constants, features and factors as the leaves declare."""
    counts, constants = tree.whole("num_features"), tree.numbers("leaf_const")
    features, factors = tree.whole("leaf_features"), tree.numbers("leaf_coeff")
    is_complete = len(counts) == len(constants) == n_leaves and (counts >= 0).all()
    tree.require(is_complete and len(features) == len(factors) == counts.sum(), "the lines of its leaves")
    are_known = (features >= 0) & (features < n_features)
    tree.require(are_known.all(), f"lines over some of {n_features} features")
