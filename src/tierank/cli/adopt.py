"""``adopt``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tierank.cli.commands import command
from tierank.cli.console import check_place, print_json, say
from tierank.cli.data import read_data, reading_options
from tierank.errors import DataError

if TYPE_CHECKING:
    from tierank.data.dataset import RankingDataset
    from tierank.rankers.trees import LightGBMRanker


@command(reading_options)
def adopt(options: argparse.Namespace) -> None:
    """A model of LightGBM, XGBoost or CatBoost as one of tierank's: same scores, at which price.

    Example: tierank adopt lightgbm.txt test.txt --out model

    model FILE : file
        a model that LightGBM saved as text, or XGBoost or CatBoost as JSON
    data DATA : data
    --jobs N : rankers/adoption:adopt
    --out FOLDER : path
        write the model there, for predict, serve, export and all other commands
    --json : json
    """
    from tierank.rankers.adoption import compare_with_library, import_model
    from tierank.rankers.folder import MODEL

    if options.out is not None:
        check_place(options, options.out, is_folder=True)
        MODEL.check(options.out)
    ranker = import_model(options.model, options.features)
    adoption = compare_with_library(options.model, ranker, _read_for(options, ranker), options.n_jobs)
    if not adoption.holds:
        expected = f"the scores of {adoption.library}"
        raise DataError(where=options.model, expected=expected, got=f"others, by up to {adoption.largest:.3g}")
    if options.json:
        print_json(adoption.to_dict())
    else:
        print(adoption)
    if options.out is not None:
        ranker.save(options.out)
        say(f"wrote {options.out}; next: tierank evaluate {options.data} {options.out}")


def _read_for(options: argparse.Namespace, ranker: LightGBMRanker) -> RankingDataset:
    """The data with the features of the model. Text may leave out the last ones, if they are 0 everywhere.

    LightGBM and XGBoost count the features of text from 0: of a file that numbers them from 1, their first one is
    empty, and here all would be shifted by one.
    """
    n_features, data = ranker.n_features_in_, read_data(options, features=getattr(ranker, "feature_names_in_", None))
    is_narrow = data.n_features < n_features and data.feature_names is None
    fix = None
    if is_narrow and data.n_features == n_features - 1 and not ranker.importance("split")[0] and not options.zero_based:
        fix = "other libraries count features from 0, even in files that count from 1: so does `zero_based=True`"
    elif data.feature_names is not None and data.n_features != n_features:
        fix = "name those of the model, in its order, with `features`"
    if fix is not None or data.n_features > n_features:
        expected = f"{n_features} features, as the model has"
        raise DataError(where=options.data, expected=expected, got=f"{data.n_features}", fix=fix)
    if is_narrow:
        say(f"{options.data} has {data.n_features} features, and the model {n_features}: the others are 0")
    return data.widen(n_features)
