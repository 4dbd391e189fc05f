"""The rankers, by the names that the command line gives them."""

from __future__ import annotations

import os

from tierank.rankers.base import Ranker
from tierank.rankers.blend import Blend
from tierank.rankers.boosted import UBoost, UrBoost
from tierank.rankers.model_folder import read_model
from tierank.rankers.neural import ApproxNDCG, LambdaLoss, ListMLE, ListNet, NetworkRanker, PListMLE, RankNet, URank
from tierank.rankers.policy import MDPRank
from tierank.rankers.trees import LambdaMART, TreeRanker, UMart

__all__ = [
    "RANKERS",
    "ApproxNDCG",
    "Blend",
    "LambdaLoss",
    "LambdaMART",
    "ListMLE",
    "ListNet",
    "MDPRank",
    "NetworkRanker",
    "PListMLE",
    "RankNet",
    "Ranker",
    "TreeRanker",
    "UBoost",
    "UMart",
    "URank",
    "UrBoost",
    "known_rankers",
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
    "blend": Blend,
}


def load(path: str | os.PathLike[str]) -> Ranker:
    """The ranker that ``save`` wrote to this folder. Nothing in it is run; the checksum of every file is verified."""
    return read_model(path, known_rankers())


def known_rankers() -> dict[str, type[Ranker]]:
    """The classes whose models can be loaded, by the names that model files give them."""
    return {ranker.__name__: ranker for ranker in (*RANKERS.values(), NetworkRanker, TreeRanker)}
