"""Networks: URank, ListNet and the others differ in their loss; ``training`` is the one loop of all."""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.export import Layer, Network, Scorer, StandardisedMean
from tierank.kernels import n_threads
from tierank.metrics import Gain, Rule, as_gain
from tierank.networks import MLP, NETWORKS, Layers, TierRNN
from tierank.objectives import as_loss, check_reads_gain
from tierank.rankers.attribution import integrate_gradients
from tierank.rankers.base import Job, Ranker, make_judge, mean_of_standardised, means_of
from tierank.rankers.training import Floats, Lists, Loss, Task, Training, Weights, as_device, inside
from tierank.settings import as_choice, as_limit, as_number, as_positive, as_whole
from tierank.transforms import TRANSFORMS, Transform

_PAPER = {
    "activation": "elu",
    "queries_per_step": 1,
    "clip_norm": 5.0,
    "patience": 200,
    "max_epochs": 10_000,
    "select_by": ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10"),
    "transform": "query_minmax",
}


class _Built(NamedTuple):
    """The networks of a ranker, and the very objects that they were built from."""

    origin: list[Any]
    networks: list[nn.Module]


# Apart from the rankers: predicting leaves them as they were, and copies of them hold no networks.
_BUILT: WeakKeyDictionary[NeuralRanker, _Built] = WeakKeyDictionary()


