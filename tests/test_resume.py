"""A fit with the checkpoint of an earlier one: the model of a fit without it, bit for bit, or an error."""

import json
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import tierank
from tierank import RANKERS, DataError, LinearRanker, ListMLE, ListNet, RankingDataset, UBoost, UMart
from tierank.losses import OBJECTIVES
from tierank.rankers.selection import means_of

pytest.importorskip("torch")
networks = pytest.importorskip("tierank.rankers.network_training")

TREES = {"n_trees": 60, "n_leaves": 4, "min_documents": 3, "keep": "all"}
NETWORK = {"max_epochs": 3, "hidden": (4,), "encoding": "none"}
QUICK = {
    name: TREES if hasattr(ranker, "importance") else NETWORK | ({"n_learners": 2} if "boost" in name else {})
    for name, ranker in RANKERS.items()
} | {"blend": {"n_trees": 3, "max_epochs": 2, "rotate": False}, "linear": {}}
# The step in which training is killed: trees have a checkpoint after 50, and a blend has finished its first members.
LEARNED = {"UMart": 55, "LambdaMART": 55, "Blend": 12, "UBoost": 5, "UrBoost": 5}
every_ranker = pytest.mark.parametrize("name", sorted(RANKERS))


class Killed(BaseException):
    """As if the process were killed: no ``except Exception`` sees it."""


@pytest.fixture(autouse=True)
def checkpoints_after_each_epoch(monkeypatch):
    monkeypatch.setattr(networks, "_EVERY", -1.0)


@pytest.fixture(scope="module")
def parts():
    return tierank.make_ranking(30, n_features=4, mean_length=8, max_length=12, seed=1).split(0.5, 0.5)


def make(name, **settings):
    return RANKERS[name](n_jobs=1, **{**QUICK[name], **settings})


def begin(ranker, train, valid, checkpoint, **arguments):
    """Train until something was learned that a checkpoint keeps, and no longer."""
    steps = 0

    def kill(step):
        nonlocal steps
        steps += 1
        if steps == LEARNED.get(type(ranker).__name__, 3):
            raise Killed

    with suppress(Killed):
        ranker.fit(train, valid=valid, checkpoint=checkpoint, callbacks=[kill], **arguments)
    assert checkpoint.exists()


def check_refused(ranker, train, valid, checkpoint, **arguments):
    refusal = "expected a checkpoint of this data and these settings, got one of another run"
    with pytest.raises(DataError, match=refusal):
        ranker.fit(train, valid=valid, checkpoint=checkpoint, **arguments)


def check_same(ranker, train, valid, checkpoint, **arguments):
    fresh = clone(ranker).fit(train, valid=valid, **arguments)
    ranker.fit(train, valid=valid, checkpoint=checkpoint, **arguments)
    assert ranker.model_.digest() == fresh.model_.digest()
    np.testing.assert_array_equal(ranker.predict(valid), fresh.predict(valid))


def shuffled(data, seed):
    order = np.random.default_rng(seed).permutation(data.n_documents)
    return RankingDataset(data.features[order], data.ratings[order], qid=data.query_of_row[order])


def raised(data):
    ratings = np.array(data.ratings)
    ratings[0] += 1
    return data.replace(ratings=ratings)


def swapped(data):
    return RankingDataset(data.features[:, [1, 0, 2, 3]], data.ratings, qid=data.query_of_row)


def named(data, letter):
    return data.with_features(data.features, tuple(f"{letter}{place}" for place in range(data.n_features)))


def weighted(data):
    return data.replace(query_weight=np.arange(1.0, data.n_queries + 1))


# What is done to training and validation data before the second fit.
OTHER_DATA = {
    "ratings": lambda train, valid: (raised(train), valid),
    "ratings of valid": lambda train, valid: (train, raised(valid)),
    "weights": lambda train, valid: (weighted(train), valid),
    "features": lambda train, valid: (swapped(train), valid),
    "names": lambda train, valid: (named(train, "a"), named(valid, "a")),
    "no valid": lambda train, valid: (train, None),
}
SAME_DATA = {
    "nothing": lambda train, valid: (train, valid),
    "rows": lambda train, valid: (shuffled(train, 1), valid),
    "rows of valid": lambda train, valid: (train, shuffled(valid, 2)),
}


@every_ranker
def test_a_checkpoint_of_other_data_is_refused(name, parts, tmp_path):
    begin(make(name), *parts, tmp_path / "kept")
    for change in OTHER_DATA.values():
        check_refused(make(name), *change(*parts), tmp_path / "kept")


@pytest.mark.parametrize("change", SAME_DATA)
@every_ranker
def test_a_checkpoint_continues_the_same_data(name, change, parts, tmp_path):
    begin(make(name), *parts, tmp_path / "kept")
    check_same(make(name), *SAME_DATA[change](*parts), tmp_path / "kept")


@every_ranker
def test_a_checkpoint_continues_the_same_ranker_alone(name, parts, tmp_path):
    begin(make(name), *parts, tmp_path / "kept")
    for other in RANKERS:
        if other != name:
            check_refused(make(other), *parts, tmp_path / "kept")


@pytest.mark.parametrize("outer", [UMart, UBoost])
def test_a_checkpoint_of_another_base_is_refused(outer, parts, tmp_path):
    settings = {UMart: TREES, UBoost: NETWORK | {"n_learners": 2}}[outer]
    first, other = (outer(base=kind(**NETWORK), **settings, n_jobs=1) for kind in (ListNet, ListMLE))
    train, valid = parts

    def kill(step):
        if step.part == "base" and step.number == 3:
            raise Killed

    with suppress(Killed):
        first.fit(train, valid=valid, checkpoint=tmp_path / "kept", callbacks=[kill])
    assert (tmp_path / "kept" / "base").exists()
    check_refused(other, *parts, tmp_path / "kept")


