"""Options that commands share."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Collection, Sequence
from itertools import pairwise, takewhile
from typing import Any, NoReturn

from tierank.cli.own import as_own
from tierank.errors import ParameterError

# How the last line of the help of a command begins.
_EXAMPLE = "Example: "


class _Help(argparse.HelpFormatter):
    """Help that can be copied: words are not broken at hyphens, and the example is one line."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_EXAMPLE) else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**{"formatter_class": _Help, **named})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options. Unknown ones are refused before missing ones, and by the command that does not have them."""
        if args is None:
            return super().parse_known_args(args, namespace)
        if self._subparsers is not None:  # the rest is for the command
            self._refuse_unknown(args[:1])
            return super().parse_known_args(args, namespace)
        self._refuse_unknown(args)
        self._refuse_empty(args)
        options, others = super().parse_known_args(args, namespace)
        if others:
            self.error(f"unrecognized arguments: {' '.join(others)}")
        return options, others

    def _refuse_unknown(self, args: Sequence[str]) -> None:
        known = [text for text in self._option_string_actions if text.startswith("--")]
        for text in takewhile(lambda text: text != "--", args):
            name = text.partition("=")[0]
            # argparse would accept abbreviated names, and take texts with spaces as values.
            if text.startswith("--") and " " not in text and not any(one.startswith(name) for one in known):
                _refuse_setting(self.prog, name, known)
                raise ParameterError.unknown(f"option of {self.prog}", name, known)

    def _refuse_empty(self, args: Sequence[str]) -> None:
        """An empty path would mean the current folder, and an empty name nothing."""
        for before, text in pairwise(["", *args]):
            option = before if not text else text.removesuffix("=")
            if not text or (text.startswith("--") and text.endswith("=")):
                after = f" after {option}" if option.startswith("--") else ""
                raise ParameterError(
                    f"{self.prog}: expected a value, got an empty text{after}; is a variable of the shell not set?"
                )

    def refuse_unused(self, options: argparse.Namespace, used: Collection[str], why: str) -> None:
        """Raise ``ParameterError`` for an option that is not among those that are used: it would have no effect."""
        for action in self._actions:
            is_given = getattr(options, action.dest, action.default) != action.default
            if action.option_strings and action.dest not in used and is_given:
                raise ParameterError(f"{action.option_strings[-1]}: expected {why}")

    def error(self, message: str) -> NoReturn:
        """Raise the error that ``main`` prints."""
        wrong = re.fullmatch(r"argument (\w+): invalid choice: '(.*)' \(choose from (.*)\)", message)
        if wrong is not None:
            known = [name.strip("' ") for name in wrong[3].split(",")]
            unknown = ParameterError.unknown(wrong[1].lower(), wrong[2], known)
            unknown.fix = f"see {self.prog} --help"
            raise unknown
        wrong = re.fullmatch(r"argument (\S+): invalid (\w+) value: (.*)", message, re.DOTALL)
        if wrong is not None:
            expected = {"int": "an integer", "float": "a number"}.get(wrong[2], "another value")
            raise ParameterError(f"{wrong[1]}: expected {expected}, got {wrong[3]}; see {self.prog} --help")
        wrong = re.fullmatch(r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", message, re.DOTALL)
        if wrong is not None:
            raise ParameterError(f"{wrong[1]}: expected one of {wrong[3]}, got {wrong[2]}; see {self.prog} --help")
        raise ParameterError(f"{message}; see {self.prog} --help")


def _refuse_setting(command: str, option: str, known: Collection[str]) -> None:
    """Say how a setting is given that was given as an option."""
    if "--set" not in known:
        return
    from tierank.rankers import RANKERS

    setting = option.lstrip("-").replace("-", "_")
    if any(setting in kind.declared_settings() for kind in RANKERS.values()):
        raise ParameterError(f"unknown option of {command} {option!r}: give settings by --set {setting}=...")


def add_command(commands: Any, name: str, what: str, example: str, *, has_quiet: bool = True) -> Parser:
    """A command with help and an example; ``has_quiet`` adds the option to print only results."""
    parser: Parser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=f"{_EXAMPLE}tierank {example}"
    )
    if has_quiet:
        parser.add_argument(
            "--quiet",
            dest="silent",
            action="store_true",
            help="print only results and errors: no progress, no warnings",
        )
    return parser


