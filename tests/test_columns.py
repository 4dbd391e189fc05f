"""Tables as people have them: texts, categories, dates and vectors, from the table to a served model."""

import json
import re
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples
from serve_tools import ask

import tierank
from tierank import Columns, DataError, Judge, LambdaMART, LinearRanker, ParameterError, RankingDataset, UMart, URank
from tierank.cli import main
from tierank.data.columns import Age, Category, Mean, kinds_from_json, kinds_to_json, recode
from tierank.data.encoder import ColumnEncoder

NUMBERS = {"n_trees": 8, "min_documents": 3, "n_jobs": 1}
TREES = {**NUMBERS, "min_data_per_group": 1, "cat_smooth": 1.0}
DATES = Columns(dates=["listed"])


def shop(n_queries=30, length=8, seed=0):
    """A shop's table: texts, a category with a level that no row has, dates, a number with gaps."""
    rng = np.random.default_rng(seed)
    n = n_queries * length
    brand = rng.choice(["acme", "bolt", "core", "dash"], n).astype(object)
    brand[rng.random(n) < 0.05] = None
    size = pd.Categorical(rng.choice(["S", "M", "L"], n), categories=["XL", "S", "M", "L"])
    price = np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n))
    listed = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D")
    worth = 1.5 * (brand == "acme") + (size == "M") + 0.5 * np.nan_to_num(price) + rng.normal(size=n) * 0.2
    return pd.DataFrame(
        {
            "qid": np.repeat(np.arange(n_queries), length),
            "rating": np.digitize(worth, [0.5, 1.2, 2.0]),
            "sku": [f"p{k}" for k in range(n)],
            "brand": brand,
            "size": size,
            "price": price,
            "listed": listed,
        }
    )


@pytest.fixture(scope="module")
def frame():
    return shop()


@pytest.fixture(scope="module")
def data(frame):
    return tierank.read(frame, document="sku")


@pytest.fixture(scope="module")
def ranker(data):
    return UMart(**TREES).fit(data)


def assert_same(one, other):
    np.testing.assert_array_equal(one, other)


# Forms


def test_all_forms_of_a_table_give_the_same_data_and_the_same_model(frame, data, ranker, tmp_path):
    frame.to_csv(tmp_path / "shop.csv", index=False)
    frame.to_parquet(tmp_path / "shop.parquet")
    texts = frame.assign(size=frame["size"].astype(str))
    forms = {
        "csv": (tmp_path / "shop.csv", DATES),
        "parquet": (tmp_path / "shop.parquet", None),
        "polars": (pl.from_pandas(frame), None),
        "arrow": (pa.Table.from_pandas(frame), None),
        "texts": (texts, None),
        "shuffled levels": (frame.assign(size=frame["size"].cat.reorder_categories(["L", "XL", "M", "S"])), None),
    }
    for form, (source, columns) in forms.items():
        found = tierank.read(source, document="sku", columns=columns)
        assert found.kinds == data.kinds, form
        assert found.feature_names == data.feature_names
        assert_same(found.features, data.features)
        assert UMart(**TREES).fit(found).model_.text == ranker.model_.text, form


def test_the_order_of_rows_changes_no_bit(frame, ranker):
    rows = np.random.default_rng(3).permutation(len(frame))
    assert UMart(**TREES).fit(tierank.read(frame.iloc[rows], document="sku")).model_.text == ranker.model_.text


def test_data_sets_are_written_and_read_back(data, tmp_path):
    for name, columns in (("a.parquet", None), ("a.csv", DATES), ("a.tierank", None)):
        tierank.write(data, tmp_path / name)
        back = tierank.read(tmp_path / name, columns=columns)
        assert back.kinds == data.kinds, name
        assert_same(back.features, data.features)


def test_levels_of_parts_are_joined_and_those_of_a_selection_are_learned(frame, data):
    early, late = frame[frame.qid < 10], frame[frame.qid >= 10].assign(brand="zeta")
    joined = RankingDataset.concat([tierank.read(one, document="sku") for one in (early, late)])
    whole = tierank.read(pd.concat([early, late]), document="sku")
    assert joined.kinds == whole.kinds
    assert_same(joined.features, whole.features)
    part = whole.select(np.arange(10))
    assert part.kinds["brand"].levels[-1] == "zeta"
    fitted = LambdaMART(**TREES).fit(part)
    assert "zeta" not in fitted.seen_.columns.kinds["brand"].levels
    assert fitted.model_.text == LambdaMART(**TREES).fit(tierank.read(early, document="sku")).model_.text
    other = tierank.read(early.assign(brand=1.0), document="sku")
    with pytest.raises(DataError, match="feature 'brand': expected the same kind of values in all parts, got two"):
        RankingDataset.concat([data, other.replace(query_ids=other.query_ids + 100)])


