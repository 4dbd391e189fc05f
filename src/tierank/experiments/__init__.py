"""Experiments: folds, seeds, settings, and the folder that stores their results."""

from tierank.experiments.beside import side_by_side
from tierank.experiments.crossval import LEAKS, cross_validate, keep_comparison
from tierank.experiments.demo import run_demo
from tierank.experiments.paper import PAPERS, Paper
from tierank.experiments.plan import PROTOCOLS
from tierank.experiments.runs import Run, Tidy
from tierank.experiments.tuning import Tuning, tune

__all__ = [
    "LEAKS",
    "PAPERS",
    "PROTOCOLS",
    "Paper",
    "Run",
    "Tidy",
    "Tuning",
    "cross_validate",
    "keep_comparison",
    "run_demo",
    "side_by_side",
    "tune",
]
