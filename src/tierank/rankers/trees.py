"""UMart and LambdaMART: boosted trees on LightGBM, judged by our metrics, resumed exactly."""

from __future__ import annotations

import ctypes
import inspect
import json
import logging
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import lightgbm
import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.export import NAN, NONE, ZERO, QueryCopies, Scorer, Sum, Trees
from tierank.files import replacing
from tierank.inputs import chunks, rows_in
from tierank.kernels import n_threads
from tierank.metrics import Gain, Judge, Rule
from tierank.objectives import LossObjective, Objective, UMartObjective, as_loss
from tierank.progress import Progress
from tierank.rankers.base import (
    Job,
    Ranker,
    Selection,
    as_base,
    canonical_rows,
    fit_inner,
    inner_files,
    join_contents,
    make_judge,
    means_of,
    name_of,
    outline_inner,
    restore_inner,
)
from tierank.rankers.tree_network import Rows, bin_rows, check_is_global, connected
from tierank.rankers.tree_text import check_trees
from tierank.settings import as_positive, as_whole
from tierank.team import Team
from tierank.transforms import add_query_copies

Floats = NDArray[np.float64]

# In a process that is forked off LightGBM has one thread: see n_threads, which its loading of models does not ask.
os.register_at_fork(after_in_child=lambda: lightgbm.basic._LIB.LGBM_SetMaxThreads(ctypes.c_int(1)))  # type: ignore[attr-defined]

# LightGBM keeps the state of its random numbers to itself. So rounds come in stretches, each a booster of its own that
# starts from the scores so far with seeds of its own: a run that is resumed after any stretch is the same run.
_STRETCH = 50

# Bytes of features that are scored in one go.
_SCORED = 1 << 27

# What LightGBM's own lambdarank cannot take.
_NATIVE_LEVELS, _NATIVE_DOCUMENTS = 31, 10_000

# Our names for the settings that nearly everybody sets; all others go by LightGBM's names.
_OURS = {
    "num_iterations": "n_trees",
    "learning_rate": "learning_rate",
    "num_leaves": "n_leaves",
    "min_data_in_leaf": "min_documents",
    "num_threads": "n_jobs",
    "seed": "seed",
    "early_stopping_round": "patience",
}
# What the rankers here set themselves, by LightGBM's names.
_TAKEN = {"objective", "metric", "verbosity", "data", "valid", "input_model", "output_model", "task", "num_class"}

_PAPER = {
    "n_trees": 1000,
    "learning_rate": 0.05,
    "n_leaves": 64,
    "min_documents": 5,
    "max_bin": 10_000,
    "min_sum_hessian_in_leaf": 5.0,
    "bagging_fraction": 0.9,
    "bagging_freq": 1,
    "select_by": ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10"),
    "patience": 200,
}


