"""Learning from clicks: logs, click models, propensities, off-policy evaluation, interleaving."""

from tierank.clicks.base import ClickModel
from tierank.clicks.log import ClickLog
from tierank.clicks.models import CLICK_MODELS, load, make_model, save
from tierank.clicks.reading import read

__all__ = ["CLICK_MODELS", "ClickLog", "ClickModel", "load", "make_model", "read", "save"]
