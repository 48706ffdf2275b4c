"""The quantisation ops in the runtime: their CPU path, and the sentences for variants that a build lacks."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch

from gemmill.families import quant
from gemmill.families.quant import reference
from gemmill.families.quant.call import config_of
from gemmill.families.quant.classes import CLASSES
from gemmill.families.quant.config import Activation, QuantConfig, ScaleFormat, Scales, Scaling
from gemmill.families.quant.layouts import group_strides, static_scales
from gemmill.family import Judged, OpSchema, ShapedCall
from gemmill.family.operand import Call
from gemmill.formats.layout import swizzled_shape
from gemmill.formats.quantise import (
    BlockScaled,
    checked_scale_offsets,
    dequantise,
    quantise_experts,
    swizzle,
    unswizzle,
)
from gemmill.formats.vllm_blocks import quantise_as_vllm
from gemmill.manifest import Manifest
from gemmill.runtime import checks
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Result, Serving, lacks_one
from gemmill.space.names import to_name
from gemmill.vocab import Arch, DType, Format
from gemmill.vocab.format import ScaleRounding

Given = dict[str, Any]
"""Arguments by role."""


def _wanted(manifest: Manifest, op: OpSchema, call: Call) -> QuantConfig:
    return config_of(checks.check(op, call), Arch(manifest.arch))


def _asked(call: Judged) -> ShapedCall:
    return CLASSES.of_call(quant.NAME, call["class"])


def _lacks(manifest: Manifest, op: OpSchema, call: Call, choice: Choice) -> str:
    wanted = to_name(_wanted(manifest, op, call))
    return lacks_one(manifest, quant.NAME, wanted, kernels="quantisation kernels")


def _results(call: Judged, given: Given) -> Iterator[Result]:
    scaling = list(Scaling)[call["scaling"]]
    if call["works"]:
        out_dtype = DType.E4M3 if call["out"].dtype == DType.E4M3.torch_name else DType.S8
        compute = _rms_norm if scaling.is_normed else _COMPUTE[scaling.scales]
        try:
            yield from compute(call, given, out_dtype)
        except ValueError as error:  # of given numbers, which only the CPU path reads
            raise RuntimeError(f"{call.schema.name}: {error}") from None


def _rows(call: Judged, given: Given) -> torch.Tensor:
    x: torch.Tensor = given["input"]
    return x.reshape(call["rows"], x.shape[-1])


def _activation(call: Judged) -> Activation:
    chosen: int = call["chosen"]
    return list(Activation)[chosen]


def _whole(place: torch.Tensor, values: torch.Tensor) -> Result:
    return place, values.reshape(place.shape)


def _codes(call: Judged, given: Given, codes: torch.Tensor) -> Iterator[Result]:
    out, rows = given["out"], call["rows"]
    if call["out_rows"] > rows:  # padded, as packed scales are
        padding = out[rows : call["scale_rows"]]
        yield padding, torch.zeros_like(padding)
        out = out[:rows]
    yield _whole(out, codes)


def _static(call: Judged, given: Given, out_dtype: DType) -> Iterator[Result]:
    layout = static_scales(call)
    assert layout is not None  # the checks have seen to it
    scales = given["scales"].reshape(layout.counts)
    for dim, size in enumerate(layout.group):
        scales = scales.repeat_interleave(size, dim=dim)
    x, azp = _rows(call, given), given.get("azp")
    codes = reference.static_quant(x, scales, out_dtype, azp=azp, activation=_activation(call), vllm=bool(call["vllm"]))
    yield from _codes(call, given, codes)


def _tensor(call: Judged, given: Given, out_dtype: DType) -> Iterator[Result]:
    x, azp = _rows(call, given), given.get("azp")
    if azp is None:
        codes, scale = reference.tensor_quant(x, out_dtype, vllm=bool(call["vllm"]))
    else:
        codes, scale, zero_point = reference.tensor_quant_with_azp(x)
        yield _whole(azp, zero_point)
    yield from _codes(call, given, codes)
    yield given["scales"].as_strided((1,), (1,)), scale


def _token(call: Judged, given: Given, out_dtype: DType) -> Iterator[Result]:
    x, azp, vllm = _rows(call, given), given.get("azp"), bool(call["vllm"])
    if azp is None:
        ub, activation = given.get("scale_ub"), _activation(call)
        codes, scales = reference.token_quant(x, out_dtype, scale_ub=ub, activation=activation, vllm=vllm)
    else:
        least_step = reference.least_step_of(x.shape[-1])
        codes, scales, zero_points = reference.token_quant_with_azp(x, least_step, vllm=vllm)
        yield _whole(azp, zero_points)
    yield from _codes(call, given, codes)
    yield _whole(given["scales"], scales)
    if "row_sums" in given:
        yield _whole(given["row_sums"], codes.sum(dim=-1, dtype=torch.int32))


def _group(call: Judged, given: Given, out_dtype: DType) -> Iterator[Result]:
    x, azp = _rows(call, given), given.get("azp")
    if azp is None:
        gated = _activation(call) is not Activation.NONE
        codes, scales = reference.group_quant(
            x,
            call["group_size"],
            out_dtype,
            smallest_amax=given.get("eps", 0.0),
            smallest_scale=reference.SMALLEST_SCALE[out_dtype] if gated else 0.0,
            scale_ub=given.get("scale_ub"),
            scale_format=list(ScaleFormat)[call["scale_format"]],
            activation=_activation(call),
            vllm=bool(call["vllm"]),
        )
    else:
        codes, scales, azps = reference.group_quant_with_azp(x, call["group_size"])
        yield _of_groups(call, azp, azps)
    yield from _codes(call, given, codes)
    yield from _group_scales(call, given["scales"], reference.pack_ue8m0(scales) if call["packed"] else scales)


def _block(call: Judged, given: Given, _: DType) -> Iterator[Result]:
    config = config_of(call, Arch.SM90A)
    format = config.format
    assert format is not None
    if config.scaling is Scaling.WEIGHT_DEQUANT:
        yield given["out"], reference.weight_dequant(given["input"], call["rows"], call["hidden"])
        return
    scales_at = _bytes_of(given["scales"]) if call["is_swizzled"] else given["scales"].view(torch.uint8)
    if config.scaling is Scaling.EXPERTS:
        yield from _experts(call, given, format, scales_at)
        return
    if config.scaling is Scaling.DEQUANT:
        yield _whole(given["out"], _values(call, given, format, scales_at))
        return
    modulation = None
    if config.activation is Activation.MODULATE:
        scale, shift = (given[name].reshape(-1, call["hidden"]) for name in ("mod_scale", "mod_shift"))
        modulation = (scale, shift)
    codes, scales = reference.block_quant(
        _rows(call, given),
        format,
        global_scale=given.get("global_scale"),
        rounding=_rounding(given),
        activation=_activation(call),
        modulation=modulation,
        rounded=given.get("rounds_to_input", False),
        vllm=bool(call["vllm"]),
    )
    yield _whole(given["out"].view(torch.uint8), _widened(codes, format.code_bytes(call["padded"])))
    scales = _widened(scales, call["groups"])
    yield (scales_at, swizzle(scales).reshape(-1)) if call["is_swizzled"] else (scales_at, scales)


def _values(call: Judged, given: Given, format: Format, scales: torch.Tensor) -> torch.Tensor:
    plain = unswizzle(scales, call["rows"], call["groups"]) if call["is_swizzled"] else scales
    codes = _rows(call, given).view(torch.uint8)
    found = BlockScaled(format=format, codes=codes, scales=plain)
    return dequantise(found, global_scale=given.get("global_scale"), dtype=given["out"].dtype)


def _bytes_of(dense: torch.Tensor) -> torch.Tensor:
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def _widened(rows: torch.Tensor, columns: int) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (0, columns - rows.shape[1]))


def _rounding(given: Given) -> ScaleRounding:
    return ScaleRounding(given.get("scale_rounding", ScaleRounding.UP))


def _experts(call: Judged, given: Given, format: Format, scales_at: torch.Tensor) -> Iterator[Result]:
    columns = swizzled_shape(0, call["groups"])[1]
    x, activation, vllm = _rows(call, given), _activation(call), bool(call["vllm"])
    found = quantise_experts(
        reference.product_as_vllm(x, activation) if vllm else reference.activated(x, activation),
        given["expert_offsets"].reshape(-1),
        format,
        global_scales=given["global_scale"].reshape(-1) if "global_scale" in given else None,
        rounding=_rounding(given),
        columns=call["padded"],
        by=quantise_as_vllm if vllm else None,
    )
    starts = checked_scale_offsets(found, given["scale_offsets"].reshape(-1), scales_at.numel() // max(columns, 1))
    yield _whole(given["out"].view(torch.uint8), found.codes)
    for start, (first, end) in zip(starts, pairwise(found.scale_offsets.tolist()), strict=True):
        part = found.scales[first:end].reshape(-1)
        yield scales_at[start * columns : start * columns + part.numel()], part


def _rms_norm(call: Judged, given: Given, out_dtype: DType) -> Iterator[Result]:
    residual, x = given.get("residual"), _rows(call, given)
    scaling = list(Scaling)[call["scaling"]]
    codes, scales, added = reference.rms_norm_quant(
        x,
        given["weight"],
        given["eps"],
        out_dtype,
        group_size=call["group_size"],
        scale=given["scales"].reshape(1) if scaling.is_given else None,
        scale_ub=given.get("scale_ub"),
        residual=None if residual is None else residual.reshape(x.shape),
        vllm_stride=call["input_stride"] if call["vllm"] else None,
    )
    if residual is not None and added is not None:
        yield _whole(residual, added)
    yield from _codes(call, given, codes)
    if call["group_size"]:
        yield from _group_scales(call, given["scales"], scales)
    elif not scaling.is_given:
        yield _whole(given["scales"], scales)


def _group_scales(call: Judged, kept: torch.Tensor, scales: torch.Tensor) -> Iterator[Result]:
    written = _of_groups(call, kept, scales)
    yield written
    rows, words = call["rows"], call["words"]
    if call["packed"] and rows % 4 and words > 1:
        # The rows that pad to four. Those of the last word are left out: they need not be in the tensor's memory.
        padding = kept.as_strided((-rows % 4, words - 1), written[0].stride(), kept.storage_offset() + rows)
        yield padding, torch.zeros_like(padding)


def _of_groups(call: Judged, kept: torch.Tensor, values: torch.Tensor) -> Result:
    strides = group_strides(call)
    assert strides is not None
    return kept.as_strided((call["rows"], call["words"]), strides), values


_COMPUTE: dict[Scales, Callable[[Judged, Given, DType], Iterator[Result]]] = {
    Scales.GIVEN: _static,
    Scales.OF_TENSOR: _tensor,
    Scales.OF_ROW: _token,
    Scales.OF_GROUP: _group,
    Scales.OF_BLOCK: _block,
}
SERVING = Serving(results=_results, asked=_asked, lacks=_lacks)
