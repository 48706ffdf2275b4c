"""The fields of a kernel's name, and back."""

import re
from collections.abc import Sequence
from dataclasses import replace

from gemmill.families.blockscaled.config import (
    FewConfig,
    FoldedConfig,
    Group,
    ManyConfig,
    PackedConfig,
    PairConfig,
    Sharing,
    TmaFewConfig,
    WeightConfig,
    WidenedConfig,
)
from gemmill.families.blockscaled.pairs import Pair
from gemmill.vocab import Arch, DType


def packed_to_fields(config: PackedConfig) -> list[str]:
    """Fields: pair, results of folded weights, tile, groups, stages. Then come marks of scales in groups, of sums added up
    together and of CTAs that stay, and the slices of K where there are several."""
    out = [config.out_dtype.value] if isinstance(config, FoldedConfig) else []
    flags = ["groups"] if config.grouped else ["batched"] if isinstance(config, FoldedConfig) and config.batched else []
    flags += ["stays"] if config.stays else []
    rows = f"r{config.row_groups}" if config.group is Group.WARP else ""
    fields = [config.pair.value, *out, f"t{config.tile_m}", f"{rows}{config.group}{config.k_groups}b{config.blocks}"]
    return [*fields, f"s{config.stages}", *flags, *_slices(config.splits)]


def packed_from_fields(arch: Arch, tag: str, fields: Sequence[str]) -> PackedConfig:
    """The config that `packed_to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    folded = tag == FoldedConfig.tag
    least, most = (5, 7) if folded else (4, 6)
    if not least <= len(fields) <= most:
        raise ValueError(f"it has {len(fields) + 2} fields of {least + 2} {'to'} {most + 2}")
    pair, *out, tile, groups, stages = fields[:least]
    warps = groups.startswith("r")
    told = "r and a number, w and a number, b and a number" if warps else "g and a number, b and a number"
    pattern = r"r(\d+)w(\d+)b(\d+)" if warps else r"g(\d+)b(\d+)"
    *rows, k_groups, blocks = _numbers(pattern, groups, "groups", told)
    grouped, rest = _flag("groups", list(fields[least:])) if folded else (False, list(fields[least:]))
    batched, rest = _flag("batched", rest) if folded and not grouped else (False, rest)
    stays, splits = _flag("stays", rest)
    config = (FoldedConfig if folded else WeightConfig)(
        pair=Pair(pair),
        out_dtype=DType(out[0]) if out else DType.BF16,
        group=Group.WARP if warps else Group.WARPGROUP,
        row_groups=rows[0] if warps else 2,
        tile_m=_numbers(r"t(\d+)", tile, "tile", "t and a number")[0],
        k_groups=k_groups,
        blocks=blocks,
        stages=_numbers(r"s(\d+)", stages, "stages", "s and a number")[0],
        grouped=grouped,
        stays=stays,
        splits=_splits(splits),
        arch=arch,
    )
    return replace(config, batched=True) if batched and isinstance(config, FoldedConfig) else config


def widened_to_fields(config: WidenedConfig) -> list[str]:
    """Fields: pair, results, tile; then marks of packed weights and of scales in groups."""
    flags = [*(["packed"] if config.prepacked else []), *(["groups"] if config.grouped else [])]
    return [config.pair.value, config.out_dtype.value, f"t{config.tile}", *flags]


def widened_from_fields(arch: Arch, _tag: str, fields: Sequence[str]) -> WidenedConfig:
    """The config that `widened_to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if not 3 <= len(fields) <= 5:
        raise ValueError(f"it has {len(fields) + 2} fields of 5 to 7")
    pair, out, tile, *rest = fields
    (size,) = _numbers(r"t(\d+)", tile, "tile", "t and a number")
    prepacked, rest = _flag("packed", rest)
    grouped, rest = _flag("groups", rest)
    if rest:
        raise ValueError(f"field {rest[0]!r}, expected packed, then groups")
    return WidenedConfig(
        pair=Pair(pair), out_dtype=DType(out), tile=size, prepacked=prepacked, grouped=grouped, arch=arch
    )


def few_to_fields(config: FewConfig) -> list[str]:
    """Fields: pair, results, tile, warps, and stages where there are some. Then come a mark of packed weights, and the slices
    of K where there are several."""
    fields = [config.pair.value, config.out_dtype.value, f"t{config.tile_m}", f"w{config.warps}"]
    return [*fields, *_stages(config.stages), *(["packed"] if config.prepacked else []), *_slices(config.splits)]


def few_from_fields(arch: Arch, _tag: str, fields: Sequence[str]) -> FewConfig:
    """The config that `few_to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if not 4 <= len(fields) <= 7:
        raise ValueError(f"it has {len(fields) + 2} fields of 6 to 9")
    pair, out, tile, warps, *rest = fields
    stages, rest = _stages_told(rest)
    prepacked, splits = _flag("packed", rest)
    return FewConfig(
        pair=Pair(pair),
        out_dtype=DType(out),
        tile_m=_numbers(r"t(\d+)", tile, "tile", "t and a number")[0],
        warps=_numbers(r"w(\d+)", warps, "warps", "w and a number")[0],
        prepacked=prepacked,
        stages=stages,
        splits=_splits(splits),
        arch=arch,
    )


