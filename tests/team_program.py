"""What each process of a team runs in tests/test_distributed.py: ``python team_program.py PROGRAM OUT``.

``python team_program.py cli FAULT ARGUMENTS`` is the command line, in a process to which something happens.
"""

import atexit
import contextlib
import inspect
import json
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import numpy as np
import torch

import tierank
from tierank.cli import main
from tierank.cli import train as learning
from tierank.data.encoder import ColumnEncoder
from tierank.data.team import cut_queries
from tierank.distributed import join
from tierank.errors import TierankError
from tierank.losses import LOSSES
from tierank.rankers import known_classes
from tierank.rankers import lightgbm as lightgbm_adapter
from tierank.rankers import network_training as loop
from tierank.rankers import team_checks as agreement
from tierank.rankers import tree_training as trees
from tierank.rankers.base import Ranker
from tierank.rankers.model import FitContext, Resources, Seen
from tierank.rankers.network_model import build_network, fit_inputs
from tierank.rankers.network_scoring import Inputs, QueryLists
from tierank.rankers.network_training import NetworkFit, Training
from tierank.rankers.neural import NetworkRanker
from tierank.rankers.tree_training import TreeCheckpoint
from tierank.transforms import Standard

# Rankers that can be trained, those that are not on the command line too.
TRAINED = {name: kind for name, kind in known_classes().rankers.items() if kind is not tierank.LightGBMRanker}
# What Linux is asked for to know which buffers of a socket are fixed: 1 that for sending, 2 that for receiving, 3 both.
_SO_BUF_LOCK = 72
# Losses whose value depends on the scores alone: listmle and its kin shuffle ties.
STEADY = sorted(set(LOSSES) - {"listmle", "plistmle"})


def generated():
    return tierank.make_ranking(60, n_features=9, mean_length=20, max_length=70, seed=5).split(0.6, 0.4)


def with_limits(work):
    """The seconds that LightGBM's sockets wait for others while it works, and which of their buffers are fixed.

    As they are when it has connected them, and when they are watched.
    """
    found, renew, watched = [], lightgbm_adapter._renew_sockets, lightgbm_adapter._watched
    before = []

    def limits(numbers):
        for number in numbers:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as opened:
                seconds = struct.unpack("ll", opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))[0]
                yield seconds, opened.getsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK)

    def renewed(files, team):
        before[:] = limits(files)
        renew(files, team)

    @contextlib.contextmanager
    def noted(files, limit):
        with watched(files, limit):
            found.append([before[:], list(limits(files))])
            yield

    lightgbm_adapter._renew_sockets, lightgbm_adapter._watched = renewed, noted
    work()
    lightgbm_adapter._renew_sockets, lightgbm_adapter._watched = renew, watched
    return found


class Shifted(Standard):
    """A transform that does not say how parts are put together."""

    def learn(self, features):
        super().learn(features)


def parts_of(data, team):
    """What each process of a team has of these data, where it knows no more."""
    cuts = cut_queries(data.offsets, team.size)
    return data.select(np.arange(cuts[team.rank], cuts[team.rank + 1]))


