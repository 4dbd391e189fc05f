"""``demo``, ``train``, ``distill``, ``cv`` and ``tune``."""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.cli.console import check_place, inputs_of, made, say
from tierank.cli.options import Parser, add_command, add_judging, add_reading, check_judging, named_pairs
from tierank.cli.own import as_own, import_own, is_own, load_model
from tierank.cli.printing import print_json, print_table, show
from tierank.cli.reading import read_to_learn, reading_options
from tierank.errors import ParameterError, TeamError
from tierank.extras import MissingExtraError
from tierank.files import for_json, replacing

if TYPE_CHECKING:
    from tierank.dataset import RankingDataset
    from tierank.experiments import Run
    from tierank.rankers import Ranker
    from tierank.team import Team


def add_demo(commands: Any) -> None:
    """Add the command."""
    demo = add_command(commands, "demo", "the full workflow on generated data", "demo --queries 200")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder for the files it makes (default: demo)")
    demo.add_argument("--queries", type=int, default=300, help="how many queries to generate (default: 300)")
    demo.add_argument("--seed", type=int, default=0, help="seed of the data and of the rankers (default: 0)")
    demo.add_argument("--jobs", type=int, metavar="N", help="processes (default: one for each core)")
    demo.set_defaults(run=_demo)


def add_train(commands: Any) -> None:
    """Add the command."""
    train = add_command(
        commands,
        "train",
        "fit a ranker and save it as a folder",
        "train umart --train train.csv --valid valid.csv --ignore title,url --set n_trees=300 --out model",
    )
    train.add_argument("ranker", metavar="RANKER", help="a name from: tierank list rankers")
    train.add_argument("--train", dest="data", required=True, metavar="F", help="training data")
    train.add_argument("--valid", metavar="F", help="validation data: choose the best round, and stop early")
    train.add_argument("--out", type=Path, required=True, metavar="MODEL", help="folder for the model")
    train.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="see: tierank list settings RANKER",
    )
    train.add_argument("--settings", type=Path, metavar="F", help="a JSON file of settings, such as tune writes")
    train.add_argument(
        "--position-column",
        dest="position",
        metavar="NAME",
        help="column of the positions where documents were shown; ratings are clicks",
    )
    train.add_argument(
        "--propensity",
        type=Path,
        metavar="F.json",
        help="propensities by position, from: tierank clicks fit --model pbm --out F.json",
    )
    train.add_argument(
        "--start", metavar="MODEL", help="model to continue from: adds trees to its trees, or starts from its weights"
    )
    train.add_argument("--resume", action="store_true", help="continue an interrupted run from MODEL.checkpoint")
    train.add_argument(
        "--ranks",
        type=int,
        default=1,
        metavar="N",
        help="train in N processes on this machine (default: 1); torchrun trains on several",
    )
    train.add_argument(
        "--timeout", type=float, metavar="S", help="seconds that processes wait for each other (default: 600)"
    )
    train.add_argument("--json", action="store_true", help="what was trained, as JSON")
    add_reading(train)
    train.set_defaults(run=_train)


def add_distill(commands: Any) -> None:
    """Add the command."""
    distill = add_command(
        commands,
        "distill",
        "fit one ranker to the ratings and the scores of a blend, to serve it instead of the blend",
        "distill blend --train train.csv --valid valid.csv --into umart --set n_trees=300 --out model",
    )
    distill.add_argument("model", metavar="MODEL", help="a blend that was trained on the same data")
    distill.add_argument("--train", dest="data", required=True, metavar="F", help="the training data of the blend")
    distill.add_argument("--valid", metavar="F", help="its validation data, if it had any")
    distill.add_argument("--into", default="lambdamart", metavar="RANKER", help="what to fit (default: lambdamart)")
    distill.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="see: tierank list settings RANKER"
    )
    distill.add_argument(
        "--mix", type=float, default=0.8, metavar="W", help="share of the blend, from 0 to 1 (default: 0.8)"
    )
    distill.add_argument("--out", type=Path, required=True, metavar="MODEL", help="folder for the new model")
    distill.add_argument("--json", action="store_true", help="what was trained, as JSON")
    add_reading(distill)
    distill.set_defaults(run=_distill)


