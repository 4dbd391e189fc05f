"""URank, ListNet and the other network rankers, which differ in their loss.

UBoost and UrBoost: a ranker, and networks that are fitted to its residuals, one after the other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from tierank.data.dataset import RankingDataset
from tierank.data.relevance import Gain
from tierank.errors import ParameterError
from tierank.export import Scorer
from tierank.extras import loading
from tierank.losses.custom import (
    as_loss,
    check_loss_settings,
    check_reads_gain,
    check_reads_propensity,
    loss_keywords,
)
from tierank.losses.umart import GAIN
from tierank.rankers.base import BASE, JudgedRanker, Ranker, fitted_copy, with_base
from tierank.rankers.checkpoint import described_settings
from tierank.rankers.model import FitContext, SavedModel, Seen
from tierank.rankers.presets import Presets, network_presets
from tierank.rankers.trees import LOSS, LOSS_SETTINGS, as_mapping
from tierank.settings import (
    Between,
    Checked,
    Choice,
    Integer,
    ListOf,
    Number,
    OneOf,
    Optional,
    as_choice,
    declared,
    setting,
)
from tierank.transforms import EXPECTED, Transform, as_transform, as_transforms, make_transform

if TYPE_CHECKING:
    from tierank.rankers.boosted import BoostedModel
    from tierank.rankers.network_model import NetworkModel
    from tierank.rankers.network_training import Loss


# torch is imported where networks are trained or loaded.


def _network_names() -> list[str]:
    with loading("this ranker"):
        from tierank.networks import NETWORKS

    return [name for name in NETWORKS if name != "tier_rnn"]  # which is a part of UrBoost


def _activations() -> list[str]:
    with loading("this ranker"):
        from tierank.networks import ACTIVATIONS

    return list(ACTIVATIONS)


def _as_network(value: Any) -> Any:
    if isinstance(value, str):
        return as_choice("network", value, _network_names())
    if not isinstance(value, type):
        is_module = callable(value) and hasattr(value, "forward")
        raise ParameterError(
            argument="network",
            expected="a key of NETWORKS, or a class derived from torch.nn.Module",
            got=f"an instance of {type(value).__name__}" if is_module else repr(value),
            fix="pass the class, and its arguments as network_settings" if is_module else None,
        )
    return value


def _as_inputs(value: Any) -> Any:
    """One transform unchanged; several as a tuple."""
    return as_transforms(value) if isinstance(value, (list, tuple)) else as_transform(value)


_ACTIVATION = Choice(_activations)
LAYERS = ListOf(Integer(1), "sizes of layers, such as (100, 50)")
_NETWORK = Checked("a key of NETWORKS, or a class derived from torch.nn.Module", _as_network)
_TRANSFORM = Checked(EXPECTED, _as_inputs)
_NETWORK_SETTINGS = Optional(Checked("a mapping from names to values", partial(as_mapping, "network_settings")))


def window_setting() -> Any:
    """The setting ``window`` of the rankers that follow the uRank loss."""
    return setting(
        None,
        Optional(Integer(1), "all of them"),
        "number of lower-rated documents per window of the likelihood (Eq. 3 of the paper); None is Eq. 1",
    )


@dataclass(kw_only=True, eq=False, repr=False)
class NeuralRanker(JudgedRanker):
    """Base class of the network rankers. A subclass names the loss that they are trained by.

    Queries whose documents all have the same rating have no order to learn, and are left out of training.
    """

    LOSS: ClassVar[Any] = None  # a key of LOSSES, or a function
    PRESETS: ClassVar[Presets] = network_presets()

    network: str | type = setting("mlp", _NETWORK, "a key of NETWORKS, or a class derived from torch.nn.Module")
    network_settings: Mapping[str, Any] | None = setting(
        None, _NETWORK_SETTINGS, "further arguments of the network, such as {'n_blocks': 2} of attention"
    )
    hidden: Sequence[int] = setting(
        (100, 50),
        LAYERS,
        "sizes of the hidden layers",
        search=OneOf(((50,), (100, 50), (200, 100), (100, 100, 50))),
    )
    activation: str = setting(
        "relu", _ACTIVATION, "activation of the hidden layers; the paper has elu, its authors' program relu"
    )
    output_activation: str | None = setting(
        None, Optional(_ACTIVATION), "activation of the score; the paper has one, its authors' program does not"
    )
    dropout: float = setting(
        0.3, Number(0, 0.99), "fraction of hidden values set to 0 in training", search=Between(0.0, 0.5)
    )
    feature_transform: str | Transform | Sequence[str | Transform] = setting(
        ("query_minmax", "query_log1p", "log1p"),
        _TRANSFORM,
        "how features are scaled: a key of TRANSFORMS, a Transform, or several side by side, clipped to -5..5;"
        " query_... transforms need the whole list of a query, in predict too",
        search=OneOf(("query_minmax", "query_log1p", "quantile")),
    )
    encoding: str = setting(
        "piecewise",
        Choice(("none", "piecewise")),
        "further inputs: none, or piecewise, eight numbers per feature, linear between quantiles of its log1p",
    )
    category_encoding: str = setting(
        "embeddings",
        Choice(("embeddings", "indicators")),
        "inputs for a category: embeddings, learned numbers for each level, or indicators, 0 or 1 for each level",
    )
    gain: Gain = setting(
        "exp2",
        GAIN,
        "gain of a rating: exp2 (2^r - 1), linear, a list for 0, 1, 2, ..., a mapping, or a function (not saved)",
    )
    initial_weights: str = setting(
        "uniform",
        Choice(("uniform", "glorot")),
        "initial weights of linear layers: uniform within 1 / sqrt(inputs), biases too, or glorot: uniform within"
        " sqrt(6 / (inputs + outputs)), biases 0 (the authors' program)",
    )
    query_order: str = setting(
        "shuffled",
        Choice(("shuffled", "given")),
        "order of the queries in an epoch: shuffled, or given, as in the data (the authors' program)",
    )
    queries_per_step: int = setting(8, Integer(1), "number of queries per step of Adam", search=OneOf((4, 8, 16, 32)))
    learning_rate: float = setting(1e-3, Number(above=0), "learning rate of Adam", search=Between(1e-4, 1e-2, log=True))
    weight_decay: float = setting(1e-2, Number(0, 1e6), "weight decay of AdamW", search=Between(1e-6, 1e-1, log=True))
    clip_norm: float | None = setting(
        5.0, Optional(Number(above=0), "no clipping"), "maximum norm of a gradient; longer ones are scaled down"
    )
    schedule: str = setting(
        "cosine",
        Choice(("constant", "cosine")),
        "the learning rate: constant, or cosine, which rises for 5% of all steps and falls to 0 by half a cosine",
    )
    max_epochs: int = setting(40, Integer(1), "maximum number of passes over the training queries")
    step_budget: int | None = setting(
        1500,
        Optional(Integer(1), "no budget"),
        "stop at the end of the epoch in which this many steps are reached (never before epoch 8)",
    )
    patience: int = setting(
        40,
        Integer(1),
        "epochs without improvement before stopping; with schedule='cosine' keep it near max_epochs",
    )
    position_tower: str = setting(
        "none",
        Choice(("none", "additive", "multiplicative")),
        "learn one bias per position during training and drop it in predict: additive (f + g), or multiplicative"
        " (ln sigmoid(f) + ln sigmoid(g)); needs position in fit",
    )
    n_seeds: int = setting(
        1,
        Integer(1),
        "number of networks, with seeds seed, seed + 1, ...; the mean of their scores, standardised per query, ranks",
    )
    device: str = setting("cpu", Checked("a torch device", lambda value: value), "torch device")

    @classmethod
    def _unknown_setting(cls, name: str, known: Sequence[str]) -> ParameterError:
        """The error for a setting that is not known: says where settings of networks and losses go."""
        if name == "transform":
            return ParameterError(argument=name, expected="feature_transform, which is the name of this setting")
        for where, owners in _inner_settings(known).items():
            if name in owners:
                return ParameterError(
                    "is not a setting of its own", argument=name, fix=f"give {where}={{'{name}': ...}}"
                )
        return super()._unknown_setting(name, known)

    def capabilities(self) -> frozenset[str]:
        """Networks learn embeddings of levels, and take parts if several processes can fit their transforms."""
        can = {"unjudged", "positions", "start"}
        if self.category_encoding == "embeddings":
            can.add("categories")
        if make_transform(_as_inputs(self.feature_transform)).takes_parts:
            can.add("parts")
        return frozenset(can)

    def fit_model(self, train: RankingDataset, valid: RankingDataset | None, context: FitContext) -> NetworkModel:
        """Train one network for each seed."""
        from tierank.rankers.network_model import NetworkModel, fit_inputs
        from tierank.rankers.network_training import train_networks

        settings = context.settings
        loss, start = self.loss_function(settings), context.start
        if isinstance(start, NetworkModel):
            transform = start.transform
            if transform.needs_queries and start.seen.has_queries != context.seen.has_queries:
                got = f"a model that was fitted with{'' if start.seen.has_queries else 'out'} them"
                this = "these data have" if context.seen.has_queries else "these data have no"
                raise ParameterError(argument="start", expected=f"query ids in both or in neither; {this} ids", got=got)
        else:
            transform = fit_inputs(settings, train, context.team)
        model = NetworkModel(settings, context.seen, transform)
        train_networks(model, loss, (train, valid), context)
        return model

    def check_inputs(
        self, settings: Mapping[str, Any], train: RankingDataset | None = None, start: Ranker | None = None
    ) -> None:
        """Networks take propensities if their loss does, or learn the effect of positions by a tower.

        Training can continue from another network ranker that has the same layers and the same transform.
        """
        super().check_inputs(settings, train, start)
        if start is not None:
            self._check_start(start, settings)
        if train is None:
            return
        tower = settings["position_tower"]
        if tower != "none" and (train.position is None or train.propensity is not None):
            got = "none" if train.position is None else "propensities, which leave it nothing to learn"
            raise ParameterError(argument="position_tower", expected="`position` alone in fit", got=got)
        if train.propensity is not None:
            check_reads_propensity(self.loss_function(settings))
        elif train.position is not None and tower == "none":
            raise ParameterError(
                argument="position",
                expected="`propensity` too, or the setting `position_tower`",
                got="positions alone",
                fix="tierank.clicks.estimate_propensities finds them; UMart and LambdaMART learn them in training",
            )

    def _check_start(self, start: Ranker, settings: Mapping[str, Any]) -> None:
        from tierank.rankers.network_model import OF_WEIGHTS, NetworkModel

        if type(start.model_) is not NetworkModel:
            raise ParameterError(argument="start", expected="a network ranker, such as URank", got=type(start).__name__)
        theirs = start.settings_ | {"n_seeds": len(start.model_.members)}  # fewer if a callback stopped it
        for name in OF_WEIGHTS:
            if described_settings(settings[name]) != described_settings(theirs[name]):
                raise ParameterError(
                    argument="start",
                    expected=f"a model with {name}={settings[name]!r}, as in this ranker",
                    got=f"{name}={theirs[name]!r}",
                )

    def restore_model(self, saved: SavedModel) -> NetworkModel:
        """The networks of a model folder."""
        from tierank.rankers.network_model import NetworkModel

        return NetworkModel.restore(self._plain_settings(), saved)

    def export_skeleton(self, train: RankingDataset, seen: Seen, settings: Mapping[str, Any]) -> Scorer:
        """The networks before training."""
        from tierank.rankers.network_model import NetworkModel, fit_inputs

        return NetworkModel(settings, seen, fit_inputs(settings, train.select([0]))).outline()

    def check_together(self, settings: Mapping[str, Any]) -> None:
        """Check the network and the loss."""
        from tierank.rankers.network_model import check_network

        check_network(settings, {name: one.default for name, one in declared(self).items()})
        self.loss_function(settings)

    def loss_function(self, settings: Mapping[str, Any]) -> Loss:
        """The loss with its settings."""
        without_window = self.LOSS == "windowed_urank" and settings["window"] is None
        function = as_loss("urank" if without_window else self.LOSS)
        check_reads_gain(function, settings["gain"])
        known = loss_keywords(function)
        return partial(function, **{name: value for name, value in settings.items() if name in known})

    @property
    def _networks(self) -> NetworkModel:
        return cast("NetworkModel", self.model_)

    @property
    def n_epochs_(self) -> list[int]:
        """The epoch that was kept, for each network that was trained."""
        return self._networks.n_epochs

    @property
    def members_(self) -> list[dict[str, Any]]:
        """The weights of each network."""
        return self._networks.members

    @property
    def transform_(self) -> Transform:
        """The fitted transform of the features."""
        return self._networks.transform


def _inner_settings(known: Sequence[str]) -> dict[str, set[str]]:
    """The settings of networks and losses that are given in mappings, by the setting that holds the mapping."""
    from tierank.losses import LOSSES
    from tierank.networks import NETWORKS

    of_networks = {name for network in NETWORKS.values() for name in inspect.signature(network).parameters}
    of_losses = {name for loss in LOSSES.values() for name in loss_keywords(loss)}
    inner = {"network_settings": of_networks, "loss_settings": of_losses}
    return {where: names for where, names in inner.items() if where in known}


@dataclass(kw_only=True, eq=False, repr=False)
class URank(NeuralRanker):
    """uRank: a network trained by the uRank loss (Eq. 2 of the paper).

    With c_t the documents of tier t, s~_t those below it, and k(s) the sum of e^f over s:

        L = 1 / (|R| - 1) * sum over t < |R| of sum over d in c_t of G(d) ln(1 + k(s~_t) / e^f(d))

    With a ``window`` of u documents, the likelihood is that of Eq. 3: s~_t, by decreasing score, is cut into windows b
    of u documents, and ln(1 + k(s~_t) / e^f(d)) becomes the sum over b of ln(1 + k(b) / e^f(d)). A query of n documents
    then takes time in proportion to n^2 / u instead of n. ``tierank list settings urank`` lists the settings.

    Examples
    --------
    >>> from tierank import make_ranking
    >>> train, valid, test = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.6, 0.2, 0.2)
    >>> ranker = URank(max_epochs=5, n_jobs=1).fit(train, valid=valid)
    >>> ranker.predict(test).shape == (test.n_documents,)
    True
    """

    window: int | None = window_setting()

    LOSS = "windowed_urank"


@dataclass(kw_only=True, eq=False, repr=False)
class ListNet(NeuralRanker):
    """ListNet (Cao et al. 2007): cross entropy from the softmax of the ratings to that of the scores.

    L = -sum over d of P(d) ln(e^f(d) / sum of e^f),  P(d) = e^r(d) / sum of e^r

    With propensities it is the softmax loss of clicks divided by them: P(d) = r(d) / propensity(d).

    Examples
    --------
    >>> from tierank import make_ranking
    >>> data = make_ranking(20, n_features=5, mean_length=8, max_length=10)
    >>> ListNet(max_epochs=2).fit(data).predict(data).shape == (data.n_documents,)
    True
    """

    LOSS = "listnet"


@dataclass(kw_only=True, eq=False, repr=False)
class ListMLE(NeuralRanker):
    """ListMLE (Xia et al. 2008): likelihood of the rated order d_1, d_2, ..., ties shuffled each step.

    L = -sum over i = 1..n of ln(e^f(d_i) / (e^f(d_i) + ... + e^f(d_n)))

    Examples
    --------
    >>> from tierank import make_ranking
    >>> data = make_ranking(20, n_features=5, mean_length=8, max_length=10)
    >>> ListMLE(max_epochs=2).fit(data).predict(data).shape == (data.n_documents,)
    True
    """

    LOSS = "listmle"


@dataclass(kw_only=True, eq=False, repr=False)
class PListMLE(NeuralRanker):
    """p-ListMLE (Lan et al. 2014): ListMLE that weighs the first positions most.

    L = -sum over i = 1..n of a(i) / a(1) * ln(e^f(d_i) / (e^f(d_i) + ... + e^f(d_n))),  a(i) = 2^(n - i) - 1

    Examples
    --------
    >>> from tierank import make_ranking
    >>> data = make_ranking(20, n_features=5, mean_length=8, max_length=10)
    >>> PListMLE(max_epochs=2).fit(data).predict(data).shape == (data.n_documents,)
    True
    """

    LOSS = "plistmle"


@dataclass(kw_only=True, eq=False, repr=False)
class RankNet(NeuralRanker):
    """RankNet (Burges et al. 2005): logistic loss of the pairs with different ratings.

    L = mean over r(d) > r(d') of ln(1 + e^(-sigma (f(d) - f(d'))))

    Examples
    --------
    >>> from tierank import make_ranking
    >>> data = make_ranking(20, n_features=5, mean_length=8, max_length=10)
    >>> RankNet(sigma=2.0, max_epochs=2).fit(data).predict(data).shape == (data.n_documents,)
    True
    """

    sigma: float = setting(
        1.0, Number(above=0), "steepness of the logistic function", search=Between(0.5, 4.0, log=True)
    )

    LOSS = "ranknet"


@dataclass(kw_only=True, eq=False, repr=False)
class ApproxNDCG(NeuralRanker):
    """ApproxNDCG (Qin et al. 2010): NDCG with smooth ranks.

    L = 1 - 1 / IDCG * sum over d of G(d) / log2(1 + rank(d))
    rank(d) = 1 + sum over d' != d of 1 / (1 + e^((f(d) - f(d')) / temperature))

    Examples
    --------
    >>> from tierank import make_ranking
    >>> data = make_ranking(20, n_features=5, mean_length=8, max_length=10)
    >>> ApproxNDCG(temperature=0.5, max_epochs=2).fit(data).predict(data).shape == (data.n_documents,)
    True
    """

    temperature: float = setting(
        0.1, Number(above=0), "the lower, the closer to true ranks", search=Between(0.05, 2.0, log=True)
    )

    LOSS = "approxndcg"


@dataclass(kw_only=True, eq=False, repr=False)
class LambdaLoss(NeuralRanker):
    """LambdaLoss (Wang et al. 2018), NDCG-Loss2++.

        L = sum over r(d) > r(d') of |G(d) - G(d')| / IDCG * (rho + mu delta) * ln(1 + e^(-sigma (f(d) - f(d'))))
        rho = |D_i - D_j|,  delta = D_|i-j| - D_|i-j|+1,  D_i = 1 / log2(1 + i)

    with i and j the ranks of d and d' by the scores. ``mu=0`` is LambdaRank.

    Examples
    --------
    >>> from tierank import make_ranking
    >>> data = make_ranking(20, n_features=5, mean_length=8, max_length=10)
    >>> LambdaLoss(mu=5.0, max_epochs=2).fit(data).predict(data).shape == (data.n_documents,)
    True
    """

    sigma: float = setting(
        1.0, Number(above=0), "steepness of the logistic function", search=Between(0.5, 4.0, log=True)
    )
    mu: float = setting(10.0, Number(0), "weight of delta; 0 for LambdaRank", search=Between(1.0, 20.0, log=True))

    LOSS = "lambdaloss"
    # The paper's is "the ensemble model that combines NDCG-Loss++ and group-wise functions".
    PRESETS: ClassVar[Presets] = network_presets(network="groupwise")


@dataclass(kw_only=True, eq=False, repr=False)
class MDPRank(NeuralRanker):
    """MDPRank (Wei et al. 2017): a policy that chooses one document after the other, and learns from DCG.

    The policy chooses among the remaining documents by the softmax of their scores. Each step draws rankings from it
    and makes those with a high return more likely. The ``loss`` in ``history_`` is minus the mean return of the
    rankings that were drawn.

    Examples
    --------
    >>> from tierank import make_ranking
    >>> data = make_ranking(20, n_features=5, mean_length=8, max_length=10)
    >>> MDPRank(n_episodes=2, max_epochs=2).fit(data).predict(data).shape == (data.n_documents,)
    True
    """

    gamma: float = setting(1.0, Number(0, 1), "discount of a reward per rank")
    n_episodes: int = setting(1, Integer(1), "rankings drawn per query and step; more of them make steadier steps")
    reward: str = setting(
        "ndcg", Choice(("ndcg", "dcg")), "ndcg, or dcg (Wei et al.), which weighs queries with high ratings more"
    )
    baseline: str = setting(
        "random",
        Choice(("random", "none")),
        "random: compare a return with that of a random order; none (Wei et al.): use it as it is, which is noisier",
    )

    PRESETS: ClassVar[Presets] = network_presets(reward="dcg", baseline="none")

    def loss_function(self, settings: Mapping[str, Any]) -> Loss:
        """Minus the return of rankings drawn from the policy."""
        from tierank.losses.policy import policy_gradient

        names = ("gamma", "n_episodes", "reward", "baseline")
        return partial(policy_gradient, **{name: settings[name] for name in names})


@dataclass(kw_only=True, eq=False, repr=False)
class NetworkRanker(NeuralRanker):
    """A network trained by your own loss: any function from scores and a batch to one value per query.

    A model with your own loss is saved without it: it predicts after loading, but cannot be fitted again.

    Examples
    --------
    >>> import torch, tierank
    >>> def squares(scores, batch):  # squared distance to the gains
    ...     return torch.zeros(batch.n_queries).index_add(0, batch.query, (scores - batch.gains) ** 2)
    >>> data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
    >>> ranker = NetworkRanker(squares, max_epochs=3).fit(data)
    >>> ranker.predict(data).shape == (data.n_documents,)
    True
    """

    loss: str | Callable[..., Any] | None = setting(
        None, LOSS, "a function (scores, batch) -> one value per query, or a key of LOSSES", positional=True
    )
    loss_settings: Mapping[str, Any] | None = setting(None, LOSS_SETTINGS, "keyword arguments of the loss")

    def loss_function(self, settings: Mapping[str, Any]) -> Loss:
        """The loss with its settings."""
        function = as_loss(settings["loss"])
        check_reads_gain(function, settings["gain"])
        given = settings["loss_settings"] or {}
        check_loss_settings(function, given)
        return partial(function, **given)


# torch is imported where networks are trained or loaded.


# Of the later version of the authors' program.
_RESIDUALS = {"residual_hidden": (100, 100)}


@dataclass(kw_only=True, eq=False, repr=False)
class BoostedNetworks(NeuralRanker):
    """Base class of uBoost and urBoost: a first learner, and networks fitted to the residuals."""

    LOSS = "windowed_urank"

    window: int | None = window_setting()
    n_learners: int = setting(5, Integer(1), "maximum number of learners, the first one included")
    residual_hidden: Sequence[int] | None = setting(
        None, Optional(LAYERS, "as hidden"), "sizes of the hidden layers of all learners except the first"
    )
    coefficient: float = setting(
        1.0, Number(above=0), "factor of all learners except the first", search=Between(0.03, 1.0, log=True)
    )
    weight_decay: float = setting(1e-2, Number(0, 1e6), "weight decay of AdamW")

    def model_class(self) -> type[BoostedModel]:
        """The class of the fitted model."""
        from tierank.rankers.boosted import BoostedModel

        return BoostedModel

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

    def capabilities(self) -> frozenset[str]:
        """What networks can do, as far as the base can too; but learners are fitted to residuals on one set of data."""
        return with_base(super().capabilities(), getattr(self, "base", None)) - {"start"}

    def check_inputs(
        self, settings: Mapping[str, Any], train: RankingDataset | None = None, start: Ranker | None = None
    ) -> None:
        """The residuals of the uRank loss take propensities; a base has to take them too."""
        super().check_inputs(settings, train, start)
        base = settings.get("base")
        if base is not None:
            base.check_inputs(base.checked_settings(), train)

    def fit_model(self, train: RankingDataset, valid: RankingDataset | None, context: FitContext) -> BoostedModel:
        """Train learner after learner, while the validation metrics improve."""
        from tierank.rankers.boosted import boost_members
        from tierank.rankers.network_model import fit_inputs
        from tierank.rankers.network_training import train_networks

        settings = context.settings
        base = settings.get("base")
        inner = None if base is None else base.fit_model(train, valid, context.of_base(base))
        transform = fit_inputs(settings, train, context.team)
        model = self.model_class()(settings, context.seen, transform, base=inner)
        if inner is not None:
            context = context.inside("learners")
        train_networks(model, self.loss_function(settings), (train, valid), context, boost_members)
        return model

    def restore_model(self, saved: SavedModel) -> BoostedModel:
        """The networks of a model folder."""
        settings = self._plain_settings()
        base = settings.get("base")
        inner = None if base is None else base.restore_model(saved.inside("base", saved.facts.get("base")))
        model = self.model_class().restore(settings, saved, base=inner)
        model.learners = list(saved.facts.get("learners", ()))
        return model

    def export_skeleton(self, train: RankingDataset, seen: Seen, settings: Mapping[str, Any]) -> Scorer:
        """All learners that there may be, before training."""
        from tierank.rankers.boosted import on_base
        from tierank.rankers.network_model import fit_inputs

        transform = fit_inputs(settings, train.select([0]))
        networks = self.model_class()(settings, seen, transform).outline()
        base = settings.get("base")
        if base is None:
            return networks
        return on_base(base.export_skeleton(train, seen, base.checked_settings()), networks)

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

    PRESETS: ClassVar[Presets] = network_presets(later=_RESIDUALS)

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
        "what scores are computed from: both, the state and the document (the paper), or state (the later version of"
        " its authors' program)",
        search=OneOf(("both", "state")),
    )

    PRESETS: ClassVar[Presets] = network_presets(later=_RESIDUALS | {"score_from": "state"})

    def model_class(self) -> type[BoostedModel]:
        """The class of the fitted model, whose first learner is recurrent."""
        from tierank.rankers.boosted import TierRNNModel

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
