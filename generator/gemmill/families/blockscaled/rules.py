"""Which kernels there can be."""

from collections.abc import Iterator

from gemmill.families.blockscaled.config import NARROW, FewConfig, ManyConfig, PackedConfig, PairConfig
from gemmill.families.blockscaled.design import FewLoop, Group, ManyLoop, PackedLoop, Sharing
from gemmill.families.blockscaled.pairs import CODE_PAIRS, FP4_PAIRS, WEIGHT_PAIRS, WORD_PAIRS, Pair
from gemmill.family import any_of
from gemmill.formats.layout import SIDE, STAGE_COLUMNS
from gemmill.vocab import Arch, DType

MOST_SPLITS = 8
"""Most CTAs of a cluster, on every device."""
RESERVED = 2048
"""Bytes of shared memory for barriers, and to align the next field."""


def _hopper(config: PackedConfig | FewConfig | ManyConfig) -> Iterator[str]:
    """Groups of 128 threads that widen or fold codes multiply them by WGMMA, which only Hopper has, and warps by `mma.sync`."""
    by_warps = config.design.group is Group.WARP if isinstance(config, PackedConfig) else isinstance(config, FewConfig)
    if config.arch is not Arch.SM90A and not (by_warps and config.arch is Arch.SM120F):
        yield f"{config.arch} has no WGMMA: codes are widened on sm90a"


def _operands(config: PackedConfig) -> Iterator[str]:
    """Weights in blocks have 4 bits. No op takes a rounded operand with scales in groups."""
    pair = config.pair
    if pair not in FP4_PAIRS and not config.is_folded:
        yield f"{pair} is no pair of 16-bit or e4m3 numbers and 4-bit weights"
    if pair in FP4_PAIRS and config.out_dtype is not DType.BF16:
        yield f"results in {config.out_dtype}: activations and results are bf16"
    if pair in FP4_PAIRS and config.grouped:
        yield f"{pair} with scales in groups: numbers of 16 bits have none"
    if pair is Pair.E4M3_NVFP4 and config.grouped:
        yield f"{pair} with scales in groups: its base is of rows"


def _tile(config: PackedConfig) -> Iterator[str]:
    """A tile's rows of A are columns of a WGMMA product."""
    tile_m = config.design.tile_m
    if tile_m % 8 or not 8 <= tile_m <= 256:
        yield f"tile of {tile_m} rows: WGMMA takes 8 to 256 columns in steps of 8"


def _rows(config: PackedConfig) -> Iterator[str]:
    """A multiprocessor's registers are for twelve warps that multiply by WGMMA; those of a warp are for few tokens."""
    d, turns = config.design, config.turns
    tile_m, tile_n = d.tile_mn
    if d.group is Group.WARP and tile_m > 32:
        yield f"tile of {tile_m} rows: the sums of 64 weights by more than 32 do not fit in a warp's registers"
    if d.group is Group.WARPGROUP and d.row_groups != 2:
        yield f"{tile_n} rows of weights in a tile: two groups of 128 threads have 128"
    if turns > d.stages or d.k_groups % turns:
        yield f"{d.k_groups} groups along K take {d.stages} stages in {turns} turns: each needs one, and as many groups"
    if d.row_groups not in (1, 2, 4):
        yield f"{tile_n} rows of weights in a tile: it has 64, 128 or 256"


def _stage(config: PackedConfig) -> Iterator[str]:
    """Packed weights have whole stages, and stages whole blocks."""
    if config.stage_columns < 1 or STAGE_COLUMNS % config.stage_columns:
        yield f"stages of {config.stage_columns} columns: packed weights have multiples of {STAGE_COLUMNS}"
    if config.stage_columns % config.block_columns:
        yield f"stages of {config.stage_columns} columns: blocks of weights have {config.block_columns}"


def _registers(config: PackedConfig) -> Iterator[str]:
    """Registers of threads hold their sums next to folded weights, twice with scales in groups."""
    most = 256 // config.design.k_groups
    if config.is_folded and config.sums > most:
        yield f"sums of {config.sums} tokens: {config.design.k_groups} groups along K have registers for {most}"


def _memory(config: PackedConfig) -> Iterator[str]:
    """Stages lie in shared memory, and partial sums where they were."""
    d = config.design
    room, bytes_ = config.arch.shared_memory_bytes - RESERVED, d.stages * config.stage_bytes
    if bytes_ > room:
        yield f"{d.stages} stages of {config.stage_bytes} bytes do not fit in {room}"
    if (sums := d.k_groups * d.tile_m * (d.tile_mn[1] + 4) * 4) > bytes_:
        yield f"partial sums of {sums} bytes reuse the stages, which have {bytes_}"


