"""Data, models and scores that the caller names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.cli.console import say
from tierank.cli.own import load_model
from tierank.errors import DataError, ParameterError

if TYPE_CHECKING:
    from tierank.dataset import RankingDataset
    from tierank.rankers import Ranker


def read_data(
    options: argparse.Namespace,
    path: str | None = None,
    n_features: int | None = None,
    features: Sequence[str] | None = None,
    *,
    is_rated: bool = False,
) -> RankingDataset:
    """A data set; ``features`` are the columns of a table that are needed, where the caller chose none."""
    from tierank.readers import read

    name = path or options.data
    reading = reading_options(options)
    if reading["features"] is None:
        reading["features"] = features
    data = read(options.pipes.as_file(name), n_features=n_features, **reading)
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
    """Data for a model: of a table the columns that it learned from, text as wide as what it learned from."""
    return read_data(options, path, width_of(ranker), _features_of([ranker]))


def read_to_learn(options: argparse.Namespace, path: str, like: RankingDataset | None = None) -> RankingDataset:
    """Training data, or validation data with the features of the training data."""
    from tierank.description import find_ids

    if like is not None:
        return read_data(options, path, width_of(like), like.feature_names, is_rated=True)
    data = read_data(options, path, is_rated=True)
    ids = [] if options.features else find_ids(data)
    if ids:
        say(
            f"WARNING: {path}: {', '.join(ids)} looks like an id, and is learned from: leave it out with --ignore"
            f" {','.join(ids)}, or name documents by it with --document-column"
        )
    return data


def reading_options(options: argparse.Namespace) -> dict[str, Any]:
    """How data are read, by the names of ``read``."""
    names = ("format", "query", "rating", "document", "features", "ignore", "zero_based", "cache")
    return {name: getattr(options, name) for name in names}


def _features_of(models: Sequence[Ranker]) -> list[str] | None:
    """The columns of a table that the models look at; None, which means all, where one of them knows no names."""
    if not all(hasattr(model, "feature_names_in_") for model in models):
        return None
    return list(dict.fromkeys(name for model in models for name in model.feature_names_in_))


def load_systems(options: argparse.Namespace, sources: Sequence[str]) -> list[Ranker | str]:
    """What is judged: models, which are loaded, and files of scores."""
    return [
        load_model(options, source) if Path(source).is_dir() else options.pipes.as_file(source) for source in sources
    ]


def read_to_judge(options: argparse.Namespace, systems: Sequence[Ranker | str]) -> RankingDataset:
    """Rated data, of a table with the columns that the models look at alone: scores need none."""
    return read_data(options, features=_features_of([s for s in systems if not isinstance(s, str)]), is_rated=True)


def scores_of(system: Ranker | str, data: RankingDataset) -> Any:
    """The scores of a file, or those that a model gives."""
    from tierank.readers import read_scores

    if isinstance(system, str):
        return read_scores(system, data)
    return system.predict(data.widen(width_of(system) or data.n_features))


def width_of(of: RankingDataset | Ranker) -> int | None:
    """The width to read text at that goes with training data, or with a model; tables have names instead."""
    if hasattr(of, "n_features_in_"):
        return None if hasattr(of, "feature_names_in_") else of.n_features_in_
    return None if of.feature_names is not None else of.n_features
