"""The program ``tierank``, which is ``python -m tierank`` too: the command line."""

import io
import sys
from typing import Any


class _Lossy(io.FileIO):
    """A file that drops what it cannot write."""

    def write(self, content: Any) -> int:
        """Write the bytes, or drop them."""
        try:
            return super().write(content) or len(content)
        except OSError:
            return len(content)


def main() -> int:
    """Run one command; returns the exit code. The command line is loaded here, so that Ctrl-C may come that early."""
    _drop_lost_messages()
    try:
        from tierank.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("tierank: stopped", file=sys.stderr)
        return 130


def _drop_lost_messages() -> None:
    """Drop messages that standard error cannot take, such as on a full disk or a closed pipe, and keep working."""
    stream = sys.stderr
    if isinstance(stream, io.TextIOWrapper) and stream is sys.__stderr__:
        file = io.BufferedWriter(_Lossy(stream.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=True)


if __name__ == "__main__":
    sys.exit(main())
