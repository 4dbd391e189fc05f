"""``completion``: a completion script for a shell, generated from the parser."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tierank.cli.options import add_command
from tierank.errors import ParameterError


@dataclass(frozen=True)
class Option:
    """An option of a command; ``values`` are its possible values, if they are known."""

    names: Sequence[str]
    help: str
    takes_value: bool
    values: Sequence[str]


@dataclass(frozen=True)
class Command:
    """A command with its full name, such as ``clicks fit``, its options, and the words that may follow it."""

    place: str
    help: str
    options: Sequence[Option]
    words: Sequence[str]


def add_completion(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "completion",
        "a script that completes commands, options and names in a shell",
        "completion bash > ~/.local/share/bash-completion/completions/tierank",
        has_quiet=False,
    )
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")
    parser.set_defaults(run=lambda options: _print(options, commands))


def _print(options: argparse.Namespace, commands: Any) -> None:
    if options.shell not in _SHELLS:
        raise ParameterError.unknown("shell", options.shell, _SHELLS)
    print(_SHELLS[options.shell](list(walk(commands))), end="")


def walk(commands: Any, above: str = "") -> Iterator[Command]:
    """All commands and subcommands, in the order of the help.

    argparse has no public way to list the arguments of a parser; these are the methods that generate its help.
    """
    names = _known_names()
    helps = {one.dest: one.help or "" for one in commands._get_subactions()}
    for name, parser in commands.choices.items():
        place = f"{above} {name}".strip()
        inner = next((one for one in parser._get_positional_actions() if isinstance(one.choices, dict)), None)
        words = list(inner.choices) if inner is not None else _words(parser._get_positional_actions(), names)
        options = [
            Option(one.option_strings, one.help or "", one.nargs != 0, names.get(_kind(one), ()))
            for one in parser._get_optional_actions()
        ]
        yield Command(place, helps.get(name, ""), options, words)
        if inner is not None:
            yield from walk(inner, place)


def _words(positional: Iterable[Any], names: dict[str, Sequence[str]]) -> list[str]:
    return [name for one in positional for name in names.get(str(one.metavar), ())]


def _kind(option: Any) -> str:
    return str(option.option_strings[-1])


def _known_names() -> dict[str, Sequence[str]]:
    """Names from the tables of tierank, by the option or argument that takes one."""
    from tierank.export import TARGETS
    from tierank.listing import KINDS
    from tierank.metrics import METRICS, RULES
    from tierank.rankers import RANKERS
    from tierank.readers import FORMATS

    return {
        "RANKER": list(RANKERS),
        "WHAT": list(KINDS),
        "SHELL": list(_SHELLS),
        "--metric": [f"{name}@10" for name in METRICS] + list(METRICS),
        "--rule": list(RULES),
        "--to": list(TARGETS),
        "--format": [name for name, form in FORMATS.items() if form.read is not None],
    }


_REPLY = 'COMPREPLY=($(compgen -W {} -- "$word"))'


def _bash(commands: Sequence[Command]) -> str:
    first = [one.place for one in commands if " " not in one.place]
    values = [
        f"    {_patterns(one.place, option)}) {_REPLY.format(_listed(option.values))}; return ;;"
        for one in commands
        for option in one.options
        if option.values
    ]
    options = [f"      {_quoted(c.place)}) all={_listed(n for o in c.options for n in o.names)} ;;" for c in commands]
    words = [f"      {_quoted(one.place)}) all={_listed(one.words)} ;;" for one in commands]
    return _lines(
        "# Completion for tierank, made by: tierank completion bash",
        "_tierank() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" place="" each all=""',
        *_walked('"${COMP_WORDS[@]:1:COMP_CWORD-1}"', commands),
        '  case "$place $before" in',
        *values,
        "  esac",
        '  if [[ "$word" == -* ]]; then',
        '    case "$place" in',
        *options,
        "    esac",
        "  else",
        '    case "$place" in',
        f'      "") all={_listed(first)} ;;',
        *words,
        "    esac",
        "  fi",
        "  " + _REPLY.format('"$all"'),
        "}",
        "complete -o default -F _tierank tierank",
    )


def _zsh(commands: Sequence[Command]) -> str:
    first = [(one.place, one.help) for one in commands if " " not in one.place]
    values = [
        f"    {_patterns(one.place, option)}) compadd -- {' '.join(map(_quoted, option.values))}; return ;;"
        for one in commands
        for option in one.options
        if option.values
    ]
    options = [
        f"      {_quoted(one.place)}) all=({_described((n, o.help) for o in one.options for n in o.names)}) ;;"
        for one in commands
    ]
    words = [
        f"      {_quoted(one.place)}) compadd -- {' '.join(map(_quoted, one.words))} ;;"
        for one in commands
        if one.words
    ]
    return _lines(
        "#compdef tierank",
        "# Completion for tierank, made by: tierank completion zsh",
        "_tierank() {",
        '  local word="${words[CURRENT]}" before="${words[CURRENT-1]}" place="" each',
        "  local -a all",
        *_walked('"${words[@]:1:$((CURRENT-2))}"', commands),
        '  case "$place $before" in',
        *values,
        "  esac",
        '  if [[ "$word" == -* ]]; then',
        '    case "$place" in',
        *options,
        "    esac",
        "    _describe option all",
        '  elif [[ -z "$place" ]]; then',
        f"    all=({_described(first)})",
        "    _describe command all",
        "  else",
        '    case "$place" in',
        *words,
        "    esac",
        "    _files",
        "  fi",
        "}",
        'if [[ "$funcstack[1]" == "_tierank" ]]; then _tierank "$@"; else compdef _tierank tierank; fi',
    )


def _fish(commands: Sequence[Command]) -> str:
    lines = ["# Completion for tierank, made by: tierank completion fish"]
    for one in commands:
        *above, name = one.place.split()
        inside = " ".join(f"__fish_seen_subcommand_from {word};" for word in one.place.split()).rstrip(";")
        where = "__fish_use_subcommand" if not above else f"__fish_seen_subcommand_from {' '.join(above)}"
        lines.append(f"complete -c tierank -n {_quoted(where)} -a {name} -d {_quoted(_short(one.help))}")
        condition = _quoted(inside.replace("; ", "; and "))
        if one.words:
            lines.append(f"complete -c tierank -n {condition} -a {_quoted(' '.join(one.words))}")
        for option in one.options:
            flags = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            known = f" -x -a {_quoted(' '.join(option.values))}" if option.values else " -r" * option.takes_value
            lines.append(f"complete -c tierank -n {condition} {flags}{known} -d {_quoted(_short(option.help))}")
    return _lines(*lines)


_SHELLS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}


def _walked(words: str, commands: Sequence[Command]) -> list[str]:
    """The lines that find the command in the words before the cursor."""
    places = [
        f'      "{above} {name}") place={_quoted(one.place)} ;;' for one in commands for above, name in [_cut(one)]
    ]
    return [f"  for each in {words}; do", '    case "$place $each" in', *places, "    esac", "  done"]


def _cut(command: Command) -> tuple[str, str]:
    above, _, name = command.place.rpartition(" ")
    return above, name


def _patterns(place: str, option: Option) -> str:
    return "|".join(_quoted(f"{place} {name}") for name in option.names)


def _listed(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


def _described(pairs: Iterable[tuple[str, str]]) -> str:
    return " ".join(_quoted(f"{name}:{_short(text).replace(':', ' ')}") for name, text in pairs)


def _short(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("%%", "%")[:70]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _lines(*lines: str) -> str:
    return "\n".join(lines) + "\n"
