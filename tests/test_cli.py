"""The command line as a user meets it: in a process of its own, with right and wrong input."""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import tierank
from tierank import cli
from tierank.cli.commands import MEANT, Parser
from tierank.cli.options import RANKERS, TARGETS
from tierank.clicks import reading
from tierank.io.layout import DOCUMENT_NAMES, QUERY_NAMES, RATING_NAMES
from tierank.metrics import default_metrics


@pytest.fixture
def files(tmp_path):
    data = tierank.make_ranking(20, n_features=6, mean_length=15, max_length=40, seed=3)
    tierank.write(data, tmp_path / "data.txt")
    others = tierank.make_ranking(20, n_features=6, mean_length=15, max_length=40, seed=4)
    tierank.write(others, tmp_path / "others.txt")
    rng = np.random.default_rng(0)
    tierank.write_scores(data.ratings + rng.normal(size=data.n_documents), tmp_path / "good.scores")
    tierank.write_scores(rng.normal(size=data.n_documents), tmp_path / "poor.scores")
    return tmp_path


def run(capsys, *arguments) -> tuple[int, str, str]:
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_and_version_in_a_process_of_their_own():
    for arguments, expected in (
        (["--help"], "describe"),
        (["--version"], tierank.__version__),
        (["compare", "-h"], "NAME="),
    ):
        done = subprocess.run([sys.executable, "-m", "tierank", *arguments], capture_output=True, text=True, check=True)
        assert expected in done.stdout
        assert not done.stderr


def all_commands():
    """The parser of every command, by the words that call it."""
    for name, command in [("", cli.TIERANK), *cli.TIERANK.walk()]:
        words = f"tierank {name}".strip()
        yield words, Parser(command, prog=words).fill()


def test_help_describes_every_option_and_its_default():
    for name, command in all_commands():
        for action in command._actions:
            where = (name, action.dest)
            assert isinstance(action, argparse._SubParsersAction) or action.help, where
            is_value = not isinstance(action.default, (bool, list, type(None))) and action.default != argparse.SUPPRESS
            if action.option_strings and is_value:
                assert f"(default: {str(action.default).removesuffix('.0')}" in action.help, where


def test_help_names_the_default_columns():
    options = {action.dest: action.help for action in dict(all_commands())["tierank describe"]._actions}
    for role, names in (("query", QUERY_NAMES), ("rating", RATING_NAMES), ("document", DOCUMENT_NAMES)):
        assert f"(default: {', '.join(names[:-1])} or {names[-1]})" in options[role]


def test_help_names_the_default_columns_of_click_logs():
    options = {action.dest: action.help for action in dict(all_commands())["tierank clicks fit"]._actions}
    for role, names in reading._NAMES.items():
        assert f"(default: {' or '.join([', '.join(names[:-1]), names[-1]])})" in options[role]


def test_help_names_the_default_metrics():
    for name in ("evaluate", "compare", "cv"):
        options = {action.dest: action.help for action in dict(all_commands())[f"tierank {name}"]._actions}
        assert f"(default: {','.join(default_metrics('tierank'))})" in options["metric"]


@pytest.mark.parametrize("width", [30, 80, 200])
def test_examples_in_the_help_can_be_copied(monkeypatch, width):
    """They are one line, and no word is broken."""
    monkeypatch.setenv("COLUMNS", str(width))
    for name, command in all_commands():
        text = command.format_help()
        if name != "tierank":
            assert text.splitlines()[-1].startswith(f"Example: {name} "), name
        for action in command._actions:
            for word in (action.help or "").split():
                assert action.help == argparse.SUPPRESS or word.replace("%%", "%") in text.split(), (name, word)


def test_describe(files, capsys):
    code, out, _ = run(capsys, "describe", files / "data.txt")
    assert code == 0
    assert "queries" in out
    code, out, _ = run(capsys, "describe", files / "data.txt", "--json")
    found = json.loads(out)
    assert (found["n_queries"], found["n_features"]) == (20, 6)


def test_describe_prints_the_papers_columns(real_data, capsys):
    code, out, _ = run(capsys, "describe", real_data / "OHSUMED", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["n_queries"], found["n_documents"], found["n_features"], found["n_rating_levels"]) == (
        106,
        16140,
        45,
        3,
    )
    assert found["max_documents"] == 320
    assert f"{found['lowest_share_per_query']:.2%}" == "71.87%"
    assert f"{found['lowest_share']:.2%}" == "70.03%"  # the paper prints 68.12%


def test_evaluate(files, capsys):
    arguments = ("evaluate", files / "data.txt", files / "good.scores", "--metric", "ndcg@5", "--metric", "map")
    data = tierank.read(files / "data.txt")
    expected = tierank.evaluate(data, tierank.read_scores(files / "good.scores", data), ["ndcg@5", "map"])
    code, out, _ = run(capsys, *arguments, "--json", "--per-query", files / "q.csv")
    assert code == 0
    assert json.loads(out)["metrics"]["ndcg@5"]["mean"] == expected.mean("ndcg@5")
    rows = (files / "q.csv").read_text().splitlines()
    assert rows[0] == "query,ndcg@5,map"
    assert len(rows) == 1 + data.n_queries
    code, out, _ = run(capsys, *arguments)
    assert f"{expected.mean('ndcg@5'):.4f}" in out
    assert "rule tierank" in out
    code, out, _ = run(capsys, *arguments, "--markdown", "--rule", "lightgbm")
    assert "| ndcg@5 |" in out
    assert "rule lightgbm" in out


