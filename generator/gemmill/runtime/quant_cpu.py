"""The quantisation ops by the reference, on tensors of any device: the CPU path, and what kernels are held against."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gemmill.families.quant import reference
from gemmill.families.quant.call import (
    GROUP_AZP,
    OUT_NAMES,
    SCALE_NAMES,
    QuantCall,
    group_strides,
    name_of,
    quant_call,
    static_scales,
)
from gemmill.families.quant.config import QuantFamily, ScaleFormat
from gemmill.runtime import checks, operands
from gemmill.runtime.schemas import OpSchema
from gemmill.vocab import DType

Tensors = dict[str, Any]
"""Arguments by name."""


def by_reference(op: OpSchema, arguments: Sequence[Any]) -> None:
    """Check a call like the op and write its results by the reference. Raises RuntimeError as the op would."""
    given = operands.complete(op, arguments)
    described = operands.of_arguments(op, given)
    checks.check(op, described)
    call = quant_call(op, described)
    writes_scales = call.op.family is QuantFamily.TENSOR or (call.op.family.is_per_row and call.rows)
    if call.rows * call.hidden == 0 and not writes_scales:
        return
    out_dtype = DType.E4M3 if call.out.dtype == DType.E4M3.torch_name else DType.S8
    _COMPUTE[call.op.family](call, dict(zip(op.arguments, given, strict=True)), out_dtype)


def _rows(call: QuantCall, tensors: Tensors) -> torch.Tensor:
    return tensors["input"].reshape(call.rows, call.input.shape[-1])


def _write(call: QuantCall, tensors: Tensors, codes: torch.Tensor, scales: torch.Tensor | None = None) -> None:
    out = tensors[name_of(tensors, OUT_NAMES)]
    if out.shape[:-1].numel() > call.rows:  # padded, as packed scales are
        out[: call.padded_rows].zero_()
        out = out[: call.rows]
    out.copy_(codes.view(out.shape))
    if scales is not None:
        kept = tensors[name_of(tensors, SCALE_NAMES)]
        kept.copy_(scales.reshape(kept.shape))


def _static(call: QuantCall, tensors: Tensors, out_dtype: DType) -> None:
    scales = tensors[call.names[1]]
    layout = static_scales(call)
    assert layout is not None  # the checks have seen to it
    if scales.numel() == 1:
        scales = scales.reshape(1, 1)
    elif scales.dim() == 1:
        scales = scales[:, None] if call.group_shape == (1, -1) else scales[None, :]
    else:
        scales = scales.repeat_interleave(layout.group[0], dim=0).repeat_interleave(layout.group[1], dim=1)
    codes = reference.static_quant(
        _rows(call, tensors), scales, out_dtype, azp=tensors.get("azp"), activation=call.activation
    )
    _write(call, tensors, codes)


def _tensor(call: QuantCall, tensors: Tensors, out_dtype: DType) -> None:
    x, azp = _rows(call, tensors), tensors.get("azp")
    if azp is None:
        codes, scale = reference.tensor_quant(x, out_dtype)
    else:
        codes, scale, zero_point = reference.tensor_quant_with_azp(x)
        azp.copy_(zero_point.view(azp.shape))
    _write(call, tensors, codes)
    kept = tensors[call.names[1]]
    kept.as_strided((1,), (1,)).copy_(scale)


def _token(call: QuantCall, tensors: Tensors, out_dtype: DType) -> None:
    x, azp = _rows(call, tensors), tensors.get("azp")
    if azp is not None:
        codes, scales, zero_points = reference.token_quant_with_azp(x, reference.least_step_of(x.shape[-1]))
        azp.copy_(zero_points.view(azp.shape))
    else:
        codes, scales = reference.token_quant(
            x, out_dtype, scale_ub=tensors.get("scale_ub"), activation=call.activation
        )
    _write(call, tensors, codes, scales)


def _group(call: QuantCall, tensors: Tensors, out_dtype: DType) -> None:
    if call.azp is not None:
        codes, scales, azps = reference.group_quant_with_azp(_rows(call, tensors), call.group_size)
        _write(call, tensors, codes)
        _write_group_scales(call, tensors, scales)
        _write_of_groups(call, tensors[GROUP_AZP], azps)
        return
    codes, scales = reference.group_quant(
        _rows(call, tensors),
        call.group_size,
        out_dtype,
        smallest_amax=call.epsilon,
        smallest_scale=reference.SMALLEST_SCALE[out_dtype] if call.is_gated else 0.0,
        scale_ub=tensors.get("scale_ub"),
        scale_format=call.scale_format,
        activation=call.activation,
        truncated=call.op.truncated,
    )
    if call.scale_format is ScaleFormat.PACKED_UE8M0:
        scales = reference.pack_ue8m0(scales)
    _write(call, tensors, codes)
    _write_group_scales(call, tensors, scales)


def _rms_norm(call: QuantCall, tensors: Tensors, out_dtype: DType) -> None:
    residual = tensors["residual"]
    codes, scales, added = reference.rms_norm_quant(
        _rows(call, tensors),
        tensors["weight"],
        call.epsilon,
        out_dtype,
        group_size=call.group_size,
        scale_ub=tensors["scale_ub"],
        residual=None if residual is None else residual.reshape(call.rows, call.hidden),
    )
    if residual is not None:
        assert added is not None
        residual.copy_(added.view(residual.shape))
    if not call.group_size:
        _write(call, tensors, codes, scales)
        return
    _write(call, tensors, codes)
    _write_group_scales(call, tensors, scales)


def _write_group_scales(call: QuantCall, tensors: Tensors, scales: torch.Tensor) -> None:
    kept = tensors[call.names[1]]
    strides = _write_of_groups(call, kept, scales)
    if call.scale_format is ScaleFormat.PACKED_UE8M0 and call.rows % 4 and call.words > 1:
        # The rows that pad to four, but for those of the last word, which need not be in the tensor's memory.
        padding = (-call.rows % 4, call.words - 1)
        kept.as_strided(padding, strides, kept.storage_offset() + call.rows).zero_()


def _write_of_groups(call: QuantCall, kept: torch.Tensor, values: torch.Tensor) -> tuple[int, int]:
    """Write what belongs to groups; returns its strides by row and group."""
    strides = group_strides(call)
    assert strides is not None
    kept.as_strided((call.rows, call.words), strides).copy_(values)
    return strides


_COMPUTE: dict[QuantFamily, Callable[[QuantCall, Tensors, DType], None]] = {
    QuantFamily.STATIC: _static,
    QuantFamily.TENSOR: _tensor,
    QuantFamily.TOKEN: _token,
    QuantFamily.GROUP: _group,
    QuantFamily.RMS_TOKEN: _rms_norm,
    QuantFamily.RMS_GROUP: _rms_norm,
}
