"""The gated GEMMs of the named selections."""

from collections.abc import Iterator
from itertools import product

from gemmill.families.gated_mm.config import (
    Activation,
    AnyConfig,
    ExpertGatedConfig,
    ExpertGroupGatedConfig,
    GatedConfig,
    GatheredGatedConfig,
    GatheredGroupGatedConfig,
    GroupGatedConfig,
    Result,
    UnalignedGatedConfig,
)
from gemmill.families.gated_mm.int8_selections import of_int8
from gemmill.vocab import Accumulation, Arch, DType, KernelSchedule

BASIC, COOPERATIVE, PINGPONG = KernelSchedule.BASIC, KernelSchedule.COOPERATIVE, KernelSchedule.PINGPONG
_FEW = {
    Result.BF16: (((64, 16, 256), BASIC), ((128, 32, 256), COOPERATIVE)),
    Result.STATIC: (((64, 16, 256), BASIC), ((128, 32, 256), COOPERATIVE)),
    Result.GROUP: (((256, 16, 128), COOPERATIVE), ((256, 32, 128), COOPERATIVE)),
}
_SOME = ((256, 64, 128), COOPERATIVE)
_LOW = ((64, 256, 128), BASIC)
_MANY = {
    Result.BF16: ((128, 192, 128), (1, 1, 1)),
    Result.STATIC: ((128, 192, 128), (1, 1, 1)),
    Result.GROUP: ((64, 256, 128), (2, 1, 1)),
}
"""Tiles in pingpong: a tile ends while the next one is multiplied (docs/notes/gated_mm.md)."""


def default(arch: Arch) -> Iterator[AnyConfig]:
    """The default kernels, on sm90a: for each result and activation, tiles for few rows, some, and many.

    For each result one more kernel takes operands that TMA does not. Rows of experts have kernels for few, some and many of
    them (`served_experts`).
    """
    yield from tiled(arch)
    yield from unaligned(arch)
    yield from served_experts(arch)


def unaligned(arch: Arch) -> Iterator[UnalignedGatedConfig]:
    """The kernels for operands that TMA does not take, one for each result."""
    for result in Result if arch is Arch.SM90A else ():
        yield UnalignedGatedConfig(dtype=DType.E4M3, result=result, arch=arch)


def tiled(arch: Arch) -> Iterator[GatedConfig]:
    """The kernels that load with TMA. GELU with erf has two of each result alone."""
    for activation, result in product(Activation, Result) if arch is Arch.SM90A else ():
        rare = activation is Activation.GELU
        for tile, schedule in (*_FEW[result][: 1 if rare else 2], *(() if rare else (_SOME,))):
            yield _config(result, activation, tile, (1, 1, 1), schedule, arch, swap_ab=True)
        if not rare:
            yield _config(result, activation, _LOW[0], (1, 1, 1), _LOW[1], arch)
        tile, cluster = _MANY[result]
        yield _config(result, activation, tile, cluster, PINGPONG, arch)


_IN_GROUPS = {
    Result.BF16: (((128, 16, 256), COOPERATIVE), ((128, 64, 128), COOPERATIVE), ((256, 96, 128), COOPERATIVE)),
    Result.STATIC: (((128, 16, 256), COOPERATIVE), ((128, 64, 128), COOPERATIVE), ((256, 96, 128), COOPERATIVE)),
    Result.GROUP: (((256, 16, 128), COOPERATIVE), ((256, 64, 128), COOPERATIVE), ((256, 96, 128), COOPERATIVE)),
}
"""Tiles and schedules for operands with scales in groups."""


def in_groups(arch: Arch) -> Iterator[GroupGatedConfig]:
    """The kernels of operands whose scales are in groups along K, with SiLU and SwiGLU: layers with such weights have
    these."""
    for activation, result in product((Activation.SILU, Activation.SWIGLU), Result) if arch is Arch.SM90A else ():
        for tile, schedule in _IN_GROUPS[result]:
            yield GroupGatedConfig(
                dtype=DType.E4M3,
                result=result,
                activation=activation,
                tile_shape_mnk=tile,
                kernel_schedule=schedule,
                accumulation=Accumulation.PROMOTED,
                swap_ab=True,
                arch=arch,
            )


