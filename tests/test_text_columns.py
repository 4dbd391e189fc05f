"""Pairs of text columns: match features from the table to a served model, by statistics of the training documents."""

import hashlib
import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
from serve_tools import ask, quick

import tierank
from tierank import Columns, DataError, RankingDataset, UMart
from tierank.cli import main
from tierank.data.columns import Category, Match, Text
from tierank.data.encoder import ColumnEncoder
from tierank.data.text import BM25Statistics
from tierank.experiments.folds import FolderFolds, kept_folds
from tierank.kernels.texts import PARTS

TREES = {"n_trees": 6, "min_documents": 3, "n_jobs": 1}
PAIR = Columns(texts=[("term", "title")])
WORDS = ["red", "blue", "green", "shoe", "shirt", "hat", "wool", "silk", "Größe", "靴"]


def shop(n_queries=24, length=8, seed=0):
    """A search term and titles with some of its words, a title that is missing in places, and a price."""
    rng = np.random.default_rng(seed)
    terms = [f"{a} {b}" for a in WORDS for b in WORDS if a != b]
    chosen = rng.choice(terms, n_queries, replace=False)
    titles = [" ".join(rng.choice(WORDS, 4)) for _ in range(n_queries * length)]
    table = pd.DataFrame({"term": np.repeat(chosen, length), "title": titles, "price": rng.normal(size=len(titles))})
    common = [len(set(q.split()) & set(d.split())) for q, d in zip(table["term"], table["title"], strict=True)]
    table["rating"] = np.minimum(common, 2)
    table.loc[rng.random(len(table)) < 0.05, "title"] = None
    return table


@pytest.fixture(scope="module")
def frame():
    return shop()


@pytest.fixture(scope="module")
def data(frame):
    return tierank.read(frame, query="term", columns=PAIR)


@pytest.fixture(scope="module")
def ranker(data):
    return UMart(**TREES).fit(data.select(np.arange(18)))


def assert_same(one, other):
    np.testing.assert_array_equal(one, other)


def expected_matches(train, table):
    statistics = BM25Statistics.learn(text for text in train["title"] if isinstance(text, str))
    return statistics.match(table["term"].tolist(), table["title"].fillna("").tolist())


# Features


def test_matches_are_those_of_the_training_documents(frame, data, ranker):
    assert data.feature_names == ("title", "price", "term")
    assert data.kinds["term"].documents == ("title",)
    assert ranker.seen_.feature_names == ("price", *(f"term~title.{part}" for part in PARTS))
    terms = data.query_ids[:18].tolist()
    expected = expected_matches(frame[frame["term"].isin(terms)], frame)
    own = ranker.match_features(data)
    assert_same(own.restore(own.features[:, 1:]), expected)
    assert ranker.match_features(own) is own
    assert str(own.kinds["term~title.bm25"]) == "bm25 of term and title"


def test_words_of_other_documents_change_nothing(frame, data, ranker):
    other = frame.copy()
    is_held_out = ~other["term"].isin(data.query_ids[:18].tolist())
    other.loc[is_held_out, "title"] = "zebra red red shoe"
    again = tierank.read(other, query="term", columns=PAIR)
    fitted = UMart(**TREES).fit(again.select(np.arange(18)), valid=again.select(np.arange(18, 24)))
    assert fitted.seen_.columns == ranker.seen_.columns
    (statistics,) = fitted.seen_.columns.statistics.values()
    assert statistics.digest == next(iter(ranker.seen_.columns.statistics))
    # What all rows have in common is learned all the same: a word in each title weighs little.
    whole = UMart(**TREES).fit(again)
    assert whole.seen_.columns != ranker.seen_.columns


def test_the_order_of_rows_changes_no_bit(frame, ranker):
    scattered = frame.sample(frac=1, random_state=1)
    fitted = UMart(**TREES).fit(tierank.read(scattered, query="term", columns=PAIR))
    straight = UMart(**TREES).fit(tierank.read(frame, query="term", columns=PAIR))
    assert fitted.seen_.columns == straight.seen_.columns
    assert_same(fitted.predict(frame, qid=frame["term"]), straight.predict(frame, qid=frame["term"]))


