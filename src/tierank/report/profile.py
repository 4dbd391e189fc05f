"""The HTML page of a data set: its content, and what looks wrong."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tierank.display import Html, element
from tierank.files import replacing
from tierank.metrics.description import DRIFTS_FROM, LEAKS_FROM, Feature, Profile
from tierank.report import charts
from tierank.report.markup import Sections, folded, from_table, grid, make_page
from tierank.report.tabulate import tabulate_description
from tierank.settings import check_type

# Numbers of bars in a histogram, of ratings with a separate bar, and of features in a chart.
_BARS, _RATINGS, _NAMED = 20, 12, 20
_LEAKS = "almost perfect rankings by themselves: probably computed from the ratings"


def write_profile(profile: Profile, path: str | os.PathLike[str], *, title: str = "Data") -> None:
    """Write a profile as one HTML file, which works from disk and loads nothing from the network.

    Parameters
    ----------
    profile : Profile
        The result of ``profile``.
    path : path
        The file.
    title : str, default "Data"
        The title of the page.

    Examples
    --------
    >>> import pathlib, tempfile, tierank
    >>> data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_profile(tierank.profile(data), f"{folder}/data.html", title="Shop")
    ...     "<title>Shop</title>" in pathlib.Path(folder, "data.html").read_text()
    True
    """
    check_type("profile", profile, Profile, "tierank.profile makes one from a data set")
    check_type("title", title, str)
    text = make_profile(profile, title)
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def make_profile(profile: Profile, title: str) -> str:
    """The HTML of the page."""
    about = profile.description
    facts = f"{about.n_queries:,} queries · {about.n_documents:,} documents · {about.n_features:,} features"
    sections: Sections = [
        ("summary", "Summary", _summary(profile)),
        ("lists", "Ratings and lists", _lists(profile)),
        ("features", "Features", _features(profile)),
        *([] if profile.test is None else [("drift", "Drift", _drift(profile))]),
    ]
    return make_page(title, [element("p", facts, class_="facts")], sections)


def find_troubles(profile: Profile) -> list[tuple[str, str]]:
    """What looks wrong, and what it means, one line each."""
    about, features = profile.description, profile.features
    lists = [
        ("feature that gives", "features that give", " the ratings away", [f for f in features if f.leaks], _LEAKS),
        ("constant feature", "constant features", "", [f for f in features if f.is_constant], "nothing to learn from"),
        ("duplicated feature", "duplicated features", "", [f for f in features if f.twin], "same as another feature"),
        ("feature that drifts", "features that drift", "", [f for f in features if f.drifts], "test data have others"),
    ]
    troubles = []
    for one, many, more, some, why in lists:
        names = [feature.name for feature in some]
        shown = f"{', '.join(names[:6])}{f' and {len(names) - 6:,} more' if len(names) > 6 else ''}"
        troubles += [(f"{_count(len(some), one, many)}{more}", f"{shown}: {why}")] if some else []
    if about.n_empty_queries:
        empty = _count(about.n_empty_queries, "empty query", "empty queries")
        troubles.append((empty, "no rating above 0: nothing to learn from, and most metrics are undefined"))
    single = about.n_single_rating_queries - about.n_empty_queries
    if single > 0:
        words = f"{_count(single, 'query', 'queries')} with one rating above 0"
        troubles.append((words, "all orders are equally good: nothing to learn from"))
    if about.missing_share:
        troubles.append((f"{about.missing_share:.2%} of values missing", "trees handle them, networks see 0"))
    return troubles


def _summary(profile: Profile) -> list[Html]:
    rows = find_troubles(profile)
    shown = grid(["what to check", "why"], rows, class_="words") if rows else element("p", "Nothing looks wrong.")
    return [from_table(tabulate_description(profile.description, "")), element("h3", "To check"), shown]


def _lists(profile: Profile) -> list[Html]:
    about, test = profile.description, profile.test
    shown = list(about.documents_per_rating)[:_RATINGS]
    shares = {
        name: [100 * part.documents_per_rating.get(rating, 0) / part.n_documents for rating in shown]
        for name, part in (("data", about), ("test", test))
        if part is not None
    }
    beyond = f" The first {_RATINGS} of {about.n_rating_levels:,} ratings." if about.n_rating_levels > _RATINGS else ""
    words = f"Share of the documents that have each rating.{beyond}"
    labels = [f"{rating:g}" for rating in shown]
    ratings = charts.bars("Ratings", words, labels, shares, form=".2f", unit="%", x_label="rating", width=500)

    both = [profile.lengths] + ([] if profile.test_lengths is None else [profile.test_lengths])
    edges = length_edges(np.concatenate(both), _BARS)
    counts = {
        name: (100 * np.histogram(lengths, edges)[0] / len(lengths)).tolist()
        for name, lengths in zip(("data", "test"), both, strict=False)
    }
    labels = [f"{low:g}" if high - low == 1 else f"{low:g} to {high - 1:g}" for low, high in pairwise(edges.tolist())]
    step = max(1, len(labels) // 5)
    # Not below the first and the last bar, where half of a long label would be outside the chart.
    few = [label if i % step == step // 2 else "" for i, label in enumerate(labels)]
    words = (
        f"Share of the queries by their number of documents: {about.min_documents:,} to {about.max_documents:,},"
        f" median {about.median_documents:g}."
    )
    x_label = "documents of a query"
    lengths = charts.bars(
        "List lengths", words, labels, counts, form=".2f", unit="%", x_label=x_label, shown=few, width=500
    )
    return [element("div", ratings, lengths, class_="pairs")]


def length_edges(lengths: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Edges of at most this many bars of integers, all of the same width.

    >>> length_edges(np.array([1, 4, 9]), 5).tolist()
    [1, 3, 5, 7, 9, 11]
    """
    low, high = int(lengths.min()), int(lengths.max())
    width = max(1, math.ceil((high - low + 1) / most))
    return np.arange(low, high + 1 + width, width)


def _features(profile: Profile) -> list[Html]:
    words = (
        "How well a feature ranks by itself, ascending or descending: 1 is perfect, 0 is random."
        f" From {LEAKS_FROM:g} on it is probably computed from the ratings."
    )
    known = [feature for feature in profile.features if not math.isnan(feature.skill)]
    rows = []
    for one in profile.features:
        skill, drift = ("" if math.isnan(value) else f"{value:.3f}" for value in (one.skill, one.drift))
        constant = "yes" if one.is_constant else ""
        rows.append([one.name, f"{one.missing_share:.2%}", constant, one.twin or "", skill, drift])
    columns = ["feature", "missing", "constant", "same as", "skill", "drift"]
    chart = [_highest("Skill", words, known, "skill")] if known else []
    return [*chart, folded(f"All {len(rows):,} features", grid(columns, rows))]


def _drift(profile: Profile) -> list[Html]:
    words = (
        "Largest difference between the shares of documents at or below any value (Kolmogorov-Smirnov): 0 is none."
        f" From {DRIFTS_FROM:g} on the feature has moved, if the test over queries shows that it is more than chance."
    )
    return [_highest("Features that moved most", words, profile.features, "drift")]


def _highest(title: str, words: str, features: Sequence[Feature], name: str) -> Html:
    """The features with the highest value of a field."""
    highest = sorted(features, key=lambda feature: -getattr(feature, name))[:_NAMED]
    values = [getattr(feature, name) for feature in highest]
    return charts.ranked_bars(title, words, [feature.name for feature in highest], values, form=".3f")


def _count(n: int, one: str, many: str) -> str:
    return f"{n:,} {one if n == 1 else many}"
