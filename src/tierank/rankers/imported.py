"""Models that LightGBM trained, as fitted rankers.

Model folders → fitted rankers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tierank.data.checks import as_names
from tierank.data.dataset import RankingDataset
from tierank.errors import DataError, NotFittedError, ParameterError, TierankError
from tierank.extras import needing
from tierank.files import as_path
from tierank.rankers.base import Ranker, fitted_copy
from tierank.rankers.folder import (
    MODEL,
    Damaged,
    Known,
    damaged,
    decode_settings,
    known_class,
    read_folder,
    read_settled,
)
from tierank.rankers.model import FitContext, FittedModel, SavedModel, Seen
from tierank.rankers.trees import FittedTrees
from tierank.settings import Integer, Optional, setting


@dataclass(kw_only=True, eq=False, repr=False)
class LightGBMRanker(FittedTrees):
    """A model that LightGBM trained, as a fitted ranker: what ``tierank.from_lightgbm`` returns.

    It predicts, ranks, explains, exports, saves and serves like any ranker. It cannot be fitted, but training can
    continue from it: ``UMart().fit(data, start=ranker)`` keeps its trees and adds new ones.

    Examples
    --------
    >>> import lightgbm, tierank
    >>> data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
    >>> model = lightgbm.LGBMRanker(n_estimators=5, verbosity=-1).fit(data.features, data.ratings, group=data.lengths)
    >>> more = tierank.LambdaMART(n_trees=3).fit(data, start=tierank.from_lightgbm(model))
    >>> more.booster_.num_trees()
    8
    """

    n_jobs: int | None = setting(None, Optional(Integer(-1), "one per core, fewer for small data"), "number of threads")

    def fit_model(self, train: RankingDataset, valid: RankingDataset | None, context: FitContext) -> FittedModel:
        """Refuse: LightGBM trained the model."""
        raise ParameterError(
            "LightGBMRanker holds a trained model and cannot be fitted",
            fix="LambdaMART().fit(data) trains a new one, LambdaMART().fit(data, start=ranker) continues from this one",
        )

    def restore_model(self, saved: SavedModel) -> FittedModel:
        """The trees of a model folder."""
        from tierank.rankers.tree_training import TreeModel

        return TreeModel.restore(saved, query_features=False, base=None)


def from_lightgbm(model: Any, *, feature_names: Sequence[str] | None = None) -> LightGBMRanker:
    """A trained LightGBM model as a fitted ranker.

    Parameters
    ----------
    model : lightgbm.Booster, lightgbm.LGBMRanker or path
        The model, or the text file that ``Booster.save_model`` wrote. It has to give one score per row. If training
        stopped early, the best round is used, as in LightGBM's ``predict``.
    feature_names : sequence of str, optional
        One name per feature, in place of the names in the model: LightGBM replaces blanks by underscores.

    Returns
    -------
    LightGBMRanker
        A ranker whose scores are those of ``booster.predict(X, raw_score=True)``, to the bit, for single-precision
        features; tierank rounds all features to single precision.

    Raises
    ------
    DataError
        If the file cannot be read, or the model is multiclass, a random forest, or was trained on pandas categories.

    Examples
    --------
    >>> import lightgbm, tierank
    >>> data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
    >>> own = lightgbm.LGBMRanker(n_estimators=5, verbosity=-1).fit(data.features, data.ratings, group=data.lengths)
    >>> ranker = tierank.from_lightgbm(own)
    >>> bool((ranker.predict(data) == own.predict(data.features)).all())
    True
    """
    from tierank.rankers.tree_text import adopt_text, count_trees, has_missing, head_fields, with_names
    from tierank.rankers.tree_training import TreeModel

    where, text = _text_of(model)
    try:
        text = adopt_text(text)
    except DataError as error:
        message = str(error).removeprefix("trees.txt: ").replace("; save the model again", "")
        raise DataError(message, where=where) from None
    names: Sequence[str] = head_fields(text)["feature_names"].split()
    if list(names) == [f"Column_{number}" for number in range(len(names))]:
        given_names = None
    else:
        given_names = as_names(names, len(names))
    if feature_names is not None:
        given_names = as_names(feature_names, len(names))
        text = with_names(text, given_names)
    seen = Seen(len(names), given_names, has_queries=True, has_missing=has_missing(text))
    trees = TreeModel(text, [], 0, seen, query_features=False, n_before=count_trees(text))
    return cast("LightGBMRanker", fitted_copy(LightGBMRanker(), trees, seen))


def _text_of(model: Any) -> tuple[str, str]:
    """What the model is called in messages, and its text."""
    import lightgbm

    if isinstance(model, lightgbm.LGBMModel):
        if not model.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(model).__name__} is not fitted", fix="call fit first")
        model = model.booster_
    if isinstance(model, lightgbm.Booster):
        return "model", model.model_to_string()
    is_text = isinstance(model, str) and "\n" in model
    if is_text or not isinstance(model, (str, os.PathLike)):
        raise ParameterError(
            argument="model",
            expected="a lightgbm.Booster, a lightgbm.LGBMRanker or the path of a model file",
            got="the text of a model" if is_text else type(model).__name__,
            fix="lightgbm.Booster(model_str=text) makes a booster of it" if is_text else None,
        )
    path = as_path(model, "model")
    try:
        return str(path), path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(where=model, expected="a model of LightGBM in text form", got="a binary file") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        got = f": {getattr(error, 'strerror', None) or error}"
        raise DataError(where=model, expected="a file that can be read", got=got) from None


# What reading a file that is not what it claims to be can raise.
_OF_DAMAGE = (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)


def read_ranker(path: str | os.PathLike[str], known: Known) -> Ranker:
    """The ranker of a model folder; the checksum of every file is verified before it is read."""

    def read_once(folder: Path) -> Ranker:
        description, files = read_folder(folder)
        file = folder / MODEL.file
        try:
            kind = known_class(known.rankers, "ranker", description["ranker"])
            ranker = kind(**decode_settings(description["settings"], known))
            if not isinstance(ranker, Ranker):
                raise DataError(argument="rankers", expected="classes derived from tierank.Ranker", got=kind.__name__)
            seen = Seen.from_json(description, files)
            if not isinstance(description["fitted"], dict):
                raise Damaged("fitted")
            with needing(kind.__name__):
                model = ranker.restore_model(SavedModel(seen, description["fitted"], files))
            return fitted_copy(ranker, model, seen)
        except ParameterError as error:
            raise DataError(f"settings: {error}", where=file) from None
        except TierankError as error:
            raise error.at(file) if error.where is None else error from None
        except KeyError as error:
            raise damaged(file, f"no {error}") from None
        except _OF_DAMAGE as error:
            raise damaged(file, str(error)) from None

    return read_settled(as_path(path, "path", "the path of a model folder"), read_once)[0]