def test_missing_texts_are_empty_and_unknown_words_are_rare(frame, ranker):
    rows = frame[["term", "title", "price"]].head(4)
    gone = ranker.match_features(rows.assign(title=None)).features
    assert not np.isnan(gone).any()
    for value in ("", float("nan"), "..."):
        assert_same(ranker.match_features(rows.assign(title=value)).features, gone)
    parts = dict(
        zip(PARTS, ranker.match_features(rows.assign(term="xyzzy", title="xyzzy")).features[0, 1:], strict=True)
    )
    assert parts["is_equal"] == parts["words_found"] == 1
    assert parts["bm25"] > ranker.match_features(rows.assign(term="red", title="red")).features[0, 1]
    assert_same(ranker.match_features(rows.assign(term=7, title="7")).features[:, 1 + PARTS.index("is_equal")], 1)


def test_several_pairs_and_texts_that_are_categories_too(frame, tmp_path):
    table = frame.assign(brand=np.where(frame["price"] > 0, "red wool", "blue hat"), title=frame["title"].fillna("hat"))
    columns = Columns(texts=[("term", "title"), ("term", "brand")], categories=["brand"])
    both = tierank.read(table, query="term", columns=columns)
    assert both.kinds["brand"] == Text(("blue hat", "red wool"), "levels")
    for kind in ("umart", "linear"):
        fitted = quick(kind).fit(both)
        plan = fitted.seen_.columns
        assert len(plan.statistics) == 2
        assert fitted.columns_ == columns
        level = "brand" if kind == "umart" else "brand=red wool"
        assert level in fitted.seen_.feature_names
        assert {"term~title.bm25", "term~brand.bm25"} < set(fitted.seen_.feature_names)
        fitted.save(tmp_path / kind)
        scores = fitted.predict(both)
        assert_same(tierank.load(tmp_path / kind).predict(table[table.columns[::-1]], qid=table["term"]), scores)
    assert isinstance(UMart(**TREES).fit(both).seen_.columns.kinds["brand"], Category)
    twice = tierank.read(table, query="term", columns=Columns(texts=[("title", "title")]))
    own = UMart(**TREES).fit(twice)
    assert_same(own.match_features(twice).features[:, own.seen_.feature_names.index("title~title.is_equal")], 1)


def test_parts_are_joined_and_written_and_read_back(frame, data, tmp_path):
    scores = UMart(**TREES).fit(data).predict(data)
    first, second = data.select(np.arange(10)), data.select(np.arange(10, 24))
    joined = RankingDataset.concat([first, second])
    assert_same(UMart(**TREES).fit(joined).predict(data), scores)
    halves = [tierank.read(part, query="term", columns=PAIR) for _, part in frame.groupby(frame["term"] < "h")]
    assert_same(UMart(**TREES).fit(RankingDataset.concat(halves)).predict(data), scores)
    for ending in ("tierank", "parquet", "csv"):
        tierank.write(data, tmp_path / f"data.{ending}")
        again = tierank.read(tmp_path / f"data.{ending}", **({} if ending == "tierank" else {"columns": PAIR}))
        assert_same(UMart(**TREES).fit(again).predict(again), scores)


# Models


@pytest.mark.parametrize("kind", ["umart", "lambdamart", "linear", "urank", "uboost", "blend"])
def test_a_model_is_the_same_after_a_file_and_for_each_form(frame, data, kind, tmp_path):
    fitted = quick(kind).fit(data.select(np.arange(18)), valid=data.select(np.arange(18, 24)))
    scores = fitted.predict(data)
    assert len(np.unique(scores)) > 3
    fitted.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model")
    assert loaded.seen_ == fitted.seen_
    assert loaded.columns_ == PAIR
    table = frame.drop(columns="rating")
    assert_same(loaded.predict(data), scores)
    assert_same(loaded.predict(table, qid=frame["term"]), scores)
    assert_same(loaded.predict(table[table.columns[::-1]], qid=frame["term"]), scores)
    assert_same(loaded.predict(pl.from_pandas(table), qid=frame["term"]), scores)
    undeclared = RankingDataset(table, qid=frame["term"])  # texts are texts, whatever was declared
    assert_same(loaded.predict(undeclared), scores)
    loaded.save(tmp_path / "again")
    one, other = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("model", "again"))
    assert one == other
    described = json.loads(one["model.json"])
    assert described["files"]["texts.safetensors"] == hashlib.sha256(one["texts.safetensors"]).hexdigest()


