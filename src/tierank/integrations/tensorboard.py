"""A callback that writes metrics and losses for TensorBoard."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from tierank.errors import ParameterError, WriteError
from tierank.extras import needing
from tierank.integrations import tracked_values
from tierank.rankers.model import Step


class TensorBoard:
    """Writes each round or epoch to a folder that ``tensorboard --logdir`` shows.

    Pass it to ``fit(..., callbacks=[...])``. ``@`` in the name of a metric becomes ``_at_``. The parts of a ranker,
    such as the members of a blend, have their own tags: ``networks/member1/ndcg_at_10``.

    Parameters
    ----------
    folder : path
        The folder to write to, one for each run. It is created if it does not exist.

    Examples
    --------
    >>> board = TensorBoard("runs/urank")  # doctest: +SKIP
    >>> ranker = URank().fit(train, valid=valid, callbacks=[board])  # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        with needing("tierank.integrations.tensorboard"):
            from tensorboardX import SummaryWriter
        if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder) or "\0" in str(folder):
            raise ParameterError(argument="folder", expected="the name of a folder", got=repr(folder))
        self._folder = folder
        with self._writing():
            # With seconds alone, the files of two runs in one folder could have the same name.
            self._writer = SummaryWriter(os.fspath(folder), filename_suffix=f".{secrets.token_hex(4)}")

    def __call__(self, step: Step) -> None:
        """Write the metrics and the loss of a round or epoch."""
        with self._writing():
            for name, value in tracked_values(step):
                self._writer.add_scalar(name, value, step.number)
            self._writer.flush()  # so that it can be viewed while training runs

    def close(self) -> None:
        """Close the file."""
        with self._writing():
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with suppress(*([] if error is None else [WriteError])):  # the first error was raised already
            self.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WriteError.of(self._folder, error) from None
