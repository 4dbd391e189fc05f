"""``clicks``: describe, fit, propensities, judge, simulate, evaluate."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.cli.commands import Command, command
from tierank.cli.console import check_place, in_options, made, say, show
from tierank.cli.options import given_to
from tierank.errors import ParameterError

if TYPE_CHECKING:
    from tierank.clicks import ClickLog, ClickModel, Propensities
    from tierank.report.tabulate import Table

# What ``evaluate`` estimates, in words.
_EARNED = {"clicks": "clicks", "dcg": "DCG with attractiveness as gain,"}


def _read(options: argparse.Namespace, columns: Sequence[str] = (), *, drop: bool = False) -> ClickLog:
    """The click log.

    log LOG : file
        a CSV or Parquet file with a row per document shown; -: a pipe

    How the log is read
    -------------------
    --session-column NAME : clicks/reading:read, as session
    --query-column NAME : clicks/reading:read, as query
    --position-column NAME : clicks/reading:read, as position
    --clicked-column NAME : clicks/reading:read, as clicked
    --document-column NAME : text, as document
        column of document ids, A,B for several columns (default: document, document_id, docid or doc_id)
    --zero-based : clicks/reading:read
    --drop : switch
        leave out sessions that cannot be used, and count them
    """
    from tierank.clicks import read

    document = None if options.document is None else options.document.split(",")
    chosen = {
        "document": document if document is None or len(document) > 1 else document[0],
        "columns": columns,
        "on_error": "drop" if drop or options.drop else "raise",
    }
    log = read(options.pipes.as_file(options.log), **(given_to(read, options) | chosen))
    for reason, n in log.dropped.items() if not drop else ():
        say(f"WARNING: {n:,} sessions left out: {reason}")
    return log


def _estimated(
    options: argparse.Namespace, n_bootstrap: int, columns: Sequence[str] = ()
) -> tuple[ClickLog, Propensities]:
    """The log and its propensities.

    --method M : text, default pbm
        pbm, shuffled, swaps or harvest
    --swap-column NAME : text
        column of the swap, for the method swaps (default: swap)
    --ranker-column NAME : text
        column of the ranker, for the method harvest (default: ranker)
    """
    from tierank.clicks import PROPENSITY_METHODS, estimate_propensities

    known = [name for name in PROPENSITY_METHODS if name != "regression"]
    if options.method not in known:
        raise ParameterError.unknown("--method", options.method, known)
    column = None
    for method, name in (("swaps", "swap"), ("harvest", "ranker")):
        given = getattr(options, f"{name}_column")
        if options.method == method:
            column = given or name
        elif given is not None:
            raise ParameterError(argument=f"{name}_column", expected=f"together with `method={method}`")
    log = _read(options, [*columns, *([column] if column else [])])
    settings: dict[str, Any] = {"column": column} if column else {}
    seed = getattr(options, "seed", 0)
    return log, estimate_propensities(log, options.method, n_bootstrap=n_bootstrap, seed=seed, **settings)


def _model(name: str) -> ClickModel:
    """A click model by its name, or of a file."""
    from tierank.clicks import CLICK_MODELS, load, make_model

    is_file = name not in CLICK_MODELS and (Path(name).suffix == ".json" or Path(name).is_file())
    return load(name) if is_file else make_model(name)


def _table(title: str, columns: list[str], rows: list[list[str]], notes: list[str]) -> Table:
    from tierank.report.tabulate import Table

    return Table(title, columns, rows, notes)


def _check_table(options: argparse.Namespace) -> None:
    """Raise an error before the work if no table can be written."""
    from tierank.clicks.log import check_ending

    check_place(options, options.out)
    check_ending(options.out)


@command(_read)
def _describe(options: argparse.Namespace) -> None:
    """Click-through by position, and what looks wrong.

    Example: tierank clicks describe log.csv

    --json : json
    """
    from tierank.display import format_number

    summary = _read(options, drop=True).describe()
    rows = [
        [str(k), f"{n:,}", format_number(rate)]
        for k, (n, rate) in enumerate(zip(summary.shown, summary.click_through, strict=True), 1)
    ]
    notes = [
        f"{summary.n_sessions:,} sessions, {summary.n_queries:,} queries, {summary.n_documents:,} documents",
        f"{summary.clicks_per_session:.2f} clicks per session, {summary.share_without_clicks:.1%} of sessions without",
        *(f"looks wrong: {in_options(problem, options.command.rename)}" for problem in summary.problems),
    ]
    show(options, summary.to_dict(), [_table(str(options.log), ["position", "shown", "click-through"], rows, notes)])


@command(_read)
def _fit(options: argparse.Namespace) -> None:
    """Fit click models, and say how well they predict.

    Example: tierank clicks fit log.csv --model dbn --out dbn.json

    --model M : click model, repeated
        ctr, pbm, cascade, dcm, ubm, dbn, sdbn (default: all)
    --by WHAT : text
        pair or document: what has an attractiveness (default: pair)
    --held-out SHARE, --seed N : clicks/models:compare_models
    --out F.json : path
        write the best model, fitted to all sessions
    --json : json
    """
    import numpy as np

    from tierank.clicks import CLICK_MODELS, compare_models, make_model, save
    from tierank.files import for_json
    from tierank.settings import Number

    Number(above=0, below=1).check("held_out", options.held_out)
    check_place(options, options.out)
    models = {
        name: make_model(name, **({} if options.by is None or name == "ctr" else {"by": options.by}))
        for name in options.model or CLICK_MODELS
    }
    log = _read(options)
    by_model = compare_models(log, models, held_out=options.held_out, seed=options.seed)
    best = max(by_model, key=lambda name: by_model[name].log_likelihood)
    if options.out is not None:
        save(models[best].fit(log), made(options.out))
        say(f"wrote {options.out}: {best}, fitted to all {log.n_sessions:,} sessions")
    means = {
        name: {
            "perplexity": float(np.nanmean(one.perplexity)),
            "conditional_perplexity": float(np.nanmean(one.conditional_perplexity)),
            "log_likelihood": one.log_likelihood,
        }
        for name, one in by_model.items()
    }
    shown = {
        name: {**means[name], "perplexity_by_position": for_json(one.perplexity.tolist())}
        for name, one in by_model.items()
    }
    content = {"n_sessions": log.n_sessions, "held_out": options.held_out, "best": best, "models": shown}
    rows = [[name, *(f"{value:.4f}" for value in values.values())] for name, values in means.items()]
    notes = [
        f"{options.held_out:.0%} of {log.n_sessions:,} sessions were held out; perplexities are means over positions",
        f"best by log-likelihood: {best}",
    ]
    columns = ["model", "perplexity", "given the clicks above", "log-likelihood"]
    show(options, content, [_table(f"Click models of {options.log}", columns, rows, notes)])


@command(_read, _estimated)
def _propensities(options: argparse.Namespace) -> None:
    """How likely documents are examined in each position.

    Example: tierank clicks propensities log.csv --method harvest

    --bootstrap N, --seed N : clicks/propensities:estimate_propensities
    --plot F.png : path
        draw them: .png, .svg or .pdf
    --json : json
    """
    from tierank.display import format_number
    from tierank.report.figures import check_figure, save_figure

    check_place(options, options.plot)
    if options.plot is not None:
        check_figure(options.plot)
    propensities = _estimated(options, options.n_bootstrap)[1]
    if options.plot is not None:
        save_figure(propensities.plot().figure, made(options.plot))
        say(f"wrote {options.plot}")
    numbers = zip(propensities.values, propensities.low, propensities.high, strict=True)
    rows = [[str(k), *map(format_number, row)] for k, row in enumerate(numbers, 1)]
    notes = [f"relative to position 1; {propensities.level:.0%} intervals by the bootstrap over sessions"]
    columns = ["position", "propensity", "low", "high"]
    show(options, propensities.to_dict(), [_table(f"Propensities by {propensities.method}", columns, rows, notes)])


@command(_read)
def _judge(options: argparse.Namespace) -> None:
    """Ratings from clicks, weighted by certainty.

    Example: tierank clicks judge log.csv --out ratings.csv

    --model M : click model, default best
        a click model, its file, or best: by held-out sessions
    --top RATING, --half N : clicks/judgements:judgements
    --data F : file
        documents with features: write these, rated with the help of similar documents
    --out F : path, required
        write there: .csv or .parquet
    """
    from tierank.clicks import judgements
    from tierank.io import read, write

    _check_table(options)
    model = "best" if options.model == "best" else _model(options.model)
    judged = judgements(_read(options), model, top=options.top, half=options.half)
    if options.data is not None:
        rated = judged.rate(read(options.pipes.as_file(options.data)))
        write(rated, made(options.out))
        say(f"wrote {options.out}: {rated}, by {judged.model.name}")
        return
    judged.write(made(options.out))
    n_sure = (judged.weight > 0.5).sum()
    say(f"wrote {options.out}: {len(judged):,} judgements by {judged.model.name}, {n_sure:,} with a weight above 0.5")


@command(_read)
def _simulate(options: argparse.Namespace) -> None:
    """The same lists with clicks drawn from a model.

    Example: tierank clicks simulate log.csv --model pbm --out new.csv

    --model M : click model, default pbm
        a click model or its file
    --seed : seed
    --out F : path, required
        write there: .csv or .parquet
    """
    _check_table(options)
    model = _model(options.model)
    log = _read(options)
    if not model.is_fitted:
        model.fit(log)
    drawn = model.simulate(log, seed=options.seed)
    drawn.write(made(options.out))
    say(f"wrote {options.out}: {drawn}")


@command(_read, _estimated)
def _evaluate(options: argparse.Namespace) -> None:
    """What another ranker would have earned on these lists.

    Example: tierank clicks evaluate log.csv --score-column new --estimator dr --clip 10

    --score-column NAME : text, as scores, required
        its scores in the log
    --estimator E : text, default ips
        ips, snips or dr
    --earn M : text, default clicks
        clicks, or dcg of attractiveness
    --k K, --clip W : clicks/offpolicy:evaluate_ranking
    --json : json
    """
    from tierank.clicks import evaluate_ranking
    from tierank.clicks.offpolicy import EARNINGS, METHODS
    from tierank.display import format_number
    from tierank.settings import as_choice, as_whole

    as_choice("--estimator", options.estimator, METHODS)  # before the log is read
    as_choice("--earn", options.earn, EARNINGS)
    if options.k is not None:
        as_whole("k", options.k)
    log, propensities = _estimated(options, 0, [options.scores])
    value = evaluate_ranking(
        log, options.scores, propensities, method=options.estimator, metric=options.earn, k=options.k, clip=options.clip
    )
    rows = [
        [options.scores, *map(format_number, (value.value, value.low, value.high))],
        ["as shown", f"{value.logged:.4f}", "", ""],
    ]
    notes = [
        f"{_EARNED[options.earn]} per session by {value.method}, with its {value.level:.0%} interval",
        f"propensities by {propensities.method}",
        f"effective sample size {value.effective_sample_size:,.0f} of {value.n_sessions:,} sessions",
    ]
    columns = ["ranking", options.earn, "low", "high"]
    show(options, value.to_dict(), [_table(f"Off-policy value on {options.log}", columns, rows, notes)])


clicks = Command(
    "clicks",
    "click logs: models, propensities, judgements",
    "tierank clicks describe log.csv",
    commands=(_describe, _fit, _propensities, _judge, _simulate, _evaluate),
)
