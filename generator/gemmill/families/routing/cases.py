"""Calls of the router's op, for tests, fuzzing and `gemmill explain`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from gemmill.families.routing.config import HALVES, MOST_EXPERTS, MOST_TOPK, MULTIPLE, RoutingConfig
from gemmill.families.routing.ops import ROUTER_TOPK
from gemmill.families.routing.reference import largest, logits_of
from gemmill.numerics.call import LegalCall, Limits
from gemmill.numerics.cases import CaseOutcome, Cases, Question, SpecCase, gemm_sizes, on_meta
from gemmill.numerics.draw import Draw
from gemmill.numerics.exact import small_integers
from gemmill.numerics.layouts import free_stride, matrix, torch_dtype, vector
from gemmill.numerics.memory import POISON, Memory, Slot
from gemmill.runtime.ops import supports
from gemmill.runtime.schemas import NAMESPACE
from gemmill.vocab import DType

WEIGHT_ERROR = 2.0**-16
"""Relative error of a weight, at most: of exp 2 ulp, of a difference of logits 88 * 2^-24, of a sum of 512 terms by five levels of lanes
and 16 terms each 21 * 2^-24, twice."""
_TINY = 2.0**-126
"""Error of a weight that is so small that its part of the softmax has fewer bits."""
SUM_ERROR = 2.0**-23
"""Error of a product's sum, for each term of its K and of its eight warps, as a part of the sum of magnitudes: the tensor core truncates."""
SHAPES = (
    (1, 8, 8, 1),
    (3, 60, 136, 8),
    (16, 128, 2048, 8),
    (17, 128, 264, 8),
    (33, 256, 7168, 8),
    (130, 512, 1032, 10),
    (9, 160, 5120, 6),
    (5, 33, 40, 32),
)
"""Tokens, experts, K and topk, below, at and across tiles and shares of CTAs."""
PAD = 8
_MOST_DRAWN_K = 1024


@dataclass(frozen=True, kw_only=True)
class CallSpec:
    """One call. Everything in it, data included, follows from these fields."""

    m: int
    experts: int
    k: int
    topk: int
    dtype: DType = DType.BF16
    renormalize: bool = True
    padded: int = 0
    """Rows of padding, of which every other one is."""
    pad: int = 0
    """Elements between rows of each matrix."""
    data: str = "random"
    """The distribution of values: "random", or small "integers" of which every order of summation gives the same, and many are equal."""

    @property
    def op(self) -> str:
        """The op's name."""
        return ROUTER_TOPK.name

    def __str__(self) -> str:
        words = [f"{self.m} tokens, {self.experts} experts, K = {self.k}, topk {self.topk}", str(self.dtype)]
        words += ["renormalised"] if self.renormalize else []
        words += [f"{self.padded} rows pad"] if self.padded else []
        words += [f"rows {self.pad} apart"] if self.pad else []
        return "; ".join(words + (["exact"] if self.data == "integers" else []))


def fault_of(
    logits: Tensor,
    weights: Tensor,
    ids: Tensor,
    x: Tensor,
    weight: Tensor,
    *,
    renormalize: bool,
    is_padding: Tensor | None = None,
) -> str:
    """The fault of a call's results in words; empty for right ones. Ids and weights have to follow from the logits in the output."""
    exact, sizes = logits_of(x, weight), x.double().abs() @ weight.double().abs().t()
    rounding = torch.finfo(logits.dtype).eps / 2 * exact.abs() + torch.finfo(logits.dtype).tiny
    bound = SUM_ERROR * (x.shape[1] + 8) * sizes + rounding * (1 + 2.0**-7)
    wrong = ~((logits.double() - exact).abs() <= bound)
    if wrong.any():
        return (
            f"{int(wrong.sum())} of {wrong.numel()} logits are farther from the exact ones than sums in float32 may be"
        )
    wanted_weights, wanted_ids = largest(logits, ids.shape[1], renormalize=renormalize, is_padding=is_padding)
    if not torch.equal(ids, wanted_ids):
        return f"{int((ids != wanted_ids).sum())} of {ids.numel()} experts are not those of the largest logits"
    apart = ~((weights - wanted_weights).abs() <= WEIGHT_ERROR * wanted_weights + _TINY)
    return f"{int(apart.sum())} of {apart.numel()} weights are wrong" if apart.any() else ""


