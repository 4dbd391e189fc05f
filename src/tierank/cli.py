"""The command line: parse, call, print.

Exit 0: done. Exit 2: the caller can fix it, and one line on standard error says how. Exit 3: one of several processes
that was left alone by the others. Anything else is our bug.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tierank import __version__
from tierank.console import PIPE, Pipes, check_place, line_of, made, say
from tierank.errors import LEFT_ALONE, DataError, ParameterError, TeamError, TierankError
from tierank.files import replacing

# Everything else is imported by the command that needs it, so that help answers at once.
if TYPE_CHECKING:
    from tierank.dataset import RankingDataset
    from tierank.experiments import Run
    from tierank.rankers import Ranker
    from tierank.report import Table
    from tierank.team import Team


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait by spinning slow shared machines down
    if isinstance(sys.stdout, io.TextIOWrapper):  # what goes to a pipe is what --out writes, in every locale
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    pipes = Pipes()
    try:
        arguments = list(sys.argv[1:] if argv is None else argv)
        options = _parser().parse_args(arguments)
        options.arguments, options.pipes = arguments, pipes
        with pipes:
            options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("tierank: stopped", file=sys.stderr)
        return 130
    except (TierankError, OSError) as error:
        print(f"tierank: {pipes.named(line_of(error))}", file=sys.stderr)
        return LEFT_ALONE if isinstance(error, TeamError) else 2
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise ParameterError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tierank", description="Learning to rank by unique ratings.")
    parser.add_argument("--version", action="version", version=f"tierank {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)

    demo = _add_command(commands, "demo", "the main job on generated data, start to end", "demo --queries 200")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder for the files it makes (default: demo)")
    demo.add_argument("--queries", type=int, default=800, help="how many queries to generate (default: 800)")
    demo.add_argument("--seed", type=int, default=0)
    demo.set_defaults(run=_demo)

    describe = _add_command(
        commands,
        "describe",
        "queries, documents, features, ratings of a data set",
        "describe train.txt --html train.html --test test.txt",
    )
    _add_data(describe, "a data file, or a folder of folds (all of it is described)")
    describe.add_argument("--json", action="store_true", help="machine-readable output")
    describe.add_argument("--html", type=Path, metavar="F", help="write a page: histograms, features, what looks wrong")
    describe.add_argument("--test", metavar="F", help="a second data set: what drifts between the two (with --html)")
    describe.set_defaults(run=_describe)

    train = _add_command(
        commands,
        "train",
        "fit a ranker and save it as a folder",
        "train umart --train train.csv --valid valid.csv --ignore title,url --set n_trees=300 --out model",
    )
    train.add_argument("ranker", metavar="RANKER", help="a name of: tierank list rankers")
    train.add_argument("--train", dest="data", required=True, metavar="F", help="training data")
    train.add_argument("--valid", metavar="F", help="validation data: keeps the best round, and stops in time")
    train.add_argument("--out", type=Path, required=True, metavar="MODEL", help="folder for the model")
    train.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="see: tierank list settings RANKER",
    )
    train.add_argument("--settings", type=Path, metavar="F", help="a JSON file of settings, such as tune writes")
    train.add_argument("--resume", action="store_true", help="go on from MODEL.checkpoint, where a run was interrupted")
    train.add_argument(
        "--ranks", type=int, default=1, metavar="N", help="train in N processes of this machine (torchrun: of several)"
    )
    train.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds that processes wait for each other"
    )
    _add_reading(train)
    train.set_defaults(run=_train)

    predict = _add_command(
        commands,
        "predict",
        "scores of a model, one per document",
        "predict model test.csv --k 10 --out top.tsv",
    )
    predict.add_argument("model", metavar="MODEL", help="a folder that train wrote")
    _add_data(predict)
    predict.add_argument("--out", type=Path, metavar="F", help="write there (default, or -: standard output)")
    predict.add_argument("--k", type=int, help="instead of scores, the best k documents of each query as a table")
    predict.set_defaults(run=_predict)

    export = _add_command(
        commands,
        "export",
        "a model in the form of another engine, and the proof of it",
        "export model --to onnx --out model.onnx --verify test.txt",
    )
    export.add_argument("model", metavar="MODEL", help="a folder that train wrote")
    export.add_argument(
        "--to", required=True, metavar="TARGET", help="onnx, elasticsearch, opensearch, solr, vespa or c"
    )
    export.add_argument("--out", type=Path, required=True, metavar="F", help="file, or folder for a search engine")
    export.add_argument("--verify", metavar="DATA", help="score these data there and here, and compare")
    _add_reading(export)
    export.set_defaults(run=_export)

    evaluate = _add_command(
        commands,
        "evaluate",
        "judge scores or a model by the ratings of a data set",
        "evaluate test.txt model --metric ndcg@10 --metric err@10 --per-query queries.csv",
    )
    _add_data(evaluate)
    evaluate.add_argument(
        "scores",
        metavar="SCORES|MODEL",
        help="a number per line, RankLib scores, a TREC run, .npy, a model folder; -: a pipe",
    )
    _add_judging(evaluate)
    evaluate.add_argument(
        "--per-query", type=Path, metavar="F", help="also write a CSV file with a row per query; -: print that alone"
    )
    evaluate.set_defaults(run=_evaluate)

    compare = _add_command(
        commands,
        "compare",
        "judge several scores side by side, with significance",
        "compare test.txt old=old.scores new=model --metric ndcg@10",
    )
    _add_data(compare)
    compare.add_argument(
        "scores", nargs="+", metavar="NAME=SCORES", help="a name and its score file or model folder, twice or more"
    )
    compare.add_argument("--baseline", metavar="NAME", help="what the others are compared to (default: the first)")
    _add_judging(compare)
    compare.add_argument("--seed", type=int, default=0, help="of the bootstrap (default: 0)")
    compare.add_argument("--out", type=Path, metavar="FOLDER", help="keep it as a run, for tierank report")
    compare.set_defaults(run=_compare)

    cv = _add_command(
        commands,
        "cv",
        "several rankers on five folds with several seeds: the table of the paper",
        "cv lambdamart umart wide=urank,hidden=[200,100] --data OHSUMED --seeds 5 --out run",
    )
    cv.add_argument(
        "rankers",
        nargs="*",
        metavar="RANKER",
        help="urank, or with settings and a name of its own: wide=urank,hidden=[200,100]; none: show what FOLDER has",
    )
    cv.add_argument("--data", help="a folder with Fold1 to Fold5 or S1 to S5, or a file to be cut in five")
    cv.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="keeps all of it; run again to go on")
    cv.add_argument("--seeds", type=int, default=1, metavar="N", help="train with the seeds 0 to N - 1 (default: 1)")
    cv.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of all the rankers")
    cv.add_argument("--select", metavar="M,M", help="metrics that choose rounds on validation data, in this order")
    cv.add_argument(
        "--trials", type=int, metavar="N", help="tune each ranker in each fold: N settings on validation data"
    )
    cv.add_argument("--baseline", metavar="NAME", help="what the others are compared to (default: the first)")
    cv.add_argument(
        "--scores",
        action="append",
        default=[],
        metavar="NAME=F",
        help="scores of another tool, {fold} in the file name",
    )
    cv.add_argument("--paper", metavar="DATA", help="the paper's settings and rows: ohsumed, mq2007, mslr-web10k, ...")
    cv.add_argument("--protocol", default="standard", help="standard, or lightgbm: as the paper's last table; it leaks")
    cv.add_argument("--jobs", type=int, metavar="N", help="processes (default: one for each core)")
    _add_judging(cv, default_rule=None)
    _add_reading(cv)
    cv.set_defaults(run=_cv)

    tune = _add_command(
        commands,
        "tune",
        "settings of a ranker, chosen on validation data alone",
        "tune umart --data OHSUMED --fold 1 --trials 30 --set n_trees=300 --out umart.json",
    )
    tune.add_argument("ranker", metavar="RANKER", help="a name of: tierank list rankers, but for blend")
    tune.add_argument(
        "--data", required=True, metavar="FOLDER|F", help="a folder of folds (see --fold), or training data"
    )
    tune.add_argument("--valid", metavar="F", help="validation data, where --data is a file")
    tune.add_argument("--fold", type=int, default=1, help="whose training and validation data are used (default: 1)")
    tune.add_argument("--trials", type=int, default=20, metavar="N", help="how many settings to try (default: 20)")
    tune.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting that stays as it is")
    tune.add_argument(
        "--out", type=Path, required=True, metavar="F", help="JSON for train --settings; trials beside it"
    )
    tune.add_argument("--seed", type=int, default=0)
    _add_reading(tune)
    tune.set_defaults(run=_tune)

    report = _add_command(
        commands,
        "report",
        "the page of a cv, compare or demo run: one HTML file",
        "report run --out run.html",
    )
    report.add_argument("folder", metavar="RUN", help="the folder of the run")
    report.add_argument("--out", type=Path, metavar="F.html", help="write there (default: RUN/report.html)")
    report.add_argument("--titles", type=Path, metavar="F.csv", help="columns query, document, title: names to show")
    report.set_defaults(run=_report)

    explain = _add_command(
        commands,
        "explain",
        "why a model puts one document above another",
        "explain model test.txt --query 84 --above 1 --below 2",
    )
    explain.add_argument("model", metavar="MODEL", help="a folder that train wrote")
    _add_data(explain)
    explain.add_argument("--query", dest="query_id", required=True, metavar="Q", help="its id")
    explain.add_argument("--above", required=True, metavar="A", help="a document: its id, or its row in the query")
    explain.add_argument("--below", required=True, metavar="B", help="the other document")
    explain.add_argument("--top", type=int, default=10, metavar="N", help="features to name (default: 10)")
    explain.add_argument("--json", action="store_true", help="machine-readable output, all features")
    explain.add_argument("--out", type=Path, metavar="F", help="also draw it, to a file that ends in .svg or .png")
    explain.set_defaults(run=_explain)

    serve = _add_command(
        commands, "serve", "scores of models over HTTP", "serve models/products --port 8080 --workers 2 --watch 5"
    )
    serve.add_argument(
        "models", nargs="+", metavar="[NAME=]MODEL", help="a folder that train wrote; its name, where none is given"
    )
    serve.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1, this machine)")
    serve.add_argument("--port", type=int, default=8080, help="0: any that is free (default: 8080)")
    serve.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default: 1)")
    serve.add_argument("--threads", type=int, metavar="N", help="that score in each process (default: one per core)")
    serve.add_argument("--watch", type=float, metavar="SECONDS", help="look so often for a new model; SIGHUP: at once")
    serve.add_argument("--max-bytes", type=int, default=16 << 20, metavar="N", help="of a request (default: 16777216)")
    serve.add_argument("--max-documents", type=int, default=10_000, metavar="N", help="of a request (default: 10000)")
    serve.add_argument(
        "--max-waiting", type=int, default=256, metavar="N", help="requests that wait for a thread (default: 256)"
    )
    log = serve.add_mutually_exclusive_group()
    log.add_argument("--json", action="store_true", help="the log as lines of JSON")
    log.add_argument("--quiet", action="store_true", help="log nothing but what goes wrong")
    serve.set_defaults(run=_serve)

    convert = _add_command(
        commands,
        "convert",
        "between LETOR text, CSV, Parquet, TREC files and binary folders",
        "convert train.txt train.parquet",
    )
    _add_data(convert)
    convert.add_argument(
        "out", type=Path, metavar="OUT", help="its ending says the form: .txt .csv .parquet .qrels .run ..."
    )
    convert.add_argument("--scores", metavar="SCORES", help="the scores of a TREC run (OUT ends in .run)")
    convert.set_defaults(run=_convert)

    names = _add_command(commands, "list", "names that can be chosen, with a line on each", "list settings umart")
    names.add_argument(
        "what", metavar="WHAT", help="rankers, settings, metrics, rules, transforms, networks, losses or targets"
    )
    names.add_argument("ranker", nargs="?", metavar="RANKER", help="whose settings")
    names.add_argument("--json", action="store_true", help="machine-readable output")
    names.set_defaults(run=_list)
    return parser


def _add_command(commands: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    """A command whose help says what it does, and shows it."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=f"Example: tierank {example}"
    )
    return parser


