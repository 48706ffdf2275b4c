"""SGLang as a contender: its functions are read from its file, and given the same operands."""

import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gemmill.families.scaled_mm.cases.measured import GemmMaker
from gemmill.tuner.workloads import workload_of
from harness.contenders import FieldError
from peers import sglang

KERNELS = """
import functools
from missing import nothing

@triton.jit
def _w8a8_block_fp8_matmul(): ...

@triton.jit
def _w8a8_block_fp8_matmul_hopper(): ...

@triton.jit
def _reduce_block_fp8_split_k(): ...

@functools.lru_cache
def get_w8a8_block_fp8_configs(n: int) -> Optional[Dict[int, Any]]:
    return os.path.basename(__file__), get_device_name()

def select_w8a8_block_fp8_matmul_kernel(): ...

def prepare_block_fp8_matmul_inputs(a: List[int]) -> Tuple[int, int]: ...

def w8a8_block_fp8_matmul_triton(A, B, As, Bs, block_size, output_dtype):
    assert get_w8a8_block_fp8_configs(1) == ("fp8_kernel.py", "NVIDIA_H200") and get_platform().is_sm90
    n, k = block_size
    assert A.is_contiguous() and B.is_contiguous() and As.is_contiguous() and Bs.is_contiguous()
    a = A.double() * As.double().repeat_interleave(k, 1)[:, : A.shape[1]]
    scales = Bs.double().repeat_interleave(n, 0)[: len(B)].repeat_interleave(k, 1)[:, : B.shape[1]]
    return (a @ (B.double() * scales).t()).to(output_dtype)
"""


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.jit, triton.language = (lambda function: function), language
    for module in (triton, language):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    source = tmp_path / sglang.SOURCE
    source.parent.mkdir(parents=True)
    source.write_text(KERNELS)
    return tmp_path


def test_its_kernel_gets_scales_as_it_wants_them(wheel: Path) -> None:
    (contender,) = sglang.contenders("scaled_mm", Namespace(sglang=wheel), [])
    for op in ("fp8_groups_32", "fp8_groups"):
        x = GemmMaker(torch.device("cpu"), 0).make(workload_of(op, {"m": 8, "n": 160, "k": 256}))
        assert contender.takes(x.workload)
        out = contender.call(x, 0)()
        assert x.expected().compare({"out": out}).ok, op
    assert not contender.takes(workload_of("fp8", {"m": 8, "n": 160, "k": 256}))
    assert sglang.contenders("grouped_mm", Namespace(sglang=wheel), []) == []


def test_a_folder_of_something_else_is_refused(wheel: Path) -> None:
    with pytest.raises(FieldError, match=r"SGLang's kernels in nowhere cannot be read: .*of the wheel of 0\.5\.23"):
        sglang.contenders("scaled_mm", Namespace(sglang=Path("nowhere")), [])
    (wheel / sglang.SOURCE).write_text("def other(): ...")
    with pytest.raises(FieldError, match="has no function"):
        sglang.contenders("scaled_mm", Namespace(sglang=wheel), [])