class _Trees(Ranker):
    """Boosted trees. A subclass says which objective they follow."""

    _loaded_: lightgbm.Booster | None
    base_: Ranker | None = None
    # Who took part in training: a row for each process of the team.
    team_: list[dict[str, Any]]

    def __init__(
        self,
        *,
        n_trees: int = 500,
        learning_rate: float = 0.05,
        n_leaves: int = 15,
        min_documents: int = 20,
        select_by: str | Sequence[str] = ("ndcg@10",),
        patience: int = 50,
        rule: str | Rule = "tierank",
        query_features: bool = False,
        base: Ranker | None = None,
        for_target: str | None = None,
        preset: str | None = None,
        n_jobs: int | None = None,
        seed: int = 0,
        **lightgbm: Any,
    ) -> None:
        self.n_trees, self.learning_rate, self.n_leaves = n_trees, learning_rate, n_leaves
        self.min_documents, self.select_by, self.patience, self.rule = min_documents, select_by, patience, rule
        self.query_features = query_features
        self.base, self.for_target, self.preset, self.n_jobs, self.seed = base, for_target, preset, n_jobs, seed
        self.set_params(**lightgbm)

    def importance(self, kind: str = "gain") -> Floats:
        """How much each feature was used: by ``"gain"`` of its splits, or by the number of them (``"split"``)."""
        self._check_fitted()
        if kind not in ("gain", "split"):
            raise ParameterError.unknown("importance", kind, ("gain", "split"))
        return self._of_own(np.asarray(self._booster().feature_importance(kind), np.float64))

    @property
    def feature_importances_(self) -> Floats:
        """The share of each feature in the gain of all splits."""
        gains = self.importance("gain")
        return gains / max(float(gains.sum()), np.finfo(np.float64).tiny)

    @abstractmethod
    def _objective(self, train: RankingDataset, settings: dict[str, Any], team: Team) -> Objective | None:
        """Our objective, or None for LightGBM's own lambdarank: the same in all processes of a team."""

    def _of_objective(self, settings: dict[str, Any]) -> set[str]:
        """The names of settings that are not listed, and that the objective takes."""
        return set()

    def _fit(self, train: RankingDataset, valid: RankingDataset | None, job: Job) -> None:
        settings = self._resolved()
        params = self._lightgbm_params(settings)
        team = job.team
        train, valid = team.part(train), None if valid is None else team.part(valid)
        objective = self._objective(train, settings, team)
        judge = None
        if valid is not None:
            judge = make_judge(valid, settings["select_by"], settings["rule"], settings["n_jobs"], team)
        self.base_ = None
        base = as_base(self.base)
        starts = None
        if base is not None:
            if team.size > 1:
                raise ParameterError("base: expected None in a team of several processes, got a ranker")
            self.base_ = fit_inner(self, base, train, valid, job.inside("base"))
            job = job.inside("trees")
            starts = self.base_._predict(train), None if valid is None else self.base_._predict(valid)
        train, valid = self._seen(train), None if valid is None else self._seen(valid)
        try:
            data = _Data.prepare(train, valid, objective, params, settings, team)
            with connected(team, params) as of_team:
                run = _Run(data, judge, of_team, settings, job, starts)
                run.boost()
        except lightgbm.basic.LightGBMError as error:
            what = str(error).splitlines()[0].split(" at /")[0]
            raise ParameterError(f"LightGBM refuses its settings or data: {what}") from None
        state = run.state
        self.n_rounds_ = state.best_round if judge is not None else len(state.history)
        self.history_ = state.history
        self.best_ = state.history[self.n_rounds_ - 1]
        self.model_text_ = _cut(_join(state.texts), self.n_rounds_)
        self._loaded_ = lightgbm.Booster(model_str=self.model_text_)
        self.team_ = _attendance(train, team)
        if team.size > 1 and not _is_sampled(params):
            check_is_global(self.model_text_, sum(process["documents"] for process in self.team_))

    def _lightgbm_params(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings by LightGBM's names, checked against the names that it knows."""
        for name, least in (("n_trees", 1), ("n_leaves", 2), ("min_documents", 0), ("patience", 1), ("seed", 0)):
            as_whole(name, settings[name], least)
        as_positive("learning_rate", settings["learning_rate"])
        own = set(type(self)().get_params()) | {"preset"} | self._of_objective(settings)
        known = lightgbm.basic._ConfigAliases._get_all_param_aliases()
        main_name = {alias: name for name, aliases in known.items() for alias in (name, *aliases)}
        params = {}
        for name, value in settings.items():
            if name in own:
                continue
            if name not in main_name:
                raise ParameterError.unknown(f"setting of {type(self).__name__} or LightGBM", name, [*own, *main_name])
            main = main_name[name]
            if main in _OURS:
                raise ParameterError(f"{name}: this setting is called {_OURS[main]} here")
            if main in _TAKEN:
                raise ParameterError(f"{name}: expected to be left to {type(self).__name__}, got {value!r}")
            if main == "boosting" and value not in ("gbdt", "gbrt"):
                raise ParameterError(f"{name}: expected gbdt, the only kind that ranks by kept trees, got {value!r}")
            params[main] = value
        return {
            # The same bits whatever the number of threads; both can be switched off by their names.
            "deterministic": True,
            "force_col_wise": "force_row_wise" not in params,
            # Bins that do not depend on how large leaves are; and tiny data keep their features.
            "feature_pre_filter": False,
            **params,
            "learning_rate": settings["learning_rate"],
            "num_leaves": settings["n_leaves"],
            "min_data_in_leaf": settings["min_documents"],
            "num_threads": n_threads(settings["n_jobs"]),
            "seed": settings["seed"],
            "metric": "None",
            "verbosity": -1,
        }

    def _seen(self, data: RankingDataset) -> RankingDataset:
        """The data as the trees see them."""
        if not self.query_features:
            return data
        if not self.has_queries_:
            raise DataError(
                "query_features: expected query ids, got none; without them nobody knows what a document stands among"
            )
        return add_query_copies(data, self.n_jobs)

    def _of_own(self, values: Floats) -> Floats:
        """Values of what the trees see, summed over a feature and its copies: the last axis is of own features."""
        copies = values.shape[-1] // self.n_features_in_
        return np.asarray(values.reshape(*values.shape[:-1], copies, self.n_features_in_).sum(axis=-2), np.float64)

    def _booster(self) -> lightgbm.Booster:
        if self._loaded_ is None:
            try:
                self._loaded_ = lightgbm.Booster(model_str=self.model_text_)
            except (lightgbm.basic.LightGBMError, ValueError) as error:
                raise DataError(f"trees.txt: expected trees that LightGBM can read, got others: {error}") from None
        return self._loaded_

    def _predict(self, data: RankingDataset) -> Floats:
        own = _predicted(self._booster(), self._seen(data).features, self.n_jobs)
        return own if self.base_ is None else self.base_._predict(data) + own

    def _contributions(self, data: RankingDataset, above: NDArray[np.int64], below: NDArray[np.int64]) -> Floats:
        """Differences of TreeSHAP values."""
        features, threads = self._seen(data).features, n_threads(self.n_jobs)
        found = self._booster().predict(features, pred_contrib=True, num_threads=threads)
        # The last column is one constant for all documents.
        values = self._of_own(np.asarray(found, np.float64)[:, :-1])
        own = np.asarray(values[above] - values[below], np.float64)
        return own if self.base_ is None else own + self.base_._contributions(data, above, below)

    def _portable(self) -> Scorer:
        trees = Trees.from_lightgbm(self._booster().dump_model())
        own = QueryCopies(trees) if self.query_features else trees
        return own if self.base_ is None else Sum(((1.0, self.base_._portable()), (1.0, own)))

    def _outline(self, train: RankingDataset) -> Scorer:
        """One split by a feature with missing values, if there is one, as the trees to come may have it."""
        params = self._lightgbm_params(self._resolved())
        _check_plain_trees(params)
        missing = NONE
        if params.get("use_missing", True):
            has_missing = any(bool(np.isnan(rows).any()) for rows in chunks(train.features))
            missing = ZERO if params.get("zero_as_missing") else NAN if has_missing else NONE
        trees = Trees.stump(0, 0.5, (0.0, 1.0), missing, default_left=False)
        own = QueryCopies(trees) if self.query_features else trees
        base = as_base(self.base)
        return own if base is None else Sum(((1.0, outline_inner(self, base, train)), (1.0, own)))

    def _used_features(self) -> NDArray[np.bool_]:
        own = self.importance("split") > 0
        return own if self.base_ is None else own | self.base_._used_features()

    def _files(self) -> dict[str, bytes]:
        return {"trees.txt": self.model_text_.encode()} | inner_files("base", self.base_)

    def _fitted(self) -> dict[str, Any]:
        base = None if self.base_ is None else self.base_._fitted()
        return {"n_rounds": self.n_rounds_, "history": self.history_, "base": base}

    def _restore(self, fitted: dict[str, Any], files: dict[str, bytes]) -> None:
        try:
            self.n_rounds_, self.history_ = int(fitted["n_rounds"]), list(fitted["history"])
            self.best_ = self.history_[self.n_rounds_ - 1]
            self.model_text_ = files["trees.txt"].decode()
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):
            raise DataError("expected the trees of a model and their history, got a damaged description") from None
        check_trees(self.model_text_, self.n_features_in_ * (3 if self.query_features else 1))
        self._loaded_ = None
        if self.base is not None:
            self.base_ = restore_inner(self, self.base, "base", fitted.get("base"), files)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return state | ({"_loaded_": None} if hasattr(self, "_loaded_") else {})


