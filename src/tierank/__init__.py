"""tierank: learning to rank with boosted trees, neural networks and blends.

    data      RankingDataset, read, read_fold, write, Columns, make_ranking, describe, profile
    rankers   UMart (start here), Blend, LambdaMART, LinearRanker, URank and others; load, tune, distill
    results   evaluate, compare, cross_validate, tabulate, write_report, plot_history
    models    ranker.rank, explain_pair, ranker.export, verify, from_lightgbm
    modules   tierank.clicks, tierank.distributed, tierank.export, tierank.serve
    your own  Ranker, TreeRanker, NetworkRanker, Transform, Rule
    errors    TierankError and its subclasses; the message says what to do

>>> import tierank
>>> data = tierank.make_ranking(60, n_features=8, mean_length=20, max_length=40)  # or read("shop.csv")
>>> train, valid, test = data.split(0.6, 0.2, 0.2)
>>> ranker = tierank.UMart(n_trees=50).fit(train, valid=valid)  # or fit(X, y, qid=qid, valid=(Xv, yv, qv))
>>> scores = ranker.predict(test)
>>> tierank.evaluate(test, scores, "ndcg@10").mean("ndcg@10") > 0.5
True

``help(tierank.UMart)`` describes its settings, and ``tierank --help`` the commands.
"""

import sys
from importlib import import_module

# Type checkers take it as true. It is not imported from ``typing``, which takes a while to load, because of Ctrl-C.
TYPE_CHECKING = False

# Public names are loaded on first use, so that ``import tierank`` and ``tierank --help`` answer at once.
if TYPE_CHECKING:
    from tierank import clicks as clicks
    from tierank import distributed as distributed
    from tierank import export as export
    from tierank import serve as serve
    from tierank.dataset import RankingDataset as RankingDataset
    from tierank.description import Description as Description
    from tierank.description import Profile as Profile
    from tierank.description import describe as describe
    from tierank.description import profile as profile
    from tierank.drift import Change as Change
    from tierank.drift import Drift as Drift
    from tierank.errors import ColumnWarning as ColumnWarning
    from tierank.errors import DataError as DataError
    from tierank.errors import NotFittedError as NotFittedError
    from tierank.errors import ParameterError as ParameterError
    from tierank.errors import ProcessError as ProcessError
    from tierank.errors import TeamError as TeamError
    from tierank.errors import TierankError as TierankError
    from tierank.errors import WriteError as WriteError
    from tierank.evaluation import Comparison as Comparison
    from tierank.evaluation import Evaluation as Evaluation
    from tierank.evaluation import compare as compare
    from tierank.evaluation import evaluate as evaluate
    from tierank.experiments import Run as Run
    from tierank.experiments import Tuning as Tuning
    from tierank.experiments import cross_validate as cross_validate
    from tierank.experiments import side_by_side as side_by_side
    from tierank.experiments import tune as tune
    from tierank.explain import Explanation as Explanation
    from tierank.explain import explain_pair as explain_pair
    from tierank.explain import explain_query as explain_query
    from tierank.export import TARGETS as TARGETS
    from tierank.export import Proof as Proof
    from tierank.export import verify as verify
    from tierank.extras import MissingExtraError as MissingExtraError
    from tierank.kinds import Columns as Columns
    from tierank.losses import LOSSES as LOSSES
    from tierank.metrics import METRICS as METRICS
    from tierank.metrics import RULES as RULES
    from tierank.metrics import Judge as Judge
    from tierank.metrics import Rule as Rule
    from tierank.networks import NETWORKS as NETWORKS
    from tierank.objectives import OBJECTIVES as OBJECTIVES
    from tierank.objectives import check_gradient as check_gradient
    from tierank.rankers import RANKERS as RANKERS
    from tierank.rankers import ApproxNDCG as ApproxNDCG
    from tierank.rankers import Blend as Blend
    from tierank.rankers import LambdaLoss as LambdaLoss
    from tierank.rankers import LambdaMART as LambdaMART
    from tierank.rankers import LightGBMRanker as LightGBMRanker
    from tierank.rankers import LinearRanker as LinearRanker
    from tierank.rankers import ListMLE as ListMLE
    from tierank.rankers import ListNet as ListNet
    from tierank.rankers import MDPRank as MDPRank
    from tierank.rankers import NetworkRanker as NetworkRanker
    from tierank.rankers import PListMLE as PListMLE
    from tierank.rankers import Ranked as Ranked
    from tierank.rankers import Ranker as Ranker
    from tierank.rankers import RankNet as RankNet
    from tierank.rankers import TreeRanker as TreeRanker
    from tierank.rankers import UBoost as UBoost
    from tierank.rankers import UMart as UMart
    from tierank.rankers import URank as URank
    from tierank.rankers import UrBoost as UrBoost
    from tierank.rankers import distill as distill
    from tierank.rankers import from_lightgbm as from_lightgbm
    from tierank.rankers import load as load
    from tierank.readers import read as read
    from tierank.readers import read_fold as read_fold
    from tierank.readers import read_scores as read_scores
    from tierank.readers import to_arrow as to_arrow
    from tierank.readers import write as write
    from tierank.readers import write_qrels as write_qrels
    from tierank.readers import write_run as write_run
    from tierank.readers import write_scores as write_scores
    from tierank.report.page import write_report as write_report
    from tierank.report.plots import plot_history as plot_history
    from tierank.report.plots import plot_importance as plot_importance
    from tierank.report.plots import plot_wins as plot_wins
    from tierank.report.profile import write_profile as write_profile
    from tierank.report.tables import Table as Table
    from tierank.report.tables import tabulate as tabulate
    from tierank.segments import Segment as Segment
    from tierank.segments import SegmentContrast as SegmentContrast
    from tierank.significance import Contrast as Contrast
    from tierank.synth import make_ranking as make_ranking
    from tierank.team import Team as Team
    from tierank.training.callbacks import Step as Step
    from tierank.training.model import FitContext as FitContext
    from tierank.training.model import FittedModel as FittedModel
    from tierank.training.model import Resources as Resources
    from tierank.training.model import SavedModel as SavedModel
    from tierank.training.model import Seen as Seen
    from tierank.transforms import TRANSFORMS as TRANSFORMS
    from tierank.transforms import Transform as Transform
    from tierank.validation import QueryKFold as QueryKFold
    from tierank.validation import scorer as scorer

