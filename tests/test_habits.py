"""What users of XGBoost, LightGBM and scikit-learn type first: tables with a query column, group sizes, eval_set."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from sklearn.model_selection import cross_val_score

import tierank
from tierank import Columns, DataError, ParameterError, RankingDataset, UMart

RNG = np.random.default_rng(0)
N_QUERIES, LENGTH = 30, 8
N = N_QUERIES * LENGTH
QID = np.repeat([f"q{number}" for number in range(N_QUERIES)], LENGTH)
FEATURES = pd.DataFrame(RNG.normal(size=(N, 3)), columns=["a", "b", "c"])
Y = np.digitize(FEATURES["a"] + RNG.normal(size=N) / 2, [0, 1])
GROUP = np.full(N_QUERIES, LENGTH)
TABLE = FEATURES.assign(qid=QID)
SMALL = {"n_trees": 4, "n_leaves": 4, "n_jobs": 1}
TABLES = {"pandas": lambda table: table, "polars": pl.from_pandas, "arrow": pa.Table.from_pandas}
LISTWISE = {"query_features": True}  # scores depend on the list

# The last ten queries are validated on.
CUT = 20 * LENGTH
TRAIN, VALID = slice(None, CUT), slice(CUT, None)


@pytest.fixture(scope="module", params=[{}, LISTWISE], ids=["alone", "lists"])
def expected(request):
    """The ranker with query ids given by hand, and its settings."""
    return UMart(**SMALL, **request.param).fit(FEATURES, Y, qid=QID), request.param


def with_validation(X, y, **given):
    return UMart(**SMALL).fit(X, y, **given)


BY_HAND = with_validation(FEATURES[TRAIN], Y[TRAIN], qid=QID[TRAIN], valid=(FEATURES[VALID], Y[VALID], QID[VALID]))


def same(one, other):
    assert one.feature_names_in_.tolist() == other.feature_names_in_.tolist()
    assert one.history_ == other.history_
    assert np.array_equal(one.predict(FEATURES, qid=QID), other.predict(FEATURES, qid=QID))


# A table with a query column


@pytest.mark.parametrize("column", ["qid", "query_id", "group_id"])
@pytest.mark.parametrize("convert", TABLES.values(), ids=TABLES)
def test_a_query_column_gives_the_same_bits_as_query_ids(convert, column, expected, tmp_path):
    by_hand, settings = expected
    table = convert(TABLE.rename(columns={"qid": column}))
    fitted = UMart(**SMALL, **settings).fit(table, Y)
    same(fitted, by_hand)
    fitted.save(tmp_path / "model")
    for ranker in (fitted, tierank.load(tmp_path / "model")):
        assert (ranker.seen_.query_column, ranker.seen_.has_queries) == (column, True)
        assert np.array_equal(ranker.predict(table), by_hand.predict(FEATURES, qid=QID))
        assert ranker.rank(table).row.tolist() == by_hand.rank(FEATURES, qid=QID).row.tolist()
        assert ranker.score(table, Y) == by_hand.score(FEATURES, Y, qid=QID)
        matched = ranker.match_features(table)
        assert matched.feature_names == ("a", "b", "c")
        assert matched.query_ids.tolist() == list(dict.fromkeys(QID))
    scores = fitted.predict(table)
    assert tierank.evaluate((table, Y), scores).to_dict() == tierank.evaluate((Y, QID), scores).to_dict()


def test_rows_of_a_query_need_not_be_adjacent(expected):
    order = np.random.default_rng(1).permutation(N)
    ranker = UMart(**SMALL).fit(TABLE.iloc[order], Y[order])
    same(ranker, UMart(**SMALL).fit(FEATURES.iloc[order], Y[order], qid=QID[order]))


def test_a_usual_name_is_found_though_fit_had_another(expected):
    by_hand, _ = expected
    assert by_hand.seen_.query_column is None
    assert by_hand.rank(TABLE).row.tolist() == by_hand.rank(FEATURES, qid=QID).row.tolist()
    assert by_hand.score(TABLE, Y) == by_hand.score(FEATURES, Y, qid=QID)


def test_what_is_given_goes_before_the_column_in_scoring(expected):
    ranker, _ = expected
    halves = np.arange(N) // (N // 2)
    assert len(ranker.rank(TABLE, qid=halves, k=1).row) == 2


def test_the_same_lists_given_twice_are_used_once(expected):
    by_hand, settings = expected
    for given in (QID, TABLE["qid"], np.repeat(np.arange(N_QUERIES), LENGTH), "qid"):
        same(UMart(**SMALL, **settings).fit(TABLE, Y, qid=given), by_hand)
    same(UMart(**SMALL, **settings).fit(TABLE, Y, group=GROUP), by_hand)
    same(UMart(**SMALL, **settings).fit(TABLE.assign(query_id=QID), Y, qid="qid"), by_hand)


@pytest.mark.parametrize("column", [np.arange(N) // 4, np.arange(N) // 16, [None] * N, RNG.normal(size=N)])
def test_other_lists_given_twice_are_refused(column):
    table = FEATURES.assign(group_id=column)
    with pytest.raises(DataError, match="expected the ids in column 'group_id' of X, got others; give one") as caught:
        UMart(**SMALL).fit(table, Y, qid=QID)
    assert caught.value.argument == "qid"
    same(UMart(**SMALL).fit(table, Y, qid=QID, ignore=["group_id"]), UMart(**SMALL).fit(FEATURES, Y, qid=QID))


def test_two_query_columns_are_refused_until_one_is_named():
    table = TABLE.assign(query_id=np.arange(N) // 4)
    message = "^qid: expected one column of query ids in X, got 'qid' and 'query_id'; name the one that holds them"
    with pytest.raises(DataError, match=message):
        UMart(**SMALL).fit(table, Y)
    same(UMart(**SMALL).fit(table, Y, ignore=["query_id"]), UMart(**SMALL).fit(FEATURES, Y, qid=QID))


def test_a_declared_column_is_a_feature():
    table = TABLE.assign(group_id=np.array(["x", "y"])[np.arange(N) % 2])
    ranker = UMart(**SMALL).fit(table, Y, columns=Columns(categories=["group_id"]))
    assert ranker.seen_.query_column == "qid"
    assert "group_id" in ranker.columns_.categories
    assert ranker.predict(table).shape == (N,)


def test_a_model_that_learned_from_a_column_of_that_name_keeps_it():
    data = RankingDataset(FEATURES.assign(qid=RNG.normal(size=N)), Y, qid=QID)
    ranker = UMart(**SMALL).fit(data)
    assert "qid" in ranker.feature_names_in_
    with pytest.warns(UserWarning, match="ranked as one query"):
        assert len(ranker.rank(FEATURES.assign(qid=0.5), k=1).row) == 1


def test_missing_query_ids_are_refused():
    with pytest.raises(DataError, match="expected a query id in every row"):
        UMart(**SMALL).fit(TABLE.assign(qid=[None, *QID[1:]]), Y)


def test_a_table_without_a_query_column_is_not_evaluated():
    with pytest.raises(DataError, match=r"^data: expected query ids in a column qid, .*; give \(table, y, qid\)$"):
        tierank.evaluate((FEATURES, Y), np.zeros(N))


def test_folds_of_whole_queries_need_no_routing_with_a_query_column():
    folds = tierank.QueryKFold(3)
    for scoring in (None, tierank.scorer("ndcg@10")):
        found = cross_val_score(UMart(**SMALL), TABLE, Y, groups=QID, cv=folds, scoring=scoring)
        with sklearn.config_context(enable_metadata_routing=True):
            routed = cross_val_score(UMart(**SMALL), FEATURES, Y, params={"qid": QID}, cv=folds, scoring=scoring)
        assert found.tolist() == routed.tolist()
        alone = cross_val_score(UMart(**SMALL), TABLE, Y, cv=folds, scoring=scoring)
        assert alone.tolist() == found.tolist()


def test_routing_knows_the_arguments_of_fit():
    with sklearn.config_context(enable_metadata_routing=True):
        ranker = UMart().set_fit_request(qid="ids", valid=True, target=False)
        assert ranker.get_metadata_routing().fit.requests["qid"] == "ids"
        assert "group" not in ranker.get_metadata_routing().fit.requests


# Columns by name


@pytest.mark.parametrize("convert", TABLES.values(), ids=TABLES)
def test_ratings_and_queries_by_name(convert):
    frame = TABLE.rename(columns={"qid": "query"}).assign(rating=Y)
    train, valid = convert(frame[TRAIN]), convert(frame[VALID].reset_index(drop=True))
    ranker = with_validation(train, None, target="rating", qid="query", valid=valid)
    same(ranker, BY_HAND)
    assert ranker.seen_.query_column == "query"
    assert ranker.best_ == BY_HAND.best_
    pair = (valid, Y[VALID])  # the query column is that of training, and the ratings are no feature
    same(with_validation(train, None, target="rating", qid="query", valid=pair), BY_HAND)
    triple = (FEATURES[VALID], Y[VALID], QID[VALID])
    same(with_validation(train, None, target="rating", qid="query", valid=triple), BY_HAND)
    assert np.array_equal(ranker.predict(valid, qid="query"), ranker.predict(valid))
    assert ranker.rank(valid, qid="query").row.tolist() == ranker.rank(valid).row.tolist()


def test_the_query_column_needs_no_name_beside_the_ratings():
    frame = TABLE.assign(rating=Y)
    same(with_validation(frame[TRAIN], None, target="rating", valid=frame[VALID]), BY_HAND)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "ratnig"}, "^unknown column of target 'ratnig': did you mean 'rating'"),
        ({"qid": "qdi"}, "^unknown column of qid 'qdi': did you mean 'qid'"),
        ({"y": Y}, "^target: expected None with y, got some; give one of the two"),
        ({"X": FEATURES.to_numpy()}, "^target: expected None with an array, which has no names, got some"),
        ({"X": RankingDataset(FEATURES, Y, qid=QID)}, "^target: expected None with a RankingDataset"),
        ({"target": None}, r"requires y to be passed, .*; if X has columns .*, name them: fit\(X, target=\.\.\., qid"),
        ({"target": None, "y": Y, "valid": TABLE}, "^valid: expected a RankingDataset or .*, got DataFrame; give its"),
        ({"valid": TABLE}, "^valid: unknown column of target 'rating'|^unknown column of target 'rating'"),
        ({"valid": FEATURES.assign(rating=Y)}, r"^valid: expected \(X, y, qid\), as the training data have .*no qid"),
        ({"target": ["rating"]}, "^target: expected the name of one column"),
    ],
)
def test_wrong_names(change, message):
    arguments = {"X": TABLE.assign(rating=Y), "target": "rating"} | change
    with pytest.raises(tierank.TierankError, match=message):
        UMart(**SMALL).fit(**arguments)


# Group sizes and evaluation sets


def arrays(rows):
    return FEATURES[rows].to_numpy(), Y[rows]


ARRAYS_BY_HAND = with_validation(*arrays(TRAIN), qid=QID[TRAIN], valid=(*arrays(VALID), QID[VALID]))


@pytest.mark.parametrize(
    "given",
    [
        {"group": GROUP[:20], "eval_set": [arrays(VALID)], "eval_group": [GROUP[20:]]},
        {"group": GROUP[:20].tolist(), "eval_set": arrays(VALID), "eval_group": (pd.Series(GROUP[20:]),)},
        {"qid": QID[TRAIN], "eval_set": [arrays(VALID)], "eval_qid": [QID[VALID]]},
        {"qid": QID[TRAIN], "eval_set": [list(arrays(VALID))], "eval_qid": [QID[VALID].tolist()], "group": None},
        {"group": [*GROUP[:20], 0], "valid": (*arrays(VALID), QID[VALID]), "eval_set": None, "eval_group": None},
        {"qid": QID[TRAIN], "eval_set": [(*arrays(VALID), QID[VALID])]},
        {"qid": QID[TRAIN], "eval_set": [RankingDataset(*arrays(VALID), qid=QID[VALID])]},
    ],
)
def test_groups_and_evaluation_sets_give_the_same_bits(given):
    ranker = UMart(**SMALL).fit(*arrays(TRAIN), **given)
    assert ranker.history_ == ARRAYS_BY_HAND.history_
    assert np.array_equal(ranker.predict(FEATURES.to_numpy()), ARRAYS_BY_HAND.predict(FEATURES.to_numpy()))


def test_an_evaluation_set_may_be_a_table_with_a_query_column():
    same(with_validation(TABLE[TRAIN], Y[TRAIN], eval_set=[(TABLE[VALID], Y[VALID])]), BY_HAND)


@pytest.mark.parametrize("kind", [UMart, tierank.LambdaMART])
def test_a_call_like_that_of_pyterrier(kind):
    """As ``pt.ltr.apply_learned_model(learner, form="ltr")`` calls a learner; python-terrier needs Java."""

    def sizes(frame):
        return frame.groupby(["qid"], sort=False).count()["docno"].to_numpy()

    results = pd.DataFrame({"qid": QID, "docno": range(N), "features": list(FEATURES.to_numpy()), "label": Y})
    train, valid = results[TRAIN], results[VALID]
    learner = kind(n_jobs=1)
    learner.fit(
        np.stack(train["features"].values),
        train["label"].values,
        group=sizes(train),
        eval_set=[(np.stack(valid["features"].values), valid["label"].values)],
        eval_group=[sizes(valid)],
    )
    by_hand = kind(n_jobs=1).fit(*arrays(TRAIN), qid=QID[TRAIN], valid=(*arrays(VALID), QID[VALID]))
    features = np.stack(results["features"].values)
    assert np.array_equal(learner.predict(features), by_hand.predict(features))


@pytest.mark.parametrize(
    ("given", "argument", "message"),
    [
        ({"group": GROUP}, "group", "expected sizes with the sum 160, the rows of X, got 240; the rows of a query"),
        ({"group": [-8, *GROUP]}, "group", "expected whole numbers >= 0"),
        ({"group": [80.0, 80.0]}, "group", "expected whole numbers >= 0"),
        ({"group": 160}, "group", "expected whole numbers >= 0, the number of rows of each query, got 160"),
        ({"group": GROUP[:20], "qid": QID[TRAIN]}, "group", "expected None with qid, got some; give one of the two"),
        ({"eval_set": [arrays(VALID)]}, "valid", "got no qid; give them in valid, or beside eval_set as eval_qid or"),
        ({"eval_set": [arrays(VALID)] * 2}, "eval_set", "got 2 entries; evaluate on other sets after fit, with"),
        ({"eval_set": []}, "eval_set", r"expected a list with one entry, eval_set=\[\(X, y\)\], .* got 0 entries"),
        ({"eval_set": FEATURES}, "eval_set", "got DataFrame"),
        ({"eval_set": [FEATURES], "eval_qid": [QID]}, "eval_set", r"expected \[\(X, y\)\] with eval_qid, got \[Data"),
        ({"eval_qid": [QID[VALID]]}, "eval_set", r"expected \[\(X, y\)\] with eval_qid, got none"),
        (
            {"eval_set": [arrays(VALID)], "eval_group": GROUP[20:]},
            "eval_group",
            r"eval_group=\[sizes\], .* got ndarray",
        ),
        ({"eval_set": [arrays(VALID)], "eval_group": GROUP[20:].tolist()}, "eval_group", "got 10 entries"),
        ({"eval_set": [arrays(VALID)], "eval_group": [GROUP]}, "eval_group", "expected sizes with the sum 80"),
        ({"eval_set": [arrays(VALID)], "eval_qid": QID[VALID]}, "eval_qid", r"eval_qid=\[ids\], .* got ndarray"),
        ({"eval_set": [arrays(VALID)], "eval_qid": [QID]}, "valid", "expected 80 query ids, one per row of X"),
        (
            {"eval_set": [arrays(VALID)], "eval_qid": [QID[VALID]], "eval_group": [GROUP[20:]]},
            "eval_group",
            "expected None with eval_qid",
        ),
        (
            {"eval_set": [arrays(VALID)], "valid": arrays(VALID)},
            "eval_set",
            "expected None with valid, got some; give one of the two",
        ),
    ],
)
def test_wrong_groups_and_evaluation_sets(given, argument, message):
    with pytest.raises((DataError, ParameterError), match=message) as caught:
        UMart(**SMALL).fit(*arrays(TRAIN), **({} if "group" in given else {"qid": QID[TRAIN]}) | given)
    assert str(caught.value).startswith(f"{argument}: ")


def test_a_data_set_has_its_own_groups():
    data = RankingDataset(FEATURES, Y, qid=QID)
    with pytest.raises(DataError, match=r"^group: expected None with a RankingDataset, which has its own, got some$"):
        UMart(**SMALL).fit(data, group=GROUP)


def test_columns_that_pandas_numbers_have_names_too():
    frame = pd.DataFrame(np.column_stack([FEATURES, Y, np.repeat(np.arange(N_QUERIES), LENGTH)]))
    for target in ("3", 3):
        ranker = UMart(**SMALL).fit(frame, target=target, qid="4")
        assert ranker.feature_names_in_.tolist() == ["0", "1", "2"]
        assert np.array_equal(ranker.predict(frame), UMart(**SMALL).fit(FEATURES, Y, qid=QID).predict(FEATURES))


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("rating", ["rating", "label", "relevance", "grade"])
def test_a_table_with_ratings_is_evaluated_by_its_columns(kind, rating):
    table = TABLES[kind](FEATURES.assign(query=QID, **{rating: Y}))
    scores = {"a": FEATURES["a"].to_numpy(), "b": FEATURES["b"]}
    expected = tierank.evaluate((Y, QID), scores["a"], ["ndcg@10", "map"])
    got = tierank.evaluate(table, scores["a"], ["ndcg@10", "map"])
    assert got.to_dict() == expected.to_dict()
    assert str(tierank.compare(table, scores)) == str(tierank.compare((Y, QID), scores))


@pytest.mark.parametrize("missing", ["rating", "query"])
def test_a_table_without_ratings_or_queries_is_not_evaluated(missing):
    table = FEATURES.assign(query=QID, rating=Y).drop(columns=missing)
    with pytest.raises(DataError, match=f"expected a column .*{missing}.*, got a, b, c, ") as refused:
        tierank.evaluate(table, FEATURES["a"])
    assert refused.value.argument == "data"
