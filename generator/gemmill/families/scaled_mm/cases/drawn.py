"""Random calls of the GEMM ops, and their expected results."""

import torch
from torch import Tensor

from gemmill.families.scaled_mm import scales as scales_of
from gemmill.families.scaled_mm.accepts import SCALED_MM_AZP
from gemmill.families.scaled_mm.bounds import exact_scaled_mm, tolerance
from gemmill.families.scaled_mm.cases import own
from gemmill.families.scaled_mm.config import RESULTS_OF
from gemmill.families.scaled_mm.reference import scaled_mm
from gemmill.family import VLLM_PREFIX
from gemmill.numerics.call import EXACT, WITHIN, LegalCall, Limits
from gemmill.numerics.cases import Judge
from gemmill.numerics.comparison import Wanted
from gemmill.numerics.draw import Draw
from gemmill.numerics.layouts import PADS, TIDY, free_stride, matrix, one_value, shift_of, torch_dtype, vector
from gemmill.numerics.memory import Memory, Slot
from gemmill.runtime.operands import of_tensor
from gemmill.runtime.ops import supports
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import SCALE_GROUPS, Accumulation, DType, scale_groups_of

LARGE, THIN, ALIGNED = 0.01, 0.05, 0.55
"""The shares of calls with large sizes, with a K of a few groups, and with aligned sizes.

Where K is a few groups, M and N are large: memory faults were there. Unless N and K are multiples of 16, only the
fallback takes a call.
"""
MOST_JUDGED_K = 512
"""The largest K that random operands have. Beyond it they are small integers, whose sums are exact.

A bound would follow a long K step by step.
"""


