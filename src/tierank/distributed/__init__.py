"""Distributed training and scoring: Spark, Ray, Dask, and torch.distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from tierank.distributed.processes import Processes, join

if TYPE_CHECKING:
    from tierank.rankers import Ranker

R = TypeVar("R", bound="Ranker")

__all__ = ["Processes", "fit", "join", "predict"]


def fit(ranker: R, data: Any, client: Any = None, **settings: Any) -> R:
    """Train a ranker on a Spark, Ray or Dask cluster, chosen by the type of the data or the client.

    Parameters
    ----------
    ranker : Ranker
        The ranker to train; it is not changed.
    data : pyspark.sql.DataFrame, ray.data.Dataset, or data for ``tierank.distributed.dask.fit``
        The training data.
    client : distributed.Client, optional
        The client of the Dask cluster; not used for Spark and Ray.
    **settings
        As in ``tierank.distributed.spark.fit``, ``tierank.distributed.ray.fit`` and ``tierank.distributed.dask.fit``.

    Returns
    -------
    Ranker
        A fitted copy of ``ranker``.
    """
    from tierank.distributed import dask, ray, spark  # cluster libraries are imported on first use

    if client is None and spark.is_spark(data):
        return spark.fit(ranker, data, **settings)
    if client is None and ray.is_ray(data):
        return ray.fit(ranker, data, **settings)
    return dask.fit(ranker, data, client, **settings)


def predict(ranker: Ranker, data: Any, **settings: Any) -> Any:
    """Score the rows of a Spark DataFrame or a Ray Dataset where they are.

    Parameters
    ----------
    ranker : Ranker
        A fitted ranker.
    data : pyspark.sql.DataFrame or ray.data.Dataset
        One row per document.
    **settings
        As in ``tierank.distributed.spark.predict`` and ``tierank.distributed.ray.predict``.

    Returns
    -------
    pyspark.sql.DataFrame or ray.data.Dataset
        The rows with a column of scores.
    """
    from tierank.distributed import ray, spark

    return (ray if ray.is_ray(data) else spark).predict(ranker, data, **settings)
