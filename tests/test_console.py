"""The command line's own ways: settings as they are written, places, pipes, lists, and words."""

import gzip
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tierank
from tierank import cli
from tierank.cli.console import in_options, line_of
from tierank.cli.options import named, settings_of
from tierank.errors import DataError, ParameterError
from tierank.settings import as_flag

COMMANDS = dict(cli.TIERANK.walk())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = tierank.make_ranking(12, n_features=3, mean_length=8, max_length=12, seed=3)
    tierank.write(data, "data.txt")
    tierank.write(tierank.make_ranking(12, n_features=3, mean_length=8, max_length=12, seed=4), "valid.txt")
    tierank.write_scores(np.arange(float(data.n_documents)), "a.scores")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["describe", ""],
        ["describe", "data.txt", "--html", ""],
        ["describe", "data.txt", "--html="],
        ["train", "umart", "--train", "", "--out", "m"],
        ["train", "umart", "--train", "data.txt", "--out="],
        ["cv", "umart", "", "--data", "data.txt", "--out", "run"],
        ["evaluate", "data.txt", ""],
        ["clicks", "describe", ""],
    ],
)
def test_empty_arguments_are_refused(folder, capsys, arguments):
    before = sorted(folder.iterdir())
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"tierank: .* expected a value, got an empty text( after --\w+)?; is a variable of .*\n", err)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "data.txt", "a=a.scores", "--seed", "x"], "--seed: expected an integer, got 'x'"),
        (["compare", "data.txt", "a=a.scores", "--unjudged", "x"], r"--unjudged: expected one of .*zero.*, got 'x'"),
        (["evaluate", "data.txt", "a.scores", "--metric", "nowhere:x"], "nowhere:x: expected a module that can be imp"),
        (["clicks", "fit", "log.csv", "--held-out", "x\ny"], r"--held-out: expected a number, got 'x\\ny'"),
    ],
)
def test_values_of_another_type_are_refused_in_our_words(folder, capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert re.search(f"{message}.*; see tierank .* --help\n", err)


@pytest.mark.parametrize(
    "option",
    [
        "--query-column",
        "--rating-column",
        "--document-column",
        "--row-weight-column",
        "--query-weight-column",
        "--features",
        "--ignore",
        "--categories",
        "--dates",
        "--means",
        "--now",
    ],
)
def test_options_that_name_columns_are_refused_for_text(folder, capsys, option):
    code, _, err = run(capsys, "describe", "data.txt", option, "x")
    assert code == 2
    assert re.fullmatch(
        rf"tierank: data.txt: .*({option}|--categories, --dates or the like): expected a table .*\n", err
    )


def test_the_query_column_of_attributes_is_not_one_of_the_data(folder, capsys):
    ids = tierank.read("data.txt").query_ids
    Path("attributes.csv").write_text("search,device\n" + "".join(f"{one},{one % 2}\n" for one in ids))
    arguments = ["--by", "device", "--attributes", "attributes.csv", "--query-column", "search"]
    code, out, err = run(capsys, "evaluate", "data.txt", "a.scores", *arguments)
    assert (code, err) == (0, "")
    assert "device" in out


def test_a_name_with_a_line_break_stays_on_the_line(folder, capsys):
    arguments = ["--train", "data.txt", "--out", "m", "--settings", "no\nfile"]
    code, _, err = run(capsys, "train", "umart", *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("tierank: no\\nfile: expected a path that can be read or written, got: No such file")


def test_a_current_folder_that_was_removed_is_named(folder, capsys, monkeypatch):
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, _, err = run(capsys, "cv", "umart", "--data", folder / "data.txt", "--out", "run")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("tierank: the current folder: expected one that exists, got one that was removed")


@pytest.fixture
def model(folder):
    tierank.UMart(n_trees=3, min_documents=2).fit(tierank.read("data.txt")).save("model")
    return folder / "model"


def run(capsys, *arguments) -> tuple[int, str, str]:
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# Warnings of the library


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            "row",
            "each of the 2,001 rows is a separate query, and a list of one document has no order to learn: name the",
        ),
        ("shop", "all 2,001 rows are one query, longer than lists of candidates are: name the"),
    ],
)
def test_a_wrong_column_of_query_ids_is_noticed(column, message, tmp_path, capsys):
    lines = [f"{k},all,{k % 3},{k % 7}" for k in range(2001)]
    (tmp_path / "data.csv").write_text("\n".join(["row,shop,rating,price", *lines]))
    places = ["--train", tmp_path / "data.csv", "--valid", tmp_path / "data.csv", "--out", tmp_path / "model"]
    code, _, err = run(
        capsys, "train", "umart", *places, "--query-column", column, "--features", "price", "--set", "n_trees=2"
    )
    assert code == 0
    warned = [line for line in err.splitlines() if "WARNING" in line]
    assert [line.startswith(f"WARNING: {of}{message}") for of, line in zip(("", "--valid: "), warned, strict=True)] == [
        True,
        True,
    ]
    assert all("column of query ids with --query-column" in line for line in warned)


