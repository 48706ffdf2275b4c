"""The quantisation kernels of the named selections."""

from collections.abc import Iterator

from gemmill.families.quant.config import QuantConfig, Scaling
from gemmill.families.quant.ops import QUANT_OPS
from gemmill.vocab import Arch, DType


def default(arch: Arch) -> Iterator[QuantConfig]:
    """Every config that an op reaches, each once.

    On sm100a only block-scaled formats have kernels, as their GEMMs are there, and no GEMM reads packed weights in blocks.
    """
    for config in dict.fromkeys(config for op in QUANT_OPS for config in op.configs(arch)):
        has_gemm = config.scaling.is_blocked and config.scaling is not Scaling.WEIGHT_DEQUANT
        if arch is not Arch.SM100A or has_gemm:
            yield config


def smoke(arch: Arch) -> Iterator[QuantConfig]:
    """One config for each op that codes bf16 as e4m3 or in a block-scaled format, with the last of its activations.

    Ops may share one.
    """
    if arch is not Arch.SM90A:
        return
    yield from dict.fromkeys(
        next(
            config
            for config in op.configs(arch)
            if config.in_dtype is DType.BF16
            and (config.out_dtype is DType.E4M3 or op.format is not None)
            and config.group_size == max(op.group_sizes)
            and config.activation is op.activations[-1]
        )
        for op in QUANT_OPS
        if DType.E4M3 in op.out_dtypes or op.format is not None
    )
