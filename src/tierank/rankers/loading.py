"""Model folders → fitted rankers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tierank.errors import DataError, ParameterError, TierankError
from tierank.extras import needing
from tierank.files import as_path
from tierank.models import MODEL, Known, damaged, decode_settings, known_class, read_folder, read_settled
from tierank.rankers.base import Ranker
from tierank.training.model import SavedModel, Seen

# What reading a file that is not what it claims to be can raise.
_OF_DAMAGE = (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)


def read_ranker(path: str | os.PathLike[str], known: Known) -> Ranker:
    """The ranker of a model folder; the checksum of every file is verified before it is read."""
    place = as_path(path, "path", "the path of a model folder")
    return read_settled(place, lambda folder: _read_once(folder, known))[0]


def _read_once(folder: Path, known: Known) -> Ranker:
    description, files = read_folder(folder)
    file = folder / MODEL.file
    try:
        ranker = _constructed(description, known)
        seen = Seen.from_json(description, files)
        if not isinstance(description["fitted"], dict):
            raise TypeError("fitted")
        with needing(type(ranker).__name__):
            model = ranker.restore_model(SavedModel(seen, description["fitted"], files))
        ranker.hold(model, seen)
    except ParameterError as error:
        raise DataError(f"settings: {error}", where=file) from None
    except TierankError as error:
        raise error.at(file) if error.where is None else error from None
    except KeyError as error:
        raise damaged(file, f"no {error}") from None
    except _OF_DAMAGE as error:
        raise damaged(file, str(error)) from None
    return ranker


def _constructed(description: Mapping[str, Any], known: Known) -> Ranker:
    kind = known_class(known.rankers, "ranker", description["ranker"])
    ranker = kind(**decode_settings(description["settings"], known))
    if not isinstance(ranker, Ranker):
        raise DataError(argument="rankers", expected="classes derived from tierank.Ranker", got=kind.__name__)
    return ranker
