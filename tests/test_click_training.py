"""Learning from clicks: positions and propensities in data sets, objectives, losses and rankers."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
import reference_objectives as reference

import tierank
from tierank import RANKERS, Blend, DataError, LambdaMART, ParameterError, RankingDataset, UBoost, UMart, URank
from tierank.clicks import ClickLog, read_propensities, simulate_clicks, training_data
from tierank.losses import LambdaRankObjective, UMartObjective
from tierank.rankers.base import model_files
from tierank.rankers.selection import make_judge, means_of

POSITION = [1, 2, 3] * 4


def small(**parts):
    """Four lists of three documents."""
    rng = np.random.default_rng(0)
    clicks = [0, 1, 0, 1, 0, 0, 0, 0, 1, 1, 1, 0]
    return RankingDataset(rng.normal(size=(12, 3)), clicks, qid=np.repeat([1, 2, 3, 4], 3), **parts)


@pytest.fixture(scope="module")
def shop():
    data = tierank.make_ranking(30, n_features=4, mean_length=10, max_length=15, seed=3)
    rng = np.random.default_rng(0)
    scores = {name: rng.normal(size=data.n_documents) for name in ("a", "b")}
    return data, simulate_clicks(data, scores, n_sessions=600, k=6, seed=2).log


@pytest.fixture(scope="module")
def lists(shop):
    data, log = shop
    return training_data(log, data)


# Data sets


def test_positions_follow_the_documents():
    order = np.random.default_rng(1).permutation(12)
    data = small(position=POSITION)
    scattered = RankingDataset(data.features[order], data.ratings[order], np.repeat([1, 2, 3, 4], 3)[order],
                               position=np.array(POSITION)[order])  # fmt: skip
    assert scattered.restore(scattered.position).tolist() == np.array(POSITION)[order].tolist()
    assert data.select([2, 0]).position.tolist() == [1, 2, 3, 1, 2, 3]
    assert RankingDataset.concat([data.select([0]), data.select([1])]).position.tolist() == [1, 2, 3] * 2
    assert small().position is None
    with pytest.raises(DataError, match="position: expected in all of the parts or in none, got 1 of 2"):
        RankingDataset.concat([data.select([0]), small().select([1])])


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ([1, 2], "^position: expected 12 positions, one per row, got shape"),
        ([0, 1, 2] * 4, "^position: expected integers from 1 to 2,000, got 0 at 0; add 1 to positions that count from"),
        ([1.5, 2, 3] * 4, "^position: expected integers from 1 to 2,000, got 1.5 at 0"),
        ([np.nan, 2, 3] * 4, "^position: expected integers from 1 to 2,000, got nan at 0"),
        ([1, 2, 2001] * 4, "^position: expected integers from 1 to 2,000, got 2001 at 2"),
        (["x", "y", "z"] * 4, "^position: expected numbers"),
    ],
)
def test_positions_are_checked(position, message):
    with pytest.raises(DataError, match=message):
        small(position=position)


def test_a_propensity_is_by_position_or_by_row_or_fitted():
    data = small(position=POSITION)
    wanted = [1, 0.5, 0.25] * 4
    fitted = tierank.clicks.Propensities(np.array([1, 0.5, 0.25]), *np.full((2, 3), np.nan), 0.95, "pbm")
    for given in ([1, 0.5, 0.25], [4, 2, 1, 0.5], wanted, fitted):
        assert data.with_propensity(given).propensity.tolist() == wanted
    assert data.with_propensity([1, 0.5]).propensity.tolist() == [1, 0.5, 0.5] * 4
    assert small(propensity=wanted).propensity.tolist() == wanted


def test_propensities_are_checked():
    refusal = r"^propensity: expected one propensity per row, or one per position together with position, got neither"
    with pytest.raises(DataError, match=refusal):
        small().with_propensity([1, 0.5])
    for given, got in (([1, 0, 1], "0 at 1"), ([1, -1], "-1 at 1"), ([np.inf], "inf at 0"), ([], "shape ")):
        with pytest.raises(DataError, match=f"^propensity: expected finite numbers above 0, got {got}"):
            small(position=POSITION).with_propensity(given)


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".tierank"])
def test_positions_are_written_and_read(ending, tmp_path):
    data = small(position=POSITION)
    tierank.write(data, tmp_path / f"lists{ending}")
    read = tierank.read(tmp_path / f"lists{ending}", position="position")
    assert read.position.tolist() == POSITION
    assert read.n_features == 3


def test_a_column_is_taken_for_positions_only_by_name(tmp_path):
    import pandas as pd

    table = pd.DataFrame({"qid": [1, 1], "rating": [0, 1], "position": [2, 1], "x": [0.5, 1.5]})
    assert tierank.read(table).n_features == 2
    assert tierank.read(table, position="position").position.tolist() == [2, 1]
    (tmp_path / "a.txt").write_text("1 qid:1 1:0.5\n")
    with pytest.raises(DataError, match=r"a.txt: position: expected a table with such a column, CSV or Parquet"):
        tierank.read(tmp_path / "a.txt", position="position")
    tierank.write(small(), tmp_path / "a.tierank")
    with pytest.raises(DataError, match=r"a.tierank: position: expected data that hold positions, got none"):
        tierank.read(tmp_path / "a.tierank", position="position")


def test_training_data_are_the_lists_of_the_log(shop, lists):
    data, log = shop
    n_clicked = log.per_session(log.clicked.astype(float))
    useful = (n_clicked > 0) & (n_clicked < log.lengths)
    assert lists.query_weight.sum() == useful.sum()
    seen = {}
    rows = data.restore(np.arange(data.n_documents))[log.column("row")]
    for a, b in zip(log.offsets[:-1][useful], log.offsets[1:][useful], strict=True):
        key = tuple(rows[a:b]), tuple(log.clicked[a:b])
        seen[key] = seen.get(key, 0) + 1
    assert sorted(seen.values()) == sorted(lists.query_weight.tolist())
    first, second = lists.offsets[:2]
    session = int(np.flatnonzero(log.session_ids == lists.query_ids[0])[0])
    assert np.array_equal(lists.features[first:second], data.features[rows[log.offsets[session] :][: second - first]])


def test_training_data_need_all_documents_of_the_log():
    log = ClickLog.of(session=[1, 1], query=["q", "q"], document=["a", "z"], position=[1, 2], clicked=[1, 0])
    data = RankingDataset(np.eye(2), qid=["q", "q"], document_ids=["a", "b"])
    with pytest.raises(DataError, match="data: expected all documents that the log shows, got no document 'z'"):
        training_data(log, data)
    with pytest.raises(DataError, match="data: expected documents with ids, got none"):
        training_data(log, RankingDataset(np.eye(2)))
    same = ClickLog.of(session=[1, 1], query=["q", "q"], document=["a", "b"], position=[1, 2], clicked=[1, 1])
    with pytest.raises(DataError, match="log: expected a session in which something was clicked and something was not"):
        training_data(same, data)


# Trees

SETTINGS = [
    {"window": window, "hessian": hessian, "weights": weights, "truncation": truncation, "ties": ties}
    for (window, hessian), (weights, truncation), ties in itertools.product(
        [(1, "exact"), (2, "code"), (None, "paper")], [("ndcg", None), ("ndcg", 2), ("gain", 3)], ["mean", "rows"]
    )
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_pairs_with_learned_weights_agree_with_the_slow_twin(settings):
    rng = np.random.default_rng(5)
    for scale in (0.0, 1.0, 200.0):
        ratings, position = rng.integers(0, 3, 7).astype(float), rng.integers(1, 5, 7)
        scores = np.round(scale * rng.normal(size=7), 1)
        objective = UMartObjective(**settings, propensity_norm=0.5, clip=1e9).prepare(
            ratings, [0, 7], position=position
        )
        before = {"clicked": [1.0, 0.8, 0.5, 0.3], "unclicked": [1.0, 0.9, 1.2, 0.7]}
        before = {name: values[: position.max()] for name, values in before.items()}
        objective.load_state(before)
        gradient, hessian = objective.gradients(scores)
        above = [1 / before["clicked"][k - 1] for k in position]
        below = [1 / before["unclicked"][k - 1] for k in position]
        losses = []
        twin = reference.umart(
            ratings.tolist(), scores.tolist(), **settings, above=above, below=below, losses=losses
        )  # fmt: skip
        size = max(np.abs(twin).max(), 1e-9)
        np.testing.assert_allclose(gradient / size, np.array(twin[0]) / size, atol=1e-6)
        np.testing.assert_allclose(hessian / size, np.array(twin[1]) / size, atol=1e-6)
        for name, values in (("clicked", [(d, x * below[e]) for d, e, x in losses]),
                             ("unclicked", [(e, x * above[d]) for d, e, x in losses])):  # fmt: skip
            sums = [sum(x for d, x in values if position[d] == k) for k in range(1, position.max() + 1)]
            first = next((one for one in sums if one > 0), None)
            for learned, old, one in zip(objective.state()[name], before[name], sums, strict=True):
                wanted = min(max((one / first) ** (1 / 1.5), 1e-9), 1e9) if one > 0 else old
                assert learned == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("make", [LambdaRankObjective, UMartObjective])
@pytest.mark.parametrize("spread", [0.0, 1.0, 500.0])
def test_before_anything_is_learned_gradients_are_those_without_positions(make, spread):
    rng = np.random.default_rng(2)
    offsets = np.concatenate([[0], rng.integers(1, 9, 20).cumsum()])
    ratings, scores = rng.integers(0, 3, offsets[-1]).astype(float), spread * rng.integers(-3, 4, offsets[-1])
    plain = [one.copy() for one in make().prepare(ratings, offsets).gradients(scores)]
    shown = make().prepare(ratings, offsets, position=rng.integers(1, 6, offsets[-1])).gradients(scores)
    for one, other in zip(plain, shown, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-7)


def test_inverse_propensities_multiply_gains():
    # One click: the gradient is 1 / propensity times that of the click alone.
    plain = [one.copy() for one in UMartObjective().prepare([0, 1, 0], [0, 3]).gradients([0.3, 0.1, 0.0])]
    weighted = UMartObjective().prepare([0, 1, 0], [0, 3], propensity=[1, 0.25, 0.5]).gradients([0.3, 0.1, 0.0])
    for one, other in zip(plain, weighted, strict=True):
        np.testing.assert_allclose(other, 4 * one, rtol=1e-6)
    # Two clicks: the one where fewer look is above the other.
    gradient, _ = UMartObjective(window=1).prepare([1, 1], [0, 2], propensity=[1, 0.5]).gradients([0.0, 0.0])
    assert gradient[1] < 0 < gradient[0]
    # No more than clip.
    most, _ = UMartObjective(clip=2.0).prepare([0, 1, 0], [0, 3], propensity=[1, 0.25, 0.5]).gradients([0.3, 0.1, 0.0])
    np.testing.assert_allclose(most, 2 * plain[0], rtol=1e-6)


def test_learned_propensities_are_the_same_bits_in_any_number_of_threads():
    rng = np.random.default_rng(0)
    offsets = np.arange(0, 160_001, 10)
    ratings, position = (rng.random(160_000) < 0.2).astype(float), np.tile(np.arange(1, 11), 16_000)
    scores, found = rng.normal(size=160_000), []
    for n_jobs in (1, 3):
        objective = UMartObjective(n_jobs=n_jobs).prepare(ratings, offsets, position=position)
        assert len(objective._data.spans) > 1
        objective.gradients(scores)
        found.append((objective.gradients(scores)[0].tobytes(), objective.state()))
    assert found[0] == found[1]


def test_trees_learn_that_users_look_less_further_down(lists):
    ranker = LambdaMART(n_trees=10, propensity_norm=0.0, n_jobs=1).fit(lists)
    clicked = ranker.propensities_["clicked"]
    assert clicked[0] == 1
    assert clicked[5] < clicked[2] < 0.6


def test_propensities_of_one_change_nothing_in_umart(lists):
    naive = UMart(n_trees=3, n_jobs=1).fit(lists.replace(position=None))
    ones = UMart(n_trees=3, n_jobs=1).fit(lists, propensity=np.ones(6))
    assert np.array_equal(naive.predict(lists), ones.predict(lists))
    assert naive.propensities_ == {}


def test_the_order_of_rows_changes_nothing(lists):
    order = np.random.default_rng(0).permutation(lists.n_documents)
    qid, weight = (np.repeat(one, lists.lengths)[order] for one in (lists.query_ids, lists.query_weight))
    for propensity in (None, [1, 0.5, 0.3]):
        given = {"position": lists.position[order], "query_weight": weight, "propensity": propensity}
        scattered = UMart(n_trees=3, n_jobs=1).fit(lists.features[order], lists.ratings[order], qid, **given)
        together = UMart(n_trees=3, n_jobs=1).fit(lists, propensity=propensity)
        assert scattered.booster_.model_to_string() == together.booster_.model_to_string()


def kill_at(n):
    def callback(step):
        if step.number == n:
            raise RuntimeError("killed")

    return callback


def test_trees_resume_with_the_propensities_that_they_had_learned(lists, tmp_path):
    whole = UMart(n_trees=54, n_leaves=4, n_jobs=1).fit(lists)
    with pytest.raises(RuntimeError, match="killed"):
        UMart(n_trees=54, n_leaves=4, n_jobs=1).fit(lists, checkpoint=tmp_path / "c", callbacks=[kill_at(52)])
    resumed = UMart(n_trees=54, n_leaves=4, n_jobs=1).fit(lists, checkpoint=tmp_path / "c")
    assert resumed.booster_.model_to_string() == whole.booster_.model_to_string()
    assert {k: v.tolist() for k, v in resumed.propensities_.items()} == {
        k: v.tolist() for k, v in whole.propensities_.items()
    }
    whole.save(tmp_path / "model")
    assert tierank.load(tmp_path / "model").propensities_["clicked"].tolist() == whole.propensities_["clicked"].tolist()
    other = lists.replace(position=lists.position[::-1].copy())
    with pytest.raises(DataError, match="expected a checkpoint of this data and these settings, got one of another"):
        UMart(n_trees=54, n_leaves=4, n_jobs=1).fit(other, checkpoint=tmp_path / "c")


# Losses and networks


def test_the_expected_loss_of_clicks_is_that_of_relevance():
    import torch

    from tierank.losses import LOSSES, Batch

    propensity, relevance, scores = [1, 0.5, 0.2], [0.3, 0.9, 0.6], torch.tensor([0.2, -0.4, 1.0])
    log_sum = math.log(sum(math.exp(f) for f in scores.tolist()))
    wanted = sum(r * (log_sum - f) for r, f in zip(relevance, scores.tolist(), strict=True))
    for name in ("softmax", "listnet"):
        expected = 0.0
        for clicks in itertools.product([0, 1], repeat=3):
            chances = [p * r if c else 1 - p * r for c, p, r in zip(clicks, propensity, relevance, strict=True)]
            batch = Batch([0, 3], clicks, weights=1 / np.array(propensity))
            expected += math.prod(chances) * float(LOSSES[name](scores, batch).sum())
        assert expected == pytest.approx(wanted, rel=1e-5)


def test_urank_selects_a_click_from_all_that_say_less():
    import torch

    from tierank.losses import LOSSES, Batch

    f = [0.5, -0.2, 0.1, 0.7]
    batch = Batch([0, 4], [1, 0, 1, 0], weights=[1, 1, 4, 1])  # the third says most, then the first
    below = [[1, 3], None, [0, 1, 3], None]
    wanted = sum(w * math.log(1 + sum(math.exp(f[e]) for e in below[d]) / math.exp(f[d])) for d, w in ((0, 1), (2, 4)))
    assert float(LOSSES["urank"](torch.tensor(f), batch)[0]) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("name", ["urank", "softmax", "listnet", "ranknet", "lambdaloss", "approxndcg"])
def test_one_click_counts_its_weight(name):
    import torch

    from tierank.losses import LOSSES, Batch

    gradients = []
    for weights in (None, [1, 3, 1]):
        scores = torch.tensor([0.3, 0.1, -0.2], requires_grad=True)
        batch = Batch([0, 3], [0, 1, 0], weights=weights)
        if name == "listnet":  # which has e^0 for unclicked documents without weights
            batch = Batch([0, 3], [0, 1, 0], weights=weights or [1, 1, 1])
        LOSSES[name](scores, batch).sum().backward()
        gradients.append(scores.grad)
    assert torch.allclose(3 * gradients[0], gradients[1])


@pytest.mark.parametrize("tower", ["additive", "multiplicative"])
def test_a_tower_is_used_in_training_and_dropped(tower, lists, tmp_path):
    settings = {"max_epochs": 2, "hidden": (8,), "n_jobs": 1}
    ranker = URank(**settings, position_tower=tower).fit(lists)
    plain = URank(**settings).fit(lists.replace(position=None))
    assert set(ranker.members_[0]) == set(plain.members_[0])
    assert not np.allclose(ranker.predict(lists), plain.predict(lists))
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model")
    assert np.array_equal(loaded.predict(lists.replace(position=None)), ranker.predict(lists))
    assert type(ranker.to_neutral()) is type(plain.to_neutral())
    killed = URank(**settings, position_tower=tower)
    with pytest.raises(RuntimeError, match="killed"):
        killed.fit(lists, checkpoint=tmp_path / "c", callbacks=[kill_at(1)])
    killed.fit(lists, checkpoint=tmp_path / "c")
    assert np.array_equal(killed.predict(lists), ranker.predict(lists))


@pytest.mark.parametrize("tower", ["additive", "multiplicative"])
def test_a_tower_learns_what_positions_add(tower):
    import torch

    from tierank.losses import Batch
    from tierank.networks import MLP, WithTower

    network = WithTower(MLP(1, ()), tower, 2)
    batch = Batch([0, 2], [1, 0], positions=[2, 1])
    features = torch.tensor([[1.0], [0.0]])
    with torch.no_grad():
        network.tower[1] = 0.5
    plain = network.network(features, batch)
    assert torch.equal(network.eval()(features, batch), plain)
    added = {
        "additive": plain + torch.tensor([0.5, 0.0]),
        "multiplicative": (torch.sigmoid(plain) * torch.sigmoid(torch.tensor([0.5, 0.0]))).log(),
    }
    assert torch.allclose(network.train()(features, batch), added[tower])


# Rankers

QUICK = {"n_trees": 2, "max_epochs": 1, "n_configs": 1, "n_seeds": 1, "rotate": False, "n_learners": 2, "n_jobs": 1}


def quick(kind):
    known = kind.declared_settings()
    return kind(**{name: value for name, value in QUICK.items() if name in known})


@pytest.mark.parametrize("name", [name for name in RANKERS if name not in ("listmle", "plistmle", "mdprank", "linear")])
def test_rankers_take_propensities(name, lists):
    ranker = quick(RANKERS[name])
    few = lists.select(np.arange(40))
    assert np.isfinite(ranker.fit(few, propensity=[1, 0.5, 0.3, 0.2]).predict(few)).all()


@pytest.mark.parametrize("name", ["listmle", "plistmle", "mdprank", "linear"])
def test_other_rankers_say_why_not(name, lists):
    with pytest.raises(ParameterError, match=r"^propensity: expected None.*(no weights|cannot correct for positions)"):
        quick(RANKERS[name]).fit(lists, propensity=[1, 0.5, 0.3, 0.2])


@pytest.mark.parametrize(
    ("ranker", "message"),
    [
        (URank(), "^position: expected propensity too, or the setting position_tower, got positions alone"),
        (tierank.Blend(), "^position: expected propensity too, as stochastic trees and networks do not learn"),
        (tierank.Blend(trees="lambdamart"), "^position: expected propensity too, or the setting position_tower"),
        (tierank.TreeRanker("urank"), "^position: expected propensity too, as a loss learns no propensities"),
        (UMart(base=URank()), "^position: expected propensity too"),
        (tierank.UBoost(position_tower="additive"), "^position_tower: expected 'none', as learners are fitted to"),
        (tierank.LinearRanker(), "^position: expected None, as LinearRanker cannot correct for positions"),
    ],
)
def test_positions_alone_are_refused_with_a_reason(ranker, message, lists):
    with pytest.raises(ParameterError, match=message):
        ranker.fit(lists)


def test_arguments_that_do_not_go_together(lists):
    with pytest.raises(ParameterError, match=r"^position_tower: expected position alone in fit, got none"):
        URank(position_tower="additive").fit(lists.replace(position=None))
    with pytest.raises(ParameterError, match=r"^position_tower: expected position alone in fit, got propensities"):
        URank(position_tower="additive").fit(lists, propensity=[1, 0.5])
    with pytest.raises(DataError, match=r"^propensity: expected None with data that have propensities"):
        UMart().fit(lists.with_propensity([1, 0.5]), propensity=[1, 0.5])
    with pytest.raises(DataError, match=r"^position: expected None with a RankingDataset, which has its own"):
        UMart().fit(lists, position=lists.position)


def test_validation_by_clicks_counts_lists_by_their_propensities():
    # Two lists with one click each: the second was seen by a quarter of the users.
    data = RankingDataset(np.eye(4), [1, 0, 0, 1], qid=[1, 1, 2, 2], position=[1, 2, 1, 2], propensity=[1, 0.25] * 2)
    scores = np.array([1.0, 0.0, 1.0, 0.0])  # right in the first list alone
    found = means_of(make_judge(data, "ndcg@1", "tierank", 1)(scores))
    assert found["ndcg@1"] == pytest.approx(1 / 5)
    assert means_of(make_judge(data.replace(propensity=None), "ndcg@1", "tierank", 1)(scores))["ndcg@1"] == 0.5
    ranker = UMart(n_trees=2, min_documents=1, n_jobs=1).fit(data, valid=data.select([1]))
    assert 0 <= ranker.best_["ndcg@10"] <= 1


def test_propensities_are_read_from_files(shop, tmp_path):
    _, log = shop
    model = tierank.clicks.make_model("pbm").fit(log)
    tierank.clicks.save(model, tmp_path / "pbm.json")
    assert read_propensities(tmp_path / "pbm.json").values.tolist() == model.examination_.tolist()
    (tmp_path / "p.json").write_text('{"method": "harvest", "level": 0.9, "propensity": [1, null, 0.5],'
                                     ' "low": [1, null, 0.4], "high": [1, null, 0.6]}')  # fmt: skip
    assert read_propensities(tmp_path / "p.json").at([1, 2, 3, 4]).tolist() == [1, 0.75, 0.5, 0.5]
    tierank.clicks.save(tierank.clicks.make_model("sdbn").fit(log), tmp_path / "sdbn.json")
    (tmp_path / "zero.json").write_text('{"method": "m", "level": 0.9, "propensity": [1, 0], "low": [], "high": []}')
    for name in ("sdbn.json", "zero.json"):
        with pytest.raises(DataError, match=f"{name}: expected a click model of the kind pbm, or propensities as JSON"):
            read_propensities(tmp_path / name)


def test_the_command_line_trains_on_positions(lists, tmp_path, capsys, monkeypatch):
    from tierank.cli import main

    monkeypatch.chdir(tmp_path)
    tierank.write(lists, tmp_path / "lists.csv")
    rated = lists.select(np.arange(9))
    tierank.write(rated.replace(position=None, ratings=3 * rated.ratings), tmp_path / "rated.csv")
    (tmp_path / "p.json").write_text('{"method": "m", "level": 0.9, "propensity": [1, 0.5], "low": [1, 1],'
                                     ' "high": [1, 1]}')  # fmt: skip
    train = ["train", "lambdamart", "--train", "lists.csv", "--set", "n_trees=2", "--out", "model"]
    assert main([*train, "--position-column", "position"]) == 0
    assert list(tierank.load("model").propensities_) == ["clicked", "unclicked"]
    given = ["--position-column", "position", "--propensity", "p.json", "--valid", "rated.csv"]
    assert main([*train, *given]) == 0
    told = capsys.readouterr().err
    assert "rated.csv: no column position: its ratings are used as plain ratings, not as clicks at positions" in told
    assert main([*train, "--propensity", "p.json"]) == 2
    assert "--propensity: expected --position-column too" in capsys.readouterr().err
    urank = ["train", "urank", "--train", "lists.csv", "--position-column", "position", "--out", "other"]
    assert main(urank) == 2
    assert "--position-column: expected --propensity too, or the setting position_tower" in capsys.readouterr().err


def test_training_data_keep_what_columns_stand_for(tmp_path):
    """Texts stay texts: a model of clicks scores the table that its features came from."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    table = pandas.DataFrame(
        {"qid": np.repeat(np.arange(20), 5), "docid": np.arange(100), "brand": rng.choice(list("abc"), 100)}
    )
    data = tierank.read(table)
    log = ClickLog.of(
        session=table.qid, query=table.qid, document=table.docid, position=np.tile(np.arange(1, 6), 20),
        clicked=table.brand == "b",
    )  # fmt: skip
    lists = training_data(log, data)
    assert lists.kinds == data.kinds
    ranker = UMart(n_trees=5, min_documents=2).fit(lists)
    scores = ranker.predict(table, qid=table.qid)
    assert scores[table.brand == "b"].min() > scores[table.brand != "b"].max()


