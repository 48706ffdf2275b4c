"""Who is timed on quantisation: gemmill's ops, the same ops of other builds, vLLM's library."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemmill.families.quant.call import OUT_NAMES, SCALE_NAMES, name_of
from gemmill.family import VLLM_PREFIX
from gemmill.formats.quantise import unswizzle
from gemmill.runtime.on_cpu import by_reference
from gemmill.runtime.schemas import BY_NAME
from harness.contenders import CheckedCalls, WrongResult
from timed.quant.calls import QuantOperands, case_of
from timed.workload import Workload

CHECKED_ROWS = 8
"""At either end."""
CODES_APART, SCALES_APART = 0.002, 1e-4
"""The share of gemmill's codes that may lie one step from its reference, and the relative distance of scales. Of a peer's
codes all may: vLLM truncates in one op, and rounds silu to bf16 in another."""


@dataclass(frozen=True, kw_only=True)
class QuantContender(CheckedCalls):
    """Ops of one namespace."""

    name: str
    namespace: str
    codes_apart: float = CODES_APART
    """The share of codes that may lie one step from the reference"""
    complete: bool = True

    def takes(self, workload: Workload) -> bool:
        """Whether the namespace has the op."""
        return hasattr(getattr(torch.ops, self.namespace), self._op(workload.of.case.op))

    def _op(self, op: str) -> str:
        """Its name there: peers know no prefix."""
        return op if hasattr(getattr(torch.ops, self.namespace), op) else op.removeprefix(VLLM_PREFIX)

    def check(self, operands: QuantOperands, call: Callable[[], object]) -> None:
        check(operands, call, self.codes_apart)

    def call(self, operands: QuantOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound, so that host time is the call's own and not that of gathering them."""
        op = getattr(getattr(torch.ops, self.namespace), self._op(operands.workload.of.case.op))
        return partial(op.default, *operands.given[i])


def check(operands: QuantOperands, call: Callable[[], object], codes_apart: float = CODES_APART) -> None:
    """Hold the first and last rows of a result against the reference, of packed weights all. Raises WrongResult."""
    given = dict(zip(operands.names, operands.given[0], strict=True))
    if "blocks" in given:
        _check_weights(operands, given, call)
        return
    out, scales = given[name_of(given, OUT_NAMES)], given[name_of(given, SCALE_NAMES)]
    # A row's scale depends on its expert: then all rows are checked.
    of_experts = "input_offset_by_experts" in given
    rows = (
        torch.arange(operands.workload.m, device=out.device) if of_experts else _ends(operands.workload.m, out.device)
    )
    wanted = {name: _some_rows(value, rows, operands.workload.m) for name, value in given.items()}
    swizzled = given.get("is_sf_swizzled_layout", False)
    if swizzled:
        scales = unswizzle(scales.view(torch.uint8), operands.workload.m, case_of(operands.workload).words).view(
            scales.dtype
        )
        wanted |= {
            "is_sf_swizzled_layout": False,
            name_of(given, SCALE_NAMES): scales.view(torch.uint8)[rows].view(scales.dtype),
        }
    out.view(torch.uint8).fill_(0x55)
    call()
    by_reference(BY_NAME[operands.workload.of.case.op], tuple(wanted.values()))
    codes, expected = out.view(torch.uint8)[rows].view(out.dtype), wanted[name_of(wanted, OUT_NAMES)]
    steps = (_steps(codes) - _steps(expected)).abs()
    if swizzled:
        found = given[name_of(given, SCALE_NAMES)].view(torch.uint8)
        scales = unswizzle(found, operands.workload.m, case_of(operands.workload).words).view(scales.dtype)
    apart = (
        _some_rows(scales, rows, operands.workload.m).double() - wanted[name_of(wanted, SCALE_NAMES)].double()
    ).abs()
    allowed = SCALES_APART * wanted[name_of(wanted, SCALE_NAMES)].double().abs()
    if bool((steps > 1).any()) or float((steps > 0).float().mean()) > codes_apart or bool((apart > allowed).any()):
        raise WrongResult(
            f"wrong result in the first and last rows of {operands.workload}: {int((steps > 0).sum())} codes and "
            f"{int((apart > allowed).sum())} scales differ, codes by up to {int(steps.max())} steps"
        )


def _check_weights(operands: QuantOperands, given: dict[str, Any], call: Callable[[], object]) -> None:
    wanted = {name: value.clone() for name, value in given.items()}
    given["out"].fill_(torch.nan)
    call()
    by_reference(BY_NAME[operands.workload.of.case.op], tuple(wanted.values()))
    apart = int((given["out"].view(torch.int16) != wanted["out"].view(torch.int16)).sum())
    if apart:
        raise WrongResult(f"wrong result in {operands.workload}: {apart} values differ")


def _ends(rows: int, device: torch.device) -> Tensor:
    if rows <= 2 * CHECKED_ROWS:
        return torch.arange(rows, device=device)
    head = torch.arange(CHECKED_ROWS, device=device)
    return torch.cat([head, rows - CHECKED_ROWS + head])


def _some_rows(value: object, rows: Tensor, of: int) -> object:
    """Those rows of a tensor of `of` rows, in memory laid out as it is; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    if value.dim() < 2 or value.shape[0] != of:
        return value.clone()
    if value.dim() == 2 and value.stride(0) == 1 and value.shape[1] > 1:
        padded = value.new_zeros((value.shape[1], -(-len(rows) // 4) * 4)).t()[: len(rows)]
        return padded.copy_(value[rows])
    return value.view(torch.uint8)[rows].view(value.dtype) if value.dtype.itemsize == 1 else value[rows]


def _steps(codes: Tensor) -> Tensor:
    """Codes as integers whose distance counts the codes between them."""
    if codes.dtype is torch.int8:
        return codes.int()
    bits = codes.view(torch.uint8).int()
    return torch.where(bits < 128, bits, 128 - bits)
