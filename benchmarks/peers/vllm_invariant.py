"""vLLM's batch-invariant GEMMs as contenders: Triton kernels and the functions that launch them, read from files of its wheel.

With VLLM_BATCH_INVARIANT, vLLM 0.33.0 multiplies bf16 by `matmul_persistent`, whose tiles are tuned for some weights, and scales in blocks
by `w8a8_triton_block_scaled_mm` with one tile. Codes with scales of rows take vLLM's CUTLASS kernels on NVIDIA's GPUs, by default;
`triton_scaled_mm`, which it names batch-invariant too, is timed next to them.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from gemmill.tuner.workloads import Workload
from harness import foreign_source
from harness.contenders import FieldError, LocalContender, vllm_contender

MATMUL = "vllm/model_executor/determinism/batch_invariant.py"
CONFIGS = "vllm/model_executor/determinism/batch_invariant_configs.py"
ROWS = "vllm/model_executor/layers/quantization/compressed_tensors/triton_scaled_mm.py"
BLOCKS = "vllm/model_executor/layers/quantization/utils/fp8_utils.py"
FILES = (MATMUL, CONFIGS, ROWS, BLOCKS)
"""In the unpacked wheel."""
GROUP = 128
_LARGE_TILE = 256
"""Columns of f16 tiles where shared memory is more than 104 KiB."""


class _Device:
    """Of `vllm.platforms`, the answers for this GPU."""

    @staticmethod
    def is_cuda() -> bool:
        return True

    @staticmethod
    def is_rocm() -> bool:
        return False

    @staticmethod
    def get_device_capability() -> Any:
        major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
        return SimpleNamespace(major=major, minor=minor)


def _multiprocessors(index: int | None = None) -> int:
    return torch.cuda.get_device_properties(index or 0).multi_processor_count if torch.cuda.is_available() else 132


def functions(folder: Path) -> dict[str, Callable[..., Any]]:
    """`matmul_persistent`, `triton_scaled_mm` and `w8a8_triton_block_scaled_mm` as vLLM has them under its flag.

    Raises FieldError where a file is missing, is another release's, or there is no Triton.
    """
    try:
        return _functions(folder)
    except (OSError, ValueError, ImportError) as error:
        raise FieldError(
            f"vLLM's kernels in {folder} cannot be read: {error}; it is a folder with files of the wheel of 0.33.0, {', '.join(FILES)}"
        ) from error


def _functions(folder: Path) -> dict[str, Callable[..., Any]]:
    import triton
    import triton.language as tl

    shared = {"torch": torch, "triton": triton, "tl": tl, "Callable": Callable, "Any": Any}
    told = {"current_platform": _Device, "DeviceCapability": Any}
    from typing import NamedTuple

    configs = foreign_source.read(folder / CONFIGS, shared | told | {"NamedTuple": NamedTuple})
    sizes = {
        "_BLOCK_SIZES_RESOLVED": True,
        "_fp16_block_size_n": _LARGE_TILE,
        "_fp32_block_size_n": 128,
        "_fp32_num_stages": 3,
    }
    matmul = foreign_source.read(
        folder / MATMUL,
        shared | sizes | {"num_compute_units": _multiprocessors, "_get_matmul_config": configs["_get_matmul_config"]},
        ("_matmul_launch_metadata", "_compute_pid", "matmul_kernel_persistent", "matmul_persistent"),
    )
    rows = foreign_source.read(
        folder / ROWS,
        shared | {"use_tensor_descriptor": lambda override=None: bool(override)},
        ("is_weak_contiguous", "scaled_mm_kernel", "triton_scaled_mm"),
    )
    blocks = foreign_source.read(
        folder / BLOCKS,
        shared | told | {"envs": SimpleNamespace(VLLM_BATCH_INVARIANT=True)},
        ("_w8a8_triton_block_scaled_mm", "w8a8_triton_block_scaled_mm"),
    )
    return {
        "bf16": matmul["matmul_persistent"],
        "fp8": rows["triton_scaled_mm"],
        "fp8_groups": blocks["w8a8_triton_block_scaled_mm"],
    }


def contenders(folder: Path, library: str | None = None) -> list[LocalContender]:
    """The Triton kernels, and with vLLM's library its CUTLASS kernel of scales of rows. Raises FieldError."""
    known = functions(folder)
    found = [
        LocalContender(name="vllm triton", bind=partial(_bound, known), suits=lambda workload: workload.op in known)
    ]
    if library is not None:
        found.append(_of_rows(vllm_contender(library)))
    return found


def _of_rows(cutlass: LocalContender) -> LocalContender:
    def suits(workload: Workload) -> bool:
        return workload.op == "fp8" and cutlass.takes(workload)

    return LocalContender(name="vllm cutlass", bind=cutlass.bind, suits=suits, given=cutlass.given)


def _bound(known: dict[str, Callable[..., Any]], operands: Any, i: int) -> Callable[[], Any]:
    """A call with the i-th copy of the weights, from the arguments of `cutlass_scaled_mm`."""
    out, a, b, a_scales, b_scales, bias = operands.arguments(i)
    call = known[operands.workload.op]
    if operands.workload.op == "bf16":
        return partial(call, a, b, bias)
    if operands.workload.op == "fp8":
        return partial(call, a, b, a_scales.reshape(-1, 1), b_scales.reshape(-1, 1), out.dtype, bias)
    return partial(call, a, b.t(), a_scales.contiguous(), b_scales.t(), [GROUP, GROUP], out.dtype)
