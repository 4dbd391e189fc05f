"""The paper's claims about speed: uRank compared with p-ListMLE and MDPRank, and tensor algorithms with loops.

    python -m benchmarks.claims

CPU time on one thread of one training step for one query: the network of the paper for that data set, the loss, and
both backward passes, without the optimiser. Queries have the mean number of documents and the ratings of the four data
sets. All take turns in every round, and the best round of each counts. The systems:

* **Algorithm 1** and **Algorithm 2** of the paper: uRank's loss and residuals with n x n masks, without loops.
* The same **loop over ratings**: a softmax for the documents of each rating, one rating after the other.
* **p-ListMLE, loop over documents**: a softmax over the remaining documents, document by document.
* **MDPRank, loop over documents**: the same, with documents drawn from the softmax, and REINFORCE.
* **tierank**: its losses ``urank``, ``plistmle`` and the one of ``MDPRank``, none of which has a loop.

The paper says that uRank is 7 to 14 times faster than p-ListMLE, 15 to 32 times faster than MDPRank, and that its
tensor algorithms are 2 to 3 times faster than loops. It does not say how p-ListMLE and MDPRank were implemented.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

# Before numpy and torch start their threads.
os.environ |= dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], "1")

import numpy as np
import torch
from torch import Tensor

from tierank.losses import LOSSES, Batch
from tierank.networks import MLP
from tierank.report import Table
from tierank.training.policy import policy_gradient

TURN = 0.02  # the fewest seconds that one runner runs at a time


@dataclass(frozen=True)
class Shape:
    """A typical query of a data set: its mean length, features, hidden layers, and shares of the ratings."""

    n_documents: int
    n_features: int
    hidden: tuple[int, ...]
    shares: tuple[float, ...]


_MSLR = (0.52, 0.32, 0.13, 0.02, 0.01)
SHAPES = {
    "OHSUMED": Shape(152, 45, (100, 50), (0.70, 0.16, 0.14)),
    "MQ2007": Shape(41, 46, (100, 100), (0.74, 0.20, 0.06)),
    "MSLR-WEB10K": Shape(120, 136, (200, 200), _MSLR),
    "MSLR-WEB30K": Shape(120, 136, (200, 200), _MSLR),
}


def algorithm_1(scores: Tensor, ratings: Tensor, n_steps: int) -> Tensor:
    """Algorithm 1 of the paper."""
    mask = (ratings[:, None] - ratings[None, :] > 0).to(scores.dtype)
    lower = mask @ scores.exp()
    return (torch.log(1 + lower / scores.exp()) * (2**ratings - 1)).sum() / n_steps


def loop_1(scores: Tensor, ratings: Tensor, n_steps: int) -> Tensor:
    """The same loss, rating after rating."""
    left, total = torch.ones_like(ratings, dtype=torch.bool), scores.new_zeros(())
    for _ in range(n_steps):
        top = ratings[left].max()
        chosen = left & (ratings == top)
        left = left & ~chosen
        lower = scores[left].exp().sum()
        own = scores[chosen]
        total = total - (2**top - 1) * (own - torch.log(own.exp() + lower)).sum()
    return total / n_steps


def algorithm_2(scores: Tensor, ratings: Tensor, n_steps: int) -> Tensor:
    """The residuals of Algorithm 2 of the paper."""
    gains, powers = 2**ratings - 1, scores.exp()
    differences = ratings[:, None] - ratings[None, :]
    lower = (differences > 0).to(scores.dtype) @ powers
    raised = gains / (1 + powers / lower)
    lowered = (differences < 0).to(scores.dtype) @ (gains / (lower + powers)) * powers
    return (raised - lowered) / n_steps


def loop_2(scores: Tensor, ratings: Tensor, n_steps: int) -> Tensor:
    """The same residuals, rating after rating."""
    left, powers = torch.ones_like(ratings, dtype=torch.bool), scores.exp()
    residuals = torch.zeros_like(scores)
    for _ in range(n_steps):
        top = ratings[left].max()
        chosen = left & (ratings == top)
        left = left & ~chosen
        gain, lower = 2**top - 1, powers[left].sum()
        sums = powers[chosen] + lower
        residuals[chosen] = residuals[chosen] + gain * lower / sums
        residuals[left] = residuals[left] - gain * powers[left] * (1 / sums).sum()
    return residuals / n_steps


def loop_plistmle(scores: Tensor, order: Tensor) -> Tensor:
    """p-ListMLE of one query, document after document in the given order."""
    n, total = len(scores), scores.new_zeros(())
    ordered = scores[order]
    for i in range(n - 1):
        weight = (2.0**-i - 2.0 ** (1 - n)) / (1 - 2.0 ** (1 - n))  # (2^(n - i) - 1) / (2^(n - 1) - 1)
        total = total - weight * (ordered[i] - torch.logsumexp(ordered[i:], 0))
    return total


def loop_mdprank(scores: Tensor, ratings: Tensor, generator: torch.Generator) -> Tensor:
    """REINFORCE with DCG, documents drawn one after the other; the loss whose gradient it follows."""
    left = torch.arange(len(scores))
    logs, rewards = [], []
    for t in range(len(scores)):
        log_policy = torch.log_softmax(scores[left], 0)
        chosen = torch.multinomial(log_policy.detach().exp(), 1, generator=generator)
        logs.append(log_policy[chosen])
        rewards.append((2 ** ratings[left[chosen]] - 1) / np.log2(2 + t))
        left = torch.cat([left[:chosen], left[chosen + 1 :]])
    returns = torch.cat(rewards).flip(0).cumsum(0).flip(0)
    return -(torch.cat(logs) * returns).sum()


class Query:
    """One query of a shape, with its network, and the inputs of each loss."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        ratings = rng.choice(len(shape.shares), shape.n_documents, p=shape.shares).astype(float)
        ratings[: len(shape.shares)] = np.arange(len(shape.shares))  # each rating occurs
        self.ratings = torch.tensor(ratings, dtype=torch.float32)
        self.features = torch.tensor(rng.random((shape.n_documents, shape.n_features)), dtype=torch.float32)
        self.network = MLP(shape.n_features, shape.hidden, "elu")
        self.n_steps = len(shape.shares) - 1
        self.generator = torch.Generator().manual_seed(seed)
        self.batch = Batch([0, shape.n_documents], ratings, generator=self.generator)
        self.order = torch.argsort(self.ratings, descending=True, stable=True)

    def losses(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """A loss of the scores by name."""
        dcg = {"reward": "dcg", "baseline": "none"}
        return {
            "Algorithm 1": lambda scores: algorithm_1(scores, self.ratings, self.n_steps),
            "loop over ratings": lambda scores: loop_1(scores, self.ratings, self.n_steps),
            "p-ListMLE, loop": lambda scores: loop_plistmle(scores, self.order),
            "MDPRank, loop": lambda scores: loop_mdprank(scores, self.ratings, self.generator),
            "tierank urank": lambda scores: LOSSES["urank"](scores, self.batch),
            "tierank plistmle": lambda scores: LOSSES["plistmle"](scores, self.batch),
            "tierank mdprank": lambda scores: policy_gradient(scores, self.batch, **dcg),
        }

    def check(self) -> None:
        """The loops give what the tensor algorithms give, and these what tierank gives."""
        scores = self.network(self.features).detach()
        losses = self.losses()
        values = [losses[name](scores) for name in ("Algorithm 1", "loop over ratings")]
        torch.testing.assert_close(LOSSES["urank"](scores, self.batch)[0], values[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(values[0], values[1], rtol=1e-4, atol=1e-4)
        chosen = scores, self.ratings, self.n_steps
        torch.testing.assert_close(algorithm_2(*chosen), loop_2(*chosen), rtol=1e-4, atol=1e-5)

    def train(self, loss: Callable[[Tensor], Tensor]) -> None:
        """A step without the optimiser."""
        for parameter in self.network.parameters():
            parameter.grad = None
        loss(self.network(self.features)).sum().backward()


def race(runners: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The best CPU seconds of a call of each runner; all take turns of some milliseconds."""
    best = dict.fromkeys(runners, np.inf)
    for _ in range(rounds):
        for name, run in runners.items():
            n_calls, start, taken = 0, time.process_time(), 0.0
            while taken < TURN:
                run()
                n_calls, taken = n_calls + 1, time.process_time() - start
            best[name] = min(best[name], taken / n_calls)
    return best


def losses_table(rounds: int) -> Table:
    """A training step with each loss, and its time relative to Algorithm 1."""
    rows = []
    for name, shape in SHAPES.items():
        query = Query(shape)
        query.check()
        best = race({one: partial(query.train, loss) for one, loss in query.losses().items()}, rounds)
        of_paper, ours = best["Algorithm 1"], best["tierank urank"]
        cells = [f"{seconds * 1e3:.2f}" for seconds in best.values()]
        ratios = [best["p-ListMLE, loop"] / of_paper, best["MDPRank, loop"] / of_paper]
        fair = [best["tierank plistmle"] / ours, best["tierank mdprank"] / ours]
        rows.append([f"{name}, {shape.n_documents}", *cells, *(f"{ratio:.1f}" for ratio in (*ratios, *fair))])
    columns = ["data, documents", *query.losses(), "p-ListMLE / Algorithm 1", "MDPRank / Algorithm 1"]
    notes = ["the paper: p-ListMLE 7 to 14, MDPRank 15 to 32"]
    columns += ["tierank plistmle / urank", "tierank mdprank / urank"]
    return Table("A step of training on one query: CPU ms, one thread", columns, rows, notes)


def loops_table(rounds: int) -> Table:
    """Loops over ratings beside Algorithms 1 (with its backward) and 2, without a network."""
    rows = []
    for name, shape in SHAPES.items():
        query = Query(shape)
        scores = query.network(query.features).detach().requires_grad_()
        chosen = query.ratings, query.n_steps

        def differentiate(loss: Callable[..., Tensor], scores: Tensor = scores, chosen: tuple = chosen) -> None:  # type: ignore[type-arg]
            scores.grad = None
            loss(scores, *chosen).backward()

        frozen = scores.detach()
        best = race(
            {
                "Algorithm 1": partial(differentiate, algorithm_1),
                "loop 1": partial(differentiate, loop_1),
                "Algorithm 2": partial(algorithm_2, frozen, *chosen),
                "loop 2": partial(loop_2, frozen, *chosen),
            },
            rounds,
        )
        ratios = best["loop 1"] / best["Algorithm 1"], best["loop 2"] / best["Algorithm 2"]
        cells = [f"{seconds * 1e3:.3f}" for seconds in best.values()]
        rows.append([f"{name}, {shape.n_documents}", *cells, *(f"{ratio:.1f}" for ratio in ratios)])
    columns = ["data, documents", *best, "loop 1 / Algorithm 1", "loop 2 / Algorithm 2"]
    return Table("Loops over ratings: CPU ms, one thread", columns, rows, ["the paper: 2 to 3"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="the best of how many rounds (default: 10)")
    parser.add_argument("--markdown", action="store_true", help="tables as in the documentation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for table in (losses_table(options.rounds), loops_table(options.rounds)):
        print(table.to_markdown() if options.markdown else table.to_text())


if __name__ == "__main__":
    main()
