"""Hopper: the schedules worth compiling with the CuTe DSL. Rows as in sm90.py.

A variant costs a second or less, where one of CUTLASS costs twenty. Its tiles may be of any width that is a multiple of
16. So there is one that just fills the SMs for most shapes (docs/notes/tiles.md).
"""

from dataclasses import replace
from itertools import product

from gemmill.families.scaled_mm.candidates.sm90 import BASIC, COOPERATIVE, PINGPONG, Tables
from gemmill.vocab import RasterOrder

RASTERS = ((RasterOrder.HEURISTIC, 1), (RasterOrder.ALONG_M, 8), (RasterOrder.ALONG_N, 8))
"""Launch settings (raster order, swizzle) of kernels with many tiles."""

AT_DRAWN_SHAPES = (
    ((128, 32, 128), (1, 1, 1), COOPERATIVE),
    ((128, 144, 128), (2, 1, 1), COOPERATIVE),
    ((128, 160, 128), (2, 1, 1), COOPERATIVE),
    ((128, 160, 128), (1, 1, 1), PINGPONG),
    ((128, 192, 128), (2, 1, 1), COOPERATIVE),
    ((256, 80, 128), (1, 1, 1), COOPERATIVE),
)
"""Tiles with rows of A as columns. They serve 17 to 32 and 129 to 320 rows with less padding."""

PARALLEL = (
    ((128, 128, 128), (2, 1, 1), COOPERATIVE),
    ((128, 192, 128), (1, 2, 1), COOPERATIVE),
    ((128, 256, 128), (2, 1, 1), COOPERATIVE),
    ((256, 128, 128), (1, 2, 1), COOPERATIVE),
)
"""Tiles for few of them and a long K: the fastest of ten at eight such shapes of e4m3 and bf16 (docs/notes/tables.md)."""

HELD = Tables(
    wide=(),
    restarted=(
        ((128, 192, 128), (2, 1, 1), COOPERATIVE),
        ((128, 160, 128), (2, 1, 1), COOPERATIVE),
        ((128, 128, 128), (2, 1, 1), COOPERATIVE),
        ((128, 96, 128), (2, 1, 1), COOPERATIVE),
        ((64, 96, 128), (2, 1, 1), BASIC),
        ((64, 64, 128), (2, 1, 1), BASIC),
    ),
    parallel=PARALLEL[:3],
    split_k=(
        ((128, 64, 128), COOPERATIVE, 6),
        ((128, 96, 128), COOPERATIVE, 5),
    ),
)
"""Schedules for the orders of kernels that split K for a small M, at 33 rows and more. A tile of restarted sums takes the registers
of two: 192 columns are the most. They were chosen by the model, and are not measured yet (docs/notes/tables.md)."""

