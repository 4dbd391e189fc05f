"""The program ``tierank``, which is ``python -m tierank`` too: the command line."""

import sys


def main() -> int:
    """Run one command; returns the exit code. The command line is loaded here, so that Ctrl-C may come that early."""
    try:
        from tierank.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("tierank: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
