"""Adam, from torch's functions rather than its optimizer classes.

Creating one of those classes imports torch's compiler, which takes a second or more of CPU time in every process that
trains, and its ``step`` spends more time in Python than in the fused kernel below. The functions are the same, and so
are the results, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


class Adam:
    """Adam, or AdamW with ``weight_decay``.

    ``state`` holds the moments of each parameter that has had a gradient, by the number of the parameter.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], weight_decay: float = 0.0) -> None:
        self.parameters, self.weight_decay = list(parameters), weight_decay
        self.state: dict[int, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Take one step with this learning rate, for the parameters that have a gradient."""
        numbers = [number for number, parameter in enumerate(self.parameters) if parameter.grad is not None]
        states = [self.state_of(number) for number in numbers]
        (adamw if self.weight_decay else adam)(
            [self.parameters[number] for number in numbers],
            [gradient for number in numbers if (gradient := self.parameters[number].grad) is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,  # a step on few queries takes a fifth of the time
            amsgrad=False,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            lr=rate,
            weight_decay=self.weight_decay,
            eps=_EPSILON,
            maximize=False,
        )

    def state_of(self, number: int) -> dict[str, Tensor]:
        """The moments of a parameter, which are 0 at first."""
        if number not in self.state:
            self.state[number] = _zeros(self.parameters[number])
        return self.state[number]

    def load(self, state: dict[int, dict[str, Tensor]]) -> None:
        """Continue from the state of another ``Adam`` with the same parameters."""
        devices = {number: self.parameters[number].device for number in state}
        self.state = {k: {name: t.to(devices[k]) for name, t in values.items()} for k, values in state.items()}


def _zeros(parameter: Tensor) -> dict[str, Tensor]:
    step = torch.zeros((), dtype=torch.float32, device=parameter.device)
    return {"step": step, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
