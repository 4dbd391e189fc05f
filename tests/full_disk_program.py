"""Everything that tierank writes, on a disk that is full: a line of JSON for each attempt. Run by test_hardening.py."""

import json
import resource
import shutil
import signal
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import tierank
from tierank.experiments.crossval import cross_validate
from tierank.experiments.tuning import Between, tune
from tierank.export import TARGETS
from tierank.io import FORMATS
from tierank.report.figures import draw_explanation, draw_improvement
from tierank.report.page import write_report
from tierank.report.tabulate import write_per_query

DATA, VALID, TEST = (tierank.make_ranking(30, n_features=4, mean_length=10, max_length=20, seed=s) for s in range(3))
TREES = tierank.UMart(n_trees=3, n_jobs=1)
LEARNERS = {
    "trees": TREES,
    "network": tierank.URank(max_epochs=1, hidden=(8,), n_jobs=1),
    "boosted": tierank.UBoost(n_learners=1, max_epochs=1, hidden=(8,), n_jobs=1),
    "on a base": tierank.UMart(n_trees=3, n_jobs=1, base=tierank.URank(max_epochs=1, hidden=(8,), n_jobs=1)),
    "blend": tierank.Blend(n_configs=1, n_seeds=0, rotate=False, n_trees=3, n_jobs=1),
}


def writers(folder):
    """What writes to a place, by the name of the place."""
    run = cross_validate({"a": TREES, "b": LEARNERS["network"]}, [(DATA, VALID, TEST)], n_jobs=1, out=folder / "run")
    fitted = {name: ranker.fit(DATA, valid=VALID) for name, ranker in LEARNERS.items()}
    trees, scores = fitted["trees"], fitted["trees"].predict(DATA)
    explanation = tierank.explain_pair(trees, DATA, DATA.query_ids[0], 1, 2)
    for name, form in FORMATS.items():
        for packing in ("", ".gz") if name in ("letor", "csv") else ("",):
            yield f"data{form.endings[0]}{packing}", partial(tierank.write, DATA)
    yield "scores.txt", lambda place: tierank.write_scores(scores, place)
    yield "run.trec", lambda place: tierank.write_run(DATA, scores, place)
    yield "generated.tierank", lambda place: tierank.make_ranking(30, n_features=4, out=place)
    yield "per-query.csv", lambda place: write_per_query(tierank.evaluate(DATA, scores), place)
    for name, ranker in fitted.items():
        yield f"model {name}", ranker.save
        yield f"checkpoint {name}", lambda place, ranker=ranker: ranker.fit(DATA, checkpoint=place)
    for target in TARGETS:
        yield f"export.{target}", partial(trees.export, to=target)
    for ending in ("png", "svg"):
        yield f"figure.{ending}", lambda place: draw_improvement(run.comparison, [place])
        yield f"explanation.{ending}", lambda place: draw_explanation(explanation, place)
    yield "report.html", partial(write_report, run)
    yield "profile.html", lambda place: tierank.write_profile(tierank.profile(DATA), place)
    yield "kept run", lambda place: cross_validate({"a": TREES}, [(DATA, VALID, TEST)], n_jobs=1, out=place)
    yield "study", lambda place: tune(TREES, DATA, VALID, trials=2, space={"n_leaves": Between(2, 4)}, study=place)


@contextmanager
def room_for(size):
    """No file may become larger than this."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def content(folder):
    """All that is in a folder, by what it holds and by which file it is."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_ino) if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def attempt(write, place, size):
    """How writing ends where there is room for so many bytes in a file."""
    before = content(place.parent)
    with room_for(size):
        try:
            write(place)
            how = "written"
        except tierank.TierankError as error:
            how = f"{type(error).__name__}: {error}"
        except Exception as error:
            how = f"traceback: {type(error).__name__}: {error}"
    after = content(place.parent)
    kept = all(is_kept(old, after.get(name)) for name, old in before.items())
    return {"how": how, "kept": kept, "files": sorted(after)}


def is_kept(old, new):
    """Whether a file is what it was; the trials of a study are lines that are added to it."""
    if old is None or new is None or not new[0].startswith(b'{"op_code"'):
        return new == old
    return new[1] == old[1] and new[0].startswith(old[0]) and new[0].endswith(b"\n")


def main(folder):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for name, write in writers(folder):
        own = folder / f"of {name}"
        own.mkdir()
        for size in (0, 2000):
            found = [attempt(write, own / name, size)]  # where there is nothing yet
            if name not in ("kept run", "study") and not name.startswith("checkpoint"):  # which are not written anew
                shutil.rmtree(own)
                own.mkdir()
                write(own / name)
                found.append(attempt(write, own / name, size))
            for one in found:
                print(json.dumps({"name": name, "size": size} | one), flush=True)
        write(own / name)  # nothing is in the way
        shutil.rmtree(own)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