def test_propensities_by_position_are_relative_to_those_of_all_positions(lists):
    """Parts that miss the first positions stay comparable with the others."""
    values = [1.0, 0.5, 0.25]
    fitted = tierank.clicks.Propensities(np.array(values), *np.full((2, 3), np.nan), 0.95, "pbm")
    for given in (values, np.multiply(values, 3), fitted):
        data = RankingDataset(np.zeros((2, 1)), [1, 0], position=[2, 3], propensity=given)
        assert data.propensity.tolist() == [0.5, 0.25]


@pytest.mark.parametrize("seed", range(3))
def test_equal_lists_are_counted_as_a_dictionary_does(seed):
    rng = np.random.default_rng(seed)
    lists = [rng.integers(0, 3, (rng.integers(1, 5), 2)) for _ in range(400)]
    kept, n_rows = {}, max(map(len, lists))
    for session, one in enumerate(lists):
        clicks = one[:, 1] > 1
        if 0 < clicks.sum() < len(clicks):
            kept.setdefault(tuple(zip(one[:, 0].tolist(), clicks.tolist(), strict=True)), []).append(session)
    data = RankingDataset(np.eye(3), qid=["q"] * 3, document_ids=["0", "1", "2"])
    assert n_rows == 4
    log = ClickLog.of(
        session=np.repeat(np.arange(400), [len(one) for one in lists]),
        query=["q"] * sum(map(len, lists)),
        document=np.concatenate([one[:, 0] for one in lists]).astype(str),
        position=np.concatenate([np.arange(1, len(one) + 1) for one in lists]),
        clicked=np.concatenate([one[:, 1] > 1 for one in lists]),
    )
    found = training_data(log, data)
    assert found.query_ids.tolist() == [sessions[0] for sessions in kept.values()]
    assert found.query_weight.tolist() == [len(sessions) for sessions in kept.values()]


