"""MLflow: models as artifacts, and training as runs. Models are stored as tierank's folders; nothing is pickled."""

from __future__ import annotations

import functools
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tierank import __version__
from tierank.data.tables import column_names, is_table, take_columns
from tierank.errors import DataError
from tierank.extras import needing
from tierank.files import as_path
from tierank.integrations import tracked_name, tracked_values
from tierank.rankers import load
from tierank.rankers.base import Ranker
from tierank.rankers.model import Callback, Step

if TYPE_CHECKING:
    from mlflow.models import Model
    from mlflow.models.model import ModelInfo

# The names of the flavor, of the folder inside an artifact, and of the column with query ids.
FLAVOR, _FOLDER, _QUERY = "tierank", "tierank_model", "qid"
# MLflow does not accept longer texts as the value of a parameter.
_LONGEST = 6000
# Metrics that are sent in one request.
_AT_ONCE = 100


def save_model(
    ranker: Ranker,
    path: str | os.PathLike[str],
    *,
    query: str = _QUERY,
    signature: Any = None,
    pip_requirements: Sequence[str] | None = None,
    metadata: dict[str, Any] | None = None,
    mlflow_model: Model | None = None,
) -> None:
    """Write a fitted ranker as an MLflow model: a folder with ``MLmodel`` and the folder that ``ranker.save`` writes.

    Parameters
    ----------
    ranker : Ranker
        A fitted ranker.
    path : path
        The folder, new or empty.
    query : str, default "qid"
        The column with query ids in the tables that ``pyfunc`` models are given.
    signature : mlflow.models.ModelSignature, optional
        Default: the features by name and the column with query ids, if the features have names.
    pip_requirements : list of str, optional
        Packages that serving installs. Default: this version of tierank, with torch if the ranker needs it.
    metadata : dict, optional
        Metadata to store with the model.
    mlflow_model : mlflow.models.Model, optional
        The description to add to; MLflow passes it.
    """
    with needing("tierank.integrations.mlflow"):
        from mlflow import pyfunc
        from mlflow.models import Model
    folder = as_path(path)
    if folder.exists() and any(folder.iterdir()):
        raise DataError(where=folder, expected="a new folder", got="one that is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    ranker.save(folder / _FOLDER)
    described = Model() if mlflow_model is None else mlflow_model
    described.signature = _signature(ranker, query) if signature is None else signature
    if metadata is not None:
        described.metadata = metadata
    pyfunc.add_to_model(described, loader_module=__name__, data=_FOLDER, python_env="python_env.yaml")
    described.add_flavor(FLAVOR, tierank_version=__version__, ranker=type(ranker).__name__, data=_FOLDER, query=query)
    described.save(str(folder / "MLmodel"))
    needed = _requirements() if pip_requirements is None else pip_requirements
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in needed), encoding="utf-8")
    python = f"python: {platform.python_version()}\nbuild_dependencies: [pip]\ndependencies: [-r requirements.txt]\n"
    (folder / "python_env.yaml").write_text(python, encoding="utf-8")


def log_model(
    ranker: Ranker, name: str = "model", *, registered_model_name: str | None = None, **saving: Any
) -> ModelInfo:
    """Log a fitted ranker as a model of the active run, or of a new one.

    Parameters
    ----------
    ranker : Ranker
        A fitted ranker.
    name : str, default "model"
        The name of the model.
    registered_model_name : str, optional
        Also register it under this name.
    **saving
        As in ``save_model``: ``query``, ``signature``, ``pip_requirements``, ``metadata``.

    Returns
    -------
    mlflow.models.model.ModelInfo
        Its ``model_uri`` is the argument of ``load_model`` and ``mlflow.pyfunc.load_model``.
    """
    with needing("tierank.integrations.mlflow"):
        from mlflow.models import Model
    info: ModelInfo = Model.log(
        artifact_path=None,
        name=name,
        flavor=sys.modules[__name__],
        registered_model_name=registered_model_name,
        ranker=ranker,
        **saving,
    )
    return info


def load_model(model_uri: str) -> Ranker:
    """Load a ranker that was saved or logged; its scores are bit-identical.

    Parameters
    ----------
    model_uri : str
        A URI of MLflow, such as ``"models:/shop/3"``, or the path of a folder.

    Returns
    -------
    Ranker
        The fitted ranker.
    """
    with needing("tierank.integrations.mlflow"):
        from mlflow.artifacts import download_artifacts
        from mlflow.models import Model
    folder = Path(download_artifacts(model_uri))
    flavors = Model.load(str(folder)).flavors
    if FLAVOR not in flavors:
        expected = "a model that tierank.integrations.mlflow wrote"
        raise DataError(where=model_uri, expected=expected, got=f"one of {', '.join(flavors)}")
    return load(folder / _FOLDER)


class TableScorer:
    """The model of ``mlflow.pyfunc.load_model``: scores the rows of a table with a column of query ids."""

    def __init__(self, ranker: Ranker, query: str) -> None:
        self.ranker, self.query = ranker, query

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> NDArray[np.float64]:
        """Score documents.

        Parameters
        ----------
        model_input : table or array
            One row per document; the column with query ids is needed if the ranker scores whole lists.
        params : dict, optional
            Not used; MLflow passes it.

        Returns
        -------
        array
            One score per row.
        """
        if not is_table(model_input):
            return self.ranker.predict(model_input)
        names = column_names(model_input)
        qid = model_input[self.query] if self.query in names else None
        if qid is None and self.ranker.needs_list():
            raise DataError(
                argument=self.query,
                expected="a column with the query id of each row, as the ranker scores whole lists",
                got=f"the columns {', '.join(names[:12])}",
            )
        table = model_input
        if self.ranker.seen_.feature_names is None:  # all other columns, in their order
            table = np.asarray(take_columns(table, [name for name in names if name != self.query]))
        return self.ranker.predict(table, qid=None if qid is None else qid.to_numpy())