class _Unseen:
    """A setting that is kept and listed, but is no attribute.

    scikit-learn takes whatever has an attribute ``transform`` for a transformer.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(f"{self.name} is a setting: get_params()[{self.name!r}]")

    def __set__(self, instance: object, value: Any) -> None:
        vars(instance)[self.name] = value


class NeuralRanker(Ranker):
    """A network that is trained by a loss; a subclass says by which."""

    LOSS: ClassVar[Any] = None  # a name of LOSSES, or a function

    transform = _Unseen()

    members_: list[Weights]
    history_: list[dict[str, Any]]
    n_epochs_: list[int]

    def __init__(
        self,
        *,
        network: str = "mlp",
        hidden: Sequence[int] = (100, 50),
        activation: str = "relu",
        output_activation: str | None = None,
        dropout: float = 0.0,
        transform: str = "query_minmax",
        gain: Gain = "exp2",
        queries_per_step: int = 8,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        clip_norm: float | None = 5.0,
        max_epochs: int = 200,
        select_by: str | Sequence[str] = ("ndcg@10",),
        patience: int = 20,
        rule: str | Rule = "tierank",
        n_seeds: int = 1,
        for_target: str | None = None,
        preset: str | None = None,
        device: str = "cpu",
        n_jobs: int | None = None,
        seed: int = 0,
        **of_the_loss: Any,
    ) -> None:
        self.network, self.hidden, self.activation = network, hidden, activation
        self.output_activation, self.dropout, self.transform, self.gain = output_activation, dropout, transform, gain
        self.queries_per_step, self.learning_rate, self.weight_decay = queries_per_step, learning_rate, weight_decay
        self.clip_norm, self.max_epochs, self.select_by, self.patience = clip_norm, max_epochs, select_by, patience
        self.rule, self.n_seeds, self.preset, self.device = rule, n_seeds, preset, device
        self.for_target, self.n_jobs, self.seed = for_target, n_jobs, seed
        self.set_params(**of_the_loss)

    # The contract

    def _fit(self, train: RankingDataset, valid: RankingDataset | None, job: Job) -> None:
        if train.row_weight is not None:
            raise ParameterError("row_weight: networks learn from whole queries: expected query_weight instead")
        if job.team.holds_parts:
            raise ParameterError("team: networks draw queries from all data: expected all of it in each process")
        settings = self._settled()
        self._check_settings(settings)
        loss = self._loss(settings)
        judge = None if valid is None else make_judge(valid, settings["select_by"], settings["rule"], 1)
        with _threads(settings["n_jobs"]):
            self.transform_ = TRANSFORMS[settings["transform"]]().fit(train)
            of_model = self.transform_, self.has_queries_, settings
            lists = Lists(train, *of_model, job.team)
            held_out = None if valid is None else Lists(valid, *of_model, job.team)
            self.members_, self.history_, self.n_epochs_, self.best_ = [], [], [], {}
            self._train(Task(settings, loss, lists, held_out, judge, job))
        if judge is not None and valid is not None:
            self.best_ = means_of(judge(self._predict(valid)))

    def _check_before_work(self, settings: dict[str, Any]) -> None:
        self._check_settings(settings)
        self._loss(settings)

    def _check_settings(self, settings: dict[str, Any]) -> None:
        _check(settings)

    def _train(self, task: Task) -> None:
        """Train the members, one for each seed."""
        kept = task.open_checkpoint()
        n_seeds, data = task.settings["n_seeds"], task.lists.data
        for member in range(n_seeds):
            seed = task.settings["seed"] + member
            label = "training" if n_seeds == 1 else f"network {member + 1} of {n_seeds}"
            build = partial(build_network, task.settings, data.n_features, seed)
            training = Training(build, task, {"member": member}, seed, kept)
            try:
                training.run(label)
            finally:  # also where the loss was not finite: the best weights so far are kept
                self.members_.append(training.state.kept)
                self.history_ += training.state.history
                self.n_epochs_.append(training.state.best_epoch)
                self._set_features(data.n_features, data.feature_names)

    def _loss(self, settings: dict[str, Any]) -> Loss:
        function = as_loss(self.LOSS or settings.get("loss"))
        check_reads_gain(function, settings["gain"])
        own = set(type(self)().get_params()) | {"preset"}
        known = {name for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}
        of_network = set(inspect.signature(NETWORKS[settings["network"]]).parameters) - {"n_features", "seed"}
        for name in settings:
            if name not in own | known | of_network:
                raise ParameterError.unknown(f"setting of {type(self).__name__}", name, own | known | of_network)
        return partial(function, **{name: value for name, value in settings.items() if name in known})

    def _predict(self, data: RankingDataset) -> Floats:
        scores = self._member_scores(data)
        return scores[0] if len(scores) == 1 else mean_of_standardised(scores, data)

    def _member_scores(self, data: RankingDataset) -> list[Floats]:
        """The scores of each member, in the order of the data set."""
        settings = self._settled()
        with _threads(settings["n_jobs"]):
            lists = Lists(data, self.transform_, self.has_queries_, settings)
            return [lists.scores(member) for member in self._networks(settings)]

    def _networks(self, settings: dict[str, Any]) -> list[nn.Module]:
        """The members, built once: to build one takes longer than to score a list with it."""
        origin = _origin(self.members_, settings)
        kept = _BUILT.get(self)
        if kept is None or len(kept.origin) != len(origin) or not all(map(operator.is_, kept.origin, origin)):
            kept = _BUILT[self] = _Built(origin, [self._member(weights, settings) for weights in self.members_])
        return kept.networks

    def _looks_around(self) -> bool:
        scales_by_list = self.has_queries_ and self.transform_.needs_queries
        looks_around = getattr(NETWORKS[self.settings_["network"]], "needs_list", False)
        return scales_by_list or looks_around or len(self.members_) > 1

    def _contributions(self, data: RankingDataset, above: NDArray[np.int64], below: NDArray[np.int64]) -> Floats:
        """Integrated gradients; those of several members count by the spread of their scores, as the scores do."""
        found = self._member_contributions(data, above, below)
        if len(found) == 1:
            return found[0]
        spreads = [float(scores.std()) or 1.0 for scores in self._member_scores(data)]
        scaled = [one / spread for one, spread in zip(found, spreads, strict=True)]
        return np.asarray(np.mean(scaled, axis=0), np.float64)

    def _member_contributions(
        self, data: RankingDataset, above: NDArray[np.int64], below: NDArray[np.int64]
    ) -> list[Floats]:
        settings = self._settled()
        with _threads(settings["n_jobs"]):
            lists = Lists(data, self.transform_, self.has_queries_, settings)
            features, _ = lists.batch(torch.tensor([0]))
            place = np.argsort(lists.order)
            members = (self._member(weights, settings) for weights in self.members_)
            return [integrate_gradients(member, features, place[above], place[below]) for member in members]

    def _portable(self) -> Scorer:
        settings = self._settled()
        members = (self._member(weights, settings) for weights in self.members_)
        return _mean([self._portable_member(member, self.transform_) for member in members])

    def _portable_member(self, member: nn.Module, transform: Transform) -> Scorer:
        per_query = self.has_queries_ and transform.needs_queries
        return Network(transform, per_query, _layers(member))

    def _outline(self, train: RankingDataset) -> Scorer:
        settings = self._settled()
        self._check_settings(settings)
        transform = TRANSFORMS[settings["transform"]]().fit(train.select([0]))
        member = self._untrained(settings, train.n_features)
        return _mean([self._portable_member(member, transform)] * settings["n_seeds"])

    def _untrained(self, settings: dict[str, Any], n_features: int) -> nn.Module:
        """A member as it is before training."""
        return build_network(settings, n_features, settings["seed"])

    def _member(self, weights: Weights, settings: dict[str, Any]) -> nn.Module:
        network = build_network(settings, self.n_features_in_, settings["seed"])
        network.load_state_dict(weights)
        return network

    def _check_sizes(self, weights: Weights, settings: dict[str, Any]) -> None:
        """An error where the settings speak of other weights than these: before memory is asked for to hold them."""
        n_layers = max(len(settings["hidden"]), as_whole("n_blocks", settings.get("n_blocks", 1)))
        if weights and n_layers > len(weights):  # there are none where a base ranker is all there is
            raise DataError(f"{len(weights)} tensors for {n_layers} layers")
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing is copied
            self._member(weights, settings | {"device": "meta"})

    def _files(self) -> dict[str, bytes]:
        tensors = {f"member{k}.{name}": t for k, weights in enumerate(self.members_) for name, t in weights.items()}
        tensors |= {f"transform.{name}": torch.from_numpy(array) for name, array in self.transform_.state().items()}
        return {"weights.safetensors": safetensors.torch.save({n: t.contiguous() for n, t in tensors.items()})}

    def _fitted(self) -> dict[str, Any]:
        return {
            "n_members": len(self.members_),
            "history": self.history_,
            "best": self.best_,
            "n_epochs": self.n_epochs_,
        }

    def _restore(self, fitted: dict[str, Any], files: dict[str, bytes]) -> None:
        try:
            tensors = safetensors.torch.load(files["weights.safetensors"])
            self.history_, self.best_, self.n_epochs_ = fitted["history"], fitted["best"], fitted["n_epochs"]
            n_members = min(int(fitted["n_members"]), len(tensors))
            self.members_ = [inside(tensors, f"member{k}.") for k in range(n_members)]
            state = {name: tensor.numpy() for name, tensor in inside(tensors, "transform.").items()}
            settings = self._settled()
            self._check_settings(settings)
            self.transform_ = TRANSFORMS[settings["transform"]].from_state(state, self.n_features_in_)
            for weights in self.members_:
                self._check_sizes(weights, settings)
        except (KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
            found = " ".join(line.strip() for line in str(error).splitlines()[:2])  # torch lists all that does not fit
            raise DataError(
                f"expected weights that fit the settings of the model, got a damaged description: {found}"
            ) from None


class URank(NeuralRanker):
    """uRank: a network trained by the uRank loss (Eq. 2 of the paper).

    ======================  ========================================================================================
    ``network``             ``"mlp"``, ``"groupwise"`` or ``"attention"``
    ``hidden``              sizes of the hidden layers
    ``activation``          of the hidden layers: relu (the authors' program), elu (the paper), tanh, gelu, ...
    ``output_activation``   of the score; None: none (the authors' program; the paper has one)
    ``dropout``             share of hidden values that are set to 0 in training
    ``transform``           of the features; see ``TRANSFORMS``. ``"query_minmax"`` (the paper's) and ``"query_log1p"``
                            look at the whole candidate list of a query: predict needs it whole, with its qid
    ``gain``                ``"exp2"``: 2^r - 1; ``"linear"``; a list, for the ratings 0, 1, 2, ...; a mapping; or a
                            function (cannot be saved)
    ``queries_per_step``    queries in one step of Adam
    ``learning_rate``       of Adam
    ``weight_decay``        of AdamW
    ``clip_norm``           gradients longer than this are shortened to it; None: never
    ``max_epochs``          at most so many passes over the training queries
    ``select_by``           metrics that choose the epoch on validation data: the first, within 1e-6 the second, ...
    ``patience``            epochs without a better one after which training stops
    ``rule``                of those metrics
    ``n_seeds``             networks with seeds ``seed``, ``seed + 1``, ...: their scores, standardised in each query,
                            are averaged
    ``for_target``          an engine that the model is meant for, such as ``"solr"``: what it cannot hold is refused
                            before training. See ``export``. None: none
    ``preset``              ``"paper-ohsumed"``, ``"paper-mq2007"``, ``"paper-mslr"``: the paper's settings
    ``device``              of torch
    ``n_jobs``              threads; None: one for each core
    ``seed``                of all random numbers
    ======================  ========================================================================================

    Queries whose documents all have one rating teach nothing and are left out of training.

    >>> from tierank import make_ranking
    >>> train, valid, test = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.6, 0.2, 0.2)
    >>> ranker = URank(max_epochs=5, n_jobs=1).fit(train, valid=valid)
    >>> ranker.predict(test).shape == (test.n_documents,)
    True
    """

    LOSS = "urank"
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper-ohsumed": _PAPER | {"hidden": (100, 50), "learning_rate": 1e-4},
        "paper-mq2007": _PAPER | {"hidden": (100, 100), "learning_rate": 1e-5},
        "paper-mslr": _PAPER | {"hidden": (200, 200), "learning_rate": 1e-5},
    }


class ListNet(NeuralRanker):
    """ListNet (Cao et al. 2007): cross entropy from the softmax of the ratings to that of the scores.

        L = -sum over d of P(d) ln(e^f(d) / sum of e^f),  P(d) = e^r(d) / sum of e^r

    Settings: ``URank``.
    """

    LOSS, PRESETS = "listnet", URank.PRESETS


class ListMLE(NeuralRanker):
    """ListMLE (Xia et al. 2008): likelihood of the rated order d_1, d_2, ..., ties shuffled each step.

        L = -sum over i = 1..n of ln(e^f(d_i) / (e^f(d_i) + ... + e^f(d_n)))

    Settings: ``URank``.
    """

    LOSS, PRESETS = "listmle", URank.PRESETS


class PListMLE(NeuralRanker):
    """p-ListMLE (Lan et al. 2014): ListMLE that weighs the first positions most.

        L = -sum over i = 1..n of a(i) / a(1) * ln(e^f(d_i) / (e^f(d_i) + ... + e^f(d_n))),  a(i) = 2^(n - i) - 1

    Settings: ``URank``.
    """

    LOSS, PRESETS = "plistmle", URank.PRESETS


class RankNet(NeuralRanker):
    """RankNet (Burges et al. 2005): logistic loss of the pairs with different ratings.

        L = mean over r(d) > r(d') of ln(1 + e^(-sigma (f(d) - f(d'))))

    Settings: ``URank``, and ``sigma``, the steepness.
    """

    LOSS, PRESETS = "ranknet", URank.PRESETS

    def __init__(self, *, sigma: float = 1.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.sigma = sigma


class ApproxNDCG(NeuralRanker):
    """ApproxNDCG (Qin et al. 2010): NDCG with smooth ranks.

        L = 1 - 1 / IDCG * sum over d of G(d) / log2(1 + rank(d))
        rank(d) = 1 + sum over d' != d of 1 / (1 + e^((f(d) - f(d')) / temperature))

    Settings: ``URank``, and ``temperature``: the lower, the nearer to true ranks.
    """

    LOSS, PRESETS = "approxndcg", URank.PRESETS

    def __init__(self, *, temperature: float = 0.1, **settings: Any) -> None:
        super().__init__(**settings)
        self.temperature = temperature


class LambdaLoss(NeuralRanker):
    """LambdaLoss (Wang et al. 2018), NDCG-Loss2++.

        L = sum over r(d) > r(d') of |G(d) - G(d')| / IDCG * (rho + mu delta) * ln(1 + e^(-sigma (f(d) - f(d'))))
        rho = |D_i - D_j|,  delta = D_|i-j| - D_|i-j|+1,  D_i = 1 / log2(1 + i)

    with i and j the ranks of d and d' by the scores. Settings: ``URank``, and ``sigma``, the steepness, and ``mu``;
    ``mu=0`` is LambdaRank.
    """

    LOSS, PRESETS = "lambdaloss", URank.PRESETS

    def __init__(self, *, sigma: float = 1.0, mu: float = 10.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.sigma, self.mu = sigma, mu


class NetworkRanker(NeuralRanker):
    """A network that is trained by a loss of your own: any function from scores and a batch to one value per query.

    >>> import torch, tierank
    >>> def top_heavy(scores, batch):  # squared distance to the gains, 10 lines or 1
    ...     return torch.zeros(batch.n_queries).index_add(0, batch.query, (scores - batch.gains) ** 2)
    >>> data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
    >>> ranker = NetworkRanker(loss=top_heavy, max_epochs=3).fit(data)
    >>> ranker.predict(data).shape == (data.n_documents,)
    True

    ``loss`` may also be a name of ``LOSSES``. The settings are those of ``URank``. A model with a loss of your own is
    saved without it: it predicts after loading, but cannot be fitted again.
    """

    PRESETS = URank.PRESETS

    def __init__(self, loss: str | Loss | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.loss = loss


def _check(settings: dict[str, Any]) -> None:
    for name, least in (("queries_per_step", 1), ("max_epochs", 1), ("patience", 1), ("n_seeds", 1), ("seed", 0)):
        as_whole(name, settings[name], least)
    as_positive("learning_rate", settings["learning_rate"])
    as_number("weight_decay", settings["weight_decay"], 0, 1e6)
    if settings["clip_norm"] is not None:
        as_positive("clip_norm", settings["clip_norm"])
    as_choice("network", settings["network"], [name for name in NETWORKS if name != "tier_rnn"])  # UrBoost's
    if isinstance(settings["hidden"], str) or not isinstance(settings["hidden"], Sequence):
        raise ParameterError(f"hidden: expected sizes of layers, such as (100, 50), got {settings['hidden']!r}")
    as_device(settings["device"])
    as_choice("transform", settings["transform"], TRANSFORMS)
    as_gain(settings["gain"])
    as_limit("n_jobs", None if settings["n_jobs"] == -1 else settings["n_jobs"])


def _origin(members: list[Weights], settings: dict[str, Any]) -> list[Any]:
    """The tensors and settings that networks are built from."""
    return [*(tensor for weights in members for tensor in weights.values()), *settings.values()]


def build_network(settings: dict[str, Any], n_features: int, seed: int) -> nn.Module:
    """The network that the settings describe, with the weights of this seed."""
    kind = NETWORKS[settings["network"]]
    takes = inspect.signature(kind).parameters
    chosen = {name: settings[name] for name in takes if name in settings and name != "seed"}
    return kind(n_features, **chosen, seed=seed).to(settings["device"], torch.float32)


def _mean(members: list[Scorer]) -> Scorer:
    return members[0] if len(members) == 1 else StandardisedMean(tuple(members))


def _layers(network: nn.Module) -> tuple[Layer, ...]:
    """The layers of a network that scores each document by itself."""
    if isinstance(network, MLP):
        return *_hidden(network.body), _layer(network.output, network.output_activation or "identity")
    if isinstance(network, TierRNN):  # its first step alone, where the state is 0
        own = network.document_weights
        parts: list[Tensor] = [network.state_weights] if own is None else [network.state_weights, own]
        step = _layer(network.from_document, "tanh", keeps_input=own is not None)
        weights = _array(torch.cat(parts))[None]
        return *_hidden(network.body), step, Layer(weights, np.zeros(1, np.float32), "identity")
    name = type(network).__name__.lower()
    raise ParameterError(f"network: expected 'mlp' to export, which scores each document by itself, got {name!r}")


def _hidden(body: Layers) -> list[Layer]:
    return [_layer(layer, body.activation) for layer in body.layers]


def _layer(linear: Any, activation: str, keeps_input: bool = False) -> Layer:
    return Layer(_array(linear.weight), _array(linear.bias), activation, keeps_input)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return np.array(tensor.detach().cpu().numpy(), np.float32)


@contextmanager
def _threads(n_jobs: int | None) -> Iterator[None]:
    """So many threads for torch, and afterwards as many as there were."""
    before, wanted = torch.get_num_threads(), n_threads(n_jobs)
    if before == wanted:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)
