"""Boosted trees: training in stretches of rounds, exact resume, and the fitted model."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.export import NAN, NONE, ZERO, QueryCopies, Scorer, Sum, Trees
from tierank.kernels import n_threads
from tierank.kinds import MAX_LEVELS, Category
from tierank.memory import chunks
from tierank.objectives import Objective
from tierank.objectives.objective import Gradients
from tierank.progress import Progress
from tierank.scoring import TreeScorer
from tierank.team import Team
from tierank.training.agreement import agreement
from tierank.training.checkpoint import Checkpoint
from tierank.training.lightgbm_adapter import (
    Rows,
    add_trees,
    bin_rows,
    check_is_global,
    connected,
    exact_in_sums,
    predicted,
    training_threads,
)
from tierank.training.model import FitContext, FittedModel, Resources, SavedModel, Seen, as_history
from tierank.training.order import canonical_rows, join_contents, judged_rows
from tierank.training.selection import Judging, Selection, make_judge, means_of
from tierank.training.tree_parameters import contents_of_files, for_features, for_size, threads_for
from tierank.training.tree_text import check_trees, has_linear_leaves, head_fields, read_trees
from tierank.transforms import add_query_copies
from tierank.types import Floats
from tierank.types import Rows as RowNumbers

# LightGBM does not expose the state of its random numbers. So rounds are grown in stretches, each by a new booster that
# starts from the scores so far with new seeds: a run that is resumed after any stretch gives the same model.
_STRETCH = 50
# With these LightGBM draws random numbers or remembers splits; without them one booster is equivalent to several.
_REMEMBERED = (
    "bagging_freq",
    "data_sample_strategy",
    "feature_fraction",
    "feature_fraction_bynode",
    "extra_trees",
    "stochastic_rounding",
    "cegb_penalty_feature_lazy",
    "cegb_penalty_feature_coupled",
)
# The largest seed that LightGBM accepts.
_LARGEST_SEED = 2**31 - 1
# Parameters that say how categories are split.
_OF_CATEGORIES = ("min_data_per_group", "max_cat_threshold", "cat_l2", "cat_smooth", "max_cat_to_onehot")


class TreeModel(FittedModel):
    """Fitted trees, in LightGBM's text form.

    Attributes
    ----------
    text : str
        The trees as LightGBM writes them.
    n_rounds : int
        Number of trees that were kept, of those grown in this training.
    n_before : int
        Number of trees before them: those of the model that training continued from.
    base : FittedModel or None
        The model that the trees add to.
    processes : list of dict
        The processes that took part in training.
    propensities : dict of str to list of float
        The learned propensities of positions; empty if no positions were given.
    """

    def __init__(
        self,
        text: str,
        history: list[dict[str, Any]],
        n_rounds: int,
        seen: Seen,
        query_features: bool,
        base: FittedModel | None = None,
        processes: list[dict[str, Any]] | None = None,
        n_before: int = 0,
        propensities: dict[str, list[float]] | None = None,
    ) -> None:
        self.text, self.history, self.n_rounds, self.seen = text, history, n_rounds, seen
        self.query_features, self.base, self.processes = query_features, base, processes or []
        self.n_before, self.propensities = n_before, propensities or {}
        self.best = history[n_rounds - 1] if n_rounds else {}
        self._loaded: lightgbm.Booster | None = None
        self._scorer: TreeScorer | lightgbm.Booster | None = None

    @classmethod
    def restore(cls, saved: SavedModel, query_features: bool, base: FittedModel | None) -> TreeModel:
        """Restore a saved model; the text is checked before LightGBM reads it."""
        try:
            n_rounds, history = int(saved.facts["n_rounds"]), as_history(saved.facts["history"])
            text, n_before = saved.files["trees.txt"].decode(), int(saved.facts.get("n_before", 0))
            model = cls(text, history, n_rounds, saved.seen, query_features, base, n_before=n_before)
            learned = saved.facts.get("propensities", {})
            model.propensities = {name: [float(one) for one in values] for name, values in learned.items()}
        except (AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError):
            raise DataError(expected="trees and their history", got="a damaged description") from None
        check_trees(model.text, saved.seen.n_features * (3 if query_features else 1))
        return model

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_loaded": None, "_scorer": None}

    @property
    def booster(self) -> lightgbm.Booster:
        """The trees as a LightGBM booster, loaded once."""
        if self._loaded is None:
            try:
                self._loaded = lightgbm.Booster(model_str=self.text)
            except (lightgbm.basic.LightGBMError, ValueError) as error:
                raise DataError(f"trees.txt: LightGBM cannot read these trees: {error}") from None
        return self._loaded

    @property
    def scorer(self) -> TreeScorer | lightgbm.Booster:
        """The scorer, created once: compiled trees, or LightGBM's model for trees that only LightGBM can score."""
        if self._scorer is None:
            trees = read_trees(self.text)
            self._scorer = (None if trees is None else TreeScorer.of(trees)) or self.booster
        return self._scorer

    @property
    def needs_list(self) -> bool:
        """Whether trees use features relative to the query, or the base scores whole lists."""
        return self.query_features or (self.base is not None and self.base.needs_list)

    def predict(self, data: RankingDataset, resources: Resources) -> Floats:
        """The sum of the leaves, and the scores of the base."""
        features = self._widened(data, resources).features
        scorer = self.scorer
        if isinstance(scorer, TreeScorer):
            scores = scorer.predict(features, resources.n_jobs)
        else:
            scores = predicted(scorer, features, resources.n_jobs)
        return scores if self.base is None else self.base.predict(data, resources) + scores

    def contributions(self, data: RankingDataset, above: RowNumbers, below: RowNumbers, resources: Resources) -> Floats:
        """Differences of TreeSHAP values, computed for the documents of the pairs only. Linear leaves have none."""
        if has_linear_leaves(self.text):
            raise ParameterError(argument="linear_tree", expected="False, to explain scores", got="True")
        rows, places = np.unique([above, below], return_inverse=True)
        features = self._widened(data, resources).features[rows]
        shap = self.booster.predict(features, pred_contrib=True, num_threads=n_threads(resources.n_jobs))
        # The last column is the same constant for all documents.
        values = self.of_features(np.asarray(shap, np.float64)[:, :-1])
        first, second = places.reshape(2, -1)
        differences = np.asarray(values[first] - values[second], np.float64)
        return (
            differences if self.base is None else differences + self.base.contributions(data, above, below, resources)
        )

    def used_features(self, n_features: int) -> NDArray[np.bool_]:
        """The features that some split uses."""
        used = self.importance("split") > 0
        return used if self.base is None else used | self.base.used_features(n_features)

    def importance(self, kind: str) -> Floats:
        """The total gain of the splits of each feature, or their number."""
        return self.of_features(np.asarray(self.booster.feature_importance(kind), np.float64))

    def of_features(self, values: Floats) -> Floats:
        """Values of the columns of the trees, summed over each feature and its copies along the last axis."""
        copies = values.shape[-1] // self.seen.n_features
        return np.asarray(values.reshape(*values.shape[:-1], copies, self.seen.n_features).sum(axis=-2), np.float64)

    def portable(self) -> Scorer:
        """The trees, and the base before them."""
        # Not from LightGBM's JSON, which is invalid if a name has a backslash.
        read = read_trees(self.text)
        if read is None and has_linear_leaves(self.text):
            raise ParameterError("linear_tree: expected trees with constant leaves to export; train without it")
        if read is None:
            raise ParameterError(
                argument="categorical_feature", expected="lower numbers to export", fix="number categories from 0"
            )
        trees = widened_scorer(read, self.query_features)
        return trees if self.base is None else Sum(((1.0, self.base.portable()), (1.0, trees)))

    def files(self) -> dict[str, bytes]:
        """The text of the trees, and the files of the base."""
        of_base = {} if self.base is None else self.base.files()
        return {"trees.txt": self.text.encode()} | {f"base.{name}": content for name, content in of_base.items()}

    def facts(self) -> dict[str, Any]:
        """The history of training."""
        base = None if self.base is None else self.base.facts()
        more = {name: value for name in ("n_before", "propensities") if (value := getattr(self, name))}
        return {"n_rounds": self.n_rounds, "history": self.history, "base": base} | more

    def _widened(self, data: RankingDataset, resources: Resources) -> RankingDataset:
        return add_query_copies(data, resources.n_jobs) if self.query_features else data


