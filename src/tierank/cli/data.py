"""``describe``, ``convert`` and ``list``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.cli.console import check_place, inputs_of, made, say
from tierank.cli.options import add_command, add_data
from tierank.cli.printing import print_json, print_table
from tierank.cli.reading import read_data, read_like, reading_options
from tierank.errors import ParameterError

if TYPE_CHECKING:
    from tierank.dataset import RankingDataset


# Printed to standard error, so that a pipe gets only the names.
_WHICH = """
Which one? umart: start here; trees train and score fast, and need no torch.
blend: the best we measured, for about 20 times the training time of lambdamart.
urank: a neural network; it beats trees on OHSUMED, a small data set.
lambdamart: the baseline to beat. linear: trains in milliseconds."""


def add_describe(commands: Any) -> None:
    """Add the command."""
    describe = add_command(
        commands,
        "describe",
        "queries, documents, features, ratings of a data set",
        "describe train.txt --against next-week.txt --html train.html",
    )
    add_data(describe, "a data file, or a folder of folds (all data are described)")
    describe.add_argument("--json", action="store_true", help="machine-readable output")
    describe.add_argument("--html", type=Path, metavar="F", help="write a page: histograms, features, what looks wrong")
    describe.add_argument("--against", metavar="F", help="newer data: what drifts, and whether to train again")
    describe.set_defaults(run=_describe)


def add_convert(commands: Any) -> None:
    """Add the command."""
    convert = add_command(
        commands,
        "convert",
        "between LETOR text, CSV, Parquet, TREC files and binary folders",
        "convert train.txt train.parquet",
    )
    add_data(convert)
    convert.add_argument(
        "out", type=Path, metavar="OUT", help="the ending chooses the format: .txt .csv .parquet .qrels .run ..."
    )
    convert.add_argument("--scores", metavar="SCORES", help="the scores of a TREC run (OUT ends in .run)")
    convert.set_defaults(run=_convert)


def add_list(commands: Any) -> None:
    """Add the command."""
    names = add_command(commands, "list", "names that can be chosen, with a line on each", "list settings umart")
    names.add_argument(
        "what",
        metavar="WHAT",
        help="rankers, settings, metrics, rules, transforms, networks, losses, click-models or targets",
    )
    names.add_argument("ranker", nargs="?", metavar="RANKER", help="whose settings")
    names.add_argument("--json", action="store_true", help="machine-readable output")
    names.set_defaults(run=_list)


def _describe(options: argparse.Namespace) -> None:
    from tierank.dataset import RankingDataset
    from tierank.description import describe, profile
    from tierank.readers import is_folder_of_folds, read_fold
    from tierank.report import tabulate_description, tabulate_drift
    from tierank.report.profile import write_profile

    check_place(options.html, read=inputs_of(options))
    if is_folder_of_folds(options.data):
        # The three parts of any fold are all of the data.
        data = RankingDataset.concat(read_fold(options.data, 1, **reading_options(options)))
    else:
        data = read_data(options, is_rated=True)
    other = None if options.against is None else _read_against(options, data)
    description = describe(data, other)
    if options.html:
        write_profile(profile(data, other), made(options.html), title=Path(options.data).name)
        say(f"wrote {options.html}")
    if options.json:
        print_json(description.to_dict())
        return
    print_table(tabulate_description(description, str(options.data)))
    if description.drift is not None:
        print_table(tabulate_drift(description.drift, f"From {options.data} to {options.against}"))


def _read_against(options: argparse.Namespace, data: RankingDataset) -> RankingDataset:
    """The other data, with the number of features of the first, which may be widened if its text left out zeros."""
    return read_like(options, options.against, data)


def _convert(options: argparse.Namespace) -> None:
    from tierank.readers import check_conversion, convert, read_scores, write_run

    is_run = options.out.suffix == ".run"
    if is_run != (options.scores is not None):
        raise ParameterError("expected --scores with an OUT that ends in .run, and only with it")
    check_place(options.out, is_folder=options.out.suffix == ".tierank", read=inputs_of(options))
    if is_run:
        scores = options.pipes.as_file(options.scores)
        data = read_data(options)
        write_run(data, read_scores(scores, data), made(options.out))
    else:
        check_conversion(options.data, options.out)
        data = convert(options.pipes.as_file(options.data), made(options.out), **reading_options(options))
    say(f"wrote {options.out}: {data}")


def _list(options: argparse.Namespace) -> None:
    from tierank.listing import list_names

    rows = list_names(options.what, options.ranker)
    if options.json:
        print(json.dumps({name: rest[0] if len(rest) == 1 else rest for name, *rest in rows}, indent=2))
        return
    widths = [max(len(cell) for cell in column) for column in list(zip(*rows, strict=True))[:-1]]
    for *cells, text in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), text]).rstrip())
    if options.what == "rankers":
        say(_WHICH)
