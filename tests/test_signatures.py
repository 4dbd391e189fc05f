"""Files of other formats: the error says what the file is and what to do, in every place that reads text or CSV."""

import bz2
import gzip
import lzma
import pickle
import re
import sqlite3
import zipfile

import numpy as np
import pandas as pd
import pytest

import tierank
from tierank import cli
from tierank.io.paths import SIGNATURES

FRAME = pd.DataFrame({"qid": [1, 1, 2, 2], "rating": [0, 1, 2, 0], "price": [0.5, 1.5, 2.5, 3.5]})
LETOR = b"1 qid:1 1:0.5\n0 qid:1 1:0.25\n"


def write_zip(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", LETOR)


def write_database(path):
    with sqlite3.connect(path) as connection:
        FRAME.to_sql("shop", connection)
    connection.close()


def write_array(path):
    with path.open("wb") as file:
        np.save(file, np.eye(3))


def write_orc(path):
    orc = pytest.importorskip("pyarrow.orc")
    pa = pytest.importorskip("pyarrow")
    orc.write_table(pa.Table.from_pandas(FRAME), path)


# Written by the libraries of the formats, not from the table of signatures.
WRITERS = {
    "a file compressed with gzip": lambda path: path.write_bytes(gzip.compress(b"qid,rating,x\n1,0,1\n1,1,2\n")),
    "a file compressed with xz": lambda path: path.write_bytes(lzma.compress(LETOR)),
    "a file compressed with bzip2": lambda path: path.write_bytes(bz2.compress(LETOR)),
    "a zip archive or an Excel workbook": write_zip,
    "a Parquet file": FRAME.to_parquet,
    "an Arrow (Feather) file": FRAME.to_feather,
    "an ORC file": write_orc,
    "an SQLite database": write_database,
    "an array of NumPy": write_array,
    "a pickle, which is not read": lambda path: path.write_bytes(pickle.dumps(FRAME, protocol=5)),
    "text in UTF-16": lambda path: path.write_bytes(LETOR.decode().encode("utf-16")),
    "JSON": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "HTML or XML": FRAME.to_html,
}


@pytest.mark.parametrize("what", WRITERS)
def test_a_file_of_another_format_is_named(what, tmp_path, capsys):
    """As data, as a table, as a click log; gzip is what text may have, but not a CSV file without .gz."""
    fix = {one.what: one.fix for one in SIGNATURES}[what]
    for name in ("data.txt", "data.csv", "data"):
        path = tmp_path / name
        WRITERS[what](path)
        is_csv = path.suffix == ".csv"
        expected = f"expected {'a CSV table with a header line' if is_csv else 'LETOR text'}, got {what}; {fix}"
        if is_csv or "gzip" not in what:
            with pytest.raises(tierank.DataError, match=f"^{re.escape(f'{path}: {expected}')}$"):
                tierank.read(path, cache=False)
            assert cli.main(["describe", str(path)]) == 2
            assert f"got {what}; " in capsys.readouterr().err
        expected = f"{path}: expected a CSV table with a header line, got {what}; {fix}"
        with pytest.raises(tierank.DataError, match=f"^{re.escape(expected)}$"):
            tierank.clicks.read(path)


@pytest.mark.parametrize("name", ["shop.txt", "shop", "shop.gz"])
@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_a_table_that_is_not_called_one(name, separator, tmp_path, capsys):
    path = tmp_path / name
    content = FRAME.to_csv(index=False, sep=separator).encode("utf-8-sig")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    message = "expected LETOR text, got a table with a header line; if it is CSV, pass format='csv'"
    with pytest.raises(tierank.DataError, match=message):
        tierank.read(path)
    assert cli.main(["describe", str(path)]) == 2
    assert capsys.readouterr().err.endswith("if it is CSV, pass --format csv\n")
    assert tierank.read(path, format="csv").n_documents == 4


@pytest.mark.parametrize("line", ["one qid:1 1:0.5", "x,y:1 2", "1 qid:1 1:0,5", "\x001 qid:1 1:0"])
def test_mistakes_in_text_are_still_named_by_line(line, tmp_path):
    (tmp_path / "a.txt").write_text(f"{line}\n")
    with pytest.raises(tierank.DataError, match=r"a\.txt:1: expected"):
        tierank.read(tmp_path / "a.txt")


def test_a_later_mistake_in_a_file_of_text_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("qid,rating,price\n1,0,1\n1,1\n")
    with pytest.raises(tierank.DataError, match="Expected 3 columns, got 2"):
        tierank.read(tmp_path / "a.csv")


# Models and data, one taken for the other


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folder") / "model"
    data = tierank.read(FRAME)
    tierank.LambdaMART(n_trees=2, min_documents=1).fit(data).save(folder)
    return folder


def test_what_is_not_a_model_is_named(model, tmp_path):
    tierank.write(tierank.read(FRAME), tmp_path / "shop.tierank")
    (tmp_path / "train.txt").write_bytes(LETOR)
    named = {
        tmp_path / "train.txt": "a file; tierank.read reads data, tierank.from_lightgbm a model of LightGBM",
        tmp_path / "shop.tierank": "a data set; tierank.read reads data",
        model / "model.json": f"a file of a model; give its folder, {str(model)!r}",
        model / "trees.txt": f"a file of a model; give its folder, {str(model)!r}",
        tmp_path: "a folder without it",
        tmp_path / "none": "nothing there",
        tmp_path / ("n" * 3000): "nothing there",
    }
    for path, got in named.items():
        expected = f"{path}: expected a model folder, with model.json in it, got {got}"
        with pytest.raises(tierank.DataError, match=f"^{re.escape(expected)}$"):
            tierank.load(path)


def test_a_model_is_not_data(model, capsys):
    with pytest.raises(tierank.DataError, match=r"got the folder of a model; tierank\.load reads a model"):
        tierank.read(model)
    assert cli.main(["describe", str(model)]) == 2
    assert capsys.readouterr().err.endswith("expected a file of data, got the folder of a model\n")