# Settings


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("False", False),
        ("false", False),
        ("True", True),
        ("None", None),
        ("null", None),
        ("(100, 50)", (100, 50)),
        ("[100, 50]", [100, 50]),
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("query_log1p", "query_log1p"),
        ('["ndcg@5"]', ["ndcg@5"]),
        ("no", "no"),
        ("(1", "(1"),
    ],
)
def test_settings_are_read_as_json_or_python_write_them(text, value):
    assert settings_of([named(f"name={text}")]) == {"name": value}


def test_a_switch_that_is_set_to_false_is_off(folder, capsys):
    train = ("train", "umart", "--train", "data.txt", "--out", "m", "--set", "n_trees=2")
    assert run(capsys, *train, "--set", "query_features=False")[0] == 0
    assert tierank.load("m").query_features is False
    code, _, err = run(capsys, *train, "--set", "query_features=no")
    assert (code, err) == (2, "tierank: query_features: expected True or False, got 'no'\n")
    code, _, err = run(capsys, "train", "blend", "--train", "data.txt", "--out", "b", "--set", "rotate=no")
    assert (code, err) == (
        2,
        "tierank: rotate: expected True or False, or None (True if there are no networks), got 'no'\n",
    )


@pytest.mark.parametrize("value", ["False", "no", 0, 1, None])
def test_a_flag_is_true_or_false_and_nothing_else(value):
    with pytest.raises(ParameterError, match="rotate: expected True or False, got"):
        as_flag("rotate", value)
    assert as_flag("rotate", np.bool_(False)) is False


def test_tune_holds_what_is_set(folder, capsys):
    pytest.importorskip("optuna")
    files = ("--data", "data.txt", "--valid", "valid.txt", "--out", "found.json", "--trials", 4)
    assert run(capsys, "tune", "umart", *files, "--set", "n_trees=2", "--set", "n_leaves=7")[0] == 0
    found = json.loads((folder / "found.json").read_text())
    assert found["settings"]["n_leaves"] == 7
    assert all("n_leaves" not in trial for trial in found["trials"])
    Path("odd.txt").write_text("read too early")
    code, _, err = run(capsys, "tune", "blend", "--data", "odd.txt", "--out", "found.json")
    assert code == 2
    assert "Blend has no default search space" in err
    assert "give one as space" in err
    assert "space of your own" not in err


# Places


@pytest.mark.parametrize("out", ["folder", "a.scores", "a.scores/model"])
def test_train_refuses_a_place_before_it_reads(folder, capsys, out):
    (folder / "folder").mkdir()
    (folder / "folder" / "mine.txt").touch()
    (folder / "odd.txt").write_text("read too early")
    before = sorted(folder.rglob("*"))
    code, _, err = run(capsys, "train", "umart", "--train", "odd.txt", "--out", out)
    assert code == 2
    assert err.startswith(f"tierank: {out}: expected ")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "command",
    [
        ("predict", "model", "odd.txt", "--out"),
        ("evaluate", "odd.txt", "model", "--per-query"),
        ("explain", "model", "odd.txt", "--query", "1", "--above", "1", "--below", "2", "--out"),
        ("export", "model", "--to", "c", "--verify", "odd.txt", "--out"),
        ("report", "odd.txt", "--out"),
        ("describe", "odd.txt", "--html"),
        ("tune", "umart", "--data", "odd.txt", "--out"),
        ("cv", "umart", "--data", "odd.txt", "--out"),
        ("compare", "odd.txt", "a=a.scores", "b=a.scores", "--out"),
    ],
    ids=lambda command: command[0],
)
def test_all_commands_refuse_a_place_before_the_work(model, capsys, command):
    Path("odd.txt").write_text("read too early")
    code, _, err = run(capsys, *command, "data.txt/x")
    assert code == 2
    assert err.startswith("tierank: data.txt/x: expected a folder above it, got the file ")
    assert ".new" not in err


