"""Boosted networks: a first learner, and networks that are fitted to the residuals, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tierank.arrays import Floats, Rows
from tierank.data.dataset import RankingDataset
from tierank.errors import ParameterError
from tierank.export import Scorer, StandardisedMean, Sum
from tierank.kernels.mlp_training import SQUARES, TIERS
from tierank.losses import Batch, stepwise_urank, windowed_urank
from tierank.losses.batch import sum_by
from tierank.networks import TierRNN
from tierank.rankers.model import FittedModel, Resources, Seen
from tierank.rankers.network_model import NetworkModel, Weights, build_network, initialised
from tierank.rankers.network_scoring import Ensemble, QueryLists
from tierank.rankers.network_training import NetworkFit, Training
from tierank.rankers.selection import Selection, means_of
from tierank.transforms import Transform

# The distance between the seeds of learners: no two networks start alike, even with n_seeds runs.
_APART = 1_000_000


class BoostedModel(NetworkModel):
    """A first learner, or a base ranker, and networks fitted to its residuals.

    Attributes
    ----------
    base : FittedModel or None
        The first learner, if it is not a network of this model.
    learners : list of dict
        The learners with their metrics, including those that were left out.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        seen: Seen,
        transform: Transform,
        members: list[Weights] | None = None,
        base: FittedModel | None = None,
    ) -> None:
        super().__init__(settings, seen, transform, members)
        self.base = base
        self.learners: list[dict[str, Any]] = []

    def learner(self, number: int, seed: int, device: str) -> nn.Module:
        """A learner before training: the first one, or one for residuals."""
        if number == 1:
            return self.first_learner(seed, device)
        # Residuals are positive and negative, even if scores are not.
        own: dict[str, Any] = {"output_activation": None}
        if self.settings["residual_hidden"] is not None:
            own["hidden"] = self.settings["residual_hidden"]
        return build_network(self.settings | own, self.inputs, seed, device)

    def first_learner(self, seed: int, device: str) -> nn.Module:
        """The network of the settings."""
        return build_network(self.settings, self.inputs, seed, device)

    def build(self, weights: Weights, device: str) -> nn.Module:
        """The ensemble with these weights."""
        ensemble = self._ensemble(sorted({int(name.partition(".")[0]) for name in weights}), device)
        ensemble.load_state_dict(weights)
        return ensemble

    def untrained(self) -> nn.Module:
        """All learners, untrained."""
        first = 1 if self.settings.get("base") is None else 2
        return self._ensemble(range(first, self.settings["n_learners"] + 1), "cpu")

    def _ensemble(self, numbers: Sequence[int], device: str) -> Ensemble:
        learners = {number: self.learner(number, self.settings["seed"], device) for number in numbers}
        return Ensemble(learners, self.settings["coefficient"])

    def member_scores(self, data: RankingDataset, resources: Resources) -> list[Floats]:
        """The scores of each ensemble, added to those of the base."""
        scores = super().member_scores(data, resources)
        if self.base is None:
            return scores
        base = self.base.predict(data, resources)
        return [base + one for one in scores]

    def member_contributions(
        self, data: RankingDataset, above: Rows, below: Rows, resources: Resources
    ) -> list[Floats]:
        """The contributions in each ensemble, added to those in the base."""
        of_members = super().member_contributions(data, above, below, resources)
        if self.base is None:
            return of_members
        base = self.base.contributions(data, above, below, resources)
        return [base + one for one in of_members]

    @property
    def needs_list(self) -> bool:
        """Whether the networks or the base score whole lists."""
        return super().needs_list or (self.base is not None and self.base.needs_list)

    def behind_embeddings(self, member: nn.Module, features: Tensor) -> tuple[nn.Module, Tensor]:
        """The learners behind their embeddings, and what each is given there, side by side."""
        if not self.inputs.levels:
            return member, features
        learners = {
            int(n): super(BoostedModel, self).behind_embeddings(one, features) for n, one in member.named_children()
        }
        networks = {n: network for n, (network, _) in learners.items()}
        given = [own for _, own in learners.values()]
        return Ensemble(networks, self.settings["coefficient"], shares_inputs=False), torch.cat(given, dim=1)

    def neutral_member(self, member: nn.Module) -> Scorer:
        """One ensemble in the neutral form."""
        if not isinstance(member, Ensemble):
            return super().neutral_member(member)
        return Sum(tuple((factor, self.neutral_member(one)) for factor, one in member.terms()))

    def to_neutral(self) -> Scorer:
        """The ensembles, with the base before each."""
        networks = super().to_neutral()
        return networks if self.base is None else on_base(self.base.to_neutral(), networks)

    def files(self) -> dict[str, bytes]:
        """The weights, and the files of the base."""
        of_base = {} if self.base is None else self.base.files()
        return super().files() | {f"base.{name}": content for name, content in of_base.items()}

    def facts(self) -> dict[str, Any]:
        """The history of training, and the learners."""
        base = None if self.base is None else self.base.facts()
        return super().facts() | {"learners": self.learners, "base": base}