def widened_scorer(trees: Trees, query_features: bool) -> Scorer:
    """The scorer of the trees, on their columns."""
    return QueryCopies(trees) if query_features else trees


def outline_trees(params: dict[str, Any], query_features: bool, seen: Seen) -> Scorer:
    """One split, on a feature with missing values if there is one, because trained trees may have such a split."""
    if params.get("linear_tree"):
        raise ParameterError(
            argument="for_target", expected="None with `linear_tree`, because no target has linear leaves"
        )
    if any(isinstance(kind, Category) for kind in seen.columns.kinds.values()) or params.get("categorical_feature"):
        members = np.array([[True]])
        stump = Trees.stump(0, 0.5, (0.0, 1.0))
        return widened_scorer(replace(stump, category=np.zeros(1, np.int64), members=members), query_features)
    missing = NONE
    if params.get("use_missing", True):
        missing = ZERO if params.get("zero_as_missing") else NAN if seen.has_missing else NONE
    return widened_scorer(Trees.stump(0, 0.5, (0.0, 1.0), missing, default_left=False), query_features)


def train_trees(
    settings: dict[str, Any],
    params: dict[str, Any],
    objective: Objective,
    data: tuple[RankingDataset, RankingDataset | None],
    context: FitContext,
    base: FittedModel | None,
) -> TreeModel:
    """Grow trees.

    ``params`` are LightGBM's; ``data`` are the parts of this process, for training and validation.
    """
    contents_of_files(params)
    check_goss(params, settings)
    train, valid = data
    team, query_features = context.team, settings["query_features"]
    _check_positions(train, team)
    judge = None
    if valid is not None:
        judge = make_judge(valid, settings["select_by"], settings["rule"], settings["n_jobs"], team)
    start = context.start if isinstance(context.start, TreeModel) else None
    starts = _starting_scores(base if start is None else start, data, settings)
    params = with_categories(params, train)
    params = params | for_features(params, train.n_features, train.feature_names, 3 if query_features else 1)
    with agreement(team):
        _check_categories(train, params.get("categorical_feature", ()))
    if start is not None:
        check_start_text(start.text, params)
    if query_features:
        train = _with_copies(train, context.seen, settings["n_jobs"])
        valid = None if valid is None else _with_copies(valid, context.seen, settings["n_jobs"])
    size = train.n_documents, train.n_features
    with training_threads(threads_for(settings["n_jobs"], *size)) as threads:
        params |= for_size(params, *size) | {"num_threads": threads}
        try:
            prepared = Data.prepare(train, valid, objective, params, settings, team)
            with connected(team, params) as of_team:
                run = Boosting(prepared, judge, of_team, settings, context, starts)
                run.boost()
        except lightgbm.basic.LightGBMError as error:
            what = " ".join(str(error).split()).split(" at /")[0]
            raise ParameterError(f"LightGBM refuses its settings or data: {what}") from None
    state, processes = run.state, _attendance(train, team)
    if team.size > 1 and not _is_sampled(params):
        check_is_global(state.texts[0], sum(process["documents"] for process in processes))
    n_rounds = len(state.history) if judge is None or settings["keep"] == "all" else state.best_round
    text, n_before = _kept_text(state.texts, n_rounds, train.feature_names, start)
    return TreeModel(
        text,
        state.history,
        n_rounds,
        context.seen,
        query_features,
        base=base,
        processes=processes,
        n_before=n_before,
        propensities=state.objective,
    )


