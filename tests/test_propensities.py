"""Propensities and simulated users: the truth is known, and found again."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import tierank
from tierank.clicks import CLICK_MODELS, PROPENSITY_METHODS, ClickLog, estimate_propensities, simulate_clicks


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(60, n_features=4, mean_length=12, max_length=20, seed=1)


@pytest.fixture(scope="module")
def rankers(data):
    rng = np.random.default_rng(0)
    return {name: 0.5 * data.restore(data.ratings) + rng.normal(size=data.n_documents) for name in "abc"}


# Simulated users


@pytest.mark.parametrize("model", sorted(CLICK_MODELS))
def test_simulated_lists_are_the_best_by_score(model, data, rankers):
    log, truth = simulate_clicks(data, rankers["a"], model=model, n_sessions=300, k=4, seed=5)
    rows = log.column("row")
    assert log.n_sessions == 300
    assert truth.name == model
    for s in range(300):
        mine = slice(log.offsets[s], log.offsets[s + 1])
        query = log.queries[s]
        scores = data.arrange(rankers["a"])[data.offsets[query] : data.offsets[query + 1]]
        np.testing.assert_array_equal(rankers["a"][rows[mine]], np.sort(scores)[::-1][:4])
        assert log.positions[mine].tolist() == list(range(1, len(rows[mine]) + 1))
    assert (log.column("rating") == data.restore(data.ratings)[rows]).all()
    again = simulate_clicks(data, rankers["a"], model=model, n_sessions=300, k=4, seed=5).log
    assert (again.clicked == log.clicked).all()


def test_attractiveness_goes_by_rating():
    data = tierank.RankingDataset(np.zeros((3, 1)), [0, 1, 2], qid=[7, 7, 7])
    log, truth = simulate_clicks(data, [3, 2, 1], n_sessions=10, noise=0.1, position_bias=0.5)
    # (2^r - 1) / (2^2 - 1) is 0, 1/3 and 1.
    assert truth.attraction_.tolist() == pytest.approx([0.1, 0.1 + 0.9 / 3, 1.0])
    assert truth.examination_.tolist() == pytest.approx([1, 2**-0.5, 3**-0.5])
    assert log.query_ids.tolist() == [7]


def test_documents_keep_their_ids_and_the_order_of_rows_does_not_matter():
    ids = ["x", "y", "z", "x"]
    data = tierank.RankingDataset(np.zeros((4, 1)), [0, 1, 2, 1], qid=["p", "q", "p", "q"], document_ids=ids)
    log, _ = simulate_clicks(data, [1, 2, 3, 4], n_sessions=50)
    table = log.to_columns()
    for query, document, row in zip(table["query"], table["document"], table["row"], strict=True):
        assert (query, document) == (["p", "q", "p", "q"][row], ids[row])


def test_no_noise_no_relevance_no_clicks():
    data = tierank.RankingDataset(np.zeros((3, 1)), [0, 0, 0], qid=[1, 1, 1])
    assert not simulate_clicks(data, [3, 2, 1], n_sessions=100, noise=0).log.clicked.any()
    assert simulate_clicks(data, [3, 2, 1], n_sessions=100, noise=1, position_bias=0).log.clicked.all()


def test_errors_of_simulations(data):
    scores = np.zeros(data.n_documents)
    with pytest.raises(tierank.DataError, match=r"scores: expected .* numbers, one per row of the data, got shape"):
        simulate_clicks(data, scores[1:])
    with pytest.raises(tierank.DataError, match="NaN among them"):
        simulate_clicks(data, scores * np.nan)
    with pytest.raises(tierank.ParameterError, match="unknown click model 'cascad': did you mean 'cascade'"):
        simulate_clicks(data, scores, model="cascad")
    with pytest.raises(tierank.ParameterError, match="noise: expected a number >= 0 and <= 1, got 2"):
        simulate_clicks(data, scores, noise=2)
    with pytest.raises(tierank.ParameterError, match="at least one ranker, got none"):
        simulate_clicks(data, {})
    with pytest.raises(tierank.DataError, match="no ratings"):
        simulate_clicks(tierank.RankingDataset(np.zeros((2, 1)), qid=[1, 1]), [1, 2])


# Propensities


def truth_of(method, data, rankers, **settings):
    """A log that the method can learn from, and the propensities that its users have."""
    randomize = {"swaps": "swap", "shuffled": "shuffle"}.get(method, "none")
    scores = rankers["a"] if method in ("swaps", "shuffled") else rankers
    log, truth = simulate_clicks(
        data, scores, n_sessions=40_000, k=5, noise=0.3, randomize=randomize, seed=2, **settings
    )
    return log, truth.examination_


@pytest.mark.parametrize("position_bias", [0.0, 1.0])
@pytest.mark.parametrize("method", sorted(PROPENSITY_METHODS))
def test_methods_find_the_truth(method, position_bias, data, rankers):
    log, truth = truth_of(method, data, rankers, position_bias=position_bias)
    levels = np.eye(5)[log.column("rating").astype(int)]
    settings = {"features": levels} if method == "regression" else {}
    n_bootstrap = 0 if method == "regression" else 30
    found = estimate_propensities(log, method, n_bootstrap=n_bootstrap, **settings)
    assert found.values[0] == 1
    np.testing.assert_allclose(found.values, truth, atol=0.06)
    if n_bootstrap and method != "pbm":  # smoothing moves that a little
        assert (found.low[1:] < found.high[1:]).all()
        assert ((found.low - 0.03 <= truth) & (truth <= found.high + 0.03)).all()


def test_worked_by_hand():
    # A swap of 1 and 2 in four sessions: 3 clicks at 1, 1 click at 2.
    log = ClickLog.of(
        session=np.repeat([1, 2, 3, 4], 2), document=[0, 1, 1, 0] * 2, position=[1, 2] * 4,
        clicked=[1, 0, 1, 1, 1, 0, 0, 0], swap=[2] * 8,
    )  # fmt: skip
    assert estimate_propensities(log, "swaps", n_bootstrap=0).values.tolist() == pytest.approx([1, 1 / 3])
    assert estimate_propensities(log, "shuffled", n_bootstrap=0).values.tolist() == pytest.approx([1, 1 / 3])


def test_harvesting_worked_by_hand():
    # Ranker a puts document 0 first, b puts it second: 2 of 4 clicks there, 1 of 4 here. Document 1 is never clicked.
    session = np.repeat(np.arange(8), 2)
    ranker = np.repeat(["a"] * 4 + ["b"] * 4, 2)
    document = [0, 1] * 4 + [1, 0] * 4
    clicked = [1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    log = ClickLog.of(session=session, document=document, position=[1, 2] * 8, clicked=clicked, ranker=ranker)
    assert estimate_propensities(log, "harvest", n_bootstrap=0).values.tolist() == pytest.approx([1, 0.5], abs=1e-3)
    alone = log.select(np.arange(4))
    with pytest.raises(tierank.DataError, match=r"ranker: expected at least two rankers, got \['a'\]"):
        estimate_propensities(alone, "harvest")
    with pytest.raises(tierank.ParameterError, match="n_bootstrap: expected an integer >= 0 and <= 1000000, got 1000"):
        estimate_propensities(log, n_bootstrap=10**15)


def test_rows_without_a_ranker_say_nothing(data, rankers):
    log, _ = truth_of("harvest", data, rankers)
    log = log.select(np.arange(4000))
    names = np.array(log.column("ranker"))
    names[log.session_of_row >= 2000] = None
    found = estimate_propensities(log.with_columns(ranker=names), "harvest", n_bootstrap=0)
    expected = estimate_propensities(log.select(np.arange(2000)), "harvest", n_bootstrap=0)
    np.testing.assert_allclose(found.values, expected.values)


def test_positions_that_nothing_connects_are_unknown():
    """Rankers a and b exchange documents at 1 and 2, and at 3 and 4, but none between these."""
    ranker = np.repeat(["a", "b"] * 10, 4)
    document = [0, 1, 2, 3, 1, 0, 3, 2] * 10
    parts = {"session": np.repeat(np.arange(20), 4), "position": [1, 2, 3, 4] * 20, "clicked": [1, 0, 1, 1] * 20}
    found = estimate_propensities(ClickLog.of(**parts, document=document, ranker=ranker), "harvest", n_bootstrap=0)
    assert np.isnan(found.values).tolist() == [False, False, True, True]
    alike = ClickLog.of(**parts, document=[0, 1, 2, 3] * 20, ranker=ranker)
    found = estimate_propensities(alike, "harvest", n_bootstrap=0)
    assert np.isnan(found.values).tolist() == [False, True, True, True]


class Scaled:
    """Scikit-learn's logistic regression of scaled features."""

    def fit(self, X, y, sample_weight):
        self.center, self.scale = X.mean(axis=0), X.std(axis=0)
        self.model = LogisticRegression(C=1.0, tol=1e-10).fit((X - self.center) / self.scale, y, sample_weight)

    def predict_proba(self, X):
        return self.model.predict_proba((X - self.center) / self.scale)


