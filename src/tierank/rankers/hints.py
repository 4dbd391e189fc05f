"""What to say about settings, arguments and attributes of other libraries that rankers do not have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tierank.errors import ParameterError
from tierank.estimators import HOW_TO_ROUTE

_QID = "`qid`, one query id per row"
_FROM_SIZES = "np.repeat(np.arange(len(group)), group) makes it from group sizes"
_VALID = "`valid`=(X, y, qid), or a RankingDataset"
_WEIGHT = "`row_weight`, one weight per row, or `query_weight`, one per query"
_SELECT_BY = "the setting `select_by`"
_SELECT_FIX = "such as UMart(select_by=['ndcg@10'])"
_PATIENCE = "the setting `patience`"
_PATIENCE_FIX = "such as UMart(patience=20), and valid data in fit"
_PROGRESS = "`progress`=True for a progress bar, or `callbacks`"
_START = "`start`, a fitted ranker"
_START_FIX = "tierank.from_lightgbm makes one from a LightGBM model"
_BASE = "the setting `base`, a ranker whose scores the trees add to"
_NAMES = "names in X itself: a table, or RankingDataset(X, y, qid, feature_names=names)"
_CATEGORIES = "the setting `categorical_feature` of tree rankers"
_CHECKPOINT = "`checkpoint`, a folder"
_ALL_TREES = "nothing: all trees that were kept are used"
_RAW = "nothing: scores are raw scores"

# By argument: what to give instead, and how.
_FIT: dict[str, tuple[str, str | None]] = {
    # Queries
    "group": (_QID, _FROM_SIZES),
    "groups": (_QID, HOW_TO_ROUTE),  # scikit-learn's word for one id per row
    "query": (_QID, None),
    "queries": (_QID, None),
    "query_id": (_QID, None),
    "query_ids": (_QID, None),
    "group_id": (_QID, "rename group_id to qid"),
    "subgroup_id": ("nothing: documents are grouped by query only", None),
    "label": ("`y`, one rating per row", None),
    # Validation
    "eval_set": (_VALID, "only one validation set is used"),
    "eval_X": (_VALID, "only one validation set is used"),
    "eval_y": (_VALID, "only one validation set is used"),
    "eval_group": (_VALID, "with one query id per row in place of group sizes"),
    "eval_qid": (_VALID, None),
    "eval_names": (_VALID, "it has no name, as there is only one"),
    "eval_sample_weight": ("weights inside `valid`", "RankingDataset(X, y, qid, query_weight=...) holds them"),
    "sample_weight_eval_set": ("weights inside `valid`", "RankingDataset(X, y, qid, query_weight=...) holds them"),
    "eval_at": (_SELECT_BY, "such as UMart(select_by=['ndcg@5', 'ndcg@10'])"),
    "eval_metric": (_SELECT_BY, _SELECT_FIX),
    "eval_class_weight": ("nothing: a ranker has no classes", None),
    "feval": (_SELECT_BY, "it also takes your own function (ratings, scores) -> number"),
    "use_best_model": (_VALID, "the best round on it is always kept"),
    "early_stopping_rounds": (_PATIENCE, _PATIENCE_FIX),
    "early_stopping_round": (_PATIENCE, _PATIENCE_FIX),
    # Weights
    "sample_weight": (_WEIGHT, None),
    "weight": (_WEIGHT, None),
    "weights": (_WEIGHT, None),
    "group_weight": ("`query_weight`, one weight per query", None),
    "pairs_weight": ("`query_weight`, one weight per query", None),
    "feature_weights": ("the setting `feature_contri` of tree rankers", None),
    "pairs": ("`y`, one rating per row", "pairs come from the ratings"),
    "pairs_selector": ("`y`, one rating per row", "pairs come from the ratings"),
    # Where to start
    "init_model": (_START, _START_FIX),
    "xgb_model": (_START, "a model of XGBoost cannot be read"),
    "init_score": (_BASE, "UMart(base=URank()) adds trees to the scores of URank"),
    "eval_init_score": (_BASE, "UMart(base=URank()) adds trees to the scores of URank"),
    "base_margin": (_BASE, "UMart(base=URank()) adds trees to the scores of URank"),
    "base_margin_eval_set": (_BASE, "UMart(base=URank()) adds trees to the scores of URank"),
    "baseline": (_BASE, "UMart(base=URank()) adds trees to the scores of URank"),
    # Positions
    "positions": ("`position`, where each document was shown", "rename positions to position"),
    "eval_position": ("positions inside `valid`", "RankingDataset(X, y, qid, position=...) holds them"),
    # Features
    "feature_name": (_NAMES, None),
    "feature_names": (_NAMES, None),
    "categorical_feature": (_CATEGORIES, "such as UMart(categorical_feature=[0, 3])"),
    "cat_features": (_CATEGORIES, "such as UMart(categorical_feature=[0, 3])"),
    "text_features": ("`columns`, such as tierank.Columns(texts=[('query', 'title')]), and a table as X", None),
    "embedding_features": ("a table as X: a column of vectors becomes one feature per element", None),
    # Networks
    "epochs": ("the setting `max_epochs` of neural rankers", "such as URank(max_epochs=100)"),
    "steps_per_epoch": ("nothing: an epoch is all queries, once", None),
    "batch_size": ("the setting `queries_per_step` of neural rankers", "such as URank(queries_per_step=32)"),
    "validation_data": (_VALID, None),
    "validation_split": (_VALID, "data.split(0.8, 0.2) keeps queries whole"),
    # What is shown and kept
    "verbose": (_PROGRESS, None),
    "verbose_eval": (_PROGRESS, None),
    "silent": ("nothing: fit is silent unless `progress`=True", None),
    "logging_level": (_PROGRESS, None),
    "metric_period": (_PROGRESS, "a callback can look at every tenth step"),
    "plot": ("history_ of the fitted ranker", "it has a row for each round"),
    "evals_result": ("history_ of the fitted ranker", "it has a row for each round"),
    "callback": ("`callbacks`, a list of functions of a tierank.Step", None),
    "snapshot_file": (_CHECKPOINT, None),
    "snapshot_interval": (_CHECKPOINT, None),
    "save_snapshot": (_CHECKPOINT, None),
}
_SCORING: dict[str, tuple[str, str | None]] = {
    "group": (_QID, _FROM_SIZES),
    "groups": (_QID, HOW_TO_ROUTE),  # scikit-learn's word for one id per row
    "query": (_QID, None),
    "query_id": (_QID, None),
    "group_id": (_QID, "rename group_id to qid"),
    "raw_score": (_RAW, None),
    "output_margin": (_RAW, None),
    "prediction_type": (_RAW, None),
    "num_iteration": (_ALL_TREES, "booster_ of a tree ranker is LightGBM's own model; its predict takes fewer"),
    "start_iteration": (_ALL_TREES, "booster_ of a tree ranker is LightGBM's own model; its predict takes fewer"),
    "iteration_range": (_ALL_TREES, "booster_ of a tree ranker is LightGBM's own model; its predict takes fewer"),
    "ntree_limit": (_ALL_TREES, None),
    "ntree_start": (_ALL_TREES, None),
    "ntree_end": (_ALL_TREES, None),
    "pred_leaf": ("booster_ of a tree ranker", "LightGBM's own predict has pred_leaf"),
    "pred_contrib": ("tierank.explain_query", "it gives the contributions of features"),
    "validate_features": ("nothing: the names of columns are always compared", None),
    "num_threads": ("the setting `n_jobs`", "ranker.set_params(n_jobs=...)"),
    "thread_count": ("the setting `n_jobs`", "ranker.set_params(n_jobs=...)"),
    "verbose": ("nothing: scoring is silent", None),
    "top_k": ("`k` of rank", None),
}
HINTS: Mapping[str, Mapping[str, tuple[str, str | None]]] = {"fit": _FIT, "predict": _SCORING, "rank": _SCORING}

# Settings by their names in LightGBM, XGBoost, CatBoost, scikit-learn, Keras and allRank: ours, the first that a ranker
# has. Tree rankers know LightGBM's names themselves.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("n_estimators", "num_boost_round", "num_iterations"), ("n_trees", "n_learners")),
    **dict.fromkeys(("iterations", "max_iter", "n_iter"), ("n_trees", "max_epochs")),
    **dict.fromkeys(("epochs", "n_epochs", "num_epochs"), ("max_epochs",)),
    **dict.fromkeys(("early_stopping_rounds", "early_stopping_patience", "n_iter_no_change", "od_wait"), ("patience",)),
    **dict.fromkeys(("lr", "eta", "learning_rate_init"), ("learning_rate",)),
    **dict.fromkeys(("random_state", "random_seed"), ("seed",)),
    **dict.fromkeys(("num_threads", "n_threads", "nthread", "thread_count"), ("n_jobs",)),
    **dict.fromkeys(("metric", "metrics", "eval_metric", "eval_at", "custom_metric", "scoring"), ("select_by",)),
    **dict.fromkeys(("num_leaves", "max_leaves"), ("n_leaves",)),
    "depth": ("max_depth",),
    "label_gain": ("gain",),
    "batch_size": ("queries_per_step",),
    **dict.fromkeys(("hidden_layer_sizes", "hidden_units", "hidden_layers", "sizes"), ("hidden",)),
    "dropout_rate": ("dropout",),
    **dict.fromkeys(("alpha", "reg_lambda", "l2", "l2_leaf_reg"), ("lambda_l2", "weight_decay", "ridge")),
    **dict.fromkeys(("loss_function", "objective", "criterion"), ("loss",)),
    "cat_features": ("categorical_feature",),
    "task_type": ("device_type", "device"),
}
# Settings that no ranker has: why, and what to do instead.
_NO_SETTINGS: Mapping[str, str] = {
    "importance_type": "feature_importances_ of tree rankers are gains; importance('split') counts splits",
    "class_weight": "a ranker has no classes; fit takes row_weight and query_weight",
    "verbose": "fit is silent; fit(progress=True) shows a progress bar",
    "warm_start": "fit(start=ranker) continues from a fitted ranker",
    "validation_fraction": "fit takes validation data as valid; data.split(0.8, 0.2) keeps queries whole",
    "early_stopping": "training stops early if fit has validation data, valid",
    "enable_categorical": "texts and categories in a table are categories",
    "tree_method": "trees are always grown from histograms",
    "booster": "trees are always boosted by gbdt",
    **dict.fromkeys(("loss_function", "objective", "criterion"), "NetworkRanker and TreeRanker take a loss"),
    **dict.fromkeys(("optimizer", "solver"), "networks are always trained with Adam"),
}
# Attributes and methods of other libraries: ours, by name, and a word on it.
ATTRIBUTES: Mapping[str, str] = {
    **dict.fromkeys(("best_iteration_", "best_iteration", "best_ntree_limit", "n_estimators_", "n_iter_"), "n_rounds_"),
    **dict.fromkeys(("best_score_", "best_score"), "best_"),
    **dict.fromkeys(("evals_result_", "evals_result", "get_evals_result", "loss_curve_"), "history_"),
    **dict.fromkeys(("feature_name_", "feature_name", "feature_names_"), "feature_names_in_"),
    **dict.fromkeys(("n_features_", "n_features"), "n_features_in_"),
    **dict.fromkeys(("feature_importance", "get_feature_importance", "get_fscore", "get_score"), "importance()"),
    "get_booster": "booster_",
    **dict.fromkeys(("predict_proba", "decision_function"), "predict(): scores are not probabilities"),
    **dict.fromkeys(("save_model", "dump_model"), "save() for a folder, or export() for another engine"),
    "load_model": "tierank.load()",
    "objective_": "settings_",
}


def why_no_setting(ranker: str, name: str, known: Collection[str]) -> ParameterError | None:
    """The error for a setting or an argument of another library; None for a name that none has.

    >>> print(why_no_setting("URank", "batch_size", ["queries_per_step"]))
    batch_size: expected queries_per_step, which is the name of this setting in URank
    >>> print(why_no_setting("URank", "eval_set", []))
    eval_set: expected valid=(X, y, qid), or a RankingDataset, in fit; only one validation set is used
    """
    ours = next((one for one in SETTINGS.get(name, ()) if one in known), None)
    if ours is not None:
        return ParameterError(argument=name, expected=f"{ours}, which is the name of this setting in {ranker}")
    if name in _NO_SETTINGS:
        return ParameterError("is not a setting", argument=name, fix=_NO_SETTINGS[name])
    expected, fix = _FIT.get(name, (None, None))
    if expected is None or expected.startswith("the setting"):
        return None
    return ParameterError(argument=name, expected=f"{expected}, in fit" if expected[0] == "`" else expected, fix=fix)


def why_no_attribute(owner: object, name: str) -> AttributeError:
    """The error for an attribute that a ranker does not have: what it is called here, if another library has it.

    >>> why_no_attribute(3, "best_iteration_").args[0]
    "'int' object has no attribute 'best_iteration_': use n_rounds_"
    """
    hint = f": use {ATTRIBUTES[name]}" if name in ATTRIBUTES else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=owner)


def refuse_unknown(
    ranker: str, method: str, unknown: Iterable[str], known: Sequence[str], settings: Iterable[str]
) -> None:
    """Raise ``ParameterError`` for the first argument that the method does not have; do nothing if there is none.

    >>> refuse_unknown("UMart", "fit", ["group"], ["X", "qid"], [])
    Traceback (most recent call last):
    tierank.errors.ParameterError: group: expected qid, one query id per row; np.repeat(np.arange(len(group)), group)
    makes it from group sizes
    >>> refuse_unknown("UMart", "fit", ["n_trees"], ["X", "qid"], ["n_trees"])
    Traceback (most recent call last):
    tierank.errors.ParameterError: n_trees: is a setting; give it to the ranker: UMart(n_trees=...)
    """
    for name in unknown:
        if name in settings:
            raise ParameterError("is a setting", argument=name, fix=f"give it to the ranker: {ranker}({name}=...)")
        if name in HINTS[method]:
            expected, fix = HINTS[method][name]
            raise ParameterError(argument=name, expected=expected, fix=fix)
        raise ParameterError.unknown(f"argument of {method}", name, known)