def test_compare(files, capsys):
    arguments = ("compare", files / "data.txt", f"poor={files / 'poor.scores'}", f"good={files / 'good.scores'}")
    code, out, _ = run(capsys, *arguments, "--metric", "ndcg@10")
    assert code == 0
    assert "*" in out
    code, out, _ = run(capsys, *arguments, "--json", "--baseline", "good")
    assert json.loads(out)["baseline"] == "good"


@pytest.mark.parametrize("ending", [".txt", ".csv", ".parquet", ".tierank"])
def test_a_compared_run_has_the_values_of_its_table(files, capsys, ending):
    """From every format, and with the rows of a query anywhere; of a table, scores need no features."""
    data = tierank.read(files / "data.txt")
    rows = np.random.default_rng(1).permutation(data.n_documents)
    qid = np.repeat(data.query_ids, data.lengths)
    file, out = files / f"scattered{ending}", files / "run"
    tierank.write(tierank.RankingDataset(data.features[rows], data.ratings[rows], qid[rows]), file)
    read = tierank.read(file)
    scores = {"good": read.restore(read.ratings), "poor": read.restore(read.features[:, 0])}
    for name, values in scores.items():
        tierank.write_scores(values, files / f"{name}{ending}.scores")
    systems = [f"{name}={files / f'{name}{ending}.scores'}" for name in scores]
    code, printed, _ = run(capsys, "compare", file, *systems, "--metric", "ndcg@3", "--json", "--out", out)
    kept = tierank.Run.open(out).comparison
    assert code == 0
    for name in scores:
        assert json.loads(printed)["systems"][name]["ndcg@3"]["mean"] == kept.mean(name, "ndcg@3")
    assert kept.mean("good", "ndcg@3") == 1.0
    assert run(capsys, "report", out)[0] == 0


def test_options_of_training_without_rankers_are_refused(files, capsys):
    made = ("cv", "umart", "--data", files / "data.txt", "--set", "n_trees=1", "--jobs", 1, "--out", files / "run")
    assert run(capsys, *made)[0] == 0
    for option in (
        ("--seeds", 3),
        ("--data", files / "data.txt"),
        ("--set", "n_trees=7"),
        ("--trials", 4),
        ("--jobs", 2),
        ("--paper", "ohsumed"),
        ("--as", "authors"),
        ("--protocol", "lightgbm"),
        ("--select", "ndcg@3"),
        ("--query-column", "q"),
        ("--no-cache",),
    ):
        code, _, err = run(capsys, "cv", "--out", files / "run", *option)
        assert code == 2
        assert f"tierank: {option[0]}: expected rankers too, got none; without rankers, cv shows what" in err


def test_a_look_at_a_run_changes_none_of_its_files(files, capsys):
    made = ("cv", "umart", "lambdamart", "--data", files / "data.txt", "--set", "n_trees=1", "--jobs", 1)
    assert run(capsys, *made, "--out", files / "run")[0] == 0
    kept = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in (files / "run").rglob("*") if file.is_file()}
    assert {"table.md", "improvement.png"} <= {file.name for file in kept}
    for option in (
        ("--rule", "letor"), ("--metric", "map"), ("--baseline", "umart"), ("--json",),
        ("--markdown",), ("--quiet",), (),
    ):  # fmt: skip
        code, out, err = run(capsys, "cv", "--out", files / "run", *option)
        assert (code, err) == (0, ""), option
        assert "umart" in out
        now = {
            file: (file.stat().st_mtime_ns, file.read_bytes()) for file in (files / "run").rglob("*") if file.is_file()
        }
        assert now == kept, option


def test_options_of_tune_that_would_have_no_effect(files, capsys):
    common = ("tune", "umart", "--trials", 1, "--set", "n_trees=1", "--out", files / "best.json")
    data = files / "data.txt"
    code, _, err = run(capsys, *common, "--data", data, "--valid", data, "--fold", 2)
    assert (code, "--fold: expected a folder of folds as --data, got the file" in err) == (2, True)
    (files / "folds").mkdir()
    for number, part in enumerate(tierank.read(data).split(*[0.2] * 5), 1):
        tierank.write(part, files / "folds" / f"S{number}.txt")
    code, _, err = run(capsys, *common, "--data", files / "folds", "--valid", data)
    assert (code, "--valid: expected a file as --data, got" in err) == (2, True)
    assert run(capsys, *common, "--data", files / "folds", "--fold", 2)[0] == 0


def test_convert(files, capsys):
    for name in ("x.parquet", "x.csv", "x.tierank", "x.txt.gz", "x.qrels"):
        code, out, err = run(capsys, "convert", files / "data.txt", files / name)
        assert (code, out) == (0, "")
        assert f"wrote {files / name}" in err
    code, _, _ = run(capsys, "convert", files / "data.txt", files / "x.run", "--scores", files / "good.scores")
    assert code == 0
    assert (files / "x.run").read_text().split()[1] == "Q0"
    first, back = tierank.read(files / "data.txt"), tierank.read(files / "x.parquet")
    np.testing.assert_array_equal(first.features, back.features)