def _add_data(parser: argparse.ArgumentParser, what: str = "a file: LETOR text, CSV, Parquet, ...; -: a pipe") -> None:
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
    group.add_argument(
        "--features", type=_columns, metavar="A,B", help="columns of a table to learn from (default: all others)"
    )
    group.add_argument("--ignore", type=_columns, metavar="A,B", help="columns of a table to leave out")
    group.add_argument("--zero-based", action="store_true", default=None, help="feature indices of text count from 0")
    group.add_argument("--no-cache", dest="cache", action="store_false", help="neither use nor write the binary cache")


def _columns(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _add_judging(parser: argparse.ArgumentParser, default_rule: str | None = "tierank") -> None:
    parser.add_argument(
        "--metric", action="append", metavar="M", help="such as ndcg@10 or map; see: tierank list metrics"
    )
    parser.add_argument(
        "--rule", default=default_rule, help="how ties, empty queries and gains count; see: tierank list rules"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="machine-readable output")
    output.add_argument("--markdown", action="store_true", help="tables in Markdown")


def _read(
    options: argparse.Namespace,
    path: str | None = None,
    n_features: int | None = None,
    features: Sequence[str] | None = None,
    *,
    is_rated: bool = False,
) -> RankingDataset:
    """A data set; ``features`` are the columns of a table that are needed, where the caller chose none."""
    from tierank.readers import read

    name = path or options.data
    reading = _reading(options)
    if reading["features"] is None:
        reading["features"] = features
    data = read(options.pipes.as_file(name), n_features=n_features, **reading)
    if data.feature_names is None and (options.features or options.ignore):
        raise ParameterError(f"{name}: expected a table, whose columns --features and --ignore name, got none")
    if is_rated:
        _check_rated(data, name)
    return data


def _check_rated(data: RankingDataset, name: str) -> None:
    try:
        data.check_rated()
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


def _read_for(options: argparse.Namespace, ranker: Ranker, path: str | None = None) -> RankingDataset:
    """Data for a model: of a table the columns that it learned from, text as wide as what it learned from."""
    return _read(options, path, _width(ranker), _features_of([ranker]))


def _read_to_learn(options: argparse.Namespace, path: str, like: RankingDataset | None = None) -> RankingDataset:
    """Training data, or validation data with the features of the training data."""
    from tierank.description import find_ids

    if like is not None:
        return _read(options, path, _width(like), like.feature_names, is_rated=True)
    data = _read(options, path, is_rated=True)
    ids = [] if options.features else find_ids(data)
    if ids:
        say(
            f"WARNING: {path}: {', '.join(ids)} looks like an id, and is learned from: leave it out with --ignore"
            f" {','.join(ids)}, or name documents by it with --document-column"
        )
    return data


def _reading(options: argparse.Namespace) -> dict[str, Any]:
    names = ("format", "query", "rating", "document", "features", "ignore", "zero_based", "cache")
    return {name: getattr(options, name) for name in names}


def _features_of(models: Sequence[Ranker]) -> list[str] | None:
    """The columns of a table that the models look at; None, which means all, where one of them knows no names."""
    if not all(hasattr(model, "feature_names_in_") for model in models):
        return None
    return list(dict.fromkeys(name for model in models for name in model.feature_names_in_))


def _systems(options: argparse.Namespace, sources: Sequence[str]) -> list[Ranker | str]:
    """What is judged: models, which are loaded, and files of scores."""
    from tierank.rankers import load

    return [load(source) if Path(source).is_dir() else options.pipes.as_file(source) for source in sources]


def _read_to_judge(options: argparse.Namespace, systems: Sequence[Ranker | str]) -> RankingDataset:
    """Rated data, of a table with the columns that the models look at alone: scores need none."""
    return _read(options, features=_features_of([s for s in systems if not isinstance(s, str)]), is_rated=True)


def _scores(system: Ranker | str, data: RankingDataset) -> Any:
    """The scores of a file, or those that a model gives."""
    from tierank.readers import read_scores

    if isinstance(system, str):
        return read_scores(system, data)
    return system.predict(data.widen(_width(system) or data.n_features))


def _demo(options: argparse.Namespace) -> None:
    from tierank.experiments import run_demo
    from tierank.report import draw_improvement, tabulate_run
    from tierank.report.page import write_report

    folder = options.out
    check_place(folder, is_folder=True)
    run = run_demo(folder, n_queries=options.queries, seed=options.seed, say=say)
    _print_table(tabulate_run(run))
    draw_improvement(run.comparison, [folder / "improvement.png", folder / "improvement.svg"])
    write_report(run, folder / "report.html")
    train, valid, test = (folder / f"{part}.txt" for part in ("train", "valid", "test"))
    print(
        f"Open {folder / 'report.html'} to see the lists side by side; {folder / 'improvement.png'} is a figure of it."
    )
    print("\nThe same by hand, and on data of your own:")
    for line in (
        f"describe {train}",
        f"train umart --train {train} --valid {valid} --out {folder / 'mine'}",
        f"evaluate {test} {folder / 'mine'}",
        f"explain {folder / 'mine'} {test} --query {run.tests[0].query_ids[0]} --above 1 --below 2",
        f"cv lambdamart umart urank --data {train} --seeds 3 --out {folder / 'folds'}",
        f"report {folder / 'folds'} --out {folder / 'folds.html'}",
    ):
        print(f"  tierank {line}")


def _describe(options: argparse.Namespace) -> None:
    from tierank.dataset import RankingDataset
    from tierank.description import describe, profile
    from tierank.readers import is_folder_of_folds, read_fold
    from tierank.report import tabulate_description
    from tierank.report.profile import write_profile

    if options.test and not options.html:
        raise ParameterError("--test: expected together with --html F, which shows what drifts")
    check_place(options.html)
    if is_folder_of_folds(options.data):
        data = RankingDataset.concat(read_fold(options.data, 1, **_reading(options)))  # the three parts are all of it
    else:
        data = _read(options, is_rated=True)
    found = describe(data)
    if options.html:
        test = None if options.test is None else _read(options, options.test, _width(data), data.feature_names)
        write_profile(profile(data, test), made(options.html), title=Path(options.data).name)
        say(f"wrote {options.html}")
    if options.json:
        _print_json(found.to_dict())
    else:
        _print_table(tabulate_description(found, str(options.data)))


def _train(options: argparse.Namespace) -> None:
    settings = _settings_file(options.settings, options.ranker) if options.settings else {}
    ranker = _ranker(options.ranker, settings | _settings(options.set))
    _check_places(options)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # one of several: of --ranks, or of torchrun
        from tierank.distributed import join

        with join(timeout=options.timeout) as team:
            _train_in(team, ranker, options)
    elif options.ranks == 1:
        from tierank.team import Team

        _train_in(Team(), ranker, options)
    else:
        _launch(options)


def _train_in(team: Team, ranker: Ranker, options: argparse.Namespace) -> None:
    """Train as one of a team, the first of which writes and speaks."""
    from tierank.rankers.checkpoint import remove_checkpoint

    checkpoint = _checkpoint(options)
    if team.is_first and not options.resume:
        remove_checkpoint(checkpoint)
    for turn in range(2):  # who is first on its machine reads first, and leaves a binary form for the others
        if turn == int(os.environ.get("LOCAL_RANK", "0") != "0"):
            train = _read_to_learn(options, options.data)
            valid = None if options.valid is None else _read_to_learn(options, options.valid, train)
        team.gather(None)
    ranker.fit(train, valid=valid, checkpoint=checkpoint, progress=True, team=team)
    if not team.is_first:
        return
    ranker.save(options.out)
    remove_checkpoint(checkpoint)
    best = "" if valid is None else " on validation data: " + ", ".join(f"{m} {v:.4f}" for m, v in ranker.best_.items())
    say(f"wrote {options.out}{f', trained by {team.size} processes' if team.size > 1 else ''}{best}")


def _launch(options: argparse.Namespace) -> None:
    """Train in several processes of this machine."""
    from tierank.distributed.launch import launch
    from tierank.settings import as_whole

    as_whole("ranks", options.ranks)
    try:
        launch(options.arguments, options.ranks)
    except TeamError as error:
        kept = _checkpoint(options)
        advice = f"{kept} keeps what was learned: --resume goes on from it, with any --ranks" if kept.exists() else ""
        raise ParameterError("; ".join(filter(None, (str(error), advice)))) from None


def _check_places(options: argparse.Namespace) -> None:
    """An error before the work where what training writes would take the place of something else."""
    from tierank.rankers.checkpoint import check_checkpoint
    from tierank.rankers.model_folder import MODEL

    check_place(options.out, is_folder=True)
    MODEL.check(options.out)
    check_checkpoint(_checkpoint(options))


def _checkpoint(options: argparse.Namespace) -> Path:
    out: Path = options.out
    return out.with_name(out.name + ".checkpoint")


def _predict(options: argparse.Namespace) -> None:
    from tierank.rankers import load
    from tierank.readers.scores import rank_lines, score_lines

    is_piped = options.out is None or str(options.out) == PIPE
    check_place(None if is_piped else options.out)
    ranker = load(options.model)
    data = _read_for(options, ranker)
    if options.k is None:
        lines = score_lines(ranker.predict(data))
    else:
        lines = rank_lines(ranker.rank(data, k=options.k), data.caller_texts())
    if is_piped:
        sys.stdout.writelines(lines)
    else:
        with replacing(made(options.out)) as fresh, fresh.open("w", encoding="utf-8") as file:
            file.writelines(lines)


def _ranker(name: str, settings: dict[str, Any]) -> Ranker:
    from tierank.rankers import RANKERS
    from tierank.rankers.base import settings_of

    if name not in RANKERS:
        raise ParameterError.unknown("ranker", name, RANKERS)
    return RANKERS[name](**settings_of(RANKERS[name], settings))


def _settings(pairs: list[str]) -> dict[str, Any]:
    return {name: _value(text) for name, text in _named(pairs, "NAME=VALUE, such as n_trees=200").items()}


def _settings_file(file: Path, ranker: str) -> dict[str, Any]:
    """The settings that ``tune`` wrote, if they are those of this ranker."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        settings, of = dict(found["settings"]), found["ranker"]
    except (ValueError, KeyError, TypeError):
        raise ParameterError(f'{file}: expected {{"ranker": ..., "settings": {{...}}}}, as tune writes it') from None
    if of != ranker:
        raise ParameterError(f"{file}: expected settings of {ranker}, got those of {of}")
    return settings


def _cv(options: argparse.Namespace) -> None:
    from tierank.experiments import Run
    from tierank.report import draw_improvement, tabulate_contrasts, tabulate_run

    check_place(options.out, is_folder=True)
    if options.rankers or options.scores:
        run = _cross_validated(options)
    else:
        run = Run.open(options.out).judged_by(options.metric, options.rule, options.baseline)
    tables = [tabulate_run(run)]
    if len(run.systems) > 1:
        tables.append(tabulate_contrasts(run.comparison))
        draw_improvement(run.comparison, [options.out / "improvement.png", options.out / "improvement.svg"])
    with replacing(options.out / "table.md") as fresh:
        fresh.write_text("\n".join(table.to_markdown() for table in tables), encoding="utf-8")
    _show(options, run.to_dict(), tables)
    say(f"wrote {options.out}: table.md, the scores and models of each piece; tierank report {options.out} shows them")


def _cross_validated(options: argparse.Namespace) -> Run:
    from tierank.experiments import LEAKS, PAPERS, cross_validate

    paper = options.paper
    if paper is not None and paper not in PAPERS:
        raise ParameterError.unknown("paper", paper, PAPERS)
    if options.data is None:
        raise ParameterError("expected --data: a folder of folds, or a file to be cut in five")
    common = _settings(options.set) | ({"select_by": options.select.split(",")} if options.select else {})
    rankers = {}
    for text in options.rankers:
        name, ranker, own = _named_ranker(text)
        if name in rankers:
            raise ParameterError(f"expected each name once, got {name!r} twice; name one: other={text}")
        of_paper = PAPERS[paper].settings(ranker) if paper is not None else {}
        rankers[name] = _ranker(ranker, of_paper | common | own)
    if options.protocol == "lightgbm":
        say(f"WARNING: {LEAKS}")
    return cross_validate(
        rankers,
        options.data,
        seeds=options.seeds,
        metrics=options.metric,
        rule=options.rule or ("wsdm20" if paper is not None and options.protocol == "standard" else None),
        baseline=options.baseline,
        scores=_named(options.scores, "NAME=FILE, such as other=other-fold{fold}.scores"),
        trials=options.trials,
        protocol=options.protocol,
        out=options.out,
        n_jobs=options.jobs,
        progress=True,
        paper=paper,
        **_reading(options),
    )


def _named_ranker(text: str) -> tuple[str, str, dict[str, Any]]:
    """``NAME=RANKER,SETTING=VALUE,...`` as a name, a ranker and settings; commas inside brackets part nothing."""
    head, *pairs = re.split(r",(?![^\[{(]*[\]})])", text)
    name, equals, ranker = head.partition("=")
    return (name, ranker, _settings(pairs)) if equals else (text, head, _settings(pairs))


def _tune(options: argparse.Namespace) -> None:
    from tierank.experiments import tune
    from tierank.experiments.tuning import space_of
    from tierank.readers import is_folder_of_folds, read_fold

    held = _settings(options.set)
    ranker = _ranker(options.ranker, held)
    space = {name: values for name, values in space_of(ranker).items() if name not in held}
    if not space:
        raise ParameterError(f"--set: expected a setting that is left to tune, got all of {', '.join(held)}")
    check_place(options.out)
    if is_folder_of_folds(options.data):
        train, valid, _ = read_fold(options.data, options.fold, **_reading(options))
    elif options.valid is None:
        raise ParameterError("expected --valid F beside a file of training data: settings are chosen on it")
    else:
        train = _read_to_learn(options, options.data)
        valid = _read_to_learn(options, options.valid, train)
    study = options.out.with_name(options.out.name + ".trials")
    found = tune(
        ranker, train, valid, trials=options.trials, space=space, seed=options.seed, study=study, progress=True
    )
    content = {
        "ranker": options.ranker,
        "settings": held | found.settings,
        found.metric: found.value,
        "trials": found.trials,
    }
    with replacing(made(options.out)) as fresh:
        fresh.write_text(json.dumps(content, indent=1), encoding="utf-8")
    say(f"best of {len(found.trials)}: {found.metric} {found.value:.4f} on validation data with {found.settings}")
    say(f"wrote {options.out}; use it: tierank train {options.ranker} --settings {options.out} ...")


def _export(options: argparse.Namespace) -> None:
    from tierank.export import as_target, check_export_place, verify
    from tierank.rankers import load

    as_target(options.to)
    check_place(options.out, is_folder=options.out.is_dir())  # the target says which
    check_export_place(options.out)
    ranker = load(options.model)
    data = None if options.verify is None else _read_for(options, ranker, options.verify)
    ranker.export(options.out, to=options.to)
    say(f"wrote {options.out}")
    if data is not None:
        proof = verify(ranker, options.out, options.to, data)
        if not proof.holds:
            raise DataError(f"{options.out}: {proof}")
        print(proof)


def _width(of: RankingDataset | Ranker) -> int | None:
    """The width to read text at that goes with training data, or with a model; tables have names instead."""
    if hasattr(of, "n_features_in_"):
        return None if hasattr(of, "feature_names_in_") else of.n_features_in_
    return None if of.feature_names is not None else of.n_features


def _value(text: str) -> Any:
    """A setting as JSON has it (numbers, lists, true, null) or as Python has it (tuples, True, None); else a text."""
    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return parse(text)
    return text


def _evaluate(options: argparse.Namespace) -> None:
    from tierank.evaluation import evaluate
    from tierank.report import tabulate_evaluation, write_per_query
    from tierank.report.tables import per_query_lines

    is_piped = str(options.per_query) == PIPE
    check_place(None if is_piped else options.per_query)
    systems = _systems(options, [options.scores])
    data = _read_to_judge(options, systems)
    evaluation = evaluate(data, _scores(systems[0], data), options.metric, options.rule)
    if is_piped:
        sys.stdout.writelines(per_query_lines(evaluation))
        return
    if options.per_query is not None:
        write_per_query(evaluation, made(options.per_query))
    _show(options, evaluation.to_dict(), [tabulate_evaluation(evaluation, options.scores)])


def _compare(options: argparse.Namespace) -> None:
    from tierank.evaluation import compare
    from tierank.experiments import keep_comparison
    from tierank.experiments.crossval import check_is_new
    from tierank.report import tabulate_comparison, tabulate_contrasts

    files = _named(options.scores)
    if options.out is not None:
        check_place(options.out, is_folder=True)
        check_is_new(options.out)
    systems = _systems(options, list(files.values()))
    data = _read_to_judge(options, systems)
    scores = {name: _scores(system, data) for name, system in zip(files, systems, strict=True)}
    comparison = compare(data, scores, options.baseline, options.metric, options.rule, seed=options.seed)
    if options.out is not None:
        keep_comparison(options.out, data, scores, comparison, options.data)
    _show(options, comparison.to_dict(), [tabulate_comparison(comparison), tabulate_contrasts(comparison)])


def _report(options: argparse.Namespace) -> None:
    from tierank.experiments.runs import Run
    from tierank.report.page import write_report
    from tierank.report.viewer import Titles

    folder = Path(options.folder)
    out = options.out or folder / "report.html"
    check_place(out)
    titles = None if options.titles is None else Titles.read(options.titles)
    is_demo = not (folder / "run.json").exists() and (folder / "run" / "run.json").exists()
    write_report(Run.open(folder / "run" if is_demo else folder), made(out), titles=titles)
    say(f"wrote {out}")


def _explain(options: argparse.Namespace) -> None:
    from tierank.explain import explain_pair
    from tierank.rankers import load
    from tierank.report.explanation import draw_explanation, tabulate_explanation
    from tierank.settings import as_whole

    top = as_whole("top", options.top)
    check_place(options.out)
    ranker = load(options.model)
    data = _read_for(options, ranker)
    found = explain_pair(ranker, data, options.query_id, options.above, options.below)
    if options.out is not None:
        draw_explanation(found, made(options.out), top)
    if options.json:
        _print_json(found.to_dict())
    else:
        _print_table(tabulate_explanation(found, top))


def _serve(options: argparse.Namespace) -> None:
    from tierank.serve import Limits
    from tierank.serve.server import Settings, serve

    folders: dict[str, Path] = {}
    for text in options.models:
        name, equals, folder = text.partition("=")
        is_named = bool(equals) and "/" not in name
        path = Path(folder if is_named else text)
        name = name if is_named else path.resolve().name
        if name in folders:
            raise ParameterError(f"expected each name once, got {name!r} twice; name one: other={path}")
        folders[name] = path
    settings = Settings(
        host=options.host,
        port=options.port,
        workers=options.workers,
        threads=options.threads,
        watch=options.watch,
        log="json" if options.json else "quiet" if options.quiet else "text",
        limits=Limits(options.max_bytes, options.max_documents, options.max_waiting),
    )
    serve(folders, settings)


def _convert(options: argparse.Namespace) -> None:
    from tierank.readers import check_conversion, convert, read_scores, write_run

    is_run = options.out.suffix == ".run"
    if is_run != (options.scores is not None):
        raise ParameterError("expected --scores with an OUT that ends in .run, and only with it")
    check_place(options.out, is_folder=options.out.suffix == ".tierank")
    if is_run:
        scores = options.pipes.as_file(options.scores)
        data = _read(options)
        write_run(made(options.out), data, read_scores(scores, data))
    else:
        check_conversion(options.data, options.out)
        data = convert(options.pipes.as_file(options.data), made(options.out), **_reading(options))
    say(f"wrote {options.out}: {data}")


def _list(options: argparse.Namespace) -> None:
    from tierank.listing import list_names

    rows = list_names(options.what, options.ranker)
    if options.json:
        print(json.dumps({name: rest[0] if len(rest) == 1 else rest for name, *rest in rows}, indent=2))
        return
    widths = [max(len(cell) for cell in column) for column in list(zip(*rows, strict=True))[:-1]]
    for *cells, text in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), text]).rstrip())


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


if __name__ == "__main__":
    sys.exit(main())
