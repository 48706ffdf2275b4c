"""Which gated GEMMs are timed, and their arguments."""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from gemmill.families.gated_mm.config import GROUP, Result
from harness.gated_contenders import GatedContender, Separate
from timed import Benchmark

LAYERS = ((14336, 4096), (28672, 8192), (18432, 7168))
"""Results and K: of Llama 3 8B and 70B, and DeepSeek V3's dense layers."""
ROWS = (1, 16, 64, 256, 4096)
KINDS = {"bf16": Result.BF16, "static": Result.STATIC, "groups": Result.GROUP}
ENDS = ("", "_swiglu")
SCALES = ("", "_of_blocks")
"""Behind a kind: of rows and columns, or of A in 1 x 128 and of the weights in 128 x 128."""
SILU = ("silu", 1.0, math.inf, 0.0)
SWIGLU = ("swiglu", 1.702, 7.0, 1.0)
MOST_COPIES = 16


@dataclass(frozen=True, kw_only=True)
class GatedWorkload:
    """One layer's first product, with its end."""

    kind: str
    m: int
    hidden: int
    k: int

    @property
    def result(self) -> Result:
        """What is stored."""
        return KINDS[self.kind.partition("_")[0]]

    @property
    def activation(self) -> tuple[str, float, float, float]:
        """As the op takes it, with its numbers."""
        return SWIGLU if "_swiglu" in self.kind else SILU

    @property
    def in_groups(self) -> bool:
        """Whether scales of the operands are in groups along K."""
        return self.kind.endswith(SCALES[1])

    @property
    def sizes(self) -> dict[str, int]:
        """By name."""
        return {"m": self.m, "n": 2 * self.hidden, "k": self.k}

    @property
    def flops(self) -> float:
        """Multiplications and additions of the product."""
        return 4.0 * self.m * self.hidden * self.k

    @property
    def bytes(self) -> int:
        """Weights, activations, results."""
        return 2 * self.hidden * self.k + self.m * (self.k + self.hidden * self.result.dtype.bits // 8)

    def __str__(self) -> str:
        return f"{self.kind} {self.m} x (2 x {self.hidden}) x {self.k}"


@dataclass(frozen=True, kw_only=True)
class GatedOperands:
    """What one workload is computed of; copies differ in their weights."""

    workload: GatedWorkload
    out: Tensor
    out_scales: Tensor | None
    static_scale: Tensor | None
    a: Tensor
    weights: tuple[Tensor, ...]
    """[K, 2 hidden], column-major."""
    a_scales: Tensor
    b_scales: Tensor
    product: Tensor
    """bf16 [M, 2 hidden]: what the product alone is written to."""

    @property
    def copies(self) -> int:
        """How many there are."""
        return len(self.weights)


class GatedMaker:
    """Makes operands: normal random numbers. It keeps the last layer's weights."""

    def __init__(self, device: torch.device, rotated_bytes: int) -> None:
        self._device, self._rotated_bytes = device, rotated_bytes
        self._weights: tuple[Tensor, ...] = ()
        self._generator = torch.Generator(device=device).manual_seed(0)

    def make(self, workload: GatedWorkload) -> GatedOperands:
        """Of a workload."""
        p, n, k_groups = workload, 2 * workload.hidden, -(-workload.k // GROUP)
        if not self._weights or self._weights[0].shape != (p.k, n):
            self._weights = ()
            count = min(MOST_COPIES, -(-self._rotated_bytes // (n * p.k)))
            self._weights = tuple(self._normal(n, p.k).t() for _ in range(count))
        return GatedOperands(
            workload=p,
            out=torch.empty((p.m, p.hidden), device=self._device, dtype=getattr(torch, p.result.dtype.torch_name)),
            out_scales=torch.empty((p.m, p.hidden // GROUP), device=self._device) if p.result is Result.GROUP else None,
            static_scale=torch.full((1,), 0.1, device=self._device) if p.result is Result.STATIC else None,
            a=self._normal(p.m, p.k),
            weights=self._weights,
            a_scales=self._scales(k_groups, p.m).t() if p.in_groups else self._scales(p.m, 1),
            b_scales=(self._scales(k_groups, n // GROUP) if p.in_groups else self._scales(n)) / math.sqrt(p.k),
            product=torch.empty((p.m, n), device=self._device, dtype=torch.bfloat16),
        )

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self._device, generator=self._generator).to(torch.float8_e4m3fn)

    def _scales(self, *shape: int) -> Tensor:
        return torch.rand(shape, device=self._device, generator=self._generator) + 0.5


def workloads_of(options: Namespace) -> list[GatedWorkload]:
    """Every layer with every number of rows. Raises ValueError."""
    known = ["".join(parts) for parts in product(KINDS, ENDS, SCALES)]
    kinds = options.op.split(",")
    if unknown := [word for word in kinds if word not in known]:
        raise ValueError(f"op {unknown[0]!r} is none of {', '.join(known)}")
    layers = LAYERS if options.layers is None else LAYERS[: options.layers]
    rows = ROWS if options.rows is None else tuple(map(int, options.rows.split(",")))
    return [GatedWorkload(kind=kind, m=m, hidden=h, k=k) for h, k in layers for kind in kinds for m in rows]


def add_options(parser: ArgumentParser) -> None:
    """Of the gated GEMMs alone."""
    parser.add_argument(
        "--op",
        "--ops",
        default="groups,bf16",
        help=f"kinds, with commas, of {', '.join(KINDS)}, or with {ENDS[1]} and then {SCALES[1]} behind",
    )
    parser.add_argument("--rows", help=f"with commas; {', '.join(map(str, ROWS))} by default")
    parser.add_argument("--layers", type=int, help=f"the first so many of {len(LAYERS)} layers")


def _also() -> Sequence[Separate]:
    return (
        Separate(name="product alone", with_op=False),
        Separate(name="product, then op", with_op=True),
    )


BENCHMARK = Benchmark(
    add_options=add_options,
    workloads=workloads_of,
    tiny=lambda p: replace(p, m=min(p.m, 9), hidden=256, k=128),
    host_workload=lambda kind: GatedWorkload(kind=kind, m=16, hidden=256, k=256),
    warm_workload=lambda p: replace(p, m=4096),
    maker=GatedMaker,
    data="normal random numbers; weights differ from call to call",
    subject=lambda namespace, name: GatedContender(name=name, namespace=namespace),
    also=_also,
)
