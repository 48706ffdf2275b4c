"""vLLM's hadacore_transform under its own name: results, in place or not, and refusals."""

import math
from importlib import import_module

import pytest
import torch

pytestmark = pytest.mark.usefixtures("home")


def transform(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    import_module("gemmill.compat.vllm.ops")
    return torch.ops._C.hadacore_transform(x, inplace)


def sylvester(n: int) -> torch.Tensor:
    h = torch.ones(1, 1, dtype=torch.float64)
    while len(h) < n:
        h = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), h)
    return h


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [1, 2, 16, 64, 128, 256, 512, 4096])
def test_each_row_is_transformed_and_rounded_once(n: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(n)
    x = torch.randint(-8, 9, (2, 3, n), generator=generator, dtype=torch.float32).to(dtype)
    before, found = x.clone(), transform(x)
    wanted = x.double() @ sylvester(n) / math.sqrt(n)
    step = torch.finfo(dtype).eps
    assert found.dtype == dtype and found.shape == x.shape and torch.equal(x, before)
    assert bool(((found.double() - wanted).abs() <= 0.51 * step * wanted.abs() + 1e-6).all())


def test_in_place_is_the_same_tensor() -> None:
    x = torch.ones(4, 128, dtype=torch.bfloat16)
    out = transform(x, inplace=True)
    assert out.data_ptr() == x.data_ptr() and bool((x[:, 0] > 11).all())
    assert bool((x[:, 1:] == 0).all())


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (torch.ones(2, 96, dtype=torch.bfloat16), "bfloat16 [2, 96]"),
        (torch.ones(2, 64, dtype=torch.float32), "float32 [2, 64]"),
        (torch.ones(1, 65536, dtype=torch.float16), "float16 [1, 65536]"),
    ],
)
def test_others_are_refused(x: torch.Tensor, told: str) -> None:
    with pytest.raises(RuntimeError) as refused:
        transform(x)
    assert str(refused.value) == (
        f"hadacore_transform: x is {told}, expected bfloat16 or float16 [..., a power of two up to 32768]"
    )
