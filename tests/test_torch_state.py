"""What a program has set in torch changes no model, no score and no explanation."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

import tierank
from tierank import LambdaLoss, NetworkRanker, TreeRanker, UBoost, UMart, URank, UrBoost

torch = pytest.importorskip("torch")
from tierank.losses.torch_state import own_torch, seeded

SMALL = {"max_epochs": 2, "hidden": (6,), "n_jobs": 1}
TREES = {"n_trees": 4, "min_documents": 2, "n_jobs": 1}
RANKERS = {
    "urank": lambda: URank(**SMALL, n_seeds=2),
    "lambdaloss": lambda: LambdaLoss(**SMALL),
    "urboost": lambda: UrBoost(**SMALL, n_learners=2),
    "uboost on trees": lambda: UBoost(**SMALL, n_learners=2, base=UMart(**TREES)),
    "trees by a loss": lambda: TreeRanker("listmle", **TREES),
}


@contextmanager
def _set(setter, value, before):
    setter(value)
    try:
        yield
    finally:
        setter(before)


STATES = {
    "double": lambda: _set(torch.set_default_dtype, torch.float64, torch.float32),
    "half": lambda: _set(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "device": lambda: _set(torch.set_default_device, "meta", None),  # no GPU is needed to see a wrong device
    "products": lambda: _set(torch.set_float32_matmul_precision, "medium", "highest"),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
}


@pytest.fixture(scope="module")
def parts():
    return tierank.make_ranking(24, n_features=5, mean_length=8, max_length=12, seed=1).split(0.6, 0.2, 0.2)


def _contributions(ranker, data):
    pairs = np.array([0, 1]), np.array([2, 3])
    return ranker.model_.contributions(data.select([0]), *pairs, ranker.resources())


@pytest.fixture(scope="module", params=list(RANKERS))
def fitted(request, parts, tmp_path_factory):
    train, valid, _ = parts
    ranker = RANKERS[request.param]().fit(train, valid=valid)
    path = tmp_path_factory.mktemp("model") / "model"
    ranker.save(path)
    return RANKERS[request.param], ranker, path


@pytest.mark.parametrize("state", list(STATES))
def test_what_torch_is_set_to_changes_nothing(state, fitted, parts):
    make, ranker, path = fitted
    train, valid, test = parts
    scores, explained = ranker.predict(test), _contributions(ranker, test)
    assert explained.any()
    with STATES[state]():
        np.testing.assert_array_equal(make().fit(train, valid=valid).predict(test), scores)
        loaded = tierank.load(path).set_params(n_jobs=1)
        np.testing.assert_array_equal(loaded.predict(test), scores)
        np.testing.assert_array_equal(_contributions(loaded, test), explained)
    # What was made inside works outside.
    np.testing.assert_array_equal(loaded.predict(test), scores)
    np.testing.assert_array_equal(_contributions(loaded, test), explained)


@pytest.mark.parametrize("state", list(STATES))
def test_derivatives_are_checked_whatever_torch_is_set_to(state):
    expected = tierank.check_gradient("ranknet")
    with STATES[state]():
        assert tierank.check_gradient("ranknet") == expected


def test_what_the_program_has_set_is_there_again(parts):
    train, _, _ = parts
    with ExitStack() as states:
        for name in ("double", "products", "no_grad"):
            states.enter_context(STATES[name]())
        URank(**SMALL).fit(train)
        assert torch.get_default_dtype() is torch.float64
        assert torch.get_float32_matmul_precision() == "medium"
        assert not torch.is_grad_enabled()


def test_weights_that_were_loaded_for_scoring_can_be_trained(fitted, parts):
    make, ranker, path = fitted
    if not isinstance(ranker, (URank, LambdaLoss)):
        pytest.skip("cannot continue from a model")
    train, _, test = parts
    with torch.inference_mode():
        loaded = tierank.load(path).set_params(n_jobs=1)
        loaded.predict(test)
    later = make().fit(train, start=loaded)
    np.testing.assert_array_equal(later.predict(test), make().fit(train, start=ranker).predict(test))


def test_threads_share_what_applies_to_the_whole_process():
    """A thread that is still inside after another one, which came first, has left."""
    first_left, second_is_in = threading.Event(), threading.Event()

    def stay():
        with own_torch():
            second_is_in.set()
            assert first_left.wait(60)
            return torch.get_default_dtype()

    with STATES["double"](), ThreadPoolExecutor(1) as pool:
        with own_torch():
            seen = pool.submit(stay)
            assert second_is_in.wait(60)
        first_left.set()
        assert seen.result() is torch.float32
        assert torch.get_default_dtype() is torch.float64


# Networks and losses of callers that draw from torch's global generator


class Plain(torch.nn.Module):
    """A network as one writes it for torch alone: it knows no seed."""

    def __init__(self, n_features):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(n_features, 6), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(6, 1)
        )

    def forward(self, features, batch):
        return self.layers(features).squeeze(1)


def shaken(scores, batch):
    """Squares, each at a random place near the score."""
    errors = (scores + 0.1 * torch.rand(len(scores)) - batch.gains) ** 2
    return torch.zeros(batch.n_queries).index_add(0, batch.query, errors)


OWN = {
    "network": lambda **more: URank(network=Plain, max_epochs=3, n_seeds=2, n_jobs=1, **more),
    "loss of a network": lambda **more: NetworkRanker(shaken, **SMALL, **more),
    "loss of trees": lambda **more: TreeRanker(shaken, **TREES, **more),
}


@pytest.mark.parametrize("name", list(OWN))
def test_the_seed_is_that_of_callers_networks_and_losses_too(name, parts):
    train, valid, test = parts
    torch.manual_seed(1)
    first = OWN[name]().fit(train, valid=valid).predict(test)
    state = torch.get_rng_state()
    np.testing.assert_array_equal(OWN[name]().fit(train, valid=valid).predict(test), first)
    assert torch.equal(torch.get_rng_state(), state)  # the program's own random numbers go on as before
    assert not np.array_equal(OWN[name](seed=5).fit(train, valid=valid).predict(test), first)


@pytest.mark.parametrize("name", ["network", "loss of a network"])
def test_training_with_callers_random_numbers_is_resumed_exactly(name, parts, tmp_path, monkeypatch):
    train, valid, test = parts
    monkeypatch.setattr("tierank.rankers.network_training._EVERY", 0.0)  # a checkpoint after each epoch
    whole = OWN[name]().fit(train, valid=valid).predict(test)

    def interrupt(step):
        if step.number == 2:
            raise KeyError("as if killed")

    with pytest.raises(KeyError, match="as if killed"):
        OWN[name]().fit(train, valid=valid, checkpoint=tmp_path / "kept", callbacks=[interrupt])
    torch.manual_seed(99)
    resumed = OWN[name]().fit(train, valid=valid, checkpoint=tmp_path / "kept")
    np.testing.assert_array_equal(resumed.predict(test), whole)


def test_fits_that_overlap_leave_the_generator_where_the_program_had_it():
    """As the members of a blend, which train in threads: the first to end is not the last to have begun."""
    before = torch.get_rng_state()
    with ExitStack() as second:
        with seeded(1):
            second.enter_context(seeded(2))
            torch.rand(3)
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
