"""A load format of vLLM that fills a model with the same random weights each time: `load_format="gemmill_random"`.

vLLM's own `dummy` draws within 1e-3 of zero, which e4m3 rounds to few codes, and draws scales of either sign. Here dequantised
weights have a deviation of DEVIATION. Layers that add to the residual stream are smaller by the root of twice the number of
layers, as models are initialised: otherwise a last bit of one GEMM grows to a tenth of a log-probability (see damping()).

`register` is an entry point of `vllm.general_plugins`, so that the engine's own process has the format, too.
"""

import zlib
from collections.abc import Iterable
from math import log2, sqrt
from typing import Any

import torch
from torch import Tensor

from served import loading

LOAD_FORMAT = "gemmill_random"
DEVIATION = 0.02
_CODES_DEVIATION = 40.0
"""Of codes of e4m3 and int8."""
_E2M1_DEVIATION = 3.0
_INPUTS = ("input_scale", "input_global_scale", "k_scale", "v_scale", "q_scale", "prob_scale")


def register() -> None:
    """Makes the load format known to vLLM, and times its loading. Does nothing the second time."""
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER, register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    loading.register()
    if LOAD_FORMAT in _LOAD_FORMAT_TO_MODEL_LOADER:
        return

    @register_model_loader(LOAD_FORMAT)
    class RandomLoader(BaseModelLoader):
        def download_model(self, model_config: Any) -> None:
            pass

        def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
            with torch.no_grad():
                fill(model.state_dict().items(), model_config.hf_config.num_hidden_layers)


def fill(parameters: Iterable[tuple[str, Tensor]], layers: int) -> None:
    """Fills parameters in place, each by its name and dtype, with the same values in every process."""
    for name, parameter in parameters:
        _fill(name, parameter.data, damping(name, layers))


def damping(name: str, layers: int) -> float:
    """The factor of a layer whose results are added to the residual stream; 1 of others."""
    ends = any(part in ("o_proj", "down_proj") or part.startswith("w2_") for part in name.split("."))
    return 1 / sqrt(2 * layers) if ends else 1.0


def _fill(name: str, x: Tensor, factor: float) -> None:
    generator = torch.Generator(device=x.device).manual_seed(zlib.crc32(name.encode()))
    module, _, leaf = name.rpartition(".")
    if "rotary" in name or "cos_sin" in name:
        return
    if "norm" in leaf or "norm" in module.rpartition(".")[2]:
        x.fill_(1.0)
    elif leaf.endswith("weight_scale_2"):
        x.fill_(factor * DEVIATION / _E2M1_DEVIATION)
    elif leaf.endswith("weight_global_scale"):  # a divisor
        x.fill_(_E2M1_DEVIATION / (factor * DEVIATION))
    elif leaf.endswith("zero_point"):
        x.fill_(0)
    elif leaf.endswith(_INPUTS):
        x.fill_(1.0)
    elif leaf.endswith(("weight_scale", "weight_scale_inv")):
        _fill_scales(x, factor, generator)
    elif x.dtype == torch.uint8:
        x.random_(0, 256, generator=generator)
    elif x.dtype in (torch.float8_e4m3fn, torch.int8):
        for part in x if x.dim() == 3 else [x]:  # experts one after another, for memory
            part.copy_(_codes(part, generator))
    elif x.is_floating_point():
        deviation = 1.0 if "embed_tokens" in name else factor * DEVIATION
        x.copy_(torch.randn(x.shape, dtype=torch.float32, device=x.device, generator=generator) * deviation)


def _fill_scales(x: Tensor, factor: float, generator: torch.Generator) -> None:
    if x.dtype == torch.uint8:  # exponents of mxfp4's groups
        middle = 127 + round(log2(factor * DEVIATION / _E2M1_DEVIATION))
        x.random_(middle - 1, middle + 2, generator=generator)
        return
    drawn = torch.empty(x.shape, dtype=torch.float32, device=x.device).uniform_(0.5, 1.5, generator=generator)
    if x.dtype == torch.float8_e4m3fn:  # of nvfp4's groups, next to a scale of the whole tensor
        x.copy_(drawn)
    else:
        x.copy_(drawn * (factor * DEVIATION / _CODES_DEVIATION))


def _codes(x: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(x.shape, dtype=torch.float32, device=x.device, generator=generator) * _CODES_DEVIATION
    return (drawn if x.dtype == torch.float8_e4m3fn else drawn.round()).clamp(-127, 127).to(x.dtype)
