"""DeepGEMM as a contender: a package's folder, as vLLM's wheel has it (vllm/third_party/deep_gemm).

It compiles a kernel for every (N, K) with the machine's nvcc, at its first call: minutes for a table of shapes.
"""

import importlib
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gemmill.families.scaled_mm.sweep import Op
from gemmill.numerics.measured import Operands
from gemmill.tuner.protocol import first_line
from harness.contenders import Contender, FieldError, LocalContender


def add_options(parser: ArgumentParser) -> None:
    """Where its package is."""
    parser.add_argument("--deep-gemm", metavar="FOLDER", help="DeepGEMM's Python package, for scales in groups")


def contenders(family: str, options: Namespace, notes: list[str]) -> list[Contender]:
    """Its dense GEMM, if a package was named. Raises FieldError."""
    if not options.deep_gemm or family != "scaled_mm":
        return []
    try:
        return [deep_gemm_contender(options.deep_gemm)]
    except (OSError, ImportError, RuntimeError, AttributeError) as error:
        raise FieldError(f"DeepGEMM in {options.deep_gemm} cannot be used: {first_line(error)}") from None


def deep_gemm_contender(folder: str) -> LocalContender:
    """Its dense FP8 GEMM; the scales lie as it wants them. Raises OSError, ImportError or RuntimeError where it cannot be
    loaded."""
    path = Path(folder).resolve()
    if not (path / "__init__.py").is_file():
        raise OSError(f"{folder} is no folder of a Python package")
    sys.path.insert(0, str(path.parent))
    try:
        multiply = importlib.import_module(path.name).fp8_gemm_nt
    finally:
        sys.path.remove(str(path.parent))

    def bind(x: Operands, i: int) -> Callable[[], object]:
        return partial(multiply, (x.a, x.a_scales), (x.weights[i].t(), x.b_scales.t()), x.out)

    return LocalContender(name="deepgemm", bind=bind, suits=lambda problem: problem.op == Op.FP8_GROUPS)
