"""Settings, declared once: default, kind and bounds, one line of help, and what ``tune`` searches.

A ranker declares its settings as the fields of a dataclass:

>>> from dataclasses import dataclass
>>> @dataclass(kw_only=True, eq=False, repr=False)
... class Example:
...     n_trees: int = setting(500, Integer(1), "maximum number of trees")
...     sigma: float = setting(2.0, Number(above=0), "steepness", search=Between(0.5, 4.0, log=True))
>>> [(name, one.default, one.kind.expected) for name, one in declared(Example).items()]
[('n_trees', 500, 'an integer >= 1'), ('sigma', 2.0, 'a number > 0')]
>>> declared(Example)["n_trees"].kind.check("n_trees", 0)
Traceback (most recent call last):
tierank.errors.ParameterError: n_trees: expected an integer >= 1, got 0

Checks, ``tierank list settings``, the reference and ``tune`` read the declarations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from typing import Any

import numpy as np

from tierank.errors import ParameterError

_METADATA = "tierank"


# What tune searches


@dataclass(frozen=True)
class Between:
    """A number between two others, an integer if both are.

    Parameters
    ----------
    low, high : float
        The bounds, both included.
    log : bool, default False
        Draw the logarithm uniformly.
    """

    low: float
    high: float
    log: bool = False

    @property
    def is_integer(self) -> bool:
        """Whether integers are drawn."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{' (log)' if self.log else ''}"


@dataclass(frozen=True)
class OneOf:
    """One of a few values.

    Parameters
    ----------
    values : tuple
        The values to choose from.
    """

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))


Space = Mapping[str, Between | OneOf]


# Kinds of values


class Kind:
    """The values that a setting takes. ``check`` returns a value in its plain form, or raises ``ParameterError``."""

    expected: str = "a value"

    def check(self, name: str, value: Any) -> Any:
        """The value in its plain form. Raises ``ParameterError``, which names the setting, if it cannot be used."""
        return value

    def refuse(self, name: str, value: Any) -> ParameterError:
        """The error for a value that cannot be used."""
        return ParameterError(argument=name, expected=self.expected, got=repr(value))


class Number(Kind):
    """A finite number within bounds: ``least`` and ``most`` are included, ``above`` and ``below`` are not."""

    expected: str
    least: float | None
    most: float | None
    above: float | None
    below: float | None

    def __init__(
        self,
        least: float | None = None,
        most: float | None = None,
        *,
        above: float | None = None,
        below: float | None = None,
    ) -> None:
        self.least, self.most, self.above, self.below = least, most, above, below
        bounds = ((">=", least), (">", above), ("<=", most), ("<", below))
        words = " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)
        self.expected = f"a number {words}" if words else "a finite number"

    def check(self, name: str, value: Any) -> float:
        """The number as a float."""
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
            raise self.refuse(name, value)
        try:
            number = float(value)
        except OverflowError:  # an integer too large for a float
            got = "an integer too large for a float"
            raise ParameterError(argument=name, expected=self.expected, got=got) from None
        if not np.isfinite(number) or not _is_within(number, self.least, self.most, self.above, self.below):
            raise self.refuse(name, value)
        return number


class Integer(Kind):
    """An integer from ``least`` to ``most``; None for no bound."""

    expected: str
    least: int | None
    most: int | None

    def __init__(self, least: int | None = None, most: int | None = None) -> None:
        self.least, self.most = least, most
        bounds = [f"{sign} {bound}" for sign, bound in ((">=", least), ("<=", most)) if bound is not None]
        self.expected = " ".join(["an integer", " and ".join(bounds)]).rstrip()

    def check(self, name: str, value: Any) -> int:
        """The integer as an int."""
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
            raise self.refuse(name, value)
        if not _is_within(int(value), self.least, self.most):
            raise self.refuse(name, value)
        return int(value)


class Flag(Kind):
    """True or False; a string such as "False" would count as true, and is refused."""

    expected = "True or False"

    def check(self, name: str, value: Any) -> bool:
        """The flag as a bool."""
        if not isinstance(value, (bool, np.bool_)):
            raise self.refuse(name, value)
        return bool(value)


