"""The measurements of the block-scaled GEMMs."""

from enum import StrEnum

from gemmill.families.blockscaled import NAME
from gemmill.families.blockscaled.classes import CLASSES
from gemmill.families.blockscaled.config import AnyConfig, PackedConfig, PairConfig
from gemmill.families.blockscaled.design import FewLoop, Group, ManyLoop
from gemmill.families.blockscaled.pairs import SPREAD_PAIRS, Pair
from gemmill.families.blockscaled.shaped_call import spread_alignment
from gemmill.family import Measured, ShapedCall, Sizes, Sweep
from gemmill.family.operand import TMA_BYTES
from gemmill.vocab import DType


class MeasuredOp(StrEnum):
    """Measured classes of calls; results are bf16."""

    NVFP4_BF16 = "nvfp4_bf16"
    """packed nvfp4 weights and bf16 activations"""
    MXFP4_BF16 = "mxfp4_bf16"
    MXFP6_BF16 = "mxfp6_bf16"
    MXFP8_BF16 = "mxfp8_bf16"
    MXFP4_E4M3 = "mxfp4_e4m3"
    """packed mxfp4 weights and e4m3 activations with a scale for each row"""
    NVFP4_E4M3 = "nvfp4_e4m3"
    """the same with nvfp4 weights, rounded"""
    NVFP4 = "nvfp4"
    """both operands nvfp4"""
    MXFP4 = "mxfp4"
    MXFP8 = "mxfp8"
    MXFP8_MXFP6 = "mxfp8_mxfp6"
    """activations mxfp8, weights mxfp6"""
    MXFP8_MXFP4 = "mxfp8_mxfp4"

    @property
    def pair(self) -> Pair:
        """The operands of the product."""
        return dict(zip(MeasuredOp, Pair, strict=True))[self]

    @property
    def prepacked(self) -> bool:
        """Whether the call has packed weights."""
        return self.pair.a_format is None

    @property
    def number(self) -> int:
        """Number of the class of its calls."""
        return CLASSES.number_of(pair=self.pair, out_dtype=DType.BF16, prepacked=self.prepacked, grouped=False)


def _measured(op: MeasuredOp) -> Measured:
    pair, number = op.pair, op.number
    a_bits = pair.a_bits

    def call(sizes: Sizes) -> ShapedCall:
        m, n, k = (sizes[name] for name in "mnk")
        a = _aligned(m, k * a_bits // 8)
        bits = pair.b_format.code.bits
        b = TMA_BYTES if op.prepacked else _aligned(n, k * bits // 8)
        if pair in SPREAD_PAIRS:
            stride = k * bits // 8 if n > 1 else -(-k * bits // 8 // TMA_BYTES) * TMA_BYTES
            b = spread_alignment(b, 0, stride, is_of_6_bits=bits == 6)
        return ShapedCall(
            family=NAME, call_class=number, sizes=(m, n, k), alignments=(a, b, _aligned(m, 2 * n), TMA_BYTES)
        )

    def moved(sizes: Sizes) -> int:
        m, n, k = (sizes[name] for name in "mnk")
        of_a = pair.a_bits / 8 if pair.a_format is None else pair.a_format.bytes_per_value
        return int(m * k * of_a + n * k * pair.b_format.bytes_per_value) + 2 * m * n

    return Measured(
        name=op.value,
        call=call,
        flops=lambda s: 2.0 * s["m"] * s["n"] * s["k"],
        operand_bits=max(a_bits, pair.b_format.code.bits),
        bytes=moved,
        serves=lambda config: CLASSES.number(config) == number,
        least={"k": pair.b_format.group},
    )


def _aligned(rows: int, row_bytes: int) -> int:
    """Alignment of rows as torch allocates them."""
    return TMA_BYTES if rows == 1 else (row_bytes | TMA_BYTES) & -(row_bytes | TMA_BYTES)


def _shown(config: AnyConfig) -> tuple[str, str]:
    match config:
        case PairConfig():
            return config.tag, str(config.design.tile_mn[1])
        case PackedConfig():
            return config.design.group.value, str(config.design.tile_m)
        case _:
            return config.design.main_loop.value, str(config.design.tile_mn[0])


SWEEP = Sweep(
    measured=tuple(_measured(op) for op in MeasuredOp),
    steps=(1, 8, 16, 32, 64, 96, 128, 256, 512, 1024, 4096),
    example={"m": [1, 16, 64], "n": 4096, "k": 4096},
    tiny={"m": 32, "n": 96, "k": 64},
    is_last_resort=lambda config: False,
    kin=lambda config: config,
    kinds={
        Group.WARP.value: "packed weights, by warps",
        Group.WARPGROUP.value: "packed weights, by groups of 128 threads",
        FewLoop.REGISTERS.value: "codes widened in registers",
        FewLoop.RING.value: "codes prefetched, upcast in registers",
        FewLoop.TMA.value: "packed codes brought by TMA, widened in registers",
        ManyLoop.PIECES.value: "codes widened in shared memory",
        ManyLoop.WORDS.value: "4-bit codes widened in shared memory",
        ManyLoop.AHEAD.value: "4-bit codes prefetched, upcast in shared memory",
        PairConfig.tag: "CUTLASS's block-scaled collectives",
    },
    shown=_shown,
)
