"""Ops that return tensors, take lists, have defaults and packed formats: all from one declaration."""

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import toy_ops
from gemmill.registry import REGISTRY
from gemmill.runtime import checks, on_cpu, operands, ops
from gemmill.runtime.serving import Serving


@pytest.fixture(scope="module")
def toys() -> Iterator[object]:
    """The ops, in a namespace of their own."""
    with pytest.MonkeyPatch.context() as patch:
        for op in toy_ops.OPS.ops:
            patch.setitem(REGISTRY.ops, op.schema.name, (toy_ops.TOYS, op))
        serving = Serving(results=toy_ops.results, asked=None, lacks=None)
        patch.setattr(on_cpu, "serving_of", lambda op: serving)
        library = torch.library.Library("toys", "FRAGMENT")
        for op in toy_ops.OPS.ops:
            ops.define(library, op.schema)
        yield torch.ops.toys


def unpacked(rows: int = 2, *, columns: int = 6, tables: int = 1) -> list:
    return [
        torch.zeros(rows, 2 * columns),
        torch.full((rows, columns), 3, dtype=torch.uint8),
        [torch.ones(3)] * tables,
        "nvfp4",
    ]


def test_results_have_the_declared_shapes(toys) -> None:
    codes, scales, marks = toys.toy_pack(torch.ones(2, 3, 64), None, [1, 2])
    assert (codes.shape, codes.dtype, codes.is_contiguous()) == ((2, 3, 32), torch.uint8, True)
    assert (scales.shape, scales.dtype, scales.stride()) == ((2, 6), torch.float32, (1, 2))
    assert scales.unique().tolist() == [0.5] and codes.unique().tolist() == [0]
    assert (marks.tolist(), marks.dtype) == ([1.0] * 4, torch.float32)
    wide = toys.toy_pack(torch.ones(4, 80)[:, :64].bfloat16().as_strided((4, 32), (64, 1)), None, [1, 2])[2]
    assert (wide.shape, wide.dtype) == ((5,), torch.bfloat16)
    assert toys.toy_pack(torch.ones(4, 64), None, [1, 2], 16, 2.0, True)[1].unique().tolist() == [2.0]


def test_results_follow_what_is_written(toys) -> None:
    arguments = unpacked()
    sums = toys.toy_unpack(*arguments)
    assert (sums.tolist(), sums.dtype) == ([18.0, 18.0], torch.float32)
    assert arguments[0].unique().tolist() == [1.0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([torch.ones(3, 33), None, [1, 2], 16], "toy_pack: rows of 33 values are not a multiple of group 16"),
        ([torch.ones(3, 32), None, [1, 2], 8], "toy_pack: group is 8, expected 16 or 32"),
        ([torch.ones(3, 32), None, [2, 1]], "toy_pack: block is (2, 1), expected two numbers that rise"),
        ([torch.ones(3, 32), None, [2]], "toy_pack: block is (2,), expected two numbers that rise"),
        ([torch.ones(3, 32), None, [1, 1], 32, 0.125], "toy_pack: eps is 0.125, expected 0.25 or more"),
        ([torch.ones(3, 32), torch.ones(31), [1, 1]], "toy_pack: shift has shape [31], expected [K] = [32]"),
        (unpacked(3), "toy_unpack: there are 3 rows, expected an even number"),
        (unpacked(tables=2), "toy_unpack: there are 2 tables for nvfp4, a table of each scale is expected"),
        ([*unpacked(tables=2)[:3], "mxfp4", [1, 2, 6]], "toy_unpack: block is (1, 2, 6), expected a third of 7"),
        (
            [torch.zeros(2, 11), *unpacked()[1:]],
            "toy_unpack: result is [2, 11], expected [M, K] = [2, 12]",
        ),
        (
            [*unpacked()[:2], [torch.ones(3, device="meta")], "nvfp4"],
            "toy_unpack: tables is on meta and result is on cpu: all",
        ),
    ],
)
def test_sentences(toys, arguments: list, sentence: str) -> None:
    op = toys.toy_pack if "toy_pack" in sentence else toys.toy_unpack
    schema = (toy_ops.PACK if "toy_pack" in sentence else toy_ops.UNPACK).schema
    with pytest.raises(RuntimeError) as caught:
        checks.check(schema, operands.of_arguments(schema, arguments))
    assert str(caught.value).startswith(sentence)
    if "meta" not in sentence:
        with pytest.raises(RuntimeError) as caught:
            op(*arguments)
        assert str(caught.value).startswith(sentence)


def test_a_list_over_what_is_written_is_seen(toys) -> None:
    arguments = unpacked()
    arguments[2] = [arguments[0][0, 4:]]
    with pytest.raises(RuntimeError, match=r"^toy_unpack: result overlaps tables in memory"):
        toys.toy_unpack(*arguments)


def test_a_list_with_a_gradient_is_refused(toys) -> None:
    arguments = unpacked()
    arguments[2] = [torch.ones(3, requires_grad=True)]
    with pytest.raises(RuntimeError, match=r"^toy_unpack: tables requires grad while grad mode is enabled"):
        toys.toy_unpack(*arguments)


def test_a_fake_returns_what_the_op_would(toys) -> None:
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.ones(5, 96))
        codes, scales, marks = toys.toy_pack(x, None, [1, 2])
        assert tuple(marks.shape) == (4,)
        assert (tuple(codes.shape), codes.dtype, tuple(scales.shape), scales.stride()) == (
            (5, 48),
            torch.uint8,
            (3, 5),
            (1, 3),
        )
        with pytest.raises(RuntimeError, match=r"^toy_pack: group is 64, expected 16 or 32$"):
            toys.toy_pack(x, None, [1, 2], 64)


def test_results_keep_symbolic_sizes(toys) -> None:
    seen = []

    def backend(graph, _inputs):
        seen.append(graph)
        return graph.forward

    @torch.compile(backend=backend, dynamic=True)
    def packed(x: torch.Tensor) -> torch.Tensor:
        return toys.toy_pack(x, None, [1, 2])[0]

    for rows in (3, 5, 9):
        assert packed(torch.ones(rows, 64)).shape == (rows, 32)
    assert len(seen) == 1
