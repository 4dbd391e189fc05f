"""The command line: parse, call, print.

Exit 0: done. Exit 2: the caller can fix it, and one line on standard error says how. Exit 3: one of several processes
that was left alone by the others. Anything else is our bug.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tierank import __version__
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
    try:
        arguments = list(sys.argv[1:] if argv is None else argv)
        options = _parser().parse_args(arguments)
        options.arguments = arguments
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("tierank: stopped", file=sys.stderr)
        return 130
    except (TierankError, OSError) as error:
        print(f"tierank: {' '.join(str(error).split())}", file=sys.stderr)
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

    demo = commands.add_parser("demo", help="the main job on generated data, start to end")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder for the files it makes (default: demo)")
    demo.add_argument("--queries", type=int, default=800, help="how many queries to generate (default: 800)")
    demo.add_argument("--seed", type=int, default=0)
    demo.set_defaults(run=_demo)

    describe = commands.add_parser("describe", help="queries, documents, features, ratings of a data set")
    _add_data(describe, "a data file, or a folder of folds (all of it is described)")
    describe.add_argument("--json", action="store_true", help="machine-readable output")
    describe.add_argument("--html", type=Path, metavar="F", help="write a page: histograms, features, what looks wrong")
    describe.add_argument("--test", metavar="F", help="a second data set: what drifts between the two (with --html)")
    describe.set_defaults(run=_describe)

    train = commands.add_parser("train", help="fit a ranker and save it as a folder")
    train.add_argument("ranker", metavar="RANKER", help="urank, uboost, umart, urboost, lambdamart, listnet, ...")
    train.add_argument("--train", dest="data", required=True, metavar="F", help="training data")
    train.add_argument("--valid", metavar="F", help="validation data: keeps the best round, and stops in time")
    train.add_argument("--out", type=Path, required=True, metavar="MODEL", help="folder for the model")
    train.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; may be given several times"
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

    predict = commands.add_parser("predict", help="scores of a model, one per document")
    predict.add_argument("model", metavar="MODEL", help="a folder that train wrote")
    _add_data(predict)
    predict.add_argument("--out", type=Path, metavar="F", help="write there (default: standard output)")
    predict.add_argument("--k", type=int, help="instead of scores, the best k documents of each query as a table")
    predict.set_defaults(run=_predict)

    export = commands.add_parser("export", help="a model in the form of another engine, and the proof of it")
    export.add_argument("model", metavar="MODEL", help="a folder that train wrote")
    export.add_argument(
        "--to", required=True, metavar="TARGET", help="onnx, elasticsearch, opensearch, solr, vespa or c"
    )
    export.add_argument("--out", type=Path, required=True, metavar="F", help="file, or folder for a search engine")
    export.add_argument("--verify", metavar="DATA", help="score these data there and here, and compare")
    _add_reading(export)
    export.set_defaults(run=_export)

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
    compare.add_argument("--out", type=Path, metavar="FOLDER", help="keep it as a run, for tierank report")
    compare.set_defaults(run=_compare)

    cv = commands.add_parser("cv", help="several rankers on five folds with several seeds: the table of the paper")
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

    tune = commands.add_parser("tune", help="settings of a ranker, chosen on validation data alone")
    tune.add_argument("ranker", metavar="RANKER", help="urank, umart, lambdamart, ...")
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

    report = commands.add_parser("report", help="the page of a cv, compare or demo run: one HTML file")
    report.add_argument("folder", metavar="RUN", help="the folder of the run")
    report.add_argument("--out", type=Path, metavar="F.html", help="write there (default: RUN/report.html)")
    report.add_argument("--titles", type=Path, metavar="F.csv", help="columns query, document, title: names to show")
    report.set_defaults(run=_report)

    explain = commands.add_parser("explain", help="why a model puts one document above another")
    explain.add_argument("model", metavar="MODEL", help="a folder that train wrote")
    _add_data(explain)
    explain.add_argument("--query", dest="query_id", required=True, metavar="Q", help="its id")
    explain.add_argument("--above", required=True, metavar="A", help="a document: its id, or its row in the query")
    explain.add_argument("--below", required=True, metavar="B", help="the other document")
    explain.add_argument("--top", type=int, default=10, metavar="N", help="features to name (default: 10)")
    explain.add_argument("--json", action="store_true", help="machine-readable output, all features")
    explain.add_argument("--out", type=Path, metavar="F", help="also draw it, to a file that ends in .svg or .png")
    explain.set_defaults(run=_explain)

    serve = commands.add_parser("serve", help="scores of models over HTTP")
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


def _add_judging(parser: argparse.ArgumentParser, default_rule: str | None = "tierank") -> None:
    parser.add_argument(
        "--metric", action="append", metavar="M", help="such as ndcg@10, err@10, map, mrr; may be given several times"
    )
    parser.add_argument(
        "--rule", default=default_rule, help="how ties, empty queries and gains count (default: tierank)"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="machine-readable output")
    output.add_argument("--markdown", action="store_true", help="tables in Markdown")


def _read(options: argparse.Namespace, path: str | None = None, n_features: int | None = None) -> RankingDataset:
    from tierank.readers import read

    return read(path or options.data, n_features=n_features, **_reading(options))


def _read_for(options: argparse.Namespace, ranker: Ranker, path: str | None = None) -> RankingDataset:
    """Data for a model: text as wide as what it learned from."""
    return _read(options, path, _width(ranker))


def _reading(options: argparse.Namespace) -> dict[str, Any]:
    names = ("format", "query", "rating", "document", "zero_based", "cache")
    return {name: getattr(options, name) for name in names}


def _scores(source: str, data: RankingDataset) -> Any:
    """The scores of a file, or those that a model gives."""
    from tierank.readers import read_scores

    if Path(source).is_dir():
        from tierank.rankers import load

        ranker = load(source)
        try:
            return ranker.predict(data.widen(_width(ranker) or data.n_features))
        except DataError as error:
            raise DataError(f"{source}: {error}") from None
    return read_scores(source, data)


def _demo(options: argparse.Namespace) -> None:
    from tierank.experiments import run_demo
    from tierank.report import draw_improvement, tabulate_run
    from tierank.report.page import write_report

    folder = options.out
    run = run_demo(folder, n_queries=options.queries, seed=options.seed, say=_say)
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
    if is_folder_of_folds(options.data):
        data = RankingDataset.concat(read_fold(options.data, 1, cache=options.cache))  # the three parts are all of it
    else:
        data = _read(options)
    found = describe(data)
    if options.html:
        test = None if options.test is None else _read(options, options.test, _width(data))
        write_profile(profile(data, test), options.html, title=Path(options.data).name)
        _say(f"wrote {options.html}")
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
            train = _read(options)
            valid = None if options.valid is None else _read(options, options.valid, _width(train))
        team.gather(None)
    ranker.fit(train, valid=valid, checkpoint=checkpoint, progress=True, team=team)
    if not team.is_first:
        return
    ranker.save(options.out)
    remove_checkpoint(checkpoint)
    best = "" if valid is None else " on validation data: " + ", ".join(f"{m} {v:.4f}" for m, v in ranker.best_.items())
    _say(f"wrote {options.out}{f', trained by {team.size} processes' if team.size > 1 else ''}{best}")


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

    MODEL.check(options.out)
    check_checkpoint(_checkpoint(options))


def _checkpoint(options: argparse.Namespace) -> Path:
    out: Path = options.out
    return out.with_name(out.name + ".checkpoint")


def _predict(options: argparse.Namespace) -> None:
    from tierank.rankers import load
    from tierank.readers.scores import rank_lines, score_lines

    ranker = load(options.model)
    data = _read_for(options, ranker)
    lines = score_lines(ranker.predict(data)) if options.k is None else rank_lines(ranker.rank(data, k=options.k))
    if options.out is None:
        sys.stdout.writelines(lines)
    else:
        with replacing(options.out) as fresh, fresh.open("w", encoding="utf-8") as file:
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
    _say(f"wrote {options.out}: table.md, the scores and models of each piece; tierank report {options.out} shows them")


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
        _say(f"WARNING: {LEAKS}")
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
    from tierank.readers import is_folder_of_folds, read_fold

    ranker = _ranker(options.ranker, _settings(options.set))
    if is_folder_of_folds(options.data):
        train, valid, _ = read_fold(options.data, options.fold, **_reading(options))
    elif options.valid is None:
        raise ParameterError("expected --valid F beside a file of training data: settings are chosen on it")
    else:
        train = _read(options)
        valid = _read(options, options.valid, _width(train))
    study = options.out.with_name(options.out.name + ".trials")
    found = tune(ranker, train, valid, trials=options.trials, seed=options.seed, study=study, progress=True)
    content = {
        "ranker": options.ranker,
        "settings": _settings(options.set) | found.settings,
        found.metric: found.value,
        "trials": found.trials,
    }
    with replacing(options.out) as fresh:
        fresh.write_text(json.dumps(content, indent=1), encoding="utf-8")
    _say(f"best of {len(found.trials)}: {found.metric} {found.value:.4f} on validation data with {found.settings}")
    _say(f"wrote {options.out}; use it: tierank train {options.ranker} --settings {options.out} ...")


def _export(options: argparse.Namespace) -> None:
    from tierank.export import verify
    from tierank.rankers import load

    ranker = load(options.model)
    data = None if options.verify is None else _read_for(options, ranker, options.verify)
    ranker.export(options.out, to=options.to)
    _say(f"wrote {options.out}")
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
    from tierank.experiments import keep_comparison
    from tierank.report import tabulate_comparison, tabulate_contrasts

    files = _named(options.scores)
    data = _read(options)
    scores = {name: _scores(file, data) for name, file in files.items()}
    comparison = compare(data, scores, options.baseline, options.metric, options.rule, seed=options.seed)
    if options.out is not None:
        keep_comparison(options.out, data, scores, comparison, options.data)
    _show(options, comparison.to_dict(), [tabulate_comparison(comparison), tabulate_contrasts(comparison)])


def _report(options: argparse.Namespace) -> None:
    from tierank.experiments.runs import Run
    from tierank.report.page import write_report
    from tierank.report.viewer import Titles

    titles = None if options.titles is None else Titles.read(options.titles)
    out = options.out or Path(options.folder) / "report.html"
    write_report(Run.open(options.folder), out, titles=titles)
    _say(f"wrote {out}")


def _explain(options: argparse.Namespace) -> None:
    from tierank.explain import explain_pair
    from tierank.rankers import load
    from tierank.report.explanation import draw_explanation, tabulate_explanation
    from tierank.settings import as_whole

    top = as_whole("top", options.top)
    ranker = load(options.model)
    data = _read_for(options, ranker)
    found = explain_pair(ranker, data, options.query_id, options.above, options.below)
    if options.out is not None:
        draw_explanation(found, options.out, top)
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
    from tierank.readers import convert, read_scores, write_run

    is_run = options.out.suffix == ".run"
    if is_run != (options.scores is not None):
        raise ParameterError("expected --scores with an OUT that ends in .run, and only with it")
    if is_run:
        data = _read(options)
        write_run(options.out, data, read_scores(options.scores, data))
    else:
        data = convert(options.data, options.out, **_reading(options))
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