def test_booleans_are_the_same_numbers_in_every_form(frame, tmp_path):
    """True and False of pandas, true and false of others; a model of one form scores the others."""
    stock = np.arange(len(frame)) % 3 == 0
    table = frame.drop(columns=["sku"]).assign(stock=stock)
    words = {"true": ("True", "False"), "lower": ("true", "false"), "gaps": ("TRUE", " false ")}
    found = {}
    for name, (yes, no) in words.items():
        cells = np.where(stock, yes, no).astype(object)
        if name == "gaps":
            cells[:5] = ["", "NA", "nan", None, "null"]
        table.assign(stock=cells).to_csv(tmp_path / f"{name}.csv", index=False)
        found[name] = tierank.read(tmp_path / f"{name}.csv", columns=DATES)
    data = tierank.read(table)
    assert "stock" not in data.kinds
    assert_same(found["true"].features, data.features)
    assert_same(found["lower"].features, data.features)
    assert_same(found["gaps"].features[:, -1], np.where(np.arange(len(frame)) < 5, np.nan, stock))
    table.assign(stock=["true", "no"] * (len(table) // 2)).to_csv(tmp_path / "words.csv", index=False)
    assert tierank.read(tmp_path / "words.csv", columns=DATES).kinds["stock"].levels == ("no", "true")
    with pytest.raises(DataError, match="column 'rating': expected numbers, got 'True' in line 2"):
        tierank.read(_with_ratings_of_truth(table, tmp_path))


def _with_ratings_of_truth(table, folder):
    table.assign(rating=True).to_csv(folder / "ratings.csv", index=False)
    return folder / "ratings.csv"


@pytest.mark.parametrize("make", [pd.DataFrame, lambda columns: pl.DataFrame(columns, strict=False)])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1.0, 2.0], [3.0]], "got vectors of 1 and 2 numbers"),
        ([[[1.0], [2.0, 3.0]], [[1.0], [2.0]]], "got lists of lists"),
        ([[[1.0, 2.0]], [[3.0, 4.0]]], "got lists of lists"),
        ([{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 4.0}], "got {'a': 1.0, 'b': 2.0}"),
    ],
)
def test_lists_that_are_no_vectors_are_refused(make, values, message):
    with pytest.raises(
        DataError, match=re.escape(f"column 'odd': expected numbers, texts, dates or vectors, {message}")
    ):
        tierank.read(make({"qid": [1, 1], "rating": [0, 1], "odd": values}))


def test_numbers_among_lists_are_refused():
    with pytest.raises(DataError, match=r"column 'odd': .* got vectors and other values such as 5"):
        tierank.read(pd.DataFrame({"qid": [1, 1], "rating": [0, 1], "odd": [[1.0, 2.0], 5]}))


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        ([[1.0, 2.0], "x" * 10_000], {}),
        (["x" * 10_000, 5], {}),
        (["x", [5] * 10_000], {}),
        (["2024-01-31", "x" * 10_000], {"dates": ["odd"]}),
        (["2024-01-31", [5] * 10_000], {"dates": ["odd"]}),
        ([1.0, "x" * 10_000], {}),
        ([[1.0, 2.0], ["x" * 10_000, 1.0]], {}),
    ],
)
def test_messages_show_only_the_start_of_a_long_value(values, columns):
    odd = np.empty(2, object)
    odd[:] = values
    table = pd.DataFrame({"plain": [1.0, 2.0], "odd": odd})
    with pytest.raises(DataError, match=r"column 'odd': expected .*(x|5)") as error:
        tierank.UMart().fit(table, [0, 1], [0, 0], columns=tierank.Columns(**columns))
    assert len(str(error.value)) < 400


def test_a_column_that_comes_twice_is_refused(frame, ranker):
    table = frame.drop(columns=["qid", "rating", "sku"])
    with pytest.raises(DataError, match="expected each column once, got 'brand' twice; rename one of them"):
        ranker.predict(pd.concat([table, table[["brand"]]], axis=1))


def test_a_number_that_is_a_name_may_be_written_in_any_form(frame, tmp_path):
    """Shops 1, 2, 3 as integers, floats, texts, categories, with gaps, and from files."""
    table = frame.drop(columns=["sku"]).assign(shop=1 + np.arange(len(frame)) % 3)
    columns = Columns(categories=["shop"])
    fitted = UMart(**TREES).fit(tierank.read(table, columns=columns))
    rows = table.drop(columns=["qid", "rating"])
    expected = fitted.predict(rows)
    for kind in (float, str, "category", "string", "Int64"):
        assert_same(fitted.predict(rows.assign(shop=rows["shop"].astype(kind))), expected)
    gaps = rows["shop"].where(rows["shop"] > 1)
    assert_same(fitted.predict(rows.assign(shop=gaps.astype("Int64"))), fitted.predict(rows.assign(shop=gaps)))
    assert_same(fitted.predict(rows.assign(shop=99)), fitted.predict(rows.assign(shop=None)))
    table.to_csv(tmp_path / "shop.csv", index=False)
    assert_same(fitted.predict(tierank.read(tmp_path / "shop.csv", columns=fitted.columns_)), expected)


