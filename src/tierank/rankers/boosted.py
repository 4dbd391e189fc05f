"""UBoost and UrBoost: a ranker, and networks that are fitted to its residuals, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from tierank.dataset import RankingDataset
from tierank.errors import ParameterError
from tierank.export import Scorer
from tierank.rankers.base import Ranker, fitted_copy
from tierank.rankers.judged import BASE
from tierank.rankers.networks import NeuralRanker, window_setting
from tierank.rankers.presets import Presets, network_presets
from tierank.settings import Between, Choice, Integer, Number, OneOf, setting
from tierank.training.model import FitContext, SavedModel, Seen

# torch is imported where networks are trained or loaded.
if TYPE_CHECKING:
    from tierank.training.boosted import BoostedModel


@dataclass(kw_only=True, eq=False, repr=False)
class BoostedNetworks(NeuralRanker):
    """Base class of uBoost and urBoost: a first learner, and networks fitted to the residuals."""

    LOSS = "windowed_urank"

    window: int | None = window_setting()
    n_learners: int = setting(5, Integer(1), "maximum number of learners, the first one included")
    coefficient: float = setting(
        1.0, Number(above=0), "factor of all learners except the first", search=Between(0.03, 1.0, log=True)
    )
    weight_decay: float = setting(1e-2, Number(0, 1e6), "weight decay of AdamW")

    def model_class(self) -> type[BoostedModel]:
        """The class of the fitted model."""
        from tierank.training.boosted import BoostedModel

        return BoostedModel

    def check_start(self, start: Ranker, settings: Mapping[str, Any]) -> None:
        """Boosting cannot continue from a model: learners are fitted to residuals of one set of data."""
        raise ParameterError(
            argument="start",
            expected=f"None, as the learners of {type(self).__name__} are fitted to residuals on one set of data",
            got="a ranker",
        )

    def check_together(self, settings: Mapping[str, Any]) -> None:
        """Refuse a position tower: learners that are fitted to residuals have none."""
        super().check_together(settings)
        if settings["position_tower"] != "none":
            raise ParameterError(
                argument="position_tower",
                expected="'none', as learners are fitted to residuals, which do not depend on positions",
                got=repr(settings["position_tower"]),
                fix="URank has it; or give propensity to fit",
            )

    def check_shown(self, train: RankingDataset, settings: Mapping[str, Any]) -> None:
        """The residuals of the uRank loss take propensities; a base has to take them too."""
        super().check_shown(train, settings)
        base = settings.get("base")
        if base is not None:
            base.check_shown(train, base.plain_settings())

    def takes_categories(self) -> bool:
        """Networks do; a base has to do so too."""
        base = getattr(self, "base", None)
        return super().takes_categories() and (not isinstance(base, Ranker) or base.takes_categories())

    def takes_unjudged(self) -> bool:
        """Networks do; a base has to do so too."""
        base = getattr(self, "base", None)
        return not isinstance(base, Ranker) or base.takes_unjudged()

    def takes_parts(self) -> bool:
        """Networks do; a base has to do so too."""
        base = getattr(self, "base", None)
        return super().takes_parts() and (not isinstance(base, Ranker) or base.takes_parts())

    def fit_model(self, train: RankingDataset, valid: RankingDataset | None, context: FitContext) -> BoostedModel:
        """Train learner after learner, while the validation metrics improve."""
        from tierank.training.networks import fit_inputs, train_networks

        settings = self.checked_settings()
        base = settings.get("base")
        inner = None if base is None else base.fit_model(train, valid, context.of_base(type(base)))
        transform = fit_inputs(settings, train, context.team)
        model = self.model_class()(settings, context.seen, transform, base=inner)
        train_networks(model, self.loss_function(settings), (train, valid), context, model.train_members)
        return model

    def restore_model(self, saved: SavedModel) -> BoostedModel:
        """The networks of a model folder."""
        settings = self.plain_settings()
        base = settings.get("base")
        inner = None if base is None else base.restore_model(saved.inside("base", saved.facts.get("base")))
        model = self.model_class().restore(settings, saved, base=inner)
        model.learners = list(saved.facts.get("learners", ()))
        return model

    def outline(self, train: RankingDataset, seen: Seen) -> Scorer:
        """All learners that there may be, before training."""
        from tierank.training.boosted import on_base
        from tierank.training.networks import fit_inputs

        settings = self.checked_settings()
        transform = fit_inputs(settings, train.select([0]))
        networks = self.model_class()(settings, seen, transform).outline()
        base = settings.get("base")
        return networks if base is None else on_base(base.outline(train, seen), networks)

    @property
    def learners_(self) -> list[dict[str, Any]]:
        """The learners with their metrics, including those that were left out."""
        return cast("BoostedModel", self.model_).learners


@dataclass(kw_only=True, eq=False, repr=False)
class UBoost(BoostedNetworks):
    """uBoost: uRank, and networks fitted to the residuals of the learners before them.

    With F_1 the scores of the first learner and L the uRank loss:

        y_m(d) = -dL / dF_{m-1}(d)                         the residuals, computed once for each learner; with a
                                                           ``window``, those of the windowed loss
        g_m    = network with the least mean squared error  (g_m(d) - y_m(d))^2
        F_m    = F_{m-1} + coefficient g_m

    The epoch of each learner is the one with which F_m is best on the validation data. A learner that does not improve
    on F_{m-1} is left out, and ends training. Without validation data all learners are trained to the last epoch.
    With ``n_seeds`` all of this is done once per seed, except ``base``, which is fitted once.

    Examples
    --------
    >>> from tierank import make_ranking
    >>> train, valid = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.7, 0.3)
    >>> ranker = UBoost(max_epochs=5, n_learners=2).fit(train)
    >>> [row["learner"] for row in ranker.learners_]
    [1, 2]
    """

    base: Ranker | None = setting(
        None,
        BASE,
        "the first learner, any ranker with its own settings: UBoost(base=UMart()) fits networks to the residuals of"
        " trees; None for URank with the settings of this ranker",
    )

    @property
    def base_(self) -> Ranker | None:
        """The fitted base ranker, if there is one."""
        base = cast("BoostedModel", self.model_).base
        return None if base is None else fitted_copy(self.settings_["base"], base, self.seen_)


@dataclass(kw_only=True, eq=False, repr=False)
class UrBoost(BoostedNetworks):
    """urBoost: a recurrent network that selects one tier after another, and networks fitted to its residuals.

    The first learner is ``TierRNN``: it is trained with the scores that documents have at the step of each tier, and
    ranks by those of the first step, which need no ratings. The other learners are as in ``UBoost``, with the network
    of the setting ``network``. ``n_learners=1`` is urRank, the recurrent network alone. With a ``window``, the loss of
    each step and the residuals are those of Eq. 3.

    ``inference="documents"`` ranks as the paper tried and found worse: the best document by the scores of this step is
    chosen, the state continues from it, and the others are scored again, until none is left. The score of a
    document is then how many are chosen after it. A query of n documents takes n steps over all that are left. There is
    nothing to add residuals to, so it needs ``n_learners=1``.

    Examples
    --------
    >>> from tierank import make_ranking
    >>> train, valid = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.7, 0.3)
    >>> ranker = UrBoost(max_epochs=5, n_learners=1).fit(train)
    >>> ranker.predict(valid).shape == (valid.n_documents,)
    True
    """

    pooling: str = setting(
        "max", Choice(("max", "mean")), "pooling of the documents of a tier", search=OneOf(("max", "mean"))
    )
    cell: str = setting(
        "rnn",
        Choice(("rnn", "gru", "lstm")),
        "the recurrent cell; gru and lstm have no export",
    )
    inference: str = setting(
        "first",
        Choice(("first", "documents")),
        "what ranks: the scores of the first step, or documents, chosen one by one",
    )
    score_from: str = setting(
        "both",
        Choice(("both", "state")),
        "what scores are computed from: both, the state and the document (the paper), or state (its authors' program)",
        search=OneOf(("both", "state")),
    )

    PRESETS: ClassVar[Presets] = network_presets(authors={"score_from": "state"})

    def model_class(self) -> type[BoostedModel]:
        """The class of the fitted model, whose first learner is recurrent."""
        from tierank.training.boosted import TierRNNModel

        return TierRNNModel

    def check_together(self, settings: Mapping[str, Any]) -> None:
        """Refuse an output activation: the recurrent network has a linear output."""
        super().check_together(settings)
        if settings["output_activation"] is not None:
            raise ParameterError(
                argument="output_activation",
                expected="None: the recurrent network has a linear output",
                got=repr(settings["output_activation"]),
            )
        if settings["inference"] == "documents" and settings["n_learners"] > 1:
            raise ParameterError(
                argument="inference",
                expected="'first' with several learners: documents that are chosen one by one have no score to add to",
                got="'documents'",
                fix="give n_learners=1",
            )
