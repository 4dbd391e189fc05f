"""How often ``preference`` sees a difference between two rankers: where there is none, and where one is better.

    python -m benchmarks.calibration.interleaving

Each experiment interleaves a pair of lists anew in each session, and tests the outcomes at 5%. Without a preference,
clicks depend on ranks and on the clicks above, not on documents. With one, a document is clicked with a chance that
depends on it and falls with its rank, and documents are more attractive the earlier in the alphabet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tierank.clicks import INTERLEAVINGS, Preference, interleave, preference
from tierank.report.tabulate import Table

Pair = tuple[Sequence[str], Sequence[str]]
# Whether each document of a list is clicked.
Users = Callable[[Sequence[str], np.random.Generator], NDArray[np.bool_]]

K, LEVEL = 5, 0.05
DOCUMENTS = "abcdefghij"


def permuted(query: int) -> Pair:
    """The lists of a query: the documents in random order."""
    rng = np.random.default_rng(query)
    return rng.permutation([*DOCUMENTS]).tolist(), rng.permutation([*DOCUMENTS]).tolist()


# Of those that are not equivalent, the first list is the better one.
PAIRS: dict[str, Callable[[np.random.Generator], Pair]] = {
    "one document moved": lambda rng: (DOCUMENTS, "fabcdeghij"),
    "reversed": lambda rng: (DOCUMENTS, DOCUMENTS[::-1]),
    "disjoint": lambda rng: (DOCUMENTS, "klmnopqrst"),
    "different lengths": lambda rng: (DOCUMENTS, "jca"),
    "one inside the other": lambda rng: ("ae", "e"),
    "random permutations": lambda rng: permuted(int(rng.integers(100))),
}
INDIFFERENT: dict[str, Users] = {
    "one click": lambda shown, rng: np.arange(len(shown)) == rng.integers(len(shown)),
    "more on top": lambda shown, rng: rng.random(len(shown)) < 0.6 / np.arange(1, len(shown) + 1),
    "many clicks": lambda shown, rng: rng.random(len(shown)) < 0.5,
    "first click only": lambda shown, rng: np.arange(len(shown)) == rng.geometric(0.3) - 1,
}


def choosy(shown: Sequence[str], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Clicks on the documents that users like: each letter has 0.8 times the chance of the one before."""
    liked = np.array([0.6 * 0.8 ** (ord(document) - ord("a")) for document in shown])
    return rng.random(len(shown)) < liked / np.sqrt(np.arange(1, len(shown) + 1))


def experiment(
    method: str, pair: Callable[[np.random.Generator], Pair], users: Mapping[str, Users], n: int, seed: Sequence[int]
) -> dict[str, Preference]:
    """The preference of each kind of users, who see the same lists."""
    rng = np.random.default_rng(seed)
    outcomes: dict[str, list[float]] = {name: [] for name in users}
    for _ in range(n):
        shown = interleave(*pair(rng), method=method, k=K, seed=rng)
        for name, clicks in users.items():
            outcomes[name].append(shown.outcome(clicks(shown.documents, rng)))
    return {name: preference(given) for name, given in outcomes.items()}


def false_positives(n_experiments: int, n_sessions: int) -> list[list[str]]:
    """The percentage of experiments that see a preference where there is none."""
    rows = []
    for method in INTERLEAVINGS:
        for row, (name, pair) in enumerate(PAIRS.items()):
            found = [experiment(method, pair, INDIFFERENT, n_sessions, (row, i)) for i in range(n_experiments)]
            shares = [np.mean([one[users].p < LEVEL for one in found]) for users in INDIFFERENT]
            rows.append([method, name, *(f"{100 * share:.1f}" for share in shares)])
    return rows


def winners(n_experiments: int, n_sessions: int) -> list[list[str]]:
    """The percentages of experiments that prefer the better and the worse list."""
    rows = []
    for method in INTERLEAVINGS:
        for row, (name, pair) in enumerate(PAIRS.items()):
            if name == "random permutations":
                continue
            found = [experiment(method, pair, {"": choosy}, n_sessions, (row, i))[""] for i in range(n_experiments)]
            shares = [np.mean([one.p < LEVEL and side * one.mean > 0 for one in found]) for side in (1, -1)]
            rows.append([method, name, *(f"{100 * share:.1f}" for share in shares)])
    return rows


def main() -> None:
    title, columns = "Interleaving without a preference: experiments with p < 0.05, in %", ["method", "lists"]
    notes = ["300 experiments of 400 sessions; the standard error of 5% is 1.3"]
    print(Table(title, [*columns, *INDIFFERENT], false_positives(300, 400), notes).to_text())
    title, notes = "Interleaving a better and a worse list, in %", ["300 experiments of 100 sessions, p < 0.05"]
    columns += ["better one preferred", "worse one preferred"]
    print(Table(title, columns, winners(300, 100), notes).to_text())


if __name__ == "__main__":
    main()