def test_folders_above_what_is_written_are_made(model, capsys):
    assert run(capsys, "predict", "model", "data.txt", "--out", "x/y/s.txt")[0] == 0
    assert run(capsys, "evaluate", "data.txt", "x/y/s.txt", "--per-query", "q/q.csv")[0] == 0
    assert run(capsys, "convert", "data.txt", "z/data.csv")[0] == 0
    code, _, err = run(capsys, "predict", "model", "data.txt", "--out", "x")
    assert (code, err) == (2, "tierank: x: expected the name of a file, got a folder there; choose another name\n")


@pytest.mark.parametrize("name", ["k", "seed", "valid", "position", "a.csv: rating"])
def test_a_file_with_the_name_of_an_argument_is_not_an_option(name):
    error = DataError(where=name, expected="a table", got="k: 3")
    rename = COMMANDS["predict"].rename
    assert line_of(error, rename) == f"{name}: expected a table, got k: 3"
    wrong = ParameterError(argument="k", expected="an integer", got="x")
    assert line_of(wrong, rename) == "--k: expected an integer, got x"


def test_the_system_speaks_of_the_callers_path():
    for unfinished in ("models/.best.4711.new", "models/.best.abcd1234.new/best"):
        line = line_of(OSError(28, "No space left on device", unfinished))
        assert line == "models/best: expected a path that can be read or written, got: No space left on device"


def test_messages_of_runs_speak_of_options():
    for message, line in (
        ("fewer processes (`n_jobs`) need less", "fewer processes (--jobs) need less"),
        ("a name of its own, or", "a name of its own, or"),
        ("choose another name, such as new=urank", "choose another name, such as new=urank"),
        ("n_jobs=1 works in this process, and sends", "--jobs 1 works in this process, and sends"),
    ):
        assert in_options(message, COMMANDS["cv"].rename) == line


def test_convert_refuses_what_its_name_does_not_say_and_its_own_input(model, capsys):
    for out, message in (
        ("a.xlsx", "a.xlsx: expected a name that ends in .txt, "),
        ("data.txt", "data.txt: expected a file other than the one that is read"),
    ):
        before = (model.parent / "data.txt").stat().st_mtime_ns
        code, _, err = run(capsys, "convert", "data.txt", out)
        assert code == 2
        assert message in err
        assert (model.parent / "data.txt").stat().st_mtime_ns == before
    code, _, err = run(capsys, "convert", "data.txt", "a.run", "--scores", "model")
    assert code == 2
    assert "model: expected a file of scores, got a folder" in err


def test_the_demo_leaves_other_data_alone(folder, capsys):
    (folder / "demo").mkdir()
    mine = folder / "demo" / "valid.txt"
    mine.write_text("mine\n")
    code, _, err = run(capsys, "demo", "--queries", 30)
    assert code == 2
    assert "demo/valid.txt: expected no file, or the one of this demo, got another" in err
    assert [file.name for file in (folder / "demo").iterdir()] == ["valid.txt"]
    assert mine.read_text() == "mine\n"


def test_a_demo_of_other_data_is_refused_and_its_report_is_made(folder, capsys, monkeypatch):
    from tierank.experiments import demo

    monkeypatch.setattr(demo, "_SHOWN", ("lambdamart", "umart"))
    assert run(capsys, "demo", "--queries", 30)[0] == 0
    before = {file: file.read_bytes() for file in (folder / "demo").glob("*.txt")}
    code, _, err = run(capsys, "demo", "--queries", 25)
    assert code == 2
    assert "train.txt: expected no file, or the one of this demo, got another" in err
    assert before == {file: file.read_bytes() for file in (folder / "demo").glob("*.txt")}
    (folder / "demo" / "report.html").unlink()
    assert run(capsys, "report", "demo")[0] == 0
    assert (folder / "demo" / "report.html").exists()


# Pipes


