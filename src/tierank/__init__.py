"""tierank: learning to rank with boosted trees, neural networks and blends.

    data      RankingDataset, read, read_fold, write, Columns, TextEncoder, make_ranking, describe, profile
    rankers   UMart (start here), Blend, LambdaMART, LinearRanker, URank and others; load, tune, distill
    results   evaluate, compare, choose, cross_validate, tabulate, write_report, plot_history
    models    ranker.rank, explain_pair, ranker.export, verify, adopt, from_lightgbm
    modules   tierank.clicks, tierank.distributed, tierank.export, tierank.losses, tierank.paper,
              tierank.serve
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
    from tierank import experiments as experiments
    from tierank import export as export
    from tierank import integrations as integrations
    from tierank import losses as losses
    from tierank import paper as paper
    from tierank import serve as serve
    from tierank.data.columns import Columns as Columns
    from tierank.data.dataset import RankingDataset as RankingDataset
    from tierank.data.team import Team as Team
    from tierank.data.vectors import TextEncoder as TextEncoder
    from tierank.errors import ColumnWarning as ColumnWarning
    from tierank.errors import DataError as DataError
    from tierank.errors import NotFittedError as NotFittedError
    from tierank.errors import ParameterError as ParameterError
    from tierank.errors import ProcessError as ProcessError
    from tierank.errors import SingleFeatureWarning as SingleFeatureWarning
    from tierank.errors import TeamError as TeamError
    from tierank.errors import TierankError as TierankError
    from tierank.errors import WriteError as WriteError
    from tierank.experiments import Recommendation as Recommendation
    from tierank.experiments import Run as Run
    from tierank.experiments import Tuning as Tuning
    from tierank.experiments import choose as choose
    from tierank.experiments import cross_validate as cross_validate
    from tierank.experiments import side_by_side as side_by_side
    from tierank.experiments import tune as tune
    from tierank.export import TARGETS as TARGETS
    from tierank.export import verify as verify
    from tierank.export.proof import Proof as Proof
    from tierank.extras import MissingExtraError as MissingExtraError
    from tierank.io import read as read
    from tierank.io import read_fold as read_fold
    from tierank.io import read_scores as read_scores
    from tierank.io import to_arrow as to_arrow
    from tierank.io import write as write
    from tierank.io import write_qrels as write_qrels
    from tierank.io import write_run as write_run
    from tierank.io import write_scores as write_scores
    from tierank.io.synth import make_ranking as make_ranking
    from tierank.losses import LOSSES as LOSSES
    from tierank.losses import OBJECTIVES as OBJECTIVES
    from tierank.losses import check_gradient as check_gradient
    from tierank.metrics import METRICS as METRICS
    from tierank.metrics import RULES as RULES
    from tierank.metrics import Judge as Judge
    from tierank.metrics import Rule as Rule
    from tierank.metrics.compare import Comparison as Comparison
    from tierank.metrics.compare import compare as compare
    from tierank.metrics.description import Change as Change
    from tierank.metrics.description import Description as Description
    from tierank.metrics.description import Drift as Drift
    from tierank.metrics.description import Profile as Profile
    from tierank.metrics.description import describe as describe
    from tierank.metrics.description import profile as profile
    from tierank.metrics.evaluate import Evaluation as Evaluation
    from tierank.metrics.evaluate import evaluate as evaluate
    from tierank.metrics.segments import Segment as Segment
    from tierank.metrics.segments import SegmentContrast as SegmentContrast
    from tierank.metrics.significance import Contrast as Contrast
    from tierank.networks import NETWORKS as NETWORKS
    from tierank.rankers import RANKERS as RANKERS
    from tierank.rankers import load as load
    from tierank.rankers.adoption import Adoption as Adoption
    from tierank.rankers.adoption import adopt as adopt
    from tierank.rankers.base import Ranked as Ranked
    from tierank.rankers.base import Ranker as Ranker
    from tierank.rankers.blend import Blend as Blend
    from tierank.rankers.distillation import distill as distill
    from tierank.rankers.explain import Explanation as Explanation
    from tierank.rankers.explain import explain_pair as explain_pair
    from tierank.rankers.explain import explain_query as explain_query
    from tierank.rankers.linear import LinearRanker as LinearRanker
    from tierank.rankers.model import FitContext as FitContext
    from tierank.rankers.model import FittedModel as FittedModel
    from tierank.rankers.model import Resources as Resources
    from tierank.rankers.model import SavedModel as SavedModel
    from tierank.rankers.model import Seen as Seen
    from tierank.rankers.model import Step as Step
    from tierank.rankers.neural import ApproxNDCG as ApproxNDCG
    from tierank.rankers.neural import LambdaLoss as LambdaLoss
    from tierank.rankers.neural import ListMLE as ListMLE
    from tierank.rankers.neural import ListNet as ListNet
    from tierank.rankers.neural import MDPRank as MDPRank
    from tierank.rankers.neural import NetworkRanker as NetworkRanker
    from tierank.rankers.neural import PListMLE as PListMLE
    from tierank.rankers.neural import RankNet as RankNet
    from tierank.rankers.neural import UBoost as UBoost
    from tierank.rankers.neural import URank as URank
    from tierank.rankers.neural import UrBoost as UrBoost
    from tierank.rankers.other_libraries import from_catboost as from_catboost
    from tierank.rankers.other_libraries import from_xgboost as from_xgboost
    from tierank.rankers.trees import LambdaMART as LambdaMART
    from tierank.rankers.trees import LightGBMRanker as LightGBMRanker
    from tierank.rankers.trees import TreeRanker as TreeRanker
    from tierank.rankers.trees import UMart as UMart
    from tierank.rankers.trees import from_lightgbm as from_lightgbm
    from tierank.rankers.validation import QueryKFold as QueryKFold
    from tierank.rankers.validation import scorer as scorer
    from tierank.report.figures import plot_history as plot_history
    from tierank.report.figures import plot_importance as plot_importance
    from tierank.report.figures import plot_wins as plot_wins
    from tierank.report.page import write_report as write_report
    from tierank.report.profile import write_profile as write_profile
    from tierank.report.tabulate import Table as Table
    from tierank.report.tabulate import tabulate as tabulate
    from tierank.transforms import TRANSFORMS as TRANSFORMS
    from tierank.transforms import Transform as Transform

__version__ = "0.3.0"

# Where each public name lives; the block above says the same to type checkers and editors.
_NAMES = {
    "data.columns": "Columns",
    "data.vectors": "TextEncoder",
    "data.dataset": "RankingDataset",
    "metrics.description": "Change describe Description Drift Profile profile",
    "errors": (
        "ColumnWarning DataError NotFittedError ParameterError ProcessError SingleFeatureWarning TeamError TierankError"
        " WriteError"
    ),
    "experiments": "choose cross_validate Recommendation Run side_by_side tune Tuning",
    "export": "TARGETS verify",
    "export.proof": "Proof",
    "extras": "MissingExtraError",
    "io": "read read_fold read_scores to_arrow write write_qrels write_run write_scores",
    "io.synth": "make_ranking",
    "losses": "check_gradient LOSSES OBJECTIVES",
    "metrics": "Judge METRICS Rule RULES",
    "metrics.compare": "compare Comparison",
    "metrics.evaluate": "evaluate Evaluation",
    "metrics.segments": "Segment SegmentContrast",
    "metrics.significance": "Contrast",
    "networks": "NETWORKS",
    "rankers": "load RANKERS",
    "rankers.adoption": "adopt Adoption",
    "rankers.base": "Ranked Ranker",
    "rankers.blend": "Blend",
    "rankers.distillation": "distill",
    "rankers.explain": "explain_pair explain_query Explanation",
    "rankers.linear": "LinearRanker",
    "rankers.model": "FitContext FittedModel Resources SavedModel Seen Step",
    "rankers.neural": (
        "ApproxNDCG LambdaLoss ListMLE ListNet MDPRank NetworkRanker PListMLE RankNet UBoost URank UrBoost"
    ),
    "rankers.other_libraries": "from_catboost from_xgboost",
    "rankers.trees": "LambdaMART LightGBMRanker TreeRanker UMart from_lightgbm",
    "rankers.validation": "QueryKFold scorer",
    "report.figures": "plot_history plot_importance plot_wins",
    "report.page": "write_report",
    "report.profile": "write_profile",
    "report.tabulate": "Table tabulate",
    "data.team": "Team",
    "transforms": "Transform TRANSFORMS",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

# Modules that users call by their names: ``tierank.losses.urank``.
_MODULES = ("clicks", "distributed", "experiments", "export", "integrations", "losses", "paper", "serve")

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
        globals()[name] = home if is_module else getattr(home, name)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
