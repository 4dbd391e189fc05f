"""Whole experiments: for now, the demo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.description import Description, describe
from tierank.evaluation import Comparison, compare
from tierank.readers import read, write, write_scores
from tierank.synth import make_ranking


@dataclass(frozen=True)
class Demo:
    """What ``run_demo`` made: the files, what they hold, and how the scorers compare on the test queries."""

    folder: Path
    description: Description
    comparison: Comparison


def run_demo(
    folder: Path, *, n_queries: int = 400, seed: int = 0, say: Callable[[str], None] = lambda line: None
) -> Demo:
    """Generated data to files, files to a linear scorer, scores to files, and a comparison; ``say`` gets the steps."""
    train, test = make_ranking(n_queries, seed=seed).split(0.7, 0.3, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (("train", train), ("test", test)):
        write(data, folder / f"{name}.txt")
        say(f"wrote {folder / f'{name}.txt'}: {data}")

    train, test = read(folder / "train.txt"), read(folder / "test.txt", n_features=train.n_features)
    say("fitting a linear scorer to the training queries")
    weights = fit_linear(train)
    scores = {
        "random": np.random.default_rng(seed).random(test.n_documents),
        "best feature": test.restore(test.features[:, _best_feature(train)].astype(np.float64)),
        "linear": test.restore(_standardised(test) @ weights),
    }
    for name, values in scores.items():
        write_scores(folder / f"{name.replace(' ', '-')}.scores", values)
    return Demo(folder, describe(train), compare(test, scores, baseline="best feature", seed=seed))


def fit_linear(data: RankingDataset, ridge: float = 1.0) -> NDArray[np.float64]:
    """Weights w that minimise |Z w - y|^2 + ridge |w|^2, with features and ratings standardised within each query."""
    z = _standardised(data)
    y = data.ratings - np.repeat(_query_means(data.ratings, data), data.lengths)
    return np.asarray(np.linalg.solve(z.T @ z + ridge * np.eye(data.n_features), z.T @ y), np.float64)


def _standardised(data: RankingDataset) -> NDArray[np.float64]:
    """Signed logarithms of the features, less the mean of the query, over the spread of the query."""
    logs = np.nan_to_num(np.sign(data.features) * np.log1p(np.abs(data.features)))
    z = np.asarray(logs, np.float64)
    for column in z.T:
        column -= np.repeat(_query_means(column, data), data.lengths)
        spread = np.sqrt(_query_means(column**2, data))
        column /= np.repeat(np.where(spread > 0, spread, 1.0), data.lengths)
    return z


def _query_means(values: NDArray[np.float64], data: RankingDataset) -> NDArray[np.float64]:
    return np.asarray(np.add.reduceat(values, data.offsets[:-1]) / data.lengths, np.float64)


def _best_feature(data: RankingDataset) -> int:
    """The feature that goes with the ratings best, within queries."""
    z = _standardised(data)
    return int(np.argmax(z.T @ (data.ratings - np.repeat(_query_means(data.ratings, data), data.lengths))))
