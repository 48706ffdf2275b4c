"""Which rows each kind of load can take."""

from gemmill.space.config import KernelConfig
from gemmill.vocab import OK, Status, rejected

TMA_BYTES = 16


def tma_alignment(config: KernelConfig) -> Status:
    """TMA moves boxes whose rows start at multiples of 16 bytes."""
    s, p = config.schedule, config.problem
    if not s.kernel_schedule.uses_tma:
        return OK
    for operand, alignment, dtype in (
        ("a", s.alignment_a, p.a_dtype),
        ("b", s.alignment_b, p.b_dtype),
        ("d", s.alignment_d, p.out_dtype),
    ):
        if alignment * dtype.bits != TMA_BYTES * 8:
            return rejected(f"alignment of {operand} is {alignment} x {dtype}: TMA takes rows of {TMA_BYTES} bytes exactly")
    return OK


def unaligned_fallback(config: KernelConfig) -> Status:
    """The fallback reads single elements, so that it can take everything that the others refuse."""
    s = config.schedule
    if not s.kernel_schedule.uses_tma and (s.alignment_a, s.alignment_b, s.alignment_d) != (1, 1, 1):
        return rejected(f"{s.kernel_schedule} is the unaligned fallback: its alignments are 1")
    return OK


RULES = (tma_alignment, unaligned_fallback)