__version__ = "0.2.0.dev0"

# Where each public name lives; the block above says the same to type checkers and editors.
_HOMES = {
    "ApproxNDCG": "rankers",
    "Blend": "rankers",
    "Change": "drift",
    "check_gradient": "objectives",
    "Columns": "kinds",
    "ColumnWarning": "errors",
    "compare": "evaluation",
    "Comparison": "evaluation",
    "Contrast": "significance",
    "cross_validate": "experiments",
    "DataError": "errors",
    "describe": "description",
    "Description": "description",
    "distill": "rankers",
    "Drift": "drift",
    "evaluate": "evaluation",
    "Evaluation": "evaluation",
    "explain_pair": "explain",
    "explain_query": "explain",
    "Explanation": "explain",
    "FitContext": "training.model",
    "FittedModel": "training.model",
    "from_lightgbm": "rankers",
    "Judge": "metrics",
    "LambdaLoss": "rankers",
    "LambdaMART": "rankers",
    "LightGBMRanker": "rankers",
    "LinearRanker": "rankers",
    "ListMLE": "rankers",
    "ListNet": "rankers",
    "load": "rankers",
    "LOSSES": "losses",
    "make_ranking": "synth",
    "MDPRank": "rankers",
    "METRICS": "metrics",
    "MissingExtraError": "extras",
    "NetworkRanker": "rankers",
    "NETWORKS": "networks",
    "NotFittedError": "errors",
    "OBJECTIVES": "objectives",
    "ParameterError": "errors",
    "PListMLE": "rankers",
    "plot_history": "report.plots",
    "plot_importance": "report.plots",
    "plot_wins": "report.plots",
    "ProcessError": "errors",
    "Profile": "description",
    "profile": "description",
    "Proof": "export",
    "QueryKFold": "validation",
    "Ranked": "rankers",
    "Ranker": "rankers",
    "RANKERS": "rankers",
    "RankingDataset": "dataset",
    "RankNet": "rankers",
    "read": "readers",
    "read_fold": "readers",
    "read_scores": "readers",
    "Resources": "training.model",
    "Rule": "metrics",
    "RULES": "metrics",
    "Run": "experiments",
    "SavedModel": "training.model",
    "scorer": "validation",
    "Seen": "training.model",
    "Segment": "segments",
    "SegmentContrast": "segments",
    "side_by_side": "experiments",
    "Step": "training.callbacks",
    "Table": "report.tables",
    "tabulate": "report.tables",
    "TARGETS": "export",
    "Team": "team",
    "TeamError": "errors",
    "TierankError": "errors",
    "to_arrow": "readers",
    "Transform": "transforms",
    "TRANSFORMS": "transforms",
    "TreeRanker": "rankers",
    "tune": "experiments",
    "Tuning": "experiments",
    "UBoost": "rankers",
    "UMart": "rankers",
    "URank": "rankers",
    "UrBoost": "rankers",
    "verify": "export",
    "write": "readers",
    "write_profile": "report.profile",
    "write_qrels": "readers",
    "write_report": "report.page",
    "write_run": "readers",
    "write_scores": "readers",
    "WriteError": "errors",
}

# Modules that users call by their names: ``tierank.distributed.fit``.
_MODULES = ("clicks", "distributed", "export", "serve")

__all__ = ["__version__", *_HOMES]


if not TYPE_CHECKING:  # checkers go by the block above, and so find names that are misspelt

    def __getattr__(name: str) -> object:
        is_module = name in _MODULES
        if not is_module and name not in _HOMES:
            # With these two arguments, Python suggests similar names.
            raise AttributeError(f"module 'tierank' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        from tierank.extras import loading

        with loading(f"tierank.{name}"):
            home = import_module(f"tierank.{name if is_module else _HOMES[name]}")
        return home if is_module else getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