def _check_positions(train: RankingDataset, team: Team) -> None:
    if team.size > 1 and train.position is not None and train.propensity is None:
        raise ParameterError(
            argument="position",
            expected="`propensity` too if several processes train, as each would learn other propensities",
            got="positions alone",
        )


def _starting_scores(
    first: FittedModel | None, data: tuple[RankingDataset, RankingDataset | None], settings: dict[str, Any]
) -> tuple[Floats, Floats | None] | None:
    """The scores that the trees add to, for training and validation data: those of the model before them, if any."""
    if first is None:
        return None
    (train, valid), resources = data, Resources(settings["n_jobs"])
    return first.predict(train, resources), None if valid is None else first.predict(valid, resources)


def _kept_text(
    texts: list[str], n_rounds: int, names: Sequence[str] | None, start: TreeModel | None
) -> tuple[str, int]:
    """The trees that are kept, as one text, after those that training continued from; and the number of the latter."""
    before = [] if start is None else [start.text]
    n_before = sum(count_trees(one) for one in before)
    names = names or (None if start is None else start.booster.feature_name())
    return cut_text(with_names(join_texts([*before, *texts]), names), n_before + n_rounds), n_before


def with_categories(params: Mapping[str, Any], train: RankingDataset) -> dict[str, Any]:
    """The parameters of LightGBM, and which features hold categories by the kinds of the data."""
    names = train.feature_names or ()
    found = [place for place, name in enumerate(names) if isinstance(train.kinds.get(name), Category)]
    if not found:
        odd = next((name for name in _OF_CATEGORIES if name in params), None)
        if odd is not None and "categorical_feature" not in params:
            raise ParameterError(
                argument=odd,
                expected="`categorical_feature` to be set too, or columns of texts",
                got="categorical_feature=None",
            )
        return dict(params)
    chosen = [names.index(one) if one in names else one for one in params.get("categorical_feature", ())]
    return {**params, "categorical_feature": sorted({*found, *chosen})}


