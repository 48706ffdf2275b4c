"""The compile-time facts of a kernel for rows of experts, in addition to a GEMM's."""

from dataclasses import dataclass

from gemmill.gemm import facts
from gemmill.gemm.expert_rows import MOST_EXPERTS


@dataclass(frozen=True)
class ExpertFacts(facts.Facts):
    """The compile-time facts of a kernel that finds experts' rows, and may gather them."""

    @property
    def by_expert(self) -> bool:
        """Whether rows belong to experts."""
        return True

    @property
    def indexed(self) -> bool:
        """Whether threads gather rows of A, which TMA cannot do on Hopper."""
        raise NotImplementedError

    @property
    def most_experts(self) -> int:
        """The most experts that a kernel can deal rows to; 0 where rows belong to none."""
        return MOST_EXPERTS if self.by_expert else 0

    @property
    def table_bytes(self) -> int:
        """Bytes of shared memory for the search of experts."""
        return 4 * (3 * self.most_experts + 32) if self.by_expert else 0

    @property
    def copying_threads(self) -> int:
        """Threads that load a part of each stage without TMA: scales, or gathered rows, or both."""
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
        """Stages of gathered rows in flight when the one before them is handed over: half of all stages.

        With all stages but two, the most that consumers allow, consumers waited for copies to begin (notes of grouped
        GEMMs).
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
