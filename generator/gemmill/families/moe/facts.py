"""What a grouped kernel knows when it is compiled: a scaled GEMM's facts, and the shared memory by which it finds experts."""

from dataclasses import dataclass

from gemmill.families.moe.config import MOST_EXPERTS
from gemmill.gemm import facts


@dataclass(frozen=True)
class Facts(facts.Facts):
    """The compile-time facts of one kernel, whether it can be made or not."""

    @property
    def most_experts(self) -> int:
        """Experts that a kernel can find."""
        return MOST_EXPERTS

    def _fixed_bytes(self, store_buffers: int) -> int:
        return super()._fixed_bytes(store_buffers) + 4 * (3 * self.most_experts + 32)
