"""Learning from clicks: logs, click models, propensities, judgements, off-policy evaluation, interleaving."""

from tierank.clicks.base import ClickModel
from tierank.clicks.interleaving import (
    INTERLEAVINGS,
    Interleaved,
    Preference,
    ab_power,
    ab_sample_size,
    interleave,
    interleaving_power,
    interleaving_sample_size,
    preference,
)
from tierank.clicks.judgements import Judgements, judgements, training_data
from tierank.clicks.log import ClickLog
from tierank.clicks.models import CLICK_MODELS, HeldOut, choose_model, compare_models, load, make_model, save
from tierank.clicks.offpolicy import Value, estimate_value, evaluate_ranking
from tierank.clicks.propensities import PROPENSITY_METHODS, Propensities, estimate_propensities, read_propensities
from tierank.clicks.reading import read
from tierank.clicks.simulation import Simulation, simulate_clicks

__all__ = [
    "CLICK_MODELS",
    "INTERLEAVINGS",
    "PROPENSITY_METHODS",
    "ClickLog",
    "ClickModel",
    "HeldOut",
    "Interleaved",
    "Judgements",
    "Preference",
    "Propensities",
    "Simulation",
    "Value",
    "ab_power",
    "ab_sample_size",
    "choose_model",
    "compare_models",
    "estimate_propensities",
    "estimate_value",
    "evaluate_ranking",
    "interleave",
    "interleaving_power",
    "interleaving_sample_size",
    "judgements",
    "load",
    "make_model",
    "preference",
    "read",
    "read_propensities",
    "save",
    "simulate_clicks",
    "training_data",
]
