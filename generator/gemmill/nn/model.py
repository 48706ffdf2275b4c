"""The linear layers of a module, quantised in place."""

import fnmatch
from collections.abc import Iterable, Mapping
from itertools import product
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

    keep: patterns over names of layers that stay. input_absmax: `Calibration.absmax`. Each QuantLinear replaces its
    layer at once, so memory grows by one layer's codes. A layer with several names stays one layer under all of them.
    Its error has the first, and it stays where `keep` has any.

    Raises ValueError, by the layer's name, as `quantize_weight` and QuantLinear.
    """
    errors, patterns = [], tuple(keep)
    for layer, names in _linears(model):
        if type(layer) is not nn.Linear or any(fnmatch.fnmatchcase(*pair) for pair in product(names, patterns)):
            continue
        name = names[0]
        absmax = next((input_absmax[each] for each in names if each in input_absmax), None) if input_absmax else None
        try:
            quantized = quantize_weight(layer.weight, format)
            made = QuantLinear(quantized, layer.bias, activations=activations, input_absmax=absmax)
        except ValueError as error:
            raise ValueError(f"{name or 'the layer'}: {error}") from None
        errors.append(layer_error(name, layer.weight, quantized))
        _replace(model, names, made)
    return sorted(errors, key=lambda error: -error.weights)


def load_linears(
    model: nn.Module, checkpoint: Checkpoint, *, prefix: str = "", format: str | None = None, **more: Any
) -> list[str]:
    """Replace linear layers of a module by a checkpoint's quantised ones. Return their names in the module.

    prefix: precedes the module's names in the checkpoint. format: of its layers, where shapes do not tell it. `more` as
    of `QuantLinear.from_checkpoint`. The model may be on torch's meta device: nothing reads its own weights. A layer
    with several names takes the first that the checkpoint has, and stays one layer under all of them.

    Raises CheckpointError for layers of the checkpoint below the prefix that the module has not, by name.
    """
    names_of = {name: names for _, names in _linears(model) for name in names}
    found = [name.removeprefix(prefix) for name in quantised_layers(checkpoint, format) if name.startswith(prefix)]
    if unknown := [name for name in found if name not in names_of]:
        raise CheckpointError(f"{checkpoint.path} has layers that the model does not have: {named(unknown)}")
    done: set[str] = set()
    for name in found:
        if name not in done:
            made = QuantLinear.from_checkpoint(checkpoint, prefix + name, format=format, **more)
            _replace(model, names_of[name], made)
            done.update(names_of[name])
    return found


def _linears(model: nn.Module) -> list[tuple[nn.Linear, list[str]]]:
    """Each linear layer of a module with all its names."""
    found: dict[nn.Linear, list[str]] = {}
    for name, layer in model.named_modules(remove_duplicate=False):
        if isinstance(layer, nn.Linear):
            found.setdefault(layer, []).append(name)
    return list(found.items())


def _replace(model: nn.Module, names: Iterable[str], layer: nn.Module) -> None:
    for name in names:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, layer)
