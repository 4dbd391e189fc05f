"""UMart, LambdaMART and TreeRanker: boosted trees that differ in what they optimise; LightGBM's own as fitted rankers.

Their settings are in ``tree_settings``; ``tree_training.train_trees`` grows the trees. LightGBM is imported there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from tierank.data.dataset import RankingDataset
from tierank.data.matching import check_fitted
from tierank.data.relevance import Gain, gain_levels
from tierank.errors import ParameterError
from tierank.export import Scorer, Sum
from tierank.losses.custom import LossObjective, as_loss, check_loss_settings, check_reads_gain, check_reads_propensity
from tierank.losses.objective import Objective
from tierank.losses.umart import (
    GAIN,
    GAIN_HELP,
    LambdaRankObjective,
    LambdaRankSettings,
    NoiseSettings,
    OrderSettings,
    PairSettings,
    StochasticUMartObjective,
    UMartObjective,
)
from tierank.rankers.base import Ranker, fitted_copy, with_base
from tierank.rankers.checkpoint import described_settings
from tierank.rankers.linear import LinearModel
from tierank.rankers.model import FitContext, FittedModel, SavedModel, Seen
from tierank.rankers.presets import Presets, tree_presets, why_no_setting
from tierank.rankers.tree_settings import TreeSettings, check_parameters
from tierank.settings import Between, Checked, Choice, Number, Optional, declared, setting

if TYPE_CHECKING:
    import lightgbm

    from tierank.rankers.tree_model import TreeModel

import os

from tierank.data.checks import as_names
from tierank.errors import DataError, NotFittedError
from tierank.files import as_path
from tierank.settings import Integer

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
        check_fitted(self)
        return self._trees.importance(Choice(("gain", "split")).check("importance", kind))

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """The share of each feature in the total gain of all splits."""
        gains = self.importance("gain")
        return gains / max(float(gains.sum()), np.finfo(np.float64).tiny)

    @property
    def booster_(self) -> lightgbm.Booster:
        """A copy of the trees as a LightGBM booster, for its plots, SHAP, converters and other tools; without ``base``.

        Its objective is called lambdarank, as converters want one that they know; scores do not depend on it. Its
        features have the names of the training data, with underscores in place of blanks, if LightGBM takes them.
        """
        import lightgbm

        from tierank.rankers.lightgbm import with_objective

        check_fitted(self)
        return lightgbm.Booster(model_str=with_objective(self._trees.text))

    @property
    def n_rounds_(self) -> int:
        """The number of trees in the model, including those that training continued from."""
        return self._trees.n_before + self._trees.n_rounds


@dataclass(kw_only=True, eq=False, repr=False)
class BoostedTrees(FittedTrees, TreeSettings):
    """Base class of the tree rankers. A subclass says what they optimise."""

    def capabilities(self) -> frozenset[str]:
        """Trees can do all of it, as far as their base can too."""
        return with_base(frozenset(("categories", "unjudged", "parts", "positions", "start")), self.base)

    @abstractmethod
    def objective(self, settings: Mapping[str, Any]) -> Objective:
        """What the trees optimise."""

    @classmethod
    def _unknown_setting(cls, name: str, known: Sequence[str]) -> ParameterError:
        """The error for a setting that is not known: trees know the names of LightGBM's parameters."""
        from tierank.rankers.lightgbm import parameter_names

        main = parameter_names().get(name)
        hint = None if main is None else why_no_setting(cls.__name__, name, known, main)
        return hint or super()._unknown_setting(name, known)

    def check_together(self, settings: Mapping[str, Any]) -> None:
        """Check settings that depend on each other."""
        check_parameters(settings)
        if settings["keep"] == "all":
            self._refuse_idle(
                settings, ("patience", "select_over", "select_with"), "`keep`='all', which grows all trees"
            )

    def _refuse_idle(self, settings: Mapping[str, Any], names: Sequence[str], when: str) -> None:
        """Raise ``ParameterError`` if one of these settings, which then have no effect, is not its default."""
        for name in names:
            if settings[name] not in (self.__dataclass_fields__[name].default, None):
                raise ParameterError(f"has no effect with {when}", argument=name, fix=f"leave out `{name}`")

    def check_inputs(
        self, settings: Mapping[str, Any], train: RankingDataset | None = None, start: Ranker | None = None
    ) -> None:
        """Trees can be added to those of any tree ranker that sees the same features and has the same base."""
        base = settings["base"]
        if base is not None:
            base.check_inputs(base.checked_settings(), train)
        super().check_inputs(settings, train, start)
        if start is None:
            return
        from tierank.rankers.lightgbm import has_linear_leaves, head_fields
        from tierank.rankers.tree_model import TreeModel

        model = start.model_
        if not isinstance(model, TreeModel):
            raise ParameterError(
                argument="start",
                expected="a tree ranker",
                got=type(start).__name__,
                fix=f"{type(self).__name__}(base={type(start).__name__}()) grows trees on the scores of a ranker",
            )
        before = [int(sign) for sign in head_fields(model.text).get("monotone_constraints", "").split()]
        now = [*(settings["monotone_constraints"] or ())] * (3 if model.query_features else 1)
        for same, is_so in (
            ("`query_features`", model.query_features == settings["query_features"]),
            (
                "`base`, which is not trained again",
                described_settings(base) == described_settings(start.settings_.get("base")),
            ),
            ("`linear_tree`", has_linear_leaves(model.text) == settings["linear_tree"]),
            (
                "`monotone_constraints`, as otherwise the sum would not be monotone",
                (before if any(before) else []) == (now if any(now) else []),
            ),
        ):
            if not is_so:
                raise ParameterError(argument="start", expected=f"a model with the same {same}", got="another one")

    def fit_model(self, train: RankingDataset, valid: RankingDataset | None, context: FitContext) -> TreeModel:
        """Grow trees, on the residuals of ``base`` if there is one."""
        from tierank.rankers.tree_training import train_trees

        settings = context.settings
        if not isinstance(settings["gain"], str):
            # Of all data, so that all processes of a team agree.
            gain_levels(train.ratings[train.is_judged], settings["gain"])
        parts = context.team.part(train), None if valid is None else context.team.part(valid)
        base, start = settings["base"], context.start
        base_model: FittedModel | None
        if start is not None:  # its base is not trained again: its trees correct that one
            base_model = cast("TreeModel", start).base
        elif base is not None:
            base_model = base.fit_model(train, valid, context.of_base(base))
        else:
            base_model = LinearModel.of_texts(context.seen) if settings["for_target"] is None else None
        if base is not None:
            context = replace(context.inside("trees"), start=start)
        return train_trees(self.objective(settings), *parts, context, base_model)

    def restore_model(self, saved: SavedModel) -> TreeModel:
        """The trees of a model folder."""
        from tierank.rankers.tree_model import TreeModel

        settings = self.get_params(deep=False)
        if settings.get("loss", "") is not None:  # a loss of the user's own is not saved
            self.checked_settings()
        base, of_base = settings["base"], saved.facts.get("base")
        inner: FittedModel | None = None
        if base is not None:
            inner = base.restore_model(saved.inside("base", of_base))
        elif of_base is not None:
            inner = LinearModel.restore(saved.inside("base", of_base), ["query_minmax"])
        return TreeModel.restore(saved, settings["query_features"], inner)

    def export_skeleton(self, train: RankingDataset, seen: Seen, settings: Mapping[str, Any]) -> Scorer:
        """One split, and what the base will be."""
        from tierank.rankers.tree_model import outline_trees

        trees, base = outline_trees(settings, seen), settings["base"]
        if base is None:
            return trees
        return Sum(((1.0, base.export_skeleton(train, seen, base.checked_settings())), (1.0, trees)))

    @property
    def base_(self) -> Ranker | None:
        """The fitted base ranker, if there is one."""
        base = self._trees.base
        own = self.settings_["base"]
        return None if base is None or own is None else fitted_copy(own, base, self.seen_)

    @property
    def propensities_(self) -> dict[str, NDArray[np.float64]]:
        """The learned propensities ``clicked`` and ``unclicked`` of each position; empty if none were learned."""
        return {name: np.array(values) for name, values in self._trees.propensities.items()}

    @property
    def team_(self) -> list[dict[str, Any]]:
        """The processes that took part in training, with the size of their data."""
        return self._trees.processes


