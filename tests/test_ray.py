"""Training and scoring on Ray: the same model from any blocks, and an error that names the actor."""

import os
import re
import signal
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import tierank
from tierank import DataError, LinearRanker, ParameterError, TeamError, TreeRanker, UMart, URank
from tierank.distributed import fit, predict
from tierank.distributed import ray as on_ray

ray = pytest.importorskip("ray")

# Ray's own data library warns of its own settings.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    paths = os.pathsep.join([str(Path(tierank.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {"env_vars": {"PYTHONPATH": paths}}
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def parts():
    data = tierank.make_ranking(60, n_features=4, mean_length=10, max_length=20, missing=0.02, seed=1)
    return data.split(0.6, 0.4)


def as_frame(data):
    columns = {f"f{k}": data.features[:, k] for k in range(data.n_features)}
    ids = np.repeat(data.query_ids, data.lengths)
    return pd.DataFrame({"qid": ids, "row": np.arange(len(ids)), "rating": data.ratings, **columns})


def as_ray(data, n_blocks, seed=None):
    frame = as_frame(data) if seed is None else as_frame(data).sample(frac=1, random_state=seed)
    return ray.data.from_arrow(list(_tables(frame, n_blocks)))


def _tables(frame, n_blocks):
    import pyarrow

    for rows in np.array_split(np.arange(len(frame)), n_blocks):
        yield pyarrow.Table.from_pandas(frame.iloc[rows], preserve_index=False)


FEATURES = [f"f{k}" for k in range(4)]


def test_blocks_and_their_order_do_not_change_the_model(parts):
    train, valid = parts
    held_out = as_ray(valid, 2)
    settings = {"valid": held_out, "actors": 2, "features": FEATURES}
    ranker = UMart(n_trees=10, patience=5)
    first = fit(ranker, as_ray(train, 1), **settings)
    assert not hasattr(ranker, "n_rounds_")
    assert first.get_params() == ranker.get_params()
    assert sum(process["documents"] for process in first.team_) == train.n_documents
    assert len({process["pid"] for process in first.team_}) == 2
    other = fit(ranker, as_ray(train, 5, seed=3), **settings)
    assert other.model_.digest() == first.model_.digest()
    assert other.history_ == first.history_


def test_networks_and_linear_rankers(parts):
    train, valid = parts
    ranker = URank.from_preset("plain-inputs", max_epochs=2, hidden=(4,), n_jobs=1)  # no dropout: nothing is random
    rows = as_ray(train, 3, seed=1)
    fitted = fit(ranker, rows, actors=2, features=FEATURES)
    alone = clone(ranker).fit(train)
    qid = np.repeat(valid.query_ids, valid.lengths)
    assert np.corrcoef(fitted.predict(valid.features, qid=qid), alone.predict(valid))[0, 1] > 0.999
    linear = fit(LinearRanker(), rows, actors=1, features=FEATURES)
    expected = LinearRanker().fit(train).predict(valid)
    found = linear.predict(valid.features, qid=qid)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("copies", [False, True])
def test_scores_are_those_of_predict(parts, copies):
    train, valid = parts
    ranker = UMart(n_trees=5, query_features=copies).fit(
        as_frame(train)[FEATURES], train.ratings, as_frame(train)["qid"]
    )
    assert ranker.needs_list() is copies
    scored = predict(ranker, as_ray(valid, 3, seed=2)).to_pandas().sort_values("row")
    frame = as_frame(valid)
    np.testing.assert_array_equal(scored["score"], ranker.predict(frame[FEATURES], qid=frame["qid"]))
    assert list(scored.columns) == [*frame.columns, "score"]


def test_what_cannot_be_used(parts):
    rows = as_ray(parts[0], 2)
    with pytest.raises(ParameterError, match=r"actors: expected at most 3: the cluster has 3 CPUs, .* got 4"):
        fit(UMart(), rows, actors=4)
    with pytest.raises(ParameterError, match=r"actors: expected at most 1: .* each actor needs 2, got 2"):
        fit(UMart(), rows, actors=2, cpus_per_actor=2)
    with pytest.raises(ParameterError, match="ranker: expected a ranker, such as"):
        fit(UMart, rows)
    with pytest.raises(ParameterError, match="valid: expected a Ray Dataset, got RankingDataset"):
        fit(UMart(), rows, valid=parts[1])
    with pytest.raises(DataError, match="data: unknown column 'nowhere'"):
        fit(UMart(), rows, query="nowhere")
    with pytest.raises(DataError, match="expected at least one document"):
        fit(UMart(), rows.limit(0))
    fitted = UMart(n_trees=1).fit(parts[0])
    with pytest.raises(ParameterError, match="score: expected the name of a new column, got 'rating'"):
        predict(fitted, rows, score="rating")
    with pytest.raises(ParameterError, match="ranker: expected a fitted ranker, got type"):
        predict(UMart, rows)