class UMart(_Trees):
    """uMart: boosted trees that follow the windowed uRank likelihood; see ``UMartObjective`` for the mathematics.

    ====================  =========================================================================================
    ``window``            documents in a window of lower-rated ones; None: all are one window; 1: LambdaMART's pairs
    ``sigma``             steepness of the likelihood
    ``hessian``           ``"code"`` (the authors'), ``"exact"`` or ``"paper"``
    ``weights``           of pairs: ``"ndcg"``, ``"gain"`` (the plain uRank gains) or ``"none"``
    ``truncation``        leave out pairs with neither document in the first so many; None: none is left out
    ``idcg_at``           ranks that count in the ideal DCG; None: all
    ``gain``              ``"exp2"``: 2^r - 1; ``"linear"``; a mapping; or a function (cannot be saved)
    ``n_trees``           at most so many
    ``learning_rate``     of each tree; with the authors' hessian, which is twice the true one, 0.1 is a step of 0.05
    ``n_leaves``          of each tree, at most
    ``min_documents``     in each leaf
    ``select_by``         metrics that choose the number of trees on validation data: the first, within 1e-6 the
                          second, and so on
    ``patience``          rounds without a better one after which training stops
    ``rule``              of those metrics
    ``query_features``    trees see each feature three times: as it is, within the range of its query, and as its rank
                          in the query. Predict then needs the whole candidate list of a query, with its qid
    ``base``              a ranker that learns first, by its own settings: ``UMart(base=URank())`` grows trees on what a
                          network leaves over, and adds their scores to its scores. None: none
    ``for_target``        an engine that the model is meant for, such as ``"solr"``: what it cannot hold is refused
                          before training. See ``export``. None: none
    ``preset``            ``"paper"``: the paper's settings; ``"paper-mq2007"``: the same with its window of 10
    ``n_jobs``            threads; None: one for each core. The model is the same, bit for bit
    ``seed``              of all random numbers
    ====================  =========================================================================================

    Any other keyword is a parameter of LightGBM by its own name: ``UMart(lambda_l2=1.0, monotone_constraints=[1, 0])``.

    >>> from tierank import make_ranking
    >>> train, test = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.7, 0.3)
    >>> ranker = UMart(n_trees=20).fit(train)
    >>> ranker.predict(test).shape == (test.n_documents,)
    True
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": _PAPER | {"window": 2},
        "paper-mq2007": _PAPER | {"window": 10},
    }

    def __init__(
        self,
        *,
        window: int | None = 2,
        sigma: float = 2.0,
        hessian: str = "code",
        weights: str = "ndcg",
        truncation: int | None = None,
        idcg_at: int | None = None,
        gain: Gain = "exp2",
        learning_rate: float = 0.1,
        **settings: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **settings)
        self.window, self.sigma, self.hessian, self.weights = window, sigma, hessian, weights
        self.truncation, self.idcg_at, self.gain = truncation, idcg_at, gain

    def _objective(self, train: RankingDataset, settings: dict[str, Any], team: Team) -> Objective | None:
        names = ("window", "sigma", "hessian", "weights", "truncation", "idcg_at", "gain", "n_jobs")
        return UMartObjective(**{name: settings[name] for name in names})


class LambdaMART(_Trees):
    """LambdaMART: LightGBM's own lambdarank, without its limits.

    Settings are those of ``UMart`` but for the objective's; ``lambdarank_truncation_level``, ``sigmoid`` and the others
    go by LightGBM's names. Where LightGBM's objective cannot take the ratings (fractions, 31 levels or more, queries of
    more than 10,000 documents) the same mathematics runs on our kernel: uMart with a window of 1.
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"paper": dict(_PAPER)}

    def _objective(self, train: RankingDataset, settings: dict[str, Any], team: Team) -> Objective | None:
        ratings = train.ratings
        whole = bool((ratings == np.rint(ratings)).all() and ratings.max() < _NATIVE_LEVELS)
        if all(team.gather(whole and int(train.lengths.max()) <= _NATIVE_DOCUMENTS)):
            return None
        level = settings.get("lambdarank_truncation_level", 30)
        logging.getLogger("tierank").warning(
            "tierank: LightGBM's lambdarank does not take these data (whole ratings below %d and at most %d documents a"
            " query); uMart's kernel with a window of 1 does the same here",
            _NATIVE_LEVELS,
            _NATIVE_DOCUMENTS,
        )
        return UMartObjective(
            window=1,
            sigma=settings.get("sigmoid", 1.0),
            hessian="exact",
            truncation=level,
            idcg_at=level,
            n_jobs=settings["n_jobs"],
        )


