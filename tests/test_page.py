"""The pages: what they say is what the numbers are, nothing leaves them, and no name breaks them."""

import base64
import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

import tierank
from tierank import DataError, RankingDataset, cli
from tierank.experiments.crossval import cross_validate
from tierank.report import charts
from tierank.report.explanation import explain_documents, find_swaps
from tierank.report.markup import as_json
from tierank.report.page import make_report
from tierank.report.profile import find_troubles, make_profile
from tierank.report.viewer import RunLists, Titles, make_viewer

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
# Text that would be run, or would end the block that it stands in, if it were taken for markup.
EVIL = """</script><script>window.broken=1</script><img src=x onerror="window.broken=1">'"&"""


def named(n_queries=40, seed=0, evil=""):
    """Data with names: of queries, documents and features."""
    data = tierank.make_ranking(n_queries, n_features=5, mean_length=14, max_length=30, seed=seed)
    queries = [f"q{query}{evil}" for query in data.query_ids.tolist()]
    return RankingDataset(
        data.features,
        data.ratings,
        qid=np.repeat(queries, data.lengths),
        feature_names=[f"f{j}{evil}" for j in range(5)],
        document_ids=[f"d{i}{evil}" for i in range(data.n_documents)],
    )


def make_run(folder, data, *, evil="", seeds=1):
    rankers = {
        f"LambdaMART{evil}": tierank.LambdaMART(n_trees=8, n_jobs=1),
        f"uRank{evil}": tierank.URank(max_epochs=3, hidden=(8,), learning_rate=0.01, n_jobs=1),
    }
    return cross_validate(rankers, data, out=folder, n_jobs=1, seeds=seeds)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    tierank.write(named(), folder / "data.csv")
    return make_run(folder / "run", str(folder / "data.csv"), seeds=2)


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    file = tmp_path_factory.mktemp("html") / "report.html"
    assert cli.main(["report", str(run.folder), "--out", str(file)]) == 0
    return file


@pytest.fixture(scope="module")
def browser():
    selenium = pytest.importorskip("selenium.webdriver")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    quiet = ("quic", "background-networking", "component-update", "sync", "gpu")
    for switch in (
        "headless=new",
        "no-sandbox",
        "no-first-run",
        "window-size=1200,900",
        *(f"disable-{q}" for q in quiet),
    ):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    yield driver
    driver.quit()


def show(browser, file: Path, scheme="light"):
    browser.get_log("browser"), browser.get_log("performance")
    features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    emulated = {"features": [{"name": name, "value": value} for name, value in features.items()]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
    browser.get(file.as_uri())


def texts(browser, selector):
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
    )


def press(browser, keys, selector="body"):
    browser.find_element("css selector", selector).send_keys(keys)


def choose(browser, name, value):
    code = (
        "const e = document.getElementById(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('change'))"
    )
    browser.execute_script(code, name, value)


# In a browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_loads_without_errors_and_asks_nobody(browser, page, scheme):
    show(browser, page, scheme)
    assert browser.get_log("browser") == []
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"}
    assert page.as_uri() in asked
    assert {url for url in asked if not url.startswith("data:")} == {page.as_uri()}
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = browser.execute_script(colour)
    brightness = sum(map(int, re.findall(r"\d+", before)[:3])) / 3
    assert brightness > 200 if scheme == "light" else brightness < 60
    browser.find_element("id", "theme").click()
    assert browser.execute_script(colour) != before
    browser.find_element("id", "theme").click()
    assert browser.execute_script(colour) == before


