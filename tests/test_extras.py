"""Without the optional libraries everything else works, and what needs one says which line installs it."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tierank
from tierank.extras import EXTRAS, MissingExtraError, needing, require

PROJECT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]

WITHOUT_EXTRAS = """
import json, sys

from tierank.extras import EXTRAS

class NoExtras:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoExtras())
import numpy as np, tierank
from tierank.cli import main

data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
tierank.write(data, "data.txt")
told = {}

def attempt(name, work):
    try:
        told[name] = repr(work())[:40]
    except tierank.TierankError as error:
        told[name] = f"{type(error).__name__}: {error}"

for name, ranker in tierank.RANKERS.items():
    quick = {"n_trees": 2} if "n_trees" in ranker.declared_settings() else {}
    attempt(name, lambda: ranker(**quick).fit(data).predict(data).shape)
attempt("LOSSES", lambda: tierank.LOSSES)
attempt("NETWORKS", lambda: tierank.NETWORKS)
attempt("load", lambda: tierank.load(sys.argv[1]))
attempt("TreeRanker", lambda: tierank.TreeRanker("urank", n_trees=2).fit(data))
attempt("evaluate", lambda: tierank.evaluate(data, data.ratings))
ranker = tierank.UMart(n_trees=2).fit(data, valid=data.select([0]))
attempt("plot_history", lambda: tierank.plot_history(ranker))
attempt("plot_importance", lambda: tierank.plot_importance(ranker))
attempt("plot_wins", lambda: tierank.plot_wins(tierank.compare(data, {"a": data.ratings, "b": -data.ratings})))
attempt("Propensities", lambda: tierank.clicks.Propensities(*np.ones((3, 2)), 0.95, "harvest").plot())
told["train umart"] = main(["train", "umart", "--train", "data.txt", "--out", "model", "--set", "n_trees=2"])
told["train urank"] = main(["train", "urank", "--train", "data.txt", "--out", "other"])
told["list rankers"] = main(["list", "rankers"])
told["list losses"] = main(["list", "losses"])
pair = ["model", "data.txt", "--query", str(data.query_ids[0]), "--above", "1", "--below", "2"]
told["explain"] = main(["explain", *pair])
told["explain --out"] = main(["explain", *pair, "--out", "why.svg"])
told["demo"] = main(["demo", "--queries", "40", "--jobs", "1", "--out", "demo"])
told["report"] = main(["report", "demo/run", "--out", "demo/again.html"])
print(json.dumps(told))
"""


def test_every_extra_is_one_of_the_project():
    assert set(EXTRAS.values()) <= set(PROJECT["optional-dependencies"])
    core = " ".join(PROJECT["dependencies"])
    for library, extra in EXTRAS.items():
        assert library not in core.split()
        package = library.replace("_", "-")
        assert any(line.startswith((package, f"{package}[")) for line in PROJECT["optional-dependencies"][extra])


def test_trees_and_pages_need_no_extra(tmp_path):
    data = tierank.make_ranking(20, n_features=5, mean_length=10, max_length=20)
    tierank.URank(max_epochs=1).fit(data).save(tmp_path / "network")
    command = [sys.executable, "-c", WITHOUT_EXTRAS, str(tmp_path / "network")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    line = "MissingExtraError: {} needs torch: pip install 'tierank[networks]'"
    for name, ranker in tierank.RANKERS.items():
        needs_torch = issubclass(ranker, tierank.rankers.neural.NeuralRanker)
        assert (told[name] == line.format(ranker.__name__)) == needs_torch, told[name]
    assert told["LOSSES"] == line.format("tierank.LOSSES")
    assert told["NETWORKS"] == line.format("tierank.NETWORKS")
    assert told["TreeRanker"] == line.format("TreeRanker")
    assert told["load"].endswith("URank needs torch: pip install 'tierank[networks]'")
    assert " queries; " in told["evaluate"]
    assert (told["train umart"], told["train urank"], told["list rankers"], told["list losses"]) == (0, 2, 0, 2)
    assert "tierank: URank needs torch: pip install 'tierank[networks]'\n" in done.stderr
    assert "tierank: list losses needs torch: pip install 'tierank[networks]'\n" in done.stderr
    assert told["demo"] == 0
    line = "{} needs matplotlib: pip install 'tierank[plots]'"
    for name in ("plot_history", "plot_importance", "plot_wins", "Propensities"):
        what = "a plot of propensities" if name == "Propensities" else "a plot"
        assert told[name] == f"MissingExtraError: {line.format(what)}"
    assert (told["explain"], told["explain --out"], told["report"]) == (0, 2, 0)
    assert f"tierank: {line.format('drawing why.svg')}\n" in done.stderr
    assert f"left out: {line.format('drawing improvement.png')}\n" in done.stderr
    assert "improvement.png" not in done.stdout
    assert "  tierank cv lambdamart umart --data " in done.stdout  # what it suggests works here
    assert len((tmp_path / "demo" / "again.html").read_bytes()) > 10_000
    assert "urank: left out, as torch is not installed: pip install 'tierank[networks]'" in done.stderr


def test_a_library_that_is_no_extra_is_not_ours_to_explain():
    with pytest.raises(ModuleNotFoundError, match="no_such_library") as raised, needing("this"):
        import no_such_library  # noqa: F401
    assert not isinstance(raised.value, MissingExtraError)


def test_what_is_there_is_not_refused(monkeypatch):
    require("this", "torch", "optuna")
    monkeypatch.setattr("tierank.extras.find_spec", lambda name: None if name == "optuna" else name)
    with pytest.raises(MissingExtraError, match=r"^this needs optuna: pip install 'tierank\[tune\]'$"):
        require("this", "torch", "optuna")
