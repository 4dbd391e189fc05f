"""Callers' own classes and functions, as ``package.module:Name``."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tierank.errors import ParameterError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from tierank.rankers import Ranker

_OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def add_import(parser: argparse.ArgumentParser) -> None:
    """The option that names the caller's own classes in a model."""
    parser.add_argument(
        "--import",
        dest="own",
        action="append",
        default=[],
        metavar="PACKAGE.MODULE:NAME",
        help="your own ranker, network or transform that the model is made of; can be repeated",
    )


def is_own(text: str) -> bool:
    """Whether a text has the form ``package.module:Name``.

    >>> is_own("shop.losses:hinge"), is_own("ndcg@10")
    (True, False)
    """
    return _OWN.fullmatch(text) is not None


def import_own(text: str) -> Any:
    """The class or function of this name; modules in the current folder can be imported too.

    >>> import_own("tierank:UMart").__name__
    'UMart'
    """
    module, _, name = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        imported = import_module(module)
    except ImportError as error:
        raise ParameterError(where=text, expected="a module that can be imported", got=f": {error}") from None
    if not hasattr(imported, name):
        raise ParameterError.unknown(f"name in {module}", name, (one for one in vars(imported) if one[0] != "_"))
    return getattr(imported, name)


def as_own(text: str) -> Any:
    """The class or function that a text names, or the text itself."""
    return import_own(text) if is_own(text) else text


def load_model(options: argparse.Namespace, folder: str | Path) -> Ranker:
    """The model of a folder, which may contain the classes of ``--import``."""
    from tierank.rankers import Ranker, load
    from tierank.transforms import Transform

    classes: dict[type, list[type]] = {Ranker: [], Transform: [], object: []}
    for text in getattr(options, "own", ()):
        if not is_own(text):
            raise ParameterError(argument="import", expected="PACKAGE.MODULE:NAME", got=repr(text))
        imported = import_own(text)
        if not isinstance(imported, type):
            raise ParameterError(argument="import", expected="a class", got=repr(imported))
        kind = next(base for base in classes if issubclass(imported, base))
        classes[kind].append(imported)
    return load(folder, rankers=classes[Ranker], transforms=classes[Transform], networks=classes[object])
