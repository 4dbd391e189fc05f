"""Comparison of data, settings and versions between the processes of a team before they train.

If anything differs, all processes raise an error. In a team of one nothing is compared.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank import __version__
from tierank.arrays import CHUNK
from tierank.data.columns import kinds_to_json
from tierank.data.dataset import RankingDataset
from tierank.data.team import Team
from tierank.errors import TeamError
from tierank.rankers.checkpoint import described
from tierank.rankers.folder import without_work
from tierank.rankers.model import FittedModel
from tierank.rankers.order import digest_features

# By area ("settings", "training data"), and by name within it; anything that JSON can hold.
Facts = dict[str, Any]

# The packages whose versions affect results, besides tierank itself.
_PACKAGES = ("numpy", "lightgbm", "torch")
# The memory address in the repr of an object, which does not identify it across processes.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# The most differences per area, and characters of a value, that a message shows.
_LISTED, _SHOWN = 5, 60
# The names of facts that are shown as counts.
_COUNTS = ("queries", "documents", "features")


@contextmanager
def agreement(team: Team) -> Iterator[Facts]:
    """Facts for the block to fill in, which must be the same in all processes; otherwise all of them raise an error.

    An error in the block of one process is raised in the others too. The processes stay in step, so all of them can
    continue.
    """
    facts: Facts = {}
    try:
        yield facts
    except Exception as error:
        if team.size > 1:
            with suppress(TeamError):  # the error of this process is raised
                team.all_gather({"refusal": str(error) or type(error).__name__})
        raise
    if team.size > 1:
        _compare(team.all_gather({"facts": facts}), team)


def facts_of_call(
    ranker: str,
    settings: Mapping[str, Any],
    given: Mapping[str, bool],
    train: RankingDataset,
    valid: RankingDataset | None,
    team: Team,
    start: FittedModel | None = None,
) -> Facts:
    """The small facts: versions, settings, which arguments were given, and the sizes of the data."""
    chosen = json.dumps({"ranker": ranker} | without_work(settings), default=described)
    arguments = {"data": "a part" if team.holds_parts else "all"} | {
        name: _content() for name, is_given in given.items() if is_given
    }
    if start is not None:
        arguments["start"] = _content(start.digest())
    return {
        "versions": _versions(),
        "settings": json.loads(_ADDRESS.sub("", chosen)),
        "arguments of fit": arguments,
        "training data": _shape(train, team),
        "validation data": None if valid is None else _shape(valid, team),
    }


def check_contents(team: Team, train: RankingDataset, valid: RankingDataset | None, n_jobs: int | None) -> None:
    """Raise an error unless all processes have bit-identical data; or, if each has a part, different parts."""
    data = {"training data": train} | ({} if valid is None else {"validation data": valid})
    with agreement(team) as facts:
        digests = {area: _digests(one) for area, one in data.items()}
        if not team.holds_parts:
            for area, one in data.items():
                facts[area] = digests[area] | {"features": _content(digest_features(one, n_jobs))}
    if team.holds_parts:
        for area, own in digests.items():
            _check_parts(area, team.all_gather(own), team)


# Facts


def _versions() -> dict[str, str]:
    versions = {"tierank": __version__}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package).partition("+")[0]  # with or without graphics cards
    return versions


def _shape(data: RankingDataset, team: Team) -> Facts:
    """The sizes of the data; of a part, only what it has in common with the others."""
    counts = {} if team.holds_parts else {"queries": data.n_queries, "documents": data.n_documents}
    names = {f"feature {place}": name for place, name in enumerate(data.feature_names or (), start=1)}
    return counts | {"features": data.n_features} | names | {name: _content() for name in _weights(data)}


def _digests(data: RankingDataset) -> Facts:
    """Digests of the data, except the features."""
    ids = data.query_ids if data.query_ids.dtype.kind != "O" else np.array([repr(i) for i in data.query_ids])
    arrays = {"query ids": ids, "lengths of queries": data.lengths, "ratings": data.ratings} | _weights(data)
    kinds = {"kinds of features": _content(_text(kinds_to_json(data.kinds)))} if data.kinds else {}
    return {name: _content(_digest(values)) for name, values in arrays.items()} | kinds


def _weights(data: RankingDataset) -> dict[str, NDArray[Any]]:
    weights = {name: getattr(data, name) for name in ("row_weight", "query_weight", "position", "propensity")}
    return {name: weight for name, weight in weights.items() if weight is not None}


def _digest(values: NDArray[Any]) -> str:
    digest = hashlib.sha256(f"{values.dtype.str} {values.shape}".encode())
    for start in range(0, len(values), CHUNK):  # in chunks, to save memory
        part = values[start : start + CHUNK]
        digest.update((part + 0.0 if values.dtype.kind == "f" else part).tobytes())  # -0.0 is 0.0
    return digest.hexdigest()


def _content(digest: str = "") -> Facts:
    """The digest of something large, which messages do not show."""
    return {"content": digest}


# Comparing


def _compare(answers: Sequence[Facts], team: Team) -> None:
    """Raise an error if a process refused, or if its facts differ from those of most processes."""
    for number, answer in enumerate(answers):
        if "refusal" in answer:
            raise TeamError(answer["refusal"], where=team.name_of(number))
    differing: dict[int, list[str]] = {}
    for area in answers[0]["facts"]:
        facts = [answer["facts"].get(area) for answer in answers]
        texts = [_text(own) for own in facts]
        # The first of the processes with the most common facts; of equally large groups, that of process 0.
        usual = texts.index(Counter(texts).most_common(1)[0][0])
        for number, own in enumerate(facts):
            if texts[number] != texts[usual]:
                words = "; ".join(_differences(own, facts[usual]))
                differing.setdefault(number, []).append(f"the {area} differ from those of process {usual}: {words}")
    if not differing:
        return
    first, *others = sorted(differing)
    told = "; ".join(differing[first])
    if others:
        told += f"; others differ too: {', '.join(f'process {number}' for number in others)}"
    fix = "start every process with the same data, settings and versions"
    raise TeamError(told, where=team.name_of(first), fix=fix)


def _check_parts(area: str, answers: Sequence[Facts], team: Team) -> None:
    """Raise an error if two processes were given the same part."""
    for number, own in enumerate(answers):
        twin = answers.index(own)
        if twin < number:
            raise TeamError(
                where=team.name_of(number),
                expected=f"a part of the {area} that no other process has",
                got=f"the queries and ratings of process {twin}",
                fix="give each its own queries, or all of them all data without holds_parts",
            )


def _text(fact: Any) -> str:
    return json.dumps(fact, sort_keys=True)


def _differences(own: Facts | None, usual: Facts | None) -> list[str]:
    """What one process has and what was expected, by name."""
    if own is None or usual is None:
        return ["none, expected some" if own is None else "some, expected none"]
    told = []
    for name in usual | own:
        here, there = ([facts[name]] if name in facts else [] for facts in (own, usual))
        if _text(here) == _text(there):
            continue
        has, expected = (_shown(*values) if values else None for values in (here, there))
        if has is None:
            told.append(f"no {name}, expected {expected}")
        elif expected is None:
            told.append(f"{name} {has}, expected none")
        elif name in _COUNTS and isinstance(own[name], int) and isinstance(usual[name], int):
            told.append(f"{own[name]:,} {name}, expected {usual[name]:,}")
        else:
            told.append(f"other {name}" if has == expected else f"{name} {has}, expected {expected}")
    return told[:_LISTED] + ([f"and {len(told) - _LISTED} more"] if len(told) > _LISTED else [])


def _shown(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"content"}:
        return "some"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
