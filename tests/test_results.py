"""The results page says what the files of the results say."""

import json

import pytest

from benchmarks import results


def test_the_tables_of_the_page_are_those_of_the_files():
    page = results.PAGE.read_text()
    assert page.count("<!-- table: ") >= 4
    assert results.fill(page) == page


@pytest.mark.parametrize("file", sorted(results.FILES.glob("*.json")), ids=lambda file: file.stem)
def test_files_hold_means_tests_and_no_places(file):
    found = json.loads(file.read_text())
    assert found["data"]["source"] is None
    systems = found["comparison"]["systems"]
    assert set(found["spread"]) == set(systems) == set(found["cpu_seconds"])
    assert set(found["comparison"]["contrasts"]) == set(systems) - {found["comparison"]["baseline"]}
    assert "/home" not in file.read_text()


def test_a_table_has_means_spreads_marks_and_the_best_in_bold():
    metric = {"mean": 0.5, "standard_error": 0.1}
    contrast = {"difference": 0.1, "low": 0.05, "high": 0.15, "p": 0.00001, "adjusted_p": 0.01, "verdict": "better"}
    found = {
        "metrics": ["ndcg@10"],
        "seeds": [0, 1],
        "created": "2026-11-16T00:00:00",
        "paper": None,
        "protocol": "standard",
        "data": {"description": {}},
        "spread": {"old": {"ndcg@10": None}, "new": {"ndcg@10": 0.0123}},
        "cpu_seconds": {"old": None, "new": 1.25},
        "comparison": {
            "baseline": "old",
            "n_queries": 7,
            "rule": {"name": "wsdm20"},
            "systems": {"old": {"ndcg@10": metric}, "new": {"ndcg@10": metric | {"mean": 0.6}}},
            "contrasts": {"new": {"ndcg@10": contrast}},
        },
    }
    table = results.tabulate(found)
    assert "| old | 0.500 | - |" in table
    assert r"| new | **0.600 ± 0.012**\*+ | 1.2 |" in table
    assert "| new | ndcg@10 | +0.1000 | +0.0500 to +0.1500 | < .0001 | 0.0100 |" in results.tabulate_differences(
        found, ["ndcg@10"]
    )
