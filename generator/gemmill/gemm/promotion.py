"""The time that promotions take where each WGMMA has scales of its own, as models of grouped and gated GEMMs count it."""

from gemmill.gemm.facts import Facts
from gemmill.gemm.limits import SLAB

LATENCY_NS, ISSUE_NS, COLUMN_NS = 86.0, 14.5, 0.733
"""From the issue of a WGMMA until its sums can be promoted; for a group of warps to issue one and promote its sums, and the part of
that for each column. They are scaled GEMMs', fitted to 936 times (H200, 2026-11-27, 3332e200, docs/notes/tables.md)."""


def promoted_ns(facts: Facts, k: int) -> int:
    """Nanoseconds of a multiprocessor for the promotions of `k` elements along K of a tile; 0 where several WGMMAs add to one set of
    sums.

    A group of warps waits for each set of sums, unless others are multiplied meanwhile; CTAs wait at the same time.
    """
    if not facts.promotes_each_mma:
        return 0
    issue = ISSUE_NS + COLUMN_NS * facts.tile_y
    waited = LATENCY_NS / facts.partials + issue
    if facts.alternates:
        waited = max(issue, (LATENCY_NS + issue) / facts.partials)
    of_all, of_group = facts.tile_x // SLAB * issue, facts.slabs * waited / facts.ctas_of_sm
    return int(k // facts.promotion_k * max(of_all, of_group))
