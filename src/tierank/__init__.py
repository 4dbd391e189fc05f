"""tierank: learning to rank by unique ratings.

Names are loaded on first use, so that ``import tierank`` and ``tierank --help`` answer at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tierank.dataset import RankingDataset as RankingDataset
    from tierank.errors import DataError as DataError
    from tierank.errors import ParameterError as ParameterError
    from tierank.errors import TierankError as TierankError

__version__ = "0.1.0"

# Where each public name lives; the block above says the same to type checkers and editors.
_HOMES = {
    "DataError": "errors",
    "ParameterError": "errors",
    "RankingDataset": "dataset",
    "TierankError": "errors",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tierank' has no attribute {name!r}")
    return getattr(import_module(f"tierank.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