def add_cv(commands: Any) -> None:
    """Add the command."""
    cv = add_command(
        commands,
        "cv",
        "several rankers on five folds with several seeds: the table of the paper",
        "cv lambdamart umart wide=urank,hidden=[200,100] --data OHSUMED --seeds 5 --out run",
    )
    cv.add_argument(
        "rankers",
        nargs="*",
        metavar="RANKER",
        help="urank, or with settings and a name: wide=urank,hidden=[200,100]; none: show what FOLDER has",
    )
    cv.add_argument("--data", help="a folder with Fold1 to Fold5 or S1 to S5, or a file to split into five parts")
    cv.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="folder for scores and models; run again to continue"
    )
    cv.add_argument("--seeds", type=int, default=1, metavar="N", help="train with the seeds 0 to N - 1 (default: 1)")
    cv.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of all the rankers")
    cv.add_argument("--select", metavar="M,M", help="metrics that choose rounds on validation data, in this order")
    cv.add_argument(
        "--trials", type=int, metavar="N", help="tune each ranker in each fold: N settings on validation data"
    )
    cv.add_argument("--baseline", metavar="NAME", help="the system to compare with (default: the first)")
    cv.add_argument(
        "--scores",
        action="append",
        default=[],
        metavar="NAME=F",
        help="scores of another tool, {fold} in the file name",
    )
    cv.add_argument("--paper", metavar="DATA", help="the paper's settings and rows: ohsumed, mq2007, mslr-web10k, ...")
    cv.add_argument(
        "--as",
        dest="family",
        metavar="WHOSE",
        help="with --paper: paper (default), the settings as printed, or authors, those of the authors' program",
    )
    cv.add_argument(
        "--protocol",
        default="standard",
        help="standard, or lightgbm, that of the paper's last table, which leaks (default: standard)",
    )
    cv.add_argument("--jobs", type=int, metavar="N", help="processes (default: one for each core)")
    add_judging(cv, default_rule=None)
    add_reading(cv)
    cv.set_defaults(run=partial(_cv, cv))


def add_tune(commands: Any) -> None:
    """Add the command."""
    tune = add_command(
        commands,
        "tune",
        "search for the settings of a ranker on validation data",
        "tune umart --data OHSUMED --fold 1 --trials 30 --set n_trees=300 --out umart.json",
    )
    tune.add_argument("ranker", metavar="RANKER", help="a name from: tierank list rankers (not blend)")
    tune.add_argument(
        "--data", required=True, metavar="FOLDER|F", help="a folder of folds (see --fold), or training data"
    )
    tune.add_argument("--valid", metavar="F", help="validation data, if --data is a file")
    tune.add_argument(
        "--fold", type=int, default=1, help="fold whose training and validation data are used (default: 1)"
    )
    tune.add_argument("--trials", type=int, default=20, metavar="N", help="how many settings to try (default: 20)")
    tune.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a fixed setting, which is not searched"
    )
    tune.add_argument(
        "--out", type=Path, required=True, metavar="F", help="JSON for train --settings; trials are stored next to it"
    )
    tune.add_argument("--seed", type=int, default=0, help="seed of the search (default: 0)")
    add_reading(tune)
    tune.set_defaults(run=partial(_tune, tune))


def _demo(options: argparse.Namespace) -> None:
    from tierank.experiments import run_demo
    from tierank.report import tabulate_run
    from tierank.report.page import write_report

    folder = options.out
    check_place(folder, is_folder=True)
    run = run_demo(folder, n_queries=options.queries, seed=options.seed, n_jobs=options.jobs, say=say)
    print_table(tabulate_run(run))
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


def _train(options: argparse.Namespace) -> None:
    settings = _settings_file(options.settings, options.ranker) if options.settings else {}
    ranker = _ranker(options.ranker, settings | _settings(options.set))
    _check_places(options)
    if options.start is not None:  # before any data are read
        ranker.check_start(load_model(options, options.start), ranker.checked_settings())
    if os.environ.get("WORLD_SIZE") not in (None, "", "1"):  # one of several processes: of --ranks, or of torchrun
        from tierank.distributed import join

        with join(**{} if options.timeout is None else {"timeout": options.timeout}) as team:
            _train_in(team, ranker, options)
    elif options.ranks == 1:
        if options.timeout is not None:
            raise ParameterError("timeout: expected --ranks above 1, as a single process does not wait, got 1")
        from tierank.team import Team

        _train_in(Team(), ranker, options)
    else:
        _launch(options)


def _distill(options: argparse.Namespace) -> None:
    from tierank.models import MODEL
    from tierank.rankers import Blend, distill

    ranker = _ranker(options.into, _settings(options.set))
    check_place(options.out, is_folder=True)
    MODEL.check(options.out)
    blend = load_model(options, options.model)
    if not isinstance(blend, Blend):
        raise ParameterError(f"{options.model}: expected a model of blend, got one of {type(blend).__name__}")
    train = read_to_learn(options, options.data)
    valid = None if options.valid is None else read_to_learn(options, options.valid, train)
    fitted = distill(blend, train, ranker, valid=valid, mix=options.mix, progress=True)
    fitted.save(options.out)
    _say_what_was_trained(fitted, options)


