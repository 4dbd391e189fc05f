"""UBoost and UrBoost: a ranker, and networks that learn what it left over, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tierank.dataset import RankingDataset
from tierank.errors import ParameterError
from tierank.export import Scorer, StandardisedMean, Sum
from tierank.losses import Batch, stepwise_urank, urank
from tierank.networks import TierRNN
from tierank.rankers.base import Ranker, Selection, means_of
from tierank.rankers.inner import as_base, fit_inner, inner_files, outline_inner, restore_inner
from tierank.rankers.neural import NeuralRanker, URank, build_network
from tierank.rankers.training import Floats, Lists, NetworkCheckpoint, Task, Training, Weights
from tierank.settings import as_positive, as_whole
from tierank.transforms import Transform

# How far the seeds of learners stand apart: no two networks begin alike, those of n_seeds runs included.
_APART = 1_000_000


class _Boosted(NeuralRanker):
    """A first learner, and residual networks. A subclass says what the first one is, and how it is trained."""

    LOSS, PRESETS = "urank", URank.PRESETS

    n_learners: int
    coefficient: float
    base_: Ranker | None = None
    learners_: list[dict[str, Any]]

    def _first_network(self, settings: dict[str, Any], n_features: int, seed: int) -> nn.Module:
        return build_network(settings, n_features, seed)

    def _first_training(self, *training: Any) -> Training:
        return Training(*training)

    def _check_settings(self, settings: dict[str, Any]) -> None:
        super()._check_settings(settings)
        as_whole("n_learners", settings["n_learners"])
        as_positive("coefficient", settings["coefficient"])

    def _train(self, task: Task) -> None:
        self.learners_ = []
        kept = task.open_checkpoint()
        for member in range(task.settings["n_seeds"]):
            self.members_.append({})
            self._boost(task, member, kept)

    def _boost(self, task: Task, member: int, kept: NetworkCheckpoint | None) -> None:
        """Learner after learner, while the validation metrics get better."""
        train = _Frozen(task.lists, self.base_)
        valid = None if task.valid is None else _Frozen(task.valid, self.base_)
        selection = Selection()
        if self.base_ is not None:
            self._count_base(task, member, valid, selection)
        for learner in range(1 if self.base_ is None else 2, task.settings["n_learners"] + 1):
            training = self._start(task, member, learner, train, valid, kept)
            if training is None or not self._add(training, selection):
                break
            for frozen in (train, valid):
                if frozen is not None:
                    frozen.add(training.network, 1.0 if learner == 1 else task.settings["coefficient"])

    def _start(
        self,
        task: Task,
        member: int,
        learner: int,
        train: _Frozen,
        valid: _Frozen | None,
        kept: NetworkCheckpoint | None,
    ) -> Training | None:
        """The training of a learner; None where nothing is left over to learn."""
        seed = task.settings["seed"] + member + _APART * (learner - 1)
        build = partial(self._learner, learner, task.settings, task.lists.data.n_features, seed)
        place = {"member": member, "learner": learner}
        if learner == 1:
            return self._first_training(build, task, place, seed, kept)
        residuals = find_residuals(train.scores, task.lists)
        return _Residuals(residuals, valid, build, task, place, seed, kept) if residuals.any() else None

    def _count_base(self, task: Task, member: int, valid: _Frozen | None, selection: Selection) -> None:
        row = {} if task.judge is None or valid is None else means_of(task.judge(valid.scores))
        selection.is_better(list(row.values()))
        self.learners_.append({"member": member, "learner": 1, **row, "kept": True})

    def _add(self, training: Training, selection: Selection) -> bool:
        """Train a learner, and keep it if the ensemble is better with it; the first one is kept in any case."""
        member, learner = training.place["member"], training.place["learner"]
        n_seeds, n_learners = training.settings["n_seeds"], training.settings["n_learners"]
        label = f"learner {learner} of {n_learners}"
        state, data = training.state, training.lists.data
        better = learner == 1
        try:
            training.run(label if n_seeds == 1 else f"network {member + 1} of {n_seeds}, {label}")
            better = state.best is None or selection.is_better(state.best)
        finally:  # also where the loss was not finite: what was learned so far is kept
            self.history_ += state.history
            if state.best_epoch:
                self.learners_.append(state.history[state.best_epoch - 1] | {"kept": better})
            if better:
                self.members_[member] |= {f"{learner}.{name}": tensor for name, tensor in state.kept.items()}
                self.n_epochs_.append(state.best_epoch)
            self._set_features(data.n_features, data.feature_names)
        training.network.load_state_dict(state.kept)
        return better

    def _learner(self, learner: int, settings: dict[str, Any], n_features: int, seed: int) -> nn.Module:
        if learner == 1:
            return self._first_network(settings, n_features, seed)
        # Residuals are above and below 0, whatever scores may be.
        return build_network(settings | {"output_activation": None}, n_features, seed)

    def _member(self, weights: Weights, settings: dict[str, Any]) -> nn.Module:
        numbers = sorted({int(name.partition(".")[0]) for name in weights})
        learners = {n: self._learner(n, settings, self.n_features_in_, settings["seed"]) for n in numbers}
        ensemble = _Ensemble(learners, settings["coefficient"])
        ensemble.load_state_dict(weights)
        return ensemble

    def _portable_member(self, member: nn.Module, transform: Transform) -> Scorer:
        coefficient = self.settings_["coefficient"]
        learners = {
            number: super(_Boosted, self)._portable_member(one, transform) for number, one in member.named_children()
        }
        return Sum(tuple((1.0 if number == "1" else coefficient, one) for number, one in learners.items()))

    def _untrained(self, settings: dict[str, Any], n_features: int) -> nn.Module:
        """All learners that there may be."""
        numbers = range(1 if settings.get("base") is None else 2, settings["n_learners"] + 1)
        learners = {n: self._learner(n, settings, n_features, settings["seed"]) for n in numbers}
        return _Ensemble(learners, settings["coefficient"])

    def _fitted(self) -> dict[str, Any]:
        return super()._fitted() | {"learners": self.learners_}

    def _restore(self, fitted: dict[str, Any], files: dict[str, bytes]) -> None:
        super()._restore(fitted, files)
        self.learners_ = list(fitted.get("learners", ()))


class UBoost(_Boosted):
    """uBoost: uRank, and networks that are fitted one after the other to what the ones before left over.

    With F_1 the scores of the first learner and L the uRank loss:

        y_m(d) = -dL / dF_{m-1}(d)                         the residuals, found once for each learner
        g_m    = network with the least mean squared error  (g_m(d) - y_m(d))^2
        F_m    = F_{m-1} + coefficient g_m

    The epoch of each learner is the one with which F_m is best on validation data; a learner that does not make F_m
    better than F_{m-1} is left out, and ends it. Without validation data all learners are trained to the last epoch.

    ======================  ========================================================================================
    ``n_learners``          at most so many, the first one included
    ``coefficient``         of all learners but the first
    ``base``                the first learner; None: ``URank`` with the same settings. Or any ranker, trees included:
                            ``UBoost(base=UMart())`` fits networks to the residuals of trees. It is fitted to the same
                            data with its own settings
    ======================  ========================================================================================

    The other settings are those of ``URank`` and count for all learners. With ``n_seeds`` all of it is done for each
    seed, but for a given ``base``, which is fitted once. ``learners_`` lists the learners with their metrics, those
    that were left out too.

    >>> from tierank import make_ranking
    >>> train, valid = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.7, 0.3)
    >>> ranker = UBoost(max_epochs=5, n_learners=2).fit(train)
    >>> [row["learner"] for row in ranker.learners_]
    [1, 2]
    """

    def __init__(
        self,
        *,
        n_learners: int = 5,
        coefficient: float = 1.0,
        base: Ranker | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.n_learners, self.coefficient, self.base = n_learners, coefficient, base

    def _check_settings(self, settings: dict[str, Any]) -> None:
        super()._check_settings(settings)
        as_base(settings["base"])

    def _train(self, task: Task) -> None:
        self.base_ = None
        base = task.settings["base"]
        if base is not None:
            data, valid = task.lists.data, None if task.valid is None else task.valid.data
            self.base_ = fit_inner(self, base, data, valid, task.job.inside("base"))
            task = replace(task, job=task.job.inside("learners"))
        super()._train(task)

    def _member_scores(self, data: RankingDataset) -> list[Floats]:
        scores = super()._member_scores(data)
        if self.base_ is None:
            return scores
        base = self.base_._predict(data)
        return [base + one for one in scores]

    def _member_contributions(
        self, data: RankingDataset, above: NDArray[np.int64], below: NDArray[np.int64]
    ) -> list[Floats]:
        found = super()._member_contributions(data, above, below)
        if self.base_ is None:
            return found
        base = self.base_._contributions(data, above, below)
        return [base + one for one in found]

    def _looks_around(self) -> bool:
        return super()._looks_around() or (self.base_ is not None and self.base_._looks_around())

    def _portable(self) -> Scorer:
        own = super()._portable()
        return own if self.base_ is None else _on_base(self.base_._portable(), own)

    def _outline(self, train: RankingDataset) -> Scorer:
        own = super()._outline(train)
        base = self.settings_["base"]
        return own if base is None else _on_base(outline_inner(self, base, train), own)

    def _files(self) -> dict[str, bytes]:
        return super()._files() | inner_files("base", self.base_)

    def _fitted(self) -> dict[str, Any]:
        return super()._fitted() | {"base": None if self.base_ is None else self.base_._fitted()}

    def _restore(self, fitted: dict[str, Any], files: dict[str, bytes]) -> None:
        base = self.settings_["base"]
        if base is not None:
            self.base_ = restore_inner(self, base, "base", fitted.get("base"), files)
        super()._restore(fitted, files)


class UrBoost(_Boosted):
    """urBoost: a recurrent network that selects tier after tier, and networks that are fitted to what is left over.

    The first learner is ``TierRNN``: it is trained with the scores that documents have on the step of each tier, and
    ranks by those of the first step, which need no ratings. The other learners, and all that follows, are as in
    ``UBoost``. ``n_learners=1`` is urRank, the recurrent network alone.

    ======================  ========================================================================================
    ``n_learners``          at most so many, the first one included
    ``coefficient``         of all learners but the first
    ``pooling``             of the documents of a tier: ``"max"`` or ``"mean"``
    ``score_from``          what scores are read from: ``"both"``, the state and the embedding of the document (the
                            paper), or ``"state"`` alone (its authors' program)
    ``network``             of all learners but the first, as in ``URank``
    ======================  ========================================================================================

    The other settings are those of ``URank``, but for ``output_activation``: there is none.

    >>> from tierank import make_ranking
    >>> train, valid = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.7, 0.3)
    >>> ranker = UrBoost(max_epochs=5, n_learners=1).fit(train)
    >>> ranker.predict(valid).shape == (valid.n_documents,)
    True
    """

    def __init__(
        self,
        *,
        n_learners: int = 5,
        coefficient: float = 1.0,
        pooling: str = "max",
        score_from: str = "both",
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.n_learners, self.coefficient, self.pooling, self.score_from = n_learners, coefficient, pooling, score_from

    def _check_settings(self, settings: dict[str, Any]) -> None:
        super()._check_settings(settings)
        if settings["output_activation"] is not None:
            raise ParameterError("output_activation: the recurrent network has none: expected None")

    def _first_network(self, settings: dict[str, Any], n_features: int, seed: int) -> nn.Module:
        names = ("hidden", "activation", "dropout", "pooling", "score_from")
        network = TierRNN(n_features, **{name: settings[name] for name in names}, seed=seed)
        return network.to(settings["device"], torch.float32)

    def _first_training(self, *training: Any) -> Training:
        return _Steps(*training)


class _Steps(Training):
    """The training of a recurrent network: the loss of tier t takes the scores of step t."""

    network: TierRNN

    def _values(self, features: Tensor, batch: Batch) -> Tensor:
        return stepwise_urank(self.network.step_scores(features, batch), batch)


class _Residuals(Training):
    """The training of a learner that is fitted to residuals, and judged as a part of the ensemble."""

    def __init__(self, residuals: Tensor, valid: _Frozen | None, *training: Any) -> None:
        self.residuals, self.frozen = residuals, valid
        super().__init__(*training)

    def _values(self, features: Tensor, batch: Batch) -> Tensor:
        """The mean squared error of each query."""
        errors: Tensor = self.network(features, batch) - self.residuals.index_select(0, batch.rows)
        squares = errors.double().square()  # gains of 2^64 have no square in single precision
        return squares.new_zeros(batch.n_queries).scatter_add(0, batch.query, squares) / batch.lengths

    def _scores(self, valid: Lists) -> Floats:
        scores = super()._scores(valid)
        return scores if self.frozen is None else self.frozen.plus(self.settings["coefficient"] * scores)


class _Frozen:
    """The scores of the ensemble so far, kept: no learner is asked for them twice."""

    def __init__(self, lists: Lists, base: Ranker | None) -> None:
        self.lists = lists
        self.of_base = 0.0 if base is None else base._predict(lists.data)
        self.of_networks = np.zeros(lists.data.n_documents)

    @property
    def scores(self) -> Floats:
        """One score per document, in the order of the data set."""
        return self.of_base + self.of_networks

    def plus(self, more: Floats) -> Floats:
        """The scores with those of one learner more, to the bits that prediction gives."""
        return self.of_base + (self.of_networks + more)

    def add(self, network: nn.Module, coefficient: float) -> None:
        """Take in a learner."""
        self.of_networks = self.of_networks + coefficient * self.lists.scores(network)


class _Ensemble(nn.ModuleDict):
    """f_1 + coefficient (f_2 + f_3 + ...), learners by their numbers; f_1 is missing where a base ranker gives it."""

    def __init__(self, learners: Mapping[int, nn.Module], coefficient: float) -> None:
        super().__init__({str(number): network for number, network in learners.items()})
        self.coefficient = coefficient

    def forward(self, features: Tensor, batch: Batch) -> Tensor:
        """One score per document."""
        scores = torch.zeros(len(features), dtype=torch.float64, device=features.device)
        for number, network in self.items():
            scores = scores + (1.0 if number == "1" else self.coefficient) * network(features, batch).double()
        return scores


def _on_base(base: Scorer, learners: Scorer) -> Scorer:
    """The learners of each member with the base before them."""
    if isinstance(learners, StandardisedMean):
        return StandardisedMean(tuple(_on_base(base, member) for member in learners.parts))
    parts = learners.parts if isinstance(learners, Sum) else ((1.0, learners),)
    return Sum(((1.0, base), *parts))


def find_residuals(scores: Floats, lists: Lists) -> Tensor:
    """What a learner is fitted to, -dL / dF(d) of the uRank loss L, for the documents in their canonical order.

    In the terms of the paper (Algorithm 2), with p(d) = e^F(d) / (e^F(d) + k(s~(d))) the likelihood of d among itself
    and the documents rated lower:

        y(d) = 1 / (|R| - 1) * (G(d) (1 - p(d)) - sum over d' rated higher of G(d') e^F(d) / (e^F(d') + k(s~(d'))))
    """
    batch = lists.whole
    frozen = torch.tensor(scores[lists.order], dtype=batch.dtype, device=batch.device, requires_grad=True)
    return -torch.autograd.grad(urank(frozen, batch).sum(), frozen)[0]