def skewed():
    """Ratings that are whole and low in the first queries, and neither in the last."""
    rng = np.random.default_rng(0)
    ratings = rng.integers(0, 3, 240).astype(float)
    ratings[-40:] = rng.choice([0, 0.5, 4, 25], 40)
    return tierank.RankingDataset(rng.normal(size=(240, 4)) + ratings[:, None] % 5, ratings, np.arange(240) // 20)


def plain(kind, **settings):
    """A ranker without dropout."""
    return kind.from_preset("plain-inputs", **settings)


def training(team, train, **settings):
    """A training of a network that stands before its first step."""
    ranker = plain(NetworkRanker, clip_norm=None, **settings)
    resolved = ranker.checked_settings()
    seen = Seen.of(train, ColumnEncoder(), True, team)
    inputs = Inputs(fit_inputs(resolved, train, team), seen.n_features, seen.n_levels())
    lists = QueryLists(team.part(train), inputs, True, resolved["gain"], Resources(resolved["n_jobs"]), team)
    context = FitContext(seen, team=team)
    task = NetworkFit(resolved, ranker.loss_function(resolved), lists, None, None, context)
    return Training(build_network(resolved, inputs, 0, "cpu"), task, {"member": 0}, 0)


def gradients(team, train, queries, **settings):
    """The gradient of the loss of these queries, as Adam has it, and the loss."""
    taught = training(team, train, **settings)
    taught.lists.whole.generator = torch.Generator().manual_seed(0)
    loss, _ = taught.step(torch.tensor(queries), 1e-3)
    return np.concatenate([[loss], *(p.grad.flatten().numpy() for p in taught.optimizer.parameters)])


def refusal(work):
    """What the work raises, in words."""
    try:
        work()
    except (TierankError, InterruptedError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def deserting(scores, batch):
    """A loss that one process gives up on, in the midst of training.

    The others are late, so that its sockets are closed when they first wait for it, with all that was sent to it read:
    LightGBM by itself would then ask for more forever.
    """
    deserting.calls += 1
    if deserting.calls == 13 and "RANK" in os.environ:
        if os.environ["RANK"] == "1":
            raise InterruptedError("enough")
        time.sleep(2)
    return LOSSES["urank"](scores, batch)


deserting.calls = 0


def failing(step):
    raise InterruptedError("no more")


def exploding(scores, batch):
    values = torch.zeros(batch.n_queries).index_add(0, batch.query, scores)
    return torch.where(batch.lengths == batch.lengths.max(), values / 0, values)


class Interrupted(Training):
    """Training whose steps end with an error after some of them, in all processes at the same one."""

    left = 0

    def step(self, queries, rate):
        Interrupted.left -= 1
        if Interrupted.left < 0:
            raise InterruptedError
        return super().step(queries, rate)


def resumable(folder, team=None, left=None, max_epochs=6):
    """A network that writes a checkpoint after each epoch, and is interrupted after ``left`` steps.

    Nothing validates it: two epochs may be equally good, and rounding would decide which is kept. A relu that is open
    for all documents has a bias with a derivative of 0, and Adam makes steps of its rounding errors; so it has tanh.
    """
    train, _ = generated()
    Interrupted.left, loop._EVERY = left, 0.0
    loop.Training = Training if left is None else Interrupted
    settings = {"loss": "urank", "max_epochs": max_epochs, "n_jobs": 1, "weight_decay": 0.01, "activation": "tanh"}
    ranker = plain(NetworkRanker, **settings)
    with contextlib.suppress(InterruptedError):
        ranker.fit(train, checkpoint=folder, team=team)
    loop.Training = Training
    return ranker


# What one process of a team may have been given instead of what the others have: data, settings, arguments of fit


def again(data, **changed):
    """The data set of these parts, some of them changed."""
    parts = {name: getattr(data, name) for name in ("features", "ratings", "offsets", "query_ids")}
    kept = {name: getattr(data, name) for name in ("row_weight", "query_weight", "feature_names")}
    parts, kept = parts | {k: changed.pop(k) for k in parts.keys() & changed.keys()}, kept | changed
    return tierank.RankingDataset.from_parts(*parts.values(), **kept)


def moved(values, place, by=1):
    """A copy with one number changed."""
    values = np.array(values)
    values.reshape(-1)[place] += by
    return values


def swapped(data):
    """The same queries, two of them in each other's place."""
    return data.select([1, 0, *range(2, data.n_queries)])


def weighted(data):
    rows, queries = (np.linspace(1, 2, n) for n in (data.n_documents, data.n_queries))
    return again(data, row_weight=rows, query_weight=queries, feature_names=tuple("abcdefghi"))


DIFFERENCES = {
    "ratings": lambda g: g | {"train": again(g["train"], ratings=moved(g["train"].ratings, 7))},
    "first feature": lambda g: g | {"train": again(g["train"], features=moved(g["train"].features, 0))},
    "last feature": lambda g: g | {"train": again(g["train"], features=moved(g["train"].features, -1))},
    "order": lambda g: g | {"train": swapped(g["train"])},
    "one query fewer": lambda g: g | {"train": g["train"].select(np.arange(g["train"].n_queries - 1))},
    "query ids": lambda g: g | {"train": again(g["train"], query_ids=moved(g["train"].query_ids, 3, 1000))},
    "lengths": lambda g: g | {"train": again(g["train"], offsets=moved(g["train"].offsets, 3))},
    "row weight": lambda g: g | {"train": again(g["train"], row_weight=moved(g["train"].row_weight, 5))},
    "query weight": lambda g: g | {"train": again(g["train"], query_weight=moved(g["train"].query_weight, 5))},
    "no weights": lambda g: g | {"train": again(g["train"], row_weight=None, query_weight=None)},
    "names": lambda g: g | {k: again(g[k], feature_names=tuple("abcdefghx")) for k in ("train", "valid")},
    "no names": lambda g: g | {k: again(g[k], feature_names=None) for k in ("train", "valid")},
    "one feature fewer": lambda g: g | {
        k: again(g[k], features=np.ascontiguousarray(g[k].features[:, :8]), feature_names=tuple("abcdefgh"))
        for k in ("train", "valid")
    },
    "no ratings": lambda g: g | {"train": again(g["train"], ratings=None)},
    "smaller validation data": lambda g: g | {"valid": g["valid"].select(np.arange(g["valid"].n_queries - 1))},
    "feature of validation data": lambda g: g | {"valid": again(g["valid"], features=moved(g["valid"].features, 40))},
    "no validation data": lambda g: g | {"valid": None},
    "seed": lambda g: g | {"seed": 5},
    "rule": lambda g: g | {"rule": "letor"},
    "checkpoint": lambda g: g | {"checkpoint": "nowhere"},
    "version": lambda g: g | {"versions": {"torch": "1.0"}},
}  # fmt: skip
# What differs where each process has data of its own.
OF_PARTS = (
    "no weights", "names", "no names", "one feature fewer", "no ratings", "no validation data", "seed", "rule",
    "checkpoint", "version",
)  # fmt: skip


def given_alike():
    train, valid = generated()
    data = {"train": weighted(train), "valid": weighted(valid)}
    return data | {"seed": 0, "rule": "tierank", "checkpoint": None, "versions": {}}


def fitted(kind, given, team):
    """A ranker that was fitted to what this process was given."""
    settings = {name: given[name] for name in ("seed", "rule") if name in kind.declared_settings()} | {"n_jobs": 1}
    loss = {"loss": "urank"} if "loss" in inspect.signature(kind).parameters else {}
    versions = agreement._versions
    agreement._versions = lambda: versions() | given["versions"]
    try:
        return kind(**settings, **loss).fit(
            given["train"], valid=given["valid"], checkpoint=given["checkpoint"], team=team
        )
    finally:
        agreement._versions = versions


def differences(team, out):
    """What each process says where the last one was given something else; then all are given the same."""
    told, last = {}, team.rank == team.size - 1
    usual = given_alike()
    for name, kind in TRAINED.items():
        for what, change in DIFFERENCES.items():
            if what == "seed" and "seed" not in kind.declared_settings():
                continue
            given = change(usual) if last else usual
            told[f"{name}: {what}"] = refusal(lambda kind=kind, given=given: fitted(kind, given, team))
    ranker = tierank.URank(n_jobs=1)
    told["other ranker"] = refusal(lambda: (tierank.UMart() if last else ranker).fit(usual["train"], team=team))
    told["untouched"] = sorted(name for name in vars(ranker) if name.endswith("_"))
    half = {"n_jobs": 1, "n_trees": 3} | ({"n_leaves": 1} if last else {})
    told["refused by one"] = refusal(lambda: tierank.UMart(**half).fit(usual["train"], team=team))
    told["wrong type"] = refusal(lambda: tierank.UMart().fit(usual["train"], valid=3 if last else None, team=team))
    told["parts in one"] = refusal(lambda: in_parts(team, last, tierank.UMart, usual))
    own = usual | {name: team.part(usual[name]) for name in ("train", "valid")}
    for what in OF_PARTS:
        given = DIFFERENCES[what](own) if last else own
        told[f"parts: {what}"] = refusal(lambda given=given: in_parts(team, True, tierank.UMart, given))
    told["parts: twice"] = refusal(lambda: in_parts(team, True, tierank.UMart, usual))
    told["in the end"] = tierank.UMart(n_trees=3, n_jobs=1).fit(usual["train"], team=team).model_.text
    np.savez(out, nothing=np.empty(0))
    Path(f"{out}.json").write_text(json.dumps(told))


def in_parts(team, holds_parts, kind, given):
    team.holds_parts = holds_parts
    try:
        return fitted(kind, given, team)
    finally:
        team.holds_parts = False


# The command line, with a fault


def after_first_checkpoint(strike):
    """Let the last process strike itself once there is a checkpoint to go on from."""
    write = TreeCheckpoint.write

    def written(self, state):
        write(self, state)
        while not (self.folder / "state.json").exists():
            time.sleep(0.01)
        if os.environ["RANK"] == "1":
            strike()

    TreeCheckpoint.write = written


def killed():
    after_first_checkpoint(lambda: os.kill(os.getpid(), signal.SIGKILL))


def stopped():
    """The last process falls silent; only those that are in the midst of training do not wait for it for long."""
    after_first_checkpoint(lambda: os.kill(os.getpid(), signal.SIGSTOP))
    connect = trees.connected

    def impatient(team, params):
        team.timeout = 8.0
        return connect(team, params)

    trees.connected = impatient


def killed_after_saving(number):
    """One process is killed as soon as the model is written, the first one before it can say so."""
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    if os.environ["RANK"] != number:
        return
    if number == "0":
        save = Ranker.save
        Ranker.save = lambda self, path: (save(self, path), os.kill(os.getpid(), signal.SIGKILL))
        return

    def wait():
        while not (out / "model.json").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    atexit.register(wait)


def silent_after_saving():
    """The last process never ends."""
    if os.environ["RANK"] == "1":
        atexit.register(lambda: os.kill(os.getpid(), signal.SIGSTOP))


def other_file():
    """The last process reads other data from the same file."""
    if os.environ["RANK"] == "1":
        read = learning.read_to_learn
        learning.read_to_learn = lambda *given: again(read(*given), features=moved(read(*given).features, 100))


FAULTS = {
    "killed": killed,
    "stopped": stopped,
    "first killed after saving": lambda: killed_after_saving("0"),
    "last killed after saving": lambda: killed_after_saving("1"),
    "silent after saving": silent_after_saving,
    "other file": other_file,
}


def everything(team, out):
    """All that a team of any size has to give as one process does."""
    train, valid = generated()
    found, told = {}, {"number": team.rank, "size": team.size, "gathered": team.all_gather({"I am": team.rank})}
    told["shared"] = (team.broadcast(b"from the first" if team.is_first else None) or b"").decode()
    told["nothing"] = team.broadcast(None)
    found["sum"] = team.all_reduce(np.full(3, team.rank + 1.0))
    found["bits"] = team.all_reduce(np.array([2**63 + team.rank], np.uint64))
    found["rows"] = team.gather_rows(np.full((team.rank + 1, 2), team.rank, np.float32))
    for name in STEADY:
        found[f"gradient {name}"] = gradients(team, train, [0, 1, 2, 3, 4, 5, 6], loss=name)
    weighted = tierank.RankingDataset.from_parts(
        train.features, train.ratings, train.offsets, train.query_ids, query_weight=np.linspace(1, 3, train.n_queries)
    )
    found["gradient weighted"] = gradients(team, weighted, [0, 1, 2], loss="urank")
    found["gradient lonely"] = gradients(team, train, [3], loss="urank")
    few = {"max_epochs": 2, "n_jobs": 1}
    # Without dropout, which each process draws for itself, they learn what one process learns.
    found["urank"] = plain(tierank.URank, **few).fit(train, valid=valid, team=team).predict(valid)
    given = plain(tierank.URank, query_order="given", feature_transform=("quantile", "log1p"), **few)
    found["given"] = given.fit(train, valid=valid, team=team).predict(valid)
    found["listmle"] = tierank.ListMLE(**few).fit(train, valid=valid, team=team).predict(valid)
    found["urboost"] = plain(tierank.UrBoost, n_learners=2, **few).fit(train, valid=valid, team=team).predict(valid)
    # LightGBM guesses the documents of a leaf from hessians, otherwise in a team than alone: none is too few here.
    exact = {"min_documents": 1, "min_sum_hessian_in_leaf": 0.0, "n_jobs": 1}
    found["trees on a network"] = (
        tierank.UMart(base=plain(tierank.URank, **few), n_trees=5, **exact)
        .fit(train, valid=valid, team=team)
        .predict(valid)
    )
    based = plain(tierank.UBoost, base=tierank.UMart(n_trees=5, **exact), n_learners=2, **few)
    found["uboost"] = based.fit(train, valid=valid, team=team).predict(valid)
    blend = tierank.Blend(n_trees=5, rotate=False, max_epochs=2, n_jobs=1).fit(train, team=team)
    found["blend"], told["blend"] = blend.predict(valid), [blend.best_, blend.weights_, blend.model_.content]
    turning = tierank.Blend(n_configs=0, n_seeds=0, n_jobs=1).fit(train, valid=valid, team=team)
    found["turning"], told["turning"] = turning.predict(valid), turning.best_
    rankers = {
        "umart": tierank.UMart(n_trees=8, **exact),
        "none too few": tierank.UMart(n_trees=8, **exact | {"min_documents": 0}),
        "lambdamart": tierank.LambdaMART(n_trees=8, **exact),
        "loss": tierank.TreeRanker("ranknet", n_trees=4, **exact),
        "err": tierank.UMart(n_trees=60, patience=5, select_by="err@5", n_jobs=1),
        "bagged": tierank.UMart(n_trees=4, bagging_fraction=0.5, bagging_freq=1, n_jobs=1),
        "copies": tierank.UMart(n_trees=4, query_features=True, n_jobs=1),
    }
    told["limits"] = with_limits(lambda: tierank.UMart(n_trees=1, n_jobs=1).fit(train, team=team))
    for name, ranker in rankers.items():
        ranker.fit(train, valid=valid, team=team)
        found[name] = ranker.predict(valid)
        told[name] = {
            "text": ranker.model_.text,
            "history": ranker.history_,
            "team": ranker.team_,
            "best": ranker.best_,
        }
    for name, ridge in (("linear", None), ("linear, fixed", 0.1)):
        linear = tierank.LinearRanker(ridge=ridge, n_jobs=1).fit(train, valid=valid, team=team)
        found[name], told[name] = linear.predict(valid), linear.history_
    found["linear, parts in turn"] = tierank.LinearRanker(n_jobs=1).fit(train, team=team).predict(valid)
    found["linear, standard"] = (
        tierank.LinearRanker(feature_transform="standard", ridge=0.1, n_jobs=1).fit(train, team=team).predict(valid)
    )
    mixed = skewed()
    fallen = tierank.LambdaMART(n_trees=3, **exact | {"min_documents": 0}).fit(mixed, team=team)
    told["fallen"] = fallen.model_.text
    told["refused"] = {
        "unlisted": refusal(lambda: tierank.Blend().fit(train.features[:90], train.ratings[:90], team=team)),
        "explodes": refusal(lambda: NetworkRanker(exploding, max_epochs=1).fit(train, team=team)),
        "deserted": refusal(lambda: tierank.TreeRanker(deserting, n_trees=40, n_jobs=1).fit(train, team=team)),
        "few": refusal(lambda: tierank.UMart().fit(train.select([0]), team=team)),
    }
    asked = []
    calls = {"callbacks": [lambda step: asked.append(step.number) or step.number == 3]} if team.is_first else {}
    stopped = tierank.UMart(n_trees=9, **exact).fit(train, valid=valid, team=team, **calls)
    network = tierank.URank(max_epochs=9, n_jobs=1).fit(train, valid=valid, team=team, **calls)
    later = tierank.UMart(n_trees=2, **exact).fit(valid, start=stopped, team=team)
    told["stopped"] = {
        "asked": asked,
        "rounds": [len(stopped.history_), len(network.history_)],
        "before": stopped.n_rounds_,
        "text": later.model_.text,
    }
    told["refused"]["callback"] = refusal(
        lambda: tierank.UMart(n_trees=2).fit(train, team=team, callbacks=[failing] if team.is_first else None)
    )
    told["refused"]["start"] = refusal(
        lambda: tierank.UMart(n_trees=2).fit(train, team=team, start=[stopped, later][team.rank == 1])
    )
    resumable(Path(out).with_name("checkpoint"), team, left=12)
    told["held"] = training(team, train, loss="urank").lists.whole.n_documents
    own = parts_of(train, team)
    team.holds_parts = True
    parted = tierank.UMart(n_trees=8, **exact).fit(
        own, valid=valid.select(np.arange(valid.n_queries) % team.size == team.rank), team=team
    )
    standard = tierank.LinearRanker(feature_transform="standard", ridge=0.1, n_jobs=1)
    found["linear, parted"] = tierank.LinearRanker(ridge=0.1, n_jobs=1).fit(own, team=team).predict(valid)
    found["linear, standard, parted"] = standard.fit(own, team=team).predict(valid)
    told["parted"] = {"text": parted.model_.text, "history": parted.history_}
    own_valid = parts_of(valid, team)
    networks = {
        "urank": plain(tierank.URank, **few),
        "listmle": tierank.ListMLE(**few),
        "urboost": plain(tierank.UrBoost, n_learners=2, **few),
        "uboost": plain(tierank.UBoost, base=tierank.UMart(n_trees=5, **exact), n_learners=2, **few),
        "given": plain(tierank.URank, query_order="given", feature_transform=("quantile", "log1p"), **few),
    }
    for name, network in networks.items():
        found[f"{name}, parted"] = network.fit(own, valid=own_valid, team=team).predict(valid)
    for name in ("blend, parted", "blend, read"):  # the second finds the members of the first
        kept = Path(out).with_name("blend")
        blend = tierank.Blend(n_trees=5, rotate=False, max_epochs=2, n_jobs=1).fit(own, checkpoint=kept, team=team)
        found[name] = blend.predict(valid)
    told["refused"]["parts"] = refusal(lambda: tierank.URank(feature_transform=Shifted()).fit(own, team=team))
    np.savez(out, **found)
    Path(f"{out}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "cli":
        FAULTS[sys.argv[2]]()
        sys.exit(main(sys.argv[3:]))
    program, place = sys.argv[1:]
    with join() as gathered:
        globals()[program](gathered, f"{place}.{gathered.rank}")
