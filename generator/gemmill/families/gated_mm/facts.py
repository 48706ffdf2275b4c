"""The facts of a gated kernel: those of a scaled GEMM, with half as many results as columns."""

from dataclasses import dataclass
from math import gcd

from gemmill.families.gated_mm.config import GROUP, GatedConfig, Result
from gemmill.gemm.expert_facts import ExpertFacts
from gemmill.gemm.limits import SHARED_BYTES, SLAB, STORE_BUFFERS

_BOX_BYTES = 128
"""The most bytes of a box's row: the span of TMA's widest swizzle."""


@dataclass(frozen=True)
class Facts(ExpertFacts):
    """The facts of one kernel, whether it can be made or not. D is the result."""

    config: GatedConfig

    @property
    def result(self) -> Result:
        """The form of the stored results."""
        return self.config.epilogue.result

    @property
    def by_group(self) -> bool:
        """Whether the kernel finds a scale for each group of results."""
        return bool(self.result.group)

    @property
    def result_group(self) -> int:
        """Results of a row that share a scale."""
        return self.result.group or GROUP

    @property
    def by_expert(self) -> bool:
        """Whether rows belong to experts."""
        return self.config.operands.by_expert

    @property
    def indexed(self) -> bool:
        """Whether threads gather rows of A, which TMA cannot do on Hopper."""
        return self.config.operands.indexed

    @property
    def result_bytes(self) -> int:
        """Bytes of an element of D."""
        return self.result.dtype.bits // 8

    @property
    def group_columns(self) -> int:
        """Columns of D in a consumer group's part of the tile."""
        return self.group_n // 2

    @property
    def tile_columns(self) -> int:
        """Columns of D in a tile."""
        return self.tile_n // 2

    @property
    def store_columns(self) -> int:
        """Columns of D in a box."""
        return gcd(self.group_columns, _BOX_BYTES // self.result_bytes)

    @property
    def store_rows(self) -> int:
        """Rows of D in a box."""
        return self.tile_y if self.swap_ab else SLAB

    @property
    def boxes(self) -> list[tuple[int, int]]:
        """Boxes of a consumer group's part of the tile, (slab, column), in the order of their stores.

        With swap_ab a box has columns of several slabs.
        """
        slabs = 1 if self.swap_ab else self.slabs
        return [(slab, column) for slab in range(slabs) for column in range(self.group_columns // self.store_columns)]

    @property
    def store_buffers(self) -> int:
        """How many boxes of D a consumer group has in shared memory.

        There are two, where that does not cost a stage, or all with swap_ab.
        """
        if self.swap_ab:
            return len(self.boxes)
        most = min(STORE_BUFFERS, len(self.boxes))
        return most if self._stages_beside(most) == self._stages_beside(1) else 1

    @property
    def stores_early(self) -> bool:
        """Whether the epilogue stores results before all sums are there: never, since activations wait for all sums."""
        return False

    @property
    def store_elements(self) -> int:
        """Elements of D that shared memory holds until their store."""
        return self.consumer_groups * self.store_buffers * self.store_rows * self.store_columns

    @property
    def maximum_words(self) -> int:
        """Words of shared memory, in two buffers, in which warps exchange the maxima of groups that they share."""
        return 2 * self.consumers // 32 * self.tile_y if self.by_group and self.swap_ab else 0

    @property
    def has_whole_groups(self) -> bool:
        """Whether every group of results lies in one tile, and in one box where warps hold all of its row.

        With swap_ab all consumers have a group of 128, and each consumer group one of 32.
        """
        if not self.swap_ab:
            return self.store_columns % self.result_group == 0
        return (self.tile_columns if self.result_group == GROUP else self.group_columns) == self.result_group

    def _fixed_bytes(self, store_buffers: int) -> int:
        boxes = store_buffers * self.store_rows * self.store_columns * self.result_bytes
        return 1024 + self.table_bytes + self.consumer_groups * (boxes + 4 * self.vector_words) + 4 * self.maximum_words

    def _stages_beside(self, store_buffers: int) -> int:
        return (SHARED_BYTES - self._fixed_bytes(store_buffers)) // self.stage_bytes
