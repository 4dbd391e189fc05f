"""Networks: the cost of a loss, of an epoch, and of the memory for the longest query.

    python -m benchmarks.networks

CPU time on one thread. All take turns in every round, and the best round of each counts.

1. Losses, forward and backward: uRank compared with the paper's Algorithm 1, ListMLE and p-ListMLE, for 64 queries with
   five ratings. The values are checked to be the same. Algorithm 1 is as in the paper, with an n x n mask: one query
   at a time, as the paper trains; and for all queries at once, which is its best case here, as all have equal length.
2. An epoch of training: the loop of ``URank`` compared with one-query steps with Algorithm 1, and with batches that are
   padded to their longest query. All have the same network, Adam and clipping. The others get their features scaled,
   sorted and split into queries; ``URank`` scales during training, and detects non-finite losses.
3. The same loop with p-ListMLE, and with the recurrent network of urBoost.
4. Peak memory of an epoch on one query of 60,000 documents, in a separate process.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

# Before numpy and torch start their threads.
os.environ |= dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], "1")

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from benchmarks.readers import peak_memory
from tierank import PListMLE, RankingDataset, URank, UrBoost, make_ranking
from tierank.losses import LOSSES, Batch
from tierank.networks import MLP
from tierank.report.tabulate import Table
from tierank.transforms import QueryMinMax

PLAIN = URank.PRESETS["plain-inputs"]  # settings of the other loops
LENGTHS = (40, 120, 320, 900, 1251)
N_QUERIES = 64
TURN = 0.01  # the fewest seconds that one runner runs at a time
SHARES = [0.52, 0.32, 0.13, 0.02, 0.01]  # of the ratings 0 to 4, as in MSLR-WEB30K


# One loss


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
    """The losses of all queries by Algorithm 1; |R| - 1 is counted once, before the clock starts."""

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
    """The best CPU seconds of a call of each runner, forward and backward; all take turns of some milliseconds."""
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


def measure_loss(length: int, rounds: int) -> list[str]:
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


def losses(rounds: int) -> Table:
    runners = ["Algorithm 1, one by one", "Algorithm 1, at once", "urank", "listmle", "plistmle"]
    columns = ["n", *runners, *(f"{runner} / urank" for runner in runners if runner != "urank")]
    rows = [measure_loss(length, rounds) for length in LENGTHS]
    notes = ["listmle, plistmle: tied documents are shuffled in each call, which takes a sort"]
    title = f"Losses of {N_QUERIES} queries of n documents, forward and backward: CPU ms of one call, one thread"
    return Table(title, columns, rows, notes)


# One epoch


class Query(NamedTuple):
    """One query as the other loops need it: scaled, highest rating first, with what follows from the ratings."""

    features: Tensor
    ratings: Tensor
    n_steps: int  # |R| - 1
    weights: Tensor  # G / (|R| - 1)
    below: Tensor  # the place of the first document of a lower tier; the number of documents if there is none


def cut(data: RankingDataset) -> list[Query]:
    """The queries that have an order to learn."""
    scaled, queries = QueryMinMax().fit_transform(data), []
    for start, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        order = np.argsort(-data.ratings[start:end], kind="stable")
        ratings = data.ratings[start:end][order]
        n_steps = len(np.unique(ratings)) - 1
        if n_steps:
            weights, below = (2**ratings - 1) / n_steps, np.searchsorted(-ratings, -ratings, "right")
            tensors = (torch.tensor(values, dtype=torch.float32) for values in (ratings, weights))
            ratings, weights = tensors
            features = torch.from_numpy(scaled[start:end][order])
            queries.append(Query(features, ratings, n_steps, weights, torch.from_numpy(below)))
    return queries


def padded_urank(scores: Tensor, present: Tensor, weights: Tensor, below: Tensor) -> Tensor:
    """The uRank loss of padded queries: lists sorted by rating make k(s~) a running sum from the end. O(n) too."""
    scores = scores.masked_fill(~present, -1e9)
    sums = functional.pad(scores.flip(1).logcumsumexp(1).flip(1), (0, 1), value=-1e9)
    return (functional.softplus(sums.gather(1, below) - scores) * weights).sum(1)


class Peer:
    """Another training loop, with the same network, the same Adam and the same clipping."""

    def __init__(self, queries: list[Query], hidden: tuple[int, ...], queries_per_step: int) -> None:
        self.queries, self.queries_per_step = queries, queries_per_step
        self.network = MLP(queries[0].features.shape[1], hidden)
        self.optimizer = torch.optim.Adam(self.network.parameters(), URank().learning_rate)
        self.rng = np.random.default_rng(0)

    def epoch(self) -> None:
        """One pass over the queries, in random order."""
        order = self.rng.permutation(len(self.queries))
        for start in range(0, len(order), self.queries_per_step):
            value = self.loss([self.queries[i] for i in order[start : start + self.queries_per_step]]).mean()
            self.optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), URank().clip_norm)
            self.optimizer.step()

    def loss(self, queries: list[Query]) -> Tensor:
        """The losses of the queries of a step."""
        raise NotImplementedError


class OneByOne(Peer):
    """One query per step, by Algorithm 1: how the paper trains."""

    def loss(self, queries: list[Query]) -> Tensor:
        """The loss of the one query."""
        (query,) = queries
        return algorithm_1(self.network(query.features), query.ratings) / query.n_steps


class Padded(Peer):
    """Batches padded to their longest query, as in most libraries for networks."""

    def loss(self, queries: list[Query]) -> Tensor:
        """The losses of a batch; padding is scored and then masked."""
        features = pad_sequence([query.features for query in queries], batch_first=True)
        weights = pad_sequence([query.weights for query in queries], batch_first=True)
        below = pad_sequence([query.below for query in queries], batch_first=True)
        lengths = torch.tensor([len(query.weights) for query in queries])
        present = torch.arange(features.shape[1]) < lengths[:, None]
        scores = self.network(features.flatten(0, 1)).view(present.shape)
        return padded_urank(scores, present, weights, below)


def check_peers(queries: list[Query], hidden: tuple[int, ...]) -> None:
    """Check that all compute the same loss."""
    some = queries[:16]
    network = Padded(some, hidden, 16)
    features, ratings = torch.cat([q.features for q in some]), torch.cat([q.ratings for q in some])
    batch = Batch(np.cumsum([0, *(len(q.ratings) for q in some)]), ratings.double().numpy())
    ours = LOSSES["urank"](network.network(features), batch)
    single = OneByOne(some, hidden, 1)
    torch.testing.assert_close(network.loss(some), ours, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.stack([single.loss([q]) for q in some]), ours, rtol=1e-4, atol=1e-4)


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


class Loop:
    """The loop of a ranker. The time of an epoch is that of a fit of several epochs minus a fit of one."""

    def __init__(self, ranker: type[URank], data: RankingDataset, hidden: tuple[int, ...], queries_per_step: int):
        settings = PLAIN | {"hidden": hidden, "queries_per_step": queries_per_step, "n_jobs": 1}
        self.fit = lambda n_epochs: ranker(**settings | {"max_epochs": n_epochs}).fit(data)
        self.one = self.many = np.inf

    def epoch(self, n_epochs: int) -> float:
        """The best seconds of an epoch so far."""
        self.one = min(self.one, seconds(partial(self.fit, 1)))
        self.many = min(self.many, seconds(partial(self.fit, 1 + n_epochs)))
        return (self.many - self.one) / n_epochs


def measure_epochs(data: RankingDataset, hidden: tuple[int, ...], rounds: int, n_epochs: int) -> Table:
    queries = cut(data)
    check_peers(queries, hidden)
    default = URank().queries_per_step
    sizes = (default, N_QUERIES)
    peers = {"Algorithm 1, one query a step": OneByOne(queries, hidden, 1)}
    peers |= {f"padded, {size} queries a step": Padded(queries, hidden, size) for size in sizes}
    recurrent = partial(UrBoost, n_learners=1)
    ours = {"URank, one query a step": Loop(URank, data, hidden, 1)}
    ours |= {"UrBoost, its recurrent network, one query a step": Loop(recurrent, data, hidden, 1)}
    ours |= {
        f"{ranker.__name__}, {size} queries a step": Loop(ranker, data, hidden, size)
        for ranker in (URank, PListMLE)
        for size in sizes
    }
    ours |= {
        f"UrBoost, its recurrent network, {size} queries a step": Loop(recurrent, data, hidden, size) for size in sizes
    }
    best = dict.fromkeys([*peers, *ours], np.inf)
    for _ in range(rounds):
        for name, peer in peers.items():
            best[name] = min(best[name], seconds(peer.epoch))
        for name, loop in ours.items():
            best[name] = loop.epoch(1 if "one query" in name else n_epochs)
    bases = [f"URank, {size} queries a step" for size in sizes]
    rows = [[name, f"{t * 1e3:,.0f}", *(f"{t / best[base]:.2f}" for base in bases)] for name, t in best.items()]
    lengths = f"{data.lengths.min()} to {data.lengths.max()}" if np.ptp(data.lengths) else f"{data.lengths[0]}"
    title = f"{data.n_queries:,} queries of {lengths} documents, {data.n_documents:,} in all,"
    title += f" {data.n_features} features, network {'-'.join(map(str, hidden))}: CPU ms of an epoch, one thread"
    return Table(title, ["", "ms", *(f"/ {base}" for base in bases)], rows)


def epochs(n_large: int, rounds: int) -> Iterator[Table]:
    """Data in the shape of MQ2007 and MSLR-WEB, with lists of equal length, which suits padding best, and of any."""
    for n_queries, n_features, mean, longest, hidden, n_epochs in (
        (1000, 46, 41, 147, (100, 100), 3),
        (n_large, 136, 120, 900, (200, 200), 1),
    ):
        for most in (mean, longest):
            data = make_ranking(n_queries, n_features=n_features, mean_length=mean, max_length=most)
            yield measure_epochs(data, hidden, rounds, n_epochs)


# Memory


def measure_memory(n_documents: int) -> dict[str, int]:
    """Bytes at the peak of an epoch on one query, in addition to what the process took before: torch and the data."""
    rng = np.random.default_rng(0)
    data = RankingDataset(rng.random((n_documents, 20), np.float32), rng.choice(5, n_documents, p=SHARES))
    ranker = URank(**PLAIN | {"max_epochs": 1}, n_jobs=1)
    ranker.fit(data.features[:100], data.ratings[:100])  # loads, compiles
    base = peak_memory()
    ranker.fit(data)
    return {"base": base, "more": peak_memory() - base}


def memory(n_documents: int) -> str:
    command = [sys.executable, "-m", "benchmarks.networks", "--memory", str(n_documents)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    taken = json.loads(run.stdout)
    return (
        f"One query of {n_documents:,} documents, 20 features, one epoch of URank:"
        f" {taken['more'] / 1e6:,.0f} MB beyond the {taken['base'] / 1e6:,.0f} MB of torch, tierank and the data"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8, help="of the losses (default: 8)")
    parser.add_argument("--epoch-rounds", type=int, default=3, help="of the epochs (default: 3)")
    parser.add_argument("--queries", type=int, default=1000, help="in the shape of MSLR-WEB (default: 1000)")
    parser.add_argument("--memory", type=int, metavar="DOCUMENTS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        print(json.dumps(measure_memory(options.memory)))
        return
    print(losses(options.rounds).to_text())
    for table in epochs(options.queries, options.epoch_rounds):
        print(table.to_text(), flush=True)
    print(memory(60_000))


if __name__ == "__main__":
    main()
