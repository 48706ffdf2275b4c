"""Models of Hugging Face's transformers, loaded with QuantLinear layers and saved with them.

Importing it registers `quant_method: gemmill`: `from_pretrained` takes a `GemmillConfig`, or a folder that such a model was saved to.
"""

import fnmatch
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from gemmill.nn.linear import QuantLinear
from gemmill.nn.model import quantize_module
from gemmill.nn.recipes import PACKING, recipe_of
from gemmill.quantize.weights import quantize_weight

METHOD = "gemmill"


@register_quantization_config(METHOD)
class GemmillConfig(QuantizationConfigMixin):
    """The format of a model's linear layers, which config.json keeps as `quantization_config`."""

    def __init__(
        self,
        format: str = "channel",
        *,
        activations: str | None = None,
        modules_to_not_convert: Iterable[str] = ("lm_head", "*.lm_head"),
        packing: str = PACKING,
        quant_method: str = METHOD,
    ) -> None:
        """format, activations: as of QuantLinear. modules_to_not_convert: patterns over names of layers that stay.

        packing: the order of the saved packed weights. Raises ValueError for a format or activations that do not exist,
        for activations that need calibrated inputs, and for another packing.
        """
        self.quant_method = quant_method
        self.activations, recipe = recipe_of(format, activations)
        if recipe.calibrated:
            raise ValueError(
                f"{self.activations} activations need calibrated inputs: use quantize_module, which takes input_absmax"
            )
        if packing != PACKING:
            raise ValueError(
                f"the model was packed for other kernels ({packing}, and this gemmill reads {PACKING}): load the original and quantise it again"
            )
        self.format, self.packing, self.modules_to_not_convert = format, packing, list(modules_to_not_convert)


@register_quantizer(METHOD)
class GemmillQuantizer(HfQuantizer):
    """Quantises the linear layers of a model after its floats are loaded, or makes places for saved layers."""

    requires_calibration = False

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> None:
        if not self.pre_quantized:
            return
        config = self.quantization_config
        for name, layer in list(model.named_modules()):
            if type(layer) is nn.Linear and not any(
                fnmatch.fnmatchcase(name, p) for p in config.modules_to_not_convert
            ):
                zeros = torch.zeros(layer.weight.shape, dtype=torch.float32, device="cpu")
                bias = (
                    None
                    if layer.bias is None
                    else torch.zeros(layer.out_features, dtype=layer.bias.dtype, device="cpu")
                )
                model.set_submodule(
                    name,
                    QuantLinear(quantize_weight(zeros, config.format), bias, activations=config.activations).to("meta"),
                )

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> None:
        if not self.pre_quantized:
            config = self.quantization_config
            quantize_module(model, config.format, activations=config.activations, keep=config.modules_to_not_convert)

    def get_new_dtype(self, converter: Any, param: Any, dtype: torch.dtype | None) -> torch.dtype | None:
        """No tensor of a saved model is cast: scales stay float32."""
        return None if self.pre_quantized else super().get_new_dtype(converter, param, dtype)

    def is_serializable(self) -> bool:
        """Whether `save_pretrained` works."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Whether layers have gradients."""
        return False
