"""Waiting for barriers in shared memory."""

# mypy: ignore-errors
import cutlass.cute as cute
from cutlass import Int32


@cute.jit
def wait(barrier: cute.Pointer, phase: Int32):
    """Waits until a phase of a barrier has ended.

    In place of `cute.arch.mbarrier_wait`, which puts the warp to sleep for as long as 10 ms with NANOSLEEP.
    """
    cute.arch.inline_ptx(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [{$r0}], {$r1};\n"
        "@!done bra again;\n}",
        read_only_args=[barrier, Int32(phase)],
    )