def test_the_default_regression_is_that_of_scikit_learn(data, rankers):
    log, _ = simulate_clicks(data, rankers, n_sessions=400, k=3, noise=0.3)
    X = np.column_stack([3 * log.column("rating") + 1, np.random.default_rng(0).normal(size=log.n_rows)])
    given = {"features": X, "max_iterations": 200, "tolerance": 1e-9, "n_bootstrap": 0}
    ours, theirs = (estimate_propensities(log, "regression", regressor=one, **given) for one in (None, Scaled()))
    np.testing.assert_allclose(ours.values, theirs.values, atol=1e-5)


def test_regression_takes_the_callers_classifier(data, rankers):
    log, truth = truth_of("regression", data, rankers)
    log = log.select(np.arange(5000))
    found = estimate_propensities(
        log, "regression", features=["rating"], regressor=LogisticRegression(), max_iterations=30, n_bootstrap=0
    )
    np.testing.assert_allclose(found.values, truth, atol=0.12)


def test_the_bootstrap_is_over_sessions_and_repeats(data, rankers):
    log, _ = truth_of("shuffled", data, rankers)
    log = log.select(np.arange(500))
    found = estimate_propensities(log, "shuffled", n_bootstrap=300, seed=4)
    again = estimate_propensities(log, "shuffled", n_bootstrap=300, seed=4)
    assert found.low.tolist() == again.low.tolist()
    # The standard error of a ratio of two rates, by the delta method, over sessions.
    c1, c3 = (log.per_session(log.clicked & (log.positions == k)) for k in (1, 3))
    ratio = c3.mean() / c1.mean()
    error = np.std((c3 - ratio * c1) / c1.mean()) / np.sqrt(500)
    assert found.high[2] - found.low[2] == pytest.approx(2 * 1.96 * error, rel=0.25)


