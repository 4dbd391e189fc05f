"""UMart and LambdaMART: boosted trees on LightGBM, judged by our metrics, resumed exactly."""

from __future__ import annotations

import ctypes
import inspect
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import lightgbm
import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.export import NAN, NONE, ZERO, QueryCopies, Scorer, Sum, Trees
from tierank.inputs import chunks
from tierank.kernels import n_threads
from tierank.metrics import Gain, Rule, as_gain, gain_levels
from tierank.objectives import (
    LambdaRankObjective,
    LossObjective,
    Objective,
    UMartObjective,
    as_loss,
    check_reads_gain,
)
from tierank.rankers.base import Job, Ranker, make_judge
from tierank.rankers.inner import as_base, fit_inner, inner_files, outline_inner, restore_inner
from tierank.rankers.tree_network import check_is_global, connected
from tierank.rankers.tree_settings import MOST, as_parameters, check_files, check_values, for_features, is_known
from tierank.rankers.tree_text import check_trees, kept_depth
from tierank.rankers.tree_training import Data, Floats, Run, check_goss, cut_text, join_texts, predicted
from tierank.settings import as_flag, as_positive, as_whole
from tierank.team import Team
from tierank.transforms import add_query_copies

# In a process that is forked off LightGBM has one thread: see n_threads, which its loading of models does not ask.
if hasattr(os, "register_at_fork"):  # nothing forks on Windows
    os.register_at_fork(after_in_child=lambda: lightgbm.basic._LIB.LGBM_SetMaxThreads(ctypes.c_int(1)))  # type: ignore[attr-defined]

