"""Reading of data, models and scores that the caller names; the commands ``describe`` and ``convert``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.cli.commands import command
from tierank.cli.console import check_place, made, say, show
from tierank.errors import DataError, ParameterError

if TYPE_CHECKING:
    from tierank.data.dataset import RankingDataset
    from tierank.data.encoder import ColumnEncoder
    from tierank.io.scores import Values
    from tierank.rankers.base import Ranker


def read_data(
    options: argparse.Namespace,
    path: str | None = None,
    n_features: int | None = None,
    plan: ColumnEncoder | None = None,
    features: Sequence[str] | None = None,
    *,
    is_rated: bool = False,
) -> RankingDataset:
    """A data set; ``plan`` and ``features`` are those of the model, unless the caller chose others."""
    from tierank.io import read, readable_format

    name = path or options.data
    file = options.pipes.as_file(name)
    reading = reading_options(options)
    kind = readable_format(Path(file), options.format)
    is_text, is_table = kind == "letor", kind in ("csv", "parquet")
    if not is_table and getattr(options, "attributes", None) is not None:
        reading["query"] = None  # it names a column of the attributes
    if not is_text and reading["features"] is None and features is not None:
        reading["features"] = list(features) if plan is None else plan.sources(tuple(features))
    if is_table and plan is not None and "columns" not in reading:
        reading["columns"] = plan.columns()
    data = read(file, n_features=None if is_table else n_features, **reading)
    if data.feature_names is None and (options.features or options.ignore):
        raise ParameterError(where=name, expected="a table, whose columns `features` and `ignore` name", got="none")
    if is_rated:
        try:
            data.check_rated()
        except DataError as error:
            raise error.at(name) from None
    return data


def read_for(options: argparse.Namespace, ranker: Ranker, path: str | None = None) -> RankingDataset:
    """Data for a model: the columns of a table that it learned from, or text with its number of features."""
    return read_data(options, path, _width_of(ranker), ranker.seen_.columns, _features_of([ranker]))


def read_to_learn(options: argparse.Namespace, path: str) -> RankingDataset:
    """Training data; says which columns are doubtful."""
    from tierank.data.leaks import columns_to_ignore, find_doubts

    data = read_data(options, path, is_rated=True)
    doubtful = {} if options.features or data.feature_names is None else find_doubts(data)
    if doubtful:
        said = "; ".join(f"{name} {what}" for name, what in doubtful.items())
        name_it = ", or name documents by it with --document-column" if "looks like an id" in said else ""
        ignored = ",".join(columns_to_ignore(doubtful, data))
        remedy = f": leave it out with --ignore {ignored}{name_it}" if ignored else ""
        say(f"WARNING: {path}: {said}; and is learned from{remedy}")
    say_what_was_read(path, data)
    return data


def read_to_validate(options: argparse.Namespace, train: RankingDataset) -> RankingDataset | None:
    """The data of ``--valid``, if given, which may have no positions, for example if editors rated them."""
    path = options.valid
    if path is None:
        return None
    position = getattr(options, "position", None)
    try:
        return read_like(options, path, train, is_rated=True)
    except DataError as error:
        if position is None or f"unknown column {position!r}" not in str(error):
            raise
    say(f"{path}: no column {position}: its ratings are used as plain ratings, not as clicks at positions")
    return read_like(argparse.Namespace(**{**vars(options), "position": None}), path, train, is_rated=True)


def say_what_was_read(path: str, data: RankingDataset) -> None:
    """Say which columns of a table have the query ids and the ratings, and which are features."""
    if data.roles:
        say(f"{path}: {data}")


def reading_options(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of ``read`` from the options.

    How data are read
    -----------------
    --format : format
        file format, if the ending does not say it: letor, csv, parquet, tierank
    --query-column NAME : text, as query
        column of query ids (default: qid, query or query_id)
    --rating-column NAME : text, as rating
        column of ratings (default: rating, label, relevance or grade)
    --document-column NAME : text, as document
        column of document ids (default: document, document_id, docid or doc_id)
    --row-weight-column NAME : text, as row_weight
        column that says how much documents count (default: row_weight)
    --query-weight-column NAME : text, as query_weight
        column that says how much queries count (default: query_weight)
    --features A,B, --ignore A,B, --zero-based : io:read
    --categories A,B, --dates A,B, --date-parts P,P, --now NAME, --means A,B : data/columns:Columns
    --similarities Q:D,..., --measures M,M, --texts Q:D,..., --encoder NAME : data/columns:Columns
    --no-cache : switch, as cache, default True
        neither use nor write the binary cache
    """
    from tierank.data.columns import Columns

    names = ("format", "query", "rating", "document", "features", "ignore", "zero_based", "cache")
    columns = ("categories", "dates", "date_parts", "now", "means", "similarities", "measures", "texts", "encoder")
    declared = {name: getattr(options, name) for name in columns if getattr(options, name)}
    chosen = {name: getattr(options, name) for name in names}
    of_rows = {name: getattr(options, name, None) for name in ("position", "row_weight", "query_weight")}
    chosen |= {name: column for name, column in of_rows.items() if column is not None}
    return chosen | ({"columns": Columns(**declared)} if declared else {})


def read_like(
    options: argparse.Namespace, path: str | None, like: RankingDataset, *, is_rated: bool = False
) -> RankingDataset:
    """Data with the features of other data."""
    from tierank.data.encoder import ColumnEncoder

    return read_data(options, path, _width_of(like), ColumnEncoder(like.kinds), like.feature_names, is_rated=is_rated)


