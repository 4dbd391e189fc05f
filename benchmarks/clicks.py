"""Click models on real sessions, their speed, and the coverage of off-policy intervals.

    python -m benchmarks.clicks sessions.csv.gz

The log has a row for each document shown: session, query, position, kind, grade, clicked. Documents have no ids in it,
so attractiveness depends on the kind of a block and the grade that editors gave it. Parts: ``models`` (perplexity on
held-out sessions, five folds), ``speed`` (each model compared with an implementation in plain Python, same rule, same
iterations), ``coverage`` (how often 95% intervals contain the true value, over 2,000 draws of simulated sessions) and
``reading`` (time and memory of reading generated logs, each in its own process). ``python -m benchmarks.clicktraining``
measures training on clicks.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ |= dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"], "1")

import numpy as np

import tierank
from tierank.clicks import CLICK_MODELS, ClickLog, estimate_value, evaluate_ranking, make_model, simulate_clicks
from tierank.clicks.log import write_columns
from tierank.clicks.offpolicy import METHODS, new_ranks
from tierank.report.tabulate import Table

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import reference_clicks as reference

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "clicks" / "sessions.csv.gz"
PARTS = ("models", "speed", "coverage", "reading")
SHOWN = (1, 2, 3, 5, 10)


def make(name: str):
    return make_model(name, **({} if name == "ctr" else {"by": "document"}))


def seconds_of(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def models(log: ClickLog) -> Table:
    """Means over five folds of sessions."""
    order = np.random.default_rng(0).permutation(log.n_sessions)
    cuts = np.rint(np.linspace(0, log.n_sessions, 6)).astype(int)
    rows = []
    for name in CLICK_MODELS:
        make(name).fit(log)  # compiles
        full, given, likelihoods, taken = [], [], [], []
        for k in range(5):
            is_test = np.zeros(log.n_sessions, bool)
            is_test[order[cuts[k] : cuts[k + 1]]] = True
            train, test = log.select(~is_test), log.select(is_test)
            model = make(name)
            taken.append(seconds_of(lambda model=model, train=train: model.fit(train)))
            full.append(model.perplexity(test))
            given.append(model.perplexity(test, conditional=True).mean())
            likelihoods.append(model.log_likelihood(test).mean())
        mean = np.mean(full, axis=0)
        at = [f"{mean[r - 1]:.4f}" for r in SHOWN]
        numbers = [f"{mean.mean():.4f}", *at, f"{np.mean(given):.4f}", f"{np.mean(likelihoods):.4f}"]
        rows.append([name, *numbers, f"{1e3 * np.mean(taken):.0f}"])
    columns = [
        "model",
        "perplexity",
        *(f"at {r}" for r in SHOWN),
        "given the clicks above",
        "log-likelihood",
        "fit, ms",
    ]
    notes = [
        "perplexity: mean over positions; log-likelihood: per session; five folds of sessions, CPU time of one fit"
    ]
    return Table(f"Held-out sessions: {log!r}", columns, rows, notes)


def twins(sessions: list) -> dict:
    """The fit of each model in plain Python."""
    em = (1.0, 1e-4, 500)
    return {
        "ctr": lambda: reference.fit_ctr(sessions, 1.0),
        "pbm": lambda: reference.fit_products(sessions, reference.pbm_cells, 1, *em),
        "cascade": lambda: reference.fit_cascade(sessions, 1.0),
        "dcm": lambda: reference.fit_to_last_click(sessions, 1.0),
        "ubm": lambda: reference.fit_products(sessions, reference.ubm_cells, (1, 0), *em),
        "dbn": lambda: reference.fit_dbn(sessions, *em),
        "sdbn": lambda: reference.fit_to_last_click(sessions, 1.0),
    }


def speed(log: ClickLog, n_sessions: int) -> Table:
    log = log.select(np.arange(min(n_sessions, log.n_sessions)))
    rows_of = list(zip(log.documents.tolist(), log.positions.tolist(), log.clicked.tolist(), strict=True))
    sessions = [rows_of[a:b] for a, b in zip(log.offsets[:-1], log.offsets[1:], strict=True)]
    rows = []
    for name, twin in twins(sessions).items():
        make(name).fit(log)
        ours = min(seconds_of(lambda name=name: make(name).fit(log)) for _ in range(5))
        theirs = seconds_of(twin)
        rows.append([name, f"{1e3 * ours:.1f}", f"{1e3 * theirs:,.0f}", f"{theirs / ours:,.0f}"])
    notes = ["CPU time on one thread; reading the log is not counted"]
    title = f"Speed of a fit: {log.n_sessions:,} sessions, {log.n_rows:,} rows"
    return Table(title, ["model", "tierank, ms", "plain Python, ms", "times faster"], rows, notes)


def bandit(seed: int, n: int) -> tuple:
    """Sessions of a policy that shows one of three lists at random; the other policy prefers the last."""
    rng = np.random.default_rng(seed)
    logged, target, rewards = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.3, 0.6]), np.array([0.2, 0.4, 0.7])
    action = rng.choice(3, size=n, p=logged)
    reward = (rng.random(n) < rewards[action]).astype(float)
    predicted = rewards + np.array([0.1, -0.1, -0.2])
    model = {"predicted": predicted[action], "predicted_target": np.full(n, float(target @ predicted))}
    return reward, (target / logged)[action], model, float(target @ rewards)


def coverage(n_draws: int) -> Table:
    held: dict[tuple[str, str], list[bool]] = {}
    for seed in range(n_draws):
        reward, weight, model, truth = bandit(seed, 2000)
        for method in METHODS:
            found = estimate_value(reward, weight, method=method, **(model if method == "dr" else {}))
            held.setdefault(("lists drawn at random", method), []).append(found.low <= truth <= found.high)
    data = tierank.make_ranking(50, n_features=3, mean_length=12, max_length=20, seed=1)
    rng = np.random.default_rng(0)
    old, new = (w * data.restore(data.ratings) + rng.normal(size=data.n_documents) for w in (0.3, 0.6))
    lists, truth = simulate_clicks(data, old, n_sessions=2000, noise=0.2)
    scores = new[lists.column("row")]
    examination = truth.examination_
    attraction = truth.attraction_[truth.items_.find(lists)]
    expected = lists.per_session(attraction * examination[new_ranks(lists, scores) - 1])
    sessions = np.random.default_rng(1)
    for seed in range(n_draws):
        drawn = sessions.integers(lists.n_sessions, size=lists.n_sessions)  # queries come at random too
        log = lists.select(drawn)
        log = truth.simulate(log, seed=seed)
        found = evaluate_ranking(log, scores_of(scores, lists, drawn), examination)
        held.setdefault(("clicks on reordered lists", "ips"), []).append(found.low <= expected.mean() <= found.high)
    rows = [[what, method, f"{100 * np.mean(found):.1f}"] for (what, method), found in held.items()]
    notes = [
        f"{n_draws:,} draws of 2,000 sessions each; the standard error of 95% is {95**0.5 * 5**0.5 / n_draws**0.5:.1f}"
    ]
    return Table("Intervals of 95% that hold the truth, in %", ["sessions", "estimator", "coverage"], rows, notes)


def scores_of(scores: np.ndarray, lists: ClickLog, drawn: np.ndarray) -> np.ndarray:
    """The scores of the rows of some sessions."""
    return np.concatenate([scores[lists.offsets[s] : lists.offsets[s + 1]] for s in drawn])


_READER = """
import re, sys, time
import numpy, pyarrow.csv, pyarrow.parquet
from tierank.clicks import read
read({"session": [1], "query": ["q"], "document": ["d"], "position": [1], "clicked": [1]})
def highest():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before, start = highest(), time.process_time()
log = read(sys.argv[1])
print(time.process_time() - start, highest() - before, log.n_rows)
"""


def reading(n_sessions: int) -> Table:
    """Ten documents per session, a tenth as many queries as sessions, a million documents, and texts as ids."""
    rng = np.random.default_rng(0)
    n = 10 * n_sessions
    documents = np.array([f"document-{i:07}" for i in range(1_000_000)], object)
    queries = np.array([f"query {i}" for i in range(max(1, n_sessions // 10))], object)
    columns = {
        "session": np.repeat(np.arange(n_sessions), 10),
        "query": np.repeat(queries[rng.integers(len(queries), size=n_sessions)], 10),
        "document": documents[rng.integers(len(documents), size=n)],
        "position": np.tile(np.arange(1, 11), n_sessions),
        "clicked": (rng.random(n) < 0.1).astype(np.int64),
    }
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for ending in ("csv", "parquet"):
            file = Path(folder, f"log.{ending}")
            write_columns(columns, file)
            command = [sys.executable, "-c", _READER, str(file)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds, size, n_rows = map(float, done.stdout.split())
            megabytes = file.stat().st_size / 1e6
            rows.append([ending, f"{megabytes:,.0f}", f"{n_rows:,.0f}", f"{seconds:.1f}", f"{size / n_rows:.0f}"])
    notes = ["memory: the highest of the process, less what it had before; ids included"]
    return Table("Reading", ["file", "MB", "rows", "CPU s", "memory, bytes per row"], rows, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", nargs="?", type=Path, default=DATA)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--sessions", type=int, default=20_000, help="of the part speed")
    parser.add_argument("--draws", type=int, default=2000, help="of the part coverage")
    parser.add_argument("--read-sessions", type=int, default=1_000_000, help="of the part reading")
    options = parser.parse_args()
    parts = [options.only] if options.only else PARTS
    if {"models", "speed"} & set(parts):
        log = tierank.clicks.read(options.log, document=["kind", "grade"])
    if "models" in parts:
        print(models(log).to_text())
    if "speed" in parts:
        print(speed(log, options.sessions).to_text())
    if "coverage" in parts:
        print(coverage(options.draws).to_text())
    if "reading" in parts:
        print(reading(options.read_sessions).to_text())


if __name__ == "__main__":
    main()