def test_unknown_positions_are_filled_and_the_last_goes_on():
    values = np.array([1.0, np.nan, 0.5])
    found = tierank.clicks.Propensities(values, values, values, 0.95, "pbm")
    assert found.at([1, 2, 3, 9]).tolist() == [1, 0.75, 0.5, 0.5]
    assert found.to_dict()["propensity"] == [1.0, None, 0.5]
    assert "position" in str(found)


def test_a_plot_has_a_line_and_a_band():
    values = np.array([1.0, 0.5, 0.3])
    ax = tierank.clicks.Propensities(values, values - 0.1, values + 0.1, 0.95, "swaps").plot()
    assert ax.lines[0].get_ydata().tolist() == values.tolist()
    assert len(ax.collections) == 1
    assert ax.get_xlabel() == "position"


def test_errors_of_propensities(data, rankers):
    log, _ = truth_of("pbm", data, rankers)
    with pytest.raises(tierank.ParameterError, match="unknown method 'swap': did you mean 'swaps'"):
        estimate_propensities(log, "swap")
    with pytest.raises(tierank.DataError, match="expected the column 'swap' in the log"):
        estimate_propensities(log, "swaps")
    for swap in (0, 9, np.nan):
        with pytest.raises(tierank.DataError, match="swap: expected positions from 1 to 5, in every row, got"):
            estimate_propensities(log.with_columns(swap=np.full(log.n_rows, swap)), "swaps")
    with pytest.raises(tierank.DataError, match="expected clicks at position 1"):
        estimate_propensities(log.with_clicks(np.zeros(log.n_rows)))
    with pytest.raises(tierank.DataError, match="features: expected a matrix of"):
        estimate_propensities(log, "regression", features=np.zeros((3, 1)))
    with pytest.raises(
        tierank.ParameterError, match="features: expected a value, which the method 'regression' needs, got no"
    ):
        estimate_propensities(log, "regression")
    with pytest.raises(tierank.ParameterError, match="unknown setting of shuffled 'column'"):
        estimate_propensities(log, "shuffled", column="x")
    with pytest.raises(tierank.ParameterError, match="unknown setting of pbm 'smooth': did you mean 'smoothing'"):
        estimate_propensities(log, smooth=1)
    single = simulate_clicks(data, rankers["a"], n_sessions=1000).log
    with pytest.warns(UserWarning, match="no document was shown in two positions"):
        estimate_propensities(single, n_bootstrap=0)


def test_positions_are_checked():
    known = tierank.clicks.Propensities(np.array([1, 0.5]), *np.full((2, 2), np.nan), 0.95, "pbm")
    assert known.at([1, 2, 7]).tolist() == [1, 0.5, 0.5]
    assert known.at(2) == 0.5
    with pytest.raises(tierank.DataError, match="positions: expected integers from 1 to 2,000, got 0 at 1"):
        known.at([1, 0])


def test_simulated_users_like_ratings_of_any_height():
    data = tierank.RankingDataset(np.zeros((4, 1)), [2000, 1999, 0, 1], qid=[1, 1, 1, 1])
    _, truth = simulate_clicks(data, [4, 3, 2, 1], n_sessions=50, noise=0)
    assert sorted(truth.attraction_.tolist()) == [0, 0, 0.5, 1]