def test_paper_is_light_and_holds_the_whole_table(browser, page):
    show(browser, page, "dark")
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    size = {"width": 718, "height": 900, "deviceScaleFactor": 1, "mobile": False}  # A4 less its margins
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", **dark})
    try:
        assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        right = "return document.querySelector('.leaderboard').getBoundingClientRect().right"
        assert browser.execute_script(right) <= 718
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_numbers_are_those_of_evaluate(browser, page, run):
    show(browser, page)
    rows = browser.execute_script(
        "return [...document.querySelectorAll('.leaderboard tbody tr')].map(r => [...r.querySelectorAll('td')]"
        ".map(c => c.firstChild.textContent))"
    )
    order = [f"{name}@{k}" for name in ("ndcg", "err") for k in (1, 3, 5, 10)]
    pooled = RankingDataset(
        np.zeros((sum(test.n_documents for test in run.tests), 1)),
        np.concatenate([test.ratings for test in run.tests]),
        qid=np.concatenate([np.repeat(test.query_ids, test.lengths) for test in run.tests]),
    )

    def evaluations(system):
        for seed in run.seeds:
            scores = np.concatenate([run.scores(system, fold, seed) for fold in range(run.n_folds)])
            yield tierank.evaluate(pooled, scores, order, run.rule)

    best_first = sorted(run.systems, key=lambda system: -run.comparison.mean(system, "ndcg@10"))
    for system, cells in zip(best_first, rows, strict=True):
        means = [np.mean([found.mean(metric) for found in evaluations(system)]) for metric in order]
        assert cells == [f"{mean:.4f}" for mean in means]
    # The viewer shows the lists of the first seed, and their metrics.
    choose(browser, "order", "data")
    query = texts(browser, "#choices [aria-selected=true] span")[0]
    place = pooled.query_ids.tolist().index(query)
    for side, system in (("first-child", "uRank"), ("last-child", "LambdaMART")):
        found = next(evaluations(system))
        shown = texts(browser, f"#query-head .sides > div:{side} span")
        assert shown == [f"{m.upper()} {found.per_query[m][place]:.4f}" for m in ("ndcg@10", "err@10")]


def test_lists_are_the_rankings(browser, page, run):
    show(browser, page)
    choose(browser, "order", "data")
    for _ in range(3):
        query = texts(browser, "#choices [aria-selected=true] span")[0]
        fold = next(f for f, test in enumerate(run.tests) if query in test.query_ids.tolist())
        test = run.tests[fold]
        place = test.query_ids.tolist().index(query)
        own = slice(test.offsets[place], test.offsets[place + 1])
        for side, system in (("left", "uRank"), ("right", "LambdaMART")):
            scores = run.scores(system, fold, 0)[own]
            order = np.argsort(-scores, kind="stable")[:10]
            names = [name.split("there:")[0] for name in texts(browser, f"#list-{side} .name")]
            assert names == [test.document_ids[own][i] for i in order]
            assert texts(browser, f"#list-{side} .rank") == [str(i + 1) for i in range(len(order))]
            assert texts(browser, f"#list-{side} .tier") == [f"{rating:g}" for rating in test.ratings[own][order]]
            shown = [float(score) for score in texts(browser, f"#list-{side} .score")]
            np.testing.assert_allclose(shown, scores[order], atol=np.ptp(scores) / 500)
        joined = set(
            browser.execute_script("return [...document.querySelectorAll('#links path')].map(p => p.dataset.place)")
        )
        both = [
            set(
                browser.execute_script(
                    f"return [...document.querySelectorAll('#list-{s} li')].map(e => e.dataset.place)"
                )
            )
            for s in ("left", "right")
        ]
        assert joined == both[0] & both[1]
        press(browser, "j")


def test_choosing_searching_and_keys(browser, page, run):
    show(browser, page)
    queries = texts(browser, "#choices li span:first-child")
    gaps = [
        float(text.replace("−", "-").replace("±", ""))
        for text in texts(browser, "#choices li span:last-child")
        if text != "–"
    ]
    assert gaps == sorted(gaps)  # the biggest losses come first
    assert len(queries) == sum(test.n_queries for test in run.tests)

    def chosen():
        assert texts(browser, "#query-head h3")[0].startswith(
            f"Query {texts(browser, '#choices [aria-selected=true] span')[0]}"
        )
        return texts(browser, "#choices [aria-selected=true] span")[0]

    assert chosen() == queries[0]
    lists = texts(browser, "#list-left .name"), texts(browser, "#list-right .name")
    browser.find_elements("css selector", "#choices li")[3].click()
    assert chosen() == queries[3]
    assert texts(browser, "#list-left .name") != lists[0]
    assert texts(browser, "#list-right .name") != lists[1]
    press(browser, "j")
    assert chosen() == queries[4]
    press(browser, "kk")
    assert chosen() == queries[2]
    press(browser, "\ue015", "#choices")  # arrow down
    assert chosen() == queries[3]
    press(browser, "/")
    press(browser, queries[5], "#find")
    assert chosen() == queries[5]
    assert len(texts(browser, "#choices li")) == sum(queries[5] in query for query in queries)
    press(browser, "\ue00c", "#find")  # escape: keys work again
    heads = texts(browser, "#query-head strong")
    press(browser, "x")
    assert texts(browser, "#query-head strong") == heads[::-1]
    choose(browser, "show", "won")
    assert all(text.startswith("+") for text in texts(browser, "#choices li span:last-child"))


