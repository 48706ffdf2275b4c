"""What a legal call must give, by the reference, and how far its results are from that."""

from typing import Any

import torch
from torch import Tensor

from gemmill.families.quant.call import config_of, quant_call
from gemmill.families.scaled_mm.ops import GEMM_OPS
from gemmill.families.scaled_mm.scales import groups_of_call
from gemmill.fuzz.call import EXACT, LegalCall
from gemmill.fuzz.memory import Memory
from gemmill.reference import compare_exact, exact_scaled_mm, scaled_mm, tolerance
from gemmill.reference.comparison import apart_exact, apart_within, compare_within
from gemmill.runtime.operands import of_arguments, of_tensor
from gemmill.runtime.quant_cpu import by_reference
from gemmill.runtime.schemas import BY_NAME
from gemmill.tune import quant_cases
from gemmill.vocab import Accumulation, Arch


class Judge:
    """The expected results of one call, made from operands in dense memory of their own: what the op reads by its strides
    and the reference by others must be the same."""

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        self._call, self._memory = call, memory
        self._op = BY_NAME[call.op]
        self._given = {name: memory.dense(name, before) for name in call.slots}
        if self._op in GEMM_OPS:
            self._wanted: dict[str, Any] = {}
        else:
            self._wanted = dict.fromkeys(self._op.arguments) | dict(call.plain) | self._given
            by_reference(self._op, [self._wanted[name] for name in self._op.arguments])

    def wrong(self) -> Tensor:
        """How many elements are wrong, on the device, without waiting for it. For ops whose codes may be a step off this is
        how many are not the reference's bits: `report` has the last word."""
        if self._op in GEMM_OPS:
            return self._gemm_apart().sum()
        counts = [
            (~quant_cases.same_bits(self._memory.dense(name), self._wanted[name])).sum()
            for name, slot in self._call.slots.items()
            if slot.written
        ]
        return torch.stack(counts).sum()

    def report(self) -> str:
        """What is wrong, in words; nothing if nothing is."""
        if self._op in GEMM_OPS:
            return self._gemm_report()
        got = dict.fromkeys(self._op.arguments) | dict(self._call.plain)
        got |= {name: self._memory.dense(name) for name in self._call.slots}
        arguments = [self._wanted[name] for name in self._op.arguments]
        config = config_of(quant_call(self._op, of_arguments(self._op, arguments)), Arch.SM90A)
        return quant_cases.differences(config, self._op, [got[name] for name in self._op.arguments], arguments)

    def _gemm_apart(self) -> Tensor:
        operands, options, accumulation = self._gemm()
        out = self._memory.dense("out")
        rounded = scaled_mm(*operands, out.dtype, *options)
        if self._is_exact(accumulation):
            return apart_exact(out, rounded)
        exact = exact_scaled_mm(*operands, options[0])
        return apart_within(out, rounded, exact, tolerance(*operands, out.dtype, accumulation, options[0]))

    def _gemm_report(self) -> str:
        operands, options, accumulation = self._gemm()
        out = self._memory.dense("out")
        rounded = scaled_mm(*operands, out.dtype, *options)
        if self._is_exact(accumulation):
            return compare_exact(out, rounded).report
        exact = exact_scaled_mm(*operands, options[0])
        return compare_within(out, rounded, exact, tolerance(*operands, out.dtype, accumulation, options[0])).report

    def _gemm(self) -> tuple[list[Tensor], list[Tensor | None], Accumulation]:
        """A, B and their scales; bias and zero points; how sums are made."""
        operands = [self._given[name] for name in ("a", "b", "a_scales", "b_scales")]
        options = [self._given.get(name) for name in ("bias", "azp_adj", "azp")]
        return operands, options, Accumulation.EXACT if operands[0].dtype is torch.int8 else Accumulation.FAST

    def _is_exact(self, accumulation: Accumulation) -> bool:
        """Whether the reference repeats every rounding: not with scales in groups, which strides may tell where shapes do not."""
        if self._call.judged == EXACT:
            return True
        given = [self._memory.tensor(name) for name in ("out", "a", "b", "a_scales", "b_scales")]
        call = {name: of_tensor(tensor) for name, tensor in zip(self._op.arguments, given, strict=False)}
        return accumulation is Accumulation.EXACT and groups_of_call(call) is None
