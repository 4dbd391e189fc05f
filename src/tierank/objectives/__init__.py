"""OBJECTIVES: gradient and hessian for boosted trees.

An objective is created from settings, prepared with the ratings, and then called for gradients once per round:

>>> objective = OBJECTIVES["umart"](window=2).prepare(ratings=[2, 1, 0, 0], offsets=[0, 4])
>>> gradient, hessian = objective.gradients([0.1, 0.7, 0.2, 0.4])
>>> [round(float(g), 3) for g in gradient]
[-1.445, 0.264, 0.676, 0.504]

LightGBM accepts it directly: ``lightgbm.train({"objective": OBJECTIVES["umart"]()}, data)``. It may copy or pickle the
objective; copies have the settings, and prepare themselves with the labels, groups and weights of the data.

``check_gradient`` tests your own loss before trees or networks follow it.
"""

from __future__ import annotations

from tierank.objectives.checking import check_gradient
from tierank.objectives.loss import (
    LossObjective,
    as_loss,
    check_loss_settings,
    check_reads_gain,
    check_reads_propensity,
    loss_keywords,
)
from tierank.objectives.objective import Objective
from tierank.objectives.stochastic import StochasticUMartObjective
from tierank.objectives.umart import LAMBDARANK_VERSIONS, LambdaRankObjective, UMartObjective

__all__ = [
    "LAMBDARANK_VERSIONS",
    "OBJECTIVES",
    "LambdaRankObjective",
    "LossObjective",
    "Objective",
    "StochasticUMartObjective",
    "UMartObjective",
    "as_loss",
    "check_gradient",
    "check_loss_settings",
    "check_reads_gain",
    "check_reads_propensity",
    "loss_keywords",
]

OBJECTIVES: dict[str, type[Objective]] = {
    "lambdarank": LambdaRankObjective,
    "loss": LossObjective,
    "stochastic": StochasticUMartObjective,
    "umart": UMartObjective,
}