def _together(config: PackedConfig) -> Iterator[str]:
    """Quads of sums with a common addition take registers. Threads have those only where the loader gives its own away."""
    d = config.design
    takes = config.is_folded and not config.grouped and d.k_groups == 1 and config.takes_registers
    if d.main_loop is PackedLoop.BATCHED and not takes:
        yield f"quads of a tile of {d.tile_m} rows added up together: only one group along K of more than 64, with scales of rows"


def _stays(config: PackedConfig) -> Iterator[str]:
    """Sums of a tile of 256 rows pass through two of its stages, 64 in each at a time."""
    d = config.design
    if d.main_loop is not PackedLoop.STAYS:
        return
    if d.tile_m != 256 or d.k_groups > 1 or d.blocks > 1 or not config.takes_registers:
        yield f"tile of {d.tile_m} rows that CTAs take in turns: 256 rows, of one group along K and one block in a stage"
    if config.grouped:
        yield "CTAs that take tiles in turns: scales of rows alone are multiplied at their end"
    if config.splits > 1:
        yield f"{config.splits} slices of K: CTAs that take tiles in turns are in no cluster"


def _splits(config: PackedConfig | FewConfig | ManyConfig) -> Iterator[str]:
    """A cluster's CTAs lie near one another."""
    if not 1 <= config.splits <= MOST_SPLITS:
        yield f"{config.splits} slices of K: a cluster has 1 to {MOST_SPLITS} CTAs"


PACKED_RULES = (_hopper, _operands, _tile, _rows, _stage, _registers, _memory, _together, _stays, _splits)


def _packed(config: FewConfig | ManyConfig) -> Iterator[str]:
    """Only some weights have a packing in rows with their scales."""
    pair, half = config.pair, config.out_dtype is DType.F16
    if config.prepacked and (pair not in WEIGHT_PAIRS or (pair in FP4_PAIRS and not half)):
        yield f"{pair} with results in {config.out_dtype}: its weights are not packed in rows"
    if not config.prepacked and half and pair in WEIGHT_PAIRS and not pair.b_format.has_global_scale:
        yield f"{pair} with results in f16: products may not fit f16 without bases, which packed weights have"


def _rounds(config: FewConfig | ManyConfig) -> Iterator[str]:
    """A kernel does not upcast weights that it rounds to e4m3."""
    if config.pair is Pair.E4M3_NVFP4:
        yield f"{config.pair} is rounded to e4m3: it is folded, not widened"


def _scaled_in_groups(config: FewConfig | ManyConfig) -> Iterator[str]:
    """Activations of e4m3 may have a scale for each 128 columns, which take registers."""
    if config.grouped and (config.pair is not Pair.E4M3_MXFP4 or isinstance(config, FewConfig)):
        yield f"{config.pair} with scales in groups: only mxfp4_fp8_mm takes those, by tiles of {SIDE} x {SIDE}"
    if config.grouped and config.design.tile_mn[0] > SIDE:
        yield f"tile of {config.design.tile_mn[0]} with scales in groups: registers hold its sums once, not twice"


_OF_WIDENED = (_hopper, _packed, _rounds, _scaled_in_groups, _splits)


def _few(config: FewConfig) -> Iterator[str]:
    """Registers of 12 to 16 warps hold sums of 64 by 16, or by 32 behind TMA, and the codes in flight."""
    d, by_tma = config.design, config.design.main_loop is FewLoop.TMA
    tiles = (8, 16, 32) if by_tma else (8, 16)
    if d.tile_m not in tiles:
        yield f"tile of {d.tile_m} rows: registers are for {any_of(list(map(str, tiles)))}"
    if d.warps not in (4, 8) or (d.warps == 8 and not (by_tma or config.in_words)):
        yield f"{d.warps} warps: a CTA has {'4 or 8' if by_tma else '4, or 8 of 4-bit codes on both sides'}"


def _stages(config: FewConfig) -> Iterator[str]:
    """Each warp has stages of its own in shared memory, of pieces of rows of some pairs only."""
    d, pair, by_tma = config.design, config.pair, config.design.main_loop is FewLoop.TMA
    room = config.arch.shared_memory_bytes - (0 if by_tma else 1024)
    if d.stages == 1:
        yield "1 stage of a warp: one is filled while another is read, so it has 2 or more"
    if config.shared_bytes > room:
        yield f"{d.stages} stages of {d.warps} warps take {config.shared_bytes} bytes, and {room} are there"
    if by_tma and not config.prepacked:
        yield f"{pair} by TMA: it brings packed weights alone"
    if d.main_loop is not FewLoop.RING:
        return
    if not config.in_words and not config.prepacked:
        yield f"{pair} in stages: weights of a checkpoint come straight to registers"
    if pair is Pair.FLOATS_MXFP4 or (pair in CODE_PAIRS and not config.in_words):
        yield f"{pair} in stages: pieces are of 4-bit codes on both sides, or of packed nvfp4, mxfp6 and mxfp8"


