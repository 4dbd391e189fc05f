"""Commands as they are declared: the parser, checks before the work, completion and the page of commands read these.

An option that is a parameter of a function of tierank has the help, the type and the default that stand there.
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from tierank.errors import ParameterError, TierankError


def integer(text: str) -> int:
    """An integer."""
    try:
        return int(text)
    except ValueError:
        raise ParameterError(expected="an integer", got=repr(text)) from None


def number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise ParameterError(expected="a number", got=repr(text)) from None


def names(text: str) -> list[str]:
    """Names, separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def pairs(text: str) -> list[list[str]]:
    """Pairs of names, ``A:B,C:D``."""
    return [pair.split(":") for pair in names(text)]


# How the value of an option is read, by what stands in the annotation of the parameter: the first that is found.
_TYPES: dict[str, Callable[[str], Any]] = {
    "tuple[str": pairs,
    "Sequence[str]": names,
    "bool": bool,
    "int": integer,
    "float": number,
}


@cache
def parameters_of(function: str) -> dict[str, dict[str, Any]]:
    """The help, type and default of each parameter of a function or dataclass, ``"io:read"``.

    They are read from its source, as importing its module may take a second.
    """
    module, _, name = function.partition(":")
    place = Path(__file__).parents[1] / module
    tree = ast.parse((place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text("utf-8"))
    found: Any = next(node for node in tree.body if getattr(node, "name", "") == name)
    if isinstance(found, ast.ClassDef):
        typed: list[Any] = [one for one in found.body if isinstance(one, ast.AnnAssign)]
        annotated = [(one.target.id, one.annotation, one.value) for one in typed]
    else:
        given = [*found.args.args, *found.args.kwonlyargs]
        n_without = len(found.args.args) - len(found.args.defaults)
        defaults = [None] * n_without + found.args.defaults + found.args.kw_defaults
        annotated = [(one.arg, one.annotation, default) for one, default in zip(given, defaults, strict=True)]
    helps = {
        name: _help(words)
        for listed, words in re.findall(r"^(\w[\w, ]*) : .*\n((?:    .*\n?)+)", ast.get_docstring(found) or "", re.M)
        for name in listed.split(", ")
    }
    return {
        name: {
            "help": helps.get(name, ""),
            "type": next((kind for sign, kind in _TYPES.items() if sign in ast.unparse(annotation)), str),
            "default": default.value if isinstance(default, ast.Constant) else None,
        }
        for name, annotation, default in annotated
    }


def _help(description: str) -> str:
    """The first sentence of the description of a parameter, and its default if that is said in words."""
    text = " ".join(description.replace("`", "").replace("%", "%%").split())
    first, default = (re.search(rf"{start}(.*?)(?:[.;](?= |$)|$)", text) for start in ("^", "Default: "))
    words = first[1].removeprefix("The ").removeprefix("Whether ") if first else ""
    return words[:1].lower() + words[1:] + (f" (default: {default[1]})" if default else "")


class Argument:
    """An argument of a command, or an option of it.

    Parameters
    ----------
    flag : str
        ``"--name"`` of an option, or the name of an argument; behind it the word for its value, if that is another.
    help : str, default ""
        What it is; the default is added.
    type : callable, default str
        Converts the text, or raises ``ParameterError``; ``bool`` for a switch.
    of : str, optional
        A function of which ``dest`` is a parameter, as ``"module:function"``: its help, type and default are used.
    dest : str, optional
        The name in Python, by which errors call it. Default: the flag without its dashes.
    values : callable, optional
        Returns the names that can be given, for completion.
    reads : str, optional
        What is expected at the path that is given: it is checked before the work, and never overwritten.
    heading : str, default ""
        The heading that the option is listed under.
    excludes : str, default ""
        Of several options with the same word, one can be given; they have no heading.
    **others
        ``default``, ``required``, ``nargs`` and ``action``, as in argparse.
    """

    def __init__(
        self,
        flag: str,
        help: str = "",
        type: Callable[[str], Any] = str,
        *,
        of: str = "",
        dest: str | None = None,
        values: Callable[[], Sequence[str]] = list,
        reads: str | None = None,
        heading: str = "",
        excludes: str = "",
        **others: Any,
    ) -> None:
        self.flag, _, metavar = flag.partition(" ")
        self.is_option = flag.startswith("-")
        self.dest = dest or self.flag.lstrip("-").replace("-", "_")
        self.values, self.reads, self.heading, self.excludes = values, reads, heading, excludes
        self._of = of
        self._given = others | {name: value for name, value in (("help", help), ("metavar", metavar)) if value}
        if type is not str:
            self._given["type"] = type

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What argparse is told about it."""
        settings: dict[str, Any] = {"help": "", "type": str, "default": None}
        settings |= (parameters_of(self._of)[self.dest] if self._of else {}) | self._given
        kind, default = settings.pop("type"), settings["default"]
        if kind is bool:
            settings["action"] = "store_false" if default else "store_true"
        else:
            settings["type"] = _converter(kind)
        if self.is_option:
            settings["dest"] = self.dest
            if kind is not bool and default not in (None, []):
                settings["help"] += f" (default: {f'{default:g}' if isinstance(default, float) else default})"
        return settings

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return "type" not in self.settings

    @property
    def metavar(self) -> str:
        """The word for its value."""
        return str(self.settings.get("metavar") or (self.dest.upper() if self.is_option else self.dest))


def parameters(function: str, heading: str = "", **metavars: str) -> list[Argument]:
    """An option for each of these parameters of a function: ``n_jobs`` becomes ``--jobs``."""
    return [
        Argument(f"--{name.removeprefix('n_').replace('_', '-')}", of=function, dest=name, heading=heading, metavar=one)
        for name, one in metavars.items()
    ]


def _converter(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type for argparse, which puts the name of the option in front of the message."""

    def convert(text: str) -> Any:
        if not text:  # an empty path would mean the current folder, and an empty name nothing
            wrong = "expected a value, got an empty text; is a variable of the shell not set?"
            raise argparse.ArgumentTypeError(wrong)
        try:
            return kind(text)
        except TierankError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


@dataclass(frozen=True)
class Command:
    """A command.

    Parameters
    ----------
    name : str
        The word that calls it.
    help : str
        What it does, in a line.
    example : str, default ""
        What may follow ``tierank``.
    arguments : sequence of Argument, default ()
        Its arguments and options.
    run : callable, optional
        The function that is called with the options.
    commands : sequence of Command, default ()
        The commands in it, of which one has to be given.
    renamed : dict of str to str, default {}
        Options for arguments of Python that have other names.
    """

    name: str
    help: str
    example: str = ""
    arguments: Sequence[Argument] = ()
    run: Callable[[argparse.Namespace], None] | None = None
    commands: Sequence[Command] = ()
    renamed: dict[str, str] = field(default_factory=dict)

    def rename(self, text: str) -> str | None:
        """How callers of the command write an argument of Python, or ``argument=value``; None if it is not theirs.

        >>> jobs, ignore = Argument("--jobs", dest="n_jobs"), Argument("--ignore")
        >>> command = Command("cv", "", "", [jobs, ignore, Argument("--set")])
        >>> [command.rename(text) for text in ("n_jobs", "n_jobs=1", "ignore=['a b', 'c']", "gain='linear'", "other")]
        ['--jobs', '--jobs 1', "--ignore 'a b,c'", '--set gain=linear', None]
        """
        if text.startswith("columns=Columns("):
            text = text.partition("(")[2].removesuffix(")")
        name, equals, value = text.partition("=")
        if equals and not value:
            return self.rename(name)
        options = {one.dest: one.flag for one in self.arguments if one.is_option} | self.renamed
        if "categories" in options:
            options["columns"] = "--categories, --dates or the like"
        try:
            given = ast.literal_eval(value)
        except (ValueError, SyntaxError):  # placeholders of a pair of columns, or no value of Python
            pair = re.fullmatch(r"\[\((\w+), (\w+)\)\]", value)
            given = value if pair is None else f"{pair[1]}:{pair[2]}".upper()
        if name not in options or not equals:
            return f"--set {name}={given}" if equals and "set" in options else options.get(name)
        if isinstance(given, (list, tuple)):
            given = ",".join(":".join(one) if isinstance(one, (list, tuple)) else str(one) for one in given)
        return options[name] if given is True else f"{options[name]} {shlex.quote(str(given))}"

    def walk(self, above: str = "") -> Iterator[tuple[str, Command]]:
        """The commands in it and in these, each with the words that call it."""
        for command in self.commands:
            yield f"{above}{command.name}", command
            yield from command.walk(f"{above}{command.name} ")


def command(
    name: str, help: str, example: str, *arguments: Argument | Sequence[Argument], **renamed: str
) -> Callable[[Callable[[argparse.Namespace], None]], Command]:
    """Declare a command by the function that runs it; ``--quiet`` is added if it has none."""
    listed = [one for some in arguments for one in ([some] if isinstance(some, Argument) else some)]
    if not any(one.flag == "--quiet" for one in listed):
        listed.append(_QUIET)
    return lambda run: Command(name, help, f"tierank {example}", listed, run, renamed=renamed)


_QUIET = Argument(
    "--quiet", "print only results and errors: no progress, no warnings", bool, dest="silent", default=False
)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help that can be copied: the example is one line, and words are not broken at hyphens."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)


class Parser(argparse.ArgumentParser):
    """The parser of a command, whose errors are one line."""

    def __init__(self, command: Command, **others: Any) -> None:
        about = command.help[0].upper() + command.help[1:] + "."
        example = f"Example: {command.example}" if command.example else None
        super().__init__(description=about, epilog=example, formatter_class=_Help, **others)
        self.command, self._is_filled = command, False

    def fill(self) -> Parser:
        """Add the arguments; returns the parser. Those of all commands would take longer than the help may."""
        if self._is_filled:
            return self
        self._is_filled = True
        self.set_defaults(command=self.command)
        groups: dict[str, Any] = {"": self}
        for one in self.command.arguments:
            key = one.excludes or one.heading
            if key not in groups:
                groups[key] = self.add_mutually_exclusive_group() if one.excludes else self.add_argument_group(key)
            groups[key].add_argument(one.flag, **one.settings)
        if self.command.commands:
            inner = self.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
            for command in self.command.commands:
                inner.add_parser(command.name, help=command.help, command=command)
        return self

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options. Unknown ones are refused before missing ones, and by the command that does not have them."""
        words, inner = list(args), [one.name for one in self.command.commands]
        if inner and words and not words[0].startswith("-") and words[0] not in inner:
            unknown = ParameterError.unknown("command", words[0], inner)
            raise ParameterError(str(unknown), fix=f"see {self.prog} --help")
        known = ["--help", *(one.flag for one in self.command.arguments if one.is_option)]
        for word in takewhile(lambda word: word != "--", words[:1] if inner else words):
            name = word.partition("=")[0]
            # argparse would accept abbreviated names, and take texts with spaces as values.
            if name.startswith("--") and " " not in word and not any(one.startswith(name) for one in known):
                raise _unknown_option(self.prog, name, known)
        options, others = super(Parser, self.fill()).parse_known_args(words, namespace)
        if others:
            self.error(f"unrecognized arguments: {' '.join(others)}")
        return options, others

    def error(self, message: str) -> NoReturn:
        """Raise the error that ``main`` prints."""
        # An unknown name is told with the known ones, and what it should name.
        message = re.sub(r"^argument (\S+: (?=unknown ))?", "", message)
        raise ParameterError(message, fix=None if message.startswith("unknown ") else f"see {self.prog} --help")


# What other commands and tools call an option, and the options that may be meant; or, last, what to do instead.
MEANT = {
    **dict.fromkeys(("--data", "--input", "--dataset"), ("--train", "--data", "--verify")),
    "--test": ("--data", "--verify", "judge by test data with tierank evaluate"),
    "--train": ("--data",),
    **dict.fromkeys(("--eval", "--dev", "--validation"), ("--valid",)),
    **dict.fromkeys(("--model", "--output", "--save"), ("--out",)),
    **dict.fromkeys(("--metrics", "--eval-metric"), ("--metric", "--select", "--set select_by")),
    **dict.fromkeys(("--target", "--format"), ("--to",)),
    **dict.fromkeys(("--threads", "--n-jobs", "--workers"), ("--jobs", "--threads", "--set n_jobs")),
    **dict.fromkeys(("--qid", "--group"), ("--query-column",)),
    **dict.fromkeys(("--label", "--grade"), ("--rating-column",)),
    **dict.fromkeys(("--drop", "--exclude"), ("--ignore",)),
    **dict.fromkeys(("--params", "--config"), ("--settings", "--set")),
    "--top-k": ("--k",),
}
# From this similarity on, an option was mistyped.
_SURE = 0.85


def _unknown_option(command: str, option: str, known: Sequence[str]) -> ParameterError:
    """The error for an unknown option: by what was meant, or how a setting is given that was given as an option."""
    fix = None
    for meant in MEANT.get(option, ()):
        if not meant.startswith("--"):
            fix = fix or meant
        elif meant.split()[0] in known:
            fix = fix or f"did you mean {meant!r}?"
    if fix is None and "--set" in known and not get_close_matches(option, known, n=1, cutoff=_SURE):
        from tierank.rankers import RANKERS

        setting = option.lstrip("-").replace("-", "_")
        if any(setting in kind.declared_settings() for kind in RANKERS.values()):
            fix = f"give settings by --set {setting}=..."
    return ParameterError.unknown(f"option of {command}", option, known, fix=fix)
