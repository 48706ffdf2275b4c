"""The timed sides of layers of experts: gemmill's op, its other ops one after the other, and vLLM's Triton kernel with its helpers."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gemmill
from gemmill.families.fused_experts import NAME
from gemmill.families.fused_experts.bounds import judged
from gemmill.families.fused_experts.packing import PACKINGS
from gemmill.families.fused_experts.reference import INTERLEAVED, Layer
from gemmill.families.fused_experts.serving import layer_of
from gemmill.runtime.library import Build
from gemmill.vocab.format import NVFP4
from harness import foreign_source
from harness.contenders import CheckedCalls, WrongResult
from timed.fused_experts.calls import FINE, ExpertsOperands
from timed.workload import Workload

CHECKED_TOKENS = 2
"""The last ones: whole layers take float64 too long."""


class _Timed(CheckedCalls):
    loosely = False

    def check(self, operands: ExpertsOperands, call: Callable[[], object]) -> None:
        check(operands, call, loosely=self.loosely)


@dataclass(frozen=True, kw_only=True)
class ExpertsContender(_Timed):
    """The op of one namespace."""

    name: str
    namespace: str
    complete: bool = True

    def takes(self, workload: Workload) -> bool:
        """Whether the namespace has the op."""
        return hasattr(getattr(torch.ops, self.namespace), self._op(workload))

    def call(self, operands: ExpertsOperands, i: int) -> partial[object]:
        """A call with its arguments bound."""
        x, packing = operands, operands.workload.of.packing
        op = getattr(getattr(torch.ops, self.namespace), self._op(x.workload)).default
        given = x.out, x.x, x.w13, x.w2, x.w13_scales, x.w2_scales, x.ids[i], x.weights
        numbers = () if packing is None else (PACKINGS.index(packing), INTERLEAVED)
        return partial(op, *given, "silu", 1.0, float("inf"), 0.0, *numbers)

    @staticmethod
    def _op(workload: Workload) -> str:
        return "fused_experts" if workload.of.packing is None else "fused_fp4_experts"


@dataclass(frozen=True, kw_only=True)
class ExpertsWay(ExpertsContender):
    """The op, answered in one of two ways: by the variant that the model would choose if there were no other way."""

    apart: bool
    """Whether both products are grouped GEMMs."""
    complete: bool = False

    def takes(self, workload: Workload) -> bool:
        """Whether the build has a variant that goes this way."""
        return workload.of.packing is None and any(
            self._goes(entry.config) and entry.config.group_size == workload.of.group_size
            for entry in gemmill.variants(op=self._op(workload))
        )

    def pinned(self, operands: ExpertsOperands) -> AbstractContextManager:
        """The variant's."""
        return gemmill.use_variant(self._variant(operands))

    def _variant(self, operands: ExpertsOperands) -> str:
        call, op = self.call(operands, 0), self._op(operands.workload)
        choice = gemmill.explain(op, *call.args)
        known = {entry.name: entry.config for entry in gemmill.variants(op=op)}
        expected = {rejected.name: rejected.us for rejected in choice.trace if rejected.us is not None}
        expected |= {} if choice.entry is None else {choice.entry.name: 0.0}
        fitting = [name for name in expected if self._goes(known[name])]
        if not fitting:
            raise RuntimeError(f"no variant of {self.name!r} takes {operands.workload}")
        return min(fitting, key=expected.__getitem__)

    def _goes(self, config: Any) -> bool:
        return bool(config.apart) is self.apart


@dataclass(frozen=True, kw_only=True)
class ExpertsVariant(ExpertsContender):
    """The op, answered by one variant."""

    config: Any

    def takes(self, workload: Workload) -> bool:
        """Whether the variant has the workload's weights, of its order of scales, and 16-bit results of its type."""
        config = self.config
        of_weights = (config.packing, config.group_size, config.dtype.torch_name, config.out_dtype.torch_name)
        of = workload.of
        asked = (of.packing, of.group_size, str(of.dtype).removeprefix("torch."), "bfloat16")
        return of_weights == asked

    def pinned(self, operands: ExpertsOperands) -> AbstractContextManager:
        """The variant's."""
        return gemmill.use_variant(self.name)


