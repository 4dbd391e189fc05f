"""Numbers about features carry the names that the caller knows: every ranker, every kind of column, any order."""

import re
import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import tierank
from tierank import RANKERS, Columns, ParameterError
from tierank.rankers.explain import gains_by_column

QUERIES, LENGTH = 40, 12
TREES = {"n_trees": 20, "min_documents": 3, "n_jobs": 1}
NETWORK = {"max_epochs": 15, "learning_rate": 0.02, "hidden": (12,), "n_jobs": 1}
QUICK = {name: TREES if hasattr(ranker, "importance") else NETWORK for name, ranker in RANKERS.items()} | {
    "blend": {"n_configs": 1, "n_seeds": 1, "rotate": False, "n_trees": 20, "max_epochs": 4, "n_jobs": 1},
    "linear": {"n_jobs": 1},
}
# A ranker whose trees have a feature for each level of a category, as a linear ranker comes before them.
MAKERS = {name: lambda name=name: RANKERS[name](**QUICK[name]) for name in RANKERS} | {
    "umart on linear": lambda: tierank.UMart(base=tierank.LinearRanker(ridge=10.0), **TREES),
    "urank, indicators": lambda: tierank.URank(category_encoding="indicators", **NETWORK),
}
WORDS = np.array(["red", "blue", "wool", "silk", "shirt", "shoe"])


def frame_of(kind):
    """A table in which one column, called useful, decides the ratings; and what its features may be called."""
    rng = np.random.default_rng(0)
    n = QUERIES * LENGTH
    worth = rng.random(n)
    frame = pd.DataFrame({"search": np.repeat([f"q{q}" for q in range(QUERIES)], LENGTH), "first": rng.normal(size=n)})
    names = ["useful"]
    if kind == "numbers":
        frame["useful"] = worth
    elif kind == "categories":
        frame["useful"] = np.array(["acme", "bolt", "core", "dust"])[np.digitize(worth, [0.4, 0.7, 0.9])]
    elif kind == "dates":
        frame["useful"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(400 * worth, unit="D")
    elif kind == "vectors":
        frame["useful"] = list(np.column_stack([rng.random(n), worth, rng.random(n)]))
        names = ["useful_1"]
    else:
        frame["term"] = np.repeat(rng.choice(WORDS, QUERIES), LENGTH)
        others = rng.choice(WORDS, n)
        frame["useful"] = [a if w > 0.6 else b for a, b, w in zip(frame["term"], others, worth, strict=True)]
        worth = (frame["useful"] == frame["term"]).to_numpy().astype(float)
        names = ["useful", "term"]
    frame["last"] = rng.normal(size=n)
    return frame.assign(rating=np.digitize(worth, [0.4, 0.7, 0.9])), names


def read(frame, kind):
    columns = Columns(texts=[("term", "useful")]) if kind == "texts" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tierank.ColumnWarning)
        return tierank.read(frame, query="search", columns=columns)


def versions(frame, kind):
    """The same documents with columns in another order, and with more columns."""
    heads = ["search", "rating"]
    turned = [*heads, *[name for name in frame.columns if name not in heads][::-1]]
    more = frame.assign(extra=np.linspace(0, 1, len(frame)), color="red")
    return [read(table, kind) for table in (frame, frame[turned], more[[*heads, "extra", "color", *turned[2:]]])]


def column_of(name):
    """The column that a feature of a model is computed from: its name, up to a level or a match."""
    return name.partition("=")[0].partition(".")[0].partition("~")[-1] or name.partition("=")[0]


