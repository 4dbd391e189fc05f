"""Meaningless changes: a ranker that learns from the changed data gives bit-identical scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.data import make_data, make_rankers
from benchmarks.faults.runner import Case, Table, Wrong, run

POWERS_OF_TWO = "features times powers of two"


def plain(seed: int) -> Any:
    """Data with zeros, ties and rows with the same features."""
    data = make_data("integers", seed, n_queries=24, n_features=5)
    rng = np.random.default_rng(seed)
    features = np.array(data.features)
    features[:, 2:] = rng.normal(size=features[:, 2:].shape)
    features[::9] = features[1]
    return _built(features, data.ratings, np.repeat(data.query_ids, data.lengths))


def _built(features: Any, ratings: Any, queries: Any) -> Any:
    import tierank

    return tierank.RankingDataset(features, ratings, queries)


def negative_zero_ratings(data: Any, queries: Any, folder: Path, rng: np.random.Generator) -> Any:
    return _built(data.features, np.where(data.ratings == 0, -0.0, data.ratings), queries)


def negative_zero_features(data: Any, queries: Any, folder: Path, rng: np.random.Generator) -> Any:
    features = np.array(data.features)
    features[(features == 0) & (rng.random(features.shape) < 0.5)] = -0.0
    return _built(features, data.ratings, queries)


def powers_of_two(data: Any, queries: Any, folder: Path, rng: np.random.Generator) -> Any:
    return _built(np.ldexp(data.features, rng.integers(-6, 7, data.n_features)), data.ratings, queries)


def renamed_queries(data: Any, queries: Any, folder: Path, rng: np.random.Generator) -> Any:
    return _built(data.features, data.ratings, 1000 + rng.permutation(data.n_queries)[queries])


def queries_of_texts(data: Any, queries: Any, folder: Path, rng: np.random.Generator) -> Any:
    return _built(data.features, data.ratings, np.array([f"query {q}" for q in queries]))


def text_file(data: Any, queries: Any, folder: Path, rng: np.random.Generator) -> Any:
    return _through_file(data, folder / "data.txt")


def binary_folder(data: Any, queries: Any, folder: Path, rng: np.random.Generator) -> Any:
    return _through_file(data, folder / "data.tierank")


def _through_file(data: Any, path: Path) -> Any:
    import tierank

    tierank.write(data, path)
    return tierank.read(path)


Change = Callable[[Any, Any, Path, np.random.Generator], Any]
CHANGES: dict[str, Change] = {
    "-0.0 for 0.0 in ratings": negative_zero_ratings,
    "-0.0 for 0.0 in features": negative_zero_features,
    POWERS_OF_TWO: powers_of_two,
    "renamed queries": renamed_queries,
    "query ids as strings": queries_of_texts,
    "from a text file": text_file,
    "from a binary folder": binary_folder,
}
SHUFFLED = "rows in another order"


def compare(folder: str, name: str, changes: list[str], seed: int) -> None:
    """Fit a ranker to plain data and to changed data, and compare the scores of each document."""
    rng = np.random.default_rng(seed)
    data = plain(seed)
    queries = np.repeat(data.query_ids, data.lengths)
    expected = make_rankers()[name].fit(data).predict(data)
    order = np.arange(data.n_documents)
    changed = data
    for change in changes:
        if change == SHUFFLED:
            order = rng.permutation(data.n_documents)
            changed = _built(data.features[order], data.ratings[order], queries[order])
        else:
            changed = CHANGES[change](data, queries, Path(folder), rng)
    scores = make_rankers()[name].fit(changed).predict(changed)
    if not np.array_equal(scores, expected[order]):
        apart = np.abs(scores - expected[order]).max() / expected.std()
        raise Wrong(f"scores differ by {apart:.0e} of their deviation")


# Columns of every type, in every form that holds them


def typed(seed: int) -> dict[str, list[Any]]:
    """Texts, integers, numbers, booleans, dates and vectors, with queries and ratings; some texts are unusual."""
    rng = np.random.default_rng(seed)
    n = 160
    words = ["red", "gr\u00fcn", "a,b", 'q"t', "two\nlines", " blank", "07"]
    numbers = rng.normal(size=n)
    return {
        "qid": (np.arange(n) // 8).tolist(),
        "rating": np.clip(np.round(numbers + 1 + rng.normal(size=n) / 2), 0, 3).tolist(),
        "word": rng.choice(words, n).tolist(),
        "count": rng.integers(0, 9, n).tolist(),
        "number": numbers.tolist(),
        "truth": (rng.random(n) < 0.5).tolist(),
        "day": (np.datetime64("2024-01-01") + rng.integers(0, 400, n)).tolist(),
    }


def _pandas(columns: dict[str, list[Any]], folder: Path) -> Any:
    import pandas

    return pandas.DataFrame(columns).assign(day=pandas.to_datetime(columns["day"]))


def _categorical(columns: dict[str, list[Any]], folder: Path) -> Any:
    import pandas

    levels = ["unused", *sorted(set(columns["word"]), reverse=True)]
    return _pandas(columns, folder).assign(word=pandas.Categorical(columns["word"], levels, ordered=True))


def _nullable(columns: dict[str, list[Any]], folder: Path) -> Any:
    return _pandas(columns, folder).convert_dtypes()


def _polars(columns: dict[str, list[Any]], folder: Path) -> Any:
    import polars

    return polars.DataFrame(columns).with_columns(polars.col("word").cast(polars.Enum(sorted(set(columns["word"])))))


def _arrow(columns: dict[str, list[Any]], folder: Path) -> Any:
    import pyarrow

    table = pyarrow.table(columns)
    halves = [table.slice(0, 50), table.slice(50)]
    place = table.column_names.index("word")
    parts = [half.set_column(place, "word", half.column(place).dictionary_encode()) for half in halves]
    return pyarrow.concat_tables(parts)


def _parquet(columns: dict[str, list[Any]], folder: Path) -> Any:
    import pyarrow.parquet

    pyarrow.parquet.write_table(_arrow(columns, folder), folder / "data.parquet")
    return folder / "data.parquet"


def _csv(columns: dict[str, list[Any]], folder: Path) -> Any:
    _pandas(columns, folder).to_csv(folder / "data.csv", index=False, lineterminator="\r\n", encoding="utf-8-sig")
    return folder / "data.csv"


FORMS: dict[str, Callable[[dict[str, list[Any]], Path], Any]] = {
    "pandas with a category": _categorical,
    "pandas with nullable types": _nullable,
    "polars with an enum": _polars,
    "Arrow with dictionaries in parts": _arrow,
    "Parquet": _parquet,
    "CSV": _csv,
}


def compare_forms(folder: str, name: str, form: str, seed: int) -> None:
    """Fit a ranker to a typed table of pandas and to another form of it; each scores both."""
    import tierank

    columns, place = typed(seed), Path(folder)
    declared = tierank.Columns(dates=["day"], categories=["word"])
    tables = [_pandas(columns, place), FORMS[form](columns, place)]
    data = [tierank.read(one, columns=declared) for one in tables]
    expected = make_rankers()[name].fit(data[0]).predict(data[0])
    ranker = make_rankers()[name].fit(data[1])
    for one in data:
        if not np.array_equal(ranker.predict(one), expected):
            raise Wrong("scores differ")


def sees_scale(name: str) -> bool:
    """Whether a ranker uses logarithms of features, which a factor does change: networks, by default."""
    settings = make_rankers()[name].get_params()
    transforms = [*np.atleast_1d(settings.get("feature_transform", ())), settings.get("encoding")]
    return name == "blend" or any("log" in str(one) or one == "piecewise" for one in transforms)


def comparisons(count: int, folder: Path, seed: int) -> Iterator[Case]:
    for number in range(seed, seed + count):
        for change in [*CHANGES, SHUFFLED]:
            for name in make_rankers():
                if change == POWERS_OF_TWO and sees_scale(name):
                    continue
                place = folder / f"{name}-{change}-{number}".replace(" ", "-").replace(",", "")
                place.mkdir()
                yield Case(f"invariance: {change}", compare, (str(place), name, [change], number), place, name)
        for form in FORMS:
            for name in make_rankers():
                place = folder / f"{name}-{form}-{number}".replace(" ", "-")
                place.mkdir()
                yield Case(
                    f"invariance: typed columns, {form}", compare_forms, (str(place), name, form, number), place, name
                )


def attack(table: Table, folder: Path, count: int, seed: int) -> None:
    """All changes for every ranker, with this many seeds."""
    run(table, comparisons(count, folder, seed), deadline=180)