def _check_categories(train: RankingDataset, numbers: Sequence[int]) -> None:
    """Refuse categories so high that float32 cannot tell them apart: LightGBM would mix them up without a word."""
    if not numbers:
        return
    columns = list(numbers)
    highest_of_each = np.fmax.reduce([np.fmax.reduce(rows[:, columns], axis=0) for rows in chunks(train.features)])
    for number, highest in zip(columns, highest_of_each.tolist(), strict=True):
        if highest >= MAX_LEVELS:
            name = number if train.feature_names is None else train.feature_names[number]
            raise DataError(
                argument="categorical_feature",
                expected=f"categories below {MAX_LEVELS:,}, which float32 tells apart",
                got=f"{highest:g} in feature {name!r}",
                fix="number them from 0, or give them as texts",
            )


def _with_copies(data: RankingDataset, seen: Seen, n_jobs: int | None) -> RankingDataset:
    if not seen.has_queries:
        raise DataError(argument="query_features", expected="query ids in fit", got="none")
    return add_query_copies(data, n_jobs)


def _attendance(train: RankingDataset, team: Team) -> list[dict[str, Any]]:
    """A row for each process that took part, with the size of its data."""
    this = {"rank": team.rank, "host": team.host, "pid": os.getpid()}
    return team.all_gather(this | {"queries": train.n_queries, "documents": train.n_documents - train.n_unjudged})


def _is_sampled(params: dict[str, Any]) -> bool:
    """Whether trees are grown on samples of the documents, so that their roots count fewer."""
    return bool(params.get("bagging_freq")) or params.get("data_sample_strategy", "bagging") != "bagging"


