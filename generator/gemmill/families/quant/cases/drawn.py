"""Random calls of the quantisation and fused-activation ops."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from gemmill.families.quant.call import GROUP_AZP, OP_OF, OUT_NAMES, SCALE_NAMES, name_of
from gemmill.families.quant.cases.weights import drawn_weights
from gemmill.families.quant.config import Activation, ScaleFormat, Scales, Scaling
from gemmill.formats.layout import TILE_ROWS, swizzled_shape
from gemmill.numerics.call import EXACT, LegalCall, Limits
from gemmill.numerics.draw import Draw
from gemmill.numerics.layouts import (
    MEANINGLESS,
    PADS,
    SHIFTS,
    TIDY,
    free_stride,
    one_value,
    row_stride,
    shift_of,
    torch_dtype,
    vector,
)
from gemmill.numerics.memory import Slot
from gemmill.runtime.schemas import BY_NAME, ArgumentKind, OpSchema
from gemmill.vocab.format import ScaleRounding

Strides = tuple[int, ...]
ANY_GROUPS = (1, 2, 7, 8, 16, 16, 24, 40, 96, 256, 256, 384, 512, 512, 1000, 1024, 4096)
"""Sizes of groups without a compiled kernel."""


def drawn(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A random call of any op of the family."""
    declared = OP_OF[op]
    if declared.format is not None and declared.scaling is Scaling.WEIGHT_DEQUANT:
        return drawn_weights(op, declared.format, draw, limits)
    return _Maker(BY_NAME[op], draw, limits).make()


