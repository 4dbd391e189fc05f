"""CLICK_MODELS: the click models by name; saving and loading them."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.clicks.base import ClickModel
from tierank.clicks.cascade_models import Cascade, DependentClick, DynamicBayesian, SimplifiedBayesian
from tierank.clicks.items import Items
from tierank.clicks.position_models import ClickThrough, PositionBased, UserBrowsing
from tierank.errors import DataError, ParameterError
from tierank.files import as_path, read_json, replacing
from tierank.settings import as_choice, check_type

CLICK_MODELS: dict[str, type[ClickModel]] = {
    model.name: model
    for model in (
        ClickThrough,
        PositionBased,
        Cascade,
        DependentClick,
        UserBrowsing,
        DynamicBayesian,
        SimplifiedBayesian,
    )
}

_FORMAT = "tierank click model 1"


def make_model(model: str | ClickModel, **settings: Any) -> ClickModel:
    """A click model, as given or by its name in ``CLICK_MODELS``.

    Parameters
    ----------
    model : str or ClickModel
        A name such as ``"pbm"``, or a model.
    **settings
        Settings of the model, if it is given by name.

    Returns
    -------
    ClickModel

    Examples
    --------
    >>> make_model("cascade", smoothing=0).get_params()
    {'by': 'pair', 'smoothing': 0.0}
    """
    if isinstance(model, ClickModel):
        if settings:
            raise ParameterError(
                argument=next(iter(settings)),
                expected="settings only with the name of a click model",
                got="a model, which has its own",
            )
        return model
    as_choice("click model", model, CLICK_MODELS)
    known = CLICK_MODELS[model]().get_params()
    unknown = next((name for name in settings if name not in known), None)
    if unknown is not None:
        raise ParameterError.unknown(f"setting of {model}", unknown, known)
    return CLICK_MODELS[model](**settings)


def save(model: ClickModel, path: str | os.PathLike[str]) -> None:
    """Write a fitted click model as a JSON file.

    Parameters
    ----------
    model : ClickModel
        A fitted model.
    path : path
        The file to write.

    Examples
    --------
    >>> import tempfile, tierank
    >>> data = tierank.make_ranking(50, n_features=3, mean_length=12, max_length=20)
    >>> log, _ = tierank.clicks.simulate_clicks(data, data.features[:, 0], k=5, n_sessions=500)
    >>> model = tierank.clicks.CLICK_MODELS["pbm"]().fit(log)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, f"{folder}/pbm.json")
    ...     same = load(f"{folder}/pbm.json")
    >>> bool((same.examination_ == model.examination_).all())
    True
    """
    check_type("model", model, ClickModel)
    items = model.items
    content = {
        "format": _FORMAT,
        "model": model.name,
        "settings": model.get_params(),
        "prior": model.prior_,
        "by": items.by,
        "queries": items.queries.tolist(),
        "documents": items.documents.tolist(),
        "query_ids": items.query_ids.tolist(),
        "document_ids": items.document_ids.tolist(),
        "parameters": {name: getattr(model, name).tolist() for name in model.parameters},
    }
    try:
        text = json.dumps(content, allow_nan=False)
    except TypeError as error:
        raise DataError(where=path, expected="ids that JSON can hold: numbers and texts", got=f": {error}") from None
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def load(path: str | os.PathLike[str]) -> ClickModel:
    """Read a click model that ``save`` wrote.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    ClickModel
        The fitted model.

    Raises
    ------
    DataError
        If the file is not a click model, or is damaged.

    Examples
    --------
    >>> import tempfile, tierank
    >>> data = tierank.make_ranking(50, n_features=3, mean_length=12, max_length=20)
    >>> log, _ = tierank.clicks.simulate_clicks(data, data.features[:, 0], k=5, n_sessions=500)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(tierank.clicks.CLICK_MODELS["cascade"]().fit(log), f"{folder}/cascade.json")
    ...     load(f"{folder}/cascade.json").name
    'cascade'
    """
    place = as_path(path)
    try:
        content = read_json(place)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError("another kind of file")
        model = make_model(content["model"], **content["settings"])
        ids = {name: _as_ids(content[name]) for name in ("query_ids", "document_ids")}
        numbers = {name: np.array(content[name], np.int64) for name in ("queries", "documents")}
        for one, their in (("queries", "query_ids"), ("documents", "document_ids")):
            if not ((numbers[one] >= 0) & (numbers[one] < len(ids[their]))).all():
                raise ValueError(f"{one} that are not among {their}")
        if len(numbers["queries"]) != len(numbers["documents"]) or (np.diff(numbers["queries"]) < 0).any():
            raise ValueError("queries that are not in order")
        if content["by"] != getattr(model, "by", "document"):
            raise ValueError(f"items by {content['by']!r}")
        model.items_ = Items(content["by"], **numbers, **ids)
        model.prior_ = float(_as_chances("prior", [content["prior"]], 1)[0])
        for name in model.parameters:
            setattr(model, name, _as_chances(name, content["parameters"][name], _size(model, name)))
        if (
            isinstance(model, UserBrowsing)
            and math.isqrt(8 * len(model.examination_) + 1) ** 2 != 8 * len(model.examination_) + 1
        ):
            raise ValueError("examination_ that are not those of all pairs of positions")
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise
        raise DataError(where=path, expected="a click model that `save` wrote", got=f": {error}") from None
    return model


def _size(model: ClickModel, name: str) -> int | None:
    """The size of a parameter; None if it depends on the number of positions."""
    if name in ("attraction_", "satisfaction_"):
        return len(model.items)
    return 1 if (model.name, name) == ("dbn", "continuation_") else None


def _as_ids(values: list[Any]) -> NDArray[Any]:
    ids = np.empty(len(values), object)
    ids[:] = [tuple(one) if isinstance(one, list) else one for one in values]
    if len(set(ids.tolist())) < len(ids):
        raise ValueError("an id twice")
    return ids.astype(np.int64) if {type(one) for one in values} == {int} else ids


def _as_chances(name: str, values: list[float], n: int | None) -> NDArray[np.float64]:
    array = np.array(values, np.float64)
    n = len(array) if n is None else n
    if array.shape != (n,) or not n or not ((array >= 0) & (array <= 1)).all():
        raise ValueError(f"{name} that are not {n} chances")
    return array
