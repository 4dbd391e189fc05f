"""Boosted trees: training in stretches of rounds, and exact resume.

``train_trees`` bins the data (``BinnedData``), grows the trees (``TreeTrainer``) and returns a ``TreeModel``.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats, chunks
from tierank.data.columns import MAX_LEVELS
from tierank.data.dataset import RankingDataset
from tierank.data.team import Team
from tierank.display import Progress
from tierank.errors import DataError, ParameterError
from tierank.losses.objective import Gradients, Objective
from tierank.rankers.checkpoint import Checkpoint
from tierank.rankers.lightgbm import (
    Rows,
    add_trees,
    bin_rows,
    check_is_global,
    check_trees,
    connected,
    count_trees,
    cut_text,
    join_texts,
    predicted,
    training_threads,
    with_names,
)
from tierank.rankers.model import FitContext, FittedModel, Resources
from tierank.rankers.order import canonical_rows, join_contents, judged_rows
from tierank.rankers.selection import Judging, Selection, compared_by, make_judge, means_of
from tierank.rankers.team_checks import agreement
from tierank.rankers.tree_model import TreeModel
from tierank.rankers.tree_settings import (
    STRETCH,
    contents_of_files,
    for_data,
    for_size,
    lightgbm_parameters,
    threads_for,
)
from tierank.transforms import add_query_copies

# With these LightGBM draws random numbers or remembers splits; without them one booster is equivalent to several.
_REMEMBERED = (
    "bagging_freq", "data_sample_strategy", "feature_fraction", "feature_fraction_bynode", "extra_trees",
    "stochastic_rounding", "cegb_penalty_feature_lazy", "cegb_penalty_feature_coupled",
)  # fmt: skip
# One more than the largest seed that LightGBM accepts.
_SEEDS = 2**31


def train_trees(
    objective: Objective,
    train: RankingDataset,
    valid: RankingDataset | None,
    context: FitContext,
    base: FittedModel | None,
) -> TreeModel:
    """Grow trees. ``train`` and ``valid`` are the parts of this process; trees add to ``base``, if given."""
    settings = context.settings
    params = lightgbm_parameters(settings)
    contents_of_files(params)
    team, n_jobs, query_features = context.team, settings["n_jobs"], settings["query_features"]
    if team.size > 1 and train.position is not None and train.propensity is None:
        raise ParameterError(
            argument="position",
            expected="`propensity` too if several processes train, as each would learn other propensities",
            got="positions alone",
        )
    metrics = compared_by(settings["select_by"], settings["select_with"])
    judge = None if valid is None else make_judge(valid, metrics, settings["rule"], n_jobs, team)
    start = context.start if isinstance(context.start, TreeModel) else None
    before = start or base
    starts: list[Floats | None] = [
        None if before is None or data is None else before.predict(data, Resources(n_jobs)) for data in (train, valid)
    ]
    params = for_data(params, train, copies=3 if query_features else 1)
    if numbers := params.get("categorical_feature"):
        with agreement(team):
            _check_categories(train, numbers)
    if query_features:
        if not context.seen.has_queries:
            raise DataError(argument="query_features", expected="query ids in fit", got="none")
        train = add_query_copies(train, n_jobs)
        valid = None if valid is None else add_query_copies(valid, n_jobs)
    n_documents, n_features = train.features.shape
    with training_threads(threads_for(n_jobs, n_documents, n_features)) as threads:
        params |= for_size(params, n_documents, n_features) | {"num_threads": threads}
        try:
            data = BinnedData(train, valid, objective, params, n_jobs, team)
            with connected(team, params) as params_of_team:
                trainer = TreeTrainer(data, judge, objective, params_of_team, context, starts)
                trainer.boost()
        except lightgbm.basic.LightGBMError as error:
            what = " ".join(str(error).split()).split(" at /")[0]
            expected = "settings and data that it does not refuse"
            raise ParameterError(where="LightGBM", expected=expected, got=what) from None
    state = trainer.state
    n_judged = n_documents - train.n_unjudged
    this = {"rank": team.rank, "host": team.host, "pid": os.getpid(), "queries": train.n_queries, "documents": n_judged}
    processes = team.all_gather(this)
    is_sampled = params.get("bagging_freq") or params.get("data_sample_strategy", "bagging") != "bagging"
    if team.size > 1 and not is_sampled:
        check_is_global(state.texts[0], sum(process["documents"] for process in processes))
    n_rounds = len(state.history) if judge is None or settings["keep"] == "all" else state.best_round
    earlier = [] if start is None else [start.text]
    n_before = sum(map(count_trees, earlier))
    names = train.feature_names or (None if start is None else start.booster.feature_name())
    text = cut_text(with_names(join_texts([*earlier, *state.texts]), names), n_before + n_rounds)
    return TreeModel(
        text, state.history, n_rounds, context.seen, query_features, base, processes, n_before, state.objective
    )


def _check_categories(train: RankingDataset, numbers: list[int]) -> None:
    """Refuse categories so high that float32 cannot tell them apart: LightGBM would mix them up without a word."""
    highest_of_each = np.fmax.reduce([np.fmax.reduce(rows[:, numbers], axis=0) for rows in chunks(train.features)])
    for number, highest in zip(numbers, highest_of_each.tolist(), strict=True):
        if highest >= MAX_LEVELS:
            name = number if train.feature_names is None else train.feature_names[number]
            raise DataError(
                argument="categorical_feature",
                expected=f"categories below {MAX_LEVELS:,}, which float32 tells apart",
                got=f"{highest:g} in feature {name!r}",
                fix="number them from 0, or give them as texts",
            )


class BinnedData:
    """Training and validation data as LightGBM data sets.

    Attributes
    ----------
    train, valid : lightgbm.Dataset
        The bins; ``valid`` is None without validation data.
    rows : list of Rows or None
        The rows of both in the order of their data set.
    contents : list of str or None
        Digests of both, over all processes of a team.
    """

    def __init__(
        self,
        train: RankingDataset,
        valid: RankingDataset | None,
        objective: Objective,
        params: dict[str, Any],
        n_jobs: int | None,
        team: Team,
    ) -> None:
        """Bin both, and prepare the objective for the training data in the same order."""
        whole = canonical_rows(train, n_jobs)
        order, offsets = judged_rows(train, whole.rows, whole.offsets)
        weight = None
        if train.row_weight is not None or train.query_weight is not None:
            weight = np.ones(len(order)) if train.row_weight is None else train.row_weight[order]
            if train.query_weight is not None:
                weight = weight * np.repeat(train.query_weight, train.lengths)[order]
        of_rows = {"position": train.position, "propensity": train.propensity}
        shown = {name: values[order] for name, values in of_rows.items() if values is not None}
        ratings, rows = train.ratings[order], Rows(train.features, order)
        self.train: lightgbm.Dataset = bin_rows(rows, team, params)
        self.train.set_label(ratings).set_group(np.diff(offsets))
        if weight is not None:
            self.train.set_weight(weight)
        objective.prepare(ratings, offsets, weight, **shown)
        self.valid: lightgbm.Dataset | None = None
        self.rows: list[Rows | None] = [rows, None]
        self.contents: list[str | None] = [join_contents(team.all_gather(whole.content)), None]
        if valid is not None:
            rows = Rows(valid.features, np.arange(valid.n_documents))
            labels = np.nan_to_num(valid.ratings)  # not used: our judge evaluates
            with (
                warnings.catch_warnings()
            ):  # it has the categories of the training data, and warns that it ignores them
                warnings.filterwarnings("ignore", "categorical_feature keyword has been found")
                self.valid = lightgbm.Dataset(rows, label=labels, reference=self.train, params=params).construct()
            self.rows[1] = rows
            self.contents[1] = join_contents(team.all_gather(canonical_rows(valid, n_jobs).content))


@dataclass
class TrainerState:
    """The state of a run after a stretch. The scores so far follow from the trees."""

    texts: list[str] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)
    compared: list[tuple[float, ...]] = field(default_factory=list)  # what rounds are compared by, for each
    best: tuple[float, ...] | None = None
    best_round: int = 0
    finished: bool = False
    stopped: bool = False  # by a callback
    objective: dict[str, list[float]] = field(default_factory=dict)  # what the objective has learned


class TreeTrainer:
    """One training run. ``starts`` are the scores that the trees add to, for training and validation data, if any."""

    def __init__(
        self,
        data: BinnedData,
        judge: Judging | None,
        objective: Objective,
        params: dict[str, Any],
        context: FitContext,
        starts: list[Floats | None],
    ) -> None:
        self.train, self.valid, self.judge, self.objective = data.train, data.valid, judge, objective
        self.params = params | {"objective": "none"}
        # Whether some feature distinguishes documents.
        self.has_splits = any(self.train.feature_num_bin(k) > 1 for k in range(self.train.num_feature()))
        self.is_in_stretches = any(params.get(name) for name in _REMEMBERED)
        self.settings, self.context, self.checkpoint = context.settings, context, None
        self.state = TrainerState()
        if context.checkpoint is not None:
            self.checkpoint = TreeCheckpoint(context, data, params)
            self.state = self.checkpoint.read() or self.state
        self.objective.load_state(self.state.objective)
        context.callbacks.stopped |= self.state.stopped
        self.scores, self.valid_scores = (
            None if rows is None else self._scores_so_far(rows, start)
            for rows, start in zip(data.rows, starts, strict=True)
        )
        self._booster: lightgbm.Booster | None = None

    def _scores_so_far(self, rows: Rows, start: Floats | None) -> Floats | None:
        """The scores that the next tree adds to, bit-identical to those in training; None before the first tree."""
        scores = None if start is None else start[rows.order]
        if self.state.finished or not self.state.texts:
            return scores
        booster, n_jobs = lightgbm.Booster(model_str=join_texts(self.state.texts)), self.settings["n_jobs"]
        if scores is None:
            return predicted(booster, rows, n_jobs)
        add_trees(booster, rows, scores, n_jobs)
        return scores

    def boost(self) -> None:
        """Train to the end, stretch by stretch."""
        n_trees = self.settings["n_trees"]
        with Progress("training", n_trees, show=self.context.progress, done=len(self.state.history)) as shown:
            while not self.state.finished:
                self._stretch(min(STRETCH, n_trees - len(self.state.history)), shown)
                if self.checkpoint is not None:
                    self.checkpoint.write(self.state)

    def _stretch(self, n_rounds: int, shown: Progress) -> None:
        state, settings = self.state, self.settings
        booster = self._booster or self._start_booster()
        before = booster.current_iteration()
        selection = Selection(best=state.best)
        for _ in range(n_rounds):
            exhausted = booster.update(fobj=self._gradients) if self.has_splits else booster.update()
            row, values = self._judge_round(booster)
            n_done = len(state.history)
            if values and selection.is_better(values):
                state.best, state.best_round = values, n_done
            if self.context.progress:
                shown.step(" ".join(f"{name} {value:.4f}" for name, value in row.items()))
            is_best = not values or state.best_round == n_done
            state.stopped = self.context.step(n_done, settings["n_trees"], settings, row, is_best=is_best)
            patience = settings["patience"] if values and settings["keep"] == "best" else math.inf
            waited = n_done - state.best_round
            if exhausted or waited >= patience or state.stopped or n_done == settings["n_trees"]:
                state.finished = True
                break
        state.texts.append(booster.model_to_string(num_iteration=-1, start_iteration=before))
        state.objective = self.objective.state()
        self._booster = None if self.is_in_stretches else booster
        if not state.finished and self.is_in_stretches:
            self.scores = _scores_of(booster.eval_train)
            self.valid_scores = _scores_of(booster.eval_valid) if self.valid is not None else None

    def _judge_round(self, booster: lightgbm.Booster) -> tuple[dict[str, float], tuple[float, ...]]:
        """The metrics of the round, and what rounds are compared by: averaged over the last rounds, and with others."""
        row: dict[str, float] = {}
        if self.judge is not None:
            found = means_of(self.judge(_scores_of(booster.eval_valid)), self.context.team)
            row = dict(islice(found.items(), len(set(self.settings["select_by"]))))
            first, *others = row.values()
            companions = [value for name, value in found.items() if name not in row]
            self.state.compared.append((fmean([first, *companions]), *others))
        self.state.history.append(row)
        last = self.state.compared[-self.settings["select_over"] :]
        return row, tuple(fmean(values) for values in zip(*last, strict=True))

    def _gradients(self, scores: Floats, data: lightgbm.Dataset) -> Gradients:
        """The objective function that LightGBM calls each round."""
        gradient, hessian = self.objective(scores, data)
        return exact_in_sums(gradient), exact_in_sums(hessian)

    def _start_booster(self) -> lightgbm.Booster:
        """A booster that continues from the scores so far, with new random numbers."""
        n_stretches = len(self.state.texts) if self.is_in_stretches else 0
        params = {
            name: (value + n_stretches) % _SEEDS if name.endswith("seed") else value
            for name, value in self.params.items()
        }
        if not self.has_splits:  # LightGBM has trees of one leaf for that only with its own objectives
            params |= {"objective": "regression", "boost_from_average": False}
        if self.scores is not None:
            self.train.set_init_score(self.scores)
        booster = lightgbm.Booster(params, self.train)
        if self.valid is not None:
            if self.valid_scores is not None:
                self.valid.set_init_score(self.valid_scores)
            booster.add_valid(self.valid, "valid")
        return booster


def _scores_of(evaluate: Callable[..., Any]) -> Floats:
    """The scores that LightGBM passes to a metric: the only public way to get them."""
    kept: list[Floats] = []

    def keep(scores: Floats, _: lightgbm.Dataset) -> tuple[str, float, bool]:
        kept.append(np.array(scores))
        return "none", 0.0, True

    evaluate(feval=keep)
    return kept[0]


def exact_in_sums(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Gradients or hessians that LightGBM adds up to the same bits in any order.

    LightGBM adds float32 numbers in double precision: by document or by feature, in as many parts as there are
    threads, and it subtracts sums of leaves from those of their parents. All of that is exact for multiples of one
    step, so trees depend neither on the number of threads nor on which way of adding LightGBM finds faster.

    All n values are rounded to multiples of a step, a power of two: n times the largest is below 2^52 steps. Sums of
    any of them are then multiples of the step below 2^52 steps, and float64 holds each of them exactly. For a million
    values the step is 2^-32 of the largest: values above 2^-8 of the largest, which are float32 numbers of 24 bits, do
    not change at all. If a value is not finite, nothing is rounded.
    """
    values = np.asarray(values, np.float32)
    largest = float(max(values.max(initial=0), -values.min(initial=0)))
    shift = 0.0
    if 0 < largest < np.inf:
        # Adding this number leaves no digits below the step: values are rounded to a step, to the even one if halfway.
        shift = math.ldexp(1.5, math.frexp(largest)[1] + math.frexp(len(values))[1])
    steps = np.add(values, shift, dtype=np.float64)
    return np.subtract(steps, shift, out=steps).astype(np.float32)