@dataclass
class BoostingState:
    """The state of a run after a stretch. The scores so far follow from the trees."""

    texts: list[str] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)
    best: tuple[float, ...] | None = None
    best_round: int = 0
    finished: bool = False
    stopped: bool = False  # by a callback
    objective: dict[str, list[float]] = field(default_factory=dict)  # what the objective has learned


class Data:
    """Training and validation data as LightGBM data sets, and their digests."""

    def __init__(
        self,
        train: lightgbm.Dataset,
        valid: lightgbm.Dataset | None,
        rows: tuple[Rows, Rows | None],
        objective: Objective,
        contents: list[str | None],
    ) -> None:
        self.train, self.valid, self.rows, self.objective, self.contents = train, valid, rows, objective, contents

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
        """Bin both, and prepare the objective."""
        whole = canonical_rows(train, settings["n_jobs"])
        order, offsets = judged_rows(train, whole.rows, whole.offsets)
        ratings, weight = train.ratings[order], _row_weights(train)
        rows = Rows(train.features, order)
        own = bin_rows(rows, team, params)
        own.set_label(ratings).set_group(np.diff(offsets))
        if weight is not None:
            own.set_weight(weight[order])
        of_rows = {"position": train.position, "propensity": train.propensity}
        shown = {name: values[order] for name, values in of_rows.items() if values is not None}
        objective.prepare(ratings, offsets, None if weight is None else weight[order], **shown)
        contents: list[str | None] = [join_contents(team.all_gather(whole.content)), None]
        if valid is None:
            return cls(own, None, (rows, None), objective, contents)
        valid_rows = Rows(valid.features, np.arange(valid.n_documents))
        with warnings.catch_warnings():  # it has the categories of the training data, and warns that it ignores them
            warnings.filterwarnings("ignore", "categorical_feature keyword has been found")
            labels = np.nan_to_num(valid.ratings)  # not used: our judge evaluates
            held_out = lightgbm.Dataset(valid_rows, label=labels, reference=own, params=params).construct()
        contents[1] = join_contents(team.all_gather(canonical_rows(valid, settings["n_jobs"]).content))
        return cls(own, held_out, (rows, valid_rows), objective, contents)