# LightGBM has no larger trees.
_MOST_LEAVES = 131_072

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

    # What to do instead of setting a parameter of LightGBM's own lambdarank.
    INSTEAD: ClassVar[dict[str, str]] = {}

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

    @property
    def booster_(self) -> lightgbm.Booster:
        """The trees as LightGBM's own, a copy: for its plots, SHAP and others. Those of ``base`` are not among them."""
        self._check_fitted()
        return lightgbm.Booster(model_str=self.model_text_)

    @abstractmethod
    def _objective(self, settings: dict[str, Any]) -> Objective:
        """What the trees follow."""

    @abstractmethod
    def _check_objective(self, settings: dict[str, Any]) -> None:
        """An error where a setting of the objective cannot be used."""

    def _of_objective(self, settings: dict[str, Any]) -> set[str]:
        """The names of settings that are not listed, and that the objective takes."""
        return set()

    def _fit(self, train: RankingDataset, valid: RankingDataset | None, job: Job) -> None:
        settings = self._settled()
        params = self._lightgbm_params(settings)
        check_files(params)
        check_goss(params, settings)
        if not isinstance(settings["gain"], str):
            gain_levels(train.ratings, settings["gain"])  # of all data: every process of a team knows
        team = job.team
        train, valid = team.part(train), None if valid is None else team.part(valid)
        objective = self._objective(settings)
        judge = None
        if valid is not None:
            judge = make_judge(valid, settings["select_by"], settings["rule"], settings["n_jobs"], team)
        self.base_ = None
        base = as_base(settings["base"])
        starts = None
        if base is not None:
            if team.size > 1:
                raise ParameterError("base: expected None in a team of several processes, got a ranker")
            self.base_ = fit_inner(self, base, train, valid, job.inside("base"))
            job = job.inside("trees")
            starts = self.base_._predict(train), None if valid is None else self.base_._predict(valid)
        copies = 3 if settings["query_features"] else 1
        params |= for_features(params, train.n_features, train.feature_names, copies)
        train, valid = self._seen(train), None if valid is None else self._seen(valid)
        try:
            data = Data.prepare(train, valid, objective, params, settings, team)
            with connected(team, params) as of_team:
                run = Run(data, judge, of_team, settings, job, starts)
                run.boost()
        except lightgbm.basic.LightGBMError as error:
            what = " ".join(str(error).split()).split(" at /")[0]
            raise ParameterError(f"LightGBM refuses its settings or data: {what}") from None
        state = run.state
        self.n_rounds_ = state.best_round if judge is not None else len(state.history)
        self.history_ = state.history
        self.best_ = state.history[self.n_rounds_ - 1]
        self.model_text_ = cut_text(join_texts(state.texts), self.n_rounds_)
        self._loaded_ = lightgbm.Booster(model_str=self.model_text_)
        self.team_ = _attendance(train, team)
        if team.size > 1 and not _is_sampled(params):
            check_is_global(self.model_text_, sum(process["documents"] for process in self.team_))

    def _check_before_work(self, settings: dict[str, Any]) -> None:
        self._lightgbm_params(settings)
        as_base(settings["base"])

    def _lightgbm_params(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings by LightGBM's names, each of which changes something."""
        self._check_own(settings)
        own = self._own_names(settings)
        given = {name: value for name, value in settings.items() if name not in own}
        params = as_parameters(type(self).__name__, given, own, self.INSTEAD)
        return {
            # The same bits whatever the number of threads; both can be switched off by their names.
            "deterministic": True,
            "force_col_wise": not params.get("force_row_wise", False),
            # Bins that do not depend on how large leaves are; and tiny data keep their features.
            "feature_pre_filter": False,
            **params,
            "learning_rate": settings["learning_rate"],
            "num_leaves": settings["n_leaves"],
            "max_depth": kept_depth(as_whole("max_depth", params.get("max_depth", -1), -1), settings["n_leaves"]),
            "min_data_in_leaf": settings["min_documents"],
            "num_threads": n_threads(settings["n_jobs"]),
            "seed": settings["seed"],
            "metric": "None",
            "verbosity": -1,
        }

    def _own_names(self, settings: dict[str, Any]) -> set[str]:
        """The names of the settings that are not LightGBM's."""
        return set(type(self)().get_params()) | {"preset"} | self._of_objective(settings)

    def _check_own(self, settings: dict[str, Any]) -> None:
        """An error where the value of a setting of ours cannot be used."""
        as_whole("n_trees", settings["n_trees"])
        as_whole("n_leaves", settings["n_leaves"], 2, _MOST_LEAVES)
        as_whole("min_documents", settings["min_documents"], 0, MOST)
        as_whole("patience", settings["patience"])
        as_whole("seed", settings["seed"], 0, MOST)
        as_positive("learning_rate", settings["learning_rate"])
        as_flag("query_features", settings["query_features"])
        as_gain(settings["gain"])
        self._check_objective(settings)

    def _check_loaded(self) -> None:
        """An error where a value cannot be one that the model was fitted with.

        A parameter that changes nothing is no such value: earlier versions took some.
        """
        settings = self.settings_
        self._check_own(settings)
        own = self._own_names(settings)
        check_values(type(self).__name__, {name: settings[name] for name in settings if name not in own}, own)

    def _seen(self, data: RankingDataset) -> RankingDataset:
        """The data as the trees see them."""
        if not self.settings_["query_features"]:
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
        own = predicted(self._booster(), self._seen(data).features, self.n_jobs)
        return own if self.base_ is None else self.base_._predict(data) + own

    def _looks_around(self) -> bool:
        return self.settings_["query_features"] or (self.base_ is not None and self.base_._looks_around())

    def _contributions(self, data: RankingDataset, above: NDArray[np.int64], below: NDArray[np.int64]) -> Floats:
        """Differences of TreeSHAP values, which are worked out for the documents of the pairs alone."""
        rows, places = np.unique([above, below], return_inverse=True)
        features, threads = self._seen(data).features[rows], n_threads(self.n_jobs)
        found = self._booster().predict(features, pred_contrib=True, num_threads=threads)
        # The last column is one constant for all documents.
        values = self._of_own(np.asarray(found, np.float64)[:, :-1])
        first, second = places.reshape(2, -1)
        own = np.asarray(values[first] - values[second], np.float64)
        return own if self.base_ is None else own + self.base_._contributions(data, above, below)

    def _portable(self) -> Scorer:
        trees = Trees.from_lightgbm(self._booster().dump_model())
        own = QueryCopies(trees) if self.settings_["query_features"] else trees
        return own if self.base_ is None else Sum(((1.0, self.base_._portable()), (1.0, own)))

    def _outline(self, train: RankingDataset) -> Scorer:
        """One split by a feature with missing values, if there is one, as the trees to come may have it."""
        params = self._lightgbm_params(self.settings_)
        _check_plain_trees(params)
        missing = NONE
        if params.get("use_missing", True):
            has_missing = any(bool(np.isnan(rows).any()) for rows in chunks(train.features))
            missing = ZERO if params.get("zero_as_missing") else NAN if has_missing else NONE
        trees = Trees.stump(0, 0.5, (0.0, 1.0), missing, default_left=False)
        own = QueryCopies(trees) if self.settings_["query_features"] else trees
        base = as_base(self.settings_["base"])
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
        self._check_loaded()
        try:
            self.n_rounds_, self.history_ = int(fitted["n_rounds"]), list(fitted["history"])
            self.best_ = self.history_[self.n_rounds_ - 1]
            self.model_text_ = files["trees.txt"].decode()
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):
            raise DataError("expected the trees of a model and their history, got a damaged description") from None
        check_trees(self.model_text_, self.n_features_in_ * (3 if self.settings_["query_features"] else 1))
        self._loaded_ = None
        base = self.settings_["base"]
        if base is not None:
            self.base_ = restore_inner(self, base, "base", fitted.get("base"), files)

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
    ``gain``              ``"exp2"``: 2^r - 1; ``"linear"``; a list, for the ratings 0, 1, 2, ...; a mapping; or a
                          function (cannot be saved)
    ``ties``              documents with equal scores: ``"mean"`` takes the expectation over their orders, ``"rows"``
                          ranks them in the order of learning, which means nothing
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

    INSTEAD: ClassVar[dict[str, str]] = {
        "sigmoid": "give sigma",
        "lambdarank_truncation_level": "give truncation",
        "lambdarank_norm": "give weights, of pairs",
        "label_gain": "give gain, which takes such a list",
    }
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
        ties: str = "mean",
        learning_rate: float = 0.1,
        **settings: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **settings)
        self.window, self.sigma, self.hessian, self.weights = window, sigma, hessian, weights
        self.truncation, self.idcg_at, self.gain, self.ties = truncation, idcg_at, gain, ties

    def _objective(self, settings: dict[str, Any]) -> Objective:
        objective = self._umart(settings)
        if objective.idcg_at is not None and objective.weights != "ndcg":
            raise ParameterError(
                f"idcg_at: expected None beside weights={objective.weights!r}, which has no ideal DCG, got"
                f" {objective.idcg_at}"
            )
        if objective.gain != "exp2" and objective.weights == "none":
            raise ParameterError("gain: expected to be left out beside weights='none', where every pair weighs 1")
        return objective

    def _check_objective(self, settings: dict[str, Any]) -> None:
        self._umart(settings)

    def _umart(self, settings: dict[str, Any]) -> UMartObjective:
        names = ("window", "sigma", "hessian", "weights", "truncation", "idcg_at", "gain", "ties", "n_jobs")
        return UMartObjective(**{name: settings[name] for name in names})


