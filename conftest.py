"""Without an optional library, tests that need it are skipped, not failed: ``make test-python`` runs without torch."""

import os

os.environ["OMP_WAIT_POLICY"] = "passive"  # tests run side by side: threads that wait must not spin

import re
import signal
from importlib.util import find_spec

import pytest

from tierank.extras import EXTRAS

# Tests that were started in the background ignore Ctrl-C, and so would the programs that they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_MISSING = [library for library in EXTRAS if find_spec(library) is None]
_NAMES = "|".join([*_MISSING, "PyTerrier"])
_NEEDED = re.compile(rf"No module named '({_NAMES})\b|\bneeds ({_NAMES}): pip install")


def _skip_without_library(report, place):
    """What failed because a library is missing, in this process or in one that it started, is skipped."""
    found = _NEEDED.search(str(report.longrepr)) if _MISSING and report.outcome == "failed" else None
    if found is not None:
        report.outcome, report.longrepr = "skipped", (str(place), 0, f"Skipped: no {found[1] or found[2]}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Files."""
    return _skip_without_library((yield), collector.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Tests, and examples of docstrings."""
    return _skip_without_library((yield), item.path)
