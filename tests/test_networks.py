"""Networks: against loops written from the formulas, and what all of them promise."""

import copy
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch

from tierank.errors import ParameterError
from tierank.losses import LOSSES, Batch, stepwise_urank
from tierank.networks import ACTIVATIONS, MLP, NETWORKS, Attention, Groupwise, TierRNN, drop

N_FEATURES = 5
names = pytest.mark.parametrize("name", sorted(NETWORKS))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def draw(lengths, seed=0):
    """Features in double precision, and offsets, of queries of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return torch.randn(int(offsets[-1]), N_FEATURES, generator=generator, dtype=torch.float64), offsets


def build(name, **settings):
    return NETWORKS[name](N_FEATURES, **settings).double().eval()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# All networks


@names
def test_a_score_for_each_document_without_ratings(name):
    features, offsets = draw([3, 1, 7, 3])
    scores = build(name)(features, Batch(offsets))
    assert scores.shape == (14,)
    assert torch.isfinite(scores).all()


@names
def test_seed_alone_makes_the_weights(name):
    state = torch.get_rng_state()
    first, again, other = (NETWORKS[name](N_FEATURES, seed=seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@names
def test_other_queries_and_their_order_change_nothing(name):
    lengths = [4, 1, 9, 2, 4]
    features, offsets = draw(lengths)
    network = build(name)
    scores = network(features, Batch(offsets)).detach()
    for q, (a, b) in enumerate(pairwise(offsets)):
        torch.testing.assert_close(network(features[a:b], Batch([0, lengths[q]])), scores[a:b])
    order = [2, 4, 0, 3, 1]
    rows = np.concatenate([np.arange(offsets[q], offsets[q + 1]) for q in order])
    moved = np.concatenate([[0], np.cumsum([lengths[q] for q in order])])
    torch.testing.assert_close(network(features[rows], Batch(moved)), scores[rows])


@names
def test_order_of_documents_changes_nothing(name):
    features, offsets = draw([12])
    network = build(name)
    moved = torch.randperm(12, generator=generator())
    torch.testing.assert_close(network(features[moved], Batch(offsets)), network(features, Batch(offsets))[moved])


@names
def test_gradient(name):
    features, offsets = draw([3, 1, 2, 3])
    network, batch = build(name, activation="tanh"), Batch(offsets)
    assert torch.autograd.gradcheck(lambda x: network(x, batch), features.requires_grad_())
    network(features, batch).square().sum().backward()
    untouched = {key for key, parameter in network.named_parameters() if parameter.grad is None}
    assert untouched == ({"from_state.weight"} if name == "tier_rnn" else set())  # prediction takes the first step


@names
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations(name, activation):
    features, offsets = draw([3, 4])
    assert torch.isfinite(build(name, activation=activation)(features, Batch(offsets))).all()


@names
def test_dropout_comes_from_the_generator_of_the_batch(name):
    features, offsets = draw([6, 3])
    network = build(name, dropout=0.4, seed=1)
    plain = network(features, Batch(offsets))
    torch.testing.assert_close(plain, build(name, seed=1)(features, Batch(offsets)))  # none in prediction
    network.train()
    state = torch.get_rng_state()
    first, again, other = (network(features, Batch(offsets, generator=generator(s))) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    with pytest.raises(ParameterError, match=r"pass Batch\(..., generator=torch.Generator\(\)\)"):
        network(features, Batch(offsets))


def test_dropout_keeps_the_mean():
    network = MLP(N_FEATURES, (2000,), dropout=0.5).double()
    features, offsets = draw([1])
    batch = Batch(offsets, generator=generator())
    drawn = torch.stack([network(features, batch) for _ in range(300)]).detach()
    expected = network.eval()(features)
    assert abs(drawn.mean() - expected).item() < 4 * drawn.std().item() / 300**0.5


@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.3, 0.5, 0.99])
def test_dropout_sets_values_to_0_at_its_rate_and_independently(rate):
    values = torch.ones(400, 500)
    first, second = (drop(values, rate, Batch([0, 400], generator=generator(seed))) for seed in (1, 2))
    assert set(first.unique().tolist()) == {0.0, float(np.float32(1 / (1 - rate)))}
    dropped = torch.stack([first == 0, second == 0, (first == 0).roll(1, dims=1), (first == 0).roll(1, dims=0)])
    deviation = (rate * (1 - rate) / values.numel()) ** 0.5
    assert abs(dropped[0].float().mean().item() - rate) < 4 * deviation
    for other in dropped[1:]:  # two masks, and neighbours in one
        both = (dropped[0] & other).float().mean().item()
        assert abs(both - rate**2) < 5 * (rate**2 * (1 - rate**2) / values.numel()) ** 0.5
    assert drop(values, 0.0, None) is values


@names
def test_learns_an_order(name):
    features, offsets = draw([15] * 20, seed=4)
    ratings = np.digitize(features[:, 0].numpy(), [-0.5, 0.5, 1.5])
    network = NETWORKS[name](N_FEATURES, seed=1)
    batch = Batch(offsets, ratings, generator=generator())
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    values = []
    for _ in range(40):
        optimiser.zero_grad()
        if name == "tier_rnn":
            value = stepwise_urank(network.step_scores(features.float(), batch), batch).mean()
        else:
            value = LOSSES["urank"](network(features.float(), batch), batch).mean()
        value.backward()
        optimiser.step()
        values.append(value.item())
    assert values[-1] < 0.5 * values[0]


@names
def test_copies_score_the_same(name):
    features, offsets = draw([3, 4])
    network = build(name, seed=2)
    expected = network(features, Batch(offsets))
    assert torch.equal(copy.deepcopy(network)(features, Batch(offsets)), expected)
    fresh = build(name, seed=9)
    fresh.load_state_dict(network.state_dict())
    assert torch.equal(fresh(features, Batch(offsets)), expected)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mlp", {"activation": "rellu"}, "unknown activation 'rellu': did you mean 'relu'"),
        ("mlp", {"output_activation": "no"}, "unknown output_activation 'no'"),
        ("mlp", {"hidden": (10, 0)}, "hidden: expected an integer >= 1.*, got 0"),
        ("mlp", {"dropout": 1.0}, "dropout: expected a number >= 0 and <= 0.99, got 1.0"),
        ("tier_rnn", {"pooling": "min"}, "unknown pooling 'min'"),
        ("tier_rnn", {"score_from": "features"}, "unknown score_from 'features'"),
        ("groupwise", {"group_size": 0}, "group_size: expected an integer >= 1.*, got 0"),
        ("attention", {"width": 9, "n_heads": 2}, "width: expected a multiple of n_heads=2, got 9"),
    ],
)
def test_bad_settings(name, settings, message):
    with pytest.raises(ParameterError, match=message):
        NETWORKS[name](N_FEATURES, **settings)


# MLP


@pytest.mark.parametrize("hidden", [(), (4,), (100, 50), (3, 4, 5)])
def test_mlp_is_its_formula(hidden):
    features, offsets = draw([4])
    network = build("mlp", hidden=hidden, activation="elu", output_activation="tanh")
    x = features.numpy()
    for layer in network.body.layers:
        x = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        x = np.where(x > 0, x, np.expm1(x))
    expected = np.tanh(x @ network.output.weight.detach().numpy()[0] + network.output.bias.item())
    np.testing.assert_allclose(network(features, Batch(offsets)).detach(), expected, rtol=1e-12)
    assert [layer.weight.shape[0] for layer in network.body.layers] == list(hidden)


# TierRNN

RATINGS = [[3], [1, 1, 1], [0, 2, 0], [0, 2, 0, 2, 1], [4, 0, 3, 1, 2, 4, 4, 0], [1, 0], [5, 4, 3, 2, 0]]


def rnn_by_hand(network, features, ratings, pooling, score_from):
    """Scores of each step of one query, NaN for documents that take no part, and the states; from the formulas."""
    weights = network.from_state.weight, network.from_document.weight, network.from_document.bias
    W, U, b = (parameter.detach().numpy() for parameter in weights)
    w_h = network.state_weights.detach().numpy()
    x = network.body(features).detach().numpy()
    h = np.zeros(len(w_h))
    scores, states = [], []
    for level in sorted(set(ratings), reverse=True)[:-1]:
        f, chosen = np.full(len(ratings), np.nan), []
        for d, rating in enumerate(ratings):
            if rating > level:
                continue
            h_d = np.tanh(W @ h + U @ x[d] + b)
            f[d] = h_d @ w_h
            if score_from == "both":
                f[d] += x[d] @ network.document_weights.detach().numpy()
            if rating == level:
                chosen.append(h_d)
        h = np.max(chosen, 0) if pooling == "max" else np.mean(chosen, 0)
        scores.append(f)
        states.append(h)
    return scores, states


@pytest.mark.parametrize("score_from", ["both", "state"])
@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_rnn_steps_equal_a_loop_over_queries(pooling, score_from):
    features, offsets = draw([len(r) for r in RATINGS])
    network = build("tier_rnn", hidden=(6, 4), pooling=pooling, score_from=score_from)
    batch = Batch(offsets, np.concatenate(RATINGS), dtype=torch.float64)
    states = []
    pool = network._pool
    network._pool = lambda *arguments: states.append(pool(*arguments)) or states[-1]
    step_scores = network.step_scores(features, batch)
    assert len(step_scores) == len(batch.steps) == 4
    seen = 0
    for q, (a, b) in enumerate(pairwise(offsets)):
        expected, expected_states = rnn_by_hand(network, features[a:b], RATINGS[q], pooling, score_from)
        for t, scores in enumerate(expected):
            got = np.full(offsets[-1], np.nan)
            got[batch.steps[t].rows] = step_scores[t].detach()
            np.testing.assert_allclose(got[a:b], scores, rtol=1e-12)
            seen += np.isfinite(scores).sum()
            if t < len(states):
                np.testing.assert_allclose(states[t][q].detach(), expected_states[t], rtol=1e-12)
    assert seen == sum(map(len, step_scores))
    assert len(states) == 3  # none after the last step


def test_rnn_predicts_by_its_first_step():
    features, offsets = draw([4, 6])
    network = build("tier_rnn")
    batch = Batch(offsets, [0, 1, 0, 2, 3, 0, 1, 2, 1, 0])
    torch.testing.assert_close(network(features, Batch(offsets)), network.step_scores(features, batch)[0])


def test_rnn_without_steps():
    features, offsets = draw([2, 3])
    batch = Batch(offsets, [1, 1, 0, 0, 0])
    assert build("tier_rnn").step_scores(features, batch) == []
    assert stepwise_urank([], batch).tolist() == [0, 0]


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_rnn_gradient_through_all_steps(pooling):
    features, offsets = draw([len(r) for r in RATINGS])
    network = build("tier_rnn", hidden=(4,), activation="tanh", pooling=pooling)
    batch = Batch(offsets, np.concatenate(RATINGS), dtype=torch.float64)
    parameters = dict(network.named_parameters())

    def loss(x, *values):
        given = dict(zip(parameters, values, strict=True))
        stepped = torch.func.functional_call(_Steps(network), {f"network.{k}": v for k, v in given.items()}, (x, batch))
        return stepwise_urank(stepped, batch)

    assert torch.autograd.gradcheck(loss, (features.requires_grad_(), *parameters.values()))


class _Steps(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, features, batch):
        return self.network.step_scores(features, batch)


# Groupwise


@pytest.mark.parametrize("group_size", [1, 2, 3, 5])
def test_groups_equal_a_loop(group_size):
    lengths = [1, 2, 7, 4]
    features, offsets = draw(lengths)
    network = build("groupwise", group_size=group_size, hidden=(6,))
    expected = torch.zeros(len(features), dtype=torch.float64)
    for a, b in pairwise(offsets):
        keys = features[a:b] @ network.projection
        circle = (a + keys.argsort(descending=True)).tolist()
        for first in range(len(circle)):
            members = [circle[(first + k) % len(circle)] for k in range(group_size)]
            outputs = network.output(network.body(torch.cat([features[d] for d in members])[None]))[0]
            for d, output in zip(members, outputs, strict=True):
                expected[d] += output.item() / group_size
    torch.testing.assert_close(network(features, Batch(offsets)).detach(), expected)


def test_groups_are_drawn_in_training():
    features, offsets = draw([9, 4])
    network = Groupwise(N_FEATURES).double()
    first, again, other = (network(features, Batch(offsets, generator=generator(s))) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    with pytest.raises(ParameterError, match="this network draws at random in training"):
        network(features, Batch(offsets))


# Attention


def test_attention_equals_a_loop():
    lengths = [1, 4, 2, 4, 7]
    features, offsets = draw(lengths)
    network = build("attention", width=6, n_heads=2, n_blocks=2)
    expected = []
    for a, b in pairwise(offsets):
        z = network.body(features[a:b])
        for block in network.blocks:
            q, k, v = block.inward(block.before_attention(z)).split(6, 1)
            heads = []
            for part in (slice(0, 3), slice(3, 6)):
                share = torch.softmax(q[:, part] @ k[:, part].T / 3**0.5, 1)
                heads.append(share @ v[:, part])
            z = z + block.outward(torch.cat(heads, 1))
            z = z + block.narrow(torch.relu(block.layers.layers[0](block.before_layers(z))))
        expected.append(network.output(network.norm(z))[:, 0])
    torch.testing.assert_close(network(features, Batch(offsets)), torch.cat(expected))


def test_attention_over_a_long_list_makes_no_matrix():
    # 20,000 documents: one matrix of weights would have 1.6 GB.
    if sys.platform != "linux":
        pytest.skip("measures memory as Linux counts it")
    code = """
import resource, torch
from tierank.losses import Batch
from tierank.networks import Attention
torch.set_num_threads(1)
network = Attention(3, width=8, n_heads=1, n_blocks=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
network(torch.randn(20_000, 3), Batch([0, 20_000])).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300 * 1024


def test_scores_depend_on_the_list_where_they_should():
    features, offsets = draw([5])
    changed = features.clone()
    changed[4] += 1
    for network, depends in [
        (build("mlp"), False),
        (build("tier_rnn"), False),
        (build("groupwise", group_size=5), True),
        (build("attention"), True),
    ]:
        before, after = (network(x, Batch(offsets))[:4] for x in (features, changed))
        assert torch.allclose(before, after) != depends


def test_the_table_has_them_all():
    assert set(NETWORKS.values()) == {MLP, TierRNN, Groupwise, Attention}