# Models


@pytest.mark.parametrize(
    "kind",
    [
        UMart(**TREES),
        LinearRanker(),
        URank(max_epochs=2, hidden=[4]),
        UMart(base=LinearRanker(), **NUMBERS),
        UMart(query_features=True, **TREES),
    ],
    ids=lambda kind: f"{type(kind).__name__}-{getattr(kind, 'base', None) is not None}",
)
def test_a_model_is_the_same_after_a_file_and_for_each_form(frame, data, kind, tmp_path):
    fitted = kind.fit(data.select(np.arange(20)), valid=data.select(np.arange(20, 30)))
    scores = fitted.predict(data)
    table = frame.drop(columns=["qid", "rating", "sku"])
    assert len(np.unique(scores)) > 5
    held_out = data.select(np.arange(20, 30))
    assert fitted.best_["ndcg@10"] == pytest.approx(ndcg(held_out, fitted.predict(held_out)), abs=1e-12)
    fitted.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model")
    assert loaded.seen_ == fitted.seen_
    assert_same(loaded.predict(data), scores)
    assert_same(loaded.predict(table, qid=frame.qid), scores)
    assert_same(loaded.predict(table[table.columns[::-1]], qid=frame.qid), scores)
    assert_same(loaded.predict(pl.from_pandas(table), qid=frame.qid), scores)
    again = tierank.read(frame, document="sku", columns=fitted.columns_)
    assert_same(loaded.predict(again), scores)
    description = json.loads((tmp_path / "model" / "model.json").read_text())
    assert kinds_from_json(description["columns"], description["feature_names"]) == fitted.seen_.columns.kinds


def test_trees_split_by_category_and_are_exported_exactly(data, ranker, tmp_path):
    assert "==" in json.dumps(ranker.model_.booster.dump_model())
    for target, file in (("c", "m.c"), ("onnx", "m.onnx")):
        ranker.export(tmp_path / file, to=target)
        assert tierank.verify(ranker, tmp_path / file, target, data).holds
    assert "0 'acme', 1 'bolt'" in (tmp_path / "m.c").read_text()
    for target in ("elasticsearch", "opensearch", "solr", "vespa"):
        with pytest.raises(ParameterError, match=f"{target}: it compares numbers, and these trees have splits by"):
            ranker.export(tmp_path / target, to=target)
        with pytest.raises(ParameterError, match=f"{target}: it compares numbers"):
            UMart(for_target=target, **TREES).fit(data)


def test_trees_do_not_learn_from_ranks_of_levels(data, tmp_path):
    ranker = UMart(query_features=True, **TREES).fit(data)
    used = ranker.model_.booster.feature_importance("split").reshape(3, -1)
    assert used[0, 0] > 0
    assert not used[1:, :2].any()
    ranker.export(tmp_path / "m.c", to="c")
    assert tierank.verify(ranker, tmp_path / "m.c", "c", data).holds


def test_explanations_show_texts(data, ranker):
    found = tierank.explain_pair(ranker, data, 0, "p0", "p1")
    held = {row["feature"]: row["above"] for row in found.to_dict()["contributions"]}
    assert held["brand"] in (None, "acme", "bolt", "core", "dash")
    assert held["size"] in ("S", "M", "L")


def test_folds_learn_their_own_levels(frame, tmp_path):
    for number in range(5):
        part = frame[frame.qid % 5 == number].assign(brand=lambda table, n=number: table.brand.fillna("x") + str(n % 2))
        part.drop(columns="sku").to_parquet(tmp_path / f"S{number + 1}.parquet")
    run = tierank.cross_validate({"umart": UMart(**TREES)}, tmp_path, metrics=["ndcg@5"], n_jobs=1)
    train, valid, test = tierank.read_fold(tmp_path, 1)
    expected = UMart(**TREES, seed=run.seeds[0]).fit(train, valid=valid).predict(test)
    assert_same(run.scores("umart", 0, run.seeds[0]), expected)


def test_linear_rankers_have_a_feature_for_each_level(data):
    fitted = LinearRanker().fit(data)
    assert fitted.seen_.feature_names[:4] == ("brand=acme", "brand=bolt", "brand=core", "brand=dash")
    encoded = fitted.match_features(data)
    texts = np.array(["", *data.kinds["brand"].levels])[np.nan_to_num(data.features[:, 0] + 1).astype(int)]
    assert_same(encoded.features[:, 0], texts == "acme")
    assert fitted.match_features(encoded) is encoded


def test_unknown_and_missing_levels_are_missing(frame, ranker):
    rows = frame.drop(columns=["qid", "rating", "sku"]).head(3)
    gone = ranker.predict(rows.assign(brand=None))
    for value in ("nobody", "", float("nan")):
        assert_same(ranker.predict(rows.assign(brand=value)), gone)
    assert_same(ranker.predict(rows.assign(brand=pd.Categorical(["nobody"] * 3))), gone)


