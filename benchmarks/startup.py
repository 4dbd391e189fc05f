"""How long a first fit takes: CPU seconds of a process that fits a ``UMart`` and a ``URank`` on small data.

    python -m benchmarks.startup

Once with an empty folder for compiled code, and once with what the first process has left there; the best of several
rounds counts. One thread.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile

PROGRAM = """
import tierank
data = tierank.make_ranking(20, n_features=5, mean_length=10, max_length=20)
for ranker in (tierank.UMart(n_trees=5, n_jobs=1), tierank.URank(max_epochs=2, n_jobs=1)):
    ranker.fit(data)
"""


def cpu_seconds(folder: str) -> float:
    """The CPU time of the program, with compiled code in this folder."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    environment = os.environ | {"NUMBA_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # pip compiles what it installs
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True)
    return spent() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="how many (default: 3)")
    times = []
    for _ in range(parser.parse_args().rounds):
        with tempfile.TemporaryDirectory() as folder:
            times.append([cpu_seconds(folder), cpu_seconds(folder)])
    cold, warm = (min(column) for column in zip(*times, strict=True))
    print(f"UMart and URank, first fit: {cold:.1f} s if nothing is compiled, {warm:.1f} s if everything is")


if __name__ == "__main__":
    main()
