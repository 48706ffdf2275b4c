"""With a GPU as the default device, and bf16 as the default dtype, weights of the CPU are packed there, and as ever."""

import pytest
import torch

from defaults import CASES, results


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_results_are_those_under_float32_on_the_cpu(case) -> None:
    right = [*results(case())]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            found = [*results(case())]
    finally:
        torch.set_default_dtype(before)
    assert [repr(one) for one in found] == [repr(other) for other in right]
