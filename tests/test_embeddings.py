"""Networks learn embeddings of categories: by hand, by a twin in NumPy, saved, resumed, exported, explained."""

import numpy as np
import pandas as pd
import pytest
import torch

import tierank
from tierank import (
    Blend,
    Columns,
    LambdaLoss,
    LinearRanker,
    ListNet,
    MDPRank,
    ParameterError,
    UBoost,
    UMart,
    URank,
    UrBoost,
)
from tierank.losses import Batch
from tierank.networks import MLP, NETWORKS, Embedded, embedding_size
from tierank.rankers import network_training as loop

QUICK = {"max_epochs": 2, "hidden": (4,), "n_jobs": 1}
ONE_BY_ONE = {"feature_transform": "standard", "encoding": "none"}
COLUMNS = Columns(categories=["brand", "shop"])


def searches(n_queries=24, length=8, seed=0):
    """Brands decide, shops and a number hardly matter; some levels are missing."""
    rng = np.random.default_rng(seed)
    n = n_queries * length
    brand, shop = rng.integers(0, 6, n), rng.integers(0, 3, n)
    price = rng.normal(size=n)
    worth = np.array([0.0, 3.0, 1.0, 2.0, 0.5, 1.5])[brand] + 0.1 * price
    names = np.array([f"brand {k}" for k in brand], object)
    names[rng.random(n) < 0.05] = None
    return pd.DataFrame(
        {
            "qid": np.repeat(np.arange(n_queries), length),
            "rating": np.digitize(worth, [0.7, 1.7, 2.5]),
            "brand": names,
            "price": np.where(rng.random(n) < 0.1, np.nan, price),
            "shop": [f"shop {k}" for k in shop],
        }
    )


@pytest.fixture(scope="module")
def table():
    return searches()


@pytest.fixture(scope="module")
def data(table):
    return tierank.read(table, columns=COLUMNS)


@pytest.fixture(scope="module")
def ranker(data):
    return URank(**{**QUICK, "max_epochs": 8}).fit(data)


def assert_same(one, other):
    np.testing.assert_array_equal(one, other)


# The layer


def test_a_network_is_given_the_row_of_each_level():
    """A linear network over one number, a category of 3 levels and one of 2; the last rows are for missing levels."""
    sizes = [embedding_size(3), embedding_size(2)]
    network = Embedded(MLP(1 + sum(sizes), hidden=()), [3, 2]).eval()
    w, b = network.network.output.weight.detach()[0], network.network.output.bias.detach()
    first, second = network.embeddings()
    assert first.shape == (4, sizes[0])
    assert second.shape == (3, sizes[1])
    scores = network(torch.tensor([[0.5, 2.0, 0.0], [0.25, 3.0, 2.0]]))
    by_hand = [0.5 * w[0] + w[1 : 1 + sizes[0]] @ first[2] + w[1 + sizes[0] :] @ second[0] + b]
    by_hand += [0.25 * w[0] + w[1 : 1 + sizes[0]] @ first[3] + w[1 + sizes[0] :] @ second[2] + b]
    assert torch.allclose(scores, torch.cat(by_hand), atol=1e-6)


def test_gradients_are_those_of_finite_differences():
    """Of a sum of squares by every table and weight, in double precision; a row that no document has stays."""
    network = Embedded(MLP(1 + 2 * embedding_size(3), hidden=(3,), activation="tanh"), [3, 3]).double().eval()
    features = torch.tensor([[0.5, 2.0, 0.0], [0.25, 3.0, 2.0], [-1.0, 2.0, 3.0]], dtype=torch.float64)
    names = [name for name, _ in network.named_parameters()]

    def loss(*values):
        return torch.func.functional_call(network, dict(zip(names, values, strict=True)), (features,)).square().sum()

    parameters = [one.detach().clone().requires_grad_(True) for one in network.parameters()]
    assert torch.autograd.gradcheck(loss, parameters, eps=1e-6, atol=1e-5)
    gradient = torch.autograd.grad(loss(*parameters), parameters)[names.index("tables.0")]
    assert not gradient[:2].any()
    assert gradient[2:].any()