FEW_RULES = (*_OF_WIDENED, _few, _stages)


def _words(config: ManyConfig) -> Iterator[str]:
    """A word of each operand has the same eight columns."""
    if config.design.main_loop is not ManyLoop.PIECES and config.pair not in WORD_PAIRS:
        yield f"{config.pair}: codes are widened a step ahead where both operands have four bits"


def _many(config: ManyConfig) -> Iterator[str]:
    """Groups of 128 threads widen rows of both operands, and hold the sums."""
    d = config.design
    tile_m, tile_n = d.tile_mn
    if d.main_loop is ManyLoop.PIECES:
        if d.tile_mn not in ((64, 64), (128, 128)):
            yield f"tile of {tile_m} x {tile_n}: it is 64 x 64 or 128 x 128"
        if config.splits > 1:
            yield f"{config.splits} slices of K: {d.main_loop} are multiplied by one CTA"
        return
    if d.tile_mn not in ((64, 128), (64, 256), (128, 128), (128, 256)):
        yield f"tile of {tile_m} x {tile_n}: it is 64 or 128 by 128 or 256"
    sums, bytes_ = tile_m * (tile_n + 8) * 4, (d.stages or 2) * d.stage_bytes
    if config.splits > 1 and sums > bytes_:
        yield f"partial sums of {sums} bytes reuse the stages, which have {bytes_}"


def _ahead(config: ManyConfig) -> Iterator[str]:
    """The stages of all CTAs of a multiprocessor lie in its shared memory."""
    d, room = config.design, config.arch.shared_memory_bytes // config.ctas_of_sm - RESERVED
    if d.stages == 1:
        yield "1 stage: one is written while another is multiplied, so it has 2 or more"
    if d.stages * d.stage_bytes > room:
        yield f"{d.stages} stages of {d.stage_bytes} bytes do not fit in {room}"


MANY_RULES = (*_OF_WIDENED, _words, _many, _ahead)

_SHARING = {
    Arch.SM100A: (Sharing.ONE_SM, Sharing.TWO_SM),
    Arch.SM120F: (Sharing.COOPERATIVE, Sharing.PINGPONG),
}
_SCALE_ROWS = 128
"""Rows of a tile of scales, which loads whole."""


def _blackwell(config: PairConfig) -> Iterator[str]:
    """Each architecture has its own ways of sharing a tile, and before Blackwell there are none."""
    offered = _SHARING.get(config.arch, ())
    if config.design.sharing not in offered:
        told = ", ".join(offered) or "none"
        yield f"{config.arch} shares a tile as {told}, not as {config.design.sharing}"


def _codes(config: PairConfig) -> Iterator[str]:
    """Both operands of a pair have block scales."""
    if config.pair.a_format is None:
        yield f"{config.pair} has activations without scales"


def _pair_tile(config: PairConfig) -> Iterator[str]:
    """A tile is the shape of one instruction, with the scales that come with it."""
    (m, n, k), sharing = config.design.tile_shape_mnk, config.design.sharing
    rows = 2 * _SCALE_ROWS if sharing is Sharing.TWO_SM else _SCALE_ROWS
    if config.arch is Arch.SM100A and m != rows:
        yield f"tile of {m} rows: {sharing} multiplies {rows}"
    if config.arch is Arch.SM100A and n not in (64, 128, 192, 256):
        yield f"tile of {n} columns: the instruction takes 64, 128, 192 or 256"
    if config.arch is Arch.SM120F and m * n > _SCALE_ROWS * _SCALE_ROWS:
        yield f"tile of {m} x {n}: its sums do not fit the registers of eight warps"
    if config.arch is Arch.SM120F and (m % _SCALE_ROWS or (n % _SCALE_ROWS and not config.is_narrow)):
        yield f"tile of {m} x {n}: scales come in tiles of {_SCALE_ROWS} rows, of which {NARROW} columns of mixed codes take half"
    columns = (128,) if config.mixes else (128, 256) if config.arch is Arch.SM120F else (256,)
    if k not in columns:
        yield f"{k} columns in a step: {config.pair} takes {any_of(list(map(str, columns)))} on {config.arch}"


def _pair_cluster(config: PairConfig) -> Iterator[str]:
    """Two multiprocessors that share a tile are a pair of a cluster, and sm120f has no multicast."""
    m, n, _ = config.design.cluster_shape_mnk
    if config.arch is Arch.SM120F and (m, n) != (1, 1):
        yield f"cluster of {m} x {n}: sm120f has no multicast"
    if config.design.sharing is Sharing.TWO_SM and m % 2:
        yield f"cluster of {m} x {n}: two multiprocessors share a tile's rows"


PAIR_RULES = (_blackwell, _codes, _pair_tile, _pair_cluster)
