"""Calls of its op, and their checks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmill.numerics.call import LegalCall, Limits
from gemmill.numerics.cases import CaseOutcome, Cases, CodeRange, Question, refuse_unused
from gemmill.numerics.draw import Draw
from gemmill.numerics.layouts import matrix, vector
from gemmill.numerics.memory import Memory
from gemmill.runtime.schemas import NAMESPACE
from toy.config import ToyConfig
from toy.ops import PACK
from toy.reference import pack


def arguments(length: int, page: int, device: str) -> list[Any]:
    return [
        torch.full((length, page // 2), 0x5A, dtype=torch.uint8, device=device),
        torch.full((length,), torch.nan, device=device),
        torch.rand(length, page, device=device) * 20 - 2,
        0,
    ]


@dataclass(frozen=True, kw_only=True)
class ToyCase:
    """A call of dense tensors."""

    length: int
    page: int
    namespace: str = NAMESPACE
    op: str = PACK.name

    def arguments(self, device: str) -> list[Any]:
        return arguments(self.length, self.page, device)

    def run(self, device: str) -> CaseOutcome:
        given = self.arguments(device)
        getattr(getattr(torch.ops, self.namespace), PACK.name).default(*given)
        codes, peaks = pack(given[2], given[3])
        right = torch.equal(codes, given[0]) and torch.equal(peaks, given[1])
        return CaseOutcome(report="" if right else "codes or peaks are wrong")


def of_config(config: ToyConfig) -> Iterator[ToyCase]:
    for length in (config.pages_at_a_time, config.pages_at_a_time + 1, 33):
        yield ToyCase(length=length, page=32)


def sized(config: ToyConfig, sizes: Mapping[str, int]) -> ToyCase:
    return ToyCase(**sizes)


def once() -> Iterator[tuple[str, ToyCase]]:
    yield PACK.name, ToyCase(length=3, page=16)


def asked(op: str, question: Question) -> list[Any]:
    refuse_unused(op, question)
    return arguments(question["length"], question["page"], "meta")


def drawn(op: str, draw: Draw, limits: Limits) -> LegalCall:
    length, page = draw.size(64), 2 * draw.size(64)
    slots = {
        "codes": matrix(draw, torch.uint8, length, page // 2, None, written=True),
        "peaks": vector(draw, torch.float32, length, None, ((length,), (length, 1)), written=True),
        "pages": matrix(draw, torch.float32, length, page, "wide"),
    }
    offsets = {name: draw.below(1 << 30) for name in slots}
    return LegalCall(op=op, slots=slots, plain={"low": draw.below(16)}, offsets=offsets)


def ranges(op: str, after: Mapping[str, Any]) -> dict[str, list[CodeRange]]:
    """As if the arithmetic left a step either way open."""
    codes = after["codes"]
    values = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1).long()
    strides = (8 * codes.stride(0), 4)
    return {"codes": [CodeRange(bits=4, first=0, strides=strides, low=(values - 1).clamp_min(0), high=values + 1)]}


class ToyJudge:
    """Against the reference of dense pages."""

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        self._memory = memory
        self._wanted = pack(memory.dense("pages", before), call.plain["low"])

    def wrong(self) -> Tensor:
        codes, peaks = self._wanted
        apart = (self._memory.dense("codes") != codes).sum()
        return apart + (self._memory.dense("peaks").flatten() != peaks).sum()

    def report(self) -> str:
        count = int(self.wrong())
        return f"{count} codes and peaks are wrong" if count else ""


CASES = Cases(
    of_config=of_config,
    sized=sized,
    once=once,
    asked=asked,
    drawn=drawn,
    judge=ToyJudge,
    is_lacking=lambda call, text: False,
    ranges=ranges,
)
