"""Answers stay what they were: models, exports, metrics, commands and HTTP, against ``tests/golden_answers``."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")

import golden


@pytest.mark.parametrize("group", golden.GROUPS)
def test_answers_are_those_that_are_kept(group):
    kept, today = json.loads((golden.FOLDER / "versions.json").read_text()), golden.versions()
    if today != kept:
        pytest.skip(f"made with other versions: {kept}")
    found = golden.differences(group, golden.answers(group))
    assert not found, "if they are meant to differ, run `python tests/golden.py`:\n" + "\n".join(found[:20])
