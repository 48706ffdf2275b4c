"""The calls that verify a variant."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmill.families.fused_experts.cases.calls import NONE, ONE, CallSpec, arguments_of, make_given, wanted_of
from gemmill.families.fused_experts.config import CODED, GROUP, AnyConfig, ExpertsConfig, PackedExpertsConfig
from gemmill.families.fused_experts.functions import fused_experts_workspace
from gemmill.families.fused_experts.main_loop import ExpertLoop
from gemmill.families.fused_experts.ops import FUSED_EXPERTS
from gemmill.families.fused_experts.reference import GATE_UP, INTERLEAVED, UP_GATE
from gemmill.numerics.cases import CaseOutcome, SpecCase
from gemmill.numerics.memory import GUARD_BYTES, GUARD_ROWS, Memory, Slot
from gemmill.runtime.schemas import NAMESPACE
from gemmill.vocab.activation import Activation


@dataclass(frozen=True, kw_only=True)
class ExpertsCase(SpecCase):
    """A spec with its computation and comparison."""

    spec: CallSpec

    def arguments(self, device: str) -> list[Any]:
        """Arguments in the order of the op's schema. The op's outputs hold poison."""
        return arguments_of(self._made(device)[0])

    def _made(self, device: str) -> tuple[dict[str, Any], Memory]:
        p, where = self.spec, torch.device(device)
        given = make_given(p, where)
        strides = (p.hidden + p.pad, 1)
        slots = {"out": Slot.matrix(given["x"].dtype, (p.tokens, p.hidden), strides, values=None, written=True)}
        if p.lent:
            sizes = p.tokens, p.hidden, p.inner, p.topk, p.weights
            count = fused_experts_workspace(
                *sizes,
                coded=p.dtype is CODED or (p.packing is not None and p.packing.is_coded),
                packed=p.packing is not None,
            )
            slots["workspace"] = Slot.matrix(torch.uint8, (1, count), (count, 1), values=None, written=True, shift=1)
        memory = Memory(slots, where, GUARD_BYTES + GUARD_ROWS * (p.hidden + p.pad) * given["x"].element_size())
        if p.adds:
            memory.tensor("out").copy_(given["x"].flip(0))
        written = {"out": memory.tensor("out")}
        if p.lent:
            written["workspace"] = memory.tensor("workspace").view(-1)
        return given | written, memory

    def run(self, device: str) -> CaseOutcome:
        """Call the op twice on fresh operands, and hold the result against the reference. Both calls give the same bits."""
        given, memory = self._made(device)
        wanted = wanted_of(
            given, exactly=self.spec.data == "integers", by_warps=self.spec.by_warps, fused=self.spec.fused
        )
        before, out = memory.bytes.clone(), given["out"]
        first = out.clone()
        op = getattr(getattr(torch.ops, NAMESPACE), self.op).default
        op(*arguments_of(given))
        first, again = out.clone(), first
        if self.spec.adds:
            out.copy_(again)
        op(*arguments_of(given))
        comparison = wanted.compare(out)
        report = comparison.report
        if not report and not torch.equal(first.view(torch.int16), out.view(torch.int16)):
            report = "the same call gave other bits when it was made again"
        if not report and (changed := memory.changed(before, written=True)).any():
            report = memory.places(changed)
        return CaseOutcome(report=report, worst_fraction=comparison.worst_fraction)


def of_config(config: AnyConfig) -> Iterator[ExpertsCase]:
    """Calls that cover a variant: numbers of tokens below, at and across a tile, and maps, biases and a workspace of one's own.

    Some tokens have no experts. It also covers activations and both places of the router's weight.
    """
    first, tile = _first(config), config.tile_tokens
    step = config.group_size or (16 if config.packing is None else config.packing.multiple)
    specs: tuple[CallSpec, ...] = (
        replace(first, tokens=1, hidden=256, inner=2 * GROUP, weights=4, topk=2),
        replace(first, tokens=tile + 3, hidden=400, inner=3 * step, weights=3, topk=2, mapped=(2, -1, 0, 1), pad=16),
        replace(
            first,
            tokens=3 * tile,
            hidden=16,
            inner=step,
            weights=2,
            topk=6,
            mapped=(0, 1, 0, 1, 1, 0, -1),
            adds=True,
            wide_ids=True,
            order=UP_GATE,
        ),
        replace(
            first,
            tokens=2 * tile + 5,
            hidden=272,
            inner=2 * step,
            weights=512,
            topk=10,
            biased=True,
            activation=Activation.SWIGLU,
        ),
        replace(
            first, tokens=tile, hidden=1040, inner=step, weights=5, topk=1, weight_on_input=True, routed=ONE, lent=True
        ),
        replace(
            first, tokens=16, hidden=528, inner=2 * step, weights=2, topk=2, biased=True, lent=True
        ),  # a pair a lane
        replace(first, tokens=4, hidden=64, inner=step, weights=1, topk=1, routed=NONE),
        replace(first, tokens=6, hidden=64, inner=step, weights=1, topk=1, routed=NONE, adds=True),
        replace(
            first,
            tokens=9,
            hidden=144,
            inner=5 * step,
            weights=40,
            topk=33,
            mapped=tuple(range(40)),
            activation=Activation.GELU,
        ),
        replace(
            first, tokens=200, hidden=128, inner=step, weights=16, topk=8, activation=Activation.GELU_TANH, lent=True
        ),
    )
    if isinstance(config, PackedExpertsConfig):
        specs = tuple(_packed(spec, config) for spec in specs)
    for i, spec in enumerate(specs):
        yield ExpertsCase(spec=replace(spec, data="integers"))
        if i < 4:
            yield ExpertsCase(spec=spec)
    if isinstance(config, PackedExpertsConfig) and config.packing.is_coded:  # rows longer than a warp holds
        spec = replace(first, tokens=tile + 3, hidden=64, inner=_LONG, weights=2, topk=1)
        yield ExpertsCase(spec=_packed(spec, config))
        yield ExpertsCase(spec=replace(_packed(spec, config), data="integers"))
    if isinstance(config, PackedExpertsConfig) and config.main_loop is ExpertLoop.BOXED:
        # Either product has several bands of tiles.
        for hidden, inner in ((_BANDED, step), (4 * step, _BANDED)):
            spec = replace(first, tokens=24, hidden=hidden, inner=inner, weights=_MOST_PACKED, topk=4)
            yield ExpertsCase(spec=replace(_packed(spec, config), data="integers"))
    if not config.group_size and config.packing is None:
        yield ExpertsCase(spec=replace(first, tokens=7, hidden=48, inner=80, weights=3, topk=2, order=INTERLEAVED))
    if config.dtype is CODED and not config.group_size:
        yield ExpertsCase(spec=replace(first, tokens=7, hidden=48, inner=48, weights=3, topk=2, of_experts=True))


_LONG = 2080
"""Columns of a row that a warp codes in several steps."""
_BANDED = 8192
"""Columns along K of which 16 tiles of 32 rows, or fewer of more, are a band (kernels/fused_experts/persistent_upcast.cuh)."""
_MOST_PACKED = 40
"""The most experts in a case with packed weights: packing takes the host longer than all else."""


def _packed(spec: CallSpec, config: PackedExpertsConfig) -> CallSpec:
    """The spec with rows of whole groups, each gate before its up, and few enough experts to pack them in time."""
    hidden = -(-spec.hidden // config.packing.multiple) * config.packing.multiple
    return replace(spec, hidden=hidden, order=INTERLEAVED, weights=min(spec.weights, _MOST_PACKED))


def sized(config: AnyConfig, sizes: Mapping[str, int]) -> ExpertsCase:
    """A call of small integers. Raises ValueError for sizes that the op has no room for."""
    first = _first(config)
    return ExpertsCase(
        spec=replace(
            first, tokens=sizes["m"], hidden=sizes["k"], inner=sizes["n"] // 2, weights=4, topk=2, data="integers"
        )
    )


def _first(config: AnyConfig) -> CallSpec:
    return CallSpec(
        tokens=1,
        hidden=128,
        inner=128,
        weights=2,
        topk=1,
        dtype=config.dtype,
        out_dtype=config.out_dtype,
        group_size=config.group_size,
        packing=config.packing,
        order=GATE_UP if config.packing is None else INTERLEAVED,
        by_warps=isinstance(config, ExpertsConfig) and not config.streamed and not config.apart,
        fused=not config.apart and not config.streamed,
    )


def once() -> Iterator[tuple[str, ExpertsCase]]:
    """One call of the op, with scales of blocks."""
    spec = CallSpec(tokens=5, hidden=256, inner=256, weights=8, topk=2, group_size=GROUP)
    yield f"{FUSED_EXPERTS.name} with groups", ExpertsCase(spec=spec)
