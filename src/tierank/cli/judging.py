"""``evaluate``, ``compare`` and ``report``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.cli.console import PIPE, check_place, made, say
from tierank.cli.options import add_command, add_data, add_judging, named_pairs
from tierank.cli.printing import show
from tierank.cli.reading import load_systems, read_to_judge, scores_of

if TYPE_CHECKING:
    pass


def add_evaluate(commands: Any) -> None:
    """Add the command."""
    evaluate = add_command(
        commands,
        "evaluate",
        "judge scores or a model by the ratings of a data set",
        "evaluate test.txt model --metric ndcg@10 --metric err@10 --per-query queries.csv",
    )
    add_data(evaluate)
    evaluate.add_argument(
        "scores",
        metavar="SCORES|MODEL",
        help="a number per line, RankLib scores, a TREC run, .npy, a model folder; -: a pipe",
    )
    add_judging(evaluate)
    evaluate.add_argument(
        "--per-query", type=Path, metavar="F", help="also write a CSV file with a row per query; -: print that alone"
    )
    evaluate.set_defaults(run=_evaluate)


def add_compare(commands: Any) -> None:
    """Add the command."""
    compare = add_command(
        commands,
        "compare",
        "judge several scores side by side, with significance",
        "compare test.txt old=old.scores new=model --metric ndcg@10",
    )
    add_data(compare)
    compare.add_argument(
        "scores", nargs="+", metavar="NAME=SCORES", help="a name and its score file or model folder, twice or more"
    )
    compare.add_argument("--baseline", metavar="NAME", help="what the others are compared to (default: the first)")
    add_judging(compare)
    compare.add_argument("--seed", type=int, default=0, help="of the bootstrap (default: 0)")
    compare.add_argument("--out", type=Path, metavar="FOLDER", help="keep it as a run, for tierank report")
    compare.set_defaults(run=_compare)


def add_report(commands: Any) -> None:
    """Add the command."""
    report = add_command(
        commands,
        "report",
        "the page of a cv, compare or demo run: one HTML file",
        "report run --out run.html",
    )
    report.add_argument("folder", metavar="RUN", help="the folder of the run")
    report.add_argument("--out", type=Path, metavar="F.html", help="write there (default: RUN/report.html)")
    report.add_argument("--titles", type=Path, metavar="F.csv", help="columns query, document, title: names to show")
    report.set_defaults(run=_report)


def _evaluate(options: argparse.Namespace) -> None:
    from tierank.evaluation import evaluate
    from tierank.report import tabulate_evaluation, write_per_query
    from tierank.report.tables import per_query_lines

    is_piped = str(options.per_query) == PIPE
    check_place(None if is_piped else options.per_query)
    systems = load_systems(options, [options.scores])
    data = read_to_judge(options, systems)
    evaluation = evaluate(data, scores_of(systems[0], data), options.metric, options.rule)
    if is_piped:
        sys.stdout.writelines(per_query_lines(evaluation))
        return
    if options.per_query is not None:
        write_per_query(evaluation, made(options.per_query))
    show(options, evaluation.to_dict(), [tabulate_evaluation(evaluation, options.scores)])


def _compare(options: argparse.Namespace) -> None:
    from tierank.evaluation import compare
    from tierank.experiments import keep_comparison
    from tierank.experiments.crossval import check_is_new
    from tierank.report import tabulate_comparison, tabulate_contrasts

    files = named_pairs(options.scores)
    if options.out is not None:
        check_place(options.out, is_folder=True)
        check_is_new(options.out)
    systems = load_systems(options, list(files.values()))
    data = read_to_judge(options, systems)
    scores = {name: scores_of(system, data) for name, system in zip(files, systems, strict=True)}
    comparison = compare(data, scores, options.baseline, options.metric, options.rule, seed=options.seed)
    if options.out is not None:
        keep_comparison(options.out, data, scores, comparison, options.data)
    show(options, comparison.to_dict(), [tabulate_comparison(comparison), tabulate_contrasts(comparison)])


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
