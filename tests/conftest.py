"""What several test files share."""

import os

os.environ["OMP_WAIT_POLICY"] = "passive"  # tests run side by side: threads that wait must not spin

from importlib.util import find_spec
from pathlib import Path

import pytest

from tierank.extras import EXTRAS, MissingExtraError

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


# Test files of libraries that are not installed are left out: ``make test-python`` runs without torch, for one.
_MISSING = [library for library in EXTRAS if find_spec(library) is None]
collect_ignore = [
    path.name
    for path in Path(__file__).parent.glob("*.py")
    if any(f"import {library}\n" in path.read_text() or f"from {library}" in path.read_text() for library in _MISSING)
]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    """A test that needs a missing library is skipped; with all of them installed it fails."""
    try:
        return (yield)
    except MissingExtraError as error:
        if not _MISSING:
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets, which are not part of the project."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"no real data at {REAL_DATA}")
    return REAL_DATA
