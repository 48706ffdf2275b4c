"""Which grouped GEMMs are timed, and their arguments."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from random import Random

import torch
from torch import Tensor

from gemmill.families.grouped_mm.sweep import SWEEP, MeasuredOp
from gemmill.formats.layout import BLOCK_COLUMNS, SIDE, STAGE_COLUMNS
from gemmill.vocab import Format
from gemmill.vocab.format import NVFP4
from timed.workload import Kind, Workload, any_size

LAYERS = (
    (32, 8, 4096, 7168),
    (32, 8, 7168, 2048),
    (8, 2, 28672, 4096),
    (8, 2, 4096, 14336),
    (128, 8, 1536, 2048),
    (128, 8, 2048, 768),
)
"""Experts, experts of a token, N and K."""
V41_LAYERS = ((384, 6, 4608, 5120), (384, 6, 5120, 2304))
"""DeepSeek V4.1's experts, whose scales are in groups of 32. bf16 is timed next to them."""
SMALL_LAYERS = ((512, 10, 1024, 2048), (512, 10, 2048, 512))
"""Of packed weights too."""
TOKENS = (1, 16, 128, 1024, 8192)
NUMBERS = ("fp8", "fp8_groups", "bf16")
FINE = "fp8_groups_32"
ROUTINGS = ("even", "random", "skewed")
"""How tokens choose: in turn, any expert alike, or some experts far more often than others."""
SKEW = 1.0
"""Deviation of the logarithm of how often an expert is chosen."""
DRAWN_EXPERTS, DRAWN_TOP, DRAWN_STEP = (8, 16, 32, 64, 128, 256), (2, 4, 6, 8), 128
DRAWN_SIZES, DRAWN_TOKENS, DRAWN_ELEMENTS = (512, 16384), (1, 8192), 1 << 30
"""Least and most of N and K, and of tokens; elements of the weights of all experts at most."""
FEWEST_COPIES, MOST_COPIES = 2, 16
COPIED_ROWS = 256
"""Rows of all copies together, but for the fewest: routings differ, so that few experts are other ones each time."""
TINY = (4, 2, 64, 128)


@dataclass(frozen=True, kw_only=True)
class MoeKind(Kind):
    """Grouped GEMMs of a measured class, of which the tuner's sweep knows the rest: `tokens` of one layer, dealt to experts by a
    routing."""

    op: MeasuredOp

    @property
    def group_size(self) -> int:
        """Elements along K, and rows of weights, that share a scale; 0 for scales of channels."""
        return self.op.group_size

    @property
    def dtype(self) -> torch.dtype:
        """Of activations, and of unpacked weights."""
        found: torch.dtype = getattr(torch, self.op.dtype.torch_name)
        return found

    @property
    def format(self) -> Format | None:
        """Of packed weights."""
        return self.op.weights

    @property
    def scaled(self) -> bool:
        """Whether activations have scales."""
        return self.dtype.itemsize == 1

    def sizes(self, p: Workload) -> dict[str, int]:
        """Those of the measured class."""
        return {"m": rows_of(p), "n": p.n, "k": p.k, "experts": p.experts}

    def flops(self, p: Workload) -> float:
        """Multiplications and additions."""
        return _MEASURED[self.op].flops(p.sizes)

    def bytes(self, p: Workload) -> int:
        """Weights of experts that can have rows, activations, results."""
        return _MEASURED[self.op].bytes(p.sizes)

    def text(self, p: Workload) -> str:
        """The sizes in words."""
        return f"{p.tokens} tokens, top {p.top} of {p.experts} x {p.n} x {p.k}, {p.routing}"


_MEASURED = {measured.name: measured for measured in SWEEP.measured}
KINDS = {
    name: MoeKind(name=name, op=op)
    for name, op in (
        ("fp8", MeasuredOp.FP8),
        ("fp8_groups", MeasuredOp.FP8_GROUPS),
        ("bf16", MeasuredOp.BF16),
        (FINE, MeasuredOp.FP8_GROUPS_32),
        ("nvfp4", MeasuredOp.NVFP4_BF16),
        ("mxfp4", MeasuredOp.MXFP4_BF16),
        ("mxfp4_fp8", MeasuredOp.MXFP4_FP8),
    )
}
PACKED = tuple(name for name, kind in KINDS.items() if kind.format is not None)


def rows_of(p: Workload) -> int:
    """Of all experts."""
    rows: int = p.tokens * p.top
    return rows