def test_columns_that_cannot_be_used(parts):
    """Each block would number its own texts, and rows of blocks with another order of columns would be mixed up."""
    frame = as_frame(parts[0])[["qid", "rating", *FEATURES]]
    odd = {"category": [f"l{k % 3}" for k in range(len(frame))], "date": pd.Timestamp("2020-01-31")}
    for kind, values in odd.items():
        rows = ray.data.from_arrow(list(_tables(frame.assign(odd=values), 3)))
        with pytest.raises(DataError, match=f"data: block 0: features: expected numbers in column 'odd', got {kind}"):
            fit(UMart(), rows, actors=2)
        fitted = fit(UMart(n_trees=1), rows, actors=2, features=FEATURES)
        assert fitted.feature_names_in_.tolist() == FEATURES
        with pytest.raises(DataError, match="data: features: expected numbers in column 'f0', as in training, got"):
            predict(fitted, ray.data.from_arrow(list(_tables(frame.assign(f0=values), 1))))
    half = len(frame) // 2
    texts = frame[half:].assign(qid=frame["qid"][half:].astype(str))
    mixed = ray.data.from_arrow([*_tables(frame[:half], 1), *_tables(texts, 1)])
    with pytest.raises(
        DataError, match="data: block 1: expected the type of query ids of data: block 0, integers, got"
    ):
        fit(UMart(), mixed, actors=2)
    narrow = ray.data.from_arrow([*_tables(frame[:half], 1), *_tables(frame[half:].drop(columns="f3"), 1)])
    with pytest.raises(DataError, match="data: block 1: table: unknown column 'f3'"):
        fit(UMart(), narrow, actors=2)
    weighted = ray.data.from_arrow([*_tables(frame[:half], 1), *_tables(frame[half:].assign(row_weight=1.0), 1)])
    with pytest.raises(DataError, match="data: block 1: expected the weights of data: block 0, none, got row_weight"):
        fit(UMart(), weighted, actors=2)


def test_rows_that_cannot_be_computed(parts):
    def fails(table):
        raise ZeroDivisionError("of the caller")

    with pytest.raises(DataError, match="data: expected rows that Ray can compute, got: ZeroDivisionError: of the"):
        fit(UMart(), as_ray(parts[0], 2).map_batches(fails), actors=2)
    ranker = UMart(n_trees=1, query_features=True).fit(
        as_frame(parts[0])[FEATURES], parts[0].ratings, as_frame(parts[0])["qid"]
    )
    frame = as_frame(parts[1])
    lists = ray.data.from_arrow(list(_tables(frame.assign(qid=[[int(i)] for i in frame["qid"]]), 2)))
    with pytest.raises(DataError, match="data: query: expected integers or strings in column 'qid', got list"):
        predict(ranker, lists)


def test_the_order_of_columns_in_a_block_changes_nothing(parts):
    frame, half = as_frame(parts[0])[["qid", "rating", *FEATURES]], 150
    turned = frame[half:][[*reversed(FEATURES), "rating", "qid"]]
    rows = ray.data.from_arrow([*_tables(frame[:half], 2), *_tables(turned, 2)])
    ranker = UMart(n_trees=4)
    assert (
        fit(ranker, rows, actors=2).model_.digest()
        == fit(ranker, as_ray(parts[0], 1), actors=2, features=FEATURES).model_.digest()
    )


def test_queries_without_ratings_change_nothing(parts):
    frame = as_frame(parts[0])
    is_judged = frame["qid"] > frame["qid"].median()
    whole = ray.data.from_arrow(list(_tables(frame.assign(rating=frame["rating"].where(is_judged)), 3)))
    judged = ray.data.from_arrow(list(_tables(frame[is_judged], 2)))
    models = [fit(UMart(n_trees=3), rows, actors=2, features=FEATURES).model_ for rows in (whole, judged)]
    assert models[0].digest() == models[1].digest()


def test_an_actor_that_is_killed_ends_the_run_and_the_next_one_goes_on(parts, tmp_path):
    train, valid = parts
    kept = tmp_path / "kept"

    def ends_the_second(scores, batch):
        import torch

        if (kept / "state.json").exists() and torch.distributed.get_rank() == 1 and not (kept.parent / "done").exists():
            (kept.parent / "done").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(batch.n_queries).index_add(0, batch.query, (scores - batch.gains) ** 2)

    ranker = TreeRanker(loss=ends_the_second, n_trees=70, patience=70)
    settings = {"valid": as_ray(valid, 1), "actors": 2, "features": FEATURES, "checkpoint": kept}
    advice = f"{re.escape(str(kept))} has the saved state: call fit again with this checkpoint"
    message = f"actor 1 of 2 was lost: .*{advice}"
    with pytest.raises(TeamError, match=message):
        fit(ranker, as_ray(train, 2), **settings)
    fitted = fit(ranker, as_ray(train, 2), **settings)
    assert len(fitted.history_) == 70


def test_an_actor_that_fails_is_named(parts):
    def fails_there(scores, batch):
        import torch

        if torch.distributed.get_rank() == 1:
            raise ZeroDivisionError("in this loss")
        return torch.zeros(batch.n_queries).index_add(0, batch.query, (scores - batch.gains) ** 2)

    with pytest.raises(
        TeamError, match=r"actor 1 of 2 failed: .*ZeroDivisionError\('in this loss'\); nothing was saved"
    ):
        fit(TreeRanker(loss=fails_there, n_trees=5), as_ray(parts[0], 2), actors=2, features=FEATURES)


def test_what_is_a_ray_data_set(parts):
    assert on_ray.is_ray(as_ray(parts[0], 1))
    assert not on_ray.is_ray(parts[0])
