"""Calls of users' epilogues, fixed and random, and the interval in which their results must lie."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gemmill.families.scaled_mm.accepts import accepted
from gemmill.families.scaled_mm.bounds import outside_of_own, own_interval
from gemmill.families.scaled_mm.cases.calls import CallSpec, make_call
from gemmill.families.scaled_mm.own import (
    BUILT_IN,
    OWN_RESULTS_OF,
    OwnConfig,
    op_name,
    operands_of,
    roles_of,
    with_others,
)
from gemmill.family.operand import TMA_BYTES
from gemmill.gemm.traced import Along, Input, Stored, Traced, all_known, of_text
from gemmill.numerics.call import EXACT, WITHIN, LegalCall, Limits
from gemmill.numerics.cases import CaseOutcome
from gemmill.numerics.draw import Draw
from gemmill.numerics.exact import powers_of_two
from gemmill.numerics.layouts import matrix, one_value, torch_dtype, vector
from gemmill.numerics.memory import Memory
from gemmill.runtime.schemas import NAMESPACE
from gemmill.vocab import Accumulation, DType

SHAPES = ((1, 16, 16), (3, 48, 144), (65, 144, 272), (130, 272, 1040), (257, 520, 2080))
LONG_SHAPES = ((33, 136, 4096), (9, 72, 32768))
_SIGNED = (0.25, 1.5, 0.5, 2.0)
"""Values of the numbers that a call gives."""
_WORDS = {"each": (), "one": ("vectors of one value",), "few": ("without what may be left out",)}


def epilogue_of(op: str) -> Traced | None:
    """The epilogue that an op ends in; None for one that is no user's."""
    return next((traced for traced in all_known() if op_name(traced) == op), None)


@dataclass(frozen=True, kw_only=True)
class OwnCase:
    """A product whose epilogue is given a value for each row or column, or one for all, or none where it may be."""

    epilogue: str
    """The text of the epilogue's steps."""
    product: CallSpec
    vectors: str = "each"
    """How vectors come: "each" has a value for each row or column, "one" has one for all, "few" leaves out those that
    a call may leave out."""
    accumulation: Accumulation

    def __str__(self) -> str:
        p = self.product
        words = [f"M, N, K = {p.m}, {p.n}, {p.k}", *_WORDS[self.vectors]]
        words += [] if p.layout == "tight" else [p.layout]
        return "; ".join(words + (["exact"] if p.data == "integers" else []))

    @property
    def traced(self) -> Traced:
        """The epilogue."""
        return of_text(self.epilogue)

    @property
    def op(self) -> str:
        """The op's name."""
        return op_name(self.traced)

    def arguments(self, device: str) -> Sequence[Any]:
        """Arguments in the order of the op's schema. The result holds poison."""
        return list(self._made(torch.device(device))[0].values())

    def _made(self, device: torch.device) -> tuple[dict[str, Any], Any]:
        p, traced, roles = self.product, self.traced, roles_of(self.traced)
        call = make_call(p, device)
        call.poison()
        generator = torch.Generator(device=device).manual_seed(p.m + 31 * p.n)
        given: dict[str, Any] = {"out": call.out, "a": call.a, "b": call.b}
        for at, told in enumerate(traced.inputs):
            count = 1 if self.vectors == "one" else p.m if told.along is Along.ROW else p.n
            if told.along is Along.SCALAR:
                given[roles[told.name]] = _SIGNED[at % len(_SIGNED)]
            elif told.absent is not None and self.vectors == "few":
                given[roles[told.name]] = None
            else:
                given[roles[told.name]] = _values(p, told, count, generator)
        return given, call

    def run(self, device: str) -> CaseOutcome:
        """Call the op on fresh operands, and hold the result against the interval in which it must lie."""
        given, call = self._made(torch.device(device))
        getattr(getattr(torch.ops, NAMESPACE), self.op).default(*given.values())
        report = report_of(
            given, self.traced, Accumulation.EXACT if call.spec.data == "integers" else self.accumulation
        )
        if not report and not call.guards_hold():
            report = "elements outside the result were written"
        return CaseOutcome(report=report)