@dataclass(kw_only=True, eq=False, repr=False)
class UMart(PairSettings, OrderSettings, NoiseSettings, BoostedTrees):
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
    PRESETS: ClassVar[Presets] = {
        **tree_presets(paper={}, authors={"idcg_at": 20, "ties": "rows"}, is_windowed=True),
        "stochastic": _STOCHASTIC,
    }

    def check_together(self, settings: Mapping[str, Any]) -> None:
        """Refuse settings that have no effect with noise, or without, and with other weights of pairs."""
        super().check_together(settings)
        has_noise, weights = settings["noise"] > 0, settings["weights"]
        if has_noise:
            self._refuse_idle(settings, ("truncation", "ties"), "`noise` above 0")
            if weights == "none":
                raise ParameterError(argument="weights", expected="'gain' or 'ndcg' with `noise` above 0", got="'none'")
        else:
            self._refuse_idle(settings, ("n_draws", "decay"), "`noise`=0, which draws no orders")
        if weights != "ndcg":
            self._refuse_idle(settings, ["idcg_at"], f"`weights`={weights!r}, which has no ideal DCG")
        if weights == "none":
            self._refuse_idle(settings, ["gain"], "`weights`='none', where all pairs weigh 1")

    def objective(self, settings: Mapping[str, Any]) -> Objective:
        """The windowed likelihood, by the order of the scores or by random orders around it."""
        kind = StochasticUMartObjective if settings["noise"] > 0 else UMartObjective
        return kind(n_jobs=settings["n_jobs"], **{name: settings[name] for name in declared(kind)})

    def check_inputs(
        self, settings: Mapping[str, Any], train: RankingDataset | None = None, start: Ranker | None = None
    ) -> None:
        """Propensities are learned by the order of the scores; with noise they have to be given."""
        super().check_inputs(settings, train, start)
        has_positions_alone = train is not None and train.position is not None and train.propensity is None
        if settings["noise"] > 0 and has_positions_alone:
            raise ParameterError(
                argument="position",
                expected="`propensity` too with `noise` above 0, which learns no propensities",
                got="positions alone",
                fix="`noise`=0 learns them",
            )


