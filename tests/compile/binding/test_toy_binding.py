"""Ops that return tensors, take lists, have defaults and packed formats: the extension's checks and results against Python's."""

import ctypes
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import toy_ops
from gemmill.families.quant.family import FAMILY
from gemmill.family import Op
from gemmill.registry import REGISTRY
from gemmill.runtime import checks, operands
from gemmill.runtime.declaring import declare
from gemmill.runtime.schemas import BY_NAME

pytestmark = pytest.mark.compile


class MallocState(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


@pytest.fixture(scope="module")
def toys(probe) -> Iterator[object]:
    """The ops among those of a family that finds nothing to do in their calls."""
    family = replace(FAMILY, asks=toy_ops.OPS)
    library = torch.library.Library("toys_probe", "FRAGMENT")
    with pytest.MonkeyPatch.context() as patch:
        for op in toy_ops.OPS.ops:
            patch.setitem(REGISTRY.ops, op.schema.name, (family, op))
            patch.setitem(BY_NAME, op.schema.name, op.schema)
            library.define(op.schema.schema)
            declare(probe.build._library, family, op)
        probe.build.register("toys_probe", "CPU")
        yield torch.ops.toys_probe


@pytest.mark.parametrize("op", toy_ops.OPS.ops, ids=lambda op: op.schema.name)
def test_both_refuse_the_same_calls_and_return_the_same_shapes(op: Op, toys) -> None:
    rng, refused, taken = random.Random(op.schema.name), set(), 0
    for _ in range(2000):
        arguments = toy_ops.some_call(op, rng)
        try:
            call = checks.check(op.schema, operands.of_arguments(op.schema, arguments))
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as caught:
                getattr(toys, op.schema.name).default(*arguments)
            assert str(error) in str(caught.value), arguments
            refused.add(str(error).split(":")[1][:12])
            continue
        taken += 1
        found = getattr(toys, op.schema.name).default(*arguments)
        found = found if isinstance(found, tuple) else (found,)
        for result, wanted in zip(found, call.results, strict=True):
            assert (result.shape, str(result.dtype)) == (wanted.shape, f"torch.{wanted.dtype}")
            assert (result.t() if wanted.is_column_major else result).is_contiguous()
    assert taken > 60 and len(refused) > 8, (taken, refused)


def test_lists_and_results_leave_no_memory_behind(toys, probe) -> None:
    x, values = torch.ones(2, 64), torch.zeros(2, 64)
    codes, tables = torch.zeros(2, 32, dtype=torch.uint8), [torch.ones(3), torch.ones(3)]

    def call() -> None:
        toys.toy_pack.default(x, None, [1, 2])
        toys.toy_unpack.default(values, codes, tables, "mxfp4", [1, 2, 7])

    in_use, calls = ctypes.CDLL(None).mallinfo2, 5_000
    in_use.restype = MallocState
    call()
    before = in_use().uordblks
    for _ in range(calls):
        call()
    assert in_use().uordblks - before < 16 * calls
    assert (x.shape, tables[0].tolist()) == ((2, 64), [1.0, 1.0, 1.0])
