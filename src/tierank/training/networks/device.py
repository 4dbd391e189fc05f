"""The device and the number of threads that torch uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tierank.errors import ParameterError
from tierank.kernels import n_threads

# The values (inputs x documents) in a step from which another thread is worth it (measured).
_VALUES_PER_THREAD = 1 << 20


def as_device(name: Any) -> torch.device:
    """The device of this name; raises an error if it does not exist or cannot hold numbers."""
    try:
        torch.zeros(1, device=name).cpu()
        return torch.device(name)
    except (AssertionError, RuntimeError, TypeError) as error:
        raise ParameterError(
            f"device: expected one that torch has here, such as 'cpu', got {name!r}: {str(error).splitlines()[0]}"
        ) from None


@contextmanager
def torch_threads(n_jobs: int | None, n_values: int) -> Iterator[None]:
    """Set the number of torch threads while the block lasts. ``n_values`` enter a network in one step."""
    before, wanted = torch.get_num_threads(), n_threads(n_jobs, worth=1 + n_values // _VALUES_PER_THREAD)
    if before == wanted:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)