def test_one_long_list_takes_no_room_in_the_others():
    """A table with a row for each list and a column for each place would take 300 MB here."""
    n, longest = 20_000, 2_000
    lengths = np.array([2] * n + [longest])
    data = RankingDataset(np.eye(longest, 2), qid=["q"] * longest, document_ids=map(str, range(longest)))
    place = np.concatenate([np.arange(length) for length in lengths])
    log = ClickLog.of(
        session=np.repeat(np.arange(n + 1), lengths),
        query=["q"] * len(place),
        document=place.astype(str),
        position=place + 1,
        clicked=place == 0,
    )
    tracemalloc.start()
    found = training_data(log, data)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.query_weight.tolist() == [n, 1]
    assert most < 1e8


def test_a_document_that_the_data_have_twice_is_refused():
    data = RankingDataset(np.eye(4), qid=["q", "q", "q", "r"], document_ids=["a", "b", "b", "b"])
    rows = {"session": [1, 1], "position": [1, 2], "clicked": [1, 0]}
    with pytest.raises(DataError, match="data: expected each document once in its query, got 'b' of query 'q' twice"):
        training_data(ClickLog.of(**rows, query=["q", "q"], document=["a", "b"]), data)
    unused = RankingDataset(np.eye(4), qid=["q", "q", "r", "r"], document_ids=["a", "b", "b", "b"])
    assert training_data(ClickLog.of(**rows, query=["q", "q"], document=["a", "b"]), unused).n_documents == 2