def test_train_predict_evaluate(files, capsys):
    data, model = files / "data.txt", files / "model"
    settings = (
        "--set",
        "n_trees=12",
        "--set",
        "min_documents=2",
        "--set",
        'select_by=["ndcg@5"]',
        "--set",
        "window=None",
    )
    code, out, err = run(
        capsys, "train", "umart", "--train", files / "others.txt", "--valid", data, "--out", model, *settings
    )
    assert (code, out) == (0, "")
    assert f"wrote {model}; on validation data: ndcg@5" in err
    assert not (files / "model.checkpoint").exists()
    ranker = tierank.load(model)
    assert (ranker.n_trees, ranker.window, ranker.select_by) == (12, None, ("ndcg@5",))
    code, out, _ = run(capsys, "predict", model, data)
    expected = ranker.predict(tierank.read(data))
    assert [float(line) for line in out.split()] == expected.tolist()
    code, out, _ = run(capsys, "predict", model, data, "--k", 2, "--out", files / "top.tsv")
    assert (code, out) == (0, "")
    rows = (files / "top.tsv").read_text().splitlines()
    assert rows[0].split("\t") == ["query", "rank", "row", "score"]
    assert len(rows) <= 1 + 2 * 20
    code, out, _ = run(capsys, "evaluate", data, model, "--metric", "ndcg@5", "--json")
    assert json.loads(out)["metrics"]["ndcg@5"]["mean"] == pytest.approx(ranker.best_["ndcg@5"])


@pytest.fixture
def model(files, capsys):
    """A model of six features, and a file that leaves out the last four of them."""
    settings = ("--set", "n_trees=3", "--set", "min_documents=2")
    assert (
        run(capsys, "train", "lambdamart", "--train", files / "data.txt", "--out", files / "model", *settings)[0] == 0
    )
    lines = [f"{i % 3} qid:ä{i // 4} 1:{i / 7:.3f} 2:{i % 5}\n" for i in range(12)]
    (files / "narrow.txt").write_text("".join(lines), encoding="utf-8")
    return files / "model"


def test_a_model_takes_text_that_leaves_out_the_last_features(files, model, capsys):
    narrow = files / "narrow.txt"
    code, out, _ = run(capsys, "predict", model, narrow)
    assert code == 0
    data = tierank.read(narrow, n_features=6)
    scores = np.array([float(line) for line in out.split()])
    np.testing.assert_array_equal(scores, tierank.load(model).predict(data))
    expected = tierank.evaluate(data, scores, "ndcg@3").mean("ndcg@3")
    code, out, _ = run(capsys, "evaluate", narrow, model, "--metric", "ndcg@3", "--json")
    assert code == 0
    assert json.loads(out)["metrics"]["ndcg@3"]["mean"] == expected
    code, out, _ = run(capsys, "compare", narrow, f"a={model}", f"b={model}", "--metric", "ndcg@3", "--json")
    assert code == 0
    assert json.loads(out)["systems"]["b"]["ndcg@3"]["mean"] == expected
    assert run(capsys, "convert", narrow, files / "narrow.tierank")[0] == 0
    assert run(capsys, "predict", model, files / "narrow.tierank")[1].split() == [repr(s) for s in scores.tolist()]


def test_text_with_more_features_than_the_model_is_refused_alike(files, model, capsys):
    wide = files / "wide.txt"
    wide.write_text("1 qid:1 1:1 9:1\n0 qid:1 1:2\n")
    for command in (("predict", model, wide), ("evaluate", wide, model), ("compare", wide, f"a={model}", f"b={model}")):
        code, out, err = run(capsys, *command)
        assert (code, out) == (2, "")
        assert "expected at most 6 features, as n_features or the model says, got 9" in err


