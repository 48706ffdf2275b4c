"""2:4 sparse nvfp4 weights of experts: of each four along K two e2m1 codes are kept, and which two.

    value = e2m1(code) * e4m3(scale) * weight_scale_2    (0 where nothing is kept)

Ours has 3 bits for which two, an index into PATTERNS, eight in three bytes. That is 0.406 bytes a weight, with scales for
each 16 along K. `transposed_2to4` is the layout of Avarok's sparse_fp4_kernel, for interchange, with N innermost and two
bits a place:

    comp_T   uint8 [E, K / 4, N]     two codes, that of the lower place in the low nibble
    meta_T   uint8 [E, K / 8, N]     places of two groups: i0 | i1 << 2, then the second group's in the high nibble
    scale_T  e4m3 [E, K / 16, N]     or [E, K / 8, N], told apart by shape
    weight_scale_2  f32 [E]          or [E, parts], where rows are several weights one after another (gate, up)
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.formats.codes import decode, pack, unpack
from gemmill.formats.two_to_four import GROUP, KEPT, pattern_fault
from gemmill.vocab.float_type import E2M1, UE4M3

PATTERNS = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
"""The places of the two kept values."""
PATTERN_BITS = 3
SPAN = 32
"""The multiple of K: columns whose patterns are whole bytes."""
SCALE_GROUPS = (16, 8)
"""The numbers of columns that may share a scale."""


@dataclass(frozen=True, kw_only=True)
class SparseFp4:
    """Weights [E, N, K], checked. Raises ValueError, in a sentence, for shapes that disagree, for NaN scales, and for
    patterns that do not exist, by their place.
    """

    codes: Tensor
    """uint8 [E, N, K / 4]: two e2m1 codes, that of the lower place in the low nibble."""
    patterns: Tensor
    """uint8 [E, N, 3 K / 32]: an index into PATTERNS for each four columns, 3 bits each, the first in the low bits."""
    scales: Tensor
    """uint8 [E, N, K / 16] or [E, N, K / 8], ue4m3."""
    weight_scale_2: Tensor
    """f32 [E, parts], multiplies; rows are so many equal parts one after another."""

    def __post_init__(self) -> None:
        for name in ("codes", "patterns", "scales"):
            tensor = getattr(self, name)
            if tensor.dtype is not torch.uint8 or tensor.dim() != 3:
                raise ValueError(
                    f"{name} are {tensor.dtype} of {tensor.dim()} dimensions, expected uint8 of 3: [E, N, ...]"
                )
        e, n, k = self.shape
        if k % SPAN:
            raise ValueError(f"2:4 sparse FP4 takes K in multiples of {SPAN}, got K = {k}: pad K with zeros")
        wanted = (e, n, k // SPAN * PATTERN_BITS)
        if tuple(self.patterns.shape) != wanted:
            raise ValueError(
                f"patterns are {list(self.patterns.shape)}, expected {list(wanted)} for weights of {[e, n, k]}"
            )
        _check_scales(self.scales, (e, n, k), "scales")
        _check_factors(self.weight_scale_2, e, n)
        self._refuse_patterns()

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of experts, the rows of each, and the columns."""
        e, n, quarter = self.codes.shape
        return e, n, GROUP * quarter

    @property
    def group(self) -> int:
        """The number of columns that share a scale."""
        return self.shape[2] // max(self.scales.shape[2], 1)

    @property
    def parts(self) -> int:
        """The number of weights whose rows follow one another in each expert."""
        return self.weight_scale_2.shape[1]

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(x.nbytes for x in (self.codes, self.patterns, self.scales, self.weight_scale_2))

    def _refuse_patterns(self) -> None:
        wrong = unpack(self.patterns, PATTERN_BITS) >= len(PATTERNS)
        if wrong.any():
            expert, row, group = wrong.nonzero()[0].tolist()
            found = int(unpack(self.patterns[expert, row], PATTERN_BITS)[group])
            raise ValueError(
                f"expert {expert}, row {row} has pattern {found} for columns {GROUP * group} to {GROUP * group + GROUP - 1}: "
                f"patterns 0 to {len(PATTERNS) - 1} are the pairs of four places"
            )

    def places(self, expert: int) -> Tensor:
        """The kept places, int64 [N, K / 4, 2], ascending."""
        table = torch.tensor(PATTERNS, device=self.patterns.device, dtype=torch.int64)
        return table[unpack(self.patterns[expert], PATTERN_BITS).long()]

    def values(self, expert: int) -> Tensor:
        """The values of an expert's weights, f32 [N, K]. Code times scale is exact, the factor rounds once."""
        _, n, k = self.shape
        kept = decode(unpack(self.codes[expert], E2M1.bits).unflatten(1, (-1, KEPT)), E2M1)
        scales = decode(self.scales[expert], UE4M3).repeat_interleave(self.group // GROUP, dim=1)
        dense = kept.new_zeros((n, k // GROUP, GROUP))
        dense.scatter_(2, self.places(expert), kept * scales[..., None])
        factors = self.weight_scale_2[expert].repeat_interleave(n // self.parts)
        return dense.flatten(1) * factors[:, None]

    def transposed_2to4(self) -> dict[str, Tensor]:
        """The tensors of that layout, by name. weight_scale_2 is [E] of one part."""
        e, n, k = self.shape
        table = torch.tensor(
            [first | second << 2 for first, second in PATTERNS], dtype=torch.uint8, device=self.codes.device
        )
        nibbles = table[unpack(self.patterns, PATTERN_BITS).long()]
        factors = self.weight_scale_2
        return {
            "comp_T": self.codes.transpose(1, 2).contiguous(),
            "meta_T": pack(nibbles, 4).reshape(e, n, k // 8).transpose(1, 2).contiguous(),
            "scale_T": self.scales.transpose(1, 2).contiguous().view(torch.float8_e4m3fn),
            "weight_scale_2": factors[:, 0].clone() if self.parts == 1 else factors.clone(),
        }


def from_transposed_2to4(tensors: Mapping[str, Tensor]) -> SparseFp4:
    """Weights of that layout, checked: the inverse, to the bit. Raises ValueError, in a sentence."""
    lacking = [name for name in ("comp_T", "meta_T", "scale_T", "weight_scale_2") if name not in tensors]
    if lacking:
        raise ValueError(f"transposed_2to4 lacks {lacking[0]}: it has {', '.join(tensors) or 'nothing'}")
    comp, meta, scale, factors = (tensors[name] for name in ("comp_T", "meta_T", "scale_T", "weight_scale_2"))
    for name, tensor in (("comp_T", comp), ("meta_T", meta)):
        if tensor.dtype is not torch.uint8 or tensor.dim() != 3:
            raise ValueError(f"{name} is {tensor.dtype} of {tensor.dim()} dimensions, expected uint8 of 3: [E, ..., N]")
    e, quarter, n = comp.shape
    k = GROUP * quarter
    if tuple(meta.shape) != (e, k // 8, n) or k % SPAN:
        raise ValueError(
            f"meta_T is {list(meta.shape)} beside a comp_T of {list(comp.shape)}, expected [E, K / 8, N] with K = {k}, a multiple of {SPAN}"
        )
    if scale.element_size() != 1 or scale.dim() != 3 or scale.shape[2] != n:
        raise ValueError(f"scale_T is {scale.dtype} of {list(scale.shape)}, expected e4m3 [E, groups, {n}]")
    scales = scale.view(torch.uint8).transpose(1, 2).contiguous()
    _check_scales(scales, (e, n, k), "scale_T")
    nibbles = unpack(meta.transpose(1, 2).contiguous(), 4)
    places = torch.stack((nibbles & 3, nibbles >> 2), dim=-1).long()
    if fault := pattern_fault(places, what="meta_T: expert, row"):
        raise ValueError(fault)
    return SparseFp4(
        codes=comp.transpose(1, 2).contiguous(),
        patterns=packed_patterns(places),
        scales=scales,
        weight_scale_2=factors.float().reshape(e, -1)
        if factors.numel() and factors.numel() % max(e, 1) == 0
        else factors,
    )


def packed_patterns(places: Tensor) -> Tensor:
    """The patterns of pairs of places [.., groups, 2], which ascend: 3 bits each, uint8 [.., 3 groups / 8]."""
    number = torch.zeros(GROUP, GROUP, dtype=torch.uint8, device=places.device)
    for i, (first, second) in enumerate(PATTERNS):
        number[first, second] = i
    return pack(number[places[..., 0], places[..., 1]], PATTERN_BITS)


def _check_scales(scales: Tensor, shape: tuple[int, int, int], name: str) -> None:
    e, n, k = shape
    known = [(e, n, k // group) for group in SCALE_GROUPS]
    if tuple(scales.shape) not in known:
        told = " or ".join(f"K / {group} = {k // group}" for group in SCALE_GROUPS)
        raise ValueError(
            f"{name} has {scales.shape[2]} groups of {tuple(scales.shape[:2])} rows for weights of {list(shape)}: there are {told}"
        )
    wrong = scales > UE4M3.last_code
    if wrong.any():
        expert, row, group = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{name} of expert {expert}, row {row}, group {group} is byte {int(scales[expert, row, group])}, which is no number of "
            f"{UE4M3}: bytes 0 to {UE4M3.last_code} are"
        )


def _check_factors(factors: Tensor, experts: int, rows: int) -> None:
    parts = factors.shape[-1] if factors.dim() == 2 else 0
    if (
        factors.dtype is not torch.float32
        or factors.dim() != 2
        or factors.shape[0] != experts
        or not parts
        or rows % parts
    ):
        raise ValueError(
            f"weight_scale_2 is {factors.dtype} of {list(factors.shape)}, expected float32 [{experts}, parts], where parts divide the "
            f"{rows} rows of an expert"
        )
    wrong = ~(torch.isfinite(factors) & (factors >= 0))
    if wrong.any():
        expert, part = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"weight_scale_2 of expert {expert}, part {part} is {factors[expert, part].item()}, expected a finite number, 0 or above"
        )