def test_a_phone_needs_no_sideways_scrolling(browser, page):
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        show(browser, page)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        shown = "return [...document.querySelectorAll('#stage .score')].every(e => e.getBoundingClientRect().width > 0)"
        assert browser.execute_script(shown)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_no_name_is_taken_for_markup(browser, tmp_path):
    data = named(25, seed=1, evil=EVIL)
    tierank.write(data, tmp_path / "data.csv")
    run = make_run(tmp_path / "run", str(tmp_path / "data.csv"), evil=EVIL)
    with (tmp_path / "titles.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["query", "document", "title"])
        for query, row in zip(np.repeat(data.query_ids, data.lengths), data.document_ids, strict=True):
            rows.writerow([query, row, f"title of {row}"])
    arguments = ["report", run.folder, "--titles", tmp_path / "titles.csv", "--out", tmp_path / "report.html"]
    assert cli.main([str(argument) for argument in arguments]) == 0
    tierank.write_profile(tierank.profile(data, data), tmp_path / "profile.html", title=EVIL)
    for file in ("report.html", "profile.html"):
        show(browser, tmp_path / file)
        assert browser.get_log("browser") == []
        assert browser.execute_script("return window.broken") is None
        assert browser.execute_script("return document.images.length") == 0
    assert texts(browser, "h1") == [EVIL]
    show(browser, tmp_path / "report.html")
    press(browser, "j")
    assert browser.execute_script("return window.broken") is None
    assert texts(browser, "#query-head strong") == [f"uRank{EVIL}", f"LambdaMART{EVIL}"]
    assert all(name.startswith("title of d") and EVIL in name for name in texts(browser, "#list-left .name"))
    assert any(EVIL in text for text in texts(browser, "#features table th"))


def test_explained_swaps_stand_below_their_lists(browser, page):
    show(browser, page)
    swaps = json.loads(texts(browser, "#lists")[0])["swaps"]
    assert swaps
    queries = json.loads(texts(browser, "#lists")[0])["queries"]
    press(browser, queries[swaps[0]["query"]], "#find")
    (title,) = texts(browser, "#why h3")
    assert set(title.split(" above ")) == {swaps[0]["above"], swaps[0]["below"]}
    assert sum(value for _, value in swaps[0]["rows"]) == pytest.approx(swaps[0]["difference"], rel=1e-3)
    for side in ("left", "right"):  # both documents are on the screen
        shown = [name.split("there:")[0] for name in texts(browser, "#stage .name")]
        assert {swaps[0]["above"], swaps[0]["below"]} <= set(shown), side


def test_any_two_documents_are_compared_by_a_click_or_a_key(browser, page, run):
    show(browser, page)
    content = json.loads(texts(browser, "#lists")[0])
    place = content["swaps"][0]["query"]
    press(browser, content["queries"][place], "#find")
    browser.execute_script("document.activeElement.blur()")
    items = browser.find_elements("css selector", "#list-left li")
    items[0].click()
    assert "Click a second document" in texts(browser, "#why")[0]
    items[3].send_keys("\n")
    names = [name.split("there:")[0] for name in texts(browser, "#list-left .name")]
    assert texts(browser, "#why h3") == [f"{names[0]} above {names[3]}"]
    assert texts(browser, "#stage li[aria-pressed=true] .name")[0].startswith(names[0])
    for side in texts(browser, "#why .sides > div"):
        assert "The scores differ by" in side
    # The rows of the left side sum to the difference of the scores.
    query = run.tests[0].query_ids.tolist().index(content["queries"][place])
    own = slice(run.tests[0].offsets[query], run.tests[0].offsets[query + 1])
    scores = np.sort(run.scores("uRank", 0, 0)[own])[::-1]
    cells = texts(browser, "#why .sides > div:first-child td:nth-child(2)")
    total = sum(float(cell.replace("\u2212", "-").replace("±", "")) for cell in cells)
    assert total == pytest.approx(scores[0] - scores[3], abs=2e-3)


def test_importances_are_never_left_out(browser, page, run):
    show(browser, page)
    titles = texts(browser, "#features figcaption strong")
    assert {f"Importance, {system}" for system in run.systems} <= set(titles)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_can_be_read():
    """WCAG AA: 4.5 to 1 for text, 3 to 1 for lines and bars; the two dark blocks are the same."""
    css = (Path(tierank.__file__).parent / "report" / "page.css").read_text()
    themes = [dict(re.findall(r"(--\w[\w-]*): (#[0-9a-f]{6})", block)) for block in re.findall(r"\{([^{}]*)\}", css)]
    light, dark, again = (theme for theme in themes if "--s0" in theme)
    assert dark == again
    for theme in (light, dark):
        for ground in ("--paper", "--card"):
            for text in ("--ink", "--soft", "--faint", "--accent", "--win", "--loss"):
                assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground)
            for line in (f"--s{i}" for i in range(8)):
                assert contrast(theme[line], theme[ground]) >= 3, (line, ground)
        for tier in range(5):
            assert contrast(theme[f"--t{tier}"], theme["--ink" if tier < 3 else "--card"]) >= 4.5, tier
        assert contrast(theme["--warn"], theme["--warn-soft"]) >= 4.5
        series = {theme[f"--s{i}"] for i in range(8)}
        assert not series & {theme["--win"], theme["--loss"], theme["--accent"]}