class TierRNNModel(BoostedModel):
    """A boosted model whose first learner is the recurrent network of urBoost."""

    def first_learner(self, seed: int, device: str) -> nn.Module:
        """The recurrent network."""
        names = ("hidden", "activation", "dropout", "pooling", "score_from", "cell", "inference")
        network = TierRNN(self.inputs.width, **{name: self.settings[name] for name in names}, seed=seed)
        return initialised(network, self.settings, self.inputs, seed, device)

    @property
    def needs_list(self) -> bool:
        """Whether documents are chosen one by one, or the learners look at lists."""
        return super().needs_list or self.settings["inference"] == "documents"

    def member_contributions(
        self, data: RankingDataset, above: Rows, below: Rows, resources: Resources
    ) -> list[Floats]:
        """The contributions in each ensemble. Refused if documents are chosen one by one: choices have no gradient."""
        if self.settings["inference"] == "documents":
            raise ParameterError(argument="inference", expected="'first', to explain scores", got="'documents'")
        return super().member_contributions(data, above, below, resources)


def boost_members(model: BoostedModel, task: NetworkFit) -> None:
    """Train one learner after another, while the validation metrics improve, once for each seed."""
    settings, judge = task.settings, task.judge
    for member in range(settings["n_seeds"]):
        model.members.append({})
        selection = Selection()
        train = FrozenScores(task.lists, model.base, settings)
        valid = None if task.valid is None else FrozenScores(task.valid, model.base, settings)
        if model.base is not None:
            row = {} if judge is None or valid is None else means_of(judge(valid.scores), task.lists.team)
            selection.is_better(list(row.values()))
            model.learners.append({"member": member, "learner": 1, **row, "kept": True})
        for number in range(1 if model.base is None else 2, settings["n_learners"] + 1):
            place, seed = {"member": member, "learner": number}, settings["seed"] + member + _APART * (number - 1)
            if number == 1:
                kind = StepTraining if isinstance(model, TierRNNModel) else Training
                training = kind(model.learner(1, seed, settings["device"]), task, place, seed)
            else:
                residuals = find_residuals(train.scores, task.lists, settings["window"])
                if not any(task.lists.team.all_gather(bool(residuals.any()))):
                    break
                network = model.learner(number, seed, settings["device"])
                training = ResidualTraining(residuals, valid, network, task, place, seed)
            if not _train_learner(model, training, selection) or task.context.is_stopped:
                break
            for frozen in (train, valid):
                if frozen is not None:
                    frozen.add(training.network, 1.0 if number == 1 else settings["coefficient"])
        if task.context.is_stopped:
            break


def _train_learner(model: BoostedModel, training: Training, selection: Selection) -> bool:
    """Train a learner, and keep it if the ensemble is better with it; the first one is kept in any case."""
    member, number, state = training.place["member"], training.place["learner"], training.state
    n_seeds, n_learners = training.settings["n_seeds"], training.settings["n_learners"]
    label = f"learner {number} of {n_learners}"
    is_kept = number == 1
    try:
        training.run(label if n_seeds == 1 else f"network {member + 1} of {n_seeds}, {label}")
        is_kept = state.best is None or selection.is_better(state.best)
    finally:  # even if the loss was not finite: what was learned so far is kept
        model.history += state.history
        if state.best_epoch:
            model.learners.append(state.history[state.best_epoch - 1] | {"kept": is_kept})
        if is_kept:
            model.members[member] |= {f"{number}.{name}": tensor for name, tensor in state.kept.items()}
            model.n_epochs.append(state.best_epoch)
    training.network.load_state_dict(state.kept)
    return is_kept


