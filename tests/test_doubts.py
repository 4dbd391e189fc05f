"""Columns that should perhaps not be learned from, ``columns=`` and ``ignore=`` of ``fit``, and numbers of queries."""

import ast
import re
import warnings

import numpy as np
import pytest

import tierank
from tierank.cli import main
from tierank.data.leaks import columns_to_ignore, find_doubts, find_outcomes
from tierank.errors import DataError, ParameterError
from tierank.losses import Batch

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")


def shop(n_queries=40):
    """A table with an id, a constant, a leak, and two columns to learn from."""
    rng = np.random.default_rng(0)
    n = 10 * n_queries
    ratings = rng.integers(0, 3, n)
    columns = {
        "product_id": rng.permutation(n) + 1000,
        "country": np.ones(n),
        "clicks_later": ratings * 2.0 + 1,
        "price": rng.normal(size=n) + ratings,
        "brand": rng.choice(["a", "b", "c"], n),
    }
    return pandas.DataFrame(columns), ratings, np.repeat(np.arange(n_queries), 10)


MESSAGE = (
    "column 'product_id' looks like an id; column 'country' is the same for all documents; column 'clicks_later' gives"
    " the rating away: leave them out with ignore=['product_id', 'country', 'clicks_later']"
)


@pytest.mark.parametrize("convert", [lambda frame: frame, polars.from_pandas], ids=["pandas", "polars"])
def test_fit_warns_once_of_all_columns_with_what_to_paste(convert):
    frame, ratings, qid = shop()
    with pytest.warns(tierank.ColumnWarning) as said:
        tierank.UMart(n_trees=2).fit(convert(frame), ratings, qid)
    assert len(said) == 1
    assert str(said[0].message).startswith(MESSAGE)
    assert said[0].filename == __file__
    ignore = ["product_id", "country", "clicks_later"]
    ranker = tierank.UMart(n_trees=2).fit(convert(frame), ratings, qid, ignore=ignore)
    assert ranker.feature_names_in_.tolist() == ["price", "brand"]
    assert len(ranker.predict(convert(frame), qid)) == len(frame)


def test_a_data_set_is_warned_of_and_ignores_features_too():
    frame, ratings, qid = shop()
    with pytest.warns(tierank.ColumnWarning, match="'clicks_later' gives the rating away: leave it out with ignore="):
        data = tierank.read(frame.assign(rating=ratings, query=qid))
    with pytest.warns(tierank.ColumnWarning, match="leave them out with ignore="):
        tierank.LinearRanker(ridge=0.1).fit(data)
    ranker = tierank.LinearRanker(ridge=0.1).fit(
        data, valid=data.select([0]), ignore=["product_id", "country", "clicks_later"]
    )
    same = tierank.LinearRanker(ridge=0.1).fit(frame[["price", "brand"]], ratings, qid)
    np.testing.assert_array_equal(ranker.predict(data), same.predict(frame, qid))


def test_nothing_is_said_of_columns_without_names_or_doubt():
    frame, ratings, qid = shop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tierank.UMart(n_trees=2).fit(frame.drop(columns="brand").to_numpy(), ratings, qid)
        tierank.UMart(n_trees=2).fit(frame[["price", "brand"]], ratings, qid)