def test_what_cannot_be_scored_is_refused(frame, data, ranker):
    rows = frame.drop(columns=["qid", "rating", "sku"])
    with pytest.raises(DataError, match="X: expected the columns 'brand', 'price', which fit had, got none"):
        ranker.predict(rows.drop(columns=["brand", "price"]))
    with pytest.raises(DataError, match="column 'price': expected numbers, got 'cheap'; convert it"):
        ranker.predict(rows.assign(price="cheap"))
    with pytest.raises(DataError, match="a table with the columns 'brand', 'size', 'listed', as in training"):
        ranker.predict(np.zeros((2, 4)))
    numbers = tierank.read(frame.assign(brand=np.arange(len(frame)) % 7), document="sku")
    with pytest.raises(DataError, match="column 'brand': expected texts, as in training, got numbers"):
        ranker.predict(numbers)
    plain = UMart(**TREES).fit(numbers)
    with pytest.raises(DataError, match="column 'brand': expected numbers, as in training, got texts"):
        plain.predict(data)


def test_training_goes_on_with_the_levels_of_the_first_model(data, ranker):
    later = UMart(**TREES).fit(data.select(np.arange(5)), start=ranker)
    assert later.seen_.columns == ranker.seen_.columns
    assert later.model_.n_before == ranker.model_.n_rounds


def test_damaged_descriptions_of_columns_are_refused(ranker, tmp_path):
    kinds = kinds_to_json({"a": Category(("x",)), "b": Age(1.0), "c": Mean(("x",), (0.5,))})
    assert kinds_to_json(kinds_from_json(json.loads(json.dumps(kinds)), ["a", "b", "c"])) == kinds
    for damage in (
        [1],
        {"a": 1},
        {"a": {"kind": "os.system"}},
        {"a": {"kind": "age", "reference": "x"}},
        {"a": {"kind": "age", "reference": float("nan")}},
        {"a": {"kind": "mean", "levels": ["x"], "means": []}},
        {"a": {"kind": "category", "levels": "x", "learned_as": "auto"}},
        {"a": {"kind": "element", "column": "v", "place": 3, "size": 2}},
    ):
        with pytest.raises(DataError, match="columns: expected kinds of features, got a damaged description"):
            kinds_from_json(damage, ["a"])
    with pytest.raises(DataError, match="expected kinds of the features, got one of 'b'"):
        kinds_from_json({"b": {"kind": "date"}}, ["a"])


@examples(40)
@given(
    st.lists(st.text(min_size=1, max_size=3), unique=True, max_size=6),
    st.lists(st.text(min_size=1, max_size=3), unique=True, max_size=6),
    st.lists(st.integers(-1, 5), max_size=12),
)
def test_recoding_keeps_the_text_where_both_have_it(old, new, codes):
    codes = [code for code in codes if code < len(old)]
    given = np.array([np.nan if code < 0 else code for code in codes], np.float32)
    found = recode(given, Category(tuple(old)), Category(tuple(new)))
    for code, number in zip(codes, found.tolist(), strict=True):
        text = None if code < 0 else old[code]
        assert (np.isnan(number) and text not in new) or new[int(number)] == text


# Dates


def test_dates_are_days_before_the_latest_of_the_training_data(frame, data, ranker):
    latest = frame["listed"].max()
    encoded = ranker.match_features(data)
    assert_same(encoded.features[:, 3], (latest - frame["listed"]).dt.days)
    assert ranker.seen_.columns.kinds["listed"] == Age((latest - pd.Timestamp(0)).days)
    text = [[None, "2024-01-31T00:00:00+00:00"], ["2024-01-31", "2024-01-31T02:00:00+02:00"]]
    moments = [datetime(2024, 1, 31, tzinfo=UTC), np.datetime64("2024-01-31"), pd.Timestamp("2024-01-31")]
    days = (pd.Timestamp("2024-01-31") - pd.Timestamp(0)).days
    for values in text:
        one = RankingDataset(pd.DataFrame({"listed": values}), columns=DATES)
        assert set(one.features[:, 0][~np.isnan(one.features[:, 0])]) == {days}
    for moment in moments:
        assert RankingDataset(pd.DataFrame({"listed": [moment, moment]})).features[0, 0] == days
    zone = pd.DataFrame({"listed": pd.to_datetime(["2024-01-31 02:00"]).tz_localize("Europe/Athens")})
    assert RankingDataset(zone).features[0, 0] == days