def _values(p: CallSpec, told: Input, count: int, generator: torch.Generator) -> Tensor:
    device = generator.device
    if told.stored is Stored.S32:
        return torch.randint(-9, 10, (count,), dtype=torch.int32, device=device, generator=generator)
    if told.stored is Stored.OUT:
        drawn = torch.randn(count, device=device, generator=generator, dtype=torch.float32).mul(8).round()
        return drawn.to(getattr(torch, p.out_dtype.torch_name))
    values = powers_of_two((count,), generator) if p.data == "integers" else None
    if values is None:
        values = torch.rand(count, device=device, generator=generator, dtype=torch.float32) * 0.2 + 0.05
    return values.reshape((-1, 1) if told.along is Along.ROW else (1, -1))


def report_of(given: Mapping[str, Any], traced: Traced, accumulation: Accumulation) -> str:
    """The fault of a call's result; empty for a right one."""
    found, ends = given["out"], own_interval(traced, given, accumulation)
    wrong = outside_of_own(found, ends)
    if not (count := int(wrong.sum())):
        return ""
    row, column = (int(at[0]) for at in wrong.nonzero(as_tuple=True))
    low, high = (float(end[row, column]) for end in ends)
    return (
        f"{count} of {wrong.numel()} elements are wrong, the first at [{row}, {column}]: {float(found[row, column])}, expected "
        f"{low} to {high}"
    )


