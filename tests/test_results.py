"""The results page says what the files of the results say."""

import json

import pytest

import tierank
from benchmarks import results
from tierank.experiments.crossval import describe_ranker


@pytest.mark.parametrize("page", results.PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_those_of_the_files(page):
    text = page.read_text()
    assert "<!-- table: " in text
    assert results.fill(text) == text


def test_a_run_of_the_paper_has_its_settings_of_today():
    """What the page says of the paper's presets was measured with them."""
    found = json.loads((results.FILES / "ohsumed-paper.json").read_text())
    for name in ("urank", "uboost", "urboost", "umart", "lambdamart", "lambdaloss", "plistmle", "mdprank"):
        ranker = tierank.RANKERS[name].from_preset("paper-ohsumed")
        kept, now = found["systems"][name]["settings"], describe_ranker(ranker)["settings"]
        for setting in type(ranker).PRESETS["paper-ohsumed"]:
            assert kept[setting] == now[setting], (name, setting)


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


def test_a_table_beside_the_paper_has_ours_its_figure_and_the_difference():
    printed = {"value": 0.602, "is_marked": True, "doubt": None}
    cell = {"printed": printed, "difference": -0.0624, "verdict": "below"}
    found = {
        "metrics": ["ndcg@1", "err@1"],
        "spread": {"urank": {"ndcg@1": 0.018}},
        "comparison": {"systems": {"urank": {"ndcg@1": {"mean": 0.5396}}}},
        "beside_paper": {"urank": {"ndcg@1": cell}},
    }
    assert results.tabulate_paper(found, ["urank"]).splitlines() == [
        "|  |  | ndcg@1 |",
        "| --- | --- | --- |",
        "| urank | ours | 0.540 ± 0.018 |",
        r"|  | paper | 0.602\* |",
        "|  | difference | -0.062 below |",
    ]