def test_some_levels_are_taken_for_missing_in_training_and_the_generator_says_which():
    network = Embedded(MLP(embedding_size(2), hidden=()), [2]).train()
    features = torch.zeros(20_000, 1)

    def embedded(seed):
        return network.embed(features, Batch([0, 20_000], generator=torch.Generator().manual_seed(seed)))

    rows, levels = embedded(1).detach(), network.embeddings()[0]
    is_dropped = (rows == levels[2]).all(dim=1)
    assert ((rows == levels[0]).all(dim=1) | is_dropped).all()
    assert float(is_dropped.float().mean()) == pytest.approx(0.05, abs=5 * (0.05 * 0.95 / 20_000) ** 0.5)
    assert torch.equal(embedded(1), rows)
    assert not torch.equal(embedded(2), rows)
    with pytest.raises(ParameterError, match="this network draws at random in training"):
        network.embed(features)
    assert torch.equal(network.eval().embed(features), levels[0].expand(20_000, -1))


def test_tables_are_not_drawn_from_the_numbers_of_the_network():
    """One stream for both would make the first layer a copy of the tables."""
    drawn = torch.empty(3, embedding_size(2)).normal_(std=1e-3, generator=torch.Generator().manual_seed(5))
    table = Embedded(MLP(embedding_size(2), hidden=(), seed=5), [2], seed=5).tables[0]
    assert not torch.equal(table.detach(), drawn)


# Rankers


def test_scores_are_those_of_the_layers_written_out(data):
    """A twin in NumPy: scaled numbers and the rows of levels through the layers, from the weights that are saved."""
    ranker = URank(**QUICK, **ONE_BY_ONE, activation="tanh").fit(data)
    own = ranker.match_features(data)
    weights = {name: tensor.double().numpy() for name, tensor in ranker.members_[0].items()}
    price = own.features[:, own.feature_names.index("price")].astype(np.float64)
    known = price[~np.isnan(price)]
    x = [np.where(np.isnan(price), 0.0, (price - known.mean()) / known.std())[:, None]]
    for k, name in enumerate(("brand", "shop")):
        codes, table = own.features[:, own.feature_names.index(name)], 100 * weights[f"tables.{k}"]
        x.append(table[np.where(np.isnan(codes), len(table) - 1, codes).astype(int)])
    first, out = "network.body.layers.0", "network.output"
    hidden = np.tanh(np.concatenate(x, axis=1) @ weights[f"{first}.weight"].T + weights[f"{first}.bias"])
    expected = (hidden @ weights[f"{out}.weight"].T + weights[f"{out}.bias"])[:, 0]
    np.testing.assert_allclose(data.arrange(ranker.predict(data)), expected, rtol=1e-4, atol=1e-5)


def test_a_category_alone_is_learned():
    """No feature is a number. The order of brands is all there is to learn, and a blend has no linear member."""
    frame = searches(n_queries=60)[["qid", "rating", "brand"]].dropna()
    found = URank(max_epochs=20, n_jobs=1).fit(tierank.read(frame, columns=Columns(categories=["brand"])))
    scores = dict(zip(frame["brand"], found.predict(frame[["brand"]], qid=frame["qid"]), strict=True))
    order = sorted(scores, key=scores.get, reverse=True)
    assert order[:2] == ["brand 1", "brand 3"]
    assert set(order[-2:]) == {"brand 0", "brand 4"}
    few = tierank.read(frame.head(60), columns=Columns(categories=["brand"]))
    blend = Blend(n_trees=2, max_epochs=1, rotate=False, weights="equal").fit(few)
    assert {member.family for member in blend.members_} == {"trees", "plain trees", "networks"}


