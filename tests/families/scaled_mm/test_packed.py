"""Under vLLM's names the GEMM ops refuse operands that vLLM's refuse; under ours they take them."""

import re
from importlib import import_module

import pytest
import torch

M, N, K = 16, 32, 48


def apart(rows: int, columns: int) -> torch.Tensor:
    """Rows of a wider matrix."""
    return torch.ones(rows, columns + 16, dtype=torch.int8)[:, :columns]


def call(name: str, **given: torch.Tensor) -> torch.Tensor:
    """vLLM's op of the name."""
    import_module("gemmill.compat.vllm.ops")
    operands = {
        "out": torch.zeros(M, N, dtype=torch.bfloat16),
        "a": torch.ones(M, K, dtype=torch.int8),
        "b": torch.ones(N, K, dtype=torch.int8).t(),
    } | given
    azp = [torch.zeros(N, dtype=torch.int32), None] if name.endswith("azp") else []
    getattr(torch.ops._C, name)(*operands.values(), torch.ones(1), torch.ones(1), *azp, None)
    return operands["out"]


@pytest.mark.parametrize("name", ["cutlass_scaled_mm", "cutlass_scaled_mm_azp"])
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"a": apart(M, K)}, "A is not packed: [16, 48] has strides [64, 1], so its rows of 48 lie apart"),
        ({"b": apart(N, K).t()}, "B is not packed: [48, 32] has strides [1, 64], so its columns of 48 lie apart"),
        (
            {"out": torch.zeros(M, N + 8, dtype=torch.bfloat16)[:, :N]},
            "output is not packed: [16, 32] has strides [40, 1], so its rows of 32 lie apart",
        ),
    ],
)
@pytest.mark.usefixtures("home")
def test_operands_that_are_not_packed_are_refused(name: str, given: dict, sentence: str) -> None:
    wanted = (
        f"vllm_{name}: vLLM's op requires packed operands; {sentence}; make it contiguous, or call gemmill.{name}, which "
        "takes it"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(wanted)}$"):
        call(name, **given)


@pytest.mark.usefixtures("home")
def test_one_row_lies_where_it_will_and_what_is_packed_is_multiplied() -> None:
    assert (call("cutlass_scaled_mm") == K).all() and (call("cutlass_scaled_mm_azp") == K).all()
    out = torch.zeros(4, N, dtype=torch.bfloat16)[::4]
    one = call("cutlass_scaled_mm", out=out, a=torch.ones(2, K + 16, dtype=torch.int8)[:1, :K])
    assert (one == K).all()


@pytest.mark.usefixtures("home")
def test_ours_takes_them() -> None:
    out = torch.zeros(M, N, dtype=torch.bfloat16)
    torch.ops.gemmill.cutlass_scaled_mm(out, apart(M, K), apart(N, K).t(), torch.ones(1), torch.ones(1), None)
    assert (out == K).all()
