"""Robustness: one table of everything that was tried. ``python -m benchmarks.faults``

Files of every form, models, requests over HTTP, kills and full disks, teams with different data, exports of every
ranker to every target, and changes to data that must not change anything. All cases are drawn with a seed, and run in
other processes with deadlines and a memory limit. The exit code is 1 if a fault was found; what led to it is kept.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.faults.runner import Table

# Parts, with the default number of cases of each kind.
PARTS = {"files": 14, "models": 140, "requests": 2, "kills": 3, "teams": 2, "exports": 12, "invariance": 1}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--scale", type=float, default=1, help="so many times as many cases (default: 1)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for what led to faults (default: one of its own)")
    for part, count in PARTS.items():
        parser.add_argument(f"--{part}", type=int, metavar="N", help=f"cases of each kind (default: {count} x SCALE)")
    options = parser.parse_args()
    os.environ["OMP_WAIT_POLICY"] = "passive"
    table = Table(options.keep or Path(tempfile.mkdtemp(prefix="tierank-faults-")))
    for part in options.only:
        start = time.monotonic()
        given = getattr(options, part)
        count = round(PARTS[part] * options.scale) if given is None else given
        with tempfile.TemporaryDirectory(prefix=f"tierank-{part}-") as folder:
            importlib.import_module(f"benchmarks.faults.{part}").attack(table, Path(folder), count, options.seed)
        print(f"{part}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    table.print()
    return int(bool(table.faults))


if __name__ == "__main__":
    sys.exit(main())
