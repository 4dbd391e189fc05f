"""Rankers inside others: a base that learns first, the members of a blend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.base import clone

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.export import Scorer
from tierank.rankers.base import Job, Ranker


def as_base(value: Any) -> Ranker | None:
    """The setting ``base``: a ranker that learns first, or None."""
    if value is not None and not isinstance(value, Ranker):
        raise ParameterError(f"base: expected a ranker of tierank, such as UMart(), or None, got {value!r}")
    return value


def fit_inner(
    owner: Ranker,
    ranker: Ranker,
    train: RankingDataset,
    valid: RankingDataset | None,
    job: Job,
) -> Ranker:
    """A fresh ranker like this one, fitted as a part of another one, to data that were checked for that one."""
    inner: Ranker = clone(ranker)
    inner._settle(owner.has_queries_, owner.has_missing_, owner.longest_query_)
    inner._fit(train, valid, job)
    inner._set_features(train.n_features, train.feature_names)
    return inner


def outline_inner(owner: Ranker, ranker: Ranker, train: RankingDataset) -> Scorer:
    """What a ranker inside another one will be after training."""
    inner: Ranker = clone(ranker)
    inner._settle(owner.has_queries_, owner.has_missing_, owner.longest_query_)
    return inner._outline(train)


def inner_files(name: str, ranker: Ranker | None) -> dict[str, bytes]:
    """The files of a ranker inside another one: they stand among its files, under a name of their own."""
    return {} if ranker is None else {f"{name}.{file}": content for file, content in ranker._files().items()}


def restore_inner(
    owner: Ranker,
    ranker: Ranker,
    name: str,
    fitted: Any,
    files: Mapping[str, bytes],
    n_features: int | None = None,
) -> Ranker:
    """The ranker inside another one, from what was saved of it; ``n_features`` where it sees others than its owner."""
    if not isinstance(ranker, Ranker):
        raise DataError(f"expected {name} to be a ranker with its settings, got a damaged description")
    inner: Ranker = clone(ranker)
    inner._settle(owner.has_queries_, owner.has_missing_, owner.longest_query_)
    if n_features is None or n_features == owner.n_features_in_:
        inner._set_features(owner.n_features_in_, getattr(owner, "feature_names_in_", None))
    else:
        inner._set_features(n_features, None)
    own = {file.removeprefix(f"{name}."): text for file, text in files.items() if file.startswith(f"{name}.")}
    inner._restore(fitted if isinstance(fitted, dict) else {}, own)
    return inner
