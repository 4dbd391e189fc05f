"""Without an optional library, tests that need it are skipped, not failed: ``make test-python`` runs without torch."""

import os

os.environ["OMP_WAIT_POLICY"] = "passive"  # tests run side by side: threads that wait must not spin

import doctest
import re
from importlib.util import find_spec

import pytest
from _pytest.doctest import MultipleDoctestFailures

from tierank.extras import EXTRAS, MissingExtraError

_MISSING = [library for library in EXTRAS if find_spec(library) is None]
_NAMES = "|".join(_MISSING)
_FAILED_IMPORT = re.compile(rf"No module named '({_NAMES})\b|MissingExtraError: .* needs ({_NAMES}):")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """A file that imports a missing library is skipped."""
    report = yield
    found = _FAILED_IMPORT.search(str(report.longrepr)) if _MISSING and report.outcome == "failed" else None
    if found is not None:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: no {found[1] or found[2]}")
    return report


def _skip_without_library():
    """A test, or an example of a docstring, that needs a missing library is skipped; with all of them it fails."""
    try:
        return (yield)
    except (MissingExtraError, ModuleNotFoundError) as error:
        reason = error
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] not in _MISSING:
            raise
    except MultipleDoctestFailures as failures:
        reason = next((error for failure in failures.failures if (error := _cause(failure)) is not None), None)
        if reason is None:
            raise
    if not _MISSING:
        raise reason
    pytest.skip(str(reason))


def _cause(failure):
    """The missing library that made an example fail, if that was it."""
    error = failure.exc_info[1] if isinstance(failure, doctest.UnexpectedException) else None
    return error if isinstance(error, MissingExtraError) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup():
    """Fixtures."""
    return (yield from _skip_without_library())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """Tests."""
    return (yield from _skip_without_library())