def test_parts_of_dates_and_ages_of_each_row():
    moments = pd.to_datetime(["2024-02-29 23:30", "1969-12-31 00:00", None])
    now = pd.to_datetime(["2024-03-01 00:00", "1970-01-01 12:00", "2024-01-01 00:00"])
    columns = Columns(date_parts=["age", "month", "weekday", "hour"], now="searched")
    found = RankingDataset(pd.DataFrame({"listed": moments, "searched": now}), columns=columns)
    assert found.feature_names == ("listed", "listed_month", "listed_weekday", "listed_hour")
    assert_same(found.features[:2], np.array([[0.5 / 24, 2, 3, 23], [1.5, 12, 2, 0]], np.float32))
    assert np.isnan(found.features[2]).all()
    with pytest.raises(DataError, match=r"column 'listed': expected a date such as 2024-01-31, got 'soon'; convert it"):
        RankingDataset(pd.DataFrame({"listed": ["soon"]}), columns=DATES)


# Vectors


def vectors(n=40, size=3):
    rng = np.random.default_rng(1)
    one, other = rng.normal(size=(2, n, size))
    frame = pd.DataFrame({"qid": np.arange(n) // 8, "rating": np.arange(n) % 3, "q": list(one), "d": list(other)})
    return frame, one, other


def test_vectors_are_features_and_similarities(tmp_path):
    frame, one, other = vectors()
    data = tierank.read(frame)
    assert data.feature_names == ("q_0", "q_1", "q_2", "d_0", "d_1", "d_2")
    assert_same(data.features, np.column_stack([one, other]).astype(np.float32))
    columns = Columns(similarities=[("q", "d")], measures=["dot", "cosine", "distance"], vectors=["d"])
    found = tierank.read(frame, columns=columns)
    assert found.feature_names == ("d_0", "d_1", "d_2", "dot_q_d", "cosine_q_d", "distance_q_d")
    dot = (one * other).sum(axis=1)
    cosine = dot / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    expected = np.column_stack([dot, cosine, np.linalg.norm(one - other, axis=1)])
    np.testing.assert_allclose(found.features[:, 3:], expected, rtol=1e-6)
    ranker = UMart(**NUMBERS).fit(found)
    assert ranker.columns_ == columns
    assert_same(ranker.predict(frame[["d", "q"]], qid=frame.qid), ranker.predict(found))
    frame.to_parquet(tmp_path / "v.parquet")
    fixed = pa.table({**{name: frame[name] for name in ("qid", "rating")}, **{
        name: pa.FixedSizeListArray.from_arrays(np.concatenate(list(frame[name])), 3) for name in ("q", "d")
    }})  # fmt: skip
    for source in (tmp_path / "v.parquet", fixed, pl.from_arrow(fixed)):
        assert_same(tierank.read(source, columns=columns).features, found.features)
    zero = RankingDataset(pd.DataFrame({"q": [[0.0, 0.0], None], "d": [[1.0, 2.0], [1.0, 2.0]]}),
                          columns=Columns(similarities=[("q", "d")]))  # fmt: skip
    assert np.isnan(zero.features).all()
    with pytest.raises(DataError, match=r"column 'd': .*got vectors of 2 numbers, and 'q' vectors of 3"):
        ranker.predict(frame.assign(d=[[1.0, 2.0]] * len(frame)))
    with pytest.raises(DataError, match=r"column 'd': .*got vectors of 2 and 3 numbers"):
        tierank.read(frame.assign(d=[[1.0, 2.0], *frame.d[1:]]))


# Many levels


def sellers(seed, shuffle=False, n_queries=120, length=10, n_levels=300):
    rng = np.random.default_rng(seed)
    n = n_queries * length
    level, effect = rng.integers(0, n_levels, n), rng.normal(size=n_levels)
    worth = effect[level] + 0.3 * rng.normal(size=n)
    rating = np.digitize(worth, np.quantile(worth, [0.5, 0.8, 0.95]))
    return pd.DataFrame(
        {
            "qid": np.repeat(np.arange(n_queries), length),
            "rating": rng.permutation(rating) if shuffle else rating,
            "seller": [f"seller {k}" for k in level],
        }
    )


def ndcg(data, scores):
    return float(np.nanmean(Judge(data, "ndcg@10")(data.arrange(scores))["ndcg@10"]))


def test_the_ratings_of_a_query_are_never_in_its_own_means():
    """By a slow twin: the mean of a document is that of the same seller in the other parts of the queries."""
    data = tierank.read(sellers(0, n_queries=12, n_levels=6), columns=Columns(means=["seller"]))
    plan, encoded = ColumnEncoder.learn(data)
    changed = data.ratings.copy()
    rows = slice(int(data.offsets[4]), int(data.offsets[5]))
    above = data.ratings - np.repeat(np.add.reduceat(data.ratings, data.offsets[:-1]) / data.lengths, data.lengths)
    codes, query = data.features[:, 0], data.query_of_row
    possible = []
    for own in (encoded.features[rows, 0],):
        for place, row in enumerate(range(rows.start, rows.stop)):
            others = (codes == codes[row]) & (query != 4)
            possible.append(abs(own[place]) <= abs(above[others]).sum() / 10 + 1e-6)
    assert all(possible)
    # Ratings of one query that are turned around change no feature of that query, if its part stays the same.
    from tierank.data import encoder as module

    folds = module._folds_by_content(data.features, data)
    kind = data.kinds["seller"]
    changed[rows] = changed[rows][::-1]
    turned = data.replace(ratings=changed)
    _, before = module._mean_ratings(codes, kind, data, folds)
    _, after = module._mean_ratings(codes, kind, turned, folds)
    own_part = folds == folds[rows.start]
    assert_same(before[own_part], after[own_part])
    assert (before != after).any()
    assert isinstance(plan.kinds["seller"], Mean)


def test_means_rank_where_sellers_matter_and_by_chance_where_ratings_were_shuffled():
    gains = []
    for shuffle in (False, True):
        for seed in range(2):
            data = tierank.read(sellers(seed, shuffle))
            train, test = data.select(np.arange(80)), data.select(np.arange(80, 120))
            fitted = LambdaMART(n_trees=15, min_documents=10, n_jobs=1).fit(train)
            assert isinstance(fitted.seen_.columns.kinds["seller"], Mean)
            chance = ndcg(test, np.zeros(test.n_documents))
            gains.append((ndcg(test, fitted.predict(test)) - chance) / (1 - chance))
    assert min(gains[:2]) > 0.4
    assert np.abs(gains[2:]).max() < 0.15


def test_the_mean_of_the_training_documents_alone_ranks_them_by_chance_if_ratings_were_shuffled():
    """A mean over all queries, the own one among them, would rank them far better than chance."""
    gains, naive = [], []
    for seed in range(4):
        data = tierank.read(sellers(seed, shuffle=True))
        _, encoded = ColumnEncoder.learn(data)
        chance = ndcg(data, np.zeros(data.n_documents))
        codes = data.features[:, 0].astype(int)
        means = np.bincount(codes, data.ratings) / np.bincount(codes)
        gains.append((ndcg(data, np.nan_to_num(encoded.features[:, 0])) - chance) / (1 - chance))
        naive.append((ndcg(data, means[codes]) - chance) / (1 - chance))
    assert abs(np.mean(gains)) < 0.05
    assert np.mean(naive) > 0.3


def test_rows_and_ids_do_not_matter_to_means():
    frame = sellers(0)
    rows = np.random.default_rng(1).permutation(len(frame))
    shuffled = frame.iloc[rows].assign(qid=frame.qid.iloc[rows].map(lambda q: f"query {999 - q}"))
    one, other = (LambdaMART(n_trees=3, n_jobs=1).fit(tierank.read(table)) for table in (frame, shuffled))
    assert one.model_.text == other.model_.text
    assert one.seen_.columns == other.seen_.columns


def test_texts_that_no_other_query_has_are_refused_together(frame):
    titles = frame.assign(title=[f"title {k}" for k in range(len(frame))])
    with pytest.raises(DataError, match="different texts such as 'p0', 100% of the rows") as error:
        UMart(**TREES).fit(tierank.read(titles))
    assert "column 'title': 240 different texts" in str(error.value)
    assert "ignore=['sku', 'title']" in str(error.value)
    assert "sku" in UMart(**TREES).fit(tierank.read(titles, ignore=["title"], columns=Columns(categories=["sku"]))
                               ).seen_.columns.kinds  # fmt: skip


# One message


def test_all_columns_that_cannot_be_used_are_named_together(tmp_path):
    table = pd.DataFrame(
        {
            "qid": [1, 1],
            "label": [0, 1],
            "raw": [b"x", b"y"],
            "mixed": ["a", 1],
            "ragged": [[1.0], [1.0, 2.0]],
            "fine": ["a", "b"],
        }
    )
    with pytest.raises(DataError, match="column 'raw': ") as error:
        tierank.read(table)
    said = str(error.value)
    assert "column 'mixed': expected numbers, texts, dates or vectors, got texts such as 'a' and other values" in said
    assert "column 'ragged': expected numbers, texts, dates or vectors, got vectors of 1 and 2 numbers" in said
    assert said.endswith("or leave the columns out with ignore=['raw', 'mixed', 'ragged']")
    (tmp_path / "a.csv").write_text("qid,label,price,weight\n1,0,3.5,x\n1,1,n.a.,7\n")
    with pytest.raises(DataError, match=r"column 'price': .* got numbers and 'n.a.' in line 3; column 'weight': "):
        tierank.read(tmp_path / "a.csv")
    found = tierank.read(tmp_path / "a.csv", columns=Columns(categories=["price", "weight"]))
    assert found.kinds["price"].levels == ("3.5", "n.a.")
    with pytest.raises(DataError, match=r"unknown column 'prices'"):
        tierank.read(tmp_path / "a.csv", columns=Columns(categories=["prices"]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"categories": "brand"}, "categories: expected a list of texts, got 'brand'"),
        ({"categories": None}, "categories: expected a list of texts, got None"),
        ({"now": 3}, "now: expected the name of a column, or None, got 3"),
        ({"texts": [3]}, "texts: expected pairs of columns"),
        ({"similarities": ["qd"]}, "similarities: expected pairs of columns"),
        ({"similarities": [("q", "d", "e")]}, "similarities: expected pairs of columns"),
        ({"measures": ["cosin"]}, "unknown measure of similarity 'cosin': did you mean 'cosine'"),
        ({"date_parts": ["moth"]}, "unknown part of a date 'moth': did you mean 'month'"),
        ({"measures": ["dot"]}, "measures: expected similarities to measure, got none"),
        ({"categories": ["a"], "means": ["a"]}, "means: expected no column of categories, got 'a'"),
        ({"categories": ["a"], "dates": ["a"]}, "dates: expected no column of categories, got 'a'"),
    ],
)
def test_wrong_declarations_are_refused(given, message):
    with pytest.raises(ParameterError, match=message):
        Columns(**given)