class TreeCheckpoint(Checkpoint):
    """The checkpoint of a run of trees after a stretch."""

    def __init__(self, context: FitContext, data: BinnedData, params: Mapping[str, Any]) -> None:
        start = [] if context.start is None else [{"start": context.start.digest()}]
        made_of = [*data.contents, lightgbm.__version__, contents_of_files(params), *start]
        super().__init__(context, context.settings, made_of)
        self.n_features = data.train.num_feature()

    def write(self, state: TrainerState) -> None:
        """Replace the checkpoint atomically."""
        if self.team.is_first:
            with self.renewing() as fresh:
                (fresh / "state.json").write_text(json.dumps(vars(state)), encoding="utf-8")

    def read(self) -> TrainerState | None:
        """The state of the run, or None if the folder is new."""
        with self.reading():
            text = self.content("state.json")
            if text is None:
                return None
            state = TrainerState(**json.loads(text))
            for trees in state.texts:
                check_trees(trees, self.n_features)
            return state


# Ratings of documents from documents with similar features in other queries, for judgements from clicks

# Small trees: they predict means, not an order.
N_ROUNDS, LEARNING_RATE, _N_LEAVES, _MIN_DOCUMENTS = 60, 0.1, 8, 20
# A document is never used for its own prediction.
N_PARTS = 5


