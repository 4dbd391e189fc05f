"""How often segments are wrongly called better or worse: ``python -m benchmarks.segments``.

Queries are drawn from two rankers that are equally good (their lists are swapped at random), and assigned to segments
at random. ``any``: the share of draws with any finding, all of which are false. In the second part, half of the
segments are truly better: ``worse`` is the mean share of false ones among those called worse, and ``worse, plain`` the
same if two-sided p-values are adjusted by Benjamini and Hochberg at once.
"""

from __future__ import annotations

import argparse

import numpy as np

import tierank
from tierank.metrics.segments import Attribute, compare_segments, judge_segments
from tierank.metrics.significance import benjamini_hochberg

METRICS = ("ndcg@10", "mrr")
SHAPES = ((2, 3, 5), (20,), (2, 10, 50))


def values_of_two_rankers(
    n_queries: int, metrics: tuple[str, ...] = METRICS, signals: tuple[float, float] = (0.5, 0.5)
) -> dict[str, np.ndarray]:
    """The values of two noisy rankers in each metric, 2 x queries; ``signals`` say how well each knows the ratings."""
    data = tierank.make_ranking(n_queries, n_features=5, mean_length=15, max_length=40, seed=1)
    judge = tierank.Judge(data, metrics)
    noise = [np.random.default_rng(s).normal(size=data.n_documents) for s in (1, 2)]
    noisy = [judge(signal * data.ratings + one) for signal, one in zip(signals, noise, strict=True)]
    found = {metric: np.array([one[metric] for one in noisy]) for metric in metrics}
    return {metric: values[:, ~np.isnan(values).any(axis=0)] for metric, values in found.items()}


def draw_null(values: np.ndarray, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[bool, bool]:
    """Whether anything is found: in a comparison, and in an evaluation."""
    n = int(rng.choice([200, 500, 2000]))
    taken = values[:, rng.choice(values.shape[1], n)]
    ours, theirs = np.where(rng.random(n) < 0.5, taken, taken[::-1])
    attributes = [Attribute(str(k), tuple(map(str, range(k))), rng.integers(k, size=n)) for k in shape]
    compared = compare_segments({"new": {"m": ours - theirs}}, attributes)
    judged = judge_segments({"m": ours}, attributes)
    return tuple(any(one.verdict in ("better", "worse") for one in found) for found in (compared, judged))


def draw_mixed(values: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """The false share of the segments called worse, if 10 of 20 segments are better and none is worse."""
    n = 4000
    taken = values[:, rng.choice(values.shape[1], n)]
    codes = rng.integers(20, size=n)
    ours, theirs = np.where(rng.random(n) < 0.5, taken, taken[::-1])
    differences = ours - theirs + np.where(codes < 10, 0.08, 0.0)
    found = compare_segments({"new": {"m": differences}}, [Attribute("a", tuple(map(str, range(20))), codes)])
    plain = benjamini_hochberg(np.array([one.contrast.p for one in found])) < 0.05
    is_lower = np.array([one.difference < 0 for one in found])
    return float(any(one.verdict == "worse" for one in found)), float((plain & is_lower).any())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--draws", type=int, default=2000)
    n_draws = options.parse_args().draws
    values, rng = values_of_two_rankers(20_000), np.random.default_rng(0)
    print(f"{n_draws} draws; standard error of a share of 5%: {np.sqrt(0.05 * 0.95 / n_draws):.1%}")
    print(f"{'metric':8}  {'segments':12}  any, compare  any, evaluate")
    for metric in METRICS:
        for shape in SHAPES:
            compared, judged = np.mean([draw_null(values[metric], shape, rng) for _ in range(n_draws)], axis=0)
            print(f"{metric:8}  {'+'.join(map(str, shape)):12}  {compared:12.1%}  {judged:13.1%}", flush=True)
    print(f"{'metric':8}  worse   worse, plain")
    for metric in METRICS:
        ours, plain = np.mean([draw_mixed(values[metric], rng) for _ in range(n_draws)], axis=0)
        print(f"{metric:8}  {ours:5.1%}  {plain:12.1%}", flush=True)


if __name__ == "__main__":
    main()
