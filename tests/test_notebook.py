"""What notebooks show: HTML forms that cannot be broken into, pandas tables, plots and live progress."""

import dataclasses
import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

import tierank
from tierank import display as notebook
from tierank.display import Progress, in_notebook
from tierank.errors import DataError, ParameterError
from tierank.extras import MissingExtraError
from tierank.metrics.description import _LABELS, _PER_RATING
from tierank.report import figures

mpl.use("Agg")
EVIL = "<script>alert('&')</script>"


@pytest.fixture(scope="module")
def shop():
    data = tierank.make_ranking(40, n_features=4, mean_length=8, max_length=12)
    names = ("price", "age", EVIL, "stars")
    data = data.replace(feature_names=names)
    train, valid = data.split(0.7, 0.3)
    ranker = tierank.LambdaMART(n_trees=6).fit(train, valid=valid)
    linear = tierank.LinearRanker().fit(train)
    scores = {"old": linear.predict(valid), EVIL: ranker.predict(valid)}
    return SimpleNamespace(
        data=data,
        train=train,
        valid=valid,
        ranker=ranker,
        linear=linear,
        evaluation=tierank.evaluate(valid, scores["old"], ["ndcg@10", "mrr"], by=np.arange(valid.n_queries) % 2),
        comparison=tierank.compare(valid, scores, metrics=["ndcg@10"], by={EVIL: np.arange(valid.n_queries) % 2}),
    )


@pytest.fixture(scope="module")
def shown(shop, tmp_path_factory):
    data = shop.data
    run = tierank.cross_validate(
        {"a": tierank.LambdaMART(n_trees=2), EVIL: tierank.LinearRanker()},
        data,
        out=tmp_path_factory.mktemp("runs") / "run",
        n_jobs=1,
    )
    query = shop.valid.query_ids[0]
    return {
        "data": data,
        "description": tierank.describe(data),
        "profile": tierank.profile(data, shop.valid),
        "evaluation": shop.evaluation,
        "comparison": shop.comparison,
        "explanation": tierank.explain_pair(shop.ranker, shop.valid, query, 1, 2),
        "run": run,
        "ranked": shop.ranker.rank(shop.valid, k=2),
        "trees": shop.ranker,
        "linear": shop.linear,
        "unfitted": tierank.UMart(n_trees=7),
    }


