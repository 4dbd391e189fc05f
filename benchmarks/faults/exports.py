"""Every ranker to every target on data of all signs and scales: rejected at export, or the proof holds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from benchmarks.faults.data import KINDS, TREES, make_data, make_rankers
from benchmarks.faults.runner import Case, Table, Wrong, run

# Models in addition to the rankers: enough trees for sums of leaves to lose digits.
MANY_TREES = "umart, 5,000 trees"


def fit(folder: str, name: str, kind: str, seed: int) -> None:
    """Fit a ranker to data of a kind, and save it."""
    import tierank

    ranker = tierank.UMart(**TREES | {"n_trees": 5000}) if name == MANY_TREES else make_rankers()[name]
    ranker.fit(make_data(kind, seed)).save(Path(folder, "model"))


def prove(folder: str, target: str, kind: str, seed: int) -> None:
    """Export the model, and compare its scores there with those here."""
    import tierank

    ranker = tierank.load(Path(folder, "model")).set_params(n_jobs=1)
    ranker.export(Path(folder, target), to=target)
    proof = tierank.verify(ranker, Path(folder, target), target, make_data(kind, seed))
    if not proof.holds:
        raise Wrong(f"the proof fails, {proof.n_swapped} swapped, largest difference {proof.largest:.0e}")


def exports(count: int, folder: Path, seed: int) -> Iterator[Case]:
    """Yields ``count`` pairs of a ranker and a kind of data, each to all targets; uMart with every kind comes first."""
    import tierank

    first = [("umart", kind) for kind in KINDS]
    rest = [pair for pair in product(make_rankers(), KINDS) if pair not in first]
    chosen = first + random.Random(seed).sample(rest, len(rest))
    chosen.insert(3 * len(first), (MANY_TREES, "signed"))
    for name, kind in chosen[:count]:
        what, place = f"exports, features are {kind}", folder / f"{name}-{kind}".replace(" ", "-").replace(",", "")
        place.mkdir()
        yield Case(what, fit, (str(place), name, kind, seed), None, f"fit {name}")
        if (place / "model").exists():
            for target in tierank.TARGETS:
                yield Case(what, prove, (str(place), target, kind, seed + 1), None, f"{name} to {target}")


def attack(table: Table, folder: Path, count: int, seed: int) -> None:
    """``count`` models, each to all targets."""
    run(table, exports(count, folder, seed), deadline=180)