# Without one


def test_a_page_is_whole_and_has_words_for_every_chart(page):
    text = page.read_text()
    assert not re.search(r"""(src|href)=["']?(https?:|//|file:)|@import|url\(""", text)
    pictures = text.count("<svg viewBox")
    assert pictures >= 10
    assert text.count('role="img"') == text.count("<desc>") == pictures
    assert text.count("<summary>Numbers</summary>") == pictures
    for name in ("leaderboard", "queries", "against", "where", "learning", "features", "repeat"):
        assert f'<section id="{name}"' in text


def test_no_text_ends_the_block_of_data_that_it_stands_in():
    content = {EVIL: [EVIL, "<!--", "\u2028\u2029", 1.5, None]}
    block = as_json("lists", content)
    inside = block.removeprefix('<script type="application/json" id="lists">').removesuffix("</script>")
    assert not set(inside) & set("<>&\u2028\u2029")
    assert json.loads(inside) == content


def test_one_system_alone_and_scores_of_another_tool(tmp_path):
    data = named(30, seed=4)
    rng = np.random.default_rng(0)
    parts = data.split(0.4, 0.3, 0.3)
    scores = [rng.random(parts[2].n_documents)]
    run = cross_validate([], [tuple(parts)], scores={"outside": scores}, out=tmp_path / "run", n_jobs=1)
    text = make_report(run)
    assert "outside" in text
    assert '<section id="against"' not in text
    assert '<section id="features"' not in text


def test_a_page_with_models_that_cannot_be_explained(tmp_path):
    """Linear leaves, and documents that are chosen one by one, have no contributions of features."""
    tierank.write(named(30, seed=4), tmp_path / "data.csv")
    few = {"n_trees": 4, "n_jobs": 1}
    rankers = {
        "lines": tierank.UMart(**few, linear_tree=True),
        "chosen": tierank.UrBoost(max_epochs=1, hidden=(8,), n_learners=1, inference="documents", n_jobs=1),
        "plain": tierank.LambdaMART(**few),
    }
    run = cross_validate(rankers, str(tmp_path / "data.csv"), out=tmp_path / "run", n_jobs=1)
    lists = RunLists(run)
    for best, rival in (("lines", "plain"), ("chosen", "plain")):
        assert find_swaps(lists, "ndcg@10", best, rival) == []
    swaps = find_swaps(lists, "ndcg@10", "plain", "chosen")
    assert list(explain_documents(lists, swaps)) == ["plain"]
    assert '<section id="features"' in make_report(run)


def test_long_lists_are_cut_and_the_page_says_so(run):
    lists = RunLists(run)
    whole = lists.encode(["ndcg@10"])
    assert whole["depth"] == lists.lengths.max()
    small = lists.encode(["ndcg@10"], budget=1)
    assert small["depth"] == 5
    n_kept = np.frombuffer(base64.b64decode(small["kept"]), "<u4")
    expected = [
        len({i for r in lists.ranks.values() for i in np.flatnonzero((lists.query == q) & (r <= 5))})
        for q in range(len(n_kept))
    ]
    assert n_kept.tolist() == expected
    assert "it holds the first 5 documents of each list" in make_viewer(run, small)
    assert "Lists are complete." in make_viewer(run, whole)


