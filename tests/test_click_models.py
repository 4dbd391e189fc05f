"""Click models against slow twins from their papers, values worked by hand, and limits."""

import copy
import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import reference_clicks as reference
from hypothesis import given
from hypothesis import strategies as st
from running import examples
from sklearn.exceptions import NotFittedError

import tierank
from tierank.clicks import CLICK_MODELS, AttractionModel, ClickLog, load, make_model, save

EVERY = sorted(CLICK_MODELS)
ATTRACTION = [name for name in EVERY if name != "ctr"]


def make_log(sessions) -> ClickLog:
    """A log of sessions as the slow twins know them."""
    rows = [(s, item, position, clicked) for s, session in enumerate(sessions) for item, position, clicked in session]
    session, document, position, clicked = zip(*rows, strict=True)
    return ClickLog.of(session=session, document=document, position=position, clicked=clicked)


def draw_sessions(seed, n=60, n_items=7, longest=5, click=0.35):
    rng = np.random.default_rng(seed)
    sessions = []
    for _ in range(n):
        items = rng.permutation(n_items)[: rng.integers(1, longest + 1)]
        sessions.append([(int(i), r, int(rng.random() < click / r**0.5)) for r, i in enumerate(items, 1)])
    return sessions


def by_item(model, name):
    return {model.items_.document_ids[d]: v for d, v in zip(model.items_.documents, getattr(model, name), strict=True)}


def assert_same(ours, theirs, tolerance=1e-6):
    assert ours.keys() >= theirs.keys()
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value, abs=tolerance), key


session_lists = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=4), min_size=1, max_size=8
).map(lambda lists: [[(i, r, int(c)) for r, (i, c) in enumerate(one, 1)] for one in lists])


# Fits


