"""Learning from clicks: logs, click models, propensities, judgements, off-policy evaluation, interleaving."""

from tierank.clicks.base import ClickModel
from tierank.clicks.choice import HeldOut, choose_model, compare_models
from tierank.clicks.interleaving import INTERLEAVINGS, Interleaved, Preference, interleave, preference
from tierank.clicks.judgements import Judgements, judgements
from tierank.clicks.log import ClickLog
from tierank.clicks.models import CLICK_MODELS, load, make_model, save
from tierank.clicks.offpolicy import Value, estimate_value, evaluate_ranking
from tierank.clicks.power import ab_power, ab_sample_size, interleaving_power, interleaving_sample_size
from tierank.clicks.propensity import PROPENSITY_METHODS, Propensities, estimate_propensities, read_propensities
from tierank.clicks.reading import read
from tierank.clicks.simulate import Simulation, simulate_clicks
from tierank.clicks.training import training_data

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
