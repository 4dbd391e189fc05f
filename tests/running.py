"""How tests run: how many examples of a property, and programs that end with the test that started them."""

import os
import signal
import subprocess
from contextlib import contextmanager, suppress

from hypothesis import settings

PATIENCE = 900  # seconds after which something hangs, on a machine however busy


@contextmanager
def running(command, **options):
    """A program in its own process group, which is killed at the end with whatever it has started."""
    with subprocess.Popen(command, process_group=0, **options) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def examples(n):
    """n examples of a property with ``make test-all``; with ``make test`` a fifth of them, and 10 at least."""
    return settings(max_examples=max(min(n, 10), n * settings.default.max_examples // 100))
