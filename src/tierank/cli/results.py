"""``evaluate``, ``compare`` and ``report``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.cli.commands import command
from tierank.cli.console import check_place, made, say, show
from tierank.cli.data import attributes_of, read_to_judge, reading_options, scored
from tierank.cli.options import PIPE, by_name
from tierank.cli.plugins import load_model
from tierank.errors import ParameterError

if TYPE_CHECKING:
    from tierank.rankers.base import Ranker


def rule_of(options: argparse.Namespace) -> Any:
    """The rule, as ``--unjudged`` changes it.

    --metric M,M : metrics
        see: tierank list metrics; or your own function, as package.module:name
        (default: ndcg@1,ndcg@3,ndcg@5,ndcg@10,err@10)
    --rule : rule, default tierank
        how ties, empty queries and gains count; see: tierank list rules
    --unjudged {zero,condense} : {zero, condense}
        documents without a rating: not relevant, or taken out of the lists (default: as --rule says)
    --json : json, either output
    --markdown : switch, either output
        tables in Markdown
    --latex : switch, either output
        tables in LaTeX, for the package booktabs
    """
    rule = options.rule
    if options.unjudged is None:
        return rule
    if rule is None:
        raise ParameterError(argument="unjudged", expected="`rule` too, as it changes the rule", got="none")
    name = rule.partition(":")[0]
    return name if options.unjudged == "zero" else f"{name}:{options.unjudged}"


def _load_systems(options: argparse.Namespace, sources: Iterable[str]) -> list[Ranker | str]:
    """The systems to judge: models, which are loaded, and files of scores."""
    return [
        load_model(options, source) if Path(source).is_dir() else options.pipes.as_file(source) for source in sources
    ]


@command(reading_options, rule_of, attributes_of, metrics="--metric")
def evaluate(options: argparse.Namespace) -> None:
    """Judge scores, runs or models by the ratings of a data set or qrels.

    Example: tierank evaluate test.txt model --metric ndcg@10 --metric err@10 --per-query queries.csv

    data DATA : data
        a file: LETOR text, CSV, Parquet, ..., or TREC qrels to judge runs; -: a pipe
    scores [NAME=]SCORES|MODEL : systems, at least one
        a number per line, RankLib scores, a TREC run, .npy, a model folder; -: a pipe; several get a table each
    --per-query F : path
        also write a CSV file with a row per query; -: print that alone
    """
    from tierank.io.paths import check_text_ending
    from tierank.io.scores import NOT_TEXT
    from tierank.metrics.evaluate import evaluate
    from tierank.report.tabulate import (
        per_query_lines,
        tabulate_evaluation,
        tabulate_segments,
        tabulate_worst,
        write_per_query,
    )

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


@command(reading_options, rule_of, attributes_of, metrics="--metric")
def compare(options: argparse.Namespace) -> None:
    """Compare several systems, with significance tests.

    Example: tierank compare test.txt old.scores new=model --metric ndcg@10

    data DATA : data
        a file: LETOR text, CSV, Parquet, ..., or TREC qrels to judge runs; -: a pipe
    scores [NAME=]SCORES|MODEL : named systems, at least one
        score files or model folders, two or more; NAME defaults to the name of the file or folder
    --baseline NAME : metrics/compare:compare
    --seed N : integer
        deprecated, without effect
    --out FOLDER : path
        store the result as a run, for tierank report
    """
    from tierank.experiments import keep_comparison
    from tierank.experiments.crossval import check_is_new
    from tierank.metrics.compare import compare
    from tierank.report.tabulate import tabulate_comparison, tabulate_contrasts, tabulate_segments, tabulate_worst

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


@command(attributes_of)
def report(options: argparse.Namespace) -> None:
    """An HTML report of a cv, compare or demo run, or of several side by side.

    Example: tierank report run --out run.html

    runs RUN : runs, at least one
        the folder of the run; several of the same test data are set side by side, NAME=RUN names them
    --out F.html : path
        write there (default: report.html in the first RUN)
    --titles F.csv : file
        columns query, document, title: names to show
    --attributes F : file
        a CSV or Parquet file with a query column and those of --by
    """
    from tierank.experiments import Run, side_by_side
    from tierank.report.page import write_report
    from tierank.report.viewer import Titles

    folders = {name: Path(folder) for name, folder in by_name(options.runs).items()}
    out = options.out or next(iter(folders.values())) / "report.html"
    check_place(options, out)
    titles = None if options.titles is None else Titles.read(Path(options.titles))
    runs = {name: Run.open(_of_demo(folder)) for name, folder in folders.items()}
    run = side_by_side(runs) if len(runs) > 1 else next(iter(runs.values()))
    write_report(run, made(out), titles=titles, by=attributes_of(options, run.tests))
    say(f"wrote {out}")


def _of_demo(folder: Path) -> Path:
    """The run of a demo is a subfolder of the demo."""
    inside = folder / "run"
    return inside if not (folder / "run.json").exists() and (inside / "run.json").exists() else folder
