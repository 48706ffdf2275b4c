"""The linear layers of a module, quantised in place."""

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from gemmill.checkpoints.file import CheckpointError
from gemmill.checkpoints.folder import Checkpoint
from gemmill.checkpoints.keys import named
from gemmill.checkpoints.layers import quantised_layers
from gemmill.nn.linear import QuantLinear
from gemmill.quantize import LayerError, layer_error, quantize_weight


def quantize_module(
    model: nn.Module,
    format: str,
    *,
    activations: str | None = None,
    keep: Iterable[str] = (),
    input_absmax: Mapping[str, Tensor] | None = None,
) -> list[LayerError]:
    """Make every nn.Linear of a module a QuantLinear. Return their errors, the worst first.

    keep: patterns over names of layers that stay. input_absmax: `Calibration.absmax`. A layer is replaced as soon as it
    is made, so memory grows by one layer's codes. Raises ValueError, by the layer's name, as `quantize_weight` and
    QuantLinear.
    """
    errors, patterns = [], tuple(keep)
    layers = [(name, layer) for name, layer in model.named_modules() if type(layer) is nn.Linear]
    for name, layer in layers:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            continue
        absmax = None if input_absmax is None else input_absmax.get(name)
        try:
            quantized = quantize_weight(layer.weight.detach(), format)
            made = QuantLinear(quantized, layer.bias, activations=activations, input_absmax=absmax)
        except ValueError as error:
            raise ValueError(f"{name or 'the layer'}: {error}") from None
        errors.append(layer_error(name, layer.weight.detach(), quantized))
        _replace(model, name, made)
    return sorted(errors, key=lambda error: -error.weights)


def load_linears(
    model: nn.Module, checkpoint: Checkpoint, *, prefix: str = "", format: str | None = None, **more: Any
) -> list[str]:
    """Replace linear layers of a module by those of a checkpoint that are quantised there. Return their names in the
    module.

    prefix: what the checkpoint's names have before the module's. format: of its layers, where shapes do not tell it.
    `more` as of `QuantLinear.from_checkpoint`. The model may be on torch's meta device: its own weights are not read.

    Raises CheckpointError for layers of the checkpoint below the prefix that the module has not, by name.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    found = [name.removeprefix(prefix) for name in quantised_layers(checkpoint, format) if name.startswith(prefix)]
    if unknown := [name for name in found if name not in layers]:
        raise CheckpointError(f"{checkpoint.path} has layers that the model does not have: {named(unknown)}")
    for name in found:
        _replace(model, name, QuantLinear.from_checkpoint(checkpoint, prefix + name, format=format, **more))
    return found


def _replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, layer)
