"""The command line: parse, call, print.

Exit 0: done. Exit 2: the caller can fix it, and one line on standard error says how. Anything else is our bug.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tierank import __version__
from tierank.errors import ParameterError, TierankError

# Everything else is imported by the command that needs it, so that help answers at once.
if TYPE_CHECKING:
    from tierank.dataset import RankingDataset
    from tierank.report import Table


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        options = _parser().parse_args(argv)
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("tierank: stopped", file=sys.stderr)
        return 130
    except (TierankError, OSError) as error:
        print(f"tierank: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise ParameterError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tierank", description="Learning to rank by unique ratings.")
    parser.add_argument("--version", action="version", version=f"tierank {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)

    demo = commands.add_parser("demo", help="the main job on generated data, start to end")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder for the files it makes (default: demo)")
    demo.add_argument("--queries", type=int, default=400, help="how many queries to generate (default: 400)")
    demo.add_argument("--seed", type=int, default=0)
    demo.set_defaults(run=_demo)

    describe = commands.add_parser("describe", help="queries, documents, features, ratings of a data set")
    _add_data(describe, "a data file, or a folder of folds (all of it is described)")
    describe.add_argument("--json", action="store_true", help="machine-readable output")
    describe.set_defaults(run=_describe)

    evaluate = commands.add_parser("evaluate", help="judge scores by the ratings of a data set")
    _add_data(evaluate)
    evaluate.add_argument("scores", metavar="SCORES", help="a number per line, RankLib scores, a TREC run, or .npy")
    _add_judging(evaluate)
    evaluate.add_argument("--per-query", type=Path, metavar="F", help="also write a CSV file with a row per query")
    evaluate.set_defaults(run=_evaluate)

    compare = commands.add_parser("compare", help="judge several scores side by side, with significance")
    _add_data(compare)
    compare.add_argument("scores", nargs="+", metavar="NAME=SCORES", help="a name and its score file, twice or more")
    compare.add_argument("--baseline", metavar="NAME", help="what the others are compared to (default: the first)")
    _add_judging(compare)
    compare.add_argument("--seed", type=int, default=0, help="of the bootstrap (default: 0)")
    compare.set_defaults(run=_compare)

    convert = commands.add_parser("convert", help="between LETOR text, CSV, Parquet, TREC files and binary folders")
    _add_data(convert)
    convert.add_argument(
        "out", type=Path, metavar="OUT", help="its ending says the form: .txt .csv .parquet .qrels .run ..."
    )
    convert.add_argument("--scores", metavar="SCORES", help="the scores of a TREC run (OUT ends in .run)")
    convert.set_defaults(run=_convert)
    return parser


def _add_data(parser: argparse.ArgumentParser, what: str = "a data file: LETOR text, CSV, Parquet, ...") -> None:
    parser.add_argument("data", metavar="DATA", help=what)
    group = parser.add_argument_group("reading DATA")
    group.add_argument("--format", help="its form, where the ending does not say: letor, csv, parquet, tierank")
    group.add_argument("--query-column", dest="query", metavar="NAME", help="of a table (default: qid or query)")
    group.add_argument("--rating-column", dest="rating", metavar="NAME", help="of a table (default: rating or label)")
    group.add_argument(
        "--document-column", dest="document", metavar="NAME", help="of a table (default: document or docid)"
    )
    group.add_argument("--zero-based", action="store_true", default=None, help="feature indices of text count from 0")
    group.add_argument("--no-cache", dest="cache", action="store_false", help="neither use nor write the binary cache")


def _add_judging(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metric", action="append", metavar="M", help="such as ndcg@10, err@10, map, mrr; may be given several times"
    )
    parser.add_argument("--rule", default="tierank", help="how ties, empty queries and gains count (default: tierank)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="machine-readable output")
    output.add_argument("--markdown", action="store_true", help="tables in Markdown")


def _read(options: argparse.Namespace) -> RankingDataset:
    from tierank.readers import read

    names = ("format", "query", "rating", "document", "zero_based", "cache")
    return read(options.data, **{name: getattr(options, name) for name in names})


def _demo(options: argparse.Namespace) -> None:
    from tierank.experiments import run_demo
    from tierank.report import tabulate_comparison, tabulate_description

    demo = run_demo(options.out, n_queries=options.queries, seed=options.seed, say=_say)
    _print_table(tabulate_description(demo.description, "Training data"))
    _print_table(tabulate_comparison(demo.comparison, "Test queries"))
    test, folder = demo.folder / "test.txt", demo.folder
    print("The same by hand, and on data of your own:")
    print(f"  tierank describe {demo.folder / 'train.txt'}")
    print(f"  tierank evaluate {test} {folder / 'linear.scores'} --metric ndcg@10 --metric map")
    print(f"  tierank compare {test} feature={folder / 'best-feature.scores'} linear={folder / 'linear.scores'}")


def _describe(options: argparse.Namespace) -> None:
    from tierank.dataset import RankingDataset
    from tierank.description import describe
    from tierank.readers import is_folder_of_folds, read_fold
    from tierank.report import tabulate_description

    if is_folder_of_folds(options.data):
        data = RankingDataset.concat(read_fold(options.data, 1, cache=options.cache))  # the three parts are all of it
    else:
        data = _read(options)
    found = describe(data)
    if options.json:
        _print_json(found.to_dict())
    else:
        _print_table(tabulate_description(found, str(options.data)))


def _evaluate(options: argparse.Namespace) -> None:
    from tierank.evaluation import evaluate
    from tierank.readers import read_scores
    from tierank.report import tabulate_evaluation, write_per_query

    data = _read(options)
    evaluation = evaluate(data, read_scores(options.scores, data), options.metric, options.rule)
    if options.per_query:
        write_per_query(evaluation, options.per_query)
    _show(options, evaluation.to_dict(), [tabulate_evaluation(evaluation, options.scores)])


def _compare(options: argparse.Namespace) -> None:
    from tierank.evaluation import compare
    from tierank.readers import read_scores
    from tierank.report import tabulate_comparison, tabulate_contrasts

    files = _named(options.scores)
    data = _read(options)
    scores = {name: read_scores(file, data) for name, file in files.items()}
    comparison = compare(data, scores, options.baseline, options.metric, options.rule, seed=options.seed)
    _show(options, comparison.to_dict(), [tabulate_comparison(comparison), tabulate_contrasts(comparison)])


def _convert(options: argparse.Namespace) -> None:
    from tierank.readers import read_scores, write, write_run

    is_run = options.out.suffix == ".run"
    if is_run != (options.scores is not None):
        raise ParameterError("expected --scores with an OUT that ends in .run, and only with it")
    data = _read(options)
    if is_run:
        write_run(options.out, data, read_scores(options.scores, data))
    else:
        write(data, options.out)
    _say(f"wrote {options.out}: {data}")


def _named(pairs: list[str]) -> dict[str, str]:
    """``NAME=FILE`` arguments as a mapping."""
    files: dict[str, str] = {}
    for pair in pairs:
        name, equals, file = pair.partition("=")
        if not (name and equals and file):
            raise ParameterError(f"expected NAME=SCORES, such as new=new.scores, got {pair!r}")
        if name in files:
            raise ParameterError(f"expected each name once, got {name!r} twice")
        files[name] = file
    return files


def _show(options: argparse.Namespace, content: dict[str, Any], tables: list[Table]) -> None:
    if options.json:
        _print_json(content)
    for table in tables if not options.json else []:
        if options.markdown:
            print(table.to_markdown())
        else:
            _print_table(table)


def _print_table(table: Table) -> None:
    print(table.to_text(terminal=sys.stdout.isatty() and "NO_COLOR" not in os.environ))


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=2, allow_nan=False))


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
