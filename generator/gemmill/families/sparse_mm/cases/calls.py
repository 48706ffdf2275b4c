"""Calls of the sparse GEMMs by their sizes and options: operands, and expected results."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmill.families.sparse_mm.bounds import exact_mm, tolerance
from gemmill.families.sparse_mm.classes import Need
from gemmill.families.sparse_mm.ops import SPARSE_MM, SPARSE_MM_AZP
from gemmill.families.sparse_mm.reference import sparse_mm
from gemmill.formats.two_to_four import GROUP, KEPT, compress, decompress
from gemmill.numerics.comparison import Wanted
from gemmill.numerics.exact import powers_of_two, small_integers
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import DType

FEWER = 0.15
"""The share of zeros among the values that could be kept. So groups of one value and of none happen."""


@dataclass(frozen=True, kw_only=True)
class CallSpec:
    """One call. Everything in it, data included, follows from these fields."""

    m: int
    n: int
    k: int
    dtype: DType = DType.E4M3
    out_dtype: DType = DType.BF16
    need: Need = Need.SCALE
    bias: bool = False
    """Whether there is a bias in addition to zero points. With `need` BIAS there always is one."""
    a_each: bool = True
    """Whether there is a scale for each row of a; else one for all."""
    b_each: bool = True
    pad: int = 0
    """Elements between rows of a, of kept values and of out."""
    promoted: bool = False
    """Whether the bound assumes that sums leave the tensor core every 128 along K."""
    data: str = "random"
    """The distribution of values: "random", or "integers".

    "integers" are small, with powers of two as scales, so that every order of summation gives the same.
    """

    @property
    def op(self) -> str:
        """The op's name."""
        return (SPARSE_MM_AZP if self.need in (Need.AZP_ROW, Need.AZP_TOKEN) else SPARSE_MM).name

    @property
    def is_exact(self) -> bool:
        """Whether the reference repeats every rounding."""
        return self.data == "integers" or self.dtype is DType.S8

    def __str__(self) -> str:
        words = [f"M, N, K = {self.m}, {self.n}, {self.k}", f"{self.dtype} to {self.out_dtype}", self.need.name.lower()]
        words += ["bias"] if self.bias else []
        words += [f"a_scales {'each' if self.a_each else 'one'}, b_scales {'each' if self.b_each else 'one'}"]
        words += [f"rows {self.pad} apart"] if self.pad else []
        return "; ".join(words + (["exact"] if self.data == "integers" else []))


def make_given(p: CallSpec, device: torch.device) -> dict[str, Tensor | None]:
    """Arguments by name, but for the result; the same spec has the same data."""
    g = torch.Generator(device=device).manual_seed(p.m * 1_000_003 + p.n * 1009 + p.k)
    values, meta = compress(pruned_at_random(codes(p, p.n, g), g))
    has_bias = p.bias or p.need is Need.BIAS
    bias = torch.randn(p.n, device=device, generator=g, dtype=torch.float32).mul(8).round().to(torch_type(p.out_dtype))
    given: dict[str, Tensor | None] = {
        "a": _apart(codes(p, p.m, g), p.pad),
        "bt_nzs": _apart(values, p.pad),
        "bt_meta": meta,
        "a_scales": _scales(p, p.m if p.a_each else 1, g),
        "b_scales": _scales(p, p.n if p.b_each else 1, g).reshape(1, -1),
        "bias": bias if has_bias else None,
    }
    if p.need in (Need.AZP_ROW, Need.AZP_TOKEN):
        sums = decompress(values, meta, p.k).sum(dim=1, dtype=torch.int32)
        token = p.need is Need.AZP_TOKEN
        given["azp_adj"] = sums if token else sums * 3
        given["azp"] = (
            torch.randint(-128, 128, (p.m, 1), dtype=torch.int32, device=device, generator=g) if token else None
        )
    return given


def arguments_of(op: str, given: dict[str, Any], out: Tensor) -> list[Any]:
    """Arguments in the order of the op's schema."""
    return [(given | {"out": out})[name] for name in BY_NAME[op].arguments]


def wanted_of(given: dict[str, Any], out_dtype: torch.dtype, *, exactly: bool, promoted: bool) -> Wanted:
    """The expected results of a call, by the reference."""
    rounded = sparse_mm(**given, out_dtype=out_dtype)
    if exactly:
        return Wanted(rounded=rounded)
    b = decompress(given["bt_nzs"], given["bt_meta"], given["a"].shape[1]).t()
    operands = given["a"], b, given["a_scales"], given["b_scales"]
    bias = given.get("bias")
    bound = tolerance(*operands, out_dtype, bias, promoted=promoted)
    return Wanted(rounded=rounded, exact=exact_mm(*operands, bias), bound=bound)


def torch_type(dtype: DType) -> torch.dtype:
    """The dtype in torch."""
    found: torch.dtype = getattr(torch, dtype.torch_name)
    return found


def codes(p: CallSpec, rows: int, g: torch.Generator) -> Tensor:
    """The data of a, or of the weights before pruning."""
    if p.data == "integers":
        return small_integers(rows, p.k, torch_type(p.dtype), g)
    if p.dtype is DType.S8:
        return torch.randint(-128, 128, (rows, p.k), dtype=torch.int8, device=g.device, generator=g)
    return torch.randn(rows, p.k, device=g.device, generator=g, dtype=torch.float32).to(torch_type(p.dtype))


def pruned_at_random(x: Tensor, g: torch.Generator) -> Tensor:
    """The matrix with two of each four zeroed, any two, and some of the others."""
    drawn = torch.rand(x.shape[0], x.shape[1] // GROUP, GROUP, device=x.device, generator=g, dtype=torch.float32)
    lost = drawn.argsort(dim=-1).argsort(dim=-1) >= KEPT
    lost |= torch.rand(lost.shape, device=x.device, generator=g, dtype=torch.float32) < FEWER
    return x.float().masked_fill(lost.flatten(1), 0.0).to(x.dtype)


def _apart(x: Tensor, pad: int) -> Tensor:
    if not pad:
        return x
    bits = x.view(torch.uint8 if x.element_size() == 1 else torch.int16)
    memory = torch.full((x.shape[0], x.shape[1] + pad), 0x7F, dtype=bits.dtype, device=x.device)
    memory[:, : x.shape[1]] = bits
    return memory[:, : x.shape[1]].view(x.dtype)


def _scales(p: CallSpec, count: int, g: torch.Generator) -> Tensor:
    if p.data == "integers":
        return powers_of_two((count, 1), g)
    return torch.rand(count, 1, device=g.device, generator=g, dtype=torch.float32) * 0.02 + 0.005