def test_a_checkpoint_of_another_class_of_a_caller_is_refused(parts, tmp_path):
    """Which has the same settings, and another objective."""

    @dataclass(kw_only=True, eq=False, repr=False)
    class Mine(UMart):
        def objective(self, settings):
            return OBJECTIVES["lambdarank"]()

    begin(make("umart"), *parts, tmp_path / "kept")
    check_refused(Mine(**TREES, n_jobs=1), *parts, tmp_path / "kept")


def with_levels(data, seed, levels):
    """The data with a column of five levels, as texts or as numbers."""
    codes = np.random.default_rng(seed).integers(0, 5, data.n_documents)
    table = pd.DataFrame({"a": data.features[:, 0], "level": np.array(levels)[codes], "b": data.features[:, 1]})
    return RankingDataset(table, data.ratings, qid=data.query_of_row)


@every_ranker
def test_a_checkpoint_of_numbers_is_none_of_categories(name, parts, tmp_path):
    texts, numbers = ([with_levels(data, 3, levels) for data in parts] for levels in (list("abcde"), [0.0, 1, 2, 3, 4]))
    for place, first, second in (("texts", texts, numbers), ("numbers", numbers, texts)):
        begin(make(name), *first, tmp_path / place)
        check_refused(make(name), *second, tmp_path / place)


@every_ranker
def test_a_checkpoint_of_one_query_is_none_of_data_without_queries(name, parts, tmp_path):
    data = parts[0].select([0])
    make(name).fit(data, checkpoint=tmp_path / "kept")
    with pytest.raises(DataError, match="got one of another run"):
        make(name).fit(data.features, data.ratings, checkpoint=tmp_path / "kept")


@pytest.mark.parametrize("file", ["forcedsplits_filename", "forcedbins_filename"])
def test_a_checkpoint_of_another_content_of_a_file_is_refused(file, parts, tmp_path):
    contents = {
        "forcedsplits_filename": [{"feature": place, "threshold": 0.5} for place in (0, 1)],
        "forcedbins_filename": [[{"feature": place, "bin_upper_bound": [0.3, 0.6]}] for place in (0, 1)],
    }
    place, ranker = tmp_path / "file.json", make("umart", **{file: str(tmp_path / "file.json")})
    first, second = contents[file]
    place.write_text(json.dumps(first))
    begin(ranker, *parts, tmp_path / "kept")
    place.write_text(json.dumps(second))
    check_refused(ranker, *parts, tmp_path / "kept")


@pytest.mark.parametrize("settings", [{}, {"bagging_fraction": 0.7, "bagging_freq": 1}], ids=["one", "stretches"])
@pytest.mark.parametrize("before", ["nothing", "base", "start", "base and start"])
def test_trees_continue_from_the_scores_of_what_was_before_them(before, settings, parts, tmp_path):
    settings = TREES | settings | {"n_jobs": 1, "base": LinearRanker() if "base" in before else None}
    train, valid = parts
    start = {"start": UMart(**settings | {"n_trees": 7}).fit(valid)} if "start" in before else {}

    def kill(step):
        if step.part in ("", "trees") and step.number == 55:
            raise Killed

    with suppress(Killed):
        UMart(**settings).fit(train, valid=valid, checkpoint=tmp_path / "kept", callbacks=[kill], **start)
    check_same(UMart(**settings), *parts, tmp_path / "kept", **start)


def test_means_are_the_same_bits_for_queries_in_any_order():
    values = np.random.default_rng(0).random(1000)
    values[::7] = np.nan
    expected = means_of({"ndcg": values})
    for seed in range(20):
        assert means_of({"ndcg": np.random.default_rng(seed).permutation(values)}) == expected


@every_ranker
def test_the_history_is_the_same_bits_for_validation_rows_in_any_order(name, parts):
    train, valid = parts
    one, other = (make(name).fit(train, valid=data) for data in (valid, shuffled(valid, 4)))
    assert one.history_ == other.history_
    assert one.best_ == other.best_


@pytest.mark.parametrize("name", ["umart", "urank", "uboost"])
def test_a_checkpoint_whose_files_were_changed_is_refused(name, parts, tmp_path):
    """Also if what they hold has the right form."""
    kept, train, valid = tmp_path / "kept", *parts
    begin(make(name), *parts, kept)
    files = [file for file in kept.iterdir() if file.name != "checkpoint.json"]
    assert kept / "state.json" in files
    for file in files:
        content = file.read_bytes()
        changes = {content[:-1], content + b" ", b"", b"{}", b"null"}
        if file.suffix == ".json":
            state = json.loads(content)
            changes |= {json.dumps(state | {key: value}).encode() for key in state for value in (None, 5, [], {}, "x")}
            changes -= {content}
        for change in changes:
            file.write_bytes(change)
            with pytest.raises(DataError, match="expected a checkpoint, got a damaged one; delete it to start over"):
                make(name).fit(train, valid=valid, checkpoint=kept)
        file.unlink()
        with pytest.raises(DataError, match="expected a checkpoint, got a damaged one; delete it to start over"):
            make(name).fit(train, valid=valid, checkpoint=kept)
        file.write_bytes(content)
    check_same(make(name), *parts, kept)
