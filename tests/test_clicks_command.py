"""``tierank clicks`` as a user meets it."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tierank
from tierank import cli
from tierank.clicks import CLICK_MODELS, ClickLog, load, simulate_clicks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clicks")
    data = tierank.make_ranking(30, n_features=3, mean_length=12, max_length=20, seed=1)
    rng = np.random.default_rng(0)
    scores = {name: data.restore(data.ratings) + rng.normal(scale=2, size=data.n_documents) for name in "ab"}
    log, _ = simulate_clicks(data, scores, n_sessions=3000, k=5, noise=0.2)
    log.with_columns(new=data.restore(data.ratings)[log.column("row")]).write(folder / "log.csv")
    log.write(folder / "log.parquet")
    simulate_clicks(data, scores["a"], n_sessions=3000, k=5, randomize="swap").log.write(folder / "swaps.csv")
    return folder


def run(capsys, *arguments) -> tuple[int, str, str]:
    code = cli.main(["clicks", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_describe(folder, capsys):
    code, out, _ = run(capsys, "describe", folder / "log.csv")
    assert code == 0
    assert "click-through" in out
    assert "3,000 sessions" in out
    code, out, _ = run(capsys, "describe", folder / "log.parquet", "--json")
    found = json.loads(out)
    assert found["n_sessions"] == 3000
    assert len(found["shown"]) == 5


def test_describe_counts_what_cannot_be_used(tmp_path, capsys):
    (tmp_path / "log.csv").write_text("session,document,position,clicked\n1,a,0,1\n2,a,1,1\n")
    code, out, _ = run(capsys, "describe", tmp_path / "log.csv")
    assert code == 0
    hint = "if positions count from 0, read the log with --zero-based"
    assert f"looks wrong: 1 session left out: a position that is not an integer >= 1; {hint}" in out
    (tmp_path / "all.csv").write_text("session,document,position,clicked\n1,a,0,1\n2,a,0,0\n")
    code, _, err = run(capsys, "describe", tmp_path / "all.csv")
    assert code == 2
    assert f"got none: 2 with a position that is not an integer >= 1; {hint}\n" in err
    assert run(capsys, "describe", tmp_path / "all.csv", "--zero-based")[0] == 0


@pytest.mark.filterwarnings("default")
def test_a_log_of_clicks_alone_warns(tmp_path, capsys):
    (tmp_path / "log.csv").write_text("session,document,position,clicked\n1,a,1,1\n2,a,1,1\n2,b,2,1\n")
    for command in (["describe"], ["judge", "--model", "pbm", "--out", tmp_path / "judged.csv"]):
        code, _, err = run(capsys, command[0], tmp_path / "log.csv", *command[1:])
        assert code == 0
        assert "WARNING: " in err
        assert "everything was clicked, so nothing can be learned about what was not clicked: log all documents" in err


def test_fit_compares_models_and_writes_one(folder, tmp_path, capsys):
    code, out, _ = run(capsys, "fit", folder / "log.csv", "--json")
    assert code == 0
    found = json.loads(out)
    assert list(found["models"]) == list(CLICK_MODELS)
    perplexities = {name: one["perplexity"] for name, one in found["models"].items()}
    assert perplexities["pbm"] < perplexities["ctr"]
    likelihoods = {name: one["log_likelihood"] for name, one in found["models"].items()}
    assert found["best"] == max(likelihoods, key=likelihoods.get)
    code, out, err = run(capsys, "fit", folder / "log.csv", "--out", tmp_path / "best.json")
    assert code == 0
    assert f"best by log-likelihood: {found['best']}" in out
    assert f"best.json: {found['best']}, fitted to all 3,000 sessions" in err
    assert load(tmp_path / "best.json").name == found["best"]
    file = tmp_path / "new" / "pbm.json"
    code, out, err = run(capsys, "fit", folder / "log.csv", "--model", "pbm", "--by", "document", "--out", file)
    assert code == 0
    assert "pbm" in out
    assert "wrote" in err
    assert load(file).by == "document"


def test_propensities(folder, tmp_path, capsys):
    plot = tmp_path / "p.svg"
    for arguments in (
        ["log.csv"],
        ["log.csv", "--method", "harvest", "--plot", plot],
        ["swaps.csv", "--method", "swaps"],
    ):
        code, out, _ = run(capsys, "propensities", folder / arguments[0], *arguments[1:], "--bootstrap", 10, "--json")
        assert code == 0
        found = json.loads(out)
        assert found["propensity"] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5], abs=0.2)
    assert plot.read_text().startswith("<?xml")
    assert "low" in run(capsys, "propensities", folder / "log.csv", "--bootstrap", 0)[1]


def test_judge_writes_what_read_reads(folder, tmp_path, capsys):
    code, _, err = run(capsys, "judge", folder / "log.csv", "--out", tmp_path / "ratings.csv", "--top", 3)
    assert code == 0
    assert "judgements" in err
    with pytest.warns(tierank.ColumnWarning, match="column 'n_clicks' is named like an outcome"):
        ratings = tierank.read(tmp_path / "ratings.csv")
    assert ratings.n_queries == 30
    assert 0 < ratings.ratings.max() <= 3
    assert ratings.row_weight is not None


def test_judge_rates_documents_with_features(folder, tmp_path, capsys):
    data = tierank.make_ranking(30, n_features=3, mean_length=12, max_length=20, seed=1)
    rows = range(data.n_documents)
    own = tierank.RankingDataset(data.features, qid=data.query_ids[data.query_of_row], document_ids=rows)
    tierank.write(own, tmp_path / "documents.csv")
    to, out = tmp_path / "train.csv", ["--data", tmp_path / "documents.csv", "--out", tmp_path / "train.csv"]
    code, _, err = run(capsys, "judge", folder / "log.csv", "--half", 20, *out)
    assert code == 0
    found = tierank.clicks.judgements(tierank.clicks.read(folder / "log.csv"), half=20)
    assert f"by {found.model.name}" in err
    rated = found.rate(own)
    read = tierank.read(to)
    assert np.array_equal(read.ratings, rated.ratings, equal_nan=True)
    assert read.query_weight.tolist() == rated.query_weight.tolist()
    code, _, err = run(capsys, "judge", folder / "log.csv", *out[:3], out[1])
    assert code == 2
    assert "expected a file other than the one that is read" in err
    (tmp_path / "none.txt").write_text("0 qid:1 1:0.5\n")
    code, _, err = run(capsys, "judge", folder / "log.csv", "--data", tmp_path / "none.txt", *out[2:])
    assert code == 2
    assert "--data: expected documents with ids" in err


def test_simulate_keeps_the_lists(folder, tmp_path, capsys):
    model = tmp_path / "dbn.json"
    assert run(capsys, "fit", folder / "log.csv", "--model", "dbn", "--out", model)[0] == 0
    code, _, _ = run(capsys, "simulate", folder / "log.csv", "--model", model, "--out", tmp_path / "new.parquet")
    assert code == 0
    old, new = (tierank.clicks.read(file) for file in (folder / "log.csv", tmp_path / "new.parquet"))
    assert (new.documents == old.documents).all()
    assert new.clicked.mean() == pytest.approx(old.clicked.mean(), abs=0.02)


def test_evaluate(folder, capsys):
    code, out, _ = run(capsys, "evaluate", folder / "log.csv", "--score-column", "new", "--method", "harvest")
    assert code == 0
    assert "as shown" in out
    code, out, _ = run(
        capsys, "evaluate", folder / "log.csv", "--score-column", "new", "--estimator", "dr", "--clip", 5, "--json"
    )
    found = json.loads(out)
    assert found["value"] > found["logged"]
    assert found["method"] == "dr"


def test_a_log_through_a_pipe(folder, capsys, monkeypatch):
    with (folder / "log.csv").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        code, out, _ = run(capsys, "describe", "-", "--json")
    assert code == 0
    assert json.loads(out)["n_sessions"] == 3000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "none.csv"], "none.csv: expected a file, got nothing there"),
        (["describe", "log.csv", "--position-column", "place"], "unknown column 'place'"),
        (["fit", "log.csv", "--model", "pmb"], "unknown click model 'pmb': did you mean 'pbm'?"),
        (["fit", "log.csv", "--by", "query"], "unknown by 'query'"),
        (["fit", "log.csv", "--held-out", "1"], "--held-out: expected a number > 0 and < 1"),
        (
            ["fit", "odd.csv"],
            "expected an integer >= 1, got 0; if positions count from 0, read the log with --zero-based",
        ),
        (["propensities", "log.csv", "--method", "swap"], "unknown --method 'swap': did you mean 'swaps'?"),
        (["propensities", "log.csv", "--method", "swaps"], "unknown column 'swap'"),
        (["propensities", "log.csv", "--plot", "p.txt"], "p.txt: expected a name that ends in .png"),
        (["judge", "log.csv", "--model", "ctr", "--out", "r.csv"], "--model: expected a click model with"),
        (["judge", "log.csv", "--out", "r.txt"], "r.txt: expected a name that ends in .csv or .parquet"),
        (["simulate", "log.csv", "--model", "log.json", "--out", "r.csv"], "log.json: expected a click model"),
        (["evaluate", "log.csv", "--score-column", "ranker"], "--score-column: expected numbers"),
        (["evaluate", "log.csv", "--score-column", "new", "--estimator", "dm"], "unknown --estimator 'dm'"),
        (["evaluate", "log.csv", "--score-column", "new", "--earn", "money"], "unknown --earn 'money': Known: clicks"),
        (["evaluate", "log.csv"], "the following arguments are required: --score-column"),
        (
            ["fit", "log.csv", "--model", "pbm", "--out", "log.csv"],
            "log.csv: expected a file other than the one that is",
        ),
        (["judge", "log.csv", "--out", "./log.csv"], "log.csv: expected a file other than the one that is read"),
        (["simulate", "log.csv", "--out", "log.csv"], "log.csv: expected a file other than the one that is read"),
        (["propensities", "log.csv", "--swap-column", "new"], "--swap-column: expected together with --method swaps"),
        (["evaluate", "log.csv", "--score-column", "new", "--ranker-column", "r"], "together with --method harvest"),
        (["simulate", "log.csv", "--out", "r.csv", "--seed", "-1"], "--seed: expected an integer >= 0, got -1"),
    ],
)
def test_errors_are_one_line_and_name_options(arguments, message, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "odd.csv").write_text("session,document,position,clicked\n1,a,0,1\n")
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert not out
    assert err.count("\n") == 1
    assert message in err


def test_dropped_sessions_are_reported(folder, tmp_path, capsys):
    log = ClickLog.of(session=[1, 2, 3], document=["a", "b", "a"], position=[1, 1, 1], clicked=[1, 0, 1])
    log.write(tmp_path / "log.csv")
    with (tmp_path / "log.csv").open("a") as file:
        file.write("4,a,1,7\n")
    code, _, err = run(capsys, "judge", tmp_path / "log.csv", "--drop", "--out", tmp_path / "r.csv")
    assert code == 0
    assert "WARNING: 1 sessions left out" in err


def test_list_knows_click_models(capsys):
    assert cli.main(["list", "click-models"]) == 0
    assert "dbn" in capsys.readouterr().out


def test_the_page_on_clicks_runs(folder, tmp_path, monkeypatch, capsys):
    """The code of docs/clicks.md, and its commands."""
    page = (Path(__file__).parents[1] / "docs" / "clicks.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    log = tierank.clicks.read(folder / "log.csv", columns=["ranker", "row", "new"])
    log.with_columns(new_score=log.column("new")).write("log.csv")
    renamed = {"session": "s", "query": "q", "document": "d", "position": "p", "clicked": "c"}
    pd.read_csv("log.csv").rename(columns=renamed).to_parquet("log.parquet")
    data = tierank.make_ranking(30, n_features=3, mean_length=12, max_length=20, seed=1)
    named = tierank.RankingDataset(
        data.features, data.ratings, qid=data.query_ids[data.query_of_row], document_ids=range(data.n_documents)
    )
    names = {
        "data": named, "a": data.ratings, "b": -data.ratings, "list_a": "abc",
        "list_b": "bcd", "session_number": 7, "clicked": [1, 0, 0, 1], "outcomes": [1, -1, 0, 1],
    }  # fmt: skip
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 9
    rng = np.random.default_rng(0)
    names |= {"X": rng.random((12, 2)), "clicks": [0, 1, 0] * 4, "qid": np.arange(12) // 3, "position": [1, 2, 3] * 4}
    lists = tierank.RankingDataset(*(names[name] for name in ("X", "clicks", "qid")), position=names["position"])
    tierank.write(lists, "lists.csv")
    tierank.write(named, "documents.csv")
    for block in blocks:
        block = block.replace("UMart()", "UMart(n_trees=2)").replace("LambdaMART()", "LambdaMART(n_trees=2)")
        if "evaluate_ranking" in block:  # any ranker for these documents
            names["ranker"] = tierank.LambdaMART(n_trees=2).fit(named)
        if "simulate_clicks" in block:
            names["scores"] = data.ratings
        exec(compile(block.replace("100_000", "1_000"), "docs/clicks.md", "exec"), names)
    commands = re.findall(r"^tierank ((?:clicks|train) .*?)(?: +#.*)?$", page, re.MULTILINE)
    assert len(commands) == 11
    for command in commands:
        few = ["--set", "n_trees=2"] if command.startswith("train") else []
        assert cli.main([*command.split(), *few]) == 0, command
    capsys.readouterr()


@pytest.mark.parametrize("command", ["judge", "simulate"])
def test_a_name_that_cannot_be_written_is_refused_before_the_log_is_read(command, tmp_path, capsys):
    (tmp_path / "log.csv").write_text("read too early")
    code, _, error = run(capsys, command, tmp_path / "log.csv", "--out", tmp_path / "out.txt")
    assert code == 2
    assert "expected a name that ends in .csv or .parquet, got out.txt" in error


def test_positions_from_0_are_recognised_where_they_leave_nothing(tmp_path, capsys):
    rows = "".join(f"{session},q,{place},{place},0\n" for session in range(3) for place in range(4))
    (tmp_path / "log.csv").write_text("session,query,document,position,clicked\n" + rows)
    code, _, error = run(capsys, "describe", tmp_path / "log.csv")
    assert code == 2
    assert "read the log with --zero-based" in error
    assert run(capsys, "describe", tmp_path / "log.csv", "--zero-based")[0] == 0


def test_a_click_model_in_a_file_of_any_name(folder, tmp_path, capsys):
    assert run(capsys, "fit", folder / "log.csv", "--model", "pbm", "--out", tmp_path / "users")[0] == 0
    for command in ("judge", "simulate"):
        out = tmp_path / f"{command}.csv"
        assert run(capsys, command, folder / "log.csv", "--model", tmp_path / "users", "--out", out)[0] == 0


@pytest.mark.filterwarnings("default")  # the command says them on standard error
def test_logs_of_one_and_two_sessions(tmp_path, capsys):
    head, rows = "session,document,position,clicked\n", ["1,a,1,1\n1,b,2,0\n", "2,b,1,0\n2,a,2,1\n"]
    for n in (1, 2):
        (tmp_path / "log.csv").write_text(head + "".join(rows[:n]))
        code, out, error = run(capsys, "evaluate", tmp_path / "log.csv", "--score-column", "position")
        assert code == 0
        assert "nan" not in out + error
        assert ("a single session has no interval" in error) == (n == 1)
    code, out, error = run(capsys, "fit", tmp_path / "log.csv")
    assert code == 0
    assert "nan" not in out + error
    (tmp_path / "log.csv").write_text(head + "1,a,1,yes\n")
    code, _, error = run(capsys, "fit", tmp_path / "log.csv")
    assert code == 2
    assert "--clicked-column: expected 0 or 1, or a boolean, got 'yes'; write 1 for a click and 0 for none" in error


@pytest.mark.filterwarnings("default")
def test_positions_that_nothing_was_shown_in(tmp_path, capsys):
    rows = [f"{s},{(s + k) % 2},{p},{int(s % 3 == k)}" for s in range(30) for k, p in enumerate((1, 4))]
    (tmp_path / "log.csv").write_text("session,document,position,clicked\n" + "\n".join(rows) + "\n")
    for command in (["describe"], ["propensities", "--bootstrap", 5], ["fit"]):
        for extra in ([], ["--json"]):
            code, out, error = run(capsys, *command, tmp_path / "log.csv", *extra)
            assert code == 0
            assert "nan" not in (out + error).lower()
