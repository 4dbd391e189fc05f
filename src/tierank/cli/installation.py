"""``list``, ``compile`` and ``completion``: what is there, and what prepares a machine for it."""

from __future__ import annotations

import argparse
import inspect
import json
import shlex
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

from tierank.cli.commands import Command, command
from tierank.cli.console import check_place, say
from tierank.cli.options import RANKERS
from tierank.errors import ParameterError
from tierank.extras import needing


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0].rstrip(".").replace("``", "")


# The tables, and how to describe their entries.
_TABLES: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "rankers": ("tierank.rankers", "RANKERS", _first_line),
    "metrics": ("tierank.metrics", "METRICS", _first_line),
    "rules": ("tierank.metrics", "RULES", lambda rule: rule.describe().partition(": ")[2]),
    "transforms": ("tierank.transforms", "TRANSFORMS", _first_line),
    "networks": ("tierank.networks", "NETWORKS", _first_line),
    "losses": ("tierank.losses", "LOSSES", _first_line),
    "click-models": ("tierank.clicks", "CLICK_MODELS", _first_line),
    "targets": ("tierank.export", "TARGETS", lambda target: _first_line(inspect.getmodule(target.write))),
}
LISTS = ("settings", *_TABLES)
# Printed to standard error, so that a pipe gets only the names.
_WHICH = """
Which one? blend: the best we measured, for 2 to 8 times the training time of lambdamart.
lambdamart: the baseline to beat; one model that trains and scores fast, and needs no torch.
umart: the paper's trees, level with lambdamart; its preset stochastic ranks better on most data.
urank: a neural network; it beats trees on OHSUMED, a small data set.
linear: trains in milliseconds."""


@command()
def list_(options: argparse.Namespace) -> None:
    """Names that can be chosen, with a line on each.

    Example: tierank list settings umart

    what WHAT : list
        rankers, metrics, rules, transforms, networks, losses, click-models, targets, or settings of a ranker
    ranker RANKER : name of a ranker, optional
        whose settings
    --json : json
    """
    what, ranker = options.what, options.ranker
    if what not in LISTS:
        raise ParameterError.unknown("list", what, LISTS)
    if what != "settings" and ranker is not None:
        raise ParameterError(where=ranker, fix=f"a ranker is only valid after settings, not after {what}")
    if what == "settings" and ranker not in RANKERS:
        if ranker is not None:
            raise ParameterError.unknown("ranker", ranker, RANKERS)
        raise ParameterError(fix=f"`list settings` needs a ranker: one of {', '.join(RANKERS)}")
    if what == "settings":
        from tierank.rankers import RANKERS as classes

        declared = classes[ranker].declared_settings()
        rows: list[tuple[str, ...]] = [
            (name, one.default if isinstance(one.default, str) else repr(one.default), one.help)
            for name, one in declared.items()
        ]
    else:
        module, table, line = _TABLES[what]
        with needing(f"list {what}"):
            rows = [(name, line(thing)) for name, thing in getattr(import_module(module), table).items()]
    if options.json:
        print(json.dumps({name: rest[0] if len(rest) == 1 else rest for name, *rest in rows}, indent=2))
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, help in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)), help]).rstrip())
    if what == "rankers":
        say(_WHICH)


@command()
def compile_(options: argparse.Namespace) -> None:
    """Compile everything that is otherwise compiled on first use.

    Example: tierank compile --to /opt/tierank

    --to DIR : path
        store the code there, for processes with NUMBA_CACHE_DIR=DIR (default: where they look anyway)
    """
    from tierank.kernels.compiling import compile_all

    check_place(options, options.to, is_folder=True)
    loaded = []
    for name, one in compile_all(options.to):
        loaded.append(one)
        if one.is_compiled:
            say(f"{one.seconds:6.2f} s  {name}")
    compiled = [one.seconds for one in loaded if one.is_compiled]
    print(
        f"{len(loaded)} functions in {', '.join(sorted({str(one.folder) for one in loaded}))}: {len(compiled)} compiled"
        f" in {sum(compiled):.1f} s, {len(loaded) - len(compiled)} were there"
    )
    if options.to:
        print(f"They are used where NUMBA_CACHE_DIR={options.to.absolute()} is set")


# Words that can be completed, each with a line on it.
Words = Iterable[tuple[str, str]]


