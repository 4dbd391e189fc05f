"""A training run of trees: the data as LightGBM has them, rounds in stretches, the judge, and where it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.errors import ParameterError
from tierank.inputs import chunks, rows_in
from tierank.kernels import n_threads
from tierank.metrics import Judge
from tierank.objectives import Objective
from tierank.progress import Progress
from tierank.rankers.base import Job, Selection, means_of
from tierank.rankers.checkpoint import Checkpoint
from tierank.rankers.order import canonical_rows, join_contents
from tierank.rankers.tree_network import Rows, bin_rows
from tierank.rankers.tree_settings import MOST
from tierank.rankers.tree_text import check_trees
from tierank.team import Team

Floats = NDArray[np.float64]

# LightGBM keeps the state of its random numbers to itself. So rounds come in stretches, each a booster of its own that
# starts from the scores so far with seeds of its own: a run that is resumed after any stretch is the same run.
_STRETCH = 50
# Bytes of features that are scored in one go.
_SCORED = 1 << 27


@dataclass
class State:
    """Where a run stands after a stretch: all that the next stretch needs."""

    texts: list[str] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)
    best: tuple[float, ...] | None = None
    best_round: int = 0
    finished: bool = False
    scores: Floats | None = None
    valid_scores: Floats | None = None


class Data:
    """Training and validation data as LightGBM has them, and what identifies them."""

    def __init__(
        self,
        train: lightgbm.Dataset,
        valid: lightgbm.Dataset | None,
        rows: tuple[Rows, Rows | None],
        gradients: Callable[[Floats, lightgbm.Dataset], tuple[Any, Any]],
        contents: list[str | None],
    ) -> None:
        self.train, self.valid, self.rows, self.gradients, self.contents = train, valid, rows, gradients, contents

    @classmethod
    def prepare(
        cls,
        train: RankingDataset,
        valid: RankingDataset | None,
        objective: Objective,
        params: dict[str, Any],
        settings: dict[str, Any],
        team: Team,
    ) -> Data:
        """Bin both, and make the objective ready."""
        order, offsets, content = canonical_rows(train, settings["n_jobs"])
        ratings, weight = train.ratings[order], _row_weights(train)
        rows = Rows(train.features, order)
        own = bin_rows(rows, team, params)
        own.set_label(ratings).set_group(np.diff(offsets))
        if weight is not None:
            own.set_weight(weight[order])
        objective.prepare(ratings, offsets, None if weight is None else weight[order])
        contents: list[str | None] = [join_contents(team.all_gather(content)), None]
        if valid is None:
            return cls(own, None, (rows, None), objective, contents)
        valid_rows = Rows(valid.features, np.arange(valid.n_documents))
        held_out = lightgbm.Dataset(valid_rows, label=valid.ratings, reference=own, params=params).construct()
        contents[1] = join_contents(team.all_gather(canonical_rows(valid, settings["n_jobs"])[2]))
        return cls(own, held_out, (rows, valid_rows), objective, contents)


class Run:
    """One training run: the data, the judge, and where the run stands."""

    def __init__(
        self,
        data: Data,
        judge: Judge | None,
        params: dict[str, Any],
        settings: dict[str, Any],
        job: Job,
        starts: tuple[Floats, Floats | None] | None,
    ) -> None:
        self.train, self.valid, self.judge = data.train, data.valid, judge
        self.gradients: Callable[..., tuple[Any, Any]] | None = data.gradients
        self.params = params | {"objective": "none"}
        self.settings, self.job, self.checkpoint = settings, job, None
        found = None
        if job.checkpoint is not None:
            self.checkpoint = TreeCheckpoint(job.checkpoint, settings, data, job.team)
            found = self.checkpoint.read()
        self.state = found or State()
        if found is None and starts is not None:
            self.state.scores, self.state.valid_scores = starts[0][data.rows[0].order], starts[1]
        elif self.state.texts and self.state.scores is None:
            self._score_again(data)

    def _score_again(self, data: Data) -> None:
        """The scores of the trees so far, where the checkpoint holds none: to the bits that training had."""
        booster = lightgbm.Booster(model_str=join_texts(self.state.texts))
        found = [
            None if rows is None else predicted(booster, rows.features, self.settings["n_jobs"])[rows.order]
            for rows in data.rows
        ]
        self.state.scores, self.state.valid_scores = found

    def boost(self) -> None:
        """Run to the end, stretch by stretch."""
        n_trees = self.settings["n_trees"]
        with Progress("training", n_trees, show=self.job.progress, done=len(self.state.history)) as shown:
            while not self.state.finished:
                self._stretch(min(_STRETCH, n_trees - len(self.state.history)), shown)
                if self.checkpoint is not None:
                    self.checkpoint.write(self.state)

    def _stretch(self, n_rounds: int, shown: Progress) -> None:
        state = self.state
        booster = self._start_booster(len(state.texts))
        selection = Selection(best=state.best)
        for _ in range(n_rounds):
            exhausted = booster.update(fobj=self.gradients) if self.gradients else booster.update()
            row = self._judged(booster)
            state.history.append(row)
            values = list(row.values())
            if values and selection.is_better(values):
                state.best, state.best_round = tuple(values), len(state.history)
            shown.step(" ".join(f"{name} {value:.4f}" for name, value in row.items()))
            patient = not values or len(state.history) - state.best_round < self.settings["patience"]
            if exhausted or not patient or len(state.history) == self.settings["n_trees"]:
                state.finished = True
                break
        state.texts.append(booster.model_to_string(num_iteration=-1))
        if not state.finished:
            state.scores = _scores_of(booster.eval_train)
            state.valid_scores = _scores_of(booster.eval_valid) if self.valid is not None else None

    def _start_booster(self, stretch: int) -> lightgbm.Booster:
        """A booster that goes on from the scores so far, with random numbers of its own."""
        seeds = {name: (value + stretch) % (MOST + 1) for name, value in self.params.items() if name.endswith("seed")}
        if self.state.scores is not None:
            self.train.set_init_score(self.state.scores)
        params = self.params | seeds
        if not any(self.train.feature_num_bin(feature) > 1 for feature in range(self.train.num_feature())):
            # No feature tells documents apart. LightGBM can say so, by a tree of one leaf, for its own objectives only.
            self.gradients = None
            params |= {"objective": "regression", "boost_from_average": False}
        booster = lightgbm.Booster(params, self.train)
        if self.valid is not None:
            if self.state.valid_scores is not None:
                self.valid.set_init_score(self.state.valid_scores)
            booster.add_valid(self.valid, "valid")
        return booster

    def _judged(self, booster: lightgbm.Booster) -> dict[str, float]:
        if self.judge is None:
            return {}
        return means_of(self.judge(_scores_of(booster.eval_valid)), self.job.team)


def check_goss(params: dict[str, Any], settings: dict[str, Any]) -> None:
    """An error where no tree would be grown on a sample: goss leaves out the first rounds of each stretch."""
    waits, n_rounds = int(1 / settings["learning_rate"]), min(_STRETCH, settings["n_trees"])
    if params.get("data_sample_strategy") == "goss" and waits >= n_rounds:
        raise ParameterError(
            f"data_sample_strategy: goss begins after 1 / learning_rate rounds of each {_STRETCH}: expected fewer than"
            f" {n_rounds}, got {waits}; raise learning_rate{' or n_trees' if n_rounds < _STRETCH else ''}"
        )


class TreeCheckpoint(Checkpoint):
    """Where a run of trees stands after a stretch."""

    def __init__(self, folder: Path, settings: dict[str, Any], data: Data, team: Team) -> None:
        super().__init__(folder, settings, [*data.contents, lightgbm.__version__], team)
        self.n_features = data.rows[0].features.shape[1]

    def write(self, state: State) -> None:
        """Replace what the folder holds, whole or not at all."""
        if not self.team.is_first:
            return
        scores = {"scores": state.scores, "valid_scores": state.valid_scores}
        with self.renewing() as fresh:
            described = {name: value for name, value in vars(state).items() if name not in scores}
            (fresh / "state.json").write_text(json.dumps(described), encoding="utf-8")
            for name, values in scores.items():
                if values is not None and self.team.size == 1:  # of a team each process has its own
                    np.save(fresh / f"{name}.npy", values, allow_pickle=False)

    def read(self) -> State | None:
        """Where the run stood, or None where the folder is new."""
        with self.reading():
            text = self.content("state.json")
            if text is None:
                return None
            described = json.loads(text)
            for trees in described["texts"]:
                check_trees(trees, self.n_features)
            best = described.pop("best")
            found = State(**described, best=None if best is None else tuple(best))
            found.scores, found.valid_scores = self._scores("scores"), self._scores("valid_scores")
            return found

    def _scores(self, name: str) -> Floats | None:
        file = self.folder / f"{name}.npy"
        is_kept = self.team.size == 1 and file.exists()
        return np.asarray(np.load(file, allow_pickle=False), np.float64) if is_kept else None


def predicted(booster: lightgbm.Booster, features: NDArray[np.float32], n_jobs: int | None) -> Floats:
    """The score of each row, a good number of rows at a time."""
    threads = n_threads(n_jobs)
    parts = chunks(features, rows_in(features, _SCORED))
    return np.concatenate(
        [booster.predict(rows, raw_score=True, num_threads=threads) for rows in parts], dtype=np.float64
    )


def _row_weights(data: RankingDataset) -> Floats | None:
    """The weight of each row: its own times that of its query."""
    if data.row_weight is None and data.query_weight is None:
        return None
    weight = np.ones(data.n_documents) if data.row_weight is None else data.row_weight
    return weight if data.query_weight is None else weight * np.repeat(data.query_weight, data.lengths)


def _scores_of(evaluate: Callable[..., Any]) -> Floats:
    """The scores that LightGBM hands to a metric: the only open way to them."""
    kept: list[Floats] = []

    def keep(scores: Floats, _: lightgbm.Dataset) -> tuple[str, float, bool]:
        kept.append(np.array(scores))
        return "none", 0.0, True

    evaluate(feval=keep)
    return kept[0]


_TREE = re.compile(r"^Tree=\d+\n", re.MULTILINE)


def join_texts(texts: list[str]) -> str:
    """One model of the trees of several, in LightGBM's text form."""
    if len(texts) == 1:
        return texts[0]
    trees = []
    for text in texts:
        body = text[: text.index("end of trees")]
        trees += _TREE.split(body)[1:]
    head = re.sub(r"^tree_sizes=.*\n", "", _TREE.split(texts[0])[0], flags=re.MULTILINE)
    numbered = "".join(f"Tree={i}\n{tree}" for i, tree in enumerate(trees))
    return head + numbered + texts[-1][texts[-1].index("end of trees") :]


def cut_text(text: str, n_rounds: int) -> str:
    """The first trees of a model, in the form in which LightGBM itself writes it."""
    return lightgbm.Booster(model_str=text).model_to_string(num_iteration=n_rounds)
