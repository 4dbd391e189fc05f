"""Pages of the site that are made from the code: commands, settings, changelog. MkDocs calls ``on_files``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Options that most commands share; the page has them once.
_READING = "how data are read"


def make_pages() -> dict[str, str]:
    """The text of each page, by its name in the docs folder."""
    return {"commands.md": make_commands(), "settings.md": make_settings(), "changelog.md": make_changelog()}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those of the docs folder."""
    from mkdocs.structure.files import File

    for name, text in make_pages().items():
        files.append(File.generated(config, name, content=text))
    return files


# The command line


def make_commands() -> str:
    """A section per command, from its parser."""
    from tierank.cli import make_parser

    commands = _commands_of(make_parser())
    lines = [
        "# Command line",
        "",
        "`tierank COMMAND --help` prints the same. Exit codes: 0 for success; 2 for a user error, explained in one line"
        " on standard error; 3 if one of several processes lost contact with the others; 130 after Ctrl-C.",
        "",
        *_list(commands, ""),
    ]
    for name, command in commands.choices.items():
        lines += _section(name, command)
    reading = next(group for group in commands.choices["describe"]._action_groups if group.title == _READING)
    lines += ["", f"## {_READING.capitalize()}", "", "Options of every command that reads data.", "", *_table(reading)]
    return "\n".join(lines) + "\n"


def _commands_of(parser: argparse.ArgumentParser) -> Any:
    """The action that holds the commands of a parser; None if it has none."""
    return next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)


def _list(commands: Any, before: str) -> list[str]:
    """A table of commands; ``before`` are the words before their names."""
    named = {f"{before}{one.dest}": _cell(one.help) for one in commands._choices_actions}
    rows = [f"| [`{name}`](#{name.replace(' ', '-')}) | {what} |" for name, what in named.items()]
    return ["| command | |", "|---|---|", *rows]


def _section(name: str, command: argparse.ArgumentParser, level: str = "##") -> list[str]:
    """A command, and the commands inside it."""
    lines = ["", f"{level} {name}", "", _cell(command.description), "", "```", _usage(command, name), "```"]
    commands = _commands_of(command)
    for group in command._action_groups:
        if group.title == _READING:
            lines += ["", f"Also the [options on how data are read](#{_READING.replace(' ', '-')})."]
        elif commands in group._group_actions:
            lines += ["", *_list(commands, f"{name} ")]
        elif table := _table(group):
            lines += ["", *table]
    if command.epilog:
        lines += ["", "Example:", "", "```", command.epilog.removeprefix("Example: "), "```"]
    for word, inner in {} if commands is None else commands.choices.items():
        lines += _section(f"{name} {word}", inner, level + "#")
    return lines


def _table(group: argparse._ArgumentGroup) -> list[str]:
    rows = [_option(one) for one in group._group_actions if one.dest != "help"]
    return [f"| {_cell(group.title).lower()} | |", "|---|---|", *rows] if rows else []


def _usage(command: argparse.ArgumentParser, name: str) -> str:
    """Arguments and needed options: the others stand in the table."""
    words = ["tierank", name]
    for one in command._actions:
        if not one.option_strings:
            many = " ..." if one.nargs in ("*", "+") else ""
            words.append(f"[{_metavar(one)}{many}]" if one.nargs in ("*", "?") else f"{_metavar(one)}{many}")
        elif one.required:
            words.append(f"{one.option_strings[0]} {_metavar(one)}")
    return " ".join([*words, "[options]"])


def _option(one: argparse.Action) -> str:
    value = "" if one.nargs == 0 else f" {_metavar(one)}"
    shown = f"{', '.join(one.option_strings)}{value}".strip() if one.option_strings else _metavar(one)
    return f"| `{shown.replace('|', chr(92) + '|')}` | {_cell((one.help or '') % vars(one) if one.help else '')} |"


def _metavar(one: argparse.Action) -> str:
    return str(one.metavar or (one.dest.upper() if one.option_strings else one.dest))


# The settings of rankers


def make_settings() -> str:
    """A table per ranker; what all trees share with LightGBM stands once."""
    import tierank

    rankers = {**tierank.RANKERS, "": tierank.NetworkRanker, " ": tierank.TreeRanker}
    lines = [
        "# Settings of rankers",
        "",
        "Settings are keyword arguments in Python, `tierank.UMart(n_trees=300)`, and `--set n_trees=300` on the command"
        " line. `tierank list settings umart` prints them too. An invalid value is rejected before training.",
    ]
    for name, ranker in rankers.items():
        title = f"{ranker.__name__}" + (f" (`{name}`)" if name.strip() else "")
        ours = {one: setting for one, setting in ranker.declared_settings().items() if not setting.group}
        lines += ["", f"## {title} {{ #{ranker.__name__} }}", "", *_settings_table(ours)]
        if issubclass(ranker, tierank.TreeRanker.__mro__[1]):
            lines += ["", "Also all of [LightGBM's parameters](#lightgbm)."]
        if ranker.PRESETS:
            lines += ["", f"Presets: {', '.join(f'`{preset}`' for preset in ranker.PRESETS)}; see `from_preset`."]
    shared = {one: setting for one, setting in tierank.UMart.declared_settings().items() if setting.group}
    lines += [
        "",
        "## LightGBM's parameters { #lightgbm }",
        "",
        "Settings of all tree rankers, under LightGBM's own names.",
        "",
        *_settings_table(shared),
    ]
    return "\n".join(lines) + "\n"


def _settings_table(settings: dict[str, Any]) -> list[str]:
    rows = [
        f"| `{name}` | `{_default(one.default)}` | {_cell(one.kind.expected)} | {_cell(one.help)} |"
        for name, one in settings.items()
    ]
    return ["| setting | default | values | meaning |", "|---|---|---|---|", *rows]


def _default(value: object) -> str:
    return repr(value) if not isinstance(value, type) else value.__name__


# The changelog


def make_changelog() -> str:
    """CHANGELOG.md, with links as seen from the docs folder."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return re.sub(r"\]\(docs/", "](", text)


def _cell(text: object) -> str:
    """Text that fits into a cell of a Markdown table."""
    return str(text or "").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