def test_unknown_and_missing_levels_share_a_row(table, ranker):
    rows = table.drop(columns=["qid", "rating"]).head(8)
    qid = np.zeros(8)
    gone = ranker.predict(rows.assign(brand=None), qid=qid)
    assert_same(ranker.predict(rows.assign(brand="nobody"), qid=qid), gone)
    assert not np.array_equal(ranker.predict(rows.assign(brand="brand 1"), qid=qid), gone)


@pytest.mark.parametrize(
    "kind",
    [
        *(URank(network=name, **{**QUICK, "hidden": (100, 50)}) for name in NETWORKS if name != "tier_rnn"),
        ListNet(n_seeds=2, **QUICK),
        LambdaLoss(**QUICK),
        MDPRank(**{**QUICK, "max_epochs": 1}),
        UBoost(n_learners=2, **QUICK),
        UBoost(n_learners=2, base=UMart(n_trees=2, min_documents=3), **QUICK),
        UrBoost(n_learners=2, **QUICK),
        UMart(n_trees=2, min_documents=3, base=URank(**QUICK)),
        Blend(n_trees=3, max_epochs=1, rotate=False, weights="equal"),
    ],
    ids=lambda kind: f"{type(kind).__name__}-{getattr(kind, 'network', '')}-{getattr(kind, 'base', None) is not None}",
)
def test_every_ranker_embeds_and_is_the_same_after_a_file(data, kind, tmp_path):
    fitted = kind.fit(data)
    assert fitted.seen_.feature_names == ("brand", "price", "shop")
    fitted.save(tmp_path / "model")
    assert any(b"tables.1" in file.read_bytes() for file in (tmp_path / "model").glob("*weights.safetensors"))
    scores = fitted.predict(data)
    assert_same(tierank.load(tmp_path / "model").predict(data), scores)


def test_rows_in_any_order_and_any_number_of_threads_give_the_same_bits(table, ranker):
    table = table.assign(place=np.arange(len(table)))
    mixed = table.sample(frac=1, random_state=3)
    settings = {**QUICK, "max_epochs": 8}
    for n_jobs in (1, 2):
        again = URank(**{**settings, "n_jobs": n_jobs}).fit(tierank.read(mixed, ignore=["place"], columns=COLUMNS))
        for name, tensor in ranker.members_[0].items():
            assert torch.equal(tensor, again.members_[0][name]), name


