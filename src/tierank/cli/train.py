"""``train`` and ``distill``."""

from __future__ import annotations

import argparse
import ast
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.cli.commands import command
from tierank.cli.console import check_place, print_json, say
from tierank.cli.data import read_to_learn, read_to_validate, reading_options
from tierank.cli.options import settings_of
from tierank.cli.plugins import as_own, is_own, load_model
from tierank.errors import ParameterError, TeamError
from tierank.files import for_json

if TYPE_CHECKING:
    from tierank.data.team import Team
    from tierank.rankers.base import Ranker


@command(reading_options)
def train(options: argparse.Namespace) -> None:
    """Fit a ranker and save it as a folder.

    Example: tierank train umart --train train.csv --valid valid.csv --ignore title,url --set n_trees=300 --out model

    ranker RANKER : ranker
    --train F : file, as data, required
        training data
    --valid F : file
        validation data: choose the best round, and stop early
    --out MODEL : path, required
        folder for the model
    --set NAME=VALUE : settings
    --settings F : path
        a JSON file of settings, such as tune writes
    --position-column NAME : text, as position
        column of the positions where documents were shown; ratings are clicks
    --propensity F.json : path
        propensities by position, from: tierank clicks fit --model pbm --out F.json
    --start MODEL : model
        model to continue from: adds trees to its trees, or starts from its weights
    --resume : switch
        continue an interrupted run from MODEL.checkpoint
    --ranks N : integer, default 1
        train in N processes on this machine; torchrun trains on several
    --timeout S : number
        seconds that processes wait for each other (default: 600)
    --json : json
        what was trained, as JSON
    """
    from tierank.data.team import Team
    from tierank.rankers.checkpoint import check_checkpoint

    settings = {} if options.settings is None else _read_settings(options.settings, options.ranker)
    ranker = make_ranker(options.ranker, settings | settings_of(options.set))
    _check_model_place(options)
    check_checkpoint(_checkpoint(options))
    if options.start is not None:  # before any data are read
        ranker.check_inputs(ranker.checked_settings(), start=load_model(options, options.start))
    if os.environ.get("WORLD_SIZE") not in (None, "", "1"):  # one of several processes: of --ranks, or of torchrun
        from tierank.distributed import join

        with join(**{} if options.timeout is None else {"timeout": options.timeout}) as team:
            _train_in(team, ranker, options)
    elif options.ranks != 1:
        _launch(options)
    elif options.timeout is not None:
        raise ParameterError(argument="timeout", expected="`ranks` above 1, as a single process does not wait", got="1")
    else:
        _train_in(Team(), ranker, options)


@command(reading_options)
def distill(options: argparse.Namespace) -> None:
    """Fit one ranker to the ratings and the scores of a blend, to serve it instead of the blend.

    Example: tierank distill blend --train train.csv --valid valid.csv --into umart --set n_trees=300 --out model

    model MODEL : model
        a blend that was trained on the same data
    --train F : file, as data, required
        the training data of the blend
    --valid F : file
        its validation data, if it had any
    --into RANKER : ranker, default lambdamart
        what to fit
    --set NAME=VALUE : settings
    --mix W : rankers/distillation:distill
    --out MODEL : path, required
        folder for the model
    --json : json
        what was trained, as JSON
    """
    from tierank.rankers.blend import Blend
    from tierank.rankers.distillation import distill

    ranker = make_ranker(options.into, settings_of(options.set))
    _check_model_place(options)
    blend = load_model(options, options.model)
    if not isinstance(blend, Blend):
        raise ParameterError(where=options.model, expected="a model of blend", got=f"one of {type(blend).__name__}")
    train = read_to_learn(options, options.data)
    valid = read_to_validate(options, train)
    fitted = distill(blend, train, ranker, valid=valid, mix=options.mix, progress=True)
    fitted.save(options.out)
    _say_what_was_trained(fitted, options)


def _check_model_place(options: argparse.Namespace) -> None:
    from tierank.rankers.folder import MODEL

    check_place(options, options.out, is_folder=True)
    MODEL.check(options.out)


