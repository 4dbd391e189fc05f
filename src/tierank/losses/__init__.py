"""LOSSES: how far scores are from the order that the ratings ask for, one value per query.

A loss is a function ``f(scores, batch)`` with settings as keywords. A batch is whole queries, one after the other:
nothing is padded, and no n x n matrix is made but by ``neuralndcg``.

>>> import torch
>>> batch = Batch(offsets=[0, 4, 6], ratings=[1, 2, 2, 0, 1, 1])
>>> scores = torch.tensor([2.0, 3.0, 4.0, 5.0, 1.0, 1.0]).log().requires_grad_()
>>> values = LOSSES["urank"](scores, batch)
>>> [round(value, 4) for value in values.tolist()]
[3.9497, 0.0]
>>> values.sum().backward()

**All losses.** A query whose documents all have one rating has no order to learn: its value is 0, and so is its
gradient. Adding a number to all scores of a query changes nothing. Values and gradients are finite wherever the scores
are, at +-1e4 in single precision too. Losses over pairs go through them in blocks: memory does not grow with the
number of pairs, time does.

**Row weights.** Where a batch has them, a row of weight 2 is the row twice, in values and gradients, and one of weight
0 as if it were not there. The exceptions are ``listmle``, ``plistmle`` and ``windowed_urank``, in which copies of a row
share its place. Each loss says in its own words what a weight does.

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

# Losses that go by the order of the ratings alone, whatever their gains are.
WITHOUT_GAINS = (listmle, listnet, plistmle, ranknet)

# Losses that take the weights of a batch, and so inverse propensities. The likelihood of an order has none.
WITH_WEIGHTS = (approxndcg, lambdaloss, lambdarank, listnet, ranknet, softmax, urank, windowed_urank)
