"""The compile-time facts of a grouped kernel: those of a scaled GEMM, and those that find experts and gather rows."""

from dataclasses import dataclass

from gemmill.families.grouped_mm.config import GroupedConfig
from gemmill.families.grouped_mm.ends import ALPHA_BIAS
from gemmill.gemm.expert_facts import ExpertFacts
from gemmill.gemm.standard import standard
from gemmill.gemm.traced import Kind, Traced
from gemmill.vocab import EpilogueKind


@dataclass(frozen=True)
class Facts(ExpertFacts):
    """The compile-time facts of one kernel, whether it can be made or not."""

    config: GroupedConfig

    @property
    def indexed(self) -> bool:
        """Whether threads gather rows of A, which TMA cannot do on Hopper."""
        return self.config.operands.indexed

    @property
    def scaled(self) -> bool:
        """Whether the end of a sum reads anything of its row or column: scales, or alpha and bias."""
        return self.config.operands.scaled or self.biased

    @property
    def traced(self) -> Traced:
        """The steps of the epilogue on a sum."""
        if self.biased:
            return super().traced if self.config.operands.scaled and not self.grouped else ALPHA_BIAS
        return super().traced if self.scaled else standard(EpilogueKind.SCALED, Kind.F32, with_scales=False)

    @property
    def biased(self) -> bool:
        """Whether a sum ends with an alpha of its expert and with a bias of its column."""
        return self.config.biased

    def _fixed_bytes(self, store_buffers: int) -> int:
        return super()._fixed_bytes(store_buffers) + self.table_bytes