def _train_in(team: Team, ranker: Ranker, options: argparse.Namespace) -> None:
    """Train as one process of a team; the first process writes files and messages."""
    from tierank.rankers.checkpoint import remove_checkpoint

    propensity = None
    if options.propensity is not None:
        from tierank.clicks import read_propensities

        if options.position is None:
            expected = "`position` too, which says where documents were shown"
            raise ParameterError(argument="propensity", expected=expected, got="none")
        propensity = read_propensities(options.propensity)
    checkpoint = _checkpoint(options)
    if team.is_first and not options.resume:
        remove_checkpoint(checkpoint)
    for turn in range(2):  # the first process on each machine reads first, and leaves a binary cache for the others
        if turn == int(os.environ.get("LOCAL_RANK", "0") != "0"):
            train = read_to_learn(options, options.data)
            valid = read_to_validate(options, train)
        team.all_gather(None)
    start = None if options.start is None else load_model(options, options.start)
    ranker.fit(train, valid=valid, checkpoint=checkpoint, progress=True, team=team, start=start, propensity=propensity)
    if team.is_first:
        ranker.save(options.out)
        remove_checkpoint(checkpoint)
        _say_what_was_trained(ranker, options, team.size)


def _say_what_was_trained(ranker: Ranker, options: argparse.Namespace, n_processes: int = 1) -> None:
    best = ", ".join(f"{metric} {value:.4f}" for metric, value in ranker.best_.items())
    trained = f", trained by {n_processes} processes" if n_processes > 1 else ""
    say(f"wrote {options.out}{trained}{f'; on validation data: {best}' if best else ''}")
    if options.json:
        kept = {"model": str(options.out), "ranker": type(ranker).__name__, "n_features": ranker.n_features_in_}
        print_json(for_json(kept | {"n_steps": len(ranker.history_), "best": ranker.best_}))


def _launch(options: argparse.Namespace) -> None:
    """Train in several processes of this machine."""
    from tierank.distributed.processes import launch
    from tierank.kernels import most_workers
    from tierank.rankers.checkpoint import remove_checkpoint
    from tierank.settings import as_whole

    as_whole("ranks", options.ranks, most=most_workers())
    checkpoint, before = _checkpoint(options), _identity(options.out)
    try:
        launch(options.arguments, options.ranks)
    except TeamError as error:
        if _identity(options.out) not in (None, before):  # training was over, so the lost process does not matter
            remove_checkpoint(checkpoint)
            say(f"{error}; that was after the end of training: {options.out} is complete")
            return
        advice = f"{checkpoint} holds its state: --resume continues from it, with any --ranks"
        raise ParameterError(str(error), fix=advice if checkpoint.exists() else None) from None


def _identity(folder: Path) -> tuple[int, int] | None:
    """What distinguishes a folder from one that replaces it; None if there is no folder."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _checkpoint(options: argparse.Namespace) -> Path:
    out: Path = options.out
    return out.with_name(out.name + ".checkpoint")


def ranker_class(name: str) -> type[Ranker]:
    """The class of a ranker, the caller's own or ours."""
    from tierank.rankers import RANKERS
    from tierank.rankers.base import Ranker

    found = as_own(name) if is_own(name) else RANKERS[name]
    if not isinstance(found, type) or not issubclass(found, Ranker):
        raise ParameterError(argument="ranker", expected="a class derived from tierank.Ranker", got=name)
    return found


def make_ranker(name: str, settings: dict[str, Any]) -> Ranker:
    """A ranker with these settings, which are checked, as no data have been read yet; ``preset`` is one of them."""
    preset = settings.pop("preset", None)
    made = ranker_class(name)
    ranker = made(**settings) if preset is None else made.from_preset(preset, **settings)
    ranker.checked_settings()
    return ranker


def _read_settings(file: Path, ranker: str) -> dict[str, Any]:
    """The settings that ``tune`` wrote, if they are for this ranker. Tables are texts in Python syntax there."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        settings = {
            name: ast.literal_eval(value) if isinstance(value, str) and value.startswith("{") else value
            for name, value in content["settings"].items()
        }
        of = content["ranker"]
    except (ValueError, KeyError, TypeError, AttributeError, SyntaxError, RecursionError):
        expected = '{"ranker": ..., "settings": {...}}, as tune writes it'
        raise ParameterError(where=file, expected=expected) from None
    if of != ranker:
        raise ParameterError(where=file, expected=f"settings of {ranker}", got=f"those of {of}")
    return settings
