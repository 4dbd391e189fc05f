"""How often the tests and 95% intervals of ``compare``, its segments and ``describe`` are wrong, by simulation.

Queries are drawn with replacement from those of two simulated rankers, one of them better: most differences are 0 or
small, a few are large. Where nothing may be found, the lists of the two are swapped at random, query by query.

``covered``: intervals that hold the true value, of those that there are. ``none``: samples without an interval, as all
differences are equal. ``rejected``: p < 0.05 without a true difference; ``at odds``: interval and p disagree about 0.
"""

from __future__ import annotations

import numpy as np

import tierank
from benchmarks.segments import values_of_two_rankers
from tierank.metrics.description import find_drift
from tierank.metrics.segments import Attribute, compare_segments, judge_segments
from tierank.metrics.significance import Paired, holm, ratio_interval

METRICS = ("ndcg@10", "mrr", "precision@1")
SIZES = (3, 5, 10, 20, 50)
DRIFT_SIZES = (5, 10, 50, 200)
SEVERAL, N_SYSTEMS = ("ndcg@10", "ndcg@1", "ndcg@3", "ndcg@5", "err@10"), 3
# Numbers of segments of each attribute.
SEGMENTS = (2, 5)


def check_means(pool: np.ndarray, n_queries: int, n_draws: int, rng: np.random.Generator) -> list[float]:
    """Covered, none, rejected and at odds of the interval of a mean difference; covered of the relative one."""
    better, worse = pool[:, rng.integers(pool.shape[1], size=(n_draws, n_queries))]
    found = Paired.of(better - worse)
    true, base = (pool[0] - pool[1]).mean(), pool[1].mean()
    is_there = ~np.isnan(found.low)
    covered = ((found.low <= true) & (true <= found.high))[is_there].mean()
    at_odds = (((found.low > 0) | (found.high < 0)) != (found.p < 0.05))[is_there].mean()
    swapped = (better - worse) * rng.choice([-1, 1], better.shape)
    ratios = np.array([ratio_interval(one, other) for one, other in zip(better - worse, worse, strict=True)])
    low, high = ratios[~np.isnan(ratios[:, 0])].T
    relative = ((low <= true / base) & (true / base <= high)).mean()
    return [covered, 1 - is_there.mean(), (Paired.of(swapped).p < 0.05).mean(), at_odds, relative]


def check_families(pools: np.ndarray, n_queries: int, n_draws: int, rng: np.random.Generator) -> list[float]:
    """Draws with a mark, all of which are false: in the first metric, and in any; ``pools``: metric, ranker, query."""
    differences = pools[:, 0] - pools[:, 1]
    found = []
    for _ in range(n_draws):
        drawn = differences[:, rng.integers(differences.shape[1], size=n_queries)]
        p = Paired.of(drawn * rng.choice([-1, 1], (N_SYSTEMS, 1, n_queries))).p
        is_marked = (np.apply_along_axis(holm, 0, p) < 0.05).any(axis=0)
        found.append([is_marked[0], is_marked.any()])
    return np.mean(found, axis=0).tolist()


def check_segments(pool: np.ndarray, n_queries: int, n_draws: int, rng: np.random.Generator) -> list[float]:
    """Draws with any finding in a comparison and in an evaluation, where all are false; and intervals that cover."""
    found: list[list[float]] = []
    for _ in range(n_draws):
        drawn = pool[:, rng.integers(pool.shape[1], size=n_queries)]
        ours, theirs = np.where(rng.random(n_queries) < 0.5, drawn, drawn[::-1])
        attributes = [Attribute(str(k), tuple(map(str, range(k))), rng.integers(k, size=n_queries)) for k in SEGMENTS]
        compared = compare_segments({"new": {"m": ours - theirs}}, attributes)
        judged = judge_segments({"m": ours}, attributes)
        cover = [one.contrast.low <= 0 <= one.contrast.high for one in compared if one.contrast.low == one.contrast.low]
        shown = [any(one.verdict in ("better", "worse") for one in some) for some in (compared, judged)]
        found.append([*shown, np.mean(cover) if cover else np.nan])
    return np.nanmean(found, axis=0).tolist()


def lists_without_drift(n_queries: int, rng: np.random.Generator) -> tierank.RankingDataset:
    """Lists of one source: features of documents, of queries and of both, a rare flag, a few levels, missing values."""
    lengths = rng.integers(5, 30, n_queries)
    query = np.repeat(np.arange(n_queries), lengths)
    of_query, alone = rng.normal(size=n_queries)[query], rng.normal(size=len(query))
    columns = {
        "document": alone,
        "query": of_query,
        "both": of_query + rng.normal(size=len(query)),
        "flag of query": (rng.random(n_queries) < 0.1)[query],
        "three levels": rng.integers(3, size=len(query)),
        "missing": np.where(rng.random(n_queries)[query] < 0.3, np.nan, alone),
    }
    ratings = rng.integers(0, 3, len(query))
    return tierank.RankingDataset(np.column_stack(list(columns.values())), ratings, query, feature_names=list(columns))


def check_drift(n_queries: int, n_draws: int, rng: np.random.Generator) -> dict[str, float]:
    """Draws with p < 0.05 for each column, and with anything that drifts (adjusted), although nothing does."""
    rejected: dict[str, list[bool]] = {}
    for _ in range(n_draws):
        drift = find_drift(lists_without_drift(n_queries, rng), lists_without_drift(n_queries, rng))
        for change in drift.changes:
            rejected.setdefault(change.name, []).append(change.p < 0.05)
        rejected.setdefault("anything drifts", []).append(bool(drift.drifting))
    return {name: float(np.mean(found)) for name, found in rejected.items()}


def main(n_draws: int = 2000) -> None:
    values, rng = values_of_two_rankers(20_000, METRICS, (1.0, 0.5)), np.random.default_rng(0)
    print(f"{n_draws:,} draws; standard error of a share of 5%: {np.sqrt(0.05 * 0.95 / n_draws):.1%}\n")
    print("metric       queries  covered    none  rejected  at odds  covered (relative)")
    for metric, pool in values.items():
        for n in SIZES:
            covered, none, rejected, at_odds, relative = check_means(pool, n, n_draws, rng)
            print(f"{metric:11}  {n:7}  {covered:7.1%}  {none:6.1%}  {rejected:8.1%}  {at_odds:7.1%}  {relative:18.1%}")
    several = np.stack(list(values_of_two_rankers(20_000, SEVERAL, (1.0, 0.5)).values()))
    print(f"\n{N_SYSTEMS} systems, metrics {', '.join(SEVERAL)}\nqueries  marks in the first  marks in any")
    for n in SIZES[2:]:
        first, any_of_them = check_families(several, n, n_draws, rng)
        print(f"{n:7}  {first:18.1%}  {any_of_them:12.1%}")
    print(f"\nSegments ({' + '.join(map(str, SEGMENTS))})\nmetric       queries  any, compare  any, evaluate  covered")
    for metric, pool in values.items():
        for n in (20, 50, 200):
            compared, judged, covered = check_segments(pool, n, n_draws // 2, rng)
            print(f"{metric:11}  {n:7}  {compared:12.1%}  {judged:13.1%}  {covered:7.1%}", flush=True)
    print("\nDrift: p < 0.05 without any")
    shown = [check_drift(n, n_draws // 4, rng) for n in DRIFT_SIZES]
    print(f"{'queries':22}" + "".join(f"{n:>6}" for n in DRIFT_SIZES))
    for name in shown[0]:
        print(f"{name:22}" + "".join(f"{one[name]:6.1%}" for one in shown))


if __name__ == "__main__":
    main()
