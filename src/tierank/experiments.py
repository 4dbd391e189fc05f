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
from tierank.rankers import RANKERS
from tierank.readers import read, write, write_scores
from tierank.synth import make_ranking

# The paper's four models and the baseline that they are compared to.
_SHOWN = ("lambdamart", "umart", "urank", "uboost", "urboost")


@dataclass(frozen=True)
class Demo:
    """What ``run_demo`` made: the files, what they hold, and how the scorers compare on the test queries."""

    folder: Path
    description: Description
    comparison: Comparison


def run_demo(
    folder: Path, *, n_queries: int = 500, seed: int = 0, say: Callable[[str], None] = lambda line: None
) -> Demo:
    """Generated data to files, files to rankers, rankers to scores, and a comparison; ``say`` gets the steps."""
    parts = dict(zip(("train", "valid", "test"), make_ranking(n_queries, seed=seed).split(0.6, 0.2, 0.2), strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in parts.items():
        write(data, folder / f"{name}.txt")
        say(f"wrote {folder / f'{name}.txt'}: {data}")
    train, valid, test = (read(folder / f"{name}.txt", n_features=data.n_features) for name, data in parts.items())
    scores = {"linear": test.restore(_standardised(test) @ _fit_linear(train))}
    for name in _SHOWN:
        say(f"training {name}")
        ranker = RANKERS[name](seed=seed).fit(train, valid=valid, progress=True)
        ranker.save(folder / name)
        scores[name] = ranker.predict(test)
    for name, values in scores.items():
        write_scores(folder / f"{name}.scores", values)
    return Demo(folder, describe(train), compare(test, scores, baseline="lambdamart", seed=seed))


def _fit_linear(data: RankingDataset, ridge: float = 1.0) -> NDArray[np.float64]:
    """Weights w that minimise |Z w - y|^2 + ridge |w|^2, with features and ratings centred within each query."""
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
