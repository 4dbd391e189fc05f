"""Identity of callers' code: functions, classes and objects by their names and a digest of what they do.

A resumed run has to notice if a loss has changed. What code does cannot be decided in general, so this is the rule. The
digest of a function covers its compiled code, its defaults, and the values that it closes over or reads from its
module, except those that it sets itself, such as a count of its calls; that of a class covers what is defined in it and
in its bases; that of any other object its class and its attributes. Whatever belongs to another package counts by its
name alone. Comments, blank lines and the place in the file do not count; the version of Python does, as it compiles to
other code.

Checkpoints: folders with the state of training, and a digest of its data and settings.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from safetensors import SafetensorError

from tierank.data.matching import BaseEstimator
from tierank.errors import DataError
from tierank.files import FolderKind, building, contents, make_folder, remove_folder, replacing
from tierank.rankers.folder import Damaged, without_work
from tierank.rankers.model import FitContext

# Attributes that Python itself adds to a class, and those that depend on the place in the file.
_OF_PYTHON = {
    "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__dict__",
    "__doc__", "__firstlineno__", "__module__", "__qualname__", "__static_attributes__", "__weakref__", "_abc_impl",
}  # fmt: skip
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_OURS = __name__.partition(".")[0]


def identity_of(value: Any) -> dict[str, str]:
    """The name of a caller's function, class or object, and a digest of what it does, for JSON.

    >>> def steep(x, power=2):
    ...     return x**power
    >>> first = identity_of(steep)
    >>> def steep(x, power=3):
    ...     return x**power
    >>> first["object"] == identity_of(steep)["object"], first["code"] == identity_of(steep)["code"]
    (True, False)
    """
    return {"object": name_of(value), "code": _Digest(_package_of(value)).of(value)}


def is_of_caller(value: Any) -> bool:
    """Whether a function or class is not part of tierank."""
    return _package_of(value) != _OURS


def name_of(value: Any) -> str:
    """The qualified name of a function or class; of anything else, that of its class.

    >>> name_of(name_of), name_of(partial(name_of))
    ('tierank.rankers.checkpoint.name_of', 'functools.partial')
    """
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def source_of(value: Any) -> str | None:
    """The source of a function or class, if Python has it: not for code that was typed at a prompt."""
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return None


def _package_of(value: Any) -> str:
    if isinstance(value, partial):
        return _package_of(value.func)
    named = value if hasattr(value, "__qualname__") else type(value)
    return str(named.__module__).partition(".")[0]


class _Digest:
    """Computes the digest of an object from its parts, as far as they belong to one package."""

    def __init__(self, package: str) -> None:
        self.package = package
        self._hash = hashlib.sha256()
        self._met: dict[int, tuple[int, Any]] = {}  # with references to the objects, as a free address may be reused

    def of(self, value: Any) -> str:
        """The digest of an object."""
        self._add(value)
        return self._hash.hexdigest()

    def _add(self, value: Any) -> None:
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes, type(...))):
            self._say(type(value).__name__, repr(value))
        elif id(value) in self._met:  # functions that call each other
            self._say("again", str(self._met[id(value)][0]))
        else:
            self._met[id(value)] = (len(self._met), value)
            kind, parts = self._taken_apart(value)
            self._say(kind, str(len(parts)))
            for part in parts:
                self._add(part)

    def _say(self, kind: str, text: str) -> None:
        self._hash.update(f"{kind} {len(text)} {text}\n".encode(errors="surrogatepass"))

    def _taken_apart(self, value: Any) -> tuple[str, list[Any]]:
        """What kind of thing this is, with its name where that matters, and its parts."""
        kind = type(value).__name__
        if isinstance(value, CodeType):
            bits = [value.co_code, value.co_exceptiontable, value.co_flags, value.co_argcount, value.co_kwonlyargcount]
            return kind, [*bits, value.co_names, value.co_varnames, value.co_freevars, value.co_consts]
        if isinstance(value, (FunctionType, type)) and _package_of(value) not in (self.package, "__main__"):
            return f"named {name_of(value)}", []
        if isinstance(value, FunctionType):
            code, state = value.__code__, set(_names(value.__code__, "STORE_GLOBAL", "STORE_DEREF"))
            cells = zip(code.co_freevars, value.__closure__ or (), strict=True)
            held = {name: cell.cell_contents for name, cell in cells if name not in state and _is_filled(cell)}
            read = set(_names(code, "LOAD_GLOBAL", "LOAD_NAME")) - state
            outside = {name: value.__globals__[name] for name in sorted(read) if name in value.__globals__}
            return kind, [code, value.__defaults__, value.__kwdefaults__, held, outside]
        if isinstance(value, type):
            defined = {name: part for name, part in sorted(vars(value).items()) if name not in _OF_PYTHON}
            return f"class {name_of(value)}", [*value.__bases__, defined]
        if isinstance(value, (MethodType, partial, property)):
            names = ("__func__", "__self__", "func", "args", "keywords", "fget", "fset", "fdel")
            return kind, [getattr(value, name, None) for name in names]
        if isinstance(value, (staticmethod, classmethod)) or hasattr(value, "__wrapped__"):
            return kind, [value.__wrapped__]
        if isinstance(value, (list, tuple)):
            return kind, list(value)
        if isinstance(value, (set, frozenset)):  # the order of texts in a set differs between processes
            return kind, sorted(_Digest(self.package).of(item) for item in value)
        if isinstance(value, Mapping):
            return kind, [part for pair in value.items() for part in pair]
        if isinstance(value, ModuleType):
            return f"module {value.__name__}", []
        if isinstance(value, (np.ndarray, np.generic)) or _is_tensor(value):
            array = np.asarray(value.detach().cpu() if _is_tensor(value) else value)
            content = array.tolist() if array.dtype.hasobject else array.tobytes()
            return name_of(value), [str(array.dtype), array.shape, content]
        if hasattr(value, "__qualname__"):
            return f"named {name_of(value)}", []
        attributes = dict(sorted(getattr(value, "__dict__", {}).items()))
        return "object", [type(value), attributes or _ADDRESS.sub("", repr(value))]


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "cpu")


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (empty ones raise)
    except ValueError:
        return False
    return True


def _names(code: CodeType, *instructions: str) -> Iterator[str]:
    """The names that these instructions use, including those of inner functions."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in instructions:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant, *instructions)


