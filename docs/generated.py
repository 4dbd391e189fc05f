"""Pages of the site that are made from the code: commands, settings, changelog. MkDocs calls ``on_files``."""

from __future__ import annotations

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
    """A section per command, from its declaration."""
    from tierank.cli import TIERANK

    lines = [
        "# Command line",
        "",
        "`tierank COMMAND --help` prints the same. Exit codes: 0 for success; 2 for a user error, explained in one line"
        " on standard error; 3 if one of several processes lost contact with the others; 130 after Ctrl-C.",
        "",
        *_list(TIERANK.commands, ""),
    ]
    for name, command in TIERANK.walk():
        lines += [
            "",
            f"{'##' + '#' * name.count(' ')} {name}",
            "",
            f"{_cell(command.help[0].upper() + command.help[1:])}.",
        ]
        lines += ["", "```", _usage(command, name), "```"]
        if command.commands:
            lines += ["", *_list(command.commands, f"{name} ")]
        headings = dict.fromkeys(one.heading for one in command.arguments)
        for heading in headings:
            if heading == _READING:
                lines += ["", f"Also the [options on how data are read](#{_READING.replace(' ', '-')})."]
            else:
                given = [one for one in command.arguments if one.heading == heading]
                positional = [one for one in given if not one.is_option]
                lines += _table("arguments", positional)
                lines += _table(heading or "options", [one for one in given if one.is_option])
        lines += ["", "Example:", "", "```", command.example, "```"]
    describe = next(one for one in TIERANK.commands if one.name == "describe")
    lines += ["", f"## {_READING.capitalize()}", "", "Options of every command that reads data."]
    lines += _table(_READING, [one for one in describe.arguments if one.heading == _READING])
    return "\n".join(lines) + "\n"


def _list(commands: Any, before: str) -> list[str]:
    """A table of commands; ``before`` are the words before their names."""
    named = {f"{before}{one.name}": _cell(one.help) for one in commands}
    rows = [f"| [`{name}`](#{name.replace(' ', '-')}) | {what} |" for name, what in named.items()]
    return ["| command | |", "|---|---|", *rows]


def _table(title: str, arguments: Any) -> list[str]:
    rows = [_option(one) for one in arguments]
    return ["", f"| {_cell(title).lower()} | |", "|---|---|", *rows] if rows else []


def _usage(command: Any, name: str) -> str:
    """Arguments and needed options: the others stand in the table."""
    words = ["tierank", name]
    for one in command.arguments:
        nargs = one.settings.get("nargs")
        if not one.is_option:
            many = " ..." if nargs in ("*", "+") else ""
            words.append(f"[{one.metavar}{many}]" if nargs in ("*", "?") else f"{one.metavar}{many}")
        elif one.settings.get("required"):
            words.append(f"{one.flag} {one.metavar}")
    return " ".join([*words, *["COMMAND"] * bool(command.commands), "[options]"])


def _option(one: Any) -> str:
    shown = one.metavar if not one.is_option else one.flag if one.is_switch else f"{one.flag} {one.metavar}"
    return f"| `{shown.replace('|', chr(92) + '|')}` | {_cell(one.settings['help'].replace('%%', '%'))} |"


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