class Choice(Kind):
    """One of a few names; ``names`` may be a function, for tables that are filled on first use."""

    def __init__(self, names: Iterable[str] | Callable[[], Iterable[str]]) -> None:
        self._names = names if callable(names) else list(names)

    @property
    def names(self) -> list[str]:
        """The names that can be chosen."""
        return list(self._names() if callable(self._names) else self._names)

    @property
    def expected(self) -> str:  # type: ignore[override]
        """The names, as a message lists them."""
        return f"one of {', '.join(self.names)}"

    def check(self, name: str, value: Any) -> str:
        """The name, unchanged."""
        if not isinstance(value, str) or value not in self.names:
            raise ParameterError.unknown(name, value, self.names)
        return value


class Optional(Kind):
    """A value of another kind, or None, which means ``none``."""

    kind: Kind
    none: str

    def __init__(self, kind: Kind, none: str = "") -> None:
        self.kind, self.none = kind, none

    @property
    def expected(self) -> str:  # type: ignore[override]
        """What is expected, None included."""
        return f"{self.kind.expected}, or None{f' ({self.none})' if self.none else ''}"

    def check(self, name: str, value: Any) -> Any:
        """None, or the value as checked by the other kind."""
        if value is None:
            return None
        try:
            return self.kind.check(name, value)
        except ParameterError as error:
            if error.expected is None or error.got != repr(value):  # an unknown name, or a value inside a list
                raise
            raise ParameterError(argument=name, expected=self.expected, got=error.got, fix=error.fix) from None


class ListOf(Kind):
    """A list or tuple, or a one-dimensional array, of values of one kind."""

    expected: str
    kind: Kind
    least: int

    def __init__(self, kind: Kind, what: str, least: int = 0) -> None:
        self.kind, self.least, self.expected = kind, least, what

    def check(self, name: str, value: Any) -> tuple[Any, ...]:
        """The values as a tuple."""
        values = value.tolist() if isinstance(value, np.ndarray) and value.ndim == 1 else value
        if isinstance(values, str) or not isinstance(values, Sequence) or len(values) < self.least:
            raise self.refuse(name, value)
        return tuple(self.kind.check(name, one) for one in values)


class Checked(Kind):
    """A value that a function checks: ``check(value)`` returns it, or raises ``ParameterError``."""

    expected: str

    def __init__(self, expected: str, check: Callable[[Any], Any]) -> None:
        self.expected, self._check = expected, check

    def check(self, name: str, value: Any) -> Any:
        """What the function returns."""
        return self._check(value)


def _is_within(
    value: float, least: float | None, most: float | None, above: float | None = None, below: float | None = None
) -> bool:
    return (
        (least is None or value >= least)
        and (most is None or value <= most)
        and (above is None or value > above)
        and (below is None or value < below)
    )


# Declarations


@dataclass(frozen=True)
class Setting:
    """A declared setting.

    Parameters
    ----------
    default : object
        The default value.
    kind : Kind
        What values it takes.
    help : str
        One line in plain English.
    search : Between or OneOf, optional
        What ``tune`` searches; None if it is not searched by default.
    group : str, default ""
        The heading that it is listed under.
    needs : tuple of str, default ()
        Other settings. This one has no effect unless at least one of them differs from its default.
    """

    default: Any
    kind: Kind
    help: str
    search: Between | OneOf | None = None
    group: str = ""
    needs: tuple[str, ...] = ()

    def plain(self, name: str, value: Any) -> Any:
        """A value in its plain form; raises ``ParameterError`` if it cannot be used. The default is checked once."""
        if value is not self.default:
            return self.kind.check(name, value)
        kept = vars(self)  # a frozen class keeps what it has computed here
        if "plain_default" not in kept:
            kept["plain_default"] = self.kind.check(name, value)
        return kept["plain_default"]


def setting(
    default: Any,
    kind: Kind,
    help: str,
    *,
    search: Between | OneOf | None = None,
    group: str = "",
    needs: tuple[str, ...] = (),
    positional: bool = False,
) -> Any:
    """A dataclass field that declares a ``Setting``. A ``positional`` one can be given without its name."""
    declaration = Setting(default, kind, help, search, group, needs)
    return field(default=default, metadata={_METADATA: declaration}, kw_only=not positional)


def declared(owner: Any) -> dict[str, Setting]:
    """The declared settings of a ranker or its class, by name: those of the class first, then those of its parents."""
    kind: Any = owner if isinstance(owner, type) else type(owner)
    return _declared_by(kind)


