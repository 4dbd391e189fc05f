"""LOSSES: how far scores are from the order that the ratings ask for. OBJECTIVES: what boosted trees follow.

In a training loop of your own, a loss takes tensors: a row of scores and ratings for each query, padded where ``mask``
is False, or flat ones with a ``qid``. The result is the mean over the queries; ``reduction`` changes that.

>>> import torch
>>> from tierank.losses import LOSSES, Batch, urank
>>> scores = torch.tensor([[2.0, 3.0, 4.0, 5.0], [1.0, 1.0, 0.0, 0.0]]).log().requires_grad_()
>>> ratings = torch.tensor([[1, 2, 2, 0], [1, 1, -1, -1]])
>>> round(urank(scores, ratings, mask=ratings >= 0).item(), 3)  # the mean of 3.9497 and 0
1.975
>>> flat, qid = torch.tensor([2.0, 1.0, 3.0, 1.0, 4.0, 5.0]).log(), torch.tensor([7, 8, 7, 8, 7, 7])
>>> values = urank(flat, torch.tensor([1, 1, 2, 1, 2, 0]), qid=qid, reduction="none")
>>> [round(value, 4) for value in values.tolist()]
[3.9497, 0.0]

=============== ====================================================================================================
``scores``      a row for each query, or flat; half precision is computed in single precision
``ratings``     of the same shape
``qid``         for flat scores, the query of each, in any order; None: they are one query
``mask``        True for documents, False for padding, whose scores and ratings do not matter; None: no padding
``reduction``   ``"mean"`` over the queries that have documents, ``"sum"``, or ``"none"``: a value for each row, or
                for each query of flat scores in the order in which they first appear
``gain``, ``weights``, ``row_weight``, ``generator``  as of ``Batch``; weights have the shape of the scores
=============== ====================================================================================================

Inside tierank, a loss is a function ``f(scores, batch)`` that returns one value per query, with settings as keywords. A
batch is a sequence of whole queries: nothing is padded, and only ``neuralndcg`` needs an n x n matrix.

>>> batch = Batch(offsets=[0, 4, 6], ratings=[1, 2, 2, 0, 1, 1])
>>> scores = torch.tensor([2.0, 3.0, 4.0, 5.0, 1.0, 1.0]).log().requires_grad_()
>>> values = LOSSES["urank"](scores, batch)
>>> [round(value, 4) for value in values.tolist()]
[3.9497, 0.0]
>>> values.sum().backward()

**All losses.** A query whose documents all have the same rating has no order to learn: its value is 0, and so is its
gradient. Adding a number to all scores of a query changes nothing. Values and gradients are finite for finite scores,
even at +-1e4 in single precision. Losses over pairs process them in blocks: time grows with the number of pairs, memory
does not.

**Row weights.** If a batch has them, a row of weight 2 is equivalent to the row twice, in values and gradients, and a
row of weight 0 to no row. The exceptions are ``listmle``, ``plistmle`` and ``windowed_urank``, in which copies of a row
share its place. The docstring of each loss says what a weight does.

``urank``, ``listnet``, ``listmle``, ``plistmle``, ``softmax`` and ``neuralndcg`` can be differentiated twice; the
others say that they cannot.

**Objectives.** Boosted trees follow gradient and hessian instead of a value. An objective is created from settings,
prepared with the ratings, and then called for gradients once per round:

>>> objective = OBJECTIVES["umart"](window=2).prepare(ratings=[2, 1, 0, 0], offsets=[0, 4])
>>> gradient, hessian = objective.gradients([0.1, 0.7, 0.2, 0.4])
>>> [round(float(g), 3) for g in gradient]
[-1.445, 0.264, 0.676, 0.504]

LightGBM accepts it directly: ``lightgbm.train({"objective": OBJECTIVES["umart"]()}, data)``. It may copy or pickle the
objective; copies have the settings, and prepare themselves with the labels, groups and weights of the data.

``check_gradient`` tests your own loss before trees or networks follow it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tierank.extras import loading
from tierank.losses.custom import LossObjective
from tierank.losses.objective import Objective
from tierank.losses.umart import LambdaRankObjective, StochasticUMartObjective, UMartObjective

if TYPE_CHECKING:
    from tierank.losses.batch import Batch, TierStep
    from tierank.losses.derivatives import check_gradient
    from tierank.losses.listwise import listmle, listnet, plistmle, softmax
    from tierank.losses.pairwise import lambdaloss, lambdarank, ranknet
    from tierank.losses.registry import LOSSES, WITH_WEIGHTS
    from tierank.losses.smooth import approxndcg, neuralndcg
    from tierank.losses.tensors import Loss
    from tierank.losses.tiers import stepwise_urank, urank, windowed_urank

__all__ = [
    "LOSSES", "OBJECTIVES", "WITH_WEIGHTS", "Batch", "LambdaRankObjective", "Loss", "LossObjective",
    "Objective", "StochasticUMartObjective", "TierStep", "UMartObjective", "approxndcg", "check_gradient", "lambdaloss",
    "lambdarank", "listmle", "listnet", "neuralndcg", "plistmle", "ranknet", "softmax", "stepwise_urank", "urank",
    "windowed_urank",
]  # fmt: skip

OBJECTIVES: dict[str, type[Objective]] = {
    "lambdarank": LambdaRankObjective,
    "loss": LossObjective,
    "stochastic": StochasticUMartObjective,
    "umart": UMartObjective,
}


def __getattr__(name: str) -> Any:
    """The losses, which need torch, are loaded on first use: objectives of trees do without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    with loading(f"tierank.{name}" if name.isupper() else f"tierank.losses.{name}"):
        from tierank.losses import derivatives, registry

    globals()[name] = getattr(derivatives if name == "check_gradient" else registry, name)
    return globals()[name]
