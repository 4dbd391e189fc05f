"""The same rankers on many machines: trees on Dask or LightGBM's own network, networks on torch.distributed."""

from typing import Any

from tierank.distributed.processes import Processes, join

__all__ = ["Processes", "fit", "join"]


def __getattr__(name: str) -> Any:
    if name == "fit":  # Dask is imported on first use
        from tierank.distributed.dask import fit

        return fit
    raise AttributeError(f"module 'tierank.distributed' has no attribute {name!r}")
