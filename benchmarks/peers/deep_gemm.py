"""DeepGEMM as a contender: a package's folder, as vLLM's wheel has it (vllm/third_party/deep_gemm).

It compiles a kernel for every (N, K) with the machine's nvcc, at its first call: minutes for a table of shapes.
"""

import importlib
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

import torch

from gemmill.families.scaled_mm.cases.measured import GemmMaker
from gemmill.families.scaled_mm.sweep import MeasuredOp
from gemmill.numerics.measured import Operands
from gemmill.tuner.protocol import first_line
from gemmill.tuner.workloads import Workload
from harness import deep_gemm_experts
from harness.compile_ahead import compile_ahead
from harness.contenders import Contender, FieldError, LocalContender
from harness.deep_gemm_experts import forms_of, products_of
from timed.grouped_mm import BENCHMARK as EXPERTS
from timed.grouped_mm.calls import workloads_of as experts_workloads

COMPILE_LIMIT_S = 75.0


def add_options(parser: ArgumentParser) -> None:
    """Where its package is."""
    parser.add_argument("--deep-gemm", metavar="FOLDER", help="DeepGEMM's Python package, for scales in groups")
    parser.add_argument(
        "--deep-gemm-jobs", type=int, default=0, metavar="N", help="grouped: processes that compile it beforehand"
    )


def contenders(family: str, options: Namespace, notes: list[str]) -> list[Contender]:
    """Its dense GEMM, both forms of its grouped one, or of a layer of experts both products alone, if a package was named. Raises
    FieldError."""
    if not options.deep_gemm or family not in ("scaled_mm", "grouped_mm", "fused_experts"):
        return []
    try:
        if family == "fused_experts":
            return [products_of(load_package(options.deep_gemm))]
        if family == "scaled_mm":
            return [deep_gemm_contender(options.deep_gemm)]
        asked = options.drawn if "drawn" in options else experts_workloads(options)
        workloads = [workload for workload in asked if workload.kind == "fp8_groups"]
        workloads += list(dict.fromkeys(EXPERTS.host_workload(workload.kind) for workload in workloads))
        if options.deep_gemm_jobs:
            notes.append(
                deep_gemm_experts.compile_ahead(
                    load_package, options.deep_gemm, workloads, options.deep_gemm_jobs, COMPILE_LIMIT_S
                )
            )
        return list(forms_of(load_package(options.deep_gemm)))
    except (OSError, ImportError, RuntimeError, AttributeError) as error:
        raise FieldError(f"DeepGEMM in {options.deep_gemm} cannot be used: {first_line(error)}") from None


def load_package(folder: str) -> ModuleType:
    """The package in a folder. Raises OSError, ImportError or RuntimeError where it cannot be loaded."""
    path = Path(folder).resolve()
    if not (path / "__init__.py").is_file():
        raise OSError(f"{folder} is no folder of a Python package")
    sys.path.insert(0, str(path.parent))
    try:
        return importlib.import_module(path.name)
    finally:
        sys.path.remove(str(path.parent))


def deep_gemm_contender(folder: str) -> LocalContender:
    """Its dense FP8 GEMM; the scales lie as it wants them. Raises OSError, ImportError or RuntimeError where it cannot be
    loaded."""
    multiply = load_package(folder).fp8_gemm_nt

    def bind(x: Operands, i: int) -> Callable[[], object]:
        return partial(multiply, (x.a, x.a_scales), (x.weights[i].t(), x.b_scales.t()), x.out)

    return LocalContender(name="deepgemm", bind=bind, suits=lambda workload: workload.op == MeasuredOp.FP8_GROUPS)


def compiled_ahead(folder: str, workloads: Sequence[Workload], jobs: int, limit_s: float) -> str:
    """Have `jobs` processes compile its dense GEMM for workloads. Returns the outcomes."""
    return compile_ahead("DeepGEMM", partial(_call_once, folder), workloads, jobs, limit_s)


def _call_once(folder: str, workload: Workload) -> None:
    operands = GemmMaker(torch.device("cuda"), rotated_bytes=1).make(workload)
    deep_gemm_contender(folder).call(operands, 0)()
