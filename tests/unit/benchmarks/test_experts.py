"""vLLM's Triton kernel, read from its file: what Triton asks of a function that it compiles."""

import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness.experts_contenders import _kernel

SOURCE = """import vllm.envs

@triton.jit
def write_zeros_to_output(c_ptr):
    return c_ptr

@triton.jit
def fused_moe_kernel(c_ptr):
    return write_zeros_to_output(c_ptr)
"""


def test_kernels_of_a_file_have_a_module_and_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "fused_moe.py"
    source.write_text(SOURCE)
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.jit, triton.language = lambda function: function, language
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    kernel = _kernel(source)
    called = kernel.__globals__["write_zeros_to_output"]
    for function in (kernel, called):
        assert function.__module__ == "fused_moe", "Triton's compiler calls startswith on it"
        assert inspect.getsource(function).startswith("@triton.jit")
