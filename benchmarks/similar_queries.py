"""Does a model gain from the training queries that are like the query at hand? ``python -m benchmarks.similar_queries``

    python -m benchmarks.similar_queries OHSUMED MQ2008

The paper's outlook names "relationships among similar queries". The simplest form of it: a ridge regression of gains on
features, fitted anew for each test query, in which the nearest training queries weigh more. Queries are near if the
statistics of their lists are: the mean and deviation of each feature, as it is and scaled within the query, and the
number of documents. One regression for all queries is what it has to beat. Validation data choose the ridge of both,
and the number and the weight of neighbours, by NDCG@10. Folders have Fold1 to Fold5, or the parts S1 to S5.
"""

import argparse
from itertools import pairwise, product

import numpy as np

import tierank
from tierank import RankingDataset

RIDGES = (1.0, 10.0, 100.0)  # of features from 0 to 1
NEIGHBOURS, WEIGHTS = (5, 10, 20, 40), (2.0, 5.0, 20.0)
METRIC = "ndcg@10"


class Queries:
    """The lists of a data set: scaled features, statistics, and what a regression needs of each query."""

    def __init__(self, data: RankingDataset) -> None:
        self.data = data
        scaled = tierank.TRANSFORMS["query_minmax"]().fit(data).transform(data)
        raw, gains, ends = np.asarray(data.features), 2.0**data.ratings - 1, data.offsets
        lists = [slice(a, b) for a, b in pairwise(ends)]
        self.features = [scaled[one] - scaled[one].mean(axis=0) for one in lists]  # without the level of the query
        self.grams = np.array([x.T @ x / len(x) for x in self.features])
        self.moments = np.array([x.T @ gains[one] / len(x) for x, one in zip(self.features, lists, strict=True)])
        self.statistics = np.array([_statistics(raw[one], scaled[one]) for one in lists])

    def judge(self, coefficients: np.ndarray) -> np.ndarray:
        """NDCG@10 of each query, whose documents are scored by its own coefficients."""
        scores = [x @ own for x, own in zip(self.features, coefficients, strict=True)]
        return tierank.evaluate(self.data, np.concatenate(scores), [METRIC], rule="wsdm20").values(METRIC)


def _statistics(raw: np.ndarray, scaled: np.ndarray) -> np.ndarray:
    parts = [statistic(part, axis=0) for statistic in (np.mean, np.std) for part in (raw, scaled)]
    return np.concatenate([*parts, [np.log(len(raw))]])


def fit(train: Queries, weights: np.ndarray, ridge: float) -> np.ndarray:
    """The coefficients of a regression for each row of weights of the training queries."""
    grams = np.tensordot(weights, train.grams, axes=1) + ridge * np.eye(train.grams.shape[1])
    return np.linalg.solve(grams, (weights @ train.moments)[..., None])[..., 0]


def weigh(train: Queries, queries: Queries, n_neighbours: int, weight: float) -> np.ndarray:
    """The weight of each training query for each query: 1, and more for its neighbours."""
    centre, spread = train.statistics.mean(axis=0), train.statistics.std(axis=0)
    one, other = ((q.statistics - centre) / np.where(spread > 0, spread, 1) for q in (queries, train))
    distances = (one**2).sum(axis=1)[:, None] - 2 * one @ other.T + (other**2).sum(axis=1)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :n_neighbours]
    weights = np.ones(distances.shape)
    np.put_along_axis(weights, nearest, weight, axis=1)
    return weights


def run_fold(folder: str, fold: int) -> tuple[np.ndarray, np.ndarray]:
    """NDCG@10 of the test queries by one regression for all, and by one for each."""
    train, valid, test = map(Queries, tierank.read_fold(folder, fold))

    def values(queries: Queries, n_neighbours: int, weight: float, ridge: float) -> np.ndarray:
        return queries.judge(fit(train, weigh(train, queries, n_neighbours, weight), ridge))

    found = []
    for neighbours in ([(0, 1.0)], list(product(NEIGHBOURS, WEIGHTS))):
        settings = [(*one, ridge) for one, ridge in product(neighbours, RIDGES)]
        best = max(settings, key=lambda chosen: np.nanmean(values(valid, *chosen)))
        found.append(values(test, *best))
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    for folder in parser.parse_args().folders:
        one, each = (np.concatenate(parts) for parts in zip(*(run_fold(folder, k) for k in range(1, 6)), strict=True))
        gains = (each - one)[~np.isnan(one)]
        error = gains.std(ddof=1) / np.sqrt(len(gains))
        print(
            f"{folder}: {METRIC} {np.nanmean(one):.3f} by one regression, {np.nanmean(each):.3f} with similar queries;"
            f" difference {gains.mean():+.4f}, standard error {error:.4f}, {len(gains):,} queries",
            flush=True,
        )


if __name__ == "__main__":
    main()