CORE = Tables(
    parallel=PARALLEL,
    held=HELD,
    wide=(
        ((128, 80, 128), (2, 1, 1), COOPERATIVE),
        ((128, 96, 128), (2, 1, 1), COOPERATIVE),
        ((128, 112, 128), (1, 2, 1), COOPERATIVE),
        ((128, 112, 128), (2, 1, 1), COOPERATIVE),
        ((128, 144, 128), (1, 1, 1), COOPERATIVE),
        ((128, 144, 128), (2, 1, 1), PINGPONG),
        ((128, 160, 128), (2, 1, 1), COOPERATIVE),
        ((128, 160, 128), (1, 1, 1), PINGPONG),
        ((128, 224, 128), (1, 1, 1), COOPERATIVE),
        ((128, 256, 128), (1, 1, 1), COOPERATIVE),
        ((256, 160, 128), (2, 1, 1), COOPERATIVE),
        ((256, 192, 128), (1, 2, 1), COOPERATIVE),
        ((256, 192, 128), (2, 1, 1), COOPERATIVE),
        ((128, 128, 128), (2, 1, 1), PINGPONG),
        ((128, 128, 128), (1, 1, 1), PINGPONG),
        ((128, 192, 128), (2, 1, 1), PINGPONG),
        ((128, 192, 128), (1, 1, 1), PINGPONG),
        ((128, 256, 128), (2, 1, 1), COOPERATIVE),
        ((256, 128, 128), (2, 1, 1), COOPERATIVE),
    ),
    low=(
        ((64, 64, 128), (2, 1, 1), BASIC),
        ((64, 80, 128), (1, 1, 1), BASIC),
        ((64, 80, 128), (2, 1, 1), BASIC),
        ((64, 128, 128), (2, 1, 1), BASIC),
        ((64, 96, 128), (2, 1, 1), PINGPONG),
        ((64, 160, 128), (2, 1, 1), PINGPONG),
    ),
    narrow=(
        ((64, 16, 256), (1, 1, 1), BASIC),
        ((64, 16, 256), (1, 1, 1), PINGPONG),
        ((64, 32, 256), (1, 1, 1), BASIC),
        ((64, 64, 128), (1, 1, 1), BASIC),
        ((64, 64, 256), (1, 1, 1), BASIC),
        ((64, 128, 128), (1, 1, 1), BASIC),
        ((128, 128, 128), (1, 1, 1), COOPERATIVE),
        ((128, 64, 128), (1, 2, 1), COOPERATIVE),
        *AT_DRAWN_SHAPES,
    ),
    split_k=(
        ((64, 16, 256), BASIC, 3),
        ((64, 16, 512), BASIC, 5),
        ((64, 32, 256), BASIC, 4),
        ((128, 16, 256), COOPERATIVE, 6),
        ((128, 128, 128), COOPERATIVE, 6),
        ((64, 16, 256), BASIC, 4),
        ((128, 64, 128), COOPERATIVE, 6),
        ((128, 96, 128), COOPERATIVE, 5),
    ),
)
"""The schedules of the default build.

Most are the greedy choice over a sweep of e4m3 to bf16 at 52 shapes, with the kernels of WIDEST and CUTLASS's (H200,
2026-11-20). The last five of `wide` and the last of `narrow` were faster later (2026-11-21). By then groups in pingpong
handed the tensor core over earlier, and the prefetch distance of weights was longer. AT_DRAWN_SHAPES and the last two
of `split_k` were chosen at shapes that no table has (2026-11-22, docs/notes/tables.md).
"""

E4M3 = replace(
    CORE,
    wide=(
        *CORE.wide,
        ((128, 208, 128), (1, 1, 1), COOPERATIVE),
        ((128, 208, 128), (2, 1, 1), COOPERATIVE),
        ((128, 240, 128), (1, 2, 1), COOPERATIVE),
    ),
    low=(
        *CORE.low,
        ((64, 80, 128), (1, 2, 1), BASIC),
        ((64, 96, 128), (1, 2, 1), BASIC),
        ((64, 176, 128), (1, 2, 1), BASIC),
    ),
    narrow=(
        *CORE.narrow,
        ((64, 208, 128), (2, 1, 1), BASIC),
        ((128, 48, 128), (2, 1, 1), COOPERATIVE),
        ((128, 80, 128), (1, 2, 1), COOPERATIVE),
        ((128, 80, 128), (2, 1, 1), COOPERATIVE),
        ((128, 160, 128), (2, 1, 1), PINGPONG),
        ((128, 192, 128), (2, 1, 1), PINGPONG),
        ((256, 144, 128), (1, 2, 1), COOPERATIVE),
    ),
    split_k=(*CORE.split_k, ((128, 80, 128), COOPERATIVE, 6)),
    parallel=(*PARALLEL, ((128, 144, 128), (1, 2, 1), COOPERATIVE)),
)
"""CORE, and tiles for e4m3: of 38 those without which the model's choice is slower at 36 shapes that no table has (H200, 2026-11-28,
docs/notes/tables.md)."""

INT8 = replace(
    CORE,
    narrow=(*CORE.narrow, ((128, 80, 128), (2, 1, 1), PINGPONG)),
    split_k=(*CORE.split_k, ((64, 96, 128), BASIC, 6)),
)
"""The same for int8, of 8 tiles at 8 shapes."""

