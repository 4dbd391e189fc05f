"""What each process of a team runs in tests/test_distributed.py: ``python team_program.py PROGRAM OUT``."""

import contextlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

import tierank
from tierank.distributed import join
from tierank.errors import TierankError
from tierank.losses import LOSSES
from tierank.rankers import training as loop
from tierank.rankers.base import Job
from tierank.rankers.neural import NetworkRanker, build_network
from tierank.rankers.training import Lists, Task, Training
from tierank.transforms import TRANSFORMS

# Losses whose value depends on the scores alone: listmle and its kin shuffle ties.
STEADY = sorted(set(LOSSES) - {"listmle", "plistmle"})


def generated():
    return tierank.make_ranking(60, n_features=9, mean_length=20, max_length=70, seed=5).split(0.6, 0.4)


def skewed():
    """Ratings that are whole and low in the first queries, and neither in the last."""
    rng = np.random.default_rng(0)
    ratings = rng.integers(0, 3, 240).astype(float)
    ratings[-40:] = rng.choice([0, 0.5, 4, 40], 40)
    return tierank.RankingDataset(rng.normal(size=(240, 4)) + ratings[:, None] % 5, ratings, np.arange(240) // 20)


def training(team, train, **settings):
    """A training of a network that stands before its first step."""
    ranker = NetworkRanker(clip_norm=None, **settings)
    ranker.has_queries_ = True
    resolved = ranker._resolved()
    transform = TRANSFORMS["query_minmax"]().fit(train)
    lists = Lists(train, transform, True, resolved, team)
    task = Task(resolved, ranker._loss(resolved), lists, None, None, Job(team=team))
    return Training(lambda: build_network(resolved, train.n_features, 0), task, {"member": 0}, 0, None)


def gradients(team, train, queries, **settings):
    """The gradient of the loss of these queries, as Adam has it, and the loss."""
    taught = training(team, train, **settings)
    taught.lists.whole.generator = torch.Generator().manual_seed(0)
    loss = taught._step(torch.tensor(queries))
    return np.concatenate([[loss], *(p.grad.flatten().numpy() for p in taught.parameters)])


def refusal(work):
    """What the work raises, in words."""
    try:
        work()
    except (TierankError, InterruptedError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def deserting(scores, batch):
    """A loss that one process gives up on, in the midst of training."""
    deserting.calls += 1
    if deserting.calls > 12 and os.environ.get("RANK") == "1":
        raise InterruptedError("enough")
    return LOSSES["urank"](scores, batch)


deserting.calls = 0


def exploding(scores, batch):
    values = torch.zeros(batch.n_queries).index_add(0, batch.query, scores)
    return torch.where(batch.lengths == batch.lengths.max(), values / 0, values)


def patient(scores, batch):
    """uRank's loss, which a test may interrupt."""
    if patient.left is not None:
        patient.left -= 1
        if patient.left < 0:
            raise InterruptedError
    return LOSSES["urank"](scores, batch)


patient.left = None
patient.__module__ = "tests"  # of a checkpoint's identity: the same where this file is the main program


def resumable(folder, team=None, left=None, max_epochs=6):
    """A network that writes a checkpoint after each epoch, and is interrupted after so many steps."""
    train, valid = generated()
    patient.left, loop._EVERY = left, 0.0
    ranker = NetworkRanker(patient, max_epochs=max_epochs, n_jobs=1, weight_decay=0.01)
    with contextlib.suppress(InterruptedError):
        ranker.fit(train, valid=valid, checkpoint=folder, team=team)
    return ranker


def everything(team, out):
    """All that a team of any size has to give as one process does."""
    train, valid = generated()
    found, told = {}, {"number": team.number, "size": team.size, "gathered": team.gather({"I am": team.number})}
    told["shared"] = (team.share(b"from the first" if team.is_first else None) or b"").decode()
    told["nothing"] = team.share(None)
    found["sum"] = team.sum(np.full(3, team.number + 1.0))
    found["bits"] = team.sum(np.array([2**63 + team.number], np.uint64))
    found["rows"] = team.gather_rows(np.full((team.number + 1, 2), team.number, np.float32))
    for name in STEADY:
        found[f"gradient {name}"] = gradients(team, train, [0, 1, 2, 3, 4, 5, 6], loss=name)
    weighted = tierank.RankingDataset.from_parts(
        train.features, train.ratings, train.offsets, train.query_ids, query_weight=np.linspace(1, 3, train.n_queries)
    )
    found["gradient weighted"] = gradients(team, weighted, [0, 1, 2], loss="urank")
    found["gradient lonely"] = gradients(team, train, [3], loss="urank")
    few = {"max_epochs": 2, "n_jobs": 1}
    found["urank"] = tierank.URank(**few).fit(train, valid=valid, team=team).predict(valid)
    found["listmle"] = tierank.ListMLE(dropout=0.2, **few).fit(train, valid=valid, team=team).predict(valid)
    found["urboost"] = tierank.UrBoost(n_learners=2, **few).fit(train, valid=valid, team=team).predict(valid)
    # LightGBM guesses the documents of a leaf from hessians, otherwise in a team than alone: none is too few here.
    exact = {"min_documents": 1, "min_sum_hessian_in_leaf": 0.0, "n_jobs": 1}
    based = tierank.UBoost(base=tierank.UMart(n_trees=5, **exact), n_learners=2, **few)
    found["uboost"] = based.fit(train, valid=valid, team=team).predict(valid)
    rankers = {
        "umart": tierank.UMart(n_trees=8, **exact),
        "none too few": tierank.UMart(n_trees=8, **exact | {"min_documents": 0}),
        "lambdamart": tierank.LambdaMART(n_trees=8, **exact),
        "loss": tierank.TreeRanker("ranknet", n_trees=4, **exact),
        "err": tierank.UMart(n_trees=60, patience=5, select_by="err@5", n_jobs=1),
        "bagged": tierank.UMart(n_trees=4, bagging_fraction=0.5, bagging_freq=1, n_jobs=1),
        "copies": tierank.UMart(n_trees=4, query_features=True, n_jobs=1),
    }
    for name, ranker in rankers.items():
        ranker.fit(train, valid=valid, team=team)
        found[name] = ranker.predict(valid)
        told[name] = {"text": ranker.model_text_, "history": ranker.history_, "team": ranker.team_}
    mixed = skewed()
    fallen = tierank.LambdaMART(n_trees=3, **exact | {"min_documents": 0}).fit(mixed, team=team)
    told["fallen"] = fallen.model_text_
    told["refused"] = {
        "blend": refusal(lambda: tierank.Blend().fit(train, team=team)),
        "base": refusal(lambda: tierank.UMart(base=tierank.URank()).fit(train, team=team)),
        "explodes": refusal(lambda: NetworkRanker(exploding, max_epochs=1).fit(train, team=team)),
        "deserted": refusal(lambda: tierank.TreeRanker(deserting, n_trees=40, n_jobs=1).fit(train, team=team)),
        "few": refusal(lambda: tierank.UMart().fit(train.select([0]), team=team)),
    }
    resumable(Path(out).with_name("checkpoint"), team, left=12)
    own = team.part(train)
    team.holds_parts = True
    parted = tierank.UMart(n_trees=8, **exact).fit(
        own, valid=valid.select(np.arange(valid.n_queries) % team.size == team.number), team=team
    )
    told["parted"] = {"text": parted.model_text_, "history": parted.history_}
    told["refused"]["parts"] = refusal(lambda: tierank.URank().fit(own, team=team))
    np.savez(out, **found)
    Path(f"{out}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    torch.set_num_threads(1)
    program, place = sys.argv[1:]
    with join(timeout=60) as gathered:
        globals()[program](gathered, f"{place}.{gathered.number}")