def test_a_constant_is_one_in_all_documents():
    n = 50_000
    values = np.zeros((n, 3), np.float32)
    values[7, 1] = 1  # not among the documents that are looked at first
    values[:, 2] = np.nan
    data = tierank.RankingDataset(values, np.arange(n) % 3, np.arange(n) // 100, feature_names=["a", "b", "c"])
    assert list(find_doubts(data)) == ["a", "c"]


@pytest.mark.parametrize("name", ["OHSUMED", "MQ2007-85", "MQ2008"])
def test_no_feature_of_public_data_looks_like_a_leak_or_an_id(name, request):
    file = request.config.rootpath.parent / "shared" / "data" / name / "S1.txt"
    if not file.exists():
        pytest.skip("no data here")
    data = tierank.read(file, cache=False)
    assert set(find_doubts(data).values()) <= {"is the same for all documents"}


def test_the_command_line_says_it_once(tmp_path, capsys):
    frame, ratings, qid = shop()
    frame.assign(rating=ratings, query=qid).to_csv(tmp_path / "d.csv", index=False)
    train = ["train", "umart", "--train", str(tmp_path / "d.csv"), "--set", "n_trees=2", "--out", str(tmp_path / "m")]
    assert main(train) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    assert len(said) == 1
    assert "--ignore product_id,country,clicks_later" in said[0]


# columns= and ignore= of fit


def test_fit_takes_the_columns_that_read_takes():
    frame, ratings, qid = shop()
    frame = frame[["price"]].assign(
        shop=np.arange(len(frame)) % 4, added=["2024-01-31", "2024-02-29"] * (len(frame) // 2), raw=[b"x"] * len(frame)
    )
    columns = tierank.Columns(categories=["shop"], dates=["added"], date_parts=["age", "month"])
    train, valid = ((frame[some], ratings[some], qid[some]) for some in (qid < 30, qid >= 30))
    ranker = tierank.UMart(n_trees=3).fit(*train, valid=valid, columns=columns, ignore=["raw"])
    whole = frame.assign(rating=ratings, query=qid)
    data = tierank.read(whole, columns=columns, ignore=["raw"])
    expected = tierank.UMart(n_trees=3).fit(data.select(np.arange(30)), valid=data.select(np.arange(30, 40)))
    np.testing.assert_array_equal(ranker.predict(frame, qid), expected.predict(data))
    assert ranker.columns_ == expected.columns_


def test_texts_are_matched_in_fit_too():
    titles = ["red shoe", "blue shoe", "green hat", "red hat"] * 10
    frame = pandas.DataFrame({"asked": np.repeat(["red shoe", "hat"], 20), "title": titles})
    ratings, qid = np.array([2, 1, 0, 1, *[0, 0, 2, 2]] * 5), np.repeat(np.arange(8), 5)
    columns = tierank.Columns(texts=[("asked", "title")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tierank.ColumnWarning)
        ranker = tierank.UMart(n_trees=2).fit(frame, ratings, qid, columns=columns)
    assert np.isfinite(ranker.predict(frame, qid)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": tierank.Columns()}, "columns: expected None with an array, which has no names, got some"),
        ({"ignore": ["a"]}, "ignore: expected None with an array, which has no names, got some"),
    ],
)
def test_an_array_has_no_names(arguments, message):
    with pytest.raises(ParameterError, match=message):
        tierank.UMart().fit(np.eye(4), [1, 0, 1, 0], **arguments)


def test_columns_to_ignore_have_to_be_there():
    frame, ratings, qid = shop()
    with pytest.raises(ParameterError, match="unknown column of ignore 'prise': did you mean 'price'"):
        tierank.UMart().fit(frame, ratings, qid, ignore=["prise"])
    with pytest.raises(ParameterError, match="ignore: expected a list of columns, got 'price'"):
        tierank.UMart().fit(frame, ratings, qid, ignore="price")
    data = tierank.read(frame.drop(columns="clicks_later").assign(rating=ratings, query=qid))
    with pytest.raises(DataError, match="columns: expected None with a RankingDataset, which has its own"):
        tierank.UMart().fit(data, columns=tierank.Columns())
    with pytest.raises(DataError, match=r"column 'raw': .* leave the column out with ignore=\['raw'\]"):
        tierank.UMart().fit(frame.assign(raw=[b"x"] * len(frame)), ratings, qid)


# Numbers of queries


@pytest.mark.parametrize(
    ("queries", "got"),
    [
        ([3], "got 3"),
        ([-4], "got -4"),
        ([0.5], r"got shape \(1,\) of float64"),
        (["a"], r"got shape \(1,\) of <U1"),
        ([[0, 1]], r"got shape \(1, 2\) of int64"),
        (1, r"got shape \(\) of int64"),
        ([True, False], "got a mask of 2"),
    ],
)
def test_queries_that_are_not_there_cannot_be_selected(queries, got):
    data = tierank.RankingDataset(np.eye(4), [0, 1, 0, 1], qid=[7, 7, 8, 9])
    with pytest.raises(DataError, match=r"queries: expected numbers from 0 to 2, or a mask of 3 values.*" + got):
        data.select(queries)
    with pytest.raises(DataError, match="expected at least one query to select, got none"):
        data.select([])
    assert data.select([-1]).query_ids.tolist() == [9]
    assert data.select(np.array([True, False, True])).query_ids.tolist() == [7, 9]


def test_places_of_callers_never_reach_numpy_unchecked(tmp_path):
    data = tierank.RankingDataset(np.eye(20), np.arange(20) // 10, qid=np.arange(20) % 10)
    for method in (data.arrange, data.restore):
        with pytest.raises(DataError, match="values: expected 20, one per document, got 2"):
            method(np.zeros(2))
    with pytest.raises(DataError, match="features: expected 20, one per document, got 2"):
        data.with_features(np.zeros((2, 3), np.float32), None)
    with pytest.raises(DataError, match=r"queries: expected numbers from 0 to 0.*got 5"):
        Batch([0, 2], [1, 0]).take([5])
    log = tierank.clicks.ClickLog.of(session=[1], document=["a"], position=[1], clicked=[1])
    with pytest.raises(DataError, match=r"sessions: expected numbers from 0 to 0.*got 7"):
        log.select([7])
    assert log.select([]).n_sessions == 0
    run = tierank.cross_validate({"a": tierank.LinearRanker(ridge=0.1)}, data, out=tmp_path / "run", n_jobs=1)
    with pytest.raises(ParameterError, match="fold: expected an integer >= 0 and <= 4, got 9"):
        run.scores("a", 9, 0)
    with pytest.raises(ParameterError, match="seed: expected a seed of the run: 0, got 3"):
        run.model("a", 0, 3)
    with pytest.raises(ParameterError, match="unknown system 'b'"):
        run.ranker("b", 0, 0)
    with pytest.raises(ParameterError, match="fold: expected an integer >= 0 and <= 4"):
        run.read_fold(-1)


def test_the_advice_leaves_out_what_it_names():
    """Numbers of a vector are features that no column is called by; what is said of them works all the same."""
    rng = np.random.default_rng(0)
    x, qid = rng.normal(size=200), np.repeat(np.arange(20), 10)
    ratings = np.clip(np.round(x + 1), 0, 3)
    table = polars.DataFrame(
        {
            "vector": [[0.0, value, ratings[k]] for k, value in enumerate(rng.normal(size=200))],
            "empty": [[1.0, 2.0]] * 200,
            "x": x + rng.normal(size=200),
        }
    )
    with pytest.warns(tierank.ColumnWarning) as warned:
        tierank.UMart(n_trees=2).fit(table, ratings, qid)
    said = str(warned[0].message)
    assert "'vector_0'" not in said  # a number that never changes, in a vector that does, is nothing to act on
    advice = ast.literal_eval(re.search(r"ignore=(\[.*\])", said)[1])
    assert advice == ["vector_2", "empty_0", "empty_1"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", tierank.ColumnWarning)
        ranker = tierank.UMart(n_trees=2).fit(table, ratings, qid, ignore=advice)
    assert ranker.feature_names_in_.tolist() == ["vector_0", "vector_1", "x"]
    assert np.array_equal(ranker.predict(table), ranker.predict(table.drop("empty")))
    with pytest.warns(tierank.ColumnWarning, match="column 'vector_2' gives the rating away"):
        data = tierank.read(table.with_columns(qid=polars.Series(qid), rating=polars.Series(ratings)))
    assert columns_to_ignore(advice, data) == ["empty"]
    with pytest.raises(tierank.ParameterError, match="unknown column of ignore 'vector_9'"):
        tierank.UMart(n_trees=2).fit(table, ratings, qid, ignore=["x", "vector_9"])


# Outcomes


def visits(n_queries=60, length=12):
    """A table of searches as a shop logs them: clicks, and orders of what was clicked."""
    rng = np.random.default_rng(1)
    n = n_queries * length
    clicks = rng.poisson(0.8, n)
    columns = {
        "search_term": [f"search {k}" for k in np.repeat(np.arange(n_queries), length)],
        "x": rng.normal(size=n) + clicks,
        "clicks": clicks,
        "orders": rng.binomial(clicks, 0.4),
        "clicks_last_month": rng.poisson(5, n),
    }
    return pandas.DataFrame(columns)


@pytest.mark.parametrize("ending", ["", ".csv", ".parquet", ".tierank"])
def test_outcomes_beside_the_rating_are_named_when_read_and_in_fit(tmp_path, ending):
    table, named = visits(), {"query": "search_term", "rating": "clicks"}
    said = (
        "column 'orders' gives the rating away: leave it out with ignore=['orders'], if that is not intended; the"
        " rating is column 'clicks'"
    )
    source = tmp_path / f"shop{ending}" if ending else table
    if ending == ".csv":
        table.to_csv(source, index=False)
    elif ending == ".parquet":
        table.to_parquet(source)
    elif ending:
        with pytest.warns(tierank.ColumnWarning):
            tierank.write(tierank.read(table, **named), source)
        named = {}
    with pytest.warns(tierank.ColumnWarning) as warned:
        data = tierank.read(source, **named)
    assert [str(one.message) for one in warned] == [said]
    assert warned[0].filename == __file__
    with pytest.warns(tierank.ColumnWarning, match="'orders' gives the rating away"):
        tierank.UMart(n_trees=2).fit(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tierank.ColumnWarning)
        tierank.UMart(n_trees=2).fit(tierank.read(source, **named, ignore=["orders"]))
        tierank.read(source, **named, features=["x", "orders"])  # chosen by name


@pytest.mark.parametrize("seed", range(3))
def test_columns_that_order_as_the_rating_does_give_it_away(seed):
    """Also those that order only some pairs, or the other way round; a column of noise on top does not."""
    rng = np.random.default_rng(seed)
    n, qid = 1200, np.repeat(np.arange(100), 12)
    ratings = rng.integers(0, 5, n)
    columns = {
        "rank_of_sale": -3.0 * ratings + rng.uniform(0, 2, n),  # all pairs, turned
        "is_best": (ratings == 4) * 1.0,  # a third of the pairs
        "seen_late": np.where(rng.random(n) < 0.3, np.nan, 2.0**ratings),
        "strong": ratings + rng.normal(0, 1.5, n),
        "noise": rng.normal(size=n),
        "rare": (rng.random(n) < 0.01) * 1.0,
    }
    data = tierank.RankingDataset(pandas.DataFrame(columns), ratings, qid)
    shares = {
        name: share_ordered_alike(np.nan_to_num(column, nan=-np.inf), ratings, qid) for name, column in columns.items()
    }
    expected = {name for name, (alike, ordered) in shares.items() if max(alike, 1 - alike) >= 0.95 and ordered >= 0.1}
    assert set(find_doubts(data)) == expected == {"rank_of_sale", "is_best"}
    assert find_outcomes(data.select([0])) == {}  # 12 documents show nothing


def share_ordered_alike(values, ratings, qid):
    """Of all pairs of different ratings: the share that values order alike, and the share that they order at all."""
    above, below = np.nonzero((qid[:, None] == qid) & (ratings[:, None] > ratings))
    higher, lower = (values[above] > values[below]).sum(), (values[above] < values[below]).sum()
    return higher / max(1, higher + lower), (higher + lower) / len(above)


@pytest.mark.parametrize("file", ["MQ2008/S1.txt", "LightGBM-example/rank.train"])
def test_features_of_public_data_with_names_are_no_outcomes(file, request, tmp_path):
    path = request.config.rootpath.parent / "shared" / "data" / file
    if not path.exists():
        pytest.skip("no data here")
    data = tierank.read(path, cache=False)
    names = tuple(f"f{k}" for k in range(data.n_features))
    tierank.write(data.replace(feature_names=names), tmp_path / "data.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error", tierank.ColumnWarning)
        tierank.read(tmp_path / "data.parquet")


def test_generated_data_and_names_that_say_more_are_no_outcomes():
    names = ("clicks_30d", "past_orders", "sales", "stars", "border", "n_words", "count", "target_price", "cart_size")
    data = tierank.make_ranking(60, n_features=len(names)).replace(feature_names=names)
    assert find_doubts(data) == {}
    outcomes = ("nClicks", "add_to_cart", "isClicked", "order-count", "click_bool", "purchases", "label", "relevance")
    data = tierank.make_ranking(60, n_features=len(outcomes)).replace(feature_names=outcomes)
    assert tuple(find_doubts(data)) == outcomes


# What was read


def test_what_is_printed_names_columns(tmp_path, capsys):
    table = visits().drop(columns="orders")
    data = tierank.read(table, query="search_term", rating="clicks")
    assert str(data) == (
        "RankingDataset(60 queries of 'search_term', 720 documents, 2 features (x, clicks_last_month), ratings 0 to"
        f" {table['clicks'].max()} of 'clicks')"
    )
    train, test = data.split(0.5, 0.5)
    assert train.roles == tierank.RankingDataset.concat([train, test]).roles == data.roles
    assert "search_term" in data._repr_html_()
    table.to_csv(tmp_path / "d.csv", index=False)
    reading = ["--query-column", "search_term", "--rating-column", "clicks"]
    for command in (
        ["describe", str(tmp_path / "d.csv")],
        ["train", "umart", "--train", str(tmp_path / "d.csv"), "--set", "n_trees=2", "--out", str(tmp_path / "m")],
    ):
        assert main([*command, *reading]) == 0
        said = capsys.readouterr().err
        assert "60 queries of 'search_term'" in said
        assert "of 'clicks'" in said
        assert "2 features (x, clicks_last_month)" in said
    wide = tierank.make_ranking(3, n_features=30).replace(feature_names=tuple(f"f{k}" for k in range(30)))
    assert "f11, ...)" in repr(wide)
    assert "f12" not in repr(wide)