FEW = Tables(
    wide=tuple(CORE.wide[i] for i in (1, 4, 5, 6, 9, 12)),
    low=CORE.low[1:4],
    narrow=tuple(CORE.narrow[i] for i in (0, 2, 3, 5)),
    split_k=tuple(CORE.split_k[i] for i in (0, 2, 4)),
)
"""The schedules that the less frequent problems make do with."""

WIDEST = Tables(
    parallel=PARALLEL,
    wide=(
        *(
            ((128, y, 128), cluster, COOPERATIVE)
            for y, cluster in product(range(80, 257, 16), ((1, 1, 1), (2, 1, 1), (1, 2, 1)))
        ),
        *(
            ((128, y, 128), cluster, PINGPONG)
            for y, cluster in product(range(80, 193, 16), ((1, 1, 1), (2, 1, 1), (1, 2, 1)))
        ),
        *(((256, y, 128), cluster, COOPERATIVE) for y, cluster in product(range(80, 193, 16), ((2, 1, 1), (1, 2, 1)))),
    ),
    low=(
        *(((64, y, 128), cluster, PINGPONG) for y, cluster in product(range(48, 257, 16), ((1, 1, 1), (2, 1, 1)))),
        *(((64, y, 128), cluster, BASIC) for y, cluster in product(range(32, 129, 16), ((1, 1, 1), (2, 1, 1)))),
    ),
    narrow=(
        *(((64, y, 256), (1, 1, 1), schedule) for y, schedule in product(range(16, 65, 16), (BASIC, PINGPONG))),
        *(((64, y, 128), (1, 1, 1), schedule) for y, schedule in product(range(64, 129, 16), (BASIC, PINGPONG))),
        *(((128, y, 128), (1, 1, 1), COOPERATIVE) for y in range(16, 129, 16)),
        *(((128, y, 128), (1, 2, 1), COOPERATIVE) for y in (64, 128)),
        *(((64, y, 128), (1, 1, 1), schedule) for y, schedule in product(range(144, 257, 16), (BASIC, PINGPONG))),
        *(((128, y, 128), (1, 1, 1), COOPERATIVE) for y in range(144, 257, 16)),
        *(((128, y, 128), (1, 1, 1), PINGPONG) for y in range(144, 193, 16)),
        *(((128, y, 128), (1, 2, 1), COOPERATIVE) for y in range(160, 257, 32)),
        *(((128, y, 128), (2, 1, 1), COOPERATIVE) for y in range(144, 257, 16)),
        *(
            ((256, y, 128), cluster, COOPERATIVE)
            for y, cluster in product(range(80, 193, 16), ((1, 1, 1), (2, 1, 1), (1, 2, 1)))
        ),
    ),
    split_k=(
        *CORE.split_k,
        ((64, 16, 512), BASIC, 2),
        ((64, 32, 256), BASIC, 3),
        ((64, 64, 256), BASIC, 3),
        ((64, 64, 128), BASIC, 6),
        ((64, 128, 128), BASIC, 4),
        ((128, 32, 256), COOPERATIVE, 5),
        ((128, 64, 256), COOPERATIVE, 4),
        *(((64, y, 128), BASIC, 4) for y in (96, *range(160, 257, 32))),
        *(((128, y, 128), COOPERATIVE, 4) for y in (144, *range(160, 257, 32))),
    ),
)
"""The schedules worth timing."""

GROUP_HELD = Tables(
    wide=(),
    restarted=(
        ((128, 128, 128), (2, 1, 1), COOPERATIVE),
        ((128, 64, 128), (2, 1, 1), COOPERATIVE),
        ((64, 64, 128), (1, 2, 1), BASIC),
        ((64, 128, 128), (2, 1, 1), BASIC),
    ),
    parallel=(((256, 128, 128), (1, 1, 1), COOPERATIVE),),
    split_k=(
        ((64, 64, 128), BASIC, 6),
        ((128, 128, 128), COOPERATIVE, 6),
    ),
)
"""As HELD, with scales in groups: 128 columns leave room for three sets of sums, 64 for four. They were chosen by the model, and are
not measured yet (docs/notes/tables.md)."""

