"""Numbers that are written as texts: what is refused, and what is none."""

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tierank
from tierank.data.checks import are_numbers, number_form
from tierank.errors import DataError

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")

PRICES = ["$1.50", "$12", None, "n/a", "$1,200.00", "$7"]


def tabled(cells):
    return {"qid": [1, 1, 1, 2, 2, 2], "label": [0, 1, 2, 0, 1, 2], "x": [0.5, 1, 2, 3, 4, 5], "price": cells}


def as_csv(columns, folder):
    pandas.DataFrame(columns).to_csv(folder / "shop.csv", sep=";", index=False)
    return folder / "shop.csv"


def as_parquet(columns, folder):
    pyarrow.parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "shop.parquet")
    return folder / "shop.parquet"


SOURCES = {
    "csv": as_csv,
    "parquet": as_parquet,
    "pandas": lambda columns, _: pandas.DataFrame(columns),
    "pandas objects": lambda columns, _: pandas.DataFrame(columns, dtype=object),
    "polars": lambda columns, _: polars.DataFrame(columns),
    "arrow": lambda columns, _: pyarrow.table(columns),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("cells", [PRICES, ["12 EUR", "1.234,50 €", "7 eur", None, "", "-3 EUR"], ["5%"] * 5 + ["7 %"]])
def test_numbers_in_another_notation_are_refused_everywhere(source, cells, tmp_path):
    table = SOURCES[source](tabled(cells), tmp_path)
    with pytest.raises(DataError, match="expected numbers") as said:
        tierank.read(table)
    assert said.value.where.endswith("column 'price'")
    assert said.value.expected == "numbers"
    assert "a number in another notation" in said.value.got
    assert said.value.fix == (
        "convert 'price' to numbers, or declare columns=Columns(categories=['price']) if they are names, or leave the"
        " column out with ignore=['price']"
    )
    declared = tierank.read(table, columns=tierank.Columns(categories=["price"]))
    assert {*filter(None, cells)} - {"n/a"} <= {*declared.kinds["price"].levels}
    assert tierank.read(table, ignore=["price"]).feature_names == ("x",)


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "csv"])
def test_plain_numbers_as_texts_are_refused_with_both_ways_out(source, tmp_path):
    """The same cells of a CSV file, which has no types, are numbers."""
    cells = ["12", "1.5", " 7 ", "1e3", None, "-3"]
    with pytest.raises(
        DataError, match=r"column 'price': expected numbers, got '.*', a number as text; convert"
    ) as said:
        tierank.read(SOURCES[source](tabled(cells), tmp_path))
    assert "Columns(categories=['price'])" in said.value.fix
    assert tierank.read(as_csv(tabled(cells), tmp_path)).kinds == {}


def test_all_columns_are_in_one_message_also_in_fit_and_for_arrays(tmp_path):
    frame = pandas.DataFrame(tabled(PRICES)).assign(share="5%", raw=b"x")
    with pytest.raises(DataError, match=r"'price'.*'share'.*declare columns=Columns\(categories=\['price', 'share'\]"):
        tierank.read(frame, ignore=["raw"])
    with pytest.raises(DataError, match="column 'price': expected numbers"):
        tierank.UMart().fit(frame[["x", "price"]], frame["label"], frame["qid"])
    with pytest.raises(DataError, match=r"expected numbers, got '.12'") as said:
        tierank.RankingDataset(np.array([["$12"], ["$13"]]))
    assert said.value.fix == "these are texts of numbers: convert them to numbers"


def test_a_type_of_categories_is_a_declaration():
    cells = ["38", "40", "38", "40", "42", None]
    frame = pandas.DataFrame(tabled(cells))
    tables = [
        frame.astype({"price": "category"}),
        polars.DataFrame(tabled(cells), schema_overrides={"price": polars.Categorical}),
        pyarrow.table(tabled(pyarrow.array(cells).dictionary_encode())),
    ]
    for table in tables:
        assert tierank.read(table).kinds["price"].levels == ("38", "40", "42")


