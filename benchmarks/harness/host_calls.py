"""A process that times calls of the gemmill that its PYTHONPATH names, one line of standard input at a time.

It knows nothing but torch and the ops' names, so that it runs with any revision of gemmill.
"""

import sys
import time
from collections.abc import Callable

import torch

Call = Callable[[], object]
ROWS, COLUMNS, DEPTH, GROUP = 16, 128, 512, 128
"""Small enough that a loop of calls never waits for the device."""


def calls(device: str) -> dict[str, Call]:
    """Each op's call with its arguments bound."""
    import gemmill  # noqa: F401  (registers the ops, after the stream of results was set apart)

    ops = torch.ops.gemmill
    e4m3, s8, bf16 = torch.float8_e4m3fn, torch.int8, torch.bfloat16

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype, device=device)

    out, x = zeros(ROWS, COLUMNS, dtype=bf16), zeros(ROWS, DEPTH, dtype=bf16)
    rows, columns, adjusted = zeros(ROWS, 1), zeros(1, COLUMNS), zeros(COLUMNS, dtype=torch.int32)
    codes, integers = zeros(ROWS, DEPTH, dtype=e4m3), zeros(ROWS, DEPTH, dtype=s8)
    weights, integer_weights = zeros(COLUMNS, DEPTH, dtype=e4m3).t(), zeros(COLUMNS, DEPTH, dtype=s8).t()
    row_groups, block_groups = zeros(DEPTH // GROUP, ROWS).t(), zeros(1, DEPTH // GROUP).t()
    points, one = zeros(ROWS, 1, dtype=torch.int32), torch.ones(1, device=device)
    mm, azp = ops.cutlass_scaled_mm.default, ops.cutlass_scaled_mm_azp.default
    static, token = ops.static_scaled_fp8_quant.default, ops.dynamic_per_token_scaled_fp8_quant.default
    return {
        "cutlass_scaled_mm": lambda: mm(out, codes, weights, rows, columns, None),
        "cutlass_scaled_mm, groups": lambda: mm(out, codes, weights, row_groups, block_groups, None),
        "cutlass_scaled_mm_azp": lambda: azp(out, integers, integer_weights, rows, columns, adjusted, points, None),
        "static_scaled_fp8_quant": lambda: static(codes, x, one),
        "dynamic_per_token_scaled_fp8_quant": lambda: token(codes, x, rows, None),
    }


def serve(device: str, count: int, made: Callable[[str], dict[str, Call]] = calls) -> None:
    """Answer each line, the name of a call that `made` makes, with microseconds a call over `count` calls."""
    answers, sys.stdout = sys.stdout, sys.stderr
    known = made(device)
    wait = torch.cuda.synchronize if device == "cuda" else bool
    for call in known.values():
        call()
    wait()
    print("\n".join(known), end="\n\n", file=answers, flush=True)
    for line in sys.stdin:
        call = known[line.rstrip("\n")]
        start = time.perf_counter()
        for _ in range(count):
            call()
        taken = time.perf_counter() - start
        wait()
        print(taken / count * 1e6, file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
