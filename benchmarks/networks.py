"""Losses for networks, forward and backward: uRank beside the paper's Algorithm 1, ListMLE and p-ListMLE.

    python -m benchmarks.networks

64 queries with five ratings in each call, on one thread. All take turns in every round, and the best round of each
counts. The values are checked to be the same. Algorithm 1 is as the paper prints it, with an n x n mask: one query at a
time, as the paper trains; and for all queries at once, which suits it best here, as all are equally long.
"""

import argparse
import os
import time
from collections.abc import Callable

# Before numpy and torch start their threads.
os.environ |= dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], "1")

import numpy as np
import torch
from torch import Tensor

from tierank.losses import LOSSES, Batch
from tierank.report import Table

LENGTHS = (40, 120, 320, 900, 1251)
N_QUERIES = 64
TURN = 0.01  # seconds, at least, that one runner has the processor for
SHARES = [0.52, 0.32, 0.13, 0.02, 0.01]  # of the ratings 0 to 4, as in MSLR-WEB30K


def draw(length: int) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Scores, ratings and offsets."""
    rng = np.random.default_rng(length)
    n = N_QUERIES * length
    ratings = rng.choice(5, n, p=SHARES).astype(float)
    scores = torch.tensor(rng.normal(size=n), dtype=torch.float32, requires_grad=True)
    return scores, ratings, np.arange(N_QUERIES + 1) * length


def algorithm_1(scores: Tensor, ratings: Tensor) -> Tensor:
    """Algorithm 1 of the paper for one query, or for queries of one length, a row for each."""
    gains = 2**ratings - 1
    mask = (ratings[..., :, None] - ratings[..., None, :] > 0).float()
    lower = (mask @ scores.exp()[..., None])[..., 0]
    losses = torch.log(1 + lower / scores.exp()) * gains
    return losses.sum(-1)


class Algorithm1:
    """The losses of all queries by Algorithm 1; |R| - 1 is counted once, before the clock runs."""

    def __init__(self, ratings: np.ndarray) -> None:
        self.ratings = torch.tensor(ratings, dtype=torch.float32).view(N_QUERIES, -1)
        self.n_steps = torch.tensor([len(row.unique()) - 1 for row in self.ratings])

    def one_by_one(self, scores: Tensor) -> Tensor:
        """Query after query."""
        queries = zip(scores.view(N_QUERIES, -1), self.ratings, strict=True)
        return torch.stack([algorithm_1(*query) for query in queries]) / self.n_steps

    def at_once(self, scores: Tensor) -> Tensor:
        """All queries in one n x n x 64 mask."""
        return algorithm_1(scores.view(N_QUERIES, -1), self.ratings) / self.n_steps


def race(runners: dict[str, Callable[[Tensor], Tensor]], scores: Tensor, rounds: int) -> dict[str, float]:
    """The best CPU seconds of a call of each runner, forward and backward, all taking turns of some milliseconds."""
    best = dict.fromkeys(runners, np.inf)
    for _ in range(rounds):
        for runner, run in runners.items():
            n_calls, start, taken = 0, time.process_time(), 0.0
            while taken < TURN:
                scores.grad = None
                run(scores).sum().backward()
                n_calls, taken = n_calls + 1, time.process_time() - start
            best[runner] = min(best[runner], taken / n_calls)
    return best


def measure(length: int, rounds: int) -> list[str]:
    scores, ratings, offsets = draw(length)
    paper = Algorithm1(ratings)
    batch = Batch(offsets, ratings, generator=torch.Generator().manual_seed(0))
    runners = {"one by one": paper.one_by_one, "at once": paper.at_once}
    for run in runners.values():
        torch.testing.assert_close(LOSSES["urank"](scores, batch), run(scores), rtol=1e-4, atol=1e-4)
    for name in ("urank", "listmle", "plistmle"):
        runners[name] = lambda scores, loss=LOSSES[name]: loss(scores, batch)
    best = race(runners, scores, rounds)
    ratios = [best[runner] / best["urank"] for runner in runners if runner != "urank"]
    return [f"{length:,}", *(f"{best[r] * 1e3:,.2f}" for r in runners), *(f"{ratio:,.1f}" for ratio in ratios)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    runners = ["Algorithm 1, one by one", "Algorithm 1, at once", "urank", "listmle", "plistmle"]
    columns = ["n", *runners, *(f"{runner} / urank" for runner in runners if runner != "urank")]
    rows = [measure(length, options.rounds) for length in LENGTHS]
    notes = ["listmle, plistmle: tied documents are shuffled in each call, which takes a sort"]
    title = f"Losses of {N_QUERIES} queries of n documents, forward and backward: CPU ms of one call, one thread"
    print(Table(title, columns, rows, notes).to_text())


if __name__ == "__main__":
    main()
