"""Checkpoints that other projects quantised, loaded by transformers' `from_pretrained` with QuantLinear layers.

    model = AutoModelForCausalLM.from_pretrained(folder, config=stored_config(folder))

It needs neither compressed-tensors nor ModelOpt. The config has a `quant_method` of its own, which importing this
registers.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils.quantization_config import QuantizationConfigMixin

from gemmill.checkpoints import Checkpoint, CheckpointError
from gemmill.checkpoints.file import read_header
from gemmill.checkpoints.keys import named
from gemmill.checkpoints.layers import quantised_layers
from gemmill.checkpoints.stated import stated_format
from gemmill.nn.linear import QuantLinear
from gemmill.nn.model import load_linears
from gemmill.nn.recipes import recipe_of
from gemmill.nn.transformers import GemmillConfig, GemmillQuantizer

METHOD = "gemmill-stored"
_FLOATS = ("F32", "BF16", "F16")


def stored_config(folder: Path | str, *, activations: str | None = None, **more: Any) -> PreTrainedConfig:
    """The config by which `from_pretrained` gives a checkpoint's quantised layers to QuantLinear.

    They are those that `gemmill convert` reads: FP8 per channel and in blocks of 128 x 128, INT8, nvfp4, mxfp4 and
    mxfp8, under the names of compressed-tensors, ModelOpt or DeepSeek. activations: as of QuantLinear, for all layers.
    `more` as of AutoConfig.from_pretrained, which reads the folder. Loading raises CheckpointError for layers in any
    other form.
    """
    config = AutoConfig.from_pretrained(folder, **more)
    config.quantization_config = {"quant_method": METHOD, "activations": activations}
    return config


@register_quantization_config(METHOD)
class StoredConfig(QuantizationConfigMixin):
    """The replacement that `stored_config` puts for a checkpoint's own `quantization_config`."""

    def __init__(self, activations: str | None = None, quant_method: str = METHOD) -> None:
        """activations: as of QuantLinear."""
        self.quant_method, self.activations = quant_method, activations

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        """Of another quant method nothing is read: the files say how layers are stored."""
        own = config_dict if config_dict.get("quant_method") == METHOD else {}
        return super().from_dict(own, return_unused_kwargs, **kwargs)


def serve_stored(*methods: str) -> None:
    """Let plain `from_pretrained` calls of this process give checkpoints of these quant methods to QuantLinear.

    methods: such as "compressed-tensors", "modelopt" or "fp8", as config.json names them. transformers' own quantizers
    no longer see such checkpoints, and layers that `stored_config` does not read are errors.
    """
    for method in methods:
        AUTO_QUANTIZATION_CONFIG_MAPPING[method] = StoredConfig


@register_quantizer(METHOD)
class StoredQuantizer(HfQuantizer):
    """Keeps transformers from the weights of quantised layers, and makes the layers of them afterwards."""

    requires_calibration = True

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: Sequence[str] | None = None, **kwargs: Any
    ) -> None:
        if not checkpoint_files:
            raise CheckpointError(
                "quantised layers are read from files: give from_pretrained a folder in place of a state dict"
            )
        self._checkpoint = _opened([Path(file) for file in checkpoint_files])
        self._prefix, found = _placed(model, self._checkpoint)
        _refuse_others(model, self._checkpoint, self._prefix, found)
        for name in found:
            layer = model.get_submodule(name)
            layer.weight = layer.bias = None  # transformers has no place for them then
            layer._is_hf_initialized = True
        ignored = "|".join(map(re.escape, found))
        model._keys_to_ignore_on_load_unexpected = {
            *(model._keys_to_ignore_on_load_unexpected or ()),
            rf"(^|\.)({ignored})\.",
        }

    def postprocess_model(self, model: PreTrainedModel, **kwargs: Any) -> None:
        """Make the layers, on the devices of their neighbours.

        Where all have one format that can be saved, the model is from then on as one that gemmill quantised.
        """
        super().postprocess_model(model, **kwargs)
        found = load_linears(
            model, self._checkpoint, prefix=self._prefix, activations=self.quantization_config.activations
        )
        layers = [model.get_submodule(name) for name in found]
        for name, layer in zip(found, layers, strict=True):
            layer.to(_device_near(model, name)).to(model.dtype)
        kinds = {(layer.format, layer.activations) for layer in layers if isinstance(layer, QuantLinear)}
        del self._checkpoint
        if len(kinds) == 1 and not recipe_of(*(kind := kinds.pop()))[1].calibrated:
            kept = [name for name, layer in model.named_modules() if type(layer) is nn.Linear]
            made = GemmillConfig(kind[0], activations=kind[1], modules_to_not_convert=kept)
            model.config.quantization_config, model.quantization_method = made, made.quant_method
            model.hf_quantizer = GemmillQuantizer(made, pre_quantized=True)

    def is_serializable(self) -> bool:
        """False: saving is left to the checkpoint that the layers came from, since they may differ in format or have
        calibrated inputs.
        """
        return False

    @property
    def is_trainable(self) -> bool:
        """Whether layers have gradients."""
        return False


def _opened(files: Sequence[Path]) -> Checkpoint:
    """The files that transformers found, as one checkpoint. It ignores files of other programs next to them."""
    tensors = {name: stored for file in files for name, stored in read_header(file).items()}
    folder = files[0].parent
    return Checkpoint(path=folder, files=tuple(files), tensors=tensors, stated=stated_format(folder))


def _placed(model: PreTrainedModel, checkpoint: Checkpoint) -> tuple[str, list[str]]:
    """The prefix of the model's names in the checkpoint, and the model's names of the layers that it has quantised.

    Raises CheckpointError for layers that the model does not have.
    """
    stored = quantised_layers(checkpoint)
    if not stored:
        raise CheckpointError(
            f"{checkpoint.path} has no quantised layer that gemmill reads: load it without stored_config, or quantise it by GemmillConfig"
        )
    modules = {name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    base = f"{model.base_model_prefix}."
    inside = [name.removeprefix(base) for name in stored if name.startswith(base)]
    prefix, found = ("", stored) if any(name in modules for name in stored) else (base, inside)
    if unknown := [name for name in found if name not in modules]:
        raise CheckpointError(
            f"{checkpoint.path} has quantised layers for which {type(model).__name__} has no nn.Linear: {named(unknown)}; transformers joins "
            "experts in one tensor: load them by read_layer"
        )
    return prefix, found


def _refuse_others(model: PreTrainedModel, checkpoint: Checkpoint, prefix: str, found: Iterable[str]) -> None:
    """Raise CheckpointError for quantised linear layers in a form that gemmill does not read."""
    linear = {name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)} - set(found)
    other = []
    for key, stored in checkpoint.tensors.items():
        layer, _, part = key.removeprefix(prefix).rpartition(".")
        if layer in linear and (part not in ("weight", "bias") or stored.dtype not in _FLOATS):
            other.append(key)
    if other:
        raise CheckpointError(
            f"{checkpoint.path} stores layers in a way that gemmill does not read ({named(other)}): it reads FP8 per channel and in blocks "
            "of 128 x 128, INT8 per channel, nvfp4, mxfp4 and mxfp8; load it without stored_config"
        )


def _device_near(model: PreTrainedModel, name: str) -> torch.device:
    """The device of the first parameter of the smallest module with one around a layer."""
    while name:
        name = name.rpartition(".")[0]
        for parameter in model.get_submodule(name).parameters():
            return parameter.device
    return torch.device("cpu")