@pytest.mark.filterwarnings("ignore::tierank.ColumnWarning")
@pytest.mark.parametrize("kind", ["numbers", "categories", "dates", "vectors", "texts"])
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_importances_and_explanations_carry_the_right_names(name, kind):
    frame, useful = frame_of(kind)
    data, *others = versions(frame, kind)
    ranker = MAKERS[name]().fit(data)
    drops = ranker.permutation_importance(data, n_repeats=2)
    expected = dict(zip(data.feature_names, drops.tolist(), strict=True))
    assert data.feature_names[drops.mean(axis=1).argmax()] in useful
    for other in others:
        found = dict(zip(other.feature_names, ranker.permutation_importance(other, n_repeats=2).tolist(), strict=True))
        assert {name: found[name] for name in expected} == expected
        assert all(found[name] == [0, 0] for name in found.keys() - expected.keys())
        axes = tierank.plot_importance(ranker, other, n=1, axes=Figure().subplots())
        assert axes.get_yticklabels()[0].get_text() in useful
    gains = gains_by_column(ranker)
    if gains:
        assert column_of(max(gains, key=gains.get)) in useful
        assert sum(gains.values()) == pytest.approx(ranker.importance("gain").sum())
        assert not any("=" in one for one in gains)
        axes = tierank.plot_importance(ranker, n=1, axes=Figure().subplots())
        assert column_of(axes.get_yticklabels()[0].get_text()) in useful
    first, *rest = (tierank.explain_query(ranker, one, one.query_ids[0], k=None) for one in (data, *others))
    whole = Counter()  # from the first document of the list to the last
    for one in first:
        for feature, share in zip(one.features, one.contributions, strict=True):
            whole[column_of(feature)] += share
    assert whole.most_common(1)[0][0] in useful
    assert all([one.to_dict() for one in again] == [one.to_dict() for one in first] for again in rest)


@pytest.mark.filterwarnings("ignore::tierank.ColumnWarning")
def test_features_without_names_are_numbered_and_take_the_names_of_the_model():
    data = read(frame_of("numbers")[0], "numbers")
    plain = data.with_features(data.features, None)
    ranker = tierank.UMart(**TREES).fit(data)
    np.testing.assert_array_equal(ranker.permutation_importance(plain), ranker.permutation_importance(data))
    assert tierank.explain_pair(ranker, plain, plain.query_ids[0], 1, 2).features == ("first", "useful", "last")
    axes = tierank.plot_importance(ranker, plain, n=1, axes=Figure().subplots())
    assert axes.get_yticklabels()[0].get_text() == "feature 2"
    without = tierank.UMart(**TREES).fit(plain)
    assert list(gains_by_column(without)) == ["feature 1", "feature 2", "feature 3"]
    assert tierank.plot_importance(without, data, n=1, axes=Figure().subplots()).get_yticklabels()[0].get_text() == (
        "useful"
    )


@pytest.mark.filterwarnings("ignore::tierank.ColumnWarning")
@pytest.mark.parametrize("kind", ["categories", "texts"])
def test_report_pages_name_what_matters(kind, tmp_path):
    frame, useful = frame_of(kind)
    data = read(frame, kind)
    rankers = {name: MAKERS[name]() for name in ("linear", "umart", "umart on linear")}
    run = tierank.cross_validate(rankers, [tuple(data.split(0.6, 0.2, 0.2))], seeds=1, n_jobs=1, out=tmp_path / "run")
    tierank.write_report(run, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for name in rankers:
        drawn = page.partition(f"Importance, {name}<")[2]
        assert column_of(re.search(r"<title>([^<]*?): [+\d]", drawn)[1]) in useful, name


@pytest.mark.filterwarnings("ignore::tierank.ColumnWarning")
@pytest.mark.parametrize("settings", [{"categorical_feature": [1]}, {"interaction_constraints": [["first"], [1, 2]]}])
def test_numbers_of_features_are_refused_where_the_model_has_others_than_the_data(settings):
    data = read(frame_of("texts")[0], "texts")
    with pytest.raises(ParameterError, match="names of features, as the model computes some") as caught:
        tierank.UMart(**settings, **TREES).fit(data)
    assert caught.value.argument == next(iter(settings))
    numbers = read(frame_of("numbers")[0], "numbers")
    tierank.UMart(**settings, **TREES).fit(numbers)