class TreeRanker(_Trees):
    """Trees that follow a loss of your own: the same functions that ``NetworkRanker`` takes.

    >>> import torch, tierank
    >>> def squares(scores, batch):  # squared distance to the gains, 10 lines or 1
    ...     return torch.zeros(batch.n_queries).index_add(0, batch.query, (scores - batch.gains) ** 2)
    >>> data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
    >>> ranker = TreeRanker(loss=squares, n_trees=5).fit(data)
    >>> ranker.predict(data).shape == (data.n_documents,)
    True

    ``loss`` may also be a name of ``LOSSES``: ``TreeRanker(loss="approxndcg", temperature=0.5)``. ``gain`` is what
    ``batch.gains`` holds; the other settings are those of ``UMart`` but for its objective's. How gradient and hessian
    come from the function: ``tierank.OBJECTIVES["loss"]``. Whether its derivatives are right: ``check_gradient``. A
    model with a loss of your own is saved without it: it predicts after loading, but cannot be fitted again.
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"paper": dict(_PAPER)}

    def __init__(self, loss: str | Callable[..., Any] | None = None, *, gain: Gain = "exp2", **settings: Any) -> None:
        super().__init__(**settings)
        self.loss, self.gain = loss, gain

    def _objective(self, train: RankingDataset, settings: dict[str, Any], team: Team) -> Objective | None:
        names = self._of_objective(settings) & set(settings) | {"loss", "gain", "n_jobs", "seed"}
        return LossObjective(**{name: settings[name] for name in names})

    def _of_objective(self, settings: dict[str, Any]) -> set[str]:
        parameters = inspect.signature(as_loss(settings["loss"])).parameters
        return {name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}


@dataclass
class _State:
    """Where a run stands after a stretch: all that the next stretch needs."""

    texts: list[str] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)
    best: tuple[float, ...] | None = None
    best_round: int = 0
    finished: bool = False
    scores: Floats | None = None
    valid_scores: Floats | None = None


class _Data:
    """Training and validation data as LightGBM has them, and what identifies them."""

    def __init__(
        self,
        train: lightgbm.Dataset,
        valid: lightgbm.Dataset | None,
        rows: tuple[Rows, Rows | None],
        gradients: Callable[[Floats, lightgbm.Dataset], tuple[Any, Any]] | None,
        contents: list[str | None],
    ) -> None:
        self.train, self.valid, self.rows, self.gradients, self.contents = train, valid, rows, gradients, contents

    @classmethod
    def prepare(
        cls,
        train: RankingDataset,
        valid: RankingDataset | None,
        objective: Objective | None,
        params: dict[str, Any],
        settings: dict[str, Any],
        team: Team,
    ) -> _Data:
        order, offsets, content = canonical_rows(train, settings["n_jobs"])
        ratings, weight = train.ratings[order], _row_weights(train)
        rows = Rows(train.features, order)
        own = bin_rows(rows, team, params)
        own.set_label(ratings).set_group(np.diff(offsets))
        if weight is not None:
            own.set_weight(weight[order])
        if objective is not None:
            objective.prepare(ratings, offsets, None if weight is None else weight[order])
        contents: list[str | None] = [join_contents(team.gather(content)), None]
        if valid is None:
            return cls(own, None, (rows, None), objective, contents)
        valid_rows = Rows(valid.features, np.arange(valid.n_documents))
        held_out = lightgbm.Dataset(valid_rows, label=valid.ratings, reference=own, params=params).construct()
        contents[1] = join_contents(team.gather(canonical_rows(valid, settings["n_jobs"])[2]))
        return cls(own, held_out, (rows, valid_rows), objective, contents)


class _Run:
    """One training run: the data, the judge, and where the run stands."""

    def __init__(
        self,
        data: _Data,
        judge: Judge | None,
        params: dict[str, Any],
        settings: dict[str, Any],
        job: Job,
        starts: tuple[Floats, Floats | None] | None,
    ) -> None:
        self.train, self.valid, self.gradients, self.judge = data.train, data.valid, data.gradients, judge
        self.params = params | {"objective": "lambdarank" if self.gradients is None else "none"}
        self.settings, self.job, self.checkpoint = settings, job, None
        found = None
        if job.checkpoint is not None:
            described = {name: value for name, value in settings.items() if name != "n_jobs"}
            identity = {"settings": described, "contents": data.contents, "lightgbm": lightgbm.__version__}
            self.checkpoint = _Checkpoint(job.checkpoint, identity, data.rows[0].features.shape[1], job.team)
            found = self.checkpoint.read()
        self.state = found or _State()
        if found is None and starts is not None:
            self.state.scores, self.state.valid_scores = starts[0][data.rows[0].order], starts[1]
        elif self.state.texts and self.state.scores is None:
            self._score_again(data)

    def _score_again(self, data: _Data) -> None:
        """The scores of the trees so far, where the checkpoint holds none: to the bits that training had."""
        booster = lightgbm.Booster(model_str=_join(self.state.texts))
        found = [
            None if rows is None else _predicted(booster, rows.features, self.settings["n_jobs"])[rows.order]
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
        selection = Selection((), best=state.best)
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
        seeds = {name: value + stretch for name, value in self.params.items() if name.endswith("seed")}
        if self.state.scores is not None:
            self.train.set_init_score(self.state.scores)
        try:
            booster = lightgbm.Booster(self.params | seeds, self.train)
        except lightgbm.basic.LightGBMError as error:
            if "num_features" not in str(error):
                raise
            # No feature tells documents apart. LightGBM can say so, by a tree of one leaf, for its own objectives only.
            self.gradients = None
            booster = lightgbm.Booster(
                self.params | {"objective": "regression", "boost_from_average": False}, self.train
            )
        if self.valid is not None:
            if self.state.valid_scores is not None:
                self.valid.set_init_score(self.state.valid_scores)
            booster.add_valid(self.valid, "valid")
        return booster

    def _judged(self, booster: lightgbm.Booster) -> dict[str, float]:
        if self.judge is None:
            return {}
        return means_of(self.judge(_scores_of(booster.eval_valid)), self.job.team)


class _Checkpoint:
    """A folder that holds where a run stands, and for which data and settings."""

    def __init__(self, folder: Path, identity: dict[str, Any], n_features: int, team: Team) -> None:
        self.folder, self.n_features, self.team = folder, n_features, team
        self.identity = json.loads(json.dumps(identity, default=name_of))

    def write(self, state: _State) -> None:
        """Replace what the folder holds, whole or not at all."""
        if not self.team.is_first:
            return
        described = {
            "identity": self.identity,
            "texts": state.texts,
            "history": state.history,
            "best": state.best,
            "best_round": state.best_round,
            "finished": state.finished,
        }
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.folder) as fresh:
            fresh.mkdir()
            (fresh / "state.json").write_text(json.dumps(described))
            for name, scores in (("scores", state.scores), ("valid_scores", state.valid_scores)):
                if scores is not None and self.team.size == 1:  # of a team each process has its own
                    np.save(fresh / f"{name}.npy", scores, allow_pickle=False)

    def read(self) -> _State | None:
        """Where the run stood, or None where the folder is new."""
        file = self.folder / "state.json"
        try:
            text = self.team.share(file.read_bytes() if self.team.is_first and file.exists() else None)
            if text is None:
                return None
            described = json.loads(text)
            if described["identity"] != self.identity:
                raise DataError(
                    f"{self.folder}: expected a checkpoint of this data and these settings, got one of another run;"
                    " delete it to start anew"
                )
            best = described["best"]
            for text in described["texts"]:
                check_trees(text, self.n_features)
            return _State(
                described["texts"],
                described["history"],
                None if best is None else tuple(best),
                described["best_round"],
                described["finished"],
                *(self._scores(name) for name in ("scores", "valid_scores")),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, DataError) and "of this data" in str(error):
                raise
            raise DataError(
                f"{self.folder}: expected a checkpoint, got a damaged one; delete it to start anew"
            ) from None

    def _scores(self, name: str) -> Floats | None:
        file = self.folder / f"{name}.npy"
        is_kept = self.team.size == 1 and file.exists()
        return np.asarray(np.load(file, allow_pickle=False), np.float64) if is_kept else None


def _predicted(booster: lightgbm.Booster, features: NDArray[np.float32], n_jobs: int | None) -> Floats:
    """The score of each row, a good number of rows at a time."""
    threads = n_threads(n_jobs)
    parts = chunks(features, rows_in(features, _SCORED))
    return np.concatenate(
        [booster.predict(rows, raw_score=True, num_threads=threads) for rows in parts], dtype=np.float64
    )


def _attendance(train: RankingDataset, team: Team) -> list[dict[str, Any]]:
    """A row for each process that took part, with what it learned from."""
    own = {"number": team.number, "host": team.host, "pid": os.getpid()}
    return team.gather(own | {"queries": train.n_queries, "documents": train.n_documents})


def _is_sampled(params: dict[str, Any]) -> bool:
    """Whether trees see some of the documents only, so that their roots count fewer."""
    return bool(params.get("bagging_freq")) or params.get("data_sample_strategy", "bagging") != "bagging"


def _check_plain_trees(params: dict[str, Any]) -> None:
    """An error where trees would have leaves that no target knows."""
    if params.get("linear_tree"):
        raise ParameterError("for_target: expected linear_tree to be left out, got True; no target has such leaves")


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


def _join(texts: list[str]) -> str:
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


def _cut(text: str, n_rounds: int) -> str:
    """The first trees of a model, in the form in which LightGBM itself writes it."""
    return lightgbm.Booster(model_str=text).model_to_string(num_iteration=n_rounds)
