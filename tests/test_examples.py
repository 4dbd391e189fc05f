"""Every example runs, says what it should, and warns of nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sklearn

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SAYS = {
    "clicks": "interleaving: 9,",
    "custom_loss": "trees, uRank loss",
    "grid_search": "best settings: {'n_leaves':",
    "other_tools": "rule shop: gain {0: 0, 1: 1, 2: 1, 3: 10, 4: 10}",
    "pipeline": "StandardScaler() NDCG@10 0.",
    "shop_table": "'listed': 'age'",
    "resume": "same bits as without the stop: True",
    "tables": "umbrella",
}


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_it_runs(name, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:tierank", str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path, capture_output=True, text=True, timeout=900, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
    said = [line for line in done.stderr.splitlines() if "X does not have valid feature names" not in line]
    assert "Warning" not in "\n".join(said)  # but for LightGBM 4.6, of which scikit-learn complains
    assert not list(tmp_path.iterdir())


def test_the_code_of_the_page_on_scikit_learn_runs(capsys):
    page = (EXAMPLES.parent / "docs" / "sklearn.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 7
    names: dict[str, object] = {}
    with sklearn.config_context():  # the page switches routing on
        exec(compile("\n".join(blocks), "docs/sklearn.md", "exec"), names)
    assert names["scores"].shape == names["y"].shape
    assert len(capsys.readouterr().out.split()) >= 8
