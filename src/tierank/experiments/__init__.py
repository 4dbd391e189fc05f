"""Experiments: folds, seeds, settings, and the folder that stores their results."""

from tierank.experiments.choosing import Recommendation as Recommendation
from tierank.experiments.choosing import choose as choose
from tierank.experiments.crossval import LEAKS as LEAKS
from tierank.experiments.crossval import cross_validate as cross_validate
from tierank.experiments.crossval import keep_comparison as keep_comparison
from tierank.experiments.demo import run_demo as run_demo
from tierank.experiments.published import PAPERS as PAPERS
from tierank.experiments.published import Paper as Paper
from tierank.experiments.runs import Run as Run
from tierank.experiments.runs import Tidy as Tidy
from tierank.experiments.runs import side_by_side as side_by_side
from tierank.experiments.store import PROTOCOLS as PROTOCOLS
from tierank.experiments.tuning import Tuning as Tuning
from tierank.experiments.tuning import tune as tune