def test_ranks_follow_scores_and_rows_break_ties(run, monkeypatch):
    lists = RunLists(run)
    n = len(lists.ratings)
    monkeypatch.setattr(run, "scores", lambda system, fold, seed: np.zeros(run.tests[fold].n_documents))
    assert all((ranks == lists.row).all() for ranks in lists.ranks.values())
    assert len(lists.row) == n


@pytest.mark.parametrize("twice", ["query", "document", "title"])
def test_titles_with_a_column_twice_are_refused(run, tmp_path, capsys, twice):
    """Which of the two was meant cannot be known; what is not used may come twice."""
    file = tmp_path / "titles.csv"
    file.write_text(f"query,document,title,{twice}\n1,d,one,other\n")
    refusal = f"titles.csv: expected each column once, got '{twice}' twice; rename one of them"
    with pytest.raises(DataError, match=refusal):
        Titles.read(file)
    assert cli.main(["report", str(run.folder), "--titles", str(file), "--out", str(tmp_path / "r.html")]) == 2
    assert refusal in capsys.readouterr().err
    file.write_text("query,document,title,spare,spare\n1,d,one,0,1\n")
    assert Titles.read(file).by_name == {("1", "d"): "one"}


def test_titles_and_folders_that_cannot_be_used(run, tmp_path, capsys):
    (tmp_path / "titles.csv").write_text("query,name\n1,2\n")
    with pytest.raises(DataError, match=r"titles.csv: expected the columns query, document and title, got query, name"):
        Titles.read(tmp_path / "titles.csv")
    head = b"query,document,title\n"
    for damaged in (head + b"1,2,\xff\n", head + b'1,2,"' + b"x" * 200_000 + b'"\n'):
        (tmp_path / "titles.csv").write_bytes(damaged)
        with pytest.raises(DataError, match=r"titles.csv: expected a CSV file in UTF-8, got: "):
            Titles.read(tmp_path / "titles.csv")
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "x.html")]) == 2
    assert "expected the folder of a run" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_axes_have_round_ticks_that_hold_all_values():
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = rng.normal(size=5) * 10.0 ** rng.integers(-6, 7)
        axis = charts.Axis.over(values, 0, 100)
        assert axis.low <= values.min()
        assert axis.high >= values.max()
        assert len(axis.ticks) <= 9
        assert len({axis.label(tick) for tick in axis.ticks}) == len(axis.ticks)
        for tick in axis.ticks:
            assert float(axis.label(tick).replace(",", "")) == pytest.approx(tick, abs=1e-9)
    for values in ([0.0, 0.0], [0.0, 1e-16], [-2e-17, 1e-17]):  # equal, up to rounding
        flat = charts.Axis.over(values, 0, 100, zero=True)
        assert flat.low <= 0 < flat.high


# Data