class Balance(HTMLParser):
    """Finds elements that are not closed, and scripts."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attrs):
        assert tag != "script"
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """Nothing to close."""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


NAMES = ["data", "description", "profile", "evaluation", "comparison", "explanation", "run", "ranked", "trees"]


@pytest.mark.parametrize("name", [*NAMES, "linear", "unfitted"])
def test_every_form_is_whole_and_escaped(shown, name):
    form = shown[name]._repr_html_()
    assert EVIL not in form
    reader = Balance()
    reader.feed(form)
    assert reader.open == []
    assert len("".join(reader.text)) > 40


@pytest.mark.parametrize("name", NAMES)
def test_every_form_has_a_text_that_can_be_read(shown, name):
    text = str(shown[name])
    assert repr(shown[name]) == text
    assert "array(" not in text
    assert " object at " not in text
    assert len(text.splitlines()) < 60


def test_texts_have_the_numbers(shown, shop):
    ranked, explanation = shown["ranked"], shown["explanation"]
    assert str(ranked).splitlines()[1].split() == [
        str(ranked.query[0]),
        "1",
        str(ranked.row[0]),
        f"{ranked.score[0]:.4f}",
    ]
    assert f"the scores differ by {explanation.difference:+.4f}" in str(explanation)
    for segment in shown["evaluation"].segments:
        assert f"{segment.attribute}: {segment.value}" in str(shown["evaluation"])
    assert EVIL in str(shown["comparison"])
    assert f"{shown['run'].comparison.mean('a', 'ndcg@10'):.4f}" in str(shown["run"])
    assert "missing" in str(tierank.profile(shop.data))
    assert "drift" in str(tierank.describe(shop.data, shop.valid))


@pytest.mark.filterwarnings("ignore:column .colour. gives the rating away")
def test_an_explanation_names_the_levels_of_categories():
    colours = np.tile(["red", "blue", "red", "green"], 20)
    table = pd.DataFrame({"price": np.arange(80.0) % 7, "colour": colours})
    data = tierank.RankingDataset(table, np.tile([2, 0, 1, 0], 20), qid=np.repeat(np.arange(20), 4))
    found = tierank.explain_pair(tierank.LambdaMART(n_trees=5, min_documents=1).fit(data), data, 3, 1, 2)
    assert "red against blue" in found._repr_html_()
    assert [line.split()[2:] for line in str(found).splitlines() if line.startswith("colour")] == [["red", "blue"]]


def test_a_ranker_shows_settings_history_and_importances(shown):
    form = shown["trees"]._repr_html_()
    assert "n_trees" in form
    assert "polyline" in form
    assert "importances of 4 features" in form
    assert "price" in form
    assert shown["trees"]._repr_mimebundle_()["text/html"] == form
    assert "not fitted" in shown["unfitted"]._repr_html_()
    assert "importances" not in shown["linear"]._repr_html_()


def test_long_tables_are_cut():
    form = notebook.grid(["n"], [[str(i)] for i in range(100)])
    assert "the first 30 of 100 rows" in form
    assert form.count("<tr") == 31
    assert notebook.curve("x", [1.0]) == ""
    assert "lowest 1.0000" in notebook.curve("x", [1.0, float("nan"), 2.0])
    assert "polyline" in notebook.curve("x", [1.0, 1.0])
    assert "width:0.00em" in notebook.bars(["a"], [0.0], "x")


def test_tables_for_pandas(shown, shop):
    evaluation = shown["evaluation"].to_pandas()
    assert list(evaluation.columns) == ["query", "ndcg@10", "mrr"]
    assert len(evaluation) == shop.valid.n_queries
    assert evaluation["mrr"].mean() == pytest.approx(shown["evaluation"].mean("mrr"))
    comparison = shown["comparison"].to_pandas()
    assert comparison.loc[comparison["system"] == EVIL, "difference"].item() == pytest.approx(
        shown["comparison"].contrasts[EVIL]["ndcg@10"].difference
    )
    assert {"attribute", "value", "metric", "p", "verdict"} <= set(shown["evaluation"].segments_to_pandas().columns)
    assert len(shown["comparison"].segments_to_pandas()) == 2
    run = shown["run"].to_pandas()
    assert set(run["system"]) == {"a", EVIL}
    assert len(run) == 2 * 5 * 8
    ranked = shown["ranked"].to_pandas()
    assert list(ranked.columns) == ["query", "rank", "row", "score"]
    assert ranked["rank"].max() == 2
    assert shown["profile"].to_pandas()["name"].tolist() == list(shop.data.feature_names)
    assert shown["explanation"].to_pandas()["contribution"].sum() == pytest.approx(
        shown["explanation"].difference, abs=1e-9
    )
    described = shown["description"].to_pandas().set_index("name")["value"]
    assert described["n_documents"] == shop.data.n_documents
    tuning = tierank.Tuning(shop.ranker, {"x": 1}, 0.5, "ndcg@10", [{"x": 1, "ndcg@10": 0.5}, {"y": 2}])
    assert list(tuning.to_pandas().columns) == ["x", "ndcg@10", "y"]
    assert "trial" in tuning._repr_html_()
    assert str(tuning).splitlines()[1].split() == ["trial", "x", "ndcg@10", "y"]


def test_without_pandas_it_says_so(shown, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="to_pandas needs pandas: pip install pandas"):
        shown["evaluation"].to_pandas()


# Plots


@pytest.fixture
def axes():
    from matplotlib.figure import Figure

    return Figure().subplots()


def test_history_is_drawn_with_what_was_kept(shop, axes):
    drawn = tierank.plot_history(shop.ranker, axes=axes)
    assert drawn is axes
    line, dot = axes.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), [row["ndcg@10"] for row in shop.ranker.history_])
    assert dot.get_ydata()[0] == pytest.approx(shop.ranker.best_["ndcg@10"])
    with pytest.raises(DataError, match="ranker: expected one that was fitted with validation data"):
        tierank.plot_history(shop.linear, axes=axes)
    with pytest.raises(ParameterError, match="unknown metric of this history 'ndcg@11'"):
        tierank.plot_history(shop.ranker, "ndcg@11", axes=axes)


def test_importances_are_drawn_by_name(shop, axes):
    tierank.plot_importance(shop.ranker, n=3, axes=axes)
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == sorted(shop.ranker.importance())[-3:]
    assert [text.get_text() for text in axes.get_yticklabels()][-1] in shop.data.feature_names
    with pytest.raises(DataError, match="data: expected data with ratings, as LinearRanker has no trees"):
        tierank.plot_importance(shop.linear, axes=axes)


def test_permutation_importances_are_drawn(shop, axes):
    tierank.plot_importance(shop.linear, shop.valid, axes=axes)
    losses = shop.linear.permutation_importance(shop.valid, n_repeats=3).mean(axis=1)
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], np.sort(losses))
    assert f"{shop.valid.n_queries} queries" in axes.get_xlabel()


def test_wins_are_drawn_from_the_largest_loss(shop, axes):
    tierank.plot_wins(shop.comparison, axes=axes)
    contrast = shop.comparison.contrasts[EVIL]["ndcg@10"]
    assert f"{contrast.wins} better, {contrast.ties} equal, {contrast.losses} worse" in axes.get_xlabel()
    (lines,) = axes.collections
    ends = [path.vertices[1, 1] for path in lines.get_paths()]
    assert ends == sorted(ends)
    assert np.mean(ends) == pytest.approx(contrast.difference)
    with pytest.raises(ParameterError, match="unknown system 'old'"):
        tierank.plot_wins(shop.comparison, "old", axes=axes)


def test_plots_make_their_own_axes(shop):
    import matplotlib.pyplot as plt

    assert tierank.plot_wins(shop.comparison).figure in map(plt.figure, plt.get_fignums())
    plt.close("all")


# Progress


class Cell:
    """An output cell of a notebook."""

    def __init__(self):
        self.forms = []

    def update(self, drawn):
        self.forms.append(drawn._repr_html_())


@pytest.fixture
def cell(monkeypatch):
    cell = Cell()

    def display(drawn, display_id):
        assert display_id
        cell.update(drawn)
        return cell

    shell = SimpleNamespace(kernel=object())
    display_module = SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display_module))
    monkeypatch.setitem(sys.modules, "IPython.display", display_module)
    return cell


def test_a_notebook_has_a_live_bar(cell, capsys):
    assert in_notebook()
    with Progress("training <x>", 3, show=True) as progress:
        for _ in range(3):
            progress.step("ndcg@10 0.5")
    assert cell.forms[0].startswith("<span>training &lt;x&gt;<progress")
    assert 'value="3" max="3"' in cell.forms[-1]
    assert "ndcg@10 0.5" in cell.forms[-1]
    assert capsys.readouterr().err == ""


def test_silence_is_silence_in_a_notebook_too(cell):
    with Progress("training", 3, show=False) as progress:
        progress.step()
    assert cell.forms == []


def test_a_script_is_no_notebook():
    assert not in_notebook()


def test_pandas_reads_the_table_of_every_name(shown):
    for name in NAMES[1:8]:
        assert isinstance(shown[name].to_pandas(), pd.DataFrame), name


def test_every_number_of_a_description_has_a_label(shop):
    found = tierank.describe(shop.data)
    shown = str(found)
    numbers = {field.name for field in dataclasses.fields(found)} - {*_PER_RATING, "drift"}
    assert set(_LABELS) == numbers
    assert all(label in shown for label in _LABELS.values())
    assert f"{found.lowest_share:.2%}" in shown


@pytest.mark.parametrize("length", [3, 40, 300])
@pytest.mark.parametrize("n", [1, 15])
def test_bars_with_long_names_have_room(length, n, tmp_path, monkeypatch):
    """Nothing is cut off, and the bars take a good part of the figure."""
    names = [f"{j:x<{length}}" for j in range(n)]
    rng = np.random.default_rng(0)
    features = rng.normal(size=(300, n))
    data = tierank.RankingDataset(
        features, np.digitize(features[:, 0] + rng.normal(size=300), [0, 1]), np.arange(300) // 10, feature_names=names
    )
    ranker = tierank.UMart(n_trees=5, n_jobs=1).fit(data)
    drawn = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, _: drawn.append(figure))
    figures.draw_explanation(tierank.explain_pair(ranker, data, 3, 1, 2), tmp_path / "why.png")
    drawn.append(tierank.plot_importance(ranker).figure)
    for figure in drawn:
        figure.savefig(tmp_path / "figure.png")  # the layout is computed on drawing
        inches = figure.get_tightbbox()
        assert (inches.min >= -0.01).all()
        assert (inches.max <= figure.get_size_inches() + 0.01).all()
        assert figure.axes[0].get_position().width > 0.4
    if n == 1:
        assert drawn[-1].get_size_inches()[1] < 2


def test_a_list_of_explanations_is_shown_as_each_of_them(shop):
    found = tierank.explain_query(shop.ranker, shop.valid, shop.valid.query_ids[0], k=2)
    assert isinstance(found, list)
    assert found._repr_html_() == found[0]._repr_html_() + found[1]._repr_html_()
    assert str(found) == f"{found[0]}\n\n{found[1]}"
