"""``demo``, ``cv`` and ``tune``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tierank.cli.commands import command
from tierank.cli.console import check_place, made, say, show
from tierank.cli.data import read_like, read_to_learn, reading_options
from tierank.cli.options import by_name, given_to, settings_of
from tierank.cli.plugins import as_own, is_own
from tierank.cli.results import rule_of
from tierank.cli.train import make_ranker, ranker_class
from tierank.errors import ParameterError
from tierank.extras import MissingExtraError
from tierank.files import replacing

if TYPE_CHECKING:
    from tierank.data.dataset import RankingDataset
    from tierank.experiments import Run
    from tierank.rankers.base import Ranker


@command()
def demo(options: argparse.Namespace) -> None:
    """The full workflow on generated data.

    Example: tierank demo --queries 200

    --out : path, default demo
        folder for the files it makes
    --all : switch
        also uboost and urboost, which take most of the time
    --queries N : integer, as n_queries, default 300
        how many queries to generate
    --seed : seed
        seed of the data and of the rankers
    --jobs N : experiments/crossval:cross_validate
    """
    from tierank.experiments import run_demo
    from tierank.report.page import write_report
    from tierank.report.tabulate import tabulate_run

    folder = options.out
    check_place(options, folder, is_folder=True)
    run = run_demo(
        folder, n_queries=options.n_queries, seed=options.seed, n_jobs=options.n_jobs, every=options.all, say=say
    )
    show(argparse.Namespace(json=False), {}, [tabulate_run(run)])
    drawn = _draw_improvement(run, folder)
    write_report(run, folder / "report.html")
    train, valid, test = (folder / f"{part}.txt" for part in ("train", "valid", "test"))
    figure = f"; {folder / 'improvement.png'} is a figure of it" if drawn else ""
    print(f"Open {folder / 'report.html'} to see the lists side by side{figure}.")
    few = " ".join(name for name in ("lambdamart", "umart", "urank") if name in run.systems)  # urank needs torch
    print("\nThe same by hand, or on your own data:")
    for line in (
        f"describe {train}",
        f"train umart --train {train} --valid {valid} --out {folder / 'mine'}",
        f"evaluate {test} {folder / 'mine'}",
        f"explain {folder / 'mine'} {test} --query {run.tests[0].query_ids[0]} --above 1 --below 2",
        f"cv {few} --data {train} --seeds 3 --out {folder / 'folds'}",
        f"report {folder / 'folds'} --out {folder / 'folds.html'}",
    ):
        print(f"  tierank {line}")


# Options of cv that say what of a run is shown, and how.
_TO_SHOW = ("out", "metric", "rule", "unjudged", "baseline", "all_rows", "json", "markdown", "latex", "silent")


@command(rule_of, reading_options)
def cv(options: argparse.Namespace) -> None:
    """Several rankers on five folds with several seeds: the table of the paper.

    Example: tierank cv lambdamart umart wide=urank,hidden=[200,100] --data OHSUMED --seeds 5 --out run

    rankers RANKER : rankers, any number
        urank, or with settings and a name: wide=urank,hidden=[200,100]; none: show what FOLDER has
    --data : file
        a folder with Fold1 to Fold5 or S1 to S5, or a file to split into five parts
    --out FOLDER : path, required
        folder for scores and models; run again to continue
    --set NAME=VALUE : settings
    --select M,M : names
        metrics that choose rounds on validation data
    --scores NAME=F : score files
        scores of another tool, {fold} in the file name
    --seeds N, --trials N, --baseline NAME : experiments/crossval:cross_validate
    --jobs N, --protocol NAME, --paper DATA : experiments/crossval:cross_validate
    --as WHOSE : text, as family
        with --paper: paper (default), the settings as printed; authors or authors-later, those of its program
    --all-rows : switch
        with --paper: its rows for rankers that were not run, too
    --rule : rule
        how ties, empty queries and gains count; see: tierank list rules (default: tierank; wsdm20 with --paper)
    """
    from tierank.experiments import Run
    from tierank.experiments.published import why_not_comparable
    from tierank.report.tabulate import tabulate_contrasts, tabulate_paper, tabulate_run

    check_place(options, options.out, is_folder=True)
    before, adds = _results(options.out), bool(options.rankers or options.scores)
    if options.all_rows and (options.paper if adds else Run.open(options.out).plan.paper) is None:
        raise ParameterError(argument="all_rows", expected="`paper` too, or a run that was made with it", got="none")
    if adds:
        run = _cross_validated(options)
    else:
        for one in options.command.arguments:  # those of training would have no effect
            given = getattr(options, one.dest)
            if one.is_option and one.dest not in _TO_SHOW and given != one.settings["default"]:
                shows = f"without rankers, cv shows what {options.out} has"
                raise ParameterError(argument=one.dest, expected="rankers too", got="none", fix=shows)
        run = Run.open(options.out).judged_by(options.metric, rule_of(options), options.baseline)
    beside = tabulate_paper(run, all_rows=options.all_rows)
    differences = [tabulate_contrasts(run.comparison)] if len(run.systems) > 1 else []
    whole = [tabulate_run(run), *differences]
    is_whole = beside and not any(why_not_comparable(run).values())
    show(options, run.to_dict(), beside if is_whole else [*beside, *whole])
    if not adds:  # a look at a run changes none of its files
        return
    if differences:
        _draw_improvement(run, options.out)
    with replacing(options.out / "table.md") as fresh:
        fresh.write_text("\n".join(table.to_markdown() for table in [*beside, *whole]), encoding="utf-8")
    hint = f"tierank report {options.out} shows them"
    if _results(options.out) == before:
        say(f"wrote {options.out / 'table.md'}; the scores and models were there already: {hint}")
    else:
        say(f"wrote {options.out}: table.md, scores and models; {hint}")


def _results(folder: Path) -> dict[Path, int]:
    """The results of a run: the folder of each, and when it was written."""
    return {place: place.stat().st_mtime_ns for place in folder.glob("results/*/*")}


def _draw_improvement(run: Run, folder: Path) -> bool:
    """Draw the figure of a run in its folder; returns whether it was drawn. The report has the figure too."""
    from tierank.report.figures import draw_improvement

    try:
        draw_improvement(run.comparison, [folder / "improvement.png", folder / "improvement.svg"])
    except MissingExtraError as error:
        say(f"left out: {error}")
        return False
    return True


def _cross_validated(options: argparse.Namespace) -> Run:
    from tierank.experiments import LEAKS, PAPERS, cross_validate

    paper = options.paper
    if paper is not None and paper not in PAPERS:
        raise ParameterError.unknown("paper", paper, PAPERS)
    if options.family is not None and paper is None:
        expected = "`paper` too, which names the data set of the settings"
        raise ParameterError(argument="family", expected=expected, got="none")
    if options.data is None:
        raise ParameterError(expected="`data`: a folder of folds, or a file to split into five parts", got="none")
    rankers = _rankers_to_compare(options)
    if options.protocol == "lightgbm":
        say(f"WARNING: {LEAKS}")
    rule = rule_of(options) or ("wsdm20" if paper is not None and options.protocol == "standard" else None)
    chosen = {"rankers": rankers, "metrics": options.metric, "rule": rule, "scores": by_name(options.scores)}
    return cross_validate(**(given_to(cross_validate, options) | chosen), progress=True, **reading_options(options))


def _rankers_to_compare(options: argparse.Namespace) -> dict[str, Ranker]:
    """The rankers by name; settings of one ranker replace those of ``--set``, and these those of the paper."""
    from tierank.experiments import PAPERS

    kinds = by_name((name, kind) for name, kind, _ in options.rankers)
    common = settings_of(options.set)
    if options.select:
        common["select_by"] = [as_own(metric) for metric in options.select]
    having = {one: [name for name, kind in kinds.items() if _has(kind, one)] for one in common}
    for setting, names_of_rankers in having.items():
        lacking = [name for name in kinds if name not in names_of_rankers]
        if lacking and not names_of_rankers:
            known = {one for kind in kinds.values() for one in ranker_class(kind).declared_settings()}
            raise ParameterError.unknown(f"setting of {', '.join(lacking)}", setting, known)
        if lacking:
            have = "has" if len(lacking) == 1 else "have"
            say(f"--set {setting}: not for {', '.join(lacking)}, which {have} no such setting")
    rankers = {}
    for name, kind, settings in options.rankers:
        of_paper = {}
        if options.paper is not None:
            of_paper = PAPERS[options.paper].settings(kind, options.family or "paper", options.protocol)
        shared = {one: value for one, value in common.items() if name in having[one]}
        rankers[name] = make_ranker(kind, of_paper | shared | settings)
    return rankers


def _has(ranker: str, setting: str) -> bool:
    """Whether a setting means something to a ranker."""
    kind = ranker_class(ranker)
    return setting in kind.declared_settings() or (setting == "preset" and bool(kind.PRESETS))


@command(reading_options)
def tune(options: argparse.Namespace) -> None:
    """Search for the settings of a ranker on validation data.

    Example: tierank tune umart --data OHSUMED --fold 1 --trials 30 --set n_trees=300 --out umart.json

    ranker RANKER : ranker
    --data FOLDER|F : file, required
        a folder of folds (see --fold), or training data
    --valid F : file
        validation data, if --data is a file
    --fold : integer
        fold whose training and validation data are used (default: 1)
    --trials N, --seed N : experiments/tuning:tune
    --set NAME=VALUE : settings
    --out F : path, required
        JSON for train --settings; trials are stored next to it
    """
    from tierank.experiments import tune
    from tierank.experiments.tuning import space_of

    held = settings_of(options.set)
    # The caller's own code is not written: a file of settings never causes an import.
    own = {name: text for name, text in options.set if is_own(text) and not isinstance(held[name], str)}
    ranker = make_ranker(options.ranker, held)
    space = {name: values for name, values in space_of(ranker).items() if name not in held}
    if not space:
        expected = "at least one setting left to tune"
        raise ParameterError(argument="set", expected=expected, got=f"all of {', '.join(held)}")
    check_place(options, options.out)
    train, valid = _data_to_tune_on(options)
    study = options.out.with_name(options.out.name + ".trials")
    tuning = tune(
        ranker, train, valid, trials=options.trials, space=space, seed=options.seed, study=study, progress=True
    )
    # JSON has no tables whose keys are numbers: they become texts in Python syntax.
    settings = {
        name: repr(dict(value)) if isinstance(value, Mapping) else value
        for name, value in (held | tuning.settings).items()
        if name not in own
    }
    content = {"ranker": options.ranker, "settings": settings, tuning.metric: tuning.value, "trials": tuning.trials}
    with replacing(made(options.out)) as fresh:
        fresh.write_text(json.dumps(content, indent=1), encoding="utf-8")
    say(f"best of {len(tuning.trials)}: {tuning.metric} {tuning.value:.4f} on validation data with {tuning.settings}")
    again = "".join(f" --set {name}={text}" for name, text in own.items())
    say(f"wrote {options.out}; use it: tierank train {options.ranker} --settings {options.out}{again} ...")


def _data_to_tune_on(options: argparse.Namespace) -> tuple[RankingDataset, RankingDataset]:
    """Training and validation data: of a fold, or of two files."""
    from tierank.io import is_folder_of_folds, read_fold

    if is_folder_of_folds(options.data):
        if options.valid is not None:
            got = f"{options.data}, whose folds have validation data"
            raise ParameterError(argument="valid", expected="a file as `data`", got=got)
        train, valid, _ = read_fold(options.data, options.fold or 1, **reading_options(options))
        return train, valid
    if options.fold is not None:
        got = f"the file {options.data}"
        raise ParameterError(argument="fold", expected="a folder of folds as `data`", got=got)
    if options.valid is None:
        expected = "`valid` F with a file of training data: settings are chosen on it"
        raise ParameterError(expected=expected, got="none")
    train = read_to_learn(options, options.data)
    return train, read_like(options, options.valid, train, is_rated=True)
