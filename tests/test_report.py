"""Tables as text and as Markdown."""

import numpy as np
import pytest

import tierank
from tierank.data.dataset import RankingDataset
from tierank.metrics.compare import compare
from tierank.metrics.evaluate import evaluate
from tierank.report.tabulate import Table, tabulate_comparison, tabulate_contrasts, tabulate_evaluation


@pytest.fixture(scope="module")
def comparison():
    rng = np.random.default_rng(0)
    ratings = rng.integers(0, 3, 400)
    ratings[:10] = 0
    data = RankingDataset(np.zeros((400, 1)), ratings, np.repeat(np.arange(40), 10))
    noise = rng.normal(size=(3, 400))
    systems = {"base": ratings + 3 * noise[0], "good": ratings + 0.1 * noise[1], "bad|er": noise[2] - ratings}
    return compare(data, systems, metrics=["ndcg@3", "err@10", "dcg"])


TABLE = Table("Title", ["name", "x"], [["a", "9.50"], ["b", "10.25*+"]], ["a note"], bold={(1, 1)})


def test_text_lines_up_the_decimal_points():
    assert TABLE.to_text() == "Title\n\nname   x\n--------------\na       9.50\nb      10.25*+\n\na note\n"


def test_text_for_a_terminal_has_bold_cells():
    text = TABLE.to_text(terminal=True)
    assert "\x1b[1m10.25*+\x1b[0m" in text
    assert "\x1b[1mTitle\x1b[0m" in text


def test_plain_text_is_ascii_and_never_cut():
    columns = [f"column {i}" for i in range(40)]
    text = Table("Wide", columns, [["0.1234"] * 40], ["word " * 100]).to_text()
    assert text.isascii()
    assert max(map(len, text.splitlines())) > 400
    assert text.count("0.1234") == 40
    assert len(text.splitlines()) == 7


def test_markup_in_names_is_shown_as_it_is():
    table = Table("[bold]x[/bold]", ["system"], [["[red]a|b*c[/red]"]])
    assert "[red]a|b*c[/red]" in table.to_text()
    assert r"| \[red]a\|b\*c\[/red] |" in table.to_markdown()


def test_markdown():
    assert TABLE.to_markdown().splitlines() == [
        "**Title**",
        "",
        "| name | x |",
        "| :--- | ---: |",
        "| a | 9.50 |",
        r"| b | **10.25\*+** |",
        "",
        "a note",
    ]


def test_a_table_without_rows():
    assert Table("None", ["a", "b"], []).to_markdown().splitlines() == ["**None**", "", "| a | b |", "| :--- | :--- |"]
    assert Table("None", ["a", "b"], []).to_text().split() == ["None", "a", "b", "-----"]


def test_evaluation_table(comparison):
    table = tabulate_evaluation(comparison.evaluations["good"])
    assert [row[0] for row in table.rows] == ["ndcg@3", "err@10", "dcg"]
    assert table.rows[0][1] == f"{comparison.mean('good', 'ndcg@3'):.4f}"
    assert table.notes[0] == "39 queries; 1 left out: no rating above 0"
    assert table.notes[1].startswith("rule tierank: gain 2^r - 1;")


def test_comparison_table_marks_and_bold(comparison):
    table = tabulate_comparison(comparison)
    assert list(table.columns) == ["system", "ndcg@3", "err@10", "dcg"]
    base, good, bad = table.rows
    assert all("*" not in cell for cell in base[1:])
    assert all(cell.endswith("*+") for cell in good[1:])
    assert all(cell.endswith("*-") for cell in bad[1:])
    assert table.bold == {(1, 1), (1, 2), (1, 3)}
    assert table.notes[0].startswith("*+ / *-: significantly better / worse than base")
    assert r"| bad\|er |" in table.to_markdown()


def test_tabulate_chooses_the_table_by_the_kind_of_result(comparison):
    one = comparison.evaluations["good"]
    assert tierank.tabulate(comparison) == tabulate_comparison(comparison)
    assert tierank.tabulate(comparison, differences=True) == tabulate_contrasts(comparison)
    assert tierank.tabulate(one) == tabulate_evaluation(one)
    assert tierank.tabulate(comparison, title="Mine").to_markdown().startswith("**Mine**\n")
    assert str(tierank.tabulate(one)) == repr(tierank.tabulate(one)) == tabulate_evaluation(one).to_text()
    assert "<b>" not in Table("<b>", ["a"], [["<b>"]], ["<b>"])._repr_html_()
    assert tierank.tabulate(one)._repr_html_().count("<tr") == 1 + len(one.metrics)
    data = tierank.make_ranking(3, n_features=2, mean_length=4, max_length=6)
    assert tierank.tabulate(tierank.describe(data)).rows[0][:3] == ["3", f"{data.n_documents}", "2"]
    with pytest.raises(tierank.ParameterError, match=r"^differences: expected a run or a comparison, got Evaluation$"):
        tierank.tabulate(one, differences=True)
    with pytest.raises(tierank.DataError, match=r"^found: expected a Run, .* or a Description, got dict$"):
        tierank.tabulate({})


def test_signs_of_a_table_in_latex():
    table = Table("100% & more", ["a_b"], [["0.317† ± 0.1"]]).to_latex()
    assert r"\caption{100\% \& more}" in table
    assert r"a\_b \\" in table
    assert r"0.317$\dagger$ $\pm$ 0.1 \\" in table


def test_contrast_table(comparison):
    table = tabulate_contrasts(comparison)
    assert len(table.rows) == 2 * 3
    system, metric, difference, interval, p, adjusted, counts, needed, verdict = table.rows[0]
    assert (system, metric, verdict) == ("good", "ndcg@3", "better")
    assert difference.startswith("+0.")
    assert " to " in interval
    assert (p, adjusted) == ("<0.0001", "<0.0001")
    assert sum(map(int, counts.split("/"))) == 39
    assert int(needed.replace(",", "")) == comparison.contrasts["good"]["ndcg@3"].queries_needed()
    assert "excludes 0 exactly if p < 0.05" in table.notes[0]


def test_undefined_numbers_are_dashes():
    data = RankingDataset(np.zeros((2, 1)), [1, 0])
    assert tabulate_evaluation(evaluate(data, [1, 2], "mrr")).rows == [["mrr", "0.5000", "-"]]
    found = compare(data, {"a": [1, 2], "b": [2, 1]}, metrics="mrr")
    assert list(tabulate_contrasts(found).rows[0][3:6]) == ["-", "-", "-"]


def test_every_table_says_its_rule_and_what_was_left_out():
    data = RankingDataset(np.zeros((3, 1)), [1, 0, 0], qid=[1, 1, 2])
    found = compare(data, {"a": [1, 2, 3], "b": [2, 1, 3]}, rule="lightgbm")
    for table in (tabulate_evaluation(found.evaluations["a"]), tabulate_comparison(found), tabulate_contrasts(found)):
        for text in (table.to_text(), table.to_markdown()):
            assert "rule lightgbm: gain 2^r - 1;" in text
            assert "2 queries, 1 with no rating above 0; none left out" in text