# Training that was interrupted


class Interruption(Exception):
    """What ends a run in the middle."""


TREES = {"n_trees": 120, "patience": 200, "n_jobs": 1}
NETWORK = {"max_epochs": 6, "n_jobs": 1}
CHANCES = {"propensity": [1.0, 0.6, 0.4, 0.3]}
CLICK_RANKERS = {
    "trees that learn propensities": (UMart, TREES, {}),
    "trees with propensities": (LambdaMART, TREES, CHANCES),
    "trees with draws": (UMart, TREES | {"bagging_fraction": 0.7, "bagging_freq": 1}, {}),
    "network with propensities": (URank, NETWORK, CHANCES),
    "network with a tower": (URank, NETWORK | {"position_tower": "additive"}, {}),
    "network with a tower and dropout": (URank, NETWORK | {"position_tower": "multiplicative", "dropout": 0.3}, {}),
    "boosted networks": (UBoost, NETWORK | {"n_learners": 2}, CHANCES),
    "blend": (Blend, NETWORK | {"n_trees": 4, "rotate": False, "n_configs": 1, "n_seeds": 1}, CHANCES),
}


@pytest.mark.parametrize("name", CLICK_RANKERS)
@pytest.mark.parametrize("share", [0.6, 0.9])
def test_interrupted_learning_from_clicks_goes_on_to_the_same_bits(name, share, lists, tmp_path, monkeypatch):
    """Interrupted after a share of the steps; positions and propensities are part of what a checkpoint is of."""
    monkeypatch.setattr("tierank.rankers.network_training._EVERY", -1.0)  # a checkpoint after each epoch
    kind, settings, shown = CLICK_RANKERS[name]
    train, valid = lists.split(0.7, 0.3)
    steps = []
    whole = kind(**settings).fit(train, valid=valid, callbacks=[lambda step: steps.append(step) and None], **shown)
    last, met = int(share * len(steps)), []

    def interrupt(step):
        met.append(step)
        if len(met) == last:
            raise Interruption("as if killed")

    with pytest.raises(Interruption, match="as if killed"):
        kind(**settings).fit(train, valid=valid, checkpoint=tmp_path / "kept", callbacks=[interrupt], **shown)
    again = []
    resumed = kind(**settings)
    more = shown | {"valid": valid, "checkpoint": tmp_path / "kept", "callbacks": [lambda s: again.append(s) and None]}
    with pytest.raises(DataError, match="a checkpoint of this data and these settings, got one of another"):
        resumed.fit(train.replace(position=train.position % 6 + 1), **more)
    resumed.fit(train, **more)
    assert model_files(resumed) == model_files(whole)
    assert len(again) < len(steps)
