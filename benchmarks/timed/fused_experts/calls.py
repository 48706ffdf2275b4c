"""Which layers of experts are timed, and their arguments."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from gemmill.families.fused_experts.config import FINE_GROUP, GROUP
from gemmill.families.fused_experts.packing import PACKINGS, Packing
from gemmill.formats.layout import SIDE
from gemmill.formats.sparse_blocks import CODE_BYTES, PLACE_BYTES
from gemmill.formats.sparse_fp4 import PATTERNS
from gemmill.vocab import Format
from timed.workload import Kind, Workload, any_size

LAYERS = {
    "qwen3-30b-a3b": (128, 8, 2048, 768),
    "qwen3-next": (512, 10, 2048, 512),
    "deepseek-v3/8": (32, 8, 7168, 2048),
    "deepseek-v4-flash": (256, 6, 4096, 2048),
    "deepseek-v4.1": (384, 6, 5120, 2304),
}
"""Experts, experts of a token, columns of x, and results of the first product."""
TOKENS = (1, 4, 16, 64, 256, 1024)
FINE = "fp8_groups_32"
"""Weights of e4m3 with scales of blocks of 32 x 32."""
BASE = 2.0**-4
"""Of all rows of packed weights."""
DRAWN_EXPERTS, DRAWN_TOP, DRAWN_STEP = (8, 16, 32, 64, 128, 256, 512), (1, 2, 4, 6, 8, 10), 128
DRAWN_HIDDEN, DRAWN_INNER, DRAWN_ELEMENTS = (1024, 8192), (256, 16384), 1 << 33
"""Least and most of the sizes of random layers; elements of the weights of all experts at most."""
FEWEST_COPIES, MOST_COPIES, COPIED_TOKENS = 2, 16, 64
TINY = (4, 2, 256, 128)


@dataclass(frozen=True, kw_only=True)
class ExpertsKind(Kind):
    """Weights of a type: `tokens` of one layer, each with `top` experts of its own of `experts`, at `hidden` and `inner`."""

    dtype: torch.dtype = torch.uint8
    """Of weights."""
    group_size: int = 0
    """Elements of a row, and rows of weights, that share a scale; 0 where no scales are of blocks."""
    packing: Packing | None = None
    """Of packed weights."""

    @property
    def grouped(self) -> bool:
        """Whether scales are of blocks of 128 x 128."""
        return self.group_size == GROUP

    @property
    def coded(self) -> bool:
        """Whether weights are e4m3 as checkpoints have them."""
        return self.dtype is torch.float8_e4m3fn

    @property
    def format(self) -> Format | None:
        """Of packed weights."""
        return None if self.packing is None else self.packing.format

    def sizes(self, p: Workload) -> dict[str, int]:
        """By name."""
        return {"m": p.tokens, "experts": p.experts, "top": p.top, "k": p.hidden, "inner": p.inner}

    def flops(self, p: Workload) -> float:
        """Multiplications and additions."""
        return 6.0 * p.tokens * p.top * p.hidden * p.inner

    def bytes(self, p: Workload) -> int:
        """Weights of experts that have rows, x and the result."""
        of_weight = self.dtype.itemsize if self.packing is None else self.packing.bits / 8
        return int(active(p) * 3 * p.hidden * p.inner * of_weight) + 4 * p.tokens * p.hidden

    def text(self, p: Workload) -> str:
        """The sizes in words."""
        return f"{p.tokens} tokens, top {p.top} of {p.experts} x 3 x {p.hidden} x {p.inner}"


def active(p: Workload) -> float:
    """Experts that have rows, in the mean of random routings."""
    found: float = p.experts * (1 - (1 - p.top / p.experts) ** p.tokens)
    return found


PACKED = tuple(map(str, PACKINGS))
"""Weights of 4 bits: with activations of bf16, or folded into e4m3 for such activations; dense, or 2:4 sparse."""
KINDS = {
    kind.name: kind
    for kind in (
        ExpertsKind(name="fp8_groups", dtype=torch.float8_e4m3fn, group_size=GROUP),
        ExpertsKind(name=FINE, dtype=torch.float8_e4m3fn, group_size=FINE_GROUP),
        ExpertsKind(name="fp8", dtype=torch.float8_e4m3fn),
        ExpertsKind(name="bf16", dtype=torch.bfloat16),
        *(ExpertsKind(name=str(packing), packing=packing) for packing in PACKINGS),
    )
}


@dataclass(frozen=True, kw_only=True)
class ExpertsOperands:
    """The operands of one layer; copies differ in their routing."""

    workload: Workload
    out: Tensor
    x: Tensor
    w13: Tensor
    w2: Tensor
    w13_scales: Tensor | None
    w2_scales: Tensor | None
    ids: tuple[Tensor, ...]
    """int32 [tokens, top], of each copy."""
    weights: Tensor

    @property
    def copies(self) -> int:
        """How many there are."""
        return len(self.ids)


class ExpertsMaker:
    """Makes operands: normal random numbers. It keeps the last layer's weights."""

    def __init__(self, device: torch.device, _rotated_bytes: int) -> None:
        self._device = device
        self._key: tuple[object, ...] = ()
        self._kept: tuple[Tensor, ...] = ()
        self._generator = torch.Generator(device=device).manual_seed(0)

    def make(self, workload: Workload) -> ExpertsOperands:
        """Of a workload."""
        p = workload
        key = (p.of.dtype, p.of.packing, p.experts, p.hidden, p.inner)
        if key != self._key:
            self._kept, self._key = (), key
            self._kept = self._weights(p, 2 * p.inner, p.hidden), self._weights(p, p.hidden, p.inner)
        count = min(MOST_COPIES, max(FEWEST_COPIES, COPIED_TOKENS // p.tokens))
        return ExpertsOperands(
            workload=p,
            out=torch.empty((p.tokens, p.hidden), dtype=torch.bfloat16, device=self._device),
            x=self._normal(p.tokens, p.hidden).bfloat16(),
            w13=self._kept[0],
            w2=self._kept[1],
            w13_scales=self._scales(p, 2 * p.inner, p.hidden),
            w2_scales=self._scales(p, p.hidden, p.inner),
            ids=tuple(self._routed(p) for _ in range(count)),
            weights=torch.rand(p.tokens, p.top, device=self._device, generator=self._generator),
        )

    def _routed(self, p: Workload) -> Tensor:
        order = torch.rand(p.tokens, p.experts, device=self._device, generator=self._generator)
        return order.topk(p.top, dim=1).indices.int()

    def _weights(self, p: Workload, rows: int, columns: int) -> Tensor:
        if p.of.packing is not None:
            return self._packed(p, p.of.packing, rows, columns)
        made = torch.empty((p.experts, rows, columns), dtype=p.of.dtype, device=self._device)
        for one in made:
            one.copy_(self._normal(rows, columns).to(p.of.dtype))
        return made

    def _packed(self, p: Workload, packing: Packing, rows: int, columns: int) -> Tensor:
        """Blocks of any codes, kept at any places of sparse weights, with scales of an eighth to one."""
        made = torch.empty(packing.blocks_shape(p.experts, rows, columns), dtype=torch.uint8, device=self._device)
        least, step = _SCALE_BYTES[p.kind]
        scales = CODE_BYTES + PLACE_BYTES if packing.sparse_group else SIDE * packing.block_columns // 2
        for blocks in made:
            blocks.random_(0, 256, generator=self._generator)
            blocks[..., scales:].random_(0, 4, generator=self._generator).mul_(step).add_(least)
            if packing.sparse_group:
                blocks[..., CODE_BYTES:scales] = self._places(blocks[..., CODE_BYTES:scales])
        return made

    def _places(self, bytes_: Tensor) -> Tensor:
        """Bytes of the places of two groups, of any bytes."""
        legal = torch.tensor([x | y << 2 for x, y in PATTERNS], dtype=torch.uint8, device=self._device)
        low, high = (legal[part.int() % len(PATTERNS)] for part in (bytes_ & 15, bytes_ >> 4))
        return low | high << 4

    def _scales(self, p: Workload, rows: int, columns: int) -> Tensor | None:
        if p.of.dtype is torch.bfloat16:
            return None
        if p.of.packing is not None:
            return torch.full((p.experts, rows), BASE, device=self._device)
        shape: tuple[int, ...] = (p.experts, rows)
        if g := p.of.group_size:
            shape = p.experts, -(-rows // g), -(-columns // g)
        return torch.rand(shape, device=self._device, generator=self._generator) * 0.02 + 0.005

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self._device, generator=self._generator)


_SCALE_BYTES = {"nvfp4": (64, 8), "mxfp4": (124, 1), "mxfp4_e4m3": (40, 8), "nvfp4_e4m3": (152, 8)}
_SCALE_BYTES |= dict.fromkeys(("nvfp4_2to4", "nvfp4_2to4_8"), _SCALE_BYTES["nvfp4"])
"""The byte of a scale of an eighth in blocks of each kind, and the step that doubles it (docs/formats.md)."""


def workloads_of(options: Namespace) -> list[Workload]:
    """Every layer, or random ones, with every number of tokens. Raises ValueError."""
    kinds, layers = options.op.split(","), options.layers.split(",")
    for what, asked, known in (("op", kinds, KINDS), ("layer", layers, LAYERS)):
        if unknown := [word for word in asked if word not in known]:
            raise ValueError(f"{what} {unknown[0]!r} is none of {', '.join(known)}")
    tokens = TOKENS if options.tokens is None else tuple(map(int, options.tokens.split(",")))
    sizes = [LAYERS[layer] for layer in layers]
    if options.draw is not None:
        random = Random(options.draw)
        sizes = [_drawn(random) for _ in range(options.draws)]
    return [workload_of(kind, layer, m) for layer in sizes for kind in kinds for m in tokens]


def _drawn(random: Random) -> tuple[int, int, int, int]:
    """A layer's experts, experts of a token, columns of x, and results: each as likely to be twice as large at any size."""
    while True:
        experts, top = random.choice(DRAWN_EXPERTS), random.choice(DRAWN_TOP)
        hidden, inner = (
            DRAWN_STEP * round(any_size(random, *sizes) / DRAWN_STEP) for sizes in (DRAWN_HIDDEN, DRAWN_INNER)
        )
        if top < experts and 3 * experts * hidden * inner <= DRAWN_ELEMENTS:
            return experts, top, hidden, inner


def workload_of(kind: str, layer: tuple[int, int, int, int], tokens: int) -> Workload:
    experts, top, hidden, inner = layer
    return KINDS[kind].at(experts=experts, top=top, hidden=hidden, inner=inner, tokens=tokens)


def tiny(workload: Workload) -> Workload:
    experts, top, hidden, inner = TINY
    return workload.resized(experts=experts, top=top, hidden=hidden, inner=inner, tokens=min(workload.tokens, 9))


def add_options(parser: ArgumentParser) -> None:
    """Of fused experts alone."""
    parser.add_argument("--op", "--ops", default="fp8_groups", help=f"kinds, with commas, of {', '.join(KINDS)}")
    parser.add_argument("--layers", default="qwen3-30b-a3b", help=f"with commas, of {', '.join(LAYERS)}")
    parser.add_argument("--tokens", help=f"with commas; {', '.join(map(str, TOKENS))} by default")
    parser.add_argument("--draw", type=int, metavar="SEED", help="draw layers in place of those with names")
    parser.add_argument("--draws", type=int, default=10, help="how many are drawn")