def of_config(config: OwnConfig) -> Iterator[OwnCase]:
    """Shapes that a variant takes, with vectors of many values, of one, and left out."""
    predicate, traced = accepted(config), config.traced
    others = ("one", "few") if any(told.absent is not None for told in traced.inputs) else ("one",)
    align_n, align_k = predicate.alignment_d, max(predicate.alignment_a, predicate.alignment_b)
    for at, (m, n, k) in enumerate(SHAPES + LONG_SHAPES):
        spec = CallSpec(
            m=m,
            n=-(-n // align_n) * align_n,
            k=-(-k // align_k) * align_k,
            a_dtype=predicate.a_dtype,
            out_dtype=predicate.out_dtype,
            data="integers" if (m, n, k) in LONG_SHAPES else "random",
            layout="padded" if at % 3 == 2 else "tight",
        )
        for vectors in ("each", *others) if at % 2 else ("each",):
            yield OwnCase(epilogue=traced.text, product=spec, vectors=vectors, accumulation=config.design.accumulation)


def sized(config: OwnConfig, m: int, n: int, k: int) -> OwnCase:
    """One call at M, N and K, with exact operands."""
    first = next(of_config(config))
    return replace(first, product=replace(first.product, m=m, n=n, k=k, data="integers"))


def once(m: int, n: int, k: int) -> Iterator[tuple[str, OwnCase]]:
    """One call of the op of each epilogue that comes with gemmill, by the first operand that it takes."""
    for built_in in BUILT_IN.values():
        traced, operand = built_in.traced, built_in.operands[0]
        accumulation = Accumulation.FAST if operand.is_float else Accumulation.EXACT
        product = CallSpec(m=m, n=n, k=k, a_dtype=operand)
        case = OwnCase(epilogue=traced.text, product=product, accumulation=accumulation)
        yield f"{case.op} {operand}", case


def asked(traced: Traced, m: int, n: int, k: int, operand: DType, result: DType) -> list[Any]:
    """The op's arguments on torch's meta device."""

    def empty(dtype: DType, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=torch_dtype(dtype), device="meta")

    stored = {Stored.F32: DType.F32, Stored.S32: DType.S32, Stored.OUT: result}
    arguments: list[Any] = [empty(result, (m, n)), empty(operand, (m, k)), empty(operand, (n, k)).t()]
    for told in traced.inputs:
        if told.along is Along.SCALAR:
            arguments.append(1.0)
        elif told.absent is not None:
            arguments.append(None)
        else:
            arguments.append(empty(stored[told.stored], (m if told.along is Along.ROW else n,)))
    return arguments


def drawn(traced: Traced, op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A random call, of operands that TMA takes: no kernel takes others."""
    operand = draw.one_of(operands_of(traced))
    dtype, out_dtype = (torch_dtype(t) for t in (operand, draw.one_of(OWN_RESULTS_OF[operand])))
    m, n, k = draw.size(256), 16 * draw.log_uniform(16), 16 * draw.log_uniform(32)
    while max(m * n, m * k, n * k) > limits.elements or m * n * k > limits.products:
        m, n, k = max(m // 2, 1), max(n // 32, 1) * 16, max(k // 32, 1) * 16
    exact = draw.chance(0.6)
    data = "integers" if exact else "codes" if operand is DType.S8 else "normal"
    slots = {
        "out": matrix(draw, out_dtype, m, n, None, written=True, tidy=True),
        "a": matrix(draw, dtype, m, k, data, tidy=True),
        "b": matrix(draw, dtype, k, n, data, transposed=True, tidy=True),
    }
    plain: dict[str, Any] = {}
    for told in traced.inputs:
        if told.along is Along.SCALAR:
            plain[told.name] = draw.one_of(_SIGNED)
            continue
        if told.absent is not None and draw.chance(0.3):
            continue
        count, shapes = (m, ((m,), (m, 1))) if told.along is Along.ROW else (n, ((n,), (1, n)))
        kind = {Stored.F32: torch.float32, Stored.S32: torch.int32, Stored.OUT: out_dtype}[told.stored]
        values = "powers" if told.stored is Stored.F32 else "integers"
        slots[told.name] = (
            one_value(draw, kind, values) if draw.chance(0.2) else vector(draw, kind, count, values, shapes)
        )
    for name, other in with_others(traced).items():
        if other not in slots:
            slots.pop(name, None)
    offsets = {name: draw.below(1 << 30) for name in slots}
    return LegalCall(op=op, slots=slots, plain=plain, offsets=offsets, judged=EXACT if exact else WITHIN)


def fits_tma(call: LegalCall) -> bool:
    """Whether TMA takes a call's matrices: no kernel of an epilogue takes others."""
    for name in ("out", "a", "b"):
        slot = call.slots[name]
        lines, length = slot.shape if name != "b" else slot.shape[::-1]
        stride = slot.strides[0] if name != "b" else slot.strides[1]
        bytes_apart = (length if lines == 1 else stride) * slot.dtype.itemsize
        aligned = (lines == 1 and name != "out") or bytes_apart % TMA_BYTES == 0
        if not aligned or slot.shift * slot.dtype.itemsize % TMA_BYTES or (lines > 1 and stride < length):
            return False
    return True


class OwnJudge:
    """The judge of one random call, by its epilogue's interval."""

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        traced = epilogue_of(call.op)
        assert traced is not None
        self._traced, self._memory = traced, memory
        roles = roles_of(traced)
        dense = {name: memory.dense(name, before) for name in call.slots if name != "out"}
        given: dict[str, Any] = dense | dict(call.plain)
        self._given = {roles.get(name, name): value for name, value in given.items()}
        is_exact = call.judged == EXACT or self._given["a"].dtype is torch.int8
        self._accumulation = Accumulation.EXACT if is_exact else Accumulation.FAST

    def wrong(self) -> Tensor:
        """How many elements are wrong: a tensor on the device, which nothing waits for."""
        found = self._memory.dense("out")
        ends = own_interval(self._traced, self._given | {"out": found}, self._accumulation)
        return outside_of_own(found, ends).sum()

    def report(self) -> str:
        """The fault in words; empty for a right result."""
        return report_of(self._given | {"out": self._memory.dense("out")}, self._traced, self._accumulation)