GROUP_CORE = Tables(
    held=GROUP_HELD,
    wide=(
        ((128, 128, 128), (2, 1, 1), COOPERATIVE),
        ((128, 128, 128), (1, 1, 1), COOPERATIVE),
        ((256, 128, 128), (1, 1, 1), COOPERATIVE),
        ((256, 128, 128), (2, 1, 1), COOPERATIVE),
        ((128, 128, 128), (1, 2, 1), COOPERATIVE),
    ),
    low=(
        ((64, 64, 128), (1, 2, 1), BASIC),
        ((64, 128, 128), (1, 1, 1), BASIC),
        ((64, 128, 128), (2, 1, 1), BASIC),
    ),
    narrow=(
        ((64, 16, 256), (1, 1, 1), BASIC),
        ((64, 32, 256), (1, 1, 1), BASIC),
        ((64, 48, 256), (1, 1, 1), BASIC),
        ((64, 64, 128), (1, 1, 1), BASIC),
        ((64, 80, 128), (1, 1, 1), BASIC),
        ((64, 96, 128), (1, 1, 1), BASIC),
    ),
    split_k=(
        ((64, 16, 256), BASIC, 3),
        ((64, 16, 256), BASIC, 4),
        ((64, 32, 256), BASIC, 4),
        ((128, 64, 128), COOPERATIVE, 5),
        ((128, 112, 128), COOPERATIVE, 5),
        ((128, 160, 128), COOPERATIVE, 6),
    ),
    parallel=(((256, 128, 128), (1, 1, 1), COOPERATIVE),),
)
"""The schedules of the default build for scales in groups along K, where registers hold sums twice.

The last three of `split_k` and `parallel` were among the fastest of 28 at shapes that no table has (H200,
2026-11-28, docs/notes/tables.md). The others are the greedy choice over a sweep of e4m3 to bf16, at 7 weights and M from 1 to 4096 (H200, 2026-11-20). The sweep
had the kernels of GROUP_WIDEST and CUTLASS's blockwise ones. The choice is within 0.2 % of all of them.
"""

GROUP_FEW = Tables(
    wide=(GROUP_CORE.wide[0], GROUP_CORE.wide[2]),
    low=GROUP_CORE.low[1:2],
    narrow=(GROUP_CORE.narrow[0], GROUP_CORE.narrow[1], GROUP_CORE.narrow[3]),
    split_k=GROUP_CORE.split_k[1:2],
)
"""The schedules that the less frequent kinds of groups make do with."""

FOURS = Tables(
    wide=(
        ((128, 64, 128), (2, 1, 1), COOPERATIVE),
        ((256, 64, 128), (1, 2, 1), COOPERATIVE),
    ),
    low=(((64, 64, 128), (1, 1, 1), BASIC),),
    narrow=(((64, 64, 128), (1, 1, 1), BASIC),),
)
"""Schedules with four sets of partial sums. docs/notes/cutedsl.md has where they win. Tiles of 32 and 48 columns lose 2 to 4 % by them."""

GROUP_32 = Tables(
    fours=FOURS,
    shared=(((64, 64, 128), BASIC, 6),),
    wide=(
        ((128, 128, 128), (2, 1, 1), COOPERATIVE),
        ((128, 128, 128), (1, 1, 1), COOPERATIVE),
        ((128, 128, 128), (1, 2, 1), COOPERATIVE),
        ((256, 128, 128), (2, 1, 1), COOPERATIVE),
    ),
    low=(
        ((64, 128, 128), (1, 1, 1), BASIC),
        ((64, 128, 128), (2, 1, 1), BASIC),
    ),
    narrow=(
        ((64, 16, 256), (1, 1, 1), BASIC),
        ((64, 32, 256), (1, 1, 1), BASIC),
        ((64, 48, 256), (1, 1, 1), BASIC),
        ((64, 64, 128), (1, 1, 1), BASIC),
    ),
    split_k=(
        ((64, 16, 256), BASIC, 4),
        ((64, 32, 256), BASIC, 4),
        ((64, 64, 128), BASIC, 6),
    ),
)
"""The schedules of the default build for groups of 32, each of one WGMMA along K."""

