"""The state of torch that results depend on: tierank computes with torch's defaults, whatever the program has set."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


class _Defaults:
    """The type of numbers and the precision of products, which apply to the whole process.

    The first thread that needs torch's defaults sets them, and the last one restores what the program had. If each
    thread restored what it found, the first one to leave would change them for the others.
    """

    def __init__(self) -> None:
        self._lock, self._n_inside, self._before = threading.Lock(), 0, (torch.float32, "highest")

    @contextmanager
    def inside(self) -> Iterator[None]:
        with self._lock:
            if self._n_inside == 0:
                self._before = torch.get_default_dtype(), torch.get_float32_matmul_precision()
                self._set(torch.float32, "highest")
            self._n_inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_inside -= 1
                if self._n_inside == 0:
                    self._set(*self._before)

    def fork(self) -> None:
        """A forked process has a lock that nobody holds."""
        self._lock = threading.Lock()

    @staticmethod
    def _set(dtype: Any, precision: str) -> None:
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)


_DEFAULTS = _Defaults()
if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_DEFAULTS.fork)


@contextmanager
def own_torch() -> Iterator[None]:
    """Inside, torch is as it is by default: of single precision, on the CPU unless told otherwise, with gradients.

    A program may have set another default type, device or precision of products, or call tierank in a block of
    ``torch.no_grad``, ``inference_mode`` or ``autocast``: models, scores and explanations would depend on that.

    >>> with torch.no_grad(), own_torch():
    ...     torch.is_grad_enabled()
    True
    """
    with _DEFAULTS.inside(), ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":  # not always: it slows down every call
            stack.enter_context(torch.device("cpu"))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's global generator begins with a seed, as networks and losses of callers may draw from it.

    Afterwards the generator continues where the program had it.

    >>> with seeded(3):
    ...     first = torch.rand(2)
    >>> with seeded(3):
    ...     bool((torch.rand(2) == first).all())
    True
    """
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)
