"""UMart, LambdaMART and TreeRanker: boosted trees that differ in what they optimise."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.errors import ParameterError
from tierank.export import Scorer, Sum
from tierank.objectives import (
    LAMBDARANK_VERSIONS,
    LambdaRankObjective,
    LossObjective,
    Objective,
    StochasticUMartObjective,
    UMartObjective,
    as_loss,
    check_loss_settings,
    check_reads_gain,
    check_reads_propensity,
)
from tierank.objectives.stochastic import MOST_DRAWS
from tierank.rankers.base import Ranker, fitted_copy
from tierank.rankers.presets import Presets, tree_presets
from tierank.rankers.tree_settings import TreeSettings
from tierank.relevance import Gain, as_gain, gain_levels
from tierank.settings import Between, Checked, Choice, Flag, Integer, Number, OneOf, Optional, declared, setting
from tierank.training.checkpoint import described_settings
from tierank.training.model import FitContext, SavedModel, Seen

# LightGBM is imported where trees are grown or loaded.
if TYPE_CHECKING:
    import lightgbm

    from tierank.training.trees import TreeModel

# Neighbours in random orders, and splits at random thresholds; docs/stochastic.md has the figures.
_STOCHASTIC = {
    "noise": 1.0,
    "window": 1,
    "sigma": 1.0,
    "hessian": "exact",
    "weights": "gain",
    "gain": "linear",
    "learning_rate": 0.05,
    "extra_trees": True,
    "n_trees": 1000,
}

GAIN = Checked("'exp2', 'linear', a list, a mapping or a function", as_gain)
_GAIN_HELP = (
    "gain of a rating: exp2 (2^r - 1), linear, a list for the ratings 0, 1, 2, ..., a mapping, or a function (which"
    " cannot be saved)"
)
_NORM_HELP = (
    "p of learned propensities (Hu et al. 2019), which are raised to 1 / (p + 1): 0 leaves them unchanged, more is"
    " more careful; XGBoost's lambdarank_bias_norm"
)
_TIES = Choice(("mean", "rows"))
_TIES_HELP = "documents with equal scores: mean takes the expectation over their orders, rows an arbitrary order"


# Settings of objectives that learn propensities.
_OF_CLICKS = ("propensity_norm", "clip")


class FittedTrees(Ranker):
    """Base class of the rankers whose model is trees: importances, and the model as a LightGBM booster."""

    @property
    def _trees(self) -> TreeModel:
        return cast("TreeModel", self.model_)

    def importance(self, kind: str = "gain") -> NDArray[np.float64]:
        """How much each feature was used.

        Parameters
        ----------
        kind : {"gain", "split"}, default "gain"
            The total gain of its splits, or their number.

        Returns
        -------
        array
            One number per feature.
        """
        self._check_fitted()
        return self._trees.importance(Choice(("gain", "split")).check("importance", kind))

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """The share of each feature in the total gain of all splits."""
        gains = self.importance("gain")
        return gains / max(float(gains.sum()), np.finfo(np.float64).tiny)

    def named_importances(self) -> tuple[list[str], NDArray[np.float64]]:
        """The names of the features and the total gain of the splits on each."""
        gains = self.importance("gain")
        names = self.seen_.feature_names or tuple(f"feature {j}" for j in range(1, len(gains) + 1))
        return list(names), gains

    @property
    def booster_(self) -> lightgbm.Booster:
        """A copy of the trees as a LightGBM booster, for its plots, SHAP and other tools; without ``base``.

        Its features have the names of the training data, with underscores in place of blanks, if LightGBM takes them.
        """
        import lightgbm

        self._check_fitted()
        return lightgbm.Booster(model_str=self._trees.text)

    @property
    def n_rounds_(self) -> int:
        """The number of trees in the model, including those that training continued from."""
        return self._trees.n_before + self._trees.n_rounds


@dataclass(kw_only=True, eq=False, repr=False)
class BoostedTrees(FittedTrees, TreeSettings):
    """Base class of the tree rankers. A subclass says what they optimise."""

    # What to do instead of setting a parameter of LightGBM's own lambdarank.
    INSTEAD: ClassVar[dict[str, str]] = {}

    def takes_categories(self) -> bool:
        """Trees can split by category; a base has to take categories too."""
        return not isinstance(self.base, Ranker) or self.base.takes_categories()

    @abstractmethod
    def objective(self, settings: Mapping[str, Any]) -> Objective:
        """What the trees optimise."""

    @classmethod
    def unknown_setting(cls, name: str, known: Sequence[str]) -> ParameterError:
        """The error for a setting that is not known: names LightGBM's parameters, and what they are called here."""
        from tierank.training.tree_parameters import why_unknown

        return why_unknown(cls.__name__, name, known, cls.INSTEAD) or super().unknown_setting(name, known)

    def check_together(self, settings: Mapping[str, Any]) -> None:
        """Check LightGBM's parameters and the objective."""
        from tierank.training.tree_parameters import check_parameters

        check_parameters(settings)
        for name in ("patience", "select_over"):
            if settings["keep"] == "all" and settings[name] != declared(self)[name].default:
                raise ParameterError(
                    argument=name,
                    expected="its default with `keep`='all', which grows all trees",
                    got=repr(settings[name]),
                )
        self.objective(settings)

    def check_start(self, start: Ranker, settings: Mapping[str, Any]) -> None:
        """Trees can be added to those of any tree ranker that sees the same features and has the same base."""
        from tierank.training.trees import TreeModel

        model = start.model_
        if not isinstance(model, TreeModel):
            raise ParameterError(
                argument="start",
                expected="a tree ranker",
                got=type(start).__name__,
                fix=f"{type(self).__name__}(base={type(start).__name__}()) grows trees on the scores of a ranker",
            )
        if model.query_features != settings["query_features"]:
            got = f"query_features={model.query_features}"
            raise ParameterError(argument="start", expected="a model with the same `query_features`", got=got)
        bases = [described_settings(one) for one in (settings["base"], start.settings_.get("base"))]
        if bases[0] != bases[1]:
            raise ParameterError(
                argument="start", expected="a model with the same `base`, which is not trained again", got="another one"
            )

    def takes_unjudged(self) -> bool:
        """Trees leave out unjudged documents, after features relative to the query were computed from all."""
        base = getattr(self, "base", None)
        return not isinstance(base, Ranker) or base.takes_unjudged()

    def takes_parts(self) -> bool:
        """Trees do; a base has to do so too."""
        base = getattr(self, "base", None)
        return not isinstance(base, Ranker) or base.takes_parts()

    def check_shown(self, train: RankingDataset, settings: Mapping[str, Any]) -> None:
        """Trees take propensities, and learn them from positions, as far as their base does."""
        if settings["base"] is not None:
            settings["base"].check_shown(train, settings["base"].plain_settings())

    def fit_model(self, train: RankingDataset, valid: RankingDataset | None, context: FitContext) -> TreeModel:
        """Grow trees, on the residuals of ``base`` if there is one."""
        from tierank.training.trees import TreeModel, train_trees

        settings = self.checked_settings()
        if not isinstance(settings["gain"], str):
            # Of all data, so that all processes of a team agree.
            gain_levels(train.ratings[train.is_judged], settings["gain"])
        team, base = context.team, settings["base"]
        parts = team.part(train), None if valid is None else team.part(valid)
        objective = self.objective(settings)
        base_model = None
        if base is not None:
            start = context.start
            if isinstance(start, TreeModel):  # whose base is not trained again: its trees correct that one
                base_model = start.base
            else:
                base_model = base.fit_model(train, valid, context.of_base(type(base)))
            context = replace(context.inside("trees"), start=start)
        return train_trees(settings, self._parameters(settings), objective, parts, context, base_model)

    def restore_model(self, saved: SavedModel) -> TreeModel:
        """The trees of a model folder."""
        from tierank.training.trees import TreeModel

        settings = self.get_params(deep=False)
        self._check_loaded(settings)
        base = settings["base"]
        inner = None if base is None else base.restore_model(saved.inside("base", saved.facts.get("base")))
        return TreeModel.restore(saved, settings["query_features"], inner)

    def _check_loaded(self, settings: Mapping[str, Any]) -> None:
        self.checked_settings()

    def outline(self, train: RankingDataset, seen: Seen) -> Scorer:
        """One split, and what the base will be."""
        from tierank.training.trees import outline_trees

        settings = self.checked_settings()
        trees = outline_trees(self._parameters(settings), settings["query_features"], seen)
        base = settings["base"]
        return trees if base is None else Sum(((1.0, base.outline(train, seen)), (1.0, trees)))

    def _parameters(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        from tierank.training.tree_parameters import lightgbm_parameters

        defaults = {name: one.default for name, one in self.lightgbm_settings().items()}
        return lightgbm_parameters(settings, defaults)

    @property
    def base_(self) -> Ranker | None:
        """The fitted base ranker, if there is one."""
        base = self._trees.base
        return None if base is None else fitted_copy(self.settings_["base"], base, self.seen_)

    @property
    def propensities_(self) -> dict[str, NDArray[np.float64]]:
        """The learned propensities ``clicked`` and ``unclicked`` of each position; empty if none were learned."""
        return {name: np.array(values) for name, values in self._trees.propensities.items()}

    @property
    def team_(self) -> list[dict[str, Any]]:
        """The processes that took part in training, with the size of their data."""
        return self._trees.processes


@dataclass(kw_only=True, eq=False, repr=False)
class UMart(BoostedTrees):
    """uMart: boosted trees that follow the windowed uRank likelihood.

    The mathematics is in ``tierank.OBJECTIVES["umart"]``; ``tierank list settings umart`` lists the settings.
    LightGBM's parameters are settings too, by their own names: ``UMart(lambda_l2=1.0, monotone_constraints=[1, 0])``.

    Examples
    --------
    >>> from tierank import make_ranking
    >>> train, test = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.7, 0.3)
    >>> ranker = UMart(n_trees=20).fit(train)
    >>> ranker.predict(test).shape == (test.n_documents,)
    True
    """

    learning_rate: float = setting(
        0.1,
        Number(above=0),
        "factor of each tree; with hessian='code', which is twice the true one, 0.1 is a step of 0.05",
        search=Between(0.02, 0.2, log=True),
    )
    window: int | None = setting(
        2,
        Optional(Integer(1), "all of them"),
        "number of lower-rated documents per window; 1 gives LambdaMART's pairs",
        search=OneOf((1, 2, 5, 10, None)),
    )
    sigma: float = setting(2.0, Number(above=0), "steepness of the likelihood")
    hessian: str = setting("code", Choice(("code", "exact", "paper")), "code (as the authors' program), exact or paper")
    weights: str = setting(
        "ndcg", Choice(("ndcg", "gain", "none")), "weights of pairs: ndcg, gain (the plain uRank gains) or none"
    )
    truncation: int | None = setting(
        None, Optional(Integer(1), "keep all"), "leave out pairs with both documents ranked below this"
    )
    idcg_at: int | None = setting(None, Optional(Integer(1), "all"), "number of ranks in the ideal DCG")
    gain: Gain = setting("exp2", GAIN, _GAIN_HELP)
    ties: str = setting("mean", _TIES, _TIES_HELP)
    noise: float = setting(
        0.0,
        Number(0),
        "above 0: the stochastic uMart, which compares neighbours in random orders; the scale of the noise on scores",
    )
    n_draws: int = setting(10, Integer(1, MOST_DRAWS), "number of random orders in each round, with noise above 0")
    decay: float = setting(
        0.99, Number(above=0, most=1), "factor of the weight of a pair for each place further down, with noise above 0"
    )
    propensity_norm: float = setting(1.0, Number(0), _NORM_HELP)

    INSTEAD: ClassVar[dict[str, str]] = {
        "sigmoid": "give sigma",
        "lambdarank_truncation_level": "give truncation",
        "lambdarank_norm": "give weights",
        "label_gain": "give gain, which takes such a list",
    }
    PRESETS: ClassVar[Presets] = {
        **tree_presets(paper={}, authors={"idcg_at": 20, "ties": "rows"}, is_windowed=True),
        "stochastic": _STOCHASTIC,
    }

    def objective(self, settings: Mapping[str, Any]) -> Objective:
        """The windowed likelihood, by the order of the scores or by random orders around it."""
        self._check_noise(settings)
        if settings["idcg_at"] is not None and settings["weights"] != "ndcg":
            raise ParameterError(
                argument="idcg_at",
                expected=f"None with `weights`={settings['weights']!r}, which has no ideal DCG",
                got=repr(settings["idcg_at"]),
            )
        if settings["gain"] != "exp2" and settings["weights"] == "none":
            raise ParameterError(argument="gain", expected="its default with `weights`='none', where all pairs weigh 1")
        common = ("window", "sigma", "hessian", "weights", "idcg_at", "gain", "n_jobs")
        if settings["noise"] > 0:
            names = (*common, "noise", "n_draws", "decay", "seed", "clip")
            return StochasticUMartObjective(**{name: settings[name] for name in names})
        return UMartObjective(**{name: settings[name] for name in (*common, "truncation", "ties", *_OF_CLICKS)})

    def check_shown(self, train: RankingDataset, settings: Mapping[str, Any]) -> None:
        """Propensities are learned by the order of the scores; with noise they have to be given."""
        super().check_shown(train, settings)
        if settings["noise"] > 0 and train.position is not None and train.propensity is None:
            raise ParameterError(
                argument="position",
                expected="`propensity` too with `noise` above 0, which learns no propensities",
                got="positions alone",
                fix="`noise`=0 learns them",
            )

    def _check_noise(self, settings: Mapping[str, Any]) -> None:
        """An error for settings that have no effect with noise, or without."""
        has_noise = settings["noise"] > 0
        idle = ("truncation", "ties") if has_noise else ("n_draws", "decay")
        when = "`noise` above 0" if has_noise else "`noise`=0, which draws no orders"
        declared = self.declared_settings()
        for name in idle:
            if settings[name] != declared[name].default:
                raise ParameterError(argument=name, expected=f"its default with {when}", got=repr(settings[name]))
        if has_noise and settings["weights"] == "none":
            raise ParameterError(argument="weights", expected="'gain' or 'ndcg' with `noise` above 0", got="'none'")


@dataclass(kw_only=True, eq=False, repr=False)
class LambdaMART(BoostedTrees):
    """LambdaMART: the gradients of LightGBM's lambdarank in a kernel of tierank, for any ratings and list lengths.

    The mathematics is in ``tierank.OBJECTIVES["lambdarank"]``; ``tierank list settings lambdamart`` lists the settings.

    Examples
    --------
    >>> from tierank import make_ranking
    >>> train, test = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.7, 0.3)
    >>> ranker = LambdaMART(n_trees=20, truncation=10).fit(train)
    >>> ranker.predict(test).shape == (test.n_documents,)
    True
    """

    sigma: float = setting(1.0, Number(above=0), "steepness of the likelihood; LightGBM's sigmoid")
    truncation: int | None = setting(
        30,
        Optional(Integer(1), "keep all"),
        "leave out pairs with both documents ranked below this, and use the NDCG at this rank; LightGBM's"
        " lambdarank_truncation_level",
        search=OneOf((10, 20, 30, 100)),
    )
    norm: bool = setting(
        True, Flag(), "divide by the distance of scores and by the sum over the query, as LightGBM does"
    )
    version: str = setting(
        "lightgbm-4",
        Choice(LAMBDARANK_VERSIONS),
        "whose lambdarank: that of LightGBM 4, or lightgbm-2, which the paper compares with and which has neither"
        " truncation nor norm",
    )
    gain: Gain = setting("exp2", GAIN, _GAIN_HELP)
    ties: str = setting("mean", _TIES, f"{_TIES_HELP}, as LightGBM does")
    propensity_norm: float = setting(1.0, Number(0), _NORM_HELP)

    INSTEAD: ClassVar[dict[str, str]] = {
        "sigmoid": "give sigma",
        "lambdarank_truncation_level": "give truncation",
        "lambdarank_norm": "give norm, True or False",
        "label_gain": "give gain, which takes such a list",
    }
    PRESETS: ClassVar[Presets] = tree_presets(
        paper={"version": "lightgbm-2"}, authors={"version": "lightgbm-2", "ties": "rows"}
    )

    def objective(self, settings: Mapping[str, Any]) -> Objective:
        """The gradients of lambdarank."""
        if settings["version"] == "lightgbm-2":
            for name in ("truncation", "norm"):
                if settings[name] != declared(self)[name].default:
                    raise ParameterError(
                        argument=name,
                        expected="its default with `version`='lightgbm-2', which does not read it",
                        got=repr(settings[name]),
                    )
        names = ("sigma", "truncation", "norm", "version", "gain", "ties", "n_jobs", *_OF_CLICKS)
        return LambdaRankObjective(**{name: settings[name] for name in names})


_BY_LOSS = "trees follow the loss; give its settings in loss_settings"


def _as_loss(value: Any) -> Any:
    as_loss(value)
    return value


LOSS = Optional(Checked("a function (scores, batch) -> one value per query, or a key of LOSSES", _as_loss))
LOSS_SETTINGS = Optional(Checked("a mapping from names to values", lambda value: as_mapping("loss_settings", value)))


def as_mapping(name: str, value: Any) -> dict[str, Any]:
    """A mapping from names to values, as a dict."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ParameterError(argument=name, expected="a mapping from names to values", got=repr(value))
    return dict(value)


@dataclass(kw_only=True, eq=False, repr=False)
class TreeRanker(BoostedTrees):
    """Trees that follow your own loss: the same functions that ``NetworkRanker`` takes.

    How gradient and hessian come from the function is in ``tierank.OBJECTIVES["loss"]``; ``tierank.check_gradient``
    tests its derivatives. A model with your own loss is saved without it: it predicts after loading, but cannot be
    fitted again.

    Examples
    --------
    >>> import torch, tierank
    >>> def squares(scores, batch):  # squared distance to the gains
    ...     return torch.zeros(batch.n_queries).index_add(0, batch.query, (scores - batch.gains) ** 2)
    >>> data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
    >>> ranker = TreeRanker(squares, n_trees=5).fit(data)
    >>> ranker.predict(data).shape == (data.n_documents,)
    True
    >>> ranker = TreeRanker("approxndcg", loss_settings={"temperature": 0.5}, n_trees=5).fit(data)
    """

    loss: str | Callable[..., Any] | None = setting(
        None, LOSS, "a function (scores, batch) -> one value per query, or a key of LOSSES", positional=True
    )
    loss_settings: Mapping[str, Any] | None = setting(None, LOSS_SETTINGS, "keyword arguments of the loss")
    gain: Gain = setting("exp2", GAIN, f"{_GAIN_HELP}; batch.gains holds it")

    INSTEAD: ClassVar[dict[str, str]] = {
        "sigmoid": _BY_LOSS,
        "lambdarank_truncation_level": _BY_LOSS,
        "lambdarank_norm": _BY_LOSS,
        "label_gain": "give gain, which takes such a list",
    }
    PRESETS: ClassVar[Presets] = tree_presets(paper={}, authors={})

    def objective(self, settings: Mapping[str, Any]) -> Objective:
        """The loss, differentiated automatically."""
        function, given = as_loss(settings["loss"]), settings["loss_settings"] or {}
        check_reads_gain(function, settings["gain"])
        check_loss_settings(function, given)
        names = ("loss", "gain", "n_jobs", "seed")
        return LossObjective(**{name: settings[name] for name in names}, **given)

    def check_shown(self, train: RankingDataset, settings: Mapping[str, Any]) -> None:
        """A loss takes given propensities, and learns none."""
        super().check_shown(train, settings)
        if train.propensity is not None:
            check_reads_propensity(as_loss(settings["loss"]))
        elif train.position is not None:
            raise ParameterError(
                argument="position",
                expected="`propensity` too, as a loss learns no propensities",
                got="positions alone",
                fix="UMart and LambdaMART learn them",
            )

    def _check_loaded(self, settings: Mapping[str, Any]) -> None:
        if settings["loss"] is not None:  # otherwise it was the user's function, which is not saved
            super()._check_loaded(settings)