def expect_ratings(data: RankingDataset, falling: Floats, n_jobs: int | None = None) -> Floats:
    """Predict the rating of each document from similar documents of other queries.

    The queries are cut into 5 parts. For each part, 60 trees of 8 leaves are fitted to the other parts by least
    squares: they minimise the sum of w (rating - prediction)^2, with the row weights w. If no split helps, the
    prediction is the weighted mean of the other parts.

    Parameters
    ----------
    data : RankingDataset
        Documents with ratings and row weights; unjudged documents are not learned from.
    falling : array of float64, shape (n_documents,)
        Another feature; the prediction never rises with it.
    n_jobs : int, optional
        Number of threads. Default: all.

    Returns
    -------
    array of float64, shape (n_documents,)
        One prediction per document. The same bits for any number of threads and any order of rows.
    """
    column = falling.astype(np.float32)
    weights = np.ones(data.n_documents) if data.row_weight is None else data.row_weight
    # Documents, and queries, that differ in the other feature alone have an order too.
    canonical = canonical_rows(data.replace(position=falling + 0.0), n_jobs, rated=False)
    part_of_query = np.empty(data.n_queries, np.int64)
    part_of_query[canonical.queries] = np.arange(data.n_queries) % N_PARTS
    part = part_of_query[data.query_of_row][canonical.rows]
    counts = (data.is_judged & (weights > 0))[canonical.rows]
    expected = np.zeros(data.n_documents)
    with training_threads(threads_for(n_jobs, data.n_documents, data.n_features)) as threads:
        params = _parameters(data, threads)
        for one in np.unique(part):
            # A single query has no other parts.
            is_learned_from = counts & (part != one) if data.n_queries > 1 else counts
            learned_from, asked = canonical.rows[is_learned_from], canonical.rows[part == one]
            if len(learned_from):
                train = bin_rows(Rows(data.features, learned_from, column), Team(), params)
                booster, mean = _fitted(train, data.ratings[learned_from], weights[learned_from], params)
                expected[asked] = mean + predicted(booster, Rows(data.features, asked, column), threads)
    return expected


def _parameters(data: RankingDataset, n_threads: int) -> dict[str, Any]:
    params = {
        "deterministic": True,
        "feature_pre_filter": False,
        "learning_rate": LEARNING_RATE,
        "num_leaves": _N_LEAVES,
        "min_data_in_leaf": _MIN_DOCUMENTS,
        "num_threads": n_threads,
        "verbosity": -1,
    }
    return for_data(params, data) | {"monotone_constraints": [0] * data.n_features + [-1]}


def _fitted(
    train: lightgbm.Dataset, ratings: Floats, weights: Floats, params: dict[str, Any]
) -> tuple[lightgbm.Booster, float]:
    """Trees fitted to the difference of the ratings from their weighted mean, and the mean."""
    mean = math.fsum(weights * ratings) / math.fsum(weights)
    hessian = exact_in_sums(weights.astype(np.float32))

    def squares(scores: Any, _: Any) -> tuple[Any, Any]:
        return exact_in_sums((weights * (mean + scores - ratings)).astype(np.float32)), hessian

    train.set_label(np.zeros(len(ratings), np.float32))  # LightGBM needs labels, but the objective does not use them
    return lightgbm.train({**params, "objective": squares}, train, N_ROUNDS), mean