_OF_EXPERTS = {
    Result.BF16: (
        ((64, 16, 256), BASIC, True),
        ((128, 32, 256), COOPERATIVE, True),
        ((128, 64, 128), COOPERATIVE, True),
        ((128, 192, 128), PINGPONG, False),
    ),
    Result.STATIC: (
        ((64, 16, 256), BASIC, True),
        ((128, 64, 128), COOPERATIVE, True),
        ((128, 192, 128), PINGPONG, False),
    ),
    Result.GROUP: (
        ((256, 16, 128), COOPERATIVE, True),
        ((256, 32, 128), COOPERATIVE, True),
        ((256, 64, 128), COOPERATIVE, True),
        ((64, 256, 128), PINGPONG, False),
    ),
}
_OF_EXPERTS_IN_GROUPS = {
    Result.BF16: ((128, 16, 256), (128, 64, 128), (256, 96, 128)),
    Result.STATIC: ((128, 16, 256), (128, 64, 128), (256, 96, 128)),
    Result.GROUP: ((256, 16, 128), (256, 64, 128), (256, 96, 128)),
}
"""Tiles, schedules, and whether weights fill the tensor core's rows: those of dense kernels, without pairs along M."""
_GATHERED_ROWS = (16, 64)
"""Rows of the tiles that kernels of gathered rows have: `gemmill.grouped_mm_act_quant` selects many rows first."""


_OFTEN = (Activation.SILU, Activation.SWIGLU)
"""Activations that experts mostly have. Others have kernels of scales of rows alone, for few and for many rows in order."""
_LEFT_OUT_ROWS = 32
"""Rows of a tile that `default` has for dense layers alone: those with 16 and 64 serve experts."""
_Part = tuple[type[GatedConfig], tuple[int, int, int], KernelSchedule, bool, Accumulation]
_IN_ORDER, _GATHERED = (ExpertGatedConfig, ExpertGroupGatedConfig), (GatheredGatedConfig, GatheredGroupGatedConfig)


def of_experts(arch: Arch) -> Iterator[GatedConfig]:
    """The kernels of rows that belong to experts, with both kinds of scales, in order and gathered."""
    kinds = product(Activation, Result, (_IN_ORDER, _GATHERED))
    for activation, result, (of_rows, of_groups) in kinds if arch is Arch.SM90A else ():
        parts: list[_Part] = [(of_rows, *part, Accumulation.FAST) for part in _OF_EXPERTS[result]]
        if activation in _OFTEN:
            parts += [
                (of_groups, tile, COOPERATIVE, True, Accumulation.PROMOTED) for tile in _OF_EXPERTS_IN_GROUPS[result]
            ]
        else:
            parts = [] if of_rows.indexed else [parts[0], parts[-1]]
        for kind, tile, schedule, swap_ab, accumulation in parts:
            if not kind.indexed or tile[1] in _GATHERED_ROWS:
                yield kind(
                    dtype=DType.E4M3,
                    result=result,
                    activation=activation,
                    tile_shape_mnk=tile,
                    kernel_schedule=schedule,
                    accumulation=accumulation,
                    swap_ab=swap_ab,
                    arch=arch,
                )


def served_experts(arch: Arch) -> Iterator[GatedConfig]:
    """Those kernels of experts' rows that `default` has: scales of rows, to bf16 and to codes in groups.

    With scales of operands in groups the two ops are faster from 256 tokens on (docs/notes/gated_mm.md).
    """
    for config in of_experts(arch):
        of_default = config.activation in _OFTEN and config.result is not Result.STATIC and not config.group_size
        if of_default and config.tile_shape_mnk[1] != _LEFT_OUT_ROWS:
            yield config


def sweep(arch: Arch) -> Iterator[AnyConfig]:
    """The default kernels, those of operands in groups, all of experts' rows, and those of s8."""
    yield from default(arch)
    yield from in_groups(arch)
    served = set(served_experts(arch))
    yield from (config for config in of_experts(arch) if config not in served)
    yield from of_int8(arch)


def smoke(arch: Arch) -> Iterator[AnyConfig]:
    """Kernels of SiLU that store codes in groups for few and many rows, and bf16 for few.

    One more stores codes in groups of operands that TMA does not take.
    """
    yield from (config for config in unaligned(arch) if config.result is Result.GROUP)
    for config in tiled(arch):
        few, many = config.tile_shape_mnk[1] == 16, config.kernel_schedule is PINGPONG
        if config.activation is Activation.SILU and (
            (config.result is Result.GROUP and (few or many)) or (config.result is Result.BF16 and few)
        ):
            yield config


def _config(
    result: Result,
    activation: Activation,
    tile: tuple[int, int, int],
    cluster: tuple[int, int, int],
    schedule: KernelSchedule,
    arch: Arch,
    swap_ab: bool = False,
) -> GatedConfig:
    return GatedConfig(
        dtype=DType.E4M3,
        result=result,
        activation=activation,
        tile_shape_mnk=tile,
        cluster_shape_mnk=cluster,
        kernel_schedule=schedule,
        accumulation=Accumulation.FAST,
        swap_ab=swap_ab,
        arch=arch,
    )
