"""RANKERS: the rankers by their names on the command line, and ``load``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoints, entry_points
from typing import TYPE_CHECKING, Any

from tierank.errors import ParameterError
from tierank.extras import LoadedOnUse

if TYPE_CHECKING:
    from tierank.rankers.base import Ranker
    from tierank.rankers.folder import Known

_TREES, _NETWORKS = "tierank.rankers.trees", "tierank.rankers.neural"

# Each module is loaded when one of its rankers is used.
RANKERS: LoadedOnUse[type[Ranker]] = LoadedOnUse(
    {
        "urank": f"{_NETWORKS}:URank",
        "uboost": f"{_NETWORKS}:UBoost",
        "umart": f"{_TREES}:UMart",
        "urboost": f"{_NETWORKS}:UrBoost",
        "lambdamart": f"{_TREES}:LambdaMART",
        "listnet": f"{_NETWORKS}:ListNet",
        "listmle": f"{_NETWORKS}:ListMLE",
        "plistmle": f"{_NETWORKS}:PListMLE",
        "ranknet": f"{_NETWORKS}:RankNet",
        "approxndcg": f"{_NETWORKS}:ApproxNDCG",
        "lambdaloss": f"{_NETWORKS}:LambdaLoss",
        "mdprank": f"{_NETWORKS}:MDPRank",
        "linear": "tierank.rankers.linear:LinearRanker",
        "blend": "tierank.rankers.blend:Blend",
    }
)
# Those that only Python and model files name.
_OTHERS = (f"{_NETWORKS}:NetworkRanker", f"{_TREES}:TreeRanker", f"{_TREES}:LightGBMRanker")


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
    from tierank.rankers.base import read_ranker

    return read_ranker(path, known_classes(rankers, networks, transforms))


def built_in() -> LoadedOnUse[type[Ranker]]:
    """Tierank's rankers by the names of their classes."""
    return LoadedOnUse({home.partition(":")[2]: home for home in (*RANKERS.homes.values(), *_OTHERS)})


def known_classes(
    rankers: Iterable[type[Ranker]] = (), networks: Iterable[type] = (), transforms: Iterable[type] = ()
) -> Known:
    """The classes that a model file may name: tierank's, those of installed packages, and the given ones."""
    from tierank.rankers.folder import Known

    return Known(
        rankers=_Classes("rankers", rankers, built_in()),
        networks=_Classes("networks", networks),
        transforms=_Classes("transforms", transforms),
    )


class _Classes(Mapping[str, Any]):
    """Classes by name: those given, tierank's, and those that installed packages register as entry points."""

    def __init__(self, argument: str, given: Any, built_in: Mapping[str, Any] | None = None) -> None:
        if not isinstance(given, Iterable):
            fix = f"write {argument}=[{given.__name__}]" if isinstance(given, type) else None
            raise ParameterError(argument=argument, expected="a list of classes", got=repr(given), fix=fix)
        self.given, self.built_in, self.group = {}, built_in or {}, f"tierank.{argument}"
        for kind in given:
            if not isinstance(kind, type):
                raise ParameterError(argument=argument, expected="a list of classes", got=f"one with {kind!r}")
            self.given[kind.__qualname__] = kind

    def __getitem__(self, name: str) -> Any:
        for known in (self.given, self.built_in):
            if name in known:
                return known[name]
        return next(point for point in self._installed() if point.name == name).load()

    def __iter__(self) -> Iterator[str]:
        return iter({**self.given, **dict.fromkeys([*self.built_in, *(point.name for point in self._installed())])})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return any(one == name for one in self)

    def _installed(self) -> EntryPoints:
        return entry_points(group=self.group)
