"""Files keep the order of the caller's rows, and score files say which rows they belong to."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples

import tierank
from tierank import DataError, RankingDataset, cli

ENDINGS = (".txt", ".txt.gz", ".csv", ".tsv", ".parquet", ".tierank")


@st.composite
def data_sets(draw):
    """Rows of a few queries in any order, with ids of any form, some with document ids."""
    queries = draw(st.lists(st.sampled_from(["a", "b", "10", "2", "Ab"]), min_size=2, max_size=12))
    form = draw(st.sampled_from(["texts", "integers", "floats"]))
    qid = {"texts": queries, "integers": [len(q) * 7 + ord(q[0]) for q in queries]}.get(
        form, [ord(q[0]) / 2 for q in queries]
    )
    n, rng = len(queries), np.random.default_rng(draw(st.integers(0, 99)))
    documents = [f"d{k}" for k in range(n)] if draw(st.booleans()) else None
    return RankingDataset(rng.normal(size=(n, 2)), rng.integers(0, 4, n), qid=qid, document_ids=documents)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("order")


@given(data=data_sets(), ending=st.sampled_from(ENDINGS), seed=st.integers(0, 99))
@examples(120)
def test_data_and_scores_that_were_written_are_judged_as_before(data, ending, seed, folder):
    scores = np.random.default_rng(seed).normal(size=data.n_documents)
    tierank.write(data, folder / f"data{ending}")
    tierank.write_scores(scores, folder / "marked.txt", data)
    tierank.write_scores(scores, folder / "plain.txt")
    tierank.write_run(data, scores, folder / "x.run")
    back = tierank.read(folder / f"data{ending}", cache=False)
    expected = tierank.evaluate(data, scores, "dcg@3", rule="letor").mean("dcg@3")
    np.testing.assert_array_equal(back.restore(back.features), data.restore(data.features))
    names = ["marked.txt", "plain.txt", "x.run"]
    for name in names[: 2 if data.query_ids.dtype.kind == "f" else 3]:  # CSV and Parquet differ in the text of 1.0
        found = tierank.read_scores(folder / name, back)
        np.testing.assert_array_equal(found, scores)
        assert tierank.evaluate(back, found, "dcg@3", rule="letor").mean("dcg@3") == pytest.approx(expected, abs=1e-12)


FRAME = pd.DataFrame(
    {
        "qid": ["b", "a", "b", "a", "c", "c"],
        "rating": [0, 1, 2, 0, 1, 0],
        "document": list("uvwxyz"),
        "price": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    }
)


def written(frame, folder, monkeypatch):
    """A model, the data as CSV, and its scores in every form that ``predict`` writes."""
    monkeypatch.chdir(folder)
    frame.to_csv("data.csv", index=False)
    tierank.UMart(n_trees=3, min_documents=1).fit(tierank.read("data.csv")).save("model")
    for name in ("scores.txt", "scores.csv", "scores.parquet"):
        assert cli.main(["predict", "model", "data.csv", "--out", name, "--quiet"]) == 0
    return ("scores.txt", "scores.csv", "scores.parquet")


@pytest.mark.parametrize("has_documents", [True, False])
def test_scores_of_rows_in_another_order_are_refused(has_documents, tmp_path, monkeypatch):
    frame = FRAME if has_documents else FRAME.drop(columns="document")
    names = written(frame, tmp_path, monkeypatch)
    expected = tierank.load("model").predict(tierank.read("data.csv"))
    others = {"sorted": frame.sort_values("qid", kind="stable"), "renamed": frame.replace({"qid": {"c": "d"}})}
    if has_documents:
        others["within"] = frame.iloc[[2, 1, 0, 3, 4, 5]]
    for name in names:
        np.testing.assert_array_equal(tierank.read_scores(name, tierank.read("data.csv")), expected)
        for how, other in others.items():
            for ending in (".csv", ".txt", ".parquet"):
                tierank.write(tierank.read(other), f"other{ending}")
                with pytest.raises(DataError, match="expected scores of these data, row by row") as caught:
                    tierank.read_scores(name, tierank.read(f"other{ending}", cache=False))
                assert caught.value.got.startswith(
                    f"scores of rows with other {'documents' if how == 'within' else 'queries'}"
                )
                assert "same order" in caught.value.fix


def test_ids_are_compared_only_if_both_have_them(tmp_path, monkeypatch):
    names = written(FRAME, tmp_path, monkeypatch)
    unnamed = tierank.read(FRAME, features=["price"], ignore=["document"]).replace(document_texts=None)
    for name in names:
        assert len(tierank.read_scores(name, unnamed)) == 6


def test_other_tools_read_our_scores_and_we_read_theirs(tmp_path, monkeypatch):
    written(FRAME, tmp_path, monkeypatch)
    expected = tierank.read_scores("scores.txt", tierank.read("data.csv"))
    np.testing.assert_array_equal(np.loadtxt("scores.txt"), expected)
    np.testing.assert_array_equal(pd.read_csv("scores.txt", comment="#", header=None)[0], expected)
    sideways = tierank.read(FRAME.sort_values("qid"))
    for name, text in {"a.txt": "1\n2\n3\n4\n5\n6\n", "b.csv": "score\n1\n2\n3\n4\n5\n6\n"}.items():
        (tmp_path / name).write_text(text)
        assert tierank.read_scores(name, sideways).tolist() == [1, 2, 3, 4, 5, 6]


def test_ranked_documents_are_no_scores(tmp_path, monkeypatch, capsys):
    written(FRAME, tmp_path, monkeypatch)
    assert cli.main(["predict", "model", "data.csv", "--k", "9", "--out", "top.csv"]) == 0
    with pytest.raises(DataError, match=r"top\.csv: expected the scores of all documents.*got the best documents"):
        tierank.read_scores("top.csv", tierank.read("data.csv"))


def test_scores_and_data_have_the_same_length(tmp_path):
    with pytest.raises(DataError, match="values: expected 6, one per document, got 2"):
        tierank.write_scores([1.0, 2.0], tmp_path / "s.txt", tierank.read(FRAME))
    with pytest.raises(DataError, match="data: expected a RankingDataset, got DataFrame"):
        tierank.write_scores([1.0, 2.0], tmp_path / "s.txt", FRAME)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("word", ["NA", "nan", "None", "", "null"])
def test_query_ids_that_would_not_read_back_are_not_written(word, tmp_path):
    among_texts = RankingDataset([[1.0], [2.0]], [0, 1], qid=[word, "b"])
    tierank.write(among_texts, tmp_path / "texts.csv")
    assert tierank.read(tmp_path / "texts.csv").query_ids.tolist() == [word, "b"]
    among_integers = RankingDataset([[1.0], [2.0]], [0, 1], qid=[word, "7"])
    for ending in (".csv", ".tsv"):
        with pytest.raises(DataError, match="expected query ids that CSV can hold") as caught:
            tierank.write(among_integers, tmp_path / f"x{ending}")
        assert caught.value.fix == "rename it, or write Parquet"
    tierank.write(among_integers, tmp_path / "x.parquet")
    assert tierank.read(tmp_path / "x.parquet").query_ids.tolist() == [word, "7"]


def test_a_byte_order_mark_is_no_part_of_a_name_in_trec_files(tmp_path):
    data = RankingDataset([[1.0], [2.0]], [0, 1], qid=["\ufeffa", "b"])
    for write in (lambda: tierank.write_run(data, [1.0, 2.0], tmp_path / "x"), lambda: tierank.write_qrels(data, "x")):
        with pytest.raises(DataError, match="have no byte order mark in front") as caught:
            write()
        assert caught.value.argument == "data"
