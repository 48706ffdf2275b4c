"""SGLang as a contender: its Triton kernel of FP8 in blocks of 32 x 32, read from files of its wheel, with the tiles that it tuned on an H200.

Of release 0.5.23: few rows swap A and B, and split K where its files say so. SGLang itself takes DeepGEMM for these layers on Hopper
where that is installed, and this kernel elsewhere. Only its GEMM is timed.
"""

import functools
import json
import logging
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional, Tuple  # noqa: UP035  # names that the file imports

import torch

from gemmill.families.scaled_mm.sweep import MeasuredOp
from gemmill.numerics.measured import Operands
from gemmill.tuner.protocol import first_line
from harness import foreign_source
from harness.contenders import Contender, FieldError, LocalContender

SOURCE = "sglang/kernels/ops/gemm/fp8_kernel.py"
MULTIPLY = "w8a8_block_fp8_matmul_triton"
FUNCTIONS = (
    "_w8a8_block_fp8_matmul",
    "_w8a8_block_fp8_matmul_hopper",
    "_reduce_block_fp8_split_k",
    "get_w8a8_block_fp8_configs",
    "select_w8a8_block_fp8_matmul_kernel",
    "prepare_block_fp8_matmul_inputs",
    MULTIPLY,
)
TUNED_ON = "NVIDIA_H200"
"""Its files of tiles for other Hoppers have no blocks of 32, so these serve all."""
SIDES = {MeasuredOp.FP8_GROUPS: 128, MeasuredOp.FP8_GROUPS_32: 32}


def add_options(parser: ArgumentParser) -> None:
    """Where its wheel is."""
    parser.add_argument("--sglang", type=Path, metavar="FOLDER", help="SGLang's unpacked wheel, for scales in groups")


def contenders(family: str, options: Namespace, notes: list[str]) -> list[Contender]:
    """Its dense GEMM, if a wheel was named. Raises FieldError."""
    if not options.sglang or family != "scaled_mm":
        return []
    return [sglang_contender(options.sglang)]


def sglang_contender(folder: Path) -> LocalContender:
    """Its Triton kernel. Raises FieldError where the file is missing, is another release's, or there is no Triton."""
    try:
        multiply = _function(folder / SOURCE)
    except (OSError, ValueError, ImportError) as error:
        raise FieldError(
            f"SGLang's kernels in {folder} cannot be read: {first_line(error)}; it is a folder with {SOURCE} of the wheel of 0.5.23"
        ) from None

    def bind(x: Operands, i: int) -> Callable[[], object]:
        _, a, b, a_scales, b_scales, _ = x.arguments(i)
        side = SIDES[MeasuredOp(x.workload.op)]
        return partial(multiply, a, b.t(), a_scales.contiguous(), b_scales.t().contiguous(), [side, side], x.out.dtype)

    return LocalContender(name="sglang triton", bind=bind, suits=lambda workload: workload.op in SIDES)


def _function(source: Path) -> Callable[..., Any]:
    import triton
    import triton.language as tl

    given = {
        "__file__": str(source),
        "functools": functools,
        "json": json,
        "os": os,
        "torch": torch,
        "triton": triton,
        "tl": tl,
        "logger": logging.getLogger("sglang"),
        "get_device_name": lambda: TUNED_ON,
        "get_platform": lambda: SimpleNamespace(is_sm90=True),
        "log_info_on_rank0": lambda *told: None,
        "_is_cuda": True,
        "_is_gfx1250": False,
        "Any": Any,
        "Dict": dict,
        "List": list,
        "Optional": Optional,
        "Tuple": Tuple,  # noqa: UP006
    }
    found: Callable[..., Any] = foreign_source.read(source, given, FUNCTIONS)[MULTIPLY]
    return found
