"""Arguments and options: how their values are read, and how docstrings declare them.

The function that runs a command, or that reads some options for several commands, declares them in its docstring, one
entry each, in the form of numpydoc::

    --by A,B : names, repeatable
        also by segment: columns such as device,country

In front of the colon stand the flag and the word for its value, behind it the kind of value (a key of ``KINDS``, or
names in braces) and more, as ``_declared`` says. An entry of the kind ``module:function`` is a parameter of that
function of tierank, and has the help, the type and the default that stand there. A title with a line below it is the
heading of the options that follow.

Names that callers mistype are checked before anything large is imported: rankers alone take a second.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from tierank.cli.plugins import as_own, is_own, own_class
from tierank.errors import ParameterError, TierankError

# Standard input or standard output, as a path.
PIPE = "-"
# The keys of tierank.RANKERS and tierank.TARGETS.
RANKERS = (
    *("urank", "uboost", "umart", "urboost", "lambdamart", "listnet", "listmle", "plistmle", "ranknet", "approxndcg"),
    *("lambdaloss", "mdprank", "linear", "blend"),
)
TARGETS = ("onnx", "elasticsearch", "opensearch", "solr", "vespa", "c")
MODEL_FOLDER = "a model folder, with model.json in it"


# How values are read


def _parsed(kind: Callable[[str], Any], expected: str) -> Callable[[str], Any]:
    """Reads a number."""

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise ParameterError(expected=expected, got=repr(text)) from None

    return read


integer, number = _parsed(int, "an integer"), _parsed(float, "a number")


def names(text: str) -> list[str]:
    """Names, separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def pairs(text: str) -> list[list[str]]:
    """Pairs of names, ``A:B,C:D``."""
    return [pair.split(":") for pair in names(text)]


def one_of(what: str, known: Sequence[str], also: Sequence[str] = ()) -> Callable[[str], str]:
    """Reads a name; ``also`` are names that are not told. Without ``what`` the names are few, and all are told."""

    def read(text: str) -> str:
        if text in known or text.lower() in also or (what and is_own(text)):
            return text
        if what:
            raise ParameterError.unknown(what, text, known)
        raise ParameterError(expected=f"one of {', '.join(known)}", got=repr(text))

    return read


def metrics(text: str) -> list[Any]:
    """Metrics by name, callers' own as functions."""
    from tierank.metrics import parse_metric

    found = [as_own(name) for name in names(text)]
    for metric in found:
        if isinstance(metric, str):
            parse_metric(metric)
    return found


def rule_name(text: str) -> str:
    """The name of a rule."""
    from tierank.metrics import as_rule

    as_rule(text)
    return text


def named(text: str, form: str = "NAME=VALUE, such as n_trees=200") -> tuple[str, str]:
    """A name and a text."""
    name, _, value = text.partition("=")
    if not (name and value):
        raise ParameterError(expected=form, got=repr(text))
    return name, value


def named_path(text: str) -> tuple[str, str]:
    """A name and a path, from NAME=PATH; a path alone gets the name of the file or folder."""
    name, equals, path = text.partition("=")
    if not equals or "/" in name or Path(text).exists():
        name, path = Path(text).resolve().name, text
    if not (name and path):
        raise ParameterError(expected="PATH or NAME=PATH", got=repr(text))
    return name, path


def titled_path(text: str) -> tuple[str, str]:
    """A name and a path, from NAME=PATH; a path alone is its own name."""
    name, path = named_path(text)
    return text if path == text else name, path


def named_ranker(text: str) -> tuple[str, str, dict[str, Any]]:
    """``NAME=RANKER,SETTING=VALUE,...`` as a name, a ranker and settings; commas inside brackets do not separate."""
    head, *settings = re.split(r",(?![^\[{(]*[\]})])", text)
    name, equals, ranker = head.partition("=")
    ranker = KINDS["ranker"]["type"](ranker if equals else head)
    return name if equals else text, ranker, settings_of(map(named, settings))