def _train_in(team: Team, ranker: Ranker, options: argparse.Namespace) -> None:
    """Train as one process of a team; the first process writes files and messages."""
    from tierank.training.checkpoint import remove_checkpoint

    propensity = _propensity(options)
    checkpoint = _checkpoint(options)
    if team.is_first and not options.resume:
        remove_checkpoint(checkpoint)
    for turn in range(2):  # the first process on each machine reads first, and leaves a binary cache for the others
        if turn == int(os.environ.get("LOCAL_RANK", "0") != "0"):
            train = read_to_learn(options, options.data)
            valid = None if options.valid is None else read_to_learn(options, options.valid, train)
        team.all_gather(None)
    start = None if options.start is None else load_model(options, options.start)
    ranker.fit(
        train,
        valid=valid,
        checkpoint=checkpoint,
        progress=True,
        team=team,
        start=start,
        propensity=propensity,
    )
    if not team.is_first:
        return
    ranker.save(options.out)
    remove_checkpoint(checkpoint)
    _say_what_was_trained(ranker, options, team.size)


def _say_what_was_trained(ranker: Ranker, options: argparse.Namespace, n_processes: int = 1) -> None:
    best = ", ".join(f"{metric} {value:.4f}" for metric, value in ranker.best_.items())
    trained = f", trained by {n_processes} processes" if n_processes > 1 else ""
    say(f"wrote {options.out}{trained}{f'; on validation data: {best}' if best else ''}")
    if options.json:
        kept = {"model": str(options.out), "ranker": type(ranker).__name__, "n_features": ranker.n_features_in_}
        print_json(for_json(kept | {"n_steps": len(ranker.history_), "best": ranker.best_}))


def _propensity(options: argparse.Namespace) -> Any:
    """The propensities of a file, if one was named."""
    if options.propensity is None:
        return None
    if options.position is None:
        raise ParameterError("--propensity: expected --position-column too, which says where documents were shown")
    from tierank.clicks import read_propensities

    return read_propensities(options.propensity)


def _launch(options: argparse.Namespace) -> None:
    """Train in several processes of this machine."""
    from tierank.distributed.launch import launch
    from tierank.kernels import most_workers
    from tierank.settings import as_whole
    from tierank.training.checkpoint import remove_checkpoint

    as_whole("ranks", options.ranks, most=most_workers())
    before = _identity(options.out)
    try:
        launch(options.arguments, options.ranks)
    except TeamError as error:
        if _identity(options.out) not in (None, before):  # training was over, so the lost process does not matter
            remove_checkpoint(_checkpoint(options))
            say(f"{error}; that was after the end of training: {options.out} is complete")
            return
        kept = _checkpoint(options)
        advice = f"{kept} holds its state: --resume continues from it, with any --ranks" if kept.exists() else ""
        raise ParameterError("; ".join(filter(None, (str(error), advice)))) from None


