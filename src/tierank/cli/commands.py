"""Commands as they are declared: the parser, checks before the work, completion and the page of commands read these."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from itertools import takewhile
from typing import Any, NoReturn

from tierank.cli.console import quiet
from tierank.cli.options import Argument, arguments_of
from tierank.errors import ParameterError


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
        A call of it.
    run : callable, optional
        The function that is called with the options.
    declared : callable, default list
        Returns its arguments and options.
    commands : sequence of Command, default ()
        The commands in it, of which one has to be given.
    renamed : dict of str to str, default {}
        Options for arguments of Python that have other names.
    """

    name: str
    help: str
    example: str = ""
    run: Callable[[argparse.Namespace], None] | None = None
    declared: Callable[[], list[Argument]] = list
    commands: Sequence[Command] = ()
    renamed: dict[str, str] = field(default_factory=dict)

    @cached_property
    def arguments(self) -> list[Argument]:
        """Its arguments and options."""
        return self.declared()

    def rename(self, text: str) -> str | None:
        """How callers of the command write an argument of Python, or ``argument=value``; None if it is not theirs.

        >>> jobs, ignore = Argument("--jobs", dest="n_jobs"), Argument("--ignore")
        >>> command = Command("cv", "", declared=lambda: [jobs, ignore, Argument("--set")])
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


def command(*used: Callable[..., Any], **renamed: str) -> Callable[[Callable[[argparse.Namespace], None]], Command]:
    """Make a command of the function that runs it.

    Parameters
    ----------
    *used : callable
        Functions that read options which their docstrings declare. Those of the command itself stand before them.
    **renamed : str
        Options for arguments of Python that have other names.

    Returns
    -------
    callable
        The decorator. The command has the name of the function; the first sentence of its docstring is the help, and
        ``Example:`` begins the example.
    """

    def made(run: Callable[[argparse.Namespace], None]) -> Command:
        def declared() -> list[Argument]:
            by_flag: dict[str, Argument] = {}
            for function in (run, *used, quiet):
                for one in arguments_of(function):
                    by_flag.setdefault(one.flag, one)
            return list(by_flag.values())

        about, *paragraphs = (" ".join(one.split()) for one in inspect.cleandoc(run.__doc__ or "").split("\n\n"))
        example = next((one.removeprefix("Example: ") for one in paragraphs if one.startswith("Example: ")), "")
        help = about[0].lower() + about[1:].removesuffix(".")
        return Command(run.__name__.strip("_"), help, example, run, declared, renamed=renamed)

    return made


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
