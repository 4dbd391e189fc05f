"""Why A is above B: contributions by hand, beside slow twins, and the promises that every ranker keeps."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

import tierank
from tierank import RANKERS, DataError, NotFittedError, ParameterError, RankingDataset, cli, explain_pair, explain_query
from tierank.rankers import network_model
from tierank.report.figures import draw_explanation
from tierank.report.tabulate import tabulate_explanation

TREES = {"n_trees": 15, "min_documents": 5, "n_jobs": 1}
NETWORK = {"max_epochs": 5, "learning_rate": 0.01, "hidden": (12, 6), "n_jobs": 1}


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(50, n_features=6, mean_length=15, max_length=30, seed=2)


def settings(name):
    return TREES if hasattr(RANKERS[name], "importance") else {} if name == "linear" else NETWORK


# One of each way to a score; what they share is in test_contributions_sum_to_the_difference.
KINDS = {
    **{name: lambda name=name: RANKERS[name](**settings(name)) for name in RANKERS},
    "blend": lambda: tierank.Blend(n_configs=1, n_seeds=1, rotate=False, n_trees=5, max_epochs=2, n_jobs=1),
    "places in the query": lambda: tierank.UMart(**TREES, query_features=True),
    "three seeds": lambda: tierank.URank(**NETWORK, n_seeds=3),
    "attention": lambda: tierank.URank(
        **{**NETWORK, "max_epochs": 1, "hidden": (100, 50)}, network="attention", network_settings={"width": 8}
    ),
    "elu": lambda: tierank.URank(**NETWORK, activation="elu", output_activation="tanh"),
    "fitted scaling": lambda: tierank.URank(**NETWORK, feature_transform="quantile"),
    "logarithms": lambda: tierank.URank(**NETWORK, feature_transform="query_log1p"),
    "on trees": lambda: tierank.UBoost(**NETWORK, base=tierank.UMart(**TREES)),
    "on trees, two seeds": lambda: tierank.UBoost(**NETWORK, base=tierank.UMart(**TREES), n_seeds=2),
    "trees on a network": lambda: tierank.UMart(**TREES, base=tierank.URank(**NETWORK)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_contributions_sum_to_the_difference(kind, data):
    ranker = KINDS[kind]().fit(data)
    query = data.query_ids[7]
    rows = np.arange(data.offsets[7], data.offsets[8])
    scores = ranker.predict(data)[rows]
    first, last = int(scores.argmax()) + 1, int(scores.argmin()) + 1
    one, other = explain_pair(ranker, data, query, first, last), explain_pair(ranker, data, query, last, first)
    assert one.difference == pytest.approx(np.ptp(scores))
    assert one.difference > 0
    assert one.contributions.sum() + one.rest == pytest.approx(one.difference, rel=1e-12)
    assert abs(one.rest) <= 0.01 * abs(one.difference)
    # Swapping the two documents changes the sign and nothing else.
    np.testing.assert_allclose(other.contributions, -one.contributions, rtol=1e-9, atol=1e-12)
    whole = explain_query(ranker, data, query, k=None)
    assert len(whole) == len(rows) - 1
    assert sum(found.difference for found in whole) == pytest.approx(np.ptp(scores))
    assert all(found.difference >= 0 for found in whole)
    # Leaving out other queries changes nothing.
    alone = explain_pair(ranker, data.select([7]), query, first, last)
    np.testing.assert_allclose(alone.contributions, one.contributions, rtol=1e-6, atol=1e-9)


def test_a_linear_network_by_hand(data):
    ranker = tierank.URank(**{**NETWORK, "hidden": ()}, feature_transform="standard", encoding="none").fit(data)
    weights = ranker.members_[0]["output.weight"].double().numpy()[0]
    a, b = data.offsets[3], data.offsets[3] + 2
    scaled = ranker.transform_.transform(data.features).astype(np.float64)
    found = explain_pair(ranker, data, data.query_ids[3], 1, 3)
    np.testing.assert_allclose(found.contributions, weights * (scaled[a] - scaled[b]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("tolerance", "allowed"), [(1e-2, 2.5e-3), (1e-4, 1e-4)])
def test_a_network_beside_a_plain_sum_of_gradients(data, tolerance, allowed, monkeypatch):
    monkeypatch.setattr(network_model, "_TOLERANCE", tolerance)
    ranker = tierank.URank(**NETWORK).fit(data)
    network = ranker.model_.build(ranker.members_[0], "cpu").eval().double()
    own = data.select([5])
    scaled = torch.tensor(ranker.transform_.apply(own.features, own.offsets)).double()
    path = (torch.arange(20_000).double()[:, None] + 0.5) / 20_000 * (scaled[0] - scaled[1]) + scaled[1]
    path.requires_grad_(True)
    (gradients,) = torch.autograd.grad(network(path).sum(), path)
    expected = (gradients.mean(0) * (scaled[0] - scaled[1])).reshape(-1, data.n_features).sum(0)
    found = explain_pair(ranker, data, data.query_ids[5], 1, 2)
    np.testing.assert_allclose(found.contributions, expected.numpy(), atol=allowed * abs(found.difference))


def test_seeds_count_by_the_spread_of_their_scores(data):
    together = tierank.URank(**NETWORK, n_seeds=2).fit(data)
    expected = 0
    for member in range(2):
        alone = tierank.URank(**NETWORK, seed=member).fit(data)
        spread = alone.predict(data.select([4])).std()
        expected = expected + explain_pair(alone, data, data.query_ids[4], 2, 3).contributions / spread / 2
    found = explain_pair(together, data, data.query_ids[4], 2, 3)
    np.testing.assert_allclose(found.contributions, expected, rtol=1e-6, atol=1e-9)


def shapley(tree, row):
    """The Shapley values of one tree, by their definition; a feature that is not known splits by covers."""
    n = len(row)

    def expected(node, known):
        if "leaf_value" in node:
            return node["leaf_value"]
        sides = [node["left_child"], node["right_child"]]
        feature = node["split_feature"]
        if feature in known:
            return expected(sides[0 if row[feature] <= node["threshold"] else 1], known)
        covers = [side.get("internal_count", side.get("leaf_count")) for side in sides]
        return sum(cover * expected(side, known) for cover, side in zip(covers, sides, strict=True)) / sum(covers)

    values = np.zeros(n)
    for j in range(n):
        others = [k for k in range(n) if k != j]
        for size in range(n):
            weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
            for known in itertools.combinations(others, size):
                values[j] += weight * (expected(tree, {*known, j}) - expected(tree, set(known)))
    return values


def test_trees_beside_shapley_values_by_definition():
    data = tierank.make_ranking(40, n_features=4, mean_length=15, max_length=30, seed=1)
    ranker = tierank.LambdaMART(n_trees=3, n_leaves=6, min_documents=5, n_jobs=1).fit(data)
    trees = [tree["tree_structure"] for tree in ranker.booster_.dump_model()["tree_info"]]
    above, below = (data.features[data.offsets[2] + place] for place in (0, 1))
    assert not np.isnan([above, below]).any()
    expected = sum(shapley(tree, above) - shapley(tree, below) for tree in trees)
    found = explain_pair(ranker, data, data.query_ids[2], 1, 2)
    np.testing.assert_allclose(found.contributions, expected, atol=1e-10)


def test_a_feature_that_is_the_same_in_the_query_adds_nothing_to_a_network(data):
    features = np.array(data.features)
    own = slice(data.offsets[6], data.offsets[7])
    features[own, 2] = 5.0
    names = ["a", "b", "same", "d", "e", "f"]
    qid = np.repeat(data.query_ids, data.lengths)
    changed = RankingDataset(features, data.ratings, qid=qid, feature_names=names)
    found = explain_pair(tierank.URank(**NETWORK).fit(changed), changed, data.query_ids[6], 1, 2)
    assert found.features == tuple(names)
    assert found.contributions[2] == 0
    assert 2 not in found.top()


def test_equal_documents_have_nothing_between_them(data):
    features = np.array(data.features)
    features[data.offsets[6] + 1] = features[data.offsets[6]]
    twins = RankingDataset(features, data.ratings, qid=np.repeat(data.query_ids, data.lengths))
    found = explain_pair(tierank.URank(**NETWORK).fit(data), twins, data.query_ids[6], 1, 2)
    assert found.difference == found.rest == 0
    assert not found.contributions.any()
    assert "ties with" in tabulate_explanation(found).notes[0]


def test_documents_go_by_id_or_by_row(data):
    qid = np.repeat(data.query_ids, data.lengths)
    ids = [f"{query}-{row}" for query, n in zip(data.query_ids, data.lengths, strict=True) for row in range(n)]
    ids[0] = "2"  # an id that looks like a row number: as text it is the id
    named = RankingDataset(data.features, data.ratings, qid=qid, document_ids=ids)
    ranker = tierank.UMart(**TREES).fit(named)
    query = named.query_ids[0]
    by_id = explain_pair(ranker, named, str(query), "2", f"{query}-3")
    by_row = explain_pair(ranker, named, query, 1, 4)
    np.testing.assert_array_equal(by_id.contributions, by_row.contributions)
    assert (by_id.above, by_id.below) == (by_row.above, by_row.below) == ("2", f"{query}-3")
    assert explain_pair(ranker, named, query, 2, 1).above == f"{query}-1"


def test_what_cannot_be_explained(data):
    ranker = tierank.UMart(**TREES)
    with pytest.raises(NotFittedError, match="is not fitted; call fit first"):
        explain_pair(ranker, data, data.query_ids[0], 1, 2)
    ranker.fit(data)
    with pytest.raises(DataError, match=r"query: expected an id of the data, such as .*, got 'none'"):
        explain_pair(ranker, data, "none", 1, 2)
    n = data.lengths[0]
    for wrong in (0, n + 1, "x", -1, "1.5"):
        with pytest.raises(DataError, match=rf"expected a document by its number, 1 to {n}, got "):
            explain_pair(ranker, data, data.query_ids[0], 1, wrong)
    with pytest.raises(ParameterError, match=r"query .*: expected two documents, got 1 twice"):
        explain_pair(ranker, data, data.query_ids[0], 1, 1)
    with pytest.raises(ParameterError, match="k: expected an integer >= 1"):
        explain_query(ranker, data, data.query_ids[0], k=0)


def test_linear_leaves_cannot_be_explained(data):
    query = data.query_ids[0]
    for ranker in (
        tierank.UMart(**TREES, linear_tree=True),
        tierank.LambdaMART(**TREES, base=tierank.UMart(**TREES, linear_tree=True)),
    ):
        with pytest.raises(ParameterError, match="linear_tree: expected False, to explain scores, got True"):
            explain_pair(ranker.fit(data), data, query, 1, 2)


def test_one_document_has_nothing_to_stand_above(data):
    lonely = RankingDataset(data.features[:3], [1, 0, 2], qid=[1, 2, 2])
    assert explain_query(tierank.UMart(**TREES).fit(data), lonely, 1) == []


def test_table_and_figure(data, tmp_path):
    ranker = tierank.URank(**NETWORK).fit(data)
    found = explain_pair(ranker, data, data.query_ids[1], 1, 2)
    rows = tabulate_explanation(found, 2).rows
    names = [row[0] for row in rows]
    assert names[:2] == [found.features[j] for j in found.top(2)]
    assert names[2] == f"{len(found.top()) - 2} other features"
    assert names[-1] == "score difference"
    sizes = np.abs(found.contributions[found.top()])
    assert (np.diff(sizes) <= 0).all()
    # What is printed sums to what is printed, but for the rounding of each row.
    assert sum(float(row[1]) for row in rows[:-1]) == pytest.approx(float(rows[-1][1]), abs=1e-4 * len(rows))
    for name, start in (("why.svg", b"<?xml"), ("why.png", b"\x89PNG"), ("why.pdf", b"%PDF")):
        draw_explanation(found, tmp_path / name, 3)
        assert (tmp_path / name).read_bytes().startswith(start)
    with pytest.raises(ParameterError, match=r"expected a name that ends in .png, .svg or .pdf"):
        draw_explanation(found, tmp_path / "why.gif")


def test_command(data, tmp_path, capsys):
    tierank.write(data, tmp_path / "data.txt")
    tierank.UMart(**TREES).fit(data).save(tmp_path / "model")
    query = str(data.query_ids[0])
    given = ["explain", tmp_path / "model", tmp_path / "data.txt", "--query", query, "--above", "1", "--below", "2"]
    given = [str(part) for part in given]
    assert cli.main([*given, "--top", "3", "--out", str(tmp_path / "why.svg")]) == 0
    printed = capsys.readouterr().out
    assert f"Query {query}:" in printed
    assert "score difference" in printed
    assert (tmp_path / "why.svg").exists()
    assert cli.main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    total = sum(row["contribution"] for row in found["contributions"]) + found["rest"]
    assert total == pytest.approx(found["difference"])
    for wrong, message in (
        ([*given[:-1], "9999"], "expected a document by its number, 1 to"),
        ([*given[:4], "nowhere", *given[5:]], "query: expected an id of the data"),
        ([*given, "--top", "0"], "top: expected an integer >= 1"),
    ):
        assert cli.main(wrong) == 2
        assert message in capsys.readouterr().err
