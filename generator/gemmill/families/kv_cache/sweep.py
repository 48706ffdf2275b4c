"""The measured calls of attention over a compressed cache: decode, with 128 elements a vector and bf16 queries."""

from enum import StrEnum

from gemmill.families.kv_cache import NAME
from gemmill.families.kv_cache.classes import CLASSES, class_of_config
from gemmill.families.kv_cache.config import KernelKind, KvCacheConfig, Slots
from gemmill.families.kv_cache.formats import HEAD_DIMS
from gemmill.families.kv_cache.packed import KEY_FORMATS, VALUE_FORMATS
from gemmill.family import Measured, ShapedCall, Sizes, Sweep
from gemmill.vocab import DType

HEAD_DIM = 128
assert HEAD_DIM in HEAD_DIMS


class MeasuredOp(StrEnum):
    """Measured classes of calls."""

    DECODE_4 = "kv_decode_4bit"
    """pages of eden or turboquant_mse, 4 bits of keys and values"""
    DECODE_3 = "kv_decode_3bit"
    DECODE_2 = "kv_decode_2bit"
    K8V4 = "kv_slots_k8v4"
    """packed vectors in slots, in vLLM's formats"""
    NC4 = "kv_slots_4bitnc"
    K3V4 = "kv_slots_k3v4nc"
    NC3 = "kv_slots_3bitnc"
    ULTRAQUANT = "kv_slots_ultraquant"
    PROD3 = "kv_slots_prod3mse2"
    FP8 = "kv_slots_fp8"

    @property
    def bits(self) -> int:
        """Bits of an element in pages; 0 in slots."""
        return {MeasuredOp.DECODE_4: 4, MeasuredOp.DECODE_3: 3, MeasuredOp.DECODE_2: 2}.get(self, 0)

    @property
    def slots(self) -> Slots:
        """The format of slots; `Slots.ANY` for pages."""
        return Slots.ANY if self.bits else Slots(self.value.removeprefix("kv_slots_"))

    @property
    def number(self) -> int:
        """The number of its class of calls."""
        return CLASSES.number_of(
            kind=KernelKind.DECODE if self.bits else KernelKind.ATTEND,
            dtype=DType.BF16,
            head_dim=HEAD_DIM,
            key_bits=self.bits,
            value_bits=self.bits,
            value_dim=0,
            rotary=None,
            slots=self.slots,
        )

    @property
    def cache_format(self) -> str:
        """The format's name, as the op takes it."""
        if self.bits:
            return f"k_eden{self.bits}_v_eden{self.bits}"
        keys, values = self.slots.sides
        return f"k_{keys}_v_{values}"

    @property
    def token_bytes(self) -> int:
        """Bytes of a key and a value of one token and head."""
        if self.bits:
            return 2 * (HEAD_DIM * self.bits // 8 + 2)
        keys, values = self.slots.sides
        return KEY_FORMATS[keys].size(HEAD_DIM) + VALUE_FORMATS[values].size(HEAD_DIM)


def _measured(op: MeasuredOp) -> Measured:
    def call(sizes: Sizes) -> ShapedCall:
        told = tuple(sizes[name] for name in ("batch", "rows", "heads", "kv_heads", "length"))
        return ShapedCall(family=NAME, call_class=op.number, sizes=told, alignments=())

    def moved(s: Sizes) -> int:
        return s["batch"] * (s["length"] * s["kv_heads"] * op.token_bytes + 4 * s["rows"] * s["heads"] * HEAD_DIM)

    return Measured(
        name=op.value,
        call=call,
        flops=lambda s: 4.0 * s["batch"] * s["rows"] * s["heads"] * s["length"] * HEAD_DIM,
        operand_bits=16,
        bytes=moved,
        serves=lambda config: class_of_config(config) == op.number,
    )


def _shown(config: KvCacheConfig) -> tuple[str, str]:
    return "pages" if config.operands.slots is Slots.ANY else "slots", str(config.half_waves)


SWEEP = Sweep(
    measured=tuple(_measured(op) for op in MeasuredOp),
    steps=(1024, 4096, 8192, 16384, 32768, 131072),
    example={"batch": 8, "rows": 1, "heads": 32, "kv_heads": 8, "length": [4096, 16384]},
    tiny={"batch": 2, "rows": 1, "heads": 4, "kv_heads": 2, "length": 64},
    is_last_resort=lambda config: False,
    kin=lambda config: config,
    kinds={"pages": "pages of heads; shown are half waves", "slots": "slots of tokens; shown are half waves"},
    shown=_shown,
)
