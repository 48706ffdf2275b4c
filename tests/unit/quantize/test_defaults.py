"""Packed, quantised and computed tensors do not depend on the caller's default dtype and device: engines load models under
bf16, with a GPU as the default device.
"""

from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
import torch

from defaults import CASES, results

BY_NAME = {case.__name__: case for case in CASES}


@cache
def wanted(name: str) -> list[Any]:
    return [*results(BY_NAME[name]())]


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64, "meta"], ids=str)
@pytest.mark.parametrize("name", BY_NAME)
def test_results_are_those_under_float32(name: str, default: Any) -> None:
    """Bit by bit, and where the input lies."""
    right = wanted(name)
    with ExitStack() as stack:
        if default == "meta":
            stack.enter_context(torch.device("meta"))
        else:
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(default)
        found = [*results(BY_NAME[name]())]
    assert len(found) == len(right)
    assert [i for i, (one, other) in enumerate(zip(found, right, strict=True)) if repr(one) != repr(other)] == []
