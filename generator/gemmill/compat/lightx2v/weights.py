"""Weight classes with the interface of LightX2V's MMWeight, by gemmill's ops: nvfp4, mxfp4, mxfp6 with mxfp8 activations, mxfp8.

Names of keys, attributes and methods are those of ModelTC/LightX2V f8aee98, `lightx2v/common/ops/mm/mm_weight.py`. A layer's block is
the first number of its key. These run wherever a build has variants, and on CPU tensors.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gemmill.checkpoints.file import CheckpointError, read_header
from gemmill.compat.lightx2v import gemm
from gemmill.formats.quantise import LARGEST_PRODUCT

__all__ = [
    "MM_WEIGHT_REGISTER",
    "MMWeightWmxfp4Amxfp4dynamic",
    "MMWeightWmxfp6Amxfp8dynamic",
    "MMWeightWmxfp8Amxfp8dynamic",
    "MMWeightWnvfp4Anvfp4dynamic",
]
Tensors = Mapping[str, Tensor]
_LORA = {"lora_down": ".lora_down.weight", "lora_up": ".lora_up.weight", "lora_alpha": ".alpha", "bias_diff": ".diff_b"}


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _pinned(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=torch.cuda.is_available()).copy_(tensor)


class _MMWeight:
    """The common part of all formats."""

    quantise: Callable[..., tuple[Tensor, Tensor]]
    multiply: Callable[..., Tensor]

    def __init__(
        self,
        weight_name: str,
        bias_name: str | None = None,
        create_cuda_buffer: bool = False,
        create_cpu_buffer: bool = False,
        lazy_load: bool = False,
        lazy_load_file: str | Path | None = None,
        is_post_adapter: bool = False,
        lora_prefix: str = "diffusion_model.blocks",
        lora_path: str = "",
    ) -> None:
        self.weight_name, self.bias_name = weight_name, bias_name
        self.create_cuda_buffer, self.create_cpu_buffer = create_cuda_buffer, create_cpu_buffer
        self.lazy_load, self.lazy_load_file = lazy_load, lazy_load_file
        self.is_post_adapter, self.lora_prefix, self.lora_path = is_post_adapter, lora_prefix, lora_path
        self.config: Mapping[str, Any] = {}
        self.has_lora_branch = self.has_diff = False
        self.lora_down: Tensor | None = None
        self.lora_up: Tensor | None = None
        self.bias_diff: Tensor | None = None
        self.lora_scale: Tensor | float = 1.0
        self.lora_strength = 1.0
        self.names = self._names()
        for attribute in self.names:
            for name in (attribute, f"pin_{attribute}", f"{attribute}_cuda_buffer"):
                setattr(self, name, None)

    def _names(self) -> dict[str, str]:
        """Keys by attribute."""
        names = {"weight": self.weight_name, "weight_scale": self.weight_name.removesuffix(".weight") + ".weight_scale"}
        return names if self.bias_name is None else names | {"bias": self.bias_name}

    def set_config(self, config: Mapping[str, Any] = {}) -> None:
        """`weight_auto_quant`: weights come in bf16, and loading quantises them; not to nvfp4."""
        self.config = config

    def load(self, weight_dict: Tensors) -> None:
        """From tensors by key, or from the block's file for lazy loading; into buffers on request.

        Raises CheckpointError for missing keys, by name.
        """
        tensors = self._found(self._file() if self.lazy_load else weight_dict)
        if self.create_cuda_buffer:
            for attribute, tensor in tensors.items():
                setattr(self, f"{attribute}_cuda_buffer", tensor.to(_device()))
            return
        for attribute, tensor in tensors.items():
            on_host = self.create_cpu_buffer or tensor.device.type == "cpu"
            setattr(self, f"pin_{attribute}", pin := _pinned(tensor) if on_host else None)
            setattr(self, attribute, None if self.create_cpu_buffer else (tensor if pin is None else pin))

    def _file(self) -> Tensors:
        """The tensors of this layer in the block's file."""
        if self.lazy_load_file is None:
            raise CheckpointError(
                f"{self.weight_name} is to be loaded lazily and has no lazy_load_file: name a block's file, or the folder of them"
            )
        path = Path(self.lazy_load_file)
        if path.is_dir():
            block = next((part for part in self.weight_name.split(".") if part.isdigit()), None)
            if block is None:
                raise CheckpointError(
                    f"{self.weight_name} names no block, and {path} is a folder of blocks' files: name the file itself"
                )
            path /= f"block_{block}.safetensors"
        stored = read_header(path)
        return {key: stored[key].read() for key in self._keys() if key in stored}

    def _keys(self) -> tuple[str, ...]:
        return tuple(self.names.values())

    def _found(self, source: Tensors) -> dict[str, Tensor]:
        """Tensors by attribute."""
        if self.config.get("weight_auto_quant") and self.weight_name in source:
            weight = source[self.weight_name]
            codes, scales = self._quantised_weight(weight.to(_device(), torch.bfloat16))
            source = {
                **source,
                self.weight_name: codes.to(weight.device),
                self.names["weight_scale"]: scales.to(weight.device),
            }
        if missing := [key for key in self.names.values() if key not in source]:
            raise CheckpointError(f"{self.weight_name} cannot be loaded: missing {', '.join(missing)}")
        return {attribute: source[key] for attribute, key in self.names.items()}

    def _given(self) -> dict[str, Tensor]:
        """Tensors of a call by attribute. Raises CheckpointError where none were loaded."""
        given = {attribute: getattr(self, attribute) for attribute in self.names}
        if given["weight"] is None:
            raise CheckpointError(f"{self.weight_name} is not loaded: call load, and load_state_dict or to_cuda, first")
        return given

    def apply(self, input_tensor: Tensor) -> Tensor:
        """bfloat16 [M, N] of an input [M, K]."""
        given = self._given()
        codes, scales = self._quantised(input_tensor)
        bias = given.get("bias")
        if bias is not None:
            bias = bias.to(input_tensor.dtype).reshape(-1)
            bias = bias if self.bias_diff is None else bias + self.bias_diff
        out = type(self).multiply(
            codes, given["weight"], scales, given["weight_scale"], self._alpha(input_tensor.device), bias
        )
        return out + self.apply_lora(input_tensor) if self.has_lora_branch else out

    def _quantised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return type(self).quantise(x)

    def _quantised_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return type(self).quantise(weight)

    def _alpha(self, device: torch.device) -> Tensor:
        return torch.ones(1, device=device, dtype=torch.float32)

    def load_state_dict(self, destination: Tensors, block_index: int, adapter_block_index: int | None = None) -> None:
        """Fill the GPU buffers with a block's tensors, pinned ones without waiting; a block that lacks the layer has none."""
        if self._resolved(self.weight_name, block_index, adapter_block_index) not in destination:
            self.weight = None
            return
        for attribute, name in self.names.items():
            key = self._resolved(name, block_index, adapter_block_index)
            setattr(
                self, attribute, getattr(self, f"{attribute}_cuda_buffer").copy_(destination[key], non_blocking=True)
            )

    def load_state_dict_from_disk(self, block_index: int, adapter_block_index: int | None = None) -> None:
        """Fill the pinned buffers from a block's file; the layer's names become that block's."""
        self.weight_name = self._resolved(self.weight_name, block_index, adapter_block_index)
        if self.bias_name is not None:
            self.bias_name = self._resolved(self.bias_name, block_index, adapter_block_index)
        self.names = self._names()
        for attribute, tensor in self._found(self._file()).items():
            getattr(self, f"pin_{attribute}").copy_(tensor)

    def _resolved(self, name: str, block_index: int, adapter_block_index: int | None) -> str:
        index = adapter_block_index if self.is_post_adapter else block_index
        return re.sub(r"\.\d+", f".{index}", name, count=1)

    def state_dict(self, destination: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """The host's tensors by key, or without any those in use."""
        destination = {} if destination is None else destination
        for attribute, key in self.names.items():
            pin = getattr(self, f"pin_{attribute}")
            destination[key] = getattr(self, attribute) if pin is None else pin
        return destination

    def to_cuda(self, non_blocking: bool = False) -> None:
        """Move the weight onto the GPU, from pinned memory where there is such."""
        for attribute in self.names:
            pin, tensor = getattr(self, f"pin_{attribute}"), getattr(self, attribute)
            setattr(self, attribute, (tensor if pin is None else pin).to(_device(), non_blocking=non_blocking))
        self._move_lora(_device(), non_blocking)

    def to_cpu(self, non_blocking: bool = False) -> None:
        """Move the weight back to the host, into pinned memory, which stays for the next time."""
        for attribute in self.names:
            pin, tensor = getattr(self, f"pin_{attribute}"), getattr(self, attribute)
            pin = torch.empty_like(tensor, device="cpu", pin_memory=torch.cuda.is_available()) if pin is None else pin
            setattr(self, f"pin_{attribute}", pin)
            setattr(self, attribute, pin.copy_(tensor, non_blocking=non_blocking))
        self._move_lora(torch.device("cpu"), non_blocking)

    def _lora_key(self, part: str) -> str:
        below = self.weight_name.removesuffix(".weight").partition(".")[2]
        return f"{self.lora_prefix}.{below}{part}"

    def register_diff(self, weight_dict: Tensors) -> None:
        """Take a difference of the bias. Raises CheckpointError for one of the weight, which codes cannot take."""
        if (key := self._lora_key(".diff")) in weight_dict:
            raise CheckpointError(
                f"{key} is a difference of {self.weight_name}, which is quantised: merge it before quantising"
            )
        if (key := self._lora_key(_LORA["bias_diff"])) in weight_dict:
            self.has_diff = True
            self.bias_diff = weight_dict[key].to(self._lora_device())

    def register_lora(self, weight_dict: Tensors, lora_strength: float = 1) -> None:
        """Take an adapter by LightX2V's keys: strength * alpha / rank * (x down^T) up^T, alpha / rank being 1 without an alpha."""
        if (down := weight_dict.get(self._lora_key(_LORA["lora_down"]))) is None:
            return
        device = self._lora_device()
        self.has_lora_branch, self.lora_strength = True, lora_strength
        self.lora_down = down.to(device)
        self.lora_up = weight_dict[self._lora_key(_LORA["lora_up"])].to(device)
        alpha = weight_dict.get(self._lora_key(_LORA["lora_alpha"]))
        self.lora_scale = 1.0 if alpha is None else float(alpha) / down.shape[0]

    update_lora = register_lora
    """Put another adapter in the place of the first."""

    def remove_lora(self) -> None:
        """Take the adapter away."""
        self.lora_down = self.lora_up = None
        self.has_lora_branch = False

    def apply_lora(self, input_tensor: Tensor) -> Tensor:
        """The adapter's addend."""
        assert self.lora_down is not None and self.lora_up is not None
        return self.lora_strength * self.lora_scale * ((input_tensor @ self.lora_down.t()) @ self.lora_up.t())

    def _lora_device(self) -> torch.device:
        return _device() if self.weight is None else self.weight.device

    def _move_lora(self, device: torch.device, non_blocking: bool) -> None:
        for name in ("lora_down", "lora_up", "bias_diff"):
            if (tensor := getattr(self, name)) is not None:
                setattr(self, name, tensor.to(device, non_blocking=non_blocking))


class MMWeightWmxfp4Amxfp4dynamic(_MMWeight):
    """mxfp4 weights and activations."""

    quantise = staticmethod(gemm.scaled_mxfp4_quant)
    multiply = staticmethod(gemm.cutlass_scaled_mxfp4_mm)


class MMWeightWmxfp6Amxfp8dynamic(_MMWeight):
    """mxfp6 weights, mxfp8 activations."""

    quantise = staticmethod(gemm.scaled_mxfp8_quant)
    multiply = staticmethod(gemm.cutlass_scaled_mxfp6_mxfp8_mm)

    def _quantised_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return gemm.scaled_mxfp6_quant(weight)


class MMWeightWmxfp8Amxfp8dynamic(_MMWeight):
    """mxfp8 weights and activations."""

    quantise = staticmethod(gemm.scaled_mxfp8_quant)
    multiply = staticmethod(gemm.cutlass_scaled_mxfp8_mm)


class MMWeightWnvfp4Anvfp4dynamic(_MMWeight):
    """nvfp4 weights and activations. The input's scale is 2688 / `input_absmax`, or `input_global_scale` with `alpha`."""

    quantise = staticmethod(gemm.scaled_nvfp4_quant)
    multiply = staticmethod(gemm.cutlass_scaled_nvfp4_mm)

    def _names(self) -> dict[str, str]:
        layer = self.weight_name.removesuffix(".weight")
        return {**super()._names(), "input_global_scale": f"{layer}.input_global_scale", "alpha": f"{layer}.alpha"}

    def _keys(self) -> tuple[str, ...]:
        layer = self.weight_name.removesuffix(".weight")
        return (*super()._keys(), f"{layer}.input_absmax", f"{layer}.weight_global_scale")

    def _found(self, source: Tensors) -> dict[str, Tensor]:
        layer = self.weight_name.removesuffix(".weight")
        if f"{layer}.input_absmax" in source:
            absmax, factor = source[f"{layer}.input_absmax"], source.get(f"{layer}.weight_global_scale")
            if factor is None:
                raise CheckpointError(f"{self.weight_name} cannot be loaded: missing {layer}.weight_global_scale")
            scale = (LARGEST_PRODUCT / absmax.float()).reshape(1)
            alpha = 1.0 / (scale * factor.to(scale.device).reshape(1))
            source = {**source, self.names["input_global_scale"]: scale, self.names["alpha"]: alpha}
        found = super()._found(source)
        for name in ("input_global_scale", "alpha"):
            found[name] = found[name].float().reshape(1)
        return found

    def _quantised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return type(self).quantise(x, self.input_global_scale)

    def _quantised_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        raise CheckpointError(
            f"{self.weight_name} cannot be quantised when it is loaded: nvfp4 needs the input's range, so convert first"
        )

    def _alpha(self, device: torch.device) -> Tensor:
        return self.alpha


MM_WEIGHT_REGISTER = {
    "nvfp4": MMWeightWnvfp4Anvfp4dynamic,
    "mxfp4": MMWeightWmxfp4Amxfp4dynamic,
    "mxfp6-mxfp8": MMWeightWmxfp6Amxfp8dynamic,
    "mxfp8": MMWeightWmxfp8Amxfp8dynamic,
}
"""By LightX2V's names of the schemes."""