def _load_pyfunc(path: str) -> TableScorer:
    """The entry point of MLflow."""
    from mlflow.models import Model

    flavor = Model.load(str(Path(path).parent)).flavors[FLAVOR]
    return TableScorer(load(path), flavor["query"])


def autolog(*, log_models: bool = True, disable: bool = False) -> None:
    """Log every call of ``fit``: settings, metrics and losses by round, the best metrics, and the model.

    A call inside an active run is logged to it; otherwise a new run is created. If the run has an earlier call, or
    parameters of the same names with other values, which MLflow does not change, the call gets a child run. Calls in
    other processes, such as those of ``cross_validate`` with several jobs, are not logged.

    Parameters
    ----------
    log_models : bool, default True
        Whether to log the model too.
    disable : bool, default False
        Stop logging.
    """
    with needing("tierank.integrations.mlflow"):
        import mlflow  # noqa: F401  raises now, not at the first fit
    plain = getattr(Ranker.fit, "__wrapped__", Ranker.fit)
    Ranker.fit = plain if disable else _logged(plain, log_models)  # type: ignore[method-assign, assignment]


def _logged(fit: Callable[..., Ranker], log_models: bool) -> Callable[..., Ranker]:
    @functools.wraps(fit)
    def fit_and_log(self: Ranker, *args: Any, callbacks: Sequence[Callback] | None = None, **kwargs: Any) -> Ranker:
        with _run(self) as log:
            fit(self, *args, callbacks=[*(callbacks or ()), log], **kwargs)
            log.end(self, log_models)
        return self

    return fit_and_log


@contextmanager
def _run(ranker: Ranker) -> Iterator[Tracker]:
    """A tracker of the active run if that has room for one, or of a new one, which ends with the block."""
    import mlflow

    active, ours = mlflow.active_run(), _parameters(ranker)
    known = {} if active is None else mlflow.MlflowClient().get_run(active.info.run_id).data.params
    if active is not None and "ranker" not in known and all(known.get(name, ours[name]) == ours[name] for name in ours):
        yield Tracker()
        return
    with mlflow.start_run(run_name=type(ranker).__name__, nested=active is not None):
        yield Tracker()


class Tracker:
    """A callback that logs metrics and losses to the active run of MLflow.

    Pass it to ``fit(..., callbacks=[...])``; ``autolog`` does so automatically. ``@`` in the name of a metric becomes
    ``_at_``.
    """

    def __init__(self) -> None:
        with needing("tierank.integrations.mlflow"):
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        self._make, self._client, self._waiting = Metric, MlflowClient(), list[Any]()

    def __call__(self, step: Step) -> None:
        """Buffer the numbers of a round, and send them if there are enough."""
        now = int(time.time() * 1000)
        self._waiting += [self._make(name, value, now, step.number) for name, value in tracked_values(step)]
        if len(self._waiting) >= _AT_ONCE or step.number == step.n_total:
            self.flush()

    def flush(self) -> None:
        """Send what is buffered."""
        import mlflow

        run = mlflow.active_run() or mlflow.start_run()
        for start in range(0, len(self._waiting), _AT_ONCE):
            self._client.log_batch(run.info.run_id, metrics=self._waiting[start : start + _AT_ONCE])
        self._waiting = []

    def end(self, ranker: Ranker, log_models: bool = True) -> None:
        """Send what is buffered, and the settings, the best metrics and the model of a fitted ranker."""
        import mlflow

        self.flush()
        mlflow.log_params(_parameters(ranker))
        mlflow.log_metrics({f"best_{tracked_name(name)}": float(value) for name, value in ranker.best_.items()})
        if log_models:
            log_model(ranker)


def _parameters(ranker: Ranker) -> dict[str, str]:
    """The class and the settings of a ranker, as MLflow holds them."""
    settings = {name: _text(value)[:_LONGEST] for name, value in ranker.get_params(deep=False).items()}
    return {"ranker": type(ranker).__name__} | settings


def _text(value: Any) -> str:
    try:
        return json.dumps(value) if isinstance(value, (list, tuple, dict)) else str(value)
    except TypeError:  # functions and classes of the caller
        return repr(value)


def _requirements() -> list[str]:
    """The versions of tierank, and of the loaded libraries that affect scores."""
    libraries = ("lightgbm", "numpy", "torch")
    return [f"tierank=={__version__}", *(f"{name}=={version(name)}" for name in libraries if name in sys.modules)]


def _signature(ranker: Ranker, query: str) -> Any:
    """The columns of the table: numbers, and others of any type; None if the features have no names."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import AnyType

    names = ranker.seen_.feature_names
    if names is None:
        return None
    plan = ranker.seen_.columns
    numbers = {name for name in names if name not in plan.kinds}
    columns = [ColSpec(DataType.double if name in numbers else AnyType(), name) for name in plan.sources(names)]
    if query not in plan.sources(names):
        columns.insert(0, ColSpec(AnyType(), query, required=ranker.needs_list()))
    return ModelSignature(inputs=Schema(columns), outputs=Schema([ColSpec(DataType.double)]))
