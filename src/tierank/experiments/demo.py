"""The demo: the full workflow on generated data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tierank.data.dataset import RankingDataset
from tierank.errors import DataError
from tierank.experiments.crossval import cross_validate
from tierank.experiments.runs import Run
from tierank.extras import EXTRAS, is_installed
from tierank.files import make_folder
from tierank.io import read, write
from tierank.io.synth import make_ranking
from tierank.settings import as_whole

# The best ranker, the paper's two quick models, and the baseline that they are compared with.
_SHOWN = ("lambdamart", "umart", "urank", "blend")
# The paper's other two, which take most of the time.
_SLOW = ("uboost", "urboost")
# Blend does without networks where there is no torch.
_NEED_TORCH = ("urank", *_SLOW)


def run_demo(
    folder: Path,
    *,
    n_queries: int = 300,
    seed: int = 0,
    n_jobs: int | None = None,
    every: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Run:
    """Generate data files, train rankers on them and compare their scores; ``say`` is called with each step.

    ``every``: also the two models of the paper that take long to train.
    """
    as_whole("n_queries", n_queries, 10)  # each part has at least one query
    parts = dict(zip(("train", "valid", "test"), make_ranking(n_queries, seed=seed).split(0.5, 0.2, 0.3), strict=True))
    for name, data in parts.items():
        file = folder / f"{name}.txt"
        if file.exists() and not _holds(file, data):  # a demo with other settings, or the user's data
            fix = "use the same queries and seed as before, or choose another folder"
            raise DataError(where=file, expected="no file, or the one of this demo", got="another", fix=fix)
    make_folder(folder)
    for name, data in parts.items():
        write(data, folder / f"{name}.txt")
        say(f"wrote {folder / f'{name}.txt'}: {data}")
    shown = _SHOWN + (_SLOW if every else ())
    if not is_installed("torch"):
        left_out = [name for name in shown if name in _NEED_TORCH]
        say(f"{', '.join(left_out)}: left out, as torch is not installed: pip install 'tierank[{EXTRAS['torch']}]'")
        shown = tuple(name for name in shown if name not in _NEED_TORCH)
    fold = tuple(read(folder / f"{name}.txt", n_features=data.n_features) for name, data in parts.items())
    return cross_validate(
        dict(zip(shown, shown, strict=True)),
        [fold],
        seeds=[seed],
        baseline="lambdamart",
        out=folder / "run",
        name="Generated data",
        n_jobs=n_jobs,
        progress=True,
    )


def _holds(file: Path, data: RankingDataset) -> bool:
    try:
        written = read(file, n_features=data.n_features, cache=False)
    except DataError:
        return False
    pairs = ((written.offsets, data.offsets), (written.ratings, data.ratings), (written.features, data.features))
    return all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)
