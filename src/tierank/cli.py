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
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait by spinning slow shared machines down
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
    demo.add_argument("--queries", type=int, default=500, help="how many queries to generate (default: 500)")
    demo.add_argument("--seed", type=int, default=0)
    demo.set_defaults(run=_demo)

    describe = commands.add_parser("describe", help="queries, documents, features, ratings of a data set")
    _add_data(describe, "a data file, or a folder of folds (all of it is described)")
    describe.add_argument("--json", action="store_true", help="machine-readable output")
    describe.set_defaults(run=_describe)

    train = commands.add_parser("train", help="fit a ranker and save it as a folder")
    train.add_argument("ranker", metavar="RANKER", help="urank, uboost, umart, urboost, lambdamart, listnet, ...")
    train.add_argument("--train", dest="data", required=True, metavar="F", help="training data")
    train.add_argument("--valid", metavar="F", help="validation data: keeps the best round, and stops in time")
    train.add_argument("--out", type=Path, required=True, metavar="MODEL", help="folder for the model")
    train.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; may be given several times"
    )
    train.add_argument("--resume", action="store_true", help="go on from MODEL.checkpoint, where a run was interrupted")
    _add_reading(train)
    train.set_defaults(run=_train)

    predict = commands.add_parser("predict", help="scores of a model, one per document")
    predict.add_argument("model", metavar="MODEL", help="a folder that train wrote")
    _add_data(predict)
    predict.add_argument("--out", type=Path, metavar="F", help="write there (default: standard output)")
    predict.add_argument("--k", type=int, help="instead of scores, the best k documents of each query as a table")
    predict.set_defaults(run=_predict)

    evaluate = commands.add_parser("evaluate", help="judge scores or a model by the ratings of a data set")
    _add_data(evaluate)
    evaluate.add_argument(
        "scores", metavar="SCORES|MODEL", help="a number per line, RankLib scores, a TREC run, .npy, or a model folder"
    )
    _add_judging(evaluate)
    evaluate.add_argument("--per-query", type=Path, metavar="F", help="also write a CSV file with a row per query")
    evaluate.set_defaults(run=_evaluate)

    compare = commands.add_parser("compare", help="judge several scores side by side, with significance")
    _add_data(compare)
    compare.add_argument(
        "scores", nargs="+", metavar="NAME=SCORES", help="a name and its score file or model folder, twice or more"
    )
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
    _add_reading(parser)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how data are read")
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


def _read(options: argparse.Namespace, path: str | None = None, n_features: int | None = None) -> RankingDataset:
    from tierank.readers import read

    names = ("format", "query", "rating", "document", "zero_based", "cache")
    settings = {name: getattr(options, name) for name in names}
    return read(path or options.data, n_features=n_features, **settings)


def _scores(source: str, data: RankingDataset) -> Any:
    """The scores of a file, or those that a model gives."""
    from tierank.readers import read_scores

    if Path(source).is_dir():
        from tierank.rankers import load

        return load(source).predict(data)
    return read_scores(source, data)


def _demo(options: argparse.Namespace) -> None:
    from tierank.experiments import run_demo
    from tierank.report import tabulate_comparison, tabulate_description

    demo = run_demo(options.out, n_queries=options.queries, seed=options.seed, say=_say)
    _print_table(tabulate_description(demo.description, "Training data"))
    _print_table(tabulate_comparison(demo.comparison, "Test queries"))
    folder = demo.folder
    print("The same by hand, and on data of your own:")
    print(f"  tierank describe {folder / 'train.txt'}")
    print(
        f"  tierank train umart --train {folder / 'train.txt'} --valid {folder / 'valid.txt'} --out {folder / 'mine'}"
    )
    print(f"  tierank predict {folder / 'mine'} {folder / 'test.txt'} --out {folder / 'mine.scores'}")
    print(f"  tierank compare {folder / 'test.txt'} lambdamart={folder / 'lambdamart'} mine={folder / 'mine.scores'}")


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


def _train(options: argparse.Namespace) -> None:
    import shutil

    from tierank.rankers import RANKERS
    from tierank.rankers.base import settings_of

    if options.ranker not in RANKERS:
        raise ParameterError.unknown("ranker", options.ranker, RANKERS)
    given = {name: _value(text) for name, text in _named(options.set, "NAME=VALUE, such as n_trees=200").items()}
    ranker = RANKERS[options.ranker](**settings_of(RANKERS[options.ranker], given))
    checkpoint = options.out.with_name(options.out.name + ".checkpoint")
    if checkpoint.exists() and not options.resume:
        shutil.rmtree(checkpoint)
    train = _read(options)
    valid = None if options.valid is None else _read(options, options.valid, _width(train))
    ranker.fit(train, valid=valid, checkpoint=checkpoint, progress=True)
    ranker.save(options.out)
    shutil.rmtree(checkpoint, ignore_errors=True)
    best = "" if valid is None else " on validation data: " + ", ".join(f"{m} {v:.4f}" for m, v in ranker.best_.items())
    _say(f"wrote {options.out}{best}")


def _predict(options: argparse.Namespace) -> None:
    from tierank.files import replacing
    from tierank.rankers import load

    ranker = load(options.model)
    n_features = None if hasattr(ranker, "feature_names_in_") else ranker.n_features_in_
    data = _read(options, n_features=n_features)
    if options.k is None:
        lines = [f"{score!r}" for score in ranker.predict(data).tolist()]
    else:
        ranked = ranker.rank(data, k=options.k)
        columns = [column.tolist() for column in ranked]
        lines = ["query\trank\trow\tscore", *("\t".join(map(str, row)) for row in zip(*columns, strict=True))]
    text = "".join(f"{line}\n" for line in lines)
    if options.out is None:
        sys.stdout.write(text)
    else:
        with replacing(options.out) as fresh:
            fresh.write_text(text)


def _width(train: RankingDataset) -> int | None:
    """The width to read text at that goes with the training data; tables have names instead."""
    return None if train.feature_names is not None else train.n_features


def _value(text: str) -> Any:
    """A setting as JSON has it (numbers, lists, true, null), or else as it is written."""
    try:
        return json.loads(text)
    except ValueError:
        return None if text == "None" else text


def _evaluate(options: argparse.Namespace) -> None:
    from tierank.evaluation import evaluate
    from tierank.report import tabulate_evaluation, write_per_query

    data = _read(options)
    evaluation = evaluate(data, _scores(options.scores, data), options.metric, options.rule)
    if options.per_query:
        write_per_query(evaluation, options.per_query)
    _show(options, evaluation.to_dict(), [tabulate_evaluation(evaluation, options.scores)])


def _compare(options: argparse.Namespace) -> None:
    from tierank.evaluation import compare
    from tierank.report import tabulate_comparison, tabulate_contrasts

    files = _named(options.scores)
    data = _read(options)
    scores = {name: _scores(file, data) for name, file in files.items()}
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


def _named(pairs: list[str], form: str = "NAME=SCORES, such as new=new.scores") -> dict[str, str]:
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
