"""Fixtures that several test files share."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test depends on how busy the machine is.
settings.register_profile("tierank", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tierank")

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of public data sets, which are not part of the project; the test is skipped if it does not exist."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"no real data at {REAL_DATA}")
    return REAL_DATA