def _features_of(models: Sequence[Ranker]) -> list[str] | None:
    """The columns of a table that the models use; None, which means all, if a model has no feature names."""
    if not all(hasattr(model, "feature_names_in_") for model in models):
        return None
    return list(dict.fromkeys(name for model in models for name in model.feature_names_in_))


def read_to_judge(options: argparse.Namespace, systems: Sequence[Ranker | str]) -> RankingDataset | Values:
    """Rated data, or qrels. Of a table, only the columns that the models use are read; scores need none."""
    from tierank.data.encoder import ColumnEncoder
    from tierank.io.scores import is_qrels, read_trec

    models = [system for system in systems if not isinstance(system, str)]
    file = options.pipes.as_file(options.data)
    if options.format is None and is_qrels(Path(file)):
        if models:
            raise DataError(where=options.data, expected="data with features, as a model is to be judged", got="qrels")
        return read_trec(file, "qrels")
    plan = ColumnEncoder({name: kind for model in models for name, kind in model.seen_.columns.kinds.items()})
    return read_data(options, file, plan=plan, features=_features_of(models), is_rated=True)


def scored(
    data: RankingDataset | Values, systems: Mapping[str, Ranker | str]
) -> tuple[RankingDataset, Mapping[str, Any]]:
    """The data set, and for its rows the scores of each file or model. With qrels, the files are runs."""
    from tierank.io import read_scores
    from tierank.metrics.evaluate import as_systems

    if isinstance(data, dict):
        return as_systems(data, systems)
    scores = {}
    for name, one in systems.items():
        if isinstance(one, str):
            scores[name] = read_scores(one, data)
        else:
            scores[name] = one.predict(data.widen(_width_of(one) or data.n_features))
    return data, scores


def _width_of(of: RankingDataset | Ranker) -> int | None:
    """The number of features to read text with: that of training data or a model. Tables have names instead."""
    if hasattr(of, "n_features_in_"):
        return None if hasattr(of, "feature_names_in_") else of.n_features_in_
    return None if of.feature_names is not None else of.n_features


def attributes_of(options: argparse.Namespace, data: Sequence[RankingDataset]) -> dict[str, Any] | None:
    """The attributes of queries by name, from the file of attributes or the data; None if none are asked for.

    --by A,B : names, repeatable
        also by segment: columns such as device,country
    --attributes F : file
        a CSV or Parquet file with a query column and those of --by (default: DATA)
    """
    from tierank.io import read_attributes, read_columns

    path = getattr(options, "data", None)
    if options.by is not None and options.attributes is None and path is not None:
        return read_columns(options.pipes.as_file(path), options.by, options.format)
    if (options.by is None) != (options.attributes is None):
        given, missing = ("attributes", "by") if options.by is None else ("by", "attributes")
        raise ParameterError(argument=given, expected=f"`{missing}` too", got="none")
    if options.by is None:
        return None
    ids = [query for part in data for query in part.query_ids.tolist()]
    return read_attributes(options.pipes.as_file(options.attributes), options.by, ids, getattr(options, "query", None))


@command(reading_options)
def describe(options: argparse.Namespace) -> None:
    """Queries, documents, features, ratings of a data set.

    Example: tierank describe train.txt --against next-week.txt --html train.html

    data DATA : data
        a data file, or a folder of folds (all data are described)
    --json : json
    --html F : path
        write a page: histograms, features, what looks wrong
    --against F : file
        newer data: what drifts, and whether to train again
    """
    from tierank.data.dataset import RankingDataset
    from tierank.io import is_folder_of_folds, read_fold
    from tierank.metrics.description import describe, profile
    from tierank.report.profile import write_profile
    from tierank.report.tabulate import tabulate_description, tabulate_drift

    check_place(options, options.html)
    if is_folder_of_folds(options.data):
        # The three parts of any fold are all of the data.
        data = RankingDataset.concat(read_fold(options.data, 1, **reading_options(options)))
    else:
        data = read_data(options, is_rated=True)
    say_what_was_read(options.data, data)
    # Read with the number of features of the first, which may be widened if its text left out zeros.
    other = None if options.against is None else read_like(options, options.against, data)
    description = describe(data, other)
    if options.html:
        write_profile(profile(data, other), made(options.html), title=Path(options.data).name)
        say(f"wrote {options.html}")
    tables = [tabulate_description(description, str(options.data))]
    if description.drift is not None:
        tables.append(tabulate_drift(description.drift, f"From {options.data} to {options.against}"))
    show(options, description.to_dict(), tables)


@command(reading_options)
def convert(options: argparse.Namespace) -> None:
    """Between LETOR text, CSV, Parquet, TREC files and binary folders.

    Example: tierank convert train.txt train.parquet

    data DATA : data
    out OUT : path
        the ending chooses the format: .txt .csv .parquet .qrels .run ...
    --scores SCORES : scores
        the scores of a TREC run (OUT ends in .run)
    """
    from tierank.io import check_conversion, convert, read_scores, write_run

    is_run = options.out.suffix == ".run"
    if is_run != (options.scores is not None):
        got = "none" if is_run else f"{options.out}"
        raise ParameterError(expected="`scores` with an OUT that ends in .run, and only with it", got=got)
    check_place(options, options.out, is_folder=options.out.suffix == ".tierank")
    if is_run:
        scores = options.pipes.as_file(options.scores)
        data = read_data(options)
        write_run(data, read_scores(scores, data), made(options.out))
    else:
        check_conversion(options.data, options.out)
        data = convert(options.pipes.as_file(options.data), made(options.out), **reading_options(options))
    say(f"wrote {options.out}: {data}")