def test_training_that_was_interrupted_goes_on_to_the_same_bits(data, ranker, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_EVERY", -1.0)

    def interrupt(step):
        if step.number == 4:
            raise KeyboardInterrupt("in epoch 4")

    settings = {**QUICK, "max_epochs": 8}
    with pytest.raises(KeyboardInterrupt, match="in epoch 4"):
        URank(**settings).fit(data, checkpoint=tmp_path / "kept", callbacks=[interrupt])
    later = URank(**settings).fit(data, checkpoint=tmp_path / "kept")
    for name, tensor in ranker.members_[0].items():
        assert torch.equal(tensor, later.members_[0][name]), name


def test_training_goes_on_from_a_model_with_its_levels(data, ranker):
    later = URank(**QUICK).fit(data.select(np.arange(3)), start=ranker)
    assert later.seen_.columns == ranker.seen_.columns
    with pytest.raises(ParameterError, match="start: expected a model with category_encoding='indicators'"):
        URank(category_encoding="indicators", **QUICK).fit(data, start=ranker)


def test_a_feature_for_each_level_can_be_asked_for(data):
    fitted = URank(category_encoding="indicators", **QUICK).fit(data)
    assert fitted.seen_.feature_names[:2] == ("brand=brand 0", "brand=brand 1")
    assert not any("tables" in name for name in fitted.members_[0])
    boosted = UBoost(n_learners=2, base=LinearRanker(), **QUICK).fit(data)  # a base that knows numbers alone
    assert boosted.seen_.feature_names[:1] == ("brand=brand 0",)


def test_a_linear_ranker_in_a_blend_leaves_categories_out(data):
    blend = Blend(n_trees=3, max_epochs=1, rotate=False, weights="equal").fit(data)
    (linear,) = (member.model for member in blend.members_ if member.family == "linear")
    names = blend.seen_.feature_names
    assert not linear.coef[:, [names.index("brand"), names.index("shop")]].any()
    assert linear.coef[:, names.index("price")].any()
    alone = Blend(n_configs=0, n_seeds=0).fit(data)  # nobody else would learn from them
    assert alone.seen_.feature_names[0] == "brand=brand 0"


# Exports and explanations


@pytest.mark.parametrize("target", ["c", "onnx"])
@pytest.mark.parametrize(
    "kind",
    [
        URank(**QUICK),
        URank(**QUICK, feature_transform=("query_rank", "quantile"), n_seeds=2),
        URank(**{**QUICK, "hidden": ()}, feature_transform="none", encoding="none"),
        UrBoost(n_learners=2, **QUICK),
        Blend(n_trees=3, max_epochs=1, rotate=False, weights="equal"),
    ],
    ids=["default", "ranks", "linear", "recurrent", "blend"],
)
def test_exports_score_as_the_model_does(data, kind, target, tmp_path):
    fitted = kind.fit(data)
    fitted.export(tmp_path / "model", to=target)
    proof = tierank.verify(fitted, tmp_path / "model", target, data)
    assert proof.holds, str(proof)


def test_levels_are_among_the_rows_of_a_proof(data, ranker):
    """All numbers of levels, some beyond, and the numbers beside them."""
    own = ranker.match_features(data)
    rows = tierank.export.proof.generate_rows(ranker.to_neutral(), own, bounded=True).features
    for name, n_levels in (("brand", 6), ("shop", 3)):
        values = rows[:, own.feature_names.index(name)]
        assert set(range(-2, n_levels + 2)) <= set(values[np.isfinite(values)].tolist())
        assert np.nextafter(np.float32(1), np.float32(0)) in values


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("elasticsearch", "it can hold only trees, and this model has networks"),
        ("opensearch", "it can hold only trees, and this model has networks"),
        ("solr", "it compares numbers, and this network has embeddings of categories"),
    ],
)
def test_targets_without_tables_refuse(data, target, reason, tmp_path):
    fitted = URank(**QUICK, **ONE_BY_ONE).fit(data)
    with pytest.raises(ParameterError, match=f"{target}: {reason}"):
        fitted.export(tmp_path / "model", to=target)
    with pytest.raises(ParameterError, match=f"{target}: {reason}"):
        URank(**QUICK, **ONE_BY_ONE, for_target=target).fit(data)


def test_vespa_holds_them_as_onnx(data, tmp_path):
    fitted = URank(**QUICK, **ONE_BY_ONE, for_target="vespa").fit(data)
    fitted.export(tmp_path / "model", to="vespa")
    proof = tierank.verify(fitted, tmp_path / "model", "vespa", data)
    assert proof.holds, str(proof)


@pytest.mark.parametrize(
    "kind", [URank(**QUICK, n_seeds=2), UBoost(n_learners=3, **QUICK), UrBoost(n_learners=2, **QUICK)]
)
def test_contributions_sum_to_the_difference_of_the_scores(data, kind):
    fitted = kind.fit(data)
    own = fitted.match_features(data).select([0])
    found = fitted.model_.member_contributions(own, np.array([0, 1]), np.array([2, 3]), fitted.resources())
    for member, scores in zip(found, fitted.model_.member_scores(own, fitted.resources()), strict=True):
        assert member.shape == (2, 3)
        np.testing.assert_allclose(member.sum(axis=1), scores[[0, 1]] - scores[[2, 3]], rtol=0.02, atol=1e-4)
