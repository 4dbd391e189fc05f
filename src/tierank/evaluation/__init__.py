"""Evaluation of scores: one system, or several compared."""

from tierank.evaluation.compared import Comparison, compare, compare_evaluations
from tierank.evaluation.judged import Evaluation, evaluate
from tierank.evaluation.showing import format_number

__all__ = ["Comparison", "Evaluation", "compare", "compare_evaluations", "evaluate", "format_number"]