def in_one_process(commands, environment):
    """What some commands print in one process with other variables of the environment; all of them succeed."""
    code = "import sys, tierank.cli; [sys.exit(one) for words in {} if (one := tierank.cli.main(words))]"
    words = [list(map(str, command)) for command in commands]
    command = [sys.executable, "-c", code.format(words)]
    done = subprocess.run(command, capture_output=True, env=os.environ | environment, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ids_of_any_script_in_any_locale(files, model):
    narrow, top, per_query = files / "narrow.txt", files / "top.tsv", files / "q.csv"
    tierank.write_scores(np.arange(12.0), files / "narrow.scores")
    commands = [
        ["predict", model, narrow, "--k", 2],
        ["predict", model, narrow, "--k", 2, "--out", top, "--quiet"],
        ["evaluate", narrow, model, "--per-query", per_query, "--quiet"],
        ["convert", narrow, files / "narrow.run", "--scores", files / "narrow.scores"],
    ]
    shown = in_one_process(commands, {"LC_ALL": "C", "PYTHONUTF8": "0"})
    assert shown.splitlines()[1].startswith("ä0\t1\t")
    assert shown.startswith(top.read_text(encoding="utf-8"))
    assert per_query.read_text(encoding="utf-8").splitlines()[1].startswith("ä0,")
    assert (files / "narrow.run").read_text(encoding="utf-8").startswith("ä0 Q0 row3 1 3.0")


def test_train_says_in_json_what_was_trained(files, capsys):
    data, model = files / "data.txt", files / "as-json"
    words = ["train", "umart", "--train", data, "--out", model, "--set", "n_trees=3", "--json"]
    code, out, _ = run(capsys, *words, "--valid", files / "others.txt", "--set", "select_by=ndcg@5,map")
    ranker = tierank.load(model)
    assert code == 0
    assert json.loads(out) == {
        "model": str(model),
        "ranker": "UMart",
        "n_features": ranker.n_features_in_,
        "n_steps": 3,
        "best": ranker.best_,
    }
    assert list(ranker.best_) == ["ndcg@5", "map"]
    assert json.loads(run(capsys, *words)[1])["best"] == {}


def test_an_interrupted_training_is_resumed(files, capsys, monkeypatch):
    data, settings = files / "data.txt", ("--set", "n_trees=120", "--set", "min_documents=2", "--set", "patience=500")
    run(capsys, "train", "lambdamart", "--train", data, "--out", files / "whole", *settings)
    from tierank.rankers import tree_training as tree_training

    stretch = tree_training.TreeTrainer._stretch

    def stop_in_the_second(self, *arguments):
        if self.state.texts:
            raise KeyboardInterrupt
        stretch(self, *arguments)

    command = ("train", "lambdamart", "--train", data, "--out", files / "cut", *settings)
    with monkeypatch.context() as patched:
        patched.setattr(tree_training.TreeTrainer, "_stretch", stop_in_the_second)
        assert run(capsys, *command)[0] == 130
    assert (files / "cut.checkpoint" / "state.json").exists()
    assert run(capsys, *command, "--resume")[0] == 0
    assert (files / "cut" / "trees.txt").read_text() == (files / "whole" / "trees.txt").read_text()


def test_demo(tmp_path, capsys):
    pytest.importorskip("torch", reason="without torch the demo leaves networks out")
    code, out, _ = run(capsys, "demo", "--out", tmp_path / "demo", "--queries", 30, "--jobs", 1)
    assert code == 0
    assert "umart" in out
    found = tierank.Run.open(tmp_path / "demo" / "run")
    assert found.systems == ("lambdamart", "umart", "urank", "blend")
    assert tierank.load(found.model("blend", 0, 0)).best_
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    assert (tmp_path / "demo" / "improvement.png").exists()
    commands = [line.split() for line in out.splitlines() if line.startswith("  tierank ")]
    assert len(commands) == 6
    for command in commands:  # what the demo says can be done is done
        fewer = ["--seeds", "1", "--jobs", "1"] if command[1] == "cv" else []
        assert run(capsys, *command[1:], *fewer)[0] == 0


def test_demo_of_every_model_of_the_paper(tmp_path, capsys):
    pytest.importorskip("torch", reason="without torch the demo leaves networks out")
    assert run(capsys, "demo", "--out", tmp_path / "demo", "--queries", 12, "--all")[0] == 0
    systems = tierank.Run.open(tmp_path / "demo" / "run").systems
    assert systems == ("lambdamart", "umart", "urank", "blend", "uboost", "urboost")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND; see tierank --help"),
        (["descripe"], "unknown command 'descripe': did you mean 'describe'?"),
        (["describe"], "the following arguments are required: DATA; see tierank describe --help"),
        (["describe", "{}/data.txt", "--formt=csv"], "option of tierank describe '--formt': did you mean '--format'?"),
        (["describe", "{}/data.txt", "more"], "unrecognized arguments: more; see tierank describe --help"),
        (["train", "umart", "--train", "x", "--out", "m", "-n", "5"], "arguments: -n 5; see tierank train --help"),
        (["help"], "unknown command 'help': Known: adopt, choose, clicks, "),
        (["help"], "train, tune; see tierank --help"),
        (["--quiet", "demo"], "unknown option of tierank '--quiet': Known: --help, --version"),
        (["clicks", "--seed", "1", "fit"], "unknown option of tierank clicks '--seed'"),
        (["clicks", "fitt"], "unknown command 'fitt': did you mean 'fit'?"),
        (["describe", "{}/none.txt"], "none.txt: expected a file, got nothing there"),
        (["describe", "{}"], "expected the folders Fold1 to Fold5 or the parts S1.txt to S5.txt"),
        (
            ["evaluate", "{}/data.txt", "{}/none"],
            "/none: expected a file of scores, or a model folder, got",
        ),
        (["evaluate", "{}/data.txt", "{}/data.txt"], "expected a file of scores, got LETOR text"),
        (["evaluate", "{}/data.txt", "{}/good.scores", "--metric", "ndgc@5"], "did you mean 'ndcg'?"),
        (["evaluate", "{}/data.txt", "{}/good.scores", "--metric", "NDCG10"], "'NDCG10': did you mean 'ndcg@10'?"),
        (["train", "umart", "--train", "{}/data.txt", "--outt", "{}/m"], "'--outt': did you mean '--out'?"),
        (["demo", "--queries", "2", "--out", "{}/demo"], "--queries: expected an integer >= 10, got 2"),
        (
            ["train", "umart", "--train", "{}/data.txt", "--out", "{}/m", "--set", "max_epochs=3"],
            "unknown setting of UMart 'max_epochs': URank, UBoost, UrBoost and others have it. Known:",
        ),
        (
            ["train", "umart", "--train", "{}/data.txt", "--out", "{}/m", "--n-trees", "5"],
            "unknown option of tierank train '--n-trees': give settings by --set n_trees=...",
        ),
        (
            ["train", "umart", "--train", "{}/data.txt", "--out", "m", "--set", "select_by=ndcg@5,mpa"],
            "did you mean 'map'?",
        ),
        (["evaluate", "{}/data.txt", "{}/good.scores", "--rule", "lightgmb"], "did you mean 'lightgbm'?"),
        (["compare", "{}/data.txt", "{}/good.scores"], "expected at least two systems to compare, got 1"),
        (["compare", "{}/data.txt", "{}/good.scores", "=x"], "expected PATH or NAME=PATH, got '=x'"),
        (
            ["compare", "{}/data.txt", "{}/good.scores", "{}/good.scores"],
            "expected each name once, got 'good.scores' twice; name one: other={}/good.scores",
        ),
        (["compare", "{}/data.txt", "a=x", "a=y"], "expected each name once, got 'a' twice"),
        (["compare", "{}/data.txt", "a={}/good.scores"], "expected at least two"),
        (["convert", "{}/data.txt", "{}/x.run"], "expected --scores with an OUT that ends in .run, and only with it"),
        (["convert", "{}/data.txt", "{}/good.scores/x.csv"], "x.csv: expected a folder above it, got the file"),
        (
            ["train", "umrat", "--train", "{}/data.txt", "--out", "{}/m"],
            "unknown ranker 'umrat': did you mean 'umart'?",
        ),
        (
            ["train", "umart", "--train", "{}/data.txt", "--out", "{}/m", "--set", "n_trees"],
            "expected NAME=VALUE, such as",
        ),
        (["train", "umart", "--train", "{}/data.txt", "--out", "{}/m", "--set", "n_tree=3"], "did you mean 'n_trees'?"),
        (
            ["train", "umart", "--train", "{}/data.txt", "--out", "{}/m", "--timeout", "9"],
            "--timeout: expected --ranks above 1, as a single process does not wait, got 1",
        ),
        (["predict", "{}/nothing", "{}/data.txt"], "expected a model folder"),
        (["demo", "--out", "{}/x", "--queries", "0"], "--queries: expected an integer"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_caller_can_fix_is_one_line_and_exit_2(files, capsys, arguments, message):
    code, out, err = run(capsys, *(argument.format(files) for argument in arguments))
    assert (code, out) == (2, "")
    assert message.replace("={}", f"={files}") in err
    assert err.startswith("tierank: ")
    assert err.count("\n") == 1


def test_a_model_where_data_are_expected(files, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.json").write_text("{}")
    code, _, err = run(capsys, "evaluate", tmp_path / "model", files / "data.txt")
    assert (code, err) == (2, f"tierank: {tmp_path / 'model'}: expected a file of data, got the folder of a model\n")


def test_the_list_of_rankers_says_which_to_start_with(capsys):
    code, out, err = run(capsys, "list", "rankers")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(tierank.RANKERS)
    assert "Which one? blend: the best we measured" in err


@pytest.mark.parametrize("module", ["tierank.cli", "argparse", "tierank.errors", "tierank.cli.installation"])
def test_an_interrupt_while_the_program_is_loaded_ends_quietly(module):
    program = f"""
import runpy, sys
class Pressed:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, Pressed())
sys.argv = ["tierank", "list", "rankers"]
runpy.run_module("tierank", run_name="__main__", alter_sys=True)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "tierank: stopped\n")


def test_the_program_is_the_one_that_loads_the_command_line_late():
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"tierank": "tierank.__main__:main"}


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_taken_as_empty(files, tmp_path, closed):
    """Files would get the numbers of closed streams, and what libraries print would go into them."""
    command = [sys.executable, "-m", "tierank", "convert", str(files / "data.txt"), str(tmp_path / "out.txt")]
    found = subprocess.run(["sh", "-c", f"{shlex.join(command)} {closed}"], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")
    assert "Traceback" not in found.stderr
    assert tierank.read(tmp_path / "out.txt").n_documents == tierank.read(files / "data.txt").n_documents


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param("2> /dev/full", marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")),
        "2>&1 > /dev/null | :",  # a pipe that nobody reads
    ],
)
def test_messages_that_cannot_be_written_do_not_end_the_work(files, tmp_path, lost):
    out = tmp_path / "model"
    command = [sys.executable, "-m", "tierank", "train", "umart", "--train", str(files / "data.txt"), "--out", str(out)]
    command = shlex.join([*command, "--set", "n_trees=2"])
    found = subprocess.run(["sh", "-c", f"({command}; echo $? > {tmp_path / 'code'}) {lost}"], capture_output=True)
    assert (found.stderr, (tmp_path / "code").read_text()) == (b"", "0\n")
    assert tierank.load(out).n_trees == 2
    wrong = shlex.join([sys.executable, "-m", "tierank", "train", "nonsense"])
    subprocess.run(["sh", "-c", f"({wrong}; echo $? > {tmp_path / 'code'}) {lost}"], capture_output=True)
    assert (tmp_path / "code").read_text() == "2\n"


def test_a_closed_standard_input_has_no_lines():
    command = f"{shlex.quote(sys.executable)} -m tierank describe - <&-"
    found = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert found.returncode == 2
    assert found.stderr.startswith("tierank: standard input: expected at least one line")


def test_an_interrupt_ends_quietly(files, capsys, monkeypatch):
    monkeypatch.setattr("tierank.cli.data.read_data", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    code, _, err = run(capsys, "describe", files / "data.txt")
    assert (code, err) == (130, "tierank: stopped\n")


def test_a_closed_pipe_is_no_error(files):
    command = f"{sys.executable} -m tierank describe {files / 'data.txt'} --json | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout == "{\n"
    assert "Error" not in done.stderr


def test_cv_prints_the_table_and_goes_on(tmp_path, capsys):
    for number, part in enumerate(
        tierank.make_ranking(30, n_features=4, mean_length=8, max_length=12).split(*[0.2] * 5)
    ):
        tierank.write(part, tmp_path / f"S{number + 1}.txt")
    out = tmp_path / "run"
    command = ["cv", "lambdamart", "small=umart,n_leaves=4,window=null", "--data", str(tmp_path), "--out", str(out)]
    command += ["--set", "n_trees=3", "--jobs", "1", "--select", "ndcg@3,ndcg@10", "--metric", "ndcg@3"]
    assert cli.main(command) == 0
    shown = capsys.readouterr()
    assert "small" in shown.out
    assert "means over the test queries of 5 folds; one seed" in shown.out
    assert f"wrote {out}: table.md, scores and models; tierank report" in shown.err
    assert cli.main(command) == 0  # nothing is trained
    was_there = "the scores and models were there already"
    assert f"wrote {out}/table.md; {was_there}: tierank report" in capsys.readouterr().err
    assert cli.main([*command, "--seeds", "2"]) == 0
    assert f"wrote {out}: table.md, scores and models; tierank report" in capsys.readouterr().err
    assert (out / "table.md").read_text().startswith("**")
    assert (out / "improvement.svg").exists()
    settings = json.loads((out / "results" / "small" / "fold1-seed0" / "result.json").read_text())["settings"]
    assert (settings["n_leaves"], settings["window"], settings["n_trees"]) == (4, None, 3)
    assert settings["select_by"] == ["ndcg@3", "ndcg@10"]
    assert cli.main(["cv", "--out", str(out), "--baseline", "small", "--metric", "ndcg@1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["comparison"]["baseline"] == "small"
    assert list(found["comparison"]["systems"]["lambdamart"]) == ["ndcg@1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["umrat", "--data", "x"], "unknown ranker 'umrat': did you mean 'umart'?"),
        (["umart", "umart", "--data", "x"], "expected each name once, got 'umart' twice; name one: other=umart"),
        (["umart"], "expected --data: a folder of folds, or a file to split into five parts"),
        (["umart", "--data", "x", "--paper", "oshumed"], "unknown paper 'oshumed': did you mean 'ohsumed'?"),
        (["umart", "--data", "x", "--as", "authors"], "--as: expected --paper too"),
        (["umart", "--data", "x", "--all-rows"], "--all-rows: expected --paper too, or a run that was made with it"),
        (
            ["umart", "--data", "x", "--paper", "ohsumed", "--as", "author"],
            "unknown family 'author': did you mean 'authors'?",
        ),
        (["umart,max_depth=3", "--data", "none"], "none: expected a file, got nothing there"),
        # Settings are looked at before data.
        (["umart,depth=3", "--data", "x"], "unknown setting of UMart 'depth': did you mean 'max_depth'?"),
        (
            ["umart", "urank", "--data", "x", "--set", "max_epoch=3"],
            "unknown setting of umart, urank 'max_epoch': did you mean 'max_epochs'?",
        ),
        (
            ["urank", "--data", "none", "--set", "network=attention", "--set", "network_settings={'n_blocks': 1}"],
            "none: expected a file, got",
        ),
        (["umart", "--data", "x", "--set", "n_trees=0"], "n_trees: expected an integer >= 1, got 0"),
        (["--scores", "x=s{y}.txt", "--data", "data.txt"], "expected {fold} in the file name of 'x', in place of 1 to"),
        (["--scores", "x=s{}.txt", "--data", "data.txt"], "expected {fold} in the file name of 'x', in place of 1 to"),
        (["--scores", "x=s{y}{fold}.txt", "--data", "data.txt"], "s{y}1.txt: expected a file"),
        ([], "expected the folder of a run, with run.json in it, got none"),
    ],
)
def test_cv_refuses_in_one_line(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    tierank.write(tierank.make_ranking(5, n_features=2, mean_length=8, max_length=12), "data.txt")
    Path("x").write_text("read too early")
    assert cli.main(["cv", *arguments, "--out", "run"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train umart --train x --out m --set max_epochs=3", "unknown setting of UMart 'max_epochs'"),
        ("train urank --train x --out m --set n_trees=3", "unknown setting of URank 'n_trees'"),
        ("tune umart --data x --valid x --out t --set max_epochs=3", "unknown setting of UMart 'max_epo"),
    ],
)
def test_settings_are_looked_at_before_data(tmp_path, capsys, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    Path("x").write_text("read too early")
    code, _, err = run(capsys, *command.split())
    assert code == 2
    assert message in err


def test_settings_of_cv_go_to_the_rankers_that_have_them(tmp_path, capsys):
    tierank.write(tierank.make_ranking(20, n_features=2, mean_length=8, max_length=12), tmp_path / "data.txt")
    rankers = ("lambdamart", "linear", "own=lambdamart,n_trees=2")
    settings = ("--set", "n_trees=3", "--set", "select_by=mrr", "--jobs", "1")
    code, _, err = run(capsys, "cv", *rankers, *settings, "--data", tmp_path / "data.txt", "--out", tmp_path / "run")
    assert code == 0
    assert "--set n_trees: not for linear, which has no such setting\n" in err
    results = [
        tmp_path / "run" / "results" / name / "fold1-seed0" for name in tierank.Run.open(tmp_path / "run").systems
    ]
    found = [json.loads((place / "result.json").read_text())["settings"] for place in results]
    assert [one.get("n_trees") for one in found] == [3, None, 2]
    assert [one["select_by"] for one in found] == [["mrr"]] * 3


def test_compare_names_systems_by_their_files(files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = tierank.read(files / "data.txt")
    tierank.LinearRanker().fit(data).save("linear")
    code, out, err = run(
        capsys, "compare", "data.txt", "linear/", files / "good.scores", "again=linear", "--json", "--metric=NDCG@3"
    )
    assert (code, err) == (0, "")
    systems = json.loads(out)["systems"]
    assert list(systems) == ["linear", "good.scores", "again"]
    assert systems["linear"] == systems["again"]
    assert list(systems["linear"]) == ["ndcg@3"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("export model --to c --out x --data data.txt", "'--data': did you mean '--verify'?"),
        ("train umart --train data.txt --out m --test data.txt", "'--test': judge by test data with tierank evaluate"),
        ("train umart --data data.txt --out m", "'--data': did you mean '--train'?"),
        ("tune umart --train data.txt --out m", "'--train': did you mean '--data'?"),
        ("evaluate data.txt model --metrics map", "'--metrics': did you mean '--metric'?"),
        ("train umart --train data.txt --out m --metrics map", "'--metrics': did you mean '--set select_by'?"),
        ("train umart --train data.txt --out m --label y", "'--label': did you mean '--rating-column'?"),
        ("cv umart --data data.txt --out run --workers 2", "'--workers': did you mean '--jobs'?"),
        ("train umart --train data.txt --out m --learning-rate .1", "give settings by --set learning_rate=..."),
    ],
)
def test_options_of_other_commands_lead_to_the_right_one(capsys, command, message):
    code, _, err = run(capsys, *command.split())
    assert code == 2
    assert message in err


def test_options_that_are_suggested_exist():
    known = {option for _, command in all_commands() for option in command._option_string_actions}
    suggested = {one.split()[0] for meant in MEANT.values() for one in meant if one.startswith("--")}
    assert suggested <= known


def test_names_that_are_checked_early_are_those_of_the_tables():
    assert set(RANKERS) == set(tierank.RANKERS)
    assert set(TARGETS) == set(tierank.TARGETS)


HEAVY = ["sklearn", "lightgbm", "torch", "pandas"]
MISTYPED = [
    "train umrt --train data.txt --out m",
    "train umart --train none.txt --out m",
    "train umart --train data.txt --test data.txt --out m",
    "train umart --train data.txt --outt m",
    "distill model --train data.txt --into umrt --out m",
    "evaluate data.txt good.scores --metric ndgc@10",
    "evaluate data.txt good.scores --rule lightgmb",
    "evaluate data.txt none.scores",
    "evaluate none.txt good.scores",
    "compare data.txt a=good.scores b=none",
    "predict none data.txt",
    "export model --to lucene --out x",
    "export none --to c --out x",
    "explain none data.txt --query 1 --above 1 --below 2",
    "cv lambdmart --data data.txt --out run",
    "cv new=lambdmart,n_trees=3 --data data.txt --out run",
    "cv lambdamart --data none.txt --out run",
    "cv lambdamart --data data.txt --out run --metric ndgc",
    "tune umrt --data data.txt --out t.json",
    "tune umart --data none.txt --out t.json",
    "list settings umrt",
    "describe none.txt",
    "convert none.txt x.csv",
    "serve none",
    "report none",
    "clicks describe none.csv",
]


def test_a_mistyped_name_costs_no_large_import(files):
    """One process for all of them: what the first ones import, the last ones would show."""
    (files / "model").mkdir()
    code = f"""if True:
        import sys
        from tierank import cli
        for command in {MISTYPED!r}:
            code = cli.main(command.split())
            print(code, [one for one in {HEAVY!r} if one in sys.modules], command)
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=files, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"2 [] {command}" for command in MISTYPED], done.stderr
    assert done.stderr.count("\n") == len(MISTYPED)


def test_files_are_utf8_whatever_the_system_writes_by_itself(tmp_path, capsys):
    data = tierank.make_ranking(6, n_features=2, mean_length=8, max_length=12)
    qid = [f"café {query}" for query in np.repeat(data.query_ids, data.lengths).tolist()]
    data = tierank.RankingDataset(data.features, data.ratings, qid)
    fold = data.split(0.5, 0.2, 0.3)
    tierank.write(data, tmp_path / "data.csv")
    rankers = {"umart": tierank.UMart(n_trees=2)}
    tierank.cross_validate(rankers, [fold], seeds=2, paper="ohsumed", out=tmp_path / "run", n_jobs=1)
    tierank.write(fold[2], tmp_path / "test.csv")
    model = tierank.Run.open(tmp_path / "run").model("umart", 0, 0)
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "utf-8"}
    commands = (
        f"cv umart --set n_trees=2 --seeds 2 --jobs 1 --data {tmp_path / 'data.csv'} --out {tmp_path / 'again'}",
        f"evaluate {tmp_path / 'test.csv'} {model} --per-query {tmp_path / 'values.csv'}",
        f"predict {model} {tmp_path / 'test.csv'} --k 1 --out {tmp_path / 'ranked.tsv'}",
    )
    in_one_process([command.split() for command in commands], plain)
    table = (tmp_path / "again" / "table.md").read_text(encoding="utf-8")
    assert "±" in table
    for name in ("values.csv", "ranked.tsv"):
        assert "café" in (tmp_path / name).read_text(encoding="utf-8")


def test_the_leaking_protocol_says_so_twice(tmp_path, capsys):
    tierank.write(tierank.make_ranking(30, n_features=4, mean_length=8, max_length=12), tmp_path / "data.txt")
    command = [
        "cv",
        "umart",
        "--set",
        "n_trees=2",
        "--data",
        str(tmp_path / "data.txt"),
        "--out",
        str(tmp_path / "run"),
    ]
    assert cli.main([*command, "--protocol", "lightgbm", "--jobs", "1"]) == 0
    shown = capsys.readouterr()
    assert "WARNING: protocol lightgbm LEAKS" in shown.err
    assert "protocol lightgbm LEAKS" in shown.out


def test_tune_writes_settings_that_train_takes(tmp_path, capsys):
    train, valid = tierank.make_ranking(30, n_features=4, mean_length=8, max_length=12).split(0.6, 0.4)
    tierank.write(train, tmp_path / "train.txt")
    tierank.write(valid, tmp_path / "valid.txt")
    found = tmp_path / "found.json"
    files = ["--data", str(tmp_path / "train.txt"), "--valid", str(tmp_path / "valid.txt")]
    assert cli.main(["tune", "umart", *files, "--trials", "3", "--set", "n_trees=4", "--out", str(found)]) == 0
    assert "best of 3: ndcg@10" in capsys.readouterr().err
    settings = json.loads(found.read_text())["settings"]
    files = ["--train", str(tmp_path / "train.txt"), "--valid", str(tmp_path / "valid.txt")]
    assert cli.main(["train", "umart", *files, "--settings", str(found), "--out", str(tmp_path / "model")]) == 0
    loaded = tierank.load(tmp_path / "model")
    assert {name: loaded.get_params()[name] for name in settings} == settings
    assert settings["n_trees"] == 4
    capsys.readouterr()
    assert cli.main(["train", "urank", *files, "--settings", str(found), "--out", str(tmp_path / "other")]) == 2
    assert "expected settings of urank, got those of umart" in capsys.readouterr().err
    assert cli.main(["tune", "umart", "--data", str(tmp_path / "train.txt"), "--out", str(found)]) == 2
    assert "expected --valid F with a file of training data" in capsys.readouterr().err


def test_tune_writes_tables_and_names_the_callers_code(tmp_path, capsys, monkeypatch):
    """Keys of JSON are texts, and a function cannot be written: train needs it again."""
    (tmp_path / "own_gains.py").write_text("def doubled(ratings):\n    return 2.0 * ratings\n")
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("train.txt", "valid.txt")):
        tierank.write(tierank.make_ranking(30, n_features=4, mean_length=8, max_length=12, seed=seed), name)
    tune = ["tune", "umart", "--data", "train.txt", "--valid", "valid.txt", "--trials", "1", "--set", "n_trees=2"]
    train = ["train", "umart", "--train", "train.txt", "--settings", "found.json", "--out", "model"]
    table = {0: 0, 1: 1, 2: 3.5, 3: 7, 4: 15}
    assert cli.main([*tune, "--set", f"gain={table}", "--out", "found.json"]) == 0
    assert cli.main(train) == 0
    assert tierank.load("model").gain == table
    capsys.readouterr()
    assert cli.main([*tune, "--set", "gain=own_gains:doubled", "--out", "own.json"]) == 0
    assert "use it: tierank train umart --settings own.json --set gain=own_gains:doubled ..." in capsys.readouterr().err
    assert "gain" not in json.loads(Path("own.json").read_text())["settings"]


