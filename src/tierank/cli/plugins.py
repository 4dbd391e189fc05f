"""Callers' own classes and functions, as ``package.module:Name``."""

from __future__ import annotations

import argparse
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.errors import ParameterError

if TYPE_CHECKING:
    from tierank.rankers.base import Ranker

_OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_own(text: str) -> bool:
    """Whether a text has the form ``package.module:Name``.

    >>> is_own("shop.losses:hinge"), is_own("ndcg@10")
    (True, False)
    """
    return _OWN.fullmatch(text) is not None


def as_own(text: str) -> Any:
    """The class or function that a text names, or the text itself; modules may be in the current folder.

    >>> as_own("tierank:UMart").__name__, as_own("umart")
    ('UMart', 'umart')
    """
    if not is_own(text):
        return text
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


def own_class(text: str) -> type:
    """The class that a text names."""
    if not is_own(text):
        raise ParameterError(expected="PACKAGE.MODULE:NAME", got=repr(text))
    imported = as_own(text)
    if not isinstance(imported, type):
        raise ParameterError(expected="a class", got=repr(imported))
    return imported


def load_model(options: argparse.Namespace, folder: str | Path) -> Ranker:
    """The model of a folder.

    --import PACKAGE.MODULE:NAME : classes, as own
        your own ranker, network or transform that the model is made of; can be repeated
    """
    from tierank.rankers import load
    from tierank.rankers.base import Ranker
    from tierank.transforms import Transform

    classes: dict[type, list[type]] = {Ranker: [], Transform: [], object: []}
    for own in getattr(options, "own", ()):
        classes[next(base for base in classes if issubclass(own, base))].append(own)
    return load(folder, rankers=classes[Ranker], transforms=classes[Transform], networks=classes[object])