class StepTraining(Training):
    """The training of a recurrent network: the loss of tier t takes the scores of step t."""

    network: TierRNN

    def values(self, features: Tensor, batch: Batch) -> Tensor:
        """The loss of each query."""
        return stepwise_urank(self.network.step_scores(features, batch), batch, window=self.settings["window"])

    def compiled_loss(self) -> tuple[int, Tensor] | None:
        """The loss for compiled steps, without a window."""
        return (TIERS, self.lists.whole.urank_weights) if self.settings["window"] is None else None


class ResidualTraining(Training):
    """The training of a learner that is fitted to residuals, and judged as a part of the ensemble."""

    def __init__(self, residuals: Tensor, valid: FrozenScores | None, *training: Any) -> None:
        self.residuals, self.frozen = residuals, valid
        super().__init__(*training)

    def values(self, features: Tensor, batch: Batch) -> Tensor:
        """The mean squared error of each query, over all copies of its documents."""
        errors: Tensor = self.network(features, batch) - self.residuals.index_select(0, batch.rows)
        squares = batch.counted(errors.double().square())  # the square of a gain of 2^64 overflows in single precision
        n_copies = batch.lengths if batch.row_weight is None else sum_by(batch.row_weight, batch.query, batch.n_queries)
        return sum_by(squares, batch.query, batch.n_queries) / n_copies

    def compiled_loss(self) -> tuple[int, Tensor]:
        """The loss for compiled steps."""
        return SQUARES, self.residuals

    def valid_scores(self, valid: QueryLists) -> Floats:
        """The scores of the ensemble with this learner."""
        scores = super().valid_scores(valid)
        return scores if self.frozen is None else self.frozen.plus(self.settings["coefficient"] * scores)


class FrozenScores:
    """The scores of the ensemble so far, kept: each learner is evaluated once."""

    def __init__(self, lists: QueryLists, base: FittedModel | None, settings: Mapping[str, Any]) -> None:
        self.lists, resources = lists, Resources(settings["n_jobs"], settings["device"])
        self.of_base = 0.0 if base is None else base.predict(lists.data, resources)
        self.of_networks = np.zeros(lists.data.n_documents)

    @property
    def scores(self) -> Floats:
        """One score per document, in the order of the data set."""
        return self.of_base + self.of_networks

    def plus(self, more: Floats) -> Floats:
        """The scores with those of one more learner, to the bits that prediction gives."""
        return self.of_base + (self.of_networks + more)

    def add(self, network: nn.Module, coefficient: float) -> None:
        """Add a learner."""
        self.of_networks = self.of_networks + coefficient * self.lists.scores(network)


def on_base(base: Scorer, learners: Scorer) -> Scorer:
    """The learners of each member with the base before them."""
    if isinstance(learners, StandardisedMean):
        return StandardisedMean(tuple(on_base(base, member) for member in learners.parts))
    parts = learners.parts if isinstance(learners, Sum) else ((1.0, learners),)
    return Sum(((1.0, base), *parts))


def find_residuals(scores: Floats, lists: QueryLists, window: int | None = None) -> Tensor:
    """The residuals that a learner is fitted to, -dL / dF(d) of the uRank loss L, for documents in canonical order.

    In the terms of the paper (Algorithm 2), with p(d) = e^F(d) / (e^F(d) + k(s~(d))) the likelihood of d among itself
    and the documents rated lower:

        y(d) = 1 / (|R| - 1) * (G(d) (1 - p(d)) - sum over d' rated higher of G(d') e^F(d) / (e^F(d') + k(s~(d'))))

    With a ``window``, of the windowed loss (Eq. 3). With b the windows below d, and b(d) the one that d is in among the
    documents rated lower than d':

        y(d) = 1 / (|R| - 1) * (G(d) sum over b of k(b) / (e^F(d) + k(b))
                                - sum over d' rated higher of G(d') e^F(d) / (e^F(d') + k(b(d))))

    With row weights L is that of the loss with row weights, and the residual is that of one copy: -dL / dF(d) / c(d);
    0 where c(d) is 0.
    """
    batch = lists.whole
    frozen = torch.tensor(scores[lists.order], dtype=batch.dtype, device=batch.device, requires_grad=True)
    residuals = -torch.autograd.grad(windowed_urank(frozen, batch, window=window).sum(), frozen)[0]
    return residuals if batch.row_weight is None else torch.where(batch.row_weight > 0, residuals / batch.row_weight, 0)
