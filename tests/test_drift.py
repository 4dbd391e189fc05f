"""Drift between two data sets: distances by hand and by a peer, a test that holds its level, advice, command line."""

import json

import numpy as np
import pytest
from scipy import stats

import tierank
from benchmarks.calibration import intervals
from tierank import cli
from tierank.errors import DataError
from tierank.metrics.description import DRIFTS_FROM, LENGTHS, RATINGS, distance, find_drift


def make(n_queries=150, seed=0, shift=0.0, length=6, names=("a", "b")):
    """Lists whose documents are alike: what they share is as large as what differs."""
    rng = np.random.default_rng(seed)
    qid = np.repeat(np.arange(n_queries), length)
    shared = rng.normal(size=(n_queries, 2))[qid]
    features = shared + rng.normal(size=(len(qid), 2)) + [shift, 0.0]
    return tierank.RankingDataset(features, rng.integers(0, 3, len(qid)), qid, feature_names=names)


def test_distance_agrees_with_scipy():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=57), rng.normal(0.3, 1.2, size=91).round(1)
    assert distance(one, other) == pytest.approx(stats.ks_2samp(one, other).statistic)
    assert distance(one, one) == 0
    assert distance(np.array([np.nan, np.nan]), np.array([1.0])) == 1


def test_what_moves_is_found_and_what_does_not_is_not():
    found = tierank.describe(make(), make(seed=1, shift=1.5, length=9)).drift
    drifting = [change.name for change in found.drifting]
    assert drifting[0] == LENGTHS
    assert set(drifting) == {LENGTHS, "a"} | ({RATINGS} & set(drifting))
    assert "b" not in drifting
    assert found.changes[0].name == RATINGS
    assert "1 of 2 features drift; train again" in found.advice
    lengths = next(one for one in found.changes if one.name == LENGTHS)
    assert lengths.distance == 1


def test_the_same_data_do_not_drift():
    data = make()
    found = tierank.describe(data, data).drift
    assert found.drifting == []
    assert found.advice.startswith("nothing drifts")
    assert all(change.distance == 0 for change in found.changes)
    assert tierank.describe(data).drift is None
    assert "drift" not in tierank.describe(data).to_dict()


def test_lists_of_like_documents_raise_no_false_alarm():
    """Documents of one list are alike: a test over documents would alarm far too often, one over queries does not."""
    n_draws, n_false, n_naive = 60, 0, 0
    for draw in range(n_draws):
        one, other = make(40, 2 * draw, length=20), make(40, 2 * draw + 1, length=20)
        changes = find_drift(one, other).changes[2:]
        n_false += min(change.p for change in changes) < 0.025  # of two features, by Bonferroni
        n_naive += stats.ks_2samp(one.features[:, 0], other.features[:, 0], method="asymp").pvalue < 0.05
    assert n_false <= stats.binom.ppf(0.9999, n_draws, 0.05)
    assert n_naive > n_draws / 3


def test_features_of_queries_raise_no_false_alarm_in_descriptions_and_profiles():
    """Few queries, no drift: the distances of features of queries are large by chance."""
    rng, n_draws = np.random.default_rng(5), 80
    shown = np.zeros(2, int)
    for _ in range(n_draws):
        one, other = (intervals.lists_without_drift(30, rng) for _ in range(2))
        found = tierank.profile(one, other)
        assert max(feature.drift for feature in found.features) >= DRIFTS_FROM
        shown += [any(feature.drifts for feature in found.features), bool(find_drift(one, other).drifting)]
    assert shown.max() <= stats.binom.ppf(0.9999, n_draws, 0.05)


def test_ratings_are_compared_if_both_have_them():
    data = make()
    unrated = data.replace(ratings=None)
    changes = tierank.describe(data, unrated).drift.changes
    assert [change.name for change in changes] == [LENGTHS, "a", "b"]
    higher = data.replace(ratings=data.ratings + 1)
    assert tierank.describe(data, higher).drift.drifting[0].name == RATINGS


def test_the_order_of_rows_does_not_matter_for_distances():
    data, other = make(), make(seed=1, shift=0.4)
    order = np.random.default_rng(0).permutation(data.n_documents)
    shuffled = tierank.RankingDataset(
        data.features[order], data.ratings[order], data.query_ids[data.query_of_row][order], feature_names=["a", "b"]
    )
    for one, two in zip(find_drift(data, other).changes, find_drift(shuffled, other).changes, strict=True):
        assert one.distance == pytest.approx(two.distance)


def test_other_features_are_refused():
    with pytest.raises(DataError, match="other: expected the same features, 2, got 2 with other names"):
        tierank.describe(make(), make(names=("a", "c")))


def test_forms_of_drift():
    found = tierank.describe(make(), make(seed=1, shift=1.5)).drift
    assert found.to_pandas().columns.tolist() == ["name", "distance", "p", "adjusted_p", "drifts"]
    assert "Drift" in tierank.describe(make(), make(seed=1))._repr_html_()
    assert json.loads(json.dumps(found.to_dict()))["changes"][2]["drifts"] is True


def test_the_command_says_what_drifts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tierank.write(make(), "old.csv")
    tierank.write(make(seed=1, shift=1.5), "new.csv")
    assert cli.main(["describe", "old.csv", "--against", "new.csv"]) == 0
    out = capsys.readouterr().out
    assert "From old.csv to new.csv" in out
    assert "train again" in out
    assert cli.main(["describe", "old.csv", "--against", "new.csv", "--json"]) == 0
    assert "advice" in json.loads(capsys.readouterr().out)["drift"]


def test_texts_are_compared_by_their_names_and_not_by_their_numbers():
    """Data of later months have other brands, so the same brand has another number there."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    brands = rng.choice(["b", "c", "d"], 600)
    table = pandas.DataFrame(
        {"brand": brands, "query": np.repeat(np.arange(100), 6), "rating": rng.integers(0, 3, 600)}
    )
    later = table.assign(brand=np.where(np.arange(600) % 300 == 0, "a", brands))
    data, other = tierank.read(table), tierank.read(later)
    change = find_drift(data, other).changes[-1]
    assert change.name == "brand"
    assert change.distance == pytest.approx(2 / 600)
    assert tierank.profile(data, other).features[0].drift == pytest.approx(2 / 600)
    with pytest.raises(DataError, match="feature 'brand': expected the same kind of values in all parts"):
        find_drift(data, tierank.read(table.assign(brand=1.0)))
