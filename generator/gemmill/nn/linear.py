"""A linear layer of quantised weights, one module over all formats."""

import json
from typing import Any

import torch
from torch import Tensor, nn

from gemmill.checkpoints.file import CheckpointError
from gemmill.checkpoints.folder import Checkpoint
from gemmill.nn.packed import PackedWeight, load_layer, pack
from gemmill.nn.recipes import NAMES, PACKING, recipe_of
from gemmill.quantize.weights import QuantizedWeight, quantize_weight

_OF_INPUTS = ("bias", "lora_down", "lora_up")
"""The module's names for the tensors that have x's dtype."""


class QuantLinear(nn.Module):
    """x [..., K] times a quantised weight [N, K], plus a bias [N] of x's dtype.

    The constructor packs the weight for the ops, once. Buffers hold the packed tensors: a state dict has them, and the
    order that they are in. Layers have no gradients. `.to(dtype)` and its like convert the bias and the adapter alone.
    """

    def __init__(
        self,
        weight: QuantizedWeight | PackedWeight,
        bias: Tensor | None = None,
        *,
        activations: str | None = None,
        input_absmax: Tensor | float | None = None,
    ) -> None:
        """weight: from `quantize_weight`, or packed. bias: [N] or [1, N].

        activations: the format of x in the product. The first is the default.

        - channel, block128 and block32 weights take e4m3, int8 weights int8;
        - nvfp4 weights take bf16 (x as it is), e4m3 (which rounds the weights to e4m3) or nvfp4;
        - mxfp4 weights take bf16, e4m3, mxfp4 or mxfp8;
        - mxfp6 and mxfp8 weights take mxfp8 or bf16.

        input_absmax: the largest magnitude of inputs, where activations are nvfp4 (`Calibration` finds it).

        Raises ValueError, in a sentence, for arguments that do not go together.
        """
        super().__init__()
        if isinstance(weight, QuantizedWeight):
            weight = pack(weight, activations=activations, input_absmax=input_absmax)
        self.format, self.activations = weight.format, weight.activations
        self.out_features, self.in_features = weight.n, weight.k
        self._recipe = recipe_of(weight.format, weight.activations)[1]
        self._run = self._recipe.run
        self._ready: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        """The weight and its scales, and both as the ops take them."""
        for name in NAMES:
            self.register_buffer(name, weight.tensors.get(name))
        if bias is not None and bias.numel() != self.out_features:
            raise ValueError(f"bias is {list(bias.shape)}, expected [{self.out_features}] or [1, {self.out_features}]")
        self.register_buffer("bias", None if bias is None else bias.detach().reshape(-1))
        self.register_buffer("lora_down", None)
        self.register_buffer("lora_up", None)
        self.lora_scale = 1.0
        self._pinned: dict[str, Tensor] = {}

    @classmethod
    def from_linear(cls, linear: nn.Linear, format: str, **more: Any) -> "QuantLinear":
        """A layer in a format of `gemmill.quantize.WEIGHT_FORMATS`, on its device; `more` as the constructor's.

        Raises ValueError as `quantize_weight`.
        """
        return cls(quantize_weight(linear.weight, format), linear.bias, **more)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, name: str, **more: Any) -> "QuantLinear":
        """The layer `name` of a checkpoint in any project's format and names, with its bias and calibrated range.

        `more` as of `load_layer`: cache=True keeps the packed weight next to the checkpoint. Raises CheckpointError
        where the layer is not there or not quantised.
        """
        return cls(*load_layer(checkpoint, name, **more))

    def forward(self, x: Tensor) -> Tensor:
        """The layer's outputs [..., N] for x [..., K], of x's dtype, bf16 or f16. Within torch.autocast x of another dtype is cast, as nn.Linear
        casts it.

        Raises ValueError for another dtype or K.
        """
        given, shape = self._buffers, x.shape
        if x.dtype not in self._recipe.inputs or not shape or shape[-1] != self.in_features:
            x, given = self._autocast(x), self._buffers
            given = {
                name: tensor.to(x.dtype) if name in _OF_INPUTS and tensor is not None else tensor
                for name, tensor in given.items()
            }
        is_matrix = len(shape) == 2
        ready = self._ready
        if ready is None or ready[0] is not given["weight"] or ready[1] is not given["weight_scale"]:
            ready = self._make_ready()
        rows = x if is_matrix else x.reshape(-1, self.in_features)
        out = self._run(rows, ready[2], ready[3], given, given["bias"])
        if given["lora_down"] is not None:
            out.addmm_(rows @ given["lora_down"].t(), given["lora_up"].t(), alpha=self.lora_scale)
        return out if is_matrix else out.reshape(*shape[:-1], self.out_features)

    def _autocast(self, x: Tensor) -> Tensor:
        """x in autocast's dtype. Raises ValueError where autocast is off or its dtype is none of the layer's, and for another K."""
        fits = x.dim() > 0 and x.shape[-1] == self.in_features and x.is_floating_point()
        if fits and torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            if dtype in self._recipe.inputs:
                return x.to(dtype)
        raise ValueError(self._refusal(x))

    def _refusal(self, x: Tensor) -> str:
        """Why x cannot be taken, in a sentence."""
        found, *known = (str(dtype).removeprefix("torch.") for dtype in (x.dtype, *self._recipe.inputs))
        remedy = f"give rows of {self.in_features}" if found in known else f"convert x, as by x.to(torch.{known[0]})"
        return (
            f"x is {found} {list(x.shape)}; a layer {self.extra_repr()} takes {' or '.join(known)} "
            f"[..., {self.in_features}]: {remedy}"
        )

    def _make_ready(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The tensors for the buffers of the moment. Moving the layer replaces them."""
        own = self._buffers["weight"], self._buffers["weight_scale"]
        ready = (*own, *self._recipe.operands(*own))
        if not torch.compiler.is_compiling():
            self._ready = ready
        return ready

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move or convert the module's tensors, as torch asks. Replaces tensors made of the old ones.

        Packed tensors keep their types, which are their meaning. Bias and adapter follow to types that x may have.
        """
        self._ready = None
        own = {id(tensor): name for name, tensor in self._buffers.items()}

        def moved(tensor: Tensor) -> Tensor:
            made: Tensor = fn(tensor)
            name = own.get(id(tensor))
            stays = name in NAMES or (name is not None and made.dtype not in self._recipe.inputs)
            return tensor.to(made.device) if stays and made.dtype is not tensor.dtype else made

        return super()._apply(moved, recurse)

    def __getstate__(self) -> dict[str, Any]:
        """The state without views of the buffers, and without values that format and activations imply. Copies of views
        would be no views.
        """
        return {key: value for key, value in self.__dict__.items() if key not in ("_ready", "_recipe", "_run")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._recipe, self._ready = recipe_of(self.format, self.activations)[1], None
        self._run = self._recipe.run

    def set_lora(self, down: Tensor, up: Tensor, *, alpha: float | None = None, strength: float = 1.0) -> None:
        """Add an adapter to the weight: strength * alpha / rank * (x down^T) up^T, with down [rank, K] and up [N,
        rank].

        Without alpha the factor is strength. The adapter takes the place of another. Raises ValueError for shapes that
        do not fit.
        """
        rank = down.shape[0]
        if down.shape != (rank, self.in_features) or up.shape != (self.out_features, rank):
            raise ValueError(
                f"LoRA has {list(down.shape)} and {list(up.shape)}, expected [rank, {self.in_features}] and "
                f"[{self.out_features}, rank]"
            )
        device = self._buffers["weight"].device
        self.lora_down, self.lora_up = down.detach().to(device), up.detach().to(device)
        self.lora_scale = strength * (1.0 if alpha is None else alpha / rank)

    def remove_lora(self) -> None:
        """Take the adapter away."""
        self.lora_down = self.lora_up = None
        self.lora_scale = 1.0

    def to_cpu(self, *, non_blocking: bool = False) -> "QuantLinear":
        """Move the layer into pinned memory, which is kept for the next time.

        Waits for the copies, unless `non_blocking`: then synchronise before reading.
        """
        self._ready = None
        for name, tensor in self._buffers.items():
            if tensor is not None and tensor.device.type != "cpu":
                pinned = self._pinned.get(name)
                if pinned is None or (pinned.shape, pinned.dtype) != (tensor.shape, tensor.dtype):
                    pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)
                self._pinned[name] = self._buffers[name] = pinned.copy_(tensor, non_blocking=non_blocking)
        return self

    def to_cuda(self, device: torch.device | str = "cuda", *, non_blocking: bool = False) -> "QuantLinear":
        """Move the layer onto a GPU. If `non_blocking`, copies from pinned memory run on the current stream,
        concurrently with the host.
        """
        self._ready = None
        for name, tensor in self._buffers.items():
            if tensor is not None:
                self._buffers[name] = tensor.to(device, non_blocking=non_blocking)
        return self

    def extra_repr(self) -> str:
        """The layer as print shows it."""
        return f"{self.in_features} -> {self.out_features}, {self.format} weights, {self.activations} activations"

    def get_extra_state(self) -> Tensor:
        """The facts on which a state dict must agree with the layer, and the factor of the adapter: JSON in UTF-8,
        uint8 [bytes] on the CPU.

        As a tensor it goes into safetensors files, with the rest of the state dict.
        """
        return torch.tensor(list(json.dumps(self.told()).encode()), dtype=torch.uint8, device="cpu")

    def told(self) -> dict[str, Any]:
        """The extra state as a dict, which `set_extra_state` takes without decoding."""
        return {**self._packing(), "lora_scale": self.lora_scale}

    def set_extra_state(self, state: Tensor | dict[str, Any]) -> None:
        """Take over a state: a tensor, or the dict that it stands for. Raises CheckpointError for weights packed for
        other kernels, and for a tensor that is no such state.
        """
        if isinstance(state, Tensor):
            state = _told(state)
        own = self._packing()
        if any(state.get(key) != value for key, value in own.items()):
            raise CheckpointError(packed_otherwise(state, own))
        self.lora_scale = state.get("lora_scale", 1.0)

    def _packing(self) -> dict[str, Any]:
        return {"format": self.format, "activations": self.activations, "packing": PACKING}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        """Load a state. It refuses weights of other kernels before it copies any. The state's adapter takes the place
        of the layer's.
        """
        if (extra := state_dict.get(f"{prefix}_extra_state")) is not None:
            self.set_extra_state(extra)
            for name in ("lora_down", "lora_up"):
                stored, own = state_dict.get(prefix + name), self._buffers[name]
                if stored is None or own is None or own.shape != stored.shape:
                    device = self._buffers["weight"].device
                    self._buffers[name] = None if stored is None else torch.empty_like(stored, device=device)
        super()._load_from_state_dict(state_dict, prefix, *more)


def _told(state: Tensor) -> dict[str, Any]:
    """The dict of an extra state. Raises CheckpointError."""
    try:
        found = json.loads(bytes(state.cpu().tolist()))
    except (TypeError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise CheckpointError(
            f"the extra state is {str(state.dtype).removeprefix('torch.')} {list(state.shape)}, expected the uint8 text of a QuantLinear's state dict"
        )
    return found


def packed_otherwise(found: dict[str, Any], own: dict[str, Any]) -> str:
    """Why packed weights cannot be read, in a sentence."""
    differ = ", ".join(
        f"{key} is {found.get(key)} and {own[key]} is needed" for key in own if found.get(key) != own[key]
    )
    return f"these weights were packed for other kernels ({differ}): pack them anew from the checkpoint"