@command()
def completion(options: argparse.Namespace) -> None:
    """A script that completes commands, options and names in a shell.

    Example: tierank completion bash > ~/.local/share/bash-completion/completions/tierank

    shell SHELL : shell
        bash, zsh or fish
    """
    from tierank.cli import TIERANK

    if options.shell not in _SHELLS:
        raise ParameterError.unknown("shell", options.shell, _SHELLS)
    if options.shell not in _SHELLS:
        raise ParameterError.unknown("shell", options.shell, _SHELLS)
    print(f"# Completion for tierank, made by: tierank completion {options.shell}")
    print("\n".join(_SHELLS[options.shell](TIERANK)))


def _arguments(one: Command) -> Words:
    """What may follow a command: commands in it, or the names that its arguments take."""
    if one.commands:
        return [(inner.name, inner.help) for inner in one.commands]
    return [(name, "") for argument in one.arguments if not argument.is_option for name in argument.values()]


def _options(one: Command) -> Words:
    options = [(option.flag, _short(option.settings["help"])) for option in one.arguments if option.is_option]
    return [*options, ("--help", "show this help")]


def _short(text: str) -> str:
    return text.replace("%%", "%")[:70]


def _cases(tierank: Command, words: str, listed: Callable[[Words], str]) -> Iterator[str]:
    """The lines, in bash and zsh, that put into ``all`` what may stand for ``word``; ``words`` stand before it."""
    places = "|".join(shlex.quote(f"{name.rpartition(' ')[0]} {one.name}") for name, one in tierank.walk())
    yield f'  for each in {words}; do case "$place $each" in {places}) place="${{place:+$place }}$each" ;; esac; done'
    yield '  [[ "$word" == -* ]] && each=option || each=argument'
    yield '  case "$place $before" in'
    for name, one in tierank.walk():
        for option in one.arguments:
            if option.is_option and option.values():
                yield f"    '{name} {option.flag}') all={listed((value, '') for value in option.values())} ;;"
    yield '    *) case "$each $place" in'
    yield f"      'argument ') all={listed(_arguments(tierank))} ;;"
    for name, one in tierank.walk():
        yield f"      'option {name}') all={listed(_options(one))} ;;"
        yield f"      'argument {name}') all={listed(_arguments(one))} ;;"
    yield "    esac ;;"
    yield "  esac"


def _bash(tierank: Command) -> Iterator[str]:
    yield "_tierank() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" place="" each all=""'
    yield from _cases(
        tierank, '"${COMP_WORDS[@]:1:COMP_CWORD-1}"', lambda words: shlex.quote(" ".join(name for name, _ in words))
    )
    yield '  COMPREPLY=($(compgen -W "$all" -- "$word"))'
    yield "}"
    yield "complete -o default -F _tierank tierank"


def _zsh(tierank: Command) -> Iterator[str]:
    def listed(words: Words) -> str:
        described = (f"{name}:{help.replace(':', ' ')}" if help else name for name, help in words)
        return f"({' '.join(map(shlex.quote, described))})"

    yield "_tierank() {"
    yield '  local word="${words[CURRENT]}" before="${words[CURRENT-1]}" place="" each'
    yield "  local -a all"
    yield from _cases(tierank, '"${words[@]:1:$((CURRENT-2))}"', listed)
    yield "  (( $#all )) && _describe value all"
    yield "  [[ $each == option ]] || _files"
    yield "}"
    yield 'if [[ "$funcstack[1]" == "_tierank" ]]; then _tierank "$@"; else compdef _tierank tierank; fi'


def _fish(tierank: Command) -> Iterator[str]:
    def line(where: str, rest: str, help: str) -> str:
        return f"complete -c tierank -n {shlex.quote(where)} {rest} -d {shlex.quote(help)}"

    for name, one in tierank.walk():
        *above, word = name.split()
        start = f"__fish_seen_subcommand_from {above[0]}" if above else "__fish_use_subcommand"
        yield line(start, f"-a {word}", one.help)
        where = "; and ".join(f"__fish_seen_subcommand_from {part}" for part in name.split())
        for value, help in [] if one.commands else _arguments(one):
            yield line(where, f"-a {value}", help)
        for option in one.arguments:
            if option.is_option:
                known = f" -x -a {shlex.quote(' '.join(option.values()))}" if option.values() else " -r"
                yield line(
                    where, f"-l {option.flag[2:]}" + known * (not option.is_switch), _short(option.settings["help"])
                )


_SHELLS: dict[str, Callable[[Command], Iterator[str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
