"""The calls that a kernel takes at run time, derived from its config and stored in the manifest."""

from dataclasses import dataclass

from gemmill.families.sparse_mm.classes import Need, needs_of
from gemmill.families.sparse_mm.config import SparseConfig
from gemmill.families.sparse_mm.ops import SPARSE_MM, SPARSE_MM_AZP
from gemmill.vocab import DType


@dataclass(frozen=True, kw_only=True)
class SparseAccepts:
    """The calls that a kernel takes: rows of a, bt_nzs and out begin at multiples of 16 bytes, metadata too."""

    ops: tuple[str, ...]
    """Ops that the kernel can serve."""
    dtype: DType
    out_dtype: DType
    bias: bool
    """Whether a bias may be given (it may also be absent)."""
    azp: tuple[str, ...]
    """Zero points it corrects: of "none", "row" (in azp_adj) and "token" (azp x azp_adj)."""
    group_size: int
    """Elements along K that share a scale. 0: scales are per tensor or channel."""

    @property
    def operand_dtype(self) -> DType:
        """The dtype of the operand that a call is asked by."""
        return self.dtype


def accepted(config: SparseConfig) -> SparseAccepts:
    """The calls that a kernel of this config takes."""
    needs = needs_of(config.epilogue)
    azp = {Need.SCALE: "none", Need.AZP_ROW: "row", Need.AZP_TOKEN: "token"}
    takes_azp = config.epilogue.takes_azp
    return SparseAccepts(
        ops=(SPARSE_MM.name, SPARSE_MM_AZP.name) if takes_azp else (SPARSE_MM.name,),
        dtype=config.dtype,
        out_dtype=config.out_dtype,
        bias=Need.BIAS in needs,
        azp=tuple(azp[need] for need in needs if need in azp),
        group_size=0,
    )