def variants_of(build: Build | None) -> list[ExpertsVariant]:
    """Every variant of a build."""
    entries = [] if build is None else build.manifest.entries
    return [
        ExpertsVariant(name=entry.name, namespace="gemmill", config=entry.config)
        for entry in entries
        if entry.family == NAME
    ]


@dataclass(frozen=True, kw_only=True)
class ExpertsPeer(_Timed):
    """Another project's whole layer. Its result is rounded elsewhere."""

    name: str
    bind: Callable[[ExpertsOperands, int], Callable[[], object]]
    """A call of one copy of operands with its arguments bound."""
    kinds: tuple[str, ...]
    complete: bool = True
    loosely = True

    def takes(self, workload: Workload) -> bool:
        """Whether weights are of one of its kinds."""
        return workload.kind in self.kinds

    def call(self, operands: ExpertsOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        return self.bind(operands, i)


@dataclass(frozen=True, kw_only=True)
class OneAfterTheOther(_Timed):
    """The layer by ops that do a part each, as a user of grouped GEMMs writes it. Its result is rounded more often."""

    name: str = "ops one after the other"
    complete: bool = False
    loosely = True

    def takes(self, workload: Workload) -> bool:
        """Whether scales are of blocks of 128 x 128."""
        return workload.of.grouped

    def call(self, operands: ExpertsOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        return partial(self._layer, operands, operands.ids[i])

    @staticmethod
    def _layer(x: ExpertsOperands, ids: Tensor) -> None:
        ops, p = torch.ops.gemmill, x.workload
        order = ids.flatten().argsort(stable=True)
        experts = torch.arange(p.experts + 1, device=ids.device, dtype=torch.int32)
        offsets = torch.searchsorted(ids.flatten()[order], experts, out_int32=True)
        tokens = (order // p.top).int()
        codes, scales = _coded(x.x)
        rows = tokens.numel()
        product = x.x.new_empty((rows, 2 * p.inner))
        ops.grouped_mm.default(product, codes, x.w13, scales, x.w13_scales, offsets, None, tokens)
        inner = torch.empty((rows, p.inner), dtype=torch.float8_e4m3fn, device=ids.device)
        inner_scales = torch.empty((rows, p.inner // 128), device=ids.device)
        ops.silu_and_mul_per_block_quant.default(inner, product, inner_scales, 128)
        parts = x.x.new_empty((rows, p.hidden))
        ops.grouped_mm.default(parts, inner, x.w2, inner_scales, x.w2_scales, offsets, None)
        weighed = parts[order.argsort()].view(p.tokens, p.top, p.hidden).float() * x.weights[..., None]
        x.out.copy_(weighed.sum(dim=1))


@dataclass(frozen=True, kw_only=True)
class TwoProducts(CheckedCalls):
    """Both grouped GEMMs of the layer alone, on rows in the order of experts that are codes already. Its results are not the layer's, so
    nothing checks them."""

    name: str = "two products alone"
    complete: bool = False

    def takes(self, workload: Workload) -> bool:
        """Whether the grouped GEMMs multiply such weights."""
        packing = workload.of.packing
        return packing is None or not (packing.sparse_group or (packing.is_coded and packing.format == NVFP4))

    def call(self, operands: ExpertsOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        x, p = operands, operands.workload
        counts = torch.bincount(x.ids[i].flatten(), minlength=p.experts)
        offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
        of_weights = (x.w13, x.w13_scales, 2 * p.inner, p.hidden), (x.w2, x.w2_scales, p.hidden, p.inner)
        first, second = (self._product(p, offsets, *given) for given in of_weights)

        def both() -> None:
            first()
            second()

        return both

    def check(self, operands: ExpertsOperands, call: Callable[[], object]) -> None:
        """Nothing."""

    @staticmethod
    def _product(
        p: Workload, offsets: Tensor, weights: Tensor, scales: Tensor | None, n: int, k: int
    ) -> Callable[[], object]:
        rows, group, packing, device = p.tokens * p.top, p.of.group_size, p.of.packing, weights.device
        coded = p.of.coded or (packing is not None and packing.is_coded)
        a = torch.randn((rows, k), device=device).to(torch.float8_e4m3fn if coded else torch.bfloat16)
        a_scales = torch.ones((-(-k // group) if group else 1, rows), device=device).t() if coded else None
        given = torch.empty((rows, n), dtype=torch.bfloat16, device=device), a, weights, a_scales, scales
        ops = torch.ops.gemmill
        if packing is None:
            return partial(ops.grouped_mm.default, *given, offsets, None)
        return partial(ops.grouped_fp4_mm.default, *given, None, None, offsets, None, None, str(packing.format))


def _coded(x: Tensor) -> tuple[Tensor, Tensor]:
    codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((x.shape[0], x.shape[1] // 128), device=x.device)
    torch.ops.gemmill.per_token_group_fp8_quant.default(
        x, codes, scales, 128, 1e-10, -448.0, 448.0, False, False, False
    )
    return codes, scales


@dataclass(frozen=True, kw_only=True)
class VllmTriton(_Timed):
    """vLLM's fused_moe_kernel, read from its file, with the kernels that vLLM calls around it: codes, sorting, activation, codes, sum.
    Tile sizes are those of the JSON file of this layer and device next to it; FP8 in blocks without a file has vLLM's default."""

    name: str
    source: Path
    complete: bool = True
    loosely = True

    def takes(self, workload: Workload) -> bool:
        """Whether scales are of blocks, or vLLM has a file of tile sizes for the layer in bf16."""
        return bool(workload.of.group_size) or (workload.kind == "bf16" and self._sizes(workload).is_file())

    def call(self, operands: ExpertsOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        p = operands.workload
        if p.kind == FINE or not self._sizes(p).is_file():
            return partial(self._layer, _kernel(self.source), _default_sizes(p), operands, operands.ids[i])
        sizes = json.loads(self._sizes(p).read_text())
        nearest = min((int(m) for m in sizes if m.isdigit()), key=lambda m: abs(m - p.tokens))
        return partial(self._layer, _kernel(self.source), sizes[str(nearest)], operands, operands.ids[i])

    def _sizes(self, p: Workload) -> Path:
        kind = ",dtype=fp8_w8a8,block_shape=[128,128]" if p.of.grouped else ""
        return self.source.parent / f"E={p.experts},N={p.inner},device_name=NVIDIA_H200{kind}.json"

    @staticmethod
    def _layer(kernel: Any, sizes: dict[str, int], x: ExpertsOperands, ids: Tensor) -> None:
        p, ops = x.workload, torch.ops._C
        sorted_ids, experts, padded = _aligned(ids, p.experts, sizes["BLOCK_SIZE_M"])
        codes, scales = _coded_by_vllm(x.x, p.of.group_size) if p.of.group_size else (x.x, None)
        product = x.x.new_empty((p.tokens, p.top, 2 * p.inner))
        routing, first = (sorted_ids, experts, padded), (codes, scales, x.w13, x.w13_scales, product)
        _multiply(kernel, sizes, first, routing, None, p.top, p.of.group_size)
        inner = x.x.new_empty((p.tokens * p.top, p.inner))
        ops.silu_and_mul.default(inner, product.view(-1, 2 * p.inner))
        codes, scales = _coded_by_vllm(inner, p.of.group_size) if p.of.group_size else (inner, None)
        parts = x.x.new_empty((p.tokens, p.top, p.hidden))
        second = codes, scales, x.w2, x.w2_scales, parts
        _multiply(kernel, sizes, second, routing, x.weights, 1, p.of.group_size)
        torch.ops._moe_C.moe_sum.default(parts, x.out)


def _default_sizes(p: Workload) -> dict[str, int]:
    """Tiles as vLLM 0.33.0 takes them for FP8 in blocks where it has no file."""
    of_warps = {"num_warps": 4, "num_stages": 3}
    rows = {"BLOCK_SIZE_M": 16 if p.tokens <= 64 else 64, "GROUP_SIZE_M": 1 if p.tokens <= 16 else 32}
    return {**rows, "BLOCK_SIZE_N": p.of.group_size, "BLOCK_SIZE_K": p.of.group_size, **of_warps}


def _kernel(source: Path) -> Any:
    """The Triton kernel of the file, with the one that it calls."""
    import triton
    import triton.language as tl

    wanted = ("write_zeros_to_output", "fused_moe_kernel")
    return foreign_source.read(source, {"triton": triton, "tl": tl}, wanted)["fused_moe_kernel"]


def _aligned(ids: Tensor, experts: int, block: int) -> tuple[Tensor | None, Tensor, Tensor]:
    """As vLLM prepares it: of few tokens each pair is a block of its own."""
    count = ids.numel()
    if count * 4 <= experts:
        return None, ids.view(-1), torch.full((1,), count * block, dtype=torch.int32, device=ids.device)
    most = min(count + experts * (block - 1), count * block)
    sorted_ids = torch.empty((most,), dtype=torch.int32, device=ids.device)
    whose = torch.empty((-(-most // block),), dtype=torch.int32, device=ids.device)
    padded = torch.empty((1,), dtype=torch.int32, device=ids.device)
    torch.ops._moe_C.moe_align_block_size.default(ids, experts, block, sorted_ids, whose, padded, None)
    return sorted_ids, whose, padded


def _coded_by_vllm(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((x.shape[0], x.shape[1] // size), device=x.device)
    torch.ops._C.per_token_group_fp8_quant.default(x, codes, scales, size, 1e-10, -448.0, 448.0, False, False, False)
    return codes, scales


def _multiply(
    kernel: Any,
    sizes: dict[str, int],
    operands: tuple[Any, ...],
    routing: tuple[Tensor | None, Tensor, Tensor],
    weights: Tensor | None,
    top: int,
    group: int,
) -> None:
    import triton.language as tl

    (a, a_scales, b, b_scales, c), (sorted_ids, experts, padded) = operands, routing
    pairs, block = a.shape[0] * top, sizes["BLOCK_SIZE_M"]
    rows = pairs * block if sorted_ids is None else min(sorted_ids.numel(), pairs * block)
    grid = (-(-rows // block) * -(-b.shape[1] // sizes["BLOCK_SIZE_N"]),)
    coded, strides = (
        a_scales is not None,
        (*a.stride(), b.stride(0), b.stride(2), b.stride(1), c.stride(1), c.stride(2)),
    )
    if coded:
        strides += (*a_scales.stride(), b_scales.stride(0), b_scales.stride(2), b_scales.stride(1), 0, 0, group, group)
    else:
        strides += (0,) * 9
    kernel[grid](
        a, b, c, None, a_scales, b_scales, weights, sorted_ids, experts, padded, b.shape[1], b.shape[2], rows, pairs, *strides,
        MUL_ROUTED_WEIGHT=weights is not None, top_k=top, compute_type=tl.bfloat16, use_fp8_w8a8=coded, use_int8_w8a8=False,
        use_int8_w8a16=False, per_channel_quant=False, naive_block_assignment=sorted_ids is None, HAS_BIAS=False,
        SWAP_AB=coded and block < 64 <= sizes["BLOCK_SIZE_N"], USE_TD=False, SPLIT_K=1, **sizes,
    )  # fmt: skip


def check(operands: ExpertsOperands, call: Callable[[], object], *, loosely: bool) -> None:
    """Hold the last tokens of a result against the reference, or loosely: within 5 % of its length. Raises WrongResult."""
    x = operands
    x.out.fill_(torch.nan)
    call()
    rows = slice(-CHECKED_TOKENS, None)
    wanted, found = judged(_layer_of(x, rows), None, exactly=False), x.out[rows].double()
    error = (found - wanted.exact).abs()
    right = float(error.norm()) <= 0.05 * float(wanted.exact.norm()) if loosely else bool((error <= wanted.bound).all())
    if not right:
        raise WrongResult(
            f"wrong result of {x.workload}: {float(error.norm() / wanted.exact.norm()):.3g} of its length away"
        )


def _layer_of(x: ExpertsOperands, rows: slice) -> Layer:
    """Of some tokens; of packed weights those that these tokens meet are decoded."""
    of_tokens = {"x": x.x[rows], "topk_weights": x.weights[rows]}
    if (packing := x.workload.of.packing) is None:
        of_weights = {name: getattr(x, name) for name in _WEIGHTS}
        return Layer(**of_tokens, **of_weights, topk_ids=x.ids[0][rows])
    used, ids = x.ids[0][rows].unique(return_inverse=True)
    of_weights = {name: getattr(x, name)[used] for name in _WEIGHTS}
    told = {"activation": "silu", "format": PACKINGS.index(packing), "order": INTERLEAVED}
    return layer_of(of_tokens | of_weights | told | {"topk_ids": ids.int()})


_WEIGHTS = ("w13", "w2", "w13_scales", "w2_scales")