class Boosting:
    """One training run: the data, the judge, and the state."""

    def __init__(
        self,
        data: Data,
        judge: Judging | None,
        params: dict[str, Any],
        settings: dict[str, Any],
        context: FitContext,
        starts: tuple[Floats, Floats | None] | None,
    ) -> None:
        self.train, self.valid, self.judge = data.train, data.valid, judge
        self.objective, self.has_splits = data.objective, _has_splits(data.train)
        self.is_in_stretches = any(params.get(name) for name in _REMEMBERED)
        self._booster: lightgbm.Booster | None = None
        self.params = params | {"objective": "none"}
        self.settings, self.context, self.checkpoint = settings, context, None
        self.state = BoostingState()
        if context.checkpoint is not None:
            self.checkpoint = TreeCheckpoint(context, settings, data, params)
            self.state = self.checkpoint.read() or self.state
        self.objective.load_state(self.state.objective)
        context.callbacks.stopped |= self.state.stopped
        self.scores, self.valid_scores = (
            None if rows is None else self._scores_so_far(rows, start)
            for rows, start in zip(data.rows, starts or (None, None), strict=True)
        )

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
                self._stretch(min(_STRETCH, n_trees - len(self.state.history)), shown)
                if self.checkpoint is not None:
                    self.checkpoint.write(self.state)

    def _stretch(self, n_rounds: int, shown: Progress) -> None:
        state = self.state
        booster = self._booster or self._start_booster(len(state.texts) if self.is_in_stretches else 0)
        before = booster.current_iteration()
        selection = Selection(best=state.best)
        for _ in range(n_rounds):
            exhausted = booster.update(fobj=self._gradients) if self.has_splits else booster.update()
            row = self._judged(booster)
            state.history.append(row)
            values = self._compared()
            if values and selection.is_better(values):
                state.best, state.best_round = values, len(state.history)
            shown.step(" ".join(f"{name} {value:.4f}" for name, value in row.items()))
            n_done, n_trees = len(state.history), self.settings["n_trees"]
            is_best = not values or state.best_round == n_done
            state.stopped = self.context.step(n_done, n_trees, self.settings, row, is_best=is_best)
            waited = len(state.history) - state.best_round
            patient = not values or self.settings["keep"] == "all" or waited < self.settings["patience"]
            if exhausted or not patient or state.stopped or n_done == n_trees:
                state.finished = True
                break
        state.texts.append(booster.model_to_string(num_iteration=-1, start_iteration=before))
        state.objective = self.objective.state()
        self._booster = None if self.is_in_stretches else booster
        if not state.finished and self.is_in_stretches:
            self.scores = _scores_of(booster.eval_train)
            self.valid_scores = _scores_of(booster.eval_valid) if self.valid is not None else None

    def _compared(self) -> tuple[float, ...]:
        """The values that rounds are compared by: metrics, averaged over the last rounds."""
        rows = self.state.history[-self.settings["select_over"] :]
        return tuple(fmean(row[name] for row in rows) for name in rows[-1])

    def _gradients(self, scores: Floats, data: lightgbm.Dataset) -> Gradients:
        """The objective function that LightGBM calls each round."""
        gradient, hessian = self.objective(scores, data)
        return exact_in_sums(gradient), exact_in_sums(hessian)

    def _start_booster(self, stretch: int) -> lightgbm.Booster:
        """A booster that continues from the scores so far, with new random numbers."""
        seeds = {
            name: (value + stretch) % (_LARGEST_SEED + 1)
            for name, value in self.params.items()
            if name.endswith("seed")
        }
        if self.scores is not None:
            self.train.set_init_score(self.scores)
        params = self.params | seeds
        if not self.has_splits:  # LightGBM has trees of one leaf for that only with its own objectives
            params |= {"objective": "regression", "boost_from_average": False}
        booster = lightgbm.Booster(params, self.train)
        if self.valid is not None:
            if self.valid_scores is not None:
                self.valid.set_init_score(self.valid_scores)
            booster.add_valid(self.valid, "valid")
        return booster

    def _judged(self, booster: lightgbm.Booster) -> dict[str, float]:
        if self.judge is None:
            return {}
        return means_of(self.judge(_scores_of(booster.eval_valid)), self.context.team)


def _has_splits(data: lightgbm.Dataset) -> bool:
    """Whether some feature distinguishes documents."""
    return any(data.feature_num_bin(feature) > 1 for feature in range(data.num_feature()))


