"""Arguments of other libraries, and of the wrong type: each is refused with what to give instead."""

import inspect
import re

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.model_selection import cross_val_score

import tierank
from tierank import RANKERS, DataError, LambdaMART, ParameterError, UMart, URank
from tierank.rankers.presets import HINTS

TABLE = pd.DataFrame({"query": [1, 1, 1, 2, 2, 2], "rating": [0, 1, 2, 0, 1, 2], "price": [1.0, 2, 3, 4, 5, 6]})


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(20, n_features=4, mean_length=8, max_length=12)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("group_id", "^group_id: is not an argument of fit; give qid, one query id per row"),
        ("groups", "^groups: is not an argument of fit; give qid, one query id per row"),
        ("eval_metric", r"; the setting select_by has the metrics: UMart\(select_by=\['ndcg@10'\]\)"),
        ("init_model", "; give fit start, a fitted ranker; tierank.from_lightgbm makes one"),
        ("init_score", "; the setting base is a ranker that trees add to"),
        ("sample_weight", r"; give row_weight, one weight per row, or query_weight"),
        ("early_stopping_rounds", "; the setting patience stops early"),
        ("verbose", r"; fit\(progress=True\) shows a progress bar, and callbacks"),
        ("positions", "^unknown argument of fit 'positions': did you mean 'position'"),
        ("n_trees", r"^n_trees: is a setting; give it to the ranker: UMart\(n_trees=...\)"),
        ("vaild", "^unknown argument of fit 'vaild': did you mean 'valid'"),
        ("row_weights", "^unknown argument of fit 'row_weights': did you mean 'row_weight'"),
    ],
)
def test_fit_says_what_to_give_instead(name, message, data):
    with pytest.raises(ParameterError, match=message):
        UMart(n_trees=2).fit(data, **{name: [1]})


@pytest.mark.parametrize("kind", [*RANKERS.values(), tierank.NetworkRanker, tierank.TreeRanker])
def test_all_rankers_refuse_before_any_work(kind):
    with pytest.raises(ParameterError, match="group_id: is not an argument of fit; give qid"):
        kind().fit(None, None, group_id=[3, 2])


@pytest.mark.parametrize("method", ["predict", "rank"])
def test_scoring_says_what_to_give_instead(method, data):
    ranker = LambdaMART(n_trees=2, n_jobs=1).fit(data)
    score = getattr(ranker, method)
    for name, message in {
        "group": r"; give qid, one query id per row: np.repeat\(np.arange\(len\(group\)\), group\) makes it",
        "eval_set": rf"^eval_set: is not an argument of {method}; give fit valid=\(X, y, qid\), or a RankingDataset",
        "raw_score": "; leave it out: scores are raw scores",
        "num_iteration": "; leave it out: all trees that were kept are used",
        "qids": f"unknown argument of {method} 'qids': did you mean 'qid'",
    }.items():
        with pytest.raises(ParameterError, match=message):
            score(data, **{name: 1})


def test_no_hint_hides_an_argument():
    for method in ("fit", "predict", "rank"):
        assert not set(HINTS) & set(inspect.signature(getattr(tierank.Ranker, method)).parameters)


def test_the_signature_says_what_fit_takes():
    parameters = inspect.signature(UMart.fit).parameters
    assert {"X", "y", "qid", "valid", "row_weight", "query_weight", "callbacks", "start"} <= set(parameters)
    assert [name for name, one in parameters.items() if one.kind is one.VAR_KEYWORD] == ["unknown"]


def test_scikit_learn_routes_query_ids_and_nothing_else(data):
    with sklearn.config_context(enable_metadata_routing=True):
        request = UMart().get_metadata_routing().fit.requests
        assert request["qid"] is True
        assert "unknown" not in request
        arguments = np.array(data.features), data.ratings
        queries = np.repeat(data.query_ids, data.lengths)
        splits = tierank.QueryKFold(2)
        scores = cross_val_score(UMart(n_trees=2, n_jobs=1), *arguments, params={"qid": queries}, cv=splits)
    assert len(scores) == 2


def test_ranked_documents_have_their_ids(data):
    names = [f"d{row}" for row in range(data.n_documents)]
    order = np.random.default_rng(0).permutation(data.n_documents)
    queries = np.repeat(data.query_ids, data.lengths)
    named = tierank.RankingDataset(
        data.features[order], data.ratings[order], queries[order], document_ids=[names[row] for row in order]
    )
    ranker = URank(max_epochs=1, n_jobs=1).fit(data)
    ranked = ranker.rank(named, k=2)
    assert ranked._fields == ("query", "rank", "row", "document", "score")
    assert ranked.document.tolist() == [names[order[row]] for row in ranked.row]
    assert ranker.rank(data).document is None


