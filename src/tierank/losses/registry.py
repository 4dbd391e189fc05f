"""All losses by name; they need torch, and ``tierank.losses`` loads them on first use."""

from __future__ import annotations

from tierank.losses.batch import Batch, TierStep
from tierank.losses.listwise import listmle, listnet, plistmle, softmax
from tierank.losses.pairwise import lambdaloss, lambdarank, ranknet
from tierank.losses.smooth import approxndcg, neuralndcg
from tierank.losses.tensors import Loss
from tierank.losses.tiers import stepwise_urank, urank, windowed_urank

__all__ = ["Batch", "Loss", "TierStep", "stepwise_urank"]

_LOSSES = (
    approxndcg, lambdaloss, lambdarank, listmle, listnet, neuralndcg, plistmle, ranknet, softmax, urank, windowed_urank,
)  # fmt: skip
LOSSES: dict[str, Loss] = {loss.__name__: loss for loss in _LOSSES}

# Losses that use the weights of a batch, and so inverse propensities. The likelihood of an order has none.
WITH_WEIGHTS = tuple(loss for loss in _LOSSES if "weights" not in loss.without)