def piped(monkeypatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_data_and_scores_come_through_pipes(model, capsys, monkeypatch):
    expected = run(capsys, "predict", "model", "data.txt")[1]
    piped(monkeypatch, (model.parent / "data.txt").read_bytes())
    assert run(capsys, "predict", "model", "-", "--out", "-")[:2] == (0, expected)
    assert not (model.parent / "-").exists()
    judged = json.loads(run(capsys, "evaluate", "data.txt", "model", "--json")[1])["metrics"]
    piped(monkeypatch, expected.encode())
    assert json.loads(run(capsys, "evaluate", "data.txt", "-", "--json")[1])["metrics"] == judged
    piped(monkeypatch, b"x y\n")
    assert run(capsys, "describe", "-")[2].startswith("tierank: standard input:1: expected a rating as the first field")
    piped(monkeypatch, b"")
    code, _, err = run(capsys, "evaluate", "-", "-")
    assert (code, err) == (2, "tierank: -: expected once, as a pipe can be read only once\n")


def test_the_rows_of_queries_go_to_standard_output(model, capsys):
    assert run(capsys, "evaluate", "data.txt", "model", "--per-query", "q.csv")[0] == 0
    code, out, _ = run(capsys, "evaluate", "data.txt", "model", "--per-query", "-")
    assert (code, out) == (0, (model.parent / "q.csv").read_text())
    assert run(capsys, "train", "umart", "--train", "data.txt", "--out", "-")[0] == 2


def test_a_pipe_of_the_system_is_read_as_data_and_as_scores(model):
    tierank_ = f"{sys.executable} -m tierank"
    command = f"cat data.txt | {tierank_} predict model /dev/stdin | {tierank_} evaluate data.txt /dev/stdin --json"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True, cwd=model.parent)
    assert json.loads(done.stdout)["metrics"]


# Lists and words


def test_what_can_be_chosen_is_listed(capsys):
    for what, names in (
        ("rankers", tierank.RANKERS),
        ("metrics", tierank.METRICS),
        ("rules", tierank.RULES),
        ("transforms", tierank.TRANSFORMS),
        ("networks", tierank.NETWORKS),
        ("losses", tierank.LOSSES),
        ("targets", tierank.TARGETS),
    ):
        code, out, _ = run(capsys, "list", what)
        assert code == 0
        assert [line.split()[0] for line in out.splitlines()] == list(names)
        assert all(len(line.split()) > 2 for line in out.splitlines())
        assert list(json.loads(run(capsys, "list", what, "--json")[1])) == list(names)


@pytest.mark.parametrize("name", list(tierank.RANKERS))
def test_every_setting_is_listed_with_its_value_and_a_line(capsys, name):
    code, out, _ = run(capsys, "list", "settings", name, "--json")
    assert code == 0
    found = json.loads(out)
    settings = tierank.RANKERS[name]().get_params(deep=False)
    assert set(settings) <= set(found)
    for setting, (default, line) in found.items():
        assert line
        if isinstance(settings.get(setting), str | bool | int):
            assert default == str(settings[setting])


def test_a_list_that_is_not_there(capsys):
    assert "did you mean 'rankers'?" in run(capsys, "list", "ranker")[2]
    assert "list settings needs a ranker: one of urank" in run(capsys, "list", "settings")[2]
    assert "did you mean 'umart'?" in run(capsys, "list", "settings", "umrat")[2]
    assert "a ranker is only valid after settings" in run(capsys, "list", "rules", "umart")[2]


def test_every_command_says_what_it_does_and_shows_it(capsys):
    for name, command in cli.TIERANK.walk():
        assert command.help, name
        assert command.example.startswith(f"tierank {name} "), name


@pytest.mark.parametrize(
    ("command", "error", "expected"),
    [
        ("train", {"where": "a.txt:1", "got": "'0:2'", "fix": "or read with zero_based=True"}, "with --zero-based"),
        ("train", {"where": "b.parquet", "fix": "name the columns with features="}, "with --features"),
        ("predict", {"got": "a folder", "fix": "read_fold reads a folder of folds"}, "cv and tune take, as --data, a"),
        ("tune", {"argument": "fold", "expected": "1, 2, 3, 4 or 5", "got": "9"}, "--fold: expected"),
        ("export", {"where": "solr", "fix": "train with `query_features=False`"}, "train with --set query_features="),
        ("predict", {"where": "data/query=a/x.csv", "expected": "a file"}, "data/query=a/x.csv: expected a file"),
        ("evaluate", {"got": "'a'", "fix": "leave out with ignore=['a b', 'c']"}, "leave out with --ignore 'a b,c'"),
    ],
)
def test_arguments_of_python_are_options_here(command, error, expected):
    assert expected in line_of(DataError(**error), COMMANDS[command].rename)