# Errors that reading a damaged file can raise.
_OF_DAMAGE = (AttributeError, EOFError, KeyError, OSError, RuntimeError, SafetensorError, TypeError, ValueError)


class _Nest(FolderKind):
    """Checkpoints, and folders of checkpoints: those of a ranker and of the ranker inside it."""

    def is_in(self, folder: Path) -> bool:
        """Whether everything in the folder belongs to checkpoints."""
        if super().is_in(folder) or folder.is_symlink() or not folder.is_dir():
            return super().is_in(folder)
        return all(self.is_in(path) for path in contents(folder))


_MARK = FolderKind("a checkpoint", "checkpoint.json", ("identity",))
_NEST = _Nest(_MARK.kind, _MARK.file, _MARK.names)


class Checkpoint:
    """A folder with the state of training. A subclass says what is written, and how it is read."""

    def __init__(self, context: FitContext, settings: Mapping[str, Any], made_of: Sequence[Any]) -> None:
        """``made_of`` identifies what else the model depends on: the content of the data, and versions."""
        self.folder, self.team = Path(context.checkpoint or ""), context.team
        identity = {
            "ranker": context.ranker,
            "settings": without_work(settings),
            "has_queries": context.seen.has_queries,
            "feature_names": context.seen.feature_names,
            "levels": context.seen.n_levels(),
            "made_of": made_of,
        }
        self.identity = json.loads(json.dumps(identity, default=described))
        self._check()

    def _check(self) -> None:
        """Raise an error, in all processes of a team, if the folder is not a checkpoint or is of another run."""
        seen = ""
        if self.team.is_first:
            refused = _MARK.refusal(self.folder)
            seen = json.dumps([refused and refused.fields(), _MARK.content(self.folder)])
        refusal, found = json.loads(self.team.broadcast(seen.encode()) or b"")
        if refusal is not None:
            raise DataError(**refusal)
        if found is not None and found["identity"] != self.identity:
            raise DataError(
                where=self.folder,
                expected="a checkpoint of this data and these settings",
                got="one of another run",
                fix="delete it to start over",
            )

    @contextmanager
    def renewing(self) -> Iterator[Path]:
        """A new folder to fill, which atomically replaces the checkpoint."""
        make_folder(self.folder.parent)
        with building(self.folder, _MARK) as fresh:
            yield fresh
            described = {"identity": self.identity, "sha256": {path.name: _sha256(path) for path in fresh.iterdir()}}
            (fresh / _MARK.file).write_text(json.dumps(described), encoding="utf-8")

    def begin(self) -> None:
        """Create the folder; its parts are written one by one."""
        make_folder(self.folder)
        with replacing(self.folder / _MARK.file) as fresh:
            fresh.write_text(json.dumps({"identity": self.identity}), encoding="utf-8")

    def content(self, name: str) -> bytes | None:
        """A file of the folder, which the first process of a team reads for all; None if there is none."""
        content = self.team.broadcast(self._verified(name) if self.team.is_first else None)
        if content == b"":
            raise Damaged(name)
        return content

    def _verified(self, name: str) -> bytes | None:
        """The content of a file, empty if it is not what was written; None if it was not written."""
        file, expected = self.folder / name, (_MARK.content(self.folder) or {}).get("sha256")
        if expected is None:  # the parts of this checkpoint are written one by one
            return file.read_bytes() if file.exists() else None
        if name not in expected:
            return None
        return file.read_bytes() if file.is_file() and _sha256(file) == expected[name] else b""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn errors of reading a damaged checkpoint into ``DataError``."""
        try:
            yield
        except _OF_DAMAGE:
            fix = "delete it to start over"
            raise DataError(where=self.folder, expected="a checkpoint", got="a damaged one", fix=fix) from None


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def check_checkpoint(folder: str | os.PathLike[str]) -> None:
    """Raise ``DataError`` if a folder holds anything but checkpoints."""
    _NEST.check(Path(folder))


def remove_checkpoint(folder: str | os.PathLike[str]) -> None:
    """Remove a checkpoint, if it exists, atomically. Raises ``DataError`` if the folder holds anything else."""
    remove_folder(folder, _NEST)


def described_settings(value: Any) -> Any:
    """A setting, or several, in a form that can be compared.

    >>> described_settings((100, 50)) == described_settings([100, 50])
    True
    """
    return json.loads(json.dumps(value, default=described))


def described(value: Any) -> Any:
    """A setting that JSON cannot hold: rankers by their settings, callers' code by its digest.

    >>> described(described)
    'tierank.rankers.checkpoint.described'
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, BaseEstimator):
        settings = {type(value).__name__: without_work(value.get_params(deep=False))}
        return settings | ({"class": identity_of(type(value))} if is_of_caller(type(value)) else {})
    if not callable(value):
        return repr(value)
    return identity_of(value) if is_of_caller(value) else name_of(value)