def test_training_goes_on_with_the_statistics_of_the_first_model(data, ranker, tmp_path):
    later = UMart(**TREES).fit(data.select(np.arange(18, 24)), start=ranker)
    assert later.seen_.columns == ranker.seen_.columns
    later.save(tmp_path / "model")
    assert_same(tierank.load(tmp_path / "model").predict(data), later.predict(data))


def test_folds_learn_their_own_statistics(frame, data, tmp_path):
    for number in range(5):
        terms = data.query_ids[number::5].tolist()
        frame[frame["term"].isin(terms)].to_csv(tmp_path / f"S{number + 1}.csv", index=False)
    read = {"query": "term", "columns": PAIR}
    run = tierank.cross_validate({"umart": UMart(**TREES)}, tmp_path, metrics=["ndcg@5"], n_jobs=1, **read)
    train, valid, test = tierank.read_fold(tmp_path, 1, **read)
    expected = UMart(**TREES, seed=run.seeds[0]).fit(train, valid=valid)
    assert_same(run.scores("umart", 0, run.seeds[0]), expected.predict(test))
    folds = FolderFolds(tmp_path.name, str(tmp_path), read)
    assert kept_folds(json.loads(json.dumps(folds.describe())), tmp_path).options == read
    (statistics,) = expected.seen_.columns.statistics.values()
    assert statistics.n_documents == len(train.kinds["title"].levels) < frame["title"].nunique()


def test_exports_take_the_matches_as_numbers(data, ranker, tmp_path):
    ranker.export(tmp_path / "m.c", to="c")
    assert "bm25 of term and title" in (tmp_path / "m.c").read_text()
    assert tierank.verify(ranker, tmp_path / "m.c", "c", data).holds
    own = ranker.match_features(data)
    plain = RankingDataset(own.features, feature_names=own.feature_names)
    assert_same(ranker.predict(plain), ranker.predict(own))


def test_explanations_name_the_matches(data, ranker):
    found = tierank.explain_pair(ranker, data, data.query_ids[0], 1, 2)
    assert any(row["feature"].startswith("term~title.") for row in found.to_dict()["contributions"])


# Refusals


def test_wrong_columns_are_refused(frame, data, ranker):
    with pytest.raises(DataError, match="unknown column 'titel': did you mean 'title'"):
        tierank.read(frame, query="term", columns=Columns(texts=[("term", "titel")]))
    with pytest.raises(DataError, match="unknown column 'titel': did you mean 'title'"):
        RankingDataset(frame, columns=Columns(texts=[("term", "titel")]))
    with pytest.raises(tierank.ParameterError, match="texts: expected pairs of columns: of queries and of documents"):
        Columns(texts=["term", "title"])
    with pytest.raises(DataError, match="X: expected the column 'title', which fit had, got none"):
        ranker.predict(frame.drop(columns="title"))
    numbers = frame[["price"]].assign(term=1.0, title="x")
    with pytest.raises(DataError, match="column 'term': expected texts, as in training, got numbers"):
        ranker.predict(RankingDataset(numbers))
    with pytest.raises(DataError, match=r"a column 'term' of texts, as in training.*columns=ranker.columns_"):
        ranker.predict(tierank.read(frame, query="term"))
    dates = frame.assign(title=pd.Timestamp("2024-01-01"))
    with pytest.raises(DataError, match="column 'title': expected numbers, texts, dates or vectors, got"):
        tierank.read(dates, query="term", columns=PAIR)
    with pytest.raises(DataError, match=r"columns=Columns\(texts=\[\(query, document\)\]\)"):
        UMart(**TREES).fit(tierank.read(frame.assign(title=[f"a {k}" for k in range(len(frame))]), query="term"))
    other = UMart(**TREES).fit(data)
    with pytest.raises(DataError, match=r"column 'term~title.bm25': expected match.*, as in training, got match"):
        other.predict(ranker.match_features(data))


