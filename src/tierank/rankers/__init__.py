"""RANKERS: the rankers by their names on the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

from tierank.errors import ParameterError
from tierank.models import Known, class_name
from tierank.rankers.base import FITTED, Ranker, check_ranker
from tierank.rankers.blend import Blend
from tierank.rankers.boosted import UBoost, UrBoost
from tierank.rankers.distilling import distill
from tierank.rankers.imported import LightGBMRanker, from_lightgbm
from tierank.rankers.linear import LinearRanker
from tierank.rankers.loading import read_ranker
from tierank.rankers.networks import (
    ApproxNDCG,
    LambdaLoss,
    ListMLE,
    ListNet,
    MDPRank,
    NetworkRanker,
    PListMLE,
    RankNet,
    URank,
)
from tierank.rankers.ranked import Ranked
from tierank.rankers.trees import LambdaMART, TreeRanker, UMart
from tierank.settings import DocumentedSettings

__all__ = [
    "FITTED",
    "RANKERS",
    "ApproxNDCG",
    "Blend",
    "LambdaLoss",
    "LambdaMART",
    "LightGBMRanker",
    "LinearRanker",
    "ListMLE",
    "ListNet",
    "MDPRank",
    "NetworkRanker",
    "PListMLE",
    "RankNet",
    "Ranked",
    "Ranker",
    "TreeRanker",
    "UBoost",
    "UMart",
    "URank",
    "UrBoost",
    "check_ranker",
    "distill",
    "from_lightgbm",
    "known_classes",
    "load",
]

RANKERS: dict[str, type[Ranker]] = {
    "urank": URank,
    "uboost": UBoost,
    "umart": UMart,
    "urboost": UrBoost,
    "lambdamart": LambdaMART,
    "listnet": ListNet,
    "listmle": ListMLE,
    "plistmle": PListMLE,
    "ranknet": RankNet,
    "approxndcg": ApproxNDCG,
    "lambdaloss": LambdaLoss,
    "mdprank": MDPRank,
    "linear": LinearRanker,
    "blend": Blend,
}


# ``help(tierank.UMart)`` describes every setting, from its declaration.
for _kind in (*RANKERS.values(), NetworkRanker, TreeRanker, LightGBMRanker):
    if _kind.__doc__ is not None:  # python -OO has none
        _kind.__doc__ = DocumentedSettings(_kind.__doc__)  # type: ignore[assignment]


def load(
    path: str | os.PathLike[str],
    *,
    rankers: Iterable[type[Ranker]] = (),
    networks: Iterable[type] = (),
    transforms: Iterable[type] = (),
) -> Ranker:
    """Load the ranker that ``save`` wrote. Nothing in the folder is executed, and every checksum is verified.

    Parameters
    ----------
    path : path
        The model folder.
    rankers : iterable of classes, optional
        Your own ranker classes, if the model is of one. Installed packages register theirs in the entry-point group
        ``tierank.rankers``.
    networks : iterable of classes, optional
        Your own networks, if the setting ``network`` was a class.
    transforms : iterable of classes, optional
        Your own transforms, if the setting ``feature_transform`` was one.

    Returns
    -------
    Ranker
        The fitted ranker.

    Raises
    ------
    DataError
        If the folder is not a model, is damaged, or names a class that is not known.

    Examples
    --------
    >>> import tempfile, tierank
    >>> data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
    >>> ranker = tierank.UMart(n_trees=5).fit(data)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ranker.save(f"{folder}/model")
    ...     same = tierank.load(f"{folder}/model")
    >>> bool((same.predict(data) == ranker.predict(data)).all())
    True
    """
    return read_ranker(path, known_classes(rankers, networks, transforms))


def known_classes(
    rankers: Iterable[type[Ranker]] = (), networks: Iterable[type] = (), transforms: Iterable[type] = ()
) -> Known:
    """The classes that a model file may name: tierank's, those of installed packages, and the given ones."""
    built_in = {class_name(kind): kind for kind in (*RANKERS.values(), NetworkRanker, TreeRanker, LightGBMRanker)}
    return Known(
        rankers=_Installed("tierank.rankers", built_in | _by_name("rankers", rankers)),
        networks=_Installed("tierank.networks", _by_name("networks", networks)),
        transforms=_Installed("tierank.transforms", _by_name("transforms", transforms)),
    )


def _by_name(argument: str, classes: Any) -> dict[str, type]:
    """The classes by name. Raises ``ParameterError`` for anything but a list of classes, such as a class alone."""
    if not isinstance(classes, Iterable):
        fix = f"write {argument}=[{classes.__name__}]" if isinstance(classes, type) else None
        raise ParameterError(argument=argument, expected="a list of classes", got=repr(classes), fix=fix)
    listed = list(classes)
    odd = next((one for one in listed if not isinstance(one, type)), None)
    if odd is not None:
        raise ParameterError(argument=argument, expected="a list of classes", got=f"one with {odd!r}")
    return {class_name(kind): kind for kind in listed}


class _Installed(dict[str, Any]):
    """Classes by name. Those of installed packages are loaded through their entry points when a model needs them."""

    def __init__(self, group: str, known: dict[str, Any]) -> None:
        super().__init__(known)
        self.group = group

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or any(point.name == name for point in entry_points(group=self.group))

    def __missing__(self, name: str) -> Any:
        for point in entry_points(group=self.group):
            if point.name == name:
                return point.load()
        raise KeyError(name)
