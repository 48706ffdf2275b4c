"""The designs of kernels for block-scaled operands, and their main loops."""

from dataclasses import dataclass
from enum import StrEnum

from gemmill.formats.layout import SIDE


class FewLoop(StrEnum):
    """The path of codes into the registers of warps, for a small M."""

    REGISTERS = "registers"
    """straight from memory: kernels/blockscaled/few_rows/skinny_mm.cuh"""
    RING = "ring"
    """through stages of each warp, some steps ahead: skinny_cp_async_mm.cuh"""
    TMA = "tma"
    """through stages that TMA fills, for weights packed in rows and 16-bit activations: skinny_tma_mm.cuh"""


@dataclass(frozen=True, kw_only=True)
class FewDesign:
    """The design for a small M."""

    main_loop: FewLoop = FewLoop.REGISTERS
    tile_m: int
    """Rows of A in a tile, which has 64 rows of B."""
    warps: int
    """Warps that divide a CTA's columns of K."""
    stages: int = 0
    """Stages that a warp has in shared memory of its own; 0 where codes come straight to registers."""

    def __post_init__(self) -> None:
        if bool(self.stages) == (self.main_loop is FewLoop.REGISTERS):
            raise ValueError(
                f"stages={self.stages} contradicts main_loop={self.main_loop}: codes that come straight to registers have no stages"
            )

    @property
    def tile_mn(self) -> tuple[int, int]:
        """Rows of A and of B in a tile."""
        return self.tile_m, SIDE


class ManyLoop(StrEnum):
    """The upcast of both operands' codes on their way into shared memory."""

    PIECES = "pieces"
    """32 codes of each operand a thread, of any pair: kernels/blockscaled/many_rows/general_mm.cuh"""
    WORDS = "words"
    """4-bit codes of both operands in words of eight: large_mm.cuh"""
    AHEAD = "ahead"
    """the same, with a prefetch distance of two steps, nvfp4 to f16: large_prefetch_mm.cuh"""


@dataclass(frozen=True, kw_only=True)
class ManyDesign:
    """The design for a large M."""

    main_loop: ManyLoop = ManyLoop.PIECES
    tile_mn: tuple[int, int]
    """Rows of A and of B in a tile."""
    stages: int = 0
    """Stages of 64 columns, with a prefetch distance of two steps for codes; 0 where there are two stages."""

    def __post_init__(self) -> None:
        if bool(self.stages) != (self.main_loop is ManyLoop.AHEAD):
            raise ValueError(
                f"stages={self.stages} contradicts main_loop={self.main_loop}: {ManyLoop.AHEAD} has some, others have two"
            )

    @property
    def stage_bytes(self) -> int:
        """Bytes of 64 columns of both operands, widened."""
        return sum(self.tile_mn) * SIDE * 2


class Group(StrEnum):
    """The threads that multiply 64 rows of weights together."""

    WARP = "w"
    """32 threads, by mma.sync: few tokens"""
    WARPGROUP = "g"
    """128 threads, by WGMMA"""

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return 32 if self is Group.WARP else 128


class PackedLoop(StrEnum):
    """How CTAs take tiles of packed weights, and how these end."""

    TILE = "tile"
    """one tile each: kernels/gemm/packed_mm.cuh"""
    BATCHED = "batched"
    """the same; a thread reads eight quads of partial sums at a time, not one after another: batched_mm.cuh"""
    STAYS = "stays"
    """as many CTAs as multiprocessors take tiles in turns, and load the next while they end one: packed_persistent_mm.cuh"""


@dataclass(frozen=True, kw_only=True)
class PackedDesign:
    """The design for packed weights."""

    main_loop: PackedLoop = PackedLoop.TILE
    group: Group = Group.WARPGROUP
    row_groups: int = 2
    """Groups on different rows of weights: a tile has 64 rows for each."""
    tile_m: int
    """Rows of A in a tile."""
    k_groups: int
    """Groups on the same rows, which divide the columns of a stage; more warps than that take stages in turns."""
    blocks: int
    """Blocks of `part_columns` in a stage, for each group."""
    stages: int

    @property
    def tile_mn(self) -> tuple[int, int]:
        """Rows of A and of weights in a tile."""
        return self.tile_m, SIDE * self.row_groups


class Sharing(StrEnum):
    """The division of the work on a tile, on Blackwell."""

    ONE_SM = "1sm"
    """a multiprocessor multiplies a tile (sm100a)"""
    TWO_SM = "2sm"
    """two multiprocessors multiply one together, each with half of its rows (sm100a)"""
    COOPERATIVE = "cooperative"
    """two groups of warps take halves of a tile (sm120f)"""
    PINGPONG = "pingpong"
    """two groups of warps take tiles in turns (sm120f)"""


@dataclass(frozen=True, kw_only=True)
class PairDesign:
    """How Blackwell multiplies."""

    tile_shape_mnk: tuple[int, int, int]
    """Tile of one multiplication: that of two multiprocessors together, where they share it."""
    cluster_shape_mnk: tuple[int, int, int]
    sharing: Sharing

    @property
    def tile_mn(self) -> tuple[int, int]:
        """Rows of A and of B in a tile."""
        return self.tile_shape_mnk[:2]