# The command line and the server


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    assert code in (0, None), said.err
    return said


def test_the_command_line_from_a_csv_file_to_tables_of_scores(frame, tmp_path, capsys):
    table = frame.assign(shop=1.0)
    table.to_csv(tmp_path / "shop.csv", index=False)
    model, named = tmp_path / "model", ("--document-column", "sku", "--dates", "listed")
    said = run(capsys, "train", "umart", "--train", tmp_path / "shop.csv", "--out", model, *named, "--set", "n_trees=5",
               "--set", "min_documents=3", "--set", "min_data_per_group=1")  # fmt: skip
    assert "shop is the same for all documents" in said.err
    ranker = tierank.load(model)
    data = tierank.read(tmp_path / "shop.csv", document="sku", columns=ranker.columns_)
    scores = ranker.predict(data)
    for ending in ("csv", "parquet"):
        out = tmp_path / f"scores.{ending}"
        run(capsys, "predict", model, tmp_path / "shop.csv", "--document-column", "sku", "--out", out)
        found = pl.read_csv(out).to_pandas() if ending == "csv" else pd.read_parquet(out)
        assert list(found) == ["query", "document", "score"]
        assert_same(found["score"], scores)
        assert list(found["document"]) == list(frame["sku"])
        assert_same(tierank.read_scores(out, data), scores)
        top = tmp_path / f"top.{ending}"
        run(capsys, "predict", model, tmp_path / "shop.csv", "--document-column", "sku", "--k", 2, "--out", top)
        best = pd.read_csv(top) if ending == "csv" else pd.read_parquet(top)
        assert list(best) == ["query", "rank", "row", "document", "score"]
        assert list(best["document"]) == list(ranker.rank(data, k=2).document)
    run(capsys, "evaluate", tmp_path / "shop.csv", model, "--metric", "ndcg@5", "--document-column", "sku")
    run(capsys, "explain", model, tmp_path / "shop.csv", "--query", 0, "--above", 1, "--below", 2)


