"""What a DSL kernel knows when it is compiled: a config's shapes, split among warp groups and shared memory.

Names of the kernel: X is the operand whose rows fill WGMMA's 64 rows, Y the one whose rows are its columns. Without
swap_ab X is A (tokens) and Y is B's columns (weights); with it they change places. Nothing here needs the DSL.
"""

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from gemmill.space.config import KernelConfig
from gemmill.vocab import (
    Accumulation,
    Arch,
    DType,
    EpilogueKind,
    KernelSchedule,
    ScaleGranularity,
    TileScheduler,
)

SLAB = 64
"""Rows of X that one WGMMA multiplies."""
SHARED_BYTES = 227 * 1024
"""Of one CTA at most (compute capability 9.0)."""
SHARED_BYTES_OF_SM = 228 * 1024
SHARED_BYTES_RESERVED = 1024
"""That the system takes of each CTA."""
PROMOTION = 128
"""Elements along K whose products stay in the tensor core's narrower accumulator before they are promoted."""
STORE_COLUMNS = 64
"""Columns of Y in one box of D at most."""
STORE_BUFFERS = 2
ACCUMULATOR_REGISTERS = 208
"""Of 232 a consumer thread gets, what is left beside addresses and the epilogue."""
PARTIAL_REGISTERS = 64
"""Registers a thread may spend on partial sums of several groups at once."""
PREFETCH_BYTES = 32 * 1024
"""Of weights, into L2, by each CTA (docs/notes/split_k.md)."""
CONSUMER_GROUPS = {KernelSchedule.COOPERATIVE: 2, KernelSchedule.PINGPONG: 2, KernelSchedule.BASIC: 1}
OPERANDS = (DType.E4M3, DType.E5M2, DType.S8, DType.BF16, DType.F16)
OUTPUTS = (DType.BF16, DType.F16)


