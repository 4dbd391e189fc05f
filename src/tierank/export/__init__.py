"""Export with proof: a fitted model in the form of another engine, and the check that it scores the same there."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tierank import __version__
from tierank.dataset import RankingDataset, check_dataset
from tierank.errors import ParameterError
from tierank.export.c import C
from tierank.export.elasticsearch import ELASTICSEARCH, OPENSEARCH
from tierank.export.onnx import ONNX
from tierank.export.portable import (
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
    Trees,
)
from tierank.export.proof import Exportable, Proof, verify_export
from tierank.export.solr import SOLR
from tierank.export.target import Target
from tierank.export.vespa import VESPA
from tierank.files import FolderKind, make_folder, replacing

__all__ = [
    "NAN",
    "NONE",
    "TARGETS",
    "ZERO",
    "Embedding",
    "Layer",
    "Model",
    "Network",
    "Proof",
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

TARGETS: dict[str, Target] = {target.name: target for target in (ONNX, ELASTICSEARCH, OPENSEARCH, SOLR, VESPA, C)}

# Out of sight: the folder goes to an engine as it is.
_EXPORT = FolderKind("a folder of an earlier export", ".tierank.json", ("tierank", "export"))


def as_target(target: str | Target) -> Target:
    """The target of this name, or a caller's own target as it is."""
    if isinstance(target, Target):
        return target
    if not isinstance(target, str) or target not in TARGETS:
        raise ParameterError.unknown("target", target, TARGETS)
    return TARGETS[target]


def write_model(model: Model, path: str | os.PathLike[str], to: str | Target) -> None:
    """Write a model in the form of a target, whole or not at all."""
    target, place = as_target(to), Path(path)
    target.check(model)
    make_folder(place.parent)
    with replacing(place, _EXPORT) as fresh:
        target.write(model, fresh)
        if fresh.is_dir():
            (fresh / _EXPORT.file).write_text(
                json.dumps({"tierank": __version__, "export": target.name}), encoding="utf-8"
            )


def check_export_place(place: Path) -> None:
    """An error where an export may not take this place."""
    if place.is_dir():
        _EXPORT.check(place)


def verify(ranker: Exportable, path: str | os.PathLike[str], to: str | Target, data: RankingDataset) -> Proof:
    """Check that an export gives the same scores as the ranker, on your data and on rows made to find a difference.

    Rows are generated with a value on each threshold of the trees and one float32 step beside it, with extreme values,
    and with missing values if the model saw any. Scores come from onnxruntime, from a C compiler, or from the rule of
    the engine.

    Parameters
    ----------
    ranker : Ranker
        The fitted ranker.
    path : path
        What ``ranker.export`` wrote.
    to : str or Target
        The target it was written for.
    data : RankingDataset
        Data to score.

    Returns
    -------
    Proof
        ``holds``, the largest difference, and the number of documents that changed places.

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
    check_dataset("data", data)
    return verify_export(ranker, path, as_target(to), data)