def tma_few_to_fields(config: TmaFewConfig) -> list[str]:
    """Fields: pair, results, tile, warps, stages; the slices of K where there are several."""
    fields = [config.pair.value, config.out_dtype.value, f"t{config.tile_m}", f"w{config.warps}", f"s{config.stages}"]
    return [*fields, *_slices(config.splits)]


def tma_few_from_fields(arch: Arch, _tag: str, fields: Sequence[str]) -> TmaFewConfig:
    """The config that `tma_few_to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if not 5 <= len(fields) <= 6:
        raise ValueError(f"it has {len(fields) + 2} fields of 7 or 8")
    pair, out, tile, warps, stages, *splits = fields
    return TmaFewConfig(
        pair=Pair(pair),
        out_dtype=DType(out),
        tile_m=_numbers(r"t(\d+)", tile, "tile", "t and a number")[0],
        warps=_numbers(r"w(\d+)", warps, "warps", "w and a number")[0],
        stages=_numbers(r"s(\d+)", stages, "stages", "s and a number")[0],
        splits=_splits(splits),
        arch=arch,
    )


def many_to_fields(config: ManyConfig) -> list[str]:
    """Fields: pair, results, tile; stages where codes are asked for two steps ahead; the slices of K where there are
    several."""
    fields = [config.pair.value, config.out_dtype.value, f"t{config.tile_m}x{config.tile_n}"]
    return [*fields, *_stages(config.stages), *_slices(config.splits)]


def many_from_fields(arch: Arch, _tag: str, fields: Sequence[str]) -> ManyConfig:
    """The config that `many_to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if not 3 <= len(fields) <= 5:
        raise ValueError(f"it has {len(fields) + 2} fields of 5 to 7")
    pair, out, tile, *rest = fields
    stages, splits = _stages_told(rest)
    tile_m, tile_n = _numbers(r"t(\d+)x(\d+)", tile, "tile", "tMxN")
    return ManyConfig(
        pair=Pair(pair),
        out_dtype=DType(out),
        tile_m=tile_m,
        tile_n=tile_n,
        stages=stages,
        splits=_splits(splits),
        arch=arch,
    )


def pair_to_fields(config: PairConfig) -> list[str]:
    """Fields: pair, results, tile, cluster, sharing."""
    tile, cluster = ("x".join(map(str, shape)) for shape in (config.tile_shape_mnk, config.cluster_shape_mnk))
    return [config.pair.value, config.out_dtype.value, f"t{tile}", f"c{cluster}", config.sharing.value]


def pair_from_fields(arch: Arch, _tag: str, fields: Sequence[str]) -> PairConfig:
    """The config that `pair_to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if len(fields) != 5:
        raise ValueError(f"it has {len(fields) + 2} fields of 7")
    pair, out, tile, cluster, sharing = fields
    return PairConfig(
        pair=Pair(pair),
        out_dtype=DType(out),
        tile_shape_mnk=_shape("t", tile),
        cluster_shape_mnk=_shape("c", cluster),
        sharing=Sharing(sharing),
        arch=arch,
    )


def _stages(stages: int) -> list[str]:
    """The field of stages; none where a kernel has none."""
    return [f"s{stages}"] if stages else []


def _stages_told(fields: list[str]) -> tuple[int, list[str]]:
    """The stages, 0 where they do not come next, and the fields after them."""
    found = re.fullmatch(r"s(\d+)", fields[0]) if fields else None
    return (int(found[1]), fields[1:]) if found else (0, fields)


def _slices(splits: int) -> list[str]:
    """The field of slices of K; none where K is in one."""
    return [] if splits == 1 else [f"k{splits}"]


def _splits(fields: Sequence[str]) -> int:
    if len(fields) > 1:
        raise ValueError(f"field {fields[0]!r}, expected slices last, k and a number")
    return _numbers(r"k(\d+)", fields[0], "slices", "k and a number")[0] if fields else 1


def _flag(word: str, fields: list[str]) -> tuple[bool, list[str]]:
    """Whether a word comes next, and the fields after it."""
    return (True, fields[1:]) if fields[:1] == [word] else (False, fields)


def _shape(prefix: str, text: str) -> tuple[int, int, int]:
    m, n, k = _numbers(rf"{prefix}(\d+)x(\d+)x(\d+)", text, "shape", f"{prefix}MxNxK")
    return m, n, k


def _numbers(pattern: str, text: str, what: str, wanted: str) -> list[int]:
    if (match := re.fullmatch(pattern, text)) is None:
        raise ValueError(f"{what} {text!r}, expected {wanted}")
    return list(map(int, match.groups()))
