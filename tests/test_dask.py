"""Training on a Dask cluster: who holds which queries, one model of all of them, and an end when a worker is lost."""

import json
import os
import re
import signal
import sys
import time
from dataclasses import replace

import lightgbm
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import tierank
from tierank import (
    Blend,
    DataError,
    LambdaMART,
    LinearRanker,
    ParameterError,
    RankingDataset,
    TeamError,
    TreeRanker,
    UMart,
    URank,
)
from tierank.data.team import cut_queries
from tierank.distributed import dask as placement
from tierank.distributed import dask as tasks
from tierank.distributed import fit

pytest.importorskip("distributed")

import dask
import dask.array
import dask.dataframe
from distributed import Client, LocalCluster, Nanny

# In a team LightGBM estimates how many documents a leaf has: only without such a limit are trees those of one process.
PLAIN = {"min_documents": 1, "min_sum_hessian_in_leaf": 2.0}


class PatientNanny(Nanny):
    """Waits for its process to end; without this, closing the cluster fails if one takes 5 seconds."""

    async def close(self, timeout=900, reason="nanny-close"):
        return await super().close(timeout=timeout, reason=reason)


@pytest.fixture(scope="module")
def client():
    # On a machine with much to do all takes long: a worker that has to come back is given up after 15 seconds
    # otherwise, and whoever does not answer after 30.
    patient = {"deploy.lost-worker-timeout": "900s", "comm.timeouts.connect": "900s", "comm.timeouts.tcp": "900s"}
    with (
        dask.config.set({f"distributed.{name}": value for name, value in patient.items()}),
        LocalCluster(n_workers=4, threads_per_worker=1, worker_class=PatientNanny, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def parts():
    data = tierank.make_ranking(120, n_features=6, mean_length=12, max_length=25, missing=0.02, seed=1)
    return data.split(0.6, 0.4)


def as_frame(data):
    """A table of the rows of a data set, in its order."""
    columns = {f"feature_{k + 1}": data.features[:, k] for k in range(data.n_features)}
    ids = np.repeat(data.query_ids, data.lengths)
    return pd.DataFrame({"qid": ids, "document": [f"d{i}" for i in range(len(ids))], "rating": data.ratings, **columns})


def by_query(*datasets):
    """The rows of each query, sorted; an error where two data sets have a query in common."""
    found = {}
    for data in datasets:
        table = np.column_stack([data.ratings, np.nan_to_num(data.features, nan=-1e9)])
        for i, query in enumerate(data.query_ids.tolist()):
            assert query not in found
            rows = table[data.offsets[i] : data.offsets[i + 1]]
            found[query] = rows[np.lexsort(rows.T)].tolist()
    return found


def placed(client, source, n_workers=4, **columns):
    """What each worker holds after the data were placed, in the order of the parts."""
    cluster = tasks.DaskCluster(client, tasks._chosen(client, n_workers))
    opened = cluster.source(source, "data", {"query": None, "rating": None, "features": None} | columns)
    edges = cut_queries(np.concatenate([[0], opened.lengths.cumsum()]), n_workers)
    cluster.workers = opened.choose(edges)
    assert len(set(cluster.workers)) == n_workers
    found = []
    for (future, n_queries, n_documents), worker in zip(opened.place(edges), cluster.workers, strict=True):
        assert worker.address in client.who_has([future])[future.key]
        data = future.result()
        assert (data.n_queries, data.n_documents) == (n_queries, n_documents)
        found.append(data)
    return found


def training(client):
    """The tasks that still train; data of others that a lost worker held may be made anew."""
    return [key for keys in client.processing().values() for key in keys if "_train" in str(key)]


def splits_of(ranker):
    """For each tree, its splits from the root down: feature, threshold and documents."""

    def walk(node):
        if "split_feature" in node:
            yield node["split_feature"], node["threshold"], node["internal_count"]
            yield from walk(node["left_child"])
            yield from walk(node["right_child"])

    trees = lightgbm.Booster(model_str=ranker.model_.text).dump_model()["tree_info"]
    return [list(walk(tree["tree_structure"])) for tree in trees]


# Which query goes where


def sizes(*partitions):
    return [None if p is None else (np.array(list(p)), np.array(list(p.values()))) for p in partitions]


def moves(pieces, edges):
    return [(partition, part, queries.tolist()) for partition, part, queries in pieces.moves(np.array(edges))]


def test_sorted_partitions_stay_whole():
    pieces = placement._Pieces(sizes({"a": 2, "b": 3}, {"c": 4}, None, {"d": 1, "e": 5}))
    assert pieces.lengths.tolist() == [2, 3, 4, 1, 5]
    assert moves(pieces, [0, 2, 5]) == [(0, 0, [0, 1]), (1, 1, [0]), (3, 1, [0, 1])]


def test_a_query_over_three_partitions_goes_where_most_of_it_lies():
    pieces = placement._Pieces(sizes({"a": 9, "b": 1}, {"b": 6}, {"b": 2, "c": 3}))
    assert pieces.lengths.tolist() == [9, 9, 3]
    assert moves(pieces, [0, 1, 3]) == [(0, 0, [0]), (0, 1, [1]), (1, 1, [0]), (2, 1, [0, 1])]
    assert pieces.documents(2, np.array([1])) == 3
    # In the order of the partitions of their largest pieces: c is met first, and comes last.
    turned = placement._Pieces(sizes({"c": 1, "b": 2}, {"a": 5, "b": 1}, {"c": 3}))
    assert turned.lengths.tolist() == [3, 5, 4]
    assert moves(turned, [0, 1, 2, 3]) == [(0, 0, [1]), (0, 2, [0]), (1, 0, [1]), (1, 1, [0]), (2, 2, [0])]


@pytest.mark.parametrize("seed", range(5))
def test_every_piece_goes_to_one_part_and_every_query_to_one(seed):
    rng = np.random.default_rng(seed)
    given = []
    for _ in range(7):
        ids = rng.permutation(40)[: rng.integers(0, 20)]
        given.append({f"q{i}": int(n) for i, n in zip(ids, rng.integers(1, 30, len(ids)), strict=True)} or None)
    pieces = placement._Pieces(sizes(*given))
    edges = cut_queries(np.concatenate([[0], pieces.lengths.cumsum()]), 4)
    owners, documents = {}, np.zeros(4, int)
    for partition, part, queries in pieces.moves(edges):
        names = list(given[partition])
        for name in (names[i] for i in queries):
            assert owners.setdefault(name, part) == part
            documents[part] += given[partition][name]
    assert documents.sum() == sum(sum(p.values()) for p in given if p)
    np.testing.assert_array_equal(documents, np.add.reduceat(pieces.lengths, edges[:-1]))
    assert set(owners) == {name for p in given if p for name in p}


def test_partitions_without_documents():
    with pytest.raises(DataError, match="expected at least one document, got partitions without any"):
        placement._Pieces([None, None])


# Placing


@pytest.mark.parametrize("arrangement", ["sorted", "shuffled", "large queries"])
def test_a_dask_table_is_cut_at_queries(client, parts, arrangement):
    train = parts[0]
    if arrangement == "large queries":  # 4 queries in 12 partitions: each lies in three or four of them
        train = RankingDataset(train.features, train.ratings, np.arange(train.n_documents) * 4 // train.n_documents)
    frame = as_frame(train)
    if arrangement == "shuffled":
        frame = frame.sample(frac=1, random_state=0)
    table = dask.dataframe.from_pandas(frame, npartitions=12, sort=False)
    found = placed(client, table)
    assert by_query(*found) == by_query(train)
    assert found[0].feature_names == tuple(f"feature_{k}" for k in range(1, 7))
    if arrangement == "sorted":
        ids = np.concatenate([data.query_ids for data in found])
        np.testing.assert_array_equal(ids, train.query_ids)
    again = placed(client, table)
    for one, other in zip(found, again, strict=True):
        np.testing.assert_array_equal(one.query_ids, other.query_ids)
        np.testing.assert_array_equal(one.features, other.features)


def test_dask_arrays_are_cut_at_queries(client, parts):
    train = parts[0]
    ids = np.array([f"query {i}" for i in np.repeat(train.query_ids, train.lengths)])
    arrays = (
        dask.array.from_array(train.features, chunks=(100, 2)),  # columns are cut too
        dask.array.from_array(train.ratings, chunks=70),
        dask.array.from_array(ids, chunks=90),
    )
    expected = RankingDataset(train.features, train.ratings, ids)
    assert by_query(*placed(client, arrays)) == by_query(expected)
    table = dask.dataframe.from_pandas(as_frame(train), npartitions=5, sort=False)
    names = [f"feature_{k}" for k in range(1, 7)]
    unknown = tuple(table[name].to_dask_array() for name in (names, "rating", "qid"))  # of lengths that nobody knows
    assert by_query(*placed(client, unknown)) == by_query(train)
    with pytest.raises(DataError, match="expected as many ratings and query ids as rows of X, got"):
        placed(client, (arrays[0], arrays[1][:-1], arrays[2]))
    with pytest.raises(DataError, match="with the same partitions, got 5, 5, 4"):
        placed(client, (*unknown[:2], dask.array.from_array(ids, chunks=-1).rechunk(-(-len(ids) // 4))))
    with pytest.raises(DataError, match="expected only Dask collections, got also ndarray"):
        placed(client, (arrays[0], train.ratings, ids))


def test_weights_and_names_travel_with_their_rows(client):
    frame = pd.DataFrame({
        "session": ["a", "b"] * 6, "grade": np.arange(12) % 3, "x": np.arange(12.0), "y": 0.0,
        "row_weight": np.arange(12) + 1.0, "query_weight": [3.0, 5.0] * 6,
    })  # fmt: skip
    table = dask.dataframe.from_pandas(frame, npartitions=4, sort=False)
    one, two = placed(client, table, 2, query="session", features=["x"])
    assert (one.query_ids.tolist(), two.query_ids.tolist()) == (["a"], ["b"])
    assert (one.query_weight.tolist(), two.query_weight.tolist()) == ([3.0], [5.0])
    np.testing.assert_array_equal(two.row_weight, two.features[:, 0] + 1)
    assert two.feature_names == ("x",)
    frame.loc[11, "query_weight"] = 9.0
    with pytest.raises(DataError, match="query_weight: expected one weight for all rows of query b, got several"):
        placed(client, dask.dataframe.from_pandas(frame, npartitions=4, sort=False), 2, query="session")


def test_rows_that_cannot_be_placed(client):
    frame = pd.DataFrame({"qid": ["a", "a", None, "b", "b", "b"], "rating": 1.0, "x": 0.5})
    table = dask.dataframe.from_pandas(frame, npartitions=3, sort=False)
    with pytest.raises(DataError, match=r"partition 1: .*expected a query id in every row, got none in row 0"):
        fit(UMart(), table, client)
    with pytest.raises(DataError, match="this data set has no ratings"):
        fit(UMart(), table.dropna().drop(columns="rating"), client)
    with pytest.raises(DataError, match="expected a query column called qid"):
        fit(UMart(), table.drop(columns="qid"), client)
    for odd in (5, None, (1, 2, 3, 4)):
        with pytest.raises(DataError, match=rf"expected a path, a RankingDataset, .* got {type(odd).__name__}"):
            fit(UMart(), odd, client)


def test_columns_that_no_worker_can_encode(client, tmp_path):
    """Each partition would number its own texts, so that the same number meant different texts."""
    texts = [f"l{k}" for k in range(12)]
    frame = pd.DataFrame({"qid": [1, 2, 3] * 4, "rating": [0.0, 1.0, 2.0] * 4, "x": np.arange(12.0), "w": texts})
    message = r"features: expected numbers in column 'w', got category; encode it as numbers, or leave it out of"
    frame.to_parquet(tmp_path / "rows.parquet")
    for source in (dask.dataframe.from_pandas(frame, npartitions=3), frame, tmp_path / "rows.parquet"):
        with pytest.raises(DataError, match=message):
            placed(client, source)


def test_queries_without_ratings_count_for_no_worker(client, parts, tmp_path):
    frame = as_frame(parts[0])
    is_judged = frame["qid"] > frame["qid"].median()
    whole = frame.assign(rating=frame["rating"].where(is_judged))
    tierank.write(tierank.read(whole), tmp_path / "rows.tierank")
    cluster = tasks.DaskCluster(client, tasks._chosen(client, 4))
    columns = {"query": None, "rating": None, "features": None}
    for source in (dask.dataframe.from_pandas(whole, npartitions=3), whole, tmp_path / "rows.tierank"):
        named = columns if not str(source).endswith(".tierank") else {}
        opened = cluster.source(source, "data", named)
        assert (opened.judged > 0).sum() == frame["qid"][is_judged].nunique()
    models = [fit(UMart(n_trees=3), rows, client, workers=2).model_ for rows in (whole, frame[is_judged])]
    assert models[0].digest() == models[1].digest()


# Training


@pytest.mark.parametrize("n_workers", [2, 4])
def test_trees_are_of_all_documents(client, parts, n_workers):
    train, valid = parts
    ranker = UMart(n_trees=20, **PLAIN)
    fitted = fit(ranker, train, client, workers=n_workers)
    assert not hasattr(ranker, "n_rounds_")
    assert fitted.get_params() == ranker.get_params()
    assert [process["rank"] for process in fitted.team_] == list(range(n_workers))
    assert len({process["pid"] for process in fitted.team_}) == n_workers
    assert sum(process["queries"] for process in fitted.team_) == train.n_queries
    mean = train.n_documents / n_workers
    assert all(abs(process["documents"] - mean) <= 25 for process in fitted.team_)
    found, alone = splits_of(fitted), UMart(n_trees=20, n_jobs=1, **PLAIN).fit(train)
    assert [tree[0][2] for tree in found] == [train.n_documents] * 20
    # Bins are the same, sums are but for rounding: so are the first trees.
    for ours, theirs in zip(found[:3], splits_of(alone)[:3], strict=True):
        assert [split[:2] for split in ours] == [split[:2] for split in theirs]
    judged = [tierank.evaluate(valid, r.predict(valid), "ndcg@10").mean("ndcg@10") for r in (fitted, alone)]
    assert judged[0] == pytest.approx(judged[1], abs=0.03)


def test_the_same_rows_in_any_form_give_the_same_model(client, parts, tmp_path):
    train, valid = parts
    settings = {"n_trees": 60, "patience": 10, "select_by": ["ndcg@5", "err@5"], "select_over": 1}
    fitted = fit(UMart(**settings), train, client, valid=valid, workers=2)
    assert fitted.n_rounds_ + 10 == len(fitted.history_) < 60
    judged = tierank.evaluate(valid, fitted.predict(valid), ["ndcg@5", "err@5"])
    assert fitted.best_ == pytest.approx({metric: judged.mean(metric) for metric in ("ndcg@5", "err@5")}, abs=1e-9)
    fitted.save(tmp_path / "model")
    np.testing.assert_array_equal(tierank.load(tmp_path / "model").predict(valid), fitted.predict(valid))

    def rows(data):
        return data.features, data.ratings, np.repeat(data.query_ids, data.lengths)

    frames = [as_frame(data) for data in parts]
    for data, name in zip(parts, ("train", "valid"), strict=True):
        tierank.write(data, tmp_path / f"{name}.parquet")
    forms = {
        "path": [str(tmp_path / "train.parquet"), tmp_path / "valid.parquet"],
        "arrays in memory, table in memory": [rows(train), frames[1]],
        "dask, path": [dask.dataframe.from_pandas(frames[0], npartitions=5, sort=False), tmp_path / "valid.parquet"],
    }
    for form, (some, held_out) in forms.items():
        other = fit(UMart(**settings), some, client, valid=held_out, workers=2)
        np.testing.assert_array_equal(other.predict(valid.features), fitted.predict(valid.features), err_msg=form)
        assert other.history_ == fitted.history_


def test_other_trees(client, parts):
    train, valid = parts

    def squares(scores, batch):
        import torch

        return torch.zeros(batch.n_queries).index_add(0, batch.query, (scores - batch.gains) ** 2)

    chosen = sorted(tasks._listed(client))[1:3]
    shuffled = dask.dataframe.from_pandas(as_frame(train).sample(frac=1, random_state=1), npartitions=3, sort=False)
    for ranker in (LambdaMART(n_trees=5, query_features=True), TreeRanker(loss=squares, n_trees=5)):
        fitted = fit(ranker, shuffled, client, valid=valid, workers=chosen)
        assert type(fitted) is type(ranker)
        assert sum(process["documents"] for process in fitted.team_) == train.n_documents
        assert np.ptp(fitted.predict(valid.features, qid=np.repeat(valid.query_ids, valid.lengths))) > 0


def test_networks_and_linear_rankers(client, parts):
    train, valid = parts
    table = dask.dataframe.from_pandas(as_frame(train), npartitions=3, sort=False)
    ranker = URank.from_preset("plain-inputs", max_epochs=2, hidden=(4,), n_jobs=1)  # no dropout: nothing is random
    fitted = fit(ranker, table, client, valid=valid, workers=2)
    assert fitted.get_params() == ranker.get_params()
    # Processes share the gradients of each step: the steps are those of one process, but for rounding.
    alone = clone(ranker).fit(train, valid=valid)
    assert np.corrcoef(fitted.predict(valid), alone.predict(valid))[0, 1] > 0.999
    for ranker in (LinearRanker(), Blend(n_configs=0, n_seeds=0)):
        fitted = fit(ranker, table, client, valid=valid, workers=2)
        np.testing.assert_allclose(
            fitted.predict(valid), clone(ranker).fit(train, valid=valid).predict(valid), rtol=1e-6, atol=1e-9
        )


def test_fewer_queries_than_workers(client, caplog):
    data = tierank.make_ranking(2, n_features=3, mean_length=30, max_length=30)
    fitted = fit(UMart(n_trees=3), data, client)
    assert "2 of 4 workers are used: there are no more queries" in caplog.text
    assert [process["documents"] for process in fitted.team_] == [30, 30]
    assert len(fit(UMart(n_trees=3), data.select([0]), client).team_) == 1


def test_settings_that_cannot_be_used(client, parts, monkeypatch):
    train = parts[0]
    with pytest.raises(ParameterError, match=r"ranker: expected a ranker, such as UMart\(\), got type"):
        fit(UMart, train, client)
    with pytest.raises(ParameterError, match=r"client: expected a Client of dask.distributed .*, got 'scheduler:8786'"):
        fit(UMart(), train, "scheduler:8786")
    with pytest.raises(ParameterError, match="workers: expected at most 4, which the cluster has, got 5"):
        fit(UMart(), train, client, workers=5)
    with pytest.raises(ParameterError, match="unknown worker 'tcp://nowhere:1'"):
        fit(UMart(), train, client, workers=["tcp://nowhere:1"])
    with pytest.raises(ParameterError, match="workers: expected at least one address, and each once, got"):
        fit(UMart(), train, client, workers=[])
    with pytest.raises(ParameterError, match="timeout: expected a number > 0, got 0"):
        fit(UMart(), train, client, timeout=0)
    with pytest.raises(ParameterError, match=r"unknown setting of UMart 'n_tree'"):
        fit(UMart(n_tree=5), train, client, workers=2)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(tierank.MissingExtraError, match=re.escape("pip install 'tierank[dask]'")):
        fit(UMart(), train, client)


def test_workers_in_one_process_are_refused(parts):
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        pytest.raises(ParameterError, match="workers: expected each to be a separate process, got several in one"),
    ):
        fit(UMart(), parts[0], client)


def test_workers_are_listed_whatever_the_client_asks_meanwhile(client, monkeypatch):
    """Every two seconds a client asks the scheduler about itself, and that answer has no workers."""
    ask = client._update_scheduler_info

    async def overtaken(n_workers=0):
        await ask(n_workers)
        await ask()

    monkeypatch.setattr(client, "_update_scheduler_info", overtaken)
    assert client.scheduler_info(n_workers=-1)["workers"] == {}
    assert len(tasks._listed(client)) == 4
    asked = []

    async def busy(n_workers):
        asked.append(n_workers)
        if len(asked) < 3:
            raise OSError("no answer in time")
        return {"workers": {"tcp://a:1": {"host": "a", "local_directory": "b"}}}

    monkeypatch.setattr(tasks, "_LOOK", 0.01)
    monkeypatch.setattr(client.scheduler, "identity", busy, raising=False)
    assert tasks._listed(client) == {"tcp://a:1": tasks.DaskWorker("tcp://a:1", "a", "b", None)}
    monkeypatch.setattr(client, "status", "closed")
    assert tasks._listed(client) == {}


def test_parts_that_do_not_fit_together(client, parts, monkeypatch):
    """What one worker's part lacks is told by name; nobody waits for anything."""
    place = placement.Placed.place

    def narrower(self, edges):
        (data, *counts), *others = place(self, edges)
        cut = client.submit(lambda part: part.with_features(part.features[:, :5], None), data)
        return [(cut, *counts), *others]

    monkeypatch.setattr(placement.Placed, "place", narrower)
    message = "process 1 of 2: the training data differ from those of process 0: 6 features, expected 5; start every"
    with pytest.raises(TeamError, match=message):
        fit(UMart(), parts[0], client, workers=2)
    assert not training(client)


# Failure


@pytest.fixture
def pids(client, monkeypatch):
    """The processes of the workers, by address, now that all are there; tasks may take long to notice a failure."""
    monkeypatch.setattr(tasks, "_GRACE", 900.0)
    client.wait_for_workers(4, timeout=900)
    return client.run(os.getpid)


def test_a_worker_that_is_killed_ends_the_run_and_the_next_one_goes_on(client, parts, pids, tmp_path):
    train, valid = parts
    kept, victim = tmp_path / "kept", sorted(pids)[1]
    unlucky = pids[victim]

    def ends_the_victim(scores, batch):
        import torch

        if os.getpid() == unlucky and (kept / "state.json").exists():
            os.kill(unlucky, signal.SIGKILL)
        return torch.zeros(batch.n_queries).index_add(0, batch.query, (scores - batch.gains) ** 2)

    ranker = TreeRanker(loss=ends_the_victim, n_trees=120, patience=120)
    advice = f"{re.escape(str(kept))} has the saved state: call fit again with this checkpoint"
    message = f"worker {victim} was lost: .*{advice}"
    with pytest.raises(TeamError, match=message):
        fit(ranker, train, client, valid=valid, checkpoint=kept, workers=sorted(pids)[:3])
    assert not training(client)
    before = json.loads((kept / "state.json").read_text())["history"]
    assert 50 <= len(before) < 120
    client.wait_for_workers(2, timeout=900)
    fitted = fit(ranker, train, client, valid=valid, checkpoint=kept, workers=2)
    assert len(fitted.team_) == 2
    assert fitted.history_[: len(before)] == before
    assert len(fitted.history_) == 120
    assert {tree[0][2] for tree in splits_of(fitted)} == {train.n_documents}


def test_a_task_that_fails_alone_ends_the_others(client, parts, pids):
    unlucky = pids[sorted(pids)[1]]

    def fails_there(scores, batch):
        import torch

        if os.getpid() == unlucky:
            raise ZeroDivisionError("in this loss")
        return torch.zeros(batch.n_queries).index_add(0, batch.query, (scores - batch.gains) ** 2)

    with pytest.raises(
        TeamError, match=r"worker \d of 2 failed: .*ZeroDivisionError\('in this loss'\).*; nothing was saved"
    ):
        fit(TreeRanker(loss=fails_there, n_trees=5), parts[0], client, workers=sorted(pids)[:2])
    assert not training(client)


def test_a_worker_that_was_restarted_is_no_longer_the_same(client, tmp_path):
    worker = tasks._chosen(client, 1)[0]
    cluster = tasks.DaskCluster(client, [replace(worker, folder="of its life before")])

    def wait_until(file):
        while not file.exists():
            time.sleep(0.01)

    with pytest.raises(TeamError, match=f"worker {worker.address} was lost: .*nothing was saved: with checkpoint="):
        cluster.results([cluster.submit(wait_until, tmp_path / "over")])
    (tmp_path / "over").touch()
    training = tasks.FitJob(UMart(), "worker", 2, 1.0, None, False)
    with pytest.raises(TeamError, match="process 1 of 2: expected the worker that was there before, got a new one"):
        tasks._train(training, "127.0.0.1:1", 1, os.getpid() + 1, (None, 1, 1))


def test_an_interrupt_ends_the_tasks(client, parts, pids, monkeypatch):
    results = tasks.DaskCluster.results

    def interrupted(self, futures):
        if not futures[0].key.startswith("_train"):
            return results(self, futures)
        while len(training(client)) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt("by the user")

    monkeypatch.setattr(tasks.DaskCluster, "results", interrupted)
    with pytest.raises(KeyboardInterrupt, match="by the user"):
        fit(UMart(n_trees=1_000_000), parts[0], client, workers=sorted(pids)[:2])
    assert not training(client)
    assert not set(client.run(os.getpid)) & set(sorted(pids)[:2])  # those that trained have other processes now
