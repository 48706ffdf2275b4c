"""What happens to an accumulator before it is stored."""

from enum import StrEnum


class EpilogueKind(StrEnum):
    """Formulas are in the guide of the GEMM ops; `acc` is the raw accumulator of quantised operands."""

    SCALED = "scaled"
    """s_a s_b acc"""
    SCALED_BIAS = "scaledbias"
    """s_a s_b acc + bias; no bias given means zero"""
    SCALED_AZP = "scaledazp"
    """s_a s_b (acc - azp_adj) + bias, with azp_adj a row that already holds the zero point"""
    SCALED_AZP_PER_TOKEN = "scaledazppertoken"
    """s_a s_b (acc - azp x azp_adj) + bias, with azp a column and azp_adj a row"""

    @property
    def takes_bias(self) -> bool:
        """Whether the kernel reads a bias row when one is given."""
        return self is not EpilogueKind.SCALED

    @property
    def takes_azp(self) -> bool:
        """Whether the kernel corrects for a zero point of A."""
        return self in (EpilogueKind.SCALED_AZP, EpilogueKind.SCALED_AZP_PER_TOKEN)
