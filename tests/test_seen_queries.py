"""Training queries among validation and test queries: noticed by content, and not where lists repeat by themselves."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples

import tierank
from tierank import cli

QUICK = {"n_trees": 2, "min_documents": 2, "n_jobs": 1}


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(80, n_features=4, mean_length=8, max_length=12, seed=2)


def rewritten(data, seed=0):
    """The same queries under other ids, with their rows scattered, and zeros with the other sign."""
    rows = np.random.default_rng(seed).permutation(data.n_documents)
    features = np.where(data.features == 0, -0.0, data.features)[rows]
    return tierank.RankingDataset(features, data.ratings[rows], 1000 + data.query_of_row[rows])


def told(fit):
    """The warnings about queries that were seen."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    return [str(one.message) for one in caught if "are training queries" in str(one.message)]


@pytest.mark.parametrize("ranker", [tierank.UMart(**QUICK), tierank.LinearRanker()], ids=["trees", "linear"])
@pytest.mark.parametrize("form", [lambda data: data, rewritten], ids=["the same", "rewritten"])
def test_training_data_as_validation_data_are_noticed(data, ranker, form):
    with pytest.warns(UserWarning, match="^valid: 100% of the queries are training queries.*give other queries"):
        ranker.fit(data, valid=form(data))


def test_the_share_is_told(data):
    train, rest = data.split(0.5, 0.5)
    valid = tierank.RankingDataset.concat([train.select(np.arange(12)), rest.select(np.arange(28))])
    n_seen, n_all = (sum(np.ptp(one.ratings[a:b]) > 0 for a, b in zip(one.offsets[:-1], one.offsets[1:], strict=True))
                     for one in (train.select(np.arange(12)), valid))  # fmt: skip
    (message,) = told(lambda: tierank.UMart(**QUICK).fit(train, valid=valid))
    assert message.startswith(f"valid: {n_seen / n_all:.0%} of the queries")


def test_other_queries_ratings_and_single_copies_are_no_leak(data):
    train, rest = data.split(0.5, 0.5)
    one_copy = tierank.RankingDataset.concat([train.select([0]), rest])
    rated_again = train.replace(ratings=train.ratings + 1)
    for valid in (rest, one_copy, rated_again, train.select([3])):
        tierank.UMart(**QUICK).fit(train, valid=valid)  # warnings are errors


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("n_levels", [1, 2, 3])
def test_lists_that_repeat_by_themselves_are_no_leak(length, n_levels):
    """Short lists of few values: some are equal by chance, and more so if some values are frequent."""
    n_warned = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        n = int(rng.choice([100, 200]))
        parts = []
        for _ in range(2):
            kind = rng.geometric(0.3, n)[:, None, None]
            features = (kind + rng.integers(n_levels, size=(n, length, 2))).reshape(-1, 2)
            ratings = rng.integers(2, size=n * length)
            parts.append(tierank.RankingDataset(features, ratings, np.repeat(np.arange(n), length)))
        n_warned += len(told(lambda parts=parts: tierank.LinearRanker(ridge=1.0).fit(parts[0], valid=parts[1])))
    assert n_warned <= 1  # a guess by statistics may err


@examples(40)
@given(st.integers(4, 30), st.integers(0, 30), st.integers(0, 10_000))
def test_the_share_is_that_of_equal_lists(n_train, n_copied, seed):
    """A slow twin: sets of rows, where no list is there twice."""
    rng = np.random.default_rng(seed)
    lists = [(rng.normal(size=(k, 3)).astype(np.float32), rng.integers(3, size=k)) for k in rng.integers(2, 6, 60)]
    train, valid = lists[:n_train], lists[n_train - min(n_copied, n_train) : n_train + 20]

    def as_data(some):
        features, ratings = (np.concatenate(columns) for columns in zip(*some, strict=True))
        return tierank.RankingDataset(features, ratings, np.repeat(np.arange(len(some)), [len(r) for _, r in some]))

    def contents(some):
        return [frozenset(map(tuple, np.column_stack([*one]).tolist())) for one in some if np.ptp(one[1]) > 0]

    known = set(contents(train))
    n_seen, n_valid = sum(one in known for one in contents(valid)), len(contents(valid))
    if not known:
        return
    found = told(lambda: tierank.LinearRanker(ridge=1.0).fit(as_data(train), valid=as_data(valid)))
    if n_seen > max(2, 0.05 * n_valid):
        assert found[0].startswith(f"valid: {n_seen / n_valid:.0%} of the queries")
    else:
        assert found == []


def test_tuning_on_training_data_is_noticed(data):
    pytest.importorskip("optuna")
    assert told(lambda: tierank.tune(tierank.UMart(**QUICK), data, data, trials=1)) != []


# Cross-validation


def test_test_data_that_are_training_data_are_refused(data, tmp_path):
    train, valid = data.split(0.6, 0.4)
    with pytest.raises(tierank.DataError, match="training queries only") as error:
        tierank.cross_validate([tierank.UMart(**QUICK)], [(train, valid, rewritten(train))], out=tmp_path / "run")
    assert (error.value.where, error.value.argument) == ("fold 1", "data")
    assert "evaluate" in error.value.fix
    assert not (tmp_path / "run").exists()
    scores = {name: [np.arange(train.n_documents) * sign] for name, sign in (("a", 1.0), ("b", -1.0))}
    tierank.cross_validate([], [(train, valid, train)], scores=scores)  # nothing is trained here


@pytest.mark.parametrize(("number", "part"), [(0, "training"), (1, "validation")])
def test_test_data_that_were_partly_seen_are_noticed(data, number, part):
    *seen, rest = data.split(0.4, 0.2, 0.4)
    test = tierank.RankingDataset.concat([seen[number].select(np.arange(10)), rest])
    with pytest.warns(UserWarning, match=rf"^fold 1: \d\d% of the test queries are {part} queries"):
        tierank.cross_validate([tierank.UMart(**QUICK)], [(*seen, test)], n_jobs=1)


def test_folds_that_train_on_each_others_test_data_are_no_leak(data):
    tierank.cross_validate([tierank.LinearRanker(ridge=1.0)], data, n_jobs=1)  # warnings are errors


# Command line


def test_the_commands_name_their_options(data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warnings.filters", [])  # as outside of tests, where warnings are no errors
    tierank.write(data, "data.txt")
    given = ["train", "umart", "--set", "n_trees=2", "--out", "model", "--train", "data.txt", "--valid", "data.txt"]
    assert cli.main(given) == 0
    assert "WARNING: --valid: 100% of the queries are training queries" in capsys.readouterr().err
    pytest.importorskip("optuna")
    given = ["tune", "umart", "--set", "n_trees=2", "--trials", "3", "--data", "data.txt", "--valid", "data.txt"]
    assert cli.main([*given, "--out", "found.json"]) == 0
    assert capsys.readouterr().err.count("WARNING: --valid: 100%") == 1  # once for all trials
    (tmp_path / "folds").mkdir()
    parts = data.split(*[0.2] * 5)
    for number, part in enumerate([*parts[:4], parts[0]], 1):
        tierank.write(part, f"folds/S{number}.txt")
    assert cli.main(["cv", "umart", "--data", "folds", "--set", "n_trees=2", "--out", "run"]) == 2
    assert "fold 1: --data: expected test queries that are not trained on" in capsys.readouterr().err