def test_damaged_statistics_are_refused(ranker, tmp_path):
    plan = ranker.seen_.columns
    given, names, files = plan.to_json(), ranker.seen_.feature_names, plan.files()
    assert ColumnEncoder.from_json(given, names, files) == plan
    bm25 = given["term~title.bm25"]
    for damage, its_files, message in (
        (given, {}, "expected statistics of texts for the feature 'term~title.bm25', got none"),
        ({"term~title.bm25": bm25 | {"statistics": "0"}}, files, "expected statistics of texts for the feature"),
        ({"term~title.bm25": bm25 | {"part": "os"}}, files, "expected statistics of texts for the feature"),
        ({"price": bm25}, files, "expected statistics of texts for the feature 'price', got none"),
        (given, {"texts.safetensors": b"x"}, "expected the statistics of texts, got a damaged file"),
        (given, {"texts.safetensors": files["texts.safetensors"][:-8]}, "the statistics of texts, got a damaged file"),
        (given, {"texts.safetensors": files["texts.safetensors"].replace(b".words", b".wards")}, "got a damaged file"),
    ):
        with pytest.raises(DataError, match=message):
            ColumnEncoder.from_json(damage, names, its_files)
    ranker.save(tmp_path / "model")
    (tmp_path / "model" / "texts.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match="expected the file that was saved, got one with another checksum"):
        tierank.load(tmp_path / "model")
    assert Match("q", "d", "bm25", "0").feature == "q~d.bm25"


# The command line and the server


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    assert code in (0, None), said.err
    return said


def test_the_command_line_from_a_csv_file_to_scores(frame, tmp_path, capsys):
    is_valid = frame["term"].isin(frame["term"].unique()[18:])
    for name, part in {"shop": frame, "train": frame[~is_valid], "valid": frame[is_valid]}.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    model, query = tmp_path / "model", ("--query-column", "term")
    said = run(capsys, "train", "umart", "--train", tmp_path / "train.csv", "--valid", tmp_path / "valid.csv", "--out",
               model, *query, "--texts", "term:title", "--set", "n_trees=5", "--set", "min_documents=3")  # fmt: skip
    assert "WARNING" not in said.err
    ranker = tierank.load(model)
    scores = ranker.predict(frame, qid=frame["term"])
    run(capsys, "predict", model, tmp_path / "shop.csv", *query, "--out", tmp_path / "scores.csv")
    assert_same(pl.read_csv(tmp_path / "scores.csv")["score"].to_numpy(), scores)
    run(capsys, "evaluate", tmp_path / "shop.csv", model, "--metric", "ndcg@5", *query)
    shown = run(capsys, "explain", model, tmp_path / "shop.csv", *query, "--query", frame["term"][0], "--above", 1,
                "--below", 2)  # fmt: skip
    assert "term~title." in shown.out


def test_a_model_of_text_pairs_is_served(frame, ranker):
    application = tierank.serve.app({"shop": ranker}, threads=1)
    table = frame[["term", "title", "price"]].head(8)
    rows = [[value if value == value else None for value in row] for row in table.to_numpy(object).tolist()]
    names = ["term", "title", "price"]
    documents = [{"features": dict(zip(names, row, strict=True))} for row in rows]
    expected = ranker.predict(table).tolist()
    for query in ({"documents": documents}, {"names": names, "features": rows}):
        code, _, found = ask(application, "/score", {"queries": [query]})
        assert code == 200, found
        assert found["queries"][0]["scores"] == expected
    assert ask(application, "/rank", {"documents": documents, "k": 3, "explain": True})[0] == 200
    for odd in ({"title": ["a"]}, {"titel": "a"}):
        code, _, found = ask(
            application, "/score", {"queries": [{"documents": [{"features": documents[0]["features"] | odd}]}]}
        )
        assert code == 422, found
