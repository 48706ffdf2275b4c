"""Warps that have a row's group of results together, in one CTA or in those of a cluster, tell one another their maxima."""

# mypy: ignore-errors
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from gemmill.gemm import epilogue


@cute.jit
def tell(plan: cutlass.Constexpr, maxima: cute.Pointer, at: Int32, maximum: Float32):
    """Writes a maximum to the `at`-th place of a CTA's, in the shared memory of each CTA."""
    if cutlass.const_expr(plan.scale_ctas == 1):
        epilogue.element_at(maxima, at)[0] = maximum
    else:
        own = maxima + (cute.arch.block_idx_in_cluster() * (plan.consumers // 32 * plan.tile_y) + at)
        for rank in cutlass.range_constexpr(plan.scale_ctas):
            cute.arch.inline_ptx(
                "st.shared::cluster.f32 [{$r0}], {$r1};",
                read_only_args=[cute.arch.map_dsmem_ptr(own, Int32(rank)).toint(), maximum],
            )


@cute.jit
def meet(plan: cutlass.Constexpr, met: cute.Pointer, lane: Int32, turn: Int32):
    """Waits until all warps have told theirs, of a tile whose number modulo 2 is `turn`.

    Maxima of two tiles have room: a warp that tells those of the second tile after this one has met all warps at the tile between,
    whose maxima none tells before it has read this tile's.
    """
    if cutlass.const_expr(plan.scale_ctas == 1):
        cute.arch.barrier(barrier_id=3, number_of_threads=plan.consumers)
    else:
        cute.arch.sync_warp()
        if lane < plan.scale_ctas:
            cute.arch.inline_ptx(
                "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{$r0}];",
                read_only_args=[cute.arch.map_dsmem_ptr(met, lane).toint()],
            )
        cute.arch.inline_ptx(
            "{\n.reg .pred done;\nagain:\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [{$r0}], {$r1};\n"
            "@!done bra again;\n}",
            read_only_args=[met, turn],
        )
