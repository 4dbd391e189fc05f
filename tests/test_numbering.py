"""What processes that hold a part of the data each find together is what one process finds that holds all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples

import tierank
from tests.thread_team import in_threads
from tierank.errors import DataError, ParameterError
from tierank.rankers import blend as blend
from tierank.rankers import order
from tierank.rankers.order import Numbering, canonical_rows, digest_features
from tierank.transforms import TRANSFORMS, Piecewise, SideBySide, Standard

# Few values, among them powers of two and twins, so that queries are alike in all ways in which they can be.
few_values = st.sampled_from([0.0, -0.0, 1.0, 2.0, 4.0, -1.0, np.nan, 3.0])


@st.composite
def data_in_parts(draw, n_features=2, wide=False):
    """Data, and the process that holds each query: every process has at least one."""
    size = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(1, 3), min_size=size, max_size=12))
    n = sum(lengths)
    values = st.floats(-1e3, 1e3, width=32) | st.just(np.nan) if wide else few_values
    features = np.array(draw(st.lists(values, min_size=n * n_features, max_size=n * n_features)), np.float32)
    ratings = np.array(draw(st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=n, max_size=n)))
    queries = np.repeat(np.arange(len(lengths)), lengths)
    weighted = draw(st.booleans())
    weights = {"query_weight": np.array(draw(st.lists(st.sampled_from([1.0, 2.0]), min_size=len(lengths),
                                                      max_size=len(lengths))))} if weighted else {}  # fmt: skip
    data = tierank.RankingDataset(features.reshape(n, n_features), ratings, queries, **weights)
    holders = draw(st.permutations([*range(size), *draw(st.lists(st.integers(0, size - 1), min_size=len(lengths) - size,
                                                                 max_size=len(lengths) - size))]))  # fmt: skip
    return data, np.array(holders), size


def held_rows(data, rows):
    """What some rows hold, as bytes that can be compared; 0.0 and -0.0 are one."""
    return (data.features[rows] + np.float32(0)).tobytes() + (data.ratings[rows] + 0.0).tobytes()


@examples(60)
@given(data_in_parts(), st.booleans(), st.integers(1, 40))
def test_numbers_are_places_in_the_order_of_one_process(drawn, rated, compared):
    data, holders, size = drawn
    whole = canonical_rows(data, 1, rated=rated)
    expected = [held_rows(data, whole.rows[a:b]) for a, b in zip(whole.offsets[:-1], whole.offsets[1:], strict=True)]
    weights = None if data.query_weight is None else data.query_weight[whole.queries]

    def work(team):
        own = data.select(np.flatnonzero(holders == team.rank))
        found = canonical_rows(own, 1, rated=rated)
        numbering = Numbering(own, found, team)
        assert numbering.n_queries == data.n_queries
        for place, query in zip(numbering.places, range(own.n_queries), strict=True):
            rows = found.rows[found.offsets[query] : found.offsets[query + 1]]
            assert held_rows(own, rows) == expected[place]
        of_all = numbering.own()
        np.testing.assert_array_equal(of_all[numbering.places], np.arange(own.n_queries))
        assert (of_all >= 0).sum() == own.n_queries
        if weights is not None:
            np.testing.assert_array_equal(numbering.gather(own.query_weight[found.queries]), weights)
        return numbering.places

    before, order._COMPARED = order._COMPARED, compared
    try:
        places = in_threads(work, size, holds_parts=True)
    finally:
        order._COMPARED = before
    for found in places:
        if isinstance(found, Exception):
            raise found
    assert sorted(np.concatenate(places).tolist()) == list(range(data.n_queries))


@examples(40)
@given(data_in_parts(), st.integers(0, 3))
def test_queries_of_a_blend_take_turns_as_in_one_process(drawn, seed):
    """Twins may change places."""
    data, holders, size = drawn

    def work(team):
        own = data.select(np.flatnonzero(holders == team.rank))
        _, parts = blend.deal(own, None, seed, 1, team)
        return [[held_query(own, query) for query in part] for part in parts]

    expected = [sorted(held_query(data, query) for query in part) for part in blend.deal(data, None, seed, 1)[1]]
    found = in_threads(work, size, holds_parts=True)
    assert [sorted(one for part in parts for one in part) for parts in zip(*found, strict=True)] == expected


def held_query(data, query):
    order = canonical_rows(data.select([query]), 1)
    return held_rows(data.select([query]), order.rows)


def test_every_process_needs_queries_of_all_parts_of_a_blend():
    data = tierank.make_ranking(9, n_features=4, mean_length=9, max_length=30)
    cuts = [np.arange(7), np.array([7]), np.array([8])]

    def work(team):
        return list(blend.take_turns(data.select(cuts[team.rank]), None, True, 0, 1, team))

    for error in in_threads(work, 3, holds_parts=True):
        with pytest.raises(DataError, match="expected queries of all 4 parts of a blend in each of 3 processes"):
            raise error


MADE = TRANSFORMS | {"pieces": Piecewise, "both": lambda: SideBySide([TRANSFORMS["quantile"](), Piecewise()])}


@pytest.mark.parametrize("name", MADE)
@examples(8)
@given(data_in_parts(n_features=3, wide=True))
def test_transforms_of_parts_are_those_of_all_documents(name, drawn):
    data, holders, size = drawn
    expected = MADE[name]().fit(data).state()

    def work(team):
        return MADE[name]().fit_in_team(data.select(np.flatnonzero(holders == team.rank)), team).state()

    for found in in_threads(work, size, holds_parts=True):
        assert found.keys() == expected.keys()
        for array in expected:
            np.testing.assert_array_equal(found[array], expected[array], err_msg=array)


def test_quantiles_of_many_documents_are_those_of_the_same_sample(monkeypatch):
    monkeypatch.setattr("tierank.transforms._SAMPLE", 50)
    data = tierank.make_ranking(30, n_features=4, mean_length=9, max_length=30)
    assert data.n_documents > 200
    expected = TRANSFORMS["quantile"]().fit(data).state()
    for found in in_threads(lambda team: TRANSFORMS["quantile"]().fit_in_team(data, team).state(), 3):
        for array in expected:
            np.testing.assert_array_equal(found[array], expected[array])


class Shifted(Standard):
    """A transform of a caller, who does not say how parts are put together."""

    def learn(self, features):
        super().learn(features)
        self.center_ = self.center_ + 1


def test_transforms_that_only_learn_need_all_documents():
    data = tierank.make_ranking(9, n_features=4, mean_length=9, max_length=30)
    expected = Shifted().fit(data).center_
    for found in in_threads(lambda team: Shifted().fit_in_team(data, team).center_, 2):
        np.testing.assert_array_equal(found, expected)
    for error in in_threads(lambda team: Shifted().fit_in_team(team.part(data), team), 2, holds_parts=True):
        with pytest.raises(ParameterError, match=r"expected transforms that define learn_in_team if .*, got Shifted"):
            raise error
    assert not SideBySide([Standard(), Shifted()]).takes_parts
    assert "parts" not in tierank.URank(feature_transform=Shifted()).capabilities()
    assert "parts" not in tierank.UBoost(base=tierank.URank(feature_transform=Shifted())).capabilities()
    assert "parts" in tierank.URank().capabilities()


def test_the_digest_of_features_does_not_depend_on_how_many_are_read_at_a_time(monkeypatch):
    data = tierank.make_ranking(20, n_features=4, mean_length=9, max_length=30)
    expected = digest_features(data, 1)
    monkeypatch.setattr(order, "_KEPT_BYTES", 100)
    assert digest_features(data, 1) == expected
    monkeypatch.undo()
    rows = canonical_rows(data, 1)
    monkeypatch.setattr(order, "_KEPT_BYTES", 100)
    for found, wanted in zip(canonical_rows(data, 2), rows, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_the_digest_of_features_is_theirs_alone():
    """Processes that were given other positions or propensities are not told that features differ."""
    arrays = {"X": [[1.0], [2.0]], "y": [1, 0], "qid": [0, 0]}
    plain = digest_features(tierank.RankingDataset(**arrays), 1)
    shown = [tierank.RankingDataset(**arrays, position=[1, 2]), tierank.RankingDataset(**arrays, propensity=[1.0, 0.5])]
    assert [digest_features(data, 1) for data in shown] == [plain, plain]
    assert digest_features(tierank.RankingDataset([[1.0], [3.0]], [1, 0], [0, 0]), 1) != plain