@dataclass(frozen=True, kw_only=True)
class MoeOperands:
    """The operands of one layer; copies differ in their routing."""

    workload: Workload
    out: Tensor
    a: Tensor
    b: Tensor
    a_scales: Tensor | None
    """None of bf16, as of the weights."""
    b_scales: Tensor | None
    offsets: tuple[Tensor, ...]
    """int32 [experts + 1], of each copy."""

    @property
    def copies(self) -> int:
        """How many there are."""
        return len(self.offsets)


class MoeMaker:
    """Makes operands: normal random numbers. It keeps the last layer's weights."""

    def __init__(self, device: torch.device, rotated_bytes: int, *, filled: bool = True) -> None:
        """filled: whether weights have values."""
        self._device, self._filled = device, filled
        self._key: tuple[object, ...] | None = None
        self._weights: Tensor | None = None
        self._generator = torch.Generator(device=device).manual_seed(0)

    def make(self, workload: Workload) -> MoeOperands:
        """Of a workload."""
        p, key = workload, (workload.of.dtype, workload.of.format, workload.experts, workload.n, workload.k)
        if key != self._key:
            self._weights, self._key = None, key
            self._weights = self._numbers(p) if p.of.format is None else self._packed(p, p.of.format)
        assert self._weights is not None
        a_shape, b_shape = (rows_of(p), 1), (p.experts, p.n)
        if p.of.group_size:
            k_groups, n_groups = -(-p.k // p.of.group_size), -(-p.n // p.of.group_size)
            a_shape, b_shape = (rows_of(p), k_groups), (p.experts, n_groups, k_groups)
        count = min(MOST_COPIES, max(FEWEST_COPIES, COPIED_ROWS // rows_of(p)))
        return MoeOperands(
            workload=p,
            out=torch.empty((rows_of(p), p.n), dtype=torch.bfloat16, device=self._device),
            a=self._normal(rows_of(p), p.k).to(p.of.dtype),
            b=self._weights,
            a_scales=self._of_rows(p, a_shape) if p.of.scaled else None,
            b_scales=self._bases(p) if p.of.format is not None else self._scales(b_shape) if p.of.scaled else None,
            offsets=tuple(self._offsets(p) for _ in range(count)),
        )

    def _numbers(self, p: Workload) -> Tensor:
        found = torch.empty((p.experts, p.n, p.k), dtype=p.of.dtype, device=self._device)
        for weights in found if self._filled else ():
            weights.copy_(self._normal(p.n, p.k).to(p.of.dtype))
        return found

    def _packed(self, p: Workload, format: Format) -> Tensor:
        """Blocks of any codes, with scales of a few powers of two."""
        columns = BLOCK_COLUMNS if p.of.scaled else SIDE
        codes = SIDE * columns // 2
        shape = (p.experts, -(-p.n // SIDE), -(-p.k // STAGE_COLUMNS) * (STAGE_COLUMNS // columns))
        found = torch.empty((*shape, codes + SIDE * columns // format.group), dtype=torch.uint8, device=self._device)
        least, step = _SCALE_BYTES[p.kind]
        for blocks in found if self._filled else ():
            blocks.random_(0, 256, generator=self._generator)
            blocks[..., codes:].random_(0, 4, generator=self._generator).mul_(step).add_(least)
        return found

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self._device, generator=self._generator)

    def _scales(self, shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, device=self._device, generator=self._generator) * 0.02 + 0.005

    def _of_rows(self, p: Workload, shape: tuple[int, ...]) -> Tensor:
        """Scales in groups lie column by column, as DeepGEMM is given them."""
        return self._scales(shape[::-1]).t() if p.of.group_size else self._scales(shape)

    def _bases(self, p: Workload) -> Tensor:
        """Powers of two, of nvfp4 ones: as packing makes them."""
        bases = torch.randint(-8, -4, (p.experts, p.n), device=self._device, generator=self._generator)
        return torch.exp2(bases.float() * (p.of.format != NVFP4))

    def _offsets(self, p: Workload) -> Tensor:
        order = torch.rand(p.tokens, p.experts, device=self._device, generator=self._generator)
        if p.routing == "even":  # tokens take experts in turn, from any on
            first = torch.arange(rows_of(p), device=self._device).reshape(p.tokens, p.top)
            which = order[0].argsort()[first % p.experts]
        else:
            if p.routing == "skewed":  # the largest of log(popularity) and Gumbel noise
                often = torch.randn(p.experts, device=self._device, generator=self._generator)
                order = SKEW * often - (-order.clamp(1e-30, 1 - 1e-7).log()).log()
            which = order.topk(p.top, dim=1).indices
        counts = torch.bincount(which.flatten(), minlength=p.experts).tolist()
        return torch.tensor(list(accumulate(counts, initial=0)), dtype=torch.int32, device=self._device)


_KINDS_OF = {**dict.fromkeys(SMALL_LAYERS, PACKED), **dict.fromkeys(V41_LAYERS, (FINE, "bf16"))}
"""Kinds that layers of the table are timed with; all of them where it does not say."""
_SCALE_BYTES = {"nvfp4": (64, 8), "mxfp4": (124, 1), "mxfp4_fp8": (48, 8)}
"""The byte of a scale of an eighth in blocks of each kind, and the step that doubles it (docs/formats.md)."""


def workloads_of(options: Namespace) -> list[Workload]:
    """Every layer with every number of tokens, or random ones. Raises ValueError."""
    for what, asked, known in (("op", options.op, KINDS), ("routing", options.routing, ROUTINGS)):
        if unknown := [word for word in asked.split(",") if word not in known]:
            raise ValueError(f"{what} {unknown[0]!r} is none of {', '.join(known)}")
    kinds, routings = options.op.split(","), options.routing.split(",")
    tokens = None if options.tokens is None else tuple(map(int, options.tokens.split(",")))
    if options.draw is not None:
        return list(_drawn(Random(options.draw), options.draws, kinds, routings, tokens))
    return list(_workloads(_layers(options.layers), TOKENS if tokens is None else tokens, kinds, routings))


def _layers(asked: str | None) -> Sequence[tuple[int, int, int, int]]:
    """Those asked for, as EXPERTSxTOPxNxK with commas, or the table's. Raises ValueError."""
    if asked is None:
        return (*LAYERS, *SMALL_LAYERS, *V41_LAYERS)
    found = [tuple(map(int, layer.split("x"))) for layer in asked.split(",")]
    if wrong := [layer for layer in found if len(layer) != len(TINY)]:
        raise ValueError(f"layer {wrong[0]} has {len(wrong[0])} numbers, expected experts x top x N x K")
    return [(experts, top, n, k) for experts, top, n, k in found]


def _workloads(
    layers: Sequence[tuple[int, int, int, int]], token_counts: Sequence[int], kinds: list[str], routings: list[str]
) -> Iterator[Workload]:
    for experts, top, n, k in layers:
        for kind in kinds:
            layer = experts, top, n, k
            if kind not in _KINDS_OF.get(layer, KINDS) or (kind == FINE and layer in LAYERS):
                continue
            for tokens in token_counts:
                for routing in routings:
                    yield KINDS[kind].at(experts=experts, top=top, n=n, k=k, tokens=tokens, routing=routing)


def _drawn(
    random: Random, count: int, kinds: list[str], routings: list[str], token_counts: Sequence[int] | None
) -> Iterator[Workload]:
    """Random layers and routings, each layer with a random number of tokens or with all given ones. All kinds have the same calls.

    A size is as likely to be twice as large anywhere.
    """
    drawn = 0
    while drawn < count:
        experts, top, routing = random.choice(DRAWN_EXPERTS), random.choice(DRAWN_TOP), random.choice(routings)
        n, k = (DRAWN_STEP * round(any_size(random, *DRAWN_SIZES) / DRAWN_STEP) for _ in range(2))
        tokens = round(any_size(random, *DRAWN_TOKENS))
        if experts * n * k > DRAWN_ELEMENTS:
            continue
        drawn += 1
        for kind, rows in product(kinds, (tokens,) if token_counts is None else token_counts):
            yield KINDS[kind].at(experts=experts, top=top, n=n, k=k, tokens=rows, routing=routing)


def tiny(workload: Workload) -> Workload:
    experts, top, n, k = TINY
    return workload.resized(experts=experts, top=top, n=n, k=k, tokens=min(workload.tokens, 9))


def small(kind: str) -> Workload:
    experts, top, n, k = TINY
    return KINDS[kind].at(experts=experts, top=top, n=n, k=k, tokens=1, routing="even")


def add_options(parser: ArgumentParser) -> None:
    """Of the grouped GEMMs alone."""
    parser.add_argument(
        "--op", "--ops", default=",".join((*NUMBERS, FINE)), help=f"kinds, with commas, of {', '.join(KINDS)}"
    )
    parser.add_argument("--routing", default="even", help=f"with commas, of {', '.join(ROUTINGS)}")
    parser.add_argument("--layers", help="EXPERTSxTOPxNxK with commas; the table's by default")
    parser.add_argument("--tokens", help=f"with commas; {', '.join(map(str, TOKENS))} by default")
    parser.add_argument("--draw", type=int, metavar="SEED", help="draw layers, routings and, without --tokens, tokens")
    parser.add_argument("--draws", type=int, default=12, help="how many are drawn")
