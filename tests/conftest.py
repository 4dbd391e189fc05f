"""Fixtures that several test files share."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test depends on how busy the machine is. A fifth of the examples finds most mistakes; `make test-all` takes all.
for name, n_examples in (("a fifth", 20), ("all", 100)):
    settings.register_profile(
        name, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=n_examples
    )
settings.load_profile("a fifth")

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of public data sets, which are not part of the project; the test is skipped if it does not exist."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"no real data at {REAL_DATA}")
    return REAL_DATA
