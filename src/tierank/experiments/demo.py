"""The demo: the full workflow on generated data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tierank.dataset import RankingDataset
from tierank.errors import DataError
from tierank.experiments.crossval import cross_validate
from tierank.experiments.runs import Run
from tierank.extras import EXTRAS, is_installed
from tierank.files import make_folder
from tierank.rankers import Blend
from tierank.readers import read, write
from tierank.settings import as_whole
from tierank.synth import make_ranking

# The paper's four models, the baseline that they are compared with, and Blend; networks need torch.
_TREES, _NETWORKS = ("lambdamart", "umart"), ("urank", "uboost", "urboost", "blend")


def run_demo(
    folder: Path,
    *,
    n_queries: int = 300,
    seed: int = 0,
    n_jobs: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Run:
    """Generate data files, train rankers on them and compare their scores; ``say`` is called with each step."""
    as_whole("n_queries", n_queries, 10)  # each part has at least one query
    parts = dict(zip(("train", "valid", "test"), make_ranking(n_queries, seed=seed).split(0.5, 0.2, 0.3), strict=True))
    for name, data in parts.items():
        _check_file(folder / f"{name}.txt", data)
    make_folder(folder)
    for name, data in parts.items():
        write(data, folder / f"{name}.txt")
        say(f"wrote {folder / f'{name}.txt'}: {data}")
    shown: tuple[str, ...] = _TREES + _NETWORKS
    if not is_installed("torch"):
        say(f"{', '.join(_NETWORKS)} are left out: they need torch, pip install 'tierank[{EXTRAS['torch']}]'")
        shown = _TREES
    fold = tuple(read(folder / f"{name}.txt", n_features=data.n_features) for name, data in parts.items())
    quick = {"blend": Blend.from_preset("3x")}
    return cross_validate(
        {name: quick.get(name, name) for name in shown},
        [fold],
        seeds=[seed],
        baseline="lambdamart",
        out=folder / "run",
        name="Generated data",
        n_jobs=n_jobs,
        progress=True,
    )


def _check_file(file: Path, data: RankingDataset) -> None:
    """Raise ``DataError`` if another file is there: that of a demo with other settings, or the user's data."""
    if file.exists() and not _holds(file, data):
        raise DataError(
            f"{file}: expected no file, or the one of this demo, got another; use the same queries and seed as before,"
            " or choose another folder"
        )


def _holds(file: Path, data: RankingDataset) -> bool:
    try:
        written = read(file, n_features=data.n_features, cache=False)
    except DataError:
        return False
    pairs = ((written.offsets, data.offsets), (written.ratings, data.ratings), (written.features, data.features))
    return all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)