def functions_of_data():
    """The public functions, and the parameters of each that are data sets."""
    for name in tierank.__all__:
        made = getattr(tierank, name)
        if not inspect.isfunction(made) and made is not tierank.Judge:
            continue
        for parameter in inspect.signature(made).parameters.values():
            if str(parameter.annotation) in ("RankingDataset", "RankingDataset | None"):
                yield pytest.param(made, parameter.name, id=f"{name}-{parameter.name}")


@pytest.mark.parametrize(("function", "parameter"), list(functions_of_data()))
@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ("shop.csv", "got str; tierank.read makes one from a file"),
        ((np.eye(3), [0, 1, 2]), "got tuple; RankingDataset.X, y, qid=qid. makes one from arrays or a table"),
    ],
)
def test_what_is_no_data_set_is_refused_with_how_to_make_one(function, parameter, given, fix, data, tmp_path):
    ranker = LambdaMART(n_trees=2).fit(data)
    others = {
        "data": data,
        "train": data,
        "valid": data,
        "ranker": ranker,
        "scores": ranker.predict(data),
        "path": tmp_path / "made",
        "query": data.query_ids[0],
        "above": 1,
        "below": 2,
        "to": "c",
    }
    needed = inspect.signature(function).parameters.values()
    arguments = {one.name: others[one.name] for one in needed if one.name in others and one.default is one.empty}
    if function is tierank.distill:
        arguments["blend"] = tierank.Blend()
    if function is tierank.read_scores:
        (tmp_path / "made").write_text("0.5\n" * data.n_documents)
    if function is tierank.verify:
        ranker.export(tmp_path / "made", "c")
    with pytest.raises(DataError, match=f"^{parameter}: expected a RankingDataset, {fix}$"):
        function(**arguments | {parameter: given})
    assert not (tmp_path / "made").exists() or function in (tierank.read_scores, tierank.verify)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: UMart(100), r"^UMart: expected settings by name, such as .*=\.\.\., got 100 without a name$"),
        (
            lambda data: tierank.TreeRanker("urank", 5),
            "^TreeRanker: expected settings by name, .* got 5 without a name$",
        ),
        (
            lambda data: data.split("a", "b"),
            r"^shares: expected positive shares that sum to at most 1, such as 0.8 and 0.2, got \('a', 'b'\)",
        ),
        (lambda data: tierank.load(data), "^path: expected the path of a model folder, got RankingDataset$"),
        (lambda data: tierank.plot_history(data), "^ranker: expected a fitted ranker, got RankingDataset$"),
        (lambda data: tierank.plot_wins(data), "^comparison: expected what compare returns, got RankingDataset$"),
        (
            lambda data: OwnInit().fit(data),
            r"^OwnInit.__init__: expected all settings as arguments, got none for sigma and",
        ),
        (
            lambda data: UMart().fit(data, epochs=3),
            "^epochs: is not an argument of fit; the setting max_epochs of neural rankers",
        ),
    ],
)
def test_other_mistakes_of_newcomers(call, message, data):
    with pytest.raises(ParameterError, match=message):
        call(data)


class OwnInit(LambdaMART):
    def __init__(self, boost=2):
        super().__init__(n_trees=3 * boost)
        self.boost = boost


def test_lists_of_different_lengths_are_no_matrix(data):
    ranker = LambdaMART(n_trees=2).fit(data)
    with pytest.raises(
        DataError, match="expected an array, or lists of equal length, got tuple of parts of different shapes"
    ):
        ranker.predict((data.features, data.ratings))


# Settings and attributes by the names of other libraries


