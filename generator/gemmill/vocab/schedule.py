"""How a kernel does its work."""

from enum import StrEnum


class KernelSchedule(StrEnum):
    """How warps share one output tile."""

    COOPERATIVE = "cooperative"
    """one producer warp, two consumer warp groups on halves of one tile (TMA, WGMMA)"""
    PINGPONG = "pingpong"
    """one producer warp, two consumer warp groups on alternate tiles (TMA, WGMMA)"""
    BASIC = "basic"
    """one producer warp, one consumer warp group (TMA, WGMMA)"""
    MMA_SYNC = "mmasync"
    """every warp loads and multiplies (mma.sync), at any alignment of operands"""

    @property
    def uses_tma(self) -> bool:
        """Whether operands travel by the tensor memory accelerator, which requires 16-byte rows."""
        return self is not KernelSchedule.MMA_SYNC


class MainLoop(StrEnum):
    """Whose loop over K a GEMM's kernel has."""

    STANDARD = "standard"
    """the one that goes with backend, schedule and scheduler: of CUTLASS's collectives, the CuTe DSL's body, or a hand-written one"""
    FEW_ROWS = "fewrows"
    """the hand-written one for a small M: CTAs walk over tiles, with sums in memory of their own; scales may come in groups"""


class Accumulation(StrEnum):
    """The treatment of partial sums of FP8 products on Hopper's tensor core, which keeps 13 bits below the largest
    (FP22).
    """

    FAST = "fast"
    """sums stay in the tensor core over the whole of K; so do those of 16-bit operands, which are FP32 there"""
    PROMOTED = "promoted"
    """FP32 registers add up the sums after every 128 along K"""
    EXACT = "exact"
    """sums are integers: nothing is lost"""


class TileScheduler(StrEnum):
    """The distribution of output tiles and slices of K over CTAs."""

    PERSISTENT = "persistent"
    """a CTA walks over whole tiles"""
    STREAM_K = "streamk"
    """CTAs share the K iterations of all tiles evenly, and add partial sums in a fixed order"""
    SPLIT_K = "splitk"
    """a cluster's CTAs take equal slices of K of one tile; partial sums meet in distributed shared memory, in a fixed
    order"""
    SPLIT_K_PARALLEL = "splitkparallel"
    """CTAs, or clusters that share loads, take equal slices of K of one tile; partial sums meet in global memory, and who
    comes last adds them in a fixed order"""
    RESTARTED = "restarted"
    """a CTA walks over whole tiles; it sums each slice of K from zero, and adds slices in registers, in the same order: bits
    of the schedulers that divide K, for a large M"""


class RasterOrder(StrEnum):
    """The dimension along which neighbouring CTAs get neighbouring tiles."""

    HEURISTIC = "auto"
    ALONG_M = "alongm"
    ALONG_N = "alongn"


class EpilogueKind(StrEnum):
    """The operations on an accumulator before the kernel stores it.

    Formulas are in the guide of the GEMM ops; `acc` is the raw accumulator of quantised operands.
    """

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
        """Whether the kernel reads a bias row of the call."""
        return self is not EpilogueKind.SCALED

    @property
    def takes_azp(self) -> bool:
        """Whether the kernel corrects for a zero point of A."""
        return self in (EpilogueKind.SCALED_AZP, EpilogueKind.SCALED_AZP_PER_TOKEN)
