"""The paper's claims about speed: uRank compared with p-ListMLE and MDPRank, and tensor algorithms with loops.

    python -m benchmarks.claims

CPU time on one thread of one training step for one query: the network of the paper for that data set, the loss, and
both backward passes, without the optimiser. Queries have the mean number of documents and ratings of the data sets. All
take turns in every round, and the best round of each counts. The systems:

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

from tierank import paper
from tierank.losses import LOSSES, Batch
from tierank.losses.policy import policy_gradient
from tierank.networks import MLP
from tierank.report.tabulate import Table

TURN = 0.02  # the fewest seconds that one runner runs at a time


@dataclass(frozen=True)
class Shape:
    """A typical query of a data set: its mean length, features, hidden layers, and shares of the ratings."""

    n_documents: int
    n_features: int
    hidden: tuple[int, ...]
    shares: tuple[float, ...]


SHAPES = {
    "OHSUMED": Shape(152, 45, (100, 50), (0.70, 0.16, 0.14)),
    "MQ2007": Shape(41, 46, (100, 100), (0.74, 0.20, 0.06)),
    "MSLR-WEB": Shape(120, 136, (200, 200), (0.52, 0.32, 0.13, 0.02, 0.01)),  # both: their queries are alike
}


def loop_1(ratings: Tensor, scores: Tensor) -> Tensor:
    """The loss of Algorithm 1, rating after rating."""
    n_steps = len(paper.unique_ratings(ratings)) - 1
    left, total = torch.ones_like(ratings, dtype=torch.bool), scores.new_zeros(())
    for _ in range(n_steps):
        top = ratings[left].max()
        chosen = left & (ratings == top)
        left = left & ~chosen
        lower = scores[left].exp().sum()
        own = scores[chosen]
        total = total - (2**top - 1) * (own - torch.log(own.exp() + lower)).sum()
    return total / n_steps


def loop_2(ratings: Tensor, scores: Tensor, learner: Tensor | float) -> tuple[Tensor, Tensor]:
    """The residuals and the loss of Algorithm 2, rating after rating."""
    n_steps = len(paper.unique_ratings(ratings)) - 1
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
    residuals = residuals / n_steps
    return residuals, ((residuals - learner) ** 2).mean()


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
        self.generator = torch.Generator().manual_seed(seed)
        self.batch = Batch([0, shape.n_documents], ratings, generator=self.generator)
        self.order = torch.argsort(self.ratings, descending=True, stable=True)

    def losses(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """A loss of the scores by name."""
        dcg = {"reward": "dcg", "baseline": "none"}
        return {
            "Algorithm 1": lambda scores: paper.algorithm_1(self.ratings, scores),
            "loop over ratings": lambda scores: loop_1(self.ratings, scores),
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
        boosted = self.ratings, scores, 0.0
        torch.testing.assert_close(paper.algorithm_2(*boosted), loop_2(*boosted), rtol=1e-4, atol=1e-5)

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


RATIOS = {  # of the losses; the paper has 7 to 14 and 15 to 32 for the first two
    "p-ListMLE, loop": "Algorithm 1",
    "MDPRank, loop": "Algorithm 1",
    "tierank plistmle": "tierank urank",
    "tierank mdprank": "tierank urank",
}
LOOP_RATIOS = {"loop 1": "Algorithm 1", "loop 2": "Algorithm 2"}


def race_losses(query: Query, rounds: int) -> dict[str, float]:
    """A training step with each loss."""
    query.check()
    return race({one: partial(query.train, loss) for one, loss in query.losses().items()}, rounds)


def race_loops(query: Query, rounds: int) -> dict[str, float]:
    """Loops over ratings beside Algorithms 1 (with its backward) and 2, without a network."""
    scores = query.network(query.features).detach().requires_grad_()
    frozen = scores.detach()

    def differentiate(loss: Callable[..., Tensor]) -> None:
        scores.grad = None
        loss(query.ratings, scores).backward()

    return race(
        {
            "Algorithm 1": partial(differentiate, paper.algorithm_1),
            "loop 1": partial(differentiate, loop_1),
            "Algorithm 2": partial(paper.algorithm_2, query.ratings, frozen, 0.0),
            "loop 2": partial(loop_2, query.ratings, frozen, 0.0),
        },
        rounds,
    )


def tabulate(title: str, found: dict[str, dict[str, float]], ratios: dict[str, str], note: str) -> Table:
    """A row for each runner and each ratio, a column for each data set."""
    first = next(iter(found.values()))
    rows = [[name, *(f"{1e3 * times[name]:.3f}" for times in found.values())] for name in first]
    for slow, fast in ratios.items():
        rows.append([f"{slow} / {fast}", *(f"{times[slow] / times[fast]:.1f}" for times in found.values())])
    columns = [f"{name}, {SHAPES[name].n_documents} documents" for name in found]
    return Table(f"{title}: CPU ms, one thread; ratios below", ["", *columns], rows, [note])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="the best of how many rounds (default: 10)")
    parser.add_argument("--markdown", action="store_true", help="tables as in the documentation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    queries = {name: Query(shape) for name, shape in SHAPES.items()}
    losses = {name: race_losses(query, options.rounds) for name, query in queries.items()}
    loops = {name: race_loops(query, options.rounds) for name, query in queries.items()}
    for table in (
        tabulate("A step of training on one query", losses, RATIOS, "the paper: p-ListMLE 7 to 14, MDPRank 15 to 32"),
        tabulate("Loops over ratings", loops, LOOP_RATIOS, "the paper: 2 to 3"),
    ):
        print(table.to_markdown() if options.markdown else table.to_text())


if __name__ == "__main__":
    main()