def check_goss(params: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise an error if no tree would be grown on a sample: goss skips the first rounds of each stretch."""
    waits, n_rounds = int(1 / settings["learning_rate"]), min(_STRETCH, settings["n_trees"])
    if params.get("data_sample_strategy") == "goss" and waits >= n_rounds:
        raise ParameterError(
            f"data_sample_strategy: goss begins after 1 / learning_rate rounds of each {_STRETCH}: expected fewer than"
            f" {n_rounds}, got {waits}; raise learning_rate{' or n_trees' if n_rounds < _STRETCH else ''}"
        )


class TreeCheckpoint(Checkpoint):
    """The checkpoint of a run of trees after a stretch."""

    def __init__(self, context: FitContext, settings: dict[str, Any], data: Data, params: Mapping[str, Any]) -> None:
        start = [] if context.start is None else [{"start": context.start.digest()}]
        made_of = [*data.contents, lightgbm.__version__, contents_of_files(params), *start]
        super().__init__(context, settings, made_of)
        self.n_features = data.rows[0].features.shape[1]

    def write(self, state: BoostingState) -> None:
        """Replace the checkpoint atomically."""
        if not self.team.is_first:
            return
        with self.renewing() as fresh:
            (fresh / "state.json").write_text(json.dumps(vars(state)), encoding="utf-8")

    def read(self) -> BoostingState | None:
        """The state of the run, or None if the folder is new."""
        with self.reading():
            text = self.content("state.json")
            if text is None:
                return None
            described = json.loads(text)
            for trees in described["texts"]:
                check_trees(trees, self.n_features)
            best = described.pop("best")
            return BoostingState(**described, best=None if best is None else tuple(best))


def _row_weights(data: RankingDataset) -> Floats | None:
    """The weight of each row: its own times that of its query."""
    if data.row_weight is None and data.query_weight is None:
        return None
    weight = np.ones(data.n_documents) if data.row_weight is None else data.row_weight
    return weight if data.query_weight is None else weight * np.repeat(data.query_weight, data.lengths)


def _scores_of(evaluate: Callable[..., Any]) -> Floats:
    """The scores that LightGBM passes to a metric: the only public way to get them."""
    kept: list[Floats] = []

    def keep(scores: Floats, _: lightgbm.Dataset) -> tuple[str, float, bool]:
        kept.append(np.array(scores))
        return "none", 0.0, True

    evaluate(feval=keep)
    return kept[0]


def check_start_text(text: str, params: Mapping[str, Any]) -> None:
    """Raise ``ParameterError`` if trees with these parameters cannot be added to those of a text."""
    fields = head_fields(text)
    if has_linear_leaves(text) != bool(params.get("linear_tree")):
        raise ParameterError(argument="start", expected="a model with the same `linear_tree`", got="another one")
    before = [int(sign) for sign in fields.get("monotone_constraints", "").split()]
    now = [int(sign) for sign in params.get("monotone_constraints", ())]
    if (before if any(before) else []) != (now if any(now) else []):
        raise ParameterError(
            argument="start",
            expected="a model with the same `monotone_constraints`, as otherwise the sum would not be monotone",
            got="another one",
        )


_TREE = re.compile(r"^Tree=\d+\n", re.MULTILINE)
_NAMES = re.compile(r"^feature_names=.*$", re.MULTILINE)
# Names that LightGBM accepts.
_NAME = re.compile(r"[^\s\x22,:\[\]{}]+")


def join_texts(texts: list[str]) -> str:
    """One model with the trees of several, in LightGBM's text form."""
    if len(texts) == 1:
        return texts[0]
    trees = []
    for text in texts:
        body = text[: text.index("end of trees")]
        trees += _TREE.split(body)[1:]
    head = re.sub(r"^tree_sizes=.*\n", "", _TREE.split(texts[-1])[0], flags=re.MULTILINE)
    numbered = "".join(f"Tree={i}\n{tree}" for i, tree in enumerate(trees))
    return head + numbered + texts[-1][texts[-1].index("end of trees") :]


def count_trees(text: str) -> int:
    """The number of trees in a text."""
    return len(_TREE.findall(text[: text.index("end of trees")]))


def with_names(text: str, names: Sequence[str] | None) -> str:
    r"""The text with the names of features, if LightGBM accepts them; ``Column_0`` and so on otherwise.

    LightGBM replaces blanks by underscores, and accepts no name with characters that JSON uses.

    >>> with_names("feature_names=Column_0 Column_1\n", ["price in EUR", "clicks"])
    'feature_names=price_in_EUR clicks\n'
    """
    written = ["_".join(name.split()) for name in names or ()]
    is_sound = all(_NAME.fullmatch(name) and name.isprintable() for name in written)
    if not written or not is_sound or len(set(written)) < len(written):
        return text
    return _NAMES.sub(lambda _: f"feature_names={' '.join(written)}", text, count=1)


def cut_text(text: str, n_rounds: int) -> str:
    """The first trees of a model, as LightGBM itself writes them."""
    return lightgbm.Booster(model_str=text).model_to_string(num_iteration=n_rounds)
