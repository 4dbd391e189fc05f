"""``completion``: a script for a shell, from the declared commands."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Iterator

from tierank.cli.commands import Argument, Command, command
from tierank.errors import ParameterError

# Words that can be completed, each with a line on it.
Words = Iterable[tuple[str, str]]


@command(
    "completion",
    "a script that completes commands, options and names in a shell",
    "completion bash > ~/.local/share/bash-completion/completions/tierank",
    Argument("shell SHELL", "bash, zsh or fish", values=lambda: list(_SHELLS)),
)
def completion(options: argparse.Namespace) -> None:
    """Print the script."""
    from tierank.cli import TIERANK

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