@dataclass(kw_only=True, eq=False, repr=False)
class LambdaMART(LambdaRankSettings, BoostedTrees):
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

    PRESETS: ClassVar[Presets] = tree_presets(paper={"version": "lightgbm-2"}, authors={"ties": "rows"})

    def check_together(self, settings: Mapping[str, Any]) -> None:
        """Refuse settings that the old version does not read."""
        super().check_together(settings)
        if settings["version"] == "lightgbm-2":
            self._refuse_idle(settings, ("truncation", "norm"), "`version`='lightgbm-2', which does not read it")

    def objective(self, settings: Mapping[str, Any]) -> Objective:
        """The gradients of lambdarank."""
        own = {name: settings[name] for name in declared(LambdaRankObjective)}
        return LambdaRankObjective(n_jobs=settings["n_jobs"], **own)


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
    gain: Gain = setting("exp2", GAIN, f"{GAIN_HELP}; batch.gains holds it")

    PRESETS: ClassVar[Presets] = tree_presets(paper={}, authors={})

    def check_together(self, settings: Mapping[str, Any]) -> None:
        """Check that the loss takes its settings, and reads the gain."""
        super().check_together(settings)
        function = as_loss(settings["loss"])
        check_reads_gain(function, settings["gain"])
        check_loss_settings(function, settings["loss_settings"] or {})

    def objective(self, settings: Mapping[str, Any]) -> Objective:
        """The loss, differentiated automatically."""
        names = ("loss", "gain", "n_jobs", "seed")
        return LossObjective(**{name: settings[name] for name in names}, **settings["loss_settings"] or {})

    def check_inputs(
        self, settings: Mapping[str, Any], train: RankingDataset | None = None, start: Ranker | None = None
    ) -> None:
        """A loss takes given propensities, and learns none."""
        super().check_inputs(settings, train, start)
        if train is None:
            return
        if train.propensity is not None:
            check_reads_propensity(as_loss(settings["loss"]))
        elif train.position is not None:
            raise ParameterError(
                argument="position",
                expected="`propensity` too, as a loss learns no propensities",
                got="positions alone",
                fix="UMart and LambdaMART learn them",
            )


# Models that LightGBM trained