@dataclass(frozen=True)
class Plan:
    """The compile-time facts of one kernel. Raises ValueError, with a sentence, for a config that it cannot be made of."""

    config: KernelConfig

    def __post_init__(self) -> None:
        for check in (self._check_problem, self._check_tile, self._check_groups, self._check_split):
            check()
        if self.stages < 2:
            raise ValueError(
                f"{self._tile} leaves room for {self.stages} stages in {SHARED_BYTES} bytes of shared memory: "
                "the pipeline needs 2; take a smaller tile"
            )
        if self.shared_bytes > SHARED_BYTES:
            raise ValueError(
                f"{self._tile} with {self.stages} stages needs {self.shared_bytes} bytes of shared memory of "
                f"{SHARED_BYTES}: take fewer stages or a smaller tile"
            )

    # What is computed ------------------------------------------------------------------------------------------------

    @property
    def mma_steps(self) -> int:
        """WGMMAs along K in one K step: each takes 32 bytes."""
        return self.tile_k * self.x_dtype.bits // 256

    @property
    def swap_ab(self) -> bool:
        """Whether X holds the weights."""
        return self.config.schedule.swap_ab

    @property
    def x_dtype(self) -> DType:
        """Type of X."""
        return self.config.problem.b_dtype if self.swap_ab else self.config.problem.a_dtype

    @property
    def y_dtype(self) -> DType:
        """Type of Y."""
        return self.config.problem.a_dtype if self.swap_ab else self.config.problem.b_dtype

    @property
    def epilogue(self) -> EpilogueKind:
        """What happens to an accumulator before it is stored."""
        return self.config.problem.epilogue

    @property
    def grouped(self) -> bool:
        """Whether scales change along K, so that the main loop applies them."""
        return bool(self.config.problem.group_size)

    @property
    def b_rows_scaled(self) -> bool:
        """Whether each column of B has scales of its own, in place of one for a block of columns."""
        return self.config.problem.b_scale is ScaleGranularity.GROUP

    @property
    def promoted(self) -> bool:
        """Whether partial sums leave the tensor core's accumulator before the end of K."""
        return self.grouped or self.config.schedule.accumulation is Accumulation.PROMOTED

    @property
    def promotion_k(self) -> int:
        """Elements along K between two promotions."""
        return self.config.problem.group_size or PROMOTION

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
        """Registers of a thread for the sums of one slab."""
        return self.tile_y // 2

    @property
    def overlapped(self) -> bool:
        """Whether a group promotes one K step's sums while its next one's multiplications run: it takes two sets."""
        return self.promoted and self.units == 1 and not self.split_k and 3 * self.unit_registers <= ACCUMULATOR_REGISTERS

    @property
    def partials(self) -> int:
        """Sets of partial sums, each of one unit: of a whole K step where they are small, so that WGMMA waits once."""
        if not self.promoted:
            return 0
        if self.overlapped:
            return 2
        return self.units if self.units * self.unit_registers <= PARTIAL_REGISTERS else 1

    # How it is divided -----------------------------------------------------------------------------------------------

    @property
    def tile_x(self) -> int:
        """Rows of X in a CTA's tile."""
        return self.config.schedule.tile_shape_mnk[0]

    @property
    def tile_y(self) -> int:
        """Rows of Y in a CTA's tile."""
        return self.config.schedule.tile_shape_mnk[1]

    @property
    def tile_k(self) -> int:
        """Elements along K of one stage."""
        return self.config.schedule.tile_shape_mnk[2]

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
        return self.config.schedule.cluster_shape_mnk[0]

    @property
    def cluster_y(self) -> int:
        """CTAs along Y that share loads of X."""
        return self.config.schedule.cluster_shape_mnk[1]

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
        return self.config.schedule.kernel_schedule is KernelSchedule.PINGPONG

    @property
    def split_k(self) -> bool:
        """Whether a cluster's CTAs share one tile, each with a slice of K."""
        return self.config.schedule.tile_scheduler is TileScheduler.SPLIT_K

    @property
    def consumer_groups(self) -> int:
        """Warp groups that multiply."""
        return CONSUMER_GROUPS[self.config.schedule.kernel_schedule]

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
        """Of a CTA: consumers, then a warp for TMA, then one for scales."""
        return self.consumers + (128 if self.moves_registers else 64)

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
    def x_bytes(self) -> int:
        """Of X in a stage."""
        return self.tile_x * self.tile_k * self.x_dtype.bits // 8

    @property
    def y_bytes(self) -> int:
        """Of Y in a stage."""
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
        g = self.config.problem.group_size
        return -(-(self.tile_n + g - gcd(self.tile_n, g)) // g)

    @property
    def blocks_aligned(self) -> bool:
        """Whether blocks of B's scales begin at the same columns of every tile."""
        g = self.config.problem.group_size
        return self.tile_n % g == 0 or g % self.tile_n == 0

    @property
    def scales(self) -> int:
        """Floats of scales in a stage, in whole quads."""
        return self.promotions * (self.a_scales + (self.b_scales + 3) // 4 * 4) if self.grouped else 0

    @property
    def factors(self) -> int:
        """Registers of a thread for one unit's scales: of its two rows (with each block of B), then of its columns."""
        if self.b_rows_scaled or self.swap_ab:
            return 2 + self.tile_y // 4
        return 2 * max(self.b_scales, 1)

    @property
    def store_columns(self) -> int:
        """Rows of Y in one box of D."""
        return gcd(self.tile_y, STORE_COLUMNS)

    @property
    def store_buffers(self) -> int:
        """Boxes of D that a group has in shared memory: two, where that does not cost a stage of the main loop."""
        most = min(STORE_BUFFERS, self.slabs * self.tile_y // self.store_columns)
        return most if self._stages_beside(most) == self._stages_beside(1) else 1

    @property
    def store_elements(self) -> int:
        """Elements of D waiting in shared memory."""
        return 0 if self.split_k else self.consumer_groups * self.store_buffers * SLAB * self.store_columns

    @property
    def group_m(self) -> int:
        """Rows of A in a consumer group's part of the tile."""
        return self.tile_y if self.swap_ab else self.group_rows

    @property
    def group_n(self) -> int:
        """Columns of B in a consumer group's part of the tile."""
        return self.group_rows if self.swap_ab else self.tile_y

    @property
    def m_fields(self) -> tuple[str, ...]:
        """What the epilogue reads of each row of A."""
        per_token = self.epilogue is EpilogueKind.SCALED_AZP_PER_TOKEN
        return (*(() if self.grouped else ("scale",)), *(("azp",) if per_token else ()))

    @property
    def n_fields(self) -> tuple[str, ...]:
        """What the epilogue reads of each column of B."""
        return (
            *(() if self.grouped else ("scale",)),
            *(("bias",) if self.epilogue.takes_bias else ()),
            *(("adj",) if self.epilogue.takes_azp else ()),
        )

    @property
    def vector_words(self) -> int:
        """Words of shared memory of a group for rows and columns of its epilogue."""
        return 0 if self.split_k else len(self.m_fields) * self.group_m + len(self.n_fields) * self.group_n

    @property
    def prefetched(self) -> int:
        """K steps of weights that are asked for before the kernel before this one has ended; more delays the loads."""
        return PREFETCH_BYTES // self.x_bytes if self.swap_ab and self.cluster_size == 1 else 0

    @property
    def partial_pitch(self) -> int:
        """Floats between two rows of partial sums: whole quads, in different banks."""
        return self.tile_x + 4

    @cached_property
    def stages(self) -> int:
        """Of the main loop: as the config says, or as many as fit."""
        if self.config.schedule.stages is not None:
            return self.config.schedule.stages
        return self._stages_beside(self.store_buffers)

    @property
    def shared_bytes(self) -> int:
        """Of the whole, an upper bound."""
        return self._fixed_bytes(self.store_buffers) + self.stages * self._stage_bytes

    @property
    def ctas_of_sm(self) -> int:
        """CTAs that fit on an SM by shared memory and threads."""
        by_memory = SHARED_BYTES_OF_SM // (self.shared_bytes + SHARED_BYTES_RESERVED)
        return max(1, 1 if self.moves_registers else min(by_memory, 4))

    @property
    def _stage_bytes(self) -> int:
        return self.x_bytes + self.y_bytes + 4 * self.scales + 16

    def _fixed_bytes(self, store_buffers: int) -> int:
        boxes = 0 if self.split_k else store_buffers * SLAB * self.store_columns
        return 1024 + self.consumer_groups * (2 * boxes + 4 * self.vector_words)  # the first: barriers

    def _stages_beside(self, store_buffers: int) -> int:
        return (SHARED_BYTES - self._fixed_bytes(store_buffers)) // self._stage_bytes

    @property
    def _tile(self) -> str:
        return f"tile {self.tile_x}x{self.tile_y}x{self.tile_k}"

    # Static checks ---------------------------------------------------------------------------------------------------

    def _check_problem(self) -> None:
        p, s = self.config.problem, self.config.schedule
        if self.config.arch is not Arch.SM90A:
            raise ValueError(f"arch {self.config.arch} is not offered by the cutedsl backend: it writes WGMMA for sm90a")
        if p.a_dtype not in OPERANDS or p.a_dtype is not p.b_dtype:
            raise ValueError(
                f"operands {p.a_dtype} x {p.b_dtype}: the DSL kernel multiplies two operands of one type of "
                f"{', '.join(OPERANDS)}"
            )
        if p.out_dtype not in OUTPUTS:
            raise ValueError(f"out_dtype {p.out_dtype}: the DSL kernel stores {' or '.join(OUTPUTS)}")
        if s.kernel_schedule not in CONSUMER_GROUPS:
            raise ValueError(
                f"kernel_schedule {s.kernel_schedule}: the DSL kernel runs {', '.join(CONSUMER_GROUPS)}"
            )
        if s.tile_scheduler is TileScheduler.STREAM_K:
            raise ValueError("tile_scheduler streamk: the DSL kernel divides K by split_k, over the CTAs of a cluster")
        if self.epilogue.takes_azp and p.a_dtype is not DType.S8:
            raise ValueError(f"epilogue {self.epilogue} corrects integer sums: it takes s8, not {p.a_dtype}")

    def _check_tile(self) -> None:
        s = self.config.schedule
        unit = SLAB * (1 if self.pingpong else self.consumer_groups)
        if self.tile_x % unit:
            raise ValueError(f"{self._tile}: rows are not a multiple of {unit}, which {s.kernel_schedule} multiplies")
        if self.tile_y % 16 or not 16 <= self.tile_y <= 256:
            raise ValueError(f"{self._tile}: columns are not a multiple of 16 up to 256")
        if self.tile_k * self.x_dtype.bits % 1024:
            raise ValueError(f"{self._tile}: the K step is not whole rows of 128 bytes")
        if self.tile_k % self.promotion_k and self.promoted:
            raise ValueError(f"{self._tile}: the K step is not a multiple of {self.promotion_k}, after which sums are promoted")
        registers = (self.slabs + self.partials) * self.unit_registers
        if registers > ACCUMULATOR_REGISTERS:
            raise ValueError(f"{self._tile} needs {registers} accumulator registers a thread of {ACCUMULATOR_REGISTERS}")
        if self.tile_x % (8 * self.cluster_y) or self.tile_y % (8 * self.cluster_x):
            raise ValueError(
                f"{self._tile} does not divide into multicast slices of 8 rows in a cluster of "
                f"{self.cluster_x}x{self.cluster_y}"
            )
        if self.cluster_size > 8:
            raise ValueError(f"cluster {self.cluster_x}x{self.cluster_y} has {self.cluster_size} CTAs of 8")

    def _check_groups(self) -> None:
        p = self.config.problem
        if not self.grouped:
            return
        if self.epilogue.takes_azp:
            raise ValueError(f"epilogue {self.epilogue} with group scales: a zero point is for scales per row")
        if p.a_scale is not ScaleGranularity.GROUP or p.b_scale not in (ScaleGranularity.GROUP, ScaleGranularity.BLOCK):
            raise ValueError(
                f"a_scale={p.a_scale} b_scale={p.b_scale}: grouped kernels take group for A and group or block for B"
            )
        if self.b_scales > 2 and not self.b_rows_scaled and not self.blocks_aligned and not self.swap_ab:
            raise ValueError(
                f"{self._tile} can touch {self.b_scales} blocks of {p.group_size} columns at columns that differ from "
                "tile to tile: the DSL kernel chooses between 2"
            )
        if self.pingpong:
            raise ValueError(
                "pingpong with group scales: one group promotes while the other multiplies, which takes the "
                "cooperative schedule"
            )

    def _check_split(self) -> None:
        s = self.config.schedule
        if self.split_k and (not self.swap_ab or self.cluster_size > 1 or self.pingpong):
            raise ValueError(
                f"split_k with swap_ab={s.swap_ab} cluster={s.cluster_shape_mnk} {s.kernel_schedule}: it takes swap_ab, "
                "a cluster of 1x1x1 (its clusters are made of the splits), and the cooperative or basic schedule"
            )
        if self.split_k and 4 * self.tile_y * self.partial_pitch > self.stages * (self.x_bytes + self.y_bytes):
            raise ValueError(
                f"{self._tile}: partial sums reuse the stages, and {self.stages} of them are too small for a tile"
            )