GROUP_32_FEW = Tables(
    wide=(((128, 128, 128), (2, 1, 1), COOPERATIVE),),
    narrow=(GROUP_32.narrow[0], GROUP_32.narrow[3]),
    split_k=GROUP_32.split_k[:1],
)
"""The schedules that float16 results make do with."""

GROUP_32_ROWS = Tables(
    wide=(((128, 96, 128), (2, 1, 1), COOPERATIVE),),
    narrow=GROUP_32_FEW.narrow,
    split_k=GROUP_32_FEW.split_k,
)
"""The same where columns of B have scales of their own, for which 96 columns leave registers."""

GROUP_WIDEST = Tables(
    wide=(
        *GROUP_CORE.wide,
        ((128, 96, 128), (2, 1, 1), COOPERATIVE),
        ((128, 160, 128), (2, 1, 1), COOPERATIVE),
        ((256, 64, 128), (2, 1, 1), COOPERATIVE),
        ((256, 128, 128), (1, 2, 1), COOPERATIVE),
    ),
    low=(
        *GROUP_CORE.low,
        *(((64, y, 128), cluster, BASIC) for y, cluster in product((80, 96, 112), ((1, 1, 1), (2, 1, 1)))),
    ),
    narrow=(
        *GROUP_CORE.narrow,
        ((64, 64, 256), (1, 1, 1), BASIC),
        ((64, 112, 128), (1, 1, 1), BASIC),
        ((64, 128, 128), (1, 1, 1), BASIC),
        ((64, 128, 128), (2, 1, 1), BASIC),
        ((128, 32, 256), (1, 1, 1), COOPERATIVE),
        ((128, 64, 128), (1, 1, 1), COOPERATIVE),
        ((128, 128, 128), (1, 1, 1), COOPERATIVE),
    ),
    split_k=(
        *GROUP_CORE.split_k,
        ((64, 64, 256), BASIC, 3),
        ((64, 16, 256), BASIC, 9),
        ((64, 16, 512), BASIC, 5),
        ((64, 64, 128), BASIC, 6),
        ((128, 16, 256), COOPERATIVE, 6),
        ((128, 128, 128), COOPERATIVE, 6),
    ),
)
"""The schedules worth timing with scales in groups."""

GROUP_32_WIDEST = Tables(
    fours=Tables(
        wide=(
            *FOURS.wide,
            ((128, 64, 128), (1, 1, 1), COOPERATIVE),
            ((256, 64, 128), (1, 1, 1), COOPERATIVE),
            ((256, 64, 128), (2, 1, 1), COOPERATIVE),
        ),
        low=(*FOURS.low, ((64, 64, 256), (1, 1, 1), BASIC)),
        narrow=(*FOURS.narrow, ((64, 64, 256), (1, 1, 1), BASIC)),
    ),
    shared=GROUP_32.shared,
    wide=(
        *GROUP_32.wide,
        *(((128, y, 128), (2, 1, 1), COOPERATIVE) for y in (64, 96)),
        ((256, 64, 128), (1, 1, 1), COOPERATIVE),
        ((256, 128, 128), (1, 1, 1), COOPERATIVE),
        ((256, 128, 128), (1, 2, 1), COOPERATIVE),
    ),
    low=(
        *GROUP_32.low,
        *(((64, y, 128), (2, 1, 1), BASIC) for y in (64, 96)),
    ),
    narrow=(
        *GROUP_32.narrow,
        ((64, 16, 128), (1, 1, 1), BASIC),
        ((64, 64, 256), (1, 1, 1), BASIC),
        ((64, 96, 128), (1, 1, 1), BASIC),
        *(((128, y, 128), (1, 1, 1), COOPERATIVE) for y in (16, 32, 64, 128)),
    ),
    split_k=(
        *GROUP_32.split_k,
        ((64, 48, 128), BASIC, 4),
        ((64, 64, 128), BASIC, 4),
        ((64, 96, 128), BASIC, 5),
        ((64, 16, 256), BASIC, 9),
        ((64, 16, 512), BASIC, 5),
        ((64, 32, 256), BASIC, 3),
        ((64, 64, 256), BASIC, 3),
        ((128, 16, 256), COOPERATIVE, 6),
        ((128, 64, 128), COOPERATIVE, 6),
    ),
)
"""The schedules worth timing with groups of 32.

64 x 16 x 256 with three stages is left out: four CTAs of an SM leave it 80 registers, and it spills 136 bytes.
"""

