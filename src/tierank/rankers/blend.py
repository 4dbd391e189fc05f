"""Blend: trees and networks, several of each, averaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.export import Scorer, Sum
from tierank.files import replacing
from tierank.models import Known, class_name
from tierank.progress import Progress
from tierank.rankers.base import JudgedRanker, Ranker, fitted_copy, read_ranker
from tierank.rankers.networks import URank
from tierank.rankers.trees import LambdaMART, UMart
from tierank.settings import Choice, Flag, Integer, setting
from tierank.training.blend import NETWORKS, TREES, BlendModel, Fold, Member, mean_of_means, take_turns
from tierank.training.checkpoint import Checkpoint
from tierank.training.model import FitContext, FittedModel, SavedModel, Seen
from tierank.training.order import canonical_rows
from tierank.training.selection import make_judge
from tierank.transforms import add_query_copies
from tierank.types import Floats

# Fixed beforehand and unlike each other: their mean is better than the one that looks best on validation data.
CONFIGS: tuple[dict[str, Any], ...] = (
    {"n_leaves": 15, "min_documents": 20, "feature_fraction": 0.7},
    {"n_leaves": 7, "min_documents": 50, "feature_fraction": 0.5},
    {"n_leaves": 31, "min_documents": 100, "feature_fraction": 0.5, "lambda_l2": 10.0},
    {"n_leaves": 10, "min_documents": 20, "feature_fraction": 0.3},
    {"n_leaves": 20, "min_documents": 200, "feature_fraction": 0.7},
    {"n_leaves": 63, "min_documents": 50, "feature_fraction": 0.3, "lambda_l2": 30.0},
)
# The file of a checkpoint that names the member in which a callback stopped training.
_STOPPED = "stopped"
_TRANSFORMS = ("query_minmax", "query_log1p")


@dataclass(kw_only=True, eq=False, repr=False)
class Blend(JudgedRanker):
    """Blend: small boosted trees that see each feature relative to its query, and uRank networks, averaged.

    Each family is the mean of the scores of its members, standardised within each query, and both count the same:

        F(d) = z(mean over trees of z(f(d))) + z(mean over networks of z(f(d))),   z(f) = (f - mean) / deviation

    Only the number of rounds of each member is chosen on validation data. With ``rotate`` the queries, those of
    ``valid`` included, are cut into four parts; each part validates once, and the members of that turn learn from the
    other three. So the ratings of ``valid`` are learned from too; ``rotate=False`` keeps them for validation only.

    ``Blend.from_preset("1x")``, ``"3x"`` and ``"10x"`` cost about that many times one tree model with the same
    features.

    Examples
    --------
    >>> from tierank import make_ranking
    >>> train, test = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.7, 0.3)
    >>> ranker = Blend(n_configs=1, n_seeds=1, n_trees=5, max_epochs=2).fit(train)
    >>> [(member.family, member.part) for member in ranker.members_[:4]]
    [('trees', 0), ('networks', 0), ('networks', 0), ('trees', 1)]
    """

    trees: str = setting("lambdamart", Choice(("lambdamart", "umart")), "kind of trees")
    n_configs: int = setting(3, Integer(0, len(CONFIGS)), "number of tree configurations; 0 for no trees")
    n_seeds: int = setting(2, Integer(0), "number of networks for each of two transforms; 0 for no networks")
    rotate: bool = setting(
        True, Flag(), "let four parts of the queries take turns in validating; otherwise valid validates, or one part"
    )
    query_features: bool = setting(True, Flag(), "give trees the features relative to their query, as in UMart")
    n_trees: int = setting(500, Integer(1), "maximum number of trees per tree model")
    max_epochs: int = setting(200, Integer(1), "maximum number of epochs per network")

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "1x": {"n_configs": 1, "n_seeds": 0, "rotate": False},
        "3x": {"n_configs": 1, "n_seeds": 1, "rotate": False},
        "10x": {"n_configs": 1, "n_seeds": 1, "rotate": True},
    }

    @property
    def members_(self) -> list[Member]:
        """The members, with their metrics on the part that validated them."""
        return cast("BlendModel", self.model_).members

    def check_together(self, settings: Mapping[str, Any]) -> None:
        """Check that there are members, and the settings of each."""
        if not settings["n_configs"] and not settings["n_seeds"]:
            raise ParameterError("n_configs, n_seeds: expected trees or networks, got 0 of both")
        for _, ranker in _plans(settings):
            ranker.check_settings()

    def check_start(self, start: Ranker, settings: Mapping[str, Any]) -> None:
        """A blend begins anew: which queries its members validate on depends on all the data."""
        raise ParameterError(
            argument="start",
            expected="None, as each member of a blend leaves out queries to validate on, which a start would have seen",
            got="a ranker",
        )

    def fit_model(self, train: RankingDataset, valid: RankingDataset | None, context: FitContext) -> BlendModel:
        """Fit the members of each turn, one after the other."""
        if context.team.size > 1:
            raise ParameterError("team: Blend trains its members in one process; train trees or networks in a team")
        settings = self.checked_settings()
        turns = list(take_turns(train, valid, settings["rotate"], settings["seed"], settings["n_jobs"]))
        kept = None if context.checkpoint is None else _Members(context.checkpoint, settings, train, valid)
        model = BlendModel([], context.seen, settings["query_features"])
        plans = list(product(range(len(turns)), _plans(settings)))
        with Progress("blend", len(plans), show=context.progress) as shown:
            widened: tuple[int, Fold] | None = None
            for number, (turn, (family, ranker)) in enumerate(plans):
                if widened is None or widened[0] != turn:
                    widened = turn, _widened(turns[turn], model.is_widened, settings["n_jobs"])
                fold = widened[1] if family == TREES else turns[turn]
                ranker.set_params(seed=settings["seed"] + number)
                inner = replace(context, part=_joined(context.part, family), member=number)
                fitted = _fit_member(ranker, fold, inner, kept, number)
                model.members.append(self._described(family, turn, fitted, fold[0], context.seen))
                shown.step(" ".join(f"{name} {value:.4f}" for name, value in fitted.best.items()))
                context.callbacks.stopped |= kept is not None and kept.last == number
                if context.is_stopped:
                    break
        model.best = self._judged(model, turns, settings)
        return model

    def _described(self, family: str, part: int, model: FittedModel, learned: RankingDataset, seen: Seen) -> Member:
        if seen.has_queries:
            return Member(family, part, model.best, model)
        scores = model.predict(learned, self.resources())
        return Member(family, part, model.best, model, float(scores.mean()), float(scores.std()) or 1.0)

    def _judged(self, model: BlendModel, turns: list[Fold], settings: Mapping[str, Any]) -> dict[str, float]:
        """The metrics of the blend: each part judged by the members that it validated."""
        values: dict[str, list[Floats]] = {}
        for turn, (_, valid) in enumerate(turns):
            if valid is None:
                return {}
            members = [member for member in model.members if member.part == turn]
            if not members:  # a callback stopped training before this turn
                break
            judge = make_judge(valid, settings["select_by"], settings["rule"], 1)
            for metric, per_query in judge(model.blended(valid, members, self.resources())).items():
                values.setdefault(metric, []).append(per_query)
        return {metric: float(np.nanmean(np.concatenate(parts))) for metric, parts in values.items()}

    def outline(self, train: RankingDataset, seen: Seen) -> Scorer:
        """The members of one turn; those of the others are alike."""
        settings = self.checked_settings()
        members = [(family, ranker.outline(train, seen)) for family, ranker in _plans(settings)]
        if seen.has_queries:
            return mean_of_means(members, settings["query_features"])
        return Sum(tuple((1.0, one) for _, one in members))

    def restore_model(self, saved: SavedModel) -> BlendModel:
        """The members of a model folder."""
        settings = self.get_params(deep=False)
        plans = list(_plans(settings))
        model = BlendModel([], saved.seen, settings["query_features"])
        try:
            model.best = dict(saved.facts["best"])
            for number, facts in enumerate(saved.facts["members"]):
                family, ranker = plans[number % len(plans)]
                if facts["family"] != family:
                    raise ValueError(f"member {number} of the family {facts['family']!r}")
                seen = saved.seen
                if family == TREES and model.is_widened:
                    seen = Seen(seen.n_features * 3, None, seen.has_queries, seen.has_missing, seen.longest_query)
                part = saved.inside(f"member{number}", facts["fitted"])._replace(seen=seen)
                inner = ranker.restore_model(part)
                place = family, int(facts["part"]), dict(facts["best"])
                model.members.append(Member(*place, inner, float(facts["center"]), float(facts["scale"])))
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(expected="the members of a blend", got="a damaged description") from None
        return model


def _plans(settings: Mapping[str, Any]) -> Iterator[tuple[str, Ranker]]:
    """The members of one turn, not fitted."""
    common = {name: settings[name] for name in ("select_by", "rule", "n_jobs")}
    for config in CONFIGS[: settings["n_configs"]]:
        ranker = LambdaMART if settings["trees"] == "lambdamart" else UMart
        yield TREES, ranker(n_trees=settings["n_trees"], **config, **common)
    for _, transform in product(range(settings["n_seeds"]), _TRANSFORMS):
        yield NETWORKS, URank(max_epochs=settings["max_epochs"], feature_transform=transform, **common)


def _joined(outer: str, inner: str) -> str:
    return f"{outer}.{inner}" if outer else inner


def _widened(fold: Fold, is_widened: bool, n_jobs: int | None) -> Fold:
    if not is_widened:
        return fold
    train, valid = fold
    return add_query_copies(train, n_jobs), None if valid is None else add_query_copies(valid, n_jobs)


def _fit_member(ranker: Ranker, fold: Fold, context: FitContext, kept: _Members | None, number: int) -> FittedModel:
    model = None if kept is None else kept.read(number, ranker)
    if model is None:
        folder = None if kept is None else kept.half(number)
        inner = replace(context.for_features_of(fold[0]), checkpoint=folder, progress=False)
        model = ranker.fit_model(*fold, inner)
        if kept is not None:
            if context.is_stopped:  # before the member: a run that is killed in between finds the mark
                kept.stop(number)
            kept.write(number, fitted_copy(ranker, model, inner.seen))
    return model


class _Members(Checkpoint):
    """The members that are finished, and how far the current one has come: each in a folder of its own."""

    def __init__(
        self, folder: Path, settings: dict[str, Any], train: RankingDataset, valid: RankingDataset | None
    ) -> None:
        contents = [None if data is None else canonical_rows(data, settings["n_jobs"])[2] for data in (train, valid)]
        super().__init__(folder, settings, contents)
        self.begin()

    @property
    def last(self) -> int | None:
        """The number of the member in which a callback stopped training, if one did."""
        file = self.folder / _STOPPED
        with self.reading():
            return int(file.read_text(encoding="utf-8")) if file.exists() else None

    def stop(self, number: int) -> None:
        """Remember that a callback stopped training in this member."""
        with replacing(self.folder / _STOPPED) as fresh:
            fresh.write_text(str(number), encoding="utf-8")

    def half(self, number: int) -> Path:
        """The checkpoint of a member that is not finished."""
        return self.folder / f"member{number}.checkpoint"

    def read(self, number: int, ranker: Ranker) -> FittedModel | None:
        """A finished member."""
        folder = self.folder / f"member{number}"
        if not folder.is_dir():
            return None
        return read_ranker(folder, Known(rankers={class_name(type(ranker)): type(ranker)})).model_

    def write(self, number: int, ranker: Ranker) -> None:
        """Keep a finished member."""
        ranker.save(self.folder / f"member{number}")
