"""What a grouped kernel knows when it is compiled: a scaled GEMM's facts, and what finds experts and gathers rows."""

from dataclasses import dataclass

from gemmill.families.moe.config import MOST_EXPERTS, GroupedConfig
from gemmill.gemm import facts
from gemmill.gemm.standard import standard
from gemmill.gemm.traced import Kind, Traced
from gemmill.vocab import EpilogueKind


@dataclass(frozen=True)
class Facts(facts.Facts):
    """The compile-time facts of one kernel, whether it can be made or not."""

    config: GroupedConfig

    @property
    def most_experts(self) -> int:
        """Experts that a kernel can find."""
        return MOST_EXPERTS

    @property
    def indexed(self) -> bool:
        """Whether threads gather rows of A, which TMA cannot do on Hopper."""
        return self.config.indexed

    @property
    def scaled(self) -> bool:
        """Whether operands come with scales."""
        return self.config.scaled

    @property
    def traced(self) -> Traced:
        """The steps of the epilogue: what becomes of a sum."""
        return super().traced if self.scaled else standard(EpilogueKind.SCALED, Kind.F32, with_scales=False)

    @property
    def copying_threads(self) -> int:
        """Threads beside TMA that bring a part of each stage: scales, or rows that are gathered, or both."""
        return 32 * self.scale_warps if self.grouped or self.indexed else 0

    @property
    def tma_bytes(self) -> int:
        """Bytes of a stage that TMA brings."""
        if not self.indexed:
            return self.x_bytes + self.y_bytes
        return self.x_bytes if self.swap_ab else self.y_bytes

    @property
    def a_bytes(self) -> int:
        """Bytes of A in a stage."""
        return self.y_bytes if self.swap_ab else self.x_bytes

    @property
    def stage_row_bytes(self) -> int:
        """Bytes of a row of A in a stage."""
        return self.tile_k * self.element_bytes

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of A."""
        return self.x_dtype.bits // 8

    @property
    def copies_behind(self) -> int:
        """Stages of gathered rows that are on their way when the one before them is handed over: half of all stages.

        With all stages but two, the most that consumers allow, consumers waited for copies to be begun (docs/notes/moe.md).
        """
        return (self.stages - 1) // 2

    @property
    def producer_registers(self) -> int:
        """Registers a producer thread keeps: one that gathers holds the addresses of its rows."""
        return 72 if self.indexed else super().producer_registers

    @property
    def consumer_registers(self) -> int:
        """Registers a consumer thread gets."""
        return 216 if self.indexed else super().consumer_registers

    def _fixed_bytes(self, store_buffers: int) -> int:
        return super()._fixed_bytes(store_buffers) + 4 * (3 * self.most_experts + 32)
