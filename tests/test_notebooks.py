"""The notebooks of examples/: every cell runs, in order, and what a cell ends with can be shown."""

import ast
import json
from importlib.util import find_spec
from pathlib import Path

import matplotlib as mpl
import pytest

mpl.use("Agg")
NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.ipynb"))


def run_cell(source, space, name):
    """Run a cell; what its last line gives is shown, as a notebook does."""
    tree = ast.parse(source)
    last = tree.body[-1]
    is_shown = isinstance(last, ast.Expr) and not source.rstrip().endswith(";")
    if is_shown:
        tree.body[-1] = ast.copy_location(
            ast.Assign([ast.Name("shown", ast.Store(), lineno=last.lineno, col_offset=0)], last.value), last
        )
    exec(compile(ast.fix_missing_locations(tree), name, "exec"), space)
    shown = space.pop("shown", None) if is_shown else None
    assert shown is None or len(shown._repr_html_()) > 40


def test_there_are_four_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["paper", "retraining", "segments", "shop"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, tmp_path, monkeypatch, capsys):
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    space = {"__name__": "__notebook__"}
    for i, cell in enumerate(content["cells"]):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # they would be out of date
            run_cell("".join(cell["source"]), space, f"{notebook.name}, cell {i}")
    plt.close("all")
    served = "served: {'" if find_spec("uvicorn") and find_spec("starlette") else ""
    expected = {"paper": "uRank: 4.80", "shop": served, "retraining": "this week: +", "segments": "device phone: -"}
    assert expected[notebook.stem] in capsys.readouterr().out