@dataclass(kw_only=True, eq=False, repr=False)
class LightGBMRanker(FittedTrees):
    """A model that another library trained, as a fitted ranker: what ``tierank.from_lightgbm`` and its like return.

    It predicts, ranks, explains, exports, saves and serves like any ranker. It cannot be fitted, but training can
    continue from it: ``UMart().fit(data, start=ranker)`` keeps its trees and adds new ones.

    Examples
    --------
    >>> import lightgbm, tierank
    >>> data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
    >>> model = lightgbm.LGBMRanker(n_estimators=5, verbosity=-1).fit(data.features, data.ratings, group=data.lengths)
    >>> more = tierank.LambdaMART(n_trees=3).fit(data, start=tierank.from_lightgbm(model))
    >>> more.booster_.num_trees()
    8
    """

    n_jobs: int | None = setting(None, Optional(Integer(-1), "one per core, fewer for small data"), "number of threads")

    def fit_model(self, train: RankingDataset, valid: RankingDataset | None, context: FitContext) -> FittedModel:
        """Refuse: LightGBM trained the model."""
        raise ParameterError(
            "LightGBMRanker holds a trained model and cannot be fitted",
            fix="LambdaMART().fit(data) trains a new one, LambdaMART().fit(data, start=ranker) continues from this one",
        )

    def restore_model(self, saved: SavedModel) -> FittedModel:
        """The trees of a model folder."""
        from tierank.rankers.tree_model import TreeModel

        return TreeModel.restore(saved, query_features=False, base=None)


def from_lightgbm(model: Any, *, feature_names: Sequence[str] | None = None) -> LightGBMRanker:
    """A trained LightGBM model as a fitted ranker.

    Parameters
    ----------
    model : lightgbm.Booster, lightgbm.LGBMRanker or path
        The model, or the text file that ``Booster.save_model`` wrote. It has to give one score per row. If training
        stopped early, the best round is used, as in LightGBM's ``predict``.
    feature_names : sequence of str, optional
        One name per feature, in place of the names in the model: LightGBM replaces blanks by underscores.

    Returns
    -------
    LightGBMRanker
        A ranker whose scores are those of ``booster.predict(X, raw_score=True)``, to the bit, for single-precision
        features; tierank rounds all features to single precision.

    Raises
    ------
    DataError
        If the file cannot be read, or the model is multiclass, a random forest, or was trained on pandas categories.

    Examples
    --------
    >>> import lightgbm, tierank
    >>> data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
    >>> own = lightgbm.LGBMRanker(n_estimators=5, verbosity=-1).fit(data.features, data.ratings, group=data.lengths)
    >>> ranker = tierank.from_lightgbm(own)
    >>> bool((ranker.predict(data) == own.predict(data.features)).all())
    True
    """
    where, text = _text_of(model)
    return ranker_of_text(text, where, feature_names=feature_names)


def ranker_of_text(text: str, where: str, *, feature_names: Sequence[str] | None = None) -> LightGBMRanker:
    """The ranker of a model in LightGBM's text form; ``where`` is what messages call it."""
    from tierank.rankers.lightgbm import adopt_text, count_trees, has_missing, head_fields, with_names
    from tierank.rankers.tree_model import TreeModel

    try:
        text = adopt_text(text)
    except DataError as error:
        message = str(error).removeprefix("trees.txt: ").replace("; save the model again", "")
        raise DataError(message, where=where) from None
    names: Sequence[str] = head_fields(text)["feature_names"].split()
    if list(names) == [f"Column_{number}" for number in range(len(names))]:
        given_names = None
    else:
        given_names = as_names(names, len(names))
    if feature_names is not None:
        given_names = as_names(feature_names, len(names))
        text = with_names(text, given_names)
    seen = Seen(len(names), given_names, has_queries=True, has_missing=has_missing(text))
    trees = TreeModel(text, [], 0, seen, query_features=False, n_before=count_trees(text))
    return cast("LightGBMRanker", fitted_copy(LightGBMRanker(), trees, seen))


def _text_of(model: Any) -> tuple[str, str]:
    """What the model is called in messages, and its text."""
    import lightgbm

    if isinstance(model, lightgbm.LGBMModel):
        if not model.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(model).__name__} is not fitted", fix="call fit first")
        model = model.booster_
    if isinstance(model, lightgbm.Booster):
        return "model", model.model_to_string()
    is_text = isinstance(model, str) and "\n" in model
    if is_text or not isinstance(model, (str, os.PathLike)):
        raise ParameterError(
            argument="model",
            expected="a lightgbm.Booster, a lightgbm.LGBMRanker or the path of a model file",
            got="the text of a model" if is_text else type(model).__name__,
            fix="lightgbm.Booster(model_str=text) makes a booster of it" if is_text else None,
        )
    path = as_path(model, "model")
    try:
        return str(path), path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(
            where=model,
            expected="a model of LightGBM in text form",
            got="a binary file",
            fix="save_model of a Booster writes one",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        got = f": {getattr(error, 'strerror', None) or error}"
        raise DataError(where=model, expected="a file that can be read", got=got) from None