def test_a_model_of_declared_levels_takes_new_texts_of_any_form():
    frame = pandas.DataFrame(tabled(["38", "XS", "M", "40", "S", "L"]))
    ranker = tierank.UMart(n_trees=2, min_documents=1).fit(tierank.read(frame))
    only_numbers = frame.assign(price="38")
    assert np.isfinite(ranker.predict(only_numbers, only_numbers["qid"])).all()
    assert tierank.read(only_numbers, columns=ranker.columns_).kinds["price"].levels == ("38",)


@pytest.mark.parametrize(
    "texts",
    [
        ["XS", "S", "M", "L", "XL", "2XL", "3XL"],
        ["007", "012", "100"],
        ["01234", "90210", "10001"],
        ["A12", "B7", "C-100"],
        ["2024-01-31", "2024-02-01"],
        ["31.01.2024", "01.02.2024"],
        ["1.2.3", "1.10.0", "2.0.1"],
        ["+49 30 123456", "+1 555 0100"],
        ["+49 301 234 567"],
        ["030-123456", "555-0100"],
        ["12:30", "23:59"],
        ["10-20", "30-40"],
        ["1/2", "3/4"],
        ["16GB", "32GB", "500 ml"],
        ["4711", "acme", "globex"],
        ["12 MAX", "Boeing 737", "1st", "No. 5"],
        ["NA", "n/a", "", "None"],
        ["€", "$", "%", "-", ".", ","],
        [],
    ],
)
def test_codes_sizes_dates_and_names_are_no_numbers(texts):
    assert not are_numbers(texts)


AROUND = [("", after) for after in ("", " EUR", "€", " kr", " zł", "%", " %", " Kč")]
AROUND += [(before, "") for before in ("$", "€ ", "US$", "CHF ", "Rs. ", "₹", "R$ ", "£")]
SEPARATORS = [("", "."), ("", ","), (",", "."), (".", ","), (" ", ","), ("\u202f", ","), ("'", "."), ("’", ".")]


def grouped(whole, separator):
    return f"{whole:,}".replace(",", separator)


@st.composite
def notations(draw):
    """A number in the notation of some place, with the value that it stands for."""
    whole, cents = draw(st.integers(0, 10**9)), draw(st.integers(0, 99))
    separator, point = draw(st.sampled_from(SEPARATORS))
    text = grouped(whole, separator) + (f"{point}{cents:02}" if draw(st.booleans()) else "")
    sign = draw(st.sampled_from(["", "-", "+", "\N{MINUS SIGN}"])) if not separator.isspace() else ""
    before, after = draw(st.sampled_from(AROUND))
    blank = draw(st.sampled_from(["", " ", "\t", "\N{NO-BREAK SPACE}"]))
    return f"{blank}{sign}{before}{text}{after}{blank}"


@given(st.lists(notations(), min_size=1, max_size=20))
def test_every_notation_is_a_number(texts):
    assert {number_form(text) for text in texts} <= {"plain", "formatted"}
    assert are_numbers(texts)
    assert are_numbers([*texts, "n/a", "", "-", "NULL"])


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**12), 10**12))
def test_what_python_prints_of_a_number_is_a_plain_number(real, whole):
    assert number_form(repr(real)) == number_form(str(whole)) == "plain"
    assert float(repr(real)) == real


@given(st.text(max_size=30))
def test_what_is_a_plain_number_is_one_for_python_and_nothing_else_is(text):
    form = number_form(text)
    try:
        float(text.strip())
        is_number = not any(letter in text.casefold() for letter in ("n", "_"))  # nan, inf and 1_000
    except ValueError:
        is_number = False
    if form == "plain":
        float(text.strip())
    elif is_number:
        assert form == "code"  # leading zeros
    if form is not None:
        assert any(letter.isnumeric() for letter in text)


@given(st.dates(datetime.date(1000, 1, 1)), st.sampled_from(["%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%Y-%m-%dT%H:%M"]))
def test_dates_are_no_numbers(date, form):
    assert number_form(datetime.datetime.combine(date, datetime.time(12, 30)).strftime(form)) in ("code", None)


@given(st.lists(st.integers(0, 99), min_size=3, max_size=6))
def test_versions_are_no_numbers(parts):
    assert number_form(".".join(map(str, parts))) == "code"


@given(st.permutations(["38", "39", "40", "XS", "S", "M"]))
def test_the_order_of_texts_does_not_matter(texts):
    assert not are_numbers(texts)
    assert are_numbers([*texts, "41"])
