"""Programs that a test starts: they end with it, also if it fails."""

import os
import signal
import subprocess
from contextlib import contextmanager, suppress

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
