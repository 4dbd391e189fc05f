"""The state of torch that results depend on: tierank computes with torch's defaults, whatever the program has set."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Generic, TypeVar

import torch

State = TypeVar("State")


class _Shared(Generic[State]):
    """A state of the whole process that fits change while they run, in one thread or several.

    The first one saves what the program had, and the last one restores it. If each restored what it found, the first
    one to leave would change the state for the others, and the last one would leave the state of another fit behind.
    """

    def __init__(self, read: Callable[[], State], write: Callable[[State], object]) -> None:
        self._read, self._write = read, write
        self._lock, self._n_inside, self._before = threading.Lock(), 0, read()
        if hasattr(os, "register_at_fork"):  # Windows does not fork
            os.register_at_fork(after_in_child=self._fork)

    @contextmanager
    def changed(self, change: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            if self._n_inside == 0:
                self._before = self._read()
            self._n_inside += 1
            change()
        try:
            yield
        finally:
            with self._lock:
                self._n_inside -= 1
                if self._n_inside == 0:
                    self._write(self._before)

    def _fork(self) -> None:
        """A forked process has a lock that nobody holds."""
        self._lock = threading.Lock()


def _defaults() -> tuple[torch.dtype, str]:
    """The type of numbers and the precision of products."""
    return torch.get_default_dtype(), torch.get_float32_matmul_precision()


def _set_defaults(values: tuple[torch.dtype, str]) -> None:
    if values != _defaults():
        torch.set_default_dtype(values[0])
        torch.set_float32_matmul_precision(values[1])


_DEFAULTS = _Shared(_defaults, _set_defaults)
_GENERATOR = _Shared(torch.default_generator.get_state, torch.default_generator.set_state)


@contextmanager
def own_torch() -> Iterator[None]:
    """Inside, torch is as it is by default: of single precision, on the CPU unless told otherwise, with gradients.

    A program may have set another default type, device or precision of products, or call tierank in a block of
    ``torch.no_grad``, ``inference_mode`` or ``autocast``: models, scores and explanations would depend on that.

    >>> with torch.no_grad(), own_torch():
    ...     torch.is_grad_enabled()
    True
    """
    with _DEFAULTS.changed(lambda: _set_defaults((torch.float32, "highest"))), ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        # Not torch.get_default_device, which fails in torch 2.4; and not always, as the block slows down every call.
        if torch.empty(0).device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's global generator begins with a seed, as networks and losses of callers may draw from it.

    Afterwards the generator continues where the program had it. Fits in several threads share it: a network or a loss
    that draws from it is only reproducible if no other fit runs at the same time.

    >>> with seeded(3):
    ...     first = torch.rand(2)
    >>> with seeded(3):
    ...     bool((torch.rand(2) == first).all())
    True
    """
    with _GENERATOR.changed(lambda: torch.default_generator.manual_seed(seed)):
        yield