@pytest.mark.parametrize("settings", ["[]", '[["n_trees", 2]]', "null", "[" * 100_000, '{"gain": "{0: "}'])
def test_files_that_hold_no_settings_are_refused(settings, tmp_path, capsys):
    (tmp_path / "odd.json").write_text('{"ranker": "umart", "settings": ' + settings + "}")
    odd = str(tmp_path / "odd.json")  # as data too, which would be refused if they were read first
    command = ["train", "umart", "--train", odd, "--settings", odd, "--out", "model"]
    assert cli.main(command) == 2
    assert 'odd.json: expected {"ranker": ..., "settings": {...}}, as tune writes it' in capsys.readouterr().err


def test_a_comparison_can_be_kept_as_a_run(tmp_path, capsys):
    data = tierank.make_ranking(12, n_features=4, mean_length=8, max_length=12)
    tierank.write(data, tmp_path / "test.txt")
    tierank.write_scores(data.restore(data.ratings), tmp_path / "good.scores")
    tierank.write_scores(-data.restore(data.ratings), tmp_path / "bad.scores")
    scores = [f"bad={tmp_path / 'bad.scores'}", f"good={tmp_path / 'good.scores'}"]
    command = ["compare", str(tmp_path / "test.txt"), *scores, "--out", str(tmp_path / "run")]
    assert cli.main(command) == 0
    kept = tierank.Run.open(tmp_path / "run")
    assert kept.plan.kind == "compare"
    assert kept.comparison.mean("good", "ndcg@10") == 1.0
    capsys.readouterr()
    assert cli.main(command) == 2
    assert "expected a new folder, got one with a run in it" in capsys.readouterr().err