@pytest.mark.parametrize("kind", [*RANKERS.values(), tierank.NetworkRanker, tierank.TreeRanker])
def test_an_argument_of_fit_is_not_a_setting(kind):
    names = set(inspect.signature(kind.fit).parameters) - {"self", "unknown"}
    assert not names & set(kind.declared_settings())
    for name in names:
        message = rf"^{name}: is an argument of fit; give it there: fit\(\.\.\., {name}=\.\.\.\)$"
        with pytest.raises(ParameterError, match=message):
            kind(**{name: 1})


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (URank, "random_state", "^random_state: expected seed, which is the name of this setting in URank"),
        (URank, "batch_size", "^batch_size: expected queries_per_step, which is the name of this setting in URank"),
        (tierank.Blend, "n_estimators", "^n_estimators: expected n_trees, which is the name of this setting in Blend"),
        (UMart, "iterations", "^iterations: expected n_trees, which is the name of this setting in UMart"),
        (UMart, "eval_metric", "^eval_metric: expected select_by, which is the name of this setting in UMart"),
        (tierank.LinearRanker, "alpha", "^alpha: expected ridge, which is the name of this setting in LinearRanker"),
        (
            URank,
            "eval_set",
            r"^eval_set: is not a setting of URank; give fit valid=\(X, y, qid\), or a RankingDataset",
        ),
        (
            UMart,
            "importance_type",
            "^importance_type: is not a setting of UMart; feature_importances_ of tree rankers are gains",
        ),
        (URank, "verbose", r"^verbose: is not a setting of URank; fit\(progress=True\) shows a progress bar"),
        (URank, "weights", "^unknown setting of URank 'weights': UMart, Blend have it. Known: "),
    ],
)
def test_settings_of_newcomers(kind, name, message):
    with pytest.raises(ParameterError, match=message):
        kind(**{name: 1})
    with pytest.raises(ParameterError, match=message):
        kind().set_params(**{name: 1})


ATTRIBUTES = {name: hint.removeprefix("use ") for name, hint in HINTS.items() if hint.startswith("use ")}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_of_another_library_is_named(name, data):
    fitted = LambdaMART(n_trees=2, n_jobs=1).fit(data)
    for ranker in (fitted, URank()):
        assert not hasattr(ranker, name)
        with pytest.raises(AttributeError, match=f"^'{type(ranker).__name__}' object has no attribute '{name}': use "):
            getattr(ranker, name)
    ours = re.match(r"\w+(\.\w+)?", ATTRIBUTES[name])[0]
    assert hasattr(tierank, ours[8:]) if ours.startswith("tierank.") else hasattr(fitted, ours) or ours in NAMED_DATA


# Only rankers of named features have this attribute.
NAMED_DATA = ("feature_names_in_",)


@pytest.mark.parametrize("kind", [*RANKERS.values(), tierank.NetworkRanker, tierank.TreeRanker])
def test_fitted_attributes_say_that_a_ranker_is_not_fitted(kind):
    """Also those that are properties of the model."""
    ranker = kind()
    properties = [
        name
        for name in dir(kind)
        if name.endswith("_") and not name.endswith("__") and isinstance(getattr(kind, name), property)
    ]
    assert {"history_", "best_", "columns_"} <= set(properties)
    for name in [*properties, "model_", "seen_", "settings_"]:
        assert not hasattr(ranker, name)
        with pytest.raises(tierank.NotFittedError, match=f"^this {kind.__name__} is not fitted; call fit first$"):
            getattr(ranker, name)


def test_a_misspelt_attribute_is_refused_and_python_can_suggest_another():
    ranker = UMart()
    with pytest.raises(AttributeError, match=r"^'UMart' object has no attribute 'n_tree'$") as caught:
        ranker.n_tree
    assert (caught.value.name, caught.value.obj) == ("n_tree", ranker)


# Data that come in another form


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shop.csv"], "^X: expected a RankingDataset, an array or a table, got str; tierank.read makes a data set"),
        (
            [TABLE],
            r"requires y to be passed, .*; if X has columns of ratings and query ids, name them: fit\(X, target=",
        ),
        ([TABLE, "rating"], "^y: expected 6 ratings, one per row of X, got str; pass the column itself, or name the"),
        ([TABLE.to_numpy(), TABLE["rating"], "query"], "^qid: expected 6 query ids, one per row of X, got str; pass"),
    ],
)
def test_data_by_name(arguments, message):
    with pytest.raises(DataError, match=message):
        UMart(n_trees=2).fit(*arguments)


def test_means_of_texts_without_query_ids():
    texts = [f"text {number}" for number in range(300)] * 2
    table = pd.DataFrame({"text": texts, "price": np.arange(600.0)})
    with pytest.raises(DataError, match=r"expected at least 5 queries .*, got 1; give one query id per row"):
        UMart(n_trees=2).fit(table, np.arange(600) % 3)


def test_a_file_or_a_ranker_in_place_of_arrays_is_told_what_to_do():
    data = tierank.make_ranking(20, n_features=3, mean_length=6, max_length=10)
    ranker = tierank.UMart(n_trees=2, n_jobs=1).fit(data)
    with pytest.raises(tierank.DataError, match=r"X: expected a matrix .*, got str; tierank\.read makes a data set"):
        ranker.predict("test.txt")
    with pytest.raises(tierank.DataError, match=r"scores: expected \d+, .*, got UMart; pass ranker\.predict\(data\)"):
        tierank.compare(data, {"uMart": ranker, "random": np.zeros(data.n_documents)})
