"""A shop's log on the command line: columns with names of its own, texts and ids among them."""

import json
import re

import numpy as np
import pytest

import tierank
from tierank import cli
from tierank.errors import DataError

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

NAMED = ("--query-column", "session", "--rating-column", "clicks")
QUICK = ("--set", "n_trees=4", "--set", "min_documents=2")


def log(seed: int) -> "pd.DataFrame":
    data = tierank.make_ranking(12, n_features=3, mean_length=8, max_length=12, seed=seed)
    n = data.n_documents
    columns = {
        "session": np.repeat(data.query_ids, data.lengths),
        "clicks": data.ratings,
        "product_id": 1000 * seed + np.arange(n),
        "title": [f"shoe {k}" for k in range(n)],
    }
    return pd.DataFrame(columns | dict(zip(("price", "age", "stock"), data.features.T, strict=True)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, part in enumerate(("train", "valid", "test"), 1):
        log(seed).to_csv(f"{part}.csv", index=False)
    return tmp_path


def run(capsys, *arguments) -> tuple[int, str, str]:
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def train(capsys, *more) -> tuple[int, str, str]:
    files = ("--train", "train.csv", "--valid", "valid.csv", "--out", "model")
    return run(capsys, "train", "umart", *files, *NAMED, *QUICK, *more)


def test_columns_are_left_out_or_chosen(folder, capsys):
    code, _, err = train(capsys)
    assert code == 2
    doubt = "column 'title': [0-9]+ different texts such as 'shoe 0', 100% of the rows have a text that no other query"
    assert re.search(doubt, err)
    assert "declare --categories title to learn from each text, or --means title" in err
    assert "or --texts QUERY:DOCUMENT to match the texts of two columns" in err
    assert "leave the column out with --ignore title" in err
    assert train(capsys, "--ignore", "title,product_id")[0] == 0
    assert tierank.load("model").feature_names_in_.tolist() == ["price", "age", "stock"]
    assert train(capsys, "--features", "stock,price")[0] == 0
    assert tierank.load("model").feature_names_in_.tolist() == ["stock", "price"]


def test_a_model_reads_its_own_columns_alone(folder, capsys):
    assert train(capsys, "--ignore", "title,product_id")[0] == 0
    expected = tierank.load("model").predict(
        tierank.read(log(3)[["session", "price", "age", "stock"]], query="session")
    )
    code, out, _ = run(capsys, "predict", "model", "test.csv", *NAMED)
    assert code == 0
    assert [float(line) for line in out.split()] == expected.tolist()
    (folder / "s").write_text(out)
    for judged in (("evaluate", "test.csv", "model"), ("evaluate", "test.csv", "s")):
        assert run(capsys, *judged, *NAMED)[0] == 0
    assert run(capsys, "compare", "test.csv", "a=s", "b=model", *NAMED, "--out", "kept")[0] == 0
    assert run(capsys, "compare", "test.csv", "a=s", "b=s", *NAMED)[0] == 0
    assert run(capsys, "export", "model", "--to", "c", "--out", "m.c", "--verify", "test.csv", *NAMED)[0] == 0
    pair = ("--query", "1", "--above", "1", "--below", "2")
    assert run(capsys, "explain", "model", "test.csv", *NAMED, *pair)[0] == 0


def test_a_column_that_is_gone_is_named_with_its_file(folder, capsys):
    assert train(capsys, "--ignore", "title,product_id")[0] == 0
    log(3).drop(columns="price").to_csv("less.csv", index=False)
    for command in (("predict", "model", "less.csv"), ("evaluate", "less.csv", "model")):
        code, _, err = run(capsys, *command, *NAMED)
        assert code == 2
        assert err.startswith("tierank: less.csv: unknown column 'price'")


def test_the_best_documents_come_with_their_ids(folder, capsys):
    assert train(capsys, "--ignore", "title,product_id")[0] == 0
    shuffled = log(3).sample(frac=1, random_state=0)
    shuffled.to_csv("mixed.csv", index=False)
    code, out, _ = run(
        capsys, "predict", "model", "mixed.csv", *NAMED, "--document-column", "product_id", "--k", 2, "--out", "-"
    )
    assert code == 0
    head, *rows = [line.split("\t") for line in out.splitlines()]
    assert head == ["query", "rank", "row", "score", "document"]
    assert all(int(document) == shuffled["product_id"].iloc[int(row)] for _, _, row, _, document in rows)


def test_an_id_that_is_learned_from_is_warned_of(folder, capsys):
    code, _, err = train(capsys, "--ignore", "title")
    assert code == 0
    warnings = [line for line in err.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1
    assert "product_id looks like an id" in warnings[0]
    assert "--ignore product_id" in warnings[0]
    assert "--document-column" in warnings[0]
    for more in (("--ignore", "title,product_id"), ("--ignore", "title", "--document-column", "product_id")):
        assert "WARNING" not in train(capsys, *more)[2]


@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
def test_the_separator_is_that_of_the_header(tmp_path, separator):
    expected = tierank.read(log(1), query="session", rating="clicks", ignore=["title"])
    log(1).rename(columns={"stock": '"in; stock|, or not"'}).to_csv(tmp_path / "a.csv", index=False, sep=separator)
    found = tierank.read(tmp_path / "a.csv", query="session", rating="clicks", ignore=["title"])
    np.testing.assert_array_equal(found.features, expected.features)


def test_features_and_ignore_in_all_forms(tmp_path):
    frame = log(1)
    named = {"query": "session", "rating": "clicks"}
    whole = tierank.read(frame, **named, ignore=["title"])
    for name in ("a.csv", "a.parquet"):
        (frame.to_csv if name == "a.csv" else frame.to_parquet)(tmp_path / name, index=False)
    tierank.write(whole, tmp_path / "a.tierank")
    for source in (frame, tmp_path / "a.csv", tmp_path / "a.parquet", tmp_path / "a.tierank"):
        roles = {} if source is not frame and source.suffix == ".tierank" else named
        some = tierank.read(source, **roles, features=["age", "price"], ignore=["title"])
        assert some.feature_names == ("age", "price")
        np.testing.assert_array_equal(some.features, whole.features[:, [2, 1]])
        with pytest.raises(DataError, match="unknown column 'cost'"):
            tierank.read(source, **roles, ignore=["cost"])
        with pytest.raises(DataError, match="unknown column 'cost'"):
            tierank.read(source, **roles, features=["cost"])
        assert tierank.read(source, **roles, features=["age"], ignore=["stock"]).n_features == 1
    assert tierank.read(tmp_path / "a.tierank", ignore=["stock"]).n_features == 3
    assert tierank.read(tmp_path / "a.csv", **named, features=[]).n_features == 0


def test_one_cache_serves_all_ways_to_choose_the_same_features(tmp_path, monkeypatch):
    from tierank.io import cache

    monkeypatch.setattr(cache, "_WORTH_IT", 0)
    log(1).to_csv(tmp_path / "a.csv", index=False)
    named = {"query": "session", "rating": "clicks"}
    first = tierank.read(tmp_path / "a.csv", **named, ignore=["title"])
    stamp = (tmp_path / "a.csv.tierank" / "meta.json").stat().st_mtime_ns
    again = tierank.read(tmp_path / "a.csv", **named, features=list(first.feature_names))
    assert (tmp_path / "a.csv.tierank" / "meta.json").stat().st_mtime_ns == stamp
    np.testing.assert_array_equal(first.features, again.features)
    fewer = tierank.read(tmp_path / "a.csv", **named, features=["age"])
    assert fewer.feature_names == ("age",)


def test_a_wrong_rating_is_found_by_its_line(tmp_path, capsys):
    (tmp_path / "a.csv").write_text('qid,label,name,x\n1,0,"two\nlines",1\n\n1,-1,b,2\n')
    code, _, err = run(capsys, "describe", tmp_path / "a.csv", "--ignore", "name")
    assert code == 2
    assert f"{tmp_path / 'a.csv'}:5: expected a finite rating that is not negative, got -1" in err
    (tmp_path / "a.csv").write_text("qid;label;x\n1;0;1\n;0;2\n")
    code, _, err = run(capsys, "describe", tmp_path / "a.csv")
    assert f"{tmp_path / 'a.csv'}:3: expected a query id in every row, got none" in err


def test_missing_ratings_are_named_with_the_file_and_the_option(folder, capsys):
    assert train(capsys, "--ignore", "title,product_id")[0] == 0
    query = ("--query-column", "session", "--ignore", "title")
    for command in (("evaluate", "test.csv", "model"), ("describe", "test.csv")):
        code, _, err = run(capsys, *command, *query)
        assert code == 2
        assert err.startswith("tierank: test.csv: this data set has no ratings: expected ")
        assert err.endswith("a rating column in its file; name that column with --rating-column\n")


def test_text_has_no_columns_to_choose(folder, capsys):
    tierank.write(tierank.make_ranking(12, n_features=3, mean_length=8, max_length=12), folder / "a.txt")
    code, _, err = run(capsys, "describe", "a.txt", "--ignore", "title")
    assert code == 2
    assert "a.txt: --ignore: expected a table with such a column, CSV or Parquet, got text, which has no columns" in err


def test_folds_of_a_table(folder, capsys):
    command = ("cv", "umart", "--data", "train.csv", "--out", "run", *NAMED, *QUICK, "--ignore", "title", "--jobs", 1)
    assert run(capsys, *command)[0] == 0
    assert json.loads((folder / "run" / "run.json").read_text())["data"]["description"]["n_features"] == 4
