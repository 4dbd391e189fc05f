"""Distributed training and scoring: Spark, Ray, Dask, and torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tierank.distributed.processes import TIMEOUT, Processes, join
from tierank.errors import ParameterError
from tierank.extras import loaded_on_use
from tierank.settings import as_positive

if TYPE_CHECKING:
    from tierank.rankers.base import Ranker

R = TypeVar("R", bound="Ranker")

__all__ = ["Processes", "fit", "join", "predict"]

__getattr__ = loaded_on_use(__name__, "dask", "ray", "spark")


def fit(
    ranker: R,
    data: Any,
    client: Any = None,
    *,
    valid: Any = None,
    workers: int | Sequence[str] | None = None,
    tasks: int | None = None,
    actors: int | None = None,
    cpus_per_actor: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
    timeout: float = TIMEOUT,
    query: str | None = None,
    rating: str | None = None,
    features: Sequence[str] | None = None,
) -> R:
    """Train a ranker on a Spark, Ray or Dask cluster, chosen by the type of the data or the client.

    Each task of Spark, actor of Ray or worker of Dask learns from whole queries with about the same number of
    documents, and all end with the same model. Rows are gathered by query where they are: the caller sees query ids,
    counts and the fitted model.

    * Spark trains in one barrier stage, and Ray in actors. Queries are sorted by id before they are split, so the model
      depends on the rows and the number of tasks or actors, not on partitions, blocks, their order or the machines.
    * Dask sends queries where most of their rows are, so that sorted rows hardly move. The model depends on the data,
      its partitions and the number of workers, not on which worker has which part.

    Parameters
    ----------
    ranker : Ranker
        The ranker to train; it is not changed. Each process holds only its part of the data, unless the ranker is your
        own and ``parts`` is not among its capabilities; then each process gathers all data.
    data : pyspark.sql.DataFrame, ray.data.Dataset, Dask collection, path, RankingDataset, table or (X, y, qid)
        The training data. Of a Spark DataFrame (read twice: to count, and to train), a Ray Dataset or a Dask DataFrame,
        the columns that ``read`` knows. With a Dask ``client`` also

        * ``(X, y, qid)`` as Dask arrays;
        * a path that every worker can read: each reads its own queries (a large file is read once and then mapped,
          if the workers share a disk);
        * a ``RankingDataset``, a table or ``(X, y, qid)`` in the memory of the client, which is split and sent.
    client : distributed.Client, optional
        The client of the Dask cluster; not used for Spark and Ray.
    valid : as ``data``, optional
        Validation data with the same columns.
    workers : int or list of str, optional
        Dask: number of workers, or their addresses; default all. Each must be a separate process.
    tasks : int, optional
        Spark: number of tasks that train together. Default: all that the cluster can run at the same time. Rounding
        depends on it, so set it for reproducible models.
    actors : int, optional
        Ray: number of actors that train together. Default: as many as the cluster has CPUs for. Set it for reproducible
        models.
    cpus_per_actor : int, optional
        Ray: CPUs that each actor reserves, and threads that it uses if the ranker's ``n_jobs`` is None; default 1.
    checkpoint : path, optional
        A folder on a disk that all machines share, where the first process writes the state of training. A later call
        continues from it, with any number of processes.
    progress : bool, default False
        Show progress, in the log of the first process.
    timeout : float, default 600.0
        Seconds that a process waits for the others, and ``fit`` for free CPUs of Ray, before it gives up.
    query, rating : str, optional
        The columns of query ids and ratings; in Spark, ids are integers or strings.
    features : list of str, optional
        The feature columns, which must be numbers. Default: all columns without another role.

    Returns
    -------
    Ranker
        A fitted copy of ``ranker``.

    Raises
    ------
    DataError
        If a column is missing or of a type that cannot be used, or a row has no query id or no rating.
    ParameterError
        If the cluster does not have that many workers, tasks or CPUs.
    TeamError
        If a process failed or was lost. All others end then; nothing waits forever. A Dask worker whose thread does not
        return after a failure or an interrupt is restarted.

    Examples
    --------
    .. code-block:: python

        train = spark.read.parquet("train")
        ranker = tierank.distributed.fit(tierank.UMart(), train, query="session", rating="grade", tasks=8)

        train = ray.data.read_parquet("train")
        ranker = tierank.distributed.fit(tierank.UMart(), train, query="session", rating="grade", actors=8)

        table = dask.dataframe.read_parquet("train/*.parquet")
        ranker = tierank.distributed.fit(tierank.UMart(), table, Client("scheduler:8786"), checkpoint="/disk/kept")
    """
    from tierank.distributed import dask, ray, spark  # cluster libraries are imported on first use
    from tierank.distributed.parts import check_settings_of, fit_on, named_columns

    cluster: Any = spark if spark.is_spark(data) else ray if ray.is_ray(data) else dask
    own = {"workers": workers, "tasks": tasks, "actors": actors, "cpus_per_actor": cpus_per_actor}
    own = {name: value for name, value in own.items() if value is not None}
    for name in own:
        if name not in cluster.OWN:
            raise ParameterError.unknown(f"argument of fit with {cluster.NAME}", name, cluster.OWN)
    if client is not None and cluster is not dask:
        raise ParameterError(argument="client", expected=f"None with data of {cluster.NAME}", got="some")
    check_settings_of(ranker)
    as_positive("timeout", timeout)
    columns = named_columns(query, rating, features)
    opened = cluster.open_cluster(data, valid, client, **own)
    return fit_on(opened, ranker, data, valid, columns, checkpoint, progress, timeout)


def predict(
    ranker: Ranker, data: Any, *, query: str | None = None, features: Sequence[str] | None = None, score: str = "score"
) -> Any:
    """Score the rows of a Spark DataFrame or a Ray Dataset where they are, in Arrow batches.

    If scores depend on the other documents of the query (``query_features``, transforms per query, Blend), rows are
    first gathered by query. Otherwise rows are scored where they are.

    Parameters
    ----------
    ranker : Ranker
        A fitted ranker.
    data : pyspark.sql.DataFrame or ray.data.Dataset
        One row per document. A Spark DataFrame may be a stream if documents are scored one by one.
    query : str, optional
        The column of query ids. Default: as in ``read``. Not needed if documents are scored one by one.
    features : list of str, optional
        The feature columns. Default: the names that the ranker was trained with, or all columns without another role.
    score : str, default "score"
        The name of the new column.

    Returns
    -------
    pyspark.sql.DataFrame or ray.data.Dataset
        The rows of ``data``, in any order, with their scores. As usual, it is computed lazily. Columns and their types
        are checked at once; what single rows hold (no query id, an infinite value) when they are scored.

    Examples
    --------
    .. code-block:: python

        scored = tierank.distributed.predict(ranker, spark.read.parquet("candidates"), query="session")
        scored.write.parquet("scores")
    """
    from tierank.distributed import ray, spark
    from tierank.distributed.parts import scored_columns

    cluster = ray if ray.is_ray(data) else spark
    layout, needs_list = scored_columns(ranker, cluster.described(data), query, features, score)
    return cluster.add_scores(ranker, data, layout, needs_list, score)