def _identity(folder: Path) -> tuple[int, int] | None:
    """What distinguishes a folder from one that replaces it; None if there is no folder."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _check_places(options: argparse.Namespace) -> None:
    """Raise an error before the work if training would overwrite something else."""
    from tierank.models import MODEL
    from tierank.training.checkpoint import check_checkpoint

    check_place(options.out, is_folder=True)
    MODEL.check(options.out)
    check_checkpoint(_checkpoint(options))


def _checkpoint(options: argparse.Namespace) -> Path:
    out: Path = options.out
    return out.with_name(out.name + ".checkpoint")


def _ranker(name: str, settings: dict[str, Any]) -> Ranker:
    from tierank.rankers import RANKERS, Ranker

    kind = import_own(name) if is_own(name) else RANKERS.get(name)
    if kind is None:
        raise ParameterError.unknown("ranker", name, RANKERS)
    if not isinstance(kind, type) or not issubclass(kind, Ranker):
        raise ParameterError(argument="ranker", expected="a class derived from tierank.Ranker", got=name)
    preset = settings.pop("preset", None)
    ranker = kind(**settings) if preset is None else kind.from_preset(preset, **settings)
    ranker.check_settings()  # before any data are read
    return ranker


def _rankers(asked: dict[str, tuple[str, dict[str, Any]]], common: dict[str, Any]) -> dict[str, Ranker]:
    """The rankers by name, from their kind and settings; ``common`` are settings of all of them."""
    rankers: dict[str, Ranker] = {}
    refused: dict[str, ParameterError] = {}
    for name, (kind, settings) in asked.items():
        try:
            rankers[name] = _ranker(kind, settings)
        except ParameterError as error:
            refused[name] = error
    if refused:
        raise _of_common(asked, rankers, refused, common)
    return rankers


def _of_common(
    asked: dict[str, tuple[str, dict[str, Any]]],
    found: dict[str, Ranker],
    refused: dict[str, ParameterError],
    common: dict[str, Any],
) -> ParameterError:
    """The first error; for a setting that only other rankers have, an error that names them."""
    first = next(iter(refused.values()))
    setting = first.name
    if setting not in common:
        return first
    lacking = {name: error for name, error in refused.items() if error.name == setting}
    if not found:  # a name that is unknown to the first ranker may be a setting of another
        known = (name for error in lacking.values() for name in error.known)
        return ParameterError.unknown(f"setting of {', '.join(lacking)}", setting, known, None, first.elsewhere)
    having, value = list(found), common[str(setting)]
    return ParameterError(
        f"--set {setting}: expected a setting of all the rankers, got one that {', '.join(having)} can have and"
        f" {', '.join(lacking)} cannot; give it where it belongs: {asked[having[0]][0]},{setting}={value}"
    )


def _settings(pairs: list[str]) -> dict[str, Any]:
    return {name: _value(text) for name, text in named_pairs(pairs, "NAME=VALUE, such as n_trees=200").items()}


def _value(text: str) -> Any:
    """A value in JSON (numbers, lists, true, null) or Python syntax (tuples, True, None); otherwise a text.

    ``package.module:Name`` is the caller's own loss, network, metric or transform; the name of a rule may have the same
    form, ``letor:condense``.
    """
    from tierank.metrics import RULES

    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return parse(text)
    return text if text.partition(":")[0] in RULES else as_own(text)


def _settings_file(file: Path, ranker: str) -> dict[str, Any]:
    """The settings that ``tune`` wrote, if they are for this ranker."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        settings, of = {name: _from_json(value) for name, value in content["settings"].items()}, content["ranker"]
    except (ValueError, KeyError, TypeError, AttributeError, SyntaxError, RecursionError):
        raise ParameterError(f'{file}: expected {{"ranker": ..., "settings": {{...}}}}, as tune writes it') from None
    if of != ranker:
        raise ParameterError(f"{file}: expected settings of {ranker}, got those of {of}")
    return settings


def _as_json(value: Any) -> Any:
    """A setting for JSON; tables, whose keys may be numbers there, as texts in Python syntax."""
    return repr(dict(value)) if isinstance(value, Mapping) else value


def _from_json(value: Any) -> Any:
    return ast.literal_eval(value) if isinstance(value, str) and value.startswith("{") else value


# Options of cv that say what of a run is shown, and how.
_TO_SHOW = ("out", "metric", "rule", "unjudged", "baseline", "json", "markdown", "latex", "silent")


def _cv(parser: Parser, options: argparse.Namespace) -> None:
    from tierank.experiments import Run
    from tierank.report import tabulate_contrasts, tabulate_run

    check_place(options.out, is_folder=True)
    check_judging(options)
    before = _results(options.out)
    if options.rankers or options.scores:
        run = _cross_validated(options)
    else:
        parser.refuse_unused(
            options, _TO_SHOW, f"rankers too, got none; without rankers, cv shows what {options.out} has"
        )
        run = Run.open(options.out).judged_by(options.metric, options.rule, options.baseline)
    tables = [tabulate_run(run)]
    if len(run.systems) > 1:
        tables.append(tabulate_contrasts(run.comparison))
        _draw_improvement(run, options.out)
    with replacing(options.out / "table.md") as fresh:
        fresh.write_text("\n".join(table.to_markdown() for table in tables), encoding="utf-8")
    show(options, run.to_dict(), tables)
    hint = f"tierank report {options.out} shows them"
    if _results(options.out) == before:
        say(f"wrote {options.out / 'table.md'}; the scores and models were there already: {hint}")
    else:
        say(f"wrote {options.out}: table.md, scores and models; {hint}")


def _results(folder: Path) -> dict[Path, int]:
    """The results of a run: the folder of each, and when it was written."""
    return {place: place.stat().st_mtime_ns for place in folder.glob("results/*/*")}


