"""What to say about arguments of LightGBM, XGBoost and CatBoost that ``fit``, ``predict`` and ``rank`` do not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tierank.errors import ParameterError

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
    "groups": (_QID, _FROM_SIZES),
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
    "groups": (_QID, _FROM_SIZES),
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
