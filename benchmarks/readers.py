"""Reading a large LETOR file: tierank, its cache, and scikit-learn. ``python -m benchmarks.readers``

Each reading runs in its own process (so that its peak memory is its own), after reading a small file; rounds are
interleaved, and the best round counts. Ratios are of wall-clock time on all cores and of CPU time.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def read_ours(path: Path, n_features: int) -> object:
    from tierank import read

    return read(path, n_features=n_features, cache=False)


def read_cached(path: Path, n_features: int) -> object:
    from tierank import read

    return read(path, n_features=n_features)


def read_sklearn(path: Path, n_features: int) -> object:
    import numpy as np
    from sklearn.datasets import load_svmlight_file

    matrix, ratings, queries = load_svmlight_file(
        str(path), n_features=n_features, dtype=np.float32, query_id=True, zero_based=False
    )
    return matrix.toarray(), ratings, queries


READERS = {"tierank": read_ours, "tierank, cached": read_cached, "scikit-learn": read_sklearn}


def measure(name: str, path: Path, small: Path, n_features: int) -> dict[str, float]:
    """Time one reading in this process."""
    READERS[name](small, n_features)
    base = peak_memory()
    wall, cpu = time.perf_counter(), time.process_time()
    kept = READERS[name](path, n_features)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert kept is not None
    return {"wall": wall, "cpu": cpu, "base": base, "peak": peak_memory()}


def peak_memory() -> int:
    """The most bytes that were resident in this process, including mapped pages of files (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def in_own_process(name: str, path: Path, small: Path, n_features: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.readers", "--one", name, str(path), str(small), str(n_features)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=2600, help="of the generated file (2600: more than 300 MB)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=4, metavar=("READER", "FILE", "SMALL", "WIDTH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, path, small, width = options.one
        print(json.dumps(measure(name, Path(path), Path(small), int(width))))
        return

    import numpy as np

    from tierank import make_ranking, write

    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder, "data.txt"), Path(folder, "small.txt")
        data = make_ranking(options.queries)
        write(data, path)
        write(data.select(np.arange(2)), small)
        matrix, text, width = data.features.nbytes, path.stat().st_size, data.n_features
        print(f"{data}\n{text / 1e6:.0f} MB of text, {matrix / 1e6:.0f} MB as float32, {os.cpu_count()} cores\n")
        read_cached(path, width)  # writes the cache
        same = read_ours(path, width), read_sklearn(path, width)[0]
        assert (same[0].features == same[1]).all(), "the readers disagree"
        del same, data
        rounds = [{name: in_own_process(name, path, small, width) for name in READERS} for _ in range(options.rounds)]

    best = {name: {key: min(r[name][key] for r in rounds) for key in rounds[0][name]} for name in READERS}
    print(f"{'reader':16} {'wall s':>8} {'CPU s':>8} {'MB/s':>8} {'peak MB':>8} {'x wall':>8} {'x CPU':>8}")
    for name, row in best.items():
        slow = best["scikit-learn"]
        print(
            f"{name:16} {row['wall']:8.4f} {row['cpu']:8.4f} {text / 1e6 / row['wall']:8.0f} {row['peak'] / 1e6:8.0f}"
            f" {slow['wall'] / row['wall']:8.1f} {slow['cpu'] / row['cpu']:8.1f}"
        )
    ours, cached = best["tierank"], best["tierank, cached"]
    print(f"\ntierank over scikit-learn: {best['scikit-learn']['wall'] / ours['wall']:.0f}x (wall)")
    print(f"cached over tierank:       {ours['wall'] / cached['wall']:.0f}x (wall)")
    own = ours["peak"] - text - ours["base"]
    print(f"peak memory of tierank besides the mapped file and Python: {own / matrix:.2f} x the float32 matrix")


if __name__ == "__main__":
    main()
