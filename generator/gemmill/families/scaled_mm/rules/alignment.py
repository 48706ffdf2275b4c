"""Rules about the rows that each kind of load can take."""

from collections.abc import Iterator

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.family.operand import TMA_BYTES
from gemmill.vocab import Accumulation, DType


def tma_alignment(config: KernelConfig) -> Iterator[str]:
    """TMA moves boxes whose rows start at multiples of 16 bytes."""
    s, x = config.design, config.operands
    if not s.kernel_schedule.uses_tma:
        return
    for operand, alignment, dtype in (
        ("a", s.alignment_a, x.a_dtype),
        ("b", s.alignment_b, x.b_dtype),
        ("d", s.alignment_d, x.out_dtype),
    ):
        if alignment * dtype.bits != TMA_BYTES * 8:
            yield f"alignment of {operand} is {alignment} x {dtype}: TMA takes rows of {TMA_BYTES} bytes exactly"


def unaligned_fallback(config: KernelConfig) -> Iterator[str]:
    """The fallback reads single elements, so that it can take everything that the others refuse."""
    s = config.design
    if not s.kernel_schedule.uses_tma and (s.alignment_a, s.alignment_b, s.alignment_d) != (1, 1, 1):
        yield f"{s.kernel_schedule} is the unaligned fallback: its alignments are 1"


def fallback_has_one_form(config: KernelConfig) -> Iterator[str]:
    """The fallback is there to be right. The rule rejects settings that it would ignore, so that no two variants are
    the same.
    """
    s = config.design
    if s.kernel_schedule.uses_tma:
        return
    if s.swap_ab or s.stages is not None:
        yield (
            f"swap_ab={s.swap_ab} stages={s.stages} with {s.kernel_schedule}: it has one operand order and its own pipeline"
        )
    if s.accumulation is Accumulation.FAST and config.operands.a_dtype is DType.E4M3:
        yield f"{s.kernel_schedule} adds in FP32 registers: its accumulation is promoted, not {s.accumulation}"
