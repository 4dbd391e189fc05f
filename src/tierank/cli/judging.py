"""``evaluate``, ``compare`` and ``report``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.cli.console import PIPE, check_place, inputs_of, made, say
from tierank.cli.options import add_command, add_data, add_judging, add_segments, check_judging, named_pairs
from tierank.cli.printing import show
from tierank.cli.reading import attributes_by_query, attributes_of, load_systems, read_to_judge, scores_of
from tierank.errors import ParameterError

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
    add_segments(evaluate)
    evaluate.add_argument(
        "--per-query", type=Path, metavar="F", help="also write a CSV file with a row per query; -: print that alone"
    )
    evaluate.set_defaults(run=_evaluate)


def add_compare(commands: Any) -> None:
    """Add the command."""
    compare = add_command(
        commands,
        "compare",
        "compare several systems, with significance tests",
        "compare test.txt old=old.scores new=model --metric ndcg@10",
    )
    add_data(compare)
    compare.add_argument(
        "scores", nargs="+", metavar="NAME=SCORES", help="a name and its score file or model folder, twice or more"
    )
    compare.add_argument("--baseline", metavar="NAME", help="the system to compare with (default: the first)")
    add_judging(compare)
    add_segments(compare)
    compare.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default: 0)")
    compare.add_argument("--out", type=Path, metavar="FOLDER", help="store the result as a run, for tierank report")
    compare.set_defaults(run=_compare)


def add_report(commands: Any) -> None:
    """Add the command."""
    report = add_command(
        commands,
        "report",
        "an HTML report of a cv, compare or demo run, or of several side by side",
        "report run --out run.html",
    )
    report.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="the folder of the run; several of the same test data are set side by side, NAME=RUN names them",
    )
    report.add_argument(
        "--out", type=Path, metavar="F.html", help="write there (default: report.html in the first RUN)"
    )
    report.add_argument("--titles", type=Path, metavar="F.csv", help="columns query, document, title: names to show")
    add_segments(report, has_data=False)
    report.set_defaults(run=_report)


def _evaluate(options: argparse.Namespace) -> None:
    from tierank.evaluation import evaluate
    from tierank.readers.paths import check_text_ending
    from tierank.readers.scores import NOT_TEXT
    from tierank.report import tabulate_evaluation, tabulate_segments, tabulate_worst, write_per_query
    from tierank.report.tables import per_query_lines

    check_judging(options)
    is_piped = str(options.per_query) == PIPE
    check_place(None if is_piped else options.per_query, read=inputs_of(options))
    if not is_piped and options.per_query is not None:
        check_text_ending(options.per_query, "a name that ends in .csv", NOT_TEXT)
    systems = load_systems(options, [options.scores])
    data = read_to_judge(options, systems)
    by = attributes_of(options, data)
    evaluation = evaluate(data, scores_of(systems[0], data), options.metric, options.rule, by=by)
    if is_piped:
        sys.stdout.writelines(per_query_lines(evaluation))
        return
    if options.per_query is not None:
        write_per_query(evaluation, made(options.per_query))
    tables = [tabulate_evaluation(evaluation, options.scores)]
    tables += [] if by is None else [tabulate_segments(evaluation), tabulate_worst(evaluation)]
    show(options, evaluation.to_dict(), tables)


def _compare(options: argparse.Namespace) -> None:
    from tierank.evaluation import compare
    from tierank.experiments import keep_comparison
    from tierank.experiments.crossval import check_is_new
    from tierank.report import tabulate_comparison, tabulate_contrasts, tabulate_segments, tabulate_worst

    check_judging(options)
    files = named_pairs(options.scores)
    if len(files) < 2:
        raise ParameterError(f"expected at least two systems to compare, got {len(files)}")
    if options.baseline is not None and options.baseline not in files:
        raise ParameterError.unknown("baseline", options.baseline, files)
    if options.out is not None:
        check_place(options.out, is_folder=True)
        check_is_new(options.out)
    systems = load_systems(options, list(files.values()))
    data = read_to_judge(options, systems)
    scores = {name: scores_of(system, data) for name, system in zip(files, systems, strict=True)}
    by = attributes_of(options, data)
    comparison = compare(data, scores, options.baseline, options.metric, options.rule, by=by, seed=options.seed)
    if options.out is not None:
        keep_comparison(options.out, data, scores, comparison, options.data)
    tables = [tabulate_comparison(comparison), tabulate_contrasts(comparison)]
    tables += [] if by is None else [tabulate_segments(comparison), tabulate_worst(comparison)]
    show(options, comparison.to_dict(), tables)


def _report(options: argparse.Namespace) -> None:
    from tierank.experiments import Run, side_by_side
    from tierank.report.page import write_report
    from tierank.report.viewer import Titles

    folders = _folders_of_runs(options.runs)
    out = options.out or next(iter(folders.values())) / "report.html"
    check_place(out, read=inputs_of(options))
    titles = None if options.titles is None else Titles.read(options.titles)
    runs = {name: Run.open(_of_demo(folder)) for name, folder in folders.items()}
    run = side_by_side(runs) if len(runs) > 1 else next(iter(runs.values()))
    write_report(run, made(out), titles=titles, by=attributes_by_query(options, run.tests))
    say(f"wrote {out}")


def _folders_of_runs(given: list[str]) -> dict[str, Path]:
    """The folders by name: NAME=RUN, or the name of the folder."""
    pairs = [one if "=" in one and not Path(one).exists() else f"{Path(one).resolve().name}={one}" for one in given]
    return {name: Path(folder) for name, folder in named_pairs(pairs, "RUN or NAME=RUN").items()}


def _of_demo(folder: Path) -> Path:
    """The run of a demo is a subfolder of the demo."""
    inside = folder / "run"
    return inside if not (folder / "run.json").exists() and (inside / "run.json").exists() else folder