class LambdaMART(_Trees):
    """LambdaMART: the gradients of LightGBM's lambdarank on our kernel, for any ratings and lists of any length.

    ====================  =========================================================================================
    ``sigma``             steepness of the likelihood; LightGBM's ``sigmoid``
    ``truncation``        leave out pairs with neither document in the first so many, and judge by the NDCG of these;
                          LightGBM's ``lambdarank_truncation_level``. None: none is left out
    ``norm``              lambdarank's division by the distance of scores, and by the sum over a query
    ``gain``              ``"exp2"``: 2^r - 1; ``"linear"``; a list, for the ratings 0, 1, 2, ... (LightGBM's
                          ``label_gain``); a mapping; or a function (cannot be saved)
    ``ties``              documents with equal scores: ``"mean"`` takes the expectation over their orders; ``"rows"``,
                          LightGBM's way, ranks them in the order of learning, which means nothing
    ====================  =========================================================================================

    The other settings are those of ``UMart`` but for its objective's; the mathematics is in
    ``tierank.OBJECTIVES["lambdarank"]``.

    >>> from tierank import make_ranking
    >>> train, test = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.7, 0.3)
    >>> ranker = LambdaMART(n_trees=20, truncation=10).fit(train)
    >>> ranker.predict(test).shape == (test.n_documents,)
    True
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"paper": dict(_PAPER)}

    INSTEAD: ClassVar[dict[str, str]] = {
        "sigmoid": "give sigma",
        "lambdarank_truncation_level": "give truncation",
        "lambdarank_norm": "give norm, True or False",
        "label_gain": "give gain, which takes such a list",
    }

    def __init__(
        self,
        *,
        sigma: float = 1.0,
        truncation: int | None = 30,
        norm: bool = True,
        gain: Gain = "exp2",
        ties: str = "mean",
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.sigma, self.truncation, self.norm, self.gain, self.ties = sigma, truncation, norm, gain, ties

    def _objective(self, settings: dict[str, Any]) -> Objective:
        names = ("sigma", "truncation", "norm", "gain", "ties", "n_jobs")
        return LambdaRankObjective(**{name: settings[name] for name in names})

    def _check_objective(self, settings: dict[str, Any]) -> None:
        self._objective(settings)


_BY_LOSS = "trees follow the loss, whose keywords are its settings"


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

    INSTEAD: ClassVar[dict[str, str]] = {
        "sigmoid": _BY_LOSS,
        "lambdarank_truncation_level": _BY_LOSS,
        "lambdarank_norm": _BY_LOSS,
        "label_gain": "give gain, which takes such a list",
    }
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"paper": dict(_PAPER)}

    def __init__(self, loss: str | Callable[..., Any] | None = None, *, gain: Gain = "exp2", **settings: Any) -> None:
        super().__init__(**settings)
        self.loss, self.gain = loss, gain

    def _objective(self, settings: dict[str, Any]) -> Objective:
        check_reads_gain(as_loss(settings["loss"]), settings["gain"])
        names = self._of_objective(settings) & set(settings) | {"loss", "gain", "n_jobs", "seed"}
        return LossObjective(**{name: settings[name] for name in names})

    def _check_objective(self, settings: dict[str, Any]) -> None:
        if settings["loss"] is not None:
            as_loss(settings["loss"])

    def _of_objective(self, settings: dict[str, Any]) -> set[str]:
        if settings["loss"] is None:  # it was the caller's own, and was not saved
            return {name for name in settings if not is_known(name)}
        parameters = inspect.signature(as_loss(settings["loss"])).parameters
        return {name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}


def _attendance(train: RankingDataset, team: Team) -> list[dict[str, Any]]:
    """A row for each process that took part, with what it learned from."""
    own = {"number": team.rank, "host": team.host, "pid": os.getpid()}
    return team.all_gather(own | {"queries": train.n_queries, "documents": train.n_documents})


def _is_sampled(params: dict[str, Any]) -> bool:
    """Whether trees see some of the documents only, so that their roots count fewer."""
    return bool(params.get("bagging_freq")) or params.get("data_sample_strategy", "bagging") != "bagging"


def _check_plain_trees(params: dict[str, Any]) -> None:
    """An error where trees would have leaves that no target knows."""
    if params.get("linear_tree"):
        raise ParameterError("for_target: expected linear_tree to be left out, got True; no target has such leaves")