@pytest.mark.parametrize("smoothing", [0.0, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_fits_are_those_of_the_slow_twins(seed, smoothing):
    sessions = draw_sessions(seed)
    log = make_log(sessions)
    fitted = {name: make_model(name, smoothing=smoothing).fit(log) for name in EVERY}

    rates = reference.fit_ctr(sessions, smoothing)
    assert_same(dict(enumerate(fitted["ctr"].examination_, 1)), rates)

    a, g, n = reference.fit_products(sessions, reference.pbm_cells, 1, smoothing, 1e-4, 500)
    assert_same(by_item(fitted["pbm"], "attraction_"), a)
    assert_same(dict(enumerate(fitted["pbm"].examination_, 1)), g)
    assert fitted["pbm"].n_iterations_ == n

    a, g, n = reference.fit_products(sessions, reference.ubm_cells, (1, 0), smoothing, 1e-4, 500)
    assert_same(by_item(fitted["ubm"], "attraction_"), a)
    triangle = {(r, p): fitted["ubm"].examination_[r * (r - 1) // 2 + p] for r in range(1, 6) for p in range(r)}
    assert_same(triangle, g)
    assert fitted["ubm"].n_iterations_ == n

    assert_same(by_item(fitted["cascade"], "attraction_"), reference.fit_cascade(sessions, smoothing))
    a, s, on = reference.fit_to_last_click(sessions, smoothing)
    for name in ("dcm", "sdbn"):
        assert_same(by_item(fitted[name], "attraction_"), a)
    assert_same(by_item(fitted["sdbn"], "satisfaction_"), s)
    assert_same(dict(enumerate(fitted["dcm"].continuation_, 1)), on)

    a, s, g, n = reference.fit_dbn(sessions, smoothing, 1e-4, 500)
    assert_same(by_item(fitted["dbn"], "attraction_"), a)
    assert_same(by_item(fitted["dbn"], "satisfaction_"), s)
    assert fitted["dbn"].continuation_[0] == pytest.approx(g, abs=1e-6)
    assert fitted["dbn"].n_iterations_ == n


def test_worked_by_hand():
    # Two sessions of a, b, c: a click on b; clicks on a and c.
    log = make_log([[(0, 1, 0), (1, 2, 1), (2, 3, 0)], [(0, 1, 1), (1, 2, 0), (2, 3, 1)]])
    cascade = make_model("cascade", smoothing=0).fit(log)
    assert cascade.attraction_.tolist() == [1 / 2, 1, 1 / 2]  # c was never reached: the prior, 1 of 2 first documents
    sdbn = make_model("sdbn", smoothing=0).fit(log)
    assert sdbn.attraction_.tolist() == [1 / 2, 1 / 2, 1]
    assert sdbn.satisfaction_.tolist() == [0, 1, 1]
    dcm = make_model("dcm", smoothing=0).fit(log)
    assert dcm.continuation_.tolist() == [1, 0, 0.5]  # a click on the last document says nothing
    ctr = make_model("ctr", smoothing=0).fit(log)
    assert ctr.examination_.tolist() == [0.5, 0.5, 0.5]
    assert ctr.perplexity(log).tolist() == pytest.approx([2, 2, 2])


@pytest.mark.parametrize("name", ["pbm", "ubm", "dbn"])
def test_em_never_lowers_the_likelihood(name):
    log = make_log(draw_sessions(5))
    likelihoods = []
    for n in range(1, 15):
        model = make_model(name, smoothing=0, tolerance=0, max_iterations=n).fit(log)
        assert not model.converged_
        likelihoods.append(model.log_likelihood(log).sum())
    assert (np.diff(likelihoods) > -1e-9).all()


@pytest.mark.filterwarnings("ignore:.*everything was clicked")
@examples(40)
@given(session_lists, st.sampled_from(EVERY))
def test_chances_of_any_log_are_chances(sessions, name):
    log = make_log(sessions)
    model = make_model(name).fit(log)
    for conditional in (False, True):
        chances = model.predict(log, conditional=conditional)
        assert ((chances >= 0) & (chances <= 1 + 1e-12)).all()
    assert np.isfinite(model.log_likelihood(log)).all()
    for parameter in model.parameters:
        values = getattr(model, parameter)
        assert ((values >= 0) & (values <= 1)).all()


@pytest.mark.parametrize("name", EVERY)
def test_weights_are_repeated_sessions(name):
    log = make_log(draw_sessions(2, n=20))
    counts = np.arange(20) % 3
    counts[0] = 1
    weighted = make_model(name).fit(log, session_weight=counts)
    repeated = make_model(name).fit(log.select(np.repeat(np.arange(20), counts)))
    known = np.isin(weighted.items_.documents, repeated.items_.documents)
    for parameter in weighted.parameters:
        ours, theirs = getattr(weighted, parameter), getattr(repeated, parameter)
        ours = ours[known] if len(ours) == len(known) and parameter != "examination_" else ours
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


# Chances


def chance_function(model, session):
    """P(clicks) of a session, from the parameters of a model and its definition."""
    if model.name == "ctr":
        rates = model.examination_
        return lambda clicks: reference.product_chance(
            clicks, [1] * len(session), lambda r, _: rates[session[r][1] - 1]
        )
    attraction = [by_item(model, "attraction_")[item] for item, _, _ in session]
    position = [row[1] for row in session]
    if model.name == "pbm":
        return lambda clicks: reference.product_chance(
            clicks, attraction, lambda r, _: model.examination_[position[r] - 1]
        )
    if model.name == "ubm":

        def examination(rank, previous):
            r = position[rank]
            return model.examination_[r * (r - 1) // 2 + (0 if previous is None else position[previous])]

        return lambda clicks: reference.product_chance(clicks, attraction, examination)
    g = model.continuation_[0] if model.name == "dbn" else 1.0
    if model.name == "cascade":
        after_click = [0.0] * len(session)
    elif model.name == "dcm":
        after_click = [model.continuation_[r - 1] for r in position]
    else:
        after_click = [g * (1 - by_item(model, "satisfaction_")[item]) for item, _, _ in session]
    return lambda clicks: reference.chain_chance(clicks, attraction, after_click, g)


@pytest.mark.parametrize("name", EVERY)
def test_chances_are_sums_over_all_lists_of_clicks(name):
    sessions = draw_sessions(3, n=25)
    log = make_log(sessions)
    model = make_model(name).fit(log)
    full, conditional = model.predict(log), model.predict(log, conditional=True)
    likelihoods = model.log_likelihood(log)
    for s, session in enumerate(sessions):
        rows = slice(log.offsets[s], log.offsets[s + 1])
        chance = chance_function(model, session)
        clicks = [row[2] for row in session]
        np.testing.assert_allclose(full[rows], reference.marginals(len(session), chance), atol=1e-12)
        expected = reference.conditionals(clicks, chance)
        possible = ~np.isnan(expected)
        np.testing.assert_allclose(conditional[rows][possible], np.array(expected)[possible], atol=1e-12)
        if chance(clicks) > 1e-4:
            assert likelihoods[s] == pytest.approx(math.log(chance(clicks)), abs=1e-4)


@pytest.mark.parametrize("name", EVERY)
def test_simulated_clicks_have_the_chances_of_the_model(name):
    model = make_model(name).fit(make_log(draw_sessions(4)))
    lists = make_log([[(i, r, 0) for r, i in enumerate([3, 0, 5, 1], 1)]] * 40_000)
    simulated = model.simulate(lists, seed=1)
    rates = simulated.clicked.reshape(-1, 4).mean(axis=0)
    chances = model.predict(lists)[:4]
    np.testing.assert_allclose(rates, chances, atol=5 * 0.5 / math.sqrt(40_000))
    assert (model.simulate(lists, seed=1).clicked == simulated.clicked).all()
    assert (model.simulate(lists, seed=2).clicked != simulated.clicked).any()


@pytest.mark.parametrize("name", ["pbm", "ubm", "dbn"])
def test_a_fit_finds_the_parameters_that_drew_the_clicks(name):
    rng = np.random.default_rng(0)
    lists = make_log([[(int(i), r, 0) for r, i in enumerate(rng.permutation(6), 1)] for _ in range(20_000)])
    truth = make_model(name).fit(lists)
    truth.attraction_ = np.linspace(0.1, 0.9, 6)
    if name == "dbn":
        truth.satisfaction_, truth.continuation_ = np.linspace(0.8, 0.2, 6), np.array([0.85])
    else:
        truth.examination_ = np.linspace(1, 0.3, len(truth.examination_))
    found = make_model(name, tolerance=1e-6, max_iterations=2000).fit(truth.simulate(lists, seed=3))
    np.testing.assert_allclose(found.attraction_, truth.attraction_, atol=0.03)
    if name == "pbm":
        np.testing.assert_allclose(found.examination_, truth.examination_, atol=0.03)
    if name == "dbn":
        assert found.continuation_[0] == pytest.approx(0.85, abs=0.03)


# Limits


@pytest.mark.parametrize("clicked", [0, 1])
@pytest.mark.parametrize("name", EVERY)
def test_one_session_with_nothing_or_everything_clicked(name, clicked):
    log = make_log([[(0, 1, clicked), (1, 2, clicked)]])
    for smoothing in (0, 1):
        model = make_model(name, smoothing=smoothing).fit(log)
        assert np.isfinite(model.predict(log)).all()
        assert np.isfinite(model.log_likelihood(log)).all()
    if not clicked:
        assert make_model(name, smoothing=0).fit(log).perplexity(log).tolist() == pytest.approx([1, 1], abs=1e-3)


@pytest.mark.parametrize("name", EVERY)
def test_positions_documents_and_queries_that_were_not_seen(name):
    log = make_log([[(0, 1, 1), (1, 2, 0)], [(1, 1, 0), (0, 2, 1)]])
    model = make_model(name).fit(log)
    other = make_log([[(1, 1, 0), (0, 2, 1), (9, 3, 0), (8, 7, 0)]])
    chances = model.predict(other)
    assert np.isfinite(chances).all()
    assert np.isnan(model.perplexity(other)).tolist() == [False] * 3 + [True] * 3 + [False]
    if name != "ctr":
        assert model.items_.find(other).tolist() == [1, 0, -1, -1]


def test_no_position_bias_is_found_where_there_is_none():
    rng = np.random.default_rng(7)
    lists = make_log([[(int(i), r, 0) for r, i in enumerate(rng.permutation(5), 1)] for _ in range(20_000)])
    attraction = np.linspace(0.2, 0.8, 5)
    log = lists.with_clicks(rng.random(lists.n_rows) < attraction[lists.documents])
    found = make_model("pbm").fit(log)
    np.testing.assert_allclose(found.examination_, 1, atol=0.03)
    np.testing.assert_allclose(found.attraction_, attraction[found.items_.documents], atol=0.03)


def test_attractiveness_by_document_is_shared_by_queries():
    log = ClickLog.of(
        session=[1, 1, 2, 2], query=["x", "x", "y", "y"], document=["a", "b", "a", "b"], position=[1, 2, 1, 2],
        clicked=[1, 0, 1, 0],
    )  # fmt: skip
    assert len(make_model("pbm").fit(log).items_) == 4
    assert len(make_model("pbm", by="document").fit(log).items_) == 2


@pytest.mark.parametrize("name", ATTRACTION)
def test_relevance_is_attractiveness_times_satisfaction(name):
    model = make_model(name).fit(make_log(draw_sessions(1)))
    expected = model.attraction_ * getattr(model, "satisfaction_", 1)
    assert model.relevance().tolist() == expected.tolist()


@pytest.mark.parametrize("name", EVERY)
def test_scattered_rows_give_the_same_bits(name):
    table = make_log(draw_sessions(9)).to_columns()
    order = np.random.default_rng(0).permutation(len(table["session"]))
    models = [
        make_model(name).fit(tierank.clicks.read({column: values[rows] for column, values in table.items()}))
        for rows in (slice(None), order)
    ]
    for parameter in models[0].parameters:
        assert getattr(models[0], parameter).tobytes() == getattr(models[1], parameter).tobytes()


# Files and errors


@pytest.mark.parametrize("name", EVERY)
def test_a_saved_model_is_the_same(name, tmp_path):
    log = make_log(draw_sessions(6))
    model = make_model(name).fit(log)
    save(model, tmp_path / "model.json")
    loaded = load(tmp_path / "model.json")
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    assert loaded.predict(log).tolist() == model.predict(log).tolist()


def test_ids_of_several_columns_are_kept(tmp_path):
    log = tierank.clicks.read(
        {"session": [1, 1], "kind": ["web", "image"], "grade": [1, 2], "position": [1, 2], "clicked": [1, 0]},
        document=["kind", "grade"],
    )
    save(make_model("pbm").fit(log), tmp_path / "model.json")
    assert load(tmp_path / "model.json").items_.document_ids.tolist() == [("image", 2), ("web", 1)]


def test_files_that_are_no_click_models(tmp_path):
    file = tmp_path / "model.json"
    save(make_model("pbm").fit(make_log(draw_sessions(0))), file)
    content = json.loads(file.read_text())
    for change in (
        {"format": "another"},
        {"parameters": {"attraction_": [2.0], "examination_": [1.0]}},
        {"documents": [99] * len(content["documents"])},
        {"model": "nothing"},
        {"settings": {"depth": 3}},
    ):
        file.write_text(json.dumps(content | change))
        with pytest.raises(tierank.DataError, match=r"model\.json: expected a click model"):
            load(file)
    with pytest.raises(tierank.DataError, match="expected a click model"):
        load(tmp_path / "missing.json")


def test_errors_say_what_to_do():
    log = make_log(draw_sessions(0, n=3))
    with pytest.raises(tierank.ParameterError, match="unknown click model 'pmb': did you mean 'pbm'"):
        make_model("pmb")
    with pytest.raises(tierank.DataError, match="log: expected a ClickLog, got dict; read it first"):
        make_model("pbm").fit(log.to_columns())
    with pytest.raises(tierank.ParameterError, match="unknown setting of pbm 'smooth'"):
        make_model("pbm", smooth=3)
    with pytest.raises(tierank.ParameterError, match="smoothing: expected a number >= 0, got -1"):
        make_model("pbm", smoothing=-1)
    with pytest.raises(tierank.NotFittedError, match=r"not fitted; call fit\(log\) first"):
        make_model("pbm").predict(log)
    with pytest.raises(
        tierank.DataError, match=r"model: expected a click model with parameters for documents.* got ctr"
    ):
        make_model("ctr").fit(log).relevance()
    with pytest.raises(tierank.DataError, match="session_weight: expected 3 weights, one per session, got shape"):
        make_model("pbm").fit(log, session_weight=[1, 2])


# Models of other people


@dataclass(kw_only=True, eq=False)
class Coin(AttractionModel):
    """Documents are clicked as they are, wherever they stand."""

    name = "coin"
    parameters = ("attraction_",)

    def _fit(self, log, weights):
        items, rows = self.items.find(log), np.repeat(weights, log.lengths)
        shown, clicks = (np.bincount(items, rows * one) for one in (1, log.clicked))
        self.attraction_ = (clicks + self.smoothing * self.prior_) / (shown + self.smoothing)

    def _expected(self, log):
        return self._per_row(log, self.attraction_, self.prior_)


def test_a_model_of_your_own_has_everything():
    log = make_log(draw_sessions(8))
    coin = Coin(smoothing=2).fit(log)
    assert make_model(coin) is coin
    assert Coin.__doc__.endswith("counts for; 0 for none")  # the settings are listed
    assert (coin.perplexity(log) < 2).all()
    assert coin.log_likelihood(log).shape == (log.n_sessions,)
    assert coin.simulate(log, seed=1).clicked.any()
    assert len(tierank.clicks.judgements(log, coin)) == len(coin.items_)
    with pytest.raises(
        tierank.ParameterError, match="smoothing: expected settings only with the name of a click model"
    ):
        make_model(coin, smoothing=3)
    with pytest.raises(tierank.ParameterError, match="smoothing: expected a number >= 0"):
        Coin(smoothing=-1)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("prior", 7),
        ("queries", [0, 0, 1, 10**40]),
        ("by", "document"),
        ("document_ids", [{}, {}, {}]),
        ("document_ids", ["a", "a", "b"]),
        ("parameters", {"attraction_": [0.5] * 4, "examination_": [1.0, 0.5]}),
    ],
)
def test_damaged_files_are_refused(part, value, tmp_path):
    log = ClickLog.of(
        session=[1, 1, 2, 2], query=["q"] * 2 + ["r"] * 2, document=["a", "b", "a", "c"], position=[1, 2] * 2,
        clicked=[0, 1, 1, 1],
    )  # fmt: skip
    path = tmp_path / "model.json"
    save(make_model("ubm").fit(log), path)
    content = json.loads(path.read_text())
    assert len(content["parameters"]["attraction_"]) == 4
    path.write_text(json.dumps(content | {part: value}))
    with pytest.raises(tierank.DataError, match="expected a click model that save wrote"):
        load(path)


@pytest.mark.parametrize("name", CLICK_MODELS)
def test_weights_that_would_overflow_are_refused(name):
    log = ClickLog.of(session=[1, 1, 2], document=["a", "b", "a"], position=[1, 2, 1], clicked=[0, 1, 1])
    with pytest.raises(tierank.DataError, match="session_weight: expected finite weights"):
        make_model(name).fit(log, session_weight=[1e308, 1e308])
    with pytest.raises(tierank.DataError, match="session_weight: expected a weight above 0, got none"):
        make_model(name).fit(log, session_weight=[0, 0])
    assert np.isfinite(make_model(name).fit(log, session_weight=[1e38, 1e38]).predict(log)).all()


@pytest.mark.parametrize("by", ["pair", "document"])
def test_integers_and_their_texts_are_the_same_ids(by):
    parts = {"session": [1, 1, 2, 2], "position": [1, 2, 1, 2], "clicked": [1, 0, 0, 1]}
    numbers = ClickLog.of(**parts, query=[7, 7, 8, 8], document=[3, 4, 4, 3])
    texts = ClickLog.of(**parts, query=["7", "7", "8", "8"], document=["3", "4", "4", "3"])
    for known, asked in ((numbers, texts), (texts, numbers)):
        model = make_model("pbm", by=by).fit(known)
        assert model.predict(asked).tolist() == model.predict(known).tolist()
        assert (model.items.find(asked) >= 0).all()
    others = ClickLog.of(**parts, query=["7", "x", "8", "8"], document=["3", "y", "4", "03"])
    found = make_model("pbm", by=by).fit(numbers).items.find(others)
    assert (found >= 0).tolist() == [True, False, True, False]


@pytest.mark.parametrize("name", EVERY)
def test_what_fit_sets_asks_for_fit(name):
    """Before ``fit``, as in scikit-learn; an attribute that no fit sets is unknown before and after it."""
    model = make_model(name)
    fitted = make_model(name).fit(make_log(draw_sessions(0)))
    assert fitted.is_fitted
    assert not model.is_fitted
    set_by_fit = set(vars(fitted)) - set(vars(model))
    assert {"items_", "prior_", *model.parameters} <= set_by_fit
    for attribute in set_by_fit:
        with pytest.raises(NotFittedError, match=rf"this {name} click model is not fitted; call fit\(log\) first"):
            getattr(model, attribute)
        assert not hasattr(model, attribute)
    for one in (model, fitted):
        with pytest.raises(AttributeError, match="has no attribute 'weights_'"):
            one.weights_
    assert not copy.deepcopy(model).is_fitted
