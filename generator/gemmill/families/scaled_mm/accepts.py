"""The calls that a GEMM takes at run time, derived from its config."""

from dataclasses import dataclass
from functools import cache

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.families.scaled_mm.own import OwnConfig, op_name
from gemmill.family import VLLM_PREFIX
from gemmill.family.operand import INT32_MAX, MOST_OF_TMA
from gemmill.gemm.traced import Traced
from gemmill.vocab import DType, EpilogueKind, ScaleGranularity, ScaleGroups, ScaleLayout

SCALED_MM = "cutlass_scaled_mm"
SCALED_MM_AZP = "cutlass_scaled_mm_azp"


@dataclass(frozen=True, kw_only=True)
class Predicate:
    """The calls that a kernel takes. Strides are of operands as the op sees them, before any swap."""

    ops: tuple[str, ...]
    """Ops that the kernel can serve."""
    a_dtype: DType
    b_dtype: DType
    out_dtype: DType
    bias: bool
    """Whether a bias may be given (it may also be absent)."""
    azp: tuple[str, ...]
    """Zero points it corrects: of "none", "row" (in azp_adj) and "token" (azp x azp_adj)."""
    a_scale: ScaleGranularity
    b_scale: ScaleGranularity
    group_size: int
    """Elements along K that share a scale; 0 where scales are per tensor or channel."""
    scale_layout: ScaleLayout
    alignment_a: int
    """Elements that A's data and row stride must be multiples of (1: any)."""
    alignment_b: int
    alignment_d: int
    min_k: int
    """The smallest K: a main loop without iterations is not run."""
    max_mnk: int
    """The largest M, N and K."""
    epilogue: Traced | None = None
    """The user's epilogue; None for one of gemmill's."""

    @property
    def scale_groups(self) -> ScaleGroups | None:
        """The groups that scales must come in; None where they are per tensor or per channel."""
        return ScaleGroups(size=self.group_size, b_scale=self.b_scale) if self.group_size else None


_AZP = {
    EpilogueKind.SCALED: ("none",),
    EpilogueKind.SCALED_BIAS: ("none",),
    EpilogueKind.SCALED_AZP: ("row",),
    EpilogueKind.SCALED_AZP_PER_TOKEN: ("row", "token"),
}


def ops_of(config: KernelConfig) -> tuple[str, ...]:
    """Ops that a GEMM of this config can serve."""
    if isinstance(config, OwnConfig):
        return (op_name(config.traced),)
    op = SCALED_MM_AZP if config.epilogue.takes_azp else SCALED_MM
    return op, VLLM_PREFIX + op


@cache
def accepted(config: KernelConfig) -> Predicate:
    """The calls that a GEMM of this config takes."""
    x, s = config.operands, config.design
    return Predicate(
        ops=ops_of(config),
        a_dtype=x.a_dtype,
        b_dtype=x.b_dtype,
        out_dtype=x.out_dtype,
        bias=config.epilogue.takes_bias,
        azp=_AZP[config.epilogue],
        a_scale=x.a_scale,
        b_scale=x.b_scale,
        group_size=x.group_size,
        scale_layout=x.scale_layout,
        alignment_a=s.alignment_a,
        alignment_b=s.alignment_b,
        alignment_d=s.alignment_d,
        min_k=1 if s.kernel_schedule.uses_tma else 0,
        max_mnk=MOST_OF_TMA if s.kernel_schedule.uses_tma else INT32_MAX,
        epilogue=config.traced if isinstance(config, OwnConfig) else None,
    )
