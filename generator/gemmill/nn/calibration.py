"""The range of layers' inputs, watched while a model runs."""

from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from gemmill.nn.linear import QuantLinear


class Calibration:
    """A block within which every linear layer notes the largest magnitude of its input. Nothing waits for a GPU.

    how: "max", the largest ever; or "average", decay * running + (1 - decay) * current, as LightX2V's calibration with
    decay 0.9.
    """

    def __init__(self, model: nn.Module, how: str = "max", *, decay: float = 0.9) -> None:
        """Raises ValueError for a way that does not exist."""
        if how not in ("max", "average"):
            raise ValueError(f"calibration is by 'max' or 'average', got {how!r}")
        self.how, self.decay, self._model = how, decay, model
        self.absmax: dict[str, Tensor] = {}
        """f32 [1] by the layer's name, of those that ran."""
        self._hooks: list[Any] = []

    def __enter__(self) -> "Calibration":
        for name, layer in linears(self._model):
            self._hooks.append(layer.register_forward_pre_hook(self._noting(name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _noting(self, name: str) -> Any:
        def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0].detach()
            if not x.numel():
                return
            largest, running = x.abs().amax().float().reshape(1), self.absmax.get(name)
            if running is not None:
                by_max = self.how == "max"
                largest = (
                    torch.maximum(running, largest) if by_max else self.decay * running + (1 - self.decay) * largest
                )
            self.absmax[name] = largest

        return note


def linears(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """Linear layers by name, quantised or not."""
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, (nn.Linear, QuantLinear)))
