"""tierank: learning to rank by unique ratings.

Names are loaded on first use, so that ``import tierank`` and ``tierank --help`` answer at once.
"""

import sys
from importlib import import_module

# Type checkers take it as true. It is not imported from ``typing``, which takes a while to load, because of Ctrl-C.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from tierank import clicks as clicks
    from tierank import distributed as distributed
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
    "LOSSES": "losses",
    "NETWORKS": "networks",
    "TARGETS": "export",
    "TRANSFORMS": "transforms",
    "METRICS": "metrics",
    "OBJECTIVES": "objectives",
    "RANKERS": "rankers",
    "RULES": "metrics",
    "Change": "drift",
    "Columns": "kinds",
    "Comparison": "evaluation",
    "Contrast": "significance",
    "ColumnWarning": "errors",
    "DataError": "errors",
    "Description": "description",
    "Drift": "drift",
    "Evaluation": "evaluation",
    "Judge": "metrics",
    "LambdaMART": "rankers",
    "NotFittedError": "errors",
    "ApproxNDCG": "rankers",
    "Blend": "rankers",
    "LambdaLoss": "rankers",
    "LightGBMRanker": "rankers",
    "LinearRanker": "rankers",
    "ListMLE": "rankers",
    "ListNet": "rankers",
    "NetworkRanker": "rankers",
    "PListMLE": "rankers",
    "RankNet": "rankers",
    "Ranked": "rankers",
    "Ranker": "rankers",
    "URank": "rankers",
    "UBoost": "rankers",
    "UrBoost": "rankers",
    "MDPRank": "rankers",
    "MissingExtraError": "extras",
    "ParameterError": "errors",
    "ProcessError": "errors",
    "Proof": "export",
    "QueryKFold": "validation",
    "RankingDataset": "dataset",
    "Segment": "segments",
    "SegmentContrast": "segments",
    "Rule": "metrics",
    "FitContext": "training.model",
    "FittedModel": "training.model",
    "Resources": "training.model",
    "SavedModel": "training.model",
    "Seen": "training.model",
    "Step": "training.callbacks",
    "Table": "report.tables",
    "Team": "team",
    "Transform": "transforms",
    "TeamError": "errors",
    "TierankError": "errors",
    "WriteError": "errors",
    "TreeRanker": "rankers",
    "UMart": "rankers",
    "check_gradient": "objectives",
    "compare": "evaluation",
    "Run": "experiments",
    "Tuning": "experiments",
    "cross_validate": "experiments",
    "side_by_side": "experiments",
    "tune": "experiments",
    "describe": "description",
    "Explanation": "explain",
    "explain_pair": "explain",
    "explain_query": "explain",
    "Profile": "description",
    "profile": "description",
    "write_profile": "report.profile",
    "write_report": "report.page",
    "evaluate": "evaluation",
    "distill": "rankers",
    "from_lightgbm": "rankers",
    "load": "rankers",
    "make_ranking": "synth",
    "plot_history": "report.plots",
    "plot_importance": "report.plots",
    "plot_wins": "report.plots",
    "read": "readers",
    "read_fold": "readers",
    "read_scores": "readers",
    "scorer": "validation",
    "tabulate": "report.tables",
    "to_arrow": "readers",
    "verify": "export",
    "write": "readers",
    "write_qrels": "readers",
    "write_run": "readers",
    "write_scores": "readers",
}

__all__ = ["__version__", *_HOMES]


if not TYPE_CHECKING:  # checkers go by the block above, and so find names that are misspelt

    def __getattr__(name: str) -> object:
        # Modules that users call by their names: tierank.distributed.fit.
        is_module = name in ("clicks", "distributed", "serve")
        if not is_module and name not in _HOMES:
            # With these two arguments, Python suggests similar names.
            raise AttributeError(f"module 'tierank' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        from tierank.extras import loading

        with loading(f"tierank.{name}"):
            home = import_module(f"tierank.{name if is_module else _HOMES[name]}")
        return home if is_module else getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
