"""Distributed training and scoring: Spark, Ray, Dask, and torch.distributed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tierank.distributed.processes import Processes, join
from tierank.errors import ParameterError
from tierank.extras import loaded_on_use

if TYPE_CHECKING:
    from tierank.rankers.base import Ranker

R = TypeVar("R", bound="Ranker")

__all__ = ["Processes", "fit", "join", "predict"]

__getattr__ = loaded_on_use(__name__, "dask", "ray", "spark")


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

    cluster = spark if spark.is_spark(data) else ray if ray.is_ray(data) else dask
    _check_arguments(cluster, "fit", settings)
    if cluster is dask:
        return dask.fit(ranker, data, client, **settings)
    if client is not None:
        raise ParameterError(argument="client", expected=f"None with data of {_name(cluster)}", got="some")
    fitted: R = cluster.fit(ranker, data, **settings)
    return fitted


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

    cluster = ray if ray.is_ray(data) else spark
    _check_arguments(cluster, "predict", settings)
    return cluster.predict(ranker, data, **settings)


def _check_arguments(cluster: Any, function: str, given: Mapping[str, Any]) -> None:
    """Refuse arguments that this cluster does not have, such as ``actors`` with Spark."""
    parameters = inspect.signature(getattr(cluster, function)).parameters.values()
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise ParameterError.unknown(f"argument of {function} with {_name(cluster)}", unknown, known)


def _name(cluster: Any) -> str:
    return str(cluster.__name__.rpartition(".")[2].capitalize())
