"""How reports write and order metrics."""

from __future__ import annotations

from collections.abc import Sequence

from tierank.metrics import parse_metric


def display(metric: str) -> str:
    """The name of a metric in running text.

    >>> display("ndcg@10"), display("precision@5"), display("map")
    ('NDCG@10', 'Precision@5', 'MAP')
    """
    name, at, k = metric.partition("@")
    return f"{name.upper() if len(name) <= 4 else name.capitalize()}{at}{k}"


def by_family(metrics: Sequence[str]) -> list[str]:
    """NDCG first, then ERR, then the others; by cutoff within each.

    >>> by_family(["err@3", "map", "ndcg@10", "ndcg@1"])
    ['ndcg@1', 'ndcg@10', 'err@3', 'map']
    """

    def place(metric: str) -> tuple[int, str, float]:
        name, k = parse_metric(metric)
        return {"ndcg": 0, "err": 1}.get(name, 2), name, k or float("inf")

    return sorted(metrics, key=place)


def deepest(metrics: Sequence[str], name: str) -> str:
    """The metric of this name with the deepest cutoff, or else the last metric.

    >>> deepest(["ndcg@1", "ndcg@10", "err@5"], "ndcg")
    'ndcg@10'
    """
    same = [metric for metric in by_family(metrics) if parse_metric(metric)[0] == name]
    return same[-1] if same else metrics[-1]