def test_profile_finds_what_looks_wrong():
    rng = np.random.default_rng(1)
    ratings = rng.integers(0, 3, 400).astype(float)
    ratings[:10], ratings[10:20] = 0, 2
    columns = {
        "noise": rng.normal(size=400),
        "leak": -(ratings**2),
        "constant": np.ones(400),
        "missing": np.full(400, np.nan),
        "moves": rng.normal(size=400),
    }
    columns["twin"] = columns["noise"].copy()
    columns["noise"][5] = columns["twin"][5] = np.nan
    data = RankingDataset(
        np.column_stack(list(columns.values())), ratings, qid=np.arange(400) // 10, feature_names=list(columns)
    )
    moved = np.array(data.features)
    moved[:, 4] += 1
    test = RankingDataset(moved, ratings, qid=np.arange(400) // 10, feature_names=list(columns))
    found = tierank.profile(data, test)
    by_name = {feature.name: feature for feature in found.features}
    assert [f.name for f in found.features if f.leaks] == ["leak"]
    assert by_name["leak"].skill == pytest.approx(1)
    assert abs(by_name["noise"].skill) < 0.3
    assert [f.name for f in found.features if f.is_constant] == ["constant", "missing"]
    assert {f.name: f.twin for f in found.features if f.twin} == {"twin": "noise"}
    assert [f.name for f in found.features if f.drifts] == ["moves"]
    oracle = scipy.stats.ks_2samp(data.features[:, 4], moved[:, 4]).statistic
    assert by_name["moves"].drift == pytest.approx(oracle)
    assert by_name["noise"].drift == 0
    said = " / ".join(what for what, _ in find_troubles(found))
    assert said.startswith(
        "1 feature that gives the ratings away / 2 constant features / 1 duplicated feature / 1 feature that drifts"
    )
    assert "1 empty query" in said
    assert "1 query with one rating above 0" in said
    page = make_profile(found, "toy")
    assert '<section id="drift"' in page
    assert '<section id="drift"' not in make_profile(tierank.profile(data), "toy")
    assert json.loads(json.dumps(tierank.profile(data).to_dict(), allow_nan=False))["features"][0]["drift"] is None
    narrow = RankingDataset(moved[:, :2], ratings, qid=np.arange(400) // 10)
    with pytest.raises(DataError, match="test: expected the same features, 6, got 2"):
        tierank.profile(data, narrow)


def test_describe_writes_a_page(tmp_path, capsys):
    data = named(12)
    tierank.write(data, tmp_path / "data.csv")
    given = ["describe", str(tmp_path / "data.csv")]
    assert cli.main([*given, "--html", str(tmp_path / "data.html"), "--against", given[1]]) == 0
    assert "data.csv" in (tmp_path / "data.html").read_text()
    capsys.readouterr()
    assert cli.main([*given, "--against", given[1]]) == 0
    assert "nothing drifts" in capsys.readouterr().out


def test_nothing_to_rank_has_no_skill():
    empty = RankingDataset(np.eye(4), np.zeros(4), qid=[1, 1, 2, 2])
    assert all(np.isnan(feature.skill) for feature in tierank.profile(empty).features)
    assert "empty queries" in make_profile(tierank.profile(empty), "empty")


def test_static_files_are_part_of_the_package():
    folder = Path(tierank.__file__).parent / "report"
    assert {path.name for path in folder.iterdir() if path.suffix in (".css", ".js")} == {
        "page.css",
        "page.js",
        "viewer.js",
    }


def test_the_dot_is_the_round_that_was_kept(run, monkeypatch):
    """Not the last one that was best so far: each learner of a boosted network begins anew, and may be dropped."""
    history = [{"ndcg@10": value, "kept": kept} for value, kept in ((0.2, True), (0.5, True), (0.3, True), (0.4, True))]
    plain, drawn, result = charts.lines, [], type(run.store).result

    def lines(*given, **options):
        drawn.append(options["marks"])
        return plain(*given, **options)

    for best, expected in ((0.5, [(2.0, 0.5)]), (0.6, [])):  # 0.6: a mean of several networks, which is no round
        changed = {"history": history, "best": {"ndcg@10": best}}
        monkeypatch.setattr(charts, "lines", lines)
        monkeypatch.setattr(
            type(run.store), "result", lambda store, cell, changed=changed: result(store, cell) | changed
        )
        drawn.clear()
        make_report(run)
        assert drawn
        assert all(set(marks.values()) == set(expected) for marks in drawn)


def test_the_column_that_the_leaderboard_is_sorted_by_stays_in_sight_on_narrow_screens(tmp_path):
    data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20).split(0.6, 0.2, 0.2)
    run = tierank.cross_validate(tierank.UMart(n_trees=3), [data], metrics=["ndcg@1", "ndcg@10", "map"])
    tierank.write_report(run, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    leaderboard = page.partition('class="leaderboard"')[2].partition("</table>")[0]
    assert re.findall(r'<t[hd][^>]*class="sorted"[^>]*>(.{6})', leaderboard)[0] == "@10</t"
    value = f"{run.comparison.mean('umart', 'ndcg@10'):.4f}"
    assert re.findall(r'<td[^>]*class="sorted"[^>]*>\s*<b>([^<]*)', leaderboard) == [value]
    narrow = page.partition("@media (max-width: 720px)")[2].partition("@media")[0]
    assert re.search(r"table\.leaderboard \.sorted \{ position: sticky; right: 0; background", narrow)