def plain_values(owner: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the declared settings in their plain form, each checked by itself."""
    return {name: one.plain(name, values[name]) for name, one in declared(owner).items()}


@cache
def _declared_by(kind: type[Any]) -> dict[str, Setting]:
    forgotten = next((name for name, value in vars(kind).items() if isinstance(value, Field)), None)
    if forgotten is not None:
        fix = "decorate the class with @dataclass(kw_only=True, eq=False, repr=False)"
        raise ParameterError(where=f"{kind.__name__}.{forgotten}", fix=f"settings are fields of a dataclass: {fix}")
    if not is_dataclass(kind):
        return {}
    known = {one.name: one.metadata[_METADATA] for one in fields(kind) if _METADATA in one.metadata}
    order = [name for parent in kind.__mro__ for name in vars(parent).get("__annotations__", {}) if name in known]
    return {name: known[name] for name in dict.fromkeys(order)}


class DocumentedSettings:
    """A docstring that lists the settings of its class, with type, default and help, before attributes and examples.

    It is composed when it is read: importing all rankers would take 20 ms longer otherwise.

    >>> @dataclass(kw_only=True)
    ... class Example:
    ...     __doc__ = DocumentedSettings("An example.")
    ...     n_trees: int = setting(500, Integer(1), "maximum number of trees")
    >>> Example.__doc__.splitlines()[4:]
    ['n_trees : int, default 500', '    maximum number of trees']
    """

    def __init__(self, text: str) -> None:
        self._parts = inspect.cleandoc(text).split("\n\n")

    def __get__(self, instance: object, owner: type) -> str:
        if "__dataclass_fields__" not in vars(owner):  # still being made
            return "\n\n".join(self._parts)
        settings = declared(owner)
        plain = [name for name, one in settings.items() if not one.group]
        types = {one.name: getattr(one.type, "__name__", one.type) for one in fields(owner)}
        lists = {"Parameters": plain, "Other Parameters": [name for name in settings if name not in plain]}
        sections = [
            "\n".join(
                [title, "-" * len(title)]
                + [
                    f"{one} : {types[one]}, default {settings[one].default!r}\n    {settings[one].help}"
                    for one in names
                ]
            )
            for title, names in lists.items()
            if names
        ]
        later = ("Attributes\n---", "Examples\n---")
        first = next((k for k, part in enumerate(self._parts) if part.startswith(later)), len(self._parts))
        return "\n\n".join([*self._parts[:first], *sections, *self._parts[first:]])


# Checks of single arguments


# The most repetitions whose results are all held in memory.
MOST_REPEATS = 1_000_000


def as_whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """An integer within bounds.

    >>> as_whole("n_trees", 0)
    Traceback (most recent call last):
    tierank.errors.ParameterError: n_trees: expected an integer >= 1, got 0
    """
    return Integer(least, most).check(name, value)


def as_limit(name: str, value: Any) -> int | None:
    """An integer >= 1, or None for no limit."""
    limit: int | None = Optional(Integer(1), "no limit").check(name, value)
    return limit


def as_number(name: str, value: Any, least: float, most: float) -> float:
    """A number from ``least`` to ``most``."""
    return Number(least, most).check(name, value)


def as_least(name: str, value: Any, least: float = 0.0) -> float:
    """A finite number >= ``least``."""
    return Number(least).check(name, value)


def as_share(name: str, value: Any) -> float:
    """A fraction: a number > 0 and <= 1."""
    return Number(above=0, most=1).check(name, value)


def as_positive(name: str, value: Any) -> float:
    """A finite number > 0."""
    return Number(above=0).check(name, value)


def as_flag(name: str, value: Any) -> bool:
    """True or False."""
    return Flag().check(name, value)


def check_type(name: str, value: object, kind: type, fix: str | None = None) -> None:
    """Raise ``ParameterError`` unless the value is of this class.

    >>> check_type("run", "runs/first", dict, "open it")
    Traceback (most recent call last):
    tierank.errors.ParameterError: run: expected a dict, got str; open it
    """
    if not isinstance(value, kind):
        raise ParameterError(argument=name, expected=f"a {kind.__name__}", got=type(value).__name__, fix=fix)


def as_choice(name: str, value: Any, known: Iterable[str]) -> str:
    """One of a few names."""
    return Choice(known).check(name, value)
