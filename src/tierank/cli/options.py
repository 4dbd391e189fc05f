"""Arguments that commands share, and how their values are read.

Names that callers mistype are checked before anything large is imported: rankers alone take a second.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tierank.cli.commands import Argument, integer, names, parameters
from tierank.cli.plugins import as_own, is_own
from tierank.errors import ParameterError

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


def ranker_name(text: str) -> str:
    """The name of a ranker, or of the caller's own class."""
    if text not in RANKERS and not is_own(text):
        raise ParameterError.unknown("ranker", text, RANKERS)
    return text


def target_name(text: str) -> str:
    """The name of a target; LightGBM is none, but ``as_target`` knows what to do."""
    if text.lower() not in (*TARGETS, "lightgbm", "lgb", "lgbm") and not is_own(text):
        raise ParameterError.unknown("target", text, TARGETS)
    return text


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


# Arguments


def _metric_names() -> list[str]:
    from tierank.metrics import METRICS

    return [f"{name}@10" for name in METRICS] + list(METRICS)


def _rule_names() -> list[str]:
    from tierank.metrics import RULES

    return list(RULES)


def _format_names() -> list[str]:
    from tierank.io import FORMATS

    return [name for name, form in FORMATS.items() if form.read is not None]


RANKER = Argument("ranker RANKER", "a name from: tierank list rankers", ranker_name, values=lambda: RANKERS)
MODEL = Argument("model MODEL", "a folder that train wrote", reads=MODEL_FOLDER)
SET = Argument("--set NAME=VALUE", "see: tierank list settings RANKER", named, action="append", default=[])
JSON = Argument("--json", "machine-readable output", bool)
SEED = Argument("--seed", "random seed", integer, default=0)


def data_argument(help: str = "a file: LETOR text, CSV, Parquet, ...; -: a pipe") -> Argument:
    """The argument DATA."""
    return Argument("data DATA", help, reads="a file")


_HEADING = "how data are read"
_COLUMNS = {
    "query": "column of query ids (default: qid, query or query_id)",
    "rating": "column of ratings (default: rating, label, relevance or grade)",
    "document": "column of document ids (default: document, document_id, docid or doc_id)",
    "row_weight": "column that says how much documents count (default: row_weight)",
    "query_weight": "column that says how much queries count (default: query_weight)",
}
READING = [
    Argument(
        "--format",
        "file format, if the ending does not say it: letor, csv, parquet, tierank",
        values=_format_names,
        heading=_HEADING,
    ),
    *(
        Argument(f"--{name.replace('_', '-')}-column NAME", help, dest=name, heading=_HEADING)
        for name, help in _COLUMNS.items()
    ),
    *parameters("io:read", _HEADING, features="A,B", ignore="A,B"),
    *parameters(
        "data/columns:Columns",
        _HEADING,
        categories="A,B",
        dates="A,B",
        date_parts="P,P",
        now="NAME",
        means="A,B",
        similarities="Q:D,...",
        measures="M,M",
        texts="Q:D,...",
    ),
    Argument("--zero-based", type=bool, of="io:read", heading=_HEADING),
    Argument(
        "--no-cache", "neither use nor write the binary cache", bool, dest="cache", default=True, heading=_HEADING
    ),
]


def judging(default_rule: str | None = "tierank") -> list[Argument]:
    """Options for metrics, rules and output."""
    return [
        Argument(
            "--metric M,M",
            "see: tierank list metrics; or your own function, as package.module:name"
            " (default: ndcg@1,ndcg@3,ndcg@5,ndcg@10,err@10)",
            metrics,
            action="extend",
            values=_metric_names,
        ),
        Argument(
            "--rule",
            "how ties, empty queries and gains count; see: tierank list rules"
            + ("" if default_rule else " (default: tierank; wsdm20 with --paper)"),
            rule_name,
            default=default_rule,
            values=_rule_names,
        ),
        Argument(
            "--unjudged {zero,condense}",
            "documents without a rating: not relevant, or taken out of the lists (default: as --rule says)",
            _unjudged,
            values=lambda: ["zero", "condense"],
        ),
        Argument("--json", "machine-readable output", bool, excludes="output"),
        Argument("--markdown", "tables in Markdown", bool, excludes="output"),
        Argument("--latex", "tables in LaTeX, for the package booktabs", bool, excludes="output"),
    ]


def _unjudged(text: str) -> str:
    if text not in ("zero", "condense"):
        raise ParameterError(expected="one of zero, condense", got=repr(text))
    return text


def rule_of(options: argparse.Namespace) -> Any:
    """The rule, as ``--unjudged`` changes it."""
    rule = options.rule
    if options.unjudged is None:
        return rule
    if rule is None:
        raise ParameterError(argument="unjudged", expected="`rule` too, as it changes the rule", got="none")
    name = rule.partition(":")[0]
    return name if options.unjudged == "zero" else f"{name}:{options.unjudged}"


def segments(default: str = "") -> list[Argument]:
    """Options for segments of queries; ``default`` says where attributes are by default."""
    where = f"a CSV or Parquet file with a query column and those of --by{default}"
    return [
        Argument("--by A,B", "also by segment: columns such as device,country", names, action="extend"),
        Argument("--attributes F", where, reads="a file"),
    ]
