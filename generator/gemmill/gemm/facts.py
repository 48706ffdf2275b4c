"""The compile-time facts of a DSL kernel: a config's shapes, split among warp groups and shared memory.

Names of the kernel: X is the operand whose rows fill WGMMA's 64 rows, Y the one whose rows are its columns. Without
swap_ab X is A (tokens) and Y is B's columns (weights); with it they change places. Nothing here needs the DSL.
"""

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from gemmill.gemm.config import GemmConfig
from gemmill.gemm.limits import (
    AHEAD_REGISTERS,
    CONSUMER_GROUPS,
    FEW_FACTORS,
    LARGE_BOX,
    OVERLAP_REGISTERS,
    PARTIAL_REGISTERS,
    PREFETCH_BYTES,
    PROMOTION,
    SHARED_BYTES,
    SHARED_BYTES_OF_SM,
    SHARED_BYTES_RESERVED,
    SLAB,
    SMALL_BOX,
    SMALL_TILE,
    STORE_BUFFERS,
    STORE_COLUMNS,
)
from gemmill.gemm.traced import Along, Input, Traced
from gemmill.vocab import (
    Accumulation,
    DType,
    KernelSchedule,
    ScaleGranularity,
    TileScheduler,
)


@dataclass(frozen=True)
class Facts:
    """The compile-time facts of one kernel, whether it can be made or not. The rules ask them; a Plan has them."""

    config: GemmConfig

    # The computation --------------------------------------------------------------------------------------------------

    @property
    def mma_steps(self) -> int:
        """WGMMAs along K in one K step: each takes 32 bytes."""
        return self.tile_k * self.x_dtype.bits // 256

    @property
    def swap_ab(self) -> bool:
        """Whether X holds the weights."""
        return self.config.design.swap_ab

    @property
    def x_dtype(self) -> DType:
        """Type of X."""
        return self.config.gemm_operands.b_dtype if self.swap_ab else self.config.gemm_operands.a_dtype

    @property
    def y_dtype(self) -> DType:
        """Type of Y."""
        return self.config.gemm_operands.a_dtype if self.swap_ab else self.config.gemm_operands.b_dtype

    @property
    def accumulator_dtype(self) -> DType:
        """Type of the tensor core's sums: s32 for integers, else f32."""
        return DType.S32 if self.x_dtype is DType.S8 else DType.F32

    @property
    def sum_dtype(self) -> DType:
        """Type of the sums over all of K: f32 where scales in groups have been applied, else the accumulator's."""
        return DType.F32 if self.grouped else self.accumulator_dtype

    @property
    def group_size(self) -> int:
        """Elements along K that share a scale; 0 where scales do not change along K."""
        return self.config.gemm_operands.group_size

    @property
    def grouped(self) -> bool:
        """Whether scales change along K, so that the main loop applies them."""
        return bool(self.group_size)

    @property
    def b_rows_scaled(self) -> bool:
        """Whether each column of B has scales of its own, in place of one for a block of columns."""
        return self.config.gemm_operands.b_scale is ScaleGranularity.GROUP

    @property
    def promoted(self) -> bool:
        """Whether partial sums leave the tensor core's accumulator before the end of K."""
        return self.grouped or self.config.design.accumulation is Accumulation.PROMOTED

    @property
    def promotion_k(self) -> int:
        """Elements along K between two promotions."""
        return self.group_size or PROMOTION

    @property
    def promotions(self) -> int:
        """Promotions in one K step."""
        return max(1, self.tile_k // self.promotion_k)

    @property
    def units(self) -> int:
        """Promotions of single slabs in one K step."""
        return self.promotions * self.slabs

    @property
    def unit_registers(self) -> int:
        """Registers of a thread for the partial sums of one slab."""
        return self.tile_y // 2

    @property
    def overlapped(self) -> bool:
        """Whether a group promotes one K step's sums while its next one's multiplications run, which needs two sets."""
        sums = 2 if self.sums_slices else 1
        registers = (sums + 2) * self.unit_registers + (2 * self.factors if self.grouped else 0)
        alone = self.divides_k or self.pingpong
        return self.promoted and self.units == 1 and not alone and registers <= OVERLAP_REGISTERS

    @property
    def promotes_each_mma(self) -> bool:
        """Whether no two WGMMAs along K add to the same partial sums: groups of 32 bytes."""
        return self.grouped and self.promotions == self.mma_steps

    @property
    def alternates(self) -> bool:
        """Whether it promotes one WGMMA's sums while the next ones run, in sets by turns, several in a K step."""
        registers = (self.slabs + self.config.design.partial_sets) * self.unit_registers + self.factors
        alone = self.divides_k or self.restarts or self.pingpong
        small = self.units * self.unit_registers <= PARTIAL_REGISTERS
        return self.promotes_each_mma and not alone and not small and registers <= OVERLAP_REGISTERS

    @property
    def partials(self) -> int:
        """Sets of partial sums, each of one unit. Where they are small they hold a whole K step, so that WGMMA waits
        once; of groups of one WGMMA, as large a part of it as fits. Of restarted sums that are not promoted, a slice's of all
        slabs."""
        if not self.promoted:
            return self.slabs if self.restarts else 0
        if self.alternates:
            return self.config.design.partial_sets
        if self.overlapped:
            return 2
        fitting = PARTIAL_REGISTERS // self.unit_registers
        if self.units <= fitting:
            return self.units
        return gcd(self.units, 1 << fitting.bit_length() >> 1) if self.promotes_each_mma and fitting else 1

    @property
    def accumulator_registers(self) -> int:
        """Registers of a thread for the sums of a tile, of a slice where these are promoted, and for partial ones."""
        return (self.slabs * (2 if self.sums_slices else 1) + self.partials) * self.unit_registers

    @property
    def factors_ahead(self) -> bool:
        """Whether it reads a unit's scales while it multiplies the one before, where they take few registers."""
        few = self.factors <= FEW_FACTORS and not self.promotes_each_mma
        return self.grouped and self.partials == 1 and few

    @property
    def factor_sets(self) -> int:
        """Sets of a unit's scales in registers."""
        if self.alternates:
            registers = self.accumulator_registers + 2 * self.factors
            return 2 if registers <= (AHEAD_REGISTERS if self.moves_registers else OVERLAP_REGISTERS) else 1
        return 2 if self.factors_ahead else self.partials

    # The division of the work -----------------------------------------------------------------------------------------

    @property
    def tile_x(self) -> int:
        """Rows of X in a CTA's tile."""
        return self.config.design.tile_shape_mnk[0]

    @property
    def tile_y(self) -> int:
        """Rows of Y in a CTA's tile."""
        return self.config.design.tile_shape_mnk[1]

    @property
    def tile_k(self) -> int:
        """Elements along K of one stage."""
        return self.config.design.tile_shape_mnk[2]

    @property
    def tile_n(self) -> int:
        """Columns of B in a CTA's tile."""
        return self.tile_x if self.swap_ab else self.tile_y

    @property
    def tile_m(self) -> int:
        """Rows of A in a CTA's tile."""
        return self.tile_y if self.swap_ab else self.tile_x

    @property
    def cluster_x(self) -> int:
        """CTAs along X that share loads of Y."""
        return self.config.design.cluster_shape_mnk[0]

    @property
    def cluster_y(self) -> int:
        """CTAs along Y that share loads of X."""
        return self.config.design.cluster_shape_mnk[1]

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster (of the persistent scheduler)."""
        return self.cluster_x * self.cluster_y

    @property
    def sharers(self) -> int:
        """CTAs whose multicasts land in one CTA, itself included."""
        return self.cluster_x + self.cluster_y - 1

    @property
    def pingpong(self) -> bool:
        """Whether consumer groups work on alternate tiles."""
        return self.config.design.kernel_schedule is KernelSchedule.PINGPONG

    @property
    def split_k(self) -> bool:
        """Whether a cluster's CTAs share one tile, each with a slice of K."""
        return self.config.design.tile_scheduler is TileScheduler.SPLIT_K

    @property
    def split_k_parallel(self) -> bool:
        """Whether CTAs of several clusters share one tile, each with a slice of K."""
        return self.config.design.tile_scheduler is TileScheduler.SPLIT_K_PARALLEL

    @property
    def divides_k(self) -> bool:
        """Whether several CTAs compute a tile's sums: then TMA does not store them."""
        return self.split_k or self.split_k_parallel

    @property
    def restarts(self) -> bool:
        """Whether one CTA sums a tile's slices of K one after the other, each from zero, and adds them in registers."""
        return self.config.design.tile_scheduler is TileScheduler.RESTARTED

    @property
    def sums_slices(self) -> bool:
        """Whether a slice's promoted sums are kept apart from those of the slices before it."""
        return self.restarts and self.promoted

    @property
    def slice_step(self) -> int:
        """Elements along K of which slices are multiples, where K is divided."""
        return self.config.design.slice_step or self.tile_k

    @property
    def split_tile(self) -> tuple[int, int] | None:
        """Rows and columns of D of a cluster's tile, where slices of K meet in a workspace."""
        tile = (self.cluster_x * self.tile_x, self.cluster_y * self.tile_y)
        return tile if self.split_k_parallel else None

    @property
    def consumer_groups(self) -> int:
        """Warp groups that multiply."""
        return CONSUMER_GROUPS[self.config.design.kernel_schedule]

    @property
    def group_rows(self) -> int:
        """Rows of X that one consumer group multiplies."""
        return self.tile_x if self.pingpong else self.tile_x // self.consumer_groups

    @property
    def slabs(self) -> int:
        """WGMMAs along X of one consumer group."""
        return self.group_rows // SLAB

    @property
    def consumers(self) -> int:
        """Threads that multiply."""
        return 128 * self.consumer_groups

    @property
    def moves_registers(self) -> bool:
        """Whether producers give registers to consumers, which takes a whole warp group of them."""
        return self.consumer_groups == 2

    @property
    def threads(self) -> int:
        """Threads of a CTA: consumers, then a warp for TMA, then those for scales."""
        return self.consumers + (128 if self.moves_registers else 64)

    @property
    def scale_warps(self) -> int:
        """Warps that copy scales: of a whole warp group of producers, two are free for it."""
        return 2 if self.moves_registers else 1

    @property
    def copying_threads(self) -> int:
        """Threads that copy a part of each stage without TMA."""
        return 32 * self.scale_warps if self.grouped else 0

    @property
    def producer_registers(self) -> int:
        """Registers a producer thread keeps."""
        return 40

    @property
    def consumer_registers(self) -> int:
        """Registers a consumer thread gets."""
        return 232

    # Shared memory ---------------------------------------------------------------------------------------------------

    @property
    def box_rows(self) -> int:
        """Rows of one TMA box, where A comes box by box because it leaves boxes of the tile empty; 0 if never.

        TMA takes longer to fill the rows beyond A with zeros than to load them (docs/notes/tiles.md).
        """
        if not self.swap_ab or self.cluster_size > 1:
            return 0
        return SMALL_BOX if self.tile_m <= SMALL_TILE else LARGE_BOX

    @property
    def x_bytes(self) -> int:
        """Bytes of X in a stage."""
        return self.tile_x * self.tile_k * self.x_dtype.bits // 8

    @property
    def y_bytes(self) -> int:
        """Bytes of Y in a stage."""
        return self.tile_y * self.tile_k * self.y_dtype.bits // 8

    @property
    def a_scales(self) -> int:
        """Scales of A for one group of K."""
        return self.tile_m if self.grouped else 0

    @property
    def b_scales(self) -> int:
        """Scales of B for one group of K: of each column, or of the most blocks that a tile can touch."""
        if not self.grouped:
            return 0
        if self.b_rows_scaled:
            return self.tile_n
        g = self.group_size
        return -(-(self.tile_n + g - gcd(self.tile_n, g)) // g)

    @property
    def blocks_aligned(self) -> bool:
        """Whether blocks of B's scales begin at the same columns of every tile."""
        g = self.group_size
        return self.tile_n % g == 0 or g % self.tile_n == 0

    @property
    def scales(self) -> int:
        """Floats of scales in a stage, in whole quads."""
        return self.promotions * (self.a_scales + (self.b_scales + 3) // 4 * 4) if self.grouped else 0

    @property
    def factors(self) -> int:
        """Registers of a thread for one unit's scales: those of its two rows (with each block of B), then those of its
        columns."""
        if self.b_rows_scaled or self.swap_ab:
            return 2 + self.tile_y // 4
        return 2 * max(self.b_scales, 1)

    @property
    def store_columns(self) -> int:
        """Rows of Y in one box of D."""
        return gcd(self.tile_y, STORE_COLUMNS)

    @property
    def store_buffers(self) -> int:
        """Boxes of D that a group has in shared memory.

        Nothing hides the epilogue of a promoted kernel. So it stores a tile at one go where 3 stages remain. That gains
        1 to 4 % of 256x128 tiles against a fourth stage (H200, 2026-11-20). Others have two boxes, where that does not
        cost a stage.
        """
        boxes = self.slabs * self.tile_y // self.store_columns
        if self.promoted and not self.pingpong and self._stages_beside(boxes) >= 3:
            return boxes
        most = min(STORE_BUFFERS, boxes)
        return most if self._stages_beside(most) == self._stages_beside(1) else 1

    @property
    def meets_end(self) -> bool:
        """Whether the main loop knows its last K step, so that the epilogue begins while the tensor core multiplies it."""
        in_step = not self.promoted or self.overlapped or self.alternates or self.factors_ahead
        return not self.divides_k and not self.restarts and in_step

    @property
    def stores_early(self) -> bool:
        """Whether the epilogue writes a slab's boxes while the next slab is multiplied: each box of the tile has a
        buffer then.
        """
        whole = self.store_buffers == self.slabs * self.tile_y // self.store_columns
        return self.meets_end and self.factors_ahead and whole

    @property
    def store_elements(self) -> int:
        """Elements of D waiting in shared memory."""
        return 0 if self.divides_k else self.consumer_groups * self.store_buffers * SLAB * self.store_columns

    @property
    def group_m(self) -> int:
        """Rows of A in a consumer group's part of the tile."""
        return self.tile_y if self.swap_ab else self.group_rows

    @property
    def group_n(self) -> int:
        """Columns of B in a consumer group's part of the tile."""
        return self.group_rows if self.swap_ab else self.tile_y

    @property
    def traced(self) -> Traced:
        """The steps by which the epilogue makes a result of a sum."""
        return self.config.traced

    @property
    def m_fields(self) -> tuple[Input, ...]:
        """The epilogue's inputs for each row of A."""
        return self.traced.along(Along.ROW)

    @property
    def n_fields(self) -> tuple[Input, ...]:
        """The epilogue's inputs for each column of B."""
        return self.traced.along(Along.COLUMN)

    @property
    def scalar_fields(self) -> tuple[Input, ...]:
        """The numbers that the epilogue reads."""
        return self.traced.along(Along.SCALAR)

    @property
    def vector_words(self) -> int:
        """Words of shared memory that a group has for rows and columns of its epilogue."""
        return 0 if self.divides_k else len(self.m_fields) * self.group_m + len(self.n_fields) * self.group_n

    @property
    def prefetched(self) -> int:
        """K steps of weights, at most, to prefetch before the kernel before this one has ended: for a small M."""
        return PREFETCH_BYTES * self.cluster_y // self.x_bytes if self.swap_ab else 0

    @property
    def partial_pitch(self) -> int:
        """Floats between two rows of partial sums: whole quads, in different banks."""
        return self.tile_x + 4

    @cached_property
    def stages(self) -> int:
        """Stages of the main loop: as the config says, or as many as fit."""
        if self.config.design.stages is not None:
            return self.config.design.stages
        return self.stage_room // self.stage_bytes

    @property
    def stage_room(self) -> int:
        """Bytes of shared memory for stages."""
        return SHARED_BYTES - self._fixed_bytes(self.store_buffers)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a CTA, an upper bound."""
        return self._fixed_bytes(self.store_buffers) + self.stages * self.stage_bytes

    @property
    def ctas_of_sm(self) -> int:
        """CTAs that fit on an SM by shared memory and threads."""
        by_memory = SHARED_BYTES_OF_SM // (self.shared_bytes + SHARED_BYTES_RESERVED)
        return max(1, 1 if self.moves_registers else min(by_memory, 4))

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: operands, scales and two barriers."""
        return self.x_bytes + self.y_bytes + 4 * self.scales + 16

    def _fixed_bytes(self, store_buffers: int) -> int:
        boxes = 0 if self.divides_k else store_buffers * SLAB * self.store_columns
        return 1024 + self.consumer_groups * (2 * boxes + 4 * self.vector_words)  # the first: barriers

    def _stages_beside(self, store_buffers: int) -> int:
        return (SHARED_BYTES - self._fixed_bytes(store_buffers)) // self.stage_bytes