@dataclass(frozen=True, kw_only=True)
class RouterCase(SpecCase):
    """A call spec with its computation and comparison."""

    spec: CallSpec

    def arguments(self, device: str) -> list[Any]:
        """Arguments in the order of the op's schema. The results hold poison."""
        return self._made(device)[1]

    def _made(self, device: str) -> tuple[Memory, list[Any]]:
        p, where = self.spec, torch.device(device)
        g = torch.Generator(device=where).manual_seed(p.m * 1_000_003 + p.experts * 1009 + p.k)
        dtype = torch_dtype(p.dtype)
        outputs = {
            "logits": (dtype, p.experts),
            "topk_weights": (torch.float32, p.topk),
            "topk_ids": (torch.int32, p.topk),
        }
        slots = {
            name: Slot.matrix(of, (p.m, columns), (columns + p.pad, 1), values=None, written=True)
            for name, (of, columns) in outputs.items()
        }
        memory = Memory(slots, where)
        x, weight = (_apart(_values(p, rows, dtype, g), p.pad) for rows in (p.m, p.experts))
        is_padding = None
        if p.padded:
            is_padding = (torch.arange(p.m, dtype=torch.int32, device=where) % 2).mul(255).to(torch.uint8)
            is_padding[2 * p.padded :] = 0
        return memory, [*(memory.tensor(name) for name in outputs), x, weight, p.renormalize, is_padding]

    def run(self, device: str) -> CaseOutcome:
        """Call the op on fresh operands, and hold the results against the reference."""
        memory, arguments = self._made(device)
        getattr(getattr(torch.ops, NAMESPACE), self.op).default(*arguments)
        logits, weights, ids, x, weight, renormalize, is_padding = arguments
        report = fault_of(logits, weights, ids, x, weight, renormalize=renormalize, is_padding=is_padding)
        if not report and self.spec.data == "integers":
            equal = torch.equal(logits, logits_of(x, weight).to(x.dtype))
            report = "" if equal else "logits of small integers are not exact"
        if not report and memory.changed(torch.full_like(memory.bytes, POISON), written=True).any():
            report = "elements outside the results were written"
        return CaseOutcome(report=report)


