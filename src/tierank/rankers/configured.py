"""Configured: an estimator with declared settings; names, values and combinations are checked."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from tierank.errors import ParameterError
from tierank.estimators import Estimator
from tierank.extras import needing
from tierank.rankers.hints import why_no_setting
from tierank.settings import Setting, declared


class Configured(Estimator):
    """An estimator with settings: a dataclass whose fields are declared by ``setting``; they may hold estimators."""

    # Named settings, such as those of a paper.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        """Check the names, so that a misspelt setting gets an error that names the right one."""
        cls._check_positional(values)
        cls.check_names(settings)
        instance: Self = super().__new__(cls)
        return instance

    def check_together(self, settings: Mapping[str, Any]) -> None:
        """Raise ``ParameterError`` if settings that are valid on their own cannot be used together."""

    @classmethod
    def from_preset(cls, name: str, **settings: Any) -> Self:
        """A ranker with the settings of a preset.

        Parameters
        ----------
        name : str
            A key of ``PRESETS``.
        **settings
            Settings that replace those of the preset.

        Examples
        --------
        >>> import tierank
        >>> tierank.UMart.from_preset("paper-ohsumed", n_trees=50).n_leaves
        31
        """
        if not isinstance(name, str) or name not in cls.PRESETS:
            raise ParameterError.unknown(f"preset of {cls.__name__}", name, cls.PRESETS)
        return cls(**{**cls.PRESETS[name], **settings})

    @classmethod
    def declared_settings(cls) -> dict[str, Setting]:
        """The settings with their defaults, bounds, help and search spaces, by name."""
        return declared(cls)

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Raise ``ParameterError`` if the ranker does not have a setting of this name."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return
        known = [parameter.name for parameter in parameters if parameter.name != "self"]
        for name in names:
            if name in known:
                continue
            if name in cls.arguments_of_fit():
                raise ParameterError("is an argument of fit", argument=name, fix=f"give it there: fit(..., {name}=...)")
            raise cls.unknown_setting(name, known)

    @classmethod
    def arguments_of_fit(cls) -> list[str]:
        """The arguments of ``fit``, which are not settings."""
        return []

    @classmethod
    def _check_positional(cls, values: Sequence[Any]) -> None:
        """Raise ``ParameterError`` for more positional values than the constructor takes."""
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
            return
        n_taken = sum(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
        if len(values) > n_taken:
            named = (parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)
            raise ParameterError(
                f"{cls.__name__}: expected settings by name, such as {next(named, 'name')}=...,"
                f" got {values[n_taken]!r} without a name"
            )

    @classmethod
    def unknown_setting(cls, name: str, known: Sequence[str]) -> ParameterError:
        """The error for a setting that the ranker does not have."""
        if name == "preset" and cls.PRESETS:
            return ParameterError(
                "is not a setting", argument=name, fix=f"make the ranker by {cls.__name__}.from_preset(...)"
            )
        owners = [kind.__name__ for kind in dict.fromkeys(_kinds_of(Configured)) if name in declared(kind)]
        hint = None if owners else why_no_setting(cls.__name__, name, known)
        if hint is not None:
            return hint
        ours = [one for one, declaration in declared(cls).items() if not declaration.group]
        return ParameterError.unknown(f"setting of {cls.__name__}", name, known, ours or None, owners)

    def set_params(self, **settings: Any) -> Self:
        """Change settings, for the next ``fit``; a fitted model keeps its own.

        Parameters
        ----------
        **settings
            Settings by name. ``base__n_trees`` is the setting ``n_trees`` of the ranker in the setting ``base``.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            If there is no setting of this name.
        """
        self.check_names(name.partition("__")[0] for name in settings)
        for name in settings:
            outer, _, inner = name.partition("__")
            value = settings.get(outer, getattr(self, outer, None))
            if inner and not hasattr(value, "set_params"):
                raise ParameterError(argument=outer, expected=f"a ranker, to set its {inner}", got=repr(value))
        super().set_params(**settings)
        return self

    def plain_settings(self) -> dict[str, Any]:
        """All settings in their plain form, each checked separately; rankers among them are copied."""
        settings: dict[str, Any] = self.get_params(deep=False)
        lost = [name for name in declared(self) if name not in settings]
        if lost:
            others = f" and {len(lost) - 1} others" if len(lost) > 1 else ""
            raise ParameterError(
                f"{type(self).__name__}.__init__: expected all settings as arguments, got none for {lost[0]}{others};"
                " make the class a dataclass, and declare new settings as fields in place of an __init__"
            )
        settings |= {name: one.kind.check(name, settings[name]) for name, one in declared(self).items()}
        inner = {name: one for name, one in settings.items() if isinstance(one, Configured)}
        return settings | {name: type(one)(**one.plain_settings()) for name, one in inner.items()}

    def checked_settings(self) -> dict[str, Any]:
        """All settings in their plain form; raises ``ParameterError`` if they cannot be used."""
        settings, known = self.plain_settings(), declared(self)
        for name, one in known.items():
            if not one.needs or settings[name] == one.default:
                continue
            if all(settings[other] == known[other].default for other in one.needs):
                needed = " or ".join(f"`{other}`" for other in one.needs)
                got = ", ".join(f"{other}={settings[other]!r}" for other in one.needs)
                raise ParameterError(argument=name, expected=f"{needed} to be set too", got=got)
        self.check_together(settings)
        return settings

    def check_settings(self) -> None:
        """Raise ``ParameterError`` if ``fit`` would refuse the settings whatever the data, before any data is read."""
        with needing(type(self).__name__):
            settings = self.checked_settings()
        for value in settings.values():
            if isinstance(value, Configured):
                value.check_settings()


def _kinds_of(kind: type[Any]) -> Iterator[type[Any]]:
    """The rankers of tierank that are subclasses of this class and have no subclasses themselves."""
    derived = [one for one in kind.__subclasses__() if one.__module__.startswith("tierank.")]
    for one in derived:
        yield from _kinds_of(one)
    if not derived:
        yield kind
