"""``evaluate``, ``compare`` and ``report``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tierank.cli.commands import Argument, command, integer, parameters
from tierank.cli.console import check_place, made, say, show
from tierank.cli.data import attributes_of, read_to_judge, scored
from tierank.cli.options import (
    PIPE,
    READING,
    by_name,
    data_argument,
    judging,
    named_path,
    rule_of,
    segments,
    titled_path,
)
from tierank.cli.plugins import load_model
from tierank.errors import ParameterError

if TYPE_CHECKING:
    from tierank.rankers.base import Ranker

_SCORES = "a file of scores, or a model folder"
_DATA = data_argument("a file: LETOR text, CSV, Parquet, ..., or TREC qrels to judge runs; -: a pipe")


def _load_systems(options: argparse.Namespace, sources: Iterable[str]) -> list[Ranker | str]:
    """The systems to judge: models, which are loaded, and files of scores."""
    return [
        load_model(options, source) if Path(source).is_dir() else options.pipes.as_file(source) for source in sources
    ]


@command(
    "evaluate",
    "judge scores, runs or models by the ratings of a data set or qrels",
    "evaluate test.txt model --metric ndcg@10 --metric err@10 --per-query queries.csv",
    _DATA,
    Argument(
        "scores [NAME=]SCORES|MODEL",
        "a number per line, RankLib scores, a TREC run, .npy, a model folder; -: a pipe; several get a table each",
        titled_path,
        nargs="+",
        reads=_SCORES,
    ),
    READING,
    judging(),
    segments(" (default: DATA)"),
    Argument("--per-query F", "also write a CSV file with a row per query; -: print that alone", Path),
    metrics="--metric",
)
def evaluate(options: argparse.Namespace) -> None:
    """Judge systems, each for itself."""
    from tierank.io.paths import check_text_ending
    from tierank.io.scores import NOT_TEXT
    from tierank.metrics.evaluate import evaluate
    from tierank.report import tabulate_evaluation, tabulate_segments, tabulate_worst, write_per_query
    from tierank.report.tables import per_query_lines

    files, is_piped = by_name(options.scores), str(options.per_query) == PIPE
    if options.per_query is not None and len(files) > 1:
        raise ParameterError(argument="per_query", expected="one system", got=f"{len(files)}")
    if options.per_query is not None and not is_piped:
        check_place(options, options.per_query)
        check_text_ending(options.per_query, "a name that ends in .csv", NOT_TEXT)
    systems = _load_systems(options, files.values())
    rated = read_to_judge(options, systems)
    contents, tables = {}, []
    for name, system in zip(files, systems, strict=True):
        data, scores = scored(rated, {name: system})
        by = attributes_of(options, [data])
        evaluation = evaluate(data, scores[name], options.metric, rule_of(options), by=by)
        if is_piped:
            sys.stdout.writelines(per_query_lines(evaluation))
            return
        if options.per_query is not None:
            write_per_query(evaluation, made(options.per_query))
        contents[name] = evaluation.to_dict()
        tables.append(tabulate_evaluation(evaluation, name))
        tables += [] if by is None else [tabulate_segments(evaluation), tabulate_worst(evaluation)]
    show(options, contents if len(contents) > 1 else evaluation.to_dict(), tables)


@command(
    "compare",
    "compare several systems, with significance tests",
    "compare test.txt old.scores new=model --metric ndcg@10",
    _DATA,
    Argument(
        "scores [NAME=]SCORES|MODEL",
        "score files or model folders, two or more; NAME defaults to the name of the file or folder",
        named_path,
        nargs="+",
        reads=_SCORES,
    ),
    READING,
    parameters("metrics/compare:compare", baseline="NAME"),
    judging(),
    segments(" (default: DATA)"),
    Argument("--seed N", "deprecated, without effect", integer),
    Argument("--out FOLDER", "store the result as a run, for tierank report", Path),
    metrics="--metric",
)
def compare(options: argparse.Namespace) -> None:
    """Compare systems."""
    from tierank.experiments import keep_comparison
    from tierank.experiments.crossval import check_is_new
    from tierank.metrics.compare import compare
    from tierank.report import tabulate_comparison, tabulate_contrasts, tabulate_segments, tabulate_worst

    files = by_name(options.scores)
    if len(files) < 2:
        raise ParameterError(expected="at least two systems to compare", got=f"{len(files)}")
    if options.baseline is not None and options.baseline not in files:
        without_ending = [name for name in files if Path(name).stem == options.baseline]
        if len(without_ending) != 1:
            raise ParameterError.unknown("baseline", options.baseline, files)
        options.baseline = without_ending[0]
    if options.out is not None:
        check_place(options, options.out, is_folder=True)
        check_is_new(options.out)
    systems = _load_systems(options, files.values())
    rated = read_to_judge(options, systems)
    if options.out is not None and isinstance(rated, dict):
        raise ParameterError(argument="out", expected="a data set, which the run keeps", got="qrels")
    data, scores = scored(rated, dict(zip(files, systems, strict=True)))
    by, rule = attributes_of(options, [data]), rule_of(options)
    comparison = compare(data, scores, options.baseline, options.metric, rule, by=by, seed=options.seed)
    if options.out is not None:
        keep_comparison(options.out, data, scores, comparison, options.data)
    tables = [tabulate_comparison(comparison), tabulate_contrasts(comparison)]
    tables += [] if by is None else [tabulate_segments(comparison), tabulate_worst(comparison)]
    show(options, comparison.to_dict(), tables)


@command(
    "report",
    "an HTML report of a cv, compare or demo run, or of several side by side",
    "report run --out run.html",
    Argument(
        "runs RUN",
        "the folder of the run; several of the same test data are set side by side, NAME=RUN names them",
        named_path,
        nargs="+",
        reads="the folder of a run, with run.json in it",
    ),
    Argument("--out F.html", "write there (default: report.html in the first RUN)", Path),
    Argument("--titles F.csv", "columns query, document, title: names to show", Path, reads="a file"),
    segments(),
)
def report(options: argparse.Namespace) -> None:
    """Write the report of runs."""
    from tierank.experiments import Run, side_by_side
    from tierank.report.page import write_report
    from tierank.report.viewer import Titles

    folders = {name: Path(folder) for name, folder in by_name(options.runs).items()}
    out = options.out or next(iter(folders.values())) / "report.html"
    check_place(options, out)
    titles = None if options.titles is None else Titles.read(options.titles)
    runs = {name: Run.open(_of_demo(folder)) for name, folder in folders.items()}
    run = side_by_side(runs) if len(runs) > 1 else next(iter(runs.values()))
    write_report(run, made(out), titles=titles, by=attributes_of(options, run.tests))
    say(f"wrote {out}")


def _of_demo(folder: Path) -> Path:
    """The run of a demo is a subfolder of the demo."""
    inside = folder / "run"
    return inside if not (folder / "run.json").exists() and (inside / "run.json").exists() else folder