def test_what_is_read_is_never_replaced(model, capsys):
    Path("b.scores").write_text("read too early")
    Path("run").mkdir()
    before = Path("data.txt").read_text()
    for arguments in (
        ["predict", model, "data.txt", "--out", "data.txt"],
        ["predict", model, "data.txt", "--out", model.parent / "data.txt"],
        ["evaluate", "data.txt", "a.scores", "--per-query", "a.scores"],
        ["describe", "data.txt", "--html", "data.txt"],
        ["describe", "a.scores", "--against", "data.txt", "--html", "data.txt"],
        ["predict", model, "data.txt", "--out", Path(model) / "model.json"],
        ["evaluate", "a.scores", model, "--per-query", Path(model) / "model.json"],
        ["evaluate", "a.scores", "b.scores", "--by", "x", "--attributes", "data.txt", "--per-query", "data.txt"],
        ["tune", "umart", "--data", "data.txt", "--valid", "a.scores", "--out", "data.txt"],
        ["tune", "umart", "--data", "a.scores", "--valid", "data.txt", "--out", "data.txt"],
        ["report", "run", "--titles", "data.txt", "--out", "data.txt"],
        ["report", "run", "--by", "x", "--attributes", "data.txt", "--out", "data.txt"],
        ["export", model, "--to", "c", "--out", "data.txt", "--verify", "data.txt"],
        ["convert", "a.scores", "data.run", "--scores", "data.run"],
        ["clicks", "judge", "a.scores", "--data", "data.csv", "--out", "data.csv"],
    ):
        for name in ("data.run", "data.csv"):
            Path(name).write_text(before)
        code, _, err = run(capsys, *arguments)
        assert code == 2
        assert "expected a file other than the one that is read; choose another name" in err
        for name in ("data.txt", "data.run", "data.csv"):
            assert Path(name).read_text() == before
    assert tierank.load(model).n_features_in_


def test_names_say_what_is_in_a_file(model, capsys):
    for name in ("p.json", "p.npy", "p.xlsx", "p.npy.gz", "p.parquet.gz"):
        assert (
            "expected a name that ends in .txt, .csv or .parquet"
            in run(capsys, "predict", model, "data.txt", "--out", name)[2]
        )
        assert "expected a name that ends in .csv" in run(capsys, "evaluate", "data.txt", model, "--per-query", name)[2]
        assert not Path(name).exists()
    assert run(capsys, "predict", model, "data.txt", "--out", "p.txt")[0] == 0
    expected = Path("p.txt").read_text()
    assert run(capsys, "predict", model, "data.txt", "--out", "p.txt.gz")[0] == 0
    assert gzip.decompress(Path("p.txt.gz").read_bytes()).decode() == expected
    assert run(capsys, "predict", model, "data.txt", "--out", "p.csv.gz")[0] == 0
    assert gzip.decompress(Path("p.csv.gz").read_bytes()).startswith(b"query,")
    data = tierank.read("data.txt")
    scores = tierank.read_scores("p.txt", data)
    for name in ("p.txt.gz", "p.csv.gz"):
        np.testing.assert_array_equal(tierank.read_scores(name, data), scores)


def test_a_column_that_is_named_twice_is_one_attribute(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shop.csv").write_text(
        "qid,label,price,device\n" + "".join(f"{q // 2},{q % 2},{q}.5,{q // 6}\n" for q in range(12))
    )
    Path("shop.scores").write_text("".join(f"{q}\n" for q in range(12)))
    once = run(capsys, "evaluate", "shop.csv", "shop.scores", "--by", "device")
    assert once[0] == 0
    assert run(capsys, "evaluate", "shop.csv", "shop.scores", "--by", "device,device") == once
    of_queries = ("evaluate", "shop.csv", "shop.scores", "--attributes", "shop.csv")
    assert run(capsys, *of_queries, "--by", "device") == once
    assert run(capsys, *of_queries, "--by", "qid")[0] == 0


def test_the_name_of_a_rule_is_no_module(folder, capsys):
    """letor:condense has the form of package.module:Name."""
    train = [
        "train",
        "umart",
        "--train",
        "data.txt",
        "--valid",
        "valid.txt",
        "--out",
        "model",
        "--set",
        "n_trees=2",
        "--set",
    ]
    assert run(capsys, *train, "rule=letor:condense")[0] == 0
    assert tierank.load("model").rule == "letor:condense"
    assert "did you mean 'condense'" in run(capsys, *train, "rule=letor:condens")[2]


def test_messages_that_name_no_column_are_told_too():
    """Of a target that cannot hold categories: any column is meant."""
    rename = COMMANDS["train"].rename
    assert in_options("declare columns=Columns(means=['a', 'b']) to", rename) == "declare --means a,b to"
    date_parts = DataError(where="t.csv", argument="date_parts", expected="a column")
    assert line_of(date_parts, rename) == "t.csv: --date-parts: expected a column"
    measures = ParameterError(argument="measures", expected="similarities", got="none")
    assert line_of(measures, rename) == "--measures: expected similarities, got none"
