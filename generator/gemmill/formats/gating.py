"""Gates, ups and e4m3 codes in plain torch, as kernels of several families compute them, and how far two of them may be apart.

Codes are the nearest e4m3 number, ties to even, saturated at 448. NaN is 0x7f, and does not count for the largest value of a
group.
"""

import torch
from torch import Tensor

from gemmill.vocab.activation import Activation

CODE_MAX, SMALLEST_SCALE = 448.0, 1.0 / (448.0 * 512.0)
GATE_STEPS = 4.0
"""The units (2^-24) between two versions of exp, tanh or erf."""
_SLOPE = 1.13
"""The slope of the steepest activation."""
_UNIT = 2.0**-24


def activated(gate: Tensor, up: Tensor, activation: Activation, alpha: float, limit: float, beta: float) -> Tensor:
    """The products activation(gate) * up of float32 tensors."""
    match activation:
        case Activation.SILU:
            return gate * torch.reciprocal(1.0 + torch.exp(-gate)) * up
        case Activation.SWIGLU:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return gate * torch.reciprocal(1.0 + torch.exp(-(gate * alpha))) * (up + beta)
        case Activation.GELU:
            return 0.5 * gate * (1.0 + torch.erf(gate * 0.7071067811865476)) * up
    cube = gate * gate * gate
    return 0.5 * gate * (1.0 + torch.tanh(0.7978845608028654 * (gate + 0.044715 * cube))) * up


def slack_of(
    value: Tensor,
    products: tuple[Tensor, Tensor],
    errors: tuple[Tensor, Tensor] | None,
    activation: Activation,
    numbers: tuple[float, float, float],
) -> Tensor:
    """The distance of a kernel's value from this one, float64, where its gate and up may be off by `errors`. None:
    not at all.

    No activation is steeper than 1.13, and none is further from 0 than its gate. exp, tanh and erf are within
    GATE_STEPS units.
    """
    gate, up = (product.double().abs() for product in products)
    _, limit, beta = numbers
    if activation is Activation.SWIGLU:
        up = up.clamp(max=limit) + abs(beta)
    magnitude = value.abs().double()
    if activation in (Activation.GELU, Activation.GELU_TANH):
        magnitude = torch.maximum(magnitude, gate * up)
    slack = magnitude * (GATE_STEPS * _UNIT)
    if errors is not None:
        gate_error, up_error = errors
        slack = slack + _SLOPE * gate_error * (up + up_error) + gate * up_error
    return slack


def encode(x: Tensor) -> Tensor:
    """e4m3 codes of float32 values."""
    codes = x.clamp(-CODE_MAX, CODE_MAX).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8).masked_fill_(torch.isnan(x), 0x7F).view(torch.float8_e4m3fn)


def scale_of(amax: Tensor) -> Tensor:
    """The scales, float32, of values whose largest magnitudes these are."""
    scale = amax / torch.full_like(amax, CODE_MAX)
    return torch.fmax(scale, torch.full_like(scale, SMALLEST_SCALE))


def group_scales(x: Tensor, group: int) -> Tensor:
    """Scales float32 [M, K / group, rounded up] of values [M, K]."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % group))
    return scale_of(torch.nan_to_num(padded.abs(), nan=0.0, posinf=float("inf")).unflatten(1, (-1, group)).amax(dim=-1))


def group_codes(x: Tensor, scales: Tensor, group: int) -> Tensor:
    """Codes of values by the scales of their groups."""
    return encode(x / scales.repeat_interleave(group, dim=1)[:, : x.shape[1]])
