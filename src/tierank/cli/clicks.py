"""``clicks``: describe, fit, propensities, judge, simulate, evaluate."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.cli.console import check_place, inputs_of, made, say
from tierank.cli.options import Parser, add_command
from tierank.cli.printing import print_json, print_table
from tierank.errors import ParameterError, TierankError

if TYPE_CHECKING:
    from tierank.clicks import ClickLog, ClickModel, Judgements, Propensities
    from tierank.report import Table

# Options for arguments of Python.
_OPTIONS = {
    "session": "--session-column",
    "query": "--query-column",
    "document": "--document-column",
    "position": "--position-column",
    "clicked": "--clicked-column",
    "scores": "--score-column",
    "zero_based": "--zero-based",
    "model": "--model",
    "by": "--by",
    "clip": "--clip",
    "k": "--k",
    "top": "--top",
    "half": "--half",
    "data": "--data",
    "n_bootstrap": "--bootstrap",
    "held_out": "--held-out",
}


def add_clicks(commands: Any) -> None:
    """Add the command and its subcommands."""
    parser = add_command(
        commands, "clicks", "click logs: models, propensities, judgements", "clicks describe log.csv", has_quiet=False
    )
    subcommands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for add in (_add_describe, _add_fit, _add_propensities, _add_judge, _add_simulate, _add_evaluate):
        add(subcommands)


def _add_describe(commands: Any) -> None:
    command = _add(
        commands, "describe", "click-through by position, and what looks wrong", "describe log.csv", _describe
    )
    command.add_argument("--json", action="store_true", help="machine-readable output")


def _add_fit(commands: Any) -> None:
    command = _add(
        commands,
        "fit",
        "fit click models, and say how well they predict",
        "fit log.csv --model dbn --out dbn.json",
        _fit,
    )
    command.add_argument(
        "--model", action="append", metavar="M", help="ctr, pbm, cascade, dcm, ubm, dbn, sdbn (default: all)"
    )
    _add_model(command)
    command.add_argument(
        "--held-out", type=float, default=0.25, metavar="SHARE", help="share of sessions to test on (default: 0.25)"
    )
    command.add_argument("--seed", type=int, default=0, help="seed that chooses the sessions held out (default: 0)")
    command.add_argument("--out", type=Path, metavar="F.json", help="write the best model, fitted to all sessions")
    command.add_argument("--json", action="store_true", help="machine-readable output")


def _add_propensities(commands: Any) -> None:
    command = _add(
        commands,
        "propensities",
        "how likely documents are examined in each position",
        "propensities log.csv --method harvest",
        _propensities,
    )
    _add_method(command)
    command.add_argument("--bootstrap", type=int, default=200, metavar="N", help="samples for intervals (default: 200)")
    command.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default: 0)")
    command.add_argument("--plot", type=Path, metavar="F.png", help="draw them: .png, .svg or .pdf")
    command.add_argument("--json", action="store_true", help="machine-readable output")


def _add_judge(commands: Any) -> None:
    command = _add(
        commands, "judge", "ratings from clicks, weighted by certainty", "judge log.csv --out ratings.csv", _judge
    )
    command.add_argument(
        "--model",
        default="best",
        metavar="M",
        help="a click model, its file, or best: by held-out sessions (default: best)",
    )
    command.add_argument("--top", type=float, default=4.0, help="the highest rating (default: 4)")
    command.add_argument(
        "--half", type=float, default=40.0, metavar="N", help="examinations for a weight of 0.5 (default: 40)"
    )
    command.add_argument(
        "--data", metavar="F", help="documents with features: write these, rated with the help of similar documents"
    )
    command.add_argument("--out", type=Path, required=True, metavar="F", help="write there: .csv or .parquet")


def _add_simulate(commands: Any) -> None:
    command = _add(
        commands,
        "simulate",
        "the same lists with clicks drawn from a model",
        "simulate log.csv --model pbm --out new.csv",
        _simulate,
    )
    command.add_argument("--model", default="pbm", metavar="M", help="a click model or its file (default: pbm)")
    command.add_argument("--seed", type=int, default=0, help="seed of the clicks (default: 0)")
    command.add_argument("--out", type=Path, required=True, metavar="F", help="write there: .csv or .parquet")


def _add_evaluate(commands: Any) -> None:
    command = _add(
        commands,
        "evaluate",
        "what another ranker would have earned on these lists",
        "evaluate log.csv --score-column new --estimator dr --clip 10",
        _evaluate,
    )
    command.add_argument("--score-column", required=True, metavar="NAME", help="the scores of that ranker in the log")
    command.add_argument("--estimator", default="ips", metavar="E", help="ips, snips or dr (default: ips)")
    command.add_argument("--earn", default="clicks", metavar="M", help="clicks or dcg (default: clicks)")
    command.add_argument("--k", type=int, metavar="K", help="only the first K ranks count (default: all)")
    command.add_argument("--clip", type=float, metavar="W", help="lower weights above W to W (default: none)")
    _add_method(command)
    command.add_argument("--json", action="store_true", help="machine-readable output")


def _add(
    commands: Any, name: str, summary: str, example: str, run: Callable[[argparse.Namespace], None]
) -> argparse.ArgumentParser:
    """A command on a log, with the options to read it."""
    parser = add_command(commands, name, summary, f"clicks {example}")
    parser.add_argument("log", metavar="LOG", help="a CSV or Parquet file, a row for each document shown; -: a pipe")
    group = parser.add_argument_group("how the log is read")
    for role, what, usual in (
        ("session", "the list that a row belongs to", "session or session_id"),
        ("query", "query ids", "qid, query or query_id"),
        ("document", "document ids, A,B for several columns", "document, document_id, docid or doc_id"),
        ("position", "positions, 1 at the top", "position or rank"),
        ("clicked", "clicks, 0 or 1", "clicked or click"),
    ):
        group.add_argument(f"--{role}-column", dest=role, metavar="NAME", help=f"{what} (default: {usual})")
    group.add_argument("--zero-based", action="store_true", help="positions count from 0")
    group.add_argument("--drop", action="store_true", help="leave out sessions that cannot be used, and count them")
    parser.set_defaults(run=_with_options(run))
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--by", metavar="WHAT", help="pair or document: what has an attractiveness (default: pair)")


def _add_method(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--method", default="pbm", metavar="M", help="pbm, shuffled, swaps or harvest (default: pbm)")
    parser.add_argument(
        "--swap-column", metavar="NAME", help="column of the swap, for the method swaps (default: swap)"
    )
    parser.add_argument(
        "--ranker-column", metavar="NAME", help="column of the ranker, for the method harvest (default: ranker)"
    )


def _with_options(run: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    def command(options: argparse.Namespace) -> None:
        with _errors_in_options():
            run(options)

    return command


@contextmanager
def _errors_in_options() -> Iterator[None]:
    try:
        yield
    except TierankError as error:
        raise ParameterError(error.render(_OPTIONS.get)) from None


def _read(options: argparse.Namespace, columns: Sequence[str] = (), *, drop: bool = False) -> ClickLog:
    from tierank.clicks import read

    document = None if options.document is None else options.document.split(",")
    log = read(
        options.pipes.as_file(options.log),
        session=options.session,
        query=options.query,
        document=document if document is None or len(document) > 1 else document[0],
        position=options.position,
        clicked=options.clicked,
        columns=columns,
        zero_based=options.zero_based,
        on_error="drop" if drop or options.drop else "raise",
    )
    for reason, n in log.dropped.items() if not drop else ():
        say(f"WARNING: {n:,} sessions left out: {reason}")
    return log


def _describe(options: argparse.Namespace) -> None:
    from tierank.evaluation import format_number

    summary = _read(options, drop=True).describe()
    if options.json:
        print_json(summary.to_dict())
        return
    rows = [
        [str(k), f"{n:,}", format_number(rate)]
        for k, (n, rate) in enumerate(zip(summary.shown, summary.click_through, strict=True), 1)
    ]
    notes = [
        f"{summary.n_sessions:,} sessions, {summary.n_queries:,} queries, {summary.n_documents:,} documents",
        f"{summary.clicks_per_session:.2f} clicks per session, {summary.share_without_clicks:.1%} of sessions without",
        *(f"looks wrong: {problem}" for problem in summary.problems),
    ]
    print_table(_table(str(options.log), ["position", "shown", "click-through"], rows, notes))


def _fit(options: argparse.Namespace) -> None:
    import numpy as np

    from tierank.clicks import CLICK_MODELS, compare_models, make_model, save
    from tierank.files import for_json
    from tierank.settings import Number

    Number(above=0, below=1).check("--held-out", options.held_out)
    names = options.model or list(CLICK_MODELS)
    check_place(options.out, read=inputs_of(options))
    models = {name: make_model(name, **_settings(name, options)) for name in names}
    log = _read(options)
    by_model = compare_models(log, models, held_out=options.held_out, seed=options.seed)
    best = max(by_model, key=lambda name: by_model[name].log_likelihood)
    if options.out is not None:
        save(models[best].fit(log), made(options.out))
        say(f"wrote {options.out}: {best}, fitted to all {log.n_sessions:,} sessions")
    if options.json:
        shown = {
            name: {
                "perplexity": float(np.nanmean(one.perplexity)),
                "conditional_perplexity": float(np.nanmean(one.conditional_perplexity)),
                "log_likelihood": one.log_likelihood,
                "perplexity_by_position": for_json(one.perplexity.tolist()),
            }
            for name, one in by_model.items()
        }
        print_json({"n_sessions": log.n_sessions, "held_out": options.held_out, "best": best, "models": shown})
        return
    rows = [
        [name, *(f"{np.nanmean(one):.4f}" for one in (by.perplexity, by.conditional_perplexity, by.log_likelihood))]
        for name, by in by_model.items()
    ]
    notes = [
        f"{options.held_out:.0%} of {log.n_sessions:,} sessions were held out; perplexities are means over positions",
        f"best by log-likelihood: {best}",
    ]
    columns = ["model", "perplexity", "given the clicks above", "log-likelihood"]
    print_table(_table(f"Click models of {options.log}", columns, rows, notes))


def _propensities(options: argparse.Namespace) -> None:
    from tierank.evaluation import format_number
    from tierank.report.figures import check_figure, save_figure

    check_place(options.plot, read=inputs_of(options))
    if options.plot is not None:
        check_figure(options.plot)
    propensities = _estimated(options, options.bootstrap)[1]
    if options.plot is not None:
        save_figure(propensities.plot().figure, made(options.plot))
        say(f"wrote {options.plot}")
    if options.json:
        print_json(propensities.to_dict())
        return
    numbers = zip(propensities.values, propensities.low, propensities.high, strict=True)
    rows = [[str(k), *map(format_number, row)] for k, row in enumerate(numbers, 1)]
    notes = [f"relative to position 1; {propensities.level:.0%} intervals by the bootstrap over sessions"]
    print_table(
        _table(f"Propensities by {propensities.method}", ["position", "propensity", "low", "high"], rows, notes)
    )


def _estimated(
    options: argparse.Namespace, n_bootstrap: int, columns: Sequence[str] = ()
) -> tuple[ClickLog, Propensities]:
    from tierank.clicks import PROPENSITY_METHODS, estimate_propensities

    known = [name for name in PROPENSITY_METHODS if name != "regression"]
    if options.method not in known:
        raise ParameterError.unknown("--method", options.method, known)
    for option, given, method in (
        ("--swap-column", options.swap_column, "swaps"),
        ("--ranker-column", options.ranker_column, "harvest"),
    ):
        if given is not None and options.method != method:
            raise ParameterError(f"{option}: expected together with --method {method}")
    column = {"swaps": options.swap_column or "swap", "harvest": options.ranker_column or "ranker"}.get(options.method)
    log = _read(options, [*columns, *([column] if column else [])])
    settings: dict[str, Any] = {"column": column} if column else {}
    seed = getattr(options, "seed", 0)
    return log, estimate_propensities(log, options.method, n_bootstrap=n_bootstrap, seed=seed, **settings)


def _judge(options: argparse.Namespace) -> None:
    from tierank.clicks import judgements

    _check_table(options)
    model = "best" if options.model == "best" else _model(options.model)
    judged = judgements(_read(options), model, top=options.top, half=options.half)
    if options.data is not None:
        _write_rated(options, judged)
        return
    judged.write(made(options.out))
    n_sure = (judged.weight > 0.5).sum()
    say(f"wrote {options.out}: {len(judged):,} judgements by {judged.model.name}, {n_sure:,} with a weight above 0.5")


def _write_rated(options: argparse.Namespace, found: Judgements) -> None:
    """The documents of ``--data``, rated."""
    from tierank.readers import read, write

    rated = found.rate(read(options.pipes.as_file(options.data)))
    write(rated, made(options.out))
    say(f"wrote {options.out}: {rated}, by {found.model.name}")


def _simulate(options: argparse.Namespace) -> None:
    _check_table(options)
    model = _model(options.model)
    log = _read(options)
    if not model.is_fitted:
        model.fit(log)
    drawn = model.simulate(log, seed=options.seed)
    drawn.write(made(options.out))
    say(f"wrote {options.out}: {drawn}")


def _evaluate(options: argparse.Namespace) -> None:
    from tierank.clicks import evaluate_ranking
    from tierank.clicks.offpolicy import EARNINGS, METHODS
    from tierank.evaluation import format_number
    from tierank.settings import as_choice, as_whole

    as_choice("--estimator", options.estimator, METHODS)  # before the log is read
    if options.k is not None:
        as_whole("--k", options.k)
    as_choice("--earn", options.earn, EARNINGS)
    log, propensities = _estimated(options, 0, [options.score_column])
    value = evaluate_ranking(
        log,
        options.score_column,
        propensities,
        method=options.estimator,
        metric=options.earn,
        k=options.k,
        clip=options.clip,
    )
    if options.json:
        print_json(value.to_dict())
        return
    rows = [
        [options.score_column, *map(format_number, (value.value, value.low, value.high))],
        ["as shown", f"{value.logged:.4f}", "", ""],
    ]
    notes = [
        f"{options.earn} per session by {value.method}, with its {value.level:.0%} interval",
        f"propensities by {propensities.method}",
        f"effective sample size {value.effective_sample_size:,.0f} of {value.n_sessions:,} sessions",
    ]
    print_table(_table(f"Off-policy value on {options.log}", ["ranking", options.earn, "low", "high"], rows, notes))


def _check_table(options: argparse.Namespace) -> None:
    """Raise an error before the work if no table can be written."""
    from tierank.clicks.log import check_ending

    check_place(options.out, read=inputs_of(options))
    check_ending(options.out)


def _settings(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The given settings that a model has."""
    return {} if options.by is None or name == "ctr" else {"by": options.by}


def _model(name: str) -> ClickModel:
    from tierank.clicks import CLICK_MODELS, load, make_model

    is_file = name not in CLICK_MODELS and (Path(name).suffix == ".json" or Path(name).is_file())
    return load(name) if is_file else make_model(name)


def _table(title: str, columns: list[str], rows: list[list[str]], notes: list[str]) -> Table:
    from tierank.report import Table

    return Table(title, columns, rows, notes)