PLAIN = Tables(
    parallel=Tables(wide=(), parallel=PARALLEL).at_half_depth().parallel,
    held=HELD.at_half_depth(),
    wide=(
        ((128, 128, 64), (2, 1, 1), PINGPONG),
        ((128, 80, 64), (2, 1, 1), COOPERATIVE),
        ((128, 144, 64), (2, 1, 1), PINGPONG),
        ((128, 160, 64), (2, 1, 1), COOPERATIVE),
        ((128, 160, 64), (2, 1, 1), PINGPONG),
        ((128, 192, 64), (2, 1, 1), PINGPONG),
        ((128, 256, 64), (2, 1, 1), COOPERATIVE),
        ((256, 128, 64), (2, 1, 1), COOPERATIVE),
    ),
    low=(
        ((64, 80, 64), (2, 1, 1), PINGPONG),
        ((64, 96, 64), (2, 1, 1), BASIC),
        ((64, 128, 64), (2, 1, 1), BASIC),
        ((64, 256, 64), (2, 1, 1), PINGPONG),
    ),
    narrow=(
        ((64, 16, 128), (1, 1, 1), BASIC),
        ((64, 32, 128), (1, 1, 1), BASIC),
        ((64, 64, 64), (1, 1, 1), BASIC),
        ((64, 128, 64), (1, 1, 1), BASIC),
        ((128, 32, 64), (1, 1, 1), COOPERATIVE),
        ((128, 64, 64), (1, 1, 1), COOPERATIVE),
        ((128, 176, 64), (1, 1, 1), PINGPONG),
        ((128, 96, 64), (1, 1, 1), COOPERATIVE),
        ((128, 176, 64), (2, 1, 1), COOPERATIVE),
        ((128, 192, 64), (2, 1, 1), COOPERATIVE),
        ((256, 160, 64), (2, 1, 1), COOPERATIVE),
    ),
    split_k=(
        ((128, 16, 128), COOPERATIVE, 6),
        ((128, 224, 64), COOPERATIVE, 4),
        ((64, 16, 128), BASIC, 4),
        ((64, 16, 256), BASIC, 5),
        ((64, 32, 128), BASIC, 4),
        ((128, 128, 64), COOPERATIVE, 6),
        ((128, 64, 64), COOPERATIVE, 6),
        ((128, 96, 64), COOPERATIVE, 5),
        ((128, 144, 64), COOPERATIVE, 4),
    ),
)
"""Schedules for operands of 16 bits: rows of the other tables at half their depth, which are as many bytes.

Measurements chose seventeen of them (docs/notes/tables.md). They give the largest gain of the fastest of PLAIN_WIDEST's
kernels at random shapes.
"""

BF16 = replace(
    PLAIN,
    wide=(
        *PLAIN.wide,
        ((128, 160, 64), (1, 2, 1), PINGPONG),
        ((128, 224, 64), (2, 1, 1), COOPERATIVE),
        ((256, 144, 64), (1, 2, 1), COOPERATIVE),
    ),
    narrow=(
        *PLAIN.narrow,
        ((128, 96, 64), (1, 2, 1), COOPERATIVE),
        ((128, 144, 64), (1, 2, 1), PINGPONG),
        ((128, 208, 64), (1, 2, 1), COOPERATIVE),
        ((256, 112, 64), (1, 2, 1), COOPERATIVE),
        ((256, 144, 64), (1, 2, 1), COOPERATIVE),
    ),
)
"""PLAIN, and tiles for bf16: of 19 those without which the model's choice is slower at 20 shapes that no table has (H200,
2026-11-28, docs/notes/tables.md)."""

PLAIN_WIDEST = WIDEST.at_half_depth()
"""The schedules worth timing with operands of 16 bits."""
