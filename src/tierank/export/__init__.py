"""Export with proof: fitted models in the formats of other engines, and a check that they score the same there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tierank import __version__
from tierank.data.dataset import RankingDataset, check_dataset
from tierank.errors import ParameterError
from tierank.export.model import (
    NAN,
    NONE,
    ZERO,
    Embedding,
    Layer,
    Model,
    Network,
    QueryCopies,
    Scorer,
    StandardisedMean,
    Sum,
    Target,
    Trees,
)
from tierank.extras import LoadedOnUse
from tierank.files import FolderKind, as_path, make_folder, replacing

__all__ = [
    "NAN",
    "NONE",
    "TARGETS",
    "ZERO",
    "Embedding",
    "Layer",
    "Model",
    "Network",
    "QueryCopies",
    "Scorer",
    "StandardisedMean",
    "Sum",
    "Target",
    "Trees",
    "as_target",
    "verify",
    "write_model",
]

if TYPE_CHECKING:
    from tierank.export.proof import Exportable, Proof

# Each module is loaded when its target is used.
TARGETS: LoadedOnUse[Target] = LoadedOnUse(
    {
        "onnx": "tierank.export.onnx:ONNX",
        "elasticsearch": "tierank.export.elasticsearch:ELASTICSEARCH",
        "opensearch": "tierank.export.elasticsearch:OPENSEARCH",
        "solr": "tierank.export.solr:SOLR",
        "vespa": "tierank.export.vespa:VESPA",
        "c": "tierank.export.c:C",
    }
)

# Hidden, as the folder is handed to the engine unchanged.
_EXPORT = FolderKind("a folder of an earlier export", ".tierank.json", ("tierank", "export"))


def as_target(target: str | Target) -> Target:
    """The target of this name; a caller's own target unchanged."""
    if isinstance(target, Target):
        return target
    if str(target).lower() in ("lightgbm", "lgb", "lgbm"):
        raise ParameterError(
            argument="target",
            expected=f"one of {', '.join(TARGETS)}",
            got=repr(target),
            fix="ranker.booster_.save_model(path) writes trees as LightGBM's text",
        )
    if not isinstance(target, str) or target not in TARGETS:
        raise ParameterError.unknown("target", target, TARGETS)
    return TARGETS[target]


def write_model(model: Model, path: str | os.PathLike[str], to: str | Target) -> None:
    """Write a model in the format of a target, atomically."""
    target, place = as_target(to), as_path(path)
    target.check(model)
    make_folder(place.parent)
    with replacing(place, _EXPORT) as fresh:
        target.write(model, fresh)
        if fresh.is_dir():
            (fresh / _EXPORT.file).write_text(
                json.dumps({"tierank": __version__, "export": target.name}), encoding="utf-8"
            )


def check_export_place(place: Path) -> None:
    """Raise ``DataError`` if an export may not be written to this path."""
    if place.is_dir():
        _EXPORT.check(place)


def verify(ranker: Exportable, path: str | os.PathLike[str], to: str | Target, data: RankingDataset) -> Proof:
    """Check that an export gives the same scores as the ranker, on your data and on generated edge cases.

    Generated rows reach each split of the trees, with values at its threshold and one float32 step next to it; others
    have extreme values and missing values, for networks only if the model saw any in training. Scores come from
    onnxruntime, from the compiled C source, or from the documented rules of the engine.

    Parameters
    ----------
    ranker : Ranker
        The fitted ranker.
    path : path
        The export that ``ranker.export`` wrote.
    to : str or Target
        The target it was written for.
    data : RankingDataset
        Data to score.

    Returns
    -------
    Proof
        ``holds``, the largest difference, and the number of documents that changed places.

    Raises
    ------
    DataError
        If there is no export, if it is damaged, or if its features are not those of the ranker.

    Examples
    --------
    >>> import tempfile, tierank
    >>> data = tierank.make_ranking(40, n_features=5, mean_length=20, max_length=40)
    >>> ranker = tierank.UMart(n_trees=10).fit(data)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ranker.export(f"{folder}/solr", to="solr")
    ...     proof = verify(ranker, f"{folder}/solr", "solr", data)
    >>> proof.holds, proof.n_swapped
    (True, 0)
    """
    from tierank.export.proof import verify_export

    check_dataset("data", data)
    return verify_export(ranker, path, as_target(to), data)
