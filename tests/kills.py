"""Kills at every step, one after the other, and not by chance."""

import os
import sys
from collections.abc import Callable

# What Python tells of before it changes something on disk.
_CHANGES = {"os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"}


def is_killed_at(step: int, work: Callable[[], object]) -> bool:
    """Do the work in a process of its own, which ends just before its change number ``step`` on disk.

    False where it has made all its changes by then. No handler and no ``finally`` runs, as after a kill.
    """
    pid = os.fork()
    if pid == 0:
        changes = 0

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal changes
            is_change = event in _CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & 3)
            changes += is_change and not str(arguments[0]).startswith("/dev/")
            if changes == step:
                os._exit(9)

        sys.addaudithook(count)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 9)
    return code == 9