def drawn(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A random call of one of the two ops, ours or vLLM's, or of a user's epilogue."""
    if (traced := own.epilogue_of(op)) is not None:
        return own.drawn(traced, op, draw, limits)
    with_azp, packed = op.endswith(SCALED_MM_AZP), op.startswith(VLLM_PREFIX)
    operand = DType.S8 if with_azp else draw.one_of(tuple(RESULTS_OF))
    dtype, out_dtype = (torch_dtype(t) for t in (operand, draw.one_of(RESULTS_OF[operand])))
    groups = draw.one_of(SCALE_GROUPS) if dtype.itemsize == 1 and not with_azp and draw.chance(0.4) else None
    m, n, k = _sizes(draw, limits)
    tidy = draw.chance(TIDY)
    exact = k > MOST_JUDGED_K or draw.chance(0.6)
    data = "integers" if exact else "codes" if operand is DType.S8 else draw.one_of(("normal", "wide"))
    scales = "powers" if exact else "scales"
    slots = {
        "out": matrix(draw, out_dtype, m, n, None, written=True, tidy=tidy, packed=packed),
        "a": matrix(draw, dtype, m, k, data, tidy=tidy, packed=packed),
        "b": matrix(draw, dtype, k, n, data, transposed=True, tidy=tidy, packed=packed),
        "a_scales": _group_scales(draw, groups.a_shape(m, k), scales, tidy) if groups else _scales(draw, m, scales, 0),
        "b_scales": _group_scales(draw, groups.b_shape(n, k), scales, tidy) if groups else _scales(draw, n, scales, 1),
    }
    if with_azp:
        slots["azp_adj"] = vector(draw, torch.int32, n, "sums", ((n,), (1, n)))
        if draw.chance(0.5):
            slots["azp"] = vector(draw, torch.int32, m, "codes", ((m,), (m, 1)))
    if draw.chance(0.5):
        slots["bias"] = vector(draw, out_dtype, n, "integers" if exact else "normal", ((n,), (1, n)))
    is_exact = exact or (operand is DType.S8 and groups is None)
    return LegalCall(
        op=op,
        slots=slots,
        plain={},
        offsets={name: draw.below(1 << 30) for name in slots},
        judged=EXACT if is_exact else WITHIN,
    )


def _sizes(draw: Draw, limits: Limits) -> tuple[int, int, int]:
    if limits.large > limits.elements and draw.chance(THIN):
        k = draw.size(512)
        n = draw.size(min(24576, limits.large // max(k, 1)))
        return draw.size(min(1024, limits.large // max(n, k, 1))), n, k
    if limits.large > limits.elements and draw.chance(LARGE):
        return draw.size(4096), 16 * draw.log_uniform(256), 16 * draw.log_uniform(256)
    if draw.chance(ALIGNED):
        sizes = [draw.size(1024), 16 * draw.log_uniform(256), 16 * draw.log_uniform(256)]
    else:
        sizes = [draw.size(2048) for _ in range(3)]
    while not _fits(sizes, limits):
        largest = sizes.index(max(sizes))
        sizes[largest] = sizes[largest] // 32 * 16 if sizes[largest] % 16 == 0 else sizes[largest] // 2
    m, n, k = sizes
    return m, n, k


def _fits(sizes: list[int], limits: Limits) -> bool:
    m, n, k = sizes
    return max(m * n, m * k, n * k) <= limits.elements and m * n * k <= limits.products


def _scales(draw: Draw, count: int, values: str, dim: int) -> Slot:
    if draw.chance(0.3):
        return one_value(draw, torch.float32, values)
    return vector(draw, torch.float32, count, values, ((count,), (count, 1) if dim == 0 else (1, count)))


def _group_scales(draw: Draw, shape: tuple[int, int], values: str, tidy: bool) -> Slot:
    rows, columns = shape
    along, across = (rows, columns) if (m_major := draw.chance(0.6)) else (columns, rows)
    step = along + (-along % 4 if tidy or draw.chance(0.5) else draw.one_of(PADS))
    inner, outer = free_stride(draw, along, 1), free_stride(draw, across, step)
    strides = (inner, outer) if m_major else (outer, inner)
    return Slot.matrix(torch.float32, shape, strides, values=values, shift=shift_of(draw, tidy))


class GemmJudge:
    """The judge of one random call, by the reference's result for operands in dense memory of their own.

    The op's strides differ from the reference's: both must give the same.
    """

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        given = {name: memory.dense(name, before) for name in call.slots}
        self._call, self._memory = call, memory
        self._operands = given["a"], given["b"], given["a_scales"], given["b_scales"]
        self._options = given.get("bias"), given.get("azp_adj"), given.get("azp")
        is_s8 = self._operands[0].dtype is torch.int8
        self._accumulation = Accumulation.EXACT if is_s8 else Accumulation.FAST

    def wrong(self) -> Tensor:
        """How many elements are wrong: a tensor on the device, which nothing waits for."""
        return self._wanted().apart(self._memory.dense("out")).sum()

    def report(self) -> str:
        """The fault in words; empty for a right result."""
        return self._wanted().compare(self._memory.dense("out")).report

    def _wanted(self) -> Wanted:
        """The reference's result and, unless that repeats every rounding, the exact one and its bound."""
        out_dtype, bias = self._call.slots["out"].dtype, self._options[0]
        rounded = scaled_mm(*self._operands, out_dtype, *self._options)
        if self._is_exact():
            return Wanted(rounded=rounded)
        bound = tolerance(*self._operands, out_dtype, self._accumulation, bias)
        return Wanted(rounded=rounded, exact=exact_scaled_mm(*self._operands, bias), bound=bound)

    def _is_exact(self) -> bool:
        """Whether the reference repeats every rounding: not with scales in groups, which strides may mark where shapes
        do not.
        """
        if self._call.judged == EXACT:
            return True
        given = [self._memory.tensor(name) for name in ("out", "a", "b", "a_scales", "b_scales")]
        arguments = BY_NAME[self._call.op].arguments
        call = {name: of_tensor(tensor) for name, tensor in zip(arguments, given, strict=False)}
        return self._accumulation is Accumulation.EXACT and scales_of.groups_of_call(call) is None


def judge(call: LegalCall, memory: Memory, before: Tensor) -> Judge:
    """The judge of a call, from its memory and a copy of that memory's bytes from before the call."""
    return (GemmJudge if own.epilogue_of(call.op) is None else own.OwnJudge)(call, memory, before)


def is_lacking(call: LegalCall, _text: str) -> bool:
    """Whether the build has no variant for the call's types and groups; one that it has must take every such call."""
    if own.epilogue_of(call.op) is not None:
        is_built = supports(call.op, dtype=call.slots["a"].dtype, out_dtype=call.slots["out"].dtype)
        return not is_built or not own.fits_tma(call)
    (m, k), n = call.slots["a"].shape, call.slots["b"].shape[1]
    groups = scale_groups_of(call.slots["a_scales"].shape, call.slots["b_scales"].shape, m, n, k)
    dtype, out_dtype = (call.slots[name].dtype for name in ("a", "out"))
    return not supports(call.op, dtype=dtype, out_dtype=out_dtype, group_size=groups.size if groups else 0)
