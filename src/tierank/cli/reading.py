"""Reading the data, models and scores that the caller names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.cli.console import say
from tierank.cli.own import load_model
from tierank.errors import DataError, ParameterError

if TYPE_CHECKING:
    from tierank.columns import Plan
    from tierank.dataset import RankingDataset
    from tierank.rankers import Ranker


def read_data(
    options: argparse.Namespace,
    path: str | None = None,
    n_features: int | None = None,
    plan: Plan | None = None,
    features: Sequence[str] | None = None,
    *,
    is_rated: bool = False,
) -> RankingDataset:
    """A data set; ``plan`` and ``features`` are those of the model, unless the caller chose others."""
    from tierank.readers import read, readable_format

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
        raise ParameterError(f"{name}: expected a table, whose columns --features and --ignore name, got none")
    if is_rated:
        _check_rated(data, name)
    return data


def _check_rated(data: RankingDataset, name: str) -> None:
    try:
        data.check_rated()
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


def read_for(options: argparse.Namespace, ranker: Ranker, path: str | None = None) -> RankingDataset:
    """Data for a model: the columns of a table that it learned from, or text with its number of features."""
    return read_data(options, path, width_of(ranker), ranker.seen_.columns, _features_of([ranker]))


def read_to_learn(options: argparse.Namespace, path: str, like: RankingDataset | None = None) -> RankingDataset:
    """Training data, or validation data with the features of the training data."""
    from tierank.doubts import columns_to_ignore, find_doubts

    if like is not None:
        return _read_validation(options, path, like)
    data = read_data(options, path, is_rated=True)
    doubtful = {} if options.features or data.feature_names is None else find_doubts(data)
    if doubtful:
        said = "; ".join(f"{name} {what}" for name, what in doubtful.items())
        name_it = ", or name documents by it with --document-column" if "looks like an id" in said else ""
        ignored = ",".join(columns_to_ignore(doubtful, data))
        remedy = f": leave it out with --ignore {ignored}{name_it}" if ignored else ""
        say(f"WARNING: {path}: {said}; and is learned from{remedy}")
    return data


def _read_validation(options: argparse.Namespace, path: str, like: RankingDataset) -> RankingDataset:
    """Validation data, which may have no positions, for example if editors rated them."""
    try:
        return read_like(options, path, like, is_rated=True)
    except DataError as error:
        if getattr(options, "position", None) is None or f"unknown column {options.position!r}" not in str(error):
            raise
        say(f"{path}: no column {options.position}: its ratings are used as plain ratings, not as clicks at positions")
        options = argparse.Namespace(**{**vars(options), "position": None})
        return read_like(options, path, like, is_rated=True)


def reading_options(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of ``read`` from the options."""
    from tierank.kinds import Columns

    names = ("format", "query", "rating", "document", "features", "ignore", "zero_based", "cache")
    columns = ("categories", "dates", "date_parts", "now", "means", "similarities", "measures", "texts")
    declared = {name: getattr(options, name) for name in columns if getattr(options, name)}
    chosen = {name: getattr(options, name) for name in names}
    of_rows = {name: getattr(options, name, None) for name in ("position", "row_weight", "query_weight")}
    chosen |= {name: column for name, column in of_rows.items() if column is not None}
    return chosen | ({"columns": Columns(**declared)} if declared else {})


def read_like(
    options: argparse.Namespace, path: str | None, like: RankingDataset, *, is_rated: bool = False
) -> RankingDataset:
    """Data with the features of other data."""
    from tierank.columns import Plan

    return read_data(options, path, width_of(like), Plan(like.kinds), like.feature_names, is_rated=is_rated)


def _features_of(models: Sequence[Ranker]) -> list[str] | None:
    """The columns of a table that the models use; None, which means all, if a model has no feature names."""
    if not all(hasattr(model, "feature_names_in_") for model in models):
        return None
    return list(dict.fromkeys(name for model in models for name in model.feature_names_in_))


def load_systems(options: argparse.Namespace, sources: Sequence[str]) -> list[Ranker | str]:
    """The systems to judge: models, which are loaded, and score files."""
    return [
        load_model(options, source) if Path(source).is_dir() else options.pipes.as_file(source) for source in sources
    ]


def read_to_judge(options: argparse.Namespace, systems: Sequence[Ranker | str]) -> RankingDataset:
    """Rated data. Of a table, only the columns that the models use are read; scores need none."""
    from tierank.columns import Plan

    models = [system for system in systems if not isinstance(system, str)]
    plan = Plan({name: kind for model in models for name, kind in model.seen_.columns.kinds.items()})
    return read_data(options, plan=plan, features=_features_of(models), is_rated=True)


def scores_of(system: Ranker | str, data: RankingDataset) -> Any:
    """The scores of a file or of a model."""
    from tierank.readers import read_scores

    if isinstance(system, str):
        return read_scores(system, data)
    return system.predict(data.widen(width_of(system) or data.n_features))


def width_of(of: RankingDataset | Ranker) -> int | None:
    """The number of features to read text with: that of training data or a model. Tables have names instead."""
    if hasattr(of, "n_features_in_"):
        return None if hasattr(of, "feature_names_in_") else of.n_features_in_
    return None if of.feature_names is not None else of.n_features


def attributes_of(options: argparse.Namespace, data: RankingDataset) -> dict[str, Any] | None:
    """The attributes of queries by name: columns of the data, or of the file of attributes."""
    if options.by is None or options.attributes is not None:
        return attributes_by_query(options, [data])
    from tierank.readers import read_columns

    return read_columns(options.pipes.as_file(options.data), options.by, options.format)


def attributes_by_query(options: argparse.Namespace, data: Sequence[RankingDataset]) -> dict[str, Any] | None:
    """Columns of the file of attributes, each as a mapping from query ids; None if there are none."""
    from tierank.readers import read_attributes

    if (options.by is None) != (options.attributes is None):
        missing, given = ("--by", "--attributes") if options.by is None else ("--attributes", "--by")
        raise ParameterError(f"{given}: expected together with {missing}")
    if options.by is None:
        return None
    ids = [query for part in data for query in part.query_ids.tolist()]
    return read_attributes(options.pipes.as_file(options.attributes), options.by, ids, getattr(options, "query", None))
