"""``adopt``: a model of another library as a ranker, with its scores and its price beside those of that library."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

from tierank.errors import DataError
from tierank.extras import require
from tierank.rankers.other_libraries import from_catboost, from_xgboost
from tierank.rankers.trees import LightGBMRanker, from_lightgbm
from tierank.settings import as_whole

# How often each library scores the data, in turns: the fastest time counts.
_TURNS = 7
# The largest difference that counts as rounding of sums in single precision, as a share of the largest score.
_ROUNDING = 1e-6
# Bytes of a file that say which library wrote it.
_HEAD = 256

Score = Callable[[Any], Any]


@dataclass(frozen=True)
class Adoption:
    """What ``tierank.adopt`` returns.

    Attributes
    ----------
    ranker : Ranker
        The model as a fitted ranker, to save, serve, explain and export.
    library : str
        The library that trained it.
    n_trees, n_documents : int
        The trees of the model, and the documents that both have scored.
    n_same : int
        The number of documents with the same score, to the bit.
    largest : float
        The largest difference of a score.
    holds : bool
        Whether scores are equal within the rounding of single precision: 1e-6 of the largest, or of 1.
    cpu_share : float
        CPU time that tierank scores the documents in, as a share of the library's, on this machine.
    n_jobs : int
        The threads that both had.
    """

    ranker: LightGBMRanker
    library: str
    n_trees: int
    n_documents: int
    n_same: int
    largest: float
    holds: bool
    cpu_share: float
    n_jobs: int

    @property
    def is_identical(self) -> bool:
        """Whether all scores are the same bits."""
        return self.n_same == self.n_documents

    def to_dict(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        return {name: value for name, value in vars(self).items() if name != "ranker"}

    def __str__(self) -> str:
        threads = "1 thread" if self.n_jobs == 1 else f"{self.n_jobs} threads"
        equal = "equal within rounding" if self.holds else "NOT equal"
        same = "all the same bits" if self.is_identical else equal
        return (
            f"{self.library}: {self.n_trees:,} trees, {self.ranker.n_features_in_:,} features\n"
            f"scores: {self.n_documents:,} documents, {same}, largest difference {self.largest:.3g}\n"
            f"CPU time: {self.cpu_share:.2f} of {self.library}'s ({threads}, best of {_TURNS} turns)"
        )


def adopt(model: Any, data: Any, *, feature_names: Sequence[str] | None = None, n_jobs: int = 1) -> Adoption:
    """Import a model of LightGBM, XGBoost or CatBoost, and compare its scores and its CPU time on your data.

    Parameters
    ----------
    model : model of one of these libraries, or path
        The model, or the file that its ``save_model`` wrote: text of LightGBM, JSON of XGBoost or CatBoost. See
        ``from_lightgbm``, ``from_xgboost`` and ``from_catboost``.
    data : RankingDataset, array or table
        Documents to score, with the features of the model; ratings are not needed.
    feature_names : sequence of str, optional
        One name per feature, in place of the names in the model: LightGBM replaces blanks by underscores.
    n_jobs : int, default 1
        Number of threads, for both libraries.

    Returns
    -------
    Adoption
        The ranker, how many scores are the same bits, the largest difference, and the share of CPU time. Both libraries
        score the data in turns, and the fastest time of each counts.

    Examples
    --------
    >>> import lightgbm, tierank
    >>> data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
    >>> own = lightgbm.LGBMRanker(n_estimators=5, verbosity=-1).fit(data.features, data.ratings, group=data.lengths)
    >>> adoption = tierank.adopt(own, data)
    >>> adoption.is_identical, adoption.largest
    (True, 0.0)
    """
    return compare_with_library(model, import_model(model, feature_names), data, n_jobs)


def import_model(model: Any, feature_names: Sequence[str] | None = None) -> LightGBMRanker:
    """The model as a ranker, whichever library trained it."""
    importers = {"XGBoost": from_xgboost, "CatBoost": from_catboost, "LightGBM": from_lightgbm}
    return importers[library_of(model)](model, feature_names=feature_names)


def library_of(model: Any) -> str:
    """The library that trained a model: by its class, or by the first bytes of its file."""
    if not isinstance(model, (str, os.PathLike)):
        package = type(model).__module__.partition(".")[0]
        return {"xgboost": "XGBoost", "catboost": "CatBoost"}.get(package, "LightGBM")
    head, fix = b"", None
    with suppress(OSError, ValueError), Path(model).open("rb") as file:
        head = file.read(_HEAD)
    for sign, library in ((b'"learner"', "XGBoost"), (b'"features_info"', "CatBoost")):
        if head.startswith(b"{") and sign in head:
            return library
    if head.startswith(b"CBM1"):
        fix = "CatBoost's save_model writes JSON if its format is json"
    elif head.startswith(b"{L"):
        fix = "XGBoost writes JSON with save_model, if the name ends in .json"
    elif b"\0" in head or head.startswith((b"\x80", b"{", b"[")):
        fix = "the save_model of each library writes it"
    if fix is not None:
        expected = "a model of LightGBM as text, or of XGBoost or CatBoost as JSON"
        raise DataError(where=model, expected=expected, got="another file", fix=fix)
    return "LightGBM"


def compare_with_library(model: Any, ranker: LightGBMRanker, data: Any, n_jobs: int) -> Adoption:
    """Score the data by the model and by the ranker made of it, in turns."""
    threads, library = as_whole("n_jobs", n_jobs), library_of(model)
    data = ranker.set_params(n_jobs=threads).match_features(data)
    score = {"LightGBM": _lightgbm, "XGBoost": _xgboost, "CatBoost": _catboost}[library](model, threads)
    ours, theirs = data.arrange(ranker.predict(data)), np.asarray(score(data.features), np.float64)
    seconds = [(_cpu_seconds(ranker.predict, data), _cpu_seconds(score, data.features)) for _ in range(_TURNS)]
    fastest, of_library = np.min(seconds, axis=0)
    return Adoption(
        ranker=ranker,
        library=library,
        n_trees=ranker.n_rounds_,
        n_documents=data.n_documents,
        n_same=int((ours == theirs).sum()),
        largest=(largest := float(np.abs(ours - theirs).max())),
        holds=bool(largest <= _ROUNDING * max(1.0, np.abs(theirs).max())),
        cpu_share=float(fastest / of_library),
        n_jobs=threads,
    )


def _lightgbm(model: Any, threads: int) -> Score:
    if isinstance(model, (str, os.PathLike)):
        model = lightgbm.Booster(model_file=Path(model))
    return partial(getattr(model, "booster_", model).predict, raw_score=True, num_threads=threads)


def _xgboost(model: Any, threads: int) -> Score:
    require("the comparison with XGBoost", "xgboost")
    from xgboost import Booster

    booster = Booster(model_file=model) if isinstance(model, (str, os.PathLike)) else model
    booster = booster.get_booster() if hasattr(booster, "get_booster") else booster.copy()
    booster.set_param({"nthread": threads})
    rounds = 0, int(booster.attr("best_iteration") or -1) + 1  # 0: all
    return partial(booster.inplace_predict, predict_type="margin", iteration_range=rounds)


def _catboost(model: Any, threads: int) -> Score:
    require("the comparison with CatBoost", "catboost")
    from catboost import CatBoost

    booster = CatBoost().load_model(str(model), "json") if isinstance(model, (str, os.PathLike)) else model
    return partial(booster.predict, prediction_type="RawFormulaVal", thread_count=threads)


def _cpu_seconds(score: Callable[[Any], Any], data: Any) -> float:
    start = time.process_time()
    score(data)
    return time.process_time() - start