def _draw_improvement(run: Run, folder: Path) -> bool:
    """Draw the figure of a run in its folder. Without matplotlib, say what is missing: the report has the figure too.

    Returns whether it was drawn.
    """
    from tierank.report import draw_improvement

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
        raise ParameterError("--as: expected --paper too, which names the data set of the settings, got none")
    if options.data is None:
        raise ParameterError("expected --data: a folder of folds, or a file to split into five parts")
    rankers = _rankers_to_compare(options)
    if options.protocol == "lightgbm":
        say(f"WARNING: {LEAKS}")
    return cross_validate(
        rankers,
        options.data,
        seeds=options.seeds,
        metrics=options.metric,
        rule=options.rule or ("wsdm20" if paper is not None and options.protocol == "standard" else None),
        baseline=options.baseline,
        scores=named_pairs(options.scores, "NAME=FILE, such as other=other-fold{fold}.scores"),
        trials=options.trials,
        protocol=options.protocol,
        out=options.out,
        n_jobs=options.jobs,
        progress=True,
        paper=paper,
        **reading_options(options),
    )


def _rankers_to_compare(options: argparse.Namespace) -> dict[str, Ranker]:
    """The rankers by name; settings of one ranker replace those of ``--set``, and these those of the paper."""
    from tierank.experiments import PAPERS

    common = _settings(options.set)
    if options.select:
        common["select_by"] = [as_own(metric) for metric in options.select.split(",")]
    asked: dict[str, tuple[str, dict[str, Any]]] = {}
    for text in options.rankers:
        name, kind, settings = _named_ranker(text)
        if name in asked:
            raise ParameterError(f"expected each name once, got {name!r} twice; name one: other={text}")
        of_paper = {}
        if options.paper is not None:
            of_paper = PAPERS[options.paper].settings(kind, options.family or "paper", options.protocol)
        asked[name] = kind, of_paper | common | settings
    return _rankers(asked, common)


def _named_ranker(text: str) -> tuple[str, str, dict[str, Any]]:
    """``NAME=RANKER,SETTING=VALUE,...`` as a name, a ranker and settings; commas inside brackets do not separate."""
    head, *pairs = re.split(r",(?![^\[{(]*[\]})])", text)
    name, equals, ranker = head.partition("=")
    return (name, ranker, _settings(pairs)) if equals else (text, head, _settings(pairs))


def _tune(parser: Parser, options: argparse.Namespace) -> None:
    from tierank.experiments import tune
    from tierank.experiments.tuning import space_of

    held = _settings(options.set)
    given = named_pairs(options.set)
    # The caller's own code is not written: a file of settings never causes an import.
    own = {name: text for name, text in given.items() if is_own(text) and not isinstance(held[name], str)}
    ranker = _ranker(options.ranker, held)
    space = {name: values for name, values in space_of(ranker).items() if name not in held}
    if not space:
        raise ParameterError(f"--set: expected at least one setting left to tune, got all of {', '.join(held)}")
    check_place(options.out, read=inputs_of(options))
    train, valid = _data_to_tune_on(parser, options)
    study = options.out.with_name(options.out.name + ".trials")
    tuning = tune(
        ranker, train, valid, trials=options.trials, space=space, seed=options.seed, study=study, progress=True
    )
    content = {
        "ranker": options.ranker,
        "settings": {name: _as_json(value) for name, value in (held | tuning.settings).items() if name not in own},
        tuning.metric: tuning.value,
        "trials": tuning.trials,
    }
    with replacing(made(options.out)) as fresh:
        fresh.write_text(json.dumps(content, indent=1), encoding="utf-8")
    say(f"best of {len(tuning.trials)}: {tuning.metric} {tuning.value:.4f} on validation data with {tuning.settings}")
    again = "".join(f" --set {name}={text}" for name, text in own.items())
    say(f"wrote {options.out}; use it: tierank train {options.ranker} --settings {options.out}{again} ...")


def _data_to_tune_on(parser: Parser, options: argparse.Namespace) -> tuple[RankingDataset, RankingDataset]:
    """Training and validation data: of a fold, or of two files."""
    from tierank.readers import is_folder_of_folds, read_fold

    if is_folder_of_folds(options.data):
        if options.valid is not None:
            raise ParameterError(
                f"--valid: expected a file as --data, got {options.data}, whose folds have validation data"
            )
        train, valid, _ = read_fold(options.data, options.fold, **reading_options(options))
        return train, valid
    if options.valid is None:
        raise ParameterError("expected --valid F with a file of training data: settings are chosen on it")
    if options.fold != parser.get_default("fold"):
        raise ParameterError(f"--fold: expected a folder of folds as --data, got the file {options.data}")
    train = read_to_learn(options, options.data)
    return train, read_to_learn(options, options.valid, train)
