"""``choose``."""

from __future__ import annotations

import argparse

from tierank.cli.commands import command
from tierank.cli.console import show
from tierank.cli.data import reading_options


@command(reading_options)
def choose(options: argparse.Namespace) -> None:
    """Which ranker to use on your data, tried on few folds within a time budget.

    Example: tierank choose train.txt --minutes 5

    data DATA : data
        a file, which is split by query, or a folder of folds
    --minutes N, --metric M, --folds N : experiments/choosing:choose
    --rule : rule, default tierank
        how ties, empty queries and gains count; see: tierank list rules
    --seed : seed
    --jobs N : experiments/choosing:choose
    --json : json
    --markdown : switch
        tables in Markdown
    """
    from tierank.experiments import choose
    from tierank.report.tabulate import Table

    choice = choose(
        options.pipes.as_file(options.data),
        minutes=options.minutes,
        metric=options.metric,
        rule=options.rule,
        folds=options.folds,
        seed=options.seed,
        n_jobs=options.n_jobs,
        progress=True,
        **reading_options(options),
    )
    best = choice.comparison.systems.index(choice.best)
    table = Table("Which ranker?", *choice.table(), list(choice.notes()), {(best, 0), (best, 1)})
    show(options, choice.to_dict(), [table])
    if not options.json:
        print(choice.advice)