def _values(p: CallSpec, rows: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    if p.data == "integers":
        return small_integers(rows, p.k, dtype, g)
    return torch.randn(rows, p.k, device=g.device, generator=g, dtype=torch.float32).to(dtype)


def _apart(x: Tensor, pad: int) -> Tensor:
    memory = torch.full((x.shape[0], x.shape[1] + pad), torch.nan, dtype=x.dtype, device=x.device)
    memory[:, : x.shape[1]] = x
    return memory[:, : x.shape[1]]


def of_config(config: RoutingConfig) -> Iterator[RouterCase]:
    """The cases of a variant."""
    for (m, experts, k, topk), (renormalize, pad, data) in product(
        SHAPES, ((True, 0, "random"), (False, PAD, "random"), (True, PAD, "integers"))
    ):
        sizes = CallSpec(m=m, experts=experts, k=k, topk=topk)
        padded = m // 3 if pad else 0
        spec = replace(sizes, dtype=config.dtype, renormalize=renormalize, padded=padded, pad=pad, data=data)
        yield RouterCase(spec=spec)


def sized(config: RoutingConfig, sizes: Mapping[str, int]) -> RouterCase:
    """A call of exact operands."""
    m, experts, k = (sizes[name] for name in ("m", "n", "k"))
    spec = CallSpec(m=m, experts=experts, k=k, topk=min(8, experts), dtype=config.dtype, data="integers")
    return RouterCase(spec=spec)


def once() -> Iterator[tuple[str, RouterCase]]:
    """A small call of each type."""
    for dtype in HALVES:
        yield f"{ROUTER_TOPK.name} {dtype}", RouterCase(spec=CallSpec(m=5, experts=16, k=64, topk=4, dtype=dtype))


def asked(op: str, question: Question) -> list[Any]:
    """The op's arguments on torch's meta device. Raises ValueError for a question that the op does not accept."""
    m, experts, k = gemm_sizes(op, question)
    dtype, topk = DType(question["dtype"] or DType.BF16), question["topk"] or 8
    if dtype not in HALVES:
        raise ValueError(f"{op} with --dtype {dtype}: expected {' or '.join(HALVES)}")
    of_topk = on_meta(DType.F32, m, topk), on_meta(DType.S32, m, topk)
    return [on_meta(dtype, m, experts), *of_topk, on_meta(dtype, m, k), on_meta(dtype, experts, k), True, None]


def drawn(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A random call, of small integers: every order of summation gives the same logits, and many are equal."""
    dtype = torch_dtype(draw.one_of(HALVES))
    m, experts = draw.size(256), max(1, draw.size(MOST_EXPERTS))
    k = MULTIPLE * max(1, draw.size(_MOST_DRAWN_K // MULTIPLE))
    while max(m * experts, m * k, experts * k) > limits.elements or m * experts * k > limits.products:
        m, experts, k = m // 2, max(1, experts // 2), max(MULTIPLE, k // 2 // MULTIPLE * MULTIPLE)
    topk = 1 + draw.below(min(MOST_TOPK, experts))
    slots = {
        "logits": matrix(draw, dtype, m, experts, None, written=True),
        "topk_weights": matrix(draw, torch.float32, m, topk, None, written=True),
        "topk_ids": matrix(draw, torch.int32, m, topk, None, written=True),
        "x": _in_eights(draw, dtype, m, k),
        "weight": _in_eights(draw, dtype, experts, k),
    }
    if draw.chance(0.5):
        slots["is_padding"] = vector(draw, torch.uint8, m, "codes", ((m,), (m, 1), (1, m)))
    offsets = {name: draw.below(1 << 30) for name in slots}
    return LegalCall(op=op, slots=slots, plain={"renormalize": draw.chance(0.5)}, offsets=offsets)


def _in_eights(draw: Draw, dtype: torch.dtype, rows: int, columns: int) -> Slot:
    """A matrix whose rows begin at multiples of eight elements, apart or, now and then, over one another."""
    apart = (
        MULTIPLE * draw.below(columns // MULTIPLE + 1) if draw.chance(0.05) else columns + draw.one_of((0, 0, 8, 64))
    )
    strides = (free_stride(draw, rows, apart), free_stride(draw, columns, 1))
    return Slot.matrix(dtype, (rows, columns), strides, values="integers", shift=draw.one_of((0, 0, 8, 16)))


class RouterJudge:
    """The judge of one random call."""

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        self._memory, self._given = memory, {name: memory.dense(name, before) for name in ("x", "weight")}
        logits = logits_of(**self._given).to(self._given["x"].dtype)
        topk = call.slots["topk_ids"].columns
        is_padding = memory.dense("is_padding", before).flatten() if "is_padding" in call.slots else None
        renormalize: bool = call.plain["renormalize"]
        self._wanted = logits, *largest(logits, topk, renormalize=renormalize, is_padding=is_padding)

    def wrong(self) -> Tensor:
        """How many elements are wrong: a tensor on the device, which nothing waits for."""
        logits, weights, ids = self._wanted
        apart = ~((self._memory.dense("topk_weights") - weights).abs() <= WEIGHT_ERROR * weights + _TINY)
        unequal = (self._memory.dense("logits") != logits).sum() + (self._memory.dense("topk_ids") != ids).sum()
        return unequal + apart.sum()

    def report(self) -> str:
        """The fault in words; empty for right results."""
        count = int(self.wrong())
        return f"{count} logits, weights and experts are wrong" if count else ""


def limits(_op: str, after: Mapping[str, Any]) -> dict[str, Tensor]:
    """How far right weights may be from the reference's."""
    return {"topk_weights": WEIGHT_ERROR * after["topk_weights"].abs() + _TINY}


def is_lacking(call: LegalCall, _text: str) -> bool:
    """Whether the build has no variant of this type."""
    return not supports(call.op, dtype=call.slots["x"].dtype)


CASES = Cases(
    of_config=of_config,
    sized=sized,
    once=once,
    asked=asked,
    drawn=drawn,
    judge=RouterJudge,
    is_lacking=is_lacking,
    limits=limits,
)