class _Maker:
    def __init__(self, op: OpSchema, draw: Draw, limits: Limits) -> None:
        self.schema, self.op, self.draw = op, OP_OF[op.name], draw
        self.in_dtype, self.out_dtype = (torch_dtype(draw.one_of(d)) for d in (self.op.in_dtypes, self.op.out_dtypes))
        self.group = draw.one_of(self.op.group_sizes)
        if self.op.takes_any_group and not self.group:
            self.group = draw.one_of(ANY_GROUPS)
        self.gated = self.op.is_gated
        self.back = self.op.scaling is Scaling.DEQUANT
        most = limits.large if draw.chance(0.01) else limits.elements
        width = draw.size(max(1, min(32768, most) // (self.group or 1) // (2 if self.gated else 1)))
        self.hidden = width * (self.group or 1)
        # Columns of block-scaled codes beyond the input's. They are zeros.
        wider = self.op.format is not None and not self.back and self.hidden > 0 and draw.chance(0.2)
        self.more = draw.one_of((1, 2, 5)) * self.group if wider else 0
        self.leading = self._leading(draw.size(max(1, min(8192, most // max(self.hidden, 1)))))
        self.rows = math.prod(self.leading)
        self.data = self._data()
        self.tidy = draw.chance(TIDY)

    def make(self) -> LegalCall:
        draw, arguments = self.draw, self.schema.arguments
        values, codes = (self.in_dtype, self.hidden * (2 if self.gated else 1)), (self.out_dtype, self._code_columns)
        given, written, data = (codes, values, "codes") if self.back else (values, codes, self.data)
        slots = {
            "input": self._matrix(*given, data),
            name_of(arguments, OUT_NAMES): self._matrix(*written, None, written=True),
        }
        plain = self._plain()
        if self.op.scaling is Scaling.EXPERTS:
            slots |= self._offsets()
            plain["n_experts"] = slots["input_offset_by_experts"].columns - 1
        for name in ("mod_scale", "mod_shift"):
            if name in arguments:
                slots[name] = self._modulation()
        scales = name_of(arguments, SCALE_NAMES)
        slots[scales], plain["group_shape"] = self._scales(plain)
        if GROUP_AZP in arguments:
            slots[GROUP_AZP] = _like(slots[scales], draw)
        if "azp" in arguments and draw.chance(0.5):
            slots["azp"] = self._azp()
        if "row_sums" in arguments:
            slots["row_sums"] = self._each_row(torch.int32, written=True)
        if "scale_ub" in arguments and self.out_dtype is not torch.int8 and draw.chance(0.4):
            slots["scale_ub"] = one_value(draw, torch.float32, "bounds")
        if self.op.format is not None and self.op.format.has_global_scale:
            slots[next(name for name in arguments if name.endswith("global_scale"))] = self._global_scale(
                plain.get("n_experts")
            )
        if "weight" in arguments:
            h = self.hidden
            slots["weight"] = vector(draw, self.in_dtype, h, self.data, ((h,),), reference_shape=(h,))
        if any(p.name == "residual" and (not p.optional or draw.chance(0.5)) for p in self.schema.parameters):
            slots["residual"] = self._matrix(self.in_dtype, self.hidden, self.data, written=True)
        plain = {p.name: plain[p.name] for p in self.schema.parameters if p.kind is not ArgumentKind.TENSOR}
        ordered = {name: slots[name] for name in arguments if name in slots}
        return LegalCall(
            op=self.schema.name,
            slots=ordered,
            plain=plain,
            offsets={name: draw.below(1 << 30) for name in ordered},
            judged=EXACT,
        )

    def _leading(self, rows: int) -> tuple[int, ...]:
        kind = self.draw.below(10)
        if kind < 7:
            return (rows,)
        if kind == 7:
            return () if rows == 1 else (rows,)
        first = self.draw.one_of([d for d in (1, 2, 3, 4, 8, rows) if d and rows % d == 0])
        pair = (first, rows // first) if self.draw.chance(0.7) else (rows // first, first)
        return pair if kind == 8 else (1, *pair)

    def _data(self) -> str:
        plain = self.op.activations == (Activation.NONE,) and not self.op.scaling.is_normed
        return self.draw.one_of(("normal", "normal", "normal", "wide", "integers", "extreme" if plain else "wide"))

    def _plain(self) -> dict[str, Any]:
        draw = self.draw
        return {
            "activation": draw.one_of(self.op.activations).op_argument,
            "approximate": draw.chance(0.5),
            "rounds_to_input": draw.chance(0.5),
            "group_size": self.group,
            "eps": draw.one_of((0.0, 1e-10, 1e-10, 1e-6)),
            "epsilon": draw.one_of((1e-6, 1e-5)),
            "is_scale_transposed": draw.chance(0.5),
            "scale_ue8m0": draw.chance(0.5),
            "fp8_min": -448.0,
            "fp8_max": 448.0,
            "int8_min": -128.0,
            "int8_max": 127.0,
            "dummy_is_scale_transposed": draw.chance(0.5),
            "dummy_is_tma_aligned": draw.chance(0.5),
            "scale_rounding": str(draw.one_of(tuple(ScaleRounding))),
            "is_sf_swizzled_layout": draw.chance(0.7),
        }

    def _matrix(self, dtype: torch.dtype, columns: int, values: str | None, *, written: bool = False) -> Slot:
        draw = self.draw
        step = row_stride(draw, columns, written=written, tidy=self.tidy)
        if self.op.vllm and self.op.scaling.is_normed and not self.group and step % 8 != columns % 8:
            step = columns  # vLLM's order of sums depends on it, which dense operands do not have
        outer = [free_stride(draw, size, stride) for size, stride in zip(self.leading, self._steps(step), strict=True)]
        return Slot(
            dtype=dtype,
            shape=(*self.leading, columns),
            strides=(*outer, free_stride(draw, columns, 1)),
            rows=self.rows,
            columns=columns,
            row_stride=step,
            column_stride=1,
            values=values,
            written=written,
            shift=shift_of(draw, self.tidy),
        )

    def _each_row(self, dtype: torch.dtype, *, written: bool) -> Slot:
        rows = self.rows
        shapes = ((rows,), (rows, 1), (*self.leading, 1))
        return vector(self.draw, dtype, rows, None, shapes, written=written, reference_shape=(rows, 1))

    def _azp(self) -> Slot:
        if self.op.scaling.is_given:
            return one_value(self.draw, torch.int32, "codes")
        if self.op.scaling is Scaling.TENSOR:
            return one_value(self.draw, torch.int32, None, written=True)
        return self._each_row(torch.int32, written=True)

    def _scales(self, plain: dict[str, Any]) -> tuple[Slot, tuple[int, int] | None]:
        match self.op.scaling.scales:
            case Scales.GIVEN:
                return self._static_scales()
            case Scales.OF_TENSOR:
                return one_value(self.draw, torch.float32, None, written=True), None
            case Scales.OF_ROW:
                return self._each_row(torch.float32, written=True), None
            case Scales.OF_BLOCK:
                return self._block_scales(plain["is_sf_swizzled_layout"]), None
            case Scales.OF_GROUP:
                return self._group_scales(plain), None

    def _static_scales(self) -> tuple[Slot, tuple[int, int] | None]:
        draw, rows, hidden = self.draw, self.rows, self.hidden
        blocks = "group_shape" in self.schema.arguments and rows * hidden > 0
        kind = draw.one_of(("one", "rows", "columns", "blocks")) if blocks else "one"
        if kind == "one":
            return one_value(draw, torch.float32, "scales"), None
        if kind == "blocks":
            per = tuple(draw.one_of([d for d in (1, 2, 4, 64, 128, n) if n % d == 0]) for n in (rows, hidden))
            count = (rows // per[0], hidden // per[1])
            strides = (count[1] + draw.one_of(PADS), 1) if draw.chance(0.5) else (1, count[0] + draw.one_of(PADS))
            strides = (free_stride(draw, count[0], strides[0]), free_stride(draw, count[1], strides[1]))
            return _strided(draw, count, strides, count), draw.one_of((None, (per[0], per[1])))
        size, other = (rows, hidden) if kind == "rows" else (hidden, rows)
        apiece, step = draw.one_of([d for d in (1, 1, 1, 2, 64) if size % d == 0]), draw.one_of((1, 1, 2, 5))
        scales, whole = size // apiece, draw.one_of((-1, other))
        slot = _strided(draw, (scales,), (free_stride(draw, scales, step),), (scales,))
        return slot, (apiece, whole) if kind == "rows" else (whole, apiece)

    def _group_scales(self, plain: dict[str, Any]) -> Slot:
        draw, rows, groups = self.draw, self.rows, self.hidden // self.group
        packed = self.op.scale_formats == (ScaleFormat.PACKED_UE8M0,)
        columns = -(-groups // 4) if packed else groups
        told = plain["is_scale_transposed"] if "is_scale_transposed" in self.schema.arguments else None
        m_major = packed or (draw.chance(0.5) if told is None else told)
        padded = -(-rows // 4) * 4
        if m_major:
            least = padded if packed else draw.one_of((rows, padded))
            m, g = 1, least + draw.one_of((0, 0, 4, 8))
        else:
            m, g = columns + draw.one_of(PADS), 1
        # A dimension of size 1 may have any stride, except where only its stride distinguishes the two layouts.
        m, g = (
            (m if rows > 1 else draw.one_of((m, *MEANINGLESS))),
            (g if columns > 1 else draw.one_of((g, *MEANINGLESS))),
        )
        shape, strides = self._shape_of_scales(columns, m, g, swapped=bool(told) and draw.chance(0.3))
        return Slot(
            dtype=torch.int32 if packed else torch.float32,
            shape=shape,
            strides=strides,
            rows=rows,
            columns=columns,
            row_stride=m if rows > 1 else 1,  # by which the rows follow that pad a single one
            column_stride=g,
            values=None,
            written=True,
            shift=draw.one_of(SHIFTS[:8]),
            column_major=m_major,
            padding_rows=padded - rows if packed else 0,
        )

    @property
    def _code_columns(self) -> int:
        """Columns of the codes' tensor: bytes of a row, or codes of a row."""
        return self.hidden if self.op.format is None else self.op.format.code_bytes(self.hidden + self.more)

    def _offsets(self) -> dict[str, Slot]:
        """Where experts and their scales begin, in ascending order, and a tile or more between some of them."""
        draw = self.draw
        ends = sorted(draw.below(self.rows + 1) for _ in range(draw.one_of((2, 3, 6, 18))))
        firsts, end = [], 0
        for rows in (after - before for before, after in pairwise(ends)):
            firsts.append(end + TILE_ROWS * draw.one_of((0, 0, 0, 1)))
            end = firsts[-1] + swizzled_shape(rows, 0)[0]
        self.scale_rows = end + draw.one_of((0, 0, 1, TILE_ROWS))
        names = ("input_offset_by_experts", "output_scale_offset_by_experts")
        return {
            name: Slot.matrix(
                torch.int32, (1, len(ends)), (len(ends), 1), values=tuple(values), shift=draw.one_of(SHIFTS[:8])
            )
            for name, values in zip(names, (ends, [*firsts, end]), strict=True)
        }

    def _global_scale(self, experts: int | None) -> Slot:
        if experts is None:
            return one_value(self.draw, torch.float32, "scales")
        return Slot.matrix(
            torch.float32, (1, experts), (experts, 1), values="scales", shift=self.draw.one_of(SHIFTS[:8])
        )

    def _modulation(self) -> Slot:
        if self.draw.chance(0.5):
            return self._matrix(self.in_dtype, self.hidden, self.data)
        h = self.hidden
        return vector(self.draw, self.in_dtype, h, self.data, ((h,), (1, h)), reference_shape=(h,))

    def _block_scales(self, is_swizzled: bool) -> Slot:
        draw, groups = self.draw, (self.hidden + self.more) // self.group
        if self.op.scaling is Scaling.EXPERTS:
            rows, columns = self.scale_rows, swizzled_shape(0, groups)[1]
            is_swizzled = True
        else:
            rows, columns = swizzled_shape(self.rows, groups) if is_swizzled else (self.rows, groups)
        words = is_swizzled and not self.back and draw.chance(0.3)
        columns = columns // 4 if words else columns
        step = columns if is_swizzled else columns + draw.one_of(PADS)
        return Slot(
            dtype=torch.int32 if words else torch.uint8,
            shape=(rows, columns),
            strides=(free_stride(draw, rows, step), free_stride(draw, columns, 1)),
            rows=rows,
            columns=columns,
            row_stride=step,
            column_stride=1,
            values=self.op.scale_formats[0].value if self.back else None,
            written=not self.back,
            shift=draw.one_of(SHIFTS[:8]),
        )

    def _shape_of_scales(self, columns: int, m: int, g: int, *, swapped: bool) -> tuple[tuple[int, ...], Strides]:
        if swapped:
            return (columns, self.rows), (g, m)
        if len(self.leading) < 2 or self.draw.chance(0.5):
            return (self.rows, columns), (m, g)
        return (*self.leading, columns), (*self._steps(m), g)

    def _steps(self, step: int) -> list[int]:
        """Strides of the leading dimensions for rows `step` apart; an empty one counts as one, as torch has it."""
        return [step * math.prod(max(n, 1) for n in self.leading[i + 1 :]) for i in range(len(self.leading))]


def _strided(draw: Draw, shape: tuple[int, ...], strides: Strides, reference_shape: tuple[int, ...]) -> Slot:
    """The slot of given scales, of one dimension or two."""
    rows, columns = shape if len(shape) == 2 else (1, *shape)
    by_row, by_column = strides if len(strides) == 2 else (1, *strides)
    return Slot(
        dtype=torch.float32,
        shape=shape,
        strides=strides,
        rows=rows,
        columns=columns,
        row_stride=by_row,
        column_stride=by_column,
        values="scales",
        shift=draw.one_of(SHIFTS[:8]),
        reference_shape=reference_shape,
    )


def _like(scales: Slot, draw: Draw) -> Slot:
    """The slot of zero points that lie as scales do."""
    return replace(scales, dtype=torch.int32, shift=draw.one_of(SHIFTS[:8]))