def test_a_model_of_texts_is_served(frame, ranker):
    application = tierank.serve.app({"shop": ranker}, threads=1)
    names = ["brand", "size", "price", "listed"]
    table = frame[names].head(8)
    rows = [[value if value == value else None for value in row] for row in table.astype(object).to_numpy().tolist()]
    rows = [[*row[:3], row[3].isoformat()] for row in rows]
    documents = [
        {"id": id, "features": dict(zip(names, row, strict=True))} for id, row in zip("abcdefgh", rows, strict=True)
    ]
    expected = ranker.predict(table).tolist()
    for query in (
        {"documents": documents},
        {"features": rows},
        {"names": names[::-1], "features": [r[::-1] for r in rows]},
    ):
        code, _, found = ask(application, "/score", {"queries": [query]})
        assert code == 200, found
        assert found["queries"][0]["scores"] == expected
    assert ask(application, "/rank", {"documents": documents, "k": 3, "explain": True})[0] == 200
    unknown = [{"features": dict(zip(names, row, strict=True)) | {"brand": "nobody"}} for row in rows]
    gone = ask(application, "/score", {"queries": [{"documents": unknown}]})[2]["queries"][0]["scores"]
    assert gone == ranker.predict(table.assign(brand=None)).tolist()
    for body in (
        {"documents": [{"features": documents[0]["features"] | {"price": "cheap"}}]},
        {"documents": [{"features": documents[0]["features"] | {"listed": "soon"}}]},
        {"documents": [{"features": documents[0]["features"] | {"brand": ["a"]}}]},
        {"features": "AAAA"},
        {"features": [[1.0]]},
    ):
        code, _, found = ask(application, "/score", {"queries": [body]})
        assert code == 422, found
    assert ask(application, "/models")[2]["models"][0]["columns"]["brand"] == "category"


