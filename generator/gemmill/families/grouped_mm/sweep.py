"""The measurements of the grouped GEMMs: rows in an even deal, bf16 results."""

from enum import StrEnum
from fractions import Fraction

from gemmill.families.grouped_mm import NAME
from gemmill.families.grouped_mm.classes import CLASSES, classes_of
from gemmill.families.grouped_mm.config import AnyConfig, GroupedConfig, PackedGroupedConfig, UnalignedGroupedConfig
from gemmill.family import Measured, ShapedCall, Sizes, Sweep
from gemmill.family.operand import TMA_BYTES
from gemmill.vocab import DType, Format
from gemmill.vocab.format import MXFP4, NVFP4


class MeasuredOp(StrEnum):
    """Measured classes of calls."""

    FP8 = "experts_fp8"
    """e4m3 x e4m3, a scale for each row of A and each column of an expert's weights"""
    FP8_GROUPS = "experts_fp8_groups"
    """the same, a scale for each 1 x 128 of A and each 128 x 128 of the weights"""
    FP8_GROUPS_32 = "experts_fp8_groups_32"
    """the same, a scale for each 1 x 32 of A and each 32 x 32 of the weights"""
    INT8 = "experts_int8"
    BF16 = "experts_bf16"
    """operands of 16 bits, without scales"""
    FP8_GATHERED = "experts_fp8_gathered"
    """as experts_fp8, with rows of A gathered by their numbers"""
    FP8_GROUPS_GATHERED = "experts_fp8_groups_gathered"
    NVFP4_BF16 = "experts_nvfp4_bf16"
    """packed nvfp4 weights, rows of bf16"""
    MXFP4_BF16 = "experts_mxfp4_bf16"
    MXFP4_FP8 = "experts_mxfp4_fp8"
    """packed mxfp4 weights, rows of e4m3 with a scale each"""

    @property
    def dtype(self) -> DType:
        """Dtype of A, and of unpacked weights."""
        plain = dict.fromkeys((MeasuredOp.BF16, MeasuredOp.NVFP4_BF16, MeasuredOp.MXFP4_BF16), DType.BF16)
        return {MeasuredOp.INT8: DType.S8, **plain}.get(self, DType.E4M3)

    @property
    def weights(self) -> Format | None:
        """Format of packed weights; None for unpacked ones."""
        return {MeasuredOp.NVFP4_BF16: NVFP4, MeasuredOp.MXFP4_BF16: MXFP4, MeasuredOp.MXFP4_FP8: MXFP4}.get(self)

    @property
    def group_size(self) -> int:
        """Columns along K that share a scale; 0 without scales in groups."""
        return {MeasuredOp.FP8_GROUPS: 128, MeasuredOp.FP8_GROUPS_GATHERED: 128, MeasuredOp.FP8_GROUPS_32: 32}.get(
            self, 0
        )

    @property
    def indexed(self) -> bool:
        """Whether the op gathers rows of A."""
        return self in (MeasuredOp.FP8_GATHERED, MeasuredOp.FP8_GROUPS_GATHERED)

    @property
    def number(self) -> int:
        """Number of the class of its calls."""
        return CLASSES.number_of(
            dtype=self.dtype,
            out_dtype=DType.BF16,
            group_size=self.group_size,
            rows_scaled=False,
            indexed=self.indexed,
            format=self.weights,
            biased=False,
        )


def _measured(op: MeasuredOp) -> Measured:
    size = op.dtype.bits // 8

    def call(sizes: Sizes) -> ShapedCall:
        m, n, k, experts = (sizes[name] for name in ("m", "n", "k", "experts"))
        a, out = (TMA_BYTES if m == 1 else _aligned(row) for row in (k * size, 2 * n))
        b = _aligned(k * size) if op.weights is None else TMA_BYTES
        return ShapedCall(family=NAME, call_class=op.number, sizes=(m, n, k, experts), alignments=(a, b, out))

    def moved(s: Sizes) -> int:
        weights = min(s["m"], s["experts"]) * s["n"] * s["k"]
        of_weight = Fraction(size) if op.weights is None else op.weights.bytes_per_value
        return int(weights * of_weight) + s["m"] * s["k"] * size + 2 * s["m"] * s["n"]

    return Measured(
        name=op.value,
        call=call,
        flops=lambda s: 2.0 * s["m"] * s["n"] * s["k"],
        operand_bits=op.dtype.bits,
        bytes=moved,
        serves=lambda config: op.number in classes_of(config),
        # Of one group alone the scales could be those of channels.
        least={"k": 2 * op.group_size} if op.group_size else {},
    )


def _aligned(row_bytes: int) -> int:
    return (row_bytes | TMA_BYTES) & -(row_bytes | TMA_BYTES)


def _is_last_resort(config: AnyConfig) -> bool:
    return isinstance(config, UnalignedGroupedConfig)


def _shown(config: AnyConfig) -> tuple[str, str]:
    if isinstance(config, PackedGroupedConfig):
        return "warps" if config.by_warps else "groups", f"{config.tile_m}x{config.tile_n}"
    tiled = config.design if isinstance(config, GroupedConfig) else config
    tile_m, tile_n, _ = tiled.tile_shape_mnk
    if isinstance(config, UnalignedGroupedConfig):
        return "unaligned", f"{tile_m}x{tile_n}"
    return "swapab" if config.design.swap_ab else "ab", f"{tile_m}x{tile_n}"


SWEEP = Sweep(
    measured=tuple(_measured(op) for op in MeasuredOp),
    steps=(8, 32, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536),
    example={"m": [8, 128, 1024], "n": 4096, "k": 7168, "experts": 32},
    tiny={"m": 24, "n": 48, "k": 64, "experts": 4},
    is_last_resort=_is_last_resort,
    kin=lambda config: config,
    kinds={"swapab": "weights as rows of the tensor core", "ab": "tokens as rows", "unaligned": "without TMA"}
    | {"warps": "packed weights, by warps", "groups": "packed weights, by groups of 128 threads"},
    shown=_shown,
)
