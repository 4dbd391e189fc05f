"""LOSSES: how far scores are from the order that the ratings ask for, one value per query.

A loss is a function ``f(scores, batch)`` with settings as keywords. A batch is a sequence of whole queries: nothing is
padded, and only ``neuralndcg`` needs an n x n matrix.

>>> import torch
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
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tierank.losses.batch import Batch, Step
from tierank.losses.lists import listmle, listnet, plistmle, softmax
from tierank.losses.pairs import lambdaloss, lambdarank, ranknet
from tierank.losses.smooth import approxndcg, neuralndcg
from tierank.losses.tiers import stepwise_urank, urank, windowed_urank

__all__ = [
    "LOSSES",
    "WITHOUT_GAINS",
    "WITH_WEIGHTS",
    "Batch",
    "Loss",
    "Step",
    "approxndcg",
    "lambdaloss",
    "lambdarank",
    "listmle",
    "listnet",
    "neuralndcg",
    "plistmle",
    "ranknet",
    "softmax",
    "stepwise_urank",
    "urank",
    "windowed_urank",
]

Loss = Callable[..., Tensor]

LOSSES: dict[str, Loss] = {
    "approxndcg": approxndcg,
    "lambdaloss": lambdaloss,
    "lambdarank": lambdarank,
    "listmle": listmle,
    "listnet": listnet,
    "neuralndcg": neuralndcg,
    "plistmle": plistmle,
    "ranknet": ranknet,
    "softmax": softmax,
    "urank": urank,
    "windowed_urank": windowed_urank,
}

# Losses that depend only on the order of the ratings, not on gains.
WITHOUT_GAINS = (listmle, listnet, plistmle, ranknet)

# Losses that use the weights of a batch, and so inverse propensities. The likelihood of an order has none.
WITH_WEIGHTS = (approxndcg, lambdaloss, lambdarank, listnet, ranknet, softmax, urank, windowed_urank)