@pytest.mark.parametrize("argument", ["categories", "dates", "vectors", "means"])
def test_a_declared_column_has_to_be_there(argument):
    table, y, qid = pd.DataFrame({"a": np.arange(4.0)}), [0, 1, 0, 1], [1, 1, 2, 2]
    columns = Columns(**{argument: ["b"]})
    with pytest.raises(DataError, match="unknown column 'b'"):
        tierank.UMart(n_trees=1).fit(table, y, qid=qid, columns=columns)
    with pytest.raises(DataError, match="unknown column 'b'"):
        RankingDataset(table, y, qid, columns=columns)
    with pytest.raises(ParameterError, match="columns: expected None with an array"):
        RankingDataset(table.to_numpy(), y, qid, columns=columns)


@pytest.mark.parametrize("given", [{"now": "a"}, {"date_parts": ["month"]}])
def test_declarations_about_dates_need_a_date(given):
    with pytest.raises(ParameterError, match="expected a column of dates that is a feature, got none"):
        RankingDataset(pd.DataFrame({"a": ["2024-01-31"], "b": [1.0]}), columns=Columns(**given))


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_numbers_that_are_categories_may_be_missing_and_not_infinite(make):
    known = RankingDataset(make({"shop": [2.0, np.nan, 1.5, 2.0]}), columns=Columns(categories=["shop"]))
    assert known.kinds["shop"].levels == ("1.5", "2")
    assert np.isnan(known.features[:, 0]).tolist() == [False, True, False, False]
    with pytest.raises(DataError, match="column 'shop': expected numbers, texts, dates or vectors, got inf"):
        RankingDataset(make({"shop": [2.0, np.inf]}), columns=Columns(categories=["shop"]))
    with pytest.raises(DataError, match=r"column 'shop': expected numbers, texts, dates or vectors, got .*1\."):
        RankingDataset(make({"shop": [[1.0], [2.0]]}), columns=Columns(categories=["shop"]))


def test_names_of_texts_come_from_the_table():
    with pytest.raises(DataError, match="feature_names: expected None with a table that has texts, dates or vectors"):
        RankingDataset(pd.DataFrame({"brand": ["a", "b"]}), feature_names=["maker"])


def test_means_do_not_depend_on_factors_that_are_powers_of_two():
    """Queries are parted by what they hold, and a feature in other units holds the same."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"seller": rng.choice(list("abcdef"), 200), "price": rng.normal(size=200)})
    y, qid = rng.integers(0, 3, 200), np.repeat(np.arange(20), 10)
    scores = [
        UMart(**NUMBERS).fit(one, y, qid=qid, columns=Columns(means=["seller"])).predict(one, qid=qid)
        for one in (table, table.assign(price=table.price * 8))
    ]
    assert scores[0].tolist() == scores[1].tolist()


@pytest.mark.parametrize("kind", ["string", "date32[pyarrow]", pd.ArrowDtype(pa.string()), object])
def test_dates_of_every_type_of_pandas_may_be_missing(kind):
    days = ["2024-01-31", None, "2024-02-01", ""]
    column = pd.Series([day or None for day in days] if kind == "date32[pyarrow]" else days)
    column = pd.to_datetime(column).astype(kind) if kind == "date32[pyarrow]" else column.astype(kind)
    data = RankingDataset(pd.DataFrame({"listed": column}), columns=DATES)
    assert data.features[:, 0].tolist() == pytest.approx([19753, np.nan, 19754, np.nan], nan_ok=True)


def test_a_column_of_another_kind_than_in_training_is_named():
    """What was expected is what the model learned from; the column cannot be left out."""
    n = 40
    frame = pd.DataFrame({"price": np.arange(n) / 7, "vector": list(np.eye(4)[np.arange(n) % 4])})
    ranker = tierank.UMart(n_trees=3, n_jobs=1).fit(frame, np.arange(n) % 3, np.arange(n) // 10)
    wrong = frame.assign(price="high")
    with pytest.raises(DataError, match=r"column 'price': expected numbers, got 'high'; convert it$"):
        ranker.predict(wrong)
    shorter = frame.assign(vector=list(np.eye(3)[np.arange(n) % 3]))
    message = r"column 'vector': expected vectors of 4, got vectors of 3 numbers; convert it$"
    with pytest.raises(DataError, match=message):
        ranker.predict(shorter)
    both = r"column 'price': expected numbers, got 'high'; column 'vector': expected vectors of 4, .*; convert them$"
    with pytest.raises(DataError, match=both):
        ranker.predict(shorter.assign(price="high"))


def test_one_pair_of_columns_is_not_a_list_of_pairs():
    with pytest.raises(ParameterError, match=r"texts: expected pairs of columns.*; write \[\('query', 'title'\)\]"):
        tierank.Columns(texts=("query", "title"))
    with pytest.raises(ParameterError, match=r"texts: expected pairs of columns: .*, got 'title'$"):
        tierank.Columns(texts="title")