def add_data(parser: argparse.ArgumentParser, what: str = "a file: LETOR text, CSV, Parquet, ...; -: a pipe") -> None:
    """The argument DATA, and the options to read it."""
    parser.add_argument("data", metavar="DATA", help=what)
    add_reading(parser)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Options to read data."""
    group = parser.add_argument_group("how data are read")
    group.add_argument("--format", help="file format, if the ending does not say it: letor, csv, parquet, tierank")
    group.add_argument(
        "--query-column", dest="query", metavar="NAME", help="column of query ids (default: qid, query or query_id)"
    )
    group.add_argument(
        "--rating-column",
        dest="rating",
        metavar="NAME",
        help="column of ratings (default: rating, label, relevance or grade)",
    )
    group.add_argument(
        "--document-column",
        dest="document",
        metavar="NAME",
        help="column of document ids (default: document, document_id, docid or doc_id)",
    )
    for what, counted in (("row", "documents"), ("query", "queries")):
        group.add_argument(
            f"--{what}-weight-column",
            dest=f"{what}_weight",
            metavar="NAME",
            help=f"column that says how much {counted} count (default: {what}_weight)",
        )
    group.add_argument(
        "--features", type=_columns, metavar="A,B", help="columns of a table to learn from (default: all others)"
    )
    group.add_argument("--ignore", type=_columns, metavar="A,B", help="columns of a table to leave out")
    group.add_argument("--categories", type=_columns, metavar="A,B", help="columns of a table that hold categories")
    group.add_argument("--dates", type=_columns, metavar="A,B", help="columns of a table that hold dates as texts")
    group.add_argument(
        "--date-parts", type=_columns, metavar="P,P", help="features of dates: age, month, weekday, hour"
    )
    group.add_argument("--now", metavar="NAME", help="the date from which ages are counted, row by row")
    group.add_argument("--means", type=_columns, metavar="A,B", help="columns of texts to encode as mean ratings")
    group.add_argument(
        "--similarities", type=_pairs, metavar="Q:D,...", help="columns with vectors of queries and of documents"
    )
    group.add_argument(
        "--measures", type=_columns, metavar="M,M", help="similarities to compute: cosine, dot, distance"
    )
    group.add_argument("--texts", type=_pairs, metavar="Q:D,...", help="columns with texts of queries and of documents")
    group.add_argument(
        "--zero-based", action="store_true", default=None, help="feature indices in text files start at 0"
    )
    group.add_argument("--no-cache", dest="cache", action="store_false", help="neither use nor write the binary cache")


def _columns(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _pairs(text: str) -> list[list[str]]:
    return [pair.split(":") for pair in _columns(text)]


def _metrics(text: str) -> list[Any]:
    """Metrics by name, callers' own as functions; commas and repeated options both work."""
    try:
        return [as_own(name) for name in _columns(text)]
    except ParameterError as error:  # argparse would replace the message of a ValueError
        raise argparse.ArgumentTypeError(str(error)) from None


def add_judging(parser: argparse.ArgumentParser, default_rule: str | None = "tierank") -> None:
    """Options for metrics, rules and output."""
    parser.add_argument(
        "--metric",
        action="extend",
        metavar="M,M",
        type=_metrics,
        help="see: tierank list metrics; or your own function, as package.module:name"
        " (default: ndcg@1,ndcg@3,ndcg@5,ndcg@10,err@10)",
    )
    parser.add_argument(
        "--rule",
        default=default_rule,
        help="how ties, empty queries and gains count; see: tierank list rules"
        f" (default: {default_rule or 'tierank; wsdm20 with --paper'})",
    )
    parser.add_argument(
        "--unjudged",
        choices=("zero", "condense"),
        help="documents without a rating: not relevant, or taken out of the lists (default: as --rule says)",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="machine-readable output")
    output.add_argument("--markdown", action="store_true", help="tables in Markdown")
    output.add_argument("--latex", action="store_true", help="tables in LaTeX, for the package booktabs")


def check_judging(options: argparse.Namespace) -> None:
    """The rule with the choice for unjudged documents. Raises ``ParameterError`` for an unknown metric or rule.

    Nothing has been read yet.
    """
    from tierank.metrics import as_rule, parse_metric

    for metric in options.metric or ():
        if isinstance(metric, str):
            parse_metric(metric)
    if options.rule is not None:
        as_rule(options.rule)
    if options.unjudged is not None:
        if options.rule is None:
            raise ParameterError("--unjudged: expected --rule too, as it changes the rule, got none")
        name = options.rule.partition(":")[0]
        options.rule = name if options.unjudged == "zero" else f"{name}:{options.unjudged}"


def add_segments(parser: argparse.ArgumentParser, *, has_data: bool = True) -> None:
    """Options for segments of queries; the attributes may be in the data, if a command reads data."""
    parser.add_argument(
        "--by", action="extend", type=_columns, metavar="A,B", help="also by segment: columns such as device,country"
    )
    where = "a CSV or Parquet file with a query column and those of --by"
    parser.add_argument("--attributes", metavar="F", help=f"{where} (default: DATA)" if has_data else where)


def named_pairs(pairs: list[str], form: str = "NAME=SCORES, such as new=new.scores") -> dict[str, str]:
    """``NAME=...`` arguments as a mapping."""
    files: dict[str, str] = {}
    for pair in pairs:
        name, equals, file = pair.partition("=")
        if not (name and equals and file):
            raise ParameterError(f"expected {form}, got {pair!r}")
        if name in files:
            raise ParameterError(f"expected each name once, got {name!r} twice")
        files[name] = file
    return files
