"""The process that makes calls under compute-sanitizer: `python tools/sanitized_calls.py SPEC`. sanitized.py starts it.

A line of JSON before and after each call says whose reports the sanitizer's lines between them are. With `planted` it
launches one kernel that is wrong on purpose, and nothing else: a tool that does not see that one sees nothing.
"""

import ctypes
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

import gemmill
from gemmill.numerics.cases import Case, cases_of
from gemmill.runtime.schemas import NAMESPACE
from gemmill.tuner.bench import DEAD_CONTEXT
from gemmill.tuner.protocol import first_line

MARK = "@@sanitized "
"""In front of each line of JSON."""
DEAD = 3
"""Exit code where the CUDA context is of no more use."""
PLANTED = "gemmill_planted"
"""Beginning of the names of deliberately wrong kernels: `gemmill`, as the filter of kernels has it."""
THREADS = 64
PTX = """
.version 8.0
.target sm_80
.address_size 64

// Writes 1 MiB behind the allocation.
.visible .entry gemmill_planted_memcheck(.param .u64 in, .param .u64 out) {
  .reg .b64 %p;
  .reg .b32 %t;
  ld.param.u64 %p, [out];
  mov.u32 %t, %tid.x;
  st.global.u32 [%p + 1048576], %t;
  ret;
}

// Reads what the other warp writes, and waits for nothing.
.visible .entry gemmill_planted_racecheck(.param .u64 in, .param .u64 out) {
  .reg .b64 %p, %offset;
  .reg .b32 %t, %other, %at, %from, %value;
  .shared .align 4 .b32 words[64];
  ld.param.u64 %p, [out];
  mov.u32 %t, %tid.x;
  xor.b32 %other, %t, 32;
  shl.b32 %at, %t, 2;
  shl.b32 %from, %other, 2;
  mov.u32 %value, words;
  add.u32 %at, %at, %value;
  add.u32 %from, %from, %value;
  st.volatile.shared.u32 [%at], %t;
  ld.volatile.shared.u32 %value, [%from];
  mul.wide.u32 %offset, %t, 4;
  add.u64 %p, %p, %offset;
  st.global.u32 [%p], %value;
  ret;
}

// Half of a warp comes to a barrier of all threads.
.visible .entry gemmill_planted_synccheck(.param .u64 in, .param .u64 out) {
  .reg .b64 %p, %offset;
  .reg .b32 %t;
  .reg .pred %few;
  ld.param.u64 %p, [out];
  mov.u32 %t, %tid.x;
  setp.ge.u32 %few, %t, 48;
  @%few bra behind;
  bar.sync 0;
behind:
  mul.wide.u32 %offset, %t, 4;
  add.u64 %p, %p, %offset;
  st.global.u32 [%p], %t;
  ret;
}

// Reads memory that nobody has written.
.visible .entry gemmill_planted_initcheck(.param .u64 in, .param .u64 out) {
  .reg .b64 %p, %q;
  .reg .b32 %value;
  ld.param.u64 %p, [in];
  ld.param.u64 %q, [out];
  ld.global.u32 %value, [%p];
  st.global.u32 [%q], %value;
  ret;
}
"""


def main(path: str) -> int:
    """Run; returns the exit code."""
    spec = json.loads(Path(path).read_text(encoding="utf-8"))
    if spec["planted"]:
        plant(spec["tool"])
        return 0
    return make_calls(spec, torch.device(spec["device"]))


def make_calls(spec: dict[str, Any], device: torch.device) -> int:
    """Make a call of each variant, until time is over by a clock that all processes have."""
    entries = {entry.name: entry for entry in gemmill.load(spec["build"]).manifest.entries}
    say(event="ready", device=torch.cuda.get_device_name() if device.type == "cuda" else "CPU")
    for name in spec["names"]:
        if time.monotonic() > spec["end"]:
            break
        config = entries[name].config
        case = chosen(cases_of(config).of_config(config), spec["bytes"])
        say(event="begin", name=name, call=f"{case.op}: {case}")
        error = call_once(name, case, device)
        say(event="end", name=name, error=error)
        if any(words in error for words in DEAD_CONTEXT):
            return DEAD
    return 0


def call_once(name: str, case: Case, device: torch.device) -> str:
    """Make a call with a variant pinned, and wait for it. Returns the first line of its error, if there is one."""
    try:
        with gemmill.use_variant(name):
            getattr(getattr(torch.ops, NAMESPACE), case.op).default(*case.arguments(device.type))
        if device.type == "cuda":
            torch.cuda.synchronize()
    except RuntimeError as error:
        return first_line(error)
    return ""


def chosen(cases: Iterable[Case], most: int) -> Case:
    """The call whose three largest tensors have the largest product, of those before the first with too many bytes.

    Of a GEMM that is the square of M x N x K: large where no dimension is small. Families list calls from small ones to
    large ones, below, at and across tiles. Where the first call has too many bytes already, it is that one.
    """
    best, largest = None, -1
    for case in cases:
        given = list(tensors(case.arguments("cpu")))
        if sum(tensor.untyped_storage().nbytes() for tensor in given) > most and best is not None:
            break
        product = math.prod(sorted(tensor.numel() for tensor in given)[-3:])
        if product > largest:
            best, largest = case, product
    assert best is not None, "a family lists calls of each config"
    return best


def tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among arguments, those of lists too."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value)


def plant(tool: str) -> None:
    """Launch the kernel that a tool must report. torch has no part in it but for the memory."""
    device = torch.device("cuda")
    unwritten = torch.empty(THREADS, dtype=torch.int32, device=device)
    out = torch.zeros(THREADS, dtype=torch.int32, device=device)
    torch.cuda.synchronize()
    say(event="planted", device=torch.cuda.get_device_name())
    driver, module, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    addresses = [ctypes.c_uint64(tensor.data_ptr()) for tensor in (unwritten, out)]
    parameters = (ctypes.c_void_p * 2)(*[ctypes.cast(ctypes.pointer(x), ctypes.c_void_p) for x in addresses])
    status = [
        driver.cuModuleLoadData(ctypes.byref(module), PTX.encode()),
        driver.cuModuleGetFunction(ctypes.byref(kernel), module, f"{PLANTED}_{tool}".encode()),
        driver.cuLaunchKernel(kernel, 1, 1, 1, THREADS, 1, 1, 0, None, parameters, None),
    ]
    say(event="launched", status=status)
    driver.cuCtxSynchronize()


def say(**event: Any) -> None:
    """Write a line for sanitized.py, on a line of its own."""
    print(f"\n{MARK}{json.dumps(event)}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