def by_name(given: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Texts by name, each name once."""
    found: dict[str, str] = {}
    for name, text in given:
        if name in found:
            raise ParameterError(expected="each name once", got=f"{name!r} twice", fix=f"name one: other={text}")
        found[name] = text
    return found


def setting_value(text: str) -> Any:
    """A value in JSON (numbers, lists, true, null) or Python syntax (tuples, True, None); otherwise a text.

    ``package.module:Name`` is the caller's own loss, network, metric or transform; the name of a rule may have the same
    form, ``letor:condense``.

    >>> [setting_value(text) for text in ("false", "None", "(100, 50)", "log1p")]
    [False, None, (100, 50), 'log1p']
    """
    from tierank.metrics import RULES

    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return parse(text)
    return text if text.partition(":")[0] in RULES else as_own(text)


def settings_of(given: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The values of settings by name."""
    return {name: setting_value(text) for name, text in by_name(given).items()}


def given_to(function: Callable[..., Any], options: argparse.Namespace) -> dict[str, Any]:
    """The options that are arguments of a function, or fields of a dataclass, by their names."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in vars(options).items() if name in names}


def paths_of(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Each path that the command reads, with what is expected there."""
    found: list[tuple[str, str]] = []
    for one in options.command.arguments:
        given = getattr(options, one.dest) if one.reads else None
        paths = by_name(given).values() if isinstance(given, list) else [] if given is None else [str(given)]
        found += [(path, one.reads) for path in paths]
    return found


def check_paths(options: argparse.Namespace) -> None:
    """Raise an error for a path to read where nothing is."""
    for path, expected in paths_of(options):
        if path != PIPE:
            from tierank.io.paths import kind_of

            kind_of(Path(path), expected)


# Kinds of values


def _names_in(module: str, table: str, listed: Callable[[Any], list[str]] = list) -> Callable[[], list[str]]:
    """Returns the names in a table of tierank when it is called."""
    return lambda: listed(getattr(import_module(f"tierank.{module}"), table))


# What an argument of each kind tells ``Argument``, unless its declaration says otherwise.
KINDS: dict[str, dict[str, Any]] = {
    "text": {},
    "switch": {"type": bool},
    "integer": {"type": integer},
    "number": {"type": number},
    "names": {"type": names},
    "path": {"type": Path},
    "file": {"reads": "a file"},
    "data": {"reads": "a file", "help": "a file: LETOR text, CSV, Parquet, ...; -: a pipe"},
    "scores": {"reads": "a file of scores"},
    "systems": {"type": titled_path, "reads": "a file of scores, or a model folder"},
    "named systems": {"type": named_path, "reads": "a file of scores, or a model folder"},
    "score files": {
        "type": lambda text: named(text, "NAME=FILE, such as other=other-fold{fold}.scores"),
        "action": "append",
        "default": [],
    },
    "runs": {"type": named_path, "reads": "the folder of a run, with run.json in it"},
    "model": {"reads": MODEL_FOLDER, "help": "a folder that train wrote"},
    "models": {"type": named_path},
    "ranker": {
        "type": one_of("ranker", RANKERS),
        "values": lambda: RANKERS,
        "help": "a name from: tierank list rankers",
    },
    "name of a ranker": {"values": lambda: RANKERS},
    "rankers": {"type": named_ranker, "values": lambda: RANKERS},
    "settings": {"type": named, "action": "append", "default": [], "help": "see: tierank list settings RANKER"},
    "target": {"type": one_of("target", TARGETS, ("lightgbm", "lgb", "lgbm")), "values": lambda: TARGETS},
    "classes": {"type": own_class, "action": "append", "default": []},
    "metrics": {
        "type": metrics,
        "action": "extend",
        "values": _names_in("metrics", "METRICS", lambda known: [*(f"{name}@10" for name in known), *known]),
    },
    "rule": {"type": rule_name, "values": _names_in("metrics", "RULES")},
    "format": {"values": _names_in("io", "FORMATS", lambda forms: [name for name in forms if forms[name].read])},
    "click model": {"values": _names_in("clicks", "CLICK_MODELS")},
    "shell": {"values": lambda: ["bash", "zsh", "fish"]},
    "list": {"values": _names_in("cli.installation", "LISTS")},
    "seed": {"type": integer, "default": 0, "help": "random seed"},
    "json": {"type": bool, "help": "machine-readable output"},
}
# How the value of a parameter is read, by what stands in its annotation: the first that is found.
_TYPES: dict[str, Callable[[str], Any]] = {
    "tuple[str": pairs,
    "Sequence[str]": names,
    "bool": bool,
    "int": integer,
    "float": number,
}
# What more a declaration can say.
_KEYWORDS = {"as": "dest", "either": "excludes", "default": "default"}
_WORDS: dict[str, dict[str, Any]] = {
    "required": {"required": True},
    "optional": {"nargs": "?"},
    "any number": {"nargs": "*"},
    "at least one": {"nargs": "+"},
    "repeated": {"action": "append"},
    "repeatable": {"action": "extend"},
}


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
        if of and self.dest not in parameters_of(of):
            self.dest = f"n_{self.dest}"
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


# Declarations


def entries(docstring: str) -> Iterator[tuple[str, list[str], str, str]]:
    """The entries of a docstring: the title above, names, type, and description."""
    title = ""
    for above, listed, kind, words in re.findall(
        r"^(?:(\w.*)\n-{3,}$|(-{0,2}\w.*?) : (.*)((?:\n    .*)*))", inspect.cleandoc(docstring), re.MULTILINE
    ):
        title = above or title
        if listed:
            yield title, listed.split(", "), kind, " ".join(words.split())


def arguments_of(function: Callable[..., Any]) -> list[Argument]:
    """The arguments that the docstring of a function declares."""
    return [
        _declared(flag, kind, help.replace("%", "%%"), "" if title == "Options" else title.lower())
        for title, flags, kind, help in entries(function.__doc__ or "")
        for flag in flags
    ]


def _declared(flag: str, declared: str, help: str, heading: str) -> Argument:
    """An argument by its KIND, and words such as ``required``, ``as DEST``, ``default VALUE``, ``either GROUP``.

    >>> one = _declared("--top N", "integer, as k, default 10", "features to name", "")
    >>> one.flag, one.dest, one.settings["metavar"], one.settings["help"]
    ('--top', 'k', 'N', 'features to name (default: 10)')
    """
    kind, braces, more = declared.partition("}")
    kind, *words = [kind, *more.split(", ")[1:]] if braces else declared.split(", ")
    given: dict[str, Any] = {}
    if braces:
        known = kind.strip("{").split(", ")
        given |= {"values": lambda: known, "type": one_of("", known)}
    else:
        given |= {"of": kind} if ":" in kind else KINDS[kind]
    for word in words:
        name, _, value = word.partition(" ")
        if name in _KEYWORDS:
            given[_KEYWORDS[name]] = value
            with suppress(ValueError, SyntaxError):  # a number or True
                given[_KEYWORDS[name]] = ast.literal_eval(value)
        else:
            given |= _WORDS[word]
    return Argument(flag, **given | ({"help": help} if help else {}), heading=heading)


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
        name: _first_sentence(words)
        for _, listed, _, words in entries(ast.get_docstring(found) or "")
        for name in listed
    }
    return {
        name: {
            "help": helps.get(name, ""),
            "type": next((kind for sign, kind in _TYPES.items() if sign in ast.unparse(annotation)), str),
            "default": default.value if isinstance(default, ast.Constant) else None,
        }
        for name, annotation, default in annotated
    }


def _first_sentence(description: str) -> str:
    """The first sentence of the description of a parameter, and its default if that is said in words."""
    text = description.replace("`", "").replace("%", "%%")
    first, default = (re.search(rf"{start}(.*?)(?:[.;](?= |$)|$)", text) for start in ("^", "Default: "))
    words = first[1].removeprefix("The ").removeprefix("Whether ") if first else ""
    return words[:1].lower() + words[1:] + (f" (default: {default[1]})" if default else "")
